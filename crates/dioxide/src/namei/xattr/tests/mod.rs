//! Changes of attributes, each made here and by the kernel's ext4, on file systems of every shape.

mod hostile;
mod lists;
mod strip;

use super::XattrMode;
use crate::namei::xattr::key::Key;
use crate::{Error, Fs, MountOptions, Result};
use dioxide_testkit::{Image, ImageBuilder, Mount, debugfs, e2fsck_clean, need_root};
use rustix::fs::{XattrFlags, getxattr, listxattr, removexattr, setxattr};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

type Attributes = BTreeMap<Vec<u8>, Vec<u8>>;

fn open(image: &Image) -> Fs {
    let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
    assert_eq!(fs.read_only(), None);
    fs
}

/// One attribute, as a caller of the namespace does it.
fn change(fs: &Fs, path: &str, name: &[u8], value: Option<&[u8]>, mode: XattrMode) -> Result<()> {
    let mount = &fs.0;
    let inode = mount.lookup(path.as_bytes(), false)?;
    let writer = mount.writer()?;
    let _alone = mount.alone(&inode)?;
    let credits = mount.xattr_credits(&inode, value.map_or(0, <[u8]>::len))?;
    let mut handle = writer.begin(credits)?;
    let result = mount.change_xattr(writer, &mut handle, &inode, name, value, mode);
    handle.stop()?;
    mount.reap_values(writer)?;
    result.map(|_| ())
}

fn set(fs: &Fs, path: &str, name: &str, value: &[u8]) -> Result<()> {
    change(fs, path, name.as_bytes(), Some(value), XattrMode::Set)
}

fn remove(fs: &Fs, path: &str, name: &str) -> Result<()> {
    change(fs, path, name.as_bytes(), None, XattrMode::Replace)
}

/// Deletes a file that has a name, as far as an orphan is deleted; debugfs takes the name.
fn delete(fs: &Fs, path: &str) {
    let mount = &fs.0;
    let inode = mount.lookup(path.as_bytes(), false).expect("it is there");
    let writer = mount.writer().expect("a writer");
    let mut handle = writer.begin(20).expect("a handle");
    writer
        .orphans
        .add(mount, &mut handle, &inode)
        .expect("an orphan");
    let lock = inode.map.lock();
    mount
        .change_inode(&mut handle, &inode, &lock, &mut |disk| {
            disk.disk_mut().i_links_count = 0;
        })
        .expect("a change");
    drop(lock);
    handle.stop().expect("the end");
    mount.delete(writer, &inode).expect("deleted");
}

fn attributes(fs: &Fs, path: &str) -> Attributes {
    let all = fs.xattrs(path).expect("they can be read");
    all.into_iter().map(|one| (one.name, one.value)).collect()
}

fn kernel_attributes(path: &Path) -> Attributes {
    let mut names = vec![0; 1 << 16];
    let len = listxattr(path, &mut names[..]).expect("listed");
    let names = names[..len].split(|&byte| byte == 0);
    let names = names.filter(|name| !name.is_empty());
    let value = |name: &[u8]| {
        let mut value = vec![0; 1 << 16];
        let len = getxattr(path, name, &mut value[..]).expect("there");
        value.truncate(len);
        (name.to_vec(), value)
    };
    names.map(value).collect()
}

fn kernel_change(path: &Path, name: &[u8], value: Option<&[u8]>, mode: XattrMode) -> i32 {
    let flags = match mode {
        XattrMode::Set => XattrFlags::empty(),
        XattrMode::Create => XattrFlags::CREATE,
        XattrMode::Replace => XattrFlags::REPLACE,
    };
    let result = match value {
        Some(value) => setxattr(path, name, value, flags),
        None => removexattr(path, name),
    };
    result.map_or_else(|error| error.raw_os_error(), |()| 0)
}

fn errno(result: &Result<()>) -> i32 {
    result.as_ref().map_or_else(Error::errno, |()| 0)
}

