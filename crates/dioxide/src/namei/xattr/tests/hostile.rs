//! Damaged attributes under change: errors, and no panic.

use super::*;
use dioxide_format::types::Pblk;
use std::os::unix::fs::FileExt;

const BLOCK: u64 = 1024;

/// Makes changes; how many were made, and how many refused for damage.
fn all_changes(fs: &Fs, rng: &mut Rng) -> [usize; 2] {
    let mut counts = [0, 0];
    let mut count = |result: Result<()>| match result {
        Ok(()) => counts[0] += 1,
        Err(Error::Corrupt { .. }) => counts[1] += 1,
        Err(_) => {}
    };
    for path in ["a", "b", "c"] {
        for _ in 0..3 {
            let value = rng.value(true);
            count(set(fs, path, "user.b", &value));
            count(remove(fs, path, "user.a"));
            count(set(fs, path, "user.a", b"short"));
            count(remove(fs, path, "user.c"));
            count(fs.xattrs(path).map(drop));
        }
    }
    for path in ["a", "b", "c"] {
        let Ok(inode) = fs.0.lookup(path.as_bytes(), false) else {
            continue;
        };
        if let Ok(writer) = fs.0.writer() {
            count(fs.0.release_xattrs(writer, &inode));
        }
    }
    let _ = fs.sync();
    counts
}

/// Blocks of the image that hold attributes: of the inode table, of attributes, and of values.
fn targets(fs: &Fs) -> Vec<Pblk> {
    let mut blocks = Vec::new();
    for path in ["a", "b", "c"] {
        let inode = fs.0.lookup(path.as_bytes(), false).expect("it is there");
        blocks.push(inode.location.block);
        blocks.extend(inode.node().disk.file_acl());
    }
    blocks
}

#[test]
fn damaged_attributes_are_changed_or_refused_without_panic() {
    let image = shape((512, 1024, "ea_inode,^metadata_csum,^has_journal"))
        .size(8 << 20)
        .build();
    let mut commands = vec!["mkdir d".to_owned()];
    for path in ["a", "b", "c"] {
        commands.push(format!("write /dev/null {path}"));
    }
    debugfs(image.path(), &commands);
    let fs = open(&image);
    for path in ["a", "b"] {
        set(&fs, path, "user.a", &[1; 100]).expect("room");
        set(&fs, path, "user.b", &[2; 100]).expect("room");
        set(&fs, path, "user.c", &[3; 600]).expect("room");
        set(&fs, path, "user.d", &[4; 5000]).expect("room");
    }
    set(&fs, "c", "user.c", &[4; 5000]).expect("room");
    let blocks = targets(&fs);
    fs.close().expect("a clean end");
    let mut rng = Rng(0xBAD);
    let mut counts = [0, 0];
    for _ in 0..300 {
        let copy = image.copy();
        let file = fs::File::options()
            .write(true)
            .read(true)
            .open(copy.path())
            .expect("there");
        for _ in 0..1 + rng.below(4) {
            let at = rng.pick(&blocks).0 * BLOCK + rng.below(BLOCK / 4) * 4;
            let mut word = [0; 4];
            file.read_exact_at(&mut word, at).expect("inside");
            // Small numbers become other small numbers: offsets, sizes, inodes.
            let byte = rng.below(4) as usize;
            word[byte] = match rng.below(3) {
                0 => rng.below(256) as u8,
                1 => word[byte].wrapping_add(4),
                _ => word[byte] ^ (1 << rng.below(8)),
            };
            file.write_all_at(&word, at).expect("inside");
        }
        if let Ok(fs) = Fs::open(copy.path(), &MountOptions::new()) {
            let [made, refused] = all_changes(&fs, &mut rng);
            counts = [counts[0] + made, counts[1] + refused];
        }
    }
    assert!(counts.iter().all(|&count| count > 100), "{counts:?}");
}
