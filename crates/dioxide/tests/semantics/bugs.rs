//! Section G: what went wrong in the kernels' direct I/O, a test each.

use crate::bed::*;
use dioxide::block::sim::{Fault, FaultKind, FaultOp};
use dioxide::{
    CompletionMode, Error, FallocateMode, Fs, MapKind, MountOptions, OpenOptions, Policy,
    QueueOptions,
};
use dioxide_testkit::{Image, debugfs, e2fsck_clean, e2fsck_consistent};

// "Inline-data check spans a lock cycle". Whoever finds a content in the inode acts on it under the same lock:
// of many writes at once each is there in the end, whether it was made to the inode or to the block.
#[test]
fn g_inline_data_written_by_many_at_once_loses_nothing() {
    for policy in Policy::ALL {
        let bed = Bed::with(Layout::Inline, policy);
        let options = OpenOptions::new().read(true).write(true).direct(false);
        let file = options.open(&bed, "/small").expect("it exists");
        let write = |number: usize| {
            let file = file.clone();
            // Up to 40 bytes fit, more do not.
            let offset = (number * number * 40) as u64;
            start(move || file.write_at(&bytes(number as u8 + 1, 20), offset))
        };
        let writers: Vec<_> = (0..6).map(write).collect();
        for writer in &writers {
            assert_eq!(finish(writer).expect("room"), 20, "{policy}");
        }
        let all = read_all(&file);
        assert_eq!(all.len(), 25 * 40 + 20);
        for number in 0..6 {
            let at = number * number * 40;
            assert_all(&all[at..at + 20], number as u8 + 1);
        }
        assert_all(&all[20..40], 7);
        let mut queue = bed.queue();
        queue.write(&file, 0, bytes(9, BLOCK), 0).expect("room");
        reap_all_ok(&mut queue, 1);
        assert_all(&read_all(&file), 9);
    }
}

// The same, with one of them in the middle of moving the content out: whoever found it in the inode before looks again.
#[test]
fn g_inline_data_that_moves_out_meanwhile_is_written_where_it_is_then() {
    for policy in Policy::ALL {
        let bed = Bed::with(Layout::Inline, policy);
        let options = OpenOptions::new().read(true).write(true).direct(false);
        let file = options.open(&bed, "/small").expect("it exists");
        let hold = bed.sim.hold(None, FaultOp::Write);
        let write = |value: u8, offset: u64| {
            let file = file.clone();
            start(move || file.write_at(&bytes(value, 20), offset))
        };
        let mover = write(1, 1000);
        hold.wait_for(1);
        let before = bed.stats().lock_waits;
        let mut queue = bed.queue();
        queue.write(&file, 20, bytes(2, 10), 0).expect("room");
        let second = write(3, 0);
        // One in a worker, and one here.
        while bed.stats().lock_waits < before + 2 {
            std::thread::yield_now();
        }
        assert_eq!(hold.waiting(), 1, "{policy}");
        hold.release();
        for writer in [mover, second] {
            assert_eq!(finish(&writer).expect("room"), 20, "{policy}");
        }
        reap_all_ok(&mut queue, 1);
        let mut expected = vec![0; 1020];
        expected[..20].fill(3);
        expected[20..30].fill(2);
        expected[30..40].fill(7);
        expected[1000..].fill(1);
        assert!(read_all(&file) == expected, "{policy}");
    }
}

