//! What commands do with the files of an image that Linux filled, compared with what GNU's programs do with
//! the same image mounted.

mod change;
mod copy;
mod copy_in;
mod look;
mod names;
mod shell;
#[path = "../support/mod.rs"]
mod support;
mod terminal;
mod twins;
mod xattrs;

use dioxide_testkit::{Image, Mount};
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;
use support::{Ran, at, closed_pipe, command, dioxide};
use tempfile::TempDir;

/// An image with a file of each kind, and a copy of it that Linux has mounted.
struct Linux {
    dir: TempDir,
    image: Image,
    mount: Mount,
    // Unmounted before it is deleted.
    _copy: Image,
}

impl Linux {
    /// Needs root.
    fn new() -> Linux {
        let image = Image::builder().block_size(1024).build();
        image.populate_with_kernel(populate);
        let copy = image.copy();
        Linux {
            dir: TempDir::new().unwrap(),
            mount: Mount::ext4(copy.path(), "ro"),
            _copy: copy,
            image,
        }
    }

    /// `IMG:/path`.
    fn at(&self, path: &str) -> String {
        at(self.image.path(), path)
    }

    /// The same file as Linux has it.
    fn mounted(&self, path: &str) -> String {
        format!("{}{path}", self.mount.path().display())
    }

    /// A path outside of any image.
    fn host(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    /// Our output, with paths as they are inside the image.
    #[track_caller]
    fn ours(&self, args: &[&str]) -> String {
        let image = format!("{}:", self.image.path().display());
        dioxide(args).text().replace(&image, "")
    }

    /// The output of a program of GNU's, paths alike.
    #[track_caller]
    fn theirs(&self, program: &str, args: &[&str]) -> String {
        let mounted = self.mount.path().display().to_string();
        let output = support::coreutils(program, args);
        output
            .replace(&format!("{mounted}/"), "/")
            .replace(&mounted, "/")
    }
}

/// Files of each kind, with what makes them hard to copy.
fn populate(root: &Path) {
    let at = |path: &str| root.join(path);
    for directory in ["dir/.hidden", "deep/er/est", "log", "odd name"] {
        fs::create_dir_all(at(directory)).unwrap();
    }
    fs::write(at("hello"), "hello, world\n").unwrap();
    fs::write(at("empty"), "").unwrap();
    fs::write(at("large"), dioxide_testkit::pattern(1, 0, (3 << 20) + 17)).unwrap();
    fs::write(at("odd name/it's"), "odd\n").unwrap();
    for (name, bytes) in [("a.gz", 1), ("b.gz", 22_222), ("c.gz", 333), ("[a].gz", 5)] {
        fs::write(at("log").join(name), vec![b'x'; bytes]).unwrap();
    }
    fs::hard_link(at("hello"), at("dir/hard")).unwrap();
    symlink("../hello", at("dir/link")).unwrap();
    symlink("nowhere", at("dangling")).unwrap();
    symlink("dir", at("to-dir")).unwrap();
    let data = [4096 * 10..4096 * 12, 4096 * 5000..4096 * 5001];
    dioxide_testkit::shape::sparse(&at("sparse"), 40 << 20, &data, 3);
    for (name, kind, numbers) in [
        ("null", "c", Some(["1", "3"])),
        ("disk", "b", Some(["7", "200"])),
        ("pipe", "p", None),
    ] {
        let path = at(name).display().to_string();
        let numbers = numbers.iter().flatten().copied();
        let args: Vec<_> = [&*path, kind].into_iter().chain(numbers).collect();
        support::coreutils("mknod", &args);
    }
    drop(std::os::unix::net::UnixListener::bind(at("socket")).unwrap());
    fs::set_permissions(at("large"), fs::Permissions::from_mode(0o4755)).unwrap();
    fs::set_permissions(at("deep/er"), fs::Permissions::from_mode(0o1770)).unwrap();
    chown(at("log/c.gz"), Some(54_321), Some(1001)).unwrap();
    rustix::fs::setxattr(
        at("hello"),
        "user.comment",
        b"dust",
        rustix::fs::XattrFlags::empty(),
    )
    .unwrap();
    rustix::fs::setxattr(
        at("log"),
        "user.bytes",
        b"\0\xff",
        rustix::fs::XattrFlags::empty(),
    )
    .unwrap();
    // For longer than two minutes, and while tests run for less than three.
    let aged = at("log/a.gz").display().to_string();
    support::coreutils("touch", &["-d", "130 seconds ago", &aged]);
    support::coreutils(
        "touch",
        &[
            "-d",
            "2020-01-01 01:02:03.5",
            &at("log/b.gz").display().to_string(),
        ],
    );
}

/// Runs the command, with this on its standard input.
fn with_input<S: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = S>, input: &[u8]) -> Ran {
    use std::io::Write;
    use std::process::Stdio;
    let mut child = command()
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Whoever does not read it says so by its exit status.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap().into()
}

/// Runs the command, whose output nobody reads; it has nothing to complain about.
#[track_caller]
fn unread<S: AsRef<std::ffi::OsStr>>(args: impl IntoIterator<Item = S>) {
    let output = command().args(args).stdout(closed_pipe()).output().unwrap();
    let ran = Ran::from(output);
    assert_eq!((ran.status, ran.stderr.as_str()), (Some(0), ""));
}
