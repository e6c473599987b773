//! Section A up to A6: the order of errors, what no-wait does, and what failed writes leave.

use crate::bed::*;
use dioxide::block::sim::{Fault, FaultKind, FaultOp};
use dioxide::policy::LockMode;
use dioxide::{
    Buf, Direction, Error, FallocateMode, File, MapKind, MountOptions, OpenOptions, Policy,
    SetAttributes,
};
use dioxide_format::inode::InodeFlags;
use std::io::IoSlice;

fn set_flags(bed: &Bed, path: &str, add: u32) {
    let flags = bed.metadata(path).expect("it exists").flags;
    let set = SetAttributes::new().flags(flags & !RESTRICTED | add);
    bed.set_attributes(path, &set).expect("it may change");
}

const RESTRICTED: u32 = InodeFlags::IMMUTABLE.0 | InodeFlags::APPEND.0;

fn errno<T: std::fmt::Debug>(result: dioxide::Result<T>) -> i32 {
    result.expect_err("it is refused").errno()
}

#[test]
fn a1_write_without_access_is_ebadf_before_anything_else() {
    let bed = Bed::new(Policy::Best);
    let options = OpenOptions::new().read(true).direct(true);
    let file = options.open(&bed, "/data").expect("it exists");
    assert_eq!(errno(file.write_at(&[1; 3], u64::MAX)), libc::EBADF);
    assert_eq!(errno(file.set_len(u64::MAX)), libc::EBADF);
    assert_eq!(
        errno(file.allocate(FallocateMode::Allocate, 0, 0)),
        libc::EBADF
    );
}

#[test]
fn a1_read_only_mount_is_erofs() {
    let options = MountOptions::new().read_only(true);
    let dir = tempfile::tempdir().expect("a folder");
    let image = dir.path().join("image");
    {
        let bed = Bed::new(Policy::Best);
        std::fs::write(&image, bed.crash_now().snapshot().to_vec()).expect("room");
    }
    let fs = dioxide::Fs::open(&image, &options).expect("it opens");
    let open = OpenOptions::new().write(true).open(&fs, "/data");
    assert_eq!(errno(open), libc::EROFS);
    let set = SetAttributes::new().mode(0);
    assert_eq!(errno(fs.set_attributes("/data", &set)), libc::EROFS);
    assert_eq!(errno(fs.trim(0..1 << 20, 0)), libc::EROFS);
    fs.sync().expect("nothing to do");
    fs.close().expect("nothing to do");
}

// A2: memory counts. What lies in whole blocks of the file and is written from between two blocks of memory is unaligned,
// and no less allowed.
#[test]
fn a2_memory_between_blocks_makes_a_write_unaligned() {
    for (policy, shared) in [(Policy::V56, 0), (Policy::V64, 1), (Policy::Best, 1)] {
        for skip in [512, 1, BLOCK - 512] {
            let bed = Bed::new(policy);
            let options = OpenOptions::new().read(true).write(true).direct(true);
            let file = options.open(&bed, "/data").expect("it exists");
            // A lock that is new has no short way.
            for _ in 0..16 {
                read(&file, 0..BLOCK);
            }
            let check = |what: &str, shared: u64, write: &dyn Fn() -> dioxide::Result<usize>| {
                let before = bed.stats();
                let written = write();
                let stats = bed.stats().since(&before);
                // It is not tried under the shared lock first.
                assert_eq!(stats.restarts, 0, "{policy}, {what}");
                match written {
                    Err(Error::WouldBlock(_)) if shared == 0 => assert_eq!(stats.would_block, 1),
                    written => {
                        let locks = (stats.writes_shared, stats.writes_exclusive);
                        assert_eq!(locks, (shared, 1 - shared), "{policy}, {what}");
                        assert_eq!(written.expect("written blocks") % BLOCK, 0);
                    }
                }
            };
            let memory = bytes(0xA2, 3 * BLOCK);
            let (whole, odd) = (&memory[..BLOCK], &memory[skip..][..BLOCK]);
            check("aligned", 1, &|| file.write_at(whole, 0));
            check("odd", shared, &|| file.write_at(odd, BLOCK as u64));
            check("a try", shared, &|| file.try_write_at(odd, BLOCK as u64));
            let parts = [whole, odd].map(IoSlice::new);
            check("one of two", shared, &|| {
                file.write_vectored_at(&parts, 2 * BLOCK as u64)
            });
            assert_all(&read(&file, 0..4 * BLOCK), 0xA2);
        }
    }
}

