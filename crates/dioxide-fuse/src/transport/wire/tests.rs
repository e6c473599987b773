use super::abi::{self, opcode};
use super::*;
use crate::ROOT_ID;
use crate::server::{ServerOptions, SyncMode};
use dioxide::{Fs, MountOptions, OpenOptions};
use dioxide_testkit::{Dir, Image, check_pattern, e2fsck_clean, pattern};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const EINVAL: Option<Result<usize>> = Some(Err(Errno::INVAL));

/// A kernel that writes no pages.
#[derive(Default)]
struct Deaf(Interrupts);

impl Asker for Deaf {
    fn write_pages(&self, _: u64) -> bool {
        false
    }

    fn write_all(&self, nodes: &[u64]) -> bool {
        nodes.is_empty()
    }

    fn forget_attributes(&self, _: u64) {}

    fn interrupts(&self) -> &Interrupts {
        &self.0
    }
}

/// A kernel that writes pages, and counts how often.
#[derive(Default)]
struct Writing(Interrupts, AtomicUsize);

impl Asker for Writing {
    fn write_pages(&self, _: u64) -> bool {
        self.1.fetch_add(1, Ordering::Relaxed);
        true
    }

    fn write_all(&self, nodes: &[u64]) -> bool {
        nodes.iter().all(|&node| self.write_pages(node))
    }

    fn forget_attributes(&self, _: u64) {}

    fn interrupts(&self) -> &Interrupts {
        &self.0
    }
}

/// The same, of copies that nobody waits for.
#[derive(Default)]
struct Copying(Writing);

impl Asker for Copying {
    fn write_pages(&self, node: u64) -> bool {
        self.0.write_pages(node)
    }

    fn waits_for_pages(&self) -> bool {
        false
    }

    fn write_all(&self, nodes: &[u64]) -> bool {
        self.0.write_all(nodes)
    }

    fn forget_attributes(&self, _: u64) {}

    fn interrupts(&self) -> &Interrupts {
        self.0.interrupts()
    }
}

/// A kernel that forgets attributes, and counts how often.
#[derive(Default)]
struct Forgetting(Interrupts, AtomicUsize);

impl Asker for Forgetting {
    fn write_pages(&self, _: u64) -> bool {
        false
    }

    fn write_all(&self, nodes: &[u64]) -> bool {
        nodes.is_empty()
    }

    fn forget_attributes(&self, _: u64) {
        self.1.fetch_add(1, Ordering::Relaxed);
    }

    fn interrupts(&self) -> &Interrupts {
        &self.0
    }
}

/// A kernel that has a defect.
#[derive(Default)]
struct Broken(Interrupts);

impl Asker for Broken {
    fn write_pages(&self, _: u64) -> bool {
        panic!("on purpose")
    }

    fn write_all(&self, _: &[u64]) -> bool {
        panic!("on purpose")
    }

    fn forget_attributes(&self, _: u64) {}

    fn interrupts(&self) -> &Interrupts {
        &self.0
    }
}

/// A server over a new image, and a buffer to talk to it.
struct Talk {
    image: Image,
    server: Server,
    kernel: Deaf,
    buffer: Vec<u8>,
}

/// Bytes of a structure, one number after the other.
fn bytes<const N: usize>(numbers: [(u64, usize); N]) -> Vec<u8> {
    let each = numbers.iter();
    each.flat_map(|(number, len)| number.to_ne_bytes()[..*len].to_vec())
        .collect()
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap())
}

fn head(opcode: u32, node: u64) -> Head {
    Head {
        len: 0,
        opcode,
        unique: 7,
        node,
        caller: Caller { uid: 0, gid: 0 },
    }
}

impl Talk {
    fn new() -> Talk {
        Talk::with(ServerOptions::default())
    }

    fn with(options: ServerOptions) -> Talk {
        let image = Image::builder().dir(Dir::Tmpfs).size(16 << 20).build();
        // Nothing is durable unless somebody wants it.
        let never = MountOptions::new().commit_interval(Duration::from_secs(86_400));
        let fs = Fs::open(image.path(), &never).unwrap();
        Talk {
            image,
            server: Server::new(fs, options).unwrap(),
            kernel: Deaf::default(),
            buffer: vec![0; 64 << 10],
        }
    }

