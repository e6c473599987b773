//! Calls about names on a device of which one write, flush or read fails, each in turn; and on a file
//! system with too few blocks or inodes.
//!
//! - Who gets an error finds the tree as it was before the call. From a failed flush, or a failed write of the log, on,
//!   nothing changes any more. Of a failed flush whoever runs into it is told, and at the latest the first call that syncs: no
//!   sync and no close succeeds from then on.
//! - Opened again, without the fault, the tree is that of one state, not older than the last sync, or than the last change
//!   of what was synced by itself, and `e2fsck` finds nothing. Without a journal a failed write may leave half of the changes
//!   since the last sync: `e2fsck` is able to mend it, and what was not changed is there.

use crate::attributes::{Attributes, DEFAULT, list};
use crate::calls::{self, Call, Dioxide};
use crate::random_calls::open_fs;
use crate::tree::{Answer, Tree};
use crate::view::{self, View};
use dioxide::block::file::{self, FileOptions};
use dioxide::block::sim::{Fault, FaultId, FaultKind, FaultOp, SimDevice, SimSpec};
use dioxide::format::features::Compat;
use dioxide::{Fs, MountOptions, RenameMode, Special, XattrMode};
use dioxide_testkit::{
    Image, ImageBuilder, debugfs, dumpe2fs, e2fsck_clean, e2fsck_consistent,
    e2fsck_consistent_with, e2fsck_mend,
};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// The number of an entry that is of no user and no group.
const NOBODY: u32 = u32::MAX;
const VALUE: &str = "user.value";

fn path(text: &str) -> Vec<u8> {
    text.as_bytes().to_vec()
}

fn create(text: &str) -> Call {
    Call::Create {
        path: path(text),
        exclusive: true,
        mode: 0o644,
    }
}

fn mkdir(text: &str) -> Call {
    Call::Mkdir {
        path: path(text),
        mode: 0o755,
    }
}

fn symlink(text: &str, len: usize) -> Call {
    Call::Symlink {
        target: vec![b't'; len],
        path: path(text),
    }
}

fn write(text: &str, len: u64) -> Call {
    Call::Write {
        path: path(text),
        at: 0,
        len,
        seed: 3,
    }
}

fn unlink(text: &str) -> Call {
    Call::Unlink { path: path(text) }
}

/// A value that no inode and no block of 1 KiB holds.
fn set_value(text: &str, len: usize) -> Call {
    Call::SetXattr {
        path: path(text),
        name: VALUE,
        value: vec![b'v'; len],
        mode: XattrMode::Set,
    }
}

fn remove_value(text: &str) -> Call {
    Call::RemoveXattr {
        path: path(text),
        name: VALUE,
    }
}

fn rename(from: &str, to: &str, mode: RenameMode) -> Call {
    let (from, to) = (path(from), path(to));
    Call::Rename {
        from,
        to,
        mode,
        whiteout: false,
    }
}

fn whiteout(from: &str, to: &str) -> Call {
    Call::Rename {
        from: path(from),
        to: path(to),
        mode: RenameMode::Replace,
        whiteout: true,
    }
}

/// What is there before anything fails. `/heir` gives what is in it an access control list.
fn prepared() -> Vec<Call> {
    let mut calls = vec![mkdir("/d"), mkdir("/e"), mkdir("/d/sub"), mkdir("/d/empty")];
    for name in ["/d/x", "/d/y", "/e/z", "/e/w"] {
        calls.push(create(name));
        calls.push(write(name, 9000));
    }
    calls.push(symlink("/d/link", 100));
    calls.extend([mkdir("/heir"), create("/heir/one"), create("/heir/two")]);
    calls.push(Call::SetXattr {
        path: path("/heir"),
        name: DEFAULT,
        value: list(&[
            (0x01, 7, NOBODY),
            (0x02, 7, 1000),
            (0x04, 5, NOBODY),
            (0x10, 7, NOBODY),
            (0x20, 0, NOBODY),
        ]),
        mode: XattrMode::Set,
    });
    calls
}

