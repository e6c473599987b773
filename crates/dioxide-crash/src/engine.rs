//! dioxide as a target. Files are opened without `direct`, so that any offset and length will do.

use crate::op::{Durable, Mode, Op};
use crate::target::{Outcome, Seen, Session, Target};
use dioxide::block::Device;
use dioxide::{
    Error, FallocateMode, File, Fs, MountOptions, OpenOptions, SetAttributes, Timestamp,
};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

/// dioxide, mounted with these options.
#[derive(Clone, Debug)]
pub struct Dioxide {
    /// Options of every mount, of the workload and of recoveries.
    pub options: MountOptions,
    /// Keep each file open from its first operation on. Otherwise it is closed after each, and what is
    /// known of it only in memory is put to the test.
    pub keep_open: bool,
}

impl Default for Dioxide {
    /// Nothing is committed by the clock, so that a workload writes the same each time; files are opened for
    /// each operation.
    fn default() -> Dioxide {
        Dioxide {
            options: MountOptions::new().commit_interval(Duration::from_secs(3600)),
            keep_open: false,
        }
    }
}

struct Mounted {
    fs: Fs,
    keep_open: bool,
    open: Vec<(String, File)>,
}

impl Target for Dioxide {
    fn open(&self, device: Arc<dyn Device>) -> Result<Box<dyn Session>, String> {
        let fs = Fs::open_device(device, &self.options).map_err(words)?;
        match fs.read_only() {
            Some(why) => Err(format!("read-only: {why}")),
            None => Ok(Box::new(Mounted {
                fs,
                keep_open: self.keep_open,
                open: Vec::new(),
            })),
        }
    }
}

fn words(error: Error) -> String {
    error.to_string()
}

impl Mounted {
    fn open(&self, options: OpenOptions, name: &str) -> Result<File, Error> {
        options.read(true).write(true).open(&self.fs, name)
    }

    fn plain(&self, name: &str) -> Result<File, Error> {
        self.open(OpenOptions::new(), name)
    }

    fn hold(&mut self, name: &str) -> Result<(), Error> {
        let is_held = self.open.iter().any(|(held, _)| held == name);
        if self.keep_open && !is_held && !name.is_empty() {
            let file = self.plain(name)?;
            self.open.push((name.to_owned(), file));
        }
        Ok(())
    }

    fn do_it(&self, op: &Op, name: &str, data: &[u8]) -> Result<(), Error> {
        match *op {
            Op::Write {
                offset, durable, ..
            } => {
                let file = self.open(synchronous(durable), name)?;
                whole(data, file.write_at(data, offset)?)
            }
            Op::Append { durable, .. } => {
                let file = self.open(synchronous(durable).append(true), name)?;
                whole(data, file.write_at(data, 0)?)
            }
            Op::SetLen { len, .. } => self.plain(name)?.set_len(len),
            Op::Allocate {
                mode, offset, len, ..
            } => self.plain(name)?.allocate(fallocate(mode), offset, len),
            Op::SetMode { mode, .. } => self.set(name, &SetAttributes::new().mode(mode)),
            Op::SetTime { secs, .. } => {
                let time = Timestamp { secs, nanos: 0 };
                self.set(name, &SetAttributes::new().atime(time))
            }
            Op::Fsync { .. } => self.plain(name)?.sync_all(),
            Op::Fdatasync { .. } => self.plain(name)?.sync_data(),
            Op::Sync => self.fs.sync(),
        }
    }

    fn set(&self, name: &str, attributes: &SetAttributes) -> Result<(), Error> {
        self.plain(name)?.set_attributes(attributes)
    }
}

fn synchronous(durable: Durable) -> OpenOptions {
    match durable {
        Durable::No => OpenOptions::new(),
        Durable::Data => OpenOptions::new().dsync(true),
        Durable::Full => OpenOptions::new().sync(true),
    }
}

/// Nothing in a workload is a reason to write less than asked.
fn whole(data: &[u8], written: usize) -> Result<(), Error> {
    match written == data.len() {
        true => Ok(()),
        false => Err(Error::Invalid(format!(
            "short write: {written} of {} bytes",
            data.len()
        ))),
    }
}

fn fallocate(mode: Mode) -> FallocateMode {
    match mode {
        Mode::Allocate => FallocateMode::Allocate,
        Mode::KeepSize => FallocateMode::KeepSize,
        Mode::PunchHole => FallocateMode::PunchHole,
        Mode::ZeroRange => FallocateMode::ZeroRange,
        Mode::ZeroRangeKeepSize => FallocateMode::ZeroRangeKeepSize,
        Mode::CollapseRange => FallocateMode::CollapseRange,
        Mode::InsertRange => FallocateMode::InsertRange,
    }
}

impl Session for Mounted {
    fn run(&mut self, op: &Op, name: &str, data: &[u8]) -> Result<Outcome, String> {
        self.hold(name).map_err(words)?;
        match self.do_it(op, name, data) {
            Ok(()) => Ok(Outcome::Done),
            Err(Error::Unsupported(_)) => Ok(Outcome::Unsupported),
            Err(error) => Err(words(error)),
        }
    }

    fn look(&mut self, name: &str) -> Result<Seen, String> {
        let file = self.plain(name).map_err(words)?;
        let mut data = vec![0; file.len() as usize];
        let read = file.read_at(&mut data, 0).map_err(words)?;
        if read != data.len() {
            return Err(format!("{read} bytes of {}", data.len()));
        }
        let about = file.metadata();
        Ok(Seen {
            data,
            mode: about.permissions,
            atime: about.atime.secs,
            shape: shape(&file, u64::from(about.block_size)).map_err(words)?,
        })
    }

    fn close(mut self: Box<Self>) -> Result<(), String> {
        self.open.clear();
        self.fs.close().map_err(words)
    }
}

/// A hash of the space and the mappings, those behind the end included.
fn shape(file: &File, block_bytes: u64) -> Result<u64, Error> {
    let mut hasher = DefaultHasher::new();
    let about = file.metadata();
    (about.blocks, about.flags).hash(&mut hasher);
    let end = about.size.div_ceil(block_bytes) + 64;
    let mut at = 0;
    while at < end {
        let mapping = file.map(at as u32, (end - at) as u32)?;
        (at, mapping.len, mapping.pblk.0, mapping.kind as u8).hash(&mut hasher);
        at += u64::from(mapping.len);
    }
    Ok(hasher.finish())
}
