//! Hashes of names, which order an indexed directory.

use crate::Result;
use crate::error::{Error, corrupt};

/// The version of the hash of encrypted directories that fold case. It takes their key; each entry holds the hash of its name.
pub const SIPHASH: u8 = 6;

/// Which hash an index uses, signedness included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HashVersion {
    /// The first hash; bytes of names are signed.
    Legacy,
    /// Half of MD4; signed.
    HalfMd4,
    /// Tiny encryption algorithm; signed.
    Tea,
    /// `Legacy`, unsigned.
    LegacyUnsigned,
    /// `HalfMd4`, unsigned.
    HalfMd4Unsigned,
    /// `Tea`, unsigned.
    TeaUnsigned,
}

impl HashVersion {
    /// From the version that an index root stores, which is never an unsigned one (3 to 5). `unsigned` is
    /// `SuperBlock::hash_is_unsigned`; it turns the signed versions into their unsigned variants.
    ///
    /// # Errors
    /// `UnsupportedFeature` for siphash, which goes with encrypted casefolded directories;
    /// `Corrupt` for a version that is none.
    pub fn from_disk(version: u8, unsigned: bool) -> Result<Self> {
        Ok(match (version, unsigned) {
            (0, false) => Self::Legacy,
            (1, false) => Self::HalfMd4,
            (2, false) => Self::Tea,
            (0, true) => Self::LegacyUnsigned,
            (1, true) => Self::HalfMd4Unsigned,
            (2, true) => Self::TeaUnsigned,
            (SIPHASH, _) => {
                return Err(Error::UnsupportedFeature {
                    feature: "siphash directory hash (encrypt with casefold)".to_owned(),
                });
            }
            _ => {
                return Err(corrupt(
                    "htree root",
                    "hash_version",
                    version,
                    "0 to 2, or 6",
                ));
            }
        })
    }

    fn is_unsigned(self) -> bool {
        matches!(
            self,
            Self::LegacyUnsigned | Self::HalfMd4Unsigned | Self::TeaUnsigned
        )
    }
}

/// Hash of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NameHash {
    /// What an index is ordered by. The lowest bit is clear: an index sets it in an entry whose
    /// block begins with names that share the hash of the block before.
    pub major: u32,
    /// Order among equal majors when listing.
    pub minor: u32,
}

/// Largest value, kept for the end of a directory.
const END: u32 = 0xFFFF_FFFE;
const DEFAULT_SEED: [u32; 4] = [0x6745_2301, 0xEFCD_AB89, 0x98BA_DCFE, 0x1032_5476];

/// The hash of a name. `seed` is `SuperBlock::hash_seed`. Names are taken byte by byte: casefolded
/// directories need another function.
pub fn hash(name: &[u8], version: HashVersion, seed: [u32; 4]) -> NameHash {
    let mut state = if seed == [0; 4] { DEFAULT_SEED } else { seed };
    let unsigned = version.is_unsigned();
    let (major, minor) = match version {
        HashVersion::Legacy | HashVersion::LegacyUnsigned => (legacy(name, unsigned), 0),
        HashVersion::HalfMd4 | HashVersion::HalfMd4Unsigned => {
            for_each_chunk::<8>(name, unsigned, |words| half_md4(&mut state, words));
            (state[1], state[2])
        }
        HashVersion::Tea | HashVersion::TeaUnsigned => {
            for_each_chunk::<4>(name, unsigned, |words| tea(&mut state, words));
            (state[0], state[1])
        }
    };
    let major = major & !1;
    NameHash {
        major: if major == END { END - 2 } else { major },
        minor,
    }
}

fn widen(byte: u8, unsigned: bool) -> u32 {
    if unsigned {
        u32::from(byte)
    } else {
        i32::from(byte.cast_signed()).cast_unsigned()
    }
}

fn legacy(name: &[u8], unsigned: bool) -> u32 {
    let (mut current, mut previous) = (0x12A3_FE2Du32, 0x37AB_E8F9u32);
    for &byte in name {
        let mixed = current ^ widen(byte, unsigned).wrapping_mul(7_152_373);
        let mut next = previous.wrapping_add(mixed);
        if next & 0x8000_0000 != 0 {
            next = next.wrapping_sub(0x7FFF_FFFF);
        }
        (previous, current) = (current, next);
    }
    current << 1
}

/// Cuts a name into chunks of `WORDS` big-endian words; what is missing is padded with the length
/// of what was left of the name.
fn for_each_chunk<const WORDS: usize>(
    name: &[u8],
    unsigned: bool,
    mut mix: impl FnMut(&[u32; WORDS]),
) {
    let mut rest = name;
    while !rest.is_empty() {
        let pad = (rest.len() as u32 & 0xFF) * 0x0101_0101;
        let (chunk, after) = rest.split_at(rest.len().min(WORDS * 4));
        let mut words = [pad; WORDS];
        for (word, bytes) in words.iter_mut().zip(chunk.chunks(4)) {
            *word = bytes.iter().fold(pad, |value, &byte| {
                widen(byte, unsigned).wrapping_add(value << 8)
            });
        }
        mix(&words);
        rest = after;
    }
}

fn half_md4(state: &mut [u32; 4], input: &[u32; 8]) {
    type Mix = fn(u32, u32, u32) -> u32;
    const ROUNDS: [(Mix, u32, [usize; 8], [u32; 4]); 3] = [
        (
            |x, y, z| z ^ (x & (y ^ z)),
            0,
            [0, 1, 2, 3, 4, 5, 6, 7],
            [3, 7, 11, 19],
        ),
        (
            |x, y, z| (x & y).wrapping_add((x ^ y) & z),
            0x5A82_7999,
            [1, 3, 5, 7, 0, 2, 4, 6],
            [3, 5, 9, 13],
        ),
        (
            |x, y, z| x ^ y ^ z,
            0x6ED9_EBA1,
            [3, 7, 2, 6, 1, 5, 0, 4],
            [3, 9, 11, 15],
        ),
    ];
    let [mut a, mut b, mut c, mut d] = *state;
    for (mix, constant, order, shifts) in ROUNDS {
        for (step, index) in order.into_iter().enumerate() {
            let sum = a
                .wrapping_add(mix(b, c, d))
                .wrapping_add(input[index].wrapping_add(constant));
            (a, b, c, d) = (d, sum.rotate_left(shifts[step % 4]), b, c);
        }
    }
    for (word, add) in state.iter_mut().zip([a, b, c, d]) {
        *word = word.wrapping_add(add);
    }
}

fn tea(state: &mut [u32; 4], input: &[u32; 4]) {
    let [a, b, c, d] = *input;
    let (mut x, mut y, mut sum) = (state[0], state[1], 0u32);
    let mix = |v: u32, k0: u32, k1: u32, sum: u32| {
        (v << 4).wrapping_add(k0) ^ v.wrapping_add(sum) ^ (v >> 5).wrapping_add(k1)
    };
    for _ in 0..16 {
        sum = sum.wrapping_add(0x9E37_79B9);
        x = x.wrapping_add(mix(y, a, b, sum));
        y = y.wrapping_add(mix(x, c, d, sum));
    }
    state[0] = state[0].wrapping_add(x);
    state[1] = state[1].wrapping_add(y);
}
