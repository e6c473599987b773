//! A process-wide `SIGBUS` handler that takes a fault in one of our mappings back.
//!
//! Touching a mapped page that the file cannot provide (it was truncated, its file system is full,
//! its medium failed) raises `SIGBUS` in the thread that touches it. The handler marks the mapping
//! *lost*, puts an anonymous page in the way, and returns, so that the copy runs to its end; the
//! copy's caller then sees the mark and repeats the transfer by system calls, which report the truth.
//!
//! # Why no lost mark is missed
//! Claim: if a copy touches an anonymous page that a handler put there, the load of the mark *after*
//! that copy returns true.
//!
//! In the thread that faulted this is program order: mark, then page, then the rest of the copy, then
//! the load. Let another thread B touch the page. The handler does, in this order: (1) store the mark;
//! (2) `membarrier(PRIVATE_EXPEDITED)`; (3) map the anonymous page. Step 2 runs a full memory barrier
//! at one point of the instruction stream of every thread of the process that is running, and those
//! that are not running pass through the scheduler, which is one too. Take that point in B.
//! - If B's touch comes before it, the touch happened before step 3 and met the file's own page (or
//!   faulted by itself). It did not touch the anonymous page.
//! - If B's touch comes after it, so does the load that follows the touch, and it sees step 1.
//!
//! So the copying side needs no fence of the processor, only one of the compiler, which keeps the
//! load behind the copy. Without the barrier of step 2, B's load could be executed before B's
//! store has been translated, see no mark, and lose the store.
//!
//! A mark that is seen although the copy met the file's own pages does no harm: the transfer is
//! repeated with the same bytes before it is reported. Replacing a page loses nothing that had been
//! written through it: the kernel moves its dirty state to the page cache when it unmaps it, and the
//! system calls use that same cache.
//!
//! # What runs in the handler
//! Atomic loads and stores and two system calls; `errno` is kept. The table is fixed and lock-free.
//! An entry that covers the fault cannot change meanwhile, since the copy that faulted borrows the
//! mapping that owns it. For other entries, that may come and go: `start` is 0 unless the entry is
//! live; it is written last when one is made, cleared first when it ends, and read before and after
//! `end`. If both reads give the same address but `end` is of another generation than the first, then
//! both generations began there: the range is that of a mapping that was live at the first read or is
//! at the second, and neither overlaps another live mapping.
//!
//! # Limits
//! A program that replaces our handler without calling it, or blocks `SIGBUS`, is not protected; nor
//! is an image on hugetlbfs, whose pages cannot be replaced one by one (it dies as without us).
//! Faults elsewhere go to the handler that was there before, as if we were not there.
#![allow(unsafe_code)]

use crate::{Error, Result};
use std::ffi::{c_int, c_long, c_void};
use std::io;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// How many mappings one process can have at a time.
const MAX_MAPPINGS: usize = 256;

const MEMBARRIER_CMD_PRIVATE_EXPEDITED: c_int = 1 << 3;
const MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED: c_int = 1 << 4;

/// A cache line of its own, since each copy reads `lost`.
#[repr(align(64))]
struct Entry {
    taken: AtomicBool,
    lost: AtomicBool,
    start: AtomicUsize,
    end: AtomicUsize,
}

static ENTRIES: [Entry; MAX_MAPPINGS] = [const {
    Entry {
        taken: AtomicBool::new(false),
        lost: AtomicBool::new(false),
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
    }
}; MAX_MAPPINGS];

/// Set before the handler is installed.
static PAGE_BYTES: AtomicUsize = AtomicUsize::new(0);
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();

/// A registered mapping. Must be dropped before the range is unmapped.
pub(super) struct Watch(&'static Entry);

impl Watch {
    /// Registers `len` mapped bytes at `start`, and installs the handler the first time.
    pub(super) fn new(start: *mut u8, len: usize) -> Result<Watch> {
        install()?;
        let free = |e: &&Entry| !e.taken.swap(true, Ordering::Acquire);
        let entry = ENTRIES.iter().find(free).ok_or_else(|| {
            unsupported(format!("more than {MAX_MAPPINGS} mappings in one process"))
        })?;
        entry.lost.store(false, Ordering::Relaxed);
        entry.end.store(start as usize + len, Ordering::SeqCst);
        entry.start.store(start as usize, Ordering::SeqCst);
        Ok(Watch(entry))
    }

    /// Whether a page was replaced. To judge a copy, ask after it and a compiler fence.
    #[inline]
    pub(super) fn lost(&self) -> bool {
        self.0.lost.load(Ordering::Acquire)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.start.store(0, Ordering::SeqCst);
        self.0.taken.store(false, Ordering::Release);
    }
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").field("lost", &self.lost()).finish()
    }
}

fn unsupported(what: String) -> Error {
    Error::Unsupported { what }
}

