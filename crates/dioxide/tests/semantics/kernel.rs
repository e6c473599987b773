//! Truncate, fallocate and seek at their edges, each compared with what the kernel's ext4 does with the same
//! file in a copy of the same image.
//!
//! A case is a shape of a file and a few calls. What is compared: what each call returns, size, contents,
//! `st_blocks` where there are no extents, which blocks are written, unwritten and holes, and what SEEK_DATA and
//! SEEK_HOLE say around the edges. The kernel's files are synced after each call, so that nothing waits for
//! allocation.

use dioxide::{FallocateMode, File, Fs, MapKind, MountOptions};
use dioxide_testkit::{Image, ImageBuilder, e2fsck_clean, need_root};
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use std::fmt::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// One call.
#[derive(Clone, Copy, Debug)]
enum Call {
    Write(u64, u64),
    Truncate(u64),
    Range(FallocateMode, u64, u64),
}
use Call::*;
use FallocateMode::{
    Allocate, CollapseRange, InsertRange, KeepSize, PunchHole, ZeroRange, ZeroRangeKeepSize,
};

const MODES: [FallocateMode; 7] = [
    Allocate,
    KeepSize,
    PunchHole,
    ZeroRange,
    ZeroRangeKeepSize,
    CollapseRange,
    InsertRange,
];

/// Far behind what any file has.
const FAR: u64 = 1 << 20;

/// How files begin, in units of a block (or cluster).
fn shapes(unit: u64) -> Vec<Vec<Call>> {
    let half = unit / 2;
    vec![
        vec![],
        vec![Write(0, 2 * unit + half)],
        vec![Write(0, 4 * unit)],
        vec![
            Truncate(8 * unit),
            Write(2 * unit, 2 * unit),
            Write(5 * unit + 100, 300),
        ],
        vec![Range(Allocate, 0, 8 * unit), Write(3 * unit, unit)],
        vec![Write(0, 2 * unit + half), Range(KeepSize, unit, 7 * unit)],
    ]
}

fn changes(unit: u64) -> Vec<Call> {
    let half = unit / 2;
    let mut calls: Vec<Call> = [
        0,
        1,
        unit,
        unit + 1,
        2 * unit + half,
        2 * unit + half + 1,
        4 * unit,
        8 * unit,
        8 * unit + 7,
        20 * unit,
    ]
    .map(Truncate)
    .into();
    let ranges = [
        (0, 0),
        (0, unit),
        (unit, 2 * unit),
        (100, 50),
        (unit - 10, 20),
        (half, 2 * unit),
        (unit, 20 * unit),
        (2 * unit + half, 10),
        (3 * unit, 1),
        (4 * unit, unit),
        (7 * unit, unit),
        (8 * unit, unit),
        (12 * unit + 5, 3 * unit),
    ];
    for mode in MODES {
        calls.extend(ranges.map(|(offset, len)| Range(mode, offset, len)));
    }
    calls
}

fn cases(unit: u64) -> Vec<Vec<Call>> {
    let shapes = shapes(unit);
    let all = shapes.iter().flat_map(|shape| {
        let one = |change| shape.iter().copied().chain([change]).collect();
        changes(unit).into_iter().map(one)
    });
    let mut all: Vec<Vec<Call>> = all.collect();
    // What truncate does with blocks that were allocated ahead, behind the end.
    let ahead = [Write(0, unit + 9), Range(KeepSize, 0, 8 * unit)];
    for last in [
        vec![Truncate(unit + 9)],
        vec![Truncate(unit + 10)],
        vec![Truncate(unit + 8)],
        vec![Truncate(4 * unit)],
        vec![Truncate(4 * unit), Truncate(unit)],
        vec![Range(PunchHole, 4 * unit, unit)],
        vec![Write(3 * unit, 10)],
        vec![Write(3 * unit, 10), Truncate(3 * unit + 10)],
        vec![Range(Allocate, 6 * unit, unit)],
        vec![Range(CollapseRange, 0, unit)],
        vec![Range(InsertRange, 0, unit)],
    ] {
        all.push(ahead.iter().copied().chain(last).collect());
    }
    all
}

