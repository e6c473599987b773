//! Each call alone: what it does, what it refuses, and that nothing is left behind.

use crate::attributes::{ACCESS, list};
use dioxide::{
    Error, FallocateMode, FileType, Fs, MountOptions, NewFile, OpenOptions, RenameMode,
    SetAttributes, Special, Timestamp, XattrMode,
};
use dioxide_testkit::{Image, debugfs, e2fsck_clean, each_case};

fn image() -> Image {
    Image::builder().size(64 << 20).build()
}

/// Runs `change` on a fresh image, then checks it.
fn on_image(image: &Image, change: impl FnOnce(&Fs)) {
    let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
    change(&fs);
    fs.close().expect("it closes");
    e2fsck_clean(image.path());
}

fn write(fs: &Fs, path: &str, bytes: &[u8]) {
    let file = OpenOptions::new().write(true).create_new(true);
    let file = file.open(fs, path).expect("a new file");
    file.write_at(bytes, 0).expect("room");
}

fn read(fs: &Fs, path: &str) -> Vec<u8> {
    let file = OpenOptions::new().read(true).open(fs, path);
    let file = file.expect("it is there");
    let mut bytes = vec![0; file.len() as usize];
    file.read_at(&mut bytes, 0).expect("it reads");
    bytes
}

fn names(fs: &Fs, path: &str) -> Vec<String> {
    let entries = fs.read_dir(path).expect("a directory");
    let mut names: Vec<_> = entries
        .into_iter()
        .map(|entry| String::from_utf8(entry.name).expect("text"))
        .filter(|name| name != "." && name != "..")
        .collect();
    names.sort();
    names
}

fn dir() -> NewFile {
    NewFile::new(0o755)
}

#[test]
fn files_of_all_kinds_made_are_there_after_a_remount() {
    let image = image();
    on_image(&image, |fs| {
        fs.create_dir("/d", &dir().owner(7, 8))
            .expect("a directory");
        write(fs, "/d/f", &[5; 10_000]);
        fs.mknod("/d/pipe", Special::Fifo, &NewFile::new(0o600))
            .expect("a pipe");
        fs.mknod("/d/null", Special::CharDevice(1, 3), &dir())
            .expect("a device");
        fs.mknod("/d/big", Special::BlockDevice(259, 70_000), &dir())
            .expect("a device");
        fs.symlink("f", "/d/short", &dir()).expect("a symlink");
        let long = "x/".repeat(100) + "../../f";
        fs.symlink(&long, "/d/long", &dir()).expect("a symlink");
        fs.hard_link("/d/f", "/g").expect("a link");
    });
    on_image(&image, |fs| {
        assert_eq!(
            names(fs, "/d"),
            ["big", "f", "long", "null", "pipe", "short"]
        );
        let stat = |path: &str| fs.symlink_metadata(path).expect("it is there");
        assert_eq!(
            (stat("/d").nlink, stat("/d").uid, stat("/d").gid),
            (2, 7, 8)
        );
        assert_eq!(stat("/g").nlink, 2);
        assert_eq!(stat("/d/null").device, Some((1, 3)));
        assert_eq!(stat("/d/big").device, Some((259, 70_000)));
        assert_eq!(stat("/d/pipe").file_type, FileType::Fifo);
        assert_eq!(read(fs, "/d/short"), [5; 10_000]);
        assert_eq!(fs.read_link("/d/long").expect("a symlink").len(), 207);
    });
}

#[test]
fn name_that_is_there_is_refused_and_nothing_changes() {
    let image = image();
    on_image(&image, |fs| {
        write(fs, "/f", b"1");
        let free = fs.statfs();
        for path in ["/f", "/", "/.", "/f/", "/lost+found/.."] {
            let refused = fs.create_dir(path, &dir()).expect_err("it is there");
            assert!(matches!(refused, Error::Exists(_)), "{path}: {refused}");
        }
        let refused = fs.symlink("x", "/f", &dir()).expect_err("it is there");
        assert!(matches!(refused, Error::Exists(_)));
        let refused = fs
            .create_dir("/f/x", &dir())
            .expect_err("a file on the way");
        assert!(matches!(refused, Error::NotADirectory(_)));
        assert_eq!(fs.statfs(), free);
    });
}

