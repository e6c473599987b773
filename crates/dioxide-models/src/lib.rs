//! The inode's lock, the in-flight count, drain, a region of the extent map, and the journal's gate under the interleavings of
//! a few threads: all of them where that can be waited for, else those with at most three preemptions (two where a completion is handed to a worker).
//!
//! The modules are the engine's own, taken from its folder and compiled with the primitives of the model checker
//! (`cfg(loom)`) in place of the real ones; the models are at their ends. A crate of its own, because nothing else of the engine has to be
//! compiled so.
#![cfg(test)]
#![allow(dead_code, unused_imports, unreachable_pub)]

#[path = "../../dioxide-journal/src/journal/gate.rs"]
mod gate;
#[path = "../../dioxide/src/map/mod.rs"]
mod map;
#[path = "../../dioxide/src/sync/mod.rs"]
mod sync;

use dioxide::{Error, Result};
