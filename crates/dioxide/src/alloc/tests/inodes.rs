//! The inode allocator.

use super::support::{Dump, Fs, Random, VARIANTS};
use crate::Error;
use crate::alloc::{Groups, InodeAllocator, InodeKind, NewInode};
use crate::txn::inode::TableBlock;
use dioxide_format::group_desc::{BLOCK_UNINIT, GroupDesc, INODE_UNINIT};
use dioxide_format::system_zone::SystemZone;
use dioxide_format::types::{Group, Ino, Pblk};
use dioxide_journal::Edit;
use dioxide_testkit::{Image, ImageBuilder};
use std::collections::HashSet;

fn allocate(fs: &Fs, parent: Ino, kind: InodeKind) -> Result<NewInode, Error> {
    let mut handle = fs.handle(InodeAllocator::ALLOCATE_CREDITS);
    fs.inodes.allocate(&mut handle, parent, kind)
}

fn free(fs: &Fs, ino: Ino, was_dir: bool) -> Result<(), Error> {
    let mut handle = fs.handle(InodeAllocator::FREE_CREDITS);
    let result = fs.inodes.free(&mut handle, ino, was_dir);
    assert!(result.is_ok() || handle.touched.is_empty());
    result
}

fn group(fs: &Fs, ino: Ino) -> Group {
    fs.sb.inode_location(ino).unwrap().0
}

/// Many groups with few inodes, four to a flex group.
fn spacious() -> ImageBuilder {
    Image::builder()
        .size(256 << 20)
        .features("^has_journal")
        .args(&["-g", "2048", "-G", "4", "-N", "8192"])
}

fn desc(fs: &Fs, group: u32) -> GroupDesc {
    Groups::new(fs.sb.clone(), SystemZone::default())
        .desc(&fs.handle(0), Group(group))
        .unwrap()
}

/// How many inodes at the end of each group were never used.
fn unused_inodes(fs: &Fs) -> Vec<u32> {
    let groups = 0..fs.sb.group_count();
    groups
        .map(|group| desc(fs, group).itable_unused())
        .collect()
}

#[test]
fn first_inode_of_a_group_writes_its_block_bitmap_too() {
    for (variant, features) in [(0, "metadata_csum"), (6, "uninit_bg")] {
        let fs = Fs::make(VARIANTS[variant].builder());
        let fresh = |group: &u32| desc(&fs, *group).flags() & BLOCK_UNINIT != 0;
        let fresh = (0..fs.sb.group_count()).find(fresh).expect(features);
        let parent = Ino(fresh * fs.sb.inodes_per_group() + 1);
        let new = allocate(&fs, parent, InodeKind::File).unwrap();
        assert_eq!(group(&fs, new.ino), Group(fresh));
        let flags = desc(&fs, fresh).flags();
        assert_eq!(flags & (BLOCK_UNINIT | INODE_UNINIT), 0, "{features}");
        free(&fs, new.ino, false).unwrap();
        fs.finish();
    }
}