#[test]
fn removing_gives_back_all_that_was_taken() {
    let image = image();
    let mut before = None;
    on_image(&image, |fs| {
        before = Some(fs.statfs());
        fs.create_dir("/d", &dir()).expect("room");
        write(fs, "/d/f", &vec![1; 3 << 20]);
        fs.symlink("y".repeat(80), "/d/s", &dir()).expect("room");
        let full = fs.remove_dir("/d").expect_err("it has names");
        assert!(matches!(full, Error::NotEmpty(_)), "{full}");
        let is_dir = fs.remove_file("/d").expect_err("a directory");
        assert!(matches!(is_dir, Error::IsADirectory(_)), "{is_dir}");
        fs.remove_file("/d/f").expect("own file");
        fs.remove_file("/d/s").expect("own file");
        fs.remove_dir("/d").expect("it is empty");
        let gone = fs.metadata("/d").expect_err("it is gone");
        assert!(matches!(gone, Error::NotFound(_)), "{gone}");
    });
    on_image(&image, |fs| assert_eq!(Some(fs.statfs()), before));
}

#[test]
fn opening_an_empty_file_to_truncate_it_frees_what_is_behind_its_end_and_changes_its_times() {
    on_image(&image(), |fs| {
        let truncate = OpenOptions::new().write(true).create(true).truncate(true);
        let file = truncate.open(fs, "/f").expect("a new file");
        file.allocate(FallocateMode::KeepSize, 0, 1 << 20)
            .expect("room");
        drop(file);
        let long_ago = Timestamp { secs: 9, nanos: 9 };
        fs.set_attributes("/f", &SetAttributes::new().mtime(long_ago))
            .expect("own file");
        let before = fs.metadata("/f").expect("own file");
        assert_eq!((before.size, before.blocks), (0, 2048));
        drop(truncate.open(fs, "/f").expect("own file"));
        let after = fs.metadata("/f").expect("own file");
        assert_eq!((after.size, after.blocks), (0, 0));
        assert!(after.mtime > before.mtime && after.ctime >= before.ctime);
    });
}

// Empty, freed in one transaction with its inode, and of more groups than one transaction has room for.
#[test]
fn file_without_name_that_is_let_go_gives_back_all_that_it_had() {
    for features in ["extent", "^extent,^64bit"] {
        let small = Image::builder().size(64 << 20).block_size(1024);
        let image = small.features(features).build();
        on_image(&image, |fs| {
            let free = fs.statfs();
            for len in [0, 5_000, 48 << 20] {
                write(fs, "/f", &vec![9; len]);
                let held = fs.node("/f").expect("own file");
                fs.remove_file("/f").expect("own file");
                assert_eq!(held.metadata().size, len as u64);
                assert_eq!(fs.statfs().files_free, free.files_free - 1);
                drop(held);
                fs.sync().expect("a sync");
                assert_eq!(fs.statfs(), free, "{features}, {len}");
            }
        });
    }
}

#[test]
fn what_is_told_of_a_name_is_what_its_file_tells() {
    on_image(&image(), |fs| {
        write(fs, "/written", &[1; 100_000]);
        fs.symlink("written", "/link", &dir()).expect("room");
        fs.create_dir("/dir", &dir()).expect("room");
        let root = fs.root().expect("the root");
        let told = |name: &[u8]| root.lookup_metadata(name, |told| told);
        for name in [&b"written"[..], b"link"] {
            let file = root.lookup(name).expect("it is there");
            assert_eq!(told(name).expect("it reads"), Some(file.metadata()));
        }
        let open = OpenOptions::new().write(true).open(fs, "/written");
        let open = open.expect("own file");
        open.set_len(5).expect("it gets shorter");
        assert_eq!(told(b"written").expect("it reads"), Some(open.metadata()));
        for name in [&b"dir"[..], b".", b"..", b"absent", &[b'x'; 300]] {
            assert_eq!(told(name).expect("only a lookup tells"), None);
        }
        let file = root.lookup(b"written").expect("it is there");
        let error = file.lookup_metadata(b"a", |told| told).unwrap_err();
        assert!(matches!(error, Error::NotADirectory(_)), "{error}");
    });
}

