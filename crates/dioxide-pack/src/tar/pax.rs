//! PAX records: `length key=value`, and what is written in their keys and values.

use dioxide::Timestamp;

/// One record.
pub(super) type Record = (Vec<u8>, Vec<u8>);

/// Splits an extended header into records, and passes the key and value of each to `take`.
///
/// # Errors
/// What is wrong with it.
pub(super) fn parse(mut rest: &[u8], mut take: impl FnMut(&[u8], &[u8])) -> Result<(), String> {
    // Some programs fill the block up.
    while !rest.iter().all(|&byte| byte == 0) {
        let space = rest.iter().take(20).position(|&byte| byte == b' ');
        let len = space.and_then(|at| decimal(&rest[..at]));
        let (Some(space), Some(len)) = (space, len) else {
            return Err("an extended header's record without a length".into());
        };
        let len = usize::try_from(len)
            .ok()
            .filter(|&len| len <= rest.len() && len > space + 1);
        let len = len.ok_or("an extended header's record longer than the header")?;
        let (record, after) = rest.split_at(len);
        let record = record[space + 1..].strip_suffix(b"\n");
        let record = record.ok_or("an extended header's record without an end")?;
        let equals = record.iter().position(|&byte| byte == b'=');
        let equals = equals.ok_or("an extended header's record without '='")?;
        take(&record[..equals], &record[equals + 1..]);
        rest = after;
    }
    Ok(())
}

/// Appends a record.
pub(super) fn push(to: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    // The length counts its own digits.
    let rest = key.len() + value.len() + 3;
    let mut len = rest;
    while rest + len.to_string().len() != len {
        len = rest + len.to_string().len();
    }
    to.extend_from_slice(len.to_string().as_bytes());
    for part in [b" ", key, b"=", value, b"\n"] {
        to.extend_from_slice(part);
    }
}

/// A number without sign.
pub(super) fn decimal(word: &[u8]) -> Option<u64> {
    let digits = !word.is_empty() && word.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(word)
        .ok()
        .filter(|_| digits)?
        .parse()
        .ok()
}

/// A time as `[-]seconds[.fraction]`; what is below a nanosecond is cut.
pub(super) fn time(word: &[u8]) -> Option<Timestamp> {
    let (negative, word) = match word.strip_prefix(b"-") {
        Some(word) => (true, word),
        None => (false, word),
    };
    let mut parts = word.splitn(2, |&byte| byte == b'.');
    let secs = i64::try_from(decimal(parts.next()?)?).ok()?;
    let fraction = parts.next().unwrap_or_default();
    if !fraction.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let digits = fraction
        .iter()
        .copied()
        .chain(std::iter::repeat(b'0'))
        .take(9);
    let nanos = digits.fold(0, |value, digit| value * 10 + u32::from(digit - b'0'));
    Some(match (negative, nanos) {
        (false, _) => Timestamp { secs, nanos },
        (true, 0) => Timestamp { secs: -secs, nanos },
        (true, _) => Timestamp {
            secs: -secs - 1,
            nanos: 1_000_000_000 - nanos,
        },
    })
}

/// The other way.
pub(super) fn time_text(time: Timestamp) -> String {
    let (sign, secs, nanos) = match (time.secs < 0, time.nanos) {
        (true, 1..) => (
            "-",
            (time.secs + 1).unsigned_abs(),
            1_000_000_000 - time.nanos,
        ),
        (true, 0) => ("-", time.secs.unsigned_abs(), 0),
        (false, nanos) => ("", time.secs.unsigned_abs(), nanos),
    };
    let text = match nanos {
        0 => format!("{sign}{secs}"),
        _ => format!("{sign}{secs}.{nanos:09}"),
    };
    match text.contains('.') {
        true => text.trim_end_matches('0').into(),
        false => text,
    }
}

