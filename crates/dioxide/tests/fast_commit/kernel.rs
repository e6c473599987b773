//! What the kernel shows after its own replay, and what dioxide shows after this one.

use super::area::{
    BLOCK, blocks_before, crashed, crashed_on, crashed_with, empty, frames, fsync, kinds, records,
    replayed, sync_names, with_quota_from_before,
};
use super::walk::{Tree, assert_same, by_dioxide, by_kernel};
use dioxide::format::journal::fast_commit::Record;
use dioxide::{MountOptions, OpenOptions};
use dioxide_testkit::{Image, Mount, debugfs_query, e2fsck_clean, need_root, pattern};
use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;

/// Directories without what the records do not say of them: their times and blocks.
fn comparable(mut tree: Tree) -> Tree {
    for record in tree.values_mut().filter(|record| record.mode >> 12 == 4) {
        record.times = Default::default();
        record.blocks = 0;
        record.size = 0;
    }
    // Reading a file may have changed when it was read last.
    tree.values_mut()
        .for_each(|record| record.times[0] = (0, 0));
    tree
}

fn by_kernel_replay(image: &Image) -> Tree {
    let copy = image.copy();
    let mount = Mount::ext4(copy.path(), "noatime");
    let tree = by_kernel(mount.path(), 4096);
    mount.unmount();
    comparable(tree)
}

/// None if e2fsck 1.47.0 is known not to do it: of a number that is used again it takes the new file's
/// size and the old one's blocks, it does not see where inline data ends, bigalloc's clusters it
/// gives to several files, and when a directory or a map has to grow it takes a block that a later record
/// names.
fn by_e2fsck_replay(features: &str, image: &Image, records: &[Record]) -> Option<Tree> {
    let fails_at = ["inline_data", "bigalloc", "^extent"];
    let creates = |record: &&Record| matches!(record, Record::Creat(_));
    let mut ranges: BTreeMap<_, u32> = BTreeMap::new();
    for record in records {
        if let Record::AddRange { ino, .. } = record {
            *ranges.entry(*ino).or_default() += 1;
        }
    }
    // An inode has room for four.
    let grows = records.iter().filter(creates).count() > 100 || ranges.values().any(|&n| n > 4);
    if grows || uses_a_number_again(records) || fails_at.iter().any(|name| features.contains(name))
    {
        return None;
    }
    let copy = image.copy();
    let tool = Command::new("e2fsck").arg("-fy").arg(copy.path()).output();
    let status = tool.expect("e2fsck of e2fsprogs").status;
    assert!(status.code().is_some_and(|code| code < 4), "{status}");
    let mount = Mount::ext4(copy.path(), "noatime");
    let tree = by_kernel(mount.path(), 4096);
    mount.unmount();
    Some(comparable(tree))
}

fn uses_a_number_again(records: &[Record]) -> bool {
    let mut generations = BTreeMap::new();
    records.iter().any(|record| match record {
        Record::Inode { ino, raw } => {
            let generation = raw[0x64..0x68].to_vec();
            let before = generations.insert(*ino, generation.clone());
            before.is_some_and(|before| before != generation)
        }
        _ => false,
    })
}

/// What Linux gets right: it does not count the clusters that files lose and get with bigalloc, and not
/// the directories that are made.
fn right_in_linux(features: &str, tree: &Tree) -> Tree {
    let mut tree = tree.clone();
    for record in tree.values_mut() {
        if features.contains("bigalloc") {
            record.blocks = 0;
        }
        if record.mode >> 12 == 4 {
            record.nlink = 0;
        }
    }
    tree
}

/// Linux does not replay what it wrote of a file whose last name went while somebody held it (its own
/// writeback, perhaps): a record of an inode without links.
fn linux_refuses(records: &[Record]) -> bool {
    let unlinked = |record: &Record| match record {
        Record::Inode { raw, .. } => raw[0x1A..0x1C] == [0, 0],
        _ => false,
    };
    records.iter().any(unlinked)
}

