//! Images and block devices of the host.
//!
//! [`open`] finds out what the path is and how it is best driven, makes sure that nobody else is
//! using it, and returns one of the first four devices:
//!
//! | Backend | Blocking transfers | Queue | Chosen by `auto` for |
//! |---|---|---|---|
//! | `uring` | pread, pwrite | io_uring | block devices, and files of disk file systems |
//! | `pread` | pread, pwrite | the same, inline at `push` | tmpfs; where io_uring is refused or could only hand requests to kernel threads |
//! | `mmap`  | copies | the same, inline at `push` | never: only by explicit choice |
//! | sparse  | pread, pwrite; copies in a lane | copies where the image has pages, inline at `push` | tmpfs, in a program that lets it map ([`FileOptions::may_map`]) |
//! | [`NullSink`] | those of another device | io_uring on `/dev/null` | never: it is a meter |
//!
//! `O_DIRECT` is used where the file takes it, except by mappings. Alignment comes from `statx`
//! where the kernel tells, and from trying where it does not.
//!
//! Invariants: an image that is open for writing is locked (OFD write lock on the file, `O_EXCL`
//! on a block device) for as long as the device or one of its queues lives, or the kernel has operations of a queue that was
//! dropped where it could not wait for them. It was neither mounted nor attached to a loop device when it was opened. Offset 0
//! of the device is byte `img_offset` of the file, and no transfer leaves `img_offset..img_offset + size`.
//!
//! Rejected: choosing a mapping by itself for images in memory. It is the fastest, but a program
//! that never asked for it should not get a process-wide `SIGBUS` handler: it says [`FileOptions::may_map`] if it may.

mod close;
mod guard;
mod io;
mod lane;
mod mapping;
mod probe;
mod sigbus;
mod sink;
mod sparse;
mod uring;

pub use close::close;
pub use guard::{Replacing, in_use_by, written_by};
pub use lane::{Lane, QueueLane};
pub use sink::NullSink;

use crate::inline::InlineQueue;
use crate::{Device, Durability, Error, Geometry, Queue, QueueOptions, Result};
use io::FileIo;
use mapping::{MappedDevice, Parts};
use sparse::{Present, SparseDevice};
use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

/// How to drive an image or block device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backend {
    /// Choose by probing; see the module header. No mapping unless [`FileOptions::may_map`].
    #[default]
    Auto,
    /// io_uring queues, or an error where it is not permitted.
    Uring,
    /// pread and pwrite in the caller's thread.
    Pread,
    /// A shared mapping. Installs a process-wide `SIGBUS` handler.
    Mmap,
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Backend::Auto => "auto",
            Backend::Uring => "uring",
            Backend::Pread => "pread",
            Backend::Mmap => "mmap",
        })
    }
}

impl FromStr for Backend {
    type Err = Error;

    fn from_str(s: &str) -> Result<Backend> {
        match s {
            "auto" => Ok(Backend::Auto),
            "uring" => Ok(Backend::Uring),
            "pread" => Ok(Backend::Pread),
            "mmap" => Ok(Backend::Mmap),
            _ => Err(Error::Spec {
                spec: s.into(),
                what: "a backend is one of auto, uring, pread, mmap".into(),
            }),
        }
    }
}

/// How to open an image or block device.
#[derive(Clone, Debug, Default)]
pub struct FileOptions {
    /// How to drive it.
    pub backend: Backend,
    /// Open for writing, exclusively. Otherwise writes are refused.
    pub write: bool,
    /// Where the device begins in the file, in bytes: the start of a partition, say. If it does not
    /// suit the alignment of direct I/O, the page cache is used instead.
    pub img_offset: u64,
    /// Size of the device in bytes; `None` is all that follows `img_offset`.
    pub size_bytes: Option<u64>,
    /// Mapping only: read all data into memory and map it before `open` returns, in large pages where the kernel can do that
    /// (Linux 6.1, files in tmpfs): some two seconds for a GiB that lies in small ones, which stays in large ones then.
    pub populate: bool,
    /// `auto` may map an image in memory, where it has pages. Installs a process-wide `SIGBUS` handler, so it is for a
    /// program to say and not for a library.
    pub may_map: bool,
    /// Go through the page cache though the file would take `O_DIRECT`.
    pub buffered: bool,
}

