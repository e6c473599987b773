//! Files that are in the way of a smaller size are moved, and are the same after it.

use super::tree::{assert_kept, fill, of, seen, seen_by_kernel};
use super::{M, PROGRAMS, builder};
use crate::walk::{Tree, assert_same};
use dioxide::block::Device;
use dioxide::block::record::states::{Cache, CowDevice, Media, Options, Snapshot, States};
use dioxide::block::record::{Action, Log, RecordDevice};
use dioxide::format::journal::{BlockHeader, BlockType};
use dioxide::format::superblock::{STATE_CLEAN, SUPERBLOCK_OFFSET, SuperBlock};
use dioxide::resize::{ResizeOptions, Step, minimum, resize, resize_on, resize_telling};
use dioxide::{Error, Fs, MountOptions, NewFile, Special, XattrMode};
use dioxide_testkit::{Image, debugfs, e2fsck_clean, have_root, soaks};
use std::collections::{HashMap, HashSet};
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::sync::Arc;

/// Options of `mke2fs`, block size, and the size before in MiB.
const SETS: &[(&str, u32, u64)] = &[
    ("", 1024, 64),
    ("", 4096, 400),
    ("-O ^flex_bg", 1024, 64),
    ("-O ^metadata_csum,^64bit,uninit_bg -I 128", 1024, 64),
    ("-O ^has_journal", 1024, 64),
    (
        "-O inline_data,ea_inode,quota,project,orphan_file",
        1024,
        64,
    ),
    ("-O meta_bg,^resize_inode,sparse_super2", 1024, 64),
    ("-O bigalloc -C 16384", 1024, 256),
    ("-t ext2", 1024, 64),
    ("-t ext3", 1024, 64),
];

/// An image whose files lie behind `share` percent of it.
pub fn image(args: &str, block: u32, size: u64, share: u64, seed: u64) -> Image {
    let words: Vec<&str> = args.split_whitespace().collect();
    let image = builder(size * M, block).args(&["-N", "2048"]);
    let image = match words[..] {
        ["-t", fs_type, ..] => image.fs_type(fs_type).args(&words[2..]),
        _ => image.args(&words),
    };
    let image = image.build();
    fill(&image, share, seed);
    e2fsck_clean(image.path());
    image
}

/// Shrinks it, and has `e2fsck` look at it; what was done.
pub fn shrink(image: &Image, size: u64) -> HashSet<&'static str> {
    let steps = shrink_only(image, size);
    e2fsck_clean(image.path());
    steps
}

pub fn shrink_only(image: &Image, size: u64) -> HashSet<&'static str> {
    let mut steps = HashSet::new();
    let options = ResizeOptions::default();
    resize_telling(
        image.path(),
        Some(size),
        &options,
        &mut |step, done, total| {
            assert!(done <= total);
            steps.insert(match step {
                Step::Wait => "wait",
                Step::Survey => "survey",
                Step::Check => "check",
                Step::Inodes => "inodes",
                Step::Blocks => "blocks",
                Step::Write => "write",
            });
        },
    )
    .unwrap_or_else(|error| panic!("to {size}: {error}"));
    steps
}

pub fn compare(before: &Tree, image: &Image, block: u32) {
    assert_same(before, &seen(image.path()));
    if have_root()
        && let Some(tree) = seen_by_kernel(image.path(), block.into())
    {
        assert_same(&tree, before);
    }
}

#[test]
fn trees_at_the_end_are_the_same_after_shrinking_to_the_minimum_and_growing() {
    // All of them take their time.
    let sets = SETS.iter().step_by(if soaks() { 1 } else { 3 });
    for (seed, (args, block, size)) in (1..).zip(sets) {
        println!("{args} {block} {size}");
        let image = image(args, *block, *size, 60, seed);
        let before = seen(image.path());
        let least = minimum(image.path(), &ResizeOptions::default()).expect("there is one");
        assert!(least < size * M / 2, "{least}");
        let steps = shrink(&image, least);
        let always = ["survey", "check", "blocks", "write"];
        assert!(always.iter().all(|step| steps.contains(step)), "{steps:?}");
        // With clusters there are few groups, and what is left of them has all inodes.
        assert!(steps.contains("inodes") || args.contains("bigalloc"));
        compare(&before, &image, *block);
        resize(image.path(), Some(size * M), &ResizeOptions::default()).expect("it grows");
        e2fsck_clean(image.path());
        assert_same(&before, &seen(image.path()));
    }
}

