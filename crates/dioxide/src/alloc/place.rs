//! Where a run of blocks goes.
//!
//! `allocate` and `claim` choose alike. They differ in what becomes of the chosen clusters, under the
//! lock of the group where they were found: used in its bitmap, or held in its state.
//!
//! In this order:
//! 1. The goal itself, if the request continues what is mapped there.
//! 2. A run of the whole length (or of the length of the stream's next window, if that is more): in
//!    the goal's group, then in the groups of its flex group, then in all others.
//! 3. The same for half the length, or for the longest that was met if that is less, down to the
//!    fewest clusters asked for.
//! 4. Again from 2 on, now taking other streams' windows.
//!
//! A group that another thread has locked is passed over, and waited for only when no other serves;
//! but the goal of a request that continues is waited for at once, since the lock is held for
//! microseconds and a cut in a file stays.

use super::blocks::{BlockAllocator, Goal, Request, Run, Stream};
use super::claim::Claim;
use super::groups::UNKNOWN;
use super::groups::View;
use super::pool::GroupBlocks;
use super::search::{self, Found};
use super::space::{Reservation, Right};
use super::streams::State;
use crate::{Error, Result, Shortage};
use dioxide_format::types::{Group, Pblk};
use dioxide_journal::Edit;
use std::ops::Range;
use std::sync::Arc;

/// Clusters of one group.
pub(super) struct Chosen {
    pub(super) group: Group,
    pub(super) bits: Range<u32>,
}

/// What becomes of the clusters that are chosen.
enum Use<'e> {
    /// The bitmap has them as used.
    Allocate(&'e mut dyn Edit),
    /// They are held. Blocks are only read.
    Claim(&'e dyn Edit),
}

/// One allocation on its way.
struct Search<'e, 'r, 's> {
    request: &'r Request,
    to: Use<'e>,
    reservation: &'r mut Reservation<'s>,
    /// Whether more may be reserved.
    grows: bool,
    /// None if that is not one of the groups that serve.
    goal: Option<(Group, u32)>,
    /// Why a group could not be used: the first reason.
    damage: Option<Error>,
}

/// How a group is tried.
#[derive(Clone, Copy)]
struct Mode {
    want: u32,
    /// Take other streams' windows.
    steal: bool,
    /// Wait for the group's lock.
    wait: bool,
}

/// What came of it.
enum Tried {
    Took(Chosen),
    /// The group has no run that is long enough. At most this.
    Short(u32),
    /// Another thread has it locked.
    Busy,
}

impl Search<'_, '_, '_> {
    fn least(&self) -> u32 {
        *self.request.len.start()
    }

    fn most(&self) -> u32 {
        *self.request.len.end()
    }

    /// Where the search begins.
    fn start(&self) -> (Group, u32) {
        self.goal.unwrap_or((Group(0), 0))
    }

    fn edit(&self) -> &dyn Edit {
        match &self.to {
            Use::Allocate(edit) => &**edit,
            Use::Claim(edit) => *edit,
        }
    }

    /// How many of `len` clusters are reserved, after reserving what more there is.
    fn afford(&mut self, len: u32) -> u32 {
        if self.grows {
            self.reservation.grow(len.into(), self.request.right);
        }
        u64::from(len).min(self.reservation.left()) as u32
    }

    /// Passes over a damaged or unreadable group.
    fn pass_over(&mut self, error: Error) -> Result<()> {
        match error {
            Error::Corrupt { .. } | Error::Checksum { .. } | Error::Device(_) => {
                self.damage.get_or_insert(error);
                Ok(())
            }
            fatal => Err(fatal),
        }
    }
}

impl BlockAllocator {
    /// Allocates one run. Changes [`ALLOCATE_CREDITS`](Self::ALLOCATE_CREDITS) metadata blocks;
    /// blocks on the device for bitmaps that are not cached.
    ///
    /// # Errors
    /// [`Error::NoSpace`] when no run is long enough, or when there are too few clusters for this
    /// caller; [`Shortage::LowBlocks`] is what only some groups may serve. A damaged group is passed over; the call that finds
    /// the damage returns its [`Error::Corrupt`] when no other group serves, later ones do not count the group at all.
    /// [`Error::Invalid`] for an empty length. In each case nothing is changed.
    pub(crate) fn allocate(&self, edit: &mut dyn Edit, request: &Request) -> Result<Run> {
        let chosen = self.reserve_and_choose(Use::Allocate(edit), request)?;
        Ok(self.run(chosen.group, &chosen.bits))
    }

