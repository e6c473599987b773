//! Archives that GNU tar made.

use crate::refusals::{archive, entry, file, sum};
use crate::support::*;
use dioxide_pack::sink::folder::{FolderOptions, FolderSink};
use dioxide_pack::tar::write::TarSink;
use dioxide_pack::tar::{self, Compression, ReadOptions};
use dioxide_pack::{Error, Filter, Kind, Pattern, source};
use dioxide_testkit::need_root;
use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// What Python reads of an archive: path, size and a sum of the bytes of each file.
const BY_PYTHON: &str = "
import sys, tarfile, zlib
with tarfile.open(sys.argv[1]) as archive:
    for member in archive:
        if member.isreg():
            data = archive.extractfile(member).read()
            print(member.name, len(data), zlib.crc32(data))
";

/// What a format does not keep.
#[derive(Clone, Copy, PartialEq)]
enum Keeps {
    All,
    /// Whole seconds.
    Seconds,
}

#[track_caller]
fn reads(args: &[&str], compressor: Option<(&str, &str)>, without: Without, keeps: Keeps) {
    let dir = scratch();
    let [from, to] = ["from", "to"].map(|name| dir.path().join(name));
    fs::create_dir(&from).unwrap();
    fill(&from, without);
    // GNU tar makes two of them.
    fs::remove_file(from.join("z/fifo2")).unwrap();
    let archive = dir.path().join("a.tar");
    let place = [
        "--numeric-owner",
        "-C",
        name(&from),
        "-cf",
        name(&archive),
        ".",
    ];
    run("tar", &[args, &place].concat());
    let archive = match compressor {
        None => archive,
        Some((program, ending)) => {
            run(program, &["-q", "-k", name(&archive)]);
            dir.path().join(format!("a.tar.{ending}"))
        }
    };
    let mut tree = from_archive(&archive).unwrap_or_else(|error| panic!("{args:?}: {error}"));
    assert_eq!(to_folder(&mut tree, &to), [""; 0]);
    let mut expected = walk(&from);
    if keeps == Keeps::Seconds {
        // GNU tar cuts fractions off towards the past.
        expected.values_mut().for_each(|seen| seen.mtime.1 = 0);
    }
    assert_same(&walk(&to), &expected);
}

const PLAIN: Without = Without {
    sockets: true,
    xattrs: true,
    sparse: false,
};

#[test]
fn gnu_archive_of_everything_is_read() {
    need_root!();
    for format in ["--format=gnu", "--format=oldgnu"] {
        reads(&[format, "-S"], None, PLAIN, Keeps::Seconds);
    }
}

#[test]
fn pax_archive_of_everything_is_read_in_each_sparse_format() {
    need_root!();
    let without = Without {
        sockets: true,
        ..Without::default()
    };
    for version in ["0.0", "0.1", "1.0"] {
        let version = format!("--sparse-version={version}");
        let args = [
            "--format=posix",
            "-S",
            &version,
            "--xattrs",
            "--xattrs-include=*",
            "--acls",
        ];
        reads(&args, None, without, Keeps::All);
    }
}

#[test]
fn compressed_archive_is_read_by_its_first_bytes() {
    need_root!();
    for compressor in [("gzip", "gz"), ("zstd", "zst"), ("xz", "xz")] {
        reads(
            &["--format=posix", "-S"],
            Some(compressor),
            PLAIN,
            Keeps::All,
        );
    }
}

fn small_tree(dir: &Path) {
    fs::create_dir_all(dir.join("d/e")).unwrap();
    fs::write(dir.join("d/e/f"), "content").unwrap();
    fs::write(dir.join("d/g"), dioxide_testkit::pattern(3, 0, 5000)).unwrap();
    fs::hard_link(dir.join("d/g"), dir.join("d/h")).unwrap();
}

#[test]
fn old_archives_are_read() {
    let dir = scratch();
    let from = dir.path().join("from");
    small_tree(&from);
    for format in ["v7", "ustar"] {
        let archive = dir.path().join(format!("{format}.tar"));
        let to = dir.path().join(format);
        run(
            "tar",
            &[
                &format!("--format={format}"),
                "-C",
                name(&from),
                "-cf",
                name(&archive),
                "d",
            ],
        );
        to_folder(&mut from_archive(&archive).unwrap(), &to);
        let (mut found, mut expected) = (walk(&to), walk(&from));
        for tree in [&mut found, &mut expected] {
            tree.remove(Path::new(""));
            tree.values_mut().for_each(|seen| seen.mtime.1 = 0);
        }
        assert_same(&found, &expected);
    }
}

