//! Names that the kernel made, moved and removed until its image was copied: what was synced is there, each name as after one and
//! the same call, and dioxide's recovery shows what the kernel's of another copy shows.

use crate::crash::{journalled, moment, open_fs};
use crate::random::Random;
use crate::variants::image_with;
use crate::walk::{Tree, assert_same, by_dioxide, by_kernel};
use dioxide_testkit::{Image, Mount, e2fsck_clean, need_root, seeds};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Bytes of a write.
const PART: usize = 1000;
/// Files are told apart by their permissions, which they have from the call that makes them.
const FILES: u32 = 63;

/// By name, the permissions.
type Names = BTreeMap<String, u32>;

/// A file that was made: the last call that changed its inode, and how much of it was written and is promised.
#[derive(Clone, Copy, Default)]
struct Made {
    changed: usize,
    written: usize,
    promised: usize,
}

/// One directory, through all calls.
struct Run {
    random: Random,
    /// After each call.
    states: Vec<Names>,
    /// The first of them that may be found.
    promised: usize,
    made: BTreeMap<u32, Made>,
    next: u32,
}

impl Run {
    fn new(seed: u64) -> Run {
        Run {
            random: Random::new(seed),
            states: vec![Names::new()],
            promised: 0,
            made: BTreeMap::new(),
            next: 0,
        }
    }

    fn name(&mut self) -> String {
        format!("n{}", self.random.pick(12))
    }

    /// One call in `dir`, of which the model knows the outcome.
    fn step(&mut self, dir: &Path) {
        let (one, two) = (self.name(), self.name());
        let mut names = self.states[self.states.len() - 1].clone();
        let state = self.states.len();
        let path = dir.join(&one);
        let known = names.get(&one).copied();
        let mut changed = |mode: Option<u32>| {
            if let Some(made) = mode.and_then(|mode| self.made.get_mut(&mode)) {
                made.changed = state;
            }
        };
        match (self.random.pick(8), known) {
            (0..3, None) => {
                self.next = self.next % FILES + 1;
                let mode = self.next << 6;
                let mut options = OpenOptions::new();
                let options = options.write(true).create_new(true).mode(mode);
                options.open(&path).expect("it is not there");
                names.insert(one, mode);
                let made = Made {
                    changed: state,
                    ..Made::default()
                };
                self.made.insert(mode, made);
            }
            (0 | 1, Some(mode)) => {
                let mut file = OpenOptions::new().append(true).open(&path).expect("a file");
                file.write_all(&[(mode >> 6) as u8; PART]).expect("room");
                let made = self.made.get_mut(&mode).expect("made");
                made.written += PART;
            }
            (3, Some(_)) => {
                fs::remove_file(&path).expect("it is there");
                names.remove(&one);
                changed(known);
            }
            (4 | 5, Some(mode)) if one != two => {
                fs::rename(&path, dir.join(&two)).expect("it is there");
                names.remove(&one);
                names.insert(two, mode);
                changed(known);
            }
            (6, Some(mode)) => {
                File::open(&path)
                    .expect("a file")
                    .sync_all()
                    .expect("a sync");
                let made = self.made.get_mut(&mode).expect("made");
                made.promised = made.written;
                self.promised = self.promised.max(made.changed);
            }
            (7, _) if self.random.pick(3) == 0 => {
                File::open(dir)
                    .expect("it is there")
                    .sync_all()
                    .expect("a sync");
                self.promised = state - 1;
            }
            _ => {}
        }
        self.states.push(names);
    }

    fn check(&self, tree: &Tree) {
        let below = tree.iter().filter_map(|(path, record)| {
            let name = path.strip_prefix(b"/d/")?;
            Some((String::from_utf8(name.to_vec()).expect("ASCII"), record))
        });
        let found: Vec<_> = below.collect();
        let names = found
            .iter()
            .map(|(name, record)| (name.clone(), record.mode & 0o7777));
        let names: Names = names.collect();
        assert!(
            self.states[self.promised..].contains(&names),
            "{names:?} was never there since {:?}",
            self.states[self.promised]
        );
        for (name, record) in found {
            let (mode, content) = (record.mode & 0o7777, record.content.as_ref());
            let (made, content) = (self.made[&mode], content.expect("a small file"));
            let size = content.len();
            assert!(
                (made.promised..=made.written).contains(&size),
                "{name}: {size}"
            );
            // The kernel writes the size of what is in a block already before the data.
            let byte = (mode >> 6) as u8;
            let is_right = |(at, &found)| found == byte || at >= made.promised && found == 0;
            assert!(content.iter().enumerate().all(is_right), "{name}");
        }
    }
}

/// Without times, which change where a recovery finishes a truncate.
fn timeless(mut tree: Tree) -> Tree {
    for record in tree.values_mut() {
        (record.times, record.created) = Default::default();
    }
    tree
}

/// What dioxide makes of a crashed image, which is what the kernel makes of a copy.
pub fn recovered_alike(image: &Image) -> Tree {
    let copy = image.copy();
    let fs = open_fs(image.path());
    let (ours, block) = (timeless(by_dioxide(&fs)), fs.block_size());
    fs.close().expect("a clean end");
    e2fsck_clean(image.path());
    let mount = Mount::ext4(copy.path(), "");
    let theirs = timeless(by_kernel(mount.path(), block.into()));
    mount.unmount();
    e2fsck_clean(copy.path());
    assert_same(&theirs, &ours);
    ours
}

#[test]
fn names_of_a_kernel_copied_between_bursts_are_recovered_by_dioxide() {
    need_root!();
    let fast = Image::builder().features("fast_commit");
    for (name, builder) in journalled().chain([("fast commits", fast)]) {
        for seed in seeds(1) {
            let image = image_with(builder.clone().size(32 << 20), &[]);
            let mut run = Run::new(seed);
            let mount = Mount::ext4(image.path(), "");
            let dir = mount.path().join("d");
            fs::create_dir(&dir).expect("room");
            rustix::fs::syncfs(File::open(&dir).expect("it is there")).expect("a sync");
            for burst in 0..4 {
                for _ in 0..30 {
                    run.step(&dir);
                }
                println!("{name}, seed {seed}, burst {burst}");
                run.check(&recovered_alike(&moment(&image)));
            }
            mount.unmount();
        }
    }
}
