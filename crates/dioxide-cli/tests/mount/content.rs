//! What is in files.

use crate::bed::{Bed, SOON, each, limited, run};
use crate::need_fuse;
use dioxide::{Buf, Fs, MountOptions, OpenOptions};
use dioxide_testkit::{check_pattern, check_zero, e2fsck_clean, fill_pattern, pattern};
use rustix::fs::{FallocateFlags, OFlags, SeekFrom};
use rustix::io::{ReadWriteFlags, pwritev2};
use rustix::thread::{CpuSet, sched_setaffinity};
use std::fs::{self, File};
use std::io::{IoSlice, Read, Seek, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// A tree with one of each kind of file.
fn tree(root: &Path) {
    for dir in 0..4 {
        let dir = root.join(format!("d{dir}"));
        fs::create_dir(&dir).unwrap();
        for (index, len) in [0, 1, 4096, 5000, 300_000].into_iter().enumerate() {
            fs::write(dir.join(format!("f{index}")), pattern(index as u64, 0, len)).unwrap();
        }
        std::os::unix::fs::symlink("../d0/f1", dir.join("link")).unwrap();
        fs::hard_link(dir.join("f2"), dir.join("hard")).unwrap();
    }
    run(limited("mkfifo").arg(root.join("fifo")));
    run(limited("mknod")
        .arg(root.join("null"))
        .args(["c", "1", "3"]));
    run(limited("chmod").arg("4711").arg(root.join("d1/f3")));
    run(limited("chown").arg("1000:1001").arg(root.join("d1/f4")));
    run(limited("touch")
        .args(["-d", "1965-02-03T04:05:06.25"])
        .arg(root.join("d2/f4")));
}

/// Everything that `find` knows of a tree and that a copy keeps.
fn listing(root: &Path) -> String {
    let format = "%P %y %m %U %G %s %n %T@ %l\\n";
    let found = run(limited("find")
        .arg(root)
        .args(["-mindepth", "1", "-printf", format]));
    let mut lines: Vec<&str> = found.lines().collect();
    // A directory's size is the file system's affair.
    lines.retain(|line| !line.contains(" d "));
    lines.sort_unstable();
    lines.join("\n")
}

#[test]
fn tree_copied_in_is_the_same_here_and_for_the_kernel() {
    need_fuse!();
    for options in ["noio_uring", "nowriteback", "io_uring"] {
        let source = tempfile::tempdir().unwrap();
        tree(source.path());
        let bed = Bed::new(options);
        run(limited("cp")
            .arg("-a")
            .arg(source.path())
            .arg(bed.at("copy")));
        let same = |copy: &Path| {
            let mut diff = limited("diff");
            run(diff
                .args(["-r", "--no-dereference", "-x", "fifo", "-x", "null"])
                .arg(source.path())
                .arg(copy));
            assert_eq!(listing(source.path()), listing(copy));
        };
        same(&bed.at("copy"));
        let image = bed.finish();
        let kernel = dioxide_testkit::Mount::ext4(image.path(), "ro");
        same(&kernel.path().join("copy"));
    }
}

#[test]
fn unlinked_open_file_keeps_its_content_until_closed() {
    need_fuse!();
    for bed in each("") {
        let before = run(limited("stat").args(["-f", "-c", "%f"]).arg(bed.root()));
        let mut options = File::options();
        let file = options.read(true).write(true).create(true);
        let mut file = file.open(bed.at("gone")).unwrap();
        file.write_all(&pattern(1, 0, 1 << 20)).unwrap();
        fs::remove_file(bed.at("gone")).unwrap();
        assert!(!bed.at("gone").exists());
        file.write_all(&pattern(1, 1 << 20, 1 << 20)).unwrap();
        file.sync_all().unwrap();
        assert_eq!(file.metadata().unwrap().nlink(), 0);
        let mut found = Vec::new();
        file.rewind().unwrap();
        file.read_to_end(&mut found).unwrap();
        assert_eq!(found.len(), 2 << 20);
        check_pattern(1, 0, &found);
        drop(file);
        // The kernel tells of a closed file when it gets to it.
        let free = || run(limited("stat").args(["-f", "-c", "%f"]).arg(bed.root()));
        for _ in 0..200 {
            if free() == before {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        assert_eq!(free(), before);
        bed.finish();
    }
}

/// A descriptor of which the server is told nothing.
fn path_only(path: &Path) -> File {
    let mut options = File::options();
    options.read(true).custom_flags(libc::O_PATH);
    options.open(path).unwrap()
}

/// The server holds no object for most files that the kernel knows; it must for these.
#[test]
fn file_without_names_stays_as_long_as_anybody_has_it() {
    need_fuse!();
    let bed = Bed::new("");
    let names = ["unlinked", "replaced", "linked"];
    for name in names {
        fs::write(bed.at(name), name).unwrap();
    }
    fs::create_dir(bed.at("dir")).unwrap();
    fs::create_dir(bed.at("other")).unwrap();
    fs::hard_link(bed.at("linked"), bed.at("other/name")).unwrap();
    fs::write(bed.at("new"), "new").unwrap();
    let held = names.map(|name| path_only(&bed.at(name)));
    let dir = path_only(&bed.at("dir"));
    fs::remove_file(bed.at("unlinked")).unwrap();
    fs::rename(bed.at("new"), bed.at("replaced")).unwrap();
    fs::remove_file(bed.at("linked")).unwrap();
    fs::remove_dir(bed.at("dir")).unwrap();
    // More than the server keeps of what was used last, in inodes that are free.
    for index in 0..600 {
        fs::write(bed.at(&format!("other/f{index}")), "other").unwrap();
    }
    let taken = |ino| {
        let mut names = fs::read_dir(bed.at("other")).unwrap();
        names.any(|name| name.unwrap().metadata().unwrap().ino() == ino)
    };
    for ((name, file), links) in names.iter().zip(&held).zip([0, 0, 1]) {
        let told = file.metadata().unwrap();
        assert_eq!(told.nlink(), links, "{name}");
        assert_eq!(taken(told.ino()), links > 0, "{name}");
        let again = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(file));
        assert_eq!(fs::read_to_string(again).unwrap(), **name);
    }
    let told = dir.metadata().unwrap();
    assert!(told.is_dir() && !taken(told.ino()));
    let free = || run(limited("stat").args(["-f", "-c", "%d"]).arg(bed.root()));
    let before: u64 = free().trim().parse().unwrap();
    drop((held, dir));
    // The kernel tells that it forgot a file when it gets to it.
    for _ in 0..500 {
        if free().trim().parse::<u64>().unwrap() == before + 3 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert_eq!(free().trim().parse::<u64>().unwrap(), before + 3);
    bed.finish();
}

fn direct(path: &Path) -> File {
    let mut options = File::options();
    options.read(true).write(true).create(true);
    options.custom_flags(libc::O_DIRECT).open(path).unwrap()
}

fn cached(path: &Path) -> File {
    let mut options = File::options();
    let options = options.read(true).write(true).create(true);
    options.open(path).unwrap()
}

#[test]
fn direct_io_of_several_threads_reads_what_each_wrote() {
    need_fuse!();
    const BLOCK: usize = 16 << 10;
    const BLOCKS: u64 = 64;
    for bed in each("") {
        let path = bed.at("direct");
        std::thread::scope(|scope| {
            for thread in 0..4_u64 {
                let path = &path;
                scope.spawn(move || {
                    let file = direct(path);
                    let mut buf = Buf::zeroed(BLOCK);
                    for round in 0..3 {
                        for block in (thread..BLOCKS).step_by(4) {
                            fill_pattern(round, block * BLOCK as u64, &mut buf);
                            file.write_all_at(&buf, block * BLOCK as u64).unwrap();
                            buf.fill(0xff);
                            file.read_exact_at(&mut buf, block * BLOCK as u64).unwrap();
                            check_pattern(round, block * BLOCK as u64, &buf);
                        }
                    }
                });
            }
        });
        // Through the page cache too, and the other way round.
        check_pattern(2, 0, &fs::read(&path).unwrap());
        let buffered = File::options().write(true).open(&path).unwrap();
        buffered.write_all_at(&pattern(9, 4096, 100), 4096).unwrap();
        let mut buf = Buf::zeroed(4096);
        direct(&path).read_exact_at(&mut buf, 4096).unwrap();
        check_pattern(9, 4096, &buf[..100]);
        check_pattern(2, 4196, &buf[100..]);
        drop(buffered);
        bed.finish();
    }
}

#[test]
fn direct_io_that_is_not_aligned_is_refused() {
    need_fuse!();
    for bed in each("") {
        let file = direct(&bed.at("f"));
        let buf = Buf::zeroed(8192);
        file.write_all_at(&buf, 0).unwrap();
        for (len, offset) in [(100, 0), (4096, 100)] {
            let refused = file.write_at(&buf[..len], offset).unwrap_err();
            assert_eq!(refused.raw_os_error(), Some(libc::EINVAL));
        }
        drop(file);
        bed.finish();
    }
}

#[test]
fn direct_io_ends_when_the_file_is_told_so() {
    need_fuse!();
    for bed in each("") {
        let file = direct(&bed.at("f"));
        let buf = Buf::zeroed(8192);
        file.write_all_at(&buf, 0).unwrap();
        // As dd does for what is left at the end.
        rustix::fs::fcntl_setfl(&file, OFlags::empty()).unwrap();
        file.write_all_at(&pattern(3, 0, 100), 8192).unwrap();
        let mut tail = [0; 90];
        file.read_exact_at(&mut tail, 8195).unwrap();
        check_pattern(3, 3, &tail);
        rustix::fs::fcntl_setfl(&file, OFlags::DIRECT).unwrap();
        let refused = file.write_at(&buf[..100], 0).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EINVAL));
        drop(file);
        assert_eq!(fs::metadata(bed.at("f")).unwrap().len(), 8292);
        bed.finish();
    }
}

#[test]
fn data_that_only_the_page_cache_has_is_no_hole() {
    need_fuse!();
    for options in ["", "nowriteback", "max_threads=1"] {
        let bed = Bed::new(options);
        let mut open = File::options();
        let file = open.read(true).write(true).create(true).open(bed.at("f"));
        let file = file.unwrap();
        file.set_len(1 << 20).unwrap();
        file.write_all_at(&pattern(1, 0, 64 << 10), 512 << 10)
            .unwrap();
        let seen = File::open(bed.at("f")).unwrap();
        let sought = [
            (SeekFrom::Data(0), 512 << 10),
            (SeekFrom::Hole(512 << 10), 576 << 10),
            (SeekFrom::Hole(0), 0),
        ];
        for (what, wanted) in sought {
            assert_eq!(rustix::fs::seek(&seen, what), Ok(wanted), "{options}");
        }
        // What lies past the end that the server knows, too.
        file.write_all_at(&pattern(1, 0, 10), 3 << 20).unwrap();
        assert_eq!(
            rustix::fs::seek(&file, SeekFrom::Data(1 << 20)),
            Ok(3 << 20)
        );
        drop((file, seen));
        bed.finish();
    }
}

/// All requests come from one processor, those that the server causes too: so they meet in one queue, which must have room for
/// what others of it wait for.
#[test]
fn requests_that_need_others_end_beside_those_of_many_threads() {
    need_fuse!();
    let mut set = CpuSet::new();
    set.set(0);
    // For the server and the threads here.
    sched_setaffinity(None, &set).unwrap();
    for options in ["noio_uring", "io_uring", "io_uring,backend=uring"] {
        let bed = Bed::new(options);
        let work = |thread: u64| {
            let path = bed.at(&format!("f{thread}"));
            let mut open = File::options();
            let file = open.read(true).write(true).create(true).open(path);
            let file = file.unwrap();
            let hole = 64 << 10;
            for round in 0..20 {
                // Sought before the page cache was written, which the server has the kernel do.
                let at = (2 * round + 1) * hole;
                file.write_all_at(&pattern(thread, at, 4096), at).unwrap();
                let data = rustix::fs::seek(&file, SeekFrom::Data(at - hole));
                // A queue has no more threads where too many ask at once.
                let is_refused = data == Err(rustix::io::Errno::AGAIN) && options != "noio_uring";
                assert!(
                    data == Ok(at) || is_refused,
                    "{options}: {data:?}, not {at}"
                );
                match (thread + round) % 4 {
                    0 => file.sync_all().unwrap(),
                    1 => rustix::fs::fallocate(
                        &file,
                        FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                        0,
                        hole,
                    )
                    .unwrap(),
                    2 => drop(fs::metadata(bed.at("f0"))),
                    _ => drop(fs::write(bed.at(&format!("new{thread}")), b"data")),
                }
                let mut found = vec![0; 4096];
                file.read_exact_at(&mut found, at).unwrap();
                check_pattern(thread, at, &found);
            }
        };
        std::thread::scope(|scope| {
            for thread in 0..24 {
                let work = &work;
                scope.spawn(move || work(thread));
            }
        });
        bed.finish();
    }
}

/// Does the same in so many threads at once.
fn at_once(threads: u64, work: impl Fn(u64) + Sync) {
    let all = Barrier::new(threads as usize);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (all, work) = (&all, &work);
            scope.spawn(move || {
                all.wait();
                work(thread);
            });
        }
    });
}