#[test]
fn shrinking_in_steps_keeps_the_tree_at_each() {
    let image = image("", 1024, 64, 60, 42);
    let before = seen(image.path());
    let least = minimum(image.path(), &ResizeOptions::default()).expect("there is one");
    let mut size = 64 * M;
    while size > least {
        size = (size - 15 * M).max(least);
        shrink(&image, size);
        assert_same(&before, &seen(image.path()));
    }
}

/// The first block of a file.
fn block_of(image: &Image, name: &str) -> u64 {
    let fs = Fs::open(image.path(), &MountOptions::new().read_only(true)).expect("it opens");
    let file = dioxide::OpenOptions::new()
        .read(true)
        .open(&fs, name)
        .expect("a file");
    file.map(0, 1).expect("its map").pblk.0
}

#[test]
fn an_empty_file_system_shrinks_to_a_few_mib() {
    let image = builder(1024 * M, 4096).build();
    let least = minimum(image.path(), &ResizeOptions::default()).expect("there is one");
    // Most of it is the journal.
    assert!(least < 40 * M, "{least}");
    shrink(&image, least);
    assert!(minimum(image.path(), &ResizeOptions::default()).expect("there is one") <= least);
}

#[test]
fn what_cannot_be_moved_is_named_and_nothing_is_changed() {
    let options = ResizeOptions::default();
    let image = image("", 1024, 64, 60, 3);
    let least = minimum(image.path(), &options).expect("there is one");
    let before = std::fs::read(image.path()).expect("the image");
    let refused = |commands: &[&str], word: &str| {
        let image = image.copy();
        if !commands.is_empty() {
            debugfs(image.path(), commands);
        }
        let changed = std::fs::read(image.path()).expect("the image");
        let said = match resize(image.path(), Some(least), &options) {
            Err(error @ (Error::Unsupported(_) | Error::Invalid(_))) => error.to_string(),
            other => panic!("{word}: {other:?}"),
        };
        assert!(said.contains(word), "{said}");
        assert!(
            changed == std::fs::read(image.path()).expect("the image"),
            "{word}"
        );
    };
    refused(&["feature stable_inodes"], "stable_inodes");
    // A block in use that is said to be free.
    let free = format!("freeb {} 1", block_of(&image, "/large"));
    refused(&[&free], "run e2fsck");
    assert!(before == std::fs::read(image.path()).expect("the image"));
}

/// Blocks that are said to be free are not cut off before it is certain that nobody has them, though nothing is to be moved.
#[test]
fn what_would_only_be_cut_off_is_looked_at_too() {
    let image = builder(40 * M, 1024)
        .args(&["-g", "4096", "-N", "8192"])
        .build();
    let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
    let make = dioxide::OpenOptions::new().write(true).create_new(true);
    // Of files everywhere, one that lies behind what is to stay.
    let (mut others, mut last) = (Vec::new(), None);
    for number in 0.. {
        let name = format!("/{number}");
        let file = make.open(&fs, &name).expect("room");
        let allocated = file.allocate(dioxide::FallocateMode::Allocate, 0, 100 << 10);
        let run = file.map(0, 100).expect("its map");
        match run.len == 100 && run.pblk.0 > 32 << 10 {
            true if last.is_none() && allocated.is_ok() => last = Some(run.pblk.0),
            _ => others.push(name),
        }
        if allocated.is_err() {
            break;
        }
    }
    let removed = others.iter().try_for_each(|name| fs.remove_file(name));
    removed.expect("they are there");
    fs.close().expect("a clean end");
    e2fsck_clean(image.path());
    let last = last.expect("some file is there");
    debugfs(image.path(), &[&format!("freeb {last} 100")]);
    let before = std::fs::read(image.path()).expect("the image");
    let options = ResizeOptions::default();
    let error = resize(image.path(), Some(32 * M), &options).expect_err("there are errors");
    assert!(error.to_string().contains("run e2fsck"), "{error}");
    assert!(before == std::fs::read(image.path()).expect("the image"));
}

