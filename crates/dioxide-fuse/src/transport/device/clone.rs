//! More descriptors of one connection.
#![allow(unsafe_code)]

use rustix::fs::{Mode, OFlags};
use rustix::ioctl::{Opcode, Setter, ioctl, opcode};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// `FUSE_DEV_IOC_CLONE`: makes what is open a descriptor of another's connection.
const CLONE: Opcode = opcode::read::<u32>(229, 0);

pub(super) fn clone(of: &File) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let new: File = rustix::fs::open("/dev/fuse", flags, Mode::empty())?.into();
    // SAFETY: the kernel reads four bytes, the number of a descriptor that is open, and changes nothing but `new`.
    unsafe { ioctl(&new, Setter::<CLONE, u32>::new(of.as_raw_fd() as u32)) }?;
    Ok(new)
}
