//! A table of names that grows with them up to a fixed amount of memory, and forgets what it has no room for.
//!
//! A name has one bucket, by its hash: four neighbouring lines of the processor's cache with the names themselves, one
//! behind the other. So a lookup waits for memory once, where a hash map of entries that hold their
//! names elsewhere waits four times; it stores nothing ([`Record`]), and changes meet only at names of one bucket. What comes to a full bucket
//! takes the place of its oldest, unless that was asked for since: it becomes the youngest then.
//!
//! The buckets lie in one piece of memory, of which as many are in use as there are names for ([`Buckets`]), one behind the other: a few names lie
//! close together, in few pages. In pieces of a page, found by way of a list of them, each lookup misses twice. Names that stand for
//! nothing take no more memory: a search for what is not there would never end to take it.
//!
//! Most names of a bucket are of one directory where that is large, and begin alike. So a record tells its directory only if the one
//! before it has another, and of its name only what comes behind the bytes that it shares with the one before: of ten million
//! names of 13 bytes six are shared, and the table is a fifth smaller. Who looks for a name remembers how far it is that of the record, and puts no name
//! together.
//!
//! Invariants: a bucket is records up to [`Bucket::used`], each with a name of at least one byte; the first tells its directory and
//! shares nothing; no two are of one name.

use crate::sync::buckets::Buckets;
use crate::sync::record::Record;
use dioxide_block::mem::Words;
use dioxide_format::types::Ino;
use foldhash::quality::RandomState;
use std::hash::BuildHasher;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// Words of a bucket, behind the head of its record: so that it fills four lines. Where it fills two, and has room for four names,
/// the loads of buckets differ so much that one name in fifty is lost with as much memory.
const WORDS: usize = 31;
const BUCKET_WORDS: usize = 1 + WORDS;
const BUCKET_BYTES: usize = BUCKET_WORDS * size_of::<u64>();
/// Bytes of a bucket's names; one is how many of them are used.
const ROOM: usize = WORDS * size_of::<u64>() - 1;
/// What a record has before its own part of the name: the length of that, flags with how many bytes it shares, what the name stands
/// for; and the directory with its generation, unless that is [`SAME_DIR`].
const HEAD: usize = 6;
const DIR: usize = 8;
/// It was asked for since it came.
const ASKED: u8 = 1;
/// It is of the directory that the record before it is of.
const SAME_DIR: u8 = 2;
/// The other bits of the flags: how many bytes at the beginning are those of the name before it.
const SHARED_SHIFT: u32 = 2;
const MOST_SHARED: usize = (u8::MAX >> SHARED_SHIFT) as usize;
/// In the smallest page that a system has.
const BUCKETS_PER_PAGE: u64 = 4096 / BUCKET_BYTES as u64;
/// Buckets of a mount that is new.
const FIRST: u64 = 64;
/// A bucket with more than so many bytes of names asks for one more.
const CROWDED: u8 = ROOM as u8 / 2;

/// What no record is of: the first tells its directory.
const NO_DIR: (Ino, u32) = (Ino(0), 0);

/// Which name: the directory, its generation, and the name in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key<'a> {
    pub(super) dir: (Ino, u32),
    pub(super) name: &'a [u8],
}

pub(super) struct Table {
    words: Words,
    buckets: Buckets,
    hasher: RandomState,
}

/// A copy of a bucket.
#[derive(Clone, Copy)]
struct Bucket {
    used: u8,
    records: [u8; ROOM],
}

impl Bucket {
    #[inline]
    fn of(words: [u64; WORDS]) -> Bucket {
        let [used, records @ ..] = bytes_of(words);
        Bucket { used, records }
    }

    #[inline]
    fn words(&self) -> [u64; WORDS] {
        let mut bytes = [0; ROOM + 1];
        bytes[0] = self.used;
        bytes[1..].copy_from_slice(&self.records);
        let (words, _) = bytes.as_chunks();
        std::array::from_fn(|at| u64::from_le_bytes(words[at]))
    }
}

#[inline]
fn bytes_of(words: [u64; WORDS]) -> [u8; ROOM + 1] {
    let mut bytes = [0; ROOM + 1];
    let (chunks, _) = bytes.as_chunks_mut();
    for (chunk, word) in chunks.iter_mut().zip(words) {
        *chunk = word.to_le_bytes();
    }
    bytes
}

