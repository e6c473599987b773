//! What lacks a block for a map gets one that is free as soon as what frees it is committed.

use crate::variants::image_with;
use dioxide::block::Device;
use dioxide::block::file::FileOptions;
use dioxide::block::record::RecordDevice;
use dioxide::block::sim::{Fault, FaultKind, FaultOp, SimDevice, SimSpec};
use dioxide::{
    Buf, FallocateMode, File, Fs, MountOptions, NewFile, OpenOptions, Policy, QueueOptions,
    XattrMode, block,
};
use dioxide_testkit::{Image, ImageBuilder, e2fsck_clean};
use std::sync::Arc;
use std::time::Duration;

const KIB: u64 = 1024;

/// Nothing is committed but by who asks for it.
fn options() -> MountOptions {
    MountOptions::new().commit_interval(Duration::from_secs(3600))
}

fn open_fs(image: &Image) -> Fs {
    Fs::open(image.path(), &options()).expect("it opens")
}

fn device_of(image: &Image) -> Arc<dyn Device> {
    let writable = FileOptions {
        write: true,
        ..FileOptions::default()
    };
    block::file::open(image.path(), &writable).expect("nobody has it open")
}

/// On a device that can hold requests.
fn open_held(image: &Image, options: &MountOptions) -> (Fs, SimDevice) {
    let sim = SimDevice::new(device_of(image), SimSpec::default());
    let fs = Fs::open_device(Arc::new(sim.clone()), options).expect("it opens");
    (fs, sim)
}

/// ext2: 12 blocks have their place in the inode, the next one takes a block of pointers.
fn ext2() -> ImageBuilder {
    let builder = Image::builder().features("^extents,^64bit");
    builder.args(&["-m", "0"])
}

fn open(fs: &Fs, name: &str) -> File {
    let options = OpenOptions::new().read(true).write(true);
    options.open(fs, name).expect("it exists")
}

/// A file system of blocks of 1 KiB with so many blocks of "filler" at its end, and otherwise full; all is committed.
fn filled(builder: ImageBuilder, names: &[&str]) -> Image {
    let image = image_with(builder.block_size(1024).size(8 << 20), names);
    let fs = open_fs(&image);
    for name in names.iter().filter(|name| **name != "filler") {
        let file = open(&fs, name);
        for block in 0..12 {
            file.write_at(&[1; 1024], block * KIB).expect("room");
        }
    }
    drop(fill(&fs));
    fs.close().expect("a clean end");
    image
}

// What was removed is not committed when the block of pointers is wanted.
#[test]
fn block_of_pointers_comes_from_what_was_just_freed() {
    let image = filled(ext2(), &["a", "filler"]);
    let fs = open_fs(&image);
    let filler = open(&fs, "filler");
    let old = filler.len();
    filler.set_len(old - KIB).expect("a shorter file");
    fs.sync().expect("a sync");
    filler.set_len(old - 100 * KIB).expect("a shorter file");
    let file = open(&fs, "a");
    file.write_at(&[9; 1024], 12 * KIB)
        .expect("room after a commit");
    let mut block = [0; 1024];
    file.read_at(&mut block, 12 * KIB).expect("a read");
    assert!(block == [9; 1024]);
    drop((file, filler));
    fs.close().expect("a clean end");
    e2fsck_clean(image.path());
}

