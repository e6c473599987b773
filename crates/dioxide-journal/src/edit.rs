//! How metadata blocks are read and changed.
//!
//! All code above the journal (allocator, extent tree, directories, inodes) changes blocks by
//! [`Edit`] and knows nothing of transactions; a handle implements it, and so does a map in memory
//! for tests. A change is a closure over the whole block, so that nobody can hold a half-changed
//! block, and each block is sealed (its checksum made right) when the closure returns.

use crate::Result;
use crate::transaction::Tid;
use dioxide_format::types::Pblk;
use std::fmt;
use std::sync::Arc;

/// What a metadata block is: how it is checked when it comes from the device, and made right before
/// it goes into the log.
pub trait Kind: fmt::Debug + Send + Sync {
    /// The structure, by its ext4 name.
    fn name(&self) -> &'static str;

    /// Checks a block that was read: checksum, magic numbers, bounds.
    ///
    /// # Errors
    /// What is wrong with it.
    fn verify(&self, block: Pblk, bytes: &[u8]) -> dioxide_format::Result<()>;

    /// Brings the block's own checksum up to date after a change.
    fn seal(&self, block: Pblk, bytes: &mut [u8]);

    /// Writes into the block what its owner has in memory only, when a transaction closes that the block was made part of by
    /// [`Edit::change_at_close`]. No handle is open then, and the journal's state is held: it neither blocks nor reads blocks. A kind that does so [keeps](Kind::keep) itself.
    fn complete(&self, _: Pblk, _: &mut [u8]) {}

    /// Itself, to [`verify`](Kind::verify) what has become of the block before it goes into the log; nothing for a kind whose
    /// blocks cannot be judged alone.
    fn keep(&self) -> Option<Arc<dyn Kind>> {
        None
    }
}

/// The transaction in which somebody last asked for [`Edit::change_at_close`].
#[derive(Debug, Default)]
pub struct Asked(pub(crate) Tid);

/// Reads and changes metadata blocks, all of one size. What was changed through one `Edit` becomes
/// durable together or not at all.
pub trait Edit {
    /// Size of a block in bytes.
    fn block_bytes(&self) -> usize;

    /// The block as it is now, changes included. Blocks on the device when it is not cached.
    ///
    /// # Errors
    /// The device's; [`crate::Error::Block`] for what `kind` refuses.
    fn read(&self, block: Pblk, kind: &dyn Kind) -> Result<Arc<[u8]>>;

    /// Changes a block. `change` fails before it writes anything, or not at all, and does not look at the
    /// block in another way than through what it gets.
    ///
    /// # Errors
    /// As [`Edit::read`]; those of `change`; [`crate::Error::Aborted`] and
    /// [`crate::Error::OutOfCredits`].
    fn modify(
        &mut self,
        block: Pblk,
        kind: &dyn Kind,
        change: &mut dyn FnMut(&mut [u8]) -> Result<()>,
    ) -> Result<()>;

    /// Has `kind` [complete](Kind::complete) the block when the transaction closes. What the owner has in memory from now on
    /// is part of the transaction, as if the block was changed. For a block of which many threads change small parts: only the
    /// first of them in each transaction goes to the block itself. `asked` is the owner's, for one block and one journal.
    ///
    /// # Errors
    /// As [`Edit::modify`]. The block is no part of the transaction then.
    fn change_at_close(&mut self, block: Pblk, kind: &dyn Kind, asked: &mut Asked) -> Result<()>;

    /// Makes a block that was just allocated a metadata block with these bytes (sealed by `kind`),
    /// without reading it. Cancels an earlier revocation.
    ///
    /// # Errors
    /// [`crate::Error::Aborted`] and [`crate::Error::OutOfCredits`].
    fn create(&mut self, block: Pblk, kind: &dyn Kind, bytes: &[u8]) -> Result<()>;

    /// A metadata block was freed: its changes need not reach the device, and what the log holds of
    /// it must never be replayed over what the block is used for next.
    ///
    /// # Errors
    /// [`crate::Error::Aborted`].
    fn forget(&mut self, block: Pblk) -> Result<()>;
}
