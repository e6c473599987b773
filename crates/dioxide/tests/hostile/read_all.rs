//! Reads everything that an image shows.

use super::device::Mutant;
use super::subjects::Subject;
use dioxide::check::CheckOptions;
use dioxide::check::journal::journal_state;
use dioxide::check::layout::image_map;
use dioxide::{Error, FileType, Fs, MapKind, Metadata, MountOptions, OpenOptions, Place};
use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex};

/// Most files that one image is searched for: the intact ones have fewer.
const FILES_MAX: usize = 2000;
/// Most mappings of one file that are looked at.
const MAPPINGS_MAX: usize = 4000;

/// What is known of one file, where reading it gave no error.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Facts {
    metadata: Option<Metadata>,
    names: Option<Vec<(u32, Vec<u8>)>>,
    xattrs: Option<Vec<(Vec<u8>, Vec<u8>)>>,
    fast_target: Option<Vec<u8>>,
    mappings: Option<Vec<Piece>>,
    /// Some of its bytes: where, and which.
    reads: Vec<(u64, Vec<u8>)>,
}

/// Part of a file's map: where in the file, how many blocks, of what kind, and where on the device.
type Piece = (u32, u32, MapKind, u64);

/// What was found, by path.
pub type Found = BTreeMap<Vec<u8>, Facts>;

/// Opens a damaged image and reads it. Compares with the intact one if that must not differ.
pub fn read_all(subject: &Subject, mutant: Arc<Mutant>) {
    let truncated = mutant.is_truncated();
    let options = CheckOptions::default();
    ok(journal_state(mutant.clone(), &options, true), truncated);
    let device = mutant.clone();
    let fs = match Fs::open_device(mutant.clone(), &MountOptions::new()) {
        Ok(fs) => fs,
        Err(error) => {
            ok(image_map(mutant, &options, &mut |_| {}), truncated);
            return judge(&error, truncated);
        }
    };
    let found = scan(&fs, truncated);
    if !subject.checksummed {
        return;
    }
    for (path, facts) in &found {
        let name = path.escape_ascii();
        let intact = subject
            .found
            .get(path)
            .unwrap_or_else(|| panic!("{name} was not there before"));
        same(&facts.metadata, &intact.metadata, &name);
        same(&facts.names, &intact.names, &name);
        same(&facts.xattrs, &intact.xattrs, &name);
        same(&facts.fast_target, &intact.fast_target, &name);
        same(&facts.mappings, &intact.mappings, &name);
        // What a log without checksums replays over them is found out by nobody.
        if !subject.is_dirty() {
            same_bytes(subject, &device, facts, intact, &name);
        }
    }
}

/// Data have no checksum: they may differ in blocks that are damaged themselves.
fn same_bytes(
    subject: &Subject,
    mutant: &Mutant,
    facts: &Facts,
    intact: &Facts,
    name: &impl std::fmt::Display,
) {
    let block = subject.block as u64;
    let place = |at: u64| {
        let mut pieces = intact.mappings.iter().flatten();
        let piece = pieces.find(|piece| (at / block).wrapping_sub(piece.0.into()) < piece.1.into());
        let (lblk, _, kind, pblk) = piece.copied()?;
        (kind == MapKind::Mapped).then(|| (at / block - u64::from(lblk) + pblk) * block)
    };
    // Those that failed are not among them.
    for (offset, found) in &facts.reads {
        let mut before = intact.reads.iter();
        let (_, expected) = before.find(|(at, _)| at == offset).expect("it was read");
        assert_eq!(found.len(), expected.len(), "{name} at {offset}");
        let bytes = (*offset..).zip(found.iter().zip(expected));
        for (at, _) in bytes.filter(|(_, (found, expected))| found != expected) {
            let is_damaged = place(at).is_some_and(|from| mutant.changes(from..from + block));
            assert!(is_damaged, "{name}: byte {at}: wrong data passed as right");
        }
    }
}

fn same<T: PartialEq + std::fmt::Debug>(
    found: &Option<T>,
    intact: &Option<T>,
    name: &impl std::fmt::Display,
) {
    if found.is_some() {
        assert_eq!(found, intact, "{name}: wrong data passed as right");
    }
}

/// How often each structure was found damaged.
pub static SEEN: Mutex<BTreeMap<&'static str, u64>> = Mutex::new(BTreeMap::new());

/// An error must say what is wrong and where.
fn judge(error: &Error, truncated: bool) {
    if let Error::Corrupt { structure, .. } | Error::Checksum { structure, .. } = error {
        *SEEN
            .lock()
            .expect("no panic while it is held")
            .entry(structure)
            .or_default() += 1;
    }
    match error {
        Error::Corrupt {
            structure,
            place,
            what,
        } => {
            assert!(!structure.is_empty() && !what.is_empty(), "{error}");
            assert_ne!(*place, Place::default(), "{error}");
        }
        Error::Checksum {
            structure,
            place,
            found,
            expected,
        } => {
            assert!(!structure.is_empty() && found != expected, "{error}");
            assert_ne!(*place, Place::default(), "{error}");
        }
        // The file system claims, or had, more blocks than the device has.
        Error::Device(dioxide::block::Error::OutOfRange { .. }) => {}
        Error::Unsupported(what) => assert!(!what.is_empty()),
        // Nothing is left of it.
        Error::Invalid(what) if what.starts_with("no superblock") => {}
        // A name that was listed can be gone from a damaged index, or lead elsewhere.
        Error::NotFound(_) | Error::NotADirectory(_) | Error::IsADirectory(_) => {}
        other => panic!("truncated: {truncated}; not an error of a damaged image: {other:?}"),
    }
}

