use super::*;
use crate::record::{Action, Entry};
use crate::{Device, Durability};
use proptest::prelude::*;
use std::collections::BTreeSet;

const SECTORS: usize = 16;
const BYTES: usize = SECTORS * 512;

pub(super) fn write(
    issued: u64,
    completed: impl Into<Option<u64>>,
    sector: u64,
    fill: &[u8],
) -> Entry {
    written(issued, completed, sector, fill, false)
}

fn forced(issued: u64, completed: u64, sector: u64, fill: &[u8]) -> Entry {
    written(issued, completed, sector, fill, true)
}

fn written(
    issued: u64,
    completed: impl Into<Option<u64>>,
    sector: u64,
    fill: &[u8],
    fua: bool,
) -> Entry {
    let bytes: Vec<u8> = fill.iter().flat_map(|&byte| [byte; 512]).collect();
    Entry {
        issued,
        completed: completed.into(),
        action: Action::Write {
            offset: sector * 512,
            bytes: bytes.into(),
            fua,
            atomic: false,
        },
    }
}

pub(super) fn flush(issued: u64, completed: impl Into<Option<u64>>) -> Entry {
    Entry {
        issued,
        completed: completed.into(),
        action: Action::Flush,
    }
}

/// The first byte of each sector.
fn sectors(device: &CowDevice) -> [u8; SECTORS] {
    let image = device.snapshot().to_vec();
    std::array::from_fn(|sector| {
        let bytes = &image[sector * 512..][..512];
        assert!(bytes.iter().all(|&b| b == bytes[0]), "a sector is whole");
        bytes[0]
    })
}

fn base() -> Snapshot {
    Snapshot::new(&[0; BYTES])
}

/// Everything that the media may hold at any moment, as first bytes of sectors.
fn all(log: &Log, options: Options) -> Vec<(State, [u8; SECTORS])> {
    let mut media = Media::new(base(), log, Cache::Volatile);
    let states = States::new(log, options);
    let crashed = states.map(|state| {
        let (device, _) = media.crash(&state).expect("a state of the log");
        let found = sectors(&device);
        (state, found)
    });
    crashed.collect()
}

/// What crashes at these times find.
fn at(log: &Log, times: std::ops::RangeInclusive<u64>) -> BTreeSet<[u8; SECTORS]> {
    let states = all(log, Options::default()).into_iter();
    let then = states.filter(|(state, _)| times.contains(&state.at));
    then.map(|(_, found)| found).collect()
}

fn found(pairs: &[(usize, u8)]) -> [u8; SECTORS] {
    let mut sectors = [0; SECTORS];
    pairs
        .iter()
        .for_each(|&(sector, byte)| sectors[sector] = byte);
    sectors
}

#[test]
fn write_before_a_flush_is_uncertain_until_the_flush_completes() {
    let log = Log::new(vec![
        write(0, 1, 3, &[7]),
        flush(2, 3),
        write(4, 5, 4, &[8]),
    ]);
    assert_eq!(at(&log, 0..=1), [found(&[]), found(&[(3, 7)])].into());
    let after = [found(&[(3, 7)])];
    assert_eq!(at(&log, 4..=4), after.into());
    let both = [found(&[(3, 7)]), found(&[(3, 7), (4, 8)])];
    assert_eq!(at(&log, 4..=5), both.into());
}

#[test]
fn write_that_completes_after_a_flush_was_issued_is_not_covered() {
    let log = Log::new(vec![write(0, 2, 3, &[7]), flush(1, 3)]);
    let options = Options {
        marks: vec![4],
        ..Options::default()
    };
    let states = all(&log, options);
    let lost = states.iter().any(|(s, f)| s.at == 4 && *f == found(&[]));
    assert!(lost, "{states:?}");
}

#[test]
fn flush_that_never_completed_covers_nothing() {
    let log = Log::new(vec![
        write(0, 1, 3, &[7]),
        flush(2, None),
        write(3, 4, 4, &[8]),
    ]);
    assert!(at(&log, 4..=4).contains(&found(&[(4, 8)])));
}

