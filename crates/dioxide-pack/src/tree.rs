//! A whole tree: which entries it has, checked and in order, and where the bytes are.
//!
//! Invariants of a [`Tree`]: the first entry is the root; a directory comes before what is in it, and
//! what is in it follows at once, sorted by the bytes of the names; no path comes twice; nothing lies
//! below what is no directory; a hard link names an earlier entry that is no directory. Whoever writes
//! a tree relies on them, and so needs no check of its own against paths that lead out of the target.
//!
//! All entries are in memory (some 200 bytes each), their contents never are. Rejected: writing
//! entries as they are read. An archive has them in any order, and the last may be bad; the tree must
//! come out the same for each order, and nothing be written for a bad one.

mod ahead;

use crate::entry::{Entry, FileData, Kind, NAME_MAX, XATTR_VALUE_MAX, split};
use crate::error::{Error, Result, shown};
use crate::filter::Filter;
use crate::sink::Sink;
use dioxide::format::inode::InodeFlags;
use dioxide::{Timestamp, Xattr};
use std::collections::HashMap;

/// Longest target of a symlink, as Linux has it.
const TARGET_MAX: usize = 4095;
/// Deepest nesting of directories: writing a folder takes a file descriptor for each level.
const DEPTH_MAX: usize = 900;
/// Longest path, as Linux has it: longer ones could not be opened at their target.
const PATH_MAX: usize = 4095;
/// What an attribute takes in memory beside its bytes.
pub(crate) const XATTR_BYTES: u64 = 64;
/// Most that attributes, targets of symlinks and segments of files of all entries take in memory.
const HELD_MAX: u64 = 1 << 30;
/// Most that is taken in memory without bytes of its own in the source: attributes of further names of a file and of
/// global headers, and directories that an archive does not describe.
const COPIES_MAX: u64 = 256 << 20;
/// Of what an entry has so much is not counted: no more than the entry itself.
const COPY_FREE: u64 = 256;

/// Where the bytes of a tree's files are.
pub trait Contents: Send {
    /// Passes each segment of a file to `each`, in order, in pieces, with the offset in the file.
    ///
    /// # Errors
    /// Those of the source, and of `each`; [`Error::Changed`] if the file is not what it was.
    fn read(
        &mut self,
        entry: &Entry,
        data: &FileData,
        each: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
    ) -> Result<()>;
}

/// Who looks on.
pub trait Watch {
    /// So many bytes are about to be read or written.
    fn expect(&mut self, bytes: u64);
    /// So many more are done.
    fn done(&mut self, bytes: u64);
    /// Whether that is to end early, with [`Error::Stopped`]: asked again and again.
    fn stops(&self) -> bool {
        false
    }
}

/// # Errors
/// [`Error::Stopped`] if somebody asked for it.
pub(crate) fn go_on(watch: &dyn Watch) -> Result<()> {
    match watch.stops() {
        true => Err(Error::Stopped),
        false => Ok(()),
    }
}

/// Nobody.
impl Watch for () {
    fn expect(&mut self, _bytes: u64) {}
    fn done(&mut self, _bytes: u64) {}
}

/// Something that a tree has and its source or target cannot express; it was left out.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Warning {
    /// The file.
    pub path: String,
    /// What was left out, and why.
    pub what: String,
}

impl Warning {
    pub(crate) fn new(path: &[u8], what: impl std::fmt::Display) -> Warning {
        Warning {
            path: shown(path),
            what: what.to_string(),
        }
    }

    /// That what only images have is not in what was made of an entry.
    pub(crate) fn image_only(entry: &Entry) -> Option<Warning> {
        if matches!(entry.kind, Kind::HardLink(_)) {
            return None;
        }
        let what = match (entry.flags, entry.project) {
            (0, 0) => return None,
            (0, project) => format!("no project {project}"),
            (flags, 0) => format!("no flags {}", InodeFlags(flags)),
            (flags, project) => format!("no flags {}, no project {project}", InodeFlags(flags)),
        };
        let what = format!("{what}: only images have them");
        Some(Warning::new(&entry.path, what))
    }
}

