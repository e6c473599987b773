//! The language of `stat --format`.
//!
//! Owners have no names here: `%U` and `%G` are `UNKNOWN`, as where a host does not know a number. An image has
//! no device number: it is 0.

use super::Told;
use crate::commands::directive::{Directive, Escapes, Language, Piece};
use crate::output::Out;
use crate::render::{full_time, type_words};
use dioxide::Timestamp;
use std::io::{self, Write};
use std::str::Chars;

/// A format that was understood.
pub(super) struct Format(Vec<Piece<What>>);

/// The letter, and `H` or `L` before it.
type What = (Option<char>, char);

impl Format {
    /// Understands a format; with `escapes`, those of printf too.
    pub(super) fn parse(text: &str, escapes: bool) -> Result<Format, String> {
        let language = Language {
            escapes: match escapes {
                true => Escapes::Printf,
                false => Escapes::None,
            },
            flags: "#-+ 0'",
            what,
            decimals: |what: &What| if "WXYZ".contains(what.1) { 9 } else { 0 },
        };
        language.parse(text).map(Format)
    }

    pub(super) fn write(&self, told: &Told<'_>, out: &mut Out) -> io::Result<()> {
        for piece in &self.0 {
            match piece {
                Piece::Text(text) => out.write_all(text)?,
                Piece::Directive(directive) => directive.write(told, out)?,
            }
        }
        Ok(())
    }
}

fn what(first: char, letters: &mut Chars<'_>) -> Result<What, String> {
    let what = match (first, letters.clone().next()) {
        ('H' | 'L', Some(second @ ('d' | 'r'))) => {
            letters.next();
            (Some(first), second)
        }
        _ => (None, first),
    };
    match what.0.is_none() && !"aAbBdDfFgGhimnNorRstTuUwWxXyYzZC".contains(what.1) {
        true => Err(format!("'%{}' is no directive", what.1)),
        false => Ok(what),
    }
}

impl Directive<What> {
    fn write(&self, told: &Told<'_>, out: &mut Out) -> io::Result<()> {
        let value = self.value(told);
        let value = match value {
            Value::Text(text) => {
                let most = self.precision.unwrap_or(usize::MAX).min(text.len());
                return self.pad(&text[..most], out);
            }
            Value::Number(number) => self.digits(number.to_string()),
            Value::Signed(number) => self.with_sign(self.digits(number.to_string())),
            Value::Octal(number) => {
                let digits = self.digits(format!("{number:o}"));
                let prefix = if digits.starts_with('0') { "" } else { "0" };
                self.with_prefix(prefix, digits)
            }
            Value::Hex(number) => {
                let prefix = if number == 0 { "" } else { "0x" };
                self.with_prefix(prefix, self.digits(format!("{number:x}")))
            }
            Value::Seconds(time) => self.with_sign(self.seconds(time)),
        };
        // The precision of a whole number has said how many zeros there are.
        let has_zeros = self.precision.is_some() && !"WXYZ".contains(self.what.1);
        if !self.flags.contains('0') || self.flags.contains('-') || has_zeros {
            return self.pad(value.as_bytes(), out);
        }
        // The zeros are between the sign, or the prefix, and the digits.
        let before = value.find(|c: char| c.is_ascii_digit()).unwrap_or(0);
        let before = before + 2 * usize::from(value.starts_with("0x"));
        let zeros = "0".repeat(self.width.saturating_sub(value.len()));
        out.write_all(format!("{}{zeros}{}", &value[..before], &value[before..]).as_bytes())
    }

    /// With zeros in front, if there are fewer digits than the precision says; 0 has none where it says none.
    fn digits(&self, digits: String) -> String {
        match self.precision {
            Some(0) if digits == "0" => String::new(),
            Some(least) => format!("{digits:0>least$}"),
            None => digits,
        }
    }

    /// A sign or a space in front of what has no sign, as the flags say.
    fn with_sign(&self, number: String) -> String {
        let sign = ['+', ' ']
            .into_iter()
            .find(|&flag| self.flags.contains(flag));
        match sign {
            Some(sign) if !number.starts_with('-') => format!("{sign}{number}"),
            _ => number,
        }
    }

    fn with_prefix(&self, prefix: &str, digits: String) -> String {
        match self.flags.contains('#') {
            true => format!("{prefix}{digits}"),
            false => digits,
        }
    }

