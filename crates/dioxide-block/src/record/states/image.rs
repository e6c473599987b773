//! Images that share what they did not change, and the making of crash states on them.
//!
//! A [`Snapshot`] is a list of shared pages. A [`CowDevice`] is a device over one, with pages of its own
//! for what is written to it. [`Media`] is the device of a recorded run at one moment: it holds what is certain there, and puts
//! the uncertain parts of a state on a device over it. So a state costs the pages that its uncertain
//! writes touch, whatever the size of the image.
//!
//! Rejected: a copy of the image per state, which costs milliseconds.

use super::certain::Timeline;
use super::mix;
use super::state::{self, Kept, SECTOR, State, StateError};
use crate::inline::InlineQueue;
use crate::record::{Action, Log};
use crate::{Device, Durability, Geometry, Queue, QueueOptions, Result};
use parking_lot::RwLock;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

const PAGE: usize = 4096;

/// What discarded bytes are. A device need not make them zeros, and who relies on that is to be found out.
const DISCARDED: u8 = 0xDD;

type Page = [u8; PAGE];

/// An image that shares its pages with others.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pages: Arc<Vec<Arc<Page>>>,
}

impl Snapshot {
    /// A copy of an image.
    ///
    /// # Panics
    /// If its length is 0 or no multiple of 4096.
    pub fn new(image: &[u8]) -> Snapshot {
        let (pages, rest) = image.as_chunks::<PAGE>();
        assert!(
            !pages.is_empty() && rest.is_empty(),
            "{} bytes",
            image.len()
        );
        Snapshot {
            pages: Arc::new(pages.iter().map(|page| Arc::new(*page)).collect()),
        }
    }

    /// A part of it.
    ///
    /// # Panics
    /// If it begins or ends inside a page of 4096 bytes, or behind the end.
    pub fn part(&self, bytes: Range<u64>) -> Snapshot {
        let (first, end) = (place_of(bytes.start), place_of(bytes.end));
        assert!(first.1 == 0 && end.1 == 0, "whole pages: {bytes:?}");
        Snapshot {
            pages: Arc::new(self.pages[first.0..end.0].to_vec()),
        }
    }

    /// Length in bytes.
    pub fn size_bytes(&self) -> u64 {
        (self.pages.len() * PAGE) as u64
    }

    /// Writes the image to an empty file, with holes for pages of zeros, and for those full of a `filler`
    /// that nobody will read.
    ///
    /// # Errors
    /// Those of the file.
    pub fn write_sparse(&self, file: &File, filler: u8) -> io::Result<()> {
        let is_hole = |page: &Page| [[0; PAGE], [filler; PAGE]].contains(page);
        file.set_len(self.size_bytes())?;
        for (index, page) in self.pages.iter().enumerate() {
            if !is_hole(page) {
                file.write_all_at(&**page, (index * PAGE) as u64)?;
            }
        }
        Ok(())
    }

    /// Writes what differs from `before` to the file that holds that.
    ///
    /// # Errors
    /// Those of the file.
    ///
    /// # Panics
    /// If they are of different lengths.
    pub fn write_changes(&self, before: &Snapshot, file: &File) -> io::Result<()> {
        assert_eq!(self.pages.len(), before.pages.len(), "images of one length");
        for (index, (page, old)) in self.pages.iter().zip(before.pages.iter()).enumerate() {
            if !Arc::ptr_eq(page, old) {
                file.write_all_at(&**page, (index * PAGE) as u64)?;
            }
        }
        Ok(())
    }

    /// The whole image.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut image = Vec::with_capacity(self.pages.len() * PAGE);
        for page in self.pages.iter() {
            image.extend_from_slice(&**page);
        }
        image
    }

    fn sector_mut(&mut self, sector: u64) -> &mut [u8] {
        let (page, within) = place_of(sector * SECTOR);
        let page = Arc::make_mut(&mut Arc::make_mut(&mut self.pages)[page]);
        &mut page[within..within + SECTOR as usize]
    }
}

