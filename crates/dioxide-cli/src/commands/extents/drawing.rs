//! Files as SVG or a page: each extent by its place in the file, from left to right, and on the device,
//! from top to bottom.

use super::Told;
use crate::commands::map::picture::Escaped;
use std::fmt::Write;

const STYLE: &str = "\
:root{color-scheme:light dark;--paper:#fff;--ink:#1d2430;--line:#dde2ea;--written:#2563eb;--unwritten:#d97706}\n\
@media(prefers-color-scheme:dark){:root{--paper:#12161c;--ink:#e4e8ee;--line:#2b323d;--written:#60a5fa;--unwritten:#f59e0b}}\n\
.written{fill:var(--written)}.unwritten{fill:var(--unwritten)}.frame{fill:none;stroke:var(--line)}text{fill:var(--ink);font:13px system-ui,sans-serif}\n";
const PAGE: &str = "\
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,sans-serif}main{max-width:62rem;margin:0 auto;padding:2rem 1.25rem}svg{width:100%;height:auto}\n";
const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 360.0;
const TOP: f64 = 30.0;

/// The file as a picture of its own.
pub fn svg(file: &Told) -> String {
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {}\" role=\"img\">\n<title>{}</title>\n\
         <style>{STYLE}</style>\n<rect class=\"written\" x=\"0\" y=\"4\" width=\"14\" height=\"14\"/><text x=\"20\" y=\"16\">written</text>\n\
         <rect class=\"unwritten\" x=\"90\" y=\"4\" width=\"14\" height=\"14\"/><text x=\"110\" y=\"16\">unwritten</text>\n\
         <text x=\"220\" y=\"16\">→ in the file, ↓ on the device</text>\n\
         <rect class=\"frame\" x=\"0\" y=\"{TOP}\" width=\"{WIDTH}\" height=\"{HEIGHT}\"/>\n",
        TOP + HEIGHT,
        Escaped(&file.path)
    );
    let pieces = &file.extents;
    let logical = pieces
        .iter()
        .map(|piece| piece.logical + piece.length)
        .max();
    let first = pieces.iter().map(|piece| piece.physical).min().unwrap_or(0);
    let end = pieces
        .iter()
        .map(|piece| piece.physical + piece.length)
        .max();
    let across = WIDTH / logical.unwrap_or(1).max(1) as f64;
    let down = HEIGHT / end.unwrap_or(1).saturating_sub(first).max(1) as f64;
    for piece in pieces {
        let class = if piece.unwritten {
            "unwritten"
        } else {
            "written"
        };
        let _ = writeln!(
            out,
            "<rect class=\"{class}\" x=\"{:.2}\" y=\"{:.2}\" width=\"{:.2}\" height=\"{:.2}\"><title>blocks {} to {} at {} to {}</title></rect>",
            piece.logical as f64 * across,
            TOP + (piece.physical - first) as f64 * down,
            (piece.length as f64 * across).max(1.0),
            (piece.length as f64 * down).max(1.0),
            piece.logical,
            piece.logical + piece.length - 1,
            piece.physical,
            piece.physical + piece.length - 1,
        );
    }
    out += "</svg>\n";
    out
}

/// A page with the files one below the other.
pub fn html(files: &[Told]) -> String {
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>extents</title>\n\
         <style>{STYLE}{PAGE}</style>\n</head>\n<body><main>\n"
    );
    for file in files {
        let _ = write!(
            out,
            "<h2>{}</h2>\n<p>{} bytes, {} extents</p>\n{}",
            Escaped(&file.path),
            file.size,
            file.extents.len(),
            svg(file)
        );
    }
    out += "</main></body>\n</html>\n";
    out
}