    fn try_ask(&mut self, opcode: u32, node: u64, op: &[u8], payload: &[u8]) -> Result<Vec<u8>> {
        self.buffer[..payload.len()].copy_from_slice(payload);
        let head = head(opcode, node);
        let reply = answer(
            &self.server,
            &self.kernel,
            &head,
            op,
            &mut self.buffer,
            payload.len(),
        );
        let len = reply.expect("an answer")?;
        Ok(self.buffer[..len].to_vec())
    }

    #[track_caller]
    fn ask(&mut self, opcode: u32, node: u64, op: &[u8], payload: &[u8]) -> Vec<u8> {
        self.try_ask(opcode, node, op, payload).unwrap()
    }

    /// Node and handle of a new file.
    fn create(&mut self, name: &[u8]) -> (u64, u64) {
        let flags = (libc::O_RDWR | libc::O_CREAT) as u64;
        let op = bytes([(flags, 4), (0o100644, 4), (0o022, 4), (0, 4)]);
        let made = self.ask(opcode::CREATE, ROOT_ID, &op, name);
        assert_eq!(made.len(), 128 + 16);
        (u64_at(&made, 0), u64_at(&made, 128))
    }

    fn open(&mut self, node: u64, flags: i32) -> u64 {
        let op = bytes([(flags as u64, 4), (0, 4)]);
        u64_at(&self.ask(opcode::OPEN, node, &op, b""), 0)
    }

    /// Reads what a crash would leave of a file.
    fn after_a_crash(&self, path: &str) -> Vec<u8> {
        let copy = self.image.copy();
        let left = Fs::open(copy.path(), &MountOptions::new()).unwrap();
        let Ok(file) = OpenOptions::new().read(true).open(&left, path) else {
            return Vec::new();
        };
        let mut content = vec![0; file.len() as usize];
        file.read_at(&mut content, 0).unwrap();
        content
    }

    fn finish(self) {
        self.server.close().unwrap();
        e2fsck_clean(self.image.path());
    }
}

#[test]
fn header_of_a_request_is_taken_apart() {
    let told = bytes([
        (56, 4),
        (3, 4),
        (9, 8),
        (11, 8),
        (1000, 4),
        (100, 4),
        (77, 4),
        (0, 4),
    ]);
    let expected = Head {
        len: 56,
        opcode: opcode::GETATTR,
        unique: 9,
        node: 11,
        caller: Caller {
            uid: 1000,
            gid: 100,
        },
    };
    assert_eq!(Head::decode(&told), Ok(expected));
    for len in 0..told.len() {
        assert_eq!(Head::decode(&told[..len]), Err(Errno::INVAL));
    }
}

#[test]
fn header_of_an_answer_has_a_length_or_a_negative_error() {
    let out = out_header(9, Ok(100));
    assert_eq!(
        (u32_at(&out, 0), u32_at(&out, 4), u64_at(&out, 8)),
        (116, 0, 9)
    );
    let out = out_header(9, Err(Errno::INVAL));
    assert_eq!(
        (u32_at(&out, 0), u32_at(&out, 4) as i32),
        (16, -libc::EINVAL)
    );
}

fn init(major: u64, minor: u64, flags: u64) -> Vec<u8> {
    let version = [(major, 4), (minor, 4), (4096, 4)];
    let mut told = bytes(version);
    told.extend(bytes([(flags, 4), (flags >> 32, 4)]));
    told.resize(64, 0);
    told
}

const OFFER: Offer = Offer {
    writeback: true,
    permissions: false,
    max_background: 40,
    time_gran: 1,
    io_uring: true,
};

/// Older ones want each directory opened.
#[test]
fn kernel_before_5_1_is_refused() {
    assert_eq!(Init::decode(&init(7, 28, 0)), Err(Errno(libc::EPROTO)));
    assert!(Init::decode(&init(7, 29, 0)).is_ok());
}

