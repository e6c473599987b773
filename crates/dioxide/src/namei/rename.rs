//! Moving names.
//!
//! Locks: the mount's `renaming` if the directories differ, so that no directory moves while it is found
//! out which is above which; then `names` of both, of the upper first; then of a directory that moves to the other, whose `..`
//! changes, and of one that is replaced.

use super::Inherited;
use super::create::{
    Blueprint, add_subdir, check_lives, check_new_name, is_in_step, remove_subdir,
};
use super::dentries::bad_entry;
use super::dir::block::Room;
use super::edit::{NewEntry, REMOVE_NAME_CREDITS};
use super::path::At;
use super::remove::{Fate, Victim, check_removable};
use crate::alloc::InodeAllocator;
use crate::api::names::{NewFile, RenameMode};
use crate::inode::Inode;
use crate::io::direct::Wait;
use crate::io::direct::lock::{Guard, lock};
use crate::io::direct::policy::LockMode;
use crate::mount::Mount;
use crate::sync::rank::{Excuse, Rank, WriteLocked};
use crate::sync::slot;
use crate::txn::Writer;
use crate::txn::inode::INODE_CREDITS;
use crate::{Error, FileType, Result};
use dioxide_format::inode::FileType as DiskType;
use dioxide_format::types::Ino;
use dioxide_journal::journal::Handle;
use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Directories on the way to the root: more are damage.
const DEPTH_MAX: u32 = 1 << 20;

type Names<'a> = (WriteLocked<'a, ()>, Option<WriteLocked<'a, ()>>);

/// A rename whose parts were found.
struct Move<'a> {
    from: &'a At<'a>,
    to: &'a At<'a>,
    inode: Arc<Inode>,
    /// What has the new name now.
    other: Option<Arc<Inode>>,
    /// Where the new name goes if nothing has it. Good for one try: what is undone leaves another place.
    room: Cell<Option<Room>>,
    /// Whose the whiteout is that gets the old name.
    whiteout: Option<&'a NewFile>,
}

/// A whiteout to be made.
struct Whiteout<'a> {
    new: &'a NewFile,
    acls: Inherited,
    /// What is inherited stays the directory's until the old name is the whiteout's, and nobody frees it meanwhile.
    _attributes: Guard<'a>,
}

/// What comes before anything is looked for.
///
/// # Errors
/// [`Error::Invalid`].
pub(crate) fn check_mode(mode: RenameMode, whiteout: Option<&NewFile>) -> Result<()> {
    match mode == RenameMode::Exchange && whiteout.is_some() {
        true => Err(Error::Invalid("an exchange that leaves a whiteout".into())),
        false => Ok(()),
    }
}

fn name_is_gone(dir: &Inode) -> Error {
    dir.corrupt("directory", "a name is gone that was there".into())
}

fn is_dir(inode: &Inode) -> bool {
    inode.file_type() == FileType::Directory
}

impl Move<'_> {
    fn crosses(&self) -> bool {
        !Arc::ptr_eq(&self.from.dir, &self.to.dir)
    }
}

