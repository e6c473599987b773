#![no_main]
//! A small image with some of its bytes changed, mounted for writing and used: a call answers or refuses;
//! none panics, hangs, or gives other bytes back than it was given. Where nothing is changed, the check
//! finds nothing afterwards.
//!
//! An input is the layout, how many bytes are changed, for each of them its place and what it becomes, and
//! then numbers, which choose calls as those of `dioxide/tests/hostile` are chosen. Before those come
//! the same calls for every input.

#[path = "../../crates/dioxide/tests/hostile/ops.rs"]
mod ops;

use dioxide::block::mem::MemDevice;
use dioxide::block::{Device, Durability};
use dioxide::check::{CheckOptions, check};
use dioxide::{
    Error, FallocateMode, Fs, Mkfs, MountOptions, NewFile, OpenOptions, RenameMode, Timestamp,
    XattrMode,
};
use libfuzzer_sys::fuzz_target;
use ops::Session;
use std::ops::Range;
use std::sync::{Arc, LazyLock};

const SIZE: u64 = 4 << 20;
const BLOCK: usize = 1024;
/// What files hold: blocks of it are not worth changing.
const DATA: u8 = 0xDA;
const JOURNAL: &str = "size=1,location=2000";
/// Its blocks after the first: they matter to nobody once it is empty.
const LOG: Range<u64> = 2001..3024;
const CHECK_MEMORY: u64 = 32 << 20;

/// Blocks that hold metadata, by number.
type Blocks = Vec<(u64, [u8; BLOCK])>;

static IMAGES: LazyLock<Vec<Blocks>> = LazyLock::new(|| {
    let layouts = [
        ("^metadata_csum", JOURNAL),
        ("^metadata_csum,inline_data,ea_inode,orphan_file", JOURNAL),
        (
            "^metadata_csum,bigalloc,quota,project,^resize_inode",
            JOURNAL,
        ),
        ("", JOURNAL),
        ("^has_journal,^extent,^64bit,^metadata_csum", ""),
    ];
    let images = layouts.map(|(features, journal)| image(features, journal));
    images.map(|made| made.expect("an image")).into()
});

fn image(features: &str, journal: &str) -> Result<Blocks, Error> {
    let mut mkfs = Mkfs::new()
        .block_size(BLOCK as u32)?
        .inode_size(256)?
        .inodes_count(256)
        .features(features)?
        .uuid([7; 16])
        .hash_seed([9; 16])
        .epoch(1_700_000_000);
    if !journal.is_empty() {
        mkfs = mkfs.journal(journal)?;
    }
    let device = MemDevice::new(SIZE);
    mkfs.plan(SIZE)?.write(&device, &mut Default::default())?;
    let fs = Fs::open_device(Arc::new(device.clone()), &options())?;
    fill(&fs)?;
    fs.close()?;
    let blocks = (0..SIZE / BLOCK as u64).map(|number| {
        let mut bytes = [0; BLOCK];
        device.read_at(number * BLOCK as u64, &mut bytes)?;
        Ok((number, bytes))
    });
    let blocks: Blocks = blocks.collect::<Result<_, Error>>()?;
    let is_metadata = |(number, bytes): &(u64, [u8; BLOCK])| {
        let has_other = |than: u8| bytes.iter().any(|&byte| byte != than);
        !LOG.contains(number) && has_other(0) && has_other(DATA)
    };
    Ok(blocks.into_iter().filter(is_metadata).collect())
}

fn options() -> MountOptions {
    MountOptions::new().workers(1).clock(Timestamp {
        secs: 1_700_000_000,
        nanos: 0,
    })
}

fn new_file(fs: &Fs, path: &str) -> Result<dioxide::File, Error> {
    let options = OpenOptions::new().read(true).write(true).create(true);
    options.open(fs, path)
}

/// Names in a block, in an indexed directory and in the inode; a file in many pieces; attributes.
fn fill(fs: &Fs) -> Result<(), Error> {
    for dir in ["/small", "/large", "/large/sub"] {
        fs.create_dir(dir, &NewFile::new(0o755))?;
    }
    for at in 0..60 {
        new_file(
            fs,
            &format!("/large/a name of some length, and its number {at}"),
        )?;
    }
    let pieces = new_file(fs, "/small/pieces")?;
    for at in 0..50 {
        pieces.write_at(&[DATA; BLOCK], at * 3 * BLOCK as u64)?;
    }
    pieces.write_at(&[DATA; BLOCK], 100 << 20)?;
    let whole = new_file(fs, "/small/whole")?;
    whole.write_at(&[DATA; 30_000], 0)?;
    whole
        .allocate(FallocateMode::KeepSize, 30_000, 30_000)
        .or_else(unsupported)?;
    new_file(fs, "/small/tiny")?.write_at(b"tiny", 0)?;
    for target in ["whole".to_owned(), "far/".repeat(30)] {
        let path = format!("/small/link{}", target.len());
        fs.symlink(target, path, &NewFile::default())?;
    }
    fs.hard_link("/small/tiny", "/small/hard")?;
    for (name, len) in [("user.short", 10), ("user.long", 400)] {
        for path in ["/small/tiny", "/small/whole"] {
            fs.node(path)?
                .set_xattr(name, &vec![b'v'; len], XattrMode::Set)?;
        }
    }
    Ok(())
}

