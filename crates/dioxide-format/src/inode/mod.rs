//! Inodes: 128 bytes, or more with extra fields and room for extended attributes.
//!
//! For: the fields as numbers in one unit, times, checksum, validation. Not for: what `i_block`
//! holds; `extent`, `indirect`, `inline_data` and `symlink` read that.
//!
//! Invariant: an extra field is read only when `i_extra_isize` covers it, else it is zero.
//!
//! Rejected: keeping raw bytes and reading fields on demand. The engine keeps inodes in memory for
//! long and changes them; typed fields cost nothing there.

mod disk;
mod flags;

pub use disk::InodeDisk;
pub use flags::InodeFlags;

use crate::Result;
use crate::bytes::Bytes;
use crate::checksum::{crc32c, inode_seed};
use crate::error::{corrupt, ensure, ensure_checksum, prefix};
use crate::superblock::SuperBlock;
use crate::types::{Ino, Pblk};

const STRUCTURE: &str = "inode";
/// Bytes of an inode as mke2fs makes them where nobody says.
pub const USUAL_SIZE: usize = 256;
const USUAL_TAIL: usize = USUAL_SIZE - InodeDisk::SIZE;
/// Bytes of an inode without extra fields.
pub const GOOD_OLD_SIZE: usize = 128;

/// Most links that an inode counts. A directory with more says 1, with `dir_nlink`.
pub const LINK_MAX: u16 = 65000;
const CHECKSUM_LO: std::ops::Range<usize> = 0x7C..0x7E;
const CHECKSUM_HI: std::ops::Range<usize> = 0x82..0x84;

/// What an inode is, from the high bits of its mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileType {
    /// Regular file.
    Regular,
    /// Directory.
    Directory,
    /// Symbolic link.
    Symlink,
    /// Character device.
    CharDevice,
    /// Block device.
    BlockDevice,
    /// Named pipe.
    Fifo,
    /// Socket.
    Socket,
}

impl FileType {
    /// From `i_mode`; none for bits that are no type.
    pub fn from_mode(mode: u16) -> Option<Self> {
        Some(match mode & 0xF000 {
            0x1000 => Self::Fifo,
            0x2000 => Self::CharDevice,
            0x4000 => Self::Directory,
            0x6000 => Self::BlockDevice,
            0x8000 => Self::Regular,
            0xA000 => Self::Symlink,
            0xC000 => Self::Socket,
            _ => return None,
        })
    }

    /// From the type byte of a directory entry; none for unknown.
    pub fn from_dirent(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::Regular,
            2 => Self::Directory,
            3 => Self::CharDevice,
            4 => Self::BlockDevice,
            5 => Self::Fifo,
            6 => Self::Socket,
            7 => Self::Symlink,
            _ => return None,
        })
    }

    /// The type byte of a directory entry.
    pub fn dirent_code(self) -> u8 {
        match self {
            Self::Regular => 1,
            Self::Directory => 2,
            Self::CharDevice => 3,
            Self::BlockDevice => 4,
            Self::Fifo => 5,
            Self::Socket => 6,
            Self::Symlink => 7,
        }
    }

    /// The type bits of `i_mode`.
    pub fn mode_bits(self) -> u16 {
        match self {
            Self::Fifo => 0x1000,
            Self::CharDevice => 0x2000,
            Self::Directory => 0x4000,
            Self::BlockDevice => 0x6000,
            Self::Regular => 0x8000,
            Self::Symlink => 0xA000,
            Self::Socket => 0xC000,
        }
    }
}

/// A point in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    /// Seconds since 1970, negative before.
    pub secs: i64,
    /// Nanoseconds within the second. Up to 2^30 - 1 when the disk says so.
    pub nsec: u32,
}

impl Timestamp {
    /// From the 32-bit seconds and the extra word (2 epoch bits, 30 bits of nanoseconds).
    fn decode(secs: u32, extra: u32) -> Self {
        Self {
            secs: i64::from(secs.cast_signed()) + (i64::from(extra & 3) << 32),
            nsec: extra >> 2,
        }
    }

