//! One blocking request at a time per thread.

use super::{Cursor, Dice, Leg, LoadTarget, Pace, Round, no_latencies};
use crate::Result;
use crate::verify::Checker;
use dioxide::Buf;
use std::time::Instant;

/// One thread's state.
pub(super) struct Runner<'a, T, C> {
    target: &'a T,
    checker: &'a C,
    round: &'a Round<'a>,
    number: u32,
    dice: Dice,
    cursor: Cursor,
    buf: Buf,
    ops: [u64; 2],
}

impl<'a, T: LoadTarget, C: Checker> Runner<'a, T, C> {
    pub(super) fn new(target: &'a T, checker: &'a C, round: &'a Round<'a>, number: u32) -> Self {
        let mut buf = Buf::zeroed(round.job.block_size as usize);
        buf.fill(0xd1);
        Runner {
            target,
            checker,
            round,
            number,
            dice: Dice::new(round.job, number),
            cursor: Cursor::new(round, number),
            buf,
            ops: [0; 2],
        }
    }

    /// Makes requests as long as the phase lasts.
    pub(super) fn run(&mut self, phase: u8, pace: Pace) -> Result<Leg> {
        let mut latencies = no_latencies();
        let count = &self.round.counts[self.number as usize];
        let mut n = 0;
        while self.round.is(phase) {
            let index = self.cursor.next();
            let write = self.dice.write();
            let begin = pace.samples(n).then(Instant::now);
            if !self.request(index, write)? {
                continue;
            }
            if let Some(begin) = begin {
                latencies[usize::from(write)].saturating_record(begin.elapsed().as_nanos() as u64);
            }
            self.ops[usize::from(write)] += 1;
            count.publish(&self.ops);
            n += 1;
        }
        Ok(Leg { ops: n, latencies })
    }

    /// Whether it was made: a write of a block that another job is writing is not.
    #[inline(always)]
    fn request(&mut self, index: usize, write: bool) -> Result<bool> {
        let at = self.round.positions[index];
        if C::ON {
            return self.checked_request(index, at, write);
        }
        match write {
            true => self.target.write(at, &self.buf)?,
            false => self.target.read(at, &mut self.buf)?,
        }
        Ok(true)
    }

    fn checked_request(&mut self, index: usize, at: u64, write: bool) -> Result<bool> {
        let offset = self.round.order.file[index];
        if write {
            let Some(token) = self.checker.claim(offset, self.number, &mut self.buf) else {
                return Ok(false);
            };
            self.target.write(at, &self.buf)?;
            self.checker.acknowledge(offset, token);
            return Ok(true);
        }
        let known = self.checker.known(offset);
        self.target.read(at, &mut self.buf)?;
        let reread = |buf: &mut [u8]| self.target.read(at, buf);
        self.checker.check(offset, known, &mut self.buf, reread)?;
        Ok(true)
    }
}
