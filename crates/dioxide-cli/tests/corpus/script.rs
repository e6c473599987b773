//! The tree that every image gets, and the changes that are made to it afterwards.
//!
//! Both are fixed: the same calls for the kernel and for dioxide, so that their answers and trees can
//! be compared. A call that one kind of file system refuses (no extents, no room for an attribute) is refused by
//! both with the same `errno`.

use crate::op::Op;
use dioxide::{FallocateMode, Special, Timestamp};

const IMMUTABLE_NOT: u32 = 0x40 | 0x80;

/// How much of it there is.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// Names in the large directory.
    pub names: u64,
    /// Directories below each other.
    pub depth: u64,
    /// Extents of the fragmented file.
    pub pieces: u64,
}

/// For every kind of file system.
pub const FULL: Scale = Scale {
    names: 2500,
    depth: 60,
    pieces: 600,
};

/// For the part that runs with all tests.
pub const QUICK: Scale = Scale {
    names: 400,
    depth: 20,
    pieces: 120,
};

fn p(path: &str) -> Vec<u8> {
    path.as_bytes().to_vec()
}

fn long_name(at: u64) -> Vec<u8> {
    let len = 20 + at * 37 % 230;
    let mut name = format!("/many/n{at:05}-").into_bytes();
    name.resize(len as usize + 6, b'a' + (at % 26) as u8);
    name
}

/// An access control list in the form of `setxattr`: owner, one more user, group, mask, others.
fn acl(user: u32, mask: u16) -> Vec<u8> {
    const NO_ID: u32 = u32::MAX;
    let entries = [
        (0x01, 7, NO_ID),
        (0x02, 5, user),
        (0x04, 5, NO_ID),
        (0x10, mask, NO_ID),
        (0x20, 4, NO_ID),
    ];
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        let entry: [&[u8]; 3] = [
            &u16::to_le_bytes(tag),
            &u16::to_le_bytes(perm),
            &u32::to_le_bytes(id),
        ];
        bytes.extend(entry.concat());
    }
    bytes
}

/// Fills a new file system.
pub fn fill(scale: Scale) -> Vec<Op> {
    let mut ops = Vec::new();
    files(&mut ops, scale);
    names(&mut ops, scale);
    specials(&mut ops);
    attributes(&mut ops);
    times(&mut ops);
    ops
}

fn files(ops: &mut Vec<Op>, scale: Scale) {
    ops.push(Op::Dir(p("/data"), 0o755));
    for (name, len) in [
        ("empty", 0),
        ("one", 1),
        ("fits-inode", 60),
        ("fits-large-inode", 150),
        ("block", 1024),
        ("odd", 4097),
        ("large", 1_500_003),
    ] {
        let path = p(&format!("/data/{name}"));
        ops.push(Op::File(path.clone(), 0o644));
        if len > 0 {
            ops.push(Op::Write(path, 0, len, len as u64));
        }
    }
    let make = |ops: &mut Vec<Op>, name: &str| {
        ops.push(Op::File(p(name), 0o600));
        p(name)
    };
    let path = make(ops, "/data/sparse");
    for at in [0, 1 << 16, 1 << 20, 70 << 20, 600 << 20] {
        ops.push(Op::Write(path.clone(), at, 5000, at));
    }
    ops.push(Op::Truncate(path, (700 << 20) + 1));
    // Beyond 2 GiB: the first such file sets `large_file`.
    let path = make(ops, "/data/far");
    ops.push(Op::Write(path, (5 << 30) + 77, 3000, 5));
    let path = make(ops, "/data/only-hole");
    ops.push(Op::Truncate(path, 1 << 20));
    let path = make(ops, "/data/unwritten");
    ops.push(Op::Fallocate(
        path.clone(),
        FallocateMode::Allocate,
        0,
        400_000,
    ));
    ops.push(Op::Write(path, 131_072, 65_536, 6));
    let path = make(ops, "/data/kept-size");
    ops.push(Op::Write(path.clone(), 0, 3000, 7));
    ops.push(Op::Fallocate(path, FallocateMode::KeepSize, 0, 200_000));
    let path = make(ops, "/data/punched");
    ops.push(Op::Write(path.clone(), 0, 300_000, 8));
    ops.push(Op::Fallocate(
        path,
        FallocateMode::PunchHole,
        10_000,
        170_000,
    ));
    let path = make(ops, "/data/zeroed");
    ops.push(Op::Write(path.clone(), 0, 200_000, 9));
    ops.push(Op::Fallocate(
        path,
        FallocateMode::ZeroRange,
        70_000,
        70_000,
    ));
    let path = make(ops, "/data/fragmented");
    for at in 0..scale.pieces {
        ops.push(Op::Write(path.clone(), at * 131_072, 1000, at));
    }
    let path = make(ops, "/data/shortened");
    ops.push(Op::Write(path.clone(), 0, 500_000, 10));
    ops.push(Op::Truncate(path, 123_457));
}

