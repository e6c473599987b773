//! cp out of images.

use super::Linux;
use super::support::{Fixture, Ran, at, command, coreutils, dioxide};
use dioxide_testkit::{Image, Mount, e2fsck_clean, need_root};
use std::fs;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// All that tells a tree from another, a line for each file.
fn tree(path: &str, form: &str) -> Vec<String> {
    let script = format!("cd '{path}' && find . -mindepth 1 -printf '{form}\\n'");
    let mut lines: Vec<_> = coreutils("bash", &["-c", &script])
        .lines()
        .map(str::to_owned)
        .collect();
    lines.sort();
    lines
}

fn same_content(a: &str, b: &str) {
    // What is no regular file is compared by its kind only.
    let script = format!(
        "diff -r --no-dereference '{a}' '{b}' | grep -Ev 'special file|socket|fifo' ; true"
    );
    assert_eq!(coreutils("bash", &["-c", &script]), "");
}

// Each mode was set through /proc.
#[test]
fn copy_to_the_host_needs_no_proc() {
    need_root!();
    let disk = Fixture::new();
    let copy = disk.beside("copy").display().to_string();
    dioxide(["chmod", "751", &disk.at("/hello")]).text();
    dioxide(["ln", "-s", "hello", &disk.at("/link")]).text();
    let script = r#"mount --make-rprivate / && umount -l /proc && exec "$0" cp -a "$1" "$2""#;
    let program = env!("CARGO_BIN_EXE_dioxide");
    let words = ["-m", "bash", "-c", script, program, &disk.at("/"), &copy];
    assert_eq!(coreutils("unshare", &words), "");
    let at = |name: &str| fs::symlink_metadata(Path::new(&copy).join(name)).unwrap();
    assert_eq!(at("hello").mode() & 0o7777, 0o751);
    let link = dioxide(["find", &disk.at("/link"), "-printf", "%T@"]);
    let time = format!("{}.{:09}", at("link").mtime(), at("link").mtime_nsec());
    assert!(link.text().starts_with(&time), "{time} {}", link.text());
}

#[test]
fn archive_copy_is_the_tree_that_linux_shows() {
    dioxide_testkit::need_root!();
    let linux = Linux::new();
    let copy = linux.host("copy");
    assert_eq!(dioxide(["cp", "-a", &linux.at("/"), &copy]).text(), "");
    let form = "%y %p %m %U %G %n %T@ %l %s";
    // Sizes of directories are the file system's affair.
    let lines = |path: &str| {
        let cut = |line: String| match line.split(' ').next() {
            Some("d") => line.rsplit_once(' ').unwrap().0.to_owned(),
            _ => line,
        };
        tree(path, form).into_iter().map(cut).collect::<Vec<_>>()
    };
    assert_eq!(lines(&copy), lines(&linux.mounted("")));
    same_content(&copy, &linux.mounted(""));
    let at = |path: &str| fs::metadata(Path::new(&copy).join(path)).unwrap();
    assert!(at("sparse").blocks() * 512 < 1 << 20, "holes are holes");
    assert_eq!(at("hello").ino(), at("dir/hard").ino());
    assert_eq!(at("null").rdev(), rustix::fs::makedev(1, 3));
    let mut value = [0; 16];
    let len = rustix::fs::getxattr(format!("{copy}/hello"), "user.comment", &mut value).unwrap();
    assert_eq!(&value[..len], b"dust");
    let len = rustix::fs::getxattr(format!("{copy}/log"), "user.bytes", &mut value).unwrap();
    assert_eq!(&value[..len], b"\0\xff");
    // Once more over itself: nothing is in the way, nothing temporary is left.
    assert_eq!(dioxide(["cp", "-a", &linux.at("/"), &copy]).text(), "");
    assert_eq!(lines(&copy), lines(&linux.mounted("")));
}

