//! Answers that tell of files.

use super::Out;
use super::abi;
use crate::server::{Attr, Entry, Opened, Stat};
use dioxide::{FileType, Timestamp};
use std::time::Duration;

/// `STATX_BASIC_STATS`, and the bit of the time of birth.
const STATX_BASIC: u32 = 0x7ff;
const STATX_BTIME: u32 = 0x800;
/// Flags of an inode that `statx` tells by the same bits.
const STATX_FLAGS: u64 = 0x74;

impl Out<'_> {
    /// `fuse_attr`.
    fn attr(&mut self, attr: &Attr) -> &mut Self {
        let metadata = &attr.metadata;
        self.u64(metadata.ino.into());
        self.u64(metadata.size).u64(metadata.blocks);
        let times = [metadata.atime, metadata.mtime, metadata.ctime];
        for time in times {
            self.u64(time.secs as u64);
        }
        for time in times {
            self.u32(time.nanos);
        }
        self.u32(metadata.mode()).u32(metadata.nlink);
        self.u32(metadata.uid).u32(metadata.gid);
        self.u32(attr.rdev).u32(metadata.block_size).u32(0)
    }

    /// `fuse_attr_out`.
    pub(super) fn stat(&mut self, stat: &Stat) -> &mut Self {
        self.u64(stat.valid.as_secs());
        self.u32(stat.valid.subsec_nanos()).u32(0);
        self.attr(&stat.attr)
    }

    /// `fuse_entry_out`.
    pub(super) fn entry(&mut self, entry: &Entry) -> &mut Self {
        self.u64(entry.id);
        self.u64(entry.attr.metadata.generation.into());
        self.valid(entry.entry_valid, entry.attr_valid);
        self.attr(&entry.attr)
    }

    /// `fuse_entry_out` of a name that is not there, for so long.
    pub(super) fn absent(&mut self, valid: Duration) -> &mut Self {
        self.zeros(16).valid(valid, Duration::ZERO);
        self.zeros(88)
    }

    fn valid(&mut self, entry: Duration, attr: Duration) -> &mut Self {
        self.u64(entry.as_secs()).u64(attr.as_secs());
        self.u32(entry.subsec_nanos()).u32(attr.subsec_nanos())
    }

    /// `fuse_open_out`.
    pub(super) fn opened(&mut self, opened: &Opened) -> &mut Self {
        let flags = match opened.direct {
            true => abi::FOPEN_DIRECT_IO | abi::FOPEN_PARALLEL_DIRECT_WRITES,
            false => abi::FOPEN_KEEP_CACHE,
        };
        self.u64(opened.handle).u32(flags).u32(0)
    }

    /// `fuse_statx_out`.
    pub(super) fn statx(&mut self, stat: &Stat) -> &mut Self {
        let metadata = &stat.attr.metadata;
        let born = if metadata.crtime.is_some() {
            STATX_BTIME
        } else {
            0
        };
        self.u64(stat.valid.as_secs());
        self.u32(stat.valid.subsec_nanos()).u32(0).zeros(16);
        self.u32(STATX_BASIC | born).u32(metadata.block_size);
        self.u64(u64::from(metadata.flags) & STATX_FLAGS);
        self.u32(metadata.nlink).u32(metadata.uid).u32(metadata.gid);
        self.u16(metadata.mode() as u16).u16(0);
        self.u64(metadata.ino.into());
        self.u64(metadata.size).u64(metadata.blocks);
        self.u64(STATX_FLAGS);
        let birth = metadata.crtime.unwrap_or_default();
        for time in [metadata.atime, birth, metadata.ctime, metadata.mtime] {
            self.statx_time(time);
        }
        let (major, minor) = metadata.device.unwrap_or((0, 0));
        self.u32(major).u32(minor).u32(0).u32(0).zeros(14 * 8)
    }

    fn statx_time(&mut self, time: Timestamp) -> &mut Self {
        self.u64(time.secs as u64).u32(time.nanos).u32(0)
    }

    /// `fuse_dirent`.
    pub(super) fn dirent(&mut self, name: &crate::server::Dirent<'_>) -> &mut Self {
        self.u64(name.ino).u64(name.next);
        self.u32(name.name.len() as u32).u32(kind(name.file_type));
        self.bytes(name.name).align()
    }
}

/// As in `d_type`.
fn kind(file_type: FileType) -> u32 {
    file_type.mode() >> 12
}