#[test]
fn open_file_without_name_lives_until_it_is_closed() {
    let image = image();
    on_image(&image, |fs| {
        let free = fs.statfs();
        write(fs, "/f", &[9; 100_000]);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(fs, "/f")
            .expect("own file");
        fs.remove_file("/f").expect("own file");
        assert!(names(fs, "/") == ["lost+found"]);
        let again = file.clone();
        drop(file);
        let mut bytes = [0; 100];
        again.read_at(&mut bytes, 50_000).expect("it is there");
        assert_eq!(bytes, [9; 100]);
        let refused = again.link("/back").expect_err("its last name was removed");
        assert!(matches!(refused, Error::NotFound(_)), "{refused}");
        drop(again);
        fs.sync().expect("a sync");
        assert_eq!(fs.statfs(), free);
    });
}

// A symlink that was removed has no size left, which of one with a name would be damage.
#[test]
fn number_of_a_removed_file_of_any_kind_finds_nothing() {
    let image = image();
    on_image(&image, |fs| {
        let new = NewFile::new(0o644);
        fs.symlink("target", "/short", &new).expect("a symlink");
        fs.symlink("t".repeat(200), "/long", &new)
            .expect("a symlink");
        write(fs, "/file", &[1; 5000]);
        fs.mknod("/pipe", Special::Fifo, &new).expect("a pipe");
        for path in ["/short", "/long", "/file", "/pipe"] {
            let (ino, generation) = {
                let node = fs.symlink_node(path).expect("it is there");
                (node.ino(), node.generation())
            };
            fs.remove_file(path).expect("it goes");
            for generation in [Some(generation), None] {
                let found = fs.node_by_number(ino, generation).map(|_| ());
                let errno = found.map_err(|error| error.errno());
                assert_eq!(errno, Err(libc::ENOENT), "{path}");
            }
        }
    });
}

#[test]
fn unnamed_file_goes_unless_it_is_linked() {
    let image = image();
    on_image(&image, |fs| {
        let make = || {
            OpenOptions::new()
                .write(true)
                .open_unnamed(fs, "/")
                .expect("room")
        };
        let (one, two) = (make(), make());
        two.write_at(&[3; 5000], 0).expect("room");
        two.link("/two").expect("its first name");
        assert_eq!(two.metadata().nlink, 1);
        drop((one, two));
        assert_eq!(read(fs, "/two"), [3; 5000]);
    });
}

#[test]
fn unnamed_file_that_is_made_exclusively_gets_no_name_by_any_handle() {
    let image = image();
    on_image(&image, |fs| {
        let exclusive = OpenOptions::new().read(true).write(true).create_new(true);
        let file = exclusive.open_unnamed(fs, "/").expect("room");
        file.write_at(&[3; 5000], 0).expect("room");
        let metadata = file.metadata();
        let node = fs.node_by_number(metadata.ino, Some(metadata.generation));
        let (root, node) = (fs.root().expect("it is there"), node.expect("it is open"));
        for linked in [
            file.link("/name"),
            file.clone().link("/name"),
            node.link(&root, b"name"),
        ] {
            let error = linked.expect_err("it is nobody's");
            assert!(matches!(error, Error::NotFound(_)), "{error}");
        }
        assert_eq!(file.metadata().nlink, 0);
        assert_eq!(names(fs, "/"), ["lost+found"]);
    });
}

