//! Directories that grow into an index, through its levels, and to its end.

use super::bed::{Bed, Random, check_by_kernel, name, set, small};
use crate::Error;
use crate::namei::dir::block::Blocks;
use crate::namei::dir::index::Descent;
use dioxide_testkit::{Image, debugfs_query};
use std::collections::BTreeSet;

/// Index blocks on the way to a leaf of `/d`.
fn depth(bed: &Bed) -> usize {
    let dir = bed.dir("/d");
    let blocks = Blocks::new(bed.mount(), &dir).expect("whole blocks");
    let (descent, _) = Descent::to_name(blocks, b"x").expect("the index is intact");
    descent.frames.len()
}

#[test]
fn hundred_thousand_names_added_and_removed_at_random_leave_the_rest() {
    let mut bed = Bed::new(Image::builder());
    let dir = bed.dir("/d");
    let names: Vec<Vec<u8>> = (0..100_000).map(|at| name(at, 12 + at % 20)).collect();
    bed.add_all(&dir, &names).expect("there is space");
    let mut there = set(&names);
    bed.check(&dir, &there);
    assert_eq!(depth(&bed), 2);
    let mut random = Random(1);
    for name in &names {
        if random.below(3) > 0 {
            assert!(bed.remove(&dir, name));
            there.remove(name);
        }
    }
    assert!(!bed.remove(&dir, b"absent"));
    let more: Vec<Vec<u8>> = (200_000..210_000).map(|at| name(at, 40)).collect();
    bed.add_all(&dir, &more).expect("there is space");
    there.extend(more);
    bed.check(&dir, &there);
    let image = bed.close();
    let dump = debugfs_query(image.path(), "htree_dump /d");
    assert!(dump.contains("Indirect levels: 1"), "{}", &dump[..400]);
    check_by_kernel(&image, &there);
}

#[test]
fn emptied_directory_is_empty_and_can_be_filled_again() {
    let mut bed = Bed::new(small());
    let dir = bed.dir("/d");
    let names: Vec<Vec<u8>> = (0..500).map(|at| name(at, 60)).collect();
    for _ in 0..3 {
        bed.add_all(&dir, &names).expect("there is space");
        bed.check(&dir, &set(&names));
        for name in &names {
            assert!(bed.remove(&dir, name));
        }
        bed.check(&dir, &BTreeSet::new());
    }
    bed.close();
}

/// Adds names until the index takes no more. Names of 250 bytes: a leaf of 1 KiB has three.
fn fill(bed: &mut Bed, most: usize) -> (Vec<Vec<u8>>, Option<Error>) {
    let dir = bed.dir("/d");
    let mut names = Vec::new();
    for at in 0..most {
        let name = name(at, 250);
        match bed.add(&dir, &name) {
            Ok(()) => names.push(name),
            Err(error) => return (names, Some(error)),
        }
    }
    (names, None)
}

#[test]
fn full_index_without_large_dir_is_no_space_and_stays_as_it_was() {
    let mut bed = Bed::new(small());
    let (names, error) = fill(&mut bed, 100_000);
    assert!(matches!(error, Some(Error::NoSpace(_))), "{error:?}");
    assert_eq!(depth(&bed), 2);
    let dir = bed.dir("/d");
    let size = dir.i_size();
    // Other leaves may have room, the one that was full has not.
    let failing = name(names.len(), 250);
    for _ in 0..3 {
        let error = bed.add(&dir, &failing).expect_err("it is full");
        assert!(matches!(error, Error::NoSpace(_)), "{error}");
    }
    assert_eq!(dir.i_size(), size);
    bed.check(&dir, &set(&names));
    let image = bed.close();
    check_by_kernel(&image, &set(&names));
}

#[test]
fn index_with_large_dir_gets_a_third_level() {
    let mut bed = Bed::new(small().features("large_dir"));
    let (names, error) = fill(&mut bed, 45_000);
    assert!(error.is_none(), "{error:?}");
    assert_eq!(depth(&bed), 3);
    let dir = bed.dir("/d");
    bed.check(&dir, &set(&names));
    let image = bed.close();
    check_by_kernel(&image, &set(&names));
}

#[test]
fn file_system_without_space_is_no_space_and_the_directory_as_it_was() {
    let mut bed = Bed::new(small().size(3 << 20).features("^has_journal"));
    let (names, error) = fill(&mut bed, 100_000);
    assert!(matches!(error, Some(Error::NoSpace(_))), "{error:?}");
    let dir = bed.dir("/d");
    bed.check(&dir, &set(&names));
    bed.close();
}

#[test]
fn names_of_the_kernel_are_found_and_its_index_is_extended() {
    dioxide_testkit::need_root!();
    let bed = Bed::new(small());
    let image = bed.close();
    let made: Vec<Vec<u8>> = (0..300).map(|at| name(at, 30)).collect();
    image.populate_with_kernel(|root| {
        for (at, name) in made.iter().enumerate() {
            let name = String::from_utf8(name.clone()).expect("letters");
            if at < 150 {
                std::fs::File::create(root.join("d").join(name)).expect("a new file");
            }
        }
    });
    let mut bed = Bed::on(image);
    let dir = bed.dir("/d");
    bed.add_all(&dir, &made[150..]).expect("there is space");
    for name in &made {
        assert!(bed.find(&dir, name).is_some());
    }
    let image = bed.close();
    check_by_kernel(&image, &set(&made));
}

#[test]
fn names_that_come_and_go_at_random_are_those_of_a_model() {
    for features in ["dir_index", "^dir_index", "^metadata_csum"] {
        let mut bed = Bed::new(small().features(features));
        let dir = bed.dir("/d");
        let mut random = Random(7);
        let mut model = BTreeSet::new();
        for round in 0..6000 {
            let name = name(random.below(700), 1 + random.below(3) * 120);
            match model.remove(&name) {
                true => assert!(bed.remove(&dir, &name)),
                false => {
                    bed.add(&dir, &name).expect("there is space");
                    model.insert(name);
                }
            }
            if round % 1500 == 0 {
                bed.check(&dir, &model);
            }
        }
        bed.check(&dir, &model);
        bed.close();
    }
}
