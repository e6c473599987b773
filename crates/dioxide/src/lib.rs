//! **dioxide**: ext4 outside the kernel, with concurrent direct I/O at the speed of the device.
//!
//! Opens a real ext4 image or block device in the caller's process:
//!
//! ```no_run
//! use dioxide::{Fs, MountOptions, OpenOptions};
//!
//! let fs = Fs::open("disk.img", &MountOptions::new())?;
//! let file = OpenOptions::new().read(true).write(true).open(&fs, "/var/db/data")?;
//! let mut block = vec![0; 4096];
//! file.read_at(&mut block, 8192)?;
//! file.write_at(&block, 0)?;
//! file.sync_data()?; // durable, if that is Ok
//! fs.close()?;
//! # Ok::<(), dioxide::Error>(())
//! ```
//!
//! [`File`] is for blocking use, from any number of threads at once. A [`Queue`] is for one
//! thread's asynchronous requests: push, submit, reap (`examples/quick_start.rs`). Both run the same engine; which lock a
//! request takes is decided by the mount's [`Policy`], and [`File::explain`] tells why.
//!
//! | Module | Holds |
//! |---|---|
//! | [`policy`] | which lock a request takes under which kernel's rules, as pure functions |
//! | [`check`] | whether a file system is consistent |
//! | [`mkfs`] | making file systems |
//! | [`resize`] | making them larger and smaller |
//! | [`block`] | devices, queues and buffers, a simulator and a recorder |
//! | [`format`](mod@format) | on-disk structures |
//!
//! `docs/ARCHITECTURE.md` has the modules inside, and one request followed from the API to the device.

mod alloc;
mod api;
pub mod check;
mod error;
mod explain;
mod inode;
mod io;
mod known;
mod map;
pub mod mkfs;
mod mount;
mod namei;
pub mod resize;
mod stats;
mod sync;
mod txn;
mod user;

pub use api::attributes::{FallocateMode, SetAttributes, StatFs};
pub use api::file::{File, OpenOptions};
pub use api::fs::{CloseError, DataMode, Fs, MountOptions};
pub use api::metadata::{AtomicWrite, DirEntry, FileType, Metadata, Timestamp, Xattr};
pub use api::names::{NewFile, RenameMode, Special};
pub use api::node::{ListedPlus, Node};
pub use api::queue::{Completion, Queue, QueueFull, QueueOptions, QueueWaker};
pub use dioxide_block as block;
pub use dioxide_block::file::Backend;
pub use dioxide_block::{Buf, BufPool};
pub use dioxide_format as format;
pub use dioxide_format::superblock::ErrorPolicy;
pub use error::{Error, Place, Result, Shortage};
pub use explain::{Direction, Explanation, Step};
pub use io::direct::policy;
pub use io::direct::policy::Policy;
pub use io::ioend::CompletionMode;
pub use map::{MapKind, Mapping};
pub use mkfs::Mkfs;
pub use mount::image::{open_image, open_image_part};
pub use namei::xattr::XattrMode;
pub use stats::Stats;
pub use txn::damage::DamageMet;
pub use user::as_user;
