//! e2fsck as a check, and as another way to recover.

use crate::explore::{Check, Recover};
use crate::image::Place;
use dioxide::block::record::states::Snapshot;
use dioxide::format::features::{Features, Incompat};
use dioxide::format::superblock::SuperBlock;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::Path;
use std::process::{Command, Output};

/// Where the superblock begins.
const SUPERBLOCK: usize = 1024;

/// A program of e2fsprogs or util-linux, which Debian keeps where users do not look, speaking English.
pub(crate) fn program(name: &str) -> Result<Command, String> {
    let path = std::env::var("PATH").unwrap_or_default();
    let path = format!("{path}:/usr/sbin:/sbin");
    let mut found = path.split(':').map(|dir| Path::new(dir).join(name));
    let Some(program) = found.find(|program| program.is_file()) else {
        let package = match name {
            "mount" | "umount" => "util-linux",
            _ => "e2fsprogs",
        };
        return Err(format!("{name} is not installed: it comes with {package}"));
    };
    // By its path: where a name is to be looked for in another PATH, this process is copied first, which takes longer than the program.
    let mut command = Command::new(program);
    command.env("PATH", path).env("LC_ALL", "C");
    Ok(command)
}

fn output(command: &mut Command) -> Result<Output, String> {
    command.output().map_err(|error| match error.kind() {
        ErrorKind::NotFound => format!("{}: not installed", words(command)),
        _ => format!("{}: {error}", words(command)),
    })
}

/// A command without its environment.
fn words(command: &Command) -> String {
    let all = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<_> = all.map(|word| word.to_string_lossy()).collect();
    words.join(" ")
}

/// Runs a command, which must succeed; what it printed.
pub(crate) fn run(command: &mut Command) -> Result<String, String> {
    let Output {
        status,
        stdout,
        stderr,
    } = output(command)?;
    let text = String::from_utf8_lossy(&stdout).into_owned();
    match status.success() {
        true => Ok(text),
        false => {
            let said = String::from_utf8_lossy(&stderr);
            Err(format!("{}: {status}: {text}{said}", words(command)))
        }
    }
}

/// Shows an image as a file.
pub(crate) fn with_file<T>(
    image: &Snapshot,
    run: impl FnOnce(&Path) -> Result<T, String>,
) -> Result<T, String> {
    let place = Place::new().map_err(|e| e.to_string())?;
    let path = place.path("image");
    let write = || image.write_sparse(&File::create(&path)?, 0);
    write().map_err(|e| e.to_string())?;
    run(&path)
}

/// The image that a file holds.
pub(crate) fn snapshot(path: &Path) -> Result<Snapshot, String> {
    let bytes = fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(Snapshot::new(&bytes))
}

/// `e2fsck -fn`: an unmounted image must be clean. `e2fsck -fy` before that: replays and repairs a
/// crashed one; whatever it repairs beyond orphans, and totals and marks in the superblock, is damage.
#[derive(Clone, Copy, Debug)]
pub struct E2fsck(());

impl E2fsck {
    /// If it is installed.
    ///
    /// # Errors
    /// It is not.
    pub fn find() -> Result<E2fsck, String> {
        program("e2fsck").map(|_| E2fsck(()))
    }

    fn clean(path: &Path) -> Result<(), String> {
        run(program("e2fsck")?.arg("-fn").arg(path)).map(drop)
    }

    /// What it printed. Damaged: why.
    fn repair(path: &Path) -> Result<String, String> {
        let output = output(program("e2fsck")?.arg("-fy").arg(path))?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        match output.status.code() {
            Some(0 | 1) => Ok(text),
            _ => Err(format!("e2fsck -fy: {}: {text}", output.status)),
        }
    }
}

/// It freed an orphan, and the file system has inodes that are values of attributes. It does not count such a value's
/// users down then, and repairs that a moment later, in the images that the kernel leaves as well.
fn forgets_users_of_values(image: &Snapshot, text: &str) -> bool {
    let values = features(image).incompat.contains(Incompat::EA_INODE);
    values && text.contains("Clearing orphaned inode")
}

