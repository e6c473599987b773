//! From folders of the host.

use crate::support::*;
use dioxide::Timestamp;
use dioxide_pack::sink::folder::{FolderOptions, FolderSink};
use dioxide_pack::tar::write::TarSink;
use dioxide_pack::{Entry, Error, Filter, Kind, Pattern, Watch, source};
use dioxide_testkit::need_root;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

fn read(folder: &Path) -> dioxide_pack::Tree {
    source::folder::read(folder, Filter::default()).unwrap()
}

#[test]
fn hole_is_found_though_the_file_has_blocks_elsewhere() {
    const SIZE: u64 = 1 << 20;
    // More blocks than the size needs, and exactly as many.
    for behind in [2 * SIZE, SIZE - 8192] {
        let dir = scratch();
        let file = fs::File::create(dir.path().join("f")).unwrap();
        file.set_len(SIZE).unwrap();
        file.write_all_at(&[1; 8192], SIZE / 2).unwrap();
        let keep = rustix::fs::FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&file, keep, SIZE, behind).unwrap();
        assert!(file.metadata().unwrap().blocks() >= SIZE / 512);
        let tree = read(dir.path());
        let found = tree.entries().iter().find(|entry| entry.path == b"f");
        let Kind::File(data) = &found.unwrap().kind else {
            panic!("{found:?}");
        };
        let at = SIZE / 2;
        assert_eq!(data.segments, vec![at..at + 8192], "{behind}");
    }
}

#[test]
fn folder_comes_out_of_an_archive_as_it_was() {
    need_root!();
    let dir = scratch();
    let [from, to] = ["from", "to"].map(|name| dir.path().join(name));
    fs::create_dir(&from).unwrap();
    fill(
        &from,
        Without {
            sockets: true,
            ..Without::default()
        },
    );
    let archive = dir.path().join("a.tar");
    assert_eq!(to_archive(&mut read(&from), &archive), [""; 0]);
    assert_eq!(
        to_folder(&mut from_archive(&archive).unwrap(), &to),
        [""; 0]
    );
    assert_same(&walk(&to), &walk(&from));
    let again = dir.path().join("b.tar");
    to_archive(&mut read(&to), &again);
    assert!(fs::read(&archive).unwrap() == fs::read(&again).unwrap());
}

#[test]
fn folder_to_folder_keeps_sockets_and_everything() {
    need_root!();
    let dir = scratch();
    let [from, to] = ["from", "to"].map(|name| dir.path().join(name));
    fs::create_dir(&from).unwrap();
    fill(&from, Without::default());
    assert_eq!(to_folder(&mut read(&from), &to), [""; 0]);
    assert_same(&walk(&to), &walk(&from));
}

#[test]
fn file_that_changes_after_it_was_seen_is_an_error() {
    let change: [fn(&Path); 3] = [
        |path| fs::write(path, "longer than it was").unwrap(),
        |path| fs::write(path, "sma").unwrap(),
        |path| {
            fs::rename(path, path.with_extension("old")).unwrap();
            fs::write(path, "same!").unwrap();
        },
    ];
    for change in change {
        let dir = scratch();
        let from = dir.path().join("from");
        fs::create_dir(&from).unwrap();
        fs::write(from.join("file"), "small").unwrap();
        let mut tree = read(&from);
        change(&from.join("file"));
        let archive = dir.path().join("a.tar");
        let mut sink = TarSink::create(&archive, Default::default()).unwrap();
        let error = tree.write_to(&mut sink, &mut ()).unwrap_err();
        assert!(matches!(error, Error::Changed { .. }), "{error}");
        drop(sink);
        let left: Vec<_> = fs::read_dir(dir.path())
            .unwrap()
            .map(|e| e.unwrap().file_name())
            .collect();
        assert_eq!(left, ["from"], "nothing half-written");
    }
}

#[test]
fn file_with_content_and_no_size_is_an_error() {
    let dir = scratch();
    let mut tree = read(Path::new("/proc/sys/kernel/random"));
    let mut sink = TarSink::create(&dir.path().join("a.tar"), Default::default()).unwrap();
    let error = tree.write_to(&mut sink, &mut ()).unwrap_err().to_string();
    assert!(error.contains("/boot_id: it has content"), "{error}");
}

#[test]
fn folder_that_is_none_or_not_there_is_an_error_by_name() {
    let dir = scratch();
    fs::write(dir.path().join("file"), "").unwrap();
    for name in ["file", "missing"] {
        let error = source::folder::read(&dir.path().join(name), Filter::default()).unwrap_err();
        assert!(error.to_string().contains(&format!("/{name}: ")), "{error}");
    }
}