    /// Chooses one run as [`BlockAllocator::allocate`] does, for data that is written before it is
    /// mapped: no block is changed until [`Claim::record`]. Blocks on the device for bitmaps that are
    /// not cached.
    ///
    /// # Errors
    /// As [`BlockAllocator::allocate`].
    pub(crate) fn claim(self: &Arc<Self>, edit: &dyn Edit, request: &Request) -> Result<Claim> {
        let chosen = self.reserve_and_choose(Use::Claim(edit), request)?;
        Ok(Claim::new(self.clone(), chosen))
    }

    /// As [`BlockAllocator::allocate`], of clusters that were reserved before: at most as many as are
    /// left of them, and [`Request::right`] says nothing.
    ///
    /// # Errors
    /// As [`BlockAllocator::allocate`]; [`Error::Invalid`] too when less than the fewest is left.
    pub(crate) fn allocate_reserved(
        &self,
        edit: &mut dyn Edit,
        request: &Request,
        reservation: &mut Reservation<'_>,
    ) -> Result<Run> {
        self.check_reserved(request, reservation)?;
        let chosen = self.choose(Use::Allocate(edit), request, reservation, false)?;
        Ok(self.run(chosen.group, &chosen.bits))
    }

    /// As [`BlockAllocator::claim`], of clusters that were reserved before: at most as many as are left of them, and
    /// [`Request::right`] says nothing.
    ///
    /// # Errors
    /// As [`BlockAllocator::allocate_reserved`].
    pub(crate) fn claim_reserved(
        self: &Arc<Self>,
        edit: &dyn Edit,
        request: &Request,
        reservation: &mut Reservation<'_>,
    ) -> Result<Claim> {
        self.check_reserved(request, reservation)?;
        let chosen = self.choose(Use::Claim(edit), request, reservation, false)?;
        Ok(Claim::new(self.clone(), chosen))
    }

    fn check_reserved(&self, request: &Request, reservation: &Reservation<'_>) -> Result<()> {
        valid(request)?;
        assert!(
            reservation.is_of(&self.space),
            "reserved in this file system"
        );
        let left = reservation.left();
        match left < u64::from(*request.len.start()) {
            true => Err(Error::Invalid(format!("{left} clusters are reserved"))),
            false => Ok(()),
        }
    }

    fn reserve_and_choose(&self, to: Use<'_>, request: &Request) -> Result<Chosen> {
        valid(request)?;
        let least = (*request.len.start()).into();
        let mut reservation = self.space.reserve(least, request.right)?;
        self.choose(to, request, &mut reservation, true)
    }

    fn choose(
        &self,
        to: Use<'_>,
        request: &Request,
        reservation: &mut Reservation<'_>,
        grows: bool,
    ) -> Result<Chosen> {
        let (Goal::Append(goal) | Goal::Near(goal)) = request.goal;
        let mut search = Search {
            request,
            to,
            reservation,
            grows,
            goal: self.goal(goal, request.below),
            damage: None,
        };
        if let Some(chosen) = self.at_goal(&mut search)? {
            return Ok(chosen);
        }
        loop {
            let openings = self.space.openings();
            for steal in [false, true] {
                if let Some(chosen) = self.widen(&mut search, steal)? {
                    return Ok(chosen);
                }
            }
            let short = match request.below {
                // What was reserved may be anywhere.
                Some(_) => Shortage::LowBlocks,
                // One cluster was reserved, so one there is: it was given back where the search had been.
                // Several may be there and not lie together.
                None if search.least() == 1 && self.space.openings() != openings => continue,
                None => Shortage::ScatteredClusters,
            };
            return Err(search.damage.unwrap_or(Error::NoSpace(short)));
        }
    }