/// Of the policies, `iomap55` asks for it: who reads waits for an overwrite that is at the device, or does not. Another
/// overwrite begins alone, and waits either way.
#[test]
fn a3_overwrite_under_dioread_lock_keeps_readers_out() {
    for nolock in [false, true] {
        let options = MountOptions::new().policy(Policy::Iomap55);
        let bed = Bed::on(Layout::Default, options.dioread_nolock(nolock));
        let file = bed.open("/data");
        let hold = bed.sim.hold(Some(place(&file, 2)), FaultOp::Write);
        let overwrite = |block: usize| {
            let file = file.clone();
            start(move || file.write_at(&blocks(0xA7, 1), (block * BLOCK) as u64))
        };
        let first = overwrite(2);
        hold.wait_for(1);
        let reader = file.clone();
        let reader = start(move || assert_all(&read(&reader, 9 * BLOCK..10 * BLOCK), 10));
        if nolock {
            finish(&reader);
        } else {
            assert_waits(&reader);
        }
        let second = overwrite(20);
        assert_waits(&second);
        hold.release();
        for overwrite in [first, second] {
            finish(&overwrite).expect("written blocks");
        }
        if !nolock {
            finish(&reader);
        }
        assert_all(&read(&file, 20 * BLOCK..21 * BLOCK), 0xA7);
    }
}

/// As in Linux: of a write that passes the largest file, what fits is written.
#[test]
fn a1_write_up_to_the_largest_file_is_short() {
    let bed = Bed::new(Policy::Best);
    let options = OpenOptions::new().read(true).write(true);
    let file = options.open(&bed, "/data").expect("it exists");
    let most = u64::from(u32::MAX) * u64::from(bed.block_size());
    let data = bytes(1, 4096);
    assert_eq!(file.write_at(&data, most - 512).expect("512 fit"), 512);
    let parts = [&data[..2048], &data[2048..]].map(IoSlice::new);
    let wrote = file.write_vectored_at(&parts, most - 3000);
    assert_eq!(wrote.expect("3000 fit"), 3000);
    assert_eq!(file.len(), most);
    let mut read = vec![0; 4096];
    assert_eq!(file.read_at(&mut read, most - 3000).expect("reads"), 3000);
    assert_eq!(read[..3000], data[..3000]);
    assert_eq!(errno(file.write_at(&data, most)), libc::EFBIG);
    let mut queue = bed.queue();
    for (offset, tag) in [(most - 512, 1), (most, 2)] {
        let pushed = queue.write(&file, offset, Buf::copy_of(&data), tag);
        assert!(pushed.is_ok());
    }
    let mut done = Vec::new();
    queue.wait(2, &mut done).expect("a working queue");
    done.sort_by_key(|completion| completion.tag);
    assert!(matches!(done[0].result, Ok(512)), "{done:?}");
    let refused = done[1].result.as_ref().expect_err("nothing fits");
    assert_eq!(refused.errno(), libc::EFBIG);
    drop(queue);
    file.set_len(0).expect("it is cut");
}

#[test]
fn what_lies_at_the_end_of_all_files_cannot_be_moved_on() {
    let bed = Bed::new(Policy::Best);
    let file = bed.open("/data");
    let block = u64::from(bed.block_size());
    let end = u64::from(u32::MAX) * block;
    let keep = |at| file.allocate(FallocateMode::KeepSize, at, 5 * block);
    keep(end - 20 * block).expect("room");
    let insert = |blocks: u64| file.allocate(FallocateMode::InsertRange, 0, blocks * block);
    assert_eq!(errno(insert(16)), libc::EFBIG);
    assert_eq!(file.len(), SIZE as u64);
    assert_eq!(read_all(&file), content());
    insert(15).expect("there is room for that much");
    assert_eq!(read_all(&file)[15 * block as usize..], content());
    assert_eq!(errno(insert(1)), libc::EFBIG);
    file.set_len(0).expect("it is cut");
}

