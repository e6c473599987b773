//! Damaged images, and handles that fail half-way.

use super::blocks::request;
use super::support::{Fs, VARIANTS};
use crate::Error;
use crate::alloc::{Goal, Groups, InodeAllocator, InodeKind, Release, Right, Run};
use dioxide_format::group_desc::{BLOCK_UNINIT, GroupDesc};
use dioxide_format::system_zone::SystemZone;
use dioxide_format::types::{Group, Ino, Pblk};
use dioxide_testkit::{Image, debugfs};
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Flips one bit of a file system's block.
pub(super) fn flip(fs: &Fs, block: Pblk, byte: u64) {
    let file = File::options()
        .read(true)
        .write(true)
        .open(fs.image.path())
        .unwrap();
    let at = block.0 * u64::from(fs.sb.block_size()) + byte;
    let mut bytes = [0];
    file.read_exact_at(&mut bytes, at).unwrap();
    bytes[0] ^= 0x10;
    file.write_all_at(&bytes, at).unwrap();
}

pub(super) fn desc(fs: &Fs, group: u32) -> GroupDesc {
    Groups::new(fs.sb.clone(), SystemZone::default())
        .desc(&fs.handle(0), Group(group))
        .unwrap()
}

/// Groups 0 and 1 were written; flex_bg keeps all bitmaps in group 0.
fn subject(features: &str) -> Fs {
    let builder = Image::builder().size(64 << 20).features(features);
    Fs::make(builder.args(&["-g", "4096"]))
}

#[test]
fn damaged_bitmap_its_group_is_passed_over_and_never_changed() {
    for features in ["^has_journal", "^has_journal,^metadata_csum,^uninit_bg"] {
        let fs = subject(features);
        let bitmap = desc(&fs, 0).block_bitmap();
        flip(&fs, bitmap, 400);
        let near = request(Goal::Append(Pblk(3500)), 4, 4);
        let mut handle = fs.for_blocks();
        let run = fs.blocks.allocate(&mut handle, &near).unwrap();
        assert_ne!(fs.sb.group_of_block(run.start), Some(Group(0)));
        assert!(!handle.touched.contains(&bitmap.0));
        let inside = Run {
            start: Pblk(3500),
            len: 1,
        };
        let (mut handle, free) = (fs.for_blocks(), fs.blocks.free_clusters());
        fs.blocks.free(&mut handle, inside, Release::Now).unwrap();
        assert!(handle.touched.is_empty());
        assert_eq!(fs.blocks.free_clusters(), free);
        // What the group had does not count as available any more.
        let lost = u64::from(desc(&fs, 0).free_clusters_count());
        let available = fs.blocks.available_clusters(Right::Map);
        assert_eq!(available, fs.blocks.free_clusters() - lost);
    }
}

/// Groups whose block bitmap was never written, and whose inode bitmap is wrong: looking at them takes no credits.
#[test]
fn damaged_groups_that_are_passed_over_cost_nothing() {
    const DAMAGED: u32 = 6;
    let builder = Image::builder().size(24 << 20).block_size(1024);
    let features = "uninit_bg,^has_journal,^metadata_csum,^flex_bg,^resize_inode,^64bit";
    let args = ["-g", "256", "-N", "1536"];
    let image = builder.features(features).args(&args).build();
    let spoil = |group: u32| {
        [
            format!("set_bg {group} flags 6"),
            format!("set_bg {group} free_inodes_count 7"),
            format!("set_bg {group} itable_unused 0"),
            format!("set_bg {group} checksum calc"),
        ]
    };
    let commands: Vec<String> = (1..=DAMAGED).flat_map(spoil).collect();
    debugfs(image.path(), &commands);
    let fs = Fs::open(image);
    let parent = Ino(fs.sb.inodes_per_group() + 1);
    let mut handle = fs.handle(InodeAllocator::ALLOCATE_CREDITS);
    let new = fs
        .inodes
        .allocate(&mut handle, parent, InodeKind::File)
        .unwrap();
    let group = fs.sb.inode_location(new.ino).unwrap().0;
    assert_eq!(group, Group(DAMAGED + 1));
}

