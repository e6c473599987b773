//! What a tree is written into.

pub mod folder;

use crate::entry::Entry;
use crate::error::Result;
use crate::tree::Warning;

/// What a tree is written into.
///
/// A sink is called as [`crate::Tree::write_to`] goes along: first [`Sink::expect`], then for each entry [`Sink::begin`], for a
/// regular file then [`Sink::data`] with every byte of its segments in order, for a directory then all
/// that is in it, and at last [`Sink::end`]. After an error nothing is called any more.
pub trait Sink {
    /// All entries that are to come, before the first.
    fn expect(&mut self, entries: &[Entry]) {
        let _ = entries;
    }

    /// Makes the entry. The root is there already.
    ///
    /// # Errors
    /// Those of the target.
    fn begin(&mut self, entry: &Entry) -> Result<()>;

    /// Writes bytes at an offset of the file that was begun last.
    ///
    /// # Errors
    /// Those of the target.
    fn data(&mut self, offset: u64, bytes: &[u8]) -> Result<()>;

    /// Sets the attributes of an entry whose content is complete.
    ///
    /// # Errors
    /// Those of the target.
    fn end(&mut self, entry: &Entry) -> Result<()>;

    /// The tree is complete.
    ///
    /// # Errors
    /// Those of the target.
    fn finish(&mut self) -> Result<()>;

    /// What could not be expressed in the target so far.
    fn warnings(&self) -> &[Warning];
}
