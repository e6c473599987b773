//! What all records together come to, without looking at what is mapped.
//!
//! For: folding the records in their order, so that each file and each name is changed once. Not for:
//! the device, but for what a number or a name stands for before the records.
//!
//! A number may be used again: a record of an inode with another generation is another file, unless it is the one on the device
//! with another generation ([`super::apply`]). The kernel writes the ranges of a file right before its inode, so ranges belong
//! to the inode that comes next, or to the last one.

use super::ranges::{Backing, Ranges};
use crate::mount::Mount;
use crate::{Error, Place, Result};
use dioxide_format::dir::validate_name;
use dioxide_format::extent::{ExtentDisk, LBLK_END, MAX_LEN};
use dioxide_format::journal::fast_commit::{Name, Record};
use dioxide_format::types::{Ino, Pblk};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Where `i_generation` lies in an inode.
const GENERATION: Range<usize> = 0x64..0x68;
/// Where `i_extra_isize` and `i_crtime` with its extra bits lie, in one of more than 128 bytes.
const EXTRA_ISIZE: Range<usize> = 0x80..0x82;
const CRTIME: Range<usize> = 0x90..0x98;

/// What a name of a directory stands for on the device.
pub(super) type Lookup<'a> = dyn Fn(Ino, &[u8]) -> Result<Option<Ino>> + 'a;

/// One file.
#[derive(Clone, Debug, Default)]
pub(super) struct File {
    /// Its inode as it was recorded last.
    pub(super) raw: Option<Vec<u8>>,
    pub(super) ranges: Ranges,
    /// Ranges that were recorded when it had another generation.
    earlier: Ranges,
    /// Ranges since its inode was recorded.
    later: Ranges,
}

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Binding {
    pub(super) before: Option<Ino>,
    pub(super) after: Option<Ino>,
}

/// Everything that is to be changed.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) files: BTreeMap<Ino, File>,
    /// By directory and name.
    pub(super) names: BTreeMap<(Ino, Vec<u8>), Binding>,
    /// How many of the names stand for a number on the device.
    before: BTreeMap<Ino, usize>,
    /// The numbers that files were made with.
    made: BTreeSet<Ino>,
}

impl Plan {
    /// Folds records. `before` tells what a name of a directory stands for on the device.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for numbers, names and ranges that cannot be; those of `before`.
    pub(super) fn new(mount: &Mount, records: &[Record], before: &Lookup<'_>) -> Result<Plan> {
        let mut plan = Plan::default();
        for record in records {
            match record {
                // Linux commits so what becomes of its quota files, and not what is in them: what is used is counted anew.
                Record::AddRange { ino, .. }
                | Record::DelRange { ino, .. }
                | Record::Inode { ino, .. }
                    if is_quota_file(mount, *ino) => {}
                Record::AddRange { ino, extent } => {
                    let (range, backing) = added(mount, *ino, extent)?;
                    plan.file(mount, *ino)?.later.set(range, backing);
                }
                Record::DelRange { ino, lblk, len } => {
                    let start = u64::from(lblk.0);
                    let range = start..(start + u64::from(*len)).min(LBLK_END);
                    if range.is_empty() {
                        return Err(wrong(*ino, "an empty range is removed"));
                    }
                    plan.file(mount, *ino)?.later.set(range, Backing::Hole);
                }
                Record::Inode { ino, raw } => plan.file(mount, *ino)?.record(raw),
                Record::Creat(name) | Record::Link(name) => {
                    plan.file_number(mount, name.ino)?;
                    plan.name(mount, name, before)?.after = Some(name.ino);
                    if matches!(record, Record::Creat(_)) {
                        plan.made.insert(name.ino);
                    }
                }
                Record::Unlink(name) => {
                    let binding = plan.name(mount, name, before)?;
                    // Another file may have the name by now.
                    if binding.after == Some(name.ino) {
                        binding.after = None;
                    }
                }
            }
        }
        for file in plan.files.values_mut() {
            file.ranges.append(&mut file.later);
        }
        Ok(plan)
    }

    /// What names of a directory stand for.
    pub(super) fn named_in(&self, dir: Ino) -> impl Iterator<Item = &Binding> {
        let of = |ino: u32| (Ino(ino), Vec::new());
        let (first, end) = (of(dir.0), of(dir.0.saturating_add(1)));
        self.names.range(first..end).map(|(_, binding)| binding)
    }

