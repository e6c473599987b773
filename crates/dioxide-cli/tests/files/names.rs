//! What makes, moves and removes names, compared with GNU's programs on the same image mounted.

use super::support::{Fixture, at, dioxide};
use super::twins::Twins;
use super::with_input;
use dioxide_testkit::{Image, debugfs, e2fsck_clean, need_root};
use std::fs;

#[test]
fn mkdir_of_each_form_makes_what_gnu_makes() {
    need_root!();
    let twins = Twins::new();
    twins.same(
        &[
            "mkdir @/new @/deep/new",
            "mkdir -p @/a/b/c @/deep",
            "mkdir -p @/s/./t @/u/../v/w @/s/t/.",
            "mkdir -p -m 750 @/p/q/r",
            "mkdir -m u=rwx,go=r @/modes",
            "chmod g+s @/log",
            "chown :77 @/log",
            "mkdir @/log/sub",
            "mkdir -m 700 @/log/own",
        ],
        "mkdir new deep/new; mkdir -p a/b/c deep; mkdir -p s/./t u/../v/w s/t/.; mkdir -p -m 750 p/q/r; mkdir -m u=rwx,go=r modes; \
         chmod g+s log; chown :77 log; mkdir log/sub; mkdir -m 700 log/own",
    );
}

#[test]
fn mkdir_tells_what_it_cannot_make_and_makes_the_rest() {
    let disk = Fixture::new();
    let words = ["/dir", "/no/such", "/fine", "/hello/x"].map(|path| disk.at(path));
    let ran = dioxide(["mkdir", "-v"].iter().map(ToString::to_string).chain(words));
    assert_eq!(ran.status, Some(2));
    let told: Vec<_> = ran
        .stderr
        .lines()
        .map(|line| line.rsplit(": ").next().unwrap())
        .collect();
    assert_eq!(
        told,
        [
            "File exists",
            "No such file or directory",
            "Not a directory"
        ]
    );
    let made = format!("created directory '{}'\n", disk.at("/fine"));
    assert_eq!(String::from_utf8(ran.stdout).unwrap(), made);
    dioxide(["mkdir", "--owner", "7:8", &disk.at("/owned")]).text();
    let owner = dioxide(["stat", "-c", "%u:%g", &disk.at("/owned")]);
    assert_eq!(owner.text(), "7:8\n");
    // A pattern that nothing fits is a name.
    dioxide(["mkdir", &disk.at("/[x]")]).text();
    dioxide(["stat", &disk.at("/[x]")]).text();
    e2fsck_clean(disk.image());
}

#[test]
fn rm_that_meets_damage_tells_it_once() {
    let disk = Fixture::new();
    debugfs(disk.image(), &["ssv errors 2", "sif /hello block[0] 0"]);
    let ran = dioxide(["rm", &disk.at("/hello")]);
    assert_eq!(ran.status, Some(2), "{}", ran.stderr);
    assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
    assert!(
        ran.stderr.contains("corrupted extent node"),
        "{}",
        ran.stderr
    );
    let ran = dioxide(["rm", &disk.at("/hello"), &disk.at("/dir/nothing")]);
    let warned = "errors were found in this file system (1 recorded, the last: extent node";
    assert!(ran.stderr.contains(warned), "{}", ran.stderr);
}

#[test]
fn rmdir_removes_what_gnu_removes() {
    need_root!();
    let twins = Twins::new();
    twins.same(
        &[
            "rmdir -p @/deep/er/est",
            "rmdir @/dir/.hidden",
            "rmdir --ignore-fail-on-non-empty @/log",
        ],
        "rmdir -p deep/er/est; rmdir dir/.hidden; rmdir --ignore-fail-on-non-empty log",
    );
    let ran = dioxide(twins.words("rmdir @/log @/hello @/nope"));
    assert_eq!(ran.status, Some(2));
    for told in ["Directory not empty", "Not a directory", "No such file"] {
        assert!(ran.stderr.contains(told), "{}", ran.stderr);
    }
}