impl Table {
    /// Takes at most about so many bytes, and those only when there are names for them; fewer where the system has
    /// no such range of addresses.
    pub(super) fn new(bytes: usize) -> Table {
        let buckets = |&bytes: &usize| (bytes / BUCKET_BYTES).max(1);
        let halves = std::iter::successors(Some(bytes), |bytes| Some(bytes / 2));
        let mut tries =
            halves.map(|bytes| Words::zeroed_dense(buckets(&bytes) * BUCKET_WORDS).ok());
        let words = tries.find_map(|words| words).expect("a page of memory");
        let most = words.len() / BUCKET_WORDS;
        Table {
            words,
            buckets: Buckets::new(FIRST.min(most as u64)),
            hasher: RandomState::default(),
        }
    }

    /// What a name stands for, if that is known: `Some(None)` is known to stand for nothing.
    pub(super) fn get(&self, key: Key<'_>) -> Option<Option<Ino>> {
        let hash = self.hash(key);
        let bucket = Bucket::of(self.record(self.buckets.place(hash)).read()?);
        let found = bucket.find(key)?;
        // Where there is room for more, nothing leaves soon.
        let full = usize::from(bucket.used) > ROOM / 4 * 3;
        if full && !bucket.has(found, ASKED) {
            self.change(hash, |bucket| bucket.ask_for(key));
        }
        Some(bucket.ino(found))
    }

    pub(super) fn put(&self, key: Key<'_>, ino: Option<Ino>) {
        let hash = self.hash(key);
        let used = self.change(hash, |bucket| {
            bucket.put(key, ino);
            bucket.used
        });
        if used > CROWDED && ino.is_some() {
            self.grow();
        }
    }

    pub(super) fn remove(&self, key: Key<'_>) {
        self.change(self.hash(key), |bucket| bucket.remove(key));
    }

    /// Names that differ in the last byte only lie in neighbouring buckets: such are often asked for one after the other.
    #[inline]
    fn hash(&self, key: Key<'_>) -> u64 {
        let (last, others) = key.name.split_last().unwrap_or((&0, &[]));
        let others = Key {
            name: others,
            ..key
        };
        let hash = self.hasher.hash_one(others);
        hash.wrapping_add(u64::from(*last))
    }

    #[inline]
    fn record(&self, place: u64) -> Record<'_, WORDS> {
        let (buckets, _) = self.words.as_chunks::<BUCKET_WORDS>();
        Record::of(&buckets[place as usize])
    }

    fn change<T>(&self, hash: u64, change: impl FnOnce(&mut Bucket) -> T) -> T {
        let change = |words: &mut _| in_bucket(words, change);
        self.buckets
            .change(hash, |place| self.record(place), change)
    }

    fn grow(&self) {
        let most = self.words.len() / BUCKET_WORDS;
        let record = |place: u64| {
            // Memory that is looked at before it is stored to takes two faults, and other processors hear of the second. (What is
            // in use already loses nothing.)
            if place.is_multiple_of(BUCKETS_PER_PAGE) {
                // Not an addition of 0, which is compiled as a load.
                let head = &self.words[place as usize * BUCKET_WORDS];
                let _ = head.compare_exchange(0, 0, Ordering::Relaxed, Ordering::Relaxed);
            }
            self.record(place)
        };
        self.buckets.grow(most as u64, record, |from, to, goes| {
            in_bucket(from, |from| {
                let goes = |key: Key<'_>| goes(self.hash(key));
                in_bucket(to, |to| from.split(to, goes));
            });
        });
    }
}

fn in_bucket<T>(words: &mut [u64; WORDS], change: impl FnOnce(&mut Bucket) -> T) -> T {
    let mut bucket = Bucket::of(*words);
    let changed = change(&mut bucket);
    *words = bucket.words();
    changed
}

/// What a record tells, without its name.
#[derive(Clone)]
struct Head {
    /// [`ASKED`] or nothing.
    asked: u8,
    ino: u32,
    /// If it tells its own.
    dir: Option<(Ino, u32)>,
    /// Bytes that it has of the name before it.
    shared: usize,
    /// Where the others are; the record ends there.
    own: Range<usize>,
}

/// A record's directory and name, put together.
#[derive(Clone)]
struct Whole {
    dir: (Ino, u32),
    name: [u8; ROOM],
    len: usize,
}

impl Whole {
    /// What is before the first.
    const NONE: Whole = Whole {
        dir: NO_DIR,
        name: [0; ROOM],
        len: 0,
    };

    fn key(&self) -> Key<'_> {
        Key {
            dir: self.dir,
            name: &self.name[..self.len],
        }
    }

    /// That of the record behind it.
    fn follow(&mut self, head: &Head, own: &[u8]) {
        self.dir = head.dir.unwrap_or(self.dir);
        self.len = head.shared + own.len();
        self.name[head.shared..self.len].copy_from_slice(own);
    }
}

