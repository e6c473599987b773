//! The report as one self-contained page.

use super::text::{Differences, short_count};
use super::{Check, Report, Row};
use crate::Experiment;
use crate::compare::size_name;
use std::fmt::Write;

const STYLE: &str = include_str!("style.css");

impl Report {
    /// One self-contained HTML page: what must hold, bars beside the mails' figures, all figures.
    /// Needs no script and no network; follows the reader's light or dark theme.
    pub fn to_html(&self) -> String {
        let mut out = String::new();
        let _ = write!(
            out,
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
             <title>dioxide bench</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n\
             <h1>dioxide bench</h1>\n"
        );
        self.write_setting(&mut out);
        write_checks(&mut out, &self.checks);
        for rows in self.rows.chunk_by(|a, b| a.experiment == b.experiment) {
            write_experiment(&mut out, rows);
        }
        write_figures(&mut out, &self.rows);
        out += "</main>\n</body>\n</html>\n";
        out
    }

    fn write_setting(&self, out: &mut String) {
        let m = &self.machine;
        let machine = format!("{} × {}, {} MiB, {}", m.cpus, m.cpu, m.memory_mib, m.kernel);
        let _ = write!(
            out,
            "<dl class=\"setting\">\n<dt>machine</dt><dd>{}</dd>\n",
            Escaped(&machine)
        );
        for (name, value) in &self.config {
            let _ = writeln!(out, "<dt>{}</dt><dd>{}</dd>", Escaped(name), Escaped(value));
        }
        *out += "</dl>\n";
    }
}

fn write_checks(out: &mut String, checks: &[Check]) {
    if checks.is_empty() {
        return;
    }
    *out += "<h2>What must hold</h2>\n<div class=\"wide\"><table>\n\
             <tr><th></th><th>experiment</th><th>what</th><th>target</th><th>measured</th></tr>\n";
    for check in checks {
        let (class, word) = match check.pass {
            Some(true) => ("pass", "✓ holds"),
            Some(false) => ("miss", "✗ missed"),
            None => ("", "– not measured"),
        };
        let note = check.note.as_ref();
        let note = note.map_or(String::new(), |n| {
            format!("<br><small>{}</small>", Escaped(n))
        });
        let _ = writeln!(
            out,
            "<tr><td class=\"{class}\">{word}</td><td>{}</td><td>{}{note}</td><td>{}</td><td>{}</td></tr>",
            Escaped(&check.experiment),
            Escaped(&check.what),
            Escaped(&check.target),
            Escaped(&check.measured),
        );
    }
    *out += "</table></div>\n";
}

fn write_experiment(out: &mut String, rows: &[Row]) {
    let name = &rows[0].experiment;
    let _ = writeln!(out, "<h2>{}</h2>", Escaped(name));
    if let Ok(experiment) = name.parse::<Experiment>() {
        let _ = writeln!(out, "<p>{}.</p>", Escaped(experiment.summary()));
    }
    let differs = Differences::among(rows);
    let place = |row: &Row| (row.rw.clone(), row.block_size, row.iodepth, row.numjobs);
    let mut groups: Vec<Vec<&Row>> = Vec::new();
    // Of a mix, the reads: the writes are within a percent of them, and the mails' too.
    for row in rows.iter().filter(|row| !row.rw.ends_with(":write")) {
        // Where a target runs all that there is, its rows stand together, and not those of a case.
        match groups
            .iter_mut()
            .find(|group| place(group[0]) == place(row))
        {
            Some(group) => group.push(row),
            None => groups.push(vec![row]),
        }
    }
    for group in groups {
        write_group(out, &group, &differs);
    }
}

/// The variants of one case: a bar each for here and for the mail, each scaled to its own longest.
fn write_group(out: &mut String, shown: &[&Row], differs: &Differences) {
    let first = shown[0];
    let of_target = |a: &Row, b: &Row| a.target == b.target && a.device != b.device;
    let on_several = shown.iter().any(|a| shown.iter().any(|b| of_target(a, b)));
    let here = longest(shown.iter().map(|row| Some(row.iops)));
    let mail = longest(shown.iter().map(|row| row.seed_iops));
    let depth = if first.iodepth > 1 {
        format!(", depth {}", first.iodepth)
    } else {
        String::new()
    };
    let threads = if first.numjobs == 1 {
        "thread"
    } else {
        "threads"
    };
    // Names have no size.
    let size = match first.block_size {
        0 => String::new(),
        size => size_name(size) + " ",
    };
    let on = match on_several {
        true => String::new(),
        false => format!(" <small>on {}</small>", Escaped(&first.device)),
    };
    let _ = writeln!(
        out,
        "<h3>{size}{}{depth}, {} {threads}{on}</h3>\n<div class=\"bars\">\n\
         <span></span><b>here</b><b>{}</b>",
        Escaped(&first.rw),
        first.numjobs,
        if mail > 0.0 { "in the mail" } else { "" },
    );
    for row in shown {
        let class = match row.target.as_str() {
            "raw" => "raw",
            "dioxide" => "dioxide",
            _ => "path",
        };
        let spread = format!(
            "{} to {}",
            short_count(row.spread.min),
            short_count(row.spread.max)
        );
        let mut label = differs.label(row);
        if on_several {
            label += &format!(", {}", row.device);
        }
        let _ = write!(out, "<span>{}</span>", Escaped(&label));
        write_bar(out, class, row.iops, here, &spread);
        match row.seed_iops {
            Some(iops) => write_bar(out, "mail", iops, mail, ""),
            None => *out += "<span></span>",
        }
        *out += "\n";
    }
    *out += "</div>\n";
}

