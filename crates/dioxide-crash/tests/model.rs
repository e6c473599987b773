//! The model of files against plain bytes, and the oracle against what it must refuse.

use dioxide_crash::attributes::{ACCESS, Attributes};
use dioxide_crash::content;
use dioxide_crash::model::{FileSpec, Model, Units};
use dioxide_crash::names::{Change, Entry, Kind, List, NameOp, Over, Tree};
use dioxide_crash::op::{Durable, Mode, Op};
use dioxide_crash::oracle::{Promise, Times};
use dioxide_crash::target::{Seen, Sight, Stamps};
use proptest::prelude::*;

fn specs() -> Vec<FileSpec> {
    let spec = |name: &str, size, data: Vec<_>, unwritten: Vec<_>| FileSpec {
        name: name.into(),
        size,
        data,
        unwritten,
    };
    vec![
        spec("/a", 10_000, std::iter::once(0..10_000).collect(), vec![]),
        spec("/b", 20_480, vec![], std::iter::once(4096..8192).collect()),
    ]
}

fn fresh(block_bytes: u64) -> (Model, Vec<Seen>) {
    let specs = specs();
    let units = Units {
        block_bytes,
        inline_bytes: 0,
    };
    let model = Model::new(units, &specs, &[(0o644, 7); 2]);
    let files = specs.iter().enumerate().map(|(file, spec)| Seen {
        data: spec.contents(file),
        mode: 0o644,
        atime: 7,
        ..Seen::default()
    });
    (model, files.collect())
}

fn write(file: usize, offset: u64, len: u64) -> Op {
    Op::Write {
        file,
        offset,
        len,
        durable: Durable::No,
    }
}

fn set_len(file: usize, len: u64) -> Op {
    let durable = Durable::No;
    Op::SetLen { file, len, durable }
}

/// What an operation does to a file, done to bytes.
fn apply(op: &Op, data: &[u8], files: &mut [Seen]) {
    let Some(file) = op.file() else { return };
    let seen = &mut files[file];
    let bytes = &mut seen.data;
    match *op {
        Op::Write { offset, len, .. } => {
            let end = (offset + len) as usize;
            bytes.resize(bytes.len().max(end), 0);
            bytes[offset as usize..end].copy_from_slice(data);
        }
        Op::Append { .. } => bytes.extend(data),
        Op::SetLen { len, .. } => bytes.resize(len as usize, 0),
        Op::SetMode { mode, .. } => seen.mode = mode,
        Op::SetTime { secs, .. } => seen.atime = secs,
        Op::Allocate {
            mode, offset, len, ..
        } => reallocate(mode, offset as usize, len as usize, bytes),
        _ => {}
    }
}

fn reallocate(mode: Mode, offset: usize, len: usize, bytes: &mut Vec<u8>) {
    let end = offset + len;
    if matches!(mode, Mode::Allocate | Mode::ZeroRange | Mode::WriteZeroes) {
        bytes.resize(bytes.len().max(end), 0);
    }
    let inside = offset.min(bytes.len())..end.min(bytes.len());
    match mode {
        Mode::Allocate | Mode::KeepSize => {}
        Mode::CollapseRange => drop(bytes.drain(offset..end)),
        Mode::InsertRange => drop(bytes.splice(offset..offset, vec![0; len])),
        _ => bytes[inside].fill(0),
    }
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op =
        (0..12u8, 0..2usize, 0..30_000u64, 1..9000u64).prop_map(|(kind, file, offset, len)| {
            let allocate = |mode| Op::Allocate {
                file,
                mode,
                offset,
                len,
                durable: Durable::No,
            };
            match kind {
                0..3 => write(file, offset, len),
                3 => Op::Append {
                    file,
                    len,
                    durable: Durable::Data,
                },
                4 => set_len(file, offset),
                5 => allocate(Mode::Allocate),
                6 => allocate(Mode::KeepSize),
                7 => allocate(Mode::PunchHole),
                8 if offset.is_multiple_of(2) => allocate(Mode::WriteZeroes),
                8 => allocate(Mode::ZeroRange),
                9 => allocate(Mode::ZeroRangeKeepSize),
                10 => Op::SetMode { file, mode: 0o600 },
                _ => Op::Allocate {
                    file,
                    mode: [Mode::CollapseRange, Mode::InsertRange][offset as usize % 2],
                    offset: offset % 3 * 4096,
                    len: 4096,
                    durable: Durable::No,
                },
            }
        });
    prop::collection::vec(op, 1..12)
}