/// xorshift64*.
struct Rng(u64);

impl Rng {
    fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % most
    }

    fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len() as u64) as usize]
    }

    fn name(&mut self) -> Vec<u8> {
        let prefix = *self.pick(&["user.", "trusted.", "security."]);
        let letter = b'a' + self.below(5) as u8;
        let len = *self.pick(&[1, 2, 9, 40, 200]);
        [prefix.as_bytes(), &vec![letter; len]].concat()
    }

    fn value(&mut self, large: bool) -> Vec<u8> {
        let most = *self.pick(match large {
            true => &[0, 5, 40, 300, 1000, 5000, 20_000, 65_536][..],
            false => &[0, 5, 5, 40, 40, 100, 300, 1000, 5000][..],
        });
        let len = self.below(most + 1) as usize;
        vec![b'0' + self.below(3) as u8; len]
    }
}

const SHAPES: [(u32, u32, &str); 10] = [
    (128, 1024, "^ea_inode"),
    (256, 1024, "^ea_inode"),
    (256, 4096, "^metadata_csum"),
    (1024, 4096, "^ea_inode"),
    (256, 1024, "ea_inode"),
    (256, 4096, "ea_inode,^extent,^64bit"),
    (1024, 4096, "ea_inode"),
    (256, 4096, "bigalloc,ea_inode"),
    (256, 4096, "inline_data"),
    (512, 1024, "inline_data,ea_inode"),
];
const FILES: [&str; 6] = ["a", "b", "c", "d", "dir", "link"];

fn shape((inode, block, features): (u32, u32, &str)) -> ImageBuilder {
    Image::builder()
        .inode_size(inode)
        .block_size(block)
        .features(features)
}

fn with_files(builder: ImageBuilder) -> Image {
    let image = builder.build();
    image.populate_with_kernel(|root| {
        for name in &FILES[..4] {
            fs::write(root.join(name), name).expect("room");
        }
        fs::create_dir(root.join("dir")).expect("room");
        std::os::unix::fs::symlink("a", root.join("link")).expect("room");
    });
    image
}

#[test]
fn random_changes_end_as_the_kernels_do() {
    need_root!();
    for (number, of) in SHAPES.into_iter().enumerate() {
        let image = with_files(shape(of));
        let twin = image.copy();
        let kernel = Mount::ext4(twin.path(), "");
        let fs = open(&image);
        let mut rng = Rng(0xD10 + number as u64);
        let large = of.2.contains("ea_inode") && !of.2.contains('^');
        for step in 0..600 {
            let file = *rng.pick(&FILES);
            let (name, value) = (rng.name(), rng.value(large || number == 5));
            let value = (rng.below(3) > 0).then_some(value);
            let mode = *rng.pick(&[
                XattrMode::Set,
                XattrMode::Set,
                XattrMode::Set,
                XattrMode::Create,
                XattrMode::Replace,
            ]);
            let told = format!(
                "{of:?} step {step}: {file} {} {mode:?} {:?}",
                name.escape_ascii(),
                value.as_ref().map(Vec::len)
            );
            // The kernel follows the link otherwise.
            let is_user = name.starts_with(b"user.");
            let here = change(&fs, file, &name, value.as_deref(), mode);
            let expected = match file {
                "link" if is_user => libc::EPERM,
                "link" => {
                    let path = kernel.path().join(file);
                    kernel_change_link(&path, &name, value.as_deref(), mode)
                }
                _ => kernel_change(&kernel.path().join(file), &name, value.as_deref(), mode),
            };
            assert_eq!(errno(&here), expected, "{told}: {here:?}");
            if file != "link" {
                let there = kernel_attributes(&kernel.path().join(file));
                assert!(attributes(&fs, file) == there, "{told}");
            }
        }
        fs.close().expect("a clean end");
        kernel.unmount();
        e2fsck_clean(image.path());
        let (ours, theirs) = (
            Mount::ext4(image.path(), "ro"),
            Mount::ext4(twin.path(), "ro"),
        );
        for file in FILES {
            let [one, other] =
                [&ours, &theirs].map(|mount| kernel_attributes(&mount.path().join(file)));
            assert!(one == other, "{of:?}: {file}");
        }
        let blocks = |mount: &Mount| {
            use std::os::unix::fs::MetadataExt;
            let file = |name: &&str| fs::symlink_metadata(mount.path().join(name)).expect("there");
            FILES
                .iter()
                .map(|name| file(name).blocks())
                .collect::<Vec<_>>()
        };
        assert_eq!(blocks(&ours), blocks(&theirs), "{of:?}");
    }
}

