//! The locking policies of direct I/O, as pure functions of facts.
//!
//! Each policy is one era or proposal of the kernels' direct-I/O paths. The engine asks
//! [`entry_lock`] which lock to take, gathers [`WriteFacts`] under it, and asks [`check`] what to
//! do; `explain` asks the same functions. Nothing here looks at a clock, a lock or a device, so a
//! table test can state every rule.
//!
//! What it is not: the place where alignment, permissions or limits are checked; those come
//! before, and are the same under every policy.

use std::fmt;
use std::str::FromStr;

/// Which era's rules decide about locks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(into = "&'static str")]
#[non_exhaustive]
pub enum Policy {
    /// `pre49`, before 4.9 ("w/o"): readers exclusive while they submit, writers throughout.
    Pre49,
    /// `pre49+nolock` ("w/o+"): with dioread_nolock: readers unlocked, aligned overwrites unlock
    /// for the I/O.
    Pre49Nolock,
    /// `parallel`, 4.9 to 5.4 ("w/"): readers shared through the whole I/O, writers as before.
    Parallel,
    /// `iomap55`, 5.5: writers exclusive first, downgraded for an overwrite under dioread_nolock.
    Iomap55,
    /// `ilock`, the 2019 proposal: shared attempt, then always exclusive without dioread_nolock.
    Ilock,
    /// `ilock+`, the same with dioread_nolock: aligned overwrites stay shared.
    IlockPlus,
    /// `ilocknew`, its second version: exclusive from the start without dioread_nolock.
    IlockNew,
    /// `ilocknew+`, the same with dioread_nolock.
    IlockNewPlus,
    /// `v5.6` (also `v6.2`), 5.6 to 6.2: aligned overwrites of written blocks shared.
    V56,
    /// `v6.3`: also aligned overwrites of unwritten blocks.
    V63,
    /// `v6.4` (also `v6.6`), 6.4 to 6.18: also unaligned overwrites of written blocks.
    V64,
    /// `newest`, 2026: everything inside the file that needs no zeroing.
    Newest,
    /// `best`: as `newest`, but aligned writes that make the file longer without a gap stay shared, so
    /// that they keep no reader waiting; and an unaligned write that ends at or past EOF is
    /// exclusive, because zeroing behind it could hit a later extending write (both as in XFS). The
    /// default.
    #[default]
    Best,
    /// `xfs`: XFS's rules: optimistic shared, retry exclusive; demotes aligned writes before the I/O.
    Xfs,
}

impl Policy {
    /// Every policy, oldest first.
    pub const ALL: [Policy; 14] = [
        Policy::Pre49,
        Policy::Pre49Nolock,
        Policy::Parallel,
        Policy::Iomap55,
        Policy::Ilock,
        Policy::IlockPlus,
        Policy::IlockNew,
        Policy::IlockNewPlus,
        Policy::V56,
        Policy::V63,
        Policy::V64,
        Policy::Newest,
        Policy::Best,
        Policy::Xfs,
    ];

