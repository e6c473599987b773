//! Records that Linux does not write so, made from others.

use super::area::{
    Tlv, area, blocks_before, crashed, crashed_on, debugfs_write, fsync, over_garbage, records,
    replayed, seal, sync_names, tlvs, unloaded, with_quota_from_before, with_small_log,
};
use super::walk::by_dioxide;
use dioxide::format::journal::fast_commit::Record;
use dioxide::format::superblock::SuperBlock;
use dioxide::{Fs, MountOptions};
use dioxide_testkit::{Image, e2fsck_clean, need_root};
use std::cell::Cell;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};

const ADD_RANGE: u16 = 1;
const DEL_RANGE: u16 = 2;
const CREAT: u16 = 3;
const LINK: u16 = 4;
const UNLINK: u16 = 5;
const INODE: u16 = 6;

/// Changes the records of an image, and makes their checksums right.
fn forge(image: &Image, change: impl Fn(&mut [u8], &Tlv)) {
    let mut bytes = fs::read(image.path()).expect("the image");
    let tlvs = tlvs(&bytes, &area(image));
    for tlv in &tlvs {
        change(&mut bytes, tlv);
    }
    seal(&mut bytes, &tlvs);
    fs::write(image.path(), bytes).expect("room");
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// An image in which `/from/dir` becomes the entry `moved` of a directory, `/to` or itself. Linux commits
/// such moves in full, so the records are those of the file `/from/fil`, as if it were the directory.
fn moved(into: &str) -> Image {
    let mut numbers = [0; 3];
    let image = crashed(
        "",
        |root| {
            for name in ["from", "to", "from/dir", "from/dir/below"] {
                fs::create_dir(root.join(name)).expect("a directory");
            }
            fs::write(root.join("from/fil"), b"a file").expect("room");
        },
        |root| {
            let number = |name: &str| fs::metadata(root.join(name)).expect("it is there").ino();
            numbers = ["from/fil", "from/dir", into].map(|name| number(name) as u32);
            fs::rename(root.join("from/fil"), root.join("from/moved")).expect("a name");
            fsync(&root.join("from/moved"));
        },
    );
    let [file, dir, parent] = numbers.map(u32::to_le_bytes);
    forge(&image, |bytes, tlv| {
        let value = &mut bytes[tlv.value..tlv.value + tlv.len];
        if [LINK, UNLINK].contains(&tlv.tag) {
            assert_eq!(value[4..8], file);
            value[4..8].copy_from_slice(&dir);
        }
        match tlv.tag {
            LINK => value[..4].copy_from_slice(&parent),
            UNLINK => value[8..].copy_from_slice(b"dir"),
            _ => {}
        }
    });
    image
}

#[test]
fn directory_that_moved_leads_to_its_new_parent() {
    need_root!();
    let image = moved("to");
    let (commits, _) = records(&image);
    let fs = replayed(&image, commits);
    let tree = by_dioxide(&fs);
    assert_eq!(tree[&b"/to"[..]].nlink, 3);
    assert_eq!(tree[&b"/from"[..]].nlink, 2);
    assert!(tree.contains_key(&b"/from/fil"[..]) && !tree.contains_key(&b"/from/dir"[..]));
    assert!(tree.contains_key(&b"/to/moved/below"[..]));
    fs.close().expect("a clean end");
    e2fsck_clean(image.path());
}

#[test]
fn directory_that_gets_into_itself_is_refused_with_nothing_written() {
    need_root!();
    let image = moved("from/dir");
    let (commits, _) = records(&image);
    let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
    let why = fs.read_only().expect("read-only").to_owned();
    assert!(why.contains("fast commits"), "{why}");
    drop(fs);
    assert_eq!(records(&image).0, commits, "they are still there");
}

/// An image with a file that was cut off and written to in fast commits, in whose records it has the number that `of` makes of
/// its own.
fn of_another(features: &str, of: impl Fn(&SuperBlock, u32) -> u32) -> Image {
    let mut number = 0;
    let image = crashed(
        features,
        |root| {
            let path = root.join("file");
            fs::write(&path, vec![1; 60_000]).expect("room");
            if features.contains("ea_inode") {
                let flags = rustix::fs::XattrFlags::empty();
                rustix::fs::setxattr(&path, "user.large", &[7; 9000], flags).expect("room");
            }
        },
        |root| {
            let file = fs::File::options().write(true).open(root.join("file"));
            let file = file.expect("it is there");
            number = file.metadata().expect("a file").ino() as u32;
            file.set_len(4096).expect("a length");
            fsync(&root.join("file"));
            file.write_all_at(&[2; 4096], 90_000).expect("room");
            fsync(&root.join("file"));
            fs::write(root.join("new"), b"new").expect("room");
            fsync(&root.join("new"));
        },
    );
    if features.contains("quota") {
        with_quota_from_before(&image);
    }
    let sb = fs::read(image.path()).expect("the image");
    let other = of(
        &SuperBlock::parse(&sb[1024..]).expect("a superblock"),
        number,
    );
    forge(&image, |bytes, tlv| {
        let is_its_own = [ADD_RANGE, DEL_RANGE, INODE].contains(&tlv.tag);
        if is_its_own && word(bytes, tlv.value) == number {
            bytes[tlv.value..tlv.value + 4].copy_from_slice(&other.to_le_bytes());
        }
    });
    image
}

/// Linux commits so what becomes of its quota files, but not what is in them.
#[test]
fn records_of_quota_files_are_passed_over() {
    need_root!();
    // Of users and of groups.
    for kind in 0..2 {
        let image = of_another("quota", |sb, _| sb.quota_inums()[kind]);
        let (commits, _) = records(&image);
        assert!(commits > 0);
        let fs = replayed(&image, commits);
        let tree = by_dioxide(&fs);
        assert_eq!(tree[&b"/new"[..]].content.as_deref(), Some(&b"new"[..]));
        assert_eq!(tree[&b"/file"[..]].size, 60_000);
        fs.close().expect("a clean end");
        e2fsck_clean(image.path());
    }
}

#[test]
fn records_of_what_is_no_file_are_refused_with_nothing_written() {
    need_root!();
    let orphans = of_another("orphan_file", |sb, _| {
        sb.orphan_file_inum().expect("it has one").0
    });
    // The inode that holds the attribute's value was made after that of the file.
    let value = of_another("ea_inode", |_, number| number + 1);
    for image in [orphans, value] {
        let (commits, _) = records(&image);
        let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
        let why = fs.read_only().expect("read-only").to_owned();
        assert!(why.contains("it is the number of no file"), "{why}");
        drop(fs);
        assert_eq!(records(&image).0, commits, "they are still there");
    }
}

#[test]
fn directory_that_a_file_names_too_leads_to_the_directory_that_does() {
    need_root!();
    let mut numbers = [0; 3];
    let image = crashed(
        "",
        |root| {
            fs::write(root.join("file"), b"a file").expect("room");
            fs::create_dir(root.join("dir")).expect("a directory");
        },
        |root| {
            fs::create_dir(root.join("dir/made")).expect("a directory");
            fs::write(root.join("spare"), b"spare").expect("room");
            fsync(&root.join("spare"));
            let number = |name: &str| fs::metadata(root.join(name)).expect("it is there").ino();
            numbers = ["file", "spare", "dir/made"].map(|name| number(name) as u32);
        },
    );
    let [file, spare, made] = numbers;
    forge(&image, |bytes, tlv| {
        let value = &mut bytes[tlv.value..tlv.value + tlv.len];
        if tlv.tag == CREAT && value[4..8] == spare.to_le_bytes() {
            value[..4].copy_from_slice(&file.to_le_bytes());
            value[4..8].copy_from_slice(&made.to_le_bytes());
        }
    });
    let (commits, _) = records(&image);
    let fs = replayed(&image, commits);
    assert_eq!(by_dioxide(&fs)[&b"/dir/made"[..]].nlink, 2);
    fs.close().expect("a clean end");
    e2fsck_clean(image.path());
}

/// A replay by Linux does not count the directories that it makes.
#[test]
fn directory_with_too_few_links_stays_when_those_in_it_go() {
    need_root!();
    let image = crashed(
        "",
        |root| {
            for name in ["dir", "dir/one", "dir/two"] {
                fs::create_dir(root.join(name)).expect("a directory");
            }
            fs::write(root.join("dir/file"), b"a file").expect("room");
        },
        |root| {
            for name in ["dir/one", "dir/two"] {
                fs::remove_dir(root.join(name)).expect("it is empty");
            }
            sync_names(root, 0);
        },
    );
    let (commits, _) = records(&image);
    assert!(commits > 0);
    let device = with_small_log(&image, 500);
    fs::write(image.path(), unloaded(&*device)).expect("room");
    debugfs_write(image.path(), "set_inode_field /dir links_count 2");
    let fs = replayed(&image, commits);
    let tree = by_dioxide(&fs);
    assert_eq!(tree[&b"/dir"[..]].nlink, 2);
    assert!(tree.contains_key(&b"/dir/file"[..]) && !tree.contains_key(&b"/dir/one"[..]));
    fs.close().expect("a clean end");
    e2fsck_clean(image.path());
}

#[test]
fn block_that_two_ranges_of_a_file_have_is_refused_with_nothing_written() {
    need_root!();
    for features in ["", "bigalloc"] {
        let image = crashed(
            features,
            |root| fs::write(root.join("file"), b"").expect("room"),
            |root| {
                let file = fs::File::options().write(true).open(root.join("file"));
                let file = file.expect("it is there");
                for at in [0, 64 << 14] {
                    file.write_all_at(&[at as u8 + 1; 4096], at).expect("room");
                }
                fsync(&root.join("file"));
            },
        );
        let first = Cell::new(None);
        // The number of its first block is what a range ends with.
        forge(&image, |bytes, tlv| {
            if tlv.tag == ADD_RANGE {
                let at = tlv.value + tlv.len - 4;
                let block = first.take().unwrap_or_else(|| word(bytes, at));
                first.set(Some(block));
                bytes[at..at + 4].copy_from_slice(&block.to_le_bytes());
            }
        });
        let (commits, ranges) = records(&image);
        let ranges = ranges
            .iter()
            .filter(|record| matches!(record, Record::AddRange { .. }));
        assert_eq!(ranges.count(), 2, "two ranges of one block");
        let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
        let why = fs.read_only().expect("read-only").to_owned();
        assert!(why.contains("is mapped twice"), "{why}");
        drop(fs);
        assert_eq!(records(&image).0, commits, "they are still there");
    }
}

#[test]
fn number_of_a_file_with_attributes_of_its_own_is_used_again() {
    need_root!();
    for features in ["", "ea_inode", "bigalloc"] {
        let value = vec![
            7;
            if features.contains("ea_inode") {
                9000
            } else {
                3000
            }
        ];
        let mut number = 0;
        let image = crashed(
            features,
            |root| {
                fs::write(root.join("old"), vec![1; 20_000]).expect("room");
                let (path, flags) = (root.join("old"), rustix::fs::XattrFlags::empty());
                rustix::fs::setxattr(&path, "user.large", &value, flags).expect("room");
            },
            |root| {
                number = fs::metadata(root.join("old")).expect("a file").ino() as u32;
                fs::rename(root.join("old"), root.join("new")).expect("a name");
                fsync(&root.join("new"));
            },
        );
        // The name is that of a new file without blocks or attributes.
        forge(&image, |bytes, tlv| {
            let value = tlv.value;
            match tlv.tag {
                LINK => {
                    assert_eq!(word(bytes, value + 4), number);
                    bytes[value - 4] = CREAT as u8;
                }
                INODE if word(bytes, value) == number => {
                    let raw = &mut bytes[value + 4..];
                    raw[0x64] ^= 1;
                    raw[0x68..0x6C].fill(0);
                }
                _ => {}
            }
        });
        let (commits, _) = records(&image);
        let fs = replayed(&image, commits);
        let tree = by_dioxide(&fs);
        let new = &tree[&b"/new"[..]];
        assert_eq!((new.ino, new.nlink), (u64::from(number), 1));
        assert_eq!((new.blocks, new.xattrs.len()), (0, 0));
        fs.close().expect("a clean end");
        e2fsck_clean(image.path());
    }
}

/// What lies before the inode in its table was never written, and a check looks there from now on.
#[test]
fn number_far_behind_those_in_use_is_taken_with_zeros_before_it() {
    need_root!();
    const NUMBER: u32 = 1500;
    let mut number = 0;
    let image = crashed_on(
        &over_garbage(),
        "commit=300,noinit_itable",
        |root| fs::write(root.join("first"), b"a file").expect("room"),
        |root| {
            fs::write(root.join("file"), b"a file").expect("room");
            number = fs::metadata(root.join("file")).expect("a file").ino() as u32;
            fsync(&root.join("file"));
        },
    );
    forge(&image, |bytes, tlv| {
        let at = match tlv.tag {
            CREAT => tlv.value + 4,
            INODE | ADD_RANGE => tlv.value,
            _ => return,
        };
        assert_eq!(word(bytes, at), number);
        bytes[at..at + 4].copy_from_slice(&NUMBER.to_le_bytes());
    });
    let (commits, _) = records(&image);
    let fs = replayed(&image, commits);
    assert_eq!(by_dioxide(&fs)[&b"/file"[..]].ino, u64::from(NUMBER));
    fs.close().expect("a clean end");
    e2fsck_clean(image.path());
}

#[test]
fn block_that_another_file_has_or_gets_is_refused_with_nothing_written() {
    need_root!();
    for gives_up in [false, true] {
        let image = crashed(
            "",
            |root| fs::write(root.join("first"), [1; 4096]).expect("room"),
            |root| {
                if gives_up {
                    let file = fs::File::options().write(true).open(root.join("first"));
                    file.expect("it is there").set_len(0).expect("a length");
                    fsync(&root.join("first"));
                }
                for name in ["second", "third"] {
                    fs::write(root.join(name), [2; 4096]).expect("room");
                    fsync(&root.join(name));
                }
            },
        );
        let block = blocks_before(&image, "/first").first().copied();
        let block = u32::try_from(block.expect("a block")).expect("a small image");
        let ranges = Cell::new(0);
        forge(&image, |bytes, tlv| {
            if tlv.tag == ADD_RANGE {
                let at = tlv.value + tlv.len - 4;
                bytes[at..at + 4].copy_from_slice(&block.to_le_bytes());
                ranges.set(ranges.get() + 1);
            }
        });
        assert_eq!(ranges.get(), 2);
        let (commits, _) = records(&image);
        let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
        let why = fs.read_only().expect("read-only").to_owned();
        assert!(why.contains("cannot be replayed"), "{why}");
        assert_eq!(why.contains("two files get it"), gives_up, "{why}");
        drop(fs);
        assert_eq!(records(&image).0, commits, "they are still there");
    }
}
