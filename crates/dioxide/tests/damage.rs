//! What a mount does when it meets damage: `errors=`, wherever it is met, and what is recorded of it.

#[path = "damage/flips.rs"]
mod flips;

use dioxide::block::mem::MemDevice;
use dioxide::block::{Buf, Device, Durability};
use dioxide::{
    Error, ErrorPolicy, FallocateMode, File, Fs, MountOptions, NewFile, OpenOptions, QueueOptions,
    Result, XattrMode,
};
use dioxide_testkit::shape::fragmented;
use dioxide_testkit::{Image, debugfs, debugfs_query, dumpe2fs, e2fsck_clean, leaf_extents};
use std::fs;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::sync::Arc;

const BLOCK: u64 = 1024;
const STATE_CLEAN: u16 = 1;
const STATE_ERROR: u16 = 2;

/// With `/frag`, whose extent tree has leaves, `/small`, `/dir/file` and `/odd`. Two groups.
fn image() -> Image {
    let image = Image::builder()
        .size(16 << 20)
        .block_size(1024)
        .features("^resize_inode")
        .args(&["-J", "size=1"])
        .build();
    fragmented(&image, "frag", 100, 1);
    let host = tempfile::NamedTempFile::new().expect("a temporary file");
    fs::write(host.path(), [7; 4096]).expect("room");
    let write = |name: &str| format!("write {} {name}", host.path().display());
    let commands = [
        &write("small"),
        &write("odd"),
        "mkdir dir",
        "cd dir",
        &write("file"),
    ];
    debugfs(image.path(), &commands);
    image
}

fn overwrite(image: &Image, at: u64, bytes: &[u8]) {
    let file = fs::File::options().write(true).open(image.path());
    let file = file.expect("the image");
    file.write_all_at(bytes, at).expect("a write");
}

/// The nodes of the tree of `/frag` so far below the root.
fn nodes(image: &Image, depth: u16) -> Vec<u64> {
    let listed = debugfs_query(image.path(), "dump_extents /frag");
    let above = format!(" {}/", depth - 1);
    let lines = listed.lines().filter(|line| line.starts_with(&above));
    let physical = |line: &str| line.split_whitespace().nth(7).map(str::parse);
    lines
        .map(|line| physical(line).expect("its block").expect("a number"))
        .collect()
}

fn damage_node(image: &Image) {
    overwrite(image, nodes(image, 1)[0] * BLOCK, &[0xA5; 1024]);
}

fn damage_dir(image: &Image) {
    let at = leaf_extents(image.path(), "/dir")[0].physical;
    overwrite(image, at * BLOCK, &[0xFF; 1024]);
}

/// Damages the inode of a file: its atime, so that its checksum is wrong.
fn damage_inode(image: &Image) {
    let (at, _) = inode_place(image, "/odd");
    overwrite(image, at + 8, &[0x5A; 4]);
}

/// Damages a bitmap of the first group.
fn damage_bitmap(image: &Image, of: &str) {
    let told = dumpe2fs(image.path());
    let before = format!("{of} bitmap at ");
    let at = told.find(&before).expect("a group") + before.len();
    let block: String = told[at..]
        .chars()
        .take_while(char::is_ascii_digit)
        .collect();
    let block: u64 = block.parse().expect("a number");
    overwrite(image, block * BLOCK + 200, &[0x55; 8]);
}

/// Where an inode lies in an image, and its number.
fn inode_place(image: &Image, path: &str) -> (u64, u32) {
    let told = debugfs_query(image.path(), &format!("imap {path}"));
    let number = |before: &str, radix| {
        let from = told.find(before).expect("a place") + before.len();
        let digits = told[from..].split(|c: char| !c.is_ascii_hexdigit());
        u64::from_str_radix(digits.into_iter().next().expect("digits"), radix).expect("a number")
    };
    let at = number("located at block ", 10) * BLOCK + number("offset 0x", 16);
    (at, number("Inode ", 10) as u32)
}

fn open(image: &Image, options: &MountOptions) -> Fs {
    Fs::open(image.path(), options).expect("it opens")
}

fn file(fs: &Fs, path: &str, write: bool) -> Result<File> {
    OpenOptions::new().read(true).write(write).open(fs, path)
}

fn create(fs: &Fs, path: &str) -> Result<File> {
    OpenOptions::new().write(true).create(true).open(fs, path)
}

fn queued_read(fs: &Fs) -> Result<()> {
    let file = file(fs, "/frag", false)?;
    let mut queue = fs.queue(&QueueOptions::default())?;
    let pushed = queue.read(&file, 0, Buf::zeroed(1024), 1);
    pushed.expect("an empty queue");
    let mut done = Vec::new();
    queue.wait(1, &mut done)?;
    let result = done.pop().expect("a completion").result;
    result.map(drop).map_err(|error| *error)
}

