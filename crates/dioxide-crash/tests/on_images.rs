//! The explorer on dioxide, over images of every layout, with e2fsck and the kernel as oracles.

use dioxide::MountOptions;
use dioxide::block::record::states::{Cache, CowDevice, Options, Snapshot, States};
use dioxide_crash::campaign::{Campaign, Selection};
use dioxide_crash::content;
use dioxide_crash::engine::Dioxide;
use dioxide_crash::explore::{Check, Checks, Limits, Recover, Sample, image_of};
use dioxide_crash::fault::Fault;
use dioxide_crash::fsck::E2fsck;
use dioxide_crash::image::Layout;
use dioxide_crash::kernel::Kernel;
use dioxide_crash::mutant::Mutant;
use dioxide_crash::names;
use dioxide_crash::op::{Durable, Op};
use dioxide_crash::replay::Replay;
use dioxide_crash::report::{Coverage, Report};
use dioxide_crash::run::{Disk, Recorded, record};
use dioxide_crash::target::Target;
use dioxide_crash::workload::{Workload, operations};
use dioxide_testkit::{have_root, soaks};
use std::sync::Arc;

/// The same each time, so that a change is judged by what it changes; in a soak another one each time.
fn seed() -> u64 {
    match std::env::var("DIOXIDE_SEED") {
        Ok(seed) => seed.parse().expect("DIOXIDE_SEED is a number"),
        Err(_) if soaks() => u64::from(std::process::id()),
        Err(_) => 21_276,
    }
}

/// 5,000 here in each of two campaigns, half as many of names, of attributes and between steps, a quarter with discards, of threads and of threads with one file; a million in a soak.
fn states() -> u64 {
    if soaks() { 1_000_000 } else { 5_000 }
}

/// In a soak all subsets of up to twelve writes are listed, where of each workload many states are looked at.
fn limits() -> Limits {
    let usual = Limits::default();
    Limits {
        exhaustive: if soaks() { 12 } else { usual.exhaustive },
        ..usual
    }
}

fn campaign(layouts: &[Layout]) -> Campaign {
    Campaign {
        layouts: layouts.to_vec(),
        selection: Selection::All,
        seed: seed(),
        states: states(),
        jobs: 2,
        limits: limits(),
        fault: None,
        until_bad: false,
    }
}

fn run(campaign: &Campaign, keep_open: bool) -> Report {
    run_on(
        campaign,
        &Dioxide {
            keep_open,
            ..Dioxide::default()
        },
    )
}

fn run_on(campaign: &Campaign, target: &Dioxide) -> Report {
    let e2fsck = E2fsck::find().expect("e2fsprogs");
    let mut others: Vec<Sample<'_>> = vec![Sample {
        recover: &e2fsck,
        every: (campaign.states / 4).min(400),
    }];
    let kernel = have_root().then(|| Kernel::find().expect("root, and loop devices"));
    match &kernel {
        Some(kernel) => others.push(Sample {
            recover: kernel,
            every: (campaign.states / 4).min(4000),
        }),
        None => eprintln!("skipped: the kernel's recovery needs root"),
    }
    let checks = Checks {
        consistent: Some(&e2fsck),
        others,
    };
    let report = campaign.run(target, &checks, &|_, _, _| {}, &|| false);
    report.expect("images can be made")
}

/// e2fsck looked at each state, and again wherever it was recovered once more.
fn all_are_consistent(report: &Report) {
    let others: u64 = report.otherwise.iter().map(|&(_, states)| states).sum();
    assert_eq!(report.consistent, report.states + report.cuts + others);
}

/// All of it was looked at, by everybody, and nothing was bad.
fn is_good(campaign: &Campaign, report: &Report) {
    println!("{report}");
    assert_eq!(report.bad, 0, "DIOXIDE_SEED={}\n{report}", campaign.seed);
    assert_eq!(report.unsupported, 0);
    assert!(report.states >= campaign.states);
    all_are_consistent(report);
    assert!(report.otherwise.iter().all(|&(_, states)| states > 0));
}

