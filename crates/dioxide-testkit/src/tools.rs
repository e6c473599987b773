//! The programs of e2fsprogs, and others, as functions.

use dioxide_format::features::RoCompat;
use dioxide_format::superblock::{SUPERBLOCK_OFFSET, SuperBlock};
use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Output};

/// The time that images made here carry: 14 November 2023.
const FAKE_TIME: &str = "1700000000";

/// A command that also finds what is in the system's directories, speaks English, and stops the
/// clock in e2fsprogs, so that images come out the same in each run.
pub(crate) fn tool(name: &str) -> Command {
    let path = std::env::var("PATH").unwrap_or_default();
    let path = format!("{path}:/usr/sbin:/sbin");
    // By its path: where a name is to be looked for in another PATH, this process is copied first, which takes longer than e2fsck.
    let mut found = path.split(':').map(|dir| Path::new(dir).join(name));
    let found = found.find(|program| program.is_file());
    let mut command = Command::new(found.unwrap_or_else(|| name.into()));
    command
        .env("PATH", path)
        .env("LC_ALL", "C")
        .env("E2FSPROGS_FAKE_TIME", FAKE_TIME)
        .env("SOURCE_DATE_EPOCH", FAKE_TIME);
    command
}

/// Runs a command to its end, whatever that is.
pub(crate) fn output(command: &mut Command) -> Output {
    match command.output() {
        Ok(output) => output,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            panic!("{command:?}: not installed (e2fsprogs, util-linux)")
        }
        Err(error) => panic!("{command:?}: {error}"),
    }
}

/// Runs a command, which must succeed; what it printed to standard output.
pub(crate) fn run(command: &mut Command) -> String {
    let output = output(command);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{command:?}: {}\n{text}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    text
}

/// Runs debugfs commands that may change the image; returns what they printed. Needs no root.
///
/// Relative host files are taken from the current directory. The image must not be mounted.
///
/// # Panics
/// If one of them fails: debugfs goes on then and still exits with 0, but says so.
pub fn debugfs(image: &Path, commands: &[impl AsRef<str>]) -> String {
    let mut script = tempfile::NamedTempFile::new().expect("temporary file");
    for command in commands {
        writeln!(script, "{}", command.as_ref()).expect("temporary file");
    }
    script.flush().expect("temporary file");
    checked(
        tool("debugfs")
            .arg("-w")
            .arg("-f")
            .arg(script.path())
            .arg(image),
    )
}

/// Runs one debugfs command that changes nothing; returns what it printed.
///
/// # Panics
/// If it fails.
pub fn debugfs_query(image: &Path, command: &str) -> String {
    checked(tool("debugfs").arg("-R").arg(command).arg(image))
}

/// Runs debugfs, which reports failed commands on standard error only, after its banner.
fn checked(command: &mut Command) -> String {
    let output = output(command);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let mut complaints = said.lines().filter(|line| !line.starts_with("debugfs 1."));
    assert!(
        output.status.success()
            && complaints.next().is_none()
            && !text.contains(": File not found"),
        "{command:?}: {}\n{text}{said}",
        output.status
    );
    text
}

/// One extent of a file, in file-system blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First block in the file.
    pub logical: u64,
    /// First block on the device.
    pub physical: u64,
    /// How many blocks.
    pub len: u64,
    /// Allocated, reads as zeros.
    pub unwritten: bool,
}

/// The extents that map a file's data, in order, as debugfs sees them.
///
/// # Panics
/// If there is no such file or it has no extent tree.
pub fn leaf_extents(image: &Path, file: &str) -> Vec<Extent> {
    let text = debugfs_query(image, &format!("dump_extents -l {file}"));
    let rows = text.lines().skip(1);
    rows.map(|row| parse_extent(row).unwrap_or_else(|| panic!("dump_extents: {row}\n{text}")))
        .collect()
}

