//! The kernel's ext4 as another way to recover.
//!
//! Invariant: what is mounted is unmounted when its guard is dropped, in a panic too. Its mount point is removed as an empty
//! directory, never with what may be mounted there.

use crate::explore::Recover;
use crate::fsck::{Shown, features, program, run};
use crate::image::Layout;
use dioxide::block::record::states::Snapshot;
use dioxide::format::features::RoCompat;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

/// How often and how long to try to unmount what is busy: others look at each new device.
const TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(20);

/// The kernel's ext4, on a loop device: mounts a crashed image, and unmounts it.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    /// Whether it was built with quotas: without, it refuses to write to what has them.
    quota: bool,
}

impl Kernel {
    /// If it mounts images here, which takes root, loop devices and ext4. Tries it.
    ///
    /// # Errors
    /// It does not; what mount said.
    pub fn find() -> Result<Kernel, String> {
        let mounts = |layout: Layout| Kernel::mount(&Shown::new(&layout.make()?.image)?);
        mounts(Layout::K1)?;
        let quota = mounts(Layout::Quota).is_ok();
        Ok(Kernel { quota })
    }

    fn mount(shown: &Shown) -> Result<Snapshot, String> {
        Mount::new(&shown.path())?.unmount()?;
        shown.read()
    }
}

impl Recover for Kernel {
    fn name(&self) -> &str {
        "kernel"
    }

    fn recover(&self, image: &Snapshot) -> Result<Option<Snapshot>, String> {
        if !self.quota && features(image).ro_compat.contains(RoCompat::QUOTA) {
            return Ok(None);
        }
        let shown = Shown::new(image)?;
        // A journal elsewhere would have to be on a device.
        match shown.has_journal() {
            true => Ok(None),
            false => Kernel::mount(&shown).map(Some),
        }
    }
}

struct Mount {
    point: PathBuf,
    mounted: bool,
}

impl Mount {
    /// Mounts an image. The kernel lets go of the loop device at the unmount.
    fn new(image: &Path) -> Result<Mount, String> {
        let mut dir = tempfile::Builder::new();
        let dir = dir.prefix("dioxide-crash-mnt-").tempdir();
        let mut mount = Mount {
            point: dir.map_err(|e| format!("mount point: {e}"))?.keep(),
            mounted: false,
        };
        let mut command = program("mount")?;
        command.args(["-t", "ext4", "-o", "loop"]);
        run(command.arg(image).arg(&mount.point))?;
        mount.mounted = true;
        Ok(mount)
    }

    fn unmount(mut self) -> Result<(), String> {
        self.try_unmount()
    }

    fn try_unmount(&mut self) -> Result<(), String> {
        let mut tries = 0;
        loop {
            match run(program("umount")?.arg(&self.point)) {
                Ok(_) => break,
                Err(what) if tries == TRIES => return Err(what),
                Err(_) => sleep(PAUSE),
            }
            tries += 1;
        }
        self.mounted = false;
        Ok(())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.mounted
            && self.try_unmount().is_err()
            && let Ok(mut umount) = program("umount")
        {
            // Gone when nobody uses it any more.
            let _ = run(umount.arg("--lazy").arg(&self.point));
        }
        let _ = fs::remove_dir(&self.point);
    }
}
