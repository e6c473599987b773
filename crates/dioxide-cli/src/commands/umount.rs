//! `dioxide umount`.

use crate::args::UmountArgs;
use crate::failure::{Failure, Status};

/// Unmounts, and waits.
pub fn run(args: &UmountArgs) -> Result<Status, Failure> {
    dioxide_fuse::unmount(&args.dir).map_err(super::mount::failed)?;
    Ok(Status::Fine)
}
