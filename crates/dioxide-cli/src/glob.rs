//! Paths that are patterns, and the files that they stand for: [`dioxide_pack::glob`], and, as a whole name, `**`.
//!
//! A name that exists as it is written wins over the pattern that it would be. As in a shell, a dot at the beginning of a name
//! is only met by a dot, and `**` does not follow symlinks.

use dioxide::{Error, FileType, Fs};
use dioxide_pack::glob::{Case, fits};
use std::collections::HashSet;

use crate::session::join;

/// Whether there is anything in it that may be special.
pub fn is_pattern(path: &[u8]) -> bool {
    path.iter().any(|byte| b"*?[".contains(byte))
}

/// The path that a pattern is where it is meant as one: its names that may be patterns without the `\` before what is meant
/// literally.
pub fn literal(path: &[u8]) -> Vec<u8> {
    let names = path
        .split(|&byte| byte == b'/')
        .map(|name| match is_pattern(name) {
            true => literal_name(name),
            false => name.to_vec(),
        });
    names.collect::<Vec<_>>().join(&b'/')
}

fn literal_name(pattern: &[u8]) -> Vec<u8> {
    let mut name = Vec::with_capacity(pattern.len());
    let mut bytes = pattern.iter().copied();
    while let Some(byte) = bytes.next() {
        name.push(match byte {
            b'\\' => bytes.next().unwrap_or(byte),
            byte => byte,
        });
    }
    name
}

/// The files whose paths fit, sorted; none if there are none. Blocks on metadata.
///
/// # Errors
/// Damage on the way.
pub fn expand(fs: &Fs, path: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
    let names: Vec<&[u8]> = path
        .split(|&b| b == b'/')
        .filter(|name| !name.is_empty())
        .collect();
    let mut found = vec![b"/".to_vec()];
    for (index, name) in names.iter().enumerate() {
        let last = index + 1 == names.len() && !path.ends_with(b"/");
        let mut next = Vec::new();
        for base in &found {
            match *name {
                b"**" => below(fs, base, last, &mut next)?,
                name if is_pattern(name) => inside(fs, base, name, last, &mut next)?,
                name => next.push(join(base, name)),
            }
        }
        // Several `**` find the same again and again.
        next.sort();
        next.dedup();
        found = next;
    }
    if path.ends_with(b"/") {
        found.iter_mut().for_each(|path| path.push(b'/'));
    }
    let mut there = Vec::new();
    for path in found {
        if exists(fs, &path)? {
            there.push(path);
        }
    }
    Ok(there)
}

fn exists(fs: &Fs, path: &[u8]) -> Result<bool, Error> {
    Ok(unless_absent(fs.symlink_metadata(path))?.is_some())
}

/// A path that leads nowhere fits nothing, and is no error.
fn unless_absent<T>(result: Result<T, Error>) -> Result<Option<T>, Error> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(Error::NotFound(_) | Error::NotADirectory(_) | Error::TooManySymlinks(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// What is in a directory and fits; the file that has the pattern for its name alone, unless something is to be in it and it
/// is no directory.
fn inside(
    fs: &Fs,
    base: &[u8],
    pattern: &[u8],
    last: bool,
    found: &mut Vec<Vec<u8>>,
) -> Result<(), Error> {
    let literal = join(base, pattern);
    let within: &[u8] = if last { b"" } else { b"/." };
    if pattern.len() <= 255 && exists(fs, &[&literal[..], within].concat())? {
        found.push(literal);
        return Ok(());
    }
    let entries = unless_absent(fs.read_dir(base))?.unwrap_or_default();
    let shown = |name: &[u8]| !name.starts_with(b".") || pattern.starts_with(b".");
    let fitting = entries.into_iter().filter(|entry| {
        let name = &entry.name[..];
        name != b"." && name != b".." && shown(name) && fits(pattern, name, Case::Exact)
    });
    found.extend(fitting.map(|entry| join(base, &entry.name)));
    Ok(())
}

/// The directory, all directories below it, and, for the last name of a pattern, all files.
fn below(fs: &Fs, base: &[u8], files: bool, found: &mut Vec<Vec<u8>>) -> Result<(), Error> {
    let mut seen = HashSet::new();
    let mut left = vec![base.to_vec()];
    while let Some(directory) = left.pop() {
        let Some(entries) = unless_absent(fs.read_dir(&directory))? else {
            continue;
        };
        for entry in entries {
            if entry.name.starts_with(b".") {
                continue;
            }
            let path = join(&directory, &entry.name);
            let file_type = match entry.file_type {
                FileType::Unknown => fs.symlink_metadata(&path)?.file_type,
                known => known,
            };
            // A damaged image may lead to one directory in many ways.
            if file_type == FileType::Directory && seen.insert(entry.ino) {
                left.push(path);
            } else if files {
                found.push(path);
            }
        }
        found.push(directory);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pattern_as_a_name_loses_its_backslashes() {
        assert_eq!(literal(br"/a\*b[c]\\d"), br"/a*b[c]\d");
    }
}
