//! Random operations on files, against a model in memory and `e2fsck`; then many threads at once.

#[path = "model/compare.rs"]
mod compare;
#[path = "model/files.rs"]
mod files;
#[path = "model/ops.rs"]
mod ops;
#[path = "model/random.rs"]
mod random;
#[path = "model/stamps.rs"]
mod stamps;
#[path = "model/threads.rs"]
mod threads;
#[path = "model/variants.rs"]
mod variants;