// A content in the inode takes any alignment, through any handle.
#[test]
fn g_inline_data_is_written_in_the_inode_through_queues() {
    for policy in Policy::ALL {
        let bed = Bed::with(Layout::Inline, policy);
        let options = OpenOptions::new().read(true).write(true).direct(true);
        let file = options.open(&bed, "/small").expect("it exists");
        let mut queue = bed.queue();
        queue.write(&file, 5, bytes(1, 10), 0).expect("room");
        reap_all_ok(&mut queue, 1);
        queue.read(&file, 3, bytes(0, 20), 1).expect("room");
        let done = reap(&mut queue, 1).pop().expect("one");
        assert_eq!(done.result.expect("readable"), 20, "{policy}");
        assert_eq!(done.buf[..4], [7, 7, 1, 1]);
        assert_eq!(read_all(&file).len(), 40);
        let error = file.try_write_at(&[1], 0).expect_err("no direct path");
        assert_eq!(error.errno(), libc::EOPNOTSUPP, "{policy}");
        // Behind what fits, it moves out and goes on.
        assert_eq!(file.write_at(&[3; 30], 900).expect("room"), 30);
        let error = file.write_at(&[3; 30], 1).expect_err("in blocks now");
        assert_eq!(error.errno(), libc::EINVAL, "{policy}");
    }
}

// "OVERWRITE_ONLY false positive": the device's EAGAIN is the caller's; nobody tries for ever.
#[test]
fn g_eagain_of_the_device_reaches_the_caller() {
    for policy in Policy::ALL {
        let bed = Bed::new(policy);
        for (path, offset, len) in [
            ("/data", 0, BLOCK),
            ("/data", 512, 512),
            ("/hole", 0, BLOCK),
            ("/unwritten", 512, 512),
            ("/data", SIZE, BLOCK),
        ] {
            let file = bed.open(path);
            let again = FaultKind::Io(libc::EAGAIN);
            let fault = bed.sim.inject(Fault::once(FaultOp::Write, again));
            let error = file
                .write_at(&bytes(1, len), offset as u64)
                .expect_err("the device would block");
            assert_eq!(error.errno(), libc::EAGAIN, "{policy}");
            assert_eq!(bed.sim.remove(fault), Some(1));
            let mut queue = bed.queue();
            bed.sim.inject(Fault::once(FaultOp::Write, again));
            let data = bytes(1, len);
            queue.write(&file, offset as u64, data, 0).expect("room");
            let done = reap(&mut queue, 1).pop().expect("one");
            let error = done.result.expect_err("the device would block");
            assert_eq!(error.errno(), libc::EAGAIN, "{policy}");
        }
    }
}

#[test]
fn g_o_sync_append_keeps_its_size() {
    for policy in Policy::ALL {
        let bed = Bed::new(policy);
        let file = OpenOptions::new().append(true).sync(true);
        let file = file.open(&bed, "/data").expect("it exists");
        file.write_at(&bytes(3, 5000), 0).expect("room");
        recover(&bed.crash_now(), |fs| {
            let file = open_rw(fs, "/data");
            assert_eq!(file.len(), SIZE as u64 + 5000, "{policy}");
            assert_all(&read(&file, SIZE..SIZE + 5000), 3);
        });
    }
}

// "File position advanced twice or not at all". The only position that there is is the end, for appends.
#[test]
fn g_append_position_advances_exactly_once() {
    for policy in Policy::ALL {
        let bed = Bed::new(policy);
        let file = OpenOptions::new().read(true).append(true);
        let file = file.open(&bed, "/small").expect("it exists");
        let mut queue = bed.queue();
        let mut end = 1000;
        for len in [24, 512, BLOCK, 3 * BLOCK, 1] {
            assert_eq!(file.write_at(&bytes(1, len), 0).expect("room"), len);
            end += len;
            assert_eq!(file.len(), end as u64, "{policy}");
            queue.write(&file, 0, bytes(2, len), 0).expect("room");
            reap_all_ok(&mut queue, 1);
            end += len;
            assert_eq!(file.len(), end as u64, "{policy}");
            bed.sim
                .inject(Fault::once(FaultOp::Write, FaultKind::Io(libc::EIO)));
            file.write_at(&bytes(3, len), 0).expect_err("a fault");
            assert_eq!(file.len(), end as u64, "{policy}");
        }
        assert!(!read_all(&file).contains(&3), "{policy}");
    }
}

