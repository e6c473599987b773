//! What the engine would do with a request of a queue, and why, in words.
//!
//! It asks the functions that the engine asks ([`policy`](crate::policy)), with facts gathered by
//! the code that gathers them for real requests, and writes down each answer. It holds no inode lock, so
//! on a file in use it tells what would have happened at that moment.

use crate::api::file::File;
use crate::io::direct::Wait;
use crate::io::direct::atomic::{self, Below};
use crate::io::direct::iter::Pieces;
use crate::io::direct::policy::{
    self, BlockState, IoLock, LockMode, Plan, Policy, Verdict, WriteFacts,
};
use crate::io::direct::simple;
use crate::io::direct::write::{Memory, WriteRequest};
use crate::map::{MapKind, Mapping};
use crate::sync::slot::Slot;
use crate::{CompletionMode, Error, Result};
use serde::Serialize;

/// Which way a request goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// From the file.
    Read,
    /// To the file.
    Write,
    /// To the file, so that a crash leaves all or nothing ([`File::write_at_atomic`]).
    AtomicWrite,
}

/// One step of a decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Step {
    /// What was asked: `entry lock`, `alignment`, `mapping` and so on.
    pub question: &'static str,
    /// What the answer was, and why.
    pub answer: String,
}

/// What would become of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Explanation {
    /// Read or write.
    pub direction: Direction,
    /// First byte.
    pub offset: u64,
    /// Length in bytes; of a write that passes the largest size, what is written of it.
    pub len: usize,
    /// Whose rules.
    pub policy: Policy,
    /// What the rules were asked about, for a write that got so far.
    pub facts: Option<WriteFacts>,
    /// The lock under which the request is served in the end.
    pub lock: LockMode,
    /// What becomes of the lock for the I/O.
    pub io_lock: IoLock,
    /// Whether the request starts shared and restarts exclusive.
    pub restarts: bool,
    /// Whether it waits for direct I/O in flight on the file.
    pub drains: bool,
    /// Whether an asynchronous request is made to wait under the lock.
    pub waits: bool,
    /// Whether a queue's first attempt, which does not wait, ends in EAGAIN.
    pub would_block: bool,
    /// Whether it is a write that is not direct I/O, since the content lies in the inode or the edges are not whole
    /// logical blocks: a no-wait attempt ends in EOPNOTSUPP.
    pub no_direct_path: bool,
    /// Whether the map is committed before the data goes to the device: an atomic write of several blocks may ask for it.
    pub commits_first: bool,
    /// Whether it is a read that takes the simple path.
    pub simple: bool,
    /// Why the engine refuses the request, if it does.
    pub refused: Option<String>,
    /// The decision, step by step.
    pub steps: Vec<Step>,
}

impl Explanation {
    fn new(direction: Direction, offset: u64, len: usize, policy: Policy) -> Explanation {
        Explanation {
            direction,
            offset,
            len,
            policy,
            facts: None,
            lock: LockMode::None,
            io_lock: IoLock::Keep,
            restarts: false,
            drains: false,
            waits: false,
            would_block: false,
            no_direct_path: false,
            commits_first: false,
            simple: false,
            refused: None,
            steps: Vec::new(),
        }
    }

    fn step(&mut self, question: &'static str, answer: impl Into<String>) {
        self.steps.push(Step {
            question,
            answer: answer.into(),
        });
    }

    fn refuse(&mut self, error: &Error) {
        self.step("outcome", format!("refused: {error}"));
        self.refused = Some(error.to_string());
    }
}

pub(crate) fn explain(
    file: &File,
    direction: Direction,
    offset: u64,
    len: usize,
    policy: Policy,
) -> Result<Explanation> {
    let mut told = Explanation::new(direction, offset, len, policy);
    told.step("policy", format!("{policy}: {}", policy.summary()));
    match direction {
        Direction::Read => explain_read(file, &mut told)?,
        Direction::Write | Direction::AtomicWrite => explain_write(file, &mut told)?,
    }
    Ok(told)
}