    /// The 32-bit seconds and the extra word. Seconds outside of what they hold, or the seconds alone if there is no
    /// extra word, are cut to its ends.
    fn encode(self, has_extra: bool) -> (u32, u32) {
        let low = i64::from(i32::MIN);
        let span: i64 = if has_extra { 4 << 32 } else { 1 << 32 };
        let secs = self.secs.clamp(low, low + span - 1);
        let epoch = ((secs - low) >> 32) as u32;
        (secs as u32, (self.nsec << 2) | epoch)
    }
}

/// Major and minor number of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeviceNumber {
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
}

/// An inode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inode {
    disk: InodeDisk,
    /// Bytes past the layout table.
    tail: Bytes<USUAL_TAIL>,
    has_extra: bool,
}

/// Whether an inode of this size has more than the first 128 bytes.
fn has_extra(inode_size: usize) -> Result<bool> {
    let has_extra = inode_size >= InodeDisk::SIZE;
    let ok = has_extra || inode_size == GOOD_OLD_SIZE;
    ensure(ok, STRUCTURE, "size", inode_size, "128 or at least 160")?;
    Ok(has_extra)
}

/// An extra field by name: zero unless `i_extra_isize` covers it.
macro_rules! extra {
    ($inode:expr, $field:ident, $end:literal) => {
        if $inode.extra_covers($end) {
            $inode.disk.$field
        } else {
            0
        }
    };
}

impl Inode {
    /// Reads an inode of `inode_size` bytes from the start of `bytes`. Nothing is judged but sizes.
    ///
    /// # Errors
    /// `TooShort`; `Corrupt` for an `inode_size` that is neither 128 nor at least 160.
    pub fn parse(bytes: &[u8], inode_size: usize) -> Result<Self> {
        let has_extra = has_extra(inode_size)?;
        let bytes = prefix(bytes, inode_size, STRUCTURE)?;
        let mut head = [0; InodeDisk::SIZE];
        let len = inode_size.min(head.len());
        head[..len].copy_from_slice(&bytes[..len]);
        Ok(Self {
            disk: InodeDisk::from_array(&head),
            tail: bytes[len..].into(),
            has_extra,
        })
    }

    /// An inode of `inode_size` bytes whose every byte is zero.
    ///
    /// # Errors
    /// `Corrupt`, as [`Inode::parse`].
    pub fn zeroed(inode_size: usize) -> Result<Self> {
        Ok(Self {
            has_extra: has_extra(inode_size)?,
            disk: InodeDisk::zeroed(),
            tail: Bytes::zeroed(inode_size.saturating_sub(InodeDisk::SIZE)),
        })
    }

    /// Bytes on disk.
    pub fn inode_size(&self) -> usize {
        if self.has_extra {
            InodeDisk::SIZE + self.tail.len()
        } else {
            GOOD_OLD_SIZE
        }
    }

    /// The `inode_size()` bytes.
    pub fn encode(&self) -> Bytes<USUAL_SIZE> {
        let mut bytes = Bytes::zeroed(self.inode_size());
        let fields = self.disk.encode();
        let (head, tail) = bytes.split_at_mut(self.inode_size().min(fields.len()));
        head.copy_from_slice(&fields[..head.len()]);
        tail.copy_from_slice(&self.tail);
        bytes
    }

    /// The fields by their disk names.
    pub fn disk(&self) -> &InodeDisk {
        &self.disk
    }

    /// The fields by their disk names, to change. `update_checksum` afterwards.
    pub fn disk_mut(&mut self) -> &mut InodeDisk {
        &mut self.disk
    }

    /// Bytes of extra fields after the first 128; 0 in a 128-byte inode.
    pub fn extra_isize(&self) -> usize {
        if self.has_extra {
            usize::from(self.disk.i_extra_isize)
        } else {
            0
        }
    }

