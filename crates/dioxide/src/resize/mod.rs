//! Making a file system that nobody has mounted larger or smaller.
//!
//! ```no_run
//! use dioxide::resize::{self, ResizeOptions};
//!
//! let done = resize::resize("disk.img".as_ref(), Some(2 << 30), &ResizeOptions::default())?;
//! println!("{} blocks", done.after.blocks_count());
//! # Ok::<(), dioxide::Error>(())
//! ```
//!
//! | Module | Holds |
//! |---|---|
//! | `geometry` | from a size to the numbers of a superblock; pure |
//! | `groups` | descriptors and bitmaps as they are |
//! | `layout` | what every group is to be; changes nothing |
//! | `kept` | the resize inode, which holds the blocks kept for descriptors |
//! | `write` | bringing it onto the device |
//! | `survey` | what is in use, and how small it can be made |
//! | `relocate` | moving what is in the way of a smaller one |
//! | `shrink` | moving and cutting off, in as many goes as it takes |
//!
//! New groups are laid out as `resize2fs` does. Beyond 2^32 blocks there is no resize inode, whose pointers have 32 bits. Where
//! more blocks of descriptors are needed than are kept, the file system gets `meta_bg`, as the kernel does when it grows a
//! mounted one; `resize2fs` moves files out of the way instead. So growing touches metadata only. With `flex_bg` what new
//! groups need may lie in old ones, where the bitmaps say that nothing is.
//!
//! Shrinking has two parts. Files are moved by a mount of its own, through the journal: after a crash the file system is
//! as large as it was, and whole. Then the end, which nobody uses any more, is cut off, as groups are added.
//!
//! Invariants of that, and of growing: everything is read, laid out, and checked, the whole file system, before the first write. A crash before the
//! superblock is marked has changed nothing that counts; from the mark on, which takes away the sign of a clean
//! end, until the new superblock is written at last, `e2fsck` brings the file system in order as it was
//! before: descriptors and bitmaps of the last groups, and the resize inode, may say too much then, and
//! no file is touched. Copies of the superblock may be newer than the first meanwhile.
//!
//! Other hosts are kept away from before the superblock is read that counts until after the last write, where the file
//! system has multi-mount protection. Its block is never moved; the mount that files are moved by takes none of its own.
//!
//! Not for: what is mounted, needs recovery, or was not found clean: that is refused.
//!
//! Rejected: adding and cutting off groups through the journal, as the kernel does. It is there for changes that others
//! look on; here nobody does, and a file system without a journal can be resized in the same way.

mod geometry;
mod groups;
mod kept;
mod layout;
mod relocate;
mod shrink;
mod survey;
mod write;

use crate::check::{CheckOptions, Severity, check};
use crate::mount::image::{open_bytes, open_image_part};
use crate::mount::mmp::{self, Protection, User};
use crate::mount::open::{find_superblock, place_advice};
use crate::{Error, Place, Result, known};
use dioxide_block::Device;
use dioxide_block::file::{FileOptions, in_use_by};
use dioxide_format::features::{Compat, Incompat, RoCompat};
use dioxide_format::superblock::{STATE_CLEAN, STATE_ERROR, SUPERBLOCK_OFFSET, SuperBlock};
use dioxide_format::types::Pblk;
use std::cmp::Ordering;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;
use std::sync::Arc;

/// What changes no layout that is changed here.
const INCOMPAT: Incompat = known::INCOMPAT
    .union(Incompat::ENCRYPT)
    .union(Incompat::CASEFOLD);
const RO_COMPAT: RoCompat = known::RO_COMPAT.union(RoCompat::VERITY);

/// What `resize2fs` rounds the size of a device to.
const PAGE_BYTES: u64 = 4096;

/// How to resize.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResizeOptions {
    /// Where the file system begins in the image, in bytes. [`resize_on`] takes a device that begins with it.
    pub img_offset: u64,
    /// Most memory for the check before the first write, in bytes: [`CheckOptions::max_memory`]. Default 8 GiB.
    pub max_memory: u64,
}

impl Default for ResizeOptions {
    fn default() -> ResizeOptions {
        ResizeOptions {
            img_offset: 0,
            max_memory: CheckOptions::default().max_memory,
        }
    }
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Resized {
    /// The superblock as it was.
    pub before: SuperBlock,
    /// The superblock as it is. The same, if the file system had that size.
    pub after: SuperBlock,
}

/// What is being done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Waiting for signs of other hosts, for some seconds: multi-mount protection.
    Wait,
    /// Looking at what is in use, and where.
    Survey,
    /// Looking for damage, before anything is changed.
    Check,
    /// Giving inodes other numbers.
    Inodes,
    /// Moving blocks: clusters, those of maps included.
    Blocks,
    /// Writing what groups have of their own.
    Write,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Step::Wait => {
                "multi-mount protection: waiting to see whether another host uses the file system"
            }
            Step::Survey => "surveying",
            Step::Check => "checking",
            Step::Inodes => "moving inodes",
            Step::Blocks => "moving blocks",
            Step::Write => "writing",
        })
    }
}

