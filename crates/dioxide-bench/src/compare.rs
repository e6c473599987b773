//! Rounds, medians, ratios: the comparison of variants.

use crate::load::{DeviceTarget, DioxideTarget, Engine, Job, Outcome, Timing, round};
use crate::offsets::Order;
use crate::subject::{PathSubject, Subject};
use crate::verify::{Checker, Ledger, Unchecked};
use crate::{Result, Target};
use dioxide::{CompletionMode, Policy, Stats};
use std::sync::Arc;

/// How a mount is set for a variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    pub(crate) policy: Policy,
    pub(crate) completion: CompletionMode,
    pub(crate) simple: bool,
}

impl Default for Setting {
    fn default() -> Self {
        Setting {
            policy: Policy::default(),
            completion: CompletionMode::default(),
            simple: true,
        }
    }
}

/// What a variant is run on.
#[derive(Clone, Debug)]
pub(crate) enum On {
    Raw(Arc<Subject>),
    Dioxide(Arc<Subject>, Setting),
    Path(Arc<PathSubject>),
}

impl On {
    pub(crate) fn target(&self) -> Target {
        match self {
            On::Raw(_) => Target::Raw,
            On::Dioxide(..) => Target::Dioxide,
            On::Path(subject) => Target::Path(subject.path.clone()),
        }
    }

    pub(crate) fn setting(&self) -> Option<Setting> {
        match self {
            On::Dioxide(_, setting) => Some(*setting),
            On::Raw(_) | On::Path(_) => None,
        }
    }

    pub(crate) fn device(&self) -> String {
        match self {
            On::Raw(subject) | On::Dioxide(subject, _) => subject.device.describe(),
            On::Path(subject) => subject.device.describe(),
        }
    }
}

/// One of the things that are compared.
#[derive(Clone, Debug)]
pub(crate) struct Variant {
    pub(crate) on: On,
    pub(crate) job: Job,
    pub(crate) order: Arc<Order>,
    /// If what is read is to be verified.
    pub(crate) ledger: Option<Arc<Ledger>>,
    /// Which variant is raw for this one.
    pub(crate) raw: Option<usize>,
}

/// The rounds of one variant.
#[derive(Debug)]
pub(crate) struct Rounds {
    pub(crate) outcomes: Vec<Outcome>,
    pub(crate) stats: Option<Stats>,
}

/// Runs all variants, alternating. `step` is called before each round of each.
pub(crate) fn contest(
    variants: &[Variant],
    runs: u32,
    timing: Timing,
    mut step: impl FnMut(&Variant),
) -> Result<Vec<Rounds>> {
    let mut outcomes: Vec<Vec<Outcome>> = variants.iter().map(|_| Vec::new()).collect();
    let none_yet = |variant: &Variant| variant.stats().map(|_| Stats::default());
    let mut stats: Vec<Option<Stats>> = variants.iter().map(none_yet).collect();
    for run in 0..runs as usize {
        for index in there_and_back(variants.len(), run) {
            let variant = &variants[index];
            step(variant);
            let earlier = variant.stats();
            outcomes[index].push(variant.round(timing)?);
            if let (Some(sum), Some(now), Some(earlier)) =
                (&mut stats[index], variant.stats(), earlier)
            {
                *sum = sum.plus(&now.since(&earlier));
            }
        }
    }
    let rounds = outcomes.into_iter().zip(stats);
    Ok(rounds
        .map(|(outcomes, stats)| Rounds { outcomes, stats })
        .collect())
}

/// The order of a round: forwards, and backwards every second time, so that a machine that gets
/// slower or faster does not favour anyone.
pub(crate) fn there_and_back(variants: usize, run: usize) -> Box<dyn Iterator<Item = usize>> {
    if run.is_multiple_of(2) {
        Box::new(0..variants)
    } else {
        Box::new((0..variants).rev())
    }
}

impl Variant {
    fn stats(&self) -> Option<Stats> {
        match &self.on {
            On::Dioxide(subject, _) => Some(subject.fs.stats()),
            On::Raw(_) | On::Path(_) => None,
        }
    }

    fn round(&self, timing: Timing) -> Result<Outcome> {
        match &self.ledger {
            Some(ledger) => self.round_checked(&**ledger, timing),
            None => self.round_checked(&Unchecked, timing),
        }
    }

    fn round_checked<C: Checker>(&self, checker: &C, timing: Timing) -> Result<Outcome> {
        let (job, order) = (&self.job, &*self.order);
        match &self.on {
            On::Raw(subject) => {
                let target = DeviceTarget {
                    device: &subject.device,
                    by_file: false,
                };
                round(&target, checker, job, order, timing)
            }
            On::Path(subject) => {
                let target = DeviceTarget {
                    device: &subject.device,
                    by_file: true,
                };
                round(&target, checker, job, order, timing)
            }
            On::Dioxide(subject, setting) => {
                subject.fs.set_policy(setting.policy);
                subject.fs.set_completion(setting.completion);
                subject.fs.set_simple(setting.simple);
                let target = DioxideTarget {
                    fs: &subject.fs,
                    file: &subject.file,
                };
                round(&target, checker, job, order, timing)
            }
        }
    }

