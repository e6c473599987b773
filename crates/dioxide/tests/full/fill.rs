//! Four threads fill a file system until nothing is left, make room by truncating, by punching holes into what
//! is left and by removing it, and fill it again. Each has a file of its own, and knows what that contains.
//!
//! Whenever all threads rest: free blocks plus allocated ones are what they were, and free inodes; and at the
//! end, when the files are empty, free blocks are what they were.

use crate::random::Random;
use crate::variants::{image_with, variants};
use dioxide::{Error, FallocateMode, File, Fs, MountOptions, OpenOptions};
use dioxide_testkit::{Image, dumpe2fs, e2fsck_clean, fill_pattern, seeds};
use std::time::Duration;

const NAMES: [&str; 4] = ["a", "b", "c", "d"];
/// As the image, so that one thread may get all of it.
const MOST: u64 = 24 << 20;

/// One thread's file.
struct Owner {
    number: usize,
    random: Random,
    content: Vec<u8>,
    unit: u64,
    extents: bool,
}

fn is_full(error: &Error) -> bool {
    error.errno() == libc::ENOSPC
}

impl Owner {
    /// Writes until there is no room for one block more.
    fn fill(&mut self, file: &File) {
        loop {
            let end = self.content.len() as u64;
            let units = 1 << self.random.below(0..6);
            let len = match self.random.pick(4) {
                0 => self.random.below(1..units * self.unit + 1),
                _ => units * self.unit,
            };
            let at = match self.random.pick(3) {
                0 => self.random.below(0..end + 1) / self.unit * self.unit,
                1 => end.next_multiple_of(self.unit),
                _ => end,
            };
            let ahead = self.extents && self.random.pick(6) == 0;
            if !self.put(file, at, len, ahead) && !self.put(file, end, self.unit, false) {
                return;
            }
        }
    }

    /// Writes, into blocks allocated ahead or not; `false` if there is no room.
    fn put(&mut self, file: &File, at: u64, len: u64, ahead: bool) -> bool {
        let len = len.min(MOST.saturating_sub(at));
        if len == 0 {
            return false;
        }
        if ahead && let Err(error) = file.allocate(FallocateMode::KeepSize, at, len) {
            assert!(is_full(&error), "{error}");
            return false;
        }
        let mut data = vec![0; len as usize];
        fill_pattern(self.random.next(), 0, &mut data);
        let result = file.write_at(&data, at);
        match result {
            Ok(written) => assert_eq!(written, data.len()),
            Err(error) => {
                assert!(is_full(&error), "{error}");
                self.learn(file, at, &data);
                return false;
            }
        }
        let end = (at + len) as usize;
        self.content.resize(self.content.len().max(end), 0);
        self.content[at as usize..end].copy_from_slice(&data);
        true
    }

    /// What a change that failed left: the size, and of each byte the old or the new.
    fn learn(&mut self, file: &File, at: u64, data: &[u8]) {
        assert_eq!(file.len(), self.content.len() as u64, "after a failure");
        let inside = self.content.len().saturating_sub(at as usize);
        let mut found = vec![0; data.len().min(inside)];
        let len = file.read_at(&mut found, at).expect("a read");
        assert_eq!(len, found.len());
        for (byte, &found) in found.iter().enumerate() {
            let old = &mut self.content[at as usize + byte];
            assert!(
                found == *old || found == data[byte],
                "byte {} after a failure: {found:#x}",
                at as usize + byte
            );
            *old = found;
        }
    }

    /// Gives back about half of the file, or all of it with its name. The file that is there then.
    fn thin(&mut self, fs: &Fs, file: File) -> File {
        match self.random.pick(6) {
            0 => {
                let size = self.random.below(0..self.content.len() as u64 + 1);
                file.set_len(size).expect("a shorter file");
                self.content.truncate(size as usize);
            }
            1 => self.punch_all(&file, 2),
            2 => self.punch_all(&file, 3),
            3 => {
                let end = self.content.len() as u64;
                let at = self.random.below(0..end + 1);
                let len = self.random.below(1..end / 2 + 2);
                self.punch(&file, at, len);
            }
            _ => return self.replace(fs, file),
        }
        file
    }