fn explain_read(file: &File, told: &mut Explanation) -> Result<()> {
    let (mount, inode) = (&*file.mount, &*file.inode);
    (told.lock, told.io_lock) = policy::read_lock(told.policy);
    told.step("entry lock", read_lock_words(told.lock));
    let size = inode.i_size();
    if told.offset >= size || told.len == 0 {
        told.step(
            "size",
            format!("the file ends at {size}: 0 bytes, no device request"),
        );
        return Ok(());
    }
    let aligned = describe_alignment(file, told);
    if !aligned && file.access.direct && !inode.has_inline_data() {
        told.refuse(&mount.misaligned("read", told.offset, told.len));
        return Ok(());
    }
    let bytes = (size - told.offset).min(told.len as u64) as usize;
    told.step(
        "size",
        format!(
            "i_size {size}: {bytes} of {} bytes are inside the file",
            told.len
        ),
    );
    describe_pieces(file, told, told.offset, bytes)?;
    told.simple = told.lock == LockMode::Shared
        && mount.knobs.sample().simple()
        && (1..=mount.block_bytes()).contains(&(told.len as u64))
        && simple::locate_read(mount, inode, told.offset, told.len).is_some();
    let why = match (told.simple, mount.knobs.sample().simple()) {
        (true, _) => "simple: at most one block, inside i_size, one mapping of written blocks",
        (false, false) => "general: the simple path is switched off",
        (false, true) if told.lock != LockMode::Shared => {
            "general: the simple path is for reads under the shared lock, which the policy does not take"
        }
        (false, true) => {
            "general: longer than a block, past i_size, misaligned, or not one written mapping"
        }
    };
    told.step("path", why);
    told.step(
        "lock during the I/O",
        io_lock_words(told.lock, told.io_lock),
    );
    let completion = match aligned || inode.has_inline_data() {
        true => "inline; in a worker only to report an error",
        false => "a queue gives it to a worker: its edges are copied",
    };
    told.step("completion", completion);
    Ok(())
}

fn explain_write(file: &File, told: &mut Explanation) -> Result<()> {
    if told.len == 0 {
        told.step("size", "0 bytes: nothing to do");
        return Ok(());
    }
    let atomic = told.direction == Direction::AtomicWrite;
    let room = file.room_at(told.offset, told.len);
    let is_short = !atomic && room < told.len;
    if is_short {
        let most = told.offset + room as u64;
        let answer = format!("no file is larger than {most} bytes: {room} bytes are written");
        told.step("size", answer);
        told.len = room;
    }
    describe_alignment(file, told);
    let request = request_of(file, told);
    if atomic && let Err(error) = atomic::judge(&request) {
        told.refuse(&error);
        return Ok(());
    }
    if file.inode.has_inline_data() && file.inode.holds_plain_bytes() {
        return explain_inline_write(told, &request);
    }
    let entry = policy::entry_lock(told.policy, request.entry_facts());
    told.step("entry lock", entry_words(entry, &request));
    // Who asks what would be has opened it for reading, as a rule.
    let able = match &file.mount.restricted {
        Some(why) => Err(Error::ReadOnly(why.clone())),
        None if file.inode.is_append_only() && !request.access.append => {
            Err(Error::NotPermitted("the file is append-only".into()))
        }
        None => request.check_ability(),
    };
    let pos = able.and_then(|()| request.position());
    let pos = pos.and_then(|pos| match atomic {
        true => atomic::check_place(&request, pos).map(|()| pos),
        false => Ok(pos),
    });
    let pos = match pos {
        Ok(pos) => pos,
        Err(error) => {
            told.refuse(&error);
            return Ok(());
        }
    };
    let (facts, first) = request.facts(pos)?;
    told.facts = Some(facts);
    describe_pieces(file, told, pos, told.len)?;
    told.step("facts", facts_words(&facts));
    let plain = request.is_plain(pos, &facts, first)?;
    let alone = !plain && request.must_be_alone(pos, &facts);
    let mut plan = decide(told, entry, &facts, alone);
    if facts.extending && !facts.extent_mapped {
        start_over(told, &mut plan, &facts, "blocks of a file without extents");
    }
    if atomic && !explain_atomic(told, &request, (pos, &facts, &first), &mut plan)? {
        return Ok(());
    }
    told.lock = plan.lock;
    told.io_lock = plan.io_lock;
    told.drains = plan.drain;
    told.waits = plan.wait;
    told.no_direct_path = !request.device_aligned(pos);
    let syncs =
        request.syncs_after(request.durability(&first, pos)) || atomic && request.must_be_durable();
    let waits = told.restarts || plan.drain || plan.wait || !plain || syncs;
    let waits = waits || told.commits_first || is_short;
    told.would_block = waits && !told.no_direct_path;
    plan_steps(told, &plan);
    no_wait_step(told);
    match plain {
        true => told.step("completion", completion_words(file)),
        false => told.step("metadata", metadata_words(&request, pos, &facts)),
    }
    Ok(())
}

