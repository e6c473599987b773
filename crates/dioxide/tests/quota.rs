//! Quota: usage of users, groups and projects stays exact through all that changes files. The oracle is
//! `e2fsck -fn`, which counts everything again and compares; `debugfs` says what a record holds.

#[path = "model/random.rs"]
mod random;

use dioxide::{
    Error, FallocateMode, File, Fs, MountOptions, NewFile, OpenOptions, RenameMode, SetAttributes,
    XattrMode,
};
use dioxide_testkit::{Image, ImageBuilder, debugfs, debugfs_query, dumpe2fs, e2fsck_clean};
use random::Random;
use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::path::Path;

const PROJINHERIT: u32 = 0x2000_0000;
const IMMUTABLE: u32 = 0x10;

fn builder(features: &str) -> ImageBuilder {
    Image::builder()
        .size(96 << 20)
        .features(&format!("quota,project{features}"))
        .extended("quotatype=usrquota:grpquota:prjquota")
}

fn open(image: &Image) -> Fs {
    let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
    assert_eq!(fs.read_only(), None);
    fs
}

fn on_image(image: &Image, change: impl FnOnce(&Fs)) {
    let fs = open(image);
    change(&fs);
    fs.close().expect("it closes");
    e2fsck_clean(image.path());
}

/// What the files say: by kind and id, bytes and inodes.
fn usages(path: &Path, kind: &str) -> BTreeMap<u32, (u64, u64)> {
    let text = debugfs_query(path, &format!("list_quota {kind}"));
    let rows = text.lines().filter_map(|line| {
        let fields: Vec<u64> = line
            .split_whitespace()
            .filter_map(|word| word.parse().ok())
            .collect();
        match fields[..] {
            [id, bytes, _, _, inodes, ..] => Some((id as u32, (bytes, inodes))),
            _ => None,
        }
    });
    rows.collect()
}

fn make(fs: &Fs, path: &str, new: &NewFile) -> File {
    let options = OpenOptions::new().write(true).create_new(true);
    options.new_file(new).open(fs, path).expect("a new file")
}

/// Files of many owners that are made, changed and removed at random.
struct Play<'a> {
    fs: &'a Fs,
    random: Random,
    files: Vec<String>,
    made: u32,
    /// Ids are drawn below this.
    ids: u64,
}

