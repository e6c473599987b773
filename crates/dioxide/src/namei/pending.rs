//! Stand-ins.
use super::edit::*;
use crate::Result;
use crate::inode::Inode;
use crate::mount::Mount;
use crate::txn::Writer;
use dioxide_format::inode::FileType;
use dioxide_format::types::{Ino, Lblk};
use dioxide_journal::journal::Handle;

impl Mount {
    pub(crate) fn add_name_credits(&self, _: &Inode) -> u32 {
        40
    }
    pub(crate) fn new_dir_credits(&self) -> u32 {
        20
    }

    pub(crate) fn add_name(
        &self,
        writer: &Writer,
        handle: &mut Handle<'_>,
        dir: &Inode,
        new: &NewEntry<'_>,
    ) -> Result<()> {
        if self.add_entry(handle, dir, new)? {
            return Ok(());
        }
        let lblk = self.dir_blocks(dir)?;
        let bytes = self.new_dir_block(std::slice::from_ref(new))?;
        let lock = dir.map.lock();
        let seed = self
            .checksum_seed()
            .map(|s| dir.node().disk.seed(s, dir.ino));
        let size = u64::from(lblk + 1) << self.block_bits;
        let pblk = self.change_map(
            writer,
            handle,
            dir,
            &lock,
            |map| {
                let block = map.add_metadata_block(Lblk(lblk))?;
                self.create_dir_block(map.handle, block, seed, &bytes)?;
                Ok(block)
            },
            &mut |disk, _| disk.set_size(size),
        )?;
        lock.set_run(&crate::map::Run {
            lblk: Lblk(lblk),
            len: 1,
            pblk,
            unwritten: false,
        });
        dir.set_size(size);
        Ok(())
    }
    pub(crate) fn remove_name(
        &self,
        handle: &mut Handle<'_>,
        dir: &Inode,
        name: &[u8],
    ) -> Result<bool> {
        self.remove_entry(handle, dir, name)
    }
    pub(crate) fn redirect_name(
        &self,
        handle: &mut Handle<'_>,
        dir: &Inode,
        name: &[u8],
        to: Ino,
        file_type: FileType,
    ) -> Result<bool> {
        self.redirect_entry(handle, dir, name, to, file_type)
    }
    pub(crate) fn init_directory(
        &self,
        writer: &Writer,
        handle: &mut Handle<'_>,
        dir: &Inode,
        parent: Ino,
    ) -> Result<()> {
        let entry = |name, ino| NewEntry {
            name,
            ino,
            file_type: FileType::Directory,
        };
        let bytes = self.new_dir_block(&[entry(&b"."[..], dir.ino), entry(b"..", parent)])?;
        let lock = dir.map.lock();
        let seed = self
            .checksum_seed()
            .map(|s| dir.node().disk.seed(s, dir.ino));
        let size = self.block_bytes();
        self.change_map(
            writer,
            handle,
            dir,
            &lock,
            |map| {
                let block = map.add_metadata_block(Lblk(0))?;
                self.create_dir_block(map.handle, block, seed, &bytes)
            },
            &mut |disk, _| {
                disk.set_size(size);
                disk.set_links_count(2);
            },
        )?;
        dir.set_size(size);
        Ok(())
    }
    pub(crate) fn is_empty_dir(&self, dir: &Inode) -> Result<bool> {
        let mut n = 0;
        self.for_each_entry(dir, &mut |e| {
            n += usize::from(e.name != b"." && e.name != b"..");
            std::ops::ControlFlow::Continue(())
        })?;
        Ok(n == 0)
    }
}
