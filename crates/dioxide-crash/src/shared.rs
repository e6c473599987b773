//! One file that several threads write: what it may be after a crash.
//!
//! There is no order of states here, since nobody knows which of two calls that overlap came first. What is asked is asked of each
//! sector: it holds what one of the calls wrote there that had begun, or what was there before. A call that is promised (it is
//! durable by itself, or a sync that began after its end has returned) rules out what was there before it: the contents that the
//! file began with, and what calls wrote that had ended before it began. The file reaches as far as what is promised, and no further
//! than what was begun. A sector behind the old end is zeros only where somebody wrote behind it without waiting for it.
//!
//! All offsets and lengths are multiples of a sector, so that no sector is of two calls; and no thread makes the file
//! shorter. Where an append went is found in the file when all threads are done, so nothing else may be written there.

use crate::content;
use crate::model::SECTOR;
use crate::op::{Durable, FileNo, Op};
use crate::oracle::Times;
use crate::run::Lane;
use crate::target::Seen;
use std::ops::Range;

/// The file that threads have in common, if they have one.
pub(crate) fn common_file(lanes: &[Vec<Op>]) -> Option<FileNo> {
    let [one, another, ..] = lanes else {
        return None;
    };
    let file = one.iter().find_map(Op::file)?;
    let has = another.iter().any(|op| op.file() == Some(file));
    has.then_some(file)
}

/// What the contents of a write name as their operation: the thread's number in thousands, and the operation's among its own.
fn id(thread: usize, number: usize) -> u32 {
    thread as u32 * 1000 + number as u32
}

/// What operation `number` of a thread writes, from 1 on.
pub(crate) fn data_of(thread: usize, number: usize, op: &Op) -> Vec<u8> {
    let data = |file, start, len| content::data(file, id(thread, number), start, len);
    match *op {
        Op::Write {
            file, offset, len, ..
        }
        | Op::WriteQueued {
            file, offset, len, ..
        } => data(file, offset, len),
        // Nobody knows yet where it goes.
        Op::Append { file, len, .. } => data(file, 0, len),
        _ => Vec::new(),
    }
}

/// The file, and what was done to it.
#[derive(Clone, Debug)]
pub(crate) struct Shared {
    pub(crate) file: FileNo,
    before: Vec<u8>,
    /// By thread and operation: where it wrote, if it did.
    ranges: Vec<Vec<Option<Range<u64>>>>,
}

/// A call, with the number of its thread and its own.
#[derive(Clone, Copy, Debug)]
struct Call {
    thread: usize,
    number: usize,
    times: Times,
}

impl Call {
    /// Whether it had returned when the other one was made. Two threads that tell the same time may have done so in any order.
    fn is_before(&self, other: &Call) -> bool {
        match self.thread == other.thread {
            true => self.number < other.number,
            false => self.times.acknowledged < other.times.began,
        }
    }
}

/// A write that was begun.
#[derive(Clone, Debug)]
struct Write {
    call: Call,
    range: Range<u64>,
    is_append: bool,
    is_promised: bool,
}

impl Write {
    fn shows(&self, file: FileNo, at: u64, found: &[u8]) -> bool {
        let id = id(self.call.thread, self.call.number);
        let origin = if self.is_append { self.range.start } else { 0 };
        content::data(file, id, at - origin, found.len() as u64) == found
    }

    fn is_over(&self, at: u64) -> bool {
        self.range.contains(&at)
    }
}

/// What the file may be at a time.
#[derive(Clone, Debug)]
pub(crate) struct Promised {
    file: FileNo,
    before: Vec<u8>,
    writes: Vec<Write>,
}

impl Shared {
    /// A file of these contents before the threads began, and those after they were done.
    ///
    /// # Errors
    /// An append is nowhere.
    pub(crate) fn new(
        file: FileNo,
        before: Vec<u8>,
        after: &[u8],
        lanes: &[Lane],
    ) -> Result<Shared, String> {
        let range = |(thread, number, op): (usize, usize, &Op)| match *op {
            Op::Write { offset, len, .. } | Op::WriteQueued { offset, len, .. } => {
                Ok(Some(offset..offset + len))
            }
            Op::Append { len, .. } => {
                let data = data_of(thread, number, op);
                let first = &data[..SECTOR as usize];
                let mut sectors = after.chunks(SECTOR as usize);
                let at = sectors.position(|sector| sector == first);
                let at = at.ok_or_else(|| format!("thread {thread}: {op} is nowhere"))?;
                let start = at as u64 * SECTOR;
                Ok(Some(start..start + len))
            }
            _ => Ok(None),
        };
        let ranges = lanes.iter().enumerate().map(|(thread, lane)| {
            let ops = (1..).zip(lane.model.ops());
            ops.map(|(number, op)| range((thread, number, op)))
                .collect()
        });
        Ok(Shared {
            file,
            before,
            ranges: ranges.collect::<Result<_, String>>()?,
        })
    }