#[test]
fn forced_write_is_certain_and_hides_what_was_there_before_it() {
    let log = Log::new(vec![write(0, 1, 3, &[1, 1]), forced(2, 3, 3, &[2])]);
    let expected = [found(&[(3, 2)]), found(&[(3, 2), (4, 1)])];
    assert_eq!(at(&log, 4..=4), expected.into());
}

#[test]
fn forced_write_that_raced_with_another_may_be_below_it() {
    let log = Log::new(vec![forced(0, 2, 3, &[2]), write(1, 3, 3, &[1])]);
    assert_eq!(at(&log, 3..=3), [found(&[(3, 2)]), found(&[(3, 1)])].into());
}

#[test]
fn few_writes_give_all_their_subsets() {
    let writes = (0..10).map(|i| write(2 * i, 2 * i + 1, i, &[1]));
    let log = Log::new(writes.collect());
    let states: BTreeSet<_> = all(&log, Options::default())
        .into_iter()
        .map(|s| s.1)
        .collect();
    assert_eq!(states.len(), 1 << 10);
}

#[test]
fn many_writes_give_each_alone_and_each_missing() {
    let writes = (0..14).map(|i| write(2 * i, 2 * i + 1, i, &[1]));
    let log = Log::new(writes.collect());
    let states: BTreeSet<_> = all(&log, Options::default())
        .into_iter()
        .map(|s| s.1)
        .collect();
    let full: Vec<(usize, u8)> = (0..14).map(|i| (i, 1)).collect();
    for one in 0..14 {
        let mut but_one = full.clone();
        but_one.remove(one);
        assert!(states.contains(&found(&[(one, 1)])), "{one} alone");
        assert!(states.contains(&found(&but_one)), "all but {one}");
    }
}

#[test]
fn torn_write_is_there_in_part() {
    let log = Log::new(vec![write(0, 1, 4, &[1; 12])]);
    let options = Options {
        torn: 200,
        ..Options::default()
    };
    let states: BTreeSet<_> = all(&log, options).into_iter().map(|s| s.1).collect();
    let first = found(&[(4, 1)]);
    let page: Vec<(usize, u8)> = (4..8).map(|i| (i, 1)).collect();
    assert!(states.contains(&first) && states.contains(&found(&page)));
    assert!(states.len() > 50, "{}", states.len());
}

#[test]
fn write_is_not_torn_inside_a_range_that_is_taken_whole() {
    let log = Log::new(vec![write(0, 1, 1, &[1; 4])]);
    let options = Options {
        torn: 200,
        whole: std::iter::once(1024..2048).collect(),
        ..Options::default()
    };
    let states: BTreeSet<_> = all(&log, options).into_iter().map(|s| s.1).collect();
    assert!(
        states.iter().all(|found| found[2] == found[3]),
        "{states:?}"
    );
    assert!(states.contains(&found(&[(1, 1)])) && states.contains(&found(&[(4, 1)])));
}

/// As `write`, but atomic.
fn whole(issued: u64, completed: impl Into<Option<u64>>, sector: u64, fill: &[u8]) -> Entry {
    let mut entry = write(issued, completed, sector, fill);
    if let Action::Write { atomic, .. } = &mut entry.action {
        *atomic = true;
    }
    entry
}

#[test]
fn atomic_write_is_there_or_not_and_never_in_part() {
    let log = Log::new(vec![
        write(0, 1, 4, &[1; 8]),
        whole(2, 3, 4, &[2; 4]),
        whole(4, None, 4, &[3; 8]),
    ]);
    let options = Options {
        torn: 200,
        ..Options::default()
    };
    let found: BTreeSet<_> = all(&log, options).into_iter().map(|s| s.1).collect();
    for sectors in &found {
        let twos = (4..8).filter(|&at| sectors[at] == 2).count();
        let threes = (4..12).filter(|&at| sectors[at] == 3).count();
        assert!(
            [0, 4].contains(&twos) && [0, 8].contains(&threes),
            "{sectors:?}"
        );
    }
    let ones = |sectors: &[u8; SECTORS]| sectors.iter().filter(|&&byte| byte == 1).count();
    assert!(
        found
            .iter()
            .any(|sectors| ![0, 4, 8].contains(&ones(sectors)))
    );
}