    /// Removes the file, open or not, and makes another of its name.
    fn replace(&mut self, fs: &Fs, file: File) -> File {
        let open = Some(file).filter(|_| self.random.pick(2) == 0);
        fs.remove_file(path(self.number)).expect("it exists");
        let options = options(self.number).create_new(true);
        let new = options.open(fs, path(self.number)).expect("it has gone");
        self.content.clear();
        // While others look for room, and with both files there.
        self.put(&new, 0, self.unit, false);
        drop(open);
        new
    }

    /// A hole of one unit after every few of data.
    fn punch_all(&mut self, file: &File, every: u64) {
        let units = self.content.len() as u64 / self.unit;
        for at in (0..units.min(2000)).step_by(every as usize) {
            self.punch(file, at * self.unit, self.unit);
        }
    }

    fn punch(&mut self, file: &File, at: u64, len: u64) {
        let result = file.allocate(FallocateMode::PunchHole, at, len);
        if let Err(error) = result {
            // Splitting an extent takes a block where the tree is full.
            assert!(is_full(&error), "{error}");
            let zeros = vec![0; len as usize];
            return self.learn(file, at, &zeros);
        }
        let end = self.content.len();
        let inside = |at: u64| (at as usize).min(end);
        self.content[inside(at)..inside(at + len)].fill(0);
    }

    fn check(&self, name: &str, file: &File) {
        assert_eq!(file.len(), self.content.len() as u64, "size of {name}");
        let mut found = vec![0xEE; self.content.len()];
        file.read_at(&mut found, 0).expect("a read");
        let differs = (0..found.len()).find(|&at| found[at] != self.content[at]);
        assert_eq!(differs, None, "first byte of {name} that differs");
    }
}

struct Bed {
    image: Image,
    owners: Vec<Owner>,
    /// Blocks, with empty files.
    free: u64,
    /// Inodes.
    files_free: u64,
}

fn open_fs(image: &Image) -> Fs {
    let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
    assert_eq!(fs.read_only(), None);
    fs
}

fn path(number: usize) -> String {
    format!("/{}", NAMES[number])
}

/// Half of the threads may have the reserved blocks.
fn options(number: usize) -> OpenOptions {
    let options = OpenOptions::new().read(true).write(true);
    options.resource(number.is_multiple_of(2))
}

fn open_files(fs: &Fs) -> Vec<File> {
    let open = |number| options(number).open(fs, path(number)).expect("it exists");
    (0..NAMES.len()).map(open).collect()
}

impl Bed {
    fn new(builder: dioxide_testkit::ImageBuilder, seed: u64) -> Bed {
        let image = image_with(builder.size(MOST), &NAMES);
        let fs = open_fs(&image);
        let unit = u64::from(fs.superblock().cluster_size());
        let extents = fs.metadata("/a").expect("it exists").flags & 0x8_0000 != 0;
        let owner = |number| Owner {
            number,
            random: Random::new(seed * 16 + number as u64),
            content: Vec::new(),
            unit,
            extents,
        };
        let free = fs.statfs();
        fs.close().expect("a clean end");
        Bed {
            image,
            owners: (0..NAMES.len()).map(owner).collect(),
            free: free.blocks_free,
            files_free: free.files_free,
        }
    }

    /// Gives each thread its file, and back those that it leaves.
    fn all_at_once(
        &mut self,
        files: Vec<File>,
        act: impl Fn(&mut Owner, File) -> File + Sync,
    ) -> Vec<File> {
        std::thread::scope(|scope| {
            let act = &act;
            let owners = self.owners.iter_mut().zip(files);
            let threads = owners.map(|(owner, file)| scope.spawn(move || act(owner, file)));
            let threads: Vec<_> = threads.collect();
            let files = threads.into_iter().map(|t| t.join().expect("no panic"));
            files.collect()
        })
    }

    fn assert_nothing_is_lost(&self, fs: &Fs, files: &[File]) {
        let unit = u64::from(fs.block_size()) / 512;
        let allocated: u64 = files.iter().map(|file| file.metadata().blocks).sum();
        fs.sync().expect("a sync");
        let free = fs.statfs();
        assert_eq!(free.blocks_free + allocated / unit, self.free);
        assert_eq!(free.files_free, self.files_free);
    }