/// How much of what a tree has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Totals {
    /// Directories, the root included.
    pub directories: u64,
    /// Regular files.
    pub files: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Further names of files.
    pub hard_links: u64,
    /// Devices, named pipes and sockets.
    pub special: u64,
    /// Sizes of all files, holes included, in bytes.
    pub size_bytes: u64,
    /// The same without holes.
    pub data_bytes: u64,
}

/// A whole tree.
pub struct Tree {
    entries: Vec<Entry>,
    contents: Box<dyn Contents>,
    warnings: Vec<Warning>,
}

impl std::fmt::Debug for Tree {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tree")
            .field("entries", &self.entries)
            .finish_non_exhaustive()
    }
}

impl Tree {
    /// The entries, in order.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// What the source has and the tree has not.
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }

    /// How much it is.
    pub fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for entry in &self.entries {
            match &entry.kind {
                Kind::Directory => totals.directories += 1,
                Kind::File(data) => {
                    totals.files += 1;
                    totals.size_bytes = totals.size_bytes.saturating_add(data.size);
                    totals.data_bytes = totals.data_bytes.saturating_add(data.data_bytes());
                }
                Kind::Symlink(_) => totals.symlinks += 1,
                Kind::HardLink(_) => totals.hard_links += 1,
                _ => totals.special += 1,
            }
        }
        totals
    }

    /// Writes the tree. Blocks.
    ///
    /// # Errors
    /// Those of the source and of the sink; what is written then is incomplete.
    pub fn write_to(&mut self, sink: &mut dyn Sink, watch: &mut dyn Watch) -> Result<()> {
        watch.expect(self.totals().data_bytes);
        write(&self.entries, &mut *self.contents, sink, watch)
    }

    /// As [`Tree::write_to`], with another thread that reads ahead.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn write_ahead_to(
        &mut self,
        sink: &mut dyn Sink,
        watch: &mut dyn Watch,
    ) -> Result<()> {
        watch.expect(self.totals().data_bytes);
        let (entries, contents) = (&self.entries, &mut *self.contents);
        ahead::reading(entries, contents, |contents| {
            write(entries, contents, sink, watch)
        })
    }
}

fn write(
    entries: &[Entry],
    contents: &mut dyn Contents,
    sink: &mut dyn Sink,
    watch: &mut dyn Watch,
) -> Result<()> {
    sink.expect(entries);
    let mut above: Vec<&Entry> = Vec::new();
    for entry in entries {
        while let Some(directory) = above.pop_if(|directory| !is_in(directory, entry)) {
            sink.end(directory)?;
        }
        go_on(watch)?;
        sink.begin(entry)?;
        match &entry.kind {
            Kind::Directory => {
                above.push(entry);
                continue;
            }
            Kind::File(data) => contents.read(entry, data, &mut |offset, bytes| {
                watch.done(bytes.len() as u64);
                go_on(watch)?;
                sink.data(offset, bytes)
            })?,
            _ => {}
        }
        sink.end(entry)?;
    }
    while let Some(directory) = above.pop() {
        sink.end(directory)?;
    }
    sink.finish()
}

fn is_in(directory: &Entry, entry: &Entry) -> bool {
    match entry.path.strip_prefix(&directory.path[..]) {
        Some(rest) => directory.path.is_empty() || rest.first() == Some(&b'/'),
        None => false,
    }
}

/// The path in the tree for a name that a source gives: without `./`, doubled and trailing slashes.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn clean_path(name: &[u8]) -> Result<Vec<u8>, String> {
    if name.is_empty() {
        return Err("an empty name".into());
    }
    if name.contains(&0) {
        return Err("a NUL in the name".into());
    }
    if name[0] == b'/' {
        return Err("an absolute path".into());
    }
    let mut path = Vec::with_capacity(name.len());
    let mut depth = 0;
    for part in name.split(|&byte| byte == b'/') {
        match part {
            b"" | b"." => continue,
            b".." => return Err("a path with '..'".into()),
            _ if part.len() > NAME_MAX => {
                return Err(format!(
                    "a name of {} bytes; {NAME_MAX} is the most",
                    part.len()
                ));
            }
            _ => {}
        }
        depth += 1;
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(part);
    }
    if path.len() > PATH_MAX {
        return Err(format!(
            "a path of {} bytes; {PATH_MAX} is the most",
            path.len()
        ));
    }
    if depth > DEPTH_MAX {
        return Err(format!("{depth} directories deep; {DEPTH_MAX} is the most"));
    }
    Ok(path)
}

