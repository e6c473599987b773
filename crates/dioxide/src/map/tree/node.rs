//! Nodes as blocks: how they are checked, sealed and made.

use super::Owner;
use crate::Error;
use dioxide_format::extent::{
    ExtentEntries, ExtentNode, LBLK_END, ROOT_ENTRIES, update_checksum, verify_checksum,
};
use dioxide_format::types::Pblk;
use dioxide_journal::Kind;
use std::ops::Range;
use std::sync::Arc;

/// Size of `i_block`.
pub(crate) const I_BLOCK_BYTES: usize = 60;

/// A block of an extent tree.
#[derive(Clone, Debug)]
pub(super) struct ExtentBlock {
    seed: Option<u32>,
    physical: Range<u64>,
}

impl ExtentBlock {
    pub(super) fn of(owner: &Owner) -> Self {
        Self {
            seed: owner.seed,
            physical: owner.physical.clone(),
        }
    }
}

impl Kind for ExtentBlock {
    fn name(&self) -> &'static str {
        "extent node"
    }

    fn verify(&self, _: Pblk, bytes: &[u8]) -> dioxide_format::Result<()> {
        if let Some(seed) = self.seed {
            verify_checksum(bytes, seed)?;
        }
        ExtentNode::parse(bytes, None)?.validate(0..LBLK_END, self.physical.clone())
    }

    fn seal(&self, block: Pblk, bytes: &mut [u8]) {
        if let Some(seed) = self.seed {
            // `verify` or who made it saw to it that `eh_max` leaves room, and nothing changes it.
            update_checksum(bytes, seed)
                .unwrap_or_else(|error| panic!("extent node {block} was changed: {error}"));
        }
    }

    fn keep(&self) -> Option<Arc<dyn Kind>> {
        Some(Arc::new(self.clone()))
    }
}

/// `i_block` of a file without blocks.
pub(super) fn empty_root() -> [u8; I_BLOCK_BYTES] {
    let mut root = [0; I_BLOCK_BYTES];
    let node = ExtentNode::new(ROOT_ENTRIES, 0, ExtentEntries::Leaf(Vec::new()));
    // No entries fit always.
    node.encode_into(&mut root).expect("an empty node fits");
    root
}

/// The first logical block of a node; none if it is empty.
pub(super) fn first_key(node: &ExtentNode) -> Option<u64> {
    let leaf = node.extents().first().map(|e| e.lblk);
    let key = leaf.or(node.indices().first().map(|i| i.lblk));
    key.map(|lblk| u64::from(lblk.0))
}

/// Whether there are more entries than a node of its size holds.
pub(super) fn overflows(node: &ExtentNode) -> bool {
    node.len() > usize::from(node.header.eh_max)
}

/// Adds coordinates to an error of the format crate.
pub(crate) fn format_error(
    owner: &Owner,
    block: Option<Pblk>,
    error: dioxide_format::Error,
) -> Error {
    Error::format(error, owner.place(block))
}

/// Adds the inode to an error of the journal.
pub(crate) fn journal_error(owner: &Owner, error: dioxide_journal::Error) -> Error {
    match error {
        dioxide_journal::Error::Block { block, source } => {
            format_error(owner, Some(Pblk(block)), source)
        }
        other => other.into(),
    }
}
