//! How requests come and answers go.

mod device;
mod fuser;
mod uring;
mod wire;

pub use self::fuser::DevFuse;
pub use self::uring::Uring;

use crate::server::Server;
use std::io;
use std::path::Path;
use std::sync::Arc;

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
    /// The mount goes when this process does.
    pub auto_unmount: bool,
    /// Each thread may open `/dev/fuse` for itself.
    pub clone_descriptors: bool,
    /// How many requests are answered at the same time.
    pub threads: usize,
    /// How many requests that nobody waits for the kernel has under way.
    pub max_background: u16,
    /// Rings are used where the kernel has them.
    pub io_uring: bool,
}

/// A connection to the kernel.
///
/// [`DevFuse`] reads and writes `/dev/fuse`, [`Uring`] shares rings with the kernel. Both turn what they find into calls of the
/// same [`Server`].
pub trait Transport: Sized + Send + 'static {
    /// Mounts, and returns when the kernel knows that it is served. Requests wait until [`Transport::serve`].
    ///
    /// # Errors
    /// What the kernel or `fusermount3` says.
    fn connect(server: Arc<Server>, dir: &Path, options: &ConnectOptions) -> io::Result<Self>;

    /// Answers requests until the file system is unmounted.
    ///
    /// # Errors
    /// If the connection breaks in another way.
    fn serve(self) -> io::Result<()>;
}

/// The connection that is had.
pub(crate) enum Connection {
    DevFuse(Box<DevFuse>),
    Uring(Uring),
}

impl Transport for Connection {
    /// Through rings if they are wanted and the kernel has them.
    fn connect(
        server: Arc<Server>,
        dir: &Path,
        options: &ConnectOptions,
    ) -> io::Result<Connection> {
        if options.io_uring && uring::enabled() {
            match uring::Rings::new(options.threads) {
                Ok(rings) => {
                    return Uring::over(rings, server, dir, options).map(Connection::Uring);
                }
                Err(error) => tracing::warn!(%error, "FUSE without io_uring"),
            }
        }
        let connected = DevFuse::connect(server, dir, options)?;
        Ok(Connection::DevFuse(Box::new(connected)))
    }

    fn serve(self) -> io::Result<()> {
        match self {
            Connection::DevFuse(connected) => connected.serve(),
            Connection::Uring(connected) => connected.serve(),
        }
    }
}
