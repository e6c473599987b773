//! What one group's free blocks are promised to, beyond what its bitmap says.
//!
//! Two things keep a clear bit from being handed out. *Pending*: the block was freed by a
//! transaction that did not commit yet; after a crash its old owner would have it again. *Windows*:
//! the blocks after a stream's last allocation, kept for that stream, so that two files that grow
//! together do not interleave. A window is a wish in memory only: it counts nowhere, and who finds
//! no other space takes it.
//!
//! Rejected for pending blocks: a second copy of the whole bitmap per group, as of the last commit.
//! Most groups have none, and the copy would cost memory in proportion to the device.

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
    /// Bits freed by transactions that did not commit; empty when there are none.
    pending: Vec<u8>,
    pending_count: u32,
    windows: Vec<Window>,
    /// Runs from this length on were discarded, and nothing was freed since.
    pub(super) trimmed: Option<u32>,
}

impl GroupBlocks {
    /// Marks bits that are clear in the bitmap, but must not be allocated before a commit.
    pub(super) fn hold(&mut self, bits: Range<u32>, block_bytes: usize) {
        self.pending.resize(block_bytes, 0);
        self.pending_count += bits.end - bits.start;
        bitmap::put_range(&mut self.pending, wide(&bits), true);
    }

    /// Takes back [`GroupBlocks::hold`].
    pub(super) fn release(&mut self, bits: Range<u32>) {
        self.pending_count -= bits.end - bits.start;
        bitmap::put_range(&mut self.pending, wide(&bits), false);
        if self.pending_count == 0 {
            self.pending = Vec::new();
        }
    }

    /// How many bits wait for a commit.
    pub(super) fn pending_count(&self) -> u32 {
        self.pending_count
    }

    /// The bitmap with pending blocks as used.
    pub(super) fn settled<'a>(&self, bits: &'a [u8]) -> Cow<'a, [u8]> {
        if self.pending_count == 0 {
            return Cow::Borrowed(bits);
        }
        Cow::Owned(bits.iter().zip(&self.pending).map(|(a, b)| a | b).collect())
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
    }
}

/// A range of bits as indices.
pub(super) fn wide(bits: &Range<u32>) -> Range<usize> {
    bits.start as usize..bits.end as usize
}
