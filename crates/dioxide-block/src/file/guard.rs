//! Who else has an image, and keeping others out while it is ours.
//!
//! The kernel takes no lock on a file that backs a loop device, so those are found by comparing
//! device and inode numbers. Programs are kept out by an OFD lock over the part of the file that is the
//! device: it belongs to the open file description, so it holds between threads of one process too, and ends with the
//! last descriptor. A block device is claimed with `O_EXCL`, which a mounted, mapped or assembled
//! one refuses. What lies behind a loop device is locked as well, since somebody may have opened that itself.
//!
//! Not covered, because nothing can: somebody who attaches the image after we opened it, or mounts
//! it in a namespace that we do not see through a file we cannot see.
#![allow(unsafe_code)]

use super::probe::step;
use crate::{Error, Result};
use rustix::fs::{self, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::ioctl;
use std::borrow::Cow;
use std::ops::{Deref, Range};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// Says which part of the kernel uses an image file or block device: where it is mounted, which
/// loop device it is attached to, what holds it. `None` if nothing is found, or the path cannot be
/// looked at. Locks are not looked at: opening does that.
pub fn in_use_by(path: impl AsRef<Path>) -> Option<String> {
    used_by(&fs::stat(path.as_ref()).ok()?)
}

/// As [`in_use_by`]; or who has the file locked for writing, all of it or a part.
pub fn written_by(path: impl AsRef<Path>) -> Option<String> {
    let stat = fs::stat(path.as_ref()).ok()?;
    used_by(&stat).or_else(|| {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let fd = fs::open(path.as_ref(), flags, Mode::empty()).ok()?;
        let lock = lock_call(&fd, libc::F_OFD_GETLK, &WHOLE, libc::F_RDLCK).ok()?;
        let is_locked = i32::from(lock.l_type) != libc::F_UNLCK || is_held_by_qemu(&fd);
        let who = || lock_holder(&stat).unwrap_or_else(|| "another process".into());
        is_locked.then(|| format!("locked for writing by {}", who()))
    })
}

/// A file of the host whose name another one is to get. Until this is dropped nobody can open it by this
/// crate, so that nobody writes into what is about to have no name any more.
#[derive(Debug)]
pub struct Replacing {
    path: PathBuf,
    /// None if there is no regular file of that name.
    held: Option<Locked>,
}

impl Replacing {
    /// Locks the file that has the name. One that is not there, or is no regular file, is left alone.
    ///
    /// # Errors
    /// [`Error::Busy`] when it is mounted, attached to a loop device or locked; [`Error::Open`].
    pub fn begin(path: impl AsRef<Path>) -> Result<Replacing> {
        let path = path.as_ref();
        let held = match fs::lstat(path) {
            Ok(stat) if FileType::from_raw_mode(stat.st_mode).is_file() => Some(hold(path)?),
            Ok(_) | Err(Errno::NOENT) => None,
            Err(e) => return Err(step(path, "stat", e)),
        };
        Ok(Replacing {
            path: path.into(),
            held,
        })
    }

    /// The name.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Looks once more, right before the file is replaced: a loop device asks nobody's leave, and a file may
    /// have come.
    ///
    /// # Errors
    /// As [`Replacing::begin`].
    pub fn check(&mut self) -> Result<()> {
        match &self.held {
            Some(fd) => check_replaced(&self.path, fd),
            None => {
                *self = Replacing::begin(&self.path)?;
                Ok(())
            }
        }
    }
}

fn hold(path: &Path) -> Result<Locked> {
    let flags = OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let open = |access| fs::open(path, flags | access, Mode::empty());
    let is_denied = |errno| {
        matches!(
            errno,
            Errno::ACCESS | Errno::PERM | Errno::ROFS | Errno::TXTBSY
        )
    };
    let (fd, write) = match open(OFlags::RDWR) {
        // Who may replace it need not be allowed to write it. Writers are found all the same.
        Err(errno) if is_denied(errno) => match open(OFlags::RDONLY) {
            // Nor to read it: then there is nothing to lock.
            Err(errno) if is_denied(errno) => (open(OFlags::PATH), false),
            opened => (opened, false),
        },
        opened => (opened, true),
    };
    let fd = fd.map_err(|e| step(path, "open", e))?;
    check_replaced(path, &fd)?;
    let held = Locked::new(fd);
    match held.lock(&WHOLE, write) {
        Err(Errno::AGAIN | Errno::ACCESS) => {
            let stat = fs::fstat(&held).map_err(|e| step(path, "stat", e))?;
            let who = lock_holder(&stat).unwrap_or_else(|| "another process".into());
            Err(busy(path, format!("locked by {who}; end it first")))
        }
        // Some file systems have no locks.
        _ => Ok(held),
    }
}

fn check_replaced(path: &Path, fd: impl AsFd) -> Result<()> {
    let stat = fs::fstat(fd).map_err(|e| step(path, "stat", e))?;
    match used_by(&stat) {
        Some(by) => Err(busy(path, format!("{by}; unmount or detach it first"))),
        None => Ok(()),
    }
}

/// Refuses what is in use; locks the rest, and what lies behind it, which is to be held as long.
pub(super) fn check_and_lock(
    path: &Path,
    fd: OwnedFd,
    stat: &Stat,
    part: Range<u64>,
    write: bool,
) -> Result<(Locked, Vec<Locked>)> {
    if write && let Some(by) = used_by(stat) {
        return Err(busy(
            path,
            format!("{by}; unmount or detach it first, or open it read-only"),
        ));
    }
    let fd = Locked::new(fd);
    match fd.lock(&part, write) {
        Ok(()) => {}
        Err(Errno::AGAIN | Errno::ACCESS) => return Err(busy(path, fd.locked_by(&part, stat))),
        // Some file systems have no locks. A reader can do without.
        Err(_) if !write => {}
        Err(e) => return Err(step(path, "cannot lock it against other writers", e)),
    }
    let behind = lock_behind(path, &fd, stat, part, write)?;
    Ok((fd, behind))
}

/// Locks the file that is behind a loop device, and the one behind that if it is a loop device again. One that cannot be
/// opened, or has another name now, is passed over.
fn lock_behind(
    path: &Path,
    fd: &Locked,
    stat: &Stat,
    mut part: Range<u64>,
    write: bool,
) -> Result<Vec<Locked>> {
    let mut behind: Vec<Locked> = Vec::new();
    let mut stat = *stat;
    while let Some(number) = block_number(&stat)
        && let Some((next, next_part)) =
            open_behind(behind.last().unwrap_or(fd), number, part, write)
        && let Ok(next_stat) = fs::fstat(&next)
    {
        let next = Locked::new(next);
        if let Err(Errno::AGAIN | Errno::ACCESS) = next.lock(&next_part, write) {
            let by = next.locked_by(&next_part, &next_stat);
            return Err(busy(path, format!("its backing file is {by}")));
        }
        (part, stat) = (next_part, next_stat);
        behind.push(next);
    }
    Ok(behind)
}

/// The file behind a loop device, or behind a partition of one, and which part of it is `part` of the device.
fn open_behind(
    fd: &OwnedFd,
    number: u64,
    part: Range<u64>,
    write: bool,
) -> Option<(OwnedFd, Range<u64>)> {
    let dir = sysfs_dir(number);
    let read = |name: &str| std::fs::read_to_string(format!("{dir}/{name}")).ok();
    let path = read("loop/backing_file").or_else(|| read("../loop/backing_file"))?;
    let access = if write { OFlags::RDWR } else { OFlags::RDONLY };
    let flags = access | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let behind = fs::open(path.trim_end_matches('\n'), flags, Mode::empty()).ok()?;
    let stat = fs::fstat(&behind).ok()?;
    let info = loop_info(fd).filter(|info| info.is_of(&stat))?;
    // Where a partition begins, in sectors; a whole device has no such file.
    let first = read("start").and_then(|text| text.trim().parse::<u64>().ok());
    let base = first.unwrap_or(0).saturating_mul(512);
    let base = base.saturating_add(info.offset);
    let whole = |byte| base.saturating_add(byte);
    Some((behind, whole(part.start)..whole(part.end)))
}

/// The error for a block device that refused `O_EXCL`.
pub(super) fn busy_device(path: &Path) -> Error {
    let by = in_use_by(path)
        .unwrap_or_else(|| "another program or kernel driver has it exclusively".into());
    busy(
        path,
        format!("{by}; release it first, or open it read-only"),
    )
}

fn busy(path: &Path, by: String) -> Error {
    Error::Busy {
        path: path.into(),
        by,
    }
}

fn used_by(stat: &Stat) -> Option<String> {
    let mounts = Mounts::read();
    let loop_device = loop_on(&mounts, stat).map(|(name, number)| match mounts.of_device(number) {
        Some(at) => format!("attached to /dev/{name}, which is mounted on {at}"),
        None => format!("attached to /dev/{name}"),
    });
    let served = || Some(format!("mounted by FUSE on {}", mounts.fuse_of(stat)?));
    loop_device.or_else(served).or_else(|| {
        let number = block_number(stat)?;
        let mounted = mounts.of_device(number);
        let mounted = mounted.map(|at| format!("mounted on {at}"));
        mounted.or_else(|| Some(format!("held by {}", holder_of(number)?)))
    })
}

fn block_number(stat: &Stat) -> Option<u64> {
    (FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice).then_some(stat.st_rdev)
}

/// `8:1` of a device number.
fn major_minor(number: u64) -> String {
    format!("{}:{}", fs::major(number), fs::minor(number))
}

/// The directory in sysfs that describes a block device.
pub(super) fn sysfs_dir(number: u64) -> String {
    format!("/sys/dev/block/{}", major_minor(number))
}

/// What is mounted, in this mount namespace: `/proc/self/mountinfo`.
struct Mounts(String);

/// One of its lines.
struct MountLine<'a> {
    /// `8:1`.
    device: &'a str,
    at: &'a str,
    kind: &'a str,
    source: &'a str,
}