/// Java's programs leave the version empty.
#[test]
fn prefix_of_a_name_counts_in_each_version_of_ustar() {
    let dir = scratch();
    for (magic, path) in [
        (b"ustar\x0000", &b"dir/name"[..]),
        (b"ustar\0\0\0", b"dir/name"),
        (b"ustar  \0", b"name"),
    ] {
        let mut part = file(b"name");
        part[257..265].copy_from_slice(magic);
        part[345..348].copy_from_slice(b"dir");
        sum(&mut part[..512]);
        let packed = dir.path().join("a.tar");
        fs::write(&packed, archive(&[part])).unwrap();
        let tree = from_archive(&packed).unwrap();
        assert_eq!(tree.entries().last().unwrap().path, path);
    }
}

#[test]
fn archive_in_many_frames_is_read_to_its_end() {
    let dir = scratch();
    let from = dir.path().join("from");
    small_tree(&from);
    let archive = dir.path().join("a.tar");
    run(
        "tar",
        &[
            "--format=posix",
            "-C",
            name(&from),
            "-cf",
            name(&archive),
            ".",
        ],
    );
    let whole = fs::read(&archive).unwrap();
    let skippable = [&[0x50, 0x2A, 0x4D, 0x18, 3, 0, 0, 0][..], b"abc"].concat();
    for (program, ending, between) in [
        ("gzip", "gz", vec![]),
        ("zstd", "zst", skippable),
        ("xz", "xz", vec![]),
    ] {
        let mut joined = between.clone();
        for (i, part) in whole.chunks(3000).enumerate() {
            let path = dir.path().join(format!("{i}.{ending}-part"));
            fs::write(&path, part).unwrap();
            run(program, &["-q", name(&path)]);
            joined
                .extend(fs::read(path.with_extension(format!("{ending}-part.{ending}"))).unwrap());
            joined.extend(&between);
        }
        let packed = dir.path().join(format!("joined.{ending}"));
        fs::write(&packed, joined).unwrap();
        let to = dir.path().join(ending);
        to_folder(&mut from_archive(&packed).unwrap(), &to);
        assert_same(&walk(&to), &walk(&from));
    }
}

#[test]
fn gzip_archive_that_a_tape_filled_up_with_zeros_is_read_and_one_with_more_behind_is_not() {
    let dir = scratch();
    let from = dir.path().join("from");
    small_tree(&from);
    let archive = dir.path().join("a.tar.gz");
    run("tar", &["-C", name(&from), "-czf", name(&archive), "."]);
    let whole = fs::read(&archive).unwrap();
    for zeros in [1, 10_240, 100_000] {
        fs::write(&archive, [&whole[..], &vec![0; zeros]].concat()).unwrap();
        let to = dir.path().join(format!("{zeros}"));
        to_folder(&mut from_archive(&archive).unwrap(), &to);
        assert_eq!(fs::read(to.join("d/e/f")).unwrap(), b"content");
    }
    for rest in [
        &b"x"[..],
        b"\0\0x",
        b"\x1f",
        &[&[0; 100_000][..], b"x"].concat(),
    ] {
        fs::write(&archive, [&whole[..], rest].concat()).unwrap();
        let error = from_archive(&archive).unwrap_err().to_string();
        assert!(error.contains("gzip: "), "{error}");
        assert!(error.contains("behind its end"), "{error}");
    }
}

#[test]
fn what_is_behind_the_end_of_a_zstd_archive_is_named() {
    let dir = scratch();
    let from = dir.path().join("from");
    small_tree(&from);
    let archive = dir.path().join("a.tar.zst");
    run(
        "tar",
        &["-C", name(&from), "--zstd", "-cf", name(&archive), "."],
    );
    let whole = fs::read(&archive).unwrap();
    // A frame that is passed over is none of it.
    let skipped = b"\x50\x2a\x4d\x18\x03\0\0\0abc";
    fs::write(&archive, [&whole[..], skipped].concat()).unwrap();
    assert!(from_archive(&archive).is_ok());
    for rest in [&[0; 512][..], b"garbage", b"x"] {
        fs::write(&archive, [&whole[..], rest].concat()).unwrap();
        let error = from_archive(&archive).unwrap_err().to_string();
        let told = "zstd: something behind its end that is no part of it";
        assert!(error.contains(told), "{error}");
    }
}

