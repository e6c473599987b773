//! An independent reader of logs: written from the format's description, sharing no code with the
//! journal or its recovery, so that a mistake made twice is not made here too.

use super::{BLOCK, LOG};
use dioxide_format::checksum::crc32c;
use std::collections::HashMap;

/// What was met, so that a test can tell that it met it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    pub transactions: u64,
    pub replayed: u64,
    pub revoked: u64,
    pub escaped: u64,
    pub wrapped: u64,
}

impl Seen {
    pub fn add(&mut self, other: &Seen) {
        self.transactions += other.transactions;
        self.replayed += other.replayed;
        self.revoked += other.revoked;
        self.escaped += other.escaped;
        self.wrapped += other.wrapped;
    }
}

struct Log<'a> {
    image: &'a [u8],
    first: u32,
    end: u32,
    v2: bool,
    v3: bool,
    wide: bool,
    seed: u32,
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

struct Copy {
    home: u64,
    at: u32,
    escaped: bool,
}

struct Transaction {
    copies: Vec<Copy>,
    revoked: Vec<u64>,
}

impl Log<'_> {
    fn block(&self, at: u32) -> &[u8] {
        let from = (LOG as usize + at as usize) * BLOCK;
        &self.image[from..from + BLOCK]
    }

    fn next(&self, at: u32) -> u32 {
        if at + 1 == self.end {
            self.first
        } else {
            at + 1
        }
    }

    fn tail_is_right(&self, block: &[u8]) -> bool {
        if !(self.v2 || self.v3) {
            return true;
        }
        let mut copy = block.to_vec();
        copy[BLOCK - 4..].fill(0);
        crc32c(self.seed, &copy) == be32(block, BLOCK - 4)
    }

    /// A commit block whose first sector arrived, and whose others did not, is right too.
    fn commit_is_right(&self, block: &[u8]) -> bool {
        let mut copy = block.to_vec();
        copy[16..20].fill(0);
        let whole = crc32c(self.seed, &copy);
        copy[60..].fill(0);
        let sums = [whole, crc32c(self.seed, &copy)];
        !(self.v2 || self.v3) || sums.contains(&be32(block, 16))
    }

    fn data_is_right(&self, sequence: u32, at: u32, stored: u32) -> bool {
        let sum = crc32c(crc32c(self.seed, &sequence.to_be_bytes()), self.block(at));
        match (self.v2, self.v3) {
            (false, false) => true,
            (true, _) => sum & 0xFFFF == stored,
            (_, true) => sum == stored,
        }
    }

    /// The tags of a descriptor at `at`; afterwards `at` is past its data.
    fn tags(&self, at: &mut u32, sequence: u32) -> Result<Vec<Copy>, String> {
        let block = self.block(*at);
        let mut copies = Vec::new();
        let mut pos = 12;
        loop {
            if pos + 16 > BLOCK {
                return Ok(copies);
            }
            let low = u64::from(be32(block, pos));
            let (flags, high, stored) = if self.v3 {
                (
                    be32(block, pos + 4),
                    be32(block, pos + 8),
                    be32(block, pos + 12),
                )
            } else {
                let word = be32(block, pos + 4);
                let high = if self.wide { be32(block, pos + 8) } else { 0 };
                (word & 0xFFFF, high, word >> 16)
            };
            *at = self.next(*at);
            if !self.data_is_right(sequence, *at, stored) {
                return Err(format!(
                    "data block {at} of transaction {sequence}: checksum"
                ));
            }
            copies.push(Copy {
                home: low | u64::from(high) << 32,
                at: *at,
                escaped: flags & 1 != 0,
            });
            pos += match (self.v3, self.v2, self.wide) {
                (true, ..) => 16,
                (_, v2, wide) => 8 + if wide { 4 } else { 0 } + if v2 { 2 } else { 0 },
            };
            pos += if flags & 2 == 0 { 16 } else { 0 };
            if flags & 8 != 0 {
                return Ok(copies);
            }
        }
    }

    fn revokes(&self, at: u32) -> Vec<u64> {
        let block = self.block(at);
        let width = if self.wide { 8 } else { 4 };
        let end = (be32(block, 12) as usize).clamp(16, BLOCK);
        let numbers = &block[16..end];
        let number = |bytes: &[u8]| bytes.iter().fold(0, |n, &b| n << 8 | u64::from(b));
        numbers.chunks(width).map(number).collect()
    }

    /// The transactions from `at` on that have a commit block.
    fn scan(&self, mut at: u32, mut sequence: u32) -> Result<(Vec<Transaction>, bool), String> {
        let mut all = Vec::new();
        let (mut copies, mut revoked) = (Vec::new(), Vec::new());
        let mut wrapped = false;
        loop {
            let block = self.block(at);
            if be32(block, 0) != 0xC03B_3998 || be32(block, 8) != sequence {
                return Ok((all, wrapped));
            }
            let before = at;
            match be32(block, 4) {
                1 if !self.tail_is_right(block) => return Ok((all, wrapped)),
                1 => match self.tags(&mut at, sequence) {
                    Ok(more) => copies.extend(more),
                    // Without its commit block it is just the end.
                    Err(what) => return self.end_or(what, all, wrapped, before, sequence),
                },
                5 if !self.tail_is_right(block) => return Ok((all, wrapped)),
                5 => revoked.extend(self.revokes(at)),
                2 if !self.commit_is_right(block) => return Ok((all, wrapped)),
                2 => {
                    all.push(Transaction {
                        copies: std::mem::take(&mut copies),
                        revoked: std::mem::take(&mut revoked),
                    });
                    sequence = sequence.wrapping_add(1);
                }
                kind => return Err(format!("block {at} of kind {kind}")),
            }
            at = self.next(at);
            wrapped |= at < before;
        }
    }

    /// Damage is the end of the log, unless the transaction's commit block follows.
    fn end_or(
        &self,
        what: String,
        all: Vec<Transaction>,
        wrapped: bool,
        from: u32,
        sequence: u32,
    ) -> Result<(Vec<Transaction>, bool), String> {
        let mut at = self.next(from);
        while at != from {
            let block = self.block(at);
            let header = (be32(block, 0), be32(block, 4), be32(block, 8));
            if header == (0xC03B_3998, 2, sequence) && self.commit_is_right(block) {
                return Err(what);
            }
            at = self.next(at);
        }
        Ok((all, wrapped))
    }
}

