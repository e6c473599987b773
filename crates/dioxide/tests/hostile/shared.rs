//! A check of a small image with a map that leads to the same blocks over and over.

use super::{MEMORY_MAX, TIME_MAX};
use dioxide::check::{CheckOptions, Code, Finding, check_path};
use dioxide::format::extent::{self, Extent, ExtentEntries, ExtentIndex, ExtentNode};
use dioxide::format::types::{Lblk, Pblk};
use dioxide_testkit::{Image, debugfs, memory};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Instant;

const BLOCK: u64 = 4096;
const LEAVES: u64 = 20;
/// Where the leaves are, and what all extents lead to: free blocks of other groups than the first.
const NODES: u64 = 40_000;
const DATA: u64 = 70_000;

fn node(depth: u16, entries: ExtentEntries, most: u16, bytes: &mut [u8]) {
    let node = ExtentNode::new(most, depth, entries);
    node.encode_into(bytes).expect("it fits");
}

/// A file of as many extents as `LEAVES` leaves and a node above them hold, each of as many blocks as an extent may
/// have, all of them the same.
fn image() -> Image {
    let features = "^metadata_csum,^has_journal,^resize_inode,sparse_super2";
    let image = Image::builder().size(512 << 20).block_size(BLOCK as u32);
    let image = image.features(features).extended("num_backup_sb=0").build();
    debugfs(image.path(), &["write /dev/null f"]);
    let most = extent::max_entries(BLOCK as u32);
    let file = File::options().write(true).open(image.path());
    let file = file.expect("the image");
    let put = |block: u64, depth, entries| {
        let mut bytes = vec![0; BLOCK as usize];
        node(depth, entries, most, &mut bytes);
        file.write_all_at(&bytes, block * BLOCK).expect("a write");
    };
    let mut lblk = 0;
    let mut leaf = || {
        let extents = (0..most).map(|_| {
            lblk += u32::from(extent::MAX_LEN);
            Extent {
                lblk: Lblk(lblk - u32::from(extent::MAX_LEN)),
                len: extent::MAX_LEN,
                unwritten: false,
                pblk: Pblk(DATA),
            }
        });
        extents.collect::<Vec<_>>()
    };
    let mut indices = Vec::new();
    for number in 1..=LEAVES {
        let extents = leaf();
        indices.push(ExtentIndex::new(extents[0].lblk, Pblk(NODES + number)));
        put(NODES + number, 0, ExtentEntries::Leaf(extents));
    }
    put(NODES, 1, ExtentEntries::Index(indices));
    let mut root = [0; 60];
    let above = vec![ExtentIndex::new(Lblk(0), Pblk(NODES))];
    node(2, ExtentEntries::Index(above), 4, &mut root);
    let mut requests = Vec::new();
    for (index, word) in root[..48].chunks_exact(4).enumerate() {
        let word = u32::from_le_bytes(word.try_into().expect("four bytes"));
        requests.push(format!("sif f block[{index}] {word}"));
    }
    debugfs(image.path(), &requests);
    image
}

#[test]
fn check_of_a_map_to_the_same_blocks_is_bounded_in_memory_and_time() {
    let image = image();
    let start = Instant::now();
    let mut found = None;
    let options = CheckOptions::default();
    let peak = memory::peak_of(|| {
        found = Some(check_path(image.path(), &options, &mut |_| {}).expect("a report"));
    });
    let took = start.elapsed();
    println!("{peak} bytes of memory, {took:?}");
    assert!(peak <= MEMORY_MAX, "{peak} bytes of memory");
    assert!(took <= TIME_MAX, "{took:?}");
    let found = found.expect("a report").findings;
    let shared = found.iter().find(|f| f.code == Code::MultiplyClaimed);
    let shared = shared.unwrap_or_else(|| panic!("{found:#?}")).to_string();
    let end = DATA + u64::from(extent::MAX_LEN) - 1;
    let says = format!("blocks {DATA} to {end} are claimed by inode 12 twice");
    assert!(shared.contains(&says), "{shared}");
    // Directories are read all the same.
    let left_out = |f: &&Finding| f.code == Code::NotChecked && f.place.ino.is_some();
    assert_eq!(found.iter().find(left_out), None);
}
