use super::*;
use dioxide_block::mem::MemDevice;
use dioxide_block::sim::{Fault, FaultKind, FaultOp, SimDevice, SimSpec};
use std::sync::atomic::AtomicUsize;
use std::thread;

const BLOCK: usize = 1024;

/// Blocks that begin with a byte below 200; counts its checks.
#[derive(Debug, Default)]
struct Counted {
    checks: AtomicUsize,
    name: &'static str,
}

impl Kind for Counted {
    fn name(&self) -> &'static str {
        self.name
    }

    fn verify(&self, _: Pblk, bytes: &[u8]) -> dioxide_format::Result<()> {
        self.checks.fetch_add(1, Ordering::SeqCst);
        match bytes[0] < 200 {
            true => Ok(()),
            false => Err(dioxide_format::Error::UnsupportedFeature {
                feature: "a big first byte".into(),
            }),
        }
    }

    fn seal(&self, _: Pblk, bytes: &mut [u8]) {
        bytes[BLOCK - 1] = bytes[0] ^ 0xFF;
    }
}

impl Counted {
    fn count(&self) -> usize {
        self.checks.load(Ordering::SeqCst)
    }
}

fn cache(blocks: usize) -> (SimDevice, BufferCache) {
    let sim = SimDevice::new(Arc::new(MemDevice::new(1 << 20)), SimSpec::default());
    let cache = BufferCache::new(Arc::new(sim.clone()), BLOCK, blocks * BLOCK);
    (sim, cache)
}

fn first_byte(buffer: &Buffer, kind: &dyn Kind, byte: u8) -> Result<()> {
    buffer.change(kind, &mut |bytes| {
        bytes[0] = byte;
        Ok(())
    })
}

#[test]
fn read_again_neither_reads_nor_verifies() {
    let (sim, cache) = cache(64);
    let kind = Counted::default();
    let first = cache.read(Pblk(3), &kind).expect("read");
    sim.inject(Fault::every(FaultOp::Read, FaultKind::Io(5)));
    let second = cache.read(Pblk(3), &kind).expect("read");
    assert!(Arc::ptr_eq(&first, &second));
    assert_eq!(kind.count(), 1);
}

#[test]
fn read_of_another_kind_verifies_again() {
    let (_, cache) = cache(64);
    let (one, other) = (
        Counted::default(),
        Counted {
            name: "other",
            ..Counted::default()
        },
    );
    cache.read(Pblk(3), &one).expect("read");
    cache.read(Pblk(3), &other).expect("read");
    assert_eq!((one.count(), other.count()), (1, 1));
}

#[test]
fn read_failure_is_not_kept() {
    let (sim, cache) = cache(64);
    let kind = Counted::default();
    sim.inject(Fault::once(FaultOp::Read, FaultKind::Io(5)));
    assert!(matches!(cache.read(Pblk(3), &kind), Err(Error::Device(_))));
    assert_eq!(cache.stats(), CacheStats::default());
    cache.read(Pblk(3), &kind).expect("the second read");
}

#[test]
fn read_of_a_damaged_block_names_it_and_is_not_kept() {
    let (sim, cache) = cache(64);
    let kind = Counted::default();
    let bad = [255; BLOCK];
    sim.write_at(3 * BLOCK as u64, &bad, Default::default())
        .expect("write");
    for _ in 0..2 {
        let error = cache.read(Pblk(3), &kind).expect_err("damaged");
        assert!(matches!(error, Error::Block { block: 3, .. }), "{error:?}");
    }
    assert_eq!(kind.count(), 2);
}

#[test]
fn read_past_the_device_fails() {
    let (_, cache) = cache(64);
    for block in [1024, u64::MAX / BLOCK as u64, u64::MAX] {
        let result = cache.read(Pblk(block), &Counted::default());
        assert!(matches!(result, Err(Error::Device(_))), "{result:?}");
    }
}

#[test]
fn read_by_many_threads_loads_once() {
    let (sim, cache) = cache(64);
    let kind = Counted::default();
    let hold = sim.hold(None, FaultOp::Read);
    thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| cache.read(Pblk(3), &kind).expect("read"));
        }
        hold.wait_for(1);
        thread::sleep(std::time::Duration::from_millis(20));
        assert_eq!(hold.waiting(), 1, "the others wait for the first");
        hold.release();
    });
    assert_eq!(kind.count(), 1);
}

