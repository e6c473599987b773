//! Images to begin with: made by mke2fs, one by dioxide, on a device full of poison, with four files;
//! and the directories, files and a symlink that operations on names begin with, one directory with a full index.
//!
//! | File | What it is |
//! |---|---|
//! | `/f0` | 41,260 bytes, all of them data |
//! | `/f1` | 64 KiB, a hole but for 16 KiB of data in the middle; of a deep tree more, with unwritten blocks behind that |
//! | `/f2` | empty |
//! | `/f3` | 64 KiB, 32 KiB of it allocated and unwritten (where the layout can), the rest a hole |

use crate::attributes::Attributes;
use crate::content;
use crate::explore::Check;
use crate::fsck::{E2fsck, program, run};
use crate::journal::Metadata;
use crate::model::{FileSpec, Units};
use crate::names::{self, Entry, Kind, Names};
use crate::op::FileNo;
use crate::run::Start;
use dioxide::block::mem::MemDevice;
use dioxide::block::record::states::{Cache, CowDevice, Snapshot};
use dioxide::block::{AtomicUnits, Device, Durability};
use dioxide::format::dir::DirFormat;
use dioxide::format::extent::ExtentNode;
use dioxide::format::htree::{DxNode, DxRoot};
use dioxide::format::types::{Ino, Lblk};
use dioxide::mkfs::{self, Mkfs, WriteOptions};
use dioxide::{FallocateMode, Fs, MountOptions, NewFile, OpenOptions, Timestamp};
use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fmt, io, str::FromStr};
use tempfile::TempDir;

const UUID: &str = "d10c1de0-0000-4000-8000-000000000003";
const JOURNAL_UUID: &str = "d10c1de0-0000-4000-8000-00000000000e";
const HASH_SEED: &str = "d10c1de0-0000-4000-8000-00000000000a";
/// When images are made, for e2fsprogs and for dioxide, in seconds.
const EPOCH: i64 = 1_700_000_000;

/// A journal of 1024 blocks of 1024 bytes, and what its device begins with.
const JOURNAL_BYTES: usize = 2 << 20;

/// A way to arrange a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// Blocks of 4096 bytes.
    K4,
    /// Blocks of 1024 bytes.
    K1,
    /// Blocks of 1024 bytes, no checksums at all.
    Plain,
    /// Blocks of 1024 bytes, checksums of version 3 in the journal.
    Csum3,
    /// Files mapped by indirect blocks.
    Indirect,
    /// Clusters of four blocks of 4096 bytes.
    Bigalloc,
    /// The same, on a device that writes as much atomically.
    Atomic,
    /// With an orphan file.
    OrphanFile,
    /// Blocks of 1024 bytes, and an area for fast commits in the journal.
    FastCommit,
    /// Blocks of 1024 bytes in groups of 256, so many that what spans them takes more than one transaction.
    Groups,
    /// Blocks of 1024 bytes, and attributes whose values are inodes.
    EaInode,
    /// The same, with quotas of users, groups and projects, which not every kernel can keep.
    Quota,
    /// Blocks of 1024 bytes; small files and directories lie in their inodes.
    Inline,
    /// Blocks of 1024 bytes; the journal is on another device, which is the end of the image.
    External,
    /// Blocks of 1024 bytes in groups of 256, whose descriptors lie in two meta groups.
    MetaGroups,
    /// Blocks of 1024 bytes; the index of a directory has as many entries as its root can take.
    Index,
    /// Blocks of 1024 bytes, no checksums; the index of a directory has two levels below its root, and the block of the lower one is full.
    LargeDir,
    /// Blocks of 1024 bytes; the extent tree of `/f1` has depth 3, and its first leaf and the nodes above that are full.
    Deep,
    /// Blocks of 1024 bytes, made and filled by dioxide with the features that it sets by itself.
    Own,
    /// Without a journal: overwrites only.
    NoJournal,
}