#[test]
fn filter_leaves_out_maps_owners_and_clamps_times() {
    let dir = scratch();
    for name in ["keep", "keep/build", "build"] {
        fs::create_dir(dir.path().join(name)).unwrap();
        fs::write(dir.path().join(name).join("f.o"), "").unwrap();
        fs::write(dir.path().join(name).join("f.c"), "").unwrap();
    }
    let latest = Timestamp {
        secs: 1000,
        nanos: 0,
    };
    let filter = Filter {
        exclude: vec![Pattern::new(b"*.o"), Pattern::new(b"/build")],
        owners: vec!["17:18".parse().unwrap()],
        latest: Some(latest),
        exclude_file: None,
    };
    let tree = source::folder::read(dir.path(), filter).unwrap();
    let of = |entry: &Entry| {
        (
            String::from_utf8(entry.path.clone()).unwrap(),
            entry.uid,
            entry.gid,
            entry.mtime,
        )
    };
    let expected = ["", "keep", "keep/build", "keep/build/f.c", "keep/f.c"];
    let expected = expected.map(|path| (path.to_string(), 17, 18, latest));
    assert_eq!(tree.entries().iter().map(of).collect::<Vec<_>>(), expected);
}

#[test]
fn hard_links_of_which_one_is_left_out_still_have_their_file() {
    let dir = scratch();
    fs::write(dir.path().join("a"), "x").unwrap();
    for name in ["b", "c"] {
        fs::hard_link(dir.path().join("a"), dir.path().join(name)).unwrap();
    }
    let filter = Filter {
        exclude: vec![Pattern::new(b"a")],
        ..Filter::default()
    };
    let tree = source::folder::read(dir.path(), filter).unwrap();
    let kinds: Vec<_> = tree.entries().iter().map(|entry| &entry.kind).collect();
    assert!(
        matches!(kinds[..], [Kind::Directory, Kind::File(_), Kind::HardLink(to)] if to == b"b")
    );
}

#[test]
fn folder_written_without_owners_leaves_out_devices_and_says_so() {
    need_root!();
    let dir = scratch();
    let [from, to] = ["from", "to"].map(|name| dir.path().join(name));
    fs::create_dir(&from).unwrap();
    fill(&from, Without::default());
    fs::hard_link(from.join("char"), from.join("z/char2")).unwrap();
    let options = FolderOptions {
        owners: false,
        ..FolderOptions::default()
    };
    let mut sink = FolderSink::new(&to, options).unwrap();
    let left_out = ["block", "char", "z/char2"];
    let left_out_as = |path| format!("{path}: left out: making a device takes root");
    let mut said = left_out.map(left_out_as).to_vec();
    let small = "a-link: no set-ID bits: they take root, or user 1000 in group 1000";
    said.insert(0, small.into());
    assert_eq!(write(&mut read(&from), &mut sink), said);
    let (mut found, mut expected) = (walk(&to), walk(&from));
    for path in left_out {
        expected.remove(Path::new(path));
    }
    for tree in [&mut found, &mut expected] {
        tree.values_mut().for_each(|seen| seen.owner = (0, 0));
    }
    // Who gets the files does not lend his rights by them.
    for name in ["a-link", "small", "z/link"] {
        let seen = expected.get_mut(Path::new(name)).expect("a file");
        assert_eq!(seen.mode & 0o7777, 0o4751);
        seen.mode &= !0o6000;
    }
    // What is his anyway keeps its bits.
    assert_eq!(found[Path::new("dir-x")].mode & 0o7777, 0o2750);
    assert_same(&found, &expected);
}

/// A watch that does something once, when the first bytes of a tree are written.
struct Meanwhile<'a>(Option<&'a dyn Fn()>);

impl Watch for Meanwhile<'_> {
    fn expect(&mut self, _bytes: u64) {}
    fn done(&mut self, _bytes: u64) {
        if let Some(act) = self.0.take() {
            act();
        }
    }
}

