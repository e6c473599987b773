//! The crate against bytes that mke2fs, debugfs and e2fsck wrote: every checksum, every round trip,
//! key figures against dumpe2fs, and the content of files against what was put in.

mod support;

use dioxide_format::Error;
use dioxide_format::features::{Compat, Incompat, RoCompat};
use dioxide_format::group_desc::GroupDesc;
use dioxide_format::htree::{HashVersion, hash};
use dioxide_format::inode::{DeviceNumber, FileType};
use dioxide_format::superblock::{SUPERBLOCK_OFFSET, SuperBlock};
use dioxide_format::types::{Group, Ino, Pblk};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use support::{Image, Mount, Node, Seen, SourceTree, Walk, run};

/// Makes an empty image, walks it, compares it with dumpe2fs.
fn check_empty(size: &str, args: &[&str]) -> Seen {
    let image = Image::make(size, args);
    let mut walk = Walk::open(&image);
    walk.run();
    compare_with_dumpe2fs(&image, &walk);
    walk.seen
}

/// Makes an image of a source tree, indexes its directories, walks it, compares the content.
fn check_filled(size: &str, args: &[&str], many: usize) -> Seen {
    let source = SourceTree::new(many);
    let mut all = vec!["-d", source.path()];
    all.extend(args);
    let image = Image::make(size, &all);
    let mut walk = Walk::open(&image);
    walk.run();
    compare_tree(&mut walk, source.path());
    image.index_directories();
    let mut walk = Walk::open(&image);
    walk.run();
    compare_tree(&mut walk, source.path());
    compare_with_dumpe2fs(&image, &walk);
    image.assert_clean();
    walk.seen
}

fn host_tree(path: &Path, key: String, tree: &mut BTreeMap<String, Node>) {
    let kind = fs::symlink_metadata(path).unwrap().file_type();
    let node = if kind.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            host_tree(&path.join(&name), format!("{key}/{name}"), tree);
        }
        Node::Dir
    } else if kind.is_symlink() {
        let target = fs::read_link(path).unwrap();
        Node::Link(target.into_os_string().into_encoded_bytes())
    } else {
        Node::File(fs::read(path).unwrap())
    };
    tree.insert(key, node);
}

fn compare_tree(walk: &mut Walk<'_>, source: &str) {
    let mut expected = BTreeMap::new();
    host_tree(Path::new(source), String::new(), &mut expected);
    let mut found = walk.tree();
    found.remove("/lost+found");
    let names = |tree: &BTreeMap<String, Node>| tree.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&found), names(&expected));
    for (path, node) in &found {
        assert!(node == &expected[path], "{path} differs");
    }
}

/// The `Key: value` lines of dumpe2fs.
fn dumped(text: &str) -> BTreeMap<&str, &str> {
    text.lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(key, value)| (key, value.trim()))
        .collect()
}

fn uuid_text(raw: [u8; 16]) -> String {
    let hex: String = raw.iter().map(|b| format!("{b:02x}")).collect();
    format!(
        "{}-{}-{}-{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..]
    )
}

fn compare_with_dumpe2fs(image: &Image, walk: &Walk<'_>) {
    let text = run("dumpe2fs", &[image.path()], &[0]);
    let (head, groups) = text.split_once("\n\n\n").unwrap_or((&text, ""));
    let dump = dumped(head);
    let sb = &walk.sb;
    let features = sb.features().names();
    let none = if features.is_empty() { "(none)" } else { "" };
    let mut expected = vec![
        ("Filesystem features", none.to_owned() + &features.join(" ")),
        ("Filesystem UUID", uuid_text(sb.uuid())),
        ("Inode count", sb.inodes_count().to_string()),
        ("Block count", sb.blocks_count().to_string()),
        (
            "Reserved block count",
            sb.reserved_blocks_count().to_string(),
        ),
        ("Free blocks", sb.free_blocks_count().to_string()),
        ("Free inodes", sb.free_inodes_count().to_string()),
        ("First block", sb.first_data_block().to_string()),
        ("Block size", sb.block_size().to_string()),
        ("Blocks per group", sb.blocks_per_group().to_string()),
        ("Inodes per group", sb.inodes_per_group().to_string()),
        (
            "Inode blocks per group",
            sb.inode_table_blocks().to_string(),
        ),
        ("Mount count", sb.mount_count().to_string()),
        ("Directory Hash Seed", uuid_text(seed_bytes(sb))),
    ];
    if sb.disk().s_rev_level > 0 {
        expected.push(("First inode", sb.first_ino().to_string()));
        expected.push(("Inode size", sb.inode_size().to_string()));
    }
    if sb.is_64bit() {
        expected.push(("Group descriptor size", sb.desc_size().to_string()));
    }
    if sb.features().metadata_csum() {
        let csum = sb.disk().s_checksum;
        expected.push(("Checksum", format!("{csum:#010x}")));
    }
    if sb.has_bigalloc() {
        expected.push(("Cluster size", sb.cluster_size().to_string()));
        expected.push(("Clusters per group", sb.clusters_per_group().to_string()));
    }
    for (key, value) in expected {
        assert_eq!(dump.get(key), Some(&value.as_str()), "{key}");
    }
    let with_super = |group: &Group| sb.group_has_super(*group);
    let scanned = (1..sb.group_count()).map(Group).filter(with_super);
    assert!(sb.backup_groups().eq(scanned));
    compare_groups(groups, walk);
}

