//! One thread makes names while another, without pause, changes what the directory or the file itself is.
//!
//! Each call takes effect as a whole: what one of them wrote is not taken back by the other, who has read the inode or the
//! block before. Thousands of tries, since that takes a moment that nothing else tells of.

use dioxide::{
    Error, Fs, MountOptions, NewFile, Node, OpenOptions, RenameMode, Result, SetAttributes,
    XattrMode,
};
use dioxide_format::inode::InodeFlags;
use dioxide_testkit::{Image, ImageBuilder, e2fsck_clean};
use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::scope;
use std::time::{Duration, Instant};

fn dir() -> NewFile {
    NewFile::new(0o755)
}

fn plain() -> ImageBuilder {
    Image::builder().size(64 << 20).args(&["-N", "16384"])
}

fn inline() -> ImageBuilder {
    let args = ["-O", "inline_data", "-I", "256", "-N", "16384"];
    Image::builder().size(64 << 20).args(&args)
}

/// Set when the work ends, by a panic too: the other thread would go on for ever.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Does one thing again and again, from before the other begins until it has ended.
fn beside<T>(mut again: impl FnMut() + Send, work: impl FnOnce() -> T) -> T {
    let (began, ended) = (AtomicBool::new(false), AtomicBool::new(false));
    scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Acquire) {
                again();
                began.store(true, Ordering::Release);
            }
        });
        let _ends = Ends(&ended);
        while !began.load(Ordering::Acquire) {
            spin_loop();
        }
        work()
    })
}

fn is_there(dir: &Node, names: u32) {
    let listed = dir.read_dir(0, usize::MAX).expect("it can be read");
    assert_eq!(listed.len() as u32, names + 2, "all that was made");
    let none = dir.read_dir(0, 0).expect("it can be read");
    assert_eq!(none.len(), 0);
}

/// Names that fill some blocks, so that the directory gets an index; and names for which one must leave its inode.
fn kinds() -> [(ImageBuilder, String, u32); 2] {
    [
        (plain(), "n".repeat(200), 24),
        (inline(), "n".repeat(12), 6),
    ]
}

#[test]
fn directory_that_moves_while_names_are_made_in_it_has_its_new_parent_and_all_names() {
    for (image, name, names) in kinds() {
        let image = image.build();
        let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
        fs.create_dir("/a", &dir()).expect("room");
        fs.create_dir("/b", &dir()).expect("room");
        let (mut a, mut b) = (fs.node("/a").expect("it"), fs.node("/b").expect("it"));
        for round in 0..150 {
            let moving = format!("d{round}");
            let moving = moving.as_bytes();
            let dir = a.create_dir(moving, &dir()).expect("room");
            let swap = || {
                a.rename(moving, &b, moving, RenameMode::Replace)
                    .expect("it moves");
                std::mem::swap(&mut a, &mut b);
            };
            beside(swap, || {
                for number in 0..names {
                    let name = format!("{name}{number:03}");
                    dir.create(name.as_bytes(), &NewFile::new(0o644))
                        .expect("room");
                }
            });
            assert_eq!(
                dir.lookup(b"..").expect("it").ino(),
                a.ino(),
                "round {round}"
            );
            is_there(&dir, names);
        }
        drop((a, b));
        fs.close().expect("a clean end");
        e2fsck_clean(image.path());
    }
}