#[test]
fn part_of_an_atomic_write_is_no_state() {
    let log = Log::new(vec![whole(0, 1, 4, &[1; 8])]);
    let mut media = Media::new(base(), &log, Cache::Volatile);
    let refused = media.crash(&"1:0[0-4]".parse().expect("a state"));
    assert!(matches!(refused, Err(StateError::Torn(0))));
    media
        .crash(&"1:0".parse().expect("a state"))
        .expect("whole");
}

#[test]
fn mark_gives_the_states_before_it_once_more() {
    let log = Log::new(vec![write(0, 1, 3, &[7])]);
    let options = Options {
        marks: vec![2],
        ..Options::default()
    };
    let states = all(&log, options);
    for lost in [false, true] {
        let wanted = if lost { found(&[]) } else { found(&[(3, 7)]) };
        assert!(states.iter().any(|(s, f)| s.at == 2 && *f == wanted));
    }
}

#[test]
fn same_options_give_the_same_states_and_no_state_twice() {
    let writes = (0..20).map(|i| write(2 * i, 2 * i + 1, i % 8, &[i as u8; 8]));
    let log = Log::new(writes.collect());
    let list = || States::new(&log, Options::default()).collect::<Vec<State>>();
    let states = list();
    assert_eq!(states, list());
    let texts: BTreeSet<String> = states.iter().map(State::to_string).collect();
    assert_eq!(texts.len(), states.len());
}

#[test]
fn state_that_is_not_of_the_log_is_refused() {
    let log = Log::new(vec![write(0, 1, 3, &[7]), flush(2, 3)]);
    let mut media = Media::new(base(), &log, Cache::Volatile);
    for text in ["1:1", "4:0", "0:0", "9:5"] {
        let state: State = text.parse().expect("a state");
        let refused = media.crash(&state).expect_err(text);
        assert!(matches!(refused, StateError::Entry { .. }), "{refused}");
    }
    for text in ["", "x", "1:a", "1:2[3]", "1:2[3-4", "1:,"] {
        assert!(text.parse::<State>().is_err(), "{text}");
    }
}

#[test]
fn write_past_the_end_of_the_image_is_refused() {
    let log = Log::new(vec![write(0, 1, SECTORS as u64, &[7])]);
    let mut media = Media::new(base(), &log, Cache::Volatile);
    let refused = media.crash(&"1:0".parse().expect("a state"));
    assert!(matches!(refused, Err(StateError::Outside { .. })));
}

#[test]
fn cow_device_changes_neither_its_base_nor_its_siblings() {
    let base = base();
    let one = CowDevice::new(&base, Cache::NoFua);
    let other = CowDevice::new(&base, Cache::Volatile);
    one.write_at(4096 - 512, &[9; 1024], Durability::Cached)
        .expect("write");
    assert!(other.snapshot().to_vec() == base.to_vec());
    assert_eq!(sectors(&one), found(&[(7, 9), (8, 9)]));
    one.write_zeroes(4096, 512).expect("zero");
    assert_eq!(sectors(&one), found(&[(7, 9)]));
    assert!(!one.geometry().fua && other.geometry().fua);
}

/// Random operations, some at the same time; some never complete.
fn logs() -> impl Strategy<Value = Log> {
    let step = (0..8u8, 0..SECTORS as u64 - 2, 0..4u8);
    prop::collection::vec(step, 1..14).prop_map(|steps| {
        let mut number = 0;
        let mut next = || {
            number += 1;
            number - 1
        };
        let mut entries: Vec<Entry> = Vec::new();
        for (index, (kind, sector, delay)) in steps.into_iter().enumerate() {
            let fill = [index as u8 + 1; 2];
            entries.push(match kind {
                0 | 1 => flush(next(), None),
                2 => written(next(), None, sector, &fill, true),
                _ => write(next(), None, sector, &fill),
            });
            // What was issued some steps ago completes.
            let open = entries.iter_mut().filter(|entry| entry.completed.is_none());
            if let Some(entry) = open.into_iter().nth(delay as usize) {
                entry.completed = Some(next());
            }
        }
        Log::new(entries)
    })
}

