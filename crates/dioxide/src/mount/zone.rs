//! The blocks that no file may claim: superblocks, descriptors, bitmaps, inode tables, the journal.
//!
//! For: refusing a map that leads there, so that a damaged map never makes a write to a file hit
//! the file system itself. Not for: blocks that belong to inodes.
//!
//! On a file system of up to [`KNOWN_GROUPS`] groups all of them are known from the time it is
//! opened. On a larger one only those are checked that belong to the groups around the block in
//! question ([`WINDOW_GROUPS`] at a time), which is where `mke2fs` puts them: reading every
//! descriptor of a huge file system for one file would take longer than anything else. What lies farther from its group (flex
//! groups of more groups than that, tables of groups that were added later) is not seen here; it is never freed and never
//! allocated, since who changes a file system reads all descriptors (`Groups::totals`).

use super::Mount;
use super::groups::Counts;
use crate::inode::Inode;
use crate::map::{self, MapKind};
use crate::{Error, Place, Result};
use dioxide_format::superblock::SuperBlock;
use dioxide_format::system_zone::{Fixed, SystemZone, overlaps};
use dioxide_format::types::{Group, Ino, Lblk, Pblk};
use std::ops::Range;

/// Most groups whose descriptors are all read and checked at open (2 TiB of 4 KiB blocks).
pub(super) const KNOWN_GROUPS: u32 = 16384;
/// Most groups that are looked at together on a larger file system.
const WINDOW_GROUPS: u32 = 64;

/// What is known of the zone for as long as the file system is mounted.
#[derive(Debug)]
pub(super) struct Zones {
    /// All metadata, if the groups were read at open.
    fixed: Option<SystemZone>,
    journal: SystemZone,
}

impl Zones {
    /// Nothing is known yet.
    pub(super) fn unknown() -> Zones {
        Zones {
            fixed: None,
            journal: SystemZone::default(),
        }
    }
}

fn zone_of(sb: &SuperBlock, ranges: Vec<Range<u64>>) -> SystemZone {
    SystemZone::new(sb, [], ranges)
}

/// Blocks that are the metadata of two kinds or groups.
fn conflict((a, b): (&Fixed, &Fixed)) -> Error {
    Error::Corrupt {
        structure: "group descriptor",
        place: Place {
            block: Some(b.blocks.start),
            ..Place::group(b.group)
        },
        what: format!("{b} overlaps {a}"),
    }
}

impl Mount {
    /// Reads and checks the first [`KNOWN_GROUPS`] descriptors. If those are all, remembers what they
    /// occupy, and what they count as free. Returns the damaged groups' errors and what overlaps, the
    /// first few of each.
    pub(super) fn learn_groups(&mut self) -> Vec<Error> {
        const FEW: usize = 4;
        let groups = self.sb.group_count();
        let mut errors = Vec::new();
        let mut fixed = Vec::new();
        let mut counts = Counts::default();
        for group in (0..groups.min(KNOWN_GROUPS)).map(Group) {
            match self.group_desc(group) {
                Ok(desc) => {
                    counts.add(&self.sb, &desc);
                    fixed.extend(Fixed::of(&self.sb, group, &desc));
                }
                Err(error) if errors.len() < FEW => errors.push(error),
                Err(_) => {}
            }
        }
        errors.extend(overlaps(&mut fixed).take(FEW).map(conflict));
        if groups <= KNOWN_GROUPS {
            let ranges = fixed.into_iter().map(|fixed| fixed.blocks).collect();
            self.zones.fixed = Some(zone_of(&self.sb, ranges));
            self.counts = errors.is_empty().then_some(counts);
        }
        errors
    }

    /// How many blocks are fixed metadata or the journal: as the superblock says, if it does.
    pub(crate) fn overhead(&self) -> u64 {
        let clusters = u64::from(self.sb.disk().s_overhead_clusters);
        if clusters > 0 {
            return clusters * u64::from(self.sb.cluster_ratio());
        }
        let len = |zone: &SystemZone| -> u64 {
            let ranges = zone.ranges().iter();
            ranges.map(|range| range.end - range.start).sum()
        };
        let fixed = self.zones.fixed.as_ref().map_or(0, len);
        self.sb.first_data_block().0 + fixed + len(&self.zones.journal)
    }

    /// The blocks of the journal.
    pub(crate) fn journal_zone(&self) -> SystemZone {
        self.zones.journal.clone()
    }

