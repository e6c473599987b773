//! Hand-made archives that are refused, each by the name of what is wrong.

use crate::support::{from_archive, scratch};
use dioxide_pack::Error;
use std::fs;

/// A header with its data.
pub fn entry(name: &[u8], kind: u8, link: &[u8], data: &[u8]) -> Vec<u8> {
    let mut block = [0; 512];
    block[..name.len()].copy_from_slice(name);
    for (field, text) in [
        (100, "0000644\0"),
        (108, "0000000\0"),
        (116, "0000000\0"),
        (136, "00000000001\0"),
        (257, "ustar\x0000"),
        (329, "0000001\0"),
        (337, "0000003\0"),
    ] {
        block[field..field + text.len()].copy_from_slice(text.as_bytes());
    }
    block[124..136].copy_from_slice(format!("{:011o}\0", data.len()).as_bytes());
    block[156] = kind;
    block[157..157 + link.len()].copy_from_slice(link);
    sum(&mut block);
    let mut all = [&block[..], data].concat();
    all.resize(all.len().next_multiple_of(512), 0);
    all
}

/// Corrects the checksum of a header.
pub fn sum(block: &mut [u8]) {
    block[148..156].fill(b' ');
    let sum: u32 = block[..512].iter().map(|&byte| u32::from(byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}

pub fn file(name: &[u8]) -> Vec<u8> {
    entry(name, b'0', b"", b"data")
}

pub fn directory(name: &[u8]) -> Vec<u8> {
    entry(name, b'5', b"", b"")
}

pub fn pax(records: &[(&str, &[u8])]) -> Vec<u8> {
    extended(b'x', records)
}

/// An extended header of either kind.
pub fn extended(kind: u8, records: &[(&str, &[u8])]) -> Vec<u8> {
    let mut data = Vec::new();
    for (key, value) in records {
        let rest = key.len() + value.len() + 3;
        let digits = (rest + 2).to_string().len();
        let len = rest + (rest + digits).to_string().len();
        data.extend(format!("{len} {key}=").as_bytes());
        data.extend(*value);
        data.push(b'\n');
    }
    entry(b"pax", kind, b"", &data)
}

pub fn archive(parts: &[Vec<u8>]) -> Vec<u8> {
    let mut all = parts.concat();
    all.extend([0; 1024]);
    all
}

/// What reading it says; every archive is tried as it is and compressed.
#[track_caller]
fn refused(bytes: &[u8]) -> Error {
    let dir = scratch();
    let plain = dir.path().join("a.tar");
    fs::write(&plain, bytes).unwrap();
    let error = from_archive(&plain).expect_err("to be refused");
    let packed = dir.path().join("a.tar.gz");
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut encoder, bytes).unwrap();
    fs::write(&packed, encoder.finish().unwrap()).unwrap();
    let same = from_archive(&packed)
        .expect_err("to be refused")
        .to_string();
    assert_eq!(same.replace("a.tar.gz", "a.tar"), error.to_string());
    error
}

#[track_caller]
fn refused_entry(parts: &[Vec<u8>], name: &str, why: &str) {
    let error = refused(&archive(parts));
    let Error::Refused {
        name: named,
        why: said,
    } = &error
    else {
        panic!("{error}")
    };
    assert!(named == name && said.contains(why), "{error}");
}

#[test]
fn entry_with_a_bad_name_is_refused_by_it() {
    refused_entry(&[file(b"/etc/passwd")], "/etc/passwd", "absolute");
    refused_entry(&[file(b"a/../../b")], "a/../../b", "'..'");
    refused_entry(&[directory(b"..")], "..", "'..'");
    refused_entry(&[file(b"")], ".", "empty");
    refused_entry(&[pax(&[("path", b"a\0b")]), file(b"a")], "a?b", "NUL");
    let long = [b'n'; 256];
    let name = String::from_utf8(long.to_vec()).unwrap();
    refused_entry(&[pax(&[("path", &long)]), file(b"a")], &name, "256 bytes");
    refused_entry(
        &[entry(b"././@LongLink", b'L', b"", &long), file(b"a")],
        &name,
        "256 bytes",
    );
    refused_entry(&[file(b"./.")], ".", "root is no directory");
}

#[test]
fn link_out_of_the_tree_is_refused_but_a_symlink_may_point_anywhere() {
    let link = |to: &[u8]| entry(b"link", b'1', to, b"");
    refused_entry(
        &[link(b"/etc/passwd")],
        "link",
        "to /etc/passwd: an absolute path",
    );
    refused_entry(&[link(b"../x")], "link", "to ../x: a path with '..'");
    refused_entry(
        &[link(b"later"), file(b"later")],
        "link",
        "no earlier entry",
    );
    refused_entry(&[link(b"link")], "link", "no earlier entry");
    refused_entry(&[directory(b"d"), link(b"d")], "link", "a directory");
    refused_entry(&[entry(b"s", b'2', b"", b"")], "s", "symbolic link");
    let dir = scratch();
    let path = dir.path().join("a.tar");
    fs::write(&path, archive(&[entry(b"s", b'2', b"../../etc", b"")])).unwrap();
    assert_eq!(from_archive(&path).unwrap().entries().len(), 2);
}

#[test]
fn device_that_ext4_cannot_hold_is_refused() {
    for (field, number) in [(329, "0010000\0"), (337, "4000000\0")] {
        let mut device = entry(b"dev", b'3', b"", b"");
        device[field..field + 8].copy_from_slice(number.as_bytes());
        sum(&mut device);
        refused_entry(&[device], "dev", "a device number of");
    }
}

#[test]
fn entry_below_what_is_no_directory_is_refused() {
    let symlink = || entry(b"s", b'2', b"/etc", b"");
    refused_entry(
        &[symlink(), file(b"s/passwd")],
        "s/passwd",
        "below s, which is no directory",
    );
    refused_entry(&[file(b"s/passwd"), symlink()], "s/passwd", "below s");
    refused_entry(&[file(b"f"), directory(b"f/d/")], "f/d", "below f");
}

#[test]
fn path_that_comes_twice_is_refused_unless_both_are_the_same_directory() {
    refused_entry(&[file(b"a"), file(b"./a")], "a", "twice");
    refused_entry(&[directory(b"a"), file(b"a")], "a", "twice");
    refused_entry(&[file(b"a"), entry(b"a", b'1', b"a", b"")], "a", "twice");
    let mut other = directory(b"d");
    other[106] = b'7';
    sum(&mut other);
    refused_entry(&[directory(b"d"), other], "d", "twice");
    let dir = scratch();
    let path = dir.path().join("a.tar");
    fs::write(&path, archive(&[directory(b"d"), directory(b"d/")])).unwrap();
    assert_eq!(from_archive(&path).unwrap().entries().len(), 2);
}

#[test]
fn archive_cut_anywhere_is_refused() {
    let whole = archive(&[
        pax(&[("mtime", b"1.5")]),
        file(b"a"),
        entry(b"b", b'0', b"", &[7; 5000]),
    ]);
    // The end mark may be one block short, or not there behind a whole entry, as GNU tar takes it.
    for len in (0..whole.len() - 512).step_by(100).chain([512, 1024]) {
        let error = refused(&whole[..len]);
        let Error::Archive { what, .. } = &error else {
            panic!("{len}: {error}")
        };
        assert!(what.contains("truncated"), "{len}: {error}");
    }
}

#[test]
fn compressed_archive_cut_or_damaged_is_refused() {
    let dir = scratch();
    let plain = dir.path().join("a.tar");
    let noise = dioxide_testkit::pattern(9, 0, 40_000);
    fs::write(&plain, archive(&[entry(b"noise", b'0', b"", &noise)])).unwrap();
    for (program, ending) in [("gzip", "gz"), ("zstd", "zst"), ("xz", "xz")] {
        crate::support::run(program, &["-q", "-k", crate::support::name(&plain)]);
        let path = dir.path().join(format!("a.tar.{ending}"));
        let whole = fs::read(&path).unwrap();
        assert!(from_archive(&path).is_ok());
        let mut flipped = whole.clone();
        flipped[whole.len() / 2] ^= 0x10;
        for bytes in [
            &whole[..whole.len() - 1],
            &whole[..whole.len() / 2],
            &flipped,
        ] {
            fs::write(&path, bytes).unwrap();
            let error = from_archive(&path).unwrap_err();
            assert!(matches!(error, Error::Archive { .. }), "{ending}: {error}");
        }
    }
}

#[test]
fn header_with_a_bad_checksum_is_refused_with_its_place() {
    let mut second = file(b"b");
    second[0] = b'c';
    let error = refused(&archive(&[file(b"a"), second]));
    assert!(
        matches!(&error, Error::Archive { offset: 1024, what, .. } if what.contains("checksum")),
        "{error}"
    );
    let error = refused(&[b'x'; 2048]);
    assert!(error.to_string().contains("no tar archive"), "{error}");
}

#[test]
fn archive_of_another_kind_is_refused_by_that_kind() {
    let dir = scratch();
    let path = dir.path().join("a");
    for (magic, name) in [
        (&b"BZh91AY&SY"[..], "bzip2"),
        (b"LZIP\x01", "lzip"),
        (b"\x04\x22\x4D\x18", "lz4"),
    ] {
        fs::write(&path, [magic, &[0; 600]].concat()).unwrap();
        let error = from_archive(&path).unwrap_err().to_string();
        assert!(error.contains(name), "{error}");
    }
}

#[test]
fn entry_with_bad_numbers_is_refused() {
    let with = |at: usize, text: &[u8]| {
        let mut entry = file(b"x");
        entry[at..at + text.len()].copy_from_slice(text);
        sum(&mut entry);
        entry
    };
    refused_entry(&[with(124, b"9")], "x", "is no number");
    refused_entry(&[with(124, &[0xFF; 12])], "x", "a size of -1 bytes");
    refused_entry(&[with(124, &[0x80, 0, 0, 0, 0x7F])], "x", "a size of");
    refused_entry(&[with(108, &[0xFF; 8])], "x", "uid is -1");
    refused_entry(&[with(156, b"M")], "x", "split");
    let part = extended(b'g', &[("GNU.volume.offset", b"10")]);
    refused_entry(
        &[part, file(b"GNUFileParts/x.2")],
        "GNUFileParts/x.2",
        "split",
    );
    refused_entry(&[with(156, b"?")], "x", "unknown type");
    for (key, value, why) in [
        ("uid", &b"4294967296"[..], "uid is 4294967296"),
        ("mtime", b"soon", "mtime is 'soon'"),
        ("size", b"-1", "size is '-1'"),
        ("size", b"18446744073709551615", "a size of"),
        ("LIBARCHIVE.xattr.user.a", b"*", "no base 64"),
        (
            "SCHILY.acl.access",
            b"user:joe:rwx",
            "'joe' without its number (tar --numeric-owner",
        ),
        ("SCHILY.xattr.user.a", &[1; 65537], "65537 bytes"),
        ("GNU.sparse.map", b"0,1,2", "map"),
        ("GNU.sparse.map", b"0,4", "without its size"),
    ] {
        refused_entry(&[pax(&[(key, value)]), file(b"x")], "x", why);
    }
    let sparse = |map: &[u8]| {
        [
            pax(&[("GNU.sparse.map", map), ("GNU.sparse.size", b"100")]),
            file(b"x"),
        ]
    };
    refused_entry(&sparse(b"0,5"), "x", "of which 4 are there");
    refused_entry(&sparse(b"98,4"), "x", "behind its end");
    let error = refused(&archive(&[entry(b"p", b'x', b"", b"99 a=b\n"), file(b"x")]));
    assert!(
        error.to_string().contains("longer than the header"),
        "{error}"
    );
    let error = refused(&archive(&[pax(&[("a", b"b")])]));
    assert!(error.to_string().contains("without its entry"), "{error}");
}
