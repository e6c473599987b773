//! Every experiment, for a few milliseconds each, on small images, with verification: so that none
//! of them rots. Needs mke2fs, debugfs and e2fsck.

use dioxide::{Fs, MountOptions, OpenOptions};
use dioxide_bench::{
    BenchOptions, Check, DeviceChoice, Experiment, Progress, Report, SimpleChoice, Target,
};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const SIZE: u64 = 4 << 20;
const PATH: &str = "/usr/sbin:/sbin:/usr/bin:/bin";

fn tiny(experiment: Experiment) -> BenchOptions {
    BenchOptions {
        experiments: vec![experiment],
        runtime: Some(Duration::from_millis(5)),
        runs: Some(1),
        size_bytes: Some(SIZE),
        quick: true,
        verify: true,
        ..BenchOptions::default()
    }
}

fn run(options: &BenchOptions) -> Report {
    let report = dioxide_bench::run(options, &mut ()).expect("the run is set up");
    assert!(!report.rows.is_empty());
    let damage: Vec<_> = report.failures().filter(|check| check.damage).collect();
    assert!(damage.is_empty(), "{damage:#?}");
    report
}

/// How many rows an experiment must give: one per case and variant, two in a mix.
fn assert_rows(experiment: Experiment, rows: usize) {
    let report = run(&tiny(experiment));
    assert_eq!(report.rows.len(), rows);
    for row in &report.rows {
        assert!(row.experiment == experiment.id() && row.ratio_to_raw.is_some());
        let verified = row.verified.expect("verification is on");
        assert!(verified.sectors > 0);
    }
    assert_eq!(report.to_json_lines().lines().count(), rows);
    assert!(report.to_html().contains(experiment.id()));
    assert!(report.to_table().contains(experiment.id()));
}

#[test]
fn mixed_randrw_tiny_is_verified() {
    assert_rows(Experiment::MixedRandrw, 5 * 8 * 2);
}

#[test]
fn unaligned_overwrite_tiny_is_verified() {
    assert_rows(Experiment::UnalignedOverwrite, 2 * 4);
}

#[test]
fn aio_completion_tiny_is_verified() {
    assert_rows(Experiment::AioCompletion, 4 * 3);
}

#[test]
fn simple_read_tiny_is_verified() {
    assert_rows(Experiment::SimpleRead, 3);
}

#[test]
fn simple_read_sweep_tiny_is_verified() {
    assert_rows(Experiment::SimpleReadSweep, 4 * 3);
}

#[test]
fn names_tiny_are_made_and_removed_in_each_shape() {
    let report = run(&BenchOptions {
        experiments: vec![Experiment::Names],
        runs: Some(1),
        files: Some(2000),
        ..BenchOptions::default()
    });
    assert_eq!(report.rows.len(), 3 * 5, "five operations in three shapes");
    assert!(report.rows.iter().all(|row| row.iops > 0.0));
    // What is not measured is not zero.
    let unknown = "\"p50\":null,\"p99\":null,\"p999\":null},\"cpu_ns_per_io\":null,";
    assert!(
        report
            .to_json_lines()
            .lines()
            .all(|row| row.contains(unknown))
    );
    assert!(report.to_table().contains(Experiment::Names.id()));
}

#[test]
fn names_for_which_there_is_no_room_leave_nothing_behind() {
    let dir = tempfile::tempdir().expect("a directory");
    let image = given_image(dir.path(), &vec![7; SIZE as usize]);
    let options = BenchOptions {
        targets: vec![Target::Dioxide],
        files: Some(2000),
        runtime: None,
        verify: false,
        experiments: vec![Experiment::Names],
        ..on_given(&image, "/data")
    };
    let refusal = |options: &BenchOptions| {
        let run = dioxide_bench::run(options, &mut ()).map(drop);
        run.expect_err("there is no room").to_string()
    };
    let too_many = BenchOptions {
        files: Some(100_000),
        ..options.clone()
    };
    let error = refusal(&too_many);
    assert!(error.contains("free inodes"), "{error}");
    // Room for the directories, and for some of the names.
    let mut tune2fs = Command::new("tune2fs");
    tune2fs.args(["-m", "0"]).arg(&image).env("PATH", PATH);
    assert!(tune2fs.output().expect("tune2fs").status.success());
    let fs = Fs::open(&image, &MountOptions::new()).expect("a file system");
    let new = OpenOptions::new().write(true).create_new(true);
    let file = new.open(&fs, "/fill").expect("a file");
    let mut at = 0;
    while file.write_at(&[7; 1024], at).is_ok() {
        at += 1024;
    }
    file.set_len(at - (16 << 10)).expect("it is shorter");
    drop(file);
    fs.close().expect("it is closed");
    let error = refusal(&options);
    assert!(error.contains("space"), "{error}");
    let fs = Fs::open(&image, &MountOptions::new().read_only(true)).expect("a file system");
    let left = fs.metadata("/names.bench");
    assert!(matches!(left, Err(dioxide::Error::NotFound(_))), "{left:?}");
    fs.close().expect("it is closed");
    let mut e2fsck = Command::new("e2fsck");
    e2fsck.arg("-fn").arg(&image).env("PATH", PATH);
    assert!(e2fsck.output().expect("e2fsck").status.success());
}