// "Clean-up ignored the orphan file": after a failed extension nothing is left in either.
#[test]
fn g_failed_extension_leaves_no_orphan_of_either_format() {
    for layout in [Layout::Default, Layout::OrphanList] {
        for policy in [Policy::V56, Policy::Best, Policy::Xfs] {
            let bed = Bed::with(layout, policy);
            let file = bed.open("/data");
            bed.sim
                .inject(Fault::once(FaultOp::Write, FaultKind::Io(libc::EIO)));
            file.write_at(&blocks(3, 3), SIZE as u64)
                .expect_err("a fault");
            file.sync_all().expect("a sync");
            recover(&bed.crash_now(), |fs| {
                let told = fs.warnings().join("; ");
                assert!(!told.contains("orphan"), "{layout:?}, {policy}: {told}");
                assert!(read_all(&open_rw(fs, "/data")) == content());
            });
        }
    }
}

#[test]
fn g_fua_on_unwritten() {
    for policy in Policy::ALL {
        let bed = Bed::new(policy);
        let file = OpenOptions::new().read(true).write(true).dsync(true);
        let file = file.open(&bed, "/unwritten").expect("it exists");
        for block in [3, 4, 40] {
            file.write_at(&blocks(5, 1), block * BLOCK as u64)
                .expect("room");
            recover(&bed.crash_now(), |fs| {
                let at = block as usize * BLOCK;
                let file = open_rw(fs, "/unwritten");
                assert_all(&read(&file, at..at + BLOCK), 5);
            });
        }
    }
}

// The other half of the row: blocks that are mapped, and an end that the disk does not know.
#[test]
fn g_dsync_of_a_mapping_that_spans_eof() {
    for policy in Policy::ALL {
        let bed = Bed::new(policy);
        let file = OpenOptions::new().read(true).write(true).dsync(true);
        let file = file.open(&bed, "/data").expect("it exists");
        file.write_at(&blocks(5, 1), 63 * BLOCK as u64)
            .expect("room");
        recover(&bed.crash_now(), |fs| {
            let file = open_rw(fs, "/data");
            assert_eq!(file.len(), 64 * BLOCK as u64, "{policy}");
            assert_all(&read(&file, 63 * BLOCK..64 * BLOCK), 5);
        });
    }
}

// "DIO read returns zeros before conversion": who was told that it is written reads it, while conversions queue
// up behind commits.
#[test]
fn g_read_after_a_write_into_unwritten_sees_it() {
    for policy in Policy::ALL {
        let bed = Bed::new(policy);
        let (file, other) = (bed.open("/unwritten"), bed.open("/hole"));
        let syncer = start(move || {
            for block in 0..20 {
                let at = block * BLOCK as u64;
                other.write_at(&blocks(1, 1), at).expect("room");
                other.sync_data().expect("a sync");
            }
        });
        let mut queue = bed.queue();
        for block in 0..UNWRITTEN {
            let at = block * BLOCK;
            if block % 2 == 0 {
                file.write_at(&blocks(6, 1), at as u64).expect("room");
            } else {
                queue
                    .write(&file, at as u64, blocks(6, 1), 0)
                    .expect("room");
                reap_all_ok(&mut queue, 1);
            }
            assert_all(&read(&file, at..at + BLOCK), 6);
            assert_eq!(kind(&file, block as u32), MapKind::Mapped, "{policy}");
        }
        finish(&syncer);
    }
}