/// Called as it goes on: with how much of a step is done, and how much there is. A step may come several times.
pub type OnProgress<'p> = dyn FnMut(Step, u64, u64) + 'p;

/// Gives the file system in an image or on a block device `size_bytes`, or all that the device has, if it begins there. An
/// image that is too short is made longer; one that holds the file system and nothing else, or behind it zeros that it had
/// no use for, is made shorter with it. The size that comes of it may be less: whole clusters, and no last group without room for its
/// own metadata. What is in the way of a smaller one is moved. It may be more than a smaller size that was asked for, if
/// groups that were to make room cannot go: as small as it could be made then. Blocks.
///
/// # Errors
/// Nothing is changed by any of these, but for the block of multi-mount protection, which tells who was the last, and, by
/// the first, the length of an image. [`Error::Device`], also for one that is in use, here or by another host. [`Error::Busy`] if
/// the file system was not closed cleanly. [`Error::Invalid`] for a size that no file system of this kind can have, or
/// that what is in use has no room in: says which has; and where the file system has errors, of which it names the first: it
/// is checked before; and where there is no superblock. [`Error::Unsupported`] for features that are not known, and for what
/// cannot be moved: says what. One of both where the check needs more than [`ResizeOptions::max_memory`]. Damage.
///
/// From the first write on only those of the device: see the module's documentation.
pub fn resize(path: &Path, size_bytes: Option<u64>, options: &ResizeOptions) -> Result<Resized> {
    resize_telling(path, size_bytes, options, &mut |_, _, _| ())
}

/// As [`resize`], telling how far it is.
///
/// # Errors
/// As [`resize`].
pub fn resize_telling(
    path: &Path,
    size_bytes: Option<u64>,
    options: &ResizeOptions,
    progress: &mut OnProgress<'_>,
) -> Result<Resized> {
    if size_bytes.is_none() && options.img_offset > 0 {
        return Err(Error::Invalid(
            "behind a file system that begins inside an image there may be another: the size has to be said".into(),
        ));
    }
    let device = open_image_part(path, &how(false, None, options))?;
    let sb = first_look(&*device, path, options)?;
    let block = u64::from(sb.block_size());
    let own = whole(device.geometry().size_bytes, block);
    let size = size_bytes.unwrap_or(own);
    let after = geometry::resized(&sb, size / block)?;
    let is_same = after.blocks_count() == sb.blocks_count();
    let needed = after.blocks_count() * block;
    // Two holders of one lock would be one too many.
    drop(device);
    if is_same {
        let before = sb.clone();
        return Ok(Resized { before, after: sb });
    }
    let lengthened = match needed > own {
        true => lengthen(path, options.img_offset.saturating_add(needed))?,
        false => None,
    };
    // What is behind both of its sizes may be another partition, which somebody has.
    let most = needed.max(sb.blocks_count() * block);
    let device = open_bytes(path, &how(true, Some(&sb), options), most)?;
    let resized = resize_on(&device, size / block, options, progress).inspect_err(|error| {
        // After one of the device's it may be larger than it was.
        if let (Some((had, has)), false) = (lengthened, matches!(error, Error::Device(_))) {
            let _ = change_len(path, |len| (len == has).then_some(had));
        }
    })?;
    if options.img_offset == 0 {
        let has = resized.after.blocks_count() * block;
        // While nobody else can have it, who may need more of it.
        shorten(path, &sb, has.max(needed))?;
    }
    drop(device);
    Ok(resized)
}

/// The smallest size in bytes that the file system in an image or on a block device can be made, or a little
/// more. Opens it for reading only, and reads the maps of all files. Blocks.
///
/// # Errors
/// As [`resize`].
pub fn minimum(path: &Path, options: &ResizeOptions) -> Result<u64> {
    minimum_telling(path, options, &mut |_, _, _| ())
}

/// As [`minimum`], telling how far it is.
///
/// # Errors
/// As [`resize`].
pub fn minimum_telling(
    path: &Path,
    options: &ResizeOptions,
    progress: &mut OnProgress<'_>,
) -> Result<u64> {
    let device = open_image_part(path, &how(false, None, options))?;
    let sb = first_look(&*device, path, options)?;
    drop(device);
    let device = open_image_part(path, &how(false, Some(&sb), options))?;
    if let Some(block) = mmp_block(&sb)? {
        mmp::look(&*device, &sb, block.0, &mut |_| progress(Step::Wait, 0, 1))?;
    }
    let sb = read_superblock(&*device)?;
    let blocks = shrink::least_blocks(&*device, &sb, progress)?;
    Ok(blocks * u64::from(sb.block_size()))
}

