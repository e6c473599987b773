//! Directory blocks: a chain of entries that fills the block, with a checksum at the end where
//! `metadata_csum` is set.
//!
//! For: iteration with every check, the checksum; finding, adding and removing an entry. Not for:
//! choosing the block (`htree`).
//!
//! Invariants of the iteration: each step advances by at least 12 bytes and stays inside, so it
//! ends; after an error nothing more comes. Blocks of a hash index read as blocks without live
//! entries (the root has `.` and `..`), so a linear walk may take every block alike.
//!
//! `find` and `find_gap` only check what keeps them inside: they are for chains that `validate`
//! accepted when they came from the disk, and whose names are looked at thousands of times since.
//!
//! Rejected: skipping damaged entries. What follows a wrong length is not known to be an entry.

use crate::Result;
use crate::checksum::crc32c;
use crate::error::{Error, corrupt, ensure, ensure_checksum, prefix};
use crate::features::Incompat;
use crate::inode::{FileType, Inode, InodeFlags};
use crate::layout::{byte, layout, le16, le32};
use crate::superblock::SuperBlock;
use crate::types::Ino;

const STRUCTURE: &str = "directory entry";
const TAIL_STRUCTURE: &str = "directory block tail";
/// Longest name in bytes.
pub const NAME_MAX: usize = 255;
const TAIL_TYPE: u8 = 0xDE;
const BIG_BLOCK: usize = 65536;

layout! {
    /// Header of an entry as it lies on disk; the name follows. Without the `filetype` feature
    /// `file_type` is the high byte of the length of the name.
    pub struct DirEntryDisk[8] = "directory entry" {
        0x00 inode: le32,
        0x04 rec_len: le16,
        0x06 name_len: byte,
        0x07 file_type: byte,
    }
}

layout! {
    /// The last 12 bytes of a block with a checksum: an unused entry to whoever does not know it.
    pub struct DirTailDisk[12] = "directory block tail" {
        0x00 det_reserved_zero1: le32,
        0x04 det_rec_len: le16,
        0x06 det_reserved_zero2: byte,
        0x07 det_reserved_ft: byte,
        0x08 det_checksum: le32,
    }
}

/// What must be known of the file system to read its directories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirFormat {
    /// Bytes per block.
    pub block_size: u32,
    /// Entries hold the type of their inode (`filetype`).
    pub filetype: bool,
    /// Blocks end with a checksum (`metadata_csum`).
    pub checksum: bool,
    /// Largest inode number.
    pub max_ino: u32,
    /// Indexes may have three levels (`large_dir`).
    pub large_dir: bool,
    /// Names are encrypted, and so any bytes: `/` and NUL are among them.
    pub encrypted: bool,
}

impl DirFormat {
    /// That of a file system, for directories that are not encrypted.
    pub fn of(sb: &SuperBlock) -> Self {
        let features = sb.features();
        Self {
            block_size: sb.block_size(),
            filetype: features.incompat.contains(Incompat::FILETYPE),
            checksum: features.metadata_csum(),
            max_ino: sb.inodes_count(),
            large_dir: features.incompat.contains(Incompat::LARGE_DIR),
            encrypted: false,
        }
    }

    /// That of a directory with these flags.
    pub fn with_flags(self, flags: InodeFlags) -> Self {
        Self {
            encrypted: flags.contains(InodeFlags::ENCRYPT),
            ..self
        }
    }
}

/// Checks that names of a directory can be compared byte by byte.
///
/// # Errors
/// `UnsupportedFeature` for a casefolded or encrypted directory.
pub fn ensure_plain_names(inode: &Inode) -> Result<()> {
    let refused = [
        (InodeFlags::ENCRYPT, Incompat::ENCRYPT),
        (InodeFlags::CASEFOLD, Incompat::CASEFOLD),
    ];
    let set = refused
        .iter()
        .find(|(flag, _)| inode.flags().contains(*flag));
    set.map_or(Ok(()), |(_, feature)| {
        Err(Error::UnsupportedFeature {
            feature: feature.to_string(),
        })
    })
}

