//! `dioxide df`: in the columns of `df`.

use crate::address::Operand;
use crate::args::{DfArgs, ImageArgs};
use crate::failure::{Failure, Status};
use crate::images::Purpose;
use crate::output::Out;
use crate::render::{Text, human};
use crate::session::{Place, Session, told};
use dioxide::format::features::Features;
use dioxide::{Fs, StatFs};
use serde::Serialize;
use std::io::Write;
use std::path::PathBuf;

#[derive(Serialize)]
struct Row {
    #[serde(flatten)]
    image: Text,
    #[serde(rename = "type")]
    fs_type: &'static str,
    #[serde(flatten)]
    stat: StatFs,
}

pub fn run(args: &DfArgs, session: &mut Session, out: &mut Out) -> Result<Status, Failure> {
    let mut rows = Vec::new();
    let status = for_each_image(
        &args.images,
        &args.open,
        Purpose::Look,
        session,
        &mut |image, fs| {
            rows.push(Row {
                image: Text::path("image", &image),
                fs_type: fs_type(&fs),
                stat: fs.statfs(),
            });
            Ok(())
        },
    )?;
    match args.json {
        true => out.json(&rows)?,
        false if rows.is_empty() => {}
        false => print(args, &rows, out)?,
    }
    Ok(status)
}

/// Runs over images that are named by themselves or by a path inside; in a shell, over its own if none is named.
pub(super) fn for_each_image(
    operands: &[Operand],
    open: &ImageArgs,
    purpose: Purpose,
    session: &mut Session,
    run: &mut dyn FnMut(PathBuf, Fs) -> Result<(), Failure>,
) -> Result<Status, Failure> {
    session.begin(open, purpose);
    if operands.is_empty() && session.shell().is_none() {
        return Err(Failure::plain("which image? Write IMG, such as disk.img"));
    }
    let operands = session.or_here(operands)?;
    let mut worst = Status::Fine;
    for operand in &operands {
        let result = session.place(operand).and_then(|place| {
            let image = match place {
                Place::Image { address, .. } => address.image,
                Place::Host(image) => image,
            };
            let fs = match purpose {
                Purpose::Look => session.fs_for(&image, purpose)?,
                // In a shell that may only look it does not.
                Purpose::Change => session.fs(&image)?,
            };
            run(image, fs)
        });
        worst = worst.max(told(result)?);
    }
    Ok(worst)
}

/// As blkid tells them apart.
pub(super) fn fs_type(fs: &Fs) -> &'static str {
    let Features {
        compat,
        incompat,
        ro_compat,
    } = fs.superblock().features();
    use dioxide::format::features::{Compat, Incompat, RoCompat};
    let ext3 = Incompat::FILETYPE
        .union(Incompat::NEEDS_RECOVERY)
        .union(Incompat::META_BG);
    let ext3_ro = RoCompat::SPARSE_SUPER.union(RoCompat::LARGE_FILE);
    let beyond =
        !incompat.unsupported(ext3).is_empty() || !ro_compat.unsupported(ext3_ro).is_empty();
    if beyond {
        "ext4"
    } else if compat.contains(Compat::HAS_JOURNAL) {
        "ext3"
    } else {
        "ext2"
    }
}

/// A column: its words, the fewest characters, and whether they stand at the left.
struct Column {
    cells: Vec<String>,
    width: usize,
    left: bool,
}

impl Column {
    fn new(head: &str, least: usize, left: bool, cells: impl Iterator<Item = String>) -> Column {
        let cells: Vec<_> = std::iter::once(head.to_owned()).chain(cells).collect();
        let chars = |cell: &String| cell.chars().count();
        let width = cells.iter().map(chars).max().unwrap_or(0).max(least);
        Column { cells, width, left }
    }
}

fn print(args: &DfArgs, rows: &[Row], out: &mut Out) -> Result<(), Failure> {
    let left = |head: &str, least, cell: &dyn Fn(&Row) -> String| {
        Column::new(head, least, true, rows.iter().map(cell))
    };
    let image = |row: &Row| row.image.to_string();
    let mut columns = vec![left("Filesystem", 14, &image)];
    if args.print_type {
        columns.push(left("Type", 4, &|row| row.fs_type.to_owned()));
    }
    columns.extend(match args.inodes {
        true => inode_columns(args, rows),
        false => block_columns(args, rows),
    });
    columns.push(left("Mounted on", 0, &|_| "-".to_owned()));
    print_columns(&columns, rows.len() + 1, out)
}

