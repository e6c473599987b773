//! Layout table of the inode.

use crate::layout::{byte, layout, le16, le32};

layout! {
    /// The 128 bytes that every inode has and the 32 that follow in larger ones. Of the latter the
    /// first `i_extra_isize` hold what their names say; the rest belongs to extended attributes.
    pub struct InodeDisk[160] = "inode" {
        0x00 i_mode: le16,
        0x02 i_uid: le16,
        0x04 i_size_lo: le32,
        0x08 i_atime: le32,
        0x0C i_ctime: le32,
        0x10 i_mtime: le32,
        0x14 i_dtime: le32,
        0x18 i_gid: le16,
        0x1A i_links_count: le16,
        0x1C i_blocks_lo: le32,
        0x20 i_flags: le32,
        0x24 l_i_version: le32,
        0x28 i_block: [byte; 60],
        0x64 i_generation: le32,
        0x68 i_file_acl_lo: le32,
        0x6C i_size_high: le32,
        0x70 i_obso_faddr: le32,
        0x74 l_i_blocks_high: le16,
        0x76 l_i_file_acl_high: le16,
        0x78 l_i_uid_high: le16,
        0x7A l_i_gid_high: le16,
        0x7C l_i_checksum_lo: le16,
        0x7E l_i_reserved: le16,
        0x80 i_extra_isize: le16,
        0x82 i_checksum_hi: le16,
        0x84 i_ctime_extra: le32,
        0x88 i_mtime_extra: le32,
        0x8C i_atime_extra: le32,
        0x90 i_crtime: le32,
        0x94 i_crtime_extra: le32,
        0x98 i_version_hi: le32,
        0x9C i_projid: le32,
    }
}