    /// The group and bit of a goal in the file system, in one of the groups that serve.
    fn goal(&self, goal: Pblk, below: Option<Group>) -> Option<(Group, u32)> {
        let sb = self.sb();
        let group = sb.group_of_block(goal)?;
        let offset = (goal.0 - sb.group_first_block(group).0) as u32;
        let serves = below.is_none_or(|end| group < end);
        serves.then_some((group, offset / sb.cluster_ratio()))
    }

    /// The goal itself, for a request that continues.
    fn at_goal(&self, search: &mut Search<'_, '_, '_>) -> Result<Option<Chosen>> {
        let (Goal::Append(_), Some((group, at))) = (search.request.goal, search.goal) else {
            return Ok(None);
        };
        let mut state = self.slot(group).blocks.lock();
        let view = match self.view(search.edit(), group, &mut state) {
            Ok(view) => view,
            Err(error) => return search.pass_over(error).map(|()| None),
        };
        let bits = state.open_to(state.settled(view.bits()), search.request.stream);
        let end = self.sb().clusters_in_group(group);
        let run = search::run_at(&bits, at, end.min(at.saturating_add(search.most())));
        if run.end - run.start < search.least() {
            return Ok(None);
        }
        drop(bits);
        let (chosen, left) = self.take(search, group, &mut state, &view, run)?;
        drop(state);
        self.leave(search.request.stream, left);
        Ok(Some(chosen))
    }

    /// Sweeps for shorter and shorter runs.
    fn widen(&self, search: &mut Search<'_, '_, '_>, steal: bool) -> Result<Option<Chosen>> {
        let mut want = search.most().max(self.window_wanted(search.request.stream));
        loop {
            match self.sweep(search, want, steal)? {
                Tried::Took(chosen) => return Ok(Some(chosen)),
                Tried::Short(longest) if want > search.least() && longest >= search.least() => {
                    want = (want / 2).min(longest).max(search.least());
                }
                _ => return Ok(None),
            }
        }
    }

    /// Clusters of the window that the stream would get.
    fn window_wanted(&self, stream: Option<Stream>) -> u32 {
        let available = self.available_clusters(Right::Map);
        stream.map_or(0, |stream| self.streams.window(stream, available))
    }

    /// Tries every group that serves, the nearest first, and those that were locked once more at the end.
    fn sweep(&self, search: &mut Search<'_, '_, '_>, want: u32, steal: bool) -> Result<Tried> {
        let mut longest = 0;
        for wait in [false, true] {
            let mut busy = false;
            let mode = Mode { want, steal, wait };
            for group in self.order(search.start().0, search.request.below) {
                match self.attempt(search, group, mode)? {
                    Tried::Short(len) => longest = longest.max(len),
                    Tried::Busy => busy = true,
                    took => return Ok(took),
                }
            }
            if !busy {
                break;
            }
        }
        Ok(Tried::Short(longest))
    }

    /// All groups that serve: the goal's flex group from the goal on, then the others from there on, around.
    fn order(&self, goal: Group, below: Option<Group>) -> impl Iterator<Item = Group> + use<> {
        let count = self.groups.count();
        let count = below.map_or(count, |end| end.0.min(count));
        let log = u32::from(self.sb().log_groups_per_flex());
        let first = goal.0 >> log << log;
        let end = (u64::from(first) + (1 << log)).min(count.into()) as u32;
        (goal.0..end)
            .chain(first..goal.0)
            .chain(end..count)
            .chain(0..first)
            .map(Group)
    }