/// The same for the file that a hard link leads to.
///
/// # Errors
/// What is wrong with it.
pub(crate) fn clean_target(target: &[u8]) -> Result<Vec<u8>, String> {
    clean_path(target).map_err(|why| {
        let target = shown(target);
        format!("a hard link out of the tree, to {target}: {why}")
    })
}

/// What attributes take in memory.
pub(crate) fn weight(xattrs: &[Xattr]) -> u64 {
    let of_one = |xattr: &Xattr| XATTR_BYTES + (xattr.name.len() + xattr.value.len()) as u64;
    xattrs.iter().map(of_one).sum()
}

/// Counts so many bytes more of [`COPIES_MAX`]; `what` takes them, as an error has it.
///
/// # Errors
/// [`Error::Refused`] for more than memory should hold.
fn count(copied: &mut u64, bytes: u64, name: &[u8], what: &str) -> Result<()> {
    *copied = copied.saturating_add(bytes);
    match *copied <= COPIES_MAX {
        true => Ok(()),
        false => {
            let why = format!("{what} over {COPIES_MAX} bytes of memory");
            Err(Error::refused(name, why))
        }
    }
}

/// Gathers entries in any order, and makes a tree of them.
pub(crate) struct Builder {
    filter: Filter,
    entries: Vec<Entry>,
    by_path: HashMap<Vec<u8>, usize>,
    /// What is left out and no directory: other names of it may be kept.
    excluded: HashMap<Vec<u8>, Entry>,
    warnings: Vec<Warning>,
    /// What counts of [`COPIES_MAX`].
    copied: u64,
    /// What counts of [`HELD_MAX`].
    held_bytes: u64,
}

impl Builder {
    pub(crate) fn new(filter: Filter) -> Builder {
        Builder {
            filter,
            entries: Vec::new(),
            by_path: HashMap::new(),
            excluded: HashMap::new(),
            warnings: Vec::new(),
            copied: 0,
            held_bytes: 0,
        }
    }

    pub(crate) fn warn(&mut self, path: &[u8], what: impl std::fmt::Display) {
        self.warnings.push(Warning::new(path, what));
    }

    pub(crate) fn excludes(&self, path: &[u8]) -> bool {
        self.filter.excludes(path)
    }

    /// The file of the host that the filter leaves out.
    pub(crate) fn left_out(&self) -> Option<(u64, u64)> {
        self.filter.exclude_file
    }

    /// Counts `copies` of attributes that take so many bytes each, before they are made.
    ///
    /// # Errors
    /// [`Error::Refused`] for more than memory should hold.
    pub(crate) fn copy(&mut self, name: &[u8], bytes: u64, copies: u64) -> Result<()> {
        let counted = bytes.saturating_sub(COPY_FREE).saturating_mul(copies);
        let what = "attributes of many entries at once, with which all copies take";
        count(&mut self.copied, counted, name, what)
    }

    /// Counts what was read of an entry and stays in memory.
    ///
    /// # Errors
    /// [`Error::Refused`] for more than memory should hold.
    pub(crate) fn hold(&mut self, name: &[u8], bytes: u64) -> Result<()> {
        self.held_bytes = self.held_bytes.saturating_add(bytes);
        match self.held_bytes <= HELD_MAX {
            true => Ok(()),
            false => {
                let why = format!(
                    "the attributes, targets and maps up to here take over {HELD_MAX} bytes of memory"
                );
                Err(Error::refused(name, why))
            }
        }
    }

