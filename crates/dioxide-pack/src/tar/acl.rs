//! Access control lists: text in archives, and the form of `getxattr` in a tree.
//!
//! In text an entry is `user:1000:rw-`, in star's form with the number behind it: `user:joe:rw-:1000`.
//! Names without a number are refused: whose they are is this host's affair, and the tree must come
//! out the same on each.

const VERSION: u32 = 2;
const NO_ID: u32 = u32::MAX;
const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

/// Whose list it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum List {
    /// The file's own, of which its mode has a part.
    Access,
    /// What a directory gives to new files, of which no mode tells.
    Default,
}

/// The value of the attribute for a list in text; none if there is none, or it says no more than a mode does.
///
/// # Errors
/// What is wrong with it.
pub(super) fn from_text(text: &[u8], list: List) -> Result<Option<Vec<u8>>, String> {
    let text = std::str::from_utf8(text).map_err(|_| "an access control list that is no text")?;
    let lines = text
        .lines()
        .map(|line| line.split('#').next().unwrap_or_default());
    let words = lines
        .flat_map(|line| line.split([',', ' ', '\t']))
        .filter(|word| !word.is_empty());
    let mut entries = words.map(entry).collect::<Result<Vec<_>, String>>()?;
    entries.sort_unstable();
    let says_more = match list {
        List::Access => entries
            .iter()
            .any(|entry| matches!(entry.0, USER | GROUP | MASK)),
        List::Default => !entries.is_empty(),
    };
    if !says_more {
        return Ok(None);
    }
    let mut value = VERSION.to_le_bytes().to_vec();
    for (tag, id, perm) in entries {
        value.extend_from_slice(&tag.to_le_bytes());
        value.extend_from_slice(&perm.to_le_bytes());
        value.extend_from_slice(&id.to_le_bytes());
    }
    Ok(Some(value))
}

/// Tag, ID and permissions of one entry.
fn entry(word: &str) -> Result<(u16, u32, u16), String> {
    let bad = || format!("'{word}' in an access control list");
    let parts: Vec<&str> = word.split(':').collect();
    let (kind, of, perms, number) = match parts[..] {
        [kind, perms] => (kind, "", perms, None),
        [kind, of, perms] => (kind, of, perms, None),
        [kind, of, perms, number] => (kind, of, perms, Some(number)),
        _ => return Err(bad()),
    };
    let tag = match (kind, of) {
        ("user" | "u", "") => USER_OBJ,
        ("user" | "u", _) => USER,
        ("group" | "g", "") => GROUP_OBJ,
        ("group" | "g", _) => GROUP,
        ("mask" | "m", "") => MASK,
        ("other" | "o", "") => OTHER,
        _ => return Err(bad()),
    };
    let id = match of {
        "" => NO_ID,
        _ => number.unwrap_or(of).parse().map_err(|_| {
            format!(
                "'{word}' in an access control list, which names '{of}' without its number \
                 (tar --numeric-owner archives numbers)"
            )
        })?,
    };
    Ok((tag, id, permissions(perms).ok_or_else(bad)?))
}

fn permissions(text: &str) -> Option<u16> {
    let mut perm = 0;
    for letter in text.chars() {
        perm |= match letter {
            'r' => 4,
            'w' => 2,
            'x' => 1,
            '-' => 0,
            _ => return None,
        };
    }
    Some(perm)
}

/// The list in text; none for a value that is no list.
pub(super) fn to_text(value: &[u8]) -> Option<String> {
    let entries = value.strip_prefix(&VERSION.to_le_bytes()[..])?;
    let (entries, []) = entries.as_chunks::<8>() else {
        return None;
    };
    let words = entries.iter().map(|&[t0, t1, p0, p1, i0, i1, i2, i3]| {
        let perm = u16::from_le_bytes([p0, p1]);
        let id = u32::from_le_bytes([i0, i1, i2, i3]);
        let flag = |bit, letter| if perm & bit != 0 { letter } else { '-' };
        let perms = [flag(4, 'r'), flag(2, 'w'), flag(1, 'x')]
            .iter()
            .collect::<String>();
        Some(match u16::from_le_bytes([t0, t1]) {
            USER_OBJ => format!("user::{perms}"),
            USER => format!("user:{id}:{perms}"),
            GROUP_OBJ => format!("group::{perms}"),
            GROUP => format!("group:{id}:{perms}"),
            MASK => format!("mask::{perms}"),
            OTHER => format!("other::{perms}"),
            _ => return None,
        })
    });
    Some(words.collect::<Option<Vec<_>>>()?.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_in_each_form_of_text_becomes_the_attribute_and_back() {
        let plain = "user::rw-,user:1000:r--,group::r-x,group:5:---,mask::r-x,other::---";
        let value = from_text(plain.as_bytes(), List::Access).unwrap().unwrap();
        assert_eq!(value.len(), 4 + 6 * 8);
        assert_eq!(to_text(&value).unwrap(), plain);
        let star = "u::rw-\nuser:joe:r--:1000\ng::r-x #effective:r--\ngroup:tty:---:5\nm::r-x\nother:---\n";
        assert_eq!(from_text(star.as_bytes(), List::Default), Ok(Some(value)));
    }

    #[test]
    fn list_that_is_only_a_mode_is_no_attribute() {
        let text = b"user::rw-,group::r--,other::r--";
        assert_eq!(from_text(text, List::Access), Ok(None));
        let value = from_text(text, List::Default).unwrap();
        assert_eq!(value.map(|value| value.len()), Some(4 + 3 * 8));
        for list in [List::Access, List::Default] {
            assert_eq!(from_text(b"", list), Ok(None));
        }
    }

    #[test]
    fn list_with_a_name_without_number_is_refused_by_that_name() {
        let error = from_text(b"user::rw-,user:joe:r--", List::Access).unwrap_err();
        assert!(error.contains("'joe'"), "{error}");
        for text in [
            &b"user"[..],
            b"q::rwx",
            b"user::rwq",
            b"user:1:2:3:4",
            b"mask:1:rwx",
            b"\xff",
        ] {
            assert!(from_text(text, List::Default).is_err());
        }
        assert_eq!(to_text(b"\x02\0\0\0\x01"), None);
        assert_eq!(to_text(b"\x01\0\0\0"), None);
    }
}
