//! What changes files that exist: the image is clean and the change durable when the command ends.

use super::support::{Fixture, Ran, command, dioxide, full_device};
use super::{Linux, unread, with_input};
use dioxide_testkit::{Mount, e2fsck_clean, pattern};
use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::process::Stdio;
use std::time::Duration;

/// `%a %u:%g` of a file.
fn access(disk: &Fixture, path: &str) -> String {
    dioxide(["stat", "-c", "%a %u:%g", &disk.at(path)])
        .text()
        .trim_end()
        .to_owned()
}

#[test]
fn chmod_of_each_form_sets_the_mode_and_leaves_a_clean_image() {
    let disk = Fixture::new();
    let hello = disk.at("/hello");
    for (mode, after) in [
        ("600", "600"),
        ("u+x,go=r", "744"),
        ("a-x", "644"),
        ("=755", "755"),
        ("+4002", "4757"),
        ("4711", "4711"),
        ("g=u", "4771"),
    ] {
        assert_eq!(dioxide(["chmod", mode, &hello]).text(), "");
        assert_eq!(access(&disk, "/hello"), format!("{after} 0:0"), "{mode}");
    }
    dioxide(["chmod", "--reference", &hello, &disk.at("/empty")]).text();
    assert!(access(&disk, "/empty").starts_with("4771"));
    dioxide(["chmod", "-R", "go-rwx,u+X", &disk.at("/list")]).text();
    assert!(access(&disk, "/list").starts_with("700"));
    assert!(access(&disk, "/list/one").starts_with("600"));
    // What a link below leads to is not in the tree.
    assert!(access(&disk, "/hello").starts_with("4771"));
    let ran = dioxide(["chmod", "u+q", &hello]);
    assert_eq!(
        (ran.status, ran.stderr.as_str()),
        (
            Some(2),
            "dioxide: chmod: invalid mode: 'u+q'; write up to four octal digits, or as in u=rwx,go-w\n"
        )
    );
    e2fsck_clean(disk.image());
}

#[test]
fn chown_sets_owner_and_group_and_goes_on_after_what_fails() {
    let disk = Fixture::new();
    let ran = dioxide([
        "chown",
        "-v",
        "5:100000",
        &disk.at("/nope"),
        &disk.at("/hello"),
    ]);
    assert_eq!(ran.status, Some(1));
    assert_eq!(
        ran.stderr,
        format!(
            "dioxide: chown: {}: No such file or directory\n",
            disk.at("/nope")
        )
    );
    assert_eq!(
        String::from_utf8(ran.stdout).unwrap(),
        format!("{}: owner is now 5:100000\n", disk.at("/hello"))
    );
    dioxide(["chown", ":7", &disk.at("/hello")]).text();
    assert!(access(&disk, "/hello").ends_with(" 5:7"));
    dioxide([
        "chown",
        "-R",
        "--reference",
        &disk.at("/hello"),
        &disk.at("/list"),
    ])
    .text();
    assert!(
        access(&disk, "/list/two").ends_with(" 5:7") && access(&disk, "/list").ends_with(" 5:7")
    );
    e2fsck_clean(disk.image());
}

#[test]
fn touch_sets_the_times_that_it_is_told() {
    let disk = Fixture::new();
    let hello = disk.at("/hello");
    let times = |path: &str| {
        dioxide(["stat", "-c", "%.9X %.9Y", &disk.at(path)])
            .text()
            .trim_end()
            .to_owned()
    };
    dioxide(["touch", "-d", "2001-02-03 04:05:06.7", &hello]).text();
    assert_eq!(times("/hello"), "981173106.700000000 981173106.700000000");
    dioxide(["touch", "-m", "-d", "@12.5", &hello]).text();
    assert_eq!(times("/hello"), "981173106.700000000 12.500000000");
    dioxide(["touch", "-a", "-t", "203801020304.05", &hello]).text();
    assert_eq!(times("/hello"), "2146014245.000000000 12.500000000");
    dioxide(["touch", "-r", &hello, &disk.at("/empty")]).text();
    assert_eq!(times("/empty"), times("/hello"));
    dioxide(["touch", &hello]).text();
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_secs();
    let seconds: u64 = times("/hello").split('.').next().unwrap().parse().unwrap();
    assert!(now.abs_diff(seconds) < 600);
    dioxide(["touch", "-c", &disk.at("/nope")]).text();
    e2fsck_clean(disk.image());
}