/// A directory entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirEntry<'a> {
    /// Byte of the entry within what is iterated.
    pub offset: usize,
    /// Bytes up to the next entry.
    pub rec_len: usize,
    /// Inode; 0 in an unused entry.
    pub ino: Ino,
    /// Type of the inode, where the entry says it.
    pub file_type: Option<FileType>,
    /// The byte that holds the type.
    pub type_byte: u8,
    /// Name: in a used entry 1 to 255 bytes, without `/` and NUL unless it is encrypted.
    pub name: &'a [u8],
}

impl DirEntry<'_> {
    /// Whether the entry names an inode.
    pub fn is_used(&self) -> bool {
        self.ino.0 != 0
    }

    /// Writes the entry at its offset of `bytes`; what follows the name is left alone. With 64 KiB
    /// blocks an entry that fills the block has two encodings, of which this writes the usual one.
    ///
    /// # Errors
    /// `TooShort` when `bytes` ends before the entry does.
    pub fn encode_into(&self, bytes: &mut [u8]) -> Result<()> {
        prefix(bytes, self.offset + self.rec_len, STRUCTURE)?;
        let head = DirEntryDisk {
            inode: self.ino.0,
            rec_len: encode_rec_len(self.rec_len),
            name_len: self.name.len() as u8,
            file_type: self.type_byte,
        };
        let slot = &mut bytes[self.offset..self.offset + self.rec_len];
        prefix(slot, min_rec_len(self.name.len()), STRUCTURE)?;
        slot[..DirEntryDisk::SIZE].copy_from_slice(&head.encode());
        slot[DirEntryDisk::SIZE..][..self.name.len()].copy_from_slice(self.name);
        Ok(())
    }
}

/// Fewest bytes of an entry with a name of `name_len` bytes.
pub const fn min_rec_len(name_len: usize) -> usize {
    // Without the branch of `next_multiple_of`: every entry that is walked over comes by here.
    (DirEntryDisk::SIZE + name_len + 3) & !3
}

/// The 16 bits that stand for a length of up to 65536, a multiple of 4.
pub(crate) fn encode_rec_len(rec_len: usize) -> u16 {
    if rec_len >= BIG_BLOCK {
        u16::MAX
    } else {
        rec_len as u16
    }
}

pub(crate) fn decode_rec_len(raw: u16, block_size: u32) -> usize {
    let raw = usize::from(raw);
    if (block_size as usize) < BIG_BLOCK {
        raw
    } else if raw == 0 || raw == usize::from(u16::MAX) {
        block_size as usize
    } else {
        (raw & 0xFFFC) | ((raw & 3) << 16)
    }
}

/// The entries of a block that name an inode, `.` and `..` included. `block` is the whole block.
pub fn entries<'a>(
    block: &'a [u8],
    format: &DirFormat,
) -> impl Iterator<Item = Result<DirEntry<'a>>> + use<'a> {
    slots(block, format).filter(|entry| !matches!(entry, Ok(e) if !e.is_used()))
}

/// All entries of a block, unused ones and the checksum's included.
pub fn slots<'a>(block: &'a [u8], format: &DirFormat) -> Slots<'a> {
    Slots {
        bytes: block,
        at: 0,
        format: *format,
    }
}

/// Iterator over all entries; see `slots`.
#[derive(Clone, Debug)]
pub struct Slots<'a> {
    bytes: &'a [u8],
    at: usize,
    format: DirFormat,
}

impl<'a> Iterator for Slots<'a> {
    type Item = Result<DirEntry<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= self.bytes.len() {
            return None;
        }
        let entry = entry_at(self.bytes, self.at, &self.format);
        self.at = match &entry {
            Ok(entry) => entry.offset + entry.rec_len,
            Err(_) => self.bytes.len(),
        };
        Some(entry)
    }
}

