//! Changing the file system to what the plan says, in one transaction.
//!
//! Order: blocks that were added are taken, before anything is allocated; numbers that stand for another
//! file now are set free; then files let go of blocks, as the kernel may have used some for maps; then they get
//! theirs, and directories are made, names, and orphans of what has no name left.
//!
//! With data=writeback Linux gives blocks of one file to another before it is committed that they are free. Such blocks
//! are in use before all this and after it, and so are neither freed nor taken: they only change hands.

use super::names::Links;
use super::plan::{File, Plan, wrong};
use super::set::Set;
use crate::mount::Mount;
use crate::mount::groups::Counts;
use crate::txn::{Writer, superblock};
use crate::{Error, Place, Result};
use dioxide_format::features::RoCompat;
use dioxide_format::inode::{FileType, Inode as DiskInode, InodeFlags};
use dioxide_format::journal::fast_commit::Record;
use dioxide_format::types::Ino;
use dioxide_journal::journal::Handle;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// An inode as it is on the device.
#[derive(Clone, Debug)]
pub(super) struct Old {
    pub(super) raw: Box<[u8]>,
    pub(super) disk: DiskInode,
}

/// What a number of the plan stands for.
#[derive(Clone, Debug, Default)]
pub(super) struct Known {
    /// The file on the device, if the number is in use there.
    pub(super) old: Option<Old>,
    /// It is a file that the device does not have; `old` is another one.
    pub(super) is_new: bool,
    pub(super) file_type: Option<FileType>,
}

impl Known {
    /// Whether there is such a file at all.
    pub(super) fn exists(&self) -> bool {
        self.is_new || self.old.is_some()
    }

    pub(super) fn is_dir(&self) -> bool {
        self.file_type == Some(FileType::Directory)
    }

    /// Whether the number was a directory's on the device.
    pub(super) fn was_dir(&self) -> bool {
        let old = self.old.as_ref().and_then(|old| old.disk.file_type());
        old == Some(FileType::Directory)
    }

    /// The file itself on the device.
    pub(super) fn same(&self) -> Option<&Old> {
        self.old.as_ref().filter(|_| !self.is_new)
    }
}

/// The change under way.
pub(super) struct Apply<'a> {
    pub(super) mount: &'a Mount,
    pub(super) writer: &'a Writer,
    pub(super) handle: Handle<'a>,
    known: BTreeMap<Ino, Known>,
    /// Clusters that go on being in use when a file gives them up.
    pub(super) passed_on: Arc<Set>,
}

