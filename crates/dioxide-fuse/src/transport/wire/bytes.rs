//! Numbers and names out of a request, and into an answer. All are in the order of bytes of this machine.

use crate::{Errno, Result};

/// What is left of a request's structure. What it is too short for is `EINVAL`.
#[derive(Clone, Copy)]
pub(super) struct In<'a>(pub(super) &'a [u8]);

impl<'a> In<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk().ok_or(Errno::INVAL)?;
        self.0 = rest;
        Ok(*first)
    }

    pub(super) fn u32(&mut self) -> Result<u32> {
        self.take().map(u32::from_ne_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64> {
        self.take().map(u64::from_ne_bytes)
    }

    pub(super) fn skip(&mut self, len: usize) -> Result {
        self.0 = self.0.get(len..).ok_or(Errno::INVAL)?;
        Ok(())
    }

    /// A name with a NUL behind it.
    pub(super) fn name(&mut self) -> Result<&'a [u8]> {
        let len = self.0.iter().position(|&byte| byte == 0);
        let len = len.ok_or(Errno::INVAL)?;
        let (name, rest) = self.0.split_at(len);
        self.0 = &rest[1..];
        Ok(name)
    }
}

/// An answer as it grows. What it has no room for makes the whole `ERANGE`.
pub(super) struct Out<'a> {
    buffer: &'a mut [u8],
    len: usize,
    full: bool,
}

impl<'a> Out<'a> {
    pub(super) fn new(buffer: &'a mut [u8]) -> Out<'a> {
        Out {
            buffer,
            len: 0,
            full: false,
        }
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        match self.buffer.get_mut(self.len..self.len + bytes.len()) {
            Some(place) => {
                place.copy_from_slice(bytes);
                self.len += bytes.len();
            }
            None => self.full = true,
        }
        self
    }

    pub(super) fn u16(&mut self, number: u16) -> &mut Self {
        self.bytes(&number.to_ne_bytes())
    }

    pub(super) fn u32(&mut self, number: u32) -> &mut Self {
        self.bytes(&number.to_ne_bytes())
    }

    pub(super) fn u64(&mut self, number: u64) -> &mut Self {
        self.bytes(&number.to_ne_bytes())
    }

    pub(super) fn zeros(&mut self, len: usize) -> &mut Self {
        (0..len).for_each(|_| {
            self.bytes(&[0]);
        });
        self
    }

    /// Up to the next multiple of eight.
    pub(super) fn align(&mut self) -> &mut Self {
        self.zeros(self.len.next_multiple_of(8) - self.len)
    }

    /// How many bytes fit yet.
    pub(super) fn room(&self) -> usize {
        self.buffer.len() - self.len
    }

    pub(super) fn finish(&self) -> Result<usize> {
        match self.full {
            true => Err(Errno::RANGE),
            false => Ok(self.len),
        }
    }
}
