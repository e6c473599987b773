//! `dioxide stats`: what a mount has counted, asked through the mount itself, so that it needs neither a socket nor rights that
//! its users do not have.

use crate::args::StatsArgs;
use crate::failure::{Failure, Status};
use crate::output::Out;
use crate::render::{count_words, printable};
use dioxide_fuse::stats::STATS_XATTR;
use serde_json::{Map, Value};
use std::io::{self, Write};

/// The kernel hands over no larger attribute.
const LARGEST: usize = 64 << 10;

/// Asks, and prints.
pub fn run(args: &StatsArgs, out: &mut Out) -> Result<Status, Failure> {
    let failed = |error: io::Error| Failure::host(args.dir.display(), &error);
    let mut json = vec![0; LARGEST];
    let len = match rustix::fs::getxattr(&args.dir, STATS_XATTR, json.as_mut_slice()) {
        Ok(len) => len,
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
    let report: Value =
        serde_json::from_slice(&json[..len]).map_err(|error| failed(error.into()))?;
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
    print_requests(fields(&report["requests"]), out)?;
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

fn print_requests<'a>(
    requests: impl Iterator<Item = (&'a String, &'a Value)>,
    out: &mut Out,
) -> Result<(), Failure> {
    const COLUMNS: [&str; 5] = ["mean_ns", "p50_ns", "p99_ns", "p999_ns", "max_ns"];
    write!(out, "{:18}{:>12}", "request", "count")?;
    for column in COLUMNS {
        write!(out, "{:>12}", column.replace("_ns", " µs"))?;
    }
    writeln!(out)?;
    for (name, told) in requests {
        write!(out, "{name:18}{:>12}", told["count"].to_string())?;
        for column in COLUMNS {
            let micros = told[column].as_f64().unwrap_or_default() / 1000.0;
            write!(out, "{micros:>12.1}")?;
        }
        writeln!(out)?;
    }
    Ok(())
}