/// Where a record's own part of the name begins.
#[inline]
fn own_start(start: usize, dir: Option<(Ino, u32)>) -> usize {
    start + HEAD + if dir.is_some() { DIR } else { 0 }
}

/// How many bytes at the beginning are the same.
#[inline]
fn common(one: &[u8], other: &[u8]) -> usize {
    let len = one.len().min(other.len());
    let (one, other) = (&one[..len], &other[..len]);
    let (words, _) = one.as_chunks();
    let (others, _) = other.as_chunks();
    for (at, (word, other)) in words.iter().zip(others).enumerate() {
        let differ = u64::from_le_bytes(*word) ^ u64::from_le_bytes(*other);
        if differ != 0 {
            return at * size_of::<u64>() + differ.trailing_zeros() as usize / 8;
        }
    }
    let whole = len - len % size_of::<u64>();
    let rest = one[whole..].iter().zip(&other[whole..]);
    whole + rest.take_while(|(one, other)| one == other).count()
}

impl Bucket {
    const EMPTY: Bucket = Bucket {
        used: 0,
        records: [0; ROOM],
    };

    #[inline]
    fn word(&self, at: usize) -> u32 {
        let bytes = self.records[at..].first_chunk();
        u32::from_le_bytes(*bytes.expect("it is inside a record"))
    }

    fn has(&self, start: usize, flag: u8) -> bool {
        self.records[start + 1] & flag != 0
    }

    fn ino(&self, start: usize) -> Option<Ino> {
        let ino = self.word(start + 2);
        (ino != 0).then_some(Ino(ino))
    }

    /// The record at a place, if one is there.
    #[inline]
    fn head(&self, start: usize) -> Option<Head> {
        if start >= usize::from(self.used) {
            return None;
        }
        let [len, flags] = [self.records[start], self.records[start + 1]];
        let behind = start + HEAD;
        let dir = (flags & SAME_DIR == 0).then(|| (Ino(self.word(behind)), self.word(behind + 4)));
        let own = own_start(start, dir);
        Some(Head {
            asked: flags & ASKED,
            ino: self.word(start + 2),
            dir,
            shared: usize::from(flags >> SHARED_SHIFT),
            own: own..own + usize::from(len),
        })
    }

    /// Writes all of a record but its part of the name, of which it says the length only. Returns where that part begins.
    fn set_head(&mut self, start: usize, head: &Head) -> usize {
        let same = if head.dir.is_some() { 0 } else { SAME_DIR };
        let mut at = start + HEAD;
        // Both are parts of a name that has room in a bucket.
        self.records[start] = head.own.len() as u8;
        self.records[start + 1] = head.asked | same | (head.shared << SHARED_SHIFT) as u8;
        self.records[start + 2..at].copy_from_slice(&head.ino.to_le_bytes());
        if let Some((dir, generation)) = head.dir {
            self.records[at..at + 4].copy_from_slice(&dir.0.to_le_bytes());
            self.records[at + 4..at + DIR].copy_from_slice(&generation.to_le_bytes());
            at += DIR;
        }
        at
    }

    /// Where the record of a name is.
    #[inline]
    fn find(&self, key: Key<'_>) -> Option<usize> {
        // How far the name is that of the record before, and the directory of that.
        let (mut start, mut like, mut dir) = (0, 0, NO_DIR);
        while let Some(head) = self.head(start) {
            dir = head.dir.unwrap_or(dir);
            // A record that shares more has the byte, too, in which the one before it differs.
            if head.shared <= like {
                let own = &self.records[head.own.clone()];
                let alike = common(&key.name[head.shared..], own);
                like = head.shared + alike;
                if like == key.name.len() && alike == own.len() && dir == key.dir {
                    return Some(start);
                }
            }
            start = head.own.end;
        }
        None
    }