#[test]
fn attributes_and_names_of_a_directory_change_at_once_and_all_stay() {
    let attributes: [fn(&Node, u32) -> Result<()>; 3] = [
        |dir, number| {
            let flags = dir.metadata().flags & !InodeFlags::NODUMP.0;
            let nodump = InodeFlags::NODUMP.0 * (number % 2);
            match dir.set_attributes(&SetAttributes::new().flags(flags | nodump)) {
                // What was told was of before it left its inode.
                Err(Error::Unsupported(_)) => Ok(()),
                set => set,
            }
        },
        |dir, number| dir.set_attributes(&SetAttributes::new().mode(number as u16 % 512)),
        |dir, number| {
            let value = vec![b'v'; [500, 1][number as usize % 2]];
            dir.set_xattr("user.a", &value, XattrMode::Set)
        },
    ];
    for (image, name, names) in kinds() {
        let image = image.build();
        let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
        let file = NewFile::new(0o644);
        let file = fs.root().expect("it").create(b"f", &file).expect("room");
        for (which, change) in attributes.iter().enumerate() {
            for round in 0..150 {
                let path = format!("/{which}-{round}");
                fs.create_dir(&path, &dir()).expect("room");
                let dir = fs.node(&path).expect("it");
                let mut number = 0;
                let again = || {
                    number += 1;
                    change(&dir, number).expect("it changes");
                };
                beside(again, || {
                    for number in 0..names {
                        let name = format!("{name}{number:03}");
                        file.link(&dir, name.as_bytes()).expect("room");
                    }
                });
                is_there(&dir, names);
                let flags = InodeFlags(dir.metadata().flags);
                assert!(!flags.contains(InodeFlags::INLINE_DATA), "{path}: {flags}");
                if which == 1 {
                    assert_eq!(
                        u32::from(dir.metadata().permissions),
                        number % 512,
                        "{path}"
                    );
                }
            }
        }
        drop(file);
        fs.close().expect("a clean end");
        e2fsck_clean(image.path());
    }
}

/// A file system without free blocks, and `/full`, in whose only blocks there is no room for a name as long as this.
fn filled(image: &Image) -> (Fs, String) {
    let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
    for path in ["/full", "/dir"] {
        fs.create_dir(path, &dir()).expect("room");
    }
    let long = "n".repeat(250);
    let file = OpenOptions::new().write(true).create(true).resource(true);
    let file = file.open(&fs, "/all").expect("room");
    let zeros = vec![0; 4096];
    let mut at = 0;
    while file.write_at(&zeros, at).is_ok() {
        at += zeros.len() as u64;
    }
    let mut links = 0;
    while fs
        .hard_link("/all", format!("/full/{long}{links:05}"))
        .is_ok()
    {
        links += 1;
    }
    (fs, long)
}

/// Who sees the link of a name that finds no room must not count on it: the file has its other name, or goes.
#[test]
fn link_that_finds_no_room_takes_nothing_from_others_of_the_file() {
    let image = Image::builder()
        .size(16 << 20)
        .args(&["-O", "^dir_index", "-m", "0", "-N", "1024"])
        .build();
    let (fs, long) = filled(&image);
    let read_write = OpenOptions::new().read(true).write(true);
    let free = fs.statfs().files_free;
    for round in 0..300 {
        let full = format!("/full/{long}x{round:04}");
        let name = format!("/dir/{round}");
        let unnamed = round % 2 == 0;
        let file = match unnamed {
            true => read_write.open_unnamed(&fs, "/dir"),
            false => read_write.clone().create_new(true).open(&fs, &name),
        };
        let file = file.expect("an inode");
        let linked = || {
            let errno = file.link(&full).expect_err("no room").errno();
            assert!([libc::ENOSPC, libc::ENOENT].contains(&errno), "{errno}");
        };
        beside(linked, || {
            let seen = u32::from(!unnamed) + 1;
            let end = Instant::now() + Duration::from_micros(500);
            while file.metadata().nlink != seen && Instant::now() < end {}
            match unnamed {
                true => file.link(&name).expect("room for a short one"),
                false => fs.remove_file(&name).expect("it goes"),
            }
        });
        drop(file);
        if unnamed {
            let metadata = fs.metadata(&name).expect("it has that name");
            assert_eq!(metadata.nlink, 1);
            fs.remove_file(&name).expect("it goes");
        }
    }
    fs.sync().expect("a sync");
    assert_eq!(fs.statfs().files_free, free);
    fs.close().expect("a clean end");
    e2fsck_clean(image.path());
}