// As in Linux, where A1.4 asks only whether the file has direct I/O, and the mapping how a request is aligned: what the
// file allows comes first.
#[test]
fn a1_misaligned_direct_write_is_einval_after_efbig() {
    for policy in Policy::ALL {
        let bed = Bed::new(policy);
        let options = OpenOptions::new().write(true).direct(true);
        let file = options.open(&bed, "/data").expect("it exists");
        let far = 1 << 44;
        for (offset, len) in [(1, 512), (0, 511), (SIZE as u64, 100)] {
            let result = file.write_at(&bytes(1, len), offset);
            assert_eq!(errno(result), libc::EINVAL, "{policy}: {len} at {offset}");
        }
        for offset in [far, far + 1, u64::MAX - 511, 1 << 63] {
            let result = file.write_at(&bytes(1, 512), offset);
            assert_eq!(errno(result), libc::EFBIG, "{policy}: at {offset}");
        }
        let mut queue = bed.queue();
        queue.write(&file, 3, bytes(1, 512), 0).expect("room");
        let error = reap(&mut queue, 1).pop().expect("one").result;
        assert_eq!(error.expect_err("misaligned").errno(), libc::EINVAL);
        assert_eq!(file.len(), SIZE as u64);
    }
}

// An append goes where the file ends, which may be where a direct write cannot go.
#[test]
fn a1_direct_append_behind_an_odd_end_is_einval() {
    let bed = Bed::new(Policy::Best);
    let options = OpenOptions::new().append(true).direct(true);
    let file = options.open(&bed, "/small").expect("it exists");
    assert_eq!(errno(file.write_at(&blocks(1, 1), 0)), libc::EINVAL);
    assert_eq!(file.len(), 1000);
    file.set_len(1024).expect("a size");
    file.write_at(&blocks(1, 1), 0).expect("room");
    assert_eq!(file.len(), 1024 + BLOCK as u64);
}

#[test]
fn a1_immutable_file_is_not_opened_for_writing() {
    let bed = Bed::new(Policy::Best);
    set_flags(&bed, "/data", InodeFlags::IMMUTABLE.0);
    let open = OpenOptions::new().write(true).open(&bed, "/data");
    assert_eq!(errno(open), libc::EPERM);
    set_flags(&bed, "/data", InodeFlags::APPEND.0);
    let open = OpenOptions::new().write(true).open(&bed, "/data");
    assert_eq!(errno(open), libc::EPERM);
    let file = OpenOptions::new().append(true).open(&bed, "/data");
    let file = file.expect("appending is what it allows");
    file.write_at(&bytes(1, 10), 0).expect("room");
    assert_eq!(file.len(), SIZE as u64 + 10);
}

// A1.6 and the row on fallocate: the flag counts for who has the file open.
#[test]
fn a1_file_made_immutable_while_open_is_not_written() {
    for policy in Policy::ALL {
        let bed = Bed::new(policy);
        let direct = OpenOptions::new().write(true).direct(true);
        let direct = direct.open(&bed, "/data").expect("it exists");
        let file = bed.open("/data");
        set_flags(&bed, "/data", InodeFlags::IMMUTABLE.0);
        assert_eq!(errno(direct.write_at(&bytes(1, 1), 1)), libc::EPERM);
        for offset in [0, SIZE as u64, 70 * BLOCK as u64, 1 << 44] {
            let result = file.write_at(&blocks(1, 1), offset);
            assert_eq!(errno(result), libc::EPERM, "{policy}: at {offset}");
        }
        let mut queue = bed.queue();
        queue.write(&file, 0, blocks(1, 1), 0).expect("room");
        let error = reap(&mut queue, 1).pop().expect("one").result;
        assert_eq!(error.expect_err("immutable").errno(), libc::EPERM);
        assert!(read_all(&file) == content(), "{policy}");
    }
}

#[test]
fn a1_file_made_immutable_while_open_keeps_its_size_and_blocks() {
    let bed = Bed::new(Policy::Best);
    let file = bed.open("/data");
    set_flags(&bed, "/data", InodeFlags::IMMUTABLE.0);
    assert_eq!(errno(file.set_len(0)), libc::EPERM);
    let allocated = file.allocate(FallocateMode::Allocate, 0, 1 << 20);
    assert_eq!(errno(allocated), libc::EPERM);
    assert!(read_all(&file) == content());
}

