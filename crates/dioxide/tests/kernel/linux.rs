//! Operations carried out by the kernel, on a loop mount.

use crate::ops::{FILES, What, data};
use dioxide::FallocateMode;
use dioxide_testkit::Mount;
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek, syncfs};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

fn flags(mode: FallocateMode) -> FallocateFlags {
    let keep = FallocateFlags::KEEP_SIZE;
    match mode {
        FallocateMode::Allocate => FallocateFlags::empty(),
        FallocateMode::KeepSize => keep,
        FallocateMode::PunchHole => FallocateFlags::PUNCH_HOLE | keep,
        FallocateMode::ZeroRange => FallocateFlags::ZERO_RANGE,
        FallocateMode::ZeroRangeKeepSize => FallocateFlags::ZERO_RANGE | keep,
        FallocateMode::CollapseRange => FallocateFlags::COLLAPSE_RANGE,
        FallocateMode::InsertRange => FallocateFlags::INSERT_RANGE,
        other => panic!("{other:?} is new"),
    }
}

/// Carries an operation out.
pub fn run(what: &What, file: &File) -> io::Result<()> {
    match *what {
        What::Write { at, len, seed } => file.write_all_at(&data(len, seed), at),
        What::Truncate { size } => file.set_len(size),
        // Refused on loop devices.
        What::Allocate(FallocateMode::WriteZeroes, at, len) => {
            fallocate(file, FallocateFlags::ZERO_RANGE, at, len)?;
            file.write_all_at(&vec![0; len as usize], at)
        }
        What::Allocate(mode, at, len) => Ok(fallocate(file, flags(mode), at, len)?),
        What::SyncAll => file.sync_all(),
        What::SyncData => file.sync_data(),
        What::SyncFs => Ok(syncfs(file)?),
    }
}

/// Mounts an image so that the kernel splits unwritten extents as we do. (By default it writes zeros
/// into what is left of up to 32 KiB, which is then data.)
pub fn mount(image: &std::path::Path) -> Mount {
    let mount = Mount::ext4(image, "");
    let device = mount.device().expect("an image").path();
    let name = device.file_name().expect("a name").to_str().expect("ASCII");
    let knob = format!("/sys/fs/ext4/{name}/extent_max_zeroout_kb");
    std::fs::write(&knob, "0").unwrap_or_else(|error| panic!("{knob}: {error}"));
    mount
}

pub fn open_files(mount: &Mount) -> Vec<File> {
    let path = |number| mount.path().join(format!("f{number}"));
    let open = |number| File::options().read(true).write(true).open(path(number));
    (0..FILES)
        .map(|number| open(number).expect("it exists"))
        .collect()
}

pub fn content(file: &File) -> Vec<u8> {
    let mut found = vec![0xEE; file.metadata().expect("it is open").len() as usize];
    file.read_exact_at(&mut found, 0).expect("a read");
    found
}

/// Which blocks inside the file are data. Syncs first.
pub fn data_blocks(file: &File, block: u64) -> Vec<bool> {
    file.sync_all().expect("a sync");
    let blocks = file.metadata().expect("it is open").len().div_ceil(block);
    let mut data = vec![false; blocks as usize];
    let mut at = 0;
    while let Ok(start) = seek(file, SeekFrom::Data(at)) {
        let end = seek(file, SeekFrom::Hole(start)).expect("the end is a hole");
        data[(start / block) as usize..end.div_ceil(block) as usize].fill(true);
        at = end;
    }
    data
}