/// Each call about names, with syncs.
fn workload(has_projects: bool) -> Vec<Call> {
    let slot = 0;
    // No directory keeps it in its inode.
    let long = format!("/e/{}", "n".repeat(150));
    let file = path("/d/new");
    let charge = match has_projects {
        true => Call::SetProject {
            path: file,
            project: 7,
        },
        false => Call::Chown {
            path: file,
            uid: 1000,
            gid: 1000,
        },
    };
    vec![
        create("/d/new"),
        write("/d/new", 50),
        set_value("/d/new", 3000),
        mkdir("/d/dir"),
        Call::Sync,
        set_value("/heir", 3000),
        set_value("/d/new", 2500),
        write("/d/new", 2000),
        charge,
        remove_value("/heir"),
        symlink("/e/short", 10),
        symlink("/e/long", 200),
        create(&long),
        Call::Mknod {
            path: path("/e/pipe"),
            special: Special::Fifo,
            mode: 0o600,
        },
        Call::Link {
            old: path("/d/x"),
            new: path("/e/x"),
        },
        Call::Fsync { path: path("/e/x") },
        unlink("/d/link"),
        unlink("/d/y"),
        Call::Rmdir {
            path: path("/d/empty"),
        },
        rename("/d/x", "/d/moved", RenameMode::NoReplace),
        rename("/d/moved", "/e/z", RenameMode::Replace),
        rename("/d/sub", "/e/sub", RenameMode::Replace),
        Call::Fsync { path: path("/e") },
        rename("/d/dir", "/e/w", RenameMode::Exchange),
        rename("/e/w", "/e/sub", RenameMode::Replace),
        whiteout("/heir/one", "/d/was-one"),
        whiteout("/heir/two", "/d/was-one"),
        Call::Unnamed {
            dir: path("/d"),
            slot,
        },
        Call::WriteOpen {
            slot,
            at: 0,
            len: 5000,
            seed: 9,
        },
        Call::LinkOpen {
            slot,
            path: path("/d/linked"),
        },
        Call::Close { slot },
        Call::Open {
            path: path("/d/linked"),
            slot,
        },
        unlink("/d/linked"),
        Call::Close { slot },
        unlink("/d/new"),
        unlink(&long),
        Call::Sync,
        rename("/e", "/d/e", RenameMode::Replace),
    ]
}

/// Where the calls are made.
struct Ground {
    image: Image,
    /// Where its journal lies, if elsewhere.
    journal: Option<Image>,
    /// That is what fails.
    in_journal: bool,
    tree: Tree,
}

fn prepare(builder: ImageBuilder) -> (Image, Tree) {
    let ground = prepare_image(builder.build(), None);
    (ground.image, ground.tree)
}

fn prepare_elsewhere(builder: ImageBuilder, in_journal: bool) -> Ground {
    let journal = builder.clone().features("journal_dev").build();
    let image = builder.features("^has_journal").build();
    let said = dumpe2fs(journal.path());
    let uuid = said
        .lines()
        .find_map(|line| line.strip_prefix("Filesystem UUID:"));
    let uuid = uuid.expect("it has one").trim();
    let uuid = format!("ssv journal_uuid {uuid}");
    let belongs = [&*uuid, "ssv journal_dev 1", "feature has_journal"];
    debugfs(image.path(), &belongs);
    Ground {
        in_journal,
        ..prepare_image(image, Some(journal))
    }
}

fn open_with(image: &Image, journal: Option<&Image>) -> Fs {
    match journal {
        None => open_fs(image),
        Some(journal) => {
            let options = MountOptions::new().journal_path(journal.path());
            Fs::open(image.path(), &options).expect("it opens")
        }
    }
}

