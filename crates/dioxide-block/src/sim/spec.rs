//! What a simulated device imitates, and its text form.

use crate::{AtomicUnits, Error};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A latency between two bounds, each value equally likely; equal bounds make it fixed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latency {
    /// The shortest, whole nanoseconds, at most one hour.
    pub min: Duration,
    /// The longest, likewise; not below `min`.
    pub max: Duration,
}

impl Latency {
    /// Always the same.
    pub const fn fixed(duration: Duration) -> Latency {
        Latency {
            min: duration,
            max: duration,
        }
    }

    /// Whether it never takes any time.
    pub fn is_zero(&self) -> bool {
        self.max.is_zero()
    }
}

/// A few requests that take much longer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tail {
    /// How many of a hundred, 0 to 100.
    pub percent: f64,
    /// What is added to their latency, at most one hour.
    pub extra: Duration,
}

/// What a [`SimDevice`](super::SimDevice) imitates. The default imitates nothing.
///
/// The text form is a list of `KEY=VALUE` with commas between, in any order, each key at most once:
///
/// | Key | Value | Meaning |
/// |---|---|---|
/// | `latency` | `TIME` or `TIME..TIME` | latency of reads and writes; a range is uniform |
/// | `read`, `write` | likewise | the same for one direction, instead of `latency` |
/// | `flush` | likewise | latency of a flush; other than 0, the device has a volatile cache |
/// | `fua` | likewise | what force unit access adds to a write; as `flush` if not given |
/// | `jitter` | `PERCENT` | multiplies each latency by a factor of 1 ± this, uniform |
/// | `tail` | `PERCENT:TIME` | this share of requests takes so much longer |
/// | `iops` | `COUNT` | ceiling of requests per second, reads and writes together |
/// | `read_iops`, `write_iops` | `COUNT` | what the device could do of one kind alone, instead of `iops` |
/// | `bw` | `RATE` | ceiling of bytes per second, reads and writes together |
/// | `read_bw`, `write_bw` | `RATE` | likewise, of one kind alone, instead of `bw` |
/// | `atomic` | `SIZE` or `SIZE..SIZE` | what it writes atomically, from one power of two to the other; of one, from the
///   smallest |
/// | `channels` | integer | how many requests the device works on at once; more wait |
/// | `seed` | integer | seed of the random draws; 0 if not given |
///
/// `TIME` is a number with `ns`, `us`, `ms` or `s` (up to one hour), `PERCENT` a number with `%`,
/// `COUNT` a number, perhaps with `k` or `M`, `SIZE` a number with `B`, `KiB` or `MiB`, `RATE` a number with `B/s`, `kB/s`, `MB/s`, `GB/s`,
/// `KiB/s`, `MiB/s` or `GiB/s`. Numbers may have a fraction. An empty text is the default.
///
/// Reads and writes share one device: a device with `read_iops=1M,write_iops=200k` that does half
/// its time each gives 500k reads and 100k writes. Ceilings do not add up, the tightest counts.
/// Write-zeroes and discard take a write's latency and one request of its rate, but no bandwidth.
///
/// ```
/// use dioxide_block::sim::SimSpec;
/// let spec: SimSpec = "read=230us,write=12us,jitter=10%,bw=620MiB/s,channels=64".parse()?;
/// assert_eq!(spec.to_string().parse::<SimSpec>()?, spec);
/// # Ok::<(), dioxide_block::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SimSpec {
    /// Latency of reads.
    pub read: Latency,
    /// Latency of writes.
    pub write: Latency,
    /// Latency of flushes.
    pub flush: Latency,
    /// What force unit access adds to a write's latency; `None`: the same as a flush.
    pub fua: Option<Latency>,
    /// Each latency varies by so many percent, 0 to 100.
    pub jitter_percent: f64,
    /// The slow few.
    pub tail: Option<Tail>,
    /// Ceiling of reads per second, if the device did nothing else.
    pub read_iops: Option<u64>,
    /// Ceiling of writes per second, likewise.
    pub write_iops: Option<u64>,
    /// Ceiling of bytes read per second, likewise.
    pub read_bw: Option<u64>,
    /// Ceiling of bytes written per second, likewise.
    pub write_bw: Option<u64>,
    /// What it writes atomically, as far as its logical block allows; `None`: what the wrapped device does.
    pub atomic: Option<AtomicUnits>,
    /// How many requests the device works on at once.
    pub channels: Option<u64>,
    /// Seed of the random draws.
    pub seed: u64,
}

