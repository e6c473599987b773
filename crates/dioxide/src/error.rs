//! The crate's one error type, and the one place that maps it to `errno`.

use dioxide_format::types::{Group, Ino};
use std::fmt;

/// Where in an image a damaged structure lies. Unknown coordinates are left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Inode that owns the structure.
    pub ino: Option<Ino>,
    /// File-system block that holds it.
    pub block: Option<u64>,
    /// Byte offset inside that block or inode, or inside the device when there is neither.
    pub offset: Option<u64>,
    /// Group whose structure it is.
    pub group: Option<Group>,
    /// Block of the journal, counted from its first.
    pub journal_block: Option<u32>,
}

impl Place {
    /// A place that is known by its inode only.
    pub fn ino(ino: Ino) -> Place {
        Place {
            ino: Some(ino),
            ..Place::default()
        }
    }

    /// A place that is known by its block only.
    pub fn block(block: u64) -> Place {
        Place {
            block: Some(block),
            ..Place::default()
        }
    }

    /// A place that is known by its group only.
    pub fn group(group: Group) -> Place {
        Place {
            group: Some(group),
            ..Place::default()
        }
    }

    /// A block of the journal.
    pub fn journal_block(block: u32) -> Place {
        Place {
            journal_block: Some(block),
            ..Place::default()
        }
    }

    /// The same place inside an inode.
    pub fn in_inode(self, ino: Ino) -> Place {
        Place {
            ino: Some(ino),
            ..self
        }
    }

    /// The same place at a byte offset.
    pub fn at(self, offset: u64) -> Place {
        Place {
            offset: Some(offset),
            ..self
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut sep = "";
        let in_device = self.ino.is_none() && self.block.is_none();
        for (name, value) in [
            ("group", self.group.map(|group| group.0.into())),
            ("inode", self.ino.map(|ino| ino.0.into())),
            ("block", self.block),
            ("journal block", self.journal_block.map(u64::from)),
            (if in_device { "byte" } else { "offset" }, self.offset),
        ] {
            if let Some(value) = value {
                write!(f, "{sep}{name} {value}")?;
                sep = ", ";
            }
        }
        if sep.is_empty() {
            f.write_str("place unknown")?;
        }
        Ok(())
    }
}

/// What there is too little of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Shortage {
    /// Clusters (blocks, without bigalloc).
    Clusters {
        /// How many were asked for at once.
        asked: u64,
        /// How many the caller can have.
        available: u64,
        /// How many more are free, but kept: for the super user, and for the maps of files.
        kept: u64,
    },
    /// Clusters: there are some, and none of the groups that have them can be used, or they do not lie together.
    ScatteredClusters,
    /// Inodes.
    Inodes,
    /// Blocks below 2^32, which are all that a file without extents can have.
    LowBlocks,
    /// Blocks of a directory: it has as many as it can have.
    DirectoryBlocks,
    /// Entries of a directory's index: it has as many levels as it can have.
    IndexEntries,
    /// Room for attributes in an inode and its block.
    Attributes,
    /// Blocks of the journal: one change needs more of them at once than a transaction can have.
    Transaction {
        /// How many it needs.
        blocks: u32,
        /// How many there can be.
        most: u32,
    },
}

impl Shortage {
    /// Whether there can be more once others have freed some.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            Shortage::Clusters { .. }
            | Shortage::ScatteredClusters
            | Shortage::Inodes
            | Shortage::LowBlocks => true,
            Shortage::DirectoryBlocks
            | Shortage::IndexEntries
            | Shortage::Attributes
            | Shortage::Transaction { .. } => false,
        }
    }
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Shortage::Clusters {
                asked,
                available,
                kept,
            } => {
                return write!(
                    f,
                    "{asked} blocks (clusters, with bigalloc) asked for, {available} available, {kept} more kept for the super user and for maps; remove files, or make the file system larger"
                );
            }
            Shortage::Transaction { blocks, most } => {
                return write!(
                    f,
                    "the change needs {blocks} blocks of the journal at once, a transaction has {most}; make the journal larger (tune2fs -J size=)"
                );
            }
            Shortage::ScatteredClusters => {
                "the free blocks do not lie together, or in groups that cannot be used; remove files, or run e2fsck"
            }
            Shortage::Inodes => {
                "no inode is free; remove files, or make the file system larger, which adds some"
            }
            Shortage::LowBlocks => {
                "a file without extents can only have the first 2^32 blocks; remove files there, or copy it to one with extents"
            }
            Shortage::DirectoryBlocks => {
                "the directory is as large as it can be; use several directories, or the feature large_dir"
            }
            Shortage::IndexEntries => {
                "the directory's index is full; use several directories, or the feature large_dir"
            }
            Shortage::Attributes => {
                "attributes have the inode and one block; remove some, or use the feature ea_inode"
            }
        };
        f.write_str(text)
    }
}

