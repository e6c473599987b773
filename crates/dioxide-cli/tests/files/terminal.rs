//! The command at a terminal: the shell's lines, and bars.

use super::support::{Fixture, at, command, dioxide};
use dioxide_testkit::{Image, e2fsck_clean};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(20);
/// A bar appears after one second.
const LONG: Duration = Duration::from_millis(1050);

/// Both ends of a pseudo terminal.
struct Terminal {
    master: File,
    slave: File,
    /// What came, and how much of it was looked at.
    seen: String,
    passed: usize,
}

impl Terminal {
    fn new() -> Terminal {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = openpt(flags).unwrap();
        unlockpt(&master).unwrap();
        let slave = ioctl_tiocgptpeer(&master, flags).unwrap();
        let size = Winsize {
            ws_row: 24,
            ws_col: 200,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&slave, size).unwrap();
        Terminal {
            master: master.into(),
            slave: slave.into(),
            seen: String::new(),
            passed: 0,
        }
    }

    fn end(&self) -> Stdio {
        self.slave.try_clone().unwrap().into()
    }

    /// Takes what there is, and waits for it that long.
    fn take(&mut self, patience: Duration) {
        let patience = Timespec::try_from(patience).unwrap();
        let mut fds = [PollFd::new(&self.master, PollFlags::IN)];
        if poll(&mut fds, Some(&patience)).unwrap() > 0 {
            let mut bytes = [0; 4096];
            let count = self.master.read(&mut bytes).unwrap();
            self.seen += &String::from_utf8_lossy(&bytes[..count]);
        }
    }

    /// Waits until this is shown, after what was waited for before.
    #[track_caller]
    fn shows(&mut self, text: &str) {
        let begun = Instant::now();
        loop {
            if let Some(found) = self.seen[self.passed..].find(text) {
                self.passed += found + text.len();
                return;
            }
            let rest = &self.seen[self.passed..];
            assert!(begun.elapsed() < PATIENCE, "no {text:?} in {rest:?}");
            self.take(Duration::from_millis(100));
        }
    }

    fn types(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).unwrap();
    }

    /// Lines are edited by the terminal itself, as before a shell.
    fn is_cooked(&self) -> bool {
        let modes = tcgetattr(&self.slave).unwrap().local_modes;
        modes.contains(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG)
    }

    /// The exit status of who writes to it.
    #[track_caller]
    fn status(&mut self, child: &mut Child) -> Option<i32> {
        let begun = Instant::now();
        while begun.elapsed() < PATIENCE {
            if let Some(status) = child.try_wait().unwrap() {
                return status.code();
            }
            self.take(Duration::from_millis(20));
        }
        child.kill().unwrap();
        panic!("it does not end: {:?}", &self.seen[self.passed..]);
    }
}