/// Replays what `during`, which syncs all that it writes, left, and compares it with what was there
/// before the crash, and with the kernel's replay. How often each kind of record
/// was met.
fn assert_as_kernel(
    features: &str,
    before: impl FnOnce(&Path),
    during: impl FnOnce(&Path),
) -> BTreeMap<&'static str, u32> {
    let mut expected = Tree::new();
    let image = crashed(features, before, |root| {
        during(root);
        expected = comparable(by_kernel(root, 4096));
    });
    let (commits, records) = records(&image);
    assert!(commits > 0, "the kernel made no fast commits");
    let mut kinds = kinds(&records);
    kinds.append(&mut frames(&image));
    println!("{features}: {commits} fast commits, {kinds:?}");
    // Linux puts what such a record adds into an extent tree, which the file has not.
    let may_ask = !linux_refuses(&records) && !features.contains("^extent");
    let by_kernel = may_ask.then(|| by_kernel_replay(&image));
    let by_e2fsck = by_e2fsck_replay(features, &image, &records);
    let fs = replayed(&image, commits);
    let ours = comparable(by_dioxide(&fs));
    assert_same(&expected, &ours);
    if let Some(tree) = &by_kernel {
        println!("against Linux");
        assert_same(
            &right_in_linux(features, tree),
            &right_in_linux(features, &ours),
        );
    }
    if let Some(tree) = &by_e2fsck {
        println!("against e2fsck");
        assert_same(tree, &ours);
        kinds.insert("by e2fsck", 1);
    }
    // What is written next goes where nothing was.
    let file = OpenOptions::new();
    let file = file
        .read(true)
        .write(true)
        .open(&fs, "/base0")
        .expect("a file");
    file.write_at(&[7; 300_000], 0).expect("room");
    drop(file);
    fs.close().expect("a clean end");
    e2fsck_clean(image.path());
    let again = dioxide::Fs::open(image.path(), &MountOptions::new()).expect("it opens");
    assert_eq!(again.warnings(), &[] as &[String]);
    kinds
}

/// What is there before: files of three blocks, some of them with holes, in two directories.
fn base(root: &Path) {
    fs::create_dir(root.join("dir")).expect("a directory");
    for n in 0..12u64 {
        let data = pattern::pattern(n, 0, 12_000);
        fs::write(root.join(format!("base{n}")), &data).expect("room");
        fs::write(root.join(format!("dir/base{n}")), &data).expect("room");
    }
}

fn create_and_append(root: &Path) {
    for n in 0..20u64 {
        let path = root.join(format!("dir/new{n}"));
        let file = File::create(&path).expect("a new file");
        file.write_all_at(&pattern::pattern(n, 0, 3000 + n as usize * 1000), 0)
            .expect("room");
        file.sync_all().expect("a sync");
        file.write_all_at(b"more", n * 50_000).expect("room");
        file.sync_all().expect("a sync");
    }
}

fn write_and_truncate(root: &Path) {
    for n in 0..6u64 {
        let file = File::options()
            .write(true)
            .open(root.join(format!("base{n}")))
            .expect("a file");
        file.write_all_at(&pattern::pattern(n + 100, 0, 20_000), 30_000)
            .expect("room");
        file.sync_all().expect("a sync");
        file.set_len(5000 * n).expect("a length");
        file.sync_all().expect("a sync");
        file.write_all_at(&[n as u8; 5000], 8192).expect("room");
        file.sync_all().expect("a sync");
    }
}

fn allocate_and_punch(root: &Path) {
    for n in 0..4u64 {
        let file = File::create(root.join(format!("fallocated{n}"))).expect("a new file");
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 200_000).expect("room");
        file.sync_all().expect("a sync");
        file.write_all_at(&[n as u8; 9000], 40_000).expect("room");
        file.sync_all().expect("a sync");
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&file, punch, 20_000, 24_000).expect("a hole");
        rustix::fs::fallocate(&file, punch, 100_000, 50_000).expect("a hole");
        file.sync_all().expect("a sync");
    }
}

fn link_unlink_and_rename(root: &Path) {
    let at = |name: &str| root.join(name);
    fs::hard_link(at("base1"), at("dir/second")).expect("a link");
    fsync(&at("base1"));
    fs::hard_link(at("base2"), at("third")).expect("a link");
    fs::remove_file(at("base2")).expect("a name");
    fsync(&at("third"));
    fs::rename(at("base3"), at("dir/moved")).expect("a name");
    fsync(&at("dir/moved"));
    fs::rename(at("base4"), at("dir/base4")).expect("over another file");
    fsync(&at("dir/base4"));
    for n in 5..9 {
        fs::remove_file(at(&format!("dir/base{n}"))).expect("a name");
    }
    sync_names(root, 1);
    for n in 0..5 {
        let name = at(&format!("short-lived{n}"));
        fs::write(&name, b"gone soon").expect("room");
        fsync(&name);
        fs::remove_file(&name).expect("a name");
    }
    sync_names(root, 2);
}

