//! Damage with an aim: one field at a time, by debugfs, and the error that must come of it.

use dioxide::{
    Error, ErrorPolicy, FallocateMode, Fs, MountOptions, NewFile, OpenOptions, RenameMode,
    XattrMode,
};
use dioxide_testkit::{
    Image, debugfs, debugfs_query, dumpe2fs, e2fsck_clean, e2fsck_consistent, memory,
};
use std::collections::HashSet;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// An image without checksums, so that what is set stays plausible, with the file `/f` of four
/// blocks, the directories `/d/e`, and the symlink `/l`.
fn image(features: &str) -> Image {
    let image = Image::builder()
        .size(8 << 20)
        .block_size(1024)
        .features(features)
        .build();
    let host = tempfile::NamedTempFile::new().expect("a temporary file");
    fs::write(host.path(), [7; 4096]).expect("a write");
    let write = format!("write {} f", host.path().display());
    debugfs(
        image.path(),
        &[&write, "mkdir d", "mkdir d/e", "symlink l target"],
    );
    image
}

fn extents() -> Image {
    image("^metadata_csum,^has_journal")
}

fn open(image: &Image) -> Fs {
    Fs::open(image.path(), &MountOptions::new()).expect("it opens")
}

/// What reading `/f` fails with after `commands`.
fn error_of_reading(image: &Image, commands: &[&str]) -> Error {
    debugfs(image.path(), commands);
    let fs = open(image);
    let file = match OpenOptions::new().read(true).open(&fs, "/f") {
        Ok(file) => file,
        Err(error) => return error,
    };
    file.read_at(&mut [0; 4096], 0)
        .expect_err("the map is damaged")
}

#[track_caller]
fn assert_corrupt(error: &Error, structure: &str, says: &str) {
    assert_eq!(error.errno(), libc::EUCLEAN, "{error}");
    let text = error.to_string();
    assert!(
        matches!(error, Error::Corrupt { structure: found, .. } if *found == structure),
        "{text}"
    );
    assert!(text.contains(says), "{text}");
}

// `/f` has two extents of two blocks. Words of i_block: 0 magic and entries, 1 max and depth, 2
// generation; then for each ee_block, ee_len and ee_start_hi, ee_start_lo.

#[test]
fn extent_root_with_wrong_magic_is_corrupt() {
    assert_corrupt(
        &error_of_reading(&extents(), &["sif f block[0] 0x1f30b"]),
        "extent node",
        "eh_magic",
    );
}

#[test]
fn extent_tree_too_deep_is_corrupt() {
    assert_corrupt(
        &error_of_reading(&extents(), &["sif f block[1] 0x90004"]),
        "extent node",
        "eh_depth",
    );
}

#[test]
fn extent_with_more_entries_than_room_is_corrupt() {
    assert_corrupt(
        &error_of_reading(&extents(), &["sif f block[0] 0x5f30a"]),
        "extent node",
        "eh_entries",
    );
}

#[test]
fn extent_outside_the_file_system_is_corrupt() {
    assert_corrupt(
        &error_of_reading(&extents(), &["sif f block[5] 8191"]),
        "extent node",
        "ee_start",
    );
}

#[test]
fn extent_onto_metadata_is_corrupt() {
    for block in [1, 2] {
        let error = error_of_reading(&extents(), &[&format!("sif f block[5] {block}")]);
        let says = if block == 1 { "ee_start" } else { "metadata" };
        let structure = if block == 1 {
            "extent node"
        } else {
            "block map"
        };
        assert_corrupt(&error, structure, says);
    }
    let image = extents();
    let table = {
        let said = debugfs_query(image.path(), "imap <11>");
        let word = said
            .split("located at block ")
            .nth(1)
            .and_then(|rest| rest.split(',').next());
        word.and_then(|word| word.parse::<u64>().ok())
            .expect("imap tells a block")
    };
    let error = error_of_reading(&image, &[&format!("sif f block[5] {table}")]);
    assert_corrupt(&error, "block map", "metadata");
}

#[test]
fn extent_onto_the_journal_is_corrupt() {
    let image = image("^metadata_csum");
    let said = debugfs_query(image.path(), "bmap <8> 5");
    let error = error_of_reading(&image, &[&format!("sif f block[5] {}", said.trim())]);
    assert_corrupt(&error, "block map", "metadata");
}

/// With clusters, `/f` of so many blocks, which pointers lead to.
fn pointers_with_clusters(blocks: usize) -> Image {
    let image = Image::builder().size(64 << 20).block_size(4096);
    let image = image.features("bigalloc,^metadata_csum");
    let image = image.args(&["-C", "16384"]).build();
    let host = tempfile::NamedTempFile::new().expect("a temporary file");
    fs::write(host.path(), vec![7; blocks * 4096]).expect("a write");
    debugfs(
        image.path(),
        &[format!("write {} f", host.path().display())],
    );
    let places = debugfs_query(image.path(), "blocks f");
    let places: Vec<&str> = places.split_whitespace().collect();
    assert_eq!(places.len(), blocks);
    let mut requests = vec!["sif f flags 0".to_owned()];
    for index in 0..12 {
        let place = places.get(index).unwrap_or(&"0");
        requests.push(format!("sif f block[{index}] {place}"));
    }
    debugfs(image.path(), &requests);
    image
}

