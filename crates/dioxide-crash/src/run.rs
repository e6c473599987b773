//! A workload on a recorded device.

use crate::fault::{Fault, FaultyDevice};
use crate::model::{FileSpec, Model, Units};
use crate::op::Op;
use crate::oracle::Times;
use crate::target::{Outcome, Session, Sight, Target};
use dioxide::block::record::states::{Cache, CowDevice, Snapshot};
use dioxide::block::record::{Log, RecordDevice};
use dioxide::block::sim::{SimDevice, SimSpec};
use dioxide::block::{AtomicUnits, Device};
use std::ops::Range;
use std::sync::Arc;

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
    /// What it wrote.
    pub log: Log,
    /// What its files were, state by state.
    pub model: Model,
    /// When its operations began and returned. The last one is the unmount.
    pub times: Vec<Times>,
    /// What the device said of its cache.
    pub cache: Cache,
    /// How many operations the target could not do.
    pub unsupported: u64,
}

/// How to run.
#[derive(Clone, Copy, Debug)]
pub struct Disk {
    /// What the device says of its cache.
    pub cache: Cache,
    /// How it lies, or what is broken in the engine, if so.
    pub fault: Option<Fault>,
}

/// Looks at all files and names.
pub(crate) fn look(session: &mut dyn Session, names: &[String]) -> Result<Sight, String> {
    let look = |name: &String| {
        session
            .look(name)
            .map_err(|e| format!("reading {name}: {e}"))
    };
    let files = names.iter().map(look).collect::<Result<_, _>>()?;
    let tree = session
        .tree(names)
        .map_err(|e| format!("reading names: {e}"))?;
    let free = session.free();
    Ok(Sight { files, tree, free })
}

/// Runs operations on a fresh device with the contents of `start`, and unmounts.
///
/// # Errors
/// The target could not open the image, or do something for a reason other than being unable; or
/// the image is not what `start` says; in words.
pub fn record(
    target: &dyn Target,
    start: &Start,
    ops: &[Op],
    device: Disk,
) -> Result<Recorded, String> {
    let media = Arc::new(CowDevice::new(&start.image, device.cache));
    let record = RecordDevice::new(match start.atomic {
        None => media,
        atomic => {
            let promises = SimSpec {
                atomic,
                ..SimSpec::default()
            };
            Arc::new(SimDevice::new(media, promises))
        }
    });
    let under: Arc<dyn Device> = match device.fault {
        None | Some(Fault::Engine(_)) => Arc::new(record.clone()),
        Some(fault) => {
            let inner = Arc::new(record.clone());
            Arc::new(FaultyDevice::new(fault, inner, &start.image))
        }
    };
    let mut session = target.open(under)?;
    let mut run = Run {
        model: first_state(&mut *session, start)?,
        times: Vec::new(),
        unsupported: 0,
        record,
    };
    for op in ops {
        run.step(&mut *session, op)?;
    }
    run.close(session)?;
    let mut recorded = Recorded {
        base: start.image.clone(),
        whole: start.whole.clone(),
        log: run.record.take_log(),
        model: run.model,
        times: run.times,
        cache: device.cache,
        unsupported: run.unsupported,
    };
    if let Some(Fault::Engine(mutant)) = device.fault {
        mutant.mutate(&mut recorded)?;
    }
    Ok(recorded)
}

/// The model of the image, of which contents are known and attributes are taken as found.
fn first_state(session: &mut dyn Session, start: &Start) -> Result<Model, String> {
    let names: Vec<String> = start.files.iter().map(|spec| spec.name.clone()).collect();
    let Sight {
        files: seen, tree, ..
    } = look(session, &names)?;
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

struct Run {
    record: RecordDevice,
    model: Model,
    times: Vec<Times>,
    unsupported: u64,
}

impl Run {
    fn step(&mut self, session: &mut dyn Session, op: &Op) -> Result<(), String> {
        let name = op
            .file()
            .map_or("", |file| &self.model.names[file])
            .to_owned();
        let data = self.model.data_of(op);
        let began = self.record.now();
        let outcome = session
            .run(op, &name, &data)
            .map_err(|e| format!("{op}: {e}"))?;
        match outcome {
            Outcome::Done => self.done_as_flagged(op, began),
            Outcome::Unsupported => self.unsupported += 1,
        }
        Ok(())
    }

    /// With what a file's flag SYNC promises of it.
    fn done_as_flagged(&mut self, op: &Op, began: u64) {
        let file = op.file().filter(|&file| self.model.is_in_step(file));
        self.done(
            file.map_or_else(|| op.clone(), |_| op.made_durable()),
            began,
        );
        if let (Some(file), Op::SetLen { .. } | Op::Allocate { .. }) = (file, op) {
            self.done(Op::Fsync { file }, began);
        }
    }

    fn done(&mut self, op: Op, began: u64) {
        self.model.push(op);
        self.times.push(Times {
            began,
            acknowledged: self.record.now(),
        });
    }

    /// An unmount promises what a sync does.
    fn close(&mut self, session: Box<dyn Session>) -> Result<(), String> {
        let began = self.record.now();
        session.close().map_err(|e| format!("unmount: {e}"))?;
        self.done(Op::Sync, began);
        Ok(())
    }
}
