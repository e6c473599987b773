//! Images with fast commits, and the area that holds them.

use super::walk::extents;
use dioxide::block::mem::MemDevice;
use dioxide::block::{Device, Durability};
use dioxide::format::checksum::crc32c;
use dioxide::format::journal::Tid;
use dioxide::format::journal::fast_commit::Record;
use dioxide::{Fs, MountOptions, OpenOptions};
use dioxide_journal::log::{Log, LogMap, Ring, fast_commit_area};
use dioxide_journal::recovery::{FileSystem, Recovery};
use dioxide_testkit::{Dir, Image, Mount};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

pub const BLOCK: usize = 4096;
const SIZE: u64 = 32 << 20;
const FILE_SYSTEM: FileSystem = FileSystem {
    blocks: SIZE / BLOCK as u64,
    device_blocks: SIZE / BLOCK as u64,
    inode_bytes: 256,
};

/// An empty file system that uses fast commits.
pub fn empty(features: &str) -> Image {
    let features = match features {
        "" => "fast_commit".to_owned(),
        more => format!("fast_commit,{more}"),
    };
    Image::builder()
        .size(SIZE)
        .args(&["-J", "size=8,fast_commit_size=512", "-N", "2048"])
        .features(&features)
        .build()
}

/// An empty file system that uses fast commits, where there was something else before, and whose inode tables were not
/// written but for what is in use.
pub fn over_garbage() -> Image {
    let image = Image::blank(Dir::Tmpfs, SIZE);
    fs::write(image.path(), vec![0xFF; SIZE as usize]).expect("room");
    let mut tool = Command::new("mke2fs");
    tool.args(["-q", "-F", "-t", "ext4", "-b", "4096", "-N", "2048"]);
    tool.args(["-O", "fast_commit", "-J", "size=8,fast_commit_size=512"]);
    tool.args(["-E", "nodiscard,lazy_itable_init=1,lazy_journal_init=0"]);
    let status = tool.arg(image.path()).status();
    assert!(status.expect("mke2fs of e2fsprogs").success());
    image
}

/// What a crash leaves of a file system: `before` was committed in full, and `during`, which syncs what
/// it does, was not if the kernel could help it. What `during` returns is held until the crash.
pub fn crashed<T>(
    features: &str,
    before: impl FnOnce(&Path),
    during: impl FnOnce(&Path) -> T,
) -> Image {
    crashed_with(features, "commit=300", before, during)
}

/// [`crashed`], mounted with these options.
pub fn crashed_with<T>(
    features: &str,
    options: &str,
    before: impl FnOnce(&Path),
    during: impl FnOnce(&Path) -> T,
) -> Image {
    let image = empty(features);
    // Not every kernel mounts what has quota: the files of it are there, and nobody counts.
    if features.contains("quota") {
        debugfs_write(image.path(), "feature -quota");
    }
    crashed_on(&image, options, before, during)
}

/// [`crashed_with`], of a file system that is there.
pub fn crashed_on<T>(
    image: &Image,
    options: &str,
    before: impl FnOnce(&Path),
    during: impl FnOnce(&Path) -> T,
) -> Image {
    let mount = Mount::ext4(image.path(), options);
    before(mount.path());
    let sync = Command::new("sync").arg("-f").arg(mount.path()).status();
    assert!(sync.expect("sync of coreutils").success());
    let held = during(mount.path());
    let copy = moment(image);
    drop(held);
    mount.unmount();
    copy
}

/// Makes quota right as it was before the fast commits, and has the file system count from there.
pub fn with_quota_from_before(image: &Image) {
    let area = area(image);
    let bytes = fs::read(image.path()).expect("the image");
    let log = log_of(image);
    let following = Recovery::plan(&log, FILE_SYSTEM)
        .expect("the kernel's log")
        .recovered()
        .next_sequence;
    let mut before = bytes.clone();
    for &at in &area {
        before[at as usize..at as usize + BLOCK].fill(0);
    }
    fs::write(image.path(), &before).expect("room");
    debugfs_write(image.path(), "feature quota");
    fixed(image);
    let file = File::options().write(true).open(image.path()).expect("it");
    for &at in &area {
        let block = &bytes[at as usize..at as usize + BLOCK];
        file.write_all_at(block, at).expect("room");
    }
    debugfs_write(image.path(), "feature needs_recovery");
    let log = log_of(image);
    follow(&log, 1, following);
    let at = log.map().device_block(0).expect("the first block") * BLOCK as u64;
    let mut block = vec![0; BLOCK];
    log.device().read_at(at, &mut block).expect("it is there");
    file.write_all_at(&block, at).expect("room");
}