#[test]
fn rm_of_files_trees_and_patterns_removes_what_gnu_removes() {
    need_root!();
    let twins = Twins::new();
    twins.same(
        &[
            "rm @/hello @/dangling @/to-dir @/null @/pipe @/socket",
            "rm @/log/*.gz",
            "rm -d @/dir/.hidden",
            "rm -rf @/deep @/nope @/nope/*",
            "rm -f @/nope @/log/nope* @/large/x",
            "rm -r @/dir @/sparse",
        ],
        "rm hello dangling to-dir null pipe socket; rm log/*.gz; rm -d dir/.hidden; \
         rm -rf deep nope; rm -f nope large/x; rm -r dir sparse",
    );
}

// What had a name with the characters of a pattern was gone when its second operand was looked for, which then fitted others.
#[test]
fn what_is_removed_first_does_not_make_patterns_fit() {
    let disk = Fixture::new();
    let [odd, odd_file, odd_dir] = ["/d[1]", "/d[1]/x", "/d[1]/e"].map(|path| disk.at(path));
    let [file, dir] = ["/d1/x", "/d1/e"].map(|path| disk.at(path));
    for words in [
        &["rm", "-r", &odd, &odd_file][..],
        &["find", &odd, &odd_file, "-delete"],
        &["rmdir", &odd_dir, &odd_dir],
    ] {
        dioxide(["mkdir", "-p", &dir, &odd_dir]).text();
        dioxide(["touch", &file, &odd_file]).text();
        assert_eq!(dioxide(words).status, Some(1), "{words:?}");
        dioxide(["stat", &file, &dir]).text();
    }
    e2fsck_clean(disk.image());
}

#[test]
fn rm_refuses_directories_the_root_and_what_is_not_there() {
    let disk = Fixture::new();
    let root = disk.at("/");
    for (args, told, status) in [
        (vec!["/dir"], "Is a directory", 2),
        (vec!["/nope"], "No such file or directory", 1),
        (vec!["/nope*"], "no file fits this pattern", 1),
        (vec!["-r", "/"], "the root directory", 2),
        (vec!["-rf", "/dir/.."], "'.' and '..'", 2),
        (vec!["-d", "/dir"], "Directory not empty", 2),
    ] {
        let args = args.iter().map(|arg| match arg.starts_with('/') {
            true => disk.at(arg),
            false => arg.to_string(),
        });
        let ran = dioxide(std::iter::once("rm".to_owned()).chain(args));
        assert_eq!(ran.status, Some(status), "{}", ran.stderr);
        assert!(ran.stderr.contains(told), "{}", ran.stderr);
    }
    // What fails does not stop the rest.
    let ran = dioxide(["rm", "-v", &disk.at("/nope"), &disk.at("/hello")]);
    assert_eq!(ran.status, Some(1));
    let removed = format!("removed '{}'\n", disk.at("/hello"));
    assert_eq!(String::from_utf8(ran.stdout).unwrap(), removed);
    e2fsck_clean(disk.image());
    let told = dioxide(["rm", "-r", "--json", &disk.at("/list")]).json();
    assert_eq!(told.as_array().unwrap().len(), 5);
    assert_eq!(told[4]["action"], "removed");
    dioxide(["rm", "-rf", "--no-preserve-root", &root]).text();
    assert_eq!(dioxide(["ls", "-A", &root]).text(), "");
}

#[test]
fn names_that_are_made_and_removed_are_told_as_json() {
    let disk = Fixture::new();
    let at = |path: &str| disk.at(path);
    for (args, action, path) in [
        (&["mkdir", "--json", &at("/new")][..], "made", "/new"),
        (&["rmdir", "--json", &at("/new")], "removed", "/new"),
        (
            &["mknod", "--json", "--fifo", &at("/pipe")],
            "made",
            "/pipe",
        ),
        (
            &["ln", "--json", "-s", "hello", &at("/link")],
            "linked",
            "/link",
        ),
    ] {
        let told = dioxide(args).json();
        assert_eq!(told[0]["action"], action, "{args:?}");
        assert_eq!(told[0]["image"], disk.name(), "{args:?}");
        assert_eq!(told[0]["path"], path, "{args:?}");
    }
    e2fsck_clean(disk.image());
}