/// A part that was cut off in its header was told as something that does not belong there.
#[test]
fn part_behind_another_that_is_cut_in_its_header_is_told_as_cut() {
    let dir = scratch();
    let from = dir.path().join("from");
    small_tree(&from);
    for (program, ending, magic, header) in [
        ("gzip", "gz", 2, 10),
        ("zstd", "zst", 4, 6),
        ("xz", "xz", 6, 12),
    ] {
        let archive = dir.path().join("a.tar");
        run(
            "tar",
            &["-C", name(&from), "--sort=name", "-cf", name(&archive), "."],
        );
        run(program, &["-q", "-f", name(&archive)]);
        let packed = dir.path().join(format!("a.tar.{ending}"));
        let whole = fs::read(&packed).unwrap();
        for len in magic..=header {
            fs::write(&packed, [&whole[..], &whole[..len]].concat()).unwrap();
            let error = from_archive(&packed).unwrap_err().to_string();
            assert!(error.contains("truncated"), "{program}: {len}: {error}");
        }
    }
}

/// As GNU tar takes it. It could be a part of a longer one, so that is told.
#[test]
fn archive_without_its_end_mark_is_read_with_a_warning() {
    let dir = scratch();
    let from = dir.path().join("from");
    small_tree(&from);
    let archive = dir.path().join("a.tar");
    run(
        "tar",
        &["-C", name(&from), "-b", "1", "-cf", name(&archive), "."],
    );
    let whole = fs::read(&archive).unwrap();
    fs::write(&archive, &whole[..whole.len() - 1024]).unwrap();
    for program in [None, Some(("gzip", "gz")), Some(("zstd", "zst"))] {
        let path = match program {
            None => archive.clone(),
            Some((program, ending)) => {
                run(program, &["-q", "-k", name(&archive)]);
                dir.path().join(format!("a.tar.{ending}"))
            }
        };
        let mut tree = from_archive(&path).unwrap();
        let told: Vec<_> = tree.warnings().iter().map(|told| &*told.what).collect();
        assert_eq!(
            told,
            ["has no end mark: if it was cut off, entries are missing"]
        );
        let to = dir
            .path()
            .join(format!("to{}", program.map_or("", |(_, ending)| ending)));
        to_folder(&mut tree, &to);
        assert_eq!(fs::read(to.join("d/e/f")).unwrap(), b"content");
    }
    // Whole as well: its end mark is one block.
    fs::write(&archive, &whole[..whole.len() - 512]).unwrap();
    assert!(from_archive(&archive).unwrap().warnings().is_empty());
}

/// Its data are read where they are, long after its headers.
#[test]
fn plain_archive_that_changes_after_its_headers_were_read_is_an_error() {
    let change: [fn(&Path); 2] = [
        |path| {
            let archive = fs::OpenOptions::new().write(true).open(path).unwrap();
            archive.write_all_at(b"other", 512).unwrap();
            // Whatever the clock's grain is.
            let later = std::time::SystemTime::now() + Duration::from_secs(1);
            archive.set_modified(later).unwrap();
        },
        |path| {
            let archive = fs::OpenOptions::new().append(true).open(path);
            archive.unwrap().write_all(&[0; 512]).unwrap();
        },
    ];
    for (number, change) in change.into_iter().enumerate() {
        let dir = scratch();
        let from = dir.path().join("from");
        small_tree(&from);
        let archive = dir.path().join("a.tar");
        run("tar", &["-C", name(&from), "-cf", name(&archive), "d"]);
        let mut tree = from_archive(&archive).unwrap();
        change(&archive);
        let mut sink = FolderSink::new(&dir.path().join("to"), FolderOptions::default()).unwrap();
        let error = tree.write_to(&mut sink, &mut ()).unwrap_err();
        assert!(
            matches!(&error, Error::Changed { name } if name.ends_with("a.tar")),
            "{number}: {error}"
        );
    }
}

#[test]
fn directories_that_an_archive_implies_are_made_alike_each_time() {
    let dir = scratch();
    let from = dir.path().join("from");
    small_tree(&from);
    let archive = dir.path().join("a.tar");
    run("tar", &["-C", name(&from), "-cf", name(&archive), "d/e/f"]);
    let tree = from_archive(&archive).unwrap();
    let rows: Vec<_> = tree
        .entries()
        .iter()
        .map(|e| (&e.path[..], e.permissions, e.uid, e.mtime.secs))
        .collect();
    assert_eq!(
        rows[..3],
        [
            (&b""[..], 0o755, 0, 0),
            (b"d", 0o755, 0, 0),
            (b"d/e", 0o755, 0, 0)
        ]
    );
    assert_eq!((rows.len(), rows[3].0), (4, &b"d/e/f"[..]));
}

