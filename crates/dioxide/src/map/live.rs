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
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

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

    pub(super) fn put(&self, block: u32, word: Word) {
        match *self {
            Leaf::Narrow(leaf, base) => {
                let entry = match word {
                    Word::HOLE => 0,
                    _ => entry_of(word.address() - base, word.tag() == Word::UNWRITTEN),
                };
                leaf[block as usize].store(entry, Ordering::Release);
            }
            Leaf::Wide(leaf) => leaf[block as usize].store(word.0, Ordering::Release),
        }
    }
}
