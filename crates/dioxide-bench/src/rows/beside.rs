//! Row 11: reads of a file while another thread changes its end, against the same reads alone.
//!
//! The other thread goes as fast as it can: it appends blocks of 4 KiB (and cuts the file back after each
//! 16 MiB), or appends 64 KiB and cuts them off again. What the machine alone makes of two busy threads is
//! told beside: the same work on another file.
//!
//! Readers that do well because the other thread starves would prove nothing, so its work is judged too, against the same
//! work without readers. Half of that is what a fair lock leaves to each of two threads that never let go of it, and a fair
//! scheduler to each of two on one processor; who gets less is starved.

use super::{MIB, READ, Table, psync};
use crate::compare::{median, there_and_back};
use crate::load::{DioxideTarget, Outcome, round};
use crate::offsets::{Order, Pattern};
use crate::subject::Subject;
use crate::verify::Unchecked;
use crate::{Error, Result};
use dioxide::{Buf, File, OpenOptions};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

const LEAST: f64 = 0.9;
const MOST_P99: f64 = 2.0;
const LEAST_OF_OTHER: f64 = 0.5;
/// Of the reads.
const BLOCK: u32 = 4096;
const OTHER: &str = "/beside.data";

/// What the other thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    Append,
    Truncate,
}

/// Who is at work in a round.
#[derive(Clone, Copy)]
struct Who<'a> {
    reads: bool,
    /// Where the other thread works: a file, and its end.
    place: Option<(&'a File, u64)>,
}

/// What they did: reads, and how often a second the other thread did its work.
struct Beside {
    outcome: Option<Outcome>,
    rate: f64,
}

impl Work {
    /// Does it at the end of a file until it is told to stop; the file is then as long as it was. How often.
    fn run(self, file: &File, end: u64, stop: &AtomicBool) -> Result<u64> {
        let (piece, room) = match self {
            Work::Append => (4096, 16 * MIB),
            Work::Truncate => (65_536, 65_536),
        };
        let buf = Buf::zeroed(piece);
        let (mut at, mut count) = (end, 0);
        while !stop.load(Ordering::Relaxed) {
            file.write_at(&buf, at)?;
            at += piece as u64;
            count += 1;
            if at >= end + room {
                file.set_len(end)?;
                at = end;
            }
        }
        file.set_len(end)?;
        Ok(count)
    }
}

impl Table<'_, '_> {
    pub(super) fn beside(&mut self, subject: &Subject, backend: &str) -> Result<()> {
        let options = OpenOptions::new().read(true).write(true).create(true);
        let other = options.direct(true).open(&subject.fs, OTHER)?;
        for (work, name) in [(Work::Append, "appends"), (Work::Truncate, "truncates")] {
            self.beside_work(subject, &other, work, name, backend)?;
        }
        drop(other);
        Ok(subject.fs.remove_file(OTHER)?)
    }

    fn beside_work(
        &mut self,
        subject: &Subject,
        other: &File,
        work: Work,
        name: &str,
        backend: &str,
    ) -> Result<()> {
        let row = format!("11: reads while another thread {name} ÷ alone, {backend}");
        let here = Some((&subject.file, subject.size));
        let pattern = Pattern::Shuffled {
            seed: self.options.seed,
        };
        let order = Order::new(&subject.runs, subject.size, BLOCK, pattern);
        let who = |reads, place| Who { reads, place };
        let all = [
            who(true, None),
            who(true, here),
            who(false, here),
            who(true, Some((other, 0))),
        ];
        let mut rounds: [Vec<Beside>; 4] = [const { Vec::new() }; 4];
        self.ticker.expect(4 * u64::from(self.runs));
        for run in 0..self.runs as usize {
            for index in there_and_back(all.len(), run) {
                self.ticker.round(&row);
                rounds[index].push(self.beside_round(subject, &order, work, all[index])?);
            }
        }
        let [alone, beside, other_alone, elsewhere] = rounds;
        let speed =
            |of: &[Beside]| median_ratio(of, &alone, |one| figure(one, Outcome::total_iops));
        let late = |of: &[Beside]| median_ratio(of, &alone, |one| figure(one, p99));
        let share = |of: &[Beside]| median_ratio(of, &other_alone, |one| one.rate);
        let (measured, slower) = (speed(&beside), late(&beside));
        let note = format!(
            "beside the same on another file {:.3}, p99 {:.2} ×",
            speed(&elsewhere),
            late(&elsewhere),
        );
        self.check(
            &row,
            format!("≥ {LEAST}, p99 ≤ {MOST_P99} ×"),
            format!("{measured:.3}, p99 {slower:.2} ×"),
            measured >= LEAST && slower <= MOST_P99,
            Some(note),
        );
        let rate = |of: &[Beside]| median(of.iter().map(|one| one.rate));
        let kept = share(&beside);
        self.check(
            &format!("11: {name} beside these reads ÷ alone, {backend}"),
            format!("≥ {LEAST_OF_OTHER}"),
            format!(
                "{kept:.3}: {:.0}, {:.0} a second",
                rate(&beside),
                rate(&other_alone)
            ),
            kept >= LEAST_OF_OTHER,
            Some(format!("on another file {:.3}", share(&elsewhere))),
        );
        Ok(())
    }

    fn beside_round(
        &self,
        subject: &Subject,
        order: &Order,
        work: Work,
        who: Who<'_>,
    ) -> Result<Beside> {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let begin = Instant::now();
            let stopped = &stop;
            let other = who
                .place
                .map(|(file, end)| scope.spawn(move || work.run(file, end, stopped)));
            let outcome = match who.reads {
                true => Some(self.reads(subject, order)),
                false => {
                    std::thread::sleep(self.timing.warm_up + self.timing.runtime);
                    None
                }
            };
            stop.store(true, Ordering::Relaxed);
            let joined = other.map(|other| other.join());
            let count = match joined {
                None => 0,
                Some(Ok(count)) => count?,
                Some(Err(_)) => return Err(Error::Setup("the other thread panicked".into())),
            };
            let rate = count as f64 / begin.elapsed().as_secs_f64();
            Ok(Beside {
                outcome: outcome.transpose()?,
                rate,
            })
        })
    }

    fn reads(&self, subject: &Subject, order: &Order) -> Result<Outcome> {
        let target = DioxideTarget {
            fs: &subject.fs,
            file: &subject.file,
        };
        let job = psync(READ, BLOCK, 1);
        round(&target, &Unchecked, &job, order, self.timing)
    }
}

fn p99(outcome: &Outcome) -> f64 {
    outcome.latencies[0].value_at_quantile(0.99) as f64
}

/// A figure of the reads of a round that has some.
fn figure(one: &Beside, figure: fn(&Outcome) -> f64) -> f64 {
    one.outcome.as_ref().map_or(f64::NAN, figure)
}

/// The median of a figure ÷ that of the same round of others.
fn median_ratio(of: &[Beside], to: &[Beside], figure: impl Fn(&Beside) -> f64) -> f64 {
    let pairs = of.iter().zip(to);
    median(pairs.map(|(one, other)| figure(one) / figure(other)))
}
