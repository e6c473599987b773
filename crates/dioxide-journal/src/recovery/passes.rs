//! The passes over committed transactions that decide what is replayed.

use super::window::Window;
use super::{Context, Copy, FileSystem, Span, damaged};
use crate::Result;
use crate::log::{Log, log_error};
use dioxide_format::journal::{BlockHeader, BlockType, Tag, Tid, revokes, tags};
use dioxide_format::superblock::{SUPERBLOCK_OFFSET, SuperBlock};
use std::collections::HashMap;

/// What is left to be replayed.
pub(super) struct Kept {
    /// In the order of the log.
    pub(super) copies: Vec<Copy>,
    pub(super) revoked: u64,
}

/// The last copy of each block that no transaction revoked.
///
/// # Errors
/// The device's; [`crate::Error::Log`] for a copy of a block that must not be written.
pub(super) fn collect(context: &Context<'_>, span: &Span, fs: &FileSystem) -> Result<Kept> {
    let mut last = HashMap::new();
    walk(context, span, |seen| {
        if let Seen::Descriptor { at, tid, block } = seen {
            for (index, tag) in (1..).zip(tags(block, &context.format)) {
                let at = context.ring.advance(at, index);
                check_target(context, &tag, at, fs)?;
                last.insert(tag.block, Copy { tag, tid, at });
            }
        }
        Ok(())
    })?;
    let held = last.len();
    walk(context, span, |seen| {
        if let Seen::Revoke { at, tid, block } = seen {
            let numbers = revokes(block, &context.format).map_err(|error| damaged(at, error))?;
            for number in numbers {
                if last
                    .get(&number)
                    .is_some_and(|copy| !copy.tid.is_after(tid))
                {
                    last.remove(&number);
                }
            }
        }
        Ok(())
    })?;
    let revoked = (held - last.len()) as u64;
    if last.keys().any(|block| *block >= fs.blocks) {
        let blocks = grown(context, &last, fs)?;
        last.retain(|block, _| *block < blocks);
    }
    let mut copies: Vec<Copy> = last.into_values().collect();
    let start = span.start;
    copies.sort_unstable_by_key(|copy| context.ring.distance(start, copy.at));
    Ok(Kept { copies, revoked })
}

/// The size of a file system that grows in the log: as the copy of its superblock says. New groups are written before it
/// is; without a copy they are nobody's yet.
fn grown(context: &Context<'_>, last: &HashMap<u64, Copy>, fs: &FileSystem) -> Result<u64> {
    let block_bytes = context.log.block_bytes() as u64;
    let block = SUPERBLOCK_OFFSET / block_bytes;
    match last.get(&block) {
        Some(copy) => Ok(blocks_in(context.log, copy)?.max(fs.blocks)),
        None => Ok(fs.blocks),
    }
}

/// The size of the file system in a copy of its superblock.
pub(super) fn blocks_in(log: &Log, copy: &Copy) -> Result<u64> {
    let mut bytes = vec![0; log.block_bytes()];
    log.read(copy.at, &mut bytes)?;
    // What an escape takes away is none of its size.
    let at = SUPERBLOCK_OFFSET as usize % bytes.len();
    let sb = SuperBlock::parse(&bytes[at..]).map_err(|error| damaged(copy.at, error))?;
    Ok(sb.blocks_count())
}

fn check_target(context: &Context<'_>, tag: &Tag, at: u32, fs: &FileSystem) -> Result<()> {
    let block = tag.block;
    if block >= fs.blocks.max(fs.device_blocks) {
        let what = format!(
            "a copy of block {block} of a file system of {} blocks",
            fs.blocks
        );
        return Err(log_error(at, &what));
    }
    if context.log.map().holds(block) {
        let what = format!("a copy of block {block}, which holds the journal");
        return Err(log_error(at, &what));
    }
    Ok(())
}

/// Checks the checksum of each copy.
///
/// # Errors
/// The device's; [`crate::Error::Log`] for a copy that is not what was written.
pub(super) fn verify(context: &Context<'_>, copies: &[Copy]) -> Result<()> {
    if !context.format.checksums.per_block() {
        return Ok(());
    }
    let mut window = Window::new(context);
    copies.iter().try_for_each(|copy| {
        let data = window.block(copy.at)?;
        let checked = context.format.verify_data(&copy.tag, copy.tid, data);
        checked.map_err(|error| damaged(copy.at, error))
    })
}

/// A block of the log with a header.
enum Seen<'a> {
    Descriptor { at: u32, tid: Tid, block: &'a [u8] },
    Revoke { at: u32, tid: Tid, block: &'a [u8] },
}

/// Shows all descriptor and revoke blocks of committed transactions, in order.
fn walk(
    context: &Context<'_>,
    span: &Span,
    mut show: impl FnMut(Seen<'_>) -> Result<()>,
) -> Result<()> {
    let mut window = Window::new(context);
    let (mut at, mut tid) = (span.start, span.first);
    let mut left = context.ring.len();
    while tid != span.end {
        let block = window.block(at)?;
        let kind = BlockHeader::of(block).filter(|(_, of)| *of == tid);
        let by = match kind.map(|(kind, _)| kind) {
            Some(BlockType::Descriptor) => {
                show(Seen::Descriptor { at, tid, block })?;
                1 + tags(block, &context.format).count() as u32
            }
            Some(BlockType::Revoke) => {
                show(Seen::Revoke { at, tid, block })?;
                1
            }
            Some(BlockType::Commit) => {
                tid = tid.next();
                1
            }
            // The device changed since the first pass.
            _ => return Err(log_error(at, "no longer the block that it was")),
        };
        left = left
            .checked_sub(by)
            .ok_or_else(|| log_error(at, "no longer in a log that ends"))?;
        at = context.ring.advance(at, by);
    }
    Ok(())
}
