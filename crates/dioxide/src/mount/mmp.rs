//! Multi-mount protection: no two hosts write to one file system.
//!
//! Who wants to write puts a number of its own into the MMP block, waits for longer than any other
//! user takes to put its next one, and looks whether its number is still there. From then on a thread
//! counts it up, until the file system is closed: before the journal is replayed, which may take longer than others wait
//! for a sign of life.
//! Who resizes puts the number of a checker instead, which keeps everybody away and stays as it is.
//!
//! Before each number it looks whether the last is still there: past the page cache, which shows only by chance what other
//! hosts have written.
//!
//! A host that crashed leaves its number. It is told from one that lives by waiting the same time.
//!
//! Not for: processes of one machine, which the lock on the image keeps apart at once.

use super::fence::Fence;
use super::open::mmp_user;
use super::span::{read_span_by, write_span};
use crate::io::worker::apart;
use crate::{Error, Place, Result};
use dioxide_block::Device;
use dioxide_format::mmp::{Mmp, MmpState, SEQ_CLEAN, SEQ_FSCK, SEQ_MAX};
use dioxide_format::superblock::SuperBlock;
use parking_lot::{Condvar, Mutex};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Least seconds between two checks, as in Linux.
const LEAST_CHECK: u16 = 5;
/// Most seconds of an interval, as in Linux: a damaged one must not keep the opener waiting for hours.
const MOST_SECS: u16 = 300;
/// Most seconds that a crashed host is waited for, beyond its own interval.
const MOST_EXTRA: u64 = 60;

/// How often who lost the protection looks for a mount to tell.
const LOOK: Duration = Duration::from_millis(10);

/// What the protection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum User {
    /// Counting, from [`Protection::keep`] on.
    Mount,
    /// In place of a checker.
    Resizer,
}

/// The right to write to a file system with multi-mount protection. Given up when it is dropped.
#[derive(Debug)]
pub(crate) struct Protection {
    block: Arc<Block>,
    keeper: Option<(Arc<Stop>, JoinHandle<()>)>,
}

#[derive(Debug, Default)]
struct Stop {
    stopped: Mutex<bool>,
    changed: Condvar,
}

/// The block on the device, and what was last written to it.
#[derive(Debug)]
struct Block {
    device: Arc<dyn Device>,
    sb: SuperBlock,
    number: u64,
    /// Seconds between two numbers, and that others are to expect between them at least.
    update: u16,
    least_check: u16,
    ours: Mutex<Mmp>,
}

/// Reads and checks the MMP block of a file system, as other hosts have left it.
pub(super) fn read(device: &dyn Device, sb: &SuperBlock, block: u64) -> Result<Mmp> {
    let at = block * u64::from(sb.block_size());
    let bytes = read_span_by(device, at, Mmp::SIZE, "MMP block", |at, buf| {
        device.read_past_cache_at(at, buf)
    })?;
    let check = || {
        let mmp = Mmp::parse(&bytes)?;
        mmp.validate()?;
        if sb.features().metadata_csum() {
            mmp.verify_checksum(sb.checksum_seed())?;
        }
        Ok(mmp)
    };
    check().map_err(|error| Error::format(error, Place::block(block)))
}

/// The error of a file system that somebody else uses.
pub(super) fn in_use(device: &dyn Device, mmp: &Mmp) -> Error {
    Error::Device(dioxide_block::Error::Busy {
        path: PathBuf::from(device.describe()),
        by: format!(
            "{}, says multi-mount protection; if that is not so, `tune2fs -f -E clear_mmp` says so, or open read-only",
            mmp_user(mmp)
        ),
    })
}

/// How long a user that lives takes at most to put its next number, and some more.
fn pause_of(check: u16) -> Duration {
    let check = u64::from(check);
    Duration::from_secs((2 * check + 1).min(check + MOST_EXTRA))
}

/// Seconds between two numbers, and those that who put the last one has others expect.
fn intervals(sb: &SuperBlock, found: &Mmp) -> (u16, u16) {
    let update = sb.mmp_interval_secs().clamp(1, MOST_SECS);
    let check = found.mmp_check_interval.min(MOST_SECS);
    (update, check.max(update).max(LEAST_CHECK))
}

fn wait(pause: Duration, why: &str, tell: &mut dyn FnMut(&str)) {
    tell(&format!("multi-mount protection: waiting {pause:?}, {why}"));
    thread::sleep(pause);
}

