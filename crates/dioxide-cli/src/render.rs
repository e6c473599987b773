//! Modes, times, sizes and names as text.

use dioxide::{FileType, Timestamp};
use jiff::fmt::strtime;
use jiff::tz::TimeZone;
use serde::ser::{Serialize, SerializeMap, Serializer};
use std::borrow::Cow;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::str::FromStr;

/// Text from a disk with its control characters shown as `?`, so that it cannot drive a terminal.
pub fn printable(text: &str) -> Cow<'_, str> {
    if text.chars().any(char::is_control) {
        Cow::Owned(text.replace(char::is_control, "?"))
    } else {
        Cow::Borrowed(text)
    }
}

/// A name, a path or a value for programs, to be flattened into what has it. It is bytes, and JSON is not: there it is a
/// string under its key, with what is not UTF-8 replaced, and, if that lost something, `KEY_hex` with the exact bytes.
pub struct Text {
    key: &'static str,
    pub bytes: Vec<u8>,
}

impl Text {
    pub fn new(key: &'static str, bytes: impl Into<Vec<u8>>) -> Text {
        let bytes = bytes.into();
        Text { key, bytes }
    }

    /// A path on the host.
    pub fn path(key: &'static str, path: &Path) -> Text {
        Text::new(key, path.as_os_str().as_bytes())
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&printable(&String::from_utf8_lossy(&self.bytes)))
    }
}

impl Serialize for Text {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry(self.key, &String::from_utf8_lossy(&self.bytes))?;
        if std::str::from_utf8(&self.bytes).is_err() {
            map.serialize_entry(&format!("{}_hex", self.key), &hex(&self.bytes))?;
        }
        map.end()
    }
}

/// `4.0K`, `23M`, as `-h` has it: powers of 1024, rounded up, one decimal below 10.
pub fn human(bytes: u64) -> String {
    const UNITS: &[u8] = b"KMGTPE";
    if bytes < 1024 {
        return bytes.to_string();
    }
    let bytes = u128::from(bytes);
    for (index, unit) in UNITS.iter().enumerate() {
        let scale = 1u128 << (10 * (index + 1));
        let tenths = (bytes * 10).div_ceil(scale);
        let whole = bytes.div_ceil(scale);
        match () {
            () if tenths < 100 => {
                return format!("{}.{}{}", tenths / 10, tenths % 10, *unit as char);
            }
            () if whole < 1024 => return format!("{whole}{}", *unit as char),
            () => {}
        }
    }
    unreachable!("2^64 bytes are 16E")
}

/// Bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// `drwxr-xr-x`.
pub fn mode_string(file_type: FileType, permissions: u16) -> String {
    let mut text = String::from(type_letter(file_type));
    let sets = [(0o4000, 's'), (0o2000, 's'), (0o1000, 't')];
    for (shift, (special, letter)) in [6, 3, 0].into_iter().zip(sets) {
        let bits = permissions >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (permissions & special != 0, bits & 1 != 0) {
            (false, false) => '-',
            (false, true) => 'x',
            (true, false) => letter.to_ascii_uppercase(),
            (true, true) => letter,
        });
    }
    text
}

pub fn type_letter(file_type: FileType) -> char {
    match file_type {
        FileType::Regular => '-',
        FileType::Directory => 'd',
        FileType::Symlink => 'l',
        FileType::CharDevice => 'c',
        FileType::BlockDevice => 'b',
        FileType::Fifo => 'p',
        FileType::Socket => 's',
        FileType::Unknown => '?',
    }
}

/// The kind of file, as `stat` names it.
pub fn type_words(file_type: FileType, size: u64) -> &'static str {
    match file_type {
        FileType::Regular if size == 0 => "regular empty file",
        FileType::Regular => "regular file",
        FileType::Directory => "directory",
        FileType::Symlink => "symbolic link",
        FileType::CharDevice => "character special file",
        FileType::BlockDevice => "block special file",
        FileType::Fifo => "fifo",
        FileType::Socket => "socket",
        FileType::Unknown => "weird file",
    }
}

/// `2026-11-21 10:02:37.181983776 +0000`, in the local time zone.
pub fn full_time(time: Timestamp) -> String {
    zoned(time, FULL_TIME)
}

const FULL_TIME: &str = "%Y-%m-%d %H:%M:%S.%9f %z";

/// The time of a superblock, which counts whole seconds; 0 is never.
pub fn second_time(secs: i64) -> String {
    if secs == 0 {
        return "never".into();
    }
    zoned(Timestamp { secs, nanos: 0 }, "%Y-%m-%d %H:%M:%S %z")
}

/// How a listing tells times.
#[derive(Clone, Debug)]
pub struct TimeStyle {
    recent: String,
    /// Over half a year ago, or in the future.
    other: String,
}

impl TimeStyle {
    pub fn full() -> TimeStyle {
        TimeStyle::of([FULL_TIME; 2])
    }

    fn of(formats: [&str; 2]) -> TimeStyle {
        let [recent, other] = formats.map(str::to_owned);
        TimeStyle { recent, other }
    }

    pub fn show(&self, time: Timestamp, now_secs: i64) -> String {
        const HALF_A_YEAR_SECS: i64 = 31_556_952 / 2;
        let recent = (now_secs - HALF_A_YEAR_SECS..=now_secs).contains(&time.secs);
        zoned(time, if recent { &self.recent } else { &self.other })
    }
}

impl Default for TimeStyle {
    fn default() -> TimeStyle {
        TimeStyle::of(["%b %e %H:%M", "%b %e  %Y"])
    }
}

