//! Names: directories, paths, symlinks, attributes, and what `stat` tells.
//!
//! | Module | Holds |
//! |---|---|
//! | [`path`], [`dentries`], [`ways`] | from a path to an inode, by names and paths that are in memory |
//! | [`dir`], [`edit`] | one directory: reading and changing its names |
//! | [`create`], [`link`], [`remove`], [`rename`] | what users do with names |
//! | [`symlink`], [`xattr`], [`acl`] | targets, extended attributes, access control lists |
//! | [`stat`] | what is told of an inode |
//!
//! Not for: permissions. Whoever has the image may read and change all of it.

mod acl;
mod create;
mod dentries;
mod dir;
pub(crate) mod edit;
mod link;
mod path;
mod remove;
mod rename;
mod stat;
mod symlink;
mod ways;
pub(crate) mod xattr;

pub(crate) use acl::Inherited;
pub(crate) use create::Blueprint;
pub(crate) use dentries::Dentries;
pub(crate) use path::At;
pub(crate) use remove::Deferred;
pub(crate) use rename::check_mode;
pub(crate) use symlink::inline_content;
pub(crate) use ways::Ways;