/// Over `/dev/fuse` there are more threads then. A queue has no more: who is one too many is told so, and not of an end that is none.
#[test]
fn more_direct_reads_than_threads_know_of_the_end_that_is_in_the_page_cache() {
    need_fuse!();
    const LEN: usize = 64 << 10;
    for bed in each("max_threads=2").chain([Bed::new("max_threads=2,sandbox")]) {
        let may_be_refused = bed.has_rings();
        let file = File::create(bed.at("f")).unwrap();
        let direct = direct(&bed.at("f"));
        for _ in 0..20 {
            file.set_len(0).unwrap();
            file.write_all_at(&[1; LEN], 8 << 20).unwrap();
            at_once(16, |thread| {
                let mut buf = Buf::zeroed(LEN);
                buf.fill(1);
                match direct.read_at(&mut buf, thread * LEN as u64) {
                    Err(error) if may_be_refused => {
                        assert_eq!(error.raw_os_error(), Some(libc::EAGAIN));
                    }
                    done => {
                        assert_eq!(done.unwrap(), LEN, "{thread}");
                        check_zero(0, &buf);
                    }
                }
            });
        }
        let until = Instant::now() + SOON;
        // Each request ends one that is not needed any more.
        while bed.threads("fuse-more") > 0 {
            assert!(Instant::now() < until, "they stay");
            file.sync_all().unwrap();
        }
        drop((file, direct));
        bed.finish();
    }
}

