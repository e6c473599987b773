//! Journals that the kernel left dirty: what recovery makes of them is, block by block, what e2fsck's
//! own replay makes, and the file system is whole then.
//!
//! The images are copies of a mounted file system's, taken between bursts of changes, some of them
//! synced and some not. A copy counts only if a second one is the same, so that it shows one moment.

use dioxide_block::file::FileOptions;
use dioxide_block::{Device, Durability};
use dioxide_format::features::Incompat;
use dioxide_format::group_desc::GroupDesc;
use dioxide_format::journal::fast_commit::Record;
use dioxide_format::journal::{JournalIncompat, MAGIC};
use dioxide_format::superblock::{SUPERBLOCK_OFFSET, SuperBlock};
use dioxide_journal::log::{Log, LogMap, fast_commit_area};
use dioxide_journal::recovery::{FileSystem, Recovered, Recovery};
use dioxide_testkit::{Image, LoopDevice, Mount, e2fsck_consistent, leaf_extents, need_root};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// What a run over some images saw; each of it has to be met.
#[derive(Debug, Default)]
struct Seen {
    images: u32,
    transactions: u32,
    replayed: u64,
    revoked: u64,
    escaped: u64,
    wrapped: u32,
    fast_commits: u32,
    /// Files whose creation was in a fast commit.
    created: u32,
    dropped: u32,
    with_orphans: u32,
    /// By their superblocks, what the journals were like.
    features: BTreeSet<String>,
}

impl Seen {
    fn add(&mut self, recovered: &Recovered) {
        self.images += 1;
        self.transactions += recovered.transactions;
        self.replayed += recovered.blocks_replayed;
        self.revoked += recovered.blocks_revoked;
        self.escaped += recovered.blocks_escaped;
        self.wrapped += u32::from(recovered.wrapped);
        self.fast_commits += recovered.fast_commits;
        let created = |record: &&Record| match record {
            Record::Creat(name) => name.name.starts_with(b"fast"),
            _ => false,
        };
        self.created += recovered.fast_commit_records.iter().filter(created).count() as u32;
        self.dropped += u32::from(recovered.dropped.is_some());
    }
}

fn run(program: &str, args: &[&OsStr], codes: &[i32]) {
    finished(Command::new(program).args(args), codes);
}

/// Fails unless the program exits with one of `codes`.
fn finished(command: &mut Command, codes: &[i32]) {
    let output = command.output().expect("a program that starts");
    let text = String::from_utf8_lossy(&output.stdout);
    let said = String::from_utf8_lossy(&output.stderr);
    let code = output.status.code();
    assert!(
        code.is_some_and(|code| codes.contains(&code)),
        "{command:?}: {code:?}\n{text}{said}"
    );
}

/// Changes of every kind, some of them synced. Each round removes what the one before it made.
fn churn(root: &Path, round: u32) -> std::io::Result<()> {
    let dir = root.join(format!("d{round}"));
    fs::create_dir(&dir)?;
    for n in 0..150 {
        let name = format!("{n}-{}", "n".repeat(90));
        fs::write(dir.join(&name), vec![n as u8; n * 20])?;
        if n % 40 == 0 {
            File::open(dir.join(name))?.sync_all()?;
        }
    }
    let mut target = MAGIC.to_be_bytes().to_vec();
    target.extend([b'x'; 100]);
    for n in 0..5 {
        symlink(OsStr::from_bytes(&target), dir.join(format!("link{n}")))?;
    }
    let holes = File::create(dir.join("holes"))?;
    for n in 0..200 {
        holes.write_all_at(&[n as u8; 1024], n * 8192)?;
    }
    holes.sync_all()?;
    if round % 3 == 1 {
        run("sync", &[OsStr::new("-f"), root.as_os_str()], &[0]);
    }
    if let Some(before) = round.checked_sub(1) {
        fs::remove_dir_all(root.join(format!("d{before}")))?;
    }
    // Blocks that were a directory's become a file's, for which revocation exists.
    let mut data = MAGIC.to_be_bytes().to_vec();
    data.resize(40_000, round as u8);
    fs::write(root.join(format!("f{}", round % 4)), &data)?;
    let last = File::create(root.join(format!("last{}", round % 7)))?;
    last.write_all_at(&data, 0)?;
    last.sync_all()?;
    if round % 3 == 2 {
        // What a full commit does not hold can go into fast commits.
        run("sync", &[OsStr::new("-f"), root.as_os_str()], &[0]);
        for n in 0..3 {
            let file = File::create(root.join(format!("fast{round}-{n}")))?;
            file.write_all_at(&data, 0)?;
            file.sync_all()?;
        }
    }
    fs::write(root.join("unsynced"), round.to_string())
}

