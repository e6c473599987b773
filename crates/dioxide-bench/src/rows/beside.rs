//! Row 11: reads of a file while another thread changes its end, against the same reads alone.
//!
//! The other thread goes as fast as it can: it appends blocks of 4 KiB (and cuts the file back after each
//! 16 MiB), or appends 64 KiB and cuts them off again. What the machine alone makes of two busy threads is
//! told beside: the same work on another file.

use super::{MIB, READ, Table, psync};
use crate::compare::{median, there_and_back};
use crate::load::{DioxideTarget, Job, Outcome, round};
use crate::offsets::{Order, Pattern};
use crate::subject::Subject;
use crate::verify::Unchecked;
use crate::{Error, Result};
use dioxide::{Buf, File, OpenOptions};
use std::sync::atomic::{AtomicBool, Ordering};

const LEAST: f64 = 0.9;
const MOST_P99: f64 = 2.0;
const OTHER: &str = "/beside.data";

/// What the other thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    Append,
    Truncate,
}

/// Reads, and how often the other thread did its work a second.
struct Beside {
    outcome: Outcome,
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
            let row = format!("11: reads while another thread {name} ÷ alone, {backend}");
            self.beside_work(subject, &other, work, row)?;
        }
        drop(other);
        Ok(subject.fs.remove_file(OTHER)?)
    }

    fn beside_work(
        &mut self,
        subject: &Subject,
        other: &File,
        work: Work,
        row: String,
    ) -> Result<()> {
        let places = [None, Some((&subject.file, subject.size)), Some((other, 0))];
        let mut rounds: [Vec<Beside>; 3] = [const { Vec::new() }; 3];
        self.ticker.expect(3 * u64::from(self.runs));
        for run in 0..self.runs as usize {
            for index in there_and_back(places.len(), run) {
                self.ticker.round(&row);
                rounds[index].push(self.reads(subject, work, places[index])?);
            }
        }
        let [alone, beside, elsewhere] = rounds;
        let speed = |of: &[Beside]| median_ratio(of, &alone, Outcome::total_iops);
        let late = |of: &[Beside]| median_ratio(of, &alone, p99);
        let (measured, slower) = (speed(&beside), late(&beside));
        let note = format!(
            "{:.0} a second; on another file {:.3}, p99 {:.2} ×",
            median(beside.iter().map(|one| one.rate)),
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
        Ok(())
    }

    /// A round of reads, and what the other thread did meanwhile: nothing, or its work at a file's end.
    fn reads(&self, subject: &Subject, work: Work, place: Option<(&File, u64)>) -> Result<Beside> {
        let job: Job = psync(READ, 4096, 1);
        let pattern = Pattern::Shuffled {
            seed: self.options.seed,
        };
        let order = Order::new(&subject.runs, subject.size, job.block_size, pattern);
        let target = DioxideTarget {
            fs: &subject.fs,
            file: &subject.file,
        };
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let begin = std::time::Instant::now();
            let stopped = &stop;
            let other = place.map(|(file, end)| scope.spawn(move || work.run(file, end, stopped)));
            let outcome = round(&target, &Unchecked, &job, &order, self.timing);
            stop.store(true, Ordering::Relaxed);
            let joined = other.map(|other| other.join());
            let count = match joined {
                None => 0,
                Some(Ok(count)) => count?,
                Some(Err(_)) => return Err(Error::Setup("the other thread panicked".into())),
            };
            let rate = count as f64 / begin.elapsed().as_secs_f64();
            Ok(Beside {
                outcome: outcome?,
                rate,
            })
        })
    }
}

fn p99(outcome: &Outcome) -> f64 {
    outcome.latencies[0].value_at_quantile(0.99) as f64
}

/// The median of a figure ÷ that of the same round alone.
fn median_ratio(of: &[Beside], alone: &[Beside], figure: fn(&Outcome) -> f64) -> f64 {
    let pairs = of.iter().zip(alone);
    median(pairs.map(|(one, alone)| figure(&one.outcome) / figure(&alone.outcome)))
}
