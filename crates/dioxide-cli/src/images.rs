//! Opened images.

use crate::args::ImageArgs;
use crate::failure::{Failure, Status, complain};
use dioxide::{Fs, MountOptions};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What a command does to images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// It only looks, and opens them read-only.
    Look,
    /// It changes them, and closes them at its end.
    Change,
}

/// Images that one command works on, each opened once.
pub struct Images {
    options: MountOptions,
    purpose: Purpose,
    open: BTreeMap<PathBuf, Fs>,
}

impl Images {
    /// Images to look into.
    pub fn new(args: &ImageArgs) -> Images {
        Images {
            options: args.mount_options(),
            purpose: Purpose::Look,
            open: BTreeMap::new(),
        }
    }

    /// Images to change. [`Images::close`] them.
    pub fn to_change(args: &ImageArgs) -> Images {
        Images {
            options: args.mount_options().read_only(false),
            purpose: Purpose::Change,
            open: BTreeMap::new(),
        }
    }

    /// Images for some purpose.
    pub fn with(args: &ImageArgs, purpose: Purpose) -> Images {
        match purpose {
            Purpose::Look => Images::new(args),
            Purpose::Change => Images::to_change(args),
        }
    }

    /// The file system in `image`. What the user should know about it is told when it is opened.
    pub fn fs(&mut self, image: &Path) -> Result<Fs, Failure> {
        // However it is spelt: a second mount that writes would be refused.
        let key = image.canonicalize().unwrap_or_else(|_| image.to_owned());
        if let Some(fs) = self.open.get(&key) {
            return Ok(fs.clone());
        }
        let fs = Fs::open(image, &self.options)
            .map_err(|error| Failure::engine(image.display(), b"", &error))?;
        match self.purpose {
            Purpose::Look => warn(image, &fs),
            Purpose::Change => pass_on(image, &fs),
        }
        self.open.insert(key, fs.clone());
        Ok(fs)
    }

    /// Closes what was changed: it is durable and clean then. What fails is told.
    pub fn close(self) -> Status {
        let mut worst = Status::Fine;
        if self.purpose == Purpose::Look {
            return worst;
        }
        for (image, fs) in self.open {
            if let Err(error) = fs.close() {
                worst = Failure::engine(image.display(), b"", &error).tell();
            }
        }
        worst
    }
}

/// Tells what is odd about an image.
pub fn warn(image: &Path, fs: &Fs) {
    pass_on(image, fs);
    warn_if_used(image);
}

fn pass_on(image: &Path, fs: &Fs) {
    for warning in fs.warnings() {
        complain(format_args!("{}: warning: {warning}", image.display()));
    }
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
