//! FUSE over io_uring: what is particular to it.

use crate::bed::{Bed, RINGS, Rings, have_rings};
use crate::need_fuse;
use dioxide_testkit::{Image, check_pattern, pattern};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;

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
    bed.forget();
    for thread in 0..64 {
        let found = fs::read(bed.at(&format!("f{thread}"))).unwrap();
        assert_eq!(found.len(), 4 << 16);
        check_pattern(thread, 0, &found);
    }
    bed.finish();
}
