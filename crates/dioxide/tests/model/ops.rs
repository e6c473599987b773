//! Operations on a few small files: where they come from, what they should leave, and how dioxide
//! carries them out.
//!
//! An operation depends on the seed and on what the files should contain, on nothing else: so the same
//! seed gives the same operations to whoever carries them out.

use crate::random::Random;
use dioxide::{FallocateMode, File, Fs, OpenOptions};
use std::ops::Range;

/// The files, in the root directory.
pub const NAMES: [&str; FILES] = ["f0", "f1", "f2"];
pub const FILES: usize = 3;

#[derive(Clone, Copy, Debug)]
pub struct Op {
    pub file: usize,
    pub what: What,
}

#[derive(Clone, Copy, Debug)]
pub enum What {
    Write { at: u64, len: u64, seed: u64 },
    Truncate { size: u64 },
    Allocate(FallocateMode, u64, u64),
    SyncAll,
    SyncData,
    SyncFs,
}

/// What decides which operations there are, and how they end.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub block: u64,
    pub cluster: u64,
    pub extents: bool,
    /// No file becomes longer.
    pub most: u64,
    /// Whether a file is synced as soon as blocks of it have moved: for who looks at files after a crash and tells
    /// what may be there by its place. What is written after a move that is then lost is there at another place.
    pub settles: bool,
}

impl Shape {
    pub fn of(fs: &Fs, most: u64) -> Shape {
        Shape {
            block: fs.block_size().into(),
            cluster: fs.superblock().cluster_size().into(),
            extents: fs.metadata("/f0").expect("it exists").flags & 0x8_0000 != 0,
            most,
            settles: false,
        }
    }
}

pub struct Generator {
    pub random: Random,
    pub shape: Shape,
    /// A file that is to be synced.
    moved: Option<usize>,
}

impl Generator {
    pub fn new(seed: u64, shape: Shape) -> Generator {
        Generator {
            random: Random::new(seed),
            shape,
            moved: None,
        }
    }

    /// An offset: often at a block's edge, often near the end.
    fn offset(&mut self, size: u64) -> u64 {
        let block = self.shape.block;
        let near = match self.random.pick(4) {
            0 => size,
            1 => size.saturating_sub(self.random.below(0..3 * block)),
            2 => self.random.below(0..size.max(1) + 3 * block),
            _ => self.random.below(0..self.shape.most / 2),
        };
        match self.random.pick(3) {
            0 => near,
            1 => near / block * block,
            _ => near / 512 * 512,
        }
    }

    fn len(&mut self) -> u64 {
        let block = self.shape.block;
        match self.random.pick(6) {
            0 => self.random.below(1..700),
            1 => block,
            2 => 512 * self.random.below(1..20),
            3 => block * self.random.below(1..40),
            4 => self.random.below(1..100_000),
            _ => self.random.below(1..20 * block),
        }
    }

    fn whole_clusters(&mut self, size: u64) -> Range<u64> {
        let unit = self.shape.cluster;
        let start = self.random.below(0..size / unit + 1) * unit;
        start..start + unit * self.random.below(1..8)
    }

    /// The next operation, for files that contain this.
    pub fn next(&mut self, files: &[Vec<u8>]) -> Op {
        use FallocateMode::{CollapseRange, InsertRange};
        if let Some(file) = self.moved.take() {
            let what = What::SyncAll;
            return Op { file, what };
        }
        loop {
            let file = self.random.pick(files.len() as u64) as usize;
            let size = files[file].len() as u64;
            let what = self.what(size);
            if self.fits(size, &what) {
                let moves = matches!(what, What::Allocate(CollapseRange | InsertRange, ..));
                self.moved = (self.shape.settles && moves).then_some(file);
                return Op { file, what };
            }
        }
    }

    fn what(&mut self, size: u64) -> What {
        use FallocateMode::*;
        let (at, len) = (self.offset(size), self.len());
        let seed = self.random.next();
        let either = self.random.pick(2) == 0;
        match self.random.pick(16) {
            0..=6 => What::Write { at, len, seed },
            7 => What::Write {
                at: size,
                len,
                seed,
            },
            8 => What::Truncate { size: at },
            9 => What::Truncate {
                size: size.saturating_sub(len),
            },
            10 => What::Allocate(Allocate, at, len),
            11 => What::Allocate(KeepSize, at, len),
            12 => What::Allocate(PunchHole, at, len),
            13 if seed.is_multiple_of(3) => What::Allocate(WriteZeroes, at, len),
            13 if either => What::Allocate(ZeroRange, at, len),
            13 => What::Allocate(ZeroRangeKeepSize, at, len),
            14 => {
                let range = self.whole_clusters(size);
                let mode = if either { CollapseRange } else { InsertRange };
                What::Allocate(mode, range.start, range.end - range.start)
            }
            _ => match self.random.pick(3) {
                0 => What::SyncAll,
                1 => What::SyncData,
                _ => What::SyncFs,
            },
        }
    }

