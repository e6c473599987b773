//! Faults: which requests fail, and how.

use super::gate::{Gate, Ticket};
use super::pacer::Park;
use crate::{Device, Durability, Error, Result};
use parking_lot::Mutex;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Which requests a fault or a hold concerns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultOp {
    /// Reads.
    Read,
    /// Writes, with or without force unit access, and write-zeroes.
    Write,
    /// Flushes. They have no place, so a fault with a range never meets one.
    Flush,
    /// Discards.
    Discard,
    /// All of these.
    Any,
}

/// What happens to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// It fails with this `errno` and moves nothing.
    Io(i32),
    /// It fails with `ENOSPC` and moves nothing, as on a full thin-provisioned device.
    Enospc,
    /// The first half of its logical blocks is moved, then it fails with `EIO`. Of an atomic write nothing is, here
    /// and below.
    Short,
    /// The first so many bytes are moved, not necessarily whole blocks, then it fails with `EIO`:
    /// a write cut off by a power failure. A read gets the whole blocks among them.
    Torn(u64),
    /// It succeeds, so much later.
    Delay(Duration),
}

/// A fault to inject.
///
/// Of the requests of kind `op` that touch `range`, the first `skip` pass, the next `count` are hit,
/// and the rest pass again. Each piece of a queued request with several counts as a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Which requests.
    pub op: FaultOp,
    /// Bytes on the device; a request that touches one of them is concerned. `None`: wherever it is.
    pub range: Option<Range<u64>>,
    /// How many pass first.
    pub skip: u64,
    /// How many are hit; `u64::MAX` for all.
    pub count: u64,
    /// What happens to them.
    pub what: FaultKind,
}

impl Fault {
    /// Every request of this kind, anywhere, from now on.
    pub fn every(op: FaultOp, what: FaultKind) -> Fault {
        Fault {
            op,
            range: None,
            skip: 0,
            count: u64::MAX,
            what,
        }
    }

    /// The next request of this kind.
    pub fn once(op: FaultOp, what: FaultKind) -> Fault {
        Fault {
            count: 1,
            ..Fault::every(op, what)
        }
    }
}

/// Names an injected fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FaultId(u64);

/// What a request is, for the rules. `op` is never `Any`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Access {
    pub(super) op: FaultOp,
    pub(super) offset: u64,
    pub(super) len: u64,
}

impl Access {
    pub(super) fn new(op: FaultOp, offset: u64, len: u64) -> Access {
        Access { op, offset, len }
    }

    pub(super) fn is(&self, op: FaultOp, range: Option<&Range<u64>>) -> bool {
        let touches = |r: &Range<u64>| self.offset < r.end && r.start < self.offset + self.len;
        (op == FaultOp::Any || op == self.op) && range.is_none_or(touches)
    }
}

/// What the rules say about a request.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Verdict {
    pub(super) failure: Option<FaultKind>,
    pub(super) delay_ns: u64,
}

/// All armed faults and holds of a device.
#[derive(Debug, Default)]
pub(super) struct Rules {
    /// How many there are, so that a request on a device without any takes no lock.
    armed: AtomicUsize,
    list: Mutex<RuleList>,
}

#[derive(Debug, Default)]
struct RuleList {
    next: u64,
    faults: Vec<Armed>,
    gates: Vec<Arc<Gate>>,
}

#[derive(Debug)]
struct Armed {
    id: FaultId,
    fault: Fault,
    seen: u64,
}

impl Armed {
    fn hits(&self) -> u64 {
        self.seen
            .saturating_sub(self.fault.skip)
            .min(self.fault.count)
    }

    /// Counts a request; what happens to it, if it is hit.
    fn meet(&mut self, access: &Access) -> Option<FaultKind> {
        if !access.is(self.fault.op, self.fault.range.as_ref()) {
            return None;
        }
        let before = self.hits();
        self.seen = self.seen.saturating_add(1);
        (self.hits() > before).then_some(self.fault.what)
    }
}

impl Rules {
    fn change<T>(&self, change: impl FnOnce(&mut RuleList) -> T) -> T {
        let mut list = self.list.lock();
        let result = change(&mut list);
        let armed = list.faults.len() + list.gates.len();
        self.armed.store(armed, Ordering::Release);
        result
    }

    fn is_idle(&self) -> bool {
        self.armed.load(Ordering::Acquire) == 0
    }

    pub(super) fn inject(&self, fault: Fault) -> FaultId {
        self.change(|list| {
            let id = FaultId(list.next);
            list.next += 1;
            list.faults.push(Armed { id, fault, seen: 0 });
            id
        })
    }

    pub(super) fn remove(&self, id: FaultId) -> Option<u64> {
        self.change(|list| {
            let at = list.faults.iter().position(|armed| armed.id == id)?;
            Some(list.faults.remove(at).hits())
        })
    }

    pub(super) fn hits(&self, id: FaultId) -> Option<u64> {
        let list = self.list.lock();
        let armed = list.faults.iter().find(|armed| armed.id == id)?;
        Some(armed.hits())
    }

    pub(super) fn add_gate(&self, gate: Arc<Gate>) {
        self.change(|list| list.gates.push(gate));
    }