/// Whether an operation can be done to a file of that size.
fn is_valid(op: &Op, size: u64) -> bool {
    match *op {
        Op::Allocate {
            mode: Mode::CollapseRange,
            offset,
            len,
            ..
        } => offset + len < size,
        Op::Allocate {
            mode: Mode::InsertRange,
            offset,
            ..
        } => offset < size,
        _ => true,
    }
}

/// Runs operations on both; each takes one unit of time.
fn run(ops: Vec<Op>, block_bytes: u64) -> (Model, Vec<Times>, Vec<Vec<Seen>>) {
    let (mut model, files) = fresh(block_bytes);
    let (mut times, mut states) = (Vec::new(), vec![files]);
    for op in ops {
        let mut files = states[states.len() - 1].clone();
        let size = op.file().map_or(0, |file| files[file].data.len());
        if !is_valid(&op, size as u64) {
            continue;
        }
        let data = model.data_of(&op);
        apply(&op, &data, &mut files);
        model.push(op);
        times.push(Times {
            began: states.len() as u64 - 1,
            acknowledged: states.len() as u64,
        });
        states.push(files);
    }
    (model, times, states)
}

proptest! {
    #[test]
    fn state_after_each_operation_is_accepted_until_a_sync_promises_a_later_one(
        ops in ops(), small: bool
    ) {
        let block_bytes = if small { 1024 } else { 4096 };
        let (model, times, states) = run(ops.into_iter().chain([Op::Sync]).collect(), block_bytes);
        let end = times.len() as u64;
        let (before, after) = (Promise::at(&model, &times, 0), Promise::at(&model, &times, end));
        prop_assert_eq!(before.check(&model, &states[0]), Ok(()));
        prop_assert_eq!(after.check(&model, &states[states.len() - 1]), Ok(()));
        // Nothing was promised before the sync, but for what appends promise.
        let last = Promise::at(&model, &times, end - 1);
        let none_durable = !model.ops().iter().any(|op| matches!(op, Op::Append { .. }));
        for seen in states.iter().filter(|_| none_durable) {
            prop_assert_eq!(last.check(&model, seen), Ok(()));
        }
        for seen in states.iter().filter(|seen| *seen != &states[states.len() - 1]) {
            prop_assert!(after.check(&model, seen).is_err(), "{:?}", model.ops());
        }
    }

    #[test]
    fn wrong_byte_anywhere_after_a_sync_is_refused(ops in ops(), place: prop::sample::Index, file in 0..2usize) {
        let (model, times, mut states) = run(ops.into_iter().chain([Op::Sync]).collect(), 1024);
        let mut seen = states.pop().expect("a state");
        prop_assume!(!seen[file].data.is_empty());
        let at = place.index(seen[file].data.len());
        seen[file].data[at] ^= 0x10;
        let promise = Promise::at(&model, &times, times.len() as u64);
        prop_assert!(promise.check(&model, &seen).is_err());
    }
}

/// What may be found at the end of two operations on `/a`, of which nothing was synced.
fn after(ops: [Op; 2], change: impl FnOnce(&mut Vec<Seen>, &Model)) -> Result<(), String> {
    let (model, times, mut states) = run(ops.to_vec(), 1024);
    let mut seen = states.swap_remove(0);
    change(&mut seen, &model);
    Promise::at(&model, &times, 2).check(&model, &seen)
}

fn sector(seen: &mut [Seen], file: usize, sector: usize) -> &mut [u8] {
    &mut seen[file].data[sector * 512..][..512]
}

#[test]
fn sectors_of_an_overwrite_are_old_or_new_and_nothing_else() {
    let ops = || [write(0, 0, 2048), write(0, 0, 2048)];
    let mix = |first: u32, second: u32| {
        after(ops(), |seen, _| {
            content::fill(0, first, 0, sector(seen, 0, 0));
            content::fill(0, second, 1536, sector(seen, 0, 3));
        })
    };
    assert_eq!(mix(0, 1), Ok(()));
    assert_eq!(mix(2, 0), Ok(()));
    assert!(mix(3, 0).is_err());
    let misplaced = after(ops(), |seen, _| {
        content::fill(0, 1, 512, sector(seen, 0, 0))
    });
    assert!(misplaced.is_err());
}

#[test]
fn extension_without_its_data_is_refused() {
    let ops = || [write(0, 10_240, 1024), Op::Fdatasync { file: 1 }];
    let grown = |data: bool| {
        after(ops(), |seen, _| {
            seen[0].data.resize(11_264, 0);
            if data {
                content::fill(0, 1, 10_240, &mut seen[0].data[10_240..]);
            }
        })
    };
    assert_eq!(grown(true), Ok(()));
    assert!(grown(false).is_err());
}