    /// Goes over the records, the oldest first. Returns what the last one is.
    fn each(&self, mut see: impl FnMut(Key<'_>, &Head)) -> Whole {
        let (mut start, mut whole) = (0, Whole::NONE);
        while let Some(head) = self.head(start) {
            whole.follow(&head, &self.records[head.own.clone()]);
            see(whole.key(), &head);
            start = head.own.end;
        }
        whole
    }

    fn ask_for(&mut self, key: Key<'_>) {
        if let Some(start) = self.find(key) {
            self.records[start + 1] |= ASKED;
        }
    }

    fn take_out(&mut self, start: usize) {
        let used = usize::from(self.used);
        let Some(gone) = self.head(start) else { return };
        let Some(mut next) = self.head(gone.own.end) else {
            self.used = start as u8;
            return;
        };
        // What the next one has of this one, and this one not of the one before, it has by itself now; and its directory.
        let needed = next.shared.saturating_sub(gone.shared);
        let mut bytes = [0; MOST_SHARED];
        bytes[..needed].copy_from_slice(&self.records[gone.own.start..][..needed]);
        next.shared -= needed;
        next.dir = next.dir.or(gone.dir);
        let rest = next.own.start;
        next.own.start -= needed;
        // That is never more than what was here.
        let to = own_start(start, next.dir) + needed;
        self.records.copy_within(rest..used, to);
        let own = self.set_head(start, &next);
        self.records[own..to].copy_from_slice(&bytes[..needed]);
        self.used -= (rest - to) as u8;
    }

    fn remove(&mut self, key: Key<'_>) {
        if let Some(start) = self.find(key) {
            self.take_out(start);
        }
    }

    /// Those that go lie in the other, which is empty, in their order.
    fn split(&mut self, to: &mut Bucket, goes: impl Fn(Key<'_>) -> bool) {
        let all = std::mem::replace(self, Bucket::EMPTY);
        let (mut last_here, mut last_there) = (Whole::NONE, Whole::NONE);
        all.each(|key, head| {
            let (bucket, last) = match goes(key) {
                true => (&mut *to, &mut last_there),
                false => (&mut *self, &mut last_here),
            };
            // There is room: what is left out takes more than who follows it needs without.
            let added = bucket.push_behind(last, key, head.ino, head.asked);
            debug_assert!(added);
        });
    }

    fn put(&mut self, key: Key<'_>, ino: Option<Ino>) {
        self.remove(key);
        if HEAD + DIR + key.name.len() > ROOM || key.name.is_empty() {
            return;
        }
        while !self.push(key, ino, 0) {
            self.drop_oldest();
        }
    }

    /// Adds the youngest. False if it has no room.
    fn push(&mut self, key: Key<'_>, ino: Option<Ino>, asked: u8) -> bool {
        let mut last = self.each(|_, _| {});
        self.push_behind(&mut last, key, ino.map_or(0, |ino| ino.0), asked)
    }

    /// As [`Bucket::push`]. `last` is the youngest, before and afterwards.
    fn push_behind(&mut self, last: &mut Whole, key: Key<'_>, ino: u32, asked: u8) -> bool {
        let shared = common(last.key().name, key.name).min(MOST_SHARED);
        let own = &key.name[shared..];
        let dir = (last.dir != key.dir).then_some(key.dir);
        let start = usize::from(self.used);
        let at = own_start(start, dir);
        let end = at + own.len();
        if end > ROOM {
            return false;
        }
        let head = Head {
            asked,
            ino,
            dir,
            shared,
            own: at..end,
        };
        self.set_head(start, &head);
        self.records[at..end].copy_from_slice(own);
        // It is at most `ROOM`.
        self.used = end as u8;
        last.follow(&head, own);
        true
    }

    /// The oldest leaves; but one that was asked for becomes the youngest, if there is room for its directory's number, and has
    /// to be asked for again.
    fn drop_oldest(&mut self) {
        let before = *self;
        self.take_out(0);
        if let Some(head) = before.head(0).filter(|head| head.asked != 0) {
            let mut oldest = Whole::NONE;
            oldest.follow(&head, &before.records[head.own.clone()]);
            self.push(oldest.key(), before.ino(0), 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{HashMap, HashSet};

    fn key(dir: u32, name: &[u8]) -> Key<'_> {
        let dir = (Ino(dir), 7);
        Key { dir, name }
    }

    #[test]
    fn names_are_told_apart_by_directory_generation_and_bytes() {
        let table = Table::new(1 << 20);
        table.put(key(2, b"a"), Some(Ino(11)));
        table.put(key(3, b"a"), None);
        assert_eq!(table.get(key(2, b"a")), Some(Some(Ino(11))));
        assert_eq!(table.get(key(3, b"a")), Some(None));
        assert_eq!(table.get(key(2, b"b")), None);
        let dir = (Ino(2), 8);
        assert_eq!(table.get(Key { dir, name: b"a" }), None);
        table.remove(key(2, b"a"));
        assert_eq!(table.get(key(2, b"a")), None);
    }

    #[test]
    fn names_that_differ_in_the_last_byte_lie_side_by_side() {
        let table = Table::new(1 << 20);
        let first = table.hash(key(2, b"file-10"));
        for (at, name) in [b"file-11", b"file-12", b"file-13"].into_iter().enumerate() {
            let distance = table.hash(key(2, name)).wrapping_sub(first);
            assert_eq!(distance, at as u64 + 1);
        }
        assert!(table.hash(key(2, b"file-20")).wrapping_sub(first) > 255);
        assert!(table.hash(key(3, b"file-11")).wrapping_sub(first) > 255);
    }

    #[test]
    fn name_that_was_asked_for_outlives_those_that_were_not() {
        let table = Table::new(0);
        for number in 0..100_000u32 {
            table.put(key(2, b"asked for"), Some(Ino(11)));
            table.put(key(2, &number.to_le_bytes()), None);
            assert!(table.get(key(2, b"asked for")).is_some(), "{number}");
        }
        let known = (0..100_000u32).filter(|n| table.get(key(2, &n.to_le_bytes())).is_some());
        assert!(known.count() <= BUCKET_BYTES / (HEAD + 4));
    }

    #[test]
    fn name_that_has_no_room_in_a_bucket_is_not_kept() {
        let table = Table::new(0);
        for len in 1..=255 {
            let name = vec![b'n'; len];
            table.put(key(2, &name), Some(Ino(11)));
            assert_eq!(
                table.get(key(2, &name)).is_some(),
                len <= ROOM - HEAD - DIR,
                "{len}"
            );
        }
    }

    #[test]
    fn names_are_kept_while_there_is_room_and_take_no_more_than_they_need() {
        const NAMES: u32 = 50_000;
        let table = Table::new(64 << 20);
        let name = |number: u32| format!("file-{number:08}").into_bytes();
        let known = || (0..NAMES).filter(|&n| table.get(key(2, &name(n))).is_some());
        // What found no room in its bucket is put again by who looks for it, and asks for one more.
        for _ in 0..3 {
            for number in 0..NAMES {
                if table.get(key(2, &name(number))).is_none() {
                    table.put(key(2, &name(number)), Some(Ino(number + 11)));
                }
            }
        }
        assert!(known().count() as u32 > NAMES / 100 * 98);
        for number in 0..NAMES {
            let ino = table.get(key(2, &name(number)));
            assert!(ino.is_none_or(|ino| ino == Some(Ino(number + 11))));
        }
        let used = table.buckets.count() * BUCKET_BYTES as u64;
        assert!(used < 52 * u64::from(NAMES), "{used}");
    }

    #[test]
    fn names_that_are_not_there_take_no_more_memory() {
        let table = Table::new(64 << 20);
        for number in 0..100_000u32 {
            table.put(key(2, &number.to_le_bytes()), None);
        }
        assert_eq!(table.buckets.count(), FIRST);
    }

    /// Such as begin alike, for more bytes than a record can say and for none.
    fn names() -> impl Strategy<Value = Vec<u8>> {
        let lens = vec![0, 1, 9, MOST_SHARED - 1, MOST_SHARED, 100];
        let begins = prop::sample::select(vec!["x", "begins"]);
        let ends = prop::sample::select(vec!["", "y", "z", "yz"]);
        let parts = (begins, prop::sample::select(lens), ends);
        parts.prop_map(|(begin, len, end)| [begin, &"x".repeat(len), end].concat().into_bytes())
    }

    proptest! {
        #[test]
        fn what_is_known_is_what_was_put_last(
            bytes in prop::sample::select(vec![0, 1 << 20]),
            steps in prop::collection::vec(
                (0..3u8, prop_oneof![0..3u32, 0..40u32], names(), 0..5u32),
                1..400,
            ),
        ) {
            let (mut table, mut model) = (Table::new(bytes), HashMap::new());
            table.buckets = Buckets::new(1);
            for (what, dir, name, ino) in steps {
                let ino = (ino > 0).then_some(Ino(ino));
                match what {
                    0 => {
                        table.put(key(dir, &name), ino);
                        prop_assert_eq!(table.get(key(dir, &name)), Some(ino));
                        model.insert((dir, name), ino);
                    }
                    1 => {
                        table.remove(key(dir, &name));
                        model.remove(&(dir, name));
                    }
                    _ => if let Some(known) = table.get(key(dir, &name)) {
                        prop_assert_eq!(Some(&known), model.get(&(dir, name)));
                    }
                }
            }
            let names: HashSet<_> = model.keys().map(|(_, name)| name).collect();
            for (name, dir) in names.into_iter().flat_map(|name| (0..40).map(move |dir| (name, dir))) {
                if let Some(known) = table.get(key(dir, name)) {
                    prop_assert_eq!(Some(&known), model.get(&(dir, name.clone())));
                }
            }
        }
    }
}
