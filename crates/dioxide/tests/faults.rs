//! A device that fails, at every place of a workload in turn; and a file system without room, at every
//! allocation.

#[path = "faults/device.rs"]
mod device;
#[path = "model/history.rs"]
mod history;
#[path = "model/ops.rs"]
mod ops;
#[path = "model/random.rs"]
mod random;
#[path = "faults/space.rs"]
mod space;
#[path = "faults/threads.rs"]
mod threads;
#[path = "model/variants.rs"]
mod variants;
#[path = "faults/workload.rs"]
mod workload;
