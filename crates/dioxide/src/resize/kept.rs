//! The resize inode: it holds the blocks that are kept for more descriptors, so that they are not free.
//!
//! It has one block of pointers. Each leads to a kept block of group 0, which in turn leads to the blocks
//! kept behind the copies of the table. A block that becomes one of descriptors is taken out.

use super::groups::{put, read_block};
use super::layout::Groups;
use crate::{Error, Place, Result};
use dioxide_block::Device;
use dioxide_format::features::{Compat, RoCompat};
use dioxide_format::indirect;
use dioxide_format::inode::Inode;
use dioxide_format::superblock::SuperBlock;
use dioxide_format::types::Ino;

/// Where in `i_block` the pointer to the block of pointers is.
const DIND_AT: usize = 13 * 4;

/// Blocks that are to be written: the block of the inode table, the pointers, the kept blocks.
#[derive(Default)]
pub(super) struct Kept {
    pub blocks: Vec<(u64, Vec<u8>)>,
}

impl Kept {
    /// Works out what the resize inode is to be, and gives its block back if there is to be none.
    ///
    /// # Errors
    /// Damage; the device's.
    pub fn plan(device: &dyn Device, old: &SuperBlock, groups: &mut Groups<'_>) -> Result<Kept> {
        let new = groups.new;
        let has = |sb: &SuperBlock| sb.features().compat.contains(Compat::RESIZE_INODE);
        if !has(old) {
            return Ok(Kept::default());
        }
        let mut kept = Kept::default();
        let table = TableSlot::find(device, old, groups)?;
        let dind = table.dind(old)?;
        if !has(new) {
            let cluster = dind..dind + 1;
            let group = old.group_of_block(dioxide_format::types::Pblk(dind));
            let group = group.ok_or_else(|| damaged("its block is outside"))?;
            put(groups.bitmap(group.0)?, new, group, &cluster, false);
            kept.blocks.push(table.replaced(old, None)?);
            return Ok(kept);
        }
        let (had, count) = (
            new.descriptor_blocks(),
            u32::from(new.reserved_gdt_blocks()),
        );
        let bases: Vec<u64> = new.resize_inode_bases().collect();
        let per_block = indirect::pointers_per_block(new.block_size());
        let mut pointers = vec![0; per_block as usize];
        for index in had..had + count {
            let at = |base: &u64| (base + u64::from(index)) as u32;
            pointers[(index % per_block) as usize] = at(&bases[0]);
            let copies: Vec<u32> = bases[1..].iter().map(at).collect();
            kept.put_pointers(new, at(&bases[0]).into(), &copies)?;
        }
        kept.put_pointers(new, dind, &pointers)?;
        // With bigalloc each block counts as a cluster, though several share one.
        let clusters = 1 + u64::from(count) * bases.len() as u64;
        let sectors = clusters * u64::from(new.cluster_size() / 512);
        kept.blocks.push(table.replaced(new, Some(sectors))?);
        Ok(kept)
    }

    fn put_pointers(&mut self, sb: &SuperBlock, block: u64, pointers: &[u32]) -> Result<()> {
        let mut bytes = vec![0; sb.block_size() as usize];
        if pointers.len() * 4 > bytes.len() {
            let what =
                "more backups than a block has pointers: make the file system without resize_inode";
            return Err(Error::Unsupported(what.into()));
        }
        indirect::encode_into(pointers, &mut bytes);
        self.blocks.push((block, bytes));
        Ok(())
    }
}

fn damaged(what: &str) -> Error {
    Error::Corrupt {
        structure: "resize inode",
        place: Place::ino(Ino::RESIZE),
        what: what.into(),
    }
}

/// The block of the inode table that holds the resize inode.
struct TableSlot {
    block: u64,
    bytes: Vec<u8>,
    at: usize,
    inode: Inode,
}

impl TableSlot {
    fn find(device: &dyn Device, sb: &SuperBlock, groups: &Groups<'_>) -> Result<TableSlot> {
        let location = sb.inode_location(Ino::RESIZE);
        let (group, index) = location.ok_or_else(|| damaged("there is none"))?;
        let byte = u64::from(index) * sb.inode_size() as u64;
        let size = u64::from(sb.block_size());
        let table = groups.descs[group.0 as usize].inode_table().0;
        let (block, at) = (table + byte / size, (byte % size) as usize);
        let bytes = read_block(device, sb, block)?;
        let failed = |error| Error::format(error, Place::ino(Ino::RESIZE));
        let inode = Inode::parse(&bytes[at..], sb.inode_size()).map_err(failed)?;
        if sb.features().metadata_csum() {
            inode
                .verify_checksum(sb.checksum_seed(), Ino::RESIZE)
                .map_err(failed)?;
        }
        Ok(TableSlot {
            block,
            bytes,
            at,
            inode,
        })
    }

    /// The block of pointers.
    fn dind(&self, sb: &SuperBlock) -> Result<u64> {
        let raw = &self.inode.i_block()[DIND_AT..DIND_AT + 4];
        let block = u64::from(u32::from_le_bytes(raw.try_into().expect("four bytes")));
        match block > sb.first_data_block().0 && block < sb.blocks_count() {
            true => Ok(block),
            false => Err(damaged("it has no block of pointers")),
        }
    }

    /// The block with another count of sectors in the inode, or with no such inode.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for more than an inode can have: clusters may be large.
    fn replaced(&self, sb: &SuperBlock, sectors: Option<u64>) -> Result<(u64, Vec<u8>)> {
        let size = sb.inode_size();
        let mut inode = match sectors {
            Some(_) => self.inode.clone(),
            None => Inode::parse(&vec![0; size], size).expect("the size of inodes"),
        };
        let huge_file = sb.features().ro_compat.contains(RoCompat::HUGE_FILE);
        let sectors = sectors.unwrap_or(0);
        if !inode.set_sectors(sectors, huge_file, sb.block_size()) {
            let what = format!(
                "a resize inode of {sectors} sectors: make the file system without resize_inode"
            );
            return Err(Error::Unsupported(what));
        }
        if sb.features().metadata_csum() {
            inode.update_checksum(sb.checksum_seed(), Ino::RESIZE);
        }
        let mut bytes = self.bytes.clone();
        bytes[self.at..self.at + size].copy_from_slice(&inode.encode());
        Ok((self.block, bytes))
    }
}
