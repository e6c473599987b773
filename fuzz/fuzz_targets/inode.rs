#![no_main]
//! Inodes of all sizes: round trip, every accessor, times, checksum, validation.

use dioxide_format::inode::Inode;
use dioxide_format::superblock::SuperBlock;
use dioxide_format::types::Ino;
use dioxide_format::{symlink, xattr};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((&[log], data)) = data.split_first_chunk() else {
        return;
    };
    let size = 128usize << (log % 5);
    let Ok(mut inode) = Inode::parse(data, size) else {
        return;
    };
    assert_eq!(inode.encode(), &data[..size]);
    let _ = (
        inode.file_type(),
        inode.device_number(),
        inode.permissions(),
    );
    let _ = (
        inode.uid(),
        inode.gid(),
        inode.projid(),
        inode.version(),
        inode.crtime(),
    );
    let _ = (inode.sectors(true, 65536), inode.sectors(false, 1024));
    let _ = (
        inode.flags().names(),
        inode.flags().letters(),
        inode.file_acl(),
    );
    let _ = symlink::fast_target(&inode);
    let _ = xattr::parse_in_inode(inode.in_inode_xattrs(&data[..size]));
    if let Ok(sb) = SuperBlock::parse(&data[size..]) {
        let _ = inode.validate(&sb);
    }
    inode.set_atime(inode.atime());
    inode.set_ctime(inode.ctime());
    inode.set_mtime(inode.mtime());
    inode.set_size(inode.size());
    assert_eq!(inode.encode(), &data[..size]);
    inode.update_checksum(9, Ino(11));
    assert!(inode.verify_checksum(9, Ino(11)).is_ok());
});