    fn extra_covers(&self, end: usize) -> bool {
        self.has_extra && GOOD_OLD_SIZE + self.extra_isize() >= end
    }

    /// `i_mode`: type and permission bits.
    pub fn mode(&self) -> u16 {
        self.disk.i_mode
    }

    /// Permission bits with set-uid, set-gid and sticky.
    pub fn permissions(&self) -> u16 {
        self.disk.i_mode & 0o7777
    }

    /// What the inode is; none when the mode names no type (as in a free inode).
    pub fn file_type(&self) -> Option<FileType> {
        FileType::from_mode(self.disk.i_mode)
    }

    /// Whether the inode is a directory.
    pub fn is_dir(&self) -> bool {
        self.file_type() == Some(FileType::Directory)
    }

    /// Sets type and permission bits.
    pub fn set_mode(&mut self, file_type: FileType, permissions: u16) {
        self.disk.i_mode = file_type.mode_bits() | permissions & 0o7777;
    }

    /// Owner.
    pub fn uid(&self) -> u32 {
        u32::from(self.disk.i_uid) | (u32::from(self.disk.l_i_uid_high) << 16)
    }

    /// Group of the owner.
    pub fn gid(&self) -> u32 {
        u32::from(self.disk.i_gid) | (u32::from(self.disk.l_i_gid_high) << 16)
    }

    /// Size in bytes. Values of 2^63 and more are corrupt (`validate`).
    pub fn size(&self) -> u64 {
        u64::from(self.disk.i_size_lo) | (u64::from(self.disk.i_size_high) << 32)
    }

    /// Sets the size in bytes.
    pub fn set_size(&mut self, bytes: u64) {
        self.disk.i_size_lo = bytes as u32;
        self.disk.i_size_high = (bytes >> 32) as u32;
    }

    /// Number of links.
    pub fn links_count(&self) -> u16 {
        self.disk.i_links_count
    }

    /// Space used, in units of 512 bytes. `huge_file` is the file system's feature of that name,
    /// `block_size` in bytes.
    pub fn sectors(&self, huge_file: bool, block_size: u32) -> u64 {
        let low = u64::from(self.disk.i_blocks_lo);
        if !huge_file {
            return low;
        }
        let blocks = low | (u64::from(self.disk.l_i_blocks_high) << 32);
        if self.flags().contains(InodeFlags::HUGE_FILE) {
            blocks * u64::from(block_size / 512)
        } else {
            blocks
        }
    }

    /// Sets the space used, in units of 512 bytes, a whole number of blocks. `huge_file` and
    /// `block_size` as for [`Inode::sectors`]. Whether the format can say it: if not, nothing changes.
    #[must_use]
    pub fn set_sectors(&mut self, sectors: u64, huge_file: bool, block_size: u32) -> bool {
        const LOW: u64 = 1 << 32;
        const WIDE: u64 = 1 << 48;
        let blocks = sectors / u64::from(block_size / 512);
        let (count, in_blocks) = match huge_file {
            _ if sectors < LOW => (sectors, false),
            true if sectors < WIDE => (sectors, false),
            true if blocks < WIDE => (blocks, true),
            _ => return false,
        };
        self.disk.i_blocks_lo = count as u32;
        if huge_file {
            self.disk.l_i_blocks_high = (count >> 32) as u16;
        }
        let flag = InodeFlags::HUGE_FILE.0;
        self.disk.i_flags = self.disk.i_flags & !flag | if in_blocks { flag } else { 0 };
        true
    }

    /// The flags.
    pub fn flags(&self) -> InodeFlags {
        InodeFlags(self.disk.i_flags)
    }

    /// Sets owner and group.
    pub fn set_owner(&mut self, uid: u32, gid: u32) {
        self.disk.i_uid = uid as u16;
        self.disk.l_i_uid_high = (uid >> 16) as u16;
        self.disk.i_gid = gid as u16;
        self.disk.l_i_gid_high = (gid >> 16) as u16;
    }