/// As GNU's does.
#[test]
fn touch_refuses_times_that_clocks_do_not_show() {
    let disk = Fixture::new();
    let hello = disk.at("/hello");
    let touch = |option: &str, word: &str| {
        let mut command = command();
        command.env("TZ", "EST5EDT,M3.2.0,M11.1.0");
        let ran = command.args(["touch", option, word, &hello]).output();
        ran.unwrap().status.code()
    };
    for (option, word, status) in [
        ("-d", "2026-03-08 02:30", 2),
        ("-t", "202603080230", 2),
        ("-d", "2026-11-21 23:59:60", 2),
        ("-d", "2026-03-08 03:00", 0),
        // Twice, which is once at least.
        ("-d", "2026-11-01 01:30", 0),
        ("-t", "202611211002.60", 0),
    ] {
        assert_eq!(touch(option, word), Some(status), "{option} {word}");
    }
    let told = dioxide(["stat", "-c", "%Y", &hello]);
    assert_eq!(told.text(), "1795273380\n");
}

#[test]
fn touch_of_an_append_only_file_sets_the_time_of_the_moment_and_no_other() {
    let disk = Fixture::new();
    let hello = disk.at("/hello");
    let mtime = || dioxide(["stat", "-c", "%Y", &hello]).text().to_owned();
    dioxide(["touch", "-d", "@1000", &hello]).text();
    disk.debugfs(&["set_inode_field /hello flags 0x80020"]);
    for refused in [&["-d", "@5"][..], &["-r", &hello], &["-a"], &["-m"]] {
        let ran = dioxide([&["touch"], refused, &[&*hello]].concat());
        assert_eq!(ran.status, Some(2), "{refused:?}");
        assert!(ran.stderr.contains("append-only"), "{}", ran.stderr);
    }
    assert_eq!(mtime(), "1000\n");
    for now in [&[][..], &["-a", "-m"]] {
        dioxide([&["touch"], now, &[&*hello]].concat()).text();
    }
    assert_ne!(mtime(), "1000\n");
    e2fsck_clean(disk.image());
}

#[test]
fn truncate_sets_sizes_absolutely_and_by_change() {
    let disk = Fixture::new();
    let size = || {
        dioxide(["stat", "-c", "%s", &disk.at("/large")])
            .text()
            .trim_end()
            .to_owned()
    };
    for (change, after) in [
        ("1M", "1048576"),
        ("+5", "1048581"),
        ("-1k", "1047557"),
        ("%4k", "1048576"),
        ("/1000000", "1000000"),
        ("<10", "10"),
        ("0", "0"),
        (">7", "7"),
    ] {
        dioxide(["truncate", "-s", change, &disk.at("/large")]).text();
        assert_eq!(size(), after, "{change}");
    }
    dioxide(["truncate", "-r", &disk.at("/list/two"), &disk.at("/large")]).text();
    assert_eq!(size(), "22222");
    let cut = dioxide(["cat", &disk.at("/large")]).stdout;
    assert!(cut == vec![0; 22_222]);
    e2fsck_clean(disk.image());
}

#[test]
fn symlinks_are_changed_themselves_with_h() {
    let disk = Fixture::new();
    let (link, hello) = (disk.at("/list/link"), disk.at("/hello"));
    let facts = |path: &str, format: &str| dioxide(["stat", "-c", format, path]).text().to_owned();
    let before = facts(&hello, "%u:%g %Y");
    dioxide(["chown", "-h", "41:42", &link]).text();
    dioxide(["touch", "-h", "-d", "@1000", &link]).text();
    assert_eq!(facts(&link, "%u:%g %Y"), "41:42 1000\n");
    assert_eq!(facts(&hello, "%u:%g %Y"), before);
    let other = disk.at("/list/other");
    dioxide(["ln", "-s", "one", &other]).text();
    dioxide(["touch", "-h", "-r", &link, &other]).text();
    assert_eq!(facts(&other, "%Y"), "1000\n");
    dioxide(["touch", "-r", &link, &other]).text();
    let times = [&hello, &disk.at("/list/one")].map(|path| facts(path, "%Y"));
    assert_eq!(times[0], times[1]);
    // A tree has its links, and not what they lead to.
    for owner in ["51:52", "53:54"] {
        let tree = if owner == "51:52" {
            disk.at("/list")
        } else {
            link.clone()
        };
        dioxide(["chown", "-R", owner, &tree]).text();
        assert_eq!(facts(&link, "%u:%g"), format!("{owner}\n"));
        assert_eq!(facts(&hello, "%u:%g %Y"), before);
    }
    let missing = dioxide(["touch", "-h", &disk.at("/list/new")]);
    assert_eq!(missing.status, Some(1));
    dioxide(["touch", "-hc", &disk.at("/list/new")]).text();
    e2fsck_clean(disk.image());
}

