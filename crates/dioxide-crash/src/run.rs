//! A workload on a recorded device, by one thread or by several at once.

use crate::fault::{Fault, FaultyDevice};
use crate::model::{FileSpec, Model, Units};
use crate::names::Kind;
use crate::op::{FileNo, Op};
use crate::oracle::{Promise, Times};
use crate::shared::{self, Promised, Shared};
use crate::target::{Call, Known, Outcome, Seen, Session, Sight, Target};
use dioxide::block::record::states::{Cache, CowDevice, Media, Snapshot, State};
use dioxide::block::record::{Log, RecordDevice};
use dioxide::block::sim::{Latency, SimDevice, SimSpec};
use dioxide::block::{AtomicUnits, Device};
use parking_lot::RwLock;
use std::io;
use std::ops::Range;
use std::panic::resume_unwind;
use std::sync::{Arc, mpsc};
use std::thread::{Builder, ScopedJoinHandle};
use std::time::Duration;

/// What a workload begins with.
#[derive(Clone, Debug)]
pub struct Start {
    /// The image.
    pub image: Snapshot,
    /// What its space is counted in.
    pub units: Units,
    /// The files that it has.
    pub files: Vec<FileSpec>,
    /// Whether operations that change metadata survive: the image has a journal. Without one, only
    /// overwrites can be promised, and they are all that may be run.
    pub journal: bool,
    /// Ranges of the image, in bytes, that its format relies on being written whole.
    pub whole: Vec<Range<u64>>,
    /// What the device writes atomically.
    pub atomic: Option<AtomicUnits>,
}

/// What a workload left.
#[derive(Debug)]
pub struct Recorded {
    /// The image before it.
    pub base: Snapshot,
    /// As in [`Start`].
    pub whole: Vec<Range<u64>>,
    /// The files.
    pub known: Vec<Known>,
    /// What it wrote.
    pub log: Log,
    /// What each thread did; never none.
    pub lanes: Vec<Lane>,
    /// The file that they all wrote to, if they did.
    pub(crate) shared: Option<Shared>,
    /// What the device said of its cache.
    pub cache: Cache,
    /// Operations that the target could not do, and why.
    pub unsupported: Vec<String>,
}

/// What one thread did. Each of several has files of its own, and one of them the names; what is promised of these depends on
/// nobody else. Or all of them write to one file.
#[derive(Clone, Debug)]
pub struct Lane {
    /// What files were, state by state; those of other threads are in it as they began.
    pub model: Model,
    /// When its operations began and returned. The last one is the unmount.
    pub times: Vec<Times>,
}

/// What is promised at a time.
#[derive(Clone, Debug)]
pub struct Promises {
    /// By thread.
    lanes: Vec<Promise>,
    /// Of the file that all threads write to.
    shared: Option<Promised>,
}

impl Promises {
    /// The same, but for times of change.
    pub(crate) fn without_stamps(&self) -> Promises {
        let mut promises = self.clone();
        promises.lanes.iter_mut().for_each(Promise::forget_stamps);
        promises
    }
}

impl Recorded {
    /// All operations in words, thread by thread.
    pub fn words(&self) -> Vec<String> {
        let lanes = self.lanes.iter().map(|lane| lane.model.ops());
        lanes_in_words(lanes)
    }

    /// How many operations were done.
    pub fn ops(&self) -> u64 {
        self.lanes
            .iter()
            .map(|lane| u64::from(lane.model.last()))
            .sum()
    }

    /// What is promised at `time`.
    pub fn promises(&self, time: u64) -> Promises {
        let each = |lane: &Lane| Promise::at(&lane.model, &lane.times, time);
        let shared = self.shared.as_ref();
        Promises {
            lanes: self.lanes.iter().map(each).collect(),
            shared: shared.map(|shared| shared.at(&self.lanes, time)),
        }
    }

