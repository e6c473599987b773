//! What is changed or left out on the way into a tree.

mod ids;

use crate::entry::Entry;
use crate::error::{Error, Result};
use crate::glob::{Case, fits};
use dioxide::Timestamp;
use std::str::FromStr;

/// What to leave out of a tree, and what to change in it.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Left out, with everything below.
    pub exclude: Vec<Pattern>,
    /// A file of the host that is left out, by the numbers of its device and inode: the one that is made.
    pub exclude_file: Option<(u64, u64)>,
    /// Owners and groups.
    pub owners: Vec<OwnerRule>,
    /// No time is later than this.
    pub latest: Option<Timestamp>,
}

impl Filter {
    /// Whether the path, or a directory above it, is left out. The root never is.
    pub fn excludes(&self, path: &[u8]) -> bool {
        let ends = (0..=path.len()).filter(|&at| at == path.len() || path[at] == b'/');
        !self.exclude.is_empty()
            && !path.is_empty()
            && ends
                .map(|end| &path[..end])
                .any(|part| self.exclude.iter().any(|pattern| pattern.matches(part)))
    }

    pub(crate) fn apply(&self, entry: &mut Entry) {
        let owned_by = |id, group| {
            let mut rules = self.owners.iter();
            rules.find_map(|rule| rule.map(id, group)).unwrap_or(id)
        };
        entry.uid = owned_by(entry.uid, false);
        entry.gid = owned_by(entry.gid, true);
        // Whom a file belongs to, and not who is who.
        let is_of_all = |rule: &&OwnerRule| matches!(rule, OwnerRule::All(..));
        let named = |id, group| {
            let mut rules = self.owners.iter().filter(|rule| !is_of_all(rule));
            rules.find_map(|rule| rule.map(id, group)).unwrap_or(id)
        };
        for xattr in &mut entry.xattrs {
            ids::map(xattr, named);
        }
        if let Some(latest) = self.latest {
            entry.mtime = entry.mtime.min(latest);
        }
    }
}

/// A pattern of paths, as in [`glob`](crate::glob): `*`, `?` and brackets stand for slashes too.
///
/// A pattern that begins with `/` is matched from the root of the tree on, any other also from behind
/// any slash. These are GNU tar's rules for `--exclude`, but for the leading slash, with which
/// patterns there match nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    glob: Vec<u8>,
    anchored: bool,
}

impl Pattern {
    /// A pattern; slashes at its end mean nothing.
    pub fn new(word: &[u8]) -> Pattern {
        let anchored = word.first() == Some(&b'/');
        let from = word.iter().position(|&byte| byte != b'/');
        let glob = &word[from.unwrap_or(word.len())..];
        let glob = glob.strip_prefix(b"./").unwrap_or(glob);
        let end = glob.iter().rposition(|&byte| byte != b'/');
        Pattern {
            glob: glob[..end.map_or(0, |at| at + 1)].to_vec(),
            anchored: anchored || word.starts_with(b"./"),
        }
    }

    /// Whether it matches this path, as a whole.
    pub fn matches(&self, path: &[u8]) -> bool {
        let starts = (0..path.len()).filter(|&at| at == 0 || path[at - 1] == b'/');
        let starts = starts.take(if self.anchored { 1 } else { usize::MAX });
        starts
            .map(|at| &path[at..])
            .any(|rest| fits(&self.glob, rest, Case::Exact))
    }
}

/// How owners change. The first rule that knows an owner decides; an owner that no rule knows stays.
///
/// `0:0` gives all files to user 0 and group 0. `u:100000:0:65536` makes users 100000 to 165535 the
/// users 0 to 65535; `g:` does so with groups, and `b:` with both. The count is 1 if it is left out. These also change whom
/// access control lists name, and to whose namespace capabilities belong; the first does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerRule {
    /// All files get this user and group.
    All(u32, u32),
    /// A range of IDs becomes another.
    Range {
        /// Of users.
        users: bool,
        /// Of groups.
        groups: bool,
        /// First ID in the source.
        from: u32,
        /// First ID in the tree.
        to: u32,
        /// How many.
        count: u32,
    },
}

impl OwnerRule {
    fn map(&self, id: u32, group: bool) -> Option<u32> {
        match *self {
            OwnerRule::All(uid, gid) => Some(if group { gid } else { uid }),
            OwnerRule::Range {
                users,
                groups,
                from,
                to,
                count,
            } => {
                let concerned = if group { groups } else { users };
                let at = id.checked_sub(from).filter(|&at| at < count)?;
                concerned.then(|| to + at)
            }
        }
    }
}

impl FromStr for OwnerRule {
    type Err = Error;

