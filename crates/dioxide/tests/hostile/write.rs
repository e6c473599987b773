//! Damaged images through the paths that write: mounted, changed by all kinds of calls, resized, checked.

use crate::device::Mutant;
use crate::mutate::Rng;
use crate::ops::Session;
use crate::subjects::Subject;
use crate::{TIME_MAX, check_until, only_seed};
use dioxide::block::mem::MemDevice;
use dioxide::block::{Device, Durability};
use dioxide::check::{CheckOptions, check};
use dioxide::resize::{ResizeOptions, resize_on};
use dioxide::{Fs, MountOptions};
use dioxide_testkit::soaks;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

/// Memory for what the check has in use.
const CHECK_MEMORY: u64 = 32 << 20;

/// The damaged image, which can be written.
fn device(mutant: &Mutant) -> Arc<MemDevice> {
    let size = mutant.geometry().size_bytes;
    let device = MemDevice::new(size);
    let mut buf = vec![0; 1 << 20];
    for at in (0..size).step_by(buf.len()) {
        let part = &mut buf[..(size - at).min(1 << 20) as usize];
        mutant.read_at(at, part).expect("inside");
        device
            .write_at(at, part, Durability::Cached)
            .expect("inside");
    }
    Arc::new(device)
}

/// How often each kind of session came to pass.
static SEEN: Mutex<BTreeMap<&'static str, u64>> = Mutex::new(BTreeMap::new());

fn note(what: &'static str, count: u64) {
    *SEEN
        .lock()
        .expect("no panic while it is held")
        .entry(what)
        .or_default() += count;
}

/// Mounts a damaged image for writing and uses it.
fn use_of(subject: &Subject, seed: u64) {
    // Another stream than that of the damage.
    let mut rng = Rng::new(seed ^ 0x5EED_0000_0000);
    let device = device(&Mutant::new(subject, seed));
    if rng.below(8) == 0 {
        resize(&device, &mut rng);
    }
    for _ in 0..2 {
        session(subject, &device, &mut rng);
    }
    let options = CheckOptions {
        max_memory: CHECK_MEMORY,
        ..CheckOptions::default()
    };
    let _ = check(device, &options, &mut |_| {});
}

fn resize(device: &Arc<MemDevice>, rng: &mut Rng) {
    let blocks = device.geometry().size_bytes / 1024;
    let device: Arc<dyn Device> = device.clone();
    let (blocks, options) = (rng.below(blocks + blocks / 8), ResizeOptions::default());
    match resize_on(&device, blocks, &options, &mut |_, _, _| ()) {
        Ok(_) => note("resized", 1),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

fn session(subject: &Subject, device: &Arc<MemDevice>, rng: &mut Rng) {
    let options = MountOptions::new();
    let fs = match Fs::open_device(device.clone(), &options) {
        Ok(fs) => fs,
        Err(error) => {
            note("refused", 1);
            return assert!(!error.to_string().is_empty());
        }
    };
    note(
        match fs.read_only() {
            Some(_) => "read-only",
            None => "written",
        },
        1,
    );
    let steps = rng.below(80);
    let mut numbers = |end| rng.below(end);
    let mut session = Session::new(&fs, subject.checksummed, &mut numbers);
    for _ in 0..steps {
        session.step();
    }
    note("calls that succeeded", session.done);
    drop(session);
    match fs.close() {
        Ok(()) => note("closed", 1),
        Err(error) => {
            note("closed with an error", 1);
            assert!(!error.to_string().is_empty());
        }
    }
}

#[test]
fn images_damaged_at_random_are_changed_or_refused() {
    let budget = match soaks() {
        true => Duration::from_secs(1800),
        false => Duration::from_secs(6),
    };
    let count = check_until(budget, use_of);
    let seen = SEEN.lock().expect("no panic while it is held");
    println!("{count} damaged images changed, none for {TIME_MAX:?}: {seen:?}");
    if only_seed().is_none() {
        for what in ["refused", "read-only", "written", "resized", "closed"] {
            assert!(seen.contains_key(what), "none was {what}");
        }
        assert!(
            seen["calls that succeeded"] > count,
            "hardly a call succeeded"
        );
    }
}
