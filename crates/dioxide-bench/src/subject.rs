//! What a case is run on: an open image, its file system, a file, and where that lies.

use crate::image::Image;
use crate::offsets::Run;
use crate::verify;
use crate::{Error, Result};
use dioxide::block::Device;
use dioxide::block::file::{self, FileOptions, NullSink};
use dioxide::block::sim::{SimDevice, SimSpec};
use dioxide::{Backend, Buf, File, Fs, MapKind, MountOptions, OpenOptions};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes moved at once when a file is filled.
const CHUNK: usize = 1 << 20;

/// What lies between the engine and the image.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Layer {
    Bare,
    Sim(Box<SimSpec>),
    Null,
}

impl Layer {
    fn over(&self, device: &Arc<dyn Device>) -> Result<Arc<dyn Device>> {
        Ok(match self {
            Layer::Bare => device.clone(),
            Layer::Sim(spec) => Arc::new(SimDevice::new(device.clone(), (**spec).clone())),
            Layer::Null => Arc::new(NullSink::new(device.clone())?),
        })
    }
}

/// Opens the image itself. The mapping is populated, so that no round pays for page faults.
pub(crate) fn open_image(
    image: &Image,
    backend: Backend,
    img_offset: u64,
) -> Result<Arc<dyn Device>> {
    let options = FileOptions {
        backend,
        write: true,
        img_offset,
        populate: backend == Backend::Mmap,
        ..FileOptions::default()
    };
    Ok(dioxide::open_image(&image.path, &options)?)
}

/// A file of an image, through one device.
#[derive(Debug)]
pub(crate) struct Subject {
    pub(crate) device: Arc<dyn Device>,
    /// Goes before what it is of.
    pub(crate) file: File,
    pub(crate) fs: Mounted,
    /// Bytes of the file that are used: whole logical blocks, as direct I/O wants them.
    pub(crate) size: u64,
    /// Where they lie on the device, ascending, neighbours merged.
    pub(crate) runs: Vec<Run>,
}

/// A file system that is closed when it goes.
#[derive(Debug)]
pub(crate) struct Mounted(Option<Fs>);

impl Mounted {
    pub(crate) fn new(fs: Fs) -> Mounted {
        Mounted(Some(fs))
    }

    /// Closes it, and tells what that met.
    pub(crate) fn close(mut self) -> Result<()> {
        Ok(self.0.take().map_or(Ok(()), Fs::close)?)
    }
}

impl Deref for Mounted {
    type Target = Fs;

    fn deref(&self) -> &Fs {
        self.0.as_ref().expect("it is taken last")
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // What is left of it then is told by e2fsck, which looks next.
        let _ = self.0.take().map(Fs::close);
    }
}

impl Subject {
    /// Opens `name` (a path in the file system) through `layer` over `image`; uses up to `limit`
    /// bytes of it.
    pub(crate) fn open(
        image: &Arc<dyn Device>,
        layer: &Layer,
        name: &str,
        limit: u64,
    ) -> Result<Subject> {
        Subject::open_with(image, layer, name, limit, &MountOptions::new())
    }

    /// The same in an image that was given.
    pub(crate) fn open_with(
        image: &Arc<dyn Device>,
        layer: &Layer,
        name: &str,
        limit: u64,
        options: &MountOptions,
    ) -> Result<Subject> {
        let device = layer.over(image)?;
        let fs = Fs::open_device(device.clone(), options)?;
        let options = OpenOptions::new()
            .read(true)
            .write(true)
            .direct(true)
            .fsetid(true);
        let file = options
            .open(&fs, name)
            .map_err(|error| explain_missing(error, name))?;
        file.preload_map()?;
        let block = device.geometry().logical_block_bytes;
        let size = file.len().min(limit) & !(u64::from(block) - 1);
        let runs = lay_out(&file, fs.block_size(), name, size)?;
        Ok(Subject {
            device,
            file,
            fs: Mounted::new(fs),
            size,
            runs,
        })
    }

    /// Closes the file system, and tells what that met. Nobody else has it any more.
    pub(crate) fn close(self: Arc<Self>) -> Result<()> {
        let subject = Arc::into_inner(self).expect("the rounds are over");
        drop(subject.file);
        subject.fs.close()
    }

    /// Writes every sector of what is used, stamped as [`verify`] wants it.
    pub(crate) fn fill(&self) -> Result<()> {
        fill(self.size, |at, buf| {
            Ok(self.file.write_at(buf, at).map(|_| ())?)
        })
    }
}

/// Writes every sector of `size` bytes.
fn fill(size: u64, write: impl Fn(u64, &[u8]) -> Result<()>) -> Result<()> {
    let mut buf = Buf::zeroed(CHUNK);
    for at in (0..size).step_by(CHUNK) {
        let len = (size - at).min(CHUNK as u64) as usize;
        verify::stamp_fill(&mut buf[..len], at);
        write(at, &buf[..len])?;
    }
    Ok(())
}

fn explain_missing(error: dioxide::Error, name: &str) -> Error {
    match error {
        dioxide::Error::NotFound(_) => Error::Setup(format!(
            "the image has no {name}: name an existing file with --file"
        )),
        other => other.into(),
    }
}

fn lay_out(file: &File, block_size: u32, name: &str, size: u64) -> Result<Vec<Run>> {
    let block = u64::from(block_size);
    let mut runs: Vec<Run> = Vec::new();
    let mut at = 0;
    while at < size {
        let want = (size - at).div_ceil(block).min(u64::from(u32::MAX)) as u32;
        let mapping = file.map((at / block) as u32, want)?;
        if mapping.kind != MapKind::Mapped {
            return Err(Error::Setup(format!(
                "{name} has a {} at {at}: the load needs a file that was written throughout",
                if mapping.kind == MapKind::Hole {
                    "hole"
                } else {
                    "range of unwritten blocks"
                },
            )));
        }
        let len = u64::from(mapping.len) * block;
        let device = mapping.pblk.0 * block;
        match runs.last_mut() {
            Some(last) if last.device + last.len == device => last.len += len,
            _ => runs.push(Run {
                file: at,
                device,
                len,
            }),
        }
        at += len;
    }
    if size == 0 {
        return Err(Error::Setup(format!(
            "{name} has {} bytes: not one block of the device",
            file.len()
        )));
    }
    Ok(runs)
}

/// A file of a mounted file system.
#[derive(Debug)]
pub(crate) struct PathSubject {
    pub(crate) path: PathBuf,
    pub(crate) device: Arc<dyn Device>,
}

impl PathSubject {
    /// Opens `path`, which must hold at least `size` bytes.
    pub(crate) fn open(path: &Path, backend: Backend, size: u64) -> Result<PathSubject> {
        let options = FileOptions {
            backend,
            write: true,
            ..FileOptions::default()
        };
        let device = file::open(path, &options)?;
        let subject = PathSubject {
            path: path.into(),
            device,
        };
        subject.check_size(size)?;
        Ok(subject)
    }

    /// Refuses a file of less than `size` bytes.
    pub(crate) fn check_size(&self, size: u64) -> Result<()> {
        let has = self.device.geometry().size_bytes;
        if has < size || has == 0 {
            return Err(Error::Setup(format!(
                "{} has {has} bytes, the load uses {size}: make it larger, or use less by --size",
                self.path.display()
            )));
        }
        Ok(())
    }

    /// As [`Subject::fill`].
    pub(crate) fn fill(&self, size: u64) -> Result<()> {
        let cached = dioxide::block::Durability::Cached;
        fill(size, |at, buf| Ok(self.device.write_at(at, buf, cached)?))
    }
}
