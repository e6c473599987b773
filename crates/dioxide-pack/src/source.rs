//! Where trees come from: a folder of the host, an image, a program; archives are in [`crate::tar`].

pub mod folder;
pub mod image;
pub mod program;

use crate::entry::FileData;
use crate::error::{Error, Result};
use std::ops::Range;

/// Most that is read at a time.
pub(crate) const CHUNK_BYTES: usize = 1 << 20;

/// Most segments of one file.
const SEGMENTS_MAX: usize = 1 << 24;

/// The segments of a file of `size` bytes, by where data and holes begin.
///
/// # Errors
/// [`Error::Refused`] for more than memory should hold.
pub(crate) fn segments(
    path: &[u8],
    size: u64,
    mut next_data: impl FnMut(u64) -> Result<Option<u64>>,
    mut next_hole: impl FnMut(u64) -> Result<u64>,
) -> Result<Vec<Range<u64>>> {
    let mut segments = Vec::new();
    let mut at = 0;
    while at < size {
        let Some(start) = next_data(at)?.filter(|&start| start < size) else {
            break;
        };
        let end = next_hole(start)?.min(size);
        if start < at || end <= start {
            // A file system that contradicts itself: all of it is data.
            return Ok(FileData::whole(size, 0).segments);
        }
        if segments.len() == SEGMENTS_MAX {
            let why = format!("a sparse file of over {SEGMENTS_MAX} pieces");
            return Err(Error::refused(path, why));
        }
        segments.push(start..end);
        at = end;
    }
    Ok(segments)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_of_too_many_pieces_is_refused() {
        let pieces = |count: usize| {
            let size = 2 * count as u64;
            segments(
                b"f",
                size,
                |at| Ok(Some(at.next_multiple_of(2))),
                |at| Ok(at + 1),
            )
        };
        assert_eq!(
            pieces(SEGMENTS_MAX).map(|all| all.len()).ok(),
            Some(SEGMENTS_MAX)
        );
        let error = pieces(SEGMENTS_MAX + 1).expect_err("it is more");
        assert!(error.to_string().contains("pieces"), "{error}");
    }
}
