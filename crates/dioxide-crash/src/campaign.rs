//! Many workloads over many images, by several threads.

use crate::explore::{Checks, Explorer, Limits, Stop};
use crate::fault::Fault;
use crate::image::Layout;
use crate::report::{Bad, Report};
use crate::run::{Disk, Recorded, Start, lanes_in_words, record};
use crate::target::Target;
use crate::workload::{Random, Workload};
use dioxide::block::record::states::Cache;
use parking_lot::Mutex;
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::Builder;

/// Which workloads to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Selection {
    /// Operations alone, pairs and random mixes by turns.
    All,
    /// Each operation alone: on data, names and attributes.
    Singles,
    /// All pairs of operations: on data, names and attributes.
    Pairs,
    /// Random mixes, a few of them long.
    Random,
    /// Of operations on names: each alone, all pairs and random mixes by turns.
    Names,
    /// The same, of operations on attributes.
    Attributes,
    /// Random mixes by five threads at once. What they leave depends on their timing, and is not left again.
    Threads,
    /// Random writes of two or three threads to one file. As [`Selection::Threads`].
    Shared,
    /// Random mixes that go on after a crash.
    Again,
    /// Of all pairs of operations each on one of the layouts only, by turns.
    Spread,
    /// One.
    One(Workload),
}

impl FromStr for Selection {
    type Err = String;

    fn from_str(word: &str) -> Result<Selection, String> {
        match word {
            "all" => Ok(Selection::All),
            "singles" => Ok(Selection::Singles),
            "pairs" => Ok(Selection::Pairs),
            "random" => Ok(Selection::Random),
            "names" => Ok(Selection::Names),
            "attributes" => Ok(Selection::Attributes),
            "threads" => Ok(Selection::Threads),
            "shared" => Ok(Selection::Shared),
            "again" => Ok(Selection::Again),
            "spread" => Ok(Selection::Spread),
            one => one.parse().map(Selection::One),
        }
    }
}

/// One run: an image, the cache of its device, a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    /// The image.
    pub layout: Layout,
    /// What the device says of its cache.
    pub cache: Cache,
    /// What is done.
    pub workload: Workload,
}

/// What to explore.
#[derive(Clone, Debug)]
pub struct Campaign {
    /// The images.
    pub layouts: Vec<Layout>,
    /// The workloads.
    pub selection: Selection,
    /// For everything that is random.
    pub seed: u64,
    /// How many states to check; less if the workloads have no more.
    pub states: u64,
    /// Threads.
    pub jobs: usize,
    /// Of each workload. Its seed and number of states are those of the campaign where that is less.
    pub limits: Limits,
    /// How devices lie, or what is broken in the engine, if so.
    pub fault: Option<Fault>,
    /// Whether to run no further workload once a state was bad.
    pub until_bad: bool,
}

/// Told after each workload how far it is: states checked, states asked for, bad ones.
pub type Progress<'a> = &'a (dyn Fn(u64, u64, u64) + Sync);

impl Campaign {
    /// Runs it. A workload that fails counts as a bad state. Where it is told to stop, the report is of what was checked.
    ///
    /// # Errors
    /// An image could not be made, or a layout does not have the one workload that is asked for.
    pub fn run(
        &self,
        target: &dyn Target,
        checks: &Checks<'_>,
        progress: Progress<'_>,
        stop: Stop<'_>,
    ) -> Result<Report, String> {
        let jobs = self.job_list();
        if let Selection::One(_) = self.selection {
            jobs.iter().try_for_each(Job::check)?;
        }
        let starts = self.starts(stop)?;
        let (next, states, bad) = (AtomicUsize::new(0), AtomicU64::new(0), AtomicU64::new(0));
        let ended = AtomicBool::new(false);
        let mut report = Report {
            listed: if self.is_endless() {
                0
            } else {
                jobs.len() as u64
            },
            ..Report::default()
        };
        for sample in &checks.others {
            report.count_other(sample.recover.name(), 0);
        }
        let explorer = |left: u64| Explorer {
            target,
            checks: checks.clone(),
            limits: self.limits(left),
            stop,
        };
        let total = Mutex::new(report);
        let work = || {
            let mut report = Report::default();
            let is_enough =
                || states.load(Ordering::Relaxed) >= self.states || ended.load(Ordering::Relaxed);
            while !is_enough() && !stop() {
                let index = next.fetch_add(1, Ordering::Relaxed);
                let Some(job) = self.job(&jobs, index) else {
                    break;
                };
                let (_, start) = starts
                    .iter()
                    .find(|(layout, _)| *layout == job.layout)
                    .expect("made above");
                let (had, had_bad) = (report.states, report.bad);
                let left = self.states.saturating_sub(states.load(Ordering::Relaxed));
                self.explore(&explorer(left), &job, start, &mut report);
                let done =
                    states.fetch_add(report.states - had, Ordering::Relaxed) + report.states - had;
                let is_bad =
                    bad.fetch_add(report.bad - had_bad, Ordering::Relaxed) + report.bad - had_bad;
                progress(done, self.states, is_bad);
                if self.until_bad && is_bad > 0 {
                    ended.store(true, Ordering::Relaxed);
                }
            }
            total.lock().add(&report);
        };
        let begun = std::thread::scope(|scope| {
            let mut jobs = 0..self.jobs.max(1);
            let begun = jobs.try_for_each(|_| Builder::new().spawn_scoped(scope, work).map(drop));
            begun.inspect_err(|_| ended.store(true, Ordering::Relaxed))
        });
        begun.map_err(|error| format!("thread: {error}"))?;
        Ok(total.into_inner())
    }