/// As with reads. Of files without holes the kernel would be told for good.
#[test]
fn more_seeks_than_threads_know_of_data_that_only_the_page_cache_has() {
    need_fuse!();
    const HOLE: u64 = 64 << 10;
    for bed in each("max_threads=2") {
        let may_be_refused = bed.has_rings();
        fs::write(bed.at("sparse"), [1; 4096]).unwrap();
        let sparse = File::options().write(true).open(bed.at("sparse"));
        sparse.unwrap().set_len(1 << 20).unwrap();
        let open = |thread| cached(&bed.at(&format!("f{thread}")));
        let files: Vec<File> = (0..9).map(open).collect();
        for round in 0..20 {
            let at = (2 * round + 1) * HOLE;
            for file in &files {
                for page in (0..16).step_by(2) {
                    file.write_all_at(&[1; 4096], at + (page << 12)).unwrap();
                }
            }
            at_once(9, |thread| {
                let file = &files[thread as usize];
                match rustix::fs::seek(file, SeekFrom::Data(at - HOLE)) {
                    Err(error) if may_be_refused => assert_eq!(error, rustix::io::Errno::AGAIN),
                    found => assert_eq!(found, Ok(at), "{thread}"),
                }
            });
        }
        let sparse = File::open(bed.at("sparse")).unwrap();
        assert_eq!(rustix::fs::seek(&sparse, SeekFrom::Hole(0)), Ok(4096));
        drop((files, sparse));
        bed.finish();
    }
}