fn names(ops: &mut Vec<Op>, scale: Scale) {
    ops.push(Op::Dir(p("/many"), 0o755));
    for at in 0..scale.names {
        ops.push(Op::File(long_name(at), 0o644));
    }
    let mut deep = Vec::new();
    for at in 0..scale.depth {
        deep.extend(format!("/d{at}").bytes());
        ops.push(Op::Dir(deep.clone(), 0o755));
    }
    deep.extend(b"/bottom");
    ops.push(Op::File(deep.clone(), 0o644));
    ops.push(Op::Write(deep, 0, 10, 1));
    ops.push(Op::Dir(p("/names"), 0o755));
    for name in [
        &[b'x'; 255][..],
        b"\xff\xfe not UTF-8",
        b" ",
        b"new\nline",
        b"...",
    ] {
        ops.push(Op::File([b"/names/", name].concat(), 0o644));
    }
    // One too long for both.
    ops.push(Op::File([&b"/names/"[..], &[b'y'; 256]].concat(), 0o644));
    // Names small enough for the inode, where directories may be there.
    ops.push(Op::Dir(p("/small"), 0o755));
    ops.push(Op::File(p("/small/a"), 0o644));
    ops.push(Op::Dir(p("/small/b"), 0o755));
}

fn specials(ops: &mut Vec<Op>) {
    ops.push(Op::Dir(p("/kinds"), 0o755));
    for (name, special) in [
        ("fifo", Special::Fifo),
        ("socket", Special::Socket),
        ("old-char", Special::CharDevice(4, 64)),
        ("new-char", Special::CharDevice(300, 70_000)),
        ("old-block", Special::BlockDevice(8, 1)),
        ("new-block", Special::BlockDevice(259, 1_000_000)),
    ] {
        ops.push(Op::Special(p(&format!("/kinds/{name}")), special));
    }
    for len in [1, 59, 60, 61, 200, 1023, 1024, 4094, 4095] {
        let target = vec![b't'; len];
        ops.push(Op::Symlink(target, p(&format!("/kinds/link{len}"))));
    }
    ops.push(Op::Symlink(p("../data/one"), p("/kinds/leads")));
    for at in 0..50 {
        ops.push(Op::Link(p("/data/odd"), p(&format!("/kinds/hard{at}"))));
    }
    ops.push(Op::Link(p("/kinds/fifo"), p("/kinds/fifo2")));
    ops.push(Op::Link(p("/kinds"), p("/kinds2")));
}

