//! Paths that are odd, and what the kernel makes of them.

use super::tree::{Amount, fill};
use dioxide::{Error, Fs, MountOptions};
use dioxide_testkit::{Image, Mount, debugfs_query, need_root};
use std::fs;

fn errno(result: std::io::Result<fs::Metadata>) -> Result<u64, i32> {
    use std::os::unix::fs::MetadataExt;
    result
        .map(|meta| meta.ino())
        .map_err(|error| error.raw_os_error().expect("from the kernel"))
}

#[test]
fn odd_paths_give_the_kernels_inode_or_errno() {
    need_root!();
    let image = Image::builder().block_size(1024).build();
    let mounted = Mount::ext4(image.path(), "");
    fill(
        mounted.path(),
        1024,
        Amount {
            entries: 100,
            fragments: 10,
            long_xattrs: false,
        },
    );
    let long = format!("names/{}", "n".repeat(255));
    let too_long = format!("names/{}", "n".repeat(256));
    let paths = [
        ".",
        "./",
        "links",
        "links/",
        "links//target",
        "links/./target",
        "links/../links/target",
        "./links/.././hard2",
        "links/target/",
        "links/target/.",
        "links/target/..",
        "links/target/x",
        "links/fast",
        "links/fast/",
        "links/dotted",
        "links/up",
        "links/up/",
        "links/up/links/up/hard2",
        "links/dangling",
        "links/dangling/",
        "links/loop1",
        "links/loop1/",
        "links/loop1/x",
        "links/missing",
        "links/missing/x",
        "missing",
        "links/chain40",
        "links/chain39",
        "links/chain41",
        "links/len1000",
        "devices/null",
        "devices/null/",
        "devices/fifo/..",
        "names/.hidden",
        "names/with space",
        "names/new\nline",
        "names/übung",
        &long,
        &too_long,
    ];
    let expected: Vec<_> = paths
        .iter()
        .map(|path| {
            let full = format!("{}/{path}", mounted.path().display());
            (
                errno(fs::metadata(&full)),
                errno(fs::symlink_metadata(&full)),
            )
        })
        .collect();
    mounted.unmount();
    let fs = Fs::open(image.path(), &MountOptions::new()).expect("dioxide opens it");
    let ours = |result: dioxide::Result<dioxide::Metadata>| {
        result
            .map(|meta| u64::from(meta.ino))
            .map_err(|e| e.errno())
    };
    for (path, expected) in paths.iter().zip(expected) {
        let found = (ours(fs.metadata(path)), ours(fs.symlink_metadata(path)));
        assert_eq!(found, expected, "{path:?}");
        let absolute = format!("//{path}");
        let found = (
            ours(fs.metadata(&absolute)),
            ours(fs.symlink_metadata(&absolute)),
        );
        assert_eq!(found, expected, "{absolute:?}");
    }
    assert_eq!(ours(fs.metadata("")), Err(libc::ENOENT));
    assert_eq!(ours(fs.metadata("/../..")), Ok(2));
    let target = fs.metadata("/links/target").expect("it is there");
    assert_eq!(fs.metadata("/links/absolute").expect("it is there"), target);
}

#[test]
fn errors_of_paths_carry_the_path() {
    let image = Image::builder().size(8 << 20).build();
    let fs = Fs::open(image.path(), &MountOptions::new()).expect("dioxide opens it");
    let error = fs
        .metadata("/lost+found/not here")
        .expect_err("nothing is there");
    assert!(
        matches!(&error, Error::NotFound(path) if path == "/lost+found/not here"),
        "{error}"
    );
    let error = fs.read_link("/lost+found").expect_err("a directory");
    assert_eq!(error.errno(), libc::EINVAL);
}

#[test]
fn index_of_three_levels_finds_every_name() {
    need_root!();
    const NAMES: u32 = 52_000;
    let image = Image::builder()
        .size(200 << 20)
        .block_size(1024)
        .features("large_dir")
        .build();
    let mounted = Mount::ext4(image.path(), "");
    let dir = mounted.path().join("d");
    let first = dir.join("first");
    fs::create_dir(&dir).expect("a new directory");
    fs::write(&first, b"").expect("a new file");
    let name = |at: u32| format!("{at}{}", "n".repeat(240));
    for at in 0..NAMES {
        // Links to one inode cost less; it may have 65,000.
        fs::hard_link(&first, dir.join(name(at))).expect("a new name");
    }
    mounted.unmount();
    let fs = Fs::open(image.path(), &MountOptions::new()).expect("dioxide opens it");
    let dump = debugfs_query(image.path(), "htree_dump /d");
    assert!(
        dump.contains("Indirect levels: 2"),
        "the index has three levels"
    );
    let ino = fs.metadata("/d/first").expect("it is there").ino;
    for at in 0..NAMES {
        let found = fs
            .metadata(format!("/d/{}", name(at)))
            .expect("a name that was made");
        assert_eq!(found.ino, ino);
    }
    assert_eq!(
        fs.read_dir("/d").expect("a directory").len(),
        NAMES as usize + 3
    );
}