#[test]
fn only_what_both_sides_can_is_agreed() {
    let all = Init::decode(&init(7, 99, u64::MAX)).unwrap().unwrap();
    let mut buffer = [0; 64];
    assert_eq!(all.reply(&OFFER, &mut buffer), Ok(64));
    assert_eq!((u32_at(&buffer, 0), u32_at(&buffer, 4)), (7, 45));
    let flags = u64::from(u32_at(&buffer, 12)) | u64::from(u32_at(&buffer, 32)) << 32;
    let has = |bit: u32| flags >> bit & 1 == 1;
    assert!(has(16) && has(28) && has(36) && has(41));
    assert!(all.agreed(&OFFER).over_io_uring && all.agreed(&OFFER).maps_direct);
    // Access control lists were not wanted; locks and passthrough nobody serves.
    assert!(!has(20) && !has(1) && !has(10) && !has(37));
    assert_eq!(u32_at(&buffer, 16), 40 | 30 << 16);
    assert_eq!(u32_at(&buffer, 20), PAYLOAD_BYTES as u32);
    let few = Init::decode(&init(7, 42, 1 << 30 | 1)).unwrap().unwrap();
    few.reply(&OFFER, &mut buffer).unwrap();
    assert_eq!((u32_at(&buffer, 4), u32_at(&buffer, 12)), (42, 1 << 30 | 1));
    assert_eq!(u32_at(&buffer, 32), 0);
    assert!(!few.agreed(&OFFER).over_io_uring && !few.agreed(&OFFER).maps_direct);
}

#[test]
fn kernel_without_the_second_word_of_flags_has_none_of_them() {
    let told = Init::decode(&init(7, 45, !(1 << 30))).unwrap().unwrap();
    assert!(!told.agreed(&OFFER).over_io_uring);
}

#[test]
fn older_kernel_gets_no_holes_of_a_file_that_somebody_writes() {
    for (minor, waits) in [(43, false), (44, true)] {
        let told = Init::decode(&init(7, minor, 0)).unwrap().unwrap();
        assert_eq!(told.agreed(&OFFER).waits_for_pages, waits);
    }
    let mut talk = Talk::new();
    let (node, handle) = talk.create(b"f\0");
    let seen = talk.open(node, libc::O_RDONLY);
    let release = |handle| bytes([(handle, 8), (0, 8), (0, 8)]);
    let seek = |talk: &mut Talk, kernel: &dyn Asker| {
        let op = bytes([(seen, 8), (0, 8), (libc::SEEK_DATA as u64, 4), (0, 4)]);
        let head = head(opcode::LSEEK, node);
        answer(&talk.server, kernel, &head, &op, &mut talk.buffer, 0)
    };
    let none = Some(Err(Errno::NXIO));
    assert_eq!(seek(&mut talk, &Writing::default()), none);
    let older = Copying::default();
    assert_eq!(seek(&mut talk, &older), Some(Err(Errno::NOSYS)));
    talk.ask(opcode::RELEASE, node, &release(handle), b"");
    assert_eq!(seek(&mut talk, &older), none);
    talk.ask(opcode::RELEASE, node, &release(seen), b"");
    talk.finish();
}

#[test]
fn older_kernel_has_a_shorter_structure_for_setting_attributes() {
    let bytes = |flags| {
        let told = Init::decode(&init(7, 31, flags)[..16]).unwrap().unwrap();
        told.agreed(&OFFER).op_bytes(opcode::SETXATTR)
    };
    assert_eq!((bytes(0), bytes(1 << 29)), (8, 16));
    let mut talk = Talk::new();
    let (node, _) = talk.create(b"f\0");
    let set = self::bytes([(5, 4), (0, 4)]);
    talk.ask(opcode::SETXATTR, node, &set, b"user.x\0value");
    let get = self::bytes([(5, 4), (0, 4)]);
    assert_eq!(
        talk.ask(opcode::GETXATTR, node, &get, b"user.x\0"),
        b"value"
    );
    talk.finish();
}

#[test]
fn versions_that_do_not_fit_are_refused_or_asked_again() {
    assert_eq!(Init::decode(&init(8, 0, 0)), Ok(None));
    assert_eq!(Init::decode(&init(7, 27, 0)), Err(Errno(libc::EPROTO)));
    assert_eq!(Init::decode(&init(6, 99, 0)), Err(Errno(libc::EPROTO)));
    for len in 0..20 {
        assert!(Init::decode(&init(7, 45, u64::MAX)[..len]).is_err());
    }
}

