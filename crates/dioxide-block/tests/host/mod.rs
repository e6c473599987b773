//! Files, loop devices and file systems for the tests of the `file` module. Everything is undone on
//! drop. Parts need root; [`is_root`] tells.
#![allow(dead_code)]

use dioxide_block::file::{Backend, FileOptions};
use dioxide_block::{Buf, Completion, Device, Op, OpKind, Queue, Seg, Segs, SlotId};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tempfile::{NamedTempFile, TempDir};

pub const MIB: u64 = 1 << 20;
pub const PATIENCE: Duration = Duration::from_secs(20);

pub fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("skipped: needs root");
    }
    root
}

/// A folder on a disk file system, wherever what is built goes.
pub fn disk() -> &'static str {
    const TMPFS_MAGIC: i64 = 0x0102_1994;
    let is_disk = |dir: &&str| rustix::fs::statfs(*dir).is_ok_and(|fs| fs.f_type != TMPFS_MAGIC);
    let dirs = [env!("CARGO_TARGET_TMPDIR"), "/var/tmp"];
    dirs.into_iter().find(is_disk).expect("a disk")
}

/// A sparse file on a disk file system.
pub fn disk_file(size: u64) -> NamedTempFile {
    sized(NamedTempFile::new_in(disk()), size)
}

/// A sparse file in memory.
pub fn shm_file(size: u64) -> NamedTempFile {
    sized(NamedTempFile::new_in("/dev/shm"), size)
}

fn sized(file: std::io::Result<NamedTempFile>, size: u64) -> NamedTempFile {
    let file = file.expect("a temporary file");
    file.as_file().set_len(size).expect("a sparse file");
    file
}

pub fn writable(backend: Backend) -> FileOptions {
    FileOptions {
        backend,
        write: true,
        ..FileOptions::default()
    }
}

/// What `auto` does for a program that lets it map.
pub fn sparse() -> FileOptions {
    FileOptions {
        may_map: true,
        ..writable(Backend::Auto)
    }
}

pub fn open(path: &Path, options: &FileOptions) -> Arc<dyn Device> {
    dioxide_block::file::open(path, options).expect("the image opens")
}

pub fn run(program: &str, args: &[&str]) -> String {
    let out = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .output()
        .unwrap_or_else(|e| panic!("{program}: {e}"));
    let err = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{program} {args:?}: {err}");
    String::from_utf8(out.stdout).expect("UTF-8")
}

/// A loop device, detached on drop.
pub struct LoopDevice {
    pub path: PathBuf,
}

impl LoopDevice {
    pub fn attach(file: &Path) -> LoopDevice {
        LoopDevice::attach_with(file, &[])
    }

    /// With options of `losetup`.
    pub fn attach_with(file: &Path, options: &[&str]) -> LoopDevice {
        let args = ["-f", "--show", file.to_str().expect("UTF-8")];
        let out = run("losetup", &[options, &args].concat());
        LoopDevice {
            path: out.trim().into(),
        }
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("-d").arg(&self.path).status();
        // It goes when the last who looks at it closes it: another test, say.
        let name = self.path.file_name().expect("a device").to_string_lossy();
        let backing = format!("/sys/block/{name}/loop/backing_file");
        for _ in 0..1000 {
            if !Path::new(&backing).exists() {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// A mounted file system, unmounted on drop.
pub struct Mount {
    pub dir: TempDir,
}

impl Mount {
    pub fn tmpfs(size: u64) -> Mount {
        let size = format!("size={size}");
        Mount::new(&["-t", "tmpfs", "-o", &size, "tmpfs"])
    }

    pub fn ext4(device: &Path) -> Mount {
        let device = device.to_str().expect("UTF-8");
        run("mkfs.ext4", &["-q", device]);
        Mount::new(&[device])
    }

    fn new(what: &[&str]) -> Mount {
        let dir = TempDir::new_in(disk()).expect("a directory");
        let mut args = what.to_vec();
        args.push(dir.path().to_str().expect("UTF-8"));
        run("mount", &args);
        Mount { dir }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let umount = || Command::new("umount").arg(self.dir.path()).output();
        // Busy while a process that another test has just forked holds a copy of a descriptor.
        for _ in 0..1000 {
            if umount().is_ok_and(|out| out.status.success()) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// A buffer whose bytes depend on `seed` and on their place.
pub fn pattern(seed: u64, len: usize) -> Buf {
    let mut buf = Buf::zeroed(len);
    for (i, byte) in buf.iter_mut().enumerate() {
        *byte = (seed as usize * 131 + i * 7 + (i >> 8) * 13 + 1) as u8;
    }
    buf
}

pub fn seg(device_offset: u64, buf_offset: u32, len: u32) -> Seg {
    Seg {
        device_offset,
        buf_offset,
        len,
    }
}

pub fn op(kind: OpKind, buf: Buf, device_offset: u64) -> Op {
    let segs = Segs::One(seg(device_offset, 0, buf.len() as u32));
    Op { kind, buf, segs }
}

pub fn flush_op() -> Op {
    Op {
        kind: OpKind::Flush,
        buf: Buf::empty(),
        segs: Segs::Many(Box::new([])),
    }
}

pub fn push(queue: &mut dyn Queue, op: Op) -> SlotId {
    queue.push(op).expect("room in the queue")
}

/// Waits for everything in flight.
pub fn finish(queue: &mut dyn Queue) -> Vec<Completion> {
    let mut done = Vec::new();
    let begun = std::time::Instant::now();
    while queue.in_flight() > 0 {
        queue.wait(Some(PATIENCE)).expect("wait");
        queue.reap(&mut done);
        assert!(
            begun.elapsed() < PATIENCE,
            "stuck: {queue}",
            queue = queue.in_flight()
        );
    }
    done
}

/// Runs one operation.
pub fn run_one(queue: &mut dyn Queue, op: Op) -> Completion {
    let slot = push(queue, op);
    let mut done = finish(queue);
    let completion = done.pop().expect("a completion");
    assert!(done.is_empty());
    assert_eq!(completion.slot, slot);
    completion
}