#[test]
fn copy_of_files_without_flags_has_modes_and_no_more() {
    let disk = Fixture::new();
    disk.debugfs(&[
        "set_inode_field /hello mode 0104755",
        "set_inode_field /hello mtime 20010101",
    ]);
    let dir = disk.beside("out");
    fs::create_dir(&dir).unwrap();
    let out = dir.display().to_string();
    let ran = command()
        .args([
            "cp",
            &disk.at("/hello"),
            &disk.at("/list/link"),
            &disk.at("/dir"),
            &out,
        ])
        .output()
        .unwrap();
    let stderr = String::from_utf8(ran.stderr).unwrap();
    assert_eq!(ran.status.code(), Some(2), "{stderr}");
    assert_eq!(
        stderr,
        format!(
            "dioxide: cp: {}: is a directory, and -r was not given\n",
            disk.at("/dir")
        )
    );
    let hello = fs::metadata(dir.join("hello")).unwrap();
    assert_eq!(hello.mode() & 0o7777, 0o755);
    assert!(hello.mtime() > 1_500_000_000);
    // A link is followed, and keeps its name.
    let link = fs::symlink_metadata(dir.join("link")).unwrap();
    assert!(link.is_file());
    assert_eq!(fs::read(dir.join("link")).unwrap(), b"hello, world\n");
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 2);
}

#[test]
fn copy_by_pattern_goes_on_after_what_fails() {
    let disk = Fixture::new();
    let dir = disk.beside("out");
    fs::create_dir(&dir).unwrap();
    let out = dir.display().to_string();
    let ran = dioxide(["cp", "-v", &disk.at("/nope"), &disk.at("/list/t*"), &out]);
    assert_eq!(ran.status, Some(1));
    assert_eq!(
        ran.stderr,
        format!(
            "dioxide: cp: {}: No such file or directory\n",
            disk.at("/nope")
        )
    );
    let expected = format!(
        "'{}' -> '{out}/three'\n'{}' -> '{out}/two'\n",
        disk.at("/list/three"),
        disk.at("/list/two")
    );
    assert_eq!(String::from_utf8(ran.stdout).unwrap(), expected);
}

#[test]
fn copy_of_one_file_takes_the_name_and_keeps_what_is_there_if_asked() {
    let disk = Fixture::new();
    let place = disk.beside("name");
    let name = place.display().to_string();
    dioxide(["cp", &disk.at("/hello"), &name]).text();
    assert_eq!(fs::read(&place).unwrap(), b"hello, world\n");
    dioxide(["cp", "-n", &disk.at("/list/one"), &name]).text();
    assert_eq!(fs::read(&place).unwrap(), b"hello, world\n");
    dioxide(["cp", &disk.at("/list/three"), &name]).text();
    assert_eq!(fs::read(&place).unwrap().len(), 333);
    let missing = dioxide([
        "cp",
        &disk.at("/hello"),
        &disk.at("/large"),
        &disk.beside("none").display().to_string(),
    ]);
    assert_eq!(missing.status, Some(2));
    assert!(
        missing
            .stderr
            .contains("none: No such file or directory, and "),
        "{}",
        missing.stderr
    );
}

/// An image may hold a link out of the tree, and, if it is damaged, a directory of the same name.
#[test]
fn copy_never_writes_through_a_link_below_its_destination() {
    let disk = Fixture::new();
    let (out, victim) = (disk.beside("out"), disk.beside("victim"));
    fs::create_dir_all(out.join("dir")).unwrap();
    fs::create_dir(&victim).unwrap();
    fs::remove_dir(out.join("dir")).unwrap();
    symlink(&victim, out.join("dir")).unwrap();
    let ran = dioxide(["cp", "-r", &disk.at("/"), &out.display().to_string()]);
    assert_eq!(ran.status, Some(2));
    assert!(ran.stderr.contains("is no directory"), "{}", ran.stderr);
    assert_eq!(fs::read_dir(&victim).unwrap().count(), 0);
    assert_eq!(fs::read(out.join("hello")).unwrap(), b"hello, world\n");
}