/// A sync of the root has the kernel write pages, and so has each read that comes to the end of a file: of those there are more at once
/// than threads and entries to wait for that. All come from one processor.
#[test]
fn sync_of_the_root_ends_beside_reads_that_have_pages_written_and_is_never_refused() {
    need_fuse!();
    let mut set = CpuSet::new();
    set.set(0);
    sched_setaffinity(None, &set).unwrap();
    for options in [
        "noio_uring,max_threads=1",
        "io_uring",
        "io_uring,backend=uring",
    ] {
        let bed = Bed::new(&format!("{options},max_background=1"));
        let work = |thread: u64| {
            let path = bed.at(&format!("f{thread}"));
            let (direct, file) = (direct(&path), File::create(&path).unwrap());
            let mut buf = Buf::zeroed(4096);
            for round in 0..40 {
                // The pages behind what is read make it longer, each by a request of its own.
                let at = round << 17;
                for page in (1..32).step_by(2) {
                    file.write_all_at(&[1; 100], at + (page << 12)).unwrap();
                }
                if (thread + round).is_multiple_of(4) {
                    File::open(bed.root()).unwrap().sync_all().unwrap();
                }
                // Too many ask at once.
                let read = direct.read_at(&mut buf, at);
                let read = read.map_err(|error| error.raw_os_error());
                let told = [Ok(4096), Err(Some(libc::EAGAIN))];
                assert!(told.contains(&read), "{options}: {read:?}");
            }
        };
        std::thread::scope(|scope| {
            for thread in 0..24 {
                let work = &work;
                scope.spawn(move || work(thread));
            }
        });
        bed.finish();
    }
}