#[test]
fn durable_change_of_size_or_map_is_missed_once_it_returned() {
    let allocate = |mode, offset, len| Op::Allocate {
        file: 0,
        mode,
        offset,
        len,
        durable: Durable::Data,
    };
    let cut = Op::SetLen {
        file: 0,
        len: 5000,
        durable: Durable::Full,
    };
    for op in [
        cut,
        allocate(Mode::ZeroRange, 9000, 3000),
        allocate(Mode::WriteZeroes, 9000, 3000),
        allocate(Mode::PunchHole, 1024, 1024),
        // Within a block.
        allocate(Mode::PunchHole, 100, 700),
    ] {
        let (model, times, states) = run(vec![op.clone()], 1024);
        let is_right = |time, state: usize| {
            let promise = Promise::at(&model, &times, time);
            promise.check(&model, &states[state]).is_ok()
        };
        assert!(is_right(0, 0) && is_right(1, 1), "{op}");
        assert!(!is_right(1, 0), "{op}");
    }
}

#[test]
fn times_that_are_promised_are_there_or_later_ones() {
    let stamps = |ctime_ns, mtime_ns| Stamps { ctime_ns, mtime_ns };
    let (mut model, mut files) = fresh(4096);
    model.push(Op::Fsync { file: 0 });
    model.stamp(0, stamps(20, 10));
    let times = [Times {
        began: 0,
        acknowledged: 1,
    }];
    let mut is_right = |time, found| {
        files[0].stamps = found;
        Promise::at(&model, &times, time)
            .check(&model, &files)
            .is_ok()
    };
    let found = [stamps(20, 10), stamps(21, 5), stamps(20, 9), stamps(19, 19)];
    assert_eq!(
        found.map(|found| is_right(1, found)),
        [true, true, false, false]
    );
    assert!(is_right(0, stamps(19, 19)));
}

#[test]
fn zeros_that_left_the_inode_are_overwritten_in_place_and_a_hole_is_not() {
    let found = |inline_bytes| {
        let units = Units {
            block_bytes: 1024,
            inline_bytes,
        };
        let spec = FileSpec {
            name: "/a".into(),
            size: 0,
            data: vec![],
            unwritten: vec![],
        };
        let mut model = Model::new(units, &[spec], &[(0o644, 7)]);
        let punched = Op::Allocate {
            file: 0,
            mode: Mode::PunchHole,
            offset: 5,
            len: 20,
            durable: Durable::No,
        };
        let ops = [set_len(0, 45), punched, Op::Sync, set_len(0, 9000)];
        ops.into_iter().for_each(|op| model.push(op));
        let overwrite = write(0, 0, 50);
        let data = model.data_of(&overwrite);
        model.push(overwrite);
        let times: Vec<Times> = (0..5)
            .map(|op| Times {
                began: op,
                acknowledged: op + 1,
            })
            .collect();
        let seen = Seen {
            data: data[..45].to_vec(),
            mode: 0o644,
            atime: 7,
            ..Seen::default()
        };
        Promise::at(&model, &times, 5).check(&model, &[seen])
    };
    assert_eq!(found(256), Ok(()));
    assert!(found(0).is_err());
}

#[test]
fn metadata_of_a_later_operation_without_an_earlier_one_is_refused() {
    let chmod = |file| Op::SetMode { file, mode: 0o600 };
    let only = |file: usize| after([chmod(0), chmod(1)], |seen, _| seen[file].mode = 0o600);
    assert_eq!(only(0), Ok(()));
    let refused = only(1).expect_err("the first is missing");
    assert!(refused.contains("no common state"), "{refused}");
}

#[test]
fn poison_is_refused_wherever_it_shows() {
    let refused = after([write(1, 0, 512), write(1, 512, 512)], |seen, _| {
        content::poison(0, sector(seen, 1, 9));
    });
    assert!(refused.expect_err("poison").contains("free space"));
}

/// The tree of the two files.
fn tree() -> Tree {
    let entry = |(path, file): (&str, usize)| {
        let entry = Entry {
            first: path.into(),
            links: 1,
            kind: Kind::Known(file),
            attributes: Attributes::new(0o644),
        };
        (path.into(), entry)
    };
    [("/a", 0), ("/b", 1)].map(entry).into()
}

/// What a change makes of a file's attributes.
type Make = fn(&mut Attributes);

