//! What happens when the device has finished a queued request (ioend).
//!
//! Inline completion runs in the thread that reaps the device's completion, and never sleeps.
//! Deferred completion hands the request to a worker, as the kernels did from 5.x on for every
//! asynchronous write; both modes stay selectable so that the difference can be measured.

use std::fmt;
use std::str::FromStr;

/// Where completions run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CompletionMode {
    /// In the thread that reaps them, unless they need work that may sleep.
    #[default]
    Inline,
    /// Writes always in a worker. (Reads that succeed are inline in every kernel.)
    Deferred,
}

impl fmt::Display for CompletionMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            CompletionMode::Inline => "inline",
            CompletionMode::Deferred => "deferred",
        })
    }
}

impl FromStr for CompletionMode {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "inline" => Ok(CompletionMode::Inline),
            "deferred" => Ok(CompletionMode::Deferred),
            _ => Err(format!(
                "no completion mode '{name}'; there are inline, deferred"
            )),
        }
    }
}

/// What is known of a finished request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EndFacts {
    pub(crate) write: bool,
    pub(crate) failed: bool,
}

/// Whether completion must run in a worker. In this engine the only work that may sleep at the end
/// of an overwrite or read is reporting an error.
#[inline]
pub(crate) fn defers(mode: CompletionMode, facts: EndFacts) -> bool {
    facts.failed || (facts.write && mode == CompletionMode::Deferred)
}
