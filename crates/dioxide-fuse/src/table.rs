//! What the kernel knows by number: files by node id, open files by handle.
//!
//! Invariants: a file that the kernel knows is the one that had its number and generation when the kernel was told, or the
//! number is refused as stale. What has names is found by its number when a request comes. What has none is held, from before
//! its last name goes until the kernel forgets it: nothing else would keep it alive, and its number its own.
//! That is why the node id is the inode number, and need not carry the generation.
//!
//! A file takes some 20 bytes here, because the kernel may know millions; a few hundred that were used last are held as
//! objects, with their maps. What is dropped is dropped outside of a shard's lock: the last node of a removed file frees
//! its blocks.
//!
//! Rejected: an object for each file that the kernel knows, which takes 1.5 KB and more for its map. Node ids that are
//! addresses, as libfuse has them: they are faster by one lookup, and hand the kernel's idea of our memory to whoever can write
//! to the FUSE descriptor.

use crate::Errno;
use dioxide::{Fs, Node, Timestamp};
use parking_lot::RwLock;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A power of two.
const SHARDS: usize = 64;
/// So many files that were used last are held by each shard.
const RECENT: usize = 8;

/// Node id of the root, whatever its inode.
pub const ROOT_ID: u64 = 1;
/// Inode of the root, of which no file has the root's node id: inode 1 keeps the bad blocks.
const ROOT_INO: u32 = 2;

/// Numbers that we give out ourselves: one multiplication spreads them.
#[derive(Default)]
struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are numbers");
    }

    fn write_u32(&mut self, key: u32) {
        self.write_u64(key.into());
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = key.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32);
    }
}

type Shard<V> = RwLock<HashMap<u64, V, BuildHasherDefault<Spread>>>;

struct Sharded<V>(Box<[Shard<V>]>);

impl<V> Sharded<V> {
    fn new() -> Sharded<V> {
        Sharded((0..SHARDS).map(|_| Shard::default()).collect())
    }

    fn shard(&self, key: u64) -> &Shard<V> {
        &self.0[key as usize % SHARDS]
    }
}

/// What is remembered of a file that the kernel knows.
struct Known {
    generation: u32,
    /// At `u32::MAX` it is not counted any more, and the file known until the end.
    lookups: u32,
}

/// A part of the files that the kernel knows.
#[derive(Default)]
struct Files {
    known: HashMap<u32, Known, BuildHasherDefault<Spread>>,
    /// Those without names.
    nameless: HashMap<u32, Arc<Node>, BuildHasherDefault<Spread>>,
    /// Of those that were written past the kernel's cache: the last change of the content that the kernel knows of.
    seen: HashMap<u32, Timestamp, BuildHasherDefault<Spread>>,
    /// Those that were used last, each in the only place where it may be.
    recent: [Option<Arc<Node>>; RECENT],
}

/// The files that the kernel knows, by node id.
pub(crate) struct Nodes {
    root: Arc<Node>,
    shards: Box<[RwLock<Files>]>,
}

/// A node id as an inode number.
fn number(id: u64) -> Result<u32, Errno> {
    u32::try_from(id).map_err(|_| Errno::STALE)
}

fn numbered(fs: &Fs, ino: u32, generation: Option<u32>) -> Result<Node, Errno> {
    match fs.node_by_number(ino, generation) {
        Err(dioxide::Error::NotFound(_)) => Err(Errno::STALE),
        node => Ok(node?),
    }
}

impl Files {
    fn place(&mut self, ino: u32) -> &mut Option<Arc<Node>> {
        &mut self.recent[recent_place(ino)]
    }

    fn held(&self, ino: u32, generation: u32) -> Option<&Arc<Node>> {
        let wanted = |node: &&Arc<Node>| (node.ino(), node.generation()) == (ino, generation);
        let recent = self.recent[recent_place(ino)].as_ref();
        let recent = recent.filter(wanted);
        recent.or_else(|| self.nameless.get(&ino).filter(wanted))
    }

    fn knows(&self, node: &Node) -> bool {
        let known = self.known.get(&node.ino());
        known.is_some_and(|known| known.generation == node.generation())
    }
}

/// Neighbours go to different shards, and the next ones to different places.
fn recent_place(ino: u32) -> usize {
    ino as usize / SHARDS % RECENT
}

impl Nodes {
    pub(crate) fn new(root: Node) -> Nodes {
        Nodes {
            root: Arc::new(root),
            shards: (0..SHARDS).map(|_| RwLock::default()).collect(),
        }
    }

    fn shard(&self, ino: u32) -> &RwLock<Files> {
        &self.shards[ino as usize % SHARDS]
    }

    /// The file of a node id. May read its inode.
    pub(crate) fn get(&self, fs: &Fs, id: u64) -> Result<Arc<Node>, Errno> {
        if id == ROOT_ID {
            return Ok(self.root.clone());
        }
        let ino = number(id)?;
        let generation = {
            let shard = self.shard(ino).read();
            let known = shard.known.get(&ino).ok_or(Errno::STALE)?;
            if let Some(node) = shard.held(ino, known.generation) {
                return Ok(node.clone());
            }
            known.generation
        };
        let node = Arc::new(numbered(fs, ino, Some(generation))?);
        self.keep_recent(&node);
        Ok(node)
    }

    /// The file of a node id that the kernel may have forgotten: a file handle has it, and the generation, which the kernel
    /// compares.
    pub(crate) fn find(&self, fs: &Fs, id: u64) -> Result<Arc<Node>, Errno> {
        match self.get(fs, id) {
            Err(Errno::STALE) => Ok(Arc::new(numbered(fs, number(id)?, None)?)),
            got => got,
        }
    }

