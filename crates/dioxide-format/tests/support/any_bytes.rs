//! Any bytes as each structure: no panic, no endless loop, what was read writes back the same, and what validation lets
//! through is sound. The property tests call this with bytes that they shape, the fuzz targets with theirs.
#![allow(dead_code)]

use dioxide_format::dir::{self, DirFormat};
use dioxide_format::extent::{self, ExtentNode, LBLK_END};
use dioxide_format::group_desc::{GroupChecksum, GroupDesc};
use dioxide_format::htree::{self, DxEntries, DxNode, DxRoot, HashVersion};
use dioxide_format::indirect;
use dioxide_format::inline_data::{self, InlineDir};
use dioxide_format::inode::Inode;
use dioxide_format::quota::{self, LEVELS, QuotaHeader, QuotaKind, Record, RecordsHead};
use dioxide_format::superblock::SuperBlock;
use dioxide_format::symlink;
use dioxide_format::system_zone::SystemZone;
use dioxide_format::types::{Group, Ino, Lblk, Pblk};
use dioxide_format::xattr::{self, XattrBlock, XattrEntry};

const ROOT_HEAD: &[u8] =
    b"\x02\0\0\0\x0c\0\x01\x02.\0\0\0\x02\0\0\0\xf4\x03\x02\x02..\0\0\0\0\0\0\x01\x08\0\0";
const NODE_HEAD: &[u8] = b"\0\0\0\0\0\x04\0\0";

/// The superblock: round trip, every accessor, validation, geometry of chosen groups.
pub fn superblock(data: &[u8]) {
    let Ok(mut sb) = SuperBlock::parse(data) else {
        return;
    };
    assert!(data.starts_with(&sb.encode()));
    let _ = (sb.verify_checksum(), sb.errors(), sb.cluster_size());
    sb.disk_mut().s_magic = 0xEF53;
    let _ = (sb.features().names(), sb.volume_name(), sb.last_mounted());
    let _ = (sb.mkfs_time(), sb.mount_opts(), sb.max_mount_count());
    let _ = (sb.descriptor_blocks(), sb.inode_table_blocks());
    let _ = (sb.mmp_block(), sb.log_groups_per_flex());
    let _ = (sb.max_lblk(false), sb.block_size_log2());
    for group in [0, 1, 3, sb.group_count().wrapping_sub(1), u32::MAX].map(Group) {
        let _ = (sb.descriptor_block(group.0), sb.superblock_block(group));
        let _ = (sb.base_meta_blocks(group), sb.clusters_in_group(group));
        let _ = sb.group_metadata_range(group);
    }
    let _ = sb.backup_groups().take(1000).count();
    let _ = (sb.inode_location(Ino(u32::MAX)), sb.inode_location(Ino(2)));
    let _ = sb.group_of_block(Pblk(sb.blocks_count() / 2));
    let _ = SystemZone::new(&sb, [], []);
    if sb.validate(Some(1 << 40)).is_ok() {
        assert!(sb.group_count() > 0);
        let last = Group(sb.group_count() - 1);
        assert!(sb.blocks_in_group(last) > 0);
        assert!(sb.group_first_block(last).0 < sb.blocks_count());
        assert!(sb.inode_location(Ino(sb.inodes_count())).is_some());
    }
    sb.update_checksum();
    assert!(sb.verify_checksum().is_ok());
}

/// Group descriptors: round trip, checksums of both kinds, validation against any superblock.
pub fn group_desc(data: &[u8]) {
    let Some((&[lo, hi], data)) = data.split_first_chunk() else {
        return;
    };
    let size = usize::from(u16::from_le_bytes([lo, hi]) % 1100);
    let Ok(mut desc) = GroupDesc::parse(data, size) else {
        return;
    };
    assert_eq!(desc.encode(), &data[..size]);
    let kinds = [
        GroupChecksum::None,
        GroupChecksum::Crc16 { uuid: [lo; 16] },
        GroupChecksum::Crc32c { seed: hi.into() },
    ];
    for kind in kinds {
        desc.update_checksum(Group(1), kind);
        assert!(desc.verify_checksum(Group(1), kind).is_ok());
    }
    let Ok(sb) = SuperBlock::parse(&data[size..]) else {
        return;
    };
    for group in [0, 1, u32::MAX].map(Group) {
        let _ = desc.validate(&sb, group);
    }
    let zone = SystemZone::new(&sb, [&desc], []);
    // A range ends before the largest number, which is no block's: `validate` refuses it.
    let is_block = desc.block_bitmap().0 < u64::MAX;
    assert!(sb.group_count() == 0 || !is_block || zone.overlaps(desc.block_bitmap(), 1));
}

/// Inodes of all sizes: round trip, every accessor, times, checksum, validation.
pub fn inode(data: &[u8]) {
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
}

