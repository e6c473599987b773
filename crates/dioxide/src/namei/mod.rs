//! Names: directories, paths, symlinks, attributes, and what `stat` tells.
//!
//! For: reading. Not for: changing names, nor for permissions: whoever has the image may read all
//! of it.

mod acl;
mod dir;
mod path;
mod stat;
mod symlink;
mod xattr;
