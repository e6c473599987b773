//! Patterns: `*`, `?`, `[a-z]`, `[!a-z]`, `[[:alpha:]]`, `\` before what is meant literally.
//!
//! Names are bytes; `?` and a bracket take a whole character where the name is UTF-8. `*`, `?` and brackets take slashes too:
//! whoever means names gives names.
//!
//! Rejected: a crate that compiles patterns to regular expressions. These run over names of a directory that was
//! read from a device; and none of the crates has find's rules and a shell's at once.

/// How a pattern meets a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Case {
    /// Each letter meets itself.
    Exact,
    /// ASCII letters meet either case.
    Ignored,
}

/// Whether `name` as a whole fits. Time: at most the product of the lengths.
pub fn fits(pattern: &[u8], name: &[u8], case: Case) -> bool {
    let (mut p, mut n) = (0, 0);
    let mut retry = None;
    while n < name.len() {
        if pattern.get(p) == Some(&b'*') {
            p += 1;
            retry = Some((p, n));
            continue;
        }
        let step = one(&pattern[p..], &name[n..], case);
        match (step, retry) {
            (Some((taken, eaten)), _) => {
                p += taken;
                n += eaten;
            }
            // The star takes one character more.
            (None, Some((after, from))) => {
                let from = from + char_len(&name[from..]);
                retry = Some((after, from));
                (p, n) = (after, from);
            }
            (None, None) => return false,
        }
    }
    pattern[p..].iter().all(|&byte| byte == b'*')
}

/// Matches what is neither a star nor the end of the pattern with one character: how much of both that takes.
fn one(pattern: &[u8], name: &[u8], case: Case) -> Option<(usize, usize)> {
    match pattern {
        [b'?', ..] => Some((1, char_len(name))),
        [b'[', ..] => match bracket(pattern, name, case) {
            Some((len, true)) => Some((len, char_len(name))),
            Some((_, false)) => None,
            None => (name[0] == b'[').then_some((1, 1)),
        },
        [b'\\', byte, ..] => same(*byte, name[0], case).then_some((2, 1)),
        [byte, ..] => same(*byte, name[0], case).then_some((1, 1)),
        [] => None,
    }
}

fn same(a: u8, b: u8, case: Case) -> bool {
    a == b || case == Case::Ignored && a.eq_ignore_ascii_case(&b)
}

/// Bytes of the first character, or 1 where that is none.
fn char_len(text: &[u8]) -> usize {
    char_at(text).1
}

fn char_at(text: &[u8]) -> (u32, usize) {
    let first = text[..text.len().min(4)].utf8_chunks().next();
    match first.and_then(|chunk| chunk.valid().chars().next()) {
        Some(char) => (u32::from(char), char.len_utf8()),
        // Never met by a range of characters.
        None => (u32::MAX, 1),
    }
}

/// The length of a bracket, and whether the first character of `name` is in it; none if it has no end.
fn bracket(pattern: &[u8], name: &[u8], case: Case) -> Option<(usize, bool)> {
    let negated = matches!(pattern.get(1), Some(b'!' | b'^'));
    let first = if negated { 2 } else { 1 };
    let wanted = char_at(name).0;
    let (mut at, mut found, mut known) = (first, false, true);
    while pattern.get(at)? != &b']' || at == first {
        if let Some((class, len)) = class(&pattern[at..]) {
            let is_of = |char| class.is_some_and(|is_of| char::from_u32(char).is_some_and(is_of));
            found |= is_any(wanted, is_of, case);
            known &= class.is_some();
            at += len;
            continue;
        }
        let (low, next) = member(pattern, at)?;
        let is_range = pattern.get(next) == Some(&b'-') && pattern.get(next + 1)? != &b']';
        let (high, next) = if is_range {
            member(pattern, next + 1)?
        } else {
            (low, next)
        };
        found |= is_any(wanted, |char| (low..=high).contains(&char), case);
        at = next;
    }
    // A class that nobody knows has no complement either.
    Some((at + 1, known && found != negated))
}

fn member(pattern: &[u8], at: usize) -> Option<(u32, usize)> {
    let at = if pattern.get(at)? == &b'\\' && at + 1 < pattern.len() {
        at + 1
    } else {
        at
    };
    let (char, len) = char_at(&pattern[at..]);
    Some((char, at + len))
}

/// Whether a character is of a class.
type IsOf = fn(char) -> bool;

