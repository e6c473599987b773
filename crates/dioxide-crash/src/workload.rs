//! What to run: each operation alone, all pairs of operations, random mixes; with fsync at each place.
//!
//! A workload has a short name that says all there is to know of it: `single:4:1`, `pair:4:17:3`,
//! `random:99`, `long:99`, `again:99`, `threads:99`, `truncate`, `reuse`, `new`. The first numbers are places in [`operations`], the last which of the operations is
//! followed by an fsync of its file (1 the first, 2 the second, 3 both); of `random`, `long`, `threads` (five at once: four with a file each, one with names and attributes)
//! `shared` (two or three that write to one file) and `again` (which goes on after a crash), the seed, by which there is a policy too, and some of the writes and syncs go through a queue. Those of
//! operations on names are called `names-single:4:1` and so on, by places in [`names::operations`], behind which, for pairs, are
//! operations on data; `names-random` mixes them with data.
//! Those of attributes are called `attributes-single:4:1` and so on, by places in [`names::attribute_operations`], behind which,
//! for pairs, are operations on names and then on data; they begin with attributes that files share. `attributes-random` mixes all.

use crate::image::Layout;
use crate::names::{self, Change, NameOp};
use crate::op::{Durable, FileNo, Mode, Op};
use dioxide::Policy;
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

/// A list of operations, by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Workload {
    /// One operation.
    Single {
        /// Which.
        op: usize,
        /// Whether an fsync follows.
        synced: bool,
    },
    /// Two operations.
    Pair {
        /// Which.
        ops: [usize; 2],
        /// After which of them an fsync follows: bit by bit.
        synced: u8,
    },
    /// Random operations and syncs, ten or twenty.
    Random {
        /// Their seed.
        seed: u64,
    },
    /// As [`Workload::Single`], of an operation on names.
    NamesSingle {
        /// Which.
        op: usize,
        /// Whether an fsync follows.
        synced: bool,
    },
    /// As [`Workload::Pair`], of an operation on names and another on names or data.
    NamesPair {
        /// Which.
        ops: [usize; 2],
        /// After which of them an fsync follows: bit by bit; 4 for a sync of all after the first.
        synced: u8,
    },
    /// Random operations on names and on data, and syncs.
    NamesRandom {
        /// Their seed.
        seed: u64,
    },
    /// As [`Workload::Single`], of an operation on attributes.
    AttributesSingle {
        /// Which.
        op: usize,
        /// Whether an fsync follows.
        synced: bool,
    },
    /// As [`Workload::NamesPair`], of an operation on attributes and another of any kind.
    AttributesPair {
        /// Which.
        ops: [usize; 2],
        /// As of [`Workload::NamesPair`].
        synced: u8,
    },
    /// Random operations on attributes, names and data, and syncs.
    AttributesRandom {
        /// Their seed.
        seed: u64,
    },
    /// As many, with as many syncs, as take the journal around its log.
    Long {
        /// Their seed.
        seed: u64,
    },
    /// Random operations and syncs of five threads at once: four on a file each, one on names and attributes.
    Threads {
        /// Their seed.
        seed: u64,
    },
    /// Random writes and syncs of two or three threads at once, to one file.
    Shared {
        /// Their seed.
        seed: u64,
    },
    /// Random operations of all kinds, a crash, and more of them.
    Again {
        /// Their seed.
        seed: u64,
    },
    /// Much space allocated behind the end of a file, and a truncate that takes it away.
    Truncate,
    /// A block of metadata freed, and used again for data.
    Reuse,
    /// Blocks of a cluster taken away, and written again.
    Refill,
    /// New names, each made durable by an `fdatasync` of its file.
    New,
}

/// The operations that workloads are made of.
pub fn operations(layout: Layout) -> Vec<Op> {
    if layout == Layout::NoJournal {
        return overwrites();
    }
    let own = match layout {
        Layout::Atomic => atomics(),
        Layout::Inline => inline(),
        _ => Vec::new(),
    };
    [
        overwrites(),
        writes(),
        changes(layout.unit_bytes()),
        own,
        vec![Op::Trim],
        queued(),
        durable_changes(layout.unit_bytes()),
    ]
    .concat()
}

fn write(file: FileNo, offset: u64, len: u64) -> Op {
    write_durably(file, offset, len, Durable::No)
}

fn write_durably(file: FileNo, offset: u64, len: u64, durable: Durable) -> Op {
    Op::Write {
        file,
        offset,
        len,
        durable,
    }
}

fn append(file: FileNo, len: u64, durable: Durable) -> Op {
    Op::Append { file, len, durable }
}

fn set_len(file: FileNo, len: u64) -> Op {
    set_len_durably(file, len, Durable::No)
}

fn set_len_durably(file: FileNo, len: u64, durable: Durable) -> Op {
    Op::SetLen { file, len, durable }
}

fn allocate(file: FileNo, mode: Mode, offset: u64, len: u64) -> Op {
    allocate_durably(file, mode, offset, len, Durable::No)
}

fn allocate_durably(file: FileNo, mode: Mode, offset: u64, len: u64, durable: Durable) -> Op {
    Op::Allocate {
        file,
        mode,
        offset,
        len,
        durable,
    }
}

/// Of what is written: aligned, unaligned, inside a sector, over many blocks, durable.
fn overwrites() -> Vec<Op> {
    vec![
        write(0, 4096, 4096),
        write(0, 5000, 3000),
        write(0, 10_100, 100),
        write(0, 8192, 24_576),
        write(1, 28_672, 8192),
        write_durably(0, 8192, 1024, Durable::Data),
        write_durably(0, 8000, 1000, Durable::Data),
        write_durably(0, 12_288, 4096, Durable::Full),
    ]
}

/// Into holes and unwritten blocks, over the end, behind it.
fn writes() -> Vec<Op> {
    vec![
        write(1, 0, 8192),
        write(1, 45_000, 700),
        write_durably(1, 4096, 4096, Durable::Data),
        write(1, 20_480, 8192),
        append(0, 5000, Durable::No),
        append(0, 512, Durable::Data),
        append(2, 4096, Durable::No),
        append(2, 10_000, Durable::Full),
        write(0, 40_960, 8192),
        write(0, 60_000, 1000),
        write_durably(2, 20_000, 3000, Durable::Data),
        write(3, 16_384, 4096),
        write(3, 20_000, 600),
        write_durably(3, 24_576, 4096, Durable::Data),
        write(3, 12_288, 40_960),
    ]
}

