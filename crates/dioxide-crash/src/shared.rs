//! One file that several threads write: what it may be after a crash.
//!
//! There is no order of states here, since nobody knows which of two calls that overlap came first. What is asked is asked of each
//! sector: it holds what one of the calls wrote there that had begun, or what was there before. A call that is promised (it is
//! durable by itself, or a sync that began after its end has returned) rules out what was there before it: the contents that the
//! file began with, and what calls wrote that had ended before it began. The file reaches as far as what is promised, and no further
//! than what was begun. A sector behind the old end is zeros only where somebody wrote behind it without waiting for it.
//! Who makes a range zeros, or cuts the file there, writes zeros; and who cuts it rules out sizes as well.
//!
//! All offsets and lengths are multiples of a sector, so that no sector is of two calls. What one thread pushes together is under way
//! together, as what several do. Where an append went is found in the file when all threads are done, so nothing else may be
//! written there, and where there are appends no thread makes the file shorter.

use crate::content;
use crate::model::SECTOR;
use crate::op::{Durable, FileNo, Mode, Op};
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
        Op::Append { file, len, .. } | Op::AppendQueued { file, len, .. } => data(file, 0, len),
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
            true => {
                // Of those that were pushed together each had begun before any returned.
                self.number < other.number && self.times.acknowledged <= other.times.began
            }
            false => self.times.acknowledged < other.times.began,
        }
    }
}

/// What a call makes of its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Makes {
    /// What the call's place in the file says.
    Data,
    /// What the call's own first byte says.
    Appended,
    /// Zeros; the size stays.
    Zeros,
    /// Zeros from the new end on; up to there, what was there.
    End,
}

/// A write that was begun.
#[derive(Clone, Debug)]
struct Write {
    call: Call,
    range: Range<u64>,
    makes: Makes,
    is_promised: bool,
}

impl Write {
    /// How long the file is by it.
    fn end(&self) -> u64 {
        match self.makes {
            Makes::Data | Makes::Appended => self.range.end,
            Makes::Zeros => 0,
            Makes::End => self.range.start,
        }
    }

    fn is_append(&self) -> bool {
        self.makes == Makes::Appended
    }