    /// Sets how many names it has.
    pub fn set_links_count(&mut self, count: u16) {
        self.disk.i_links_count = count;
    }

    /// Sets the permission bits, set-ID and sticky bits included: the low 12 bits of the mode.
    pub fn set_permissions(&mut self, permissions: u16) {
        self.disk.i_mode = self.disk.i_mode & !0o7777 | permissions & 0o7777;
    }

    /// Whether `i_block` is the root of an extent tree.
    pub fn uses_extents(&self) -> bool {
        self.flags().contains(InodeFlags::EXTENTS)
    }

    /// Whether the content is in the inode itself.
    pub fn has_inline_data(&self) -> bool {
        self.flags().contains(InodeFlags::INLINE_DATA)
    }

    /// Generation, part of the seed of what belongs to the inode.
    pub fn generation(&self) -> u32 {
        self.disk.i_generation
    }

    /// Block of extended attributes.
    pub fn file_acl(&self) -> Option<Pblk> {
        let lo = u64::from(self.disk.i_file_acl_lo);
        let block = lo | (u64::from(self.disk.l_i_file_acl_high) << 32);
        (block != 0).then_some(Pblk(block))
    }

    /// Sets the block of extended attributes.
    pub fn set_file_acl(&mut self, block: Option<Pblk>) {
        let block = block.map_or(0, |block| block.0);
        self.disk.i_file_acl_lo = block as u32;
        self.disk.l_i_file_acl_high = (block >> 32) as u16;
    }

    /// The 60 bytes that hold the block map, the inline content or a fast symlink.
    pub fn i_block(&self) -> &[u8; 60] {
        &self.disk.i_block
    }

    /// Sets the 60 bytes.
    pub fn set_i_block(&mut self, bytes: &[u8; 60]) {
        self.disk.i_block = *bytes;
    }

    /// Last access.
    pub fn atime(&self) -> Timestamp {
        Timestamp::decode(self.disk.i_atime, extra!(self, i_atime_extra, 0x90))
    }

    /// Last change of the inode.
    pub fn ctime(&self) -> Timestamp {
        Timestamp::decode(self.disk.i_ctime, extra!(self, i_ctime_extra, 0x88))
    }

    /// Last change of the content.
    pub fn mtime(&self) -> Timestamp {
        Timestamp::decode(self.disk.i_mtime, extra!(self, i_mtime_extra, 0x8C))
    }

    /// Creation; none when the inode has no room for it.
    pub fn crtime(&self) -> Option<Timestamp> {
        let extra = extra!(self, i_crtime_extra, 0x98);
        self.extra_covers(0x94)
            .then(|| Timestamp::decode(self.disk.i_crtime, extra))
    }

    /// Sets the last access.
    pub fn set_atime(&mut self, time: Timestamp) {
        let has_extra = self.extra_covers(0x90);
        let (secs, extra) = time.encode(has_extra);
        self.disk.i_atime = secs;
        if has_extra {
            self.disk.i_atime_extra = extra;
        }
    }

    /// Sets the last change of the inode.
    pub fn set_ctime(&mut self, time: Timestamp) {
        let has_extra = self.extra_covers(0x88);
        let (secs, extra) = time.encode(has_extra);
        self.disk.i_ctime = secs;
        if has_extra {
            self.disk.i_ctime_extra = extra;
        }
    }

    /// Sets the last change of the content.
    pub fn set_mtime(&mut self, time: Timestamp) {
        let has_extra = self.extra_covers(0x8C);
        let (secs, extra) = time.encode(has_extra);
        self.disk.i_mtime = secs;
        if has_extra {
            self.disk.i_mtime_extra = extra;
        }
    }

    /// Sets the creation, if the inode has room for it.
    pub fn set_crtime(&mut self, time: Timestamp) {
        let (secs, extra) = time.encode(true);
        if self.extra_covers(0x98) {
            (self.disk.i_crtime, self.disk.i_crtime_extra) = (secs, extra);
        }
    }

