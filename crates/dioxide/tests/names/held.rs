//! Calls that are held in a read of the device while others go on: what they find when they come back.

use crate::random_calls::open_fs;
use dioxide::block::file::{self, FileOptions};
use dioxide::block::sim::{Fault, FaultKind, FaultOp, Hold, SimDevice, SimSpec};
use dioxide::block::{Buf, Device, Durability};
use dioxide::{
    FallocateMode, Fs, MountOptions, NewFile, OpenOptions, RenameMode, StatFs, XattrMode,
};
use dioxide_testkit::{Image, e2fsck_clean, leaf_extents};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, sleep};
use std::time::Duration;

/// Long enough for anything that does not wait for a held request.
const SOON: Duration = Duration::from_secs(20);
/// Long enough, nearly always, to come to the next lock.
const A_WHILE: Duration = Duration::from_millis(100);

const BLOCK: u32 = 4096;

/// A target that needs a block.
const TARGET: [u8; 100] = [b'x'; 100];

/// `/d` with a symlink, `/to`, and `/from` with a file, on a device that can hold requests. No metadata stays in memory
/// but names and inodes, so that each call reads what it looks at.
struct Bed {
    image: Image,
    device: SimDevice,
    fs: Fs,
    /// What is free without the file.
    free: StatFs,
}

impl Bed {
    fn new() -> Bed {
        Bed::of(&[])
    }

    /// With other arguments for mke2fs.
    fn of(args: &[&str]) -> Bed {
        let image = Image::builder().size(16 << 20).block_size(BLOCK);
        let image = image.args(args).build();
        let fs = open_fs(&image);
        for dir in ["/d", "/from", "/to"] {
            fs.create_dir(dir, &NewFile::new(0o755)).expect("room");
        }
        let link = fs.symlink(TARGET, "/d/link", &NewFile::default());
        link.expect("room");
        fs.sync().expect("a sync");
        let free = fs.statfs();
        let options = OpenOptions::new().write(true).create(true);
        drop(options.open(&fs, "/from/file").expect("room"));
        fs.close().expect("a clean end");
        let writable = FileOptions {
            write: true,
            ..FileOptions::default()
        };
        let device = file::open(image.path(), &writable).expect("it opens");
        let device = SimDevice::new(device, SimSpec::default());
        let options = MountOptions::new().metadata_cache(0);
        let fs = Fs::open_device(Arc::new(device.clone()), &options).expect("it opens");
        Bed {
            image,
            device,
            fs,
            free,
        }
    }

    /// Where the first block of a directory or a symlink lies on the device.
    fn place_of(&self, path: &str) -> u64 {
        leaf_extents(self.image.path(), path)[0].physical * u64::from(BLOCK)
    }

    /// Holds who reads there.
    fn hold(&self, place: u64) -> Hold {
        let range = place..place + u64::from(BLOCK);
        self.device.hold(Some(range), FaultOp::Read)
    }

    /// Makes what was removed free, and puts into a block what another file may have there then.
    fn use_again(&self, place: u64) {
        self.fs.sync().expect("a sync");
        let bytes = Buf::copy_of(&[b'/'; BLOCK as usize]);
        let written = self.device.write_at(place, &bytes, Durability::Cached);
        written.expect("it is on the device");
    }

    /// No damage was met, and none is there.
    fn end(self) {
        assert_eq!(self.fs.damage().count, 0);
        self.fs.close().expect("a clean end");
        e2fsck_clean(self.image.path());
    }
}

fn is_held(hold: &Hold) -> bool {
    hold.wait_for_timeout(1, SOON)
}

/// Removes `/from/file`, and does something in between, when it was looked at and has its name still. Nothing stays of it.
fn while_its_name_goes(bed: Bed, change: impl FnOnce(&Fs)) {
    let fs = &bed.fs;
    fs.metadata("/from/file").expect("it is there");
    let hold = bed.hold(bed.place_of("/from"));
    scope(|scope| {
        let unlink = scope.spawn(|| fs.remove_file("/from/file"));
        assert!(is_held(&hold));
        change(fs);
        hold.release();
        unlink.join().expect("no panic").expect("it is there");
    });
    fs.sync().expect("a sync");
    assert_eq!(fs.statfs(), bed.free);
    bed.end();
}

/// It was to be freed with its name, and so was all that it had when that was looked at: the block of attributes that it
/// got after stayed behind.
#[test]
fn file_that_gets_attributes_while_its_last_name_goes_leaves_nothing() {
    while_its_name_goes(Bed::new(), |fs| {
        let set = fs.set_xattr("/from/file", "user.t", &[7; 300], XattrMode::Set);
        set.expect("its name is there still");
    });
}