fn prepare_image(image: Image, journal: Option<Image>) -> Ground {
    let fs = open_with(&image, journal.as_ref());
    let mut tree = Tree::of(&fs);
    let mut side = Dioxide::new(fs);
    for call in prepared() {
        assert_eq!(calls::apply(&call, &mut tree), Ok(()), "{call:?}");
        assert_eq!(side.run(&call), Ok(()), "{call:?}");
    }
    side.fs.close().expect("a clean end");
    Ground {
        image,
        journal,
        in_journal: false,
        tree,
    }
}

/// A workload that goes on after errors.
struct Run {
    tree: Tree,
    /// What may be found after a crash: of the states since the last sync.
    views: Vec<View>,
    /// What each call answered that the model does not.
    failures: Vec<(String, i32)>,
    /// How many calls that change something succeeded after the first failure.
    after: usize,
    /// The file system was closed without an error.
    is_closed: bool,
    /// A sync of one file promises something by itself. Without a journal, where a change may be there by half, what looks as
    /// it did may be another file by then.
    has_journal: bool,
    /// The flush that is to fail.
    flush: Option<(SimDevice, FaultId)>,
}

impl Run {
    fn new(tree: &Tree) -> Run {
        Run {
            tree: tree.clone(),
            views: vec![view::of_model(tree)],
            failures: Vec::new(),
            after: 0,
            is_closed: false,
            has_journal: true,
            flush: None,
        }
    }

    fn run(&mut self, fs: Fs) {
        let mut side = Dioxide::new(fs);
        for call in workload(self.tree.has_projects) {
            self.step(&mut side, &call);
        }
        side.open.clear();
        match side.fs.close() {
            Ok(()) => {
                assert!(!self.flush_failed(), "the close promised what it cannot");
                self.is_closed = true;
                self.keep_last();
            }
            Err(error) => self.failures.push(("close".into(), error.errno())),
        }
    }

    /// From then on no call may promise that anything is durable: who runs into it is told, and at the latest the first that syncs.
    fn flush_failed(&self) -> bool {
        let hits = |(device, flush): &(SimDevice, FaultId)| device.hits(*flush) > Some(0);
        self.flush.as_ref().is_some_and(hits)
    }

    fn keep_last(&mut self) {
        let all = self.views.len();
        self.views.drain(..all - 1);
    }

    /// Of a file: it has this name, and is as it is; of a directory, these names are in it too. And what survives is a prefix
    /// of the calls: what came before the last change of that.
    fn keep_synced(&mut self, path: &[u8]) {
        let now = about(self.views.last().expect("there is one"), path);
        let other = self.views.iter().rposition(|view| about(view, path) != now);
        self.views.drain(..other.map_or(0, |at| at + 1));
    }

    fn step(&mut self, side: &mut Dioxide, call: &Call) {
        // What an earlier failure left out may be missing here.
        let open = matches!(call, Call::WriteOpen { slot, .. } | Call::LinkOpen { slot, .. }
            if !side.open.contains_key(slot));
        if open {
            return;
        }
        let before = self.tree.clone();
        let expected = calls::apply(call, &mut self.tree);
        let answer: Answer = side.run(call);
        if matches!(call, Call::Sync | Call::Fsync { .. }) && answer.is_ok() {
            assert!(!self.flush_failed(), "{call:?} promised what it cannot");
        }
        if answer == expected {
            self.views.push(view::of_model(&self.tree));
            self.after += usize::from(!self.failures.is_empty() && changes(call, &answer));
            match call {
                Call::Sync => self.keep_last(),
                Call::Fsync { path } if self.has_journal => self.keep_synced(path),
                _ => {}
            }
            return;
        }
        let errno = answer.expect_err("the model does not fail here");
        self.failures.push((format!("{call:?}"), errno));
        // What failed on its way to the disk may be there after a crash.
        if errno != libc::EROFS {
            self.views.push(view::of_model(&self.tree));
        }
        self.tree = before;
        self.views.push(view::of_model(&self.tree));
        if side.fs.read_only().is_none() {
            let found = view::of_dioxide(&side.fs);
            let what = format!("after {call:?} failed");
            view::assert_same(&what, &found, self.views.last().expect("just put"));
        }
    }