/// A plain file stands for one of a mount. What is no file of the kernel's ext4 is no rival.
#[test]
fn one_thread_is_measured_beside_a_file_of_a_mount() {
    let (dir, memory) = (
        tempfile::tempdir().expect("a directory"),
        tempfile::tempdir_in("/dev/shm").expect("a directory in memory"),
    );
    let image = given_image(memory.path(), &vec![7; SIZE as usize]);
    let plain = |dir: &Path| {
        let path = dir.join("plain");
        std::fs::write(&path, vec![7; SIZE as usize]).expect("a file");
        Target::Path(path)
    };
    let options = BenchOptions {
        experiments: vec![Experiment::Rows],
        rows: vec![6, 7],
        targets: vec![Target::Raw, Target::Dioxide, plain(memory.path())],
        verify: false,
        ..on_given(&image, "/data")
    };
    let report = run(&options);
    // Three loads, blocking and with a queue, on three targets, of which the first is raw for each.
    assert_eq!(report.rows.len(), 3 * 2 * 3);
    assert!(report.rows.iter().all(|row| row.ratio_to_raw.is_some()));
    assert!(report.rows.iter().all(|row| row.rounds.len() == 1));
    let loads = |report: &Report| {
        let judged = report.checks.iter().filter(|check| !check.damage);
        judged.map(|check| check.pass.is_some()).collect::<Vec<_>>()
    };
    assert_eq!(loads(&report), [false; 3]);
    let both = run(&BenchOptions {
        experiments: vec![Experiment::SimpleRead, Experiment::Rows],
        verify: true,
        ..options.clone()
    });
    for row in &both.rows {
        let is_load = row.experiment == Experiment::SimpleRead.id();
        assert_eq!(row.verified.is_some(), is_load, "{}", row.experiment);
    }
    if is_ext4(dir.path()) {
        let targets = vec![Target::Dioxide, plain(dir.path())];
        assert_eq!(loads(&run(&BenchOptions { targets, ..options })), [true; 3]);
    }
}

fn is_ext4(dir: &Path) -> bool {
    let mut stat = Command::new("stat");
    let told = stat.args(["-f", "-c", "%t"]).arg(dir).output();
    told.is_ok_and(|told| told.stdout == b"ef53\n")
}

#[test]
fn rows_tiny_gives_a_verdict_for_each_row_of_the_table() {
    let options = BenchOptions {
        runtime: Some(Duration::from_millis(2)),
        verify: false,
        ..tiny(Experiment::Rows)
    };
    let report = run(&options);
    for row in [
        "1:",
        "2:",
        "3:",
        "4:",
        "5:",
        "6, 7:",
        "8:",
        "9:",
        "10:",
        "11: reads",
        "11: appends",
        "11: truncates",
        "12:",
        "13:",
        "16:",
    ] {
        let judged = report
            .checks
            .iter()
            .any(|check| check.what.starts_with(row));
        assert!(judged, "row {row}");
    }
    // The allocator keeps what other rows free: what grows into that is not seen.
    let first = &report.checks[0];
    assert!(first.what.starts_with("16:"), "{first:?}");
    let others = |of: &Check| of.what.starts_with("13:");
    let of_16: Vec<_> = report.checks.iter().take_while(|c| !others(c)).collect();
    let looked_at = of_16.iter().filter(|check| check.damage).count();
    assert_eq!(
        looked_at,
        if first.pass.is_some() { 2 } else { 0 },
        "{of_16:?}"
    );
    // Both steps, from one name on.
    let created = |of: &&Check| of.what.starts_with("13: file created among");
    let created = report.checks.iter().filter(created).count();
    assert_eq!(created, looked_at);
}

#[test]
fn rows_of_images_in_memory_are_skipped_where_those_lie_on_a_disk() {
    let dir = tempfile::tempdir().expect("a directory");
    if !is_ext4(dir.path()) {
        eprintln!("skipped: the directory for temporary files is not of ext4");
        return;
    }
    let options = BenchOptions {
        rows: vec![1, 12, 13],
        scratch: Some(dir.path().into()),
        verify: false,
        ..tiny(Experiment::Rows)
    };
    let report = dioxide_bench::run(&options, &mut ()).expect("the run is set up");
    assert!(report.rows.is_empty());
    assert!(report.checks.iter().all(|check| check.pass.is_none()));
}