    fn round(&mut self) {
        let fs = open_fs(&self.image);
        let files = open_files(&fs);
        let files = self.all_at_once(files, |owner, file| {
            owner.fill(&file);
            file
        });
        // What others had claimed and gave back.
        self.owners[0].fill(&files[0]);
        let left = fs.statfs().blocks_free * u64::from(fs.block_size()) / self.owners[0].unit;
        // Some are kept aside for what gives blocks back, and a few for trees.
        let kept = MOST / self.owners[0].unit / 50 + 8;
        assert!(
            left <= kept,
            "{left} clusters are left of a full file system"
        );
        self.assert_nothing_is_lost(&fs, &files);
        let files = self.all_at_once(files, |owner, file| {
            let file = owner.thin(&fs, file);
            owner.thin(&fs, file)
        });
        self.assert_nothing_is_lost(&fs, &files);
        drop(files);
        self.close_and_check(fs);
    }

    fn close_and_check(&self, fs: Fs) {
        let free = fs.statfs();
        fs.close().expect("a clean end");
        e2fsck_clean(self.image.path());
        let text = dumpe2fs(self.image.path());
        for (what, free) in [
            ("Free blocks:", free.blocks_free),
            ("Free inodes:", free.files_free),
        ] {
            let row = text.lines().find_map(|row| row.strip_prefix(what));
            assert_eq!(row.map(str::trim), Some(&*free.to_string()), "{what}");
        }
        let fs = open_fs(&self.image);
        for ((owner, file), name) in self.owners.iter().zip(open_files(&fs)).zip(NAMES) {
            owner.check(name, &file);
        }
        fs.close().expect("a clean end");
    }

    fn empty(&mut self) {
        let fs = open_fs(&self.image);
        let files = open_files(&fs);
        let files = self.all_at_once(files, |owner, file| {
            file.set_len(0).expect("an empty file");
            owner.content.clear();
            file
        });
        fs.sync().expect("a sync");
        let free = fs.statfs();
        let counts = (free.blocks_free, free.files_free);
        assert_eq!(counts, (self.free, self.files_free));
        drop(files);
        self.close_and_check(fs);
    }
}

#[test]
fn four_threads_that_fill_and_thin_leave_exact_counts() {
    for (name, builder) in variants() {
        for seed in seeds(1) {
            println!("{name}, seed {seed}");
            let mut bed = Bed::new(builder.clone(), seed);
            for _ in 0..3 {
                bed.round();
            }
            bed.empty();
        }
    }
}

#[test]
fn hole_in_a_full_file_system_is_punched() {
    let builder = dioxide_testkit::Image::builder().size(MOST);
    let image = image_with(builder.block_size(1024).args(&["-m", "0"]), &NAMES);
    let fs = open_fs(&image);
    let file = &open_files(&fs)[0];
    let block = u64::from(fs.block_size());
    while file.write_at(&vec![1; 64 << 10], file.len()).is_ok() {}
    while file.write_at(&vec![1; block as usize], file.len()).is_ok() {}
    // Blocks that are freed are not free before the commit, so trees grow while nothing is.
    for hole in 0..400 {
        let at = 2 * hole * block;
        file.allocate(FallocateMode::PunchHole, at, block)
            .unwrap_or_else(|error| panic!("hole {hole}: {error}"));
    }
}

/// What is freed may be on its way to the device as metadata: it would come after the data of who has it next.
#[test]
fn freed_blocks_are_had_again_only_after_a_commit() {
    for features in ["has_journal", "^has_journal"] {
        let image = Image::builder().size(8 << 20).block_size(1024);
        let image = image.features(features).build();
        let options = MountOptions::new().commit_interval(Duration::from_secs(3600));
        let fs = Fs::open(image.path(), &options).expect("it opens");
        let new = OpenOptions::new().write(true).create_new(true);
        let file = new.open(&fs, "/first").expect("room for a name");
        let chunk = [1; 64 << 10];
        let mut at = 0;
        while let Ok(wrote @ 1..) = file.write_at(&chunk, at) {
            at += wrote as u64;
        }
        drop(file);
        let next = new.open(&fs, "/next").expect("room for a name");
        fs.sync().expect("a sync");
        fs.remove_file("/first").expect("it is there");
        let before = fs.stats().journal_commits;
        next.write_at(&chunk, 0).expect("room");
        let commits = fs.stats().journal_commits - before;
        assert_eq!(commits, 1, "{features}");
        drop(next);
        fs.close().expect("a close");
        e2fsck_clean(image.path());
    }
}