    /// Adds an entry, whose path must be clean, unless the filter leaves it out.
    ///
    /// A link to a file that is left out is the file, and later ones lead there.
    ///
    /// A path may come twice only for directories that are alike in everything.
    ///
    /// # Errors
    /// [`Error::Refused`].
    pub(crate) fn add(&mut self, mut entry: Entry) -> Result<()> {
        // Files of an image may share them as well, and an archive may be compressed.
        let held = match &entry.kind {
            Kind::File(data) => size_of_val(&data.segments[..]),
            Kind::Symlink(target) => target.len(),
            _ => 0,
        };
        self.hold(&entry.path, held as u64)?;
        if let Kind::HardLink(target) = &mut entry.kind {
            while let Some(Kind::HardLink(file)) = self.excluded.get(target).map(|file| &file.kind)
            {
                target.clone_from(file);
            }
        }
        if self.filter.excludes(&entry.path) {
            let is_own = matches!(&entry.kind, Kind::HardLink(target) if *target == entry.path);
            if !is_own && !entry.is_directory() {
                // The first of a path stays, so that no link leads far.
                let path = entry.path.clone();
                self.excluded.entry(path).or_insert(entry);
            }
            return Ok(());
        }
        if let Kind::HardLink(target) = &entry.kind
            && let Some(file) = self.excluded.get_mut(target)
        {
            let link = Entry {
                kind: Kind::HardLink(entry.path.clone()),
                ..Entry::default_directory(target.clone(), Timestamp::default())
            };
            let path = entry.path;
            entry = std::mem::replace(file, link);
            entry.path = path;
        }
        self.filter.apply(&mut entry);
        check(&mut entry)?;
        self.resolve(&mut entry)?;
        if let Some(&before) = self.by_path.get(&entry.path) {
            let twice = entry.is_directory() && self.entries[before] == entry;
            return match twice {
                true => Ok(()),
                false => Err(Error::refused(&entry.path, "comes twice")),
            };
        }
        self.by_path.insert(entry.path.clone(), self.entries.len());
        self.entries.push(entry);
        Ok(())
    }

    /// Makes a link to a link one to the file itself.
    fn resolve(&self, entry: &mut Entry) -> Result<()> {
        let Kind::HardLink(target) = &mut entry.kind else {
            return Ok(());
        };
        let refused = |why| {
            Err(Error::refused(
                &entry.path,
                format!("a hard link to {}, {why}", shown(target)),
            ))
        };
        if self.filter.excludes(target) {
            return refused("which is excluded");
        }
        let Some(&at) = self.by_path.get(&target[..]) else {
            return refused("which is no earlier entry");
        };
        match &self.entries[at].kind {
            Kind::Directory => return refused("which is a directory"),
            Kind::HardLink(file) => *target = file.clone(),
            _ => {}
        }
        Ok(())
    }

    /// # Errors
    /// [`Error::Refused`] for an entry below what is no directory.
    pub(crate) fn finish(mut self, contents: Box<dyn Contents>) -> Result<Tree> {
        self.make_parents()?;
        let links = self.take_links()?;
        self.entries.sort_by(|a, b| in_order(&a.path, &b.path));
        self.give_links(links);
        Ok(Tree {
            entries: self.entries,
            contents,
            warnings: self.warnings,
        })
    }

    /// What an archive implies: directories that it does not describe.
    ///
    /// # Errors
    /// [`Error::Refused`] for an entry below what is no directory, and for more directories than memory should hold.
    fn make_parents(&mut self) -> Result<()> {
        let mtime = self.filter.latest.unwrap_or_default();
        let mut missing = vec![];
        if !self.by_path.contains_key(&b""[..]) {
            missing.push(Vec::new());
        }
        for entry in &self.entries {
            let mut path = &entry.path[..];
            let mut implied = 0;
            while !path.is_empty() {
                path = split(path).0;
                match self.by_path.get(path) {
                    Some(&at) if at >= self.entries.len() => break,
                    Some(&at) if self.entries[at].is_directory() => break,
                    Some(_) => {
                        let why = format!("lies below {}, which is no directory", shown(path));
                        return Err(Error::refused(&entry.path, why));
                    }
                    None if path.is_empty() => break,
                    None => {
                        self.by_path.insert(path.to_vec(), usize::MAX);
                        missing.push(path.to_vec());
                        implied += (2 * path.len() + size_of::<Entry>()) as u64;
                    }
                }
            }
            let counted = implied.saturating_sub(COPY_FREE);
            let what = "lies in directories that the archive does not describe, which take";
            count(&mut self.copied, counted, &entry.path, what)?;
        }
        let made = missing.into_iter().map(|path| {
            let mut directory = Entry::default_directory(path, mtime);
            self.filter.apply(&mut directory);
            directory
        });
        self.entries.extend(made);
        Ok(())
    }