impl Play<'_> {
    fn id(&mut self) -> u32 {
        self.random.below(0..self.ids) as u32
    }

    fn some(&mut self) -> Option<String> {
        match self.files.len() as u64 {
            0 => None,
            len => Some(self.files[self.random.pick(len) as usize].clone()),
        }
    }

    fn new_path(&mut self) -> String {
        self.made += 1;
        let dir = ["", "/a", "/b"][self.random.pick(3) as usize];
        format!("{dir}/f{}", self.made)
    }

    fn make_one(&mut self) {
        let (path, new) = (self.new_path(), NewFile::new(0o755));
        let new = new.owner(self.id(), self.id());
        match self.random.pick(6) {
            0 => self.fs.create_dir(&path, &new).expect("a directory"),
            1 => {
                let target = "x/".repeat(self.random.below(1..60) as usize);
                self.fs.symlink(&target, &path, &new).expect("a symlink");
            }
            _ => {
                let file = make(self.fs, &path, &new);
                let bytes = vec![7; self.random.below(0..60_000) as usize];
                file.write_at(&bytes, self.random.below(0..200_000))
                    .expect("room");
            }
        }
        self.files.push(path);
    }

    fn own(&mut self, path: &str) {
        let node = self.fs.symlink_node(path).expect("it is there");
        let (uid, gid, project) = (self.id(), self.id(), self.id());
        let set = match self.random.pick(4) {
            0 => SetAttributes::new().uid(uid),
            1 => SetAttributes::new().gid(gid),
            2 => SetAttributes::new().project(project),
            _ => SetAttributes::new()
                .uid(uid)
                .gid(gid)
                .project(project)
                .mode(0o644),
        };
        node.set_attributes(&set).expect("it is changed");
    }

    fn change(&mut self, path: &str) {
        let node = self.fs.symlink_node(path).expect("it is there");
        let Ok(file) = node.open(&OpenOptions::new().write(true)) else {
            return;
        };
        let at = self.random.below(0..300_000);
        match self.random.pick(4) {
            0 => file.set_len(at),
            1 => file.allocate(FallocateMode::Allocate, at, 100_000),
            2 if at < file.len() => file.allocate(FallocateMode::PunchHole, at, 50_000),
            _ => file.write_at(&[9; 20_000], at).map(drop),
        }
        .or_else(|error| match error {
            // Not without extents.
            Error::Unsupported(_) => Ok(()),
            error => Err(error),
        })
        .expect("it is changed");
    }

    fn attribute(&mut self, path: &str, longest: u64) {
        let node = self.fs.symlink_node(path).expect("it is there");
        let name = format!("trusted.x{}", self.random.pick(4));
        if self.random.pick(3) == 0 {
            match node.remove_xattr(&name) {
                Ok(()) | Err(Error::NoAttribute(_)) => {}
                Err(error) => panic!("{error}"),
            }
            return;
        }
        let value = vec![self.random.pick(3) as u8; self.random.below(1..longest) as usize];
        match node.set_xattr(&name, &value, XattrMode::Set) {
            Ok(()) | Err(Error::NoSpace(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }

    fn remove(&mut self, path: &str) {
        let gone = match self.fs.remove_file(path) {
            Err(Error::IsADirectory(_)) => self.fs.remove_dir(path),
            gone => gone,
        };
        gone.expect("it goes");
        self.files.retain(|other| other != path);
    }

    fn rename(&mut self, from: &str, to: &str) {
        match self.fs.rename(from, to, RenameMode::Replace) {
            Ok(()) if from != to => self.files.retain(|other| other != from),
            Ok(()) | Err(Error::IsADirectory(_) | Error::NotADirectory(_)) => {}
            Err(error) => panic!("{error}"),
        }
    }

    fn step(&mut self, longest_value: u64) {
        let (one, other) = (self.some(), self.some());
        match (self.random.pick(10), one, other) {
            (0..3, ..) | (_, None, _) => self.make_one(),
            (3 | 4, Some(path), _) => self.own(&path),
            (5 | 6, Some(path), _) => self.change(&path),
            (7, Some(path), _) => self.attribute(&path, longest_value),
            (8, Some(path), _) => self.remove(&path),
            (_, Some(from), Some(to)) => self.rename(&from, &to),
            _ => {}
        }
    }
}

fn random_play(image: &Image, seed: u64, longest_value: u64) {
    println!("seed {seed}");
    on_image(image, |fs| {
        for dir in ["/a", "/b"] {
            fs.create_dir(dir, &NewFile::new(0o755))
                .expect("a directory");
        }
        let mut play = Play {
            fs,
            random: Random::new(seed),
            files: Vec::new(),
            made: 0,
            ids: 70_000,
        };
        for _ in 0..600 {
            play.step(longest_value);
        }
        play.ids = 5;
        for _ in 0..600 {
            play.step(longest_value);
        }
    });
}

#[test]
fn usage_after_random_changes_is_exact() {
    for seed in 1..4 {
        random_play(&builder("").build(), seed, 3000);
    }
}

#[test]
fn usage_with_blocks_of_1_kib_is_exact() {
    random_play(&builder("").block_size(1024).build(), 11, 800);
}

#[test]
fn usage_with_clusters_is_exact() {
    random_play(&builder(",bigalloc").build(), 21, 3000);
}

#[test]
fn usage_with_values_in_inodes_is_exact() {
    random_play(&builder(",ea_inode").build(), 31, 20_000);
}

// One change for each of them is more than a transaction of this journal holds.
#[test]
fn file_with_very_many_values_in_inodes_is_changed_and_removed() {
    let image = builder(",ea_inode").size(48 << 20).block_size(4096).build();
    let told = dumpe2fs(image.path());
    assert!(told.contains("Total journal blocks:     1024"), "{told}");
    on_image(&image, |fs| {
        let file = make(fs, "/f", &NewFile::new(0o644));
        for number in 0..203u32 {
            let mut value = [b'v'; 4070];
            value[..4].copy_from_slice(&number.to_le_bytes());
            file.set_xattr(format!("user.{number}"), &value, XattrMode::Set)
                .expect("room");
        }
    });
    on_image(&image, |fs| {
        fs.set_attributes("/f", &SetAttributes::new().mode(0o600))
            .expect("it is changed");
        fs.remove_file("/f").expect("it goes");
        fs.sync().expect("it is durable");
        assert_eq!(fs.read_only(), None);
    });
}

#[test]
fn usage_with_inline_data_and_orphan_file_is_exact() {
    random_play(&builder(",inline_data,orphan_file").build(), 41, 800);
}

#[test]
fn usage_without_extents_or_journal_is_exact() {
    random_play(&builder(",^extents,^has_journal,^64bit").build(), 51, 3000);
}

#[test]
fn usage_of_many_ids_splits_the_tree() {
    for block_size in [1024, 4096] {
        let image = builder("").block_size(block_size).build();
        on_image(&image, |fs| {
            let node = {
                make(fs, "/f", &NewFile::new(0o644));
                fs.node("/f").expect("it is there")
            };
            for id in (0..70_000).step_by(97).chain([u32::MAX - 1, 1 << 24]) {
                let set = SetAttributes::new().uid(id).gid(id / 2).project(id + 1);
                node.set_attributes(&set).expect("it is changed");
            }
            for id in 0..300 {
                let path = format!("/g{id}");
                make(fs, &path, &NewFile::new(0o644).owner(id, 3 * id));
            }
        });
        let users = usages(image.path(), "user");
        assert_eq!(users.get(&(1 << 24)).map(|usage| usage.1), Some(1));
        assert!((1..300).all(|id| users[&id].1 == 1), "{users:?}");
    }
}

#[test]
fn usage_is_what_debugfs_reads() {
    let image = builder("").build();
    on_image(&image, |fs| {
        let file = make(fs, "/f", &NewFile::new(0o644).owner(1000, 2000));
        file.write_at(&[1; 12_288], 0).expect("room");
        let set = SetAttributes::new().project(3000);
        file.set_attributes(&set).expect("it is changed");
    });
    for (kind, id) in [("user", 1000), ("group", 2000), ("project", 3000)] {
        assert_eq!(usages(image.path(), kind).get(&id), Some(&(12_288, 1)));
    }
    on_image(&image, |fs| fs.remove_file("/f").expect("it goes"));
    for (kind, id) in [("user", 1000), ("group", 2000), ("project", 3000)] {
        let left = usages(image.path(), kind).get(&id).copied();
        assert!(matches!(left, None | Some((0, 0))), "{left:?}");
    }
}

#[test]
fn usage_of_a_removed_file_lasts_until_it_is_closed() {
    let image = builder("").build();
    on_image(&image, |fs| {
        let file = make(fs, "/f", &NewFile::new(0o644).owner(5, 5));
        fs.remove_file("/f").expect("it goes");
        file.write_at(&[1; 40_000], 0).expect("room");
        drop(file);
        let unnamed = OpenOptions::new()
            .write(true)
            .new_file(&NewFile::new(0o600).owner(6, 6))
            .open_unnamed(fs, "/")
            .expect("a file");
        unnamed.write_at(&[1; 5000], 0).expect("room");
        unnamed.link("/g").expect("a name");
    });
    assert_eq!(usages(image.path(), "user").get(&6), Some(&(8192, 1)));
}

#[test]
fn usage_counted_by_four_threads_is_exact() {
    let image = builder("").build();
    on_image(&image, |fs| {
        std::thread::scope(|scope| {
            for thread in 0..4u32 {
                scope.spawn(move || {
                    let dir = format!("/d{thread}");
                    fs.create_dir(&dir, &NewFile::new(0o755))
                        .expect("a directory");
                    for n in 0..150 {
                        let path = format!("{dir}/{n}");
                        let owner = NewFile::new(0o644).owner(n * 7, n % 3);
                        make(fs, &path, &owner)
                            .write_at(&[1; 5000], 0)
                            .expect("room");
                        if n % 3 == 0 {
                            fs.remove_file(&path).expect("it goes");
                        }
                    }
                });
            }
        });
    });
}

#[test]
fn usage_after_a_mount_without_a_clean_end_is_exact() {
    let image = builder("").build();
    let fs = open(&image);
    for id in 0..60 {
        let new = NewFile::new(0o644).owner(100 * id, id);
        make(&fs, &format!("/f{id}"), &new)
            .write_at(&[1; 9000], 0)
            .expect("room");
    }
    fs.sync().expect("it is durable");
    drop(fs);
    on_image(&image, |fs| fs.remove_file("/f7").expect("it goes"));
}

#[test]
#[should_panic(expected = "e2fsck")]
fn usage_that_is_wrong_is_found_by_the_oracle() {
    let image = builder("").build();
    on_image(&image, |fs| drop(make(fs, "/f", &NewFile::new(0o644))));
    debugfs(image.path(), &["sif /f uid 77"]);
    e2fsck_clean(image.path());
}

#[test]
fn quota_file_that_is_damaged_is_not_written_to() {
    let image = builder("").build();
    debugfs(image.path(), &["ssv grp_quota_inum 2"]);
    assert_only_read(&image);
}

/// It is told when it is opened.
fn assert_only_read(image: &Image) {
    let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
    let why = fs.read_only().expect("it is read-only");
    assert!(why.contains("quota file"), "{why}");
    let made = fs.create_dir("/d", &NewFile::new(0o755));
    assert_eq!(made.expect_err("nothing is counted").errno(), libc::EROFS);
}

// It would count its own growth, and wait for its own lock.
#[test]
fn quota_file_that_is_an_ordinary_file_is_refused() {
    for (field, number) in [("usr_quota_inum", 3), ("grp_quota_inum", 4)] {
        let image = builder("").size(8 << 20).block_size(1024).build();
        let host = tempfile::NamedTempFile::new().expect("a temporary file");
        let host = host.path().display();
        let make = [format!("dump <{number}> {host}"), format!("write {host} f")];
        debugfs(image.path(), &make);
        let ino = open(&image).metadata("/f").expect("it is there").ino;
        debugfs(image.path(), &[format!("ssv {field} {ino}")]);
        assert_only_read(&image);
    }
}

#[test]
fn quota_file_whose_pointers_lead_nowhere_is_refused() {
    let image = builder("").block_size(1024).build();
    // Of the user's file the root: id 0 leads to block 4,000 there.
    let runs = dioxide_testkit::leaf_extents(image.path(), "<3>");
    let root = runs[0].physical + 1;
    let bytes = 4000u32.to_le_bytes();
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .open(image.path())
        .expect("the image");
    use std::io::{Seek, SeekFrom, Write};
    file.seek(SeekFrom::Start(root * 1024)).expect("a place");
    file.write_all(&bytes).expect("it is written");
    let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
    let made = fs.create_dir("/d", &NewFile::new(0o755));
    assert!(matches!(made, Err(Error::Corrupt { .. })), "{made:?}");
}

/// The next new owner had a record there, and no space for it, after the transaction had begun to change things.
#[test]
fn quota_file_that_counts_blocks_behind_its_end_is_refused() {
    let image = builder("").block_size(1024).build();
    let runs = dioxide_testkit::leaf_extents(image.path(), "<3>");
    let file = std::fs::OpenOptions::new().write(true).open(image.path());
    let blocks = 1_000_000u32.to_le_bytes();
    let written = file
        .expect("the image")
        .write_all_at(&blocks, runs[0].physical * 1024 + 0x14);
    written.expect("it is written");
    assert_only_read(&image);
}

#[test]
fn project_of_a_directory_that_hands_it_on_is_that_of_new_files() {
    let image = builder("").build();
    on_image(&image, |fs| {
        for dir in ["/p", "/q"] {
            fs.create_dir(dir, &NewFile::new(0o755))
                .expect("a directory");
        }
        let flags = 0x80000 | PROJINHERIT;
        let set = SetAttributes::new().project(42).flags(flags);
        fs.set_attributes("/p", &set).expect("it is changed");
        make(fs, "/p/f", &NewFile::new(0o644));
        let project = |path: &str| fs.metadata(path).expect("it is there").project;
        assert_eq!(project("/p/f"), Some(42));
        make(fs, "/q/g", &NewFile::new(0o644));
        let moved = fs.rename("/q/g", "/p/g", RenameMode::Replace);
        assert_eq!(moved.map_err(|error| error.errno()), Err(libc::EXDEV));
        let linked = fs.hard_link("/q/g", "/p/g");
        assert!(matches!(linked, Err(Error::CrossProject(_))), "{linked:?}");
        let swapped = fs.rename("/p/f", "/q/g", RenameMode::Exchange);
        assert!(
            matches!(swapped, Err(Error::CrossProject(_))),
            "{swapped:?}"
        );
        fs.hard_link("/q/g", "/p-to-be").expect("room");
        fs.create_dir("/r", &NewFile::new(0o755)).expect("room");
        fs.rename("/p-to-be", "/r/g", RenameMode::Replace)
            .expect("room");
        fs.set_attributes("/r", &set).expect("it is changed");
        fs.rename("/q/g", "/r/g", RenameMode::Exchange)
            .expect("two names of one file");
        fs.rename("/p/f", "/q/f", RenameMode::Replace)
            .expect("out of it");
        fs.set_attributes("/q/g", &SetAttributes::new().project(42))
            .expect("it is changed");
        fs.rename("/q/g", "/p/g", RenameMode::Replace)
            .expect("into it");
        // As Linux: it is a flag of directories.
        let set = fs.set_attributes("/q/f", &SetAttributes::new().flags(flags));
        assert_eq!(set.map_err(|error| error.errno()), Err(libc::EOPNOTSUPP));
    });
    let said = debugfs_query(image.path(), "stat /q/f");
    assert!(said.contains("Flags: 0x80000\n"), "{said}");
}

// As in Linux.
#[test]
fn other_errors_come_before_that_of_another_project() {
    let image = builder("").build();
    on_image(&image, |fs| {
        for dir in ["/p", "/p/d", "/q", "/q/d"] {
            fs.create_dir(dir, &NewFile::new(0o755))
                .expect("a directory");
        }
        for file in ["/p/f", "/p/fixed", "/q/f", "/q/fixed", "/q/gone"] {
            make(fs, file, &NewFile::new(0o644));
        }
        let flags = |path, flags| {
            let set = SetAttributes::new().flags(flags);
            fs.set_attributes(path, &set).expect("it is changed");
        };
        let set = SetAttributes::new().project(42);
        let set = set.flags(0x80000 | PROJINHERIT);
        fs.set_attributes("/p", &set).expect("it is changed");
        let fixed = ["/p/fixed", "/q/fixed"];
        let before = fixed.map(|path| fs.metadata(path).expect("it is there").flags);
        for path in fixed {
            flags(path, before[0] | IMMUTABLE);
        }
        for (from, to, mode, errno) in [
            ("/q/fixed", "/p/new", RenameMode::Replace, libc::EPERM),
            ("/q/f", "/p/fixed", RenameMode::Replace, libc::EPERM),
            ("/q/f", "/p/fixed", RenameMode::Exchange, libc::EPERM),
            ("/p/f", "/q/fixed", RenameMode::Exchange, libc::EPERM),
            ("/q/d", "/p/f", RenameMode::Replace, libc::ENOTDIR),
            ("/q/f", "/p/d", RenameMode::Replace, libc::EISDIR),
            ("/q/d", "/p/f", RenameMode::Exchange, libc::EXDEV),
            ("/q/f", "/p/f", RenameMode::Replace, libc::EXDEV),
            ("/q/f", "/p/new", RenameMode::Replace, libc::EXDEV),
        ] {
            let moved = fs.rename(from, to, mode);
            let moved = moved.map_err(|error| error.errno());
            assert_eq!(moved, Err(errno), "{from} {to} {mode:?}");
        }
        let (gone, dir) = (fs.node("/q/gone"), fs.node("/p"));
        let (gone, dir) = (gone.expect("it is there"), dir.expect("it is there"));
        fs.remove_file("/q/gone").expect("it is there");
        let linked = gone.link(&dir, b"new").map_err(|error| error.errno());
        assert_eq!(linked, Err(libc::ENOENT));
        for path in fixed {
            flags(path, before[0]);
        }
    });
}

// As Linux: with the feature, the ids that inodes have lose their meaning.
#[test]
fn project_from_before_the_feature_was_cleared_is_none() {
    let image = Image::builder().features("project").build();
    on_image(&image, |fs| {
        for (dir, project) in [("/p", 11), ("/q", 22)] {
            fs.create_dir(dir, &NewFile::new(0o755))
                .expect("a directory");
            let set = SetAttributes::new().project(project);
            fs.set_attributes(dir, &set.flags(0x80000 | PROJINHERIT))
                .expect("it is changed");
        }
        make(fs, "/p/f", &NewFile::new(0o644));
    });
    debugfs(image.path(), &["feature -project"]);
    on_image(&image, |fs| {
        fs.rename("/p/f", "/q/f", RenameMode::Replace)
            .expect("projects are off");
        fs.hard_link("/q/f", "/p/g").expect("they are");
        make(fs, "/q/new", &NewFile::new(0o644));
    });
    let said = debugfs_query(image.path(), "stat /q/new");
    assert!(said.contains("Project:     0"), "{said}");
}

#[test]
fn project_without_the_feature_or_room_is_refused() {
    let image = Image::builder().build();
    let fs = open(&image);
    let refused = fs.set_attributes("/", &SetAttributes::new().project(1));
    assert_eq!(
        refused.map_err(|error| error.errno()),
        Err(libc::EOPNOTSUPP)
    );
    fs.set_attributes("/", &SetAttributes::new().project(0))
        .expect("no change");
}

#[test]
fn owner_that_finds_no_space_for_its_record_changes_nothing() {
    let image = builder(",^has_journal").size(8 << 20).build();
    on_image(&image, |fs| {
        let file = make(fs, "/f", &NewFile::new(0o644));
        let mut at = 0;
        while file.write_at(&[1; 4096], at).is_ok() {
            at += 4096;
        }
        for id in 0..400 {
            let path = format!("/g{id}");
            let new = NewFile::new(0o644).owner(id * 300, id * 70_000);
            let options = OpenOptions::new().write(true).create_new(true);
            match options.new_file(&new).open(fs, &path) {
                Ok(_) | Err(Error::NoSpace(_)) => {}
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!(fs.read_only(), None);
    });
}

// With blocks of 1 KiB a record takes up to four of them, and each may be the one that finds no space.
#[test]
fn record_that_finds_no_space_for_its_second_block_leaves_a_sound_file() {
    let image = builder(",^has_journal").size(8 << 20).block_size(1024);
    let image = image.build();
    on_image(&image, |fs| {
        let file = make(fs, "/f", &NewFile::new(0o644));
        let mut at = 0;
        while file.write_at(&[1; 1024], at).is_ok() {
            at += 1024;
        }
        let mut refused = 0;
        for id in 1..250 {
            let new = NewFile::new(0o644).owner(id << 24, id << 24);
            let options = OpenOptions::new().write(true).create_new(true);
            match options.new_file(&new).open(fs, format!("/g{id}")) {
                Ok(_) => {}
                Err(Error::NoSpace(_)) => refused += 1,
                Err(error) => panic!("{error}"),
            }
        }
        assert!(refused > 0, "the file system is full");
        assert_eq!(fs.read_only(), None);
    });
}