/// Has a log begin at block `first` with nothing in it, followed by the fast commits that are there. `following` is the number
/// of the next transaction but one.
pub fn follow(log: &Log, first: u32, following: Tid) {
    let mut journal = log.read_superblock().expect("a journal");
    (journal.s_first, journal.s_start) = (first, first);
    // The number that the fast commits name.
    journal.s_sequence = following.0.wrapping_sub(1);
    log.write_superblock(&mut journal, Durability::Cached)
        .expect("room");
}

/// An image in memory whose log has so many blocks, and is empty but for the fast commits that follow it.
pub fn with_small_log(image: &Image, blocks: u32) -> Arc<MemDevice> {
    let device = loaded(&fs::read(image.path()).expect("the image"));
    let log = log_on(image, device.clone());
    let recovery = Recovery::plan(&log, FILE_SYSTEM).expect("the kernel's log");
    recovery.replay(&*device).expect("room");
    let end = Ring::of(recovery.superblock()).end;
    follow(&log, end - blocks, recovery.recovered().next_sequence);
    device
}

/// Has `e2fsck` replay the journal and mend what is wrong.
pub fn fixed(image: &Image) {
    let mut tool = Command::new("e2fsck");
    let done = tool.arg("-fy").arg(image.path()).output();
    let status = done.expect("e2fsck of e2fsprogs").status;
    assert!(status.code().is_some_and(|code| code < 4), "{status}");
}

pub fn debugfs_write(image: &Path, command: &str) {
    let mut tool = Command::new("debugfs");
    let done = tool.args(["-w", "-R", command]).arg(image).output();
    assert!(done.expect("debugfs of e2fsprogs").status.success());
}

/// A copy that shows one moment of an image in use.
fn moment(image: &Image) -> Image {
    for _ in 0..20 {
        let (first, second) = (image.copy(), image.copy());
        let read = |image: &Image| fs::read(image.path()).expect("the image");
        if read(&first) == read(&second) {
            return first;
        }
    }
    panic!("the image never holds still");
}

/// Makes what was done to a file durable.
pub fn fsync(path: &Path) {
    File::open(path)
        .expect("it is there")
        .sync_all()
        .expect("a sync");
}

/// Makes what was done to names durable: the kernel has fast commits for files only.
pub fn sync_names(root: &Path, number: u32) {
    let name = root.join(format!("sync{number}"));
    fs::write(&name, b"synced").expect("room");
    fsync(&name);
}

/// The image in memory.
pub fn loaded(bytes: &[u8]) -> Arc<MemDevice> {
    let device = MemDevice::new(bytes.len() as u64);
    device
        .write_at(0, bytes, Durability::Cached)
        .expect("all of the device");
    Arc::new(device)
}

pub fn unloaded(device: &dyn Device) -> Vec<u8> {
    let mut bytes = vec![0; device.geometry().size_bytes as usize];
    device.read_at(0, &mut bytes).expect("all of the device");
    bytes
}

fn log_of(image: &Image) -> Log {
    log_on(image, loaded(&fs::read(image.path()).expect("the image")))
}

/// The log of an image on a device that holds the image.
pub fn log_on(image: &Image, device: Arc<dyn Device>) -> Log {
    let map = LogMap::internal(journal_runs(image)).expect("a journal");
    Log::new(device, map, BLOCK)
}

/// The blocks of the journal, in its order: with extents, or mapped by indirect blocks.
fn journal_runs(image: &Image) -> Vec<Range<u64>> {
    let mut tool = Command::new("debugfs");
    let output = tool.args(["-R", "stat <8>"]).arg(image.path()).output();
    let said = String::from_utf8(output.expect("debugfs of e2fsprogs").stdout).expect("text");
    let (_, mapped) = said.rsplit_once("S:\n").expect("its blocks");
    let of = |piece: &str| {
        let (logical, physical) = piece.trim().split_once(':')?;
        // Those of the map itself have a name instead of numbers.
        let is_data = !logical.contains(char::is_alphabetic);
        let (first, last) = physical.split_once('-').unwrap_or((physical, physical));
        is_data.then(|| first.parse().expect("a block")..last.parse::<u64>().expect("a block") + 1)
    };
    mapped.split([',', '\n']).filter_map(of).collect()
}