#[test]
fn file_is_made_written_read_and_told_of() {
    let mut talk = Talk::new();
    let (node, handle) = talk.create(b"name\0");
    let data = pattern(1, 0, 10_000);
    let op = bytes([(handle, 8), (4096, 8), (10_000, 4), (0, 4), (0, 8), (0, 8)]);
    let wrote = talk.ask(opcode::WRITE, node, &op, &data);
    assert_eq!((u32_at(&wrote, 0), wrote.len()), (10_000, 8));
    let op = bytes([(handle, 8), (4096, 8), (16_384, 4), (0, 4), (0, 8), (0, 8)]);
    let read = talk.ask(opcode::READ, node, &op, b"");
    assert_eq!(read.len(), 10_000);
    check_pattern(1, 0, &read);
    let told = talk.ask(opcode::GETATTR, node, &[0; 16], b"");
    assert_eq!(told.len(), 104);
    // Inode, size, mode, links.
    assert_eq!((u64_at(&told, 16), u64_at(&told, 24)), (node, 14_096));
    assert_eq!((u32_at(&told, 76), u32_at(&told, 80)), (0o100644, 1));
    let found = talk.ask(opcode::LOOKUP, ROOT_ID, b"", b"name\0");
    assert_eq!((u64_at(&found, 0), found.len()), (node, 128));
    assert_eq!(u64_at(&found, 48), 14_096);
    talk.ask(
        opcode::RELEASE,
        node,
        &bytes([(handle, 8), (0, 8), (0, 8)]),
        b"",
    );
    talk.finish();
}

/// A page that is filled is locked meanwhile: to have pages written would be to wait for it.
#[test]
fn read_that_fills_a_page_has_no_pages_written_whatever_flags_the_file_has() {
    let mut talk = Talk::new();
    let (node, handle) = talk.create(b"f\0");
    let data = pattern(1, 0, 5000);
    let op = bytes([(handle, 8), (0, 8), (5000, 4), (0, 4), (0, 8), (0, 8)]);
    talk.ask(opcode::WRITE, node, &op, &data);
    let o_direct = libc::O_DIRECT as u64;
    // For a page; past the page cache; the same of a file that is read so without the flag.
    for (read_flags, flags, asked) in [(0, o_direct, 0), (1 << 1, o_direct, 1), (1 << 1, 0, 1)] {
        let kernel = Writing::default();
        let op = bytes([
            (handle, 8),
            (4096, 8),
            (4096, 4),
            (read_flags, 4),
            (9, 8),
            (libc::O_RDWR as u64 | flags, 8),
        ]);
        let head = head(opcode::READ, node);
        let reply = answer(&talk.server, &kernel, &head, &op, &mut talk.buffer, 0);
        assert_eq!(reply, Some(Ok(904)));
        check_pattern(1, 4096, &talk.buffer[..904]);
        assert_eq!(kernel.1.into_inner(), asked, "{read_flags:#x} {flags:#o}");
    }
    let release = bytes([(handle, 8), (0, 8), (0, 8)]);
    talk.ask(opcode::RELEASE, node, &release, b"");
    talk.finish();
}

/// To end short would be to say that the file ends there, and `ENOSYS` that no file has holes.
#[test]
fn read_or_seek_is_to_be_tried_again_if_no_pages_can_be_written_now() {
    let mut talk = Talk::new();
    let (node, handle) = talk.create(b"f\0");
    let read = bytes([
        (handle, 8),
        (0, 8),
        (4096, 4),
        (1 << 1, 4),
        (9, 8),
        (libc::O_DIRECT as u64, 8),
    ]);
    let refused = talk.try_ask(opcode::READ, node, &read, b"");
    assert_eq!(refused, Err(Errno(libc::EAGAIN)));
    let seek = bytes([(handle, 8), (0, 8), (libc::SEEK_DATA as u64, 4), (0, 4)]);
    let refused = talk.try_ask(opcode::LSEEK, node, &seek, b"");
    assert_eq!(refused, Err(Errno(libc::EAGAIN)));
    let release = bytes([(handle, 8), (0, 8), (0, 8)]);
    talk.ask(opcode::RELEASE, node, &release, b"");
    talk.finish();
}