#[test]
fn change_of_an_attribute_is_refused_without_its_fsync_and_missed_with_it() {
    let changes: [(Change, Make); 5] = [
        (Change::Set("user.t", 10), |it| {
            let value = dioxide_crash::names::value("user.t", 10);
            it.xattrs.insert(b"user.t".into(), value);
        }),
        (Change::List(ACCESS, List::Named), |it| {
            it.mode = 0o764;
            it.xattrs.insert(ACCESS.into(), List::Named.value());
        }),
        (Change::Owner(7, 8), |it| (it.uid, it.gid) = (7, 8)),
        (Change::Flags(0x40), |it| it.flags = 0x40),
        (Change::Project(9), |it| it.project = 9),
    ];
    for (change, make) in changes {
        let (model, files) = fresh(4096);
        let mut model = model.with_tree(tree());
        model.push(Op::Name(NameOp::Change("/a", change)));
        model.push(Op::Fsync { file: 0 });
        let times = [(0, 1), (2, 3)].map(|(began, acknowledged)| Times {
            began,
            acknowledged,
        });
        let before = Sight {
            files,
            tree: tree(),
            free: 0,
        };
        let mut after = before.clone();
        let entry = after.tree.get_mut("/a").expect("it is there");
        make(&mut entry.attributes);
        after.files[0].mode = entry.attributes.mode;
        let at = |time, sight| Promise::at(&model, &times, time).check_all(&model, sight);
        let found = [
            (0, &before),
            (0, &after),
            (1, &before),
            (1, &after),
            (3, &after),
        ];
        let is_right = found.map(|(time, sight)| at(time, sight).is_ok());
        assert_eq!(is_right, [true, false, true, true, true], "{change:?}");
        assert!(at(3, &before).is_err(), "{change:?}");
    }
}

#[test]
fn fdatasync_keeps_names_and_no_attributes() {
    let before = Sight {
        files: fresh(4096).1,
        tree: tree(),
        free: 0,
    };
    let chown = NameOp::Change("/a", Change::Owner(7, 8));
    for (op, is_kept) in [(NameOp::Link("/a", "/c"), true), (chown, false)] {
        for sync in [
            Op::Fdatasync { file: 0 },
            Op::FdatasyncQueued { file: 0 },
            Op::Name(NameOp::Fdatasync("/a")),
        ] {
            let mut model = fresh(4096).0.with_tree(tree());
            model.push(Op::Name(op));
            model.push(sync);
            let times = [(0, 1), (2, 3)].map(|(began, acknowledged)| Times {
                began,
                acknowledged,
            });
            let at = |time| Promise::at(&model, &times, time).check_all(&model, &before);
            assert_eq!((at(2), at(3).is_err()), (Ok(()), is_kept), "{op}");
        }
    }
}

/// What is right before a call on names returned, and what after an fsync of `/` that follows it.
fn judged(op: NameOp, sights: &[&Sight]) -> [Vec<bool>; 2] {
    let (model, _) = fresh(4096);
    let mut model = model.with_tree(tree());
    model.push(Op::Name(op));
    model.push(Op::Name(NameOp::Fsync("/")));
    let times = [(0, 1), (2, 3)].map(|(began, acknowledged)| Times {
        began,
        acknowledged,
    });
    [1, 3].map(|time| {
        let promise = Promise::at(&model, &times, time);
        let is_right = |sight: &&Sight| promise.check_all(&model, sight).is_ok();
        sights.iter().map(is_right).collect()
    })
}

#[test]
fn exchange_of_two_files_is_there_or_not_by_what_they_are() {
    let before = Sight {
        files: fresh(4096).1,
        tree: tree(),
        free: 0,
    };
    let mut after = before.clone();
    for (path, kind) in [("/a", Kind::Known(1)), ("/b", Kind::Known(0))] {
        after.tree.get_mut(path).expect("it is there").kind = kind;
    }
    let mut mixed = before.clone();
    mixed.files.swap(0, 1);
    let exchange = NameOp::Rename("/a", "/b", Over::Exchange);
    let [amid, synced] = judged(exchange, &[&before, &after, &mixed]);
    assert_eq!(amid, [true, true, false]);
    assert_eq!(synced, [false, true, false]);
}

#[test]
fn file_that_lost_its_name_is_gone_and_no_other_is() {
    let before = Sight {
        files: fresh(4096).1,
        tree: tree(),
        free: 0,
    };
    let without = |sight: &Sight, file: usize| {
        let mut sight = sight.clone();
        sight.files[file] = Seen::gone();
        sight
    };
    let mut after = without(&before, 0);
    after.tree.remove("/a");
    let mut there = before.clone();
    there.tree.remove("/a");
    let sights = [
        &before,
        &after,
        &there,
        &without(&before, 0),
        &without(&after, 1),
    ];
    let [amid, synced] = judged(NameOp::Unlink("/a"), &sights);
    assert_eq!(amid, [true, true, false, false, false]);
    assert_eq!(synced, [false, true, false, false, false]);
}