/// What was copied there before may have put a link where a directory goes now: each is from somebody else, perhaps.
#[test]
fn directory_is_not_copied_through_a_link_of_its_name() {
    need_root!();
    let disk = Fixture::new();
    let (out, victim) = (disk.beside("out"), disk.beside("victim"));
    for dir in [&out, &victim] {
        fs::create_dir(dir).unwrap();
    }
    fs::set_permissions(&victim, fs::Permissions::from_mode(0o700)).unwrap();
    symlink(&victim, out.join("dir")).unwrap();
    let out_word = out.display().to_string();
    let exactly = out.join("dir").display().to_string();
    let from = [disk.at("/dir"), disk.at("/d*")];
    for args in [
        ["cp", "-r", &from[0], &out_word],
        ["cp", "-a", &from[1], &out_word],
        ["cp", "-aT", &from[0], &exactly],
    ] {
        let ran = dioxide(args);
        assert_eq!(ran.status, Some(2), "{args:?}");
        assert!(ran.stderr.contains("is no directory"), "{}", ran.stderr);
        assert_eq!(fs::read_dir(&victim).unwrap().count(), 0, "{args:?}");
        assert_eq!(fs::metadata(&victim).unwrap().mode() & 0o777, 0o700);
    }
    // Into an image.
    fs::remove_file(out.join("dir")).unwrap();
    fs::create_dir(out.join("to-dir")).unwrap();
    fs::write(out.join("to-dir/planted"), b"x").unwrap();
    let ran = dioxide([
        "cp",
        "-a",
        &out.join("to-dir").display().to_string(),
        &disk.at("/"),
    ]);
    assert_eq!(ran.status, Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains("is no directory"), "{}", ran.stderr);
    assert_eq!(dioxide(["ls", &disk.at("/dir/planted")]).status, Some(1));
    // Its content goes where the link leads: that is what the user calls the destination.
    let all_of_it = out.join("to-dir/.").display().to_string();
    dioxide(["cp", "-a", &all_of_it, &disk.at("/to-dir")]).text();
    assert_eq!(dioxide(["cat", &disk.at("/dir/planted")]).text(), "x");
    e2fsck_clean(disk.image());
}

#[test]
fn copy_onto_a_device_is_refused() {
    let disk = Fixture::new();
    let ran = dioxide(["cp", &disk.at("/hello"), "/dev/null"]);
    assert_eq!(ran.status, Some(2));
    assert!(!fs::metadata("/dev/null").unwrap().is_file());
}

// The link was replaced, for whoever used it later.
#[test]
fn copy_onto_a_link_to_standard_output_is_refused() {
    let disk = Fixture::new();
    let [out, link, to_link] = ["out", "link", "to-link"].map(|name| disk.beside(name));
    symlink("/proc/self/fd/1", &link).unwrap();
    symlink("link", &to_link).unwrap();
    for place in [&link, &to_link] {
        let ran = command()
            .args(["cp", &disk.at("/hello"), place.to_str().unwrap()])
            .stdout(fs::File::create(&out).unwrap())
            .output();
        let ran = Ran::from(ran.unwrap());
        assert_eq!(ran.status, Some(2));
        assert!(ran.stderr.contains("cat writes into it"), "{}", ran.stderr);
        assert!(place.is_symlink());
    }
}

#[test]
fn copy_that_finds_no_room_leaves_nothing_behind() {
    dioxide_testkit::need_root!();
    let disk = Fixture::new();
    let small = dioxide_testkit::Image::builder()
        .size(2 << 20)
        .args(&["-O", "^has_journal"])
        .build();
    let mount = dioxide_testkit::Mount::ext4(small.path(), "");
    let place = mount.path().join("large");
    let ran = dioxide(["cp", &disk.at("/large"), &place.display().to_string()]);
    assert_eq!(ran.status, Some(2));
    assert_eq!(
        ran.stderr,
        format!(
            "dioxide: cp: {}: No space left on device: the host's file system is full\n",
            place.display()
        )
    );
    let names = fs::read_dir(mount.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name());
    assert_eq!(names.collect::<Vec<_>>(), ["lost+found"]);
    mount.unmount();
}

/// The command, for which some system calls fail.
fn with_a_refusal(calls: &str, errno: &str, args: &[&str]) -> Ran {
    let trace = format!("trace={calls}");
    let inject = format!("inject={calls}:error={errno}");
    let words = ["-f", "-qqq", "-o", "/dev/null", "-e", &trace, "-e", &inject];
    let mut strace = Command::new("strace");
    strace
        .args(words)
        .arg(env!("CARGO_BIN_EXE_dioxide"))
        .args(args);
    let output = strace.env("LC_ALL", "C").output();
    output.expect("strace is installed").into()
}

