//! Devices that lie, and engines that are broken, to see whether the explorer notices.
//!
//! A [`FaultyDevice`] shows whoever uses it a device that works: reads give what was written. What it passes on, to
//! the device that is recorded and so to the crash states, is something else. A [`Mutant`] changes what was recorded.

use crate::mutant::Mutant;
use dioxide::block::inline::InlineQueue;
use dioxide::block::record::states::{Cache, CowDevice, Snapshot};
use dioxide::block::{Device, Durability, Geometry, Queue, QueueOptions, Result};
use parking_lot::Mutex;
use std::str::FromStr;
use std::sync::Arc;

/// How a device lies, or what is broken in the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Flushes do nothing.
    NoFlush,
    /// Every second flush does nothing.
    EverySecondFlush,
    /// Force unit access is forgotten.
    NoFua,
    /// The last write before a flush comes after it.
    LatePastFlush,
    /// Every so many writes, one never happens.
    LostWrite(u32),
    /// Every so many writes, one lacks its last sector.
    ShortWrite(u32),
    /// Every so many writes, one goes to the next block of 4096 bytes.
    Misplaced(u32),
    /// What is to be atomic is written as two halves.
    SplitAtomic,
    /// The device is right, the engine is not.
    Engine(Mutant),
}

impl Fault {
    /// One of each kind, by name.
    pub const ALL: [(&str, Fault); 14] = [
        ("no-flush", Fault::NoFlush),
        ("second-flush", Fault::EverySecondFlush),
        ("no-fua", Fault::NoFua),
        ("late", Fault::LatePastFlush),
        ("lost", Fault::LostWrite(7)),
        ("short", Fault::ShortWrite(7)),
        ("misplaced", Fault::Misplaced(7)),
        ("split-atomic", Fault::SplitAtomic),
        ("data-late", Fault::Engine(Mutant::ConvertBeforeData)),
        ("orphan-skipped", Fault::Engine(Mutant::OrphanSkipped)),
        ("size-early", Fault::Engine(Mutant::SizeEarly)),
        ("revoke-ignored", Fault::Engine(Mutant::RevokeIgnored)),
        ("stale-checksum", Fault::Engine(Mutant::ChecksumStale)),
        ("free-early", Fault::Engine(Mutant::FreeBeforeCommit)),
    ];
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(name: &str) -> std::result::Result<Fault, String> {
        let found = Fault::ALL.into_iter().find(|(known, _)| *known == name);
        found.map(|(_, fault)| fault).ok_or_else(|| {
            let names = Fault::ALL.map(|(name, _)| name).join(", ");
            format!("no fault {name:?}: there are {names}")
        })
    }
}

/// See the module header. Clones share everything.
#[derive(Clone, Debug)]
pub struct FaultyDevice(Arc<Faulty>);

#[derive(Debug)]
struct Faulty {
    fault: Fault,
    inner: Arc<dyn Device>,
    /// What the user believes.
    shown: CowDevice,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    writes: u32,
    flushes: u32,
    /// The last write that is in the cache only.
    late: Option<(u64, Vec<u8>)>,
}

impl FaultyDevice {
    /// Lies about `inner`, whose contents are `base`.
    pub fn new(fault: Fault, inner: Arc<dyn Device>, base: &Snapshot) -> FaultyDevice {
        let cache = match inner.geometry().fua {
            true => Cache::Volatile,
            false => Cache::NoFua,
        };
        FaultyDevice(Arc::new(Faulty {
            fault,
            shown: CowDevice::new(base, cache),
            inner,
            state: Mutex::default(),
        }))
    }
}