    /// The name that options and reports use.
    pub const fn id(self) -> &'static str {
        match self {
            Policy::Pre49 => "pre49",
            Policy::Pre49Nolock => "pre49+nolock",
            Policy::Parallel => "parallel",
            Policy::Iomap55 => "iomap55",
            Policy::Ilock => "ilock",
            Policy::IlockPlus => "ilock+",
            Policy::IlockNew => "ilocknew",
            Policy::IlockNewPlus => "ilocknew+",
            Policy::V56 => "v5.6",
            Policy::V63 => "v6.3",
            Policy::V64 => "v6.4",
            Policy::Newest => "newest",
            Policy::Best => "best",
            Policy::Xfs => "xfs",
        }
    }

    /// Other names of the same rules: later kernels that kept them, and the heads of the mails' tables.
    pub const fn aliases(self) -> &'static [&'static str] {
        match self {
            Policy::Pre49 => &["w/o"],
            Policy::Pre49Nolock => &["w/o+"],
            Policy::Parallel => &["w/"],
            Policy::Iomap55 => &["v5.5"],
            Policy::V56 => &["v6.2"],
            Policy::V64 => &["v6.6", "v6.18"],
            _ => &[],
        }
    }

    /// One line on what the policy does.
    pub const fn summary(self) -> &'static str {
        match self {
            Policy::Pre49 => {
                "before 4.9: reads exclusive until submitted, writes exclusive throughout"
            }
            Policy::Pre49Nolock => {
                "before 4.9 with dioread_nolock: reads unlocked, aligned overwrites unlock for the I/O"
            }
            Policy::Parallel => "4.9 to 5.4: reads shared throughout, writes exclusive throughout",
            Policy::Iomap55 => {
                "5.5: writes exclusive, downgraded for aligned overwrites with dioread_nolock"
            }
            Policy::Ilock => {
                "2019 proposal without dioread_nolock: writes start shared, always restart exclusive"
            }
            Policy::IlockPlus => {
                "2019 proposal with dioread_nolock: aligned overwrites of written blocks shared"
            }
            Policy::IlockNew => {
                "second 2019 proposal without dioread_nolock: writes exclusive from the start"
            }
            Policy::IlockNewPlus => {
                "second 2019 proposal with dioread_nolock: aligned overwrites shared"
            }
            Policy::V56 => {
                "5.6 to 6.2: aligned overwrites of written blocks shared; unaligned exclusive and drained"
            }
            Policy::V63 => "6.3: aligned overwrites of unwritten blocks shared too",
            Policy::V64 => "6.4 to 6.18: unaligned overwrites of written blocks shared too",
            Policy::Newest => {
                "2026: all aligned writes inside the file, and unaligned ones that need no zeroing, shared"
            }
            Policy::Best => {
                "newest, but aligned extending writes shared, and unaligned ones that end at or past EOF exclusive, as in XFS"
            }
            Policy::Xfs => {
                "XFS: aligned writes and unaligned overwrites before EOF shared, others exclusive; aligned ones demoted before the I/O"
            }
        }
    }

    pub(crate) fn from_u8(value: u8) -> Policy {
        Policy::ALL
            .get(usize::from(value))
            .copied()
            .unwrap_or_default()
    }

    pub(crate) fn to_u8(self) -> u8 {
        self as u8
    }

    /// What this policy makes of the mount's dioread_nolock.
    fn nolock(self, mount: bool) -> bool {
        match self {
            Policy::Pre49Nolock | Policy::IlockPlus | Policy::IlockNewPlus => true,
            Policy::Pre49 | Policy::Parallel | Policy::Ilock | Policy::IlockNew => false,
            _ => mount,
        }
    }
}

impl From<Policy> for &'static str {
    fn from(policy: Policy) -> Self {
        policy.id()
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.id())
    }
}

impl FromStr for Policy {
    type Err = String;

    fn from_str(name: &str) -> Result<Policy, String> {
        let known = |policy: &&Policy| policy.id() == name || policy.aliases().contains(&name);
        Policy::ALL.iter().find(known).copied().ok_or_else(|| {
            let ids: Vec<&str> = Policy::ALL.iter().map(|policy| policy.id()).collect();
            format!("no policy '{name}'; there are {}", ids.join(", "))
        })
    }
}

/// How the inode's lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum LockMode {
    /// Not at all.
    None,
    /// With other sharers.
    Shared,
    /// Alone.
    Exclusive,
}

/// What becomes of the lock when the I/O itself starts. (An asynchronous request drops whatever it
/// still holds once it is submitted.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum IoLock {
    /// Kept until the I/O is done.
    Keep,
    /// Exclusive becomes shared.
    Downgrade,
    /// Dropped; the in-flight count alone protects the I/O.
    Release,
}

/// What one lookup of the whole block range of a write says, before any of it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum BlockState {
    /// One extent of written blocks covers it, inside i_size.
    Written,
    /// One extent of unwritten blocks covers it, inside i_size.
    Unwritten,
    /// Holes, several extents, or past i_size: not an overwrite in the kernels' sense.
    Mixed,
}