/// It asks for them before it takes more, and is told then.
#[test]
fn attributes_are_forgotten_if_pages_cannot_be_written_back() {
    let mut talk = Talk::new();
    let (node, handle) = talk.create(b"f\0");
    for (cached, offset, forgets) in [(1, 0, 0), (0, i64::MAX as u64, 0), (1, i64::MAX as u64, 1)] {
        let kernel = Forgetting::default();
        let op = bytes([
            (handle, 8),
            (offset, 8),
            (1, 4),
            (cached, 4),
            (0, 8),
            (0, 8),
        ]);
        let head = head(opcode::WRITE, node);
        let reply = answer(&talk.server, &kernel, &head, &op, &mut talk.buffer, 1);
        assert_eq!(reply.unwrap().is_ok(), offset == 0);
        assert_eq!(kernel.1.into_inner(), forgets, "{cached} {offset}");
    }
    let release = bytes([(handle, 8), (0, 8), (0, 8)]);
    talk.ask(opcode::RELEASE, node, &release, b"");
    talk.finish();
}

#[test]
fn name_that_is_not_there_is_node_0_for_some_time() {
    let mut talk = Talk::new();
    let found = talk.ask(opcode::LOOKUP, ROOT_ID, b"", b"absent\0");
    assert_eq!((u64_at(&found, 0), u64_at(&found, 16)), (0, 3600));
    talk.finish();
}

#[test]
fn time_of_birth_and_device_are_told_by_statx() {
    let mut talk = Talk::new();
    let op = bytes([(0o020600, 4), (0x811, 4), (0, 4), (0, 4)]);
    let made = talk.ask(opcode::MKNOD, ROOT_ID, &op, b"sda\0");
    let told = talk.ask(opcode::STATX, u64_at(&made, 0), &[0; 24], b"");
    assert_eq!((told.len(), u32_at(&told, 32)), (288, 0xfff));
    assert_eq!(u64_at(&told, 64), u64_at(&made, 0));
    let (birth, changed) = (u64_at(&told, 112), u64_at(&told, 144));
    assert!(birth == changed && birth > 1_600_000_000);
    assert_eq!((u32_at(&told, 160), u32_at(&told, 164)), (8, 17));
    talk.finish();
}

#[test]
fn listing_has_whole_names_that_fit_and_goes_on_behind_them() {
    let mut talk = Talk::new();
    for name in [b"one\0".as_slice(), b"seventeen letters\0"] {
        talk.create(name);
    }
    let (mut from, mut names) = (0, Vec::new());
    loop {
        // Room for two names at most.
        let op = bytes([(0, 8), (from, 8), (80, 4), (0, 4), (0, 8), (0, 8)]);
        let listed = talk.ask(opcode::READDIR, ROOT_ID, &op, b"");
        if listed.is_empty() {
            break;
        }
        let mut at = 0;
        while at < listed.len() {
            let len = u32_at(&listed, at + 16) as usize;
            names.push(listed[at + 24..][..len].to_vec());
            from = u64_at(&listed, at + 8);
            at += (24 + len).next_multiple_of(8);
        }
        assert_eq!(at, listed.len());
    }
    names.sort();
    let expected: [&[u8]; 5] = [b".", b"..", b"lost+found", b"one", b"seventeen letters"];
    assert_eq!(names, expected);
    let op = bytes([(0, 8), (0, 8), (4096, 4), (0, 4), (0, 8), (0, 8)]);
    let listed = talk.ask(opcode::READDIRPLUS, ROOT_ID, &op, b"");
    // "." is a name only.
    assert_eq!((u64_at(&listed, 0), listed.len() % 8), (0, 0));
    talk.finish();
}

#[test]
fn rename_and_attributes_take_two_parts_of_the_payload() {
    let mut talk = Talk::new();
    let (node, _) = talk.create(b"old\0");
    talk.ask(
        opcode::RENAME2,
        ROOT_ID,
        &bytes([(ROOT_ID, 8), (0, 8)]),
        b"old\0new\0",
    );
    assert_eq!(
        u64_at(&talk.ask(opcode::LOOKUP, ROOT_ID, b"", b"new\0"), 0),
        node
    );
    let set = bytes([(5, 4), (0, 4), (0, 4), (0, 4)]);
    talk.ask(opcode::SETXATTR, node, &set, b"user.x\0value");
    let get = |size| bytes([(size, 4), (0, 4)]);
    let len = talk.ask(opcode::GETXATTR, node, &get(0), b"user.x\0");
    assert_eq!(u32_at(&len, 0), 5);
    assert_eq!(
        talk.ask(opcode::GETXATTR, node, &get(5), b"user.x\0"),
        b"value"
    );
    let short = talk.try_ask(opcode::GETXATTR, node, &get(4), b"user.x\0");
    assert_eq!(short, Err(Errno::RANGE));
    talk.finish();
}

