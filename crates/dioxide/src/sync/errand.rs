//! What a worker does for a queue, and whether it has to wait for the file.
//!
//! A queue that waits for its requests in workers asks whether one of them stands at a file that is drained of requests which
//! only the queue's own thread can reap: that wait would not end. Who drains, or waits for the lock of who drains, says so
//! here; only threads on an errand do, and only where they sleep anyhow. It is also told in one list for all queues, since the
//! workers that a request waits for may all be at what others have punted.

use parking_lot::Mutex;
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// No worker has taken it up.
const WAITS: u8 = 0;
/// A worker is at it.
const RUNS: u8 = 1;
/// It can go on only once it has the file.
const STANDS: u8 = 2;

thread_local! {
    /// What the calling thread is at.
    static CURRENT: RefCell<Option<Arc<Errand>>> = const { RefCell::new(None) };
}

/// A request of a queue that a worker carries out.
#[derive(Debug)]
pub(crate) struct Errand {
    /// The file's name in the in-flight tables.
    inode: u64,
    state: AtomicU8,
    /// Where it is told that it stands.
    all: Arc<AllStanding>,
}

/// For each worker that stands, the name of the file.
pub(crate) type AllStanding = Mutex<Vec<u64>>;

/// The calling thread is on an errand until this is dropped.
#[derive(Debug)]
#[must_use]
pub(crate) struct Begun(());

/// The calling thread's errand stands until this is dropped.
#[derive(Debug)]
#[must_use]
pub(crate) struct Standing(Option<Arc<Errand>>);

impl Errand {
    /// One on the file that the in-flight tables name so.
    pub(crate) fn new(inode: u64, all: Arc<AllStanding>) -> Errand {
        Errand {
            inode,
            state: AtomicU8::new(WAITS),
            all,
        }
    }

    /// The calling thread takes it up.
    pub(crate) fn begin(self: Arc<Self>) -> Begun {
        self.state.store(RUNS, Ordering::Release);
        CURRENT.with(|current| current.replace(Some(self)));
        Begun(())
    }

    /// Whether no worker has taken it up yet.
    pub(crate) fn waits(&self) -> bool {
        self.state.load(Ordering::Acquire) == WAITS
    }

    /// Whether it waits for the file's lock, or for requests in flight on the file.
    pub(crate) fn stands(&self) -> bool {
        self.state.load(Ordering::Acquire) == STANDS
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        let over = CURRENT.with(RefCell::take);
        if let Some(errand) = over {
            errand.state.store(RUNS, Ordering::Release);
        }
    }
}

impl Drop for Standing {
    fn drop(&mut self) {
        if let Some(errand) = &self.0 {
            let mut all = errand.all.lock();
            if let Some(at) = all.iter().position(|inode| *inode == errand.inode) {
                all.swap_remove(at);
            }
            errand.state.store(RUNS, Ordering::Release);
        }
    }
}

/// The calling thread is about to sleep until it has this file. To be dropped before it gives the file's lock back.
pub(crate) fn stand(inode: u64) -> Standing {
    // Files are closed by threads that end, too.
    let current = CURRENT.try_with(|current| current.borrow().clone());
    let errand = current.ok().flatten();
    let errand = errand.filter(|errand| errand.inode == inode);
    if let Some(errand) = &errand {
        errand.all.lock().push(errand.inode);
        errand.state.store(STANDS, Ordering::Release);
    }
    Standing(errand)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn errand_stands_only_at_its_own_file_and_while_it_is_under_way() {
        let all = Arc::new(AllStanding::default());
        let errand = Arc::new(Errand::new(7, all.clone()));
        assert!(errand.waits() && !errand.stands());
        drop(stand(7));
        assert!(errand.waits(), "it is nobody's yet");
        let begun = errand.clone().begin();
        assert!(!errand.waits() && !errand.stands());
        let elsewhere = stand(8);
        assert!(!errand.stands());
        drop(elsewhere);
        let here = stand(7);
        assert!(errand.stands() && *all.lock() == [7]);
        drop(here);
        assert!(!errand.stands() && all.lock().is_empty());
        drop(begun);
        let _late = stand(7);
        assert!(!errand.stands());
    }
}