/// How a layout is made.
struct Recipe {
    name: &'static str,
    block_bytes: u64,
    /// For mke2fs, which knows `has_journal` by itself.
    features: &'static str,
    /// In bytes.
    cluster: Option<u64>,
    /// Blocks of a group.
    group: Option<u64>,
}

impl Layout {
    /// All of them.
    pub const ALL: [Layout; 20] = [
        Layout::K4,
        Layout::K1,
        Layout::Plain,
        Layout::Csum3,
        Layout::Indirect,
        Layout::Bigalloc,
        Layout::Atomic,
        Layout::OrphanFile,
        Layout::FastCommit,
        Layout::Groups,
        Layout::EaInode,
        Layout::Quota,
        Layout::Inline,
        Layout::External,
        Layout::MetaGroups,
        Layout::Index,
        Layout::LargeDir,
        Layout::Deep,
        Layout::Own,
        Layout::NoJournal,
    ];

    fn recipe(self) -> Recipe {
        let recipe = |name, block_bytes, features| Recipe {
            name,
            block_bytes,
            features,
            cluster: None,
            group: None,
        };
        match self {
            Layout::K4 => recipe("4k", 4096, "metadata_csum,^orphan_file"),
            Layout::K1 => recipe("1k", 1024, "metadata_csum,^orphan_file"),
            Layout::Plain => recipe("plain", 1024, "^metadata_csum,^orphan_file"),
            Layout::Csum3 => recipe("csum3", 1024, "metadata_csum,^orphan_file"),
            Layout::Indirect => recipe(
                "indirect",
                1024,
                "^extent,^64bit,^metadata_csum,^orphan_file",
            ),
            Layout::Bigalloc => Recipe {
                cluster: Some(16384),
                ..recipe("bigalloc", 4096, "metadata_csum,bigalloc,^orphan_file")
            },
            Layout::Atomic => Recipe {
                name: "atomic",
                ..Layout::Bigalloc.recipe()
            },
            Layout::OrphanFile => recipe("orphan-file", 1024, "metadata_csum,orphan_file"),
            Layout::FastCommit => recipe(
                "fast-commit",
                1024,
                "metadata_csum,fast_commit,^orphan_file",
            ),
            Layout::Groups => Recipe {
                group: Some(256),
                ..recipe("groups", 1024, "metadata_csum,^orphan_file,^resize_inode")
            },
            Layout::EaInode => recipe("ea-inode", 1024, "metadata_csum,ea_inode,^orphan_file"),
            Layout::Quota => recipe("quota", 1024, "metadata_csum,ea_inode,^orphan_file"),
            Layout::Inline => recipe("inline", 1024, "metadata_csum,^orphan_file"),
            Layout::External => recipe("external", 1024, "metadata_csum,^has_journal,^orphan_file"),
            Layout::MetaGroups => Recipe {
                name: "meta-groups",
                features: "metadata_csum,meta_bg,^resize_inode,^orphan_file",
                ..Layout::Groups.recipe()
            },
            Layout::Index => recipe("index", 1024, "metadata_csum,^orphan_file"),
            Layout::LargeDir => recipe("large-dir", 1024, "^metadata_csum,large_dir,^orphan_file"),
            Layout::Deep => recipe("deep", 1024, "metadata_csum,^orphan_file"),
            Layout::Own => recipe("own", 1024, ""),
            Layout::NoJournal => recipe("no-journal", 1024, "^has_journal,^orphan_file"),
        }
    }

    /// All but [`Layout::Groups`], whose images are ten times as large, [`Layout::Quota`], [`Layout::Index`] and
    /// [`Layout::LargeDir`], which have so many names, and [`Layout::Deep`], where transactions are large.
    pub const USUAL: [Layout; 15] = [
        Layout::K4,
        Layout::K1,
        Layout::Plain,
        Layout::Csum3,
        Layout::Indirect,
        Layout::Bigalloc,
        Layout::Atomic,
        Layout::OrphanFile,
        Layout::FastCommit,
        Layout::EaInode,
        Layout::Inline,
        Layout::External,
        Layout::MetaGroups,
        Layout::Own,
        Layout::NoJournal,
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        self.recipe().name
    }