#[test]
fn ln_makes_the_links_that_gnu_makes() {
    need_root!();
    let twins = Twins::new();
    twins.same(
        &[
            "ln @/hello @/again",
            "ln @/dangling @/dangling2",
            "ln -s ../some/where @/link",
            "ln -s a/b c/d @/deep",
            "ln -sf hello @/dangling",
            "ln -f @/large @/log/a.gz",
            "ln -f @/large @/log/a.gz",
            "ln -sf ../large @/log/a.gz",
            "ln -sfn nowhere @/to-dir",
            "ln -t @/log @/empty @/sparse",
            "ln -sT x @/deep/T",
            "ln -s round @/round",
            "ln -s hello/x @/through-file",
            "ln -sf new @/round",
            "ln -sfn new @/through-file",
            "ln -s again @/again-round",
            "ln -f @/hello @/again-round",
        ],
        "ln hello again; ln dangling dangling2; ln -s ../some/where link; ln -s a/b c/d deep; \
         ln -sf hello dangling; ln -f large log/a.gz; ln -f large log/a.gz; ln -sf ../large log/a.gz; ln -sfn nowhere to-dir; \
         ln -t log empty sparse; ln -sT x deep/T; ln -s round round; ln -s hello/x through-file; ln -sf new round; \
         ln -sfn new through-file; ln -s again again-round; ln -f hello again-round",
    );
    // A path in the image of the link is the path.
    dioxide(twins.words("ln -s @/bin/tool @/tool")).text();
    let told = dioxide(twins.words("stat -c %N @/tool"));
    assert!(told.text().ends_with("-> '/bin/tool'\n"), "{}", told.text());
}

#[test]
fn ln_refuses_what_is_there_directories_and_the_host() {
    let disk = Fixture::new();
    let before = fs::read(disk.image()).unwrap();
    let (hello, large, dir) = (disk.at("/hello"), disk.at("/large"), disk.at("/dir"));
    let (new, slow) = (disk.at("/new"), disk.at("/dir/../hello"));
    for (args, told) in [
        (vec![&*hello, &*large], "File exists"),
        (vec!["-s", "x", &*large], "File exists"),
        (vec![&*dir, &*new], "is a directory"),
        (vec!["-f", &*hello, &*hello], "are the same file"),
        (vec!["-f", &*hello, &*slow], "are the same file"),
        (vec!["-sf", &*hello, &*hello], "would lead to itself"),
        (vec!["-sf", &*slow, &*hello], "would lead to itself"),
        (vec!["-sf", "../hello", &*slow], "would lead to itself"),
        (vec!["-Tf", &*hello, &*dir], "is a directory"),
        (vec![&*hello, "/tmp/x"], "is on the host"),
        (vec!["/etc/hostname", &*new], "Invalid cross-device link"),
        (vec!["-s", "a", "b", &*large], "Not a directory"),
        (vec![&*hello], "two operands"),
    ] {
        let ran = dioxide(std::iter::once("ln").chain(args.iter().copied()));
        assert_eq!(ran.status, Some(2), "{args:?}");
        assert!(ran.stderr.contains(told), "{args:?}: {}", ran.stderr);
    }
    // But for the superblock, which says that it was mounted.
    let after = fs::read(disk.image()).unwrap();
    assert!(after[4096..] == before[4096..]);
    e2fsck_clean(disk.image());
}

