//! A file system of 16 TiB costs no more than a small one; what is not known of one when it is opened is kept safe all the same.

use super::tally::Tally;
use dioxide::{File, Fs, MountOptions, NewFile, OpenOptions, XattrMode};
use dioxide_testkit::memory;
use dioxide_testkit::{Image, debugfs, debugfs_query, e2fsck_clean};
use std::fs;

/// Most bytes that opening it and finding a file may read: a quarter of the table of its groups. How long it takes is what
/// `dioxide bench rows --row 16` tells, on a quiet machine.
const READ_MAX: u64 = 2 << 20;
const MEMORY_MAX: usize = 16 << 20;

#[test]
fn image_of_16_tib_opens_without_reading_its_whole_table_of_groups() {
    // 131,072 groups of 4 KiB blocks, with few inodes, or the image would need gigabytes.
    let args = ["-O", "^has_journal", "-i", "67108864"];
    let image = Image::builder().size(16 << 40).args(&args).build();
    debugfs(image.path(), &["write /bin/true file"]);
    let device = Tally::over(image.path());
    let look = || {
        let fs = Fs::open_device(device.clone(), &MountOptions::new()).expect("it opens");
        assert_eq!(fs.read_only(), None, "{:?}", fs.warnings());
        let file = OpenOptions::new()
            .read(true)
            .open(&fs, "/file")
            .expect("a file");
        assert!(file.map(0, 1).expect("a mapping").pblk.0 > 0);
    };
    let mut read = 0;
    let peak = memory::peak_of(|| [read, _] = device.of(look));
    println!("16 TiB: opened with {read} bytes read, {peak} bytes of memory");
    assert!(read <= READ_MAX, "{read} bytes read");
    assert!(peak <= MEMORY_MAX, "{peak} bytes of memory");
}

fn create(fs: &Fs, path: &str) -> File {
    let options = OpenOptions::new().read(true).write(true).direct(false);
    options.create_new(true).open(fs, path).expect("room")
}

/// Groups whose bitmaps and inode tables lie in the first of them.
const FLEX_GROUPS: u64 = 16;
const INODES: u64 = 16;
const TABLE: u64 = INODES / 4;

/// 16,400 groups: more than are all looked at when it is opened.
fn many_groups() -> Image {
    let (groups, inodes) = (16400, (16400 * INODES).to_string());
    let features = "^has_journal,^resize_inode,^metadata_csum,uninit_bg";
    Image::builder()
        .size(groups * 8192 * 1024)
        .block_size(1024)
        .features(features)
        .args(&["-N", &inodes])
        .build()
}

/// The first block of a group's inode table.
fn table_of(image: &Image, group: u64) -> u64 {
    let said = debugfs_query(image.path(), &format!("imap <{}>", group * INODES + 1));
    let place = said.split("located at block ").nth(1).expect("its block");
    let block = place.split(',').next().expect("a number");
    block.parse().expect("a number")
}

#[test]
fn extent_onto_the_inode_table_of_another_group_is_not_freed() {
    let image = many_groups();
    let host = tempfile::NamedTempFile::new().expect("a temporary file");
    fs::write(host.path(), [7; 1024]).expect("a write");
    debugfs(
        image.path(),
        &[format!("write {} f", host.path().display())],
    );
    let table = table_of(&image, 5);
    debugfs(image.path(), &[format!("sif f block[5] {table}")]);
    let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
    let refused = fs.remove_file("/f").expect_err("damage");
    assert_eq!(refused.errno(), libc::EUCLEAN, "{refused}");
    assert!(refused.to_string().contains("are metadata"), "{refused}");
    drop(fs);
    let said = debugfs_query(image.path(), &format!("testb {table}"));
    assert!(said.contains("marked in use"), "{said}");
}