/// What came of a case, line by line.
type Outcome = String;

fn flags(mode: FallocateMode) -> FallocateFlags {
    match mode {
        Allocate => FallocateFlags::empty(),
        KeepSize => FallocateFlags::KEEP_SIZE,
        PunchHole => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
        ZeroRange => FallocateFlags::ZERO_RANGE,
        ZeroRangeKeepSize => FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
        CollapseRange => FallocateFlags::COLLAPSE_RANGE,
        _ => FallocateFlags::INSERT_RANGE,
    }
}

fn data(len: u64) -> Vec<u8> {
    (0..len).map(|at| at as u8 | 1).collect()
}

/// Where to seek from.
fn probes(unit: u64, size: u64) -> Vec<u64> {
    let edges = (0..10).map(|block| block * unit);
    let around = edges
        .chain([size])
        .flat_map(|edge| [edge.saturating_sub(1), edge, edge + 1]);
    let mut all: Vec<u64> = around.collect();
    all.sort_unstable();
    all.dedup();
    all
}

fn by_kernel(path: &Path, calls: &[Call]) -> Outcome {
    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .open(path)
        .expect("it exists");
    let mut told = Outcome::new();
    for &call in calls {
        let result = match call {
            Write(offset, len) => file.write_all_at(&data(len), offset),
            Truncate(size) => file.set_len(size),
            Range(mode, offset, len) => {
                fallocate(&file, flags(mode), offset, len).map_err(Into::into)
            }
        };
        let errno = result.err().map_or(0, |e| e.raw_os_error().unwrap_or(-1));
        writeln!(told, "errno {errno}").expect("memory");
        file.sync_all().expect("a sync");
    }
    told
}

/// With nothing cached: the kernel takes pages that it has in memory for data, and has none after a mount.
fn seeks_by_kernel(path: &Path, unit: u64) -> Outcome {
    let file = std::fs::File::open(path).expect("it exists");
    let mut told = Outcome::new();
    let size = file.metadata().expect("it is open").len();
    for at in probes(unit, size) {
        let ask =
            |from| seek(&file, from).map_or_else(|e| -i64::from(e.raw_os_error()), |at| at as i64);
        let (data, hole) = (ask(SeekFrom::Data(at)), ask(SeekFrom::Hole(at)));
        writeln!(told, "seek {at}: data {data} hole {hole}").expect("memory");
    }
    told
}

fn by_dioxide(file: &File, calls: &[Call], unit: u64) -> Outcome {
    let mut told = Outcome::new();
    for &call in calls {
        let result = match call {
            Write(offset, len) => file.write_at(&data(len), offset).map(|_| ()),
            Truncate(size) => file.set_len(size),
            Range(mode, offset, len) => file.allocate(mode, offset, len),
        };
        let errno = result.err().map_or(0, |error| error.errno());
        writeln!(told, "errno {errno}").expect("memory");
    }
    for at in probes(unit, file.len()) {
        let tell = |found: Option<u64>| found.map_or(-i64::from(libc::ENXIO), |at| at as i64);
        let data = tell(file.seek_data(at).expect("a sound tree"));
        let hole = tell(file.seek_hole(at).expect("a sound tree"));
        writeln!(told, "seek {at}: data {data} hole {hole}").expect("memory");
    }
    told
}

