//! An image as an `Edit`, and what dumpe2fs says of it.

use crate::alloc::{BlockAllocator, Groups, InodeAllocator, Totals};
use crate::sync::rank::Excuse;
use dioxide_format::superblock::{SUPERBLOCK_OFFSET, SuperBlock};
use dioxide_format::system_zone::SystemZone;
use dioxide_format::types::Pblk;
use dioxide_journal::{Asked, Edit, Error, Kind, Result};
use dioxide_testkit::{Image, ImageBuilder, dumpe2fs, e2fsck_clean};
use parking_lot::Mutex;
use std::cell::Cell;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// The blocks of an image: as they are on it, or as they were changed.
pub(super) struct Disk {
    file: File,
    block_bytes: usize,
    changed: Mutex<HashMap<u64, Arc<[u8]>>>,
    /// Who completes a block, before anybody sees it.
    incomplete: Mutex<HashMap<u64, Arc<dyn Kind>>>,
}

impl Disk {
    fn read(&self, block: Pblk, kind: &dyn Kind) -> Result<Arc<[u8]>> {
        self.complete();
        let mut changed = self.changed.lock();
        self.read_locked(&mut changed, block, kind)
    }

    /// As if the transaction was closed.
    fn complete(&self) {
        let _excuse = Excuse::of_a_test();
        let incomplete = self.incomplete.lock().clone();
        for (block, kind) in incomplete {
            let mut changed = self.changed.lock();
            let bytes = self.read_locked(&mut changed, Pblk(block), &*kind);
            let mut bytes = bytes.expect("it was read before").to_vec();
            kind.complete(Pblk(block), &mut bytes);
            changed.insert(block, bytes.into());
        }
    }

    fn read_locked(
        &self,
        changed: &mut HashMap<u64, Arc<[u8]>>,
        block: Pblk,
        kind: &dyn Kind,
    ) -> Result<Arc<[u8]>> {
        if let Some(bytes) = changed.get(&block.0) {
            return Ok(bytes.clone());
        }
        let mut bytes = vec![0; self.block_bytes];
        self.file
            .read_exact_at(&mut bytes, block.0 * self.block_bytes as u64)
            .expect("image");
        kind.verify(block, &bytes).map_err(|source| Error::Block {
            block: block.0,
            source,
        })?;
        Ok(bytes.into())
    }
}

/// One transaction handle on a disk. Fails beyond its credits, as a real one does.
pub(super) struct Handle<'a> {
    disk: &'a Disk,
    pub(super) touched: HashSet<u64>,
    /// How often a block was read, not to change it.
    pub(super) reads: Cell<u32>,
    credits: u32,
}

impl Handle<'_> {
    fn charge(&mut self, block: Pblk) -> Result<()> {
        if !self.touched.contains(&block.0) && self.touched.len() == self.credits as usize {
            let credits = self.credits;
            return Err(Error::OutOfCredits { credits });
        }
        self.touched.insert(block.0);
        Ok(())
    }
}

impl Edit for Handle<'_> {
    fn block_bytes(&self) -> usize {
        self.disk.block_bytes
    }

    fn read(&self, block: Pblk, kind: &dyn Kind) -> Result<Arc<[u8]>> {
        self.reads.set(self.reads.get() + 1);
        self.disk.read(block, kind)
    }

    fn modify(
        &mut self,
        block: Pblk,
        kind: &dyn Kind,
        change: &mut dyn FnMut(&mut [u8]) -> Result<()>,
    ) -> Result<()> {
        self.charge(block)?;
        let mut changed = self.disk.changed.lock();
        let mut bytes = self.disk.read_locked(&mut changed, block, kind)?.to_vec();
        change(&mut bytes)?;
        kind.seal(block, &mut bytes);
        changed.insert(block.0, bytes.into());
        Ok(())
    }

    fn change_at_close(&mut self, block: Pblk, kind: &dyn Kind, _: &mut Asked) -> Result<()> {
        self.charge(block)?;
        let kept = kind.keep().expect("a kind that completes keeps itself");
        self.disk.incomplete.lock().insert(block.0, kept);
        Ok(())
    }

    fn create(&mut self, block: Pblk, kind: &dyn Kind, bytes: &[u8]) -> Result<()> {
        self.charge(block)?;
        let mut bytes = bytes.to_vec();
        kind.seal(block, &mut bytes);
        self.disk.changed.lock().insert(block.0, bytes.into());
        Ok(())
    }

    fn forget(&mut self, _: Pblk) -> Result<()> {
        unreachable!("bitmaps and descriptors are never freed")
    }
}