#[test]
fn size_that_changes_strips_set_ids_if_the_kernel_says_so() {
    let mut talk = Talk::new();
    let (node, _) = talk.create(b"f\0");
    let setattr = |valid: u64, size: u64| {
        let mut op = bytes([
            (valid, 8),
            (0, 8),
            (size, 8),
            (0, 8),
            (0, 8),
            (0, 8),
            (0, 8),
        ]);
        op.extend(bytes([(0, 8), (0, 4), (0o106755, 4), (0, 8), (0, 8)]));
        op
    };
    for (kill, mode) in [(0, 0o106755), (1 << 11, 0o100755)] {
        talk.ask(opcode::SETATTR, node, &setattr(1, 0), b"");
        let told = talk.ask(
            opcode::SETATTR,
            node,
            &setattr(1 << 3 | kill, 10 + kill),
            b"",
        );
        assert_eq!((u64_at(&told, 24), u32_at(&told, 76)), (10 + kill, mode));
    }
    talk.finish();
}

#[test]
fn unnamed_file_is_there_until_it_is_forgotten() {
    let mut talk = Talk::new();
    let op = bytes([(libc::O_RDWR as u64, 4), (0o100600, 4), (0, 4), (0, 4)]);
    let made = talk.ask(opcode::TMPFILE, ROOT_ID, &op, b"\0");
    let (node, handle) = (u64_at(&made, 0), u64_at(&made, 128));
    // No links.
    assert_eq!(
        u32_at(&talk.ask(opcode::GETATTR, node, &[0; 16], b""), 80),
        0
    );
    talk.ask(
        opcode::RELEASE,
        node,
        &bytes([(handle, 8), (0, 8), (0, 8)]),
        b"",
    );
    let forget = bytes([(1, 4), (0, 4)]);
    let each = bytes([(node, 8), (1, 8)]);
    talk.buffer[..16].copy_from_slice(&each);
    let head = head(opcode::BATCH_FORGET, 0);
    assert!(
        answer(
            &talk.server,
            &talk.kernel,
            &head,
            &forget,
            &mut talk.buffer,
            16
        )
        .is_none()
    );
    let gone = talk.try_ask(opcode::GETATTR, node, &[0; 16], b"");
    assert_eq!(gone, Err(Errno::STALE));
    talk.finish();
}

/// No kernel sends it for a mount of ours yet.
#[test]
fn syncfs_makes_everything_durable() {
    let mut talk = Talk::new();
    talk.create(b"name\0");
    talk.ask(opcode::SYNCFS, ROOT_ID, &[0; 8], b"");
    // As a crash leaves it.
    let copy = talk.image.copy();
    let left = Fs::open(copy.path(), &MountOptions::new()).unwrap();
    left.metadata("/name").unwrap();
    drop(left);
    talk.finish();
}

/// `RWF_DSYNC`, `RWF_SYNC` and `-o sync`: flags that the descriptor was opened without.
#[test]
fn direct_write_is_durable_if_it_says_so() {
    const DIRECT: i32 = libc::O_RDWR | libc::O_DIRECT;
    for (open, write, durable) in [
        (DIRECT, DIRECT, false),
        (DIRECT, DIRECT | libc::O_DSYNC, true),
        (DIRECT, DIRECT | libc::O_SYNC, true),
        (DIRECT | libc::O_DSYNC, DIRECT | libc::O_SYNC, true),
        // The kernel has written through its page cache, and asks for `fsync` itself.
        (libc::O_RDWR, libc::O_RDWR | libc::O_DSYNC, false),
    ] {
        let mut talk = Talk::new();
        let (node, _) = talk.create(b"f\0");
        let handle = talk.open(node, open);
        let data = pattern(1, 0, 4096);
        let op = bytes([
            (handle, 8),
            (0, 8),
            (4096, 4),
            (0, 4),
            (0, 8),
            (write as u64, 4),
            (0, 4),
        ]);
        talk.ask(opcode::WRITE, node, &op, &data);
        let kept = talk.after_a_crash("/f");
        assert_eq!(kept == data, durable, "{open:o}, {write:o}");
        talk.finish();
    }
}

