//! Row 16: a file system of 16 TiB, ÷ one of 1 GiB.
//!
//! Memory is asked for twice. A mount of 16 TiB that was just opened may have 16 MiB. After work the caches are full, up to
//! bounds that are options and know nothing of the size of an image; so what is judged then is what 16 TiB take more than 1 GiB after the
//! same work: files made, listed, looked at and read, more than the caches hold.

use super::{FILE, MIB, NewFile, READ, Table, dioxide, psync, raw, resident_mib, speed};
use crate::image::{Image, scratch};
use crate::subject::{self, Layer, Subject};
use crate::{Error, Result};
use dioxide::block::Device;
use dioxide::{Backend, FileType, Fs, MountOptions, OpenOptions};
use std::sync::Arc;
use std::time::Instant;

const SMALL: u64 = 1 << 30;
const HUGE: u64 = 16 << 40;
const MOST_MS: f64 = 50.0;
const MOST_MIB: f64 = 16.0;
const DIRS: u32 = 32;
/// Their inodes alone are the 32 MiB that the cache of metadata has; of 16 TiB they lie in 8,192 groups.
const FILES_OF_A_DIR: u32 = 4096;
const QUICK_FILES_OF_A_DIR: u32 = 256;
/// One file in so many has a block.
const WRITTEN: u32 = 8;

/// Makes many files, lists and reads them; the MiB that the process has then.
fn memory_after_work(device: &Arc<dyn Device>, files_of_a_dir: u32) -> Result<f64> {
    let fs = Fs::open_device(device.clone(), &MountOptions::new())?;
    let dirs = (0..DIRS).map(|number| format!("/work-{number}"));
    let dirs: Vec<String> = dirs.collect();
    let mut block = vec![7; 4096];
    for dir in &dirs {
        fs.create_dir(dir, &dioxide::NewFile::new(0o755))?;
        for number in 0..files_of_a_dir {
            let new = OpenOptions::new().write(true).create_new(true);
            let file = new.open(&fs, format!("{dir}/file-{number:08}"))?;
            if number.is_multiple_of(WRITTEN) {
                file.write_at(&block, 0)?;
            }
        }
    }
    fs.sync()?;
    for dir in &dirs {
        for entry in fs.read_dir(dir)? {
            let path = [dir.as_bytes(), b"/", &entry.name].concat();
            if entry.file_type == FileType::Regular && fs.metadata(&path)?.size > 0 {
                let file = OpenOptions::new().read(true).open(&fs, &path)?;
                file.read_at(&mut block, 0)?;
            }
        }
    }
    let mib = resident_mib();
    fs.close()?;
    Ok(mib)
}

impl Table<'_, '_> {
    pub(super) fn image_size(&mut self) -> Result<()> {
        let bytes = self.size.min(256 * MIB);
        let file = NewFile {
            bytes,
            ..self.whole_file()
        };
        let files_of_a_dir = match self.options.quick {
            true => QUICK_FILES_OF_A_DIR,
            false => FILES_OF_A_DIR,
        };
        let make = |size| {
            let dir = scratch(self.options.scratch.as_deref(), bytes + 512 * MIB);
            let inodes = DIRS * files_of_a_dir + 4096;
            Image::make_for(&dir, size, inodes, std::slice::from_ref(&file))
        };
        self.ticker.say("making a file system of 16 TiB");
        let small = make(SMALL)?;
        let huge = match make(HUGE) {
            Ok(image) => image,
            Err(error @ (Error::Io { .. } | Error::Setup(_))) => {
                self.skipped("16: 16 TiB ÷ 1 GiB", &error);
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        if !self.is_in_memory(&small, "16: 16 TiB ÷ 1 GiB")? {
            return Ok(());
        }
        let open = |image: &Image| subject::open_image(image, Backend::Pread, 0);
        let devices = [open(&small)?, open(&huge)?];
        self.opened(&devices[1])?;
        self.worked(&devices, files_of_a_dir)?;
        self.read_both(&devices, bytes)?;
        self.fsck(&small)?;
        self.fsck(&huge)
    }

    fn opened(&mut self, huge: &Arc<dyn Device>) -> Result<()> {
        let (before, begin) = (resident_mib(), Instant::now());
        let fs = Fs::open_device(huge.clone(), &MountOptions::new())?;
        let (ms, mib) = (begin.elapsed().as_secs_f64() * 1e3, resident_mib() - before);
        fs.close()?;
        self.at_most("16: ms to open 16 TiB", ms, MOST_MS);
        self.at_most(
            "16: MiB of memory for 16 TiB, when it is open",
            mib,
            MOST_MIB,
        );
        Ok(())
    }

    fn worked(&mut self, [small, huge]: &[Arc<dyn Device>; 2], files_of_a_dir: u32) -> Result<()> {
        self.ticker.say("working on 1 GiB and on 16 TiB");
        let before = resident_mib();
        let of_small = memory_after_work(small, files_of_a_dir)? - before;
        // Against the same: what the first has freed and the process still has is the second's.
        let of_huge = memory_after_work(huge, files_of_a_dir)? - before;
        self.check(
            "16: MiB of memory after work, 16 TiB less 1 GiB",
            format!("≤ {MOST_MIB}"),
            format!("{:.1}: {of_huge:.1}, {of_small:.1}", of_huge - of_small),
            of_huge - of_small <= MOST_MIB,
            None,
        );
        Ok(())
    }

    fn read_both(&mut self, devices: &[Arc<dyn Device>; 2], bytes: u64) -> Result<()> {
        let open = |device| Subject::open(device, &Layer::Bare, FILE, bytes).map(Arc::new);
        let subjects = [open(&devices[0])?, open(&devices[1])?];
        subjects[0].fill()?;
        subjects[1].fill()?;
        let job = psync(READ, 4096, 1);
        let entries = [raw, dioxide].into_iter().flat_map(|target| {
            subjects.each_ref().map(|subject| super::Entry {
                raw: None,
                ..target(subject, job)
            })
        });
        let rounds = self.contest("image-size", entries.collect())?;
        let names = ["image-1GiB", "image-16TiB"];
        self.rename_last([names[0], names[1], names[0], names[1]].map(String::from));
        let note = format!("raw's own is {:.3}", speed(&rounds[0], &rounds[1]));
        self.at_most_noted(
            "16: time of a read, 16 TiB ÷ 1 GiB, pread",
            speed(&rounds[2], &rounds[3]),
            1.03,
            Some(note),
        );
        subjects.into_iter().try_for_each(Subject::close)
    }
}