fn is_never_bad(keep_open: bool) {
    let campaign = campaign(&Layout::USUAL);
    println!("DIOXIDE_SEED={}", campaign.seed);
    is_good(&campaign, &run(&campaign, keep_open));
}

#[test]
fn crash_with_files_open_leaves_what_was_promised() {
    is_never_bad(true);
}

#[test]
fn crash_with_files_opened_for_each_operation_leaves_what_was_promised() {
    is_never_bad(false);
}

/// Somebody else's `fsync`, or the clock, commits in the middle of an operation.
#[test]
fn crash_between_the_steps_of_operations_leaves_what_was_promised() {
    // Many groups and a small log: the least room for a transaction.
    let layouts = [&Layout::USUAL[..], &[Layout::Groups]].concat();
    let campaign = Campaign {
        states: states() / 2,
        ..campaign(&layouts)
    };
    println!("DIOXIDE_SEED={}", campaign.seed);
    is_good(&campaign, &run_on(&campaign, &Dioxide::committing_each()));
}

/// What is freed is junk as soon as the device was told of it.
#[test]
fn crash_of_a_mount_that_discards_leaves_what_was_promised() {
    let campaign = Campaign {
        states: states() / 4,
        ..campaign(&Layout::USUAL)
    };
    println!("DIOXIDE_SEED={}", campaign.seed);
    let target = Dioxide {
        options: Dioxide::default().options.discard(true),
        keep_open: true,
    };
    is_good(&campaign, &run_on(&campaign, &target));
}

/// Five threads: what one was promised does not depend on whose commit it came with.
#[test]
fn crash_amid_several_threads_leaves_what_each_was_promised() {
    let layouts = [&Layout::USUAL[..], &[Layout::Groups]].concat();
    let campaign = Campaign {
        selection: Selection::Threads,
        states: states() / 4,
        ..campaign(&layouts)
    };
    println!("DIOXIDE_SEED={}", campaign.seed);
    is_good(&campaign, &run(&campaign, true));
}

/// Two or three threads that write to one file, under every policy: what one was promised does not depend on what others have in
/// flight.
#[test]
fn crash_amid_writers_of_one_file_leaves_what_each_was_promised() {
    let layouts = [&Layout::USUAL[..], &[Layout::Groups]].concat();
    for keep_open in [true, false] {
        let campaign = Campaign {
            selection: Selection::Shared,
            states: states() / 8,
            limits: many_workloads(),
            ..campaign(&layouts)
        };
        println!("DIOXIDE_SEED={}", campaign.seed);
        is_good(&campaign, &run(&campaign, keep_open));
    }
}

/// What completes in other threads is waited for, and the clock goes on between operations alone, so a description holds.
#[test]
fn workload_of_one_thread_writes_the_same_bytes_each_time() {
    let disk = Disk {
        cache: Cache::Volatile,
        fault: None,
    };
    let start = Layout::K1.make().expect("an image");
    let written = |workload: &Workload| {
        let lanes = workload.lanes(Layout::K1).expect("it has such");
        assert_eq!(lanes.len(), 1);
        let recorded = record(&Dioxide::default(), &start, &lanes, disk);
        recorded.expect("it runs").log
    };
    for seed in 0..20 {
        for workload in [
            Workload::Random { seed },
            Workload::NamesRandom { seed },
            Workload::AttributesRandom { seed },
            Workload::Again { seed },
        ] {
            let (first, second) = (written(&workload), written(&workload));
            let pairs = first.entries().iter().zip(second.entries());
            let differs = pairs.enumerate().find(|(_, (a, b))| a != b);
            let entry = differs.map(|(number, _)| number);
            let lens = [&first, &second].map(|log| log.entries().len());
            assert_eq!(entry, None, "{workload}, entries {lens:?}");
            assert_eq!(lens[0], lens[1], "{workload}");
        }
    }
}

/// What is written into a cluster later must not show where the loss of its blocks does not.
#[test]
fn write_into_a_cluster_that_lost_blocks_comes_after_the_loss() {
    let campaign = Campaign {
        selection: "refill".parse().expect("a workload"),
        states: 400,
        ..campaign(&[Layout::Bigalloc])
    };
    let report = run(&campaign, true);
    assert_eq!(report.bad, 0, "{report}");
}

