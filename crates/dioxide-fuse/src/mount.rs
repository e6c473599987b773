//! From an image to a mount that serves, and back to an image that is closed.
//!
//! Invariant: the image is closed after the kernel has ended the connection, or, when files stay open on a mount
//! that is to end, after the kernel was made to write its pages; from then on nobody gets anything of it.

pub(crate) mod process;
mod report;
mod table;

use crate::patience::{WRITING_PATIENCE, within};
use crate::server::{Server, ServerOptions};
use crate::stats::{IMAGE_XATTR, OFFSET_XATTR, PROCESS_XATTR, STATE_XATTR};
use crate::transport::{self, ConnectOptions, Pages, Transport};
use crate::{Error, Options, sandbox};
use dioxide::block::{self, file::FileOptions};
use dioxide::format::features::Incompat;
use dioxide::format::superblock::{SUPERBLOCK_OFFSET, SuperBlock};
use dioxide::{Buf, Fs, MountOptions};
use process::Process;
use report::Reporter;
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};
use table::{Mounted, mounted};

/// How long a mount that is to end waits for files that others have open, and who waits for a server's end.
const PATIENCE: Duration = Duration::from_secs(3);

/// How long who waits for a server's end does so where nothing tells whether others have its file system mounted, or its image open.
const UNTOLD_PATIENCE: Duration = Duration::from_secs(10);

/// How often whoever waits for an image to be closed looks.
const PAUSE: Duration = Duration::from_millis(10);

/// A file system that is mounted. Requests wait until [`MountPoint::serve`]; dropped before, it is unmounted, and the image is
/// as after a crash.
pub struct MountPoint {
    server: Arc<Server>,
    transport: Box<dyn Transport>,
    dir: PathBuf,
    warnings: Vec<String>,
    stats: Option<PathBuf>,
    ends: (Sender<End>, Receiver<End>),
}

/// Why a mount ends.
enum End {
    /// The connection has ended.
    Connection(io::Result<()>),
    /// Somebody has asked for it.
    Asked,
}

impl MountPoint {
    /// Opens an image, replaying its journal, and mounts it on a directory. Returns when the kernel knows that it is served. What cannot be
    /// written is mounted read-only, and a warning says so. What a server of ours that died left on the directory is detached. An
    /// image that is in use is waited for, up to three seconds: a server whose mount is gone may still be closing it. Blocks.
    ///
    /// # Errors
    /// Those of [`Fs::open`]: who else has the image, too; [`Error::Kernel`].
    pub fn mount(image: &Path, dir: &Path, options: &Options) -> Result<MountPoint, Error> {
        let kernel = |what, path: &Path| {
            let path = path.to_owned();
            move |source| Error::Kernel { what, path, source }
        };
        let dir = place(dir).map_err(kernel("cannot use", dir))?;
        let cleared =
            clear_dead(&dir).map_err(kernel("cannot detach what was mounted on", &dir))?;
        // The kernel would mount what is no directory, and find out later.
        check_directory(&dir).map_err(kernel("cannot mount on", &dir))?;
        let stats = stats_file(options)?;
        let (fs, mut warnings) = open_alone(image, options)?;
        if cleared {
            let dir = dir.display();
            warnings.push(format!(
                "a server that died had left its mount on {dir}; that is detached"
            ));
        }
        let found = image.canonicalize().unwrap_or(image.to_owned());
        let answers = ServerOptions {
            image: Some(found.clone()),
            ..options.server.clone()
        };
        let server = Arc::new(Server::new(fs, answers)?);
        if let Some(stats) = &stats
            && let Err(source) = report::write(&server, stats)
        {
            server.close()?;
            return Err(kernel("cannot write", stats)(source));
        }
        let connect = connect_options(&found, options, server.is_read_only());
        let connected = transport::connect(server.clone(), &dir, &connect);
        let transport = match connected {
            Ok(transport) => transport,
            Err(source) => {
                // It was opened, and so marked as in use.
                server.close()?;
                return Err(kernel("cannot mount on", &dir)(source));
            }
        };
        Ok(MountPoint {
            server,
            transport,
            dir,
            warnings,
            stats,
            ends: channel(),
        })
    }