#[test]
fn mknod_makes_what_gnu_makes() {
    need_root!();
    let twins = Twins::new();
    twins.same(
        &[
            "mknod @/zero c 1 5",
            "mknod -m 666 @/full u 1 0x7",
            "mknod @/big b 259 70000",
            "mknod @/octal b 0 010",
            "mknod @/upper c 0XA 0x0a",
            "mknod @/p p",
            "mknod --fifo -m 600 @/q @/log/r",
        ],
        "mknod zero c 1 5; mknod -m 666 full u 1 0x7; mknod big b 259 70000; mknod p p; \
         mknod octal b 0 010; mknod upper c 0XA 0x0a; mkfifo -m 600 q log/r",
    );
    dioxide(twins.words("mknod @/s s")).text();
    let told = dioxide(twins.words("ls -l @/s"));
    assert!(told.text().starts_with("srw-"), "{}", told.text());
    for line in [
        "mknod @/x",
        "mknod @/x c",
        "mknod @/x c 1 y",
        "mknod @/x c 1 08",
        "mknod @/x p 1 2",
        "mknod @/hello p",
    ] {
        assert_eq!(dioxide(twins.words(line)).status, Some(2), "{line}");
    }
}

#[test]
fn touch_makes_the_files_that_gnu_makes() {
    need_root!();
    let twins = Twins::new();
    let stamp = "202001020304.05";
    let ours = [
        format!("touch -t {stamp} @/new @/hello @/deep/new"),
        format!("touch -c -t {stamp} @/nope"),
        "touch @/dangling".to_owned(),
    ];
    let script =
        format!("touch -t {stamp} new hello deep/new; touch -c -t {stamp} nope; touch dangling");
    twins.same(&ours.each_ref().map(|line| &line[..]), &script);
    let mtime = dioxide(twins.words("stat -c %Y @/new"));
    let expected = dioxide(twins.words("stat -c %Y @/hello"));
    assert_eq!(mtime.text(), expected.text());
    let ran = dioxide(twins.words("touch @/no/such @/log/[x]"));
    assert_eq!(ran.status, Some(1));
    dioxide(twins.words("stat @/log/[x]")).text();
}

#[test]
fn emptied_directory_keeps_its_size_as_linux_leaves_it() {
    need_root!();
    let twins = Twins::new();
    twins.both("mkdir full; for i in $(seq 500); do : >full/a-name-of-some-length-$i; done");
    twins.run(&["rm @/full/*"], "rm full/*; stat -c %s full >$H/size");
    let theirs = fs::read_to_string(twins.host("size")).unwrap();
    let ours = dioxide(twins.words("stat -c %s @/full"));
    assert_eq!(ours.text(), theirs);
    assert!(theirs.trim().parse::<u64>().unwrap() > 8 * 1024, "{theirs}");
    twins.check(false);
}

#[test]
fn find_deletes_what_gnu_find_deletes() {
    need_root!();
    let twins = Twins::new();
    twins.same(
        &[
            "find @/log -name ?.gz -size +1 -delete",
            "find @/dir @/empty -delete",
            "find @/deep -mindepth 2 -delete",
            "find @/ -maxdepth 1 -type l -delete -o -type p -delete",
        ],
        "find log -name '?.gz' -size +1 -delete; find dir empty -delete; \
         find deep -mindepth 2 -delete; find . -maxdepth 1 -type l -delete -o -type p -delete",
    );
    // A directory that something is left in stays, and is told.
    let ran = dioxide(twins.words("find @/log -type d -delete"));
    assert_eq!(ran.status, Some(2));
    assert!(ran.stderr.contains("Directory not empty"), "{}", ran.stderr);
    let ran = dioxide(twins.words("find @/ -path */log -prune -o -delete"));
    assert_eq!(ran.status, Some(2));
    assert!(ran.stderr.contains("say -depth"), "{}", ran.stderr);
    twins.check(false);
}

// As GNU has it: `.` cannot be removed, and that is no error.
#[test]
fn find_in_a_shell_deletes_all_that_is_in_its_directory() {
    let disk = Fixture::new();
    let script = ["shell", "-c", "cd /dir", "-c", "find . -delete"];
    let ran = dioxide(script.into_iter().chain([&*disk.name()]));
    assert_eq!(ran.text(), "");
    assert_eq!(dioxide(["ls", "-A", &disk.at("/dir")]).text(), "");
    e2fsck_clean(disk.image());
}