/// A copy that shows one moment of files that are in use.
fn moment(images: &[&Image]) -> Vec<Image> {
    for _ in 0..50 {
        let copies = || images.iter().map(|image| image.copy()).collect::<Vec<_>>();
        let (first, second) = (copies(), copies());
        let same =
            |(a, b): (&Image, &Image)| fs::read(a.path()).unwrap() == fs::read(b.path()).unwrap();
        if first.iter().zip(&second).all(same) {
            return first;
        }
    }
    panic!("the file system never rests");
}

fn open(image: &Image) -> Arc<dyn Device> {
    let options = FileOptions {
        write: true,
        ..FileOptions::default()
    };
    dioxide_block::file::open(image.path(), &options).unwrap()
}

fn superblock(device: &dyn Device) -> SuperBlock {
    let mut bytes = vec![0; 4096];
    device.read_at(0, &mut bytes).unwrap();
    SuperBlock::parse(&bytes[SUPERBLOCK_OFFSET as usize..]).unwrap()
}

/// The journal of an image, in the file `<8>` or on a device of its own.
struct Dirty {
    image: Image,
    external: Option<Image>,
    /// When it was taken, in seconds: e2fsck's clock, which it writes into orphans that it frees.
    taken: String,
}

impl Dirty {
    fn new(image: Image, external: Option<Image>) -> Dirty {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        Dirty {
            image,
            external,
            taken: now.unwrap().as_secs().to_string(),
        }
    }

    fn copy(&self) -> Dirty {
        Dirty {
            image: self.image.copy(),
            external: self.external.as_ref().map(Image::copy),
            taken: self.taken.clone(),
        }
    }

    /// The journal; the images must not be opened again while it lives.
    fn log(&self) -> Log {
        self.open().1
    }

    fn open(&self) -> (Arc<dyn Device>, Log) {
        let device = open(&self.image);
        let block_bytes = superblock(&*device).block_size() as usize;
        if let Some(image) = &self.external {
            let external = open(image);
            let blocks = superblock(&*external).blocks_count();
            let map = LogMap::external(blocks, block_bytes).unwrap();
            return (device, Log::new(external, map, block_bytes));
        }
        let extents = leaf_extents(self.image.path(), "<8>");
        let runs = extents.iter().map(|e| e.physical..e.physical + e.len);
        let map = LogMap::internal(runs).unwrap();
        (device.clone(), Log::new(device, map, block_bytes))
    }

    fn recover(&self) -> Recovered {
        let (device, log) = self.open();
        let sb = superblock(&*device);
        let fs = FileSystem::of(&sb, &*device);
        let recovery = Recovery::plan(&log, fs).unwrap();
        recovery.replay(&*device).unwrap();
        recovery.reset().unwrap()
    }

    /// Empties the fast-commit area.
    fn drop_fast_commits(&self) {
        let log = self.log();
        let zeros = vec![0; log.block_bytes()];
        for at in fast_commit_area(&log.read_superblock().unwrap()) {
            log.write(at, &zeros, Durability::Cached).unwrap();
        }
    }

