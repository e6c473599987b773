//! Moving file data: direct I/O, completion, and the workers that take what would block.

pub(crate) mod clock;
pub(crate) mod direct;
pub(crate) mod fallocate;
pub(crate) mod inline;
pub(crate) mod ioend;
pub(crate) mod resize;
pub(crate) mod worker;
