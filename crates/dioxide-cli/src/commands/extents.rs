//! `dioxide extents`: where a file lies, in the shape of `filefrag -v`, and as a picture.
//!
//! Lines are written as they are found: a file may have a million. Only JSON gathers them first.

mod drawing;
mod picture;

use crate::args::ExtentsArgs;
use crate::failure::{Failure, Status};
use crate::images::Purpose;
use crate::output::{Out, check_pictures};
use crate::render::count_words;
use crate::session::{JsonFile, Session, Target};
use dioxide::format::inode::InodeFlags;
use dioxide::{File, MapKind};
use picture::Picture;
use serde::Serialize;
use std::io::{self, Write};

const HEADER: &str = " ext:     logical_offset:        physical_offset: length:   expected: flags:";

/// Blocks that touch in the file and on the device, and are of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct Piece {
    logical: u64,
    physical: u64,
    length: u64,
    /// Where it would begin had the file gone on without a jump, if that is elsewhere.
    expected: Option<u64>,
    unwritten: bool,
    /// Reaches the end of the file, or past it.
    eof: bool,
    last: bool,
}

#[derive(Serialize)]
struct Told {
    #[serde(flatten)]
    file: JsonFile,
    /// For pictures.
    #[serde(skip)]
    path: String,
    ino: u32,
    size: u64,
    block_size: u32,
    /// The data lies in the inode.
    inline: bool,
    extents: Vec<Piece>,
    picture: String,
}

pub fn run(args: &ExtentsArgs, session: &mut Session, out: &mut Out) -> Result<Status, Failure> {
    check_pictures(args.json, [&args.svg, &args.html])?;
    session.begin(&args.open, Purpose::Look);
    let mut all = Vec::new();
    let status = session.for_each(&args.paths, |target| {
        let file = target.open_read()?;
        if args.json || args.svg.is_some() || args.html.is_some() {
            all.push(gather(&file, &target)?);
            return Ok(());
        }
        print(&file, &target, out)
    })?;
    draw(args, &all, out)?;
    if args.json {
        out.json(&all)?;
    }
    Ok(status)
}

fn draw(args: &ExtentsArgs, files: &[Told], out: &mut Out) -> Result<(), Failure> {
    match (&args.svg, files) {
        (Some(path), [file]) => out.file(path, &drawing::svg(file))?,
        (Some(path), [_, ..]) => {
            let what = "a picture shows one file; --html shows several";
            return Err(Failure::trouble(path.display(), what));
        }
        _ => {}
    }
    match &args.html {
        Some(path) => out.file(path, &drawing::html(files)),
        None => Ok(()),
    }
}

fn gather(file: &File, target: &Target) -> Result<Told, Failure> {
    let metadata = file.metadata();
    let mut extents = Vec::new();
    let mut picture = Picture::new(size_blocks(file));
    for_each_piece(file, target, |piece| {
        picture.add(piece);
        extents.push(*piece);
        Ok(())
    })?;
    Ok(Told {
        file: target.json(),
        path: String::from_utf8_lossy(target.path()).into_owned(),
        ino: metadata.ino,
        size: metadata.size,
        block_size: metadata.block_size,
        inline: is_inline(file),
        extents,
        picture: picture.to_string(),
    })
}

fn print(file: &File, target: &Target, out: &mut Out) -> Result<(), Failure> {
    let metadata = file.metadata();
    let blocks = size_blocks(file);
    let counted = count_words(blocks, "block");
    writeln!(
        out,
        "File size of {target} is {} ({counted} of {} bytes)",
        metadata.size, metadata.block_size
    )?;
    let mut picture = Picture::new(blocks);
    let mut count = 0;
    for_each_piece(file, target, |piece| {
        if count == 0 {
            writeln!(out, "{HEADER}")?;
        }
        print_piece(count, piece, out)?;
        picture.add(piece);
        count += 1;
        Ok(())
    })?;
    if is_inline(file) {
        writeln!(out, "{target}: the data lies in the inode")?;
    } else if blocks > 0 {
        writeln!(out, "[{picture}] {}", picture::LEGEND)?;
    }
    Ok(writeln!(
        out,
        "{target}: {} found",
        count_words(count, "extent")
    )?)
}

fn print_piece(index: u64, piece: &Piece, out: &mut Out) -> io::Result<()> {
    let Piece {
        logical,
        physical,
        length,
        expected,
        ..
    } = *piece;
    let (logical_last, physical_last) = (logical + length - 1, physical + length - 1);
    let expected = expected.map_or_else(String::new, |block| format!("{block}:"));
    writeln!(
        out,
        "{index:4}: {logical:8}..{logical_last:8}: {physical:10}..{physical_last:10}: {length:6}: {expected:>11} {}",
        flags(piece)
    )
}

