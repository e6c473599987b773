//! Images whose last changes are fast commits of the kernel: what is replayed, compared with what the
//! kernel makes of them.
//!
//! The image is copied in between, after an fsync, so that the copy is what a crash would leave.

#[path = "fast_commit/area.rs"]
mod area;
#[path = "fast_commit/crash.rs"]
mod crash;
#[path = "fast_commit/forged.rs"]
mod forged;
#[path = "fast_commit/head.rs"]
mod head;
#[path = "fast_commit/hostile.rs"]
mod hostile;
#[path = "fast_commit/kernel.rs"]
mod kernel;
#[path = "namespace/walk.rs"]
mod walk;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Something that is done to a mounted file system.
type Work = fn(&Path);

/// A little of everything: what is there before, and what the fast commits do.
fn a_little_of_everything() -> (Work, Work) {
    let before: Work = |root| {
        fs::create_dir(root.join("dir")).expect("a directory");
        for n in 0..6u8 {
            fs::write(root.join(format!("base{n}")), vec![n; 20_000]).expect("room");
        }
    };
    let during: Work = |root| {
        for n in 0..4u8 {
            let path = root.join(format!("dir/new{n}"));
            fs::write(&path, vec![n; 9000]).expect("room");
            area::fsync(&path);
        }
        fs::rename(root.join("base0"), root.join("dir/moved")).expect("a name");
        area::fsync(&root.join("dir/moved"));
        fs::hard_link(root.join("base1"), root.join("dir/linked")).expect("a link");
        area::fsync(&root.join("base1"));
        fs::remove_file(root.join("base2")).expect("a name");
        area::sync_names(root, 0);
        let file = fs::File::options().write(true).open(root.join("base3"));
        let file = file.expect("a file");
        file.set_len(6000).expect("a length");
        file.sync_all().expect("a sync");
        file.write_all_at(b"end", 60_000).expect("room");
        file.sync_all().expect("a sync");
    };
    (before, during)
}