/// What an atomic write takes beside the rest; false if it is refused.
fn explain_atomic(
    told: &mut Explanation,
    request: &WriteRequest<'_>,
    (pos, facts, first): (u64, &WriteFacts, &Mapping),
    plan: &mut Plan,
) -> Result<bool> {
    let row = atomic::row_of(request, pos)?;
    let at = match row.map(|row| (row.below, row.device_offset)) {
        _ if request.is_plain(pos, facts, *first)? => atomic::locate(request, pos, first).map(Some),
        Some((Below::Written | Below::Unwritten, at)) => request.unit_at(at).map(Some),
        Some((Below::Hole | Below::PartOfCluster, _)) | None => Ok(None),
    };
    let at = match at {
        Ok(at) => at,
        Err(error) => {
            told.refuse(&error);
            return Ok(false);
        }
    };
    let why = match row {
        None => Some("several kinds of blocks"),
        Some(row) if row.is_shared_by_blocks(request.mount.block_bytes()) => {
            Some("several blocks without data, to which others could write beside it")
        }
        Some(_) => None,
    };
    if let Some(why) = why {
        start_over(told, plan, facts, why);
    }
    let where_to = match (at, row) {
        (Some(at), _) => format!("one write, at device offset {at}"),
        (None, Some(_)) => "one write, to the blocks that it is given".to_owned(),
        (None, None) => {
            "what holds no data is filled with zeros, so that all is written; then one write"
                .to_owned()
        }
    };
    told.step("atomic", where_to);
    // Zeros that were filled in are in the map only.
    told.commits_first = row.is_none_or(|row| atomic::commits_first(request, row.below));
    let commit = match told.commits_first {
        true => {
            "the map, before the data: one on the device that leads to a part would show a part after a crash"
        }
        false => "none before the data: no map on the device leads to a part",
    };
    told.step("commit", commit);
    Ok(true)
}

/// A write that finds out later that it must be alone starts over, unless it is.
fn start_over(told: &mut Explanation, plan: &mut Plan, facts: &WriteFacts, why: &str) {
    if (plan.lock, plan.io_lock) == (LockMode::Exclusive, IoLock::Keep) {
        return;
    }
    told.restarts = true;
    *plan = Plan {
        io_lock: IoLock::Keep,
        drain: true,
        ..exclusive(told.policy, facts)
    };
    let restart = format!("{why}: unlocks, locks exclusive, and restarts every check");
    told.step("check", restart);
}

fn exclusive(policy: Policy, facts: &WriteFacts) -> Plan {
    match policy::check(policy, LockMode::Exclusive, facts) {
        Verdict::Proceed(plan) => plan,
        Verdict::Restart => unreachable!("nothing is stronger than the exclusive lock"),
    }
}

fn explain_inline_write(told: &mut Explanation, request: &WriteRequest<'_>) -> Result<()> {
    (told.lock, told.drains, told.no_direct_path) = (LockMode::Exclusive, true, true);
    told.step("entry lock", "exclusive: the content lies in the inode");
    match request.place() {
        Ok(_) => {
            told.step(
                "mapping",
                "written into the inode while it fits; else one transaction moves the content out to a block, and the write goes on as to any file",
            );
            no_wait_step(told);
        }
        Err(error) => told.refuse(&error),
    }
    Ok(())
}