#[test]
fn rename_replaces_exchanges_and_refuses_as_linux() {
    let image = image();
    on_image(&image, |fs| {
        fs.create_dir("/a", &dir()).expect("room");
        fs.create_dir("/b", &dir()).expect("room");
        write(fs, "/a/one", b"1");
        write(fs, "/b/two", b"22");
        let rename = |from: &str, to: &str, mode| fs.rename(from, to, mode);
        let refused = rename("/a/one", "/b/two", RenameMode::NoReplace).expect_err("it is there");
        assert!(matches!(refused, Error::Exists(_)));
        rename("/a/one", "/b/two", RenameMode::Exchange).expect("both are there");
        assert_eq!(
            (read(fs, "/a/one"), read(fs, "/b/two")),
            (b"22".to_vec(), b"1".to_vec())
        );
        rename("/a/one", "/b/two", RenameMode::Replace).expect("it is replaced");
        assert_eq!(read(fs, "/b/two"), b"22");
        assert_eq!(names(fs, "/a"), [""; 0]);
        fs.create_dir("/a/sub", &dir()).expect("room");
        let inside = rename("/a", "/a/sub/x", RenameMode::Replace).expect_err("into itself");
        assert_eq!(inside.errno(), 22, "{inside}");
        rename("/a/sub", "/b/sub", RenameMode::Replace).expect("a directory moves");
        assert_eq!(fs.metadata("/a").expect("it is there").nlink, 2);
        assert_eq!(fs.metadata("/b").expect("it is there").nlink, 3);
        assert_eq!(
            fs.metadata("/b/sub/..").expect("it is there").ino,
            fs.metadata("/b").expect("it is there").ino
        );
        rename("/a", "/b/sub", RenameMode::Replace).expect("an empty directory is replaced");
        assert_eq!(fs.metadata("/b").expect("it is there").nlink, 3);
    });
}

#[test]
fn rename_that_leaves_a_whiteout_is_seen_by_both_names() {
    let image = image();
    on_image(&image, |fs| {
        fs.create_dir("/a", &dir()).expect("room");
        fs.create_dir("/b", &dir()).expect("room");
        let new = NewFile::new(0).owner(7, 8);
        for (round, to) in ["/b/one", "/a/two", "/b/one"].into_iter().enumerate() {
            write(fs, "/a/one", &[round as u8]);
            let whiteout = |mode| fs.rename_whiteout("/a/one", to, mode, &new);
            let exchange = whiteout(RenameMode::Exchange).expect_err("it makes no sense");
            assert_eq!(exchange.errno(), 22, "{exchange}");
            if round == 2 {
                let refused = whiteout(RenameMode::NoReplace).expect_err("it is there");
                assert!(matches!(refused, Error::Exists(_)));
            }
            whiteout(RenameMode::Replace).expect("room");
            assert_eq!(read(fs, to), [round as u8]);
            let left = fs.symlink_metadata("/a/one").expect("it is there");
            assert_eq!(
                (left.file_type, left.device),
                (FileType::CharDevice, Some((0, 0)))
            );
            assert_eq!(
                (left.permissions, left.uid, left.gid, left.nlink),
                (0, 7, 8, 1)
            );
            fs.remove_file("/a/one").expect("it is there");
        }
        fs.create_dir("/a/sub", &dir()).expect("room");
        fs.rename_whiteout("/a/sub", "/b/sub", RenameMode::Replace, &new)
            .expect("a directory moves");
        assert_eq!(fs.metadata("/a").expect("it is there").nlink, 2);
        assert_eq!(names(fs, "/a"), ["sub", "two"]);
    });
}