/// The entry at a byte of a chain, with every check.
///
/// # Errors
/// `TooShort`, `Corrupt`.
pub fn entry_at<'a>(bytes: &'a [u8], at: usize, format: &DirFormat) -> Result<DirEntry<'a>> {
    let rest = bytes.get(at..).unwrap_or(&[]);
    let head = DirEntryDisk::parse(rest)?;
    let rec_len = decode_rec_len(head.rec_len, format.block_size);
    validate_rec_len(rec_len, rest.len())?;
    let name_len = name_len(&head, format);
    let least = min_rec_len(name_len);
    let ok = name_len <= NAME_MAX && least <= rec_len;
    ensure(
        ok,
        STRUCTURE,
        "name_len",
        name_len,
        "a name that fits its entry",
    )?;
    let name = &rest[DirEntryDisk::SIZE..][..name_len];
    let most = format.max_ino;
    let expected = format_args!("at most {most}");
    ensure(head.inode <= most, STRUCTURE, "inode", head.inode, expected)?;
    if head.inode != 0 {
        match format.encrypted {
            true => validate_name_len(name)?,
            false => validate_name(name)?,
        }
    }
    Ok(DirEntry {
        offset: at,
        rec_len,
        ino: Ino(head.inode),
        file_type: FileType::from_dirent(head.file_type).filter(|_| format.filetype),
        type_byte: head.file_type,
        name,
    })
}

fn name_len(head: &DirEntryDisk, format: &DirFormat) -> usize {
    let high = if format.filetype { 0 } else { head.file_type };
    // Unused entries may hold anything where the type would be, the checksum's 0xDE above all.
    let high = if head.inode == 0 { 0 } else { high };
    usize::from(head.name_len) | (usize::from(high) << 8)
}

fn validate_rec_len(rec_len: usize, room: usize) -> Result<()> {
    let least = min_rec_len(1);
    let left = room.checked_sub(rec_len);
    let ok = rec_len >= least
        && rec_len.is_multiple_of(4)
        && left.is_some_and(|left| left == 0 || left >= least);
    if ok {
        return Ok(());
    }
    let expected = format_args!("{room}, or a multiple of 4 from {least} that leaves {least}");
    Err(corrupt(STRUCTURE, "rec_len", rec_len, expected))
}

/// Checks a name as an entry may hold it, unless it is encrypted: 1 to 255 bytes, no `/`, no NUL.
///
/// # Errors
/// `Corrupt`.
pub fn validate_name(name: &[u8]) -> Result<()> {
    validate_name_len(name)?;
    let ok = !has_slash_or_nul(name);
    ensure(
        ok,
        STRUCTURE,
        "name",
        name.escape_ascii(),
        "no `/` and no NUL",
    )
}

fn validate_name_len(name: &[u8]) -> Result<()> {
    let ok = (1..=NAME_MAX).contains(&name.len());
    ensure(ok, STRUCTURE, "name_len", name.len(), "1 to 255")
}

/// Checks the chain of entries of a block to its end.
///
/// # Errors
/// The first error of the iteration.
pub fn validate(block: &[u8], format: &DirFormat) -> Result<()> {
    let mut at = 0;
    while at < block.len() {
        // Every block that is read comes by here, so what is right is not looked at twice.
        at += match head_at(block, at, format) {
            Ok(head) if head.is_right(block, at, format) => head.rec_len,
            _ => entry_at(block, at, format)?.rec_len,
        };
    }
    Ok(())
}

/// Bytes of a block that entries may fill: all but the checksum's.
pub fn room(format: &DirFormat) -> usize {
    let tail = if format.checksum {
        DirTailDisk::SIZE
    } else {
        0
    };
    format.block_size as usize - tail
}

/// A used entry of a chain, and the one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Byte of the entry before, unless it is the first.
    pub before: Option<usize>,
    /// Byte of the entry.
    pub offset: usize,
    /// Bytes up to the next entry.
    pub rec_len: usize,
    /// Inode that it names.
    pub ino: Ino,
}

