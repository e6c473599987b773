//! A file in one line: each column is an equal part of it.

use super::Piece;
use std::fmt;

/// What the signs mean.
pub const LEGEND: &str = " = written  ~ unwritten  . hole  | an extent begins  # several do";

const WIDTH: u64 = 64;

#[derive(Clone, Copy, Default)]
struct Column {
    written: u64,
    unwritten: u64,
    begins: u64,
}

/// Collects pieces, in any order; those past the end of the file are left out.
pub struct Picture {
    blocks: u64,
    columns: Vec<Column>,
}

impl Picture {
    /// Of a file of so many blocks.
    pub fn new(blocks: u64) -> Picture {
        Picture {
            blocks,
            columns: vec![Column::default(); blocks.min(WIDTH) as usize],
        }
    }

    pub fn add(&mut self, piece: &Piece) {
        let end = (piece.logical + piece.length).min(self.blocks);
        if piece.logical >= end {
            return;
        }
        let (first, last) = (self.column_of(piece.logical), self.column_of(end - 1));
        self.columns[first].begins += 1;
        for index in first..=last {
            let covered = self.end_of(index).min(end) - self.start_of(index).max(piece.logical);
            let column = &mut self.columns[index];
            *(if piece.unwritten {
                &mut column.unwritten
            } else {
                &mut column.written
            }) += covered;
        }
    }

    /// Inverse of `start_of`: the last column that starts at or before `block`.
    fn column_of(&self, block: u64) -> usize {
        let width = self.columns.len() as u64;
        (((block + 1) * width - 1) / self.blocks) as usize
    }

    fn start_of(&self, column: usize) -> u64 {
        column as u64 * self.blocks / self.columns.len() as u64
    }

    fn end_of(&self, column: usize) -> u64 {
        self.start_of(column + 1)
    }

    fn sign(&self, index: usize) -> char {
        let column = self.columns[index];
        let hole = self.end_of(index) - self.start_of(index) - column.written - column.unwritten;
        match column.begins {
            0 if hole > column.written.max(column.unwritten) => '.',
            0 if column.unwritten > column.written => '~',
            0 => '=',
            1 => '|',
            _ => '#',
        }
    }
}

impl fmt::Display for Picture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (0..self.columns.len()).try_for_each(|index| write!(f, "{}", self.sign(index)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture(blocks: u64, pieces: &[(u64, u64, bool)]) -> String {
        let mut picture = Picture::new(blocks);
        for &(logical, length, unwritten) in pieces {
            let (physical, expected) = (0, None);
            picture.add(&Piece {
                logical,
                physical,
                length,
                expected,
                unwritten,
                eof: false,
                last: false,
            });
        }
        picture.to_string()
    }

    #[test]
    fn small_file_has_a_column_for_each_block() {
        assert_eq!(picture(8, &[(0, 3, false), (5, 2, true)]), "|==..|~.");
        assert_eq!(picture(0, &[]), "");
    }

    #[test]
    fn large_file_has_sixty_four_columns() {
        let text = picture(64_000, &[(0, 32_000, false), (32_000, 16_000, true)]);
        let expected = format!("|{}|{}{}", "=".repeat(31), "~".repeat(15), ".".repeat(16));
        assert_eq!(text, expected);
        assert_eq!(
            picture(128, &[(0, 1, false), (1, 1, false)]).chars().next(),
            Some('#')
        );
    }

    #[test]
    fn part_past_the_end_of_the_file_is_left_out() {
        assert_eq!(picture(2, &[(0, 9, false), (20, 4, true)]), "|=");
    }

    #[test]
    fn every_block_belongs_to_the_column_that_covers_it() {
        for blocks in [1, 63, 64, 65, 100, 1000, u64::from(u32::MAX)] {
            let picture = Picture::new(blocks);
            for block in (0..blocks)
                .step_by((blocks / 50 + 1) as usize)
                .chain([blocks - 1])
            {
                let column = picture.column_of(block);
                assert!((picture.start_of(column)..picture.end_of(column)).contains(&block));
            }
        }
    }
}
