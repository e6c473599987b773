//! An image that is mounted, and ended in a failing test too.

use dioxide_testkit::{Image, e2fsck_clean};
use serde_json::Value;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// After this the server is killed, so that whoever waits for it gets an error.
const PATIENCE: Duration = Duration::from_secs(120);
/// What is to come comes by then, beside other tests too.
pub const SOON: Duration = Duration::from_secs(20);

/// Returns from the calling test, with a line that says so, where nothing can be mounted.
#[macro_export]
macro_rules! need_fuse {
    () => {
        if !dioxide_testkit::have_root() || !std::path::Path::new("/dev/fuse").exists() {
            eprintln!("skipped: needs root and /dev/fuse");
            return;
        }
    };
}

/// The option for FUSE over io_uring, and its opposite.
pub const RINGS: &str = "io_uring";
/// For who mounts without [`Rings`]: other tests set the kernel's parameter meanwhile.
pub const NO_RINGS: &str = "noio_uring";
const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";

/// The kernel's parameter for FUSE over io_uring, set until this is dropped. Nobody else sets it meanwhile.
pub struct Rings {
    before: String,
    _lock: File,
}

impl Rings {
    pub fn set(value: &str) -> Rings {
        let lock = File::open(PARAMETER).expect("the parameter is there");
        lock.lock().expect("locks");
        let before = fs::read_to_string(PARAMETER).expect("it is read");
        fs::write(PARAMETER, value).expect("it is set");
        Rings {
            before,
            _lock: lock,
        }
    }
}

impl Drop for Rings {
    fn drop(&mut self) {
        let _ = fs::write(PARAMETER, self.before.trim());
    }
}

/// Whether the kernel can be told to do FUSE over io_uring; says so if not.
pub fn have_rings() -> bool {
    let lock = File::open(PARAMETER).and_then(|file| file.lock().map(|()| file));
    // As it is.
    let can = lock.is_ok_and(|_lock| {
        let value = fs::read_to_string(PARAMETER);
        value.is_ok_and(|value| fs::write(PARAMETER, value.trim()).is_ok())
    });
    if !can {
        eprintln!("skipped: {PARAMETER} is not there, or cannot be set");
    }
    can
}

/// Options for each way to the kernel that there is.
pub fn transports() -> &'static [&'static str] {
    match have_rings() {
        true => &[NO_RINGS, RINGS],
        false => &[NO_RINGS],
    }
}

/// A new image of 128 MiB for each way to the kernel, mounted.
pub fn each(options: &str) -> impl Iterator<Item = Bed> {
    let transports = transports().iter();
    transports.map(move |transport| Bed::new(&format!("{transport},{options}")))
}

/// A server of this process, and its mount.
pub struct Bed {
    image: Image,
    dir: Point,
    server: Arc<Mutex<Child>>,
    watched: Option<Sender<()>>,
}

/// The command of this workspace.
pub fn dioxide() -> Command {
    let mut command = limited(env!("CARGO_BIN_EXE_dioxide"));
    command.env("LC_ALL", "C");
    command
}

/// A program that cannot go on for ever.
pub fn limited(program: &str) -> Command {
    let mut command = Command::new("timeout");
    command.args(["-k", "5", "400", program]);
    command
}

/// Runs a command that is to succeed; gives what it printed.
#[track_caller]
pub fn run(command: &mut Command) -> String {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().expect("the program is there");
    let (stdout, stderr) = (text(stdout), text(stderr));
    assert!(status.success(), "{command:?}: {status}\n{stdout}{stderr}");
    stdout
}

/// Unmounts.
#[track_caller]
pub fn umount(dir: &Path) {
    let done = patiently(dioxide().arg("umount").arg(dir));
    assert!(done.status.success(), "{done:?}");
}