impl FromStr for TimeStyle {
    type Err = String;

    /// A word of `ls --time-style`. A format may have two lines: for what is not recent, and for what is.
    fn from_str(word: &str) -> Result<TimeStyle, String> {
        let style = match word.strip_prefix("posix-").unwrap_or(word) {
            "full-iso" => TimeStyle::full(),
            "long-iso" => TimeStyle::of(["%Y-%m-%d %H:%M"; 2]),
            "iso" => TimeStyle::of(["%m-%d %H:%M", "%Y-%m-%d "]),
            "locale" => TimeStyle::default(),
            word => {
                let what = "there are full-iso, long-iso, iso, locale and +FORMAT";
                let format = word.strip_prefix('+').ok_or(what)?;
                let (other, recent) = format.split_once('\n').unwrap_or((format, format));
                TimeStyle::of([recent, other])
            }
        };
        // It is asked now, since what is shown cannot fail.
        for format in [&style.recent, &style.other] {
            let example = jiff::Timestamp::UNIX_EPOCH.to_zoned(TimeZone::UTC);
            strtime::format(format, &example).map_err(|error| error.to_string())?;
        }
        Ok(style)
    }
}

/// `Nov 21 10:02`, or `Nov 21  2025` if that is over half a year from `now` or in the future.
pub fn list_time(time: Timestamp, now_secs: i64) -> String {
    TimeStyle::default().show(time, now_secs)
}

/// Seconds since 1970.
pub fn now_secs() -> i64 {
    jiff::Timestamp::now().as_second()
}

/// In the local time zone, in a format of strftime that is known to be one.
pub fn zoned(time: Timestamp, format: &str) -> String {
    let nanos = i32::try_from(time.nanos).unwrap_or(0);
    match jiff::Timestamp::new(time.secs, nanos) {
        Ok(timestamp) => timestamp
            .to_zoned(TimeZone::system())
            .strftime(format)
            .to_string(),
        Err(_) => format!("{} s", time.secs),
    }
}

/// `12288 bytes (12.0 KiB)`.
pub fn bytes_words(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let power = bytes.checked_ilog(1024).unwrap_or(0);
    let plain = count_words(bytes, "byte");
    match power.checked_sub(1) {
        None => plain,
        Some(unit) => {
            let scaled = bytes as f64 / 1024f64.powi(power as i32);
            format!("{plain} ({scaled:.1} {})", UNITS[unit as usize])
        }
    }
}

/// `1 extent`, `2 extents`.
pub fn count_words(count: u64, thing: &str) -> String {
    format!("{count} {thing}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mode_with_special_bits_shows_them_in_the_execute_places() {
        assert_eq!(mode_string(FileType::Regular, 0o644), "-rw-r--r--");
        assert_eq!(mode_string(FileType::Directory, 0o1777), "drwxrwxrwt");
        assert_eq!(mode_string(FileType::Regular, 0o4755), "-rwsr-xr-x");
        assert_eq!(mode_string(FileType::Regular, 0o7000), "---S--S--T");
    }

    #[test]
    fn text_with_escape_sequences_is_made_harmless() {
        assert_eq!(printable("a\x1b[31mb\n"), "a?[31mb?");
        assert_eq!(printable("naïve"), "naïve");
    }

    #[test]
    fn human_sizes_are_rounded_up_as_in_coreutils() {
        for (bytes, text) in [
            (0, "0"),
            (1023, "1023"),
            (1024, "1.0K"),
            (1025, "1.1K"),
            (10 * 1024 - 1, "10K"),
            (10 * 1024 + 1, "11K"),
            (1023 * 1024 + 1, "1.0M"),
            (24 << 30, "24G"),
            (u64::MAX, "16E"),
        ] {
            assert_eq!(human(bytes), text, "{bytes}");
        }
    }

    #[test]
    fn bytes_are_scaled_to_the_largest_unit() {
        assert_eq!(bytes_words(0), "0 bytes");
        assert_eq!(bytes_words(1), "1 byte");
        assert_eq!(bytes_words(1023), "1023 bytes");
        assert_eq!(bytes_words(12288), "12288 bytes (12.0 KiB)");
        assert_eq!(
            bytes_words(u64::MAX),
            "18446744073709551615 bytes (16.0 EiB)"
        );
    }

    #[test]
    fn text_that_is_not_utf8_carries_its_bytes() {
        let json = |bytes: &[u8]| serde_json::to_string(&Text::new("path", bytes)).unwrap();
        assert_eq!(json(b"/a"), "{\"path\":\"/a\"}");
        assert_eq!(
            json(b"a\xff"),
            "{\"path\":\"a\u{fffd}\",\"path_hex\":\"61ff\"}"
        );
    }

    #[test]
    fn list_time_of_the_future_or_the_distant_past_shows_the_year() {
        let at = |secs| Timestamp { secs, nanos: 0 };
        let now = 1_700_000_000;
        assert!(list_time(at(now - 60), now).contains(':'));
        assert!(!list_time(at(now + 3600), now).contains(':'));
        assert!(list_time(at(0), now).contains("19"));
        assert_eq!(list_time(at(now), now).len(), list_time(at(0), now).len());
    }

    #[test]
    fn time_that_no_calendar_holds_is_shown_in_seconds() {
        assert_eq!(
            full_time(Timestamp {
                secs: i64::MAX,
                nanos: 0
            }),
            format!("{} s", i64::MAX)
        );
    }
}
