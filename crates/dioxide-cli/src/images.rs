//! Opened images.

use crate::args::ImageArgs;
use crate::failure::{Failure, Status, any_told, complain};
use crate::location::Identity;
use dioxide::block::file::{in_use_by, written_by};
use dioxide::{Error, Fs, MountOptions};
use std::path::{Path, PathBuf, absolute};

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
    /// Of a mount that only looks.
    options: MountOptions,
    purpose: Purpose,
    open: Vec<Open>,
}

struct Open {
    /// As it was called first, from anywhere.
    image: PathBuf,
    identity: Option<Identity>,
    fs: Fs,
    purpose: Purpose,
}

impl Images {
    /// Images to look into.
    pub fn new(args: &ImageArgs) -> Images {
        Images::with(args, Purpose::Look)
    }

    /// Images for some purpose. [`Images::close`] them.
    pub fn with(args: &ImageArgs, purpose: Purpose) -> Images {
        Images {
            options: args.mount_options(),
            purpose,
            open: Vec::new(),
        }
    }

    /// The file system in `image`. What the user should know about it is told when it is opened.
    pub fn fs(&mut self, image: &Path) -> Result<Fs, Failure> {
        self.fs_for(image, self.purpose)
    }

    /// The same for another purpose than that of most. An image that is open already stays as it is, but for one of which a command
    /// before only looked at.
    pub fn fs_for(&mut self, image: &Path, purpose: Purpose) -> Result<Fs, Failure> {
        // Whatever its name here: a second mount that writes would be refused.
        let identity = Identity::of_file(image);
        let is_it =
            |open: &Open| open.image == image || identity.is_some() && open.identity == identity;
        if let Some(at) = self.open.iter().position(is_it) {
            let open = &self.open[at];
            let again = [open.purpose, purpose, self.purpose]
                == [Purpose::Look, Purpose::Change, Purpose::Change];
            if !again {
                return Ok(open.fs.clone());
            }
            self.open.remove(at);
        }
        let options = self.options.clone().read_only(purpose == Purpose::Look);
        let fs = Fs::open(image, &options)
            .map_err(|error| Failure::engine(image.display(), b"", &error))?;
        match purpose {
            Purpose::Look => warn(image, &fs),
            Purpose::Change => pass_on(image, &fs),
        }
        self.open.push(Open {
            image: absolute(image).unwrap_or_else(|_| image.to_owned()),
            identity,
            fs: fs.clone(),
            purpose,
        });
        Ok(fs)
    }

    /// Closes what was changed: it is durable and clean then. What fails is told.
    pub fn close(self) -> Status {
        let mut worst = Status::Fine;
        for open in self.open {
            let Open { image, fs, .. } = open;
            if open.purpose == Purpose::Look {
                continue;
            }
            warn_of_damage(&image, &fs);
            if let Err(error) = fs.close() {
                // That is all that it says once somebody was told why.
                let known = any_told() && matches!(error, Error::ReadOnly(_));
                worst = match known {
                    true => Status::Trouble,
                    false => Failure::engine(image.display(), b"", &error).tell(),
                };
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

/// What failed a call was told, and what was passed over was not.
fn warn_of_damage(image: &Path, fs: &Fs) {
    for what in fs.damage().passed_over {
        complain(format_args!("{}: warning: {what}", image.display()));
    }
}

/// Tells what was found, and done, when an image was opened.
pub fn pass_on(image: &Path, fs: &Fs) {
    for warning in fs.warnings() {
        complain(format_args!("{}: warning: {warning}", image.display()));
    }
}

/// A reader of an image that the kernel writes sees a mixture of old and new.
pub fn warn_if_used(image: &Path) {
    warn_of_writer(image, in_use_by(image));
}

/// The same for a file that is read without being opened as an image, which nobody's lock prevents.
pub fn warn_if_written(path: &Path) {
    warn_of_writer(path, written_by(path));
}

fn warn_of_writer(path: &Path, by: Option<String>) {
    if let Some(by) = by {
        complain(format_args!(
            "{}: warning: {by}; what is read may be inconsistent",
            path.display()
        ));
    }
}
