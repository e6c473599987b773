//! `dioxide trim`: free space given back.

use crate::args::TrimArgs;
use crate::failure::{Failure, Status};
use crate::output::Out;
use crate::progress::waiting;
use crate::render::{Text, bytes_words};
use dioxide::{Fs, MountOptions};
use serde::Serialize;
use std::io::Write;

/// What came of it, for programs.
#[derive(Serialize)]
struct Told {
    #[serde(flatten)]
    image: Text,
    trimmed_bytes: u64,
}

pub fn run(args: &TrimArgs, out: &mut Out) -> Result<Status, Failure> {
    let about = args.image.display();
    let failed = |error| Failure::engine(&about, b"", &error);
    let options = MountOptions::new()
        .backend(args.backend)
        .img_offset(args.img_offset)
        .on_wait(waiting);
    let fs = Fs::open(&args.image, &args.journal.set(options)).map_err(failed)?;
    let end = match args.length {
        Some(length) => args.offset.saturating_add(length),
        None => u64::MAX,
    };
    let trimmed = fs.trim(args.offset..end, args.min);
    // Closed cleanly whatever came of it; what went wrong first is told.
    let closed = fs.close();
    let trimmed_bytes = trimmed.map_err(failed)?;
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
