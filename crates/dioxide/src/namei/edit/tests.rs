//! Directories that are changed on images of mke2fs, and judged by e2fsck, debugfs and the kernel.

mod bed;
mod collide;
mod cookies;
mod damage;
mod features;
mod growth;
mod inline;
mod surgery;
