//! Guards for loop devices and kernel mounts. All of it needs root.
//!
//! Invariant: what a guard made is undone when it is dropped, in a panic too. A mount point is removed
//! as an empty directory, never with its contents: they may be those of a mount that would not go.

use crate::tools::{output, run, sync, tool};
use std::fs;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

/// How often and how long to try to let go of what is busy.
const TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(20);

/// A file attached to a loop device; detached when dropped.
#[derive(Debug)]
pub struct LoopDevice {
    path: PathBuf,
}

impl LoopDevice {
    /// Attaches `file` to a free loop device, whole and writable.
    ///
    /// # Panics
    /// If losetup fails.
    pub fn attach(file: &Path) -> LoopDevice {
        LoopDevice::attach_with(file, &[])
    }

    /// As [`LoopDevice::attach`], with more arguments for losetup: `--read-only`,
    /// `--direct-io=on`, `--sector-size=4096`, `--offset=1048576`.
    pub fn attach_with(file: &Path, args: &[&str]) -> LoopDevice {
        let mut losetup = tool("losetup");
        losetup.args(["--find", "--show"]).args(args).arg(file);
        let name = run(&mut losetup);
        let device = LoopDevice {
            path: name.trim_end().into(),
        };
        // Who had it before may hold it a moment longer than it was attached.
        if !patiently(|| device.is_free()) {
            eprintln!("{} is in use", device.path.display());
        }
        device
    }

    /// Whether nobody has it exclusively.
    fn is_free(&self) -> bool {
        let exclusively = rustix::fs::OFlags::EXCL.bits() as i32;
        let mut options = fs::File::options();
        let opened = options
            .read(true)
            .custom_flags(exclusively)
            .open(&self.path);
        opened.is_ok()
    }

    /// The device: `/dev/loop0`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn is_attached(&self) -> bool {
        let name = self.path.file_name().unwrap_or_default();
        let device = Path::new("/sys/block").join(name);
        device.join("loop/backing_file").exists()
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        // The kernel detaches a device that is still open elsewhere (udev looks at each) only when
        // that is closed, so ask once, then wait until it is gone.
        output(tool("losetup").arg("--detach").arg(&self.path));
        if !patiently(|| !self.is_attached()) {
            eprintln!("{} is still attached", self.path.display());
        }
    }
}

/// A mounted file system; unmounted when dropped.
#[derive(Debug)]
pub struct Mount {
    point: PathBuf,
    mounted: bool,
    // Dropped, and so detached, after the mount's own drop.
    device: Option<LoopDevice>,
}

impl Mount {
    /// Mounts an image (through a loop device) or a block device with the kernel's ext4 driver.
    /// `options` as for `mount -o`: `noload,ro`; may be empty.
    ///
    /// # Panics
    /// If mount fails.
    pub fn ext4(source: &Path, options: &str) -> Mount {
        Mount::try_ext4(source, options).unwrap_or_else(|said| panic!("{said}"))
    }

    /// As [`Mount::ext4`]; what mount says if it fails: the kernel may not know what is to be tested.
    ///
    /// # Errors
    /// The text that mount printed.
    pub fn try_ext4(source: &Path, options: &str) -> Result<Mount, String> {
        let is_file = source.is_file();
        let device = is_file.then(|| LoopDevice::attach(source));
        let what = device.as_ref().map_or(source, LoopDevice::path).to_owned();
        let point = tempfile::Builder::new().prefix("dioxide-mnt-").tempdir();
        let mut mount = Mount {
            point: point.expect("mount point").keep(),
            mounted: false,
            device,
        };
        let mut command = tool("mount");
        command.args(["-t", "ext4"]);
        if !options.is_empty() {
            command.args(["-o", options]);
        }
        let output = output(command.arg(what).arg(&mount.point));
        mount.mounted = output.status.success();
        match mount.mounted {
            true => Ok(mount),
            false => Err(format!(
                "{command:?}: {}",
                String::from_utf8_lossy(&output.stderr)
            )),
        }
    }

    /// The mount point.
    pub fn path(&self) -> &Path {
        &self.point
    }

    /// The block device, if the mount attached one.
    pub fn device(&self) -> Option<&LoopDevice> {
        self.device.as_ref()
    }

    /// Unmounts and detaches; what was written is in the image then.
    ///
    /// # Panics
    /// If the mount stays busy for two seconds.
    pub fn unmount(mut self) {
        sync(&self.point);
        assert!(self.try_unmount(), "{} is busy", self.point.display());
    }

    fn try_unmount(&mut self) -> bool {
        let umount = || output(tool("umount").arg(&self.point)).status.success();
        self.mounted = self.mounted && !patiently(umount);
        !self.mounted
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.mounted && !self.try_unmount() {
            eprintln!("{} is busy: unmounted lazily", self.point.display());
            output(tool("umount").arg("--lazy").arg(&self.point));
        }
        if let Err(error) = fs::remove_dir(&self.point) {
            eprintln!("{}: {error}", self.point.display());
        }
    }
}

fn patiently(mut done: impl FnMut() -> bool) -> bool {
    for _ in 0..TRIES {
        if done() {
            return true;
        }
        sleep(PAUSE);
    }
    false
}