const KEYS: &str = "latency, read, write, flush, fua (TIME or TIME..TIME), jitter (10%), \
    tail (1%:2ms), iops, read_iops, write_iops (801k), bw, read_bw, write_bw (620MiB/s), \
    atomic (16KiB or 4KiB..16KiB), channels, seed (integers)";

/// Longest latency, in nanoseconds.
const HOUR_NS: f64 = 3600e9;

const TIME_UNITS: &[(&str, f64)] = &[("s", 1e9), ("ms", 1e6), ("us", 1e3), ("ns", 1.0)];
const COUNT_UNITS: &[(&str, f64)] = &[("M", 1e6), ("k", 1e3), ("", 1.0)];
const SIZE_UNITS: &[(&str, f64)] = &[("MiB", 1048576.0), ("KiB", 1024.0), ("B", 1.0)];
const RATE_UNITS: &[(&str, f64)] = &[
    ("GiB/s", 1073741824.0),
    ("MiB/s", 1048576.0),
    ("KiB/s", 1024.0),
    ("GB/s", 1e9),
    ("MB/s", 1e6),
    ("kB/s", 1e3),
    ("B/s", 1.0),
];

impl FromStr for SimSpec {
    type Err = Error;

    fn from_str(text: &str) -> Result<SimSpec, Error> {
        parse(text).map_err(|what| Error::Spec {
            spec: text.into(),
            what,
        })
    }
}

fn parse(text: &str) -> Result<SimSpec, String> {
    let mut fields = Fields::split(text)?;
    let latency = fields.take("latency", parse_latency)?;
    let iops = fields.take("iops", parse_count)?;
    let bw = fields.take("bw", parse_rate)?;
    let spec = SimSpec {
        read: fields
            .either("read", latency, parse_latency)?
            .unwrap_or_default(),
        write: fields
            .either("write", latency, parse_latency)?
            .unwrap_or_default(),
        flush: fields.take("flush", parse_latency)?.unwrap_or_default(),
        fua: fields.take("fua", parse_latency)?,
        jitter_percent: fields.take("jitter", parse_percent)?.unwrap_or_default(),
        tail: fields.take("tail", parse_tail)?,
        read_iops: fields.either("read_iops", iops, parse_count)?,
        write_iops: fields.either("write_iops", iops, parse_count)?,
        read_bw: fields.either("read_bw", bw, parse_rate)?,
        write_bw: fields.either("write_bw", bw, parse_rate)?,
        atomic: fields.take("atomic", parse_units)?,
        channels: fields.take("channels", parse_positive)?,
        seed: fields.take("seed", parse_integer)?.unwrap_or_default(),
    };
    fields.finish()?;
    Ok(spec)
}

