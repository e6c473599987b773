//! Power cuts, by the thousand: runs a workload on a recorded device, makes the states that a crash at
//! any time can leave, recovers each, and checks what had been promised by then.
//!
//! | Module | Holds |
//! |---|---|
//! | [`op`] | what a workload does, as data |
//! | [`content`] | bytes that tell whose they are, and poison for free space |
//! | [`model`] | what files look like after each operation, and which mixtures a crash may leave |
//! | [`attributes`] | what files have besides content and names, and what calls make of it |
//! | [`names`] | what operations do with names and attributes, and what a tree looks like |
//! | [`oracle`] | what has been promised at a time, and whether files keep it |
//! | [`target`] | the file system under test, as the explorer sees it |
//! | [`engine`] | dioxide as such a target |
//! | [`fault`] | devices that lie, which the explorer must notice |
//! | [`mutant`] | engines that are broken, made of what dioxide wrote, which it must notice too |
//! | [`run`] | a workload on a recorded device |
//! | [`explore`] | its crash states, recovered and checked |
//! | [`image`] | images to begin with, made by mke2fs, free space filled with poison |
//! | [`fsck`] | e2fsck as a check and as another way to recover |
//! | [`kernel`] | the kernel's ext4 as another way to recover |
//! | [`workload`] | operations alone, in pairs with fsync at each place, and at random |
//! | [`campaign`] | many workloads over many images, by several threads |
//! | [`replay`] | one state again, by its description |
//! | [`report`] | figures, and the states that were bad |
//!
//! # What is promised
//! - What fsync, fdatasync, sync or a clean unmount covered is there: data, size, and for all but
//!   fdatasync the attributes. An acknowledged `O_DSYNC` or `O_SYNC` write is there.
//! - The files together are as they were after some operation, or within one that takes more than one step. No
//!   operation is there without those before it, as far as metadata goes.
//! - Each sector of data is one that was written to that block of that file, not older than what is
//!   promised; data that came with new metadata (an allocation, a conversion, an extension) is not older than that.
//! - Of a file that several threads write, each sector by itself: it is what one of them wrote there, or what was there before,
//!   and not older than what is promised.
//! - The tree is that of the same state: names, kinds, link counts, targets, contents of new files,
//!   attributes (permissions, owners, times that were asked for, flags, projects, extended attributes). No operation on names
//!   or attributes is there in part. What fsync of a file or directory covered is there: its names and attributes, or the
//!   names in it.
//! - An atomic write that nothing came after is there, up to the end of the file, or nothing of it is.
//! - Holes and unwritten blocks read as zeros. No sector ever shows what free space held.
//!
//! # What is assumed
//! A sector of 512 bytes is written whole, and so are the 1024 bytes of an ext4 superblock: it is changed in place, has one
//! checksum, and nobody could find the journal to mend it. Whoever has a device that tears it needs a backup superblock.
//!
//! # What it is not
//! Not a model of all that several threads may do at once: each has files, names or attributes of its own, or all of them write to
//! one file and sync it, which makes it no shorter. Not a check of the
//! metadata's own consistency: that is e2fsck's part, which is plugged in ([`explore::Checks`]).

pub mod attributes;
pub mod campaign;
pub mod content;
pub mod engine;
pub mod explore;
mod external;
pub mod fault;
pub mod fsck;
pub mod image;
mod journal;
pub mod kernel;
pub mod model;
pub mod mutant;
pub mod names;
pub mod op;
pub mod oracle;
pub mod replay;
pub mod report;
pub mod run;
mod shared;
pub mod target;
pub mod workload;
