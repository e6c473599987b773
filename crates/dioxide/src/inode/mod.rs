//! An inode in memory.

mod life;
mod load;

pub(crate) use life::End;
pub(crate) use load::{InodeCache, is_plain_data, new_id, sets_id};

use self::life::Life;
use crate::FileType;
use crate::alloc::{BlockAllocator, Stream};
use crate::io::direct::Access;
use crate::map::ExtentMap;
use crate::map::load::Spot;
use crate::sync::inflight::InFlight;
use crate::sync::rank::{AppendingLock, NamesLock, WriteLocked};
use crate::sync::rwsem::Rwsem;
use dioxide_format::inode::{Inode as DiskInode, InodeFlags};
use dioxide_format::types::{Ino, Pblk};
use dioxide_journal::transaction::Tid;
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, OnceLock};

/// An inode in memory: one per inode and mount, shared by all handles.
///
/// Which lock guards what is in `docs/LOCKING.md`; in short, `rwsem` guards the sizes and the map
/// against change, the map's lock serialises changes of the inode itself, and all may be sampled
/// without either.
///
/// The order of the fields is theirs in memory. The first cache line is what the short paths look at, and what never changes:
/// a reader beside appends and truncates would else fetch it again for each of their stores.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Inode {
    /// What the short paths ask of the inode, in one number each: requests that end at or before it
    /// may take them. 0 if none may.
    short_read_end: AtomicU64,
    short_write_end: AtomicU64,
    /// Where it lies on the disk.
    pub(crate) location: Location,
    pub(crate) ino: Ino,
    /// `i_generation`: never changes.
    pub(crate) generation: u32,
    /// Its first half is still in the first line.
    pub(crate) rwsem: Rwsem,
    i_size: AtomicU64,
    i_disksize: AtomicU64,
    /// As it is now, uncommitted changes included. Replaced, never changed.
    node: RwLock<Arc<Node>>,
    /// `i_flags` of the node.
    flags: AtomicU32,
    /// How often a truncate beside readers has begun or ended: odd while one is under way. Changed under the map's lock.
    cuts: AtomicU32,
    /// Time of the last overwrite since the inode was last written, in nanoseconds since 1970, or
    /// [`NEVER`]. Stays in memory until the inode is written for another reason (lazytime).
    modified_ns: AtomicI64,
    /// The last transactions that changed it: at all, and in what reading its data back needs.
    sync_tid: AtomicU64,
    datasync_tid: AtomicU64,
    /// The last transaction that took blocks away whose cluster the file may have kept.
    cut_tid: AtomicU64,
    /// Near which block to allocate next; 0 if it was not decided.
    goal: AtomicU64,
    nosec: AtomicU8,
    /// A truncate met an error: there are blocks behind the end. Changed under the rwsem, exclusive.
    cut_short: AtomicBool,
    /// Held by appends, which may share the rwsem: each sees the end that the one before left; shared by other writes that
    /// make the file longer. Taken after the rwsem.
    pub(crate) appending: AppendingLock,
    file_type: FileType,
    pub(crate) in_flight: InFlight,
    life: Life,
    /// Of a directory: held shared to look for a name, exclusive to change names.
    pub(crate) names: NamesLock,
    /// How often a name in it has changed, counted when what is in memory of it has.
    pub(crate) names_version: AtomicU64,
    /// How often moving blocks to other places in it has begun or ended: odd while that is under way. Changed under the rwsem,
    /// exclusive.
    moves: AtomicU32,
    /// Set when blocks were allocated for it: the window that is kept for it goes with it.
    allocator: OnceLock<Arc<BlockAllocator>>,
    pub(crate) map: ExtentMap,
    /// Of a file mapped by indirect blocks: where those that were read are. Changed under the map's lock.
    pointer_blocks: OnceLock<Box<PointerBlocks>>,
}

type PointerBlocks = Mutex<HashMap<Pblk, Spot>>;

const _: () = assert!(std::mem::offset_of!(Inode, rwsem) + Rwsem::SEEN_BY_READERS <= 64);

