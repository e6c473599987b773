//! The inode's lock, the in-flight count, drain, a region of the extent map, and the journal's gate under the interleavings of
//! a few threads (of the map a region's words; the leaves below them keep the processor's own primitives): all of them where that can be waited for, else those with at most three preemptions (two where a completion is handed to a worker).
//!
//! The modules are the engine's own, taken from its folder and compiled with the primitives of the model checker
//! (`cfg(loom)`) in place of the real ones; the models are at their ends. A crate of its own, because nothing else of the engine has to be
//! compiled so.
#![cfg(test)]
#![allow(dead_code, unused_imports, unreachable_pub)]

#[path = "../../dioxide-journal/src/journal/gate.rs"]
mod gate;
#[path = "../../dioxide/src/map/mod.rs"]
mod map;
#[path = "../../dioxide/src/sync/mod.rs"]
mod sync;

use dioxide::{Error, Result};

/// Which models need which fences: each is run in a process of its own, where these are left out, and must fail.
mod fences {
    use std::process::Command;

    const RWSEM: &str = "sync::rwsem::loom_tests::loom_";
    const INFLIGHT: &str = "sync::inflight::loom_tests::loom_";
    const RECORD: &str = "sync::record::loom_tests::loom_";

    const NEEDED: [(&str, &str, &[&str]); 11] = [
        (
            RWSEM,
            "reader_and_writer_exclude_each_other",
            &["light", "heavy"],
        ),
        (
            RWSEM,
            "two_readers_and_a_writer_exclude_each_other",
            &["light", "heavy"],
        ),
        (
            RWSEM,
            "rebias_between_writers_is_sound",
            &["light", "heavy"],
        ),
        (RWSEM, "try_exclusive_excludes_readers", &["light", "heavy"]),
        (
            RWSEM,
            "several_cuts_beside_a_reader_that_comes_again",
            &["light", "heavy", "SeqCst"],
        ),
        (
            RWSEM,
            "what_is_behind_the_end_is_freed_beside_readers",
            &["light", "heavy"],
        ),
        (
            INFLIGHT,
            "request_counted_before_unlock_is_drained",
            &["light", "heavy"],
        ),
        (
            INFLIGHT,
            "reader_without_the_lock_and_a_truncate_keep_apart",
            &["light", "heavy", "SeqCst"],
        ),
        (
            INFLIGHT,
            "queued_reader_without_the_lock_is_drained",
            &["light", "heavy", "SeqCst"],
        ),
        (
            INFLIGHT,
            "completion_handed_to_a_worker_is_drained",
            &["light", "heavy"],
        ),
        (
            RECORD,
            "reader_sees_all_of_a_change_or_nothing",
            &["Acquire", "Release"],
        ),
    ];

    #[test]
    fn model_fails_without_each_fence_that_it_needs() {
        let this = std::env::current_exe().expect("a path");
        let mut wrong = Vec::new();
        for (module, model, kinds) in NEEDED {
            for kind in kinds {
                let name = format!("{module}{model}");
                let output = Command::new(&this)
                    .args(["--exact", &name])
                    .env("DIOXIDE_MODEL_WITHOUT", kind)
                    .output()
                    .expect("it starts");
                let said = String::from_utf8_lossy(&output.stdout);
                assert!(said.contains("running 1 test"), "{name}: {said}");
                if output.status.success() {
                    wrong.push(format!("{name} without {kind}"));
                }
            }
        }
        assert!(wrong.is_empty(), "these pass: {wrong:#?}");
    }
}
