//! An image as SVG, and as a page around it: one file, without scripts, in the reader's light or dark
//! theme.

use dioxide::check::layout::{Cell, ImageMap, Kind};
use std::fmt::Write;

/// Names of the colours in the style, in the order of [`Kind::ALL`].
const CLASSES: [&str; 7] = ["super", "bitmap", "table", "journal", "dir", "data", "free"];
const STYLE: &str = "\
:root{color-scheme:light dark;--paper:#fff;--ink:#1d2430;--super:#b91c1c;--bitmap:#a21caf;--table:#0e7490;--journal:#d97706;--dir:#15803d;--data:#2563eb;--free:#e5e9f0}\n\
@media(prefers-color-scheme:dark){:root{--paper:#12161c;--ink:#e4e8ee;--super:#f87171;--bitmap:#e879f9;--table:#22d3ee;--journal:#f59e0b;--dir:#4ade80;--data:#60a5fa;--free:#2b323d}}\n\
.super{fill:var(--super)}.bitmap{fill:var(--bitmap)}.table{fill:var(--table)}.journal{fill:var(--journal)}.dir{fill:var(--dir)}.data{fill:var(--data)}.free{fill:var(--free)}text{fill:var(--ink);font:13px system-ui,sans-serif}\n";
const PAGE: &str = "\
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,sans-serif}main{max-width:62rem;margin:0 auto;padding:2rem 1.25rem}svg{width:100%;height:auto}table{border-collapse:collapse}td,th{text-align:right;padding:.2rem 1rem .2rem 0}td:first-child,th:first-child{text-align:left}\n";
/// Cells in a row, and the size of one.
const ROW: usize = 96;
const SIZE: usize = 10;
/// Room for the legend.
const LEGEND: usize = 30;

/// Text that may hold anything, as XML.
pub struct Escaped<'a>(pub &'a str);

impl std::fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.chars().try_for_each(|c| match c {
            '&' => f.write_str("&amp;"),
            '<' => f.write_str("&lt;"),
            '>' => f.write_str("&gt;"),
            '"' => f.write_str("&quot;"),
            c if c.is_control() => f.write_char(' '),
            c => f.write_char(c),
        })
    }
}

/// Cells that follow each other as one.
pub fn join(cells: &[Cell], count: usize) -> Vec<Cell> {
    let joined = cells.chunks(count).map(|cells| {
        let mut sum = Cell::default();
        for cell in cells {
            for (to, from) in sum.blocks.iter_mut().zip(cell.blocks) {
                *to += from;
            }
        }
        sum
    });
    joined.collect()
}

/// The picture as a file of its own.
pub fn svg(name: &str, map: &ImageMap) -> String {
    let rows = map.cells.len().div_ceil(ROW);
    let (width, height) = (ROW * SIZE, rows * SIZE + LEGEND);
    let mut out = String::new();
    let _ = writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" role=\"img\">\n\
         <title>{}</title>\n<style>{STYLE}</style>",
        Escaped(name)
    );
    write_legend(&mut out);
    for (index, cell) in map.cells.iter().enumerate() {
        let (x, y) = (index % ROW * SIZE, index / ROW * SIZE + LEGEND);
        let class = CLASSES[cell.most() as usize];
        let inner = SIZE - 1;
        let _ = writeln!(
            out,
            "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{inner}\" height=\"{inner}\"><title>{}</title></rect>",
            title(map, index, cell)
        );
    }
    out += "</svg>\n";
    out
}

fn write_legend(out: &mut String) {
    let step = ROW * SIZE / 7;
    for (index, (kind, class)) in Kind::ALL.into_iter().zip(CLASSES).enumerate() {
        let x = index * step;
        let name = kind.name().replace("superblock and ", "");
        let _ = writeln!(
            out,
            "<rect class=\"{class}\" x=\"{x}\" y=\"4\" width=\"14\" height=\"14\"/><text x=\"{}\" y=\"16\">{name}</text>",
            x + 20
        );
    }
}

/// What a cell shows when it is pointed at.
fn title(map: &ImageMap, index: usize, cell: &Cell) -> String {
    let first = index as u64 * map.cell_blocks;
    let last = (first + map.cell_blocks).min(map.blocks).saturating_sub(1);
    let per_group = u64::from(map.blocks_per_group).max(1);
    let (from, to) = (first / per_group, last / per_group);
    let groups = match from == to {
        true => format!("group {from}"),
        false => format!("groups {from} to {to}"),
    };
    let mut text = format!("{groups}, blocks {first} to {last}");
    for (kind, blocks) in Kind::ALL.into_iter().zip(cell.blocks) {
        if blocks > 0 {
            let _ = write!(text, "; {}: {blocks}", kind.name());
        }
    }
    text
}

/// A page with the picture and the figures.
pub fn html(name: &str, map: &ImageMap) -> String {
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>{0}</title>\n\
         <style>{STYLE}{PAGE}</style>\n</head>\n<body><main>\n<h1>{0}</h1>\n\
         <p>{1} blocks of {2} bytes in {3} groups; a square is {4} blocks.</p>\n{5}",
        Escaped(name),
        map.blocks,
        map.block_size,
        map.groups,
        map.cell_blocks,
        svg(name, map)
    );
    out += "<h2>Use</h2>\n<table><tr><th>what</th><th>blocks</th></tr>\n";
    for (kind, blocks) in Kind::ALL.into_iter().zip(map.total.blocks) {
        let _ = writeln!(out, "<tr><td>{}</td><td>{blocks}</td></tr>", kind.name());
    }
    out += "</table>\n<h2>Free runs</h2>\n<table><tr><th>length in blocks</th><th>runs</th><th>blocks</th></tr>\n";
    for size in &map.free_runs {
        let (least, most) = (size.least_blocks, size.least_blocks * 2 - 1);
        let _ = writeln!(
            out,
            "<tr><td>{least} to {most}</td><td>{}</td><td>{}</td></tr>",
            size.runs, size.blocks
        );
    }
    out += "</table>\n</main></body>\n</html>\n";
    out
}
