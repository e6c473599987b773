//! Changing one attribute, and giving up all that a deleted inode has.
//!
//! For: one attribute per call, in the caller's transaction. Not for: times, and whether the caller may.
//!
//! Placement is Linux's: in the inode if it fits there, else in the block, with the value in an inode
//! of its own if it is long or nothing else fits (feature `ea_inode`). An attribute that stays goes on
//! lying where it is.
//!
//! What is to become of the inode and its block is decided before anything is changed, so that most
//! errors leave everything as it was; one after that aborts the journal.
//!
//! Lock order: handle start, then that of [`Sharing`], then orphans and maps.

use super::area::{Entries, Held, Room, Touched, put_area, value_inode};
use super::key::Key;
use super::lists;
use super::value::{Sharing, VALUE_MAX_BYTES};
use crate::alloc::BlockAllocator;
use crate::inode::Inode;
use crate::mount::Mount;
use crate::txn::Writer;
use crate::txn::inode::INODE_CREDITS;
use crate::{Error, Result, Shortage};
use dioxide_format::features::{Incompat, RoCompat};
use dioxide_format::inode::{Inode as DiskInode, InodeFlags};
use dioxide_format::types::Pblk;
use dioxide_format::xattr::{self, XattrEntry, XattrValue};
use dioxide_journal::Edit;
use dioxide_journal::journal::Handle;
use std::borrow::Cow;
use std::sync::Arc;

/// Content that lies in an inode, behind what `i_block` holds.
const SYSTEM_DATA: Key<'static> = Key {
    index: xattr::INDEX_SYSTEM,
    name: b"data",
};

/// What is to be, as the flags of `setxattr` say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum XattrMode {
    /// Whether it is there or not.
    #[default]
    Set,
    /// `XATTR_CREATE`: it must not be there (`EEXIST`).
    Create,
    /// `XATTR_REPLACE`: it must be there (`ENODATA`).
    Replace,
}

/// A change of one attribute.
pub(super) struct Change<'a> {
    pub(super) key: Key<'a>,
    /// The value as the disk has it; none to remove the attribute.
    pub(super) value: Option<Cow<'a, [u8]>>,
    pub(super) mode: XattrMode,
    /// Permission bits that go with it, set-ID bits included.
    pub(super) permissions: Option<u16>,
}

/// One inode's attributes under change.
pub(super) struct Work<'c, 'j> {
    pub(super) mount: &'c Mount,
    pub(super) writer: &'c Writer,
    pub(super) handle: &'c mut Handle<'j>,
    pub(super) inode: &'c Inode,
    pub(super) sharing: &'c mut Sharing,
}

/// What the attributes are to be.
struct Plan<'a> {
    entries: Entries<'a>,
    touched: Touched,
    /// The attribute as it was; in the block if `true`.
    old: Option<(bool, XattrEntry<'a>)>,
    /// The new value goes to an inode of its own.
    value_apart: bool,
    room: Room,
}

impl Plan<'_> {
    fn nothing_shared(&self) -> bool {
        let old_apart = matches!(&self.old, Some((_, entry)) if value_inode(entry).is_some());
        !self.touched.block && !self.value_apart && !old_apart
    }

    /// The area in the inode as it is to be, if it changes.
    fn area(&self, inode: &Inode) -> Result<Option<Vec<u8>>> {
        let build = || xattr::build_in_inode(&self.entries.in_inode, self.room.area);
        let area = self.touched.inode.then(build);
        area.map(|area| area.ok_or_else(|| overlap(inode)))
            .transpose()
    }

    /// The block as it is to be. What a kernel has put there may leave less free than is left for new
    /// attributes.
    fn block(&self, inode: &Inode) -> Result<Vec<u8>> {
        xattr::build_block(&self.entries.in_block, self.room.block, 0).ok_or_else(|| overlap(inode))
    }
}

