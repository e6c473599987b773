#![no_main]
//! The superblock: round trip, every accessor, validation, geometry of chosen groups.

use dioxide_format::superblock::SuperBlock;
use dioxide_format::system_zone::SystemZone;
use dioxide_format::types::{Group, Ino, Pblk};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(mut sb) = SuperBlock::parse(data) else {
        return;
    };
    assert!(data.starts_with(&sb.encode()));
    sb.disk_mut().s_magic = 0xEF53;
    let _ = (sb.features().names(), sb.volume_name(), sb.last_mounted());
    let _ = (sb.mkfs_time(), sb.mount_opts(), sb.max_mount_count());
    let _ = (sb.descriptor_blocks(), sb.inode_table_blocks());
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
});