/// As on a file system that has no modes.
#[test]
fn copy_to_where_modes_are_refused_is_made_unless_they_are_to_be_kept() {
    let disk = Fixture::new();
    let place = disk.beside("copy");
    let (hello, name) = (disk.at("/hello"), place.display().to_string());
    let refused = |errno, args: &[&str]| with_a_refusal("chmod,fchmod,fchmodat", errno, args);
    for errno in ["EPERM", "EACCES", "EOPNOTSUPP", "ENOSYS"] {
        // New, and in the place of another.
        for _ in 0..2 {
            let ran = refused(errno, &["cp", &hello, &name]);
            assert_eq!((ran.status, &*ran.stderr), (Some(0), ""), "{errno}");
            assert_eq!(fs::read(&place).unwrap(), b"hello, world\n", "{errno}");
        }
        fs::write(&place, "old").unwrap();
        let ran = refused(errno, &["cp", "-p", &hello, &name]);
        assert_eq!(ran.status, Some(2), "{errno}: {}", ran.stderr);
        assert_eq!(fs::read(&place).unwrap(), b"old", "{errno}");
        fs::remove_file(&place).unwrap();
    }
    let ran = refused("EIO", &["cp", &hello, &name]);
    assert_eq!(ran.status, Some(2), "{}", ran.stderr);
    assert!(!place.exists());
}

#[test]
fn mv_keeps_each_file_whose_attributes_are_refused_where_it_goes() {
    let disk = Fixture::new();
    let out = disk.beside("out");
    let [hello, empty, one] = ["/hello", "/empty", "/list/one"].map(|path| disk.at(path));
    for path in [&hello, &empty] {
        dioxide(["xattr", "set", "user.kept", "x", path]).text();
    }
    let name = out.display().to_string();
    for errno in ["EPERM", "EACCES", "EOPNOTSUPP"] {
        fs::create_dir(&out).unwrap();
        let refused = |words: &[&str]| {
            let words = [words, &[&hello, &empty, &one, &name]].concat();
            with_a_refusal("fsetxattr", errno, &words)
        };
        // A copy does without, and says so once.
        let ran = refused(&["cp", "-a"]);
        assert_eq!(ran.status, Some(0), "{errno}: {}", ran.stderr);
        let told = ran.stderr.matches("user.kept is not kept").count();
        assert_eq!(told, 1, "{errno}: {}", ran.stderr);
        let ran = refused(&["mv"]);
        assert_eq!(ran.status, Some(2), "{errno}: {}", ran.stderr);
        for path in [&hello, &empty] {
            let lost = format!("dioxide: mv: {path}: attribute user.kept is not kept: ");
            assert!(ran.stderr.contains(&lost), "{errno}: {}", ran.stderr);
            let stays = format!("dioxide: mv: {path}: is not removed, since ");
            assert!(ran.stderr.contains(&stays), "{errno}: {}", ran.stderr);
            assert_eq!(
                dioxide(["xattr", "get", "user.kept", path]).text(),
                "x",
                "{errno}"
            );
        }
        // What has no attributes was moved.
        assert_eq!(dioxide(["stat", &one]).status, Some(1));
        dioxide(["cp", &format!("{name}/one"), &one]).text();
        fs::remove_dir_all(&out).unwrap();
    }
    e2fsck_clean(disk.image());
}

/// chown(2) takes 4294967295 for no change.
#[test]
fn copy_of_a_file_whose_owner_cannot_be_set_lends_no_rights() {
    need_root!();
    let disk = Fixture::new();
    let out = disk.beside("out");
    let name = out.display().to_string();
    let owners = [
        ("/list/one", "4294967295", "7", 0o755),
        ("/list/two", "7", "4294967295", 0o755),
        ("/list/three", "7", "7", 0o6755),
    ];
    for (path, uid, gid, _) in owners {
        disk.debugfs(&[
            &format!("sif {path} mode 0106755"),
            &format!("sif {path} uid {uid}"),
            &format!("sif {path} gid {gid}"),
        ]);
    }
    for words in [&["cp", "-p"][..], &["cp", "-a"], &["mv"]] {
        fs::create_dir(&out).unwrap();
        for (path, _, _, mode) in owners {
            let source = disk.at(path);
            dioxide([words, &[&source, &name]].concat()).text();
            let copy = fs::metadata(out.join(&path[6..])).unwrap();
            assert_eq!(copy.mode() & 0o7777, mode, "{words:?} {path}");
            let owner = if mode == 0o755 { 0 } else { 7 };
            assert_eq!((copy.uid(), copy.gid()), (owner, owner), "{words:?} {path}");
        }
        fs::remove_dir_all(&out).unwrap();
    }
}

