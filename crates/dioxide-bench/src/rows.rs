//! The rows of the performance table that one process can measure by itself.
//!
//! | Row | What | Where |
//! |---|---|---|
//! | 1, 2 | 4k random reads ÷ raw, blocking, 1 thread | image in memory: pread, mapping |
//! | 3 | the same, queued, depth 32 | image on disk, io_uring |
//! | 4 | overwrites of 4k, 2k, 512 ÷ raw; 2k also on 8 threads | image in memory: pread, mapping |
//! | 5 | queued reads ÷ raw, data to `/dev/null` | null device |
//! | 6, 7 | 4k reads, 4k and 2k overwrites by one thread ÷ the kernel's ext4 | given image, files of mounts |
//! | 8 | time of a request at depth 1 ÷ raw | image in memory: pread; image on disk: io_uring |
//! | 9 | 2k ÷ 4k overwrites, 8 threads | image in memory: pread, mapping |
//! | 10 | 1 thread → 2 | image in memory: mapping; pread against raw's own |
//! | 11 | reads while another thread appends, truncates ÷ alone, and what that does ÷ alone | image in memory: pread, mapping |
//! | 12 | many extents ÷ few | image in memory: pread, mapping |
//! | 13 | names in a directory of ten million ÷ ten thousand ÷ one: lookup, creation, memory | image in memory: pread |
//! | 16 | file system of 16 TiB ÷ a small one: reads, time to open, memory | sparse image in memory |
//!
//! Rows about the kernel's file system and FUSE need mounts, which `scripts/compare-kernel` and `compare-mounts` make: of
//! those about names (14, 15) `dioxide bench names` judges. The
//! counted row (17) is a test. With `--image` that image stands for the one on disk: a loop device,
//! say.

mod beside;
mod entries;
mod kernel;
mod size;

use crate::compare::{On, Rounds, Setting, Variant, contest, median, ratio};
use crate::figures::make_rows;
use crate::image::{self, Image, NewFile};
use crate::load::{Engine, Job, Outcome, Timing};
use crate::offsets::{Order, Pattern};
use crate::plan::{self, Case};
use crate::processors::Distance;
use crate::run::{Ticker, fsck_check};
use crate::subject::{self, Layer, Subject};
use crate::{BenchOptions, Check, Error, Experiment, Report, Result};
use dioxide::Backend;
use std::sync::Arc;

const MIB: u64 = 1 << 20;
const FILE: &str = "bench.data";

/// Measures all of them.
pub(crate) fn run(
    options: &BenchOptions,
    report: &mut Report,
    ticker: &mut Ticker<'_>,
) -> Result<()> {
    let (runs, timing) = plan::timing(options, true);
    let size = options
        .size_bytes
        .unwrap_or(if options.quick { 256 * MIB } else { 1024 * MIB });
    let mut table = Table {
        options,
        report,
        ticker,
        runs,
        timing,
        size,
    };
    // Memory before all else: the allocator keeps what other rows free, and what grows into that is not seen.
    if table.wants(&[16]) {
        table.image_size()?;
    }
    if table.wants(&[13]) {
        table.entries()?;
    }
    if table.wants(&[6, 7]) {
        table.against_kernel()?;
    }
    if table.wants(&[1, 2, 4, 5, 8, 9, 10, 11]) {
        table.in_memory()?;
    }
    if table.wants(&[3, 8]) {
        table.on_disk()?;
    }
    if table.wants(&[12]) {
        table.extents(340, 0.97)?;
        table.extents(10_000, 0.95)?;
        table.extents(1 << 20, 0.85)?;
    }
    Ok(())
}

struct Table<'a, 'b> {
    options: &'a BenchOptions,
    report: &'a mut Report,
    ticker: &'a mut Ticker<'b>,
    runs: u32,
    timing: Timing,
    size: u64,
}

/// A variant before its order is known.
struct Entry {
    on: On,
    job: Job,
    raw: Option<usize>,
}

fn raw(subject: &Arc<Subject>, job: Job) -> Entry {
    Entry {
        on: On::Raw(subject.clone()),
        job,
        raw: None,
    }
}

