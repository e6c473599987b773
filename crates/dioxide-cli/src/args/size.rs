//! Sizes and times with suffixes.

use std::str::FromStr;
use std::time::Duration;

/// Bytes from `4096`, `4k`, `4K`, `4KiB`, `1M`, `2g`, `1T` (powers of 1024) or `4kB`, `1MB` (powers of 1000).
pub fn parse_size(word: &str) -> Result<u64, String> {
    let digits = word
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(word.len());
    let (number, suffix) = word.split_at(digits);
    let number: u64 = number
        .parse()
        .map_err(|_| format!("'{word}' is not a size, such as 4096, 64k or 1GiB"))?;
    let unit = unit(suffix).ok_or_else(|| {
        format!("'{suffix}' is no unit; there are k, M, G, T, P, also with iB or B")
    })?;
    number
        .checked_mul(unit)
        .ok_or_else(|| format!("'{word}' is more than 2^64 bytes"))
}

fn unit(suffix: &str) -> Option<u64> {
    let (letter, rest) = match suffix.chars().next() {
        None => return Some(1),
        Some(letter) => (letter.to_ascii_lowercase(), &suffix[letter.len_utf8()..]),
    };
    if letter == 'b' && rest.is_empty() {
        return Some(1);
    }
    let power = "kmgtp".find(letter)? as u32 + 1;
    match rest.to_ascii_lowercase().as_str() {
        "" | "i" | "ib" => Some(1024u64.pow(power)),
        "b" => Some(1000u64.pow(power)),
        _ => None,
    }
}

/// How truncate changes a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizeChange {
    To(u64),
    Extend(u64),
    Reduce(u64),
    AtMost(u64),
    AtLeast(u64),
    RoundDown(u64),
    RoundUp(u64),
}

impl FromStr for SizeChange {
    type Err = String;

    fn from_str(word: &str) -> Result<SizeChange, String> {
        let make = match word.as_bytes().first() {
            Some(b'+') => SizeChange::Extend,
            Some(b'-') => SizeChange::Reduce,
            Some(b'<') => SizeChange::AtMost,
            Some(b'>') => SizeChange::AtLeast,
            Some(b'/') => SizeChange::RoundDown,
            Some(b'%') => SizeChange::RoundUp,
            _ => return parse_size(word).map(SizeChange::To),
        };
        match make(parse_size(&word[1..])?) {
            SizeChange::RoundDown(0) | SizeChange::RoundUp(0) => Err("a multiple of 0".into()),
            change => Ok(change),
        }
    }
}

impl SizeChange {
    /// The size that comes of `size`; none if it would be over 2^64.
    pub fn apply(self, size: u64) -> Option<u64> {
        Some(match self {
            SizeChange::To(size) => size,
            SizeChange::Extend(by) => size.checked_add(by)?,
            SizeChange::Reduce(by) => size.saturating_sub(by),
            SizeChange::AtMost(most) => size.min(most),
            SizeChange::AtLeast(least) => size.max(least),
            SizeChange::RoundDown(unit) => size - size % unit,
            SizeChange::RoundUp(unit) => size.checked_next_multiple_of(unit)?,
        })
    }
}

/// A size of a request on a device: whole sectors.
pub fn parse_request_size(word: &str) -> Result<u32, String> {
    const MOST: u64 = 1 << 30;
    match parse_size(word)? {
        bytes if bytes % 512 == 0 && (512..=MOST).contains(&bytes) => Ok(bytes as u32),
        _ => Err(format!(
            "'{word}' is not a multiple of 512 bytes, from 512 to 1G"
        )),
    }
}

/// A time from `2` (seconds), `500ms`, `2s`, `1m`.
pub fn parse_duration(word: &str) -> Result<Duration, String> {
    let digits = word
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(word.len());
    let (number, unit) = word.split_at(digits);
    let millis = match unit {
        "ms" => 1,
        "" | "s" => 1000,
        "m" | "min" => 60_000,
        _ => return Err(format!("'{unit}' is no unit of time; there are ms, s, m")),
    };
    let number: u32 = number
        .parse()
        .map_err(|_| format!("'{word}' is not a time, such as 500ms, 2s or 1m"))?;
    Ok(Duration::from_millis(u64::from(number) * millis))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_with_each_kind_of_suffix_is_scaled() {
        for (word, bytes) in [
            ("0", 0),
            ("512", 512),
            ("512B", 512),
            ("4k", 4096),
            ("4K", 4096),
            ("4KiB", 4096),
            ("4kB", 4000),
            ("1M", 1 << 20),
            ("2g", 2 << 30),
            ("16TiB", 16 << 40),
        ] {
            assert_eq!(parse_size(word), Ok(bytes), "{word}");
        }
    }

    #[test]
    fn size_that_makes_no_sense_is_refused() {
        for word in ["", "k", "-1", "4q", "4kk", "1.5M", "99999999999G", "4é"] {
            assert!(parse_size(word).is_err(), "{word}");
        }
    }

    #[test]
    fn size_change_of_each_kind_is_applied() {
        for (word, after) in [
            ("7", Some(7)),
            ("+2k", Some(2148)),
            ("-50", Some(50)),
            ("-1k", Some(0)),
            ("<10", Some(10)),
            (">1k", Some(1024)),
            ("/64", Some(64)),
            ("%64", Some(128)),
            ("+16383P", None),
        ] {
            let change: SizeChange = word.parse().unwrap();
            assert_eq!(
                change.apply(if after.is_none() { u64::MAX } else { 100 }),
                after,
                "{word}"
            );
        }
        assert!("%0".parse::<SizeChange>().is_err() && "+".parse::<SizeChange>().is_err());
    }

    #[test]
    fn request_size_is_whole_sectors_within_bounds() {
        assert_eq!(parse_request_size("2k"), Ok(2048));
        for word in ["0", "100", "513", "2G"] {
            assert!(parse_request_size(word).is_err(), "{word}");
        }
    }

    #[test]
    fn duration_with_each_unit_is_scaled() {
        let words = ["2", "2s", "2000ms"].map(parse_duration);
        assert!(words.iter().all(|time| *time == Ok(Duration::from_secs(2))));
        assert_eq!(parse_duration("1m"), Ok(Duration::from_secs(60)));
        for word in ["", "s", "2h", "-1s", "1.5s"] {
            assert!(parse_duration(word).is_err(), "{word}");
        }
    }
}
