//! A tree of all kinds of files at the end of a file system, and what of it must stay as it is.

use crate::walk::{Record, Tree, by_dioxide, by_kernel};
use dioxide::{
    Error, FallocateMode, Fs, MountOptions, NewFile, OpenOptions, RenameMode, Special, XattrMode,
};
use dioxide_testkit::{Image, Mount, pattern};
use std::collections::HashMap;
use std::path::Path;

/// Puts all kinds of files behind `share` percent of an empty file system. `seed` decides on their sizes.
pub fn fill(image: &Image, share: u64, seed: u64) {
    let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
    let (block, all) = (
        u64::from(fs.block_size()),
        fs.statfs().blocks * u64::from(fs.block_size()),
    );
    let free = fs.statfs().blocks_free * block;
    let filler = (all * share / 100).min(free * 9 / 10);
    let file = create(&fs, "/filler");
    let (mut at, step) = (0, 1 << 20);
    while at < filler {
        // Files without extents have no blocks that are not written.
        match file.allocate(FallocateMode::Allocate, at, step) {
            Ok(()) => {}
            Err(_) => {
                let done = file.write_at(&vec![1; step as usize], at);
                assert_eq!(done.expect("room") as u64, step);
            }
        }
        at += step;
    }
    fs.create_dir("/inodes", &NewFile::new(0o755))
        .expect("a directory");
    let spare = (0..fs.statfs().files_free * share / 100).map(|n| format!("/inodes/{n}"));
    let spare: Vec<String> = spare.collect();
    for name in &spare {
        fs.mknod(name, Special::Fifo, &NewFile::default())
            .expect("an inode");
    }
    tree(&fs, seed);
    fs.sync().expect("a sync");
    for name in &spare {
        fs.remove_file(name).expect("it goes");
    }
    fs.remove_dir("/inodes").expect("it goes");
    drop(file);
    fs.remove_file("/filler").expect("it goes");
    fs.close().expect("it closes");
}

fn create(fs: &Fs, path: &str) -> dioxide::File {
    let options = OpenOptions::new().read(true).write(true).create(true);
    options
        .open(fs, path)
        .unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn write(fs: &Fs, path: &str, len: usize, seed: u64) {
    let file = create(fs, path);
    if len > 0 {
        file.write_at(&pattern(seed, 0, len), 0).expect("room");
    }
}

fn tree(fs: &Fs, seed: u64) {
    let block = fs.block_size() as usize;
    let mut random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut below = |most: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % most
    };
    for n in 0..6 {
        let dir = format!("/top{n}");
        fs.create_dir(&dir, &NewFile::new(0o750).owner(n, 2 * n))
            .expect("a directory");
        fs.create_dir(format!("{dir}/sub"), &NewFile::new(0o755))
            .expect("a directory");
        for m in 0..8 {
            let len = below(6 * block as u64) as usize;
            write(fs, &format!("{dir}/f{m}"), len, u64::from(n) + m);
        }
        fs.hard_link(format!("{dir}/f1"), format!("{dir}/sub/again"))
            .expect("a link");
        fs.hard_link(format!("{dir}/f1"), format!("/again{n}"))
            .expect("a link");
        fs.symlink("short", format!("{dir}/short"), &NewFile::default())
            .expect("a link");
        fs.symlink(
            "long/".repeat(40),
            format!("{dir}/long"),
            &NewFile::default(),
        )
        .expect("a link");
        let device = Special::CharDevice(4, n);
        fs.mknod(format!("{dir}/device"), device, &NewFile::default())
            .expect("a device");
        // Equal ones share a block.
        let value = [7; 300];
        for name in ["f2", "f3", "sub"] {
            let path = format!("{dir}/{name}");
            attribute(fs, &path, "user.shared", &value);
        }
        attribute(
            fs,
            &format!("{dir}/f4"),
            "user.own",
            &pattern(n.into(), 0, 200),
        );
    }
    // Moved, so that `..` is not the directory before.
    fs.rename("/top1/sub", "/top2/moved", RenameMode::Replace)
        .expect("a name");
    attribute(fs, "/top3/f0", "user.large", &pattern(5, 0, 3 * block));
    fs.create_dir("/names", &NewFile::new(0o755))
        .expect("a directory");
    for n in 0..300 {
        write(fs, &format!("/names/a name of some length {n}"), 10, n);
    }
    // Blocks in turn, so that both have many extents.
    let pair = [create(fs, "/odd"), create(fs, "/even")];
    for n in 0..400u64 {
        let data = pattern(n, 0, block);
        pair[n as usize % 2]
            .write_at(&data, n / 2 * 2 * block as u64)
            .expect("room");
    }
    let file = create(fs, "/holes");
    file.write_at(&pattern(9, 0, 3 * block), 100 * block as u64)
        .expect("room");
    let at = 50 * block as u64;
    // Not without extents.
    let _ = file.allocate(FallocateMode::KeepSize, at, 20 * block as u64);
    write(fs, "/large", 900_000, 77);
}

/// Sets an attribute, if there is room for it.
fn attribute(fs: &Fs, path: &str, name: &str, value: &[u8]) {
    match fs.set_xattr(path, name, value, XattrMode::Set) {
        Ok(()) | Err(Error::NoSpace(_) | Error::TooLarge(_)) => {}
        Err(error) => panic!("{path}: {error}"),
    }
}

/// A tree without what may change: numbers of inodes, places of blocks, how many blocks there are for maps.
fn lasting(mut tree: Tree) -> Tree {
    let mut names: HashMap<u64, u64> = HashMap::new();
    let mut next = 0;
    for record in tree.values_mut() {
        let name = names.entry(record.ino).or_insert_with(|| {
            next += 1;
            next
        });
        record.ino = *name;
        record.blocks = 0;
        record.extents = record.extents.take().map(without_places);
    }
    tree
}

fn without_places(extents: Vec<crate::walk::Extent>) -> Vec<crate::walk::Extent> {
    let mut joined: Vec<crate::walk::Extent> = Vec::new();
    for (lblk, _, len, unwritten) in extents {
        match joined.last_mut() {
            Some((l, _, n, u)) if *l + *n == lblk && *u == unwritten => *n += len,
            _ => joined.push((lblk, 0, len, unwritten)),
        }
    }
    joined
}

/// What dioxide sees of it.
pub fn seen(path: &Path) -> Tree {
    let fs = Fs::open(path, &MountOptions::new().read_only(true)).expect("it opens");
    of(&fs)
}

pub fn of(fs: &Fs) -> Tree {
    lasting(by_dioxide(fs))
}

/// What the kernel sees of it, if it mounts such file systems.
pub fn seen_by_kernel(path: &Path, block: u64) -> Option<Tree> {
    let mount = Mount::try_ext4(path, "ro").ok()?;
    let tree = lasting(by_kernel(mount.path(), block));
    mount.unmount();
    Some(tree)
}

/// That every file of `before` is there, whatever else is.
pub fn assert_kept(before: &Tree, after: &Tree, about: &str) {
    let content = |record: &Record| (record.size, record.content.clone(), record.xattrs.clone());
    for (path, record) in before {
        let name = String::from_utf8_lossy(path);
        let found = after
            .get(path)
            .unwrap_or_else(|| panic!("{about}: {name} is gone"));
        assert!(
            content(record) == content(found),
            "{about}: {name} is another"
        );
    }
}