/// Measured against the first entry if that is raw.
fn dioxide(subject: &Arc<Subject>, job: Job) -> Entry {
    Entry {
        on: On::Dioxide(subject.clone(), Setting::default()),
        job,
        raw: Some(0),
    }
}

fn psync(read_percent: u8, block_size: u32, jobs: u32) -> Job {
    Job {
        engine: Engine::Psync,
        read_percent,
        block_size,
        jobs,
        seed: 1,
    }
}

fn queue(read_percent: u8, block_size: u32, depth: u32) -> Job {
    let batch = (depth / 4).clamp(1, 32);
    Job {
        engine: Engine::Queue { depth, batch },
        read_percent,
        block_size,
        jobs: 1,
        seed: 1,
    }
}

const READ: u8 = 100;
const WRITE: u8 = 0;

/// Nanoseconds per request of `a` less those of `b`, one thread each: median over the rounds.
fn added_ns(a: &Rounds, b: &Rounds) -> f64 {
    let ns = |outcome: &Outcome| 1e9 / outcome.total_iops();
    median(
        a.outcomes
            .iter()
            .zip(&b.outcomes)
            .map(|(a, b)| ns(a) - ns(b)),
    )
}

fn speed(a: &Rounds, b: &Rounds) -> f64 {
    ratio(a, b, Outcome::total_iops)
}

impl Table<'_, '_> {
    /// Whether one of these rows is asked for.
    fn wants(&self, rows: &[u8]) -> bool {
        let asked = &self.options.rows;
        asked.is_empty() || rows.iter().any(|row| asked.contains(row))
    }

    fn image(&self, bytes: u64, files: &[NewFile<'_>]) -> Result<Image> {
        let data = files.iter().map(|file| file.bytes).sum();
        Image::make(
            &image::scratch(self.options.scratch.as_deref(), data),
            bytes,
            files,
        )
    }

    fn whole_file(&self) -> NewFile<'static> {
        NewFile {
            name: FILE,
            bytes: self.size,
            extents: 1,
        }
    }

    /// Runs entries against each other; their figures become rows named `name`.
    fn contest(&mut self, name: &str, entries: Vec<Entry>) -> Result<Vec<Rounds>> {
        let variants: Vec<Variant> = entries
            .into_iter()
            .map(|entry| self.variant(entry))
            .collect();
        self.contest_of(name, &variants)
    }

    fn contest_of(&mut self, name: &str, variants: &[Variant]) -> Result<Vec<Rounds>> {
        self.ticker
            .expect(variants.len() as u64 * u64::from(self.runs));
        let rounds = contest(variants, self.runs, self.timing, |variant| {
            self.ticker.round(&format!("{name} {}", variant.label()));
        })?;
        for (variant, of_variant) in variants.iter().zip(&rounds) {
            let case = Case {
                experiment: Experiment::Rows,
                job: variant.job,
                sequential: false,
                layer: Layer::Bare,
                settings: Vec::new(),
            };
            for mut row in make_rows(&case, variant, of_variant, &rounds) {
                row.experiment = name.into();
                self.report.rows.push(row);
            }
        }
        Ok(rounds)
    }

    fn variant(&self, entry: Entry) -> Variant {
        let Entry { on, job, raw } = entry;
        let (On::Raw(subject) | On::Dioxide(subject, _)) = &on else {
            unreachable!("the table has no paths")
        };
        let pattern = Pattern::Shuffled {
            seed: self.options.seed,
        };
        let order = Order::new(&subject.runs, subject.size, job.block_size, pattern);
        Variant {
            on,
            job,
            order: order.into(),
            ledger: None,
            raw,
        }
    }

    /// Raw and dioxide in one job.
    fn pair(&mut self, name: &str, subject: &Arc<Subject>, job: Job) -> Result<[Rounds; 2]> {
        let rounds = self.contest(name, vec![raw(subject, job), dioxide(subject, job)])?;
        Ok(rounds.try_into().expect("two entries"))
    }

