//! Blocks of entries in memory.

use crate::namei::edit::put;
use crate::namei::edit::split::{divide, packed};
use dioxide_format::dir::{self, DirEntry, DirFormat};
use dioxide_format::types::Ino;

fn format(block_size: u32, checksum: bool) -> DirFormat {
    DirFormat {
        block_size,
        filetype: true,
        checksum,
        max_ino: 1000,
        large_dir: false,
        encrypted: false,
    }
}

/// A block without names.
fn empty(format: &DirFormat) -> Vec<u8> {
    let mut block = vec![0; format.block_size as usize];
    dir::fill(&mut block, format, []).expect("a whole block");
    if format.checksum {
        dir::update_checksum(&mut block, 7).expect("a whole block");
    }
    block
}

fn names(block: &[u8], format: &DirFormat) -> Vec<(u32, Vec<u8>)> {
    let entries = dir::entries(block, format).map(|entry| entry.expect("a whole chain"));
    entries.map(|e| (e.ino.0, e.name.to_vec())).collect()
}

fn new(name: &[u8], ino: u32) -> DirEntry<'_> {
    DirEntry {
        offset: 0,
        rec_len: 0,
        ino: Ino(ino),
        file_type: None,
        type_byte: 1,
        name,
    }
}

fn take(chain: &mut [u8], format: &DirFormat, name: &[u8]) -> bool {
    let found = dir::find(chain, format, name).expect("a whole chain");
    if let Some(found) = &found {
        dir::remove(chain, found).expect("it was found here");
    }
    found.is_some()
}

#[test]
fn block_filled_and_emptied_in_any_order_holds_what_was_put() {
    for (size, checksum) in [(1024, false), (1024, true), (65536, false), (65536, true)] {
        let format = format(size, checksum);
        let room = dir::room(&format);
        let mut block = empty(&format);
        let mut held = Vec::new();
        let mut number = 11u32;
        for round in 0..2000u32 {
            let name = vec![b'a' + (round % 26) as u8; 1 + (round * 7 % 40) as usize];
            number = number * 31 % 997;
            let is_there = held.iter().position(|(_, other)| *other == name);
            let chain = &mut block[..room];
            if let Some(at) = is_there {
                assert!(take(chain, &format, &name));
                held.remove(at);
            } else if put(chain, &format, &new(&name, number)).expect("a whole chain") {
                held.push((number, name));
            }
            let mut found = names(&block, &format);
            found.sort();
            held.sort();
            assert_eq!(found, held, "round {round}");
        }
        assert!(held.len() > 5);
        dir::validate(&block[..room], &format).expect("a whole chain");
        if checksum {
            dir::tail(&block).expect("the tail was left alone");
        }
    }
}

#[test]
fn name_that_fits_no_gap_leaves_the_block_as_it_was() {
    let format = format(1024, true);
    let room = dir::room(&format);
    let mut block = empty(&format);
    let long = vec![b'x'; 250];
    for at in 0..3 {
        let name = [&long[..], &[b'0' + at]].concat();
        assert_eq!(put(&mut block[..room], &format, &new(&name, 5)), Ok(true));
    }
    let before = block.clone();
    assert_eq!(put(&mut block[..room], &format, &new(&long, 5)), Ok(false));
    assert!(!take(&mut block[..room], &format, b"absent"));
    assert_eq!(block, before);
}

#[test]
fn removed_name_is_wiped() {
    let format = format(1024, true);
    let room = dir::room(&format);
    let mut block = empty(&format);
    for name in [&b"secret-one"[..], b"secret-two"] {
        assert_eq!(put(&mut block[..room], &format, &new(name, 5)), Ok(true));
    }
    assert!(take(&mut block[..room], &format, b"secret-two"));
    assert!(take(&mut block[..room], &format, b"secret-one"));
    assert!(!block.windows(6).any(|bytes| bytes == b"secret"));
}

#[test]
fn divided_names_are_all_there_below_and_above_the_boundary() {
    let format = format(1024, true);
    let lens = [250, 1, 250, 30, 250, 200, 12, 255];
    let mut tried = 0;
    for count in 2..=lens.len() {
        let texts: Vec<Vec<u8>> = (0..count)
            .map(|at| vec![b'a' + at as u8; lens[at]])
            .collect();
        let total: usize = texts.iter().map(|t| dir::min_rec_len(t.len())).sum();
        if !(1013..=1012 + 264).contains(&total) {
            continue;
        }
        tried += 1;
        let hash = |name: &[u8]| u32::from(name[0]) * 77 % 50 * 2;
        let entries = texts.iter().map(|text| new(text, 9)).collect();
        let halves = divide(entries, &format, hash).expect("they fit");
        let room = dir::room(&format);
        let (low, high) = (&halves.low[..room], &halves.high[..room]);
        let (low, high) = (names(low, &format), names(high, &format));
        assert!(!low.is_empty() && !high.is_empty());
        assert_eq!(low.len() + high.len(), count);
        assert!(low.iter().all(|(_, name)| hash(name) < halves.boundary));
        assert!(high.iter().all(|(_, name)| hash(name) >= halves.boundary));
    }
    assert!(tried > 0);
}

#[test]
fn names_that_fit_together_are_packed_and_others_are_not() {
    let format = format(1024, true);
    let texts: Vec<Vec<u8>> = (0..8).map(|at| vec![b'a' + at; 118]).collect();
    let entries: Vec<DirEntry<'_>> = texts.iter().map(|text| new(text, 9)).collect();
    // 128 bytes each, of 1,012.
    assert_eq!(packed(&entries, &format), Ok(None));
    let block = packed(&entries[..7], &format)
        .expect("they fit")
        .expect("they fit");
    assert_eq!(names(&block[..1012], &format).len(), 7);
}

#[test]
fn names_of_one_hash_on_both_sides_are_said_to_go_on() {
    let format = format(1024, false);
    let texts: Vec<Vec<u8>> = (0..6).map(|at| vec![b'a' + at; 150]).collect();
    let entries = || texts.iter().map(|text| new(text, 9)).collect();
    let halves = divide(entries(), &format, |_| 500).expect("they fit");
    assert_eq!(halves.boundary, 501);
    let halves = divide(entries(), &format, |name| u32::from(name[0] >= b'd') * 500);
    assert_eq!(halves.expect("they fit").boundary, 500);
}
