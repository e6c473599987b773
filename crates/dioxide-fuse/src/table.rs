//! What the kernel knows by number: files by node id, open files by handle.
//!
//! Invariants: a node is held from the lookup that told the kernel of it until the kernel forgot every
//! lookup. What is held keeps its inode, so that a number stands for one file as long as the kernel knows
//! it; that is why the node id is the inode number, and need not carry the generation.
//!
//! What is dropped is dropped outside of a shard's lock: the last node of a removed file frees its blocks.
//!
//! Rejected: node ids that are addresses, as libfuse has them. They are faster by one lookup, and hand the
//! kernel's idea of our memory to whoever can write to the FUSE descriptor.

use crate::Errno;
use dioxide::Node;
use parking_lot::RwLock;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A power of two.
const SHARDS: usize = 64;

/// Node id of the root, whatever its inode.
pub const ROOT_ID: u64 = 1;
/// Inode of the root, of which no file has the root's node id: inode 1 keeps the bad blocks.
const ROOT_INO: u64 = 2;

/// Numbers that we give out ourselves: one multiplication spreads them.
#[derive(Default)]
struct Spread(u64);

impl Hasher for Spread {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are u64");
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

/// A file that the kernel knows.
struct Known {
    node: Arc<Node>,
    lookups: u64,
}

/// The files that the kernel knows, by node id.
pub(crate) struct Nodes {
    root: Arc<Node>,
    known: Sharded<Known>,
}

impl Nodes {
    pub(crate) fn new(root: Node) -> Nodes {
        Nodes {
            root: Arc::new(root),
            known: Sharded::new(),
        }
    }

    /// The file of a node id.
    pub(crate) fn get(&self, id: u64) -> Result<Arc<Node>, Errno> {
        if id == ROOT_ID {
            return Ok(self.root.clone());
        }
        let shard = self.known.shard(id).read();
        let known = shard.get(&id).ok_or(Errno::STALE)?;
        Ok(known.node.clone())
    }

    /// The kernel is about to be told of a file, once.
    pub(crate) fn learn(&self, node: Node) -> (u64, Arc<Node>) {
        let id = u64::from(node.ino());
        if id == ROOT_INO {
            return (ROOT_ID, self.root.clone());
        }
        // Dropped after the shard's lock, if the file is known already.
        let node = Arc::new(node);
        let mut shard = self.known.shard(id).write();
        let known = shard.entry(id).or_insert_with(|| Known {
            node: node.clone(),
            lookups: 0,
        });
        known.lookups += 1;
        (id, known.node.clone())
    }

    /// The kernel forgets so many lookups.
    pub(crate) fn forget(&self, id: u64, lookups: u64) {
        let gone = {
            let mut shard = self.known.shard(id).write();
            let Entry::Occupied(mut known) = shard.entry(id) else {
                return;
            };
            let left = known.get().lookups.saturating_sub(lookups);
            known.get_mut().lookups = left;
            (left == 0).then(|| known.remove())
        };
        drop(gone);
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

    pub(crate) fn remove(&self, handle: u64) {
        let gone = self.open.shard(handle).write().remove(&handle);
        drop(gone);
    }
}