    /// All names of files that have several, by the name that has the file.
    ///
    /// # Errors
    /// [`Error::Refused`] if these have too many attributes together.
    fn take_links(&mut self) -> Result<HashMap<Vec<u8>, Vec<Vec<u8>>>> {
        let mut names: HashMap<Vec<u8>, Vec<Vec<u8>>> = HashMap::new();
        for entry in &self.entries {
            if let Kind::HardLink(target) = &entry.kind {
                let of = names.entry(target.clone()).or_default();
                of.push(entry.path.clone());
            }
        }
        for at in 0..self.entries.len() {
            let entry = &self.entries[at];
            if let Some(others) = names.get(&entry.path) {
                let path = entry.path.clone();
                self.copy(&path, weight(&entry.xattrs), others.len() as u64)?;
            }
        }
        Ok(names)
    }

    /// Moves each file to the first of its names.
    fn give_links(&mut self, links: HashMap<Vec<u8>, Vec<Vec<u8>>>) {
        for (holder, others) in links {
            let find = |path: &[u8]| {
                let found = self
                    .entries
                    .binary_search_by(|entry| in_order(&entry.path, path));
                found.expect("each name is an entry")
            };
            let at: Vec<usize> = others
                .iter()
                .chain([&holder])
                .map(|path| find(path))
                .collect();
            let file = self.entries[find(&holder)].clone();
            let first = *at.iter().min().expect("the holder is one");
            let target = self.entries[first].path.clone();
            for at in at {
                let path = self.entries[at].path.clone();
                let kind = match at == first {
                    true => file.kind.clone(),
                    false => Kind::HardLink(target.clone()),
                };
                self.entries[at] = Entry {
                    path,
                    kind,
                    ..file.clone()
                };
            }
        }
    }
}

/// Parents first, then by the bytes of names.
fn in_order(a: &[u8], b: &[u8]) -> std::cmp::Ordering {
    // The root has no name at all, not an empty one.
    let names = |path: &[u8]| !path.is_empty();
    names(a).cmp(&names(b)).then_with(|| {
        let of = |path| <[u8]>::split(path, |&byte| byte == b'/');
        of(a).cmp(of(b))
    })
}

