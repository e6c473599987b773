//! That a device is free once it is closed. The only test of its process: what others start holds copies of all descriptors for
//! a moment.

mod host;

use dioxide_block::file::{self, Backend};
use dioxide_block::{Buf, Error, OpKind, QueueOptions};
use host::{LoopDevice, MIB, op, run_one, writable};
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;

// The kernel takes a closed ring apart later, and had the claim until then.
#[test]
fn block_device_is_free_once_it_and_its_rings_are_closed() {
    if !host::is_root() {
        return;
    }
    let file = host::disk_file(MIB);
    let attached = LoopDevice::attach(file.path());
    let options = writable(Backend::Uring);
    for round in 0..20 {
        let device = match file::open(&attached.path, &options) {
            Err(Error::Unsupported { what }) if round == 0 => {
                eprintln!("skipped: {what}");
                return;
            }
            opened => opened.unwrap_or_else(|error| panic!("round {round}: {error}")),
        };
        let mut queue = device.open_queue(&QueueOptions::default()).unwrap();
        run_one(&mut *queue, op(OpKind::Read, Buf::zeroed(4096), 0));
        drop((queue, device));
        // Not by this crate, which would wait.
        let mut alone = OpenOptions::new();
        let claimed = alone.write(true).custom_flags(libc::O_EXCL);
        let claimed = claimed.open(&attached.path);
        claimed.unwrap_or_else(|error| panic!("round {round}: {error}"));
    }
}
