//! Moving aligned bytes between memory and a device.
//!
//! This crate knows nothing of file systems. It has one trait for a device that is used
//! synchronously ([`Device`]), one for a queue of owned, asynchronous operations ([`Queue`]),
//! the buffers that both use ([`Buf`], [`BufPool`]), and the implementations:
//!
//! | Module | What it is |
//! |---|---|
//! | [`mod@file`] | images and block devices: io_uring, pread/pwrite or a shared mapping, chosen by probing |
//! | [`mem`] | a device in memory |
//! | [`overlay`] | a device some of whose blocks are read from elsewhere on it |
//! | [`sim`] | wraps a device with latency, an IOPS ceiling and faults |
//! | [`record`] | wraps a device and logs writes, flushes and FUA |
//!
//! All unsafe code that I/O on images needs lives here; see the header of each module for its proof.

mod affinity;
mod buf;
mod device;
mod error;
mod queue;

pub mod file;
pub mod inline;
pub mod mem;
pub mod overlay;
pub mod record;
pub mod sim;

pub use affinity::roam;
pub use buf::{BUF_ALIGN, Buf, BufPool};
pub use device::{AtomicUnits, Device, Durability, Geometry};
pub use error::{Error, Result};
pub use file::{Lane, QueueLane};
pub use queue::{
    Completion, Event, Op, OpKind, Queue, QueueOptions, Seg, Segs, SlotId, Waker, push_in_place,
};