    /// Seconds since 1970, with as many decimals as the precision says, rounded down.
    fn seconds(&self, time: Option<Timestamp>) -> String {
        let time = time.unwrap_or_default();
        let Some(decimals) = self.precision else {
            return time.secs.to_string();
        };
        let all = i128::from(time.secs) * 1_000_000_000 + i128::from(time.nanos);
        let (sign, all) = (if all < 0 { "-" } else { "" }, all.unsigned_abs());
        let fraction = format!(
            "{:09}{}",
            all % 1_000_000_000,
            "0".repeat(decimals.saturating_sub(9))
        );
        let point = if decimals > 0 { "." } else { "" };
        format!(
            "{sign}{}{point}{}",
            all / 1_000_000_000,
            &fraction[..decimals]
        )
    }

    fn pad(&self, text: &[u8], out: &mut Out) -> io::Result<()> {
        let chars = String::from_utf8_lossy(text).chars().count();
        let padding = vec![b' '; self.width.saturating_sub(chars)];
        match self.flags.contains('-') {
            true => {
                out.name(text)?;
                out.write_all(&padding)
            }
            false => {
                out.write_all(&padding)?;
                out.name(text)
            }
        }
    }

    fn value(&self, told: &Told<'_>) -> Value {
        let metadata = &told.metadata;
        let (major, minor) = metadata.device.unwrap_or_default();
        let device = (u64::from(major & !0xfff) << 32)
            | (u64::from(major & 0xfff) << 8)
            | (u64::from(minor & !0xff) << 12)
            | u64::from(minor & 0xff);
        let plain = |number: u32| Value::Number(number.into());
        let time = |time: Option<Timestamp>| text(time.map_or_else(|| "-".into(), full_time));
        match self.what {
            (Some('H'), 'r') => plain(major),
            (Some(_), 'r') => plain(minor),
            (Some(_), _) | (None, 'd') => Value::Number(0),
            (_, 'D') => Value::Hex(0),
            (_, 'a') => Value::Octal(metadata.permissions.into()),
            (_, 'A') => text(told.mode.clone()),
            (_, 'b') => Value::Number(metadata.blocks),
            (_, 'B') => Value::Number(512),
            (_, 'f') => Value::Hex(metadata.mode().into()),
            (_, 'F') => text(type_words(metadata.file_type, metadata.size).into()),
            (_, 'g') => plain(metadata.gid),
            (_, 'u') => plain(metadata.uid),
            (_, 'G' | 'U') => text("UNKNOWN".into()),
            (_, 'h') => plain(metadata.nlink),
            (_, 'i') => plain(metadata.ino),
            (_, 'm') => text("/".into()),
            (_, 'n') => Value::Text(told.shown.to_vec()),
            (_, 'N') => Value::Text(quoted_name(told)),
            (_, 'o') => plain(metadata.block_size),
            (_, 's') => Value::Signed(metadata.size),
            (_, 'r') => Value::Number(device),
            (_, 'R') => Value::Hex(device),
            (_, 't') => Value::Hex(major.into()),
            (_, 'T') => Value::Hex(minor.into()),
            (_, 'w') => time(metadata.crtime),
            (_, 'W') => Value::Seconds(metadata.crtime),
            (_, 'x') => time(Some(metadata.atime)),
            (_, 'X') => Value::Seconds(Some(metadata.atime)),
            (_, 'y') => time(Some(metadata.mtime)),
            (_, 'Y') => Value::Seconds(Some(metadata.mtime)),
            (_, 'z') => time(Some(metadata.ctime)),
            (_, 'Z') => Value::Seconds(Some(metadata.ctime)),
            // Of SELinux, and unknown here.
            _ => text("?".into()),
        }
    }
}

enum Value {
    Text(Vec<u8>),
    Number(u64),
    /// A number of a kind that may be below 0, so that the flags of a sign count.
    Signed(u64),
    Octal(u64),
    Hex(u64),
    Seconds(Option<Timestamp>),
}

fn text(text: String) -> Value {
    Value::Text(text.into_bytes())
}

/// In single quotes, each of its own as `'\''`.
fn quoted(name: &[u8]) -> Vec<u8> {
    let mut quoted = vec![b'\''];
    for byte in name {
        match byte {
            b'\'' => quoted.extend_from_slice(br"'\''"),
            other => quoted.push(*other),
        }
    }
    quoted.push(b'\'');
    quoted
}

fn quoted_name(told: &Told<'_>) -> Vec<u8> {
    let mut name = quoted(told.shown);
    if let Some(target) = &told.target {
        name.extend_from_slice(b" -> ");
        name.extend(quoted(&target.bytes));
    }
    name
}