#[test]
fn write_makes_a_file_where_it_is_told_to() {
    let disk = Fixture::new();
    let new = disk.at("/dir/new");
    let ran = with_input(["write", &new], b"x");
    assert_eq!(ran.status, Some(1));
    with_input(
        ["write", "-c", "-m", "640", "--owner", "3:4", &new],
        b"text\n",
    )
    .text();
    assert_eq!(dioxide(["cat", &new]).text(), "text\n");
    let told = dioxide(["stat", "-c", "%a %u:%g", &new]);
    assert_eq!(told.text(), "640 3:4\n");
    // What is there keeps its mode.
    with_input(["write", "-ct", "-m", "600", &new], b"y").text();
    assert_eq!(dioxide(["cat", &new]).text(), "y");
    let told = dioxide(["stat", "-c", "%a", &new]);
    assert_eq!(told.text(), "640\n");
    e2fsck_clean(disk.image());
}

#[test]
fn write_past_the_largest_size_of_a_file_is_an_error() {
    let disk = Fixture::with(
        Image::builder()
            .block_size(1024)
            .args(&["-O", "^extents,^64bit"]),
    );
    // All that a map with three levels reaches.
    let largest: u64 = (12 + 256 + 256 * 256 + 256 * 256 * 256) * 1024;
    let last = (largest - 1).to_string();
    let new = disk.at("/dir/new");
    let ran = with_input(["write", "-c", "--offset", &last, &new], b"xy");
    assert_eq!(ran.status, Some(2), "{}", ran.stderr);
    let begin = format!("dioxide: write: {new}: ");
    assert!(ran.stderr.starts_with(&begin), "{}", ran.stderr);
    assert!(ran.stderr.contains("too large"), "{}", ran.stderr);
    assert_eq!(ran.stdout, b"");
    with_input(["write", "--offset", &last, &new], b"x").text();
    let size = dioxide(["stat", "-c", "%s", &new]);
    assert_eq!(size.text(), format!("{largest}\n"));
    e2fsck_clean(disk.image());
}

#[test]
fn mv_inside_an_image_leaves_what_gnu_leaves() {
    need_root!();
    let twins = Twins::new();
    twins.run(
        &[
            "mv @/hello @/hi",
            "mv @/log/b.gz @/log/c.gz @/deep",
            "mv @/log @/deep/er",
            "mv -n @/empty @/large",
            "mv -T @/dir/.hidden @/deep/er/est",
            "mv -t @/dir @/null @/pipe @/to-dir",
            "mv -f @/large @/sparse",
            "mv @/dangling @/dir/link",
        ],
        "mv hello hi; mv log/b.gz log/c.gz deep; mv log deep/er; mv -n empty large; \
         mv -T dir/.hidden deep/er/est; mv -t dir null pipe to-dir; \
         mv -f large sparse; mv dangling dir/link",
    );
    twins.check(false);
    twins.run(&["ln -s sparse @/to-large"], "ln -s sparse to-large");
    for (line, told) in [
        ("mv @/deep @/deep/er", "cannot be moved into itself"),
        ("mv @/hi @/deep/er/est/../../../hi", "are the same file"),
        ("mv @/dir/hard @/hi", "are the same file"),
        ("mv @/to-large @/sparse", "are the same file"),
        ("mv -T @/hi @/deep", "is a directory"),
        ("mv @/deep @/hi", "is no directory"),
        ("mv -T @/dir @/deep", "Directory not empty"),
        ("mv @/ @/dir", "busy"),
        ("mv @/hi @/new/", "Not a directory"),
        ("mv /etc/hostname /tmp/x", "is on the host"),
    ] {
        let ran = dioxide(twins.words(line));
        assert_eq!(ran.status, Some(2), "{line}: {}", ran.stderr);
        assert!(ran.stderr.contains(told), "{line}: {}", ran.stderr);
    }
    let ran = dioxide(twins.words("mv -v @/nope @/hi @/deep"));
    assert_eq!(ran.status, Some(1));
    assert!(
        String::from_utf8(ran.stdout)
            .unwrap()
            .starts_with("renamed '")
    );
    twins.run(&[], "mv hi deep");
    twins.check(false);
}

