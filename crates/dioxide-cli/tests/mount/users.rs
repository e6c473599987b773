//! Who may do what.

use crate::bed::{
    Bed, NO_RINGS, Point, RINGS, Rings, dioxide, each, is_mounted, limited, run, text, transports,
    umount,
};
use crate::need_fuse;
use dioxide_testkit::{Image, Mount, e2fsck_clean};
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

const NOBODY: u32 = 65534;

/// A shell of a user without privileges.
fn nobody(script: &str) -> Command {
    let mut command = limited("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    command.args(["sh", "-c", script]);
    command
}

/// A `chown` that changes nobody takes the privileges away all the same, if it is by who may. (Others are refused by Linux; here the
/// kernel does not say whether it is a `chown`.)
#[test]
fn chown_to_nobody_strips_as_any_other() {
    need_fuse!();
    let strip = |root: &Path| {
        fs::set_permissions(root, Permissions::from_mode(0o755)).unwrap();
        let make = |name: &str, mode: u32, owner: u32| {
            let path = root.join(name);
            fs::write(&path, "x").unwrap();
            std::os::unix::fs::chown(&path, Some(owner), Some(owner)).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            path
        };
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
        let own = make("own", 0o6755, 0);
        std::os::unix::fs::chown(&own, None, None).unwrap();
        let others = make("others", 0o4711, 0);
        let chown = "perl -e 'chown(-1, -1, $ARGV[0])' others";
        nobody(chown).current_dir(root).status().unwrap();
        (mode(&own), mode(&others))
    };
    let image = Image::builder().build();
    let kernel = Mount::ext4(image.path(), "");
    let expected = strip(kernel.path());
    kernel.unmount();
    assert_eq!(expected, (0o755, 0o4711));
    for bed in each("allow_other") {
        assert_eq!(strip(bed.root()), expected);
        bed.finish();
    }
}

#[test]
fn unprivileged_user_may_what_modes_say() {
    need_fuse!();
    for bed in each("") {
        fs::set_permissions(bed.root(), Permissions::from_mode(0o755)).unwrap();
        fs::write(bed.at("secret"), "x").unwrap();
        fs::set_permissions(bed.at("secret"), Permissions::from_mode(0o600)).unwrap();
        fs::create_dir(bed.at("tmp")).unwrap();
        fs::set_permissions(bed.at("tmp"), Permissions::from_mode(0o1777)).unwrap();
        fs::write(bed.at("tmp/roots"), "x").unwrap();
        let refused = [
            "cat secret",
            "touch new",
            "rm -f secret",
            "chmod 777 secret",
            "chown 65534 secret",
            "rm -f tmp/roots",
            "mv tmp/roots tmp/mine",
        ];
        for script in refused {
            let output = nobody(script).current_dir(bed.root()).output().unwrap();
            assert!(!output.status.success(), "{script} was let through");
            let said = text(output.stderr);
            assert!(
                said.contains("denied") || said.contains("not permitted"),
                "{said}"
            );
        }
        run(nobody(
            "umask 027; echo y > tmp/mine; mkdir tmp/dir; ln -s a tmp/link; chmod 640 tmp/mine",
        )
        .current_dir(bed.root()));
        for (name, mode) in [("tmp/mine", 0o640), ("tmp/dir", 0o750)] {
            let told = fs::metadata(bed.at(name)).unwrap();
            assert_eq!(
                (told.uid(), told.gid(), told.mode() & 0o7777),
                (NOBODY, NOBODY, mode)
            );
        }
        bed.finish();
    }
}

#[test]
fn write_of_unprivileged_user_strips_set_ids_and_that_of_root_does_not() {
    need_fuse!();
    for options in [
        "noio_uring",
        "nowriteback",
        "io_uring",
        "io_uring,nowriteback",
    ] {
        let bed = Bed::new(options);
        fs::set_permissions(bed.root(), Permissions::from_mode(0o755)).unwrap();
        let file = bed.at("f");
        let mode = || fs::metadata(&file).unwrap().mode() & 0o7777;
        fs::write(&file, vec![1; 8192]).unwrap();
        let direct = "dd if=/dev/zero of=f bs=4k count=1 conv=notrunc oflag=direct status=none";
        for script in ["echo y >> f", "echo y > f", "truncate -s 4096 f", direct] {
            let set = || fs::set_permissions(&file, Permissions::from_mode(0o6777)).unwrap();
            set();
            run(limited("sh").args(["-c", script]).current_dir(bed.root()));
            assert_eq!(mode(), 0o6777, "{script} of root, {options}");
            run(nobody(script).current_dir(bed.root()));
            assert_eq!(mode(), 0o777, "{script}, {options}");
        }
        bed.finish();
    }
}

const CAPABILITY: &str = "security.capability";

fn set_capability(file: &File) {
    let value = [&[1, 0, 0, 2, 0, 4][..], &[0; 14]].concat();
    rustix::fs::fsetxattr(file, CAPABILITY, &value, XattrFlags::empty()).unwrap();
}

fn has_capability(file: &File) -> bool {
    let found = rustix::fs::fgetxattr(file, CAPABILITY, &mut [0; 64][..]);
    assert!(matches!(found, Ok(20) | Err(Errno::NODATA)), "{found:?}");
    found.is_ok()
}

/// As `install` and `tar` set it. The kernel takes an older one when it is written to, and writes its pages later.
#[test]
fn capability_that_is_set_after_a_write_stays() {
    need_fuse!();
    for transport in transports() {
        for (features, len) in [("^inline_data", 10), ("inline_data", 10), ("", 1 << 20)] {
            let image = Image::builder().size(128 << 20).features(features).build();
            let bed = Bed::with(image, transport);
            let open = || {
                let mut options = File::options();
                let options = options.read(true).write(true).create(true);
                options.truncate(false).open(bed.at("f")).unwrap()
            };
            let file = open();
            let bytes = vec![1; len];
            file.write_all_at(&bytes, 0).unwrap();
            set_capability(&file);
            drop(file);
            let file = open();
            file.sync_all().unwrap();
            assert!(has_capability(&file), "{transport} {features} {len}");
            assert!(fs::read(bed.at("f")).unwrap() == bytes);
            file.write_all_at(b"2", 0).unwrap();
            file.sync_all().unwrap();
            assert!(!has_capability(&file), "{transport} {features} {len}");
            set_capability(&file);
            fs::write(bed.at("other"), [3; 5000]).unwrap();
            let other = File::open(bed.at("other")).unwrap();
            let copied = rustix::fs::copy_file_range(&other, None, &file, None, 5000);
            assert_eq!(copied, Ok(5000));
            assert!(!has_capability(&file), "{transport} {features} {len}");
            drop((file, other));
            bed.finish();
        }
    }
}

/// As in Linux. (Where the kernel does not keep the times, it says no more of such a write than of a `chown`.)
#[test]
fn write_of_root_takes_a_capability_and_leaves_set_ids() {
    need_fuse!();
    for bed in each("") {
        let path = bed.at("f");
        let mut file = File::options();
        let file = file.read(true).append(true).create(true);
        let file = file.open(&path).unwrap();
        for mode in [0o4755, 0o6755] {
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            set_capability(&file);
            rustix::io::write(&file, b"y").unwrap();
            assert!(!has_capability(&file));
            let found = fs::metadata(&path).unwrap().mode() & 0o7777;
            assert_eq!(found, mode);
        }
        drop(file);
        bed.finish();
    }
}

/// The kernel runs a file as the user that its cached mode says.
#[test]
fn file_that_another_has_written_to_is_not_run_as_its_owner() {
    need_fuse!();
    let copy = "perl -e 'open(I, \"<\", \"evil\"); open(O, \"+<\", \"f\"); \
        syscall(326, fileno(I), 0, fileno(O), 0, 1 << 20, 0) > 0 or die'";
    let scripts = [
        "dd if=evil of=f bs=1M conv=notrunc status=none",
        "dd if=evil of=f bs=4k conv=notrunc oflag=direct status=none",
        "dd if=evil of=f bs=1M conv=notrunc oflag=append status=none",
        "cat evil > f",
        "fallocate -l 1 f",
        copy,
    ];
    for options in ["attr_timeout=60", "attr_timeout=60,nowriteback"] {
        for bed in each(options) {
            fs::set_permissions(bed.root(), Permissions::from_mode(0o755)).unwrap();
            // What this process had open for writing a child of another test may have too, and then nobody runs it.
            let copy_to = |name: &str| run(limited("cp").arg("/usr/bin/id").arg(bed.at(name)));
            copy_to("evil");
            for script in scripts {
                copy_to("f");
                let file = bed.at("f");
                for mode in [0o4777, 0o6777] {
                    fs::set_permissions(&file, Permissions::from_mode(mode)).unwrap();
                    assert_eq!(fs::metadata(&file).unwrap().mode() & 0o7777, mode);
                    let script = format!("./f -u && {script} && stat -c %a f && ./f -u && ./f -g");
                    let told = run(nobody(&script).current_dir(bed.root()));
                    assert_eq!(
                        told, "0\n777\n65534\n65534\n",
                        "{mode:o} {script}, {options}"
                    );
                }
            }
            bed.finish();
        }
    }
}

#[test]
fn owner_and_mask_that_are_asked_for_are_shown() {
    need_fuse!();
    let bed = Bed::new("uid=1,gid=2,umask=077");
    fs::write(bed.at("f"), "x").unwrap();
    let told = fs::metadata(bed.at("f")).unwrap();
    assert_eq!((told.uid(), told.gid(), told.mode() & 0o777), (1, 2, 0o600));
    bed.finish();
}

#[test]
fn user_without_privileges_mounts_his_own_image() {
    need_fuse!();
    mount_as_nobody("");
}

/// Whatever the user asks for: set-ID bits and devices of an image that he made himself do not count.
#[test]
fn mount_of_user_without_privileges_is_nosuid_and_nodev() {
    need_fuse!();
    for words in ["", "-o suid,dev"] {
        let Some(said) = mount_as_nobody(words) else {
            return;
        };
        let flags = said.lines().next().unwrap();
        let flags: Vec<&str> = flags.split(',').collect();
        assert!(
            flags.contains(&"nosuid") && flags.contains(&"nodev"),
            "{said}"
        );
    }
}

/// Root may not look into it, but unmount it.
#[test]
fn mount_where_another_user_has_mounted_says_what_to_do() {
    need_fuse!();
    let Some(home) = Home::new() else {
        return;
    };
    let mount = format!("./dioxide mount -o {NO_RINGS} own.img dir");
    run(nobody(&mount).current_dir(home.path()));
    let (image, dir) = (
        Image::builder().size(16 << 20).build(),
        home.path().join("dir"),
    );
    let mut mount = dioxide();
    let output = mount.arg("mount").arg(image.path()).arg(&dir).output();
    let output = output.unwrap();
    let umount = dioxide().arg("umount").arg(&dir).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = text(output.stderr);
    assert!(said.contains("another user has mounted"), "{said}");
    assert_eq!(text(umount.stderr), "");
    assert!(!is_mounted(&dir));
    e2fsck_clean(&home.path().join("own.img"));
    e2fsck_clean(image.path());
}

/// The kernel does not tell root of the connection that its server has died.
#[test]
fn dead_mount_of_another_user_is_told_from_one_that_is_served() {
    need_fuse!();
    let Some(home) = Home::new() else {
        return;
    };
    let dir = home.path().join("dir");
    let umount = |warning: &str| {
        let done = dioxide().arg("umount").arg(&dir).output().unwrap();
        let said = text(done.stderr);
        assert!(done.status.success() && !is_mounted(&dir), "{said}");
        assert!(said.contains(warning), "{said}");
        assert_eq!(said.is_empty(), warning.is_empty(), "{said}");
    };
    let killed = format!(
        "./dioxide mount -f -o {NO_RINGS} own.img dir & \
        until grep -q \" $PWD/dir \" /proc/self/mounts; do sleep 0.01; done; \
        echo x > dir/f && sync dir/f && kill -9 $! && ! wait $!"
    );
    run(nobody(&killed).current_dir(home.path()));
    umount("had died: detached");
    let mounted = format!("./dioxide mount -o {NO_RINGS} own.img dir && echo y > dir/f");
    run(nobody(&mounted).current_dir(home.path()));
    umount("");
    e2fsck_clean(&home.path().join("own.img"));
}

/// A mount that nobody serves any more answers nothing, and without `auto_unmount` stays.
#[test]
fn mount_of_a_killed_server_goes_if_that_was_asked_for() {
    need_fuse!();
    let Some(home) = Home::new() else {
        return;
    };
    for transport in transports() {
        let _rings = (*transport == RINGS).then(|| Rings::set("Y"));
        let script = format!(
            "./dioxide mount -f -o {transport},auto_unmount own.img dir & \
            until grep -q \" $PWD/dir \" /proc/self/mounts; do sleep 0.01; done; \
            echo x > dir/f && cat dir/f && sync dir/f && kill -9 $! && wait $!; \
            while grep -q \" $PWD/dir \" /proc/self/mounts; do sleep 0.1; done; \
            ./dioxide cat own.img:/f"
        );
        let said = run(nobody(&script).current_dir(home.path()));
        assert_eq!(said, "x\nx\n", "{transport}");
        assert!(!is_mounted(&home.path().join("dir")));
        // It recovers, and ends in peace.
        let script = format!(
            "./dioxide mount -o {transport},auto_unmount own.img dir && cat dir/f && ./dioxide umount dir"
        );
        assert_eq!(run(nobody(&script).current_dir(home.path())), "x\n");
        assert!(!is_mounted(&home.path().join("dir")));
        e2fsck_clean(&home.path().join("own.img"));
    }
}

/// A directory of a user without privileges, with an image, a mount point, and the command where he can run it.
struct Home(TempDir);

impl Home {
    /// None where users cannot mount.
    fn new() -> Option<Home> {
        let helper = fs::metadata("/usr/bin/fusermount3");
        if !helper.is_ok_and(|helper| helper.mode() & 0o4000 != 0) {
            eprintln!("skipped: needs fusermount3");
            return None;
        }
        let device = fs::metadata("/dev/fuse").unwrap();
        if device.mode() & 0o006 != 0o006 {
            eprintln!("skipped: /dev/fuse is not for all users");
            return None;
        }
        let home = Home(tempfile::tempdir().unwrap());
        fs::set_permissions(home.path(), Permissions::from_mode(0o755)).unwrap();
        let image = Image::builder()
            .size(16 << 20)
            .extended("root_owner=65534:65534")
            .build();
        let (own, dir) = (home.path().join("own.img"), home.path().join("dir"));
        fs::copy(image.path(), &own).unwrap();
        fs::create_dir(&dir).unwrap();
        for path in [&own, &dir] {
            std::os::unix::fs::chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
        }
        // What this process had open for writing a child of another test may have too, and then nobody runs it.
        run(limited("cp")
            .arg(env!("CARGO_BIN_EXE_dioxide"))
            .arg(home.path().join("dioxide")));
        Some(home)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

/// A user mounts an image of his own, writes, reads, unmounts. Returns the mount's flags and what was read, a line each; None
/// where users cannot mount.
pub fn mount_as_nobody(words: &str) -> Option<String> {
    let home = Home::new()?;
    let mut said = String::new();
    for transport in transports() {
        let _rings = (*transport == RINGS).then(|| Rings::set("Y"));
        let script = format!(
            "./dioxide mount {words} -o {transport} own.img dir && grep \" $PWD/dir \" /proc/self/mounts | cut -d' ' -f4 \
            && echo x > dir/f && cat dir/f && ./dioxide umount dir"
        );
        said = run(nobody(&script).current_dir(home.path()));
        assert!(said.ends_with("\nx\n"), "{transport}: {said}");
        assert!(!is_mounted(&home.path().join("dir")));
        e2fsck_clean(&home.path().join("own.img"));
    }
    Some(said)
}

#[test]
fn mount_helper_takes_the_words_of_mount() {
    need_fuse!();
    let home = tempfile::tempdir().unwrap();
    let image = Image::builder().size(16 << 20).build();
    let helper = home.path().join("mount.fuse.dioxide");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_dioxide"), &helper).unwrap();
    let point = Point::new();
    let dir = point.path();
    let mut mount = limited(helper.to_str().unwrap());
    run(mount
        .arg(image.path())
        .arg(dir)
        .args(["-n", "-o", "rw,noatime", "-o", NO_RINGS])
        .args(["-t", "fuse.dioxide"]));
    assert!(is_mounted(dir));
    fs::write(dir.join("f"), "x").unwrap();
    let remount = |flag: &str| {
        let mut mount = limited(helper.to_str().unwrap());
        let options = format!("remount,{flag},noatime,nofail,commit=5");
        let mount = mount.arg(image.path()).arg(dir).args(["-o", &options]);
        let output = mount.output().unwrap();
        let said = text(output.stderr);
        assert!(output.status.success(), "{said}");
        let what = "warning: option commit=5 is not changed by a remount\n";
        let told = format!("dioxide: mount: {}: {what}", image.path().display());
        assert_eq!(said, told);
    };
    fs::create_dir(dir.join("d")).unwrap();
    remount("ro");
    // It is durable: a copy is as what a crash leaves.
    let copy = image.copy();
    let left = dioxide::Fs::open(copy.path(), &dioxide::MountOptions::new()).unwrap();
    left.metadata("/d").unwrap();
    drop(left);
    let refused = fs::write(dir.join("f"), "y").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    remount("rw");
    fs::write(dir.join("f"), "y").unwrap();
    umount(dir);
    e2fsck_clean(image.path());
}

/// mount(8) looks for helpers in /sbin alone: the test has one of its own, with the links in it.
const BY_MOUNT: &str = r#"
set -eu
trap 'umount -l dir 2>/dev/null || true' EXIT
# Other tests' mounts are to end with their own.
while read -r _ at kind _; do
    case $kind in fuse.*) umount -l "$at" ;; esac
done </proc/self/mounts
sbin=$(readlink -f /sbin)
mount -t overlay overlay -o "lowerdir=$PWD/bin:$sbin" "$sbin" || { echo 'no overlay'; exit; }
flags() { grep " $PWD/dir " /proc/self/mounts | cut -d' ' -f3,4 | cut -d, -f1; }
mount -f -v -t fuse.dioxide disk.img dir
[ -z "$(flags)" ]
# Unmounted as by dioxide umount: who comes next finds the image closed.
next() { umount "$@" dir && dioxide chmod 755 disk.img:/; }
mount -r -n -v -t fuse.dioxide disk.img dir && flags && ! touch dir/f 2>/dev/null && next
mount -o ro,noatime -t fuse.dioxide disk.img dir && flags && next
mount -w -t fuse.dioxide disk.img dir && flags && touch dir/f && next
# What it hands on of the kernel's own words is nothing to warn of.
mount -t fuse.dioxide disk.img dir
mount -o remount,ro dir 2>said && flags && [ ! -s said ] && ! touch dir/f 2>/dev/null && next
! mount -t fuse.dioxide -o frobnicate disk.img dir 2>said
grep -q 'frobnicate is not known' said
mount -s -t fuse.dioxide -o frobnicate disk.img dir 2>said && flags && next
grep -q 'warning: option frobnicate is not known' said
echo "$PWD/disk.img $PWD/dir fuse.dioxide noauto,ro,nofail,x-systemd.automount 0 0" >fstab
mount -T fstab "$PWD/dir" && flags && next
# Open files: only lazily.
mount -t fuse.dioxide disk.img dir && exec 3<dir/f
! umount dir 2>/dev/null
umount -l dir
[ -z "$(flags)" ]
exec 3<&-
"#;

#[test]
fn mount_8_finds_the_helpers_and_has_what_it_asks_for() {
    need_fuse!();
    let home = tempfile::tempdir().unwrap();
    let image = Image::builder().size(16 << 20).build();
    fs::copy(image.path(), home.path().join("disk.img")).unwrap();
    for dir in ["bin", "dir"] {
        fs::create_dir(home.path().join(dir)).unwrap();
    }
    for link in ["dioxide", "mount.fuse.dioxide", "umount.fuse.dioxide"] {
        let link = home.path().join("bin").join(link);
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_dioxide"), link).unwrap();
    }
    let told = run(limited("unshare")
        .args(["-m", "bash", "-c", BY_MOUNT])
        .current_dir(home.path())
        .env("LC_ALL", "C"));
    if told.ends_with("no overlay\n") {
        eprintln!("skipped: needs overlayfs");
        return;
    }
    let flags: Vec<_> = told
        .lines()
        .filter(|line| line.starts_with("fuse."))
        .collect();
    let expected = ["ro", "ro", "rw", "ro", "rw", "ro"].map(|flag| format!("fuse.dioxide {flag}"));
    assert_eq!(flags, expected, "{told}");
}

#[test]
fn access_control_lists_are_kept_inherited_and_obeyed() {
    need_fuse!();
    for bed in each("") {
        fs::set_permissions(bed.root(), Permissions::from_mode(0o755)).unwrap();
        fs::write(bed.at("f"), "x").unwrap();
        fs::set_permissions(bed.at("f"), Permissions::from_mode(0o600)).unwrap();
        assert!(
            !nobody("cat f")
                .current_dir(bed.root())
                .status()
                .unwrap()
                .success()
        );
        run(limited("setfacl")
            .args(["-m", "u:65534:r"])
            .arg(bed.at("f")));
        run(nobody("cat f").current_dir(bed.root()));
        // The mask goes with the mode, both ways.
        assert_eq!(fs::metadata(bed.at("f")).unwrap().mode() & 0o777, 0o640);
        fs::set_permissions(bed.at("f"), Permissions::from_mode(0o600)).unwrap();
        assert!(
            !nobody("cat f")
                .current_dir(bed.root())
                .status()
                .unwrap()
                .success()
        );
        fs::create_dir(bed.at("d")).unwrap();
        run(limited("setfacl")
            .args(["-d", "-m", "u:65534:rwx"])
            .arg(bed.at("d")));
        run(limited("sh")
            .args(["-c", "umask 077; mkdir d/sub; echo > d/new"])
            .current_dir(bed.root()));
        for name in ["d/sub", "d/new"] {
            let list = run(limited("getfacl")
                .args(["-n", "--absolute-names"])
                .arg(bed.at(name)));
            assert!(list.contains("user:65534:rwx"), "{name}: {list}");
        }
        // By an owner who is not of the group.
        let group = bed.at("group");
        fs::create_dir(&group).unwrap();
        chown(&group, Some(65534), Some(5)).unwrap();
        fs::set_permissions(&group, Permissions::from_mode(0o2775)).unwrap();
        for (how, mode) in [("-d ", 0o2775), ("", 0o775)] {
            run(nobody(&format!("setfacl {how}-m u:1:rwx group")).current_dir(bed.root()));
            assert_eq!(fs::metadata(&group).unwrap().mode() & 0o7777, mode, "{how}");
        }
        bed.finish();
    }
}
