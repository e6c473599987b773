//! Where the journal is: in a file of the file system, or on a device of its own.

use super::Mount;
use super::open::no_journal;
use super::span::read_span;
use super::zone::journal_blocks;
use crate::mkfs::uuid_string;
use crate::{Error, Place, Result};
use dioxide_block::Device;
use dioxide_format::features::{Compat, Incompat};
use dioxide_format::journal::JournalSuperBlock;
use dioxide_format::superblock::{SUPERBLOCK_OFFSET, SuperBlock};
use dioxide_journal::log::{Log, LogMap};
use std::sync::Arc;

/// The journal on a device of its own, if it is that of the file system.
///
/// # Errors
/// [`Error::Invalid`] for a device that holds no journal, another file system's, or that of several, or whose superblock is damaged;
/// the device's.
pub(crate) fn external(device: &Arc<dyn Device>, sb: &SuperBlock) -> Result<Log> {
    let wrong = |what: String| Error::Invalid(format!("{}: {what}", device.describe()));
    let bytes = read_span(&**device, SUPERBLOCK_OFFSET, SuperBlock::SIZE, "superblock")?;
    let place = Place::default().at(SUPERBLOCK_OFFSET);
    let theirs = SuperBlock::parse(&bytes).map_err(|error| Error::format(error, place))?;
    if !is_journal_device(&theirs) {
        return Err(wrong("it is no journal device".into()));
    }
    let intact = theirs.verify_checksum();
    intact.map_err(|error| wrong(Error::format(error, place).to_string()))?;
    if theirs.uuid() != sb.journal_uuid() {
        return Err(wrong("it is another file system's journal".into()));
    }
    let bytes = sb.block_size();
    if theirs.block_size() != bytes {
        return Err(wrong(format!("its blocks are not of {bytes} bytes")));
    }
    let logical = device.geometry().logical_block_bytes;
    if bytes < logical {
        return Err(wrong(format!(
            "its logical blocks are of {logical} bytes, and those of the file system of {bytes}"
        )));
    }
    let log = alone(device, &theirs)?;
    // What one of them has logged would be replayed on the other. Damage is told when the log is used.
    match log.read_superblock() {
        Ok(journal) if journal.s_nr_users > 1 => {
            let what = "file systems share it, and their logs would be mixed; each needs a journal of its own";
            Err(wrong(format!("{} {what}", journal.s_nr_users)))
        }
        _ => Ok(log),
    }
}

/// The log on a device that has this superblock and is a journal.
///
/// # Errors
/// Damage.
pub(crate) fn alone(device: &Arc<dyn Device>, sb: &SuperBlock) -> Result<Log> {
    let bytes = sb.block_size();
    let there = device.geometry().size_bytes / u64::from(bytes);
    let blocks = sb.blocks_count().min(there);
    let map = LogMap::external(blocks, bytes as usize)?;
    Ok(Log::new(device.clone(), map, bytes as usize))
}

fn is_journal_device(sb: &SuperBlock) -> bool {
    sb.has_magic() && sb.features().incompat.contains(Incompat::JOURNAL_DEV)
}

/// The superblock of a device that is a journal and no file system, if it is one.
pub(crate) fn journal_device(device: &dyn Device) -> Option<SuperBlock> {
    let bytes = read_span(device, SUPERBLOCK_OFFSET, SuperBlock::SIZE, "superblock").ok()?;
    SuperBlock::parse(&bytes).ok().filter(is_journal_device)
}

/// Refuses a device with this superblock if it is a journal, where a file system is expected.
///
/// # Errors
/// [`Error::Unsupported`], with the file systems that it is the journal of.
pub(crate) fn refuse_journal_device(device: &dyn Device, sb: &SuperBlock) -> Result<()> {
    if !is_journal_device(sb) {
        return Ok(());
    }
    // Its superblock has a block of its own, after that of ext4's.
    let at = u64::from(sb.block_size()).max(2 * SUPERBLOCK_OFFSET);
    let bytes = read_span(device, at, JournalSuperBlock::SIZE, "journal superblock");
    let journal = bytes.ok().and_then(|bytes| {
        let journal = JournalSuperBlock::parse(&bytes).ok()?;
        journal.validate(sb.block_size()).ok()?;
        Some(journal)
    });
    let users = journal.map_or_else(Vec::new, |journal| users(&journal));
    let of = match &users[..] {
        [] => "no file system that it names".to_owned(),
        users => format!("file system UUID {}", users.join(", ")),
    };
    Err(Error::Unsupported(format!(
        "an external journal (journal_dev) of {of}: open that, with this as its journal (--journal, journal_path=)"
    )))
}

/// Refuses a device that was named as the journal of a file system that has none outside.
///
/// # Errors
/// [`Error::Invalid`].
pub(crate) fn refuse_needless(sb: &SuperBlock) -> Result<()> {
    let why = match sb.features().compat.contains(Compat::HAS_JOURNAL) {
        true if sb.journal_dev() != 0 => return Ok(()),
        true => "has its journal inside",
        false => "has no journal",
    };
    Err(Error::Invalid(format!(
        "this file system {why}, and none on a device of its own: leave out --journal, journal_path="
    )))
}

/// UUIDs of the file systems whose journal it is.
pub(crate) fn users(journal: &JournalSuperBlock) -> Vec<String> {
    let uuids = journal.s_users.as_chunks().0;
    let users = uuids.iter().take(journal.s_nr_users as usize);
    users.map(|uuid| uuid_string(*uuid)).collect()
}

/// Whether the journal of a file system that has one is on a device of its own, and nowhere else.
pub(crate) fn is_elsewhere(sb: &SuperBlock) -> bool {
    sb.journal_dev() != 0 && sb.journal_inum().is_none()
}

/// What is said of a journal that was not given.
pub(crate) const LIES_ELSEWHERE: &str =
    "the journal lies on another device: name it (--journal, journal_path=)";

impl Mount {
    /// The journal of the file system.
    ///
    /// # Errors
    /// Damage; [`Error::Unsupported`] if it lies on a device that was not given.
    pub(crate) fn log(&self) -> Result<Log> {
        let place = Place::default().at(SUPERBLOCK_OFFSET);
        let one_place = self.sb.validate_journal_place();
        one_place.map_err(|error| Error::format(error, place))?;
        if self.sb.journal_dev() == 0 {
            let inode = self.journal_inode()?;
            let blocks = journal_blocks(self, &inode)?;
            if blocks.is_empty() {
                return Err(no_journal(inode.place(), "it has no blocks"));
            }
            let map = LogMap::internal(blocks)?;
            return Ok(Log::new(
                self.device.clone(),
                map,
                self.block_bytes() as usize,
            ));
        }
        match &self.journal_device {
            Some(device) => external(device, &self.sb),
            None => Err(Error::Unsupported(LIES_ELSEWHERE.into())),
        }
    }
}
