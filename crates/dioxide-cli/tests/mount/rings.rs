//! FUSE over io_uring: what is particular to it.

use crate::bed::{Bed, RINGS, Rings, have_rings, limited, run, transports};
use crate::need_fuse;
use dioxide_testkit::{Image, check_pattern, pattern};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags, linkat, openat, statx};
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};

/// Returns from the calling test where the kernel has no rings.
macro_rules! need_rings {
    () => {
        need_fuse!();
        if !have_rings() {
            return;
        }
    };
}

#[test]
fn rings_are_done_without_where_the_kernel_has_none() {
    need_fuse!();
    let bed = match have_rings() {
        true => {
            let _without = Rings::set("N");
            Bed::serving(Image::builder().size(16 << 20).build(), RINGS)
        }
        false => Bed::new(RINGS),
    };
    assert!(!bed.has_rings());
    fs::write(bed.at("f"), "x").unwrap();
    assert_eq!(fs::read_to_string(bed.at("f")).unwrap(), "x");
    bed.finish();
}

#[test]
fn more_requests_at_once_than_threads_are_all_answered() {
    need_rings!();
    let bed = Bed::new(RINGS);
    std::thread::scope(|scope| {
        for thread in 0..64_u64 {
            let path = bed.at(&format!("f{thread}"));
            scope.spawn(move || {
                let file = File::create_new(path).unwrap();
                for step in 0..4 {
                    let data = pattern(thread, step << 16, 1 << 16);
                    file.write_all_at(&data, step << 16).unwrap();
                    file.sync_all().unwrap();
                }
            });
        }
    });
    fs::write("/proc/sys/vm/drop_caches", "3").unwrap();
    for thread in 0..64 {
        let found = fs::read(bed.at(&format!("f{thread}"))).unwrap();
        assert_eq!(found.len(), 4 << 16);
        check_pattern(thread, 0, &found);
    }
    bed.finish();
}

#[test]
fn unnamed_file_is_made_and_gets_a_name() {
    need_rings!();
    let bed = Bed::new(RINGS);
    let flags = OFlags::TMPFILE | OFlags::RDWR;
    let file: File = openat(CWD, bed.root(), flags, Mode::RUSR).unwrap().into();
    file.write_all_at(&pattern(1, 0, 5000), 0).unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    let own = format!("/proc/self/fd/{}", file.as_raw_fd());
    linkat(CWD, own, CWD, bed.at("named"), AtFlags::SYMLINK_FOLLOW).unwrap();
    drop(file);
    check_pattern(1, 0, &fs::read(bed.at("named")).unwrap());
    // Another stays without, and goes.
    drop(openat(CWD, bed.root(), flags, Mode::RUSR).unwrap());
    bed.finish();
}

#[test]
fn time_of_birth_is_told() {
    need_rings!();
    let bed = Bed::new(RINGS);
    fs::write(bed.at("f"), "x").unwrap();
    let told = statx(CWD, bed.at("f"), AtFlags::empty(), StatxFlags::BTIME).unwrap();
    assert!(told.stx_mask & StatxFlags::BTIME.bits() != 0);
    let now = std::time::SystemTime::now();
    let age = now.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() as i64;
    assert!((age - told.stx_btime.tv_sec).abs() < 60);
    bed.finish();
}

/// Whoever has a request under way then gets an error, and the server ends.
#[test]
fn connection_that_is_aborted_ends_the_server_and_the_image_is_closed() {
    need_rings!();
    for transport in transports() {
        let bed = Bed::new(transport);
        fs::write(bed.at("f"), "x").unwrap();
        File::open(bed.at("f")).unwrap().sync_all().unwrap();
        // Its connection's number is that of its device.
        let device = rustix::fs::minor(fs::metadata(bed.root()).unwrap().dev());
        let control = tempfile::tempdir().unwrap();
        let own = control.path();
        run(limited("mount").args(["-t", "fusectl", "none"]).arg(own));
        let aborted = fs::write(own.join(device.to_string()).join("abort"), "1");
        run(limited("umount").arg(own));
        aborted.unwrap();
        assert!(fs::metadata(bed.at("f")).is_err());
        bed.ended(true);
    }
}