fn place_of(offset: u64) -> (usize, usize) {
    let offset = offset as usize;
    (offset / PAGE, offset % PAGE)
}

/// What a [`CowDevice`] says of its cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cache {
    /// Writes are acknowledged before they are durable; there is force unit access.
    Volatile,
    /// As `Volatile`, but force unit access is missing: a flush is all there is.
    NoFua,
}

/// A device over a snapshot, which stays as it is. Clones share what is written. Nothing waits.
///
/// It says that it has a volatile cache, so that whoever uses it orders writes as for a disk.
#[derive(Clone, Debug)]
pub struct CowDevice(Arc<Cow>);

#[derive(Debug)]
struct Cow {
    geometry: Geometry,
    pages: RwLock<Pages>,
}

#[derive(Clone, Debug)]
struct Pages {
    base: Snapshot,
    /// Shared with snapshots that were taken of it.
    own: Vec<Option<Arc<Page>>>,
}

impl CowDevice {
    /// A device with the contents of `base`, with logical blocks of 512 bytes.
    pub fn new(base: &Snapshot, cache: Cache) -> CowDevice {
        let geometry = Geometry {
            size_bytes: base.size_bytes(),
            logical_block_bytes: SECTOR as u32,
            mem_align_bytes: 1,
            direct: true,
            volatile_cache: true,
            fua: cache == Cache::Volatile,
            discard: true,
            read_only: false,
            inline: true,
            atomic: None,
        };
        CowDevice(Arc::new(Cow {
            geometry,
            pages: RwLock::new(Pages {
                base: base.clone(),
                own: vec![None; base.pages.len()],
            }),
        }))
    }

    /// The contents now.
    pub fn snapshot(&self) -> Snapshot {
        let pages = self.0.pages.read();
        let mut snapshot = pages.base.clone();
        for (index, page) in pages.own.iter().enumerate() {
            if let Some(page) = page {
                Arc::make_mut(&mut snapshot.pages)[index] = page.clone();
            }
        }
        snapshot
    }
}

impl Pages {
    /// Calls `each` for every piece of a range that lies in one page: page, first byte in it, length.
    fn pieces(offset: u64, len: u64, mut each: impl FnMut(usize, usize, usize)) {
        let (mut at, end) = (offset, offset + len);
        while at < end {
            let (page, within) = place_of(at);
            let some = (PAGE - within).min((end - at) as usize);
            each(page, within, some);
            at += some as u64;
        }
    }

    fn page(&self, index: usize) -> &Page {
        match &self.own[index] {
            Some(page) => page,
            None => &self.base.pages[index],
        }
    }

    fn page_mut(&mut self, index: usize) -> &mut Page {
        let base = &self.base.pages[index];
        Arc::make_mut(self.own[index].get_or_insert_with(|| Arc::new(**base)))
    }

    fn read(&self, offset: u64, buf: &mut [u8]) {
        let mut done = 0;
        Pages::pieces(offset, buf.len() as u64, |page, within, some| {
            buf[done..done + some].copy_from_slice(&self.page(page)[within..within + some]);
            done += some;
        });
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) {
        let mut done = 0;
        Pages::pieces(offset, bytes.len() as u64, |page, within, some| {
            self.page_mut(page)[within..within + some].copy_from_slice(&bytes[done..done + some]);
            done += some;
        });
    }

    fn fill(&mut self, offset: u64, len: u64, byte: u8) {
        Pages::pieces(offset, len, |page, within, some| {
            self.page_mut(page)[within..within + some].fill(byte);
        });
    }
}

impl Device for CowDevice {
    fn geometry(&self) -> &Geometry {
        &self.0.geometry
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.0.geometry.check("read", offset, buf.len() as u64)?;
        self.0.pages.read().read(offset, buf);
        Ok(())
    }