    /// How many names of the plan stand for a number on the device.
    pub(super) fn names_of(&self, ino: Ino) -> usize {
        self.before.get(&ino).copied().unwrap_or(0)
    }

    /// Whether a file was made with this number.
    pub(super) fn makes(&self, ino: Ino) -> bool {
        self.made.contains(&ino)
    }

    fn file_number(&self, mount: &Mount, ino: Ino) -> Result<()> {
        let numbers = mount.sb.first_ino().0..=mount.sb.inodes_count();
        match numbers.contains(&ino.0) && !mount.is_own_inode(ino) {
            true => Ok(()),
            false => Err(wrong(ino, "it is the number of no file")),
        }
    }

    fn file(&mut self, mount: &Mount, ino: Ino) -> Result<&mut File> {
        self.file_number(mount, ino)?;
        Ok(self.files.entry(ino).or_default())
    }

    fn name(&mut self, mount: &Mount, name: &Name, before: &Lookup<'_>) -> Result<&mut Binding> {
        if name.parent != Ino::ROOT {
            self.file_number(mount, name.parent)?;
        }
        let plain = validate_name(&name.name).is_ok() && name.name != b"." && name.name != b"..";
        if !plain {
            let what = format!("the name '{}' cannot be", name.name.escape_ascii());
            return Err(wrong(name.parent, &what));
        }
        let key = (name.parent, name.name.clone());
        if !self.names.contains_key(&key) {
            let now = before(name.parent, &name.name)?;
            if let Some(ino) = now {
                *self.before.entry(ino).or_default() += 1;
            }
            let binding = Binding {
                before: now,
                after: now,
            };
            self.names.insert(key.clone(), binding);
        }
        Ok(self.names.get_mut(&key).expect("put there if it was not"))
    }
}

impl File {
    /// The generation of an inode's bytes.
    pub(super) fn generation(raw: &[u8]) -> Option<[u8; 4]> {
        raw.get(GENERATION)?.try_into().ok()
    }

    /// When it was made, as bytes, if there is room for that.
    pub(super) fn made_at(raw: &[u8]) -> Option<&[u8]> {
        let extra = raw.get(EXTRA_ISIZE)?.try_into().map(u16::from_le_bytes);
        let end = EXTRA_ISIZE.start + usize::from(extra.ok()?);
        raw.get(CRTIME).filter(|_| end >= CRTIME.end)
    }

    /// All records are of one file, whatever generations it had.
    pub(super) fn is_one(&mut self) {
        self.earlier.append(&mut self.ranges);
        std::mem::swap(&mut self.earlier, &mut self.ranges);
    }

    /// Its inode is now like this.
    fn record(&mut self, raw: &[u8]) {
        let before = self.raw.as_deref().and_then(File::generation);
        if before.is_some_and(|before| Some(before) != File::generation(raw)) {
            self.earlier.append(&mut self.ranges);
        }
        self.ranges.append(&mut self.later);
        self.raw = Some(raw.to_vec());
    }
}

fn is_quota_file(mount: &Mount, ino: Ino) -> bool {
    ino.0 != 0 && mount.sb.quota_inums().contains(&ino.0)
}

/// The range that was added, and its blocks, which lie in the file system.
fn added(mount: &Mount, ino: Ino, extent: &ExtentDisk) -> Result<(Range<u64>, Backing)> {
    let unwritten = extent.ee_len > MAX_LEN;
    let len = u64::from(extent.ee_len) - if unwritten { u64::from(MAX_LEN) } else { 0 };
    let lblk = u64::from(extent.ee_block);
    let start = u64::from(extent.ee_start_hi) << 32 | u64::from(extent.ee_start_lo);
    let physical = mount.physical_blocks();
    let inside = physical.contains(&start) && start + len <= physical.end;
    if len == 0 || lblk + len > LBLK_END || !inside {
        let what = format!("blocks {start}+{len} are added at its block {lblk}");
        return Err(wrong(ino, &what));
    }
    let start = Pblk(start);
    Ok((lblk..lblk + len, Backing::Blocks { start, unwritten }))
}

pub(super) fn wrong(ino: Ino, what: &str) -> Error {
    Error::Corrupt {
        structure: "fast commit",
        place: Place::ino(ino),
        what: what.to_owned(),
    }
}
