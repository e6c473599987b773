//! Listing while names come and go.

use super::bed::{Bed, Random, name, set, small};
use crate::inode::Inode;
use std::collections::{BTreeMap, BTreeSet};

/// Lists a directory in steps; between them names come and go. Every name that stays is given once.
fn list_under_change(bed: &mut Bed, dir: &Inode, stay: &[Vec<u8>], seed: u64, changes: usize) {
    let mut random = Random(seed);
    let mut others: BTreeSet<Vec<u8>> = BTreeSet::new();
    let mut given: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
    let (mut cookie, mut number) = (0, seed as usize * 1_000_000);
    let mut step = 0;
    loop {
        let (names, next) = bed.walk(dir, cookie, 1 + random.below(7));
        if names.is_empty() {
            break;
        }
        if step == 0 {
            assert_eq!(names[0], b".");
        }
        for name in names {
            *given.entry(name).or_default() += 1;
        }
        cookie = next;
        step += 1;
        for _ in 0..changes {
            number += 1;
            let name = name(number, 10 + random.below(50));
            bed.add(dir, &name).expect("there is space");
            others.insert(name);
            if random.below(2) == 0 {
                let at = random.below(others.len());
                let gone = others.iter().nth(at).expect("one of them").clone();
                assert!(bed.remove(dir, &gone));
                others.remove(&gone);
            }
        }
    }
    assert_eq!((given[&b"."[..]], given[&b".."[..]]), (1, 1));
    for name in stay {
        assert_eq!(given.get(name), Some(&1), "{}", name.escape_ascii());
    }
    for name in others {
        assert!(bed.remove(dir, &name));
    }
    bed.check(dir, &set(stay));
}

#[test]
fn names_that_stay_are_listed_once_while_the_directory_changes() {
    for features in [
        "dir_index",
        "^dir_index",
        "inline_data",
        "inline_data,^dir_index",
    ] {
        for (seed, count, changes) in [(1, 0, 2), (2, 3, 2), (3, 12, 4), (4, 300, 6), (5, 300, 0)] {
            let mut bed = Bed::new(small().features(features));
            let dir = bed.dir("/d");
            let child = bed.make_dir(&dir, b"child");
            let stay: Vec<Vec<u8>> = (0..count).map(|at| name(at, 8 + at % 20)).collect();
            bed.add_all(&child, &stay).expect("there is space");
            list_under_change(&mut bed, &child, &stay, seed, changes);
            drop(child);
            bed.close();
        }
    }
}

#[test]
fn cookie_of_an_end_or_of_nothing_gives_nothing() {
    for features in ["dir_index", "^dir_index", "inline_data"] {
        let mut bed = Bed::new(small().features(features));
        let dir = bed.dir("/d");
        for count in [0, 3, 200] {
            let names: Vec<Vec<u8>> = (0..count).map(|at| name(at, 20)).collect();
            let missing: Vec<_> = names
                .iter()
                .filter(|n| bed.find(&dir, n).is_none())
                .cloned()
                .collect();
            bed.add_all(&dir, &missing).expect("there is space");
            let (all, end) = bed.walk(&dir, 0, usize::MAX);
            assert_eq!(all.len(), count + 2);
            assert_eq!(&all[..2], [b".".to_vec(), b"..".to_vec()]);
            for cookie in [end, i64::MAX as u64] {
                assert!(bed.walk(&dir, cookie, usize::MAX).0.is_empty());
            }
        }
        drop(dir);
        bed.close();
    }
}