#[test]
fn ranges_are_allocated_punched_sought_and_copied() {
    need_fuse!();
    for bed in each("") {
        let mut options = File::options();
        let options = options.read(true).write(true).create(true);
        let mut file = options.open(bed.at("f")).unwrap();
        file.write_all_at(&pattern(1, 0, 64 << 10), 0).unwrap();
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&file, punch, 16 << 10, 16 << 10).unwrap();
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 1 << 20).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 1 << 20);
        assert_eq!(file.metadata().unwrap().blocks(), 2048);
        file.sync_all().unwrap();
        assert_eq!(rustix::fs::seek(&file, SeekFrom::Hole(0)), Ok(16 << 10));
        assert_eq!(
            rustix::fs::seek(&file, SeekFrom::Data(20 << 10)),
            Ok(32 << 10)
        );
        assert_eq!(
            rustix::fs::seek(&file, SeekFrom::Data(64 << 10)),
            Err(rustix::io::Errno::NXIO)
        );
        let copy = options.open(bed.at("copy")).unwrap();
        let (mut from, mut to, mut left) = (8 << 10, 0, 40 << 10);
        while left > 0 {
            let done =
                rustix::fs::copy_file_range(&file, Some(&mut from), &copy, Some(&mut to), left);
            left -= done.unwrap();
        }
        let found = fs::read(bed.at("copy")).unwrap();
        check_pattern(1, 8 << 10, &found[..8 << 10]);
        check_zero(0, &found[8 << 10..24 << 10]);
        check_pattern(1, 32 << 10, &found[24 << 10..]);
        file.set_len(10).unwrap();
        file.rewind().unwrap();
        let mut rest = Vec::new();
        file.read_to_end(&mut rest).unwrap();
        check_pattern(1, 0, &rest);
        assert_eq!(rest.len(), 10);
        drop((file, copy));
        bed.finish();
    }
}