// "Shared end-of-I/O pointer in nolock": overwrites and conversions of one file in flight together.
#[test]
fn g_mixed_overwrites_and_conversions_each_end_their_own() {
    for policy in Policy::ALL {
        for mode in [CompletionMode::Inline, CompletionMode::Deferred] {
            let bed = Bed::new(policy);
            bed.set_completion(mode);
            let file = bed.open("/unwritten");
            file.write_at(&blocks(1, 4), 0).expect("room");
            let mut queue = bed.queue();
            for block in 0..8 {
                let at = block * BLOCK as u64;
                queue
                    .write(&file, at, blocks(10 + block as u8, 1), block)
                    .expect("room");
            }
            reap_all_ok(&mut queue, 8);
            for block in 0..8 {
                let at = block * BLOCK;
                assert_all(&read(&file, at..at + BLOCK), 10 + block as u8);
                assert_eq!(kind(&file, block as u32), MapKind::Mapped, "{policy}");
            }
            assert_eq!(kind(&file, 8), MapKind::Unwritten, "{policy}");
        }
    }
}

#[test]
fn g_first_ever_queued_read_fails_in_a_worker_once() {
    for mode in [CompletionMode::Inline, CompletionMode::Deferred] {
        let bed = Bed::new(Policy::Best);
        bed.set_completion(mode);
        let file = bed.open("/data");
        let mut queue = bed.queue();
        bed.sim
            .inject(Fault::once(FaultOp::Read, FaultKind::Io(libc::EIO)));
        queue.read(&file, 0, blocks(0, 1), 1).expect("room");
        let done = reap(&mut queue, 1).pop().expect("one");
        assert_eq!(done.result.expect_err("a fault").errno(), libc::EIO);
        assert_eq!(bed.stats().completed_deferred, 1);
        queue.read(&file, 0, blocks(0, 1), 2).expect("room");
        reap_all_ok(&mut queue, 1);
    }
}

/// A file of four unwritten extents, all that its inode holds, and no free block for more.
fn full_root(policy: Policy) -> (Bed, dioxide::File) {
    let bed = Bed::new(policy);
    let file = bed.open_privileged("/empty");
    for extent in 0..4 {
        let at = extent * 16 * BLOCK as u64;
        file.allocate(FallocateMode::Allocate, at, 8 * BLOCK as u64)
            .expect("room");
    }
    take_every_block(&bed);
    (bed, file)
}

// "Extent split": no block is left for the tree. The rest of the extent becomes zeros, and only with the data.
#[test]
fn g_extent_split_without_space_zeroes_the_rest() {
    for policy in Policy::ALL {
        for (offset, len) in [(3 * BLOCK, BLOCK), (19 * BLOCK + 100, 700)] {
            let (bed, file) = full_root(policy);
            let size = file.len() as usize;
            file.write_at(&bytes(7, len), offset as u64)
                .expect("it is allocated");
            let mut expected = vec![0; size];
            expected[offset..offset + len].fill(7);
            assert!(read_all(&file) == expected, "{policy}");
            file.sync_data().expect("a sync");
            recover(&bed.crash_now(), |fs| {
                assert!(read_all(&open_rw(fs, "/empty")) == expected, "{policy}");
            });
        }
    }
}

