//! Dates as touch takes them.

use dioxide::Timestamp;
use jiff::SignedDuration;
use jiff::civil::{Date, DateTime, Time};
use jiff::fmt::rfc2822;
use jiff::tz::{AmbiguousOffset, TimeZone};

/// A time from `now`, `@seconds`, a time of this day, a date, a date and a time of day, with or without an offset or UTC, or
/// as in mail.
pub fn parse_time(word: &str) -> Result<Timestamp, String> {
    let wrong = || {
        format!("'{word}' is no time, such as now, @1795286103, 2026-11-21 or 2026-11-21 10:02:37")
    };
    let word = word.trim();
    let found = match word.strip_prefix('@') {
        _ if word == "now" => Some(jiff::Timestamp::now()),
        Some(seconds) => seconds_since_1970(seconds),
        None if has_second_60(word) => None,
        None => exact(word).or_else(|| civil(word)),
    };
    found.map(to_disk).ok_or_else(wrong)
}

/// Which is taken for the one before it otherwise.
fn has_second_60(word: &str) -> bool {
    let parts = word.split(['T', 't', ' ']);
    let mut compact = parts.filter(|part| part.bytes().take(6).all(|byte| byte.is_ascii_digit()));
    word.contains(":60") || compact.any(|part| part.get(4..6) == Some("60"))
}

fn seconds_since_1970(text: &str) -> Option<jiff::Timestamp> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let whole: i64 = whole.parse().ok()?;
    let digits = fraction.bytes().all(|byte| byte.is_ascii_digit());
    let nanos: i32 = format!("{fraction:0<9}").get(..9)?.parse().ok()?;
    let sign = if text.starts_with('-') { -1 } else { 1 };
    jiff::Timestamp::new(whole, sign * nanos)
        .ok()
        .filter(|_| digits)
}

/// With an offset, before which `stat` has a space.
fn exact(word: &str) -> Option<jiff::Timestamp> {
    let apart = word.rsplit_once(' ');
    let apart = apart.filter(|(_, offset)| offset.starts_with(['+', '-']));
    let at = match apart {
        Some((time, offset)) => format!("{time}{offset}").parse().ok(),
        None => word.parse().ok(),
    };
    // As date -R tells it.
    at.or_else(|| Some(rfc2822::parse(word).ok()?.timestamp()))
}

/// In UTC if it says so, else in the local time zone.
fn civil(word: &str) -> Option<jiff::Timestamp> {
    let utc = word.rsplit_once(' ');
    let utc = utc.filter(|(_, zone)| zone.eq_ignore_ascii_case("utc"));
    let (word, zone) = match utc {
        Some((word, _)) => (word, TimeZone::UTC),
        None => (word, TimeZone::system()),
    };
    let date = || word.parse::<Date>().ok().map(DateTime::from);
    let of_today = || {
        let time: Time = word.parse().ok().filter(|_| word.contains(':'))?;
        let today = jiff::Timestamp::now().to_zoned(zone.clone()).date();
        Some(today.to_datetime(time))
    };
    let civil = word.parse::<DateTime>().ok();
    let civil = civil.or_else(date).or_else(of_today)?;
    in_zone(civil, &zone)
}

/// None where clocks are put forward over it.
fn in_zone(civil: DateTime, zone: &TimeZone) -> Option<jiff::Timestamp> {
    let at = zone.to_ambiguous_timestamp(civil);
    match at.offset() {
        AmbiguousOffset::Gap { .. } => None,
        _ => at.compatible().ok(),
    }
}

/// A time from `[[CC]YY]MMDDhhmm[.ss]`, local.
pub fn parse_stamp(word: &str) -> Result<Timestamp, String> {
    stamp(word)
        .map(to_disk)
        .ok_or_else(|| format!("'{word}' is no time of the form [[CC]YY]MMDDhhmm[.ss]"))
}