    /// What ranges that are taken out or put in must be multiples of.
    pub fn unit_bytes(self) -> u64 {
        self.recipe().cluster.unwrap_or(4096)
    }

    /// The smallest journal has 1024 blocks, and mke2fs wants as much again around it.
    pub(crate) fn size_bytes(self) -> usize {
        match (self, self.recipe().block_bytes) {
            (Layout::Groups, _) => 48 << 20,
            (Layout::Deep, _) => 12 << 20,
            // Descriptors of 64 bytes: a meta group has sixteen groups.
            (Layout::MetaGroups, _) => 8 << 20,
            (_, 4096) => 12 << 20,
            _ => 4 << 20,
        }
    }

    fn units(self) -> Units {
        Units {
            block_bytes: self.recipe().block_bytes,
            inline_bytes: if self == Layout::Inline { 256 } else { 0 },
        }
    }

    /// Whether values of attributes can be inodes.
    pub(crate) fn has_value_inodes(self) -> bool {
        matches!(self, Layout::EaInode | Layout::Quota)
    }

    /// Names in `/d`: so many that two blocks are full, or as many blocks as one index block can lead to, the root or another.
    fn full_names(self) -> usize {
        let in_block = self.recipe().block_bytes as usize / 256;
        let blocks = match self {
            Layout::Index => 123,
            Layout::LargeDir => 127,
            _ => 2,
        };
        blocks * in_block
    }

    /// Whether files can have unwritten blocks.
    fn has_unwritten(self) -> bool {
        self != Layout::Indirect
    }

    pub(crate) fn files(self) -> Vec<FileSpec> {
        let spec = |name: &str, size, data: &[_], unwritten: &[_]| FileSpec {
            name: name.into(),
            size,
            data: data.to_vec(),
            unwritten: unwritten.to_vec(),
        };
        let unwritten = 16384..49152;
        let size = if self == Layout::Deep {
            DEEP_SIZE
        } else {
            65_536
        };
        vec![
            spec("/f0", 41_260, std::slice::from_ref(&(0..41_260)), &[]),
            spec("/f1", size, std::slice::from_ref(&(24_576..40_960)), &[]),
            spec("/f2", 0, &[], &[]),
            match self.has_unwritten() {
                true => spec("/f3", 65_536, &[], std::slice::from_ref(&unwritten)),
                false => spec("/f3", 65_536, &[], &[]),
            },
        ]
    }

    /// All names of the image.
    pub(crate) fn names(self) -> Names {
        let full = names::full(self.full_names());
        let linked = |first: &str, path: &str, links, kind| {
            let first = first.to_owned();
            let entry = Entry {
                first,
                links,
                kind,
                attributes: Attributes::new(0o755),
            };
            (path.to_owned(), entry)
        };
        let entry = |path: &str, links, kind| linked(path, path, links, kind);
        let dirs = names::DIRS.into_iter().chain(["/lost+found"]);
        let dirs = dirs.map(|path| entry(path, 0, Kind::Dir));
        let known = self.files().into_iter().enumerate();
        let known = known.map(|(file, spec)| entry(&spec.name, 1, Kind::Known(file)));
        let files = names::FILES.into_iter();
        let files = files.map(|(path, len)| entry(path, 1, Kind::File(names::fill(path, len))));
        let (path, len) = names::LINK;
        let link = entry(path, 1, Kind::Symlink(names::target(len)));
        let links = full.len() as u32;
        let full = full.iter().map(|path| {
            let empty = Kind::File(Vec::new());
            linked(&full[0], path, links, empty)
        });
        let all = dirs.chain(known).chain(files).chain([link]).chain(full);
        let tree = all.collect();
        Names::new(&tree)
    }