/// Enough pieces that the tree needs blocks of its own.
fn fragment(root: &Path) {
    let file = File::create(root.join("fragmented")).expect("a new file");
    for n in 0..60 {
        file.write_all_at(&[n as u8; 4096], n * 8192).expect("room");
        file.sync_all().expect("a sync");
    }
}

/// More records in one fast commit than a block holds.
fn many_at_once(root: &Path) {
    for n in 0..60 {
        let name = root.join(format!("dir/one of many {n}"));
        File::create(name).expect("a new file");
    }
    sync_names(root, 0);
}

#[test]
fn fast_commits_of_every_kind_give_what_the_kernel_shows() {
    need_root!();
    let mut met: BTreeMap<&str, u32> = BTreeMap::new();
    let works: [fn(&Path); 6] = [
        create_and_append,
        write_and_truncate,
        allocate_and_punch,
        link_unlink_and_rename,
        fragment,
        many_at_once,
    ];
    for work in works {
        for (kind, count) in assert_as_kernel("", base, work) {
            *met.entry(kind).or_default() += count;
        }
    }
    let all = [
        "by e2fsck",
        "ADD_RANGE",
        "DEL_RANGE",
        "CREAT",
        "LINK",
        "UNLINK",
        "INODE",
        "PAD",
        "TAIL",
        "HEAD",
    ];
    for kind in all {
        assert!(
            met.get(kind).is_some_and(|&count| count > 0),
            "{kind}: {met:?}"
        );
    }
}

#[test]
fn fast_commits_on_other_formats_give_what_the_kernel_shows() {
    need_root!();
    for features in [
        "^metadata_csum",
        "^64bit",
        "inline_data",
        "orphan_file",
        "^dir_index",
        "bigalloc",
        "^extent,^64bit",
        "^extent,^64bit,inline_data",
    ] {
        assert_as_kernel(features, base, |root| {
            create_and_append(root);
            write_and_truncate(root);
            link_unlink_and_rename(root);
        });
    }
}

#[test]
fn names_that_fill_blocks_of_a_directory_are_all_there() {
    need_root!();
    let long = |n: u32| format!("dir/{n}-{}", "x".repeat(180));
    let image = crashed("^dir_index", base, |root| {
        for n in 0..60 {
            fs::write(root.join(long(n)), n.to_string()).expect("room");
            fsync(&root.join(long(n)));
        }
    });
    let (commits, _) = records(&image);
    assert!(commits > 30, "{commits}");
    let expected = by_kernel_replay(&image);
    let fs = replayed(&image, commits);
    assert_same(&expected, &comparable(by_dioxide(&fs)));
    fs.close().expect("a clean end");
    e2fsck_clean(image.path());
}

/// A directory of several blocks, which has an index by then.
fn large_directory(root: &Path) {
    base(root);
    for n in 0..400 {
        fs::write(root.join(format!("dir/a longer name than most {n}")), b"").expect("room");
    }
}

#[test]
fn names_of_an_indexed_directory_come_and_go() {
    need_root!();
    let met = assert_as_kernel("", large_directory, |root| {
        for n in 0..6 {
            let name = root.join(format!("dir/a new name of {n}"));
            fs::write(&name, n.to_string()).expect("room");
            fsync(&name);
            let old = root.join(format!("dir/a longer name than most {}", n * 50));
            fs::remove_file(old).expect("a name");
        }
        sync_names(root, 0);
    });
    assert!(met["CREAT"] >= 6 && met["UNLINK"] >= 6, "{met:?}");
}

#[test]
fn names_that_split_blocks_of_an_index_are_all_there() {
    need_root!();
    for features in ["", "bigalloc"] {
        let met = assert_as_kernel(features, large_directory, |root| {
            for n in 0..200 {
                let name = root.join(format!("dir/{n} {}", "x".repeat(100)));
                fs::write(&name, b"").expect("room");
            }
            sync_names(root, 0);
        });
        assert!(met["CREAT"] >= 200, "{met:?}");
    }
}