/// There are thousands of pairs: of each, a few states.
fn many_workloads() -> Limits {
    Limits {
        states: 40,
        ..Limits::default()
    }
}

fn leaves_the_tree_of_one_state(selection: Selection) {
    let campaign = Campaign {
        selection,
        states: states() / 2,
        limits: many_workloads(),
        ..campaign(&Layout::USUAL)
    };
    println!("DIOXIDE_SEED={}", campaign.seed);
    is_good(&campaign, &run(&campaign, false));
}

#[test]
fn crash_amid_operations_on_names_leaves_the_tree_of_one_state() {
    leaves_the_tree_of_one_state(Selection::Names);
}

#[test]
fn crash_amid_operations_on_attributes_leaves_the_tree_of_one_state() {
    leaves_the_tree_of_one_state(Selection::Attributes);
}

/// Of all pairs some, each on another layout, and the large ones among them. Those of quotas have a test of their own.
#[test]
fn crash_amid_pairs_of_operations_leaves_what_was_promised_on_every_layout() {
    let layouts: Vec<Layout> = Layout::ALL
        .into_iter()
        .filter(|&layout| layout != Layout::Quota)
        .collect();
    let campaign = Campaign {
        selection: Selection::Spread,
        states: states().min(200_000) / 2,
        limits: Limits {
            states: 6,
            ..Limits::default()
        },
        ..campaign(&layouts)
    };
    println!("DIOXIDE_SEED={}", campaign.seed);
    is_good(&campaign, &run(&campaign, true));
}

/// What a recovery leaves is worked on, until power fails again.
#[test]
fn crash_after_the_recovery_from_another_leaves_what_was_promised() {
    let layouts = [&Layout::USUAL[..], &[Layout::Groups]].concat();
    for keep_open in [true, false] {
        let campaign = Campaign {
            selection: Selection::Again,
            states: states() / 16,
            limits: many_workloads(),
            ..campaign(&layouts)
        };
        println!("DIOXIDE_SEED={}", campaign.seed);
        is_good(&campaign, &run(&campaign, keep_open));
    }
}

/// With leaves of an index as full as they get, under a root that is full, or a block below it.
#[test]
fn crash_amid_operations_on_names_of_a_full_index_leaves_the_tree_of_one_state() {
    let campaign = Campaign {
        selection: Selection::Names,
        states: states() / 32,
        limits: many_workloads(),
        ..campaign(&[Layout::Index, Layout::LargeDir])
    };
    println!("DIOXIDE_SEED={}", campaign.seed);
    is_good(&campaign, &run(&campaign, false));
}

/// Every operation on the file meets a full leaf under full nodes, or takes away hundreds of them.
#[test]
fn crash_amid_changes_of_a_deep_tree_leaves_what_was_promised() {
    let campaign = Campaign {
        selection: Selection::Random,
        states: states() / 32,
        limits: Limits {
            // Of a hundred writes that are under way there are very many states.
            exhaustive: 3,
            samples: 2,
            torn: 1,
            ..many_workloads()
        },
        ..campaign(&[Layout::Deep])
    };
    println!("DIOXIDE_SEED={}", campaign.seed);
    is_good(&campaign, &run(&campaign, true));
}

/// Owners and projects that files change between, and values of attributes that count as theirs. e2fsck compares
/// quotas with what is used; not every kernel can mount such an image.
#[test]
fn crash_amid_operations_of_all_kinds_leaves_quotas_right() {
    let e2fsck = E2fsck::find().expect("e2fsprogs");
    let checks = Checks {
        consistent: Some(&e2fsck),
        others: vec![Sample {
            recover: &e2fsck,
            every: (states() / 12).min(200),
        }],
    };
    for selection in [Selection::Attributes, Selection::All, Selection::Again] {
        let campaign = Campaign {
            selection,
            states: states() / 12,
            limits: many_workloads(),
            ..campaign(&[Layout::Quota])
        };
        let report = campaign.run(&Dioxide::default(), &checks, &|_, _, _| {}, &|| false);
        is_good(&campaign, &report.expect("images can be made"));
    }
}