/// Linux takes capabilities from what gets another owner, as it takes set-ID bits; the engine left them.
#[test]
fn owner_that_changes_takes_capabilities_from_all_but_directories() {
    const NAME: &str = "security.capability";
    let image = image();
    on_image(&image, |fs| {
        write(fs, "/file", b"");
        fs.mknod("/pipe", Special::Fifo, &NewFile::default())
            .expect("room");
        fs.create_dir("/dir", &dir()).expect("room");
        let value = [&[1, 0, 0, 2][..], &[0; 16]].concat();
        for (path, stays) in [("/file", false), ("/pipe", false), ("/dir", true)] {
            let node = fs.node(path).expect("just made");
            let set = |set| node.set_attributes(&set).expect("it may change");
            let has = || node.xattr(NAME).expect("it reads").is_some();
            let new = node.set_xattr(NAME, &value, XattrMode::Create);
            new.expect("room");
            set(SetAttributes::new().mode(0o700));
            assert!(has(), "{path}: chmod");
            set(SetAttributes::new().gid(7));
            assert_eq!(has(), stays, "{path}: chown");
        }
    });
}

/// As in Linux: whoever copies attributes once more makes no file look new.
#[test]
fn attribute_set_to_what_it_is_leaves_the_times() {
    let image = image();
    on_image(&image, |fs| {
        write(fs, "/file", b"x");
        let mode_of = |read: u16| -> Vec<u8> {
            let entry = |tag: u16, bits: u16| [tag.to_le_bytes(), bits.to_le_bytes()].concat();
            let mut list = 2u32.to_le_bytes().to_vec();
            for (tag, bits) in [(1, 6), (4, read), (32, read)] {
                list.extend(entry(tag, bits));
                list.extend(u32::MAX.to_le_bytes());
            }
            list
        };
        const LIST: &str = "system.posix_acl_access";
        let set = |name, value: &[u8]| fs.set_xattr("/file", name, value, XattrMode::Set);
        let changes = |change: &dyn Fn() -> dioxide::Result<()>| {
            let before = fs.metadata("/file").expect("it is there").ctime;
            std::thread::sleep(std::time::Duration::from_millis(20));
            change().expect("room");
            fs.metadata("/file").expect("it is there").ctime > before
        };
        assert!(changes(&|| set("user.a", b"value")));
        assert!(!changes(&|| set("user.a", b"value")));
        assert!(changes(&|| set("user.a", b"other")));
        assert!(!changes(&|| fs.remove_xattr("/file", LIST)));
        assert!(changes(&|| set(LIST, &mode_of(0))));
        assert!(!changes(&|| set(LIST, &mode_of(0))));
        assert!(changes(&|| set(LIST, &mode_of(4))));
    });
}

/// As in Linux, to which the contexts of encryption are such: they were taken for damage.
#[test]
fn attribute_of_an_unknown_kind_is_not_listed() {
    let image = Image::builder().features("^metadata_csum").build();
    on_image(&image, |fs| {
        write(fs, "/file", b"");
        for name in ["user.shown", "user.hidden"] {
            fs.set_xattr("/file", name, b"value", XattrMode::Create)
                .expect("room");
        }
    });
    let mut bytes = std::fs::read(image.path()).expect("an image");
    // In the journal too.
    let names: Vec<usize> = (16..bytes.len() - 6)
        .filter(|&at| bytes[at..at + 6] == *b"hidden")
        .collect();
    assert!(!names.is_empty(), "its name");
    for head in names.into_iter().map(|name| name - 16) {
        assert_eq!(bytes[head..head + 2], [6, 1], "length and index");
        bytes[head + 1] = 9;
    }
    std::fs::write(image.path(), &bytes).expect("room");
    on_image(&image, |fs| {
        let listed = fs.xattrs("/file").expect("no damage");
        let listed: Vec<_> = listed.iter().map(|xattr| &xattr.name[..]).collect();
        assert_eq!(listed, [b"user.shown"]);
        assert!(fs.damage().failed.is_empty(), "{:?}", fs.damage());
    });
}