/// What may be on the device when the power fails, at moments of the whole of it.
#[test]
fn cut_anywhere_every_file_is_there() {
    for (args, journal) in [
        ("-J size=1 -g 4096 -N 1024", true),
        ("-J size=1 -g 1024 -N 1024", true),
        (
            "-J size=1 -g 4096 -N 1024 -O ^flex_bg,orphan_file,ea_inode",
            true,
        ),
        ("-J size=1 -g 4096 -N 1024 -O fast_commit", true),
        ("-O ^has_journal -g 4096 -N 1024", false),
        ("-t ext2 -g 4096 -N 1024", false),
    ] {
        println!("{args}");
        let words: Vec<&str> = args.split_whitespace().collect();
        let image = match words[..] {
            ["-t", fs_type, ..] => builder(20 * M, 1024).fs_type(fs_type).args(&words[2..]),
            _ => builder(20 * M, 1024).args(&words),
        };
        let image = image.build();
        fill(&image, 55, 11);
        let before = seen(image.path());
        let least = minimum(image.path(), &ResizeOptions::default()).expect("there is one");
        let descriptors = each_cut(&image, least / 1024, &mut |device, number, about| {
            let about = format!("{args}, {about}");
            recover(device, &before, journal, number % 2 == 0, &about);
        });
        // More tags than a block has room for.
        assert!(descriptors > 1 || !journal, "{args}: {descriptors}");
    }
}

/// Directories that have directories move one by one without a journal: what is in one of them loses its names at most.
#[test]
fn cut_while_directories_get_numbers_leaves_names_of_all_but_one() {
    let image = builder(16 * M, 1024).args(&["-O", "^has_journal", "-N", "1024", "-g", "512"]);
    let image = image.build();
    let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
    let new = NewFile::new(0o755);
    fs.create_dir("/low", &new).expect("room");
    let low = |n| format!("/low/{n}");
    for n in 0..600 {
        fs.mknod(low(n), Special::Fifo, &new).expect("room");
    }
    fs.create_dir("/tree", &new).expect("room");
    for n in 0..40 {
        fs.create_dir(format!("/tree/{n}"), &new).expect("room");
        fs.create_dir(format!("/tree/{n}/in"), &new).expect("room");
        fs.mknod(format!("/tree/{n}/in/f"), Special::Fifo, &new)
            .expect("room");
    }
    for n in 0..600 {
        fs.remove_file(low(n)).expect("it goes");
    }
    fs.close().expect("a clean end");
    let before = seen(image.path());
    let least = minimum(image.path(), &ResizeOptions::default()).expect("there is one");
    let (mut cut, mut lost) = (0, 0);
    each_cut(&image, least / 1024, &mut |device, _, about| {
        let image = image_of(device);
        if !is_clean(device) {
            cut += 1;
            e2fsck(&image, "-fy", about);
        }
        e2fsck_clean(image.path());
        let after = seen(image.path());
        let gone = before.keys().filter(|path| !after.contains_key(*path));
        let gone = gone.count();
        // One directory in it, and the file in that.
        assert!(gone <= 2, "{about}: {gone} names are gone");
        lost += gone;
    });
    assert!(cut > 0, "it was marked as clean meanwhile");
    println!("{cut} cuts, {lost} names lost");
}

/// Shrinks it to `blocks` blocks, and calls `each` with what is there when the power fails meanwhile: at each call the
/// number of the state, and its name. How many descriptor blocks a transaction had at most.
pub fn each_cut(
    image: &Image,
    blocks: u64,
    each: &mut dyn FnMut(&CowDevice, usize, &str),
) -> usize {
    let (base, log) = recorded(image, blocks);
    let most = if soaks() { 400 } else { 12 };
    let states = States::new(&log, options());
    let moments = states.moments();
    let mut states = states.every(moments / most).peekable();
    let mut media = Media::new(base, &log, Cache::Volatile);
    let mut number = 0;
    while let Some(mut state) = states.next() {
        // One of each moment: any with the same chance.
        let mut seen = 1;
        while let Some(other) = states.next_if(|other| other.at == state.at) {
            seen += 1;
            if splitmix(state.at ^ seen << 32).is_multiple_of(seen) {
                state = other;
            }
        }
        let (device, _) = media.crash(&state).expect("a state of this log");
        each(
            &device,
            number,
            &format!("state {state}, {moments} moments"),
        );
        number += 1;
    }
    most_descriptors(&log)
}

