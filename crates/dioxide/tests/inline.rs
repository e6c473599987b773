//! Files whose content lies in their inodes: compared with a model, with the kernel's ext4, and across power
//! cuts.

use dioxide::block::Buf;
use dioxide::{Direction, FallocateMode, File, Fs, MountOptions, OpenOptions, QueueOptions};
use dioxide_testkit::{
    Image, ImageBuilder, debugfs, debugfs_query, e2fsck_clean, have_root, need_root,
};
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

/// As any other block that a file without the right wants.
#[test]
fn content_that_moves_out_by_a_new_size_leaves_the_reserved_blocks() {
    let builder = Image::builder().size(8 << 20).features("inline_data");
    let (image, _) = with_files(builder.args(&["-m", "20"]));
    let fs = open(&image);
    let filler = OpenOptions::new().write(true).create(true);
    let filler = filler.open(&fs, "filler").expect("an inode");
    let mut at = 0;
    while filler.write_at(&[1; 4096], at).is_ok() {
        at += 4096;
    }
    let file = open_file(&fs, 10);
    let error = file.set_len(4096).expect_err("what is left is reserved");
    assert_eq!(error.errno(), libc::ENOSPC);
    assert!(is_inline(&fs, 10));
    let may = OpenOptions::new().write(true).resource(true);
    let may = may.open(&fs, "f10").expect("it exists");
    may.set_len(4096).expect("it may have them");
    assert!(!is_inline(&fs, 10));
    drop((file, may, filler));
    fs.close().expect("a clean end");
    e2fsck_clean(image.path());
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

/// What a file's size says behind the bytes that the inode has room for, as older Linux leaves it after
/// `truncate` to more.
const LONG: usize = 1 << 20;

/// An image with `f0`, whose content lies in its inode and is shorter than its size; its content.
fn longer_than_its_inode(builder: ImageBuilder, len: usize) -> (Image, Vec<u8>) {
    let image = builder.build();
    let fs = open(&image);
    let mut content = vec![7; len];
    let options = OpenOptions::new().write(true).create_new(true);
    let file = options.open(&fs, "f0").expect("room");
    assert_eq!(file.write_at(&content, 0).expect("room"), len);
    assert!(is_inline(&fs, 0));
    drop(file);
    fs.close().expect("a clean end");
    debugfs(image.path(), &[format!("set_inode_field f0 size {LONG}")]);
    e2fsck_clean(image.path());
    content.resize(LONG, 0);
    (image, content)
}

fn read_by_kernel(image: &Image) -> Vec<u8> {
    image.populate_with_kernel(|root| fs::read(root.join("f0")).expect("readable"))
}

#[test]
fn file_that_is_longer_than_its_inode_reads_as_zeros_behind() {
    for (shape, builder) in shapes() {
        for len in [0, 30, 60, 90] {
            let (image, content) = longer_than_its_inode(builder.clone(), len);
            let fs = open(&image);
            assert!(read_all(&fs, 0) == content, "{shape}: {len}");
            let file = open_file(&fs, 0);
            for at in [0, 20, 59, 100, 4096, LONG - 10, LONG, LONG + 1] {
                let mut part = [0xEE; 512];
                let got = file.read_at(&mut part, at as u64).expect("readable");
                let expected = &content[at.min(LONG)..(at + part.len()).min(LONG)];
                assert_eq!(&part[..got], expected, "{shape}: {len}, {at}");
            }
            let mut queue = fs.queue(&QueueOptions::default()).expect("a queue");
            let mut done = Vec::new();
            for at in [0, 4096, LONG - 512] {
                let mut buf = Buf::zeroed(4096);
                buf.fill(0xEE);
                queue.read(&file, at as u64, buf, 0).expect("room");
                queue.wait(1, &mut done).expect("it works");
                let completion = done.pop().expect("a completion");
                let got = completion.result.expect("readable");
                let expected = &content[at..(at + 4096).min(LONG)];
                assert_eq!(&completion.buf[..got], expected, "{shape}: {len}, {at}");
            }
            let room = len.max(60) as u64;
            let seek = |at| (file.seek_data(at).unwrap(), file.seek_hole(at).unwrap());
            assert_eq!(seek(0), (Some(0), Some(room)));
            assert_eq!(seek(room - 1), (Some(room - 1), Some(room)));
            assert_eq!(seek(room), (None, Some(room)));
            assert_eq!(seek(5000), (None, Some(5000)));
            assert_eq!(seek(LONG as u64), (None, None));
            drop((queue, file));
            assert!(is_inline(&fs, 0));
            fs.close().expect("a clean end");
            if have_root() {
                assert!(read_by_kernel(&image) == content, "{shape}: {len}");
            }
        }
    }
}

/// What has content in its inode gets extents once it needs blocks.
#[test]
fn new_file_may_be_as_large_as_one_with_extents() {
    let [_, (_, extents), _, (_, indirect), _] = shapes();
    // More than pointers to blocks of 1 KiB reach.
    let large = 20 << 30;
    let create = |fs: &Fs, name| {
        let options = OpenOptions::new();
        let options = options.read(true).write(true).create(true).direct(false);
        options.open(fs, name).expect("room")
    };
    let image = extents.build();
    let fs = open(&image);
    create(&fs, "cut")
        .set_len(large)
        .expect("no more than a size");
    for (name, places) in [("new", &[large - 10][..]), ("kept", &[5, large])] {
        let file = create(&fs, name);
        for at in places {
            assert_eq!(file.write_at(&[7; 30], *at).expect("room"), 30);
        }
    }
    let error = create(&fs, "over")
        .set_len(1 << 50)
        .expect_err("no file is so long");
    assert!(error.to_string().contains("larger blocks"), "{error}");
    fs.close().expect("a clean end");
    e2fsck_clean(image.path());

    let image = indirect.build();
    let fs = open(&image);
    let error = create(&fs, "cut")
        .set_len(large)
        .expect_err("pointers end before");
    assert_eq!(error.errno(), libc::EFBIG, "{error}");
    fs.close().expect("a clean end");
    e2fsck_clean(image.path());
}

#[test]
fn file_that_is_longer_than_its_inode_changes_as_any() {
    type Change = fn(&File, &mut Vec<u8>);
    fn write(file: &File, content: &mut Vec<u8>, at: usize, len: usize) {
        assert_eq!(file.write_at(&vec![9; len], at as u64).expect("room"), len);
        content.resize(content.len().max(at + len), 0);
        content[at..at + len].fill(9);
    }
    fn set_len(file: &File, content: &mut Vec<u8>, len: usize) {
        file.set_len(len as u64).expect("room");
        content.resize(len, 0);
    }
    let changes: [(&str, Change); 12] = [
        ("inside", |file, content| write(file, content, 5, 20)),
        ("across", |file, content| write(file, content, 50, 40)),
        ("behind", |file, content| write(file, content, 9000, 10)),
        ("far", |file, content| write(file, content, LONG - 5, 10)),
        ("beyond", |file, content| {
            write(file, content, LONG + 9000, 10)
        }),
        ("longer", |file, content| set_len(file, content, 2 * LONG)),
        ("as long", |file, content| set_len(file, content, LONG)),
        ("shorter", |file, content| set_len(file, content, 5000)),
        ("into the inode", |file, content| {
            set_len(file, content, 40);
            assert!(file.metadata().flags & 0x1000_0000 != 0);
            set_len(file, content, 60);
        }),
        ("empty", |file, content| {
            set_len(file, content, 0);
            write(file, content, 3, 3);
        }),
        ("punch", |file, content| {
            file.allocate(FallocateMode::PunchHole, 10, 10_000)
                .expect("room");
            content[10..10_010].fill(0);
        }),
        ("append", |file, content| {
            let end = content.len();
            write(file, content, end, 100);
        }),
    ];
    for (shape, builder) in shapes() {
        for (name, change) in changes {
            let (image, mut content) = longer_than_its_inode(builder.clone(), 90);
            let fs = open(&image);
            let file = open_file(&fs, 0);
            change(&file, &mut content);
            assert!(read_all(&fs, 0) == content, "{shape}: {name}");
            drop(file);
            fs.close().expect("a clean end");
            e2fsck_clean(image.path());
            let fs = open(&image);
            assert!(read_all(&fs, 0) == content, "{shape}: {name}");
            fs.close().expect("a clean end");
            if have_root() {
                assert!(read_by_kernel(&image) == content, "{shape}: {name}");
            }
            let fs = open(&image);
            fs.remove_file("f0").expect("it exists");
            fs.close().expect("a clean end");
            e2fsck_clean(image.path());
        }
    }
}
