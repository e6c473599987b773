//! The file that has what was counted.

use crate::server::Server;
use dioxide::block::file::Replacing;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// How often it is replaced.
const INTERVAL: Duration = Duration::from_secs(1);

/// Replaces the file: whoever reads it finds a whole report, the last one or this.
pub(super) fn write(server: &Server, path: &Path) -> io::Result<()> {
    let report = server
        .report()
        .map_err(|error| io::Error::from_raw_os_error(error.0))?;
    let mut json = serde_json::to_vec_pretty(&report)?;
    json.push(b'\n');
    // Anything else that has the name, as /dev/null, is not ours to remove.
    if std::fs::symlink_metadata(path).is_ok_and(|found| !found.is_file()) {
        return Err(io::Error::other("it is no regular file, and not replaced"));
    }
    // An image that somebody uses, ours too, would go on under no name.
    let mut held = Replacing::begin(path).map_err(io::Error::other)?;
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let new = path.with_file_name(name);
    let created = match File::create_new(&new) {
        // Of a process that had our number and was killed. What is in its place is never opened.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            std::fs::remove_file(&new).and_then(|()| File::create_new(&new))
        }
        created => created,
    };
    let mut file = created?;
    let replaced = file
        .write_all(&json)
        .and_then(|()| held.check().map_err(io::Error::other))
        .and_then(|()| std::fs::rename(&new, path));
    if replaced.is_err() {
        let _ = std::fs::remove_file(&new);
    }
    replaced
}

/// Replaces the file again and again, and a last time at its end.
pub(super) struct Reporter {
    stop: Sender<()>,
    thread: JoinHandle<io::Result<()>>,
}

pub(super) fn keep(server: &Arc<Server>, path: PathBuf) -> io::Result<Reporter> {
    let (stop, stopped) = channel::<()>();
    let server = server.clone();
    let write = move || loop {
        let ends = stopped.recv_timeout(INTERVAL) != Err(RecvTimeoutError::Timeout);
        let written = write(&server, &path);
        if let Err(error) = &written {
            tracing::warn!(%error, path = %path.display(), "what was counted is not written");
        }
        if ends {
            return written;
        }
    };
    let thread = std::thread::Builder::new().name("stats".into());
    Ok(Reporter {
        stop,
        thread: thread.spawn(write)?,
    })
}

impl Reporter {
    /// Replaces the file a last time.
    ///
    /// # Errors
    /// What became of that; earlier errors do not count.
    pub(super) fn end(self) -> io::Result<()> {
        drop(self.stop);
        let ended = self.thread.join();
        ended.unwrap_or_else(|_| Err(io::Error::other("the thread that writes it has ended")))
    }
}
