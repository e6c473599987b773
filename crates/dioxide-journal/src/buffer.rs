//! The cache of metadata blocks of one device.
//!
//! A cached block is an `Arc<[u8]>` that is replaced when the block changes, and written into only
//! while nobody else has it. So a reader keeps the version that it got for as long as it likes, and waits
//! for no longer than one change takes; a transaction that commits keeps its version (jbd2's frozen
//! copy) by holding the `Arc`.
//!
//! It is not the journal: it does not know which changes are durable. It never writes to the device.
//! Who holds a `Buffer` pins it: a transaction holds those it changed until they are written home,
//! so that eviction cannot drop the only version there is.
//!
//! # Invariants
//! - At most one `Buffer` of a block exists that anybody can reach. A new reference comes only from
//!   the map, under the shard's lock, or from another reference; so one that only the map has
//!   stays so while the shard is locked, and may be dropped.
//! - What was read from the device was accepted by its [`Kind`] before anybody saw it. Failures are
//!   not kept: the next reader asks the device again.
//! - More bytes than the budget are cached only while that much is pinned.
//!
//! # What stays
//! Blocks that are read once, each at another place, would push out the few that every operation needs: the inner
//! nodes of a directory's index, when its leaves do not fit. So a block is fresh at first, in a list of which the oldest
//! leaves first, and is kept (clock) once it was asked for again, before it left or soon after. While there is room
//! nothing leaves. The memory of a block that leaves is the next one's: that of a fresh one is likely to be still in the
//! processor's cache, and nothing is allocated.
//!
//! # Locks
//! Shard (the map and its lists), then nothing; a buffer's `change` (one change at a time),
//! then its `slot` (the current version; held for a clone or a swap). None is held over device I/O,
//! `change` is held while the caller's closure runs.
//!
//! # Rejected
//! A cache crate: pinning by reference is what these do not have. A clock alone: see above. An ordered map, which is its own ring: of a
//! hundred thousand blocks each search missed the processor's cache four times.

use crate::transaction::Tid;
use crate::{Error, Kind, Result};
use dioxide_block::Device;
use dioxide_format::types::Pblk;
use foldhash::fast::RandomState;
use parking_lot::{Condvar, Mutex};
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

const SHARDS: usize = 16;
/// How many blocks an insertion looks at to find victims, so that it stays cheap when all are pinned.
const EVICT_STEPS: usize = 8;
/// What part of the budget fresh blocks have for themselves, once it is used up.
const FRESH_PART: usize = 16;
/// What part of the budget memory is kept for beyond it, once it is nobody's.
const SPARE_PART: usize = 8;

/// Memory of versions that are nobody's any more, for the next that are made. One thread changes a block and another commits
/// what it was: the allocator would have them meet in a lock, and take its time for pieces of that size.
struct Spare {
    most: usize,
    versions: Mutex<Vec<Arc<[u8]>>>,
}

impl Spare {
    /// At most so many versions.
    fn new(most: usize) -> Spare {
        Spare {
            most,
            versions: Mutex::default(),
        }
    }

    /// One that nobody has, with bytes of old.
    fn take(&self) -> Option<Arc<[u8]>> {
        self.versions.lock().pop()
    }

    /// Keeps the memory of a version, unless somebody else has it.
    fn give(&self, bytes: &mut Arc<[u8]>) {
        if Arc::get_mut(bytes).is_none() {
            return;
        }
        let mut versions = self.versions.lock();
        if versions.len() < self.most {
            versions.push(std::mem::take(bytes));
        }
    }

    /// A version with these bytes, which nobody else has.
    fn copy_of(&self, bytes: &[u8]) -> Arc<[u8]> {
        let Some(mut copy) = self.take() else {
            return bytes.into();
        };
        let memory = Arc::get_mut(&mut copy).expect("it is nobody's");
        memory.copy_from_slice(bytes);
        copy
    }
}

/// A cached metadata block. Whoever holds one pins it in the cache.
pub(crate) struct Buffer {
    block: Pblk,
    change: Mutex<()>,
    slot: Mutex<Slot>,
    loaded: Condvar,
    /// Asked for again, since it was read or the clock's hand passed.
    used: AtomicBool,
    freed: AtomicU32,
    /// The transaction that it is part of, if that is the running one; 0 if it was freed since. Changed under
    /// the journal's state.
    tid: AtomicU64,
    spare: Arc<Spare>,
}

/// How often a block was freed while somebody had its buffer: tells whether a change of it is older than
/// that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Freed(u32);