#[test]
fn random_inodes_every_layout_agrees_with_the_model_and_e2fsck() {
    for (seed, variant) in VARIANTS.iter().enumerate() {
        eprintln!("{}, seed {seed}", variant.name);
        let fs = Fs::make(variant.builder());
        let before = Dump::of(&fs.image, fs.sb.cluster_ratio().into());
        let mut random = Random::new(seed as u64);
        let mut model = before.inodes.clone();
        let mut unused = unused_inodes(&fs);
        let mut used = Vec::new();
        for _ in 0..600 {
            if random.below(3) > 0 || used.is_empty() {
                let kind = [
                    InodeKind::File,
                    InodeKind::Directory,
                    InodeKind::TopDirectory,
                ][random.below(3) as usize];
                let parent = Ino(1 + random.below(fs.sb.inodes_count().into()) as u32);
                let new = allocate(&fs, parent, kind).unwrap();
                assert!(model.remove(&new.ino.0), "{new:?} was not free");
                assert!(new.ino >= fs.sb.first_ino());
                let (group, index) = fs.sb.inode_location(new.ino).unwrap();
                let rest = fs.sb.inodes_per_group() - index - 1;
                let unused = &mut unused[group.0 as usize];
                *unused = (*unused).min(rest);
                used.push((new.ino, kind != InodeKind::File));
            } else {
                let at = random.below(used.len() as u64) as usize;
                let (ino, was_dir) = used.swap_remove(at);
                free(&fs, ino, was_dir).unwrap();
                let again = free(&fs, ino, was_dir);
                assert!(matches!(again, Err(Error::Corrupt { .. })), "{again:?}");
                assert!(model.insert(ino.0));
            }
            assert_eq!(fs.inodes.free_inodes(), model.len() as u64);
        }
        if fs.sb.features().group_csum() {
            assert_eq!(unused_inodes(&fs), unused);
        }
        fs.write_back();
        let dump = Dump::of(&fs.image, fs.sb.cluster_ratio().into());
        assert!(dump.inodes == model, "dumpe2fs finds other inodes free");
        assert!(dump.blocks == before.blocks);
        let sum = |at: usize| dump.counts.iter().map(|counts| counts[at]).sum::<u64>();
        assert_eq!(sum(1), model.len() as u64);
        assert_eq!(sum(2), fs.inodes.directories());
        for (ino, was_dir) in used {
            free(&fs, ino, was_dir).unwrap();
        }
        fs.finish();
    }
}

#[test]
fn allocate_until_full_takes_every_inode_and_then_has_no_space() {
    for variant in [0, 4, 5] {
        let fs = Fs::make(VARIANTS[variant].builder());
        let mut free_inodes = Dump::of(&fs.image, 1).inodes;
        let mut used = Vec::new();
        loop {
            match allocate(&fs, Ino::ROOT, InodeKind::File) {
                Ok(new) => used.push(new.ino),
                Err(Error::NoSpace(_)) => break,
                Err(error) => panic!("{error}"),
            }
        }
        assert!(used.iter().all(|ino| free_inodes.remove(&ino.0)));
        assert!(free_inodes.is_empty());
        assert_eq!(fs.inodes.free_inodes(), 0);
        fs.write_back();
        assert!(Dump::of(&fs.image, 1).inodes.is_empty());
        // What is given back behind those in use is found again, wherever it is.
        let mut gone: Vec<Ino> = used.iter().copied().step_by(3).rev().collect();
        for &ino in &gone {
            free(&fs, ino, false).unwrap();
        }
        for _ in 0..gone.len() {
            let again = allocate(&fs, Ino::ROOT, InodeKind::File).unwrap().ino;
            gone.retain(|&ino| ino != again);
        }
        assert!(gone.is_empty());
        for ino in used {
            free(&fs, ino, false).unwrap();
        }
        fs.finish();
    }
}

#[test]
fn free_of_reserved_and_missing_inodes_is_corrupt() {
    let fs = Fs::make(VARIANTS[0].builder());
    let past = fs.sb.inodes_count() + 1;
    for ino in [0, 1, 2, 10, past, u32::MAX] {
        let result = free(&fs, Ino(ino), false);
        assert!(matches!(result, Err(Error::Corrupt { .. })), "{ino}");
    }
    fs.finish();
}

#[test]
fn top_directories_spread_over_flex_groups() {
    let fs = Fs::make(spacious());
    let units = fs.sb.group_count().div_ceil(4);
    let mut dirs = Vec::new();
    for _ in 0..units {
        dirs.push(
            allocate(&fs, Ino::ROOT, InodeKind::TopDirectory)
                .unwrap()
                .ino,
        );
    }
    let places: HashSet<u32> = dirs.iter().map(|&ino| group(&fs, ino).0 / 4).collect();
    // Not all: the first holds the metadata and the root.
    assert!(
        places.len() as u32 >= units / 2,
        "{} of {units}",
        places.len()
    );
    for ino in dirs {
        free(&fs, ino, true).unwrap();
    }
    fs.finish();
}