/// What it freed at once was what it had when that was looked at: the transaction had no room for more.
#[test]
fn file_that_gets_blocks_while_its_last_name_goes_leaves_nothing() {
    let bed = Bed::of(&["-g", "256", "-O", "^flex_bg", "-N", "1024"]);
    while_its_name_goes(bed, |fs| {
        let file = OpenOptions::new().write(true).open(fs, "/from/file");
        let file = file.expect("its name is there still");
        let most_groups = file.allocate(FallocateMode::Allocate, 0, 6 << 20);
        most_groups.expect("room");
    });
}

/// It read what had been a block of the symlink, as a path.
#[test]
fn symlink_that_is_removed_while_it_is_read_is_not_there() {
    let bed = Bed::new();
    let fs = &bed.fs;
    let place = bed.place_of("/d/link");
    let hold = bed.hold(place);
    scope(|scope| {
        let read = scope.spawn(|| fs.read_link("/d/link").map_err(|error| error.errno()));
        assert!(is_held(&hold));
        fs.remove_file("/d/link").expect("it is there");
        bed.use_again(place);
        hold.release();
        assert_eq!(read.join().expect("no panic"), Err(libc::ENOENT));
    });
    bed.end();
}

/// It looked for what is above the directory in what had been a block of that.
#[test]
fn rename_that_waits_while_its_directory_is_removed_finds_nothing() {
    for (from, to) in [("/d/x", "/to/x"), ("/from/file", "/d/x")] {
        let bed = Bed::new();
        let fs = &bed.fs;
        fs.remove_file("/d/link").expect("it is there");
        let place = bed.place_of("/d");
        let hold = bed.hold(bed.place_of("/from"));
        let rename = |from, to| fs.rename(from, to, RenameMode::Replace);
        scope(|scope| {
            let first = scope.spawn(move || rename("/from/none", "/to/none"));
            assert!(is_held(&hold));
            let second = scope.spawn(move || rename(from, to));
            sleep(A_WHILE);
            fs.remove_dir("/d").expect("it is empty");
            bed.use_again(place);
            hold.release();
            for moved in [first, second] {
                let moved = moved.join().expect("no panic");
                assert_eq!(moved.map_err(|error| error.errno()), Err(libc::ENOENT));
            }
        });
        bed.end();
    }
}

#[test]
fn way_up_from_a_directory_that_was_removed_is_not_there() {
    let bed = Bed::new();
    let fs = &bed.fs;
    let node = fs.node("/to").expect("it is there");
    fs.remove_dir("/to").expect("it is empty");
    let found = node.lookup(b"..").map_err(|error| error.errno());
    assert_eq!(found.map(drop), Err(libc::ENOENT));
    drop(node);
    bed.end();
}

/// The lookup had found the old one, which ended before it was read.
#[test]
fn symlink_that_is_replaced_while_it_is_read_leads_where_the_new_one_does() {
    let bed = Bed::new();
    let fs = &bed.fs;
    let made = fs.symlink(b"/from", "/d/new", &NewFile::default());
    made.expect("room");
    let place = bed.place_of("/d/link");
    let hold = bed.hold(place);
    scope(|scope| {
        let read = scope.spawn(|| fs.read_link("/d/link").expect("it is always there"));
        let passed = scope.spawn(|| fs.metadata("/d/link/file").expect("it is always there"));
        assert!(is_held(&hold));
        sleep(A_WHILE);
        let renamed = fs.rename("/d/new", "/d/link", RenameMode::Replace);
        renamed.expect("both are there");
        bed.use_again(place);
        hold.release();
        assert_eq!(read.join().expect("no panic"), b"/from");
        let file = fs.metadata("/from/file").expect("it is there");
        assert_eq!(passed.join().expect("no panic").ino, file.ino);
    });
    bed.end();
}

#[test]
fn file_that_is_replaced_again_and_again_is_there_for_whoever_opens_it() {
    const TIMES: u32 = 1000;
    let bed = Bed::new();
    let fs = &bed.fs;
    let replaced = AtomicBool::new(false);
    scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !replaced.load(Ordering::Relaxed) {
                    let opened = OpenOptions::new().read(true).open(fs, "/from/file");
                    drop(opened.expect("it is always there"));
                    drop(fs.node("/from/file").expect("it is always there"));
                }
            });
        }
        let new = OpenOptions::new().write(true).create_new(true);
        for _ in 0..TIMES {
            drop(new.open(fs, "/to/new").expect("room"));
            let renamed = fs.rename("/to/new", "/from/file", RenameMode::Replace);
            renamed.expect("both are there");
        }
        replaced.store(true, Ordering::Relaxed);
    });
    bed.end();
}