    /// Opens the image without the fault. Changes that were not synced may be there `by_half`.
    fn check(&self, image: &Image, journal: Option<&Image>, by_half: bool) {
        let fs = open_with(image, journal);
        assert_eq!(fs.read_only(), None, "{:?}", fs.warnings());
        let found = view::of_dioxide(&fs);
        if by_half {
            self.check_unchanged(&found);
        } else if !self.views.contains(&found) {
            let last = self.views.last().expect("there is one");
            view::assert_same("opened again", &found, last);
        }
        let left = fs.warnings().join("; ").contains("orphans are not freed");
        fs.close().expect("a clean end");
        if left {
            // Of an aborted journal, after which there may be errors. There are none.
            debugfs(image.path(), &["ssv state 1"]);
        }
        let fs = open_with(image, journal);
        let free = fs.statfs();
        fs.close().expect("a clean end");
        // A failure that aborted the journal is recorded.
        match journal {
            Some(journal) => e2fsck_consistent_with(image.path(), journal.path()),
            None => e2fsck_consistent(image.path()),
        }
        let fs = open_with(image, journal);
        assert_eq!(fs.statfs(), free);
    }

    /// What is the same in all states since the last sync must be there.
    fn check_unchanged(&self, found: &View) {
        let (first, later) = self.views.split_first().expect("there is one");
        let is_same = |path: &Vec<u8>| later.iter().all(|view| view.get(path) == first.get(path));
        // `e2fsck` puts there what has lost its name.
        let is_lost = |path: &[u8]| path.starts_with(b"/lost+found");
        let unchanged = |view: &View| -> View {
            let mut view = view.clone();
            view.retain(|path, _| first.contains_key(path) && is_same(path) && !is_lost(path));
            view
        };
        view::assert_same("what was not changed", &unchanged(found), &unchanged(first));
    }
}

/// What a sync of it makes durable.
fn about<'a>(view: &'a View, path: &[u8]) -> (Option<Shown<'a>>, Vec<&'a [u8]>) {
    let itself = view.get(path);
    let shown = itself.map(|entry| (&entry.attributes, entry.nlink, &*entry.bytes));
    let inside = view
        .keys()
        .filter_map(|key| key.strip_prefix(path)?.strip_prefix(b"/"));
    let names = inside.filter(|rest| !rest.contains(&b'/'));
    (shown, names.collect())
}

/// Of an entry.
type Shown<'a> = (&'a Attributes, u32, &'a [u8]);

fn changes(call: &Call, answer: &Answer) -> bool {
    let changes = !matches!(call, Call::Open { .. } | Call::Close { .. });
    answer.is_ok() && changes
}

fn sim(image: &Image) -> SimDevice {
    let options = FileOptions {
        write: true,
        ..FileOptions::default()
    };
    let device = file::open(image.path(), &options).expect("it opens");
    SimDevice::new(device, SimSpec::default())
}

/// Runs the workload with one fault. Whether it was met.
fn survives(ground: &Ground, fault: &Fault) -> bool {
    let copy = ground.image.copy();
    let journal = ground.journal.as_ref().map(Image::copy);
    let device = sim(&copy);
    let mut options = MountOptions::new();
    let elsewhere = journal.as_ref().map(sim);
    if let Some(journal) = &elsewhere {
        options = options.journal_device(Arc::new(journal.clone()));
    }
    let fs = Fs::open_device(Arc::new(device.clone()), &options).expect("it opens");
    let device = elsewhere.filter(|_| ground.in_journal).unwrap_or(device);
    let features = fs.superblock().features();
    let has_journal = features.compat.contains(Compat::HAS_JOURNAL);
    let armed = device.inject(fault.clone());
    let mut run = Run::new(&ground.tree);
    run.has_journal = has_journal;
    run.flush = (fault.op == FaultOp::Flush).then(|| (device.clone(), armed));
    run.run(fs);
    run.flush = None;
    let hits = device.hits(armed).expect("it is armed");
    drop((device, options));
    let report = Report(&run);
    let told = !run.failures.is_empty();
    assert!(hits > 0 || !told, "an error out of nothing");
    let silent = fault.op == FaultOp::Read;
    assert!(told || hits == 0 || silent, "nobody was told");
    if fault.op == FaultOp::Flush && told {
        assert_eq!(run.after, 0, "changes after a failed flush");
    }
    let is_whole = has_journal || run.is_closed;
    if !is_whole {
        e2fsck_mend(copy.path());
    }
    run.check(
        &copy,
        journal.as_ref(),
        !is_whole && fault.op == FaultOp::Write,
    );
    std::mem::forget(report);
    hits > 0
}

