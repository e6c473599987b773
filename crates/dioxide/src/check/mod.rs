//! Whether a file system is consistent: what `e2fsck -fn` looks at, in its passes, read-only.
//!
//! | Part | What it looks at |
//! |---|---|
//! | `superblock`, `groups`, `special` | pass 0: superblock, backups, descriptors, journal, resize inode, orphans, MMP |
//! | `pass1`, `blocks`, `attributes` | inodes, blocks and sizes, extended attributes |
//! | `owners` | pass 1B: who claims what was claimed twice |
//! | `pass2`, `htree` | directories and their indexes |
//! | `links` | pass 3: whether all directories can be reached; pass 4: link counts |
//! | `pass5`, `quota` | bitmaps, counts and quota files against what is in use |
//! | [`journal`], [`layout`] | what the journal holds, and what each part of the image is used for |
//! | `walk`, `claims`, `inodes`, `source`, `paths` | what the passes share |
//!
//! It reads the device itself, and needs nothing of a mount but the format: a file system that cannot be
//! mounted is what it is for. Not for: repairing.
//!
//! # Invariants
//! - Nothing is written.
//! - Memory: a bit for each cluster and eight bytes for each inode, both made group by group as they are
//!   used; one entry for each directory and each shared block of attributes; one directory's blocks;
//!   where there is quota, one entry for each id.
//! - Time: each block of a map is read once in pass 1, whoever claims it; later passes have a budget.
//!   Nothing recurses.
//! - What follows from damage is not reported again where that can be known: a group with a damaged
//!   descriptor is left out of pass 5, a bitmap is not compared after blocks could not be read.
//!
//! Rejected: checking through a mount. It refuses what it cannot trust, with one error where a check must
//! go on. Rejected: an own table of errors to expect in each structure; the format crate's validation is
//! what readers and writers rely on, so it is what a check must ask.

mod attributes;
mod blocks;
mod claims;
mod finding;
mod groups;
mod htree;
mod inodes;
pub mod journal;
pub mod layout;
mod links;
mod owners;
mod pass1;
mod pass2;
mod pass5;
mod paths;
mod quota;
mod source;
mod special;
mod superblock;
mod walk;

pub use finding::{At, Code, Finding, Pass, Severity};

use crate::mount::image::open_image;
use crate::mount::log::refuse_needless;
use crate::{Error, Result};
use attributes::{Policies, SharedXattrs};
use claims::Claims;
use dioxide_block::Device;
use dioxide_block::file::FileOptions;
use dioxide_format::dir::DirFormat;
use dioxide_format::features::RoCompat;
use dioxide_format::superblock::SuperBlock;
use dioxide_format::types::Ino;
use finding::Findings;
use groups::Groups;
use inodes::InodeTable;
use layout::Layout;
use links::Dirs;
use quota::QuotaUse;
use serde::Serialize;
use source::Source;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Exit status of `e2fsck` for errors that were left uncorrected.
pub const EXIT_UNCORRECTED: u8 = 4;
/// Exit status of `e2fsck` for a check that could not be made.
pub const EXIT_OPERATIONAL: u8 = 8;
/// Exit status of `e2fsck` that somebody ended.
pub const EXIT_CANCELLED: u8 = 32;

/// How to check.
#[derive(Clone, Debug)]
pub struct CheckOptions {
    /// Where the superblock to use is, in KiB as in mount's `sb=`. Otherwise the primary one, or the
    /// first good backup.
    pub superblock_at: Option<u64>,
    /// Findings that are kept; more are only counted. Default 10,000.
    pub max_findings: usize,
    /// The device that holds the journal, where that is not in the file system.
    pub journal: Option<Arc<dyn Device>>,
    /// Most memory for what is in use, in bytes: a bit for each cluster, and 8 bytes for each inode of the groups that have
    /// any, unused ones too. Default 8 GiB.
    pub max_memory: u64,
    /// Ends the check once it is true: what was found until then is the report.
    pub cancel: Option<Arc<AtomicBool>>,
}

impl Default for CheckOptions {
    fn default() -> CheckOptions {
        CheckOptions {
            superblock_at: None,
            max_findings: 10_000,
            journal: None,
            max_memory: 8 << 30,
            cancel: None,
        }
    }
}

/// How far a check is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The pass that runs.
    pub pass: Pass,
    /// Steps of the whole check that are done.
    pub done: u64,
    /// Steps of the whole check.
    pub total: u64,
}

/// What is called as a check goes on.
pub type OnProgress<'p> = dyn FnMut(&Progress) + 'p;

