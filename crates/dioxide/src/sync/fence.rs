//! An asymmetric fence: [`light`] on the side that runs millions of times a second, [`heavy`] on
//! the side that runs when a writer revokes the readers' bias or a truncate drains.
//!
//! Where both sides of a store-then-load handshake (Dekker) would need a full fence, the light
//! side only keeps the compiler from reordering, and the heavy side makes the kernel run a full
//! fence on every CPU that runs one of this process' threads (`membarrier`, private expedited).
//! Where the kernel refuses `membarrier`, both sides are full fences.
//!
//! Rejected: full fences on both sides. Measured on the anchor machine they cost the light side
//! about as much as the whole lock does with this one.

#[cfg(not(loom))]
pub(crate) use real::{heavy, init, light, light_as, light_only};

#[cfg(loom)]
pub(crate) use model::{full_fence, heavy, init, light, light_as, light_only};

#[cfg(loom)]
mod model {
    use loom::sync::atomic::{Ordering, fence};
    use std::sync::LazyLock;

    /// Fences of this kind are left out, in a process that is to show that its model fails so: `light`, `heavy`, or an
    /// [`Ordering`].
    static LEFT_OUT: LazyLock<String> =
        LazyLock::new(|| std::env::var("DIOXIDE_MODEL_WITHOUT").unwrap_or_default());

    fn unless_left_out(kind: &str, ordering: Ordering) {
        if *LEFT_OUT != kind {
            fence(ordering);
        }
    }

    pub(crate) fn init() -> bool {
        true
    }

    pub(crate) fn light() {
        unless_left_out("light", Ordering::SeqCst);
    }

    pub(crate) fn light_as(_: bool) {
        light();
    }

    pub(crate) fn light_only() {
        light();
    }

    pub(crate) fn heavy() {
        unless_left_out("heavy", Ordering::SeqCst);
    }

    /// What is no part of an asymmetric pair.
    pub(crate) fn full_fence(ordering: Ordering) {
        unless_left_out(&format!("{ordering:?}"), ordering);
    }
}

#[cfg(not(loom))]
mod real {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicBool, Ordering, compiler_fence, fence};

    /// Set once, before the first lock exists, so that both sides always agree.
    static EXPEDITED: AtomicBool = AtomicBool::new(false);

    /// Registers the process with the kernel. Called when a presence table is made, that is before
    /// any lock that uses these fences can be taken. Returns whether the fences are asymmetric.
    pub(crate) fn init() -> bool {
        static DONE: OnceLock<()> = OnceLock::new();
        DONE.get_or_init(|| {
            let registered = membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
            EXPEDITED.store(registered, Ordering::SeqCst);
        });
        EXPEDITED.load(Ordering::SeqCst)
    }

    #[allow(unsafe_code)]
    fn membarrier(command: libc::c_int) -> bool {
        // SAFETY: membarrier takes three integers and touches no memory of the caller.
        unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
    }

    /// The frequent side: orders its earlier stores before its later loads, as seen by a thread
    /// that runs [`heavy`] in between.
    #[inline(always)]
    pub(crate) fn light() {
        light_as(EXPEDITED.load(Ordering::Relaxed));
    }

    /// As [`light`], for who keeps what [`init`] returned beside what else it looks at.
    #[inline(always)]
    pub(crate) fn light_as(asymmetric: bool) {
        if asymmetric {
            compiler_fence(Ordering::SeqCst);
        } else {
            fence(Ordering::SeqCst);
        }
    }

    /// As [`light`], for code that runs only where the fences are asymmetric.
    #[inline(always)]
    pub(crate) fn light_only() {
        compiler_fence(Ordering::SeqCst);
    }

    /// The rare side. A few microseconds.
    pub(crate) fn heavy() {
        fence(Ordering::SeqCst);
        if EXPEDITED.load(Ordering::Relaxed) {
            let done = membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED);
            assert!(done, "membarrier fails only when unregistered");
        }
        fence(Ordering::SeqCst);
    }
}
