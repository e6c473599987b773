//! `dioxide xattr`: values as text, hexadecimal digits or base64, in the forms of getfattr.

mod change;

use crate::args::{Encoding, XattrArgs, XattrCommand, XattrGetArgs, XattrListArgs};
use crate::failure::{Failure, Status};
use crate::images::Purpose;
use crate::output::{JsonArray, Out};
use crate::progress::Progress;
use crate::render::{Text, hex};
use crate::session::{JsonFile, Session, Target};
use crate::walk::{First, Next, When, walk};
use dioxide::{Error, FileType, Xattr};
use serde::Serialize;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;

pub fn run(args: &XattrArgs, session: &mut Session, out: &mut Out) -> Result<Status, Failure> {
    match &args.command {
        XattrCommand::Get(args) => get(args, session, out),
        XattrCommand::List(args) => list(args, session, out),
        XattrCommand::Remove(args) => change::remove(args, session, out),
        XattrCommand::Restore(args) => change::restore(args, session, out),
        XattrCommand::Set(args) => change::set(args, session, out),
    }
}

/// What is told of one file.
#[derive(Serialize)]
struct Told {
    #[serde(flatten)]
    file: JsonFile,
    xattrs: Vec<JsonXattr>,
}

#[derive(Serialize)]
struct JsonXattr {
    #[serde(flatten)]
    name: Text,
    #[serde(flatten)]
    value: Option<Text>,
}

impl JsonXattr {
    fn new(xattr: Xattr, values: bool, encoding: Option<Encoding>) -> JsonXattr {
        let value = match encoding {
            Some(_) => encode(&xattr.value, encoding).into_bytes(),
            None => xattr.value,
        };
        JsonXattr {
            name: Text::new("name", xattr.name),
            value: values.then(|| Text::new("value", value)),
        }
    }
}

fn xattrs(target: &Target, itself: bool) -> Result<Vec<Xattr>, Failure> {
    let found = match itself {
        true => target.node()?.xattrs(),
        false => target.fs.xattrs(target.path()),
    };
    let mut found = found.map_err(|error| target.failure(&error))?;
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

fn told(target: &Target, xattrs: Vec<JsonXattr>) -> Told {
    Told {
        file: target.json(),
        xattrs,
    }
}

fn get(args: &XattrGetArgs, session: &mut Session, out: &mut Out) -> Result<Status, Failure> {
    session.begin(&args.open, Purpose::Look);
    let mut array = JsonArray::default();
    let status = session.for_each(&args.paths, |target| {
        let mut found = xattrs(&target, args.no_dereference)?.into_iter();
        let missing = || {
            let path = String::from_utf8_lossy(target.path()).into_owned();
            Failure::engine(
                format_args!("{target}: {}", args.name.display()),
                target.path(),
                &Error::NoAttribute(path),
            )
        };
        let found = found
            .find(|xattr| xattr.name == args.name.as_bytes())
            .ok_or_else(missing)?;
        if args.json {
            let xattr = JsonXattr::new(found, true, args.encoding);
            return array.push(&told(&target, vec![xattr]), out);
        }
        match args.encoding {
            None => Ok(out.write_all(&found.value)?),
            Some(_) => Ok(writeln!(out, "{}", encode(&found.value, args.encoding))?),
        }
    })?;
    if args.json {
        array.finish(out)?;
    }
    Ok(status)
}

fn list(args: &XattrListArgs, session: &mut Session, out: &mut Out) -> Result<Status, Failure> {
    session.begin(&args.open, Purpose::Look);
    let mut array = JsonArray::default();
    let mut progress = match args.recursive {
        true => Progress::of_count_beside(out),
        false => Progress::none(),
    };
    let mut worst = Status::Fine;
    let status = session.for_each(&args.paths, |target| {
        let visit = &mut |visit: &crate::walk::Visit<'_>| {
            // What a link leads to is told where it is.
            let is_link = visit.depth > 0 && visit.metadata.file_type == FileType::Symlink;
            let below_link = is_link && !args.no_dereference;
            progress.advance(u64::from(visit.when != When::After));
            if visit.when != When::After && !below_link {
                list_one(args, visit.target, &mut array, out)?;
            }
            Ok(if args.recursive {
                Next::Enter
            } else {
                Next::Pass
            })
        };
        let first = match args.no_dereference {
            true => First::Itself,
            false => First::Followed,
        };
        worst = worst.max(walk(&target, first, visit)?);
        Ok(())
    })?;
    if args.json {
        array.finish(out)?;
    }
    Ok(status.max(worst))
}