fn request_of<'a>(file: &'a File, told: &Explanation) -> WriteRequest<'a> {
    WriteRequest {
        mount: &file.mount,
        inode: &file.inode,
        access: file.access,
        policy: told.policy,
        offset: told.offset,
        len: told.len,
        // The caller's memory is taken to be aligned.
        memory: Memory {
            addresses: 0,
            lengths: told.len as u64,
        },
        asynchronous: true,
        wait: Wait::Block,
        slot: Slot::NONE,
    }
}

/// `alone`: parts of blocks must be filled up, whatever the policy says.
fn decide(told: &mut Explanation, entry: LockMode, facts: &WriteFacts, alone: bool) -> Plan {
    let exclusive = |facts| {
        let plan = exclusive(told.policy, facts);
        match alone {
            true => plan.alone(facts),
            false => plan,
        }
    };
    match policy::check(told.policy, entry, facts) {
        Verdict::Proceed(plan) if entry != LockMode::Exclusive && !alone => {
            told.step("check", format!("goes on {}", lock_name(plan.lock)));
            plan
        }
        Verdict::Proceed(_) if entry == LockMode::Exclusive => {
            let plan = exclusive(facts);
            told.step("check", format!("goes on {}", lock_name(plan.lock)));
            plan
        }
        _ => {
            let plan = exclusive(facts);
            told.restarts = true;
            told.step(
                "check",
                "cannot stay shared: unlocks, locks exclusive, and restarts every check",
            );
            plan
        }
    }
}

fn metadata_words(request: &WriteRequest<'_>, pos: u64, facts: &WriteFacts) -> &'static str {
    match (facts.blocks, facts.extending) {
        (BlockState::Written, false) if !request.device_aligned(pos) => {
            "blocks are read, completed and written back where the edges are not whole logical blocks"
        }
        (BlockState::Written, false) => {
            "a transaction takes the privileges (setuid, setgid, capabilities); then the data is overwritten"
        }
        (BlockState::Unwritten, _) => {
            "the data is written first; then a transaction makes the blocks written"
        }
        (_, true) => {
            "blocks are claimed where there are none, and the data written; then a transaction maps them and moves i_size"
        }
        (_, false) => {
            "blocks are claimed for holes, and the data written; then a transaction per run maps them"
        }
    }
}

fn plan_steps(told: &mut Explanation, plan: &Plan) {
    let drain = if plan.drain {
        "waits for direct I/O in flight on the file"
    } else {
        "no"
    };
    told.step("drain", drain);
    let wait = if plan.wait {
        "yes, also if asynchronous"
    } else {
        "no: an asynchronous request is only submitted"
    };
    told.step("waits for its own I/O under the lock", wait);
    told.step(
        "lock during the I/O",
        io_lock_words(plan.lock, plan.io_lock),
    );
}

fn no_wait_step(told: &mut Explanation) {
    let answer = match (told.no_direct_path, told.would_block) {
        (true, _) => "EOPNOTSUPP: it is not direct I/O; a queue gives it to a worker",
        (false, true) => "EAGAIN: a worker takes it",
        (false, false) => "served in the caller's thread",
    };
    told.step("no-wait attempt", answer);
}

/// Whether the device's logical block divides the request.
fn describe_alignment(file: &File, told: &mut Explanation) -> bool {
    let mount = &*file.mount;
    let block = mount.block_bytes();
    if !mount.aligned(told.offset | told.len as u64) {
        let logical = mount.logical_mask + 1;
        told.step(
            "alignment",
            format!("not a multiple of the device's logical block of {logical} bytes"),
        );
        return false;
    }
    let whole = (told.offset | told.len as u64).is_multiple_of(block);
    told.step(
        "alignment",
        if whole {
            format!("whole file-system blocks of {block} bytes")
        } else {
            format!(
                "whole logical blocks, but not whole file-system blocks of {block} bytes: unaligned"
            )
        },
    );
    true
}

/// Pieces that are spelt out before the rest is only counted.
const SPELT_PIECES: usize = 4;

fn describe_pieces(file: &File, told: &mut Explanation, pos: u64, bytes: usize) -> Result<()> {
    if file.inode.has_inline_data() {
        told.step("mapping", "the data lies in the inode");
        return Ok(());
    }
    let mut words = Vec::new();
    let mut more = 0;
    for piece in Pieces::new(&file.mount, &file.inode, pos, bytes, Wait::Block) {
        let piece = piece?;
        if words.len() == SPELT_PIECES {
            more += 1;
            continue;
        }
        words.push(match piece.kind {
            MapKind::Hole => format!("{} bytes of hole", piece.len),
            MapKind::Mapped => format!(
                "{} bytes written, at device offset {}",
                piece.len, piece.device_offset
            ),
            MapKind::Unwritten => format!(
                "{} bytes unwritten, at device offset {}",
                piece.len, piece.device_offset
            ),
        });
    }
    if more > 0 {
        words.push(format!("{more} more mappings"));
    }
    told.step("mapping", words.join("; "));
    Ok(())
}

fn lock_name(lock: LockMode) -> &'static str {
    match lock {
        LockMode::None => "without the inode lock",
        LockMode::Shared => "with the inode lock shared",
        LockMode::Exclusive => "with the inode lock exclusive",
    }
}

