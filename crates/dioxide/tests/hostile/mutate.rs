//! Ways to damage an image.

use super::subjects::Subject;

/// A small generator with good bits (splitmix64).
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Rng {
        Rng(seed.wrapping_mul(0x2545_F491_4F6C_DD1D) ^ 0x1234_5678)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

/// Bytes that replace what was at `at`.
#[derive(Clone)]
pub struct Mutation {
    pub at: u64,
    pub bytes: Vec<u8>,
}

impl Mutation {
    /// Changes the part of `buf`, which was read at `offset`, that the mutation overlaps.
    pub fn apply(&self, offset: u64, buf: &mut [u8]) {
        let end = offset + buf.len() as u64;
        let from = self.at.max(offset);
        let to = (self.at + self.bytes.len() as u64).min(end);
        if from < to {
            let source = &self.bytes[(from - self.at) as usize..(to - self.at) as usize];
            buf[(from - offset) as usize..(to - offset) as usize].copy_from_slice(source);
        }
    }
}

/// One to four changes, nearly all of them to metadata.
pub fn mutations(subject: &Subject, rng: &mut Rng) -> Vec<Mutation> {
    let count = rng.pick(&[1, 1, 1, 2, 4]);
    (0..count).map(|_| mutation(subject, rng)).collect()
}

fn mutation(subject: &Subject, rng: &mut Rng) -> Mutation {
    let block = subject.block as u64;
    let start = rng.pick(&subject.metadata) * block;
    let old = |at: u64, len: u64| subject.bytes[at as usize..][..len as usize].to_vec();
    match rng.below(8) {
        0 | 1 => {
            let at = start + rng.below(block);
            let bit = 1 << rng.below(8);
            Mutation {
                at,
                bytes: vec![old(at, 1)[0] ^ bit],
            }
        }
        2..=4 => field(subject, start, rng),
        5 => {
            let len = 1 + rng.below(64);
            let at = start + rng.below(block - len);
            Mutation {
                at,
                bytes: (0..len).map(|_| rng.next() as u8).collect(),
            }
        }
        6 => {
            let source = rng.pick(&subject.metadata) * block;
            // Checksums of directory blocks do not cover their place: one that was put where
            // another was is not found out, by nobody.
            let len = if subject.checksummed {
                block / 2
            } else {
                block
            };
            Mutation {
                at: start,
                bytes: old(source, len),
            }
        }
        _ => {
            let fill = rng.pick(&[0u8, 0, 0xFF]);
            let len = rng.pick(&[16, 64, 256, block]);
            Mutation {
                at: start + rng.below(block / len) * len,
                bytes: vec![fill; len as usize],
            }
        }
    }
}

/// A number of 2 or 4 bytes, changed to one that means trouble. Fields that are not zero are
/// looked for: changing padding shows nothing.
fn field(subject: &Subject, start: u64, rng: &mut Rng) -> Mutation {
    let width = rng.pick(&[2u64, 4, 4]);
    let mut at = start;
    for _ in 0..32 {
        at = start + rng.below(subject.block as u64 / width) * width;
        if subject.bytes[at as usize..][..width as usize]
            .iter()
            .any(|&b| b != 0)
        {
            break;
        }
    }
    let mut old = [0; 4];
    old[..width as usize].copy_from_slice(&subject.bytes[at as usize..][..width as usize]);
    let old = u32::from_le_bytes(old);
    let blocks = (subject.bytes.len() / subject.block) as u32;
    let new = match rng.below(10) {
        0 => 0,
        1 => u32::MAX,
        2 => i32::MAX as u32,
        3 => old.wrapping_add(1),
        4 => old.wrapping_sub(1),
        5 => rng.pick(&subject.metadata) as u32,
        6 => blocks - rng.below(2) as u32,
        7 => rng.below(64) as u32,
        8 => 1 << rng.below(32),
        _ => rng.next() as u32,
    };
    Mutation {
        at,
        bytes: new.to_le_bytes()[..width as usize].to_vec(),
    }
}
