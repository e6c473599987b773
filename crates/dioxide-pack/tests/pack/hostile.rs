//! Any bytes: never a panic, never more memory than bytes ask for.

use crate::refusals::{archive, directory, entry, file, pax, sum};
use crate::support::{from_archive, name, run, scratch};
use dioxide_testkit::memory::peak_of;
use proptest::prelude::*;
use std::fs;
use std::sync::OnceLock;

/// What reading may take beside the buffers, for an archive of a few KiB.
const MOST_BYTES: usize = 4 << 20;

/// Archives with everything in them that has a parser.
fn seeds() -> Vec<Vec<u8>> {
    let map = b"2\n0\n512\n8192\n512\n";
    let sparse_1_0 = [&map[..], &[0; 512 - 17], &[1; 1024]].concat();
    let records: [(&str, &[u8]); 4] = [
        ("GNU.sparse.major", b"1"),
        ("GNU.sparse.minor", b"0"),
        ("GNU.sparse.name", b"sparse"),
        ("GNU.sparse.realsize", b"10000"),
    ];
    let mut old = entry(b"old", b'S', b"", &[2; 512]);
    old[386..410].copy_from_slice(b"00000000000\x0000000001000\x00");
    old[483..495].copy_from_slice(b"00000002000\x00");
    sum(&mut old);
    let xattrs: [(&str, &[u8]); 4] = [
        ("SCHILY.xattr.user.a", b"b"),
        ("LIBARCHIVE.xattr.user.c", b"ZGF0YQ"),
        (
            "SCHILY.acl.access",
            b"user::rw-,user:5:r--,group::r--,mask::r--,other::---",
        ),
        ("mtime", b"12.5"),
    ];
    vec![archive(&[
        directory(b"d/"),
        pax(&xattrs),
        file(b"d/f"),
        entry(b"d/l", b'1', b"d/f", b""),
        entry(b"s", b'2', b"d", b""),
        entry(b"c", b'3', b"", b""),
        entry(b"././@LongLink", b'L', b"", &[b'n'; 200]),
        file(b"n"),
        pax(&records),
        entry(b"GNUSparseFile.0/sparse", b'0', b"", &sparse_1_0),
        old,
    ])]
}

/// Plain in half of the ways.
fn compressed(bytes: &[u8], how: u8) -> Vec<u8> {
    match how % 4 {
        0 | 1 => bytes.to_vec(),
        2 => {
            let mut encoder =
                flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            std::io::Write::write_all(&mut encoder, bytes).unwrap();
            encoder.finish().unwrap()
        }
        _ => ruzstd::encoding::compress_to_vec(bytes, ruzstd::encoding::CompressionLevel::Fastest),
    }
}

/// Reads an archive, and its contents if it is one.
fn read(bytes: &[u8]) -> usize {
    let dir = scratch();
    let path = dir.path().join("a");
    fs::write(&path, bytes).unwrap();
    let mut all = 0;
    let peak = peak_of(|| {
        let Ok(mut tree) = from_archive(&path) else {
            return;
        };
        let mut sink =
            dioxide_pack::tar::write::TarSink::new("nowhere", std::io::sink(), Default::default())
                .unwrap();
        if tree.totals().size_bytes < 1 << 20 {
            tree.write_to(&mut sink, &mut ()).unwrap();
        }
        all = tree.entries().len();
    });
    assert!(
        peak < MOST_BYTES,
        "{peak} bytes of memory for {} of input",
        bytes.len()
    );
    all
}

#[test]
fn seeds_of_the_mutations_are_read() {
    for seed in seeds() {
        assert_eq!(read(&seed), 9);
    }
}

fn by_xz(bytes: &[u8]) -> Vec<u8> {
    let dir = scratch();
    let path = dir.path().join("a");
    fs::write(&path, bytes).unwrap();
    run("xz", &["-q", name(&path)]);
    fs::read(path.with_extension("xz")).unwrap()
}

/// The memory that reading takes.
fn from_bytes(bytes: &[u8]) -> usize {
    let dir = scratch();
    let path = dir.path().join("a");
    fs::write(&path, bytes).unwrap();
    peak_of(|| drop(from_archive(&path)))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_are_refused_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..4096), magic in 0..4usize) {
        let magics: [&[u8]; 4] = [b"", &[0x1F, 0x8B, 8], &[0x28, 0xB5, 0x2F, 0xFD], &[0xFD, b'7', b'z', b'X', b'Z', 0]];
        read(&[magics[magic], &bytes].concat());
    }

    #[test]
    fn mutated_archive_is_read_or_refused_without_a_panic(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        correct in any::<bool>(),
        how in any::<u8>(),
        cut in any::<prop::sample::Index>(),
    ) {
        for mut bytes in seeds() {
            for (at, value) in &changes {
                let at = at.index(bytes.len());
                bytes[at] = *value;
            }
            if correct {
                for block in bytes.chunks_exact_mut(512).filter(|block| &block[257..262] == b"ustar") {
                    sum(block);
                }
            }
            if how % 8 == 7 {
                bytes.truncate(cut.index(bytes.len()));
            }
            read(&compressed(&bytes, how));
        }
    }

    #[test]
    fn mutated_xz_is_read_or_refused_without_a_panic(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        static SEED: OnceLock<Vec<u8>> = OnceLock::new();
        let mut bytes = SEED.get_or_init(|| by_xz(&seeds()[0])).clone();
        for (at, value) in &changes {
            let at = at.index(bytes.len());
            bytes[at] = *value;
        }
        let plain = from_bytes(&bytes);
        // The dictionary is taken whole: 8 MiB by default, 64 at most.
        prop_assert!(plain < 72 << 20, "{plain} bytes of memory");
    }

    #[test]
    fn mutated_compression_is_read_or_refused_without_a_panic(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        how in 2..4u8,
    ) {
        for seed in seeds() {
            let mut bytes = compressed(&seed, how);
            for (at, value) in &changes {
                let at = at.index(bytes.len());
                bytes[at] = *value;
            }
            read(&bytes);
        }
    }
}
