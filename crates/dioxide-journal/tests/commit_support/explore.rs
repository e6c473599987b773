//! Crash states of a recorded run, and what must be true of each.

use super::reader::{self, Seen};
use super::workload::{Event, Mark, What, data};
use super::{BLOCK, DEVICE_BYTES, HOME, MARKS, Rng, content, log_map, version_of};
use dioxide_block::mem::MemDevice;
use dioxide_block::record::{Action, Entry, Log};
use dioxide_block::{Device, Durability};
use dioxide_journal::recovery::{FileSystem, Recovered, Recovery};
use dioxide_journal::transaction::Tid;
use std::collections::HashMap;
use std::sync::Arc;

/// Recovers an image in place.
pub type Recover<'a> = &'a dyn Fn(&mut [u8]) -> Result<Seen, String>;

/// The run, to be judged by.
pub struct Model {
    /// Of each block, in their order.
    by_block: Vec<Vec<Event>>,
    /// Transaction of each version of block 0.
    tid_of: HashMap<u64, Tid>,
}

impl Model {
    pub fn new(mut events: Vec<Event>) -> Model {
        events.sort_by_key(|event| event.version);
        let mut by_block = vec![Vec::new(); HOME as usize];
        for event in &events {
            by_block[event.block as usize].push(*event);
        }
        for events in &by_block {
            let in_order = events.is_sorted_by_key(|event| event.tid);
            assert!(in_order, "a later version is in an earlier transaction");
        }
        let of_zero = events.iter().filter(|event| event.block == 0);
        Model {
            tid_of: of_zero.map(|event| (event.version, event.tid)).collect(),
            by_block,
        }
    }

    /// The last thing that happened to a block up to a transaction.
    fn last(&self, block: u64, upto: Tid) -> Option<&Event> {
        let events = &self.by_block[block as usize];
        let count = events.partition_point(|event| event.tid <= upto);
        events[..count].last()
    }
}

/// What is known to be durable at a crash.
#[derive(Clone, Default)]
struct Durable {
    acknowledged: Tid,
    /// By block and the version that freed it.
    data: HashMap<(u64, u64), u64>,
}

impl Durable {
    fn learn(&mut self, mark: Mark) {
        match mark {
            Mark::Acknowledged(tid) => self.acknowledged = self.acknowledged.max(tid),
            Mark::Data {
                block,
                freed,
                value,
            } => drop(self.data.insert((block, freed), value)),
        }
    }
}

/// Checks a recovered image.
fn judge(image: &[u8], model: &Model, durable: &Durable) -> Result<(), String> {
    let bytes = |block: u64| &image[block as usize * BLOCK..][..BLOCK];
    let version = version_of(bytes(0));
    let upto = match version {
        0 => Tid(0),
        _ => *model
            .tid_of
            .get(&version)
            .ok_or(format!("block 0 has version {version}, which nobody wrote"))?,
    };
    if upto < durable.acknowledged {
        let acknowledged = durable.acknowledged;
        return Err(format!("state of {upto}, but {acknowledged} was durable"));
    }
    for block in 0..HOME {
        let wanted = match model.last(block, upto) {
            None => content(block, 0),
            Some(event) if event.what == What::Metadata => content(block, event.version),
            Some(event) => match durable.data.get(&(block, event.version)) {
                None => continue,
                Some(&value) => data(value),
            },
        };
        if bytes(block) != wanted {
            let event = model.last(block, upto);
            let found = version_of(bytes(block));
            return Err(format!(
                "block {block} after transaction {upto}: version {found}, not {event:?}"
            ));
        }
    }
    Ok(())
}

/// Figures of an exploration.
#[derive(Clone, Copy, Debug, Default)]
pub struct Explored {
    pub states: u64,
    pub flushes: u64,
    pub seen: Seen,
}

fn apply(entry: &Entry, image: &mut [u8], sectors: impl Fn(usize) -> bool) {
    if let Action::Write { offset, bytes, .. } = &entry.action {
        for (index, sector) in bytes.chunks(512).enumerate() {
            if sectors(index) {
                let at = *offset as usize + index * 512;
                image[at..at + sector.len()].copy_from_slice(sector);
            }
        }
    }
}