#[test]
fn damaged_only_group_is_an_error_that_says_so() {
    let fs = Fs::make(Image::builder().size(16 << 20).features("^has_journal"));
    assert_eq!(fs.sb.group_count(), 1);
    flip(&fs, desc(&fs, 0).block_bitmap(), 400);
    flip(&fs, desc(&fs, 0).inode_bitmap(), 100);
    let one = request(Goal::Near(Pblk(0)), 1, 1);
    let result = fs.blocks.allocate(&mut fs.for_blocks(), &one);
    assert!(matches!(result, Err(Error::Checksum { .. })), "{result:?}");
    let result = fs
        .inodes
        .allocate(&mut fs.handle(3), Ino::ROOT, InodeKind::File);
    assert!(matches!(result, Err(Error::Checksum { .. })), "{result:?}");
}

#[test]
fn damaged_descriptor_only_its_group_is_lost() {
    let fs = subject("^has_journal");
    flip(&fs, fs.sb.descriptor_block(0), 64 * 2 + 0xC);
    let near = request(Goal::Near(fs.sb.group_first_block(Group(2))), 1, 1);
    let run = fs.blocks.allocate(&mut fs.for_blocks(), &near).unwrap();
    assert_eq!(fs.sb.group_of_block(run.start), Some(Group(3)));
}

#[test]
fn metadata_clear_in_the_bitmap_is_damage() {
    // Without checksums: the count agrees, but a table block is free and a data block is not.
    let fs = subject("^has_journal,^metadata_csum,^uninit_bg");
    let table = desc(&fs, 0).inode_table().0;
    let bitmap = desc(&fs, 0).block_bitmap();
    let file = File::options()
        .read(true)
        .write(true)
        .open(fs.image.path())
        .unwrap();
    let at = bitmap.0 * u64::from(fs.sb.block_size());
    let mut bytes = vec![0; 4096];
    file.read_exact_at(&mut bytes, at).unwrap();
    dioxide_format::bitmap::put(&mut bytes, table as usize, false);
    dioxide_format::bitmap::put(&mut bytes, 4000, true);
    file.write_all_at(&bytes, at).unwrap();
    let near = request(Goal::Append(Pblk(table)), 1, 1);
    let run = fs.blocks.allocate(&mut fs.for_blocks(), &near).unwrap();
    assert_ne!(fs.sb.group_of_block(run.start), Some(Group(0)));
}

#[test]
fn handle_too_small_leaves_everything_as_it_was() {
    for variant in VARIANTS {
        let fs = Fs::make(variant.builder());
        let three = request(Goal::Near(Pblk(0)), 3, 3);
        let run = fs.blocks.allocate(&mut fs.for_blocks(), &three).unwrap();
        let free = fs.blocks.free_clusters();
        for credits in [0, 1] {
            let refused = fs.blocks.allocate(&mut fs.handle(credits), &three);
            assert!(refused.is_err());
            let refused = fs
                .blocks
                .free(&mut fs.handle(credits), run, Release::After(1));
            assert!(refused.is_err());
            let refused = fs
                .inodes
                .allocate(&mut fs.handle(credits), Ino::ROOT, InodeKind::File);
            assert!(refused.is_err());
        }
        assert_eq!(fs.blocks.free_clusters(), free);
        assert_eq!(fs.blocks.available_clusters(Right::Map), free);
        assert_eq!(fs.blocks.pending_clusters(), 0);
        fs.blocks
            .free(&mut fs.for_blocks(), run, Release::Now)
            .unwrap();
        fs.finish();
    }
}

#[test]
fn uninit_flag_without_descriptor_checksums_does_not_count() {
    let fs = Fs::make(VARIANTS[7].builder());
    let near = request(Goal::Near(fs.sb.group_first_block(Group(1))), 4, 4);
    let run = fs.blocks.allocate(&mut fs.for_blocks(), &near).unwrap();
    let mut set = |_, desc: &mut GroupDesc| {
        desc.disk_mut().bg_flags = BLOCK_UNINIT;
        Ok(())
    };
    fs.blocks
        .groups
        .change_desc(&mut fs.handle(1), Group(1), &mut set)
        .unwrap();
    let again = request(Goal::Append(run.start), 1, 1);
    let other = fs.blocks.allocate(&mut fs.for_blocks(), &again).unwrap();
    assert_ne!(other.start, run.start);
    for run in [run, other] {
        fs.blocks
            .free(&mut fs.for_blocks(), run, Release::Now)
            .unwrap();
    }
    fs.finish();
}
