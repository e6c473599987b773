//! `dioxide cat`.

use crate::args::CatArgs;
use crate::failure::{Failure, Status};
use crate::images::Purpose;
use crate::output::Out;
use crate::progress::Progress;
use crate::session::{Session, Target};
use dioxide::Buf;
use std::io::Write;

/// One read: large, aligned, and all the memory that is used for data.
const CHUNK_BYTES: usize = 1 << 20;

pub fn run(args: &CatArgs, session: &mut Session, out: &mut Out) -> Result<Status, Failure> {
    session.begin(&args.open, Purpose::Look);
    let mut buf = Buf::zeroed(CHUNK_BYTES);
    session.for_each(&args.paths, |target| copy(&target, &mut buf, out))
}

fn copy(target: &Target, buf: &mut Buf, out: &mut Out) -> Result<(), Failure> {
    let file = target.open_read()?;
    let mut progress = if out.is_terminal() {
        Progress::none()
    } else {
        Progress::of_bytes(file.len())
    };
    let mut offset = 0;
    loop {
        crate::interrupt::check()?;
        let count = file
            .read_at(buf, offset)
            .map_err(|error| target.failure(&error))?;
        if count == 0 {
            return Ok(());
        }
        out.write_all(&buf[..count])?;
        offset += count as u64;
        progress.advance(count as u64);
    }
}
