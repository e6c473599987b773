//! e2fsck as a check, and as another way to recover.

use crate::explore::{Check, Recover};
use crate::external;
use crate::image::Place;
use crate::journal::Metadata;
use dioxide::block::record::states::Snapshot;
use dioxide::format::features::{Compat, Features, Incompat};
use dioxide::format::inode::InodeFlags;
use dioxide::format::superblock::SuperBlock;
use dioxide::format::types::Ino;
use parking_lot::Mutex;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
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
    // Linking it takes a third of the time that e2fsck has for a small image.
    let linked = program.with_extension("static");
    // By its path: where a name is to be looked for in another PATH, this process is copied first, which takes longer than the program.
    let mut command = Command::new(if linked.is_file() { linked } else { program });
    command.env("PATH", path).env("LC_ALL", "C");
    // Ctrl-C is for the explorer: a check that it killed would be a bad state.
    command.process_group(0);
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

/// An image as a file; as two, if its journal is elsewhere.
#[derive(Debug)]
pub(crate) struct Shown {
    place: Place,
    image: Snapshot,
    journal: Option<Snapshot>,
}

impl Shown {
    /// A new file.
    ///
    /// # Errors
    /// What the host says.
    pub(crate) fn new(image: &Snapshot) -> Result<Shown, String> {
        let (image, journal) = Shown::parts(image);
        let make = || {
            let place = Place::new()?;
            image.write_sparse(&File::create(place.path("image"))?, 0)?;
            if let Some(journal) = &journal {
                journal.write_sparse(&File::create(place.path("journal"))?, 0)?;
            }
            Ok(place)
        };
        let place = make().map_err(|error: io::Error| error.to_string())?;
        Ok(Shown {
            place,
            image,
            journal,
        })
    }

    fn parts(image: &Snapshot) -> (Snapshot, Option<Snapshot>) {
        match external::journal_in(image) {
            None => (image.clone(), None),
            Some(at) => {
                let journal = image.part(at..image.size_bytes());
                (image.part(0..at), Some(journal))
            }
        }
    }

    /// Makes the files those of another image.
    fn show(&mut self, image: &Snapshot) -> Result<(), String> {
        let (image, journal) = Shown::parts(image);
        let change = |name, new: &Snapshot, old: &mut Snapshot| {
            let file = File::options().write(true).open(self.place.path(name))?;
            new.write_changes(old, &file)?;
            *old = new.clone();
            Ok(())
        };
        let changed = change("image", &image, &mut self.image);
        let journal = journal.iter().zip(&mut self.journal);
        let changed = changed.and_then(|()| {
            journal
                .into_iter()
                .try_for_each(|(new, old)| change("journal", new, old))
        });
        changed.map_err(|error: io::Error| error.to_string())
    }

    /// Whether [`Shown::show`] can be told of this image.
    fn is_like(&self, image: &Snapshot) -> bool {
        let (image, journal) = Shown::parts(image);
        let len = |journal: &Option<Snapshot>| journal.as_ref().map(Snapshot::size_bytes);
        self.image.size_bytes() == image.size_bytes() && len(&self.journal) == len(&journal)
    }

    /// The image's file.
    pub(crate) fn path(&self) -> PathBuf {
        self.place.path("image")
    }

    /// Whether the journal has a file of its own.
    pub(crate) fn has_journal(&self) -> bool {
        self.journal.is_some()
    }

    fn e2fsck(&self, how: &str) -> Result<Command, String> {
        let mut command = program("e2fsck")?;
        command.arg(how);
        if self.has_journal() {
            command.arg("-j").arg(self.place.path("journal"));
        }
        command.arg(self.path());
        Ok(command)
    }

    /// What the files hold now.
    ///
    /// # Errors
    /// They cannot be read.
    pub(crate) fn read(&self) -> Result<Snapshot, String> {
        let names = ["image", "journal"];
        let names = &names[..1 + usize::from(self.has_journal())];
        let mut bytes = Vec::new();
        for path in names.iter().map(|name| self.place.path(name)) {
            let read = fs::read(&path).map_err(|e| format!("{}: {e}", path.display()))?;
            bytes.extend(read);
        }
        Ok(Snapshot::new(&bytes))
    }
}

/// `e2fsck -fn`: an unmounted image must be clean. `e2fsck -fy` before that: replays and repairs a
/// crashed one; whatever it repairs beyond orphans, and totals and marks in the superblock, is damage.
#[derive(Debug, Default)]
pub struct E2fsck {
    /// Files of images that were checked: one for each thread that checks. The next image differs from the last in few pages.
    files: Mutex<Vec<Shown>>,
}