/// Everything that can go wrong above the device.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The device failed or refused.
    #[error(transparent)]
    Device(#[from] dioxide_block::Error),
    /// The image contradicts itself or the format (`EUCLEAN`).
    #[error("corrupted {structure} at {place}: {what}; run e2fsck on a copy of the image")]
    Corrupt {
        /// The structure, by its ext4 name.
        structure: &'static str,
        /// Where it lies.
        place: Place,
        /// What was expected and found.
        what: String,
    },
    /// A checksum does not fit its structure (`EBADMSG`).
    #[error(
        "bad checksum of {structure} at {place}: found {found:#010x}, expected {expected:#010x}; run e2fsck on a copy of the image"
    )]
    Checksum {
        /// The structure, by its ext4 name.
        structure: &'static str,
        /// Where it lies.
        place: Place,
        /// The checksum that is stored.
        found: u32,
        /// The checksum that the bytes have.
        expected: u32,
    },
    /// What contradicts the format, and can be read nevertheless, is not changed (`EUCLEAN`); says what.
    #[error("it is not changed: {0}; run e2fsck on a copy of the image")]
    OnlyRead(String),
    /// dioxide does not do this (yet). Nothing was changed.
    #[error("unsupported: {0}")]
    Unsupported(String),
    /// A path, or a part of it, does not exist (`ENOENT`).
    #[error("{0}: no such file or directory")]
    NotFound(String),
    /// A part of a path that must be a directory is not (`ENOTDIR`).
    #[error("{0}: not a directory")]
    NotADirectory(String),
    /// A directory was used as a file (`EISDIR`).
    #[error("{0}: is a directory")]
    IsADirectory(String),
    /// A symlink loop, or too many symlinks (`ELOOP`).
    #[error("{0}: too many levels of symbolic links")]
    TooManySymlinks(String),
    /// A name of over 255 bytes (`ENAMETOOLONG`).
    #[error("{0}: file name too long")]
    NameTooLong(String),
    /// Something of this name is there already (`EEXIST`).
    #[error("{0}: file exists")]
    Exists(String),
    /// A directory that must be empty is not (`ENOTEMPTY`).
    #[error("{0}: directory not empty")]
    NotEmpty(String),
    /// The file is of another project than the directory that it would be in, whose files all are of its
    /// own (`EXDEV`).
    #[error("{0}: of another project than the directory")]
    CrossProject(String),
    /// The directory is of another mount than the file (`EXDEV`).
    #[error("inode {0}: of another mount")]
    CrossMount(u32),
    /// The file has as many links as it can have (`EMLINK`).
    #[error("{0}: too many links")]
    TooManyLinks(String),
    /// The file has no such extended attribute (`ENODATA`).
    #[error("{0}: no such extended attribute")]
    NoAttribute(String),
    /// An attribute's value is longer than any may be (`E2BIG`).
    #[error("value too big: {0}")]
    TooBig(String),
    /// An attribute's name is empty or longer than any may be (`ERANGE`).
    #[error("out of range: {0}")]
    OutOfRange(String),
    /// Such a file cannot have this (`EACCES`).
    #[error("access denied: {0}")]
    AccessDenied(String),
    /// The mount or the file is read-only (`EROFS`); says why.
    #[error("read-only: {0}")]
    ReadOnly(String),
    /// A flag of the file, or what kind of file it is, forbids it (`EPERM`).
    #[error("not permitted: {0}")]
    NotPermitted(String),
    /// The file was not opened for this kind of access (`EBADF`).
    #[error("the file was not opened for {0}")]
    BadAccess(&'static str),
    /// The request is malformed or misaligned (`EINVAL`); says which part.
    #[error("invalid request: {0}")]
    Invalid(String),
    /// The request passes the file-size limit (`EFBIG`).
    #[error("file too large: {0}")]
    TooLarge(String),
    /// Nothing is left to allocate (`ENOSPC`); says of what. Nothing was changed, but for what [`crate::File::write_at`] and
    /// [`crate::File::allocate`] say.
    #[error("no space left: {0}")]
    NoSpace(Shortage),
    /// Somebody still uses it (`EBUSY`); says who.
    #[error("busy: {0}")]
    Busy(&'static str),
    /// No-wait mode, and the request would have to wait (`EAGAIN`).
    #[error("would block: {0}")]
    WouldBlock(&'static str),
    /// The system gives no thread for this (`EAGAIN`, mostly). Nothing was changed.
    #[error("no thread for {0}: {1}")]
    NoThread(&'static str, std::io::Error),
    /// Damage was found, and `errors=panic` has nothing be done any more (`EIO`); says what.
    #[error("stopped after damage was found: {0}")]
    Stopped(String),
    /// A panic ended the work on a request of a queue (`EIO`): in a device that is not dioxide's, or a defect. What was done of it is
    /// not known.
    #[error("a panic ended the work on the request")]
    Panicked,
    /// Waiting would never end (`EDEADLK`), unless this thread reaps its queues first.
    #[error("deadlock: {0}")]
    Deadlock(&'static str),
    /// The file has requests in flight in a queue that was dropped where it could not wait for them (`EDEADLK`): nobody knows when they
    /// end, and no try is better than this one until the image is opened again.
    #[error(
        "deadlock: the file has requests in a queue that was dropped before they had ended; mount again"
    )]
    LostQueue,
}

impl Error {
    /// The `errno` that Linux gives in this case. The only such mapping in the crate.
    pub fn errno(&self) -> i32 {
        match self {
            Error::Device(e) => e.errno(),
            Error::Corrupt { .. } | Error::OnlyRead(_) => libc::EUCLEAN,
            Error::Checksum { .. } => libc::EBADMSG,
            Error::Unsupported(_) => libc::EOPNOTSUPP,
            Error::NotFound(_) => libc::ENOENT,
            Error::NotADirectory(_) => libc::ENOTDIR,
            Error::IsADirectory(_) => libc::EISDIR,
            Error::TooManySymlinks(_) => libc::ELOOP,
            Error::NameTooLong(_) => libc::ENAMETOOLONG,
            Error::Exists(_) => libc::EEXIST,
            Error::NotEmpty(_) => libc::ENOTEMPTY,
            Error::CrossProject(_) | Error::CrossMount(_) => libc::EXDEV,
            Error::TooManyLinks(_) => libc::EMLINK,
            Error::NoAttribute(_) => libc::ENODATA,
            Error::TooBig(_) => libc::E2BIG,
            Error::OutOfRange(_) => libc::ERANGE,
            Error::AccessDenied(_) => libc::EACCES,
            Error::ReadOnly(_) => libc::EROFS,
            Error::NotPermitted(_) => libc::EPERM,
            Error::BadAccess(_) => libc::EBADF,
            Error::Invalid(_) => libc::EINVAL,
            Error::TooLarge(_) => libc::EFBIG,
            Error::NoSpace(_) => libc::ENOSPC,
            Error::Busy(_) => libc::EBUSY,
            Error::WouldBlock(_) => libc::EAGAIN,
            Error::NoThread(_, error) => error.raw_os_error().unwrap_or(libc::EAGAIN),
            Error::Stopped(_) | Error::Panicked => libc::EIO,
            Error::Deadlock(_) | Error::LostQueue => libc::EDEADLK,
        }
    }

    /// Whether it tells of damaged metadata.
    pub(crate) fn is_damage(&self) -> bool {
        matches!(self, Error::Corrupt { .. } | Error::Checksum { .. })
    }

    /// Adds coordinates to an error of the format crate.
    pub(crate) fn format(error: dioxide_format::Error, place: Place) -> Error {
        use dioxide_format::Error as F;
        match error {
            F::Checksum {
                structure,
                found,
                expected,
            } => Error::Checksum {
                structure,
                place,
                found,
                expected,
            },
            F::Corrupt { structure, .. } | F::TooShort { structure, .. } => Error::Corrupt {
                structure,
                place,
                what: error.to_string(),
            },
            other => Error::Unsupported(other.to_string()),
        }
    }
}

impl From<dioxide_journal::Error> for Error {
    fn from(error: dioxide_journal::Error) -> Error {
        use dioxide_journal::Error as J;
        match error {
            J::Device(error) => Error::Device(error),
            J::Block { block, source } => Error::format(source, Place::block(block)),
            J::Damaged {
                kind,
                block,
                source,
            } => Error::Corrupt {
                structure: kind,
                place: Place::block(block),
                what: format!("it was not written, because of what it has become: {source}"),
            },
            J::Log { block, what } => Error::Corrupt {
                structure: "journal",
                place: Place::journal_block(block),
                what,
            },
            J::Unsupported(what) => Error::Unsupported(what),
            J::HandleTooLarge { credits, max } => Error::NoSpace(Shortage::Transaction {
                blocks: credits,
                most: max,
            }),
            J::NoThread(error) => Error::NoThread("the journal", error),
            J::Aborted(_) => Error::ReadOnly(error.to_string()),
            other => Error::Invalid(other.to_string()),
        }
    }
}

/// Completions of a queue carry their errors boxed.
impl From<Box<Error>> for Error {
    fn from(error: Box<Error>) -> Error {
        *error
    }
}

/// Completions of a queue carry their errors boxed.
impl From<Box<Error>> for std::io::Error {
    fn from(error: Box<Error>) -> Self {
        (*error).into()
    }
}

/// Of the kind that its `errno` has; `get_ref` leads to the [`Error`], and `raw_os_error` tells nothing.
impl From<Error> for std::io::Error {
    fn from(error: Error) -> Self {
        std::io::Error::new(
            std::io::Error::from_raw_os_error(error.errno()).kind(),
            error,
        )
    }
}

/// Shorthand for this crate's results.
pub type Result<T, E = Error> = std::result::Result<T, E>;
