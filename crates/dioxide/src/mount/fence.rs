//! A device that may fence us off, and whose flushes wait for each other ([`Flushes`]).
//!
//! `ESHUTDOWN` says that somebody else has the device from now on: another node took it over, or it is being taken
//! away. Whichever request meets it, nothing is written any more: what is in memory may be older by now than what the
//! other writes, and no try is better than the one before. Reads go on for as long as the device answers them. So it is when
//! multi-mount protection finds another host's number. A journal on a device of its own has a fence too, and both are shut
//! together: who has the one device may have the other, and what the abort of a journal notes in it would be told to him.
//!
//! Rejected: looking at each error where it is handled. Metadata is read in hundreds of places.

use super::Mount;
use super::flushes::Flushes;
use dioxide_block::{Device, Durability, Error, Geometry, Lane, Queue, QueueOptions, Result};
use std::sync::{Arc, OnceLock, Weak};

/// A device of a mount.
#[derive(Debug)]
pub(crate) struct Fence {
    inner: Arc<dyn Device>,
    flushes: Flushes,
    common: Arc<Common>,
}

/// What all devices of a mount have in common.
#[derive(Debug, Default)]
struct Common {
    /// What is told. Nothing before it is shared.
    mount: OnceLock<Weak<Mount>>,
    fenced: OnceLock<()>,
}

impl Fence {
    pub(super) fn new(inner: Arc<dyn Device>) -> Arc<Fence> {
        Fence::of(inner, Arc::default())
    }

    /// Another device of the same mount.
    pub(super) fn beside(&self, inner: Arc<dyn Device>) -> Arc<Fence> {
        Fence::of(inner, self.common.clone())
    }

    fn of(inner: Arc<dyn Device>, common: Arc<Common>) -> Arc<Fence> {
        let flushes = Flushes::default();
        Arc::new(Fence {
            inner,
            flushes,
            common,
        })
    }

    /// Who is told. Once.
    pub(super) fn guard(&self, mount: &Weak<Mount>) {
        self.common.mount.get_or_init(|| mount.clone());
    }

    /// Looks at an error of the device; those of lanes and of queues do not come through here by themselves.
    #[cold]
    pub(crate) fn look_at(&self, error: &Error) {
        if error.errno() != libc::ESHUTDOWN || self.common.fenced.set(()).is_err() {
            return;
        }
        if let Some(mount) = self.mount() {
            mount.fenced(error);
        }
    }

    /// The mount, once it is open.
    pub(crate) fn mount(&self) -> Option<Arc<Mount>> {
        self.common.mount.get().and_then(Weak::upgrade)
    }

    /// Lets nothing through any more that changes a device of the mount. What goes past this one, the mount has to refuse.
    pub(super) fn shut(&self) {
        let _ = self.common.fenced.set(());
    }

    fn seen<T>(&self, result: Result<T>) -> Result<T> {
        if let Err(error) = &result {
            self.look_at(error);
        }
        result
    }

    /// A write that is to be so durable. A device that has none which are durable by themselves would flush past the others.
    fn forced(
        &self,
        durability: Durability,
        write: impl FnOnce(Durability) -> Result<()>,
    ) -> Result<()> {
        if durability == Durability::Cached || self.geometry().fua {
            return self.seen(write(durability));
        }
        self.seen(write(Durability::Cached))?;
        self.flush()
    }

    /// Before anything that changes the device.
    fn check(&self, op: &'static str, offset: u64, len: u64) -> Result<()> {
        match self.common.fenced.get() {
            None => Ok(()),
            Some(()) => Err(Error::Io {
                op,
                offset,
                len,
                source: std::io::Error::from_raw_os_error(libc::ESHUTDOWN),
            }),
        }
    }
}

impl Mount {
    /// Nothing is written any more. May come in the middle of a commit, which then fails by itself.
    fn fenced(&self, error: &Error) {
        let reason = format!("the device was fenced off: {error}; open the file system again");
        if self.failed.set(reason).is_ok() {
            tracing::error!("nothing is written any more: {error}");
        }
        self.knobs.refuse_writes();
    }
}

impl Device for Fence {
    fn geometry(&self) -> &Geometry {
        self.inner.geometry()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.seen(self.inner.read_at(offset, buf))
    }

    fn read_past_cache_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.seen(self.inner.read_past_cache_at(offset, buf))
    }

    fn write_at(&self, offset: u64, buf: &[u8], durability: Durability) -> Result<()> {
        self.check("write", offset, buf.len() as u64)?;
        self.forced(durability, |durability| {
            self.inner.write_at(offset, buf, durability)
        })
    }

    fn write_atomic_at(&self, offset: u64, buf: &[u8], durability: Durability) -> Result<()> {
        self.check("write", offset, buf.len() as u64)?;
        self.forced(durability, |durability| {
            self.inner.write_atomic_at(offset, buf, durability)
        })
    }

    fn flush(&self) -> Result<()> {
        self.check("flush", 0, 0)?;
        self.flushes.flush(|| self.seen(self.inner.flush()))
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.check("discard", offset, len)?;
        self.seen(self.inner.discard(offset, len))
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        self.check("write zeroes", offset, len)?;
        self.seen(self.inner.write_zeroes(offset, len))
    }

    fn open_queue(&self, options: &QueueOptions) -> Result<Box<dyn Queue>> {
        self.inner.open_queue(options)
    }

    fn lane(&self) -> Option<Lane> {
        self.inner.lane()
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }
}
