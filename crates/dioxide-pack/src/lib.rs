//! Trees of files between folders, tar archives and ext4 images.
//!
//! A [`Tree`] is read from a folder ([`source::folder`]), an image ([`source::image`]) or an archive
//! ([`tar::read`]), or made by a program ([`source::program`]), with all checks, and is then written into a [`Sink`]: a folder
//! ([`sink::folder`]) or an archive ([`tar::write`](mod@tar::write)); or an image is made of it
//! ([`image::write`]). [`size`](mod@size) tells how much of a file system it takes.
//!
//! ```no_run
//! use dioxide_pack::sink::folder::{FolderOptions, FolderSink};
//! use dioxide_pack::{Filter, source};
//!
//! let fs = dioxide::Fs::open("disk.img", &dioxide::MountOptions::new().read_only(true)).unwrap();
//! let mut tree = source::image::read(&fs, b"/etc", Filter::default())?;
//! let mut folder = FolderSink::new("etc".as_ref(), FolderOptions::default())?;
//! tree.write_to(&mut folder, &mut ())?;
//! # Ok::<(), dioxide_pack::Error>(())
//! ```
//!
//! | Module | Holds |
//! |---|---|
//! | `entry` | one file of a tree |
//! | `tree` | a whole tree: checks, order, hard links, writing it |
//! | `filter` | what is left out, and whose files become whose |
//! | [`glob`] | patterns of names and paths |
//! | [`source`] | trees from folders, images and programs |
//! | [`tar`] | archives: reading, writing, compression |
//! | [`sink`] | what a tree is written into; folders |
//! | [`image`] | images: how large, what a tree makes of them, writing them |
//! | [`size`](mod@size) | how much of a file system a tree takes |
//! | `unfinished` | files that get their names once they are complete |

mod entry;
mod error;
mod filter;
pub mod glob;
pub mod image;
pub mod sink;
pub mod size;
pub mod source;
pub mod tar;
mod tree;
mod unfinished;

pub use entry::{Entry, FileData, Kind, NAME_MAX, XATTR_VALUE_MAX};
pub use error::{Error, Result};
pub use filter::{Filter, OwnerRule, Pattern};
pub use sink::Sink;
pub use tree::{Contents, Totals, Tree, Warning, Watch};
