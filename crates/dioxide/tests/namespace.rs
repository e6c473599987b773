//! Names, attributes and maps, compared with the kernel's ext4 over every kind of file system that
//! `mke2fs` makes.

#[path = "namespace/journal_device.rs"]
mod journal_device;
#[path = "namespace/open.rs"]
mod open;
#[path = "namespace/orphans.rs"]
mod orphans;
#[path = "namespace/paths.rs"]
mod paths;
#[path = "namespace/replay.rs"]
mod replay;
#[path = "namespace/special.rs"]
mod special;
#[path = "namespace/tree.rs"]
mod tree;
#[path = "namespace/variants.rs"]
mod variants;
#[path = "namespace/walk.rs"]
mod walk;
