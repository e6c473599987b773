//! Pass 1: extended attributes, in inodes, in blocks that inodes share, and in inodes of their own.

use super::Checker;
use super::finding::{At, Code};
use super::layout::Kind;
use super::walk::{place_of, runs_of};
use dioxide_format::checksum::crc32c;
use dioxide_format::features::Compat;
use dioxide_format::inline_data::{self, InlineDir};
use dioxide_format::inode::{FileType, Inode, InodeFlags};
use dioxide_format::types::{Ino, Lblk, Pblk};
use dioxide_format::xattr::{
    self, INDEX_ENCRYPTION, MAX_VALUE, XattrBlock, XattrEntry, XattrValue,
};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::num::NonZeroU64;

/// Bytes of the nonce at the end of a context of encryption.
const NONCE: usize = 16;

/// What inodes share, and how often they do.
#[derive(Debug, Default)]
pub(super) struct SharedXattrs {
    /// Blocks of attributes.
    blocks: BTreeMap<u64, SharedBlock>,
    /// Inodes that hold values: references that were found.
    pub(super) values: HashMap<Ino, u64>,
    /// Those of them that Lustre wrote: they name their owner, and have neither hash nor count.
    by_lustre: HashSet<Ino>,
}

#[derive(Debug)]
struct SharedBlock {
    /// References that it counts; none if that cannot be told.
    stored: Option<u32>,
    /// References that were found.
    found: u32,
    /// What it and its values in other inodes take, which each reference counts.
    taken: Taken,
}

/// What attributes take outside of their inode.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Taken {
    /// File-system blocks, in whole clusters.
    pub(super) blocks: u64,
    /// Values that have inodes of their own.
    pub(super) values: u64,
}

impl std::ops::Add for Taken {
    type Output = Taken;

    fn add(self, other: Taken) -> Taken {
        Taken {
            blocks: self.blocks + other.blocks,
            values: self.values + other.values,
        }
    }
}

/// How a file is encrypted: a hash of its context without the nonce, which is its own; none where that is not known.
pub(super) type Policy = Option<NonZeroU64>;

/// The policies of encrypted inodes.
#[derive(Debug, Default)]
pub(super) struct Policies {
    hasher: RandomState,
    /// By inode.
    of: Vec<(Ino, Policy)>,
}

impl Policies {
    fn policy(&self, context: &XattrEntry<'_>) -> Policy {
        let policy = match context.bytes()? {
            value @ [1 | 2, ..] => value.split_last_chunk::<NONCE>()?.0,
            _ => return None,
        };
        NonZeroU64::new(self.hasher.hash_one(policy) | 1)
    }

    /// That of an inode; none if it is not encrypted.
    pub(super) fn of(&self, ino: Ino) -> Option<Policy> {
        let found = self.of.binary_search_by_key(&ino, |(ino, _)| *ino);
        found.ok().map(|at| self.of[at].1)
    }
}

/// Whether `e_value_offs` of an empty value lies inside, and that of a value in an inode is 0.
fn is_placed(entry: &XattrEntry<'_>, area_bytes: usize) -> bool {
    let at = usize::from(entry.head.e_value_offs);
    match entry.value {
        XattrValue::Bytes(_) => at <= area_bytes,
        XattrValue::Inode { .. } => at == 0,
    }
}

