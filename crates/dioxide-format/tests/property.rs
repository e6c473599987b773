//! Any bytes: no panic, no endless loop, and what was read writes back the same. Valid structures:
//! a flipped bit is detected.

#[path = "support/any_bytes.rs"]
mod any_bytes;

use dioxide_format::dir::{self, DirFormat};
use dioxide_format::extent::{self, Extent, ExtentEntries, ExtentHeader, ExtentIndex, ExtentNode};
use dioxide_format::features::Incompat;
use dioxide_format::group_desc::{self, GroupChecksum, GroupDesc};
use dioxide_format::htree::{self, DxNode, DxRoot, HashVersion};
use dioxide_format::inode::{Inode, InodeFlags, Timestamp};
use dioxide_format::journal::fast_commit::{Next, Scan};
use dioxide_format::journal::{
    self, Checksums, CommitBlock, DescriptorWriter, JournalFormat, JournalSuperBlock, RevokeWriter,
    Tag, TagFlags, Tid, TransactionSum,
};
use dioxide_format::mmp::Mmp;
use dioxide_format::superblock::SuperBlock;
use dioxide_format::system_zone::SystemZone;
use dioxide_format::types::{Group, Ino, Lblk, Pblk};
use dioxide_format::xattr::{self, XattrBlock};
use dioxide_format::{bitmap, indirect, orphan_file};
use proptest::collection::vec;
use proptest::prelude::*;

fn format(block_size: u32, checksum: bool) -> DirFormat {
    DirFormat {
        block_size,
        filetype: true,
        checksum,
        max_ino: u32::MAX,
        large_dir: true,
        encrypted: false,
    }
}

/// A superblock that passes `validate`, as a base for damage: 1 KiB blocks, 64bit, metadata_csum.
fn valid_superblock() -> SuperBlock {
    let mut sb = SuperBlock::parse(&[0; SuperBlock::SIZE]).unwrap();
    let disk = sb.disk_mut();
    disk.s_magic = 0xEF53;
    disk.s_rev_level = 1;
    disk.s_inodes_count = 2048 * 4;
    disk.s_blocks_count_lo = 8192 * 4;
    disk.s_first_data_block = 1;
    disk.s_blocks_per_group = 8192;
    disk.s_clusters_per_group = 8192;
    disk.s_inodes_per_group = 2048;
    disk.s_first_ino = 11;
    disk.s_inode_size = 256;
    disk.s_desc_size = 64;
    disk.s_checksum_type = 1;
    disk.s_feature_incompat = 0x2C2;
    disk.s_feature_ro_compat = 0x401;
    sb.update_checksum();
    sb.validate(None).unwrap();
    sb
}

/// Puts the fields that parsing judges right, so that random bytes get further.
fn as_extent_block(mut bytes: Vec<u8>, entries: u16, depth: u16) -> Vec<u8> {
    let head = ExtentHeader {
        eh_magic: extent::MAGIC,
        eh_entries: entries,
        eh_max: 84,
        eh_depth: depth,
        eh_generation: 0,
    };
    bytes[..ExtentHeader::SIZE].copy_from_slice(&head.encode());
    bytes
}

/// A chain of valid entries that fills 1 KiB, from lengths of names.
fn directory_block(names: &[u8], checksum: bool) -> Vec<u8> {
    let end = if checksum { 1012 } else { 1024 };
    let mut block = vec![0; 1024];
    let mut at = 0;
    for (i, &len) in names.iter().enumerate() {
        let name = vec![b'a' + (i % 26) as u8; usize::from(len.max(1))];
        let least = dir::min_rec_len(name.len());
        let is_last = i + 1 == names.len() || at + least + 300 > end;
        let entry = dir::DirEntry {
            offset: at,
            rec_len: if is_last { end - at } else { least },
            ino: Ino(i as u32 + 1),
            file_type: None,
            type_byte: 1,
            name: &name,
        };
        entry.encode_into(&mut block).unwrap();
        at += entry.rec_len;
        if is_last {
            break;
        }
    }
    block
}

/// A block with the attribute `user.n`, whose value is the block's last four bytes.
fn xattr_block() -> Vec<u8> {
    let mut block = vec![0; 1024];
    block[..12].copy_from_slice(&[0, 0, 2, 0xEA, 1, 0, 0, 0, 1, 0, 0, 0]);
    block[32..48].copy_from_slice(&[1, 1, 0xFC, 3, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0]);
    block[48] = b'n';
    block
}

/// Each of the eight layouts of a log.
fn journal_format(kind: usize) -> JournalFormat {
    use Checksums::{None, Transaction, V2, V3};
    JournalFormat {
        checksums: [None, Transaction, V2, V3][kind % 4],
        wide: kind >= 4,
        seed: 0x1234_5678,
        uuid: [0xAB; 16],
    }
}

/// What of a tag's checksum comes back.
fn checksum_mask(format: &JournalFormat) -> u32 {
    match format.checksums {
        Checksums::None | Checksums::Transaction => 0,
        Checksums::V2 => 0xFFFF,
        Checksums::V3 => u32::MAX,
    }
}

/// A record of the fast-commit area.
fn fast_record(tag: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = [tag.to_le_bytes(), (value.len() as u16).to_le_bytes()].concat();
    bytes.extend(value);
    bytes
}

