//! Makes an image of a tree: a file system, the tree in it, and a name for it once it is complete.
//!
//! The same tree and wishes give the same bytes on every machine, at any time. What a file system has
//! by chance or from the clock comes from the tree here ([`Identity`]); entries are written in the
//! tree's order by one thread, and the engine gives out inodes and blocks by what it was asked before,
//! never by thread or time.
//!
//! The image has another name beside its own while it is written, and is removed after an error.
//!
//! Rejected: writing through the journal. Nobody mounts a file system that has no name yet, so there is
//! no state in between to protect; everything would be written twice, and the log's remains would be in
//! the image. Rejected: laying files out without the engine, as the size is known beforehand. It would
//! be a second allocator, directory index and extent tree to keep right.

mod behind;
mod identity;
mod sink;

pub use identity::Identity;

use self::behind::Behind;
use crate::error::{Error, Result};
use crate::size::{Free, Layout, Need, need, smallest};
use crate::tree::{Tree, Warning, Watch};
use crate::unfinished;
use dioxide::block::Device;
use dioxide::block::file::{self, FileOptions, Replacing};
use dioxide::format::superblock::SuperBlock;
use dioxide::mkfs::{Plan, WriteOptions};
use dioxide::{Fs, Mkfs, MountOptions, Policy, Timestamp};
use sink::ImageSink;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempPath;

/// Inodes that a new file system has taken, at most: the fixed ones, `lost+found`, the orphan file,
/// quotas of projects.
const FIRST_INODES: u64 = 16;
/// For so many bytes of reserve there is an inode.
const RESERVE_BYTES_PER_INODE: u64 = 16 << 10;
/// Largest image that is looked for.
const MOST_BYTES: u64 = 1 << 50;
/// A size that every kind of file system can have.
const SAMPLE_BYTES: u64 = 1 << 30;
/// What an image has beyond what is counted: this part of it, and some clusters. The last files of one that is all but full lie in
/// more pieces than those of one that is empty, and have more nodes in their maps.
const SLACK: u64 = 1024;
const SLACK_CLUSTERS: u64 = 8;
/// By which part an image grows that turned out too small; by twice as much the next time, and how often.
const GROWTH: u64 = 512;
const TRIES: u32 = 8;

/// How large an image is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageSize {
    /// So many bytes.
    Bytes(u64),
    /// As small as what the tree takes can be counted beforehand, with this much free: a thousandth and eight clusters more.
    Fit(Reserve),
}

/// What is to stay free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reserve {
    /// So many bytes, and an inode for each 16 KiB of them.
    Bytes(u64),
    /// So many percent of the blocks and of the inodes that the tree takes.
    Percent(u32),
}

impl Reserve {
    fn on(self, need: Need, block_bytes: u32) -> Need {
        let (blocks, inodes) = match self {
            Reserve::Bytes(bytes) => (
                bytes.div_ceil(block_bytes.into()),
                bytes.div_ceil(RESERVE_BYTES_PER_INODE),
            ),
            Reserve::Percent(percent) => {
                let part = |of: u64| (of.saturating_mul(percent.into())).div_ceil(100);
                (part(need.blocks), part(need.inodes))
            }
        };
        Need {
            blocks: need.blocks.saturating_add(blocks),
            inodes: need.inodes.saturating_add(inodes),
        }
    }
}

/// What image to make.
#[derive(Clone, Debug)]
pub struct ImageOptions {
    /// The file system. For the same bytes each time it has an [`Identity`]; blocks are of 4 KiB
    /// unless it says otherwise.
    pub mkfs: Mkfs,
    /// How large it is.
    pub size: ImageSize,
    /// How many inodes there are is said by `mkfs`, and does not follow from the tree.
    pub keep_inodes: bool,
}

impl ImageOptions {
    /// An ext4 with the tree's identity, of a size that fits.
    ///
    /// # Errors
    /// None today; those of [`Mkfs::block_size`].
    pub fn of(tree: &Tree) -> Result<ImageOptions> {
        let mkfs = Identity::of(tree).give(Mkfs::new());
        Ok(ImageOptions {
            mkfs: mkfs.block_size(4096).map_err(in_plan)?,
            size: ImageSize::Fit(Reserve::Bytes(0)),
            keep_inodes: false,
        })
    }
}

/// What was made, or would be.
#[derive(Debug)]
pub struct Packed {
    /// The file system, before anything was in it.
    pub plan: Plan,
    /// What the tree takes in it.
    pub need: Need,
    /// What could not be expressed in the image.
    pub warnings: Vec<Warning>,
}

impl Packed {
    /// Bytes of the image.
    pub fn size_bytes(&self) -> u64 {
        bytes_of(self.plan.superblock())
    }
}

fn bytes_of(sb: &SuperBlock) -> u64 {
    sb.blocks_count() * u64::from(sb.block_size())
}

