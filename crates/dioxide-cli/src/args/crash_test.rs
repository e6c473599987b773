//! Arguments of `dioxide crash-test`.

use clap::Args;
use dioxide_crash::campaign::{Campaign, Selection};
use dioxide_crash::engine::Dioxide;
use dioxide_crash::explore::Limits;
use dioxide_crash::fault::Fault;
use dioxide_crash::image::Layout;
use dioxide_crash::replay::Replay;
use std::path::PathBuf;

/// Cuts the power, thousands of times, and checks what was promised
#[derive(Args, Debug)]
#[command(after_help = "\
Makes small images, most of them with mke2fs, runs workloads on a device that records every write and flush, builds
what a crash at any time can leave of them, recovers each of these states, checks files against
what had been promised, and has e2fsck look at the result; one state in a thousand is recovered by e2fsck as
well, and by the kernel's ext4 where it can be mounted: as root, on a loop device. All must show the
same files. The report tells how many. Nothing is written but temporary files.
Layouts are 4k, 1k, plain (no checksums), csum3 (checksums in the journal), indirect, bigalloc,
atomic (bigalloc on a device with atomic writes), orphan-file, fast-commit (room for them in the
journal), groups (many small ones), ea-inode (values of attributes that are inodes), quota (the same,
with projects), inline (small files and directories in their inodes), external (the journal on another
device), meta-groups (two of them), index (a directory index that is full), large-dir (one of three
levels), deep (an extent tree of depth 3), own (made by dioxide mkfs) and no-journal. Singles and pairs
end with their list, and the report tells how many workloads were run of how many there are. Exits
with 1 if a state is bad, 2 if the test could not be run. Ctrl-C or SIGTERM ends it after the states at
hand, with the report of what was checked and status 130.

Examples:
  dioxide crash-test --states 20000
  dioxide crash-test 1k csum3 --workload pairs --seed 42 --jobs 4
  dioxide crash-test 4k --workload singles --states-each 0 --states 10000000
  dioxide crash-test --replay 1k/fua/single:0:1/0: --keep before.img")]
pub struct CrashTestArgs {
    /// Layouts of the images; all but groups, quota, index, large-dir and deep if none is named
    #[arg(value_name = "LAYOUT", conflicts_with = "replay")]
    layouts: Vec<Layout>,
    /// States to check
    #[arg(long, value_name = "N", default_value = "20000", value_parser = clap::value_parser!(u64).range(1..))]
    states: u64,
    /// States to check of each workload; all of them with 0. Where it has more, prefixes of what it wrote come first, up to
    /// three quarters of so many, and reordered, dropped and torn writes have the rest
    #[arg(long, value_name = "N", default_value_t = Limits::default().states)]
    states_each: u64,
    /// What is random is so by this
    #[arg(long, value_name = "N", default_value = "1")]
    seed: u64,
    /// Threads [default: one for each processor]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    jobs: Option<u16>,
    /// What to run: all, singles, pairs, spread (each pair on one of the layouts), random, names, attributes, again (random
    /// ones that go on after a crash), threads (five at once), shared (two or three that write to one file; the states of
    /// several threads come once and not again), or one by its name, as in reports.
    /// Random ones take a policy of locks by their seed, and send some of their writes and syncs through a queue
    #[arg(long, value_name = "NAME", default_value = "all")]
    workload: Selection,
    /// Check this state only, as a report describes it
    #[arg(long, value_name = "STATE")]
    pub replay: Option<Replay>,
    /// Write the image of the replayed state, or else of the first bad one if any is, before its recovery
    #[arg(long, value_name = "FILE")]
    pub keep: Option<PathBuf>,
    /// Break the device on purpose: no-flush, second-flush, no-fua, late, lost, short, misplaced, split-atomic;
    /// or what the engine writes: data-late, orphan-skipped, size-early, revoke-ignored, stale-checksum, free-early
    #[arg(long, value_name = "FAULT")]
    pub fault: Option<Fault>,
    /// Keep files open during a workload. Otherwise each is opened for each operation
    #[arg(long)]
    keep_open: bool,
    /// Commit each step of an operation before the next one, so that power fails between them. Otherwise an operation is in
    /// one transaction if it fits
    #[arg(long)]
    commit_each: bool,
    /// Mount with discard: the device is told of freed blocks, and they are junk from then on
    #[arg(long)]
    discard: bool,
    /// Have e2fsck look at one state in so many; at none with 0
    #[arg(long, value_name = "N", default_value = "1")]
    e2fsck_every: u64,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

impl CrashTestArgs {
    /// What is tested.
    pub fn target(&self) -> Dioxide {
        let target = match self.commit_each {
            true => Dioxide::committing_each(),
            false => Dioxide::default(),
        };
        Dioxide {
            options: target.options.discard(self.discard),
            keep_open: self.keep_open,
        }
    }

    /// What was asked for.
    pub fn campaign(&self) -> Campaign {
        let processors = || std::thread::available_parallelism().map_or(1, usize::from);
        Campaign {
            layouts: match &self.layouts[..] {
                [] => Layout::USUAL.to_vec(),
                layouts => layouts.to_vec(),
            },
            selection: self.workload,
            seed: self.seed,
            states: self.states,
            jobs: self.jobs.map_or_else(processors, usize::from),
            limits: Limits {
                states: self.states_each,
                check_every: self.e2fsck_every,
                ..Limits::default()
            },
            fault: self.fault,
            until_bad: false,
        }
    }
}