    /// Holds a file that is likely to be used again, if the kernel still knows it.
    pub(crate) fn keep_recent(&self, node: &Arc<Node>) {
        let ino = node.ino();
        let mut shard = self.shard(ino).write();
        if !shard.knows(node) {
            return;
        }
        let before = shard.place(ino).replace(node.clone());
        drop(shard);
        drop(before);
    }

    /// The kernel is about to be told of a file, once. Returns its node id. The caller knows that it is there: it holds
    /// it, or the name that led to it.
    pub(crate) fn learn(&self, ino: u32, generation: u32) -> u64 {
        if ino == ROOT_INO {
            return ROOT_ID;
        }
        let mut shard = self.shard(ino).write();
        let known = shard.known.entry(ino).or_insert(Known {
            generation,
            lookups: 0,
        });
        // A file that had the number before has ended, though nobody here made it.
        known.generation = generation;
        known.lookups = known.lookups.saturating_add(1);
        ino.into()
    }

    /// A file has no name, or is about to lose what may be its last: it stays as long as the kernel knows it.
    pub(crate) fn hold(&self, node: &Arc<Node>) {
        let mut shard = self.shard(node.ino()).write();
        if shard.knows(node) {
            shard.nameless.insert(node.ino(), node.clone());
        }
    }

    /// A file that is held has a name after all.
    pub(crate) fn release(&self, node: &Arc<Node>) {
        let held = self.shard(node.ino()).write().nameless.remove(&node.ino());
        drop(held);
    }

    /// A file is about to be written past the kernel's cache, for which it stays as it is.
    pub(crate) fn note_unseen(&self, node: &Node) {
        let mut shard = self.shard(node.ino()).write();
        let seen = || node.metadata().mtime;
        shard.seen.entry(node.ino()).or_insert_with(seen);
    }

    /// The kernel tells when a file's content has changed last, or is told. Returns what it knew of before, if there are changes that
    /// it has not seen.
    pub(crate) fn see(&self, ino: u32, told: Timestamp) -> Option<Timestamp> {
        let mut shard = self.shard(ino).write();
        let seen = shard.seen.get_mut(&ino)?;
        Some(std::mem::replace(seen, told))
    }

    /// The kernel forgets so many lookups.
    pub(crate) fn forget(&self, id: u64, lookups: u64) {
        let Ok(ino) = number(id) else { return };
        let mut shard = self.shard(ino).write();
        let Entry::Occupied(mut known) = shard.known.entry(ino) else {
            return;
        };
        if known.get().lookups == u32::MAX {
            return;
        }
        let left = u64::from(known.get().lookups).saturating_sub(lookups);
        known.get_mut().lookups = left as u32;
        if left > 0 {
            return;
        }
        known.remove();
        shard.seen.remove(&ino);
        let recent = shard.place(ino).take_if(|node| node.ino() == ino);
        let nameless = shard.nameless.remove(&ino);
        drop(shard);
        drop((recent, nameless));
    }

    /// How many files the kernel knows, and how many of them are held.
    pub(crate) fn count(&self) -> (usize, usize) {
        let count = |shard: &RwLock<Files>| {
            let shard = shard.read();
            let recent = shard.recent.iter().flatten().count();
            (shard.known.len(), recent + shard.nameless.len())
        };
        let add = |sum: (usize, usize), one: (usize, usize)| (sum.0 + one.0, sum.1 + one.1);
        self.shards.iter().map(count).fold((0, 0), add)
    }
}

/// What is open, by handle. Handles are numbers that were never used before.
pub(crate) struct Handles<T> {
    next: AtomicU64,
    open: Sharded<Arc<T>>,
}

impl<T> Handles<T> {
    pub(crate) fn new() -> Handles<T> {
        Handles {
            next: AtomicU64::new(1),
            open: Sharded::new(),
        }
    }

    pub(crate) fn insert(&self, open: T) -> u64 {
        let handle = self.next.fetch_add(1, Ordering::Relaxed);
        let open = Arc::new(open);
        self.open.shard(handle).write().insert(handle, open);
        handle
    }

    pub(crate) fn get(&self, handle: u64) -> Result<Arc<T>, Errno> {
        let shard = self.open.shard(handle).read();
        shard.get(&handle).cloned().ok_or(Errno::BADF)
    }

    pub(crate) fn count(&self) -> usize {
        self.open.0.iter().map(|shard| shard.read().len()).sum()
    }

    /// Whether one is so. Looks at all of them.
    pub(crate) fn any(&self, is_so: impl Fn(&T) -> bool) -> bool {
        let mut shards = self.open.0.iter();
        shards.any(|shard| shard.read().values().any(|open| is_so(open)))
    }

    /// One that is so. Looks at all of them.
    pub(crate) fn find(&self, is_so: impl Fn(&T) -> bool) -> Option<Arc<T>> {
        let mut shards = self.open.0.iter();
        shards.find_map(|shard| {
            let shard = shard.read();
            shard.values().find(|open| is_so(open)).cloned()
        })
    }

    /// What is picked of all of them.
    pub(crate) fn pick<R>(&self, pick: impl Fn(&T) -> Option<R>) -> Vec<R> {
        let mut picked = Vec::new();
        for shard in &self.open.0 {
            picked.extend(shard.read().values().filter_map(|open| pick(open)));
        }
        picked
    }

    pub(crate) fn remove(&self, handle: u64) {
        let gone = self.open.shard(handle).write().remove(&handle);
        drop(gone);
    }
}