    /// Remembers the blocks of the journal.
    pub(super) fn learn_journal(&mut self, blocks: Vec<Range<u64>>) {
        self.zones.journal = zone_of(&self.sb, blocks);
    }

    /// The zone of the groups around `group`; for when not all of it is known.
    fn window(&self, window: u32) -> Result<SystemZone> {
        let size = self.window_groups();
        let first = window.saturating_mul(size);
        let end = first.saturating_add(size).min(self.sb.group_count());
        let mut fixed = Vec::new();
        for group in (first..end).map(Group) {
            match self.group_desc(group) {
                Ok(desc) => fixed.extend(Fixed::of(&self.sb, group, &desc)),
                // Salvage: what cannot be written cannot do harm.
                Err(_) if self.why_read_only().is_some() => {}
                Err(error) => return Err(error),
            }
        }
        if let Some(pair) = overlaps(&mut fixed).next()
            && self.why_read_only().is_none()
        {
            return Err(conflict(pair));
        }
        let ranges = fixed.into_iter().map(|fixed| fixed.blocks).collect();
        Ok(zone_of(&self.sb, ranges))
    }

    fn window_groups(&self) -> u32 {
        let log = u32::from(self.sb.log_groups_per_flex());
        1u32.checked_shl(log)
            .unwrap_or(WINDOW_GROUPS)
            .min(WINDOW_GROUPS)
    }

    /// Which window a block belongs to.
    fn window_of(&self, pblk: u64) -> u32 {
        let group = self
            .sb
            .group_of_block(Pblk(pblk))
            .map_or(0, |group| group.0);
        group / self.window_groups()
    }
}

/// Checks the runs of one file against the zone.
pub(crate) struct ZoneCheck<'a> {
    mount: &'a Mount,
    /// The journal's own map leads to the journal.
    is_journal: bool,
    /// The last window that was asked for.
    window: Option<(u32, SystemZone)>,
}

impl<'a> ZoneCheck<'a> {
    pub(crate) fn new(mount: &'a Mount, ino: Ino) -> ZoneCheck<'a> {
        ZoneCheck {
            mount,
            is_journal: mount.sb.journal_inum() == Some(ino),
            window: None,
        }
    }

    /// Whether any of `len` blocks from `start` on, which lie inside the file system, holds
    /// metadata. Blocks on descriptors on a huge file system.
    ///
    /// # Errors
    /// Damaged descriptors.
    pub(crate) fn hits(&mut self, start: Pblk, len: u64) -> Result<bool> {
        let zones = &self.mount.zones;
        if !self.is_journal && zones.journal.overlaps(start, len) {
            return Ok(true);
        }
        match &zones.fixed {
            Some(zone) => Ok(zone.overlaps(start, len)),
            None => self.hits_window(start, len),
        }
    }

    fn hits_window(&mut self, start: Pblk, len: u64) -> Result<bool> {
        let last = start.0.saturating_add(len.saturating_sub(1));
        for window in self.mount.window_of(start.0)..=self.mount.window_of(last) {
            if !matches!(&self.window, Some((at, _)) if *at == window) {
                self.window = Some((window, self.mount.window(window)?));
            }
            if self
                .window
                .as_ref()
                .is_some_and(|(_, zone)| zone.overlaps(start, len))
            {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Most pieces that a journal may have.
const JOURNAL_PIECES: usize = 65536;

/// The blocks of the journal, as ranges.
///
/// # Errors
/// Damage; [`Error::Corrupt`] also for a journal with a hole or in absurdly many pieces.
pub(super) fn journal_blocks(mount: &Mount, journal: &Inode) -> Result<Vec<Range<u64>>> {
    let corrupt = |what: String| Error::Corrupt {
        structure: "journal",
        place: Place::ino(journal.ino),
        what,
    };
    let blocks = journal.i_size().div_ceil(mount.block_bytes());
    let blocks = u32::try_from(blocks).map_err(|_| corrupt(format!("{blocks} blocks")))?;
    let mut ranges = Vec::new();
    let mut at = 0;
    while at < blocks {
        let mapping = map::load::lookup_or_load(mount, journal, Lblk(at), blocks - at)?;
        if mapping.kind == MapKind::Hole || ranges.len() == JOURNAL_PIECES {
            return Err(corrupt(format!("{:?} at its block {at}", mapping.kind)));
        }
        ranges.push(mapping.pblk.0..mapping.pblk.0 + u64::from(mapping.len));
        at += mapping.len;
    }
    Ok(ranges)
}
