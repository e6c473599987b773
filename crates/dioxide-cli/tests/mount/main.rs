//! `dioxide mount` used by other programs. Needs root and `/dev/fuse`; each test says so where it has neither.

mod aio;
mod bed;
mod content;
mod flags;
mod handles;
mod hostile;
mod lifetime;
mod names;
mod options;
mod rings;
mod sandbox;
mod stats;
mod users;