/// Of two that come under one name the second would take the first one's place, which has no other.
#[test]
fn mv_and_ln_replace_nothing_that_they_made_just_now() {
    let disk = Fixture::new();
    let (a, b) = (disk.at("/dir/same"), disk.at("/list/same"));
    let into = disk.at("/into");
    dioxide(["mkdir", &into]).text();
    for (path, text) in [(&a, b"first"), (&b, b"other")] {
        with_input(["write", "-c", path], text).text();
    }
    let ran = dioxide(["ln", "-f", &a, &b, &into]);
    assert_eq!(ran.status, Some(2));
    assert!(ran.stderr.contains("was made just now"), "{}", ran.stderr);
    dioxide(["rm", &disk.at("/into/same")]).text();
    let elsewhere = disk.beside("same");
    fs::write(&elsewhere, "host").unwrap();
    let elsewhere = elsewhere.display().to_string();
    let ran = dioxide(["mv", &a, &b, &elsewhere, &into]);
    assert_eq!(ran.status, Some(2));
    let times = ran.stderr.matches("was made just now").count();
    assert_eq!(times, 2, "{}", ran.stderr);
    assert_eq!(dioxide(["cat", &disk.at("/into/same")]).text(), "first");
    assert_eq!(dioxide(["cat", &b]).text(), "other");
    assert_eq!(fs::read_to_string(&elsewhere).unwrap(), "host");
    e2fsck_clean(disk.image());
}

/// A directory that has a name in itself makes a tree of endless depth.
#[test]
fn damaged_tree_is_copied_and_removed_as_far_as_that_ends() {
    let disk = Fixture::new();
    disk.debugfs(&["mkdir /x", "mkdir /x/y", "link /x /x/y/up"]);
    let (x, copy) = (disk.at("/x"), disk.at("/copy"));
    for args in [&["cp", "-a", &x, &copy][..], &["rm", "-r", &x]] {
        let ran = dioxide(args);
        assert_eq!(ran.status, Some(2));
        assert!(
            ran.stderr.contains("a directory above it"),
            "{}",
            ran.stderr
        );
    }
    // What was met is told from now on.
    let found = dioxide(["find", &copy]);
    assert_eq!(found.status, Some(0));
    assert!(
        found.stderr.contains("errors were found"),
        "{}",
        found.stderr
    );
    let copied = String::from_utf8(found.stdout).unwrap();
    assert_eq!(copied.lines().count(), 2, "{copied}");
}

