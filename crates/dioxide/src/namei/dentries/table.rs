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
//! Most names of a bucket are of one directory where that is large, so that a record tells its directory only if the one before it
//! has another.
//!
//! Invariants: a bucket is records up to [`Bucket::used`], each with a name of at least one byte, the first with its
//! directory; no two are of one name.

use crate::sync::buckets::Buckets;
use crate::sync::record::Record;
use dioxide_block::mem::Words;
use dioxide_format::types::Ino;
use foldhash::quality::RandomState;
use std::hash::BuildHasher;
use std::ops::Range;

/// Words of a bucket, behind the head of its record: so that it fills four lines. Where it fills two, and has room for four names,
/// the loads of buckets differ so much that one name in fifty is lost with as much memory.
const WORDS: usize = 31;
const BUCKET_WORDS: usize = 1 + WORDS;
const BUCKET_BYTES: usize = BUCKET_WORDS * size_of::<u64>();
/// Bytes of a bucket's names; one is how many of them are used.
const ROOM: usize = WORDS * size_of::<u64>() - 1;
/// What a record has before the name: its length, flags, what the name stands for; and the directory with its generation, unless
/// that is [`SAME_DIR`].
const HEAD: usize = 6;
const DIR: usize = 8;
/// It was asked for since it came.
const ASKED: u8 = 1;
/// It is of the directory that the record before it is of.
const SAME_DIR: u8 = 2;
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
        let record = |place| self.record(place);
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

impl Bucket {
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

    /// Where the name of a record begins, and where the record ends.
    fn name_of(&self, start: usize) -> Range<usize> {
        let own = usize::from(!self.has(start, SAME_DIR));
        let name = start + HEAD + own * DIR;
        name..name + usize::from(self.records[start])
    }

    /// The record at a place, of this directory if it does not tell its own.
    fn key_at(&self, start: usize, before: (Ino, u32)) -> Key<'_> {
        let dir = match self.has(start, SAME_DIR) {
            true => before,
            false => (Ino(self.word(start + HEAD)), self.word(start + HEAD + 4)),
        };
        let name = &self.records[self.name_of(start)];
        Key { dir, name }
    }

    /// The records with their places, the oldest first.
    fn iter(&self) -> impl Iterator<Item = (usize, Key<'_>)> {
        let (mut next, mut dir) = (0, NO_DIR);
        std::iter::from_fn(move || {
            let start = next;
            (start < usize::from(self.used)).then(|| {
                let key = self.key_at(start, dir);
                (next, dir) = (self.name_of(start).end, key.dir);
                (start, key)
            })
        })
    }

    fn find(&self, key: Key<'_>) -> Option<usize> {
        let found = self.iter().find(|(_, other)| *other == key);
        found.map(|(start, _)| start)
    }

    fn ask_for(&mut self, key: Key<'_>) {
        if let Some(start) = self.find(key) {
            self.records[start + 1] |= ASKED;
        }
    }

    fn take_out(&mut self, start: usize) {
        let used = usize::from(self.used);
        let end = self.name_of(start).end;
        let (mut to, mut rest) = (start, end);
        if end < used && !self.has(start, SAME_DIR) && self.has(end, SAME_DIR) {
            // The next one tells the directory now, which stays where it is.
            self.records.copy_within(end..end + HEAD, start);
            self.records[start + 1] &= !SAME_DIR;
            (to, rest) = (start + HEAD + DIR, end + HEAD);
        }
        self.records.copy_within(rest..used, to);
        self.used -= (rest - to) as u8;
    }

    fn remove(&mut self, key: Key<'_>) {
        if let Some(start) = self.find(key) {
            self.take_out(start);
        }
    }

    /// Those that go lie in the other, which is empty, in their order.
    fn split(&mut self, to: &mut Bucket, goes: impl Fn(Key<'_>) -> bool) {
        let (mut start, mut dir) = (0, NO_DIR);
        while start < usize::from(self.used) {
            let key = self.key_at(start, dir);
            dir = key.dir;
            if !goes(key) {
                start = self.name_of(start).end;
                continue;
            }
            // There is room: of each directory they need no more than they had.
            let added = to.push(key, self.ino(start), self.records[start + 1] & ASKED);
            debug_assert!(added);
            self.take_out(start);
        }
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
        let last = self.iter().last().map(|(_, last)| last.dir);
        let (same, own) = match last == Some(key.dir) {
            true => (SAME_DIR, 0),
            false => (0, DIR),
        };
        let start = usize::from(self.used);
        let end = start + HEAD + own + key.name.len();
        let Some(record) = self.records.get_mut(start..end) else {
            return false;
        };
        // Both are at most `ROOM`.
        self.used = end as u8;
        record[0] = key.name.len() as u8;
        record[1] = asked | same;
        record[2..HEAD].copy_from_slice(&ino.map_or(0, |ino| ino.0).to_le_bytes());
        if own > 0 {
            record[HEAD..HEAD + 4].copy_from_slice(&key.dir.0.0.to_le_bytes());
            record[HEAD + 4..HEAD + DIR].copy_from_slice(&key.dir.1.to_le_bytes());
        }
        record[HEAD + own..].copy_from_slice(key.name);
        true
    }

    /// The oldest leaves; but one that was asked for becomes the youngest, if there is room for its directory's number, and has
    /// to be asked for again.
    fn drop_oldest(&mut self) {
        let before = *self;
        self.take_out(0);
        if before.has(0, ASKED) {
            self.push(before.key_at(0, NO_DIR), before.ino(0), 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

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
        assert!(used < 80 * u64::from(NAMES), "{used}");
    }

    #[test]
    fn names_that_are_not_there_take_no_more_memory() {
        let table = Table::new(64 << 20);
        for number in 0..100_000u32 {
            table.put(key(2, &number.to_le_bytes()), None);
        }
        assert_eq!(table.buckets.count(), FIRST);
    }

    proptest! {
        #[test]
        fn what_is_known_is_what_was_put_last(
            bytes in prop::sample::select(vec![0, 1 << 20]),
            steps in prop::collection::vec(
                (0..3u8, prop_oneof![0..3u32, 0..40u32], 0..60usize, 0..5u32),
                1..400,
            ),
        ) {
            let (mut table, mut model) = (Table::new(bytes), HashMap::new());
            table.buckets = Buckets::new(1);
            for (what, dir, len, ino) in steps {
                let name = vec![b'x'; 1 + len];
                let ino = (ino > 0).then_some(Ino(ino));
                match what {
                    0 => {
                        table.put(key(dir, &name), ino);
                        model.insert((dir, len), ino);
                        prop_assert_eq!(table.get(key(dir, &name)), Some(ino));
                    }
                    1 => {
                        table.remove(key(dir, &name));
                        model.remove(&(dir, len));
                    }
                    _ => if let Some(known) = table.get(key(dir, &name)) {
                        prop_assert_eq!(Some(&known), model.get(&(dir, len)));
                    }
                }
            }
        }
    }
}
