//! The file that has what was counted.

use crate::server::Server;
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
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let new = path.with_file_name(name);
    let written = File::create_new(&new).and_then(|mut file| file.write_all(&json));
    let written = written.and_then(|()| std::fs::rename(&new, path));
    if written.is_err() {
        let _ = std::fs::remove_file(&new);
    }
    written
}

/// Replaces the file again and again, and a last time when it is dropped.
pub(super) struct Reporter {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

pub(super) fn keep(server: &Arc<Server>, path: PathBuf) -> io::Result<Reporter> {
    let (stop, stopped) = channel::<()>();
    let server = server.clone();
    let write = move || loop {
        let ends = stopped.recv_timeout(INTERVAL) != Err(RecvTimeoutError::Timeout);
        if let Err(error) = write(&server, &path) {
            tracing::warn!(%error, path = %path.display(), "what was counted is not written");
        }
        if ends {
            return;
        }
    };
    let thread = std::thread::Builder::new().name("stats".into());
    Ok(Reporter {
        stop: Some(stop),
        thread: Some(thread.spawn(write)?),
    })
}

impl Drop for Reporter {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
