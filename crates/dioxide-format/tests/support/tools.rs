//! Running e2fsprogs on sparse temporary files.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::process::Command;
use tempfile::{NamedTempFile, TempDir};

/// Runs a program that must exit with one of `codes`; its standard output.
pub fn run(program: &str, args: &[&str], codes: &[i32]) -> String {
    let output = Command::new(program)
        .args(args)
        .env("E2FSPROGS_SKIP_PROGRESS", "1")
        .output()
        .unwrap_or_else(|e| panic!("{program} (package e2fsprogs) does not start: {e}"));
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output
            .status
            .code()
            .is_some_and(|code| codes.contains(&code)),
        "{program} {args:?}: {}\n{stdout}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    stdout
}

/// An image in a sparse temporary file, deleted with this value.
pub struct Image {
    file: NamedTempFile,
}

impl Image {
    /// What `mke2fs` makes of an empty file of `size` (`64M`) with `args`.
    pub fn make(size: &str, args: &[&str]) -> Self {
        let image = Self {
            file: NamedTempFile::new().expect("temporary file"),
        };
        let mut all = vec!["-q", "-F"];
        all.extend(args);
        all.extend([image.path(), size]);
        run("mke2fs", &all, &[0]);
        image
    }

    /// Path of the image.
    pub fn path(&self) -> &str {
        self.file
            .path()
            .to_str()
            .expect("temporary paths are UTF-8")
    }

    /// Bytes of the image.
    pub fn size(&self) -> u64 {
        self.file.as_file().metadata().expect("metadata").len()
    }

    /// `len` bytes from byte `at` on.
    pub fn read(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.file
            .as_file()
            .read_exact_at(&mut bytes, at)
            .expect("read of the image");
        bytes
    }

    /// Writes bytes at byte `at`.
    pub fn write(&self, at: u64, bytes: &[u8]) {
        self.file
            .as_file()
            .write_all_at(bytes, at)
            .expect("write to the image");
    }

    /// Runs commands of `debugfs` that change the image.
    pub fn debugfs(&self, commands: &str) -> String {
        let script = NamedTempFile::new().expect("temporary file");
        fs::write(script.path(), commands).expect("write of the script");
        let script = script.into_temp_path();
        let script = script.to_str().expect("temporary paths are UTF-8");
        run("debugfs", &["-w", "-f", script, self.path()], &[0])
    }

    /// Optimises directories, which gives them hash indexes.
    pub fn index_directories(&self) {
        run("e2fsck", &["-f", "-y", "-D", self.path()], &[0, 1]);
    }

    /// Fails unless `e2fsck -fn` finds nothing.
    pub fn assert_clean(&self) {
        run("e2fsck", &["-f", "-n", self.path()], &[0]);
    }
}

/// An image mounted by the kernel through a loop device (needs root), unmounted with this value.
pub struct Mount {
    dir: TempDir,
}

impl Mount {
    /// Mounts an image.
    pub fn new(image: &Image) -> Self {
        let dir = TempDir::new().expect("temporary directory");
        let mount = Self { dir };
        run("mount", &["-o", "loop", image.path(), mount.path()], &[0]);
        mount
    }

    /// Path of the root directory.
    pub fn path(&self) -> &str {
        self.dir.path().to_str().expect("temporary paths are UTF-8")
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Also runs while a failed test unwinds, when nothing may be mounted: no panic here.
        let _ = Command::new("umount").arg(self.path()).output();
    }
}

/// A directory of files that exercise most structures, to give to `mke2fs -d`.
pub struct SourceTree {
    dir: TempDir,
}

impl SourceTree {
    /// With `many` empty files in one directory, besides files of all sizes and kinds.
    pub fn new(many: usize) -> Self {
        let dir = TempDir::new().expect("temporary directory");
        let tree = Self { dir };
        tree.fill(many).expect("fill of the source tree");
        tree
    }

    fn fill(&self, many: usize) -> std::io::Result<()> {
        let root = self.dir.path();
        fs::write(root.join("tiny"), b"tiny content")?;
        fs::write(root.join("inline"), vec![b'i'; 120])?;
        fs::write(root.join("empty"), b"")?;
        fs::write(root.join("plain"), patterned(300_000))?;
        fs::create_dir_all(root.join("a/b/c/d"))?;
        fs::write(root.join("a/b/c/d/deep"), b"deep")?;
        fs::write(root.join("a").join("n".repeat(255)), b"long name")?;
        fs::write(root.join("a/\u{e4}\u{f6}\u{fc}-high-bytes"), b"high")?;
        symlink("tiny", root.join("fast-link"))?;
        symlink("x/".repeat(400), root.join("slow-link"))?;
        symlink("y".repeat(59), root.join("longest-fast-link"))?;
        symlink("y".repeat(60), root.join("shortest-slow-link"))?;
        self.fill_holes(&root.join("holes"), 600)?;
        fs::create_dir(root.join("many"))?;
        for i in 0..many {
            File::create(root.join(format!("many/file-number-{i}")))?;
        }
        Ok(())
    }

    /// A file of `runs` runs of 4 KiB with holes of 4 KiB between, so of as many extents.
    fn fill_holes(&self, path: &Path, runs: u64) -> std::io::Result<()> {
        let file = File::create(path)?;
        (0..runs).try_for_each(|i| file.write_all_at(&patterned(4096), i * 8192))
    }

    /// Path of the directory.
    pub fn path(&self) -> &str {
        self.dir.path().to_str().expect("temporary paths are UTF-8")
    }
}

/// Bytes that differ from block to block and hold no zeros.
fn patterned(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i / 512 + i) as u8 | 1).collect()
}
