//! Journals on devices of their own, journals with fast commits, and multi-mount protection, where files are in the way
//! of a smaller size; beside `resize2fs`.

use super::relocate::{compare, each_cut, image, image_of, is_clean, shrink, shrink_only};
use super::tree::{assert_kept, seen};
use super::{M, PROGRAMS, builder, change_superblock, geometry, resize2fs};
use crate::walk::assert_same;
use dioxide::format::mmp::{Mmp, MmpState, SEQ_FSCK};
use dioxide::format::superblock::{SUPERBLOCK_OFFSET, SuperBlock};
use dioxide::resize::{ResizeOptions, Step, minimum, resize, resize_telling};
use dioxide::{Error, Fs, MountOptions, OpenOptions};
use dioxide_testkit::{
    Dir, Image, LoopDevice, Mount, assert_closed, e2fsck_clean, need_root, soaks,
};
use std::ffi::OsStr;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

const BEFORE_MIB: u64 = 64;
const BLOCK: u32 = 1024;

fn run(program: &str, args: &[&OsStr]) {
    let mut command = Command::new(program);
    let output = command.env("PATH", PROGRAMS).args(args).output();
    let output = output.expect("e2fsprogs is installed");
    assert!(output.status.success(), "{program} {args:?}: {output:?}");
}

fn word(path: &Path) -> &OsStr {
    path.as_os_str()
}

fn least(image: &Image) -> u64 {
    minimum(image.path(), &ResizeOptions::default()).expect("there is one")
}

/// What `dumpe2fs` says of the whole of each is the same, but for what a mount leaves, which ours has.
fn assert_alike(ours: &Image, theirs: &Image) {
    let left_out = ["Last mount time", "Journal sequence", "Journal checksum"];
    let summary = |image: &Image| {
        let lines = geometry(image.path()).into_iter();
        let lines = lines.take_while(|line| !line.starts_with("Group 0"));
        let lasting = |line: &String| !left_out.iter().any(|words| line.starts_with(words));
        lines.filter(lasting).collect::<Vec<_>>()
    };
    let (ours, theirs) = (summary(ours), summary(theirs));
    let differ: Vec<_> = ours.iter().zip(&theirs).filter(|(a, b)| a != b).collect();
    assert!(
        differ.is_empty() && ours.len() == theirs.len(),
        "{differ:#?}"
    );
}

#[test]
fn fast_commits_and_mmp_are_the_same_after_shrinking() {
    // Each mount of one with MMP waits for eleven seconds.
    let mmp = soaks().then_some("-O mmp");
    let sets = ["-O fast_commit", "-O fast_commit,orphan_file -J size=2"];
    for (seed, args) in (31..).zip(sets.into_iter().chain(mmp)) {
        println!("{args}");
        let ours = image(args, BLOCK, BEFORE_MIB, 60, seed);
        let theirs = ours.copy();
        let before = seen(ours.path());
        let size = least(&ours) + 8 * M;
        assert!(shrink(&ours, size).contains("blocks"));
        resize2fs(theirs.path(), size);
        assert_alike(&ours, &theirs);
        compare(&before, &ours, BLOCK);
        assert!(shrink(&ours, least(&ours)).contains("inodes"));
        compare(&before, &ours, BLOCK);
    }
}

/// An image whose journal is another one.
struct Pair {
    image: Image,
    journal: Image,
}

impl Pair {
    fn new(seed: u64) -> Pair {
        let image = image("-O ^has_journal", BLOCK, BEFORE_MIB, 60, seed);
        let journal = Image::blank(Dir::Tmpfs, 8 * M);
        let args = ["-q", "-F", "-b", "1024", "-O", "journal_dev"].map(OsStr::new);
        run("mke2fs", &[&args[..], &[word(journal.path())]].concat());
        let device = LoopDevice::attach(journal.path());
        let named = format!("device={}", device.path().display());
        let args = [OsStr::new("-J"), OsStr::new(&named), word(image.path())];
        run("tune2fs", &args);
        Pair { image, journal }
    }

    fn e2fsck(&self, image: &Image, how: &str) {
        let args = [OsStr::new(how), OsStr::new("-j"), word(self.journal.path())];
        let mut e2fsck = Command::new("e2fsck");
        let e2fsck = e2fsck.env("PATH", PROGRAMS).args(args).arg(image.path());
        let output = e2fsck.output().expect("e2fsck");
        let mends = how == "-fy";
        assert!(
            matches!(
                (output.status.code(), mends),
                (Some(0), _) | (Some(1), true)
            ),
            "{output:?}"
        );
    }