/// What meets damage, and where: its name, what is damaged, and a call.
type Site = (&'static str, fn(&Image), fn(&Fs) -> Result<()>);

const SITES: [Site; 9] = [
    ("read", damage_node, |fs| {
        file(fs, "/frag", false)?
            .read_at(&mut [0; 1024], 0)
            .map(drop)
    }),
    ("queued read", damage_node, queued_read),
    ("write", damage_node, |fs| {
        file(fs, "/frag", true)?.write_at(&[1; 1024], 0).map(drop)
    }),
    ("seek", damage_node, |fs| {
        file(fs, "/frag", false)?.seek_data(0).map(drop)
    }),
    ("remove", damage_node, |fs| fs.remove_file("/frag")),
    ("lookup", damage_dir, |fs| {
        fs.metadata("/dir/file").map(drop)
    }),
    ("readdir", damage_dir, |fs| fs.read_dir("/dir").map(drop)),
    ("stat", damage_inode, |fs| fs.metadata("/odd").map(drop)),
    ("readdirplus", damage_inode, |fs| {
        // Tells nothing of what it cannot read.
        fs.root()?.read_dir_plus(0, 100)?;
        Err(fs.metadata("/odd").expect_err("it is damaged"))
    }),
];

const POLICIES: [ErrorPolicy; 3] = [
    ErrorPolicy::Continue,
    ErrorPolicy::RemountReadOnly,
    ErrorPolicy::Panic,
];

fn is_damage(error: &Error) -> bool {
    matches!(error, Error::Corrupt { .. } | Error::Checksum { .. })
}

#[test]
fn errors_takes_effect_wherever_damage_is_met() {
    let clean = image();
    for (site, damage, meet) in SITES {
        let damaged = clean.copy();
        damage(&damaged);
        for (policy, writes) in POLICIES
            .into_iter()
            .flat_map(|policy| [(policy, false), (policy, true)])
        {
            let case = format!("{site}, {policy:?}, changed before: {writes}");
            let image = damaged.copy();
            let fs = open(&image, &MountOptions::new().errors(policy));
            let small = file(&fs, "/small", true).expect("a file");
            if writes {
                create(&fs, "/before").expect("room");
            }
            let error = meet(&fs).expect_err(&case);
            assert!(
                is_damage(&error) || site == "readdirplus",
                "{case}: {error}"
            );
            let outcome = |result: Result<()>| result.map_or_else(|error| error.errno(), |()| 0);
            let (change, overwrite, read) = match policy {
                ErrorPolicy::Continue => (0, 0, 0),
                ErrorPolicy::RemountReadOnly => (libc::EROFS, libc::EROFS, 0),
                _ => (libc::EIO, libc::EIO, libc::EIO),
            };
            assert_eq!(outcome(create(&fs, "/new").map(drop)), change, "{case}");
            assert_eq!(
                outcome(small.write_at(&[1; 1024], 0).map(drop)),
                overwrite,
                "{case}"
            );
            assert_eq!(
                outcome(small.read_at(&mut [0; 1024], 0).map(drop)),
                read,
                "{case}"
            );
            assert_eq!(outcome(fs.metadata("/small").map(drop)), read, "{case}");
            drop(small);
            assert_eq!(
                fs.close().is_ok(),
                policy == ErrorPolicy::Continue,
                "{case}"
            );
            let told = dumpe2fs(image.path());
            assert!(told.contains("with errors"), "{case}:\n{told}");
            let fs = open(&image, &MountOptions::new().read_only(true));
            let sb = fs.superblock().disk();
            let times = match (site, policy) {
                // Once by each call.
                ("readdirplus", ErrorPolicy::Continue) => 2,
                _ => 1,
            };
            assert_eq!(sb.s_error_count, times, "{case}");
            assert_ne!(sb.s_first_error_time, 0, "{case}");
            let place = (sb.s_first_error_ino, sb.s_first_error_block);
            assert_ne!(place, (0, 0), "{case}");
            let last = (sb.s_last_error_ino, sb.s_last_error_block);
            assert_eq!(last, place, "{case}");
            assert!([4, 5].contains(&sb.s_first_error_errcode), "{case}");
        }
    }
}

#[test]
fn damage_met_by_a_read_only_mount_leaves_the_image_as_it_is() {
    let clean = image();
    for (site, damage, meet) in SITES {
        let image = clean.copy();
        damage(&image);
        let before = fs::read(image.path()).expect("the image");
        for policy in POLICIES {
            let options = MountOptions::new().read_only(true).errors(policy);
            let fs = open(&image, &options);
            if !matches!(site, "write" | "remove") {
                meet(&fs).expect_err(site);
            }
            fs.metadata("/small").expect("it is read");
            fs.close().expect("nothing to do");
        }
        assert!(
            before == fs::read(image.path()).expect("the image"),
            "{site}"
        );
    }
}

#[test]
fn removal_that_meets_damage_leaves_the_file_and_the_mount_goes_on() {
    let image = image();
    damage_node(&image);
    let fs = open(&image, &MountOptions::new().errors(ErrorPolicy::Continue));
    for _ in 0..2 {
        let error = fs.remove_file("/frag").expect_err("it is damaged");
        assert!(is_damage(&error), "{error}");
    }
    fs.rename("/small", "/frag", dioxide::RenameMode::Replace)
        .expect_err("it is damaged");
    fs.metadata("/frag").expect("its name is there");
    fs.remove_file("/small").expect("a file without damage");
    fs.close().expect("a clean end");
    let told = dumpe2fs(image.path());
    assert!(told.contains("clean with errors"), "{told}");
    assert!(told.contains("FS Error count:           3"), "{told}");
    assert!(told.contains("First error function:     extent"), "{told}");
}

#[test]
fn removal_of_what_has_damaged_attributes_leaves_it() {
    let image = image();
    let fs = open(&image, &MountOptions::new());
    for path in ["/small", "/dir"] {
        fs.set_xattr(path, "user.long", &[9; 500], XattrMode::Set)
            .expect("room");
    }
    fs.remove_file("/dir/file").expect("it is there");
    fs.close().expect("a clean end");
    for path in ["/small", "/dir"] {
        let told = debugfs_query(image.path(), &format!("stat {path}"));
        let (_, at) = told.split_once("File ACL: ").expect("a block");
        let block: u64 = at[..at.find('\n').expect("a line")]
            .trim()
            .parse()
            .expect("a number");
        overwrite(&image, block * BLOCK + 40, &[0xA5; 8]);
    }
    let fs = open(&image, &MountOptions::new().errors(ErrorPolicy::Continue));
    let error = fs.remove_file("/small").expect_err("its attributes");
    assert!(is_damage(&error), "{error}");
    let error = fs.remove_dir("/dir").expect_err("its attributes");
    assert!(is_damage(&error), "{error}");
    fs.rename("/odd", "/small", dioxide::RenameMode::Replace)
        .expect_err("its attributes");
    for path in ["/small", "/dir", "/odd"] {
        fs.metadata(path).expect("it is there");
    }
    fs.close().expect("a clean end");
}

/// The name is gone by then: the call did what it is for.
#[test]
fn removal_that_meets_damage_later_is_told_as_done() {
    let image = Image::builder()
        .size(32 << 20)
        .block_size(1024)
        .args(&["-J", "size=1", "-g", "256"])
        .build();
    // In so many groups that a transaction frees a part of it.
    fragmented(&image, "frag", 8000, 1);
    let last = nodes(&image, 2).pop().expect("many");
    overwrite(&image, last * BLOCK, &[0xA5; 1024]);
    let fs = open(&image, &MountOptions::new().errors(ErrorPolicy::Continue));
    create(&fs, "/new").expect("room");
    fs.rename("/new", "/frag", dioxide::RenameMode::Replace)
        .expect("the damage is far from its beginning");
    assert_eq!(fs.metadata("/frag").expect("it is there").size, 0);
    fs.metadata("/new").expect_err("it has another name");
    fs.close().expect("a clean end");
    let told = dumpe2fs(image.path());
    assert!(told.contains("clean with errors"), "{told}");
}

#[test]
fn removal_of_what_is_not_damaged_records_nothing() {
    for features in [
        "^64bit,^extent",
        "ea_inode",
        "bigalloc",
        "inline_data,quota",
    ] {
        let image = Image::builder()
            .size(32 << 20)
            .block_size(1024)
            .features(features)
            .build();
        let fs = open(&image, &MountOptions::new());
        let new = NewFile::new(0o755);
        for (number, len) in [0u64, 50, 900, 2000, 400 << 10].into_iter().enumerate() {
            let path = format!("/file{number}");
            let file = create(&fs, &path).expect("room");
            file.write_at(&vec![1; len as usize], 3 * len)
                .expect("room");
            file.allocate(FallocateMode::KeepSize, 5 * len, 5000)
                .or_else(|error| match error {
                    Error::Unsupported(_) => Ok(()),
                    error => Err(error),
                })
                .expect("room");
            let value = vec![b'v'; len.min(700) as usize];
            file.set_xattr("user.one", &value, XattrMode::Set)
                .expect("room");
            if features == "ea_inode" {
                file.set_xattr("user.two", &[b'v'; 5000], XattrMode::Set)
                    .expect("room");
            }
            fs.symlink(
                "t".repeat(1 + len.min(900) as usize),
                format!("/link{number}"),
                &new,
            )
            .expect("room");
            let dir = format!("/dir{number}");
            fs.create_dir(&dir, &new).expect("room");
            for name in 0..len.min(60) {
                let path = format!("{dir}/{name:0>60}");
                drop(create(&fs, &path).expect("room"));
                fs.remove_file(&path).expect("a file");
            }
        }
        for number in 0..5 {
            fs.remove_file(format!("/file{number}")).expect("a file");
            fs.remove_file(format!("/link{number}")).expect("a link");
            fs.remove_dir(format!("/dir{number}")).expect("a directory");
        }
        fs.close().expect("a clean end");
        e2fsck_clean(image.path());
        let fs = open(&image, &MountOptions::new().read_only(true));
        assert_eq!(fs.superblock().error_count(), 0, "{features}");
    }
}

#[test]
fn group_whose_bitmap_is_damaged_is_passed_over_and_told() {
    let image = image();
    damage_bitmap(&image, "Block");
    for (policy, goes_on) in [
        (ErrorPolicy::Continue, true),
        (ErrorPolicy::RemountReadOnly, false),
    ] {
        let image = image.copy();
        let fs = open(&image, &MountOptions::new().errors(policy));
        let file = create(&fs, "/new").expect("room");
        file.write_at(&[1; 8192], 0).expect("room in another group");
        drop(file);
        match (create(&fs, "/newer"), goes_on) {
            (Ok(_), true) => {}
            (Err(error), false) => assert_eq!(error.errno(), libc::EROFS, "{error}"),
            (other, _) => panic!("{policy:?}: {other:?}"),
        }
        assert_eq!(fs.close().is_ok(), goes_on);
        let fs = open(&image, &MountOptions::new().read_only(true));
        assert_ne!(fs.superblock().state() & STATE_ERROR, 0);
        assert_eq!(fs.superblock().error_count(), 1);
    }
}

#[test]
fn removal_whose_group_has_a_damaged_bitmap_leaves_that_and_the_mount_goes_on() {
    let clean = image();
    for of in ["Block", "Inode"] {
        let image = clean.copy();
        damage_bitmap(&image, of);
        let fs = open(&image, &MountOptions::new().errors(ErrorPolicy::Continue));
        let made = fs.create_dir("/made", &NewFile::new(0o755));
        made.expect("room in another group");
        fs.remove_file("/small").expect("a file without damage");
        create(&fs, "/later").expect("the mount goes on");
        fs.close().expect("a clean end");
        let fs = open(&image, &MountOptions::new().read_only(true));
        assert_eq!(fs.superblock().error_count(), 1, "{of}");
        fs.metadata("/made").expect("it was made");
        fs.metadata("/later").expect("it was made");
        let gone = fs.metadata("/small").expect_err("it was removed");
        assert_eq!(gone.errno(), libc::ENOENT, "{of}: {gone}");
        drop(fs);
        let mends = Command::new("e2fsck").arg("-fy").arg(image.path()).output();
        assert_eq!(mends.expect("e2fsck").status.code(), Some(1), "{of}");
        e2fsck_clean(image.path());
    }
}

#[test]
fn what_is_recorded_beside_an_aborted_journal_outlives_its_replay() {
    let image = image();
    damage_node(&image);
    let (_, ino) = inode_place(&image, "/frag");
    let options = MountOptions::new().errors(ErrorPolicy::RemountReadOnly);
    let fs = open(&image, &options);
    // Puts the superblock into the log: an orphan.
    let held = create(&fs, "/held").expect("room");
    fs.remove_file("/held").expect("a file");
    create(&fs, "/made").expect("room");
    fs.sync().expect("a sync");
    file(&fs, "/frag", false)
        .and_then(|file| file.read_at(&mut [0; 1024], 0))
        .expect_err("it is damaged");
    drop(held);
    drop(fs);
    let looks = open(&image, &MountOptions::new().read_only(true));
    let said = looks.warnings().join("\n");
    assert!(said.contains("1 recorded"), "{said}");
    assert!(said.contains("the journal was aborted"), "{said}");
    drop(looks);
    let fs = open(&image, &options);
    fs.metadata("/made").expect("it was synced");
    let sb = fs.superblock().disk();
    assert_eq!((sb.s_error_count, sb.s_first_error_ino), (1, ino));
    assert_ne!(sb.s_state & STATE_ERROR, 0);
}