/// What was found, and how much there is.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Findings in the order of the passes, up to [`CheckOptions::max_findings`].
    pub findings: Vec<Finding>,
    /// How many errors there are, kept or not.
    pub errors: u64,
    /// How many notes there are, kept or not.
    pub notes: u64,
    /// The check could not be made to its end: no superblock was found, or blocks cannot be read.
    pub incomplete: bool,
    /// [`CheckOptions::cancel`] ended the check; findings have no paths then.
    pub cancelled: bool,
    /// What is in use; nothing if there is no usable superblock, or the check was ended.
    pub usage: Option<Usage>,
}

/// What is in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Usage {
    /// Inodes in use, reserved ones included.
    pub inodes: u64,
    /// Inodes that there are.
    pub inodes_total: u64,
    /// Blocks in use, metadata included.
    pub blocks: u64,
    /// Blocks that there are.
    pub blocks_total: u64,
    /// Directories.
    pub directories: u64,
    /// Regular files.
    pub files: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Devices, FIFOs and sockets.
    pub special: u64,
    /// Regular files of more than one extent, or whose blocks do not follow each other.
    pub fragmented_files: u64,
}

impl Report {
    /// Whether there are no errors.
    pub fn is_clean(&self) -> bool {
        self.errors == 0 && !self.incomplete && !self.cancelled
    }

    /// The exit status that `e2fsck` would give: 0, or the sum of [`EXIT_UNCORRECTED`],
    /// [`EXIT_OPERATIONAL`] and [`EXIT_CANCELLED`] as they apply.
    pub fn exit_status(&self) -> u8 {
        let uncorrected = if self.errors > 0 { EXIT_UNCORRECTED } else { 0 };
        let incomplete = if self.incomplete { EXIT_OPERATIONAL } else { 0 };
        let cancelled = if self.cancelled { EXIT_CANCELLED } else { 0 };
        uncorrected | incomplete | cancelled
    }
}

/// Checks the file system in an image file or on a block device, which is opened read-only. Blocks for
/// as long as it takes to read all metadata.
///
/// # Errors
/// As [`check`]; the device's.
pub fn check_path(
    path: impl AsRef<Path>,
    options: &CheckOptions,
    progress: &mut OnProgress<'_>,
) -> Result<Report> {
    check(
        open_image(path, &FileOptions::default())?,
        options,
        progress,
    )
}

/// Checks the file system on a device. Blocks for as long as it takes to read all metadata; damage, and
/// blocks that cannot be read, are findings and no errors. A journal that needs recovery is read in place
/// of the blocks that it replaces, as a mount that only reads does.
///
/// # Errors
/// [`Error::Unsupported`] for features that are not known, by name, and for file systems that need more
/// than [`CheckOptions::max_memory`] from the start (what turns out to need more later ends incomplete, and says so); [`Error::Invalid`] for a [`CheckOptions::journal`] of a file system that has none outside.
pub fn check(
    device: Arc<dyn Device>,
    options: &CheckOptions,
    progress: &mut OnProgress<'_>,
) -> Result<Report> {
    let mut findings = Findings::new(options.max_findings);
    let Some(found) = superblock::find(&device, options, &mut findings)? else {
        let (findings, errors, notes) = findings.into_parts();
        return Ok(Report {
            findings,
            errors,
            notes,
            incomplete: true,
            cancelled: false,
            usage: None,
        });
    };
    let mut checker = Checker::new(device, options, found, findings, progress)?;
    checker.run();
    if checker.inodes.is_over() {
        let text = over_memory(&checker.sb, options);
        checker.find(Code::NotChecked, At::default(), text);
        checker.unreadable = true;
    }
    Ok(checker.into_report())
}

/// A check that is being made.
struct Checker<'p> {
    source: Source,
    sb: SuperBlock,
    /// The block of the superblock that is used: the descriptor table follows it.
    sb_block: u64,
    /// The primary superblock is used, so that its counts mean something.
    primary: bool,
    /// The journal's own device, if one was given.
    journal: Option<Arc<dyn Device>>,
    /// The journal is read in place of what it replaces.
    recovered: bool,
    /// Seed of the checksums, where there are any.
    seed: Option<u32>,
    dir_format: DirFormat,
    findings: Findings,
    groups: Groups,
    claims: Claims,
    inodes: InodeTable,
    dirs: Dirs,
    shared_xattrs: SharedXattrs,
    policies: Policies,
    /// A directory folds case, which was told.
    folds: bool,
    quota: QuotaUse,
    /// Blocks could not be read.
    unreadable: bool,
    /// Steps of later passes, in blocks of maps and directories.
    budget: u64,
    layout: Layout,
    usage: Usage,
    progress: &'p mut dyn FnMut(&Progress),
    steps: Steps,
    cancel: Option<Arc<AtomicBool>>,
    cancelled: bool,
}

#[derive(Default)]
struct Steps {
    done: u64,
    total: u64,
}