// The same with a write that goes to one extent in two parts: what the first had filled with zeros was the second.
#[test]
fn g_extent_split_without_space_keeps_all_of_a_large_write() {
    const KIB: u64 = 1024;
    const LEN: usize = 36 << 20;
    let image = Image::builder().size(64 << 20).block_size(1024);
    let image = image.features("sparse_super2,^has_journal,^resize_inode");
    let image = image.args(&["-N", "2048", "-E", "num_backup_sb=0"]).build();
    let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
    let options = OpenOptions::new().read(true).write(true).create(true);
    let options = options.resource(true);
    let file = options.open(&fs, "/file").expect("room");
    // Four extents, as many as its inode holds: two of one run, which is longer than an extent, and two more.
    for (at, len) in [(0, 40 << 20), (60 << 20, KIB), (62 << 20, KIB)] {
        file.allocate(FallocateMode::Allocate, at, len)
            .expect("room");
    }
    assert_eq!(file.map(0, 40 << 10).expect("its map").len, 40 << 10);
    // What is kept aside for maps goes to these.
    let many: Vec<_> = (0..1400)
        .map(|number| {
            let file = options.open(&fs, format!("/{number}")).expect("room");
            for extent in 0..4 {
                file.allocate(FallocateMode::Allocate, extent * 4 * KIB, 3 * KIB)
                    .expect("room");
            }
            file
        })
        .collect();
    let (filler, mut at) = (options.open(&fs, "/filler").expect("room"), 0);
    for step in [256 * KIB, 16 * KIB, KIB] {
        while filler.allocate(FallocateMode::KeepSize, at, step).is_ok() {
            at += step;
        }
    }
    for file in &many {
        if fs.statfs().blocks_free > 0 {
            file.write_at(&[1; 1024], KIB).expect("it has blocks");
        }
    }
    assert_eq!(fs.statfs().blocks_free, 0);
    let data = vec![7; LEN];
    file.write_at(&data, KIB).expect("it is allocated");
    let mut found = vec![1; 40 << 20];
    file.read_at(&mut found, 0).expect("it is there");
    let (before, rest) = found.split_at(KIB as usize);
    assert_all(before, 0);
    assert_all(&rest[..LEN], 7);
    assert_all(&rest[LEN..], 0);
    drop((file, filler, many));
    fs.close().expect("a clean end");
    e2fsck_clean(image.path());
}

// A write of more blocks than an extent has begins in the middle of a cluster, and is cut in the middle of another.
#[test]
fn g_clusters_of_a_large_write_are_whole() {
    const LEN: usize = 40 << 20;
    let data: Vec<u8> = (0..LEN / 1024)
        .flat_map(|block| [(block % 251) as u8 + 1; 1024])
        .collect();
    for size in [0, 41 << 20] {
        let image = Image::builder().size(128 << 20).block_size(1024);
        let image = image.features("bigalloc").args(&["-C", "16384"]).build();
        let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
        let options = OpenOptions::new().read(true).write(true).create(true);
        let file = options.open(&fs, "/file").expect("room");
        file.set_len(size).expect("a size");
        file.write_at(&data, 3072).expect("room");
        let mut found = vec![0; LEN];
        file.read_at(&mut found, 3072).expect("it is there");
        assert!(found == data, "{size}");
        fs.sync().expect("a sync");
        e2fsck_consistent(image.copy().path());
        file.allocate(FallocateMode::PunchHole, 1 << 20, 20 << 20)
            .expect("it is there");
        drop(file);
        fs.remove_file("/file").expect("it is there");
        fs.close().expect("a clean end");
        e2fsck_clean(image.path());
    }
}

#[test]
fn g_crash_in_an_extent_split_without_space_exposes_nothing() {
    let (bed, file) = full_root(Policy::Best);
    file.write_at(&blocks(7, 1), 3 * BLOCK as u64)
        .expect("it is allocated");
    file.sync_data().expect("a sync");
    let size = file.len() as usize;
    bed.each_crash(&mut |fs, state| {
        let now = read_all(&open_rw(fs, "/empty"));
        assert!(now.len() <= size);
        for (block, bytes) in now.chunks(BLOCK).enumerate() {
            let is_old = bytes == &[0; BLOCK][..bytes.len()];
            assert!(
                is_old || block == 3 && bytes.iter().all(|byte| [0, 7].contains(byte)),
                "{state}: block {block}"
            );
        }
    });
}

#[test]
fn g_failed_io_in_an_extent_split_without_space_leaves_it_unwritten() {
    for policy in Policy::ALL {
        // The data, then the zeros before it, then those behind it.
        for skip in 0..3 {
            let (bed, file) = full_root(policy);
            let fault = Fault {
                skip,
                ..Fault::once(FaultOp::Write, FaultKind::Io(libc::EIO))
            };
            let fault = bed.sim.inject(fault);
            file.write_at(&blocks(7, 1), 3 * BLOCK as u64)
                .expect_err("a fault");
            assert_eq!(bed.sim.remove(fault), Some(1), "{policy}, {skip}");
            assert_eq!(kind(&file, 3), MapKind::Unwritten, "{policy}, {skip}");
            assert_all(&read_all(&file), 0);
            file.write_at(&blocks(8, 1), 3 * BLOCK as u64)
                .expect("it is allocated");
            assert_all(&read(&file, 3 * BLOCK..4 * BLOCK), 8);
        }
    }
}

