//! Numbers of the protocol, of version 7.45, by the kernel's names.
#![allow(missing_docs)]

/// Bytes of a `fuse_in_header`.
pub(in crate::transport) const IN_HEADER_BYTES: usize = 40;
/// Bytes of a `fuse_out_header`.
pub(in crate::transport) const OUT_HEADER_BYTES: usize = 16;
/// Bytes of a `fuse_notify_inval_inode_out`, header included.
pub(in crate::transport) const INVAL_INODE_BYTES: usize = OUT_HEADER_BYTES + 24;
/// `FUSE_NOTIFY_INVAL_INODE`.
pub(super) const NOTIFY_INVAL_INODE: u32 = 2;
/// The largest structure that is particular to an opcode: `fuse_setattr_in`.
pub(in crate::transport) const OP_BYTES: usize = 88;
/// Bytes of a `fuse_write_in`.
pub(in crate::transport) const WRITE_IN_BYTES: usize = 40;

/// What this speaks. The smaller of this and the kernel's is spoken.
pub(super) const VERSION: (u32, u32) = (7, 45);
/// Of Linux 5.1, which takes `ENOSYS` for `OPENDIR`.
pub(in crate::transport) const OLDEST: (u32, u32) = (7, 29);
/// Minor version of Linux 6.16, which has no temporary pages for writeback.
pub(super) const WAITS_FOR_PAGES: u32 = 44;
/// Bytes of a `fuse_setxattr_in` before `FUSE_SETXATTR_EXT`.
pub(super) const SETXATTR_COMPAT_BYTES: usize = 8;

/// One line for each opcode: name, number, bytes of its own structure in a request.
macro_rules! opcodes {
    ($($name:ident = $number:literal, $bytes:literal;)*) => {
        /// What requests ask for.
        pub(in crate::transport) mod opcode {
            $(pub(in crate::transport) const $name: u32 = $number;)*
        }

        /// How many bytes an opcode's own structure has; names and data come behind it.
        pub(in crate::transport) fn op_bytes(opcode: u32) -> usize {
            match opcode {
                $($number => $bytes,)*
                _ => 0,
            }
        }

        #[cfg(test)]
        pub(super) const ALL: &[u32] = &[$($number),*];
    };
}

opcodes! {
    LOOKUP = 1, 0;
    FORGET = 2, 8;
    GETATTR = 3, 16;
    SETATTR = 4, 88;
    READLINK = 5, 0;
    SYMLINK = 6, 0;
    MKNOD = 8, 16;
    MKDIR = 9, 8;
    UNLINK = 10, 0;
    RMDIR = 11, 0;
    RENAME = 12, 8;
    LINK = 13, 8;
    OPEN = 14, 8;
    READ = 15, 40;
    WRITE = 16, 40;
    STATFS = 17, 0;
    RELEASE = 18, 24;
    FSYNC = 20, 16;
    SETXATTR = 21, 16;
    GETXATTR = 22, 8;
    LISTXATTR = 23, 8;
    REMOVEXATTR = 24, 0;
    INIT = 26, 64;
    READDIR = 28, 40;
    FSYNCDIR = 30, 16;
    CREATE = 35, 16;
    INTERRUPT = 36, 8;
    DESTROY = 38, 0;
    IOCTL = 39, 32;
    BATCH_FORGET = 42, 8;
    FALLOCATE = 43, 32;
    READDIRPLUS = 44, 40;
    RENAME2 = 45, 16;
    LSEEK = 46, 24;
    COPY_FILE_RANGE = 47, 56;
    SYNCFS = 50, 8;
    TMPFILE = 51, 16;
    STATX = 52, 24;
    COPY_FILE_RANGE_64 = 53, 56;
}

/// What both sides can, in `fuse_init_in` and `fuse_init_out`.
pub(super) mod init {
    pub const ASYNC_READ: u64 = 1 << 0;
    pub const EXPORT_SUPPORT: u64 = 1 << 4;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const DONT_MASK: u64 = 1 << 6;
    pub const HAS_IOCTL_DIR: u64 = 1 << 11;
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub const ASYNC_DIO: u64 = 1 << 15;
    pub const WRITEBACK_CACHE: u64 = 1 << 16;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const POSIX_ACL: u64 = 1 << 20;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    pub const NO_OPENDIR_SUPPORT: u64 = 1 << 24;
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub const SETXATTR_EXT: u64 = 1 << 29;
    pub const INIT_EXT: u64 = 1 << 30;
    pub const DIRECT_IO_ALLOW_MMAP: u64 = 1 << 36;
    pub const OVER_IO_URING: u64 = 1 << 41;
}

/// `fuse_setattr_in.valid`.
pub(super) mod fattr {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const FH: u32 = 1 << 6;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const CTIME: u32 = 1 << 10;
    pub const KILL_SUIDGID: u32 = 1 << 11;
}

pub(super) const FOPEN_DIRECT_IO: u32 = 1 << 0;
pub(super) const FOPEN_KEEP_CACHE: u32 = 1 << 1;
pub(super) const FOPEN_PARALLEL_DIRECT_WRITES: u32 = 1 << 6;

pub(super) const GETATTR_FH: u32 = 1 << 0;
/// Of reads that go past the page cache, and of none that fill it.
pub(super) const READ_LOCKOWNER: u32 = 1 << 1;
pub(super) const WRITE_CACHE: u32 = 1 << 0;
pub(super) const WRITE_KILL_SUIDGID: u32 = 1 << 2;
pub(super) const FSYNC_FDATASYNC: u32 = 1 << 0;
pub(super) const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;