    /// What the user should know, a line each.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Where it is mounted.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Enters the [`sandbox`]: call it from the only thread that there is, after everything else that needs more, and have
    /// somebody outside who ends the mount ([`Connection::unmount_by_force`]).
    ///
    /// # Errors
    /// As [`sandbox::enter`]. The connection has ended then, and the image is closed; where the process can do nothing of the kind
    /// any more, somebody outside unmounts ([`Connection::detach`]).
    pub fn confine(self) -> Result<MountPoint, Error> {
        match sandbox::enter() {
            Ok(()) => Ok(self),
            Err(error) => {
                drop(self.transport);
                self.server.close()?;
                Err(error)
            }
        }
    }

    /// Ends the mount from another thread.
    pub fn unmounter(&self) -> Unmounter {
        Unmounter {
            connection: Connection::of(&self.dir),
            ends: self.ends.0.clone(),
        }
    }

    /// Answers requests until the file system is unmounted, and closes the image. Blocks.
    ///
    /// # Errors
    /// [`Error::Connection`]; those of [`Fs::close`].
    pub fn serve(self) -> Result<(), Error> {
        self.start()?.wait()
    }

    /// Begins to answer requests. Returns once it has the threads for that; files are not opened.
    ///
    /// # Errors
    /// [`Error::Connection`]; it is unmounted then, and the image closed.
    pub fn start(self) -> Result<Serving, Error> {
        let (ends, ended) = self.ends;
        let started = self.transport.start().and_then(|connection| {
            let pages = connection.pages();
            std::thread::Builder::new()
                .name("fuse".into())
                .spawn(move || ends.send(End::Connection(connection.wait())))?;
            Ok(pages)
        });
        let pages = match started {
            Ok(pages) => pages,
            Err(error) => {
                self.server.close()?;
                return Err(Error::Connection(error));
            }
        };
        let keep = |path: &PathBuf| report::keep(&self.server, path.clone());
        Ok(Serving {
            reporter: self.stats.as_ref().map(keep),
            server: self.server,
            stats: self.stats,
            pages,
            ended,
        })
    }
}

/// A file system that is mounted, and whose requests are answered. Dropped, it is so until the process ends.
pub struct Serving {
    server: Arc<Server>,
    stats: Option<PathBuf>,
    reporter: Option<io::Result<Reporter>>,
    pages: Pages,
    ended: Receiver<End>,
}

impl Serving {
    /// Returns when the file system was unmounted and the image is closed. Blocks.
    ///
    /// # Errors
    /// As [`MountPoint::serve`].
    pub fn wait(self) -> Result<(), Error> {
        let (server, pages) = (self.server.clone(), self.pages);
        let connection = wait_for_end(&self.ended, || write_open_files(server, pages));
        let reported = self.reporter.map_or(Ok(()), |reporter| reporter?.end());
        self.server.close()?;
        connection.map_err(Error::Connection)?;
        match (self.stats, reported) {
            (Some(path), Err(source)) => Err(Error::Kernel {
                what: "cannot write",
                path,
                source,
            }),
            _ => Ok(()),
        }
    }
}

/// Returns when the connection has ended, or somebody asked for it and files are still open some time after what was written to them
/// is here.
fn wait_for_end(ended: &Receiver<End>, write: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    let end = ended.recv().expect("the connection's end is told");
    if let End::Connection(end) = end {
        return end;
    }
    let written = write();
    let until = Instant::now() + PATIENCE;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        match ended.recv_timeout(left) {
            Ok(End::Connection(end)) => return end.and(written),
            Ok(End::Asked) => {}
            Err(_) => return written,
        }
    }
}

/// Has the kernel hand over what it has of files that are open, which it has queued at most when `syncfs` returns. What cannot be
/// written of them nobody else is told; of a file that is closed, who closed it was.
fn write_open_files(server: Arc<Server>, pages: Pages) -> io::Result<()> {
    let asked = server.clone();
    let write = move || {
        let files = asked.written().unwrap_or_default();
        pages.write(&files);
        files.is_empty()
    };
    let written = within(WRITING_PATIENCE, write).and_then(|none| match none {
        true => Ok(()),
        false => Ok(server.tell_lost()?),
    });
    written.map_err(|error| {
        let what = "it had not written all that it has of open files";
        io::Error::new(error.kind(), format!("{what}: {error}"))
    })
}

