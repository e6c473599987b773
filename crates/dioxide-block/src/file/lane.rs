//! Blocking transfers that are compiled into their caller.
//!
//! Through [`Device`] a transfer is a call by a table: registers saved and restored, arguments
//! moved. That is some thirty instructions, a third of them stores, and beside a copy of 512 bytes
//! between two places in memory it shows. A lane knows which of the file devices it has, and makes
//! the same transfer, no less guarded, without the call.

use super::FileDevice;
use super::mapping::MappedDevice;
use crate::{Device, Durability, Result};
use std::sync::Arc;

/// The shortest way to a device's bytes.
#[derive(Clone, Debug)]
pub struct Lane(Kind);

#[derive(Clone, Debug)]
enum Kind {
    Mapping(MappedDevice),
    File(FileDevice),
    Any(Arc<dyn Device>),
}

impl Lane {
    /// The lane of a device: its own, or the one through the trait.
    pub fn of(device: &Arc<dyn Device>) -> Lane {
        device
            .lane()
            .unwrap_or_else(|| Lane(Kind::Any(device.clone())))
    }

    pub(super) fn mapping(device: MappedDevice) -> Lane {
        Lane(Kind::Mapping(device))
    }

    pub(super) fn file(device: FileDevice) -> Lane {
        Lane(Kind::File(device))
    }

    /// As [`Device::read_at`]; where the device does not care about alignment, neither does this.
    ///
    /// # Errors
    /// The same.
    #[inline(always)]
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        match &self.0 {
            Kind::Mapping(device) => device.read_bytes(offset, buf),
            Kind::File(device) => device.read_at(offset, buf),
            Kind::Any(device) => device.read_at(offset, buf),
        }
    }

    /// As [`Device::write_at`], durable with a later flush.
    ///
    /// # Errors
    /// The same.
    #[inline(always)]
    pub fn write_at(&self, offset: u64, buf: &[u8]) -> Result<()> {
        match &self.0 {
            Kind::Mapping(device) => device.write_bytes(offset, buf),
            Kind::File(device) => device.write_at(offset, buf, Durability::Cached),
            Kind::Any(device) => device.write_at(offset, buf, Durability::Cached),
        }
    }
}
