//! Making file systems: ext2, ext3 and ext4 as `mke2fs` lays them out.
//!
//! ```no_run
//! use dioxide::mkfs::Mkfs;
//!
//! let plan = Mkfs::new().label("data")?.create("disk.img".as_ref(), Some(1 << 30))?;
//! println!("{} blocks, {} inodes", plan.superblock().blocks_count(), plan.superblock().inodes_count());
//! # Ok::<(), dioxide::Error>(())
//! ```
//!
//! Three steps, apart from each other: [`Mkfs`] collects what is wanted, [`Plan`] knows where
//! everything goes and touches nothing, [`Plan::write`] writes it.
//!
//! | Module | Holds |
//! |---|---|
//! | `options` | what can be asked for, in Rust and in the words of `-O`, `-E` and `-J` |
//! | `profile` | what the three types and the sizes of file systems bring with them |
//! | `fit` | from wishes and a size to the numbers of a superblock |
//! | `space` | which blocks are taken |
//! | `tables` | where bitmaps and inode tables go |
//! | `files` | the files that a new file system has |
//! | `journal` | the journal among them |
//! | `mapping` | giving a file its blocks |
//! | `quota` | the contents of a quota file |
//! | `plan` | all of it together |
//! | `write` | bringing it onto a device |
//! | `target` | images and devices: what is on them, whether they may be used |
//!
//! Not for: filling the file system, or changing one that is there.
//!
//! Invariants: the same wishes, identity and time give the same bytes, on every device. The plan's
//! memory is some dozens of bytes per group, and the contents of the metadata files. The primary
//! superblock is wiped first and written last, so that what was not finished is not a file system.
//!
//! Rejected: making an empty file system and then creating files in it through the engine. Half of
//! what is made here (tables, backups, the resize inode, the journal) is what the engine needs to
//! start, and the layout would not be the one that people know.

mod files;
mod fit;
mod journal;
mod mapping;
mod options;
mod plan;
mod profile;
mod quota;
pub(crate) mod space;
pub(crate) mod tables;
mod target;
mod write;

pub use options::{Mkfs, parse_uuid, uuid_string};
pub use plan::Plan;
pub use profile::FsType;
pub use write::WriteOptions;