    /// Where completions run: only requests of dioxide's queues have one.
    pub(crate) fn completion(&self) -> Option<CompletionMode> {
        let setting = self.on.setting()?;
        (self.job.engine != Engine::Psync).then_some(setting.completion)
    }

    /// In a few words, for a progress bar.
    pub(crate) fn label(&self) -> String {
        let Job {
            block_size,
            jobs,
            engine,
            ..
        } = self.job;
        let size = size_name(block_size);
        let depth = match engine {
            Engine::Psync => String::new(),
            Engine::Queue { depth, .. } => format!(" depth {depth}"),
        };
        let how = match self.on.setting() {
            None => String::new(),
            Some(s) => {
                let simple = if s.simple { "" } else { ", simple path off" };
                let completion = self.completion().map(|mode| format!(", {mode}"));
                format!(" {}{}{simple}", s.policy, completion.unwrap_or_default())
            }
        };
        format!("{size} × {jobs}{depth} {}{how}", self.on.target())
    }
}

/// `4k`, `1M`, `512`.
pub(crate) fn size_name(bytes: u32) -> String {
    match bytes {
        n if n >= 1 << 20 && n.is_multiple_of(1 << 20) => format!("{}M", n >> 20),
        n if n >= 1 << 10 && n.is_multiple_of(1 << 10) => format!("{}k", n >> 10),
        n => n.to_string(),
    }
}

/// The middle one; the mean of the two in the middle of an even count. Of nothing it is no number, which passes no limit.
pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        n if n.is_multiple_of(2) => f64::midpoint(values[n / 2 - 1], values[n / 2]),
        n => values[n / 2],
    }
}

/// The median of a figure ÷ another's in the same round; rounds in which both are 0 tell nothing.
pub(crate) fn ratio(of: &Rounds, to: &Rounds, figure: impl Fn(&Outcome) -> f64) -> f64 {
    let pairs = of.outcomes.iter().zip(&to.outcomes);
    median(
        pairs
            .map(|(a, b)| figure(a) / figure(b))
            .filter(|ratio| !ratio.is_nan()),
    )
}

/// The one with the most requests a second, by the medians.
pub(crate) fn best<'a>(all: impl IntoIterator<Item = &'a Rounds>) -> Option<&'a Rounds> {
    let rate = |rounds: &Rounds| median(rounds.outcomes.iter().map(Outcome::total_iops));
    all.into_iter().max_by(|a, b| rate(a).total_cmp(&rate(b)))
}

#[cfg(test)]
pub(crate) mod samples {
    use super::*;
    use crate::load::no_latencies;

    /// Rounds of so many reads a second.
    pub(crate) fn rounds(iops: &[f64]) -> Rounds {
        let outcome = |&reads: &f64| Outcome {
            iops: [reads, 0.0],
            latencies: no_latencies(),
            cpu_ns_per_io: 0.0,
        };
        Rounds {
            outcomes: iops.iter().map(outcome).collect(),
            stats: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::samples::rounds;
    use super::*;

    #[test]
    fn median_of_odd_even_and_none() {
        assert_eq!(median([3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median([]).is_nan());
    }

    #[test]
    fn rounds_in_which_nothing_was_finished_count() {
        let of = |of, to| ratio(&rounds(of), &rounds(to), Outcome::total_iops);
        assert_eq!(of(&[0.0; 3], &[2.0; 3]), 0.0);
        assert_eq!(of(&[2.0; 3], &[0.0, 0.0, 2.0]), f64::INFINITY);
        assert_eq!(of(&[2.0, 0.0, 0.0], &[1.0, 0.0, 0.0]), 2.0);
        assert!(of(&[0.0], &[0.0]).is_nan());
    }

    #[test]
    fn best_is_that_of_the_medians_and_not_of_one_round() {
        let [steady, lucky] = [[2.0, 2.0, 2.0], [1.0, 9.0, 1.0]].map(|iops| rounds(&iops));
        let found = best([&lucky, &steady]).unwrap();
        assert!(std::ptr::eq(found, &steady));
        assert!(best([]).is_none());
    }

    #[test]
    fn second_round_runs_backwards() {
        assert_eq!(there_and_back(3, 0).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(there_and_back(3, 1).collect::<Vec<_>>(), [2, 1, 0]);
    }

    #[test]
    fn size_names_are_those_of_the_mails() {
        assert_eq!(
            [512, 2048, 12_288, 1 << 20].map(size_name),
            ["512", "2k", "12k", "1M"]
        );
    }
}
