//! Names: what users do with files, one call at a time, on images that `e2fsck` judges afterwards.

#[path = "names/basic.rs"]
mod basic;
