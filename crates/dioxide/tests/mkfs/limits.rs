//! Wishes that cannot be fulfilled are refused with their names, and large ones are cheap.

use super::{Made, fixed, from_words};
use dioxide::{Error, Mkfs};
use std::os::unix::fs::MetadataExt;

#[test]
fn size_that_holds_nothing_is_refused() {
    for bytes in [0, 1, 1024, 10 << 10, 40 << 10] {
        let error = fixed().plan(bytes).unwrap_err();
        assert!(matches!(error, Error::Invalid(_)), "{bytes}: {error}");
    }
}

#[test]
fn size_of_every_block_count_makes_a_plan_or_a_refusal() {
    for kib in (40..3000).step_by(7).chain((60_000..70_000).step_by(97)) {
        for words in [
            "-t ext2",
            "-t ext4",
            "-t ext4 -b 4096",
            "-t ext4 -O bigalloc",
        ] {
            match from_words(words).plan(kib << 10) {
                Ok(plan) => {
                    let sb = plan.superblock();
                    sb.validate(Some(kib << 10)).unwrap();
                    assert!(sb.free_blocks_count() < sb.blocks_count(), "{kib} {words}");
                }
                Err(Error::Invalid(_)) => assert!(kib < 1200, "{kib} {words}"),
                Err(error) => panic!("{kib} {words}: {error}"),
            }
        }
    }
}

#[test]
fn wishes_that_contradict_each_other_name_what_is_wrong() {
    let wrong: [(Mkfs, &str); 12] = [
        (from_words("-C 65536"), "bigalloc"),
        (
            from_words("-b 1024 -C 67108864 -O bigalloc"),
            "more than 32768 blocks",
        ),
        (from_words("-G 4 -O ^flex_bg"), "flex_bg"),
        (from_words("-N 4000000"), "inodes"),
        (from_words("-I 128 -O inline_data"), "inline_data"),
        (from_words("-I 4096 -b 1024"), "inode size 4096"),
        (from_words("-J size=60"), "journal"),
        (from_words("-J location=65536"), "block 65536"),
        (from_words("-J location=1T"), "a journal at"),
        (from_words("-E resize=1000"), "resize"),
        (
            from_words("-O ^resize_inode,^sparse_super -E resize=1T"),
            "sparse_super",
        ),
        (
            from_words("-E packed_meta_blocks=1 -O ^flex_bg"),
            "packed_meta_blocks",
        ),
    ];
    for (mkfs, named) in wrong {
        let error = mkfs.plan(64 << 20).unwrap_err().to_string();
        assert!(error.contains(named), "{error}");
    }
}

#[test]
fn number_outside_its_range_is_refused() {
    assert!(fixed().block_size(512).is_err() && fixed().block_size(3000).is_err());
    assert!(fixed().inode_size(64).is_err() && fixed().inode_size(65536).is_err());
    assert!(fixed().bytes_per_inode(512).is_err());
    assert!(fixed().reserved_percent(50.5).is_err() && fixed().reserved_percent(-1.0).is_err());
    assert!(fixed().reserved_percent(f64::NAN).is_err());
    assert!(fixed().label("seventeen letters").is_err());
    assert!(fixed().flex_groups(3).is_err());
}

#[test]
fn sizes_past_the_format_are_refused() {
    assert!(fixed().plan(u64::MAX).is_err());
    assert!(from_words("-t ext2 -b 1024").plan(8 << 40).is_err());
    let plan = fixed().plan(64 << 40).unwrap();
    assert_eq!(plan.superblock().blocks_count(), (64 << 40) / 4096);
}

#[test]
fn terabyte_in_a_sparse_file_takes_little_space() {
    let begun = std::time::Instant::now();
    let made = Made::new(&fixed(), 1 << 40);
    // A tenth of a second, where nothing else runs and all is optimized.
    let took = begun.elapsed();
    assert!(took < std::time::Duration::from_secs(10), "{took:?}");
    let metadata = std::fs::metadata(made.path()).unwrap();
    assert_eq!(metadata.len(), 1 << 40);
    // Eighteen copies of 512 KiB of descriptors, and what little else there is.
    assert!(metadata.blocks() * 512 < 20 << 20, "{}", metadata.blocks());
}