    fn attempt(&self, search: &mut Search<'_, '_, '_>, group: Group, mode: Mode) -> Result<Tried> {
        let slot = self.slot(group);
        if slot.longest.get() < mode.want {
            return Ok(Tried::Short(slot.longest.get()));
        }
        let state = if mode.wait {
            Some(slot.blocks.lock())
        } else {
            slot.blocks.try_lock()
        };
        let Some(mut state) = state else {
            return Ok(Tried::Busy);
        };
        let view = match self.worth(search.edit(), group, &mut state, mode.want) {
            Ok(Ok(view)) => view,
            Ok(Err(short)) => return Ok(Tried::Short(short)),
            Err(error) => return search.pass_over(error).map(|()| Tried::Short(0)),
        };
        let stream = search.request.stream;
        let settled = state.settled(view.bits());
        let bits = if mode.steal {
            settled
        } else {
            state.open_to(settled, stream)
        };
        let from = match search.start() {
            (goal, bit) if goal == group => bit,
            _ => 0,
        };
        let end = self.sb().clusters_in_group(group);
        let run = match search::first_fit(&bits, from, end, mode.want) {
            Found::Run(run) => run,
            Found::Longest(longest) => {
                // Another stream's window may end at any time: what it hides still counts.
                if mode.steal || !state.has_others(stream) {
                    slot.longest.set(longest);
                }
                return Ok(Tried::Short(longest));
            }
        };
        drop(bits);
        let (chosen, left) = self.take(search, group, &mut state, &view, run)?;
        drop(state);
        self.leave(stream, left);
        Ok(Tried::Took(chosen))
    }

    /// The group, unless what is known of it (its descriptor, the first time) says that it has no run
    /// of that length: then what it has at most.
    fn worth(
        &self,
        edit: &dyn Edit,
        group: Group,
        state: &mut GroupBlocks,
        want: u32,
    ) -> Result<Result<View, u32>> {
        let slot = self.slot(group);
        if slot.longest.get() == UNKNOWN
            && let Ok(desc) = self.groups.desc(edit, group)
        {
            slot.longest.set(desc.free_clusters_count());
        }
        if slot.longest.get() < want {
            return Ok(Err(slot.longest.get()));
        }
        self.view(edit, group, state).map(Ok)
    }

    /// Allocates or claims the start of a free run of a group, whose lock is held, and moves the
    /// stream's window. Returns the group where the stream had its window before, if that is another.
    fn take(
        &self,
        search: &mut Search<'_, '_, '_>,
        group: Group,
        state: &mut GroupBlocks,
        view: &View,
        run: Range<u32>,
    ) -> Result<(Chosen, Option<Group>)> {
        let len = search.afford((run.end - run.start).min(search.most()));
        let bits = run.start..run.start + len;
        match &mut search.to {
            Use::Allocate(edit) => {
                self.write(*edit, group, view, &bits, true)?;
                state.forget_recorded(&bits);
                self.space.used(len.into());
            }
            Use::Claim(_) => state.hold(&bits, view.bits().len()),
        }
        search.reservation.spend(len.into());
        state.cut_windows(&bits);
        let left = self.move_window(search.request, group, state, view, bits.end);
        Ok((Chosen { group, bits }, left))
    }

    /// Keeps what follows `at` for the request's stream.
    fn move_window(
        &self,
        request: &Request,
        group: Group,
        state: &mut GroupBlocks,
        view: &View,
        at: u32,
    ) -> Option<Group> {
        let stream = request.stream?;
        if state.window_at(stream, at) > 0 {
            return None;
        }
        let len = self.window_wanted(Some(stream));
        let end = self.sb().clusters_in_group(group);
        let open = state.open_to(state.settled(view.bits()), Some(stream));
        let window = search::run_at(&open, at, end.min(at.saturating_add(len)));
        drop(open);
        state.set_window(stream, window);
        let before = self.streams.get(stream);
        let state = match request.goal {
            Goal::Append(_) => State::grown(group, before),
            Goal::Near(_) => State::moved(group, before),
        };
        let before = self.streams.put(stream, state);
        before.map(|state| state.group).filter(|&old| old != group)
    }

    /// Drops the window that a stream had in a group that it left. No group's lock is held.
    fn leave(&self, stream: Option<Stream>, group: Option<Group>) {
        if let (Some(stream), Some(group)) = (stream, group) {
            self.slot(group).blocks.lock().drop_window(stream);
        }
    }
}

fn valid(request: &Request) -> Result<()> {
    if *request.len.start() == 0 || request.len.is_empty() {
        return Err(Error::Invalid(format!("{:?} clusters", request.len)));
    }
    Ok(())
}
