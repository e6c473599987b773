//! One region: a word, a length, and a node once these two do not say it all.
//!
//! Invariants:
//! - The word goes from unread to any other; from hole to run, while there was no node, or to node; from run, flat, lines, near or lists to
//!   node; and from node, pairs, flat, lines, near or lists to hole. A run's word never changes, only its length
//!   does. So who has read the word, and then the length, has what was true at some moment between,
//!   and needs not look at the word again.
//! - What a word leads to is there before the word is.

use super::node::Node;
use super::word::{Piece, Word, kind_of};
use super::{REGION_BLOCKS, Run};
#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::OnceLock;
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

#[derive(Debug)]
pub(super) struct Region {
    pub(super) word: AtomicU64,
    /// If `word` is a run: blocks from here on are a hole. Written before `word`.
    pub(super) run_blocks: AtomicU32,
    pub(super) node: OnceLock<Box<Node>>,
}

impl Region {
    pub(super) fn new() -> Region {
        Region {
            word: AtomicU64::new(Word::UNREAD.0),
            run_blocks: AtomicU32::new(0),
            node: OnceLock::new(),
        }
    }

    /// Publishes `runs` (relative to the region) as its content.
    pub(super) fn fill(&self, runs: &[Run]) {
        let word = match runs {
            [] => Word::HOLE,
            [run] if run.lblk.0 == 0 => {
                self.run_blocks.store(run.len, Ordering::Relaxed);
                Word::of_run(run)
            }
            _ => {
                let (node, word) = Node::of_runs(runs);
                self.node.get_or_init(|| node);
                word
            }
        };
        self.word.store(word.0, Ordering::Release);
    }

    /// `None`: it is not read yet.
    #[inline(always)]
    pub(super) fn piece(&self, within: u32) -> Option<Piece> {
        self.piece_by(within, Node::piece)
    }

    /// As [`Region::piece`], with all that continues it in its span, which takes longer to tell.
    pub(super) fn run_from(&self, within: u32) -> Option<Piece> {
        self.piece_by(within, Node::run)
    }

    #[inline(always)]
    fn piece_by(&self, within: u32, of_node: impl Fn(&Node, u32) -> Piece) -> Option<Piece> {
        let word = Word(self.word.load(Ordering::Acquire));
        let hole = Piece::hole(REGION_BLOCKS - within);
        match word.tag() {
            Word::MAPPED | Word::UNWRITTEN => {
                let run_blocks = self.run_blocks.load(Ordering::Acquire);
                if within >= run_blocks {
                    return Some(hole);
                }
                Some(Piece {
                    kind: kind_of(word.tag()),
                    pblk: word.address() + u64::from(within),
                    len: run_blocks - within,
                })
            }
            _ if word == Word::HOLE => Some(hole),
            _ if word == Word::UNREAD => None,
            // All that have a node.
            _ => {
                let node = self.node.get().expect("filled in before the word");
                Some(of_node(node, within))
            }
        }
    }

    /// One comparison after the other, what is frequent first: a `match` over all kinds becomes a jump through a table.
    #[inline(always)]
    pub(super) fn written_block(&self, within: u32) -> Option<u64> {
        let word = Word(self.word.load(Ordering::Acquire));
        if word.tag() == Word::MAPPED {
            let inside = within < self.run_blocks.load(Ordering::Acquire);
            return inside.then_some(word.0 + u64::from(within));
        }
        let node = self.node.get()?;
        if word.tag() == Word::NODE {
            return node.written_block(within);
        }
        match word.tag() {
            Word::PAIRS => node.written_in_pairs(within),
            Word::LINES => node.written_in_lines(word, within),
            Word::FLAT => node.written_in_flat(word, within),
            Word::LISTS => node.written_in_lists(word, within),
            Word::NEAR => node.written_in_near(word, within),
            _ => None,
        }
    }
}
