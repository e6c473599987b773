//! Images made by e2fsprogs, and a walk over everything in them that checks as it goes.

mod tools;
mod walk;

pub use tools::{Image, Mount, SourceTree, run};
pub use walk::{Node, Seen, Walk};
