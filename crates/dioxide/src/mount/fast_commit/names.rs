//! Names: how many each file has at the end, and the entries of directories.

use super::apply::Apply;
use super::plan::{Binding, Plan, wrong};
use crate::inode::Inode;
use crate::map;
use crate::map::tree::{Blocks, Tree};
use crate::namei::edit::NewEntry;
use crate::{Error, Place, Result};
use dioxide_format::extent::Extent;
use dioxide_format::features::RoCompat;
use dioxide_format::inode::{FileType, Inode as DiskInode};
use dioxide_format::types::{Ino, Lblk};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

/// Where `i_links_count` lies in an inode.
pub(super) const LINKS: Range<usize> = 0x1A..0x1C;
/// Most links of a directory; more are said as 1.
const DIR_LINK_MAX: i64 = 65000;

/// How many links each file has at the end.
#[derive(Debug, Default)]
pub(super) struct Links {
    of: BTreeMap<Ino, u16>,
    /// New directories that a way leads to.
    reached: BTreeSet<Ino>,
}

impl Links {
    /// Counts the names of the plan.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for counts that cannot be; [`Error::Unsupported`] for a directory that moved.
    pub(super) fn count(apply: &Apply<'_>, plan: &Plan) -> Result<Links> {
        let mut links = Links::default();
        links.reach(apply, plan);
        let mut names: BTreeMap<Ino, i64> = BTreeMap::new();
        let mut subdirs: BTreeMap<Ino, i64> = BTreeMap::new();
        for ((dir, _), binding) in &plan.names {
            let Some(Binding { before, after }) = links.effective(apply, *dir, binding) else {
                continue;
            };
            for (ino, by) in [(before, -1), (after, 1)] {
                let Some(ino) = ino else { continue };
                let known = apply.known(ino);
                if by > 0 && known.is_dir() && !known.is_new {
                    return Err(Error::Unsupported(format!("directory {ino} has moved")));
                }
                // The names of a file that the number stood for before are not this one's.
                let is_its_own = by > 0 || !known.is_new;
                if is_its_own {
                    *names.entry(ino).or_default() += by;
                }
                let is_dir = if is_its_own {
                    known.is_dir()
                } else {
                    known.was_dir()
                };
                if is_dir && (by > 0 || apply.known(*dir).same().is_some()) {
                    *subdirs.entry(*dir).or_default() += by;
                }
            }
        }
        let all: BTreeSet<Ino> = plan
            .files
            .keys()
            .chain(names.keys())
            .chain(subdirs.keys())
            .copied()
            .collect();
        for ino in all {
            let number = |of: &BTreeMap<Ino, i64>| of.get(&ino).copied().unwrap_or(0);
            let count = final_count(apply, ino, number(&names), number(&subdirs))?;
            links.of.insert(ino, count);
        }
        Ok(links)
    }

    /// The links of a file that the plan speaks of.
    pub(super) fn of(&self, ino: Ino) -> u16 {
        self.of.get(&ino).copied().unwrap_or(0)
    }

    /// Whether no name of it is left.
    fn is_gone(&self, ino: Ino) -> bool {
        self.of.get(&ino) == Some(&0)
    }

    /// Finds the new directories that have a name in a directory that is there.
    fn reach(&mut self, apply: &Apply<'_>, plan: &Plan) {
        loop {
            let found: Vec<Ino> = plan
                .names
                .iter()
                .filter(|((dir, _), _)| self.is_there(apply, *dir))
                .filter_map(|(_, binding)| binding.after)
                .filter(|&ino| apply.known(ino).is_new && apply.known(ino).is_dir())
                .filter(|ino| !self.reached.contains(ino))
                .collect();
            if found.is_empty() {
                return;
            }
            self.reached.extend(found);
        }
    }

    fn is_there(&self, apply: &Apply<'_>, dir: Ino) -> bool {
        let known = apply.known(dir);
        known.is_dir() && (known.same().is_some() || self.reached.contains(&dir))
    }

