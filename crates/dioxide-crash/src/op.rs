//! What a workload does, as data.

use crate::names::NameOp;
use dioxide::Policy;
use std::fmt;

/// A file of the workload, by its number.
pub type FileNo = usize;

/// What a change of data or size promises when it returns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Durable {
    /// Nothing.
    #[default]
    No,
    /// `O_DSYNC`.
    Data,
    /// `O_SYNC`.
    Full,
}

/// What `fallocate` does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Allocates, and extends the file.
    Allocate,
    /// Allocates; the size stays.
    KeepSize,
    /// Makes a hole.
    PunchHole,
    /// Makes a range read as zeros, and extends the file.
    ZeroRange,
    /// Makes a range read as zeros; the size stays.
    ZeroRangeKeepSize,
    /// Writes zeros, and extends the file.
    WriteZeroes,
    /// Takes blocks out; what is behind them moves up.
    CollapseRange,
    /// Puts a hole in; what is behind it moves down.
    InsertRange,
}

/// One call. Offsets and lengths in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Writes; may be unaligned, extend the file, leave a gap.
    Write {
        /// The file.
        file: FileNo,
        /// First byte.
        offset: u64,
        /// How many bytes.
        len: u64,
        /// What it promises.
        durable: Durable,
    },
    /// As [`Op::Write`], through a queue: it has returned when its completion was reaped.
    WriteQueued {
        /// The file.
        file: FileNo,
        /// First byte.
        offset: u64,
        /// How many bytes.
        len: u64,
        /// What it promises.
        durable: Durable,
    },
    /// Writes atomically: a power of two, at a multiple of itself.
    WriteAtomic {
        /// The file.
        file: FileNo,
        /// First byte.
        offset: u64,
        /// How many bytes.
        len: u64,
        /// What it promises.
        durable: Durable,
    },
    /// Writes at the end of the file.
    Append {
        /// The file.
        file: FileNo,
        /// How many bytes.
        len: u64,
        /// What it promises.
        durable: Durable,
    },
    /// As [`Op::Append`], through a queue.
    AppendQueued {
        /// The file.
        file: FileNo,
        /// How many bytes.
        len: u64,
        /// What it promises.
        durable: Durable,
    },
    /// `ftruncate`.
    SetLen {
        /// The file.
        file: FileNo,
        /// The new size.
        len: u64,
        /// What it promises.
        durable: Durable,
    },
    /// `fallocate`.
    Allocate {
        /// The file.
        file: FileNo,
        /// What it does.
        mode: Mode,
        /// First byte.
        offset: u64,
        /// How many bytes.
        len: u64,
        /// What it promises.
        durable: Durable,
    },
    /// `fchmod`.
    SetMode {
        /// The file.
        file: FileNo,
        /// Permissions.
        mode: u16,
    },
    /// `futimens`: the time of last access.
    SetTime {
        /// The file.
        file: FileNo,
        /// Seconds since 1970.
        secs: i64,
    },
    /// `fsync`.
    Fsync {
        /// The file.
        file: FileNo,
    },
    /// `fdatasync`.
    Fdatasync {
        /// The file.
        file: FileNo,
    },
    /// As [`Op::Fsync`], through a queue.
    FsyncQueued {
        /// The file.
        file: FileNo,
    },
    /// As [`Op::Fdatasync`], through a queue.
    FdatasyncQueued {
        /// The file.
        file: FileNo,
    },
    /// `syncfs`.
    Sync,
    /// `FITRIM`, of everything.
    Trim,
    /// From here on locks are taken by these rules. Promises nothing and changes nothing.
    Policy(Policy),
    /// So many that follow, all of them through a queue, are pushed into one before any is reaped.
    Together(usize),
    /// Power fails, and what is on the device is mounted again. It follows [`Op::Sync`], so that it is known what that is.
    Crash,
    /// Something with names.
    Name(NameOp),
}

impl Op {
    /// The file that it is about, if it is about one.
    pub fn file(&self) -> Option<FileNo> {
        match *self {
            Op::Write { file, .. }
            | Op::WriteQueued { file, .. }
            | Op::WriteAtomic { file, .. }
            | Op::Append { file, .. }
            | Op::AppendQueued { file, .. }
            | Op::SetLen { file, .. }
            | Op::Allocate { file, .. }
            | Op::SetMode { file, .. }
            | Op::SetTime { file, .. }
            | Op::Fsync { file }
            | Op::Fdatasync { file }
            | Op::FsyncQueued { file }
            | Op::FdatasyncQueued { file } => Some(file),
            Op::Sync | Op::Trim | Op::Policy(_) | Op::Name(_) => None,
            Op::Together(_) | Op::Crash => None,
        }
    }