fn kernel_change_link(path: &Path, name: &[u8], value: Option<&[u8]>, mode: XattrMode) -> i32 {
    let flags = match mode {
        XattrMode::Set => XattrFlags::empty(),
        XattrMode::Create => XattrFlags::CREATE,
        XattrMode::Replace => XattrFlags::REPLACE,
    };
    let result = match value {
        Some(value) => rustix::fs::lsetxattr(path, name, value, flags),
        None => rustix::fs::lremovexattr(path, name),
    };
    result.map_or_else(|error| error.raw_os_error(), |()| 0)
}

fn free(image: &Image) -> (String, String) {
    let text = dioxide_testkit::dumpe2fs(image.path());
    let line = |what: &str| {
        let found = text.lines().find(|line| line.starts_with(what));
        found.expect("it is told").to_owned()
    };
    (line("Free blocks:"), line("Free inodes:"))
}

#[test]
fn removing_everything_gives_back_every_block_and_inode() {
    for of in SHAPES {
        let image = shape(of).build();
        debugfs(image.path(), &["write /dev/null a", "write /dev/null b"]);
        let before = free(&image);
        let fs = open(&image);
        let long = vec![
            7;
            if of.2.starts_with("ea_inode") {
                40_000
            } else {
                600
            }
        ];
        for path in ["/a", "/b"] {
            set(&fs, path, "user.long", &long).expect("room");
            set(&fs, path, "user.short", b"1").expect("room");
        }
        assert_eq!(attributes(&fs, "/b").len(), 2);
        let inode = fs.0.lookup(b"/b", false).expect("it is there");
        let one = |name: &[u8]| fs.0.xattr(&inode, name).expect("readable");
        assert_eq!(one(b"user.short").as_deref(), Some(&b"1"[..]));
        assert_eq!(one(b"user.longer"), None);
        drop(inode);
        remove(&fs, "/a", "user.long").expect("there");
        assert_eq!(attributes(&fs, "/b")[&b"user.long"[..]], long);
        for (path, name) in [
            ("/a", "user.short"),
            ("/b", "user.long"),
            ("/b", "user.short"),
        ] {
            remove(&fs, path, name).expect("there");
        }
        let gone = remove(&fs, "/a", "user.short");
        assert!(matches!(gone, Err(Error::NoAttribute(_))), "{gone:?}");
        fs.close().expect("a clean end");
        e2fsck_clean(image.path());
        assert_eq!(free(&image), before, "{of:?}");
    }
}

#[test]
fn equal_attributes_share_a_block_until_one_changes() {
    let image = shape((128, 1024, "^ea_inode")).build();
    let names: Vec<String> = (0..1030).map(|number| format!("f{number}")).collect();
    let commands: Vec<_> = names
        .iter()
        .map(|name| format!("write /dev/null {name}"))
        .collect();
    debugfs(image.path(), &commands);
    let fs = open(&image);
    for name in &names {
        set(&fs, name, "user.same", &[9; 500]).expect("room");
    }
    let block = |name: &str| {
        let inode = fs.0.lookup(name.as_bytes(), false).expect("it is there");
        inode.node().disk.file_acl().expect("a block")
    };
    assert_eq!(block("f0"), block("f1023"));
    // A block has at most 1,024 owners.
    assert_ne!(block("f0"), block("f1024"));
    assert_eq!(block("f1024"), block("f1029"));
    set(&fs, "f3", "user.other", b"x").expect("room");
    assert_ne!(block("f3"), block("f0"));
    assert_eq!(attributes(&fs, "f4").len(), 1);
    remove(&fs, "f3", "user.other").expect("there");
    assert!(block("f3") == block("f0") || block("f3") == block("f1029"));
    names[5..].iter().step_by(2).for_each(|name| {
        remove(&fs, name, "user.same").expect("there");
    });
    fs.close().expect("a clean end");
    e2fsck_clean(image.path());
}