    fn shows(&self, file: FileNo, at: u64, found: &[u8]) -> bool {
        if matches!(self.makes, Makes::Zeros | Makes::End) {
            return found.iter().all(|&byte| byte == 0);
        }
        let id = id(self.call.thread, self.call.number);
        let origin = if self.is_append() {
            self.range.start
        } else {
            0
        };
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
            Op::SetLen { len, .. } => Ok(Some(len..u64::MAX)),
            Op::Allocate {
                mode: Mode::PunchHole | Mode::ZeroRangeKeepSize,
                offset,
                len,
                ..
            } => Ok(Some(offset..offset + len)),
            Op::Append { len, .. } | Op::AppendQueued { len, .. } => {
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
        let is_sync = |op: &Op| {
            matches!(
                op,
                Op::Fsync { .. }
                    | Op::Fdatasync { .. }
                    | Op::FsyncQueued { .. }
                    | Op::FdatasyncQueued { .. }
                    | Op::Sync
            )
        };
        let synced = |call: &Call| {
            let mut syncs = calls.iter().filter(|(_, op)| is_sync(op));
            syncs.any(|(sync, _)| has_returned(sync) && call.is_before(sync))
        };
        let write = |&(call, op): &(Call, &Op)| {
            // What is added behind a thread's own operations is no write.
            let range = self.ranges[call.thread].get(call.number - 1)?.clone()?;
            let is_durable = op.durable() != Durable::No;
            let is_promised = has_returned(&call) && (is_durable || synced(&call));
            let is_begun = call.times.began < time || is_promised;
            is_begun.then_some(Write {
                call,
                range,
                makes: match op {
                    Op::Append { .. } | Op::AppendQueued { .. } => Makes::Appended,
                    Op::SetLen { .. } => Makes::End,
                    Op::Allocate { .. } => Makes::Zeros,
                    _ => Makes::Data,
                },
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

impl Promised {
    /// Checks what was found.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub(crate) fn check(&self, name: &str, seen: &Seen) -> Result<(), String> {
        if seen.is_gone {
            return Err(format!("{name} is gone"));
        }
        let size = seen.data.len() as u64;
        let (least, most) = self.sizes();
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

    /// The least and the largest size.
    fn sizes(&self) -> (u64, u64) {
        let old = self.before.len() as u64;
        // What is left of an end by those who cut the file there.
        let cut = |end: u64, cuts: &dyn Fn(&Write) -> bool| {
            let cuts = self
                .writes
                .iter()
                .filter(|it| it.makes == Makes::End && cuts(it));
            cuts.map(|it| it.range.start).fold(end, u64::min)
        };
        let (mut least, mut most) = (cut(old, &|_| true), cut(old, &|it| it.is_promised));
        for write in &self.writes {
            let is_later = |it: &Write| write.call.is_before(&it.call) && it.is_promised;
            most = most.max(cut(write.end(), &is_later));
            if write.is_promised {
                let is_no_earlier = |it: &Write| !it.call.is_before(&write.call);
                least = least.max(cut(write.end(), &is_no_earlier));
            }
        }
        (least, most)
    }

    fn check_sector(&self, at: u64, found: &[u8]) -> Result<(), String> {
        let here: Vec<&Write> = self.writes.iter().filter(|it| it.is_over(at)).collect();
        let promised = || here.iter().filter(|write| write.is_promised);
        let is_outdated = |write: &Write| promised().any(|it| write.call.is_before(&it.call));
        let is_promised = promised().next().is_some();
        if !is_promised && self.may_be_as_before(at, &here) && self.was(at, found.len()) == found {
            return Ok(());
        }
        // Zeros may be those of several.
        let shown = here
            .iter()
            .filter(|write| write.shows(self.file, at, found));
        let shown: Vec<bool> = shown.map(|write| is_outdated(write)).collect();
        let (sector, is) = (at / SECTOR, content::explain(found));
        match shown.iter().min() {
            Some(true) => Err(format!(
                "sector {sector} has {is}, which is older than what is promised"
            )),
            Some(false) => Ok(()),
            None if is_promised => Err(format!(
                "sector {sector} has {is}, not what is promised or newer"
            )),
            None => Err(format!(
                "sector {sector} has {is}, which nobody wrote there"
            )),
        }
    }

    /// Behind the old end there is a hole where somebody wrote behind it, unless that came after a write to here, as appends do; and
    /// where somebody made the file longer.
    fn may_be_as_before(&self, at: u64, here: &[&Write]) -> bool {
        let is_after = |write: &Write| here.iter().any(|it| it.call.is_before(&write.call));
        let leaves_hole = |write: &Write| match write.makes {
            Makes::Data => write.range.start > at && !is_after(write),
            Makes::End => write.range.start > at,
            Makes::Appended | Makes::Zeros => false,
        };
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
    fn writes_that_were_pushed_together_may_be_there_in_any_order() {
        let lanes = |began| {
            let ops = [
                (write(0, 1, Durable::No), 1, 6),
                (write(0, 1, Durable::Data), began, 6),
            ];
            [lane(&ops), lane(&[])]
        };
        let is = |began, found| check(1, &lanes(began), &[], 6, &[found]).is_ok();
        assert!(is(1, (0, 1, 0)) && is(1, (0, 2, 0)));
        assert!(!is(6, (0, 1, 0)) && is(6, (0, 2, 0)));
        assert!(!is(1, NOBODY));
    }

    #[test]
    fn what_was_punched_is_zeros_once_that_is_promised() {
        let punch = Op::Allocate {
            file: FILE,
            mode: Mode::PunchHole,
            offset: 0,
            len: SECTOR,
            durable: Durable::No,
        };
        let lanes = [
            lane(&[
                (write(0, 1, Durable::Data), 1, 3),
                (punch, 3, 5),
                (Op::Fsync { file: FILE }, 5, 8),
            ]),
            lane(&[(write(0, 1, Durable::No), 9, 12)]),
        ];
        let is = |time, found| check(1, &lanes, &[], time, &[found]).is_ok();
        let (before, later) = ((0, 1, 0), (1, 1, 0));
        assert!(is(3, before) && !is(3, NOBODY));
        assert!(is(5, before) && is(5, NOBODY));
        assert!(!is(8, before) && is(8, NOBODY) && !is(8, later));
        assert!(is(11, NOBODY) && is(11, later));
    }

    #[test]
    fn zeros_may_be_those_of_the_later_of_two_punches() {
        let punch = Op::Allocate {
            file: FILE,
            mode: Mode::PunchHole,
            offset: 0,
            len: SECTOR,
            durable: Durable::No,
        };
        let lanes = [
            lane(&[(punch.clone(), 1, 3), (write(0, 1, Durable::Data), 3, 6)]),
            lane(&[(punch, 7, 9)]),
        ];
        let is = |time, found| check(1, &lanes, &[], time, &[found]).is_ok();
        assert!(!is(7, NOBODY) && is(7, (0, 2, 0)));
        assert!(is(8, NOBODY) && is(8, (0, 2, 0)));
    }

    #[test]
    fn file_that_was_cut_has_what_was_written_afterwards_and_zeros_before_that() {
        let cut = |sectors| Op::SetLen {
            file: FILE,
            len: sectors * SECTOR,
            durable: Durable::No,
        };
        let lanes = [
            lane(&[
                (write(1, 1, Durable::Data), 1, 3),
                (cut(1), 3, 5),
                (Op::Fdatasync { file: FILE }, 5, 8),
                (write(2, 1, Durable::Data), 8, 12),
            ]),
            lane(&[]),
        ];
        let is = |time, found: &[_]| check(2, &lanes, &[], time, found).is_ok();
        let (old, new) = ((0, 1, 1), (0, 4, 2));
        assert!(is(3, &[NOBODY, old]) && !is(3, &[NOBODY]));
        assert!(is(5, &[NOBODY, old]) && is(5, &[NOBODY]));
        assert!(is(8, &[NOBODY]) && !is(8, &[NOBODY, old]) && !is(8, &[]));
        assert!(is(11, &[NOBODY]) && is(11, &[NOBODY, NOBODY, new]));
        assert!(!is(12, &[NOBODY]) && is(12, &[NOBODY, NOBODY, new]));
        assert!(!is(12, &[NOBODY, old, new]));
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