/// Looks whether somebody uses the file system. Of who used it last and did not say that it is over, it waits some seconds
/// for a sign of life, of which `tell` is told before.
///
/// # Errors
/// `EBUSY` if somebody does; the device's; damage in the MMP block.
pub(crate) fn look(
    device: &dyn Device,
    sb: &SuperBlock,
    block: u64,
    tell: &mut dyn FnMut(&str),
) -> Result<Mmp> {
    let found = read(device, sb, block)?;
    match found.state() {
        MmpState::Clean => {}
        MmpState::Mounted(seq) => {
            let pause = pause_of(intervals(sb, &found).1);
            tracing::warn!(
                "in use by {}: waiting {pause:?} for a sign of life",
                mmp_user(&found)
            );
            let why = "for a sign of life of who used the file system last";
            wait(pause, why, tell);
            let now = read(device, sb, block)?;
            if now.mmp_seq != seq {
                return Err(in_use(device, &now));
            }
        }
        MmpState::Fsck | MmpState::Unknown(_) => return Err(in_use(device, &found)),
    }
    Ok(found)
}

impl Protection {
    /// Waits until it is certain that nobody else uses the file system: some seconds, of which `tell`
    /// is told before.
    ///
    /// # Errors
    /// As [`look`].
    pub(crate) fn take(
        device: &Arc<dyn Device>,
        sb: &SuperBlock,
        block: u64,
        user: User,
        tell: &mut dyn FnMut(&str),
    ) -> Result<Protection> {
        let found = look(&**device, sb, block, tell)?;
        let (update, check) = intervals(sb, &found);
        // Another's may have been longer because its writes were slow.
        let least_check = update.max(LEAST_CHECK);
        let block = Block {
            number: block,
            sb: sb.clone(),
            device: device.clone(),
            update,
            least_check,
            ours: Mutex::new(named(&found, &**device, least_check)),
        };
        let random = RandomState::new().hash_one(block.number) as u32;
        block.write(random % SEQ_MAX + 1)?;
        let why = "to see whether another host uses the file system";
        wait(pause_of(check), why, tell);
        block.confirm()?;
        if user == User::Resizer {
            block.write(SEQ_FSCK)?;
        }
        Ok(Protection {
            block: Arc::new(block),
            keeper: None,
        })
    }

    /// Keeps the number counting, from now on. If that fails, nothing is written through `fence` any more.
    ///
    /// # Errors
    /// If the system gives no thread for it.
    pub(super) fn keep(&mut self, fence: Arc<Fence>) -> io::Result<()> {
        let (block, stop) = (self.block.clone(), Arc::new(Stop::default()));
        let theirs = stop.clone();
        let thread = thread::Builder::new()
            .name("dioxide-mmp".into())
            .spawn(move || {
                if let Err(error) = count(&block, &fence, &theirs) {
                    lose(&fence, &theirs, error);
                }
            })?;
        self.keeper = Some((stop, thread));
        Ok(())
    }
}

impl Drop for Protection {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.keeper.take() {
            *stop.stopped.lock() = true;
            stop.changed.notify_all();
            // The last user of a mount may be that thread itself.
            if thread.thread().id() != thread::current().id() {
                let _ = thread.join();
            }
        }
        let given_up = apart(|| self.block.give_up());
        if let Err(error) = given_up.unwrap_or(Err(Error::Panicked)) {
            tracing::warn!("multi-mount protection stays set: {error}");
        }
    }
}

impl Stop {
    /// Waits so long, or until it is to end: whether it is.
    fn wait(&self, pause: Duration) -> bool {
        let mut stopped = self.stopped.lock();
        self.changed
            .wait_while_for(&mut stopped, |stopped| !*stopped, pause);
        *stopped
    }
}

/// The thread, until it is stopped.
fn count(block: &Block, fence: &Fence, stop: &Stop) -> Result<()> {
    dioxide_block::roam();
    let update = Duration::from_secs(block.update.into());
    loop {
        // Who was late may have been taken for dead. No clock tells: others saw the last number from some moment of its writing
        // on, and that of a suspended machine stands still.
        block.confirm()?;
        let began = Instant::now();
        let next = block.ours.lock().mmp_seq % SEQ_MAX + 1;
        match block.show(next) {
            // Of this flush or one before. The mount writes nothing more; others are to stay away, and find a clean end.
            Err(error @ Error::Device(dioxide_block::Error::Io { op: "flush", .. })) => {
                match fence.mount() {
                    Some(mount) => _ = mount.fail(error),
                    None => return Err(error),
                }
            }
            written => written?,
        }
        let took = began.elapsed();
        block.note_slowness(took);
        if stop.wait(update.saturating_sub(took)) {
            return Ok(());
        }
    }
}

