//! A process that keeps what it has open, and gets nothing else: for images that nobody vouches for.
//!
//! Two layers, because each has a gap that the other closes. seccomp lets only those system calls through that answering
//! requests takes: on descriptors that are open, memory, threads of this process, clocks. The rest fails with `EPERM`.
//! Landlock refuses every path, TCP port, abstract socket and signal to others, whichever call asks, those included that a filter
//! of system calls does not see. What a kernel's Landlock does not know yet (ports before Linux 6.7, sockets and signals before 6.12)
//! the filter refuses alone.
//!
//! Invariant: the process has one thread when it enters, and what is started later inherits both. Landlock binds the thread
//! that asks for it (before Linux 7.1), and a thread that stayed outside would be a way out for all.
//!
//! Such a process can no longer unmount: Landlock refuses changes of the mounts, and `fusermount3` cannot be run. Somebody
//! outside does that.
//!
//! Rejected: killing the process at the first call that is not let through. The run-time libraries try calls that they can
//! do without, and which these are changes with their versions.

use crate::Error;
use landlock::{ABI, Access, AccessFs, AccessNet, Ruleset, RulesetAttr, RulesetStatus, Scope};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter,
};
use std::collections::BTreeMap;
use std::fmt::Display;

/// Calls that need no look at their arguments.
const ALLOWED: &[libc::c_long] = &[
    // Descriptors that are open.
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_preadv2,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_pwritev2,
    libc::SYS_splice,
    libc::SYS_lseek,
    libc::SYS_fstat,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_sync_file_range,
    libc::SYS_fallocate,
    libc::SYS_flock,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_close,
    libc::SYS_ppoll,
    libc::SYS_sendto,
    libc::SYS_recvfrom,
    // Memory.
    libc::SYS_brk,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_msync,
    libc::SYS_mincore,
    libc::SYS_membarrier,
    // Threads.
    libc::SYS_clone3,
    libc::SYS_futex,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_restart_syscall,
    libc::SYS_exit,
    libc::SYS_exit_group,
    // Clocks and chance.
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_getrandom,
];

/// Calls that other machines do not have.
#[cfg(target_arch = "x86_64")]
const OLD: &[libc::c_long] = &[libc::SYS_poll, libc::SYS_dup2, libc::SYS_time];
#[cfg(not(target_arch = "x86_64"))]
const OLD: &[libc::c_long] = &[];

const BLKDISCARD: u64 = 0x1277;
const BLKZEROOUT: u64 = 0x127f;

fn refused(why: impl Display) -> Error {
    Error::Sandbox(why.to_string())
}

/// Confines this process for good.
///
/// # Errors
/// [`Error::Sandbox`] if the kernel cannot, or there is more than one thread. Some of it may be in force then.
pub fn enter() -> Result<(), Error> {
    let threads = threads().map_err(refused)?;
    if threads != 1 {
        return Err(refused(format_args!(
            "there are {threads} threads already, which would stay outside"
        )));
    }
    // Before anything is in force that could not be taken back.
    let programs = [threads_by_clone()?, calls()?];
    no_paths()?;
    programs
        .iter()
        .try_for_each(|program| apply_filter(program).map_err(refused))
}

/// How many threads this process has.
pub(crate) fn threads() -> std::io::Result<usize> {
    Ok(std::fs::read_dir("/proc/self/task")?.count())
}

/// No path, no port: there is not one rule that lets something through.
fn no_paths() -> Result<(), Error> {
    let ruleset = Ruleset::default()
        .handle_access(AccessFs::from_all(ABI::V7))
        .and_then(|rules| rules.handle_access(AccessNet::from_all(ABI::V7)))
        .and_then(|rules| rules.scope(Scope::from_all(ABI::V7)))
        .and_then(|rules| rules.create())
        .map_err(refused)?;
    let status = ruleset.restrict_self().map_err(refused)?;
    match status.ruleset {
        RulesetStatus::NotEnforced => Err(refused("this kernel has no Landlock, or has it off")),
        // What it does not know, the filter refuses.
        _ => Ok(()),
    }
}

