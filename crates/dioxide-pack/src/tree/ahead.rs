//! Reading contents in a thread, ahead of who writes them.
//!
//! Invariants: what is read, and in which order, is what it is without the thread, errors included;
//! what waits is bounded. Who writes and gives up takes the thread with it.

use super::Contents;
use crate::entry::{Entry, FileData, Kind};
use crate::error::{Error, Result};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};

/// How many pieces wait at most; each is of at most [`crate::source::CHUNK_BYTES`].
const WAITING: usize = 32;

enum Piece {
    /// Bytes, and where in the file.
    Data(u64, Vec<u8>),
    /// The file is complete.
    End,
    Failed(Error),
}

/// Calls `work` with contents that a thread reads ahead: those of `entries`, in order.
pub(super) fn reading<T>(
    entries: &[Entry],
    contents: &mut dyn Contents,
    work: impl FnOnce(&mut dyn Contents) -> T,
) -> T {
    std::thread::scope(|scope| {
        let (full, pieces) = sync_channel(WAITING);
        let (used, empty) = channel();
        scope.spawn(move || read_all(entries, contents, &full, &empty));
        work(&mut Ahead { pieces, used })
    })
}

fn read_all(
    entries: &[Entry],
    contents: &mut dyn Contents,
    full: &SyncSender<Piece>,
    empty: &Receiver<Vec<u8>>,
) {
    for entry in entries {
        let Kind::File(data) = &entry.kind else {
            continue;
        };
        let read = contents.read(entry, data, &mut |offset, bytes| {
            let mut copy = empty.try_recv().unwrap_or_default();
            copy.clear();
            copy.extend_from_slice(bytes);
            full.send(Piece::Data(offset, copy)).map_err(|_| gone())
        });
        let failed = read.is_err();
        let sent = full.send(match read {
            Ok(()) => Piece::End,
            Err(error) => Piece::Failed(error),
        });
        if failed || sent.is_err() {
            return;
        }
    }
}

/// The other side has given up, and says why itself.
fn gone() -> Error {
    Error::Invalid("nobody reads on".into())
}

struct Ahead {
    pieces: Receiver<Piece>,
    /// Memory that is used again.
    used: Sender<Vec<u8>>,
}

impl Contents for Ahead {
    fn read(
        &mut self,
        _: &Entry,
        _: &FileData,
        each: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()> {
        loop {
            match self.pieces.recv() {
                Ok(Piece::Data(offset, bytes)) => {
                    each(offset, &bytes)?;
                    // The thread may have ended.
                    let _ = self.used.send(bytes);
                }
                Ok(Piece::End) => return Ok(()),
                Ok(Piece::Failed(error)) => return Err(error),
                Err(_) => return Err(gone()),
            }
        }
    }
}