/// What is there before it is resized to `blocks` blocks, and what is written meanwhile.
pub fn recorded(image: &Image, blocks: u64) -> (Snapshot, Log) {
    let base = Snapshot::new(&std::fs::read(image.path()).expect("the image"));
    let record = Arc::new(RecordDevice::new(Arc::new(CowDevice::new(
        &base,
        Cache::Volatile,
    ))));
    let device: Arc<dyn Device> = record.clone();
    resize_on(
        &device,
        blocks,
        &ResizeOptions::default(),
        &mut |_, _, _| (),
    )
    .expect("it can be resized");
    drop(device);
    (base, record.take_log())
}

/// Descriptor blocks of the transaction that has the most.
fn most_descriptors(log: &Log) -> usize {
    let mut of: HashMap<u32, HashSet<u64>> = HashMap::new();
    for entry in log.entries() {
        let Action::Write { offset, bytes, .. } = &entry.action else {
            continue;
        };
        for (at, block) in (*offset..).step_by(1024).zip(bytes.chunks(1024)) {
            if let Some((BlockType::Descriptor, tid)) = BlockHeader::of(block) {
                of.entry(tid.0).or_default().insert(at);
            }
        }
    }
    of.values().map(HashSet::len).max().unwrap_or(0)
}

pub fn options() -> Options {
    Options {
        exhaustive: 2,
        samples: 3,
        torn: 1,
        // The first sector of the superblock.
        whole: std::iter::once(0..4096).collect(),
        ..Options::default()
    }
}