// Two blocks that lie apart, for which there is room, and none for the block of pointers of the first: the second must not be
// mapped with what the first gives back, in a file that ends behind a hole then.
#[test]
fn append_without_a_block_for_its_map_shows_nothing_behind_a_hole() {
    let journalled = || ext2().features("has_journal").args(&["-J", "size=1"]);
    let image = filled(journalled(), &["a", "filler"]);
    let fs = open_fs(&image);
    let filler = open(&fs, "filler");
    for block in [100, 200] {
        let hole = filler.allocate(FallocateMode::PunchHole, block * KIB, KIB);
        hole.expect("a hole");
    }
    drop(filler);
    fs.close().expect("a clean end");
    let before = image.copy();
    let record = RecordDevice::new(device_of(&image));
    // Each handle is a transaction.
    let options = MountOptions::new().commit_interval(Duration::ZERO);
    let fs = Fs::open_device(Arc::new(record.clone()), &options).expect("it opens");
    let file = open(&fs, "a");
    let error = file.write_at(&[9; 2048], 12 * KIB).expect_err("no room");
    assert_eq!(error.errno(), libc::ENOSPC, "{error}");
    assert_eq!(file.len(), 12 * KIB);
    drop(file);
    fs.close().expect("a clean end");
    let device = device_of(&before);
    for (count, entry) in record.log().entries().iter().enumerate() {
        entry.apply(&*device).expect("room");
        let state = before.copy();
        let fs = open_fs(&state);
        assert_eq!(open(&fs, "a").len(), 12 * KIB, "after entry {count}");
        fs.close().expect("a clean end");
        e2fsck_clean(state.path());
    }
    e2fsck_clean(image.path());
}

// Its own read of the file keeps the thread from waiting for readers, and the write that fails from giving blocks back.
#[test]
fn failed_append_beside_a_read_of_its_own_takes_its_size_back() {
    for features in ["", "has_journal", "has_journal,orphan_file"] {
        for removed in [false, true] {
            failed_append(features, removed);
        }
    }
}

/// What it leaves behind the end goes with the file, if that is `removed`, or when the file system is closed.
fn failed_append(features: &str, removed: bool) {
    let builder = match features {
        "" => ext2(),
        features => ext2().features(features).args(&["-J", "size=1"]),
    };
    let image = filled(builder, &["filler"]);
    let policy = options().policy(Policy::Pre49Nolock);
    let (fs, sim) = open_held(&image, &policy);
    let file = with_room_for_four(&fs, 10 * KIB);
    let mut queue = fs.queue(&QueueOptions::default()).expect("a queue");
    let start = file.map(0, 1).expect("a block").pblk.0 * KIB;
    let hold = sim.hold(Some(start..start + KIB), FaultOp::Read);
    let read = queue.read(&file, 0, Buf::zeroed(1024), 1);
    read.expect("room in the queue");
    queue.submit().expect("a working queue");
    hold.wait_for(1);
    // In whole blocks of memory too: it does not wait for readers to begin with.
    let four = Buf::copy_of(&[2; 4096]);
    let error = file.write_at(&four, 10 * KIB).expect_err("no room");
    assert_eq!(error.errno(), libc::ENOSPC, "{error}");
    assert_eq!(file.len(), 10 * KIB);
    hold.release();
    let mut done = Vec::new();
    queue.wait(1, &mut done).expect("a completion");
    let read = done.pop().expect("it was waited for");
    assert_eq!(read.result.expect("a read"), 1024);
    assert!(read.buf.iter().all(|&byte| byte == 1));
    drop((queue, file));
    if removed {
        fs.remove_file("/b").expect("it is there");
    }
    fs.close().expect("a clean end");
    e2fsck_clean(image.path());
}

// It is zeroed there before anything is cut; the size is taken back without.
#[test]
fn failed_append_behind_a_block_that_cannot_be_read_takes_its_size_back() {
    let image = filled(
        ext2().features("has_journal").args(&["-J", "size=1"]),
        &["filler"],
    );
    let (fs, sim) = open_held(&image, &options());
    let size = 10 * KIB - 512;
    let file = with_room_for_four(&fs, size);
    let last = file.map(9, 1).expect("a block").pblk.0 * KIB;
    // What is in front of the write is zeroed first.
    let fault = sim.inject(Fault {
        skip: 1,
        range: Some(last..last + KIB),
        ..Fault::every(FaultOp::Read, FaultKind::Io(libc::EIO))
    });
    let four = Buf::copy_of(&[2; 4096]);
    let error = file.write_at(&four, 10 * KIB).expect_err("no room");
    assert_eq!(error.errno(), libc::ENOSPC, "{error}");
    assert_eq!(file.len(), size);
    assert!(sim.remove(fault).is_some_and(|hits| hits > 0));
    file.set_len(12 * KIB).expect("a longer file");
    let mut expected = vec![1; size as usize];
    expected.resize(12 * KIB as usize, 0);
    assert_eq!(content(&file), expected);
    drop(file);
    fs.close().expect("a clean end");
    e2fsck_clean(image.path());
}