fn tell(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// A shell that has asked for its first line.
fn shell(disk: &Fixture, terminal: &mut Terminal) -> Child {
    // The test may run under `nohup`.
    let child = Command::new("env")
        .args(["--default-signal=HUP", env!("CARGO_BIN_EXE_dioxide")])
        .args(["shell", &disk.name()])
        .env("TERM", "xterm")
        .env("XDG_STATE_HOME", disk.beside("state"))
        .stdin(terminal.end())
        .stdout(terminal.end())
        .stderr(terminal.end())
        .spawn()
        .unwrap();
    terminal.shows(":/> ");
    child
}

// The editor of lines waited on, and a second signal left the image as after a crash, and no history.
#[test]
fn shell_at_a_terminal_completes_remembers_and_ends_cleanly_when_it_is_told_to() {
    let disk = Fixture::new();
    let mut last = None;
    for signal in [Signal::TERM, Signal::HUP] {
        let mut terminal = Terminal::new();
        let mut child = shell(&disk, &mut terminal);
        if let Some(last) = last {
            terminal.types("\x1b[A");
            terminal.shows(last);
            terminal.types("\r");
            terminal.shows("hello, world");
            terminal.shows(":/> ");
        }
        terminal.types("touch /made\r");
        terminal.shows(":/> ");
        assert!(dioxide_testkit::dumpe2fs(disk.image()).contains("needs_recovery"));
        terminal.types("cat he\t");
        terminal.shows("cat hello ");
        terminal.types("\r");
        terminal.shows("hello, world");
        terminal.shows(":/> ");
        last = Some("cat hello");
        // What is typed is dropped, and the shell goes on.
        terminal.types("rm hello\x03");
        terminal.shows(":/> ");
        terminal.types("rm hello");
        terminal.shows("rm hello");
        assert!(!terminal.is_cooked());
        tell(&child, signal);
        assert_eq!(terminal.status(&mut child), Some(130));
        assert!(terminal.is_cooked(), "{signal:?} leaves the terminal raw");
        e2fsck_clean(disk.image());
    }
    let history = fs::read_to_string(disk.beside("state/dioxide/history")).unwrap();
    assert!(history.contains("touch /made"), "{history}");
}

#[test]
fn shell_at_a_terminal_ends_at_its_end() {
    let disk = Fixture::new();
    for keys in ["\x04", "exit\r"] {
        let mut terminal = Terminal::new();
        let mut child = shell(&disk, &mut terminal);
        terminal.types("touch /made\r");
        terminal.shows(":/> ");
        // As Ctrl-C by another's hand.
        tell(&child, Signal::INT);
        terminal.shows(":/> ");
        terminal.types(keys);
        assert_eq!(terminal.status(&mut child), Some(0));
        assert!(terminal.is_cooked());
        e2fsck_clean(disk.image());
    }
}

/// It was asked again for what comes behind its end.
#[test]
fn write_from_a_terminal_ends_at_its_first_end() {
    let disk = Fixture::new();
    let mut terminal = Terminal::new();
    let mut child = Command::new(env!("CARGO_BIN_EXE_dioxide"))
        .args(["write", "--create", &disk.at("/typed")])
        .stdin(terminal.end())
        .spawn()
        .unwrap();
    terminal.types("typed\n");
    terminal.shows("typed");
    terminal.types("\x04");
    assert_eq!(terminal.status(&mut child), Some(0));
    assert_eq!(dioxide(["cat", &disk.at("/typed")]).text(), "typed\n");
}

/// More names than fit into pipes and buffers, with attributes.
fn names() -> (tempfile::TempDir, Image) {
    let tree = tempfile::tempdir().unwrap();
    for directory in 0..30 {
        let directory = tree.path().join(format!("{directory:0100}"));
        fs::create_dir(&directory).unwrap();
        for name in 0..60 {
            File::create(directory.join(format!("{name:0100}"))).unwrap();
        }
    }
    let image = Image::builder().source(tree.path()).build();
    (tree, image)
}

/// Runs a command whose output nobody reads for more than a second.
fn held_up(mut command: Command, stderr: Stdio) -> Child {
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(stderr)
        .spawn()
        .unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut told = vec![0];
    stdout.read_exact(&mut told).unwrap();
    std::thread::sleep(LONG);
    stdout.read_to_end(&mut told).unwrap();
    assert!(told.len() > 160_000, "{} bytes hold up nobody", told.len());
    child
}

const WALKS: [&[&str]; 5] = [
    &["find"],
    &["tree"],
    &["ls", "-R"],
    &["du", "-a"],
    &["xattr", "list", "--json", "-R"],
];
const BAR: &str = " files  ";

#[test]
fn walks_that_take_long_show_a_bar_only_at_a_terminal_and_beside_their_output() {
    let (_tree, image) = names();
    let root = at(image.path(), "/");
    let walk = |words: &[&str]| {
        let mut command = command();
        command.args(words).arg(&root).env("TERM", "xterm");
        command
    };
    std::thread::scope(|scope| {
        for words in WALKS {
            scope.spawn(move || {
                let mut terminal = Terminal::new();
                let mut child = held_up(walk(words), terminal.end());
                terminal.shows(BAR);
                assert_eq!(terminal.status(&mut child), Some(0), "{words:?}");
            });
            scope.spawn(move || {
                let child = held_up(walk(words), Stdio::piped());
                let output = child.wait_with_output().unwrap();
                assert!(output.status.success() && output.stderr.is_empty());
            });
            scope.spawn(move || {
                let mut terminal = Terminal::new();
                let mut both = walk(words);
                both.stdout(terminal.end()).stderr(terminal.end());
                let mut child = both.spawn().unwrap();
                terminal.take(PATIENCE);
                std::thread::sleep(LONG);
                assert_eq!(terminal.status(&mut child), Some(0), "{words:?}");
                assert!(!terminal.seen.contains(BAR), "{words:?}");
            });
        }
    });
    e2fsck_clean(image.path());
}

#[test]
fn unpacking_for_long_shows_a_bar_only_at_a_terminal() {
    let disk = Fixture::new();
    for at_terminal in [true, false] {
        let mut unpack = command();
        unpack.args(["unpack", &disk.name(), "-"]);
        unpack.env("TERM", "xterm");
        let mut terminal = Terminal::new();
        let stderr = match at_terminal {
            true => terminal.end(),
            false => Stdio::piped(),
        };
        let mut child = held_up(unpack, stderr);
        if at_terminal {
            terminal.shows("B/s  ");
        }
        assert_eq!(terminal.status(&mut child), Some(0));
        let told = child.wait_with_output().unwrap().stderr;
        assert!(told.is_empty(), "{}", String::from_utf8_lossy(&told));
    }
}

#[test]
fn restoring_attributes_for_long_shows_a_bar_only_at_a_terminal() {
    let disk = Fixture::new();
    for at_terminal in [true, false] {
        let mut terminal = Terminal::new();
        let mut child = command()
            .args(["xattr", "restore", "--into", &disk.at("/")])
            .env("TERM", "xterm")
            .stdin(Stdio::piped())
            .stderr(match at_terminal {
                true => terminal.end(),
                false => Stdio::piped(),
            })
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        input.write_all(b"# file: hello\nuser.a=\"1\"\n").unwrap();
        let begun = |_| {
            std::thread::sleep(Duration::from_millis(20));
            dioxide_testkit::dumpe2fs(disk.image()).contains("needs_recovery")
        };
        assert!((0..500).any(begun), "it changes nothing");
        std::thread::sleep(LONG);
        input.write_all(b"# file: empty\nuser.a=\"1\"\n").unwrap();
        if at_terminal {
            terminal.shows(BAR);
        }
        drop(input);
        assert_eq!(terminal.status(&mut child), Some(0));
        let told = child.wait_with_output().unwrap().stderr;
        assert!(told.is_empty(), "{}", String::from_utf8_lossy(&told));
        e2fsck_clean(disk.image());
    }
}

/// What is shown until it says no more.
fn all_seen(mut terminal: Terminal) -> String {
    let mut seen = usize::MAX;
    while seen != terminal.seen.len() {
        seen = terminal.seen.len();
        terminal.take(Duration::ZERO);
    }
    terminal.seen
}

/// Runs a command in slow motion until that is enough: three stops are longer than a bar waits, and in a
/// quarter of what ran before there are that many.
fn slowed(words: &[&str], stderr: Stdio, mut enough: impl FnMut(usize) -> bool) -> Child {
    let mut child = command()
        .args(words)
        .env("TERM", "xterm")
        .stdout(Stdio::null())
        .stderr(stderr)
        .spawn()
        .unwrap();
    let mut ran = Duration::ZERO;
    for stops in 0.. {
        let run = Duration::from_millis(2).max(ran / 16);
        std::thread::sleep(run);
        ran += run;
        if enough(stops) || child.try_wait().unwrap().is_some() {
            break;
        }
        tell(&child, Signal::STOP);
        std::thread::sleep(LONG / 3);
        tell(&child, Signal::CONT);
    }
    child
}

#[test]
fn work_that_takes_long_shows_a_bar_only_at_a_terminal() {
    let dir = tempfile::tempdir().unwrap();
    let name = |name: &str| dir.path().join(name).display().to_string();
    let tree = name("tree");
    fs::create_dir(&tree).unwrap();
    for number in 0..16 {
        let content = dioxide_testkit::pattern(number, 0, 4 << 20);
        fs::write(format!("{tree}/{number}"), content).unwrap();
    }
    let [made, checked, resized, packed] = ["made", "checked", "resized", "packed"].map(name);
    let [grown, shrunk] = ["grown", "shrunk"].map(name);
    let new = |image: &str, kind: &str, size: &str| {
        let words = ["mkfs", "-q", "-F", "-b", "1024", "-t", kind, image, size];
        assert!(command().args(words).status().unwrap().success());
    };
    new(&checked, "ext4", "64G");
    let cases: [(&[&str], &str, &str); 6] = [
        (
            &["mkfs", "-F", "-b", "1024", &made, "64G"],
            "block groups",
            "-q",
        ),
        (&["check", "--backend", "pread", &checked], "Pass ", ""),
        (&["resize", &resized, "65G"], "checking", ""),
        // What is long of these was silent: with ext3 there are tables to be written.
        (&["resize", &grown, "8G"], "writing", ""),
        (&["resize", "-M", &shrunk], "surveying", ""),
        (&["pack", &tree, &packed], "B/s  ", "-q"),
    ];
    std::thread::scope(|scope| {
        for (words, bar, quiet) in cases {
            let (new, grown) = (&new, &grown);
            scope.spawn(move || {
                let run = |words: &[&str], stderr, enough: &mut dyn FnMut(usize) -> bool| {
                    match words {
                        ["resize", image, _] if image == grown => new(image, "ext3", "64M"),
                        ["resize", "-M", image] | ["resize", image, _] => {
                            new(image, "ext4", "64G");
                        }
                        _ => {}
                    }
                    slowed(words, stderr, enough)
                };
                let mut terminal = Terminal::new();
                let mut stops = 0;
                let mut child = run(words, terminal.end(), &mut |count| {
                    stops = count;
                    terminal.take(Duration::ZERO);
                    terminal.seen.contains(bar)
                });
                assert_eq!(terminal.status(&mut child), Some(0), "{words:?}");
                assert!(all_seen(terminal).contains(bar), "{words:?} shows no bar");

                let as_slow = &mut |count| count == stops;
                let output = run(words, Stdio::piped(), as_slow).wait_with_output();
                let output = output.unwrap();
                assert!(
                    output.status.success() && output.stderr.is_empty(),
                    "{words:?}"
                );
                if !quiet.is_empty() {
                    let words = [&words[..1], &[quiet], &words[1..]].concat();
                    let mut terminal = Terminal::new();
                    let mut child = run(&words, terminal.end(), as_slow);
                    assert_eq!(terminal.status(&mut child), Some(0), "{words:?}");
                    assert_eq!(all_seen(terminal), "", "{words:?}");
                }
            });
        }
    });
    for image in [resized, grown, shrunk, packed] {
        e2fsck_clean(Path::new(&image));
    }
}

#[test]
fn copying_for_long_shows_a_bar_only_at_a_terminal_and_not_beside_its_lines() {
    let disk = Fixture::new();
    let pipe = disk.beside("pipe");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    for (at_terminal, flag) in [(true, "-f"), (false, "-f"), (true, "--json"), (true, "-v")] {
        let mut terminal = Terminal::new();
        let mut child = command()
            .args(["cp", flag])
            .args([pipe.as_os_str(), disk.at("/copy").as_ref()])
            .env("TERM", "xterm")
            .stdout(Stdio::null())
            .stderr(match at_terminal {
                true => terminal.end(),
                false => Stdio::piped(),
            })
            .spawn()
            .unwrap();
        let mut input = File::options().write(true).open(&pipe).unwrap();
        // More than the pipe holds: so much later it is read.
        input.write_all(&[1; 1 << 20]).unwrap();
        std::thread::sleep(LONG);
        input.write_all(&[2; 2 << 20]).unwrap();
        drop(input);
        assert_eq!(terminal.status(&mut child), Some(0), "{flag}");
        let told = child.wait_with_output().unwrap().stderr;
        assert!(told.is_empty(), "{}", String::from_utf8_lossy(&told));
        let shown = all_seen(terminal).contains("B/s  ");
        assert_eq!(shown, at_terminal && flag == "-f", "{flag}");
    }
    e2fsck_clean(disk.image());
}