/// As in Linux, to which they are those of the Hurd, on files of all kinds.
#[test]
fn attributes_of_the_hurd_are_set_and_read() {
    let image = image();
    on_image(&image, |fs| {
        write(fs, "/file", b"");
        fs.mknod("/pipe", Special::Fifo, &NewFile::default())
            .expect("room");
        for path in ["/file", "/pipe", "/"] {
            fs.set_xattr(path, "gnu.x", b"value", XattrMode::Create)
                .expect("room");
            let value = fs.xattr(path, "gnu.x").expect("it reads");
            assert_eq!(value.as_deref(), Some(&b"value"[..]));
            let listed = fs.xattrs(path).expect("no damage");
            assert_eq!(listed[0].name, b"gnu.x");
        }
        fs.remove_xattr("/pipe", "gnu.x").expect("it is there");
        let refused = fs.set_xattr("/file", "gnu.", b"", XattrMode::Set);
        assert_eq!(refused.expect_err("no name").errno(), libc::EINVAL);
    });
}

/// As in Linux: it takes the list away, whatever the file is, and leaves the mode.
#[test]
fn list_set_to_an_empty_value_goes() {
    let image = image();
    on_image(&image, |fs| {
        write(fs, "/file", b"");
        fs.create_dir("/dir", &dir()).expect("room");
        let entry = |tag: u16, perm: u16, id: u32| {
            [
                &tag.to_le_bytes()[..],
                &perm.to_le_bytes(),
                &id.to_le_bytes(),
            ]
            .concat()
        };
        let any = u32::MAX;
        let list = [
            2_u32.to_le_bytes().to_vec(),
            entry(1, 6, any),
            entry(2, 4, 1000),
            entry(4, 4, any),
            entry(0x10, 6, any),
            entry(0x20, 0, any),
        ]
        .concat();
        for (path, name) in [
            ("/file", "system.posix_acl_access"),
            ("/dir", "system.posix_acl_access"),
            ("/dir", "system.posix_acl_default"),
        ] {
            fs.set_xattr(path, name, &list, XattrMode::Set)
                .expect("a list");
            let mode = fs.metadata(path).expect("it is there").permissions;
            for mode in [XattrMode::Create, XattrMode::Replace] {
                fs.set_xattr(path, name, b"", mode).expect("nothing");
            }
            assert_eq!(fs.xattr(path, name).expect("it reads"), None);
            let after = fs.metadata(path).expect("it is there").permissions;
            assert_eq!(after, mode);
        }
        fs.set_xattr("/file", "system.posix_acl_default", b"", XattrMode::Set)
            .expect("nothing");
    });
}

/// `s_want_extra_isize` may be what no inode can have.
#[test]
fn new_files_have_an_extra_size_that_can_be() {
    let image = image();
    for wanted in [33, 43, 127, 1000] {
        debugfs(image.path(), &[format!("ssv want_extra_isize {wanted}")]);
        let path = format!("/file-{wanted}");
        on_image(&image, |fs| {
            write(fs, &path, b"");
            fs.set_xattr(&path, "user.a", b"value", XattrMode::Create)
                .expect("room");
        });
        on_image(&image, |fs| {
            let value = fs.xattr(&path, "user.a").expect("it reads");
            assert_eq!(value.as_deref(), Some(&b"value"[..]));
        });
    }
}

/// As in Linux.
#[test]
fn removed_directory_that_is_held_has_no_entries() {
    let image = image();
    on_image(&image, |fs| {
        fs.create_dir("/d", &dir()).expect("room");
        let held = fs.node("/d").expect("just made");
        assert_eq!(held.read_dir(0, 9).expect("a directory").len(), 2);
        fs.remove_dir("/d").expect("it is empty");
        let gone = held.read_dir(0, 9).expect_err("it is no more");
        assert_eq!(gone.errno(), libc::ENOENT);
        let gone = held.read_dir_plus(0, 9).map(drop).expect_err("no more");
        assert_eq!(gone.errno(), libc::ENOENT);
        assert_eq!((held.metadata().size, held.metadata().nlink), (0, 0));
    });
}