#[test]
fn what_is_excluded_from_an_archive_is_not_kept() {
    let dir = scratch();
    let from = dir.path().join("from");
    small_tree(&from);
    let archive = dir.path().join("a.tar.gz");
    run(
        "tar",
        &[
            "--sort=name",
            "-C",
            name(&from),
            "-czf",
            name(&archive),
            "d",
        ],
    );
    let options = ReadOptions {
        filter: Filter {
            exclude: vec![Pattern::new(b"e"), Pattern::new(b"d/h")],
            ..Filter::default()
        },
        spool: Some(dir.path().into()),
    };
    let mut tree = tar::read(&archive, options, &mut ()).unwrap();
    let to = dir.path().join("to");
    to_folder(&mut tree, &to);
    let paths: Vec<_> = walk(&to).into_keys().collect();
    assert_eq!(paths, ["", "d", "d/g"].map(std::path::PathBuf::from));
    assert_eq!(
        fs::read(to.join("d/g")).unwrap(),
        dioxide_testkit::pattern(3, 0, 5000)
    );
}

/// Whichever of its names the archive has first.
#[test]
fn file_whose_name_is_excluded_stays_under_its_other_names() {
    let dir = scratch();
    let from = dir.path().join("from");
    fs::create_dir(&from).unwrap();
    fs::write(from.join("a"), "data").unwrap();
    for other in ["b", "c", "d"] {
        fs::hard_link(from.join("a"), from.join(other)).unwrap();
    }
    let mut expected = walk(&from);
    expected.retain(|path, _| path != Path::new("a") && path != Path::new("c"));
    for (archive, names) in [
        ("1.tar", ["a", "b", "c", "d"]),
        ("2.tar", ["b", "a", "d", "c"]),
        ("3.tar.gz", ["c", "a", "b", "d"]),
        ("4.tar.gz", ["a", "c", "d", "b"]),
    ] {
        let path = dir.path().join(archive);
        let words = ["-C", name(&from), "-caf", name(&path)];
        run("tar", &[&words[..], &names].concat());
        let options = ReadOptions {
            filter: Filter {
                exclude: vec![Pattern::new(b"/a"), Pattern::new(b"/c")],
                ..Filter::default()
            },
            spool: Some(dir.path().into()),
        };
        let mut tree = tar::read(&path, options, &mut ()).unwrap();
        let to = dir.path().join(format!("to-{archive}"));
        assert_eq!(to_folder(&mut tree, &to), [""; 0]);
        let mut found = walk(&to);
        // The archive does not describe it.
        found.remove(Path::new(""));
        let paths: Vec<_> = found.keys().collect();
        assert_eq!(paths, ["b", "d"].map(Path::new), "{archive}");
        for (path, seen) in &found {
            assert_eq!(seen.first, Path::new("b"), "{archive}");
            assert_eq!(seen.data, expected[path].data, "{archive}");
        }
    }
}

#[test]
fn sparse_file_with_a_long_name_has_it_for_every_program() {
    let dir = scratch();
    let [from, to] = ["from", "to"].map(|name| dir.path().join(name));
    let long = "n".repeat(200);
    // The name in the header ends with a slash where it is cut.
    let directory = "d".repeat(97);
    fs::create_dir_all(from.join(&directory)).unwrap();
    let content = dioxide_testkit::pattern(5, 0, 4096);
    let paths = [long.clone(), format!("{directory}/{long}")];
    for path in &paths {
        let file = fs::File::create(from.join(path)).unwrap();
        file.set_len(1 << 20).unwrap();
        file.write_all_at(&content, 1 << 19).unwrap();
    }
    let archive = dir.path().join("a.tar");
    let mut tree = source::folder::read(&from, Filter::default()).unwrap();
    to_archive(&mut tree, &archive);
    fs::create_dir(&to).unwrap();
    run("tar", &["-C", name(&to), "-xf", name(&archive)]);
    assert_same(&walk(&to), &walk(&from));
    let ours = dir.path().join("ours");
    to_folder(&mut from_archive(&archive).unwrap(), &ours);
    assert_same(&walk(&ours), &walk(&from));
    if Command::new("python3").arg("--version").output().is_err() {
        eprintln!("skipped: needs python3");
        return;
    }
    let seen = run("python3", &["-c", BY_PYTHON, name(&archive)]);
    let whole = fs::read(from.join(&long)).unwrap();
    let mut crc = flate2::Crc::new();
    crc.update(&whole);
    let mut expected = paths.map(|path| format!("./{path} {} {}", whole.len(), crc.sum()));
    expected.sort();
    let mut seen: Vec<_> = seen.lines().collect();
    seen.sort();
    assert_eq!(seen, expected);
}

