//! Files and directories of a certain shape.
//!
//! Functions that take a path work in a mounted image (so the kernel allocates) and, for what they
//! can express there, in a source tree for [`ImageBuilder::source`](crate::ImageBuilder::source).
//! Contents are the [pattern](mod@crate::pattern) of a seed.

use crate::image::Image;
use crate::pattern::fill_pattern;
use crate::tools::{debugfs, dumpe2fs};
use rustix::fs::{FallocateFlags, fallocate};
use std::fs::{self, File};
use std::io::Write;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

const CHUNK: u64 = 1 << 20;

/// A file of `len` bytes, all written, in as few extents as free space allows.
pub fn contiguous(path: &Path, len: u64, seed: u64) {
    let file = create(path);
    // In one piece first: else the allocator sees the file grow.
    fallocate(&file, FallocateFlags::empty(), 0, len).expect("fallocate");
    write_range(&file, 0..len, seed);
    file.sync_all().expect("sync");
}

/// A file of `len` bytes with data in `written` only; the rest are holes. Ranges that are not whole
/// blocks make whole blocks of data, with zeros in the rest.
pub fn sparse(path: &Path, len: u64, written: &[Range<u64>], seed: u64) {
    let file = create(path);
    file.set_len(len).expect("size");
    for range in written {
        write_range(&file, range.clone(), seed);
    }
    file.sync_all().expect("sync");
}

/// A file of `len` bytes, allocated and never written.
pub fn unwritten(path: &Path, len: u64) {
    let file = create(path);
    fallocate(&file, FallocateFlags::empty(), 0, len).expect("fallocate");
    file.sync_all().expect("sync");
}

/// A file of `extents` extents of one block each, with a hole of one block after each.
pub fn punched(path: &Path, extents: u64, block_bytes: u64, seed: u64) {
    let len = 2 * extents * block_bytes;
    contiguous(path, len, seed);
    let file = File::options().write(true).open(path).expect("file");
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    for i in 0..extents {
        let offset = (2 * i + 1) * block_bytes;
        fallocate(&file, punch, offset, block_bytes).expect("punch");
    }
    file.sync_all().expect("sync");
}

/// A directory of `count` empty files, named by [`entry_name`].
pub fn directory(path: &Path, count: u64) {
    fs::create_dir(path).expect("directory");
    for i in 0..count {
        create(&path.join(entry_name(i)));
    }
}

/// The name of file `index` in a [`directory`]: `entry-00000042`.
pub fn entry_name(index: u64) -> String {
    format!("entry-{index:08}")
}

/// A file `name` in the root directory of an unmounted image, of `extents` blocks without a hole, no
/// two of which are neighbours on the device. Needs no root.
///
/// # Panics
/// If the image has not a little over twice as many free blocks. Not for bigalloc.
pub fn fragmented(image: &Image, name: &str, extents: u64, seed: u64) {
    let block = field(image, "Block size:");
    let mut host = tempfile::NamedTempFile::new().expect("temporary file");
    let mut bytes = vec![0; (extents * block) as usize];
    fill_pattern(seed, 0, &mut bytes);
    host.write_all(&bytes).expect("temporary file");
    host.flush().expect("temporary file");
    // debugfs takes the first free block each time. With every other one out of the way, none has
    // a free neighbour. Some go to the extent tree.
    // Writable: ffb initialises the bitmaps of the groups that it meets.
    let find = format!("ffb {}", 2 * extents + extents / 10 + 64);
    let found = debugfs(image.path(), &[find]);
    let (_, free) = found.split_once("found: ").expect("Free blocks found: ...");
    let aside: Vec<&str> = free.split_whitespace().skip(1).step_by(2).collect();
    let mut commands: Vec<String> = aside.iter().map(|b| format!("setb {b}")).collect();
    commands.push(format!("write {} {name}", host.path().display()));
    commands.extend(aside.iter().map(|b| format!("freeb {b}")));
    debugfs(image.path(), &commands);
}

fn field(image: &Image, name: &str) -> u64 {
    let text = dumpe2fs(image.path());
    let row = text.lines().find_map(|row| row.strip_prefix(name));
    let value = row.and_then(|value| value.trim().parse().ok());
    value.unwrap_or_else(|| panic!("no {name} in\n{text}"))
}

fn create(path: &Path) -> File {
    File::create_new(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn write_range(file: &File, range: Range<u64>, seed: u64) {
    let mut chunk = vec![0; CHUNK as usize];
    for offset in range.clone().step_by(CHUNK as usize) {
        let part = &mut chunk[..CHUNK.min(range.end - offset) as usize];
        fill_pattern(seed, offset, part);
        file.write_all_at(part, offset).expect("write");
    }
}