#[test]
fn truncate_and_fallocate_make_a_file_that_is_not_there() {
    let disk = Fixture::new();
    let (short, long) = (disk.at("/short"), disk.at("/long"));
    dioxide(["truncate", "-c", "-s", "5", &short]).text();
    assert_eq!(dioxide(["stat", &short]).status, Some(1));
    dioxide(["truncate", "-s", "5", "--owner", "7:8", &short]).text();
    assert_eq!(
        dioxide(["stat", "-c", "%s %u:%g", &short]).text(),
        "5 7:8\n"
    );
    for other in [
        "--punch-hole",
        "--zero-range",
        "--write-zeroes",
        "--collapse-range",
        "--insert-range",
    ] {
        assert_eq!(
            dioxide(["fallocate", other, "-l", "4k", &long]).status,
            Some(1)
        );
    }
    dioxide(["fallocate", "-l", "64k", &long]).text();
    assert_eq!(
        dioxide(["stat", "-c", "%s %b", &long]).text(),
        "65536 128\n"
    );
    dioxide(["fallocate", "-w", "-o", "4k", "-l", "64k", &long]).text();
    assert_eq!(
        dioxide(["stat", "-c", "%s %b", &long]).text(),
        "69632 136\n"
    );
    e2fsck_clean(disk.image());
}

#[test]
fn fallocate_of_each_mode_does_what_linux_does() {
    dioxide_testkit::need_root!();
    let disk = Fixture::new();
    let other = disk.as_image().copy();
    let modes = [
        "-n",
        "--punch-hole",
        "--zero-range",
        "--collapse-range",
        "--insert-range",
        "",
    ];
    let args = |mode: &'static str| {
        [mode, "-o", "8k", "-l", "64k"]
            .into_iter()
            .filter(|arg| !arg.is_empty())
    };
    let large = disk.at("/large");
    for mode in modes {
        let args: Vec<_> = ["fallocate"]
            .into_iter()
            .chain(args(mode))
            .chain([&*large])
            .collect();
        dioxide(args).text();
    }
    let mount = Mount::ext4(other.path(), "");
    let path = mount.path().join("large").display().to_string();
    for mode in modes {
        let args: Vec<_> = args(mode).chain([&*path]).collect();
        super::support::coreutils("fallocate", &args);
    }
    let theirs = fs::read(&path).unwrap();
    mount.unmount();
    assert!(dioxide(["cat", &disk.at("/large")]).stdout == theirs);
    e2fsck_clean(disk.image());
}

#[test]
fn write_of_standard_input_goes_where_it_is_told() {
    let disk = Fixture::new();
    let (hello, large) = (disk.at("/hello"), disk.at("/large"));
    let write =
        |args: &[&str], input: &[u8]| with_input([&["write"], args].concat(), input).text().len();
    assert_eq!(write(&[&hello, "--offset", "7"], b"moon!"), 0);
    assert_eq!(dioxide(["cat", &hello]).text(), "hello, moon!\n");
    write(&["--append", &hello], b"good bye\n");
    assert_eq!(dioxide(["cat", &hello]).text(), "hello, moon!\ngood bye\n");
    write(&["--truncate", &hello], b"hi\n");
    assert_eq!(dioxide(["cat", &hello]).text(), "hi\n");
    let much = pattern(7, 0, (5 << 20) + 3);
    write(&[&large, "--offset", "1k"], &much);
    let now = dioxide(["cat", &large]).stdout;
    assert!(now[1024..] == much[..] && now.len() == 1024 + much.len());
    let file = disk.beside("input");
    fs::write(&file, "from a file").unwrap();
    dioxide(["write", "-t", "-i", &file.display().to_string(), &hello]).text();
    assert_eq!(dioxide(["cat", &hello]).text(), "from a file");
    e2fsck_clean(disk.image());
}

