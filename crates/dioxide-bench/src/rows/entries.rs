//! Row 13: names in a directory of ten million, ÷ one of ten thousand, ÷ one.
//!
//! The names are hard links of a few files that are held, as many in each directory, so that what a lookup measures is the directory
//! and not the inode table.
//! What is created among them are files, a batch at a time, which is removed when its time was taken. (That all ten million were files would add a search for free inodes to the creation, and
//! to each lookup a read of a table of 2.5 GB, which no bounded cache has: another row.)
//! They are looked up in random order, in turns: first by a mount that keeps all names in memory, as mounts of a machine with
//! 16 GiB do by themselves, then by one that may not, where of ten million most are in no cache and of ten thousand all are.
//! Of ten million, all are asked for, and ten thousand again and again: the difference is what the processor's caches hold.

use super::{Table, resident_mib};
use crate::Result;
use crate::compare::{median, there_and_back};
use crate::image::{self, Image};
use crate::memory::{self, far_look};
use crate::offsets::Random;
use crate::subject;
use dioxide::{Backend, Fs, MountOptions, NewFile, Node};
use std::time::Instant;

const FEW: u64 = 10_000;
const MANY: u64 = 10_000_000;
const QUICK_MANY: u64 = 100_000;
/// Looked up, and created, in a round.
const BATCH: u64 = 2000;
/// Files that the names are given to: one has at most 65,000.
const FILES: u64 = MANY / 60_000 + 1;
/// What is asked for: the names of each directory, and a few of the last.
const ASKED: usize = 4;
const MOST_LOOKUP: f64 = 1.5;
const MOST_LOOKUP_FEW: f64 = 2.0;
const MOST_CREATE: f64 = 4.0;
/// What the caches of a mount may take, with what a mount takes anyhow.
const MOST_MIB: f64 = 192.0;
/// A cache that has room for [`MANY`] names, and one that has not.
const ALL_NAMES: usize = 1 << 30;
const SOME_NAMES: usize = 8 << 20;

/// A directory, and what gives it names.
struct Directory {
    dir: Node,
    names: u64,
    /// The files that names are given to in turn, so that they stay in memory.
    _files: Vec<Node>,
}

fn name_of(number: u64) -> String {
    format!("file-{number:08}")
}

impl Directory {
    fn make(root: &Node, name: &str, names: u64) -> Result<Directory> {
        let dir = root.create_dir(name.as_bytes(), &NewFile::new(0o755))?;
        let make = |name: String| Ok(dir.create(name.as_bytes(), &NewFile::new(0o644))?);
        let files = files_for(names).map(make).collect::<Result<Vec<_>>>()?;
        for (number, file) in (0..names).zip(files.iter().cycle()) {
            file.link(&dir, name_of(number).as_bytes())?;
        }
        Ok(Directory {
            dir,
            names,
            _files: files,
        })
    }

    /// Empty files, each with an inode of its own.
    fn create(&self) -> Result<()> {
        for number in self.names..self.names + BATCH {
            self.dir
                .create(name_of(number).as_bytes(), &NewFile::new(0o644))?;
        }
        Ok(())
    }

    /// Those files.
    fn remove(&self) -> Result<()> {
        for number in self.names..self.names + BATCH {
            self.dir.remove_file(name_of(number).as_bytes())?;
        }
        Ok(())
    }

    /// As it is in another mount.
    fn found(root: &Node, name: &str, names: u64) -> Result<Directory> {
        let dir = root.lookup(name.as_bytes())?;
        let find = |name: String| Ok(dir.lookup(name.as_bytes())?);
        let files = files_for(names).map(find).collect::<Result<_>>()?;
        Ok(Directory {
            dir,
            names,
            _files: files,
        })
    }

    /// So many of its names, a batch of them in random order.
    fn look(&self, asked: u64, random: &mut Random) -> Result<()> {
        // Odd, because names that differ in the last byte lie side by side.
        let step = (self.names / asked).max(2) - 1;
        for _ in 0..BATCH {
            let name = name_of(random.below(asked) * step);
            self.dir.lookup(name.as_bytes())?;
        }
        Ok(())
    }
}

/// What the files of a directory are called first.
fn files_for(names: u64) -> impl Iterator<Item = String> {
    (0..names.min(FILES)).map(|number| format!("file-of-{number}"))
}

/// Nanoseconds for one of a batch.
fn timed(work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let begin = Instant::now();
    work()?;
    Ok(begin.elapsed().as_nanos() as f64 / BATCH as f64)
}

