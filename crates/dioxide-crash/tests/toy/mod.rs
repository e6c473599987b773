//! A file system of a hundred lines, right by its simplicity, which can be broken on purpose.
//!
//! All metadata is one record, written by turns to two places, each with a number and a checksum: flush, write,
//! flush. Data is written in place. Space that was freed is used again only after the next commit. A commit also
//! happens after every third change of metadata, so that crashes find more than synced states.

use dioxide::block::record::states::Snapshot;
use dioxide::block::{Device, Durability};
use dioxide_crash::content;
use dioxide_crash::model::{FileSpec, Units};
use dioxide_crash::op::{Durable, Mode, Op};
use dioxide_crash::run::Start;
use dioxide_crash::target::{Outcome, Seen, Session, Stamps, Target};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

const BLOCK: u64 = 1024;
/// Bytes for a copy of the metadata.
const PLACE: u64 = 32 << 10;
const BLOCKS: u64 = 1024;
const FIRST: u64 = 2 * PLACE / BLOCK;

/// How it is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    None,
    /// Metadata is written without a flush before it.
    NoFlushBeforeCommit,
    /// A commit returns before it is durable.
    NoFlushAfterCommit,
    /// The new metadata goes over the newest, not the older.
    SamePlace,
    /// Any checksum will do.
    NoChecksum,
    /// What is freed is used at once.
    FreeBeforeCommit,
    /// Size and map are committed before the data is written.
    DataLate,
    /// A synchronous write does not commit what it changed.
    DsyncWithoutCommit,
    /// A synchronous overwrite is not flushed.
    DsyncWithoutFlush,
    /// Fsync does nothing if there is no new metadata.
    FsyncOnlyMetadata,
    /// Fsync does not commit attributes.
    FsyncForgetsAttributes,
    /// New blocks keep what free space held.
    NoZeroing,
    /// What is behind the end shows when the file grows.
    NoTailZeroing,
    /// Blocks that are allocated read as what they hold.
    UnwrittenShows,
    /// Recovery shows files as after it, and then takes the older metadata.
    CloseLosesMetadata,
    /// A range is taken out in two commits, of which the first leaves a double.
    CollapseInSteps,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Inode {
    size: u64,
    mode: u16,
    atime: i64,
    /// Block in the file: block on the device, whether it is written.
    map: BTreeMap<u64, (u64, bool)>,
}

#[derive(Clone, Debug, Default)]
struct Meta {
    number: u64,
    files: BTreeMap<String, Inode>,
}

/// Bytes for the metadata of a file, so that a torn record has whole files.
const AREA: usize = 7 << 10;

impl Meta {
    /// Checksum, number, and for each file an area.
    fn encode(&self) -> Vec<u8> {
        let mut bytes = self.number.to_le_bytes().to_vec();
        for (index, file) in self.files.iter().enumerate() {
            bytes.extend(serde_json::to_vec(&file).expect("plain data"));
            assert!(bytes.len() <= 8 + (index + 1) * AREA);
            bytes.resize(8 + (index + 1) * AREA, b' ');
        }
        let mut record = sum(&bytes).to_le_bytes().to_vec();
        record.extend(bytes);
        record.resize(record.len().next_multiple_of(512), 0);
        record
    }

    fn decode(bytes: &[u8], bug: Bug) -> Option<Meta> {
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8"));
        let record = &bytes[8..16 + 4 * AREA];
        if sum(record) != word(0) && bug != Bug::NoChecksum {
            return None;
        }
        let areas = record[8..].chunks(AREA);
        let files = areas.map(|area| serde_json::from_slice(area).ok());
        Some(Meta {
            number: word(8),
            files: files.collect::<Option<_>>()?,
        })
    }
}

