//! Maps of sparse files: which bytes of a file an archive stores.

use super::header::number;
use super::pax::{Record, decimal};
use std::ops::Range;

/// Most segments of one file: 64 MiB of map.
pub(super) const SEGMENTS_MAX: usize = 1 << 22;

/// A map as an archive gives it: offsets and lengths.
#[derive(Debug, Default)]
pub(super) struct Map(Vec<(u64, u64)>);

impl Map {
    /// # Errors
    /// If it gets too long.
    pub(super) fn push(&mut self, offset: u64, len: u64) -> Result<(), String> {
        if self.0.len() == SEGMENTS_MAX {
            return Err(format!("a sparse file of over {SEGMENTS_MAX} pieces"));
        }
        self.0.push((offset, len));
        Ok(())
    }

    /// GNU's old form: pairs of numbers of 12 bytes each, up to an empty one.
    pub(super) fn push_old(&mut self, pairs: &[u8]) -> Result<(), String> {
        for pair in pairs.chunks_exact(24) {
            if pair[0] == 0 {
                break;
            }
            let part = |at: Range<usize>| {
                u64::try_from(number(&pair[at])?)
                    .map_err(|_| "a negative offset or length".to_owned())
            };
            self.push(part(0..12)?, part(12..24)?)?;
        }
        Ok(())
    }

    /// Whether a record with this key is part of a map.
    pub(super) fn has_key(key: &[u8]) -> bool {
        let keys = [
            &b"GNU.sparse.map"[..],
            b"GNU.sparse.offset",
            b"GNU.sparse.numbytes",
            b"GNU.sparse.numblocks",
        ];
        keys.contains(&key)
    }

    /// PAX 0.0 (a record for each number) and 0.1 (one record for all); none if it is neither.
    pub(super) fn of_records(records: &[Record]) -> Result<Option<Map>, String> {
        let bad = || "a sparse file's map that is none".to_owned();
        let mut numbers = Vec::new();
        let mut found = false;
        for (key, value) in records {
            match &key[..] {
                b"GNU.sparse.map" => {
                    found = true;
                    let words = value
                        .split(|&byte| byte == b',')
                        .filter(|word| !word.is_empty());
                    numbers = words
                        .map(decimal)
                        .collect::<Option<Vec<_>>>()
                        .ok_or_else(bad)?;
                }
                b"GNU.sparse.offset" if numbers.len() % 2 == 0 => {
                    numbers.push(decimal(value).ok_or_else(bad)?)
                }
                b"GNU.sparse.numbytes" if numbers.len() % 2 == 1 => {
                    numbers.push(decimal(value).ok_or_else(bad)?);
                }
                b"GNU.sparse.offset" | b"GNU.sparse.numbytes" => return Err(bad()),
                b"GNU.sparse.numblocks" => found = true,
                _ => {}
            }
        }
        let (pairs, []) = numbers.as_chunks::<2>() else {
            return Err(bad());
        };
        let mut map = Map::default();
        pairs
            .iter()
            .try_for_each(|&[offset, len]| map.push(offset, len))?;
        Ok((found || !pairs.is_empty()).then_some(map))
    }

    /// The segments of a file of `size` bytes, of which the archive has `stored`.
    ///
    /// # Errors
    /// What does not fit.
    pub(super) fn segments(&self, size: u64, stored: u64) -> Result<Vec<Range<u64>>, String> {
        let mut segments: Vec<Range<u64>> = Vec::new();
        let mut data: u64 = 0;
        let mut at = 0;
        for &(offset, len) in &self.0 {
            let end = offset
                .checked_add(len)
                .filter(|&end| end <= size && offset >= at);
            let end = end.ok_or_else(|| {
                format!("a sparse file's piece of {len} bytes at {offset}, out of order or behind its end at {size}")
            })?;
            at = end;
            // Ends do not decrease, so this cannot overflow.
            data += len;
            match segments.last_mut() {
                _ if len == 0 => {}
                Some(last) if last.end == offset => last.end = end,
                _ => segments.push(offset..end),
            }
        }
        if data != stored {
            return Err(format!(
                "a sparse file of {data} bytes of data, of which {stored} are there"
            ));
        }
        Ok(segments)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(u64, u64)]) -> Map {
        Map(pairs.to_vec())
    }

    #[test]
    fn map_that_fits_gives_segments_without_empty_ones() {
        let fits = map(&[(0, 512), (512, 512), (4096, 1), (9000, 0)]);
        assert_eq!(fits.segments(9000, 1025), Ok(vec![0..1024, 4096..4097]));
        assert_eq!(map(&[]).segments(10, 0), Ok(vec![]));
    }

    #[test]
    fn map_out_of_order_or_of_bounds_or_of_another_size_is_refused() {
        for (pairs, size, stored) in [
            (&[(10, 5), (0, 5)][..], 100, 10),
            (&[(0, 10), (5, 5)], 100, 15),
            (&[(0, 101)], 100, 101),
            (&[(u64::MAX, 2)], u64::MAX, 2),
            (&[(0, 10)], 100, 11),
        ] {
            assert!(map(pairs).segments(size, stored).is_err(), "{pairs:?}");
        }
    }
}
