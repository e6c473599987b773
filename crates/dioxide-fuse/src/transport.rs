//! How requests come and answers go.

mod fuser;

pub use self::fuser::DevFuse;

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
}

/// A connection to the kernel.
///
/// The one that exists reads and writes `/dev/fuse`. Another that shares rings with the kernel only needs to turn what is in
/// them into calls of the same [`Server`].
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