#[test]
fn copy_to_a_file_that_waits_for_the_disk_is_durable() {
    let waits = ServerOptions {
        sync: SyncMode::Data,
        ..ServerOptions::default()
    };
    for (options, flags, durable) in [
        (ServerOptions::default(), 0, false),
        (ServerOptions::default(), libc::O_DSYNC, true),
        (ServerOptions::default(), libc::O_SYNC, true),
        (waits, 0, true),
    ] {
        let mut talk = Talk::with(options);
        let (from, to) = (talk.create(b"from\0"), talk.create(b"to\0"));
        let data = pattern(1, 0, 4096);
        let op = bytes([(from.1, 8), (0, 8), (4096, 4), (0, 4), (0, 8), (0, 8)]);
        talk.ask(opcode::WRITE, from.0, &op, &data);
        let target = talk.open(to.0, libc::O_WRONLY | flags);
        let op = bytes([
            (from.1, 8),
            (0, 8),
            (to.0, 8),
            (target, 8),
            (0, 8),
            (4096, 8),
            (0, 8),
        ]);
        let told = talk.ask(opcode::COPY_FILE_RANGE_64, from.0, &op, b"");
        assert_eq!(u64_at(&told, 0), 4096);
        let kept = talk.after_a_crash("/to");
        assert_eq!(kept == data, durable, "{flags:o}");
        talk.finish();
    }
}

/// As often as there are such files, however often each is open.
#[test]
fn sync_of_the_root_has_the_pages_written_of_files_that_are_open_for_writing() {
    let mut talk = Talk::new();
    let sync = |talk: &mut Talk, node| {
        let kernel = Writing::default();
        let head = head(opcode::FSYNCDIR, node);
        let reply = answer(&talk.server, &kernel, &head, &[0; 16], &mut talk.buffer, 0);
        assert_eq!(reply, Some(Ok(0)));
        kernel.1.into_inner()
    };
    assert_eq!(sync(&mut talk, ROOT_ID), 0);
    let (first, handle) = talk.create(b"first\0");
    talk.create(b"second\0");
    for flags in [libc::O_RDONLY, libc::O_RDWR, libc::O_WRONLY] {
        talk.ask(opcode::OPEN, first, &bytes([(flags as u64, 8)]), b"");
    }
    assert_eq!(sync(&mut talk, ROOT_ID), 2);
    let made = talk.ask(opcode::MKDIR, ROOT_ID, &[0; 8], b"d\0");
    assert_eq!(sync(&mut talk, u64_at(&made, 0)), 0);
    talk.ask(
        opcode::RELEASE,
        first,
        &bytes([(handle, 8), (0, 8), (0, 8)]),
        b"",
    );
    assert_eq!(sync(&mut talk, ROOT_ID), 2);
    // It does not say that all is durable where it is not.
    let refused = talk.try_ask(opcode::FSYNCDIR, ROOT_ID, &[0; 16], b"");
    assert_eq!(refused, Err(Errno(libc::EAGAIN)));
    talk.finish();
}

#[test]
fn structure_that_is_too_short_is_refused() {
    let mut talk = Talk::new();
    for opcode in [
        opcode::READ,
        opcode::WRITE,
        opcode::SETATTR,
        opcode::COPY_FILE_RANGE,
    ] {
        let needed = match opcode {
            opcode::READ | opcode::WRITE => 20,
            opcode::SETATTR => 84,
            _ => 48,
        };
        for len in 0..needed {
            let reply = answer(
                &talk.server,
                &talk.kernel,
                &head(opcode, 1),
                &[0; 88][..len],
                &mut talk.buffer,
                0,
            );
            assert_eq!(reply, EINVAL, "opcode {opcode}, {len} bytes");
        }
    }
    talk.finish();
}

#[test]
fn lengths_beyond_the_payload_and_names_without_an_end_are_refused() {
    let mut talk = Talk::new();
    let (node, handle) = talk.create(b"f\0");
    let rw = |size| bytes([(handle, 8), (0, 8), (size, 4), (0, 4), (0, 8), (0, 8)]);
    let beyond = talk.try_ask(opcode::WRITE, node, &rw(6), b"five!");
    assert_eq!(beyond, Err(Errno::INVAL));
    let beyond = talk.try_ask(opcode::READ, node, &rw(u32::MAX.into()), b"");
    assert_eq!(beyond, Err(Errno::INVAL));
    for opcode in [
        opcode::LOOKUP,
        opcode::UNLINK,
        opcode::SYMLINK,
        opcode::REMOVEXATTR,
    ] {
        assert_eq!(
            talk.try_ask(opcode, ROOT_ID, b"", b"endless"),
            Err(Errno::INVAL)
        );
    }
    let none = talk.try_ask(opcode::SYMLINK, ROOT_ID, b"", b"name\0endless");
    assert_eq!(none, Err(Errno::INVAL));
    talk.finish();
}