/// Where a new entry fits: behind the name of an entry that is longer than it must be, or in place
/// of an unused one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// Byte of the entry that gives the room.
    pub offset: usize,
    /// Bytes that it keeps; 0 if it is unused.
    pub kept: usize,
    /// Bytes that it has now.
    pub rec_len: usize,
}

/// What a walk over a valid chain needs of an entry.
struct Head {
    rec_len: usize,
    ino: u32,
    name_len: usize,
}

impl Head {
    /// The room that the entry at a byte gives, if that is `need` bytes.
    #[inline]
    fn gap(&self, at: usize, need: usize) -> Option<Gap> {
        let kept = match self.ino {
            0 => 0,
            _ => min_rec_len(self.name_len),
        };
        (self.rec_len - kept >= need).then_some(Gap {
            offset: at,
            kept,
            rec_len: self.rec_len,
        })
    }

    /// Whether the entry passes every check of [`entry_at`].
    #[inline]
    fn is_right(&self, chain: &[u8], at: usize, format: &DirFormat) -> bool {
        let left = chain.len() - at - self.rec_len;
        let fits = self.rec_len.is_multiple_of(4) && (left == 0 || left >= min_rec_len(1));
        let name = &chain[at + DirEntryDisk::SIZE..][..self.name_len];
        let is_named =
            (1..=NAME_MAX).contains(&name.len()) && (!has_slash_or_nul(name) || format.encrypted);
        fits && self.ino <= format.max_ino && is_named
    }
}

/// Whether a byte of a name is none. Eight bytes at a time: every block that is read comes by here.
#[inline]
fn has_slash_or_nul(name: &[u8]) -> bool {
    let is_bad = |bytes: &[u8; 8]| {
        let word = u64::from_ne_bytes(*bytes);
        has_zero_byte(word) | has_zero_byte(word ^ u64::from_ne_bytes([b'/'; 8]))
    };
    match name.last_chunk() {
        // It overlaps the chunk before, unless that ends where it begins.
        Some(last) => is_bad(last) || name.as_chunks().0.iter().any(is_bad),
        None => name.iter().any(|&b| b == 0 || b == b'/'),
    }
}

/// A borrow from a byte's top bit that was not set goes on only above a zero byte.
#[inline]
fn has_zero_byte(word: u64) -> bool {
    const LOW: u64 = u64::from_ne_bytes([0x01; 8]);
    const HIGH: u64 = u64::from_ne_bytes([0x80; 8]);
    word.wrapping_sub(LOW) & !word & HIGH != 0
}

#[inline]
fn head_at(chain: &[u8], at: usize, format: &DirFormat) -> Result<Head> {
    let raw = chain.get(at..).and_then(<[u8]>::first_chunk::<8>);
    // In one load: where the next entry begins is known only when this one has come.
    let Some(word) = raw.map(|raw| u64::from_le_bytes(*raw)) else {
        return Err(broken(at));
    };
    let ino = word as u32;
    let rec_len = decode_rec_len((word >> 32) as u16, format.block_size);
    let is_short = format.filetype || ino == 0;
    let name_len = (word >> 48) as usize & if is_short { 0xFF } else { 0xFFFF };
    if rec_len < min_rec_len(name_len.max(1)) || rec_len > chain.len() - at {
        return Err(broken(at));
    }
    Ok(Head {
        rec_len,
        ino,
        name_len,
    })
}

#[cold]
fn broken(at: usize) -> Error {
    corrupt(STRUCTURE, "offset", at, "an entry that fits")
}

/// Whether two names of one length are the same. Names of one directory tend to begin alike, so that their ends are
/// looked at first.
#[inline(always)]
fn is_name(one: &[u8], other: &[u8]) -> bool {
    one.last_chunk::<4>() == other.last_chunk::<4>() && one == other
}

/// What a walk over a valid chain found out about a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Search {
    /// Its entry.
    Found(Found),
    /// It has none; the first place where one fits, as [`find_gap`].
    Absent(Option<Gap>),
}

impl Search {
    /// The entry, if there is one.
    pub fn found(self) -> Option<Found> {
        match self {
            Search::Found(found) => Some(found),
            Search::Absent(_) => None,
        }
    }
}