/// Operation `words` on names, and an fsync.
fn operation(words: &str) -> Workload {
    let all = names::operations();
    let mut places = all.iter().map(|op| op.to_string().starts_with(words));
    Workload::NamesSingle {
        op: places.position(|it| it).expect("there is one"),
        synced: true,
    }
}

/// All that are listed were run, and nothing was bad.
fn is_good_to_the_end(selection: Selection, layouts: &[Layout], states_each: u64) {
    let campaign = Campaign {
        selection,
        states: u64::MAX,
        limits: Limits {
            states: states_each,
            ..Limits::default()
        },
        ..campaign(layouts)
    };
    println!("DIOXIDE_SEED={}", campaign.seed);
    let report = run(&campaign, false);
    println!("{report}");
    assert_eq!(report.bad, 0, "DIOXIDE_SEED={}\n{report}", campaign.seed);
    assert_eq!(report.unsupported, 0);
    assert!(report.listed > 0 && report.workloads == report.listed);
    // Names are among them.
    assert!(report.coverage.index_splits > 0);
    assert!(report.states >= report.listed);
    all_are_consistent(&report);
}

#[test]
fn crash_amid_every_operation_alone_leaves_what_was_promised() {
    let (layouts, states_each) = match soaks() {
        true => (&Layout::USUAL[..], 100),
        false => (&[Layout::K4][..], 4),
    };
    is_good_to_the_end(Selection::Singles, layouts, states_each);
}

#[test]
fn crash_amid_every_pair_of_operations_leaves_what_was_promised() {
    if !soaks() {
        eprintln!("skipped: takes long, set DIOXIDE_SOAK");
        return;
    }
    let layouts = [Layout::K4, Layout::K1, Layout::Indirect, Layout::Bigalloc];
    is_good_to_the_end(Selection::Pairs, &layouts, 6);
}

/// What the others come upon by chance, or not in so few states.
#[test]
fn crash_amid_all_that_a_journal_does_leaves_what_was_promised() {
    let mut all = Coverage::default();
    for (layout, workload, states) in [
        (Layout::K1, Workload::Long { seed: 1 }, 200),
        (Layout::K1, Workload::Reuse, 100),
        (Layout::Groups, Workload::Truncate, 80),
        (Layout::Inline, operation("create /i/w"), 60),
        (Layout::K1, operation("create /d/n"), 60),
        (Layout::Index, operation("create /d/n"), 60),
        (Layout::LargeDir, operation("create /d/n"), 30),
        (Layout::Deep, Workload::Truncate, 100),
    ] {
        let campaign = Campaign {
            selection: Selection::One(workload),
            states,
            ..campaign(&[layout])
        };
        let report = run(&campaign, true);
        assert_eq!(report.bad, 0, "{report}");
        // Not for the others' sake.
        assert!(layout != Layout::Deep || report.coverage.depth_changes > 0);
        all.add(&report.coverage);
    }
    let Coverage {
        commits,
        revokes,
        wraps,
        checkpoints,
        forced,
        flushes,
        escaped,
        orphan_truncates,
        depth_changes,
        inline_dirs_grown,
        index_splits,
        index_levels,
    } = all;
    let log = [commits, revokes, wraps, checkpoints, forced, flushes];
    let blocks = [escaped, orphan_truncates, depth_changes];
    let dirs = [inline_dirs_grown, index_splits, index_levels];
    let counts = log.into_iter().chain(blocks).chain(dirs);
    assert!(counts.into_iter().all(|count| count > 0), "{all:?}");
}

/// Until it is: the first workload with a bad state is enough. `by`: what is said of one.
fn is_caught(what: &str, by: &str, campaign: Campaign, options: MountOptions, checks: &Checks<'_>) {
    let campaign = Campaign {
        states: 16_000,
        until_bad: true,
        ..campaign
    };
    let target = Dioxide {
        options,
        keep_open: true,
    };
    let report = campaign.run(&target, checks, &|_, _, _| {}, &|| false);
    let report = report.expect("images can be made");
    let bad = report.examples.first();
    println!(
        "{what}: {} of {} states: {bad:?}",
        report.bad, report.states
    );
    // A workload that fails says nothing of states.
    let is_caught = bad.is_some_and(|bad| !bad.what.starts_with("the workload failed"));
    let is_caught = is_caught && report.examples.iter().any(|bad| bad.what.contains(by));
    assert!(
        is_caught,
        "{what}: DIOXIDE_SEED={}\n{report}",
        campaign.seed
    );
}

