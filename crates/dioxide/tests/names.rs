//! Names and attributes: what users do with files. One call at a time, then random calls against a model, against the
//! kernel, by four threads at once, and with failures, on images that `e2fsck` judges afterwards.

#[path = "../../dioxide-crash/src/attributes.rs"]
mod attributes;
#[path = "names/basic.rs"]
mod basic;
#[path = "names/beside.rs"]
mod beside;
#[path = "names/calls.rs"]
mod calls;
#[path = "names/faults.rs"]
mod faults;
#[path = "names/held.rs"]
mod held;
#[path = "names/kernel.rs"]
mod kernel;
#[path = "names/kinds.rs"]
mod kinds;
#[path = "names/linux.rs"]
mod linux;
#[path = "model/random.rs"]
mod random;
#[path = "names/random_calls.rs"]
mod random_calls;
#[path = "names/refused.rs"]
mod refused;
#[path = "names/threads.rs"]
mod threads;
#[path = "names/tree.rs"]
mod tree;
#[path = "names/view.rs"]
mod view;