    /// Makes an image.
    ///
    /// # Errors
    /// mke2fs, debugfs or e2fsck is missing or fails; what it said.
    pub fn make(self) -> Result<Start, String> {
        let place = Place::new().map_err(|e| format!("temporary directory: {e}"))?;
        let files = self.files();
        let image = match self {
            Layout::Own => self.write_own(&files).map_err(|e| e.to_string())?,
            _ => self.write(&place, &files)?,
        };
        let image = Snapshot::new(&image);
        E2fsck::default().check(&image)?;
        Ok(Start {
            image,
            units: self.units(),
            files,
            journal: self != Layout::NoJournal,
            // One checksum over two sectors, and no copy that is as new.
            whole: std::iter::once(1024..2048).collect(),
            atomic: match self {
                Layout::Atomic => AtomicUnits::new(512, self.unit_bytes() as u32),
                _ => None,
            },
        })
    }

    fn write(self, place: &Place, files: &[FileSpec]) -> Result<Vec<u8>, String> {
        let (image, tree) = (place.path("image"), place.path("tree"));
        let at = |path: &Path, e: io::Error| format!("{}: {e}", path.display());
        fs::write(&image, poisoned(self.size_bytes())).map_err(|e| at(&image, e))?;
        fs::create_dir(&tree).map_err(|e| at(&tree, e))?;
        for (file, spec) in files.iter().enumerate() {
            write_file(&tree, file, spec).map_err(|e| at(&tree, e))?;
        }
        let full = names::full(self.full_names());
        write_names(&tree, &full).map_err(|e| at(&tree, e))?;
        self.mke2fs(&image, &tree)?;
        Layout::index(place, &image)?;
        self.debugfs(place, &image, files)?;
        let journal = match self {
            Layout::External => self.journal_elsewhere(place, &image)?,
            _ => Vec::new(),
        };
        if self == Layout::Quota {
            // mke2fs does not count what it copies, and knows projects only so.
            run(program("tune2fs")?
                .args(["-O", "project,quota"])
                .arg(&image))?;
        }
        let mut bytes = fs::read(&image).map_err(|e| at(&image, e))?;
        match self {
            Layout::Deep => bytes = deepened(&bytes).map_err(|e| e.to_string())?,
            Layout::LargeDir => heighten(&mut bytes).ok_or("/d: not as e2fsck makes it")?,
            _ => {}
        }
        bytes.extend(journal);
        Ok(bytes)
    }

    fn write_own(self, files: &[FileSpec]) -> dioxide::Result<Vec<u8>> {
        let size = self.size_bytes();
        let device = Arc::new(MemDevice::new(size as u64));
        device.write_at(0, &poisoned(size), Durability::Cached)?;
        let mkfs = Mkfs::new()
            .block_size(self.recipe().block_bytes as u32)?
            .reserved_percent(0.0)?
            .inodes_count(64)
            .uuid(mkfs::parse_uuid(UUID)?)
            .hash_seed(mkfs::parse_uuid(HASH_SEED)?)
            .epoch(EPOCH);
        mkfs.plan(size as u64)?
            .write(&*device, &mut WriteOptions::default())?;
        let options = MountOptions::new().clock(Timestamp {
            secs: EPOCH,
            nanos: 0,
        });
        let fs = Fs::open_device(device.clone(), &options)?;
        for dir in names::DIRS {
            fs.create_dir(dir, &NewFile::new(0o755))?;
        }
        let made = OpenOptions::new().write(true).create_new(true);
        for (path, len) in names::FILES {
            made.open(&fs, path)?.write_at(&names::fill(path, len), 0)?;
        }
        let (path, len) = names::LINK;
        fs.symlink(names::target(len), path, &NewFile::new(0o777))?;
        let full = names::full(self.full_names());
        made.open(&fs, &full[0])?;
        for path in &full[1..] {
            fs.hard_link(&full[0], path)?;
        }
        for (number, spec) in files.iter().enumerate() {
            let (file, contents) = (made.open(&fs, &spec.name)?, spec.contents(number));
            for Range { start, end } in spec.data.iter().cloned() {
                file.write_at(&contents[start as usize..end as usize], start)?;
            }
            for range in &spec.unwritten {
                file.allocate(
                    FallocateMode::KeepSize,
                    range.start,
                    range.end - range.start,
                )?;
            }
            file.set_len(spec.size)?;
        }
        fs.close()?;
        let mut bytes = vec![0; size];
        device.read_at(0, &mut bytes)?;
        Ok(bytes)
    }