impl Mount {
    /// Moves a name. Blocks.
    ///
    /// # Errors
    /// Those that `crate::Fs::rename` names. Nothing has changed then.
    pub(crate) fn rename(
        &self,
        from: &At<'_>,
        to: &At<'_>,
        mode: RenameMode,
        whiteout: Option<&NewFile>,
    ) -> Result<()> {
        check_mode(mode, whiteout)?;
        match (from.is_special(), to.is_special(), mode) {
            (false, true, RenameMode::NoReplace) => return Err(Error::Exists(to.text())),
            (true, ..) | (_, true, _) => {
                return Err(Error::Busy("the root, '.' or '..' is renamed"));
            }
            _ => {}
        }
        let writer = self.writer()?;
        let crosses = !Arc::ptr_eq(&from.dir, &to.dir);
        let renaming = crosses.then(|| self.renaming.lock());
        let above = match crosses {
            true => self.nearer_to_root(&from.dir, &to.dir)?,
            false => None,
        };
        let names = self.lock_names(&from.dir, &to.dir, above)?;
        check_new_name(from.name)?;
        self.check_dir_holds(&from.dir)?;
        let inode = self.child_locked(&from.dir, from.name)?;
        check_new_name(to.name)?;
        self.check_dir_holds(&to.dir)?;
        let (other, room) = match self.find_name_or_room(&to.dir, to.name)? {
            Ok(_) => (Some(self.child_locked(&to.dir, to.name)?), None),
            Err(room) => (None, room),
        };
        let change = Move {
            from,
            to,
            inode,
            other,
            room: Cell::new(room),
            whiteout,
        };
        self.check_move(&change, mode)?;
        if change
            .other
            .as_ref()
            .is_some_and(|o| o.ino == change.inode.ino)
        {
            // Two names of one file: nothing happens.
            return Ok(());
        }
        self.check_is_in(&from.dir, from.name, &change.inode)?;
        if let Some(other) = &change.other {
            self.check_is_in(&to.dir, to.name, other)?;
        }
        // Who makes names in them may be about to write a copy of the block that has their `..`.
        let others = change.other.iter().filter(|_| mode == RenameMode::Exchange);
        let moving = std::iter::once((&from.dir, &change.inode));
        let moving = moving.chain(others.map(|other| (&to.dir, other)));
        let moving = moving.filter(|(_, inode)| crosses && is_dir(inode));
        let below: Vec<_> = moving
            .map(|(dir, inode)| self.names_below(dir, inode))
            .collect::<Result<_>>()?;
        let moved = match mode {
            RenameMode::Exchange => self.exchange(writer, &change).map(|()| None),
            _ => self.with_space(writer, || self.replace(writer, &change)),
        };
        drop((below, names, renaming));
        if let (Some(other), Some(fate)) = (&change.other, moved?) {
            self.settle(writer, other, fate);
            self.inodes.let_go(other);
        }
        self.inodes.let_go(&change.inode);
        Ok(())
    }

    fn check_move(&self, change: &Move<'_>, mode: RenameMode) -> Result<()> {
        let (from, to) = (change.from, change.to);
        let inode = &change.inode;
        let absent = change.other.is_none();
        match mode {
            RenameMode::NoReplace if !absent => return Err(Error::Exists(to.text())),
            RenameMode::Exchange if absent => return Err(Error::NotFound(to.text())),
            _ => {}
        }
        // A slash behind the new name is about what will have it, or in an exchange has it.
        let at_new_name = match (&change.other, mode) {
            (Some(other), RenameMode::Exchange) => other,
            _ => inode,
        };
        for (at, inode) in [(from, inode), (to, at_new_name)] {
            if at.must_be_dir && !is_dir(inode) {
                return Err(Error::NotADirectory(at.text()));
            }
        }
        // Into itself it goes in no case, nor to the name of what it is in.
        if change.crosses() {
            self.check_not_inside(inode, &to.dir, &to.text())?;
            match (&change.other, mode) {
                (Some(other), RenameMode::Exchange) => {
                    self.check_not_inside(other, &from.dir, &from.text())?;
                }
                (Some(other), _) if is_dir(other) && self.is_above(other, &from.dir)? => {
                    return Err(Error::NotEmpty(to.text()));
                }
                _ => {}
            }
        }
        if change.other.as_ref().is_some_and(|o| o.ino == inode.ino) {
            return Ok(());
        }
        self.check_dir_changes(&from.dir)?;
        check_removable(&from.dir, inode, || from.text())?;
        let Some(other) = &change.other else {
            self.check_dir_grows(&to.dir)?;
            self.check_project_of(inode, &to.dir, || to.text())?;
            return match is_dir(inode) && change.crosses() {
                true => self.check_more_subdirs(&to.dir),
                false => Ok(()),
            };
        };
        self.check_dir_changes(&to.dir)?;
        check_removable(&to.dir, other, || to.text())?;
        if mode == RenameMode::Exchange {
            self.check_project_of(inode, &to.dir, || to.text())?;
            self.check_project_of(other, &from.dir, || from.text())?;
            return match change.crosses() {
                true => self.check_exchange(change, other),
                false => Ok(()),
            };
        }
        match (is_dir(inode), is_dir(other)) {
            (true, false) => Err(Error::NotADirectory(to.text())),
            (false, true) => Err(Error::IsADirectory(to.text())),
            _ => self.check_project_of(inode, &to.dir, || to.text()),
        }
    }

    fn check_exchange(&self, change: &Move<'_>, other: &Arc<Inode>) -> Result<()> {
        match (is_dir(&change.inode), is_dir(other)) {
            (true, false) => self.check_more_subdirs(&change.to.dir),
            (false, true) => self.check_more_subdirs(&change.from.dir),
            _ => Ok(()),
        }
    }

    /// A directory must not go into itself, or into what is below it.
    fn check_not_inside(&self, inode: &Inode, dir: &Arc<Inode>, path: &str) -> Result<()> {
        match is_dir(inode) && self.is_above(inode, dir)? {
            true => Err(Error::Invalid(format!(
                "{path}: inside the directory itself"
            ))),
            false => Ok(()),
        }
    }