fn seed_bytes(sb: &SuperBlock) -> [u8; 16] {
    let mut bytes = [0; 16];
    let words = sb.hash_seed().map(u32::to_le_bytes);
    bytes.copy_from_slice(words.as_flattened());
    bytes
}

/// The numbers in a line, in order.
fn numbers(line: &str) -> Vec<u64> {
    line.split(|c: char| !c.is_ascii_digit())
        .filter_map(|part| part.parse().ok())
        .collect()
}

fn compare_groups(text: &str, walk: &Walk<'_>) {
    let mut group = Group(0);
    let mut seen = 0;
    for line in text.lines() {
        let found = numbers(line);
        let desc = &walk.descs[group.0 as usize];
        if line.starts_with("Group ") {
            group = Group(found[0] as u32);
            let first = walk.sb.group_first_block(group).0;
            let last = first + u64::from(walk.sb.blocks_in_group(group)) - 1;
            assert_eq!(found[1..3], [first, last], "{line}");
            seen += 1;
        } else if line.contains("superblock at") {
            compare_copies(line, group, walk);
        } else if line.contains("Block bitmap at") {
            assert_eq!(found[0], desc.block_bitmap().0, "{line}");
        } else if line.contains("Inode bitmap at") {
            assert_eq!(found[0], desc.inode_bitmap().0, "{line}");
        } else if line.contains("Inode table at") {
            let last = desc.inode_table().0 + u64::from(walk.sb.inode_table_blocks()) - 1;
            assert_eq!(found[..2], [desc.inode_table().0, last], "{line}");
        } else if line.contains("free inodes,") {
            compare_counts(&found, desc, line);
        }
    }
    assert_eq!(seen, walk.descs.len());
}

fn compare_copies(line: &str, group: Group, walk: &Walk<'_>) {
    let found = numbers(line);
    assert!(walk.sb.group_has_super(group), "{line}");
    assert_eq!(found[0], walk.sb.superblock_block(group).0, "{line}");
    if group.0 == 0 && line.contains("Group descriptor") {
        assert_eq!(found[1], walk.sb.descriptor_block(0).0, "{line}");
    }
}

fn compare_counts(found: &[u64], desc: &GroupDesc, line: &str) {
    let counts = [
        desc.free_clusters_count(),
        desc.free_inodes_count(),
        desc.used_dirs_count(),
    ];
    assert_eq!(found[..3], counts.map(u64::from), "{line}");
}