/// Somebody else may have the file system. Tells the mount, which may not be open yet.
fn lose(fence: &Fence, stop: &Stop, error: Error) {
    // First: the end of the journal writes its superblock, and there may be another's by now.
    fence.shut();
    loop {
        if let Some(mount) = fence.mount() {
            mount.fail(error);
            return;
        }
        if stop.wait(LOOK) {
            return;
        }
    }
}

impl Block {
    /// Puts a number, durably.
    fn write(&self, seq: u32) -> Result<()> {
        self.put(seq)?;
        Ok(self.device.flush()?)
    }

    /// Puts a number where others see it. A flush waits for all else that was written, so there is none that is not
    /// needed for that.
    fn show(&self, seq: u32) -> Result<()> {
        match self.device.geometry().direct {
            true => self.put(seq),
            false => self.write(seq),
        }
    }

    fn put(&self, seq: u32) -> Result<()> {
        let mut ours = self.ours.lock();
        ours.mmp_seq = seq;
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        ours.mmp_time = since.map_or(0, |since| since.as_secs());
        if self.sb.features().metadata_csum() {
            ours.update_checksum(self.sb.checksum_seed());
        }
        let at = self.number * u64::from(self.sb.block_size());
        write_span(&*self.device, at, &ours.encode())
    }

    /// Others are to wait longer for a number where the last took so long, from the next one on: as in Linux.
    fn note_slowness(&self, took: Duration) {
        let secs = (2 * took.as_secs()).min(MOST_SECS.into()) as u16;
        self.ours.lock().mmp_check_interval = secs.max(self.least_check);
    }

    /// Whether the number on the device is ours.
    fn confirm(&self) -> Result<()> {
        let now = read(&*self.device, &self.sb, self.number)?;
        match now.mmp_seq == self.ours.lock().mmp_seq {
            true => Ok(()),
            false => Err(in_use(&*self.device, &now)),
        }
    }

    /// Says that nobody uses the file system, unless somebody else does by now.
    fn give_up(&self) -> Result<()> {
        let theirs = read(&*self.device, &self.sb, self.number)?;
        if theirs.mmp_seq == self.ours.lock().mmp_seq {
            self.note_slowness(Duration::ZERO);
            self.write(SEQ_CLEAN)?;
        }
        Ok(())
    }
}

/// The block with our names in it.
fn named(found: &Mmp, device: &dyn Device, check: u16) -> Mmp {
    let mut mmp = found.clone();
    let fill = |field: &mut [u8], text: &[u8]| {
        field.fill(0);
        let len = text.len().min(field.len() - 1);
        field[..len].copy_from_slice(&text[..len]);
    };
    let uname = rustix::system::uname();
    fill(&mut mmp.mmp_nodename, uname.nodename().to_bytes());
    let name = device.describe();
    let base = name.rsplit('/').next().unwrap_or(&name);
    fill(&mut mmp.mmp_bdevname, base.as_bytes());
    mmp.mmp_check_interval = check;
    mmp
}

#[cfg(test)]
mod tests {
    use super::*;
    use dioxide_block::{Buf, Durability};

    #[test]
    fn file_system_whose_protection_is_lost_while_it_is_opened_is_not_written() {
        let fence = Fence::new(Arc::new(dioxide_block::mem::MemDevice::new(1 << 20)));
        let journal = fence.beside(Arc::new(dioxide_block::mem::MemDevice::new(1 << 20)));
        let write_to = |device: &Fence| device.write_at(0, &Buf::zeroed(4096), Durability::Cached);
        let write = || write_to(&fence);
        write().expect("it is there");
        write_to(&journal).expect("it is there");
        let stop = Stop::default();
        thread::scope(|scope| {
            let told = scope.spawn(|| lose(&fence, &stop, Error::Busy("somebody else has it")));
            while write().is_ok() {}
            let (read, early) = (fence.read_at(0, &mut Buf::zeroed(4096)), told.is_finished());
            let written = write_to(&journal);
            // Before anything that may fail: it waits for that.
            *stop.stopped.lock() = true;
            stop.changed.notify_all();
            read.expect("it is there");
            written.expect_err("it may be another's too");
            assert!(!early, "there is nobody to tell yet");
        });
    }

    #[test]
    fn pause_of_any_interval_is_that_of_linux() {
        let secs = [5, 59, 60, 300, u16::MAX].map(|check| pause_of(check).as_secs());
        assert_eq!(secs, [11, 119, 120, 360, 65_595]);
    }
}
