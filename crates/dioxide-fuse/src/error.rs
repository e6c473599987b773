//! What goes wrong with a mount as a whole.

use std::io;
use std::path::PathBuf;

/// Why a mount did not come about, or how it ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An option that is unknown, or whose value makes no sense.
    #[error("option {0}")]
    Option(String),
    /// The image cannot be opened, or was not closed cleanly.
    #[error(transparent)]
    Image(#[from] dioxide::Error),
    /// The kernel, or `fusermount3`, refused.
    #[error("{what} {}: {source}", path.display())]
    Kernel {
        /// What was tried.
        what: &'static str,
        /// The mount point.
        path: PathBuf,
        /// What was said.
        source: io::Error,
    },
    /// The connection to the kernel broke.
    #[error("the connection to the kernel ended: {0}")]
    Connection(#[source] io::Error),
    /// The process cannot be confined.
    #[error("sandbox: {0}")]
    Sandbox(String),
    /// There is no mount of ours.
    #[error("{}: no dioxide file system is mounted there", .0.display())]
    NotMounted(PathBuf),
}
