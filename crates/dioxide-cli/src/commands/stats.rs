//! `dioxide stats`: what a mount has counted, asked through the mount itself, so that it needs neither a socket nor rights that
//! its users do not have.

use crate::args::StatsArgs;
use crate::failure::{Failure, Status};
use crate::output::Out;
use crate::render::{count_words, printable};
use dioxide_fuse::stats::STATS_XATTR;
use serde_json::{Map, Value};
use std::io::{self, Write};
use std::ops::Range;
use std::path::Path;

/// The kernel hands over no larger attribute.
const LARGEST: usize = 64 << 10;

/// What the server of a mount tells.
fn ask(dir: &Path) -> rustix::io::Result<Vec<u8>> {
    let mut json = vec![0; LARGEST];
    let len = rustix::fs::getxattr(dir, STATS_XATTR, json.as_mut_slice())?;
    json.truncate(len);
    Ok(json)
}

/// Why nothing is written any more, if that is so and the server of a mount tells it.
pub fn failure_of(dir: &Path) -> Option<String> {
    let report: Value = serde_json::from_slice(&ask(dir).ok()?).ok()?;
    report["failure"].as_str().map(str::to_owned)
}

/// Asks, and prints.
pub fn run(args: &StatsArgs, out: &mut Out) -> Result<Status, Failure> {
    let failed = |error: io::Error| Failure::host(args.dir.display(), &error);
    let json = match ask(&args.dir) {
        Ok(json) => json,
        Err(rustix::io::Errno::NODATA | rustix::io::Errno::OPNOTSUPP) => {
            let what = "no dioxide file system is mounted there";
            return Err(Failure::trouble(args.dir.display(), what));
        }
        Err(_) if dioxide_fuse::is_dead(&args.dir) => {
            let what = "the server of this mount has died; dioxide umount detaches it";
            return Err(Failure::trouble(args.dir.display(), what));
        }
        Err(error) => return Err(failed(error.into())),
    };
    let report: Value = serde_json::from_slice(&json).map_err(|error| failed(error.into()))?;
    match args.json {
        true => out.json(&report)?,
        false => print(&report, out)?,
    }
    Ok(Status::Fine)
}

fn print(report: &Value, out: &mut Out) -> Result<(), Failure> {
    let number = |name: &str| report[name].as_u64().unwrap_or_default();
    writeln!(
        out,
        "mounted for {} s; files known to the kernel {}, held {}, open {}",
        report["uptime_secs"].as_f64().unwrap_or_default().round(),
        number("known_files"),
        number("held_files"),
        number("open_files"),
    )?;
    if let Some(failure) = report["failure"].as_str() {
        writeln!(out, "nothing is written any more: {}", printable(failure))?;
    }
    let damage = &report["damage"];
    for (list, words) in [("failed", "damage"), ("passed_over", "damage passed over")] {
        let met = damage[list].as_array().into_iter().flatten();
        for what in met.filter_map(Value::as_str) {
            writeln!(out, "{words}: {}", printable(what))?;
        }
    }
    if let Some(count @ 1..) = damage["count"].as_u64() {
        writeln!(out, "damage was met {}", count_words(count, "time"))?;
    }
    writeln!(out)?;
    print_requests(&report["requests"], out)?;
    writeln!(out)?;
    for (name, value) in fields(&report["engine"]) {
        writeln!(
            out,
            "{:22}{:>12}",
            name.replace('_', " "),
            value.to_string()
        )?;
    }
    Ok(())
}

fn fields(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flat_map(Map::iter)
}

fn print_requests(requests: &Value, out: &mut Out) -> Result<(), Failure> {
    const COLUMNS: [&str; 5] = ["mean_ns", "p50_ns", "p99_ns", "p999_ns", "max_ns"];
    let bands: Vec<Vec<(u32, u64)>> = fields(requests).map(|(_, told)| bands(told)).collect();
    let powers = || bands.iter().flatten().map(|&(power, _)| power);
    let axis = powers().min().unwrap_or(0)..powers().max().map_or(0, |last| last + 1);
    write!(out, "{:18}{:>12}", "request", "count")?;
    for column in COLUMNS {
        write!(out, "{:>12}", column.replace("_ns", " µs"))?;
    }
    if !axis.is_empty() {
        let ends = [axis.start.saturating_sub(1), axis.end - 1];
        let [from, to] = ends.map(|power| time_words(1 << power));
        write!(out, "  {from} to {to}")?;
    }
    writeln!(out)?;
    for ((name, told), bands) in fields(requests).zip(&bands) {
        write!(out, "{name:18}{:>12}", told["count"].to_string())?;
        for column in COLUMNS {
            let micros = told[column].as_f64().unwrap_or_default() / 1000.0;
            write!(out, "{micros:>12.1}")?;
        }
        writeln!(out, "  {}", bars(bands, axis.clone()).trim_end())?;
    }
    Ok(())
}

/// Of a histogram: powers of two of nanoseconds, and how many took less than that.
fn bands(told: &Value) -> Vec<(u32, u64)> {
    let bands = told["histogram"].as_array().into_iter().flatten();
    let band = |band: &Value| {
        let below = band["below_ns"].as_u64()?.checked_ilog2()?;
        Some((below, band["count"].as_u64()?))
    };
    bands.filter_map(band).collect()
}

/// A bar for each power of two, as high as its share of the highest.
fn bars(bands: &[(u32, u64)], axis: Range<u32>) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let highest = bands.iter().map(|&(_, count)| count).max().unwrap_or(1);
    let bar = |power| {
        let count = bands.iter().find(|&&(at, _)| at == power)?.1;
        let height = (count as f64 / highest as f64 * BARS.len() as f64).ceil() as usize;
        Some(BARS[height.clamp(1, BARS.len()) - 1])
    };
    axis.map(|power| bar(power).unwrap_or(' ')).collect()
}

/// A time for people.
fn time_words(nanos: u64) -> String {
    match nanos {
        0..1_000 => format!("{nanos} ns"),
        1_000..1_000_000 => format!("{} µs", nanos / 1_000),
        1_000_000..1_000_000_000 => format!("{} ms", nanos / 1_000_000),
        _ => format!("{} s", nanos / 1_000_000_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn histogram_is_drawn_on_the_axis_of_all() {
        let told = json!({"histogram": [
            {"below_ns": 1024, "count": 1},
            {"below_ns": 2048, "count": 800},
            {"below_ns": 8192, "count": 400},
        ]});
        let bands = bands(&told);
        assert_eq!(bands, [(10, 1), (11, 800), (13, 400)]);
        assert_eq!(bars(&bands, 9..15), " ▁█ ▄ ");
        assert_eq!(bars(&[], 9..11), "  ");
    }

    #[test]
    fn times_have_the_unit_that_suits_them() {
        let words = [512, 1 << 10, 1 << 20, 1 << 30].map(time_words);
        assert_eq!(words, ["512 ns", "1 µs", "1 ms", "1 s"]);
    }
}