    /// Makes a journal in a file of its own, and the file system use it.
    fn journal_elsewhere(self, place: &Place, image: &Path) -> Result<Vec<u8>, String> {
        let path = place.path("journal");
        let read = |path: &Path| fs::read(path).map_err(|e| format!("{}: {e}", path.display()));
        let poison = poisoned(JOURNAL_BYTES);
        fs::write(&path, poison).map_err(|e| format!("{}: {e}", path.display()))?;
        let mut mke2fs = program("mke2fs")?;
        mke2fs
            .env("E2FSPROGS_FAKE_TIME", EPOCH.to_string())
            .args(["-q", "-F", "-O", "journal_dev", "-U", JOURNAL_UUID])
            .args(["-b", &self.recipe().block_bytes.to_string()]);
        run(mke2fs.arg(&path))?;
        let script =
            format!("ssv journal_uuid {JOURNAL_UUID}\nssv journal_dev 1\nfeature has_journal\n");
        Layout::debugfs_script(place, image, &script)?;
        read(&path)
    }

    fn mke2fs(self, image: &Path, tree: &Path) -> Result<(), String> {
        let recipe = self.recipe();
        // All in one: of several -E the last counts.
        let extended = "nodiscard,lazy_itable_init=0,lazy_journal_init=0";
        let extended = format!("{extended},hash_seed={HASH_SEED}");
        let mut mke2fs = program("mke2fs")?;
        mke2fs
            .env("E2FSPROGS_FAKE_TIME", EPOCH.to_string())
            .args(["-q", "-F", "-t", "ext4", "-m", "0", "-N", "64", "-U", UUID])
            .args(["-b", &recipe.block_bytes.to_string()])
            .args(["-E", &extended])
            .args(["-O", recipe.features]);
        if !matches!(self, Layout::NoJournal | Layout::External) {
            // A journal has at least 1024 blocks, and with these all of a deep tree fits into a transaction.
            let size = if self == Layout::Deep {
                4
            } else {
                recipe.block_bytes >> 10
            };
            mke2fs.args(["-J", &format!("size={size}")]);
        }
        if let Some(cluster) = recipe.cluster {
            mke2fs.args(["-C", &cluster.to_string()]);
        }
        if let Some(group) = recipe.group {
            mke2fs.args(["-g", &group.to_string()]);
        }
        run(mke2fs.arg("-d").arg(tree).arg(image)).map(drop)
    }

    /// Directories of several blocks get an index, which mke2fs does not make, and no room is left in them.
    fn index(place: &Place, image: &Path) -> Result<(), String> {
        let config = place.path("e2fsck.conf");
        let options = "[options]\nindexed_dir_slack_percentage = 0\n";
        fs::write(&config, options).map_err(|e| format!("{}: {e}", config.display()))?;
        let mut e2fsck = program("e2fsck")?;
        e2fsck
            .env("E2FSPROGS_FAKE_TIME", EPOCH.to_string())
            .env("E2FSCK_CONFIG", config)
            .args(["-f", "-y", "-D"]);
        run(e2fsck.arg(image)).map(drop)
    }