fn in_plan(error: dioxide::Error) -> Error {
    match error {
        dioxide::Error::Invalid(what) => Error::Invalid(what),
        other => Error::Invalid(other.to_string()),
    }
}

/// Finds out what [`write()`] would make. Touches nothing.
///
/// # Errors
/// [`Error::Invalid`] for wishes that contradict each other; [`Error::Refused`] for a file that no such
/// file system can hold; [`Error::TooSmall`].
pub fn plan(tree: &Tree, options: &ImageOptions) -> Result<Packed> {
    let sizing = Sizing { tree, options };
    let (plan, need) = match options.size {
        ImageSize::Bytes(bytes) => sizing.of_bytes(bytes)?,
        ImageSize::Fit(reserve) => sizing.fit(reserve)?,
    };
    Ok(Packed {
        plan,
        need,
        warnings: Vec::new(),
    })
}

/// Makes sure that an image may get this name, and that nobody opens a file that has it until the image
/// takes its place. Before the tree is read, which may take long.
///
/// # Errors
/// For a file that is mounted, attached or locked, or is no regular one.
pub fn target(image: &Path) -> Result<Replacing> {
    if fs::symlink_metadata(image).is_ok_and(|metadata| !metadata.is_file()) {
        let why = io::Error::other("is no regular file, and is not replaced");
        return Err(Error::host(image.display().to_string(), why));
    }
    Replacing::begin(image).map_err(|error| Error::kept(image.display().to_string(), error))
}

/// Makes an image of a tree. A file that has the name already is replaced once the image is complete.
/// Blocks.
///
/// # Errors
/// Those of [`plan`], of the source and of the host; a file that came to be in use meanwhile. Nothing has
/// changed then.
pub fn write(
    tree: &mut Tree,
    mut target: Replacing,
    options: &ImageOptions,
    watch: &mut dyn Watch,
) -> Result<Packed> {
    let mut packed = plan(tree, options)?;
    let kept = match options.size {
        ImageSize::Fit(_) => {
            let sizing = Sizing { tree, options };
            let taken = sizing.need(&packed.plan)?.blocks;
            packed.need.blocks.saturating_sub(taken)
        }
        ImageSize::Bytes(_) => 0,
    };
    let image = target.path().to_owned();
    let name = || image.display().to_string();
    let mut tries = 0;
    loop {
        match fill(tree, &image, &packed.plan, watch) {
            Ok(filled) if filled.free_blocks < kept && tries < TRIES => {
                packed.plan = larger(tree, options, &packed, &mut tries)?;
            }
            Ok(filled) => {
                packed.warnings = filled.warnings;
                target.check().map_err(|error| Error::kept(name(), error))?;
                let named = unfinished::persist(filled.unfinished, &image);
                named.map_err(|error| Error::host(name(), error))?;
                return Ok(packed);
            }
            // The model is of a file system that gives out blocks as Linux does.
            Err(Error::Image {
                source: dioxide::Error::NoSpace(_),
                ..
            }) if tries < TRIES && matches!(options.size, ImageSize::Fit(_)) => {
                packed.plan = larger(tree, options, &packed, &mut tries)?;
            }
            Err(error) => return Err(error),
        }
    }
}

/// The plan after one whose image turned out too small.
fn larger(tree: &Tree, options: &ImageOptions, packed: &Packed, tries: &mut u32) -> Result<Plan> {
    let more = (packed.size_bytes() / GROWTH) << *tries;
    *tries += 1;
    let sizing = Sizing { tree, options };
    let bytes = packed.size_bytes() + more + (64 << 10);
    sizing.exact(packed.need, bytes).map_err(in_plan)
}

/// A file system with the tree in it, in a file that has no lasting name yet.
struct Filled {
    unfinished: TempPath,
    warnings: Vec<Warning>,
    free_blocks: u64,
}

/// Writes the file system and the tree into a file that has no lasting name yet.
fn fill(tree: &mut Tree, image: &Path, plan: &Plan, watch: &mut dyn Watch) -> Result<Filled> {
    let told = |error| Error::host(image.display().to_string(), error);
    let (file, unfinished) = unfinished::unfinished(image).map_err(told)?;
    file.set_len(bytes_of(plan.superblock())).map_err(told)?;
    let in_image = |source| Error::Image {
        name: image.display().to_string(),
        source,
    };
    let device = Behind::new(open(&unfinished).map_err(in_image)?).map_err(told)?;
    let mut fresh = WriteOptions {
        reads_zero: true,
        progress: None,
    };
    plan.write(&device, &mut fresh).map_err(in_image)?;
    let fs = Fs::open_device(Arc::new(device.clone()), &mount_options(plan)).map_err(in_image)?;
    let mut sink = ImageSink::new(&fs).map_err(in_image)?;
    tree.write_ahead_to(&mut sink, watch)?;
    let warnings = sink.into_warnings();
    let free_blocks = fs.statfs().blocks_free;
    fs.close().map_err(in_image)?;
    device.settle().map_err(|error| in_image(error.into()))?;
    Ok(Filled {
        unfinished,
        warnings,
        free_blocks,
    })
}

