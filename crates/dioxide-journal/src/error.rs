//! The crate's one error type.

/// What went wrong in the journal or with a metadata block.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device failed or refused.
    #[error(transparent)]
    Device(#[from] dioxide_block::Error),
    /// A metadata block is not what it should be.
    #[error("block {block}: {source}")]
    Block {
        /// Device block.
        block: u64,
        /// What is wrong with it.
        source: dioxide_format::Error,
    },
    /// What a metadata block has become is not what it should be. Nothing of its transaction was written.
    #[error("block {block} was not written, as it has become a damaged {kind}: {source}")]
    Damaged {
        /// The structure, by its ext4 name.
        kind: &'static str,
        /// Device block.
        block: u64,
        /// What is wrong with it.
        source: dioxide_format::Error,
    },
    /// The log contradicts itself. Nothing was replayed.
    #[error("journal block {block}: {what}")]
    Log {
        /// Block of the journal.
        block: u32,
        /// What was expected and found.
        what: String,
    },
    /// The journal uses something that is not implemented.
    #[error("unsupported: {0}")]
    Unsupported(String),
    /// An earlier failure stopped the journal; nothing more can be changed.
    #[error("the journal was aborted: {0}")]
    Aborted(String),
    /// The system gives no thread that commits what nobody waits for. Nothing was changed.
    #[error("no thread for the journal: {0}")]
    NoThread(std::io::Error),
    /// The handle was started for fewer changes than it makes.
    #[error("a handle of {credits} credits changes more blocks")]
    OutOfCredits {
        /// What it was started with.
        credits: u32,
    },
    /// A handle asks for more blocks than a transaction may have.
    #[error("a handle of {credits} credits; a transaction has at most {max} blocks")]
    HandleTooLarge {
        /// What was asked for.
        credits: u32,
        /// Largest transaction.
        max: u32,
    },
}

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;