#[test]
fn directories_in_their_inodes_fill_and_move_out() {
    need_root!();
    let before: fn(&Path) = |root| {
        base(root);
        for name in ["few", "many", "full"] {
            fs::create_dir(root.join(name)).expect("a directory");
        }
        for n in 0..4 {
            fs::write(root.join(format!("full/{n}")), b"").expect("room");
        }
    };
    let met = assert_as_kernel("inline_data", before, |root| {
        for n in 0..3 {
            fs::write(root.join(format!("few/{n}")), b"few").expect("room");
        }
        fs::remove_file(root.join("full/1")).expect("a name");
        fs::rename(root.join("full/2"), root.join("few/2 of full")).expect("a name");
        for n in 0..80 {
            fs::write(root.join(format!("many/file {n}")), b"many").expect("room");
        }
        fs::create_dir(root.join("few/made")).expect("a directory");
        fs::write(root.join("few/made/below"), b"text").expect("room");
        sync_names(root, 0);
    });
    assert!(met["CREAT"] >= 85, "{met:?}");
}

#[test]
fn clusters_that_are_shared_and_lost_by_the_way_count_once() {
    need_root!();
    let before: fn(&Path) = |root| {
        base(root);
        let file = File::create(root.join("holes")).expect("a new file");
        for n in 0..40 {
            file.write_all_at(&[n as u8; 4096], n * 12_288)
                .expect("room");
        }
    };
    assert_as_kernel("bigalloc", before, |root| {
        let file = File::options().write(true).open(root.join("holes"));
        let file = file.expect("a file");
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        for n in 0..20 {
            // The block next to the only one of its cluster, which goes then.
            file.write_all_at(&[n as u8 + 100; 4096], n * 24_576 + 4096)
                .expect("room");
            file.sync_all().expect("a sync");
            rustix::fs::fallocate(&file, punch, n * 24_576, 4096).expect("a hole");
            file.sync_all().expect("a sync");
        }
        let zero = FallocateFlags::ZERO_RANGE;
        rustix::fs::fallocate(&file, zero, 8192, 100_000).expect("zeros");
        file.sync_all().expect("a sync");
    });
}

#[test]
fn usage_is_that_of_the_files_after_the_replay() {
    need_root!();
    for features in ["quota", "quota,inline_data"] {
        let mut expected = Tree::new();
        let image = crashed(features, base, |root| {
            create_and_append(root);
            write_and_truncate(root);
            for n in 0..4 {
                let path = root.join(format!("base{n}"));
                std::os::unix::fs::chown(&path, Some(1000 + n), Some(7)).expect("an owner");
                fsync(&path);
            }
            link_unlink_and_rename(root);
            fs::create_dir(root.join("made")).expect("a directory");
            sync_names(root, 9);
            expected = comparable(by_kernel(root, 4096));
        });
        let (commits, _) = records(&image);
        with_quota_from_before(&image);
        assert_eq!(records(&image).0, commits);
        let fs = replayed(&image, commits);
        assert_same(&expected, &comparable(by_dioxide(&fs)));
        fs.close().expect("a clean end");
        e2fsck_clean(image.path());
    }
}

/// A file without a name.
fn unnamed(root: &Path) -> File {
    let flags = OFlags::TMPFILE | OFlags::RDWR;
    let file = rustix::fs::open(root, flags, Mode::from_raw_mode(0o644));
    File::from(file.expect("a file without a name"))
}

/// Gives a file a name, and syncs it.
fn give_name(file: &File, to: &Path) {
    let fd = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::linkat(CWD, fd, CWD, to, AtFlags::SYMLINK_FOLLOW).expect("a name");
    file.sync_all().expect("a sync");
}

