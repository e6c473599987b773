//! Files that carry the flag of encryption or of verity, beside others that do not.

use dioxide::{Error, Fs, MountOptions, NewFile, OpenOptions, RenameMode};
use dioxide_testkit::{Image, debugfs, e2fsck_clean};

/// What is set on `/secret`, `/hidden` and `/link`, which are a file, a directory with a file in it and a symlink.
fn with(feature: &str, flags: &[(&str, &str)]) -> Image {
    let tree = tempfile::tempdir().expect("a folder");
    let at = |name: &str| tree.path().join(name);
    for name in ["hidden", "dir"] {
        std::fs::create_dir(at(name)).expect("a new folder");
    }
    for name in ["plain", "secret", "hidden/inside"] {
        std::fs::write(at(name), [7; 5000]).expect("room");
    }
    std::os::unix::fs::symlink("plain", at("link")).expect("a new symlink");
    let image = Image::builder().features(feature);
    let image = image.source(tree.path()).build();
    set_flags(&image, flags);
    image
}

fn set_flags(image: &Image, flags: &[(&str, &str)]) {
    let command = |(path, flags): &(&str, &str)| format!("set_inode_field {path} flags {flags}");
    let commands: Vec<String> = flags.iter().map(command).collect();
    debugfs(image.path(), &commands);
}

fn open(image: &Image) -> Fs {
    let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
    assert_eq!(fs.read_only(), None, "{:?}", fs.warnings());
    fs
}

fn rw() -> OpenOptions {
    OpenOptions::new().read(true).write(true)
}

/// All that changes and reads what has no flag.
fn use_others(fs: &Fs) {
    let new = NewFile::new(0o644);
    let file = rw().create(true).new_file(&new).open(fs, "/dir/new");
    let file = file.expect("room");
    file.write_at(&[1; 9000], 0).expect("room");
    file.sync_all().expect("a sync");
    let plain = rw().open(fs, "/plain").expect("it exists");
    plain.write_at(&[2; 100], 50).expect("room");
    let mut found = [0; 200];
    plain.read_at(&mut found, 0).expect("readable");
    assert_eq!(found[..50], [7; 50]);
    assert_eq!(found[50..150], [2; 100]);
    fs.rename("/dir/new", "/new", RenameMode::default())
        .expect("a rename");
    fs.remove_file("/new").expect("it goes");
}

const ENCRYPTED: [(&str, &str); 3] = [
    ("/secret", "0x80800"),
    ("/hidden", "0x80800"),
    ("/link", "0x800"),
];

#[test]
fn encrypted_files_are_refused_by_name_and_others_are_used() {
    let image = with("encrypt", &ENCRYPTED);
    let fs = open(&image);
    let new = NewFile::new(0o644);
    let hidden = fs
        .root()
        .expect("a root")
        .lookup(b"hidden")
        .expect("it exists");
    let how = RenameMode::default();
    let calls: [(&str, &dyn Fn() -> dioxide::Result<()>); 13] = [
        ("read", &|| {
            OpenOptions::new().read(true).open(&fs, "/secret").map(drop)
        }),
        ("write", &|| rw().open(&fs, "/secret").map(drop)),
        ("read_dir", &|| fs.read_dir("/hidden").map(drop)),
        ("list", &|| hidden.read_dir(0, 10).map(drop)),
        ("lookup", &|| fs.metadata("/hidden/inside").map(drop)),
        ("absent", &|| fs.metadata("/hidden/absent").map(drop)),
        ("create", &|| {
            rw().create(true)
                .new_file(&new)
                .open(&fs, "/hidden/x")
                .map(drop)
        }),
        ("unnamed", &|| rw().open_unnamed(&fs, "/hidden").map(drop)),
        ("rename into", &|| fs.rename("/plain", "/hidden/plain", how)),
        ("rename out of", &|| {
            fs.rename("/hidden/inside", "/inside", how)
        }),
        ("link", &|| fs.hard_link("/plain", "/hidden/plain")),
        ("remove_dir", &|| fs.remove_dir("/hidden")),
        ("read_link", &|| fs.read_link("/link").map(drop)),
    ];
    for (name, call) in calls {
        let error = call().expect_err(name);
        assert!(matches!(error, Error::Unsupported(_)), "{name}: {error}");
        assert!(error.to_string().contains("encrypt"), "{name}: {error}");
        use_others(&fs);
    }
    // Their own names and attributes are plain, and '..' is.
    assert_eq!(fs.metadata("/secret").expect("it exists").size, 5000);
    fs.rename("/hidden", "/dir/hidden", how).expect("a rename");
    fs.rename("/dir/hidden", "/hidden", how).expect("a rename");
    fs.remove_file("/secret").expect("it goes");
    drop(hidden);
    fs.close().expect("a clean end");
    // debugfs set the flags and no policy, which e2fsck would miss.
    set_flags(&image, &[("/hidden", "0x80000"), ("/link", "0")]);
    e2fsck_clean(image.path());
}

