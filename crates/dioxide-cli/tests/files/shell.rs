//! `dioxide shell` by scripts.

use super::support::{Fixture, Ran, closed_pipe, command, dioxide};
use super::{unread, with_input};
use dioxide_testkit::e2fsck_clean;
use std::fs;
use std::io::Write;
use std::process::Stdio;
use std::time::Duration;

#[test]
fn shell_runs_a_script_with_paths_from_its_directory() {
    let disk = Fixture::new();
    let script = disk.beside("script");
    let out = disk.beside("copy").display().to_string();
    let lines = [
        "# what is there",
        "pwd",
        "cd list",
        "pwd",
        "ls t*",
        "",
        "cat one ../hello # not the rest",
        "ls '/dir/a b' /dir/a\\ b",
        "stat -c '%n %s' two",
        "cd ../dir/.hidden/..",
        "pwd",
        "cd -",
        "cd -",
        "find . -type f",
        "chmod 640 /hello",
        &format!("cp -a /hello host:{out}"),
        "df",
    ];
    fs::write(&script, lines.join("\n")).unwrap();
    let ran = dioxide(["shell", &disk.name(), &script.display().to_string()]);
    let one = dioxide(["cat", &disk.at("/list/one")]).text().to_owned();
    let expected = format!(
        "/\n/list\nthree\ntwo\n{one}hello, world\n/dir/a b\n/dir/a b\ntwo 22222\n/dir\n/list\n/dir\n./a b\n"
    );
    let df = dioxide(["df", &disk.name()]);
    assert_eq!(ran.text(), expected + df.text());
    assert_eq!(fs::read(&out).unwrap(), b"hello, world\n");
    assert_eq!(
        dioxide(["stat", "-c", "%a", &disk.at("/hello")]).text(),
        "640\n"
    );
    e2fsck_clean(disk.image());
}

#[test]
fn shell_ends_at_the_first_command_that_fails_unless_told_to_go_on() {
    let disk = Fixture::new();
    let script = b"cat /nope\ncat /hello\n";
    let ran = with_input(["shell", &disk.name()], script);
    assert_eq!((ran.status, ran.stdout.len()), (Some(1), 0));
    assert_eq!(
        ran.stderr,
        "dioxide: cat: /nope: No such file or directory\n"
    );
    let ran = with_input(["shell", "-k", &disk.name()], script);
    assert_eq!(
        (ran.status, &ran.stdout[..]),
        (Some(1), &b"hello, world\n"[..])
    );
    let ran = dioxide([
        "shell",
        "-c",
        "cat /hello",
        "-c",
        "exit",
        "-c",
        "cat /hello",
        &disk.name(),
    ]);
    assert_eq!(ran.text(), "hello, world\n");
}

#[test]
fn shell_exits_with_the_status_that_exit_names() {
    let disk = Fixture::new();
    for (script, status) in [
        ("exit 3\ncat /nope", 3),
        ("cat /nope\nexit 0", 0),
        ("cat /nope\nquit", 1),
        ("exit 255", 255),
    ] {
        let ran = with_input(["shell", "-k", &disk.name()], script.as_bytes());
        assert_eq!(ran.status, Some(status), "{script}");
    }
}

#[test]
fn shell_tells_what_it_does_not_understand_and_exits_2() {
    let disk = Fixture::new();
    for (line, told) in [
        ("frobnicate", "unrecognized subcommand"),
        ("ls --frob", "--frob"),
        ("bench", "not for a shell"),
        ("info", "not for a shell"),
        ("rm -rf /dir && ls /list", "one command a line"),
        ("touch /new > /list", "one command a line"),
        ("cat 'x", "a quote is not ended"),
        ("cd /hello", "Not a directory"),
        ("cd /list /dir", "too many words"),
        ("cd -", "no directory before"),
        ("exit 256", "'256' is no exit status"),
        ("exit 1 2", "too many words"),
        ("ls host:/tmp", "on the host"),
    ] {
        let ran = dioxide(["shell", "-c", line, &disk.name()]);
        assert_eq!(ran.status, Some(2), "{line}");
        assert!(ran.stderr.contains(told), "{line}: {}", ran.stderr);
    }
    assert_eq!(dioxide(["stat", &disk.at("/dir")]).status, Some(0));
    assert_eq!(dioxide(["stat", &disk.at("/new")]).status, Some(1));
    assert!(
        dioxide(["shell", "-c", "help", &disk.name()])
            .text()
            .contains("  lcd ")
    );
    assert!(
        dioxide(["shell", "-c", "ls --help", &disk.name()])
            .text()
            .contains("Usage: ")
    );
}