/// What a sector may hold at a time, straight from the rules.
fn legal(log: &Log, sector: u64, at: u64) -> BTreeSet<u8> {
    let entries = log.entries();
    let done = |entry: &Entry| entry.completed.is_some_and(|completed| completed < at);
    let covers = |flush: &Entry, completed: u64| {
        flush.action == Action::Flush && done(flush) && flush.issued > completed
    };
    let certain = |entry: &Entry| match (&entry.action, entry.completed) {
        (Action::Write { fua: true, .. }, _) => done(entry),
        (Action::Write { .. }, Some(c)) => entries.iter().any(|flush| covers(flush, c)),
        _ => false,
    };
    let here = entries.iter().filter_map(|entry| match &entry.action {
        Action::Write { offset, bytes, .. } => {
            let first = offset / 512;
            let is_here = entry.issued < at && (first..first + 2).contains(&sector);
            is_here.then_some((entry, bytes[0]))
        }
        _ => None,
    });
    let here: Vec<(&Entry, u8)> = here.collect();
    let hidden = |entry: &Entry| {
        let newer = |(other, _): &&(&Entry, u8)| {
            certain(other) && entry.completed.is_some_and(|c| other.issued > c)
        };
        here.iter().any(|other| newer(&other))
    };
    let shown = here.iter().filter(|(entry, _)| !hidden(entry));
    let mut legal: BTreeSet<u8> = shown.map(|&(_, byte)| byte).collect();
    if !here.iter().any(|(entry, _)| certain(entry)) {
        legal.insert(0);
    }
    legal
}

proptest! {
    #[test]
    fn every_sector_of_every_state_is_one_that_the_rules_allow(log in logs(), seed: u64) {
        let options = Options { seed, exhaustive: 6, ..Options::default() };
        for (state, found) in all(&log, options) {
            for (sector, byte) in found.into_iter().enumerate() {
                let legal = legal(&log, sector as u64, state.at);
                prop_assert!(legal.contains(&byte), "{state}: sector {sector} has {byte}, not {legal:?}\n{log:?}");
            }
        }
    }

    #[test]
    fn every_sector_that_the_rules_allow_is_in_some_state(log in logs()) {
        let states = all(&log, Options { seed: 1, exhaustive: 14, ..Options::default() });
        let times: BTreeSet<u64> = states.iter().map(|(state, _)| state.at).collect();
        for at in times {
            for sector in 0..SECTORS {
                // A subset that was listed at an earlier moment is not listed again.
                let seen: BTreeSet<u8> = states.iter().filter(|(s, _)| s.at <= at).map(|(_, f)| f[sector]).collect();
                let legal = legal(&log, sector as u64, at);
                prop_assert!(legal.is_subset(&seen), "at {at}: sector {sector}: {legal:?}, not {seen:?}\n{log:?}");
            }
        }
    }

    #[test]
    fn each_nth_moment_has_its_states_and_no_others(log in logs(), nth in 1..5usize) {
        let options = || Options { exhaustive: 14, ..Options::default() };
        let whole: BTreeSet<u64> = States::new(&log, options()).map(|state| state.at).collect();
        let states = States::new(&log, options());
        let moments = states.moments();
        let few: BTreeSet<u64> = states.every(nth).map(|state| state.at).collect();
        prop_assert!(few.is_subset(&whole) && few.len() <= moments.div_ceil(nth));
        // Nothing has been written then: there is one state.
        prop_assert!(few.contains(&0));
    }

    #[test]
    fn states_read_back_as_printed_and_give_the_same_image(log in logs(), seed: u64) {
        let mut forward = Media::new(base(), &log, Cache::Volatile);
        let mut back = Media::new(base(), &log, Cache::Volatile);
        let mut states: Vec<State> = States::new(&log, Options { seed, exhaustive: 5, ..Options::default() }).collect();
        let images: Vec<_> = states.iter().map(|state| {
            let (device, print) = forward.crash(state).expect("a state");
            (device.snapshot().to_vec(), print)
        }).collect();
        states.reverse();
        for (state, (image, print)) in states.iter().zip(images.iter().rev()) {
            let read: State = state.to_string().parse().expect("as printed");
            prop_assert_eq!(&read, state);
            let (device, again) = back.crash(&read).expect("a state");
            prop_assert!(device.snapshot().to_vec() == *image);
            prop_assert_eq!(again, *print);
        }
        for (image, print) in &images {
            for (other, other_print) in &images {
                prop_assert_eq!(image == other, print == other_print);
            }
        }
    }
}
