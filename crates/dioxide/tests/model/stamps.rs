//! Bytes that say who wrote them where, and a log of writes that tells whether what a reader saw can be.
//!
//! A *cell* is eight bytes, aligned: memory moves it whole. All writes are of whole cells, which need be
//! no whole sectors. What a reader finds in a cell was put there by some act (a write, or one that makes
//! zeros), which began before the read ended; and no other act on that cell lies wholly between the two.

use parking_lot::Mutex;
use std::ops::Range;

pub const CELL: u64 = 8;

/// Who wrote a cell; `None` is nobody: zeros.
pub type Author = Option<(u8, u32)>;

const MAGIC: u64 = 0xD5;

fn stamp((writer, seq): (u8, u32), file: usize, cell: u64) -> u64 {
    assert!(seq < 1 << 24 && cell < 1 << 24 && file < 16 && writer < 16);
    MAGIC << 56 | (file as u64) << 52 | u64::from(writer) << 48 | u64::from(seq) << 24 | cell
}

/// Fills a write of whole cells.
pub fn fill(author: (u8, u32), file: usize, at: u64, bytes: &mut [u8]) {
    for (cell, out) in (at / CELL..).zip(bytes.chunks_exact_mut(CELL as usize)) {
        out.copy_from_slice(&stamp(author, file, cell).to_le_bytes());
    }
}

/// Who wrote this cell.
///
/// # Panics
/// If nobody can have written it there.
fn author_of(file: usize, cell: u64, bytes: &[u8]) -> Author {
    let value = u64::from_le_bytes(bytes.try_into().expect("a whole cell"));
    if value == 0 {
        return None;
    }
    let (writer, seq) = ((value >> 48 & 0xF) as u8, (value >> 24 & 0xFF_FFFF) as u32);
    let expected = stamp((writer, seq), file, cell);
    assert_eq!(
        value, expected,
        "cell {cell} of file {file}: {value:#x} was not written there"
    );
    Some((writer, seq))
}

#[derive(Debug)]
struct Act {
    author: Author,
    cells: Range<u64>,
    begin: u64,
    /// `u64::MAX` while it is under way.
    end: u64,
}

/// What was done to one file, on one clock.
#[derive(Debug, Default)]
pub struct Log(Mutex<(u64, Vec<Act>)>);

impl Log {
    /// Before anything is done. Bytes, whole cells.
    pub fn begin(&self, author: Author, bytes: Range<u64>) -> usize {
        let (clock, acts) = &mut *self.0.lock();
        *clock += 1;
        acts.push(Act {
            author,
            cells: bytes.start / CELL..bytes.end.div_ceil(CELL),
            begin: *clock,
            end: u64::MAX,
        });
        acts.len() - 1
    }

    pub fn end(&self, act: usize) {
        let (clock, acts) = &mut *self.0.lock();
        *clock += 1;
        acts[act].end = *clock;
    }

    /// Before a read.
    pub fn now(&self) -> u64 {
        let (clock, _) = &mut *self.0.lock();
        *clock += 1;
        *clock
    }

    /// As [`Log::check`], of a read that found only so many of the bytes that it asked for: the file ended there, and
    /// what is behind its end is zeros.
    ///
    /// # Panics
    /// If it cannot be.
    pub fn check_read(&self, file: usize, at: u64, bytes: &mut [u8], found: usize, begin: u64) {
        bytes[found..].fill(0);
        self.check(file, at, bytes, begin);
    }

    /// Where the last write ended: the size of a file that was only written.
    pub fn end_of_writes(&self) -> u64 {
        let (_, acts) = &*self.0.lock();
        let writes = acts.iter().filter(|act| act.author.is_some());
        writes.map(|act| act.cells.end * CELL).max().unwrap_or(0)
    }