#[test]
fn empty_images_of_every_option_agree_with_dumpe2fs() {
    let rows: &[(&str, &[&str])] = &[
        ("64M", &["-t", "ext4"]),
        ("64M", &["-t", "ext2"]),
        ("64M", &["-t", "ext3"]),
        ("64M", &["-t", "ext2", "-r", "0", "-O", "none"]),
        ("64M", &["-t", "ext4", "-b", "1024"]),
        ("128M", &["-t", "ext4", "-b", "2048"]),
        ("1G", &["-t", "ext4", "-b", "4096"]),
        ("2G", &["-t", "ext4", "-b", "65536"]),
        ("256M", &["-t", "ext4", "-O", "^64bit", "-b", "4096"]),
        (
            "256M",
            &["-t", "ext4", "-O", "^metadata_csum", "-b", "1024"],
        ),
        (
            "256M",
            &["-t", "ext4", "-O", "^metadata_csum,uninit_bg", "-b", "1024"],
        ),
        (
            "256M",
            &[
                "-t",
                "ext4",
                "-O",
                "^metadata_csum,^64bit,uninit_bg",
                "-b",
                "1024",
            ],
        ),
        (
            "512M",
            &["-t", "ext4", "-O", "meta_bg,^resize_inode", "-b", "1024"],
        ),
        (
            "512M",
            &[
                "-t",
                "ext4",
                "-O",
                "meta_bg,^resize_inode,^sparse_super",
                "-b",
                "1024",
            ],
        ),
        (
            "512M",
            &["-t", "ext2", "-O", "meta_bg,^resize_inode", "-b", "1024"],
        ),
        (
            "512M",
            &["-t", "ext4", "-O", "bigalloc", "-C", "65536", "-b", "4096"],
        ),
        (
            "64M",
            &["-t", "ext4", "-O", "bigalloc", "-C", "8192", "-b", "1024"],
        ),
        ("128M", &["-t", "ext4", "-O", "inline_data"]),
        ("128M", &["-t", "ext4", "-O", "orphan_file"]),
        ("512M", &["-t", "ext4", "-O", "sparse_super2", "-b", "1024"]),
        (
            "512M",
            &[
                "-t",
                "ext4",
                "-O",
                "sparse_super2,^resize_inode",
                "-E",
                "num_backup_sb=0",
                "-b",
                "1024",
            ],
        ),
        (
            "512M",
            &[
                "-t",
                "ext4",
                "-O",
                "^sparse_super,^resize_inode",
                "-b",
                "1024",
            ],
        ),
        ("128M", &["-t", "ext4", "-O", "mmp"]),
        ("128M", &["-t", "ext4", "-I", "128"]),
        ("128M", &["-t", "ext4", "-I", "512"]),
        ("128M", &["-t", "ext4", "-I", "1024", "-b", "1024"]),
        (
            "128M",
            &["-t", "ext4", "-I", "4096", "-b", "4096", "-N", "1024"],
        ),
        ("128M", &["-t", "ext4", "-O", "metadata_csum_seed"]),
        ("128M", &["-t", "ext4", "-O", "^has_journal"]),
        ("128M", &["-t", "ext4", "-O", "^flex_bg", "-b", "1024"]),
        (
            "128M",
            &[
                "-t",
                "ext4",
                "-O",
                "ea_inode,large_dir,project,quota",
                "-b",
                "4096",
            ],
        ),
        (
            "512M",
            &[
                "-t",
                "ext4",
                "-E",
                "packed_meta_blocks=1,lazy_itable_init=1",
                "-b",
                "1024",
            ],
        ),
    ];
    for (size, args) in rows {
        println!("mke2fs {} {size}", args.join(" "));
        let seen = check_empty(size, args);
        assert!(seen.groups > 0 && seen.inodes >= 11, "{seen:?}");
    }
}

#[test]
fn image_beyond_32_bit_block_numbers_agrees() {
    let args = [
        "-t",
        "ext4",
        "-b",
        "1024",
        "-O",
        "bigalloc,^has_journal",
        "-C",
        "65536",
        "-N",
        "200000",
    ];
    let seen = check_empty("5T", &args);
    assert!(seen.groups > 10_000, "{seen:?}");
}

#[test]
fn optional_blocks_are_met_where_their_features_are_set() {
    assert_eq!(check_empty("128M", &["-O", "mmp"]).mmp_blocks, 1);
    let with_file = check_empty("128M", &["-t", "ext4", "-O", "orphan_file"]);
    assert!(with_file.orphan_blocks > 0);
    let sparse2 = check_empty("512M", &["-O", "sparse_super2", "-b", "1024"]);
    assert_eq!(sparse2.backups, 2);
    let all = check_empty("512M", &["-O", "^sparse_super,^resize_inode", "-b", "1024"]);
    assert_eq!(all.backups + 1, all.groups);
}

