//! The language of `find -printf`.
//!
//! Owners have no names here: `%u` and `%g` are numbers, as where a host does not know them. An image has no device number: `%D`
//! is 0.

use super::Time;
use super::eval::name;
use crate::commands::df::fs_type;
use crate::commands::directive::{Directive, Escapes, Language, Piece};
use crate::failure::Failure;
use crate::output::Out;
use crate::render::{mode_string, type_letter, zoned};
use crate::walk::Visit;
use dioxide::{Error, FileType, Timestamp};
use std::io::{self, Write};
use std::str::Chars;

/// A format that was understood.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Format(Vec<Piece<What>>);

#[derive(Debug, PartialEq, Eq)]
enum What {
    Fact(char),
    /// As `ctime` has it, or what strftime has for the letter.
    Time(Time, Option<char>),
}

const LANGUAGE: Language<What> = Language {
    escapes: Escapes::PrintfAndEnd,
    flags: "-+ #0",
    what,
    decimals: |_| 0,
};

impl Format {
    pub(super) fn parse(text: &str) -> Result<Format, String> {
        LANGUAGE.parse(text).map(Format)
    }

    /// `root` is what the walk began with. What cannot be read is told when all else is written.
    pub(super) fn write(
        &self,
        visit: &Visit<'_>,
        root: &[u8],
        out: &mut Out,
    ) -> Result<(), Failure> {
        let mut read = Ok(());
        for piece in &self.0 {
            match piece {
                Piece::Text(text) => out.write_all(text)?,
                Piece::Directive(directive) => {
                    let value = directive.what.of(visit, root);
                    let value = value.unwrap_or_else(|failure| {
                        read = Err(failure);
                        Vec::new()
                    });
                    directive.pad(&value, out)?;
                }
            }
        }
        read
    }
}

fn what(letter: char, letters: &mut Chars<'_>) -> Result<What, String> {
    let time = match letter {
        'a' | 'A' => Some(Time::Access),
        'c' | 'C' => Some(Time::Change),
        't' | 'T' => Some(Time::Modify),
        _ => None,
    };
    match time {
        Some(time) if letter.is_ascii_lowercase() => Ok(What::Time(time, None)),
        Some(time) => match letters.next() {
            Some(part) if "aAbBcCdDeFgGhHIjklmMpPrRsSTuUVwWxXyYzZ+@".contains(part) => {
                Ok(What::Time(time, Some(part)))
            }
            part => {
                let part = part.map_or_else(String::new, String::from);
                Err(format!("'%{letter}{part}' is no directive"))
            }
        },
        None if "bdDfFgGhHiklmMnpPsuUyY".contains(letter) => Ok(What::Fact(letter)),
        None => Err(format!("'%{letter}' is no directive")),
    }
}

impl Directive<What> {
    /// Numbers are text to GNU's, too, but for depths and modes.
    fn pad(&self, value: &[u8], out: &mut Out) -> io::Result<()> {
        let has = |flag| self.flags.contains(flag);
        let mut value = value.to_vec();
        let is_number = matches!(self.what, What::Fact('d' | 'm'));
        if is_number {
            let mut least = self.precision.unwrap_or(1);
            let sign = match self.what {
                What::Fact('d') if has('+') => "+",
                What::Fact('d') if has(' ') => " ",
                _ => "",
            };
            if has('0') && !has('-') && self.precision.is_none() {
                least = self.width - sign.len().min(self.width);
            }
            if self.what == What::Fact('m') && has('#') && !value.starts_with(b"0") {
                least = least.max(value.len() + 1);
            }
            let zeros = vec![b'0'; least.saturating_sub(value.len())];
            value = [sign.as_bytes(), &zeros, &value].concat();
        } else if let Some(most) = self.precision {
            value.truncate(most);
        }
        let chars = String::from_utf8_lossy(&value).chars().count();
        let padding = vec![b' '; self.width.saturating_sub(chars)];
        if !has('-') {
            out.write_all(&padding)?;
        }
        out.name(&value)?;
        if has('-') {
            out.write_all(&padding)?;
        }
        Ok(())
    }
}

impl What {
    fn of(&self, visit: &Visit<'_>, root: &[u8]) -> Result<Vec<u8>, Failure> {
        let (metadata, shown) = (visit.metadata, &visit.target.shown[..]);
        let letter = match self {
            What::Time(time, part) => return Ok(time_text(time.of(metadata), *part).into_bytes()),
            What::Fact(letter) => *letter,
        };
        let text = match letter {
            'b' => metadata.blocks.to_string(),
            'd' => visit.depth.to_string(),
            'D' => "0".to_owned(),
            'f' => return Ok(name(visit).to_vec()),
            'F' => fs_type(&visit.target.fs).to_owned(),
            'g' | 'G' => metadata.gid.to_string(),
            'h' => {
                let end = shown.iter().rposition(|byte| *byte == b'/');
                return Ok(end.map_or(&b"."[..], |end| &shown[..end]).to_vec());
            }
            'H' => return Ok(root.to_vec()),
            'i' => metadata.ino.to_string(),
            'k' => metadata.blocks.div_ceil(2).to_string(),
            'l' => return Ok(visit.target.link(metadata)?.unwrap_or_default()),
            'm' => format!("{:o}", metadata.permissions),
            'M' => mode_string(metadata.file_type, metadata.permissions),
            'n' => metadata.nlink.to_string(),
            'p' => return Ok(shown.to_vec()),
            'P' => {
                let below = shown.strip_prefix(root).unwrap_or_default();
                return Ok(below.strip_prefix(b"/").unwrap_or(below).to_vec());
            }
            's' => metadata.size.to_string(),
            'u' | 'U' => metadata.uid.to_string(),
            'y' => kind(metadata.file_type).into(),
            _ => match visit.target.fs.metadata(visit.target.path()) {
                Ok(behind) => kind(behind.file_type).into(),
                Err(Error::NotFound(_)) => "N".to_owned(),
                Err(Error::TooManySymlinks(_)) => "L".to_owned(),
                Err(_) => "?".to_owned(),
            },
        };
        Ok(text.into_bytes())
    }
}

fn kind(file_type: FileType) -> char {
    match file_type {
        FileType::Regular => 'f',
        FileType::Unknown => 'U',
        other => type_letter(other),
    }
}

/// Seconds have ten decimals, of which the last is 0.
fn time_text(time: Timestamp, part: Option<char>) -> String {
    let format = match part {
        None => "%a %b %e %H:%M:%S.%9f0 %Y",
        Some('@') => {
            let all = i128::from(time.secs) * 1_000_000_000 + i128::from(time.nanos);
            let (sign, all) = (if all < 0 { "-" } else { "" }, all.unsigned_abs());
            let (secs, nanos) = (all / 1_000_000_000, all % 1_000_000_000);
            return format!("{sign}{secs}.{nanos:09}0");
        }
        Some('+') => "%Y-%m-%d+%H:%M:%S.%9f0",
        Some('c') => "%a %b %e %H:%M:%S %Y",
        Some('r') => "%I:%M:%S %p",
        Some('S') => "%S.%9f0",
        Some('T' | 'X') => "%H:%M:%S.%9f0",
        Some('x') => "%m/%d/%y",
        Some(letter) => return zoned(time, &format!("%{letter}")),
    };
    zoned(time, format)
}
