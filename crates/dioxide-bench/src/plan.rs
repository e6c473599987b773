//! Experiments as lists of cases.
//!
//! A case is one job on one device, run on every target, and on dioxide in every setting that is to
//! be compared.

use crate::compare::Setting;
use crate::load::{Engine, Job, Timing};
use crate::seeds::{self, MIXED_SIZES};
use crate::subject::Layer;
use crate::{BenchOptions, DeviceChoice, Error, Experiment, Result, SimpleChoice, Target};
use dioxide::{CompletionMode, Policy, QueueOptions};
use std::time::Duration;

/// One comparison.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) experiment: Experiment,
    pub(crate) job: Job,
    pub(crate) sequential: bool,
    pub(crate) layer: Layer,
    pub(crate) settings: Vec<Setting>,
}

/// The shortest round that says anything.
const LEAST_RUNTIME: Duration = Duration::from_millis(1);

/// What an experiment is like when nothing is said about it.
struct Defaults {
    queue: bool,
    read_percent: u8,
    sequential: bool,
    jobs: u32,
    block_sizes: &'static [u32],
    depths: &'static [u32],
    policies: &'static [Policy],
    completions: &'static [CompletionMode],
    simple: SimpleChoice,
}

const MIXED_POLICIES: [Policy; 7] = [
    Policy::Parallel,
    Policy::Pre49,
    Policy::Pre49Nolock,
    Policy::Ilock,
    Policy::IlockNew,
    Policy::IlockPlus,
    Policy::IlockNewPlus,
];

fn defaults(experiment: Experiment) -> Defaults {
    let quiet = Defaults {
        queue: true,
        read_percent: 100,
        sequential: false,
        jobs: 1,
        block_sizes: &[4096],
        depths: &[512],
        policies: &[Policy::Best],
        completions: &[CompletionMode::Inline],
        simple: SimpleChoice::On,
    };
    match experiment {
        Experiment::MixedRandrw => Defaults {
            queue: false,
            read_percent: 50,
            jobs: 8,
            block_sizes: &MIXED_SIZES,
            depths: &[1],
            policies: &MIXED_POLICIES,
            ..quiet
        },
        Experiment::UnalignedOverwrite => Defaults {
            read_percent: 0,
            sequential: true,
            jobs: 8,
            block_sizes: &[2048, 4096],
            depths: &[256],
            policies: &[Policy::V56, Policy::V64, Policy::Best],
            ..quiet
        },
        Experiment::AioCompletion => Defaults {
            read_percent: 0,
            sequential: true,
            block_sizes: &[4096, 8192, 12_288, 16_384],
            depths: &[64],
            completions: &[CompletionMode::Deferred, CompletionMode::Inline],
            ..quiet
        },
        Experiment::SimpleRead | Experiment::Rows | Experiment::Grow | Experiment::Names => {
            Defaults {
                simple: SimpleChoice::Both,
                ..quiet
            }
        }
        Experiment::SimpleReadSweep => Defaults {
            simple: SimpleChoice::Both,
            depths: &[1, 64, 128, 256],
            ..quiet
        },
    }
}

/// Whether it is not one of the mails' experiments, which are lists of cases.
pub(crate) fn has_own_plan(experiment: Experiment) -> bool {
    !Experiment::SEEDS.contains(&experiment)
}

