//! Opened images. Everything that only looks opens them read-only.

use crate::address::Address;
use crate::args::ImageArgs;
use crate::failure::{Failure, complain};
use dioxide::{File, Fs, MountOptions, OpenOptions};
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// Images that one command looks into, each opened once.
pub struct Images {
    options: MountOptions,
    open: HashMap<PathBuf, Fs>,
}

impl Images {
    pub fn new(args: &ImageArgs) -> Images {
        Images {
            options: args.mount_options(),
            open: HashMap::new(),
        }
    }

    /// The file system in `image`. What the user should know about it is told when it is opened.
    pub fn fs(&mut self, image: &Path) -> Result<Fs, Failure> {
        if let Some(fs) = self.open.get(image) {
            return Ok(fs.clone());
        }
        let fs = Fs::open(image, &self.options)
            .map_err(|error| Failure::engine(image.display(), b"", &error))?;
        warn(image, &fs);
        self.open.insert(image.to_owned(), fs.clone());
        Ok(fs)
    }

    /// The regular file at `address`, for reading.
    pub fn file(&mut self, address: &Address) -> Result<File, Failure> {
        let fs = self.fs(&address.image)?;
        OpenOptions::new()
            .read(true)
            .open(&fs, &address.path)
            .map_err(|error| Failure::engine(address, &address.path, &error))
    }
}

/// Tells what is odd about an image.
pub fn warn(image: &Path, fs: &Fs) {
    for warning in fs.warnings() {
        complain(format_args!("{}: warning: {warning}", image.display()));
    }
    warn_if_used(image);
}

/// A reader of an image that the kernel writes sees a mixture of old and new.
pub fn warn_if_used(image: &Path) {
    if let Some(by) = dioxide::block::file::in_use_by(image) {
        complain(format_args!(
            "{}: warning: {by}; what is read may be inconsistent",
            image.display()
        ));
    }
}