/// Blocks are being moved.
pub(crate) struct Moving<'a>(&'a Inode);

impl Drop for Moving<'_> {
    fn drop(&mut self) {
        self.0.moves.fetch_add(1, Ordering::Release);
    }
}

/// The inode itself.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) disk: DiskInode,
    /// The raw bytes (`inode_size` of them): hold the in-inode attributes.
    pub(crate) raw: Box<[u8]>,
}

/// Where an inode lies on the disk.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Location {
    /// The block of the inode table.
    pub(crate) block: Pblk,
    /// The byte in it.
    pub(crate) offset: usize,
}

/// What an inode has that a write by somebody without `CAP_FSETID` must strip. A write strips
/// privileges unless it has neither.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Nosec {
    /// Set-user-ID, or set-group-ID with group execution.
    pub(crate) set_id: bool,
    /// A `security.capability` attribute, stripped whoever writes.
    pub(crate) capability: bool,
}

impl Nosec {
    /// What of it a change of the content strips. A page cache strips the capability when it is written to: one that is there when
    /// it writes back is newer.
    #[inline]
    pub(crate) fn stripped_by(self, access: Access) -> Nosec {
        Nosec {
            set_id: self.set_id && !access.fsetid,
            capability: self.capability && !access.written_back,
        }
    }

    /// Whether a change of the content strips something.
    #[inline]
    pub(crate) fn strips(self, access: Access) -> bool {
        self.stripped_by(access) != Nosec::default()
    }

    fn to_u8(self) -> u8 {
        u8::from(self.set_id) | u8::from(self.capability) << 1
    }

    fn from_u8(bits: u8) -> Nosec {
        Nosec {
            set_id: bits & 1 != 0,
            capability: bits & 2 != 0,
        }
    }
}

const NEVER: i64 = i64::MIN;

/// What a write under the shared lock compares, to know whether the file was cut off under it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cuts(u32);

impl Cuts {
    /// Whether a truncate is under way.
    pub(crate) fn is_being_cut(self) -> bool {
        !self.0.is_multiple_of(2)
    }
}

impl Inode {
    /// The lock's name is also that of the inode in the mount's in-flight tables. `spare` is memory for it, if nobody has
    /// that any more.
    pub(crate) fn new(
        spare: Option<Arc<Inode>>,
        ino: Ino,
        rwsem: Rwsem,
        location: Location,
        node: Node,
        nosec: Nosec,
    ) -> Arc<Inode> {
        let size = node.disk.size();
        let inode = Inode {
            ino,
            generation: node.disk.generation(),
            location,
            file_type: node.disk.file_type().into(),
            flags: AtomicU32::new(node.disk.flags().0),
            node: RwLock::new(Arc::new(node)),
            names: NamesLock::new(()),
            names_version: AtomicU64::new(0),
            life: Life::default(),
            appending: AppendingLock::new(()),
            in_flight: InFlight::new(rwsem.id()),
            rwsem,
            map: ExtentMap::new(),
            i_size: AtomicU64::new(0),
            i_disksize: AtomicU64::new(0),
            short_read_end: AtomicU64::new(0),
            short_write_end: AtomicU64::new(0),
            modified_ns: AtomicI64::new(NEVER),
            nosec: AtomicU8::new(nosec.to_u8()),
            sync_tid: AtomicU64::new(0),
            datasync_tid: AtomicU64::new(0),
            cut_tid: AtomicU64::new(0),
            goal: AtomicU64::new(0),
            cut_short: AtomicBool::new(false),
            cuts: AtomicU32::new(0),
            moves: AtomicU32::new(0),
            allocator: OnceLock::new(),
            pointer_blocks: OnceLock::new(),
        };
        inode.set_size(size);
        if let Some(mut spare) = spare
            && let Some(place) = Arc::get_mut(&mut spare)
        {
            *place = inode;
            return spare;
        }
        Arc::new(inode)
    }

    /// Whether it has little that would stay in memory with it.
    pub(crate) fn is_bare(&self) -> bool {
        let has_nodes = self.pointer_blocks.get().is_some();
        self.allocator.get().is_none() && !has_nodes && self.map.is_bare()
    }