// generic/299: allocation and punching against writes in flight.
#[test]
fn g_fallocate_against_aio_keeps_data() {
    for policy in Policy::ALL {
        let bed = Bed::new(policy);
        let file = bed.open("/hole");
        let puncher = {
            let file = file.clone();
            start(move || {
                for _ in 0..10 {
                    file.allocate(FallocateMode::KeepSize, 0, 100 * BLOCK as u64)
                        .expect("room");
                    file.allocate(FallocateMode::PunchHole, 32 * BLOCK as u64, 68 << 12)
                        .expect("it is allocated");
                }
            })
        };
        let mut queue = bed.queue();
        for round in 0..4 {
            for block in 0..16u8 {
                let at = u64::from(block) * 2 * BLOCK as u64;
                let data = blocks(1 + round * 16 + block, 1);
                queue.write(&file, at, data, 0).expect("room");
            }
            reap_all_ok(&mut queue, 16);
        }
        finish(&puncher);
        for block in 0..16 {
            let at = 2 * block * BLOCK;
            assert_all(&read(&file, at..at + BLOCK), 49 + block as u8);
        }
    }
}

// generic/422, as far as it is about blocks smaller than pages.
#[test]
fn g_one_kib_blocks_count_and_read_right() {
    for policy in Policy::ALL {
        let bed = Bed::with(Layout::Blocks1k, policy);
        let (file, hole) = (bed.open("/unwritten"), bed.open("/hole"));
        let before = (bed.free(), hole.metadata().blocks);
        let mut expected = vec![0; SIZE];
        for (value, offset, len) in [
            (1, 1024, 1024),
            (2, 3000, 200),
            (3, 5 * 1024 - 1, 2),
            (4, 9 * 1024 + 512, 3 * 1024),
            (5, 20 * 1024, 512),
        ] {
            for file in [&file, &hole] {
                file.write_at(&bytes(value, len), offset).expect("room");
            }
            expected[offset as usize..offset as usize + len].fill(value);
        }
        assert!(read_all(&hole) == expected, "{policy}");
        assert!(read_all(&file)[..SIZE] == expected[..], "{policy}");
        // 1, 2 and 3, 4 and 5, 9 to 12, 20; and the block that a tree of more than four extents has.
        let blocks = hole.metadata().blocks - before.1;
        assert_eq!(blocks % 2, 0);
        let new = (before.0 - bed.free()) * 2;
        assert!(
            new >= blocks && blocks >= 2 * (1 + 1 + 2 + 4 + 1),
            "{policy}"
        );
    }
}

// "RFC v1 leaked i_rwsem if the modified-step failed".
#[test]
fn g_failed_privilege_strip_leaks_no_lock() {
    // Attributes that cannot be read may hold a capability, and that cannot be stripped.
    let tree = tempfile::tempdir().expect("a folder");
    std::fs::write(tree.path().join("damaged"), content()).expect("room");
    let image = Image::builder().source(tree.path()).build();
    let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
    let last = fs.superblock().blocks_count() - 1;
    fs.close().expect("a clean end");
    debugfs(image.path(), &[&format!("sif /damaged file_acl {last}")]);
    for policy in Policy::ALL {
        let options = MountOptions::new().policy(policy);
        let fs = Fs::open(image.path(), &options).expect("it opens");
        let file = open_rw(&fs, "/damaged");
        for (offset, len) in [(0, BLOCK), (100, 100), (SIZE, BLOCK)] {
            let result = file.write_at(&bytes(1, len), offset as u64);
            assert!(matches!(result, Err(Error::Checksum { .. })), "{policy}");
            let mut queue = fs.queue(&QueueOptions::default()).expect("a queue");
            let data = bytes(1, len);
            queue.write(&file, offset as u64, data, 0).expect("room");
            let done = reap(&mut queue, 1).pop().expect("one");
            done.result.expect_err("it cannot be stripped");
        }
        file.set_len(0).expect_err("it cannot be stripped");
        let set = dioxide::SetAttributes::new().gid(7);
        let alone = {
            let file = file.clone();
            start(move || file.set_attributes(&set))
        };
        finish(&alone).expect("nobody has the lock");
        assert!(read_all(&file) == content(), "{policy}");
    }
}