#[test]
fn verifier_that_panics_leaves_no_waiter() {
    #[derive(Debug)]
    struct Panics;
    impl Kind for Panics {
        fn name(&self) -> &'static str {
            "panics"
        }
        fn verify(&self, _: Pblk, _: &[u8]) -> dioxide_format::Result<()> {
            panic!("on purpose")
        }
        fn seal(&self, _: Pblk, _: &mut [u8]) {}
    }
    let (_, cache) = cache(64);
    let read = std::panic::AssertUnwindSafe(|| cache.read(Pblk(3), &Panics));
    assert!(std::panic::catch_unwind(read).is_err());
    cache.read(Pblk(3), &Counted::default()).expect("read");
}

#[test]
fn change_replaces_and_seals_and_readers_keep_theirs() {
    let (_, cache) = cache(64);
    let kind = Counted::default();
    let (buffer, old) = cache.get(Pblk(3), &kind).expect("read");
    first_byte(&buffer, &kind, 7).expect("change");
    let new = cache.read(Pblk(3), &kind).expect("read");
    assert_eq!((old[0], old[BLOCK - 1]), (0, 0));
    assert_eq!((new[0], new[BLOCK - 1]), (7, 0xF8));
}

#[test]
fn change_that_fails_changes_nothing() {
    let (_, cache) = cache(64);
    let kind = Counted::default();
    let (buffer, old) = cache.get(Pblk(3), &kind).expect("read");
    let failed = buffer.change(&kind, &mut |bytes| {
        bytes[0] = 7;
        Err(Error::Unsupported("this".into()))
    });
    assert!(failed.is_err());
    assert!(Arc::ptr_eq(&old, &buffer.bytes()));
}

#[test]
fn change_of_a_version_that_somebody_has_does_not_block_readers() {
    let (_, cache) = cache(64);
    let kind = Counted::default();
    let (buffer, _held) = cache.get(Pblk(3), &kind).expect("read");
    buffer
        .change(&kind, &mut |_| {
            let now = cache.read(Pblk(3), &kind)?;
            assert_eq!(now[0], 0, "what was there before the change");
            Ok(())
        })
        .expect("change");
}

#[test]
fn change_of_a_version_that_nobody_has_is_made_in_place() {
    let (_, cache) = cache(64);
    let kind = Counted::default();
    let (buffer, _) = cache.get(Pblk(3), &kind).expect("read");
    let before = buffer.bytes().as_ptr();
    first_byte(&buffer, &kind, 7).expect("change");
    let now = buffer.bytes();
    assert_eq!((now[0], now[BLOCK - 1]), (7, 0xF8), "changed and sealed");
    assert_eq!(now.as_ptr(), before);
}

#[test]
fn version_that_nobody_has_any_more_is_the_memory_of_the_next_copy() {
    let (_, cache) = cache(64);
    let kind = Counted::default();
    let (buffer, _) = cache.get(Pblk(3), &kind).expect("read");
    let copy = |byte| {
        let (frozen, _) = buffer.freeze();
        first_byte(&buffer, &kind, byte).expect("change");
        assert_ne!(frozen.as_ptr(), buffer.bytes().as_ptr(), "it is copied");
        frozen
    };
    let mut old = copy(1);
    let place = old.as_ptr();
    buffer.give_back(&mut old);
    let mut read = copy(2);
    assert_eq!(buffer.bytes().as_ptr(), place, "the old one's memory");
    let reader = read.clone();
    buffer.give_back(&mut read);
    copy(3);
    assert_ne!(buffer.bytes().as_ptr(), reader.as_ptr());
    assert_eq!((reader[0], buffer.bytes()[0]), (1, 3));
}

#[test]
fn create_does_not_read_and_replaces_what_is_cached() {
    let (sim, cache) = cache(64);
    let kind = Counted::default();
    cache.read(Pblk(4), &kind).expect("read");
    sim.inject(Fault::every(FaultOp::Read, FaultKind::Io(5)));
    for block in [3, 4] {
        cache.create(Pblk(block), &kind, &[9; BLOCK]);
        let now = cache.read(Pblk(block), &kind).expect("cached");
        assert_eq!((now[0], now[BLOCK - 1]), (9, 0xF6), "sealed");
    }
}