impl<'a> Apply<'a> {
    pub(super) fn new(mount: &'a Mount, writer: &'a Writer) -> Result<Apply<'a>> {
        Ok(Apply {
            mount,
            writer,
            handle: writer.journal.start(writer.journal.max_credits())?,
            known: BTreeMap::new(),
            passed_on: Arc::default(),
        })
    }

    /// Makes all changes, none of which is on the device then.
    ///
    /// # Errors
    /// [`Error::Unsupported`]; damage. The transaction must not be committed then.
    pub(super) fn run(&mut self, records: &[Record]) -> Result<()> {
        let mut plan = Plan::new(self.mount, records, &|dir, name| {
            self.bound_before(dir, name)
        })?;
        self.learn(&plan)?;
        for (ino, file) in &mut plan.files {
            if !self.known(*ino).is_new {
                file.is_one();
            }
        }
        let links = Links::count(self, &plan)?;
        let is_live = |&(ino, _): &(Ino, &File)| self.known(ino).exists() && links.of(ino) > 0;
        let files = plan.files.iter().map(|(&ino, file)| (ino, file));
        let live: Vec<(Ino, &File)> = files.filter(is_live).collect();
        let steps = live
            .iter()
            .map(|(ino, file)| self.steps(*ino, file))
            .collect::<Result<Vec<_>>>()?;
        let gone = self.mapped_without_name(&links)?;
        self.take_clusters(&plan, &gone, &steps)?;
        for &ino in plan.files.keys() {
            self.clear_number(ino)?;
        }
        self.hand_over(&gone)?;
        for ((ino, file), steps) in live.iter().zip(&steps) {
            if links.made_in(*ino).is_none() {
                self.write_file(*ino, file, steps, links.of(*ino))?;
            }
        }
        for ((ino, file), steps) in live.iter().zip(&steps) {
            match links.made_in(*ino) {
                Some(parent) => self.make_directory(*ino, file, parent, links.of(*ino))?,
                None => self.map_file(*ino, steps)?,
            }
        }
        self.write_names(&plan, &links)?;
        self.move_directories(&plan)?;
        self.write_links(&plan, &links)
    }

    /// Ends the transaction; what the superblock is to count.
    pub(super) fn finish(mut self) -> Result<Counts> {
        if self.writer.orphans.in_file() && !self.writer.orphans.is_empty() {
            superblock::change(self.mount, &mut self.handle, &mut |sb| {
                sb.disk_mut().s_feature_ro_compat |= RoCompat::ORPHAN_PRESENT.bits();
            })?;
        }
        self.handle.stop()?;
        let clusters = self.writer.blocks.free_clusters();
        Ok(Counts {
            free_blocks: clusters * u64::from(self.mount.sb.cluster_ratio()),
            free_inodes: self.writer.inodes.free_inodes() as u32,
        })
    }

    /// What a name stands for on the device.
    fn bound_before(&self, dir: Ino, name: &[u8]) -> Result<Option<Ino>> {
        if !self.is_used(dir)? {
            return Ok(None);
        }
        match self.mount.inode(dir) {
            Ok(dir) if dir.file_type() == crate::FileType::Directory => {
                self.mount.find_entry(&dir, name)
            }
            Ok(_) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn is_used(&self, ino: Ino) -> Result<bool> {
        self.writer.inodes.is_used(&self.handle, ino)
    }

    /// Finds out what all numbers of the plan stand for.
    fn learn(&mut self, plan: &Plan) -> Result<()> {
        let bound = plan.names.iter().flat_map(|((dir, _), binding)| {
            [Some(*dir), binding.before, binding.after]
                .into_iter()
                .flatten()
        });
        let all: BTreeSet<Ino> = plan.files.keys().copied().chain(bound).collect();
        for ino in all {
            let known = self.look_at(ino, plan)?;
            self.known.insert(ino, known);
        }
        Ok(())
    }

    fn look_at(&self, ino: Ino, plan: &Plan) -> Result<Known> {
        let old = match self.is_used(ino)? {
            true => Some(self.read_inode(ino)?),
            false => None,
        };
        // Linux may give a file the number that a value had. Who frees the value's owner would free that file.
        let is_value = |old: &Old| old.disk.flags().contains(InodeFlags::EA_INODE);
        if self.mount.is_own_inode(ino) || old.as_ref().is_some_and(is_value) {
            return Err(wrong(ino, "it is the number of no file"));
        }
        let raw = plan.files.get(&ino).and_then(|file| file.raw.as_deref());
        let generation = old.as_ref().map(|old| old.disk.generation().to_le_bytes());
        let differs = raw.is_some_and(|raw| File::generation(raw) != generation);
        let loses_names = |old: &Old| match old.disk.links_count() {
            0 => true,
            _ if old.disk.file_type() == Some(FileType::Directory) => plan.names_of(ino) > 0,
            links => plan.names_of(ino) >= links.into(),
        };
        let is_another = |old: &Old| {
            // A file can be given another generation, unless checksums depend on it.
            let may_be_same = self.mount.checksum_seed().is_none();
            let times = File::made_at(&old.raw).zip(raw.and_then(File::made_at));
            match times.filter(|_| may_be_same) {
                Some((before, now)) => before != now || plan.makes(ino),
                None => loses_names(old),
            }
        };
        let is_new = differs && old.as_ref().is_none_or(is_another);
        if differs && !is_new && self.mount.checksum_seed().is_some() {
            return Err(wrong(ino, "it is recorded as another file, and has names"));
        }
        let recorded = raw
            .and_then(|raw| raw.first_chunk().copied())
            .map(u16::from_le_bytes);
        let old_type = old.as_ref().and_then(|old| old.disk.file_type());
        let new_type = recorded.and_then(FileType::from_mode);
        if recorded.is_some() && (new_type.is_none() || !is_new && new_type != old_type) {
            return Err(wrong(ino, "it is recorded as another type of file"));
        }
        let known = Known {
            file_type: if is_new { new_type } else { old_type },
            old,
            is_new,
        };
        Ok(known)
    }

    /// What a number of the plan stands for.
    pub(super) fn known(&self, ino: Ino) -> &Known {
        self.known
            .get(&ino)
            .expect("all numbers of the plan were looked at")
    }

    /// An inode on the device that is in use.
    fn read_inode(&self, ino: Ino) -> Result<Old> {
        let at = self.mount.locate_inode(ino)?;
        let place = Place::block(at.block.0).in_inode(ino).at(at.offset as u64);
        let size = self.mount.sb.inode_size();
        let table = self.mount.read_meta(at.block)?;
        let raw: Box<[u8]> = table[at.offset..at.offset + size].into();
        let disk = DiskInode::parse(&raw, size).map_err(|error| Error::format(error, place))?;
        self.mount.check_inode(&disk, ino, place)?;
        Ok(Old { raw, disk })
    }
}
