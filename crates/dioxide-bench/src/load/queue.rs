//! Many requests in flight per thread.

use super::target::LoadQueue;
use super::{Cursor, Dice, Latencies, Leg, LoadTarget, Pace, Round, no_latencies};
use crate::Result;
use crate::verify::Checker;
use dioxide::block::push_in_place;
use dioxide::{Buf, BufPool, QueueOptions};
use std::time::Instant;

/// One thread's state.
pub(super) struct Runner<'a, T: LoadTarget, C> {
    target: &'a T,
    checker: &'a C,
    round: &'a Round<'a>,
    number: u32,
    depth: usize,
    batch: usize,
    dice: Dice,
    cursor: Cursor,
    queue: T::Queue,
    done: Vec<<T::Queue as LoadQueue>::Done>,
    /// Requests that are not in flight: tag and buffer.
    idle: Vec<(u64, Buf)>,
    /// By tag.
    pending: Box<[Pending]>,
    ops: [u64; 2],
    /// Instants are counted from here, in nanoseconds; 0 is none.
    epoch: Instant,
}

/// What is known of a request in flight.
#[derive(Clone, Copy, Default)]
struct Pending {
    /// 0: its latency is not asked for.
    begin_ns: u64,
    write: bool,
    /// For the checker: index in the order, and what it said before.
    index: usize,
    token: u64,
}

impl<'a, T: LoadTarget, C: Checker> Runner<'a, T, C> {
    pub(super) fn new(
        target: &'a T,
        checker: &'a C,
        round: &'a Round<'a>,
        number: u32,
        depth: u32,
        batch: u32,
    ) -> Result<Self> {
        let block = round.job.block_size as usize;
        let pool = BufPool::new(depth as usize, block);
        let options = QueueOptions {
            depth,
            pool: Some(pool.clone()),
            ..QueueOptions::default()
        };
        let idle = (0..u64::from(depth))
            .map(|tag| (tag, buffer(&pool, block)))
            .collect();
        Ok(Runner {
            target,
            checker,
            round,
            number,
            depth: depth as usize,
            batch: batch.min(depth) as usize,
            dice: Dice::new(round.job, number),
            cursor: Cursor::new(round, number),
            queue: target.open_queue(&options)?,
            done: Vec::with_capacity(depth as usize),
            idle,
            pending: vec![Pending::default(); depth as usize].into(),
            ops: [0; 2],
            epoch: Instant::now(),
        })
    }

    /// Keeps the queue full as long as the phase lasts.
    pub(super) fn run(&mut self, phase: u8, pace: Pace) -> Result<Leg> {
        let mut latencies = no_latencies();
        let mut n = 0;
        while self.round.is(phase) {
            self.push_batch(pace, &mut n)?;
            let in_flight = self.depth - self.idle.len();
            if self.idle.len() < self.batch {
                let min = if pace.slow {
                    1
                } else {
                    self.batch.min(in_flight)
                };
                self.queue.wait(min, &mut self.done)?;
            } else {
                self.queue.submit()?;
                self.queue.reap(&mut self.done);
            }
            self.account(&mut latencies)?;
        }
        Ok(Leg { ops: n, latencies })
    }

    /// Waits for what is in flight.
    pub(super) fn finish(&mut self) -> Result<()> {
        let mut latencies = no_latencies();
        while self.idle.len() < self.depth {
            self.queue.wait(1, &mut self.done)?;
            self.account(&mut latencies)?;
        }
        Ok(())
    }

    fn push_batch(&mut self, pace: Pace, n: &mut u64) -> Result<()> {
        let begin_ns = self.now_ns();
        for _ in 0..self.batch.min(self.idle.len()) {
            let Some((tag, buf)) = self.idle.pop() else {
                break;
            };
            let index = self.cursor.next();
            let write = self.dice.write();
            let begin_ns = if pace.samples(*n) { begin_ns } else { 0 };
            self.pending[tag as usize] = Pending {
                begin_ns,
                write,
                index,
                token: 0,
            };
            *n += 1;
            self.push(tag, buf, index, write)?;
        }
        Ok(())
    }

    #[inline]
    fn push(&mut self, tag: u64, mut buf: Buf, index: usize, write: bool) -> Result<()> {
        if C::ON {
            let offset = self.round.order.file[index];
            let token = match write {
                true => self.checker.claim(offset, self.number, &mut buf),
                false => Some(self.checker.known(offset)),
            };
            let Some(token) = token else {
                self.idle.push((tag, buf));
                return Ok(());
            };
            self.pending[tag as usize].token = token;
        }
        self.queue
            .push(write, self.round.positions[index], buf, tag)
    }

    fn account(&mut self, latencies: &mut Latencies) -> Result<()> {
        let end_ns = self.now_ns();
        let mut done = std::mem::take(&mut self.done);
        for completion in done.drain(..) {
            let (tag, mut buf) = self.queue.take(completion)?;
            let Pending {
                begin_ns, write, ..
            } = self.pending[tag as usize];
            self.ops[usize::from(write)] += 1;
            if begin_ns != 0 {
                latencies[usize::from(write)].saturating_record(end_ns - begin_ns);
            }
            if C::ON {
                self.check(tag, &mut buf)?;
            }
            push_in_place(&mut self.idle, || (tag, buf));
        }
        self.done = done;
        self.round.counts[self.number as usize].publish(&self.ops);
        Ok(())
    }

    fn check(&self, tag: u64, buf: &mut Buf) -> Result<()> {
        let Pending {
            write,
            index,
            token,
            ..
        } = self.pending[tag as usize];
        let offset = self.round.order.file[index];
        if write {
            self.checker.acknowledge(offset, token);
            return Ok(());
        }
        let at = self.round.positions[index];
        self.checker
            .check(offset, token, buf, |buf| self.target.read(at, buf))
    }

    #[inline]
    fn now_ns(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64 + 1
    }
}

fn buffer(pool: &BufPool, len: usize) -> Buf {
    let mut buf = pool
        .take()
        .expect("the pool holds a buffer for each request");
    buf.set_len(len);
    buf.fill(0xd1);
    buf
}
