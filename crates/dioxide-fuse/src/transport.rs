//! How requests come and answers go.

mod dev_fuse;
mod device;
mod uring;
mod wire;

use crate::server::Server;
use dev_fuse::DevFuse;
use device::{Common, Device};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use uring::{Rings, Uring};
use wire::Offer;

/// What the kernel is told when a connection is made.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    /// Options for `mount(2)` or `fusermount3`, `fsname=` and `subtype=` included.
    pub mount_options: Vec<String>,
    /// Nothing is written.
    pub read_only: bool,
    /// Everybody may use the mount, not only who made it.
    pub allow_other: bool,
    /// The kernel decides by mode and access control list who may do what.
    pub permissions: bool,
    /// How many requests are answered at the same time: two at least. Over `/dev/fuse` those come on top that wait for the kernel to write
    /// pages, where all but one do.
    pub threads: usize,
    /// How many requests that nobody waits for the kernel has under way: two at least.
    pub max_background: u16,
    /// Rings are used where the kernel has them.
    pub io_uring: bool,
}

/// A connection to the kernel: by `read` and `write` of `/dev/fuse`, or by rings. Both turn what they find into calls of the
/// same [`Server`].
pub trait Transport: Send {
    /// Begins to answer requests, and goes on until the file system is unmounted. Returns once it has all that it needs for that.
    ///
    /// # Errors
    /// Those of the system, which has no threads or descriptors left.
    fn start(self: Box<Self>) -> io::Result<Serving>;
}

/// A read that nobody waits for may wait for the kernel to write pages, by such requests.
const LEAST_BACKGROUND: u16 = 2;

/// Mounts, through rings if they are wanted and the kernel has them, and returns when the kernel knows that it is served. Requests
/// wait until [`Transport::start`], which opens no files.
///
/// # Errors
/// What the kernel or `fusermount3` says.
pub fn connect(
    server: Arc<Server>,
    dir: &Path,
    options: &ConnectOptions,
) -> io::Result<Box<dyn Transport>> {
    let wanted = options.io_uring && uring::enabled();
    let rings = wanted.then(|| Rings::new(options.threads, server.is_in_memory()));
    let rings = rings.and_then(|rings| {
        rings
            .inspect_err(|error| tracing::warn!(%error, "FUSE without io_uring"))
            .ok()
    });
    let offer = Offer {
        writeback: server.options().writeback,
        permissions: options.permissions,
        max_background: options.max_background.max(LEAST_BACKGROUND),
        time_gran: server.time_gran(),
        io_uring: rings.is_some(),
    };
    let mut device = Device::mount(dir, options)?;
    let agreed = device.init(&offer)?;
    if agreed.maps_direct {
        server.set_maps_direct();
    }
    let common = Arc::new(Common::of(offer.max_background));
    let over_rings = agreed.over_io_uring && Rings::are_taken(&device)?;
    Ok(match rings {
        Some(rings) if over_rings => Box::new(Uring::new(rings, server, device, common)),
        _ => Box::new(DevFuse::new(server, device, options.threads, common)),
    })
}

/// What a thread does, and its name. It calls what it is given once it has all that it needs.
type Thread = (String, Box<dyn FnOnce(&dyn Fn()) -> io::Result<()> + Send>);

/// What a thread tells.
enum Event {
    Up,
    Ended(io::Result<()>),
}

/// A connection whose requests are answered. Dropped, the mount ends.
pub struct Serving {
    events: Receiver<Event>,
    device: Arc<Device>,
}

impl Serving {
    /// Starts threads, and returns when all are up.
    fn start(threads: impl Iterator<Item = Thread>, device: Arc<Device>) -> io::Result<Serving> {
        let events = start(threads).inspect_err(|_| device.detach())?;
        Ok(Serving { events, device })
    }

    /// For who is none of its threads.
    pub fn pages(&self) -> Pages {
        Pages(self.device.clone())
    }

    /// Returns when all threads have ended, or one with an error.
    ///
    /// # Errors
    /// If the connection breaks in another way than by being unmounted.
    pub fn wait(self) -> io::Result<()> {
        let failed = self.events.iter().find_map(|event| match event {
            Event::Ended(Err(error)) => Some(error),
            Event::Ended(Ok(())) | Event::Up => None,
        });
        failed.map_or(Ok(()), Err)
    }
}

/// What the kernel's page cache has of the files of a connection.
pub struct Pages(Arc<Device>);

impl Pages {
    /// Has the kernel write what it has of files. Blocks until that is answered, or the connection has ended.
    pub fn write(&self, nodes: &[u64]) {
        // Of what has ended there are no pages any more.
        let _ = self.0.write_pages(nodes);
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.device.detach();
    }
}

fn start(threads: impl Iterator<Item = Thread>) -> io::Result<Receiver<Event>> {
    let (tell, events) = channel();
    let mut starting = 0_usize;
    for (name, work) in threads {
        let tell = tell.clone();
        let thread = std::thread::Builder::new().name(name);
        // Whoever waited does no more if another end was an error.
        thread.spawn(move || {
            let end = work(&|| drop(tell.send(Event::Up)));
            let _ = tell.send(Event::Ended(end));
        })?;
        starting += 1;
    }
    drop(tell);
    while starting > 0 {
        match events.recv() {
            Ok(Event::Up) => starting -= 1,
            Ok(Event::Ended(Err(error))) => return Err(error),
            // It was up.
            Ok(Event::Ended(Ok(()))) => {}
            Err(_) => break,
        }
    }
    Ok(events)
}