    /// What e2fsck makes of it with these arguments.
    fn e2fsck(&self, args: &[&str]) {
        let mut args: Vec<&OsStr> = args.iter().map(OsStr::new).collect();
        let device = self
            .external
            .as_ref()
            .map(|image| LoopDevice::attach(image.path()));
        if let Some(device) = &device {
            args.extend([OsStr::new("-j"), device.path().as_os_str()]);
        }
        args.push(self.image.path().as_os_str());
        let is_check = args[0] == "-fn";
        let clock = ["E2FSCK_TIME", "E2FSPROGS_FAKE_TIME"].map(|name| (name, &self.taken));
        let codes: &[i32] = if is_check { &[0] } else { &[0, 1] };
        finished(Command::new("e2fsck").args(&args).envs(clock), codes);
    }

    /// Fails unless e2fsck finds nothing. Nobody mounts and closes it.
    fn e2fsck_consistent(&self) {
        match &self.external {
            None => e2fsck_consistent(self.image.path()),
            Some(_) => self.e2fsck(&["-fn"]),
        }
    }

    /// What debugfs's replay makes of it, which does nothing else.
    fn recover_by_debugfs(&self) {
        let args = ["-w", "-R", "journal_run"].map(OsStr::new);
        run(
            "debugfs",
            &[&args[..], &[self.image.path().as_os_str()]].concat(),
            &[0],
        );
    }
}

/// Bytes of the superblock that e2fsck changes by itself: times and counts of mounts, checks and
/// writing, state, needs_recovery, and the checksum over them.
const VOLATILE: [std::ops::Range<usize>; 10] = [
    0x30..0x34,   // s_wtime
    0x34..0x36,   // s_mnt_count
    0x3A..0x3C,   // s_state
    0x40..0x44,   // s_lastcheck
    0x60..0x64,   // s_feature_incompat
    0xE4..0xE8,   // s_journal_dev, the number of the loop device
    0x178..0x180, // s_kbytes_written
    0x274..0x278, // the high bytes of the times
    0x0C..0x14,   // free blocks and inodes, which it counts
    0x3FC..0x400, // s_checksum
];

/// Bytes of a group descriptor that e2fsprogs computes anew when it writes: flags, unused inodes, and
/// the checksum over them.
const TIDIED: [std::ops::Range<usize>; 3] = [0x12..0x14, 0x1C..0x20, 0x32..0x34];

/// Compares two images outside the journal.
fn compare(a: &Dirty, b: &Dirty) {
    let log = b.log();
    let size = log.block_bytes();
    let mut sides = [a, b].map(|dirty| fs::read(dirty.image.path()).unwrap());
    for bytes in &mut sides {
        let at = SUPERBLOCK_OFFSET as usize;
        let sb = SuperBlock::parse(&bytes[at..]).unwrap();
        VOLATILE
            .into_iter()
            .for_each(|range| bytes[at..][range].fill(0));
        for group in 0..sb.group_count() {
            let at = descriptor_at(&sb, group);
            let desc = &mut bytes[at..at + sb.desc_size()];
            let tidied = TIDIED.into_iter().filter(|range| range.end <= desc.len());
            tidied
                .collect::<Vec<_>>()
                .into_iter()
                .for_each(|range| desc[range].fill(0));
        }
    }
    let blocks = sides[0].chunks(size).zip(sides[1].chunks(size));
    let differ: Vec<u64> = (0u64..)
        .zip(blocks)
        .filter(|(block, (a, b))| a != b && !log.map().holds(*block))
        .map(|(block, _)| block)
        .collect();
    let bytes: Vec<usize> = (1024..2048)
        .filter(|&i| sides[0][i] != sides[1][i])
        .collect();
    assert!(bytes.is_empty(), "superblock bytes {bytes:x?}");
    assert!(
        differ.is_empty(),
        "blocks {differ:?} differ from e2fsck's replay"
    );
}

