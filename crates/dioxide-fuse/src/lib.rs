//! dioxide's file systems mounted through FUSE.
//!
//! ```no_run
//! use dioxide_fuse::{MountPoint, Options};
//!
//! let (options, warnings) = Options::parse("ro,dio_policy=v6.6")?;
//! for warning in warnings {
//!     eprintln!("{warning}");
//! }
//! let mounted = MountPoint::mount("disk.img".as_ref(), "/mnt".as_ref(), &options)?;
//! mounted.serve()?;
//! # Ok::<(), dioxide_fuse::Error>(())
//! ```
//!
//! This is a translation between the kernel's requests and the library's calls, and holds no file-system logic.
//!
//! What no answer can tell is *traced*: an event of the crate `tracing`, for who subscribes to those. `dioxide mount` does not.
//!
//! | Module | Holds |
//! |---|---|
//! | `server` | what the kernel asks, answered by the library |
//! | `table` | which files the kernel knows, and which it has open |
//! | `transport` | how requests come and answers go: `read` and `write` of `/dev/fuse`, or rings shared with the kernel |
//! | [`stats`] | what was counted of all this |
//! | `inherited` | what the process was started with |
//! | [`sandbox`] | a process that can do nothing else |
//! | `options` | `-o` |
//! | `mount` | from an image to a mount that serves, and back to an image that is closed |

mod errno;
mod error;
mod inherited;
mod mount;
mod options;
mod patience;
pub mod sandbox;
mod server;
pub mod stats;
mod table;
mod transport;

pub use error::Error;
pub use inherited::close_inherited;
pub use mount::{
    Connection, MountPoint, Serving, Unmounted, Unmounter, is_dead, unmount, unmount_dead,
    unmount_lazily,
};
pub use options::Options;

use errno::{Errno, Result};
use table::ROOT_ID;
