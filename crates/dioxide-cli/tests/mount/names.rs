//! Names of files.

use crate::bed::{Bed, each, limited, run};
use crate::need_fuse;
use dioxide_testkit::{Image, Mount, check_pattern, need_root, pattern};
use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, RenameFlags, StatxFlags, XattrFlags, linkat, openat, renameat_with,
    statx,
};
use rustix::io::Errno;
use std::collections::HashMap;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

#[test]
fn names_that_stay_are_listed_once_while_others_come_and_go() {
    need_fuse!();
    const STAY: usize = 20_000;
    let bed = Bed::new("");
    let dir = bed.at("many");
    fs::create_dir(&dir).unwrap();
    for index in 0..STAY {
        File::create(dir.join(format!("stays{index}"))).unwrap();
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0.. {
                if done.load(Ordering::Relaxed) {
                    break;
                }
                let path = dir.join(format!("comes{round}"));
                File::create(&path).unwrap();
                if round % 3 != 0 {
                    fs::remove_file(path).unwrap();
                }
            }
        });
        for _ in 0..3 {
            let mut seen = HashMap::new();
            for entry in fs::read_dir(&dir).unwrap() {
                let name = entry.unwrap().file_name().into_string().unwrap();
                *seen.entry(name).or_insert(0) += 1;
            }
            for index in 0..STAY {
                assert_eq!(seen.get(&format!("stays{index}")), Some(&1));
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    bed.finish();
}

#[test]
fn rename_flags_do_as_they_say() {
    need_fuse!();
    for bed in each("") {
        fs::write(bed.at("a"), "a").unwrap();
        fs::write(bed.at("b"), "b").unwrap();
        let rename = |flags| renameat_with(CWD, bed.at("a"), CWD, bed.at("b"), flags);
        assert_eq!(
            rename(RenameFlags::NOREPLACE),
            Err(rustix::io::Errno::EXIST)
        );
        rename(RenameFlags::EXCHANGE).unwrap();
        assert_eq!(fs::read_to_string(bed.at("a")).unwrap(), "b");
        rename(RenameFlags::empty()).unwrap();
        assert!(!bed.at("a").exists());
        assert_eq!(fs::read_to_string(bed.at("b")).unwrap(), "b");
        fs::create_dir(bed.at("upper")).unwrap();
        for to in ["upper/new", "upper/replaced"] {
            fs::write(bed.at("upper/replaced"), "old").unwrap();
            fs::write(bed.at("c"), "c").unwrap();
            renameat_with(CWD, bed.at("c"), CWD, bed.at(to), RenameFlags::WHITEOUT).unwrap();
            assert_eq!(fs::read_to_string(bed.at(to)).unwrap(), "c");
            let whiteout = fs::symlink_metadata(bed.at("c")).unwrap();
            assert_eq!((whiteout.mode(), whiteout.rdev()), (libc::S_IFCHR, 0));
            fs::remove_file(bed.at("c")).unwrap();
        }
        bed.finish();
    }
}

#[test]
fn name_that_was_not_there_is_found_once_it_is() {
    need_fuse!();
    for bed in each("") {
        for round in 0..50 {
            let (one, other) = (bed.at("one"), bed.at("other"));
            assert!(!one.exists() && !other.exists());
            fs::write(&one, round.to_string()).unwrap();
            fs::rename(&one, &other).unwrap();
            assert!(!one.exists());
            assert_eq!(fs::read_to_string(&other).unwrap(), round.to_string());
            fs::remove_file(&other).unwrap();
        }
        bed.finish();
    }
}

#[test]
fn flags_of_files_and_directories_are_set_and_told() {
    need_fuse!();
    for bed in each("") {
        fs::create_dir(bed.at("dir")).unwrap();
        fs::write(bed.at("file"), "x").unwrap();
        for name in ["dir", "file"] {
            run(limited("chattr").arg("+id").arg(bed.at(name)));
            let listed = run(limited("lsattr").arg("-d").arg(bed.at(name)));
            let flags = listed.split(' ').next().unwrap();
            assert!(flags.contains('i') && flags.contains('d'), "{listed}");
        }
        let refused = fs::write(bed.at("file"), "y").unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EPERM));
        for name in ["dir", "file"] {
            run(limited("chattr").arg("-i").arg(bed.at(name)));
        }
        fs::write(bed.at("file"), "y").unwrap();
        bed.finish();
    }
}

#[test]
fn file_for_appending_only_takes_appends_only() {
    need_fuse!();
    use std::io::Write;
    for bed in each("") {
        fs::write(bed.at("log"), "one\n").unwrap();
        run(limited("chattr").arg("+a").arg(bed.at("log")));
        let refused = File::options().write(true).open(bed.at("log")).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EPERM));
        let mut log = File::options().append(true).open(bed.at("log")).unwrap();
        log.write_all(b"two\n").unwrap();
        drop(log);
        assert_eq!(fs::read_to_string(bed.at("log")).unwrap(), "one\ntwo\n");
        run(limited("chattr").arg("-a").arg(bed.at("log")));
        bed.finish();
    }
}