#[test]
fn directory_that_is_removed_while_it_is_asked_for_is_not_there() {
    let image = Image::builder()
        .size(16 << 20)
        .args(&["-m", "0", "-N", "256"])
        .build();
    let options = MountOptions::new().dirsync(true);
    let fs = Fs::open(image.path(), &options).expect("it opens");
    let write = OpenOptions::new().write(true).create(true);
    let ones = vec![0xff; 4096];
    let fill = |path: &str| {
        let file = write.open(&fs, path).expect("an inode");
        let mut at = 0;
        while file.write_at(&ones, at).is_ok() {
            at += ones.len() as u64;
        }
        (file, at)
    };
    // Four blocks are left, which everybody gets in turn.
    let (all, end) = fill("/all");
    all.set_len(end - 4 * 4096).expect("it shrinks");
    fs.sync().expect("a sync");
    // How often it was made, listed, and not there.
    let [made, listed, missed] = [const { AtomicU64::new(0) }; 3];
    let asks = || {
        let found = fs.read_dir("/d");
        let counted = if found.is_ok() { &listed } else { &missed };
        counted.fetch_add(1, Ordering::Relaxed);
        for asked in [found.map(drop), fs.metadata("/d/nothing").map(drop)] {
            if let Err(error) = asked {
                assert_eq!(error.errno(), libc::ENOENT, "{error}");
            }
        }
    };
    let seen = || [&made, &listed, &missed].map(|count| count.load(Ordering::Relaxed));
    let uses = || {
        let (file, _) = fill("/others");
        file.set_len(0).expect("it shrinks");
        file.sync_all().expect("a sync");
    };
    let begun = Instant::now();
    let (least, most) = (Duration::from_secs(2), Duration::from_secs(120));
    beside(asks, || {
        beside(uses, || {
            while begun.elapsed() < least || seen().contains(&0) && begun.elapsed() < most {
                if fs.create_dir("/d", &dir()).is_ok() {
                    made.fetch_add(1, Ordering::Relaxed);
                    fs.remove_dir("/d").expect("it goes");
                }
            }
        });
    });
    assert!(!seen().contains(&0), "{:?}", seen());
    drop(all);
    fs.close().expect("a clean end");
    e2fsck_clean(image.path());
}

#[test]
fn open_that_may_make_a_file_finds_or_makes_it_while_another_makes_and_removes_it() {
    let image = plain().build();
    let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
    let may_make = OpenOptions::new().write(true).create(true);
    let again = || {
        drop(may_make.open(&fs, "/spool"));
        match fs.remove_file("/spool") {
            Ok(()) | Err(Error::NotFound(_)) => {}
            Err(error) => panic!("{error}"),
        }
    };
    beside(again, || {
        for _ in 0..100_000 {
            may_make.open(&fs, "/spool").expect("found or made");
        }
    });
    fs.close().expect("it closes");
    e2fsck_clean(image.path());
}

#[test]
fn file_that_is_renamed_is_never_found_by_both_names() {
    const NAMES: usize = 5_000;
    let image = plain().build();
    let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
    let create = OpenOptions::new().write(true).create(true);
    create.open(&fs, "/0").expect("room");
    let ended = AtomicBool::new(false);
    scope(|scope| {
        scope.spawn(|| {
            let _ends = Ends(&ended);
            for name in 0..NAMES {
                let (from, to) = (format!("/{name}"), format!("/{}", name + 1));
                fs.rename(&from, &to, RenameMode::Replace)
                    .expect("it is there");
            }
        });
        let mut name = 0;
        while !ended.load(Ordering::Acquire) {
            // No name comes back.
            if fs.metadata(format!("/{}", name + 1)).is_ok() {
                assert!(fs.metadata(format!("/{name}")).is_err(), "{name}");
                name += 1;
            } else if fs.metadata(format!("/{name}")).is_err() {
                name += 1;
            }
        }
    });
    fs.close().expect("it closes");
    e2fsck_clean(image.path());
}