#[test]
fn blocks_that_the_kernel_shares_are_left_to_their_other_owners() {
    need_root!();
    for features in ["^ea_inode", "ea_inode"] {
        let image = shape((256, 4096, features)).build();
        let before = free(&image);
        image.populate_with_kernel(|root| {
            for number in 0..20 {
                let path = root.join(format!("f{number}"));
                fs::write(&path, "").expect("room");
                for (name, len) in [("user.a", 300), ("user.b", 900), ("user.c", 3000)] {
                    let len = if features == "ea_inode" {
                        len * 3
                    } else {
                        len * 3 / 4
                    };
                    setxattr(&path, name, &vec![3; len], XattrFlags::empty()).expect("room");
                }
            }
        });
        let fs = open(&image);
        let whole = attributes(&fs, "f0");
        set(&fs, "f1", "user.b", b"changed").expect("room");
        remove(&fs, "f2", "user.c").expect("there");
        delete(&fs, "f3");
        assert_eq!(attributes(&fs, "f1")[&b"user.b"[..]], b"changed");
        assert_eq!(attributes(&fs, "f2").len(), 2);
        assert!(attributes(&fs, "f0") == whole && attributes(&fs, "f19") == whole);
        (0..20)
            .filter(|&number| number != 3)
            .for_each(|number| delete(&fs, &format!("f{number}")));
        fs.close().expect("a clean end");
        let names: Vec<_> = (0..20).map(|number| format!("unlink f{number}")).collect();
        debugfs(image.path(), &names);
        e2fsck_clean(image.path());
        assert_eq!(free(&image), before, "{features}");
    }
}

// A value in an inode of its own that loses its last reference is an orphan until it is deleted.
#[test]
fn value_that_a_crash_leaves_without_references_is_freed_by_the_next_mount() {
    let image = shape((256, 4096, "ea_inode")).build();
    debugfs(image.path(), &["write /dev/null a"]);
    let before = free(&image);
    let fs = open(&image);
    set(&fs, "a", "user.long", &[1; 50_000]).expect("room");
    let mount = &fs.0;
    let inode = mount.lookup(b"a", false).expect("it is there");
    let writer = mount.writer().expect("a writer");
    let mut handle = writer
        .begin(mount.xattr_credits(&inode, 0).expect("readable"))
        .expect("a handle");
    mount
        .change_xattr(
            writer,
            &mut handle,
            &inode,
            b"user.long",
            None,
            XattrMode::Set,
        )
        .expect("there");
    handle.stop().expect("the end");
    fs.sync().expect("durable");
    let crashed = image.copy();
    drop((inode, fs));
    let fs = open(&crashed);
    assert!(
        fs.warnings().join(";").contains("1 orphans"),
        "{:?}",
        fs.warnings()
    );
    fs.close().expect("a clean end");
    e2fsck_clean(crashed.path());
    assert_eq!(free(&crashed), before);
}

