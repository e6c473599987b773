//! A line of a shell as words: quotes, backslashes, comments.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

/// The last word of a line that is still being written.
pub(super) struct Last {
    /// Where it begins in the line.
    pub start: usize,
    /// What it says so far.
    pub text: Vec<u8>,
    /// No word is before it.
    pub first: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Between,
    Plain,
    Single,
    Double,
}

/// The words of a line.
///
/// # Errors
/// A quote that is not ended; a backslash at the end; what does something in other shells, and would be a name here.
pub(super) fn split(line: &[u8]) -> Result<Vec<OsString>, &'static str> {
    let Scanned {
        words,
        state,
        operates,
        ..
    } = scan(line)?;
    if operates {
        return Err(
            "one command a line, without pipes and redirections: quote ; & | < and > in names",
        );
    }
    match state {
        State::Single | State::Double => Err("a quote is not ended"),
        _ => Ok(words.into_iter().map(OsString::from_vec).collect()),
    }
}

/// The word that a line ends in; an empty one after a space.
pub(super) fn last(line: &[u8]) -> Option<Last> {
    // What names have in common may end there.
    let line = match scan(line) {
        Err(_) => line.strip_suffix(b"\\")?,
        Ok(_) => line,
    };
    let Scanned {
        mut words,
        state,
        start,
        ..
    } = scan(line).ok()?;
    let text = match state {
        State::Between => Vec::new(),
        _ => words.pop()?,
    };
    Some(Last {
        start: if state == State::Between {
            line.len()
        } else {
            start
        },
        text,
        first: words.is_empty(),
    })
}

struct Scanned {
    words: Vec<Vec<u8>>,
    /// At the end.
    state: State,
    /// Where the last word begins.
    start: usize,
    /// There is an operator of other shells.
    operates: bool,
}

fn scan(line: &[u8]) -> Result<Scanned, &'static str> {
    let mut words: Vec<Vec<u8>> = Vec::new();
    let (mut state, mut start, mut operates) = (State::Between, 0, false);
    let mut bytes = line.iter().copied().enumerate();
    while let Some((at, byte)) = bytes.next() {
        if state == State::Between {
            match byte {
                b' ' | b'\t' | b'\r' => continue,
                b'#' => break,
                _ => {
                    words.push(Vec::new());
                    (state, start) = (State::Plain, at);
                }
            }
        }
        let word = words.last_mut().expect("a word has begun");
        state = match (state, byte) {
            (State::Plain, b' ' | b'\t' | b'\r') => State::Between,
            (State::Plain, b'\'') => State::Single,
            (State::Plain, b'"') => State::Double,
            (State::Single, b'\'') | (State::Double, b'"') => State::Plain,
            (State::Plain, b'\\') => {
                word.push(bytes.next().ok_or("a backslash at the end")?.1);
                state
            }
            (State::Double, b'\\') => {
                let next = bytes.next().ok_or("a backslash at the end")?.1;
                if !matches!(next, b'"' | b'\\') {
                    word.push(b'\\');
                }
                word.push(next);
                state
            }
            (_, byte) => {
                operates |= state == State::Plain && b";&|<>".contains(&byte);
                word.push(byte);
                state
            }
        };
    }
    Ok(Scanned {
        words,
        state,
        start,
        operates,
    })
}

/// A word as it is written so that [`split`] gives it back.
pub(super) fn quoted(word: &str) -> String {
    let mut quoted = String::new();
    for char in word.chars() {
        if " \t'\"\\#;&|<>".contains(char) {
            quoted.push('\\');
        }
        quoted.push(char);
    }
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Result<Vec<String>, &'static str> {
        let words = split(line.as_bytes())?;
        Ok(words
            .into_iter()
            .map(|word| word.into_string().unwrap())
            .collect())
    }

    #[test]
    fn line_is_split_as_shells_do() {
        let split = |line| words(line).unwrap();
        assert_eq!(split("  ls -l  /a "), ["ls", "-l", "/a"]);
        assert_eq!(
            split(r#"a 'b c' "d \"e\\f\g" h\ i"#),
            ["a", "b c", r#"d "e\f\g"#, "h i"]
        );
        assert_eq!(split("a'b'\"c\" ''"), ["abc", ""]);
        assert_eq!(split("a # b"), ["a"]);
        assert_eq!(split("a#b"), ["a#b"]);
        assert!(split("").is_empty() && split(" # x").is_empty());
        assert_eq!(split(r#"a\;b '&|' "<>""#), ["a;b", "&|", "<>"]);
        for line in ["'a", "\"a", "a\\", "a && b", "a;b", "a | b", "a >b", "<a"] {
            assert!(words(line).is_err(), "{line}");
        }
    }

    #[test]
    fn word_that_is_quoted_is_split_into_itself() {
        for word in ["a b", "it's", "#a", r"a\b", "\"", "ä", "a;b&c|d<e>f"] {
            assert_eq!(words(&quoted(word)).unwrap(), [word]);
        }
    }

    #[test]
    fn last_word_of_a_line_is_where_the_cursor_is() {
        let last = |line: &str| {
            let last = super::last(line.as_bytes()).unwrap();
            (
                last.start,
                String::from_utf8(last.text).unwrap(),
                last.first,
            )
        };
        assert_eq!(last("l"), (0, "l".into(), true));
        assert_eq!(last("ls "), (3, String::new(), false));
        assert_eq!(last(r"ls 'a b"), (3, "a b".into(), false));
        assert_eq!(last(r"ls a\ b"), (3, "a b".into(), false));
        assert_eq!(last(r"ls a\"), (3, "a".into(), false));
        assert_eq!(last(r"ls \"), (3, String::new(), false));
    }
}