/// Through a queue: over data, into a hole, into unwritten blocks, over the end, at the end.
fn queued() -> Vec<Op> {
    let all = [
        write(0, 8192, 8192),
        write_durably(0, 16_384, 4096, Durable::Data),
        write(1, 4096, 8192),
        write_durably(1, 12_288, 4096, Durable::Data),
        write(3, 16_384, 8192),
        write_durably(0, 40_960, 8192, Durable::Data),
        append(2, 5000, Durable::No),
        append(0, 600, Durable::Data),
    ];
    all.map(through_a_queue).to_vec()
}

fn through_a_queue(op: Op) -> Op {
    match op {
        Op::Write {
            file,
            offset,
            len,
            durable,
        } => Op::WriteQueued {
            file,
            offset,
            len,
            durable,
        },
        Op::Append { file, len, durable } => Op::AppendQueued { file, len, durable },
        Op::Fsync { file } => Op::FsyncQueued { file },
        Op::Fdatasync { file } => Op::FdatasyncQueued { file },
        other => other,
    }
}

/// Over one block and a cluster: of data, of holes, unwritten blocks and mixtures, over the end and behind it.
fn atomics() -> Vec<Op> {
    let atomic = |file, offset, len, durable| Op::WriteAtomic {
        file,
        offset,
        len,
        durable,
    };
    let cluster = |file, number: u64, durable| atomic(file, number * 16_384, 16_384, durable);
    vec![
        cluster(0, 0, Durable::No),
        cluster(0, 1, Durable::Data),
        cluster(0, 2, Durable::No),
        cluster(1, 0, Durable::No),
        cluster(1, 1, Durable::No),
        cluster(1, 2, Durable::Full),
        cluster(2, 0, Durable::No),
        cluster(2, 1, Durable::Data),
        cluster(3, 1, Durable::No),
        cluster(3, 2, Durable::Data),
        atomic(0, 40_960, 4096, Durable::No),
        atomic(1, 24_576, 8192, Durable::No),
        atomic(3, 20_480, 4096, Durable::No),
    ]
}

/// Of what lies in an inode, and leaves it.
fn inline() -> Vec<Op> {
    let set_len = |len| set_len(2, len);
    vec![
        write(2, 0, 50),
        write(2, 20, 100),
        write_durably(2, 10, 30, Durable::Data),
        append(2, 40, Durable::No),
        append(2, 25, Durable::Full),
        write(2, 0, 3000),
        set_len(45),
        set_len(10),
        allocate(2, Mode::PunchHole, 5, 20),
    ]
}

/// Of sizes, maps and attributes. `unit` is what ranges that move others are multiples of.
fn changes(unit: u64) -> Vec<Op> {
    vec![
        set_len(0, 10_000),
        set_len(1, 0),
        set_len(0, 100_000),
        set_len(1, 30_000),
        allocate(2, Mode::Allocate, 0, 16_384),
        allocate(0, Mode::KeepSize, 45_056, 16_384),
        allocate(2, Mode::KeepSize, 8192, 8192),
        allocate(0, Mode::PunchHole, 5000, 20_000),
        allocate(1, Mode::PunchHole, 28_672, 8192),
        allocate(3, Mode::PunchHole, 45_056, 40_960),
        allocate(0, Mode::ZeroRange, 3000, 17_000),
        allocate(0, Mode::ZeroRangeKeepSize, 36_864, 16_384),
        allocate(0, Mode::ZeroRangeKeepSize, 53_248, 8192),
        allocate(0, Mode::WriteZeroes, 3000, 57_000),
        allocate(2, Mode::WriteZeroes, 8192, 8192),
        allocate(0, Mode::CollapseRange, unit, unit),
        allocate(1, Mode::CollapseRange, unit, unit),
        allocate(0, Mode::InsertRange, unit, unit),
        allocate(1, Mode::InsertRange, 2 * unit, unit),
        Op::SetMode {
            file: 0,
            mode: 0o600,
        },
        Op::SetTime {
            file: 1,
            secs: 1_234_567_890,
        },
    ]
}

/// Of sizes and maps, durable by themselves.
fn durable_changes(unit: u64) -> Vec<Op> {
    let (data, full) = (Durable::Data, Durable::Full);
    vec![
        set_len_durably(0, 10_000, data),
        set_len_durably(1, 100_000, full),
        allocate_durably(2, Mode::Allocate, 0, 16_384, data),
        allocate_durably(0, Mode::PunchHole, 5000, 20_000, data),
        allocate_durably(0, Mode::ZeroRange, 3000, 17_000, full),
        allocate_durably(0, Mode::WriteZeroes, 3000, 57_000, data),
        allocate_durably(0, Mode::CollapseRange, unit, unit, data),
        allocate_durably(1, Mode::InsertRange, unit, unit, full),
    ]
}

impl Workload {
    /// Each operation alone, without and with an fsync; and what has a name of its own.
    pub fn singles(layout: Layout) -> Vec<Workload> {
        let all = 0..operations(layout).len();
        let both = |op| [false, true].map(|synced| Workload::Single { op, synced });
        let further = match layout {
            Layout::NoJournal => &[][..],
            _ => &[
                Workload::Truncate,
                Workload::Reuse,
                Workload::Refill,
                Workload::New,
            ],
        };
        all.flat_map(both).chain(further.iter().copied()).collect()
    }

    /// All pairs, with fsync nowhere, after the first, after the second, after both.
    pub fn pairs(layout: Layout) -> Vec<Workload> {
        let count = operations(layout).len();
        let pair = |index: usize| Workload::Pair {
            ops: [index / 4 / count, index / 4 % count],
            synced: (index % 4) as u8,
        };
        (0..count * count * 4).map(pair).collect()
    }

    /// As [`Workload::singles`], of names. None without a journal.
    pub fn names_singles(layout: Layout) -> Vec<Workload> {
        let all = 0..name_operations(layout).len();
        let both = |op| [false, true].map(|synced| Workload::NamesSingle { op, synced });
        all.flat_map(both).collect()
    }

    /// All pairs of operations on names and data of which one at least is on names, as [`Workload::pairs`]; also with a sync of
    /// all between the two.
    pub fn names_pairs(layout: Layout) -> Vec<Workload> {
        let own = name_operations(layout).len();
        let count = names_and_data(layout).len();
        let each = |ops| (0..5).map(move |synced| Workload::NamesPair { ops, synced });
        places(own, count).flat_map(each).collect()
    }