/// What an image has of a file: the same for both.
///
/// With extents `st_blocks` is left out: it counts the tree's own blocks, and how many there are depends on where
/// blocks were free. e2fsck has compared it with what it counted.
fn on_disk(fs: &Fs, path: &str, extents: bool) -> Outcome {
    let file = dioxide::OpenOptions::new().read(true).open(fs, path);
    let file = file.expect("it exists");
    let (size, blocks) = (file.len(), file.metadata().blocks);
    let mut told = format!("size {size}, ");
    if !extents {
        write!(told, "blocks {blocks}").expect("memory");
    }
    told.push('\n');
    let (mut at, last) = (0, FAR / u64::from(fs.block_size()));
    let mut kinds: Vec<(MapKind, u64)> = Vec::new();
    while at < last {
        let mapping = file
            .map(at as u32, (last - at) as u32)
            .expect("a sound tree");
        match kinds.last_mut() {
            Some((kind, len)) if *kind == mapping.kind => *len += u64::from(mapping.len),
            _ => kinds.push((mapping.kind, mapping.len.into())),
        }
        at += u64::from(mapping.len);
    }
    writeln!(told, "{kinds:?}").expect("memory");
    let mut content = vec![0; size as usize];
    file.read_at(&mut content, 0).expect("readable");
    let mut runs: Vec<(u8, usize)> = Vec::new();
    for byte in content {
        match runs.last_mut() {
            Some((value, len)) if *value == byte => *len += 1,
            _ => runs.push((byte, 1)),
        }
    }
    let hash = runs.iter().fold(0u64, |hash, &(value, len)| {
        (hash ^ u64::from(value) ^ (len as u64) << 8).wrapping_mul(0x9E37_79B9_7F4A_7C15)
    });
    writeln!(told, "content {hash:x}").expect("memory");
    told
}

/// Where the kernel thinks in pages: a hole that is punched over the end goes on to the end of its page, which with
/// small blocks frees some that nobody named.
fn is_of_pages(calls: &[Call], kernel: &str, unit: u64) -> bool {
    const PAGE: u64 = 4096;
    let size = kernel.lines().find_map(|line| line.strip_prefix("size "));
    let size: u64 = size
        .and_then(|line| line.split(',').next()?.parse().ok())
        .expect("a size is told");
    let inside = |end| size < end && end < size.next_multiple_of(PAGE);
    unit < PAGE
        && matches!(calls.last(), Some(&Range(PunchHole, offset, len)) if inside(offset + len))
}

/// Offset and length, of direct requests on a file of [`DIRECT_SIZE`] bytes; `end` is where the largest file ends.
fn direct_requests(end: u64) -> Vec<(u64, usize)> {
    let size = DIRECT_SIZE as u64;
    let last = size - size % 512;
    vec![
        (0, 0),
        (1, 0),
        (size - 1, 0),
        (size, 0),
        (size + 1, 0),
        (0, 1),
        (1, 512),
        (0, 511),
        (0, 512),
        (512, 1536),
        (last, 511),
        (last + 1, 512),
        (last, 512),
        (last, 4096),
        (size - 1, 1),
        (size, 1),
        (size, 512),
        (last + 512, 511),
        (last + 512, 512),
        (200_001, 512),
        (end - 512, 0),
        (end - 511, 512 - 2),
        (end - 512, 512),
        (end - 1, 1),
        (end, 0),
        (end, 1),
        (end, 512),
        (end + 1, 512),
        (end + 4096, 511),
        (1 << 62, 3),
    ]
}

const DIRECT_SIZE: usize = 100_000;

/// What came of a request, the size afterwards, and nothing else.
fn tell_direct(told: &mut Vec<String>, what: &str, result: Result<usize, i32>, size: u64) {
    let result = result.map_err(|errno| std::io::Error::from_raw_os_error(errno).kind());
    told.push(format!("{what}: {result:?}, size {size}"));
}

/// Aligned memory, as both want it.
fn memory(len: usize) -> dioxide::Buf {
    let mut buf = dioxide::Buf::zeroed(len);
    buf.fill(1);
    buf
}

fn direct_by_kernel(path: &Path, end: u64) -> Vec<String> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = std::fs::File::options();
    options.read(true).write(true);
    let file = options.custom_flags(libc::O_DIRECT).open(path);
    let file = file.expect("it exists");
    let size = || file.metadata().expect("it is open").len();
    let errno = |error: std::io::Error| error.raw_os_error().unwrap_or(-1);
    let mut told = Vec::new();
    for (offset, len) in direct_requests(end) {
        let what = format!("{len} at {offset}");
        let mut buf = memory(len);
        let read = file.read_at(&mut buf, offset).map_err(errno);
        tell_direct(&mut told, &format!("read {what}"), read, size());
        let written = file.write_at(&memory(len), offset).map_err(errno);
        tell_direct(&mut told, &format!("write {what}"), written, size());
        file.set_len(DIRECT_SIZE as u64).expect("a size");
    }
    told
}

