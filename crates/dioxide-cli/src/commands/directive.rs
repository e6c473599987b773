//! Formats of text and directives, as `stat --format` and `find -printf` have them.

use std::str::Chars;

/// Most characters that a field may be padded to.
const WIDTH_MOST: usize = 4096;

/// A part of a format that was understood. `What` is what is told.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece<What> {
    Text(Vec<u8>),
    Directive(Directive<What>),
}

/// Where something is told, and how.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Directive<What> {
    pub(super) flags: String,
    pub(super) width: usize,
    pub(super) precision: Option<usize>,
    pub(super) what: What,
}

/// Which backslashes mean something.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Escapes {
    None,
    /// Those of printf.
    Printf,
    /// Those, and `\c`, behind which nothing comes.
    PrintfAndEnd,
}

/// What one command understands.
pub(super) struct Language<What> {
    pub(super) escapes: Escapes,
    pub(super) flags: &'static str,
    /// What a first letter says, with those behind it that belong to it.
    pub(super) what: fn(char, &mut Chars<'_>) -> Result<What, String>,
    /// The precision that a dot alone stands for.
    pub(super) decimals: fn(&What) -> usize,
}

impl<What> Language<What> {
    /// # Errors
    /// What is no directive, in words.
    pub(super) fn parse(&self, text: &str) -> Result<Vec<Piece<What>>, String> {
        let mut pieces = Vec::new();
        let mut plain = Vec::new();
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            rest = &rest[first.len_utf8()..];
            match first {
                '\\' if self.escapes == Escapes::PrintfAndEnd && rest.starts_with('c') => break,
                '\\' if self.escapes != Escapes::None => rest = escape(rest, &mut plain),
                '%' if rest.starts_with('%') => {
                    plain.push(b'%');
                    rest = &rest[1..];
                }
                '%' => {
                    pieces.push(Piece::Text(std::mem::take(&mut plain)));
                    let (directive, after) = self.directive(rest)?;
                    pieces.push(Piece::Directive(directive));
                    rest = after;
                }
                other => plain.extend_from_slice(other.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        pieces.push(Piece::Text(plain));
        Ok(pieces)
    }

    fn directive<'a>(&self, text: &'a str) -> Result<(Directive<What>, &'a str), String> {
        let is_flag = |c: char| self.flags.contains(c);
        let flags_end = text.find(|c| !is_flag(c)).unwrap_or(text.len());
        let (flags, rest) = text.split_at(flags_end);
        let (width, rest) = number(rest);
        let (precision, rest) = match rest.strip_prefix('.') {
            Some(rest) => {
                let (precision, rest) = number(rest);
                (Some(precision), rest)
            }
            None => (None, rest),
        };
        let mut letters = rest.chars();
        let first = letters
            .next()
            .ok_or("'%' at its end; '%%' is a percent sign")?;
        let what = (self.what)(first, &mut letters)?;
        let precision = precision.map(|given| given.unwrap_or_else(|| (self.decimals)(&what)));
        let directive = Directive {
            flags: flags.to_owned(),
            width: width.unwrap_or(0).min(WIDTH_MOST),
            precision: precision.map(|precision| precision.min(WIDTH_MOST)),
            what,
        };
        Ok((directive, letters.as_str()))
    }
}

/// One escape of printf, behind its backslash.
fn escape<'a>(rest: &'a str, plain: &mut Vec<u8>) -> &'a str {
    // `\ooo`, `\xHH`: as many digits as there are, of what is more than a byte the low bits.
    for (prefix, radix, most) in [("", 8, 3), ("x", 16, 2)] {
        let Some(digits) = rest.strip_prefix(prefix) else {
            continue;
        };
        let is_digit = |byte: &u8| char::from(*byte).is_digit(radix);
        let count = digits.bytes().take(most).take_while(is_digit).count();
        if let Ok(value) = u32::from_str_radix(&digits[..count], radix) {
            plain.push(value as u8);
            return &digits[count..];
        }
    }
    let Some(letter) = rest.chars().next() else {
        plain.push(b'\\');
        return rest;
    };
    let known = [
        ('a', 7),
        ('b', 8),
        ('e', 27),
        ('f', 12),
        ('n', b'\n'),
        ('r', b'\r'),
        ('t', b'\t'),
        ('v', 11),
    ];
    match known.iter().find(|(name, _)| *name == letter) {
        Some((_, byte)) => plain.push(*byte),
        None => plain.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes()),
    }
    &rest[letter.len_utf8()..]
}

/// Digits at the beginning, and what follows them.
fn number(text: &str) -> (Option<usize>, &str) {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    (text[..end].parse().ok(), &text[end..])
}
