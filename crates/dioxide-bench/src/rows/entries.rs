//! Row 13: names in a directory of ten million, ÷ one of ten thousand, ÷ one.
//!
//! The names are hard links of a few files, so that what is measured is the directory and not the inode table.
//! They are looked up in random order: of ten million most are in no cache, of ten thousand all are.

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
/// Looked up, and linked, in a round.
const BATCH: u64 = 2000;
/// A file has at most 65,000.
const LINKS: u64 = 60_000;
const MOST_LOOKUP: f64 = 1.5;
const MOST_LOOKUP_FEW: f64 = 2.0;
const MOST_CREATE: f64 = 4.0;
/// What the caches of a mount may take, with what a mount takes anyhow.
const MOST_MIB: f64 = 192.0;

/// A directory, and what gives it names.
struct Directory {
    dir: Node,
    /// The file that names are given to, and how many it has.
    file: Node,
    links: u64,
    names: u64,
}

fn name_of(number: u64) -> String {
    format!("file-{number:08}")
}

impl Directory {
    fn make(root: &Node, name: &str) -> Result<Directory> {
        let dir = root.create_dir(name.as_bytes(), &NewFile::new(0o755))?;
        let file = dir.create(b"file", &NewFile::new(0o644))?;
        Ok(Directory {
            dir,
            file,
            links: 1,
            names: 0,
        })
    }

    fn add(&mut self, names: u64) -> Result<()> {
        for number in self.names..self.names + names {
            if self.links == LINKS {
                let name = format!("file-of-{number}");
                self.file = self.dir.create(name.as_bytes(), &NewFile::new(0o644))?;
                self.links = 1;
            }
            self.file.link(&self.dir, name_of(number).as_bytes())?;
            self.links += 1;
        }
        self.names += names;
        Ok(())
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
        let bytes = many * 64 + (256 << 20);
        let scratch = image::scratch(self.options.scratch.as_deref(), bytes);
        let image = Image::blank(&scratch, bytes, &["-N", "4096", "-J", "size=64"])?;
        let device = subject::open_image(&image, Backend::Pread, 0)?;
        let before = resident_mib();
        let fs = Fs::open_device(device, &MountOptions::new())?;
        let root = fs.root()?;
        let mut dirs = Vec::new();
        for (name, names) in [("one", 1), ("few", FEW), ("many", many)] {
            self.ticker
                .say(&format!("making a directory of {names} names"));
            let mut dir = Directory::make(&root, name)?;
            dir.add(names)?;
            dirs.push(dir);
        }
        fs.sync()?;
        let mut looked: [Vec<f64>; 3] = [const { Vec::new() }; 3];
        let mut added: [Vec<f64>; 3] = [const { Vec::new() }; 3];
        let mut random = self.options.seed | 1;
        self.ticker.expect(2 * u64::from(self.runs));
        for run in 0..self.runs as usize {
            self.ticker.round("names looked up");
            for index in there_and_back(dirs.len(), run) {
                looked[index].push(timed(|| dirs[index].look(&mut random))?);
            }
        }
        for run in 0..self.runs as usize {
            self.ticker.round("names added");
            for index in there_and_back(dirs.len(), run).filter(|&index| index > 0) {
                added[index].push(timed(|| dirs[index].add(BATCH))?);
            }
            fs.sync()?;
        }
        let mib = resident_mib() - before;
        drop((dirs, root));
        fs.close()?;
        let quotient = |of: &[f64], to: &[f64]| median(of.iter().zip(to).map(|(of, to)| of / to));
        let [one, few, large] = &looked;
        let told = |ns: &[f64]| format!("{:.0} ns", median(ns.iter().copied()));
        let note = format!("{}, {}, {}", told(one), told(few), told(large));
        self.at_most_noted(
            &format!("13: lookup among {FEW} names ÷ 1"),
            quotient(few, one),
            MOST_LOOKUP_FEW,
            Some(note),
        );
        self.at_most_noted(
            &format!("13: lookup among {many} names ÷ {FEW}"),
            quotient(large, few),
            MOST_LOOKUP,
            None,
        );
        let [_, few, large] = &added;
        self.at_most_noted(
            &format!("13: name added to {many} ÷ {FEW}"),
            quotient(large, few),
            MOST_CREATE,
            Some(format!("{}, {}", told(few), told(large))),
        );
        self.at_most_noted(
            &format!("13: MiB of memory with {many} names"),
            mib,
            MOST_MIB,
            None,
        );
        self.fsck(&image)
    }
}
