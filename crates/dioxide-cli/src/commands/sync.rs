//! `dioxide sync`: opening recovers, closing makes durable; a shell's image stays open.

use super::df::for_each_image;
use super::report::{Report, Telling};
use crate::args::SyncArgs;
use crate::failure::{Failure, Status};
use crate::images::Purpose;
use crate::output::Out;
use crate::render::Text;
use crate::session::Session;
use serde::Serialize;
use std::path::Path;

/// What was done, for programs.
#[derive(Serialize)]
struct Synced {
    action: &'static str,
    #[serde(flatten)]
    image: Text,
}

impl Synced {
    fn new(image: &Path) -> Synced {
        Synced {
            action: "synced",
            image: Text::path("image", image),
        }
    }
}

pub fn run(args: &SyncArgs, session: &mut Session, out: &mut Out) -> Result<Status, Failure> {
    let mut report = Report::new(Telling::json(args.json), out);
    let status = for_each_image(
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
            synced.map_err(|error| Failure::engine(image.display(), b"", &error))?;
            report.tell_json(&Synced::new(&image))
        },
    )?;
    report.finish()?;
    Ok(status)
}