#[test]
fn eviction_keeps_the_budget_and_what_is_pinned() {
    let (_, cache) = cache(64);
    let kind = Counted::default();
    let pinned: Vec<_> = (0..100)
        .map(|block| {
            let (buffer, _) = cache.get(Pblk(block), &kind).expect("read");
            first_byte(&buffer, &kind, 1 + block as u8).expect("change");
            buffer
        })
        .collect();
    (100..1000).for_each(|block| drop(cache.read(Pblk(block), &kind).expect("read")));
    let stats = cache.stats();
    assert_eq!(stats.pinned, 100);
    assert!(stats.blocks < 100 + 64 + 64, "{stats:?}");
    for buffer in &pinned {
        let now = cache.read(buffer.block, &kind).expect("read");
        assert_eq!(now[0], 1 + buffer.block.0 as u8);
    }
    drop(pinned);
    cache.trim();
    let stats = cache.stats();
    assert!(stats.blocks <= 64 && stats.pinned == 0, "{stats:?}");
    let evicted = (0..100).map(|block| cache.read(Pblk(block), &kind).expect("read")[0]);
    assert!(evicted.into_iter().any(|byte| byte == 0), "read again");
}

#[test]
fn eviction_spares_what_was_used_lately() {
    let (_, cache) = cache(64);
    let kind = Counted::default();
    // One shard's blocks: groups of eight, each sixteenth group.
    let block = |i: u64| Pblk((i / 8) * 128 + i % 8);
    let before = kind.count();
    for i in 0..8 {
        cache.read(block(i + 1), &kind).expect("read");
        cache.read(block(0), &kind).expect("read");
    }
    let loads = kind.count() - before;
    assert!(loads <= 8 + 3, "block 0 was loaded {} times", loads - 8);
}

fn read_all(cache: &BufferCache, kind: &dyn Kind, blocks: std::ops::Range<u64>) {
    blocks.for_each(|block| drop(cache.read(Pblk(block), kind).expect("read")));
}

#[test]
fn blocks_read_once_do_not_push_out_what_was_asked_for_again() {
    let (_, cache) = cache(256);
    let kind = Counted::default();
    for _ in 0..2 {
        read_all(&cache, &kind, 0..32);
    }
    read_all(&cache, &kind, 32..1024);
    let before = kind.count();
    read_all(&cache, &kind, 0..32);
    assert_eq!(kind.count(), before, "all were kept");
    assert!(cache.stats().blocks <= 256, "{:?}", cache.stats());
}

#[test]
fn block_that_comes_back_soon_after_it_left_is_kept() {
    let (_, cache) = cache(256);
    let kind = Counted::default();
    read_all(&cache, &kind, 0..300);
    let before = kind.count();
    cache.read(Pblk(0), &kind).expect("read");
    assert_eq!(kind.count(), before + 1, "it had left");
    read_all(&cache, &kind, 300..1024);
    let before = kind.count();
    cache.read(Pblk(0), &kind).expect("read");
    assert_eq!(kind.count(), before);
}

#[test]
fn memory_of_a_block_that_left_is_not_taken_from_who_reads_it() {
    let (sim, cache) = cache(16);
    let kind = Counted::default();
    for block in 0..1024 {
        sim.write_at(
            block * BLOCK as u64,
            &[block as u8 % 199; BLOCK],
            Default::default(),
        )
        .expect("write");
    }
    let held: Vec<_> = (0..200)
        .map(|block| cache.read(Pblk(block), &kind).expect("read"))
        .collect();
    read_all(&cache, &kind, 200..1024);
    assert!(cache.stats().blocks <= 16, "{:?}", cache.stats());
    for (block, bytes) in held.iter().enumerate() {
        assert!(bytes[..] == [block as u8 % 199; BLOCK], "block {block}");
    }
}

#[test]
fn blocks_that_come_and_go_leave_no_list_behind() {
    let (_, cache) = cache(256);
    let kind = Counted::default();
    for block in (0..64).cycle().take(10_000) {
        cache.create(Pblk(block), &kind, &[1; BLOCK]);
        cache.remove(Pblk(block));
    }
    let listed = |Shard(shard): &Shard| shard.lock().fresh.len();
    assert!(cache.0.shards.iter().map(listed).max() <= Some(128));
}

#[test]
fn removed_block_is_read_again_unless_pinned() {
    let (_, cache) = cache(64);
    let kind = Counted::default();
    let (buffer, _) = cache.get(Pblk(3), &kind).expect("read");
    first_byte(&buffer, &kind, 7).expect("change");
    cache.remove(Pblk(3));
    assert_eq!(cache.read(Pblk(3), &kind).expect("read")[0], 7, "pinned");
    drop(buffer);
    cache.remove(Pblk(3));
    assert_eq!(
        cache.read(Pblk(3), &kind).expect("read")[0],
        0,
        "the device's"
    );
}
