//! Requests whose callers were interrupted. The kernel goes on to wait for the answer; what takes long looks here, and answers
//! with what it has done so far. All else is left to end.

use parking_lot::Mutex;
use std::collections::VecDeque;

/// Most are answered before anybody looks, or never look; so only the last count. Another that is pushed out ends later.
const KEPT: usize = 64;

/// Numbers of requests, which never come again.
#[derive(Default)]
pub(in crate::transport) struct Interrupts(Mutex<VecDeque<u64>>);

impl Interrupts {
    pub(super) fn add(&self, unique: u64) {
        let mut last = self.0.lock();
        if last.len() == KEPT {
            last.pop_front();
        }
        last.push_back(unique);
    }

    pub(super) fn has(&self, unique: u64) -> bool {
        self.0.lock().contains(&unique)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_requests_that_were_interrupted_are_known() {
        let interrupts = Interrupts::default();
        let last = 2 * KEPT as u64;
        (1..=last).for_each(|unique| interrupts.add(unique));
        assert!(interrupts.has(last) && interrupts.has(last - KEPT as u64 + 1));
        assert!(!interrupts.has(last - KEPT as u64) && !interrupts.has(last + 1));
    }
}
