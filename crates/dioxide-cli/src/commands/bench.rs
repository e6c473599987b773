//! `dioxide bench`.
use crate::args::BenchArgs;
use crate::failure::{Failure, Status};
use crate::output::Out;
pub fn run(_args: &BenchArgs, _out: &mut Out) -> Result<Status, Failure> {
    Ok(Status::Fine)
}
