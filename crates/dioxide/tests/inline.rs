//! Files whose content lies in their inodes: compared with a model, with the kernel's ext4, and across power
//! cuts.

use dioxide::{Direction, FallocateMode, Fs, MountOptions, OpenOptions};
use dioxide_testkit::{Image, ImageBuilder, debugfs_query, e2fsck_clean, need_root};
use std::fs;

const FILES: usize = 40;

fn shapes() -> [(&'static str, ImageBuilder); 5] {
    let image = |features: &str, inode, block| {
        let builder = Image::builder().features(features);
        builder.inode_size(inode).block_size(block)
    };
    [
        ("256", image("inline_data", 256, 4096)),
        ("1024", image("inline_data", 1024, 1024)),
        ("no sums", image("inline_data,^metadata_csum", 256, 1024)),
        ("indirect", image("inline_data,^extent,^64bit", 512, 1024)),
        ("bigalloc", image("inline_data,bigalloc", 256, 4096)),
    ]
}

/// Files `f0` and so on, of different lengths, that the kernel made in their inodes.
fn with_files(builder: ImageBuilder) -> (Image, Vec<Vec<u8>>) {
    let image = builder.build();
    let content = |number: usize| vec![number as u8 + 1; number * 4];
    let contents: Vec<_> = (0..FILES).map(content).collect();
    image.populate_with_kernel(|root| {
        for (number, content) in contents.iter().enumerate() {
            fs::write(root.join(format!("f{number}")), content).expect("room");
        }
    });
    (image, contents)
}

fn open(image: &Image) -> Fs {
    Fs::open(image.path(), &MountOptions::new()).expect("it opens")
}

fn open_file(fs: &Fs, number: usize) -> dioxide::File {
    let options = OpenOptions::new().read(true).write(true).direct(false);
    options.open(fs, format!("f{number}")).expect("it exists")
}

fn is_inline(fs: &Fs, number: usize) -> bool {
    let metadata = fs.metadata(format!("f{number}")).expect("it exists");
    metadata.flags & 0x1000_0000 != 0
}

fn read_all(fs: &Fs, number: usize) -> Vec<u8> {
    let file = open_file(fs, number);
    let mut all = vec![0xEE; file.len() as usize + 10];
    let len = file.read_at(&mut all, 0).expect("readable");
    all.truncate(len);
    all
}

/// As of one whose content lies in blocks: who keeps the times sets them afterwards.
#[test]
fn write_that_leaves_the_times_leaves_those_of_inline_content() {
    let image = Image::builder().features("inline_data").build();
    let fs = open(&image);
    let options = OpenOptions::new().read(true).write(true);
    let file = options.clone().create(true).open(&fs, "f").expect("room");
    let kept = options.keep_times(true).open(&fs, "f").expect("it exists");
    let times = || {
        let metadata = file.metadata();
        (metadata.mtime, metadata.ctime)
    };
    let before = times();
    std::thread::sleep(std::time::Duration::from_millis(20));
    for len in [1, 100, 1000] {
        kept.write_at(&vec![1; len], 0).expect("room");
        assert_eq!(times(), before, "{len}");
    }
    file.write_at(&[2], 0).expect("room");
    assert!(times() > before);
    drop((file, kept));
    fs.close().expect("clean");
    e2fsck_clean(image.path());
}

/// xorshift64*.
struct Rng(u64);

impl Rng {
    fn below(&mut self, most: u64) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        ((self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % most) as usize
    }
}

/// One random change of a file and of its model.
fn step(rng: &mut Rng, fs: &Fs, number: usize, model: &mut Vec<u8>) -> String {
    let file = open_file(fs, number);
    let far = if rng.below(30) == 0 {
        3000
    } else {
        [30, 50, 70][rng.below(3)]
    };
    let (at, len) = (rng.below(far), 1 + rng.below(far));
    match rng.below(6) {
        0 => {
            file.set_len(at as u64).expect("room");
            model.resize(at, 0);
            format!("{number}: set_len {at}")
        }
        1 if rng.below(4) == 0 => {
            // Files without extents refuse; their content has left the inode all the same.
            let allocated = file.allocate(FallocateMode::Allocate, at as u64, len as u64);
            if allocated.is_ok() {
                model.resize(model.len().max(at + len), 0);
            }
            assert!(!is_inline(fs, number));
            format!("{number}: allocate {at}+{len} {allocated:?}")
        }
        2 => {
            let mut part = vec![0xEE; len];
            let got = file.read_at(&mut part, at as u64).expect("readable");
            let expected = &model[at.min(model.len())..(at + len).min(model.len())];
            assert_eq!(&part[..got], expected);
            format!("{number}: read {at}+{len}")
        }
        _ => {
            let data = vec![1 + rng.below(250) as u8; len];
            assert_eq!(file.write_at(&data, at as u64).expect("room"), len);
            model.resize(model.len().max(at + len), 0);
            model[at..at + len].copy_from_slice(&data);
            format!("{number}: write {at}+{len}")
        }
    }
}

#[test]
fn random_changes_read_back_here_and_by_the_kernel() {
    need_root!();
    for (seed, (shape, builder)) in shapes().into_iter().enumerate() {
        let (image, mut model) = with_files(builder);
        let mut fs = open(&image);
        let mut rng = Rng(0x1D + seed as u64);
        let mut told = Vec::new();
        for round in 0..400 {
            let number = rng.below(FILES as u64);
            told.push(step(&mut rng, &fs, number, &mut model[number]));
            assert!(read_all(&fs, number) == model[number], "{shape}: {told:#?}");
            if round % 100 == 99 {
                fs.close().expect("a clean end");
                e2fsck_clean(image.path());
                fs = open(&image);
            }
        }
        let inline = (0..FILES).filter(|&number| is_inline(&fs, number)).count();
        assert!(inline > 0, "{shape}: all have left their inodes");
        assert!(inline < FILES, "{shape}: none has left its inode");
        fs.close().expect("a clean end");
        e2fsck_clean(image.path());
        image.populate_with_kernel(|root| {
            for (number, content) in model.iter().enumerate() {
                let path = root.join(format!("f{number}"));
                assert!(
                    fs::read(&path).expect("readable") == *content,
                    "{shape}: f{number}"
                );
                // It goes on from there.
                let mut more = content.clone();
                more.extend([5; 40]);
                fs::write(&path, &more).expect("room");
                assert!(
                    fs::read(&path).expect("readable") == more,
                    "{shape}: f{number}"
                );
            }
        });
        e2fsck_clean(image.path());
    }
}

#[test]
fn content_stays_in_the_inode_while_it_fits_and_leaves_it_once() {
    let (_, builder) = shapes().into_iter().next().expect("shapes");
    let tree = tempfile::tempdir().expect("a folder");
    fs::write(tree.path().join("f0"), b"small").expect("room");
    let image = builder.source(tree.path()).build();
    let fs = open(&image);
    let file = open_file(&fs, 0);
    assert_eq!(file.write_at(b"more", 100).expect("room"), 4);
    assert!(is_inline(&fs, 0));
    assert_eq!(fs.metadata("f0").expect("it exists").blocks, 1);
    assert_eq!(file.seek_data(50).expect("inside"), Some(50));
    assert_eq!(file.seek_hole(50).expect("inside"), Some(104));
    let told = file.explain(Direction::Write, 0, 10, None).expect("told");
    let told = format!("{told:?}");
    assert!(told.contains("into the inode"), "{told}");
    assert_eq!(file.write_at(b"far", 200).expect("room"), 3);
    assert!(!is_inline(&fs, 0));
    file.set_len(4).expect("cut");
    assert!(!is_inline(&fs, 0));
    assert_eq!(read_all(&fs, 0), b"smal");
    drop(file);
    fs.close().expect("a clean end");
    e2fsck_clean(image.path());
    let stat = debugfs_query(image.path(), "stat f0");
    assert!(
        stat.contains("EXTENTS") && !stat.contains("system.data"),
        "{stat}"
    );
}

/// As those that the kernel makes.
#[test]
fn new_file_is_inline_while_it_has_room() {
    need_root!();
    for (shape, builder) in shapes() {
        let (image, _) = with_files(builder);
        let fs = open(&image);
        let options = OpenOptions::new().write(true).create_new(true);
        let lens = [0, 1, 60, 61, 90, 3000, 20_000];
        for len in lens {
            let file = options.open(&fs, format!("n{len}")).expect("room");
            assert_eq!(file.write_at(&vec![7; len], 0).expect("room"), len);
            let is_inline = file.metadata().flags & 0x1000_0000 != 0;
            assert!(is_inline || len > 60, "{shape}: {len}");
            assert!(!is_inline || len < 1024, "{shape}: {len}");
        }
        let direct = options.direct(true).open(&fs, "direct").expect("room");
        direct.write_at(&vec![7; 8192], 4096).expect("room");
        drop(direct);
        fs.close().expect("a clean end");
        e2fsck_clean(image.path());
        image.populate_with_kernel(|root| {
            for len in lens {
                let read = fs::read(root.join(format!("n{len}"))).expect("readable");
                assert_eq!(read, vec![7; len], "{shape}");
            }
            let direct = fs::read(root.join("direct")).expect("readable");
            assert_eq!(direct, [vec![0; 4096], vec![7; 8192]].concat(), "{shape}");
        });
        e2fsck_clean(image.path());
    }
}

// What was synced is there after a crash, in the inode or out of it.
#[test]
fn synced_content_is_there_in_what_a_crash_leaves() {
    need_root!();
    for (shape, builder) in shapes() {
        let (image, _) = with_files(builder);
        let fs = open(&image);
        for (number, len) in [(3, 50), (4, 70), (5, 2000)] {
            let file = open_file(&fs, number);
            file.write_at(&vec![9; len], 0).expect("room");
            file.sync_data().expect("a sync");
        }
        let crashed = image.copy();
        drop(fs);
        let fs = open(&crashed);
        for (number, len) in [(3, 50), (4, 70), (5, 2000)] {
            assert_eq!(
                read_all(&fs, number)[..len],
                vec![9; len],
                "{shape}: {number}"
            );
        }
        fs.close().expect("a clean end");
        e2fsck_clean(crashed.path());
    }
}