/// As `chattr -v` does, where no checksum depends on it.
#[test]
fn file_that_got_another_generation_keeps_its_names_and_blocks() {
    need_root!();
    for moves in [false, true] {
        let mut expected = Tree::new();
        let image = crashed("^metadata_csum", base, |root| {
            let mut path = root.join("base1");
            write_synced(&path, 100_000, 5000);
            let mut tool = Command::new("chattr");
            let status = tool.args(["-v", "77"]).arg(&path).status();
            assert!(status.expect("chattr of e2fsprogs").success());
            if moves {
                let to = root.join("moved");
                fs::rename(&path, &to).expect("a name");
                path = to;
            }
            write_synced(&path, 200_000, 5000);
            expected = comparable(by_kernel(root, 4096));
        });
        let (commits, records) = records(&image);
        println!("{commits} fast commits, {:?}", kinds(&records));
        assert!(commits > 0);
        let fs = replayed(&image, commits);
        assert_same(&expected, &comparable(by_dioxide(&fs)));
        fs.close().expect("a clean end");
        e2fsck_clean(image.path());
    }
}

/// A number that is used again leaves the list of orphans, in which the one before it is changed too.
#[test]
fn orphans_behind_a_number_that_is_used_again_are_freed() {
    need_root!();
    // The kernel gives the number back late if it still writes the file that had it.
    let image = (0..20).find_map(|_| image_with_a_number_that_is_used_again());
    let image = image.expect("the number is used again");
    let (commits, records) = records(&image);
    println!("{commits} fast commits, {:?}", kinds(&records));
    assert!(commits > 0);
    let fs = replayed(&image, commits);
    let said = fs.warnings().join("\n");
    assert!(said.contains("2 orphans were"), "{said}");
    let tree = by_dioxide(&fs);
    assert!(tree.contains_key(&b"/again"[..]) && tree.contains_key(&b"/named"[..]));
    fs.close().expect("a clean end");
    e2fsck_clean(image.path());
}

/// An orphan is freed, its number given to a file, and a third orphan gets a name. None if the number was not used again.
fn image_with_a_number_that_is_used_again() -> Option<Image> {
    let orphans = RefCell::new(Vec::new());
    let used_again = Cell::new(false);
    let image = crashed(
        "^orphan_file",
        |root| {
            for _ in 0..3 {
                let orphan = unnamed(root);
                orphan.write_all_at(&[5; 10_000], 0).expect("room");
                orphans.borrow_mut().push(orphan);
            }
        },
        |root| {
            // The last leads to the one before it.
            let mut orphans = orphans.take();
            let number = orphans[1].metadata().expect("a file").ino();
            drop(orphans.remove(1));
            fs::write(root.join("again"), b"again").expect("room");
            fsync(&root.join("again"));
            let again = fs::metadata(root.join("again")).expect("a file").ino();
            used_again.set(again == number);
            give_name(&orphans[1], &root.join("named"));
            orphans
        },
    );
    used_again.get().then_some(image)
}

#[test]
fn file_without_a_name_is_freed_and_one_that_got_its_first_is_there() {
    need_root!();
    for features in ["", "^orphan_file", "orphan_file"] {
        let image = crashed(features, base, |root| {
            let open = File::open(root.join("base2")).expect("a file");
            fs::remove_file(root.join("base2")).expect("a name");
            sync_names(root, 0);
            let unnamed = unnamed(root);
            unnamed.write_all_at(&[5; 10_000], 0).expect("room");
            give_name(&unnamed, &root.join("named"));
            (open, unnamed)
        });
        let (commits, records) = records(&image);
        println!("{features}: {commits} fast commits, {:?}", kinds(&records));
        assert!(commits > 0);
        let fs = replayed(&image, commits);
        let said = fs.warnings().join("\n");
        assert!(said.contains("1 orphans were"), "{said}");
        let tree = by_dioxide(&fs);
        assert!(!tree.contains_key(&b"/base2"[..]));
        let named = tree[&b"/named"[..]].content.as_ref();
        assert!(named.is_some_and(|bytes| *bytes == [5; 10_000]));
        fs.close().expect("a clean end");
        e2fsck_clean(image.path());
    }
}