    /// Checks what was found against [`Recorded::promises`].
    ///
    /// # Errors
    /// What is wrong, in words.
    pub fn check(&self, promises: &Promises, sight: &Sight) -> Result<(), String> {
        if let ([lane], [promise]) = (&self.lanes[..], &promises.lanes[..]) {
            return promise.check_all(&lane.model, sight);
        }
        if let (Some(shared), Some(promised)) = (&self.shared, &promises.shared) {
            // All else is as it was.
            let (model, file) = (&self.lanes[0].model, shared.file);
            let others: Vec<FileNo> = (0..sight.files.len()).filter(|&it| it != file).collect();
            promises.lanes[0].check_names(model, sight, &others)?;
            return promised.check(&model.names[file], &sight.files[file]);
        }
        let mut each = self.lanes.iter().zip(&promises.lanes).enumerate();
        each.try_for_each(|(thread, (lane, promise))| {
            let (model, files) = (&lane.model, lane.own_files());
            let done = match lane.has_names() {
                true => promise.check_names(model, sight, &files),
                false => promise.check_files(model, &sight.files, &files),
            };
            done.map_err(|what| format!("thread {thread}: {what}"))
        })
    }
}

impl Lane {
    fn own_files(&self) -> Vec<FileNo> {
        let mut files: Vec<FileNo> = self.model.ops().iter().filter_map(Op::file).collect();
        files.sort_unstable();
        files.dedup();
        files
    }

    fn has_names(&self) -> bool {
        self.model.ops().iter().any(|op| matches!(op, Op::Name(_)))
    }
}

/// Operations of each thread in words; which thread, if there are several.
pub(crate) fn lanes_in_words<'a>(lanes: impl ExactSizeIterator<Item = &'a [Op]>) -> Vec<String> {
    let one = lanes.len() == 1;
    let word = |(thread, op): (usize, &Op)| match one {
        true => op.to_string(),
        false => format!("{thread}: {op}"),
    };
    let all = lanes
        .enumerate()
        .flat_map(|(thread, ops)| ops.iter().map(move |op| (thread, op)));
    all.map(word).collect()
}

/// How to run.
#[derive(Clone, Copy, Debug)]
pub struct Disk {
    /// What the device says of its cache.
    pub cache: Cache,
    /// How it lies, or what is broken in the engine, if so.
    pub fault: Option<Fault>,
}

/// Looks at all names, and at files where they are.
pub(crate) fn look(session: &mut dyn Session, known: &[Known]) -> Result<Sight, String> {
    let ids: Vec<u64> = known.iter().map(|known| known.id).collect();
    let tree = session
        .tree(&ids)
        .map_err(|e| format!("reading names: {e}"))?;
    let look = |(file, Known { name, .. }): (FileNo, &Known)| {
        let mut entries = tree.iter();
        let found = entries.find(|(_, entry)| entry.kind == Kind::Known(file));
        let path = match found {
            Some((path, _)) => path,
            None if tree.is_empty() => name,
            None => return Ok(Seen::gone()),
        };
        let seen = session.look(path);
        seen.map_err(|e| format!("reading {path}: {e}"))
    };
    let files = known.iter().enumerate().map(look);
    let files = files.collect::<Result<_, _>>()?;
    let free = session.free();
    Ok(Sight { files, tree, free })
}

/// Runs operations on a fresh device with the contents of `start`, and unmounts. `lanes` has those of each thread; several
/// threads have no files in common, or one, which they make no shorter.
///
/// # Errors
/// The target could not open the image, or do something for a reason other than being unable; or
/// the image is not what `start` says; in words.
pub fn record(
    target: &dyn Target,
    start: &Start,
    lanes: &[Vec<Op>],
    device: Disk,
) -> Result<Recorded, String> {
    let spec = SimSpec {
        atomic: start.atomic,
        ..match lanes {
            [_] => SimSpec::default(),
            _ => slow(),
        }
    };
    let mut base = start.image.clone();
    let (mut record, under) = recorded(&base, &spec, device);
    let mut session = target.open(under)?;
    let known = known(&mut *session, start)?;
    let run = Run {
        lane: Lane {
            model: first_state(&mut *session, start, &known)?,
            times: Vec::new(),
        },
        unsupported: Vec::new(),
        record: record.clone(),
        shares_as: None,
        is_alone: lanes.len() == 1,
    };
    let common = shared::common_file(lanes);
    let mut runs = match lanes {
        [ops] => {
            let mut parts = ops.split(|op| *op == Op::Crash);
            let mut run = run.all(&mut *session, parts.next().unwrap_or_default())?;
            for part in parts {
                base = crashed(&base, &record, device)?;
                // What it does when it is dropped goes to a device of the past.
                drop(session);
                let under;
                (record, under) = recorded(&base, &spec, device);
                session = target.open(under)?;
                run.crashed(record.clone());
                run = run.all(&mut *session, part)?;
            }
            vec![run]
        }
        lanes => at_once(&mut *session, &run, lanes, common.is_some())?,
    };
    let after = match common {
        Some(file) => session.look(&known[file].name)?.data,
        None => Vec::new(),
    };
    close(session, &record, &mut runs)?;
    let runs = runs.into_iter().map(|run| (run.lane, run.unsupported));
    let (lanes, unsupported): (Vec<Lane>, Vec<_>) = runs.unzip();
    let shared = common.map(|file| {
        let before = start.files[file].contents(file);
        Shared::new(file, before, &after, &lanes)
    });
    let mut recorded = Recorded {
        base,
        whole: start.whole.clone(),
        known,
        log: record.take_log(),
        unsupported: unsupported.concat(),
        lanes,
        shared: shared.transpose()?,
        cache: device.cache,
    };
    if let Some(Fault::Engine(mutant)) = device.fault {
        mutant.mutate(&mut recorded)?;
    }
    Ok(recorded)
}