    fn check(&self) {
        self.e2fsck(&self.image, "-fn");
        assert_closed(self.image.path());
    }
}

#[test]
fn journal_elsewhere_is_the_journal_after_shrinking() {
    need_root!();
    let pair = Pair::new(41);
    let theirs = pair.image.copy();
    let before = seen(pair.image.path());
    let log = std::fs::read(pair.journal.path()).expect("the journal");
    let size = least(&pair.image) + 8 * M;
    assert!(shrink_only(&pair.image, size).contains("blocks"));
    pair.check();
    resize2fs(theirs.path(), size);
    assert_alike(&pair.image, &theirs);
    assert_same(&before, &seen(pair.image.path()));
    assert!(shrink_only(&pair.image, least(&pair.image)).contains("inodes"));
    pair.check();
    assert_same(&before, &seen(pair.image.path()));
    assert!(std::fs::read(pair.journal.path()).expect("the journal") == log);

    let options = MountOptions::new().journal_path(pair.journal.path());
    let fs = Fs::open(pair.image.path(), &options).expect("it opens");
    let file = OpenOptions::new().write(true).open(&fs, "/large");
    let written = file.expect("it is there").write_at(&[3; 5000], 0);
    assert_eq!(written.expect("it has its journal"), 5000);
    fs.close().expect("a clean end");
    pair.check();
    let device = LoopDevice::attach(pair.journal.path());
    let options = format!("journal_path={}", device.path().display());
    let mount = Mount::ext4(pair.image.path(), &options);
    let content = std::fs::read(mount.path().join("large")).expect("it reads");
    assert!(content[..5000] == [3; 5000]);
    std::fs::write(mount.path().join("new"), [1; 100_000]).expect("it writes");
    mount.unmount();
    drop(device);
    pair.check();
}

/// It is as without a journal: `e2fsck` finds every file.
#[test]
fn journal_elsewhere_cut_anywhere_every_file_is_there() {
    need_root!();
    let pair = Pair::new(42);
    let before = seen(pair.image.path());
    let mut unclean = 0;
    each_cut(
        &pair.image,
        least(&pair.image) / u64::from(BLOCK),
        &mut |device, _, about| {
            let image = image_of(device);
            if !is_clean(device) {
                unclean += 1;
                pair.e2fsck(&image, "-fy");
            }
            pair.e2fsck(&image, "-fn");
            assert_kept(&before, &seen(image.path()), about);
        },
    );
    assert!(unclean > 0, "it was marked as clean while files moved");
}

/// Puts the block of multi-mount protection elsewhere.
fn move_mmp(image: &Image, to: u64) {
    let (_, mmp) = mmp_of(image.path());
    change_superblock(image.path(), |sb| sb.s_mmp_block = to);
    put_mmp(image.path(), to * u64::from(BLOCK), &mmp);
    let mut e2fsck = Command::new("e2fsck");
    let e2fsck = e2fsck.env("PATH", PROGRAMS).arg("-fy").arg(image.path());
    e2fsck.output().expect("e2fsck");
    e2fsck_clean(image.path());
}

#[test]
fn block_of_mmp_that_is_in_the_way_is_named_and_nothing_is_changed() {
    let image = builder(BEFORE_MIB * M, BLOCK)
        .args(&["-O", "mmp,^metadata_csum"])
        .build();
    let options = ResizeOptions::default();
    move_mmp(&image, 50_001);
    let seen = || {
        let mut bytes = std::fs::read(image.path()).expect("the image");
        // Who was the last is told there.
        bytes[50_001 * BLOCK as usize..][..BLOCK as usize].fill(0);
        bytes
    };
    let before = seen();
    match resize(image.path(), Some(30 * M), &options) {
        Err(Error::Unsupported(what)) => {
            assert!(
                what.contains("block 50001, of multi-mount protection"),
                "{what}"
            );
        }
        other => panic!("{other:?}"),
    }
    assert!(seen() == before);
    resize(image.path(), Some(52 * M), &options).expect("it stays");
    e2fsck_clean(image.path());
}