/// Ends a mount that this process serves.
#[derive(Clone, Debug)]
pub struct Unmounter {
    connection: Option<Connection>,
    ends: Sender<End>,
}

impl Unmounter {
    /// Makes the kernel write what it holds, and unmounts; files that are open lose their file system
    /// a few seconds after that. Call it from a thread that does not serve.
    pub fn unmount(&self) {
        self.connection
            .iter()
            .for_each(Connection::unmount_by_force);
        self.unmounted();
    }

    /// Somebody else has called [`Connection::unmount_by_force`].
    pub fn unmounted(&self) {
        // Nobody listens to the end of what has ended.
        let _ = self.ends.send(End::Asked);
    }
}

/// The kernel's connection to the server of a file system of ours.
#[derive(Clone, Debug)]
pub struct Connection {
    number: String,
    dir: PathBuf,
}

impl Connection {
    /// That of what is mounted on a directory, as the kernel has its path. Asks no server.
    pub fn of(dir: &Path) -> Option<Connection> {
        mounted(dir).map(|Mounted { connection, .. }| Connection {
            number: connection,
            dir: dir.to_owned(),
        })
    }

    /// Ends it, for a server that was killed and does not end because it waits for an answer of its own. Whoever else waits for
    /// one gets an error. What is mounted stays, unless only its unmounting ends the connection.
    pub fn end(&self) {
        let abort = format!("/sys/fs/fuse/connections/{}/abort", self.number);
        if std::fs::write(abort, "1").is_err() && self.is_mounted() {
            let _ = rustix::mount::unmount(&self.dir, rustix::mount::UnmountFlags::FORCE);
        }
    }

    /// Whether it is what is mounted where it was.
    fn is_mounted(&self) -> bool {
        Connection::of(&self.dir).is_some_and(|now| now.number == self.number)
    }

    /// Makes the kernel write what it holds, and unmounts, though files are open. What of that fails is traced. Blocks for some
    /// seconds at most, if the file system writes.
    pub fn unmount_by_force(&self) {
        self.write_back();
        if self.is_mounted() && detach(&self.dir, false).is_err() {
            let _ = detach(&self.dir, true);
        }
    }

    /// Unmounts, though files are open, and asks no server: there may be none that answers.
    pub fn detach(&self) {
        if self.is_mounted() {
            let _ = detach(&self.dir, true);
        }
    }

    fn write_back(&self) {
        let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
        let opened = rustix::fs::open(&self.dir, flags, rustix::fs::Mode::empty());
        let opened = opened.ok().filter(|root| self.has(root));
        let done = match opened {
            Some(root) => rustix::fs::syncfs(&root).map_err(io::Error::from),
            // It was detached or moved, or has another above it: no path leads to it.
            None => write_back_everything(),
        };
        if let Err(error) = done {
            tracing::error!(%error, "the kernel could not write all that it held");
        }
    }

    fn has(&self, root: &OwnedFd) -> bool {
        let minor = |stat: rustix::fs::Stat| rustix::fs::minor(stat.st_dev).to_string();
        rustix::fs::fstat(root).is_ok_and(|stat| minor(stat) == self.number)
    }
}

/// Of all file systems. That of a stranger may hang.
fn write_back_everything() -> io::Result<()> {
    within(PATIENCE, rustix::fs::sync)
}

/// Unmounts a file system of ours whose server has ended without that; a few seconds are for its end. What is served, by whomever,
/// stays. Blocks.
pub fn unmount_dead(dir: &Path) {
    if is_dead_at(dir) {
        let _ = detach(dir, true);
    }
}

/// Whether a file system of ours is mounted there, and nobody serves it any more. Waits some seconds for an end that is under way.
pub fn is_dead(dir: &Path) -> bool {
    place(dir).is_ok_and(|dir| is_dead_at(&dir))
}

/// The same for a path as the kernel has it.
fn is_dead_at(dir: &Path) -> bool {
    let until = Instant::now() + PATIENCE;
    while mounted(dir).is_some() && Instant::now() < until {
        // Unlike attributes, this is always asked of the server.
        match rustix::fs::statfs(dir) {
            Err(rustix::io::Errno::NOTCONN) => return true,
            // The end of a connection takes a moment, and has several errors.
            Err(_) => std::thread::sleep(PAUSE),
            // By the server, or by the kernel to who may not use the mount.
            Ok(_) => return false,
        }
    }
    false
}