fn splitmix(number: u64) -> u64 {
    let number = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let number = (number ^ number >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    number ^ number >> 27
}

/// Whether the superblock says that it is clean.
pub fn is_clean(device: &CowDevice) -> bool {
    superblock(device).state() & STATE_CLEAN != 0
}

pub fn superblock(device: &CowDevice) -> SuperBlock {
    let mut bytes = dioxide::block::Buf::zeroed(4096);
    device.read_at(0, &mut bytes).expect("it reads");
    SuperBlock::parse(&bytes[SUPERBLOCK_OFFSET as usize..]).expect("a superblock")
}

/// What is on a device.
pub fn image_of(device: &CowDevice) -> Image {
    let image = Image::blank(dioxide_testkit::Dir::Tmpfs, device.geometry().size_bytes);
    let file = std::fs::OpenOptions::new()
        .write(true)
        .open(image.path())
        .expect("the image");
    device.snapshot().write_sparse(&file, 0).expect("room");
    image
}

/// What comes after a crash: where the superblock says *clean*, a replay is enough, by us or by `e2fsck`.
fn recover(device: &CowDevice, before: &Tree, journal: bool, by_us: bool, about: &str) {
    let clean = is_clean(device);
    if clean && by_us {
        let fs = Fs::open_device(Arc::new(device.clone()), &MountOptions::new()).expect("it opens");
        assert_eq!(fs.read_only(), None, "{about}: {:?}", fs.warnings());
        assert_same(before, &of(&fs));
        fs.close().expect("it closes");
    }
    let image = image_of(device);
    if !(clean && by_us) {
        e2fsck(&image, if clean { "-p" } else { "-fy" }, about);
    }
    e2fsck_clean(image.path());
    match journal {
        true => assert_same(before, &seen(image.path())),
        false => assert_kept(before, &seen(image.path()), about),
    }
}

/// Has `e2fsck` mend it.
pub fn e2fsck(image: &Image, how: &str, about: &str) {
    let fixed = Command::new("e2fsck")
        .env("PATH", PROGRAMS)
        .arg(how)
        .arg(image.path())
        .output()
        .expect("e2fsck");
    let said = String::from_utf8_lossy(&fixed.stdout);
    assert!(
        fixed.status.code().is_some_and(|code| code <= 1),
        "{about}: {said}"
    );
}

#[test]
fn names_of_a_large_directory_that_moves_are_found() {
    // More blocks than a transaction of such a journal has.
    let image = builder(64 * M, 1024)
        .args(&["-J", "size=1", "-N", "8192"])
        .build();
    fill(&image, 70, 5);
    let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
    let last = (0..40).map(|n| format!("/spread{n}"));
    let last: Vec<String> = last.collect();
    for dir in &last {
        fs.create_dir(dir, &NewFile::new(0o755))
            .expect("a directory");
    }
    let far = last
        .iter()
        .max_by_key(|dir| fs.metadata(dir).expect("it").ino)
        .expect("some");
    for n in 0..3000 {
        let name = format!("{far}/{n} {}", "long".repeat(40));
        fs.symlink("x", name, &NewFile::default()).expect("a name");
    }
    for n in 0..300 {
        fs.create_dir(format!("{far}/dir{n}"), &NewFile::new(0o755))
            .expect("a directory");
    }
    fs.close().expect("it closes");
    let before = seen(image.path());
    let least = minimum(image.path(), &ResizeOptions::default()).expect("there is one");
    shrink(&image, least);
    assert_same(&before, &seen(image.path()));
}

/// Linux leaves a tree as high as it was when a file gets shorter: what is left would fit in the inode.
#[test]
fn leaf_at_the_end_of_a_file_that_would_do_without_moves() {
    let image = builder(64 * M, 1024).build();
    let block = |at: u64| vec![at as u8 + 1; 1024];
    let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
    let file = dioxide::OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .open(&fs, "/short")
        .expect("a file");
    for at in (0..12).step_by(2) {
        file.write_at(&block(at), at * 1024).expect("room");
    }
    drop(file);
    fs.close().expect("it closes");
    debugfs(image.path(), &["punch /short 4"]);
    let leaf = leaf_of(&debugfs(image.path(), &["ex /short"]));
    let last = 64 * 1024 - 1;
    let bytes = std::fs::read(image.path()).expect("the image");
    let bytes = &bytes[leaf as usize * 1024..][..1024];
    let device = std::fs::File::options().write(true).open(image.path());
    let device = device.expect("the image");
    device.write_all_at(bytes, last * 1024).expect("it writes");
    drop(device);
    let commands = [
        format!("sif /short block[4] {last}"),
        format!("setb {last}"),
        format!("freeb {leaf}"),
    ];
    debugfs(image.path(), &commands);
    // The counts of the two groups.
    let mut e2fsck = Command::new("e2fsck");
    e2fsck.env("PATH", PROGRAMS).arg("-fy");
    e2fsck.args(["-E", "no_optimize_extents"]).arg(image.path());
    e2fsck.output().expect("e2fsck");
    e2fsck_clean(image.path());
    assert_eq!(leaf_of(&debugfs(image.path(), &["ex /short"])), last);
    shrink(&image, 48 * M);
    let fs = Fs::open(image.path(), &MountOptions::new().read_only(true)).expect("it opens");
    let mut read = vec![0; 3 * 1024];
    let file = dioxide::OpenOptions::new().read(true).open(&fs, "/short");
    file.expect("it is there")
        .read_at(&mut read, 0)
        .expect("it reads");
    assert!(read == [block(0), vec![0; 1024], block(2)].concat());
}

/// Lustre's values of attributes name their owner by its number, and have neither hash nor count.
#[test]
fn values_that_lustre_wrote_name_their_owner_when_that_has_another_number() {
    for args in ["-O ea_inode", "-O ea_inode,^metadata_csum,^has_journal"] {
        let image = image(args, 1024, 64, 60, 8);
        let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
        // At the top directories are spread over the groups.
        let names = (0..40).map(|n| {
            let dir = format!("/spread{n}");
            fs.create_dir(&dir, &NewFile::new(0o755)).expect("room");
            let name = format!("{dir}/file");
            let file = dioxide::OpenOptions::new().write(true).create_new(true);
            file.open(&fs, &name).expect("room");
            name
        });
        let name = names.max_by_key(|name| fs.metadata(name).expect("it is there").ino);
        let name = name.expect("some");
        fs.set_xattr(&name, "user.large", &[5; 2500], XattrMode::Set)
            .expect("room");
        fs.close().expect("it closes");
        let inodes: Vec<_> = (11..=2048).map(|ino| format!("stat <{ino}>")).collect();
        let value = debugfs(image.path(), &inodes);
        let value = value.split("Inode: ").find(|stat| {
            let word = |name: &str| stat.split_once(name)?.1.split_whitespace().next();
            let flags = word("Flags: ").and_then(|hex| u32::from_str_radix(&hex[2..], 16).ok());
            flags.is_some_and(|flags| flags & 0x20_0000 != 0) && word("Size: ") == Some("2500")
        });
        let value = value.and_then(|stat| stat.split_whitespace().next());
        let value = value.expect("an inode that holds a value");
        let stat = debugfs(image.path(), &[format!("stat {name}")]);
        let of = |name: &str| {
            let rest = stat.split_once(name).expect("it tells that").1;
            rest.split_whitespace().next().expect("a word").to_owned()
        };
        let (owner, generation) = (of("Inode: "), of("Generation: "));
        let sectors: u64 = of("Blockcount: ").parse().expect("a number");
        let commands = [
            format!("sif <{value}> mtime @{owner}"),
            format!("sif <{value}> generation {generation}"),
            format!("sif <{value}> atime @1600000000"),
            format!("sif <{value}> ctime @1600000000"),
            // Nor is one counted among the blocks of its owner.
            format!("sif <{owner}> blocks {}", sectors - 6),
        ];
        debugfs(image.path(), &commands);
        e2fsck_clean(image.path());
        let before = seen(image.path());
        let options = ResizeOptions::default();
        resize(image.path(), Some(80 * M), &options).expect("it grows");
        e2fsck_clean(image.path());
        let least = minimum(image.path(), &options).expect("there is one");
        assert!(shrink(&image, least).contains("inodes"));
        assert_same(&before, &seen(image.path()));
        let moved = debugfs(image.path(), &[format!("stat {name}")]);
        assert!(!moved.contains(&format!("Inode: {owner} ")), "{moved}");
    }
}

/// A run of blocks over more groups than a transaction of a small journal has credits for, and very many runs.
#[test]
fn files_over_very_many_groups_move_in_pieces() {
    let args = ["-g", "256", "-J", "size=1", "-O", "^resize_inode"];
    let image = builder(64 * M, 1024).args(&args).build();
    let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
    let make = |name| {
        let made = dioxide::OpenOptions::new().write(true).create_new(true);
        made.open(&fs, name).expect("a file")
    };
    let (filler, large, pieces) = (make("/filler"), make("/large"), make("/pieces"));
    let allocate = dioxide::FallocateMode::Allocate;
    filler.allocate(allocate, 0, 28 * M).expect("room");
    for at in 0..20 {
        let bytes = vec![at as u8 + 1; M as usize];
        large.write_at(&bytes, at * M).expect("room");
    }
    pieces.write_at(&vec![7; 4 * M as usize], 0).expect("room");
    for at in (0..4 * M).step_by(2048) {
        let punch = dioxide::FallocateMode::PunchHole;
        pieces.allocate(punch, at, 1024).expect("a hole");
    }
    drop((filler, large, pieces));
    fs.remove_file("/filler").expect("it goes");
    fs.close().expect("it closes");
    let before = seen(image.path());
    assert!(shrink(&image, 40 * M).contains("blocks"));
    compare(&before, &image, 1024);
}

/// The block of the only leaf, from debugfs's list of a file's extents.
fn leaf_of(listing: &str) -> u64 {
    let root = listing
        .lines()
        .find(|line| line.trim_start().starts_with("0/ 1"));
    let words = root.expect("a tree of two levels").split_whitespace();
    // The line ends with the range of the file, the block, and how many blocks of the file it is for.
    let numbers: Vec<u64> = words.filter_map(|word| word.parse().ok()).collect();
    numbers[numbers.len() - 2]
}
