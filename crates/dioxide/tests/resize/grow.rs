//! Larger.

use super::relocate::{e2fsck, image_of, is_clean, options, recorded, superblock};
use super::tree::{fill, seen};
use super::{M, change_superblock, geometry, image, kernel_reads, resize2fs, set_len};
use crate::walk::assert_same;
use dioxide::block::record::states::{Cache, Media, States};
use dioxide::format::features::{Compat, Incompat};
use dioxide::resize::{ResizeOptions, Step, resize, resize_telling};
use dioxide::{Error, Fs, MountOptions, OpenOptions};
use dioxide_testkit::memory::peak_of;
use dioxide_testkit::{Dir, debugfs, e2fsck_clean, each_case, one_in};

/// Options of `mke2fs`, block size, and sizes before and after in MiB.
const SETS: &[(&str, u32, u64, u64)] = &[
    ("", 4096, 100, 120),
    ("", 4096, 100, 700),
    ("", 1024, 100, 900),
    ("", 1024, 20, 21),
    ("", 2048, 64, 500),
    ("-O ^flex_bg", 1024, 100, 300),
    ("-O ^flex_bg,^metadata_csum,uninit_bg", 1024, 100, 300),
    ("-O ^metadata_csum,^uninit_bg", 1024, 100, 300),
    ("-O ^64bit", 1024, 100, 300),
    ("-O sparse_super2", 1024, 60, 300),
    ("-O sparse_super2", 1024, 7, 60),
    ("-O sparse_super2", 1024, 7, 14),
    ("-O sparse_super2", 1024, 14, 30),
    ("-O ^sparse_super,^resize_inode", 1024, 60, 120),
    ("-O ^has_journal", 1024, 60, 200),
    ("-O meta_bg,^resize_inode", 1024, 100, 500),
    ("-G 4", 1024, 60, 300),
    ("-G 64 -N 20000", 1024, 60, 300),
    ("-t ext2", 1024, 60, 300),
    ("-t ext3", 4096, 60, 300),
    ("-O orphan_file,quota,project,inline_data", 1024, 60, 300),
    ("-O ea_inode,metadata_csum_seed", 4096, 60, 300),
    ("-I 128 -m 10", 1024, 60, 111),
];