    /// Where the blocks of pointers are that were read of it.
    pub(crate) fn pointer_blocks(&self) -> &PointerBlocks {
        self.pointer_blocks.get_or_init(Box::default)
    }

    /// The inode as it is now.
    pub(crate) fn node(&self) -> Arc<Node> {
        self.node.read().clone()
    }

    /// Replaces it. The caller holds the map's lock.
    pub(crate) fn set_node(&self, node: Node) {
        self.flags.store(node.disk.flags().0, Ordering::Release);
        *self.node.write() = Arc::new(node);
    }

    /// Lets others see no change of it.
    #[cfg(test)]
    pub(crate) fn hold(&self) -> impl Sized + '_ {
        self.node.read()
    }

    /// Whether somebody waits to show a change.
    #[cfg(test)]
    pub(crate) fn is_changing(&self) -> bool {
        self.node.try_read().is_none()
    }

    /// What kind of file it is.
    pub(crate) fn file_type(&self) -> FileType {
        self.file_type
    }

    /// `i_flags`.
    #[inline]
    pub(crate) fn flags(&self) -> InodeFlags {
        InodeFlags(self.flags.load(Ordering::Acquire))
    }

    /// What a write must strip.
    #[inline]
    pub(crate) fn nosec(&self) -> Nosec {
        Nosec::from_u8(self.nosec.load(Ordering::Acquire))
    }

    /// Changes what a write must strip. The caller holds the rwsem exclusive.
    pub(crate) fn set_nosec(&self, nosec: Nosec) {
        self.nosec.store(nosec.to_u8(), Ordering::Release);
        self.set_short_ends();
    }

    /// Changes both sizes. The caller holds the rwsem exclusive; or the map's lock, for a size that grows, or
    /// counts a cut first, or where nothing is written any more; or is the only one to know the inode.
    pub(crate) fn set_size(&self, size: u64) {
        self.i_size.store(size, Ordering::Release);
        self.i_disksize.store(size, Ordering::Release);
        self.set_short_ends();
    }

    fn set_short_ends(&self) {
        let plain = self.is_plain_data();
        let read_end = if plain { self.i_size() } else { 0 };
        let nosec = self.nosec();
        let strips = nosec.set_id || nosec.capability || self.is_immutable();
        let waits = self.flags().contains(InodeFlags::SYNC);
        let write_end = if strips || waits { 0 } else { read_end };
        self.short_read_end.store(read_end, Ordering::Release);
        self.short_write_end.store(write_end, Ordering::Release);
    }

    /// Remembers the transaction that changed it; `data` if reading its data back needs it.
    pub(crate) fn changed_in(&self, tid: Tid, data: bool) {
        self.sync_tid.fetch_max(tid.0, Ordering::AcqRel);
        if data {
            self.datasync_tid.fetch_max(tid.0, Ordering::AcqRel);
        }
    }

    /// The last transaction that changed it; with `data_only`, what reading its data back needs.
    pub(crate) fn last_change(&self, data_only: bool) -> Tid {
        let tid = match data_only {
            true => &self.datasync_tid,
            false => &self.sync_tid,
        };
        Tid(tid.load(Ordering::Acquire))
    }

    /// Remembers the transaction that took blocks away whose cluster the file may have kept.
    pub(crate) fn cut_in(&self, tid: Tid) {
        self.cut_tid.fetch_max(tid.0, Ordering::AcqRel);
    }

    /// The last transaction that did.
    pub(crate) fn last_cut(&self) -> Tid {
        Tid(self.cut_tid.load(Ordering::Acquire))
    }

    /// Near which block to allocate, if that was decided.
    pub(crate) fn goal(&self) -> Option<Pblk> {
        Some(Pblk(self.goal.load(Ordering::Relaxed))).filter(|goal| goal.0 != 0)
    }

    /// Blocks up to `goal` were allocated by `allocator`.
    pub(crate) fn set_goal(&self, goal: Pblk, allocator: &Arc<BlockAllocator>) {
        self.goal.store(goal.0, Ordering::Relaxed);
        self.allocator.get_or_init(|| allocator.clone());
    }

    /// The lock of its names, if it is a directory: who changes those may write the inode anew from what he has read of it, so that
    /// who changes anything else of it has them too.
    pub(crate) fn lock_names_of_dir(&self) -> Option<WriteLocked<'_, ()>> {
        (self.file_type() == FileType::Directory).then(|| self.names.write())
    }

    /// Whether a truncate met an error, or was left unfinished, so that there are blocks behind the end.
    pub(crate) fn is_cut_short(&self) -> bool {
        self.cut_short.load(Ordering::Relaxed)
    }

    /// Changes that. The caller holds the rwsem exclusive.
    pub(crate) fn set_cut_short(&self, cut_short: bool) {
        self.cut_short.store(cut_short, Ordering::Relaxed);
    }

    /// To be held while blocks are moved to other places in the file: what is moved is at neither for a while. The caller has it
    /// exclusive.
    pub(crate) fn moving(&self) -> Moving<'_> {
        self.moves.fetch_add(1, Ordering::Relaxed);
        // Before whatever is moved.
        fence(Ordering::Release);
        Moving(self)
    }

    /// Looks at the map without a lock, if nothing is moved from beginning to end.
    pub(crate) fn while_nothing_moves<T>(&self, look: impl FnOnce() -> T) -> Option<T> {
        let before = self.moves.load(Ordering::Acquire);
        if !before.is_multiple_of(2) {
            return None;
        }
        let found = look();
        // After all that was looked at.
        fence(Ordering::Acquire);
        (self.moves.load(Ordering::Relaxed) == before).then_some(found)
    }

    /// Truncates beside readers until now.
    #[inline]
    pub(crate) fn cuts(&self) -> Cuts {
        Cuts(self.cuts.load(Ordering::Acquire))
    }

    /// A truncate beside readers begins, or ends. The caller holds the map's lock.
    pub(crate) fn count_cut(&self) {
        self.cuts.fetch_add(1, Ordering::Release);
    }

    /// Names its allocations.
    pub(crate) fn stream(&self) -> Stream {
        Stream(self.ino.0.into())
    }

    /// Up to where small reads may take the simple path.
    #[inline(always)]
    pub(crate) fn short_read_end(&self) -> u64 {
        self.short_read_end.load(Ordering::Acquire)
    }

    /// Up to where overwrites may take the short path; if not 0, it is i_size.
    #[inline(always)]
    pub(crate) fn short_write_end(&self) -> u64 {
        self.short_write_end.load(Ordering::Acquire)
    }

    /// The size that readers see.
    #[inline]
    pub(crate) fn i_size(&self) -> u64 {
        self.i_size.load(Ordering::Acquire)
    }

    /// The size that is on the disk.
    #[inline]
    pub(crate) fn i_disksize(&self) -> u64 {
        self.i_disksize.load(Ordering::Acquire)
    }

    /// Records an overwrite at `now_ns`.
    #[inline]
    pub(crate) fn set_modified(&self, now_ns: i64) {
        if self.modified_ns.load(Ordering::Relaxed) != now_ns {
            self.modified_ns.store(now_ns, Ordering::Relaxed);
        }
    }

    /// When this mount last overwrote the file since the inode was written, if it did, in
    /// nanoseconds since 1970.
    pub(crate) fn modified_ns(&self) -> Option<i64> {
        Some(self.modified_ns.load(Ordering::Relaxed)).filter(|&ns| ns != NEVER)
    }

    /// Takes that time, to write it.
    pub(crate) fn take_modified_ns(&self) -> Option<i64> {
        Some(self.modified_ns.swap(NEVER, Ordering::Relaxed)).filter(|&ns| ns != NEVER)
    }
}

impl Drop for Inode {
    fn drop(&mut self) {
        if let Some(allocator) = self.allocator.get() {
            allocator.close_stream(self.stream());
        }
    }
}
