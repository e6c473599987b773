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
//! Invariants: a bucket is records up to [`Bucket::used`], each with a name of at least one byte; no two are of
//! one name.

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
/// What a record has before the name: length, whether it was asked for, directory, what the name stands for.
const HEAD: usize = 14;
/// Buckets of a mount that is new.
const FIRST: u64 = 64;
/// A bucket with more than so many bytes of names asks for one more.
const CROWDED: u8 = ROOM as u8 / 2;

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
        let hash = self.hasher.hash_one(key);
        let bucket = Bucket::of(self.record(self.buckets.place(hash)).read()?);
        let found = bucket.find(key)?;
        // Where there is room for more, nothing leaves soon.
        let full = usize::from(bucket.used) > ROOM / 4 * 3;
        if full && bucket.records[found.start + 1] == 0 {
            self.change(hash, |bucket| bucket.ask_for(key));
        }
        let ino = bucket.word(found.start + 10);
        Some((ino != 0).then_some(Ino(ino)))
    }

    pub(super) fn put(&self, key: Key<'_>, ino: Option<Ino>) {
        let hash = self.hasher.hash_one(key);
        let used = self.change(hash, |bucket| {
            bucket.put(key, ino);
            bucket.used
        });
        if used > CROWDED && ino.is_some() {
            self.grow();
        }
    }

    pub(super) fn remove(&self, key: Key<'_>) {
        self.change(self.hasher.hash_one(key), |bucket| bucket.remove(key));
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
                let goes = |key: Key<'_>| goes(self.hasher.hash_one(key));
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

    /// The records' places, the oldest first.
    fn find(&self, key: Key<'_>) -> Option<Range<usize>> {
        let mut start = 0;
        while start < usize::from(self.used) {
            let end = self.end_of(start);
            if self.key_at(start) == key {
                return Some(start..end);
            }
            start = end;
        }
        None
    }

    fn end_of(&self, start: usize) -> usize {
        start + HEAD + usize::from(self.records[start])
    }

    fn key_at(&self, start: usize) -> Key<'_> {
        let dir = (Ino(self.word(start + 2)), self.word(start + 6));
        let name = &self.records[start + HEAD..self.end_of(start)];
        Key { dir, name }
    }

    fn ask_for(&mut self, key: Key<'_>) {
        if let Some(found) = self.find(key) {
            self.records[found.start + 1] = 1;
        }
    }

    fn take_out(&mut self, record: Range<usize>) {
        let used = usize::from(self.used);
        self.used -= record.len() as u8;
        self.records.copy_within(record.end..used, record.start);
    }

    fn remove(&mut self, key: Key<'_>) {
        if let Some(record) = self.find(key) {
            self.take_out(record);
        }
    }

    /// Those that go lie in the other, which is empty, in their order.
    fn split(&mut self, to: &mut Bucket, goes: impl Fn(Key<'_>) -> bool) {
        let mut start = 0;
        while start < usize::from(self.used) {
            let end = self.end_of(start);
            if !goes(self.key_at(start)) {
                start = end;
                continue;
            }
            let room = usize::from(to.used)..usize::from(to.used) + (end - start);
            to.records[room.clone()].copy_from_slice(&self.records[start..end]);
            to.used += room.len() as u8;
            self.take_out(start..end);
        }
    }

    fn put(&mut self, key: Key<'_>, ino: Option<Ino>) {
        self.remove(key);
        let needed = HEAD + key.name.len();
        if needed > ROOM || key.name.is_empty() {
            return;
        }
        while usize::from(self.used) + needed > ROOM {
            self.drop_oldest();
        }
        let start = usize::from(self.used);
        let record = &mut self.records[start..start + needed];
        // Both are at most `ROOM`.
        self.used += needed as u8;
        record[0] = key.name.len() as u8;
        record[1] = 0;
        record[2..6].copy_from_slice(&key.dir.0.0.to_le_bytes());
        record[6..10].copy_from_slice(&key.dir.1.to_le_bytes());
        record[10..14].copy_from_slice(&ino.map_or(0, |ino| ino.0).to_le_bytes());
        record[HEAD..].copy_from_slice(key.name);
    }

    /// The oldest leaves; but one that was asked for becomes the youngest, and has to be asked for again.
    fn drop_oldest(&mut self) {
        let end = self.end_of(0);
        if self.records[1] == 0 {
            return self.take_out(0..end);
        }
        self.records[1] = 0;
        self.records[..usize::from(self.used)].rotate_left(end);
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
                len <= ROOM - HEAD,
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
        assert!(used < 100 * u64::from(NAMES), "{used}");
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
            steps in prop::collection::vec((0..3u8, 0..40u32, 0..60usize, 0..5u32), 1..400),
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