/// As in Linux: a full block keeps no room for names from a value that lies in an inode of its own.
#[test]
fn value_gets_an_inode_where_values_have_filled_the_block() {
    let image = Image::builder()
        .block_size(4096)
        .args(&["-I", "128"])
        .build();
    on_image(&image, |fs| {
        write(fs, "/file", b"");
        fs.set_xattr("/file", "user.big", &[1; 3900], XattrMode::Create)
            .expect("room");
    });
    debugfs(image.path(), &["feature ea_inode"]);
    on_image(&image, |fs| {
        fs.set_xattr("/file", "user.s", &[2; 50], XattrMode::Create)
            .expect("an inode for it");
        let value = fs.xattr("/file", "user.s").expect("it reads");
        assert_eq!(value.as_deref(), Some(&[2; 50][..]));
    });
}

#[test]
fn chmod_gives_back_the_inode_that_had_the_list_as_it_was() {
    let image = Image::builder().block_size(1024).features("ea_inode");
    on_image(&image.build(), |fs| {
        write(fs, "/file", b"");
        let named = (1000..1200).map(|id| (2, 6, id));
        let others = [(4, 4), (0x10, 6), (0x20, 4)].map(|(tag, perm)| (tag, perm, u32::MAX));
        let entries = [(1, 6, u32::MAX)].into_iter().chain(named).chain(others);
        let list = list(&entries.collect::<Vec<_>>());
        fs.set_xattr("/file", ACCESS, &list, XattrMode::Create)
            .expect("an inode for it");
        let free = fs.statfs().files_free;
        for mode in [0o640, 0o660, 0o600] {
            fs.set_attributes("/file", &SetAttributes::new().mode(mode))
                .expect("room");
            assert_eq!(fs.statfs().files_free, free, "{mode:o}");
        }
    });
}

#[test]
fn many_names_grow_a_directory_and_leave_it() {
    let image = image();
    on_image(&image, |fs| {
        fs.create_dir("/d", &dir()).expect("room");
        for number in 0..200 {
            let new = OpenOptions::new().write(true).create(true);
            new.open(fs, format!("/d/file-{number}")).expect("room");
        }
        assert_eq!(names(fs, "/d").len(), 200);
        for number in 0..200 {
            fs.remove_file(format!("/d/file-{number}"))
                .expect("it is there");
        }
        fs.remove_dir("/d").expect("it is empty");
    });
}

/// A file has 65,000 names at most. A directory counts as many below it, and then, if the file system has that, none at all.
#[test]
fn links_are_counted_up_to_what_an_inode_can_have() {
    const MOST: u32 = 65_000;
    each_case(["dir_nlink", "^dir_nlink"], |features| {
        let image = Image::builder().size(128 << 20).block_size(1024);
        let image = image.features(features).args(&["-N", "66000"]).build();
        on_image(&image, |fs| {
            let (root, new) = (fs.root().expect("a root"), NewFile::new(0o755));
            let file = root.create(b"f", &new).expect("room");
            let links = root.create_dir(b"links", &new).expect("room");
            for number in 1..MOST {
                file.link(&links, format!("{number}").as_bytes())
                    .expect("one more");
            }
            assert_eq!(file.metadata().nlink, MOST);
            let refused = file.link(&links, b"more").expect_err("too many");
            assert_eq!(refused.errno(), libc::EMLINK);
            let dirs = root.create_dir(b"dirs", &new).expect("room");
            let make = |number: u32| dirs.create_dir(format!("{number}").as_bytes(), &new);
            // Two are its own.
            for number in 2..MOST {
                drop(make(number).expect("one more"));
            }
            assert_eq!(dirs.metadata().nlink, MOST);
            match features {
                "dir_nlink" => {
                    drop(make(0).expect("one more"));
                    assert_eq!(dirs.metadata().nlink, 1);
                    dirs.remove_dir(b"0").expect("it is empty");
                    assert_eq!(dirs.metadata().nlink, 1);
                }
                _ => assert_eq!(make(0).expect_err("too many").errno(), libc::EMLINK),
            }
        });
    });
}
