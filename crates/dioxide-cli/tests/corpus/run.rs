//! What is done with one kind of file system.

use crate::op::{Answer, Op};
use crate::script::{Scale, change, fill};
use crate::sets::{Ours, Set};
use crate::view::{View, differences, portable};
use crate::{engine, linux};
use dioxide::check::{CheckOptions, check_path};
use dioxide::{Error, Fs, MountOptions};
use dioxide_testkit::{Dir, Image, Mount, e2fsck_clean};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::time::{Duration, Instant};

const INODES: &str = "8192";
const UUID: &str = "d10c1de0-0000-4000-8000-000000000001";
const HASH_SEED: &str = "d10c1de0-0000-4000-8000-000000000002";
const STEPS: [&str; 6] = ["read", "change", "same", "make", "fill", "handback"];

/// What the kernel here can do with a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kernel {
    Writes,
    Reads,
    Refuses,
}

/// What came of a step.
enum Step {
    Right,
    /// Not to be done with this kind, here.
    Not(&'static str),
    Wrong(String),
}

/// What came of one kind.
pub struct Row {
    name: &'static str,
    kernel: Kernel,
    steps: Vec<Step>,
    took: Duration,
}

impl Row {
    pub fn head() -> String {
        let steps = STEPS.map(|step| format!("{step:<9}")).concat();
        format!("{:<36}{:<9}{steps}seconds", "kind", "kernel")
    }

    pub fn failures(&self) -> Vec<String> {
        let steps = self.steps.iter().zip(STEPS);
        let wrong = steps.filter_map(|(step, name)| match step {
            Step::Wrong(what) => Some(format!("{}: {name}: {what}", self.name)),
            _ => None,
        });
        wrong.collect()
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kernel = format!("{:?}", self.kernel).to_lowercase();
        write!(f, "{:<36}{kernel:<9}", self.name)?;
        for step in &self.steps {
            let word = match step {
                Step::Right => "ok",
                Step::Not(why) => why,
                Step::Wrong(_) => "WRONG",
            };
            write!(f, "{word:<9}")?;
        }
        write!(f, "{:.1}", self.took.as_secs_f64())
    }
}

/// Does a step; a panic is what is wrong with it.
fn guarded(work: impl FnOnce() -> Result<(), String>) -> Step {
    let text = |panic: Box<dyn std::any::Any + Send>| match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(panic) => panic
            .downcast::<&str>()
            .map_or("a panic".into(), |text| text.to_string()),
    };
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => Step::Right,
        Ok(Err(what)) => Step::Wrong(what),
        Err(panic) => Step::Wrong(text(panic)),
    }
}

/// Takes a kind through all steps.
pub fn run_set(set: &Set, scale: Scale) -> Row {
    let start = Instant::now();
    let mut bench = Bench {
        set: *set,
        kernel: Kernel::Refuses,
        fill: fill(scale),
        change: change(scale),
        filled: None,
        changed: None,
    };
    let mut image = None;
    let made = guarded(|| {
        let new = set.by_mke2fs();
        bench.kernel = kernel_can(set, &new)?;
        image = Some(new);
        Ok(())
    });
    let steps = match (made, image) {
        (Step::Right, Some(image)) => bench.steps(&image),
        (wrong, _) => vec![wrong],
    };
    Row {
        name: set.name,
        kernel: bench.kernel,
        steps,
        took: start.elapsed(),
    }
}

/// What the kernel here can do with a kind.
///
/// # Errors
/// What mount said, if it cannot write a kind that every kernel writes.
fn kernel_can(set: &Set, image: &Image) -> Result<Kernel, String> {
    let can = |options| Mount::try_ext4(image.path(), options).map(Mount::unmount);
    match (can("noatime"), can("ro")) {
        (Ok(()), _) => Ok(Kernel::Writes),
        (Err(said), _) if !set.is_optional() => Err(said),
        (_, Ok(())) => Ok(Kernel::Reads),
        _ => Ok(Kernel::Refuses),
    }
}