#[test]
fn attributes_are_set_listed_replaced_and_removed() {
    need_fuse!();
    for bed in each("") {
        fs::write(bed.at("f"), "x").unwrap();
        let file = bed.at("f");
        let set = |args: &[&str]| run(limited("setfattr").args(args).arg(&file));
        set(&["-n", "user.one", "-v", "1"]);
        set(&["-n", "user.two", "-v", &"2".repeat(3000)]);
        set(&["-n", "trusted.three", "-v", "3"]);
        set(&["-n", "user.one", "-v", "uno"]);
        set(&["-x", "user.two"]);
        let got = run(limited("getfattr")
            .args(["-d", "-m", "-", "--absolute-names"])
            .arg(&file));
        let lines: Vec<&str> = got
            .lines()
            .skip(1)
            .filter(|line| !line.is_empty())
            .collect();
        assert_eq!(lines, ["trusted.three=\"3\"", "user.one=\"uno\""]);
        assert!(
            !limited("setfattr")
                .args(["-x", "user.two"])
                .arg(&file)
                .status()
                .unwrap()
                .success()
        );
        bed.finish();
    }
}

/// Each flag refuses what the other lets through: both together set nothing, and which error it is depends on what
/// is there.
#[test]
fn attribute_that_must_be_new_and_there_is_set_by_nobody() {
    need_fuse!();
    need_root!();
    let bed = Bed::new("");
    let image = Image::builder().build();
    let kernel = Mount::ext4(image.path(), "");
    let both = XattrFlags::CREATE | XattrFlags::REPLACE;
    let told = [bed.root(), kernel.path()].map(|root| {
        let path = root.join("f");
        fs::write(&path, "x").unwrap();
        let set = |flags| rustix::fs::setxattr(&path, "user.a", b"1", flags);
        [both, XattrFlags::CREATE, both, XattrFlags::REPLACE].map(set)
    });
    assert_eq!(told[0], told[1]);
    kernel.unmount();
    bed.finish();
}

#[test]
fn what_find_sees_of_a_large_tree_it_sees_again() {
    need_fuse!();
    for bed in each("") {
        for dir in 0..20 {
            let dir = bed.at(&format!("d{dir}"));
            fs::create_dir(&dir).unwrap();
            for file in 0..100 {
                fs::write(dir.join(format!("f{file}")), vec![1; file]).unwrap();
            }
        }
        let find = || {
            run(limited("find")
                .arg(bed.root())
                .args(["-printf", "%P %i %s %n %T@\\n"]))
        };
        let first = find();
        assert_eq!(first.lines().count(), 20 * 101 + 2);
        bed.forget();
        assert_eq!(find(), first);
        assert_eq!(find(), first);
        bed.finish();
    }
}

#[test]
fn unnamed_file_is_made_and_gets_a_name() {
    need_fuse!();
    for bed in each("") {
        // A server that another test starts meanwhile is not to have it.
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let file: File = openat(CWD, bed.root(), flags, Mode::RUSR).unwrap().into();
        file.write_all_at(&pattern(1, 0, 5000), 0).unwrap();
        assert_eq!(file.metadata().unwrap().nlink(), 0);
        let own = format!("/proc/self/fd/{}", file.as_raw_fd());
        linkat(CWD, own, CWD, bed.at("named"), AtFlags::SYMLINK_FOLLOW).unwrap();
        drop(file);
        check_pattern(1, 0, &fs::read(bed.at("named")).unwrap());
        // Another stays without, and goes.
        drop(openat(CWD, bed.root(), flags, Mode::RUSR).unwrap());
        bed.finish();
    }
}

#[test]
fn unnamed_file_is_refused_in_a_directory_that_was_removed_as_by_linux() {
    need_fuse!();
    let answer = |root: &Path| {
        let path = root.join("gone");
        fs::create_dir(&path).unwrap();
        let dir = File::open(&path).unwrap();
        fs::remove_dir(&path).unwrap();
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        openat(&dir, ".", flags, Mode::RUSR).map(drop)
    };
    let image = Image::builder().build();
    let linux = Mount::ext4(image.path(), "");
    let expected = answer(linux.path());
    linux.unmount();
    assert_eq!(expected, Err(Errno::PERM));
    for bed in each("") {
        assert_eq!(answer(bed.root()), expected);
        bed.finish();
    }
}

#[test]
fn time_of_birth_is_told() {
    need_fuse!();
    for bed in each("") {
        fs::write(bed.at("f"), "x").unwrap();
        let told = statx(CWD, bed.at("f"), AtFlags::empty(), StatxFlags::BTIME).unwrap();
        assert!(told.stx_mask & StatxFlags::BTIME.bits() != 0);
        let now = std::time::SystemTime::now();
        let age = now.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() as i64;
        assert!((age - told.stx_btime.tv_sec).abs() < 60);
        bed.finish();
    }
}
