//! A replay that is cut short.

use super::a_little_of_everything;
use super::area::{crashed, fixed, loaded, records, replayed, unloaded};
use super::walk::{Tree, assert_same, by_dioxide};
use dioxide::block::mem::MemDevice;
use dioxide::block::record::{Action, Log, RecordDevice};
use dioxide::block::sim::{Fault, FaultKind, FaultOp, SimDevice, SimSpec};
use dioxide::{Fs, MountOptions, OpenOptions};
use dioxide_testkit::{Image, Mount, e2fsck_clean, e2fsck_consistent, need_root, one_in};
use std::fs;
use std::sync::Arc;

/// Directories without the time at which a replay changed them.
fn timeless(mut tree: Tree) -> Tree {
    for record in tree.values_mut().filter(|record| record.mode >> 12 == 4) {
        record.times = Default::default();
    }
    tree
}

#[test]
fn replay_cut_after_any_write_is_finished_by_the_next_open() {
    need_root!();
    let (before, during) = a_little_of_everything();
    let image = crashed("", before, during);
    let (commits, _) = records(&image);
    assert!(commits > 0);
    let bytes = fs::read(image.path()).expect("the image");
    let recorder = Arc::new(RecordDevice::new(loaded(&bytes)));
    let whole = Fs::open_device(recorder.clone(), &MountOptions::new()).expect("it opens");
    assert_eq!(whole.read_only(), None, "{:?}", whole.warnings());
    let expected = timeless(by_dioxide(&whole));
    drop(whole);
    let log = recorder.take_log();
    let writes = log.entries().len();
    println!("{writes} writes and flushes");
    for done in (0..=writes).step_by(one_in(3)) {
        let device = loaded(&bytes);
        for entry in &log.entries()[..done] {
            entry.apply(&*device).expect("a write");
        }
        let fs = Fs::open_device(device.clone(), &MountOptions::new()).expect("it opens");
        let said = fs.warnings().join("\n");
        assert_eq!(fs.read_only(), None, "cut after {done}: {said}");
        assert_same(&expected, &timeless(by_dioxide(&fs)));
        fs.close().expect("a clean end");
        fs::write(image.path(), unloaded(&*device)).expect("room");
        e2fsck_clean(image.path());
    }
}

/// What stays of a device that was like this, with what was written and never flushed, or without.
fn left(bytes: &[u8], log: &Log, with_unflushed: bool) -> Arc<MemDevice> {
    let device = loaded(bytes);
    for epoch in log.epochs() {
        for entry in epoch.changes {
            let is_fua = matches!(entry.action, Action::Write { fua: true, .. });
            let stays = with_unflushed || epoch.flush.is_some() || is_fua;
            if stays && entry.completed.is_some() {
                entry.apply(&*device).expect("a write");
            }
        }
    }
    device
}

/// After a request that fails the fast commits are still there, or what they ask for.
#[test]
fn replay_in_which_a_request_fails_is_made_by_the_next_open() {
    need_root!();
    let (before, during) = a_little_of_everything();
    let image = crashed("", before, during);
    let bytes = fs::read(image.path()).expect("the image");
    let whole = Fs::open_device(loaded(&bytes), &MountOptions::new()).expect("it opens");
    let expected = timeless(by_dioxide(&whole));
    drop(whole);
    let mut failed = 0;
    for op in [FaultOp::Write, FaultOp::Flush] {
        for skip in 0.. {
            let sim = SimDevice::new(loaded(&bytes), SimSpec::default());
            let fault = Fault {
                skip,
                ..Fault::once(op, FaultKind::Io(libc::EIO))
            };
            let fault = sim.inject(fault);
            let recorder = Arc::new(RecordDevice::new(Arc::new(sim.clone())));
            let opened = Fs::open_device(recorder.clone(), &MountOptions::new());
            let is_met = sim.hits(fault) == Some(1);
            assert_eq!(opened.is_err(), is_met, "{op:?} {skip}");
            drop(opened);
            if !is_met {
                break;
            }
            failed += 1;
            let log = recorder.take_log();
            for with_unflushed in [false, true] {
                let device = left(&bytes, &log, with_unflushed);
                let fs = Fs::open_device(device.clone(), &MountOptions::new()).expect("it opens");
                let said = fs.warnings().join("\n");
                assert_eq!(fs.read_only(), None, "{op:?} {skip}: {said}");
                assert_same(&expected, &timeless(by_dioxide(&fs)));
                fs.close().expect("a clean end");
                fs::write(image.path(), unloaded(&*device)).expect("room");
                // A failure that aborted the journal is recorded.
                e2fsck_consistent(image.path());
            }
        }
    }
    println!("{failed} requests failed");
    assert!(failed > 10);
}

/// What is synced after a replay is in a log without fast commits: with their mark, `e2fsck` would not replay it.
#[test]
fn what_follows_a_replay_is_replayed_by_everybody() {
    need_root!();
    let (before, during) = a_little_of_everything();
    let image = crashed("", before, during);
    let (commits, _) = records(&image);
    let fs = replayed(&image, commits);
    let options = OpenOptions::new().write(true).create(true);
    let file = options.open(&fs, "/later").expect("a file");
    file.write_at(&[5; 9000], 0).expect("room");
    file.sync_all().expect("a sync");
    let left = image.copy();
    drop((file, fs));
    let has_later = |image: &Image| {
        let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
        let mut bytes = vec![0; 9000];
        let file = OpenOptions::new().read(true).open(&fs, "/later");
        file.expect("it is there")
            .read_at(&mut bytes, 0)
            .expect("it reads");
        assert!(bytes == [5; 9000]);
        fs.close().expect("a clean end");
        e2fsck_clean(image.path());
    };
    has_later(&left.copy());
    let by_e2fsck = left.copy();
    fixed(&by_e2fsck);
    has_later(&by_e2fsck);
    let mount = Mount::ext4(left.path(), "");
    let read = fs::read(mount.path().join("later")).expect("it is there");
    assert!(read == [5; 9000]);
    mount.unmount();
    e2fsck_clean(left.path());
}