// Only what makes it longer is allowed; overwrites by who opened it before are not looked at, as in Linux.
#[test]
fn a1_append_only_file_is_not_cut_nor_punched() {
    let bed = Bed::new(Policy::Best);
    let before = bed.open("/data");
    set_flags(&bed, "/data", InodeFlags::APPEND.0);
    assert_eq!(errno(before.set_len(0)), libc::EPERM);
    assert_eq!(errno(before.set_len(1 << 20)), libc::EPERM);
    for mode in [
        FallocateMode::PunchHole,
        FallocateMode::ZeroRange,
        FallocateMode::CollapseRange,
        FallocateMode::InsertRange,
    ] {
        let result = before.allocate(mode, 0, BLOCK as u64);
        assert_eq!(errno(result), libc::EPERM, "{mode:?}");
    }
    before
        .allocate(FallocateMode::Allocate, 0, 70 * BLOCK as u64)
        .expect("room");
    assert_eq!(read_all(&before)[..SIZE], content());
}

#[test]
fn a1_empty_write_is_nothing() {
    let bed = Bed::new(Policy::Best);
    let file = bed.open("/setuid");
    assert_eq!(file.write_at(&[], u64::MAX).expect("nothing"), 0);
    assert_eq!(file.metadata().permissions, 0o4755);
    assert_eq!(file.len(), SIZE as u64);
}

/// What must not change by a no-wait write that would block.
fn state_of(bed: &Bed, file: &File) -> (u64, u64, Vec<u8>) {
    (bed.statfs().blocks_free, file.len(), read_all(file))
}

/// Tries, expects EAGAIN and no trace, and that nobody holds the lock afterwards.
#[track_caller]
fn exit(bed: &Bed, file: &File, data: &[u8], offset: u64) {
    let (before, stats) = (state_of(bed, file), bed.stats());
    let log = bed.record.log().entries().len();
    let result = file.try_write_at(data, offset);
    assert!(matches!(result, Err(Error::WouldBlock(_))), "{result:?}");
    assert_eq!(bed.stats().since(&stats).would_block, 1);
    assert_eq!(bed.record.log().entries().len(), log, "it wrote");
    assert!(state_of(bed, file) == before, "{} changed it", bed.policy());
    let alone = {
        let file = file.clone();
        start(move || file.set_attributes(&SetAttributes::new()))
    };
    finish(&alone).expect("nobody has the lock");
}

#[test]
fn a4_exit_1_lock_is_taken() {
    for policy in Policy::ALL {
        let bed = Bed::new(policy);
        let file = bed.open("/data");
        let end = 66 * BLOCK as u64;
        file.allocate(FallocateMode::KeepSize, 0, end)
            .expect("room");
        let hold = bed.sim.hold(Some(place(&file, 65)), FaultOp::Write);
        let writer = {
            let file = file.clone();
            start(move || file.write_at(&bytes(1, 100), 65 * BLOCK as u64))
        };
        hold.wait_for(1);
        let result = file.try_write_at(&blocks(2, 1), 0);
        assert!(matches!(result, Err(Error::WouldBlock(_))), "{policy}");
        hold.release();
        finish(&writer).expect("room");
        assert!(read(&file, 0..SIZE) == content(), "{policy}");
        // The older rules take the lock alone for any write; alone is what it is now.
        file.try_write_at(&blocks(2, 1), 0).map_or_else(
            |error| assert!(policy == Policy::Ilock, "{policy}: {error}"),
            |len| assert_eq!(len, BLOCK),
        );
    }
}

// The lock is shared: what keeps these out is the order of appends.
#[test]
fn a4_exit_1_another_append_is_under_way() {
    let bed = Bed::new(Policy::Best);
    let file = bed.open("/empty");
    let appending = OpenOptions::new().append(true);
    let appending = appending.open(&bed, "/empty").expect("it exists");
    let hold = bed.sim.hold(None, FaultOp::Write);
    let append = {
        let appending = appending.clone();
        start(move || appending.write_at(&blocks(1, 1), 0))
    };
    hold.wait_for(1);
    for other in [&appending, &file] {
        let other = other.clone();
        let tried = start(move || other.try_write_at(&blocks(2, 1), BLOCK as u64));
        let error = finish(&tried).expect_err("another is under way");
        assert!(
            matches!(error, Error::WouldBlock(why) if why.contains("append")),
            "{error}"
        );
    }
    let mut queue = bed.queue();
    let pushed = start(move || {
        queue.write(&appending, 0, blocks(3, 1), 3).expect("room");
        queue.submit().expect("a working queue");
        queue
    });
    let mut queue = finish(&pushed);
    assert_eq!(queue.outstanding(), 1);
    hold.release();
    finish(&append).expect("room");
    reap_all_ok(&mut queue, 1);
    assert_all(&read(&file, 0..BLOCK), 1);
    assert_all(&read(&file, BLOCK..2 * BLOCK), 3);
}

