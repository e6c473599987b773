//! Images that are damaged at random, some that are damaged with care, and one that is huge.
//!
//! Whatever the bytes, opening an image and reading all of it gives an error that names a structure
//! and its place, or data; never a panic, a hang, or memory beyond a bound. Where everything has
//! checksums, the data must moreover be what was there before.
//!
//! The same for writing (`write`): mounted, changed by calls of all kinds, resized, checked, mounted again.
//!
//! A failure prints the seed. `DIOXIDE_SEED=n` runs that one; `DIOXIDE_SOAK=1` runs for ten minutes, and
//! thirty for writing.

#[path = "hostile/crafted.rs"]
mod crafted;
#[path = "hostile/device.rs"]
mod device;
#[path = "hostile/huge.rs"]
mod huge;
#[path = "hostile/mutate.rs"]
mod mutate;
#[path = "hostile/ops.rs"]
mod ops;
#[path = "hostile/read_all.rs"]
mod read_all;
#[path = "hostile/shared.rs"]
mod shared;
#[path = "hostile/subjects.rs"]
mod subjects;
#[path = "hostile/tally.rs"]
mod tally;
#[path = "hostile/write.rs"]
mod write;

use device::Mutant;
use dioxide_testkit::memory::{self, Counting};
use dioxide_testkit::soaks;
use read_all::read_all;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use subjects::Subject;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Most bytes that opening and reading one image may have allocated at once.
const MEMORY_MAX: usize = 64 << 20;
/// How long it may take, on a machine that has much else to do.
const TIME_MAX: Duration = Duration::from_secs(60);

/// `DIOXIDE_FIRST_SEED`, for a long run that goes on where another ended.
fn first_seed() -> u64 {
    let first = std::env::var("DIOXIDE_FIRST_SEED").ok();
    first.and_then(|word| word.parse().ok()).unwrap_or(0)
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

/// The subjects, which several tests damage.
fn subjects() -> &'static [Subject] {
    static SUBJECTS: OnceLock<Vec<Subject>> = OnceLock::new();
    SUBJECTS.get_or_init(subjects::all)
}

/// Does `work` with one seed after the other, a time long; how many those were. Bounds its time and memory.
fn check_until(budget: Duration, work: fn(&Subject, u64)) -> u64 {
    let subjects = subjects();
    let current = Arc::new(AtomicU64::new(u64::MAX));
    watch(&current);
    let (start, mut count) = (Instant::now(), 0);
    let seeds: Box<dyn Iterator<Item = u64>> = match only_seed() {
        Some(seed) => Box::new(std::iter::once(seed)),
        None => Box::new(first_seed()..),
    };
    for seed in seeds.take_while(|_| start.elapsed() < budget) {
        current.store(seed, Ordering::Relaxed);
        check(&subjects[seed as usize % subjects.len()], seed, work);
        count += 1;
    }
    current.store(u64::MAX, Ordering::Relaxed);
    count
}

fn check(subject: &Subject, seed: u64, work: fn(&Subject, u64)) {
    let working = || memory::peak_of(|| work(subject, seed));
    match catch_unwind(AssertUnwindSafe(working)) {
        Ok(peak) => assert!(
            peak <= MEMORY_MAX,
            "seed {seed}: {}: {peak} bytes of memory",
            subject.name
        ),
        Err(panic) => {
            let mutant = Mutant::new(subject, seed);
            eprintln!("seed {seed}: {}: {mutant:?}", subject.name);
            resume_unwind(panic);
        }
    }
}

#[test]
fn images_damaged_at_random_give_errors_or_data() {
    // The intact images first: the bound on memory holds for them, and nothing is wrong with them.
    for subject in subjects() {
        let peak = memory::peak_of(|| read_all(subject, Arc::new(Mutant::intact(subject))));
        assert!(
            peak <= MEMORY_MAX,
            "{}: {peak} bytes of memory",
            subject.name
        );
    }
    let budget = match soaks() {
        true => Duration::from_secs(600),
        false => Duration::from_secs(12),
    };
    let count = check_until(budget, |subject, seed| {
        read_all(subject, Arc::new(Mutant::new(subject, seed)));
    });
    println!("{count} damaged images read");
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
    let rare = rare.iter().filter(|_| soaks());
    for structure in usual.iter().chain(rare) {
        assert!(
            seen.contains_key(structure),
            "no damaged {structure} was found"
        );
    }
}
