//! A journal on a device of its own.

use dioxide::mkfs::uuid_string;
use dioxide::{Fs, MountOptions, OpenOptions};
use dioxide_testkit::{Dir, Image, LoopDevice, Mount, assert_closed, need_root};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

/// A file system and its journal, each in an image.
struct Pair {
    image: Image,
    journal: Image,
}

fn run(command: &mut Command) {
    let output = command.output().expect("e2fsprogs is installed");
    assert!(output.status.success(), "{command:?}: {output:?}");
}

fn tool(name: &str) -> Command {
    let mut command = Command::new(name);
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{path}:/usr/sbin:/sbin"));
    command
}

impl Pair {
    fn new(block: &str) -> Pair {
        let pair = Pair::unused(block);
        pair.mounted(|dir| std::fs::write(dir.join("file"), b"").expect("room"));
        pair
    }

    fn unused(block: &str) -> Pair {
        let image = Image::blank(Dir::Tmpfs, 32 << 20);
        let journal = Image::blank(Dir::Tmpfs, 8 << 20);
        run(tool("mke2fs")
            .args(["-q", "-F", "-b", block, "-O", "journal_dev"])
            .arg(journal.path()));
        let pair = Pair { image, journal };
        pair.format(&pair.image, block);
        pair
    }

    /// Makes a file system whose journal this is.
    fn format(&self, image: &Image, block: &str) {
        let on = LoopDevice::attach(self.journal.path());
        let mut device = std::ffi::OsString::from("device=");
        device.push(on.path());
        run(tool("mke2fs")
            .args(["-q", "-F", "-t", "ext4", "-b", block, "-J"])
            .arg(device)
            .arg(image.path()));
    }

    /// Lets `work` use the kernel's mount.
    fn mounted(&self, work: impl FnOnce(&Path)) {
        let on = LoopDevice::attach(self.journal.path());
        let options = format!("journal_path={}", on.path().display());
        let mount = Mount::ext4(self.image.path(), &options);
        work(mount.path());
        mount.unmount();
    }

    fn open(&self) -> Fs {
        let options = MountOptions::new().journal_path(self.journal.path());
        let fs = Fs::open(self.image.path(), &options).expect("it opens");
        assert_eq!(fs.read_only(), None, "{:?}", fs.warnings());
        fs
    }

    fn check(&self) {
        run(tool("e2fsck")
            .args(["-fn", "-j"])
            .arg(self.journal.path())
            .arg(self.image.path()));
        assert_closed(self.image.path());
    }
}

fn write(fs: &Fs, bytes: &[u8]) {
    let file = OpenOptions::new().write(true).open(fs, "/file");
    let file = file.expect("it is there");
    file.write_at(bytes, 0).expect("room");
    file.sync_all().expect("a sync");
}

fn read(fs: &Fs) -> Vec<u8> {
    let file = OpenOptions::new().read(true).open(fs, "/file");
    let file = file.expect("it is there");
    let mut bytes = vec![0; file.len() as usize];
    file.read_at(&mut bytes, 0).expect("readable");
    bytes
}

#[test]
fn journal_device_takes_the_log_and_is_replayed() {
    need_root!();
    for block in ["1024", "4096"] {
        let pair = Pair::new(block);
        let fs = pair.open();
        write(&fs, &[7; 100_000]);
        // Not closed: the log is as after a crash.
        drop(fs);
        let fs = pair.open();
        assert!(fs.warnings()[0].contains("replayed"), "{:?}", fs.warnings());
        assert_eq!(read(&fs), [7; 100_000]);
        fs.close().expect("a clean end");
        pair.check();

        // The kernel replays what is left of ours.
        let fs = pair.open();
        write(&fs, &[8; 200_000]);
        drop(fs);
        pair.mounted(|dir| {
            let bytes = std::fs::read(dir.join("file")).expect("readable");
            assert_eq!(bytes, [8; 200_000]);
        });
        pair.check();
    }
}