    /// Judges what a read that began at `begin` and has just ended found.
    ///
    /// # Panics
    /// If it cannot be.
    pub fn check(&self, file: usize, at: u64, found: &[u8], begin: u64) {
        let end = self.now();
        let (_, acts) = &*self.0.lock();
        let first = at / CELL;
        let authors: Vec<Author> = (first..)
            .zip(found.chunks_exact(CELL as usize))
            .map(|(cell, bytes)| author_of(file, cell, bytes))
            .collect();
        let cells = first..first + authors.len() as u64;
        let touching: Vec<&Act> = acts
            .iter()
            .filter(|act| act.cells.start < cells.end && cells.start < act.cells.end)
            .collect();
        // Cells between two edges have the same acts; and only where the author changes, a new verdict.
        let mut edges: Vec<u64> = touching
            .iter()
            .flat_map(|act| [act.cells.start, act.cells.end])
            .collect();
        edges.sort_unstable();
        let mut edges = edges.into_iter().peekable();
        for (cell, &author) in (first..).zip(&authors) {
            let is_edge = edges.peek().is_some_and(|&edge| edge <= cell);
            while edges.next_if(|&edge| edge <= cell).is_some() {}
            let before = (cell - first).checked_sub(1);
            let changed = before.is_none_or(|at| authors[at as usize] != author);
            if is_edge || changed {
                judge(file, cell, author, &touching, begin..end);
            }
        }
    }
}

fn judge(file: usize, cell: u64, author: Author, acts: &[&Act], read: Range<u64>) {
    let here = || acts.iter().filter(|act| act.cells.contains(&cell));
    let own = here().filter(|act| act.author == author && act.begin < read.end);
    // All was zeros at first.
    let at_first = author.is_none().then_some(0);
    let latest = own.map(|act| act.end).chain(at_first).max();
    let others = here().filter(|act| act.author != author && act.end < read.start);
    let later = others.max_by_key(|act| act.begin);
    match (latest, later) {
        (None, _) => panic!("cell {cell} of file {file}: {author:?} never wrote it"),
        (Some(latest), Some(later)) if later.begin > latest => panic!(
            "cell {cell} (byte {}) of file {file}: a read ({read:?}) found {author:?} (until {latest}), \
             but {later:?} came after that",
            cell * CELL
        ),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells(author: (u8, u32), at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        fill(author, 0, at, &mut bytes);
        bytes
    }

    fn done(log: &Log, author: Author, bytes: Range<u64>) {
        let act = log.begin(author, bytes);
        log.end(act);
    }

    #[test]
    fn write_under_way_may_be_seen_or_not() {
        let log = Log::default();
        let begin = log.now();
        log.begin(Some((1, 1)), 0..64);
        log.check(0, 0, &cells((1, 1), 0, 64), begin);
        log.check(0, 0, &[0; 64], begin);
    }

    #[test]
    #[should_panic(expected = "came after that")]
    fn write_that_is_lost_is_found() {
        let log = Log::default();
        done(&log, Some((1, 1)), 0..64);
        done(&log, Some((2, 1)), 32..40);
        log.check(0, 0, &cells((1, 1), 0, 64), log.now());
    }

    #[test]
    #[should_panic(expected = "came after that")]
    fn zeros_over_a_write_are_found() {
        let log = Log::default();
        done(&log, None, 0..64);
        done(&log, Some((1, 1)), 0..64);
        log.check(0, 0, &[0; 64], log.now());
    }

    #[test]
    #[should_panic(expected = "cell 4 (byte 32) of file 0")]
    fn read_that_ends_before_a_write_is_found() {
        let log = Log::default();
        done(&log, Some((1, 1)), 0..64);
        log.check_read(0, 0, &mut cells((1, 1), 0, 64), 32, log.now());
    }

    #[test]
    fn read_may_end_where_the_file_does_or_did() {
        let log = Log::default();
        done(&log, Some((1, 1)), 0..64);
        let begin = log.now();
        log.begin(None, 32..1 << 20);
        for found in [32, 64, 72] {
            let mut bytes = cells((1, 1), 0, 64);
            bytes.resize(128, 0);
            log.check_read(0, 0, &mut bytes, found, begin);
        }
        assert_eq!(log.end_of_writes(), 64);
    }

    #[test]
    #[should_panic(expected = "was not written there")]
    fn cell_of_another_place_is_found() {
        let log = Log::default();
        done(&log, Some((1, 1)), 0..128);
        log.check(0, 0, &cells((1, 1), 64, 64), log.now());
    }

    #[test]
    #[should_panic(expected = "never wrote it")]
    fn cell_outside_its_write_is_found() {
        let log = Log::default();
        done(&log, Some((1, 1)), 0..64);
        log.check(0, 64, &cells((1, 1), 64, 8), log.now());
    }
}
