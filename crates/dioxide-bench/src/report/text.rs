//! The report for a terminal, and the words that its forms share.

use super::{Check, Report, Row};
use crate::compare::size_name;
use dioxide::Policy;
use std::fmt::Write;

impl Report {
    /// For a terminal: a table per experiment, then what must hold. About 100 columns.
    pub fn to_table(&self) -> String {
        let mut out = String::new();
        let m = &self.machine;
        let _ = writeln!(
            out,
            "{} × {}, {} MiB, {}",
            m.cpus, m.cpu, m.memory_mib, m.kernel
        );
        let title = |row: &Row| (row.experiment.clone(), row.device.clone());
        for rows in self.rows.chunk_by(|a, b| title(a) == title(b)) {
            write_rows(&mut out, rows);
        }
        write_checks(&mut out, &self.checks);
        out
    }
}

fn write_rows(out: &mut String, rows: &[Row]) {
    let _ = writeln!(out, "\n{} on {}", rows[0].experiment, rows[0].device);
    let _ = writeln!(
        out,
        "{:<28} {:<13} {:>9} {:>8} {:>7} {:>9} {:>9} {:>8} {:>6}",
        "", "", "size×jobs", "IOPS", "MiB/s", "mean µs", "p99 µs", "CPU ns", "÷ raw",
    );
    let differs = Differences::among(rows);
    for row in rows {
        let depth = if row.iodepth > 1 {
            format!(" q{}", row.iodepth)
        } else {
            String::new()
        };
        let _ = writeln!(
            out,
            "{:<28} {:<13} {:>9} {:>8} {:>7.0} {:>9.1} {:>9} {:>8} {:>6}",
            clip(&differs.label(row), 28),
            format!("{}{depth}", row.rw),
            format!("{}×{}", size_name(row.block_size), row.numjobs),
            short_count(row.iops),
            row.bw_MiBps,
            row.lat_us.mean,
            row.lat_us
                .p99
                .map_or(String::new(), |us| format!("{us:.1}")),
            row.cpu_ns_per_io
                .map_or(String::new(), |ns| format!("{ns:.0}")),
            row.ratio_to_raw
                .map_or(String::new(), |ratio| format!("{ratio:.3}")),
        );
    }
}

fn write_checks(out: &mut String, checks: &[Check]) {
    if checks.is_empty() {
        return;
    }
    let _ = writeln!(
        out,
        "\n{:<4} {:<70} {:>22}  measured",
        "", "what must hold", "target"
    );
    for check in checks {
        let verdict = match check.pass {
            Some(true) => "PASS",
            Some(false) => "MISS",
            None => "SKIP",
        };
        let what = format!("{}: {}", check.experiment, check.what);
        let _ = writeln!(
            out,
            "{verdict} {what:<70} {:>22}  {}",
            check.target, check.measured
        );
        if let Some(note) = check.note.as_ref().filter(|_| check.pass != Some(true)) {
            let _ = writeln!(out, "     {note}");
        }
    }
}

/// Which properties tell the rows of a group apart.
pub(super) struct Differences {
    policy: bool,
    completion: bool,
    simple: bool,
}

impl Differences {
    pub(super) fn among(rows: &[Row]) -> Differences {
        let differ = |of: fn(&Row) -> &Option<String>| {
            let mut known = rows.iter().filter_map(|row| of(row).as_ref());
            let first = known.next();
            known.any(|other| Some(other) != first)
        };
        Differences {
            policy: differ(|row| &row.policy),
            completion: differ(|row| &row.completion),
            simple: differ(|row| &row.simple),
        }
    }

    /// The target, and for dioxide what sets this row apart.
    pub(super) fn label(&self, row: &Row) -> String {
        let mut parts = Vec::new();
        if let Some(policy) = row.policy.as_ref().filter(|_| self.policy) {
            parts.push(policy_name(policy));
        }
        if let Some(completion) = row.completion.as_ref().filter(|_| self.completion) {
            parts.push(completion.clone());
        }
        if let Some(simple) = row.simple.as_ref().filter(|_| self.simple) {
            parts.push(format!("simple path {simple}"));
        }
        match parts.is_empty() {
            true => row.target.clone(),
            false => parts.join(", "),
        }
    }
}

/// A policy with its other names: `parallel (w/)`.
fn policy_name(id: &str) -> String {
    match id.parse::<Policy>().map(Policy::aliases) {
        Ok([first, ..]) => format!("{id} ({first})"),
        _ => id.into(),
    }
}

/// `7.72k`, `801k`, `2.38M`: three digits.
pub(super) fn short_count(count: f64) -> String {
    let (value, unit) = match count {
        c if c >= 999_500.0 => (c / 1e6, "M"),
        c if c >= 999.5 => (c / 1e3, "k"),
        c => (c, ""),
    };
    match value {
        v if v < 9.995 => format!("{v:.2}{unit}"),
        v if v < 99.95 => format!("{v:.1}{unit}"),
        v => format!("{v:.0}{unit}"),
    }
}

fn clip(text: &str, columns: usize) -> String {
    text.chars().take(columns).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::samples;

    #[test]
    fn counts_have_three_digits() {
        let shown = [
            4.0,
            385.4,
            7_724.0,
            30_921.0,
            801_000.0,
            999_600.0,
            2_382_867.0,
        ]
        .map(short_count);
        assert_eq!(
            shown,
            ["4.00", "385", "7.72k", "30.9k", "801k", "1.00M", "2.38M"]
        );
    }

    #[test]
    fn label_says_what_differs_and_nothing_else() {
        let report = samples::report();
        let differs = Differences::among(&report.rows);
        let labels: Vec<String> = report.rows.iter().map(|row| differs.label(row)).collect();
        assert_eq!(labels, ["raw", "parallel (w/)", "ilock+"]);
    }

    #[test]
    fn table_shows_rows_and_verdicts() {
        let table = samples::report().to_table();
        assert!(
            table.contains("mixed-randrw") && table.contains("ilock+"),
            "{table}"
        );
        assert!(table.contains("PASS mixed-randrw: order"), "{table}");
        assert!(table.contains("SKIP mixed-randrw: rings"), "{table}");
        assert!(
            table.contains("MISS mixed-randrw: e2fsck") && table.contains("why"),
            "{table}"
        );
    }
}
