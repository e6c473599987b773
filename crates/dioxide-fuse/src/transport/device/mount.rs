//! Mounting: by `mount(2)` if that is allowed, else by `fusermount3`, which hands over the descriptor.
//!
//! Rejected: `auto_unmount` of `fusermount3`. It looks whether the mount is dead as root, who may not look into what others mount for
//! themselves, and leaves it (3.14).

use super::ConnectOptions;
use rustix::fs::{Mode, OFlags};
use rustix::io::FdFlags;
use rustix::mount::MountFlags;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use std::ffi::CString;
use std::fs::File;
use std::io::{self, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// `MS_NOSYMFOLLOW`, which rustix does not have.
const NOSYMFOLLOW: MountFlags = MountFlags::from_bits_retain(256);

/// The connection.
pub(super) fn mount(dir: &Path, options: &ConnectOptions) -> io::Result<File> {
    match by_ourselves(dir, options) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            by_fusermount(dir, options)
        }
        mounted => mounted,
    }
}

fn by_ourselves(dir: &Path, options: &ConnectOptions) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let device = rustix::fs::open("/dev/fuse", flags, Mode::empty());
    let device: File = device.map_err(|error| about("/dev/fuse", error))?.into();
    let (mut source, mut kind) = ("dioxide", String::from("fuse"));
    let mut flags = MountFlags::NODEV | MountFlags::NOSUID;
    flags.set(MountFlags::RDONLY, options.read_only);
    let mut data = format!(
        "fd={},rootmode={:o},user_id={},group_id={}",
        device.as_raw_fd(),
        dir.metadata()?.mode(),
        rustix::process::getuid(),
        rustix::process::getgid()
    );
    for word in &options.mount_options {
        if let Some((flag, set)) = flag(word) {
            flags.set(flag, set);
        } else if let Some(name) = word.strip_prefix("fsname=") {
            source = name;
        } else if let Some(subtype) = word.strip_prefix("subtype=") {
            kind = format!("fuse.{subtype}");
        } else {
            data = format!("{data},{word}");
        }
    }
    for word in ours(options) {
        data = format!("{data},{word}");
    }
    rustix::mount::mount(source, dir, kind, flags, &*CString::new(data)?)?;
    Ok(device)
}

/// What FUSE has an option for.
fn ours(options: &ConnectOptions) -> impl Iterator<Item = &'static str> {
    let words = [
        (options.allow_other, "allow_other"),
        (options.permissions, "default_permissions"),
    ];
    words
        .into_iter()
        .filter(|(is, _)| *is)
        .map(|(_, word)| word)
}

/// What is a flag of `mount(2)`.
fn flag(word: &str) -> Option<(MountFlags, bool)> {
    Some(match word {
        "dev" => (MountFlags::NODEV, false),
        "nodev" => (MountFlags::NODEV, true),
        "suid" => (MountFlags::NOSUID, false),
        "nosuid" => (MountFlags::NOSUID, true),
        "exec" => (MountFlags::NOEXEC, false),
        "noexec" => (MountFlags::NOEXEC, true),
        "sync" => (MountFlags::SYNCHRONOUS, true),
        "dirsync" => (MountFlags::DIRSYNC, true),
        "noatime" => (MountFlags::NOATIME, true),
        "nosymfollow" => (NOSYMFOLLOW, true),
        _ => return None,
    })
}

fn about(what: &str, error: impl Into<io::Error>) -> io::Error {
    let error = error.into();
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

fn by_fusermount(dir: &Path, options: &ConnectOptions) -> io::Result<File> {
    let (socket, theirs) = UnixStream::pair()?;
    // It takes none of the first three descriptors. What else this process starts meanwhile may have theirs too, and
    // keeps nothing alive by it.
    rustix::io::fcntl_setfd(&theirs, FdFlags::empty())?;
    let mut child = Command::new("fusermount3")
        .arg("-o")
        .arg(words(options))
        .arg("--")
        .arg(dir)
        .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| about("fusermount3", error))?;
    drop(theirs);
    let Some(device) = receive(&socket)? else {
        return Err(refused(child));
    };
    child.wait()?;
    Ok(device.into())
}

/// Options, with commas between them.
fn words(options: &ConnectOptions) -> String {
    let mut words = vec![if options.read_only { "ro" } else { "rw" }.to_owned()];
    words.extend(ours(options).map(str::to_owned));
    for word in &options.mount_options {
        // Those of names that have commas are not options.
        words.push(word.replace('\\', "\\\\").replace(',', "\\,"));
    }
    words.join(",")
}

/// The descriptor that comes through the socket; none if that ends.
fn receive(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let parts = &mut [IoSliceMut::new(&mut byte)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    rustix::io::retry_on_intr(|| recvmsg(socket, parts, &mut ancillary, flags))?;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(mut descriptors) = message {
            return Ok(descriptors.next());
        }
    }
    Ok(None)
}

fn refused(mut child: Child) -> io::Error {
    let mut said = String::new();
    let stderr = child.stderr.take();
    let read = stderr.map(|mut stderr| stderr.read_to_string(&mut said));
    let _ = (read, child.wait());
    match said.trim() {
        "" => io::Error::other("fusermount3 has handed over nothing"),
        said => io::Error::other(said.to_owned()),
    }
}