    /// Whether `upper` is `dir`, or above it. The caller has the names of `dir`, which was not removed: so nothing above it is removed
    /// meanwhile. With `renaming`, or where the two are of one directory, nothing is moved either.
    fn is_above(&self, upper: &Inode, dir: &Arc<Inode>) -> Result<bool> {
        let mut at = dir.clone();
        for depth in 0..DEPTH_MAX {
            if at.ino == upper.ino {
                return Ok(true);
            }
            if at.ino == Ino::ROOT {
                return Ok(false);
            }
            at = match depth {
                0 => self.parent_of(&at)?,
                _ => self.parent_beside_changes(&at)?,
            };
        }
        Err(dir.corrupt("directory", "'..' does not lead to the root".into()))
    }

    /// Which of two directories is above the other, if one is. The caller has `renaming`.
    fn nearer_to_root(&self, a: &Arc<Inode>, b: &Arc<Inode>) -> Result<Option<Ino>> {
        for (upper, dir) in [(a, b), (b, a)] {
            let _names = dir.names.read();
            check_lives(dir)?;
            if self.is_above(upper, dir)? {
                return Ok(Some(upper.ino));
            }
        }
        Ok(None)
    }

    /// The directory that '..' of another names. Takes that one's names.
    ///
    /// # Errors
    /// [`Error::NotFound`] if it was removed; damage.
    pub(crate) fn living_parent_of(&self, dir: &Arc<Inode>) -> Result<Arc<Inode>> {
        let _names = dir.names.read();
        check_lives(dir)?;
        self.parent_of(dir)
    }

    /// As [`Mount::parent_of`], where others may be changing the names: what looks like damage may be half of a change, and
    /// the names cannot be waited for, as those of a directory below are held.
    fn parent_beside_changes(&self, dir: &Arc<Inode>) -> Result<Arc<Inode>> {
        // They may be held for longer by the calling thread, and the damage be one.
        const LONGEST: Duration = Duration::from_secs(1);
        let began = Instant::now();
        loop {
            let quiet = dir.names.try_read();
            match self.parent_of(dir) {
                Err(Error::Corrupt { .. } | Error::Checksum { .. })
                    if quiet.is_none() && began.elapsed() < LONGEST =>
                {
                    std::thread::sleep(Duration::from_millis(1));
                }
                found => return found,
            }
        }
    }

    /// Names are locked from a directory to one in it, so what is locked must be that. The caller has the names of `dir`, which
    /// nothing leaves meanwhile.
    ///
    /// # Errors
    /// Damage.
    pub(super) fn check_is_in(&self, dir: &Inode, name: &[u8], inode: &Arc<Inode>) -> Result<()> {
        if !is_dir(inode) {
            return Ok(());
        }
        if self.parent_beside_changes(inode)?.ino != dir.ino {
            return Err(bad_entry(dir, name, inode.ino, "whose '..' is another"));
        }
        match self.find_entry(dir, b"..")? == Some(inode.ino) {
            true => Err(bad_entry(dir, name, inode.ino, "which it is in")),
            false => Ok(()),
        }
    }