impl Set {
    /// The arguments that `letter` has, and all others.
    fn words(&self) -> Vec<&'static str> {
        self.args.split(' ').collect()
    }

    fn size_bytes(&self) -> u64 {
        match self.args {
            args if args.contains("65536") => 1 << 30,
            args if args.contains("-C 32768") => 256 << 20,
            _ => 128 << 20,
        }
    }

    fn by_mke2fs(&self) -> Image {
        let mut builder = Image::builder()
            .size(self.size_bytes())
            .args(&["-N", INODES]);
        for pair in self.words().chunks(2) {
            builder = match pair {
                ["-t", value] => builder.fs_type(value),
                ["-b", value] => builder.block_size(value.parse().expect("a number")),
                ["-E", value] => builder.extended(value),
                pair => builder.args(pair),
            };
        }
        builder.build()
    }

    fn by_dioxide(&self) -> Result<Image, String> {
        let image = Image::blank(Dir::Tmpfs, self.size_bytes());
        let output = Command::new(env!("CARGO_BIN_EXE_dioxide"))
            .args(["mkfs", "-q", "-F", "-U", UUID, "--hash-seed", HASH_SEED])
            .args(["-N", INODES])
            .args(self.words())
            .arg(image.path())
            .output()
            .expect("the command runs");
        match output.status.success() {
            true => Ok(image),
            false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
        }
    }
}

/// An answer that must be there before a step can be judged by it.
type Told = Option<(Vec<Answer>, View)>;

struct Bench {
    set: Set,
    kernel: Kernel,
    fill: Vec<Op>,
    change: Vec<Op>,
    /// What the kernel, or else dioxide, answered and left when it filled it.
    filled: Told,
    /// What dioxide answered and left when it changed it.
    changed: Told,
}

fn open(image: &Image, read_only: bool) -> Result<Fs, Error> {
    Fs::open(image.path(), &MountOptions::new().read_only(read_only))
}

/// The image by itself: e2fsck and dioxide's check find nothing.
fn sound(image: &Image) -> Result<(), String> {
    e2fsck_clean(image.path());
    let report = check_path(image.path(), &CheckOptions::default(), &mut |_| {});
    let report = report.map_err(|error| format!("check: {error}"))?;
    match report.is_clean() {
        true => Ok(()),
        false => Err(format!(
            "check, where e2fsck finds nothing: {:?}",
            report.findings
        )),
    }
}

fn by_kernel(image: &Image, ops: &[Op]) -> Vec<Answer> {
    let mount = Mount::ext4(image.path(), "noatime");
    let answers = linux::run(mount.path(), ops);
    mount.unmount();
    answers
}

/// The kernel's view of an image that is not mounted.
fn kernels_view(image: &Image) -> View {
    let mount = Mount::ext4(image.path(), "ro");
    let view = linux::view(mount.path());
    mount.unmount();
    view
}

fn our_view(image: &Image) -> Result<View, String> {
    let fs = open(image, true).map_err(|error| error.to_string())?;
    let view = engine::view(&fs);
    fs.close().map_err(|error| error.to_string())?;
    Ok(view)
}

/// dioxide's answers, and its view before and after it is closed.
fn by_dioxide(image: &Image, ops: &[Op]) -> Result<(Vec<Answer>, View), String> {
    let fs = open(image, false).map_err(|error| error.to_string())?;
    if let Some(why) = fs.read_only() {
        return Err(format!("read-only: {why}"));
    }
    let answers = engine::run(&fs, ops);
    let view = engine::view(&fs);
    fs.close().map_err(|error| format!("close: {error}"))?;
    differences(&our_view(image)?, &view).map_err(|what| format!("opened again: {what}"))?;
    sound(image)?;
    Ok((answers, view))
}

fn same_answers(ops: &[Op], ours: &[Answer], theirs: &[Answer]) -> Result<(), String> {
    let each = ops.iter().zip(ours).zip(theirs);
    let wrong: Vec<String> = each
        .filter(|((_, ours), theirs)| ours != theirs)
        .map(|((op, ours), theirs)| {
            let mut op = format!("{op:?}");
            op.truncate(op.floor_char_boundary(200));
            format!("{op}: {ours:?}, the kernel {theirs:?}")
        })
        .collect();
    match wrong.len() {
        0 => Ok(()),
        count => Err(format!(
            "{count} answers:\n    {}",
            wrong[..count.min(5)].join("\n    ")
        )),
    }
}

impl Bench {
    fn steps(&mut self, image: &Image) -> Vec<Step> {
        match self.set.ours {
            Ours::Refuses(feature) => vec![
                guarded(|| refused(image, feature)),
                Step::Not("–"),
                Step::Not("–"),
                guarded(|| self.not_made(feature)),
            ],
            Ours::Changes => {
                let mut steps = self.forth(image);
                steps.push(guarded(|| self.not_made(self.set.name)));
                steps
            }
            Ours::All => {
                let mut steps = self.forth(image);
                steps.extend(self.back());
                steps
            }
        }
    }