    /// As [`Workload::singles`], of attributes. None without a journal.
    pub fn attributes_singles(layout: Layout) -> Vec<Workload> {
        let all = 0..attribute_operations(layout).len();
        let both = |op| [false, true].map(|synced| Workload::AttributesSingle { op, synced });
        all.flat_map(both).collect()
    }

    /// All pairs of which one at least is on attributes, as [`Workload::names_pairs`].
    pub fn attributes_pairs(layout: Layout) -> Vec<Workload> {
        let own = attribute_operations(layout).len();
        let count = all_operations(layout).len();
        let each = |ops| (0..5).map(move |synced| Workload::AttributesPair { ops, synced });
        places(own, count).flat_map(each).collect()
    }

    /// Each operation alone: on data, on names and on attributes.
    pub fn all_singles(layout: Layout) -> Vec<Workload> {
        let [data, names] = [Workload::singles(layout), Workload::names_singles(layout)];
        [data, names, Workload::attributes_singles(layout)].concat()
    }

    /// All pairs of operations on data, on names and on attributes.
    pub fn all_pairs(layout: Layout) -> Vec<Workload> {
        let [data, names] = [Workload::pairs(layout), Workload::names_pairs(layout)];
        [data, names, Workload::attributes_pairs(layout)].concat()
    }

    /// Its operations.
    ///
    /// # Errors
    /// The layout has no such operations.
    pub fn ops(&self, layout: Layout) -> Result<Vec<Op>, String> {
        let known = operations(layout);
        let op = |index: usize| {
            let op = known.get(index).cloned();
            op.ok_or_else(|| format!("{self}: there are {} operations", known.len()))
        };
        let (list, synced) = match *self {
            Workload::Single { op: first, synced } => (vec![op(first)?], u8::from(synced)),
            Workload::Pair { ops, synced } => (vec![op(ops[0])?, op(ops[1])?], synced),
            Workload::NamesSingle { op, synced } => {
                let ops = self.placed(&name_operations(layout), &[op], u8::from(synced))?;
                return Ok(valid(layout, ops));
            }
            Workload::NamesPair { ops, synced } => {
                let ops = self.placed(&names_and_data(layout), &ops, synced)?;
                return Ok(valid(layout, ops));
            }
            Workload::NamesRandom { seed } => {
                let ops = mixed(&name_operations(layout), &known, seed);
                return Ok(valid(layout, varied(policy(seed), seed, ops)));
            }
            Workload::AttributesSingle { op, synced } => {
                let own = attribute_operations(layout);
                let ops = self.placed(&own, &[op], u8::from(synced))?;
                return Ok(valid(layout, [given(layout), ops].concat()));
            }
            Workload::AttributesPair { ops, synced } => {
                let ops = self.placed(&all_operations(layout), &ops, synced)?;
                return Ok(valid(layout, [given(layout), ops].concat()));
            }
            Workload::AttributesRandom { seed } => {
                let own = [attribute_operations(layout), name_operations(layout)].concat();
                let ops = varied(policy(seed), seed, mixed(&own, &known, seed));
                return Ok(valid(layout, [given(layout), ops].concat()));
            }
            Workload::Again { seed } => return Ok(again(layout, &known, seed)),
            Workload::Random { seed } => return Ok(random(layout, &known, seed, 6..21)),
            Workload::Long { seed } => return Ok(random(layout, &known, seed, 500..600)),
            Workload::Threads { .. } | Workload::Shared { .. } => {
                return Ok(self.lanes(layout)?.concat());
            }
            Workload::Truncate | Workload::Reuse | Workload::Refill | Workload::New
                if layout == Layout::NoJournal =>
            {
                return Err(format!("{self}: not without a journal"));
            }
            Workload::Truncate => return Ok(valid(layout, truncate(layout))),
            Workload::Reuse => return Ok(reuse()),
            Workload::Refill => return Ok(refill(layout)),
            Workload::New => return Ok(valid(layout, new_names())),
        };
        let with_sync = |(index, op): (usize, Op)| {
            let sync = op.file().filter(|_| synced >> index & 1 == 1);
            std::iter::once(op).chain(sync.map(|file| Op::Fsync { file }))
        };
        let ops: Vec<Op> = list.into_iter().enumerate().flat_map(with_sync).collect();
        Ok(valid(layout, ops))
    }

    /// The operations of each thread. Several threads have no files in common, and one of them changes names and attributes; or they
    /// have one file, and write to it.
    ///
    /// # Errors
    /// As [`Workload::ops`].
    pub fn lanes(&self, layout: Layout) -> Result<Vec<Vec<Op>>, String> {
        match *self {
            Workload::Threads { .. } | Workload::Shared { .. } if layout == Layout::NoJournal => {
                Err(format!("{self}: not without a journal"))
            }
            Workload::Threads { seed } => {
                let lane = |file| {
                    let own = seed.wrapping_mul(5).wrapping_add(file as u64);
                    varied(policy(seed), own, thread(layout, own, file))
                };
                let own = [name_operations(layout), attribute_operations(layout)].concat();
                let own: Vec<Op> = own
                    .into_iter()
                    .filter(|op| !op.meddles_with_data())
                    .collect();
                let ops = [given(layout), mixed(&own, &own, seed)].concat();
                Ok((0..4).map(lane).chain([valid(layout, ops)]).collect())
            }
            Workload::Shared { seed } => Ok(to_one_file(layout, seed)),
            _ => Ok(vec![self.ops(layout)?]),
        }
    }

    /// Operations by their places in `known`, with syncs.
    fn placed(&self, known: &[Op], places: &[usize], synced: u8) -> Result<Vec<Op>, String> {
        let mut ops = Vec::new();
        for (index, &place) in places.iter().enumerate() {
            let op = known.get(place).cloned();
            let op = op.ok_or_else(|| format!("{self}: there are {} operations", known.len()))?;
            let sync = sync_of(&op);
            ops.push(op);
            if synced < 4 && synced >> index & 1 == 1 {
                ops.push(sync);
            }
            if synced == 4 && index == 0 {
                ops.push(Op::Sync);
            }
        }
        Ok(ops)
    }
}

