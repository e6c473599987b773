//! The bytes of a regular file, without its holes.

use super::Copier;
use crate::commands::write::Input;
use crate::failure::Failure;
use crate::interrupt;
use crate::location::{Content, Location, Pending};
use dioxide::NewFile;

impl Copier {
    /// A copy of the content under a temporary name beside `place`.
    pub(super) fn regular(
        &mut self,
        source: &Location,
        place: &Location,
        new: &NewFile,
    ) -> Result<Pending, Failure> {
        let content = source.open(self.first())?;
        let durable = self.options.moving;
        Pending::regular(place, new, durable, &mut |copy| self.fill(&content, copy))
    }

    /// All that a pipe or a device of the host has to tell, once.
    pub(super) fn stream(
        &mut self,
        source: &Location,
        place: &Location,
        new: &NewFile,
    ) -> Result<Pending, Failure> {
        let Location::Host(path) = source else {
            let what = "is no regular file, and -r was not given";
            return Err(Failure::trouble(source, what));
        };
        let mut input = Input::of_file(path)?;
        Pending::regular(place, new, self.options.moving, &mut |copy| {
            let mut offset = 0;
            loop {
                match input.fill(&mut self.buf)? {
                    0 => return Ok(()),
                    count => {
                        copy.write_at(&self.buf[..count], offset)?;
                        offset += count as u64;
                        self.progress.grow(count as u64);
                        self.progress.advance(count as u64);
                    }
                }
            }
        })
    }

    fn fill(&mut self, source: &Content, copy: &Content) -> Result<(), Failure> {
        let len = source.len()?;
        self.progress.grow(len);
        let mut offset = 0;
        while let Some((begin, end)) = source.data(offset, len)? {
            self.progress.advance(begin.saturating_sub(offset));
            offset = self.range(source, copy, begin, end)?;
            if offset < end {
                // It has become shorter, or says that it is longer than it is, as files in sysfs do.
                return copy.set_len(offset);
            }
        }
        self.progress.advance(len.saturating_sub(offset));
        match len {
            // Some files of the host do not know how long they are.
            0 => self.range(source, copy, 0, u64::MAX).map(drop),
            len => copy.set_len(len),
        }
    }

    /// Bytes of data, as far as there are any; where they end.
    fn range(
        &mut self,
        source: &Content,
        copy: &Content,
        begin: u64,
        end: u64,
    ) -> Result<u64, Failure> {
        let mut offset = begin;
        while offset < end {
            interrupt::check()?;
            let want = usize::try_from(end - offset)
                .unwrap_or(usize::MAX)
                .min(self.buf.len());
            let count = source.read_at(&mut self.buf[..want], offset)?;
            if count == 0 {
                break;
            }
            copy.write_at(&self.buf[..count], offset)?;
            offset += count as u64;
            self.progress.advance(count as u64);
        }
        Ok(offset)
    }
}
