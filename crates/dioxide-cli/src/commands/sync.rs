//! `dioxide sync`: opening recovers, closing makes durable; a shell's image stays open.

use super::df::for_each_image;
use crate::args::SyncArgs;
use crate::failure::{Failure, Status};
use crate::images::Purpose;
use crate::session::Session;

pub fn run(args: &SyncArgs, session: &mut Session) -> Result<Status, Failure> {
    for_each_image(
        &args.images,
        &args.open,
        Purpose::Change,
        session,
        &mut |image, fs| {
            let synced = match fs.read_only() {
                Some(why) => {
                    return Err(Failure::trouble(
                        image.display(),
                        format_args!("read-only: {why}"),
                    ));
                }
                None => fs.sync(),
            };
            synced.map_err(|error| Failure::engine(image.display(), b"", &error))
        },
    )
}