#[test]
fn directories_made_and_removed_in_fast_commits_are_whole() {
    need_root!();
    let image = crashed(
        "",
        |root| {
            base(root);
            fs::create_dir(root.join("old")).expect("a directory");
            fs::write(root.join("old/file"), vec![1; 50_000]).expect("room");
            fs::write(root.join("old/linked"), b"stays").expect("room");
            fs::hard_link(root.join("old/linked"), root.join("stays")).expect("a link");
        },
        |root| {
            fs::create_dir(root.join("made")).expect("a directory");
            fs::create_dir(root.join("made/below")).expect("a directory");
            fs::write(root.join("made/below/file"), b"text").expect("room");
            fsync(&root.join("made/below/file"));
            fs::create_dir(root.join("brief")).expect("a directory");
            sync_names(root, 3);
            fs::remove_file(root.join("old/file")).expect("a name");
            fs::remove_file(root.join("old/linked")).expect("a name");
            fs::remove_dir(root.join("old")).expect("it is empty");
            fs::remove_dir(root.join("brief")).expect("it is empty");
            sync_names(root, 4);
            // Their numbers are in use again.
            fs::create_dir(root.join("again")).expect("a directory");
            sync_names(root, 5);
        },
    );
    let (commits, records) = records(&image);
    println!("{commits} fast commits, {:?}", kinds(&records));
    assert!(commits > 0);
    let fs = replayed(&image, commits);
    let tree = by_dioxide(&fs);
    assert_eq!(
        tree[&b"/made/below/file"[..]].content.as_deref(),
        Some(&b"text"[..])
    );
    assert_eq!(tree[&b"/made"[..]].nlink, 3);
    assert_eq!(tree[&b"/stays"[..]].nlink, 1);
    assert_eq!(tree[&b"/again"[..]].nlink, 2);
    assert!(!tree.contains_key(&b"/old"[..]) && !tree.contains_key(&b"/brief"[..]));
    fs.close().expect("a clean end");
    e2fsck_clean(image.path());
}

#[test]
fn reading_mount_leaves_fast_commits_alone_and_says_so() {
    need_root!();
    let image = crashed("", base, create_and_append);
    let before = fs::read(image.path()).expect("the image");
    let options = MountOptions::new().read_only(true);
    let opened = dioxide::Fs::open(image.path(), &options).expect("it opens");
    let said = opened.warnings().join("\n");
    assert!(said.contains("fast commits follow the journal"), "{said}");
    assert!(opened.metadata("/base0").is_ok());
    drop(opened);
    assert!(before == fs::read(image.path()).expect("the image"));
}

/// The blocks that records add to a file.
fn added(records: &[Record], ino: u64) -> BTreeSet<u64> {
    let of = |record: &Record| match record {
        Record::AddRange { ino: of, extent } if u64::from(of.0) == ino => {
            let start = u64::from(extent.ee_start_lo);
            Some(start..start + u64::from(extent.ee_len & 0x7FFF))
        }
        _ => None,
    };
    records.iter().filter_map(of).flatten().collect()
}

/// Much more than the kernel keeps free for itself.
const GIVEN: usize = 4 << 20;

fn for_writing(path: &Path) -> File {
    File::options().write(true).open(path).expect("a file")
}

/// Writes what has no room but where others gave theirs up.
fn write_synced(path: &Path, at: u64, len: usize) {
    let file = for_writing(path);
    file.write_all_at(&pattern::pattern(at, 0, len), at)
        .expect("what was given up");
    file.sync_all().expect("a sync");
}

fn punch(path: &Path, at: u64, len: u64) {
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(for_writing(path), punch, at, len).expect("a hole");
}

/// Takes all room that is left.
fn fill(path: &Path) {
    let file = File::create(path).expect("a new file");
    let mut at = 0;
    while let Ok(done) = file.write_at(&[1; 65_536], at) {
        at += done as u64;
    }
    let _ = file.sync_all();
}

/// Has a file give up blocks, which another one gets, or more than that.
type Exchange = fn(&Path, &Path);

