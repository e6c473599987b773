//! `dioxide umount`.

use crate::args::UmountArgs;
use crate::failure::{Failure, Status, complain};
use dioxide_fuse::Unmounted;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io::Read;

/// Unmounts, and waits.
pub fn run(args: &UmountArgs) -> Result<Status, Failure> {
    if args.when_told {
        return when_told(args);
    }
    if args.lazy {
        dioxide_fuse::unmount_lazily(&args.dir).map_err(super::mount::failed)?;
    } else if dioxide_fuse::unmount(&args.dir).map_err(super::mount::failed)? == Unmounted::Dead {
        let what = "its server had died: detached. What was not synced is lost, and the next mount recovers the image";
        complain(format_args!("{}: warning: {what}", args.dir.display()));
    }
    Ok(Status::Fine)
}

/// Signals that are for the server may be sent to this process too: the server asks then. Standard input ends when the server
/// does.
fn when_told(args: &UmountArgs) -> Result<Status, Failure> {
    let trouble = |error| Failure::trouble("signals", error);
    let _ignored = Signals::new([SIGTERM, SIGINT, SIGHUP]).map_err(trouble)?;
    let _ = rustix::process::setsid();
    match std::io::stdin().read(&mut [0]) {
        Ok(1) => dioxide_fuse::unmount_by_force(&args.dir),
        _ if args.or_dead => dioxide_fuse::unmount_dead(&args.dir),
        _ => {}
    }
    Ok(Status::Fine)
}
