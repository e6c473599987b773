//! What the two sides agree on before the first request.

use super::abi::{self, init};
use super::bytes::{In, Out};
use crate::{Errno, Result};

/// What this side wants.
#[derive(Clone, Copy, Debug)]
pub(in crate::transport) struct Offer {
    pub(in crate::transport) writeback: bool,
    pub(in crate::transport) permissions: bool,
    pub(in crate::transport) max_background: u16,
    /// Times are whole multiples of so many nanoseconds.
    pub(in crate::transport) time_gran: u32,
    /// Rings are ready.
    pub(in crate::transport) io_uring: bool,
}

/// What both sides do, as far as it changes requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::transport) struct Agreed {
    /// Requests come through rings.
    pub(in crate::transport) over_io_uring: bool,
    /// `fuse_setxattr_in` has flags.
    pub(in crate::transport) setxattr_ext: bool,
    /// Files that are open past the page cache can be mapped.
    pub(in crate::transport) maps_direct: bool,
    /// Pages that the kernel writes back are locked until that is answered. Before Linux 6.16 it writes copies of them, and does not wait
    /// for these when it is told to drop the pages.
    pub(in crate::transport) waits_for_pages: bool,
}

impl Agreed {
    /// As [`abi::op_bytes`], for this kernel.
    pub(in crate::transport) fn op_bytes(&self, opcode: u32) -> usize {
        match opcode {
            abi::opcode::SETXATTR if !self.setxattr_ext => abi::SETXATTR_COMPAT_BYTES,
            _ => abi::op_bytes(opcode),
        }
    }
}

/// What the kernel says, as far as it counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::transport) struct Init {
    minor: u32,
    max_readahead: u32,
    flags: u64,
}

impl Init {
    /// None for a kernel of a later major version: it is told ours, and asks again.
    ///
    /// # Errors
    /// `EINVAL` if there is too little; `EPROTO` for a kernel that is too old.
    pub(in crate::transport) fn decode(bytes: &[u8]) -> Result<Option<Init>> {
        let mut bytes = In(bytes);
        let (major, minor) = (bytes.u32()?, bytes.u32()?);
        if major > abi::VERSION.0 {
            return Ok(None);
        }
        if (major, minor) < abi::OLDEST {
            return Err(Errno(libc::EPROTO));
        }
        let max_readahead = bytes.u32()?;
        let low = u64::from(bytes.u32()?);
        let high = match low & init::INIT_EXT {
            0 => 0,
            _ => u64::from(bytes.u32()?),
        };
        Ok(Some(Init {
            minor,
            max_readahead,
            flags: high << 32 | low,
        }))
    }

    /// What both can and we want.
    fn flags(&self, offer: &Offer) -> u64 {
        let mut wanted = init::ASYNC_READ
            | init::EXPORT_SUPPORT
            | init::BIG_WRITES
            | init::DONT_MASK
            | init::HAS_IOCTL_DIR
            | init::DO_READDIRPLUS
            | init::READDIRPLUS_AUTO
            | init::ASYNC_DIO
            | init::PARALLEL_DIROPS
            | init::MAX_PAGES
            | init::CACHE_SYMLINKS
            | init::NO_OPENDIR_SUPPORT
            | init::HANDLE_KILLPRIV_V2
            | init::SETXATTR_EXT
            | init::INIT_EXT
            | init::DIRECT_IO_ALLOW_MMAP;
        for (flag, want) in [
            (init::WRITEBACK_CACHE, offer.writeback),
            (init::POSIX_ACL, offer.permissions),
            (init::OVER_IO_URING, offer.io_uring),
        ] {
            wanted |= if want { flag } else { 0 };
        }
        wanted & self.flags
    }

    pub(in crate::transport) fn agreed(&self, offer: &Offer) -> Agreed {
        let has = |flag| self.flags(offer) & flag != 0;
        Agreed {
            over_io_uring: has(init::OVER_IO_URING),
            setxattr_ext: has(init::SETXATTR_EXT),
            maps_direct: has(init::DIRECT_IO_ALLOW_MMAP),
            waits_for_pages: self.minor >= abi::WAITS_FOR_PAGES,
        }
    }

    /// Encodes the answer: `fuse_init_out`.
    pub(in crate::transport) fn reply(&self, offer: &Offer, buffer: &mut [u8]) -> Result<usize> {
        let flags = self.flags(offer);
        let pages = (super::PAYLOAD_BYTES / rustix::param::page_size()) as u16;
        let mut out = Out::new(buffer);
        out.u32(abi::VERSION.0)
            .u32(abi::VERSION.1.min(self.minor))
            .u32(self.max_readahead)
            .u32(flags as u32)
            .u16(offer.max_background)
            .u16((offer.max_background / 4).max(1) * 3)
            .u32(super::PAYLOAD_BYTES as u32)
            .u32(offer.time_gran)
            .u16(pages)
            .u16(0)
            .u32((flags >> 32) as u32)
            .zeros(28)
            .finish()
    }

    /// The answer to a later major version.
    pub(in crate::transport) fn reply_version(buffer: &mut [u8]) -> Result<usize> {
        let mut out = Out::new(buffer);
        out.u32(abi::VERSION.0)
            .u32(abi::VERSION.1)
            .zeros(56)
            .finish()
    }
}
