//! What files are cut and grown on: a device alone, dioxide, a mounted file system.

use super::work::Work;
use crate::load::short;
use crate::{Error, Result};
use dioxide::block::{Device, Durability};
use dioxide::{File, Fs, MapKind};
use rustix::fs::{OFlags, fstatfs, syncfs};
use std::borrow::Cow;
use std::fs::File as HostFile;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What `statfs` says of the kernel's ext4.
const EXT4_MAGIC: u64 = 0xef53;

/// A place to put the load on. Files are numbered as in [`super::FILES`].
pub(super) trait Ground: Sync {
    /// Where a job writes, in the order of the work.
    fn positions<'a>(&self, work: &'a Work, job: u32) -> Result<Cow<'a, [u64]>> {
        Ok(work.order.file[work.part(job)].into())
    }

    /// Cuts a file off at 0, and gives it `size` bytes that are a hole.
    fn reset(&self, file: usize, size: u64) -> Result<()>;

    /// Makes everything durable.
    fn sync(&self) -> Result<()>;

    /// Writes all of `buf`.
    fn write(&self, file: usize, at: u64, buf: &[u8]) -> Result<()>;

    /// `fdatasync`.
    fn sync_data(&self, file: usize) -> Result<()>;

    /// Fills `buf`.
    fn read(&self, file: usize, at: u64, buf: &mut [u8]) -> Result<()>;
}

/// The device underneath. What is written to is the blocks that dioxide's files have after its last round; before the first the
/// bench file's, where the orders of all files lead to different ones. Pages of an image in memory differ by a half in
/// how fast they are written to, whoever does it.
pub(super) struct Raw<'a> {
    pub(super) device: &'a Arc<dyn Device>,
    pub(super) files: &'a [File],
}

/// Where on the device a range of a file lies, if it is one piece of written blocks.
fn place_of(file: &File, at: u64, len: u64) -> Result<Option<u64>> {
    let block = u64::from(file.metadata().block_size);
    let blocks = len.div_ceil(block) as u32;
    let mapping = file.map((at / block) as u32, blocks)?;
    let whole = mapping.kind == MapKind::Mapped && mapping.len == blocks;
    Ok(whole.then(|| mapping.pblk.0 * block + at % block))
}

impl Ground for Raw<'_> {
    fn positions<'a>(&self, work: &'a Work, job: u32) -> Result<Cow<'a, [u64]>> {
        let (file, part) = (&self.files[work.file(job)], work.part(job));
        let places = work.order.file[part.clone()]
            .iter()
            .zip(&work.order.device[part]);
        let place = |(&at, &else_at)| -> Result<u64> {
            let place = place_of(file, at, u64::from(work.block_size))?;
            Ok(place.unwrap_or(else_at))
        };
        places.map(place).collect()
    }

    fn reset(&self, _file: usize, _size: u64) -> Result<()> {
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(self.device.flush()?)
    }

    #[inline]
    fn write(&self, _file: usize, at: u64, buf: &[u8]) -> Result<()> {
        Ok(self.device.write_at(at, buf, Durability::Cached)?)
    }

    fn sync_data(&self, _file: usize) -> Result<()> {
        Ok(self.device.flush()?)
    }

    fn read(&self, _file: usize, at: u64, buf: &mut [u8]) -> Result<()> {
        Ok(self.device.read_at(at, buf)?)
    }
}

/// Files in dioxide.
pub(super) struct Dioxide<'a> {
    pub(super) fs: &'a Fs,
    pub(super) files: &'a [File],
}

impl Ground for Dioxide<'_> {
    fn reset(&self, file: usize, size: u64) -> Result<()> {
        self.files[file].set_len(0)?;
        Ok(self.files[file].set_len(size)?)
    }

    fn sync(&self) -> Result<()> {
        Ok(self.fs.sync()?)
    }

    #[inline]
    fn write(&self, file: usize, at: u64, buf: &[u8]) -> Result<()> {
        match self.files[file].write_at(buf, at)? {
            got if got == buf.len() => Ok(()),
            got => Err(short("a write", at, got, buf.len())),
        }
    }

    fn sync_data(&self, file: usize) -> Result<()> {
        Ok(self.files[file].sync_data()?)
    }

    fn read(&self, file: usize, at: u64, buf: &mut [u8]) -> Result<()> {
        match self.files[file].read_at(buf, at)? {
            got if got == buf.len() => Ok(()),
            got => Err(short("a read", at, got, buf.len())),
        }
    }
}

/// Files of a mounted file system, in the directory of the file that was named.
pub(super) struct Mounted {
    /// As it was named.
    pub(super) path: PathBuf,
    files: Vec<HostFile>,
    direct: bool,
}

impl Mounted {
    /// Opens `names` beside `path`, for direct I/O where the file system takes that; makes those that
    /// are missing.
    pub(super) fn open(path: &Path, names: &[&str]) -> Result<Mounted> {
        let dir = path.parent().unwrap_or(Path::new("/"));
        let open = |direct: bool| -> std::io::Result<Vec<HostFile>> {
            let flags = if direct {
                OFlags::DIRECT
            } else {
                OFlags::empty()
            };
            let mut options = HostFile::options();
            options.read(true).write(true).create(true).truncate(false);
            options.custom_flags(flags.bits() as i32);
            names
                .iter()
                .map(|name| options.open(dir.join(name)))
                .collect()
        };
        let (files, direct) = match open(true) {
            Ok(files) => (files, true),
            Err(_) => {
                let failed = Error::io(format!("cannot open {} in {}", names[0], dir.display()));
                (open(false).map_err(failed)?, false)
            }
        };
        Ok(Mounted {
            path: path.into(),
            files,
            direct,
        })
    }

    /// Whether it is the kernel's ext4 (or ext2 or ext3).
    pub(super) fn is_ext4(&self) -> bool {
        fstatfs(&self.files[0]).is_ok_and(|stat| stat.f_type as u64 == EXT4_MAGIC)
    }

    pub(super) fn describe(&self) -> String {
        let how = if self.direct {
            "O_DIRECT"
        } else {
            "page cache"
        };
        let what = if self.is_ext4() { "ext4" } else { "files" };
        format!("mounted {what}, {how}")
    }

    fn failed(&self, what: &str) -> impl FnOnce(std::io::Error) -> Error {
        Error::io(format!("{what} beside {}", self.path.display()))
    }
}

impl Ground for Mounted {
    fn reset(&self, file: usize, size: u64) -> Result<()> {
        let file = &self.files[file];
        let cut = file.set_len(0).and_then(|()| file.set_len(size));
        cut.map_err(self.failed("ftruncate"))
    }

    fn sync(&self) -> Result<()> {
        syncfs(&self.files[0]).map_err(|errno| self.failed("syncfs")(errno.into()))
    }

    #[inline]
    fn write(&self, file: usize, at: u64, buf: &[u8]) -> Result<()> {
        let written = self.files[file].write_all_at(buf, at);
        written.map_err(self.failed("a write"))
    }

    fn sync_data(&self, file: usize) -> Result<()> {
        let synced = self.files[file].sync_data();
        synced.map_err(self.failed("fdatasync"))
    }

    fn read(&self, file: usize, at: u64, buf: &mut [u8]) -> Result<()> {
        let read = self.files[file].read_exact_at(buf, at);
        read.map_err(self.failed("a read"))
    }
}
