//! Listing a directory from a place on, while names come and go.
//!
//! A cookie says where to go on. With the feature `dir_index` it is made of a name's hash, and names come
//! in that order: it stays right when the directory gets an index, when blocks are split and when
//! names go. `.` and `..` come first, with cookies 0 and 1. Without the feature names never move, and a
//! cookie is a byte of the directory; so it is for a directory of several blocks without an index, which
//! never gets one. The entries of an inline directory have the places that they get in a block.
//!
//! Invariants: a cookie is 0 for the first entry only, ascends, and is positive as `i64`. A name that stays
//! while a listing goes on, in however many calls, is given once. Nothing is kept between calls.
//!
//! Names whose whole hashes are equal (63 bits of them: there are none unless somebody made them) get cookies
//! in a row. If one of them goes between two calls, the next of them may be left out.
//!
//! Of the leaves that a call reads it lists names, but for the first, those without names, and those that share a hash: so
//! nobody can make an index whose listing takes longer than the image is large. A name whose hash lies before its leaf
//! is listed at the leaf's beginning, where the next call finds it.
//!
//! Rejected: order of the disk with an index (a split moves names to where the listing has been, or will
//! be); a cookie in the handle of who lists (NFS and FUSE give back only the number).

use super::block::{Block, Blocks};
use super::index::Descent;
use super::inline::SHIFT;
use super::{index_makes_no_sense, is_dot};
use crate::inode::Inode;
use crate::mount::Mount;
use crate::namei::create::check_lives;
use crate::{Error, Place, Result};
use dioxide_format::checksum::crc32c;
use dioxide_format::dir::{self, DirEntry, DirFormat};
use dioxide_format::htree::{self, HashVersion};
use dioxide_format::types::{Ino, Lblk};
use std::ops::ControlFlow;
use std::rc::Rc;
use std::sync::Arc;

/// Called for each entry with the cookie of what comes next.
type Visit<'v> = dyn FnMut(&DirEntry<'_>, u64) -> ControlFlow<()> + 'v;

/// Cookies of `.` and `..` come before those of hashes.
const DOTS: u64 = 2;

/// Most leaves that may share a hash: all names of it are sorted by each call.
const MOST_SHARING: u32 = 64;

/// In which order a directory is listed.
enum Order<'a> {
    Index(Descent<'a>),
    /// By hash, and it is small: one block, or its inode.
    Hash(HashVersion),
    Offset,
}

impl Mount {
    /// The entries of a directory from a cookie on, 0 being its start: calls `visit` with each and the
    /// cookie of the next, until it says so. Blocks on metadata.
    ///
    /// # Errors
    /// As [`Mount::check_names`]; [`Error::NotFound`] if it was removed; [`Error::Unsupported`] for too many names of one hash;
    /// damage, after the entries before it were visited.
    pub(crate) fn read_dir_from(
        &self,
        dir: &Inode,
        cookie: u64,
        visit: &mut Visit<'_>,
    ) -> Result<()> {
        self.check_names(dir)?;
        check_lives(dir)?;
        match self.order(dir)? {
            Order::Index(descent) => self.list_index(descent, cookie, visit),
            Order::Hash(version) => self.list_small(dir, version, cookie, visit),
            Order::Offset if dir.has_inline_data() => self.list_inline(dir, cookie, visit),
            Order::Offset => self.list_blocks(dir, cookie, visit),
        }
        .map(drop)
    }

    fn order<'a>(&'a self, dir: &'a Inode) -> Result<Order<'a>> {
        if !self.has_dir_index() {
            return Ok(Order::Offset);
        }
        if self.is_indexed(dir) {
            return match Descent::open(Blocks::new(self, dir)?) {
                Ok(descent) => Ok(Order::Index(descent)),
                Err(error) if index_makes_no_sense(&error) => Ok(Order::Offset),
                Err(error) => Err(error),
            };
        }
        let is_small = dir.has_inline_data() || self.dir_blocks(dir)? == 1;
        Ok(match self.default_hash() {
            Some(version) if is_small => Order::Hash(version),
            _ => Order::Offset,
        })
    }

    /// The hash that new indexes use, if it is one that is known.
    pub(in crate::namei) fn default_hash(&self) -> Option<HashVersion> {
        let unsigned = self.sb.hash_is_unsigned();
        HashVersion::from_disk(self.sb.root_hash_version(), unsigned).ok()
    }

