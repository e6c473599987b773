//! Damaged areas, and areas that lie.

use super::a_little_of_everything;
use super::area::{
    BLOCK, HEAD, PAD, TAIL, Tlv, area, crashed, follow, fsync, loaded, log_on, records, seal, tlvs,
    unloaded, with_small_log,
};
use dioxide::block::Durability;
use dioxide::block::mem::MemDevice;
use dioxide::format::journal::{JournalIncompat, Tid};
use dioxide::{Fs, MountOptions};
use dioxide_journal::log::fast_commit_area;
use dioxide_testkit::{Image, debugfs, e2fsck_clean, need_root, one_in};
use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

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

const UNLINK: u16 = 5;

/// The image in memory, with an empty log that one fast commit of these records follows: tag and value of each.
fn followed_by(image: &Image, records: impl Iterator<Item = (u16, Vec<u8>)>) -> Arc<MemDevice> {
    debugfs(image.path(), &["feature needs_recovery"]);
    let device = loaded(&fs::read(image.path()).expect("the image"));
    let log = log_on(image, device.clone());
    let mut journal = log.read_superblock().expect("a journal");
    journal.s_feature_incompat |= JournalIncompat::FAST_COMMIT.bits();
    log.write_superblock(&mut journal, Durability::Cached)
        .expect("room");
    let tid = 7_u32.to_le_bytes();
    follow(&log, 1, Tid(8));
    let area: Vec<u64> = fast_commit_area(&journal)
        .map(|at| log.map().device_block(at).expect("of the journal") * BLOCK as u64)
        .collect();
    let mut bytes = unloaded(&*device);
    let mut put = |at: usize, tag: u16, value: &[u8]| {
        bytes[at..at + 2].copy_from_slice(&tag.to_le_bytes());
        bytes[at + 2..at + 4].copy_from_slice(&(value.len() as u16).to_le_bytes());
        bytes[at + 4..at + 4 + value.len()].copy_from_slice(value);
    };
    let mut blocks = area.iter().map(|&block| block as usize);
    let mut at = blocks.next().expect("an area");
    let mut left = BLOCK;
    let head = (HEAD, [[0; 4], tid].concat());
    let tail = (TAIL, [tid, [0; 4]].concat());
    for (tag, value) in std::iter::once(head).chain(records).chain([tail]) {
        if left < 4 + value.len() {
            if left >= 4 {
                put(at, PAD, &vec![0; left - 4]);
            }
            at = blocks.next().expect("room in the area");
            left = BLOCK;
        }
        put(at, tag, &value);
        at += 4 + value.len();
        left -= 4 + value.len();
    }
    let tlvs = tlvs(&bytes, &area);
    seal(&mut bytes, &tlvs);
    loaded(&bytes)
}

/// What the mount says of the fast commits that it does not replay; nothing is written.
fn refused(device: &Arc<MemDevice>) -> String {
    let before = unloaded(&**device);
    let start = Instant::now();
    let fs = Fs::open_device(device.clone(), &MountOptions::new()).expect("it opens");
    let why = fs.read_only().expect("it is refused").to_owned();
    drop(fs);
    assert!(start.elapsed() < Duration::from_secs(60), "{why}");
    assert!(unloaded(&**device) == before, "{why}");
    why
}

/// Each name was looked for from the directory's beginning on, so that a mount could take hours.
#[test]
fn many_names_in_a_large_directory_are_refused_with_nothing_written() {
    let image = Image::builder()
        .size(64 << 20)
        .args(&["-J", "size=16,fast_commit_size=2048"])
        .features("fast_commit,^dir_index")
        .build();
    let larger = vec!["expand_dir d".to_owned(); 500];
    debugfs(image.path(), &[vec!["mkdir d".to_owned()], larger].concat());
    let unlink = |number: u32| {
        let [dir, ino] = [12_u32, 13].map(u32::to_le_bytes);
        let name = format!("{number:06}");
        (UNLINK, [&dir[..], &ino, name.as_bytes()].concat())
    };
    let few = followed_by(&image, (0..1000).map(unlink));
    let fs = Fs::open_device(few, &MountOptions::new()).expect("it opens");
    assert_eq!(fs.read_only(), None, "{:?}", fs.warnings());
    drop(fs);
    let why = refused(&followed_by(&image, (0..10_000).map(unlink)));
    assert!(why.contains("too many names"), "{why}");
}

/// All records are in memory at once.
#[test]
fn area_beyond_what_linux_makes_is_refused_with_nothing_written() {
    let image = Image::builder()
        .size(128 << 20)
        .args(&["-J", "size=16,fast_commit_size=36864"])
        .features("fast_commit")
        .build();
    let pads = |count| (0..count).map(|_| (PAD, vec![0; BLOCK - 4]));
    let fs = Fs::open_device(followed_by(&image, pads(100)), &MountOptions::new());
    assert_eq!(fs.expect("it opens").read_only(), None);
    let why = refused(&followed_by(&image, pads((32 << 20) / BLOCK)));
    assert!(why.contains("fast commits of more than"), "{why}");
}
