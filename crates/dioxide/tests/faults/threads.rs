//! The system gives no thread: what needs none works, what needs one says so, and nothing hangs.
//!
//! The limit holds for a whole process, and not for root. So the test runs in a child, as nobody.

use crate::variants::image_with;
use dioxide::block::file::FileOptions;
use dioxide::block::sim::{Fault, FaultKind, FaultOp, SimDevice, SimSpec};
use dioxide::{
    Backend, Buf, Error, FallocateMode, File, Fs, MountOptions, OpenOptions, Queue, QueueOptions,
    Result, SetAttributes,
};
use dioxide_testkit::{Image, e2fsck_clean, e2fsck_consistent};
use rustix::process::{Resource, Rlimit, Uid, getuid, setrlimit};
use rustix::thread::set_thread_res_uid;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

const CHILD: &str = "DIOXIDE_TEST_NO_THREADS";
const PATIENCE: Duration = Duration::from_secs(60);
const BLOCK: usize = 1024;

/// `/f0` has 16 blocks, `/f1` none.
fn image() -> Image {
    let builder = Image::builder().size(8 << 20).block_size(BLOCK as u32);
    let image = image_with(builder, &["f0", "f1"]);
    let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
    let file = open(&fs, "/f0");
    file.write_at(&[7; 16 * BLOCK], 0).expect("room");
    drop(file);
    fs.close().expect("a clean end");
    let all = Permissions::from_mode(0o666);
    std::fs::set_permissions(image.path(), all).expect("it is ours");
    image
}

fn open(fs: &Fs, name: &str) -> File {
    let options = OpenOptions::new().read(true).write(true);
    options.open(fs, name).expect("it exists")
}

#[test]
fn process_without_threads_gets_answers_and_a_sound_image() {
    if let Ok(images) = std::env::var(CHILD) {
        let (unchanged, changed) = images.split_once('|').expect("two");
        return without_threads(Path::new(unchanged), Path::new(changed));
    }
    let images = [image(), image()];
    let paths = images.each_ref().map(|image| image.path().display());
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "--nocapture", "--test-threads=1"])
        .arg("threads::process_without_threads_gets_answers_and_a_sound_image")
        .env(CHILD, format!("{}|{}", paths[0], paths[1]))
        .spawn()
        .expect("it starts");
    let until = Instant::now() + PATIENCE;
    let status = loop {
        if let Some(status) = child.try_wait().expect("it is ours") {
            break status;
        }
        if Instant::now() > until {
            child.kill().expect("it is ours");
            panic!("it hangs");
        }
        thread::sleep(Duration::from_millis(20));
    };
    assert!(status.success(), "{status}");
    e2fsck_clean(images[0].path());
    // Its journal was aborted.
    let fs = Fs::open(images[1].path(), &MountOptions::new()).expect("it opens");
    fs.close().expect("a clean end");
    e2fsck_consistent(images[1].path());
}