fn read_lock_words(lock: LockMode) -> &'static str {
    match lock {
        LockMode::None => "none: the in-flight count alone keeps a truncate away",
        LockMode::Shared => "shared",
        LockMode::Exclusive => "exclusive, for mapping and submission",
    }
}

fn entry_words(entry: LockMode, request: &WriteRequest<'_>) -> String {
    let facts = request.entry_facts();
    let why = match (entry, facts.past_eof, facts.aligned) {
        (LockMode::Exclusive, true, _) => "the write passes i_size, or the policy starts so",
        (LockMode::Exclusive, false, false) => "the write is unaligned, or the policy starts so",
        (LockMode::Exclusive, false, true) => "the policy starts so",
        _ => "a hint: the checks under the lock decide again",
    };
    format!(
        "{}: {why}",
        if entry == LockMode::Exclusive {
            "exclusive"
        } else {
            "shared"
        }
    )
}

fn facts_words(facts: &WriteFacts) -> String {
    let mut words = vec![match facts.blocks {
        BlockState::Written => "overwrite of written blocks by one mapping",
        BlockState::Unwritten => "overwrite of unwritten blocks by one mapping",
        BlockState::Mixed => "not an overwrite by one mapping (holes, or several extents)",
    }];
    let flags = [
        (!facts.aligned, "unaligned"),
        (facts.extending, "extending"),
        (facts.starts_past_eof, "starts past EOF"),
        (facts.reaches_eof && !facts.extending, "ends exactly at EOF"),
        (facts.partial_unwritten, "a partial block needs zeroing"),
        (facts.strips_privileges, "strips privileges"),
        (!facts.extent_mapped, "indirect-mapped"),
    ];
    words.extend(flags.iter().filter(|(set, _)| *set).map(|(_, word)| *word));
    words.join(", ")
}

fn io_lock_words(lock: LockMode, io_lock: IoLock) -> String {
    match io_lock {
        IoLock::Keep => format!(
            "kept {} until a synchronous request is done, or an asynchronous one submitted",
            lock_short(lock)
        ),
        IoLock::Downgrade => "downgraded to shared".into(),
        IoLock::Release => "released; the in-flight count protects the I/O".into(),
    }
}

fn lock_short(lock: LockMode) -> &'static str {
    match lock {
        LockMode::None => "unlocked",
        LockMode::Shared => "shared",
        LockMode::Exclusive => "exclusive",
    }
}

fn completion_words(file: &File) -> &'static str {
    match file.mount.knobs.sample().completion() {
        CompletionMode::Inline => {
            "inline: an overwrite of written blocks has nothing left to do that sleeps"
        }
        CompletionMode::Deferred => "deferred to a worker, by option",
    }
}