    fn fits(&self, size: u64, what: &What) -> bool {
        use FallocateMode::{CollapseRange, InsertRange};
        let most = self.shape.most;
        match *what {
            What::Write { at, len, .. } => at + len <= most,
            What::Truncate { size } => size <= most,
            What::Allocate(InsertRange, _, len) => size + len <= most,
            What::Allocate(CollapseRange, ..) => true,
            What::Allocate(_, at, len) => at + len <= most,
            _ => true,
        }
    }
}

/// The data of a write.
pub fn data(len: u64, seed: u64) -> Vec<u8> {
    dioxide_testkit::pattern(seed, 0, len as usize)
}

/// What an operation makes of a file's content, or the `errno` that it must fail with.
pub fn apply(what: &What, content: &mut Vec<u8>, shape: &Shape) -> Result<(), i32> {
    match *what {
        What::Write { at, len, seed } => {
            let (at, end) = (at as usize, (at + len) as usize);
            content.resize(content.len().max(end), 0);
            content[at..end].copy_from_slice(&data(len, seed));
            Ok(())
        }
        What::Truncate { size } => {
            content.resize(size as usize, 0);
            Ok(())
        }
        What::Allocate(mode, ..) if !shape.extents && mode != FallocateMode::PunchHole => {
            Err(libc::EOPNOTSUPP)
        }
        What::Allocate(mode, at, len) => allocate(mode, at..at + len, content),
        What::SyncAll | What::SyncData | What::SyncFs => Ok(()),
    }
}

fn allocate(mode: FallocateMode, range: Range<u64>, content: &mut Vec<u8>) -> Result<(), i32> {
    let size = content.len() as u64;
    let covered = range.start.min(size) as usize..range.end.min(size) as usize;
    let grown = size.max(range.end) as usize;
    match mode {
        FallocateMode::Allocate => content.resize(grown, 0),
        FallocateMode::KeepSize => {}
        FallocateMode::PunchHole | FallocateMode::ZeroRangeKeepSize => content[covered].fill(0),
        FallocateMode::ZeroRange | FallocateMode::WriteZeroes => {
            content[covered].fill(0);
            content.resize(grown, 0);
        }
        FallocateMode::CollapseRange if range.end >= size => return Err(libc::EINVAL),
        FallocateMode::CollapseRange => drop(content.drain(covered)),
        FallocateMode::InsertRange if range.start >= size => return Err(libc::EINVAL),
        FallocateMode::InsertRange => {
            let zeros = vec![0; (range.end - range.start) as usize];
            content.splice(covered.start..covered.start, zeros);
        }
        other => panic!("{other:?} is new"),
    }
    Ok(())
}

/// Carries an operation out.
pub fn run(what: &What, fs: &Fs, file: &File) -> dioxide::Result<()> {
    match *what {
        What::Write { at, len, seed } => {
            let written = file.write_at(&data(len, seed), at)?;
            assert_eq!(written as u64, len, "a write is whole or fails");
            Ok(())
        }
        What::Truncate { size } => file.set_len(size),
        What::Allocate(mode, at, len) => file.allocate(mode, at, len),
        What::SyncAll => file.sync_all(),
        What::SyncData => file.sync_data(),
        What::SyncFs => fs.sync(),
    }
}

/// All files, for reading and writing.
pub fn open_files(fs: &Fs) -> Vec<File> {
    let options = OpenOptions::new().read(true).write(true);
    let open = |number| options.open(fs, format!("/f{number}"));
    (0..FILES)
        .map(|number| open(number).expect("it exists"))
        .collect()
}

/// The whole content, as dioxide reads it.
pub fn content(file: &File) -> Vec<u8> {
    try_content(file).expect("a read")
}

/// The whole content, of a file that may not be readable.
pub fn try_content(file: &File) -> dioxide::Result<Vec<u8>> {
    let mut found = vec![0xEE; file.len() as usize + 100];
    let len = file.read_at(&mut found, 0)?;
    found.truncate(len);
    Ok(found)
}
