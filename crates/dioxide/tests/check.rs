//! The checker against `e2fsck -fn`: both find something, or none does.

#[path = "check/clean.rs"]
mod clean;
#[path = "check/damage.rs"]
mod damage;
#[path = "check/encrypted.rs"]
mod encrypted;
#[path = "check/flips.rs"]
mod flips;
#[path = "check/subject.rs"]
mod subject;