enum Slot {
    /// Whoever put the buffer into the map reads the device.
    Loading,
    Ready(Version),
    /// Could not be loaded, and is no longer in the map.
    Failed,
}

struct Version {
    bytes: Arc<[u8]>,
    /// Name of the kind that accepted or made it.
    kind: &'static str,
    /// Judges it when it is committed: the kind that made it, if that can.
    judge: Option<Arc<dyn Kind>>,
    /// Completes it when its transaction closes.
    completes: Option<Arc<dyn Kind>>,
}

impl Version {
    /// Whether that kind accepted or made it.
    #[inline]
    fn is_of(&self, kind: &dyn Kind) -> bool {
        // Mostly they are one and the same text.
        let name = kind.name();
        std::ptr::eq(self.kind, name) || self.kind == name
    }

    /// As a kind has changed it.
    fn made_by(&mut self, kind: &dyn Kind) {
        if self.judge.is_none() || !self.is_of(kind) {
            self.judge = kind.keep();
        }
        self.kind = kind.name();
    }
}

impl Buffer {
    fn new(block: Pblk, spare: &Arc<Spare>) -> Buffer {
        Buffer {
            spare: spare.clone(),
            block,
            change: Mutex::new(()),
            slot: Mutex::new(Slot::Loading),
            loaded: Condvar::new(),
            used: AtomicBool::new(false),
            freed: AtomicU32::new(0),
            tid: AtomicU64::new(0),
        }
    }

    /// A buffer of another block in the memory of one that has left the cache, and the memory for its bytes, if nobody
    /// reads what was there.
    fn renewed(mut left: Arc<Buffer>, block: Pblk) -> (Arc<Buffer>, Option<Arc<[u8]>>) {
        let Some(buffer) = Arc::get_mut(&mut left) else {
            let spare = &left.spare;
            return (Arc::new(Buffer::new(block, spare)), None);
        };
        let new = Buffer::new(block, &buffer.spare);
        let was = std::mem::replace(buffer, new);
        let memory = match was.slot.into_inner() {
            Slot::Ready(Version { mut bytes, .. }) => {
                Arc::get_mut(&mut bytes).is_some().then_some(bytes)
            }
            _ => None,
        };
        (left, memory)
    }

    pub(crate) fn freed(&self) -> Freed {
        Freed(self.freed.load(Ordering::Acquire))
    }

    /// It is part of the running transaction from now on.
    pub(crate) fn joined(&self, tid: Tid) {
        self.tid.store(tid.0, Ordering::Release);
    }

    /// Whether it is part of the running transaction. Asked without the journal's state by a handle of
    /// that transaction, for a change that it has made: the block leaves the transaction only when it is freed.
    /// A free before the change was seen by it; after one that comes later, the change is no part of it either.
    pub(crate) fn is_in(&self, tid: Tid) -> bool {
        self.tid.load(Ordering::Acquire) == tid.0
    }

    /// The current version.
    ///
    /// # Panics
    /// If it was never loaded: the journal only holds buffers that were.
    pub(crate) fn bytes(&self) -> Arc<[u8]> {
        match &*self.slot.lock() {
            Slot::Ready(version) => version.bytes.clone(),
            _ => unreachable!("a buffer of a transaction was loaded"),
        }
    }

    /// Its kind completes it when the transaction closes that it is part of.
    ///
    /// # Panics
    /// If the kind does not keep itself; as [`Buffer::bytes`].
    pub(crate) fn complete_by(&self, kind: &dyn Kind) {
        let kept = kind.keep().expect("a kind that completes keeps itself");
        match &mut *self.slot.lock() {
            Slot::Ready(version) => version.completes = Some(kept),
            _ => unreachable!("a buffer of a transaction was loaded"),
        }
    }

    /// The version that a transaction commits, completed, and who judges it before.
    ///
    /// # Panics
    /// As [`Buffer::bytes`].
    pub(crate) fn freeze(&self) -> (Arc<[u8]>, Option<Arc<dyn Kind>>) {
        if let Some(kind) = self.take_completes() {
            let mut complete = |bytes: &mut [u8]| {
                kind.complete(self.block, bytes);
                Ok(())
            };
            let completed = self.change(&*kind, &mut complete);
            completed.expect("completing does not fail");
        }
        match &*self.slot.lock() {
            Slot::Ready(version) => (version.bytes.clone(), version.judge.clone()),
            _ => unreachable!("a buffer of a transaction was loaded"),
        }
    }

