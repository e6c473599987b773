//! Bits that flip where metadata is: whenever `e2fsck -fn` complains, so does the check.
//!
//! `DIOXIDE_CHECK_FLIPS` sets how many images are tried of each kind. What e2fsck misses and the check
//! finds is counted and not judged here; `damage.rs` has the cases.

use crate::subject::{Subject, e2fsck, modern, plain, report, unsummed};
use dioxide_testkit::one_in;
use std::fs;

/// xorshift: the numbers are printed by what fails.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % end as u64) as usize
    }
}

fn flip_and_compare(subject: &Subject, seed: u64) {
    const SECTOR: usize = 512;
    let count = std::env::var("DIOXIDE_CHECK_FLIPS").map_or(20, |n| n.parse().expect("a number"));
    let good = fs::read(subject.path()).expect("the image");
    let written: Vec<usize> = (0..good.len() / SECTOR)
        .filter(|sector| {
            good[sector * SECTOR..][..SECTOR]
                .iter()
                .any(|byte| *byte != 0)
        })
        .collect();
    let mut random = Random(seed);
    let mut complaints = 0;
    for _ in 0..count {
        let at = written[random.below(written.len())] * SECTOR + random.below(SECTOR);
        let bit = random.below(8);
        subject.write(at as u64, &[good[at] ^ 1 << bit]);
        let (status, text) = e2fsck(subject.path());
        let found = report(subject.path());
        subject.write(at as u64, &[good[at]]);
        complaints += u32::from(status != 0);
        assert!(
            status == 0 || !found.is_clean(),
            "bit {bit} of byte {at:#x}: e2fsck exits with {status}, the check finds nothing:\n{text}"
        );
    }
    assert!(complaints > 0, "no flip hit anything");
}

#[test]
fn flipped_bits_with_checksums_are_found_where_e2fsck_finds_them() {
    flip_and_compare(&modern(), 0x5EED_0001);
}

#[test]
fn flipped_bits_in_indirect_maps_are_found_where_e2fsck_finds_them() {
    flip_and_compare(&plain(), 0x5EED_0002);
}

#[test]
fn flipped_bits_in_extent_trees_are_found_where_e2fsck_finds_them() {
    flip_and_compare(&unsummed(), 0x5EED_0003);
}

/// Overwrites many places at once with noise; what is left is only to be survived.
fn garble(subject: &Subject, seed: u64) {
    let good = fs::read(subject.path()).expect("the image");
    let written: Vec<usize> = (0..good.len() / 512)
        .filter(|sector| good[sector * 512..][..512].iter().any(|byte| *byte != 0))
        .collect();
    let mut random = Random(seed);
    let mut found_something = 0;
    let rounds = 60 / one_in(4);
    for _ in 0..rounds {
        let mut bad = good.clone();
        for _ in 0..random.below(200) + 1 {
            let at = written[random.below(written.len())] * 512 + random.below(512);
            // The superblock mostly stays, so that the rest is reached.
            if !(1024..2048).contains(&at) || random.below(8) == 0 {
                bad[at] = random.below(256) as u8;
            }
        }
        let device = dioxide::block::mem::MemDevice::new(bad.len() as u64);
        dioxide::block::Device::write_at(&device, 0, &bad, Default::default()).expect("room");
        let options = dioxide::check::CheckOptions::default();
        let device = std::sync::Arc::new(device);
        match dioxide::check::check(device, &options, &mut |_| {}) {
            Ok(report) => found_something += u32::from(!report.is_clean()),
            Err(error) => assert!(matches!(error, dioxide::Error::Unsupported(_)), "{error}"),
        }
    }
    assert!(
        found_something as usize > rounds / 2,
        "{found_something} of {rounds}"
    );
}

#[test]
fn noise_over_metadata_gives_findings_and_no_panic() {
    garble(&plain(), 0x5EED_0004);
    garble(&unsummed(), 0x5EED_0005);
    garble(&modern(), 0x5EED_0006);
}
