//! What one group's free blocks are promised to, beyond what its bitmap says.
//!
//! Three things keep a clear bit from being handed out. *Pending*: the block was freed by a
//! transaction that did not commit yet; after a crash its old owner would have it again. *Claimed*:
//! data is being written to the block, which is recorded as used afterwards. *Windows*: the blocks
//! after a stream's last allocation, kept for that stream, so that two files that grow together do
//! not interleave. A window is a wish in memory only: it counts nowhere, and who finds no other space
//! takes it.
//!
//! Pending and claimed bits are *held*, all in one map: who holds a bit knows why, and nobody else
//! needs to. Rejected: a second copy of the whole bitmap per group, as it is to be allocated from.
//! Most groups hold nothing, and the copy would cost memory in proportion to the device.

use super::Stream;
use super::groups::Load;
use dioxide_format::bitmap;
use std::borrow::Cow;
use std::ops::Range;

/// The blocks after a stream's last allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Window {
    stream: Stream,
    bits: Range<u32>,
}

/// A group's state, guarded by its lock.
#[derive(Debug, Default)]
pub(super) struct GroupBlocks {
    pub(super) load: Load,
    /// Bits that are clear in the bitmap, and pending or claimed; it may be empty when there are none.
    held: Vec<u8>,
    held_count: u32,
    windows: Vec<Window>,
    /// Runs from this length on were discarded, and nothing was freed since.
    pub(super) trimmed: Option<u32>,
    /// A transaction, and bits of which no other knows that they were in use: of claims that it recorded, the newest that lie
    /// together.
    recorded: Option<(u32, Range<u32>)>,
}

impl GroupBlocks {
    /// Marks bits that are clear in the bitmap, but not to be handed out, and not marked yet.
    pub(super) fn hold(&mut self, bits: &Range<u32>, block_bytes: usize) {
        let range = wide(bits);
        let held = |range: &Range<usize>| bitmap::next_set(&self.held, range.start, range.end);
        debug_assert_eq!(held(&range), None, "held twice");
        self.held.resize(block_bytes, 0);
        self.held_count += bits.end - bits.start;
        bitmap::put_range(&mut self.held, range, true);
    }

    /// A transaction recorded a claim.
    pub(super) fn record(&mut self, tid: u32, bits: &Range<u32>) {
        match &mut self.recorded {
            Some((last, run)) if *last == tid && run.end == bits.start => run.end = bits.end,
            recorded => *recorded = Some((tid, bits.clone())),
        }
    }

    /// Bits were taken without a claim.
    pub(super) fn forget_recorded(&mut self, bits: &Range<u32>) {
        let meets = |run: &Range<u32>| run.start < bits.end && bits.start < run.end;
        if self.recorded.as_ref().is_some_and(|(_, run)| meets(run)) {
            self.recorded = None;
        }
    }

    /// Whether only this transaction knows that these bits were in use.
    pub(super) fn is_recorded_by(&self, tid: u32, bits: &Range<u32>) -> bool {
        let has = |run: &Range<u32>| run.start <= bits.start && bits.end <= run.end;
        matches!(&self.recorded, Some((by, run)) if *by == tid && has(run))
    }

    /// Takes back [`GroupBlocks::hold`], of all these bits or some of them.
    pub(super) fn release(&mut self, bits: &Range<u32>) {
        let range = wide(bits);
        let not_held = |range: &Range<usize>| bitmap::next_zero(&self.held, range.start, range.end);
        debug_assert_eq!(not_held(&range), None, "released, and not held");
        self.held_count -= bits.end - bits.start;
        bitmap::put_range(&mut self.held, range, false);
        self.shrink();
    }

    /// Gives the memory of a map in which nothing is held back, unless a stream goes on here, which claims block after block: each open
    /// file that grew keeps one.
    fn shrink(&mut self) {
        if self.held_count == 0 && self.windows.is_empty() {
            self.held = Vec::new();
        }
    }

    /// How many bits are pending or claimed.
    pub(super) fn held_count(&self) -> u32 {
        self.held_count
    }

    /// The bitmap with held blocks as used.
    pub(super) fn settled<'a>(&self, bits: &'a [u8]) -> Cow<'a, [u8]> {
        if self.held_count == 0 {
            return Cow::Borrowed(bits);
        }
        Cow::Owned(bits.iter().zip(&self.held).map(|(a, b)| a | b).collect())
    }

    /// Whether another than `stream` has a window here.
    pub(super) fn has_others(&self, stream: Option<Stream>) -> bool {
        self.windows.iter().any(|w| Some(w.stream) != stream)
    }

    /// What `stream` may take without taking another's window.
    pub(super) fn open_to<'a>(
        &self,
        settled: Cow<'a, [u8]>,
        stream: Option<Stream>,
    ) -> Cow<'a, [u8]> {
        if !self.has_others(stream) {
            return settled;
        }
        let mut bits = settled.into_owned();
        for window in self.windows.iter().filter(|w| Some(w.stream) != stream) {
            bitmap::put_range(&mut bits, wide(&window.bits), true);
        }
        Cow::Owned(bits)
    }

    /// `taken` was allocated: windows lose what they had of it.
    pub(super) fn cut_windows(&mut self, taken: &Range<u32>) {
        for window in &mut self.windows {
            let bits = &mut window.bits;
            if bits.start < taken.start {
                bits.end = bits.end.min(taken.start.max(bits.start));
            } else {
                bits.start = bits.start.max(taken.end).min(bits.end);
            }
        }
        self.windows.retain(|window| !window.bits.is_empty());
        self.shrink();
    }

    /// Bits left in the window of `stream` that begins at `at`.
    pub(super) fn window_at(&self, stream: Stream, at: u32) -> u32 {
        let window = self.windows.iter().find(|w| w.stream == stream);
        match window {
            Some(window) if window.bits.start == at => window.bits.end - at,
            _ => 0,
        }
    }

    /// Gives `stream` free bits as its only window here.
    pub(super) fn set_window(&mut self, stream: Stream, bits: Range<u32>) {
        self.drop_window(stream);
        if !bits.is_empty() {
            self.windows.push(Window { stream, bits });
        }
    }

    /// The stream's window is free for all.
    pub(super) fn drop_window(&mut self, stream: Stream) {
        self.windows.retain(|window| window.stream != stream);
        self.shrink();
    }
}

/// A range of bits as indices.
pub(super) fn wide(bits: &Range<u32>) -> Range<usize> {
    bits.start as usize..bits.end as usize
}