/// Of a file system; none if it has no superblock.
pub(crate) fn features(image: &Snapshot) -> Features {
    let bytes = image.to_vec();
    let superblock = bytes.get(SUPERBLOCK..).map(SuperBlock::parse);
    let superblock = superblock.and_then(Result::ok);
    superblock.map_or_else(Features::default, |superblock| superblock.features())
}

/// What a crash explains, and no replay mends: totals in the superblock, which are written at unmount,
/// and the mark that the orphan file is in use. Of orphans that the file names e2fsck frees the inodes, and finds
/// only at its end that it has not emptied the file; so it does with images that the kernel left.
const EXPECTED: [[&str; 2]; 4] = [
    ["Free blocks count wrong (", ""],
    ["Free inodes count wrong (", ""],
    [
        "Feature orphan_present is set but orphan file is clean.",
        "",
    ],
    ["Orphan file (inode ", " is not clean."],
];

/// What was repaired and a crash does not explain. A question may stand in the line of what it is
/// about, or below it.
fn damage(text: &str) -> Option<&str> {
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    let about = |index: usize| match lines[index] {
        "Fix? yes" | "Clear? yes" => lines[index.saturating_sub(1)],
        line => line,
    };
    let asked = (0..lines.len()).filter(|&index| lines[index].ends_with("? yes"));
    let is_known = |line: &str, parts: &[&str; 2]| parts.iter().all(|part| line.contains(part));
    let expected = |line: &str| EXPECTED.iter().any(|parts| is_known(line, parts));
    asked.map(about).find(|line| !expected(line))
}

impl Check for E2fsck {
    fn check(&self, image: &Snapshot) -> Result<(), String> {
        with_file(image, E2fsck::clean)
    }
}

impl Recover for E2fsck {
    fn name(&self) -> &str {
        "e2fsck"
    }

    fn recover(&self, image: &Snapshot) -> Result<Option<Snapshot>, String> {
        with_file(image, |path| {
            let text = E2fsck::repair(path)?;
            if damage(&text).is_some() {
                return match forgets_users_of_values(image, &text) {
                    true => Ok(None),
                    false => Err(format!("e2fsck -fy: {text}")),
                };
            }
            E2fsck::clean(path)?;
            snapshot(path).map(Some)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{damage, features, forgets_users_of_values};
    use crate::image::Layout;
    use dioxide::block::record::states::Snapshot;
    use dioxide::format::features::{Features, RoCompat};

    #[test]
    fn e2fsck_is_no_judge_of_values_once_it_freed_an_orphan() {
        let orphan = "/dev/x: recovering journal\nClearing orphaned inode 17 (uid=0)\n";
        let image = |layout: Layout| layout.make().unwrap().image;
        let values = image(Layout::EaInode);
        assert!(forgets_users_of_values(&values, orphan));
        assert!(!forgets_users_of_values(
            &values,
            "/dev/x: recovering journal\n"
        ));
        assert!(!forgets_users_of_values(&image(Layout::K1), orphan));
        let quota = features(&image(Layout::Quota)).ro_compat;
        assert!(quota.contains(RoCompat::QUOTA));
        assert_eq!(features(&Snapshot::new(&[0; 4096])), Features::default());
    }

    #[test]
    fn totals_and_marks_are_no_damage_and_everything_else_is() {
        assert_eq!(
            damage("Free blocks count wrong (10, counted=6574).\nFix? yes\n\n"),
            None
        );
        assert_eq!(
            damage("/dev/x: recovering journal\nClearing orphaned inode 12\n"),
            None
        );
        assert_eq!(
            damage("Orphan file (inode 12) block 0 is not clean.\nClear? yes\n"),
            None
        );
        for text in [
            "Free blocks count wrong for group #0 (10, counted=6574).\nFix? yes\n",
            "Block bitmap differences:  +1234\nFix? yes\n",
            "Orphan file (inode 12) block 3 is wrong.\nClear? yes\n",
            "Inode 12, i_blocks is 8, should be 16.  Fix? yes\n",
        ] {
            assert!(damage(text).is_some(), "{text}");
        }
    }
}