fn attributes(ops: &mut Vec<Op>) {
    ops.push(Op::Dir(p("/attrs"), 0o755));
    for at in 0..6u8 {
        let path = p(&format!("/attrs/f{at}"));
        ops.push(Op::File(path.clone(), 0o644));
        ops.push(Op::Xattr(path.clone(), "user.small", vec![b'0' + at; 10]));
        // The same in two files each: blocks are shared.
        ops.push(Op::Xattr(
            path.clone(),
            "user.shared",
            vec![b's' + at / 2; 300],
        ));
        ops.push(Op::Xattr(path.clone(), "user.empty", Vec::new()));
        ops.push(Op::Xattr(path, "trusted.t", vec![at; 40]));
    }
    ops.push(Op::File(p("/attrs/big"), 0o644));
    ops.push(Op::Xattr(p("/attrs/big"), "user.big", vec![b'B'; 20_000]));
    ops.push(Op::Xattr(p("/attrs/big"), "user.block", vec![b'C'; 3000]));
    ops.push(Op::File(p("/attrs/acl"), 0o640));
    ops.push(Op::Xattr(
        p("/attrs/acl"),
        "system.posix_acl_access",
        acl(1000, 5),
    ));
    ops.push(Op::Dir(p("/attrs/heirs"), 0o750));
    ops.push(Op::Xattr(
        p("/attrs/heirs"),
        "system.posix_acl_default",
        acl(70_000, 7),
    ));
    ops.push(Op::File(p("/attrs/heirs/file"), 0o666));
    ops.push(Op::Dir(p("/attrs/heirs/dir"), 0o777));
    ops.push(Op::File(p("/attrs/heirs/dir/below"), 0o600));
    ops.push(Op::Symlink(p("x"), p("/attrs/link")));
    ops.push(Op::Xattr(
        p("/attrs/link"),
        "trusted.on-link",
        b"link".to_vec(),
    ));
    ops.push(Op::Xattr(
        p("/attrs/link"),
        "user.refused",
        b"link".to_vec(),
    ));
    ops.push(Op::Xattr(
        p("/kinds/fifo"),
        "trusted.on-fifo",
        b"fifo".to_vec(),
    ));
    for (at, (uid, gid)) in [(1, 2), (65_535, 65_536), (4_000_000_000, 100_000)]
        .into_iter()
        .enumerate()
    {
        let path = p(&format!("/attrs/owned{at}"));
        ops.push(Op::File(path.clone(), 0o6755));
        ops.push(Op::Chown(path, uid, gid));
    }
    ops.push(Op::Dir(p("/attrs/group"), 0o755));
    ops.push(Op::Chown(p("/attrs/group"), 5, 6));
    ops.push(Op::Chmod(p("/attrs/group"), 0o2775));
    ops.push(Op::File(p("/attrs/group/heir"), 0o644));
    ops.push(Op::Dir(p("/attrs/group/dir"), 0o755));
    ops.push(Op::Chmod(p("/attrs/f1"), 0o7777));
    ops.push(Op::Flags(p("/attrs/f2"), IMMUTABLE_NOT));
}

fn times(ops: &mut Vec<Op>) {
    ops.push(Op::Dir(p("/times"), 0o755));
    for (at, secs) in [
        0,
        -1,
        1 << 31,
        1 << 33,
        15_032_385_535,
        -2_147_483_648,
        1_700_000_000,
    ]
    .into_iter()
    .enumerate()
    {
        let path = p(&format!("/times/t{at}"));
        ops.push(Op::File(path.clone(), 0o644));
        let nanos = 123_456_789 * (at as u32 % 2);
        ops.push(Op::Mtime(path, Timestamp { secs, nanos }));
    }
}