/// Looks for a name in a valid chain, and for where it could go.
///
/// # Errors
/// `Corrupt` for a chain that is not valid, if the walk meets that.
pub fn search(chain: &[u8], format: &DirFormat, name: &[u8]) -> Result<Search> {
    let need = min_rec_len(name.len());
    let (mut before, mut gap, mut at) = (None, None, 0);
    while at < chain.len() {
        let head = head_at(chain, at, format)?;
        let (rec_len, start) = (head.rec_len, at + DirEntryDisk::SIZE);
        if head.name_len == name.len()
            && head.ino != 0
            && is_name(&chain[start..start + head.name_len], name)
        {
            let (offset, ino) = (at, Ino(head.ino));
            return Ok(Search::Found(Found {
                before,
                offset,
                rec_len,
                ino,
            }));
        }
        if gap.is_none() {
            gap = head.gap(at, need);
        }
        before = Some(at);
        at += rec_len;
    }
    Ok(Search::Absent(gap))
}

/// The entry of a valid chain that has this name.
///
/// # Errors
/// As [`search`].
pub fn find(chain: &[u8], format: &DirFormat, name: &[u8]) -> Result<Option<Found>> {
    Ok(search(chain, format, name)?.found())
}

/// The first place of a valid chain where an entry with a name of `name_len` bytes fits.
///
/// # Errors
/// As [`search`].
pub fn find_gap(chain: &[u8], format: &DirFormat, name_len: usize) -> Result<Option<Gap>> {
    let need = min_rec_len(name_len);
    let mut at = 0;
    while at < chain.len() {
        let head = head_at(chain, at, format)?;
        if let Some(gap) = head.gap(at, need) {
            return Ok(Some(gap));
        }
        at += head.rec_len;
    }
    Ok(None)
}

fn put_rec_len(chain: &mut [u8], at: usize, rec_len: usize) {
    chain[at + 4..at + 6].copy_from_slice(&encode_rec_len(rec_len).to_le_bytes());
}

/// Puts an entry into a gap of this chain. Its `offset` and `rec_len` say nothing.
///
/// # Errors
/// `TooShort` for a gap that is too small or not of this chain.
pub fn insert(chain: &mut [u8], gap: &Gap, entry: &DirEntry<'_>) -> Result<()> {
    prefix(chain, gap.offset + gap.rec_len, STRUCTURE)?;
    let entry = DirEntry {
        offset: gap.offset + gap.kept,
        rec_len: gap.rec_len - gap.kept,
        ..*entry
    };
    entry.encode_into(chain)?;
    if gap.kept > 0 {
        put_rec_len(chain, gap.offset, gap.kept);
    }
    Ok(())
}

/// Takes an entry out of its chain: the one before gets its bytes, and they are wiped.
///
/// # Errors
/// `TooShort` for an entry that is not of this chain.
pub fn remove(chain: &mut [u8], found: &Found) -> Result<()> {
    let end = found.offset + found.rec_len;
    prefix(chain, end, STRUCTURE)?;
    match found.before {
        Some(before) => {
            chain[found.offset..end].fill(0);
            put_rec_len(chain, before, end - before);
        }
        None => {
            chain[found.offset..found.offset + 4].fill(0);
            chain[found.offset + 6..end].fill(0);
        }
    }
    Ok(())
}

/// Has an entry name another inode. `type_byte` is `FileType::dirent_code`; without the `filetype`
/// feature it is left out.
///
/// # Errors
/// `TooShort` for an entry that is not of this chain.
pub fn redirect(
    chain: &mut [u8],
    format: &DirFormat,
    found: &Found,
    to: Ino,
    type_byte: u8,
) -> Result<()> {
    prefix(chain, found.offset + DirEntryDisk::SIZE, STRUCTURE)?;
    chain[found.offset..found.offset + 4].copy_from_slice(&to.0.to_le_bytes());
    if format.filetype {
        chain[found.offset + 7] = type_byte;
    }
    Ok(())
}