fn column(rows: &[Row], head: &str, least: usize, cell: &dyn Fn(&StatFs) -> String) -> Column {
    Column::new(head, least, false, rows.iter().map(|row| cell(&row.stat)))
}

fn inode_columns(args: &DfArgs, rows: &[Row]) -> [Column; 4] {
    let count = |number: u64| match args.human_readable {
        true => human(number),
        false => number.to_string(),
    };
    let used = |stat: &StatFs| stat.files.saturating_sub(stat.files_free);
    [
        column(rows, "Inodes", 5, &|stat| count(stat.files)),
        column(rows, "IUsed", 5, &|stat| count(used(stat))),
        column(rows, "IFree", 5, &|stat| count(stat.files_free)),
        column(rows, "IUse%", 5, &|stat| {
            percent(used(stat), stat.files_free)
        }),
    ]
}

fn block_columns(args: &DfArgs, rows: &[Row]) -> [Column; 4] {
    let unit = args.block_size.unwrap_or(1024);
    let space = |stat: &StatFs, blocks: u64| {
        let bytes = u128::from(blocks) * u128::from(stat.block_size);
        match args.human_readable {
            true => human(u64::try_from(bytes).unwrap_or(u64::MAX)),
            false => bytes.div_ceil(unit.into()).to_string(),
        }
    };
    let used = |stat: &StatFs| stat.blocks.saturating_sub(stat.blocks_free);
    let (size, available) = match (args.human_readable, args.portability) {
        (true, _) => ("Size".to_owned(), "Avail"),
        (false, true) => (format!("{unit}-blocks"), "Available"),
        (false, false) => (block_words(unit), "Available"),
    };
    let share = if args.portability { "Capacity" } else { "Use%" };
    [
        column(rows, &size, 5, &|stat| space(stat, stat.blocks)),
        column(rows, "Used", 5, &|stat| space(stat, used(stat))),
        column(rows, available, 5, &|stat| {
            space(stat, stat.blocks_available)
        }),
        column(rows, share, 4, &|stat| {
            percent(used(stat), stat.blocks_available)
        }),
    ]
}

fn print_columns(columns: &[Column], lines: usize, out: &mut Out) -> Result<(), Failure> {
    for line in 0..lines {
        let cells = columns.iter().map(|column| {
            let (cell, width) = (&column.cells[line], column.width);
            match column.left {
                true => format!("{cell:<width$}"),
                false => format!("{cell:>width$}"),
            }
        });
        let text = cells.collect::<Vec<_>>().join(" ");
        writeln!(out, "{}", text.trim_end())?;
    }
    Ok(())
}

/// `1K-blocks`, `1M-blocks`, `1kB-blocks`, `512B-blocks`.
fn block_words(bytes: u64) -> String {
    const UNITS: &str = "KMGTPE";
    let scaled = |base: u64, suffix: &str| {
        let fits = |power: u32| {
            base.checked_pow(power)
                .is_some_and(|unit| bytes.is_multiple_of(unit))
        };
        let (unit, power) = UNITS
            .chars()
            .zip(1..)
            .take_while(|(_, power)| fits(*power))
            .last()?;
        let unit = if base == 1000 && unit == 'K' {
            'k'
        } else {
            unit
        };
        Some(format!("{}{unit}{suffix}-blocks", bytes / base.pow(power)))
    };
    let words = scaled(1024, "").or_else(|| scaled(1000, "B"));
    words.unwrap_or_else(|| format!("{bytes}B-blocks"))
}

/// Of what could be used, rounded up.
fn percent(used: u64, free: u64) -> String {
    match u128::from(used) + u128::from(free) {
        0 => "-".to_owned(),
        all => format!("{}%", (u128::from(used) * 100).div_ceil(all)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_sizes_are_named_as_in_df() {
        for (bytes, words) in [
            (1024, "1K-blocks"),
            (1 << 20, "1M-blocks"),
            (4096, "4K-blocks"),
            (1000, "1kB-blocks"),
            (512, "512B-blocks"),
        ] {
            assert_eq!(block_words(bytes), words);
        }
    }

    #[test]
    fn percent_is_rounded_up_and_of_nothing_is_none() {
        assert_eq!(percent(0, 0), "-");
        assert_eq!(percent(1, 999), "1%");
        assert_eq!(percent(1, 99), "1%");
        assert_eq!(percent(101, 9899), "2%");
    }
}