#[test]
fn a4_exit_2_upgrade_is_required() {
    for policy in Policy::ALL {
        let bed = Bed::new(policy);
        let file = bed.open("/setuid");
        exit(&bed, &file, &blocks(1, 1), 0);
        assert_eq!(file.metadata().permissions, 0o4755, "{policy}");
    }
    let bed = Bed::new(Policy::Ilock);
    exit(&bed, &bed.open("/data"), &blocks(1, 1), 0);
    for policy in [Policy::Ilock, Policy::V56] {
        let bed = Bed::new(policy);
        exit(&bed, &bed.open("/data"), &bytes(1, BLOCK / 2), 512);
    }
}

#[test]
fn a4_exit_3_needs_zeroing_or_extends() {
    for policy in Policy::ALL {
        let bed = Bed::new(policy);
        let file = bed.open("/data");
        exit(&bed, &file, &blocks(1, 1), SIZE as u64);
        exit(&bed, &file, &blocks(1, 1), 63 * BLOCK as u64);
        exit(&bed, &file, &blocks(1, 1), 90 * BLOCK as u64);
        let file = bed.open("/unwritten");
        exit(&bed, &file, &bytes(1, 512), 512);
    }
}

// A second mapping that must be allocated fails the whole request before any of it is written (also a row of G).
#[test]
fn a4_exit_6_allocation_is_required() {
    for policy in Policy::ALL {
        let bed = Bed::new(policy);
        exit(&bed, &bed.open("/hole"), &blocks(1, 1), 0);
        let file = bed.open("/data");
        file.allocate(FallocateMode::PunchHole, BLOCK as u64, BLOCK as u64)
            .expect("it is allocated");
        exit(&bed, &file, &blocks(1, 2), 0);
    }
}

#[test]
fn a4_exit_7_mapping_is_not_in_memory() {
    for policy in Policy::ALL {
        let bed = Bed::new(policy);
        let file = OpenOptions::new().read(true).write(true);
        let file = file.open(&bed, "/data").expect("it exists");
        let mut buf = blocks(0, 1);
        let result = file.try_read_at(&mut buf, 0);
        assert!(matches!(result, Err(Error::WouldBlock(_))), "{policy}");
        let result = file.try_write_at(&blocks(1, 1), 0);
        assert!(matches!(result, Err(Error::WouldBlock(_))), "{policy}");
        assert!(read_all(&file) == content(), "{policy}");
        file.try_read_at(&mut buf, 0).expect("the map is there now");
    }
}

/// Tries without waiting, by itself and through a queue, and compares with what `explain` tells.
#[track_caller]
fn no_direct_path(bed: &Bed, file: &File, data: &[u8], offset: u64) {
    let (before, stats) = (state_of(bed, file), bed.stats());
    let told = file.explain(Direction::Write, offset, data.len(), None);
    let told = told.expect("a sound tree");
    assert!(told.no_direct_path && !told.would_block, "{told:?}");
    let result = file.try_write_at(data, offset);
    assert_eq!(errno(result), libc::EOPNOTSUPP);
    assert_eq!(bed.stats().since(&stats).would_block, 0);
    assert!(state_of(bed, file) == before, "{} changed it", bed.policy());
    let mut queue = bed.queue();
    let buf = dioxide::Buf::copy_of(data);
    queue.write(file, offset, buf, 0).expect("room");
    reap_all_ok(&mut queue, 1);
    assert_eq!(bed.stats().since(&stats).punts, 1);
    let mut now = vec![0; data.len()];
    file.try_read_at(&mut now, offset)
        .expect("reading has a path");
    assert_eq!(now, data);
}