/// A file "/b" of up to ten blocks, and room for four more without one for their map.
fn with_room_for_four(fs: &Fs, size: u64) -> File {
    let filler = open(fs, "filler");
    let shorten = |blocks: u64| {
        let size = filler.len() - blocks * KIB;
        filler.set_len(size).expect("a shorter file");
        fs.sync().expect("a sync");
    };
    shorten(10);
    let file = make(fs, "/b");
    file.write_at(&vec![1; size as usize], 0).expect("room");
    shorten(4);
    file
}

/// Appends to "filler" until there is no room but what is kept for maps.
fn fill(fs: &Fs) -> File {
    let filler = open(fs, "filler");
    while filler.write_at(&[7; 1024], filler.len()).is_ok() {}
    filler
}

fn make(fs: &Fs, name: &str) -> File {
    let options = OpenOptions::new().read(true).write(true).create_new(true);
    options.open(fs, name).expect("a new file")
}

fn content(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; file.len() as usize];
    file.read_at(&mut bytes, 0).expect("a read");
    bytes
}

/// Makes five extents of the one of a file: this takes a block that is kept for maps, as long as there is one.
fn split(other: &File) -> bool {
    other.write_at(&[1; 1024], KIB).expect("three fit");
    other.write_at(&[1; 1024], 3 * KIB).is_ok()
}

/// Uses up what is kept for maps, by so many files, which are there with the filler then.
fn exhaust(fs: &Fs, count: usize) -> (Vec<File>, File) {
    let others: Vec<File> = (0..count).map(|n| make(fs, &format!("/s{n}"))).collect();
    for other in &others {
        let nine = other.allocate(FallocateMode::KeepSize, 0, 9 * KIB);
        nine.expect("room");
    }
    let filler = fill(fs);
    let taken = others.iter().take_while(|other| split(other)).count();
    assert!(taken < others.len(), "something is left for maps");
    fs.sync().expect("a sync");
    (others, filler)
}

// A hole inside an extent makes two of it, and the inode has no place. Without a block for them nothing is changed, not at
// the edges either.
#[test]
fn punch_gets_a_tree_block_that_was_just_freed_or_changes_nothing() {
    let builder = Image::builder().block_size(1024).size(8 << 20);
    let image = image_with(builder.args(&["-m", "0"]), &["a", "filler"]);
    let fs = open_fs(&image);
    let file = open(&fs, "a");
    for extent in 0..4 {
        let three = [3; 3 * KIB as usize];
        file.write_at(&three, 8 * extent * KIB).expect("room");
    }
    let (others, filler) = exhaust(&fs, 300);
    let before = content(&file);
    let punch = || file.allocate(FallocateMode::PunchHole, KIB - 100, KIB + 200);
    let error = punch().expect_err("no block is left for the tree");
    assert_eq!(error.errno(), libc::ENOSPC, "{error}");
    assert!(content(&file) == before, "it is half punched");
    let shorter = filler.len() - 100 * KIB;
    filler.set_len(shorter).expect("a shorter file");
    punch().expect("room after a commit");
    let after = content(&file);
    let hole = KIB as usize - 100..2 * KIB as usize + 100;
    assert!(after[hole.clone()].iter().all(|&byte| byte == 0));
    assert!(after[..hole.start] == before[..hole.start]);
    assert!(after[hole.end..] == before[hole.end..]);
    drop((file, filler, others));
    fs.close().expect("a clean end");
    e2fsck_clean(image.path());
}