fn list_one(
    args: &XattrListArgs,
    target: &Target,
    array: &mut JsonArray,
    out: &mut Out,
) -> Result<(), Failure> {
    let found = xattrs(target, args.no_dereference)?;
    let values = args.dump || args.encoding.is_some();
    if args.json {
        let json = |xattr| JsonXattr::new(xattr, values, args.encoding);
        return array.push(&told(target, found.into_iter().map(json).collect()), out);
    }
    if found.is_empty() {
        return Ok(());
    }
    write!(out, "# file: ")?;
    out.name(&escape(&target.shown, b""))?;
    writeln!(out)?;
    for xattr in found {
        out.name(&escape(&xattr.name, b"="))?;
        if values {
            write!(out, "={}", encode(&xattr.value, args.encoding))?;
        }
        writeln!(out)?;
    }
    Ok(writeln!(out)?)
}

/// A name in octal where it would break a line, or has what would end it.
fn escape(name: &[u8], ends: &[u8]) -> Vec<u8> {
    let mut escaped = Vec::with_capacity(name.len());
    for &byte in name {
        match b"\n\r\\".contains(&byte) || ends.contains(&byte) {
            true => escaped.extend(format!("\\{byte:03o}").bytes()),
            false => escaped.push(byte),
        }
    }
    escaped
}

/// A value in an encoding; if none is named, text where it is text.
fn encode(value: &[u8], encoding: Option<Encoding>) -> String {
    let is_text = |text: &str| !text.chars().any(char::is_control);
    let plain = std::str::from_utf8(value).is_ok_and(is_text);
    let chosen = match plain {
        true => Encoding::Text,
        false => Encoding::Base64,
    };
    match encoding.unwrap_or(chosen) {
        Encoding::Text => text(value),
        Encoding::Hex => format!("0x{}", hex(value)),
        Encoding::Base64 => format!("0s{}", base64(value)),
    }
}

/// In quotes; what would end or break them in octal.
fn text(value: &[u8]) -> String {
    let mut text = String::from("\"");
    for chunk in value.utf8_chunks() {
        for char in chunk.valid().chars() {
            match char {
                '"' | '\\' => text.extend(['\\', char]),
                char if char.is_control() => {
                    octal(char.encode_utf8(&mut [0; 4]).as_bytes(), &mut text)
                }
                char => text.push(char),
            }
        }
        octal(chunk.invalid(), &mut text);
    }
    text.push('"');
    text
}

fn octal(bytes: &[u8], text: &mut String) {
    text.extend(bytes.iter().map(|byte| format!("\\{byte:03o}")));
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let at = |index: usize| u32::from(chunk.get(index).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for digit in 0..4 {
            let value = bits >> (18 - 6 * digit) & 63;
            let used = digit <= chunk.len();
            text.push(if used {
                DIGITS[value as usize] as char
            } else {
                '='
            });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_of_each_length_is_padded() {
        for (bytes, digits) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
        ] {
            assert_eq!(base64(bytes.as_bytes()), digits);
        }
    }

    #[test]
    fn value_is_text_only_where_it_can_be_read() {
        assert_eq!(encode(b"a \"b\"", None), r#""a \"b\"""#);
        assert_eq!(encode(b"\x01", None), "0sAQ==");
        assert_eq!(encode(b"\xff\n", Some(Encoding::Text)), r#""\377\012""#);
        assert_eq!(encode(b"\x01\xab", Some(Encoding::Hex)), "0x01ab");
    }
}