/// The arguments of `clone3` lie in memory, where a filter does not see them. The C library does with `clone` what it cannot do
/// with that.
fn threads_by_clone() -> Result<BpfProgram, Error> {
    let rules = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    let not_there = SeccompAction::Errno(libc::ENOSYS as u32);
    program(rules, SeccompAction::Allow, not_there)
}

fn calls() -> Result<BpfProgram, Error> {
    let mut rules = BTreeMap::new();
    for call in ALLOWED.iter().chain(OLD) {
        rules.insert(*call, Vec::new());
    }
    const THREAD: u64 = (libc::CLONE_THREAD | libc::CLONE_VM) as u64;
    const EXEC: u64 = libc::PROT_EXEC as u64;
    rules.insert(libc::SYS_clone, vec![bits(0, THREAD, THREAD)?]);
    rules.insert(libc::SYS_mmap, vec![bits(2, EXEC, 0)?]);
    rules.insert(libc::SYS_mprotect, vec![bits(2, EXEC, 0)?]);
    // Of a block device that is the image.
    let of_device = vec![is(1, BLKDISCARD)?, is(1, BLKZEROOUT)?];
    rules.insert(libc::SYS_ioctl, of_device);
    rules.insert(libc::SYS_prctl, vec![is(0, libc::PR_SET_NAME as u64)?]);
    // Signals to its own threads. Its number stays the same: it can start no other process.
    let own = std::process::id();
    rules.insert(libc::SYS_tgkill, vec![is(0, own.into())?]);
    let refuse = SeccompAction::Errno(libc::EPERM as u32);
    program(rules, refuse, SeccompAction::Allow)
}

fn program(
    rules: BTreeMap<i64, Vec<SeccompRule>>,
    others: SeccompAction,
    these: SeccompAction,
) -> Result<BpfProgram, Error> {
    let machine = TargetArch::try_from(std::env::consts::ARCH).map_err(refused)?;
    let filter = SeccompFilter::new(rules, others, these, machine).map_err(refused)?;
    filter.try_into().map_err(refused)
}

fn rule(argument: u8, compare: SeccompCmpOp, value: u64) -> Result<SeccompRule, Error> {
    let condition = SeccompCondition::new(argument, SeccompCmpArgLen::Dword, compare, value);
    let condition = condition.map_err(refused)?;
    SeccompRule::new(vec![condition]).map_err(refused)
}

fn is(argument: u8, value: u64) -> Result<SeccompRule, Error> {
    rule(argument, SeccompCmpOp::Eq, value)
}

fn bits(argument: u8, mask: u64, value: u64) -> Result<SeccompRule, Error> {
    rule(argument, SeccompCmpOp::MaskedEq(mask), value)
}

#[cfg(test)]
mod tests {
    #![allow(unsafe_code)]

    use super::*;
    use std::io;
    use std::process::{Command, Stdio};
    use std::thread;

    /// Whether a process could be sent a signal; none is.
    fn signal(process: u32, thread: u32) -> io::Result<()> {
        // SAFETY: it names no memory.
        match unsafe { libc::syscall(libc::SYS_tgkill, process, thread, 0) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Without Landlock, which on old kernels lets signals through. A filter binds the thread that asks for it, and ends with it.
    #[test]
    fn calls_that_are_let_through_send_signals_to_no_other_process() {
        let mut other = Command::new("cat")
            .stdin(Stdio::piped())
            .spawn()
            .expect("there is such a program");
        let to = other.id();
        signal(to, to).expect("nothing is in force");
        let filtered = thread::spawn(move || {
            apply_filter(&calls().expect("this machine has one")).expect("this kernel can");
            let own = rustix::thread::gettid().as_raw_pid().unsigned_abs();
            (signal(to, to), signal(std::process::id(), own))
        });
        let (to_other, to_own) = filtered.join().expect("it ends");
        other.kill().expect("it runs");
        other.wait().expect("it ends");
        let error = to_other.expect_err("it is refused");
        assert_eq!(error.raw_os_error(), Some(libc::EPERM));
        to_own.expect("it is let through");
    }
}