    /// When the inode was deleted, seconds since 1970; or the next inode of the legacy orphan list.
    pub fn dtime(&self) -> u32 {
        self.disk.i_dtime
    }

    /// Sets the time of deletion, or the next inode of the legacy orphan list.
    pub fn set_dtime(&mut self, dtime: u32) {
        self.disk.i_dtime = dtime;
    }

    /// Project; 0 when the inode has no room for it.
    pub fn projid(&self) -> u32 {
        extra!(self, i_projid, 0xA0)
    }

    /// Sets the project. Whether the inode has room for it.
    pub fn set_projid(&mut self, projid: u32) -> bool {
        let fits = self.extra_covers(0xA0);
        if fits {
            self.disk.i_projid = projid;
        }
        fits
    }

    /// Change counter; 32 bits when the inode has no room for more.
    pub fn version(&self) -> u64 {
        u64::from(self.disk.l_i_version) | (u64::from(extra!(self, i_version_hi, 0x9C)) << 32)
    }

    /// Whether the target of a symlink is in `i_block`.
    pub fn is_fast_symlink(&self) -> bool {
        self.file_type() == Some(FileType::Symlink)
            && !self.uses_extents()
            && !self.has_inline_data()
            && (1..60).contains(&self.size())
    }

    /// Whether `i_block` holds pointers to blocks: the map of a file, directory or symlink without extents.
    pub fn has_pointers(&self) -> bool {
        let kind = self.file_type();
        let mapped = matches!(
            kind,
            Some(FileType::Regular | FileType::Directory | FileType::Symlink)
        );
        mapped && !self.uses_extents() && !self.has_inline_data() && !self.is_fast_symlink()
    }

    /// Number of a character or block device; none for other inodes.
    pub fn device_number(&self) -> Option<DeviceNumber> {
        if !matches!(
            self.file_type(),
            Some(FileType::CharDevice | FileType::BlockDevice)
        ) {
            return None;
        }
        let (old, new) = (self.block_word(0), self.block_word(1));
        Some(if old != 0 {
            DeviceNumber {
                major: (old >> 8) & 0xFF,
                minor: old & 0xFF,
            }
        } else {
            DeviceNumber {
                major: (new >> 8) & 0xFFF,
                minor: (new & 0xFF) | ((new >> 12) & 0xF_FF00),
            }
        })
    }

    /// Sets the number of a device: in the old form if it fits there, as Linux does.
    pub fn set_device_number(&mut self, DeviceNumber { major, minor }: DeviceNumber) {
        let (old, new) = match major < 256 && minor < 256 {
            true => (major << 8 | minor, 0),
            false => (
                0,
                minor & 0xFF | (major & 0xFFF) << 8 | (minor & 0xF_FF00) << 12,
            ),
        };
        self.disk.i_block[..4].copy_from_slice(&old.to_le_bytes());
        self.disk.i_block[4..8].copy_from_slice(&new.to_le_bytes());
    }

    fn block_word(&self, index: usize) -> u32 {
        let mut word = [0; 4];
        word.copy_from_slice(&self.disk.i_block[index * 4..index * 4 + 4]);
        u32::from_le_bytes(word)
    }