/// `%XX` for bytes that may not stand in a key.
pub(super) fn unescape(key: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(key.len());
    let mut rest = key;
    while let Some((&byte, after)) = rest.split_first() {
        let hex = |at: usize| char::from(*after.get(at)?).to_digit(16);
        match (byte, hex(0), hex(1)) {
            (b'%', Some(high), Some(low)) => {
                out.push((high * 16 + low) as u8);
                rest = &after[2..];
            }
            _ => {
                out.push(byte);
                rest = after;
            }
        }
    }
    out
}

/// The other way, for the two bytes that GNU tar escapes.
pub(super) fn escape(key: &[u8]) -> Vec<u8> {
    let parts = key.iter().map(|byte| match byte {
        b'%' => &b"%25"[..],
        b'=' => b"%3D",
        _ => std::slice::from_ref(byte),
    });
    parts.collect::<Vec<_>>().concat()
}

/// Base 64 without checks of what is behind its end.
pub(super) fn base64(text: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut count) = (0u32, 0);
    for byte in text.iter().take_while(|&&byte| byte != b'=') {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            b'\n' | b'\r' => continue,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            out.push((bits >> count) as u8);
            bits &= (1 << count) - 1;
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(header: &[u8]) -> Result<Vec<Record>, String> {
        let mut records = Vec::new();
        let take = |key: &[u8], value: &[u8]| records.push((key.to_vec(), value.to_vec()));
        parse(header, take).map(|()| records)
    }

    #[test]
    fn record_whose_length_gains_a_digit_by_itself_is_read_back() {
        for len in [
            0, 1, 3, 4, 5, 90, 91, 92, 93, 94, 980, 990, 991, 992, 9986, 70_000,
        ] {
            let value = vec![b'\n'; len];
            let mut header = Vec::new();
            push(&mut header, b"path", &value);
            push(&mut header, b"b", b"");
            let expected = vec![(b"path".to_vec(), value), (b"b".to_vec(), vec![])];
            assert_eq!(records(&header), Ok(expected), "{len}");
        }
    }

    #[test]
    fn record_that_is_none_is_refused() {
        for header in [
            &b"x"[..],
            b"9 a=b\n",
            b"6 a=b",
            b"6 a=bc\n",
            b"5 ab\n",
            b"2 \n",
            b"0 a=b\n",
            b" a=b\n",
            b"99999999999999999999 a=b\n",
            b"+6 a=b\n",
        ] {
            assert!(records(header).is_err(), "{}", header.escape_ascii());
        }
    }

    #[test]
    fn time_with_fraction_and_sign_is_read_and_written() {
        for (text, secs, nanos) in [
            ("0", 0, 0),
            ("1700000000.123456789", 1_700_000_000, 123_456_789),
            ("1.5", 1, 500_000_000),
            ("-1", -1, 0),
            ("-1.5", -2, 500_000_000),
            ("-0.25", -1, 750_000_000),
            ("120", 120, 0),
        ] {
            let time = Timestamp { secs, nanos };
            assert_eq!(super::time(text.as_bytes()), Some(time), "{text}");
            assert_eq!(time_text(time), text);
        }
        assert_eq!(super::time(b"1.0000000009").map(|time| time.nanos), Some(0));
        for text in ["", "-", "1.x", "x", "1e3", "99999999999999999999"] {
            assert_eq!(super::time(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn keys_and_base64_of_libarchive_are_decoded() {
        assert_eq!(unescape(b"user.a%3Db%25%zz"), b"user.a=b%%zz");
        assert_eq!(unescape(&escape(b"user.=%3D")), b"user.=%3D");
        assert_eq!(base64(b"").unwrap(), b"");
        assert_eq!(base64(b"aGVsbG8").unwrap(), b"hello");
        assert_eq!(base64(b"aGVsbG8=").unwrap(), b"hello");
        assert_eq!(base64(b"AP8Q").unwrap(), [0, 255, 16]);
        assert_eq!(base64(b"a*"), None);
    }
}
