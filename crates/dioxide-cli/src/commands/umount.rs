//! `dioxide umount`.

use super::stats;
use crate::args::UmountArgs;
use crate::failure::{Failure, Status, complain};
use crate::render::printable;
use dioxide_fuse::{Connection, Unmounted};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Pid;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io::Read;

/// How often a server that was killed is looked for, and how many times in a row it is seen before it counts as stuck.
const LOOK: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};
const DEAD_LOOKS: u32 = 2;

/// Words for who waits outside: whether there is a server that answers while it unmounts.
pub const UNMOUNT: u8 = b'u';
pub const DETACH: u8 = b'd';

/// Unmounts, and waits.
pub fn run(args: &UmountArgs) -> Result<Status, Failure> {
    if args.when_told {
        return when_told(args);
    }
    if args.lazy {
        let goes_on = dioxide_fuse::unmount_lazily(&args.dir).map_err(super::mount::failed)?;
        if goes_on {
            let what = "files are open, or it is mounted elsewhere too: the image is in use and written to until that ends";
            complain(format_args!("{}: warning: {what}", args.dir.display()));
        }
        return Ok(Status::Fine);
    }
    // Nobody is left to tell it afterwards.
    let failure = stats::failure_of(&args.dir);
    let done = dioxide_fuse::unmount(&args.dir).map_err(super::mount::failed)?;
    if let Some(failure) = failure {
        let (dir, failure) = (args.dir.display(), printable(&failure));
        let what = "nothing was written any more";
        complain(format_args!("{dir}: warning: {what}: {failure}"));
    }
    let what = match done {
        Unmounted::Closed => return Ok(Status::Fine),
        Unmounted::Dead => {
            "its server had died: detached. What was not synced is lost, and the next mount recovers the image"
        }
        Unmounted::Unclean => {
            let what = "its server has ended, and could not close the image, which is as after a crash: what was not synced may be lost";
            return Err(Failure::trouble(args.dir.display(), what));
        }
        Unmounted::Elsewhere => "it is mounted elsewhere too: the image stays in use",
        Unmounted::InUse => "nothing tells whether its server has ended: the image may stay in use",
    };
    complain(format_args!("{}: warning: {what}", args.dir.display()));
    Ok(Status::Fine)
}

/// Signals that are for the server may be sent to this process too: the server asks then. Standard input ends when the server
/// does.
///
/// A server that is killed while the kernel writes pages for it waits for an answer that nobody is left to give, where no signal
/// reaches it: the connection is ended for it.
fn when_told(args: &UmountArgs) -> Result<Status, Failure> {
    let trouble = |error| Failure::trouble("signals", error);
    let server = rustix::process::getppid();
    let connection = Connection::of(&args.dir);
    let _ignored = Signals::new([SIGTERM, SIGINT, SIGHUP]).map_err(trouble)?;
    let _ = rustix::process::setsid();
    let mut looks = 0;
    while !is_told(LOOK) {
        looks = if has_died(server) { looks + 1 } else { 0 };
        if looks == DEAD_LOOKS {
            connection.iter().for_each(Connection::end);
        }
    }
    let mut word = [0];
    match std::io::stdin().read(&mut word) {
        Ok(1) if word == [DETACH] => connection.iter().for_each(Connection::detach),
        Ok(1) => connection.iter().for_each(Connection::unmount_by_force),
        _ if args.or_dead => dioxide_fuse::unmount_dead(&args.dir),
        _ => {}
    }
    Ok(Status::Fine)
}

/// Whether there is a word on standard input, or its end, before so much time has passed.
fn is_told(within: Timespec) -> bool {
    let stdin = std::io::stdin();
    let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
    poll(&mut fds, Some(&within)).is_ok_and(|ready| ready > 0)
}

/// Whether a process was ended, though it may have threads that have not.
fn has_died(process: Option<Pid>) -> bool {
    let stat = process.map(|pid| std::fs::read_to_string(format!("/proc/{pid}/stat")));
    let stat = stat.and_then(Result::ok).unwrap_or_default();
    // Behind the name, which may have anything in it.
    let state = stat.rsplit_once(") ");
    state.is_some_and(|(_, state)| state.starts_with('Z'))
}
