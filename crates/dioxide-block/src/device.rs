//! The trait that every device implements, for synchronous use.

use crate::mem::Streamed;
use crate::{Error, Lane, OpKind, Queue, QueueOptions, Result};
use std::fmt;
use std::sync::Arc;

/// What a device is: fixed for as long as it is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Size in bytes.
    pub size_bytes: u64,
    /// Offsets and lengths of transfers are multiples of this power of two.
    pub logical_block_bytes: u32,
    /// Memory addresses of queued transfers are multiples of this power of two, at most
    /// [`crate::BUF_ALIGN`].
    pub mem_align_bytes: u32,
    /// No page cache of this host lies between: other hosts that have the device see what was written without a flush.
    pub direct: bool,
    /// The device acknowledges writes before they are durable.
    pub volatile_cache: bool,
    /// The device can make one write durable by itself (force unit access).
    pub fua: bool,
    /// The device can discard ranges.
    pub discard: bool,
    /// Writes are refused.
    pub read_only: bool,
    /// A transfer completes in the caller's thread without waiting for hardware (memory, tmpfs,
    /// a mapping), so that a queue would only add cost.
    pub inline: bool,
    /// What the device writes wholly or not at all, whatever happens meanwhile. `None`: nothing.
    pub atomic: Option<AtomicUnits>,
}

/// Lengths of atomic writes ([`Device::write_atomic_at`]): powers of two, the smaller at least the logical block.
/// What is written so begins at a multiple of its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicUnits {
    /// The shortest, in bytes.
    pub min_bytes: u32,
    /// The longest, in bytes.
    pub max_bytes: u32,
}

impl AtomicUnits {
    /// Units from `min_bytes` to `max_bytes`; none if these are not two powers of two in this order.
    pub fn new(min_bytes: u32, max_bytes: u32) -> Option<AtomicUnits> {
        let valid = min_bytes.is_power_of_two() && max_bytes.is_power_of_two();
        (valid && min_bytes <= max_bytes).then_some(AtomicUnits {
            min_bytes,
            max_bytes,
        })
    }

    /// Those among them that are at least `min_bytes` and at most `max_bytes`, both powers of two.
    pub fn within(self, min_bytes: u32, max_bytes: u32) -> Option<AtomicUnits> {
        AtomicUnits::new(self.min_bytes.max(min_bytes), self.max_bytes.min(max_bytes))
    }

    /// Whether a write of `len` bytes at `offset` is one of them.
    pub fn hold(self, offset: u64, len: u64) -> bool {
        let lengths = u64::from(self.min_bytes)..=u64::from(self.max_bytes);
        len.is_power_of_two() && lengths.contains(&len) && offset.is_multiple_of(len)
    }
}

impl Geometry {
    /// Checks that a transfer lies on logical blocks and inside the device. `op` names it in the
    /// error.
    ///
    /// # Errors
    /// [`Error::Misaligned`] or [`Error::OutOfRange`].
    #[inline]
    pub fn check(&self, op: &'static str, offset: u64, len: u64) -> Result<()> {
        let unaligned = (offset | len) & (u64::from(self.logical_block_bytes) - 1);
        if unaligned == 0 && offset <= self.size_bytes && len <= self.size_bytes - offset {
            return Ok(());
        }
        Err(self.refusal(op, offset, len))
    }

    /// Whether a transfer lies on logical blocks and inside the device, and moves something.
    #[inline(always)]
    pub(crate) fn holds(&self, offset: u64, len: u32) -> bool {
        let len = u64::from(len);
        let unaligned = (offset | len) & (u64::from(self.logical_block_bytes) - 1);
        let end = offset.checked_add(len);
        unaligned == 0 && len > 0 && end.is_some_and(|end| end <= self.size_bytes)
    }

    /// Checks that the device writes a range atomically.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if it writes nothing so; [`Error::NotAtomic`]; those of [`Geometry::check`].
    pub fn check_atomic(&self, offset: u64, len: u64) -> Result<()> {
        let Some(units) = self.atomic else {
            return Err(Error::Unsupported {
                what: "atomic writes on this device".into(),
            });
        };
        if !units.hold(offset, len) {
            return Err(Error::NotAtomic { offset, len, units });
        }
        self.check("write", offset, len)
    }

    /// Checks only that a transfer lies inside the device.
    ///
    /// # Errors
    /// [`Error::OutOfRange`].
    #[inline(always)]
    pub(crate) fn check_inside(&self, op: &'static str, offset: u64, len: u64) -> Result<()> {
        if offset <= self.size_bytes && len <= self.size_bytes - offset {
            return Ok(());
        }
        Err(self.outside(op, offset, len))
    }

    #[cold]
    fn outside(&self, op: &'static str, offset: u64, len: u64) -> Error {
        Error::OutOfRange {
            op,
            offset,
            len,
            size: self.size_bytes,
        }
    }

