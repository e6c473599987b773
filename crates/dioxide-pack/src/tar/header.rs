//! The header block of an entry.

use super::BLOCK;
use std::ops::Range;

pub(super) const NAME: Range<usize> = 0..100;
pub(super) const MODE: Range<usize> = 100..108;
pub(super) const UID: Range<usize> = 108..116;
pub(super) const GID: Range<usize> = 116..124;
pub(super) const SIZE: Range<usize> = 124..136;
pub(super) const MTIME: Range<usize> = 136..148;
pub(super) const CHECKSUM: Range<usize> = 148..156;
pub(super) const TYPE: usize = 156;
pub(super) const LINK: Range<usize> = 157..257;
pub(super) const MAGIC: Range<usize> = 257..265;
pub(super) const MAJOR: Range<usize> = 329..337;
pub(super) const MINOR: Range<usize> = 337..345;
const PREFIX: Range<usize> = 345..500;
/// Of GNU's sparse files: the map's first part, whether it goes on, the size with holes.
pub(super) const SPARSE_MAP: Range<usize> = 386..482;
pub(super) const SPARSE_MORE: usize = 482;
pub(super) const SPARSE_SIZE: Range<usize> = 483..495;

pub(super) const USTAR: &[u8; 8] = b"ustar\x0000";
const GNU: &[u8; 8] = b"ustar  \0";

/// A header block.
pub(super) struct Header(pub(super) [u8; BLOCK]);

impl Header {
    /// Whether it is one of the zero blocks that end an archive.
    pub(super) fn is_end(&self) -> bool {
        self.0.iter().all(|&byte| byte == 0)
    }

    /// Whether the checksum fits. Some old programs summed signed bytes.
    pub(super) fn is_valid(&self) -> bool {
        let counted = |at| {
            if CHECKSUM.contains(&at) {
                b' '
            } else {
                self.0[at]
            }
        };
        let unsigned: i128 = (0..BLOCK).map(|at| i128::from(counted(at))).sum();
        let signed: i128 = (0..BLOCK).map(|at| i128::from(counted(at) as i8)).sum();
        let stored = self.number(CHECKSUM);
        stored == Ok(unsigned) || stored == Ok(signed)
    }

    pub(super) fn kind(&self) -> u8 {
        self.0[TYPE]
    }

    /// Whatever its version: some programs leave that empty.
    fn is_ustar(&self) -> bool {
        self.0[MAGIC].starts_with(&USTAR[..6])
    }

    /// Whether device numbers have fields.
    pub(super) fn has_device(&self) -> bool {
        self.is_ustar() || self.0[MAGIC] == GNU[..]
    }

    /// The bytes of a field up to the first NUL.
    pub(super) fn text(&self, field: Range<usize>) -> &[u8] {
        let text = &self.0[field];
        let end = text.iter().position(|&byte| byte == 0);
        &text[..end.unwrap_or(text.len())]
    }

    /// The path, its prefix included.
    pub(super) fn path(&self) -> Vec<u8> {
        let name = self.text(NAME);
        match self.is_ustar() && self.0[PREFIX.start] != 0 {
            true => [self.text(PREFIX), b"/", name].concat(),
            false => name.to_vec(),
        }
    }

    /// The number in a field. An empty one is 0.
    ///
    /// # Errors
    /// What is in it instead.
    pub(super) fn number(&self, field: Range<usize>) -> Result<i128, String> {
        number(&self.0[field])
    }
}

/// A number in octal digits, or, marked by the highest bit, in base 256.
pub(super) fn number(field: &[u8]) -> Result<i128, String> {
    let bad = || Err(format!("'{}' is no number", field.escape_ascii()));
    if let Some(&first @ 0x80..) = field.first() {
        // A two's complement number of seven bits in this byte: the mark takes the eighth.
        let start = i128::from((first << 1) as i8 >> 1);
        let more = |value, byte: &u8| value << 8 | i128::from(*byte);
        return Ok(field[1..].iter().fold(start, more));
    }
    let digits = field.trim_ascii_start();
    let end = digits.iter().position(|byte| matches!(byte, 0 | b' '));
    let (digits, rest) = digits.split_at(end.unwrap_or(digits.len()));
    if rest.iter().any(|byte| !matches!(byte, 0 | b' ')) {
        return bad();
    }
    let mut value = 0;
    for &digit in digits {
        match digit {
            b'0'..=b'7' => value = value * 8 + i128::from(digit - b'0'),
            _ => return bad(),
        }
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_in_each_notation_is_read() {
        assert_eq!(number(b"0000644\0"), Ok(0o644));
        assert_eq!(number(b"   644 \0"), Ok(0o644));
        assert_eq!(number(b"77777777777 "), Ok(0o77777777777));
        assert_eq!(number(b"77777777"), Ok(0o77777777));
        assert_eq!(number(&[0; 8]), Ok(0));
        assert_eq!(number(b"\x80\0\0\0\0\0\0\0\0\0\x01\0"), Ok(256));
        assert_eq!(number(&[0xFF; 12]), Ok(-1));
        assert_eq!(number(b"\xFF\xFF\xFF\xFF\xFF\xFF\xFF\0"), Ok(-256));
        assert_eq!(number(&[0x80, 0, 0, 0, 0x80, 0, 0, 0]), Ok(1 << 31));
    }

    #[test]
    fn number_that_is_none_is_refused() {
        for field in [&b"0000649\0"[..], b"-1\0", b"12\x0034", b"abc"] {
            assert!(number(field).is_err(), "{}", field.escape_ascii());
        }
    }
}
