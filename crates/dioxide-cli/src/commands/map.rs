//! `dioxide map`: what each part of an image is used for, on a terminal, as SVG, HTML or JSON.

pub mod picture;

use crate::args::MapArgs;
use crate::failure::{Failure, Status};
use crate::images::warn_if_used;
use crate::output::{Out, check_pictures};
use crate::progress::Progress;
use crate::render::{bytes_words, count_words};
use dioxide::check::layout::{ImageMap, Kind, image_map};
use std::io::Write;

/// Signs of the kinds, in the order of [`Kind::ALL`], and their colours on a terminal.
const SIGNS: [char; 7] = ['S', 'b', 'i', 'j', 'd', '#', '.'];
const COLOURS: [u8; 7] = [31, 35, 36, 33, 32, 34, 90];
/// Signs in a line.
const WIDEST: usize = 128;
/// Lines of a picture of few groups, and lines of groups where there are many.
const LINES: usize = 24;
const MOST_BANDS: usize = 64;

pub fn run(args: &MapArgs, out: &mut Out) -> Result<Status, Failure> {
    check_pictures(args.json, [&args.svg, &args.html])?;
    warn_if_used(&args.image.image);
    let fail = |error: dioxide::Error| Failure::engine(args.image.image.display(), b"", &error);
    let device = args.image.open().map_err(|error| fail(error.into()))?;
    let options = args
        .image
        .check_options()
        .map_err(|error| fail(error.into()))?;
    let mut bar = Progress::of_steps();
    // Kept open: a picture that is to have the image's name finds it in use.
    let map = image_map(device.clone(), &options, &mut |progress| {
        bar.set(progress.done, progress.total, progress.pass.to_string());
    });
    let map = map.map_err(fail)?;
    let name = args.image.image.display().to_string();
    if let Some(path) = &args.svg {
        out.file(path, &picture::svg(&name, &map))?;
    }
    if let Some(path) = &args.html {
        out.file(path, &picture::html(&name, &map))?;
    }
    match (args.json, args.svg.is_some() || args.html.is_some()) {
        (true, _) => out.json(&map)?,
        (false, true) => {}
        (false, false) => print(&map, out)?,
    }
    Ok(Status::Fine)
}

fn columns() -> usize {
    let columns = std::env::var("COLUMNS")
        .ok()
        .and_then(|word| word.parse().ok());
    columns.unwrap_or(80).clamp(16, WIDEST)
}

fn print(map: &ImageMap, out: &mut Out) -> Result<(), Failure> {
    let colours = out.is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let bands = picture::bands(map, MOST_BANDS);
    let margin = bands.iter().map(|band| band.label().len()).max();
    let margin = margin.unwrap_or(0) + 1;
    let width = columns().saturating_sub(margin).max(8);
    // Signs of the longest band, which the others' are as large as.
    let signs = width * (LINES / bands.len().max(1)).max(1);
    let longest = bands.iter().map(|band| band.cells(1).len()).max();
    let per_sign = longest.unwrap_or(1).div_ceil(signs).max(1);
    let sign_blocks = map.cell_blocks * per_sign as u64;
    let bytes = sign_blocks * u64::from(map.block_size);
    writeln!(
        out,
        "{} in {}; a sign is {}",
        count_words(map.blocks, "block"),
        count_words(map.groups.into(), "group"),
        bytes_words(bytes)
    )?;
    for band in &bands {
        let mut label = band.label();
        for line in band.cells(per_sign).chunks(width) {
            write!(out, "{label:margin$}")?;
            for cell in line {
                write_sign(cell.most(), colours, out)?;
            }
            writeln!(out)?;
            label.clear();
        }
    }
    for (kind, blocks) in Kind::ALL.into_iter().zip(map.total.blocks) {
        write_sign(kind, colours, out)?;
        let bytes = bytes_words(blocks * u64::from(map.block_size));
        writeln!(out, " {:28} {blocks:>12} blocks  {bytes}", kind.name())?;
    }
    writeln!(
        out,
        "Free runs, by length in blocks; the longest has {}:",
        map.longest_free
    )?;
    for size in &map.free_runs {
        let (least, most) = (size.least_blocks, size.least_blocks * 2 - 1);
        let share =
            100.0 * size.blocks as f64 / map.total.blocks[Kind::Free as usize].max(1) as f64;
        writeln!(
            out,
            "{least:>10} to {most:<10} {:>8} runs {:>12} blocks {share:5.1}%",
            size.runs, size.blocks
        )?;
    }
    Ok(())
}

fn write_sign(kind: Kind, colours: bool, out: &mut Out) -> Result<(), Failure> {
    let sign = SIGNS[kind as usize];
    match colours {
        true => write!(out, "\x1b[{}m{sign}\x1b[0m", COLOURS[kind as usize])?,
        false => write!(out, "{sign}")?,
    }
    Ok(())
}
