//! Rows 6 and 7: reads and overwrites by one thread, ÷ those of the kernel's ext4.
//!
//! The image is given, and files of mounts of copies of it (`scripts/compare-kernel` makes them). Of each side that counts
//! which is the best, blocking or with a queue, on whichever mount: the medians say which that is. All of them alternate in
//! each round, and the ratio is that within the rounds.

use super::{READ, Table, WRITE, psync, queue, speed};
use crate::compare::{On, Setting, Variant, best};
use crate::image::Image;
use crate::load::Job;
use crate::names::EXT4_MAGIC;
use crate::plan::Case;
use crate::run::fsck_check;
use crate::stage::Stage;
use crate::subject::Layer;
use crate::{BenchOptions, Experiment, Result, Target};
use dioxide::Backend;
use rustix::fs::statfs;

const DEPTH: u32 = 64;

/// A row of the table, or a part of it.
struct Goal {
    row: u8,
    what: &'static str,
    read_percent: u8,
    block_size: u32,
    least: f64,
    least_mapping: f64,
}

const GOALS: [Goal; 3] = [
    Goal {
        row: 6,
        what: "4k reads",
        read_percent: READ,
        block_size: 4096,
        least: 2.5,
        least_mapping: 6.0,
    },
    Goal {
        row: 7,
        what: "4k overwrites",
        read_percent: WRITE,
        block_size: 4096,
        least: 2.3,
        least_mapping: 6.0,
    },
    Goal {
        row: 7,
        what: "2k overwrites",
        read_percent: WRITE,
        block_size: 2048,
        least: 2.3,
        least_mapping: 6.0,
    },
];

fn is_dioxide(on: &On) -> bool {
    matches!(on, On::Dioxide(..))
}

fn is_kernel(on: &On) -> bool {
    let On::Path(subject) = on else { return false };
    statfs(&subject.path).is_ok_and(|found| found.f_type as u64 == EXT4_MAGIC)
}

impl Table<'_, '_> {
    pub(super) fn against_kernel(&mut self) -> Result<()> {
        let targets = &self.options.targets;
        let is_path = |target: &Target| matches!(target, Target::Path(_));
        let both = targets.contains(&Target::Dioxide) && targets.iter().any(is_path);
        let Some(image) = Image::given(self.options).filter(|_| both) else {
            let why = "it takes --image and the targets dioxide and path:FILE";
            self.skipped("6, 7: one thread ÷ the kernel's ext4", &why);
            return Ok(());
        };
        // Other experiments are verified; here nobody looks at what that found.
        let options = BenchOptions {
            verify: false,
            ..self.options.clone()
        };
        let mut stage = Stage::open(&options)?;
        for goal in GOALS {
            if self.wants(&[goal.row]) {
                self.one_thread(&mut stage, &goal)?;
            }
        }
        drop(stage);
        let check = fsck_check(Experiment::Rows, &image, self.options.img_offset)?;
        self.report.checks.extend(check);
        Ok(())
    }

    fn one_thread(&mut self, stage: &mut Stage<'_>, goal: &Goal) -> Result<()> {
        let Goal {
            what,
            read_percent,
            block_size,
            ..
        } = *goal;
        let mut variants = Vec::new();
        add_variants(&mut variants, stage, psync(read_percent, block_size, 1))?;
        add_variants(&mut variants, stage, queue(read_percent, block_size, DEPTH))?;
        let rounds = self.contest_of(what, &variants)?;
        let found = |is: fn(&On) -> bool| {
            let all = variants.iter().zip(&rounds);
            best(
                all.filter(|(variant, _)| is(&variant.on))
                    .map(|(_, rounds)| rounds),
            )
        };
        let (how, least) = match self.options.backend {
            Backend::Mmap => ("mapping", goal.least_mapping),
            _ => ("pread", goal.least),
        };
        let row = format!(
            "{}: {what} by one thread ÷ the kernel's ext4, {how}",
            goal.row
        );
        match found(is_dioxide).zip(found(is_kernel)) {
            Some((own, kernel)) => {
                let note = "the better of blocking and a queue of 64, of either".into();
                self.at_least(&row, speed(own, kernel), least, note);
            }
            None => self.skipped(&row, &"no target is a file of the kernel's ext4"),
        }
        Ok(())
    }
}

/// All targets with a job, behind what is in the list.
fn add_variants(all: &mut Vec<Variant>, stage: &mut Stage<'_>, job: Job) -> Result<()> {
    let first = all.len();
    let of_job = stage.variants(&Case {
        experiment: Experiment::Rows,
        job,
        sequential: false,
        layer: Layer::Bare,
        settings: vec![Setting::default()],
    })?;
    all.extend(of_job.into_iter().map(|variant| Variant {
        raw: variant.raw.map(|raw| first + raw),
        ..variant
    }));
    Ok(())
}