// Each divides an extent, for which the inode has no place, and does so in its first transaction.
#[test]
fn insert_and_collapse_get_a_tree_block_that_was_just_freed() {
    for mode in [FallocateMode::InsertRange, FallocateMode::CollapseRange] {
        let builder = Image::builder().block_size(1024).size(8 << 20);
        let image = image_with(builder.args(&["-m", "0"]), &["a", "filler"]);
        let fs = open_fs(&image);
        let file = open(&fs, "a");
        for extent in 0..4 {
            let bytes: Vec<u8> = (0..6 * KIB).map(|at| (at / KIB) as u8 + 1).collect();
            file.write_at(&bytes, 16 * extent * KIB).expect("room");
        }
        let (others, filler) = exhaust(&fs, 300);
        let mut expected = content(&file);
        let range = 2 * KIB as usize..3 * KIB as usize;
        let change = || file.allocate(mode, range.start as u64, KIB);
        let error = change().expect_err("no block is left for the tree");
        assert_eq!(error.errno(), libc::ENOSPC, "{error}");
        assert!(content(&file) == expected, "{mode:?}: a part is changed");
        let shorter = filler.len() - 100 * KIB;
        filler.set_len(shorter).expect("a shorter file");
        change().expect("room after a commit");
        match mode {
            FallocateMode::InsertRange => {
                drop(expected.splice(range.start..range.start, [0; 1024]))
            }
            _ => drop(expected.drain(range)),
        }
        assert!(content(&file) == expected, "{mode:?}");
        drop((file, filler, others));
        fs.close().expect("a clean end");
        e2fsck_clean(image.path());
    }
}

// What one transaction has room for was taken to be enough, and the journal was aborted where it was not.
#[test]
fn clusters_whose_extents_fill_many_leaves_are_moved() {
    const MIB: u64 = 1 << 20;
    for mode in [FallocateMode::InsertRange, FallocateMode::CollapseRange] {
        for cluster in [0, 1] {
            let builder = Image::builder().block_size(1024).size(64 << 20);
            let builder = builder.features("bigalloc");
            let image = image_with(builder.args(&["-C", "1048576", "-m", "0"]), &["a"]);
            let fs = open_fs(&image);
            let file = open(&fs, "a");
            file.allocate(FallocateMode::Allocate, 0, 4 * MIB)
                .expect("room");
            for at in (0..MIB / KIB).step_by(2) {
                let byte = at as u8 | 1;
                file.write_at(&[byte; KIB as usize], (1 + cluster) * MIB + at * KIB)
                    .expect("room");
            }
            let mut expected = content(&file);
            file.allocate(mode, 0, MIB).expect("they are moved");
            match mode {
                FallocateMode::InsertRange => drop(expected.splice(0..0, vec![0; MIB as usize])),
                _ => drop(expected.drain(..MIB as usize)),
            }
            assert!(content(&file) == expected, "{mode:?}");
            drop(file);
            fs.close().expect("a clean end");
            e2fsck_clean(image.path());
        }
    }
}

// What is removed is gone when the rest finds no block to be moved; it was shown on, and its blocks were another file's.
#[test]
fn collapse_that_needs_a_tree_block_takes_what_it_has_freed() {
    const CLUSTER: u64 = 16;
    let builder = Image::builder().block_size(1024).size(16 << 20);
    let builder = builder.features("bigalloc").args(&["-C", "16384"]);
    let image = image_with(builder, &["a", "filler"]);
    let fs = open_fs(&image);
    let file = open(&fs, "a");
    let mut model = vec![0; 0];
    let mut write = |block: u64, blocks: u64| {
        let (start, end) = ((block * KIB) as usize, ((block + blocks) * KIB) as usize);
        let bytes = vec![block as u8 | 1; end - start];
        file.write_at(&bytes, block * KIB).expect("room");
        model.resize(model.len().max(end), 0);
        model[start..end].copy_from_slice(&bytes);
    };
    // Two full leaves of 84 extents, the last of which reaches into the cluster where the next leaf begins.
    for extent in 0..188 {
        let (cluster, at) = (extent / 8, extent % 8 * 2);
        match extent {
            167 => write(cluster * CLUSTER + at, 4),
            168 | 169 => {}
            _ => write(cluster * CLUSTER + at, 1),
        }
    }
    let others: Vec<File> = (0..100).map(|n| make(&fs, &format!("/s{n}"))).collect();
    for (other, extent) in others
        .iter()
        .flat_map(|other| (0..4).map(move |at| (other, at)))
    {
        other.write_at(&[2; 1024], 2 * extent * KIB).expect("room");
    }
    let filler = fill(&fs);
    let fifth = |other: &File| other.write_at(&[2; 1024], 8 * KIB).is_ok();
    let taken = others.iter().take_while(|other| fifth(other)).count();
    assert!(taken < others.len(), "something is left for maps");
    fs.sync().expect("a sync");
    file.allocate(FallocateMode::CollapseRange, 0, CLUSTER * KIB)
        .expect("a cluster is free now");
    assert!(content(&file) == model[(CLUSTER * KIB) as usize..]);
    drop((file, filler, others));
    fs.close().expect("a clean end");
    e2fsck_clean(image.path());
}