/// The classes of characters that POSIX names. What is beyond ASCII is as Unicode has it.
const CLASSES: [(&str, IsOf); 12] = [
    ("alnum", |char| char.is_alphanumeric()),
    ("alpha", |char| char.is_alphabetic()),
    ("blank", |char| char == ' ' || char == '\t'),
    ("cntrl", |char| char.is_control()),
    ("digit", |char| char.is_ascii_digit()),
    ("graph", |char| !char.is_control() && !char.is_whitespace()),
    ("lower", |char| char.is_lowercase()),
    ("print", |char| !char.is_control()),
    ("punct", |char| match char.is_ascii() {
        true => char.is_ascii_punctuation(),
        false => !char.is_alphanumeric() && !char.is_control() && !char.is_whitespace(),
    }),
    ("space", |char| char.is_whitespace() || char == '\x0b'),
    ("upper", |char| char.is_uppercase()),
    ("xdigit", |char| char.is_ascii_hexdigit()),
];

/// `[:alpha:]` at the front of a bracket's members: the class, none if nobody knows it, and the length.
fn class(members: &[u8]) -> Option<(Option<IsOf>, usize)> {
    let rest = members.strip_prefix(b"[:")?;
    let len = rest.iter().position(|byte| !byte.is_ascii_lowercase())?;
    let (name, end) = rest.split_at(len);
    let known = CLASSES.iter().find(|class| class.0.as_bytes() == name);
    end.starts_with(b":]")
        .then_some((known.map(|class| class.1), len + 4))
}

fn is_any(wanted: u32, within: impl Fn(u32) -> bool, case: Case) -> bool {
    let other =
        |swap: fn(&u8) -> u8| u8::try_from(wanted).is_ok_and(|byte| within(swap(&byte).into()));
    within(wanted)
        || case == Case::Ignored && (other(u8::to_ascii_lowercase) || other(u8::to_ascii_uppercase))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exact(pattern: &str, name: &str) -> bool {
        fits(pattern.as_bytes(), name.as_bytes(), Case::Exact)
    }

    #[test]
    fn pattern_of_each_kind_fits_what_a_shell_says() {
        for (pattern, name) in [
            ("*", ""),
            ("a*c", "a/b/c"),
            ("a?c", "a/c"),
            ("a*b*c", "aXbYbc"),
            ("?", "é"),
            ("[a-c]x", "bx"),
            ("[!a-c]x", "dx"),
            ("[^é]", "e"),
            ("[]]", "]"),
            ("[a-]", "-"),
            ("[", "["),
            (r"\*", "*"),
            (r"[\]]", "]"),
            ("[[:alpha:]][[:digit:]]", "a7"),
            ("[![:digit:]_]", "a"),
            ("[_[:upper:]a-c]", "b"),
            ("[[:alpha:]]", "é"),
            ("[[:space:][:punct:]]x", "\u{b}x"),
            ("[[:xdigit:]]", "f"),
            ("[[:alpha]", ":"),
            ("*.*", "a.b"),
            ("**", "ab"),
        ] {
            assert!(exact(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [
            ("?", ""),
            ("a*b", "abc"),
            ("[a-c]", "d"),
            ("[!a]", "a"),
            (r"\*", "a"),
            ("", "a"),
            ("[a-c]", "é"),
            ("[[:alpha:]]", "7"),
            ("[[:alpha:]]", ":"),
            ("[![:digit:]_]", "_"),
            ("[[:lower:]]", "A"),
            ("[[:nope:]]", "n]"),
            ("[![:nope:]]", "a"),
            ("[[:digit:]]", "٣"),
            ("[ab", "a"),
        ] {
            assert!(!exact(pattern, name), "{pattern} {name}");
        }
    }

    #[test]
    fn pattern_on_bytes_that_are_no_utf8_takes_them_one_by_one() {
        assert!(fits(b"??", b"\xff\xfe", Case::Exact));
        assert!(!fits(b"[\xc3-\xff]", b"a", Case::Exact));
        assert!(fits(b"*\xff", b"a\xff", Case::Exact));
    }

    #[test]
    fn pattern_with_case_ignored_fits_either_case() {
        assert!(fits(b"R[a-e]*.TXT", b"readme.txt", Case::Ignored));
        assert!(fits(b"[A-Z]", b"x", Case::Ignored));
        assert!(fits(b"[[:upper:]]", b"x", Case::Ignored));
        assert!(!fits(b"x", b"X", Case::Exact));
    }

    #[test]
    fn pattern_of_many_stars_ends_soon() {
        let name = [b'a'; 4000];
        let pattern = [&b"*a".repeat(500)[..], b"b"].concat();
        assert!(!fits(&pattern, &name, Case::Exact));
    }
}