// A1.4: what Linux would write through the page cache is EOPNOTSUPP, since it is no better later.
#[test]
fn a1_no_wait_write_without_direct_path_is_eopnotsupp() {
    for policy in Policy::ALL {
        let bed = Bed::new(policy);
        let file = bed.open("/data");
        for (offset, len) in [(50, 100), (512, 513), (SIZE as u64 + 1, 512)] {
            no_direct_path(&bed, &file, &bytes(1, len), offset);
        }
        let append = OpenOptions::new().read(true).append(true);
        let append = append.open(&bed, "/small").expect("it exists");
        let result = append.try_write_at(&bytes(1, 512), 0);
        assert_eq!(errno(result), libc::EOPNOTSUPP, "behind an odd end");
        let bed = Bed::with(Layout::Inline, policy);
        let options = OpenOptions::new().read(true).write(true);
        let file = options.open(&bed, "/small").expect("it exists");
        no_direct_path(&bed, &file, &bytes(1, 512), 0);
    }
}

#[test]
fn b1_read_of_inline_data_waits_for_nothing() {
    let bed = Bed::with(Layout::Inline, Policy::Best);
    let direct = OpenOptions::new().read(true).direct(true);
    let file = direct.open(&bed, "/small").expect("it exists");
    let told = file.explain(Direction::Read, 3, 100, None);
    let told = told.expect("it is in the inode");
    assert!(told.refused.is_none() && !told.would_block, "{told:?}");
    let stats = bed.stats();
    let mut queue = bed.queue();
    queue.read(&file, 3, bytes(0, 100), 0).expect("room");
    let read = reap(&mut queue, 1).pop().expect("one");
    assert_eq!(read.result.expect("readable"), 37);
    assert_eq!(read.buf[..38], [&[7; 37][..], &[0]].concat());
    assert_eq!(bed.stats().since(&stats).punts, 0);
}

// B1.4 and B2: no bytes are as they are wherever they lie; alignment is judged for what is read.
#[test]
fn b1_direct_read_of_nothing_is_0_however_it_is_aligned() {
    for policy in Policy::ALL {
        let bed = Bed::new(policy);
        let direct = OpenOptions::new().read(true).direct(true);
        let file = direct.open(&bed, "/data").expect("it exists");
        let size = SIZE as u64;
        for (offset, len, expected) in [
            (0, 0, Some(0)),
            (1, 0, Some(0)),
            (size, 1, Some(0)),
            (size + 1, 512, Some(0)),
            (u64::MAX, 7, Some(0)),
            (size - 1, 1, None),
            (size - 512, 511, None),
            (1, 512, None),
        ] {
            let what = format!("{policy}: {len} at {offset}");
            let mut buf = bytes(0xEE, len);
            let mut queue = bed.queue();
            queue.read(&file, offset, bytes(0, len), 0).expect("room");
            let queued = reap(&mut queue, 1).pop().expect("one").result;
            let mut empty = [];
            let vector = &mut [
                std::io::IoSliceMut::new(&mut buf),
                std::io::IoSliceMut::new(&mut empty),
            ];
            let vectored = file.read_vectored_at(vector, offset);
            let told = file.explain(Direction::Read, offset, len, Some(policy));
            let refused = told.expect("a sound tree").refused;
            assert_eq!(refused.is_none(), expected.is_some(), "{what}");
            for result in [
                file.read_at(&mut buf, offset),
                file.try_read_at(&mut buf, offset),
                vectored,
                queued.map_err(|error| *error),
            ] {
                match expected {
                    Some(bytes) => assert_eq!(result.expect(&what), bytes, "{what}"),
                    None => assert_eq!(errno(result), libc::EINVAL, "{what}"),
                }
            }
        }
    }
}

#[test]
fn a3_explain_tells_how_a_file_without_extents_is_extended() {
    for policy in Policy::ALL {
        let bed = Bed::with(Layout::Indirect, policy);
        let file = bed.open("/empty");
        for block in 0..2 {
            let offset = block * BLOCK as u64;
            let told = file.explain(Direction::Write, offset, BLOCK, None);
            let told = told.expect("a sound map");
            let before = bed.stats();
            file.write_at(&blocks(1, 1), offset).expect("room");
            let done = bed.stats().since(&before);
            assert_eq!(told.restarts, done.restarts > 0, "{policy}: {told:?}");
            let exclusive = done.writes_exclusive > 0;
            assert_eq!(told.lock == LockMode::Exclusive, exclusive, "{policy}");
        }
    }
}