    /// What is promised at `time`, and what was begun by then.
    pub(crate) fn at(&self, lanes: &[Lane], time: u64) -> Promised {
        let calls = lanes.iter().enumerate().flat_map(|(thread, lane)| {
            let calls = lane.model.ops().iter().zip(&lane.times);
            (1..).zip(calls).map(move |(number, (op, &times))| {
                let call = Call {
                    thread,
                    number,
                    times,
                };
                (call, op)
            })
        });
        let calls: Vec<(Call, &Op)> = calls.collect();
        let has_returned = |call: &Call| call.times.acknowledged <= time;
        let is_sync = |op: &Op| matches!(op, Op::Fsync { .. } | Op::Fdatasync { .. } | Op::Sync);
        let synced = |call: &Call| {
            let mut syncs = calls.iter().filter(|(_, op)| is_sync(op));
            syncs.any(|(sync, _)| has_returned(sync) && call.is_before(sync))
        };
        let write = |&(call, op): &(Call, &Op)| {
            // What is added behind a thread's own operations is no write.
            let range = self.ranges[call.thread].get(call.number - 1)?.clone()?;
            let is_durable = durable(op) != Durable::No;
            let is_promised = has_returned(&call) && (is_durable || synced(&call));
            let is_begun = call.times.began < time || is_promised;
            is_begun.then_some(Write {
                call,
                range,
                is_append: matches!(op, Op::Append { .. }),
                is_promised,
            })
        };
        Promised {
            file: self.file,
            before: self.before.clone(),
            writes: calls.iter().filter_map(write).collect(),
        }
    }
}

fn durable(op: &Op) -> Durable {
    match *op {
        Op::Write { durable, .. }
        | Op::WriteQueued { durable, .. }
        | Op::Append { durable, .. } => durable,
        _ => Durable::No,
    }
}