/// Each block of it counts as a cluster.
#[test]
fn resize_inode_of_more_sectors_than_an_inode_counts_is_refused() {
    let words = "-b 65536 -C 134217728 -O bigalloc,^huge_file -E resize=9000000000000000";
    let error = from_words(words).plan(4 << 30).unwrap_err();
    assert!(matches!(error, Error::Invalid(_)), "{error}");
    let said = error.to_string();
    assert!(
        said.contains("without resize_inode, or with huge_file"),
        "{said}"
    );
    let with = from_words(words).features("huge_file").unwrap();
    with.plan(4 << 30).unwrap();
}

#[test]
fn orphan_file_that_linux_does_not_mount_is_refused() {
    for words in [
        "-O orphan_file -b 4096 -E orphan_file_size=1024",
        "-O orphan_file,bigalloc -b 4096 -C 4194304",
    ] {
        let error = from_words(words).plan(8 << 30).unwrap_err().to_string();
        assert!(error.contains("orphan file"), "{words}: {error}");
    }
    let most = "-O orphan_file -b 4096 -E orphan_file_size=512";
    from_words(most).plan(8 << 30).unwrap();
}

#[test]
fn area_for_fast_commits_has_bounds_that_are_named() {
    for (size, words, bound) in [
        // A block.
        (64 << 20, "-b 4096 -J fast_commit_size=3", "4 KiB"),
        // Half of what is free.
        (64 << 20, "-J fast_commit_size=60000", "half"),
        (64 << 20, "-J size=4,fast_commit_size=60000", "half"),
        (64 << 20, "-J fast_commit_size=4294967295", "10240000"),
        (1 << 40, "-J fast_commit_size=4294967295", "10240000"),
        (
            1 << 40,
            "-b 4096 -J size=40000,fast_commit_size=4",
            "10240000",
        ),
    ] {
        let mkfs = from_words(words).features("fast_commit").unwrap();
        let error = mkfs.plan(size).unwrap_err();
        assert!(matches!(error, Error::Invalid(_)), "{words}: {error}");
        assert!(error.to_string().contains(bound), "{words}: {error}");
    }
    let most = from_words("-b 4096 -O fast_commit -J size=39996,fast_commit_size=4096");
    most.plan(1 << 40).unwrap();
}

/// `mke2fs` takes them and does nothing.
#[test]
fn option_without_its_feature_is_refused_by_name() {
    for (words, option, feature) in [
        ("-J fast_commit_size=256", "fast_commit_size", "fast_commit"),
        (
            "-O fast_commit,^has_journal -J fast_commit_size=256",
            "fast_commit_size",
            "has_journal",
        ),
        ("-t ext2 -J location=5000", "location", "has_journal"),
        ("-E num_backup_sb=1", "num_backup_sb", "sparse_super2"),
        ("-E orphan_file_size=64k", "orphan_file_size", "orphan_file"),
        ("-E mmp_update_interval=5", "mmp_update_interval", "mmp"),
        ("-E quotatype=usrquota", "quotatype", "quota"),
        ("-O project -E quotatype=prj", "quotatype", "quota"),
    ] {
        let error = from_words(words).plan(64 << 20).unwrap_err();
        assert!(matches!(error, Error::Invalid(_)), "{words}: {error}");
        let said = format!("{option} needs the feature {feature}");
        assert!(error.to_string().contains(&said), "{words}: {error}");
    }
}

/// They wrapped: the file system of a time before 1970 was said to be made in 2106.
#[test]
fn time_that_a_superblock_cannot_have_becomes_the_nearest() {
    for (secs, low, high) in [(-1, 0, 0), (1 << 41, u32::MAX, u8::MAX), (1 << 32, 0, 1)] {
        let plan = fixed().epoch(secs).plan(16 << 20).unwrap();
        let disk = plan.superblock().disk();
        let times = [
            (disk.s_mkfs_time, disk.s_mkfs_time_hi),
            (disk.s_wtime, disk.s_wtime_hi),
            (disk.s_lastcheck, disk.s_lastcheck_hi),
        ];
        assert_eq!(times, [(low, high); 3], "{secs}");
    }
}