/// With data=writeback Linux gives blocks to other files before it is committed that they are free.
#[test]
fn blocks_that_changed_files_are_those_of_the_last() {
    need_root!();
    let ways: [(&str, Exchange); 4] = [
        ("cut off", |from, to| {
            for_writing(from).set_len(0).expect("a length");
            write_synced(to, GIVEN as u64, GIVEN / 2);
        }),
        ("punched", |from, to| {
            punch(from, 65_536, GIVEN as u64 - 131_072);
            write_synced(to, GIVEN as u64, GIVEN / 2);
        }),
        ("removed", |from, to| {
            fs::remove_file(from).expect("a name");
            write_synced(to, GIVEN as u64, GIVEN / 2);
        }),
        ("exchanged", |from, to| {
            for_writing(from).set_len(0).expect("a length");
            write_synced(to, GIVEN as u64, GIVEN / 2);
            punch(to, 0, GIVEN as u64 / 2);
            write_synced(from, 0, GIVEN / 4 * 3);
        }),
    ];
    for features in ["", "bigalloc"] {
        for (way, change) in ways {
            let mut numbers = [0; 2];
            let mut expected = Tree::new();
            let before = |root: &Path| {
                base(root);
                for name in ["from", "to"] {
                    let data = pattern::pattern(7, 0, GIVEN);
                    fs::write(root.join(name), data).expect("room");
                }
                fill(&root.join("fill"));
            };
            let during = |root: &Path| {
                let [from, to] = ["from", "to"].map(|name| root.join(name));
                numbers = [&from, &to].map(|path| fs::metadata(path).expect("a file").ino());
                change(&from, &to);
                expected = comparable(by_kernel(root, 4096));
            };
            let image = crashed_with(features, "commit=300,data=writeback", before, during);
            let (commits, records) = records(&image);
            println!("{way}, {features}: {commits}, {:?}", kinds(&records));
            let changes_hands = |from: &str, to: u64| {
                !blocks_before(&image, from).is_disjoint(&added(&records, to))
            };
            assert!(changes_hands("/from", numbers[1]), "{way}, {features}");
            if way == "exchanged" {
                assert!(changes_hands("/to", numbers[0]), "{way}, {features}");
            }
            // What files gave up and others have now is not to be discarded.
            let options = MountOptions::new().discard(true);
            let fs = dioxide::Fs::open(image.path(), &options).expect("it opens");
            assert_eq!(
                fs.read_only(),
                None,
                "{way}, {features}: {:?}",
                fs.warnings()
            );
            assert_same(&expected, &comparable(by_dioxide(&fs)));
            fs.close().expect("a clean end");
            e2fsck_clean(image.path());
        }
    }
}

/// Linux makes the fields of such an inode longer when it writes to the file, and its fast commit tells nothing of the attributes
/// that lie behind them. Linux's own replay loses these.
#[test]
fn attributes_behind_fields_that_grew_are_kept() {
    need_root!();
    let image = empty("^metadata_csum");
    let mount = Mount::ext4(image.path(), "");
    let path = mount.path().join("f");
    fs::write(&path, [1; 100]).expect("room");
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(&path, "user.x", b"value", flags).expect("room");
    mount.unmount();
    // As kernels before 4.5 made them.
    let told = debugfs_query(image.path(), "imap f");
    let number = |before: &str, radix| {
        let from = told.find(before).expect("a place") + before.len();
        let digits = told[from..].split(|c: char| !c.is_ascii_hexdigit());
        u64::from_str_radix(digits.into_iter().next().expect("digits"), radix).expect("a number")
    };
    let at = number("located at block ", 10) * BLOCK as u64 + number("offset 0x", 16);
    let file = File::options().read(true).write(true).open(image.path());
    let file = file.expect("the image");
    let mut raw = [0; 256];
    file.read_exact_at(&mut raw, at).expect("an inode");
    assert_eq!(raw[128..130], [32, 0]);
    raw[128] = 28;
    raw.copy_within(160.., 156);
    raw[252..].fill(0);
    file.write_all_at(&raw, at).expect("an inode");
    let copy = crashed_on(
        &image,
        "commit=300",
        |root| fs::write(root.join("g"), [1; 100]).expect("room"),
        |root| {
            let path = root.join("f");
            let file = File::options()
                .write(true)
                .open(&path)
                .expect("it is there");
            file.write_all_at(&[2; 5000], 0).expect("room");
            file.sync_all().expect("a sync");
        },
    );
    let (commits, records) = records(&copy);
    let grown = |record: &Record| matches!(record, Record::Inode { raw, .. } if raw.len() == 160);
    assert!(records.iter().any(grown), "{records:?}");
    let fs = replayed(&copy, commits);
    let value = fs.xattr("/f", "user.x").expect("it reads");
    assert_eq!(value.as_deref(), Some(&b"value"[..]));
    fs.close().expect("a clean end");
    e2fsck_clean(copy.path());
}