fn is_fua(entry: &Entry) -> bool {
    matches!(&entry.action, Action::Write { fua: true, .. })
}

fn mark_of(entry: &Entry) -> Option<Mark> {
    match &entry.action {
        Action::Write { offset, bytes, .. } if *offset == MARKS * BLOCK as u64 => {
            Some(Mark::decode(bytes))
        }
        _ => None,
    }
}

/// What may be on the media when the power fails after `done`, while `next` is on its way.
fn loses(base: &[u8], done: &[Entry], next: Option<&Entry>, rng: &mut Rng) -> Vec<u8> {
    let mut image = base.to_vec();
    let keeps = [5, 50, 95][rng.below(3) as usize];
    for entry in done {
        let salt = rng.next();
        let torn = |index: usize| (salt >> (index % 64)) & 1 == 0;
        match (is_fua(entry), rng.below(100)) {
            (true, _) => apply(entry, &mut image, |_| true),
            (_, 0..20) => apply(entry, &mut image, torn),
            (_, roll) if (roll - 20) * 100 < keeps * 80 => apply(entry, &mut image, |_| true),
            _ => {}
        }
    }
    if let Some(next) = next {
        let cut = rng.below(4) as usize;
        apply(next, &mut image, |index| index < cut);
    }
    image
}

/// Explores every prefix of the log, and `losses` random losses at each of its writes.
pub fn explore(
    base: &[u8],
    log: &Log,
    model: &Model,
    losses: u64,
    rng: &mut Rng,
    recover: Recover<'_>,
) -> Result<Explored, String> {
    let mut explored = Explored::default();
    let mut durable = Durable::default();
    let mut flushed = base.to_vec();
    for epoch in log.epochs() {
        let mut written = flushed.clone();
        for count in 0..=epoch.changes.len() {
            let (done, rest) = epoch.changes.split_at(count);
            if let Some(last) = done.last() {
                assert!(last.completed.is_some(), "everything completed");
                apply(last, &mut written, |_| true);
                mark_of(last)
                    .into_iter()
                    .for_each(|mark| durable.learn(mark));
            }
            let mut check = |mut image: Vec<u8>| -> Result<(), String> {
                explored.states += 1;
                explored.seen.add(&recover(&mut image)?);
                judge(&image, model, &durable)
            };
            check(written.clone())?;
            for _ in 0..losses {
                check(loses(&flushed, done, rest.first(), rng))?;
            }
        }
        flushed = written;
        explored.flushes += u64::from(epoch.flush.is_some());
    }
    Ok(explored)
}

/// Recovers with the independent reader.
pub fn by_reader(image: &mut [u8]) -> Result<Seen, String> {
    reader::replay(image)
}

/// Recovers with the independent reader and with this crate, which must agree.
pub fn by_both(image: &mut [u8]) -> Result<Seen, String> {
    let device = MemDevice::new(DEVICE_BYTES);
    let moved = |e: dioxide_block::Error| e.to_string();
    device
        .write_at(0, image, Durability::Cached)
        .map_err(moved)?;
    let seen = reader::replay(image)?;
    let recovered = recover(Arc::new(device.clone())).map_err(|e| e.to_string())?;
    let mut other = vec![0; DEVICE_BYTES as usize];
    device.read_at(0, &mut other).map_err(moved)?;
    let home = HOME as usize * BLOCK;
    match image[..home] == other[..home] {
        true => Ok(seen),
        false => Err(format!(
            "the reader found {seen:?}, the crate {recovered:?}"
        )),
    }
}

fn recover(device: Arc<dyn Device>) -> dioxide_journal::Result<Recovered> {
    let log = dioxide_journal::log::Log::new(device.clone(), log_map(), BLOCK);
    let file_system = FileSystem {
        blocks: DEVICE_BYTES / BLOCK as u64,
        device_blocks: DEVICE_BYTES / BLOCK as u64,
        inode_bytes: 256,
    };
    let recovery = Recovery::plan(&log, file_system)?;
    recovery.replay(&*device)?;
    recovery.reset()
}