/// Detaches what servers of ours that died have left on a directory; false if there was nothing.
fn clear_dead(dir: &Path) -> io::Result<bool> {
    let mut found = false;
    while is_dead_at(dir) {
        detach(dir, true)?;
        found = true;
    }
    Ok(found)
}

/// Whether something can be mounted there.
fn check_directory(dir: &Path) -> io::Result<()> {
    let error = match dir.metadata() {
        Ok(found) if found.is_dir() => return Ok(()),
        Ok(_) => return Err(io::Error::from_raw_os_error(libc::ENOTDIR)),
        Err(error) => error,
    };
    Err(match error.raw_os_error() {
        Some(libc::ENOTCONN) => io::Error::other(
            "the FUSE server of what is mounted there has died; unmount that first (umount, or fusermount3 -u)",
        ),
        Some(libc::EACCES) if mounted(dir).is_some() => io::Error::other(
            "another user has mounted an image there; unmount that first (dioxide umount)",
        ),
        _ => error,
    })
}

/// Every file system has these at its beginning.
const LEAST_BYTES: u64 = 4096;

/// How a file system was found when it was unmounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmounted {
    /// Served; its image is closed now.
    Closed,
    /// Its server had died: the image is as after a crash.
    Dead,
    /// Mounted elsewhere too, and served on.
    Elsewhere,
    /// Its server has ended, and could not close the image: it is as after a crash.
    Unclean,
    /// Nothing tells whether its server has closed the image.
    InUse,
}

/// Unmounts a file system of ours, which another process serves, and returns when its image is closed, unless it is mounted
/// elsewhere too, be it in another namespace. One whose server has died is taken away from its directory though files are open.
///
/// # Errors
/// [`Error::NotMounted`]; [`Error::Kernel`] with `EBUSY` while files are open.
pub fn unmount(dir: &Path) -> Result<Unmounted, Error> {
    let kernel = |source| Error::Kernel {
        what: "cannot unmount",
        path: dir.to_owned(),
        source,
    };
    let absolute = place(dir).map_err(kernel)?;
    let Some(Mounted {
        source,
        writable,
        connection,
    }) = mounted(&absolute)
    else {
        return Err(Error::NotMounted(dir.to_owned()));
    };
    let dead = is_dead_at(&absolute);
    let asked = |name| (!dead).then(|| told(&absolute, name)).flatten();
    let image = asked(IMAGE_XATTR).map_or(source, PathBuf::from);
    let img_offset = asked(OFFSET_XATTR).and_then(|told| told.to_str()?.parse().ok());
    let state = asked(STATE_XATTR).and_then(|told| told.to_str()?.parse().ok());
    let begin = FileOptions {
        img_offset: img_offset.unwrap_or(0),
        size_bytes: img_offset.map(|_| LEAST_BYTES),
        write: !writable,
        ..FileOptions::default()
    };
    let process = asked(PROCESS_XATTR).and_then(|told| Process::of(told.to_str()?));
    let device = Device::of(&connection);
    // What a server writes to is locked. If this is not, the image has another name by now.
    let is_image = !writable || is_locked(&image, &begin);
    detach(&absolute, dead).map_err(kernel)?;
    if dead {
        return Ok(Unmounted::Dead);
    }
    if table::is_mounted(&connection) {
        return Ok(Unmounted::Elsewhere);
    }
    let began = Instant::now();
    let is_told = is_image && device.is_some();
    // Others may have opened it by now.
    let has_ended = || process.as_ref().is_some_and(Process::has_ended);
    let is_open = || match is_image {
        true => is_locked(&image, &begin),
        false => process.is_some(),
    };
    while !has_ended() && is_open() {
        let waited = began.elapsed();
        let is_late = waited >= PATIENCE;
        match &device {
            Some(device) if is_late && device.is_there() => return Ok(Unmounted::Elsewhere),
            // A reader keeps writers out until it ends, but so do other readers, which nobody waits for.
            _ if is_late && !writable => break,
            _ if waited >= UNTOLD_PATIENCE && !is_told => return Ok(Unmounted::InUse),
            _ => std::thread::sleep(PAUSE),
        }
    }
    let left = block::file::open(&image, &begin).ok();
    let state = state.or(writable.then_some(0));
    let is_closed = |device| is_closed(device, state?);
    let is_closed = left.as_deref().and_then(is_closed);
    Ok(match (is_image, &process, is_closed) {
        (true, _, Some(false)) => Unmounted::Unclean,
        (false, None, Some(false)) => Unmounted::Dead,
        (false, None, _) => Unmounted::InUse,
        _ => Unmounted::Closed,
    })
}

