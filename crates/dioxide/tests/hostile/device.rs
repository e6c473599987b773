//! A device over an image with some of its bytes changed.

use super::mutate::{Mutation, Rng, mutations};
use super::subjects::Subject;
use dioxide::block::{Device, Durability, Error, Geometry, Queue, QueueOptions, Result};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

pub struct Mutant {
    geometry: Geometry,
    bytes: Arc<Vec<u8>>,
    mutations: Vec<Mutation>,
}

impl Mutant {
    /// `subject`, damaged as `seed` says.
    pub fn new(subject: &Subject, seed: u64) -> Mutant {
        let mut mutant = Mutant::intact(subject);
        let mut rng = Rng::new(seed);
        mutant.mutations = mutations(subject, &mut rng);
        // Rarely the end is missing as well.
        if rng.below(20) == 0 {
            mutant.geometry.size_bytes = rng.below(mutant.geometry.size_bytes / 512 + 1) * 512;
        }
        mutant
    }

    pub fn intact(subject: &Subject) -> Mutant {
        Mutant::of(subject.bytes.clone(), Vec::new())
    }

    pub fn of(bytes: Arc<Vec<u8>>, mutations: Vec<Mutation>) -> Mutant {
        Mutant {
            geometry: Geometry {
                size_bytes: bytes.len() as u64,
                logical_block_bytes: 512,
                mem_align_bytes: 1,
                direct: true,
                volatile_cache: false,
                fua: false,
                discard: false,
                read_only: true,
                inline: true,
                atomic: None,
            },
            bytes,
            mutations,
        }
    }

    pub fn is_truncated(&self) -> bool {
        self.geometry.size_bytes < self.bytes.len() as u64
    }

    /// Whether some of these bytes are not those of the image.
    pub fn changes(&self, bytes: Range<u64>) -> bool {
        let end = |mutation: &Mutation| mutation.at + mutation.bytes.len() as u64;
        let mut all = self.mutations.iter();
        all.any(|mutation| mutation.at < bytes.end && bytes.start < end(mutation))
    }

    fn refuse(op: &'static str) -> Result<()> {
        Err(Error::ReadOnly { op })
    }
}

impl Device for Mutant {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.geometry.check("read", offset, buf.len() as u64)?;
        buf.copy_from_slice(&self.bytes[offset as usize..][..buf.len()]);
        for mutation in &self.mutations {
            mutation.apply(offset, buf);
        }
        Ok(())
    }

    fn write_at(&self, _offset: u64, _buf: &[u8], _durability: Durability) -> Result<()> {
        Mutant::refuse("write")
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn discard(&self, _offset: u64, _len: u64) -> Result<()> {
        Mutant::refuse("discard")
    }

    fn write_zeroes(&self, _offset: u64, _len: u64) -> Result<()> {
        Mutant::refuse("write zeroes")
    }

    fn open_queue(&self, _options: &QueueOptions) -> Result<Box<dyn Queue>> {
        Err(Error::Unsupported {
            what: "a queue on a mutant".into(),
        })
    }

    fn describe(&self) -> String {
        format!("{self:?}")
    }
}

impl fmt::Debug for Mutant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.geometry.size_bytes)?;
        for Mutation { at, bytes } in &self.mutations {
            let shown = &bytes[..bytes.len().min(16)];
            write!(f, ", at {at} {} bytes {shown:02x?}", bytes.len())?;
        }
        Ok(())
    }
}