impl E2fsck {
    /// If it is installed.
    ///
    /// # Errors
    /// It is not.
    pub fn find() -> Result<E2fsck, String> {
        program("e2fsck").map(|_| E2fsck::default())
    }

    /// A file with this image.
    fn shown(&self, image: &Snapshot) -> Result<Shown, String> {
        let mut files = self.files.lock();
        let Some(index) = files.iter().position(|file| file.is_like(image)) else {
            drop(files);
            return Shown::new(image);
        };
        let mut file = files.swap_remove(index);
        drop(files);
        file.show(image)?;
        Ok(file)
    }

    /// Repairs an image, whatever is wrong with it.
    ///
    /// # Errors
    /// It cannot; what it printed.
    pub fn mend(&self, image: &Snapshot) -> Result<Snapshot, String> {
        let shown = Shown::new(image)?;
        E2fsck::repair(&shown)?;
        E2fsck::clean(&shown)?;
        let mended = shown.read()?;
        closed(&mended).map(|()| mended)
    }

    fn clean(shown: &Shown) -> Result<(), String> {
        run(&mut shown.e2fsck("-fn")?).map(drop)
    }

    /// What it printed. Damaged: why.
    fn repair(shown: &Shown) -> Result<String, String> {
        let output = output(&mut shown.e2fsck("-fy")?)?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        match output.status.code() {
            Some(0 | 1) => Ok(text),
            _ => Err(format!("e2fsck -fy: {}: {text}", output.status)),
        }
    }
}

/// It freed an orphan, and the file system has inodes that are values of attributes. It does not count such a value's
/// users down then, and repairs that a moment later, in the images that the kernel leaves as well; one that nobody else uses
/// gets a name. Nor does it take the value off what the orphan's owner uses. `image` is what it left.
fn forgets_users_of_values(image: &Snapshot, text: &str) -> bool {
    let values = features(image).incompat.contains(Incompat::EA_INODE);
    let unused = text.lines().filter_map(|line| {
        let ino = line.strip_prefix("Unattached inode ")?;
        ino.parse().ok().filter(|&ino| is_value(image, Ino(ino)))
    });
    let unused: Vec<u32> = unused.collect();
    let named = text.matches("Connect to /lost+found? yes").count() == unused.len();
    let is_unused = |line: &str| {
        let connects = line == "Connect to /lost+found? yes";
        let counts = |ino| line.starts_with(&format!("Inode {ino} ref count is 2, should be 1."));
        named && (connects || unused.iter().any(counts))
    };
    let is_count = |line: &str| {
        is_known(line, &["Extended attribute inode ", " ref count is "]) || is_unused(line)
    };
    let is_use = |line: &str| line.starts_with("Update quota info for quota type ");
    let damage = damage(text);
    values
        && text.contains("Clearing orphaned inode")
        && damage.iter().any(|line| is_count(line))
        && damage.iter().all(|line| is_count(line) || is_use(line))
}

/// Whether an inode is the value of an attribute.
fn is_value(image: &Snapshot, ino: Ino) -> bool {
    let inode = Metadata::of(image).and_then(|metadata| metadata.inode(ino));
    inode.is_some_and(|inode| inode.flags().contains(InodeFlags::EA_INODE))
}

/// Of a file system; none if it has no superblock.
pub(crate) fn features(image: &Snapshot) -> Features {
    let superblock = superblock(image);
    superblock.map_or_else(Features::default, |superblock| superblock.features())
}

/// Of a file system, if there is one.
pub(crate) fn superblock(image: &Snapshot) -> Option<SuperBlock> {
    let bytes = image.part(0..4096).to_vec();
    SuperBlock::parse(&bytes[SUPERBLOCK..]).ok()
}

/// Whether who had it last closed it, of which `e2fsck -fn` says nothing.
fn closed(image: &Snapshot) -> Result<(), String> {
    let Some(superblock) = superblock(image) else {
        return Err("it has no superblock".into());
    };
    // Without a journal a crash leaves its mark until e2fsck has repaired the file system: no mount takes that away.
    let journal = superblock.features().compat.contains(Compat::HAS_JOURNAL);
    if journal && !superblock.was_closed() {
        return Err(format!(
            "not closed: state {:#x}, needs_recovery {}",
            superblock.state(),
            superblock.needs_recovery()
        ));
    }
    // With `-n` e2fsck passes over them.
    match superblock.last_orphan() {
        Some(ino) => Err(format!("not closed: inode {ino} is an orphan")),
        None => Ok(()),
    }
}