/// A device with the contents of an image, and what the target has of it.
fn recorded(image: &Snapshot, spec: &SimSpec, device: Disk) -> (RecordDevice, Arc<dyn Device>) {
    let media = Arc::new(CowDevice::new(image, device.cache));
    let record = RecordDevice::new(match *spec == SimSpec::default() {
        true => media,
        false => Arc::new(SimDevice::new(media, spec.clone())),
    });
    let under: Arc<dyn Device> = match device.fault {
        None | Some(Fault::Engine(_)) => Arc::new(record.clone()),
        Some(fault) => Arc::new(FaultyDevice::new(fault, Arc::new(record.clone()), image)),
    };
    (record, under)
}

/// What a device is now known to have.
fn crashed(base: &Snapshot, record: &RecordDevice, device: Disk) -> Result<Snapshot, String> {
    let now = State {
        at: record.now(),
        parts: Vec::new(),
    };
    let log = record.take_log();
    let mut media = Media::new(base.clone(), &log, device.cache);
    let (device, _) = media.crash(&now).map_err(|e| e.to_string())?;
    Ok(device.snapshot())
}

/// A device that gives others time to come between.
fn slow() -> SimSpec {
    let micros = |least, most| Latency {
        min: Duration::from_micros(least),
        max: Duration::from_micros(most),
    };
    SimSpec {
        write: micros(5, 40),
        flush: micros(50, 200),
        ..SimSpec::default()
    }
}

fn at_once(
    session: &mut dyn Session,
    run: &Run,
    lanes: &[Vec<Op>],
    shares: bool,
) -> Result<Vec<Run>, String> {
    let sessions = lanes.iter().map(|_| session.another());
    let sessions: Option<Vec<Box<dyn Session + Send>>> = sessions.collect();
    let sessions = sessions.ok_or("the target is for one thread")?;
    // Open once all are there, and where one of them cannot be had.
    let start = RwLock::new(());
    let (arrived, arrivals) = mpsc::channel();
    std::thread::scope(|scope| {
        let (start, closed) = (&start, start.write());
        let each = sessions.into_iter().zip(lanes).enumerate();
        let begin = each.map(|(thread, (mut session, ops))| {
            let run = Run {
                shares_as: shares.then_some(thread),
                ..run.clone()
            };
            let arrived = arrived.clone();
            Builder::new().spawn_scoped(scope, move || {
                let _ = arrived.send(());
                drop(start.read());
                run.all(&mut *session, ops)
            })
        });
        let threads: io::Result<Vec<_>> = begin.collect();
        let threads = threads.map_err(|error| format!("thread: {error}"))?;
        arrivals.iter().take(threads.len()).for_each(drop);
        drop(closed);
        let end = |thread: ScopedJoinHandle<'_, Result<Run, String>>| {
            thread.join().unwrap_or_else(|panic| resume_unwind(panic))
        };
        threads.into_iter().map(end).collect()
    })
}

/// An unmount promises what a sync does.
fn close(session: Box<dyn Session>, record: &RecordDevice, runs: &mut [Run]) -> Result<(), String> {
    let began = record.now();
    session.close().map_err(|e| format!("unmount: {e}"))?;
    runs.iter_mut().for_each(|run| run.done(Op::Sync, began));
    Ok(())
}