/// What is known of a write before any lock is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryFacts {
    /// Position, length and memory are multiples of the file-system block.
    pub aligned: bool,
    /// The write ends past i_size.
    pub past_eof: bool,
    /// The write ends at i_size or past it.
    pub reaches_eof: bool,
    /// Option dioread_nolock of the mount.
    pub dioread_nolock: bool,
}

/// What is known of a write under its lock. Each field as in `docs/SEMANTICS.md` A2.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct WriteFacts {
    /// Position, length and memory are multiples of the file-system block.
    pub aligned: bool,
    /// The write ends past i_size or past i_disksize.
    pub extending: bool,
    /// The write ends at i_size or past it.
    pub reaches_eof: bool,
    /// The write begins past i_size, so that a gap must be zeroed.
    pub starts_past_eof: bool,
    /// What the whole range is backed by.
    pub blocks: BlockState,
    /// The first or last block is written in part, and is a hole or unwritten.
    pub partial_unwritten: bool,
    /// The write must strip set-user-ID, set-group-ID or file capabilities first.
    pub strips_privileges: bool,
    /// The caller does not wait for the result in this call.
    pub asynchronous: bool,
    /// The file is mapped by extents, not by indirect blocks.
    pub extent_mapped: bool,
    /// Option dioread_nolock of the mount.
    pub dioread_nolock: bool,
}

impl WriteFacts {
    fn overwrite(&self) -> bool {
        !self.extending && self.blocks != BlockState::Mixed
    }

    fn written_overwrite(&self) -> bool {
        !self.extending && self.blocks == BlockState::Written
    }

    /// Part of a block that is not written must be zeroed around the data.
    fn needs_zeroing(&self) -> bool {
        !self.aligned && (self.extending || self.partial_unwritten)
    }
}

/// How to go on with a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Plan {
    /// The lock under which the checks were passed.
    pub lock: LockMode,
    /// What becomes of it for the I/O.
    pub io_lock: IoLock,
    /// Wait for direct I/O in flight on the file first.
    pub drain: bool,
    /// Wait for this I/O before the lock is dropped, even if the request is asynchronous.
    pub wait: bool,
}

impl Plan {
    /// The same for a write that must be alone whatever the policy says.
    #[inline]
    pub(crate) fn alone(self, facts: &WriteFacts) -> Plan {
        let gives_up_the_lock = facts.starts_past_eof && facts.aligned;
        Plan {
            drain: true,
            io_lock: match gives_up_the_lock {
                true => self.io_lock,
                false => IoLock::Keep,
            },
            ..self
        }
    }
}

/// What [`check`] decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Go on.
    Proceed(Plan),
    /// Drop the shared lock, take it exclusive, and restart every check.
    Restart,
}

/// The lock that a read takes, and what becomes of it for the I/O.
pub const fn read_lock(policy: Policy) -> (LockMode, IoLock) {
    match policy {
        Policy::Pre49 => (LockMode::Exclusive, IoLock::Release),
        Policy::Pre49Nolock => (LockMode::None, IoLock::Release),
        _ => (LockMode::Shared, IoLock::Keep),
    }
}

/// The lock that a write takes first. A hint only: [`check`] decides again under the lock.
#[inline]
pub fn entry_lock(policy: Policy, facts: EntryFacts) -> LockMode {
    let exclusive = match policy {
        Policy::Pre49 | Policy::Pre49Nolock | Policy::Parallel | Policy::Iomap55 => true,
        Policy::Ilock | Policy::IlockPlus | Policy::V56 | Policy::V63 => {
            facts.past_eof || !facts.aligned
        }
        Policy::IlockNew | Policy::IlockNewPlus => {
            facts.past_eof || !facts.aligned || !policy.nolock(facts.dioread_nolock)
        }
        Policy::V64 | Policy::Newest => facts.past_eof,
        Policy::Best => !facts.aligned && facts.reaches_eof,
        Policy::Xfs => !facts.aligned && facts.reaches_eof,
    };
    if exclusive {
        LockMode::Exclusive
    } else {
        LockMode::Shared
    }
}