/// What an inode is to have.
struct Outcome {
    /// The area in it, if that changes.
    area: Option<Vec<u8>>,
    block: Option<Pblk>,
    /// Permission bits, if they change.
    permissions: Option<u16>,
    /// How many more clusters it counts.
    clusters: i64,
    /// How many more values in inodes of their own it refers to.
    values: i64,
}

impl Mount {
    /// Credits that changing one attribute of an inode takes, with a value of `value_len` bytes.
    /// Blocks on metadata.
    ///
    /// # Errors
    /// Damage; those of the device.
    pub(crate) fn xattr_credits(&self, inode: &Inode, value_len: usize) -> Result<u32> {
        let kept = self.values_shared(inode)?;
        Ok(self.new_xattr_credits(value_len) + kept * INODE_CREDITS)
    }

    /// The same for an inode that does not have any yet.
    pub(crate) fn new_xattr_credits(&self, value_len: usize) -> u32 {
        // The inode; the old block, an equal one or a new one; allocating and freeing.
        let own = INODE_CREDITS
            + 3
            + BlockAllocator::ALLOCATE_CREDITS
            + BlockAllocator::FREE_CREDITS_PER_GROUP;
        match self.has_value_inodes() {
            true => own + self.value_credits(value_len),
            false => own,
        }
    }

    /// Values in inodes of their own that a copy of the block, which others have too, would refer to as well. A block
    /// with such values gets no more owners.
    fn values_shared(&self, inode: &Inode) -> Result<u32> {
        let reader = self.reader();
        let held = self.held(&reader, inode)?;
        match held.at() {
            Some(block) if self.owners(&reader, block)? > 1 => {
                let entries = held.entries(inode)?.in_block;
                Ok(entries.iter().filter_map(value_inode).count() as u32)
            }
            _ => Ok(0),
        }
    }

    pub(crate) fn has_value_inodes(&self) -> bool {
        let features = self.sb.features().incompat;
        features.contains(Incompat::EA_INODE)
    }

    /// Sets one attribute, or removes it. Names and values are as `setxattr` takes them; setting an
    /// access control list changes the mode too. The caller has the inode exclusive, and stamps it.
    /// [`Mount::xattr_credits`]. Blocks on metadata.
    ///
    /// Values that nobody has any more are freed by [`Mount::reap_values`], which somebody should call
    /// once the handle has ended; the end of the mount does.
    ///
    /// False if it was so already, and nothing changes.
    ///
    /// # Errors
    /// [`Error::Exists`] and [`Error::NoAttribute`] as `mode` says; removing what is not there is
    /// [`Error::NoAttribute`] too, except for access control lists. [`Error::NoSpace`] also where the
    /// inode and one block have no room. Names: [`Error::OutOfRange`], [`Error::Invalid`],
    /// [`Error::Unsupported`], [`Error::NotPermitted`]; values: [`Error::TooBig`], and for access
    /// control lists [`Error::Invalid`] and [`Error::AccessDenied`]. Nothing is changed by any of
    /// these. Damage; those of the journal.
    pub(crate) fn change_xattr(
        &self,
        writer: &Writer,
        handle: &mut Handle<'_>,
        inode: &Inode,
        name: &[u8],
        value: Option<&[u8]>,
        mode: XattrMode,
    ) -> Result<bool> {
        let key = Key::parse(name)?;
        if let Some(value) = value.filter(|value| value.len() > VALUE_MAX_BYTES) {
            let what = format!("{} bytes for {}", value.len(), key.shown());
            return Err(Error::TooBig(what));
        }
        key.check_for(inode)?;
        let change = match key.is_acl() {
            true => lists::change_of(inode, key, value)?,
            false => Change {
                key,
                value: value.map(Cow::Borrowed),
                mode,
                permissions: None,
            },
        };
        self.apply_xattr(writer, handle, inode, &change)
    }