/// Operation `words` on data, alone.
fn data_operation(words: &str) -> Selection {
    let all = operations(Layout::K4);
    let mut places = all.iter().map(|op| op.to_string() == words);
    Selection::One(Workload::Single {
        op: places.position(|it| it).expect("there is one"),
        synced: false,
    })
}

/// Of threads with one file, and of one write through a queue.
#[test]
fn dsync_write_that_is_not_durable_is_caught() {
    let queued = data_operation("write-queued f0 16384+4096 dsync");
    for (selection, by) in [
        (Selection::Shared, "not what is promised or newer"),
        (queued, "is as in none of states"),
    ] {
        let campaign = Campaign {
            selection,
            fault: Some(Fault::NoFua),
            ..campaign(&[Layout::K4])
        };
        let options = Dioxide::default().options;
        is_caught("no-fua", by, campaign, options, &Checks::default());
    }
}

#[test]
fn every_faulty_device_is_caught() {
    let is_device = |fault: &Fault| !matches!(fault, Fault::Engine(_));
    for (name, fault) in Fault::ALL.into_iter().filter(|(_, fault)| is_device(fault)) {
        let (selection, layouts) = match fault {
            Fault::SplitAtomic => (Selection::All, &[Layout::Atomic][..]),
            _ => (Selection::Random, &[Layout::K1, Layout::K4][..]),
        };
        let campaign = Campaign {
            selection,
            fault: Some(fault),
            ..campaign(layouts)
        };
        let options = Dioxide::default().options;
        let by = match fault {
            // What a write promised of itself is not there.
            Fault::NoFua => "is as in none of states",
            Fault::SplitAtomic => "of an atomic write",
            _ => "",
        };
        is_caught(name, by, campaign, options, &Checks::default());
    }
}

fn mutant_is_caught(mutant: Mutant, by: &str, selection: Selection, layouts: &[Layout]) {
    let e2fsck = E2fsck::find().expect("e2fsprogs");
    let checks = Checks {
        consistent: Some(&e2fsck),
        others: Vec::new(),
    };
    for &layout in layouts {
        let campaign = Campaign {
            selection,
            fault: Some(Fault::Engine(mutant)),
            ..campaign(&[layout])
        };
        let what = format!("{mutant:?} on {layout}");
        is_caught(&what, by, campaign, Dioxide::default().options, &checks);
    }
}

#[test]
fn data_written_after_its_commit_is_caught() {
    let layouts = [Layout::K1, Layout::K4, Layout::Indirect];
    mutant_is_caught(
        Mutant::ConvertBeforeData,
        "is as in none of states",
        Selection::Random,
        &layouts,
    );
    let by = ": sector ";
    mutant_is_caught(
        Mutant::ConvertBeforeData,
        by,
        Selection::Shared,
        &[Layout::K4],
    );
    let queued = data_operation("write-queued f1 12288+4096 dsync");
    mutant_is_caught(Mutant::ConvertBeforeData, by, queued, &[Layout::K4]);
}

#[test]
fn orphan_that_no_transaction_names_is_caught() {
    let layouts = [Layout::K1, Layout::OrphanFile];
    mutant_is_caught(Mutant::OrphanSkipped, "", Selection::Names, &layouts);
}

#[test]
fn size_in_the_commit_before_its_data_is_caught() {
    let layouts = [Layout::K1, Layout::Plain];
    mutant_is_caught(Mutant::SizeEarly, ": size ", Selection::Random, &layouts);
    mutant_is_caught(Mutant::SizeEarly, ": sector ", Selection::Shared, &layouts);
}