/// Notes an error; the value otherwise.
fn ok<T>(result: Result<T, Error>, truncated: bool) -> Option<T> {
    result.map_err(|error| judge(&error, truncated)).ok()
}

/// Reads all there is.
pub fn scan(fs: &Fs, truncated: bool) -> Found {
    let mut found = Found::new();
    let mut seen = HashSet::new();
    let mut to_do = vec![Vec::new()];
    while let Some(path) = to_do.pop() {
        if found.len() >= FILES_MAX {
            break;
        }
        let full: &[u8] = if path.is_empty() { b"/" } else { &path };
        let Some(metadata) = ok(fs.symlink_metadata(full), truncated) else {
            continue;
        };
        let facts = facts(fs, full, &metadata, truncated);
        let first_time = seen.insert(metadata.ino);
        for (_, name) in facts.names.iter().flatten().filter(|_| first_time) {
            if name != b"." && name != b".." {
                to_do.push([&path, &b"/"[..], name].concat());
            }
        }
        found.insert(path, facts);
    }
    found
}

fn facts(fs: &Fs, path: &[u8], metadata: &Metadata, truncated: bool) -> Facts {
    let mut facts = Facts {
        metadata: Some(metadata.clone()),
        ..Facts::default()
    };
    match metadata.file_type {
        FileType::Directory => {
            let entries = ok(fs.read_dir(path), truncated);
            facts.names = entries.map(|entries| {
                entries
                    .into_iter()
                    .map(|entry| (entry.ino.0, entry.name))
                    .collect()
            });
        }
        FileType::Symlink => {
            let target = ok(fs.read_link(path), truncated);
            // The block of a slow one has no checksum.
            facts.fast_target = target.filter(|target| target.len() < 60);
            return facts;
        }
        FileType::Regular => {
            facts.mappings = read_file(fs, path, truncated, &mut facts.reads);
        }
        _ => {}
    }
    let xattrs = ok(fs.xattrs(path), truncated);
    facts.xattrs = xattrs.map(|xattrs| {
        xattrs
            .into_iter()
            .map(|xattr| (xattr.name, xattr.value))
            .collect()
    });
    facts
}

/// The mappings of a file, and a few reads from it.
fn read_file(
    fs: &Fs,
    path: &[u8],
    truncated: bool,
    reads: &mut Vec<(u64, Vec<u8>)>,
) -> Option<Vec<Piece>> {
    let file = ok(OpenOptions::new().read(true).open(fs, path), truncated)?;
    let mut buf = vec![0; 8192];
    let len = file.len();
    for offset in [0, len / 2, len.saturating_sub(5000), len] {
        if let Some(read) = ok(file.read_at(&mut buf, offset), truncated) {
            assert!(read as u64 <= len.saturating_sub(offset));
            reads.push((offset, buf[..read].to_vec()));
        }
    }
    ok(file.preload_map(), truncated)?;
    let blocks = fs.superblock().blocks_count();
    let mut mappings = Vec::new();
    let mut at = 0;
    while u64::from(at) < len.div_ceil(fs.block_size().into()) && mappings.len() < MAPPINGS_MAX {
        let mapping = ok(file.map(at, u32::MAX - at), truncated)?;
        let is_hole = mapping.kind == MapKind::Hole;
        assert!(mapping.len > 0 && mapping.lblk.0 == at);
        assert!(
            is_hole || mapping.pblk.0 + u64::from(mapping.len) <= blocks,
            "{mapping:?} is outside"
        );
        let pblk = if is_hole { 0 } else { mapping.pblk.0 };
        mappings.push((at, mapping.len, mapping.kind, pblk));
        at = at.saturating_add(mapping.len);
        if at == u32::MAX {
            break;
        }
    }
    Some(mappings)
}

/// The comparison is worth something only if it can fail.
#[test]
fn wrong_bytes_of_a_file_are_found_but_where_they_are_damaged() {
    use super::mutate::Mutation;
    let subject = &super::subjects()[0];
    let intact = &subject.found[&b"/deep/a/b/c/d/len30000"[..]];
    let (block, &(_, _, _, first)) = (subject.block as u64, &intact.mappings.as_ref().unwrap()[0]);
    let mut facts = intact.clone();
    facts.reads[0].1[7] ^= 1;
    let passes = |bytes: std::ops::Range<u64>| {
        let damage = Mutation {
            at: bytes.start,
            bytes: vec![0; (bytes.end - bytes.start) as usize],
        };
        let mutant = Mutant::of(subject.bytes.clone(), vec![damage]);
        let compare = || same_bytes(subject, &mutant, &facts, intact, &"it");
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(compare)).is_ok()
    };
    let place = first * block;
    assert!(passes(place + block - 1..place + block));
    assert!(!passes(place + block..place + 2 * block));
    assert!(!passes(place - block..place));
}