/// Whether the superblock says that whoever had the file system has closed it: its state has these bits again. None if that cannot
/// be told.
fn is_closed(device: &dyn block::Device, state: u16) -> Option<bool> {
    let mut begin = Buf::zeroed(LEAST_BYTES as usize);
    device.read_at(0, &mut begin).ok()?;
    let sb = SuperBlock::parse(&begin[SUPERBLOCK_OFFSET as usize..]).ok()?;
    let is_closed = || !sb.needs_recovery() && sb.state() & state == state;
    sb.has_magic().then(is_closed)
}

/// The kernel's device for the pages of a file system that FUSE mounts. It ends with the last mount, those of other namespaces
/// included. The list of connections would tell the same, but that is a file system of its own, which need not be mounted.
struct Device {
    dir: PathBuf,
    /// Another file system may get the number.
    ino: u64,
}

impl Device {
    /// None without sysfs.
    fn of(connection: &str) -> Option<Device> {
        let dir = Path::new("/sys/class/bdi").join(format!("0:{connection}"));
        let ino = dir.metadata().ok()?.ino();
        Some(Device { dir, ino })
    }

    fn is_there(&self) -> bool {
        let now = self.dir.metadata();
        now.is_ok_and(|now| now.ino() == self.ino)
    }
}

/// What the server says of itself. The kernel's list shows another source, if that was asked for.
fn told(dir: &Path, attribute: &str) -> Option<OsString> {
    let mut value = vec![0; libc::PATH_MAX as usize];
    let len = rustix::fs::getxattr(dir, attribute, value.as_mut_slice()).ok()?;
    value.truncate(len);
    Some(OsString::from_vec(value))
}

/// Takes a file system of ours, which another process serves, away from its directory; that process goes on until the files are
/// closed that are open. Does not wait for that. Whether it goes on: files are open, or it is mounted elsewhere too. False where
/// sysfs does not tell.
///
/// # Errors
/// [`Error::NotMounted`]; [`Error::Kernel`].
pub fn unmount_lazily(dir: &Path) -> Result<bool, Error> {
    let kernel = |source| Error::Kernel {
        what: "cannot unmount",
        path: dir.to_owned(),
        source,
    };
    let absolute = place(dir).map_err(kernel)?;
    let Some(Mounted { connection, .. }) = mounted(&absolute) else {
        return Err(Error::NotMounted(dir.to_owned()));
    };
    let served = (!is_dead_at(&absolute)).then(|| Device::of(&connection));
    detach(&absolute, true).map_err(kernel)?;
    Ok(served.flatten().is_some_and(|device| device.is_there()))
}

/// The directory as the kernel has it in its list. One whose server has died cannot be looked at, but what it is in can.
fn place(dir: &Path) -> io::Result<PathBuf> {
    match (dir.canonicalize(), dir.file_name()) {
        (Err(error), Some(name)) if error.raw_os_error() == Some(libc::ENOTCONN) => {
            let parent = match dir.parent() {
                Some(parent) if parent != Path::new("") => parent,
                _ => Path::new("."),
            };
            Ok(parent.canonicalize()?.join(name))
        }
        (found, _) => found,
    }
}

/// Whether others cannot open the image now, to read or to write: a reader is kept out as long as the server writes.
fn is_locked(image: &Path, options: &FileOptions) -> bool {
    let open = block::file::open(image, options);
    matches!(open, Err(block::Error::Busy { .. }))
}

/// Only root may by itself.
pub(crate) fn detach(dir: &Path, lazy: bool) -> io::Result<()> {
    use rustix::mount::UnmountFlags;
    let flags = match lazy {
        true => UnmountFlags::DETACH,
        false => UnmountFlags::empty(),
    };
    match rustix::mount::unmount(dir, flags) {
        Err(rustix::io::Errno::PERM) => fusermount(dir, lazy),
        done => Ok(done?),
    }
}