/// The byte where a group's descriptor lies.
fn descriptor_at(sb: &SuperBlock, group: u32) -> usize {
    let place = sb.descriptor_block(group / sb.descs_per_block());
    let skip = (group % sb.descs_per_block()) as usize * sb.desc_size();
    place.0 as usize * sb.block_size() as usize + skip
}

/// Ends the recovery as e2fsck does, which is not the journal's part: clears needs_recovery and makes
/// the superblock's totals those of the groups.
fn finish(dirty: &Dirty) {
    let (image, device) = (&dirty.image, open(&dirty.image));
    let mut sb = superblock(&*device);
    let mut free = (0u64, 0u32);
    let bytes = fs::read(image.path()).unwrap();
    for group in 0..sb.group_count() {
        let desc = GroupDesc::parse(&bytes[descriptor_at(&sb, group)..], sb.desc_size()).unwrap();
        free.0 += u64::from(desc.free_clusters_count());
        free.1 += desc.free_inodes_count();
    }
    let disk = sb.disk_mut();
    disk.s_feature_incompat &= !Incompat::NEEDS_RECOVERY.bits();
    disk.s_free_blocks_count_lo = free.0 as u32;
    disk.s_free_inodes_count = free.1;
    sb.update_checksum();
    let mut bytes = vec![0; 4096];
    device.read_at(0, &mut bytes).unwrap();
    let at = SUPERBLOCK_OFFSET as usize;
    bytes[at..at + SuperBlock::SIZE].copy_from_slice(&sb.encode());
    device.write_at(0, &bytes, Durability::Cached).unwrap();
}

fn check(dirty: &Dirty, seen: &mut Seen) {
    let (device, log) = dirty.open();
    let sb = superblock(&*device);
    let journal = log.read_superblock().unwrap();
    if !sb.needs_recovery() || journal.s_start == 0 {
        return;
    }
    drop((device, log));
    let found = dirty.copy().recover();
    dirty.drop_fast_commits();
    let (theirs, ours) = (dirty.copy(), dirty.copy());
    let recovered = ours.recover();
    assert_eq!(recovered.blocks_replayed, found.blocks_replayed);
    // debugfs 1.47.0 empties a journal with fast commits without a replay.
    let is_fast = journal.incompat().contains(JournalIncompat::FAST_COMMIT);
    if dirty.external.is_none() && !is_fast {
        theirs.recover_by_debugfs();
        compare(&theirs, &ours);
    }
    assert_eq!(ours.recover().blocks_replayed, 0, "replayed twice");
    let theirs = dirty.copy();
    let has_orphans = superblock(&*open(&ours.image)).last_orphan().is_some();
    if has_orphans {
        // e2fsck goes on to free them, so both are compared after that.
        seen.with_orphans += 1;
        theirs.e2fsck(&["-fy"]);
        finish(&ours);
        ours.e2fsck(&["-fy"]);
        compare(&theirs, &ours);
    } else {
        theirs.e2fsck(&["-fy", "-E", "journal_only"]);
        compare(&theirs, &ours);
        finish(&ours);
    }
    ours.e2fsck_consistent();
    let features = [journal.compat().names(), journal.incompat().names()].concat();
    seen.features.insert(features.join(" "));
    seen.add(&found);
}

/// Changes an image that is mounted with `options`, burst by burst, and checks what each leaves, until
/// `is_met`.
fn explore(name: &str, image: Image, options: &str, is_met: fn(&Seen) -> bool) -> Seen {
    let mut seen = Seen::default();
    let mount = Mount::ext4(image.path(), options);
    let mut rounds = 0..MOST_ROUNDS;
    while seen.images < 6 || !is_met(&seen) {
        let round = rounds.next();
        let round = round.unwrap_or_else(|| panic!("{name}: not all is met in {seen:?}"));
        churn(mount.path(), round).unwrap();
        let image = moment(&[&image]).remove(0);
        check(&Dirty::new(image, None), &mut seen);
    }
    mount.unmount();
    println!("{name}: {seen:?}");
    assert_eq!(seen.dropped, 0, "{seen:?}");
    seen
}