fn direct_by_dioxide(fs: &Fs, end: u64) -> Vec<String> {
    let options = dioxide::OpenOptions::new().read(true).write(true);
    let file = options.direct(true).open(fs, "/f").expect("it exists");
    let errno = |error: dioxide::Error| error.errno();
    let mut told = Vec::new();
    for (offset, len) in direct_requests(end) {
        let what = format!("{len} at {offset}");
        let mut buf = memory(len);
        let read = file.read_at(&mut buf, offset).map_err(errno);
        tell_direct(&mut told, &format!("read {what}"), read, file.len());
        let written = file.write_at(&memory(len), offset).map_err(errno);
        tell_direct(&mut told, &format!("write {what}"), written, file.len());
        file.set_len(DIRECT_SIZE as u64).expect("a size");
    }
    told
}

#[test]
fn direct_requests_at_the_edges_are_as_in_the_kernel() {
    need_root!();
    let block = 4096;
    let indirect = (12 + 1024 + (1 << 20) + (1 << 30)) * block;
    for (builder, end) in [
        (Image::builder(), u64::from(u32::MAX) * block),
        (Image::builder().features("^extents,^64bit"), indirect),
    ] {
        let tree = tempfile::tempdir().expect("a folder");
        std::fs::write(tree.path().join("f"), data(DIRECT_SIZE as u64)).expect("room");
        let image = builder.size(64 << 20).source(tree.path()).build();
        let copy = image.copy();
        let kernel = copy.populate_with_kernel(|root| direct_by_kernel(&root.join("f"), end));
        let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
        let ours = direct_by_dioxide(&fs, end);
        fs.close().expect("a clean end");
        e2fsck_clean(image.path());
        for (ours, kernel) in ours.iter().zip(&kernel) {
            assert_eq!(ours, kernel);
        }
    }
}

/// How a file is opened, offset, length.
fn atomic_requests() -> Vec<(&'static str, u64, usize)> {
    let handles = ["reading", "plain", "direct"];
    let ranges = [
        (0, 0),
        (3, 0),
        (0, 4096),
        (0, 512),
        (1, 4096),
        (0, 12_288),
        (3, 1),
    ];
    let all = handles.into_iter();
    all.flat_map(|handle| ranges.map(|(offset, len)| (handle, offset, len)))
        .collect()
}

fn atomic_by_kernel(path: &Path) -> Vec<i32> {
    use rustix::io::{ReadWriteFlags, pwritev2};
    use std::os::unix::fs::OpenOptionsExt;
    let flags = ReadWriteFlags::from_bits_retain(libc::RWF_ATOMIC as u32);
    let ask = |(handle, offset, len): (&str, u64, usize)| {
        let mut options = std::fs::File::options();
        options.read(true).write(handle != "reading");
        let direct = if handle == "direct" {
            libc::O_DIRECT
        } else {
            0
        };
        let file = options.custom_flags(direct).open(path).expect("it exists");
        let written = pwritev2(&file, &[std::io::IoSlice::new(&memory(len))], offset, flags);
        written.map_or_else(|error| error.raw_os_error(), |_| 0)
    };
    atomic_requests().into_iter().map(ask).collect()
}

fn atomic_by_dioxide(fs: &Fs) -> Vec<i32> {
    let ask = |(handle, offset, len): (&str, u64, usize)| {
        let options = dioxide::OpenOptions::new().read(true);
        let options = options
            .write(handle != "reading")
            .direct(handle == "direct");
        let file = options.open(fs, "/f").expect("it exists");
        let written = file.write_at_atomic(&memory(len), offset);
        written.map_or_else(|error| error.errno(), |_| 0)
    };
    atomic_requests().into_iter().map(ask).collect()
}

