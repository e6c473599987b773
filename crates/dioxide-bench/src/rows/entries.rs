//! Row 13: names in a directory of ten million, ÷ one of ten thousand, ÷ one.
//!
//! The names are hard links of a few files that are held, so that what a lookup measures is the directory and not the inode table.
//! What is created among them are files. (That all ten million were files would add a search for free inodes to the creation, and
//! to each lookup a read of a table of 2.5 GB, which no bounded cache has: another row.)
//! They are looked up in random order, in turns: first by a mount that keeps all names in memory, as mounts of a machine with
//! 16 GiB do by themselves, then by one that may not, where of ten million most are in no cache and of ten thousand all are.

use super::{Table, resident_mib};
use crate::Result;
use crate::compare::{median, there_and_back};
use crate::image::{self, Image};
use crate::subject;
use dioxide::{Backend, Fs, MountOptions, NewFile, Node};
use std::time::Instant;

const FEW: u64 = 10_000;
const MANY: u64 = 10_000_000;
const QUICK_MANY: u64 = 100_000;
/// Looked up, and created, in a round.
const BATCH: u64 = 2000;
/// A file has at most 65,000.
const LINKS: u64 = 60_000;
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
    /// The files that names are given to, with what they were called first; the last has `links`.
    files: Vec<(String, Node)>,
    links: u64,
}

fn name_of(number: u64) -> String {
    format!("file-{number:08}")
}

impl Directory {
    fn make(root: &Node, name: &str, names: u64) -> Result<Directory> {
        let mut directory = Directory {
            dir: root.create_dir(name.as_bytes(), &NewFile::new(0o755))?,
            names: 0,
            files: Vec::new(),
            links: LINKS,
        };
        directory.add(names)?;
        Ok(directory)
    }

    fn add(&mut self, names: u64) -> Result<()> {
        for number in self.names..self.names + names {
            if self.links == LINKS {
                let name = format!("file-of-{number}");
                let file = self.dir.create(name.as_bytes(), &NewFile::new(0o644))?;
                self.files.push((name, file));
                self.links = 1;
            }
            let (_, file) = self.files.last().expect("made before the first name");
            file.link(&self.dir, name_of(number).as_bytes())?;
            self.links += 1;
        }
        self.names += names;
        Ok(())
    }

    /// Empty files, each with an inode of its own.
    fn create(&mut self) -> Result<()> {
        for number in self.names..self.names + BATCH {
            self.dir
                .create(name_of(number).as_bytes(), &NewFile::new(0o644))?;
        }
        self.names += BATCH;
        Ok(())
    }

    /// What finds it again in the next mount.
    fn let_go(self) -> impl FnOnce(Node) -> Result<Directory> {
        let Directory {
            names,
            files,
            links,
            ..
        } = self;
        let called: Vec<String> = files.into_iter().map(|(name, _)| name).collect();
        move |dir| {
            let find = |name: String| Ok((name.clone(), dir.lookup(name.as_bytes())?));
            let files = called.into_iter().map(find).collect::<Result<_>>()?;
            Ok(Directory {
                dir,
                names,
                files,
                links,
            })
        }
    }

    fn look(&self, random: &mut u64) -> Result<()> {
        for _ in 0..BATCH {
            *random ^= *random << 13;
            *random ^= *random >> 7;
            *random ^= *random << 17;
            self.dir.lookup(name_of(*random % self.names).as_bytes())?;
        }
        Ok(())
    }
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
        let inodes = 4096 + 2 * u64::from(self.runs) * BATCH;
        let bytes = many * 64 + inodes * 256 + (256 << 20);
        let scratch = image::scratch(self.options.scratch.as_deref(), bytes);
        let words = ["-N", &inodes.to_string(), "-J", "size=64"];
        let image = Image::blank(&scratch, bytes, &words)?;
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
        let mut random = self.options.seed | 1;
        self.ticker.expect(3 * u64::from(self.runs));
        let looked = self.look(&dirs, &mut random)?;
        self.judge_lookups(&looked, many, ", all in memory");
        self.at_most_noted(
            &format!("13: MiB of memory with all of {many} names in memory"),
            resident_mib() - before,
            MOST_MIB + (name_cache >> 20) as f64,
            None,
        );
        let again: Vec<_> = dirs.into_iter().map(Directory::let_go).collect();
        drop(root);
        fs.close()?;

        // Against what there was before the first mount: what that freed and the process still has may be this one's now.
        let some_in_memory = MountOptions::new().name_cache(SOME_NAMES);
        let fs = Fs::open_device(device, &some_in_memory)?;
        let root = fs.root()?;
        let mut dirs = Vec::new();
        for ((name, _), open) in sizes.into_iter().zip(again) {
            dirs.push(open(root.lookup(name.as_bytes())?)?);
        }
        let looked = self.look(&dirs, &mut random)?;
        self.judge_lookups(&looked, many, ", 8 MiB of them in memory");
        let mut created: [Vec<f64>; 3] = [const { Vec::new() }; 3];
        for run in 0..self.runs as usize {
            self.ticker.round("files created");
            for index in there_and_back(dirs.len(), run).filter(|&index| index > 0) {
                created[index].push(timed(|| dirs[index].create())?);
            }
            fs.sync()?;
        }
        let mib = resident_mib() - before;
        drop((dirs, root));
        fs.close()?;
        let [_, few, large] = &created;
        self.at_most_noted(
            &format!("13: file created among {many} names ÷ {FEW}"),
            quotient(large, few),
            MOST_CREATE,
            Some(format!("{}, {}", told(few), told(large))),
        );
        self.at_most_noted(
            &format!("13: MiB of memory with {many} names, 8 MiB of them in memory"),
            mib,
            MOST_MIB,
            None,
        );
        self.fsck(&image)
    }

    /// Nanoseconds of a lookup in each, round by round.
    fn look(&mut self, dirs: &[Directory], random: &mut u64) -> Result<[Vec<f64>; 3]> {
        let mut looked: [Vec<f64>; 3] = [const { Vec::new() }; 3];
        for run in 0..self.runs as usize {
            self.ticker.round("names looked up");
            for index in there_and_back(dirs.len(), run) {
                looked[index].push(timed(|| dirs[index].look(random))?);
            }
        }
        Ok(looked)
    }

    fn judge_lookups(&mut self, looked: &[Vec<f64>; 3], many: u64, how: &str) {
        let [one, few, large] = looked;
        let note = format!("{}, {}, {}", told(one), told(few), told(large));
        self.at_most_noted(
            &format!("13: lookup among {FEW} names ÷ 1{how}"),
            quotient(few, one),
            MOST_LOOKUP_FEW,
            Some(note),
        );
        self.at_most_noted(
            &format!("13: lookup among {many} names ÷ {FEW}{how}"),
            quotient(large, few),
            MOST_LOOKUP,
            None,
        );
    }
}

/// Median of the quotients, round by round.
fn quotient(of: &[f64], to: &[f64]) -> f64 {
    median(of.iter().zip(to).map(|(of, to)| of / to))
}

fn told(ns: &[f64]) -> String {
    format!("{:.0} ns", median(ns.iter().copied()))
}