    /// Tells the rows of the last contest apart by their names.
    fn rename_last<const N: usize>(&mut self, names: [String; N]) {
        let rows = self.report.rows.iter_mut().rev();
        for (row, name) in rows.zip(names.into_iter().rev()) {
            row.experiment = name;
        }
    }

    fn check(
        &mut self,
        row: &str,
        target: String,
        measured: String,
        pass: bool,
        note: Option<String>,
    ) {
        self.told(row, target, measured, Some(pass), note);
    }

    fn told(
        &mut self,
        row: &str,
        target: String,
        measured: String,
        pass: Option<bool>,
        note: Option<String>,
    ) {
        self.report.checks.push(Check {
            experiment: Experiment::Rows.to_string(),
            what: row.into(),
            target,
            measured,
            pass,
            damage: false,
            note,
        });
    }

    fn at_least(&mut self, row: &str, measured: f64, least: f64, note: String) {
        let (target, told) = (format!("≥ {least}"), format!("{measured:.3}"));
        self.check(row, target, told, measured >= least, Some(note));
    }

    fn at_most(&mut self, row: &str, measured: f64, most: f64) {
        self.at_most_noted(row, measured, most, None);
    }

    fn at_most_noted(&mut self, row: &str, measured: f64, most: f64, note: Option<String>) {
        let (target, told) = (format!("≤ {most}"), format!("{measured:.3}"));
        self.check(row, target, told, measured <= most, note);
    }

    /// A pair, judged by its ratio, and by the nanoseconds it adds if there is a limit.
    fn judged_pair(
        &mut self,
        row: &str,
        name: &str,
        subject: &Arc<Subject>,
        job: Job,
        goal: (f64, Option<f64>),
    ) -> Result<[Rounds; 2]> {
        let pair = self.pair(name, subject, job)?;
        let [raw, dioxide] = &pair;
        let (measured, added) = (speed(dioxide, raw), added_ns(dioxide, raw));
        let (least, most_ns) = goal;
        let limit = most_ns.map_or(String::new(), |ns| format!(", ≤ {ns} ns added"));
        let shown = most_ns.map_or(String::new(), |_| format!(", {added:.1} ns"));
        let pass = measured >= least && most_ns.is_none_or(|ns| added <= ns);
        let cpu = |rounds: &Rounds| median(rounds.outcomes.iter().map(|o| o.cpu_ns_per_io));
        let note = format!(
            "processor time per request: {:.0} ns, raw {:.0}",
            cpu(dioxide),
            cpu(raw)
        );
        self.check(
            row,
            format!("≥ {least}{limit}"),
            format!("{measured:.3}{shown}"),
            pass,
            Some(note),
        );
        Ok(pair)
    }

    fn in_memory(&mut self) -> Result<()> {
        let image = self.image(self.size + self.size / 8 + 32 * MIB, &[self.whole_file()])?;
        if !self.is_in_memory(&image, "1, 2, 4, 5, 8 to 11: an image in memory")? {
            return Ok(());
        }
        for backend in [Backend::Pread, Backend::Mmap] {
            let device = subject::open_image(&image, backend, 0)?;
            let subject = Arc::new(Subject::open(&device, &Layer::Bare, FILE, self.size)?);
            subject.fill()?;
            match backend {
                Backend::Pread => self.pread(&subject)?,
                _ => self.mapping(&subject)?,
            }
            let name = if backend == Backend::Pread {
                "pread"
            } else {
                "mapping"
            };
            if self.wants(&[11]) {
                self.beside(&subject, name)?;
            }
            // What changed is to be all on the image when e2fsck looks at it.
            subject.close()?;
        }
        if self.wants(&[5]) {
            self.overhead(&subject::open_image(&image, Backend::Auto, 0)?)?;
        }
        self.fsck(&image)
    }