    #[cold]
    fn refusal(&self, op: &'static str, offset: u64, len: u64) -> Error {
        let required = u64::from(self.logical_block_bytes);
        let what = match (offset % required, len % required) {
            (0, 0) => return self.outside(op, offset, len),
            (0, _) => "length",
            _ => "offset",
        };
        Error::Misaligned {
            op,
            offset,
            len,
            what,
            required,
        }
    }
}

/// How durable a write is when it returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// As the device does it; a later flush makes it durable.
    #[default]
    Cached,
    /// Durable when it completes (FUA), emulated by write and flush where the device lacks it.
    ForceUnitAccess,
}

/// A block device, an image file, memory, or a wrapper around one of them.
///
/// All methods block until done and may be called from any number of threads at once. Transfers
/// are whole: they move every byte or fail. `offset` and the buffer's length are multiples of
/// [`Geometry::logical_block_bytes`]; the memory address may be anything (a device that needs
/// aligned memory copies through an aligned buffer of its own).
pub trait Device: Send + Sync + fmt::Debug {
    /// What the device is.
    fn geometry(&self) -> &Geometry;

    /// Reads `buf.len()` bytes at `offset`.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()>;

    /// As [`Device::read_at`], past a page cache of this host: what another host wrote to a block device is seen.
    ///
    /// It is that function unless a device has its own. One that wraps a device which may lie behind a page cache passes this on.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a block device that takes no `O_DIRECT`.
    fn read_past_cache_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.read_at(offset, buf)
    }

    /// Writes all of `buf` at `offset`.
    fn write_at(&self, offset: u64, buf: &[u8], durability: Durability) -> Result<()>;

    /// As [`Device::write_at`], durable with a later flush; others see it when what is returned is dropped.
    #[doc(hidden)]
    fn write_streamed_at(&self, offset: u64, buf: &[u8]) -> Result<Streamed> {
        self.write_at(offset, buf, Durability::Cached)?;
        Ok(Streamed::AT_ONCE)
    }

    /// As [`Device::write_at`], but wholly or not at all, whatever happens meanwhile: after a loss of power there is
    /// all of it or nothing. (Whoever reads at the same time may see a part.)
    ///
    /// # Errors
    /// [`Error::Unsupported`] if [`Geometry::atomic`] is `None`; [`Error::NotAtomic`] for what is none of these units.
    /// After an error the range is as it was, or written as a whole.
    fn write_atomic_at(&self, offset: u64, buf: &[u8], durability: Durability) -> Result<()> {
        let _ = durability;
        self.geometry().check_atomic(offset, buf.len() as u64)?;
        Err(Error::Unsupported {
            what: format!("atomic writes on {}", self.describe()),
        })
    }

    /// Makes every write that completed before this call durable.
    fn flush(&self) -> Result<()>;

    /// Tells the device that a range is not needed. Its content is undefined afterwards.
    fn discard(&self, offset: u64, len: u64) -> Result<()>;

    /// Makes a range read as zeros, by the cheapest way the device has.
    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()>;

    /// A queue for one thread's asynchronous operations.
    fn open_queue(&self, options: &QueueOptions) -> Result<Box<dyn Queue>>;

    /// Whether an operation at `offset` is better done a little later, beside others: a read whose bytes the processor fetches
    /// meanwhile, a write that others need not see at once. A hint, of any offset.
    fn defers(&self, kind: OpKind, offset: u64) -> bool {
        let _ = (kind, offset);
        false
    }

    /// The device by its kind, if it has a shorter way than this trait. See [`Lane::of`].
    fn lane(&self) -> Option<Lane> {
        None
    }

    /// The stack of backends in a few words, for reports: `io_uring on vda1`, `sim(mapping)`.
    fn describe(&self) -> String;
}

/// A shared device is a device.
impl<D: Device + ?Sized> Device for Arc<D> {
    fn geometry(&self) -> &Geometry {
        (**self).geometry()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        (**self).read_at(offset, buf)
    }

