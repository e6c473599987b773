//! Any bytes: never a panic, never more memory than bytes ask for.

use crate::refusals::{archive, directory, entry, extended, file, pax, sum};
use crate::support::{from_archive, name, run, scratch};
use dioxide_pack::{Result, Tree};
use dioxide_testkit::memory::peak_of;
use proptest::prelude::*;
use std::fs;
use std::sync::OnceLock;
use std::time::Duration;

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
        extended(b'g', &[("uid", b"7"), ("SCHILY.xattr.user.a", b"c")]),
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

/// For how long this thread has run: others may take the processors.
fn busy() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Reads an archive that says much of its entries, which is soon done; the tree, and the most memory it took.
#[track_caller]
fn soon(parts: &[Vec<u8>]) -> (Result<Tree>, usize) {
    let dir = scratch();
    let path = dir.path().join("a");
    fs::write(&path, archive(parts)).unwrap();
    let started = busy();
    let mut tree = None;
    let peak = peak_of(|| tree = Some(from_archive(&path)));
    let took = busy() - started;
    assert!(took < Duration::from_secs(5), "{took:?}");
    (tree.unwrap(), peak)
}

#[track_caller]
fn soon_refused(parts: &[Vec<u8>], why: &str) -> usize {
    let (tree, peak) = soon(parts);
    let error = tree.expect_err("to be refused").to_string();
    assert!(error.contains(why), "{error}");
    peak
}

fn keys(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|i| format!("{prefix}{i:06}")).collect()
}

/// A record for each key, all with this value.
fn with_value<'a>(keys: &'a [String], value: &'a [u8]) -> Vec<(&'a str, &'a [u8])> {
    keys.iter().map(|key| (&key[..], value)).collect()
}

#[test]
fn many_records_of_an_entry_take_time_in_proportion() {
    let names = keys("SCHILY.xattr.user.", 8000);
    let mut records = with_value(&names, b"1");
    let again = records[7999].0;
    records.extend((0..500_000).map(|_| (again, &b"2"[..])));
    records.push((again, b"last"));
    let (tree, _) = soon(&[pax(&records), file(b"f")]);
    let tree = tree.unwrap();
    let xattrs = &tree.entries()[1].xattrs;
    assert_eq!(xattrs.len(), 8000);
    assert!(xattrs[..7999].iter().all(|xattr| xattr.value == b"1"));
    assert_eq!(xattrs[7999].name, b"user.007999");
    assert_eq!(xattrs[7999].value, b"last");
}

#[test]
fn many_global_records_take_time_in_proportion_and_the_last_counts() {
    let others = keys("COMMENT.", 200_000);
    let others = extended(b'g', &with_value(&others, b"1"));
    let global = |records: &[(&str, &[u8])]| extended(b'g', records);
    let (tree, _) = soon(&[
        others.clone(),
        global(&[("uid", b"1"), ("gid", b"2"), ("SCHILY.xattr.user.a", b"1")]),
        others,
        global(&[("gid", b""), ("SCHILY.xattr.user.a", b"2")]),
        file(b"f"),
        pax(&[("uid", b"3"), ("SCHILY.xattr.user.a", b"3")]),
        file(b"g"),
        pax(&[("uid", b"")]),
        file(b"h"),
    ]);
    let tree = tree.unwrap();
    let rows: Vec<_> = tree.entries()[1..]
        .iter()
        .map(|entry| (entry.uid, entry.gid, &entry.xattrs[0].value[..]))
        .collect();
    let expected: [(u32, u32, &[u8]); 3] = [(1, 0, b"2"), (3, 0, b"3"), (0, 0, b"2")];
    assert_eq!(rows, expected);
}

#[test]
fn more_attributes_than_ext4_has_are_refused() {
    let names = keys("SCHILY.xattr.user.", 100_000);
    let records = with_value(&names, b"");
    soon_refused(&[pax(&records), file(b"f")], "f: over 8192 attributes");
    let global = extended(b'g', &records);
    soon_refused(&[global, file(b"f")], "f: over 8192 attributes");
    let (own, both) = records[..8192 + 1].split_at(4096);
    let parts = [extended(b'g', both), pax(own), file(b"f")];
    soon_refused(&parts, "f: over 8192 attributes");
    let (tree, _) = soon(&[extended(b'g', both), pax(&own[1..]), file(b"f")]);
    assert_eq!(tree.unwrap().entries()[1].xattrs.len(), 8192);
}

#[test]
fn global_records_are_bounded_together_and_where_each_entry_has_them() {
    let value = vec![b'v'; 60_000];
    let names = keys("SCHILY.xattr.user.", 300);
    let records = with_value(&names, &value);
    let global = |range| extended(b'g', &records[range]);
    // What takes the place of another counts once.
    let parts = [global(0..200), global(0..200), file(b"f")];
    assert_eq!(soon(&parts).0.unwrap().entries()[1].xattrs.len(), 200);
    let parts = [global(0..200), global(200..300), file(b"f")];
    soon_refused(
        &parts,
        "global headers of 18007200 bytes together; 16777216",
    );
    let both = [global(0..200), pax(&records[200..300]), file(b"f")];
    soon_refused(&both, "f: 18003300 bytes of attributes; 16777216");
    let map = [("GNU.sparse.map", &b"0,1"[..])];
    soon_refused(&[extended(b'g', &map), file(b"f")], "in a global header");
    let long = vec![b'/'; 70_000];
    let path = extended(b'g', &[("path", &long)]);
    soon_refused(&[path, file(b"f")], "a global path of over 65536 bytes");
    // Attributes of 6 MB, of a hundred entries.
    let files = keys("f", 100);
    let entries = files.iter().map(|name| file(name.as_bytes()));
    let parts: Vec<_> = [global(0..100)].into_iter().chain(entries).collect();
    let peak = soon_refused(&parts, "all copies take over 268435456 bytes");
    assert!(peak < 320 << 20, "{peak} bytes of memory");
    let links = files[1..]
        .iter()
        .map(|name| entry(name.as_bytes(), b'1', b"f000000", b""));
    let first = [pax(&records[..100]), file(b"f000000")];
    let parts: Vec<_> = first.into_iter().chain(links).collect();
    let peak = soon_refused(&parts, "f000000: attributes of many entries at once");
    assert!(peak < 64 << 20, "{peak} bytes of memory");
}

#[test]
fn directories_that_an_archive_only_implies_are_bounded_together() {
    // Each of some KiB, and 3 MB of directories.
    let deep = "/aaa".repeat(890);
    let entries = (0..200).flat_map(|i| {
        let path = format!("{i:06}{deep}/f");
        [pax(&[("path", path.as_bytes())]), file(b"f")]
    });
    let parts: Vec<_> = entries.collect();
    let why = "directories that the archive does not describe, which take over 268435456 bytes";
    let peak = soon_refused(&parts, why);
    assert!(peak < 320 << 20, "{peak} bytes of memory");
    let (tree, _) = soon(&parts[..2 * 20]);
    assert_eq!(tree.unwrap().entries().len(), 1 + 20 * (1 + 890 + 1));
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