// Of its pages the kernel writes those that a direct read asks for; the one that makes the file longer may be another.
#[test]
fn direct_read_knows_of_the_end_that_is_in_the_page_cache() {
    need_fuse!();
    for bed in each("") {
        let path = bed.at("grown");
        let file = File::create_new(&path).unwrap();
        let mut direct = File::options();
        let direct = direct.read(true).custom_flags(libc::O_DIRECT);
        let direct = direct.open(&path).unwrap();
        file.write_all_at(&pattern(1, 0, 4096), 0).unwrap();
        file.sync_all().unwrap();
        let end = (1 << 20) + 100;
        file.write_all_at(&pattern(1, 1 << 20, 100), 1 << 20)
            .unwrap();
        let mut buf = Buf::zeroed(64 << 10);
        assert_eq!(direct.read_at(&mut buf, 8192).unwrap(), 64 << 10);
        check_zero(8192, &buf);
        assert_eq!(direct.read_at(&mut buf, 0).unwrap(), 64 << 10);
        check_pattern(1, 0, &buf[..4096]);
        // Made longer once more, and read where that is.
        file.write_all_at(&pattern(1, end, 100), end).unwrap();
        assert_eq!(direct.read_at(&mut buf, 1 << 20).unwrap(), 200);
        check_pattern(1, 1 << 20, &buf[..200]);
        assert_eq!(direct.read_at(&mut buf, 2 << 20).unwrap(), 0);
        drop((file, direct));
        bed.finish();
    }
}

/// Reads the last page of a file by a mapping; prints its first byte and the last of the file.
const MAP: &str = "
import mmap, os
file = os.open('f', os.O_RDWR | os.O_DIRECT)
mapped = mmap.mmap(file, 5000, mmap.MAP_SHARED)
print(mapped[4096], mapped[4999])
";

/// The kernel fills the page by a read with the file's flags, and has it locked meanwhile.
#[test]
fn last_page_of_a_file_for_direct_io_is_there_in_a_mapping() {
    need_fuse!();
    for bed in each("") {
        let content = pattern(1, 0, 5000);
        fs::write(bed.at("f"), &content).unwrap();
        // Nothing of it is in the page cache.
        bed.forget();
        let mut map = limited("python3");
        map.args(["-c", MAP]).current_dir(bed.root());
        let mut map = map.stdout(Stdio::piped()).spawn().unwrap();
        let until = Instant::now() + Duration::from_secs(30);
        // Whoever waits for a page cannot be killed: the mount goes away under it.
        while map.try_wait().unwrap().is_none() {
            assert!(Instant::now() < until, "the page does not come");
            std::thread::sleep(Duration::from_millis(10));
        }
        let said = map.wait_with_output().unwrap();
        let said = String::from_utf8(said.stdout).unwrap();
        assert_eq!(said, format!("{} {}\n", content[4096], content[4999]));
        bed.finish();
    }
}

