//! What is remembered of each stream of allocations: where its window is, and how long the next
//! window should be.
//!
//! Windows grow from [`FIRST`] clusters by doubling, each time that one was used up, to [`MOST`]. So
//! a small file keeps little from others, and a long one gets long runs. All windows together are
//! kept below a quarter of what is free: else many streams would leave each other only the gaps.

use super::Stream;
use dioxide_format::types::Group;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Clusters of a stream's first window.
const FIRST: u32 = 16;
/// Clusters of the longest window.
const MOST: u32 = 2048;
const SHARDS: usize = 16;

/// One stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct State {
    /// Where it allocated last.
    pub(super) group: Group,
    /// Clusters of its next window.
    next: u32,
}

impl State {
    /// After a window that was used up.
    pub(super) fn grown(group: Group, before: Option<State>) -> State {
        let next = before.map_or(FIRST, |state| state.next);
        State {
            group,
            next: (next * 2).min(MOST),
        }
    }

    /// At another place of the file.
    pub(super) fn moved(group: Group, before: Option<State>) -> State {
        let next = before.map_or(FIRST, |state| state.next);
        State { group, next }
    }
}

/// All streams; as many as files are being extended. Its locks are leaves.
#[derive(Debug, Default)]
pub(super) struct Streams {
    shards: [Mutex<HashMap<Stream, State>>; SHARDS],
    count: AtomicU64,
}

impl Streams {
    fn shard(&self, stream: Stream) -> &Mutex<HashMap<Stream, State>> {
        &self.shards[(stream.0 % SHARDS as u64) as usize]
    }

    pub(super) fn get(&self, stream: Stream) -> Option<State> {
        self.shard(stream).lock().get(&stream).copied()
    }

    /// Clusters of the next window of a stream, when `available` can be had.
    pub(super) fn window(&self, stream: Stream, available: u64) -> u32 {
        let next = self.get(stream).map_or(FIRST, |state| state.next);
        let share = available / 4 / self.count.load(Relaxed).max(1);
        u64::from(next).min(share) as u32
    }

    /// What was remembered before.
    pub(super) fn put(&self, stream: Stream, state: State) -> Option<State> {
        let before = self.shard(stream).lock().insert(stream, state);
        self.count.fetch_add(before.is_none().into(), Relaxed);
        before
    }

    pub(super) fn remove(&self, stream: Stream) -> Option<State> {
        let state = self.shard(stream).lock().remove(&stream);
        self.count.fetch_sub(state.is_some().into(), Relaxed);
        state
    }
}