#[test]
fn null_device_measures_queues_and_refuses_the_rest() {
    let options = BenchOptions {
        device: DeviceChoice::Null,
        verify: false,
        ..tiny(Experiment::SimpleRead)
    };
    match dioxide_bench::run(&options, &mut ()) {
        Ok(report) => assert!(report.rows[0].device.starts_with("null sink")),
        // Where io_uring is not permitted.
        Err(error) => assert!(error.to_string().contains("io_uring"), "{error}"),
    }
    let experiments = vec![Experiment::MixedRandrw];
    let error = dioxide_bench::run(
        &BenchOptions {
            experiments,
            ..options
        },
        &mut (),
    )
    .unwrap_err();
    assert!(error.to_string().contains("queues only"), "{error}");
}

#[test]
fn flags_reach_the_rows() {
    let options = BenchOptions {
        block_sizes: vec![8192],
        iodepths: vec![4],
        numjobs: Some(2),
        mix: Some(70),
        simple: Some(SimpleChoice::Both),
        targets: vec![Target::Dioxide],
        device: "sim:latency=20us".parse().expect("a device"),
        ..tiny(Experiment::SimpleRead)
    };
    let report = run(&options);
    assert_eq!(report.rows.len(), 4);
    let row = &report.rows[0];
    assert_eq!((row.block_size, row.iodepth, row.numjobs), (8192, 4, 2));
    assert_eq!(
        (row.rw.as_str(), row.engine.as_str()),
        ("randrw:read", "queue")
    );
    assert_eq!(row.simple.as_deref(), Some("off"));
    assert!(row.ratio_to_raw.is_none() && row.device.starts_with("sim("));
}

#[test]
fn device_that_no_mail_tells_of_is_not_judged_by_one() {
    let report = run(&BenchOptions {
        device: "sim:latency=100us,iops=500k".parse().expect("a device"),
        block_sizes: vec![2048],
        verify: false,
        ..tiny(Experiment::UnalignedOverwrite)
    });
    assert!(report.checks.iter().all(|check| check.damage));
}

#[test]
fn path_target_runs_on_a_plain_file() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("data");
    std::fs::write(&path, vec![0; SIZE as usize]).expect("a file");
    let targets = vec![Target::Raw, Target::Path(path)];
    let report = run(&BenchOptions {
        targets,
        ..tiny(Experiment::AioCompletion)
    });
    assert!(report.rows[1].target.starts_with("path:") && report.rows[1].policy.is_none());
}

#[test]
fn completion_is_told_of_queues_only() {
    let completions = |experiment| {
        let report = run(&BenchOptions {
            targets: vec![Target::Dioxide],
            block_sizes: vec![4096],
            ..tiny(experiment)
        });
        let rows = report.rows.into_iter();
        rows.map(|row| row.completion).collect::<Vec<_>>()
    };
    let told = completions(Experiment::AioCompletion);
    assert_eq!(told, [Some("deferred".into()), Some("inline".into())]);
    let told = completions(Experiment::MixedRandrw);
    assert!(told.iter().all(Option::is_none), "{told:?}");
}

/// A given image with a file of zeros that was really written (`mke2fs -d` would leave it a hole).
fn given_image(dir: &Path, bytes: &[u8]) -> PathBuf {
    let (tree, image) = (dir.join("tree"), dir.join("image"));
    std::fs::create_dir(&tree).expect("a directory");
    std::fs::write(tree.join("data"), bytes).expect("a file");
    let status = Command::new("mke2fs")
        .args(["-q", "-F", "-t", "ext4", "-d"])
        .args([&tree, &image])
        .arg("16M")
        .env("PATH", PATH)
        .status();
    assert!(status.expect("mke2fs").success());
    image
}

/// A device that takes as long as it says is the slow part only over a mapping: images in memory that were named were read by pread.
#[test]
fn given_image_in_memory_is_mapped_under_a_simulated_device() {
    let dir = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
    let image = given_image(dir.path(), &vec![7; SIZE as usize]);
    let report = run(&BenchOptions {
        experiments: vec![Experiment::UnalignedOverwrite],
        targets: vec![Target::Dioxide],
        block_sizes: vec![2048],
        verify: false,
        ..on_given(&image, "/data")
    });
    for row in &report.rows {
        assert!(row.device.starts_with("sim(mapping on "), "{}", row.device);
    }
}

fn on_given(image: &Path, file: &str) -> BenchOptions {
    BenchOptions {
        image: Some(image.into()),
        file: file.into(),
        size_bytes: None,
        ..tiny(Experiment::AioCompletion)
    }
}

#[test]
fn given_image_is_used_as_it_is() {
    let dir = tempfile::tempdir().expect("a directory");
    let image = given_image(dir.path(), &vec![7; SIZE as usize]);
    run(&on_given(&image, "/data"));
    assert!(image.exists());
}

