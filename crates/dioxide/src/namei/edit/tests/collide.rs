//! Names of equal hash.

use super::bed::{Bed, check_by_kernel, name, set, small};
use crate::namei::dir::block::Blocks;
use crate::namei::dir::index::Descent;
use dioxide_format::htree;

/// How many leaves go on with names of the hash of the leaf before.
fn continued(bed: &Bed) -> usize {
    let dir = bed.dir("/d");
    let blocks = Blocks::new(bed.mount(), &dir).expect("whole blocks");
    let mut descent = Descent::open(blocks).expect("the index is intact");
    descent.seek(0).expect("the index is intact");
    let mut count = 0;
    loop {
        let next = descent.next_hash().expect("the index is intact");
        count += usize::from(next.is_some_and(|hash| hash & 1 != 0));
        if !descent.advance().expect("the index is intact") {
            return count;
        }
    }
}

#[test]
fn names_of_equal_hash_on_both_sides_of_a_boundary_are_found_and_listed() {
    let mut bed = Bed::new(small());
    let dir = bed.dir("/d");
    let version = bed.mount().default_hash().expect("half_md4");
    let seed = bed.mount().sb.hash_seed();
    // Names of 200 bytes, so that a leaf has four, and is divided between the second and the third.
    let mut hashed: Vec<(u32, usize)> = (0..250_000)
        .map(|at| (htree::hash(&name(at, 200), version, seed).major, at))
        .collect();
    hashed.sort_unstable();
    let pairs: Vec<usize> = (3..hashed.len() - 3)
        .filter(|&at| hashed[at].0 == hashed[at + 1].0)
        .collect();
    assert!(pairs.len() >= 3, "the hash was not as it is");
    let mut names: Vec<Vec<u8>> = Vec::new();
    for &pair in &pairs {
        // The pair, and its neighbours: they come to lie in one leaf.
        names.extend((pair - 3..pair + 5).map(|at| name(hashed[at].1, 200)));
    }
    bed.add_all(&dir, &names).expect("there is space");
    assert!(continued(&bed) > 0, "none was divided");
    bed.check(&dir, &set(&names));
    // In steps of one, each comes once.
    let (mut cookie, mut listed) = (0, Vec::new());
    loop {
        let (mut step, next) = bed.walk(&dir, cookie, 1);
        let Some(name) = step.pop() else { break };
        listed.push(name);
        cookie = next;
    }
    assert_eq!(listed.len(), names.len() + 2);
    assert_eq!(set(&listed[2..]), set(&names));
    for name in names.iter().step_by(2) {
        assert!(bed.remove(&dir, name));
    }
    let rest: Vec<Vec<u8>> = names.iter().skip(1).step_by(2).cloned().collect();
    bed.check(&dir, &set(&rest));
    drop(dir);
    let image = bed.close();
    check_by_kernel(&image, &set(&rest));
}