/// The fsync that makes an operation durable.
fn sync_of(op: &Op) -> Op {
    match op {
        Op::Name(op) => Op::Name(op.sync()),
        _ => Op::Fsync {
            file: op.file().unwrap_or(0),
        },
    }
}

/// All that do.
fn syncs_of(op: &Op) -> Vec<Op> {
    match op {
        Op::Name(op) => op.syncs().into_iter().map(Op::Name).collect(),
        _ => vec![sync_of(op)],
    }
}

/// More extents than one transaction takes away, and one that lies in most groups. Of a file that is mapped by indirect
/// blocks: blocks of which each has an indirect one of its own, up to those that are mapped by three levels of them.
fn truncate(layout: Layout) -> Vec<Op> {
    match layout {
        Layout::Indirect => return truncate_indirect(),
        Layout::Deep => return truncate_deep(),
        _ => {}
    }
    let size = layout.size_bytes() as u64;
    let (unit, many) = (layout.unit_bytes(), 100);
    let space = match layout {
        // What it has besides is the journal and the groups' own.
        Layout::Groups => size / 4 * 3,
        _ => size / 8,
    };
    let pieces = (0..many).map(|n| allocate(2, Mode::KeepSize, 2 * n * unit, unit));
    let rest = [
        allocate(2, Mode::KeepSize, 2 * many * unit, space),
        Op::Sync,
        set_len(2, 0),
        Op::Fsync { file: 2 },
    ];
    pieces.chain(rest).collect()
}

/// Of a file with a deep tree, of which nodes are split first, once by extents and once by one that is parted.
fn truncate_deep() -> Vec<Op> {
    let set_len = |len| set_len(1, len);
    let mut ops: Vec<Op> = (0..10).map(|n| write(1, n * 2048, 1024)).collect();
    ops.extend([
        Op::Sync,
        allocate(1, Mode::PunchHole, 30_720, 1024),
        Op::Fsync { file: 1 },
        set_len(60_000),
        Op::Fsync { file: 1 },
        set_len(0),
        Op::Fsync { file: 1 },
    ]);
    ops
}

fn truncate_indirect() -> Vec<Op> {
    const MAPPED_BY_ONE: u64 = 256 << 10;
    let pieces = (0..270).map(|n| write(2, n * MAPPED_BY_ONE, 1000));
    let rest = [
        Op::Sync,
        set_len(2, 20 * MAPPED_BY_ONE + 700),
        Op::Fsync { file: 2 },
        set_len(2, 0),
        Op::Fsync { file: 2 },
    ];
    pieces.chain(rest).collect()
}

/// The block of a symlink becomes a file's.
fn reuse() -> Vec<Op> {
    let names = [
        NameOp::Symlink("/a/l", 90),
        NameOp::Unlink("/a/l"),
        NameOp::Create("/a/n"),
        NameOp::Fill("/a/n", 1000),
        NameOp::Create("/a/o"),
        NameOp::Fill("/a/o", 4000),
    ];
    names.map(|op| [Op::Name(op), Op::Sync]).concat()
}

/// A cluster loses blocks and gets them back: what is written too early shows in what they were.
fn refill(layout: Layout) -> Vec<Op> {
    let unit = layout.unit_bytes();
    let (from, len) = (unit / 4, unit / 2);
    vec![
        write_durably(2, 0, unit, Durable::Full),
        allocate(2, Mode::PunchHole, from, len),
        write(2, from, len),
        Op::Fsync { file: 2 },
    ]
}

/// Files that are new, and others under new names. Where files are kept open, the first of them is.
fn new_names() -> Vec<Op> {
    let names = [
        NameOp::Create("/n"),
        NameOp::Fill("/n", 40),
        NameOp::Fdatasync("/n"),
        NameOp::Create("/a/n"),
        NameOp::Fdatasync("/a/n"),
        NameOp::Fill("/a/n", 5000),
        NameOp::Fdatasync("/a/n"),
        NameOp::Unnamed("/b/u"),
        NameOp::Fdatasync("/b/u"),
        NameOp::Rename("/a/x", "/b/y", names::Over::Replace),
        NameOp::Fdatasync("/b/y"),
        NameOp::Link("/f0", "/a/f"),
    ];
    let mut ops = vec![write(0, 4096, 4096)];
    ops.extend(names.map(Op::Name));
    ops.push(Op::Fdatasync { file: 0 });
    ops
}

/// The operations on names that a layout keeps over a crash.
fn name_operations(layout: Layout) -> Vec<Op> {
    match layout {
        Layout::NoJournal => Vec::new(),
        _ => names::operations().into_iter().map(Op::Name).collect(),
    }
}

/// The same, on attributes.
fn attribute_operations(layout: Layout) -> Vec<Op> {
    if layout == Layout::NoJournal {
        return Vec::new();
    }
    let mut operations = names::attribute_operations(layout.has_value_inodes());
    if layout == Layout::Quota {
        operations.push(NameOp::Change("/a/x", Change::Project(7)));
        operations.push(NameOp::Change("/f0", Change::Project(70_000)));
    }
    operations.into_iter().map(Op::Name).collect()
}

/// The pairs of `count` operations of which one at least is of the first `own`.
fn places(own: usize, count: usize) -> impl Iterator<Item = [usize; 2]> {
    let places = (0..count).flat_map(move |one| (0..count).map(move |two| [one, two]));
    places.filter(move |ops| ops.iter().any(|&op| op < own))
}

/// What pairs with operations on names are made of: these first.
fn names_and_data(layout: Layout) -> Vec<Op> {
    [name_operations(layout), operations(layout)].concat()
}

/// What pairs with operations on attributes are made of: these first.
fn all_operations(layout: Layout) -> Vec<Op> {
    let own = attribute_operations(layout);
    [own, name_operations(layout), operations(layout)].concat()
}

/// What operations on attributes begin with.
fn given(layout: Layout) -> Vec<Op> {
    let given = names::given(layout.has_value_inodes());
    match layout {
        Layout::NoJournal => Vec::new(),
        _ => given.into_iter().map(Op::Name).chain([Op::Sync]).collect(),
    }
}

