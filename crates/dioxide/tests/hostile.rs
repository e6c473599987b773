//! Images that are damaged at random, some that are damaged with care, and one that is huge.
//!
//! Whatever the bytes, opening an image and reading all of it gives an error that names a structure
//! and its place, or data; never a panic, a hang, or memory beyond a bound. Where everything has
//! checksums, the data must moreover be what was there before.
//!
//! A failure prints the seed. `DIOXIDE_SEED=n` runs that one; `DIOXIDE_SOAK=1` runs for ten minutes.

#[path = "hostile/crafted.rs"]
mod crafted;
#[path = "hostile/device.rs"]
mod device;
#[path = "hostile/huge.rs"]
mod huge;
#[path = "hostile/mutate.rs"]
mod mutate;
#[path = "hostile/read_all.rs"]
mod read_all;
#[path = "hostile/subjects.rs"]
mod subjects;

use device::Mutant;
use dioxide_testkit::memory::{self, Counting};
use read_all::read_all;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use subjects::Subject;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Most bytes that opening and reading one image may have allocated at once.
const MEMORY_MAX: usize = 64 << 20;
/// How long it may take.
const TIME_MAX: Duration = Duration::from_secs(20);

fn soak() -> bool {
    std::env::var_os("DIOXIDE_SOAK").is_some()
}

fn only_seed() -> Option<u64> {
    std::env::var("DIOXIDE_SEED").ok()?.parse().ok()
}

/// Ends the process when one image takes too long: a hang cannot be caught otherwise.
fn watch(seed: &Arc<AtomicU64>) {
    let seed = seed.clone();
    std::thread::spawn(move || {
        let (mut last, mut since) = (u64::MAX, Instant::now());
        loop {
            std::thread::sleep(Duration::from_millis(200));
            let now = seed.load(Ordering::Relaxed);
            if now != last {
                (last, since) = (now, Instant::now());
            } else if since.elapsed() > TIME_MAX && now != u64::MAX {
                eprintln!("seed {now} takes longer than {TIME_MAX:?}");
                std::process::exit(101);
            }
        }
    });
}

fn check(subject: &Subject, seed: u64) {
    let mutant = Arc::new(Mutant::new(subject, seed));
    let reading = || memory::peak_of(|| read_all(subject, mutant.clone()));
    match catch_unwind(AssertUnwindSafe(reading)) {
        Ok(peak) => assert!(
            peak <= MEMORY_MAX,
            "seed {seed}: {mutant:?}: {peak} bytes of memory"
        ),
        Err(panic) => {
            eprintln!("seed {seed}: {}: {mutant:?}", subject.name);
            resume_unwind(panic);
        }
    }
}

#[test]
fn images_damaged_at_random_give_errors_or_data() {
    let subjects = subjects::all();
    let current = Arc::new(AtomicU64::new(u64::MAX));
    watch(&current);
    let budget = if soak() {
        Duration::from_secs(600)
    } else {
        Duration::from_secs(12)
    };
    let (start, mut count) = (Instant::now(), 0);
    // The intact images first: the bound on memory holds for them, and nothing is wrong with them.
    for subject in &subjects {
        let peak = memory::peak_of(|| read_all(subject, Arc::new(Mutant::intact(subject))));
        assert!(
            peak <= MEMORY_MAX,
            "{}: {peak} bytes of memory",
            subject.name
        );
    }
    let seeds: Box<dyn Iterator<Item = u64>> = match only_seed() {
        Some(seed) => Box::new(std::iter::once(seed)),
        None => Box::new(0..),
    };
    for seed in seeds.take_while(|_| start.elapsed() < budget) {
        current.store(seed, Ordering::Relaxed);
        check(&subjects[seed as usize % subjects.len()], seed);
        count += 1;
    }
    current.store(u64::MAX, Ordering::Relaxed);
    println!("{count} damaged images in {:?}", start.elapsed());
    assert!(
        count >= 100 || only_seed().is_some(),
        "only {count} images were tried"
    );
    if only_seed().is_none() {
        assert_reached();
    }
}

/// Damage that is never found was perhaps never done.
fn assert_reached() {
    let seen = read_all::SEEN.lock().expect("no panic while it is held");
    println!("found: {seen:?}");
    let usual = [
        "inode",
        "extent node",
        "indirect block",
        "block map",
        "directory entry",
        "directory block",
        "xattr",
    ];
    // These take some thousand images.
    let rare = [
        "superblock",
        "group descriptor",
        "directory",
        "xattr block",
        "inline data",
        "symlink",
    ];
    let rare = rare.iter().filter(|_| soak());
    for structure in usual.iter().chain(rare) {
        assert!(
            seen.contains_key(structure),
            "no damaged {structure} was found"
        );
    }
}
