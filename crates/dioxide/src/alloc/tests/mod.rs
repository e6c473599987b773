//! Both allocators over images that mke2fs made, against a model, e2fsck and dumpe2fs.

mod blocks;
mod claims;
mod damage;
mod inodes;
mod model;
mod search;
mod streams;
mod support;
mod threads;
