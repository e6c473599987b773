//! The process that serves a mount, for who waits until it has ended.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::os::fd::OwnedFd;
use std::path::PathBuf;

/// Numbers of processes are those of a namespace.
fn namespace() -> Option<PathBuf> {
    std::fs::read_link("/proc/self/ns/pid").ok()
}

/// What a server tells of this one.
pub(crate) fn told() -> Option<String> {
    let namespace = namespace()?;
    Some(format!("{} {}", std::process::id(), namespace.display()))
}

/// A process that may have ended.
pub(super) struct Process(OwnedFd);

impl Process {
    /// None for one of another namespace.
    pub(super) fn of(told: &str) -> Option<Process> {
        let (number, told) = told.split_once(' ')?;
        let pid = Pid::from_raw(number.parse().ok()?)?;
        (namespace()?.as_os_str() == told).then_some(())?;
        pidfd_open(pid, PidfdFlags::empty()).ok().map(Process)
    }

    pub(super) fn has_ended(&self) -> bool {
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_that_was_told_has_not_ended_before_it_ends() {
        let told = told().expect("there is /proc");
        let (_, here) = told.split_once(' ').expect("two words");
        let mut child = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .spawn()
            .expect("it is there");
        let process = Process::of(&format!("{} {here}", child.id())).expect("it runs");
        assert!(!process.has_ended());
        child.wait().expect("its input has ended");
        assert!(process.has_ended());
    }

    #[test]
    fn process_of_another_namespace_is_none() {
        assert!(Process::of("1 pid:[1]").is_none());
    }
}
