//! Bytes on the device that logical blocks do not divide.

use crate::{Error, Place, Result};
use dioxide_block::{Buf, Device, Durability};

/// `len` bytes at `at`, whatever the device's logical block: those of a structure that errors name.
pub(crate) fn read_span(
    device: &dyn Device,
    at: u64,
    len: usize,
    structure: &'static str,
) -> Result<Vec<u8>> {
    read_span_by(device, at, len, structure, |at, buf| {
        device.read_at(at, buf)
    })
}

/// As [`read_span`], with a way to read the device.
pub(super) fn read_span_by(
    device: &dyn Device,
    at: u64,
    len: usize,
    structure: &'static str,
    read: impl FnOnce(u64, &mut [u8]) -> dioxide_block::Result<()>,
) -> Result<Vec<u8>> {
    let geometry = device.geometry();
    let logical = u64::from(geometry.logical_block_bytes);
    let start = at - at % logical;
    let end = at.checked_add(len as u64).map_or(u64::MAX, |end| {
        end.div_ceil(logical).saturating_mul(logical)
    });
    if end > geometry.size_bytes {
        return Err(Error::Corrupt {
            structure,
            place: Place::default().at(at),
            what: format!("the device ends at byte {}", geometry.size_bytes),
        });
    }
    let mut buf = Buf::zeroed((end - start) as usize);
    read(start, &mut buf)?;
    let skip = (at - start) as usize;
    Ok(buf[skip..skip + len].to_vec())
}

/// Writes bytes at `at`, whatever the device's logical block: what surrounds them is read and written
/// back.
pub(crate) fn write_span(device: &dyn Device, at: u64, bytes: &[u8]) -> Result<()> {
    let logical = u64::from(device.geometry().logical_block_bytes);
    let start = at - at % logical;
    let end = (at + bytes.len() as u64).next_multiple_of(logical);
    let mut whole = read_span(device, start, (end - start) as usize, "metadata")?;
    whole[(at - start) as usize..][..bytes.len()].copy_from_slice(bytes);
    Ok(device.write_at(start, &whole, Durability::Cached)?)
}