/// Resizes the file system on a device to `blocks` blocks, of which the device must have as many. Blocks.
///
/// # Errors
/// As [`resize`].
pub fn resize_on(
    device: &Arc<dyn Device>,
    blocks: u64,
    options: &ResizeOptions,
    progress: &mut OnProgress<'_>,
) -> Result<Resized> {
    let (sb, after) = wanted(&**device, blocks)?;
    if after.blocks_count() == sb.blocks_count() {
        let before = sb.clone();
        return Ok(Resized { before, after: sb });
    }
    let _protection = protect(device, &sb, progress)?;
    // Until then it may have been another host's.
    let (before, after) = wanted(&**device, blocks)?;
    let after = match after.blocks_count().cmp(&before.blocks_count()) {
        Ordering::Greater => {
            let plan = layout::grow(&**device, &before, after)?;
            refuse_errors(device, options, progress)?;
            plan.write(&**device, progress)?
        }
        Ordering::Equal => before.clone(),
        Ordering::Less => shrink::shrink(device, after, options, progress)?,
    };
    Ok(Resized { before, after })
}

/// Nothing is changed in a file system with errors: blocks that are said to be free could be somebody's.
fn refuse_errors(
    device: &Arc<dyn Device>,
    options: &ResizeOptions,
    progress: &mut OnProgress<'_>,
) -> Result<()> {
    let how = CheckOptions {
        max_memory: options.max_memory,
        ..CheckOptions::default()
    };
    let report = check(device.clone(), &how, &mut |at| {
        progress(Step::Check, at.done, at.total);
    })?;
    if report.is_clean() {
        return Ok(());
    }
    if report.errors == 0 {
        let why = report.findings.last().map_or("", |one| &one.text);
        let what = format!("it could not be checked to its end, and nothing is changed: {why}");
        return Err(Error::Invalid(what));
    }
    let mut findings = report.findings.iter();
    let first = findings.find(|one| one.code.severity() == Severity::Error);
    let first = first.map_or(String::new(), |one| format!(" ({one})"));
    Err(Error::Invalid(format!(
        "there are errors in the file system{first}: run e2fsck -f, nothing is changed before"
    )))
}

/// The superblock as it is, and as it is to be.
fn wanted(device: &dyn Device, blocks: u64) -> Result<(SuperBlock, SuperBlock)> {
    let before = read_superblock(device)?;
    let after = geometry::resized(&before, blocks)?;
    let size = after.blocks_count() * u64::from(after.block_size());
    let has = device.geometry().size_bytes;
    if size > has && after.blocks_count() != before.blocks_count() {
        let what = format!("{size} bytes are more than the device has ({has})");
        return Err(Error::Invalid(what));
    }
    Ok((before, after))
}

/// Keeps other hosts away, where the file system has that, until it is dropped.
fn protect(
    device: &Arc<dyn Device>,
    sb: &SuperBlock,
    progress: &mut OnProgress<'_>,
) -> Result<Option<Protection>> {
    let Some(block) = mmp_block(sb)? else {
        return Ok(None);
    };
    let mut tell = |_: &str| progress(Step::Wait, 0, 1);
    Protection::take(device, sb, block.0, User::Resizer, &mut tell).map(Some)
}

fn mmp_block(sb: &SuperBlock) -> Result<Option<Pblk>> {
    sb.mmp_block().map_err(in_superblock)
}

/// Opens the device of a file system whose superblock is `sb`, as far as that is known.
fn how(write: bool, sb: Option<&SuperBlock>, options: &ResizeOptions) -> FileOptions {
    FileOptions {
        write,
        img_offset: options.img_offset,
        // The page cache of a block device does not see what other hosts write.
        buffered: sb.is_none_or(|sb| matches!(sb.mmp_block(), Ok(None))),
        ..FileOptions::default()
    }
}

fn in_superblock(error: dioxide_format::Error) -> Error {
    Error::format(error, Place::default().at(SUPERBLOCK_OFFSET))
}