    /// What mke2fs cannot: unwritten blocks, and checksums in a journal.
    fn debugfs(self, place: &Place, image: &Path, files: &[FileSpec]) -> Result<(), String> {
        let block_bytes = self.recipe().block_bytes;
        let mut script = String::new();
        if self == Layout::Inline {
            // mke2fs loses what comes after a hole when it could lie in inodes. So what lies there is made afterwards.
            script += "feature inline_data\nrm /f2\nwrite /dev/null f2\nrmdir /a/e\nmkdir /a/e\n";
            script += "rm /i/one\nrm /i/two\nrmdir /i\nmkdir /i\n";
            script += "cd /i\nwrite /dev/null one\nwrite /dev/null two\ncd /\n";
        }
        for spec in files {
            for range in &spec.unwritten {
                let (first, last) = (range.start / block_bytes, range.end / block_bytes - 1);
                script += &format!("fallocate {} {first} {last}\n", spec.name);
            }
        }
        if self == Layout::LargeDir {
            script += "expand_dir /d\n";
        }
        if self == Layout::Csum3 {
            script += "journal_open -c -v 3\njournal_close\n";
        }
        match script.is_empty() {
            true => Ok(()),
            false => Layout::debugfs_script(place, image, &script),
        }
    }

    fn debugfs_script(place: &Place, image: &Path, script: &str) -> Result<(), String> {
        let commands = place.path("commands");
        fs::write(&commands, script).map_err(|e| e.to_string())?;
        let mut debugfs = program("debugfs")?;
        debugfs.arg("-w").arg("-f").arg(commands).arg(image);
        run(&mut debugfs).map(drop)
    }
}

/// The file of [`Layout::Deep`], and where what it has besides begins and ends.
const DEEP: FileNo = 1;
const DEEP_FROM: u64 = 65_536;
const DEEP_SIZE: u64 = DEEP_FROM + 2 * 1024 * (DEEP_LEAF + DEEP_ROOT * DEEP_LEAF);
/// Extents in a leaf, and in an inode.
const DEEP_LEAF: u64 = (1024 - 12) / 12;
const DEEP_ROOT: u64 = 4;

/// Gives the file so many extents that its tree is one of depth 3, each leaf as full as it can be. Of all leaves but the first
/// one extent is left, and what the others took of the file is taken out of it.
fn deepened(image: &[u8]) -> dioxide::Result<Vec<u8>> {
    let device = Arc::new(MemDevice::new(image.len() as u64));
    device.write_at(0, image, Durability::Cached)?;
    let options = MountOptions::new().clock(Timestamp {
        secs: EPOCH,
        nanos: 0,
    });
    let fs = Fs::open_device(device.clone(), &options)?;
    let name = &Layout::Deep.files()[DEEP].name;
    let file = OpenOptions::new().read(true).write(true).open(&fs, name)?;
    // Each is a block, and none is beside another.
    let (block, step) = (1024, 2048);
    let mut end = DEEP_FROM;
    let add = |end: &mut u64, count| {
        (0..count).try_for_each(|_| {
            *end += step;
            file.allocate(FallocateMode::Allocate, *end - block, block)
        })
    };
    // One is there already, and one is the first of the next leaf.
    add(&mut end, DEEP_LEAF)?;
    for _ in 1..DEEP_ROOT * DEEP_LEAF {
        add(&mut end, DEEP_LEAF)?;
        // All between the first of this leaf and that of the next.
        let rest = (DEEP_LEAF - 1) * step;
        end -= rest;
        file.allocate(FallocateMode::CollapseRange, end - step, rest)?;
    }
    file.set_len(DEEP_SIZE)?;
    drop(file);
    fs.close()?;
    let mut bytes = vec![0; image.len()];
    device.read_at(0, &mut bytes)?;
    Ok(bytes)
}