// The extent that the new range divides is moved last, in a transaction of its own. What was moved before it comes back.
#[test]
fn insert_that_finds_no_block_in_its_last_step_changes_nothing() {
    const EXTENTS: u64 = 20_000;
    let builder = Image::builder().block_size(1024).size(80 << 20);
    let builder = builder.args(&["-m", "0", "-N", "8192", "-J", "size=1"]);
    let image = image_with(builder, &["a", "filler"]);
    let fs = open_fs(&image);
    let file = open(&fs, "a");
    file.write_at(&[1; 3 * KIB as usize], 0).expect("room");
    for extent in 2..EXTENTS {
        let bytes = [extent as u8 | 1; KIB as usize];
        file.write_at(&bytes, 2 * extent * KIB).expect("room");
    }
    let (others, filler) = exhaust(&fs, 2500);
    fs.sync().expect("a sync");
    let (before, commits) = (content(&file), fs.stats().journal_commits);
    let insert = || file.allocate(FallocateMode::InsertRange, KIB, 2 * KIB);
    let error = insert().expect_err("no block is left for the tree");
    assert_eq!(error.errno(), libc::ENOSPC, "{error}");
    fs.sync().expect("a sync");
    let commits = fs.stats().journal_commits - commits;
    assert!(commits > 1, "it was one step");
    assert!(content(&file) == before, "a part was moved");
    filler
        .set_len(filler.len() - 100 * KIB)
        .expect("a shorter file");
    insert().expect("room after a commit");
    let after = content(&file);
    let (at, len) = (KIB as usize, 2 * KIB as usize);
    assert!(after[..at] == before[..at] && after[at + len..] == before[at..]);
    assert!(after[at..at + len].iter().all(|&byte| byte == 0));
    drop((file, filler, others));
    fs.close().expect("a clean end");
    e2fsck_clean(image.path());
}

/// What only the transaction that frees it knows of can be had again before it is committed, unless it is to be discarded.
#[test]
fn file_that_is_written_and_cut_off_many_times_takes_no_more_room_than_once() {
    const BYTES: u64 = 64 * KIB;
    let image = image_with(Image::builder().block_size(1024).size(8 << 20), &["a"]);
    for discard in [false, true] {
        let fs = Fs::open(image.path(), &options().discard(discard)).expect("it opens");
        let file = open(&fs, "a");
        let commits = fs.stats().journal_commits;
        for _ in 0..2 * (8 << 20) / BYTES {
            file.write_at(&[1; BYTES as usize], 0).expect("room");
            file.set_len(0).expect("a shorter file");
        }
        // Which make room.
        let commits = fs.stats().journal_commits - commits;
        assert_eq!(commits > 0, discard, "{commits}");
        drop(file);
        fs.close().expect("a clean end");
        e2fsck_clean(image.path());
    }
}

