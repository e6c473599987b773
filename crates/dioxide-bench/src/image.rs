//! Making images, and checking them.
//!
//! An image that is made here has no name in any directory: it is a temporary file that lives as
//! long as this process holds it open, so that not even a kill leaves a gigabyte behind. The tools
//! find it by its name under `/proc`.
//!
//! The file inside is allocated by debugfs and its extents are then marked as written, with what
//! the image held before (nothing) as content. Copying a gigabyte into it by `mke2fs -d` gives the
//! same and takes seconds and the memory twice.

use crate::{BenchOptions, Error, Result};
use dioxide::format::superblock::{SUPERBLOCK_OFFSET, SuperBlock};
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// An image file or block device.
#[derive(Debug)]
pub(crate) struct Image {
    pub(crate) path: PathBuf,
    /// Its journal, if that lies outside.
    journal: Option<PathBuf>,
    /// Keeps an image that was made here.
    file: Option<File>,
}

/// A file to make inside an image.
#[derive(Clone, Debug)]
pub(crate) struct NewFile<'a> {
    /// Name in the root directory.
    pub(crate) name: &'a str,
    pub(crate) bytes: u64,
    /// About how many extents it is to be in; 1 is as few as can be.
    pub(crate) extents: u64,
}

impl Image {
    /// A device's description, with a word for an image that has no name but a number.
    pub(crate) fn describe(&self, device: &str) -> String {
        match (&self.file, self.path.file_name()) {
            (Some(_), Some(name)) => {
                device.replace(&format!(" on {}", name.display()), " on a made image")
            }
            _ => device.into(),
        }
    }

    /// The image that exists, if one was named.
    pub(crate) fn given(options: &BenchOptions) -> Option<Image> {
        Some(Image {
            path: options.image.clone()?,
            journal: options.journal.clone(),
            file: None,
        })
    }