    /// Makes a change that was judged by itself; false if there is nothing to change.
    pub(super) fn apply_xattr(
        &self,
        writer: &Writer,
        handle: &mut Handle<'_>,
        inode: &Inode,
        change: &Change<'_>,
    ) -> Result<bool> {
        let held = self.held(handle, inode)?;
        let Some(plan) = self.plan(inode, &held, change)? else {
            return Ok(false);
        };
        if plan.nothing_shared() {
            let new = Outcome {
                area: plan.area(inode)?,
                block: held.at(),
                permissions: change.permissions,
                clusters: 0,
                values: 0,
            };
            self.write_attributes(handle, inode, &new)?;
            return Ok(true);
        }
        let mut sharing = writer.xattrs.lock();
        let mut work = Work {
            mount: self,
            writer,
            handle,
            inode,
            sharing: &mut sharing,
        };
        match work.carry_out(&held, plan, change) {
            Err(error) if !matches!(error, Error::NoSpace(_)) => Err(self.fail(error)),
            result => result.map(|()| true),
        }
    }

    pub(super) fn held(&self, edit: &dyn Edit, inode: &Inode) -> Result<Held> {
        let node = inode.node();
        let block = match node.disk.file_acl() {
            Some(block) => Some((block, edit.read(block, &self.attribute_block())?)),
            None => None,
        };
        Ok(Held::new(node, block))
    }

    /// Reads where the attributes are. Blocks on metadata.
    ///
    /// # Errors
    /// Damage.
    pub(crate) fn check_xattrs(&self, inode: &Inode) -> Result<()> {
        self.held(&self.reader(), inode)?.entries(inode)?;
        Ok(())
    }

    pub(super) fn xattr_room(&self, held: &Held) -> Room {
        let block = self.sb.block_size() as usize;
        let reserve = match self.has_value_inodes() {
            true => (block / 8).min(1024),
            false => 0,
        };
        Room {
            area: held.area_len(),
            block,
            reserve,
        }
    }