fn open(path: &Path) -> dioxide::Result<Arc<dyn Device>> {
    let options = FileOptions {
        write: true,
        // Small pieces, which the page cache gathers.
        buffered: true,
        ..FileOptions::default()
    };
    Ok(file::open(path, &options)?)
}

fn mount_options(plan: &Plan) -> MountOptions {
    let clock = Timestamp {
        secs: plan.made_at(),
        nanos: 0,
    };
    MountOptions::new()
        .noload(true)
        .clock(clock)
        // Each write alone: what may run beside others is tried so first where memory is aligned too, gives back the blocks that it has
        // claimed where it may not, and claims others. Where contents lie in memory is not always the same.
        .policy(Policy::Pre49)
        // Nobody else knows of the file.
        .protected(true)
        // The tree's are counted, and nobody makes a file smaller.
        .keep_for_maps(false)
        .workers(1)
        .commit_interval(Duration::from_secs(3600))
}

/// From a tree to the numbers of a file system.
struct Sizing<'a> {
    tree: &'a Tree,
    options: &'a ImageOptions,
}

impl Sizing<'_> {
    fn need(&self, plan: &Plan) -> Result<Need> {
        need(self.tree.entries(), &Layout::of(plan.superblock()))
    }

    /// A file system with as many inodes as are needed, unless it is said how many.
    fn exact(&self, need: Need, bytes: u64) -> dioxide::Result<Plan> {
        let with = |inodes: u64| {
            let mkfs = self.options.mkfs.clone();
            match u32::try_from(inodes + FIRST_INODES) {
                Ok(count) if !self.options.keep_inodes => mkfs.inodes_count(count),
                _ => mkfs,
            }
        };
        let plan = with(need.inodes).plan(bytes)?;
        if free(&plan).inodes >= need.inodes {
            return Ok(plan);
        }
        // Each group has a number of them that eight divides, and that is rounded down.
        let lost = 8 * u64::from(plan.superblock().group_count());
        with(need.inodes + lost).plan(bytes)
    }

    fn of_bytes(&self, bytes: u64) -> Result<(Plan, Need)> {
        let mut plan = self.options.mkfs.plan(bytes).map_err(in_plan)?;
        let need = self.need(&plan)?;
        let sought = with_slack(need, &plan);
        let fits = |free: Free| free.inodes >= sought.inodes && free.blocks >= sought.blocks;
        if !fits(free(&plan)) {
            // With more inodes, or with fewer that take less room. So many may have none.
            plan = self.exact(need, bytes).unwrap_or(plan);
        }
        let free = free(&plan);
        match fits(free) {
            true => Ok((plan, need)),
            false => Err(Error::TooSmall { need: sought, free }),
        }
    }

    /// That so many inodes as were asked for are enough. More groups would have more of them, and the
    /// smallest image that has enough would be of groups without anything else in them.
    fn check_inodes(&self, sample: &Plan, need: Need) -> Result<()> {
        let sb = sample.superblock();
        let needed = need.inodes + u64::from(sb.inodes_count() - sb.free_inodes_count());
        match self.options.mkfs.wished_inodes() {
            Some(count) if self.options.keep_inodes && u64::from(count) < needed => {
                let what = format!("{count} inodes (-N) are too few: {needed} are needed");
                Err(Error::Invalid(what))
            }
            _ => Ok(()),
        }
    }

    fn fit(&self, reserve: Reserve) -> Result<(Plan, Need)> {
        // Hash seed and features are the same for each size.
        let sample = self.options.mkfs.plan(SAMPLE_BYTES).map_err(in_plan)?;
        let block_bytes = sample.superblock().block_size();
        let need = reserve.on(self.need(&sample)?, block_bytes);
        self.check_inodes(&sample, need)?;
        let sized = |blocks: u64| self.exact(need, blocks * u64::from(block_bytes));
        let most = MOST_BYTES / u64::from(block_bytes);
        let sought = with_slack(need, &sample);
        let found = smallest(sought, most, |blocks| sized(blocks).ok().as_ref().map(free));
        let blocks = found.ok_or_else(|| {
            Error::Invalid("no file system of this kind is large enough for the tree".into())
        })?;
        Ok((sized(blocks).map_err(in_plan)?, need))
    }
}

/// What there is to be, so that it is enough wherever blocks are found.
fn with_slack(need: Need, plan: &Plan) -> Need {
    let ratio = u64::from(plan.superblock().cluster_ratio());
    let slack = need.blocks / SLACK + SLACK_CLUSTERS * ratio;
    Need {
        blocks: need.blocks.saturating_add(slack),
        ..need
    }
}

/// What files and their maps can have.
fn free(plan: &Plan) -> Free {
    let sb = plan.superblock();
    Free {
        blocks: sb.free_blocks_count(),
        inodes: sb.free_inodes_count().into(),
    }
}
