//! Where a log ends that a Linux goes on with which has its fast commits behind it.

use super::area::{BLOCK, empty, loaded, log_on, unloaded};
use dioxide::block::mem::MemDevice;
use dioxide::format::journal::{BlockHeader, BlockType, DEFAULT_FAST_COMMIT_BLOCKS};
use dioxide::{Fs, MountOptions, NewFile, OpenOptions};
use dioxide_journal::log::Log;
use dioxide_testkit::{Image, Mount, e2fsck_clean, need_root};
use std::fs;
use std::sync::Arc;

/// More than the kernel sets apart for fast commits, in transactions of some blocks each.
const COMMITS: u32 = 150;

/// A file system that uses fast commits, opened in memory, and its log.
struct Subject {
    image: Image,
    device: Arc<MemDevice>,
    fs: Fs,
    log: Log,
    rounds: u32,
}

impl Subject {
    fn new() -> Subject {
        let image = empty("");
        let device = loaded(&fs::read(image.path()).expect("the image"));
        let fs = Fs::open_device(device.clone(), &MountOptions::new()).expect("it opens");
        Subject {
            log: log_on(&image, device.clone()),
            image,
            device,
            fs,
            rounds: 0,
        }
    }

    /// The block behind those that Linux leaves to the log.
    fn end(&self) -> u32 {
        let sb = self.log.read_superblock().expect("a journal");
        let apart = match sb.s_num_fc_blks {
            0 => DEFAULT_FAST_COMMIT_BLOCKS,
            blocks => blocks,
        };
        sb.s_maxlen - apart
    }

    /// The block behind the newest transaction.
    fn head(&self) -> u32 {
        let sb = self.log.read_superblock().expect("a journal");
        let mut blocks = vec![0; (sb.s_maxlen - sb.s_first) as usize * BLOCK];
        self.log.read(sb.s_first, &mut blocks).expect("it is there");
        let numbered = blocks.chunks(BLOCK).zip(sb.s_first..);
        let commits = numbered.filter_map(|(block, at)| match BlockHeader::of(block) {
            Some((BlockType::Commit, tid)) => Some((tid.0, at + 1)),
            _ => None,
        });
        commits.max().map_or(sb.s_first, |(_, head)| head)
    }

    /// Commits a transaction: some larger than others, and with blocks that are freed while the log has them.
    fn commit(&mut self) {
        let (fs, round) = (&self.fs, self.rounds);
        let new = NewFile::default();
        fs.create_dir(format!("/{round}"), &new).expect("room");
        for n in 0..count(round) {
            let options = OpenOptions::new().write(true).create_new(true);
            let file = options.open(fs, format!("/{round}/{n}")).expect("room");
            file.write_at(&[n as u8; 100], 0).expect("room");
        }
        if let Some(old) = round.checked_sub(4) {
            for n in 0..count(old) {
                fs.remove_file(format!("/{old}/{n}")).expect("it is there");
            }
            fs.remove_dir(format!("/{old}")).expect("it is empty");
        }
        fs.sync().expect("a sync");
        self.rounds += 1;
    }

    /// What a crash leaves now.
    fn crashed(&self) -> Vec<u8> {
        unloaded(&*self.device)
    }

    /// The names that are there now, and how many are below.
    fn names(&self) -> Vec<(String, u32)> {
        let there = self.rounds - 4..self.rounds;
        there
            .map(|round| (round.to_string(), count(round)))
            .collect()
    }
}

fn count(round: u32) -> u32 {
    round * 7 % 40
}

fn assert_names(fs: &Fs, expected: &[(String, u32)]) {
    for (name, count) in expected {
        let below = fs.read_dir(format!("/{name}")).expect("it is there");
        let files = below.iter().filter(|entry| !entry.name.starts_with(b"."));
        assert_eq!(files.count(), *count as usize, "in {name}");
    }
}

#[test]
fn log_ends_before_the_blocks_that_linux_sets_apart() {
    let mut subject = Subject::new();
    let end = subject.end();
    let (mut laps, mut last) = (0, 0);
    while laps < 2 {
        subject.commit();
        let head = subject.head();
        assert!(head < end, "it ends at {head}, Linux has {end}");
        if head < last {
            laps += 1;
        }
        // Around the end of a lap.
        if head < last || head + 12 > end {
            let device = loaded(&subject.crashed());
            let fs = Fs::open_device(device.clone(), &MountOptions::new()).expect("it opens");
            assert_eq!(fs.read_only(), None, "{:?}", fs.warnings());
            assert_names(&fs, &subject.names());
            fs.close().expect("a clean end");
            fs::write(subject.image.path(), unloaded(&*device)).expect("room");
            e2fsck_clean(subject.image.path());
        }
        last = head;
    }
}

#[test]
fn linux_goes_on_with_a_log_that_ends_as_late_as_it_can() {
    need_root!();
    let mut subject = Subject::new();
    let end = subject.end();
    let (mut latest, mut last) = (None, 0);
    loop {
        subject.commit();
        let head = subject.head();
        if head < last {
            break;
        }
        if head + 20 > end {
            latest = Some((subject.crashed(), subject.names()));
        }
        last = head;
    }
    println!("the log ends at {last}, Linux has {end}");
    let (bytes, names) = latest.expect("a log that is nearly at its end");
    let image = &subject.image;
    fs::write(image.path(), bytes).expect("room");
    let mount = Mount::ext4(image.path(), "");
    for n in 0..COMMITS {
        let path = mount.path().join(format!("by-linux-{n}"));
        fs::write(&path, n.to_string()).expect("room");
        let file = fs::File::open(&path).expect("it is there");
        // All of it, and so no fast commit.
        rustix::fs::syncfs(&file).expect("a commit");
    }
    mount.unmount();
    e2fsck_clean(image.path());
    let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
    assert_names(&fs, &names);
    for n in 0..COMMITS {
        let size = fs
            .metadata(format!("/by-linux-{n}"))
            .expect("it is there")
            .size;
        assert_eq!(size, n.to_string().len() as u64);
    }
}
