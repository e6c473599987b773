//! What files are cut and grown on: a device alone, dioxide, a mounted file system.

use crate::load::short;
use crate::offsets::Order;
use crate::{Error, Result};
use dioxide::block::{Device, Durability};
use dioxide::{File, Fs};
use rustix::fs::{OFlags, fstatfs, syncfs};
use std::fs::File as HostFile;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What `statfs` says of the kernel's ext4.
const EXT4_MAGIC: u64 = 0xef53;

/// A place to put the load on. Files are numbered as in [`super::FILES`].
pub(super) trait Ground: Sync {
    /// The order as positions of this ground.
    fn positions<'a>(&self, order: &'a Order) -> &'a [u64];

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

/// The blocks of a file that is there, on the device underneath. All files are the same one: their
/// orders lead to different blocks of it.
pub(super) struct Raw<'a>(pub(super) &'a Arc<dyn Device>);

impl Ground for Raw<'_> {
    fn positions<'a>(&self, order: &'a Order) -> &'a [u64] {
        &order.device
    }

    fn reset(&self, _file: usize, _size: u64) -> Result<()> {
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(self.0.flush()?)
    }

    #[inline]
    fn write(&self, _file: usize, at: u64, buf: &[u8]) -> Result<()> {
        Ok(self.0.write_at(at, buf, Durability::Cached)?)
    }

    fn sync_data(&self, _file: usize) -> Result<()> {
        Ok(self.0.flush()?)
    }

    fn read(&self, _file: usize, at: u64, buf: &mut [u8]) -> Result<()> {
        Ok(self.0.read_at(at, buf)?)
    }
}

/// Files in dioxide.
pub(super) struct Dioxide<'a> {
    pub(super) fs: &'a Fs,
    pub(super) files: &'a [File],
}

impl Ground for Dioxide<'_> {
    fn positions<'a>(&self, order: &'a Order) -> &'a [u64] {
        &order.file
    }

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
    fn positions<'a>(&self, order: &'a Order) -> &'a [u64] {
        &order.file
    }

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
