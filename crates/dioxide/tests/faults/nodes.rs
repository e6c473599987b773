//! A device that fails while the nodes of a map are changed: none of them is committed without the others.

use crate::variants::image_with;
use dioxide::block::file::FileOptions;
use dioxide::block::sim::{Fault, FaultKind, FaultOp, SimDevice, SimSpec};
use dioxide::{File, Fs, MountOptions, OpenOptions};
use dioxide_testkit::{Image, e2fsck_clean};
use std::sync::Arc;

const KIB: u64 = 1024;
/// As many extents as a leaf of 1 KiB holds, and every second block is one.
const EXTENTS: u64 = 84;

fn open(fs: &Fs) -> File {
    let options = OpenOptions::new().read(true).write(true);
    options.open(fs, "a").expect("it exists")
}

fn block(at: u64) -> [u8; KIB as usize] {
    [at as u8 + 1; KIB as usize]
}

fn check(image: &Image, what: &str) {
    let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
    let file = open(&fs);
    for extent in 0..EXTENTS {
        let mut bytes = [0; KIB as usize];
        file.read_at(&mut bytes, 2 * extent * KIB).expect(what);
        assert!(
            bytes == block(2 * extent),
            "{what}: block {} is lost",
            2 * extent
        );
    }
    drop(file);
    fs.close().expect("a clean end");
    e2fsck_clean(image.path());
}

// A node may have left the memory between the plan and the change.
#[test]
fn read_that_fails_in_the_midst_of_a_split_loses_nothing() {
    let full = image_with(Image::builder().block_size(1024).size(8 << 20), &["a"]);
    let fs = Fs::open(full.path(), &MountOptions::new()).expect("it opens");
    let file = open(&fs);
    for extent in 0..EXTENTS {
        let at = 2 * extent;
        file.write_at(&block(at), at * KIB).expect("room");
    }
    drop(file);
    fs.close().expect("a clean end");
    let (mut site, mut failed) = (0, 0);
    loop {
        let image = full.copy();
        let options = FileOptions {
            write: true,
            ..FileOptions::default()
        };
        let device = dioxide::block::file::open(image.path(), &options).expect("it opens");
        let sim = SimDevice::new(device, SimSpec::default());
        let options = MountOptions::new().metadata_cache(0);
        let fs = Fs::open_device(Arc::new(sim.clone()), &options).expect("it opens");
        let file = open(&fs);
        // Once it writes, what it reads is for the split.
        file.write_at(&block(0), 0).expect("an overwrite");
        fs.sync().expect("a sync");
        let fault = Fault {
            skip: site,
            ..Fault::once(FaultOp::Read, FaultKind::Io(libc::EIO))
        };
        let armed = sim.inject(fault);
        let written = file.write_at(&[0xff; KIB as usize], 81 * KIB);
        failed += usize::from(written.is_err());
        // Another change, so that the transaction is committed if that is still possible.
        let _ = file.set_len(1000 * KIB);
        let _ = fs.sync();
        let hits = sim.hits(armed).expect("it is armed");
        drop(file);
        let _ = fs.close();
        drop(sim);
        check(&image, &format!("read {site}: {written:?}"));
        if hits == 0 {
            break;
        }
        site += 1;
    }
    println!("{failed} of {site} reads");
    assert!(failed > 0, "it read nothing");
}