/// Puts another level into the index of `/d`: the root leads to its last block, and that to what the root led to. None if its
/// root has no level below, or it lies in more pieces than its inode maps.
fn heighten(image: &mut [u8]) -> Option<()> {
    let snapshot = Snapshot::new(image);
    let device = CowDevice::new(&snapshot, Cache::Volatile);
    let fs = Fs::open_device(Arc::new(device), &MountOptions::new()).ok()?;
    let about = fs.metadata("/d").ok()?;
    let dir = Metadata::of(&snapshot)?.inode(Ino(about.ino))?;
    let (block, format) = (fs.block_size() as usize, DirFormat::of(fs.superblock()));
    let map = ExtentNode::parse(dir.i_block(), Some(0)).ok()?;
    let bytes = |at: u32| {
        let extent = map.find(Lblk(at))?;
        let first = (extent.pblk.0 + u64::from(at - extent.lblk.0)) as usize * block;
        Some(first..first + block)
    };
    let last = (about.size / block as u64) as u32 - 1;
    let (root_at, last_at) = (bytes(0)?, bytes(last)?);
    let mut root = DxRoot::parse(&image[root_at.clone()], &format).ok()?;
    let node = DxNode::new(&format, root.entries.replace_by(Lblk(last)));
    (root.indirect_levels() == 1).then_some(())?;
    root.head.indirect_levels = 2;
    root.encode_into(&mut image[root_at]).ok()?;
    node.encode_into(&mut image[last_at]).ok()
}

fn poisoned(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    content::poison(0, &mut bytes);
    bytes
}

/// What operations on names begin with; `full` is one file.
fn write_names(tree: &Path, full: &[String]) -> io::Result<()> {
    let at = |path: &str| tree.join(path.trim_start_matches('/'));
    for dir in names::DIRS {
        fs::create_dir(at(dir))?;
    }
    for (path, len) in names::FILES {
        fs::write(at(path), names::fill(path, len))?;
    }
    fs::write(at(&full[0]), "")?;
    for path in &full[1..] {
        fs::hard_link(at(&full[0]), at(path))?;
    }
    let (path, len) = names::LINK;
    let target = String::from_utf8(names::target(len)).expect("ASCII");
    std::os::unix::fs::symlink(target, at(path))
}

fn write_file(tree: &Path, number: usize, spec: &FileSpec) -> io::Result<()> {
    let mut file = File::create(tree.join(spec.name.trim_start_matches('/')))?;
    file.set_len(spec.size)?;
    let contents = spec.contents(number);
    for range in &spec.data {
        file.seek(SeekFrom::Start(range.start))?;
        file.write_all(&contents[range.start as usize..range.end as usize])?;
    }
    Ok(())
}

/// A directory in memory, if there is one.
#[derive(Debug)]
pub(crate) struct Place(TempDir);

