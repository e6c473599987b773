//! Images that were damaged on purpose, mounted: whatever they say, the server neither dies nor hangs.

use crate::bed::{Bed, dioxide, patiently};
use crate::need_fuse;
use dioxide_testkit::{Image, one_in, pattern};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Bytes that are changed lie before this, where the metadata of a small image is.
const METADATA: u64 = 400 << 10;
const SEEDS: u64 = 200;

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// An image with a bit of everything, without checksums, so that damage is not found out at once.
fn whole() -> Image {
    let features = "^metadata_csum,^has_journal,^resize_inode,inline_data";
    let image = Image::builder().features(features).args(&["-N", "256"]);
    let bed = Bed::with(image.block_size(1024).size(4 << 20).build(), "");
    for dir in ["d", "d/e", "wide"] {
        fs::create_dir(bed.at(dir)).unwrap();
    }
    for number in 0..60 {
        fs::write(bed.at(&format!("wide/name-{number}")), [number; 300]).unwrap();
    }
    fs::write(bed.at("d/large"), pattern(1, 0, 300_000)).unwrap();
    let holes = File::create(bed.at("d/holes")).unwrap();
    for at in 0..20 {
        holes.write_all_at(b"data", at * 9000).unwrap();
    }
    drop(holes);
    std::os::unix::fs::symlink("../d/large", bed.at("d/e/link")).unwrap();
    fs::hard_link(bed.at("d/large"), bed.at("d/e/again")).unwrap();
    rustix::fs::setxattr(
        bed.at("d"),
        "user.a",
        &[7; 200],
        rustix::fs::XattrFlags::empty(),
    )
    .unwrap();
    bed.finish()
}

/// Does what can be done to a tree, errors or not. It ends, whatever the tree looks like.
fn use_all(dir: &Path, depth: u32, budget: &mut u32) {
    let Ok(entries) = fs::read_dir(dir) else {
        return;
    };
    for entry in entries.take(500) {
        let Ok(entry) = entry else { break };
        if *budget == 0 {
            return;
        }
        *budget -= 1;
        let path = entry.path();
        let Ok(metadata) = fs::symlink_metadata(&path) else {
            continue;
        };
        let _ = rustix::fs::lgetxattr(&path, "user.a", &mut [0; 1024][..]);
        if metadata.is_dir() && depth < 6 {
            use_all(&path, depth + 1, budget);
            let _ = fs::write(path.join("new"), "content");
            let _ = fs::rename(path.join("new"), path.join("newer"));
        } else if metadata.is_file() {
            change(&path);
        }
        let _ = match *budget % 3 {
            0 => fs::remove_file(&path),
            1 => fs::rename(&path, path.with_extension("moved")),
            _ => fs::hard_link(&path, path.with_extension("linked")),
        };
    }
}

fn change(path: &Path) {
    let Ok(file) = File::options().read(true).write(true).open(path) else {
        return;
    };
    let _ = (&file).take(1 << 20).read_to_end(&mut Vec::new());
    let _ = file.write_at(&[5; 3000], 2500);
    let _ = (&file).write(b"begin");
    let _ = file.set_len(4000);
    let _ = file.sync_all();
}

#[test]
fn server_of_a_damaged_image_neither_dies_nor_hangs() {
    need_fuse!();
    let whole = whole();
    let (mut tried, mut served) = (0, 0);
    for seed in (1..=SEEDS).step_by(one_in(10)) {
        tried += 1;
        let image = whole.copy();
        let file = File::options().read(true).write(true).open(image.path());
        let file = file.unwrap();
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        for _ in 0..1 + random(&mut state) % 12 {
            // The superblock stays: it is what most refuse.
            let at = 2048 + random(&mut state) % (METADATA - 2048);
            file.write_all_at(&[random(&mut state) as u8], at).unwrap();
        }
        drop(file);
        let mut bed = match Bed::served(image, "errors=continue") {
            Ok(bed) => bed,
            Err(refused) => {
                assert_eq!(refused.code(), Some(2), "seed {seed}: {refused}");
                continue;
            }
        };
        served += 1;
        use_all(bed.root(), 0, &mut 400);
        let umount = patiently(dioxide().arg("umount").arg(bed.root()));
        assert!(umount.status.success(), "seed {seed}: {umount:?}");
        let ended = bed.status();
        assert!(ended.code().is_some(), "seed {seed}: {ended}");
    }
    assert!(served * 2 > tried, "{served} of {tried} were mounted");
}