    /// What changes of a name, if anything: names of files that are not there are left out. All names
    /// of a directory go whose number is another file's.
    fn effective(&self, apply: &Apply<'_>, dir: Ino, binding: &Binding) -> Option<Binding> {
        let is_named = |ino: &Ino| apply.known(*ino).exists() && self.is_there(apply, dir);
        let after = binding.after.filter(is_named);
        let is_same = after == binding.before
            && after.is_none_or(|ino| !apply.known(ino).is_new)
            && !apply.known(dir).is_new;
        let before = binding.before;
        (!is_same).then_some(Binding { before, after })
    }
}

/// The links of a file, of which `names` were added, and that many directories in it.
fn final_count(apply: &Apply<'_>, ino: Ino, names: i64, subdirs: i64) -> Result<u16> {
    let known = apply.known(ino);
    let before = known
        .same()
        .map_or(0, |old| i64::from(old.disk.links_count()));
    let count = match (known.is_dir(), known.is_new) {
        (false, _) => before + names,
        (true, true) if names == 0 => 0,
        (true, true) if names == 1 => 2 + subdirs,
        (true, false) if names == -1 => 0,
        // 1 says that there were too many to count.
        (true, false) if names == 0 && before == 1 => 1,
        (true, false) if names == 0 => before + subdirs,
        _ => return Err(wrong(ino, "a directory gets a second name")),
    };
    let is_many = known.is_dir() && count >= DIR_LINK_MAX;
    let may_be_many = apply
        .mount
        .sb
        .features()
        .ro_compat
        .contains(RoCompat::DIR_NLINK);
    let count = if is_many && may_be_many { 1 } else { count };
    let fits = u16::try_from(count).ok();
    fits.ok_or_else(|| wrong(ino, &format!("it gets {count} links")))
}