#[test]
fn sync_of_a_file_or_a_directory_promises_what_was_before_its_last_change() {
    let mut tree = Tree::new(1024);
    let mut run = Run::new(&tree);
    let mut views = Vec::new();
    let calls = [mkdir("/d"), mkdir("/e"), create("/d/x"), create("/e/z")];
    for call in calls.into_iter().chain([write("/d/x", 10), create("/e/w")]) {
        assert_eq!(calls::apply(&call, &mut tree), Ok(()), "{call:?}");
        run.views.push(view::of_model(&tree));
        views.push(run.views.last().expect("just put").clone());
    }
    for (path, oldest) in [("/d", 2), ("/d/x", 4), ("/e", 5)] {
        run.keep_synced(&self::path(path));
        assert_eq!(run.views[0], views[oldest], "{path}");
    }
    assert_eq!(run.views.len(), 1);
}

/// Tells what failed.
struct Report<'a>(&'a Run);

impl Drop for Report<'_> {
    fn drop(&mut self) {
        eprintln!("failures: {:?}", self.0.failures);
    }
}

fn survives_everywhere(op: FaultOp) {
    let small = || Image::builder().size(8 << 20).block_size(1024);
    let layouts = [
        ("extents", small()),
        ("no extents", small().features("^extents,^64bit")),
        ("orphan file", small().features("orphan_file")),
        (
            "inline data",
            small().features("inline_data").inode_size(256),
        ),
        ("values in inodes", small().features("ea_inode")),
        (
            "quotas",
            small()
                .features("ea_inode,quota,project")
                .extended("quotatype=usrquota:grpquota:prjquota"),
        ),
        ("no journal", small().features("^has_journal,^orphan_file")),
        ("ext2", small().fs_type("ext2")),
    ];
    let layouts = layouts.map(|(name, builder)| (name, prepare_image(builder.build(), None)));
    let elsewhere = [
        ("journal elsewhere", false),
        ("in the journal elsewhere", true),
    ];
    let elsewhere = elsewhere.map(|(name, fails)| (name, prepare_elsewhere(small(), fails)));
    for (name, ground) in layouts.into_iter().chain(elsewhere) {
        let (mut sites, mut bad) = (0, Vec::new());
        loop {
            let fault = Fault {
                skip: sites,
                ..Fault::once(op, FaultKind::Io(libc::EIO))
            };
            let run = AssertUnwindSafe(|| survives(&ground, &fault));
            match catch_unwind(run) {
                Ok(true) => {}
                Ok(false) => break,
                Err(_) => bad.push(sites),
            }
            sites += 1;
        }
        println!("{name}: {op:?} at {sites} sites");
        // A log is read when it is opened.
        let needs_none = ground.in_journal && op == FaultOp::Read;
        assert!(sites > 0 || needs_none, "the workload has none");
        assert!(bad.is_empty(), "{name}: {op:?} bad at {bad:?} of {sites}");
    }
}

#[test]
fn failed_write_at_every_site_leaves_one_state() {
    survives_everywhere(FaultOp::Write);
}

