//! `dioxide trim`: free space given back.

use crate::args::TrimArgs;
use crate::failure::{Failure, Status};
use crate::images::pass_on;
use crate::interrupt;
use crate::output::Out;
use crate::progress::{Progress, waiting};
use crate::render::{Text, bytes_words};
use dioxide::format::types::{Group, Pblk};
use dioxide::{Error, Fs, MountOptions};
use serde::Serialize;
use std::io::Write;
use std::ops::Range;

/// What came of it, for programs.
#[derive(Serialize)]
struct Told {
    #[serde(flatten)]
    image: Text,
    trimmed_bytes: u64,
}

pub fn run(args: &TrimArgs, out: &mut Out) -> Result<Status, Failure> {
    interrupt::watch();
    let about = args.image.display();
    let failed = |error| Failure::engine(&about, b"", &error);
    let options = MountOptions::new()
        .backend(args.backend)
        .img_offset(args.img_offset)
        .on_wait(waiting);
    let fs = Fs::open(&args.image, &args.journal.set(options)).map_err(failed)?;
    pass_on(&args.image, &fs);
    let end = match args.length {
        Some(length) => args.offset.saturating_add(length),
        None => u64::MAX,
    };
    let trimmed = trim(&fs, args.offset..end, args.min, failed);
    // Closed cleanly whatever came of it; what went wrong first is told.
    let closed = fs.close();
    let trimmed_bytes = trimmed?;
    closed.map_err(failed)?;
    match args.json {
        true => out.json(&Told {
            image: Text::path("image", &args.image),
            trimmed_bytes,
        })?,
        false => writeln!(out, "{about}: {} trimmed", bytes_words(trimmed_bytes))?,
    }
    Ok(Status::Fine)
}

/// Groups between two looks at the bar, and whether a signal asks for an end.
const AT_ONCE: u32 = 8;

/// Free runs end where groups do, so a piece of whole groups loses nothing.
fn trim(
    fs: &Fs,
    bytes: Range<u64>,
    min_len: u64,
    failed: impl Fn(Error) -> Failure,
) -> Result<u64, Failure> {
    let sb = fs.superblock();
    let block_bytes = u64::from(sb.block_size());
    let all = sb.blocks_count() * block_bytes;
    let end = bytes.end.min(all);
    if bytes.start >= end {
        return fs.trim(0..0, min_len).map_err(failed);
    }
    let mut bar = Progress::of_steps();
    let (mut at, mut trimmed) = (bytes.start, 0);
    loop {
        interrupt::check()?;
        // Before the first group there may be a block.
        let group = sb.group_of_block(Pblk(at / block_bytes));
        let next = Group(group.map_or(0, |group| group.0).saturating_add(AT_ONCE));
        let stop = end.min(sb.group_first_block(next).0 * block_bytes);
        trimmed += fs.trim(at..stop, min_len).map_err(&failed)?;
        if stop == end {
            return Ok(trimmed);
        }
        at = stop;
        bar.set(next.0.into(), sb.group_count().into(), "groups".into());
    }
}