#[test]
fn symlink_in_the_place_of_a_directory_is_not_walked_through() {
    let dir = scratch();
    let [from, other] = ["from", "other"].map(|name| dir.path().join(name));
    fs::create_dir_all(from.join("z")).unwrap();
    fs::create_dir(&other).unwrap();
    fs::write(from.join("first"), "first").unwrap();
    fs::write(from.join("z/file"), "file").unwrap();
    // The very file that was seen, so that only the way to it is another.
    fs::hard_link(from.join("z/file"), other.join("file")).unwrap();
    let mut tree = read(&from);
    let replace = || {
        fs::rename(from.join("z"), from.join("old")).unwrap();
        std::os::unix::fs::symlink(&other, from.join("z")).unwrap();
    };
    let archive = dir.path().join("a.tar");
    let mut sink = dioxide_pack::tar::write::TarSink::create(&archive, Default::default()).unwrap();
    let error = tree.write_to(&mut sink, &mut Meanwhile(Some(&replace)));
    let error = error.unwrap_err().to_string();
    assert!(error.contains("from/z"), "{error}");
}

/// A directory may be somebody else's by the time a file in it gets another name.
#[test]
fn file_in_the_place_of_another_gets_no_name_of_its() {
    let dir = scratch();
    let [from, to] = ["from", "to"].map(|name| dir.path().join(name));
    for name in ["home", "usr"] {
        fs::create_dir_all(from.join(name)).unwrap();
    }
    fs::write(from.join("home/tool"), "").unwrap();
    fs::hard_link(from.join("home/tool"), from.join("usr/tool")).unwrap();
    fs::write(from.join("other"), "other").unwrap();
    let tool = to.join("home/tool");
    let file = || {
        fs::write(to.join("evil"), "evil").unwrap();
        fs::rename(to.join("evil"), &tool).unwrap();
    };
    let symlink = || {
        fs::remove_file(&tool).unwrap();
        std::os::unix::fs::symlink("/etc/hostname", &tool).unwrap();
    };
    // The inode that is free may be used for it.
    let others = || {
        fs::remove_file(&tool).unwrap();
        fs::write(&tool, "evil").unwrap();
        std::os::unix::fs::chown(&tool, Some(7), None).unwrap();
    };
    let mut all = vec![&file as &dyn Fn(), &symlink];
    if rustix::process::geteuid().is_root() {
        all.push(&others);
    }
    for replace in all {
        let mut sink = FolderSink::new(&to, FolderOptions::default()).unwrap();
        let error = read(&from).write_to(&mut sink, &mut Meanwhile(Some(replace)));
        let error = error.unwrap_err().to_string();
        let why = "usr/tool: another file is home/tool by now";
        assert!(error.ends_with(why), "{error}");
        assert!(fs::symlink_metadata(to.join("usr/tool")).is_err());
        fs::remove_dir_all(&to).unwrap();
    }
}

/// A watch that ends the work in the middle of a file.
#[derive(Default)]
struct Ending(u64);

impl Watch for Ending {
    fn expect(&mut self, _bytes: u64) {}
    fn done(&mut self, bytes: u64) {
        self.0 += bytes;
    }
    fn stops(&self) -> bool {
        self.0 > 2 << 20
    }
}

#[test]
fn file_has_its_name_only_when_it_is_whole() {
    let dir = scratch();
    let from = dir.path().join("from");
    fs::create_dir(&from).unwrap();
    fs::write(from.join("data"), vec![7; 4 << 20]).unwrap();
    for merge in [false, true] {
        let to = dir.path().join(format!("to-{merge}"));
        if merge {
            fs::create_dir(&to).unwrap();
            fs::write(to.join("data"), "old").unwrap();
        }
        let options = FolderOptions {
            merge,
            ..FolderOptions::default()
        };
        let mut sink = FolderSink::new(&to, options).unwrap();
        let error = read(&from).write_to(&mut sink, &mut Ending::default());
        assert!(matches!(error, Err(Error::Stopped)), "{error:?}");
        drop(sink);
        let names = fs::read_dir(&to).unwrap();
        let left: Vec<_> = names.map(|entry| entry.unwrap().path()).collect();
        match merge {
            true => {
                assert_eq!(left, [to.join("data")]);
                assert_eq!(fs::read(to.join("data")).unwrap(), b"old");
            }
            false => assert_eq!(left, [""; 0].map(std::path::PathBuf::from)),
        }
    }
}

/// Others may have the name that files have until they are whole.
#[test]
fn name_of_an_unfinished_file_is_one_that_is_free() {
    let dir = scratch();
    let [from, to] = ["from", "to"].map(|name| dir.path().join(name));
    fs::create_dir(&from).unwrap();
    let own = format!(".dioxide-{}-0", std::process::id());
    for name in [&own, "z"] {
        fs::write(from.join(name), name).unwrap();
    }
    assert_eq!(to_folder(&mut read(&from), &to), [""; 0]);
    assert_same(&walk(&to), &walk(&from));
}