#[test]
fn journal_device_that_is_not_named_or_not_ours_changes_nothing() {
    need_root!();
    let pair = Pair::new("4096");
    let fs = Fs::open(pair.image.path(), &MountOptions::new()).expect("it opens");
    let fs_uuid = fs.superblock().uuid();
    let file = OpenOptions::new().write(true).open(&fs, "/file");
    let error = file.expect_err("it needs the journal");
    assert_eq!(error.errno(), libc::EROFS, "{error}");
    assert!(error.to_string().contains("journal_path"), "{error}");
    drop(fs);
    let error = Fs::open(pair.journal.path(), &MountOptions::new()).expect_err("it is a journal");
    let uuid = uuid_string(fs_uuid);
    assert!(
        error
            .to_string()
            .contains(&format!("of file system UUID {uuid}")),
        "{error}"
    );
    let other = Pair::new("4096");
    let options = MountOptions::new().journal_path(other.journal.path());
    let fs = Fs::open(pair.image.path(), &options).expect("it opens");
    let why = fs.read_only().expect("it must not be written");
    assert!(why.contains("another file system's journal"), "{why}");
    drop(fs);
    pair.check();
}

// Linux refuses it as well: what one file system logged would be replayed on the other.
#[test]
fn journal_device_of_two_file_systems_is_refused_to_both() {
    need_root!();
    let pair = Pair::unused("4096");
    let other = Image::blank(Dir::Tmpfs, 32 << 20);
    pair.format(&other, "4096");
    let (before, log) = (contents(&other), contents(&pair.journal));
    let options = MountOptions::new().journal_path(pair.journal.path());
    for image in [&other, &pair.image] {
        let fs = Fs::open(image.path(), &options).expect("it opens");
        let why = fs.read_only().expect("it must not be written");
        assert!(why.contains("2 file systems share it"), "{why}");
        drop(fs);
    }
    assert!(
        contents(&other) == before && contents(&pair.journal) == log,
        "it was written"
    );
    let noload = options.clone().noload(true);
    Fs::open(pair.image.path(), &noload).expect("it can be read");
}

/// Where it has a checksum, as on Linux.
#[test]
fn journal_device_with_a_damaged_superblock_is_refused() {
    need_root!();
    let pair = Pair::unused("4096");
    let options = MountOptions::new().journal_path(pair.journal.path());
    const RO_COMPAT: u64 = 1024 + 0x64;
    const LABEL: u64 = 1024 + 0x78;
    let journal = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(pair.journal.path())
        .expect("an image");
    // Without the feature nothing tells; with it the checksum that is not there is wrong.
    journal.write_all_at(b"changed", LABEL).expect("room");
    let fs = Fs::open(pair.image.path(), &options).expect("it opens");
    assert_eq!(fs.read_only(), None);
    fs.close().expect("a clean end");
    const METADATA_CSUM: [u8; 4] = 0x400u32.to_le_bytes();
    journal
        .write_all_at(&METADATA_CSUM, RO_COMPAT)
        .expect("room");
    let fs = Fs::open(pair.image.path(), &options).expect("it opens");
    let why = fs.read_only().expect("it must not be written");
    assert!(
        why.contains("superblock") && why.contains("checksum"),
        "{why}"
    );
}

fn contents(image: &Image) -> Vec<u8> {
    std::fs::read(image.path()).expect("an image")
}

/// Both are files on a disk of larger sectors, which take direct I/O in whole ones only.
#[test]
fn journal_with_blocks_smaller_than_the_sectors_below_it_is_used() {
    need_root!();
    let pair = Pair::new("1024");
    let disk = Image::blank(Dir::Tmpfs, 128 << 20);
    let device = LoopDevice::attach_with(disk.path(), &["--sector-size=4096"]);
    run(tool("mke2fs")
        .args(["-q", "-F", "-t", "ext4"])
        .arg(device.path()));
    let mount = Mount::ext4(device.path(), "");
    let parts = [(&pair.image, "image"), (&pair.journal, "journal")];
    let [image, journal] = parts.map(|(part, name)| {
        let path = mount.path().join(name);
        std::fs::copy(part.path(), &path).expect("room");
        path
    });
    let options = MountOptions::new().journal_path(&journal);
    let fs = Fs::open(&image, &options).expect("it opens");
    assert_eq!(fs.read_only(), None, "{:?}", fs.warnings());
    write(&fs, b"there");
    fs.close().expect("a clean end");
    run(tool("e2fsck").args(["-fn", "-j"]).args([&journal, &image]));
    assert_closed(&image);
    let fs = Fs::open(&image, &options.read_only(true)).expect("it opens");
    assert_eq!(read(&fs), b"there");
    fs.close().expect("a clean end");
    mount.unmount();
}
