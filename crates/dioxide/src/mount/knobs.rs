//! What may be switched while mounted. Each request samples it once, in one load.
//!
//! Beside the settings themselves the word holds what the short paths ask on every request; it is
//! computed by the pure functions of [`policy`](crate::policy) when a setting changes.

use crate::io::direct::policy::{
    self, BlockState, EntryFacts, IoLock, LockMode, Policy, Verdict, WriteFacts,
};
use crate::io::ioend::CompletionMode;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

/// The settings of a mount.
#[derive(Debug)]
pub(crate) struct Knobs {
    word: AtomicU32,
    dioread_nolock: bool,
    changing: Mutex<()>,
    /// Short paths that nothing takes any more. Changed under `changing`.
    refused: AtomicU32,
}

/// One sample of the settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sample(u32);

/// The low byte is the policy.
const DEFERRED: u32 = 1 << 8;
const SIMPLE: u32 = 1 << 9;
/// Small reads take the simple path, under the shared lock.
const SHORT_READS: u32 = 1 << 10;
/// Overwrites of written blocks stay shared: aligned ones, unaligned ones, and unaligned ones that
/// end exactly at EOF.
const SHARED_ALIGNED: u32 = 1 << 11;
const SHARED_UNALIGNED: u32 = 1 << 12;
const SHARED_UNALIGNED_AT_EOF: u32 = 1 << 13;

const SHORT_WRITES: u32 = SHARED_ALIGNED | SHARED_UNALIGNED | SHARED_UNALIGNED_AT_EOF;

impl Sample {
    fn new(
        policy: Policy,
        completion: CompletionMode,
        simple: bool,
        dioread_nolock: bool,
    ) -> Sample {
        let flags = [
            (DEFERRED, completion == CompletionMode::Deferred),
            (SIMPLE, simple),
            (
                SHORT_READS,
                simple && policy::read_lock(policy) == (LockMode::Shared, IoLock::Keep),
            ),
            (
                SHARED_ALIGNED,
                stays_shared(policy, true, false, dioread_nolock),
            ),
            (
                SHARED_UNALIGNED,
                stays_shared(policy, false, false, dioread_nolock),
            ),
            (
                SHARED_UNALIGNED_AT_EOF,
                stays_shared(policy, false, true, dioread_nolock),
            ),
        ];
        let set = flags.iter().filter(|(_, on)| *on).map(|(flag, _)| flag);
        Sample(u32::from(policy.to_u8()) | set.sum::<u32>())
    }

    pub(crate) fn policy(self) -> Policy {
        Policy::from_u8(self.0 as u8)
    }

    #[inline]
    pub(crate) fn completion(self) -> CompletionMode {
        if self.0 & DEFERRED != 0 {
            CompletionMode::Deferred
        } else {
            CompletionMode::Inline
        }
    }

    pub(crate) fn simple(self) -> bool {
        self.0 & SIMPLE != 0
    }

    #[inline(always)]
    pub(crate) fn short_reads(self) -> bool {
        self.0 & SHORT_READS != 0
    }

    /// Whether an overwrite of written blocks, with nothing to strip, stays shared.
    #[inline(always)]
    pub(crate) fn shared_overwrites(self, aligned: bool, reaches_eof: bool) -> bool {
        let flag = match (aligned, reaches_eof) {
            (true, _) => SHARED_ALIGNED,
            (false, false) => SHARED_UNALIGNED,
            (false, true) => SHARED_UNALIGNED_AT_EOF,
        };
        self.0 & flag != 0
    }
}

/// Asks the policy about an overwrite of one mapping of written blocks.
fn stays_shared(policy: Policy, aligned: bool, reaches_eof: bool, dioread_nolock: bool) -> bool {
    let entry = EntryFacts {
        aligned,
        past_eof: false,
        reaches_eof,
        dioread_nolock,
    };
    let facts = |asynchronous| WriteFacts {
        aligned,
        extending: false,
        reaches_eof,
        starts_past_eof: false,
        blocks: BlockState::Written,
        partial_unwritten: false,
        strips_privileges: false,
        asynchronous,
        extent_mapped: true,
        dioread_nolock,
    };
    let stays = |asynchronous| {
        policy::check(policy, LockMode::Shared, &facts(asynchronous)) != Verdict::Restart
    };
    policy::entry_lock(policy, entry) == LockMode::Shared && stays(false) && stays(true)
}

impl Knobs {
    pub(crate) fn new(
        policy: Policy,
        completion: CompletionMode,
        simple: bool,
        dioread_nolock: bool,
    ) -> Knobs {
        let sample = Sample::new(policy, completion, simple, dioread_nolock);
        Knobs {
            word: AtomicU32::new(sample.0),
            dioread_nolock,
            changing: Mutex::new(()),
            refused: AtomicU32::new(0),
        }
    }

    #[inline(always)]
    pub(crate) fn sample(&self) -> Sample {
        Sample(self.word.load(Ordering::Relaxed))
    }

    fn change(&self, change: impl FnOnce(&mut Policy, &mut CompletionMode, &mut bool)) {
        let _changing = self.changing.lock();
        let now = self.sample();
        let (mut policy, mut completion, mut simple) =
            (now.policy(), now.completion(), now.simple());
        change(&mut policy, &mut completion, &mut simple);
        let sample = Sample::new(policy, completion, simple, self.dioread_nolock);
        let refused = self.refused.load(Ordering::Relaxed);
        self.word.store(sample.0 & !refused, Ordering::Relaxed);
    }

    pub(crate) fn set_policy(&self, to: Policy) {
        self.change(|policy, _, _| *policy = to);
    }

    pub(crate) fn set_completion(&self, to: CompletionMode) {
        self.change(|_, completion, _| *completion = to);
    }

    /// No write takes a short path any more: the general one says why it is refused.
    pub(crate) fn refuse_writes(&self) {
        self.refuse(SHORT_WRITES);
    }

    /// Neither does a read.
    pub(crate) fn refuse_all(&self) {
        self.refuse(SHORT_WRITES | SHORT_READS);
    }

    fn refuse(&self, paths: u32) {
        let _changing = self.changing.lock();
        self.refused.fetch_or(paths, Ordering::Relaxed);
        self.word.fetch_and(!paths, Ordering::Relaxed);
    }

    pub(crate) fn set_simple(&self, to: bool) {
        self.change(|_, _, simple| *simple = to);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_change_one_at_a_time() {
        let knobs = Knobs::new(Policy::Pre49, CompletionMode::Deferred, true, false);
        assert!(!knobs.sample().short_reads(), "pre49 reads exclusive");
        knobs.set_policy(Policy::V56);
        assert!(knobs.sample().short_reads());
        knobs.set_simple(false);
        let now = knobs.sample();
        assert!(!now.short_reads());
        assert_eq!(now.policy(), Policy::V56);
        assert_eq!(now.completion(), CompletionMode::Deferred);
    }

    #[test]
    fn shared_overwrites_follow_the_policy() {
        let shared = |policy| {
            let now = Knobs::new(policy, CompletionMode::Inline, true, false).sample();
            [
                now.shared_overwrites(true, false),
                now.shared_overwrites(true, true),
                now.shared_overwrites(false, false),
                now.shared_overwrites(false, true),
            ]
        };
        assert_eq!(shared(Policy::Parallel), [false; 4]);
        assert_eq!(shared(Policy::V56), [true, true, false, false]);
        assert_eq!(shared(Policy::V64), [true; 4]);
        assert_eq!(shared(Policy::Best), [true, true, true, false]);
    }
}