/// Copies 64 MiB, the most of one request, while a signal comes every millisecond; prints how much that was. On a busy machine a copy can
/// end before the server hears of the signal: there are several.
const COPY: &str = "
import os, signal
source, target = os.open('from', os.O_RDONLY), os.open('to', os.O_WRONLY)
signal.signal(signal.SIGALRM, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
for _ in range(20):
    copied = os.copy_file_range(source, target, 64 << 20, 0, 0)
    if copied < 64 << 20:
        break
signal.setitimer(signal.ITIMER_REAL, 0)
print(copied)
";

#[test]
fn copy_that_a_signal_interrupts_ends_soon() {
    need_fuse!();
    for bed in each("nowriteback") {
        for name in ["from", "to"] {
            let file = File::create(bed.at(name)).unwrap();
            file.set_len(64 << 20).unwrap();
        }
        let mut copy = limited("python3");
        let said = run(copy.args(["-c", COPY]).current_dir(bed.root()));
        let copied: u64 = said.trim().parse().unwrap();
        assert!((1 << 20..64 << 20).contains(&copied), "{copied}");
        bed.finish();
    }
}

#[test]
fn appends_through_two_descriptors_all_stay() {
    need_fuse!();
    for (flags, bed) in [0, libc::O_SYNC]
        .iter()
        .flat_map(|flags| each("").map(move |bed| (*flags, bed)))
    {
        let open = || {
            let mut options = File::options();
            options.append(true).create(true).custom_flags(flags);
            options.open(bed.at("log")).unwrap()
        };
        let (mut one, mut two) = (open(), open());
        for line in 0..100 {
            writeln!(if line % 3 == 0 { &mut one } else { &mut two }, "{line}").unwrap();
        }
        drop((one, two));
        let expected: String = (0..100).map(|line| format!("{line}\n")).collect();
        assert_eq!(fs::read_to_string(bed.at("log")).unwrap(), expected);
        bed.finish();
    }
}

/// Writes 4 KiB past the page cache.
fn write_directly(root: &Path, flags: ReadWriteFlags) {
    let block = Buf::copy_of(&pattern(1, 0, 4096));
    let file = direct(&root.join("f"));
    let written = pwritev2(&file, &[IoSlice::new(&block)], 0, flags);
    assert_eq!(written, Ok(4096));
}

/// Has 4 KiB copied to a file with these flags.
fn copy_within(root: &Path, flags: i32) {
    fs::write(root.join("from"), pattern(1, 0, 4096)).unwrap();
    let from = File::open(root.join("from")).unwrap();
    let mut options = File::options();
    options.write(true).create(true).custom_flags(flags);
    let to = options.open(root.join("f")).unwrap();
    let copied = rustix::fs::copy_file_range(&from, None, &to, None, 4096);
    assert_eq!(copied, Ok(4096));
}

#[test]
fn what_is_durable_without_fsync_is_there_when_the_server_was_killed() {
    need_fuse!();
    type Write = fn(&Path);
    let ways: [(&str, Write); 6] = [
        ("", |root| write_directly(root, ReadWriteFlags::DSYNC)),
        ("", |root| write_directly(root, ReadWriteFlags::SYNC)),
        ("sync", |root| write_directly(root, ReadWriteFlags::empty())),
        ("", |root| copy_within(root, libc::O_DSYNC)),
        ("", |root| copy_within(root, libc::O_SYNC)),
        ("sync", |root| copy_within(root, 0)),
    ];
    for (way, (options, write)) in ways.iter().enumerate() {
        let bed = Bed::new(&format!("commit=3600,{options}"));
        write(bed.root());
        let image = bed.kill();
        let left = Fs::open(image.path(), &MountOptions::new()).unwrap();
        let file = OpenOptions::new().read(true).open(&left, "/f").unwrap();
        let mut found = [0; 4096];
        assert_eq!(file.read_at(&mut found, 0).unwrap(), 4096, "way {way}");
        assert!(found == *pattern(1, 0, 4096), "way {way}");
    }
}

#[test]
fn size_that_a_mount_with_sync_was_told_is_there_when_the_server_was_killed() {
    need_fuse!();
    type Change = fn(&File);
    let ways: [(Change, u64); 2] = [
        (|file| file.set_len(100).unwrap(), 100),
        (
            |file| rustix::fs::fallocate(file, FallocateFlags::empty(), 0, 20_000).unwrap(),
            20_000,
        ),
    ];
    for (change, len) in ways {
        let bed = Bed::new("commit=3600,sync");
        let file = File::create(bed.at("f")).unwrap();
        file.write_all_at(&pattern(1, 0, 8192), 0).unwrap();
        change(&file);
        let image = bed.kill();
        let left = Fs::open(image.path(), &MountOptions::new()).unwrap();
        let kept = OpenOptions::new().read(true).open(&left, "/f").unwrap();
        assert_eq!(kept.len(), len);
        drop(kept);
        left.close().unwrap();
        e2fsck_clean(image.path());
    }
}

#[test]
fn fio_verifies_what_it_wrote() {
    need_fuse!();
    if Command::new("fio").arg("--version").output().is_err() {
        eprintln!("skipped: needs fio");
        return;
    }
    for bed in each("") {
        let jobs = [
            ["--direct=1", "--ioengine=libaio", "--iodepth=16"],
            ["--direct=1", "--ioengine=psync", "--numjobs=4"],
            ["--direct=0", "--ioengine=psync", "--fsync=32"],
        ];
        for job in jobs {
            let mut fio = limited("fio");
            fio.arg(format!("--directory={}", bed.root().display()));
            fio.args([
                "--name=verify",
                "--rw=randrw",
                "--bs=4k",
                "--size=4m",
                "--time_based=0",
            ]);
            fio.args([
                "--verify=crc32c",
                "--verify_fatal=1",
                "--verify_state_save=0",
                "--randseed=7",
                "--unlink=1",
            ]);
            run(fio.args(job));
        }
        bed.finish();
    }
}

/// Reads a file as a database would, in blocks of 4 KiB.
fn read_directly(path: &Path) -> Vec<u8> {
    let file = direct(path);
    let len = file.metadata().unwrap().len();
    let mut block = Buf::zeroed(4096);
    let mut content = Vec::new();
    for offset in (0..len).step_by(4096) {
        file.read_exact_at(&mut block, offset).unwrap();
        content.extend_from_slice(&block);
    }
    content
}

#[test]
fn image_in_memory_is_mapped_and_its_holes_take_no_memory() {
    need_fuse!();
    const LEN: usize = 8 << 20;
    let bed = Bed::new("");
    fs::write(bed.at("zeros"), vec![0; LEN]).unwrap();
    fs::write(bed.at("data"), pattern(1, 0, LEN)).unwrap();
    let image = bed.finish();
    run(limited("fallocate").arg("--dig-holes").arg(image.path()));
    let memory = |path: &Path| fs::metadata(path).unwrap().blocks() * 512;
    let before = memory(image.path());

    let bed = Bed::with(image, "");
    let maps = fs::read_to_string(format!("/proc/{}/maps", bed.pid())).unwrap();
    assert!(maps.contains(bed.image().to_str().unwrap()), "{maps}");
    assert!(read_directly(&bed.at("zeros")) == vec![0; LEN]);
    assert!(read_directly(&bed.at("data")) == pattern(1, 0, LEN));
    let grown = memory(bed.image()).saturating_sub(before);
    assert!(grown < 1 << 20, "reads took {grown} bytes");
    // What is written over a hole, and over data, is there after the next mount too.
    for name in ["zeros", "data"] {
        let file = direct(&bed.at(name));
        for offset in [0, 4096, 65536, LEN as u64 - 4096] {
            let block = Buf::copy_of(&pattern(2, offset, 4096));
            file.write_all_at(&block, offset).unwrap();
        }
    }
    let expected = ["zeros", "data"].map(|name| read_directly(&bed.at(name)));
    let image = bed.finish();
    let bed = Bed::with(image, "backend=pread");
    assert!(read_directly(&bed.at("zeros")) == expected[0]);
    assert!(read_directly(&bed.at("data")) == expected[1]);
    assert!(expected[0][..8192] == pattern(2, 0, 8192));
    bed.finish();
}

/// The page cache takes it, and the kernel writes it back at any time.
#[test]
fn write_behind_the_largest_size_is_told_by_the_next_one() {
    need_fuse!();
    for bed in each("") {
        let root = File::open(bed.root()).unwrap();
        let file = File::create(bed.at("f")).unwrap();
        file.write_all_at(&[1; 10], 1 << 45).unwrap();
        // It may have been written by the end of that, which tells so too.
        let _ = rustix::fs::syncfs(&root);
        let until = Instant::now() + SOON;
        let told = loop {
            match file.write_all_at(&[2; 10], 0) {
                Ok(()) => std::thread::sleep(Duration::from_millis(10)),
                Err(error) => break error,
            }
            assert!(Instant::now() < until, "nobody is told");
        };
        assert_eq!(told.raw_os_error(), Some(libc::EFBIG));
        // Once.
        file.write_all_at(&[2; 10], 0).unwrap();
        let told = file.sync_all().map_err(|error| error.raw_os_error());
        assert_eq!(told, Err(Some(libc::EFBIG)));
        drop((root, file));
        bed.finish();
    }
}