/// The last bytes were taken for a part of a block, and refused when everything before them was overwritten.
#[test]
fn given_file_that_ends_within_a_sector_is_used_up_to_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let image = given_image(dir.path(), &vec![7; SIZE as usize - 100]);
    run(&on_given(&image, "/data"));
}

#[test]
fn given_image_that_does_not_do_is_refused_with_the_reason() {
    let dir = tempfile::tempdir().expect("a directory");
    let image = given_image(dir.path(), &vec![0; SIZE as usize]);
    let refusal = |options: &BenchOptions| {
        let error = dioxide_bench::run(options, &mut ()).expect_err("it must be refused");
        error.to_string()
    };
    assert!(refusal(&on_given(&image, "/nothing")).contains("no /nothing"));
    assert!(refusal(&on_given(&image, "/data")).contains("hole"));
}

#[test]
fn given_file_that_is_too_small_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let image = given_image(dir.path(), &[7; 8192]);
    let options = BenchOptions {
        size_bytes: Some(SIZE),
        ..on_given(&image, "/data")
    };
    let error = dioxide_bench::run(&options, &mut ()).unwrap_err();
    assert!(error.to_string().contains("has 8192 bytes"), "{error}");
}

#[test]
fn progress_goes_up_to_its_total() {
    struct Seen(Vec<(u64, u64)>);
    impl Progress for Seen {
        fn step(&mut self, done: u64, total: u64, _what: &str) {
            self.0.push((done, total));
        }
    }
    let mut seen = Seen(Vec::new());
    dioxide_bench::run(&tiny(Experiment::SimpleReadSweep), &mut seen).expect("a run");
    assert_eq!(seen.0.first(), Some(&(0, 12)));
    assert_eq!(seen.0.last(), Some(&(12, 12)));
    assert!(seen.0.is_sorted());
}

#[test]
fn paths_alone_need_no_image() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("data");
    std::fs::write(&path, vec![0; SIZE as usize]).expect("a file");
    let options = BenchOptions {
        targets: vec![Target::Path(path)],
        scratch: Some("/nonexistent".into()),
        size_bytes: None,
        ..tiny(Experiment::MixedRandrw)
    };
    let report = run(&options);
    assert_eq!(report.rows.len(), 5 * 2);
}

/// What the kernel reached beside the one backend was held against the other, and medians of minutes against each other.
#[test]
fn compare_kernel_divides_round_by_round_what_ran_beside() {
    let script = include_str!("../../../scripts/compare-kernel");
    let (_, code) = script
        .split_once("<<'PYTHON'\n")
        .expect("its end is Python");
    let (code, _) = code.split_once("\nPYTHON\n").expect("an end");
    let dir = tempfile::tempdir().expect("a directory");
    let [rows, goals] = ["rows", "goals"].map(|name| dir.path().join(name));
    let row = |backend, (target, rounds): (&str, [u32; 3])| {
        let mut sorted = rounds;
        sorted.sort_unstable();
        format!(
            "{{\"backend\":\"{backend}\",\"label\":\"one thread\",\"experiment\":\"4k reads\",\"numjobs\":1,\"device\":\"\",\
             \"rw\":\"randread\",\"block_size\":4096,\"target\":\"{target}\",\"iops\":{},\"rounds\":{rounds:?}}}\n",
            sorted[1]
        )
    };
    let [off, on] = ["path:/w/mnt/kernel-off/data", "path:/w/mnt/kernel-on/data"];
    // A target has a row for each way to drive it, of which the better one counts.
    let pread = [
        ("dioxide", [300, 600, 900]),
        ("dioxide", [1, 1, 9000]),
        (off, [100, 300, 300]),
        (on, [90; 3]),
    ];
    let pread = pread.map(|cell| row("pread", cell));
    let mmap = [("dioxide", [800; 3]), (off, [150; 3]), (on, [200; 3])];
    let mmap = mmap.map(|cell| row("mmap", cell));
    std::fs::write(&rows, pread.concat() + &mmap.concat()).expect("rows");
    std::fs::write(&goals, "").expect("goals");
    let told = Command::new("python3")
        .args(["-c", code])
        .args([&rows, &goals])
        .env("NAMES", "raw dioxide kernel-off kernel-on")
        .output()
        .expect("python3");
    assert!(told.status.success(), "{told:?}");
    let told = String::from_utf8_lossy(&told.stdout);
    let best = told.lines().rfind(|line| line.starts_with("one thread"));
    let ratios: Vec<_> = best
        .expect("a line")
        .split_whitespace()
        .rev()
        .take(4)
        .collect();
    assert_eq!(ratios, ["-", "-", "4.00", "3.00"], "{told}");
}
