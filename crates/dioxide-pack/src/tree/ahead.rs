//! Reading contents in a thread, ahead of who writes them.
//!
//! Invariants: what is read, and in which order, is what it is without the thread, errors included;
//! what waits is bounded. Who writes and gives up takes the thread with it.
//!
//! What is read goes over in batches: handing each small file over by itself takes longer than reading it,
//! because the threads wake each other.

use super::Contents;
use crate::entry::{Entry, FileData, Kind};
use crate::error::{Error, Result};
use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};

/// How many batches wait at most.
const WAITING: usize = 4;
/// A batch is full when it has so many bytes or pieces. What is read at once
/// ([`crate::source::CHUNK_BYTES`]) is not divided.
const BATCH_BYTES: usize = 1 << 20;
const BATCH_PIECES: usize = 1024;

#[derive(Debug, Default)]
struct Batch {
    bytes: Vec<u8>,
    pieces: Vec<Piece>,
}

#[derive(Debug)]
enum Piece {
    /// Where in the file, and which of the batch's bytes.
    Data(u64, Range<usize>),
    /// The file is complete.
    End,
    Failed(Error),
}

impl Batch {
    fn is_full(&self) -> bool {
        self.bytes.len() >= BATCH_BYTES || self.pieces.len() >= BATCH_PIECES
    }
}

/// Calls `work` with contents that a thread reads ahead: those of `entries`, in order.
pub(super) fn reading<T>(
    entries: &[Entry],
    contents: &mut dyn Contents,
    work: impl FnOnce(&mut dyn Contents) -> T,
) -> T {
    std::thread::scope(|scope| {
        let (full, batches) = sync_channel(WAITING);
        let (used, empty) = channel();
        let reader = Reader {
            batch: Batch::default(),
            full,
            empty,
        };
        scope.spawn(move || reader.read_all(entries, contents));
        let mut ahead = Ahead {
            batch: Vec::new().into_iter(),
            bytes: Vec::new(),
            batches,
            used,
        };
        work(&mut ahead)
    })
}

struct Reader {
    batch: Batch,
    full: SyncSender<Batch>,
    empty: Receiver<Vec<u8>>,
}

impl Reader {
    fn read_all(mut self, entries: &[Entry], contents: &mut dyn Contents) {
        for entry in entries {
            let Kind::File(data) = &entry.kind else {
                continue;
            };
            let read = contents.read(entry, data, &mut |offset, bytes| {
                let start = self.batch.bytes.len();
                self.batch.bytes.extend_from_slice(bytes);
                self.put(Piece::Data(offset, start..self.batch.bytes.len()))
            });
            let failed = read.is_err();
            let put = self.put(match read {
                Ok(()) => Piece::End,
                Err(error) => Piece::Failed(error),
            });
            if failed || put.is_err() {
                break;
            }
        }
        // Perhaps nobody reads on.
        let _ = self.send();
    }

    fn put(&mut self, piece: Piece) -> Result<()> {
        self.batch.pieces.push(piece);
        match self.batch.is_full() {
            true => self.send(),
            false => Ok(()),
        }
    }

    fn send(&mut self) -> Result<()> {
        let mut bytes = self.empty.try_recv().unwrap_or_default();
        bytes.clear();
        let next = Batch {
            bytes,
            pieces: Vec::with_capacity(BATCH_PIECES),
        };
        let full = std::mem::replace(&mut self.batch, next);
        self.full.send(full).map_err(|_| gone())
    }
}

/// The other side has given up, and says why itself.
fn gone() -> Error {
    Error::Invalid("nobody reads on".into())
}

struct Ahead {
    /// What is left of the batch.
    batch: std::vec::IntoIter<Piece>,
    bytes: Vec<u8>,
    batches: Receiver<Batch>,
    /// Memory that is used again.
    used: Sender<Vec<u8>>,
}

impl Ahead {
    fn next(&mut self) -> Result<Piece> {
        loop {
            if let Some(piece) = self.batch.next() {
                return Ok(piece);
            }
            let Batch { bytes, pieces } = self.batches.recv().map_err(|_| gone())?;
            self.batch = pieces.into_iter();
            // The thread may have ended.
            let _ = self.used.send(std::mem::replace(&mut self.bytes, bytes));
        }
    }
}

impl Contents for Ahead {
    fn read(
        &mut self,
        _: &Entry,
        _: &FileData,
        each: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        loop {
            match self.next()? {
                Piece::Data(offset, range) => each(offset, &self.bytes[range])?,
                Piece::End => return Ok(()),
                Piece::Failed(error) => return Err(error),
            }
        }
    }
}
