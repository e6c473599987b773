//! Every feature that directories know of.

use super::bed::{Bed, check_by_kernel, name, set, small};
use crate::namei::edit::REMOVE_NAME_CREDITS;
use dioxide_format::features::Incompat;
use dioxide_format::inode::{FileType, InodeFlags};
use dioxide_testkit::{Image, ImageBuilder, debugfs};

/// Adds names, removes some, makes directories; e2fsck and the kernel agree.
fn exercise(builder: ImageBuilder, count: usize, len: usize) {
    let mut bed = Bed::new(builder);
    let dir = bed.dir("/d");
    let mut names: Vec<Vec<u8>> = (0..count).map(|at| name(at, len + at % 9)).collect();
    bed.add_all(&dir, &names).expect("there is space");
    bed.check(&dir, &set(&names));
    let gone: Vec<Vec<u8>> = names.iter().step_by(3).cloned().collect();
    for name in &gone {
        assert!(bed.remove(&dir, name));
    }
    names.retain(|name| !gone.contains(name));
    let child = bed.make_dir(&dir, b"child");
    bed.add_all(&child, &gone).expect("there is space");
    bed.check(&child, &set(&gone));
    drop(child);
    names.push(b"child".to_vec());
    let image = bed.close();
    check_by_kernel(&image, &set(&names));
}

#[test]
fn names_come_and_go_with_every_feature() {
    for features in [
        "metadata_csum",
        "^metadata_csum",
        "^metadata_csum,uninit_bg",
        "^dir_index",
        "^dir_index,^metadata_csum",
        "^filetype",
        "^filetype,^metadata_csum",
        "^extents,^64bit",
        "metadata_csum_seed,large_dir",
        "inline_data",
        "inline_data,^dir_index",
        "inline_data,^metadata_csum,^extents,^64bit",
    ] {
        eprintln!("{features}");
        exercise(small().features(features), 400, 40);
    }
}

#[test]
fn names_come_and_go_in_the_older_file_systems() {
    exercise(small().fs_type("ext2"), 400, 40);
    exercise(small().fs_type("ext3"), 400, 40);
    exercise(small().inode_size(128), 400, 40);
}

#[test]
fn names_come_and_go_with_clusters() {
    exercise(
        Image::builder()
            .size(256 << 20)
            .features("bigalloc")
            .args(&["-C", "65536"]),
        2000,
        60,
    );
}

// The kernel does not mount blocks that are larger than its pages.
#[test]
fn names_come_and_go_in_blocks_of_64_kib() {
    for features in ["metadata_csum", "^metadata_csum", "^dir_index", "^filetype"] {
        let builder = Image::builder().size(512 << 20).block_size(65536);
        let mut bed = Bed::new(builder.features(features));
        let dir = bed.dir("/d");
        let mut names: Vec<Vec<u8>> = (0..4000).map(|at| name(at, 50)).collect();
        bed.add_all(&dir, &names).expect("there is space");
        for name in names.drain(1000..3000) {
            assert!(bed.remove(&dir, &name));
        }
        bed.check(&dir, &set(&names));
        bed.close();
    }
}

#[test]
fn every_hash_of_an_index_is_the_kernels() {
    for hash in ["legacy", "half_md4", "tea"] {
        for flags in ["1", "2"] {
            let bed = Bed::new(small());
            let image = bed.close();
            debugfs(
                image.path(),
                &[
                    format!("ssv def_hash_version {hash}"),
                    format!("ssv flags {flags}"),
                ],
            );
            let mut bed = Bed::on(image);
            let dir = bed.dir("/d");
            let names: Vec<Vec<u8>> = (0..300)
                .map(|at| {
                    [
                        &name(at, 20)[..],
                        "éü".as_bytes(),
                        &[0x80 + (at % 100) as u8],
                    ]
                    .concat()
                })
                .collect();
            bed.add_all(&dir, &names).expect("there is space");
            bed.check(&dir, &set(&names));
            let image = bed.close();
            check_by_kernel(&image, &set(&names));
        }
    }
}