/// What to do with a write that has passed its other checks under `held`.
#[inline]
pub fn check(policy: Policy, held: LockMode, facts: &WriteFacts) -> Verdict {
    if held == LockMode::Shared {
        if !may_stay_shared(policy, facts) {
            return Verdict::Restart;
        }
        return Verdict::Proceed(Plan {
            lock: LockMode::Shared,
            io_lock: IoLock::Keep,
            drain: false,
            wait: false,
        });
    }
    Verdict::Proceed(exclusive_plan(policy, facts))
}

fn may_stay_shared(policy: Policy, facts: &WriteFacts) -> bool {
    if facts.strips_privileges {
        return false;
    }
    let aligned_written = facts.aligned && facts.written_overwrite();
    match policy {
        Policy::Pre49 | Policy::Pre49Nolock | Policy::Parallel | Policy::Iomap55 => false,
        Policy::Ilock | Policy::IlockPlus | Policy::IlockNew | Policy::IlockNewPlus => {
            policy.nolock(facts.dioread_nolock) && aligned_written
        }
        Policy::V56 => aligned_written,
        Policy::V63 => facts.aligned && facts.overwrite(),
        Policy::V64 => facts.overwrite() && (facts.aligned || facts.blocks == BlockState::Written),
        Policy::Newest => !facts.extending && !facts.needs_zeroing(),
        Policy::Best if facts.aligned => !facts.starts_past_eof,
        Policy::Best => !facts.needs_zeroing() && !facts.reaches_eof,
        Policy::Xfs if facts.aligned => !facts.starts_past_eof,
        Policy::Xfs => !facts.reaches_eof && facts.written_overwrite(),
    }
}

fn exclusive_plan(policy: Policy, facts: &WriteFacts) -> Plan {
    let unaligned = !facts.aligned;
    let (drain, wait) = match policy {
        Policy::Pre49 | Policy::Pre49Nolock | Policy::Parallel | Policy::Iomap55 => (
            unaligned && facts.asynchronous && facts.extent_mapped,
            (unaligned && facts.asynchronous) || facts.extending,
        ),
        Policy::Ilock
        | Policy::IlockPlus
        | Policy::IlockNew
        | Policy::IlockNewPlus
        | Policy::V56
        | Policy::V63 => (unaligned, unaligned || facts.extending),
        Policy::V64 => (
            unaligned && !facts.written_overwrite(),
            unaligned || facts.extending,
        ),
        Policy::Newest => (
            facts.needs_zeroing(),
            facts.needs_zeroing() || facts.extending,
        ),
        Policy::Best => {
            let zeroes = unaligned && (facts.needs_zeroing() || facts.reaches_eof);
            (zeroes, zeroes || facts.extending)
        }
        Policy::Xfs => (unaligned || facts.starts_past_eof, unaligned),
    };
    Plan {
        lock: LockMode::Exclusive,
        io_lock: exclusive_io_lock(policy, facts),
        drain,
        wait,
    }
}

