//! `dioxide cat`.

use crate::address::Address;
use crate::args::CatArgs;
use crate::failure::{Failure, Status, for_each};
use crate::images::Images;
use crate::output::Out;
use crate::progress::Progress;
use dioxide::{Buf, File};
use std::io::Write;

/// One read: large, aligned, and all the memory that is used for data.
const CHUNK_BYTES: usize = 1 << 20;

pub fn run(args: &CatArgs, out: &mut Out) -> Result<Status, Failure> {
    let mut images = Images::new(&args.open);
    let mut buf = Buf::zeroed(CHUNK_BYTES);
    for_each(&args.paths, |address| {
        let file = images.file(address)?;
        copy(&file, address, &mut buf, out)
    })
}

fn copy(file: &File, address: &Address, buf: &mut Buf, out: &mut Out) -> Result<(), Failure> {
    let total = file.len();
    let mut progress = if out.is_terminal() {
        Progress::none()
    } else {
        Progress::of_bytes(total)
    };
    let mut offset = 0;
    loop {
        let count = file
            .read_at(buf, offset)
            .map_err(|error| Failure::engine(address, &address.path, &error))?;
        if count == 0 {
            return Ok(());
        }
        out.write_all(&buf[..count])?;
        offset += count as u64;
        progress.advance(count as u64);
    }
}
