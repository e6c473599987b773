//! Queues and blocking calls over mappings: what was written is what is read, however many requests wait.
//!
//! The kinds of mapping: of the whole image, and of what it has pages for.

use dioxide::block::file::FileOptions;
use dioxide::{Backend, Buf, Fs, MountOptions, OpenOptions, QueueOptions};
use dioxide_testkit::{Image, e2fsck_clean, seeds};
use std::collections::HashMap;
use std::ops::Range;

const LEN: usize = 1 << 20;
const SECTOR: usize = 512;
const STEPS: usize = 6000;

/// A number below `limit`.
fn random(state: &mut u64, limit: usize) -> usize {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    (*state >> 20) as usize % limit
}

fn mapped() -> [(&'static str, MountOptions); 2] {
    let whole = MountOptions::new().backend(Backend::Mmap);
    [
        ("whole", whole),
        ("where there are pages", MountOptions::new().may_map(true)),
    ]
}

/// What is asked, and if it is a write, of what.
struct Asked {
    range: Range<usize>,
    byte: Option<u8>,
}

#[test]
fn queued_requests_over_a_mapping_move_what_they_should() {
    for (name, options) in mapped() {
        for seed in seeds(4) {
            let image = Image::builder().size(16 << 20).build();
            let fs = Fs::open(image.path(), &options).expect("it opens");
            let open = OpenOptions::new().read(true).write(true).direct(true);
            let file = open.create(true).open(&fs, "/f").expect("a file");
            let mut model = vec![0; LEN];
            let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
            for at in (0..LEN).step_by(8192) {
                // Some are holes.
                if random(&mut state, 4) > 0 {
                    let byte = random(&mut state, 256) as u8;
                    model[at..at + 8192].fill(byte);
                    let data = Buf::copy_of(&model[at..at + 8192]);
                    file.write_at(&data, at as u64).expect("room");
                }
            }
            file.set_len(LEN as u64).expect("a size");
            let mut queue = fs.queue(&QueueOptions::default()).expect("a queue");
            let mut asked: HashMap<u64, Asked> = HashMap::new();
            let mut done = Vec::new();
            for tag in 0..STEPS as u64 {
                let sectors = LEN / SECTOR;
                let start = random(&mut state, sectors) * SECTOR;
                let len = (1 + random(&mut state, 16)) * SECTOR;
                let range = start..(start + len).min(LEN);
                let meets =
                    |other: &Asked| other.range.start < range.end && range.start < other.range.end;
                if !asked.values().any(meets) {
                    let offset = range.start as u64;
                    let byte = (random(&mut state, 2) == 0).then_some(tag as u8);
                    let pushed = match byte {
                        None => queue.read(&file, offset, Buf::zeroed(range.len()), tag),
                        Some(byte) => {
                            let mut buf = Buf::zeroed(range.len());
                            buf.fill(byte);
                            queue.write(&file, offset, buf, tag)
                        }
                    };
                    pushed.expect("room in the queue");
                    asked.insert(tag, Asked { range, byte });
                }
                if asked.len() == 24 || random(&mut state, 16) == 0 || tag as usize == STEPS - 1 {
                    queue.wait(asked.len(), &mut done).expect("it works");
                }
                for completion in done.drain(..) {
                    let Asked { range, byte } = asked.remove(&completion.tag).expect("asked for");
                    let count = completion.result.expect("a transfer");
                    assert_eq!(count, range.len(), "{name}, seed {seed}");
                    match byte {
                        Some(byte) => model[range].fill(byte),
                        None => assert!(
                            completion.buf[..] == model[range.clone()],
                            "{name}, seed {seed}, {range:?}"
                        ),
                    }
                }
            }
            assert!(asked.is_empty());
            drop((queue, file));
            fs.close().expect("a close");
            // Another way to the image.
            let plain = FileOptions::default();
            let device = dioxide::block::file::open(image.path(), &plain).expect("it opens");
            let fs = Fs::open_device(device, &MountOptions::new().read_only(true));
            let file = OpenOptions::new()
                .read(true)
                .open(&fs.expect("it opens"), "/f");
            let mut found = vec![0; LEN];
            file.expect("a file")
                .read_at(&mut found, 0)
                .expect("a read");
            assert!(found == model, "{name}, seed {seed}");
            e2fsck_clean(image.path());
        }
    }
}