/// Of `own` operations and others on data by turns, with a sync after every third or so, and some trims.
fn mixed(own: &[Op], data: &[Op], seed: u64) -> Vec<Op> {
    let mut random = Random(seed);
    let mut ops = Vec::new();
    for _ in 0..10 + random.below(20) {
        let is_own = random.below(4) > 0 && !own.is_empty();
        let list = if is_own { own } else { data };
        let op = list[random.below(list.len() as u64) as usize].clone();
        let syncs = syncs_of(&op);
        ops.push(op);
        match random.below(8) {
            0 => ops.push(syncs[random.below(syncs.len() as u64) as usize].clone()),
            1 => ops.push(Op::Sync),
            2 => ops.push(Op::Trim),
            _ => {}
        }
    }
    ops
}

/// Takes out what would fail where it stands: what is on a file that is gone, or that a flag keeps as it is; ranges of `collapse`
/// and `insert` must begin and, for the former, end inside the file.
fn valid(layout: Layout, ops: Vec<Op>) -> Vec<Op> {
    let mut sizes: Vec<u64> = layout.files().iter().map(|spec| spec.size).collect();
    let mut tree = layout.names();
    let mut is_valid = |op: &Op| match *op {
        _ if op.file().is_some_and(|file| !tree.is_writable(file)) => false,
        Op::Name(op) => tree.apply(op, 0),
        Op::Write {
            file, offset, len, ..
        }
        | Op::WriteQueued {
            file, offset, len, ..
        }
        | Op::WriteAtomic {
            file, offset, len, ..
        } => {
            sizes[file] = sizes[file].max(offset + len);
            true
        }
        Op::Append { file, len, .. } | Op::AppendQueued { file, len, .. } => {
            sizes[file] += len;
            true
        }
        Op::SetLen { file, len, .. } => {
            sizes[file] = len;
            true
        }
        Op::Allocate {
            file,
            mode,
            offset,
            len,
            ..
        } => resized(&mut sizes[file], mode, offset, len, layout),
        _ => true,
    };
    ops.into_iter().filter(|op| is_valid(op)).collect()
}

/// Whether `fallocate` can be done; the size changes as it says.
fn resized(size: &mut u64, mode: Mode, offset: u64, len: u64, layout: Layout) -> bool {
    let moves = matches!(mode, Mode::CollapseRange | Mode::InsertRange);
    if layout == Layout::Indirect && mode != Mode::PunchHole {
        return false;
    }
    let (possible, becomes) = match mode {
        Mode::Allocate | Mode::ZeroRange | Mode::WriteZeroes => (true, (*size).max(offset + len)),
        Mode::CollapseRange => (offset + len < *size, size.saturating_sub(len)),
        Mode::InsertRange => (offset < *size, *size + len),
        _ => (true, *size),
    };
    debug_assert!(!moves || (offset | len).is_multiple_of(layout.unit_bytes()));
    if possible {
        *size = becomes;
    }
    possible
}

/// SplitMix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let x = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let x = (x ^ x >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        (x ^ x >> 31) % end
    }
}

/// Known operations on files and new ones at random places, a sync after every third or so, and some trims.
fn random(layout: Layout, known: &[Op], seed: u64, count: Range<u64>) -> Vec<Op> {
    let known: Vec<&Op> = known.iter().filter(|op| op.file().is_some()).collect();
    let mut random = Random(seed);
    let count = count.start + random.below(count.end - count.start);
    let mut ops = Vec::new();
    for _ in 0..count {
        let op = match random.below(2) {
            0 => known[random.below(known.len() as u64) as usize].clone(),
            _ => random_op(layout, &mut random),
        };
        let file = op.file().unwrap_or(0);
        ops.push(op);
        match random.below(10) {
            0 => ops.push(Op::Fsync { file }),
            1 => ops.push(Op::Fdatasync { file }),
            2 => ops.push(Op::Sync),
            3 => ops.push(Op::Trim),
            _ => {}
        }
    }
    valid(layout, varied(policy(seed), seed, ops))
}

/// A policy by a seed.
fn policy(seed: u64) -> Policy {
    // Not as what the same seed chooses first elsewhere.
    let random = Random(!seed).below(Policy::ALL.len() as u64);
    Policy::ALL[random as usize]
}

/// Under a policy, and with some of the writes and syncs through a queue.
fn varied(policy: Policy, seed: u64, ops: Vec<Op>) -> Vec<Op> {
    let mut random = Random(seed.rotate_left(32));
    let vary = |op| match random.below(3) {
        0 => through_a_queue(op),
        _ => op,
    };
    let ops = ops.into_iter().map(vary);
    std::iter::once(Op::Policy(policy)).chain(ops).collect()
}

/// What a crash and its recovery leave is worked on, once or twice.
fn again(layout: Layout, known: &[Op], seed: u64) -> Vec<Op> {
    let own = [attribute_operations(layout), name_operations(layout)].concat();
    let part = |seed| varied(policy(seed), seed, mixed(&own, known, seed));
    let mut ops = [given(layout), part(seed)].concat();
    for crash in 1..=1 + seed % 2 {
        ops.extend([Op::Sync, Op::Crash]);
        ops.extend(part(seed.rotate_left(16).wrapping_add(crash)));
    }
    valid(layout, ops)
}

/// Operations on one file's data, with a sync after every other one or so.
fn thread(layout: Layout, seed: u64, file: FileNo) -> Vec<Op> {
    let known = operations(layout);
    let is_own = |op: &&Op| {
        op.file() == Some(file) && !matches!(op, Op::SetMode { .. } | Op::SetTime { .. })
    };
    let known: Vec<&Op> = known.iter().filter(is_own).collect();
    let mut random = Random(seed);
    let mut ops = Vec::new();
    for _ in 0..8 + random.below(9) {
        let op = match random.below(2) {
            0 if !known.is_empty() => known[random.below(known.len() as u64) as usize].clone(),
            _ => random_op_on(file, layout, &mut random),
        };
        ops.push(op);
        match random.below(8) {
            0 | 1 => ops.push(Op::Fsync { file }),
            2 => ops.push(Op::Fdatasync { file }),
            3 => ops.push(Op::Sync),
            _ => {}
        }
    }
    valid(layout, ops)
}

