//! Waits with an end, for what may hang.

use std::io;
use std::sync::mpsc::channel;
use std::time::Duration;

/// How long a mount that is to end, and a sync of its root, wait for the kernel to write what it has of open files. A program that goes
/// on and on at the end of its file could keep it busy for ever. Of what is not written yet it keeps little for a FUSE server.
pub(crate) const WRITING_PATIENCE: Duration = Duration::from_secs(30);

/// Does what may hang, in a thread of its own, and waits so long for it.
pub(crate) fn within<T: Send + 'static>(
    patience: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    let (tell, told) = channel();
    let thread = std::thread::Builder::new().name("sync".into());
    thread.spawn(move || {
        let _ = tell.send(work());
    })?;
    told.recv_timeout(patience).map_err(io::Error::other)
}
