//! Damaged areas, and areas that lie.

use super::a_little_of_everything;
use super::area::{
    TAIL, Tlv, area, crashed, fsync, loaded, records, seal, tlvs, unloaded, with_small_log,
};
use dioxide::{Fs, MountOptions};
use dioxide_testkit::{Image, e2fsck_clean, need_root, one_in};
use std::fs;

fn subject() -> (Image, Vec<u8>, Vec<Tlv>) {
    let (before, during) = a_little_of_everything();
    let image = crashed("", before, during);
    let bytes = fs::read(image.path()).expect("the image");
    let tlvs = tlvs(&bytes, &area(&image));
    (image, bytes, tlvs)
}

#[test]
fn damaged_tail_or_tag_ends_the_replay_at_the_commit_before() {
    need_root!();
    let (image, bytes, tlvs) = subject();
    let (commits, _) = records(&image);
    let tails: Vec<usize> = (0..tlvs.len()).filter(|&at| tlvs[at].tag == TAIL).collect();
    assert_eq!(tails.len(), commits as usize, "all tails were found");
    for good in [0, 1, tails.len() / 2, tails.len() - 1] {
        let tail = tlvs[tails[good]];
        let first = if good == 0 { 0 } else { tails[good - 1] + 1 };
        for at in [tail.value + 5, tlvs[first].value - 3] {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x40;
            fs::write(image.path(), &damaged).expect("room");
            assert_eq!(records(&image).0, good as u32);
            let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
            assert_eq!(fs.read_only(), None, "{:?}", fs.warnings());
            let said = fs.warnings().join("\n");
            let count = format!("{good} fast commits were replayed");
            assert_eq!(said.contains(&count), good > 0, "{said}");
            fs.close().expect("a clean end");
            e2fsck_clean(image.path());
        }
    }
}

/// Whole numbers that hurt.
const NASTY: [u64; 9] = [0, 1, 2, 8, 11, 0x7FFF, 0x8001, 0xFFFF_FFFF, 8191];

#[test]
fn records_that_lie_end_in_a_replay_or_a_reason() {
    need_root!();
    let (_, bytes, tlvs) = subject();
    let (mut replayed, mut refused) = (0, 0);
    let mut seed = 0x5EED_u64;
    let mut random = |below: usize| {
        seed = seed
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (seed >> 33) as usize % below
    };
    for round in 0..400 / one_in(8) {
        let mut lying = bytes.clone();
        let inner: Vec<&Tlv> = tlvs.iter().filter(|tlv| tlv.tag <= 6).collect();
        for _ in 0..1 + random(3) {
            let tlv = inner[random(inner.len())];
            let at = tlv.value + random(tlv.len);
            let width = [1, 2, 4][random(3)].min(tlv.value + tlv.len - at);
            let number = match random(2) {
                0 => NASTY[random(NASTY.len())],
                _ => random(1 << 30) as u64,
            };
            lying[at..at + width].copy_from_slice(&number.to_le_bytes()[..width]);
        }
        seal(&mut lying, &tlvs);
        let device = loaded(&lying);
        let opened = Fs::open_device(device.clone(), &MountOptions::new());
        let fs = opened.unwrap_or_else(|error| panic!("round {round}: {error}"));
        match fs.read_only() {
            None => replayed += 1,
            Some(why) => {
                refused += 1;
                assert!(why.contains("fast commits"), "round {round}: {why}");
            }
        }
        let was_refused = fs.read_only().is_some();
        drop(fs);
        // Whatever was replayed, a second open finds nothing left to do, or the same reason.
        let again = Fs::open_device(device.clone(), &MountOptions::new());
        let again = again.unwrap_or_else(|error| panic!("round {round}, again: {error}"));
        assert_eq!(again.read_only().is_some(), was_refused, "round {round}");
    }
    println!("{replayed} replayed, {refused} refused");
    assert!(replayed > 0 && refused > 0);
}

/// The transaction of the changes lies in the log with a descriptor and a commit block.
#[test]
fn log_without_room_for_the_changes_is_refused_with_nothing_written() {
    need_root!();
    let name = |n: usize| format!("file{n}");
    let image = crashed(
        "",
        |root| (0..256).for_each(|n| fs::write(root.join(name(n)), b"").expect("room")),
        |root| {
            // Each has its inode in another block.
            for n in (0..192).step_by(16) {
                fs::write(root.join(name(n)), [1; 4096]).expect("room");
                fsync(&root.join(name(n)));
            }
        },
    );
    let mut replayed = Vec::new();
    let rooms = 16..=32;
    for room in rooms.clone() {
        let device = with_small_log(&image, room);
        let before = unloaded(&*device);
        let fs = Fs::open_device(device.clone(), &MountOptions::new()).expect("it opens");
        if let Some(why) = fs.read_only() {
            assert!(why.contains("fast commits"), "{room} blocks: {why}");
            drop(fs);
            assert!(unloaded(&*device) == before, "{room} blocks");
            continue;
        }
        replayed.push(room);
        fs.close().expect("a clean end");
        let copy = image.copy();
        fs::write(copy.path(), unloaded(&*device)).expect("room");
        e2fsck_clean(copy.path());
    }
    println!("replayed with {replayed:?} blocks");
    let least = *replayed.first().expect("room enough");
    assert!(least > *rooms.start(), "some have no room");
    assert!(replayed.into_iter().eq(least..=*rooms.end()));
}