// On a device that promises nothing. None of those that are at hand does.
#[test]
fn atomic_writes_are_refused_as_in_the_kernel() {
    need_root!();
    for builder in [
        Image::builder(),
        Image::builder().features("^extents,^64bit"),
    ] {
        let tree = tempfile::tempdir().expect("a folder");
        std::fs::write(tree.path().join("f"), data(DIRECT_SIZE as u64)).expect("room");
        let image = builder.size(64 << 20).source(tree.path()).build();
        let kernel = image
            .copy()
            .populate_with_kernel(|root| atomic_by_kernel(&root.join("f")));
        let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
        let ours = atomic_by_dioxide(&fs);
        fs.close().expect("a clean end");
        e2fsck_clean(image.path());
        for ((request, ours), kernel) in atomic_requests().iter().zip(ours).zip(kernel) {
            assert_eq!(ours, kernel, "{request:?}");
        }
    }
}

fn compare(name: &str, builder: ImageBuilder, unit: u64, extents: bool) {
    let cases: Vec<Vec<Call>> = cases(unit)
        .into_iter()
        // Without extents a shape that needs fallocate is not there.
        .filter(|case| extents || !matches!(case[0], Range(..)))
        .collect();
    let tree = tempfile::tempdir().expect("a folder");
    for number in 0..cases.len() {
        std::fs::write(tree.path().join(format!("c{number}")), b"").expect("room");
    }
    let image = builder.size(64 << 20).source(tree.path()).build();
    let copy = image.copy();
    let mut kernel: Vec<Outcome> = copy.populate_with_kernel(|root| {
        let each = cases.iter().enumerate();
        each.map(|(number, case)| by_kernel(&root.join(format!("c{number}")), case))
            .collect()
    });
    copy.populate_with_kernel(|root| {
        for (number, told) in kernel.iter_mut().enumerate() {
            told.push_str(&seeks_by_kernel(&root.join(format!("c{number}")), unit));
        }
    });
    let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
    let mut ours: Vec<Outcome> = Vec::new();
    for (number, case) in cases.iter().enumerate() {
        let file = crate::bed::open_rw(&fs, &format!("/c{number}"));
        ours.push(by_dioxide(&file, case, unit));
    }
    fs.close().expect("a clean end");
    e2fsck_clean(image.path());
    for (image, told) in [(&image, &mut ours), (&copy, &mut kernel)] {
        let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
        for (number, told) in told.iter_mut().enumerate() {
            told.push_str(&on_disk(&fs, &format!("/c{number}"), extents));
        }
        fs.close().expect("a clean end");
    }
    let mut report = String::new();
    for ((case, ours), kernel) in cases.iter().zip(&ours).zip(&kernel) {
        if ours == kernel || is_of_pages(case, kernel, unit) {
            continue;
        }
        writeln!(report, "{case:?}").expect("memory");
        for (ours, kernel) in ours.lines().zip(kernel.lines()) {
            if ours != kernel {
                writeln!(report, "    {ours}; the kernel: {kernel}").expect("memory");
            }
        }
    }
    assert!(report.is_empty(), "{name}:\n{report}");
}

#[test]
fn edges_of_a_file_are_as_in_the_kernel() {
    need_root!();
    compare("defaults", Image::builder(), 4096, true);
}

#[test]
fn edges_of_a_file_with_1k_blocks_are_as_in_the_kernel() {
    need_root!();
    compare("1k", Image::builder().block_size(1024), 1024, true);
}

#[test]
fn edges_of_a_file_with_bigalloc_are_as_in_the_kernel() {
    need_root!();
    let builder = Image::builder().features("bigalloc");
    compare("bigalloc", builder.args(&["-C", "16384"]), 16384, true);
}

#[test]
fn edges_of_a_file_without_extents_are_as_in_the_kernel() {
    need_root!();
    let builder = Image::builder().features("^extents,^64bit");
    compare("indirect", builder, 4096, false);
}