    fn list_dots(
        &self,
        dir: &Inode,
        parent: Option<Ino>,
        cookie: u64,
        visit: &mut Visit<'_>,
    ) -> ControlFlow<()> {
        let [dot, dotdot] = self.dots(dir.ino, parent.unwrap_or(dir.ino));
        if cookie == 0 {
            visit(&dot, 1)?;
        }
        match parent {
            Some(_) if cookie < DOTS => visit(&dotdot, DOTS),
            _ => ControlFlow::Continue(()),
        }
    }

    fn list_index(
        &self,
        mut descent: Descent<'_>,
        cookie: u64,
        visit: &mut Visit<'_>,
    ) -> Result<ControlFlow<()>> {
        let dir = descent.blocks.dir;
        let parent = find_in(&descent.frames[0].block, dir, b"..")?;
        if self.list_dots(dir, parent, cookie, visit).is_break() {
            return Ok(ControlFlow::Break(()));
        }
        descent.seek(first_major(cookie))?;
        let mut batch = Batch::new(self, descent.version);
        let mut sharing = 0;
        loop {
            let (hash, next) = (descent.hash()?, descent.next_hash()?);
            batch.take(&descent.read_leaf()?, dir, hash)?;
            let shared = next.filter(|next| next & 1 != 0);
            let flow = batch.list(shared, cookie, visit)?;
            if flow.is_break() {
                return Ok(flow);
            }
            if let Some(next) = next.filter(|&next| next < hash) {
                let what = format!("it leads from hash {hash:#x} to {next:#x}");
                return Err(dir.corrupt("htree", what));
            }
            sharing = match shared == Some(hash) {
                true => sharing + 1,
                false => 0,
            };
            if sharing == MOST_SHARING {
                return Err(Error::Unsupported(format!(
                    "more than {MOST_SHARING} blocks of names with one hash, in inode {}",
                    dir.ino
                )));
            }
            if !descent.advance()? {
                return Ok(flow);
            }
        }
    }

    fn list_small(
        &self,
        dir: &Inode,
        version: HashVersion,
        cookie: u64,
        visit: &mut Visit<'_>,
    ) -> Result<ControlFlow<()>> {
        let mut batch = Batch::new(self, version);
        let parent = if dir.has_inline_data() {
            let node = dir.node();
            let inline = self.inline_dir(&node, dir)?;
            let entries = inline.entries(&self.dir_format);
            let format = |error| Error::format(error, dir.place());
            let names: Vec<DirEntry<'_>> = entries.collect::<Result<_, _>>().map_err(format)?;
            // As if they lay in a block.
            let room = names.iter().map(|name| dir::min_rec_len(name.name.len()));
            let mut bytes = vec![0; room.sum::<usize>()];
            let mut at = 0;
            for name in &names {
                let rec_len = dir::min_rec_len(name.name.len());
                let name = DirEntry {
                    offset: at,
                    rec_len,
                    ..*name
                };
                name.encode_into(&mut bytes).map_err(format)?;
                at += rec_len;
            }
            batch.take_chain(bytes.into(), dir.place(), 0)?;
            Some(inline.parent)
        } else {
            let block = Blocks::new(self, dir)?.read_first()?;
            batch.take(&block, dir, 0)?;
            find_in(&block, dir, b"..")?
        };
        match self.list_dots(dir, parent, cookie, visit).is_break() {
            true => Ok(ControlFlow::Break(())),
            false => batch.list(None, cookie, visit),
        }
    }