impl Mounts {
    fn read() -> Mounts {
        Mounts(std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default())
    }

    fn lines(&self) -> impl Iterator<Item = MountLine<'_>> {
        self.0.lines().filter_map(|line| {
            let (front, back) = line.split_once(" - ")?;
            let (mut front, mut back) = (front.split(' ').skip(2), back.split(' '));
            Some(MountLine {
                device: front.next()?,
                at: front.nth(1)?,
                kind: back.next()?,
                source: back.next()?,
            })
        })
    }

    /// Where a block device is mounted.
    fn of_device(&self, number: u64) -> Option<String> {
        let wanted = major_minor(number);
        let mut lines = self.lines();
        let line = lines.find(|line| line.device == wanted)?;
        Some(line.at.to_owned())
    }

    /// Where another FUSE server has mounted this file, if the mount says what it serves. Ours locks it: a mount whose server has died
    /// is in nobody's way.
    fn fuse_of(&self, stat: &Stat) -> Option<String> {
        let mut lines = self.lines();
        let line = lines.find(|line| {
            let is_fuse = line.kind == "fuse" || line.kind.starts_with("fuse.");
            let source = unescaped(line.source);
            is_fuse
                && line.kind != "fuse.dioxide"
                && source.starts_with('/')
                && self.can_be(&source, stat)
                && same_by_path(&source, stat)
        })?;
        Some(line.at.to_owned())
    }

    /// Whether a path can be that of the file. Where it lies on another file system, whose server may not answer, it is not looked
    /// at.
    fn can_be(&self, path: &str, stat: &Stat) -> bool {
        const SERVED: [&str; 7] = ["fuse", "nfs", "cifs", "smb", "9p", "ceph", "afs"];
        let is_below = |line: &MountLine<'_>| Path::new(path).starts_with(&*unescaped(line.at));
        // Of those with one place, the last hides the others.
        let below = self.lines().filter(is_below);
        let Some(line) = below.max_by_key(|line| line.at.len()) else {
            return true;
        };
        let is_served = SERVED.iter().any(|kind| line.kind.starts_with(kind));
        !is_served || line.device == major_minor(stat.st_dev)
    }
}