/// Refuses what would have no effect: what is asked for and not done should not look done.
///
/// # Errors
/// [`Error::Setup`], with the options that no experiment of `asked` looks at, on these targets and with these engines; for
/// rounds of no time.
pub(crate) fn refuse_unused(asked: &[Experiment], options: &BenchOptions) -> Result<()> {
    use Experiment::{Grow, Names, Rows};
    let usual = BenchOptions::default();
    let any = |uses: &dyn Fn(Experiment) -> bool| asked.iter().any(|experiment| uses(*experiment));
    let is_load = |experiment| !has_own_plan(experiment);
    let by = |more: &[Experiment]| any(&|one| is_load(one) || more.contains(&one));
    // Of the table, the rows on disk are measured on a given image, and those against the kernel on its files.
    let rows = &options.rows;
    let has = |some: [u8; 2]| rows.is_empty() || some.iter().any(|row| rows.contains(row));
    let against = asked.contains(&Rows) && has([6, 7]);
    let on_disk = has([3, 8]) || has([6, 7]);
    let on_dioxide = options.targets.contains(&Target::Dioxide);
    let on_image = on_dioxide || options.targets.contains(&Target::Raw);
    let images = |experiment| match experiment {
        Rows => on_disk,
        Names => on_dioxide,
        _ => on_image,
    };
    let queues = |experiment| {
        let Defaults { queue, depths, .. } = defaults(experiment);
        let mut depths = or(&options.iodepths, depths).iter();
        is_load(experiment) && depths.any(|&depth| engine(queue, depth, None) != Engine::Psync)
    };
    let loads = by(&[]);
    let image = any(&images);
    let uses = [
        ("--row", !rows.is_empty(), asked.contains(&Rows)),
        (
            "--target",
            options.targets != usual.targets,
            by(&[Grow, Names]) || against,
        ),
        ("--verify", options.verify, loads),
        ("--image", options.image.is_some(), image),
        ("--file", options.file != usual.file, image),
        ("--img-offset", options.img_offset != 0, image),
        ("--journal", options.journal.is_some(), image),
        (
            "--device",
            options.device != usual.device,
            by(&[Grow]) && on_image,
        ),
        (
            "--backend",
            options.backend != usual.backend,
            any(&|one| (one != Rows || against) && images(one)),
        ),
        ("--size", options.size_bytes.is_some(), by(&[Rows, Grow])),
        (
            "--policy",
            !options.policies.is_empty(),
            loads && on_dioxide,
        ),
        (
            "--completion",
            !options.completions.is_empty(),
            any(&queues) && on_dioxide,
        ),
        ("--simple", options.simple.is_some(), loads && on_dioxide),
        ("--runtime", options.runtime.is_some(), by(&[Rows])),
        ("--block-size", !options.block_sizes.is_empty(), loads),
        ("--iodepth", !options.iodepths.is_empty(), loads),
        ("--batch", options.batch.is_some(), any(&queues)),
        ("--numjobs", options.numjobs.is_some(), loads),
        ("--mix", options.mix.is_some(), loads),
        ("--files", options.files.is_some(), asked.contains(&Names)),
        ("--seed", options.seed != usual.seed, by(&[Rows, Grow])),
    ];
    let unused = uses.iter().filter(|(_, given, used)| *given && !used);
    let unused: Vec<&str> = unused.map(|(name, ..)| *name).collect();
    if !unused.is_empty() {
        let asked: Vec<_> = asked.iter().map(|experiment| experiment.id()).collect();
        return Err(Error::Setup(format!(
            "{} has no use for {}: leave it out, or name an experiment, a target or a depth that has",
            asked.join(", "),
            unused.join(", ")
        )));
    }
    match options.runtime {
        Some(runtime) if runtime < LEAST_RUNTIME => Err(Error::Setup(format!(
            "a runtime of {runtime:?}: a round takes {LEAST_RUNTIME:?} or more"
        ))),
        _ => Ok(()),
    }
}

/// The cases of one experiment.
pub(crate) fn cases(experiment: Experiment, options: &BenchOptions) -> Result<Vec<Case>> {
    let defaults = defaults(experiment);
    let mut cases = Vec::new();
    for &block_size in or(&options.block_sizes, defaults.block_sizes) {
        for &depth in or(&options.iodepths, defaults.depths) {
            let engine = engine(defaults.queue, depth, options.batch);
            let job = Job {
                engine,
                read_percent: options.mix.unwrap_or(defaults.read_percent),
                block_size,
                jobs: options.numjobs.unwrap_or(defaults.jobs),
                seed: options.seed,
            };
            let layer = layer(experiment, options, block_size);
            let case = Case {
                experiment,
                job,
                sequential: defaults.sequential,
                layer,
                settings: settings(&defaults, options, engine),
            };
            check(&case, options)?;
            cases.push(case);
        }
    }
    Ok(cases)
}