#[test]
fn owners_are_mapped_in_directories_that_an_archive_only_implies() {
    let dir = scratch();
    let from = dir.path().join("from");
    small_tree(&from);
    let archive = dir.path().join("a.tar");
    run("tar", &["-C", name(&from), "-cf", name(&archive), "d/e/f"]);
    for (rule, owner) in [("17:18", (17, 18)), ("u:0:1000:1", (1000, 0))] {
        let options = ReadOptions {
            filter: Filter {
                owners: vec![rule.parse().unwrap()],
                ..Filter::default()
            },
            spool: None,
        };
        let tree = tar::read(&archive, options, &mut ()).unwrap();
        let directories = tree.entries().iter().filter(|entry| entry.is_directory());
        let owners: Vec<_> = directories.map(|entry| (entry.uid, entry.gid)).collect();
        assert_eq!(owners, [owner; 3], "{rule}");
    }
}

#[test]
fn compressed_archive_from_a_pipe_is_known_however_its_bytes_come() {
    let dir = scratch();
    let from = dir.path().join("from");
    small_tree(&from);
    let archive = dir.path().join("a.tar");
    run("tar", &["-C", name(&from), "-cf", name(&archive), "d"]);
    for (program, ending) in [("gzip", "gz"), ("zstd", "zst"), ("xz", "xz")] {
        run(program, &["-q", "-k", name(&archive)]);
        let bytes = fs::read(dir.path().join(format!("a.tar.{ending}"))).unwrap();
        let pipe = dir.path().join(ending);
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        let fifo = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, fifo, mode, 0).unwrap();
        let tree = std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut writer = fs::OpenOptions::new().write(true).open(&pipe).unwrap();
                writer.write_all(&bytes[..1]).unwrap();
                std::thread::sleep(Duration::from_millis(100));
                // Who reads gives up if it takes it for something else.
                let _ = writer.write_all(&bytes[1..]);
            });
            from_archive(&pipe)
        });
        let tree = tree.unwrap_or_else(|error| panic!("{program}: {error}"));
        assert_eq!(tree.totals().files, 2, "{program}");
    }
}

/// What a directory gives to new files is in no mode, however few entries it has.
#[test]
fn default_list_of_three_entries_is_kept_and_one_that_is_a_mode_is_none() {
    need_root!();
    let dir = scratch();
    let from = dir.path().join("from");
    fs::create_dir_all(from.join("d")).unwrap();
    run(
        "setfacl",
        &["-d", "-m", "g::rwx,o::-", name(&from.join("d"))],
    );
    let given = "system.posix_acl_default".as_bytes();
    let list = walk(&from)[Path::new("d")].xattrs[given].clone();
    assert_eq!(list.len(), 4 + 3 * 8);
    let archive = dir.path().join("a.tar");
    let place = ["-C", name(&from), "-cf", name(&archive), "."];
    run("tar", &[&["--format=posix", "--acls"], &place[..]].concat());
    let to = dir.path().join("to");
    to_folder(&mut from_archive(&archive).unwrap(), &to);
    let found = walk(&to);
    assert_eq!(found[Path::new("d")].xattrs.get(given), Some(&list));
    assert!(found[Path::new("")].xattrs.is_empty());
}

/// /dev/stdout was made a file.
#[test]
fn archive_takes_no_symlinks_place() {
    let dir = scratch();
    let [file, link] = ["file", "link"].map(|name| dir.path().join(name));
    std::os::unix::fs::symlink(&file, &link).unwrap();
    for there in [false, true] {
        let error = TarSink::create(&link, Compression::None).unwrap_err();
        assert!(
            error
                .to_string()
                .ends_with("is a symlink, and is not replaced")
        );
        assert_eq!(file.exists(), there);
        fs::write(&file, "old").unwrap();
    }
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
}

#[test]
fn long_name_ends_at_its_first_nul() {
    let dir = scratch();
    let path = dir.path().join("a.tar");
    let long = |kind, name: &[u8]| entry(b"././@LongLink", kind, b"", name);
    let bytes = archive(&[
        long(b'L', b"name\0\0\0"),
        long(b'K', b"target\0\0"),
        entry(b"n", b'2', b"t", b""),
    ]);
    fs::write(&path, bytes).unwrap();
    let tree = from_archive(&path).unwrap();
    let link = &tree.entries()[1];
    assert_eq!(link.path, b"name");
    assert_eq!(link.kind, Kind::Symlink(b"target".to_vec()));
}