    /// What a change makes of the attributes; none if nothing changes.
    fn plan<'a>(
        &self,
        inode: &Inode,
        held: &'a Held,
        change: &'a Change<'a>,
    ) -> Result<Option<Plan<'a>>> {
        let mut entries = held.entries(inode)?;
        let old = entries.find(&change.key);
        self.check_presence(change, old.is_some())?;
        if let Some((_, entry)) = &old {
            // Before anything is changed.
            self.check_value_inode(inode, value_inode(entry))?;
        }
        let mut touched = entries.remove(&change.key);
        let room = self.xattr_room(held);
        let mut value_apart = false;
        if let Some(value) = &change.value {
            let is_same = matches!(&old, Some((_, entry)) if entry.bytes() == Some(value));
            if is_same && change.permissions.is_none() {
                return Ok(None);
            }
            (entries, value_apart) =
                self.with_new(&entries, &change.key, value, &room, &mut touched)?;
        } else if old.is_none() && change.permissions.is_none() {
            return Ok(None);
        }
        if touched.block && held.is_shared() {
            // The copy refers to the values of those that stay, too.
            let stay = entries.in_block.iter();
            stay.filter(|entry| !change.key.names(entry))
                .try_for_each(|entry| self.check_value_inode(inode, value_inode(entry)))?;
        }
        let plan = Plan {
            entries,
            touched,
            old,
            value_apart,
            room,
        };
        // Before anything is changed.
        plan.area(inode)?;
        plan.block(inode)?;
        Ok(Some(plan))
    }

    fn check_presence(&self, change: &Change<'_>, is_there: bool) -> Result<()> {
        let needs =
            change.mode == XattrMode::Replace || change.value.is_none() && !change.key.is_acl();
        match change.mode {
            XattrMode::Create if is_there && change.value.is_some() => {
                Err(Error::Exists(change.key.shown()))
            }
            _ if needs && !is_there => Err(Error::NoAttribute(change.key.shown())),
            _ => Ok(()),
        }
    }

    /// Puts a new attribute to others; whether its value is to have an inode of its own.
    fn with_new<'a>(
        &self,
        others: &Entries<'a>,
        key: &Key<'a>,
        value: &'a [u8],
        room: &Room,
        touched: &mut Touched,
    ) -> Result<(Entries<'a>, bool)> {
        for apart in self.where_values_go(value, room) {
            let entry = match apart {
                true => self.entry_apart(key, value),
                false => XattrEntry::new(key.index, key.name, value),
            };
            let (mut entries, mut touches) = (others.clone(), *touched);
            if entries.add(entry, room, &mut touches) {
                *touched = touches;
                return Ok((entries, apart));
            }
        }
        Err(Error::NoSpace(Shortage::Attributes))
    }

    /// Writes an inode with other attributes.
    fn write_attributes(
        &self,
        handle: &mut Handle<'_>,
        inode: &Inode,
        new: &Outcome,
    ) -> Result<()> {
        let lock = inode.map.lock();
        self.count_values(handle, inode, new.values)?;
        self.change_inode(handle, inode, &lock, &mut |disk| {
            if let Some(area) = &new.area {
                put_area(disk, area);
            }
            if let Some(permissions) = new.permissions {
                disk.set_permissions(permissions);
            }
            self.count_clusters(disk, new.clusters);
            disk.set_file_acl(new.block);
        })?;
        inode.changed_in(handle.tid(), false);
        drop(lock);
        let node = inode.node();
        inode.set_nosec(self.nosec(&node.disk, &node.raw, inode.ino));
        Ok(())
    }

    /// Brings `i_blocks` in line with clusters that come or go.
    pub(crate) fn count_clusters(&self, disk: &mut DiskInode, delta: i64) {
        if delta == 0 {
            return;
        }
        let huge_file = self.sb.features().ro_compat.contains(RoCompat::HUGE_FILE);
        let block_size = self.sb.block_size();
        let cluster = i64::from(self.sb.cluster_size() / 512);
        let sectors = disk.sectors(huge_file, block_size);
        let sectors = sectors.saturating_add_signed(delta * cluster);
        if !disk.set_sectors(sectors, huge_file, block_size) {
            tracing::warn!("i_blocks has no room for the count");
        }
    }

    /// Clusters that `i_blocks` counts for attributes: those of a block, shared or not, and those of
    /// values in inodes of their own, as if the file had each alone.
    fn clusters_of(&self, entries: &Entries<'_>, block: Option<Pblk>) -> i64 {
        let all = entries.in_inode.iter().chain(&entries.in_block);
        let values = all.map(|entry| match entry.value {
            XattrValue::Inode { size, .. } => i64::from(size.div_ceil(self.sb.cluster_size())),
            XattrValue::Bytes(_) => 0,
        });
        values.sum::<i64>() + i64::from(block.is_some())
    }

    /// As how many inodes one counts in quota: itself, and those that hold values of its attributes.
    ///
    /// # Errors
    /// Damage.
    pub(crate) fn inodes_counted(&self, edit: &dyn Edit, inode: &Inode) -> Result<u64> {
        if !self.has_value_inodes() {
            return Ok(1);
        }
        let held = self.held(edit, inode)?;
        Ok(1 + held.entries(inode)?.values() as u64)
    }

    /// Frees all that the attributes of an inode to be deleted have. The inode is an orphan without
    /// links, and nobody else knows it; after a crash in the middle it can be called again. No handle
    /// may be open. Blocks.
    ///
    /// # Errors
    /// Damage; those of the journal.
    pub(crate) fn release_xattrs(&self, writer: &Writer, inode: &Arc<Inode>) -> Result<()> {
        while self.release_one(writer, inode)? {}
        match inode.flags().contains(InodeFlags::EA_INODE) {
            // Whoever deletes this one goes on with those that it named.
            true => Ok(()),
            false => self.reap_values(writer),
        }
    }

    /// Gives up one value with an inode of its own, or the block. Whether there was any.
    fn release_one(&self, writer: &Writer, inode: &Inode) -> Result<bool> {
        let held = self.held(&self.reader(), inode)?;
        let apart = |entry: &XattrEntry<'_>| value_inode(entry).is_some();
        if held.block.is_none() && !held.entries(inode)?.in_inode.iter().any(apart) {
            return Ok(false);
        }
        // Nothing is copied: of a block that others have only the count changes.
        let mut handle = writer.begin(self.new_xattr_credits(0))?;
        let found = self.release_one_in(writer, &mut handle, inode)?;
        handle.stop()?;
        Ok(found)
    }

    /// As [`Mount::release_xattrs`], in one transaction, which must have room for it. Values that nobody has any
    /// more are left as orphans.
    ///
    /// # Errors
    /// Damage; those of the journal.
    pub(crate) fn release_xattrs_in(
        &self,
        writer: &Writer,
        handle: &mut Handle<'_>,
        inode: &Inode,
    ) -> Result<()> {
        while self.release_one_in(writer, handle, inode)? {}
        Ok(())
    }

    fn release_one_in(
        &self,
        writer: &Writer,
        handle: &mut Handle<'_>,
        inode: &Inode,
    ) -> Result<bool> {
        let mut sharing = writer.xattrs.lock();
        let held = self.held(handle, inode)?;
        let mut work = Work {
            mount: self,
            writer,
            handle,
            inode,
            sharing: &mut sharing,
        };
        work.release_one(&held)
    }
}