    fn from_str(word: &str) -> Result<OwnerRule> {
        let bad = || {
            Error::Invalid(format!(
                "'{word}' is no owner map; write UID:GID, or u:FROM:TO[:COUNT] (or g:, b:)"
            ))
        };
        let parts: Vec<&str> = word.split(':').collect();
        let number = |at: usize| parts[at].parse::<u32>().map_err(|_| bad());
        let owner = |at| match number(at)? {
            u32::MAX => Err(Error::Invalid(format!(
                "'{word}': {} is no user or group",
                u32::MAX
            ))),
            id => Ok(id),
        };
        match parts[..] {
            [_, _] => Ok(OwnerRule::All(owner(0)?, owner(1)?)),
            [which @ ("u" | "g" | "b"), _, _] | [which @ ("u" | "g" | "b"), _, _, _] => {
                let count = if parts.len() == 4 { number(3)? } else { 1 };
                let (from, to) = (number(1)?, owner(2)?);
                let last = count.checked_sub(1).ok_or_else(bad)?;
                from.checked_add(last)
                    .and(to.checked_add(last))
                    .filter(|&last| last != u32::MAX)
                    .ok_or_else(bad)?;
                Ok(OwnerRule::Range {
                    users: which != "g",
                    groups: which != "u",
                    from,
                    to,
                    count,
                })
            }
            _ => Err(bad()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dioxide::Xattr;

    fn excluded(pattern: &str, path: &str) -> bool {
        let filter = Filter {
            exclude: vec![Pattern::new(pattern.as_bytes())],
            ..Filter::default()
        };
        filter.excludes(path.as_bytes())
    }

    #[test]
    fn pattern_without_leading_slash_matches_behind_any_slash_and_takes_what_is_below() {
        for path in ["a.o", "d/a.o", "d/e/a.o", "d/a.o/below"] {
            assert!(excluded("*.o", path), "{path}");
        }
        assert!(excluded("d/e", "x/d/e/f"));
        assert!(!excluded("*.o", "a.oo"));
        assert!(!excluded("e", "d/be"));
        assert!(!excluded("*", ""), "the root");
    }

    #[test]
    fn pattern_with_leading_slash_matches_at_the_root_only() {
        for anchored in ["/tmp", "./tmp", "/tmp/"] {
            assert!(excluded(anchored, "tmp"), "{anchored}");
            assert!(excluded(anchored, "tmp/x"), "{anchored}");
            assert!(!excluded(anchored, "var/tmp"), "{anchored}");
        }
    }

    fn owners(words: &[&str], uid: u32, gid: u32) -> (u32, u32) {
        let filter = Filter {
            owners: words.iter().map(|word| word.parse().unwrap()).collect(),
            ..Filter::default()
        };
        let mut entry = Entry::default_directory(Vec::new(), Timestamp::default());
        (entry.uid, entry.gid) = (uid, gid);
        filter.apply(&mut entry);
        (entry.uid, entry.gid)
    }

    #[test]
    fn owner_is_mapped_by_the_first_rule_that_knows_it_and_kept_without_one() {
        assert_eq!(owners(&["7:8"], 1, 2), (7, 8));
        assert_eq!(
            owners(&["u:100000:0:65536"], 100_005, 100_005),
            (5, 100_005)
        );
        assert_eq!(owners(&["b:1000:0"], 1000, 1001), (0, 1001));
        assert_eq!(owners(&["g:5:6", "0:0"], 5, 5), (0, 6));
        assert_eq!(owners(&[], 4, 4), (4, 4));
    }

    #[test]
    fn owner_map_of_ids_reaches_lists_and_one_of_all_files_does_not() {
        let list = |id: u8| [2, 0, 0, 0, 2, 0, 6, 0, id, 0, 0, 0].to_vec();
        for (words, after) in [
            (&["u:5:9"][..], 9),
            (&["g:5:9"], 5),
            (&["0:0"], 5),
            (&["0:0", "b:5:9"], 9),
        ] {
            let filter = Filter {
                owners: words.iter().map(|word| word.parse().unwrap()).collect(),
                ..Filter::default()
            };
            let mut entry = Entry::default_directory(Vec::new(), Timestamp::default());
            entry.xattrs = vec![Xattr {
                name: b"system.posix_acl_default".to_vec(),
                value: list(5),
            }];
            filter.apply(&mut entry);
            assert_eq!(entry.xattrs[0].value, list(after), "{words:?}");
        }
    }

    #[test]
    fn owner_map_that_makes_no_sense_is_refused() {
        for word in [
            "",
            "0",
            "x:0",
            "u:0",
            "u:0:0:0",
            "u:4294967295:0:2",
            "q:0:0",
            "1:2:3:4:5",
            "-1:0",
        ] {
            assert!(word.parse::<OwnerRule>().is_err(), "{word}");
        }
    }
}