impl Place {
    pub(crate) fn new() -> io::Result<Place> {
        let memory = Path::new("/dev/shm");
        let builder = || {
            let mut builder = tempfile::Builder::new();
            builder.prefix("dioxide-crash-");
            builder
        };
        let dir = match memory.is_dir() {
            true => builder().tempdir_in(memory),
            false => builder().tempdir(),
        };
        dir.map(Place)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Layout {
    type Err = String;

    fn from_str(name: &str) -> Result<Layout, String> {
        let found = Layout::ALL.into_iter().find(|layout| layout.name() == name);
        found.ok_or_else(|| {
            let names = Layout::ALL.map(Layout::name).join(", ");
            format!("no layout {name:?}: there are {names}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Layout;
    use crate::content;
    use crate::journal::Metadata;
    use crate::names;
    use dioxide::block::record::states::{Cache, CowDevice};
    use dioxide::format::features::Incompat;
    use dioxide::format::inode::InodeFlags;
    use dioxide::format::types::Ino;
    use dioxide::{Fs, MountOptions, NewFile};
    use std::sync::Arc;

    fn opened(layout: Layout) -> Fs {
        let start = layout.make().expect("an image");
        let device = CowDevice::new(&start.image, Cache::Volatile);
        Fs::open_device(Arc::new(device), &MountOptions::new()).expect("it opens")
    }

    fn has(fs: &Fs, path: &str, flag: InodeFlags) -> bool {
        fs.metadata(path).expect("it is there").flags & flag.0 != 0
    }

    #[test]
    fn free_space_is_poison() {
        for layout in [
            Layout::K4,
            Layout::K1,
            Layout::Bigalloc,
            Layout::External,
            Layout::Own,
            Layout::NoJournal,
        ] {
            let image = layout.make().expect("an image").image.to_vec();
            let pages = image.chunks(4096);
            let poison = pages.filter(|page| content::is_poisoned(&page[..512]));
            assert!(poison.count() > image.len() / 4096 / 4, "{layout}");
        }
    }

    #[test]
    fn small_files_and_directories_of_inline_lie_in_inodes() {
        let fs = opened(Layout::Inline);
        assert!(has(&fs, "/f2", InodeFlags::INLINE_DATA));
        assert!(has(&fs, "/a/e", InodeFlags::INLINE_DATA));
        assert!(has(&fs, "/i", InodeFlags::INLINE_DATA));
    }

    #[test]
    fn long_name_takes_a_directory_out_of_its_inode_and_a_short_one_does_not() {
        let (fs, new) = (opened(Layout::Inline), NewFile::new(0o755));
        for (short, dir, wide) in [
            ("/i/m", "/i", names::WIDE[0]),
            ("/a/e/n", "/a/e", names::WIDE[1]),
        ] {
            fs.create_dir(short, &new).expect("room");
            assert!(has(&fs, dir, InodeFlags::INLINE_DATA));
            fs.create_dir(wide, &new).expect("room");
            assert!(!has(&fs, dir, InodeFlags::INLINE_DATA));
        }
    }

    #[test]
    fn every_new_name_in_a_full_directory_makes_another_block() {
        for layout in [Layout::K4, Layout::K1, Layout::Plain, Layout::Indirect] {
            for name in names::FULL {
                let (fs, new) = (opened(layout), NewFile::new(0o755));
                let blocks = || fs.metadata("/d").expect("it is there").blocks;
                assert!(has(&fs, "/d", InodeFlags::INDEX), "{layout}");
                let before = blocks();
                fs.create_dir(name, &new).expect("room");
                assert!(blocks() > before, "{layout}: {name}");
            }
        }
    }

    #[test]
    fn new_name_in_large_dir_splits_a_full_block_of_the_third_level() {
        let (fs, new) = (opened(Layout::LargeDir), NewFile::new(0o755));
        let start = Layout::LargeDir.make().expect("an image");
        let metadata = Metadata::of(&start.image).expect("ext4");
        let about = || fs.metadata("/d").expect("it is there");
        assert_eq!(metadata.index(Ino(about().ino)), Some((2, 1)));
        let before = about().blocks;
        fs.create_dir(names::FULL[0], &new).expect("room");
        // Of names, and of the index.
        assert_eq!(about().blocks - before, 2 * 1024 / 512);
    }

    #[test]
    fn meta_groups_has_two_of_them() {
        let fs = opened(Layout::MetaGroups);
        let sb = fs.superblock();
        assert!(sb.features().incompat.contains(Incompat::META_BG));
        let in_block = sb.block_size() / sb.desc_size() as u32;
        assert_eq!(sb.group_count().div_ceil(in_block), 2);
    }

    #[test]
    fn tree_of_deep_has_depth_three_and_the_leaf_of_the_file_is_full() {
        let start = Layout::Deep.make().expect("an image");
        let metadata = Metadata::of(&start.image).expect("ext4");
        let fs = opened(Layout::Deep);
        let about = fs.metadata("/f1").expect("it is there");
        assert_eq!(metadata.depth(Ino(about.ino)), Some(3));
        // The nodes of the tree, the blocks in the first leaf, and one of each other.
        let (nodes, blocks) = (337 + 5 + 1, 16 + 83 + 336);
        assert_eq!(about.blocks / 2, nodes + blocks);
    }

    #[test]
    fn fourth_long_name_makes_an_index() {
        let (fs, new) = (opened(Layout::K1), NewFile::new(0o755));
        assert!(!has(&fs, "/h", InodeFlags::INDEX));
        fs.create_dir(names::LONG[3], &new).expect("room");
        assert!(has(&fs, "/h", InodeFlags::INDEX));
    }
}
