//! Trees that a program makes.

use crate::support::*;
use dioxide::{Timestamp, Xattr};
use dioxide_pack::image::{self, ImageOptions};
use dioxide_pack::source::program::{Content, TreeBuilder};
use dioxide_pack::tar::Compression;
use dioxide_pack::tar::write::TarSink;
use dioxide_pack::{Entry, Error, Filter, Kind, Tree, source};
use dioxide_testkit::need_root;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

fn builder() -> TreeBuilder {
    TreeBuilder::new(Filter::default())
}

/// The same entries as another tree, the last first but for links, with each kind of content.
fn made_as(tree: &Tree, root: &Path) -> Tree {
    let mut made = builder();
    let is_link = |entry: &&Entry| matches!(entry.kind, Kind::HardLink(_));
    let (links, files): (Vec<_>, Vec<_>) = tree.entries().iter().partition(is_link);
    for (nth, entry) in files.into_iter().rev().chain(links).enumerate() {
        let host = root.join(std::ffi::OsStr::from_bytes(&entry.path));
        let Kind::File(data) = &entry.kind else {
            made.add(entry.clone()).unwrap();
            continue;
        };
        let content = match nth % 2 {
            _ if !data.is_sparse() && nth % 3 == 0 => Content::bytes(fs::read(host).unwrap()),
            0 => Content::host(host).unwrap(),
            _ => {
                let segments = data.segments.clone();
                Content::sparse(data.size, data.segments.clone(), move || {
                    let file = File::open(&host)?;
                    let mut stored = Vec::new();
                    for segment in &segments {
                        let mut piece = vec![0; (segment.end - segment.start) as usize];
                        file.read_exact_at(&mut piece, segment.start)?;
                        stored.extend(piece);
                    }
                    Ok(std::io::Cursor::new(stored))
                })
            }
        };
        made.add_file(entry.clone(), content).unwrap();
    }
    made.finish().unwrap()
}

fn packed(mut tree: Tree, image: PathBuf) -> Vec<u8> {
    let options = ImageOptions::of(&tree).unwrap();
    let target = image::target(&image).unwrap();
    image::write(&mut tree, target, &options, &mut ()).unwrap();
    fs::read(image).unwrap()
}

#[test]
fn tree_of_a_folder_of_an_archive_and_of_a_program_gives_the_same_bytes() {
    need_root!();
    let dir = scratch();
    let path = |name: &str| dir.path().join(name);
    let root = path("tree");
    fs::create_dir(&root).unwrap();
    let without = Without {
        sockets: true,
        ..Without::default()
    };
    fill(&root, without);
    let mut folder = source::folder::read(&root, Filter::default()).unwrap();
    to_archive(&mut folder, &path("a.tar"));
    let archive = from_archive(&path("a.tar")).unwrap();
    let mut program = made_as(&folder, &root);
    to_archive(&mut program, &path("b.tar"));
    assert!(fs::read(path("a.tar")).unwrap() == fs::read(path("b.tar")).unwrap());
    let expected = packed(folder, path("folder.img"));
    assert!(packed(archive, path("archive.img")) == expected, "archive");
    assert!(packed(program, path("program.img")) == expected, "program");
}

#[test]
fn entry_that_no_tree_may_hold_is_refused() {
    let hard = |target: &str| Entry::new("x", Kind::HardLink(target.into()), 0);
    let twice = Entry {
        xattrs: ["user.a", "user.a"].map(xattr).to_vec(),
        ..Entry::file("x", 0)
    };
    let late = Entry {
        mtime: Timestamp {
            secs: 0,
            nanos: 1_000_000_000,
        },
        ..Entry::file("x", 0)
    };
    let mut full = Entry::file("x", 0o644);
    if let Kind::File(data) = &mut full.kind {
        data.size = 1;
    }
    for (entry, why) in [
        (Entry::file("/etc/x", 0o644), "absolute"),
        (Entry::file("a/../x", 0o644), "'..'"),
        (Entry::file("", 0o644), "the root"),
        (Entry::file("there", 0o644), "twice"),
        (Entry::file("x", 0o100_644), "12 bits"),
        (Entry::new("x", Kind::CharDevice(4096, 0), 0), "12 and 20"),
        (
            Entry::new("x", Kind::BlockDevice(0, 1 << 20), 0),
            "12 and 20",
        ),
        (Entry::new("x", Kind::Symlink(vec![]), 0), "empty"),
        (hard("../there"), "out of the tree"),
        (hard("/there"), "out of the tree"),
        (hard("later"), "no earlier"),
        (hard("d"), "a directory"),
        (twice, "comes twice"),
        (late, "nanoseconds"),
        (full, "not added"),
    ] {
        let mut made = builder();
        made.add(Entry::file("there", 0o644)).unwrap();
        made.add(Entry::new("d", Kind::Directory, 0o755)).unwrap();
        let error = made.add(entry).unwrap_err();
        assert!(matches!(error, Error::Refused { .. }), "{error:?}");
        assert!(error.to_string().contains(why), "{error}: {why}");
    }
    let mut made = builder();
    made.add(Entry::file("f/below", 0o644)).unwrap();
    made.add(Entry::file("f", 0o644)).unwrap();
    assert!(made.finish().is_err());
}