#[test]
fn a4_explain_tells_that_a_durable_write_would_block() {
    let bed = Bed::new(Policy::Best);
    let options = OpenOptions::new().read(true).write(true);
    for (options, waits) in [
        (options.clone(), false),
        (options.clone().dsync(true), false),
        (options.sync(true), true),
    ] {
        let file = options.open(&bed, "/data").expect("it exists");
        let told = file.explain(Direction::Write, 0, BLOCK, None);
        assert_eq!(told.expect("a sound tree").would_block, waits);
    }
    // A map that is not committed.
    bed.open("/hole").write_at(&blocks(1, 1), 0).expect("room");
    let file = OpenOptions::new().write(true).dsync(true);
    let file = file.open(&bed, "/hole").expect("it exists");
    let told = file.explain(Direction::Write, 0, BLOCK, None);
    assert!(told.expect("a sound tree").would_block);
}

#[test]
fn a4_durable_write_that_needs_a_sync_would_block() {
    for policy in Policy::ALL {
        let bed = Bed::new(policy);
        let options = OpenOptions::new().read(true).write(true);
        bed.open("/hole").write_at(&blocks(1, 1), 0).expect("room");
        for (options, path) in [
            (options.clone().dsync(true), "/hole"),
            (options.sync(true), "/data"),
        ] {
            let file = options.open(&bed, path).expect("it exists");
            file.preload_map().expect("a sound tree");
            exit(&bed, &file, &blocks(1, 1), 0);
        }
    }
}

#[test]
fn a5_hole_filled_by_two_threads_is_allocated_once() {
    for policy in Policy::ALL {
        let bed = Bed::new(policy);
        let file = bed.open("/hole");
        let before = bed.free();
        let write = |value: u8| {
            let file = file.clone();
            start(move || {
                for block in 0..48 {
                    let at = (block * BLOCK) as u64;
                    file.write_at(&blocks(value, 1), at).expect("room");
                }
            })
        };
        let writers = [write(1), write(2)];
        writers.iter().for_each(finish);
        assert_eq!(before - bed.free(), 48, "{policy}");
        for block in read(&file, 0..48 * BLOCK).chunks_exact(BLOCK) {
            assert!(block[0] == 1 || block[0] == 2, "{policy}");
            assert_all(block, block[0]);
        }
    }
}

#[test]
fn a5_hole_and_unwritten_become_written_in_one_request() {
    for policy in Policy::ALL {
        let bed = Bed::new(policy);
        let file = bed.open("/hole");
        let at = |block: usize| (block * BLOCK) as u64;
        file.allocate(FallocateMode::Allocate, at(2), at(2))
            .expect("room");
        file.write_at(&blocks(1, 1), at(5)).expect("room");
        file.write_at(&blocks(9, 6), at(1)).expect("room");
        for block in 1..7 {
            assert_eq!(kind(&file, block), MapKind::Mapped, "{policy}: {block}");
        }
        assert_eq!(kind(&file, 0), MapKind::Hole);
        assert_all(&read(&file, BLOCK..7 * BLOCK), 9);
    }
}

/// Requests that make `/data` longer, and behind how many of its device writes the fault comes.
const EXTENDING: [(usize, usize, u64); 6] = [
    (SIZE, BLOCK / 2, 0),
    (SIZE, 3 * BLOCK, 0),
    (SIZE, 3 * BLOCK, 1),
    (64 * BLOCK, 2 * BLOCK, 0),
    (63 * BLOCK, 4 * BLOCK, 1),
    (70 * BLOCK + 5, 5000, 1),
];

#[test]
fn a6_failed_extending_write_leaves_size_and_blocks() {
    for policy in Policy::ALL {
        let bed = Bed::new(policy);
        let file = bed.open("/data");
        let before = bed.free();
        for (offset, len, skip) in EXTENDING {
            let fault = Fault {
                skip,
                ..Fault::once(FaultOp::Write, FaultKind::Io(libc::EIO))
            };
            let fault = bed.sim.inject(fault);
            let result = file.write_at(&bytes(4, len), offset as u64);
            let hits = bed.sim.remove(fault);
            assert_eq!(hits, Some(1), "{policy}: {len} at {offset}");
            assert_eq!(errno(result), libc::EIO);
            assert_eq!(file.len(), SIZE as u64, "{policy}: {len} at {offset}");
            assert_eq!(bed.free(), before, "{policy}: {len} at {offset}");
        }
        let whole = 63 * BLOCK;
        assert!(read(&file, 0..whole) == content()[..whole], "{policy}");
        file.set_len(80 * BLOCK as u64).expect("a size");
        assert_all(&read(&file, SIZE..80 * BLOCK), 0);
    }
}

