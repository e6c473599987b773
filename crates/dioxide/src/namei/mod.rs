//! Names: directories, paths, symlinks, attributes, and what `stat` tells.
//!
//! For: reading, and single entries of directories ([`edit`]). Not for: permissions: whoever has the image may read all
//! of it.

mod acl;
mod dir;
pub(crate) mod edit;
mod path;
mod stat;
mod symlink;
mod xattr;