#[test]
fn filled_ext4_1k_blocks_content_matches_through_deep_trees_and_indexes() {
    let seen = check_filled("256M", &["-t", "ext4", "-b", "1024", "-N", "30000"], 9000);
    assert!(seen.depth >= 2 && seen.extent_blocks > 5, "{seen:?}");
    assert!(seen.dx_roots >= 1 && seen.dx_nodes >= 2, "{seen:?}");
    assert!(seen.hashed_names >= 9000, "{seen:?}");
    assert!(
        seen.fast_symlinks >= 2 && seen.slow_symlinks >= 2,
        "{seen:?}"
    );
}

#[test]
fn filled_ext4_other_block_sizes_content_matches() {
    let seen = check_filled("128M", &["-t", "ext4", "-b", "2048"], 800);
    assert!(seen.dx_roots >= 1 && seen.extent_blocks > 0, "{seen:?}");
    let seen = check_filled("256M", &["-t", "ext4", "-b", "4096"], 800);
    assert!(seen.dx_roots >= 1 && seen.extent_blocks > 0, "{seen:?}");
    let seen = check_filled(
        "1G",
        &[
            "-t",
            "ext4",
            "-b",
            "65536",
            "-O",
            "^has_journal",
            "-N",
            "8192",
        ],
        6000,
    );
    assert!(seen.dx_roots >= 1, "{seen:?}");
}

#[test]
fn filled_ext2_and_ext3_content_matches_through_indirect_blocks() {
    let seen = check_filled("128M", &["-t", "ext2", "-b", "1024"], 500);
    assert!(
        seen.indirect_blocks > 0 && seen.extent_blocks == 0,
        "{seen:?}"
    );
    let seen = check_filled("128M", &["-t", "ext3", "-b", "1024", "-I", "128"], 500);
    assert!(seen.indirect_blocks > 0 && seen.dx_roots >= 1, "{seen:?}");
    check_filled(
        "128M",
        &["-t", "ext2", "-b", "1024", "-O", "^filetype"],
        100,
    );
}

#[test]
fn filled_image_with_inline_data_content_matches() {
    let seen = check_filled(
        "128M",
        &["-t", "ext4", "-O", "inline_data", "-I", "256"],
        300,
    );
    assert!(seen.inline_files >= 2, "{seen:?}");
    assert!(seen.inline_dirs >= 1, "{seen:?}");
}

#[test]
fn filled_image_with_bigalloc_content_matches() {
    check_filled(
        "512M",
        &["-t", "ext4", "-O", "bigalloc", "-C", "32768", "-b", "4096"],
        300,
    );
    check_filled(
        "256M",
        &["-t", "ext4", "-O", "bigalloc", "-C", "16384", "-b", "1024"],
        300,
    );
}

#[test]
fn filled_image_without_checksums_content_matches() {
    check_filled(
        "128M",
        &["-t", "ext4", "-O", "^metadata_csum", "-b", "1024"],
        500,
    );
    check_filled(
        "128M",
        &[
            "-t",
            "ext4",
            "-O",
            "metadata_csum_seed,large_dir",
            "-b",
            "1024",
        ],
        500,
    );
}