    fn take_completes(&self) -> Option<Arc<dyn Kind>> {
        match &mut *self.slot.lock() {
            Slot::Ready(version) => version.completes.take(),
            _ => None,
        }
    }

    /// A version of it is not needed any more by who had this.
    pub(crate) fn give_back(&self, bytes: &mut Arc<[u8]>) {
        self.spare.give(bytes);
    }

    fn set(&self, slot: Slot) {
        *self.slot.lock() = slot;
        self.loaded.notify_all();
    }

    /// Waits until it is loaded, and looks at it; `None` if that failed.
    fn wait<T>(&self, look: impl FnOnce(&Version) -> T) -> Option<T> {
        let mut slot = self.slot.lock();
        loop {
            match &*slot {
                Slot::Loading => self.loaded.wait(&mut slot),
                Slot::Ready(version) => return Some(look(version)),
                Slot::Failed => return None,
            }
        }
    }

    /// Looks at it once `kind` has accepted it, now or before; `None` if it could not be loaded.
    fn accepted<T>(&self, kind: &dyn Kind, look: impl Fn(&Version) -> T) -> Result<Option<T>> {
        let looked = |version: &Version| {
            let unknown = (!version.is_of(kind)).then(|| version.bytes.clone());
            (unknown, look(version))
        };
        let Some((unknown, seen)) = self.wait(looked) else {
            return Ok(None);
        };
        if let Some(bytes) = unknown {
            verify(kind, self.block, &bytes)?;
        }
        Ok(Some(seen))
    }

    /// Whether it is the buffer of this block, loaded and accepted by `kind`: what [`BufferCache::pin`] would find.
    pub(crate) fn is_pinned(&self, block: Pblk, kind: &dyn Kind) -> Result<bool> {
        Ok(self.block == block && self.accepted(kind, |_| ())?.is_some())
    }

    /// Changes the content and seals it, in place if nobody has this version. `change` fails before it
    /// writes anything, or not at all; nothing happens then.
    pub(crate) fn change(
        &self,
        kind: &dyn Kind,
        change: &mut dyn FnMut(&mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let _one_at_a_time = self.change.lock();
        if let Slot::Ready(version) = &mut *self.slot.lock()
            && let Some(bytes) = Arc::get_mut(&mut version.bytes)
        {
            checked(bytes, change)?;
            kind.seal(self.block, bytes);
            version.made_by(kind);
            return Ok(());
        }
        let mut bytes = self.spare.copy_of(&self.bytes());
        let copy = Arc::get_mut(&mut bytes).expect("just made");
        change(copy)?;
        kind.seal(self.block, copy);
        if let Slot::Ready(version) = &mut *self.slot.lock() {
            version.bytes = bytes;
            version.made_by(kind);
        }
        Ok(())
    }
}

/// Runs a change, and in debug builds looks whether one that fails keeps its promise.
fn checked(bytes: &mut [u8], change: &mut dyn FnMut(&mut [u8]) -> Result<()>) -> Result<()> {
    let before = cfg!(debug_assertions).then(|| bytes.to_vec());
    let changed = change(bytes);
    if let (Err(_), Some(before)) = (&changed, before) {
        assert_eq!(before, bytes, "a change that failed has written something");
    }
    changed
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({})", self.block)
    }
}

/// How full a cache is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Blocks in the cache.
    pub blocks: usize,
    /// Those that a transaction pins.
    pub pinned: usize,
}

/// On cache lines of its own, so that threads at different blocks do not meet.
#[repr(align(128))]
struct Shard(Mutex<Blocks>);

/// The map, and the lists that say who leaves next. A block is in the map and in one of the lists, or in neither.
#[derive(Default)]
struct Blocks {
    map: HashMap<u64, Cached, RandomState>,
    /// Those that were read, and not asked for again, each with its stamp, the oldest first. What has left the map or
    /// was kept since has another stamp there, or none.
    fresh: VecDeque<(u64, u64)>,
    fresh_count: usize,
    stamp: u64,
    /// Those that are kept: the ring that the clock goes round, and where it goes on.
    ring: Vec<u64>,
    hand: usize,
    /// Which left while they were fresh, each at a place that depends on its number, until another takes it.
    left: Box<[u64]>,
}

struct Cached {
    buffer: Arc<Buffer>,
    place: ListPlace,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ListPlace {
    Fresh { stamp: u64 },
    Ring { at: usize },
}

impl Blocks {
    /// For about so many blocks.
    fn new(limit: usize) -> Blocks {
        let places = (limit.min(1 << 16) * 2).max(64).next_power_of_two();
        Blocks {
            left: vec![u64::MAX; places].into(),
            ..Blocks::default()
        }
    }