/// When the log wraps, and what of it a copy of the image catches, is up to the kernel.
const MOST_ROUNDS: u32 = 120;

fn all(seen: &Seen) -> bool {
    seen.revoked > 0 && seen.escaped > 0 && seen.wrapped > 0
}

fn small() -> dioxide_testkit::ImageBuilder {
    Image::builder().size(28 << 20)
}

#[test]
fn dirty_journal_4k_blocks_with_checksums_is_replayed_as_by_e2fsck() {
    need_root!();
    let image = small().args(&["-J", "size=4"]).build();
    explore("4k, csum v3", image, "", all);
}

#[test]
fn dirty_journal_1k_blocks_with_checksums_is_replayed_as_by_e2fsck() {
    need_root!();
    let image = small().block_size(1024).args(&["-J", "size=1"]).build();
    explore("1k, csum v3", image, "", all);
}

#[test]
fn dirty_journal_without_checksums_or_64bit_is_replayed_as_by_e2fsck() {
    need_root!();
    for block in [1024, 4096] {
        let size = if block == 1024 { "size=1" } else { "size=4" };
        let builder = small().block_size(block).args(&["-J", size]);
        let image = builder.features("^metadata_csum,^64bit").build();
        explore("no csum, no 64bit", image, "", all);
    }
}

#[test]
fn dirty_journal_with_journal_checksum_and_data_is_replayed_as_by_e2fsck() {
    need_root!();
    let builder = small().args(&["-J", "size=8"]);
    let image = builder.features("^metadata_csum").build();
    let mount = "journal_async_commit,journal_checksum,data=journal";
    // The kernel never revokes where all data is journaled.
    let is_met = |seen: &Seen| seen.escaped > 0 && seen.wrapped > 0;
    let seen = explore("async commit, data=journal", image, mount, is_met);
    let is_summed = |names: &String| names.contains("journal_checksum ") && names.contains("async");
    assert!(seen.features.iter().all(is_summed), "{seen:?}");
}

#[test]
fn dirty_journal_with_fast_commits_is_replayed_as_by_e2fsck_and_hands_them_out() {
    need_root!();
    let builder = small().args(&["-J", "size=8,fast_commit_size=512"]);
    let image = builder.features("fast_commit").build();
    let is_met = |seen: &Seen| seen.fast_commits > 0 && seen.created > 0 && seen.revoked > 0;
    explore("fast commits", image, "", is_met);
}

#[test]
fn dirty_external_journal_is_replayed_as_by_e2fsck() {
    need_root!();
    for block in ["1024", "4096"] {
        let external = Image::blank(Default::default(), 8 << 20);
        let args = ["-q", "-F", "-O", "journal_dev", "-b", block].map(OsStr::new);
        run(
            "mke2fs",
            &[&args[..], &[external.path().as_os_str()]].concat(),
            &[0],
        );
        let device = LoopDevice::attach(external.path());
        let path = device.path().to_str().unwrap();
        let image = small().block_size(block.parse().unwrap());
        let image = image.args(&["-J", &format!("device={path}")]).build();
        let mut seen = Seen::default();
        let mount = Mount::ext4(image.path(), &format!("journal_path={path}"));
        for round in 0..8 {
            churn(mount.path(), round).unwrap();
            let [image, external] = moment(&[&image, &external]).try_into().unwrap();
            check(&Dirty::new(image, Some(external)), &mut seen);
        }
        mount.unmount();
        println!("external, {block}: {seen:?}");
        assert!(
            seen.images >= 4 && seen.revoked > 0 && seen.escaped > 0,
            "{seen:?}"
        );
    }
}