fn xattr(name: &str) -> Xattr {
    Xattr {
        name: name.into(),
        value: vec![],
    }
}

#[test]
#[expect(clippy::single_range_in_vec_init, reason = "one range is meant")]
fn content_that_is_none_is_refused() {
    let sparse = |size, segments| Content::sparse(size, segments, || Ok(std::io::empty()));
    for content in [
        sparse(10, vec![0..4, 4..8]),
        sparse(10, vec![4..8, 0..2]),
        sparse(10, vec![3..3]),
        sparse(10, vec![8..11]),
        sparse(u64::MAX, vec![]),
    ] {
        let error = builder().add_file(Entry::file("x", 0o644), content);
        let error = error.unwrap_err().to_string();
        assert!(error.contains("segments"), "{error}");
    }
    let directory = Entry::new("x", Kind::Directory, 0o755);
    let error = builder().add_file(directory, Content::bytes(b"x"));
    assert!(error.unwrap_err().to_string().contains("no regular file"));
    assert!(
        Content::host("/")
            .unwrap_err()
            .to_string()
            .contains("no regular file")
    );
}

#[test]
fn content_that_is_not_what_was_said_is_an_error() {
    let dir = scratch();
    let host = dir.path().join("host");
    for size in [3, 5] {
        fs::write(&host, "four").unwrap();
        let of_host = Content::host(&host).unwrap();
        fs::write(&host, "longer").unwrap();
        let of_reader = Content::reader(size, || Ok(&b"four"[..]));
        let failing = Content::reader(4, || Err::<File, _>(std::io::Error::other("gone")));
        for (content, why) in [
            (of_host, "changed"),
            (of_reader, "f: changed"),
            (failing, "f: gone"),
        ] {
            let mut made = builder();
            made.add_file(Entry::file("f", 0o644), content).unwrap();
            let mut tree = made.finish().unwrap();
            let archive = dir.path().join("a.tar");
            let mut sink = TarSink::create(&archive, Compression::None).unwrap();
            let error = tree.write_to(&mut sink, &mut ()).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}

#[test]
fn filter_is_for_what_a_program_adds_too() {
    let filter = Filter {
        exclude: vec![dioxide_pack::Pattern::new(b"*.o")],
        owners: vec!["7:8".parse().unwrap()],
        latest: Some(Timestamp { secs: 5, nanos: 0 }),
        ..Filter::default()
    };
    let mut made = TreeBuilder::new(filter);
    for name in ["./d//a.o", "d/b/"] {
        let entry = Entry {
            mtime: Timestamp { secs: 9, nanos: 0 },
            ..Entry::file(name, 0o644)
        };
        made.add_file(entry, Content::bytes(name.as_bytes()))
            .unwrap();
    }
    let link = Entry::new("d/c", Kind::HardLink(b"./d/a.o".to_vec()), 0);
    made.add(link).unwrap();
    let mut tree = made.finish().unwrap();
    let paths: Vec<_> = tree.entries().iter().map(|entry| &entry.path[..]).collect();
    assert_eq!(paths, [&b""[..], b"d", b"d/b", b"d/c"]);
    let last = &tree.entries()[3];
    assert_eq!((last.uid, last.gid, last.mtime.secs), (7, 8, 5));
    let out = scratch();
    to_archive(&mut tree, &out.path().join("a.tar"));
    let mut text = String::new();
    File::open(out.path().join("a.tar"))
        .unwrap()
        .read_to_string(&mut text)
        .unwrap();
    assert!(text.contains("./d//a.o"));
}
