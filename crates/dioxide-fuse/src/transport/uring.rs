//! Requests through rings that the kernel shares with us (FUSE over io_uring, Linux 6.14): an answer and the next request are one
//! system call, and data are in our memory when we are told of them.
//!
//! The kernel has one queue for each processor, and puts a request into that of the processor it comes from. Where data lie in
//! memory, a queue has one thread with several entries: what has come is answered by one system call, and fewer threads
//! change places (psync by eight: 1.1 to 1.3 times as many). What waits for something else than a lock is done by helpers.
//! Where a read waits for the device, a queue has several threads, with a ring and an entry each, so that it holds up no other; the
//! kernel takes the thread that was busy last first. `FORGET` and what else nobody waits for comes
//! through `/dev/fuse` as before, to one more thread.
//!
//! The kernel has it if its parameter `enable_uring` is Y. Where it has not, gives us no ring, or does not agree to it when we
//! connect, the other transport is used.
//!
//! Rejected: one thread for each queue without helpers, as libfuse has it. An `fsync` would hold up those behind it, and what has
//! the kernel write its pages would wait for itself.

mod memory;
mod worker;

use super::device::{Common, Device, Spare};
use super::{Serving, Thread, Transport};
use crate::server::Server;
use std::io;
use std::sync::Arc;
use worker::{Size, Worker};

/// Threads of each queue, where they wait for the device: not less, so that one that waits leaves others, and not more.
const QUEUE_THREADS: (usize, usize) = (4, 16);
/// And one more, while a sync of everything waits for the kernel to write pages.
const FOR_SYNC: usize = 1;
/// The one thread of a queue, where they do not.
const BATCH: Size = Size {
    entries: 9,
    helpers: 3,
};
const SINGLE: Size = Size {
    entries: 1,
    helpers: 0,
};

/// Y where it is allowed. A connection that has rings keeps them.
const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";

/// Whether the kernel has it, and is allowed to use it.
pub(super) fn enabled() -> bool {
    let parameter = std::fs::read_to_string(PARAMETER);
    parameter.is_ok_and(|value| value.starts_with('Y'))
}

/// How many queues the kernel has: one for each processor that there could be.
fn queues() -> io::Result<u16> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
    count(text.trim()).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Numbers in a list such as `0-3,8`.
fn count(list: &str) -> Option<u16> {
    let mut count = 0_u16;
    for range in list.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse::<u16>().ok()?, last.parse::<u16>().ok()?);
        count = count.checked_add(last.checked_sub(first)?.checked_add(1)?)?;
    }
    Some(count)
}

/// Rings that the kernel does not know of yet.
pub(super) struct Rings(Vec<Worker>);

impl Rings {
    /// # Errors
    /// If the kernel gives no rings, or not so many.
    pub(super) fn new(threads: usize, in_memory: bool) -> io::Result<Rings> {
        let queues = queues()?;
        let (least, most) = QUEUE_THREADS;
        let (each, size) = match in_memory {
            true => (1, BATCH),
            false => {
                let each = threads.div_ceil(queues.into()).clamp(least, most);
                (each + FOR_SYNC, SINGLE)
            }
        };
        let all = (0..queues).flat_map(|queue| (0..each).map(move |_| queue));
        let workers = all.map(|queue| Worker::new(queue, size));
        Ok(Rings(workers.collect::<io::Result<_>>()?))
    }

    /// Whether the kernel takes rings for a connection: its parameter may have changed after it offered them. Once it takes them,
    /// it goes on.
    ///
    /// # Errors
    /// If the kernel gives no ring to ask with.
    pub(super) fn are_taken(device: &Device) -> io::Result<bool> {
        let answer = worker::commit_nothing(device)?;
        Ok(answer != libc::EOPNOTSUPP)
    }
}

/// A connection through rings.
pub(super) struct Uring {
    server: Arc<Server>,
    device: Arc<Device>,
    workers: Vec<Worker>,
    common: Arc<Common>,
}