#[test]
fn plain_copies_have_what_their_directory_hands_on_as_those_of_gnu() {
    need_root!();
    let disk = Fixture::new();
    for (mode, path) in [
        ("664", "list/two"),
        ("400", "list/three"),
        ("750", "odd"),
        ("555", "dir/.hidden"),
    ] {
        coreutils("chmod", &[mode, disk.tree(path).to_str().unwrap()]);
        dioxide(["chmod", mode, &disk.at(&format!("/{path}"))]).text();
    }
    let there = Image::builder().build();
    let mount = Mount::ext4(there.path(), "");
    for umask in ["022", "027", "077", "0"] {
        for make in [
            "setfacl -d -m u::rwx,u:5:rw,g::rwx,o::---,m::rwx D",
            "setfacl -d -m u::rwx,g:5:rw,g::r,o::--x,m::rw D",
            "setfacl -d -m u::rw,g::rx,o::r D; setfacl -d -m u::rwx D",
            "chgrp 7 D; chmod 2777 D",
            "chgrp 7 D; chmod 2777 D; setfacl -d -m u::rwx,u:5:r,g::rx,o::rx D",
            ":",
        ] {
            let [ours, theirs] = ["ours", "theirs"].map(|name| make.replace('D', name));
            let script = format!(
                "set -e; cd '{}'; rm -rf ours theirs; mkdir ours theirs; {ours}; {theirs}; umask {umask}; \
                 '{}' cp -r '{i}:/list' '{i}:/dir' '{i}:/odd' ours; '{}' cp -rT '{i}:/dir' ours/new/; \
                 cd '{}'; cp -r list dir odd \"$OLDPWD/theirs\"; cp -rT dir \"$OLDPWD/theirs/new/\"",
                mount.path().display(),
                env!("CARGO_BIN_EXE_dioxide"),
                env!("CARGO_BIN_EXE_dioxide"),
                disk.tree("").display(),
                i = disk.name(),
            );
            coreutils("bash", &["-c", &script]);
            let told = |name: &str| {
                let path = mount.path().join(name);
                let path = path.display();
                let script = format!(
                    "cd '{path}' && find . ! -type l | LC_ALL=C sort | xargs -d '\\n' getfacl | LC_ALL=C tr -cd '[:print:]\\n'"
                );
                coreutils("bash", &["-c", &script])
            };
            assert_eq!(told("ours"), told("theirs"), "{make} {umask}");
        }
    }
    mount.unmount();
}

/// An image and a directory for a user who has no other rights.
fn for_a_user(disk: &Fixture) -> (PathBuf, PathBuf) {
    let (image, out) = (disk.beside("user.img"), disk.beside("out"));
    fs::copy(disk.image(), &image).unwrap();
    fs::create_dir(&out).unwrap();
    for path in [&image, &out] {
        chown(path, Some(1234), Some(1234)).unwrap();
    }
    for path in [&disk.beside(""), &image] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    (image, out)
}

/// Runs a script for that user.
fn as_the_user(script: &str) {
    let user = ["--reuid=1234", "--regid=1234", "--clear-groups"];
    coreutils("setpriv", &[&user[..], &["bash", "-ec", script]].concat());
}

#[test]
fn directory_copied_by_who_is_not_of_its_group_keeps_set_group_id() {
    need_root!();
    let disk = Fixture::new();
    let (image, out) = for_a_user(&disk);
    chown(&out, None, Some(7)).unwrap();
    fs::set_permissions(&out, fs::Permissions::from_mode(0o2777)).unwrap();
    as_the_user(&format!(
        "umask 022; cd '{}'; '{}' cp -r '{}:/dir' ours; cp -r '{}' theirs",
        out.display(),
        env!("CARGO_BIN_EXE_dioxide"),
        image.display(),
        disk.tree("dir").display(),
    ));
    for path in ["", ".hidden", "a b"] {
        let [ours, theirs] =
            ["ours", "theirs"].map(|copy| fs::metadata(out.join(copy).join(path)).unwrap());
        assert_eq!(ours.mode(), theirs.mode(), "{path}");
        assert_eq!(ours.gid(), 7, "{path}");
    }
}