    fn pread(&mut self, subject: &Arc<Subject>) -> Result<()> {
        if self.wants(&[1, 8]) {
            let pair = self.judged_pair(
                "1: 4k reads ÷ raw, pread",
                "read-4k",
                subject,
                psync(READ, 4096, 1),
                (0.97, Some(40.0)),
            )?;
            self.at_most(
                "8: time at depth 1 ÷ raw, pread",
                speed(&pair[0], &pair[1]),
                1.03,
            );
        }
        if self.wants(&[4]) {
            self.overwrites("pread", subject)?;
            self.many_overwriters(subject)?;
        }
        if self.wants(&[9]) {
            self.unaligned("pread", subject)?;
        }
        if self.wants(&[10]) {
            self.scaling_of_calls(subject)?;
        }
        Ok(())
    }

    fn many_overwriters(&mut self, subject: &Arc<Subject>) -> Result<()> {
        let row = "4: 2k overwrites ÷ raw, pread, 8 threads";
        self.judged_pair(
            row,
            "overwrite-2k",
            subject,
            psync(WRITE, 2048, 8),
            (0.97, None),
        )?;
        Ok(())
    }

    fn unaligned(&mut self, backend: &str, subject: &Arc<Subject>) -> Result<()> {
        let entries = [raw, dioxide].into_iter().flat_map(|target| {
            [2048, 4096].map(|size| Entry {
                raw: None,
                ..target(subject, psync(WRITE, size, 8))
            })
        });
        let rounds = self.contest("unaligned", entries.collect())?;
        self.at_least(
            &format!("9: 2k ÷ 4k overwrites, {backend}, 8 threads"),
            speed(&rounds[2], &rounds[3]),
            1.0,
            format!("raw's own is {:.3}", speed(&rounds[0], &rounds[1])),
        );
        Ok(())
    }

    fn scaling_of_calls(&mut self, subject: &Arc<Subject>) -> Result<()> {
        let [raw_scales, scales] = self.scaling(subject, (WRITE, 4096))?;
        // Two ratios of noisy figures: 3 % is not a difference.
        let least = raw_scales * 0.97;
        self.check(
            "10: overwrites, 1 → 2 threads, pread",
            format!("≥ {least:.3}, 0.97 of raw's own"),
            format!("{scales:.3}"),
            scales >= least,
            Some(format!("raw's own is {raw_scales:.3}")),
        );
        Ok(())
    }

    fn mapping(&mut self, subject: &Arc<Subject>) -> Result<()> {
        if self.wants(&[2]) {
            self.judged_pair(
                "2: 4k reads ÷ raw, mapping",
                "read-4k",
                subject,
                psync(READ, 4096, 1),
                (0.97, Some(14.0)),
            )?;
        }
        if self.wants(&[4]) {
            self.overwrites("mapping", subject)?;
        }
        if self.wants(&[9]) {
            self.unaligned("mapping", subject)?;
        }
        if self.wants(&[10]) {
            self.scaling_by_mapping("reads", subject, (READ, 4096), 1.85)?;
            self.scaling_by_mapping("overwrites", subject, (WRITE, 4096), 1.8)?;
            // Memory bounds what two threads write, but not how many requests they make of so few bytes.
            self.scaling_by_mapping("512 overwrites", subject, (WRITE, 512), 1.8)?;
        }
        Ok(())
    }

    fn scaling_by_mapping(
        &mut self,
        what: &str,
        subject: &Arc<Subject>,
        requests: (u8, u32),
        least: f64,
    ) -> Result<()> {
        let before = Distance::measure();
        let [raw, dioxide] = self.scaling(subject, requests)?;
        let after = Distance::measure();
        self.at_least(
            &format!("10: {what}, 1 → 2 threads, mapping"),
            dioxide,
            least,
            format!("raw's own is {raw:.3}; a line to the other processor and back: {before}, afterwards {after}"),
        );
        Ok(())
    }

    fn overwrites(&mut self, backend: &str, subject: &Arc<Subject>) -> Result<()> {
        for (name, size) in [("4k", 4096), ("2k", 2048), ("512", 512)] {
            let row = format!("4: {name} overwrites ÷ raw, {backend}");
            let job = psync(WRITE, size, 1);
            self.judged_pair(
                &row,
                &format!("overwrite-{name}"),
                subject,
                job,
                (0.97, None),
            )?;
        }
        Ok(())
    }

