//! Flags and projects of files, and what flags forbid. Linux says what is right.

use crate::bed::{Bed, each, limited, run, transports};
use crate::need_fuse;
use dioxide::{Fs, MountOptions, OpenOptions};
use dioxide_testkit::{Image, Mount, debugfs, debugfs_query};
use rustix::fs::{FallocateFlags, OFlags, Timespec, Timestamps, UTIME_NOW};
use std::fs::{self, File, Permissions};
use std::io::{Result, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// What calls came to: their names, and `errno` or 0.
#[derive(Default)]
struct Outcomes(Vec<(&'static str, i32)>);

impl Outcomes {
    fn tell<T>(&mut self, call: &'static str, done: Result<T>) {
        let errno = done.err().map_or(0, |error| error.raw_os_error().unwrap());
        self.0.push((call, errno));
    }

    fn tell_attributes(&mut self, path: &Path, file: &File) {
        self.tell("fsync", file.sync_all());
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: UTIME_NOW,
        };
        let then = Timespec {
            tv_sec: 1_000_000,
            tv_nsec: 0,
        };
        for (call, last_access, last_modification) in [
            ("touch", now, now),
            ("utimens", then, then),
            ("utimens of atime only", now, then),
        ] {
            let times = Timestamps {
                last_access,
                last_modification,
            };
            let done = rustix::fs::futimens(file, &times);
            self.tell(call, done.map_err(Into::into));
        }
        self.tell(
            "chmod",
            fs::set_permissions(path, Permissions::from_mode(0o600)),
        );
        self.tell("ftruncate", file.set_len(1));
        let keep = FallocateFlags::KEEP_SIZE;
        let done = rustix::fs::fallocate(file, keep, 0, 100);
        self.tell("fallocate", done.map_err(Into::into));
        self.tell("fsync", file.sync_all());
        self.tell("fdatasync", file.sync_data());
    }
}

fn chattr(words: &[&str], path: &Path) {
    run(limited("chattr").args(words).arg(path));
}

/// Files that become append-only and immutable while they are open and the page cache has data of them.
fn closed_while_open(root: &Path) -> Outcomes {
    let mut told = Outcomes::default();
    for (name, flag) in [("appends", "+a"), ("is_fixed", "+i")] {
        let path = root.join(name);
        let mut file = File::options()
            .append(true)
            .create(true)
            .open(&path)
            .unwrap();
        file.write_all(&[1; 10_000]).unwrap();
        chattr(&[flag], &path);
        told.tell("write", file.write_all(&[2; 10_000]));
        told.tell_attributes(&path, &file);
        told.tell("write", file.write_all(&[3; 10_000]));
        drop(file);
        told.tell("open", File::options().write(true).open(&path));
        chattr(&[&flag.replace('+', "-")], &path);
        told.tell("open", File::options().write(true).open(&path));
    }
    let both = root.join("both");
    let mut options = File::options();
    let file = options
        .read(true)
        .write(true)
        .create(true)
        .open(&both)
        .unwrap();
    file.write_all_at(&[4; 10_000], 0).unwrap();
    chattr(&["+i"], &both);
    told.tell_attributes(&both, &file);
    let mut found = [0; 20_000];
    told.tell("read", file.read_at(&mut found, 0));
    drop(file);
    chattr(&["-i"], &both);
    told
}

#[test]
fn file_that_becomes_append_only_or_immutable_while_open_keeps_what_it_was_given() {
    need_fuse!();
    let image = Image::builder().size(32 << 20).build();
    let expected = image.populate_with_kernel(closed_while_open);
    for options in ["noio_uring", "io_uring", "noio_uring,nowriteback"] {
        let bed = Bed::new(options);
        assert_eq!(closed_while_open(bed.root()).0, expected.0, "{options}");
        let image = bed.finish();
        let kernel = Mount::ext4(image.path(), "ro");
        let len = |name: &str| fs::metadata(kernel.path().join(name)).unwrap().len();
        assert_eq!(
            ["appends", "is_fixed", "both"].map(len),
            [30_000, 10_000, 10_000]
        );
    }
}

/// Logs that become append-only while they are open, and are opened once more: what the page cache has of the first descriptor, and what the
/// second one writes past it, come one after the other.
fn opened_again_for_appending(root: &Path) -> Vec<Vec<u8>> {
    let append = |path: &Path| File::options().append(true).create(true).open(path);
    let logs = [8192, 10_000].map(|len| {
        let path = root.join(format!("log{len}"));
        let mut first = append(&path).unwrap();
        chattr(&["+a"], &path);
        first.write_all(&vec![1; len]).unwrap();
        let mut second = append(&path).unwrap();
        first.sync_all().expect("it was written when it was opened");
        first.write_all(&vec![2; len]).unwrap();
        second.write_all(b"second").unwrap();
        first.write_all(&vec![3; len]).unwrap();
        second.write_all(b"again").unwrap();
        for file in [&first, &second] {
            file.sync_all().expect("the second may write back");
        }
        drop((first, second));
        chattr(&["-a"], &path);
        path
    });
    logs.map(|path| fs::read(path).unwrap()).to_vec()
}

#[test]
fn append_only_file_that_is_opened_again_keeps_what_the_first_descriptor_wrote() {
    need_fuse!();
    let image = Image::builder().size(32 << 20).build();
    let expected = image.populate_with_kernel(opened_again_for_appending);
    for options in ["noio_uring", "io_uring", "noio_uring,nowriteback"] {
        let bed = Bed::new(options);
        assert!(
            opened_again_for_appending(bed.root()) == expected,
            "{options}"
        );
        let image = bed.finish();
        let kernel = Mount::ext4(image.path(), "ro");
        for (log, expected) in ["log8192", "log10000"].iter().zip(&expected) {
            let kept = fs::read(kernel.path().join(log)).unwrap();
            assert!(kept == *expected, "{log} with {options}");
        }
    }
}

#[test]
fn append_only_file_is_read_to_the_end_that_is_in_the_page_cache() {
    need_fuse!();
    for bed in each("") {
        let path = bed.at("log");
        let file = File::create(&path).unwrap();
        chattr(&["+a"], &path);
        let second = File::options().read(true).append(true).open(&path).unwrap();
        file.write_all_at(&[1; 100], 1 << 20).unwrap();
        let mut found = [2; 8192];
        assert_eq!(second.read_at(&mut found, 4096).unwrap(), 8192);
        assert!(found == [0; 8192]);
        drop((file, second));
        bed.finish();
    }
}

/// Linux refuses to take `O_APPEND` off, which FUSE lets pass.
#[test]
fn descriptor_of_an_append_only_file_overwrites_nothing_without_o_append() {
    need_fuse!();
    for bed in each("") {
        let path = bed.at("log");
        fs::write(&path, "first").unwrap();
        chattr(&["+a"], &path);
        let log = File::options().read(true).append(true).open(&path).unwrap();
        let flags = rustix::fs::fcntl_getfl(&log).unwrap();
        let set = |flags| rustix::fs::fcntl_setfl(&log, flags).unwrap();
        set(flags - OFlags::APPEND);
        let written = log.write_at(b"F", 0).map_err(|error| error.raw_os_error());
        assert_eq!(written, Err(Some(libc::EPERM)));
        let from = File::open(&path).unwrap();
        let copied = rustix::fs::copy_file_range(&from, Some(&mut 1), &log, Some(&mut 0), 1);
        assert_eq!(copied, Err(rustix::io::Errno::PERM));
        set(flags);
        (&log).write_all(b"second").unwrap();
        chattr(&["-a"], &path);
        set(flags - OFlags::APPEND);
        log.write_all_at(b"F", 0).unwrap();
        drop((log, from));
        bed.forget();
        assert_eq!(fs::read_to_string(&path).unwrap(), "Firstsecond");
        bed.finish();
    }
}

/// What a descriptor does after its file has become immutable or append-only, by how it was opened: direct reads and writes
/// come for the first time then.
fn first_use_after_a_flag(root: &Path) -> Outcomes {
    let mut told = Outcomes::default();
    for flag in ["+i", "+a"] {
        for direct in [libc::O_DIRECT, 0] {
            let path = root.join(format!("{flag}{direct}"));
            fs::write(&path, [7; 8192]).unwrap();
            let mut options = File::options();
            let file = options.read(true).write(true).custom_flags(direct);
            let file = file.open(&path).unwrap();
            chattr(&[flag], &path);
            if direct == 0 {
                let flags = rustix::fs::fcntl_getfl(&file).unwrap() | OFlags::DIRECT;
                rustix::fs::fcntl_setfl(&file, flags).unwrap();
            }
            let mut buf = dioxide::Buf::zeroed(4096);
            told.tell("read", file.read_exact_at(&mut buf, 0));
            told.tell("write", file.write_all_at(&buf, 4096));
            told.tell("append", file.write_all_at(&buf, 8192));
            chattr(&[&flag.replace('+', "-")], &path);
        }
    }
    told
}

#[test]
fn descriptor_does_what_it_was_opened_for_whatever_the_file_becomes() {
    need_fuse!();
    let image = Image::builder().size(32 << 20).build();
    let expected = image.populate_with_kernel(first_use_after_a_flag);
    for bed in each("") {
        assert_eq!(first_use_after_a_flag(bed.root()).0, expected.0);
        bed.finish();
    }
}

/// What a mapping of a file with the flag SYNC shows, and leaves in it.
const MAP: &str = "
import mmap, os
file = os.open('mapped', os.O_RDWR)
os.pwrite(file, b'written', 8192)
mapped = mmap.mmap(file, 10000, mmap.MAP_SHARED)
assert mapped[8192:8199] == b'written'
mapped[0:6] = b'mapped'
assert os.pread(file, 6, 0) == b'mapped'
mapped.flush()
";

#[test]
fn file_with_the_flag_sync_has_what_was_written_though_the_server_is_killed() {
    need_fuse!();
    for options in ["noio_uring", "io_uring", "noio_uring,nowriteback"] {
        let bed = Bed::new(&format!("commit=3600,{options}"));
        fs::write(bed.at("mapped"), [0; 10_000]).unwrap();
        fs::create_dir(bed.at("dir")).unwrap();
        chattr(&["+S"], &bed.at("mapped"));
        chattr(&["+S"], &bed.at("dir"));
        run(limited("python3").args(["-c", MAP]).current_dir(bed.root()));
        // It has the flag of its directory. To close it would have its pages written.
        let mut file = File::create(bed.at("dir/log")).unwrap();
        file.write_all(&[7; 5000]).unwrap();
        let image = bed.kill();
        let left = Fs::open(image.path(), &MountOptions::new()).unwrap();
        let read = |path: &str| {
            let file = OpenOptions::new().read(true).open(&left, path).unwrap();
            let mut content = vec![0; file.len() as usize];
            file.read_at(&mut content, 0).unwrap();
            content
        };
        assert!(read("/dir/log") == [7; 5000], "{options}");
        let mapped = read("/mapped");
        assert!(mapped.starts_with(b"mapped") && mapped[8192..].starts_with(b"written"));
    }
}

/// Which flags files and directories get, by the letters of `lsattr`.
fn flags(root: &Path) -> Vec<(String, bool, String)> {
    let mut told = Vec::new();
    for name in ["file", "dir"] {
        let path = root.join(name);
        match name {
            "file" => fs::write(&path, "x").unwrap(),
            _ => fs::create_dir(&path).unwrap(),
        }
        for letter in "suScdAtDTPxia".chars() {
            let words = [format!("+{letter}"), format!("-{letter}")];
            for word in words {
                let done = limited("chattr").arg(&word).arg(&path).output().unwrap();
                let listed = run(limited("lsattr").arg("-d").arg(&path));
                let listed = listed.split(' ').next().unwrap().to_owned();
                told.push((format!("{name} {word}"), done.status.success(), listed));
            }
        }
        for word in ["+i", "+d", "-i", "+a", "+d"] {
            let done = limited("chattr").arg(word).arg(&path).output().unwrap();
            told.push((
                format!("{name} {word}"),
                done.status.success(),
                String::new(),
            ));
        }
        chattr(&["-a"], &path);
    }
    told
}

#[test]
fn flags_that_linux_stores_are_stored_and_others_refused() {
    need_fuse!();
    let image = Image::builder().size(32 << 20).build();
    let expected = image.populate_with_kernel(flags);
    for bed in each("") {
        assert_eq!(flags(bed.root()), expected);
        bed.finish();
    }
}

#[test]
fn project_is_set_by_the_owner_and_inherited() {
    need_fuse!();
    let nobody = |words: &[&str], path: &Path| {
        let mut command = limited("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        command.args(words).arg(path).output().unwrap()
    };
    let image = Image::builder().features("project").size(64 << 20).build();
    let bed = Bed::with(image, "");
    fs::set_permissions(bed.root(), Permissions::from_mode(0o755)).unwrap();
    for name in ["roots", "nobodys"] {
        fs::write(bed.at(name), "x").unwrap();
    }
    std::os::unix::fs::chown(bed.at("nobodys"), Some(65534), None).unwrap();
    assert!(
        nobody(&["chattr", "-p", "7"], &bed.at("nobodys"))
            .status
            .success()
    );
    assert!(
        !nobody(&["chattr", "-p", "7"], &bed.at("roots"))
            .status
            .success()
    );
    assert!(
        !nobody(&["chattr", "+i"], &bed.at("nobodys"))
            .status
            .success()
    );
    fs::create_dir(bed.at("dir")).unwrap();
    chattr(&["-p", "42", "+P"], &bed.at("dir"));
    fs::write(bed.at("dir/file"), "x").unwrap();
    chattr(&["+i"], &bed.at("roots"));
    let fixed = limited("chattr")
        .args(["-p", "9"])
        .arg(bed.at("roots"))
        .output();
    assert!(!fixed.unwrap().status.success());
    let listed = run(limited("lsattr").arg("-pd").arg(bed.at("dir")));
    assert!(
        listed.trim_start().starts_with("42 ") && listed.contains('P'),
        "{listed}"
    );
    // Its reader has room for an `int`.
    let listed = run(limited("lsattr").arg("-vd").arg(bed.at("dir")));
    let generation = listed.split_whitespace().next().map(str::parse::<u32>);
    assert!(matches!(generation, Some(Ok(_))), "{listed}");
    let image = bed.finish();
    for (name, project) in [("nobodys", 7), ("roots", 0), ("dir", 42), ("dir/file", 42)] {
        let told = debugfs_query(image.path(), &format!("stat /{name}"));
        let wanted = format!("Project: {project:>5}");
        assert!(told.contains(&wanted), "{name}: {told}");
    }
}

/// Sets flags by `ioctl`, of a file that is open for reading.
const SET_FLAGS: &str = r#"
    open(my $file, "<", $ARGV[2]) or exit 3;
    exit(defined ioctl($file, oct $ARGV[0], pack("L2", oct $ARGV[1], 0)) ? 0 : 4);
"#;

#[test]
fn flags_are_set_by_the_owner_whatever_the_command() {
    need_fuse!();
    for bed in each("allow_other") {
        fs::set_permissions(bed.root(), Permissions::from_mode(0o755)).unwrap();
        for (name, owner) in [("roots", 0), ("nobodys", 65534)] {
            fs::write(bed.at(name), "x").unwrap();
            std::os::unix::fs::chown(bed.at(name), Some(owner), None).unwrap();
        }
        let set = |command: &str, flags: &str, name: &str| {
            let mut nobody = limited("setpriv");
            nobody.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
            nobody.args(["perl", "-e", SET_FLAGS, command, flags]);
            nobody.arg(bed.at(name)).status().unwrap().code()
        };
        const IMMUTABLE: &str = "0x80010";
        const NODUMP: &str = "0x80040";
        // The command of 64 bits, which the kernel judges; that of 32 bits, which it does not know as its own.
        for command in ["0x40086602", "0x40046602"] {
            for (flags, name) in [
                (IMMUTABLE, "roots"),
                (NODUMP, "roots"),
                (IMMUTABLE, "nobodys"),
            ] {
                assert_eq!(set(command, flags, name), Some(4), "{command} {name}");
            }
        }
        assert_eq!(set("0x40086602", NODUMP, "nobodys"), Some(0));
        let listed = run(limited("lsattr").args([bed.at("roots"), bed.at("nobodys")]));
        let flags: Vec<&str> = listed
            .lines()
            .map(|line| &line[..line.find(' ').unwrap()])
            .collect();
        assert!(
            !flags[0].contains(['i', 'd']) && flags[1].contains('d') && !flags[1].contains('i'),
            "{listed}"
        );
        bed.finish();
    }
}

#[test]
fn project_of_a_file_system_without_projects_is_refused() {
    need_fuse!();
    let bed = Bed::new("");
    fs::write(bed.at("f"), "x").unwrap();
    let refused = limited("chattr")
        .args(["-p", "7"])
        .arg(bed.at("f"))
        .output();
    let said = String::from_utf8(refused.unwrap().stderr).unwrap();
    assert!(said.contains("not supported"), "{said}");
    bed.finish();
}

#[test]
fn blocks_are_counted_once_a_file_is_synced() {
    need_fuse!();
    for bed in each("") {
        let mut file = File::create(bed.at("f")).unwrap();
        assert_eq!(file.metadata().unwrap().blocks(), 0);
        for round in 1..4 {
            file.write_all(&[1; 102_400]).unwrap();
            file.sync_all().unwrap();
            assert_eq!(file.metadata().unwrap().blocks(), round * 200);
        }
        drop(file);
        bed.finish();
    }
}

/// The page cache would take what cannot be written back. Files inherit it from their directories.
#[test]
fn file_with_journalled_data_is_read_and_not_opened_for_writing() {
    need_fuse!();
    for transport in transports() {
        let bed = Bed::new(transport);
        fs::write(bed.at("f"), "f").unwrap();
        fs::create_dir(bed.at("d")).unwrap();
        fs::write(bed.at("d/old"), "old").unwrap();
        let image = bed.finish();
        let flags = ["f", "d"].map(|name| format!("set_inode_field {name} flags 0x84000"));
        debugfs(image.path(), &flags);
        let bed = Bed::with(image, transport);
        let new = bed.at("d/new");
        let mut unnamed = File::options();
        let unnamed = unnamed.write(true).custom_flags(libc::O_TMPFILE);
        for opened in [
            File::options().append(true).open(bed.at("f")),
            File::options().read(true).write(true).open(bed.at("f")),
            File::create(bed.at("f")),
            File::create(&new),
            unnamed.open(bed.at("d")),
        ] {
            let refused = opened.map_err(|error| error.raw_os_error());
            assert_eq!(refused.err(), Some(Some(libc::EOPNOTSUPP)));
        }
        let names = fs::read_dir(bed.at("d")).unwrap().map(|name| name.unwrap());
        let names: Vec<_> = names.map(|name| name.file_name()).collect();
        assert_eq!(names, ["old"]);
        assert_eq!(fs::read(bed.at("f")).unwrap(), b"f");
        // It has not the flag.
        fs::write(bed.at("d/old"), "more").unwrap();
        rustix::fs::open(&new, OFlags::CREATE | OFlags::RDONLY, 0o644.into()).unwrap();
        assert_eq!(fs::read(&new).unwrap(), b"");
        bed.finish();
    }
}
