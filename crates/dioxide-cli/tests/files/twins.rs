//! Two copies of one image: our commands change one, GNU's the other mounted by Linux; both then hold the same tree.

use super::populate;
use super::support::{at, coreutils, dioxide};
use dioxide_testkit::{Image, Mount, e2fsck_clean};
use std::path::Path;
use tempfile::TempDir;

pub struct Twins {
    dir: TempDir,
    ours: Image,
    theirs: Image,
}

/// All that tells a tree from another, a line for each file; times only where they are asked for.
fn tree(root: &Path, times: bool) -> Vec<String> {
    let form = if times { "%T@ " } else { "" };
    let script = format!(
        "cd '{}' && find . -printf '{form}%y %p %m %U %G %n %l %s\\n' && find . -exec getfattr -hd -m - {{}} +",
        root.display()
    );
    let told = coreutils("bash", &["-c", &script]);
    let (mut files, mut xattrs) = (Vec::new(), Vec::new());
    for line in told.lines() {
        match line.split_once(' ') {
            // Sizes of directories are the file system's affair.
            _ if line.contains("d ./") || line.contains("d . ") => {
                files.push(line.rsplit_once(' ').unwrap().0.to_owned());
            }
            Some((_, rest)) if rest.starts_with("./") || times && rest.contains(" ./") => {
                files.push(line.to_owned());
            }
            _ => xattrs.push(line.to_owned()),
        }
    }
    files.sort();
    // Blocks of a file and its attributes, in the order of the files.
    let mut blocks: Vec<_> = xattrs.join("\n").split("\n\n").map(str::to_owned).collect();
    blocks.sort();
    files.extend(blocks);
    files
}

impl Twins {
    /// Needs root.
    pub fn new() -> Twins {
        let ours = Image::builder().block_size(1024).build();
        ours.populate_with_kernel(populate);
        Twins {
            dir: TempDir::new().unwrap(),
            theirs: ours.copy(),
            ours,
        }
    }

    pub fn image(&self) -> &Path {
        self.ours.path()
    }

    /// A path on the host: `%/name` in commands, `$H/name` in scripts.
    pub fn host(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    /// Words in which `@/path` is in the image.
    pub fn words(&self, line: &str) -> Vec<String> {
        let host = self.dir.path().display().to_string();
        let word = |word: &str| match (&word[..word.len().min(2)], word.get(1..)) {
            ("@/", Some(path)) => at(self.ours.path(), path),
            ("%/", Some(path)) => format!("{host}{path}"),
            _ => word.to_owned(),
        };
        line.split(' ').map(word).collect()
    }

    /// Runs our command, and the script of theirs in the root directory of the mounted image. Both succeed.
    #[track_caller]
    pub fn run(&self, ours: &[&str], script: &str) {
        for line in ours {
            dioxide(self.words(line)).text();
        }
        let mount = Mount::ext4(self.theirs.path(), "");
        let script = format!(
            "set -e; H='{}'; cd '{}'; {script}",
            self.dir.path().display(),
            mount.path().display()
        );
        coreutils("bash", &["-c", &script]);
        mount.unmount();
    }

    /// Runs a script on both, by Linux.
    #[track_caller]
    pub fn both(&self, script: &str) {
        let mount = Mount::ext4(self.ours.path(), "");
        let script_here = format!("set -e; cd '{}'; {script}", mount.path().display());
        coreutils("bash", &["-c", &script_here]);
        mount.unmount();
        self.run(&[], script);
    }

    /// Both images are clean and hold the same.
    #[track_caller]
    pub fn check(&self, times: bool) {
        e2fsck_clean(self.ours.path());
        let ours = Mount::ext4(self.ours.path(), "ro");
        let theirs = Mount::ext4(self.theirs.path(), "ro");
        let trees = [&ours, &theirs].map(|mount| tree(mount.path(), times));
        for (a, b) in trees[0].iter().zip(&trees[1]) {
            assert_eq!(a, b);
        }
        assert_eq!(trees[0].len(), trees[1].len());
        let [a, b] = [&ours, &theirs].map(|mount| mount.path().display());
        let script = format!(
            "diff -r --no-dereference '{a}' '{b}' | grep -Ev 'special file|socket|fifo' ; true"
        );
        assert_eq!(coreutils("bash", &["-c", &script]), "");
        ours.unmount();
        theirs.unmount();
    }

    /// Runs both, and compares.
    #[track_caller]
    pub fn same(&self, ours: &[&str], script: &str) {
        self.run(ours, script);
        self.check(false);
    }
}
