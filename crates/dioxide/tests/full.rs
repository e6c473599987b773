//! Full and fragmented file systems, filled and emptied by many threads, and asked for more than there is.

#[path = "full/ahead.rs"]
mod ahead;
#[path = "full/fill.rs"]
mod fill;
#[path = "full/pending.rs"]
mod pending;
#[path = "model/random.rs"]
mod random;
#[path = "model/variants.rs"]
mod variants;
