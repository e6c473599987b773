//! Requests that are held in flight until a test lets them go.

use super::faults::{Access, FaultOp, Rules};
use super::pacer::Park;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Holds requests in flight: made by [`SimDevice::hold`](super::SimDevice::hold).
///
/// A held request has not reached the wrapped device. It goes on, and its latency begins, when
/// [`release`](Hold::release), [`release_one`](Hold::release_one) or dropping the hold lets it go.
/// A request that several holds match needs all of them to let it go. A queue that is dropped drops
/// what is held of it: it never reaches the device.
///
/// A thread in [`Queue::wait`](crate::Queue::wait) returns when something of its queue is let go,
/// perhaps before that can be reaped.
#[derive(Debug)]
pub struct Hold {
    gate: Arc<Gate>,
    rules: Arc<Rules>,
}

impl Hold {
    pub(super) fn new(gate: Arc<Gate>, rules: Arc<Rules>) -> Hold {
        Hold { gate, rules }
    }

    /// How many requests are held now.
    pub fn waiting(&self) -> usize {
        self.gate.state.lock().held.len()
    }

    /// Blocks until at least `count` requests are held.
    pub fn wait_for(&self, count: usize) {
        let mut state = self.gate.state.lock();
        while state.held.len() < count {
            self.gate.changed.wait(&mut state);
        }
    }

    /// As [`Hold::wait_for`], but gives up after `limit`. Returns whether so many are held.
    pub fn wait_for_timeout(&self, count: usize, limit: Duration) -> bool {
        let Some(end) = Instant::now().checked_add(limit) else {
            self.wait_for(count);
            return true;
        };
        let mut state = self.gate.state.lock();
        while state.held.len() < count {
            if self.gate.changed.wait_until(&mut state, end).timed_out() {
                break;
            }
        }
        state.held.len() >= count
    }

    /// Lets the request go that has been held longest. Returns whether there was one.
    pub fn release_one(&self) -> bool {
        let released = self.gate.state.lock().held.pop_front().is_some();
        self.gate.announce();
        released
    }

    /// Lets everything go and holds nothing any more.
    pub fn release(self) {}
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.rules.remove_gate(&self.gate);
        {
            let mut state = self.gate.state.lock();
            state.open = true;
            state.held.clear();
        }
        self.gate.announce();
    }
}

/// The shared side of a [`Hold`].
#[derive(Debug)]
pub(super) struct Gate {
    op: FaultOp,
    range: Option<Range<u64>>,
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct GateState {
    open: bool,
    next: u64,
    /// Numbers of the tickets that may not pass, oldest first.
    held: VecDeque<u64>,
    /// Queues that hold a ticket; they are told of every release.
    parks: Vec<Arc<Park>>,
}

impl Gate {
    pub(super) fn new(op: FaultOp, range: Option<Range<u64>>) -> Gate {
        Gate {
            op,
            range,
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    pub(super) fn matches(&self, access: &Access) -> bool {
        access.is(self.op, self.range.as_ref())
    }

    /// Holds a request. `park`: whom to wake when it may pass.
    pub(super) fn join(self: &Arc<Gate>, park: Option<&Arc<Park>>) -> Ticket {
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        if !state.open {
            state.held.push_back(number);
        }
        if let Some(park) = park
            && !state.parks.iter().any(|known| Arc::ptr_eq(known, park))
        {
            state.parks.push(park.clone());
        }
        drop(state);
        self.changed.notify_all();
        Ticket {
            gate: self.clone(),
            number,
        }
    }

    fn announce(&self) {
        self.changed.notify_all();
        let parks = self.state.lock().parks.clone();
        parks.iter().for_each(|park| park.wake());
    }
}

/// One request's place at a gate. Dropping it gives the place up.
#[derive(Debug)]
pub(super) struct Ticket {
    gate: Arc<Gate>,
    number: u64,
}

impl Ticket {
    pub(super) fn may_pass(&self) -> bool {
        !self.gate.state.lock().held.contains(&self.number)
    }

    pub(super) fn wait(&self) {
        let mut state = self.gate.state.lock();
        while state.held.contains(&self.number) {
            self.gate.changed.wait(&mut state);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.gate.state.lock().held.retain(|&n| n != self.number);
    }
}
