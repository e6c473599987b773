//! Carrying out a planned change.
//!
//! Order: check that what is planned are nodes, allocate everything (what can fail for want of space comes before any change), write the
//! nodes, the root, and free last. If freeing is refused, blocks are lost but the tree is whole.

use super::blocks::{Blocks, Owner, PhysicalRun, free_tree_block};
use super::node::{ExtentBlock, I_BLOCK_BYTES, format_error, journal_error};
use super::plan::{FIRST_NEW, Fate, ROOT, Slot};
use crate::Result;
use dioxide_format::extent::{ExtentEntries, ExtentNode, LBLK_END};
use dioxide_format::types::Pblk;
use dioxide_journal::Edit;
use std::collections::BTreeMap;

/// What a plan came to.
pub(super) struct Changes {
    nodes: BTreeMap<Pblk, Slot>,
    freed: Vec<PhysicalRun>,
}

/// Where new nodes will lie, by the numbers that stand for them.
type Addresses = BTreeMap<Pblk, Pblk>;

impl Changes {
    pub(super) fn new(nodes: BTreeMap<Pblk, Slot>, freed: Vec<PhysicalRun>) -> Self {
        Self { nodes, freed }
    }

    pub(super) fn apply(
        mut self,
        owner: &Owner,
        edit: &mut dyn Edit,
        blocks: &mut dyn Blocks,
        root: &mut [u8; I_BLOCK_BYTES],
    ) -> Result<()> {
        self.check(owner)?;
        let addresses = self.allocate(owner, edit, blocks)?;
        for Slot { node, .. } in self.nodes.values_mut() {
            resolve(node, &addresses);
        }
        self.write(owner, edit, &addresses)?;
        let slot = &self.nodes[&ROOT];
        if slot.fate == Fate::Changed {
            encode(owner, None, &slot.node, root)?;
        }
        self.free(owner, edit, blocks)
    }

    /// A damaged tree can make a plan come to nodes that are none: then nothing is changed.
    fn check(&self, owner: &Owner) -> Result<()> {
        for (&id, Slot { node, fate }) in &self.nodes {
            let physical = match node.entries {
                ExtentEntries::Leaf(_) => owner.physical.clone(),
                // New children have no addresses yet.
                ExtentEntries::Index(_) => 0..u64::MAX,
            };
            if !matches!(fate, Fate::Unchanged | Fate::Dropped) {
                let block = (id.0 < FIRST_NEW && id != ROOT).then_some(id);
                node.validate(0..LBLK_END, physical)
                    .map_err(|error| format_error(owner, block, error))?;
            }
        }
        Ok(())
    }

    /// Blocks for all new nodes, or for none.
    fn allocate(
        &self,
        owner: &Owner,
        edit: &mut dyn Edit,
        blocks: &mut dyn Blocks,
    ) -> Result<Addresses> {
        let mut addresses = Addresses::new();
        for (&id, slot) in &self.nodes {
            let Fate::New(goal) = slot.fate else {
                continue;
            };
            match blocks.allocate_tree_block(edit, goal) {
                Ok(block) => addresses.insert(id, block),
                Err(error) => {
                    for block in addresses.into_values() {
                        free_tree_block(owner, edit, blocks, block)?;
                    }
                    return Err(error);
                }
            };
        }
        Ok(addresses)
    }

    fn write(&self, owner: &Owner, edit: &mut dyn Edit, addresses: &Addresses) -> Result<()> {
        let kind = ExtentBlock::of(owner);
        let journal = |error| journal_error(owner, error);
        for (&id, Slot { node, fate }) in &self.nodes {
            match fate {
                Fate::New(_) => {
                    let mut bytes = vec![0; edit.block_bytes()];
                    let block = addresses[&id];
                    encode(owner, Some(block), node, &mut bytes)?;
                    edit.create(block, &kind, &bytes).map_err(journal)?;
                }
                Fate::Changed if id != ROOT => {
                    let mut change = |bytes: &mut [u8]| {
                        node.encode_into(bytes)
                            .map_err(|source| dioxide_journal::Error::Block {
                                block: id.0,
                                source,
                            })
                    };
                    edit.modify(id, &kind, &mut change).map_err(journal)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn free(&self, owner: &Owner, edit: &mut dyn Edit, blocks: &mut dyn Blocks) -> Result<()> {
        for (&block, slot) in &self.nodes {
            if slot.fate == Fate::Dropped {
                edit.forget(block)
                    .map_err(|error| journal_error(owner, error))?;
                free_tree_block(owner, edit, blocks, block)?;
            }
        }
        self.freed
            .iter()
            .try_for_each(|run| blocks.free(edit, *run))
    }
}

/// Puts real addresses into a node.
fn resolve(node: &mut ExtentNode, addresses: &Addresses) {
    if let ExtentEntries::Index(index) = &mut node.entries {
        for entry in index.iter_mut().filter(|entry| entry.leaf.0 >= FIRST_NEW) {
            entry.leaf = addresses[&entry.leaf];
        }
    }
}

fn encode(owner: &Owner, block: Option<Pblk>, node: &ExtentNode, bytes: &mut [u8]) -> Result<()> {
    node.encode_into(bytes)
        .map_err(|error| format_error(owner, block, error))
}