/// The `KEY=VALUE` pairs that nobody has taken yet.
struct Fields<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Fields<'a> {
    fn split(text: &'a str) -> Result<Fields<'a>, String> {
        let mut fields: Vec<(&str, &str)> = Vec::new();
        for part in text.split(',').map(str::trim) {
            if part.is_empty() && text.trim().is_empty() {
                continue;
            }
            let (key, value) = part
                .split_once('=')
                .ok_or_else(|| format!("'{part}' is not KEY=VALUE; the keys are {KEYS}"))?;
            let (key, value) = (key.trim(), value.trim());
            if fields.iter().any(|&(seen, _)| seen == key) {
                return Err(format!("'{key}' is given twice"));
            }
            fields.push((key, value));
        }
        Ok(Fields(fields))
    }

    fn take<T>(
        &mut self,
        key: &str,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<Option<T>, String> {
        let Some(at) = self.0.iter().position(|&(k, _)| k == key) else {
            return Ok(None);
        };
        let (_, value) = self.0.swap_remove(at);
        parse(value)
            .map(Some)
            .map_err(|what| format!("{key}: {what}"))
    }

    /// The value of `key`, or of the general key that stands for it.
    fn either<T>(
        &mut self,
        key: &str,
        general: Option<T>,
        parse: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<Option<T>, String> {
        Ok(self.take(key, parse)?.or(general))
    }

    fn finish(self) -> Result<(), String> {
        match self.0.first() {
            None => Ok(()),
            Some((key, _)) => Err(format!("no key '{key}'; the keys are {KEYS}")),
        }
    }
}

/// A number with one of `units`, in the smallest unit, rounded.
fn parse_scaled(text: &str, units: &[(&str, f64)], example: &str) -> Result<f64, String> {
    let wrong = || format!("'{text}' is not a value like {example}");
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let number: f64 = text[..end].parse().map_err(|_| wrong())?;
    let (_, factor) = units
        .iter()
        .find(|(unit, _)| unit.eq_ignore_ascii_case(&text[end..]))
        .ok_or_else(wrong)?;
    Ok((number * factor).round())
}

fn parse_time(text: &str) -> Result<Duration, String> {
    let ns = parse_scaled(text, TIME_UNITS, "231us, 1.5ms or 800ns")?;
    if ns > HOUR_NS {
        return Err(format!("'{text}' is over one hour"));
    }
    Ok(Duration::from_nanos(ns as u64))
}

fn parse_latency(text: &str) -> Result<Latency, String> {
    let Some((min, max)) = text.split_once("..") else {
        return parse_time(text).map(Latency::fixed);
    };
    let (min, max) = (parse_time(min)?, parse_time(max)?);
    if min > max {
        return Err(format!("'{text}' ends before it begins"));
    }
    Ok(Latency { min, max })
}

fn parse_size(text: &str) -> Result<u32, String> {
    let size = parse_scaled(text, SIZE_UNITS, "16KiB")?;
    Ok(positive(text, size, f64::from(1u32 << 30))? as u32)
}

fn parse_units(text: &str) -> Result<AtomicUnits, String> {
    let (min, max) = match text.split_once("..") {
        None => (1, parse_size(text)?),
        Some((min, max)) => (parse_size(min)?, parse_size(max)?),
    };
    AtomicUnits::new(min, max)
        .ok_or_else(|| format!("'{text}' is not two powers of two, the smaller first"))
}

fn parse_percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').and_then(|n| n.parse::<f64>().ok());
    match number {
        Some(percent) if (0.0..=100.0).contains(&percent) => Ok(percent),
        _ => Err(format!("'{text}' is not a share like 10%")),
    }
}

fn parse_tail(text: &str) -> Result<Tail, String> {
    let (percent, extra) = text
        .split_once(':')
        .ok_or_else(|| format!("'{text}' is not a share and a time like 1%:2ms"))?;
    Ok(Tail {
        percent: parse_percent(percent)?,
        extra: parse_time(extra)?,
    })
}

fn parse_count(text: &str) -> Result<u64, String> {
    positive(text, parse_scaled(text, COUNT_UNITS, "801k or 1.2M")?, 1e9)
}

fn parse_rate(text: &str) -> Result<u64, String> {
    let rate = parse_scaled(text, RATE_UNITS, "620MiB/s or 1.2GB/s")?;
    positive(text, rate, 1e15)
}

fn positive(text: &str, value: f64, limit: f64) -> Result<u64, String> {
    match value >= 1.0 && value <= limit {
        true => Ok(value as u64),
        false => Err(format!("'{text}' is not between 1 and {limit:e}")),
    }
}

fn parse_positive(text: &str) -> Result<u64, String> {
    match parse_integer(text)? {
        0 => Err("0 is not possible".into()),
        n => Ok(n),
    }
}

fn parse_integer(text: &str) -> Result<u64, String> {
    text.parse()
        .map_err(|_| format!("'{text}' is not an integer"))
}

/// The number with the largest unit that leaves it whole.
fn scaled(value: u64, units: &[(&str, f64)]) -> String {
    let whole = |factor: f64| value > 0 && value.is_multiple_of(factor as u64);
    let (unit, factor) = units
        .iter()
        .find(|(_, factor)| whole(*factor))
        .unwrap_or(&units[units.len() - 1]);
    format!("{}{unit}", value / *factor as u64)
}

fn units(units: AtomicUnits) -> String {
    let size = |bytes: u32| scaled(u64::from(bytes), SIZE_UNITS);
    match units.min_bytes {
        1 => size(units.max_bytes),
        min => format!("{}..{}", size(min), size(units.max_bytes)),
    }
}

fn time(duration: Duration) -> String {
    scaled(duration.as_nanos() as u64, TIME_UNITS)
}

impl fmt::Display for Latency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&time(self.min))?;
        match self.min == self.max {
            true => Ok(()),
            false => write!(f, "..{}", time(self.max)),
        }
    }
}