    fn read_past_cache_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        (**self).read_past_cache_at(offset, buf)
    }

    fn write_at(&self, offset: u64, buf: &[u8], durability: Durability) -> Result<()> {
        (**self).write_at(offset, buf, durability)
    }

    fn write_streamed_at(&self, offset: u64, buf: &[u8]) -> Result<Streamed> {
        (**self).write_streamed_at(offset, buf)
    }

    fn write_atomic_at(&self, offset: u64, buf: &[u8], durability: Durability) -> Result<()> {
        (**self).write_atomic_at(offset, buf, durability)
    }

    fn flush(&self) -> Result<()> {
        (**self).flush()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        (**self).discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        (**self).write_zeroes(offset, len)
    }

    fn open_queue(&self, options: &QueueOptions) -> Result<Box<dyn Queue>> {
        (**self).open_queue(options)
    }

    fn defers(&self, kind: OpKind, offset: u64) -> bool {
        (**self).defers(kind, offset)
    }

    fn lane(&self) -> Option<Lane> {
        (**self).lane()
    }

    fn describe(&self) -> String {
        (**self).describe()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::NullSink;
    use crate::mem::MemDevice;
    use crate::overlay::{OverlayDevice, Redirect};
    use crate::record::RecordDevice;
    use crate::sim::{Fault, FaultKind, FaultOp, SimDevice, SimSpec};
    use std::collections::HashMap;
    use std::time::{Duration, Instant};

    const SIZE: u64 = 16 * 1024;

    /// A device behind a page cache: there each block is full of its number, and on the device itself of 100 more.
    #[derive(Debug)]
    struct Cached(MemDevice);

    impl Cached {
        fn new() -> Arc<Cached> {
            let memory = MemDevice::new(SIZE);
            for block in 0..16 {
                let bytes = [block as u8; 1024];
                let written = memory.write_at(block * 1024, &bytes, Durability::Cached);
                written.expect("a block of the device");
            }
            Arc::new(Cached(memory))
        }
    }

    impl Device for Cached {
        fn geometry(&self) -> &Geometry {
            self.0.geometry()
        }

        fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
            self.0.read_at(offset, buf)
        }

        fn read_past_cache_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
            self.read_at(offset, buf)?;
            buf.iter_mut().for_each(|byte| *byte += 100);
            Ok(())
        }

        fn write_at(&self, offset: u64, buf: &[u8], durability: Durability) -> Result<()> {
            self.0.write_at(offset, buf, durability)
        }

        fn flush(&self) -> Result<()> {
            self.0.flush()
        }

        fn discard(&self, offset: u64, len: u64) -> Result<()> {
            self.0.discard(offset, len)
        }

        fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
            self.0.write_zeroes(offset, len)
        }

        fn open_queue(&self, options: &QueueOptions) -> Result<Box<dyn Queue>> {
            self.0.open_queue(options)
        }

        fn describe(&self) -> String {
            "cached".into()
        }
    }

    /// What the first three blocks begin with: through the cache, and past it.
    fn first_blocks(device: &dyn Device) -> [[u8; 3]; 2] {
        let mut buf = [0; 3 * 1024];
        let firsts = |buf: &[u8]| [buf[0], buf[1024], buf[2048]];
        device.read_at(0, &mut buf).expect("readable");
        let through = firsts(&buf);
        device.read_past_cache_at(0, &mut buf).expect("readable");
        [through, firsts(&buf)]
    }

    #[test]
    fn recorded_device_reads_past_the_cache_below_it() {
        let record = RecordDevice::new(Cached::new());
        assert_eq!(first_blocks(&record), [[0, 1, 2], [100, 101, 102]]);
    }

    #[test]
    fn sink_reads_past_the_cache_below_it() {
        match NullSink::new(Cached::new()) {
            Ok(sink) => assert_eq!(first_blocks(&sink), [[0, 1, 2], [100, 101, 102]]),
            Err(error) => eprintln!("skipped: {error}"),
        }
    }

    #[test]
    fn overlay_reads_past_the_caches_below_it_and_shows_its_own_blocks() {
        let head = Some([7; 4]);
        let redirects = [(1, 12, None), (2, 13, head)];
        let redirects = redirects.map(|(block, to, head)| (block, Redirect { block: to, head }));
        let source = Cached::new();
        let overlay = OverlayDevice::new(Cached::new(), source, 1024, HashMap::from(redirects));
        assert_eq!(first_blocks(&overlay), [[0, 12, 7], [100, 112, 7]]);
        let mut buf = [0; 1024];
        overlay
            .read_past_cache_at(2560, &mut buf)
            .expect("readable");
        assert_eq!((buf[0], buf[512]), (113, 103));
    }

    #[test]
    fn simulated_read_past_the_cache_takes_its_time_and_fails_as_others_do() {
        let spec: SimSpec = "read=20ms".parse().expect("a spec");
        let sim = SimDevice::new(Cached::new(), spec);
        let begun = Instant::now();
        assert_eq!(first_blocks(&sim), [[0, 1, 2], [100, 101, 102]]);
        assert!(begun.elapsed() >= Duration::from_millis(40));
        sim.inject(Fault::once(FaultOp::Read, FaultKind::Io(libc::EIO)));
        let mut buf = [0; 1024];
        let failed = sim.read_past_cache_at(0, &mut buf);
        assert_eq!(failed.map_err(|error| error.errno()), Err(libc::EIO));
        assert_eq!(buf, [0; 1024]);
        sim.inject(Fault::once(FaultOp::Read, FaultKind::Short));
        let failed = sim.read_past_cache_at(0, &mut buf);
        assert_eq!(failed.map_err(|error| error.errno()), Err(libc::EIO));
        assert_eq!((buf[0], buf[512]), (100, 0));
        let outside = sim.read_past_cache_at(SIZE, &mut buf);
        assert!(matches!(outside, Err(Error::OutOfRange { .. })));
    }
}