fn without_threads(unchanged: &Path, changed: &Path) {
    if getuid().is_root() {
        let nobody = Uid::from_raw(65534);
        set_thread_res_uid(nobody, nobody, nobody).expect("root may");
    }
    let device = dioxide::block::file::open(
        changed,
        &FileOptions {
            write: true,
            ..FileOptions::default()
        },
    );
    let device = SimDevice::new(device.expect("it opens"), SimSpec::default());
    let options = MountOptions::new().commit_interval(Duration::from_millis(20));
    let fs = Fs::open_device(Arc::new(device.clone()), &options).expect("it opens");
    let set_mode = |mode| fs.set_attributes("/f0", &SetAttributes::new().mode(mode));
    set_mode(0o600).expect("a change");
    fs.sync().expect("a sync");
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    setrlimit(Resource::Nproc, none).expect("less is allowed");
    let refused = thread::Builder::new().spawn(|| ());
    refused.expect_err("there is no thread");

    for backend in [Backend::Auto, Backend::Pread, Backend::Mmap] {
        let options = MountOptions::new().backend(backend);
        use_unchanged(Fs::open(unchanged, &options).expect("it opens"));
    }
    let file = open(&fs, "/f0");
    let punch = FallocateMode::PunchHole;
    let alone = through_queue(&fs, |queue| {
        queue.allocate(&file, punch, 4096, 1024, 1).is_ok()
    });
    alone.expect("it is done in this thread");
    file.preload_map().expect("a sound tree");
    // It would wait for what only this thread can reap.
    let mut queue = fs.queue(&QueueOptions::default()).expect("a queue");
    queue.write(&file, 0, filled(9), 1).expect("room");
    queue.allocate(&file, punch, 4096, 1024, 2).expect("room");
    let mut done = Vec::new();
    queue.wait(2, &mut done).expect("a working queue");
    done.sort_by_key(|one| one.tag);
    let [write, punch] = done.try_into().expect("two");
    assert_eq!(write.result.expect("an overwrite"), BLOCK);
    let error = punch.result.expect_err("it cannot");
    assert_eq!(error.errno(), libc::EDEADLK, "{error}");
    drop(queue);
    fs.sync().expect("a sync");
    let armed = device.inject(Fault::once(FaultOp::Write, FaultKind::Io(libc::EIO)));
    set_mode(0o640).expect("a change");
    // Its commit fails, in a thread that was there before.
    let until = Instant::now() + PATIENCE / 3;
    while device.hits(armed) == Some(0) {
        assert!(Instant::now() < until, "nothing is committed");
        thread::sleep(Duration::from_millis(1));
    }
    let error = loop {
        match file.write_at(&[1; BLOCK], 0) {
            Ok(_) => assert!(Instant::now() < until, "overwrites go on"),
            Err(error) => break error,
        }
        thread::sleep(Duration::from_millis(1));
    };
    assert_eq!(error.errno(), libc::EROFS, "{error}");
    drop(file);
    fs.close().expect_err("a change is lost");
}

fn filled(byte: u8) -> Buf {
    Buf::copy_of(&[byte; BLOCK])
}

/// What the only request under way comes to.
fn through_queue(fs: &Fs, push: impl FnOnce(&mut Queue) -> bool) -> Result<usize> {
    let mut queue = fs.queue(&QueueOptions::default()).expect("a queue");
    assert!(push(&mut queue), "there is room");
    let mut done = Vec::new();
    queue.wait(1, &mut done).expect("a working queue");
    assert_eq!(done.len(), 1);
    done.remove(0).result.map_err(|error| *error)
}

/// The first change needs a thread, for the journal; so do the times of an overwrite.
fn use_unchanged(fs: Fs) {
    let (data, holes) = (open(&fs, "/f0"), open(&fs, "/f1"));
    data.read_at(&mut [0; BLOCK], 0).expect("readable");
    data.write_at(&[8; BLOCK], 0).expect("an overwrite");
    let read = through_queue(&fs, |queue| queue.read(&data, 0, filled(0), 1).is_ok());
    assert_eq!(read.expect("readable"), BLOCK);
    let write = through_queue(&fs, |queue| queue.write(&data, 0, filled(9), 1).is_ok());
    assert_eq!(write.expect("an overwrite"), BLOCK);
    let needs_one = |result: Result<()>| {
        let error = result.expect_err("it needs a thread");
        assert!(matches!(error, Error::NoThread(..)), "{error}");
    };
    needs_one(holes.write_at(&[1; BLOCK], 0).map(drop));
    needs_one(holes.set_len(5000));
    needs_one(fs.remove_file("/f1"));
    let allocate = FallocateMode::Allocate;
    let pushes: [&dyn Fn(&mut Queue) -> bool; 2] = [
        &|queue| queue.write(&holes, 0, filled(1), 1).is_ok(),
        &|queue| queue.allocate(&holes, allocate, 0, 4096, 1).is_ok(),
    ];
    for push in pushes {
        needs_one(through_queue(&fs, push).map(drop));
    }
    let sync = through_queue(&fs, |queue| queue.sync_data(&data, 1).is_ok());
    assert_eq!(sync.expect("a flush"), 0);
    let sync = through_queue(&fs, |queue| queue.sync_all(&data, 1).is_ok());
    needs_one(sync.map(drop));
    needs_one(fs.sync());
    drop((data, holes));
    needs_one(fs.close());
}