    pub(super) fn remove_gate(&self, gate: &Arc<Gate>) {
        self.change(|list| list.gates.retain(|other| !Arc::ptr_eq(other, gate)));
    }

    /// Joins every gate that matches. No allocation if none does.
    pub(super) fn join(&self, access: &Access, park: Option<&Arc<Park>>) -> Vec<Ticket> {
        if self.is_idle() {
            return Vec::new();
        }
        let list = self.list.lock();
        let matching = list.gates.iter().filter(|gate| gate.matches(access));
        matching.map(|gate| gate.join(park)).collect()
    }

    /// What happens to a request: delays add up, of failures the first injected counts.
    pub(super) fn judge(&self, access: &Access) -> Verdict {
        let mut verdict = Verdict::default();
        if self.is_idle() {
            return verdict;
        }
        for armed in &mut self.list.lock().faults {
            match armed.meet(access) {
                None => {}
                Some(FaultKind::Delay(delay)) => verdict.delay_ns += delay.as_nanos() as u64,
                Some(failure) => verdict.failure = verdict.failure.or(Some(failure)),
            }
        }
        verdict
    }
}

/// The memory of a request.
#[derive(Debug)]
pub(super) enum Payload<'a> {
    Read(&'a mut [u8]),
    ReadPastCache(&'a mut [u8]),
    Write(&'a [u8], Durability),
    WriteAtomic(&'a [u8], Durability),
    Zeroes,
    Discard,
    Flush,
}

impl Payload<'_> {
    fn name(&self) -> &'static str {
        match self {
            Payload::Read(_) | Payload::ReadPastCache(_) => "read",
            Payload::Write(..) | Payload::WriteAtomic(..) => "write",
            Payload::Zeroes => "write zeroes",
            Payload::Discard => "discard",
            Payload::Flush => "flush",
        }
    }

    fn run(self, device: &dyn Device, offset: u64, len: u64) -> Result<()> {
        match self {
            Payload::Read(buf) => device.read_at(offset, buf),
            Payload::ReadPastCache(buf) => device.read_past_cache_at(offset, buf),
            Payload::Write(buf, durability) => device.write_at(offset, buf, durability),
            Payload::WriteAtomic(buf, durability) => {
                // What is imitated may promise what the wrapped device does not.
                match device.geometry().check_atomic(offset, len) {
                    Ok(()) => device.write_atomic_at(offset, buf, durability),
                    Err(_) => device.write_at(offset, buf, durability),
                }
            }
            Payload::Zeroes => device.write_zeroes(offset, len),
            Payload::Discard => device.discard(offset, len),
            Payload::Flush => device.flush(),
        }
    }
}

/// Moves a request's data, as far as `failure` lets it.
pub(super) fn perform(
    device: &dyn Device,
    access: &Access,
    payload: Payload<'_>,
    failure: Option<FaultKind>,
) -> Result<()> {
    let Some(failure) = failure else {
        return payload.run(device, access.offset, access.len);
    };
    let block = u64::from(device.geometry().logical_block_bytes);
    let (moved, errno) = match failure {
        FaultKind::Io(errno) => (0, errno),
        FaultKind::Enospc => (0, libc::ENOSPC),
        FaultKind::Short => (access.len / block / 2 * block, libc::EIO),
        FaultKind::Torn(bytes) => (bytes.min(access.len), libc::EIO),
        FaultKind::Delay(_) => unreachable!("a delay is no failure"),
    };
    let error = Error::Io {
        op: payload.name(),
        offset: access.offset,
        len: access.len,
        source: io::Error::from_raw_os_error(errno),
    };
    move_first(device, access.offset, payload, moved)?;
    Err(error)
}

/// Moves the first `moved` bytes of a request.
fn move_first(device: &dyn Device, offset: u64, payload: Payload<'_>, moved: u64) -> Result<()> {
    if moved == 0 {
        return Ok(());
    }
    let block = u64::from(device.geometry().logical_block_bytes);
    let whole = moved / block * block;
    match payload {
        Payload::Read(buf) => device.read_at(offset, &mut buf[..whole as usize]),
        Payload::ReadPastCache(buf) => {
            device.read_past_cache_at(offset, &mut buf[..whole as usize])
        }
        Payload::Write(buf, durability) => {
            device.write_at(offset, &buf[..whole as usize], durability)?;
            let rest = &buf[whole as usize..moved as usize];
            tear_block(device, offset + whole, rest, durability)
        }
        Payload::Zeroes => {
            device.write_zeroes(offset, whole)?;
            let rest = vec![0; (moved - whole) as usize];
            tear_block(device, offset + whole, &rest, Durability::Cached)
        }
        Payload::WriteAtomic(..) | Payload::Discard | Payload::Flush => Ok(()),
    }
}

/// Overwrites the beginning of a logical block.
fn tear_block(device: &dyn Device, offset: u64, new: &[u8], durability: Durability) -> Result<()> {
    if new.is_empty() {
        return Ok(());
    }
    let mut block = vec![0; device.geometry().logical_block_bytes as usize];
    device.read_at(offset, &mut block)?;
    block[..new.len()].copy_from_slice(new);
    device.write_at(offset, &block, durability)
}