fn sum(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

/// The file system.
pub struct Toy(pub Bug);

struct Mounted {
    bug: Bug,
    device: Arc<dyn Device>,
    meta: Meta,
    /// Used by the metadata on the disk.
    held: Vec<u64>,
    dirty: u32,
    /// How data is written now.
    how: Durability,
}

fn fail(error: dioxide::block::Error) -> String {
    error.to_string()
}

/// An image with the files of the table in `dioxide_crash::image`.
pub fn start() -> Start {
    let spec = |name: &str, size, data: Vec<_>, unwritten: Vec<_>| FileSpec {
        name: name.into(),
        size,
        data,
        unwritten,
    };
    let files = vec![
        spec("/f0", 41_260, std::iter::once(0..41_260).collect(), vec![]),
        spec(
            "/f1",
            65_536,
            std::iter::once(24_576..40_960).collect(),
            vec![],
        ),
        spec("/f2", 0, vec![], vec![]),
        spec(
            "/f3",
            65_536,
            vec![],
            std::iter::once(16_384..49_152).collect(),
        ),
    ];
    let mut image = vec![0; (BLOCKS * BLOCK) as usize];
    content::poison(0, &mut image);
    let mut meta = Meta::default();
    let mut next = FIRST;
    for (number, spec) in files.iter().enumerate() {
        let mut inode = Inode {
            size: spec.size,
            mode: 0o644,
            ..Inode::default()
        };
        let written = spec.data.iter().map(|range| (range, true));
        for (range, written) in written.chain(spec.unwritten.iter().map(|range| (range, false))) {
            for block in range.start / BLOCK..range.end.div_ceil(BLOCK) {
                inode.map.insert(block, (next, written));
                let bytes = &mut image[(next * BLOCK) as usize..][..BLOCK as usize];
                if written {
                    bytes.fill(0);
                    let len = (range.end - block * BLOCK).min(BLOCK) as usize;
                    content::fill(number, 0, block * BLOCK, &mut bytes[..len]);
                }
                next += 1;
            }
        }
        meta.files.insert(spec.name.clone(), inode);
    }
    let bytes = meta.encode();
    image[..bytes.len()].copy_from_slice(&bytes);
    Start {
        image: Snapshot::new(&image),
        units: Units {
            block_bytes: BLOCK,
            inline_bytes: 0,
        },
        files,
        journal: true,
        whole: Vec::new(),
        atomic: None,
    }
}

impl Target for Toy {
    fn open(&self, device: Arc<dyn Device>) -> Result<Box<dyn Session>, String> {
        let place = |number: u64| {
            let mut bytes = vec![0; PLACE as usize];
            device.read_at(number * PLACE, &mut bytes).map_err(fail)?;
            Ok::<_, String>(Meta::decode(&bytes, self.0))
        };
        let copies = [place(0)?, place(1)?].into_iter().flatten();
        let meta = copies.max_by_key(|meta| meta.number).ok_or("no metadata")?;
        let mut mounted = Mounted {
            bug: self.0,
            device,
            meta,
            held: Vec::new(),
            dirty: 0,
            how: Durability::Cached,
        };
        mounted.held = mounted.used();
        Ok(Box::new(mounted))
    }
}

impl Mounted {
    fn used(&self) -> Vec<u64> {
        let maps = self.meta.files.values().flat_map(|file| file.map.values());
        maps.map(|&(block, _)| block).collect()
    }

    fn commit(&mut self) -> Result<(), String> {
        if self.dirty == 0 {
            return Ok(());
        }
        if self.bug != Bug::NoFlushBeforeCommit {
            self.device.flush().map_err(fail)?;
        }
        self.meta.number += 1;
        let place = match self.bug {
            Bug::SamePlace => 0,
            _ => self.meta.number % 2,
        };
        let bytes = self.meta.encode();
        self.device
            .write_at(place * PLACE, &bytes, Durability::Cached)
            .map_err(fail)?;
        if self.bug != Bug::NoFlushAfterCommit {
            self.device.flush().map_err(fail)?;
        }
        self.dirty = 0;
        self.held = self.used();
        Ok(())
    }

    fn file(&mut self, name: &str) -> &mut Inode {
        self.meta.files.get_mut(name).expect("a file of the image")
    }

    fn free_block(&self) -> Result<u64, String> {
        let used = self.used();
        let held: &[u64] = match self.bug {
            Bug::FreeBeforeCommit => &[],
            _ => &self.held,
        };
        let is_free = |block: &u64| !used.contains(block) && !held.contains(block);
        (FIRST..BLOCKS)
            .find(is_free)
            .ok_or_else(|| "no space".into())
    }

    fn read(&self, block: u64) -> Result<Vec<u8>, String> {
        let mut bytes = vec![0; BLOCK as usize];
        self.device
            .read_at(block * BLOCK, &mut bytes)
            .map_err(fail)?;
        Ok(bytes)
    }

    /// Writes part of a block, in whole sectors.
    fn patch(&self, block: u64, within: usize, part: &[u8], fresh: bool) -> Result<(), String> {
        let mut bytes = match fresh && self.bug != Bug::NoZeroing {
            true => vec![0; BLOCK as usize],
            false => self.read(block)?,
        };
        bytes[within..within + part.len()].copy_from_slice(part);
        let sectors = match fresh {
            true => 0..BLOCK as usize,
            false => within / 512 * 512..(within + part.len()).next_multiple_of(512),
        };
        let at = block * BLOCK + sectors.start as u64;
        self.device
            .write_at(at, &bytes[sectors], self.how)
            .map_err(fail)
    }

    fn grow(&mut self, name: &str, size: u64) -> Result<(), String> {
        let old = self.file(name).size;
        if size <= old {
            return Ok(());
        }
        let (block, within) = (old / BLOCK, (old % BLOCK) as usize);
        let last = self.file(name).map.get(&block).copied();
        if let Some((place, true)) = last.filter(|_| within > 0 && self.bug != Bug::NoTailZeroing) {
            self.patch(place, within, &vec![0; BLOCK as usize - within], false)?;
        }
        self.file(name).size = size;
        self.dirty += 1;
        Ok(())
    }

    fn write(&mut self, name: &str, offset: u64, data: &[u8]) -> Result<(), String> {
        let end = offset + data.len() as u64;
        self.grow(name, end)?;
        let mut late = Vec::new();
        for block in offset / BLOCK..end.div_ceil(BLOCK) {
            let start = block * BLOCK;
            let (from, to) = (offset.max(start), end.min(start + BLOCK));
            let part = &data[(from - offset) as usize..(to - offset) as usize];
            let mapped = self.file(name).map.get(&block).copied();
            let place = match mapped {
                Some((place, _)) => place,
                None => self.free_block()?,
            };
            let fresh = !matches!(mapped, Some((_, true)));
            if fresh {
                self.file(name).map.insert(block, (place, true));
                self.dirty += 1;
            }
            late.push((place, (from - start) as usize, part, fresh));
        }
        if self.bug == Bug::DataLate {
            self.commit()?;
        }
        late.into_iter()
            .try_for_each(|(place, within, part, fresh)| self.patch(place, within, part, fresh))
    }

    fn zero(&mut self, name: &str, from: u64, to: u64) -> Result<(), String> {
        for block in from / BLOCK..to.div_ceil(BLOCK) {
            let start = block * BLOCK;
            let (from, to) = (from.max(start), to.min(start + BLOCK));
            if let Some(&(place, true)) = self.file(name).map.get(&block) {
                self.patch(
                    place,
                    (from - start) as usize,
                    &vec![0; (to - from) as usize],
                    false,
                )?;
            }
        }
        Ok(())
    }

    fn allocate(&mut self, name: &str, mode: Mode, offset: u64, len: u64) -> Result<(), String> {
        let end = offset + len;
        if mode == Mode::WriteZeroes {
            return self.write(name, offset, &vec![0; len as usize]);
        }
        let touched = offset / BLOCK..end.div_ceil(BLOCK);
        let whole = offset.div_ceil(BLOCK)..end / BLOCK;
        self.dirty += 1;
        match mode {
            Mode::PunchHole => {
                self.zero_edges(name, offset, end)?;
                self.file(name)
                    .map
                    .retain(|block, _| !whole.contains(block));
            }
            Mode::CollapseRange | Mode::InsertRange => self.shift(name, mode, offset, len)?,
            _ => {
                for block in touched {
                    if !self.file(name).map.contains_key(&block) {
                        let place = self.free_block()?;
                        let shows = self.bug == Bug::UnwrittenShows;
                        self.file(name).map.insert(block, (place, shows));
                    }
                }
            }
        }
        if matches!(mode, Mode::ZeroRange | Mode::ZeroRangeKeepSize) {
            self.zero_edges(name, offset, end)?;
            let slots = self
                .file(name)
                .map
                .range_mut(whole.start..whole.end.max(whole.start));
            slots.for_each(|(_, slot)| slot.1 = false);
        }
        match mode {
            Mode::Allocate | Mode::ZeroRange => self.grow(name, end),
            _ => Ok(()),
        }
    }

    fn zero_edges(&mut self, name: &str, offset: u64, end: u64) -> Result<(), String> {
        let (first, last) = (offset.next_multiple_of(BLOCK), end / BLOCK * BLOCK);
        self.zero(name, offset, first.min(end))?;
        self.zero(name, last.max(offset), end)
    }

    fn shift(&mut self, name: &str, mode: Mode, offset: u64, len: u64) -> Result<(), String> {
        let (at, count) = (offset / BLOCK, len / BLOCK);
        let file = self.file(name);
        let mut rest = file.map.split_off(&at);
        match mode {
            Mode::InsertRange => {
                file.map
                    .extend(rest.into_iter().map(|(block, slot)| (block + count, slot)));
                file.size += len;
            }
            _ => {
                let moved = rest.split_off(&(at + count));
                file.map
                    .extend(moved.into_iter().map(|(block, slot)| (block - count, slot)));
                if self.bug == Bug::CollapseInSteps {
                    self.commit()?;
                    self.dirty += 1;
                }
                self.file(name).size -= len;
            }
        }
        Ok(())
    }

    fn do_it(&mut self, op: &Op, name: &str, data: &[u8]) -> Result<(), String> {
        match *op {
            Op::Write {
                offset, durable, ..
            }
            | Op::WriteQueued {
                offset, durable, ..
            } => self.write_durably(name, offset, data, durable),
            Op::Append { durable, .. } | Op::AppendQueued { durable, .. } => {
                let end = self.file(name).size;
                self.write_durably(name, end, data, durable)
            }
            Op::SetLen { len, durable, .. } => {
                self.grow(name, len)?;
                let file = self.file(name);
                file.map.split_off(&len.div_ceil(BLOCK));
                file.size = len;
                self.dirty += 1;
                self.sync_if(durable)
            }
            Op::Allocate {
                mode,
                offset,
                len,
                durable,
                ..
            } => {
                self.allocate(name, mode, offset, len)?;
                self.sync_if(durable)
            }
            Op::SetMode { mode, .. } => {
                self.file(name).mode = mode;
                self.dirty += u32::from(self.bug != Bug::FsyncForgetsAttributes);
                Ok(())
            }
            Op::SetTime { secs, .. } => {
                self.file(name).atime = secs;
                self.dirty += u32::from(self.bug != Bug::FsyncForgetsAttributes);
                Ok(())
            }
            Op::Fsync { .. } | Op::Fdatasync { .. } | Op::Sync => self.sync(),
            Op::FsyncQueued { .. } | Op::FdatasyncQueued { .. } => self.sync(),
            Op::Trim | Op::Policy(_) => Ok(()),
            Op::WriteAtomic { .. } => Err("it has no atomic writes".into()),
            Op::Together(_) | Op::Crash => unreachable!("no call of a session"),
            Op::Name(_) => Err("it has no names".into()),
        }
    }

    fn write_durably(
        &mut self,
        name: &str,
        offset: u64,
        data: &[u8],
        durable: Durable,
    ) -> Result<(), String> {
        if durable == Durable::No {
            return self.write(name, offset, data);
        }
        if self.is_overwrite(name, offset, data) && self.device.geometry().fua {
            self.how = Durability::ForceUnitAccess;
            let result = self.write(name, offset, data);
            self.how = Durability::Cached;
            return result;
        }
        self.write(name, offset, data)?;
        match (self.bug, self.dirty) {
            (Bug::DsyncWithoutCommit, _) => self.device.flush().map_err(fail),
            (Bug::DsyncWithoutFlush, 0) => Ok(()),
            _ => self.sync(),
        }
    }

    /// Whether a write changes no metadata, and none waits to be committed.
    fn is_overwrite(&mut self, name: &str, offset: u64, data: &[u8]) -> bool {
        let (dirty, file) = (self.dirty, self.file(name).clone());
        let end = offset + data.len() as u64;
        let is_written = |block| matches!(file.map.get(&block), Some((_, true)));
        dirty == 0 && end <= file.size && (offset / BLOCK..end.div_ceil(BLOCK)).all(is_written)
    }

    fn sync_if(&mut self, durable: Durable) -> Result<(), String> {
        match durable {
            Durable::No => Ok(()),
            Durable::Data | Durable::Full => self.sync(),
        }
    }

    fn sync(&mut self) -> Result<(), String> {
        match (self.dirty, self.bug) {
            (0, Bug::FsyncOnlyMetadata) => Ok(()),
            (0, _) => self.device.flush().map_err(fail),
            _ => self.commit(),
        }
    }
}

impl Session for Mounted {
    fn run(&mut self, op: &Op, name: &str, data: &[u8]) -> Result<Outcome, String> {
        self.do_it(op, name, data)?;
        if self.dirty >= 3 {
            self.commit()?;
        }
        Ok(Outcome::Done)
    }

    fn look(&mut self, name: &str) -> Result<Seen, String> {
        let file = self.file(name).clone();
        let mut data = Vec::new();
        for block in 0..file.size.div_ceil(BLOCK) {
            match file.map.get(&block) {
                Some(&(place, true)) => data.extend(self.read(place)?),
                _ => data.extend([0; BLOCK as usize]),
            }
        }
        data.truncate(file.size as usize);
        Ok(Seen {
            is_gone: false,
            data,
            mode: file.mode,
            atime: file.atime,
            stamps: Stamps::default(),
            shape: sum(format!("{:?}", file.map).as_bytes()),
        })
    }

    fn close(mut self: Box<Self>) -> Result<(), String> {
        if self.bug == Bug::CloseLosesMetadata {
            let older = (self.meta.number + 1) % 2;
            self.meta.number += 2;
            let bytes = vec![0; 512];
            let newest = PLACE * (1 - older);
            self.device
                .write_at(newest, &bytes, Durability::Cached)
                .map_err(fail)?;
        }
        self.sync()
    }
}