/// Replays the log of an image.
pub fn replay(image: &mut [u8]) -> Result<Seen, String> {
    let sb = &image[LOG as usize * BLOCK..][..1024];
    let (start, sequence, incompat) = (be32(sb, 0x1C), be32(sb, 0x18), be32(sb, 0x28));
    if start == 0 {
        return Ok(Seen::default());
    }
    let log = Log {
        image,
        first: be32(sb, 0x14),
        end: be32(sb, 0x10),
        v2: incompat & 0x8 != 0,
        v3: incompat & 0x10 != 0,
        wide: incompat & 0x2 != 0,
        seed: crc32c(!0, &sb[0x30..0x40]),
    };
    let (transactions, wrapped) = log.scan(start, sequence)?;
    let mut seen = Seen {
        transactions: transactions.len() as u64,
        wrapped: u64::from(wrapped),
        ..Seen::default()
    };
    let mut last_revoke: HashMap<u64, usize> = HashMap::new();
    for (number, transaction) in transactions.iter().enumerate() {
        last_revoke.extend(transaction.revoked.iter().map(|&block| (block, number)));
    }
    let mut writes: Vec<(u64, Vec<u8>)> = Vec::new();
    for (number, transaction) in transactions.iter().enumerate() {
        for copy in &transaction.copies {
            if last_revoke
                .get(&copy.home)
                .is_some_and(|&last| last >= number)
            {
                seen.revoked += 1;
                continue;
            }
            let mut bytes = log.block(copy.at).to_vec();
            if copy.escaped {
                seen.escaped += 1;
                bytes[..4].copy_from_slice(&0xC03B_3998u32.to_be_bytes());
            }
            seen.replayed += 1;
            writes.push((copy.home, bytes));
        }
    }
    for (home, bytes) in writes {
        let at = home as usize * BLOCK;
        image
            .get_mut(at..at + BLOCK)
            .ok_or(format!("block {home} is off the device"))?
            .copy_from_slice(&bytes);
    }
    Ok(seen)
}