/// As [`read_superblock`], where a user may have named the wrong image, or one that is mounted.
fn first_look(device: &dyn Device, path: &Path, options: &ResizeOptions) -> Result<SuperBlock> {
    read_superblock(device).map_err(|error| match error {
        Error::Invalid(what) => Error::Invalid(what + &place_advice(options.img_offset)),
        // While somebody uses it, it looks as after a crash.
        Error::Busy(_) => match in_use_by(path) {
            Some(by) => Error::Device(dioxide_block::Error::Busy {
                path: path.into(),
                by: format!("{by}; unmount or detach it first"),
            }),
            None => error,
        },
        error => error,
    })
}

/// The superblock, if the file system may be resized.
fn read_superblock(device: &dyn Device) -> Result<SuperBlock> {
    let sb = find_superblock(device, SUPERBLOCK_OFFSET)?;
    sb.validate(None).map_err(in_superblock)?;
    sb.verify_checksum().map_err(in_superblock)?;
    judge(&sb)?;
    Ok(sb)
}

fn judge(sb: &SuperBlock) -> Result<()> {
    sb.validate_hash_version().map_err(in_superblock)?;
    sb.validate_journal_place().map_err(in_superblock)?;
    mmp_block(sb)?;
    let features = sb.features();
    if sb.needs_recovery() {
        return Err(Error::Busy(
            "the journal has to be replayed first: `dioxide sync` opens and closes it",
        ));
    }
    if sb.state() & (STATE_CLEAN | STATE_ERROR) != STATE_CLEAN {
        return Err(Error::Busy(
            "it was not closed cleanly, or has errors: run e2fsck",
        ));
    }
    if sb.last_orphan().is_some() || features.ro_compat.contains(RoCompat::ORPHAN_PRESENT) {
        return Err(Error::Busy(
            "deleted files wait to be freed: `dioxide sync` opens and closes it",
        ));
    }
    let mut unknown = features.incompat.unsupported(INCOMPAT).names();
    unknown.extend(features.ro_compat.unsupported(RO_COMPAT).names());
    if features.compat.contains(Compat::EXCLUDE_BITMAP) {
        unknown.push("snapshot_bitmap".into());
    }
    if !unknown.is_empty() {
        let what = format!("resizing with the features {}", unknown.join(", "));
        return Err(Error::Unsupported(what));
    }
    Ok(())
}

/// Makes an image longer that is too short: how long it was, and is.
fn lengthen(path: &Path, size_bytes: u64) -> Result<Option<(u64, u64)>> {
    let mut lengthened = None;
    change_len(path, |len| {
        lengthened = (len < size_bytes).then_some((len, size_bytes));
        lengthened.map(|(_, has)| has)
    })?;
    Ok(lengthened)
}

/// What a file system with blocks of `block` bytes has of so many, by default.
fn whole(size_bytes: u64, block: u64) -> u64 {
    let unit = PAGE_BYTES.max(block);
    size_bytes / unit * unit
}

/// Makes an image shorter that ended where its file system did, or with zeros that this had no use for: less than a
/// page, a cluster, or a last group with room for its own metadata. What else is behind one is somebody's.
fn shorten(path: &Path, before: &SuperBlock, size_bytes: u64) -> Result<()> {
    let block = u64::from(before.block_size());
    let had = before.blocks_count() * block;
    let is_rest = |len: u64| {
        let most = geometry::resized(before, whole(len, block) / block);
        let most = most.map_or(0, |most| most.blocks_count());
        len > had && most == before.blocks_count() && are_zeros(path, had..len)
    };
    let ended = |len| len > size_bytes && (len == had || is_rest(len));
    change_len(path, |len| ended(len).then_some(size_bytes))
}

/// Whether a part of an image can be read, and is zeros.
fn are_zeros(path: &Path, bytes: Range<u64>) -> bool {
    let Ok(file) = File::open(path) else {
        return false;
    };
    let mut buf = vec![0; 64 << 10];
    let mut parts = bytes.clone().step_by(buf.len());
    parts.all(|at| {
        let part = (bytes.end - at).min(buf.len() as u64) as usize;
        let read = file.read_exact_at(&mut buf[..part], at);
        read.is_ok() && buf[..part].iter().all(|byte| *byte == 0)
    })
}

/// Gives an image file the length that `wanted` makes of its own.
fn change_len(path: &Path, wanted: impl FnOnce(u64) -> Option<u64>) -> Result<()> {
    let failed = |source| {
        Error::Device(dioxide_block::Error::Open {
            path: path.into(),
            what: "cannot change its length".into(),
            source,
        })
    };
    let metadata = fs::metadata(path).map_err(failed)?;
    let is_device = metadata.file_type().is_block_device();
    match wanted(metadata.len()).filter(|_| !is_device) {
        Some(len) => {
            let file = OpenOptions::new().write(true).open(path);
            file.and_then(|file| file.set_len(len)).map_err(failed)
        }
        None => Ok(()),
    }
}