    /// Whether it is on the names or attributes of a file that other threads write.
    pub(crate) fn meddles_with_data(&self) -> bool {
        matches!(self, Op::Name(op) if op.meddles_with_data())
    }

    /// What it promises of its own effect.
    pub(crate) fn durable(&self) -> Durable {
        match *self {
            Op::Write { durable, .. }
            | Op::WriteQueued { durable, .. }
            | Op::WriteAtomic { durable, .. }
            | Op::Append { durable, .. }
            | Op::AppendQueued { durable, .. }
            | Op::SetLen { durable, .. }
            | Op::Allocate { durable, .. } => durable,
            _ => Durable::No,
        }
    }

    /// The same, as a file with the flag SYNC takes it.
    pub fn made_durable(&self) -> Op {
        let mut op = self.clone();
        if let Op::Write { durable, .. }
        | Op::WriteQueued { durable, .. }
        | Op::WriteAtomic { durable, .. }
        | Op::Append { durable, .. }
        | Op::AppendQueued { durable, .. }
        | Op::SetLen { durable, .. }
        | Op::Allocate { durable, .. } = &mut op
        {
            *durable = Durable::Full;
        }
        op
    }

    /// Whether it changes contents, or where they are.
    pub fn changes_data(&self) -> bool {
        self.has_steps() || matches!(self, Op::SetLen { .. } | Op::Allocate { .. })
    }

    /// Whether it may be there in part after a crash, sector by sector; an atomic write only before its data is.
    pub fn has_steps(&self) -> bool {
        match self {
            Op::Write { .. }
            | Op::WriteQueued { .. }
            | Op::WriteAtomic { .. }
            | Op::Append { .. }
            | Op::AppendQueued { .. } => true,
            Op::Allocate { mode, .. } => !matches!(mode, Mode::CollapseRange | Mode::InsertRange),
            _ => false,
        }
    }
}

impl Durable {
    fn suffix(self) -> &'static str {
        match self {
            Durable::No => "",
            Durable::Data => " dsync",
            Durable::Full => " sync",
        }
    }
}

impl Mode {
    fn word(self) -> &'static str {
        match self {
            Mode::Allocate => "allocate",
            Mode::KeepSize => "keep-size",
            Mode::PunchHole => "punch",
            Mode::ZeroRange => "zero",
            Mode::ZeroRangeKeepSize => "zero-keep-size",
            Mode::WriteZeroes => "write-zeroes",
            Mode::CollapseRange => "collapse",
            Mode::InsertRange => "insert",
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Op::Write {
                file,
                offset,
                len,
                durable,
            } => write!(f, "write f{file} {offset}+{len}{}", durable.suffix()),
            Op::WriteQueued {
                file,
                offset,
                len,
                durable,
            } => write!(f, "write-queued f{file} {offset}+{len}{}", durable.suffix()),
            Op::WriteAtomic {
                file,
                offset,
                len,
                durable,
            } => write!(f, "write-atomic f{file} {offset}+{len}{}", durable.suffix()),
            Op::Append { file, len, durable } => {
                write!(f, "append f{file} {len}{}", durable.suffix())
            }
            Op::AppendQueued { file, len, durable } => {
                write!(f, "append-queued f{file} {len}{}", durable.suffix())
            }
            Op::SetLen { file, len, durable } => {
                write!(f, "truncate f{file} {len}{}", durable.suffix())
            }
            Op::Allocate {
                file,
                mode,
                offset,
                len,
                durable,
            } => {
                let (word, suffix) = (mode.word(), durable.suffix());
                write!(f, "{word} f{file} {offset}+{len}{suffix}")
            }
            Op::SetMode { file, mode } => write!(f, "chmod f{file} {mode:o}"),
            Op::SetTime { file, secs } => write!(f, "atime f{file} {secs}"),
            Op::Fsync { file } => write!(f, "fsync f{file}"),
            Op::Fdatasync { file } => write!(f, "fdatasync f{file}"),
            Op::FsyncQueued { file } => write!(f, "fsync-queued f{file}"),
            Op::FdatasyncQueued { file } => write!(f, "fdatasync-queued f{file}"),
            Op::Sync => f.write_str("sync"),
            Op::Trim => f.write_str("trim"),
            Op::Policy(policy) => write!(f, "policy {policy}"),
            Op::Together(count) => write!(f, "together {count}"),
            Op::Crash => f.write_str("crash"),
            Op::Name(op) => op.fmt(f),
        }
    }
}
