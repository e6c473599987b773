//! File handles, by which NFS servers name files.
#![allow(unsafe_code)]

use crate::bed::{Bed, SOON, transports};
use crate::need_fuse;
use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Instant;

/// `struct file_handle`, with room for what it holds.
#[repr(C)]
#[derive(Clone)]
struct Handle {
    bytes: u32,
    kind: i32,
    handle: [u8; 128],
}

fn handle_of(path: &Path) -> Handle {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    let mut handle = Handle {
        bytes: 128,
        kind: 0,
        handle: [0; 128],
    };
    let mut mount = 0;
    // SAFETY: the path ends with a NUL, the handle says how much room it has, and all outlive the call.
    let done = unsafe {
        let handle = std::ptr::from_mut(&mut handle);
        libc::syscall(
            libc::SYS_name_to_handle_at,
            libc::AT_FDCWD,
            path.as_ptr(),
            handle,
            &mut mount,
            0,
        )
    };
    assert_eq!(done, 0, "{}", io::Error::last_os_error());
    handle
}

fn open(root: &Path, handle: &Handle) -> io::Result<File> {
    let root = File::open(root)?;
    // SAFETY: the handle was made by the kernel, and outlives the call.
    let fd = unsafe {
        let handle = std::ptr::from_ref(handle);
        libc::syscall(
            libc::SYS_open_by_handle_at,
            root.as_raw_fd(),
            handle,
            libc::O_RDONLY | libc::O_CLOEXEC,
        )
    };
    match fd {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: the kernel has just opened it for us.
        fd => Ok(unsafe { File::from_raw_fd(fd as i32) }),
    }
}

#[test]
fn file_handle_names_its_file_for_ever_and_no_other() {
    need_fuse!();
    for options in transports() {
        let bed = Bed::new(options);
        fs::create_dir(bed.at("d")).unwrap();
        for name in ["d/kept", "d/gone"] {
            fs::write(bed.at(name), name).unwrap();
        }
        let [kept, gone, dir] = ["d/kept", "d/gone", "d"].map(|name| handle_of(&bed.at(name)));
        // The next server was never told of them.
        let bed = Bed::with(bed.finish(), options);
        let mut text = String::new();
        open(bed.root(), &kept)
            .unwrap()
            .read_to_string(&mut text)
            .unwrap();
        assert_eq!(text, "d/kept");
        assert!(open(bed.root(), &dir).unwrap().metadata().unwrap().is_dir());
        open(bed.root(), &gone).expect("it is there");
        fs::remove_file(bed.at("d/gone")).unwrap();
        // It gets the number.
        fs::write(bed.at("d/other"), "other").unwrap();
        // A child that another test is about to start has it open until it is.
        let until = Instant::now() + SOON;
        let stale = loop {
            match open(bed.root(), &gone) {
                Err(error) => break error,
                Ok(_) => assert!(Instant::now() < until, "it is found"),
            }
        };
        assert_eq!(stale.raw_os_error(), Some(libc::ESTALE));
        bed.finish();
    }
}