/// A file system with its allocators.
pub(super) struct Fs {
    pub(super) image: Image,
    pub(super) disk: Disk,
    pub(super) sb: Arc<SuperBlock>,
    pub(super) blocks: Arc<BlockAllocator>,
    pub(super) inodes: InodeAllocator,
    pub(super) totals: Totals,
}

impl Fs {
    pub(super) fn make(builder: ImageBuilder) -> Fs {
        Fs::open(builder.build())
    }

    pub(super) fn open(image: Image) -> Fs {
        Fs::open_with(image, None)
    }

    /// Blocks of `more` are metadata too.
    pub(super) fn open_with(image: Image, more: Option<Range<u64>>) -> Fs {
        let file = File::options()
            .read(true)
            .write(true)
            .open(image.path())
            .expect("image");
        let mut bytes = [0; SuperBlock::SIZE];
        file.read_exact_at(&mut bytes, SUPERBLOCK_OFFSET)
            .expect("image");
        let sb = SuperBlock::parse(&bytes).expect("superblock");
        sb.validate(None).expect("superblock");
        let sb = Arc::new(sb);
        let disk = Disk {
            file,
            block_bytes: sb.block_size() as usize,
            changed: Mutex::default(),
            incomplete: Mutex::default(),
        };
        let mut groups = Groups::new(sb.clone(), SystemZone::new(&sb, [], more));
        let totals = groups.totals(&disk.handle(0)).expect("descriptors");
        let blocks = Arc::new(BlockAllocator::new(Arc::new(groups), totals, 0));
        Fs {
            inodes: InodeAllocator::new(blocks.clone(), totals),
            blocks,
            sb,
            disk,
            image,
            totals,
        }
    }

    pub(super) fn handle(&self, credits: u32) -> Handle<'_> {
        self.disk.handle(credits)
    }

    /// A handle for one allocation of blocks.
    pub(super) fn for_blocks(&self) -> Handle<'_> {
        self.handle(BlockAllocator::ALLOCATE_CREDITS)
    }

    /// Writes everything to the image, with the superblock's totals.
    pub(super) fn write_back(&self) {
        self.disk.complete();
        for (block, bytes) in self.disk.changed.lock().drain() {
            let at = block * self.disk.block_bytes as u64;
            self.disk.file.write_all_at(&bytes, at).expect("image");
        }
        let mut sb = (*self.sb).clone();
        let ratio = u64::from(sb.cluster_ratio());
        sb.set_free_blocks_count(self.blocks.free_clusters() * ratio);
        sb.set_free_inodes_count(self.inodes.free_inodes() as u32);
        sb.update_checksum();
        self.disk
            .file
            .write_all_at(&sb.encode(), SUPERBLOCK_OFFSET)
            .expect("image");
    }

    /// Everything was freed again: e2fsck must find nothing.
    pub(super) fn finish(self) -> Image {
        assert_eq!(self.blocks.free_clusters(), self.totals.free_clusters);
        assert_eq!(self.inodes.free_inodes(), self.totals.free_inodes);
        assert_eq!(self.inodes.directories(), self.totals.directories);
        self.write_back();
        e2fsck_clean(self.image.path());
        self.image
    }
}

impl Disk {
    fn handle(&self, credits: u32) -> Handle<'_> {
        Handle {
            disk: self,
            touched: HashSet::new(),
            reads: Cell::new(0),
            credits,
        }
    }

    /// Blocks that differ from the image, or were changed back to what it has.
    pub(super) fn changes(&self) -> HashMap<u64, Arc<[u8]>> {
        self.complete();
        self.changed.lock().clone()
    }

    pub(super) fn is_unchanged(&self) -> bool {
        self.complete();
        self.changed.lock().is_empty()
    }
}

/// What dumpe2fs says is free.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Dump {
    /// First blocks of free clusters.
    pub(super) blocks: BTreeSet<u64>,
    pub(super) inodes: BTreeSet<u32>,
    /// Per group: free clusters, free inodes, directories, by the descriptor.
    pub(super) counts: Vec<[u64; 3]>,
}

impl Dump {
    pub(super) fn of(image: &Image, ratio: u64) -> Dump {
        let mut dump = Dump::default();
        for line in dumpe2fs(image.path()).lines() {
            if let Some(list) = line.strip_prefix("  Free blocks: ") {
                dump.blocks.extend(numbers(list, ratio));
            } else if let Some(list) = line.strip_prefix("  Free inodes: ") {
                dump.inodes.extend(numbers(list, 1).map(|ino| ino as u32));
            } else if line.contains(" free blocks, ") || line.contains(" free clusters, ") {
                dump.counts.push(counts(line));
            }
        }
        dump
    }
}

