//! Stamps in every sector, and what is known of them.
//!
//! A stamped sector of 512 bytes names its offset in the file, its writer and its generation, and all of its
//! other bytes follow from these. A [`Ledger`] knows for each block (of the request's size) the
//! newest write that was begun and the newest that was acknowledged. So a sector that is read
//! must be from a write between the one acknowledged before the read began and the one begun
//! before it ended: an older one is *lost*, any other is *misplaced*, a mixture is *torn*.
//!
//! A block is written by one job at a time: a job that meets another's write in flight goes on to
//! its next block. Blocks smaller than the file system's still meet inside one of its blocks.
//!
//! Memory has no sectors: a read of tmpfs may see half of a sector that is being written. So a
//! sector that looks torn while its block is being written is read again, until it has been read with
//! nobody writing. A block that is never left alone is told apart by the scan after the load.
//!
//! Rejected: one checksum per request. It would say that something is wrong, not what.

use crate::Result;
use crate::offsets::{Order, mix};
use crate::report::Verified;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Bytes that are stamped together.
pub(crate) const SECTOR: usize = 512;

/// Writer of what was in the file before the load.
const FILL_WRITER: u64 = 0xffff;

const MAGIC: u64 = u64::from_le_bytes(*b"dioxide\n");

/// Times that a sector is read again because its block is being written; some seconds.
const REREADS: u32 = 10_000;

/// Between two of these times: a writer that lost its processor needs time rather than haste.
const PAUSE: Duration = Duration::from_micros(200);

/// Generation and writer of a write; larger is later, per block.
type Token = u64;

fn token(generation: u64, writer: u64) -> Token {
    generation << 16 | writer
}

/// Stamps the whole sectors of `buf`, which lies at `offset` in the file.
pub(crate) fn stamp(buf: &mut [u8], offset: u64, token: u64) {
    for (n, sector) in buf.as_chunks_mut::<SECTOR>().0.iter_mut().enumerate() {
        let words = words(offset + (n * SECTOR) as u64, token);
        for (bytes, word) in sector.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *bytes = word.to_le_bytes();
        }
    }
}

/// What the file holds before the load: generation 0.
pub(crate) fn stamp_fill(buf: &mut [u8], offset: u64) {
    stamp(buf, offset, token(0, FILL_WRITER));
}

/// The 64 words of a sector: magic, offset, token, checksum of these, and bytes that follow from
/// the checksum and their place.
fn words(offset: u64, token: Token) -> impl Iterator<Item = u64> {
    let sum = mix(mix(MAGIC ^ offset) ^ token);
    (0..SECTOR as u64 / 8).map(move |n| match n {
        0 => MAGIC,
        1 => offset,
        2 => token,
        3 => sum,
        _ => mix(sum.wrapping_add(n)),
    })
}

/// What a sector says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sector {
    /// Whole: of this offset, by this write.
    Of(u64, Token),
    /// Parts of different writes.
    Torn,
    /// Not stamped at all.
    Foreign,
}

fn parse(sector: &[u8; SECTOR]) -> Sector {
    let found = || {
        sector
            .as_chunks::<8>()
            .0
            .iter()
            .map(|bytes| u64::from_le_bytes(*bytes))
    };
    let head: Vec<u64> = found().take(3).collect();
    if head[0] != MAGIC {
        return Sector::Foreign;
    }
    match found().eq(words(head[1], head[2])) {
        true => Sector::Of(head[1], head[2]),
        false => Sector::Torn,
    }
}

/// What a load loop asks around each request. `ON` false: nothing, and it costs nothing.
pub(crate) trait Checker: Sync {
    const ON: bool;

    /// Stamps a write into `buf`; `None` if the block is being written.
    fn claim(&self, offset: u64, writer: u32, buf: &mut [u8]) -> Option<u64>;

    /// A claimed write has succeeded.
    fn acknowledge(&self, offset: u64, token: u64);

    /// What a read that begins now must see at least.
    fn known(&self, offset: u64) -> u64;

    /// Checks what a read has seen. `reread` reads the same place again.
    fn check(
        &self,
        offset: u64,
        known: u64,
        buf: &mut [u8],
        reread: impl FnMut(&mut [u8]) -> Result<()>,
    ) -> Result<()>;
}

/// Checks nothing.
#[derive(Debug)]
pub(crate) struct Unchecked;

impl Checker for Unchecked {
    const ON: bool = false;

    fn claim(&self, _offset: u64, _writer: u32, _buf: &mut [u8]) -> Option<u64> {
        Some(0)
    }

    fn acknowledge(&self, _offset: u64, _token: u64) {}

    fn known(&self, _offset: u64) -> u64 {
        0
    }

    fn check(
        &self,
        _offset: u64,
        _known: u64,
        _buf: &mut [u8],
        _reread: impl FnMut(&mut [u8]) -> Result<()>,
    ) -> Result<()> {
        Ok(())
    }
}