/// Fills the file system, and makes room block by block until a call finds enough. How often it was refused; each time all that
/// had been free is so again.
fn refused_until_there_is_room(fs: &Fs, call: impl Fn() -> dioxide::Result<()>) -> u32 {
    let filler = open(fs, "filler");
    for step in [64 * KIB, KIB] {
        while filler
            .write_at(&vec![7; step as usize], filler.len())
            .is_ok()
        {}
    }
    let free = || {
        fs.sync().expect("a sync");
        let told = fs.statfs();
        (told.blocks_free, told.files_free)
    };
    let mut refused = 0;
    loop {
        let before = free();
        match call() {
            Ok(()) => break,
            Err(error) => assert_eq!(error.errno(), libc::ENOSPC, "{error}"),
        }
        assert_eq!(free(), before, "{refused}");
        refused += 1;
        let shorter = filler.len() - KIB;
        filler.set_len(shorter).expect("a shorter file");
    }
    refused
}

/// The value of an attribute finds room and the block that is to name it does not: what the value took is free again.
#[test]
fn attribute_that_finds_no_room_keeps_nothing_of_its_value() {
    const VALUE: [u8; 4000] = [1; 4000];
    let builder = Image::builder().block_size(1024).size(8 << 20);
    let builder = builder.features("ea_inode").inode_size(128);
    let image = image_with(builder.args(&["-m", "0"]), &["a", "filler"]);
    let fs = open_fs(&image);
    let refused = refused_until_there_is_room(&fs, || {
        fs.set_xattr("/a", "user.big", &VALUE, XattrMode::Create)
    });
    // Four blocks for the value, and one that names it.
    assert_eq!(refused, 5);
    let value = fs.xattr("/a", "user.big").expect("it reads");
    assert!(value.as_deref() == Some(&VALUE[..]));
    fs.close().expect("a clean end");
    e2fsck_clean(image.path());
}

/// It was removed while a read of it was in flight, which has been reaped since.
#[test]
fn space_comes_from_a_file_that_waits_to_be_freed() {
    let image = filled(ext2(), &["a", "b", "filler"]);
    let (fs, sim) = open_held(&image, &options());
    let (a, b) = (open(&fs, "a"), open(&fs, "b"));
    let mut queue = fs.queue(&QueueOptions::default()).expect("a queue");
    let start = b.map(0, 1).expect("a block").pblk.0 * KIB;
    let hold = sim.hold(Some(start..start + KIB), FaultOp::Read);
    let read = queue.read(&b, 0, Buf::zeroed(1024), 1);
    read.expect("room in the queue");
    queue.submit().expect("a working queue");
    hold.wait_for(1);
    fs.remove_file("/b").expect("it is there");
    drop(b);
    hold.release();
    let mut done = Vec::new();
    while queue.reap(&mut done) == 0 {
        std::thread::yield_now();
    }
    let read = done.pop().expect("it was waited for");
    assert_eq!(read.result.expect("a read"), 1024);
    a.write_at(&[9; 1024], 12 * KIB).expect("room");
    drop((a, queue));
    fs.close().expect("a clean end");
    e2fsck_clean(image.path());
}

/// Of two lists that a directory is to have the first finds room for its value: what it took is free again.
#[test]
fn directory_that_finds_no_room_for_a_list_keeps_nothing_of_the_other() {
    let builder = Image::builder().block_size(1024).size(8 << 20);
    let builder = builder.features("ea_inode").args(&["-m", "0"]);
    let image = image_with(builder, &["filler"]);
    let fs = open_fs(&image);
    let entry = |tag: u16, perm: u16, id: u32| {
        let words = [tag.to_le_bytes(), perm.to_le_bytes()];
        [&words.concat()[..], &id.to_le_bytes()].concat()
    };
    let mut list = 2u32.to_le_bytes().to_vec();
    list.extend(entry(1, 7, u32::MAX));
    list.extend((1000..1400).flat_map(|id| entry(2, 7, id)));
    list.extend([4, 0x10, 0x20].map(|tag| entry(tag, 7, u32::MAX)).concat());
    fs.set_xattr("/", "system.posix_acl_default", &list, XattrMode::Create)
        .expect("room");
    fs.close().expect("a clean end");
    // Nobody knows that the value of one is there already.
    let fs = open_fs(&image);
    let refused = refused_until_there_is_room(&fs, || fs.create_dir("/d", &NewFile::new(0o700)));
    assert!(refused > 4, "{refused}");
    fs.close().expect("a clean end");
    e2fsck_clean(image.path());
}