    /// Makes a file system of `bytes` in `dir` with 4 KiB blocks and the files.
    pub(crate) fn make(dir: &Path, bytes: u64, files: &[NewFile<'_>]) -> Result<Image> {
        Image::make_for(dir, bytes, 4096, files)
    }

    /// The same, with this many inodes or more.
    pub(crate) fn make_for(
        dir: &Path,
        bytes: u64,
        inodes: u32,
        files: &[NewFile<'_>],
    ) -> Result<Image> {
        let inodes = inodes.to_string();
        let image = Image::blank(dir, bytes, &["-N", &inodes, "-J", "size=8"])?;
        for file in files {
            image.add(file)?;
        }
        Ok(image)
    }

    /// An empty file system, made by `mke2fs` with 4 KiB blocks and these words.
    pub(crate) fn blank(dir: &Path, bytes: u64, words: &[&str]) -> Result<Image> {
        let what = || format!("cannot make an image in {}", dir.display());
        let file = tempfile::tempfile_in(dir).map_err(Error::io(what()))?;
        file.set_len(bytes).map_err(Error::io(what()))?;
        let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        let image = Image {
            path: path.into(),
            journal: None,
            file: Some(file),
        };
        let mut command = tool("mke2fs")?;
        command.args(["-q", "-F", "-t", "ext4", "-b", "4096", "-m", "0"]);
        command.args(words);
        command.args(["-E", "nodiscard,lazy_itable_init=1,lazy_journal_init=1"]);
        run(command.arg(&image.path))?;
        Ok(image)
    }

    fn add(&self, file: &NewFile<'_>) -> Result<()> {
        let NewFile {
            name,
            bytes,
            extents,
        } = *file;
        let blocks = bytes / 4096;
        self.debugfs(&format!(
            "write /dev/null {name}\nfallocate {name} 0 {}\nset_inode_field {name} size {bytes}\n",
            blocks - 1
        ))?;
        let laid_out = self.extents(name)?;
        let mut script = format!("extent_open /{name}\n");
        for Extent { lblk, len, pblk } in &laid_out {
            script += &format!("goto_block {lblk}\nreplace_node {lblk} {len} {pblk}\n");
        }
        swap_neighbours(&mut script, &laid_out, blocks, extents);
        self.debugfs(&(script + "extent_close\n"))
    }

    /// Runs commands of debugfs.
    fn debugfs(&self, script: &str) -> Result<()> {
        let mut command = tool("debugfs")?;
        command.args(["-w", "-f", "-"]).arg(&self.path);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let mut child = command.spawn().map_err(Error::io("cannot start debugfs"))?;
        let mut stdin = child.stdin.take().expect("it is a pipe");
        let written = stdin.write_all(script.as_bytes());
        drop(stdin);
        let output = child.wait_with_output().map_err(Error::io("debugfs"))?;
        written.map_err(Error::io("cannot write to debugfs"))?;
        // Its first line is its version; anything more is a complaint.
        let said = String::from_utf8_lossy(&output.stderr);
        match said.lines().nth(1) {
            None => Ok(()),
            Some(complaint) => Err(Error::Setup(format!("debugfs: {complaint}"))),
        }
    }

    fn extents(&self, name: &str) -> Result<Vec<Extent>> {
        let mut command = tool("debugfs")?;
        command
            .arg("-R")
            .arg(format!("dump_extents -l /{name}"))
            .arg(&self.path);
        let output = run(&mut command)?;
        Ok(String::from_utf8_lossy(&output.stdout)
            .lines()
            .filter_map(Extent::parse)
            .collect())
    }

    /// `e2fsck -fn`, and whether it was closed. `None`: e2fsck is not installed. `Some(Err)`: what it said of an image that
    /// is not clean.
    pub(crate) fn check(&self, img_offset: u64) -> Result<Option<Result<(), String>>> {
        let Ok(mut command) = tool("e2fsck") else {
            return Ok(None);
        };
        let mut path = self.path.clone().into_os_string();
        if img_offset > 0 {
            path.push(format!("?offset={img_offset}"));
        }
        if let Some(journal) = &self.journal {
            command.arg("-j").arg(journal);
        }
        let output = command
            .arg("-fn")
            .arg(path)
            .output()
            .map_err(Error::io("e2fsck"))?;
        if output.status.success() {
            return self.closed(img_offset).map(Some);
        }
        let said = String::from_utf8_lossy(&output.stdout);
        let complaint = said
            .lines()
            .find(|line| !line.starts_with("Pass"))
            .unwrap_or("it does not say");
        Ok(Some(Err(format!(
            "{} ({})",
            complaint.trim(),
            output.status
        ))))
    }

    /// Whether who had it last closed it, of which `e2fsck -fn` says nothing.
    fn closed(&self, img_offset: u64) -> Result<Result<(), String>> {
        let mut bytes = [0; 1024];
        let file = File::open(&self.path).map_err(Error::io("cannot open the image"))?;
        file.read_exact_at(&mut bytes, img_offset + SUPERBLOCK_OFFSET)
            .map_err(Error::io("cannot read the superblock"))?;
        Ok(match SuperBlock::parse(&bytes) {
            Ok(sb) if sb.was_closed() => Ok(()),
            Ok(_) => Err("not closed".into()),
            Err(error) => Err(error.to_string()),
        })
    }
}

/// One leaf of an extent tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extent {
    lblk: u64,
    len: u64,
    pblk: u64,
}

impl Extent {
    /// From a line of `dump_extents -l`: `1/ 1  2/ 10  27791 - 60557  32919 - 65685  32767 Uninit`.
    fn parse(line: &str) -> Option<Extent> {
        let words = line.split(|c: char| c == '/' || c == '-' || c.is_whitespace());
        let mut numbers = words
            .filter(|word| !word.is_empty())
            .map(|word| word.parse().ok());
        let mut next = || numbers.next().flatten();
        let [_, _, _, _, lblk, _, pblk, _, len] = [(); 9].map(|()| next());
        Some(Extent {
            lblk: lblk?,
            len: len?,
            pblk: pblk?,
        })
    }
}

/// Lets pairs of neighbouring blocks change places, evenly over the file, until it has about
/// `wanted` extents: a pair by itself makes two extents and begins a third.
fn swap_neighbours(script: &mut String, laid_out: &[Extent], blocks: u64, wanted: u64) {
    let pairs = blocks / 2;
    let swaps = if wanted >= blocks {
        pairs
    } else {
        (wanted - wanted.min(1)) / 3
    };
    let place = |lblk: u64| {
        let extent = laid_out
            .iter()
            .find(|e| (e.lblk..e.lblk + e.len).contains(&lblk));
        extent.map(|e| e.pblk + lblk - e.lblk)
    };
    for n in 0..swaps {
        let even = n * pairs / swaps * 2;
        if let (Some(first), Some(second)) = (place(even), place(even + 1)) {
            *script += &format!("set_bmap {even} {second}\nset_bmap {} {first}\n", even + 1);
        }
    }
}

/// A tool of e2fsprogs, wherever Debian keeps it.
fn tool(name: &str) -> Result<Command> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    let found = dirs
        .map(|dir: PathBuf| dir.join(name))
        .find(|path| path.is_file());
    let found = found.ok_or_else(|| {
        Error::Setup(format!(
            "{name} is not installed (Debian package e2fsprogs); or give an --image"
        ))
    })?;
    let mut command = Command::new(found);
    command.stdin(Stdio::null()).env("LC_ALL", "C");
    Ok(command)
}