    fn starts(&self, stop: Stop<'_>) -> Result<Vec<(Layout, Start)>, String> {
        let make = |&layout: &Layout| Ok((layout, layout.make()?));
        let layouts = self.layouts.iter().take_while(|_| !stop());
        layouts.map(make).collect()
    }

    /// Where so many states are left.
    fn limits(&self, left: u64) -> Limits {
        Limits {
            seed: self.seed,
            states: match self.limits.states {
                0 => left.max(1),
                states => states.min(left.max(1)),
            },
            ..self.limits.clone()
        }
    }

    fn explore(&self, explorer: &Explorer<'_>, job: &Job, start: &Start, report: &mut Report) {
        match job.record(explorer.target, start, self.fault) {
            Ok(recorded) => explorer.explore(&recorded, &job.to_string(), report),
            Err(what) => report.complain(Bad {
                replay: job.to_string(),
                ops: job.words(),
                what: format!("the workload failed: {what}"),
            }),
        }
    }

    /// What is run in turn, before random mixes without end.
    fn job_list(&self) -> Vec<Job> {
        let both = |layout, workload| {
            [Cache::Volatile, Cache::NoFua].map(|cache| Job {
                layout,
                cache,
                workload,
            })
        };
        let of = |make: fn(Layout) -> Vec<Workload>| {
            let all = self.layouts.iter().flat_map(move |&layout| {
                make(layout)
                    .into_iter()
                    .flat_map(move |workload| both(layout, workload))
            });
            let mut jobs: Vec<Job> = all.collect();
            shuffle(&mut jobs, self.seed);
            jobs
        };
        match self.selection {
            Selection::Singles => of(Workload::all_singles),
            Selection::Pairs => of(Workload::all_pairs),
            Selection::Random | Selection::Threads | Selection::Shared | Selection::Again => {
                Vec::new()
            }
            Selection::Spread => self.spread(),
            Selection::Names => self.turns(of(Workload::names_pairs), of(Workload::names_singles)),
            Selection::Attributes => {
                let pairs = of(Workload::attributes_pairs);
                self.turns(pairs, of(Workload::attributes_singles))
            }
            Selection::One(workload) => of_one(&self.layouts, workload),
            Selection::All => {
                // There are more pairs than operations.
                let further = [of(Workload::names_pairs), of(Workload::attributes_pairs)];
                let mut further = further.map(Vec::into_iter);
                let pairs = of(Workload::pairs).into_iter().flat_map(|pair| {
                    let others = further.each_mut().map(Iterator::next);
                    std::iter::once(pair).chain(others.into_iter().flatten())
                });
                self.turns(pairs, of(Workload::all_singles))
            }
        }
    }

    /// Pair by pair on one layout after the other, each round one further; and on one cache.
    fn spread(&self) -> Vec<Job> {
        let count = self.layouts.len();
        let of = |(place, &layout): (usize, &Layout)| {
            let all = Workload::all_pairs(layout).into_iter().enumerate();
            let own =
                all.filter(move |(index, _)| (index % count + index / count) % count == place);
            let caches = [Cache::Volatile, Cache::NoFua].into_iter().cycle();
            own.zip(caches).map(move |((_, workload), cache)| Job {
                layout,
                cache,
                workload,
            })
        };
        let mut jobs: Vec<Job> = self.layouts.iter().enumerate().flat_map(of).collect();
        shuffle(&mut jobs, self.seed);
        jobs
    }