/// Whether a case's job is the one that the mail tells of.
pub(crate) fn is_job_of_mail(case: &Case) -> bool {
    let Defaults {
        read_percent,
        jobs,
        block_sizes,
        depths,
        ..
    } = defaults(case.experiment);
    let job = case.job;
    (job.read_percent, job.jobs) == (read_percent, jobs)
        && block_sizes.contains(&job.block_size)
        && depths.contains(&job.engine.depth())
}

/// Whether its device is too.
pub(crate) fn is_of_mail(case: &Case) -> bool {
    let usual = BenchOptions::default();
    is_job_of_mail(case) && case.layer == layer(case.experiment, &usual, case.job.block_size)
}

/// What was asked for, or what is usual.
fn or<'a, T>(asked: &'a [T], usual: &'a [T]) -> &'a [T] {
    if asked.is_empty() { usual } else { asked }
}

fn settings(defaults: &Defaults, options: &BenchOptions, engine: Engine) -> Vec<Setting> {
    let mut all = Vec::new();
    let completions = or(&options.completions, defaults.completions);
    let completions = match engine {
        Engine::Queue { .. } => completions,
        // Nothing completes later: all modes are one.
        Engine::Psync => &completions[..1],
    };
    for &policy in or(&options.policies, defaults.policies) {
        for &completion in completions {
            for simple in options.simple.unwrap_or(defaults.simple).settings() {
                all.push(Setting {
                    policy,
                    completion,
                    simple,
                });
            }
        }
    }
    all
}

fn engine(queue: bool, depth: u32, batch: Option<u32>) -> Engine {
    match queue || depth != 1 {
        true => Engine::Queue {
            depth,
            batch: batch.unwrap_or((depth / 4).clamp(1, 32)),
        },
        false => Engine::Psync,
    }
}

fn layer(experiment: Experiment, options: &BenchOptions, block_size: u32) -> Layer {
    let seed = || {
        seeds::device(experiment, block_size).map_or(Layer::Bare, |spec| Layer::Sim(Box::new(spec)))
    };
    match &options.device {
        DeviceChoice::Auto => match experiment {
            Experiment::MixedRandrw | Experiment::UnalignedOverwrite => seed(),
            // About software alone; that has nothing to read, though.
            Experiment::SimpleRead if !options.verify => Layer::Null,
            _ => Layer::Bare,
        },
        DeviceChoice::Image => Layer::Bare,
        DeviceChoice::Seed => seed(),
        DeviceChoice::Sim(spec) => Layer::Sim(spec.clone()),
        DeviceChoice::Null => Layer::Null,
    }
}

fn check(case: &Case, options: &BenchOptions) -> Result<()> {
    let Job {
        engine,
        read_percent,
        block_size,
        jobs,
        ..
    } = case.job;
    let bad = |what: String| Err(Error::Setup(what));
    if block_size == 0 || !block_size.is_multiple_of(512) || block_size > 1 << 30 {
        return bad(format!(
            "block size {block_size}: it must be a multiple of 512, at most 1 GiB"
        ));
    }
    if jobs == 0 || jobs > 1024 {
        return bad(format!("{jobs} jobs: there must be 1 to 1024"));
    }
    if read_percent > 100 {
        return bad(format!("a mix of {read_percent} % reads"));
    }
    if let Engine::Queue { depth, batch } = engine
        && (depth == 0 || depth > QueueOptions::MAX_DEPTH || batch == 0)
    {
        return bad(format!(
            "depth {depth} and batch {batch}: a depth is 1 to {}, a batch 1 or more",
            QueueOptions::MAX_DEPTH
        ));
    }
    if case.layer == Layer::Null && engine == Engine::Psync {
        return bad(format!(
            "{}: the null device measures queues only",
            case.experiment
        ));
    }
    if case.layer == Layer::Null && options.verify {
        return bad("the null device keeps no data, so there is nothing to verify".into());
    }
    Ok(())
}