fn longest(values: impl Iterator<Item = Option<f64>>) -> f64 {
    values.flatten().fold(0.0, f64::max)
}

fn write_bar(out: &mut String, class: &str, value: f64, longest: f64, title: &str) {
    let percent = if longest > 0.0 {
        100.0 * value / longest
    } else {
        0.0
    };
    let _ = write!(
        out,
        "<span class=\"bar\" title=\"{}\"><i class=\"{class}\" style=\"width:{percent:.2}%\"></i>\
         <em>{}</em></span>",
        Escaped(title),
        short_count(value),
    );
}

fn write_figures(out: &mut String, rows: &[Row]) {
    *out += "<h2>All figures</h2>\n<details>\n<summary>Every row</summary>\n<div class=\"wide\"><table>\n<tr>";
    for head in [
        "experiment",
        "target",
        "policy",
        "completion",
        "simple",
        "engine",
        "rw",
        "size",
        "depth",
        "jobs",
        "IOPS",
        "MiB/s",
        "mean µs",
        "p50",
        "p99",
        "p99.9",
        "CPU ns",
        "÷ raw",
        "spread",
    ] {
        let _ = write!(out, "<th>{head}</th>");
    }
    *out += "</tr>\n";
    for row in rows {
        write_figure(out, row);
    }
    *out += "</table></div>\n</details>\n";
}

fn write_figure(out: &mut String, row: &Row) {
    let told = |figure: Option<f64>, digits: usize| {
        figure.map_or("–".into(), |figure| format!("{figure:.digits$}"))
    };
    let or_dash = |text: &Option<String>| text.clone().unwrap_or_else(|| "–".into());
    let cells = [
        row.experiment.clone(),
        row.target.clone(),
        or_dash(&row.policy),
        or_dash(&row.completion),
        or_dash(&row.simple),
        row.engine.clone(),
        row.rw.clone(),
        size_name(row.block_size),
        row.iodepth.to_string(),
        row.numjobs.to_string(),
        short_count(row.iops),
        format!("{:.0}", row.bw_MiBps),
        format!("{:.1}", row.lat_us.mean),
        told(row.lat_us.p50, 1),
        told(row.lat_us.p99, 1),
        told(row.lat_us.p999, 1),
        told(row.cpu_ns_per_io, 0),
        told(row.ratio_to_raw, 3),
        format!(
            "{}–{}",
            short_count(row.spread.min),
            short_count(row.spread.max)
        ),
    ];
    *out += "<tr>";
    for cell in cells {
        let _ = write!(out, "<td>{}</td>", Escaped(&cell));
    }
    *out += "</tr>\n";
}

/// Text that may hold anything.
struct Escaped<'a>(&'a str);

impl std::fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for c in self.0.chars() {
            match c {
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '&' => f.write_str("&amp;")?,
                '"' => f.write_str("&quot;")?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::report::samples;

    #[test]
    fn page_is_self_contained_and_escaped() {
        let mut report = samples::report();
        report.rows[1].target = "path:<b>&\"".into();
        let page = report.to_html();
        assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"));
        assert!(!page.contains("<b>&") && page.contains("path:&lt;b&gt;&amp;&quot;"));
        for outside in ["http:", "https:", "<script", "<link", "@import", "url("] {
            assert!(!page.contains(outside), "{outside}");
        }
    }

    #[test]
    fn operations_are_groups_of_their_own_whatever_target_comes_between() {
        let mut report = samples::report();
        report.rows.truncate(1);
        let mut row = report.rows.remove(0);
        (row.experiment, row.block_size, row.numjobs) = ("names-1-dirs".into(), 0, 1);
        for target in ["dioxide", "path:/mnt"] {
            for rw in ["create", "stat"] {
                (row.target, row.rw) = (target.into(), rw.into());
                report.rows.push(row.clone());
            }
        }
        let page = report.to_html();
        assert_eq!(page.matches("<h3>").count(), 2, "{page}");
        for heading in ["<h3>create, 1 thread ", "<h3>stat, 1 thread "] {
            assert!(page.contains(heading), "{page}");
        }
    }

    #[test]
    fn devices_are_told_of_each_bar_where_they_differ() {
        let mut report = samples::report();
        report.rows.truncate(1);
        report.rows.push(report.rows[0].clone());
        report.rows[1].device = "pread".into();
        let page = report.to_html();
        assert!(page.contains("<span>raw, mem</span>") && page.contains("<span>raw, pread</span>"));
        assert!(!page.contains("<small>on "), "{page}");
    }

    #[test]
    fn bars_stand_beside_the_mails() {
        let page = samples::report().to_html();
        assert!(
            page.contains("in the mail") && page.contains("30.9k"),
            "{page}"
        );
        assert_eq!(page.matches("class=\"mail\"").count(), 2);
    }
}