/// Extent nodes: round trip, validation, search against a linear scan, checksum.
pub fn extent_node(data: &[u8]) {
    let Some((probe, data)) = data.split_first_chunk() else {
        return;
    };
    let mut block = data.to_vec();
    // A right magic number, so that more than one input in 65536 gets past it.
    if let Some(magic) = block.first_chunk_mut() {
        *magic = extent::MAGIC.to_le_bytes();
    }
    let probe = Lblk(u32::from_le_bytes(*probe));
    if let Ok(node) = ExtentNode::parse(&block, None) {
        let mut copy = block.clone();
        node.encode_into(&mut copy).expect("what was read fits");
        assert_eq!(copy, block);
        let found = node.find(probe);
        let _ = (node.search(probe), node.child_range(3, &(0..LBLK_END)));
        if node.validate(0..LBLK_END, 1..1 << 48).is_ok() {
            let holds = |e: &&extent::Extent| e.lblk <= probe && u64::from(probe.0) < e.end();
            assert_eq!(found, node.extents().iter().find(holds).copied());
            for at in 0..node.indices().len() {
                assert!(!node.child_range(at, &(0..LBLK_END)).is_empty());
            }
        }
    }
    let _ = extent::verify_checksum(&block, 1);
    if extent::update_checksum(&mut block, 1).is_ok() {
        assert!(extent::verify_checksum(&block, 1).is_ok());
    }
}

/// Indirect maps: paths that lead back to their block, pointer blocks of any bytes.
pub fn indirect(data: &[u8]) {
    let Some((&[a, b, c, d, log], data)) = data.split_first_chunk() else {
        return;
    };
    let (lblk, block_size) = (u32::from_le_bytes([a, b, c, d]), 1024u32 << (log % 7));
    let path = indirect::path(Lblk(lblk), block_size);
    let most = indirect::max_lblk(block_size).0;
    // Where all numbers have a path, the largest that is told is the largest that there is.
    assert!(path.is_some() || lblk > most);
    assert!(path.is_none() || lblk <= most || most >= u32::MAX - 1);
    if let Some(path) = path {
        let per = indirect::pointers_per_block(block_size);
        let (levels, offsets) = (path.levels() as u32, path.offsets());
        assert!(offsets[1..].iter().all(|&offset| offset < per));
        let (base, digits) = match levels {
            0 => (0, offsets),
            _ => (12, &offsets[1..]),
        };
        assert!(levels == 0 || offsets[0] == 11 + levels);
        let per = u64::from(per);
        let before: u64 = (1..levels).map(|level| per.pow(level)).sum();
        let rest = digits
            .iter()
            .fold(0, |n, &digit| n * per + u64::from(digit));
        assert_eq!(base + before + rest, u64::from(lblk));
        for &offset in offsets {
            let _ = indirect::pointer_at(data, offset, &(1..1 << 32));
        }
    }
    let _ = indirect::validate(data, &(1..u64::from(lblk)));
    let words: Vec<u32> = indirect::pointers(data).collect();
    let mut copy = data.to_vec();
    copy[..words.len() * 4].fill(0);
    indirect::encode_into(&words, &mut copy);
    assert_eq!(copy, data);
}

/// Directory blocks: iteration ends, entries lie inside, what was read writes back the same.
pub fn dir_block(data: &[u8]) {
    let Some((&[options, ino], data)) = data.split_first_chunk() else {
        return;
    };
    let format = DirFormat {
        block_size: 1024 << (options % 7),
        filetype: options & 0x80 != 0,
        checksum: options & 0x40 != 0,
        max_ino: u32::from(ino) << 8,
        large_dir: false,
        encrypted: options & 0x20 != 0,
    };
    let mut copy = data.to_vec();
    let mut exact = true;
    let mut at = 0;
    for slot in dir::slots(data, &format) {
        let Ok(entry) = slot else { break };
        assert_eq!(entry.offset, at);
        at += entry.rec_len;
        assert!(at <= data.len());
        assert!(!entry.is_used() || format.encrypted || dir::validate_name(entry.name).is_ok());
        // With 64 KiB blocks 0 and 65535 both mean the whole block.
        exact &= entry.rec_len < 65536;
        entry.encode_into(&mut copy).expect("what was read fits");
    }
    assert!(!exact || copy == data);
    let _ = dir::validate(data, &format);
    let _ = dir::verify_checksum(data, 1);
    let _ = htree::verify_checksum(data, &format, 1);
    if dir::update_checksum(&mut copy, 1).is_ok() {
        assert!(dir::verify_checksum(&copy, 1).is_ok());
    }
}

fn check_index(entries: &DxEntries, major: u32) {
    let at = entries.search(major);
    let slots = entries.as_slice();
    assert!(at < slots.len());
    if entries.validate(u32::MAX).is_ok() {
        let scanned = slots[1..].iter().take_while(|entry| entry.hash <= major);
        assert_eq!(at, scanned.count());
    }
}

