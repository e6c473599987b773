//! The corpus: a file system of every kind, with a tree of all kinds of files, handed to and fro between the
//! kernel and dioxide.
//!
//! For each kind (`sets`):
//!
//! | Step | What happens | Who judges |
//! |---|---|---|
//! | read | mke2fs makes it, the kernel fills it, dioxide reads it | all that the kernel tells of each file |
//! | change | dioxide changes it | the kernel's walk; e2fsck; dioxide's check |
//! | same | the kernel makes the same changes to a copy | answers and trees are the same |
//! | make | `dioxide mkfs` makes the like | e2fsck; dioxide's check |
//! | fill | dioxide fills it | answers and tree are the kernel's; the kernel's walk; e2fsck |
//! | handback | the kernel changes it, dioxide reads it | all that the kernel tells; dioxide's check |
//!
//! Where this kernel cannot write a kind, dioxide fills it; where it cannot mount it, only e2fsck and dioxide
//! itself judge: the table says so. `DIOXIDE_SOAK=1` runs all kinds, `DIOXIDE_CORPUS=words` those whose name has the
//! words; `scripts/corpus` does both and prints the table.

mod engine;
mod linux;
mod op;
mod run;
mod script;
mod sets;
mod view;

use dioxide_testkit::{need_root, soaks};
use run::{Row, run_set};
use script::{FULL, QUICK};
use sets::{SETS, Set};

fn chosen() -> (Vec<Set>, script::Scale) {
    let sets = SETS.iter().copied();
    if let Ok(words) = std::env::var("DIOXIDE_CORPUS") {
        return (sets.filter(|set| set.name.contains(&words)).collect(), FULL);
    }
    if soaks() {
        return (sets.collect(), FULL);
    }
    let quick = sets.filter(|set| sets::QUICK.contains(&set.name));
    (quick.collect(), QUICK)
}

#[test]
fn trees_handed_to_and_fro_stay_the_same() {
    need_root!();
    rustix::process::umask(rustix::fs::Mode::empty());
    let (sets, scale) = chosen();
    println!("{}", Row::head());
    let mut failures = Vec::new();
    for set in &sets {
        let row = run_set(set, scale);
        println!("{row}");
        failures.extend(row.failures());
    }
    println!("{} kinds, {} disagreements", sets.len(), failures.len());
    assert!(!sets.is_empty(), "no kind was chosen");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