/// The block of multi-mount protection: where it is, and what it holds.
fn mmp_of(path: &Path) -> (u64, Mmp) {
    let file = std::fs::File::open(path).expect("the image");
    let read = |at| {
        let mut bytes = [0; SuperBlock::SIZE];
        file.read_exact_at(&mut bytes, at).expect("it");
        bytes
    };
    let sb = SuperBlock::parse(&read(SUPERBLOCK_OFFSET)).expect("it is whole");
    let block = sb.mmp_block().unwrap().expect("it has the feature").0;
    let at = block * u64::from(BLOCK);
    (at, Mmp::parse(&read(at)).expect("it is whole"))
}

fn put_mmp(path: &Path, at: u64, mmp: &Mmp) {
    let file = std::fs::File::options().write(true).open(path);
    let written = file.and_then(|file| file.write_all_at(&mmp.encode(), at));
    written.expect("the image");
}

fn guarded() -> Image {
    let image = builder(BEFORE_MIB * M, BLOCK);
    image.args(&["-O", "mmp,^metadata_csum"]).build()
}

/// A host that has died is waited for; from then on others are kept away, also while files are moved.
#[test]
fn mmp_is_held_from_the_first_look_to_the_last_write() {
    let image = image("-O mmp,^metadata_csum", BLOCK, BEFORE_MIB, 60, 33);
    let before = seen(image.path());
    let (at, mut mmp) = mmp_of(image.path());
    mmp.mmp_seq = 77;
    put_mmp(image.path(), at, &mmp);
    let mut met = Vec::new();
    let size = least(&image) + 8 * M;
    let options = ResizeOptions::default();
    let tell = &mut |step, _, _| {
        let state = mmp_of(image.path()).1.state();
        if met.last() != Some(&(step, state)) {
            met.push((step, state));
        }
    };
    resize_telling(image.path(), Some(size), &options, tell).expect("nobody counts any more");
    assert_eq!(met[0], (Step::Wait, MmpState::Mounted(77)));
    assert!(
        matches!(met[1], (Step::Wait, MmpState::Mounted(seq)) if seq != 77),
        "{met:?}"
    );
    let moving = &met[2..];
    assert!(moving.iter().any(|(step, _)| *step == Step::Blocks));
    assert!(
        moving.iter().all(|(_, state)| *state == MmpState::Fsck),
        "{met:?}"
    );
    assert_eq!(mmp_of(image.path()).1.state(), MmpState::Clean);
    e2fsck_clean(image.path());
    compare(&before, &image, BLOCK);
}

#[test]
fn mmp_of_others_keeps_a_resize_away() {
    let image = guarded();
    let options = ResizeOptions::default();
    let (at, clean) = mmp_of(image.path());
    let put = |seq| {
        let mut mmp = clean.clone();
        mmp.mmp_seq = seq;
        mmp.mmp_nodename[..5].copy_from_slice(b"other");
        put_mmp(image.path(), at, &mmp);
    };
    // A checker is not waited for.
    put(SEQ_FSCK);
    let before = std::fs::read(image.path()).expect("the image");
    let began = Instant::now();
    let refused = [
        resize(image.path(), Some(52 * M), &options).map(drop),
        minimum(image.path(), &options).map(drop),
    ];
    for refused in refused {
        assert_eq!(refused.expect_err("it is in use").errno(), libc::EBUSY);
    }
    assert!(began.elapsed() < Duration::from_secs(5));
    assert!(std::fs::read(image.path()).expect("the image") == before);
    put(77);
    let error = thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_secs(2));
            put(78);
        });
        resize(image.path(), Some(52 * M), &options).expect_err("it is in use")
    });
    assert_eq!(error.errno(), libc::EBUSY);
    assert!(error.to_string().contains("other"), "{error}");
}

#[test]
fn mmp_block_that_is_damaged_keeps_a_resize_away() {
    let image = builder(BEFORE_MIB * M, BLOCK).args(&["-O", "mmp"]).build();
    let (at, mut mmp) = mmp_of(image.path());
    mmp.mmp_checksum ^= 1;
    put_mmp(image.path(), at, &mmp);
    let before = std::fs::read(image.path()).expect("the image");
    match resize(image.path(), Some(52 * M), &ResizeOptions::default()) {
        Err(Error::Checksum { structure, .. }) => assert_eq!(structure, "MMP block"),
        other => panic!("{other:?}"),
    }
    assert!(std::fs::read(image.path()).expect("the image") == before);
}