    fn get(&self, block: u64) -> Option<&Arc<Buffer>> {
        self.map.get(&block).map(|cached| &cached.buffer)
    }

    fn insert(&mut self, block: u64, buffer: Arc<Buffer>) {
        let place = match *self.left_at(block) == block {
            true => self.ring_place(block),
            false => self.fresh_place(block),
        };
        self.map.insert(block, Cached { buffer, place });
    }

    /// Where it is noted that a block has left.
    fn left_at(&mut self, block: u64) -> &mut u64 {
        let mixed = block.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        let at = mixed as usize & (self.left.len() - 1);
        &mut self.left[at]
    }

    fn ring_place(&mut self, block: u64) -> ListPlace {
        self.ring.push(block);
        let at = self.ring.len() - 1;
        ListPlace::Ring { at }
    }

    fn fresh_place(&mut self, block: u64) -> ListPlace {
        let is_sparse = self.fresh.len() > 2 * self.fresh_count + 64;
        if is_sparse {
            let map = &self.map;
            self.fresh
                .retain(|&(block, stamp)| is_fresh(map, block, stamp));
        }
        self.stamp += 1;
        let stamp = self.stamp;
        self.fresh.push_back((block, stamp));
        self.fresh_count += 1;
        ListPlace::Fresh { stamp }
    }

    fn remove(&mut self, block: u64) -> Option<Arc<Buffer>> {
        let Cached { place, buffer } = self.map.remove(&block)?;
        match place {
            ListPlace::Fresh { .. } => self.fresh_count -= 1,
            ListPlace::Ring { at } => {
                // The last takes its place.
                self.ring.swap_remove(at);
                if let Some(moved) = self.ring.get(at) {
                    let moved = self.map.get_mut(moved).expect("it is in the ring");
                    moved.place = place;
                }
            }
        }
        Some(buffer)
    }

    /// Removes a block unless somebody has it, or `spare` is true of it.
    fn remove_unpinned(
        &mut self,
        block: u64,
        spare: impl FnOnce(&mut Buffer) -> bool,
    ) -> Option<Arc<Buffer>> {
        let cached = self.map.get_mut(&block)?;
        match Arc::get_mut(&mut cached.buffer).is_some_and(|buffer| !spare(buffer)) {
            true => self.remove(block),
            false => None,
        }
    }

    /// Drops blocks that nobody has and that were not asked for again lately, down to `limit` blocks. The last of them.
    fn evict(&mut self, limit: usize, steps: usize) -> Option<Arc<Buffer>> {
        let mut last = None;
        for _ in 0..steps {
            if self.map.len() <= limit {
                break;
            }
            let from_fresh = self.fresh_count > limit / FRESH_PART || self.ring.is_empty();
            let evicted = match from_fresh {
                true => self.evict_fresh(),
                false => self.evict_kept(),
            };
            last = evicted.or(last);
        }
        last
    }

    /// The oldest of the fresh leaves, or is kept.
    fn evict_fresh(&mut self) -> Option<Arc<Buffer>> {
        let (block, stamp) = self.fresh.pop_front()?;
        if !is_fresh(&self.map, block, stamp) {
            return None;
        }
        let evicted = self.remove_unpinned(block, take_used);
        match evicted {
            Some(_) => *self.left_at(block) = block,
            None => {
                let place = self.ring_place(block);
                self.fresh_count -= 1;
                self.map.get_mut(&block).expect("it is fresh").place = place;
            }
        }
        evicted
    }

    /// The clock's hand moves on.
    fn evict_kept(&mut self) -> Option<Arc<Buffer>> {
        if self.hand >= self.ring.len() {
            self.hand = 0;
        }
        // If it leaves, the last takes its place: one that has just come, and is not looked at before the next round.
        self.hand += 1;
        self.remove_unpinned(self.ring[self.hand - 1], take_used)
    }

    /// Drops every block that nobody has.
    fn drop_unpinned(&mut self) {
        let all: Vec<u64> = self.map.keys().copied().collect();
        for block in all {
            self.remove_unpinned(block, |_| false);
        }
    }