impl Uring {
    pub(super) fn new(
        Rings(workers): Rings,
        server: Arc<Server>,
        device: Device,
        common: Arc<Common>,
    ) -> Uring {
        Uring {
            server,
            device: Arc::new(device),
            workers,
            common,
        }
    }
}

impl Transport for Uring {
    fn start(self: Box<Self>) -> io::Result<Serving> {
        let Uring {
            server,
            device,
            workers,
            common,
        } = *self;
        let queues = workers.iter().map(Worker::queue).max();
        let queues = queues.map_or(1, |last| usize::from(last) + 1);
        let each = workers.len() / queues;
        let answer = match workers.first().map_or(0, Worker::helpers) {
            0 => each - FOR_SYNC,
            // Whatever these wait for, the worker is left.
            helpers => 1 + helpers,
        };
        let spare = (0..queues).map(|_| Arc::new(Spare::of(answer, common.clone())));
        let spare: Vec<Arc<Spare>> = spare.collect();
        let workers = workers.into_iter().map(|worker| -> Thread {
            let (server, device) = (server.clone(), device.clone());
            let spare = spare[usize::from(worker.queue())].clone();
            let name = format!("fuse-ring-{}", worker.queue());
            let run = move |up: &dyn Fn()| worker.run(&server, &device, &spare, up);
            (name, Box::new(run))
        });
        let reader = Device::reader(&device, 0, server.clone(), Arc::default());
        Serving::start(workers.chain([reader]), device.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::super::ConnectOptions;
    use super::super::wire::Offer;
    use super::*;
    use std::fs::{self, File};

    /// The kernel's parameter, which nobody else sets meanwhile, and which gets its value back.
    struct Parameter {
        before: String,
        _lock: File,
    }

    impl Parameter {
        /// Nothing, with a line that says so, where it is not there or cannot be set.
        fn get() -> Option<Parameter> {
            let parameter = File::open(PARAMETER).and_then(|lock| {
                lock.lock()?;
                let before = fs::read_to_string(PARAMETER)?;
                fs::write(PARAMETER, before.trim())?;
                Ok(Parameter {
                    before,
                    _lock: lock,
                })
            });
            if parameter.is_err() || !std::path::Path::new("/dev/fuse").exists() {
                eprintln!("skipped: {PARAMETER} or /dev/fuse is not there, or not ours");
                return None;
            }
            parameter.ok()
        }
    }

    impl Drop for Parameter {
        fn drop(&mut self) {
            let _ = fs::write(PARAMETER, self.before.trim());
        }
    }

    #[test]
    fn connection_for_which_the_kernel_takes_no_rings_is_done_without() {
        let Some(_parameter) = Parameter::get() else {
            return;
        };
        let options = ConnectOptions {
            mount_options: vec![],
            read_only: true,
            allow_other: false,
            permissions: false,
            threads: 2,
            max_background: 2,
            io_uring: true,
        };
        let offer = Offer {
            writeback: false,
            permissions: false,
            max_background: 2,
            time_gran: 1,
            io_uring: true,
        };
        for (when_answered, wanted) in [("N", false), ("Y", true)] {
            fs::write(PARAMETER, "Y").expect("it can be set");
            let dir = tempfile::tempdir().expect("a directory");
            let mut device = Device::mount(dir.path(), &options).expect("root mounts");
            // The kernel has offered them by now.
            fs::write(PARAMETER, when_answered).expect("it can be set");
            let agreed = device.init(&offer);
            fs::write(PARAMETER, "N").expect("it can be set");
            let taken = Rings::are_taken(&device);
            device.detach();
            assert!(agreed.expect("it answers").over_io_uring);
            assert_eq!(taken.expect("it answers"), wanted, "{when_answered}");
        }
    }

    #[test]
    fn lists_of_processors_are_counted() {
        assert_eq!(count("0"), Some(1));
        assert_eq!(count("0-127"), Some(128));
        assert_eq!(count("0-3,8,10-11"), Some(7));
        for bad in ["", "a", "3-1", "0-", "0-65535"] {
            assert_eq!(count(bad), None, "{bad}");
        }
    }
}
