//! Leaves that a change makes: each is one span's, block by block, and its entries are changed in
//! place.
//!
//! A leaf is made when its span first says more than one word can say, and is never freed: when
//! the span is one run or hole again, its word says so, and the leaf waits for the next change.
//!
//! Rejected: a table of pointers, one per span. It is 8 KiB that lookups would drag through the
//! cache, where groups that double in size need nine pointers.

use super::word::{Narrow, Wide, Word, entry_of, is_near};
use super::{NODE_BITS, SPAN_BLOCKS};
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Leaves of one kind, numbered in the order of their making.
#[derive(Debug)]
pub(super) struct Leaves<Entry> {
    /// Leaves 0 and 1, then 2..4, 4..8, and so on.
    groups: [OnceLock<Box<[[Entry; SPAN_BLOCKS as usize]]>>; NODE_BITS as usize],
    /// Whose each leaf is. Only changes look here.
    owners: Mutex<Vec<Owner>>,
}

#[derive(Clone, Copy, Debug)]
struct Owner {
    span: u32,
    /// What the entries count from, for ever: a reader may have it from an old word.
    base: u64,
}

/// Group of a leaf, and number of the group's first leaf.
#[inline(always)]
fn group_of(number: usize) -> (usize, usize) {
    let group = (number | 1).ilog2();
    (group as usize, (1 << group) & !1)
}

impl<Entry: Default> Leaves<Entry> {
    pub(super) fn new() -> Self {
        Leaves {
            groups: [const { OnceLock::new() }; NODE_BITS as usize],
            owners: Mutex::new(Vec::new()),
        }
    }

    /// A leaf that the word of a span leads to.
    #[inline(always)]
    pub(super) fn leaf(&self, number: usize) -> &[Entry; SPAN_BLOCKS as usize] {
        let (group, first) = group_of(number);
        let leaves = self.groups[group].get().expect("made before the word");
        &leaves[number - first]
    }

    /// Number and base of the leaf that belongs to `span`, which is made, with this base, if there is
    /// none. What a new one says is meaningless. Called under the map's change lock.
    pub(super) fn claim(&self, span: u32, base: u64) -> (usize, u64) {
        let mut owners = self.owners.lock();
        if let Some(number) = owners.iter().position(|owner| owner.span == span) {
            return (number, owners[number].base);
        }
        let number = owners.len();
        owners.push(Owner { span, base });
        let (group, first) = group_of(number);
        let leaves = first.max(2);
        self.groups[group].get_or_init(|| {
            let empty = |_| std::array::from_fn(|_| Entry::default());
            (0..leaves).map(empty).collect()
        });
        (number, base)
    }
}

/// A leaf whose entries can be changed.
#[derive(Clone, Copy)]
pub(super) enum Leaf<'a> {
    /// And what its entries count from.
    Narrow(&'a Narrow, u64),
    Wide(&'a Wide),
}

impl Leaf<'_> {
    /// Whether entries can say that `len` blocks from `first` on are one run, or hole.
    pub(super) fn holds(&self, first: Word, len: u32) -> bool {
        let Leaf::Narrow(_, base) = *self else {
            return true;
        };
        let lowest = first.address();
        let highest = lowest + u64::from(len) - 1;
        first == Word::HOLE || (lowest >= base && is_near(highest - base))
    }

    /// Blocks are a run from now on, or hole; `first` is the word of the first.
    pub(super) fn put(&self, blocks: Range<u32>, first: Word) {
        let range = blocks.start as usize..blocks.end as usize;
        match *self {
            Leaf::Narrow(leaf, base) => {
                let (entry, step) = entries(first, base);
                for (behind, block) in (0..).zip(&leaf[range]) {
                    block.store(entry + step * behind, Ordering::Release);
                }
            }
            Leaf::Wide(leaf) => {
                for (behind, block) in (0..).zip(&leaf[range]) {
                    block.store(first.after(behind).0, Ordering::Release);
                }
            }
        }
    }

    /// How many blocks behind `block`, of which this leaf has said `first`, continue that.
    pub(super) fn continuing(&self, block: u32, first: Word) -> u32 {
        let range = block as usize + 1..;
        let count = match *self {
            Leaf::Narrow(leaf, base) => {
                let (entry, step) = entries(first, base);
                let continues = |(behind, block): &(u32, &AtomicU32)| {
                    entry.checked_add(step * behind) == Some(block.load(Ordering::Acquire))
                };
                (1..).zip(&leaf[range]).take_while(continues).count()
            }
            Leaf::Wide(leaf) => {
                let continues = |(behind, block): &(u64, &AtomicU64)| {
                    block.load(Ordering::Acquire) == first.after(*behind).0
                };
                (1..).zip(&leaf[range]).take_while(continues).count()
            }
        };
        count as u32
    }
}

/// The entry of a run's first block, and how much more that of each next block is.
fn entries(first: Word, base: u64) -> (u32, u32) {
    let unwritten = first.tag() == Word::UNWRITTEN;
    match first {
        Word::HOLE => (0, 0),
        _ => (entry_of(first.address() - base, unwritten), 1),
    }
}