/// `5-7, 9`, as numbers `step` apart.
fn numbers(list: &str, step: u64) -> impl Iterator<Item = u64> {
    list.split(", ")
        .filter(|part| !part.is_empty())
        .flat_map(move |part| {
            let (from, to) = part.split_once('-').unwrap_or((part, part));
            let number = |text: &str| text.trim().parse::<u64>().expect(part);
            (number(from)..=number(to)).step_by(step as usize)
        })
}

/// `  12 free blocks, 3 free inodes, 2 directories, …`
fn counts(line: &str) -> [u64; 3] {
    let mut parts = line.split(", ").map(|part| {
        let digits: String = part
            .trim()
            .chars()
            .take_while(char::is_ascii_digit)
            .collect();
        digits.parse().expect(line)
    });
    [(); 3].map(|()| parts.next().expect(line))
}

/// None when there is no space.
pub(super) fn unless_full<T>(result: crate::Result<T>) -> Option<T> {
    match result {
        Ok(done) => Some(done),
        Err(crate::Error::NoSpace(_)) => None,
        Err(error) => panic!("{error}"),
    }
}

/// Numbers that follow from a seed.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// Less than `bound`, which is not 0.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }

    pub(super) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// A kind of file system, by name.
pub(super) struct Variant {
    pub(super) name: &'static str,
    size: u64,
    block: u32,
    features: &'static str,
    args: &'static [&'static str],
}

impl Variant {
    pub(super) fn builder(&self) -> ImageBuilder {
        Image::builder()
            .size(self.size)
            .block_size(self.block)
            .features(self.features)
            .args(self.args)
    }
}

const KIB: u64 = 1024;
const MIB: u64 = 1024 * KIB;

/// Every layout of groups and descriptors that the format has. The last group is short in each.
pub(super) const VARIANTS: &[Variant] = &[
    Variant {
        name: "4k, small groups",
        size: 101 * MIB,
        block: 4096,
        features: "^has_journal",
        args: &["-g", "2048", "-G", "4"],
    },
    Variant {
        name: "4k with a journal",
        size: 133 * MIB,
        block: 4096,
        features: "has_journal,64bit,metadata_csum",
        args: &[],
    },
    Variant {
        name: "1k",
        size: 61 * MIB + 700 * KIB,
        block: 1024,
        features: "^has_journal",
        args: &["-G", "2"],
    },
    Variant {
        name: "1k, 64-byte descriptors, no flex_bg",
        size: 45 * MIB + 700 * KIB,
        block: 1024,
        features: "^has_journal,^flex_bg,64bit",
        args: &[],
    },
    Variant {
        name: "1k, 32-byte descriptors, metadata_csum",
        size: 45 * MIB + 700 * KIB,
        block: 1024,
        features: "^has_journal,^64bit,metadata_csum",
        args: &[],
    },
    Variant {
        name: "1k, 32-byte descriptors, uninit_bg, no flex_bg",
        size: 45 * MIB + 700 * KIB,
        block: 1024,
        features: "^has_journal,^64bit,^metadata_csum,uninit_bg,^flex_bg",
        args: &[],
    },
    Variant {
        name: "1k, uninit_bg, flex_bg",
        size: 45 * MIB + 700 * KIB,
        block: 1024,
        features: "^has_journal,^metadata_csum,uninit_bg",
        args: &[],
    },
    Variant {
        name: "2k without checksums",
        size: 70 * MIB,
        block: 2048,
        features: "^has_journal,^metadata_csum,^uninit_bg,^64bit",
        args: &[],
    },
    Variant {
        name: "1k meta_bg",
        size: 205 * MIB + 300 * KIB,
        block: 1024,
        features: "^has_journal,meta_bg,^resize_inode",
        args: &[],
    },
    Variant {
        name: "4k bigalloc",
        size: 300 * MIB + 40 * KIB,
        block: 4096,
        features: "^has_journal,bigalloc",
        args: &["-C", "65536"],
    },
    Variant {
        name: "1k bigalloc",
        size: 301 * MIB + 5 * KIB,
        block: 1024,
        features: "^has_journal,bigalloc",
        args: &["-C", "16384"],
    },
    Variant {
        name: "1k bigalloc with uninit_bg",
        size: 301 * MIB,
        block: 1024,
        features: "^has_journal,bigalloc,^metadata_csum,uninit_bg",
        args: &["-C", "8192"],
    },
];
