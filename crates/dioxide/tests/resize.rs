//! Resizing, compared with `resize2fs`, and judged by `e2fsck` and the kernel.

#[path = "resize/grow.rs"]
mod grow;
#[path = "resize/journals.rs"]
mod journals;
#[path = "resize/relocate.rs"]
mod relocate;
#[path = "resize/shrink.rs"]
mod shrink;
#[path = "resize/tree.rs"]
mod tree;
#[path = "namespace/walk.rs"]
mod walk;

use dioxide::format::superblock::{SUPERBLOCK_OFFSET, SuperBlock, SuperBlockDisk};
use dioxide_testkit::memory::Counting;
use dioxide_testkit::{Image, ImageBuilder, Mount, need_root};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const M: u64 = 1 << 20;
const PROGRAMS: &str = "/usr/sbin:/sbin:/usr/bin:/bin";

/// An image of `size` with these arguments for `mke2fs`, and some files.
fn image(size: u64, block: u32, args: &str) -> Image {
    let words: Vec<&str> = args.split_whitespace().collect();
    let image = filled(match words[..] {
        ["-t", fs_type] => builder(size, block).fs_type(fs_type),
        _ => builder(size, block).args(&words),
    });
    if args.contains("quota") {
        // What debugfs wrote is not counted.
        let mut e2fsck = Command::new("e2fsck");
        let e2fsck = e2fsck.env("PATH", PROGRAMS).arg("-fy").arg(image.path());
        e2fsck.output().expect("e2fsck");
    }
    image
}

fn builder(size: u64, block: u32) -> ImageBuilder {
    Image::builder().size(size).block_size(block)
}

/// An image with some files.
fn filled(builder: ImageBuilder) -> Image {
    let image = builder.build();
    let mut script = vec!["mkdir d".to_owned()];
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), vec![7; 100_000]).expect("its content");
    for n in 0..20 {
        script.push(format!("write {} d/f{n}", file.path().display()));
    }
    dioxide_testkit::debugfs(image.path(), &script);
    image
}

/// The superblock, once some of its fields are others.
fn change_superblock(path: &Path, change: impl FnOnce(&mut SuperBlockDisk)) -> SuperBlock {
    let file = std::fs::File::options().read(true).write(true).open(path);
    let file = file.expect("the image");
    let mut bytes = [0; SuperBlock::SIZE];
    file.read_exact_at(&mut bytes, SUPERBLOCK_OFFSET)
        .expect("it reads");
    let mut sb = SuperBlock::parse(&bytes).expect("it is whole");
    change(sb.disk_mut());
    sb.update_checksum();
    file.write_all_at(&sb.encode(), SUPERBLOCK_OFFSET)
        .expect("room");
    sb
}

fn set_len(path: &Path, size: u64) {
    let file = std::fs::OpenOptions::new().write(true).open(path);
    file.and_then(|file| file.set_len(size)).expect("the size");
}

fn resize2fs(path: &Path, size: u64) {
    let output = Command::new("resize2fs")
        .env("PATH", PROGRAMS)
        .arg("-f")
        .arg(path)
        .arg(format!("{}K", size / 1024))
        .output()
        .expect("resize2fs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}

/// What `dumpe2fs` says, but for times, counts of writes and checksums.
fn geometry(path: &Path) -> Vec<String> {
    let left_out = ["Last write", "Lifetime", "Checksum:", "Mount count"];
    let text = dioxide_testkit::dumpe2fs(path);
    let lines = text.lines().filter(|line| {
        !left_out.iter().any(|words| line.starts_with(words)) && !line.contains("mmp_")
    });
    let without_csum = |line: &str| match line.find("csum 0x") {
        Some(at) => line[..at].to_owned(),
        None => line.to_owned(),
    };
    lines.map(without_csum).collect()
}

fn kernel_reads(image: &Image) {
    need_root!();
    let mount = Mount::ext4(image.path(), "");
    for n in 0..20 {
        let bytes = std::fs::read(mount.path().join(format!("d/f{n}"))).expect("it reads");
        assert!(bytes == [7; 100_000]);
    }
    std::fs::write(mount.path().join("new"), [1; 100_000]).expect("it writes");
    mount.unmount();
}
