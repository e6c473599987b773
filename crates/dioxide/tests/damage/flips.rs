//! Files with a damaged `i_block` that are removed. What has no checksum may mislead; but no block is lost without the
//! superblock's telling.

use super::*;
use dioxide_testkit::one_in;
use std::process::Command;

/// `/data` with free blocks before and behind it, in a file system of few checksums.
fn subject(features: &str) -> Image {
    let image = Image::builder()
        .size(4 << 20)
        .block_size(1024)
        .features(features)
        .build();
    let host = tempfile::NamedTempFile::new().expect("a temporary file");
    fs::write(host.path(), [7; 98 << 10]).expect("room");
    let write = |name: &str| format!("write {} {name}", host.path().display());
    let commands = [&write("a"), &write("data"), &write("z"), "rm a", "rm z"];
    debugfs(image.path(), &commands);
    image
}

fn in_memory(bytes: &[u8]) -> Arc<MemDevice> {
    let device = MemDevice::new(bytes.len() as u64);
    let written = device.write_at(0, bytes, Durability::Cached);
    written.expect("all of the device");
    Arc::new(device)
}

/// Whether e2fsck finds blocks in use that no file has, or the reverse.
fn differs(bytes: &[u8]) -> Option<String> {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    fs::write(file.path(), bytes).expect("room");
    let out = Command::new("e2fsck").arg("-fn").arg(file.path()).output();
    let said = String::from_utf8_lossy(&out.expect("e2fsck").stdout).into_owned();
    said.contains("Block bitmap differences").then_some(said)
}

fn remove(fs: &Fs) -> Result<()> {
    fs.remove_file("/data")
}

fn remove_and_close(fs: &Fs) -> Result<()> {
    let _held = file(fs, "/data", false)?;
    fs.remove_file("/data")
}

#[test]
fn flipped_byte_of_i_block_loses_no_block_in_silence() {
    for features in [
        "^metadata_csum,^has_journal",
        "^metadata_csum,^has_journal,^64bit,^extent",
    ] {
        let image = subject(features);
        let (inode, _) = inode_place(&image, "/data");
        let clean = fs::read(image.path()).expect("the image");
        let flips = (0..60).flat_map(|at| [1, 0x80, 0xFF].map(|flip| (at, flip)));
        for (at, flip) in flips.step_by(one_in(7)) {
            let mut bytes = clean.clone();
            bytes[inode as usize + 0x28 + at] ^= flip;
            for (way, go) in [("rm", remove as fn(&Fs) -> _), ("close", remove_and_close)] {
                let case = format!("{features}: byte {at} ^ {flip:#x}, {way}");
                let device = in_memory(&bytes);
                let options = MountOptions::new().errors(ErrorPolicy::Continue);
                let fs = Fs::open_device(device.clone(), &options).expect("it opens");
                // Errors are told; which there are, others test.
                let _ = go(&fs);
                let _ = fs.close();
                let mut after = vec![0; bytes.len()];
                device.read_at(0, &mut after).expect("all of it");
                let state = u16::from_le_bytes([after[1024 + 0x3A], after[1024 + 0x3B]]);
                if state & (STATE_CLEAN | STATE_ERROR) == STATE_CLEAN
                    && let Some(said) = differs(&after)
                {
                    panic!("{case}: the state is clean\n{said}");
                }
            }
        }
    }
}

#[test]
fn file_with_a_destroyed_extent_root_is_not_removed() {
    let image = subject("^metadata_csum");
    debugfs(image.path(), &["set_inode_field /data block[0] 0"]);
    let fs = open(&image, &MountOptions::new());
    let error = fs.remove_file("/data").expect_err("no magic");
    assert_eq!(error.errno(), libc::EUCLEAN, "{error}");
    fs.metadata("/data").expect("its name is there");
}