/// What was read as attributes needs more room than it lay in.
pub(super) fn overlap(inode: &Inode) -> Error {
    inode.corrupt("xattr", "values overlap".into())
}

impl Mount {
    /// The area of attributes in an inode with another content in it (`system.data`), or with none. None
    /// if it has no room for that.
    ///
    /// # Errors
    /// Damage.
    pub(crate) fn area_with_content(
        &self,
        inode: &Inode,
        content: Option<&[u8]>,
    ) -> Result<Option<Vec<u8>>> {
        let held = Held::new(inode.node(), None);
        let mut entries = held.entries(inode)?;
        entries.remove(&SYSTEM_DATA);
        if let Some(content) = content {
            let Key { index, name } = SYSTEM_DATA;
            entries.in_inode.push(XattrEntry::new(index, name, content));
        }
        Ok(xattr::build_in_inode(&entries.in_inode, held.area_len()))
    }

    /// Takes the capabilities from a file, in a transaction of its own. The caller has the file
    /// exclusive, and no handle open.
    ///
    /// # Errors
    /// As [`Mount::change_xattr`].
    pub(crate) fn remove_capability(&self, writer: &Writer, inode: &Inode) -> Result<()> {
        let mut handle = writer.begin(self.xattr_credits(inode, 0)?)?;
        let name = b"security.capability";
        match self.change_xattr(writer, &mut handle, inode, name, None, XattrMode::Replace) {
            Ok(_) | Err(Error::NoAttribute(_)) => {}
            Err(error) => return Err(error),
        }
        handle.stop()?;
        self.reap_values(writer)
    }
}

impl Work<'_, '_> {
    /// # Errors
    /// [`Error::NoSpace`]: nothing was changed. Others: something may have been.
    fn carry_out(&mut self, held: &Held, plan: Plan<'_>, change: &Change<'_>) -> Result<()> {
        let mut plan = plan;
        let mut taken = None;
        if plan.value_apart {
            let value = change.value.as_deref().unwrap_or_default();
            let ino = self.take_value(value)?;
            plan.entries.set_value_inode(&change.key, ino);
            taken = Some(ino);
        }
        let had = held.at();
        let stored = match plan.touched.block {
            true => self.store_planned(&plan, had),
            false => Ok((had, false)),
        };
        if let (Err(Error::NoSpace(_)), Some(ino)) = (&stored, taken) {
            self.drop_value(ino)?;
        }
        let (block, left_shared) = stored?;
        self.settle_values(&plan, &change.key, left_shared)?;
        let mount = self.mount;
        let before = mount.clusters_of(&held.entries(self.inode)?, had);
        let new = Outcome {
            area: plan.area(self.inode)?,
            block,
            permissions: change.permissions,
            clusters: mount.clusters_of(&plan.entries, block) - before,
            values: plan.entries.values() - held.entries(self.inode)?.values(),
        };
        mount.write_attributes(self.handle, self.inode, &new)
    }