impl Checker<'_> {
    /// Judges the attributes of an inode.
    pub(super) fn xattrs(&mut self, ino: Ino, inode: &Inode, raw: &[u8]) -> Taken {
        let area = inode.in_inode_xattrs(raw);
        let parsed = xattr::parse_in_inode(area);
        let is_readable = parsed.is_ok();
        let entries = match parsed {
            Ok(entries) => entries,
            Err(error) => {
                self.find(Code::XattrInvalid, At::ino(ino), error.to_string());
                Vec::new()
            }
        };
        let taken = self.judge_entries(&At::ino(ino), &entries, false);
        if inode.flags().contains(InodeFlags::ENCRYPT) && self.inodes.take::<(Ino, Policy)>(1) {
            let policy = match is_readable {
                true => self.judge_context(ino, inode, &entries),
                false => None,
            };
            self.policies.of.push((ino, policy));
        }
        if inode.has_inline_data() {
            self.judge_inline(ino, inode, &entries);
            // They count from behind the magic number.
            self.judge_places(ino, inode, &entries, area.len().saturating_sub(4));
        }
        match inode.file_acl() {
            Some(block) => taken + self.xattr_block(ino, block),
            None => taken,
        }
    }

    /// An encrypted file says how, in an attribute in its inode or, without room there, in its block of attributes.
    fn judge_context(&mut self, ino: Ino, inode: &Inode, entries: &[XattrEntry<'_>]) -> Policy {
        let policies = &self.policies;
        let judged = |entry| (is_context(entry), policies.policy(entry));
        let mut found = context(entries).map(judged);
        if let (None, Some(block)) = (found, inode.file_acl()) {
            let bytes = self.other_block(block)?;
            let parsed = XattrBlock::parse(&bytes).ok()?;
            found = context(&parsed.entries).map(judged);
        }
        let (code, text) = match found {
            Some((true, policy)) => return policy,
            Some((false, _)) => (Code::XattrInvalid, "the context of its encryption is none"),
            None => (Code::InodeFlags, "is encrypted, without a context"),
        };
        self.find(code, At::ino(ino), text);
        None
    }

    /// A block of attributes, if it can be read. What is wrong with it is told with that.
    fn other_block(&self, block: Pblk) -> Option<Vec<u8>> {
        let is_there = self.physical().contains(&block.0);
        is_there.then(|| self.source.block(block.0).ok())?
    }

    /// Where values are that need no place. One that is not there keeps e2fsck from all attributes: it finds no inline data, and cuts the
    /// file off.
    fn judge_places(
        &mut self,
        ino: Ino,
        inode: &Inode,
        entries: &[XattrEntry<'_>],
        area_bytes: usize,
    ) {
        let wrong = |entries: &[XattrEntry<'_>], area_bytes| {
            let wrong = entries.iter().find(|entry| !is_placed(entry, area_bytes));
            wrong.map(|entry| entry.name.escape_ascii().to_string())
        };
        let in_block = || {
            let bytes = self.other_block(inode.file_acl()?)?;
            wrong(&XattrBlock::parse(&bytes).ok()?.entries, bytes.len())
        };
        if let Some(name) = wrong(entries, area_bytes).or_else(in_block) {
            let text = format!("inline data beside the attribute {name}, whose place is none");
            self.find(Code::InlineData, At::ino(ino), text);
        }
    }

    fn judge_inline(&mut self, ino: Ino, inode: &Inode, entries: &[XattrEntry<'_>]) {
        let place = At::ino(ino);
        let Some(data) = inline_data::system_data(entries) else {
            let text = "inline data without the attribute for it";
            return self.find(Code::InlineData, place, text);
        };
        let (size, room) = (inode.size(), 60 + data.len() as u64);
        let (is_wrong, text) = match inode.file_type() {
            Some(FileType::Directory) => (
                size != room,
                InlineDir::parse(inode, data, &self.dir_format)
                    .err()
                    .map(|e| e.to_string()),
            ),
            Some(FileType::Symlink) => (size != room, None),
            // It may be longer, with zeros behind.
            Some(FileType::Regular) => {
                let most = self.indirect_end();
                if size > most {
                    let text = format!("i_size is {size}, expected at most {most}");
                    self.find(Code::InodeSize, place.clone(), text);
                }
                (false, None)
            }
            _ => (true, Some("inline data of a special file".to_owned())),
        };
        if let Some(text) = text {
            self.find(Code::InlineData, place.clone(), text);
        }
        if is_wrong {
            let text = format!("i_size is {size}, with {room} bytes of inline data");
            self.find(Code::InlineData, place, text);
        }
    }

    /// Judges attributes. What their values in other inodes take.
    fn judge_entries(&mut self, place: &At, entries: &[XattrEntry<'_>], in_block: bool) -> Taken {
        let mut taken = Taken::default();
        let cluster = u64::from(self.sb.cluster_size());
        if let Some(text) = overlap(entries) {
            self.find(Code::XattrInvalid, place.clone(), text);
        }
        for entry in entries {
            if in_block && entry.head.e_name_index == 0 {
                let name = entry.name.escape_ascii();
                let text = format!("the name {name} has no prefix");
                self.find(Code::XattrInvalid, place.clone(), text);
            }
            match entry.value {
                XattrValue::Inode { ino, size } => {
                    taken.values += 1;
                    self.value_inode(place, entry, ino, size);
                    if !self.shared_xattrs.by_lustre.contains(&ino) {
                        taken.blocks +=
                            u64::from(size).div_ceil(cluster) * u64::from(self.sb.cluster_ratio());
                    }
                }
                XattrValue::Bytes(_) => {
                    let missing = in_block && entry.head.e_hash == 0 && !zero_is_right(entry);
                    if missing || !entry.hash_matches() {
                        let name = entry.name.escape_ascii();
                        let text = format!("the attribute {name} does not match its hash");
                        self.find(Code::XattrHash, place.clone(), text);
                    }
                }
            }
        }
        taken
    }

    /// A block of attributes.
    fn xattr_block(&mut self, ino: Ino, block: Pblk) -> Taken {
        let ratio = u64::from(self.sb.cluster_ratio());
        let alone = Taken {
            blocks: ratio,
            values: 0,
        };
        let has_xattrs = self.sb.features().compat.contains(Compat::EXT_ATTR);
        if !self.physical().contains(&block.0) {
            // The inode's validation said so.
            return Taken::default();
        }
        let place = At::ino(ino).in_block(block.0);
        if !has_xattrs {
            let text = "a block of attributes, without the feature";
            self.find(Code::XattrInvalid, place, text);
            return alone;
        }
        if let Some(shared) = self.shared_xattrs.blocks.get_mut(&block.0) {
            shared.found = shared.found.saturating_add(1);
            return shared.taken;
        }
        self.claims.claim(block.0..block.0 + 1);
        self.layout.paint(Kind::Data, block.0..block.0 + ratio);
        if let Some(fixed) = self.groups.fixed_at(&(block.0..block.0 + 1)) {
            let text = format!("a block of attributes where the {fixed} is");
            self.find(Code::MetadataClaimed, place, text);
            return alone;
        }
        let read = self.source.block(block.0);
        let bytes = self.readable(place.clone(), read);
        let shared = bytes.and_then(|bytes| self.judge_block(&place, block, &bytes));
        // One that cannot be read is shared, too.
        let shared = shared.unwrap_or(SharedBlock {
            stored: None,
            found: 1,
            taken: alone,
        });
        let taken = shared.taken;
        self.shared_xattrs.blocks.insert(block.0, shared);
        taken
    }

    /// What the block holds, if it can be read.
    fn judge_block(&mut self, place: &At, block: Pblk, bytes: &[u8]) -> Option<SharedBlock> {
        if let Some(seed) = self.seed
            && let Err(error) = xattr::verify_checksum(bytes, seed, block)
        {
            self.find(Code::XattrChecksum, place.clone(), error.to_string());
        }
        match XattrBlock::parse(bytes) {
            Ok(parsed) => {
                let values = self.judge_entries(place, &parsed.entries, true);
                Some(SharedBlock {
                    stored: Some(parsed.header.h_refcount),
                    found: 1,
                    taken: values
                        + Taken {
                            blocks: self.sb.cluster_ratio().into(),
                            values: 0,
                        },
                })
            }
            Err(error) => {
                self.find(Code::XattrInvalid, place.clone(), error.to_string());
                None
            }
        }
    }

    /// The inode in which a value is.
    fn value_inode(&mut self, place: &At, entry: &XattrEntry<'_>, ino: Ino, size: u32) {
        let name = entry.name.escape_ascii().to_string();
        let Some((inode, _)) = self.read_inode(ino) else {
            let text = format!("the value of {name} is inode {ino}, which there is not");
            return self.find(Code::EaInode, place.clone(), text);
        };
        let is_value = inode.flags().contains(InodeFlags::EA_INODE)
            && inode.file_type() == Some(FileType::Regular);
        if !is_value || inode.size() != u64::from(size) || size > MAX_VALUE {
            let found = inode.size();
            let text = format!("the value of {name}, {size} bytes, is inode {ino} of {found}");
            return self.find(Code::EaInode, place.clone(), text);
        }
        let hash = inode.disk().i_atime.to_le_bytes();
        let is_right =
            |unsigned| xattr::entry_hash(entry.name, &hash, unsigned) == entry.head.e_hash;
        if !is_right(true) && !is_right(false) {
            if self.is_owner(place.ino, &inode) {
                self.shared_xattrs.by_lustre.insert(ino);
            } else {
                let text = format!("the attribute {name} does not match its hash");
                self.find(Code::XattrHash, place.clone(), text);
            }
        }
        *self.shared_xattrs.values.entry(ino).or_default() += 1;
    }

    /// Whether a value that Lustre wrote names `owner`.
    fn is_owner(&self, owner: Option<Ino>, value: &Inode) -> bool {
        let named = Ino(value.disk().i_mtime);
        let owner = owner.filter(|owner| *owner == named);
        let owner = owner.and_then(|ino| self.read_inode(ino));
        owner.is_some_and(|(owner, _)| owner.generation() == value.generation())
    }

    /// What only all inodes together tell.
    pub(super) fn judge_shared_xattrs(&mut self) {
        for (block, shared) in std::mem::take(&mut self.shared_xattrs.blocks) {
            let SharedBlock { stored, found, .. } = shared;
            if let Some(stored) = stored.filter(|stored| *stored != found) {
                let text = format!("h_refcount is {stored}, {found} inodes have the block");
                self.find(Code::XattrRefcount, At::block(block), text);
            }
        }
        let SharedXattrs {
            values, by_lustre, ..
        } = &self.shared_xattrs;
        let hashed = values.keys().filter(|ino| !by_lustre.contains(ino));
        let mut values: Vec<Ino> = hashed.copied().collect();
        values.sort_unstable();
        for ino in values {
            self.judge_value(ino);
        }
    }

    fn judge_value(&mut self, ino: Ino) {
        let Some((inode, _)) = self.read_inode(ino) else {
            return;
        };
        let blocks = inode.size().div_ceil(self.sb.block_size().into());
        if !self.spend(blocks) {
            return;
        }
        let runs = runs_of(&self.walk_context(ino, &inode), &inode, blocks as usize);
        let mut hash = self.sb.checksum_seed();
        let mut left = inode.size();
        for lblk in 0..blocks as u32 {
            let take = left.min(self.sb.block_size().into()) as usize;
            left -= take as u64;
            let bytes = match place_of(&runs, Lblk(lblk)) {
                Some(place) => {
                    let read = self.source.block(place);
                    let Some(bytes) = self.readable(At::ino(ino).in_block(place), read) else {
                        return;
                    };
                    bytes
                }
                None => vec![0; take],
            };
            hash = crc32c(hash, &bytes[..take]);
        }
        let stored = inode.disk().i_atime;
        if hash != stored {
            let text =
                format!("the value has the hash {hash:#010x}, the inode says {stored:#010x}");
            self.find(Code::EaInode, At::ino(ino), text);
        }
    }
}

/// The attribute that says how a file is encrypted.
fn context<'e>(entries: &'e [XattrEntry<'_>]) -> Option<&'e XattrEntry<'e>> {
    let is_context =
        |entry: &&XattrEntry<'_>| entry.head.e_name_index == INDEX_ENCRYPTION && entry.name == b"c";
    entries.iter().find(is_context)
}

/// Whether a context has the length that those of its version have. Of others nothing is known.
fn is_context(entry: &XattrEntry<'_>) -> bool {
    match entry.bytes() {
        None => true,
        Some([]) => false,
        Some(value @ [1, ..]) => value.len() == 28,
        Some(value @ [2, ..]) => value.len() == 40,
        Some(_) => true,
    }
}

fn zero_is_right(entry: &XattrEntry<'_>) -> bool {
    let value = entry.bytes().unwrap_or(&[]);
    [true, false]
        .iter()
        .any(|unsigned| xattr::entry_hash(entry.name, value, *unsigned) == 0)
}

/// Two values that overlap, if some do.
fn overlap(entries: &[XattrEntry<'_>]) -> Option<String> {
    let mut values: Vec<(u32, u32)> = entries
        .iter()
        .filter(|entry| entry.bytes().is_some_and(|bytes| !bytes.is_empty()))
        .map(|entry| {
            let start = u32::from(entry.head.e_value_offs);
            let len = entry.head.e_value_size.next_multiple_of(4);
            (start, start.saturating_add(len))
        })
        .collect();
    values.sort_unstable();
    let pair = values.windows(2).find(|pair| pair[0].1 > pair[1].0)?;
    Some(format!("values overlap at byte {}", pair[1].0))
}
