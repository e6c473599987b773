//! Where trees come from: a folder of the host, an image; archives are in [`crate::tar`].

pub mod folder;
pub mod image;

use crate::entry::FileData;
use crate::error::Result;
use std::ops::Range;

/// Most that is read at a time.
pub(crate) const CHUNK_BYTES: usize = 1 << 20;

/// The segments of a file of `size` bytes, by where data and holes begin.
pub(crate) fn segments(
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
        segments.push(start..end);
        at = end;
    }
    Ok(segments)
}