#[test]
fn device_is_left_out_for_who_is_not_root_and_nothing_else() {
    need_root!();
    let disk = Fixture::new();
    dioxide(["mknod", &disk.at("/dir/null"), "c", "1", "3"]).text();
    dioxide(["mknod", &disk.at("/dir/pipe"), "p"]).text();
    let (image, out) = for_a_user(&disk);
    let program = env!("CARGO_BIN_EXE_dioxide");
    let (image, place) = (image.display(), out.display());
    as_the_user(&format!(
        "cd '{place}'; ! '{program}' cp -r '{image}:/dir' . 2>told; chmod 555 dir
         ! '{program}' cp -r '{image}:/dir/pipe' dir/again 2>>told"
    ));
    let told = fs::read_to_string(out.join("told")).unwrap();
    let expected = format!(
        "dioxide: cp: {image}:/dir/null: warning: only root can make devices; it is left out\n\
         dioxide: cp: dir/again: Permission denied\n"
    );
    assert_eq!(told, expected);
    assert!(out.join("dir/pipe").exists());
}

/// As a write does.
#[test]
fn copy_over_a_file_by_who_is_not_root_takes_set_ids() {
    need_root!();
    let disk = Fixture::new();
    let modes = [
        ("one", 0o6755, 0o755),
        ("two", 0o2745, 0o2745),
        ("three", 0o4644, 0o644),
    ];
    for (name, mode, _) in modes {
        disk.debugfs(&[
            &format!("sif /list/{name} mode 010{mode:o}"),
            &format!("sif /list/{name} uid 1234"),
            &format!("sif /list/{name} gid 1234"),
        ]);
    }
    let (image, out) = for_a_user(&disk);
    for (name, mode, left) in modes {
        let places = ["ours", "theirs"].map(|by| out.join(format!("{name}-{by}")));
        for place in &places {
            fs::write(place, "old").unwrap();
            chown(place, Some(1234), Some(1234)).unwrap();
            fs::set_permissions(place, fs::Permissions::from_mode(mode)).unwrap();
        }
        let [ours, theirs] = places.each_ref().map(|place| place.display());
        let (program, img) = (env!("CARGO_BIN_EXE_dioxide"), image.display());
        let hello = disk.tree("hello");
        let hello = hello.display();
        as_the_user(&format!(
            "'{program}' cp '{img}:/hello' '{ours}'; cp '{hello}' '{theirs}'; '{program}' cp '{hello}' '{img}:/list/{name}'"
        ));
        for place in &places {
            assert_eq!(fs::read(place).unwrap(), b"hello, world\n");
            let found = fs::metadata(place).unwrap().mode() & 0o7777;
            assert_eq!(found, left, "{}", place.display());
        }
        let inside = at(&image, &format!("/list/{name}"));
        let found = dioxide(["stat", "-c", "%a %u", &inside]);
        assert_eq!(found.text(), format!("{left:o} 1234\n"), "{name}");
    }
}

/// Names of so many bytes that what is told of them is more than pipes and buffers hold.
const MANY: usize = 400;

/// An image with a directory of many files, and of two behind them; the directory.
fn many_and_two(disk: &Fixture) -> String {
    let tree = disk.beside("many");
    fs::create_dir_all(tree.join("y")).unwrap();
    for number in 0..MANY {
        fs::write(tree.join(format!("{number:0250}")), "many").unwrap();
    }
    fs::write(tree.join("y/z"), "below").unwrap();
    fs::write(tree.join("z"), "another").unwrap();
    let many = disk.at("/many");
    dioxide(["cp", "-r", &tree.display().to_string(), &many]).text();
    many
}

