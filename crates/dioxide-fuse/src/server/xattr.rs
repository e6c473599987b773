//! Extended attributes.

use super::{Caller, Server};
use crate::stats::{IMAGE_XATTR, OFFSET_XATTR, Op, PROCESS_XATTR, STATE_XATTR, STATS_XATTR};
use crate::table::ROOT_ID;
use crate::{Errno, Result};
use dioxide::format::superblock::STATE_CLEAN;
use dioxide::{SetAttributes, XattrMode};
use std::os::unix::ffi::OsStrExt;

impl Server {
    /// `getxattr`: the whole value. The root has what [`crate::stats`] names beside its own.
    ///
    /// # Errors
    /// As [`dioxide::Node::xattr`]; `ENODATA`.
    pub fn getxattr(&self, id: u64, name: &[u8]) -> Result<Vec<u8>> {
        let _timed = self.requests.time(Op::Getxattr);
        let own = match str::from_utf8(name) {
            Ok(name) if id == ROOT_ID => name,
            _ => "",
        };
        match own {
            STATS_XATTR => Ok(serde_json::to_vec(&self.report()?).expect("numbers and names")),
            IMAGE_XATTR => {
                let image = self.options.image.as_ref().ok_or(Errno::NODATA)?;
                Ok(image.as_os_str().as_bytes().to_vec())
            }
            OFFSET_XATTR => Ok(self.options.img_offset.to_string().into_bytes()),
            PROCESS_XATTR => Ok(self.process.clone().ok_or(Errno::NODATA)?.into_bytes()),
            STATE_XATTR => match self.read_only {
                true => Err(Errno::NODATA),
                false => {
                    let state = self.live()?.fs.superblock().state() & STATE_CLEAN;
                    Ok(state.to_string().into_bytes())
                }
            },
            _ => {
                let live = self.live()?;
                live.node(id)?.xattr(name)?.ok_or(Errno::NODATA)
            }
        }
    }

    /// `listxattr`: each name with a NUL behind it. Those that are for root are told to root only.
    ///
    /// # Errors
    /// As [`dioxide::Node::xattr_names`].
    pub fn listxattr(&self, caller: Caller, id: u64) -> Result<Vec<u8>> {
        let _timed = self.requests.time(Op::Listxattr);
        let root = self.acting(caller).uid == 0;
        let mut names = Vec::new();
        let live = self.live()?;
        for name in live.node(id)?.xattr_names()? {
            if root || !name.starts_with(b"trusted.") {
                names.extend_from_slice(&name);
                names.push(0);
            }
        }
        Ok(names)
    }

    /// `setxattr`, with its flags.
    ///
    /// # Errors
    /// As [`dioxide::Node::set_xattr`].
    pub fn setxattr(&self, id: u64, name: &[u8], value: &[u8], flags: i32) -> Result {
        let _timed = self.requests.time(Op::Setxattr);
        const BOTH: i32 = libc::XATTR_CREATE | libc::XATTR_REPLACE;
        let live = self.live()?;
        let mode = match flags {
            // What one of them lets through the other refuses.
            BOTH => {
                return match live.node(id)?.xattr(name)? {
                    Some(_) => Err(Errno(libc::EEXIST)),
                    None => Err(Errno::NODATA),
                };
            }
            0 => XattrMode::Set,
            libc::XATTR_CREATE => XattrMode::Create,
            libc::XATTR_REPLACE => XattrMode::Replace,
            _ => return Err(Errno::INVAL),
        };
        let node = live.node(id)?;
        node.set_xattr(name, value, mode)?;
        // The kernel asks for nothing after it.
        self.options.sync.wait_for_attributes(&node)
    }

    /// Strips set-group-ID, as an access control list that is set by who is not of the file's group does.
    ///
    /// # Errors
    /// As [`dioxide::Node::set_attributes`].
    pub fn kill_sgid(&self, id: u64) -> Result {
        let live = self.live()?;
        let node = live.node(id)?;
        let mode = node.metadata().permissions;
        match mode & libc::S_ISGID as u16 {
            0 => Ok(()),
            bit => {
                node.set_attributes(&SetAttributes::new().mode(mode & !bit))?;
                self.options.sync.wait_for_attributes(&node)
            }
        }
    }

    /// `removexattr`.
    ///
    /// # Errors
    /// As [`dioxide::Node::remove_xattr`].
    pub fn removexattr(&self, id: u64, name: &[u8]) -> Result {
        let _timed = self.requests.time(Op::Removexattr);
        let live = self.live()?;
        let node = live.node(id)?;
        node.remove_xattr(name)?;
        self.options.sync.wait_for_attributes(&node)
    }
}
