//! Rows of figures from rounds.

use crate::compare::{On, Rounds, Variant, median, ratio};
use crate::load::Outcome;
use crate::plan::{self, Case};
use crate::report::{Latency, Spread};
use crate::{Experiment, Row, seeds};

/// A variant's rows: one, or in a mix one for reads and one for writes.
pub(crate) fn make_rows(
    case: &Case,
    variant: &Variant,
    rounds: &Rounds,
    all: &[Rounds],
) -> Vec<Row> {
    let sides: &[usize] = match case.job.read_percent {
        100 => &[0],
        0 => &[1],
        _ => &[0, 1],
    };
    let raw = variant.raw.map(|index| &all[index]);
    sides
        .iter()
        .map(|&side| make_row(case, variant, rounds, raw, side))
        .collect()
}

fn make_row(
    case: &Case,
    variant: &Variant,
    rounds: &Rounds,
    raw: Option<&Rounds>,
    side: usize,
) -> Row {
    let job = &variant.job;
    let setting = variant.on.setting();
    let iops = |outcome: &Outcome| outcome.iops[side];
    Row {
        experiment: case.experiment.to_string(),
        target: variant.on.target().to_string(),
        policy: setting.map(|s| s.policy.to_string()),
        completion: variant.completion().map(|mode| mode.to_string()),
        simple: setting.map(|s| if s.simple { "on" } else { "off" }.into()),
        engine: job.engine.name().into(),
        rw: plan::rw_name(case.sequential, job.read_percent, side).into(),
        iodepth: job.engine.depth(),
        numjobs: job.jobs,
        device: variant.on.device(),
        seed_iops: seed_iops(case, variant),
        verified: variant.ledger.as_ref().map(|ledger| ledger.found()),
        ..measured(rounds, raw, job.block_size, side, iops)
    }
}

/// The part of a row that the rounds tell: latencies of reads (side 0) or writes (1), the rest by `iops`.
pub(crate) fn measured(
    rounds: &Rounds,
    raw: Option<&Rounds>,
    block_size: u32,
    side: usize,
    iops: impl Fn(&Outcome) -> f64,
) -> Row {
    let of_each = || rounds.outcomes.iter().map(&iops);
    let rate = median(of_each());
    Row {
        block_size,
        iops: rate,
        bw_MiBps: rate * f64::from(block_size) / f64::from(1 << 20),
        lat_us: latency(&rounds.outcomes, side),
        cpu_ns_per_io: Some(median(
            rounds.outcomes.iter().map(|outcome| outcome.cpu_ns_per_io),
        )),
        ratio_to_raw: raw.map(|raw| ratio(rounds, raw, &iops)),
        spread: Spread::of(of_each()),
        rounds: of_each().collect(),
        runs: rounds.outcomes.len() as u32,
        stats: rounds.stats,
        ..Row::default()
    }
}

fn latency(outcomes: &[Outcome], side: usize) -> Latency {
    let mut all = outcomes[0].latencies[side].clone();
    for outcome in &outcomes[1..] {
        all.add(&outcome.latencies[side]).expect("the same bounds");
    }
    let us = |ns: u64| Some(ns as f64 / 1000.0);
    Latency {
        mean: all.mean() / 1000.0,
        p50: us(all.value_at_quantile(0.5)),
        p99: us(all.value_at_quantile(0.99)),
        p999: us(all.value_at_quantile(0.999)),
    }
}

fn seed_iops(case: &Case, variant: &Variant) -> Option<f64> {
    if !plan::is_job_of_mail(case) {
        return None;
    }
    let name = match (case.experiment, variant.on.setting(), &variant.on) {
        (_, None, On::Raw(_)) => "raw".to_string(),
        (Experiment::MixedRandrw | Experiment::UnalignedOverwrite, Some(s), _) => {
            s.policy.to_string()
        }
        (Experiment::AioCompletion, Some(s), _) => s.completion.to_string(),
        (_, Some(s), _) => if s.simple { "simple on" } else { "simple off" }.into(),
        _ => return None,
    };
    let Case {
        experiment, job, ..
    } = case;
    seeds::figure(*experiment, &name, job.block_size, job.engine.depth())
}
