//! A replay that is cut short.

use super::a_little_of_everything;
use super::area::{crashed, loaded, records, unloaded};
use super::walk::{Tree, assert_same, by_dioxide};
use dioxide::block::record::RecordDevice;
use dioxide::{Fs, MountOptions};
use dioxide_testkit::{e2fsck_clean, need_root, one_in};
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