impl Faulty {
    fn pass_on(&self, offset: u64, buf: &[u8], durability: Durability) -> Result<()> {
        let mut state = self.state.lock();
        state.writes += 1;
        let turn = |every: u32| state.writes.is_multiple_of(every);
        match self.fault {
            Fault::NoFua => self.inner.write_at(offset, buf, Durability::Cached),
            Fault::LostWrite(every) if turn(every) => Ok(()),
            Fault::ShortWrite(every) if turn(every) => {
                let short = buf.len() - 512.min(buf.len());
                match short {
                    0 => Ok(()),
                    _ => self.inner.write_at(offset, &buf[..short], durability),
                }
            }
            Fault::Misplaced(every) if turn(every) => {
                let end = self.inner.geometry().size_bytes - buf.len() as u64;
                self.inner
                    .write_at((offset + 4096).min(end), buf, durability)
            }
            Fault::LatePastFlush => {
                if let Some((offset, buf)) = state.late.take() {
                    self.inner.write_at(offset, &buf, Durability::Cached)?;
                }
                match durability {
                    Durability::Cached => state.late = Some((offset, buf.to_vec())),
                    // That it is durable at once is no part of this fault.
                    _ => self.inner.write_at(offset, buf, durability)?,
                }
                Ok(())
            }
            _ => self.inner.write_at(offset, buf, durability),
        }
    }
}

impl Device for FaultyDevice {
    fn geometry(&self) -> &Geometry {
        self.0.inner.geometry()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.0.shown.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, buf: &[u8], durability: Durability) -> Result<()> {
        self.0.shown.write_at(offset, buf, durability)?;
        self.0.pass_on(offset, buf, durability)
    }

    fn write_atomic_at(&self, offset: u64, buf: &[u8], durability: Durability) -> Result<()> {
        self.0.shown.write_at(offset, buf, durability)?;
        let Faulty { fault, inner, .. } = &*self.0;
        if *fault != Fault::SplitAtomic {
            return inner.write_atomic_at(offset, buf, durability);
        }
        let (first, second) = buf.split_at(buf.len() / 2);
        inner.write_at(offset, first, durability)?;
        inner.write_at(offset + first.len() as u64, second, durability)
    }

    fn flush(&self) -> Result<()> {
        let mut state = self.0.state.lock();
        state.flushes += 1;
        match self.0.fault {
            Fault::NoFlush => Ok(()),
            Fault::EverySecondFlush if state.flushes.is_multiple_of(2) => Ok(()),
            _ => self.0.inner.flush(),
        }
    }

    fn discard(&self, offset: u64, len: u64) -> Result<()> {
        self.0.shown.discard(offset, len)?;
        self.0.inner.discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<()> {
        self.0.shown.write_zeroes(offset, len)?;
        self.0.inner.write_zeroes(offset, len)
    }

    fn open_queue(&self, options: &QueueOptions) -> Result<Box<dyn Queue>> {
        Ok(Box::new(InlineQueue::new(self.clone(), options)))
    }

    fn describe(&self) -> String {
        format!("faulty({:?}, {})", self.0.fault, self.0.inner.describe())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dioxide::block::record::{Action, RecordDevice};

    #[test]
    fn write_that_is_late_leaves_forced_writes_and_the_order_as_they_are() {
        let base = Snapshot::new(&[0; 1 << 16]);
        let record = RecordDevice::new(Arc::new(CowDevice::new(&base, Cache::Volatile)));
        let inner = Arc::new(record.clone());
        let device = FaultyDevice::new(Fault::LatePastFlush, inner, &base);
        let write = |block: u64, durability| {
            let written = device.write_at(block * 4096, &[1; 512], durability);
            written.expect("there is room");
        };
        write(1, Durability::Cached);
        write(2, Durability::Cached);
        write(3, Durability::ForceUnitAccess);
        write(4, Durability::Cached);
        device.flush().expect("a flush");
        write(5, Durability::ForceUnitAccess);
        let log = record.take_log();
        let passed = log.entries().iter().map(|entry| match entry.action {
            Action::Write { offset, fua, .. } => (offset / 4096, fua),
            _ => (0, false),
        });
        let flush = (0, false);
        let right = [
            (1, false),
            (2, false),
            (3, true),
            flush,
            (4, false),
            (5, true),
        ];
        assert_eq!(passed.collect::<Vec<_>>(), right);
    }
}
