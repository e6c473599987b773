//! Listings for people: one name in a line, or the long shape of `ls -l`.

use super::{Listing, Row};
use crate::args::LsArgs;
use crate::failure::Failure;
use crate::output::Out;
use crate::render::{Name, list_time, mode_string, now_secs};
use std::io::{self, Write};

/// Files first, then directories, each under its name if there is more than one operand.
pub(super) fn print(
    args: &LsArgs,
    files: Vec<Listing>,
    directories: &[Listing],
    out: &mut Out,
) -> Result<(), Failure> {
    let titles = args.paths.len() > 1;
    let mut apart = !files.is_empty();
    let rows: Vec<Row> = files
        .into_iter()
        .flat_map(|listing| listing.entries)
        .collect();
    print_rows(args.long, &rows, out)?;
    for listing in directories {
        if apart {
            writeln!(out)?;
        }
        apart = true;
        if titles {
            writeln!(out, "{}:", listing.title)?;
        }
        if args.long {
            let blocks: u64 = listing
                .entries
                .iter()
                .flat_map(|row| &row.metadata)
                .map(|m| m.blocks)
                .sum();
            writeln!(out, "total {}", blocks.div_ceil(2))?;
        }
        print_rows(args.long, &listing.entries, out)?;
    }
    Ok(())
}

fn print_rows(long: bool, rows: &[Row], out: &mut Out) -> io::Result<()> {
    let lines: Vec<Long> = if long {
        rows.iter().map(long_line).collect()
    } else {
        Vec::new()
    };
    let widths = Long::widths(&lines);
    for (index, row) in rows.iter().enumerate() {
        if let Some(line) = lines.get(index) {
            line.print(&widths, out)?;
        }
        out.name(&row.name.0)?;
        if let Some(Name(target)) = &row.target {
            out.write_all(b" -> ")?;
            out.name(target)?;
        }
        writeln!(out)?;
    }
    Ok(())
}

/// The columns of a long line that stand before the name; all but mode and time flush right.
struct Long {
    mode: String,
    numbers: [String; 4],
    time: String,
}

fn long_line(row: &Row) -> Long {
    let unknown = || "?".to_owned();
    let Some(metadata) = &row.metadata else {
        return Long {
            mode: "?".repeat(10),
            numbers: std::array::from_fn(|_| unknown()),
            time: format!("{:>12}", "?"),
        };
    };
    let size = match metadata.device {
        Some((major, minor)) => format!("{major}, {minor}"),
        None => metadata.size.to_string(),
    };
    Long {
        mode: mode_string(metadata.file_type, metadata.permissions),
        numbers: [
            metadata.nlink.to_string(),
            metadata.uid.to_string(),
            metadata.gid.to_string(),
            size,
        ],
        time: list_time(metadata.mtime, now_secs()),
    }
}

impl Long {
    fn widths(lines: &[Long]) -> [usize; 4] {
        std::array::from_fn(|column| {
            lines
                .iter()
                .map(|line| line.numbers[column].len())
                .max()
                .unwrap_or(0)
        })
    }

    fn print(&self, widths: &[usize; 4], out: &mut Out) -> io::Result<()> {
        write!(out, "{}", self.mode)?;
        for (number, width) in self.numbers.iter().zip(widths) {
            write!(out, " {number:>width$}")?;
        }
        write!(out, " {} ", self.time)
    }
}