proptest! {
    #[test]
    fn superblock_any_bytes_round_trip_without_panic(bytes in vec(any::<u8>(), SuperBlock::SIZE)) {
        any_bytes::superblock(&bytes);
    }

    #[test]
    fn superblock_damaged_field_is_judged_without_panic(at in 0..256usize, value in any::<u32>()) {
        let mut bytes = valid_superblock().encode();
        bytes[at * 4..at * 4 + 4].copy_from_slice(&value.to_le_bytes());
        any_bytes::superblock(&bytes);
    }

    #[test]
    fn superblock_flipped_bit_is_detected(bit in 0..SuperBlock::SIZE * 8) {
        let mut bytes = valid_superblock().encode();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let sb = SuperBlock::parse(&bytes).unwrap();
        // Without the bit that says there are checksums, none is looked at.
        let csum_gone = !sb.features().metadata_csum();
        prop_assert!(csum_gone || sb.verify_checksum().is_err());
    }

    #[test]
    fn group_desc_any_bytes_round_trip(bytes in vec(any::<u8>(), 200), size in 0..200u8) {
        let desc = &bytes[..size.into()];
        any_bytes::group_desc(&[&[size, 0], desc, &valid_superblock().encode()].concat());
    }

    #[test]
    fn group_desc_flipped_bit_is_detected(
        bytes in vec(any::<u8>(), 128),
        size in prop::sample::select(vec![32usize, 64, 128]),
        bit in any::<prop::sample::Index>(),
        crc16 in any::<bool>(),
    ) {
        let kind = if crc16 {
            GroupChecksum::Crc16 { uuid: [7; 16] }
        } else {
            GroupChecksum::Crc32c { seed: 99 }
        };
        let mut desc = GroupDesc::parse(&bytes, size).unwrap();
        desc.update_checksum(Group(3), kind);
        desc.verify_checksum(Group(3), kind).unwrap();
        prop_assert!(desc.verify_checksum(Group(4), kind).is_err());
        let mut damaged = desc.encode();
        let bit = bit.index(size * 8);
        damaged[bit / 8] ^= 1 << (bit % 8);
        let damaged = GroupDesc::parse(&damaged, size).unwrap();
        prop_assert!(damaged.verify_checksum(Group(3), kind).is_err());
    }

    #[test]
    fn inode_any_bytes_round_trip_without_panic(bytes in vec(any::<u8>(), 512), log in 0..3u8) {
        let inode = &bytes[..128 << log];
        any_bytes::inode(&[&[log], inode, &valid_superblock().encode()].concat());
    }

    #[test]
    fn inode_flipped_bit_is_detected(
        mut bytes in vec(any::<u8>(), 256),
        size in prop::sample::select(vec![128usize, 256]),
        bit in any::<prop::sample::Index>(),
    ) {
        bytes[0x80..0x82].copy_from_slice(&32u16.to_le_bytes());
        let mut inode = Inode::parse(&bytes, size).unwrap();
        inode.update_checksum(5, Ino(12));
        inode.verify_checksum(5, Ino(12)).unwrap();
        let mut damaged = inode.encode();
        let bit = bit.index(size * 8);
        // The size of the extra fields decides how wide the checksum is.
        prop_assume!(!(0x80..0x82).contains(&(bit / 8)));
        damaged[bit / 8] ^= 1 << (bit % 8);
        let damaged = Inode::parse(&damaged, size).unwrap();
        prop_assert!(damaged.verify_checksum(5, Ino(12)).is_err());
    }

    #[test]
    fn inode_times_in_range_round_trip(
        secs in i64::from(i32::MIN)..i64::from(i32::MIN) + (4 << 32),
        nsec in 0..1_000_000_000u32,
    ) {
        let mut bytes = [0; 256];
        bytes[0x80] = 32;
        let mut inode = Inode::parse(&bytes, 256).unwrap();
        let time = Timestamp { secs, nsec };
        inode.set_atime(time);
        inode.set_ctime(time);
        inode.set_mtime(time);
        prop_assert_eq!([inode.atime(), inode.ctime(), inode.mtime()], [time; 3]);
    }

    #[test]
    fn extent_node_any_bytes_round_trip_without_panic(
        bytes in vec(any::<u8>(), 1024),
        entries in 0..90u16,
        depth in 0..7u16,
        lblk in any::<u32>(),
    ) {
        let block = as_extent_block(bytes.clone(), entries, depth);
        for block in [bytes, block] {
            any_bytes::extent_node(&[&lblk.to_le_bytes()[..], &block].concat());
        }
    }

    #[test]
    fn extent_leaf_search_finds_what_a_linear_scan_finds(
        runs in vec((0..20u32, 1..50u16, any::<bool>()), 0..84),
        probe in 0..6000u32,
    ) {
        let mut at = 0;
        let mut extents = Vec::new();
        for (gap, len, unwritten) in runs {
            let lblk = Lblk(at + gap);
            extents.push(Extent { lblk, len, unwritten, pblk: Pblk(1000 + u64::from(lblk.0)) });
            at = lblk.0 + u32::from(len);
        }
        let block = as_extent_block(vec![0; 1024], 0, 0);
        let mut node = ExtentNode::parse(&block, Some(0)).unwrap();
        node.entries = ExtentEntries::Leaf(extents.clone());
        node.validate(0..extent::LBLK_END, 1000..100_000).unwrap();
        let holds = |e: &&Extent| e.lblk.0 <= probe && u64::from(probe) < e.end();
        prop_assert_eq!(node.find(Lblk(probe)), extents.iter().find(holds).copied());
        let mut bytes = block.clone();
        node.encode_into(&mut bytes).unwrap();
        node.header.eh_entries = extents.len() as u16;
        prop_assert_eq!(ExtentNode::parse(&bytes, Some(0)).unwrap(), node);
    }

    #[test]
    fn extent_block_flipped_bit_is_detected(
        bytes in vec(any::<u8>(), 1024),
        bit in 0..1024 * 8usize,
    ) {
        let mut block = as_extent_block(bytes, 3, 0);
        extent::update_checksum(&mut block, 77).unwrap();
        extent::verify_checksum(&block, 77).unwrap();
        prop_assert!(extent::verify_checksum(&block, 78).is_err());
        block[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(extent::verify_checksum(&block, 77).is_err());
    }

    #[test]
    fn indirect_path_leads_back_and_any_bytes_are_judged_without_panic(
        lblk in any::<u32>(),
        log in 0..7u8,
        bytes in vec(any::<u8>(), 0..1024),
    ) {
        any_bytes::indirect(&[&lblk.to_le_bytes()[..], &[log], &bytes].concat());
    }

    #[test]
    fn directory_any_bytes_end_without_panic(
        checksum in any::<bool>(),
        bytes in vec(any::<u8>(), 0..1100),
    ) {
        any_bytes::dir_block(&[&[0x80 | u8::from(checksum) << 6, 0xFF], &bytes[..]].concat());
    }

    #[test]
    fn directory_name_with_slash_or_nul_is_refused(
        mut name in vec(prop_oneof![Just(0x80), Just(0x01), Just(0x2E), Just(0x30), any::<u8>()], 1..=255),
        bad in proptest::option::of((any::<prop::sample::Index>(), prop_oneof![Just(0), Just(b'/')])),
    ) {
        if let Some((at, byte)) = bad {
            *at.get_mut(&mut name) = byte;
        }
        let is_good = !name.contains(&0) && !name.contains(&b'/');
        prop_assert_eq!(dir::validate_name(&name).is_ok(), is_good);
    }

    #[test]
    fn directory_valid_chain_round_trips(names in vec(any::<u8>(), 1..40), checksum in any::<bool>()) {
        let block = directory_block(&names, checksum);
        let mut block = block;
        if checksum {
            dir::update_checksum(&mut block, 3).unwrap();
        }
        let format = format(1024, checksum);
        dir::validate(&block, &format).unwrap();
        let mut copy = block.clone();
        for slot in dir::slots(&block, &format) {
            slot.unwrap().encode_into(&mut copy).unwrap();
        }
        prop_assert_eq!(&copy, &block);
        prop_assert!(dir::entries(&block, &format).all(|e| e.unwrap().is_used()));
    }

    #[test]
    fn directory_search_finds_the_name_or_the_first_room(
        names in vec(1..60u8, 1..40),
        gone in vec(any::<prop::sample::Index>(), 0..8),
        sought in 1..60usize,
        checksum in any::<bool>(),
    ) {
        let format = format(1024, checksum);
        let mut block = directory_block(&names, checksum);
        let chain = &mut block[..dir::room(&format)];
        let used = |chain: &[u8]| -> Vec<(Vec<u8>, Ino)> {
            let entries = dir::entries(chain, &format).map(Result::unwrap);
            entries.map(|entry| (entry.name.to_vec(), entry.ino)).collect()
        };
        for index in gone {
            let there = used(chain);
            if !there.is_empty() {
                let found = dir::find(chain, &format, &index.get(&there).0).unwrap();
                dir::remove(chain, &found.unwrap()).unwrap();
            }
        }
        // Names of another letter at the end, as no entry has them.
        let absent = vec![b'_'; sought];
        let room = dir::slots(chain, &format).map(Result::unwrap).find_map(|slot| {
            let kept = if slot.is_used() { dir::min_rec_len(slot.name.len()) } else { 0 };
            let (offset, rec_len) = (slot.offset, slot.rec_len);
            (rec_len - kept >= dir::min_rec_len(sought)).then_some(dir::Gap { offset, kept, rec_len })
        });
        prop_assert_eq!(dir::search(chain, &format, &absent).unwrap(), dir::Search::Absent(room));
        prop_assert_eq!(dir::find_gap(chain, &format, sought).unwrap(), room);
        for (name, _) in used(chain) {
            let first = used(chain).into_iter().find(|(other, _)| *other == name).unwrap().1;
            let found = dir::search(chain, &format, &name).unwrap().found();
            prop_assert_eq!(found.map(|found| found.ino), Some(first));
        }
    }

    #[test]
    fn directory_flipped_bit_is_detected(names in vec(any::<u8>(), 1..40), bit in 0..1024 * 8usize) {
        let mut block = directory_block(&names, true);
        dir::update_checksum(&mut block, 3).unwrap();
        dir::verify_checksum(&block, 3).unwrap();
        block[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(dir::verify_checksum(&block, 3).is_err());
    }

    #[test]
    fn directory_damaged_chain_ends_without_panic(
        names in vec(any::<u8>(), 1..40),
        damage in vec((0..1024usize, any::<u8>()), 1..6),
    ) {
        let mut block = directory_block(&names, false);
        damage.into_iter().for_each(|(at, value)| block[at] = value);
        prop_assert!(dir::slots(&block, &format(1024, false)).count() <= 1024 / 12 + 1);
    }

    #[test]
    fn htree_any_bytes_round_trip_without_panic(
        mut bytes in vec(any::<u8>(), 1024),
        count in 1..140u16,
        root in any::<bool>(),
        name_len in 0..3u8,
        major in any::<u32>(),
    ) {
        let format = format(1024, true);
        let head: &[u8] = if root {
            b"\x02\0\0\0\x0c\0\x01\x02.\0\0\0\x02\0\0\0\xf4\x03\x02\x02..\0\0\0\0\0\0\x01\x08\0\0"
        } else {
            // Nobody looks at the length of a node's name.
            &[0, 0, 0, 0, 0, 4, name_len, 0]
        };
        bytes[..head.len()].copy_from_slice(head);
        let limit = ((1024 - head.len() - 8) / 8) as u16;
        bytes[head.len()..head.len() + 2].copy_from_slice(&limit.to_le_bytes());
        bytes[head.len() + 2..head.len() + 4].copy_from_slice(&count.to_le_bytes());
        let is_read = match root {
            true => DxRoot::parse(&bytes, &format).is_ok(),
            false => DxNode::parse(&bytes, &format).is_ok(),
        };
        prop_assert_eq!(is_read, count <= limit);
        any_bytes::htree(&[&[3][..], &major.to_le_bytes(), &bytes].concat());
        if is_read {
            htree::update_checksum(&mut bytes, &format, 9).unwrap();
            bytes[head.len() + 4] ^= 0x10;
            prop_assert!(htree::verify_checksum(&bytes, &format, 9).is_err());
        }
    }

    #[test]
    fn name_hash_any_name_has_a_clear_low_bit(
        name in vec(any::<u8>(), 0..256),
        seed in any::<[u32; 4]>(),
        version in 0..3u8,
        unsigned in any::<bool>(),
    ) {
        let version = HashVersion::from_disk(version, unsigned).unwrap();
        let hash = htree::hash(&name, version, seed);
        prop_assert_eq!(hash.major & 1, 0);
        prop_assert!(hash.major < 0xFFFF_FFFE);
    }

    #[test]
    fn bitmap_search_agrees_with_single_bits(
        bytes in vec(prop::sample::select(vec![0u8, 0xFF, 0x10, 0xEF]), 0..40),
        from in 0..350usize,
        end in 0..350usize,
    ) {
        let bits = end.min(bytes.len() * 8);
        let used = |i: &usize| bitmap::get(&bytes, *i);
        let free = |i: &usize| !bitmap::get(&bytes, *i);
        prop_assert_eq!(bitmap::next_set(&bytes, from, end), (from..bits).find(used));
        prop_assert_eq!(bitmap::next_zero(&bytes, from, end), (from..bits).find(free));
        prop_assert_eq!(bitmap::count_free(&bytes, end), (0..bits).filter(free).count());
    }

    #[test]
    fn system_zone_agrees_with_each_descriptor(
        places in vec((4..400u32, 4..400u32, 4..400u32), 4),
        probe in 0..32768u64,
        len in 1..5u64,
    ) {
        let sb = valid_superblock();
        let descs: Vec<GroupDesc> = places.iter().map(|&(blocks, inodes, table)| {
            let mut desc = GroupDesc::parse(&[0; 64], 64).unwrap();
            desc.disk_mut().bg_block_bitmap_lo = blocks;
            desc.disk_mut().bg_inode_bitmap_lo = inodes;
            desc.disk_mut().bg_inode_table_lo = table;
            desc
        }).collect();
        let journal = 20_000..20_100u64;
        let zone = SystemZone::new(&sb, &descs, [journal.clone()]);
        let table = u64::from(sb.inode_table_blocks());
        let is_metadata = |block: u64| {
            let group = block.saturating_sub(1) / 8192;
            let first = 1 + group * 8192;
            let base = u64::from(sb.base_meta_blocks(Group(group as u32)));
            journal.contains(&block)
                || (block > 0 && group < 4 && block < first + base)
                || descs.iter().any(|d| {
                    let start = d.inode_table().0;
                    block == d.block_bitmap().0
                        || block == d.inode_bitmap().0
                        || (start..start + table).contains(&block)
                })
        };
        prop_assert_eq!(zone.overlaps(Pblk(probe), len), (probe..probe + len).any(is_metadata));
        prop_assert!(zone.ranges().windows(2).all(|pair| pair[0].end < pair[1].start));
        for (group, desc) in descs.iter().enumerate() {
            for range in desc.metadata_ranges(&sb, Group(group as u32)) {
                prop_assert!(range.into_iter().all(is_metadata));
            }
        }
        let near = zone.ranges()[0].end;
        prop_assert_eq!(zone.overlaps(Pblk(near), 1), is_metadata(near));
        prop_assert_eq!(zone.overlaps(Pblk(near - 1), 1), is_metadata(near - 1));
    }

    #[test]
    fn bitmap_put_changes_one_bit(mut bytes in vec(any::<u8>(), 8), at in 0..64usize, used in any::<bool>()) {
        let before = bytes.clone();
        bitmap::put(&mut bytes, at, used);
        for i in 0..64 {
            prop_assert_eq!(bitmap::get(&bytes, i), if i == at { used } else { bitmap::get(&before, i) });
        }
    }

    #[test]
    fn bitmap_put_range_changes_exactly_the_range(
        mut bytes in vec(any::<u8>(), 0..9),
        from in 0..80usize,
        len in 0..80usize,
        used in any::<bool>(),
    ) {
        let before = bytes.clone();
        bitmap::put_range(&mut bytes, from..from + len, used);
        for i in 0..bytes.len() * 8 {
            let inside = (from..from + len).contains(&i);
            prop_assert_eq!(bitmap::get(&bytes, i), if inside { used } else { bitmap::get(&before, i) });
        }
    }

    #[test]
    fn bitmap_free_runs_are_the_maximal_runs_of_clear_bits(
        bytes in vec(prop::sample::select(vec![0u8, 0xFF, 0x3C, 0xC3]), 0..20),
        end in 0..170usize,
    ) {
        let bits = end.min(bytes.len() * 8);
        let mut at = 0;
        let mut found = Vec::new();
        while let Some(run) = bitmap::next_free_run(&bytes, at, end) {
            prop_assert!(run.start == 0 || bitmap::get(&bytes, run.start - 1) || run.start == at);
            prop_assert!(run.end == bits || bitmap::get(&bytes, run.end));
            at = run.end;
            found.extend(run);
        }
        let free: Vec<usize> = (0..bits).filter(|&i| !bitmap::get(&bytes, i)).collect();
        prop_assert_eq!(found, free);
    }

    #[test]
    fn group_desc_counts_read_back_what_was_stored(
        counts in any::<[u16; 4]>(),
        high in any::<bool>(),
        wide in any::<bool>(),
    ) {
        let size = if wide { 64 } else { 32 };
        let mut desc = GroupDesc::parse(&[0xFF; 64], size).unwrap();
        let [blocks, inodes, dirs, unused] =
            counts.map(|count| u32::from(count) | (u32::from(high && wide) << 16));
        desc.set_free_clusters_count(blocks);
        desc.set_free_inodes_count(inodes);
        desc.set_used_dirs_count(dirs);
        desc.set_itable_unused(unused);
        desc.clear_flags(group_desc::BLOCK_UNINIT);
        let desc = GroupDesc::parse(&desc.encode(), size).unwrap();
        prop_assert_eq!(desc.free_clusters_count(), blocks);
        prop_assert_eq!(desc.free_inodes_count(), inodes);
        prop_assert_eq!(desc.used_dirs_count(), dirs);
        prop_assert_eq!(desc.itable_unused(), unused);
        prop_assert_eq!(desc.flags(), !group_desc::BLOCK_UNINIT);
    }

    #[test]
    fn superblock_free_counts_read_back_what_was_stored(
        blocks in 0..1u64 << 48,
        inodes in any::<u32>(),
        wide in any::<bool>(),
    ) {
        let mut sb = valid_superblock();
        let bit = Incompat::BIT64.bits();
        let incompat = &mut sb.disk_mut().s_feature_incompat;
        *incompat = if wide { *incompat | bit } else { *incompat & !bit };
        sb.set_free_blocks_count(blocks);
        sb.set_free_inodes_count(inodes);
        let sb = SuperBlock::parse(&sb.encode()).unwrap();
        prop_assert_eq!(sb.free_blocks_count(), if wide { blocks } else { blocks & 0xFFFF_FFFF });
        prop_assert_eq!(sb.free_inodes_count(), inodes);
    }

    #[test]
    fn bitmap_flipped_bit_is_detected(bit in 0..1024 * 8usize, size in prop::sample::select(vec![32usize, 64])) {
        let sb = valid_superblock();
        let mut desc = GroupDesc::parse(&[0; 64], size).unwrap();
        let mut bits = vec![0xA5; 1024];
        bitmap::update_block_bitmap(&bits, &sb, &mut desc).unwrap();
        bitmap::verify_block_bitmap(&bits, &sb, &desc).unwrap();
        bits[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(bitmap::verify_block_bitmap(&bits, &sb, &desc).is_err());
    }

    #[test]
    fn xattr_any_bytes_end_without_panic(bytes in vec(any::<u8>(), 0..1024)) {
        any_bytes::xattr(&bytes);
    }

    #[test]
    fn xattr_damaged_block_ends_without_panic(
        damage in vec((0..96usize, any::<u8>()), 1..6),
    ) {
        let mut block = xattr_block();
        damage.into_iter().for_each(|(at, value)| block[at] = value);
        any_bytes::xattr(&block);
        any_bytes::xattr(&block[28..]);
    }

    #[test]
    fn xattr_block_flipped_bit_is_detected(mut block in vec(any::<u8>(), 1024), bit in 0..1024 * 8usize) {
        xattr::update_checksum(&mut block, 5, Pblk(77)).unwrap();
        xattr::verify_checksum(&block, 5, Pblk(77)).unwrap();
        prop_assert!(xattr::verify_checksum(&block, 5, Pblk(78)).is_err());
        block[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(xattr::verify_checksum(&block, 5, Pblk(77)).is_err());
    }

    #[test]
    fn inline_data_any_bytes_end_without_panic(
        options in 0..16u8,
        bytes in vec(any::<u8>(), 256..1300),
    ) {
        any_bytes::inline_data(&[&[options], &bytes[..]].concat());
    }

    #[test]
    fn quota_any_bytes_round_trip(block in vec(prop_oneof![3 => Just(0), 1 => any::<u8>()], 0..1100)) {
        any_bytes::quota(&block);
    }

    #[test]
    fn mmp_and_journal_any_bytes_round_trip(bytes in vec(any::<u8>(), 1024), bit in 0..1024 * 8usize) {
        let mut mmp = Mmp::parse(&bytes).unwrap();
        prop_assert!(bytes == mmp.encode());
        let _ = (mmp.validate(), mmp.state());
        mmp.update_checksum(4);
        mmp.verify_checksum(4).unwrap();
        let mut damaged = mmp.encode();
        damaged[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(Mmp::parse(&damaged).unwrap().verify_checksum(4).is_err());
        let journal = JournalSuperBlock::parse(&bytes).unwrap();
        prop_assert!(bytes == journal.encode());
        let _ = (journal.validate(1024), journal.verify_checksum());
    }

    #[test]
    fn journal_superblock_flipped_bit_is_detected(bytes in vec(any::<u8>(), 1024), bit in 0..1024 * 8usize) {
        let mut sb = JournalSuperBlock::parse(&bytes).unwrap();
        (sb.h_blocktype, sb.s_feature_incompat) = (4, 0x10);
        sb.update_checksum();
        sb.verify_checksum().unwrap();
        let mut damaged = sb.encode();
        damaged[bit / 8] ^= 1 << (bit % 8);
        let damaged = JournalSuperBlock::parse(&damaged).unwrap();
        // Without these two there is no checksum to check.
        let has_one = damaged.h_blocktype != 3 && damaged.s_feature_incompat & 0x18 != 0;
        prop_assert_eq!(damaged.verify_checksum().is_err(), has_one);
        let _ = (sb.format(), damaged.format(), damaged.fast_commit_blocks());
    }

    #[test]
    fn journal_descriptor_written_is_read_back(
        blocks in vec((any::<u64>(), any::<u32>(), any::<bool>()), 1..300),
        kind in 0..8usize,
        bit in 0..1024 * 8usize,
    ) {
        let format = journal_format(kind);
        let mut block = vec![0xEE; 1024];
        let mut writer = DescriptorWriter::new(&mut block, &format, Tid(77));
        let mut written = Vec::new();
        for (number, checksum, is_escaped) in blocks {
            if writer.is_full() {
                break;
            }
            let number = if format.wide { number } else { number & 0xFFFF_FFFF };
            let flags = TagFlags(u32::from(is_escaped));
            writer.push(Tag { block: number, flags, checksum });
            written.push((number, checksum & checksum_mask(&format), is_escaped));
        }
        prop_assert!(written.len() <= DescriptorWriter::capacity(1024, &format));
        prop_assert!(!writer.is_full() || written.len() == DescriptorWriter::capacity(1024, &format));
        writer.seal();
        format.verify_tail(&block).unwrap();
        let read: Vec<_> = journal::tags(&block, &format)
            .map(|tag| (tag.block, tag.checksum, tag.is_escaped()))
            .collect();
        prop_assert_eq!(read, written);
        block[bit / 8] ^= 1 << (bit % 8);
        prop_assert_eq!(format.verify_tail(&block).is_err(), format.checksums.per_block());
        prop_assert!(journal::tags(&block, &format).count() <= 1024 / 8);
    }

    #[test]
    fn journal_revoke_block_written_is_read_back(
        numbers in vec(any::<u64>(), 0..300),
        kind in 0..8usize,
        bit in 0..1024 * 8usize,
    ) {
        let format = journal_format(kind);
        let mut block = vec![0xEE; 1024];
        let mut writer = RevokeWriter::new(&mut block, &format, Tid(77));
        let mask = if format.wide { u64::MAX } else { 0xFFFF_FFFF };
        let numbers: Vec<u64> = numbers
            .into_iter()
            .map(|number| number & mask)
            .take(RevokeWriter::capacity(1024, &format))
            .collect();
        numbers.iter().for_each(|number| writer.push(*number));
        let full = numbers.len() == RevokeWriter::capacity(1024, &format);
        prop_assert_eq!(writer.is_full(), full);
        writer.seal();
        format.verify_tail(&block).unwrap();
        prop_assert_eq!(journal::revokes(&block, &format).unwrap().collect::<Vec<_>>(), numbers);
        block[bit / 8] ^= 1 << (bit % 8);
        prop_assert_eq!(format.verify_tail(&block).is_err(), format.checksums.per_block());
        let _ = journal::revokes(&block, &format).map(Iterator::count);
    }

    #[test]
    fn journal_commit_block_written_is_read_back(
        secs in any::<u64>(),
        nsec in any::<u32>(),
        data in vec(any::<u8>(), 0..600),
        kind in 0..8usize,
        bit in 0..60 * 8usize,
    ) {
        let format = journal_format(kind);
        let commit = CommitBlock { tid: Tid(3), secs, nsec };
        let mut sum = TransactionSum::default();
        sum.add(&data);
        let mut block = vec![0xEE; 1024];
        commit.write(&mut block, &format, &sum);
        prop_assert_eq!(CommitBlock::parse(&block).unwrap(), commit);
        CommitBlock::verify(&block, &format, &sum).unwrap();
        let mut damaged = block.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        let caught = CommitBlock::verify(&damaged, &format, &sum).is_err();
        prop_assert!(caught || !format.checksums.per_block());
        // Only the first sector of a commit block need be its own.
        block[512..].fill(0x55);
        CommitBlock::verify(&block, &format, &sum).unwrap();
        sum.add(&[1]);
        let stale = CommitBlock::verify(&block, &format, &sum).is_err();
        prop_assert_eq!(stale, format.checksums == Checksums::Transaction);
    }

    #[test]
    fn journal_any_bytes_are_read_without_panic(block in vec(any::<u8>(), 0..1200), kind in 0..8usize) {
        let format = journal_format(kind);
        prop_assert!(journal::tags(&block, &format).count() <= block.len() / 8);
        if let Ok(numbers) = journal::revokes(&block, &format) {
            prop_assert!(numbers.count() <= block.len() / 4);
        }
        let _ = (journal::BlockHeader::of(&block), CommitBlock::parse(&block));
        let _ = (format.verify_tail(&block), format.verify_data(&Tag::default(), Tid(0), &block));
        let _ = CommitBlock::verify(&block, &format, &TransactionSum::default());
    }

    #[test]
    fn fast_commit_damaged_bytes_are_never_half_a_commit(
        first in vec(any::<u8>(), 12),
        names in vec(vec(any::<u8>(), 1..255), 1..3),
        flips in vec((0..1024usize, any::<u8>()), 0..4),
        noise in vec(any::<u8>(), 0..1024),
    ) {
        let mut block = fast_record(9, &[0, 0, 0, 0, 7, 0, 0, 0]);
        block.extend(fast_record(2, &[&[9, 0, 0, 0], &first[..8]].concat()));
        for name in &names {
            block.extend(fast_record(4, &[&first[4..], &name[..]].concat()));
        }
        let room = 1024 - block.len() as u16 - 4;
        block.extend([8u16.to_le_bytes(), room.to_le_bytes()].concat());
        block.extend(7u32.to_le_bytes());
        block.extend(dioxide_format::checksum::crc32c(0, &block).to_le_bytes());
        let covered = block.len();
        block.resize(1024, 0);
        let mut scan = Scan::new(Tid(7), 256);
        prop_assert_eq!(scan.block(&block).unwrap(), Next::More);
        let (commits, records) = scan.finish();
        prop_assert_eq!((commits, records.len()), (1, 1 + names.len()));
        let mut damaged = block.clone();
        flips.iter().for_each(|(at, flip)| damaged[*at] ^= flip);
        let mut scan = Scan::new(Tid(7), 256);
        let result = scan.block(&damaged);
        let (commits, records) = scan.finish();
        let is_hit = damaged[..covered] != block[..covered];
        prop_assert_eq!(commits, u32::from(!is_hit));
        prop_assert_eq!(records.is_empty(), is_hit);
        prop_assert!(is_hit || result.is_ok());
        let _ = Scan::new(Tid(7), 256).block(&noise);
    }

    #[test]
    fn orphan_block_flipped_bit_is_detected(mut block in vec(any::<u8>(), 1024), bit in 0..1024 * 8usize) {
        let _ = orphan_file::orphans(&block, 100);
        orphan_file::update_checksum(&mut block, 5, Pblk(9)).unwrap();
        prop_assert!(orphan_file::orphans(&block, u32::MAX).is_ok());
        orphan_file::verify_checksum(&block, 5, Pblk(9)).unwrap();
        block[bit / 8] ^= 1 << (bit % 8);
        let caught = orphan_file::verify_checksum(&block, 5, Pblk(9)).is_err();
        prop_assert!(caught || orphan_file::orphans(&block, u32::MAX).is_err());
    }

    #[test]
    fn short_input_every_structure_is_an_error(bytes in vec(any::<u8>(), 0..11)) {
        prop_assert!(SuperBlock::parse(&bytes).is_err());
        prop_assert!(GroupDesc::parse(&bytes, 32).is_err());
        prop_assert!(Inode::parse(&bytes, 128).is_err());
        prop_assert!(ExtentNode::parse(&bytes, None).is_err());
        prop_assert!(XattrBlock::parse(&bytes).is_err());
        prop_assert!(Mmp::parse(&bytes).is_err());
        prop_assert!(extent::verify_checksum(&bytes, 0).is_err());
        prop_assert!(dir::verify_checksum(&bytes, 0).is_err());
        prop_assert!(DxRoot::parse(&bytes, &format(1024, true)).is_err());
    }
}

#[test]
fn extent_node_damage_names_the_field() {
    let leaf = |extents: Vec<Extent>| {
        let block = as_extent_block(vec![0; 1024], 0, 0);
        let mut node = ExtentNode::parse(&block, None).unwrap();
        node.entries = ExtentEntries::Leaf(extents);
        node.validate(0..100, 10..1000).unwrap_err().to_string()
    };
    let extent = |lblk, len, pblk| Extent {
        lblk: Lblk(lblk),
        len,
        unwritten: false,
        pblk: Pblk(pblk),
    };
    assert!(leaf(vec![extent(0, 0, 10)]).contains("ee_len"));
    assert!(leaf(vec![extent(5, 5, 10), extent(9, 1, 30)]).contains("ee_block"));
    assert!(leaf(vec![extent(99, 2, 10)]).contains("ee_block"));
    assert!(leaf(vec![extent(0, 1, 9)]).contains("ee_start"));
    // As in Linux, no file has the block 2^32 - 1.
    let mut node = ExtentNode::parse(&as_extent_block(vec![0; 1024], 0, 0), None).unwrap();
    let last = |node: &ExtentNode| node.validate(0..extent::LBLK_END, 10..1000);
    node.entries = ExtentEntries::Leaf(vec![extent(u32::MAX - 2, 2, 10)]);
    last(&node).unwrap();
    node.entries = ExtentEntries::Leaf(vec![extent(u32::MAX - 2, 3, 10)]);
    assert!(last(&node).unwrap_err().to_string().contains("ee_block"));
    assert!(leaf(vec![extent(0, 2, 999)]).contains("ee_start"));
    let header = |entries, depth, expected| {
        let block = as_extent_block(vec![0; 1024], entries, depth);
        ExtentNode::parse(&block, expected).unwrap_err().to_string()
    };
    assert!(header(85, 0, None).contains("eh_entries"));
    assert!(header(1, 6, None).contains("eh_depth"));
    assert!(header(1, 2, Some(1)).contains("eh_depth"));
    assert!(header(0, 1, None).contains("eh_entries"));
    assert!(
        ExtentNode::parse(&[0; 60], None)
            .unwrap_err()
            .to_string()
            .contains("eh_magic")
    );
}

#[test]
fn extent_block_that_is_no_node_is_told_before_its_checksum() {
    let mut block = as_extent_block(vec![0; 1024], 0, 0);
    extent::update_checksum(&mut block, 77).unwrap();
    let refused = |block: &[u8]| extent::verify_checksum(block, 77).unwrap_err().to_string();
    let mut long = block.clone();
    long[4..6].fill(0xff);
    assert_eq!(
        refused(&long),
        "extent node: eh_max is 65535, expected 1 to 84"
    );
    long[..2].fill(0);
    assert_eq!(refused(&long), "extent node: eh_magic is 0, expected 62218");
}

#[test]
fn extent_index_unsorted_is_refused() {
    let block = as_extent_block(vec![0; 1024], 1, 1);
    let mut node = ExtentNode::parse(&block, None).unwrap();
    let index = |lblk| ExtentIndex::new(Lblk(lblk), Pblk(50));
    node.entries = ExtentEntries::Index(vec![index(0), index(7), index(7)]);
    let error = node.validate(0..100, 10..1000).unwrap_err();
    assert_eq!(
        error.to_string(),
        "extent node: ei_block is 7, expected within 8..100"
    );
    assert_eq!(node.child_range(0, &(0..100)), 0..7);
    assert_eq!(node.child_range(2, &(0..100)), 7..100);
}

#[test]
fn extent_longest_lengths_round_trip() {
    let written = Extent {
        lblk: Lblk(0),
        len: 32768,
        unwritten: false,
        pblk: Pblk(1 << 40),
    };
    let unwritten = Extent {
        lblk: Lblk(40000),
        len: 32767,
        unwritten: true,
        pblk: Pblk(3),
    };
    assert_eq!(written.to_disk().ee_len, 32768);
    assert_eq!(unwritten.to_disk().ee_len, 65535);
    let mut node = ExtentNode::parse(&as_extent_block(vec![0; 1024], 0, 0), None).unwrap();
    node.entries = ExtentEntries::Leaf(vec![written, unwritten]);
    let mut block = vec![0; 1024];
    node.encode_into(&mut block).unwrap();
    assert_eq!(
        ExtentNode::parse(&block, None).unwrap().extents(),
        [written, unwritten]
    );
}

#[test]
fn directory_damage_names_the_field() {
    let error = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut block = directory_block(&[3, 4, 5], false);
        change(&mut block);
        let mut format = format(1024, false);
        format.max_ino = 1000;
        dir::validate(&block, &format).unwrap_err().to_string()
    };
    assert!(error(&|b| b[4] = 0).contains("rec_len is 0"));
    assert!(error(&|b| b[4] = 13).contains("rec_len is 13"));
    assert!(error(&|b| b[5] = 0x80).contains("rec_len"));
    assert!(error(&|b| b[4..6].copy_from_slice(&1020u16.to_le_bytes())).contains("rec_len"));
    assert!(error(&|b| b[6] = 9).contains("name_len"));
    assert!(error(&|b| b[6] = 0).contains("name_len is 0"));
    assert!(error(&|b| b[8] = b'/').contains("name is /aa"));
    assert!(error(&|b| b[8] = 0).contains("name is"));
    assert!(error(&|b| b[3] = 1).contains("inode is"));
}

#[test]
fn directory_with_encrypted_names_has_any_bytes_in_them() {
    let plain = format(1024, false);
    let encrypted = plain.with_flags(InodeFlags::ENCRYPT);
    let mut block = directory_block(&[3, 4, 5], false);
    block[8..11].copy_from_slice(b"/\0a");
    assert!(dir::validate(&block, &plain).is_err());
    assert!(dir::entries(&block, &plain).next().unwrap().is_err());
    dir::validate(&block, &encrypted).unwrap();
    let names: Vec<_> = dir::entries(&block, &encrypted)
        .map(|entry| entry.unwrap().name.to_vec())
        .collect();
    assert_eq!((names.len(), &names[0][..]), (3, &b"/\0a"[..]));
    // Their length is judged as before.
    for (at, damage) in [(4, 13), (6, 0), (6, 200)] {
        let mut block = block.clone();
        block[at] = damage;
        assert!(dir::validate(&block, &encrypted).is_err());
        assert!(dir::entries(&block, &encrypted).any(|entry| entry.is_err()));
    }
    assert_eq!(encrypted.with_flags(InodeFlags::INDEX), plain);
}

#[test]
fn directory_64k_block_length_of_whole_block_is_read() {
    let mut block = vec![0; 65536];
    let format = format(65536, false);
    for raw in [0u16, 65535] {
        block[..8].copy_from_slice(&[2, 0, 0, 0, raw as u8, (raw >> 8) as u8, 1, 2]);
        block[8] = b'x';
        let entries: Vec<_> = dir::entries(&block, &format).map(Result::unwrap).collect();
        assert_eq!((entries.len(), entries[0].rec_len), (1, 65536));
    }
}

#[test]
fn directory_with_other_name_rules_is_unsupported_by_name() {
    let with_flags = |flags: u32| {
        let mut raw = [0; 128];
        raw[0x20..0x24].copy_from_slice(&flags.to_le_bytes());
        dir::ensure_plain_names(&Inode::parse(&raw, 128).unwrap())
    };
    with_flags(0x8_1000).unwrap();
    let text = |flags| with_flags(flags).unwrap_err().to_string();
    assert_eq!(text(0x4000_0000), "unsupported feature: casefold");
    assert_eq!(text(0x0000_0800), "unsupported feature: encrypt");
}

#[test]
fn xattr_damage_is_refused() {
    let block = xattr_block();
    let parsed = XattrBlock::parse(&block).unwrap();
    assert_eq!(parsed.entries[0].full_name().unwrap(), b"user.n");
    assert_eq!(parsed.entries[0].bytes(), Some(&[0; 4][..]));
    let error = |at: usize, value: u16| {
        let mut damaged = block.clone();
        damaged[at..at + 2].copy_from_slice(&value.to_le_bytes());
        XattrBlock::parse(&damaged).unwrap_err().to_string()
    };
    assert!(error(0, 1).contains("h_magic"));
    assert!(error(4, 0).contains("h_refcount"));
    assert!(error(8, 2).contains("h_blocks"));
    assert!(error(34, 0x3FD).contains("e_value_offs"));
    assert!(error(34, 0x20).contains("e_value_offs"));
    assert!(error(42, 0x100).contains("e_value_offs"));
    assert!(error(48, 0).contains("e_name"));
}

#[test]
fn htree_root_damage_is_refused_by_name() {
    let mut block = vec![0; 1024];
    block[..32].copy_from_slice(
        b"\x02\0\0\0\x0c\0\x01\x02.\0\0\0\x02\0\0\0\xf4\x03\x02\x02..\0\0\0\0\0\0\x01\x08\0\0",
    );
    block[32..40].copy_from_slice(&[123, 0, 1, 0, 1, 0, 0, 0]);
    let format = format(1024, true);
    DxRoot::parse(&block, &format)
        .unwrap()
        .entries
        .validate(2)
        .unwrap();
    let error = |at: usize, value: u8| {
        let mut damaged = block.clone();
        damaged[at] = value;
        let parsed = DxRoot::parse(&damaged, &format);
        let checked = parsed.and_then(|root| root.entries.validate(2));
        checked.unwrap_err().to_string()
    };
    assert!(error(4, 13).contains("dot_rec_len"));
    assert!(error(0x10, 0).contains("dotdot_rec_len"));
    assert!(error(0x1C, 9).contains("hash_version"));
    assert!(error(0x1D, 9).contains("info_length"));
    assert!(error(0x1E, 3).contains("indirect_levels"));
    assert!(error(32, 124).contains("limit"));
    assert!(error(34, 0).contains("count"));
    assert!(error(36, 2).contains("block"));
    assert!(error(36, 0).contains("block"));
    block[0x1C] = htree::SIPHASH;
    let root = DxRoot::parse(&block, &format).unwrap();
    let error = root.hash_version(false).unwrap_err().to_string();
    assert!(error.contains("siphash"));
}

#[test]
fn max_lblk_of_each_block_size_is_where_paths_end() {
    for log in 10..12 {
        let max = indirect::max_lblk(1 << log);
        assert!(indirect::path(max, 1 << log).is_some());
        assert!(indirect::path(Lblk(max.0 + 1), 1 << log).is_none());
    }
}