#[test]
fn inode_tables_of_other_groups_that_a_bitmap_has_as_free_are_not_allocated() {
    let image = many_groups();
    let (first, len) = (table_of(&image, 1), (FLEX_GROUPS - 1) * TABLE);
    assert_eq!(table_of(&image, FLEX_GROUPS - 1) + TABLE, first + len);
    // As many blocks are free as before.
    let commands = [format!("freeb {first} {len}"), format!("setb 8000 {len}")];
    debugfs(image.path(), &commands);
    let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
    let file = create(&fs, "/new");
    let bytes = vec![7; len as usize * 1024];
    file.write_at(&bytes, 0).expect("room in another group");
    let mapped = file.map(0, 1).expect("a mapping");
    assert!(!(first..first + len).contains(&mapped.pblk.0), "{mapped:?}");
    drop(file);
    fs.close().expect("a clean end");
}

/// 20 TiB of 4 KiB blocks, and no file has extents: `mke2fs` makes no such file system.
fn without_extents() -> Image {
    let features = "^has_journal,^resize_inode,^orphan_file,sparse_super2,ea_inode";
    let image = Image::builder().size(20 << 40).features(features);
    let image = image.args(&["-i", "67108864"]);
    let image = image.extended("num_backup_sb=0").build();
    let mut commands = Vec::new();
    for (dir, blocks) in [("/", 1), ("/lost+found", 4)] {
        let pointer = |at: u64| match at < blocks {
            true => debugfs_query(image.path(), &format!("bmap {dir} {at}")),
            false => "0".into(),
        };
        commands.push(format!("sif {dir} flags 0"));
        // What an extent tree with one extent had.
        let pointers = (0..6).map(pointer).enumerate();
        commands.extend(pointers.map(|(at, to)| format!("sif {dir} block[{at}] {}", to.trim())));
    }
    commands.push("feature -extent inline_data".into());
    debugfs(image.path(), &commands);
    image
}

/// A directory of a group whose blocks have numbers of more than 32 bits, where it would have its own.
fn far_directory(fs: &Fs) -> String {
    let sb = fs.superblock();
    let groups = (1u64 << 32) / u64::from(sb.blocks_per_group());
    let first = groups * u64::from(sb.inodes_per_group());
    let is_far = |path: &String| {
        let made = fs.create_dir(path, &NewFile::new(0o755));
        made.expect("room in lower groups");
        u64::from(fs.metadata(path).expect("it was made").ino) > first
    };
    let mut paths = (0..200).map(|number| format!("/dir{number}"));
    paths.find(is_far).expect("directories spread")
}

fn read_back(file: &File, at: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    assert_eq!(file.read_at(&mut bytes, at).expect("it reads"), len);
    bytes
}

#[test]
fn files_without_extents_have_the_first_blocks_wherever_their_inodes_are() {
    let image = without_extents();
    let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
    assert_eq!(fs.read_only(), None, "{:?}", fs.warnings());
    let dir = far_directory(&fs);
    let data = vec![7; 1 << 20];
    let file = create(&fs, &format!("{dir}/file"));
    // In the inode, in a block, by pointers in blocks.
    file.write_at(&[1; 20], 0).expect("room in the inode");
    for at in [0, 100 << 20, 8u64 << 30] {
        file.write_at(&data, at).expect("room in lower groups");
        assert!(read_back(&file, at, data.len()) == data);
        let mapped = file.map((at >> 12) as u32, 1).expect("a mapping");
        assert!(mapped.pblk.0 < 1 << 32, "{mapped:?}");
    }
    let value = vec![9; 10_000];
    file.set_xattr("user.long", &value, XattrMode::Set)
        .expect("room for a value");
    file.set_xattr("user.short", &[8; 2000], XattrMode::Set)
        .expect("room for attributes");
    fs.symlink("t".repeat(900), format!("{dir}/link"), &NewFile::new(0o777))
        .expect("room for a target");
    for number in 0..100 {
        drop(create(&fs, &format!("{dir}/{number}{}", "n".repeat(200))));
    }
    drop(file);
    fs.close().expect("a clean end");
    e2fsck_clean(image.path());
}