    fn pinned(&mut self) -> usize {
        let pinned = |cached: &mut Cached| Arc::get_mut(&mut cached.buffer).is_none();
        self.map
            .values_mut()
            .map(|cached| usize::from(pinned(cached)))
            .sum()
    }
}

fn is_fresh(map: &HashMap<u64, Cached, RandomState>, block: u64, stamp: u64) -> bool {
    map.get(&block)
        .is_some_and(|cached| cached.place == ListPlace::Fresh { stamp })
}

/// Whether it was asked for again; not any more.
fn take_used(buffer: &mut Buffer) -> bool {
    std::mem::take(buffer.used.get_mut())
}

/// The cache of metadata blocks of one device. Clones are the same cache.
#[derive(Clone)]
pub struct BufferCache(Arc<Cache>);

struct Cache {
    device: Arc<dyn Device>,
    block_bytes: usize,
    /// Blocks per shard that the budget allows.
    limit: usize,
    shards: [Shard; SHARDS],
    spare: Arc<Spare>,
}

impl BufferCache {
    /// A cache of blocks of `block_bytes` bytes that keeps at most about `budget_bytes` bytes of
    /// what is not pinned by a transaction.
    ///
    /// # Panics
    /// If the block is not a power of two of whole logical blocks of the device.
    pub fn new(device: Arc<dyn Device>, block_bytes: usize, budget_bytes: usize) -> BufferCache {
        let logical = device.geometry().logical_block_bytes as usize;
        assert!(
            block_bytes.is_power_of_two() && block_bytes >= logical,
            "metadata blocks of {block_bytes} bytes on logical blocks of {logical}"
        );
        let limit = (budget_bytes / block_bytes / SHARDS).max(1);
        BufferCache(Arc::new(Cache {
            device,
            block_bytes,
            limit,
            spare: Arc::new(Spare::new(limit * SHARDS / SPARE_PART)),
            shards: std::array::from_fn(|_| Shard(Mutex::new(Blocks::new(limit)))),
        }))
    }

    /// The device.
    pub fn device(&self) -> &Arc<dyn Device> {
        &self.0.device
    }

    /// Size of a block in bytes.
    pub fn block_bytes(&self) -> usize {
        self.0.block_bytes
    }

    /// The block as it is now, with changes that are not durable yet. Reads the device, and blocks,
    /// when it is not cached; otherwise waits for a change in memory at most.
    ///
    /// # Errors
    /// The device's; [`Error::Block`] for what `kind` refuses. Neither is cached.
    pub fn read(&self, block: Pblk, kind: &dyn Kind) -> Result<Arc<[u8]>> {
        Ok(self.get(block, kind)?.1)
    }

    /// Drops every block that nobody pins, so that the next read asks the device.
    pub fn drop_unpinned(&self) {
        for Shard(shard) in &self.0.shards {
            shard.lock().drop_unpinned();
        }
    }

    /// Counts what is cached.
    pub fn stats(&self) -> CacheStats {
        let mut stats = CacheStats::default();
        for Shard(shard) in &self.0.shards {
            let mut shard = shard.lock();
            stats.blocks += shard.map.len();
            stats.pinned += shard.pinned();
        }
        stats
    }

    /// The buffer of a block, loaded and accepted by `kind`.
    pub(crate) fn pin(&self, block: Pblk, kind: &dyn Kind) -> Result<Arc<Buffer>> {
        Ok(self.get_with(block, kind, |_| ())?.0)
    }

    /// The buffer and its current version.
    pub(crate) fn get(&self, block: Pblk, kind: &dyn Kind) -> Result<(Arc<Buffer>, Arc<[u8]>)> {
        self.get_with(block, kind, |version| version.bytes.clone())
    }

    fn get_with<T>(
        &self,
        block: Pblk,
        kind: &dyn Kind,
        look: impl Fn(&Version) -> T,
    ) -> Result<(Arc<Buffer>, T)> {
        loop {
            let (buffer, new) = self.find_or_insert(block);
            let is_new = new.is_some();
            if let Some(New { memory }) = new {
                self.load(&buffer, memory, kind)?;
            }
            let Some(seen) = buffer.accepted(kind, &look)? else {
                continue;
            };
            if !is_new && !buffer.used.load(Ordering::Relaxed) {
                buffer.used.store(true, Ordering::Relaxed);
            }
            return Ok((buffer, seen));
        }
    }