/// A path as mountinfo has it, whose spaces and the like are numbers.
fn unescaped(path: &str) -> Cow<'_, str> {
    const ESCAPES: [(&str, &str); 4] = [
        ("\\040", " "),
        ("\\011", "\t"),
        ("\\012", "\n"),
        ("\\134", "\\"),
    ];
    match path.contains('\\') {
        false => path.into(),
        true => {
            let all = ESCAPES.iter();
            let path = all.fold(path.to_owned(), |path, (from, to)| path.replace(from, to));
            path.into()
        }
    }
}

/// Device mapper, MD and the like.
fn holder_of(number: u64) -> Option<String> {
    let mut holders = std::fs::read_dir(format!("{}/holders", sysfs_dir(number))).ok()?;
    let holder = holders.next()?.ok()?;
    Some(holder.file_name().to_string_lossy().into_owned())
}

/// The loop device, if any, whose backing file is the one of `stat`: name and device number.
fn loop_on(mounts: &Mounts, stat: &Stat) -> Option<(String, u64)> {
    let devices = std::fs::read_dir("/sys/block").ok()?;
    devices.flatten().find_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let backing = name
            .starts_with("loop")
            .then(|| std::fs::read_to_string(entry.path().join("loop/backing_file")).ok())??;
        let backing = backing.trim_end_matches('\n');
        // The file may have another name by now, and its name be another file's.
        let same = mounts.can_be(backing, stat)
            && same_by_status(&format!("/dev/{name}"), stat)
                .unwrap_or_else(|| same_by_path(backing, stat));
        let number = std::fs::read_to_string(entry.path().join("dev")).ok()?;
        same.then(|| Some((name, parse_number(number.trim())?)))?
    })
}

