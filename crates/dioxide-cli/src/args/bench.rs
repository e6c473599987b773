//! Arguments of `dioxide bench`.
use super::*;
/// Runs the experiments
#[derive(Args, Debug)]
#[command(after_help = "Examples:\n  dioxide bench --quick")]
pub struct BenchArgs {
    #[arg(long)]
    quick: bool,
}