    fn write_at(&self, offset: u64, buf: &[u8], _: Durability) -> Result<()> {
        self.0.geometry.check("write", offset, buf.len() as u64)?;
        self.0.pages.write().write(offset, buf);
        Ok(())
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.0.geometry.check("discard", offset, len)?;
        self.0.pages.write().fill(offset, len, DISCARDED);
        Ok(())
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        self.0.geometry.check("write zeroes", offset, len)?;
        self.0.pages.write().fill(offset, len, 0);
        Ok(())
    }

    fn open_queue(&self, options: &QueueOptions) -> Result<Box<dyn Queue>> {
        Ok(Box::new(InlineQueue::new(self.clone(), options)))
    }

    fn describe(&self) -> String {
        "copy-on-write".into()
    }
}

/// The media of a recorded run. Moves forward in time at the cost of what becomes certain, and
/// back at the cost of a new start.
#[derive(Clone, Debug)]
pub struct Media<'a> {
    log: &'a Log,
    timeline: Timeline,
    cache: Cache,
    base: Snapshot,
    /// What is certain at `at`.
    certain: Snapshot,
    at: u64,
    /// By sector: the issue of the last write with force unit access that is certain to be there.
    /// (Whatever a flush covered, it also covered all that had completed before.)
    forced: HashMap<u64, u64>,
    fingerprint: u64,
}

