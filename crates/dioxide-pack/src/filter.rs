//! What is changed or left out on the way into a tree.

mod ids;

use crate::entry::Entry;
use crate::error::{Error, Result};
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

/// A pattern of paths: `*` and `?` stand for any bytes, slashes included, `[a-z]` and `[!a-z]` for one
/// of a set; `\` takes the next byte as it is.
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
            .any(|rest| matches(&self.glob, rest))
    }
}

/// Goes back to the last `*` only, so that it takes at most one step for each pair of positions.
fn matches(glob: &[u8], text: &[u8]) -> bool {
    let (mut g, mut t) = (0, 0);
    let mut star = None;
    while t < text.len() {
        match one(&glob[g..], text[t]) {
            _ if glob.get(g) == Some(&b'*') => {
                star = Some((g, t));
                g += 1;
                continue;
            }
            Some(len) => (g, t) = (g + len, t + 1),
            None => match &mut star {
                Some((at, from)) => {
                    *from += 1;
                    (g, t) = (*at + 1, *from);
                }
                None => return false,
            },
        }
    }
    glob[g..].iter().all(|&byte| byte == b'*')
}

/// How long the element at the front of the pattern is, if it stands for `byte`.
fn one(glob: &[u8], byte: u8) -> Option<usize> {
    match glob {
        [] => None,
        [b'?', ..] => Some(1),
        [b'\\', escaped, ..] => (*escaped == byte).then_some(2),
        [b'[', set @ ..] => match class(set, byte) {
            Some((len, true)) => Some(len + 1),
            Some((_, false)) => None,
            None => (byte == b'[').then_some(1),
        },
        [plain, ..] => (*plain == byte).then_some(1),
    }
}

/// How long the set behind a `[` is, and whether it holds `byte`; none if it has no end.
fn class(set: &[u8], byte: u8) -> Option<(usize, bool)> {
    let negated = matches!(set.first(), Some(b'!' | b'^'));
    let first = usize::from(negated);
    let mut at = first;
    let mut found = false;
    while at == first || *set.get(at)? != b']' {
        if let Some((is_of, len)) = named(&set[at..]) {
            found |= is_of(&byte);
            at += len;
            continue;
        }
        let low = *set.get(at)?;
        let is_range = set.get(at + 1) == Some(&b'-') && *set.get(at + 2)? != b']';
        let high = if is_range { set[at + 2] } else { low };
        found |= (low..=high).contains(&byte);
        at += if is_range { 3 } else { 1 };
    }
    Some((at + 1, found != negated))
}

/// Whether a byte is of a class.
type IsOf = fn(&u8) -> bool;

/// `[:alpha:]` at the front of a set's members: the class that POSIX names, of ASCII, and the length; none of no known name.
fn named(members: &[u8]) -> Option<(IsOf, usize)> {
    let rest = members.strip_prefix(b"[:")?;
    let len = rest.windows(2).position(|end| end == b":]")?;
    let is_of: IsOf = match &rest[..len] {
        b"alnum" => u8::is_ascii_alphanumeric,
        b"alpha" => u8::is_ascii_alphabetic,
        b"blank" => |byte| b" \t".contains(byte),
        b"cntrl" => u8::is_ascii_control,
        b"digit" => u8::is_ascii_digit,
        b"graph" => u8::is_ascii_graphic,
        b"lower" => u8::is_ascii_lowercase,
        b"print" => |byte| (b' '..=b'~').contains(byte),
        b"punct" => u8::is_ascii_punctuation,
        b"space" => |byte| byte.is_ascii_whitespace() || *byte == 0x0b,
        b"upper" => u8::is_ascii_uppercase,
        b"xdigit" => u8::is_ascii_hexdigit,
        _ => return None,
    };
    Some((is_of, len + 4))
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

    #[test]
    fn pattern_elements_stand_for_what_they_say() {
        for (pattern, text, is) in [
            ("a?c", "abc", true),
            ("[[:digit:]]x", "1x", true),
            ("[[:digit:]]x", "ax", false),
            ("[![:digit:]_]x", "_x", false),
            ("[a[:upper:]-]x", "-x", true),
            ("[[:space:]]x", "\u{b}x", true),
            ("[[:nope:]]", "n]", true),
            ("a?c", "ac", false),
            ("a*c", "a/b/c", true),
            ("*a*b*", "xxaxxbxx", true),
            ("*a*b*", "xxbxxaxx", false),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("[^a-c]x", "dx", true),
            ("[]]x", "]x", true),
            ("[a-]x", "-x", true),
            ("[x", "[x", true),
            (r"\*", "*", true),
            (r"\*", "a", false),
            ("", "a", false),
        ] {
            assert_eq!(
                matches(pattern.as_bytes(), text.as_bytes()),
                is,
                "{pattern} {text}"
            );
        }
    }

    #[test]
    fn pattern_of_many_stars_against_a_long_path_ends_soon() {
        let glob = b"*a".repeat(1000);
        assert!(!matches(&glob, &[b'b'; 4000]));
        assert!(!matches(
            &[&b"a"[..], &b"*a".repeat(500), b"b"].concat(),
            &[b'a'; 4000]
        ));
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