impl Apply<'_> {
    /// Takes out the names that went, then puts in those that came.
    pub(super) fn write_names(&mut self, plan: &Plan, links: &Links) -> Result<()> {
        for ((dir, name), binding) in &plan.names {
            let before = links.effective(self, *dir, binding).and_then(|b| b.before);
            // A directory that goes is freed with its blocks.
            let stays = self.known(*dir).same().is_some() && !links.is_gone(*dir);
            if before.is_some() && stays {
                let dir = self.mount.inode(*dir)?;
                if !self.mount.remove_entry(self.edit, &dir, name)? {
                    return Err(wrong(dir.ino, "a name is gone that was there"));
                }
                self.touch(&dir)?;
            }
        }
        for ((dir, name), binding) in &plan.names {
            let after = links.effective(self, *dir, binding).and_then(|b| b.after);
            let Some(ino) = after.filter(|&ino| !links.is_gone(ino) && !links.is_gone(*dir)) else {
                continue;
            };
            let file_type = self.known(ino).file_type;
            let file_type = file_type.ok_or_else(|| wrong(ino, "it has no type"))?;
            let dir = self.mount.inode(*dir)?;
            let new = NewEntry {
                name,
                ino,
                file_type,
            };
            if !self.mount.add_entry(self.edit, &dir, &new)? {
                self.append_block(&dir, &new)?;
            }
            self.touch(&dir)?;
        }
        Ok(())
    }

    /// A directory was changed now.
    fn touch(&mut self, dir: &Arc<Inode>) -> Result<()> {
        let now = self.mount.now();
        let lock = dir.map.lock();
        let mount = self.mount;
        mount.change_inode(self.edit, dir, &lock, &mut |disk| {
            disk.set_mtime(now);
            disk.set_ctime(now);
        })
    }

    /// Lengthens a directory by a block that holds one name.
    fn append_block(&mut self, dir: &Arc<Inode>, new: &NewEntry<'_>) -> Result<()> {
        if !dir.is_extent_mapped() {
            return Err(Error::Unsupported(format!(
                "lengthening directory {}, which indirect blocks map",
                dir.ino
            )));
        }
        let mount = self.mount;
        let size = dir.i_size();
        let lblk = Lblk((size >> mount.block_bits) as u32);
        let owner = mount.owner(dir);
        let mut root = *dir.node().disk.i_block();
        let allocator = self.blocks.clone();
        let mut blocks = self.file_blocks(&allocator, dir.ino, true);
        let pblk = blocks.allocate_tree_block(self.edit, mount.goal_of(dir)?)?;
        let bytes = mount.new_dir_block(&[*new])?;
        mount.create_dir_block(self.edit, pblk, owner.seed, &bytes)?;
        let extent = Extent {
            lblk,
            len: 1,
            unwritten: false,
            pblk,
        };
        Tree::new(&owner, &mut root).insert(self.edit, &mut blocks, extent)?;
        let grown = blocks.grown;
        let lock = dir.map.lock();
        mount.change_inode(self.edit, dir, &lock, &mut |disk| {
            disk.set_i_block(&root);
            disk.set_size(size + mount.block_bytes());
            add_blocks(mount, disk, grown);
        })?;
        lock.set_run(&map::Run {
            lblk,
            len: 1,
            pblk,
            unwritten: false,
        });
        dir.set_size(size + mount.block_bytes());
        Ok(())
    }

    /// Writes the link counts of files that had no record of their own, and makes orphans of those
    /// that have no name left: they are freed once the file system is open.
    pub(super) fn write_links(&mut self, plan: &Plan, links: &Links) -> Result<()> {
        for (&ino, &count) in &links.of {
            let known = self.known(ino);
            let Some(old) = known.same() else { continue };
            if plan.files.contains_key(&ino) && count > 0 {
                continue;
            }
            if count == old.disk.links_count() && count > 0 {
                continue;
            }
            let inode = self.mount.orphan(ino)?;
            let lock = inode.map.lock();
            let mount = self.mount;
            let mut done = Ok(());
            mount.change_inode(self.edit, &inode, &lock, &mut |disk| {
                done = with_links(disk, count).map(|changed| *disk = changed);
            })?;
            done?;
            drop(lock);
            if count == 0 {
                self.make_orphan(&inode)?;
            }
        }
        Ok(())
    }

    fn make_orphan(&mut self, inode: &Arc<Inode>) -> Result<()> {
        self.orphans.add(self.mount, self.edit, inode)?;
        if !self.orphans.in_file() {
            return Ok(());
        }
        crate::txn::superblock::change(self.mount, self.edit, &mut |sb| {
            sb.disk_mut().s_feature_ro_compat |= RoCompat::ORPHAN_PRESENT.bits();
        })
    }
}

/// The same inode with another number of links.
fn with_links(disk: &DiskInode, count: u16) -> Result<DiskInode> {
    let mut raw = disk.encode();
    raw[LINKS].copy_from_slice(&count.to_le_bytes());
    DiskInode::parse(&raw, raw.len()).map_err(|error| Error::format(error, Place::default()))
}

/// Counts blocks that an inode has more than before.
pub(super) fn add_blocks(mount: &crate::mount::Mount, disk: &mut DiskInode, grown: i64) {
    let huge_file = mount.sb.features().ro_compat.contains(RoCompat::HUGE_FILE);
    let block_size = mount.sb.block_size();
    let sectors = disk.sectors(huge_file, block_size);
    let sectors = sectors.saturating_add_signed(grown * i64::from(block_size / 512));
    if !disk.set_sectors(sectors, huge_file, block_size) {
        tracing::warn!("i_blocks has no room for the count");
    }
}

/// The entries of a new directory's first block.
pub(super) fn first_entries(ino: Ino, parent: Ino) -> [NewEntry<'static>; 2] {
    let entry = |name, ino| NewEntry {
        name,
        ino,
        file_type: FileType::Directory,
    };
    [entry(b".", ino), entry(b"..", parent)]
}