    /// The part of the raw inode that holds extended attributes: `raw` is the whole inode as on
    /// disk. Empty when there is no room or `i_extra_isize` is out of range.
    pub fn in_inode_xattrs<'a>(&self, raw: &'a [u8]) -> &'a [u8] {
        if !self.has_extra {
            return &[];
        }
        raw.get(GOOD_OLD_SIZE + self.extra_isize()..self.inode_size())
            .unwrap_or(&[])
    }

    /// Seed of what belongs to the inode. `fs_seed` is `SuperBlock::checksum_seed`.
    pub fn seed(&self, fs_seed: u32, ino: Ino) -> u32 {
        inode_seed(fs_seed, ino, self.generation())
    }

    fn has_wide_checksum(&self) -> bool {
        self.extra_covers(CHECKSUM_HI.end)
    }

    fn computed_checksum(&self, fs_seed: u32, ino: Ino) -> u32 {
        let mut fields = self.disk.encode();
        fields[CHECKSUM_LO].fill(0);
        let is_wide = self.has_wide_checksum();
        if is_wide {
            fields[CHECKSUM_HI].fill(0);
        }
        let len = self.inode_size().min(fields.len());
        let crc = crc32c(self.seed(fs_seed, ino), &fields[..len]);
        let crc = crc32c(crc, &self.tail);
        if is_wide { crc } else { crc & 0xFFFF }
    }

    fn stored_checksum(&self) -> u32 {
        u32::from(self.disk.l_i_checksum_lo) | (u32::from(extra!(self, i_checksum_hi, 0x84)) << 16)
    }

    /// Checks the checksum of a file system with `metadata_csum`. `fs_seed` is
    /// `SuperBlock::checksum_seed`. A free inode that is all zeros has none and passes.
    ///
    /// # Errors
    /// `Checksum`.
    pub fn verify_checksum(&self, fs_seed: u32, ino: Ino) -> Result<()> {
        let found = self.stored_checksum();
        let computed = self.computed_checksum(fs_seed, ino);
        if found != computed && found == 0 && self.encode().iter().all(|&b| b == 0) {
            return Ok(());
        }
        ensure_checksum(STRUCTURE, found, computed)
    }

    /// Makes the checksum right, for a file system with `metadata_csum`.
    pub fn update_checksum(&mut self, fs_seed: u32, ino: Ino) {
        let csum = self.computed_checksum(fs_seed, ino);
        self.disk.l_i_checksum_lo = csum as u16;
        if self.has_wide_checksum() {
            self.disk.i_checksum_hi = (csum >> 16) as u16;
        }
    }

    /// Checks an inode that is in use: type, size, extra size, block of extended attributes.
    ///
    /// # Errors
    /// `Corrupt`.
    pub fn validate(&self, sb: &SuperBlock) -> Result<()> {
        self.validate_extra_isize()?;
        self.validate_mode()?;
        let size = self.size();
        let ok = i64::try_from(size).is_ok();
        ensure(ok, STRUCTURE, "i_size", size, "less than 2^63")?;
        self.validate_symlink_size(sb.block_size())?;
        let Some(block) = self.file_acl() else {
            return Ok(());
        };
        let range = sb.first_data_block().0 + 1..sb.blocks_count();
        let expected = format_args!("{} to {}", range.start, range.end);
        ensure(
            range.contains(&block.0),
            STRUCTURE,
            "i_file_acl",
            block,
            expected,
        )
    }

    fn validate_extra_isize(&self) -> Result<()> {
        let extra = self.extra_isize();
        let most = self.inode_size() - GOOD_OLD_SIZE;
        let ok = extra <= most && extra.is_multiple_of(4);
        let expected = format_args!("a multiple of 4 up to {most}");
        ensure(ok, STRUCTURE, "i_extra_isize", extra, expected)
    }

    fn validate_mode(&self) -> Result<()> {
        match self.file_type() {
            Some(_) => Ok(()),
            None => Err(corrupt(
                STRUCTURE,
                "i_mode",
                format_args!("{:#o}", self.disk.i_mode),
                "a file type",
            )),
        }
    }

    fn validate_symlink_size(&self, block_size: u32) -> Result<()> {
        // Linux empties what it frees, and a crash may come in between.
        if self.file_type() != Some(FileType::Symlink) || self.links_count() == 0 {
            return Ok(());
        }
        let (size, most) = (self.size(), u64::from(block_size));
        let ok = (1..=most).contains(&size);
        ensure(ok, STRUCTURE, "i_size", size, format_args!("1 to {most}"))
    }
}
