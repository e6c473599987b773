//! The bytes of a regular file, without its holes.

use super::Copier;
use crate::failure::Failure;
use crate::interrupt;
use crate::session::Target;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use tempfile::TempPath;

impl Copier<'_> {
    /// A copy of the content under a temporary name beside `place`.
    pub(super) fn content(&mut self, target: &Target, place: &Path) -> Result<TempPath, Failure> {
        let source = target.open_read()?;
        let told = |error: io::Error| Failure::host(place.display(), &error);
        let mut made = None;
        let temporary = super::beside(place, |path| {
            let file = OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(path)?;
            made = Some(file);
            Ok(())
        });
        let temporary = temporary.map_err(told)?;
        let copy = made.ok_or_else(|| told(io::ErrorKind::NotFound.into()))?;
        let len = source.len();
        self.progress.grow(len);
        let mut offset = 0;
        while let Some(data) = source
            .seek_data(offset)
            .map_err(|error| target.failure(&error))?
        {
            let hole = source
                .seek_hole(data)
                .map_err(|error| target.failure(&error))?;
            let end = hole.unwrap_or(len).min(len);
            self.progress.advance(data.saturating_sub(offset));
            if end <= data {
                break;
            }
            self.range(&source, target, &copy, data, end)
                .map_err(|error| match error {
                    Ok(failure) => failure,
                    Err(error) => told(error),
                })?;
            offset = end;
        }
        self.progress.advance(len.saturating_sub(offset));
        copy.set_len(len).map_err(told)?;
        Ok(temporary)
    }

    /// Bytes of data. What fails is either side's.
    fn range(
        &mut self,
        source: &dioxide::File,
        target: &Target,
        copy: &File,
        begin: u64,
        end: u64,
    ) -> Result<(), Result<Failure, io::Error>> {
        let mut offset = begin;
        while offset < end {
            interrupt::check().map_err(Ok)?;
            let want = usize::try_from(end - offset)
                .unwrap_or(usize::MAX)
                .min(self.buf.len());
            let read = source.read_at(&mut self.buf[..want], offset);
            let count = read.map_err(|error| Ok(target.failure(&error)))?;
            if count == 0 {
                break;
            }
            copy.write_all_at(&self.buf[..count], offset).map_err(Err)?;
            offset += count as u64;
            self.progress.advance(count as u64);
        }
        Ok(())
    }
}