#[test]
fn log_without_revokes_is_caught() {
    let layouts = [Layout::K1, Layout::Plain, Layout::Indirect];
    let selection = Selection::One(Workload::Reuse);
    mutant_is_caught(
        Mutant::RevokeIgnored,
        "names are as in none",
        selection,
        &layouts,
    );
}

#[test]
fn metadata_with_the_checksum_of_before_is_caught() {
    mutant_is_caught(
        Mutant::ChecksumStale,
        "checksum",
        Selection::Random,
        &[Layout::K1],
    );
}

#[test]
fn block_used_again_before_its_loss_is_committed_is_caught() {
    for (layout, by) in [
        (Layout::K1, "is as in none of states"),
        // What is used again may be a block of pointers.
        (Layout::Indirect, ""),
    ] {
        for selection in [Selection::Random, Selection::Threads] {
            mutant_is_caught(Mutant::FreeBeforeCommit, by, selection, &[layout]);
        }
    }
    let (selection, layouts) = (Selection::Shared, [Layout::K1]);
    mutant_is_caught(Mutant::FreeBeforeCommit, ": sector ", selection, &layouts);
}

#[test]
fn mount_without_barriers_is_caught() {
    let options = Dioxide::default().options.barrier(false);
    for selection in [
        Selection::Random,
        Selection::Names,
        Selection::Threads,
        Selection::Shared,
    ] {
        let campaign = Campaign {
            selection,
            ..campaign(&[Layout::K1, Layout::K4])
        };
        is_caught(
            "barrier=0",
            "",
            campaign,
            options.clone(),
            &Checks::default(),
        );
    }
}

#[test]
fn bad_state_is_found_again_by_its_description() {
    for selection in [Selection::All, Selection::Random] {
        let campaign = Campaign {
            selection,
            states: 500,
            fault: Some(Fault::NoFlush),
            ..campaign(&[Layout::K4])
        };
        let report = run(&campaign, true);
        let bad = report.examples.first().expect("flushes are missing");
        let replay: Replay = bad.replay.parse().expect("as reported");
        let target = Dioxide {
            keep_open: true,
            ..Dioxide::default()
        };
        let ran = replay.run(&target, Checks::default(), campaign.fault, &|| false);
        let (again, image) = ran.expect("a state of the workload");
        assert_eq!(again.examples.first(), Some(bad));
        assert!(image.is_some());
    }
}

#[test]
fn fsck_notices_a_damaged_image() {
    let start = Layout::K1.make().expect("an image");
    let e2fsck = E2fsck::find().expect("e2fsprogs");
    assert_eq!(e2fsck.check(&start.image), Ok(()));
    let mut bytes = start.image.to_vec();
    // Free counts in the superblock and in the first group's descriptor.
    bytes[1024 + 0x0c] ^= 0x55;
    bytes[2048 + 0x0c] ^= 0x55;
    let damaged = Snapshot::new(&bytes);
    assert!(e2fsck.check(&damaged).is_err());
    assert!(e2fsck.recover(&damaged).is_err());
}

#[test]
fn fsck_notices_an_image_that_nobody_closed() {
    // Without a checksum of the superblock.
    let start = Layout::Plain.make().expect("an image");
    let e2fsck = E2fsck::find().expect("e2fsprogs");
    assert_eq!(e2fsck.check(&start.image), Ok(()));
    // The state, the feature needs_recovery, and the head of the list of orphans.
    for (at, bit) in [(0x3a, 1), (0x3a, 2), (0x60, 4), (0xe8, 11)] {
        let mut bytes = start.image.to_vec();
        bytes[1024 + at] ^= bit;
        let said = e2fsck.check(&Snapshot::new(&bytes));
        assert!(said.is_err_and(|said| said.contains("not closed")));
    }
}

/// Appends, and writes into a hole and into unwritten blocks; of each some are synced.
fn extending() -> Vec<Op> {
    let write = |file, offset, len| Op::Write {
        file,
        offset,
        len,
        durable: Durable::No,
    };
    let append = |file, len| Op::Append {
        file,
        len,
        durable: Durable::No,
    };
    vec![
        append(2, 5000),
        Op::Fsync { file: 2 },
        append(2, 3000),
        write(1, 8192, 8192),
        Op::Fdatasync { file: 1 },
        write(3, 16_384, 2048),
        append(0, 4096),
        Op::Fsync { file: 3 },
        append(2, 9000),
    ]
}