impl fmt::Display for SimSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        let mut say = |key: &str, value: Option<String>| {
            parts.extend(value.map(|value| format!("{key}={value}")));
        };
        pair(
            &mut say,
            ["latency", "read", "write"],
            [self.read, self.write],
            |l| (!l.is_zero()).then(|| l.to_string()),
        );
        say(
            "flush",
            (!self.flush.is_zero()).then(|| self.flush.to_string()),
        );
        say("fua", self.fua.map(|l| l.to_string()));
        let jitter = self.jitter_percent;
        say("jitter", (jitter != 0.0).then(|| format!("{jitter}%")));
        say(
            "tail",
            self.tail
                .map(|t| format!("{}%:{}", t.percent, time(t.extra))),
        );
        let iops = [self.read_iops, self.write_iops];
        pair(&mut say, ["iops", "read_iops", "write_iops"], iops, |n| {
            n.map(|n| scaled(n, COUNT_UNITS))
        });
        let bw = [self.read_bw, self.write_bw];
        pair(&mut say, ["bw", "read_bw", "write_bw"], bw, |n| {
            n.map(|n| scaled(n, RATE_UNITS))
        });
        say("atomic", self.atomic.map(units));
        say("channels", self.channels.map(|n| n.to_string()));
        say("seed", (self.seed != 0).then(|| self.seed.to_string()));
        match parts.is_empty() {
            true => f.write_str("latency=0ns"),
            false => f.write_str(&parts.join(",")),
        }
    }
}

