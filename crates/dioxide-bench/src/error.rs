//! The crate's one error type.

use std::io;

/// Why a run could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file system or its device.
    #[error(transparent)]
    Engine(#[from] dioxide::Error),
    /// A device that is used without a file system.
    #[error(transparent)]
    Device(#[from] dioxide::block::Error),
    /// A file of the host, or a tool that could not be started.
    #[error("{what}: {source}")]
    Io {
        /// What was being done, to what.
        what: String,
        /// What the operating system said.
        source: io::Error,
    },
    /// Something that the run needs is not there or not right; says what to do.
    #[error("{0}")]
    Setup(String),
}

impl Error {
    /// For `map_err`: adds what was being done.
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
        let what = what.into();
        move |source| Error::Io { what, source }
    }
}

/// Shorthand for this crate's results.
pub type Result<T, E = Error> = std::result::Result<T, E>;