#[test]
fn redirected_name_leads_to_the_other_inode() {
    for features in [
        "metadata_csum",
        "^metadata_csum",
        "^filetype",
        "inline_data",
    ] {
        let mut bed = Bed::new(small().features(features));
        let dir = bed.dir("/d");
        let (one, two) = (bed.make_dir(&dir, b"one"), bed.make_dir(&dir, b"two"));
        let names: Vec<Vec<u8>> = (0..200).map(|at| name(at, 40)).collect();
        bed.add_all(&one, &names).expect("there is space");
        let mount = bed.fs.0.clone();
        let writer = mount.writer().expect("it is writable");
        let redirect = |dir: &crate::inode::Inode, name: &[u8], to, file_type| {
            let mut handle = writer.begin(REMOVE_NAME_CREDITS).expect("a handle");
            let done = mount.redirect_name(&mut handle, dir, name, to, file_type);
            handle.stop().expect("a journal");
            done.expect("the directory is intact")
        };
        for (dir, parent) in [(&one, &two), (&two, &one)] {
            assert!(redirect(dir, b"..", parent.ino, FileType::Directory));
            assert_eq!(bed.find(dir, b".."), Some(parent.ino));
            assert_eq!(bed.find(dir, b"."), Some(dir.ino));
        }
        // As it must be for e2fsck.
        for child in [&one, &two] {
            assert!(redirect(child, b"..", dir.ino, FileType::Directory));
        }
        let (_, target) = bed.target(&names[1]);
        assert!(redirect(&one, &names[0], target, FileType::Regular));
        assert_eq!(bed.find(&one, &names[0]), Some(target));
        assert!(redirect(
            &one,
            &names[0],
            bed.target(&names[0]).1,
            FileType::Regular
        ));
        assert!(!redirect(&one, b"absent", target, FileType::Regular));
        assert!(mount.is_indexed(&one));
        drop((one, two, dir, mount));
        bed.close();
    }
}

#[test]
fn index_that_makes_no_sense_is_given_up_without_checksums_only() {
    for checksums in [false, true] {
        let features = if checksums {
            "metadata_csum"
        } else {
            "^metadata_csum"
        };
        let mut bed = Bed::new(small().features(features));
        let dir = bed.dir("/d");
        let names: Vec<Vec<u8>> = (0..100).map(|at| name(at, 40)).collect();
        bed.add_all(&dir, &names).expect("there is space");
        let mount = bed.fs.0.clone();
        let root = crate::map::load::lookup_or_load(&mount, &dir, 0.into(), 1);
        let root = root.expect("it is mapped").pblk;
        let at = (root.0 << mount.block_bits) + 0x1D;
        drop((dir, mount));
        let image = bed.close();
        {
            use std::os::unix::fs::FileExt;
            let file = std::fs::File::options().write(true).open(image.path());
            file.expect("the image")
                .write_all_at(&[7], at)
                .expect("a write");
        }
        let mut bed = Bed::on(image);
        let dir = bed.dir("/d");
        let added = bed.add(&dir, b"another");
        assert_eq!(added.is_ok(), !checksums);
        let has_index = dir.flags().contains(InodeFlags::INDEX);
        assert_eq!(has_index, checksums);
        if let Err(error) = added {
            let text = error.to_string();
            let coordinates = [format!("inode {}", dir.ino), format!("block {root}")];
            assert!(coordinates.iter().all(|part| text.contains(part)), "{text}");
            continue;
        }
        let expected = [&names[..], &[b"another".to_vec()]].concat();
        bed.check(&dir, &set(&expected));
        bed.close();
    }
}

// As Linux: what the index said is not kept up, so it says nothing any more.
#[test]
fn index_is_given_up_by_a_new_name_once_the_feature_is_cleared() {
    for (count, len) in [(60, 40), (61, 40), (80, 200)] {
        let mut bed = Bed::new(small().features("^metadata_csum"));
        let dir = bed.dir("/d");
        let mut names: Vec<Vec<u8>> = (0..count).map(|at| name(at, len)).collect();
        bed.add_all(&dir, &names).expect("there is space");
        assert!(bed.mount().is_indexed(&dir));
        drop(dir);
        let image = bed.close();
        debugfs(image.path(), &["feature -dir_index"]);
        let mut bed = Bed::on(image);
        let dir = bed.dir("/d");
        names.push(name(count, len));
        bed.add(&dir, &names[count]).expect("there is space");
        assert!(!dir.flags().contains(InodeFlags::INDEX));
        bed.check(&dir, &set(&names));
        drop(dir);
        bed.close();
    }
}

#[test]
fn new_directory_is_inline_where_that_is_possible() {
    let mut bed = Bed::new(small().features("inline_data"));
    let dir = bed.dir("/d");
    let child = bed.make_dir(&dir, b"child");
    assert!(child.has_inline_data());
    assert!(
        bed.mount()
            .sb
            .features()
            .incompat
            .contains(Incompat::INLINE_DATA)
    );
    assert!(bed.mount().is_empty_dir(&child).expect("it is intact"));
    drop(child);
    bed.close();
    let mut bed = Bed::new(small());
    let dir = bed.dir("/d");
    let child = bed.make_dir(&dir, b"child");
    assert!(!child.has_inline_data() && child.i_size() == 1024);
    assert_eq!(bed.find(&child, b".."), Some(dir.ino));
    drop(child);
    bed.close();
}