/// Writes of several threads to one file, with a sync after every other one or so: into a part of it, where each has places between
/// those of the others and sometimes takes theirs, and over its end, either by appends or all of them at the same places. They begin
/// with writes of different lengths to the same place, half of the time under a policy that lets them fill holes side by side. Some
/// are pushed together. Half of the time they come beside holes that are made, zeros and allocations, or ends that are moved.
fn to_one_file(layout: Layout, seed: u64) -> Vec<Vec<Op>> {
    let mut random = Random(seed);
    let threads = 2 + random.below(2);
    let file = 1 + random.below(3) as FileNo;
    let appends = random.below(2) == 0;
    let grain = [512, 4096, 4096, 8192][random.below(4) as usize];
    let size = layout.files()[file].size;
    let count = (size / grain).min(16);
    let first = random.below(size / grain - count + 1);
    let policy = match random.below(6) {
        0 => Policy::Newest,
        1 => Policy::Best,
        2 => Policy::Xfs,
        _ => policy(seed),
    };
    let beside = match random.below(4) {
        0 => Beside::Holes,
        // Where appends went is not known then.
        1 if !appends => Beside::Ends,
        _ => Beside::Nothing,
    };
    let mut lane = |thread| {
        let (mut ops, mut end) = (Vec::new(), size);
        if count > 0 {
            ops.push(write(file, first * grain, (thread + 1) * grain));
        }
        let mut one = |random: &mut Random| {
            let len = grain * (1 + random.below(3));
            let durable = [Durable::No, Durable::No, Durable::Data, Durable::Full];
            let durable = durable[random.below(4) as usize];
            match (random.below(5), appends) {
                (0..3, _) if count > 0 => {
                    let place = match random.below(4) {
                        0 => random.below(count),
                        _ => random.below(count / threads) * threads + thread,
                    };
                    write_durably(file, (first + place) * grain, grain, durable)
                }
                (_, true) => append(file, len, durable),
                (_, false) => {
                    end += len;
                    write_durably(file, end - len, len, durable)
                }
            }
        };
        for _ in 0..5 + random.below(6) {
            match random.below(3) {
                0 => {
                    let together = 2 + random.below(4) as usize;
                    ops.push(Op::Together(together));
                    ops.extend((0..together).map(|_| through_a_queue(one(&mut random))));
                }
                _ => ops.push(one(&mut random)),
            }
            if random.below(3) == 0 {
                let place = (first + random.below(count.max(1))) * grain;
                // What was appended is looked for.
                let most = if appends {
                    size - place.min(size)
                } else {
                    u64::MAX
                };
                let len = (grain * (1 + random.below(4))).min(most);
                if len > 0 {
                    ops.extend(beside.op(layout, file, place, len, &mut random));
                }
            }
            match random.below(6) {
                0 => ops.push(Op::Fsync { file }),
                1 => ops.push(Op::Fdatasync { file }),
                2 => ops.push(Op::Sync),
                _ => {}
            }
        }
        let own = seed.wrapping_mul(5).wrapping_add(thread);
        varied(policy, own, ops)
    };
    (0..threads).map(&mut lane).collect()
}

/// What goes on beside writes to one file.
#[derive(Clone, Copy)]
enum Beside {
    Nothing,
    Holes,
    Ends,
}

impl Beside {
    fn op(
        self,
        layout: Layout,
        file: FileNo,
        place: u64,
        len: u64,
        random: &mut Random,
    ) -> Option<Op> {
        let modes = [Mode::PunchHole, Mode::ZeroRangeKeepSize, Mode::KeepSize];
        let mode = match layout {
            Layout::Indirect => Mode::PunchHole,
            _ => modes[random.below(3) as usize],
        };
        let durable = [Durable::No, Durable::No, Durable::Data, Durable::Full];
        let durable = durable[random.below(4) as usize];
        match self {
            Beside::Nothing => None,
            Beside::Ends => Some(set_len_durably(file, place, durable)),
            Beside::Holes => Some(allocate_durably(file, mode, place, len, durable)),
        }
    }
}

fn random_op(layout: Layout, random: &mut Random) -> Op {
    let file = random.below(4) as FileNo;
    random_op_on(file, layout, random)
}

fn random_op_on(file: FileNo, layout: Layout, random: &mut Random) -> Op {
    let durable = [Durable::No, Durable::No, Durable::Data, Durable::Full];
    let durable = durable[random.below(4) as usize];
    if layout == Layout::NoJournal {
        let offset = random.below(40_000);
        let len = 1 + random.below(41_260 - offset);
        return write_durably(0, offset, len, durable);
    }
    let grain = [1, 512, 4096][random.below(3) as usize];
    // Behind what one indirect block maps.
    let far = match layout {
        Layout::Indirect if random.below(4) == 0 => 266_240,
        _ => 0,
    };
    let offset = far + random.below(100_000) / grain * grain;
    let len = (1 + random.below(20_000)).next_multiple_of(grain);
    let unit = layout.unit_bytes();
    let units = random.below(6) * unit;
    if layout == Layout::Atomic && random.below(3) == 0 {
        let len = 4096 << random.below(3);
        let offset = offset / len * len;
        return Op::WriteAtomic {
            file,
            offset,
            len,
            durable,
        };
    }
    match random.below(14) {
        0..5 => write_durably(file, offset, len, durable),
        5 => append(file, len, durable),
        6 => set_len_durably(file, offset, durable),
        7 => allocate_durably(file, Mode::Allocate, offset, len, durable),
        8 => allocate_durably(file, Mode::PunchHole, offset, len, durable),
        9 if (offset / grain).is_multiple_of(2) => {
            allocate_durably(file, Mode::WriteZeroes, offset, len, durable)
        }
        9 => allocate_durably(file, Mode::ZeroRange, offset, len, durable),
        10 => allocate_durably(file, Mode::CollapseRange, units, unit, durable),
        11 => allocate_durably(file, Mode::KeepSize, offset, len, durable),
        12 => allocate_durably(file, Mode::ZeroRangeKeepSize, offset, len, durable),
        _ => allocate_durably(file, Mode::InsertRange, units, unit, durable),
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Workload::Single { op, synced } => write!(f, "single:{op}:{}", u8::from(*synced)),
            Workload::Pair { ops, synced } => write!(f, "pair:{}:{}:{synced}", ops[0], ops[1]),
            Workload::Random { seed } => write!(f, "random:{seed}"),
            Workload::NamesSingle { op, synced } => {
                write!(f, "names-single:{op}:{}", u8::from(*synced))
            }
            Workload::NamesPair { ops, synced } => {
                write!(f, "names-pair:{}:{}:{synced}", ops[0], ops[1])
            }
            Workload::NamesRandom { seed } => write!(f, "names-random:{seed}"),
            Workload::AttributesSingle { op, synced } => {
                write!(f, "attributes-single:{op}:{}", u8::from(*synced))
            }
            Workload::AttributesPair { ops, synced } => {
                write!(f, "attributes-pair:{}:{}:{synced}", ops[0], ops[1])
            }
            Workload::AttributesRandom { seed } => write!(f, "attributes-random:{seed}"),
            Workload::Long { seed } => write!(f, "long:{seed}"),
            Workload::Again { seed } => write!(f, "again:{seed}"),
            Workload::Threads { seed } => write!(f, "threads:{seed}"),
            Workload::Shared { seed } => write!(f, "shared:{seed}"),
            Workload::Truncate => f.write_str("truncate"),
            Workload::Reuse => f.write_str("reuse"),
            Workload::Refill => f.write_str("refill"),
            Workload::New => f.write_str("new"),
        }
    }
}