/// What no tree may hold.
fn check(entry: &mut Entry) -> Result<()> {
    let refused = |why: String| Err(Error::refused(&entry.path, why));
    if entry.path.is_empty() && !entry.is_directory() {
        return refused("the root is no directory".into());
    }
    if [entry.uid, entry.gid].contains(&u32::MAX) {
        return refused(format!(
            "the owner or group {}, which is nobody's",
            u32::MAX
        ));
    }
    if let Kind::Symlink(target) = &entry.kind {
        if target.is_empty() || target.contains(&0) {
            return refused("a symbolic link whose target is empty or has a NUL in it".into());
        }
        if target.len() > TARGET_MAX {
            return refused(format!(
                "a symbolic link to {} bytes; {TARGET_MAX} is the most",
                target.len()
            ));
        }
    }
    for xattr in &entry.xattrs {
        let name = shown(&xattr.name);
        if xattr.name.is_empty() || xattr.name.len() > NAME_MAX || xattr.name.contains(&0) {
            return refused(format!(
                "an attribute whose name is not 1 to {NAME_MAX} bytes: '{name}'"
            ));
        }
        if xattr.value.len() > XATTR_VALUE_MAX {
            return refused(format!(
                "{} bytes in the attribute {name}; {XATTR_VALUE_MAX} is the most",
                xattr.value.len()
            ));
        }
    }
    entry.xattrs.sort_by(|a, b| a.name.cmp(&b.name));
    if let Some(two) = entry
        .xattrs
        .windows(2)
        .find(|two| two[0].name == two[1].name)
    {
        let name = shown(&two[0].name);
        return Err(Error::refused(
            &entry.path,
            format!("the attribute {name} comes twice"),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nothing;

    impl Contents for Nothing {
        fn read(
            &mut self,
            _: &Entry,
            _: &FileData,
            _: &mut dyn FnMut(u64, &[u8]) -> Result<()>,
        ) -> Result<()> {
            Ok(())
        }
    }

    fn entry(path: &str, kind: Kind) -> Entry {
        let directory = Entry::default_directory(path.into(), Timestamp::default());
        Entry { kind, ..directory }
    }

    #[test]
    fn attributes_of_all_entries_have_a_limit_together() {
        let mut builder = Builder::new(Filter::default());
        builder.hold(b"one", HELD_MAX).expect("as much as may be");
        let error = builder.hold(b"two", 1).expect_err("it is more");
        assert!(error.to_string().contains("two"), "{error}");
    }

    #[test]
    fn segments_and_targets_count_with_attributes() {
        for kind in [file(1), Kind::Symlink(b"target".to_vec())] {
            let mut builder = Builder::new(Filter::default());
            builder
                .hold(b"one", HELD_MAX - 1)
                .expect("as much as may be");
            let error = builder.add(entry("two", kind));
            let error = error.expect_err("it is more").to_string();
            assert!(error.contains("two"), "{error}");
        }
    }

    fn build(entries: &[(&str, Kind)]) -> Result<Vec<(String, Kind)>> {
        let mut builder = Builder::new(Filter::default());
        for (path, kind) in entries {
            builder.add(entry(path, kind.clone()))?;
        }
        let tree = builder.finish(Box::new(Nothing))?;
        let rows = tree.entries.into_iter();
        Ok(rows
            .map(|entry| (String::from_utf8(entry.path).unwrap(), entry.kind))
            .collect())
    }

    fn file(handle: u64) -> Kind {
        Kind::File(FileData::whole(1, handle))
    }

    #[test]
    fn tree_has_parents_first_and_siblings_sorted_whatever_the_order_was() {
        let rows = build(&[
            ("b", file(1)),
            ("a-b", file(2)),
            ("a/z/y", file(3)),
            ("a", Kind::Directory),
        ]);
        let paths: Vec<String> = rows.unwrap().into_iter().map(|row| row.0).collect();
        assert_eq!(paths, ["", "a", "a/z", "a/z/y", "a-b", "b"]);
    }

    #[test]
    fn file_with_several_names_lies_at_the_first_of_them() {
        let link = |to: &str| Kind::HardLink(to.into());
        let rows = build(&[("m", file(7)), ("z", link("m")), ("a", link("z"))]).unwrap();
        let expected = [
            ("".into(), Kind::Directory),
            ("a".into(), file(7)),
            ("m".into(), link("a")),
            ("z".into(), link("a")),
        ];
        assert_eq!(rows, expected);
    }

    #[test]
    fn entry_below_a_non_directory_is_refused_whichever_comes_first() {
        let symlink = || Kind::Symlink(b"..".to_vec());
        for entries in [
            [("s", symlink()), ("s/x", file(1))],
            [("s/x", file(1)), ("s", symlink())],
            [("f/x/y", file(1)), ("f", file(2))],
        ] {
            let error = build(&entries).unwrap_err().to_string();
            assert!(error.contains("which is no directory"), "{error}");
        }
    }

    #[test]
    fn path_that_comes_twice_is_refused_but_for_directories_that_are_alike() {
        assert!(build(&[("d", Kind::Directory), ("d", Kind::Directory)]).is_ok());
        for second in [file(1), Kind::Directory] {
            let mut builder = Builder::new(Filter::default());
            builder.add(entry("x", Kind::Directory)).unwrap();
            let other = Entry {
                permissions: 0o700,
                ..entry("x", second)
            };
            let error = builder.add(other).unwrap_err().to_string();
            assert_eq!(error, "x: comes twice");
        }
    }

    #[test]
    fn name_that_leads_out_of_the_tree_is_no_path() {
        for (name, why) in [
            (&b""[..], "empty"),
            (b"/etc", "absolute"),
            (b"a/../b", "'..'"),
            (b"..", "'..'"),
            (b"a\0b", "NUL"),
            (&[b'n'; 256], "256 bytes"),
            (&b"d/".repeat(901), "deep"),
            (&b"0123456789/".repeat(400), "4399 bytes"),
        ] {
            let error = clean_path(name).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        assert_eq!(clean_path(b"./a//b/./c/").unwrap(), b"a/b/c");
        assert_eq!(clean_path(b"./").unwrap(), b"");
    }
}
