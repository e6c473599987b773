//! Runs the cases of the experiments and makes rows and checks of them.

use crate::compare::{Variant, contest, size_name};
use crate::figures::make_rows;
use crate::image::Image;
use crate::load::Timing;
use crate::plan::{self, Case};
use crate::report::Machine;
use crate::stage::Stage;
use crate::{BenchOptions, Check, Experiment, Progress, Report, Result, Target, Verified};
use crate::{goals, grow, names, rows};

/// Everything that is asked for.
pub(crate) fn run(options: &BenchOptions, progress: &mut dyn Progress) -> Result<Report> {
    let asked: &[Experiment] = match options.experiments.as_slice() {
        [] => &Experiment::SEEDS,
        some => some,
    };
    plan::refuse_unused(asked, options)?;
    let mut report = Report {
        machine: Machine::here(),
        ..Report::default()
    };
    let (runs, timing) = plan::timing(options, false);
    report.config = config(options, runs, timing);
    let mut cases = Vec::new();
    for &experiment in asked.iter().filter(|e| !plan::has_own_plan(**e)) {
        cases.extend(plan::cases(experiment, options)?);
    }
    let mut ticker = Ticker::new(progress);
    ticker.expect(
        cases
            .iter()
            .map(|case| variants_of(case, options) * u64::from(runs))
            .sum(),
    );
    if !cases.is_empty() {
        let mut stage = Stage::open(options)?;
        run_cases(&mut stage, &cases, runs, timing, &mut report, &mut ticker)?;
    }
    if asked.contains(&Experiment::Rows) {
        rows::run(options, &mut report, &mut ticker)?;
    }
    if asked.contains(&Experiment::Grow) {
        grow::run(options, &mut report, &mut ticker)?;
    }
    if asked.contains(&Experiment::Names) {
        names::run(options, &mut report, &mut ticker)?;
    }
    ticker.done();
    Ok(report)
}

fn variants_of(case: &Case, options: &BenchOptions) -> u64 {
    let of = |target: &Target| match target {
        Target::Dioxide => case.settings.len() as u64,
        Target::Raw | Target::Path(_) => 1,
    };
    options.targets.iter().map(of).sum()
}

fn config(options: &BenchOptions, runs: u32, timing: Timing) -> Vec<(String, String)> {
    let image = match &options.image {
        Some(path) => path.display().to_string(),
        None => "made for the run".into(),
    };
    let pairs = [
        ("image", image),
        ("device", options.device.to_string()),
        ("backend", options.backend.to_string()),
        (
            "rounds",
            format!(
                "{runs} of {:?}, warm-up {:?}",
                timing.runtime, timing.warm_up
            ),
        ),
        ("seed", options.seed.to_string()),
        ("verify", if options.verify { "on" } else { "off" }.into()),
    ];
    pairs.map(|(name, value)| (name.to_string(), value)).into()
}

/// Counts rounds for a progress bar.
pub(crate) struct Ticker<'a> {
    progress: &'a mut dyn Progress,
    done: u64,
    total: u64,
}

impl<'a> Ticker<'a> {
    pub(crate) fn new(progress: &'a mut dyn Progress) -> Self {
        Ticker {
            progress,
            done: 0,
            total: 0,
        }
    }

    /// So many more rounds will come.
    pub(crate) fn expect(&mut self, rounds: u64) {
        self.total += rounds;
    }

    pub(crate) fn say(&mut self, what: &str) {
        self.progress.step(self.done, self.total, what);
    }

    pub(crate) fn round(&mut self, what: &str) {
        self.say(what);
        self.done += 1;
    }

    fn done(&mut self) {
        self.done = self.total;
        self.say("done");
    }
}

/// Runs experiment after experiment.
fn run_cases(
    stage: &mut Stage<'_>,
    cases: &[Case],
    runs: u32,
    timing: Timing,
    report: &mut Report,
    ticker: &mut Ticker<'_>,
) -> Result<()> {
    for of_experiment in cases.chunk_by(|a, b| a.experiment == b.experiment) {
        let experiment = of_experiment[0].experiment;
        let mut results = Vec::new();
        for case in of_experiment {
            let variants = stage.variants(case)?;
            let label = |v: &Variant| format!("{experiment} {}", v.label());
            let rounds = contest(&variants, runs, timing, |variant| {
                ticker.round(&label(variant))
            })?;
            let verified = stage.scan(&variants)?;
            let check = verified_check(experiment, case, verified);
            report.checks.extend(check);
            let pairs = variants.iter().zip(&rounds);
            for mut row in pairs.flat_map(|(v, r)| make_rows(case, v, r, &rounds)) {
                row.device = match &stage.image {
                    Some(image) => image.describe(&row.device),
                    None => row.device,
                };
                report.rows.push(row);
            }
            results.push((case, variants, rounds));
        }
        report.checks.extend(goals::of(&results));
        drop(results);
        let wrote = of_experiment.iter().any(|case| case.job.read_percent < 100);
        if let Some(image) = stage.image.as_ref().filter(|_| wrote) {
            report
                .checks
                .extend(fsck_check(experiment, image, stage.img_offset())?);
        }
    }
    Ok(())
}

fn verified_check(experiment: Experiment, case: &Case, found: Option<Verified>) -> Option<Check> {
    let found = found?;
    let wrong = found.torn + found.lost + found.misplaced;
    Some(Check {
        experiment: experiment.to_string(),
        what: format!("verify, {}", size_name(case.job.block_size)),
        target: "no sector torn, lost or misplaced".into(),
        measured: match wrong {
            0 => format!("{} sectors, none", found.sectors),
            _ => format!(
                "{} torn, {} lost, {} misplaced",
                found.torn, found.lost, found.misplaced
            ),
        },
        pass: Some(wrong == 0),
        damage: true,
        note: None,
    })
}

/// Whether the file system is still clean; nothing if e2fsck is not installed.
pub(crate) fn fsck_check(
    experiment: Experiment,
    image: &Image,
    img_offset: u64,
) -> Result<Option<Check>> {
    Ok(image.check(img_offset)?.map(|verdict| Check {
        experiment: experiment.to_string(),
        what: "e2fsck -fn".into(),
        target: "clean".into(),
        pass: Some(verdict.is_ok()),
        measured: verdict.err().unwrap_or_else(|| "clean".into()),
        damage: true,
        note: None,
    }))
}