/// What a crash explains, and no replay mends: totals in the superblock, which are written at unmount,
/// and the mark that the orphan file is in use. Of orphans that the file names e2fsck frees the inodes, and finds
/// only at its end that it has not emptied the file; so it does with images that the kernel left. Nor is a tree damaged
/// that could take less room.
const EXPECTED: [[&str; 2]; 5] = [
    ["Free blocks count wrong (", ""],
    ["Free inodes count wrong (", ""],
    [
        "Feature orphan_present is set but orphan file is clean.",
        "",
    ],
    ["Orphan file (inode ", " is not clean."],
    [" extent tree (at level ", "  Optimize? "],
];

fn is_known(line: &str, parts: &[&str; 2]) -> bool {
    parts.iter().all(|part| line.contains(part))
}

/// What was repaired and a crash does not explain. A question may stand in the line of what it is
/// about, or below it.
fn damage(text: &str) -> Vec<&str> {
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    let about = |index: usize| match lines[index] {
        "Fix? yes" | "Clear? yes" => lines[index.saturating_sub(1)],
        line => line,
    };
    let asked = (0..lines.len()).filter(|&index| lines[index].ends_with("? yes"));
    let expected = |line: &str| EXPECTED.iter().any(|parts| is_known(line, parts));
    asked.map(about).filter(|line| !expected(line)).collect()
}

impl Check for E2fsck {
    fn check(&self, image: &Snapshot) -> Result<(), String> {
        let shown = self.shown(image)?;
        let clean = E2fsck::clean(&shown);
        self.files.lock().push(shown);
        clean.and_then(|()| closed(image))
    }
}

impl Recover for E2fsck {
    fn name(&self) -> &str {
        "e2fsck"
    }

    fn recover(&self, image: &Snapshot) -> Result<Option<Snapshot>, String> {
        let shown = Shown::new(image)?;
        let text = E2fsck::repair(&shown)?;
        if !damage(&text).is_empty() {
            return match forgets_users_of_values(&shown.read()?, &text) {
                true => Ok(None),
                false => Err(format!("e2fsck -fy: {text}")),
            };
        }
        E2fsck::clean(&shown)?;
        let recovered = shown.read()?;
        closed(&recovered).map(|()| Some(recovered))
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
        let count = "Extended attribute inode 18 ref count is 2, should be 1. Fix? yes\n";
        let usage = "Update quota info for quota type 0? yes\n";
        let bitmap = "Block bitmap differences:  +1234\nFix? yes\n";
        let lost = "Unattached inode 2\nConnect to /lost+found? yes\n\nInode 2 ref count is 2, should be 1.  Fix? yes\n";
        let image = |layout: Layout| layout.make().unwrap().image;
        let values = image(Layout::EaInode);
        let forgets =
            |image: &Snapshot, text: &[&str]| forgets_users_of_values(image, &text.concat());
        assert!(forgets(&values, &[orphan, count]));
        assert!(forgets(&values, &[orphan, count, usage]));
        for text in [
            &[count][..],
            &[orphan, usage],
            &[orphan, bitmap, count],
            &[orphan, count, bitmap],
            // Of the root, which is no value.
            &[orphan, lost],
            &[orphan, count, lost],
        ] {
            assert!(!forgets(&values, text), "{text:?}");
        }
        assert!(!forgets(&image(Layout::K1), &[orphan, count]));
        let quota = features(&image(Layout::Quota)).ro_compat;
        assert!(quota.contains(RoCompat::QUOTA));
        assert_eq!(features(&Snapshot::new(&[0; 4096])), Features::default());
    }

    #[test]
    fn totals_and_marks_are_no_damage_and_everything_else_is() {
        assert_eq!(
            damage("Free blocks count wrong (10, counted=6574).\nFix? yes\n\n"),
            [""; 0]
        );
        assert_eq!(
            damage("/dev/x: recovering journal\nClearing orphaned inode 12\n"),
            [""; 0]
        );
        assert_eq!(
            damage("Orphan file (inode 12) block 0 is not clean.\nClear? yes\n"),
            [""; 0]
        );
        assert_eq!(
            damage("Inode 21 extent tree (at level 2) could be narrower.  Optimize? yes\n"),
            [""; 0]
        );
        for text in [
            "Free blocks count wrong for group #0 (10, counted=6574).\nFix? yes\n",
            "Block bitmap differences:  +1234\nFix? yes\n",
            "Orphan file (inode 12) block 3 is wrong.\nClear? yes\n",
            "Inode 12, i_blocks is 8, should be 16.  Fix? yes\n",
        ] {
            assert!(!damage(text).is_empty(), "{text}");
        }
    }
}