/// It was kept in memory as a name, and led to whatever had the number after the directory had moved.
#[test]
fn way_up_is_not_removed_whatever_has_the_number_of_what_was_above() {
    let bed = Bed::new();
    let fs = &bed.fs;
    for dir in ["/to/a", "/to/a/d"] {
        fs.create_dir(dir, &NewFile::new(0o755)).expect("room");
    }
    let above = fs.metadata("/to/a").expect("it is there").ino;
    let removed = || fs.remove_file("/to/a/d/..").map_err(|error| error.errno());
    assert_eq!(removed(), Err(libc::EISDIR));
    let made = fs.create_dir("/to/a/d/..", &NewFile::new(0o755));
    assert_eq!(made.map_err(|error| error.errno()), Err(libc::EEXIST));
    let renamed = fs.rename("/to/a/d", "/from/d", RenameMode::Replace);
    renamed.expect("there is no other");
    fs.remove_dir("/to/a").expect("it is empty");
    fs.sync().expect("a sync");
    let new = OpenOptions::new().write(true).create_new(true);
    drop(new.open(fs, "/to/x").expect("room"));
    let file = fs.metadata("/to/x").expect("it is there");
    assert_eq!(file.ino, above, "it has the number of what was above");
    let removed = fs.remove_file("/from/d/..");
    assert_eq!(removed.map_err(|error| error.errno()), Err(libc::EISDIR));
    let dir = fs.node("/from/d").expect("it is there");
    for name in [&b".."[..], b".", b""] {
        let removed = dir.remove_file(name);
        assert_eq!(removed.map_err(|error| error.errno()), Err(libc::EISDIR));
    }
    drop(dir);
    assert_eq!(fs.metadata("/to/x").expect("it is there").nlink, 1);
    let up = fs.metadata("/from/d/..").expect("it is there");
    assert_eq!(up.ino, fs.metadata("/from").expect("it is there").ino);
    bed.end();
}

/// The first of two inherited lists had its block, and nobody owned that any more.
#[test]
fn directory_whose_inherited_lists_have_no_room_leaves_nothing() {
    let image = Image::builder().size(16 << 20).block_size(1024).build();
    let fs = open_fs(&image);
    fs.create_dir("/d", &NewFile::new(0o755)).expect("room");
    // One of them fits into a block, and two do not.
    let users = (0..75).map(|user| (2u16, 7u16, 1000 + user));
    let none = u32::MAX;
    let others = [(4, 7, none), (16, 7, none), (32, 7, none)];
    let all = [(1, 7, none)].into_iter().chain(users).chain(others);
    let mut list = 2u32.to_le_bytes().to_vec();
    for (tag, rights, id) in all {
        list.extend(tag.to_le_bytes());
        list.extend(rights.to_le_bytes());
        list.extend(id.to_le_bytes());
    }
    let set = fs.set_xattr("/d", "system.posix_acl_default", &list, XattrMode::Set);
    set.expect("room");
    fs.sync().expect("a sync");
    let free = fs.statfs();
    for _ in 0..2 {
        let made = fs.create_dir("/d/x", &NewFile::new(0o777));
        assert_eq!(made.map_err(|error| error.errno()), Err(libc::ENOSPC));
        fs.sync().expect("a sync");
        assert_eq!(fs.statfs(), free);
    }
    assert_eq!(fs.read_only(), None);
    fs.close().expect("a clean end");
    e2fsck_clean(image.path());
}

// The old name is known from memory, and its block is not: that it cannot be read is found before the new name is there.
#[test]
fn rename_whose_old_name_cannot_be_read_changes_nothing() {
    let bed = Bed::new();
    let fs = &bed.fs;
    fs.metadata("/from/file").expect("it is there");
    let place = bed.place_of("/from");
    for mode in [RenameMode::Replace, RenameMode::Exchange] {
        if mode == RenameMode::Exchange {
            let options = OpenOptions::new().write(true).create(true);
            drop(options.open(fs, "/to/file").expect("room"));
            fs.sync().expect("a sync");
        }
        let block = place..place + u64::from(BLOCK);
        let fault = bed.device.inject(Fault {
            range: Some(block),
            ..Fault::once(FaultOp::Read, FaultKind::Io(libc::EIO))
        });
        let error = fs.rename("/from/file", "/to/file", mode);
        let error = error.expect_err("the block cannot be read");
        assert_eq!(error.errno(), libc::EIO, "{error}");
        assert_eq!(bed.device.hits(fault), Some(1));
        assert_eq!(fs.read_only(), None);
    }
    fs.rename("/from/file", "/to/file", RenameMode::Replace)
        .expect("it can be read again");
    bed.end();
}