    /// A pair, a random mix, and while there are any an operation alone, by turns.
    fn turns(&self, pairs: impl IntoIterator<Item = Job>, singles: Vec<Job>) -> Vec<Job> {
        let singles = singles.into_iter().map(Some).chain(std::iter::repeat(None));
        let turns = pairs.into_iter().zip(singles).zip(0..);
        let turn = |((pair, single), index): ((Job, Option<Job>), u64)| {
            single.into_iter().chain([pair, self.random(index)])
        };
        turns.flat_map(turn).collect()
    }

    /// Whether random mixes come after what is listed.
    fn is_endless(&self) -> bool {
        matches!(
            self.selection,
            Selection::All
                | Selection::Random
                | Selection::Names
                | Selection::Attributes
                | Selection::Threads
                | Selection::Shared
                | Selection::Again
        )
    }

    fn job(&self, jobs: &[Job], index: usize) -> Option<Job> {
        let further = || self.random(index as u64);
        let listed = jobs.get(index).copied();
        listed.or_else(|| self.is_endless().then(further))
    }

    fn random(&self, index: u64) -> Job {
        let layouts = self.layouts.len() as u64;
        let layout = self.layouts[(index % layouts) as usize];
        Job {
            layout,
            cache: match index / layouts % 4 {
                3 => Cache::NoFua,
                _ => Cache::Volatile,
            },
            workload: match (self.mix(index), layout) {
                (Workload::Threads { seed } | Workload::Shared { seed }, Layout::NoJournal) => {
                    Workload::Random { seed }
                }
                (mix, _) => mix,
            },
        }
    }

    fn mix(&self, index: u64) -> Workload {
        let seed = self.seed.wrapping_mul(1_000_003).wrapping_add(index);
        match (self.selection, index % 67) {
            (Selection::Names, _) | (Selection::All, 0..20) => Workload::NamesRandom { seed },
            (Selection::Attributes, _) | (Selection::All, 30..50) => {
                Workload::AttributesRandom { seed }
            }
            (Selection::Threads, _) => Workload::Threads { seed },
            (Selection::Shared, _) => Workload::Shared { seed },
            (Selection::Again, _) | (Selection::All, 50..54) => Workload::Again { seed },
            (_, 29) => Workload::Long { seed },
            _ => Workload::Random { seed },
        }
    }
}

fn of_one(layouts: &[Layout], workload: Workload) -> Vec<Job> {
    let job = |&layout: &Layout| Job {
        layout,
        cache: Cache::Volatile,
        workload,
    };
    layouts.iter().map(job).collect()
}

fn shuffle<T>(list: &mut [T], seed: u64) {
    let mut random = Random(seed);
    for last in (1..list.len()).rev() {
        list.swap(last, random.below(last as u64 + 1) as usize);
    }
}

impl Job {
    /// Whether there is such a workload.
    ///
    /// # Errors
    /// The layout has no such operations.
    pub(crate) fn check(&self) -> Result<(), String> {
        let lanes = self.workload.lanes(self.layout);
        lanes
            .map(drop)
            .map_err(|what| format!("{}: {what}", self.layout))
    }

    /// Runs the workload.
    ///
    /// # Errors
    /// As [`record`]; the layout has no such operations.
    pub fn record(
        &self,
        target: &dyn Target,
        start: &Start,
        fault: Option<Fault>,
    ) -> Result<Recorded, String> {
        let disk = Disk {
            cache: self.cache,
            fault,
        };
        record(target, start, &self.workload.lanes(self.layout)?, disk)
    }

    pub(crate) fn words(&self) -> Vec<String> {
        let lanes = self.workload.lanes(self.layout).unwrap_or_default();
        lanes_in_words(lanes.iter().map(Vec::as_slice))
    }
}

impl fmt::Display for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cache = match self.cache {
            Cache::Volatile => "fua",
            Cache::NoFua => "flush",
        };
        write!(f, "{}/{cache}/{}", self.layout, self.workload)
    }
}