    fn forth(&mut self, image: &Image) -> Vec<Step> {
        let copy = || image.copy();
        let read = guarded(|| self.read(image));
        let before = copy();
        let change = guarded(|| self.change(image));
        let same = match self.kernel {
            Kernel::Writes => guarded(|| self.same(&before)),
            _ => Step::Not("–"),
        };
        vec![read, change, same]
    }

    fn read(&mut self, image: &Image) -> Result<(), String> {
        if self.kernel != Kernel::Writes {
            self.filled = Some(by_dioxide(image, &self.fill)?);
            return self.walked(image, &self.filled);
        }
        let answers = by_kernel(image, &self.fill);
        e2fsck_clean(image.path());
        let view = kernels_view(image);
        let differences = differences(&our_view(image)?, &view);
        self.filled = Some((answers, view));
        differences?;
        sound(image)
    }

    /// The kernel sees what dioxide saw, if it can.
    fn walked(&self, image: &Image, ours: &Told) -> Result<(), String> {
        let (_, view) = ours.as_ref().ok_or("an earlier step failed")?;
        match self.kernel {
            Kernel::Refuses => Ok(()),
            _ => differences(view, &kernels_view(image)),
        }
    }

    fn change(&mut self, image: &Image) -> Result<(), String> {
        self.changed = Some(by_dioxide(image, &self.change)?);
        self.walked(image, &self.changed)
    }

    fn same(&self, image: &Image) -> Result<(), String> {
        let (answers, view) = self.changed.as_ref().ok_or("an earlier step failed")?;
        let theirs = by_kernel(image, &self.change);
        same_answers(&self.change, answers, &theirs)?;
        differences(&portable(view), &portable(&kernels_view(image)))
    }

    fn not_made(&self, feature: &str) -> Result<(), String> {
        match self.set.by_dioxide() {
            Ok(_) => Err(format!("made, in spite of {feature}")),
            Err(said) if said.contains(feature) => Ok(()),
            Err(said) => Err(format!("{feature} is not named: {said}")),
        }
    }

    fn back(&mut self) -> Vec<Step> {
        let mut made = None;
        let make = guarded(|| {
            let image = self.set.by_dioxide()?;
            sound(&image)?;
            made = Some(image);
            Ok(())
        });
        let Some(image) = made else {
            return vec![make];
        };
        let fill = guarded(|| self.fill(&image));
        let handback = match self.kernel {
            Kernel::Writes => guarded(|| self.hand_back(&image)),
            _ => Step::Not("–"),
        };
        vec![make, fill, handback]
    }

    fn fill(&self, image: &Image) -> Result<(), String> {
        let ours = by_dioxide(image, &self.fill)?;
        let (answers, view) = self.filled.as_ref().ok_or("an earlier step failed")?;
        same_answers(&self.fill, &ours.0, answers)?;
        differences(&portable(&ours.1), &portable(view))?;
        self.walked(image, &Some(ours))
    }

    fn hand_back(&self, image: &Image) -> Result<(), String> {
        by_kernel(image, &self.change);
        let view = kernels_view(image);
        differences(&our_view(image)?, &view)?;
        sound(image)
    }
}

fn refused(image: &Image, feature: &str) -> Result<(), String> {
    match open(image, true) {
        Ok(_) => Err("opened".into()),
        Err(error) if error.to_string().contains(feature) => Ok(()),
        Err(error) => Err(format!("{feature} is not named: {error}")),
    }
}

#[test]
fn only_an_optional_kind_may_be_refused_by_the_kernel() {
    dioxide_testkit::need_root!();
    let image = Image::blank(Dir::Tmpfs, 1 << 20);
    for (args, is_optional) in [
        ("-b 65536", true),
        ("-O casefold", true),
        ("-O extent", false),
    ] {
        let set = Set {
            args,
            ..crate::sets::SETS[0]
        };
        match kernel_can(&set, &image) {
            Ok(kernel) => assert!(is_optional && kernel == Kernel::Refuses, "{args}"),
            Err(said) => assert!(!is_optional && said.contains("mount"), "{args}: {said}"),
        }
    }
}
