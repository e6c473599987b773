//! The kernel's ext4 as oracle: the same operations on both sides, and each side's crashes recovered by
//! the other. Needs root.

#[path = "model/compare.rs"]
mod compare;
#[path = "kernel/crash.rs"]
mod crash;
#[path = "model/history.rs"]
mod history;
#[path = "kernel/linux.rs"]
mod linux;
#[path = "kernel/names.rs"]
mod names;
#[path = "model/ops.rs"]
mod ops;
#[path = "model/random.rs"]
mod random;
#[path = "kernel/same.rs"]
mod same;
#[path = "model/variants.rs"]
mod variants;
#[path = "namespace/walk.rs"]
mod walk;