impl Table<'_, '_> {
    pub(super) fn entries(&mut self) -> Result<()> {
        let many = if self.options.quick { QUICK_MANY } else { MANY };
        let inodes = 4096 + 6 * BATCH;
        let bytes = many * 64 + inodes * 256 + (256 << 20);
        let scratch = image::scratch(self.options.scratch.as_deref(), bytes);
        let words = ["-N", &inodes.to_string(), "-J", "size=64"];
        let image = Image::blank(&scratch, bytes, &words)?;
        if !self.is_in_memory(&image, "13: names in large directories ÷ small ones")? {
            return Ok(());
        }
        let device = subject::open_image(&image, Backend::Pread, 0)?;
        let before = resident_mib();
        let name_cache = ALL_NAMES / (MANY / many) as usize;
        let in_memory = MountOptions::new().name_cache(name_cache);
        let fs = Fs::open_device(device.clone(), &in_memory)?;
        let root = fs.root()?;
        let sizes = [("one", 1), ("few", FEW), ("many", many)];
        let mut dirs = Vec::new();
        for (name, names) in sizes {
            self.ticker
                .say(&format!("making a directory of {names} names"));
            dirs.push(Directory::make(&root, name, names)?);
        }
        fs.sync()?;
        let mut random = Random::new(self.options.seed);
        self.ticker.expect(3 * u64::from(self.runs));
        let looked = self.look(&dirs, &mut random)?;
        let far = far_look()?;
        let mib = memory::MIB;
        let machine = format!("; a look at four lines at a random place of {mib} MiB: {far:.0} ns");
        self.judge_lookups(&looked, many, ", all in memory", &machine);
        self.at_most_noted(
            &format!("13: MiB of memory with all of {many} names in memory"),
            resident_mib() - before,
            MOST_MIB + (name_cache >> 20) as f64,
            None,
        );
        drop((dirs, root));
        fs.close()?;

        // Against what there was before the first mount: what that freed and the process still has may be this one's now.
        let some_in_memory = MountOptions::new().name_cache(SOME_NAMES);
        let fs = Fs::open_device(device, &some_in_memory)?;
        let root = fs.root()?;
        let mut dirs = Vec::new();
        for (name, names) in sizes {
            dirs.push(Directory::found(&root, name, names)?);
        }
        let looked = self.look(&dirs, &mut random)?;
        self.judge_lookups(&looked, many, ", 8 MiB of them in memory", "");
        let mut created: [Vec<f64>; 3] = [const { Vec::new() }; 3];
        for run in 0..self.runs as usize {
            self.ticker.round("files created");
            for index in there_and_back(dirs.len(), run) {
                created[index].push(timed(|| dirs[index].create())?);
                dirs[index].remove()?;
            }
            fs.sync()?;
        }
        let mib = resident_mib() - before;
        drop((dirs, root));
        fs.close()?;
        let [one, few, large] = &created;
        let note = created.each_ref().map(|ns| told(ns)).join(", ");
        self.at_most_noted(
            &format!("13: file created among {FEW} names ÷ 1"),
            quotient(few, one),
            MOST_CREATE,
            Some(note),
        );
        self.at_most_noted(
            &format!("13: file created among {many} names ÷ {FEW}"),
            quotient(large, few),
            MOST_CREATE,
            None,
        );
        self.at_most_noted(
            &format!("13: MiB of memory with {many} names, 8 MiB of them in memory"),
            mib,
            MOST_MIB,
            None,
        );
        self.fsck(&image)
    }

    /// Nanoseconds of a lookup in each, round by round, and of ten thousand names of the last again and again.
    fn look(&mut self, dirs: &[Directory], random: &mut Random) -> Result<[Vec<f64>; ASKED]> {
        let mut looked = [const { Vec::new() }; ASKED];
        for run in 0..self.runs as usize {
            self.ticker.round("names looked up");
            for index in there_and_back(ASKED, run) {
                let dir = &dirs[index.min(dirs.len() - 1)];
                let asked = if index < dirs.len() { dir.names } else { FEW };
                looked[index].push(timed(|| dir.look(asked, random))?);
            }
        }
        Ok(looked)
    }

    fn judge_lookups(&mut self, looked: &[Vec<f64>; ASKED], many: u64, how: &str, machine: &str) {
        let [one, few, large, few_of_large] = looked;
        let note = looked.each_ref().map(|ns| told(ns)).join(", ") + machine;
        let rows = [
            (format!("among {FEW} names ÷ 1"), few, one, MOST_LOOKUP_FEW),
            (
                format!("among {many} names ÷ {FEW}"),
                large,
                few,
                MOST_LOOKUP,
            ),
            (
                format!("of {FEW} among {many} names ÷ {FEW}"),
                few_of_large,
                few,
                MOST_LOOKUP,
            ),
        ];
        for (what, of, to, most) in rows {
            let row = format!("13: lookup {what}{how}");
            self.at_most_noted(&row, quotient(of, to), most, Some(note.clone()));
        }
    }
}

/// Median of the quotients, round by round.
fn quotient(of: &[f64], to: &[f64]) -> f64 {
    median(of.iter().zip(to).map(|(of, to)| of / to))
}

fn told(ns: &[f64]) -> String {
    format!("{:.0} ns", median(ns.iter().copied()))
}