impl<'a> Media<'a> {
    /// The media of a run that began with `base` and wrote `log`. Devices of its states say `cache` of theirs.
    pub fn new(base: Snapshot, log: &'a Log, cache: Cache) -> Media<'a> {
        Media {
            log,
            timeline: Timeline::new(log),
            cache,
            certain: base.clone(),
            base,
            at: 0,
            forced: HashMap::new(),
            fingerprint: 0,
        }
    }

    /// The device that whoever comes after the crash finds, and a hash of its contents: equal for equal
    /// contents of this media's states.
    ///
    /// # Errors
    /// The state is none of this log.
    pub fn crash(&mut self, state: &State) -> Result<(CowDevice, u64), StateError> {
        let possible =
            |entry| entry < self.timeline.len() && self.timeline.is_uncertain(entry, state.at);
        if let Some(part) = state.parts.iter().find(|part| !possible(part.entry)) {
            let (entry, at) = (part.entry, state.at);
            return Err(StateError::Entry { entry, at });
        }
        let is_torn = |part: &&state::Part| {
            part.kept != Kept::All && self.log.entries()[part.entry].action.is_atomic()
        };
        if let Some(part) = state.parts.iter().find(is_torn) {
            return Err(StateError::Torn(part.entry));
        }
        self.go_to(state.at)?;
        let device = CowDevice::new(&self.certain, self.cache);
        let mut fingerprint = self.fingerprint;
        {
            let mut pages = device.0.pages.write();
            for part in &state.parts {
                fingerprint ^= self.put(&mut pages, part)?;
            }
        }
        Ok((device, fingerprint))
    }

    /// Puts what a state has of a write onto its image; the change of the fingerprint.
    fn put(&self, pages: &mut Pages, part: &state::Part) -> Result<u64, StateError> {
        let entry = &self.log.entries()[part.entry];
        let place = state::place(&entry.action);
        if place.end > self.base.size_bytes() {
            return Err(StateError::outside(part.entry, entry));
        }
        let mut change = 0;
        for range in part.kept.ranges((place.end - place.start) / SECTOR) {
            for index in range {
                let sector = place.start / SECTOR + index;
                if self.is_superseded(sector, entry.completed) {
                    continue;
                }
                let (page, within) = place_of(sector * SECTOR);
                let old = &mut pages.page_mut(page)[within..within + SECTOR as usize];
                change ^= replace(sector, old, new_bytes(&entry.action, index));
            }
        }
        Ok(change)
    }

    fn go_to(&mut self, at: u64) -> Result<(), StateError> {
        if at < self.at {
            self.certain = self.base.clone();
            (self.at, self.fingerprint) = (0, 0);
            self.forced.clear();
        }
        let turning = self.timeline.turning_certain(self.at, at);
        turning
            .into_iter()
            .try_for_each(|entry| self.settle(entry))?;
        self.at = at;
        Ok(())
    }

    /// A write is certain now.
    fn settle(&mut self, index: usize) -> Result<(), StateError> {
        let entry = &self.log.entries()[index];
        let place = state::place(&entry.action);
        if place.end > self.base.size_bytes() {
            return Err(StateError::outside(index, entry));
        }
        let forced = matches!(entry.action, Action::Write { fua: true, .. });
        for at in 0..(place.end - place.start) / SECTOR {
            let sector = place.start / SECTOR + at;
            if self.is_superseded(sector, entry.completed) {
                continue;
            }
            let bytes = new_bytes(&entry.action, at);
            self.fingerprint ^= replace(sector, self.certain.sector_mut(sector), bytes);
            if forced {
                let last = self.forced.entry(sector).or_default();
                *last = entry.issued.max(*last);
            }
        }
        Ok(())
    }

    /// Whether a sector already has something that was written after a write had completed.
    fn is_superseded(&self, sector: u64, completed: Option<u64>) -> bool {
        match (self.forced.get(&sector), completed) {
            (Some(&forced), Some(completed)) => completed < forced,
            _ => false,
        }
    }
}

/// A sector of what an action wrote.
fn new_bytes(action: &Action, sector: u64) -> &[u8] {
    match action {
        Action::Write { bytes, .. } => {
            let at = (sector * SECTOR) as usize;
            &bytes[at..at + SECTOR as usize]
        }
        Action::Discard { .. } => &[DISCARDED; SECTOR as usize],
        _ => &[0; SECTOR as usize],
    }
}

/// Replaces a sector; what that changes in the fingerprint.
fn replace(sector: u64, old: &mut [u8], new: &[u8]) -> u64 {
    if old == new {
        return 0;
    }
    let change = hash(sector, old) ^ hash(sector, new);
    old.copy_from_slice(new);
    change
}

/// A hash of a sector and its place. Four lanes, so that the multiplications overlap.
fn hash(sector: u64, bytes: &[u8]) -> u64 {
    let mut lanes = [1u64, 2, 3, 4].map(|lane| mix(sector.wrapping_mul(4) + lane));
    for chunk in bytes.as_chunks::<32>().0 {
        for (lane, word) in lanes.iter_mut().zip(chunk.as_chunks::<8>().0) {
            let mixed = (*lane ^ u64::from_le_bytes(*word)).wrapping_mul(0x9FB2_1C65_1E98_DF25);
            *lane = mixed ^ mixed >> 32;
        }
    }
    lanes.into_iter().fold(0, |all, lane| mix(all ^ lane))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{flush, write};
    use super::super::{Options, States};
    use super::*;

    /// What explorations count on: a state costs what changes in it, and not what the image is large. An image of 8 MiB
    /// with twelve writes of a page in each of two epochs, to the same places.
    #[test]
    fn state_has_pages_of_its_own_for_its_uncertain_writes_alone() {
        let entries = (0..26 * 2).step_by(2).map(|number| match number % 26 {
            24 => flush(number, number + 1),
            at => write(number, number + 1, at * 40, &[number as u8 + 1; 8]),
        });
        let (log, base) = (
            Log::new(entries.collect()),
            Snapshot::new(&vec![0; 8 << 20]),
        );
        let mut media = Media::new(base.clone(), &log, Cache::Volatile);
        let mut count = 0;
        for state in States::new(&log, Options::default()) {
            let (device, _) = media.crash(&state).expect("a state");
            let pages = device.0.pages.read();
            let own = pages.own.iter().flatten().count();
            assert!(own <= state.parts.len(), "{own} pages: {state}");
            let all = pages.base.pages.iter().zip(base.pages.iter());
            let certain = all.filter(|(page, old)| !Arc::ptr_eq(page, old)).count();
            assert!(certain <= 12, "{certain} pages: {state}");
            count += 1;
        }
        assert!(count > 8192, "{count} states");
    }
}
