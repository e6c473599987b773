//! The plan, and all of it on small images. Needs mke2fs, debugfs and e2fsck.

use super::*;
use std::path::PathBuf;
use std::process::Command;

const RUNS: [Run; 2] = [
    Run {
        file: 0,
        device: 8 * MIB,
        len: MIB + 4096,
    },
    Run {
        file: MIB + 4096,
        device: 32 * MIB,
        len: 3 * MIB - 4096,
    },
];

#[test]
fn ascending_files_have_no_gap_where_raw_leaves_out_what_is_torn() {
    let order = ascending(&RUNS, 4 * MIB, MIB as u32, 1).unwrap();
    assert_eq!(*order.file, [0, MIB, 2 * MIB]);
    assert_eq!(order.device[1], 33 * MIB - 4096);
    assert_eq!(order.device.len(), 3);
}

#[test]
fn files_of_their_own_begin_at_zero_and_raw_has_a_place_for_each() {
    let order = ascending(&RUNS, 8192, 4096, 8).unwrap();
    assert_eq!(order.file[..4], [0, 4096, 0, 4096]);
    let mut places = order.device.to_vec();
    places.dedup();
    assert_eq!(places.len(), 16);
    assert!(ascending(&RUNS, 8192, 4 * MIB as u32, 8).is_err());
}

#[test]
fn work_of_a_hole_covers_every_block_once() {
    let works = Works::new(4 * MIB, &RUNS, 1).unwrap();
    let mut blocks = works.hole[0].order.file.to_vec();
    assert_eq!(works.hole[0].hole, 4 * MIB);
    blocks.sort_unstable();
    assert!(blocks.iter().copied().eq((0..1024).map(|n| n * 4096)));
    assert_eq!(works.append.order.file.len(), 256);
    assert_eq!(works.fsync[1].order.file.len(), 8 * 16);
}

fn tiny() -> BenchOptions {
    BenchOptions {
        experiments: vec![Experiment::Grow],
        runs: Some(1),
        size_bytes: Some(4 * MIB),
        quick: true,
        ..BenchOptions::default()
    }
}

fn sound(options: &BenchOptions) -> Report {
    let report = crate::run(options, &mut ()).expect("the run is set up");
    let damage: Vec<_> = report.failures().filter(|check| check.damage).collect();
    assert!(damage.is_empty(), "{damage:#?}");
    report
}

/// Rows of each experiment, by target.
fn count(report: &Report, experiment: &str, target: &str) -> usize {
    let is = |row: &&Row| row.experiment == experiment && row.target.starts_with(target);
    report.rows.iter().filter(is).count()
}

#[test]
fn made_image_in_memory_gives_every_row_for_pread_and_mapping_and_stays_clean() {
    let report = sound(&tiny());
    // Hole and fsync with one thread and with more; fsync once more on the slow device.
    for (experiment, per_backend) in [
        ("grow-hole", 2),
        ("grow-append", 1),
        ("grow-extend", 1),
        ("grow-fsync", 4),
    ] {
        for target in ["raw", "dioxide"] {
            assert_eq!(count(&report, experiment, target), 2 * per_backend);
        }
    }
    for row in &report.rows {
        assert!(row.iops > 0.0 && row.lat_us.mean > 0.0);
        assert!(row.ratio_to_raw.is_some());
        let synced = row.experiment == "grow-fsync" && row.target == "dioxide";
        let commits = row.stats.map_or(0, |stats| stats.journal_commits);
        assert!(commits > 0 || !synced, "{row:?}");
    }
    let of = |what: &str| {
        let named = |check: &&Check| check.what.starts_with(what);
        report.checks.iter().filter(named).count()
    };
    assert_eq!((of("extending"), of("fdatasync"), of("e2fsck")), (2, 2, 1));
}

/// An image with files, and their directory.
fn given_image(names: &[&str]) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a directory");
    let (tree, image) = (dir.path().join("tree"), dir.path().join("image"));
    std::fs::create_dir_all(tree.join("sub")).expect("a directory");
    for name in names {
        std::fs::write(tree.join("sub").join(name), vec![7; 4 << 20]).expect("room");
    }
    let mut mke2fs = Command::new("mke2fs");
    mke2fs.env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin");
    mke2fs.args(["-q", "-F", "-t", "ext4", "-b", "4096", "-d"]);
    let made = mke2fs.args([&tree, &image]).arg("96M").status();
    assert!(made.expect("mke2fs").success());
    (dir, image)
}

#[test]
fn given_image_and_path_are_used_as_named_and_left_empty() {
    let (dir, image) = given_image(&[&["bench"][..], &FILES].concat());
    let beside = dir.path().join("bench");
    let options = BenchOptions {
        image: Some(image.clone()),
        file: "/sub/bench".into(),
        backend: Backend::Pread,
        device: DeviceChoice::Image,
        targets: vec![Target::Dioxide, Target::Path(beside)],
        ..tiny()
    };
    let report = sound(&options);
    assert_eq!(
        (
            count(&report, "grow-fsync", "dioxide"),
            count(&report, "grow-fsync", "path:")
        ),
        (2, 2)
    );
    for name in FILES {
        assert_eq!(
            std::fs::metadata(dir.path().join(name))
                .expect("made")
                .len(),
            0
        );
    }
    let fs = dioxide::Fs::open(&image, &dioxide::MountOptions::new()).expect("sound");
    assert!(fs.warnings().is_empty(), "{:?}", fs.warnings());
    let len = |name: &str| fs.metadata(format!("/sub/{name}")).expect("there").size;
    assert_eq!(
        (len("bench"), len("grow.data"), len("grow.7")),
        (4 * MIB, 0, 0)
    );
}

#[test]
fn image_without_the_files_and_device_without_data_are_refused_with_the_reason() {
    let (_dir, image) = given_image(&["bench"]);
    let options = BenchOptions {
        image: Some(image),
        file: "/sub/bench".into(),
        ..tiny()
    };
    let error = crate::run(&options, &mut ()).unwrap_err().to_string();
    assert!(
        error.contains("/sub/grow.data") && error.contains("grow.7"),
        "{error}"
    );
    let null = BenchOptions {
        device: DeviceChoice::Null,
        ..tiny()
    };
    let error = crate::run(&null, &mut ()).unwrap_err().to_string();
    assert!(error.contains("'null'"), "{error}");
}

#[test]
fn paths_alone_need_no_image() {
    let dir = tempfile::tempdir().expect("a directory");
    let options = BenchOptions {
        targets: vec![Target::Path(dir.path().join("bench"))],
        scratch: Some("/nonexistent".into()),
        ..tiny()
    };
    let report = sound(&options);
    assert_eq!(report.rows.len(), 6);
    assert!(report.rows.iter().all(|row| row.ratio_to_raw.is_none()));
}