/// How many rounds, and how long each.
pub(crate) fn timing(options: &BenchOptions, rows: bool) -> (u32, Timing) {
    // The table is about ratios near 1: many short rounds tell those better than few long ones.
    let (runs, ms) = match (rows, options.quick) {
        (false, false) => (5, 1000),
        (false, true) => (3, 200),
        (true, false) => (41, 30),
        (true, true) => (21, 20),
    };
    let usual = Duration::from_millis(ms);
    let runtime = options.runtime.unwrap_or(usual);
    let warm_up = (runtime / 4).clamp(Duration::from_millis(5), Duration::from_secs(2));
    (
        options.runs.unwrap_or(runs).max(1),
        Timing { warm_up, runtime },
    )
}

/// `randread`, `write` and so on, of reads (0) or writes (1).
pub(crate) fn rw_name(case_sequential: bool, read_percent: u8, side: usize) -> &'static str {
    match (case_sequential, read_percent, side) {
        (true, 100, _) => "read",
        (true, 0, _) => "write",
        (true, _, 0) => "rw:read",
        (true, _, _) => "rw:write",
        (false, 100, _) => "randread",
        (false, 0, _) => "randwrite",
        (false, _, 0) => "randrw:read",
        (false, _, _) => "randrw:write",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dioxide::Backend;

    fn plan(experiment: Experiment, options: &BenchOptions) -> Vec<Case> {
        cases(experiment, options).unwrap()
    }

    #[test]
    fn defaults_are_the_parameters_of_the_mails() {
        let options = BenchOptions::default();
        let mixed = plan(Experiment::MixedRandrw, &options);
        assert_eq!(mixed.len(), 5);
        assert_eq!(mixed[0].settings.len(), 7);
        assert_eq!(mixed[0].job.engine, Engine::Psync);
        assert_eq!((mixed[0].job.jobs, mixed[0].job.read_percent), (8, 50));
        assert!(matches!(mixed[0].layer, Layer::Sim(_)));

        let unaligned = plan(Experiment::UnalignedOverwrite, &options);
        assert_eq!(
            unaligned[0].job.engine,
            Engine::Queue {
                depth: 256,
                batch: 32
            }
        );
        assert_eq!(
            (unaligned[0].job.jobs, unaligned[0].job.block_size),
            (8, 2048)
        );

        let aio = plan(Experiment::AioCompletion, &options);
        assert_eq!(
            aio.iter().map(|c| c.job.block_size).collect::<Vec<_>>(),
            [4096, 8192, 12_288, 16_384]
        );
        assert_eq!(aio[0].job.engine.depth(), 64);

        let rw = |experiment| {
            let name = |case: &Case| rw_name(case.sequential, case.job.read_percent, 0);
            let mut names: Vec<_> = plan(experiment, &options).iter().map(name).collect();
            names.dedup();
            names
        };
        assert_eq!(rw(Experiment::MixedRandrw), ["randrw:read"]);
        assert_eq!(rw(Experiment::UnalignedOverwrite), ["write"]);
        assert_eq!(rw(Experiment::AioCompletion), ["write"]);
        assert_eq!(rw(Experiment::SimpleRead), ["randread"]);
        assert_eq!(rw(Experiment::SimpleReadSweep), ["randread"]);

        let sweep = plan(Experiment::SimpleReadSweep, &options);
        assert_eq!(
            sweep
                .iter()
                .map(|c| c.job.engine.depth())
                .collect::<Vec<_>>(),
            [1, 64, 128, 256]
        );
        assert_eq!(
            plan(Experiment::SimpleRead, &options)[0].job.engine,
            Engine::Queue {
                depth: 512,
                batch: 32
            }
        );
    }

    #[test]
    fn cases_are_of_the_mail_where_nothing_that_it_tells_is_changed() {
        let all = |options: &BenchOptions| {
            let of = |experiment| plan(experiment, options);
            let cases = Experiment::SEEDS.into_iter().flat_map(of);
            cases.collect::<Vec<_>>()
        };
        let usual = BenchOptions::default();
        for options in [
            usual.clone(),
            BenchOptions {
                quick: true,
                seed: 7,
                size_bytes: Some(4096),
                batch: Some(1),
                policies: vec![Policy::V56],
                ..usual.clone()
            },
        ] {
            assert!(all(&options).iter().all(is_of_mail));
        }
        let changed = |change: fn(&mut BenchOptions)| {
            let mut options = usual.clone();
            change(&mut options);
            all(&options)
        };
        for cases in [
            changed(|options| options.numjobs = Some(3)),
            changed(|options| options.mix = Some(30)),
            changed(|options| options.iodepths = vec![32]),
            changed(|options| options.block_sizes = vec![512]),
        ] {
            assert!(!cases.iter().any(is_job_of_mail));
        }
        let cases = changed(|options| options.device = "sim:latency=1us".parse().unwrap());
        assert!(cases.iter().all(is_job_of_mail) && !cases.iter().any(is_of_mail));
    }

    #[test]
    fn what_is_asked_for_replaces_the_defaults() {
        let options = BenchOptions {
            policies: vec![Policy::Xfs],
            simple: Some(SimpleChoice::Both),
            block_sizes: vec![512],
            iodepths: vec![4, 8],
            numjobs: Some(2),
            mix: Some(70),
            device: DeviceChoice::Image,
            ..BenchOptions::default()
        };
        let cases = plan(Experiment::MixedRandrw, &options);
        assert_eq!(cases.len(), 2);
        assert_eq!(cases[1].job.engine, Engine::Queue { depth: 8, batch: 2 });
        assert_eq!((cases[0].job.jobs, cases[0].job.read_percent), (2, 70));
        assert_eq!(
            cases[0]
                .settings
                .iter()
                .map(|s| s.simple)
                .collect::<Vec<_>>(),
            [false, true]
        );
        assert_eq!(cases[0].layer, Layer::Bare);
    }

    #[test]
    fn options_that_no_experiment_uses_are_refused_by_name() {
        use Experiment::{Grow, Names, Rows, SimpleRead};
        let refused = |asked: &[Experiment], options: &BenchOptions| {
            let refused = refuse_unused(asked, options);
            refused.err().map(|error| error.to_string())
        };
        let verified = BenchOptions {
            verify: true,
            policies: vec![Policy::Xfs],
            ..BenchOptions::default()
        };
        for asked in [Rows, Grow, Names] {
            let words = format!("{asked} has no use for --verify, --policy: ");
            let why = refused(&[asked], &verified);
            assert!(why.is_some_and(|why| why.starts_with(&words)), "{asked}");
            assert_eq!(refused(&[asked, SimpleRead], &verified), None);
        }
        let row = |row| BenchOptions {
            rows: vec![row],
            image: Some("disk.img".into()),
            ..BenchOptions::default()
        };
        assert_eq!(refused(&[Rows], &row(3)), None);
        assert!(refused(&[Rows], &row(1)).is_some_and(|why| why.contains(" --image:")));
        assert!(refused(&[SimpleRead], &row(3)).is_some_and(|why| why.contains(" --row:")));
    }

    #[test]
    fn options_that_targets_and_engines_do_not_use_are_refused_by_name() {
        use Experiment::{Grow, MixedRandrw, Names, SimpleRead};
        let path = |name: &str| Target::Path(name.into());
        let refused = |asked, options: &BenchOptions| {
            let error = refuse_unused(&[asked], options).err()?.to_string();
            let (_, names) = error.split_once(" for ")?;
            Some(names.split_once(':')?.0.to_string())
        };
        let engine = |targets| BenchOptions {
            targets,
            policies: vec![Policy::Xfs],
            completions: vec![CompletionMode::Deferred],
            simple: Some(SimpleChoice::Both),
            ..BenchOptions::default()
        };
        let of_engine = Some("--policy, --completion, --simple".to_string());
        for targets in [vec![path("/a")], vec![Target::Raw, path("/a")]] {
            assert_eq!(refused(SimpleRead, &engine(targets)), of_engine);
        }
        let beside = vec![Target::Dioxide, path("/a")];
        assert_eq!(refused(SimpleRead, &engine(beside)), None);

        let place = |targets| BenchOptions {
            targets,
            image: Some("disk.img".into()),
            file: "/data".into(),
            journal: Some("journal".into()),
            device: DeviceChoice::Image,
            backend: Backend::Pread,
            ..BenchOptions::default()
        };
        let of_place = "--image, --file, --journal, --device, --backend".to_string();
        for asked in [SimpleRead, Grow] {
            let refused = |targets| refused(asked, &place(targets));
            assert_eq!(refused(vec![path("/a")]), Some(of_place.clone()));
            assert_eq!(refused(vec![Target::Raw]), None);
        }
        let named = BenchOptions {
            device: DeviceChoice::Auto,
            ..place(vec![Target::Raw, path("/a")])
        };
        let of_names = of_place.replace("--device, ", "");
        assert_eq!(refused(Names, &named), Some(of_names));

        let queue = |iodepths| BenchOptions {
            iodepths,
            batch: Some(2),
            completions: vec![CompletionMode::Deferred],
            ..BenchOptions::default()
        };
        let of_queues = Some("--completion, --batch".to_string());
        assert_eq!(refused(MixedRandrw, &queue(vec![])), of_queues);
        assert_eq!(refused(MixedRandrw, &queue(vec![1, 4])), None);
        assert_eq!(refused(SimpleRead, &queue(vec![1])), None);
    }

    #[test]
    fn blocking_requests_know_one_completion_only() {
        let options = BenchOptions {
            iodepths: vec![1, 4],
            policies: vec![Policy::Xfs],
            completions: vec![CompletionMode::Deferred, CompletionMode::Inline],
            block_sizes: vec![4096],
            ..BenchOptions::default()
        };
        let cases = plan(Experiment::MixedRandrw, &options);
        let settings: Vec<usize> = cases.iter().map(|case| case.settings.len()).collect();
        assert_eq!(settings, [1, 2]);
    }

    #[test]
    fn depth_that_queues_do_not_take_is_refused() {
        let of = |depth| BenchOptions {
            iodepths: vec![depth],
            ..BenchOptions::default()
        };
        assert!(cases(Experiment::SimpleRead, &of(4096)).is_ok());
        let error = cases(Experiment::SimpleRead, &of(4097)).unwrap_err();
        assert!(error.to_string().contains("1 to 4096"), "{error}");
    }

    #[test]
    fn runtime_below_a_millisecond_is_refused() {
        let of = |us| BenchOptions {
            runtime: Some(Duration::from_micros(us)),
            ..BenchOptions::default()
        };
        assert!(refuse_unused(&Experiment::SEEDS, &of(999)).is_err());
        assert!(refuse_unused(&Experiment::SEEDS, &of(1000)).is_ok());
    }

    #[test]
    fn senseless_options_are_refused() {
        let refused = |options: BenchOptions| cases(Experiment::MixedRandrw, &options).is_err();
        assert!(refused(BenchOptions {
            block_sizes: vec![1000],
            ..BenchOptions::default()
        }));
        assert!(refused(BenchOptions {
            numjobs: Some(0),
            ..BenchOptions::default()
        }));
        assert!(refused(BenchOptions {
            mix: Some(101),
            ..BenchOptions::default()
        }));
        assert!(refused(BenchOptions {
            iodepths: vec![0],
            ..BenchOptions::default()
        }));
        assert!(refused(BenchOptions {
            device: DeviceChoice::Null,
            ..BenchOptions::default()
        }));
        let null = BenchOptions {
            device: DeviceChoice::Null,
            verify: true,
            ..BenchOptions::default()
        };
        assert!(cases(Experiment::SimpleRead, &null).is_err());
    }
}