fn install() -> Result<()> {
    static INSTALLED: OnceLock<Result<(), i32>> = OnceLock::new();
    let done =
        INSTALLED.get_or_init(|| try_install().map_err(|e| e.raw_os_error().unwrap_or(libc::EIO)));
    done.map_err(|errno| {
        let e = io::Error::from_raw_os_error(errno);
        unsupported(format!(
            "a mapping that survives SIGBUS (membarrier, sigaction): {e}"
        ))
    })
}

fn try_install() -> io::Result<()> {
    PAGE_BYTES.store(rustix::param::page_size(), Ordering::SeqCst);
    membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED)?;
    // SAFETY: all zeros is a valid sigaction to be overwritten.
    let mut old: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: a null new action only asks; `old` is ours for the call.
    check(unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), &mut old) }.into())?;
    // Before the handler can run, so that it always knows whom to call.
    let _ = PREVIOUS.set(old);
    // SAFETY: as above.
    let mut new: libc::sigaction = unsafe { std::mem::zeroed() };
    new.sa_sigaction = on_sigbus as extern "C" fn(_, _, _) as usize;
    new.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: `on_sigbus` has the signature that SA_SIGINFO asks for, lives for ever, and does only
    // what a handler may (module header).
    check(unsafe { libc::sigaction(libc::SIGBUS, &new, ptr::null_mut()) }.into())
}

fn check(result: c_long) -> io::Result<()> {
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn membarrier(command: c_int) -> io::Result<()> {
    // SAFETY: takes two integers (and a CPU that these commands ignore), touches no memory.
    check(unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) })
}

extern "C" fn on_sigbus(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: errno is this thread's own; with SA_SIGINFO the kernel hands a valid siginfo, whose
    // address is set for the codes above 0, the faults.
    let (errno, code, address) = unsafe {
        (
            *libc::__errno_location(),
            (*info).si_code,
            (*info).si_addr() as usize,
        )
    };
    let is_ours = match code {
        ..=0 => false,
        // Early news of a broken page, which no copy has met: who borrows the mapping then is unknown. The copy that meets it
        // has a fault of its own.
        libc::BUS_MCEERR_AO => entry_of(address).is_some(),
        _ => entry_of(address).is_some_and(|e| take_back(e, address)),
    };
    if !is_ours {
        // SAFETY: the arguments are the kernel's own.
        unsafe { call_previous(signal, info, context) };
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// The live entry whose range has `address`; see the module header for why it cannot be torn.
fn entry_of(address: usize) -> Option<&'static Entry> {
    ENTRIES.iter().find(|e| {
        let start = e.start.load(Ordering::SeqCst);
        let end = e.end.load(Ordering::SeqCst);
        start != 0 && start == e.start.load(Ordering::SeqCst) && (start..end).contains(&address)
    })
}

/// Steps 1 to 3 of the module header.
fn take_back(entry: &Entry, address: usize) -> bool {
    entry.lost.store(true, Ordering::SeqCst);
    if membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED).is_err() {
        return false;
    }
    let page = PAGE_BYTES.load(Ordering::Relaxed);
    let at = (address & !(page - 1)) as *mut c_void;
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
    // SAFETY: the page lies inside a mapping of ours, which begins and ends on pages and stays mapped
    // while the copy that faulted runs. Only copies touch it, through raw pointers.
    unsafe { libc::mmap(at, page, prot, flags, -1, 0) == at }
}

/// Does what would have been done without us.
///
/// # Safety
/// Only from a signal handler, with its arguments.
unsafe fn call_previous(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let previous = PREVIOUS
        .get()
        .map_or((libc::SIG_DFL, 0), |p| (p.sa_sigaction, p.sa_flags));
    // SAFETY: see `on_sigbus`.
    let fault = unsafe { (*info).si_code } > 0;
    match previous {
        (libc::SIG_IGN, _) if !fault => {}
        (libc::SIG_DFL | libc::SIG_IGN, _) => die_of(signal, fault),
        (handler, flags) if flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: installed with SA_SIGINFO, so it has this signature.
            let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
                unsafe { std::mem::transmute(handler) };
            handler(signal, info, context);
        }
        (handler, _) => {
            // SAFETY: installed without SA_SIGINFO, so it has this signature.
            let handler: extern "C" fn(c_int) = unsafe { std::mem::transmute(handler) };
            handler(signal);
        }
    }
}

/// The default action. A fault repeats itself when the handler returns; a signal that was sent must
/// be sent again.
fn die_of(signal: c_int, fault: bool) {
    // SAFETY: all zeros with SIG_DFL is the default action; both calls may be made in a handler.
    unsafe {
        let mut default: libc::sigaction = std::mem::zeroed();
        default.sa_sigaction = libc::SIG_DFL;
        libc::sigaction(signal, &default, ptr::null_mut());
        if !fault {
            libc::raise(signal);
        }
    }
}
