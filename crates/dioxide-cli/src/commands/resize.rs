//! `dioxide resize`: the size of a file system changed, and what came of it.

use crate::args::ResizeArgs;
use crate::failure::{Failure, Status, complain};
use crate::interrupt;
use crate::output::Out;
use crate::progress::{Progress, waiting};
use crate::render::{Text, bytes_words};
use dioxide::format::superblock::SuperBlock;
use dioxide::resize::{self, ResizeOptions, Step};
use serde::Serialize;
use std::io::Write;

/// What came of it, for programs.
#[derive(Serialize)]
struct Told {
    #[serde(flatten)]
    image: Text,
    size_bytes_before: u64,
    size_bytes: u64,
    blocks: u64,
    free_blocks: u64,
    inodes: u32,
    groups: u32,
    changed: bool,
}

#[derive(Serialize)]
struct Least {
    #[serde(flatten)]
    image: Text,
    minimum_bytes: u64,
}

fn size_bytes(sb: &SuperBlock) -> u64 {
    sb.blocks_count() * u64::from(sb.block_size())
}

pub fn run(args: &ResizeArgs, out: &mut Out) -> Result<Status, Failure> {
    let about = args.image.display();
    let failed = |error| Failure::engine(&about, b"", &error);
    let image = || Text::path("image", &args.image);
    let options = ResizeOptions {
        img_offset: args.img_offset,
        max_memory: args.max_memory,
    };
    let mut bar = Progress::of_steps();
    let mut tell = |step: Step, done, total| match step {
        Step::Wait => waiting(&step.to_string()),
        _ => bar.set(done, total, step.to_string()),
    };
    let mut minimum = || resize::minimum_telling(&args.image, &options, &mut tell).map_err(failed);
    if args.minimum {
        let minimum_bytes = minimum()?;
        drop(bar);
        match args.json {
            true => out.json(&Least {
                image: image(),
                minimum_bytes,
            })?,
            false => writeln!(out, "{minimum_bytes}")?,
        }
        return Ok(Status::Fine);
    }
    let size = match args.shrink {
        true => Some(minimum()?),
        false => args.size,
    };
    // What has begun is finished: what is left in the middle has to be recovered.
    interrupt::watch();
    let done = resize::resize_telling(&args.image, size, &options, &mut tell).map_err(failed)?;
    drop(bar);
    let (before, after) = (size_bytes(&done.before), size_bytes(&done.after));
    if args.json {
        out.json(&Told {
            image: image(),
            size_bytes_before: before,
            size_bytes: after,
            blocks: done.after.blocks_count(),
            free_blocks: done.after.free_blocks_count(),
            inodes: done.after.inodes_count(),
            groups: done.after.group_count(),
            changed: before != after,
        })?;
    } else if before == after {
        writeln!(out, "{about}: {} as before", bytes_words(after))?;
    } else {
        let (before, after) = (bytes_words(before), bytes_words(after));
        writeln!(out, "{about}: {after}, was {before}")?;
    }
    interrupt::check()?;
    match size {
        Some(size) if !args.shrink && after < before && after > size => {
            let words = bytes_words(size);
            complain(format!(
                "{about}: could not be made {words}: what is in use leaves no room for more to be moved"
            ));
            Ok(Status::Negative)
        }
        _ => Ok(Status::Fine),
    }
}