// An image in memory promises nothing, and the kernel's other file systems promise it for few devices.
#[test]
fn write_atomic_where_nothing_is_promised_writes_nothing() {
    let disk = Fixture::new();
    let before = fs::read(disk.image()).unwrap();
    let hello = disk.at("/hello");
    let told = dioxide(["stat", "--json", &hello]);
    if told.text().contains("atomic_write") {
        return;
    }
    let ran = with_input(["write", "--atomic", &hello], &[1; 4096]);
    assert_eq!(ran.status, Some(2));
    assert!(ran.stderr.contains("atomic writes"), "{}", ran.stderr);
    let ran = with_input(["write", "--atomic", &hello], &[1; (1 << 20) + 1]);
    assert!(
        ran.stderr.contains("at most 1048576 bytes"),
        "{}",
        ran.stderr
    );
    assert!(fs::read(disk.image()).unwrap() == before);
}

#[test]
fn write_into_what_is_missing_or_a_directory_changes_nothing() {
    let disk = Fixture::new();
    let before = fs::read(disk.image()).unwrap();
    let ran = with_input(["write", &disk.at("/nope")], b"x");
    assert_eq!(ran.status, Some(1));
    let ran = with_input(["write", &disk.at("/dir")], b"x");
    assert_eq!(ran.status, Some(2));
    assert_eq!(
        ran.stderr,
        format!("dioxide: write: {}: Is a directory\n", disk.at("/dir"))
    );
    assert!(fs::read(disk.image()).unwrap() == before);
}

#[test]
fn image_in_use_by_linux_is_not_written() {
    dioxide_testkit::need_root!();
    let linux = Linux::new();
    let mount = Mount::ext4(linux.image.path(), "");
    let ran = dioxide(["chmod", "600", &linux.at("/hello")]);
    assert_eq!(ran.status, Some(2));
    assert!(ran.stderr.contains("is in use"), "{}", ran.stderr);
    assert_eq!(
        fs::metadata(mount.path().join("hello")).unwrap().mode() & 0o777,
        0o644
    );
    mount.unmount();
}