impl Promised {
    /// Checks what was found.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub(crate) fn check(&self, name: &str, seen: &Seen) -> Result<(), String> {
        if seen.is_gone {
            return Err(format!("{name} is gone"));
        }
        let (size, old) = (seen.data.len() as u64, self.before.len() as u64);
        let end = |writes: &mut dyn Iterator<Item = &Write>| {
            writes.map(|write| write.range.end).max().unwrap_or(0)
        };
        let least = end(&mut self.writes.iter().filter(|write| write.is_promised)).max(old);
        let most = end(&mut self.writes.iter()).max(old);
        if !(least..=most).contains(&size) {
            return Err(format!("{name}: size {size}, not {least} to {most}"));
        }
        let sectors = (0..).step_by(SECTOR as usize);
        for (at, found) in sectors.zip(seen.data.chunks(SECTOR as usize)) {
            self.check_sector(at, found)
                .map_err(|what| format!("{name}: {what}"))?;
        }
        Ok(())
    }

    fn check_sector(&self, at: u64, found: &[u8]) -> Result<(), String> {
        let here: Vec<&Write> = self.writes.iter().filter(|it| it.is_over(at)).collect();
        let promised = || here.iter().filter(|write| write.is_promised);
        let is_outdated = |write: &Write| promised().any(|it| write.call.is_before(&it.call));
        let is_promised = promised().next().is_some();
        if !is_promised && self.may_be_as_before(at, &here) && self.was(at, found.len()) == found {
            return Ok(());
        }
        let mut shown = here
            .iter()
            .filter(|write| write.shows(self.file, at, found));
        let (sector, is) = (at / SECTOR, content::explain(found));
        match shown.next() {
            Some(write) if is_outdated(write) => Err(format!(
                "sector {sector} has {is}, which is older than what is promised"
            )),
            Some(_) => Ok(()),
            None if is_promised => Err(format!(
                "sector {sector} has {is}, not what is promised or newer"
            )),
            None => Err(format!(
                "sector {sector} has {is}, which nobody wrote there"
            )),
        }
    }

    /// Behind the old end there is a hole where somebody wrote behind it, unless that came after a write to here, as appends do.
    fn may_be_as_before(&self, at: u64, here: &[&Write]) -> bool {
        let is_after = |write: &Write| here.iter().any(|it| it.call.is_before(&write.call));
        let leaves_hole =
            |write: &Write| write.range.start > at && !write.is_append && !is_after(write);
        at < self.before.len() as u64 || self.writes.iter().any(leaves_hole)
    }

    fn was(&self, at: u64, len: usize) -> Vec<u8> {
        let old = self.before.get(at as usize..).unwrap_or(&[]);
        let mut bytes = old[..len.min(old.len())].to_vec();
        bytes.resize(len, 0);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{FileSpec, Model, Units};

    const FILE: FileNo = 0;

    /// A thread that did this, each at its times.
    fn lane(ops: &[(Op, u64, u64)]) -> Lane {
        let units = Units {
            block_bytes: 4096,
            cluster_bytes: 4096,
            inline_bytes: 0,
        };
        let spec = FileSpec {
            name: "f".into(),
            size: 0,
            data: Vec::new(),
            unwritten: Vec::new(),
        };
        let mut model = Model::new(units, &[spec], &[(0o600, 0)]);
        ops.iter().for_each(|(op, ..)| model.push(op.clone()));
        let times = |&(_, began, acknowledged): &(Op, u64, u64)| Times {
            began,
            acknowledged,
        };
        Lane {
            model,
            times: ops.iter().map(times).collect(),
        }
    }

    fn write(sector: u64, sectors: u64, durable: Durable) -> Op {
        Op::Write {
            file: FILE,
            offset: sector * SECTOR,
            len: sectors * SECTOR,
            durable,
        }
    }

    fn append() -> Op {
        Op::Append {
            file: FILE,
            len: SECTOR,
            durable: Durable::No,
        }
    }

    /// A sector by who wrote it: nobody (0), or thread and operation; an append's first sector counts from 0.
    fn sectors(of: &[(usize, usize, u64)]) -> Vec<u8> {
        let sector = |&(thread, number, at): &(usize, usize, u64)| match number {
            0 => vec![0; SECTOR as usize],
            _ => content::data(FILE, id(thread, number), at * SECTOR, SECTOR),
        };
        of.iter().flat_map(sector).collect()
    }

    const NOBODY: (usize, usize, u64) = (0, 0, 0);

    /// What is said of a file of `before` empty sectors that looks so at `time`.
    fn check(
        before: usize,
        lanes: &[Lane],
        after: &[u8],
        time: u64,
        found: &[(usize, usize, u64)],
    ) -> Result<(), String> {
        let before = vec![0; before * SECTOR as usize];
        let shared = Shared::new(FILE, before, after, lanes)?;
        let seen = Seen {
            data: sectors(found),
            ..Seen::default()
        };
        shared.at(lanes, time).check("f", &seen)
    }

    #[test]
    fn dsync_write_is_there_and_one_beside_it_may_be_in_its_place() {
        let lanes = [
            lane(&[
                (write(0, 1, Durable::No), 1, 3),
                (write(0, 1, Durable::Data), 4, 6),
            ]),
            lane(&[(write(0, 1, Durable::No), 5, 9)]),
        ];
        let (old, new, beside) = ((0, 1, 0), (0, 2, 0), (1, 1, 0));
        let is = |time, found| check(1, &lanes, &[], time, &[found]);
        for found in [NOBODY, old, new, beside] {
            assert_eq!(is(6, found).is_ok(), [new, beside].contains(&found));
            // It had not returned.
            assert!(is(5, found).is_ok() == (found != beside), "{found:?}");
        }
        assert!(is(4, new).is_err(), "it had not begun");
        assert!(is(6, (1, 1, 1)).is_err(), "it is of another place");
    }

    #[test]
    fn sync_of_one_thread_covers_what_had_returned_to_another() {
        let lanes = |began| {
            [
                lane(&[(write(0, 1, Durable::No), 1, 3)]),
                lane(&[(Op::Fdatasync { file: FILE }, began, 9)]),
            ]
        };
        let is = |began, time| check(1, &lanes(began), &[], time, &[NOBODY]);
        assert!(is(4, 9).is_err());
        assert!(is(4, 8).is_ok(), "it had not returned");
        assert!(is(3, 9).is_ok(), "nobody knows which came first");
    }

    #[test]
    fn file_is_as_long_as_promised_and_has_no_hole_but_before_what_did_not_wait() {
        let lanes = [
            lane(&[(write(0, 1, Durable::No), 1, 4)]),
            lane(&[
                (write(1, 1, Durable::No), 3, 5),
                (write(2, 1, Durable::Data), 6, 9),
            ]),
        ];
        let is = |time, found: &[_]| check(0, &lanes, &[], time, found);
        let [first, second, third] = [(0, 1, 0), (1, 1, 1), (1, 2, 2)];
        assert!(is(5, &[]).is_ok() && is(5, &[first]).is_ok());
        assert!(
            is(5, &[NOBODY, second]).is_ok(),
            "they were under way together"
        );
        assert!(is(5, &[first, NOBODY]).is_err(), "nobody wrote behind it");
        assert!(is(8, &[first, NOBODY, third]).is_err(), "that came later");
        assert!(is(8, &[first, second]).is_ok());
        assert!(is(9, &[first, second]).is_err(), "it is too short");
        assert!(is(5, &[first, second, third]).is_err(), "it is too long");
    }

    #[test]
    fn append_is_found_where_it_went_and_leaves_no_hole() {
        let lanes = [lane(&[(append(), 1, 4)]), lane(&[(append(), 2, 7)])];
        let [second, first] = [(0, 1, 0), (1, 1, 0)];
        let after = sectors(&[first, second]);
        let is = |found: &[_]| check(0, &lanes, &after, 5, found);
        assert!(is(&[first, second]).is_ok() && is(&[first]).is_ok());
        assert!(is(&[NOBODY, second]).is_err());
        assert!(is(&[second]).is_err(), "it went elsewhere");
        assert!(check(0, &lanes, &sectors(&[first]), 5, &[]).is_err());
    }
}
