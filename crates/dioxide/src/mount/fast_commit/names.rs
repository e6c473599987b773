//! Names: how many each file has at the end, and the entries of directories.

use super::apply::Apply;
use super::plan::{Binding, Plan, wrong};
use crate::Result;
use crate::inode::Inode;
use crate::namei::edit::NewEntry;
use dioxide_format::features::RoCompat;
use dioxide_format::inode::{FileType, LINK_MAX};
use dioxide_format::types::Ino;
use std::collections::{BTreeMap, BTreeSet};

/// How many links each file has at the end.
#[derive(Debug, Default)]
pub(super) struct Links {
    of: BTreeMap<Ino, u16>,
    /// New directories that a way leads to, with those that name them.
    reached: BTreeMap<Ino, Ino>,
}

impl Links {
    /// Counts the names of the plan.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for counts that cannot be.
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

    /// The directory in which a new one is made, if it is one.
    pub(super) fn made_in(&self, ino: Ino) -> Option<Ino> {
        self.reached.get(&ino).copied()
    }

    /// Whether no name of it is left.
    fn is_gone(&self, ino: Ino) -> bool {
        self.of.get(&ino) == Some(&0)
    }

    /// Files of which no name is left.
    pub(super) fn gone(&self) -> impl Iterator<Item = Ino> {
        let gone = self.of.iter().filter(|(_, links)| **links == 0);
        gone.map(|(ino, _)| *ino)
    }

    /// Finds the new directories that have a name in a directory that is there.
    fn reach(&mut self, apply: &Apply<'_>, plan: &Plan) {
        let mut dirs: Vec<Ino> = plan.names.keys().map(|(dir, _)| *dir).collect();
        dirs.dedup();
        dirs.retain(|&dir| self.is_there(apply, dir));
        while let Some(dir) = dirs.pop() {
            for ino in plan.named_in(dir).filter_map(|binding| binding.after) {
                let known = apply.known(ino);
                let is_made = known.is_new && known.is_dir();
                if is_made && !self.reached.contains_key(&ino) {
                    self.reached.insert(ino, dir);
                    dirs.push(ino);
                }
            }
        }
    }

    fn is_there(&self, apply: &Apply<'_>, dir: Ino) -> bool {
        let known = apply.known(dir);
        known.is_dir() && (known.same().is_some() || self.reached.contains_key(&dir))
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
        (true, false) if names == 0 && before < 2 => before,
        // Linux leaves too few where its replay has made directories, and never counts down to what has no name.
        (true, false) if names == 0 => (before + subdirs).max(2),
        _ => return Err(wrong(ino, "a directory gets a second name")),
    };
    let is_many = known.is_dir() && count >= i64::from(LINK_MAX);
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
                if !self.mount.remove_name(&mut self.handle, &dir, name)? {
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
            let (mount, writer) = (self.mount, self.writer);
            mount.add_name(writer, &mut self.handle, &dir, &new)?;
            self.touch(&dir)?;
        }
        Ok(())
    }

    /// A directory was changed now.
    fn touch(&mut self, dir: &Inode) -> Result<()> {
        self.mount.names_changed(&mut self.handle, dir, &mut |_| {})
    }

    /// Has directories that got another parent lead to it.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for one that would be above itself.
    pub(super) fn move_directories(&mut self, plan: &Plan) -> Result<()> {
        let named = plan.names.iter().filter_map(|((dir, _), binding)| {
            let ino = binding.after.filter(|_| binding.after != binding.before)?;
            let known = self.known(ino);
            (known.is_dir() && known.same().is_some()).then_some((ino, *dir))
        });
        let moved: Vec<(Ino, Ino)> = named.collect();
        for &(ino, parent) in &moved {
            let inode = self.mount.inode(ino)?;
            if self.mount.find_entry(&inode, b"..")? != Some(parent) {
                let (handle, to) = (&mut self.handle, FileType::Directory);
                self.mount
                    .redirect_name(handle, &inode, b"..", parent, to)?;
            }
        }
        let mut rooted = BTreeSet::from([Ino::ROOT]);
        moved
            .iter()
            .try_for_each(|&(ino, _)| self.leads_to_the_root(ino, &mut rooted))
    }

    /// `rooted` are directories that do.
    fn leads_to_the_root(&self, ino: Ino, rooted: &mut BTreeSet<Ino>) -> Result<()> {
        let (mut at, mut seen) = (ino, BTreeSet::new());
        while !rooted.contains(&at) {
            if !seen.insert(at) {
                return Err(wrong(ino, "the directory gets into itself"));
            }
            let inode = self.mount.inode(at)?;
            let parent = self.mount.find_entry(&inode, b"..")?;
            at = parent.ok_or_else(|| wrong(at, "the directory has no parent"))?;
        }
        rooted.append(&mut seen);
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
            mount.change_inode(&mut self.handle, &inode, &lock, &mut |disk| {
                disk.set_links_count(count);
            })?;
            drop(lock);
            if count == 0 {
                self.writer.orphans.add(mount, &mut self.handle, &inode)?;
            }
        }
        Ok(())
    }
}
