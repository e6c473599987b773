//! `dioxide crash-test`: exit status, report, replay.

mod support;

use rustix::process::{Pid, Signal};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

fn crash_test(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dioxide"));
    command
        .arg("crash-test")
        .args(args)
        .output()
        .expect("dioxide")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn crash_test_without_bad_states_exits_with_0() {
    let done = crash_test(&["1k", "--workload", "single:0:1", "--states", "50"]);
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    assert!(text(&done.stdout).contains("bad           0"));
}

#[test]
fn crash_test_checks_as_many_states_of_each_workload_as_asked_and_all_with_0() {
    let report = |each: &str| -> serde_json::Value {
        let args = ["1k", "--workload", "single:0:1", "--json", "--states-each"];
        let done = crash_test(&[&args[..], &[each]].concat());
        assert_eq!(done.status.code(), Some(0), "{done:?}");
        serde_json::from_slice(&done.stdout).expect("JSON")
    };
    let (few, all) = (report("4"), report("0"));
    let looked_at = |report: &serde_json::Value| {
        let count = |name: &str| report[name].as_u64().expect("a count");
        [
            count("states") + count("duplicates"),
            count("left_out"),
            count("left_out_in_order"),
        ]
    };
    let [few, all] = [few, all].map(|report| {
        assert_eq!(
            (&report["workloads"], &report["listed"]),
            (&1.into(), &1.into())
        );
        looked_at(&report)
    });
    assert_eq!((few[0], all[1], all[2]), (4, 0, 0));
    assert_eq!(few[0] + few[1], all[0]);
    assert!(few[2] > 0 && few[2] < few[1]);
}

#[test]
fn crash_test_on_a_broken_device_exits_with_1_and_its_state_can_be_replayed() {
    let args = [
        "1k",
        "--workload",
        "single:0:1",
        "--fault",
        "no-flush",
        "--json",
    ];
    let done = crash_test(&args);
    assert_eq!(done.status.code(), Some(1), "{done:?}");
    let report: serde_json::Value = serde_json::from_slice(&done.stdout).expect("JSON");
    let state = report["examples"][0]["replay"]
        .as_str()
        .expect("a description");
    let dir = tempfile::tempdir().expect("directory");
    let image = dir.path().join("image");
    let keep = ["--keep", image.to_str().expect("UTF-8")];
    let replay = |more: &[&str]| crash_test(&[&["--replay", state], more].concat());
    let again = replay(&[&["--fault", "no-flush"], &keep[..]].concat());
    assert_eq!(again.status.code(), Some(1), "{again:?}");
    assert!(text(&again.stdout).contains(state));
    assert!(image.metadata().expect("the image").len() > 0);
}

#[test]
fn crash_test_replays_the_state_of_its_help() {
    let help = text(&crash_test(&["--help"]).stdout);
    let example = help.split("dioxide crash-test --replay ").nth(1);
    let state = example.and_then(|rest| rest.split(' ').next());
    let done = crash_test(&["--replay", state.expect("an example")]);
    assert_eq!(done.status.code(), Some(0), "{done:?}");
}

#[test]
fn crash_test_of_a_broken_engine_exits_with_1() {
    let args = ["1k", "--workload", "reuse", "--fault", "revoke-ignored"];
    let done = crash_test(&args);
    assert_eq!(done.status.code(), Some(1), "{done:?}");
}

#[test]
fn crash_test_tells_how_many_states_the_kernel_saw() {
    dioxide_testkit::need_root!();
    // Each thread has one in a thousand recovered.
    let args = [
        "1k",
        "--workload",
        "random",
        "--states",
        "1000",
        "--jobs",
        "1",
        "--json",
    ];
    let done = crash_test(&args);
    assert_eq!(done.status.code(), Some(0), "{done:?}");
    let report: serde_json::Value = serde_json::from_slice(&done.stdout).expect("JSON");
    let others = report["otherwise"].as_array().expect("a list");
    let kernel = others.iter().find(|one| one[0] == "kernel");
    assert!(
        kernel.is_some_and(|kernel| kernel[1].as_u64() > Some(0)),
        "{report}"
    );
}

#[test]
fn crash_test_that_is_interrupted_reports_what_was_checked() {
    // Beside other tests it may not come to a state soon.
    let mut checked = [2, 10, 40].into_iter().map(states_until_interrupted);
    assert!(checked.any(|states| states > 0), "no state was checked");
}

/// States that were checked in so many seconds.
fn states_until_interrupted(secs: u64) -> u64 {
    let mut running = Command::new(env!("CARGO_BIN_EXE_dioxide"))
        .args(["crash-test", "1k", "--states", "1000000000", "--json"])
        .args(["--workload", "long:1", "--states-each", "0"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("dioxide");
    let pid = Pid::from_child(&running);
    // Its own e2fsck is what may not hear of it, so it is caught at work.
    std::thread::sleep(Duration::from_secs(secs));
    assert!(running.try_wait().expect("a child").is_none());
    rustix::process::kill_process(pid, Signal::INT).expect("it runs");
    let asked = Instant::now();
    let done = running.wait_with_output().expect("dioxide");
    // The workload would take much longer.
    assert!(asked.elapsed() < Duration::from_secs(30));
    assert_eq!(done.status.code(), Some(130), "{done:?}");
    assert!(text(&done.stderr).contains("interrupted"), "{done:?}");
    let report: serde_json::Value = serde_json::from_slice(&done.stdout).expect("JSON");
    assert_eq!(report["bad"], 0, "{report}");
    report["states"].as_u64().expect("a count")
}

// It was ended by the signal itself, and left what it had mounted.
#[test]
fn crash_test_that_is_interrupted_as_it_begins_leaves_no_mount() {
    let dir = tempfile::tempdir().expect("room");
    let mut running = Command::new(env!("CARGO_BIN_EXE_dioxide"))
        .args(["crash-test", "--replay", "1k/fua/single:0:1/0:"])
        .env("TMPDIR", dir.path())
        .stdout(Stdio::null())
        .spawn()
        .expect("dioxide");
    support::tell_to_end(&mut running);
    assert_eq!(running.wait().expect("a child").code(), Some(130));
    assert_eq!(std::fs::read_dir(dir.path()).expect("it").count(), 0);
}

#[test]
fn crash_test_that_cannot_run_exits_with_2() {
    for args in [
        &["nonsense"][..],
        &["--workload", "nonsense"],
        &["--fault", "nonsense"],
        &["--replay", "1k/fua/single:0:1/0:99"],
        &["--replay", "1k"],
        &["--replay", "no-journal/fua/single:30:1/0:"],
        &["no-journal", "--workload", "single:30:1"],
        &["--states", "0"],
    ] {
        let done = crash_test(args);
        assert_eq!(done.status.code(), Some(2), "{args:?}: {done:?}");
        assert!(!done.stderr.is_empty());
    }
}

#[test]
fn crash_test_keeps_the_image_of_the_first_bad_state_of_threads() {
    let kept = tempfile::NamedTempFile::new().expect("room");
    let path = kept.path().to_str().expect("a path in UTF-8");
    let args = ["1k", "--workload", "threads", "--states", "100"];
    let more = ["--fault", "no-flush", "--keep", path];
    let done = crash_test(&[&args[..], &more].concat());
    assert_eq!(done.status.code(), Some(1), "{done:?}");
    assert!(text(&done.stdout).contains("threads:"), "{done:?}");
    let image = std::fs::read(path).expect("it was kept");
    assert_eq!(image.len(), 4 << 20);
}

#[test]
fn crash_test_whose_image_cannot_be_kept_tells_so_and_reports() {
    let args = ["1k", "--workload", "single:0:1", "--states", "30"];
    let args = [&args[..], &["--fault", "no-flush"]].concat();
    let more = ["--json", "--keep", "/no/dir/image"];
    let done = crash_test(&[&args[..], &more].concat());
    assert_eq!(done.status.code(), Some(2), "{done:?}");
    assert!(text(&done.stderr).contains("/no/dir/image"), "{done:?}");
    let report: serde_json::Value = serde_json::from_slice(&done.stdout).expect("JSON");
    let state = report["examples"][0]["replay"].as_str().expect("a state");
    let replay = ["--replay", state, "--fault", "no-flush"];
    let done = crash_test(&[&replay[..], &more].concat());
    assert_eq!(done.status.code(), Some(2), "{done:?}");
    let report: serde_json::Value = serde_json::from_slice(&done.stdout).expect("JSON");
    assert_eq!(report["bad"], 1, "{report}");
}