#[test]
fn pointers_with_clusters_are_read_and_not_changed() {
    type Change = fn(&dioxide::File) -> Result<(), Error>;
    let changes: [(usize, Change); 2] = [
        (1, |file| file.write_at(&[1; 16384], 65536).map(drop)),
        (4, |file| file.allocate(FallocateMode::PunchHole, 0, 4096)),
    ];
    for (blocks, change) in changes {
        let image = pointers_with_clusters(blocks);
        let before = dumpe2fs(image.path());
        let fs = open(&image);
        let file = OpenOptions::new().read(true).write(true).open(&fs, "/f");
        let file = file.expect("Linux opens it");
        let mut read = vec![0; blocks * 4096];
        assert_eq!(file.read_at(&mut read, 0).expect("it is read"), read.len());
        assert!(read.iter().all(|&byte| byte == 7));
        let error = change(&file).expect_err("its map is not changed");
        assert_only_read(&error);
        assert_only_read(&file.set_len(0).expect_err("nor is it cut off"));
        assert_eq!(file.len(), read.len() as u64);
        drop(file);
        let error = fs.remove_file("/f").expect_err("nor is it freed");
        assert_only_read(&error);
        fs.close().expect("nothing is wrong");
        let free = |text: &str| {
            let rows = text.lines().filter(|row| row.contains("Free blocks:"));
            rows.map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(free(&before), free(&dumpe2fs(image.path())));
    }
}

#[test]
fn orphan_of_pointers_with_clusters_stays_and_others_go() {
    let image = pointers_with_clusters(4);
    let orphan = |name: &str, next: &str| {
        [
            format!("sif {name} links_count 0"),
            format!("sif {name} dtime {next}"),
            format!("unlink {name}"),
        ]
    };
    debugfs(image.path(), &["write /dev/null g"]);
    let number = |name| {
        let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
        fs.metadata(name).expect("it is there").ino.to_string()
    };
    let (f, g) = (number("/f"), number("/g"));
    debugfs(image.path(), &orphan("f", &g));
    debugfs(image.path(), &orphan("g", "0"));
    debugfs(image.path(), &[format!("ssv last_orphan {f}")]);
    let fs = open(&image);
    assert_eq!(fs.read_only(), None, "{:?}", fs.warnings());
    let told = fs.warnings().join("; ");
    assert!(told.contains("1 orphans were truncated or freed"), "{told}");
    assert!(told.contains("1 orphans can only be read"), "{told}");
    fs.create_dir("/d", &NewFile::new(0o755)).expect("room");
    fs.close().expect("nothing is wrong");
    let left = dumpe2fs(image.path());
    let left = left
        .lines()
        .find(|row| row.starts_with("First orphan inode"));
    assert!(
        left.is_some_and(|row| row.ends_with(&format!(" {f}"))),
        "{left:?}"
    );
}

#[track_caller]
fn assert_only_read(error: &Error) {
    assert_eq!(error.errno(), libc::EUCLEAN, "{error}");
    assert!(error.to_string().contains("bigalloc"), "{error}");
}

/// As e2fsck makes `/lost+found` anew.
#[test]
fn directory_of_pointers_with_clusters_is_read_and_not_changed() {
    let image = Image::builder().size(64 << 20).block_size(4096);
    let image = image.features("bigalloc,^orphan_file");
    let image = image.args(&["-C", "16384"]).build();
    debugfs(
        image.path(),
        &[
            "mkdir d",
            "mkdir e",
            "unlink d",
            "unlink e",
            "rmdir lost+found",
        ],
    );
    let e2fsck = |how| {
        let path = "/usr/sbin:/sbin:/usr/bin:/bin";
        let mut e2fsck = std::process::Command::new("e2fsck");
        let done = e2fsck.arg(how).arg(image.path()).env("PATH", path).output();
        let said = done.expect("e2fsprogs is installed").stdout;
        String::from_utf8(said).expect("text")
    };
    e2fsck("-fy");
    assert!(debugfs_query(image.path(), "stat lost+found").contains("Flags: 0x0"));
    let fs = open(&image);
    fs.read_dir("/lost+found").expect("Linux lists it");
    assert_eq!(fs.metadata("/lost+found").expect("it is there").nlink, 4);
    // What it has put there may be taken out.
    fs.rename("/lost+found/#12", "/d", RenameMode::Replace)
        .expect("a place outside");
    // A name that it has may be another's.
    fs.create_dir("/e", &NewFile::new(0o755)).expect("room");
    fs.rename("/e", "/lost+found/#13", RenameMode::Replace)
        .expect("it is empty");
    fs.remove_dir("/lost+found/#13").expect("it is empty");
    let error = fs.rename("/d", "/lost+found/d", RenameMode::Replace);
    assert_only_read(&error.expect_err("no"));
    let options = OpenOptions::new().write(true).create(true);
    let error = options.open(&fs, "/lost+found/f").expect_err("no");
    assert_only_read(&error);
    assert_only_read(&fs.remove_dir("/lost+found").expect_err("no"));
    assert_eq!(fs.damage().count, 0);
    options.open(&fs, "/f").expect("others are changed");
    fs.close().expect("nothing is wrong");
    assert!(!dumpe2fs(image.path()).contains("FS Error count"));
    // It does not like what it made.
    let said = e2fsck("-fn");
    assert_eq!(said.matches("? no").count(), 1, "{said}");
    assert!(said.contains("Inode 11 on bigalloc"), "{said}");
}

#[test]
fn clusters_without_extents_are_only_read() {
    let image = pointers_with_clusters(1);
    debugfs(image.path(), &["feature -extent"]);
    let fs = open(&image);
    let why = fs.read_only().expect("read-only");
    assert!(why.contains("bigalloc"), "{why}");
}

#[test]
fn extent_index_leading_to_itself_ends() {
    // An index of depth 1 whose child is itself such an index: not a leaf.
    let index = [
        "sif f block[0] 0x1f30a",
        "sif f block[1] 0x10004",
        "sif f block[4] 3000",
        "sif f block[5] 0",
    ];
    let image = extents();
    debugfs(image.path(), &index);
    let mut node = vec![0; 1024];
    let words = [0x1F30Au32, 0x1_0004, 0, 0, 3000, 0];
    node[..24].copy_from_slice(&words.map(u32::to_le_bytes).concat());
    let file = File::options()
        .write(true)
        .open(image.path())
        .expect("the image");
    file.write_all_at(&node, 3000 * 1024).expect("a write");
    assert_corrupt(&error_of_reading(&image, &[]), "extent node", "eh_depth");
}

#[test]
fn extents_that_overlap_are_corrupt() {
    // Blocks 0+2 and 1+2.
    assert_corrupt(
        &error_of_reading(&extents(), &["sif f block[6] 1"]),
        "extent node",
        "ee_block",
    );
}

#[test]
fn indirect_pointer_outside_or_onto_metadata_is_corrupt() {
    let indirect = || image("^extents,^64bit,^metadata_csum,^has_journal");
    assert_corrupt(
        &error_of_reading(&indirect(), &["sif f block[1] 999999"]),
        "indirect block",
        "999999",
    );
    assert_corrupt(
        &error_of_reading(&indirect(), &["sif f block[2] 3"]),
        "block map",
        "metadata",
    );
    let commands = ["sif f size 1000000", "sif f block[IND] 4"];
    let image = indirect();
    debugfs(image.path(), &commands);
    let file = OpenOptions::new()
        .read(true)
        .open(&open(&image), "/f")
        .expect("it opens");
    let error = file
        .read_at(&mut [0; 1024], 500 << 10)
        .expect_err("the map is damaged");
    assert_corrupt(&error, "block map", "metadata");
}

/// Little-endian words, each with where it goes in a block of 1 KiB.
fn put_words(image: &Image, block: u64, words: &[(u64, u32)]) {
    let file = File::options().write(true).open(image.path());
    let file = file.expect("the image");
    for (at, word) in words {
        file.write_all_at(&word.to_le_bytes(), block * 1024 + at)
            .expect("a write");
    }
}

// Its map would otherwise fill the memory, out of a few blocks of pointers.
#[test]
fn pointer_block_in_two_places_is_corrupt() {
    let image = image("^extent,^64bit,^metadata_csum,^has_journal");
    // Three blocks of pointers: of those to blocks of pointers to blocks of data, one leads twice to the same.
    let (top, middle, last, data) = (5000u32, 5001, 5002, 5003);
    put_words(&image, top.into(), &[(0, middle), (8 * 4, middle)]);
    put_words(&image, middle.into(), &[(0, last)]);
    put_words(&image, last.into(), &[(0, data)]);
    let first = 12 + 256 + 256 * 256u64;
    let requests = [
        format!("sif f block[TIND] {top}"),
        "sif f size 0x30000000".into(),
    ];
    debugfs(image.path(), &requests);
    let fs = open(&image);
    let file = OpenOptions::new().read(true).open(&fs, "/f");
    let file = file.expect("it opens");
    let mut buf = [0; 1024];
    // What one region of the map has is in one place there.
    file.read_at(&mut buf, first * 1024).expect("it is intact");
    let second = (first + 8 * 65536) * 1024;
    for _ in 0..2 {
        let error = file.read_at(&mut buf, second);
        let error = error.expect_err("it is twice there");
        let says = format!("block {first} and for block {} of", first + 8 * 65536);
        assert_corrupt(&error, "indirect block", &says);
    }

    // In one region, which is met by whatever needs the map.
    put_words(&image, top.into(), &[(8 * 4, 0)]);
    put_words(&image, middle.into(), &[(4, last)]);
    drop((file, fs));
    let fs = open(&image);
    let file = OpenOptions::new().read(true).open(&fs, "/f");
    let error = file
        .and_then(|file| file.seek_data(0))
        .expect_err("as well");
    assert_corrupt(&error, "indirect block", "a block of pointers for block");
}

#[test]
fn pointer_block_that_was_elsewhere_is_fine() {
    let image = Image::builder().size(64 << 20).block_size(4096);
    let image = image.features("^extent,^64bit,^metadata_csum").build();
    let region = 262_144 * 4096u64;
    let open_file = |fs: &Fs| {
        let options = OpenOptions::new();
        let options = options.read(true).write(true).create(true);
        options.open(fs, "/f").expect("room")
    };
    let fs = open(&image);
    let file = open_file(&fs);
    file.write_at(&[7; 4096], region).expect("room");
    drop(file);
    fs.close().expect("a clean end");
    let before = debugfs_query(image.path(), "stat f");
    let one = |text: &str, name: &str| {
        let rest = text.split(&format!("({name}):")).nth(1);
        let number = rest.and_then(|rest| rest.split([',', '\n']).next());
        number
            .map(str::to_owned)
            .unwrap_or_else(|| panic!("{text}"))
    };

    let fs = open(&image);
    let file = open_file(&fs);
    let mut buf = vec![0; 4096];
    file.read_at(&mut buf, region).expect("the map is read");
    file.set_len(0).expect("it is cut");
    file.sync_all().expect("its blocks are free");
    file.write_at(&[8; 4096], 6 * region).expect("room");
    file.set_len(9 * region).expect("no more than a size");
    // A part of the map that was not looked at, below a block that was another's.
    file.read_at(&mut buf, 8 * region).expect("it is intact");
    assert_eq!(buf, [0; 4096]);
    drop(file);
    fs.close().expect("a clean end");
    e2fsck_clean(image.path());
    let after = debugfs_query(image.path(), "stat f");
    // It leads to blocks of pointers as before, but for others of the file.
    assert_eq!(one(&before, "DIND"), one(&after, "DIND"));
    assert!(!before.contains("TIND") && after.contains("TIND"));
}

// A list of its names would otherwise be longer than the image lets it be.
#[test]
fn directory_with_a_block_in_two_places_is_corrupt() {
    for features in [
        "^metadata_csum,^has_journal",
        "^extent,^64bit,^metadata_csum,^has_journal",
    ] {
        let image = image(features);
        let block = debugfs_query(image.path(), "blocks d");
        let block = block.trim();
        let twice = match features.starts_with("^extent") {
            true => vec![format!("sif d block[1] {block}")],
            false => vec![
                "sif d block[0] 0x2f30a".into(),
                "sif d block[6] 1".into(),
                "sif d block[7] 1".into(),
                format!("sif d block[8] {block}"),
            ],
        };
        debugfs(
            image.path(),
            &[twice, vec!["sif d size 2048".into()]].concat(),
        );
        let error = open(&image).read_dir("/d").expect_err("it is twice there");
        assert_corrupt(&error, "directory", &format!("it has block {block} in two"));
    }
}

/// A directory `/d` with an index of many leaves, its root's block, and how many entries that has.
fn with_index() -> (Image, u64, u64) {
    let image = image("^metadata_csum,^has_journal,dir_index");
    let fs = open(&image);
    for number in 0..5500 {
        let link = fs.hard_link("/f", format!("/d/{number}"));
        link.expect("room");
    }
    fs.close().expect("a clean end");
    let root = debugfs_query(image.path(), "bmap d 0");
    let root = root.trim().parse().expect("a block");
    let mut count = [0; 2];
    let file = File::open(image.path()).expect("the image");
    // The root's entries begin at byte 32: limit, count and block; then hash and block each.
    file.read_exact_at(&mut count, root * 1024 + 34)
        .expect("inside");
    let count = u64::from(u16::from_le_bytes(count));
    assert!(count > 70, "{count} leaves");
    (image, root, count)
}

/// Has all leaves but the first begin at these hashes.
fn put_hashes(image: &Image, root: u64, hashes: impl Iterator<Item = u32>) {
    let words = (40..).step_by(8).zip(hashes);
    put_words(image, root, &words.collect::<Vec<_>>());
}

/// Each call read the whole directory, and had all its names in memory: leaves that begin at odd hashes go on with the names
/// of those before.
#[test]
fn index_whose_leaves_all_go_on_is_listed_leaf_by_leaf() {
    let (image, root, count) = with_index();
    let hashes = (0..count as u32 - 1).map(|at| 0xFFFF_0001 + 2 * at);
    put_hashes(&image, root, hashes);
    let fs = open(&image);
    let dir = fs.node("/d").expect("a directory");
    let all = dir.read_dir(0, usize::MAX).expect("it is listed");
    let (mut parts, mut next, mut peak) = (Vec::new(), 0, 0);
    loop {
        let mut part = Vec::new();
        let memory = memory::peak_of(|| part = dir.read_dir(next, 50).expect("it is listed"));
        peak = peak.max(memory);
        let Some(&(_, last)) = part.last() else { break };
        next = last;
        parts.extend(part);
    }
    println!("{peak} bytes of memory");
    assert!(peak < 16 << 10, "{peak} bytes of memory");
    assert_eq!(parts, all);
    let names: HashSet<_> = all.into_iter().map(|(entry, _)| entry.name).collect();
    assert_eq!(names.len(), 5503);
}

#[test]
fn index_with_too_many_leaves_of_one_hash_is_not_listed() {
    let (image, root, count) = with_index();
    put_hashes(&image, root, (1..count).map(|_| 0x1000_0001));
    let fs = open(&image);
    let dir = fs.node("/d").expect("a directory");
    let error = dir.read_dir(0, usize::MAX).expect_err("they are too many");
    assert!(error.to_string().contains("with one hash"), "{error}");
}

#[test]
fn deleted_inode_that_is_named_is_corrupt() {
    assert_corrupt(
        &error_of_reading(&extents(), &["sif f links_count 0"]),
        "inode",
        "deleted",
    );
}

#[test]
fn inode_with_impossible_fields_is_corrupt() {
    for (field, says) in [
        ("mode 0", "i_mode"),
        ("size 0x8000000000000000", "i_size"),
        ("size 0x7000000000000000", "i_size"),
    ] {
        let command = format!("sif f {field}");
        assert_corrupt(&error_of_reading(&extents(), &[&command]), "inode", says);
    }
}

#[test]
fn inode_with_flags_of_missing_features_is_corrupt() {
    for (flags, says) in [
        ("0x10080000", "Inline_Data"),
        ("0x80800", "Encrypted"),
        ("0x280000", "EA_Inode"),
    ] {
        let command = format!("sif f flags {flags}");
        assert_corrupt(&error_of_reading(&extents(), &[&command]), "inode", says);
    }
}

#[test]
fn inode_with_bad_checksum_fails_alone() {
    let image = image("^has_journal");
    debugfs(image.path(), &["sif f mode 0100600"]);
    // debugfs mends the checksum of what it writes; a byte of the generation is changed behind it.
    let said = debugfs_query(image.path(), "imap f");
    let number = |before: &str| {
        let rest = said.split(before).nth(1).expect("imap tells it");
        let digits: String = rest
            .chars()
            .take_while(|c| c.is_ascii_hexdigit() || *c == 'x')
            .collect();
        u64::from_str_radix(
            digits.trim_start_matches("0x"),
            if digits.contains('x') { 16 } else { 10 },
        )
        .expect("a number")
    };
    let at = number("located at block ") * 1024 + number("offset ") + 0x64;
    let file = File::options()
        .write(true)
        .open(image.path())
        .expect("the image");
    file.write_all_at(&[0xA5], at).expect("a write");
    let fs = open(&image);
    assert_eq!(fs.read_only(), None);
    let error = fs.metadata("/f").expect_err("its checksum is wrong");
    assert_eq!(error.errno(), libc::EBADMSG, "{error}");
    assert!(error.to_string().contains("inode"), "{error}");
    fs.metadata("/d/e").expect("others are well");
}

#[test]
fn directory_linked_below_itself_is_corrupt() {
    let image = extents();
    debugfs(image.path(), &["link d d/e/loop"]);
    let fs = open(&image);
    assert_corrupt(
        &fs.metadata("/d/e/loop").expect_err("a loop"),
        "directory entry",
        "above it",
    );
}

/// Whoever removes or moves it has the directory's names locked, and would lock them once more.
#[test]
fn directory_that_is_an_entry_of_itself_or_of_another_is_corrupt_for_who_changes_it() {
    let image = extents();
    debugfs(
        image.path(),
        &["mkdir x", "link d d/self", "link d d/e/loop", "link x d/x2"],
    );
    let fs = open(&image);
    let changed = within(move || {
        let (there, old) = (RenameMode::Replace, "directory entry");
        for (error, what) in [
            (fs.remove_dir("/d/self"), "that it is in"),
            (fs.rename("/d/self", "/x/y", there), "that it is in"),
            (fs.rename("/x", "/d/self", there), "that it is in"),
            (
                fs.rename("/x", "/d/self", RenameMode::Exchange),
                "that it is in",
            ),
            (fs.remove_dir("/d/e/loop"), "'..'"),
            (fs.remove_dir("/d/x2"), "'..'"),
            (fs.rename("/d/x2", "/d/x3", there), "'..'"),
        ] {
            assert_corrupt(&error.expect_err("no tree has it"), old, what);
        }
        fs.remove_dir("/x").expect("it is in the root");
    });
    changed.expect("nothing waits for itself");
}

/// What a thread comes to, if it does in time.
fn within(work: impl FnOnce() + Send + 'static) -> Result<(), RecvTimeoutError> {
    let (tell, told) = channel();
    let thread = std::thread::spawn(move || {
        work();
        tell.send(()).expect("somebody waits");
    });
    let done = told.recv_timeout(Duration::from_secs(60));
    match done {
        Err(RecvTimeoutError::Disconnected) => {
            thread.join().expect("it came to its end");
            done
        }
        done => done,
    }
}

#[test]
fn entry_of_a_reserved_inode_is_corrupt() {
    let image = image("^metadata_csum");
    debugfs(image.path(), &["link <8> d/journal"]);
    let error = open(&image)
        .metadata("/d/journal")
        .expect_err("it is the file system's");
    assert_corrupt(&error, "directory entry", "journal");
}

#[test]
fn entry_of_what_is_hidden_is_corrupt_for_who_asks_a_directory() {
    let image = image("^metadata_csum,orphan_file,quota,project");
    let orphans = dumpe2fs(image.path());
    let orphans = orphans
        .lines()
        .find(|line| line.starts_with("Orphan file inode"));
    let number = orphans.and_then(|line| line.split_whitespace().last());
    let link = |ino: &str, name: &str| format!("link <{ino}> d/{name}");
    let number = number.expect("dumpe2fs tells it");
    debugfs(
        image.path(),
        &[
            link("8", "journal"),
            link("3", "quota"),
            link(number, "orphans"),
        ],
    );
    let fs = open(&image);
    let dir = fs.node("/d").expect("a directory");
    for name in ["journal", "quota", "orphans"] {
        let error = dir
            .lookup(name.as_bytes())
            .expect_err("it is the file system's");
        assert_corrupt(&error, "directory entry", name);
        let told = dir.lookup_metadata(name.as_bytes(), |_| ());
        assert_corrupt(&told.expect_err("the same"), "directory entry", name);
    }
    let own = [8, 3, number.parse().expect("a number")];
    // And those that nobody ever had.
    let last = fs.superblock().inodes_count();
    for ino in own.into_iter().chain([0, last, last + 1, u32::MAX]) {
        let found = fs.node_by_number(ino, None).map(|_| ());
        assert_eq!(found.expect_err("the same").errno(), libc::ENOENT, "{ino}");
    }
}

/// Tables that are not zeroed may have files of an older file system.
#[test]
fn number_that_nobody_has_is_none_whatever_lies_in_the_table() {
    for features in ["uninit_bg,^metadata_csum", "metadata_csum", "^uninit_bg"] {
        let image = image(features);
        let last = open(&image).superblock().inodes_count();
        let numbers = [last - 1, 40];
        let copy = numbers.map(|number| format!("copy_inode f <{number}>"));
        debugfs(image.path(), &copy);
        let fs = open(&image);
        let errno = |number| {
            let found = fs.node_by_number(number, None).map(|_| ());
            found.map_err(|error| error.errno())
        };
        let known = fs.metadata("/f").expect("it is there").ino;
        for changed in [false, true] {
            for number in numbers {
                assert_eq!(errno(number), Err(libc::ENOENT), "{features} {changed}");
            }
            assert_eq!((errno(known), errno(2)), (Ok(()), Ok(())), "{features}");
            let new = fs.create_dir(format!("/{changed}"), &NewFile::new(0o755));
            new.expect("room");
        }
        let new = fs.metadata("/true").expect("it is there").ino;
        assert_eq!(errno(new), Ok(()), "{features}");
    }
}

// Threads that remove them would lock the names of each before those of the other.
#[test]
fn directories_that_are_each_in_the_other_are_corrupt() {
    let image = extents();
    let swap = ["unlink d/..", "link d/e d/..", "link d d/e/d"];
    debugfs(image.path(), &swap);
    for (path, name) in [("/d", "e"), ("/d/e", "d")] {
        let fs = open(&image);
        let dir = fs.node(path).expect("a directory");
        let error = dir.remove_dir(name.as_bytes()).expect_err("it cannot be");
        assert_corrupt(&error, "directory entry", "which it is in");
    }
}

#[test]
fn directory_of_impossible_size_is_corrupt() {
    for size in ["1000", "16777216"] {
        let image = extents();
        debugfs(image.path(), &[format!("sif d size {size}")]);
        assert_corrupt(
            &open(&image).read_dir("/d").expect_err("it cannot be"),
            "directory",
            "i_size",
        );
    }
}

#[test]
fn directory_with_a_hole_is_corrupt() {
    let image = extents();
    debugfs(image.path(), &["sif d size 2048"]);
    assert_corrupt(
        &open(&image).read_dir("/d").expect_err("a hole"),
        "directory",
        "block 1",
    );
}

#[test]
fn symlink_of_impossible_length_is_corrupt() {
    let image = extents();
    debugfs(image.path(), &["sif l size 5000"]);
    assert_corrupt(
        &open(&image).read_link("/l").expect_err("it is too long"),
        "inode",
        "i_size",
    );
}

#[test]
fn file_with_more_names_than_links_ends_once() {
    let image = extents();
    debugfs(image.path(), &["link f g", "sif f links_count 1"]);
    let fs = open(&image);
    let file = OpenOptions::new().read(true).open(&fs, "/f");
    let file = file.expect("it is there");
    fs.remove_file("/f").expect("its last link");
    let error = fs.remove_file("/g").expect_err("it has none any more");
    assert_corrupt(&error, "inode", "more names than links");
    drop(file);
    drop(fs);
    let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
    fs.remove_file("/g").expect_err("nobody's name");
}

/// Whoever looked for it waited for its last name to go, which never went.
#[test]
fn name_of_a_file_that_has_ended_is_damage() {
    let image = extents();
    debugfs(image.path(), &["link f g", "sif f links_count 1"]);
    let options = MountOptions::new().errors(ErrorPolicy::RemountReadOnly);
    let fs = Fs::open(image.path(), &options).expect("it opens");
    let file = OpenOptions::new().read(true).open(&fs, "/f");
    let file = file.expect("it is there");
    fs.remove_file("/f").expect("its last link");
    fs.remove_file("/g").expect_err("it has none any more");
    fs.read_only().expect("read-only by now");
    drop(file);
    let opened = OpenOptions::new().read(true).open(&fs, "/g").map(drop);
    let found = fs.root().and_then(|root| root.lookup(b"g")).map(drop);
    for error in [opened, found].map(Result::unwrap_err) {
        assert_corrupt(&error, "inode", "more names than links");
    }
}

/// It was overwritten when the attributes changed, with all other inodes of the block.
#[test]
fn block_of_attributes_that_is_metadata_is_corrupt() {
    let image = extents();
    let said = debugfs_query(image.path(), "imap <21>");
    let (_, block) = said.split_once("located at block ").expect("imap tells it");
    let (block, offset) = block.split_once(',').expect("and the byte");
    assert!(offset.contains("0x0000"), "{offset}");
    let block: u64 = block.parse().expect("a number");
    // As a block of attributes it is empty, and one file's.
    put_words(&image, block, &[(0, 0xEA02_0000), (4, 1), (8, 1)]);
    debugfs(image.path(), &[format!("sif f file_acl {block}")]);
    let table = || {
        let mut bytes = [0; 1024];
        let file = File::open(image.path()).expect("the image");
        file.read_exact_at(&mut bytes, block * 1024)
            .expect("inside");
        bytes
    };
    let before = table();
    let fs = open(&image);
    let error = fs.set_xattr("/f", "user.a", &[7; 600], XattrMode::Set);
    assert_corrupt(&error.expect_err("it is damaged"), "inode", "i_file_acl");
    drop(fs);
    assert!(table() == before);
}

/// Gives a file attributes with one value that is too long for a block.
fn set_long(image: &Image, path: &str, names: &[&str]) {
    let fs = open(image);
    for name in names {
        fs.set_xattr(path, name, &[9; 20_000], XattrMode::Create)
            .expect("room");
    }
    fs.close().expect("a clean end");
}

/// The inode that holds a value: the only one with this flag.
fn value_inode(image: &Image) -> u32 {
    let is_value =
        |ino: &u32| debugfs_query(image.path(), &format!("stat <{ino}>")).contains("Flags: 0x2");
    (11..40).find(is_value).expect("one holds the value")
}

/// It was given back twice, and could be another file's the second time.
#[test]
fn value_that_more_attributes_name_than_it_counts_ends_once() {
    let image = image("ea_inode");
    set_long(&image, "/f", &["user.a", "user.b"]);
    let value = value_inode(&image);
    debugfs(image.path(), &[format!("sif <{value}> version 1")]);
    let fs = open(&image);
    fs.remove_file("/f").expect("it is there");
    assert_eq!(fs.read_only(), None);
    fs.close().expect("a clean end");
    // The damage is recorded.
    e2fsck_consistent(image.path());
}

/// The copy of a shared block refers to all values that it names: the times of a file that is none were overwritten by their
/// count.
#[test]
fn block_that_others_have_is_copied_only_if_it_names_values() {
    let image = image("ea_inode,^metadata_csum");
    debugfs(image.path(), &["write /dev/null g", "write /dev/null x"]);
    let fs = open(&image);
    // Nothing else fits into the inode.
    fs.set_xattr("/f", "user.fill", &[1; 60], XattrMode::Create)
        .expect("room");
    fs.close().expect("a clean end");
    set_long(&image, "/f", &["user.a"]);
    let said = debugfs_query(image.path(), "stat f");
    let (_, block) = said.split_once("File ACL: ").expect("debugfs tells it");
    let block = block.split_whitespace().next().expect("a number");
    let block: u64 = block.parse().expect("a number");
    debugfs(image.path(), &[format!("sif g file_acl {block}")]);
    let file = File::options().read(true).write(true).open(image.path());
    let file = file.expect("the image");
    let mut named = [0; 4];
    let at = block * 1024;
    file.read_exact_at(&mut named, at + 32 + 4).expect("inside");
    assert_eq!(u32::from_le_bytes(named), value_inode(&image));
    let plain = open(&image).metadata("/x").expect("it is there").ino;
    let change = [(at + 4, 2), (at + 32 + 4, plain)];
    for (at, number) in change {
        file.write_all_at(&u32::to_le_bytes(number), at)
            .expect("inside");
    }
    let before = debugfs_query(image.path(), "stat x");
    let fs = open(&image);
    let error = fs.set_xattr("/f", "user.b", &[2; 50], XattrMode::Create);
    let error = error.expect_err("one of the values is none");
    assert_corrupt(&error, "xattr", "holds no attribute's value");
    drop(fs);
    assert_eq!(debugfs_query(image.path(), "stat x"), before);
}

/// As in Linux, which reads no values for them: one that does not match its hash made the mount read-only.
#[test]
fn names_of_attributes_are_listed_whatever_their_values_are() {
    let image = image("ea_inode");
    set_long(&image, "/f", &["user.a"]);
    let value = value_inode(&image);
    debugfs(image.path(), &[format!("sif <{value}> atime 7")]);
    let fs = open(&image);
    assert_eq!(fs.xattr_names("/f").expect("no damage"), [b"user.a"]);
    assert_eq!(fs.read_only(), None);
    let error = fs.xattrs("/f").expect_err("its hash");
    assert_eq!(error.errno(), libc::EBADMSG, "{error}");
}

/// Lustre writes values up to 16 MiB; that no call takes one is no damage.
#[test]
fn value_that_is_larger_than_calls_take_is_no_damage() {
    let image = image("ea_inode,^metadata_csum");
    set_long(&image, "/f", &["user.a"]);
    let value = value_inode(&image);
    let len = open(&image).xattrs("/f").expect("no damage")[0].value.len() as u32;
    let large = 100_000u32;
    debugfs(image.path(), &[format!("sif <{value}> size {large}")]);
    // The attribute says how long its value is behind the number of the inode that has it.
    let mut bytes = fs::read(image.path()).expect("the image");
    let entry = [value.to_le_bytes(), len.to_le_bytes()].concat();
    let places: Vec<usize> = (0..bytes.len() - 8)
        .filter(|&at| bytes[at..at + 8] == entry)
        .collect();
    assert!(!places.is_empty());
    for at in places {
        bytes[at + 4..at + 8].copy_from_slice(&large.to_le_bytes());
    }
    fs::write(image.path(), bytes).expect("a write");
    let fs = open(&image);
    let error = fs.xattrs("/f").expect_err("it is too large");
    assert_eq!(error.errno(), libc::E2BIG, "{error}");
    assert_eq!(fs.xattr_names("/f").expect("no damage"), [b"user.a"]);
    assert_eq!(fs.read_only(), None);
    fs.create_dir("/still", &NewFile::new(0o755)).expect("room");
    fs.close().expect("a clean end");
}

#[test]
fn names_of_attributes_are_listed_however_large_their_values_are() {
    const COUNT: usize = 260;
    let image = Image::builder().block_size(4096).inode_size(2048);
    let image = image.features("ea_inode").build();
    debugfs(image.path(), &["write /dev/null f"]);
    let fs = open(&image);
    let name = |number: usize| {
        format!(
            "user.{}{}",
            number / 26,
            (b'a' + (number % 26) as u8) as char
        )
    };
    for number in 0..COUNT {
        fs.set_xattr("/f", name(number), &[9; 65_536], XattrMode::Create)
            .expect("room");
    }
    let error = fs.xattrs("/f").expect_err("over 16 MiB");
    assert_eq!(error.errno(), libc::EOPNOTSUPP, "{error}");
    let names = fs.xattr_names("/f").expect("no damage");
    assert_eq!(
        names,
        (0..COUNT)
            .map(|number| name(number).into_bytes())
            .collect::<Vec<_>>()
    );
    fs.close().expect("a clean end");
    e2fsck_clean(image.path());
}