/// Runs a tool that must succeed.
fn run(command: &mut Command) -> Result<Output> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .output()
        .map_err(Error::io(format!("cannot start {name}")))?;
    if output.status.success() {
        return Ok(output);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(Error::Setup(format!(
        "{name} failed ({}): {}",
        output.status,
        said.trim()
    )))
}

/// Bytes that can still be written in a directory's file system.
pub(crate) fn room(dir: &Path) -> u64 {
    rustix::fs::statvfs(dir).map_or(0, |stat| stat.f_bavail * stat.f_frsize)
}

/// Where to make an image of which `bytes` will be written.
pub(crate) fn scratch(wanted: Option<&Path>, bytes: u64) -> PathBuf {
    let memory = Path::new("/dev/shm");
    match wanted {
        Some(dir) => dir.into(),
        None if room(memory) > bytes + bytes / 8 && available_memory() > bytes + bytes / 4 => {
            memory.into()
        }
        None => std::env::temp_dir(),
    }
}

/// Bytes of memory that could be used without swapping.
pub(crate) fn available_memory() -> u64 {
    meminfo("MemAvailable:").unwrap_or(u64::MAX)
}

/// A line of `/proc/meminfo`, in bytes.
pub(crate) fn meminfo(name: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim()
        .strip_suffix("kB")?
        .trim()
        .parse::<u64>()
        .ok()
        .map(|kib| kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extent_line_is_parsed_and_others_are_not() {
        let line = " 1/ 1   2/ 10  27791 -  60557  32919 -  65685  32767 Uninit";
        assert_eq!(
            Extent::parse(line),
            Some(Extent {
                lblk: 27791,
                len: 32767,
                pblk: 32919
            })
        );
        assert_eq!(
            Extent::parse("Level Entries       Logical      Physical Length Flags"),
            None
        );
    }

    #[test]
    fn swaps_exchange_neighbours_evenly() {
        let laid_out = [Extent {
            lblk: 0,
            len: 100,
            pblk: 1000,
        }];
        let mut script = String::new();
        swap_neighbours(&mut script, &laid_out, 100, 7);
        assert_eq!(
            script,
            "set_bmap 0 1001\nset_bmap 1 1000\nset_bmap 50 1051\nset_bmap 51 1050\n"
        );
        script.clear();
        swap_neighbours(&mut script, &laid_out, 100, 1);
        assert!(script.is_empty());
    }
}