#[test]
fn names_that_are_encrypted_may_have_any_bytes() {
    let tree = tempfile::tempdir().expect("a folder");
    for name in ["hidden", "dir"] {
        std::fs::create_dir(tree.path().join(name)).expect("a new folder");
    }
    std::fs::write(tree.path().join("hidden/inside"), "in").expect("room");
    // Without checksums names can be changed in the image.
    let image = Image::builder().features("encrypt,^metadata_csum");
    let image = image.source(tree.path()).build();
    let rename = |from: &[u8], to: &[u8]| {
        let mut bytes = std::fs::read(image.path()).expect("it is readable");
        let places: Vec<usize> = (0..bytes.len() - from.len())
            .filter(|&at| bytes[at..].starts_with(from))
            .collect();
        assert!(!places.is_empty());
        // The journal has the block too.
        for at in places {
            bytes[at..at + to.len()].copy_from_slice(to);
        }
        std::fs::write(image.path(), bytes).expect("room");
    };
    let (plain, secret) = (b"inside", b"i/\0id/");
    rename(plain, secret);
    set_flags(&image, &[("/hidden", "0x80800")]);
    let fs = open(&image);
    for error in [
        fs.read_dir("/hidden").map(drop).expect_err("names"),
        fs.metadata("/hidden/inside").map(drop).expect_err("a name"),
        fs.remove_dir("/hidden").expect_err("whether it is empty"),
    ] {
        assert!(matches!(error, Error::Unsupported(_)), "{error}");
    }
    // '..' is in the block of such names.
    let how = RenameMode::default();
    fs.rename("/hidden", "/dir/hidden", how).expect("a rename");
    fs.metadata("/dir/hidden/..").expect("it is plain");
    fs.close().expect("a clean end");
    set_flags(&image, &[("/dir/hidden", "0x80000")]);
    rename(secret, plain);
    e2fsck_clean(image.path());
}

#[test]
fn files_under_verity_are_read_and_not_opened_for_writing() {
    let image = with("verity", &[("/secret", "0x180000")]);
    let fs = open(&image);
    for options in [rw(), OpenOptions::new().append(true), rw().truncate(true)] {
        let error = options
            .open(&fs, "/secret")
            .expect_err("it is under verity");
        assert_eq!(error.errno(), libc::EPERM, "{error}");
        assert!(error.to_string().contains("verity"), "{error}");
    }
    let file = OpenOptions::new().read(true).open(&fs, "/secret");
    let mut found = [0; 6000];
    let len = file.expect("it is readable").read_at(&mut found, 0);
    assert_eq!(len.expect("readable"), 5000);
    assert_eq!(found[..5000], [7; 5000]);
    use_others(&fs);
    fs.close().expect("a clean end");
    e2fsck_clean(image.path());
}