/// Changes what [`fill`] made.
pub fn change(scale: Scale) -> Vec<Op> {
    let mut ops = Vec::new();
    let d = |name: &str| p(&format!("/data/{name}"));
    ops.push(Op::Write(d("empty"), 0, 30, 100));
    ops.push(Op::Write(d("fits-inode"), 60, 40, 101));
    ops.push(Op::Write(d("fits-large-inode"), 150, 5000, 102));
    ops.push(Op::Write(d("large"), 700_001, 100_001, 103));
    ops.push(Op::Write(d("large"), 1_500_003, 200_000, 104));
    ops.push(Op::Write(d("sparse"), 3 << 20, 70_000, 105));
    ops.push(Op::Fallocate(
        d("sparse"),
        FallocateMode::PunchHole,
        1 << 20,
        8192,
    ));
    ops.push(Op::Truncate(d("sparse"), 650 << 20));
    ops.push(Op::Write(d("only-hole"), 1_000_000, 100_000, 106));
    ops.push(Op::Write(d("unwritten"), 0, 1000, 107));
    ops.push(Op::Write(d("unwritten"), 390_000, 30_000, 108));
    ops.push(Op::Truncate(d("kept-size"), 150_000));
    ops.push(Op::Fallocate(
        d("punched"),
        FallocateMode::CollapseRange,
        65_536,
        65_536,
    ));
    ops.push(Op::Fallocate(
        d("zeroed"),
        FallocateMode::InsertRange,
        65_536,
        131_072,
    ));
    ops.push(Op::Truncate(d("odd"), 5));
    ops.push(Op::Truncate(d("odd"), 9000));
    ops.push(Op::Truncate(d("far"), 3));
    for at in (0..scale.pieces).step_by(2) {
        ops.push(Op::Write(d("fragmented"), at * 131_072 + 66_000, 500, at));
    }
    ops.push(Op::Truncate(d("fragmented"), scale.pieces / 2 * 131_072));
    for at in (0..scale.names).step_by(3) {
        ops.push(Op::Unlink(long_name(at)));
    }
    for at in (1..scale.names).step_by(3) {
        ops.push(Op::Rename(long_name(at), p(&format!("/many/renamed{at}"))));
    }
    for at in 0..scale.names / 4 {
        ops.push(Op::File(p(&format!("/many/again{at}")), 0o600));
    }
    ops.push(Op::Rename(p("/d0/d1"), p("/small/moved")));
    ops.push(Op::Rename(p("/small"), p("/small/moved/d2/into-itself")));
    ops.push(Op::Exchange(p("/d0"), p("/data/one")));
    ops.push(Op::Rename(p("/data/block"), p("/names/...")));
    ops.push(Op::Rmdir(p("/small/b")));
    ops.push(Op::Rmdir(p("/kinds")));
    ops.push(Op::Dir(p("/small/c"), 0o700));
    for at in 0..40 {
        ops.push(Op::File(p(&format!("/small/grows{at}")), 0o644));
    }
    for at in 0..25 {
        ops.push(Op::Unlink(p(&format!("/kinds/hard{at}"))));
    }
    ops.push(Op::Unlink(p("/kinds/link1024")));
    ops.push(Op::Symlink(vec![b'n'; 700], p("/kinds/link1024")));
    ops.push(Op::Xattr(p("/attrs/f0"), "user.shared", vec![b'!'; 310]));
    ops.push(Op::RemoveXattr(p("/attrs/f1"), "user.shared"));
    ops.push(Op::RemoveXattr(p("/attrs/f1"), "user.absent"));
    ops.push(Op::Xattr(p("/attrs/f3"), "security.more", vec![3; 200]));
    ops.push(Op::Unlink(p("/attrs/f4")));
    ops.push(Op::RemoveXattr(p("/attrs/big"), "user.big"));
    ops.push(Op::Xattr(p("/attrs/big"), "user.next", vec![b'N'; 9000]));
    ops.push(Op::Chmod(p("/attrs/acl"), 0o604));
    ops.push(Op::RemoveXattr(
        p("/attrs/heirs"),
        "system.posix_acl_default",
    ));
    ops.push(Op::Chown(p("/attrs/owned0"), 10, 20));
    ops.push(Op::Chown(p("/kinds/leads"), 11, 21));
    ops.push(Op::Mtime(
        p("/times/t0"),
        Timestamp {
            secs: 5_000_000_000,
            nanos: 1,
        },
    ));
    ops
}