    fn store_planned(
        &mut self,
        plan: &Plan<'_>,
        had: Option<Pblk>,
    ) -> Result<(Option<Pblk>, bool)> {
        let bytes = plan.block(self.inode)?;
        let stored = self.store_block(had, &plan.entries.in_block, &bytes)?;
        Ok((stored.block, stored.left_shared))
    }

    /// Counts the references to values in inodes of their own: that of the attribute that went, and
    /// those that a copy of a shared block has more.
    fn settle_values(&mut self, plan: &Plan<'_>, key: &Key<'_>, left_shared: bool) -> Result<()> {
        if left_shared {
            let kept = plan.entries.in_block.iter();
            for ino in kept
                .filter(|entry| !key.names(entry))
                .filter_map(value_inode)
            {
                self.keep_value(ino)?;
            }
        }
        match &plan.old {
            Some((in_block, entry)) if !(*in_block && left_shared) => match value_inode(entry) {
                Some(ino) => self.drop_value(ino),
                None => Ok(()),
            },
            _ => Ok(()),
        }
    }

    fn release_one(&mut self, held: &Held) -> Result<bool> {
        let (mount, inode) = (self.mount, self.inode);
        let mut entries = held.entries(inode)?;
        let block = held.at();
        let mut new = Outcome {
            area: None,
            block,
            permissions: None,
            clusters: 0,
            values: 0,
        };
        let apart = |entry: &XattrEntry<'_>| value_inode(entry).is_some();
        if let Some(at) = entries.in_inode.iter().position(apart) {
            let gone = entries.in_inode.swap_remove(at);
            let area = xattr::build_in_inode(&entries.in_inode, held.area_len());
            new.area = Some(area.ok_or_else(|| overlap(inode))?);
            new.values = -1;
            self.let_go(&gone)?;
            let written = mount.write_attributes(self.handle, inode, &new);
            // The reference is gone, and must not go twice.
            return written.map(|()| true).map_err(|error| mount.fail(error));
        }
        let Some(pblk) = block else { return Ok(false) };
        let last = mount.owners(self.handle, pblk)? == 1;
        if let Some(at) = entries.in_block.iter().position(apart).filter(|_| last) {
            let gone = entries.in_block.swap_remove(at);
            let bytes = xattr::build_block(&entries.in_block, mount.sb.block_size() as usize, 0);
            let bytes = bytes.ok_or_else(|| overlap(inode))?;
            self.let_go(&gone)?;
            let written = self.change_block(pblk, &bytes);
            let counted = mount.count_values(self.handle, inode, -1);
            let written = counted.and(written);
            return written.map(|_| true).map_err(|error| mount.fail(error));
        }
        let left = self.leave_block(block).and_then(|_| {
            new.block = None;
            new.clusters = -1;
            new.values = -(entries.in_block.iter().filter_map(value_inode).count() as i64);
            mount.write_attributes(self.handle, inode, &new)
        });
        left.map(|()| true).map_err(|error| mount.fail(error))
    }

    /// Drops what an entry refers to, unless that is no value.
    fn let_go(&mut self, entry: &XattrEntry<'_>) -> Result<()> {
        let ino = value_inode(entry);
        match self.mount.check_value_inode(self.inode, ino) {
            Ok(()) => ino.map_or(Ok(()), |ino| self.drop_value(ino)),
            Err(error) => {
                tracing::warn!("an attribute of a deleted inode: {error}");
                Ok(())
            }
        }
    }
}
