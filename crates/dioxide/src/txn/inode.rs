//! Writing an inode back.

use super::Writer;
use crate::inode::{Inode, Node, Nosec};
use crate::io::direct::Access;
use crate::map::MapGuard;
use crate::mount::Mount;
use crate::txn::superblock::ByUse;
use crate::{Error, Result};
use dioxide_format::inode::{Inode as DiskInode, Timestamp};
use dioxide_format::types::Pblk;
use dioxide_journal::{Edit, Kind};

/// Metadata blocks that writing an inode changes.
pub(crate) const INODE_CREDITS: u32 = 1;

/// A block of an inode table. Each inode in it has its own checksum, checked when it is loaded.
#[derive(Debug)]
pub(crate) struct TableBlock;

impl Kind for TableBlock {
    fn name(&self) -> &'static str {
        "inode table"
    }

    fn verify(&self, _: Pblk, _: &[u8]) -> dioxide_format::Result<()> {
        Ok(())
    }

    fn seal(&self, _: Pblk, _: &mut [u8]) {}
}

/// A time as the disk has it.
pub(crate) fn disk_time(ns: i64) -> Timestamp {
    const NANOS: i64 = 1_000_000_000;
    Timestamp {
        secs: ns.div_euclid(NANOS),
        // Below 10^9.
        nsec: ns.rem_euclid(NANOS) as u32,
    }
}

/// # Errors
/// [`Error::NotFound`]: its number may be another file's.
pub(super) fn check_not_given_back(inode: &Inode) -> Result<()> {
    match inode.is_given_back() {
        true => Err(Error::NotFound(format!("inode {}, removed", inode.ino))),
        false => Ok(()),
    }
}

impl Mount {
    /// What is stamped on what changes now.
    pub(crate) fn now(&self) -> Timestamp {
        disk_time(self.now_ns())
    }

    /// The same, in nanoseconds since 1970.
    pub(crate) fn now_ns(&self) -> i64 {
        self.clock.now_ns()
    }

    /// What a time of an inode becomes by an overwrite at `ns`, which is kept in memory: that, but for what is newer since, and
    /// has come.
    pub(crate) fn overwritten(&self, time: Timestamp, ns: i64) -> Timestamp {
        let written = disk_time(self.clock.own_ns().unwrap_or(ns));
        match time > written && time <= self.now() {
            true => time,
            false => written,
        }
    }

    /// Changes an inode: [`INODE_CREDITS`]. The times of overwrites that were kept in memory go with
    /// it.
    ///
    /// # Errors
    /// [`Error::NotFound`] if it was written for the last time; those of the journal. The inode in memory is then as it was.
    pub(crate) fn change_inode(
        &self,
        edit: &mut dyn Edit,
        inode: &Inode,
        _lock: &MapGuard<'_>,
        change: &mut dyn FnMut(&mut DiskInode),
    ) -> Result<()> {
        // Whoever found it by its name may come when the name and the file have gone.
        check_not_given_back(inode)?;
        let before = inode.node();
        let mut disk = before.disk.clone();
        let modified = inode.take_modified_ns();
        if let Some(ns) = modified {
            disk.set_mtime(self.overwritten(disk.mtime(), ns));
            disk.set_ctime(self.overwritten(disk.ctime(), ns));
        }
        change(&mut disk);
        if disk == before.disk {
            // A directory changes more often than the clock ticks; its inode is in this transaction, or in one before it.
            return Ok(());
        }
        let noted = match disk.size() > i32::MAX as u64 {
            true => ByUse::LargeFile.set(self, edit),
            false => Ok(()),
        };
        let counted = noted.and_then(|()| {
            self.count_change(edit, inode.ino, Some(&before.disk), Some(&disk), |edit| {
                self.inodes_counted(edit, inode)
            })
        });
        let stored = counted.and_then(|counted| {
            let stored = self.store_inode(edit, inode, disk);
            // What was counted is of this inode as it was to be.
            stored.map_err(|error| if counted { self.fail(error) } else { error })
        });
        if let (Err(_), Some(ns)) = (&stored, modified) {
            inode.set_modified(ns);
        }
        stored
    }

    /// Writes an inode that has ended, for the last time: [`INODE_CREDITS`]. It counts for nobody from
    /// then on.
    ///
    /// # Errors
    /// As [`Mount::change_inode`].
    pub(crate) fn end_inode(
        &self,
        edit: &mut dyn Edit,
        inode: &Inode,
        _lock: &MapGuard<'_>,
        change: &mut dyn FnMut(&mut DiskInode),
    ) -> Result<()> {
        check_not_given_back(inode)?;
        let before = inode.node();
        self.count_change(edit, inode.ino, Some(&before.disk), None, |_| Ok(1))?;
        let mut disk = before.disk.clone();
        inode.take_modified_ns();
        change(&mut disk);
        self.store_inode(edit, inode, disk)
    }

    /// Takes from a file what a write to it must take. The caller has the file exclusive.
    ///
    /// # Errors
    /// Damage; those of the journal.
    pub(crate) fn strip_if_needed(
        &self,
        writer: &Writer,
        inode: &Inode,
        access: Access,
    ) -> Result<()> {
        let stripped = inode.nosec().stripped_by(access);
        if stripped.capability {
            self.remove_capability(writer, inode)?;
        }
        match stripped.set_id {
            true => self.strip_set_id(writer, inode),
            false => Ok(()),
        }
    }

    fn strip_set_id(&self, writer: &Writer, inode: &Inode) -> Result<()> {
        self.set_size_and(writer, inode, &mut |disk| {
            let mode = disk.permissions();
            let group = match u32::from(mode) & libc::S_IXGRP {
                0 => 0,
                _ => libc::S_ISGID as u16,
            };
            disk.set_permissions(mode & !(libc::S_ISUID as u16 | group));
            disk.set_ctime(self.now());
        })?;
        inode.set_nosec(Nosec {
            set_id: false,
            ..inode.nosec()
        });
        Ok(())
    }

    fn store_inode(&self, edit: &mut dyn Edit, inode: &Inode, mut disk: DiskInode) -> Result<()> {
        if let Some(seed) = self.checksum_seed() {
            disk.update_checksum(seed, inode.ino);
        }
        let raw: Box<[u8]> = disk.encode()[..].into();
        let at = inode.location.offset;
        edit.modify(inode.location.block, &TableBlock, &mut |bytes| {
            bytes[at..at + raw.len()].copy_from_slice(&raw);
            Ok(())
        })
        .map_err(Error::from)?;
        inode.set_node(Node { disk, raw });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_before_1970_has_positive_nanoseconds() {
        let parts = |ns| (disk_time(ns).secs, disk_time(ns).nsec);
        assert_eq!(parts(-1), (-1, 999_999_999));
        assert_eq!(parts(1_500_000_000), (1, 500_000_000));
    }
}