fn exclusive_io_lock(policy: Policy, facts: &WriteFacts) -> IoLock {
    let aligned_written = facts.aligned && facts.written_overwrite();
    match policy {
        Policy::Pre49Nolock if aligned_written => IoLock::Release,
        Policy::Iomap55 if aligned_written && policy.nolock(facts.dioread_nolock) => {
            IoLock::Downgrade
        }
        Policy::Xfs if facts.aligned => IoLock::Downgrade,
        _ => IoLock::Keep,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An aligned overwrite of written blocks well inside the file, by a queue.
    const PLAIN: WriteFacts = WriteFacts {
        aligned: true,
        extending: false,
        reaches_eof: false,
        starts_past_eof: false,
        blocks: BlockState::Written,
        partial_unwritten: false,
        strips_privileges: false,
        asynchronous: true,
        extent_mapped: true,
        dioread_nolock: false,
    };

    /// The requests that the rows of the table are about.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Kind {
        AlignedWritten,
        AlignedUnwritten,
        AlignedHole,
        AlignedTwoExtents,
        UnalignedWritten,
        UnalignedUnwritten,
        UnalignedTwoExtents,
        UnalignedPartialHole,
        UnalignedToEof,
        AlignedExtending,
        UnalignedExtending,
        Setuid,
    }
    use Kind::*;

    const KINDS: [Kind; 12] = [
        AlignedWritten,
        AlignedUnwritten,
        AlignedHole,
        AlignedTwoExtents,
        UnalignedWritten,
        UnalignedUnwritten,
        UnalignedTwoExtents,
        UnalignedPartialHole,
        UnalignedToEof,
        AlignedExtending,
        UnalignedExtending,
        Setuid,
    ];

    fn facts(kind: Kind) -> WriteFacts {
        let unaligned = WriteFacts {
            aligned: false,
            ..PLAIN
        };
        let extending = WriteFacts {
            extending: true,
            reaches_eof: true,
            blocks: BlockState::Mixed,
            ..PLAIN
        };
        match kind {
            AlignedWritten => PLAIN,
            AlignedUnwritten => WriteFacts {
                blocks: BlockState::Unwritten,
                ..PLAIN
            },
            AlignedHole | AlignedTwoExtents => WriteFacts {
                blocks: BlockState::Mixed,
                ..PLAIN
            },
            UnalignedWritten => unaligned,
            UnalignedUnwritten => WriteFacts {
                blocks: BlockState::Unwritten,
                partial_unwritten: true,
                ..unaligned
            },
            UnalignedTwoExtents => WriteFacts {
                blocks: BlockState::Mixed,
                ..unaligned
            },
            UnalignedPartialHole => WriteFacts {
                blocks: BlockState::Mixed,
                partial_unwritten: true,
                ..unaligned
            },
            UnalignedToEof => WriteFacts {
                reaches_eof: true,
                ..unaligned
            },
            AlignedExtending => extending,
            UnalignedExtending => WriteFacts {
                aligned: false,
                partial_unwritten: true,
                ..extending
            },
            Setuid => WriteFacts {
                strips_privileges: true,
                ..PLAIN
            },
        }
    }

    /// Old policies drain for files of extents only: indirect maps had no unwritten blocks to convert.
    #[test]
    fn old_policies_drain_files_of_extents_only() {
        let drains = |policy, extent_mapped| {
            let facts = WriteFacts {
                extent_mapped,
                ..facts(UnalignedWritten)
            };
            exclusive_plan(policy, &facts).drain
        };
        for policy in [
            Policy::Pre49,
            Policy::Pre49Nolock,
            Policy::Parallel,
            Policy::Iomap55,
        ] {
            assert!(drains(policy, true) && !drains(policy, false), "{policy}");
        }
    }

    /// Which kinds keep the shared lock under a policy, given that it was taken.
    fn shared_kinds(policy: Policy, nolock: bool) -> Vec<Kind> {
        let stays = |kind: &Kind| {
            let facts = WriteFacts {
                dioread_nolock: nolock,
                ..facts(*kind)
            };
            check(policy, LockMode::Shared, &facts) != Verdict::Restart
        };
        KINDS.into_iter().filter(stays).collect()
    }

    #[test]
    fn shared_lock_kept_as_the_table_says() {
        let table: &[(Policy, &[Kind])] = &[
            (Policy::Pre49, &[]),
            (Policy::Pre49Nolock, &[]),
            (Policy::Parallel, &[]),
            (Policy::Iomap55, &[]),
            (Policy::Ilock, &[]),
            (Policy::IlockNew, &[]),
            (Policy::IlockPlus, &[AlignedWritten]),
            (Policy::IlockNewPlus, &[AlignedWritten]),
            (Policy::V56, &[AlignedWritten]),
            (Policy::V63, &[AlignedWritten, AlignedUnwritten]),
            (
                Policy::V64,
                &[
                    AlignedWritten,
                    AlignedUnwritten,
                    UnalignedWritten,
                    UnalignedToEof,
                ],
            ),
            (
                Policy::Newest,
                &[
                    AlignedWritten,
                    AlignedUnwritten,
                    AlignedHole,
                    AlignedTwoExtents,
                    UnalignedWritten,
                    UnalignedTwoExtents,
                    UnalignedToEof,
                ],
            ),
            (
                Policy::Best,
                &[
                    AlignedWritten,
                    AlignedUnwritten,
                    AlignedHole,
                    AlignedTwoExtents,
                    UnalignedWritten,
                    UnalignedTwoExtents,
                    AlignedExtending,
                ],
            ),
            (
                Policy::Xfs,
                &[
                    AlignedWritten,
                    AlignedUnwritten,
                    AlignedHole,
                    AlignedTwoExtents,
                    UnalignedWritten,
                    AlignedExtending,
                ],
            ),
        ];
        assert_eq!(table.len(), Policy::ALL.len());
        for (policy, kinds) in table {
            assert_eq!(shared_kinds(*policy, false), *kinds, "{policy}");
        }
    }

    #[test]
    fn dioread_nolock_changes_only_the_policies_that_ask() {
        for policy in Policy::ALL {
            assert_eq!(
                shared_kinds(policy, false),
                shared_kinds(policy, true),
                "{policy}"
            );
        }
        let asks = |nolock| {
            let facts = WriteFacts {
                dioread_nolock: nolock,
                ..PLAIN
            };
            exclusive_plan(Policy::Iomap55, &facts).io_lock
        };
        assert_eq!((asks(false), asks(true)), (IoLock::Keep, IoLock::Downgrade));
    }

    /// (kinds that drain, kinds that wait) once exclusive.
    fn alone_kinds(policy: Policy) -> (Vec<Kind>, Vec<Kind>) {
        let plan = |kind: &Kind| exclusive_plan(policy, &facts(*kind));
        (
            KINDS.into_iter().filter(|kind| plan(kind).drain).collect(),
            KINDS.into_iter().filter(|kind| plan(kind).wait).collect(),
        )
    }

    #[test]
    fn drain_and_wait_as_the_table_says() {
        let unaligned = vec![
            UnalignedWritten,
            UnalignedUnwritten,
            UnalignedTwoExtents,
            UnalignedPartialHole,
            UnalignedToEof,
            UnalignedExtending,
        ];
        let mut unaligned_or_extending = unaligned.clone();
        unaligned_or_extending.insert(5, AlignedExtending);
        for policy in [
            Policy::Pre49,
            Policy::Pre49Nolock,
            Policy::Parallel,
            Policy::Iomap55,
            Policy::Ilock,
            Policy::IlockPlus,
            Policy::IlockNew,
            Policy::IlockNewPlus,
            Policy::V56,
            Policy::V63,
        ] {
            let expected = (unaligned.clone(), unaligned_or_extending.clone());
            assert_eq!(alone_kinds(policy), expected, "{policy}");
        }
        let (drain, wait) = alone_kinds(Policy::V64);
        assert_eq!(
            drain,
            [
                UnalignedUnwritten,
                UnalignedTwoExtents,
                UnalignedPartialHole,
                UnalignedExtending
            ]
        );
        assert_eq!(wait, unaligned_or_extending);
        let (drain, wait) = alone_kinds(Policy::Newest);
        assert_eq!(
            drain,
            [UnalignedUnwritten, UnalignedPartialHole, UnalignedExtending]
        );
        assert_eq!(
            wait,
            [
                UnalignedUnwritten,
                UnalignedPartialHole,
                AlignedExtending,
                UnalignedExtending
            ]
        );
        let (drain, wait) = alone_kinds(Policy::Best);
        assert_eq!(
            drain,
            [
                UnalignedUnwritten,
                UnalignedPartialHole,
                UnalignedToEof,
                UnalignedExtending
            ]
        );
        let mut drain_or_extending = drain;
        drain_or_extending.insert(3, AlignedExtending);
        assert_eq!(wait, drain_or_extending);
        let (drain, wait) = alone_kinds(Policy::Xfs);
        assert_eq!((drain, wait), (unaligned.clone(), unaligned));
    }

    #[test]
    fn synchronous_unaligned_write_before_5_6_does_not_drain() {
        let facts = WriteFacts {
            asynchronous: false,
            ..facts(UnalignedPartialHole)
        };
        for policy in [Policy::Pre49, Policy::Parallel, Policy::Iomap55] {
            let plan = exclusive_plan(policy, &facts);
            assert!(!plan.drain && !plan.wait, "{policy}");
        }
    }

    #[test]
    fn privileges_to_strip_never_stay_shared_and_do_not_force_waiting() {
        for policy in Policy::ALL {
            assert_eq!(
                check(policy, LockMode::Shared, &facts(Setuid)),
                Verdict::Restart,
                "{policy}"
            );
            assert!(!exclusive_plan(policy, &facts(Setuid)).wait, "{policy}");
        }
    }

    fn entry(policy: Policy, aligned: bool, past_eof: bool, reaches_eof: bool) -> LockMode {
        let facts = EntryFacts {
            aligned,
            past_eof,
            reaches_eof,
            dioread_nolock: false,
        };
        entry_lock(policy, facts)
    }

    #[test]
    fn entry_lock_as_the_eras_say() {
        use LockMode::{Exclusive, Shared};
        // aligned inside, unaligned inside, unaligned up to EOF, aligned past EOF
        let table = [
            (Policy::Pre49, [Exclusive, Exclusive, Exclusive, Exclusive]),
            (
                Policy::Pre49Nolock,
                [Exclusive, Exclusive, Exclusive, Exclusive],
            ),
            (
                Policy::Parallel,
                [Exclusive, Exclusive, Exclusive, Exclusive],
            ),
            (
                Policy::Iomap55,
                [Exclusive, Exclusive, Exclusive, Exclusive],
            ),
            (Policy::Ilock, [Shared, Exclusive, Exclusive, Exclusive]),
            (Policy::IlockPlus, [Shared, Exclusive, Exclusive, Exclusive]),
            (
                Policy::IlockNew,
                [Exclusive, Exclusive, Exclusive, Exclusive],
            ),
            (
                Policy::IlockNewPlus,
                [Shared, Exclusive, Exclusive, Exclusive],
            ),
            (Policy::V56, [Shared, Exclusive, Exclusive, Exclusive]),
            (Policy::V63, [Shared, Exclusive, Exclusive, Exclusive]),
            (Policy::V64, [Shared, Shared, Shared, Exclusive]),
            (Policy::Newest, [Shared, Shared, Shared, Exclusive]),
            (Policy::Best, [Shared, Shared, Exclusive, Shared]),
            (Policy::Xfs, [Shared, Shared, Exclusive, Shared]),
        ];
        assert_eq!(table.len(), Policy::ALL.len());
        for (policy, expected) in table {
            let got = [
                entry(policy, true, false, false),
                entry(policy, false, false, false),
                entry(policy, false, false, true),
                entry(policy, true, true, true),
            ];
            assert_eq!(got, expected, "{policy}");
        }
    }

    #[test]
    fn io_lock_of_an_aligned_overwrite_once_exclusive() {
        for policy in Policy::ALL {
            let facts = WriteFacts {
                dioread_nolock: true,
                ..PLAIN
            };
            let expected = match policy {
                Policy::Pre49Nolock => IoLock::Release,
                Policy::Iomap55 | Policy::Xfs => IoLock::Downgrade,
                _ => IoLock::Keep,
            };
            assert_eq!(exclusive_plan(policy, &facts).io_lock, expected, "{policy}");
        }
    }

    #[test]
    fn read_locks_as_the_eras_say() {
        for policy in Policy::ALL {
            let expected = match policy {
                Policy::Pre49 => (LockMode::Exclusive, IoLock::Release),
                Policy::Pre49Nolock => (LockMode::None, IoLock::Release),
                _ => (LockMode::Shared, IoLock::Keep),
            };
            assert_eq!(read_lock(policy), expected, "{policy}");
        }
    }

    #[test]
    fn names_parse_back_and_aliases_too() {
        for policy in Policy::ALL {
            assert_eq!(policy.id().parse(), Ok(policy));
            for alias in policy.aliases() {
                assert_eq!(alias.parse(), Ok(policy));
            }
            assert_eq!(Policy::from_u8(policy.to_u8()), policy);
        }
        assert!("v9".parse::<Policy>().unwrap_err().contains("ilocknew+"));
    }
}
