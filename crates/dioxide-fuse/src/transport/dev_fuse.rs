//! Requests through `read` and `write` of `/dev/fuse`: one thread and, where there are enough, one descriptor for each that is
//! answered at the same time. While all but one wait for the kernel to write pages, there are more.

use super::device::{Common, Device, Spare};
use super::{Serving, Transport};
use crate::server::Server;
use std::io;
use std::sync::Arc;

/// One answers while another waits for the kernel to write pages.
const LEAST_THREADS: usize = 2;
/// While a sync of everything waits for that, there are as many as else.
const FOR_SYNC: usize = 1;

/// A connection through `/dev/fuse`.
pub(super) struct DevFuse {
    server: Arc<Server>,
    device: Arc<Device>,
    threads: usize,
    common: Arc<Common>,
}

impl DevFuse {
    pub(super) fn new(
        server: Arc<Server>,
        mut device: Device,
        threads: usize,
        common: Arc<Common>,
    ) -> DevFuse {
        let threads = threads.max(LEAST_THREADS) + FOR_SYNC;
        device.add_descriptors(threads);
        DevFuse {
            server,
            device: Arc::new(device),
            threads,
            common,
        }
    }
}

impl Transport for DevFuse {
    fn start(self: Box<Self>) -> io::Result<Serving> {
        let answer = self.threads - FOR_SYNC;
        let spare = Arc::new(Spare::that_grows(answer, self.common, self.server.clone()));
        let threads = (0..self.threads)
            .map(|thread| Device::reader(&self.device, thread, self.server.clone(), spare.clone()));
        Serving::start(threads, self.device.clone())
    }
}