/// What files hold after each operation of such a workload.
fn contents(recorded: &Recorded, before: Vec<Vec<u8>>) -> Vec<Vec<Vec<u8>>> {
    let mut states = vec![before];
    for (state, op) in (1..).zip(recorded.lanes[0].model.ops()) {
        let mut files = states[states.len() - 1].clone();
        let (file, offset, len) = match *op {
            Op::Write {
                file, offset, len, ..
            } => (file, offset, len),
            Op::Append { file, len, .. } => (file, files[file].len() as u64, len),
            _ => (0, 0, 0),
        };
        let (start, end) = (offset as usize, (offset + len) as usize);
        let bytes = &mut files[file];
        bytes.resize(bytes.len().max(end), 0);
        bytes[start..end].copy_from_slice(&content::data(file, state, offset, len));
        states.push(files);
    }
    states
}

/// The last state of a file that was synced at a time; 0 if none was.
fn synced(recorded: &Recorded, file: usize, at: u64) -> usize {
    let lane = &recorded.lanes[0];
    let is_synced = |op: &Op| match *op {
        Op::Fsync { file: it } | Op::Fdatasync { file: it } => it == file,
        _ => *op == Op::Sync,
    };
    let ops = lane.model.ops().iter().zip(&lane.times);
    let last = ops
        .rev()
        .position(|(op, times)| is_synced(op) && times.acknowledged <= at);
    last.map_or(0, |behind| lane.times.len() - behind)
}

/// Without a journal a crash leaves metadata of different ages, which e2fsck mends. What was synced is there after that, and
/// no file shows what free space held.
#[test]
fn writes_that_extend_without_a_journal_come_before_their_map() {
    let start = Layout::NoJournal.make().expect("an image");
    let e2fsck = E2fsck::find().expect("e2fsprogs");
    let target = Dioxide::default();
    let disk = Disk {
        cache: Cache::Volatile,
        fault: None,
    };
    let recorded = record(&target, &start, &[extending()], disk).expect("it runs");
    let files = start.files.iter().enumerate();
    let before = files.map(|(file, spec)| spec.contents(file)).collect();
    let contents = contents(&recorded, before);
    let times = &recorded.lanes[0].times;
    let options = Options {
        exhaustive: 3,
        samples: 2,
        torn: 1,
        marks: times.iter().map(|op| op.acknowledged).collect(),
        whole: recorded.whole.clone(),
        ..Options::default()
    };
    let states = || States::new(&recorded.log, options.clone());
    let step = states().count().div_ceil(60);
    for state in states().step_by(step) {
        let crashed = image_of(&recorded, &state).expect("listed from the same log");
        let image = e2fsck.mend(&crashed).expect("it is repaired");
        let device = CowDevice::new(&image, Cache::Volatile);
        let mut session = target.open(Arc::new(device)).expect("it is clean");
        let begun = times.iter().filter(|op| op.began < state.at).count();
        for (file, known) in recorded.known.iter().enumerate() {
            let seen = session.look(&known.name).expect("it is there").data;
            let synced = synced(&recorded, file, state.at);
            let size = contents[synced][file].len();
            assert!(seen.len() >= size, "{state}: {}, {known:?}", seen.len());
            for (sector, bytes) in seen.chunks(512).enumerate() {
                let what = content::explain(bytes);
                let about = format!("{state}: sector {sector} of {}: {what}", known.name);
                assert!(!content::is_poisoned(bytes), "{about}");
                let at = sector * 512..size.min(sector * 512 + bytes.len());
                let is_of = |files: &Vec<Vec<u8>>| files[file][at.clone()] == bytes[..at.len()];
                let mut later = contents[synced..=begun.max(synced)].iter();
                assert!(at.is_empty() || later.any(is_of), "{about}");
            }
        }
        session.close().expect("it is unmounted");
    }
}