fn known(session: &mut dyn Session, start: &Start) -> Result<Vec<Known>, String> {
    let known = |spec: &FileSpec| {
        let (name, id) = (spec.name.clone(), session.id(&spec.name)?);
        Ok(Known { name, id })
    };
    start.files.iter().map(known).collect()
}

/// The model of the image, of which contents are known and attributes are taken as found.
fn first_state(session: &mut dyn Session, start: &Start, known: &[Known]) -> Result<Model, String> {
    let Sight {
        files: seen, tree, ..
    } = look(session, known)?;
    for (file, (spec, seen)) in start.files.iter().zip(&seen).enumerate() {
        if spec.contents(file) != seen.data {
            return Err(format!(
                "{}: not the contents that it was made with",
                spec.name
            ));
        }
    }
    let attributes: Vec<(u16, i64)> = seen.iter().map(|seen| (seen.mode, seen.atime)).collect();
    Ok(Model::new(start.units, &start.files, &attributes).with_tree(tree))
}

#[derive(Clone)]
struct Run {
    record: RecordDevice,
    lane: Lane,
    unsupported: Vec<String>,
    /// Its number, where all threads write to one file.
    shares_as: Option<usize>,
    /// Whether no other thread changes files.
    is_alone: bool,
}

impl Run {
    fn all(mut self, session: &mut dyn Session, ops: &[Op]) -> Result<Run, String> {
        let mut rest = ops;
        while let [op, further @ ..] = rest {
            rest = match *op {
                Op::Together(count) => {
                    let (ops, further) = further.split_at(count);
                    self.done(op.clone(), self.record.now());
                    self.step_together(session, ops)?;
                    further
                }
                _ => {
                    self.step(session, op)?;
                    further
                }
            };
        }
        Ok(self)
    }

    /// All that had returned did so before anything that is on this device.
    fn crashed(&mut self, record: RecordDevice) {
        self.record = record;
        self.lane.times.fill(Times {
            began: 0,
            acknowledged: 0,
        });
    }

    fn step_together(&mut self, session: &mut dyn Session, ops: &[Op]) -> Result<(), String> {
        let thread = self
            .shares_as
            .ok_or("of one thread, nobody knows what comes first")?;
        let first = self.lane.model.last() as usize + 1;
        let call = |(number, op): (usize, &Op)| {
            let name = op.file().map_or("", |file| self.lane.model.path_of(file));
            (
                op.clone(),
                name.to_owned(),
                shared::data_of(thread, number, op),
            )
        };
        let calls: Vec<(Op, String, Vec<u8>)> = (first..).zip(ops).map(call).collect();
        let calls: Vec<Call<'_>> = calls
            .iter()
            .map(|(op, name, data)| Call { op, name, data })
            .collect();
        let began = self.record.now();
        let done = session.run_together(&calls);
        done.map_err(|what| format!("{ops:?} together: {what}"))?;
        ops.iter().for_each(|op| self.done(op.clone(), began));
        Ok(())
    }

    fn step(&mut self, session: &mut dyn Session, op: &Op) -> Result<(), String> {
        let name = op
            .file()
            .map_or("", |file| self.lane.model.path_of(file))
            .to_owned();
        let data = match self.shares_as {
            Some(thread) => shared::data_of(thread, self.lane.model.last() as usize + 1, op),
            None => self.lane.model.data_of(op),
        };
        let began = self.record.now();
        let outcome = session
            .run(op, &name, &data)
            .map_err(|e| format!("{op}: {e}"))?;
        match outcome {
            Outcome::Done => {
                // What a file's flag SYNC promises of it.
                let is_in_step = |file| self.lane.model.is_in_step(file);
                let op = match op.file().is_some_and(is_in_step) {
                    true => op.made_durable(),
                    false => op.clone(),
                };
                self.done(op, began);
                if self.is_alone {
                    self.stamp(session)?;
                }
            }
            Outcome::Unsupported(why) => self.unsupported.push(format!("{op}: {why}")),
        }
        Ok(())
    }

    /// What the last operation promises of times of change.
    fn stamp(&mut self, session: &mut dyn Session) -> Result<(), String> {
        for (file, path) in self.lane.model.stamped() {
            if let Some(stamps) = session.stamps(&path)? {
                self.lane.model.stamp(file, stamps);
            }
        }
        Ok(())
    }

    fn done(&mut self, op: Op, began: u64) {
        self.lane.model.push(op);
        self.lane.times.push(Times {
            began,
            acknowledged: self.record.now(),
        });
    }
}
