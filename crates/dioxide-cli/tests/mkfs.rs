//! `dioxide mkfs`: what is made, told and refused.

mod support;

use dioxide_testkit::{Dir, LoopDevice, Mount, dumpe2fs, e2fsck_clean, need_root};
use std::fs;
use std::os::unix::fs::chown;
use std::path::Path;
use std::process::Command;
use support::{command, dioxide};
use tempfile::TempDir;

const UUID: &str = "d10c1de0-0000-4000-8000-000000000001";
const SEED: &str = "d10c1de0-0000-4000-8000-000000000002";

fn image(dir: &TempDir) -> String {
    dir.path().join("disk.img").display().to_string()
}

fn len_of(path: &str) -> u64 {
    fs::metadata(path).unwrap().len()
}

#[test]
fn mkfs_of_missing_image_makes_it_and_tells() {
    let dir = TempDir::new().unwrap();
    let image = image(&dir);
    let ran = dioxide(["mkfs", "-L", "data", "-U", UUID, &image, "64M"]);
    let text = ran.text();
    for line in [
        "disk.img: ext4 file system of 67108864 bytes (64.0 MiB)",
        "label     data",
        UUID,
        "blocks    65536 of 1024 bytes",
        "journal   4096 blocks",
        "backups   8193, 24577, 40961, 57345",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert_eq!(len_of(&image), 64 << 20);
    e2fsck_clean(Path::new(&image));
    assert!(dumpe2fs(Path::new(&image)).contains("Filesystem volume name:   data"));
}

#[test]
fn mkfs_dry_run_makes_nothing_and_tells_the_same() {
    let dir = TempDir::new().unwrap();
    let image = image(&dir);
    let identity = ["-U", UUID, "--hash-seed", SEED, "--epoch", "1"];
    let words = |dry: &[&'static str]| {
        let args = ["mkfs"].iter().chain(dry).chain(&identity);
        let args: Vec<&str> = args.copied().chain([image.as_str(), "32M"]).collect();
        dioxide(args).text().to_owned()
    };
    let planned = words(&["-n"]);
    assert!(!Path::new(&image).exists());
    let made = words(&[]);
    assert_eq!(planned.replace(", not made", ""), made);
}

#[test]
fn mkfs_size_counts_blocks_or_what_its_suffix_says() {
    let dir = TempDir::new().unwrap();
    let image = image(&dir);
    for (args, bytes) in [
        (&["-F", "-q", &image, "20000"][..], 20000 << 10),
        (&["-F", "-q", "-b", "4096", &image, "20000"], 20000 << 12),
        (&["-F", "-q", &image, "100000s"], 100_000 * 512),
        (&["-F", "-q", &image, "0x10"], 0),
    ] {
        let _ = fs::remove_file(&image);
        let ran = dioxide(["mkfs"].iter().chain(args));
        if bytes == 0 {
            assert_eq!(ran.status, Some(2));
        } else {
            assert_eq!(ran.text(), "");
            assert_eq!(len_of(&image), bytes);
        }
    }
}

#[test]
fn mkfs_over_a_file_system_exits_2_unless_forced() {
    let dir = TempDir::new().unwrap();
    let image = image(&dir);
    dioxide(["mkfs", "-q", "-L", "old", &image, "16M"]).text();
    let ran = dioxide(["mkfs", "-L", "new", &image]);
    assert_eq!((ran.status, ran.stdout.len()), (Some(2), 0));
    assert!(
        ran.stderr
            .contains("holds an ext2, ext3 or ext4 file system"),
        "{}",
        ran.stderr
    );
    assert!(dioxide(["info", &image]).text().contains("old"));
    dioxide(["mkfs", "-F", "-L", "new", &image]).text();
    assert!(dioxide(["info", &image]).text().contains("new"));
}

#[test]
fn mkfs_of_missing_image_without_size_exits_2() {
    let dir = TempDir::new().unwrap();
    let ran = dioxide(["mkfs", &image(&dir)]);
    assert_eq!(ran.status, Some(2));
    assert!(ran.stderr.contains("give a size"), "{}", ran.stderr);
}

#[test]
fn mkfs_with_uuid_of_the_time_has_one_of_that_kind() {
    let dir = TempDir::new().unwrap();
    let image = image(&dir);
    let told = dioxide(["mkfs", "--json", "-U", "time", &image, "16M"]).json();
    let uuid = told["uuid"].as_str().unwrap();
    assert_eq!(uuid.as_bytes()[14], b'1', "{uuid}");
    assert!(dumpe2fs(Path::new(&image)).contains(uuid));
}

#[test]
fn mkfs_wish_that_is_unknown_or_unsupported_is_named_and_makes_nothing() {
    let dir = TempDir::new().unwrap();
    let image = image(&dir);
    for (args, named) in [
        (["-O", "frob"], "'frob'"),
        (["-O", "casefold"], "casefold"),
        (["-E", "frob=1"], "'frob'"),
        (["-E", "discard=0"], "'discard'"),
        (["-J", "location=16384"], "block 16384"),
        (["-J", "device=/dev/null"], "'device'"),
        (["-t", "ext5"], "ext5"),
        (["-b", "3k"], "3072"),
        (["-U", "me"], "'me'"),
        (["-E", "root_owner=0:4294967295"], "4294967295"),
    ] {
        let ran = dioxide(
            ["mkfs"]
                .iter()
                .chain(&args)
                .copied()
                .chain([image.as_str(), "16M"]),
        );
        assert_eq!(ran.status, Some(2), "{args:?}");
        assert!(ran.stderr.contains(named), "{}", ran.stderr);
        assert!(!Path::new(&image).exists(), "{args:?}");
    }
}

#[test]
fn mkfs_json_tells_every_number() {
    let dir = TempDir::new().unwrap();
    let image = image(&dir);
    let ran = dioxide([
        "mkfs", "--json", "-t", "ext3", "-U", "clear", "-b", "4k", &image, "128M",
    ]);
    let told = ran.json();
    assert_eq!(told["type"], "ext3");
    assert_eq!(told["made"], true);
    assert_eq!(told["uuid"], "00000000-0000-0000-0000-000000000000");
    assert_eq!(
        (&told["blocks"], &told["block_size"]),
        (&32768.into(), &4096.into())
    );
    assert_eq!(told["journal_blocks"], 4096);
    let features = told["features"].as_array().unwrap();
    assert!(features.iter().any(|name| name == "has_journal"));
}

#[test]
fn mkfs_with_identity_and_epoch_makes_the_same_bytes() {
    let dir = TempDir::new().unwrap();
    let make = |name: &str, args: &[&str], epoch: Option<&str>| {
        let path = dir.path().join(name);
        let mut command = command();
        if let Some(epoch) = epoch {
            command.env("SOURCE_DATE_EPOCH", epoch);
        }
        command
            .args(["mkfs", "-q", "-U", UUID, "--hash-seed", SEED])
            .args(args);
        assert!(command.arg(&path).arg("16M").status().unwrap().success());
        fs::read(path).unwrap()
    };
    let by_option = make("a", &["--epoch", "1700000000"], None);
    let by_environment = make("b", &[], Some("1700000000"));
    let later = make("c", &["--epoch", "1700000001"], Some("1700000000"));
    assert!(by_option == by_environment);
    assert!(by_option != later);
}

#[test]
fn mkfs_with_epoch_that_is_none_exits_2() {
    let dir = TempDir::new().unwrap();
    let mut command = command();
    command
        .env("SOURCE_DATE_EPOCH", "yesterday")
        .args(["mkfs", &image(&dir), "16M"]);
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("'yesterday'"));
}

