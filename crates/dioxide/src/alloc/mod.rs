//! Which blocks and inodes are free, and which of them to take.
//!
//! For: choosing, and the bitmaps and descriptors that record it. Not for: what the blocks and
//! inodes are then used for. Everything on disk is changed through [`dioxide_journal::Edit`], so
//! the caller's transaction decides when it lasts.
//!
//! | Module | Holds |
//! |---|---|
//! | [`groups`] | descriptors, and what is known of each group |
//! | [`kinds`] | how bitmaps and descriptors are checked |
//! | [`blocks`] | the block allocator; [`place`], [`release`] and [`trim`] are its parts |
//! | [`claim`] | blocks that are chosen before data is written, and recorded after |
//! | [`pool`], [`streams`] | blocks that are free, and yet not for everyone |
//! | [`space`] | how much there is to have, and reservations |
//! | [`search`] | runs of clear bits |
//! | [`given`] | blocks and inodes that somebody else chose |
//! | [`inodes`], [`orlov`] | the inode allocator, and which group an inode goes to |
//!
//! # Locks
//! A group has one lock for its blocks and one for its inodes. A thread holds at most one of all
//! these at a time; dropping a claim takes one. They come after handle start and the extent map's
//! lock, before the metadata buffer (which `Edit` takes inside). Locks of streams and of the list of
//! pending runs are leaves.

#![cfg_attr(not(test), expect(unused_imports, reason = "some are for the tests"))]

mod blocks;
mod claim;
mod given;
mod groups;
mod inodes;
mod kinds;
mod orlov;
mod place;
mod pool;
mod release;
mod search;
mod space;
mod streams;
#[cfg(test)]
mod tests;
mod trim;

pub(crate) use blocks::{BlockAllocator, Goal, Request, Run, Stream};
pub(crate) use claim::Claim;
pub(crate) use groups::{Groups, Totals};
pub(crate) use inodes::{InodeAllocator, InodeKind, NewInode};
pub(crate) use release::{Kept, Release};
pub(crate) use space::{Reservation, Right};