    fn list_inline(
        &self,
        dir: &Inode,
        cookie: u64,
        visit: &mut Visit<'_>,
    ) -> Result<ControlFlow<()>> {
        let node = dir.node();
        let inline = self.inline_dir(&node, dir)?;
        for (entry, at) in self.dots(dir.ino, inline.parent).iter().zip([0, 12]) {
            if at >= cookie && visit(entry, at + 12).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        for entry in inline.entries(&self.dir_format) {
            let entry = entry.map_err(|error| Error::format(error, dir.place()))?;
            let at = entry.offset as u64 + SHIFT;
            if at >= cookie && visit(&entry, at + entry.rec_len as u64).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    fn list_blocks(
        &self,
        dir: &Inode,
        cookie: u64,
        visit: &mut Visit<'_>,
    ) -> Result<ControlFlow<()>> {
        let blocks = Blocks::new(self, dir)?;
        let first = (cookie >> self.block_bits).min(blocks.count.into()) as u32;
        for lblk in first..blocks.count {
            let block = blocks.read(Lblk(lblk), blocks.role_in_walk(lblk))?;
            let start = u64::from(lblk) << self.block_bits;
            for entry in dir::entries(&block.bytes, &self.dir_format) {
                let entry = entry.map_err(|error| Error::format(error, block.place(dir)))?;
                let at = start + entry.offset as u64;
                if at >= cookie && visit(&entry, at + entry.rec_len as u64).is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}

impl Blocks<'_> {
    fn read_first(&self) -> Result<Block> {
        self.read(Lblk(0), self.role_in_walk(0))
    }
}

fn find_in(block: &Block, dir: &Inode, name: &[u8]) -> Result<Option<Ino>> {
    Ok(block.search(dir, name)?.found().map(|found| found.ino))
}

/// The hash from which on to list.
fn first_major(cookie: u64) -> u32 {
    let place = cookie.saturating_sub(DOTS);
    // The lowest bit of a hash is clear, and the highest of a cookie.
    u32::try_from(place >> 32).map_or(u32::MAX, |major| major.saturating_mul(2))
}

/// Names to be listed in order.
struct Batch {
    format: DirFormat,
    version: HashVersion,
    seed: [u32; 4],
    names: Vec<Name>,
}

struct Name {
    order: u64,
    /// Where the entry is: its block, and the byte there.
    chain: Rc<Chain>,
    offset: usize,
}

struct Chain {
    bytes: Arc<[u8]>,
    place: Place,
}

impl Batch {
    fn new(mount: &Mount, version: HashVersion) -> Batch {
        Batch {
            format: mount.dir_format,
            version,
            seed: mount.sb.hash_seed(),
            names: Vec::new(),
        }
    }

    /// Takes the names of a leaf that begins at a hash.
    fn take(&mut self, block: &Block, dir: &Inode, hash: u32) -> Result<()> {
        self.take_chain(block.bytes.clone(), block.place(dir), hash)
    }

    fn take_chain(&mut self, bytes: Arc<[u8]>, place: Place, hash: u32) -> Result<()> {
        let least = u64::from(hash >> 1) << 32;
        let chain = Rc::new(Chain { bytes, place });
        for entry in dir::entries(&chain.bytes, &self.format) {
            let entry = entry.map_err(|error| Error::format(error, place))?;
            if !is_dot(entry.name) {
                self.names.push(Name {
                    order: self.order_of(entry.name).max(least),
                    chain: chain.clone(),
                    offset: entry.offset,
                });
            }
        }
        Ok(())
    }

    /// 63 bits. The first hash has no minor part; names get one.
    fn order_of(&self, name: &[u8]) -> u64 {
        let hash = htree::hash(name, self.version, self.seed);
        let minor = match self.version {
            HashVersion::Legacy | HashVersion::LegacyUnsigned => crc32c(!0, name),
            _ => hash.minor,
        };
        u64::from(hash.major >> 1) << 32 | u64::from(minor)
    }

    fn entry<'n>(&self, name: &'n Name) -> Result<DirEntry<'n>> {
        let Chain { bytes, place } = &*name.chain;
        let entry = dir::entry_at(bytes, name.offset, &self.format);
        entry.map_err(|error| Error::format(error, *place))
    }

    /// Lists all names but those that share their hash with the next leaf, which stay.
    fn list(
        &mut self,
        shared: Option<u32>,
        cookie: u64,
        visit: &mut Visit<'_>,
    ) -> Result<ControlFlow<()>> {
        let mut names = std::mem::take(&mut self.names);
        if let Some(hash) = shared {
            let stays = |name: &mut Name| name.order >> 32 == u64::from(hash >> 1);
            self.names.extend(names.extract_if(.., stays));
        }
        names.sort_unstable_by(|one, two| {
            let name = |name| self.entry(name).map_or(&[][..], |entry| entry.name);
            let by_name = || name(one).cmp(name(two));
            one.order.cmp(&two.order).then_with(by_name)
        });
        let mut least = 0;
        for name in names {
            let order = name.order.max(least);
            let at = DOTS + order;
            least = order + 1;
            if at < cookie {
                continue;
            }
            if visit(&self.entry(&name)?, at + 1).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}
