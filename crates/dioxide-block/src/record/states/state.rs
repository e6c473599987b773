//! One crash state, in memory and as text.
//!
//! As text: the time, then the writes that are there by their place in the log, in the order in which
//! they are applied, each with the sectors that made it if not all did:
//! `153:4,7,9[0-1;4-8]` is a crash at 153 that kept writes 4 and 7, and of 9 the sectors 0 and 4 to 7.

use crate::record::{Action, Entry};
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

/// Size of the smallest piece of a torn write.
pub(super) const SECTOR: u64 = 512;

/// A description of what is on the media. What is certain at its time is there and is not listed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// When the power fails: see [`states`](super).
    pub at: u64,
    /// The uncertain writes that are there, in the order in which they reached the media.
    pub parts: Vec<Part>,
}

/// A write that is there, or part of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Part {
    /// Its place in the log.
    pub entry: usize,
    /// What of it is there.
    pub kept: Kept,
}

impl Part {
    /// A whole write.
    pub fn whole(entry: usize) -> Part {
        Part {
            entry,
            kept: Kept::All,
        }
    }
}

/// How much of a write is there.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Kept {
    /// All of it.
    All,
    /// These of its sectors of 512 bytes, counted from its first.
    Sectors(Vec<Range<u64>>),
}

impl Kept {
    /// Ranges in order; those that touch become one.
    pub(super) fn of(ranges: Vec<Range<u64>>) -> Kept {
        let mut merged: Vec<Range<u64>> = Vec::new();
        for range in ranges {
            match merged.last_mut() {
                Some(last) if last.end == range.start => last.end = range.end,
                _ => merged.push(range),
            }
        }
        Kept::Sectors(merged)
    }

    /// The sectors that are there, of a write of `sectors`.
    pub(super) fn ranges(&self, sectors: u64) -> Vec<Range<u64>> {
        let cut = |range: &Range<u64>| range.start.min(sectors)..range.end.min(sectors);
        match self {
            Kept::All => std::iter::once(0..sectors).collect(),
            Kept::Sectors(ranges) => ranges.iter().map(cut).collect(),
        }
    }
}

/// Where an action writes, in bytes; nothing for a flush.
pub(super) fn place(action: &Action) -> Range<u64> {
    match action {
        Action::Write { offset, bytes, .. } => *offset..*offset + bytes.len() as u64,
        Action::WriteZeroes { offset, len } | Action::Discard { offset, len } => {
            *offset..*offset + *len
        }
        Action::Flush => 0..0,
    }
}

/// The pieces of a write that the media takes whole, as sectors counted from its first: those that end at
/// a multiple of the unit that is inside none of the ranges. An atomic write is one piece.
pub(super) fn units(action: &Action, unit_bytes: u64, whole: &[Range<u64>]) -> Vec<Range<u64>> {
    let is_inside = |at: u64| whole.iter().any(|range| range.start < at && at < range.end);
    let Range { start, end } = place(action);
    if action.is_atomic() {
        return std::iter::once(0..(end - start) / SECTOR).collect();
    }
    let mut units = Vec::new();
    let mut at = start;
    while at < end {
        let mut next = (at / unit_bytes + 1) * unit_bytes;
        while is_inside(next) {
            next += unit_bytes;
        }
        let next = next.min(end);
        units.push((at - start) / SECTOR..(next - start) / SECTOR);
        at = next;
    }
    units
}

/// Why there is no such state.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateError {
    /// The text is not as [`State`] is printed.
    #[error("no crash state: {0:?}; expected something like 153:4,7,9[0-1;4-8]")]
    Text(String),
    /// A write that the log does not have, or that is certain to be there, or cannot be.
    #[error("no crash state: entry {entry} is not uncertain at {at}")]
    Entry {
        /// The entry.
        entry: usize,
        /// The time.
        at: u64,
    },
    /// A part of an atomic write.
    #[error("no crash state: entry {0} is atomic")]
    Torn(usize),
    /// A write of the log is past the end of the image.
    #[error("entry {entry}, issued at {}, is past the end of the image", .issued)]
    Outside {
        /// The entry.
        entry: usize,
        /// Its number of issue.
        issued: u64,
    },
}

impl StateError {
    pub(super) fn outside(index: usize, entry: &Entry) -> StateError {
        StateError::Outside {
            entry: index,
            issued: entry.issued,
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.at)?;
        for (i, part) in self.parts.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            write!(f, "{comma}{part}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.entry)?;
        let Kept::Sectors(ranges) = &self.kept else {
            return Ok(());
        };
        let words: Vec<String> = ranges
            .iter()
            .map(|range| format!("{}-{}", range.start, range.end))
            .collect();
        write!(f, "[{}]", words.join(";"))
    }
}

impl FromStr for State {
    type Err = StateError;

    fn from_str(text: &str) -> Result<State, StateError> {
        parse(text).ok_or_else(|| StateError::Text(text.into()))
    }
}

fn parse(text: &str) -> Option<State> {
    let (at, parts) = text.split_once(':')?;
    let parts = match parts {
        "" => Some(Vec::new()),
        parts => parts.split(',').map(parse_part).collect(),
    };
    Some(State {
        at: at.parse().ok()?,
        parts: parts?,
    })
}

fn parse_part(text: &str) -> Option<Part> {
    let Some((entry, ranges)) = text.split_once('[') else {
        return Some(Part::whole(text.parse().ok()?));
    };
    let ranges = match ranges.strip_suffix(']')? {
        "" => Some(Vec::new()),
        ranges => ranges.split(';').map(parse_range).collect(),
    };
    Some(Part {
        entry: entry.parse().ok()?,
        kept: Kept::Sectors(ranges?),
    })
}

fn parse_range(text: &str) -> Option<Range<u64>> {
    let (start, end) = text.split_once('-')?;
    Some(start.parse().ok()?..end.parse().ok()?)
}