/// Hash indexes: roots and nodes of any bytes, search against a linear scan, hashes of any name.
pub fn htree(data: &[u8]) {
    let Some((&[options, a, b, c, d], data)) = data.split_first_chunk() else {
        return;
    };
    let major = u32::from_le_bytes([a, b, c, d]);
    let format = DirFormat {
        block_size: 1024,
        filetype: true,
        checksum: options & 1 != 0,
        max_ino: u32::MAX,
        large_dir: options & 2 != 0,
        encrypted: false,
    };
    for version in 0..8 {
        if let Ok(version) = HashVersion::from_disk(version, options & 4 != 0) {
            let hash = htree::hash(&data[..data.len().min(255)], version, [major; 4]);
            assert!(hash.major & 1 == 0 && hash.major < 0xFFFF_FFFE);
        }
    }
    let _ = htree::is_index_block(data, Lblk(1), &format);
    let mut block = data.to_vec();
    for head in [&[], ROOT_HEAD, NODE_HEAD] {
        if block.len() >= head.len() {
            block[..head.len()].copy_from_slice(head);
        }
        let mut copy = block.clone();
        if let Ok(root) = DxRoot::parse(&block, &format) {
            root.encode_into(&mut copy).expect("what was read fits");
            let _ = (root.hash_version(true), root.dot(), root.dotdot());
            check_index(&root.entries, major);
        }
        if let Ok(node) = DxNode::parse(&block, &format) {
            node.encode_into(&mut copy).expect("what was read fits");
            check_index(&node.entries, major);
        }
        assert_eq!(copy, block);
        if htree::update_checksum(&mut copy, &format, 3).is_ok() {
            assert!(htree::verify_checksum(&copy, &format, 3).is_ok());
        }
    }
}

fn check_xattrs(entries: &[XattrEntry<'_>], area: &[u8]) {
    let _ = xattr::block_hash(entries);
    for entry in entries {
        let _ = (entry.full_name(), entry.hash_matches());
        let head = entry.head.encode();
        let stored: [&[u8]; 2] = [&head, entry.name];
        let stored = stored.concat();
        assert!(area.windows(stored.len()).any(|window| window == stored));
        assert!(entry.bytes().is_none_or(|bytes| bytes.len() <= area.len()));
    }
}

/// Extended attributes in inodes and blocks: values lie inside, heads write back the same.
pub fn xattr(data: &[u8]) {
    let mut area = data.to_vec();
    if let Some(head) = area.first_chunk_mut() {
        *head = [0, 0, 2, 0xEA, 1, 0, 0, 0, 1, 0, 0, 0];
    }
    if let Ok(entries) = xattr::parse_in_inode(&area) {
        check_xattrs(&entries, &area);
    }
    if let Ok(block) = XattrBlock::parse(&area) {
        assert!(area.starts_with(&block.header.encode()));
        check_xattrs(&block.entries, &area);
    }
    let _ = (xattr::parse_in_inode(data), XattrBlock::parse(data).is_ok());
    if xattr::update_checksum(&mut area, 1, Pblk(2)).is_ok() {
        assert!(xattr::verify_checksum(&area, 1, Pblk(2)).is_ok());
    }
}

/// Content inside the inode: files, symlinks and directories from any inode.
pub fn inline_data(data: &[u8]) {
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
}

/// Quota files: heads, pointers and records of any bytes; what is found lies inside, and is written back the same.
pub fn quota(data: &[u8]) {
    if let Ok(header) = QuotaHeader::parse(data) {
        assert!(data.starts_with(&header.encode()));
        for kind in QuotaKind::ALL {
            let magic = QuotaHeader {
                dqh_magic: kind.magic(),
                ..header.clone()
            };
            if magic.validate(kind).is_ok() {
                assert!(
                    magic.dqi_free_blk < magic.dqi_blocks
                        && magic.dqi_free_entry < magic.dqi_blocks
                );
            }
        }
        let _ = header.check_block(header.dqi_flags, "a pointer");
    }
    if let Ok(head) = RecordsHead::parse(data) {
        assert!(data.starts_with(&head.encode()));
    }
    for record in quota::records(data) {
        let (at, found) = quota::find_record(data, record.dqb_id).expect("it is there");
        assert!(data[at..at + Record::SIZE] == found.encode());
        for level in 0..LEVELS {
            let at = quota::pointer_at(record.dqb_id, level);
            assert_eq!(quota::pointer(data, at).is_ok(), at + 4 <= data.len());
        }
    }
    if let Some(at) = quota::free_place(data) {
        let mut block = data.to_vec();
        block[at..at + Record::SIZE].copy_from_slice(&Record::zeroed().encode_used());
        assert_eq!(
            quota::records(&block).count(),
            quota::records(data).count() + 1
        );
        assert!(quota::find_record(&block, 0).is_some());
    }
}