#[test]
fn interrupted_write_keeps_what_was_written_and_leaves_a_clean_image() {
    let disk = Fixture::new();
    let mut child = command()
        .args(["write", "--json", &disk.at("/empty")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    // One whole request, and then a part that never becomes one.
    input.write_all(&pattern(5, 0, 1 << 20)).unwrap();
    input.write_all(b"tail").unwrap();
    for _ in 0..200 {
        if dioxide_written(&disk) {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    let ran = child.wait_with_output().unwrap();
    assert_eq!(ran.status.code(), Some(130));
    assert_eq!(ran.stdout, b"[]\n");
    drop(input);
    assert!(dioxide(["cat", &disk.at("/empty")]).stdout == pattern(5, 0, 1 << 20));
    e2fsck_clean(disk.image());
}

/// Whether the first change of a mount is on the disk: the journal is marked in use then.
fn dioxide_written(disk: &Fixture) -> bool {
    dioxide_testkit::dumpe2fs(disk.image()).contains("needs_recovery")
}

#[test]
fn sync_recovers_an_image_that_was_not_closed() {
    let disk = Fixture::new();
    disk.debugfs(&["feature needs_recovery"]);
    assert!(dioxide_written(&disk));
    let ran = dioxide(["sync", &disk.name()]);
    assert_eq!((ran.status, ran.stdout.len()), (Some(0), 0));
    assert!(
        ran.stderr.contains("the journal was replayed"),
        "{}",
        ran.stderr
    );
    assert!(!dioxide_written(&disk));
    e2fsck_clean(disk.image());
}

#[test]
fn change_of_an_image_that_can_only_be_read_is_refused() {
    let disk = Fixture::new();
    disk.debugfs(&["feature FEATURE_R27"]);
    let before = fs::read(disk.image()).unwrap();
    let ran = dioxide(["chmod", "600", &disk.at("/hello")]);
    assert_eq!(ran.status, Some(2));
    assert!(ran.stderr.contains("read-only"), "{}", ran.stderr);
    assert!(fs::read(disk.image()).unwrap() == before);
}

#[test]
fn what_changes_files_is_told_as_json() {
    let disk = Fixture::new();
    let json = |line: &str| {
        let words = line.split(' ').map(|word| match word.strip_prefix("@") {
            Some(path) => disk.at(path),
            None => word.to_owned(),
        });
        let words: Vec<_> = words.collect();
        with_input(&words, b"some").json()
    };
    for (line, told) in [
        (
            "chmod --json 600 @/hello @/empty",
            r#"[{"action":"changed","image":"IMG","path":"/hello","permissions":384},
                {"action":"changed","image":"IMG","path":"/empty","permissions":384}]"#,
        ),
        ("chmod --json 600 @/hello", "[]"),
        (
            "chown --json 5:6 @/hello",
            r#"[{"action":"changed","image":"IMG","path":"/hello","uid":5,"gid":6}]"#,
        ),
        (
            "touch --json @/hello @/new",
            r#"[{"action":"changed","image":"IMG","path":"/hello"},
                {"action":"made","image":"IMG","path":"/new"}]"#,
        ),
        ("touch --json -c @/nope", "[]"),
        (
            "truncate --json -s +5 @/hello",
            r#"[{"action":"truncated","image":"IMG","path":"/hello","size":18}]"#,
        ),
        (
            "fallocate --json -l 1M @/new",
            r#"[{"action":"allocated","image":"IMG","path":"/new","offset":0,"length":1048576,"size":1048576}]"#,
        ),
        (
            "write --json -a @/hello",
            r#"[{"action":"written","image":"IMG","path":"/hello","offset":18,"bytes":4}]"#,
        ),
        (
            "xattr set --json user.a b @/hello",
            r#"[{"action":"set","image":"IMG","path":"/hello","name":"user.a"}]"#,
        ),
        (
            "xattr remove --json user.a @/hello",
            r#"[{"action":"removed","image":"IMG","path":"/hello","name":"user.a"}]"#,
        ),
        ("sync --json @/", r#"[{"action":"synced","image":"IMG"}]"#),
    ] {
        let told: serde_json::Value =
            serde_json::from_str(&told.replace("IMG", &disk.name())).unwrap();
        assert_eq!(json(line), told, "{line}");
    }
    let dump = format!("# file: {}\nuser.c=\"d\"\n", disk.at("/hello"));
    let told = with_input(["xattr", "restore", "--json"], dump.as_bytes()).json();
    assert_eq!(told[0]["name"], "user.c");
    // What fails is told elsewhere, and the rest is whole.
    let ran = dioxide([
        "chmod",
        "--json",
        "700",
        &disk.at("/nope"),
        &disk.at("/new"),
    ]);
    assert_eq!(ran.status, Some(1));
    let told: serde_json::Value = serde_json::from_slice(&ran.stdout).unwrap();
    assert_eq!(told[0]["path"], "/new");
    e2fsck_clean(disk.image());
}

/// Before anything is done, too.
#[test]
fn array_of_json_is_whole_whatever_ends_the_command() {
    let disk = Fixture::new();
    for line in [
        "cp --json @/hello @/nope/x",
        "cp --json @/hello @/empty @/nope",
        "mv --json @/hello @/empty @/nope",
        "ln --json @/hello @/empty @/nope",
        "write --json @/nope/x",
        "fallocate --json -l 1M @/nope/x",
        "truncate --json -r @/nope @/hello",
        "touch --json -r @/nope @/hello",
        "chmod --json --reference @/nope @/hello",
        "chown --json --reference @/nope @/hello",
        "mknod --json @/x y",
        "xattr restore --json nowhere",
    ] {
        let words = line.split(' ').map(|word| match word.strip_prefix("@") {
            Some(path) => disk.at(path),
            None => word.to_owned(),
        });
        let ran = dioxide(words);
        assert!(
            matches!(ran.status, Some(1 | 2)),
            "{line}: {:?}",
            ran.status
        );
        assert_eq!(ran.stdout, b"[]\n", "{line}: {}", ran.stderr);
    }
}

#[test]
fn path_has_one_form_in_json_whatever_tells_it() {
    let disk = Fixture::new();
    let pattern = disk.at("/odd/*");
    let path = b"/odd/\xff\x1b[1m";
    let hex: String = path.iter().map(|byte| format!("{byte:02x}")).collect();
    for words in [
        &["ls", "-d"][..],
        &["stat"],
        &["extents"],
        &["find"],
        &["du", "-a"],
        &["xattr", "list"],
        &["touch"],
        &["chmod", "611"],
        &["rm"],
    ] {
        let told = dioxide(words.iter().copied().chain(["--json", &pattern])).json();
        assert_eq!(told[0]["image"], disk.name(), "{words:?}");
        assert_eq!(told[0]["path"], *String::from_utf8_lossy(path), "{words:?}");
        assert_eq!(told[0]["path_hex"], hex, "{words:?}");
    }
    e2fsck_clean(disk.image());
}

// Directories stayed without what was to be in them, and as nobody else may use them.
#[test]
fn changes_go_on_though_they_cannot_be_told_of_which_is_told_once() {
    const DIRECTORIES: usize = 200;
    let disk = Fixture::new();
    let [big, out] = ["big", "out"].map(|name| disk.beside(name));
    // Lines for more than a buffer has room for.
    let names: Vec<_> = (0..DIRECTORIES).map(|i| format!("{i:0200}")).collect();
    for name in &names {
        fs::create_dir_all(big.join(name)).unwrap();
        fs::write(big.join(name).join("file"), "x").unwrap();
    }
    let [from, to] = [&big, &out].map(|path| path.display().to_string());
    let [copies, json, made] = ["/copies", "/json", "/made"].map(|path| disk.at(path));
    let more: Vec<_> = names
        .iter()
        .map(|name| format!("{made}/{name}/x"))
        .collect();
    let more: Vec<_> = more.iter().map(|path| &path[..]).collect();
    let count = |words: &[&str]| dioxide(words).text().lines().count();
    for words in [
        &["cp", "-rv", &from, &copies][..],
        &["cp", "-r", "--json", &from, &json],
        &["cp", "-av", &copies, &to],
        &[&["mkdir", "-pv"], &more[..]].concat(),
    ] {
        let ran = command().args(words).stdout(full_device()).output();
        let ran = Ran::from(ran.unwrap());
        let told = format!(
            "dioxide: {}: standard output: No space left on device\n",
            words[0]
        );
        assert_eq!((ran.status, ran.stderr), (Some(2), told));
    }
    for copy in [&copies, &json] {
        assert_eq!(count(&["find", copy, "-type", "f"]), DIRECTORIES);
    }
    for name in &names {
        let [source, copy] = [&big, &out].map(|tree| tree.join(name));
        assert_eq!(fs::read(copy.join("file")).unwrap(), b"x");
        let [source, copy] = [source, copy].map(|path| fs::metadata(path).unwrap().mode());
        assert_eq!(copy, source);
    }
    assert_eq!(count(&["find", &made, "-name", "x"]), DIRECTORIES);
    e2fsck_clean(disk.image());
}

#[test]
fn changes_go_on_though_nobody_reads_of_them() {
    const FILES: usize = 400;
    let disk = Fixture::new();
    let [big, out] = ["big", "out"].map(|name| disk.beside(name));
    for dir in [&big, &out] {
        fs::create_dir(dir).unwrap();
    }
    // Lines for more than a pipe and a buffer have room for.
    let name = |index: usize| format!("{index:0200}");
    let mut dump = String::new();
    for index in 0..FILES {
        fs::write(big.join(name(index)), "").unwrap();
        dump += &format!("# file: {}\nuser.a=\"b\"\n", name(index));
    }
    let dump_file = disk.beside("dump");
    fs::write(&dump_file, dump).unwrap();
    let [big, out, dump] = [&big, &out, &dump_file].map(|path| path.to_str().unwrap());
    let count = |words: &[&str]| {
        let found = dioxide(["find", &disk.at("/")].iter().chain(words));
        found.text().lines().count()
    };
    unread(["cp", "-rv", big, &disk.at("/")]);
    assert_eq!(count(&["-path", "*/big/*"]), FILES);
    unread(["chmod", "-Rv", "600", &disk.at("/big")]);
    assert_eq!(count(&["-type", "f", "-perm", "600"]), FILES);
    let into = disk.at("/big");
    unread(["xattr", "restore", "--json", "--into", &into, dump]);
    let last = disk.at(&format!("/big/{}", name(FILES - 1)));
    assert_eq!(dioxide(["xattr", "get", "user.a", &last]).text(), "b");
    dioxide(["mkdir", &disk.at("/other")]).text();
    unread(["mv", "-v", &disk.at("/big/*"), &disk.at("/other")]);
    assert_eq!(count(&["-path", "*/other/*"]), FILES);
    unread(["mv", "-v", &disk.at("/other/*"), out]);
    assert_eq!(fs::read_dir(out).unwrap().count(), FILES);
    assert_eq!(count(&["-path", "*/other/*"]), 0);
    dioxide(["cp", "-r", big, &disk.at("/other")]).text();
    unread(["rm", "-rv", &disk.at("/other")]);
    assert_eq!(count(&["-name", "other"]), 0);
    e2fsck_clean(disk.image());
}