/// A row such as ` 1/ 1   2/ 40     3 -     7  1234 -  1238      5 Uninit`.
fn parse_extent(row: &str) -> Option<Extent> {
    let plain = row.replace(['/', '-'], " ");
    let mut fields = plain.split_whitespace();
    let numbers: Vec<u64> = fields
        .by_ref()
        .take(9)
        .map_while(|f| f.parse().ok())
        .collect();
    let [_, _, _, _, logical, _, physical, _, len] = numbers[..] else {
        return None;
    };
    Some(Extent {
        logical,
        physical,
        len,
        unwritten: fields.next() == Some("Uninit"),
    })
}

/// Checks an image or device as `e2fsck -fn` does, everything, changing nothing; and that who had it last closed it:
/// e2fsck says nothing of that where it changes nothing.
///
/// # Panics
/// With e2fsck's output, unless it finds nothing at all; or as [`assert_closed`].
pub fn e2fsck_clean(image: &Path) {
    e2fsck_consistent(image);
    assert_closed(image);
}

/// The superblock says that who had it last closed it, and left nothing to be freed: e2fsck passes over orphans where it changes nothing.
///
/// # Panics
/// If the journal is to be replayed, the state is another than valid, or there are orphans.
pub fn assert_closed(image: &Path) {
    let mut bytes = [0; SuperBlock::SIZE];
    let read =
        fs::File::open(image).and_then(|file| file.read_exact_at(&mut bytes, SUPERBLOCK_OFFSET));
    read.unwrap_or_else(|e| panic!("{}: {e}", image.display()));
    let superblock =
        SuperBlock::parse(&bytes).unwrap_or_else(|e| panic!("{}: {e}", image.display()));
    assert!(
        superblock.was_closed(),
        "{}: not closed: state {:#x}{}",
        image.display(),
        superblock.state(),
        if superblock.needs_recovery() {
            ", needs_recovery"
        } else {
            ""
        }
    );
    let first = superblock.last_orphan();
    let in_file = superblock
        .features()
        .ro_compat
        .contains(RoCompat::ORPHAN_PRESENT);
    assert!(
        first.is_none() && !in_file,
        "{}: orphans: the first is inode {}, in a file: {in_file}",
        image.display(),
        first.map_or(0, |ino| ino.0)
    );
}

/// Checks an image that nobody closed, or that tells of errors on purpose: `e2fsck -fn` finds nothing.
///
/// # Panics
/// With e2fsck's output, if it finds something.
pub fn e2fsck_consistent(image: &Path) {
    // Without the stopped clock: e2fsck would find times in the future.
    run(tool("e2fsck")
        .env_remove("E2FSPROGS_FAKE_TIME")
        .arg("-fn")
        .arg(image));
}

/// As [`e2fsck_consistent`], of an image whose journal lies in another one.
///
/// # Panics
/// With e2fsck's output, if it finds something.
pub fn e2fsck_consistent_with(image: &Path, journal: &Path) {
    run(tool("e2fsck")
        .env_remove("E2FSPROGS_FAKE_TIME")
        .args(["-fn", "-j"])
        .args([journal, image]));
}

/// Repairs an image as `e2fsck -fy` does, which must be able to; afterwards it finds nothing more.
///
/// # Panics
/// With e2fsck's output, if it leaves errors or finds some when it looks again.
pub fn e2fsck_mend(image: &Path) {
    let mut command = tool("e2fsck");
    command
        .env_remove("E2FSPROGS_FAKE_TIME")
        .arg("-fy")
        .arg(image);
    let output = output(&mut command);
    // 1: there were errors, and none is left.
    assert!(
        matches!(output.status.code(), Some(0 | 1)),
        "{command:?}: {}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stdout)
    );
    e2fsck_clean(image);
}

/// What `dumpe2fs` prints: superblock, then groups.
///
/// # Panics
/// If it fails.
pub fn dumpe2fs(image: &Path) -> String {
    run(tool("dumpe2fs").arg(image))
}

/// Writes back everything, so that a file read directly shows it.
pub(crate) fn sync(path: &Path) {
    let file = fs::File::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    file.sync_all()
        .unwrap_or_else(|e| panic!("{}: {e}", path.display()));
}