fn flags(piece: &Piece) -> String {
    let flags = [
        (piece.last, "last"),
        (piece.unwritten, "unwritten"),
        (piece.eof, "eof"),
    ];
    let set: Vec<_> = flags
        .iter()
        .filter(|(set, _)| *set)
        .map(|(_, name)| *name)
        .collect();
    set.join(",")
}

fn size_blocks(file: &File) -> u64 {
    let metadata = file.metadata();
    metadata.size.div_ceil(u64::from(metadata.block_size))
}

fn is_inline(file: &File) -> bool {
    InodeFlags(file.metadata().flags).contains(InodeFlags::INLINE_DATA)
}

/// Hands out the pieces of a file in order, each once it is known whether another follows.
fn for_each_piece(
    file: &File,
    target: &Target,
    mut emit: impl FnMut(&Piece) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let size = size_blocks(file);
    let mut pending: Option<Piece> = None;
    for_each_mapping(file, target, |found| {
        if let Some(piece) = pending.as_mut().filter(|piece| piece.touches(&found)) {
            piece.length += found.length;
            return Ok(());
        }
        let expected = pending.and_then(|piece| piece.expects(&found));
        if let Some(piece) = pending.replace(Piece { expected, ..found }) {
            emit(&piece.ending(size, false))?;
        }
        Ok(())
    })?;
    match pending {
        Some(piece) => emit(&piece.ending(size, true)),
        None => Ok(()),
    }
}

impl Piece {
    fn touches(&self, next: &Piece) -> bool {
        let end = (self.logical + self.length, self.physical + self.length);
        end == (next.logical, next.physical) && self.unwritten == next.unwritten
    }

    /// A hole on the way is expected on the device too.
    fn expects(&self, next: &Piece) -> Option<u64> {
        let expected = self.physical + (next.logical - self.logical);
        (expected != next.physical).then_some(expected)
    }

    fn ending(self, size_blocks: u64, last: bool) -> Piece {
        Piece {
            eof: self.logical + self.length >= size_blocks,
            last,
            ..self
        }
    }
}

/// Hands out every mapping that is not a hole, past the end of the file too.
fn for_each_mapping(
    file: &File,
    target: &Target,
    mut found: impl FnMut(Piece) -> Result<(), Failure>,
) -> Result<(), Failure> {
    if is_inline(file) {
        return Ok(());
    }
    let mut lblk = 0;
    while lblk < u32::MAX {
        let mapping = file
            .map(lblk, u32::MAX - lblk)
            .map_err(|error| target.failure(&error))?;
        if mapping.kind != MapKind::Hole {
            found(Piece {
                logical: u64::from(lblk),
                physical: mapping.pblk.0,
                length: u64::from(mapping.len),
                expected: None,
                unwritten: mapping.kind == MapKind::Unwritten,
                eof: false,
                last: false,
            })?;
        }
        lblk = lblk.saturating_add(mapping.len);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(logical: u64, physical: u64, length: u64) -> Piece {
        Piece {
            logical,
            physical,
            length,
            expected: None,
            unwritten: false,
            eof: false,
            last: false,
        }
    }

    #[test]
    fn pieces_touch_only_if_they_do_in_file_and_on_device_and_are_of_one_kind() {
        let first = piece(0, 100, 4);
        assert!(first.touches(&piece(4, 104, 1)));
        assert!(!first.touches(&piece(5, 105, 1)));
        assert!(!first.touches(&piece(4, 105, 1)));
        assert!(!first.touches(&Piece {
            unwritten: true,
            ..piece(4, 104, 1)
        }));
    }

    #[test]
    fn expected_place_counts_holes_and_is_told_only_after_a_jump() {
        let first = piece(0, 100, 4);
        assert_eq!(first.expects(&piece(8, 108, 1)), None);
        assert_eq!(first.expects(&piece(8, 200, 1)), Some(108));
    }

    #[test]
    fn flags_are_those_of_filefrag_in_its_order() {
        let all = Piece {
            unwritten: true,
            ..piece(8, 8, 8)
        }
        .ending(10, true);
        assert_eq!(flags(&all), "last,unwritten,eof");
        assert_eq!(flags(&piece(0, 8, 8).ending(10, false)), "");
    }
}
