//! Full and fragmented file systems, filled and emptied by many threads.

#[path = "full/fill.rs"]
mod fill;
#[path = "model/random.rs"]
mod random;
#[path = "model/variants.rs"]
mod variants;
