//! What the mails' experiments must reach.
//!
//! Each goal is a ratio within one run. It is only asked where the variants that it compares were
//! run, with the job that the mail tells of and on the device that it is about.

use crate::compare::{On, Rounds, Setting, Variant, median, ratio, size_name};
use crate::load::Outcome;
use crate::plan::{self, Case};
use crate::{Check, Experiment, seeds};
use dioxide::{CompletionMode, Policy};

/// Differences smaller than this between two policies are not an order.
const TIE: f64 = 1.05;
/// Two policies so far apart in the mail are not level here either.
const FAR_APART: f64 = 1.5;

/// What one case came to.
type Result<'a> = (&'a Case, Vec<Variant>, Vec<Rounds>);

/// The goals of one experiment.
pub(crate) fn of(results: &[Result<'_>]) -> Vec<Check> {
    results.iter().flat_map(of_case).collect()
}

fn of_case(result: &Result<'_>) -> Vec<Check> {
    let (case, ..) = result;
    if !plan::is_of_mail(case) {
        return Vec::new();
    }
    let size = case.job.block_size;
    match case.experiment {
        Experiment::UnalignedOverwrite if size == 2048 => unaligned(result).into_iter().collect(),
        Experiment::MixedRandrw => {
            let first = (size == 4096).then(|| mixed(result)).flatten();
            first.into_iter().chain(order(result)).collect()
        }
        Experiment::AioCompletion if size == 4096 => completion(result).into_iter().collect(),
        Experiment::SimpleRead => simple(result).into_iter().collect(),
        _ => Vec::new(),
    }
}

fn find<'a>(result: &'a Result<'_>, wanted: impl Fn(Setting) -> bool) -> Option<&'a Rounds> {
    let (_, variants, rounds) = result;
    let is = |variant: &Variant| matches!(variant.on, On::Dioxide(_, setting) if wanted(setting));
    variants.iter().position(is).map(|index| &rounds[index])
}

fn by_policy<'a>(result: &'a Result<'_>, policy: Policy) -> Option<&'a Rounds> {
    find(result, |setting| setting.policy == policy)
}

fn check(case: &Case, what: String, target: String, measured: String, pass: bool) -> Check {
    let experiment = case.experiment.to_string();
    Check {
        experiment,
        what,
        target,
        measured,
        pass: Some(pass),
        damage: false,
        note: None,
    }
}

/// `a` ÷ `b` of all requests must be at least so much.
fn at_least(case: &Case, what: &str, a: &Rounds, b: &Rounds, least: f64) -> Check {
    let measured = ratio(a, b, Outcome::total_iops);
    check(
        case,
        what.into(),
        format!("≥ {least}"),
        format!("{measured:.2}"),
        measured >= least,
    )
}

fn unaligned(result: &Result<'_>) -> Option<Check> {
    let (before, after) = (
        by_policy(result, Policy::V56)?,
        by_policy(result, Policy::V64)?,
    );
    Some(at_least(
        result.0,
        "2k: v6.4 ÷ v6.2, the mail's own ratio",
        after,
        before,
        185.0,
    ))
}

fn mixed(result: &Result<'_>) -> Option<Check> {
    let (before, after) = (
        by_policy(result, Policy::Parallel)?,
        by_policy(result, Policy::IlockPlus)?,
    );
    Some(at_least(
        result.0,
        "4k: ilock+ ÷ parallel",
        after,
        before,
        4.0,
    ))
}

fn completion(result: &Result<'_>) -> Option<Check> {
    let deferred = find(result, |setting| {
        setting.completion == CompletionMode::Deferred
    })?;
    let inline = find(result, |setting| {
        setting.completion == CompletionMode::Inline
    })?;
    Some(at_least(
        result.0,
        "4k: inline ÷ deferred",
        inline,
        deferred,
        1.19,
    ))
}

fn simple(result: &Result<'_>) -> Option<Check> {
    let (off, on) = (
        find(result, |setting| !setting.simple)?,
        find(result, |setting| setting.simple)?,
    );
    let (case, variants, rounds) = result;
    let cost = |outcome: &Outcome| outcome.cpu_ns_per_io;
    let measured = ratio(on, off, cost);
    let mut check = check(
        case,
        "processor time per read, simple path on ÷ off".into(),
        "≤ 0.90".into(),
        format!("{measured:.3}"),
        measured <= 0.9,
    );
    let ns = |rounds: &Rounds| median(rounds.outcomes.iter().map(cost));
    let raw = variants
        .iter()
        .position(|variant| matches!(variant.on, On::Raw(_)));
    let raw = raw.map_or(String::new(), |index| {
        format!(", raw {:.0}", ns(&rounds[index]))
    });
    check.note = Some(format!(
        "ns per read: off {:.0}, on {:.0}{raw}",
        ns(off),
        ns(on)
    ));
    Some(check)
}

/// No two policies may be the other way round than in the mail, or level where they are far apart in it.
fn order(result: &Result<'_>) -> Option<Check> {
    let (case, variants, _) = result;
    let size = case.job.block_size;
    let rates: Vec<(Policy, f64, &Rounds)> = variants
        .iter()
        .filter_map(|variant| {
            let policy = variant.on.setting()?.policy;
            let seed = seeds::figure(case.experiment, policy.id(), size, case.job.engine.depth())?;
            Some((policy, seed, by_policy(result, policy)?))
        })
        .collect();
    if rates.len() < 2 {
        return None;
    }
    let reversed = reversed(&rates);
    let mut check = check(
        case,
        format!("{}: order of {} policies", size_name(size), rates.len()),
        "as in the mail".into(),
        match reversed.is_empty() {
            true => "every pair".into(),
            false => reversed.join("; "),
        },
        reversed.is_empty(),
    );
    check.note = Some(order_note(&rates));
    Some(check)
}

fn reversed(rates: &[(Policy, f64, &Rounds)]) -> Vec<String> {
    let mut pairs = Vec::new();
    for (a, seed_a, rounds_a) in rates {
        for (b, seed_b, rounds_b) in rates {
            let measured = ratio(rounds_a, rounds_b, Outcome::total_iops);
            let mail = seed_a / seed_b;
            let least = if mail >= FAR_APART { TIE } else { 1.0 / TIE };
            if mail > TIE && (measured < least || measured.is_nan()) {
                pairs.push(format!("{a} is {measured:.2} of {b}"));
            }
        }
    }
    pairs
}

/// The order found, and why it may differ from the mail's.
fn order_note(rates: &[(Policy, f64, &Rounds)]) -> String {
    let mut best: Vec<_> = rates
        .iter()
        .map(|(policy, _, rounds)| {
            (
                *policy,
                median(rounds.outcomes.iter().map(Outcome::total_iops)),
            )
        })
        .collect();
    best.sort_by(|a, b| b.1.total_cmp(&a.1));
    let names: Vec<String> = best.iter().map(|(policy, _)| policy.to_string()).collect();
    let mut note = names.join(" > ");
    let ran = |policy| best.iter().any(|&(p, _)| p == policy);
    if ran(Policy::Parallel) && ran(Policy::IlockNew) {
        note += ". parallel and ilocknew take the same locks, so they are equal here; \
                 what sets them apart in the mail is the code below the lock in two kernels";
    }
    if ran(Policy::Ilock) {
        note += ". Writers of ilock wait once among the readers and then again alone, so more readers \
                 run together in between: here that gains more than the second wait costs";
    }
    note
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::samples::rounds;

    #[test]
    fn policies_that_the_mail_sets_far_apart_may_not_be_level() {
        let [slow, fast, faster] = [1000.0, 1040.0, 1060.0].map(|iops| rounds(&[iops]));
        let of = |seed_a, a, seed_b, b| {
            let rates = [
                (Policy::Parallel, seed_a, a),
                (Policy::IlockPlus, seed_b, b),
            ];
            reversed(&rates)
        };
        assert_eq!(
            of(7_724.0, &slow, 30_921.0, &fast),
            ["ilock+ is 1.04 of parallel"]
        );
        assert!(of(7_724.0, &slow, 30_921.0, &faster).is_empty());
        // 1.28 times in the mail: level will do, and the other way round will not.
        assert!(of(476.0, &fast, 611.0, &slow).is_empty());
        assert_eq!(
            of(476.0, &faster, 611.0, &slow),
            ["ilock+ is 0.94 of parallel"]
        );
    }
}