#[test]
fn growth_within_the_blocks_kept_gives_the_layout_of_resize2fs() {
    let mut wrong = Vec::new();
    for (args, block, before, after) in SETS {
        let ours = image(before * M, *block, args);
        let theirs = ours.copy();
        set_len(theirs.path(), after * M);
        resize2fs(theirs.path(), after * M);
        println!("{args} {block} {before} {after}");
        resize(ours.path(), Some(after * M), &ResizeOptions::default()).expect("it grows");
        e2fsck_clean(ours.path());
        let (a, b) = (geometry(ours.path()), geometry(theirs.path()));
        let lines = a.iter().zip(&b).filter(|(a, b)| a != b);
        let lines: Vec<_> = lines.take(6).collect();
        if !lines.is_empty() || a.len() != b.len() {
            wrong.push(format!("{args} -b {block} {before} to {after}: {lines:#?}"));
        }
        kernel_may_read(args, &ours);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Where tables are zeroed and where they are not: nothing was told of the longer part.
#[test]
fn growth_tells_how_far_its_writing_is_up_to_the_end() {
    for args in ["", "-t ext2", "-O bigalloc -C 16384"] {
        let image = image(60 * M, 1024, args);
        let mut told = Vec::new();
        let mut tell = |step, done, total| {
            if step == Step::Write {
                told.push((done, total));
            }
        };
        resize_telling(
            image.path(),
            Some(300 * M),
            &ResizeOptions::default(),
            &mut tell,
        )
        .expect("it grows");
        let (_, total) = told[0];
        assert!(told.iter().all(|of| of.1 == total), "{args}: {told:?}");
        assert!(told.windows(2).all(|two| two[0].0 < two[1].0), "{args}");
        assert_eq!(told.last(), Some(&(total, total)), "{args}");
        e2fsck_clean(image.path());
    }
}

/// What `resize2fs` does otherwise: it moves files out of the way of descriptors, and gives each bitmap
/// a cluster of its own.
const OTHER_SETS: &[(&str, u32, u64, u64)] = &[
    ("-O bigalloc -C 16384", 4096, 1000, 3000),
    ("-O bigalloc -C 4096", 1024, 300, 900),
    ("-O ^resize_inode", 1024, 60, 800),
    ("-O ^resize_inode,^flex_bg,^metadata_csum", 1024, 60, 800),
    ("-O ^sparse_super,^resize_inode", 1024, 60, 400),
    ("-E resize=120000", 1024, 60, 900),
];

#[test]
fn growth_beyond_the_blocks_kept_or_with_clusters_is_clean() {
    for (args, block, before, after) in OTHER_SETS {
        println!("{args} {block} {before} {after}");
        let image = match args.strip_prefix("-E ") {
            Some(option) => super::filled(super::builder(before * M, *block).extended(option)),
            None => image(before * M, *block, args),
        };
        let options = ResizeOptions::default();
        resize(image.path(), Some(after * M), &options).expect("it grows");
        e2fsck_clean(image.path());
        kernel_may_read(args, &image);
        // And once more, with what came of the first.
        resize(image.path(), Some((after + after / 3) * M), &options).expect("it grows again");
        e2fsck_clean(image.path());
    }
}

/// Meta groups are a feature, and it has none before.
#[test]
fn growth_of_revision_0_beyond_the_blocks_kept_is_clean() {
    let before = super::builder(16 * M, 1024).fs_type("ext2");
    let image = super::filled(before.args(&["-r", "0", "-O", "none"]));
    let options = ResizeOptions::default();
    resize(image.path(), Some(400 * M), &options).expect("it grows");
    e2fsck_clean(image.path());
    let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
    let disk = fs.superblock().disk().clone();
    assert_eq!(
        (disk.s_rev_level, disk.s_first_ino, disk.s_inode_size),
        (1, 11, 128)
    );
}

#[test]
fn growth_of_what_is_not_clean_is_refused_and_changes_nothing() {
    let image = image(60 * M, 4096, "");
    debugfs(image.path(), &["ssv state 0"]);
    let before = std::fs::read(image.path()).expect("the image");
    let refused = resize(image.path(), Some(90 * M), &ResizeOptions::default());
    assert!(
        matches!(refused, Err(dioxide::Error::Busy(_))),
        "{refused:?}"
    );
    assert!(std::fs::read(image.path()).expect("the image") == before);
}

/// Metadata of new groups go where old bitmaps say that nothing is: those bitmaps have to be right.
#[test]
fn growth_over_blocks_of_a_file_that_are_said_to_be_free_is_refused_and_changes_nothing() {
    let options = ResizeOptions::default();
    for args in ["", "-O ^metadata_csum,^uninit_bg"] {
        let image = image(20 * M, 1024, args);
        let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
        let make = OpenOptions::new().write(true).create_new(true);
        let file = make.open(&fs, "/large").expect("a file");
        // All that is free of the first group, in which the metadata of all of the flex group lie, and more.
        file.write_at(&vec![9; 12 * M as usize], 0).expect("room");
        let run = file.map(0, 12 << 10).expect("its map");
        drop(file);
        fs.close().expect("it closes");
        e2fsck_clean(image.path());
        debugfs(image.path(), &[format!("freeb {} {}", run.pblk.0, run.len)]);
        let before = std::fs::read(image.path()).expect("the image");
        let refused = resize(image.path(), Some(60 * M), &options);
        assert!(
            std::fs::read(image.path()).expect("the image") == before,
            "{args}: {refused:?}"
        );
        match refused {
            Err(Error::Invalid(what)) => {
                assert!(what.contains("[block-bitmap]"), "{what}");
                assert!(what.contains("run e2fsck"), "{what}");
            }
            other => panic!("{args}: {other:?}"),
        }
    }
}

/// It could not be raised, and the error did not name it.
#[test]
fn memory_of_the_check_is_bounded_and_the_error_tells_by_what() {
    let image = image(60 * M, 1024, "");
    let before = std::fs::read(image.path()).expect("the image");
    // Too little from the start, and for the inodes of a group.
    for max_memory in [0, 4096] {
        let options = ResizeOptions {
            max_memory,
            ..ResizeOptions::default()
        };
        for size in [40 * M, 90 * M] {
            let refused = resize(image.path(), Some(size), &options).expect_err("too little");
            let words = format!("needs more than {max_memory} bytes of memory (--max-memory)");
            assert!(refused.to_string().contains(&words), "{refused}");
            let now = std::fs::read(image.path()).expect("the image");
            assert!(now == before, "{max_memory}, {size}");
        }
    }
    let options = ResizeOptions {
        max_memory: 1 << 20,
        ..ResizeOptions::default()
    };
    resize(image.path(), Some(90 * M), &options).expect("it is enough");
}

#[test]
fn growth_to_the_same_size_changes_nothing() {
    let image = image(60 * M, 4096, "");
    let before = std::fs::read(image.path()).expect("the image");
    let same = resize(image.path(), None, &ResizeOptions::default()).expect("it is so large");
    assert_eq!(same.before, same.after);
    assert!(std::fs::read(image.path()).expect("the image") == before);
}

/// The pointers of the resize inode have 32 bits: there is none then, but meta groups if descriptors are too many.
#[test]
fn growth_beyond_32_bits_goes_without_the_resize_inode() {
    // The second has as many blocks of descriptors as were kept.
    for (args, resize_to, size, meta_groups) in [
        ("-O ^bigalloc", 1 << 20, (1 << 44) + 1024 * M, true),
        ("-O bigalloc -C 65536", u64::from(u32::MAX), 1 << 44, false),
    ] {
        let words: Vec<&str> = args.split_whitespace().collect();
        let image = super::builder(256 * M, 4096).dir(Dir::Tmpfs);
        let image = image.args(&["-N", "64"]).args(&words);
        let image = super::filled(image.extended(&format!("resize={resize_to}")));
        let done = resize(image.path(), Some(size), &ResizeOptions::default());
        let after = done.expect("it grows").after;
        assert_eq!(after.blocks_count(), size / 4096);
        let features = after.features();
        assert!(!features.compat.contains(Compat::RESIZE_INODE));
        assert_eq!(features.incompat.contains(Incompat::META_BG), meta_groups);
        e2fsck_clean(image.path());
        kernel_may_read(args, &image);
    }
    let image = image(60 * M, 4096, "-O ^64bit");
    let refused = resize(image.path(), Some(1 << 44), &ResizeOptions::default());
    match refused {
        Err(Error::Invalid(what)) => assert!(what.contains("need 64bit"), "{what}"),
        other => panic!("{other:?}"),
    }
}

/// Bitmaps of new groups are not all in memory at the same time.
#[test]
fn growth_by_many_groups_takes_little_memory() {
    let image =
        super::builder(128 * M, 4096).args(&["-N", "64", "-O", "^metadata_csum,^uninit_bg"]);
    let image = super::filled(image.dir(Dir::Tmpfs));
    let options = ResizeOptions::default();
    let peak = peak_of(|| {
        resize(image.path(), Some(256 << 30), &options).expect("it grows");
    });
    // There are 2048 groups, with two bitmaps each.
    assert!(peak < 4 << 20, "{peak} bytes");
    e2fsck_clean(image.path());
}

/// More sectors than an inode counts.
#[test]
fn growth_with_a_resize_inode_that_would_be_too_large_is_refused() {
    let image = super::builder(1 << 40, 4096).dir(Dir::Tmpfs);
    let image = image.args(&[
        "-N",
        "64",
        "-g",
        "256",
        "-C",
        "536870912",
        "-O",
        "bigalloc,^huge_file,^has_journal",
    ]);
    let image = image.build();
    let sb = change_superblock(image.path(), |sb| sb.s_reserved_gdt_blocks = 1024);
    let blocks = sb.blocks_count() + 5 * u64::from(sb.blocks_per_group());
    match resize(image.path(), Some(blocks * 4096), &ResizeOptions::default()) {
        Err(Error::Unsupported(what)) => assert!(what.contains("sectors"), "{what}"),
        other => panic!("{other:?}"),
    }
}

/// Options of `mke2fs`, and sizes before and after in MiB. Most have small groups, so that there are more blocks of descriptors.
const CUTS: &[(&str, u64, u64)] = &[
    ("-g 1024", 12, 20),
    ("-g 1024 -E resize=30000", 12, 36),
    ("-g 1024 -O ^resize_inode", 12, 20),
    ("-g 1024 -O meta_bg,^resize_inode", 12, 20),
    ("-g 1024 -O ^metadata_csum,^uninit_bg", 12, 20),
    ("-g 1024 -O sparse_super2,orphan_file", 12, 20),
    ("-O ^flex_bg,^metadata_csum,uninit_bg", 12, 20),
    ("-O bigalloc -C 4096", 12, 40),
    ("-t ext2 -g 1024", 12, 20),
    ("-t ext3", 12, 20),
];

/// What is left is as large as it was and has to be brought in order, or is done; every file is as it was.
#[test]
fn growth_cut_anywhere_leaves_what_e2fsck_makes_as_it_was() {
    each_case(CUTS, |(args, from, to)| {
        let (args, extended) = args.split_once(" -E ").unwrap_or((args, ""));
        let words: Vec<&str> = args.split_whitespace().collect();
        let image = super::builder(from * M, 1024).args(&["-N", "768"]);
        let image = match words[..] {
            ["-t", fs_type, ..] => image.fs_type(fs_type).args(&words[2..]),
            _ => image.args(&words),
        };
        let image = match extended {
            "" => image.build(),
            option => image.extended(option).build(),
        };
        fill(&image, 20, 13);
        e2fsck_clean(image.path());
        let before = seen(image.path());
        set_len(image.path(), to * M);
        let (base, log) = recorded(&image, to << 10);
        let mut media = Media::new(base, &log, Cache::Volatile);
        let mut states = States::new(&log, options());
        let entries = log.entries().len();
        let end = 2 * entries as u64;
        let few = one_in(1 + entries / 24) as u64;
        let random = one_in(8) * entries / 2;
        // As it was, in between, and done.
        let mut met = [0; 3];
        for number in 0.. {
            let Some(state) = states.next() else {
                break;
            };
            // Where few writes are not certain, if it is right.
            let at_an_end = state.at < 4 || state.at + 4 >= end;
            let in_order = states.is_in_order(&state);
            let of_few = in_order && state.at / 2 % few == 0;
            if !(at_an_end || of_few || number % random == 0) {
                continue;
            }
            let (device, _) = media.crash(&state).expect("a state of this log");
            let about = format!("{args} {extended}, state {state}");
            let blocks = superblock(&device).blocks_count();
            let (clean, grown) = (is_clean(&device), blocks > from << 10);
            assert!(clean || !grown, "{about}: {blocks} blocks");
            met[usize::from(!clean) + 2 * usize::from(grown)] += 1;
            let image = image_of(&device);
            if !clean {
                e2fsck(&image, "-fy", &about);
            }
            e2fsck_clean(image.path());
            assert_same(&before, &seen(image.path()));
            if met[1] % 8 == 1 {
                let done = resize(image.path(), Some(to * M), &ResizeOptions::default());
                done.unwrap_or_else(|error| panic!("{about}: {error}"));
                e2fsck_clean(image.path());
                assert_same(&before, &seen(image.path()));
            }
        }
        println!("{args} {extended}: {met:?} of {entries} writes");
        assert!(met.iter().all(|met| *met > 0), "{args}: {met:?}");
    });
}

/// What needs no more than this kernel has.
fn kernel_may_read(args: &str, image: &dioxide_testkit::Image) {
    if !["quota", "mmp"].iter().any(|word| args.contains(word)) {
        kernel_reads(image);
        e2fsck_clean(image.path());
    }
}

/// What lies behind a partition is somebody's.
#[test]
fn size_of_a_file_system_inside_an_image_has_to_be_said() {
    let alone = image(32 * M, 1024, "");
    let bytes = std::fs::read(alone.path()).expect("the image");
    let file = tempfile::NamedTempFile::new().expect("a file");
    let whole = [vec![0; M as usize], bytes, vec![9; 16 * M as usize]].concat();
    std::fs::write(file.path(), &whole).expect("room");
    let options = ResizeOptions {
        img_offset: M,
        ..ResizeOptions::default()
    };
    match resize(file.path(), None, &options) {
        Err(Error::Invalid(what)) => assert!(what.contains("has to be said"), "{what}"),
        other => panic!("{other:?}"),
    }
    assert!(std::fs::read(file.path()).expect("it") == whole);
    let done = resize(file.path(), Some(24 * M), &options).expect("it shrinks");
    assert_eq!(done.after.blocks_count(), 24 * 1024);
    let after = std::fs::read(file.path()).expect("it");
    assert!(after[33 * M as usize..] == whole[33 * M as usize..]);
    std::fs::write(alone.path(), &after[M as usize..25 * M as usize]).expect("room");
    e2fsck_clean(alone.path());
}