#[test]
fn xattrs_in_inode_block_and_other_inodes_are_read() {
    let image = Image::make("64M", &["-t", "ext4", "-O", "ea_inode", "-b", "4096"]);
    let values = tempfile::TempDir::new().unwrap();
    let file_of = |name: &str, len: usize| {
        let path = values.path().join(name);
        fs::write(&path, vec![b'v'; len]).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (block, inode) = (file_of("block", 3000), file_of("inode", 20_000));
    image.debugfs(&format!(
        "mkdir d\nea_set d user.small value\nea_set d security.selinux system_u\n\
         ea_set d trusted.t \u{e4}\nea_set d user.block -f {block}\n\
         mkdir e\nea_set e user.inode -f {inode}\n"
    ));
    // debugfs forgets to count the blocks of a value that is an inode.
    run("e2fsck", &["-f", "-y", image.path()], &[0, 1]);
    image.assert_clean();
    let mut walk = Walk::open(&image);
    walk.run();
    assert!(walk.seen.xattr_blocks >= 1, "{:?}", walk.seen);
    assert!(walk.seen.ea_inodes >= 1, "{:?}", walk.seen);
    assert_eq!(walk.seen.xattrs, 5, "{:?}", walk.seen);
}

#[test]
fn image_written_by_the_kernel_content_matches() {
    let source = SourceTree::new(3000);
    let holes = Path::new(source.path()).join("many/unwritten");
    run("fallocate", &["-l", "1M", holes.to_str().unwrap()], &[0]);
    let rows: [&[&str]; 3] = [
        &[
            "-t",
            "ext4",
            "-b",
            "1024",
            "-O",
            "inline_data,orphan_file,ea_inode",
        ],
        &[
            "-t",
            "ext4",
            "-b",
            "4096",
            "-O",
            "bigalloc,metadata_csum_seed",
            "-C",
            "16384",
        ],
        &["-t", "ext2", "-b", "1024", "-I", "128"],
    ];
    for args in rows {
        println!("mke2fs {}", args.join(" "));
        let mut args = args.to_vec();
        args.extend(["-N", "8192"]);
        let image = Image::make("128M", &args);
        let mount = Mount::new(&image);
        let all = format!("{}/.", source.path());
        run("cp", &["-a", "--sparse=always", &all, mount.path()], &[0]);
        let junk = Path::new(mount.path()).join("many");
        (0..5000).for_each(|i| drop(fs::write(junk.join(format!("junk-{i}")), b"")));
        (0..5000).for_each(|i| drop(fs::remove_file(junk.join(format!("junk-{i}")))));
        drop(mount);
        let mut walk = Walk::open(&image);
        walk.run();
        assert!(
            walk.seen.dx_roots >= 1 && walk.seen.hashed_names >= 3000,
            "{:?}",
            walk.seen
        );
        compare_tree(&mut walk, source.path());
        compare_with_dumpe2fs(&image, &walk);
        image.assert_clean();
    }
}

#[test]
fn device_nodes_and_times_read_as_debugfs_set_them() {
    let image = Image::make("64M", &["-t", "ext4"]);
    image.debugfs(
        "mknod c c 5 1\nmknod b b 259 300\nmknod p p\nmkdir d\n\
         sif d mtime @100\nsif d mtime_extra 6\nsif d uid 70000\nsif d projid 99\n",
    );
    let mut walk = Walk::open(&image);
    let (root, raw) = walk.inode(Ino::ROOT);
    let names: BTreeMap<_, _> = walk.names(Ino::ROOT, &root, &raw).into_iter().collect();
    let mut get = |name: &[u8]| walk.inode(names[name]).0;
    let number = |major, minor| Some(DeviceNumber { major, minor });
    assert_eq!(get(b"c").device_number(), number(5, 1));
    assert_eq!(get(b"b").device_number(), number(259, 300));
    assert_eq!(get(b"p").file_type(), Some(FileType::Fifo));
    assert_eq!(get(b"p").device_number(), None);
    let dir = get(b"d");
    assert_eq!((dir.mtime().secs, dir.mtime().nsec), (100 + (2 << 32), 1));
    assert_eq!((dir.uid(), dir.projid()), (70000, 99));
    assert!(dir.crtime().unwrap().secs > 1_600_000_000);
}

#[test]
fn unsigned_hash_flag_index_places_high_byte_names() {
    let source = SourceTree::new(0);
    for i in 0..300 {
        fs::write(
            Path::new(source.path()).join(format!("many/\u{e9}\u{4e2d}-{i}")),
            b"",
        )
        .unwrap();
    }
    for unsigned in [false, true] {
        let image = Image::make("64M", &["-b", "1024", "-d", source.path()]);
        let flags = if unsigned { "2" } else { "1" };
        image.debugfs(&format!("ssv flags {flags}\n"));
        image.index_directories();
        let mut walk = Walk::open(&image);
        assert_eq!(walk.sb.hash_is_unsigned(), unsigned);
        walk.run();
        assert!(walk.seen.hashed_names >= 300, "{:?}", walk.seen);
    }
}

#[test]
fn name_hashes_agree_with_debugfs() {
    let seed_text = "01020304-0506-0708-090a-0b0c0d0e0f10";
    let seed = [0x0403_0201, 0x0807_0605, 0x0c0b_0a09, 0x100f_0e0d];
    let long = "abcdefghij".repeat(25);
    let names = [
        "a",
        "hello",
        "exactly-16-bytes",
        "\u{e4}\u{f6}\u{fc}",
        "thirty-two-bytes-of-a-file-name!",
        &long,
    ];
    let versions = [
        ("legacy", HashVersion::Legacy),
        ("half_md4", HashVersion::HalfMd4),
        ("tea", HashVersion::Tea),
    ];
    for (text, version) in versions {
        for name in names {
            for (option, seed) in [(format!("-s {seed_text} "), seed), (String::new(), [0; 4])] {
                let request = format!("dx_hash -h {text} {option}{name}");
                let output = run("debugfs", &["-R", &request], &[0]);
                let found = hash(name.as_bytes(), version, seed);
                let (major, minor) = (found.major, found.minor);
                let expected = format!("is {major:#x} (minor {minor:#x})");
                assert!(output.contains(&expected), "{request}: {output} {expected}");
            }
        }
    }
}

#[test]
fn feature_names_of_every_bit_agree_with_dumpe2fs() {
    let image = Image::make("64M", &["-t", "ext4", "-O", "^metadata_csum"]);
    let raw = image.read(SUPERBLOCK_OFFSET, SuperBlock::SIZE);
    for bit in 0..32 {
        for set in 0..3 {
            let mut sb = SuperBlock::parse(&raw).unwrap();
            let disk = sb.disk_mut();
            match set {
                0 => disk.s_feature_compat |= 1 << bit,
                1 => disk.s_feature_incompat |= 1 << bit,
                _ => disk.s_feature_ro_compat |= 1 << bit,
            }
            disk.s_checksum_type = 1;
            sb.update_checksum();
            image.write(SUPERBLOCK_OFFSET, &sb.encode());
            let text = run("dumpe2fs", &["-f", "-h", image.path()], &[0, 1]);
            let Some(found) = dumped(&text).get("Filesystem features").copied() else {
                // dumpe2fs shows a journal device (incompat bit 3) in another way.
                assert_eq!((set, bit), (1, 3), "{text}");
                continue;
            };
            assert_eq!(
                found,
                sb.features().names().join(" "),
                "set {set}, bit {bit}"
            );
        }
    }
}

#[test]
fn damaged_superblock_error_names_the_field() {
    let image = Image::make("64M", &["-t", "ext4"]);
    let raw = image.read(SUPERBLOCK_OFFSET, SuperBlock::SIZE);
    let field_after = |change: &dyn Fn(&mut SuperBlock)| {
        let mut sb = SuperBlock::parse(&raw).unwrap();
        change(&mut sb);
        match sb.validate(Some(image.size())) {
            Err(Error::Corrupt { field, .. }) => field,
            other => panic!("{other:?}"),
        }
    };
    type Change<'a> = &'a dyn Fn(&mut SuperBlock);
    let rows: [(&str, Change<'_>); 18] = [
        ("s_magic", &|sb| sb.disk_mut().s_magic = 0),
        ("s_rev_level", &|sb| sb.disk_mut().s_rev_level = 2),
        ("s_log_block_size", &|sb| {
            sb.disk_mut().s_log_block_size = 99
        }),
        ("s_log_cluster_size", &|sb| {
            sb.disk_mut().s_log_cluster_size = 3
        }),
        ("s_first_data_block", &|sb| {
            sb.disk_mut().s_first_data_block = 9
        }),
        ("s_blocks_per_group", &|sb| {
            sb.disk_mut().s_blocks_per_group = 0
        }),
        ("s_blocks_per_group", &|sb| {
            sb.disk_mut().s_blocks_per_group = 8200
        }),
        ("s_blocks_count", &|sb| {
            sb.disk_mut().s_blocks_count_hi = u32::MAX
        }),
        ("s_blocks_count", &|sb| sb.disk_mut().s_blocks_count_lo = 0),
        ("s_inode_size", &|sb| sb.disk_mut().s_inode_size = 200),
        ("s_first_ino", &|sb| sb.disk_mut().s_first_ino = 2),
        ("s_inodes_per_group", &|sb| {
            sb.disk_mut().s_inodes_per_group = 0
        }),
        ("s_inodes_count", &|sb| sb.disk_mut().s_inodes_count = 7),
        ("s_desc_size", &|sb| sb.disk_mut().s_desc_size = 65),
        ("s_reserved_gdt_blocks", &|sb| {
            sb.disk_mut().s_reserved_gdt_blocks = u16::MAX
        }),
        ("s_checksum_type", &|sb| sb.disk_mut().s_checksum_type = 0),
        ("s_clusters_per_group", &|sb| {
            sb.disk_mut().s_clusters_per_group -= 8
        }),
        ("s_log_groups_per_flex", &|sb| {
            sb.disk_mut().s_log_groups_per_flex = 32
        }),
    ];
    for (field, change) in rows {
        assert_eq!(field_after(change), field);
    }
    let sb = SuperBlock::parse(&raw).unwrap();
    let error = sb.validate(Some(image.size() - 1)).unwrap_err();
    assert!(
        error.to_string().contains("the blocks of the device"),
        "{error}"
    );
}

#[test]
fn fields_that_no_geometry_rests_on_are_judged_by_themselves() {
    let image = Image::make("64M", &["-t", "ext4", "-O", "mmp"]);
    let raw = image.read(SUPERBLOCK_OFFSET, SuperBlock::SIZE);
    let sb = SuperBlock::parse(&raw).unwrap();
    let (first, end) = (sb.first_data_block().0, sb.blocks_count());
    let block = |number: u64| {
        let mut sb = sb.clone();
        sb.disk_mut().s_mmp_block = number;
        sb.mmp_block().map(|block| block.map(|block| block.0))
    };
    for wrong in [0, first, end, u64::MAX] {
        let error = block(wrong).unwrap_err().to_string();
        assert!(error.contains("s_mmp_block"), "{error}");
    }
    assert_eq!(block(first + 1).unwrap(), Some(first + 1));
    assert_eq!(block(end - 1).unwrap(), Some(end - 1));
    let mut without = sb.clone();
    without.disk_mut().s_feature_incompat &= !Incompat::MMP.bits();
    without.disk_mut().s_mmp_block = 0;
    assert_eq!(without.mmp_block().unwrap(), None);

    let both = Incompat::CASEFOLD.union(Incompat::ENCRYPT).bits();
    for (version, features, ok) in [
        (5, 0, true),
        (6, 0, false),
        (6, both, true),
        (7, both, false),
    ] {
        let mut sb = sb.clone();
        sb.disk_mut().s_def_hash_version = version;
        sb.disk_mut().s_feature_incompat |= features;
        assert_eq!(sb.validate_hash_version().is_ok(), ok, "{version}");
    }
    let mut two = sb.clone();
    two.validate_journal_place().unwrap();
    two.disk_mut().s_journal_dev = 1;
    let error = two.validate_journal_place().unwrap_err().to_string();
    assert!(error.contains("s_journal_dev"), "{error}");
    two.disk_mut().s_feature_compat &= !Compat::HAS_JOURNAL.bits();
    two.validate_journal_place().unwrap();
}

#[test]
fn damaged_descriptor_wild_pointers_are_refused() {
    let image = Image::make("64M", &["-t", "ext4"]);
    let walk = Walk::open(&image);
    let mut desc = walk.descs[0].clone();
    desc.disk_mut().bg_inode_table_hi = 1;
    let error = desc.validate(&walk.sb, Group(0)).unwrap_err();
    assert!(error.to_string().contains("bg_inode_table"), "{error}");
    let mut desc = walk.descs[0].clone();
    desc.disk_mut().bg_free_inodes_count_hi = 1;
    let error = desc.validate(&walk.sb, Group(0)).unwrap_err();
    assert!(
        error.to_string().contains("bg_free_inodes_count"),
        "{error}"
    );
}

#[test]
fn default_image_features_are_the_expected_sets() {
    let image = Image::make("64M", &["-t", "ext4"]);
    let sb = Walk::open(&image).sb;
    let features = sb.features();
    let known = Incompat::FILETYPE | Incompat::EXTENTS | Incompat::BIT64;
    assert_eq!(features.incompat.unsupported(known), Incompat::FLEX_BG);
    assert!(
        features
            .compat
            .contains(Compat::HAS_JOURNAL | Compat::DIR_INDEX)
    );
    assert!(features.ro_compat.contains(RoCompat::METADATA_CSUM));
    assert_eq!(sb.journal_inum(), Some(Ino::JOURNAL));
    assert_eq!(sb.group_of_block(Pblk(0)), None);
    assert_eq!(sb.group_of_block(Pblk(1)), Some(Group(0)));
    assert_eq!(sb.group_of_block(Pblk(8193)), Some(Group(1)));
}