    /// Makes the block one with these bytes, sealed, whatever it was.
    pub(crate) fn create(&self, block: Pblk, kind: &dyn Kind, bytes: &[u8]) -> Arc<Buffer> {
        let mut bytes = self.0.spare.copy_of(bytes);
        kind.seal(block, Arc::get_mut(&mut bytes).expect("just made"));
        loop {
            let (buffer, new) = self.find_or_insert(block);
            if new.is_none() && buffer.wait(|_| ()).is_none() {
                continue;
            }
            let one_at_a_time = buffer.change.lock();
            buffer.set(Slot::Ready(Version {
                bytes,
                kind: kind.name(),
                judge: kind.keep(),
                completes: None,
            }));
            drop(one_at_a_time);
            return buffer;
        }
    }

    /// The block was freed: whoever has its buffer finds that by [`Buffer::freed`].
    pub(crate) fn free(&self, block: Pblk) {
        if let Some(buffer) = self.shard(block).lock().get(block.0) {
            buffer.tid.store(0, Ordering::Release);
            buffer.freed.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Drops the block unless somebody has it.
    pub(crate) fn remove(&self, block: Pblk) {
        let mut shard = self.shard(block).lock();
        shard.remove_unpinned(block.0, |_| false);
    }

    /// Evicts what exceeds the budget, after pins were given up.
    pub(crate) fn trim(&self) {
        for Shard(shard) in &self.0.shards {
            let mut shard = shard.lock();
            let steps = 2 * (shard.fresh.len() + shard.ring.len());
            shard.evict(self.0.limit, steps);
        }
    }

    fn shard(&self, block: Pblk) -> &Mutex<Blocks> {
        // Neighbours share a shard, so that a sequential reader stays in one cache line's worth. Mixed twice: threads
        // that go through two groups in step would meet in all of a product's bits, or in none.
        let mixed = (block.0 >> 3).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mixed = (mixed ^ mixed >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        &self.0.shards[(mixed >> 32) as usize % SHARDS].0
    }

    /// The block's buffer, and whether the caller has to load it.
    fn find_or_insert(&self, block: Pblk) -> (Arc<Buffer>, Option<New>) {
        let mut shard = self.shard(block).lock();
        if let Some(buffer) = shard.get(block.0) {
            return (buffer.clone(), None);
        }
        let (buffer, memory) = match shard.evict(self.0.limit - 1, EVICT_STEPS) {
            Some(left) => Buffer::renewed(left, block),
            None => (
                Arc::new(Buffer::new(block, &self.0.spare)),
                self.0.spare.take(),
            ),
        };
        shard.insert(block.0, buffer.clone());
        (buffer, Some(New { memory }))
    }

    fn load(&self, buffer: &Arc<Buffer>, memory: Option<Arc<[u8]>>, kind: &dyn Kind) -> Result<()> {
        let undo = Unload(self, buffer);
        let bytes = self.read_device(buffer.block, memory)?;
        verify(kind, buffer.block, &bytes)?;
        std::mem::forget(undo);
        buffer.set(Slot::Ready(Version {
            bytes,
            kind: kind.name(),
            judge: None,
            completes: None,
        }));
        Ok(())
    }

    /// Reads a block into the memory of another one, or into its own.
    fn read_device(&self, block: Pblk, memory: Option<Arc<[u8]>>) -> Result<Arc<[u8]>> {
        let zeros = || std::iter::repeat_n(0, self.0.block_bytes).collect();
        let mut bytes: Arc<[u8]> = memory.unwrap_or_else(zeros);
        let whole = Arc::get_mut(&mut bytes).expect("nobody else has it");
        // An offset that does not fit is past the end of every device, which then says so.
        let offset = block.0.saturating_mul(self.0.block_bytes as u64);
        self.0.device.read_at(offset, whole)?;
        Ok(bytes)
    }
}

/// What the caller of [`BufferCache::find_or_insert`] has to load.
struct New {
    /// For its bytes: a block's that has left.
    memory: Option<Arc<[u8]>>,
}

impl fmt::Debug for BufferCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufferCache")
            .field("device", &self.0.device.describe())
            .field("block_bytes", &self.0.block_bytes)
            .finish()
    }
}

fn verify(kind: &dyn Kind, block: Pblk, bytes: &[u8]) -> Result<()> {
    kind.verify(block, bytes).map_err(|source| Error::Block {
        block: block.0,
        source,
    })
}

/// Takes a buffer that could not be loaded out of the map, also when the verifier panics.
struct Unload<'a>(&'a BufferCache, &'a Arc<Buffer>);

impl Drop for Unload<'_> {
    fn drop(&mut self) {
        let Unload(cache, buffer) = self;
        cache.shard(buffer.block).lock().remove(buffer.block.0);
        buffer.set(Slot::Failed);
    }
}

#[cfg(test)]
mod tests;
