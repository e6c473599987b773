//! Images made by e2fsprogs, and the command run on them.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
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

/// Runs a tool and returns what it prints; a test cannot go on if it fails.
#[track_caller]
pub fn tool<S: AsRef<OsStr>>(name: &str, args: impl IntoIterator<Item = S>) -> String {
    let path = format!(
        "{}:/usr/sbin:/sbin",
        std::env::var("PATH").unwrap_or_default()
    );
    let mut command = Command::new(name);
    let output = command
        .args(args)
        .env("PATH", path)
        .env("LC_ALL", "C")
        .env("TZ", "UTC")
        .output();
    let output = output.unwrap_or_else(|error| panic!("{name}: {error}; `make test` installs it"));
    assert!(
        output.status.success(),
        "{name}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A directory with a tree of files, and an ext4 image of it.
pub struct Fixture {
    dir: TempDir,
}

/// Size of the file that needs more than one read.
pub const LARGE_BYTES: usize = (3 << 20) + 17;

impl Fixture {
    /// An image as mke2fs makes it by default, with these options on top.
    pub fn with(options: &[&str]) -> Fixture {
        let fixture = Fixture {
            dir: TempDir::new().expect("a temporary directory"),
        };
        fixture.make_tree();
        let image = fixture.image();
        let tree = fixture.tree("");
        let base = ["-q", "-F", "-t", "ext4", "-L", "dust", "-d"].map(OsStr::new);
        let args = base
            .into_iter()
            .chain([tree.as_os_str()])
            .chain(options.iter().map(OsStr::new));
        tool("mke2fs", args.chain([image.as_os_str(), OsStr::new("32M")]));
        fixture
    }

    pub fn new() -> Fixture {
        Fixture::with(&["-b", "4096"])
    }

    fn make_tree(&self) {
        fs::create_dir_all(self.tree("list")).unwrap();
        fs::create_dir_all(self.tree("dir/.hidden")).unwrap();
        fs::write(self.tree("hello"), "hello, world\n").unwrap();
        fs::write(self.tree("empty"), "").unwrap();
        fs::write(self.tree("large"), pattern(LARGE_BYTES)).unwrap();
        fs::write(self.tree("dir/a b"), "a b").unwrap();
        for (name, size) in [("one", 1), ("two", 22_222), ("three", 333)] {
            fs::write(self.tree("list").join(name), pattern(size)).unwrap();
        }
        symlink("../hello", self.tree("list/link")).unwrap();
        symlink("dir", self.tree("to-dir")).unwrap();
        self.make_sparse();
    }

    /// 40 MiB with data in two places.
    fn make_sparse(&self) {
        use std::os::unix::fs::FileExt;
        let file = fs::File::create(self.tree("sparse")).unwrap();
        file.set_len(40 << 20).unwrap();
        file.write_all_at(&pattern(8192), 4096 * 10).unwrap();
        file.write_all_at(&pattern(4096), 4096 * 5000).unwrap();
    }

    /// A path in the tree that the image was made of.
    pub fn tree(&self, path: &str) -> PathBuf {
        self.dir.path().join("tree").join(path)
    }

    pub fn image(&self) -> PathBuf {
        self.dir.path().join("disk.img")
    }

    /// A path beside the image.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// `IMG:/path`.
    pub fn at(&self, path: &str) -> String {
        at(&self.image(), path)
    }

    /// Runs one debugfs request that may write.
    pub fn debugfs(&self, request: &str) -> String {
        let image = self.image();
        tool(
            "debugfs",
            [
                OsStr::new("-w"),
                OsStr::new("-R"),
                OsStr::new(request),
                image.as_os_str(),
            ],
        )
    }
}

/// `IMG:/path` of some image.
pub fn at(image: &Path, path: &str) -> String {
    format!("{}:{path}", image.display())
}

/// Bytes that differ from place to place, and are never a whole block of zeros.
pub fn pattern(len: usize) -> Vec<u8> {
    (0..len)
        .map(|index| (index * 7 + index / 4096 + 1) as u8 | 1)
        .collect()
}