/// Maps of blocks cannot be allocated ahead.
fn unsupported(error: Error) -> Result<(), Error> {
    match error {
        Error::Unsupported(_) => Ok(()),
        error => Err(error),
    }
}

/// A fixed sequence of calls. Some of them fail where others did.
fn usual(fs: &Fs) {
    fn said<T>(answer: Result<T, Error>) -> Option<T> {
        answer
            .inspect_err(|error| assert!(!error.to_string().is_empty() && error.errno() > 0))
            .ok()
    }
    let first = "/large/a name of some length, and its number 7";
    said(fs.metadata(first));
    said(fs.metadata("/small/link5"));
    for dir in ["/", "/small", "/large", "/lost+found"] {
        said(fs.read_dir(dir));
    }
    let options = OpenOptions::new().read(true).write(true);
    if let Some(made) = said(new_file(fs, "/large/made")) {
        said(made.write_at(&[1; 5000], 700));
        said(made.read_at(&mut [0; 6000], 0));
        said(made.sync_all());
    }
    said(fs.create_dir("/large/sub/dir", &NewFile::new(0o700)));
    for path in ["/small/pieces", "/small/whole", "/small/tiny"] {
        let Some(file) = said(options.open(fs, path)) else {
            continue;
        };
        said(file.read_at(&mut vec![0; 200 << 10], 0));
        said(file.write_at(&[2; 3000], 1500));
        said(file.write_at(&[3; 100], 80_000));
        said(file.allocate(FallocateMode::PunchHole, 10_000, 20_000));
        said(file.set_len(50_001));
        said(file.set_len(7));
    }
    said(fs.rename(first, "/small/moved", RenameMode::Replace));
    said(fs.rename("/large/sub", "/small/tiny2", RenameMode::NoReplace));
    said(fs.rename("/small/whole", "/large/made", RenameMode::Exchange));
    if let Some(node) = said(fs.node("/small/hard")) {
        said(node.xattrs());
        said(node.set_xattr("user.long", &[b'n'; 600], XattrMode::Set));
        said(node.remove_xattr("user.short"));
    }
    for path in [
        "/small/hard",
        "/small/moved",
        "/small/pieces",
        "/small/link120",
    ] {
        said(fs.remove_file(path));
    }
    said(fs.remove_dir("/small/tiny2/dir"));
    said(fs.sync());
}

fn changed(blocks: &Blocks, changes: &[[u8; 4]]) -> MemDevice {
    let mut blocks = blocks.clone();
    for &[block, low, high, byte] in changes {
        let at = usize::from(block) % blocks.len();
        blocks[at].1[usize::from(u16::from_le_bytes([low, high])) % BLOCK] = byte;
    }
    let device = MemDevice::new(SIZE);
    for (number, bytes) in &blocks {
        let written = device.write_at(number * BLOCK as u64, bytes, Durability::Cached);
        written.expect("inside");
    }
    device
}

fuzz_target!(|data: &[u8]| {
    let Some((&[layout, count], data)) = data.split_first_chunk() else {
        return;
    };
    let (changes, _) = data.as_chunks();
    let changes = &changes[..changes.len().min(usize::from(count % 16))];
    let rest = &data[changes.len() * 4..];
    let device = changed(&IMAGES[usize::from(layout) % IMAGES.len()], changes);
    if let Ok(fs) = Fs::open_device(Arc::new(device.clone()), &options()) {
        usual(&fs);
        let mut at = 0;
        let mut numbers = |end: u64| {
            let bytes = std::array::from_fn(|i| rest.get(at + i).copied().unwrap_or(0));
            at += if end <= 256 { 1 } else { 4 };
            u64::from(u32::from_le_bytes(bytes)) % end
        };
        let mut session = Session::new(&fs, changes.is_empty(), &mut numbers);
        for _ in 0..(rest.len() / 8).min(30) {
            session.step();
        }
        drop(session);
        let closed = fs.close();
        assert!(closed.is_ok() || !changes.is_empty(), "{closed:?}");
    }
    let options = CheckOptions {
        max_memory: CHECK_MEMORY,
        ..CheckOptions::default()
    };
    let report = check(Arc::new(device), &options, &mut |_| {});
    if changes.is_empty() {
        let report = report.expect("nothing is damaged");
        assert!(report.is_clean(), "{:?}", report.findings);
    }
});