impl FromStr for Workload {
    type Err = String;

    fn from_str(text: &str) -> Result<Workload, String> {
        parse(text).ok_or_else(|| {
            format!("no workload {text:?}: expected single:OP:0..1, pair:OP:OP:0..3, random:SEED, long:SEED, again:SEED, threads:SEED, shared:SEED, truncate, reuse, refill, new, or names-single, names-pair, names-random, attributes-single, attributes-pair, attributes-random of the same")
        })
    }
}

fn parse(text: &str) -> Option<Workload> {
    match text {
        "truncate" => return Some(Workload::Truncate),
        "reuse" => return Some(Workload::Reuse),
        "refill" => return Some(Workload::Refill),
        "new" => return Some(Workload::New),
        _ => {}
    }
    let (kind, rest) = text.split_once(':')?;
    let numbers = rest.split(':').map(|word| word.parse().ok());
    let numbers: Vec<u64> = numbers.collect::<Option<_>>()?;
    match (kind, &numbers[..]) {
        ("single", &[op, synced @ 0..=1]) => Some(Workload::Single {
            op: op as usize,
            synced: synced == 1,
        }),
        ("pair", &[first, second, synced @ 0..=3]) => Some(Workload::Pair {
            ops: [first as usize, second as usize],
            synced: synced as u8,
        }),
        ("names-single", &[op, synced @ 0..=1]) => Some(Workload::NamesSingle {
            op: op as usize,
            synced: synced == 1,
        }),
        ("names-pair", &[first, second, synced @ 0..=4]) => Some(Workload::NamesPair {
            ops: [first as usize, second as usize],
            synced: synced as u8,
        }),
        ("names-random", &[seed]) => Some(Workload::NamesRandom { seed }),
        ("attributes-single", &[op, synced @ 0..=1]) => Some(Workload::AttributesSingle {
            op: op as usize,
            synced: synced == 1,
        }),
        ("attributes-pair", &[first, second, synced @ 0..=4]) => Some(Workload::AttributesPair {
            ops: [first as usize, second as usize],
            synced: synced as u8,
        }),
        ("attributes-random", &[seed]) => Some(Workload::AttributesRandom { seed }),
        ("random", &[seed]) => Some(Workload::Random { seed }),
        ("long", &[seed]) => Some(Workload::Long { seed }),
        ("again", &[seed]) => Some(Workload::Again { seed }),
        ("threads", &[seed]) => Some(Workload::Threads { seed }),
        ("shared", &[seed]) => Some(Workload::Shared { seed }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_reads_back_as_what_it_names() {
        let random = Workload::Random { seed: 7 };
        let all = [
            Workload::singles(Layout::K1),
            Workload::pairs(Layout::K1),
            vec![random, Workload::NamesRandom { seed: 7 }],
            vec![
                Workload::AttributesRandom { seed: 7 },
                Workload::Again { seed: 7 },
            ],
            vec![Workload::Threads { seed: 7 }, Workload::Shared { seed: 7 }],
            Workload::names_singles(Layout::K1),
            Workload::names_pairs(Layout::K1),
            Workload::attributes_singles(Layout::K1),
            Workload::attributes_pairs(Layout::K1),
        ];
        for workload in all.concat() {
            assert_eq!(workload.to_string().parse(), Ok(workload));
        }
        for text in ["", "single", "single:1", "pair:1:2:4", "random:x", "both:1"] {
            assert!(text.parse::<Workload>().is_err(), "{text}");
        }
    }

    #[test]
    fn pairs_are_all_pairs_with_a_sync_at_each_place() {
        let count = operations(Layout::K4).len();
        let pairs = Workload::pairs(Layout::K4);
        let distinct: std::collections::HashSet<_> = pairs.iter().collect();
        assert_eq!(distinct.len(), count * count * 4);
        let ops = Workload::Pair {
            ops: [0, 1],
            synced: 3,
        };
        let ops = ops.ops(Layout::K4).expect("there are two");
        let sync = Op::Fsync { file: 0 };
        assert!(ops.len() == 4 && ops[1] == sync && ops[3] == sync);
    }

    #[test]
    fn pairs_with_names_are_all_but_those_of_data_alone() {
        let (names, data) = (
            name_operations(Layout::K4).len(),
            operations(Layout::K4).len(),
        );
        let pairs = Workload::names_pairs(Layout::K4);
        let distinct: std::collections::HashSet<_> = pairs.iter().collect();
        let all = names + data;
        assert_eq!(distinct.len(), (all * all - data * data) * 5);
        let is_mixed = |workload: &&Workload| {
            let ops = workload.ops(Layout::K4).expect("it has such");
            matches!(&ops[..], [Op::Name(_), other] if other.changes_data())
        };
        assert!(pairs.iter().filter(is_mixed).count() > names);
    }

    #[test]
    fn file_that_is_renamed_is_written_and_one_that_is_removed_is_not() {
        let ops = |op| valid(Layout::K4, vec![Op::Name(op), write(3, 0, 10)]).len();
        assert_eq!(ops(NameOp::Rename("/f3", "/a/g", names::Over::Nothing)), 2);
        assert_eq!(ops(NameOp::Unlink("/f3")), 1);
    }

    #[test]
    fn names_are_synced_by_themselves_and_by_each_directory() {
        let mixes = (0..1000).map(|seed| Workload::NamesRandom { seed }.ops(Layout::K4));
        let mixes: Vec<Vec<Op>> = mixes.collect::<Result<_, _>>().expect("it has names");
        let is_synced = |op: NameOp, path| {
            let pair = [op, NameOp::Fsync(path)].map(Op::Name);
            mixes
                .iter()
                .any(|ops| ops.windows(2).any(|two| two == pair))
        };
        let rename = NameOp::Rename("/a/x", "/b/y", names::Over::Replace);
        for (op, paths) in [
            (NameOp::Create("/a/n"), &["/a/n", "/a"][..]),
            (NameOp::Link("/a/x", "/b/x2"), &["/b/x2", "/b"]),
            (NameOp::Unnamed("/b/u"), &["/b/u", "/b"]),
            (rename, &["/b/y", "/a", "/b"]),
        ] {
            for &path in paths {
                assert!(is_synced(op, path), "{op}, {path}");
            }
        }
    }

    #[test]
    fn thread_of_names_changes_attributes_and_leaves_files_of_others_alone() {
        let names = |seed| {
            let lanes = Workload::Threads { seed }.lanes(Layout::K1);
            lanes.expect("it has threads").remove(4)
        };
        let all: Vec<Op> = (0..50).flat_map(names).collect();
        let before = given(Layout::K1);
        let is_change = |op: &&Op| matches!(op, Op::Name(NameOp::Change(..)));
        let further = all
            .iter()
            .filter(is_change)
            .filter(|op| !before.contains(op));
        assert!(further.count() > 50);
        assert!(!all.iter().any(Op::meddles_with_data));
    }

    #[test]
    fn threads_with_one_file_meet_in_holes_and_at_the_end_through_queues_under_every_policy() {
        let lanes = |seed| Workload::Shared { seed }.lanes(Layout::K4);
        let all = (0..200).map(lanes).collect::<Result<Vec<_>, _>>();
        let all = all.expect("it has threads");
        let has = |is_one: &dyn Fn(&Op) -> bool| all.iter().flatten().flatten().any(is_one);
        for policy in Policy::ALL {
            assert!(has(&|op| *op == Op::Policy(policy)), "{policy}");
        }
        let is_durable =
            |op: &Op| matches!(op, Op::WriteQueued { durable, .. } if *durable != Durable::No);
        assert!(has(&is_durable));
        assert!(has(&|op| matches!(op, Op::Append { .. })));
        assert!(has(&|op| matches!(op, Op::AppendQueued { .. })));
        assert!(has(&|op| matches!(op, Op::SetLen { .. })));
        assert!(has(&|op| matches!(op, Op::FsyncQueued { .. })));
        assert!(has(&|op| matches!(op, Op::FdatasyncQueued { .. })));
        let is_durable = |op: &Op| match op {
            Op::SetLen { durable, .. } | Op::Allocate { durable, .. } => *durable != Durable::No,
            _ => false,
        };
        assert!(has(&is_durable));
        assert!(has(&|op| matches!(op, Op::Together(_))));
        for mode in [Mode::PunchHole, Mode::ZeroRangeKeepSize, Mode::KeepSize] {
            let is_one = |op: &Op| matches!(op, Op::Allocate { mode: it, .. } if *it == mode);
            assert!(has(&is_one), "{mode:?}");
        }
        for ops in all.iter().flatten() {
            let is_queued =
                |op: &Op| matches!(op, Op::WriteQueued { .. } | Op::AppendQueued { .. });
            for (at, op) in ops.iter().enumerate() {
                if let Op::Together(count) = *op {
                    let together = &ops[at + 1..at + 1 + count];
                    assert!(count > 1 && together.iter().all(is_queued));
                }
            }
        }
        for lanes in &all {
            let policies: Vec<_> = lanes.iter().map(|ops| &ops[0]).collect();
            assert!(policies.iter().all(|policy| *policy == policies[0]));
            let mut ops = lanes.iter().flatten();
            let file = ops.find_map(Op::file);
            assert!(ops.filter_map(Op::file).all(|it| Some(it) == file));
            // An append is looked for where it was.
            let is_append = |op: &Op| matches!(op, Op::Append { .. } | Op::AppendQueued { .. });
            let is_cut = |op: &Op| matches!(op, Op::SetLen { .. });
            let ends = lanes.iter().flatten().filter_map(|op| match *op {
                Op::Write { offset, len, .. } | Op::WriteQueued { offset, len, .. } => {
                    Some(offset + len)
                }
                _ => None,
            });
            let size = Layout::K4.files()[file.expect("it is about one")].size;
            let has_appends = lanes.iter().flatten().any(is_append);
            assert!(!has_appends || ends.max().is_none_or(|end| end <= size));
            assert!(!has_appends || !lanes.iter().flatten().any(is_cut));
        }
    }

    #[test]
    fn operation_on_attributes_is_possible_after_what_is_given() {
        for layout in Layout::ALL {
            let before = given(layout).len();
            for workload in Workload::attributes_singles(layout) {
                let ops = workload.ops(layout).expect("it has such operations");
                let Workload::AttributesSingle { synced, .. } = workload else {
                    panic!("{workload} is of one operation");
                };
                let count = before + 1 + usize::from(synced);
                assert_eq!(ops.len(), count, "{workload} on {layout}");
            }
        }
    }

    #[test]
    fn pair_with_attributes_keeps_its_first_operation() {
        let own = attribute_operations(Layout::Quota).len();
        let before = given(Layout::Quota).len();
        for one in 0..own {
            let workload = Workload::AttributesPair {
                ops: [one, 0],
                synced: 0,
            };
            let ops = workload.ops(Layout::Quota).expect("it has such");
            assert!(ops.len() > before, "{workload}");
            assert_eq!(ops[before], attribute_operations(Layout::Quota)[one]);
        }
    }

    #[test]
    fn layout_without_a_journal_is_only_overwritten() {
        for seed in 0..200 {
            let ops = Workload::Random { seed }
                .ops(Layout::NoJournal)
                .expect("ops");
            let overwrites = ops.iter().all(|op| match op {
                Op::Write {
                    file, offset, len, ..
                }
                | Op::WriteQueued {
                    file, offset, len, ..
                } => offset + len <= [41_260, 65_536][*file],
                Op::Fsync { .. } | Op::Fdatasync { .. } | Op::Sync => true,
                Op::FsyncQueued { .. } | Op::FdatasyncQueued { .. } => true,
                Op::Trim | Op::Policy(_) => true,
                _ => false,
            });
            assert!(overwrites, "{ops:?}");
        }
    }
}