#[test]
fn mkfs_too_small_for_a_journal_is_made_without_and_says_so() {
    let dir = TempDir::new().unwrap();
    let image = image(&dir);
    let ran = dioxide(["mkfs", &image, "1M"]);
    assert_eq!(ran.status, Some(0));
    assert!(
        ran.stderr.contains("too small for a journal"),
        "{}",
        ran.stderr
    );
    e2fsck_clean(Path::new(&image));
}

/// By the umask its maker may not open it.
#[test]
fn image_that_was_made_and_cannot_be_used_is_removed() {
    need_root!();
    let dir = TempDir::new().unwrap();
    chown(dir.path(), Some(1234), Some(1234)).unwrap();
    let image = image(&dir);
    let make = || {
        let output = Command::new("setpriv")
            .args(["--reuid=1234", "--regid=1234", "--clear-groups"])
            .args(["sh", "-c", "umask 777; exec \"$@\"", "sh"])
            .args([env!("CARGO_BIN_EXE_dioxide"), "mkfs", &image, "16M"])
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("Permission denied"), "{said}");
    };
    make();
    assert!(!Path::new(&image).exists());
    fs::write(&image, "mine").unwrap();
    make();
    assert_eq!(fs::read(&image).unwrap(), b"mine");
}

/// On a disk of larger sectors a file takes direct I/O in whole ones only, which are too large for blocks of 1 KiB.
#[test]
fn image_that_was_made_on_a_disk_of_larger_sectors_is_opened_by_every_command() {
    need_root!();
    let dir = TempDir::new_in(Dir::Tmpfs.path()).unwrap();
    let disk = image(&dir);
    fs::File::create(&disk).unwrap().set_len(256 << 20).unwrap();
    let device = LoopDevice::attach_with(Path::new(&disk), &["--sector-size=4096"]);
    dioxide(["mkfs", "-q", device.path().to_str().unwrap()]).text();
    let mount = Mount::ext4(device.path(), "");
    let path = mount.path().join("a.img");
    let image = path.to_str().unwrap();
    let at = |name: &str| format!("{image}:/{name}");
    let told = dioxide(["mkfs", image, "65537"]);
    assert!(
        told.text().contains("65537 of 1024 bytes"),
        "{}",
        told.text()
    );
    let host = dir.path().join("host");
    fs::write(&host, [7; 5000]).unwrap();
    dioxide(["cp", host.to_str().unwrap(), &at("f")]).text();
    assert_eq!(dioxide(["cat", &at("f")]).text().as_bytes(), [7; 5000]);
    assert_eq!(dioxide(["ls", &at("")]).text(), "f\nlost+found\n");
    for command in ["info", "check", "journal", "map", "trim", "df"] {
        dioxide([command, image]).text();
    }
    dioxide(["extents", &at("f")]).text();
    assert!(dioxide(["resize", image, "80M"]).status == Some(0));
    assert!(dioxide(["check", image]).text().contains("clean"));
    e2fsck_clean(&path);
    mount.unmount();
}
