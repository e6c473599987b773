//! The journal of ext4 (jbd2), and the blocks that it protects.
//!
//! This crate knows blocks, never inodes or paths. Everything above changes metadata only through
//! [`Edit`], which a transaction's handle implements.
//!
//! | Module | What it is |
//! |---|---|
//! | [`buffer`] | the cache of metadata blocks |
//! | [`edit`] | how metadata blocks are read and changed, and the kinds of block |
//! | [`journal`] | the live journal: handles, commit, checkpoint |
//! | [`log`] | where the log lies: journal blocks to device blocks, and its superblock |
//! | [`recovery`] | replays what a crash left in the log, in three passes |
//! | [`transaction`] | what a commit makes durable together |

pub mod buffer;
pub mod edit;
mod error;
pub mod journal;
pub mod log;
pub mod recovery;
pub mod transaction;

pub use edit::{Asked, Edit, Kind};
pub use error::{Error, Result};