fn fusermount(dir: &Path, lazy: bool) -> io::Result<()> {
    let mut command = Command::new("fusermount3");
    command.arg("-u");
    if lazy {
        command.arg("-z");
    }
    let output = command.arg("--").arg(dir).output()?;
    match output.status.success() {
        true => Ok(()),
        false => Err(io::Error::other(
            String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        )),
    }
}

/// The process may change directory before it serves.
fn stats_file(options: &Options) -> Result<Option<PathBuf>, Error> {
    let Some(path) = &options.stats else {
        return Ok(None);
    };
    if options.sandbox {
        let why = "a sandbox opens no files; ask with `dioxide stats`";
        return Err(Error::Option(format!("stats={}: {why}", path.display())));
    }
    // Behind symbolic links: the file is replaced, and they are not.
    let found = path.canonicalize();
    let absolute = found.or_else(|_| std::path::absolute(path));
    let absolute = absolute.map_err(|source| Error::Kernel {
        what: "cannot use",
        path: path.clone(),
        source,
    })?;
    Ok(Some(absolute))
}

/// Leaves no thread behind, if nobody may be outside of the sandbox. Recovery and what it frees start some; opened
/// a second time, there is nothing to recover.
fn open_alone(image: &Path, options: &Options) -> Result<(Fs, Vec<String>), Error> {
    let (fs, warnings) = open(image, options)?;
    if !options.sandbox || sandbox::threads().is_ok_and(|threads| threads == 1) {
        return Ok((fs, warnings));
    }
    let is_guarded = fs.superblock().features().incompat.contains(Incompat::MMP);
    fs.close()?;
    if is_guarded {
        let why = "multi-mount protection takes a thread that would stay outside";
        return Err(Error::Sandbox(why.into()));
    }
    let (fs, mut again) = open(image, options)?;
    again.retain(|warning| !warnings.contains(warning));
    Ok((fs, [warnings, again].concat()))
}

fn open(image: &Path, options: &Options) -> Result<(Fs, Vec<String>), Error> {
    let mut warnings = Vec::new();
    let mount = options.image.clone().read_only(options.read_only);
    let fs = match open_patiently(image, &mount) {
        Err(error) if !options.read_only && may_not_write(&error) => {
            warnings.push(format!("{error}; mounted read-only"));
            open_patiently(image, &mount.read_only(true))?
        }
        opened => opened?,
    };
    if let Some(why) = fs
        .read_only()
        .filter(|_| !options.read_only && warnings.is_empty())
    {
        warnings.push(format!("mounted read-only: {why}"));
    }
    let told = fs.read_only().map(|why| format!("read-only: {why}"));
    let others = fs
        .warnings()
        .iter()
        .filter(|one| Some(*one) != told.as_ref());
    warnings.extend(others.cloned());
    Ok((fs, warnings))
}

/// `umount` of the system returns before the server has closed the image, and who mounts it again is refused for as long.
fn open_patiently(image: &Path, mount: &MountOptions) -> dioxide::Result<Fs> {
    let began = Instant::now();
    loop {
        match Fs::open(image, mount) {
            Err(dioxide::Error::Device(block::Error::Busy { .. }))
                if began.elapsed() < PATIENCE =>
            {
                std::thread::sleep(PAUSE)
            }
            opened => return opened,
        }
    }
}

fn may_not_write(error: &dioxide::Error) -> bool {
    let refused = [libc::EACCES, libc::EPERM, libc::EROFS];
    matches!(
        error,
        dioxide::Error::Device(dioxide::block::Error::Open { .. })
    ) && refused.contains(&error.errno())
}

fn connect_options(image: &Path, options: &Options, read_only: bool) -> ConnectOptions {
    let source = match &options.fsname {
        Some(name) => name.clone(),
        None => image.to_string_lossy().into_owned(),
    };
    let mut mount_options = options.generic.clone();
    mount_options.push(format!("fsname={source}"));
    mount_options.push("subtype=dioxide".into());
    ConnectOptions {
        mount_options,
        read_only,
        allow_other: options.allow_other,
        permissions: !options.server.fakeroot,
        threads: options.threads,
        max_background: options.max_background,
        // A sandbox has no rings.
        io_uring: options.io_uring && !options.sandbox,
    }
}