/// What is known of each block.
#[derive(Debug)]
pub(crate) struct Ledger {
    block_size: u64,
    begun: Box<[AtomicU64]>,
    acknowledged: Box<[AtomicU64]>,
    sectors: AtomicU64,
    torn: AtomicU64,
    lost: AtomicU64,
    misplaced: AtomicU64,
    reread: AtomicU64,
}

impl Ledger {
    /// For `size` bytes that were filled by [`stamp_fill`].
    pub(crate) fn new(size: u64, block_size: u32) -> Ledger {
        let blocks = size.div_ceil(u64::from(block_size));
        let table = || {
            (0..blocks)
                .map(|_| AtomicU64::new(token(0, FILL_WRITER)))
                .collect()
        };
        Ledger {
            block_size: u64::from(block_size),
            begun: table(),
            acknowledged: table(),
            sectors: AtomicU64::new(0),
            torn: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            misplaced: AtomicU64::new(0),
            reread: AtomicU64::new(0),
        }
    }

    /// What was found so far.
    pub(crate) fn found(&self) -> Verified {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Verified {
            sectors: get(&self.sectors),
            torn: get(&self.torn),
            lost: get(&self.lost),
            misplaced: get(&self.misplaced),
            reread: get(&self.reread),
        }
    }

    /// Checks every block of an order while nobody writes: each sector is of the write that was
    /// acknowledged last, or of one that failed after it. `positions` are where `read` finds them.
    pub(crate) fn scan_order(
        &self,
        order: &Order,
        positions: &[u64],
        mut read: impl FnMut(u64, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let mut buf = dioxide::Buf::zeroed(self.block_size as usize);
        for (&offset, &at) in order.file.iter().zip(positions) {
            read(at, &mut buf)?;
            self.check(offset, self.known(offset), &mut buf, |buf| read(at, buf))?;
        }
        Ok(())
    }

    fn block(&self, offset: u64) -> usize {
        (offset / self.block_size) as usize
    }

    /// The block's last write, if none is in flight.
    fn quiet(&self, offset: u64) -> Option<Token> {
        let block = self.block(offset);
        let acknowledged = self.acknowledged[block].load(Ordering::SeqCst);
        (self.begun[block].load(Ordering::SeqCst) == acknowledged).then_some(acknowledged)
    }

    /// What is wrong with a sector, if anything: a counter.
    fn judge(
        &self,
        sector: &[u8; SECTOR],
        at: u64,
        known: Token,
        begun: Token,
    ) -> Option<&AtomicU64> {
        match parse(sector) {
            Sector::Of(offset, token) if offset == at && (known..=begun).contains(&token) => None,
            Sector::Of(offset, token) if offset == at && token < known => Some(&self.lost),
            Sector::Of(..) | Sector::Foreign => Some(&self.misplaced),
            Sector::Torn => Some(&self.torn),
        }
    }

    /// The first sector that is wrong.
    fn first_wrong(&self, offset: u64, known: Token, buf: &[u8]) -> Option<&AtomicU64> {
        let begun = self.begun[self.block(offset)].load(Ordering::SeqCst);
        let sectors = buf.as_chunks::<SECTOR>().0.iter().enumerate();
        sectors
            .filter_map(|(n, sector)| {
                self.judge(sector, offset + (n * SECTOR) as u64, known, begun)
            })
            .next()
    }
}

impl Checker for Ledger {
    const ON: bool = true;

    fn claim(&self, offset: u64, writer: u32, buf: &mut [u8]) -> Option<u64> {
        let block = self.block(offset);
        let known = self.acknowledged[block].load(Ordering::SeqCst);
        let next = token((known >> 16) + 1, u64::from(writer));
        let claimed =
            self.begun[block].compare_exchange(known, next, Ordering::SeqCst, Ordering::SeqCst);
        claimed.ok()?;
        stamp(buf, offset, next);
        Some(next)
    }

    fn acknowledge(&self, offset: u64, token: u64) {
        self.acknowledged[self.block(offset)].store(token, Ordering::SeqCst);
    }

    fn known(&self, offset: u64) -> u64 {
        self.acknowledged[self.block(offset)].load(Ordering::SeqCst)
    }