fn parse_number(text: &str) -> Option<u64> {
    let (major, minor) = text.split_once(':')?;
    Some(fs::makedev(major.parse().ok()?, minor.parse().ok()?))
}

/// For those who may not open the loop device.
fn same_by_path(backing: &str, stat: &Stat) -> bool {
    fs::stat(backing).is_ok_and(|other| {
        (other.st_dev, other.st_ino) == (stat.st_dev, stat.st_ino)
            || block_number(stat).is_some_and(|n| block_number(&other) == Some(n))
    })
}

/// The kernel's `struct loop_info64`, of which only the first four fields matter.
#[repr(C)]
struct LoopInfo64 {
    device: u64,
    inode: u64,
    rdevice: u64,
    /// Byte of the file where the device begins.
    offset: u64,
    rest: [u8; 200],
}

impl LoopInfo64 {
    /// Whether the device is this file's.
    fn is_of(&self, stat: &Stat) -> bool {
        (self.device, self.inode) == (stat.st_dev, stat.st_ino)
            || block_number(stat).is_some_and(|number| self.rdevice == number)
    }
}

const LOOP_GET_STATUS64: ioctl::Opcode = 0x4c05;
const _: () = assert!(size_of::<LoopInfo64>() == 232);

/// True too when the backing file was renamed, deleted, or lies where this process cannot look. None if the device does not tell.
fn same_by_status(device: &str, stat: &Stat) -> Option<bool> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let fd = fs::open(device, flags, Mode::empty()).ok()?;
    Some(loop_info(&fd)?.is_of(stat))
}

/// None if it is no loop device.
fn loop_info(fd: impl AsFd) -> Option<LoopInfo64> {
    // SAFETY: LOOP_GET_STATUS64 fills one `struct loop_info64`, whose size is asserted above and
    // which is valid for any bytes.
    unsafe { ioctl::ioctl(fd, ioctl::Getter::<LOOP_GET_STATUS64, LoopInfo64>::new()) }.ok()
}

/// The bytes that QEMU has locked for reading while it may write the image, and while nobody else may; and the first of
/// those that it locks.
const BY_QEMU: [u64; 2] = [101, 201];
const FIRST_BY_QEMU: libc::off_t = 100;

/// All of a file.
const WHOLE: Range<u64> = 0..u64::MAX;

/// A descriptor whose lock, if it has one, ends when this is dropped. Closing would do, but not while a process that
/// another thread has just forked still holds a copy of it.
#[derive(Debug)]
pub(super) struct Locked {
    fd: OwnedFd,
    /// The lock is to last as long as the open file.
    stays: AtomicBool,
}

impl Locked {
    pub(super) fn new(fd: OwnedFd) -> Locked {
        Locked {
            fd,
            stays: AtomicBool::new(false),
        }
    }

    /// Leaves the lock to who else has the open file: a ring in which it is registered, say. It ends with the last of them.
    pub(super) fn stay_locked(&self) {
        self.stays.store(true, Ordering::Relaxed);
    }

    fn lock(&self, part: &Range<u64>, write: bool) -> Result<(), Errno> {
        let kind = if write { libc::F_WRLCK } else { libc::F_RDLCK };
        set_lock(&self.fd, part, kind)?;
        // A virtual machine has the whole image, of which this may be a part behind what it locks.
        match write && part.start > BY_QEMU[0] && is_held_by_qemu(&self.fd) {
            true => Err(Errno::AGAIN),
            false => Ok(()),
        }
    }

    /// Who has the lock that could not be had, and the way out.
    fn locked_by(&self, part: &Range<u64>, stat: &Stat) -> String {
        let who = lock_holder(stat).unwrap_or_else(|| "another process".into());
        let against_readers = lock_call(&self.fd, libc::F_OFD_GETLK, part, libc::F_RDLCK);
        match against_readers.is_ok_and(|lock| i32::from(lock.l_type) == libc::F_UNLCK) {
            true => format!("locked by {who}; end it first, or open the image read-only"),
            false => format!("locked for writing by {who}; end it first"),
        }
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        if !*self.stays.get_mut() {
            // A file system without locks, say: then there is none.
            let _ = set_lock(&self.fd, &WHOLE, libc::F_UNLCK);
        }
    }
}

