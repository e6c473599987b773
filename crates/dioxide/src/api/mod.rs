//! The public interface: a mounted file system, its files, and queues of asynchronous requests.

pub(crate) mod attributes;
pub(crate) mod file;
pub(crate) mod fs;
pub(crate) mod metadata;
pub(crate) mod names;
pub(crate) mod node;
pub(crate) mod queue;
pub(crate) mod xattrs;
