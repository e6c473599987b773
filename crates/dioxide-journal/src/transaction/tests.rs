use super::*;
use crate::buffer::BufferCache;
use crate::{Kind, Result};
use dioxide_block::mem::MemDevice;
use dioxide_format::types::Pblk;

#[derive(Debug)]
struct Raw;

impl Kind for Raw {
    fn name(&self) -> &'static str {
        "raw"
    }
    fn verify(&self, _: Pblk, _: &[u8]) -> dioxide_format::Result<()> {
        Ok(())
    }
    fn seal(&self, _: Pblk, _: &mut [u8]) {}
}

fn cache() -> BufferCache {
    BufferCache::new(Arc::new(MemDevice::new(1 << 20)), 1024, 1 << 20)
}

fn buffer(cache: &BufferCache, block: u64) -> Arc<Buffer> {
    cache.get(Pblk(block), &Raw).expect("memory").0
}

#[test]
fn forget_of_a_block_that_was_never_logged_revokes_nothing() {
    let cache = cache();
    let mut running = Running::new(Tid(1));
    running.add(7, buffer(&cache, 7));
    running.forget(7, false);
    let closed = running.close();
    assert!(closed.is_empty());
    assert_eq!(closed.forgotten, [7]);
}

#[test]
fn forget_of_a_logged_block_revokes_it_until_it_is_used_again() {
    let cache = cache();
    let mut running = Running::new(Tid(1));
    running.forget(7, true);
    running.forget(8, true);
    running.add(8, buffer(&cache, 8));
    let closed = running.close();
    assert_eq!((closed.revoked, closed.forgotten), (vec![7], vec![7]));
    assert_eq!(closed.blocks.len(), 1);
}

#[test]
fn close_freezes_the_versions_in_order() -> Result<()> {
    let cache = cache();
    let mut running = Running::new(Tid(1));
    for block in [9, 3] {
        running.add(block, buffer(&cache, block));
    }
    let set = |byte: u8| {
        let change = &mut |bytes: &mut [u8]| {
            bytes[0] = byte;
            Ok(())
        };
        buffer(&cache, 3).change(&Raw, change)
    };
    set(1)?;
    let closed = running.close();
    set(2)?;
    let frozen: Vec<_> = closed
        .blocks
        .iter()
        .map(|f| (f.block, f.bytes[0]))
        .collect();
    assert_eq!(frozen, [(3, 1), (9, 0)]);
    assert_eq!(buffer(&cache, 3).bytes()[0], 2);
    Ok(())
}