/// What has a second '..' is not taken for empty, nor for copied.
#[test]
fn directory_with_two_parents_is_kept_with_all_that_is_in_it() {
    let disk = Fixture::with(Image::builder().args(&["-O", "^metadata_csum"]));
    let kept = disk.beside("kept");
    fs::write(&kept, "keep me").unwrap();
    disk.debugfs(&[
        "mkdir /top",
        "mkdir /top/CC",
        &format!("write {} /top/CC/file", kept.display()),
        &format!("write {} /top/real", kept.display()),
    ]);
    let mut bytes = fs::read(disk.image()).unwrap();
    let name = b"\x02\x02CC";
    let found: Vec<_> = (2..bytes.len())
        .step_by(4)
        .filter(|&at| bytes[at..].starts_with(name))
        .collect();
    assert_eq!(found.len(), 1);
    bytes[found[0] + 2..][..2].copy_from_slice(b"..");
    fs::write(disk.image(), &bytes).unwrap();
    let (top, out) = (disk.at("/top"), disk.beside("out").display().to_string());
    let told = "more than one '.' or '..'";
    // What else is in it is shown and copied.
    let ran = dioxide(["ls", &top]);
    assert_eq!((ran.status, ran.stdout), (Some(2), b"real\n".to_vec()));
    assert!(ran.stderr.contains(told), "{}", ran.stderr);
    for words in [
        &["cp", "-r", &top, &out][..],
        &["mv", &top, &out],
        &["rm", "-r", &top],
        &["rmdir", &top],
        &["mv", "-T", &disk.at("/dir/.hidden"), &top],
    ] {
        let ran = dioxide(words);
        assert_eq!(ran.status, Some(2), "{words:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(told), "{words:?}: {}", ran.stderr);
    }
    let copy = disk.beside("out").join("real");
    assert_eq!(fs::read(copy).unwrap(), b"keep me");
    assert_eq!(dioxide(["stat", &top]).status, Some(0));
}

#[test]
fn what_is_not_moved_or_linked_is_named() {
    let disk = Fixture::new();
    disk.debugfs(&["sif /hello flags 0x80010"]);
    let [hello, empty, new] = ["/hello", "/empty", "/new"].map(|path| disk.at(path));
    for (words, about, what) in [
        (["mv", &hello, &new], &hello, "cannot be moved to"),
        (["mv", &empty, &hello], &empty, "cannot be moved to"),
        (["ln", &hello, &new], &hello, "cannot have another name,"),
    ] {
        let ran = dioxide(words);
        assert_eq!(ran.status, Some(2), "{words:?}: {}", ran.stderr);
        let [command, _, place] = words;
        let line = format!("dioxide: {command}: {about}: {what} '{place}': not permitted: ");
        assert!(ran.stderr.starts_with(&line), "{words:?}: {}", ran.stderr);
    }
    // What is only of the place is told of that.
    let place = disk.at("/no/such");
    let ran = dioxide(["mv", &empty, &place]);
    let line = format!("dioxide: mv: {place}: No such file or directory\n");
    assert_eq!((ran.status, ran.stderr), (Some(1), line));
    e2fsck_clean(disk.image());
}

#[test]
fn link_to_the_root_is_the_root_where_files_are_removed() {
    let disk = Fixture::new();
    let out = disk.beside("out").display().to_string();
    let link = disk.at("/zz/");
    dioxide(["ln", "-s", "/", &disk.at("/zz")]).text();
    let root = "is the root directory, and not removed; --no-preserve-root says otherwise";
    for (words, told) in [
        (&["rm", "-rf", &link][..], root),
        (&["rm", "-d", &link], root),
        (&["mv", &link, &out], "Device or resource busy"),
        (
            &["mv", &link, &disk.at("/moved")],
            "Device or resource busy",
        ),
    ] {
        let ran = dioxide(words);
        let line = format!("dioxide: {}: {link}: {told}\n", words[0]);
        assert_eq!((ran.status, ran.stderr), (Some(2), line), "{words:?}");
    }
    assert!(!disk.beside("out").exists());
    let hello = dioxide(["cat", &disk.at("/hello")]);
    assert_eq!(hello.text(), "hello, world\n");
    dioxide(["rm", "-r", "--no-preserve-root", &link]).text();
    assert_eq!(dioxide(["ls", "-A", &disk.at("/")]).text(), "");
    e2fsck_clean(disk.image());
}

#[test]
fn image_under_another_name_is_the_same_image() {
    let disk = Fixture::new();
    let [image, other] = ["a.img", "b.img"].map(|name| disk.beside(name));
    fs::copy(disk.image(), &image).unwrap();
    fs::hard_link(&image, &other).unwrap();
    let [here, there] = [&image, &other].map(|image| move |path: &str| at(image, path));
    for words in [
        ["cp", &here("/hello"), &there("/copy")],
        ["mv", &there("/copy"), &here("/moved")],
        ["ln", &there("/moved"), &here("/link")],
    ] {
        dioxide(words).text();
    }
    dioxide(["ln", "-s", &there("/moved"), &here("/symlink")]).text();
    let told = dioxide(["stat", "-c", "%N", &here("/symlink")]);
    assert!(told.text().ends_with("-> '/moved'\n"), "{}", told.text());
    e2fsck_clean(&image);
}