// It was the current directory, with all that is in it.
#[test]
fn shell_takes_an_empty_word_for_no_file() {
    let disk = Fixture::new();
    let before = dioxide(["find", &disk.at("/"), "-ls"]).text().to_owned();
    let host = format!("cp 'host:{}' ''", disk.tree("hello").display());
    let in_dir = |line: &str| dioxide(["shell", "-c", "cd /dir", "-c", line, &disk.name()]);
    for line in [
        "rm -r ''",
        "find '' -delete",
        "chmod 700 ''",
        "mv '' /list",
        "ls ''",
        "touch ''",
        "cd ''",
        &host,
    ] {
        let ran = in_dir(line);
        assert_eq!(ran.status, Some(1), "{line}: {}", ran.stderr);
        let told = ": '': No such file or directory\n";
        assert!(ran.stderr.ends_with(told), "{line}: {}", ran.stderr);
    }
    in_dir("rm -rf ''").text();
    assert_eq!(dioxide(["find", &disk.at("/"), "-ls"]).text(), before);
}

#[test]
fn shell_that_may_only_read_refuses_changes_and_leaves_every_byte() {
    let disk = Fixture::new();
    let before = fs::read(disk.image()).unwrap();
    let ran = dioxide(["shell", "-r", "-c", "chmod 600 /hello", &disk.name()]);
    assert_eq!(ran.status, Some(2));
    assert!(ran.stderr.contains("read-only"), "{}", ran.stderr);
    // Looking changes nothing either, though it might.
    dioxide([
        "shell",
        "-c",
        "find /",
        "-c",
        "cp -a / host:/dev/shm/none-such/x",
        "-k",
        &disk.name(),
    ]);
    assert!(fs::read(disk.image()).unwrap() == before);
}

#[test]
fn shell_changes_directories_on_the_host() {
    let disk = Fixture::new();
    let dir = disk.beside("there");
    fs::create_dir(&dir).unwrap();
    let lcd = format!("lcd '{}'", dir.display());
    dioxide(["shell", "-c", &lcd, "-c", "cp /hello host:.", &disk.name()]).text();
    assert!(dir.join("hello").exists());
    // An image that is named from where the shell began.
    let name = disk.image().file_name().unwrap().to_str().unwrap();
    let ran = command()
        .args(["shell", "-c", &lcd, "-c", "cat /hello", name])
        .current_dir(disk.image().parent().unwrap())
        .output();
    let ran = Ran::from(ran.unwrap());
    assert_eq!(ran.text(), "hello, world\n");
    let output = command()
        .args(["shell", "-c", "lcd /no/such", &disk.name()])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
}

// It was opened for writing, which marks it and keeps others out.
#[test]
fn shell_only_looks_at_another_image_for_df() {
    let disk = Fixture::new();
    let other = disk.beside("other.img");
    fs::copy(disk.image(), &other).unwrap();
    let holder = dioxide::Fs::open(&other, &dioxide::MountOptions::new().read_only(true)).unwrap();
    let line = format!("df 'host:{}' '' /", other.display());
    let ran = dioxide(["shell", "-c", &line, &disk.name()]);
    let told = "dioxide: df: '': No such file or directory\n";
    assert_eq!((ran.status, &*ran.stderr), (Some(1), told));
    assert_eq!(ran.stdout.split(|&byte| byte == b'\n').count(), 4);
    drop(holder);
}

#[test]
fn shell_write_takes_a_file_of_the_host_and_leaves_the_script_alone() {
    let disk = Fixture::new();
    fs::write(disk.beside("file"), "from outside").unwrap();
    let here = disk.beside("").display().to_string();
    let lines = format!("lcd '{here}'\nwrite -c --input host:file new\nwrite hello\ncat new\n");
    let ran = with_input(["shell", "-k", &disk.name()], lines.as_bytes());
    assert_eq!(
        (ran.status, ran.stdout.as_slice()),
        (Some(2), &b"from outside"[..])
    );
    assert!(
        ran.stderr.contains("write: standard input is the script"),
        "{}",
        ran.stderr
    );
    assert_eq!(
        dioxide(["cat", &disk.at("/hello")]).text(),
        "hello, world\n"
    );
}