#[test]
fn failed_flush_at_every_site_leaves_one_state_and_ends_changes() {
    survives_everywhere(FaultOp::Flush);
}

#[test]
fn failed_read_at_every_site_changes_nothing() {
    survives_everywhere(FaultOp::Read);
}

/// Each write behind an end that vanishes fails; calls that need none go on.
#[test]
fn writes_behind_an_end_that_vanishes_leave_one_state() {
    // Groups with bitmaps and inode tables of their own, so that there is metadata behind each end.
    let groups = Image::builder().size(8 << 20).block_size(1024);
    let groups = groups.features("^flex_bg").args(&["-g", "1024"]);
    let ground = prepare_image(groups.build(), None);
    let ends = (0..16).map(|step| (step * 96 + 2) << 10);
    let met = ends.filter(|&end| {
        let fault = Fault {
            range: Some(end..u64::MAX),
            ..Fault::every(FaultOp::Write, FaultKind::Io(libc::EIO))
        };
        println!("from {end} on");
        survives(&ground, &fault)
    });
    assert!(met.count() > 2, "hardly anything met it");
}

/// Runs each call with so few blocks or inodes left, refilled before each, until all succeed.
fn is_refused_without_room(image: &Image, tree: &Tree, fill: impl Fn(&Fs, u64)) {
    let mut left = 0;
    loop {
        let copy = image.copy();
        let fs = open_fs(&copy);
        fill(&fs, left);
        let mut side = Dioxide::new(fs);
        let mut tree = tree.clone();
        let mut refused = 0;
        for call in workload(tree.has_projects) {
            let needs_open = matches!(call, Call::WriteOpen { slot, .. } | Call::LinkOpen { slot, .. }
                if !tree.open.contains_key(&slot));
            if needs_open {
                continue;
            }
            let before = tree.clone();
            let expected = calls::apply(&call, &mut tree);
            let answer = side.run(&call);
            if answer != expected {
                assert_eq!(answer, Err(libc::ENOSPC), "{call:?}, {left} left");
                tree = before;
                refused += 1;
            }
        }
        side.open.clear();
        side.fs.remove_file("/filler").ok();
        for number in 0.. {
            if side
                .fs
                .remove_file(format!("/lost+found/{number}"))
                .is_err()
            {
                break;
            }
        }
        let found = view::of_dioxide(&side.fs);
        view::assert_same(&format!("{left} left"), &found, &view::of_model(&tree));
        side.fs.close().expect("a clean end");
        e2fsck_clean(copy.path());
        if refused == 0 {
            assert!(left > 0, "nothing was refused");
            return;
        }
        left += 1;
        assert!(left < 60, "the workload needs less");
    }
}

#[test]
fn calls_without_blocks_are_refused_whole() {
    let small = || {
        Image::builder()
            .size(8 << 20)
            .block_size(1024)
            .args(&["-m", "0"])
    };
    for builder in [
        small(),
        small().features("^extents,^64bit"),
        // What is inherited lies in a block.
        small().inode_size(128),
    ] {
        let (image, tree) = prepare(builder);
        is_refused_without_room(&image, &tree, |fs, left| {
            let options = dioxide::OpenOptions::new().write(true).create(true);
            let file = options.open(fs, "/filler").expect("room");
            for step in [64, 1] {
                while file.write_at(&vec![7; step << 10], file.len()).is_ok() {}
            }
            file.set_len(file.len() - (left << 10))
                .expect("a shorter file");
            fs.sync().expect("a sync");
        });
    }
}

#[test]
fn calls_without_inodes_are_refused_whole() {
    let small = Image::builder().size(8 << 20).block_size(1024);
    let (image, tree) = prepare(small.args(&["-N", "64"]));
    is_refused_without_room(&image, &tree, |fs, left| {
        for number in 0..fs.statfs().files_free - left {
            let new = dioxide::NewFile::default();
            let path = format!("/lost+found/{number}");
            fs.mknod(path, Special::Fifo, &new).expect("an inode");
        }
    });
}