// The other half of that row: NOWAIT does not wait for the stronger lock.
#[test]
fn g_no_wait_upgrade_does_not_wait() {
    for policy in Policy::ALL {
        let bed = Bed::new(policy);
        let file = bed.open("/setuid");
        let hold = bed.sim.hold(Some(place(&file, 0)), FaultOp::Read);
        // Shared for all of the I/O, under the policies since 4.9.
        let reader = {
            let file = file.clone();
            start(move || file.read_at(&mut blocks(0, 1), 0))
        };
        hold.wait_for(1);
        let tried = {
            let file = file.clone();
            start(move || file.try_write_at(&blocks(1, 1), 0))
        };
        let result = finish(&tried);
        assert!(matches!(result, Err(Error::WouldBlock(_))), "{policy}");
        hold.release();
        finish(&reader).expect("readable");
    }
}

#[test]
fn g_no_wait_of_two_extents_the_second_a_hole_writes_nothing() {
    for policy in Policy::ALL {
        let bed = Bed::new(policy);
        let file = bed.open("/hole");
        file.write_at(&blocks(1, 1), 0).expect("room");
        let before = bed.free();
        let result = file.try_write_at(&blocks(2, 2), 0);
        assert!(matches!(result, Err(Error::WouldBlock(_))), "{policy}");
        assert_all(&read(&file, 0..BLOCK), 1);
        assert_all(&read(&file, BLOCK..2 * BLOCK), 0);
        assert_eq!(bed.free(), before, "{policy}");
        let mut queue = bed.queue();
        queue.write(&file, 0, blocks(2, 2), 0).expect("room");
        reap_all_ok(&mut queue, 1);
        assert_all(&read(&file, 0..2 * BLOCK), 2);
    }
}

// "EOF tail-zero equality gap": an unaligned overwrite that ends exactly at the end is late; what is written
// behind it meanwhile stays.
#[test]
fn g_late_overwrite_up_to_eof_zeroes_nothing_behind_it() {
    for policy in Policy::ALL {
        for (offset, len) in [(63 * BLOCK, BLOCK), (SIZE, BLOCK / 2), (SIZE, 2 * BLOCK)] {
            let bed = Bed::new(policy);
            let file = bed.open("/data");
            let start_of_last = (63 * BLOCK) as u64;
            // Only the overwrite: what comes after it may pass.
            let mut queue = bed.queue();
            let last = place(&file, 63);
            let hold = bed
                .sim
                .hold(Some(last.start..last.start + 512), FaultOp::Write);
            queue
                .write(&file, start_of_last, bytes(1, BLOCK / 2), 0)
                .expect("room");
            queue.submit().expect("a working queue");
            hold.wait_for_timeout(1, A_WHILE);
            let extender = {
                let file = file.clone();
                start(move || file.write_at(&bytes(2, len), offset as u64))
            };
            let early = extender.recv_timeout(A_WHILE).ok();
            hold.release();
            reap_all_ok(&mut queue, 1);
            let written = early.unwrap_or_else(|| finish(&extender));
            assert_eq!(written.expect("room"), len, "{policy}");
            assert_eq!(file.len(), (offset + len) as u64, "{policy}");
            assert_all(&read(&file, SIZE..offset + len), 2);
        }
    }
}