#[test]
fn files_lie_in_their_parents_group_until_it_is_full() {
    let fs = Fs::make(spacious());
    let parent = allocate(&fs, Ino::ROOT, InodeKind::TopDirectory).unwrap();
    let home = group(&fs, parent.ino);
    let per_group = fs.sb.inodes_per_group();
    let mut groups = Vec::new();
    let mut files = Vec::new();
    for _ in 0..per_group * 4 + 3 {
        let new = allocate(&fs, parent.ino, InodeKind::File).unwrap();
        groups.push(group(&fs, new.ino));
        files.push(new.ino);
    }
    let flex = |group: &Group| group.0 / 4 == home.0 / 4;
    assert!(groups[..per_group as usize - 1].iter().all(|g| *g == home));
    assert!(groups[..per_group as usize * 4 - 12].iter().all(flex));
    assert!(!flex(groups.last().unwrap()));
    for ino in files {
        free(&fs, ino, false).unwrap();
    }
    free(&fs, parent.ino, true).unwrap();
    fs.finish();
}

#[test]
fn directories_lie_near_their_parent_until_it_has_its_share() {
    let fs = Fs::make(spacious());
    let top = allocate(&fs, Ino::ROOT, InodeKind::TopDirectory).unwrap();
    let home = group(&fs, top.ino).0 / 4;
    let mut dirs = vec![top.ino];
    let mut near = 0;
    for _ in 0..fs.sb.inodes_per_group() {
        let new = allocate(&fs, top.ino, InodeKind::Directory).unwrap();
        near += u32::from(group(&fs, new.ino).0 / 4 == home);
        dirs.push(new.ino);
    }
    // A sixteenth of the flex group's inodes, and a little more as the average rises.
    let share = fs.sb.inodes_per_group() / 4;
    assert!(
        (share..=share + share / 2).contains(&near),
        "{near} of {share}"
    );
    for ino in dirs {
        free(&fs, ino, true).unwrap();
    }
    fs.finish();
}

/// The block of the inode table that holds an inode.
fn table_block(fs: &Fs, ino: Ino) -> (Pblk, usize) {
    let (group, index) = fs.sb.inode_location(ino).unwrap();
    let desc = fs.inodes.groups().desc(&fs.handle(0), group).unwrap();
    let at = index as usize * fs.sb.inode_size();
    let block_size = fs.sb.block_size() as usize;
    (
        Pblk(desc.inode_table().0 + (at / block_size) as u64),
        at % block_size,
    )
}

#[test]
fn first_inode_of_a_table_block_finds_zeros_and_others_keep_theirs() {
    let builder = Image::builder().size(256 << 20).features("^has_journal");
    let lazy = ["-E", "lazy_itable_init=1,nodiscard", "-g", "8192"];
    let fs = Fs::make(builder.args(&lazy));
    let noise = vec![0xEE; fs.sb.block_size() as usize];
    let parent = Ino(3 * fs.sb.inodes_per_group() + 1);
    let (block, _) = table_block(&fs, parent);
    fs.handle(1).create(block, &TableBlock, &noise).unwrap();
    let mut files = Vec::new();
    for number in 0..4u8 {
        let new = allocate(&fs, parent, InodeKind::File).unwrap();
        let (at, offset) = table_block(&fs, new.ino);
        assert_eq!(at, block);
        let mut edit = fs.handle(1);
        let bytes = edit.read(block, &TableBlock).unwrap();
        let others = (0..number)
            .map(usize::from)
            .map(|n| bytes[n * fs.sb.inode_size()]);
        assert!(
            others.eq(1..=number),
            "those before are as they were written"
        );
        assert!(bytes[offset..].iter().all(|&byte| byte == 0));
        let mut mark = |bytes: &mut [u8]| {
            bytes[offset] = number + 1;
            Ok(())
        };
        edit.modify(block, &TableBlock, &mut mark).unwrap();
        files.push(new.ino);
    }
    let clear = vec![0; noise.len()];
    fs.handle(1).create(block, &TableBlock, &clear).unwrap();
    for ino in files {
        free(&fs, ino, false).unwrap();
    }
    fs.finish();
}