    /// Locks the names of two directories, those of the upper first.
    ///
    /// # Errors
    /// As [`Mount::names_below`].
    fn lock_names<'a>(
        &self,
        a: &'a Arc<Inode>,
        b: &'a Arc<Inode>,
        above: Option<Ino>,
    ) -> Result<Names<'a>> {
        if Arc::ptr_eq(a, b) {
            return Ok((a.names.write(), None));
        }
        let b_first = match above {
            Some(ino) => ino == b.ino,
            None => b.ino < a.ino,
        };
        let (first, second) = if b_first { (b, a) } else { (a, b) };
        let guard = first.names.write();
        let second = match above {
            Some(_) => self.names_below(first, second)?,
            None => second.names.write(),
        };
        Ok((guard, Some(second)))
    }

    /// Locks the names of a directory below another, whose names the caller has. Where damage has led directories in a circle, whoever
    /// goes down may wait for one who waits for him in the end: who has waited for long looks.
    ///
    /// # Errors
    /// Damage.
    pub(super) fn names_below<'a>(
        &self,
        dir: &Arc<Inode>,
        below: &'a Arc<Inode>,
    ) -> Result<WriteLocked<'a, ()>> {
        const LONG: Duration = Duration::from_secs(1);
        loop {
            if let Some(names) = below.names.try_write_for(LONG) {
                return Ok(names);
            }
            // Twice: beside renames one walk alone may put a way together that there never was.
            if self.is_above(below, dir)? && self.is_above(below, dir)? {
                let what = format!("it is in inode {}, which is in it", below.ino);
                return Err(dir.corrupt("directory", what));
            }
        }
    }

    /// The directory that '..' of another names. The caller has its names.
    fn parent_of(&self, dir: &Arc<Inode>) -> Result<Arc<Inode>> {
        let parent = self.find_entry(dir, b"..")?;
        let parent = parent.ok_or_else(|| dir.corrupt("directory", "it has no '..'".into()))?;
        let inode = self.inode(parent)?;
        match is_dir(&inode) {
            true => Ok(inode),
            false => Err(dir.corrupt(
                "directory",
                format!("'..' names inode {parent}, no directory"),
            )),
        }
    }

    fn replace<'v>(&self, writer: &Writer, change: &'v Move<'_>) -> Result<Option<Fate<'v>>> {
        let other = change.other.as_ref();
        let other_is_dir = other.is_some_and(|other| is_dir(other));
        let _other_names = other
            .filter(|_| other_is_dir)
            .map(|other| self.names_below(&change.to.dir, other))
            .transpose()?;
        if let Some(other) = other.filter(|_| other_is_dir)
            && !self.is_empty_dir(other)?
        {
            return Err(Error::NotEmpty(change.to.text()));
        }
        let mut victim = other.map(|other| self.victim(writer, other)).transpose()?;
        let victim_credits = victim
            .as_ref()
            .map_or(0, |victim| self.victim_credits(victim));
        let named = match other {
            Some(_) => REMOVE_NAME_CREDITS,
            None => self.add_name_credits(&change.to.dir),
        };
        let plan = change
            .whiteout
            .map(|new| self.plan_whiteout(&change.from.dir, new))
            .transpose()?;
        let whiteout_credits = plan.as_ref().map_or(0, |plan| {
            InodeAllocator::ALLOCATE_CREDITS + INODE_CREDITS + self.acl_credits(&plan.acls)
        });
        self.read_old_names(change)?;
        let credits = named + 2 * REMOVE_NAME_CREDITS + 3 * INODE_CREDITS + victim_credits;
        let mut handle = writer.begin(credits + whiteout_credits)?;
        let whiteout = match &plan {
            Some(plan) => Some(self.put_name_over(writer, &mut handle, change, plan)?),
            None => {
                self.put_name(writer, &mut handle, change)?;
                None
            }
        };
        let fate = self
            .take_name(
                writer,
                &mut handle,
                change,
                whiteout.as_deref(),
                victim.as_mut(),
            )
            .map_err(|error| self.fail(error))?;
        self.finish_move(handle, change)?;
        Ok(fate)
    }

    /// Reads what is changed after the new name, when a read that fails would end the journal: the names may have come from
    /// memory. The '..' of what moves was read already.
    fn read_old_names(&self, change: &Move<'_>) -> Result<()> {
        let (from, to) = (change.from, change.to);
        for at in [Some(from), change.other.as_ref().map(|_| to)]
            .into_iter()
            .flatten()
        {
            if self.find_entry(&at.dir, at.name)?.is_none() {
                return Err(name_is_gone(&at.dir));
            }
        }
        Ok(())
    }

    fn plan_whiteout<'a>(&'a self, dir: &'a Inode, new: &'a NewFile) -> Result<Whiteout<'a>> {
        // The caller may have the replaced file's, which it got by a try; and it has the directory's names, without which
        // nobody asks for this one exclusively.
        let excuse = Excuse::of(Rank::File);
        let attributes = lock(self, dir, LockMode::Shared, Wait::Block, slot::current())?;
        drop(excuse);
        let acls = self.acl_inherit(dir, DiskType::CharDevice, 0, new.umask)?;
        Ok(Whiteout {
            new,
            acls,
            _attributes: attributes,
        })
    }

    /// As [`Mount::put_name`], with a whiteout that has no name yet.
    fn put_name_over(
        &self,
        writer: &Writer,
        handle: &mut Handle<'_>,
        change: &Move<'_>,
        plan: &Whiteout<'_>,
    ) -> Result<Arc<Inode>> {
        let (from, to) = (&change.from.dir, change.to);
        let what = &Blueprint::WHITEOUT;
        let planned = self.plan_new(writer, handle, from, what, plan.new, &plan.acls)?;
        let ino = planned.numbered.ino;
        if let Err(error) = self.put_name(writer, handle, change) {
            return Err(self.give_number_back(writer, handle, ino, false, error));
        }
        let fatal = |error| self.fail(error);
        let whiteout = self.store_planned(handle, planned).map_err(fatal)?;
        let error = match self.store_acls(writer, handle, &whiteout, &plan.acls) {
            Ok(()) => {
                whiteout.made();
                return Ok(whiteout);
            }
            Err(error @ Error::NoSpace(_)) => error,
            Err(error) => return Err(self.fail(error)),
        };
        let new_name = match &change.other {
            Some(other) => {
                let kind = self.disk_type(other).map_err(fatal)?;
                let there = self.redirect_name(handle, &to.dir, to.name, other.ino, kind);
                if !there.map_err(fatal)? {
                    return Err(self.fail(name_is_gone(&to.dir)));
                }
                None
            }
            None => Some(to.name),
        };
        self.unfurnish(writer, handle, &to.dir, new_name, &whiteout)
            .map_err(fatal)?;
        Err(self.give_number_back(writer, handle, ino, false, error))
    }

    fn finish_move(&self, handle: Handle<'_>, change: &Move<'_>) -> Result<()> {
        let (from, to) = (&change.from.dir, &change.to.dir);
        self.finish(handle, if is_in_step(from) { from } else { to })
    }

    /// Has the new name stand for the file. If it fails nothing was changed.
    fn put_name(&self, writer: &Writer, handle: &mut Handle<'_>, change: &Move<'_>) -> Result<()> {
        let (to, ino) = (change.to, change.inode.ino);
        let file_type = self.disk_type(&change.inode)?;
        if change.other.is_none() {
            let entry = NewEntry {
                name: to.name,
                ino,
                file_type,
            };
            return self.add_name_at(writer, handle, &to.dir, &entry, change.room.take());
        }
        match self.redirect_name(handle, &to.dir, to.name, ino, file_type)? {
            true => Ok(()),
            false => Err(name_is_gone(&to.dir)),
        }
    }

    /// Takes the old name away, or gives it to the whiteout, and takes a link from what had the new one.
    fn take_name<'v>(
        &self,
        writer: &Writer,
        handle: &mut Handle<'_>,
        change: &Move<'_>,
        whiteout: Option<&Inode>,
        victim: Option<&mut Victim<'v>>,
    ) -> Result<Option<Fate<'v>>> {
        let (from, to, inode) = (change.from, change.to, &change.inode);
        let was_there = match whiteout {
            Some(whiteout) => {
                whiteout.changed_in(handle.tid(), true);
                let kind = DiskType::CharDevice;
                self.redirect_name(handle, &from.dir, from.name, whiteout.ino, kind)?
            }
            None => self.remove_name(handle, &from.dir, from.name)?,
        };
        if !was_there {
            return Err(name_is_gone(&from.dir));
        }
        let moves_dir = is_dir(inode) && change.crosses();
        if moves_dir {
            self.set_parent(handle, inode, to.dir.ino)?;
        }
        self.touch(handle, inode)?;
        let loses_dir = is_dir(inode) && (change.crosses() || change.other.is_some());
        self.names_changed(handle, &from.dir, &mut |disk| {
            if loses_dir {
                remove_subdir(disk);
            }
        })?;
        let gains_dir = moves_dir && change.other.is_none();
        if change.crosses() {
            self.names_changed(handle, &to.dir, &mut |disk| {
                if gains_dir {
                    add_subdir(disk);
                }
            })?;
        }
        // Before the number of what had the new name is given back: it may be another file's at once.
        self.moved(change, whiteout.map(|whiteout| whiteout.ino));
        match victim {
            Some(victim) => Ok(Some(self.lose_link(writer, handle, victim)?)),
            None => Ok(None),
        }
    }

    /// Has what is in memory of the names follow. `left` has the old name now, if anything has. The old name goes first, so
    /// that nobody finds the file by both: who looks for it waits for the directory's lock.
    fn moved(&self, change: &Move<'_>, left: Option<Ino>) {
        let (from, to) = (change.from, change.to);
        self.dentries.remove(&from.dir, from.name);
        self.dentries.change(&to.dir, to.name, change.inode.ino);
        if let Some(left) = left {
            self.dentries.change(&from.dir, from.name, left);
        }
        self.ways.left(&change.inode);
        if let Some(other) = &change.other {
            self.ways.left(other);
        }
    }

    fn exchange(&self, writer: &Writer, change: &Move<'_>) -> Result<()> {
        let (from, to, inode) = (change.from, change.to, &change.inode);
        let other = change.other.as_ref().expect("it was looked for");
        let (type_of_one, type_of_other) = (self.disk_type(inode)?, self.disk_type(other)?);
        let credits = 4 * REMOVE_NAME_CREDITS + 4 * INODE_CREDITS;
        self.read_old_names(change)?;
        let mut handle = writer.begin(credits)?;
        let gone = || name_is_gone(&from.dir);
        if !self.redirect_name(&mut handle, &from.dir, from.name, other.ino, type_of_other)? {
            return Err(gone());
        }
        let rest = self
            .redirect_name(&mut handle, &to.dir, to.name, inode.ino, type_of_one)
            .and_then(|was_there| was_there.then_some(()).ok_or_else(gone))
            .and_then(|()| self.exchange_rest(&mut handle, change, other));
        rest.map_err(|error| self.fail(error))?;
        self.moved(change, Some(other.ino));
        self.finish_move(handle, change)
    }

    fn exchange_rest(
        &self,
        handle: &mut Handle<'_>,
        change: &Move<'_>,
        other: &Arc<Inode>,
    ) -> Result<()> {
        let (from, to, inode) = (change.from, change.to, &change.inode);
        self.touch(handle, inode)?;
        self.touch(handle, other)?;
        let (one, two) = (is_dir(inode), is_dir(other));
        if change.crosses() && one {
            self.set_parent(handle, inode, to.dir.ino)?;
        }
        if change.crosses() && two {
            self.set_parent(handle, other, from.dir.ino)?;
        }
        let gains = |disk: &mut _, gains: bool, loses: bool| match (gains, loses) {
            (true, false) => add_subdir(disk),
            (false, true) => remove_subdir(disk),
            _ => {}
        };
        let crosses = change.crosses();
        self.names_changed(handle, &from.dir, &mut |disk| {
            gains(disk, crosses && two, crosses && one);
        })?;
        if crosses {
            self.names_changed(handle, &to.dir, &mut |disk| gains(disk, one, two))?;
        }
        Ok(())
    }

    fn set_parent(&self, handle: &mut Handle<'_>, dir: &Arc<Inode>, parent: Ino) -> Result<()> {
        let kind = dioxide_format::inode::FileType::Directory;
        match self.redirect_name(handle, dir, b"..", parent, kind)? {
            true => Ok(()),
            false => Err(dir.corrupt("directory", "it has no '..'".into())),
        }
    }

    /// The inode itself has changed.
    fn touch(&self, handle: &mut Handle<'_>, inode: &Inode) -> Result<()> {
        let now = self.now();
        let lock = inode.map.lock();
        self.change_inode(handle, inode, &lock, &mut |disk| disk.set_ctime(now))?;
        inode.changed_in(handle.tid(), true);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Fs, MountOptions};
    use dioxide_testkit::{Image, debugfs};
    use std::thread;

    fn directories(requests: &[&str]) -> (Fs, Arc<Inode>, Arc<Inode>) {
        let image = Image::builder().build();
        debugfs(image.path(), &["mkdir a", "mkdir a/b", "mkdir a/b/c"]);
        debugfs(image.path(), requests);
        let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
        let find = |path: &[u8]| fs.0.lookup(path, false).expect("it is there");
        let (dir, below) = (find(b"/a"), find(b"/a/b"));
        (fs, dir, below)
    }

    #[test]
    fn names_of_a_directory_below_are_waited_for() {
        let (fs, dir, below) = directories(&[]);
        let held = below.names.write();
        thread::scope(|scope| {
            let waits = scope.spawn(|| fs.0.names_below(&dir, &below).map(drop));
            // Long enough to look whether it can ever have them.
            thread::sleep(Duration::from_millis(1500));
            assert!(!waits.is_finished());
            drop(held);
            waits.join().expect("no panic").expect("it has them");
        });
    }

    // Three threads that remove `a/b`, `a/b/c` and `a/b/c/a` have the names of one, and want those of the next.
    #[test]
    fn names_that_lead_in_a_circle_are_not_waited_for_without_end() {
        let circle = ["link a a/b/c/a", "unlink a/..", "link a/b/c a/.."];
        let (fs, dir, below) = directories(&circle);
        let _held = below.names.write();
        let error = fs.0.names_below(&dir, &below).expect_err("it cannot be");
        assert!(matches!(error, Error::Corrupt { .. }), "{error}");
    }
}