// Two threads give and take the same attributes of different files.
#[test]
fn threads_that_share_blocks_and_values_count_them_right() {
    for features in ["^ea_inode", "ea_inode"] {
        let image = shape((256, 1024, features)).build();
        let before = free_with_files(&image);
        let fs = open(&image);
        let work = &|thread: u64| {
            let mut rng = Rng(77 + thread);
            let len = if features == "ea_inode" { 3000 } else { 500 };
            for _ in 0..400 {
                let path = format!("t{thread}_{}", rng.below(5));
                let value = vec![rng.below(2) as u8; len];
                let name = *rng.pick(&["user.one", "user.two"]);
                match rng.below(3) {
                    0 => drop(remove(&fs, &path, name)),
                    // One of them may be all that fits.
                    _ => drop(set(&fs, &path, name, &value)),
                }
            }
            for number in 0..5 {
                for name in ["user.one", "user.two"] {
                    drop(remove(&fs, &format!("t{thread}_{number}"), name));
                }
            }
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..3).map(|one| scope.spawn(move || work(one))).collect();
            threads
                .into_iter()
                .for_each(|one| one.join().expect("no panic"));
        });
        assert_eq!(fs.read_only(), None);
        fs.close().expect("a clean end");
        e2fsck_clean(image.path());
        assert_eq!(free(&image), before, "{features}");
    }
}

/// Makes the files of threads; what is free then.
fn free_with_files(image: &Image) -> (String, String) {
    let names = (0..3).flat_map(|thread| (0..5).map(move |number| (thread, number)));
    let commands: Vec<_> = names
        .map(|(thread, number)| format!("write /dev/null t{thread}_{number}"))
        .collect();
    debugfs(image.path(), &commands);
    free(image)
}

#[test]
fn full_file_system_refuses_and_keeps_what_was_there() {
    for features in ["^ea_inode", "ea_inode"] {
        let image = shape((256, 1024, features)).size(4 << 20).build();
        let names: Vec<String> = (0..200).map(|number| format!("f{number}")).collect();
        let commands: Vec<_> = names
            .iter()
            .map(|name| format!("write /dev/null {name}"))
            .collect();
        debugfs(image.path(), &commands);
        let fs = open(&image);
        let len = if features == "ea_inode" { 60_000 } else { 900 };
        let mut refused = 0;
        for round in 0..20 {
            for (number, name) in names.iter().enumerate() {
                let value = [&(number as u32).to_le_bytes()[..], &vec![round; len]].concat();
                match set(&fs, name, &format!("user.{round}"), &value) {
                    Err(Error::NoSpace(_)) => refused += 1,
                    result => result.expect("room, or none"),
                }
            }
        }
        assert!(refused > 0);
        assert_eq!(fs.read_only(), None);
        fs.close().expect("a clean end");
        e2fsck_clean(image.path());
    }
}

#[test]
fn names_and_values_that_linux_refuses_are_refused_with_its_errno() {
    let image = Image::builder().build();
    debugfs(
        image.path(),
        &["write /dev/null a", "mknod pipe p", "symlink link a"],
    );
    let fs = open(&image);
    let long = format!("user.{}", "x".repeat(251));
    let cases = [
        ("a", "", 1, libc::ERANGE),
        ("a", &long, 1, libc::ERANGE),
        ("a", "user.", 1, libc::EINVAL),
        ("a", "other.x", 1, libc::EOPNOTSUPP),
        ("a", "system.data", 1, libc::EOPNOTSUPP),
        ("a", "user.x", 65_537, libc::E2BIG),
        ("a", "user.x", 65_536, libc::ENOSPC),
        ("pipe", "user.x", 1, libc::EPERM),
        ("link", "user.x", 1, libc::EPERM),
        ("link", "system.posix_acl_access", 4, libc::EOPNOTSUPP),
        ("a", "system.posix_acl_access", 3, libc::EINVAL),
        ("pipe", "trusted.x", 1, 0),
    ];
    for (path, name, len, expected) in cases {
        let result = set(&fs, path, name, &vec![2; len]);
        assert_eq!(errno(&result), expected, "{path} {name} {len}: {result:?}");
    }
    assert!(Key::parse(&long.as_bytes()[..255]).is_ok());
    fs.close().expect("a clean end");
    e2fsck_clean(image.path());
}
