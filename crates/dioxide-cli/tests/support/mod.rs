//! An image of a small tree, and the command run on it.
// Not every test binary needs all of it.
#![allow(dead_code)]

use dioxide_testkit::{Image, ImageBuilder, pattern};
use rustix::process::{Pid, Signal};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// Runs `dioxide` with these arguments.
pub fn dioxide<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Ran {
    let output = command().args(args).output().expect("the command runs");
    Ran::from(output)
}

/// The command, in a fixed time zone.
pub fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dioxide"));
    command.env("TZ", "UTC").env("LC_ALL", "C");
    command
}

/// Waits until SIGTERM does not end a command by itself any more, and sends it.
pub fn tell_to_end(child: &mut Child) {
    let pid = Pid::from_child(child);
    let status = format!("/proc/{}/status", child.id());
    let is_caught = || {
        let status = fs::read_to_string(&status).expect("a child");
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        let caught = u64::from_str_radix(caught.unwrap_or("0").trim(), 16).expect("a mask");
        caught >> (Signal::TERM.as_raw() - 1) & 1 != 0
    };
    while !is_caught() {
        assert!(child.try_wait().unwrap().is_none(), "it does not watch");
        std::thread::sleep(Duration::from_millis(1));
    }
    rustix::process::kill_process(pid, Signal::TERM).expect("it runs");
    // One that came while the handler was being set is lost; one soon after another is no second asking.
    std::thread::sleep(Duration::from_millis(50));
    rustix::process::kill_process(pid, Signal::TERM).expect("nobody has waited for it");
}

/// The exit status of a command that ends soon.
#[track_caller]
pub fn ends_soon(child: &mut Child) -> Option<i32> {
    for _ in 0..1000 {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    child.kill().unwrap();
    panic!("it does not end");
}

/// Standard output whose reader has gone.
pub fn closed_pipe() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

/// Standard output that has no room.
pub fn full_device() -> Stdio {
    fs::File::create("/dev/full").unwrap().into()
}

/// What a run left behind.
pub struct Ran {
    pub status: Option<i32>,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Ran {
        Ran {
            status: output.status.code(),
            stdout: output.stdout,
            stderr: String::from_utf8(output.stderr).expect("errors are UTF-8"),
        }
    }
}

impl Ran {
    /// Standard output of a run that had nothing to complain about.
    #[track_caller]
    pub fn text(&self) -> &str {
        assert_eq!((self.status, self.stderr.as_str()), (Some(0), ""));
        std::str::from_utf8(&self.stdout).expect("the output is UTF-8")
    }

    /// The same as JSON.
    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(self.text()).expect("the output is JSON")
    }
}

/// What a program of coreutils prints.
#[track_caller]
pub fn coreutils(program: &str, args: &[&str]) -> String {
    let mut command = Command::new(program);
    let output = command
        .args(args)
        .env("LC_ALL", "C")
        .env("TZ", "UTC")
        .output();
    let output = output.expect("coreutils are installed");
    let told = [&output.stdout[..], &output.stderr].concat();
    let told = String::from_utf8_lossy(&told);
    assert!(
        output.status.success(),
        "{program}: {}: {told}",
        output.status
    );
    String::from_utf8(output.stdout).expect("the output is UTF-8")
}

/// A directory with a tree of files, and an ext4 image of it.
pub struct Fixture {
    dir: TempDir,
    image: Image,
}

/// Size of the file that needs more than one read.
pub const LARGE_BYTES: usize = (3 << 20) + 17;
/// Its pattern.
pub const LARGE_SEED: u64 = 1;

impl Fixture {
    /// An image with blocks of 4 KiB.
    pub fn new() -> Fixture {
        Fixture::with(Image::builder())
    }

    /// An image of another kind.
    pub fn with(builder: ImageBuilder) -> Fixture {
        let dir = TempDir::new().expect("a temporary directory");
        let tree = dir.path().join("tree");
        make_tree(&tree);
        let image = builder.args(&["-L", "dust"]).source(&tree).build();
        Fixture { dir, image }
    }

    /// A path in the tree that the image was made of.
    pub fn tree(&self, path: &str) -> PathBuf {
        self.dir.path().join("tree").join(path)
    }

    /// The image, for shapes.
    pub fn as_image(&self) -> &Image {
        &self.image
    }

    pub fn image(&self) -> &Path {
        self.image.path()
    }

    /// The image's name as an argument.
    pub fn name(&self) -> String {
        self.image().display().to_string()
    }

    /// A path in the temporary directory.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// `IMG:/path`.
    pub fn at(&self, path: &str) -> String {
        at(self.image(), path)
    }

    /// Runs debugfs requests that write.
    pub fn debugfs(&self, requests: &[&str]) {
        dioxide_testkit::debugfs(self.image(), requests);
    }
}

fn make_tree(tree: &Path) {
    fs::create_dir_all(tree.join("list")).unwrap();
    fs::create_dir_all(tree.join("dir/.hidden")).unwrap();
    fs::write(tree.join("hello"), "hello, world\n").unwrap();
    fs::write(tree.join("empty"), "").unwrap();
    fs::write(tree.join("large"), pattern(LARGE_SEED, 0, LARGE_BYTES)).unwrap();
    fs::write(tree.join("dir/a b"), "a b").unwrap();
    for (name, size) in [("one", 1), ("two", 22_222), ("three", 333)] {
        fs::write(tree.join("list").join(name), pattern(2, 0, size)).unwrap();
    }
    symlink("../hello", tree.join("list/link")).unwrap();
    symlink("dir", tree.join("to-dir")).unwrap();
    // Not UTF-8, and with an escape sequence.
    fs::create_dir(tree.join("odd")).unwrap();
    fs::write(tree.join("odd").join(OsStr::from_bytes(b"\xff\x1b[1m")), "").unwrap();
    // 40 MiB with data in two places.
    let written = [4096 * 10..4096 * 12, 4096 * 5000..4096 * 5001];
    dioxide_testkit::shape::sparse(&tree.join("sparse"), 40 << 20, &written, 3);
}

/// `IMG:/path` of some image.
pub fn at(image: &Path, path: &str) -> String {
    format!("{}:{path}", image.display())
}
