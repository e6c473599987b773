//! The `ioctl`s that ext4 has and FUSE carries: those whose argument is a block of bytes of a known size.

use super::{Caller, Live, Server};
use crate::stats::Op;
use crate::{Errno, Result};
use dioxide::format::inode::InodeFlags;
use dioxide::{Node, SetAttributes};

const GETFLAGS: u32 = 0x8008_6601;
const GETFLAGS32: u32 = 0x8004_6601;
const SETFLAGS: u32 = 0x4008_6602;
const GETVERSION: u32 = 0x8008_7601;
const GETVERSION32: u32 = 0x8004_7601;
const FSGETXATTR: u32 = 0x801c_581f;
const FSSETXATTR: u32 = 0x401c_5820;
const FITRIM: u32 = 0xc018_5879;
const GETFSLABEL: u32 = 0x8100_9431;

/// Bytes of a label as it is told: longer than any.
const LABEL_BYTES: usize = 256;

/// Bytes of a `struct fsxattr`.
const FSXATTR_BYTES: usize = 28;

/// Flags of a `struct fsxattr`, and those of the inode that they are.
const XFLAGS: [(u32, u32); 7] = [
    (0x0008, InodeFlags::IMMUTABLE.0),
    (0x0010, InodeFlags::APPEND.0),
    (0x0020, InodeFlags::SYNC.0),
    (0x0040, InodeFlags::NOATIME.0),
    (0x0080, InodeFlags::NODUMP.0),
    (0x0200, InodeFlags::PROJINHERIT.0),
    (0x8000, InodeFlags::DAX.0),
];

fn to_xflags(flags: u32) -> u32 {
    let set = XFLAGS.iter().filter(|(_, flag)| flags & flag != 0);
    set.map(|(xflag, _)| xflag).sum()
}

/// The inode's flags with those of a `struct fsxattr` put in. What else the kernel lets through means nothing to ext4.
fn with_xflags(flags: u32, xflags: u32) -> u32 {
    let others = XFLAGS.iter().fold(flags, |left, (_, flag)| left & !flag);
    let set = XFLAGS.iter().filter(|(xflag, _)| xflags & xflag != 0);
    others | set.map(|(_, flag)| flag).sum::<u32>()
}

fn word(bytes: &[u8], at: usize) -> Result<u32> {
    let bytes = bytes.get(at..at + 4).ok_or(Errno::INVAL)?;
    Ok(u32::from_le_bytes(bytes.try_into().expect("four bytes")))
}

fn long(bytes: &[u8], at: usize) -> Result<u64> {
    let bytes = bytes.get(at..at + 8).ok_or(Errno::INVAL)?;
    Ok(u64::from_le_bytes(bytes.try_into().expect("eight bytes")))
}

fn padded(word: u32, len: usize) -> Vec<u8> {
    let mut bytes = word.to_le_bytes().to_vec();
    bytes.resize(len, 0);
    bytes
}

impl Server {
    /// `ioctl` on a file: returns what goes back to the caller, of at most `out_len` bytes; none if attributes were
    /// changed.
    ///
    /// # Errors
    /// `ENOTTY` for those that are not known; those of what they do.
    pub fn ioctl(
        &self,
        caller: Caller,
        id: u64,
        command: u32,
        argument: &[u8],
        out_len: usize,
    ) -> Result<Vec<u8>> {
        let _timed = self.requests.time(Op::Ioctl);
        let live = self.live()?;
        let node = live.node(id)?;
        let mut out = match command {
            GETFLAGS => padded(node.metadata().flags, 8),
            GETFLAGS32 => padded(node.metadata().flags, 4),
            // An `int`, whatever the number says of it: callers have no room for more.
            GETVERSION | GETVERSION32 => padded(node.generation(), 4),
            SETFLAGS => self.set_flags(caller, &node, word(argument, 0)?, None)?,
            FSGETXATTR => fsxattr(&node),
            FSSETXATTR => {
                let flags = with_xflags(node.metadata().flags, word(argument, 0)?);
                self.set_flags(caller, &node, flags, Some(word(argument, 12)?))?
            }
            FITRIM => self.trim(&live, caller, argument)?,
            GETFSLABEL => {
                let mut label = live.fs.superblock().disk().s_volume_name.to_vec();
                label.resize(LABEL_BYTES, 0);
                label
            }
            _ => return Err(Errno::NOTTY),
        };
        out.truncate(out_len);
        Ok(out)
    }

    fn trim(&self, live: &Live, caller: Caller, argument: &[u8]) -> Result<Vec<u8>> {
        if self.acting(caller).uid != 0 {
            return Err(Errno::PERM);
        }
        let (start, len) = (long(argument, 0)?, long(argument, 8)?);
        let min_len = long(argument, 16)?;
        let sb = live.fs.superblock();
        let block = u64::from(sb.block_size());
        let group = u64::from(sb.blocks_per_group()) * block;
        if start >= sb.blocks_count() * block || len < block || min_len > group {
            return Err(Errno::INVAL);
        }
        let trimmed = live.fs.trim(start..start.saturating_add(len), min_len)?;
        Ok([start, trimmed, min_len].map(u64::to_le_bytes).concat())
    }

    /// For the owner and root. New kernels judge that before they ask, by capabilities too, but not of a command that is not
    /// theirs; old ones never do.
    fn set_flags(
        &self,
        caller: Caller,
        node: &Node,
        flags: u32,
        project: Option<u32>,
    ) -> Result<Vec<u8>> {
        let metadata = node.metadata();
        let fixes = (flags ^ metadata.flags) & (InodeFlags::IMMUTABLE | InodeFlags::APPEND).0 != 0;
        if fixes && self.acting(caller).uid != 0 || !self.is_owner(caller, &metadata) {
            return Err(Errno::PERM);
        }
        let set = SetAttributes::new().flags(flags);
        node.set_attributes(&match project {
            Some(project) => set.project(project),
            None => set,
        })?;
        self.options.sync.wait_for_attributes(node)?;
        Ok(Vec::new())
    }
}

fn fsxattr(node: &Node) -> Vec<u8> {
    let metadata = node.metadata();
    let mut out = vec![0; FSXATTR_BYTES];
    out[..4].copy_from_slice(&to_xflags(metadata.flags).to_le_bytes());
    out[12..16].copy_from_slice(&metadata.project.unwrap_or(0).to_le_bytes());
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_that_fsxattr_has_come_back_and_others_stay() {
        let extents = 0x80000;
        let flags = InodeFlags::APPEND.0 | InodeFlags::NODUMP.0 | extents;
        assert_eq!(to_xflags(flags), 0x90);
        assert_eq!(with_xflags(flags, 0x90), flags);
        assert_eq!(with_xflags(flags, 0), extents);
        assert_eq!(with_xflags(flags, 0x800 | 1 << 31), extents);
    }

    #[test]
    fn argument_that_is_too_short_is_refused() {
        assert_eq!(word(&[0; 3], 0), Err(Errno::INVAL));
        assert_eq!(long(&[0; 8], 8), Err(Errno::INVAL));
    }
}