/// One key if reads and writes agree, else two.
fn pair<T: PartialEq>(
    say: &mut impl FnMut(&str, Option<String>),
    [both, read, write]: [&str; 3],
    [of_read, of_write]: [T; 2],
    show: impl Fn(&T) -> Option<String>,
) {
    if of_read == of_write {
        return say(both, show(&of_read));
    }
    say(read, show(&of_read));
    say(write, show(&of_write));
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn spec(text: &str) -> SimSpec {
        text.parse().expect(text)
    }

    fn refusal(text: &str) -> String {
        text.parse::<SimSpec>().expect_err(text).to_string()
    }

    #[test]
    fn spec_of_the_seed_parses_to_its_values() {
        let got = spec("latency=231us,iops=801k");
        let latency = Latency::fixed(Duration::from_micros(231));
        assert_eq!((got.read, got.write), (latency, latency));
        assert_eq!(
            (got.read_iops, got.write_iops),
            (Some(801_000), Some(801_000))
        );
        assert_eq!(got.to_string(), "latency=231us,iops=801k");
    }

    #[test]
    fn spec_with_every_key_parses_to_its_values() {
        let got = spec(
            "read=230us, write=10us..0.5ms ,flush=1ms,fua=3ms,jitter=10%,tail=0.5%:2ms,read_iops=1.2M,\
             iops=7,bw=620MiB/s,write_bw=1GB/s,atomic=4KiB..16KiB,channels=64,seed=7",
        );
        assert_eq!(got.read, Latency::fixed(Duration::from_micros(230)));
        assert_eq!(got.write.min, Duration::from_micros(10));
        assert_eq!(got.write.max, Duration::from_micros(500));
        assert_eq!(got.flush, Latency::fixed(Duration::from_millis(1)));
        assert_eq!(got.fua, Some(Latency::fixed(Duration::from_millis(3))));
        assert_eq!(got.jitter_percent, 10.0);
        let tail = Tail {
            percent: 0.5,
            extra: Duration::from_millis(2),
        };
        assert_eq!(got.tail, Some(tail));
        assert_eq!((got.read_iops, got.write_iops), (Some(1_200_000), Some(7)));
        assert_eq!(
            (got.read_bw, got.write_bw),
            (Some(620 << 20), Some(1_000_000_000))
        );
        assert_eq!((got.channels, got.seed), (Some(64), 7));
        assert_eq!(got.atomic, AtomicUnits::new(4096, 16384));
    }

    #[test]
    fn spec_empty_is_the_default() {
        assert_eq!(spec(""), SimSpec::default());
        assert_eq!(spec(&SimSpec::default().to_string()), SimSpec::default());
    }

    #[test]
    fn spec_with_unknown_key_lists_the_keys() {
        for text in ["lateny=3us", "latency", "latency=3us,", ",", "=3"] {
            let error = refusal(text);
            assert!(
                error.contains("read_iops") && error.contains(text),
                "{error}"
            );
        }
    }

    #[test]
    fn spec_with_bad_value_names_key_and_form() {
        for (text, wanted) in [
            ("latency=231", "latency: '231' is not a value like 231us"),
            ("latency=-1us", "latency: '-1us'"),
            ("latency=2h", "latency: '2h'"),
            ("latency=3601s", "over one hour"),
            ("latency=1e9s", "latency: '1e9s'"),
            ("read=5us..2us", "ends before it begins"),
            ("bw=10", "bw: '10' is not a value like 620MiB/s"),
            ("iops=0", "iops: '0' is not between 1 and"),
            ("iops=", "iops: ''"),
            ("jitter=101%", "jitter: '101%'"),
            ("jitter=NaN%", "jitter: 'NaN%'"),
            ("tail=1%", "tail: '1%'"),
            ("atomic=24KiB", "atomic: '24KiB' is not two powers of two"),
            ("atomic=8KiB..4KiB", "the smaller first"),
            ("channels=0", "channels: 0"),
            ("seed=x", "seed: 'x'"),
            ("iops=1,iops=2", "'iops' is given twice"),
        ] {
            let error = refusal(text);
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }

    fn latency() -> impl Strategy<Value = Latency> {
        (0..3_600_000_000_000u64, 0..3_600_000_000_000u64).prop_map(|(a, b)| Latency {
            min: Duration::from_nanos(a.min(b)),
            max: Duration::from_nanos(a.max(b)),
        })
    }

    proptest! {
        #[test]
        fn spec_displayed_parses_to_itself(
            (read, write, flush) in (latency(), latency(), latency()),
            fua in proptest::option::of(latency()),
            jitter_percent in 0.0..=100.0f64,
            tail in proptest::option::of((0.0..=100.0f64, 0..3_600_000_000u64)),
            iops in proptest::array::uniform2(proptest::option::of(1..1_000_000_000u64)),
            bw in proptest::array::uniform2(proptest::option::of(1..1_000_000_000_000_000u64)),
            atomic in proptest::option::of((0..31u32, 0..31u32)),
            channels in proptest::option::of(1..u64::MAX),
            seed: u64,
        ) {
            let extra = |us| Duration::from_micros(us);
            let spec = SimSpec {
                read, write, flush, fua, jitter_percent,
                tail: tail.map(|(percent, us)| Tail { percent, extra: extra(us) }),
                read_iops: iops[0], write_iops: iops[1],
                read_bw: bw[0], write_bw: bw[1],
                atomic: atomic.and_then(|(a, b)| AtomicUnits::new(1 << a.min(b), 1 << a.max(b))),
                channels, seed,
            };
            prop_assert_eq!(&spec.to_string().parse::<SimSpec>().unwrap(), &spec);
        }

        #[test]
        fn spec_of_any_text_never_panics(text in "[a-z_=,.%:0-9 /µB]{0,40}") {
            let _ = text.parse::<SimSpec>();
        }
    }
}
