//! What `stat` tells of an inode.

use crate::inode::Inode;
use crate::mount::Mount;
use crate::{FileType, Metadata, Timestamp};
use dioxide_format::features::RoCompat;
use dioxide_format::inode::Timestamp as DiskTime;

const NANOS: i64 = 1_000_000_000;

impl From<DiskTime> for Timestamp {
    /// The disk has room for up to 1.07 s in the nanoseconds; that is damage, and is cut.
    fn from(time: DiskTime) -> Timestamp {
        Timestamp {
            secs: time.secs,
            nanos: time.nsec.min(NANOS as u32 - 1),
        }
    }
}

impl Timestamp {
    fn from_ns(ns: i64) -> Timestamp {
        Timestamp {
            secs: ns.div_euclid(NANOS),
            // Below 10^9, so it fits.
            nanos: ns.rem_euclid(NANOS) as u32,
        }
    }
}

impl Mount {
    /// The metadata of an inode. Does not block.
    pub(crate) fn metadata(&self, inode: &Inode) -> Metadata {
        let node = inode.node();
        let disk = &node.disk;
        let modified = inode.modified_ns().map(Timestamp::from_ns);
        let changed = |time: DiskTime| modified.map_or(time.into(), |ours| ours.max(time.into()));
        Metadata {
            ino: inode.ino.0,
            file_type: inode.file_type(),
            permissions: disk.permissions(),
            nlink: disk.links_count().into(),
            uid: disk.uid(),
            gid: disk.gid(),
            project: self.has_ro_compat(RoCompat::PROJECT).then(|| disk.projid()),
            size: inode.i_size(),
            blocks: self.sectors(inode),
            block_size: self.sb.block_size(),
            device: disk
                .device_number()
                .map(|number| (number.major, number.minor)),
            atime: disk.atime().into(),
            mtime: changed(disk.mtime()),
            ctime: changed(disk.ctime()),
            crtime: disk.crtime().map(Timestamp::from),
            flags: disk.flags().0,
            generation: disk.generation(),
        }
    }

    fn has_ro_compat(&self, feature: RoCompat) -> bool {
        self.sb.features().ro_compat.contains(feature)
    }

    /// `st_blocks`. As in Linux, a file whose content lies in its inode counts as if it had sectors
    /// of its own: `tar` and others take a file without any for one hole.
    fn sectors(&self, inode: &Inode) -> u64 {
        let huge_file = self.has_ro_compat(RoCompat::HUGE_FILE);
        let sectors = inode.node().disk.sectors(huge_file, self.sb.block_size());
        if inode.has_inline_data() && inode.file_type() == FileType::Regular {
            return sectors + inode.i_size().div_ceil(512);
        }
        sectors
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_before_1970_has_positive_nanoseconds() {
        assert_eq!(
            Timestamp::from_ns(-1),
            Timestamp {
                secs: -1,
                nanos: 999_999_999
            }
        );
        assert_eq!(
            Timestamp::from_ns(1_500_000_000),
            Timestamp {
                secs: 1,
                nanos: 500_000_000
            }
        );
    }
}