/// Opens an image file or a block device. Blocks while probing.
///
/// A reader shares the image with other readers. Reading an image that the kernel has mounted is
/// possible but not consistent: ask [`in_use_by`].
///
/// # Errors
/// [`Error::Busy`] when somebody has it: for writing, when it is mounted, attached to a loop device,
/// or locked; for reading, when a writer has locked it. [`Error::Open`] when the path cannot be
/// opened or the range does not fit. [`Error::Unsupported`] when an explicit backend is not possible.
pub fn open(path: impl AsRef<Path>, options: &FileOptions) -> Result<Arc<dyn Device>> {
    let mut io = probe::open(path.as_ref(), options)?;
    Ok(match choose(&io, options.backend)? {
        Backend::Mmap => {
            let parts = Parts::new(&io)?;
            let mapped = MappedDevice::new(io, parts, None);
            if options.populate {
                mapped.populate();
            }
            Arc::new(mapped)
        }
        Backend::Uring => Arc::new(FileDevice {
            io: Arc::new(io),
            uring: true,
        }),
        Backend::Pread | Backend::Auto => {
            if let Some((parts, present)) = sparse_parts(&io, options) {
                let mapped = MappedDevice::new(io, parts, Some(present));
                return Ok(Arc::new(SparseDevice::new(mapped)));
            }
            io.geometry.inline = io.in_memory;
            Arc::new(FileDevice {
                io: Arc::new(io),
                uring: false,
            })
        }
    })
}

/// A mapping for who lets `auto` choose it, where there is one to be had.
fn sparse_parts(io: &FileIo, options: &FileOptions) -> Option<(Parts, Present)> {
    let wanted = options.may_map && options.backend == Backend::Auto && io.in_memory;
    if !wanted || !Present::is_told(io) {
        return None;
    }
    let made = Parts::new(io).and_then(|parts| {
        let present = parts.present()?;
        Ok((parts, present))
    });
    made.inspect_err(|error| tracing::debug!(%error, image = %io.name, "not mapped"))
        .ok()
}

/// Resolves `auto`; checks that an explicit choice is possible.
fn choose(io: &FileIo, wanted: Backend) -> Result<Backend> {
    let uring = match wanted {
        Backend::Auto => !io.in_memory && io.has_nowait() && uring::available().is_ok(),
        Backend::Uring => uring::available().map(|()| true)?,
        Backend::Pread | Backend::Mmap => return Ok(wanted),
    };
    Ok(if uring {
        Backend::Uring
    } else {
        Backend::Pread
    })
}

/// An open file that is driven by pread and pwrite when blocking, and by io_uring or inline when
/// queued.
#[derive(Clone, Debug)]
struct FileDevice {
    io: Arc<FileIo>,
    uring: bool,
}

impl Device for FileDevice {
    #[inline]
    fn geometry(&self) -> &Geometry {
        &self.io.geometry
    }

    #[inline(always)]
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.io.read_at(offset, buf)
    }

    fn read_past_cache_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.io.read_past_cache_at(offset, buf)
    }

    #[inline(always)]
    fn write_at(&self, offset: u64, buf: &[u8], durability: Durability) -> Result<()> {
        self.io.write_at(offset, buf, durability)
    }

    fn write_atomic_at(&self, offset: u64, buf: &[u8], durability: Durability) -> Result<()> {
        self.io.write_atomic_at(offset, buf, durability)
    }

    fn flush(&self) -> Result<()> {
        self.io.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.io.discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        self.io.write_zeroes(offset, len)
    }

    fn open_queue(&self, options: &QueueOptions) -> Result<Box<dyn Queue>> {
        if self.uring {
            return Ok(Box::new(uring::UringQueue::open(
                self.io.clone(),
                options,
                false,
            )?));
        }
        Ok(Box::new(InlineQueue::new(self.clone(), options)))
    }

    fn lane(&self) -> Option<Lane> {
        Some(Lane::file(self.clone()))
    }

    fn describe(&self) -> String {
        let backend = if self.uring { "io_uring" } else { "pread" };
        self.io.describe(backend)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backend_name_round_trips_and_unknown_is_refused() {
        for backend in [Backend::Auto, Backend::Uring, Backend::Pread, Backend::Mmap] {
            assert_eq!(backend.to_string().parse::<Backend>().unwrap(), backend);
        }
        let error = "aio".parse::<Backend>().unwrap_err();
        assert!(error.to_string().contains("auto, uring, pread, mmap"));
    }
}
