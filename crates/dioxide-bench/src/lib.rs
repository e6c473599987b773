//! One load generator, many targets: the raw image, dioxide, a mounted path.
//!
//! [`run`] takes [`BenchOptions`], runs the experiments they name, and returns a [`Report`]. The
//! experiments are those of the mails that started this project (see [`Experiment`]), with the
//! mails' own parameters as defaults, the rows of the performance table in `PERFORMANCE.md`, and
//! what changes the file system.
//!
//! # How it measures
//! - One loop for all targets, monomorphised over what a request is handed to: same offsets, same
//!   buffers, same queue settings. `raw` uses the very device object that the file system sits on,
//!   and touches exactly the blocks that belong to the file.
//! - The variants of a comparison alternate: raw, A, B, … in each round, backwards in every second
//!   round. A figure is the median of the rounds; a ratio is the median of the ratios within each
//!   round. The spread (smallest to largest round) is reported beside it.
//! - A round is a warm-up and then a timed part. The threads never read a clock to find its end: they
//!   look at a flag that a sleeping thread sets.
//! - Latencies are sampled: every request while a thread makes fewer than 500,000 a second, every
//!   64th above that, because reading the clock twice would be a visible share of such a request.
//!   In queues, a request's time begins when its batch is begun and ends when it is reaped.
//! - CPU time is that of the whole process, workers included, over the timed part.
//!
//! # What it writes
//! The contents of the one file that it is told to use, nothing else; there is no metadata that
//! changes. [`Experiment::Grow`] also cuts and grows files that are there for it, and leaves them
//! empty; [`Experiment::Names`] makes a directory `names.bench` of 100,000 files and removes it;
//! [`Experiment::Rows`] makes images of its own. Every run that wrote ends with `e2fsck -fn`, if that is installed.
//!
//! | Module | Holds |
//! |---|---|
//! | `options` | what can be asked for |
//! | `plan` | experiments as lists of cases |
//! | `run` | running cases one after another |
//! | `stage` | what a case's variants are run on, opened once |
//! | `figures` | rows from rounds |
//! | `goals` | what the experiments must reach |
//! | `rows` | the performance table |
//! | `grow` | what changes the file system |
//! | `names` | files made, looked at, opened, renamed, removed |
//! | `processors` | how far two of them are from each other |
//! | `memory` | how far it is |
//! | `seeds` | the mails' figures, and the devices they imply |
//! | `image` | making images; looking at those given |
//! | `subject` | an open image, file system and file; where the file lies on the device |
//! | `offsets` | which blocks a round touches, in which order |
//! | `load` | the load generator |
//! | `verify` | stamps in every sector, and what is known of them |
//! | `compare` | rounds, medians, ratios |
//! | `report` | rows, and their forms: JSON, table, HTML |

mod compare;
mod error;
mod figures;
mod goals;
mod grow;
mod image;
mod load;
mod memory;
mod names;
mod offsets;
mod options;
mod plan;
mod processors;
mod report;
mod rows;
mod run;
mod seeds;
mod stage;
mod subject;
mod verify;

pub use error::{Error, Result};
pub use options::{BenchOptions, DeviceChoice, Experiment, Progress, SimpleChoice, Target};
pub use report::{Check, Latency, Machine, Report, Row, Spread, Verified};

/// Runs what the options ask for. Blocks for as long as that takes.
///
/// Figures that miss their target, and damage that was found, are in the report: ask
/// [`Report::failures`].
///
/// # Errors
/// If options are given that no experiment uses, something cannot be set up (no image, no such file in it,
/// holes, tools that are missing), or
/// the engine or the device fails.
pub fn run(options: &BenchOptions, progress: &mut dyn Progress) -> Result<Report> {
    run::run(options, progress)
}