/// What the device has been asked for so far that changes it, and did.
fn writes(bed: &Bed) -> usize {
    bed.record.log().entries().len()
}

// Blocks that are not neighbours are written one by one: the second of them fails, and ends the request.
#[test]
fn a6_fault_in_the_second_run_leaves_size_and_blocks() {
    for policy in [Policy::Pre49, Policy::V56, Policy::Best, Policy::Xfs] {
        let bed = Bed::new(policy);
        leave_single_blocks(&bed, 12);
        let before = bed.free();
        for (path, offset, size) in [("/empty", 0, 0), ("/hole", 8 * BLOCK, SIZE)] {
            let file = bed.open_privileged(path);
            let fault = Fault {
                skip: 1,
                ..Fault::once(FaultOp::Write, FaultKind::Io(libc::EIO))
            };
            let inject = || bed.sim.inject(fault.clone());
            let (injected, log) = (inject(), writes(&bed));
            let result = file.write_at(&blocks(4, 5), offset as u64);
            assert_eq!(bed.sim.remove(injected), Some(1), "{policy}");
            assert_eq!(errno(result), libc::EIO);
            assert_eq!(writes(&bed) - log, 1, "{policy}: it went on");
            assert_eq!(file.len(), size as u64, "{policy}");
            assert_eq!(bed.free(), before, "{policy}");
            assert_all(&read_all(&file), 0);
            file.write_at(&blocks(4, 5), offset as u64).expect("room");
            assert_all(&read(&file, offset..offset + 5 * BLOCK), 4);
            // An overwrite has so many parts, too.
            let (injected, log) = (inject(), writes(&bed));
            let result = file.write_at(&blocks(5, 5), offset as u64);
            assert_eq!(bed.sim.remove(injected), Some(1), "{policy}");
            assert_eq!(errno(result), libc::EIO);
            assert_eq!(writes(&bed) - log, 1, "{policy}: it went on");
            assert_all(&read(&file, offset..offset + BLOCK), 5);
            // Two may be neighbours.
            assert_all(&read(&file, offset + 2 * BLOCK..offset + 5 * BLOCK), 4);
            file.set_len(0).expect("a size");
        }
    }
}

#[test]
fn a6_write_without_room_leaves_size_and_blocks() {
    for policy in [Policy::Pre49, Policy::V56, Policy::Best, Policy::Xfs] {
        let bed = Bed::new(policy);
        leave_single_blocks(&bed, 3);
        let before = bed.free();
        for (path, size) in [("/empty", 0), ("/hole", SIZE)] {
            let file = bed.open_privileged(path);
            let result = file.write_at(&blocks(4, 63), 0);
            assert_eq!(errno(result), libc::ENOSPC, "{policy}");
            assert_eq!(file.len(), size as u64, "{policy}");
            assert_eq!(bed.free(), before, "{policy}");
            assert_all(&read_all(&file), 0);
        }
    }
}

// As in std: each option is by itself, in whatever order they are said.
#[test]
fn options_of_opening_do_not_undo_each_other() {
    let bed = Bed::new(Policy::Best);
    let new = OpenOptions::new;
    for exclusive in [
        new().write(true).create_new(true).create(true),
        new().write(true).create(true).create_new(true),
    ] {
        let refused = exclusive.truncate(true).open(&bed, "/data");
        assert_eq!(refused.expect_err("it is there").errno(), libc::EEXIST);
    }
    assert!(!bed.open("/data").is_empty(), "it was cut");
    let made = new().write(true).create(true).create_new(false);
    made.open(&bed, "/made").expect("it is made");
    for appends in [
        new().append(true).write(false),
        new().write(false).append(true),
    ] {
        let file = appends.open(&bed, "/made").expect("it exists");
        let size = file.len();
        file.write_at(&[1; 7], 0).expect("room");
        assert_eq!(file.len(), size + 7);
    }
    let reads = new().read(true).append(true).append(false);
    let file = reads.open(&bed, "/made").expect("it exists");
    assert_eq!(
        file.write_at(&[1], 0).expect_err("it reads").errno(),
        libc::EBADF
    );
}