#[test]
fn request_that_panics_is_answered_and_so_is_the_next() {
    let mut talk = Talk::new();
    let (node, handle) = talk.create(b"f\0");
    let head = head(opcode::LSEEK, node);
    let op = bytes([(handle, 8), (0, 8), (libc::SEEK_HOLE as u64, 4), (0, 4)]);
    let kernel = Broken::default();
    let reply = answer(&talk.server, &kernel, &head, &op, &mut talk.buffer, 0);
    assert_eq!(reply, Some(Err(Errno::IO)));
    let attributes = talk.ask(opcode::GETATTR, node, &bytes([(0, 8), (0, 8)]), &[]);
    assert_eq!(u64_at(&attributes, 16), node);
    talk.ask(
        opcode::RELEASE,
        node,
        &bytes([(handle, 8), (0, 8), (0, 8)]),
        &[],
    );
    talk.finish();
}

#[test]
fn copy_that_was_given_up_ends_after_its_first_step() {
    const LEN: u64 = 4 << 20;
    let mut talk = Talk::new();
    let (from, to) = (talk.create(b"from\0"), talk.create(b"to\0"));
    let set = [(1 << 3, 8), (0, 8), (LEN, 8), (0, 64)].map(|(number, len)| {
        let mut part = u64::to_ne_bytes(number).to_vec();
        part.resize(len, 0);
        part
    });
    talk.ask(opcode::SETATTR, from.0, &set.concat(), b"");
    let op = bytes([
        (from.1, 8),
        (0, 8),
        (to.0, 8),
        (to.1, 8),
        (0, 8),
        (LEN, 8),
        (0, 8),
    ]);
    let copied = |talk: &mut Talk| {
        let told = talk.ask(opcode::COPY_FILE_RANGE_64, from.0, &op, b"");
        u64_at(&told, 0)
    };
    assert_eq!(copied(&mut talk), LEN);
    // Of another request, and of this.
    for (unique, expected) in [(9_u64, LEN), (7, 1 << 20)] {
        let head = head(opcode::INTERRUPT, 0);
        let told = unique.to_ne_bytes();
        let said = answer(&talk.server, &talk.kernel, &head, &told, &mut [], 0);
        assert!(said.is_none());
        assert_eq!(copied(&mut talk), expected);
    }
    talk.finish();
}

/// Numbers of no meaning, the same each time.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        self.0 >> 33
    }

    fn bytes(&mut self, most: usize) -> Vec<u8> {
        let len = self.next() as usize % (most + 1);
        // Small numbers lead further.
        let dense = self.next().is_multiple_of(2);
        let byte = |noise: &mut Noise| match dense || noise.next().is_multiple_of(8) {
            true => noise.next() as u8 % 4,
            false => 0,
        };
        (0..len).map(|_| byte(self)).collect()
    }
}

#[test]
fn bytes_of_no_sense_are_answered_and_the_image_stays_whole() {
    let mut talk = Talk::new();
    talk.create(b"f\0");
    let mut noise = Noise(1);
    for round in 0..4000 {
        let opcode = match round % 50 {
            0 => noise.next() as u32,
            _ => abi::ALL[noise.next() as usize % abi::ALL.len()],
        };
        let (op, payload) = (noise.bytes(abi::OP_BYTES), noise.bytes(300));
        let room = [0, 10, 100, 300, 8192][noise.next() as usize % 5];
        let head = head(opcode, noise.next() % 16);
        let len = payload.len().min(room);
        talk.buffer[..len].copy_from_slice(&payload[..len]);
        // More payload than there is buffer, too.
        let reply = answer(
            &talk.server,
            &talk.kernel,
            &head,
            &op,
            &mut talk.buffer[..room],
            payload.len(),
        );
        if let Some(Ok(len)) = reply {
            assert!(len <= room);
        }
    }
    talk.finish();
}
