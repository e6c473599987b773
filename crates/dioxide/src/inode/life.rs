//! How long an inode without links lives: until the last who has it open closes it.
//!
//! Invariants: an inode ends once, and nobody opens it after that, nor before it is made; who ends it frees what it has. An
//! inode that ended is written by nobody else, because its number may be another file's.

use super::Inode;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Debug, Default)]
pub(super) struct Life {
    state: Mutex<State>,
    /// Copy of the state's, for those who only ask.
    ended: AtomicBool,
    /// Its number is given back, or about to be. Changed under the map's lock.
    given_back: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    opens: usize,
    /// Since the inode is in memory: there may be direct I/O in flight.
    was_opened: bool,
    unlinked: bool,
    /// Only who makes it may use it yet.
    being_made: bool,
    /// It was made without a name, and may get one.
    unnamed: bool,
    ended: bool,
}

/// What became of an inode whose last link went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Somebody has it open, and ends it when he closes it.
    Later,
    /// It ended: the caller frees what it has.
    Now,
}

impl Inode {
    /// Somebody has it open from now on. `false` if it has ended, or is being made: a number can be guessed.
    pub(crate) fn open(&self) -> bool {
        let mut state = self.life.state.lock();
        let may = !state.ended && !state.being_made;
        if may {
            state.opens += 1;
            state.was_opened = true;
        }
        may
    }

    /// Nobody opens it before it is [`Inode::made`].
    pub(crate) fn set_being_made(&self) {
        self.life.state.lock().being_made = true;
    }

    /// It is as whoever finds it may have it.
    pub(crate) fn made(&self) {
        self.life.state.lock().being_made = false;
    }

    /// As [`Inode::made`], of one without a name: whoever has guessed its number must not be the first who closes it.
    /// With `may_be_linked` it may get one.
    pub(crate) fn made_open(&self, may_be_linked: bool) {
        let mut state = self.life.state.lock();
        state.being_made = false;
        state.unnamed &= may_be_linked;
        state.opens += 1;
        state.was_opened = true;
    }

    /// Somebody has closed it. Whether it ended by that: the caller frees what it has.
    #[must_use]
    pub(crate) fn close(&self) -> bool {
        let mut state = self.life.state.lock();
        state.opens -= 1;
        let ends = state.opens == 0 && state.unlinked && !state.ended;
        if ends {
            self.end(&mut state);
        }
        let is_last = state.opens == 0;
        drop(state);
        if is_last && let Some(allocator) = self.allocator.get() {
            allocator.close_stream(self.stream());
        }
        ends
    }

    /// Its last link has gone, and it is an orphan: from here on whoever closes it last may free it.
    #[must_use]
    pub(crate) fn unlinked(&self) -> End {
        let mut state = self.life.state.lock();
        state.unlinked = true;
        if state.opens > 0 {
            return End::Later;
        }
        self.end(&mut state);
        End::Now
    }

    /// Ends it, if nobody has it open: its last link is about to go. Whether it ended by that: the caller frees what it has.
    pub(crate) fn end_if_closed(&self) -> bool {
        let mut state = self.life.state.lock();
        let ends = state.opens == 0 && !state.ended;
        if ends {
            state.unlinked = true;
            self.end(&mut state);
        }
        ends
    }

    /// It was made without a name: it ends when it is closed, unless it gets one before.
    pub(crate) fn set_unnamed(&self) {
        let mut state = self.life.state.lock();
        (state.unlinked, state.unnamed) = (true, true);
    }

    /// Whether it may get its first name.
    pub(crate) fn is_unnamed(&self) -> bool {
        self.life.state.lock().unnamed
    }

    /// It has its first name.
    pub(crate) fn named(&self) {
        let mut state = self.life.state.lock();
        (state.unlinked, state.unnamed) = (false, false);
    }

    fn end(&self, state: &mut State) {
        state.ended = true;
        self.life.ended.store(true, Ordering::Release);
    }

    /// Whether it ended. Does not become false again, and true only under the map's lock or before
    /// anybody who has that lock next.
    pub(crate) fn has_ended(&self) -> bool {
        self.life.ended.load(Ordering::Acquire)
    }

    /// It was written for the last time. The caller has the map's lock.
    pub(crate) fn give_back(&self) {
        self.life.given_back.store(true, Ordering::Release);
    }

    /// Whether it must not be written any more. Asked under the map's lock.
    pub(crate) fn is_given_back(&self) -> bool {
        self.life.given_back.load(Ordering::Acquire)
    }

    /// Whether somebody has it open, and whether somebody had.
    pub(crate) fn opens(&self) -> (bool, bool) {
        let state = self.life.state.lock();
        (state.opens > 0, state.was_opened)
    }
}