#[test]
fn shell_makes_copies_moves_and_removes_with_paths_from_its_directory() {
    let disk = Fixture::new();
    fs::write(disk.beside("file"), "from outside").unwrap();
    let here = disk.beside("").display().to_string();
    let lines = [
        &format!("lcd '{here}'"),
        "mkdir -p new/deep",
        "cd new",
        "cp host:file .",
        "cp -a ../list deep",
        "mv deep/list/one ../hello .",
        "ln -s ../large large",
        "ln one two",
        "touch 'a b'",
        "rm deep/list/t*",
        "rmdir /dir/.hidden",
        "mknod pipe p",
        "xattr set user.a x file",
        "mv file host:moved",
        "sync",
        "ls",
        "cat one two hello",
    ];
    let one = dioxide(["cat", &disk.at("/list/one")]).text().to_owned();
    let ran = with_input(["shell", &disk.name()], lines.join("\n").as_bytes());
    let listed = format!("a b\ndeep\nhello\nlarge\none\npipe\ntwo\n{one}{one}hello, world\n");
    assert_eq!(ran.text(), listed);
    assert_eq!(fs::read(disk.beside("moved")).unwrap(), b"from outside");
    let told = dioxide(["ls", "-A", &disk.at("/new/deep/list"), &disk.at("/dir")]);
    assert!(told.text().contains("link") && !told.text().contains("hidden"));
    e2fsck_clean(disk.image());
    let ran = dioxide(["shell", "-r", "-c", "rm /empty", &disk.name()]);
    assert_eq!(ran.status, Some(2));
    assert!(ran.stderr.contains("read-only"), "{}", ran.stderr);
}

// A signal was only noticed when the next command came, which may be never.
#[test]
fn shell_that_waits_for_a_command_ends_when_it_is_told_to() {
    for words in [&["shell"][..], &["xattr", "restore", "--into"]] {
        let disk = Fixture::new();
        let operand = match words {
            ["shell"] => disk.name(),
            _ => disk.at("/"),
        };
        let mut child = command()
            .args(words)
            .arg(operand)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        let line: &[u8] = match words {
            ["shell"] => b"touch /made\n",
            _ => b"# file: hello\nuser.made=\"1\"\n",
        };
        input.write_all(line).unwrap();
        let begun = |_| {
            std::thread::sleep(Duration::from_millis(20));
            dioxide_testkit::dumpe2fs(disk.image()).contains("needs_recovery")
        };
        assert!((0..500).any(begun), "{words:?} changes nothing");
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let ended = (0..500).any(|_| {
            std::thread::sleep(Duration::from_millis(20));
            child.try_wait().unwrap().is_some()
        });
        drop(input);
        assert!(ended, "{words:?} waits");
        assert_eq!(child.wait().unwrap().code(), Some(130));
        e2fsck_clean(disk.image());
    }
}

#[test]
fn shell_goes_on_though_nobody_reads_what_it_prints() {
    let disk = Fixture::new();
    let gone = |path: &str| dioxide(["stat", &disk.at(path)]).status == Some(1);
    unread(["shell", "-c", "ls /", "-c", "rm /hello", &disk.name()]);
    assert!(gone("/hello"));
    unread([
        "shell",
        "-c",
        "ls /",
        "-c",
        "exit",
        "-c",
        "rm /large",
        &disk.name(),
    ]);
    assert!(!gone("/large"));
    // What fails counts, and ends a script as ever.
    let lines = ["-c", "rm -v /empty /nope", "-c", "rm /large"];
    let ran = command()
        .arg("shell")
        .args(lines)
        .arg(disk.name())
        .stdout(closed_pipe())
        .output()
        .unwrap();
    assert_eq!(ran.status.code(), Some(1));
    assert!(gone("/empty") && !gone("/large"));
    e2fsck_clean(disk.image());
}

#[test]
fn shell_restore_takes_a_file_of_the_host_and_leaves_the_script_alone() {
    let disk = Fixture::new();
    fs::write(disk.beside("dump"), "# file: hello\nuser.a=\"b\"\n").unwrap();
    let here = disk.beside("").display().to_string();
    let lines = format!(
        "lcd '{here}'\nxattr restore --into /\nxattr restore --into / host:dump\nxattr get user.a /hello\n"
    );
    let ran = with_input(["shell", "-k", &disk.name()], lines.as_bytes());
    assert_eq!((ran.status, ran.stdout.as_slice()), (Some(2), &b"b"[..]));
    assert!(
        ran.stderr.contains("xattr: standard input is the script"),
        "{}",
        ran.stderr
    );
}