/// What an unmount comes to. A child that another test is about to start has our files open until it is.
pub fn patiently(umount: &mut Command) -> Output {
    let mut more = 0..50;
    loop {
        let output = umount.output().expect("the command is there");
        let is_busy = String::from_utf8_lossy(&output.stderr).contains("busy");
        if !is_busy || more.next().is_none() {
            return output;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).expect("UTF-8")
}

/// What the server of a mount has counted.
pub fn asked(dir: &Path) -> Value {
    let json = run(dioxide().args(["stats", "--json"]).arg(dir));
    serde_json::from_str(&json).expect("JSON")
}

/// Whether something is mounted on a directory.
pub fn is_mounted(dir: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mounts").expect("mounts");
    let wanted = dir.to_str().expect("UTF-8");
    mounts
        .lines()
        .any(|line| line.split(' ').nth(1) == Some(wanted))
}

impl Bed {
    /// A new image of 128 MiB, mounted.
    pub fn new(options: &str) -> Bed {
        Bed::with(Image::builder().size(128 << 20).build(), options)
    }

    /// An image, mounted.
    pub fn with(image: Image, options: &str) -> Bed {
        let asked = |asked| options.split(',').any(|word| word == asked);
        let rings = asked(RINGS) && have_rings();
        let bed = match rings {
            true => {
                let _rings = Rings::set("Y");
                Bed::serving(image, options)
            }
            false => Bed::serving(image, options),
        };
        assert_eq!(bed.has_rings(), rings);
        bed
    }

    /// As the kernel's parameter is, if rings are asked for.
    pub fn serving(image: Image, options: &str) -> Bed {
        Bed::served(image, options).unwrap_or_else(|status| panic!("it did not serve: {status}"))
    }

    /// The same for what may be refused.
    pub fn served(image: Image, options: &str) -> Result<Bed, ExitStatus> {
        let dir = Point::new();
        let server = serve(image.path(), dir.path(), options)?;
        let server = Arc::new(Mutex::new(server));
        let watched = Some(watch(server.clone()));
        Ok(Bed {
            image,
            dir,
            server,
            watched,
        })
    }

    /// Whether the server's threads are those of rings.
    pub fn has_rings(&self) -> bool {
        // They are there when it answers.
        let _ = fs::metadata(self.root());
        self.threads("fuse-ring") > 0
    }

    /// How many of the server's threads have names that begin so.
    pub fn threads(&self, name: &str) -> usize {
        let tasks = format!("/proc/{}/task", self.pid());
        let names = fs::read_dir(tasks).expect("its threads").flatten();
        let names = names.flat_map(|task| fs::read_to_string(task.path().join("comm")));
        names.filter(|found| found.starts_with(name)).count()
    }

    /// Makes the kernel give up names, files and pages of this mount, of which nothing is open: a remount drops what no one uses.
    pub fn forget(&self) {
        run(limited("mount")
            .args(["-i", "-o", "remount"])
            .arg(self.root()));
        let until = Instant::now() + SOON;
        // The server is told a moment later.
        while asked(self.root())["known_files"] != 0 {
            assert!(Instant::now() < until, "the kernel still has files");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The root of the mount.
    pub fn root(&self) -> &Path {
        self.dir.path()
    }

    /// A file of it.
    pub fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The image.
    pub fn image(&self) -> &Path {
        self.image.path()
    }

    /// Unmounts, waits for the server, and checks the image.
    #[track_caller]
    pub fn finish(self) -> Image {
        let _ = patiently(dioxide().arg("umount").arg(self.root()));
        assert!(!is_mounted(self.root()), "it stays mounted");
        self.ended(true)
    }

    /// The server ends by itself.
    pub fn status(&mut self) -> ExitStatus {
        let status = wait(&mut self.server.lock().unwrap());
        drop(self.watched.take());
        status
    }

    /// The server ends as it is told to.
    #[track_caller]
    pub fn ended(mut self, well: bool) -> Image {
        let status = self.status();
        assert_eq!(status.success(), well, "the server ended with {status}");
        let image = self.image.copy();
        if well {
            e2fsck_clean(image.path());
        }
        image
    }

    /// SIGKILL: as when the power goes, but for what the kernel holds of the image.
    pub fn kill(self) -> Image {
        self.server.lock().unwrap().kill().expect("it runs");
        self.ended(false)
    }

    /// Process of the server.
    pub fn pid(&self) -> u32 {
        self.server.lock().unwrap().id()
    }

    /// Sends the server a signal.
    pub fn signal(&self, signal: rustix::process::Signal) {
        let server = self.server.lock().unwrap();
        let pid = rustix::process::Pid::from_child(&server);
        rustix::process::kill_process(pid, signal).expect("it runs");
    }
}

/// Starts a server, without rings if they are not asked for, and returns when it serves.
fn serve(image: &Path, dir: &Path, options: &str) -> Result<Child, ExitStatus> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dioxide"));
    command.args(["mount", "--background"]);
    command.args(["-o", NO_RINGS]);
    if !options.is_empty() {
        command.args(["-o", options]);
    }
    let mut child = command
        .args([image, dir])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the command runs");
    let mut said = [0; 8];
    let out = child.stdout.as_mut().expect("a pipe");
    match out.read_exact(&mut said) {
        Ok(()) => Ok(child),
        Err(_) => Err(wait(&mut child)),
    }
}

fn wait(server: &mut Child) -> ExitStatus {
    let until = Instant::now() + SOON;
    loop {
        if let Some(status) = server.try_wait().expect("a child") {
            return status;
        }
        if Instant::now() > until {
            server.kill().expect("it runs");
            panic!("the server does not end");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Kills the server when the sender is not dropped in time.
fn watch(server: Arc<Mutex<Child>>) -> Sender<()> {
    let (sender, dropped) = channel();
    std::thread::spawn(move || {
        use std::sync::mpsc::RecvTimeoutError::Timeout;
        if dropped.recv_timeout(PATIENCE) == Err(Timeout) {
            eprintln!("the test takes too long: the server is killed");
            let _ = server.lock().map(|mut server| server.kill());
        }
    });
    sender
}

impl Drop for Bed {
    fn drop(&mut self) {
        let mut server = match self.server.lock() {
            Ok(server) => server,
            Err(poisoned) => poisoned.into_inner(),
        };
        let _ = server.kill();
        if matches!(server.try_wait(), Ok(None)) {
            // One that waits for an answer of its own would not end.
            let _ = Command::new("umount").arg("-f").arg(self.root()).status();
        }
        let _ = server.wait();
    }
}

/// A directory to mount on. It is free when this is dropped.
pub struct Point(TempDir);

impl Point {
    pub fn new() -> Point {
        let dir = tempfile::Builder::new().prefix("dioxide-fuse-").tempdir();
        Point(dir.expect("mount point"))
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Point {
    fn drop(&mut self) {
        if is_mounted(self.path()) {
            let _ = Command::new("umount").arg("-l").arg(self.path()).status();
        }
    }
}