    fn check(
        &self,
        offset: u64,
        known: u64,
        buf: &mut [u8],
        mut reread: impl FnMut(&mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let sectors = (buf.len() / SECTOR) as u64;
        self.sectors.fetch_add(sectors, Ordering::Relaxed);
        // A first read may have met any write since `known`; it was alone only if there was none.
        let mut quiet_since = self.quiet(offset).filter(|&token| token == known);
        for _ in 0..REREADS {
            let Some(wrong) = self.first_wrong(offset, known, buf) else {
                return Ok(());
            };
            let torn = std::ptr::eq(wrong, &self.torn);
            let alone = quiet_since.is_some() && self.quiet(offset) == quiet_since;
            if !torn || alone {
                wrong.fetch_add(1, Ordering::Relaxed);
                return Ok(());
            }
            self.reread.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(PAUSE);
            quiet_since = self.quiet(offset);
            reread(buf)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: usize = 2048;

    fn no_reread(_: &mut [u8]) -> Result<()> {
        Ok(())
    }

    /// A ledger of four blocks and the file it describes.
    fn filled() -> (Ledger, Vec<u8>) {
        let mut file = vec![0; 4 * BLOCK];
        stamp_fill(&mut file, 0);
        (Ledger::new(file.len() as u64, BLOCK as u32), file)
    }

    fn scan(ledger: &Ledger, file: &[u8]) -> Verified {
        let read = |at: u64, buf: &mut [u8]| {
            buf.copy_from_slice(&file[at as usize..at as usize + buf.len()]);
            Ok(())
        };
        let offsets: Box<[u64]> = (0..file.len() as u64).step_by(BLOCK).collect();
        let order = Order {
            device: offsets.clone(),
            file: offsets,
        };
        ledger.scan_order(&order, &order.file, read).unwrap();
        ledger.found()
    }

    fn write(ledger: &Ledger, file: &mut [u8], block: usize) {
        let at = block * BLOCK;
        let token = ledger
            .claim(at as u64, 3, &mut file[at..at + BLOCK])
            .unwrap();
        ledger.acknowledge(at as u64, token);
    }

    #[test]
    fn file_as_written_has_nothing_wrong() {
        let (ledger, mut file) = filled();
        write(&ledger, &mut file, 2);
        write(&ledger, &mut file, 2);
        let found = scan(&ledger, &file);
        assert_eq!(
            found,
            Verified {
                sectors: 16,
                ..Verified::default()
            }
        );
    }

    #[test]
    fn write_that_never_arrived_is_lost() {
        let (ledger, mut file) = filled();
        let before = file.clone();
        write(&ledger, &mut file, 1);
        assert_eq!(scan(&ledger, &before).lost, 1);
    }

    #[test]
    fn sector_in_the_wrong_place_is_misplaced() {
        let (ledger, mut file) = filled();
        file.copy_within(512..1024, 1024);
        assert_eq!(scan(&ledger, &file).misplaced, 1);
        file[1024..1536].fill(0);
        assert_eq!(scan(&ledger, &file).misplaced, 2);
    }

    #[test]
    fn sector_of_two_writes_that_nobody_is_writing_is_torn() {
        let (ledger, mut file) = filled();
        let old = file.clone();
        write(&ledger, &mut file, 0);
        file[700..1024].copy_from_slice(&old[700..1024]);
        let found = scan(&ledger, &file);
        assert_eq!((found.torn, found.reread), (1, 0));
    }

    #[test]
    fn sector_that_is_being_written_is_read_again_until_it_is_whole() {
        let (ledger, mut file) = filled();
        let known = ledger.known(0);
        let token = ledger.claim(0, 3, &mut file[..BLOCK]).unwrap();
        let mut buf = file[..BLOCK].to_vec();
        buf[300] ^= 1;
        let mut reads = 0;
        let reread = |buf: &mut [u8]| {
            reads += 1;
            buf.copy_from_slice(&file[..BLOCK]);
            buf[300] ^= u8::from(reads < 3);
            Ok(())
        };
        ledger.check(0, known, &mut buf, reread).unwrap();
        ledger.acknowledge(0, token);
        let expected = Verified {
            sectors: 4,
            reread: 3,
            ..Verified::default()
        };
        assert_eq!(ledger.found(), expected);
    }

    #[test]
    fn block_in_flight_is_not_claimed_twice_and_both_versions_are_right() {
        let (ledger, file) = filled();
        let mut newer = file[..BLOCK].to_vec();
        let known = ledger.known(0);
        let token = ledger.claim(0, 1, &mut newer).unwrap();
        assert_eq!(ledger.claim(0, 2, &mut vec![0; BLOCK]), None);
        ledger
            .check(0, known, &mut file[..BLOCK].to_vec(), no_reread)
            .unwrap();
        ledger.check(0, known, &mut newer, no_reread).unwrap();
        ledger.acknowledge(0, token);
        assert_eq!(
            ledger.found(),
            Verified {
                sectors: 8,
                ..Verified::default()
            }
        );
    }

    #[test]
    fn write_from_the_future_is_misplaced() {
        let (ledger, _) = filled();
        let mut buf = vec![0; BLOCK];
        stamp(&mut buf, 0, token(5, 1));
        ledger
            .check(0, ledger.known(0), &mut buf, no_reread)
            .unwrap();
        assert_eq!(ledger.found().misplaced, 1);
    }
}
