//! Directories whose blocks hold anything.

use super::bed::{Bed, Random, name, small};
use crate::namei::edit::NewEntry;
use crate::{Fs, MountOptions};
use dioxide_format::inode::FileType;
use dioxide_format::types::{Ino, Pblk};
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;

/// Everything that can be done to `/d`. What comes of it is not judged, only that it comes.
fn try_all(fs: &Fs, random: &mut Random) {
    let mount = &fs.0;
    let Ok(dir) = mount.lookup(b"/d", true) else {
        return;
    };
    let writer = mount.writer().expect("it is writable");
    let _ = mount.is_empty_dir(&dir);
    let mut listed = 0;
    let _ = mount.read_dir_from(&dir, random.below(4) as u64, &mut |_, _| {
        listed += 1;
        ControlFlow::Continue(())
    });
    assert!(listed < 100_000, "it goes on for ever");
    for at in 0..40 {
        let name = name(random.below(400), 30 + random.below(2) * 220);
        let found = mount.find_entry(&dir, &name);
        let Ok(mut handle) = writer.begin(mount.add_name_credits(&dir)) else {
            return;
        };
        if let Ok(Some(_)) = found {
            let _ = match at % 2 {
                0 => mount.remove_name(&mut handle, &dir, &name),
                _ => mount.redirect_name(&mut handle, &dir, &name, Ino(2), FileType::Directory),
            };
        } else {
            let new = NewEntry {
                name: &name,
                ino: Ino(12),
                file_type: FileType::Regular,
            };
            let _ = mount.add_name(writer, &mut handle, &dir, &new);
        }
        let _ = mount.redirect_name(&mut handle, &dir, b"..", Ino(2), FileType::Directory);
    }
}

#[test]
fn damaged_directory_is_an_error_or_works() {
    for (features, count) in [
        ("^metadata_csum,^has_journal", 300),
        ("^metadata_csum,^has_journal,large_dir", 300),
        ("^metadata_csum,^has_journal", 8),
        ("^metadata_csum,^has_journal,^dir_index,^filetype", 60),
        ("^has_journal", 300),
    ] {
        let mut bed = Bed::new(small().size(4 << 20).features(features));
        let dir = bed.dir("/d");
        let names: Vec<Vec<u8>> = (0..count).map(|at| name(at, 30)).collect();
        bed.add_all(&dir, &names).expect("there is space");
        let mount = bed.fs.0.clone();
        let blocks = (dir.i_size() >> mount.block_bits) as u32;
        let places: Vec<Pblk> = (0..blocks)
            .map(|lblk| crate::map::load::lookup_or_load(&mount, &dir, lblk.into(), 1))
            .map(|mapping| mapping.expect("it is mapped").pblk)
            .collect();
        drop((dir, mount));
        let image = bed.close();
        let pristine = std::fs::read(image.path()).expect("the image");
        let file = std::fs::File::options().write(true).open(image.path());
        let file = file.expect("the image");
        for seed in 1..60 {
            let mut random = Random(seed * 0x9E37_79B9);
            random.below(2);
            file.write_all_at(&pristine, 0).expect("a write");
            for _ in 0..1 + random.below(4) {
                // Heads of blocks matter most.
                let block = places[random.below(places.len()) * random.below(2)];
                let most = [48, 1024][random.below(2)];
                let within = random.below(most);
                let value = [0, 1, 12, 0xFF, random.below(256) as u8][random.below(5)];
                let at = block.0 * 1024 + within as u64;
                file.write_all_at(&[value], at).expect("a write");
            }
            let fs = Fs::open(image.path(), &MountOptions::new()).expect("it opens");
            try_all(&fs, &mut random);
        }
    }
}