/// The records that follow the log, and how many fast commits they are.
pub fn records(image: &Image) -> (u32, Vec<Record>) {
    let log = log_of(image);
    let recovery = Recovery::plan(&log, FILE_SYSTEM).expect("the kernel's log");
    let recovered = recovery.recovered();
    (
        recovered.fast_commits,
        recovered.fast_commit_records.clone(),
    )
}

/// How often each tag is there that makes no record.
pub fn frames(image: &Image) -> BTreeMap<&'static str, u32> {
    let bytes = fs::read(image.path()).expect("the image");
    let mut frames = BTreeMap::new();
    for tlv in tlvs(&bytes, &area(image)) {
        let name = match tlv.tag {
            PAD => "PAD",
            TAIL => "TAIL",
            HEAD => "HEAD",
            _ => continue,
        };
        *frames.entry(name).or_default() += 1;
    }
    frames
}

/// How often each kind of record is there.
pub fn kinds(records: &[Record]) -> BTreeMap<&'static str, u32> {
    let mut kinds = BTreeMap::new();
    for record in records {
        let kind = match record {
            Record::AddRange { .. } => "ADD_RANGE",
            Record::DelRange { .. } => "DEL_RANGE",
            Record::Creat(_) => "CREAT",
            Record::Link(_) => "LINK",
            Record::Unlink(_) => "UNLINK",
            Record::Inode { .. } => "INODE",
        };
        *kinds.entry(kind).or_default() += 1;
    }
    kinds
}

/// The bytes of the image where the area's blocks lie.
pub fn area(image: &Image) -> Vec<u64> {
    let log = log_of(image);
    let sb = log.read_superblock().expect("a journal");
    fast_commit_area(&sb)
        .map(|at| log.map().device_block(at).expect("of the journal") * BLOCK as u64)
        .collect()
}

/// A record as it lies in the area.
#[derive(Clone, Copy, Debug)]
pub struct Tlv {
    pub tag: u16,
    /// Byte in the image of the record's value.
    pub value: usize,
    pub len: usize,
}

pub const PAD: u16 = 7;
pub const TAIL: u16 = 8;
pub const HEAD: u16 = 9;

/// All records up to the last tail.
pub fn tlvs(bytes: &[u8], area: &[u64]) -> Vec<Tlv> {
    let mut found = Vec::new();
    'area: for &block in area {
        let block = block as usize;
        let mut at = 0;
        while at + 4 <= BLOCK {
            let word = |at: usize| u16::from_le_bytes([bytes[block + at], bytes[block + at + 1]]);
            let (tag, len) = (word(at), usize::from(word(at + 2)));
            if !(1..=9).contains(&tag) || at + 4 + len > BLOCK {
                break 'area;
            }
            found.push(Tlv {
                tag,
                value: block + at + 4,
                len,
            });
            at += 4 + len;
        }
    }
    let end = found
        .iter()
        .rposition(|tlv| tlv.tag == TAIL)
        .map_or(0, |at| at + 1);
    found.truncate(end);
    found
}

/// Makes the checksums of all tails right.
pub fn seal(bytes: &mut [u8], tlvs: &[Tlv]) {
    let mut crc = 0;
    for tlv in tlvs {
        let head = &bytes[tlv.value - 4..tlv.value];
        if tlv.tag == TAIL {
            crc = crc32c(crc32c(crc, head), &bytes[tlv.value..tlv.value + 4]);
            bytes[tlv.value + 4..tlv.value + 8].copy_from_slice(&crc.to_le_bytes());
            crc = 0;
        } else {
            crc = crc32c(crc, &bytes[tlv.value - 4..tlv.value + tlv.len]);
        }
    }
}

pub fn open(image: &Image) -> Fs {
    Fs::open(image.path(), &MountOptions::new()).expect("it opens")
}

/// Opens an image for writing, whose fast commits must have been replayed.
pub fn replayed(image: &Image, commits: u32) -> Fs {
    let fs = open(image);
    assert_eq!(fs.read_only(), None, "{:?}", fs.warnings());
    let said = format!("{commits} fast commits were replayed");
    assert!(fs.warnings()[0].contains(&said), "{:?}", fs.warnings());
    fs
}

/// The blocks that a file has before the fast commits.
pub fn blocks_before(image: &Image, name: &str) -> BTreeSet<u64> {
    let options = MountOptions::new().read_only(true);
    let fs = Fs::open(image.path(), &options).expect("it opens");
    let file = OpenOptions::new().read(true).open(&fs, name);
    let extents = extents(&file.expect("it is there"));
    let blocks = extents.iter().map(|(_, start, len, _)| *start..start + len);
    blocks.flatten().collect()
}