impl<'p> Checker<'p> {
    fn new(
        device: Arc<dyn Device>,
        options: &CheckOptions,
        found: superblock::Found,
        findings: Findings,
        progress: &'p mut dyn FnMut(&Progress),
    ) -> Result<Checker<'p>> {
        let sb = found.sb;
        if options.journal.is_some() {
            refuse_needless(&sb)?;
        }
        let Some(room) = options.max_memory.checked_sub(memory_needed(&sb)) else {
            return Err(Error::Unsupported(over_memory(&sb, options)));
        };
        let blocks = sb.blocks_count();
        Ok(Checker {
            source: Source::new(device, sb.block_size()),
            sb_block: found.block,
            primary: found.primary,
            journal: options.journal.clone(),
            recovered: false,
            seed: sb.features().metadata_csum().then(|| sb.checksum_seed()),
            dir_format: DirFormat::of(&sb),
            findings,
            groups: Groups::default(),
            claims: Claims::new(&sb),
            inodes: InodeTable::new(&sb, room),
            dirs: Dirs::default(),
            shared_xattrs: SharedXattrs::default(),
            policies: Policies::default(),
            folds: false,
            quota: QuotaUse::default(),
            unreadable: false,
            budget: blocks.saturating_mul(4).saturating_add(1 << 20),
            layout: Layout::new(&sb),
            usage: Usage {
                blocks_total: blocks,
                inodes_total: sb.inodes_count().into(),
                ..Usage::default()
            },
            steps: Steps {
                done: 0,
                total: u64::from(sb.group_count()) * 2,
            },
            progress,
            cancel: options.cancel.clone(),
            cancelled: false,
            sb,
        })
    }

    fn run(&mut self) {
        let parts = [
            Self::recover_journal,
            Self::fields,
            Self::backups,
            Self::read_groups,
            Self::special_inodes,
            Self::pass1,
            Self::owners,
            Self::pass2,
            Self::connectivity,
            Self::link_counts,
            Self::pass5,
            Self::judge_quota_use,
            Self::name_findings,
        ];
        for part in parts {
            // What needs all of the part before would find what is not there.
            if self.is_cancelled() || self.inodes.is_over() {
                return;
            }
            part(self);
        }
    }

    /// Whether somebody wants the check to end. Once true it stays so.
    fn is_cancelled(&mut self) -> bool {
        let asked = self.cancel.as_ref();
        self.cancelled |= asked.is_some_and(|asked| asked.load(Ordering::Relaxed));
        self.cancelled
    }

    fn into_report(self) -> Report {
        let usage = (!self.cancelled).then_some(self.usage);
        let (findings, errors, notes) = self.findings.into_parts();
        Report {
            findings,
            errors,
            notes,
            incomplete: self.unreadable,
            cancelled: self.cancelled,
            usage,
        }
    }

    fn find(&mut self, code: Code, place: At, text: impl Into<String>) {
        self.findings.add(code, place, text);
    }

    /// Blocks that cannot be read are a finding, and what needed them goes on without.
    fn readable<T>(&mut self, place: At, read: Result<T>) -> Option<T> {
        match read {
            Ok(read) => Some(read),
            Err(error) => {
                self.unreadable = true;
                self.find(Code::ReadError, place, error.to_string());
                None
            }
        }
    }

    /// The blocks that an inode may point to.
    fn physical(&self) -> Range<u64> {
        self.sb.first_data_block().0 + 1..self.sb.blocks_count()
    }

    /// One more step is done.
    fn step(&mut self, pass: Pass) {
        self.steps.done += 1;
        let Steps { done, total } = self.steps;
        (self.progress)(&Progress {
            pass,
            done: done.min(total),
            total,
        });
    }

    /// Takes from the budget of later passes.
    fn spend(&mut self, blocks: u64) -> bool {
        self.budget = self.budget.saturating_sub(blocks);
        self.budget > 0
    }

    fn has_quota(&self) -> bool {
        self.sb.features().ro_compat.contains(RoCompat::QUOTA)
    }

    /// Inodes that need no name besides the reserved ones.
    fn is_hidden(&self, ino: Ino) -> bool {
        ino < self.sb.first_ino()
            || self.sb.quota_inums().contains(&ino.0)
            || self.sb.orphan_file_inum() == Some(ino)
    }
}

fn over_memory(sb: &SuperBlock, options: &CheckOptions) -> String {
    format!(
        "a check of {} blocks and {} inodes needs more than {} bytes of memory (--max-memory)",
        sb.blocks_count(),
        sb.inodes_count(),
        options.max_memory
    )
}

/// A bit for each cluster and a word for each group; inodes are counted as they are met ([`InodeTable`]).
fn memory_needed(sb: &SuperBlock) -> u64 {
    let clusters = sb.blocks_count() / u64::from(sb.cluster_ratio());
    clusters / 8 + u64::from(sb.group_count()) * 256
}