impl AsFd for Locked {
    #[inline]
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Deref for Locked {
    type Target = OwnedFd;

    #[inline]
    fn deref(&self) -> &OwnedFd {
        &self.fd
    }
}

fn set_lock(fd: &OwnedFd, part: &Range<u64>, kind: libc::c_int) -> Result<(), Errno> {
    lock_call(fd, libc::F_OFD_SETLK, part, kind).map(drop)
}

/// Whether QEMU has the image. Our own locks on its beginning are longer.
fn is_held_by_qemu(fd: &OwnedFd) -> bool {
    BY_QEMU.into_iter().any(|byte| {
        let found = lock_call(fd, libc::F_OFD_GETLK, &(byte..byte + 1), libc::F_WRLCK);
        found.is_ok_and(|lock| {
            i32::from(lock.l_type) == libc::F_RDLCK && lock.l_start >= FIRST_BY_QEMU
        })
    })
}

/// Asks for a lock, or about one; the answer.
fn lock_call(
    fd: &OwnedFd,
    command: libc::c_int,
    part: &Range<u64>,
    kind: libc::c_int,
) -> Result<libc::flock, Errno> {
    // SAFETY: all zeros is a valid `struct flock`: the whole file, no process.
    let mut request: libc::flock = unsafe { std::mem::zeroed() };
    request.l_type = kind as libc::c_short;
    request.l_whence = libc::SEEK_SET as libc::c_short;
    // No length: up to the end, wherever that comes to be. So with what does not fit.
    request.l_start = part.start.try_into().unwrap_or(0);
    request.l_len = match libc::off_t::try_from(part.end) {
        Ok(end) => end - request.l_start,
        Err(_) => 0,
    };
    // SAFETY: the descriptor is open, and the two commands use the struct during the call only.
    match unsafe { libc::fcntl(fd.as_raw_fd(), command, &mut request) } {
        0 => Ok(request),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

/// The process that holds a lock on the file, from the lock lines of every `/proc/PID/fdinfo/FD`
/// that we may read.
fn lock_holder(stat: &Stat) -> Option<String> {
    let (major, minor) = (fs::major(stat.st_dev), fs::minor(stat.st_dev));
    let wanted = format!(" {major:02x}:{minor:02x}:{} ", stat.st_ino);
    let processes = std::fs::read_dir("/proc").ok()?;
    processes.flatten().find_map(|process| {
        let pid: u32 = process.file_name().to_str()?.parse().ok()?;
        let mut files = std::fs::read_dir(process.path().join("fdinfo"))
            .ok()?
            .flatten();
        files
            .any(|file| {
                let info = std::fs::read_to_string(file.path()).unwrap_or_default();
                info.lines()
                    .any(|line| line.starts_with("lock:") && line.contains(&wanted))
            })
            .then(|| name_process(pid))
    })
}

fn name_process(pid: u32) -> String {
    if pid == std::process::id() {
        return "this process itself".into();
    }
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    format!("process {pid} ({})", name.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mounts(kind: &str, source: &str) -> Mounts {
        Mounts(format!(
            "21 1 0:20 / / rw - ext4 /dev/sda rw\n\
             36 21 0:50 / /mnt\\040a rw shared:1 - {kind} {source} rw\n"
        ))
    }

    #[test]
    fn mount_of_another_fuse_server_is_known_by_its_source() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("an image");
        std::fs::write(&path, "").expect("room");
        let stat = fs::stat(&path).expect("it is there");
        let source = path.to_str().expect("UTF-8").replace(' ', "\\040");
        for kind in ["fuse", "fuse.fuse2fs"] {
            let found = mounts(kind, &source).fuse_of(&stat);
            assert_eq!(found.as_deref(), Some("/mnt\\040a"), "{kind}");
        }
        for (kind, source) in [
            ("fuse.dioxide", &*source),
            ("ext4", &*source),
            ("fuse.fuse2fs", "/nowhere"),
            ("fuse.sshfs", "host:/dir"),
        ] {
            assert_eq!(mounts(kind, source).fuse_of(&stat), None, "{kind}");
        }
    }

    #[test]
    fn file_that_a_server_has_is_not_looked_at_unless_ours_lies_there_too() {
        let stat = fs::stat("/proc/self/stat").expect("it is there");
        let mut there = stat;
        there.st_dev = fs::makedev(0, 50);
        let served = mounts("nfs4", "host:/dir");
        for (path, can_be) in [("/mnt a/f", false), ("/mnt/f", true), ("/mnt ab/f", true)] {
            assert_eq!(served.can_be(path, &stat), can_be, "{path}");
            assert!(served.can_be(path, &there), "{path}");
        }
        assert!(mounts("ext4", "/dev/sdb").can_be("/mnt a/f", &stat));
    }
}