fn stamp(word: &str) -> Option<jiff::Timestamp> {
    let (minutes, seconds) = word.split_once('.').unwrap_or((word, "00"));
    if !minutes
        .bytes()
        .chain(seconds.bytes())
        .all(|byte| byte.is_ascii_digit())
        || seconds.len() != 2
    {
        return None;
    }
    let this_year = jiff::Zoned::now().year();
    let (year, rest) = match minutes.len() {
        8 => (this_year, minutes),
        10 => (century(minutes[..2].parse().ok()?), &minutes[2..]),
        12 => (minutes[..4].parse().ok()?, &minutes[4..]),
        _ => return None,
    };
    // POSIX has a second 60: the first of the next minute.
    let seconds: i8 = seconds.parse().ok()?;
    let part = |at: usize| rest[at..at + 2].parse::<i8>().ok();
    let civil = DateTime::new(
        year,
        part(0)?,
        part(2)?,
        part(4)?,
        part(6)?,
        seconds - i8::from(seconds == 60),
        0,
    );
    let time = in_zone(civil.ok()?, &TimeZone::system())?;
    time.checked_add(SignedDuration::from_secs((seconds == 60).into()))
        .ok()
}

/// POSIX: 69 to 99 are of the last century.
fn century(year: i16) -> i16 {
    year + if year >= 69 { 1900 } else { 2000 }
}

fn to_disk(time: jiff::Timestamp) -> Timestamp {
    // Before 1970 nanoseconds count up from the second before, too.
    let nanos = time.as_nanosecond();
    let per_second = 1_000_000_000;
    Timestamp {
        secs: nanos.div_euclid(per_second) as i64,
        nanos: nanos.rem_euclid(per_second) as u32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_of_each_form_is_taken() {
        let time = |word: &str| parse_time(word).map(|time| (time.secs, time.nanos));
        assert_eq!(time("@12.5"), Ok((12, 500_000_000)));
        assert_eq!(time("@-1"), Ok((-1, 0)));
        assert_eq!(time("@-0.5"), Ok((-1, 500_000_000)));
        assert_eq!(time("1970-01-01T00:00:01Z"), Ok((1, 0)));
        assert_eq!(time("1970-01-01 02:00:00+01:00"), Ok((3600, 0)));
        // As stat tells it.
        assert_eq!(time("1970-01-01 02:00:00.000000007 +0100"), Ok((3600, 7)));
        assert_eq!(time("1969-12-31 23:00:00 -0030"), Ok((-1800, 0)));
        for utc in ["1970-01-02 00:00:01 UTC", "1970-01-02T00:00:01 utc"] {
            assert_eq!(time(utc), Ok((86_401, 0)), "{utc}");
        }
        assert_eq!(time("1970-01-02 UTC"), Ok((86_400, 0)));
        // As date -R and mail have it.
        assert_eq!(time("Fri, 02 Jan 1970 01:00:01 +0100"), Ok((86_401, 0)));
        assert_eq!(time("2 Jan 1970 00:00:01 GMT"), Ok((86_401, 0)));
        assert!(time("2026-11-21").is_ok() && time("2026-11-21 10:02").is_ok());
        assert!(time("now").is_ok());
        let today = jiff::Zoned::now().date();
        let noon = time(&format!("{today} 12:00"));
        assert_eq!(time("12:00"), noon);
        for word in [
            "",
            "12",
            "2026",
            "25:00",
            "UTC",
            "now UTC",
            "yesterday-ish",
            "@",
            "@x",
            "@1.x",
            "2026-13-01",
            "2026-11-21 23:59:60",
            "2026-11-21T23:59:60Z",
            "20261121T235960",
            "Fri, 02 Jan 1970 01:00:60 +0100",
        ] {
            assert!(time(word).is_err(), "{word}");
        }
    }

    #[test]
    fn stamp_of_each_length_is_taken() {
        assert_eq!(
            parse_stamp("202611211002.37"),
            parse_time("2026-11-21 10:02:37")
        );
        assert_eq!(parse_stamp("7001010000"), parse_time("1970-01-01"));
        assert!(parse_stamp("11211002").is_ok());
        assert_eq!(
            parse_stamp("202611211002.60"),
            parse_time("2026-11-21 10:03")
        );
        assert!(parse_stamp("202611211002.61").is_err());
        for word in ["", "1121", "2026112110023", "202613211002", "20261121100é"] {
            assert!(parse_stamp(word).is_err(), "{word}");
        }
    }
}
