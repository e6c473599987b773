#![no_main]
//! Content inside the inode: files, symlinks and directories from any inode.

use dioxide_format::dir::DirFormat;
use dioxide_format::inline_data::{self, InlineDir};
use dioxide_format::inode::Inode;
use dioxide_format::{symlink, xattr};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((&[options], data)) = data.split_first_chunk() else {
        return;
    };
    let size = if options & 1 == 0 { 256 } else { 1024 };
    let Ok(inode) = Inode::parse(data, size) else {
        return;
    };
    let format = DirFormat {
        block_size: 1024,
        filetype: options & 2 != 0,
        checksum: options & 4 != 0,
        max_ino: u32::MAX,
        large_dir: false,
        encrypted: options & 8 != 0,
    };
    let entries = xattr::parse_in_inode(inode.in_inode_xattrs(&data[..size])).unwrap_or_default();
    let rest = &data[size..];
    for value in [inline_data::system_data(&entries).unwrap_or_default(), rest] {
        let content = inline_data::file_content(&inode, value);
        assert!(content.len() as u64 <= inode.size());
        let _ = symlink::slow_target(&content, inode.size());
        if let Ok(dir) = InlineDir::parse(&inode, value, &format) {
            let end = 60 + value.len();
            for entry in dir.entries(&format).flatten() {
                assert!(entry.offset >= 4 && entry.offset + entry.rec_len <= end);
            }
        }
    }
});