    /// How raw and dioxide go from one thread to two.
    fn scaling(
        &mut self,
        subject: &Arc<Subject>,
        (read_percent, block_size): (u8, u32),
    ) -> Result<[f64; 2]> {
        let job = |jobs| psync(read_percent, block_size, jobs);
        let mut entries = Vec::new();
        for jobs in [1, 2] {
            entries.push(raw(subject, job(jobs)));
            let first = entries.len() - 1;
            entries.push(Entry {
                raw: Some(first),
                ..dioxide(subject, job(jobs))
            });
        }
        let rounds = self.contest("scaling", entries)?;
        Ok([speed(&rounds[2], &rounds[0]), speed(&rounds[3], &rounds[1])])
    }

    fn overhead(&mut self, device: &Arc<dyn dioxide::block::Device>) -> Result<()> {
        let row = "5: queued 4k reads ÷ raw, data to /dev/null";
        let opened = Subject::open(device, &Layer::Null, FILE, self.size);
        let Some(subject) = self.or_skipped(row, opened)? else {
            return Ok(());
        };
        let (subject, goal) = (Arc::new(subject), (0.95, Some(10.0)));
        self.judged_pair(row, "overhead", &subject, queue(READ, 4096, 512), goal)?;
        subject.close()
    }

    /// What there is; nothing, and a row that is skipped, where this machine or kernel has no such thing. All else is an error.
    fn or_skipped<T>(&mut self, row: &str, found: Result<T>) -> Result<Option<T>> {
        match found {
            Ok(found) => Ok(Some(found)),
            Err(error @ Error::Device(dioxide::block::Error::Unsupported { .. })) => {
                self.skipped(row, &error);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// A row that cannot be measured here is no miss, but it is told.
    fn skipped(&mut self, row: &str, why: &dyn std::fmt::Display) {
        let measured = format!("not measured: {why}");
        self.told(row, "-".into(), measured, None, None);
    }

    /// Whether an image that was made lies in memory, which has not always room; else these rows are skipped.
    fn is_in_memory(&mut self, image: &Image, rows: &str) -> Result<bool> {
        let device = subject::open_image(image, Backend::Pread, 0)?;
        let is_in_memory = device.geometry().inline;
        if !is_in_memory {
            self.skipped(rows, &"the directory for images is not in memory");
        }
        Ok(is_in_memory)
    }

    fn on_disk(&mut self) -> Result<()> {
        let row = "3: queued 4k reads ÷ raw, io_uring, image on disk or given";
        let size = self.size.min(256 * MIB);
        let (image, name) = match Image::given(self.options) {
            Some(given) => (given, self.options.file.as_str()),
            None => {
                let file = NewFile {
                    bytes: size,
                    ..self.whole_file()
                };
                let made = Image::make(&std::env::temp_dir(), size + size / 8 + 32 * MIB, &[file]);
                (made?, FILE)
            }
        };
        let img_offset = self.options.img_offset;
        let opened = subject::open_image(&image, Backend::Uring, img_offset);
        let Some(device) = self.or_skipped(row, opened)? else {
            return Ok(());
        };
        if device.geometry().inline {
            self.skipped(row, &"the directory for temporary files is in memory");
            return Ok(());
        }
        let subject = Subject::open_with(
            &device,
            &Layer::Bare,
            name,
            size,
            &self.options.mount_options(),
        )?;
        let subject = Arc::new(subject);
        if self.options.image.is_none() {
            subject.fill()?;
        }
        if self.wants(&[3]) {
            self.judged_pair(
                row,
                "read-4k",
                &subject,
                queue(READ, 4096, 32),
                (0.98, None),
            )?;
        }
        if self.wants(&[8]) {
            let [raw, dioxide] = self.pair("qd1-latency", &subject, queue(READ, 4096, 1))?;
            self.at_most(
                "8: time at depth 1 ÷ raw, io_uring",
                speed(&raw, &dioxide),
                1.03,
            );
        }
        subject.close()?;
        let check = fsck_check(Experiment::Rows, &image, img_offset)?;
        self.report.checks.extend(check);
        Ok(())
    }

    /// A file in about `wanted` extents against one in as few as can be, in one image.
    fn extents(&mut self, wanted: u64, least: f64) -> Result<()> {
        // The most that fragmentation can do is an extent per block.
        let bytes = (wanted * 4096).max(self.size);
        let short = 2 * bytes + bytes / 4 > image::available_memory().saturating_sub(2048 * MIB);
        if wanted > 100_000 && (self.options.quick || short) {
            let why = if short { "too little memory" } else { "quick" };
            self.skipped(&format!("12: {wanted} extents ÷ few"), &why);
            return Ok(());
        }
        self.ticker
            .say(&format!("making a file of {wanted} extents"));
        let files = [
            NewFile {
                name: "few",
                bytes,
                extents: 1,
            },
            NewFile {
                name: "many",
                bytes,
                extents: wanted,
            },
        ];
        let image = self.image(2 * bytes + bytes / 8 + 64 * MIB, &files)?;
        if !self.is_in_memory(&image, &format!("12: {wanted} extents ÷ few"))? {
            return Ok(());
        }
        for (backend, how) in [(Backend::Pread, "pread"), (Backend::Mmap, "mapping")] {
            let device = subject::open_image(&image, backend, 0)?;
            let open = |name| Subject::open(&device, &Layer::Bare, name, bytes).map(Arc::new);
            let (few, many) = (open("few")?, open("many")?);
            if backend == Backend::Pread {
                few.fill()?;
                many.fill()?;
            }
            let job = psync(READ, 4096, 1);
            // The two lie at different places, which differ for raw as well.
            let entries = vec![
                raw(&few, job),
                dioxide(&few, job),
                raw(&many, job),
                Entry {
                    raw: Some(2),
                    ..dioxide(&many, job)
                },
            ];
            let rounds = self.contest("extents", entries)?;
            let [of_few, of_many] =
                [&few, &many].map(|subject| format!("extents-{}", subject.runs.len()));
            self.rename_last([of_few.clone(), of_few, of_many.clone(), of_many]);
            let row = format!(
                "12: reads of {} extents ÷ {}, {how}",
                many.runs.len(),
                few.runs.len()
            );
            let by_place = speed(&rounds[2], &rounds[0]);
            self.at_least(
                &row,
                speed(&rounds[3], &rounds[1]),
                least,
                format!("raw at the same places: {by_place:.3}"),
            );
            few.close()?;
            many.close()?;
        }
        self.fsck(&image)
    }

    fn fsck(&mut self, image: &Image) -> Result<()> {
        self.report
            .checks
            .extend(fsck_check(Experiment::Rows, image, 0)?);
        Ok(())
    }
}

/// Memory of the process in use now.
fn resident_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = status
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse::<f64>().ok());
    pages.unwrap_or(0.0) * rustix::param::page_size() as f64 / MIB as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_machine_does_not_have_is_skipped() {
        let options = BenchOptions::default();
        let mut report = Report::default();
        let (mut progress, (runs, timing)) = ((), plan::timing(&options, true));
        let mut table = Table {
            options: &options,
            report: &mut report,
            ticker: &mut Ticker::new(&mut progress),
            runs,
            timing,
            size: MIB,
        };
        let unsupported = dioxide::block::Error::Unsupported {
            what: "rings".into(),
        };
        let skipped = table.or_skipped::<()>("5: rings", Err(unsupported.into()));
        assert!(matches!(skipped, Ok(None)));
        let broken = Error::Setup("broken".into());
        assert!(table.or_skipped::<()>("5: rings", Err(broken)).is_err());
        assert_eq!(table.or_skipped("5: rings", Ok(7)).unwrap(), Some(7));
        let told: Vec<_> = report.checks.iter().map(|check| check.pass).collect();
        assert_eq!(told, [None]);
    }
}