/// Runs a command until it stands still, since nobody reads on in what it tells, and lets it come to its end after `act`.
fn with_a_stop(args: &[&str], act: impl FnOnce()) -> Ran {
    let mut child = command()
        .args(args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let told = child.stdout.as_mut().unwrap();
    told.read_exact(&mut [0]).unwrap();
    act();
    child.wait_with_output().unwrap().into()
}

/// What a file system that takes two names for one (`A` and `a`) shows when the second is looked for: the first, or what is in a
/// directory that was just made.
#[test]
fn copy_does_not_replace_what_it_has_just_made() {
    let disk = Fixture::new();
    let many = many_and_two(&disk);
    let first = format!("{:0250}", 0);
    let what = "was made just now, and is not replaced";
    let new = |name: &str| {
        let out = disk.beside(name);
        fs::create_dir(&out).unwrap();
        let path = out.display().to_string();
        (out, path)
    };
    let check = |ran: Ran, paths: &[PathBuf]| {
        assert_eq!(ran.status, Some(2), "{}", ran.stderr);
        let told = paths
            .iter()
            .map(|path| format!("dioxide: cp: {}: {what}\n", path.display()));
        assert_eq!(ran.stderr, told.collect::<String>());
    };
    let another_name = |out: &Path| fs::hard_link(out.join(&first), out.join("z")).unwrap();

    // As operands.
    let (out, name) = new("operands");
    let pattern = format!("{many}/*");
    let ran = with_a_stop(&["cp", "-rv", &pattern, &name], || another_name(&out));
    check(ran, &[out.join("z")]);
    assert_eq!(fs::read(out.join("z")).unwrap(), b"many");

    // In a directory that was there, where what the run did not make is replaced as ever.
    let (out, name) = new("there");
    fs::create_dir(out.join("y")).unwrap();
    fs::write(out.join("y/z"), "old").unwrap();
    let all = format!("{many}/.");
    let ran = with_a_stop(&["cp", "-rv", &all, &name], || another_name(&out));
    check(ran, &[out.join("z")]);
    assert_eq!(fs::read(out.join("y/z")).unwrap(), b"below");
    // Another run makes them anew.
    dioxide(["cp", "-r", &all, &name]).text();
    assert_eq!(fs::read(out.join("z")).unwrap(), b"another");

    // In one that was just made.
    let (out, name) = new("made");
    let made = out.join("many");
    let ran = with_a_stop(&["cp", "-rv", &many, &name], || {
        fs::create_dir(made.join("y")).unwrap();
        fs::write(made.join("z"), "somebody's").unwrap();
    });
    check(ran, &[made.join("y"), made.join("z")]);
    assert_eq!(fs::read(made.join("z")).unwrap(), b"somebody's");
    assert_eq!(fs::read_dir(made.join("y")).unwrap().count(), 0);
    e2fsck_clean(disk.image());
}

#[test]
fn mv_to_where_case_does_not_count_loses_no_file() {
    need_root!();
    let folds = Image::builder().features("casefold").build();
    let mount = match Mount::try_ext4(folds.path(), "") {
        Ok(mount) => mount,
        Err(said) => {
            eprintln!("skipped: this kernel's ext4 knows no casefold: {said}");
            return;
        }
    };
    let out = mount.path().join("out");
    fs::create_dir(&out).unwrap();
    coreutils("chattr", &["+F", out.to_str().unwrap()]);
    let disk = Fixture::new();
    let tree = disk.beside("both");
    for directory in ["dir/D", "dir/d"] {
        fs::create_dir_all(tree.join(directory)).unwrap();
    }
    for path in ["A", "a", "dir/B", "dir/b", "dir/D/c", "dir/d/C"] {
        fs::write(tree.join(path), path).unwrap();
    }
    let both = disk.at("/both");
    dioxide(["cp", "-r", tree.to_str().unwrap(), &both]).text();
    let operands = ["A", "a", "dir"].map(|name| format!("{both}/{name}"));
    let mut words = vec!["mv"];
    words.extend(operands.iter().map(String::as_str));
    let ran = dioxide([&words[..], &[out.to_str().unwrap()]].concat());
    assert_eq!(ran.status, Some(2), "{}", ran.stderr);
    let told = ran.stderr.matches("was made just now").count();
    assert_eq!(told, 3, "{}", ran.stderr);
    // The first of each is there, and what was not copied is in the image as it was.
    assert_eq!(fs::read(out.join("A")).unwrap(), b"A");
    assert_eq!(fs::read(out.join("dir/B")).unwrap(), b"dir/B");
    assert_eq!(dioxide(["stat", &operands[0]]).status, Some(1));
    for path in ["a", "dir/B", "dir/b", "dir/D/c", "dir/d/C"] {
        assert_eq!(
            dioxide(["cat", &format!("{both}/{path}")]).text(),
            path,
            "{path}"
        );
    }
    mount.unmount();
    e2fsck_clean(folds.path());
    e2fsck_clean(disk.image());
}