/// Fills the first `room` bytes of a block of zeros with these entries, in this order; the last gets
/// what is left, and none makes one unused entry. `offset` and `rec_len` of the entries say nothing.
///
/// # Errors
/// `TooShort` for entries that do not fit.
pub fn fill<'a>(
    block: &mut [u8],
    format: &DirFormat,
    entries: impl IntoIterator<Item = DirEntry<'a>>,
) -> Result<()> {
    let room = room(format);
    let chain = prefix_mut(block, room)?;
    let (mut last, mut at) = (0, 0);
    for entry in entries {
        let rec_len = min_rec_len(entry.name.len());
        let entry = DirEntry {
            offset: at,
            rec_len,
            ..entry
        };
        entry.encode_into(chain)?;
        (last, at) = (at, at + rec_len);
    }
    put_rec_len(chain, last, room - last);
    Ok(())
}

fn prefix_mut(block: &mut [u8], need: usize) -> Result<&mut [u8]> {
    let have = block.len();
    block.get_mut(..need).ok_or(Error::TooShort {
        structure: STRUCTURE,
        need,
        have,
    })
}

/// Has the last entry of a chain of `used` bytes reach to the end of what `chain` is.
///
/// # Errors
/// Those of the iteration; `Corrupt` for an empty chain.
pub fn stretch_last(chain: &mut [u8], used: usize, format: &DirFormat) -> Result<()> {
    prefix(chain, used, STRUCTURE)?;
    let mut last = None;
    for entry in slots(&chain[..used], format) {
        last = Some(entry?.offset);
    }
    let last = last.ok_or_else(|| broken(0))?;
    put_rec_len(chain, last, chain.len() - last);
    Ok(())
}

fn tail_at(block: &[u8]) -> Result<usize> {
    let need = DirTailDisk::SIZE;
    prefix(block, need, TAIL_STRUCTURE)?;
    Ok(block.len() - need)
}

/// The checksum's entry at the end of a block.
///
/// # Errors
/// `TooShort`; `Corrupt` when the last 12 bytes are something else.
pub fn tail(block: &[u8]) -> Result<DirTailDisk> {
    let tail = DirTailDisk::parse(&block[tail_at(block)?..])?;
    let empty = tail.det_reserved_zero1 == 0 && tail.det_reserved_zero2 == 0;
    let ok = empty && usize::from(tail.det_rec_len) == DirTailDisk::SIZE;
    let found = tail.det_rec_len;
    ensure(
        ok,
        TAIL_STRUCTURE,
        "det_rec_len",
        found,
        "an unused entry of 12 bytes",
    )?;
    let found = tail.det_reserved_ft;
    ensure(
        found == TAIL_TYPE,
        TAIL_STRUCTURE,
        "det_reserved_ft",
        found,
        TAIL_TYPE,
    )?;
    Ok(tail)
}

/// Checks the checksum of a block of entries (not of an index block), for a file system with
/// `metadata_csum`. `inode_seed` is `Inode::seed` of the directory.
///
/// # Errors
/// `TooShort`; `Corrupt` when there is no checksum; `Checksum`.
pub fn verify_checksum(block: &[u8], inode_seed: u32) -> Result<()> {
    let found = tail(block)?.det_checksum;
    let at = tail_at(block)?;
    ensure_checksum("directory block", found, crc32c(inode_seed, &block[..at]))
}

/// Writes the checksum's entry into the last 12 bytes of a block.
///
/// # Errors
/// `TooShort`.
pub fn update_checksum(block: &mut [u8], inode_seed: u32) -> Result<()> {
    let at = tail_at(block)?;
    let tail = DirTailDisk {
        det_reserved_zero1: 0,
        det_rec_len: DirTailDisk::SIZE as u16,
        det_reserved_zero2: 0,
        det_reserved_ft: TAIL_TYPE,
        det_checksum: crc32c(inode_seed, &block[..at]),
    };
    block[at..].copy_from_slice(&tail.encode());
    Ok(())
}
