//! What a process in the sandbox can do, and what not. Without the test harness, because a process enters with one thread.

use std::fs::File;
use std::io::{self, Read};
use std::net::{TcpListener, UdpSocket};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::process::Command;

const INSIDE: &str = "DIOXIDE_TEST_SANDBOX";

fn main() {
    match std::env::var_os(INSIDE) {
        None => outside(),
        Some(_) => inside(),
    }
}

/// The sandbox is for good, so that each look at it takes a process.
fn outside() {
    let program = std::env::current_exe().expect("this program");
    let run = |way: &str| {
        let output = Command::new(&program).env(INSIDE, way).output();
        let output = output.expect("this program runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{way}: {}\n{said}", output.status);
    };
    run("alone");
    run("threads");
    println!("what_is_open_stays_usable_and_nothing_else_can_be_opened: ok");
    println!("process_with_two_threads_does_not_enter: ok");
}

fn inside() {
    if std::env::var(INSIDE).as_deref() == Ok("threads") {
        let second = std::thread::spawn(std::thread::park);
        let said = dioxide_fuse::sandbox::enter()
            .expect_err("two threads")
            .to_string();
        assert!(said.contains("2 threads"), "{said}");
        second.thread().unpark();
        return;
    }
    let mut image = tempfile::tempfile().expect("a file");
    // Something that was let through before the sandbox is refused in it.
    File::open("/etc/passwd").expect("everybody may");
    dioxide_fuse::sandbox::enter().expect("this kernel can");
    refused();
    // Threads that come later are inside too, and can work.
    std::thread::spawn(refused).join().expect("a thread");
    image.write_all_at(b"content", 0).expect("it is open");
    image.sync_all().expect("it is open");
    let mut found = String::new();
    image.read_to_string(&mut found).expect("it is open");
    assert_eq!(found, "content");
}

fn refused() {
    no(File::open("/etc/passwd"));
    no(File::open("/proc/self/status"));
    no(File::create("/tmp/dioxide-sandbox"));
    no(std::fs::remove_file("/etc/passwd"));
    no(std::fs::read_dir("/"));
    no(std::fs::metadata("/etc/passwd"));
    no(TcpListener::bind("127.0.0.1:0"));
    no(UdpSocket::bind("127.0.0.1:0"));
    no(UnixStream::connect("/run/any"));
    no(Command::new("/bin/true").status());
    no(rustix::process::test_kill_process(
        rustix::process::Pid::INIT,
    ));
    no(rustix::mount::unmount(
        "/",
        rustix::mount::UnmountFlags::DETACH,
    ));
}

#[track_caller]
fn no<T, E: Into<io::Error>>(tried: Result<T, E>) {
    let error: io::Error = tried.err().expect("it is refused").into();
    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
}
