//! An image as SVG, and as a page around it: one file, without scripts, in the reader's light or dark
//! theme.

use dioxide::check::layout::{Cell, GroupMap, ImageMap, Kind};
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
/// Lines of groups, at most: where there are more groups, some share a line.
const MOST_BANDS: usize = 256;
/// Room for the numbers of groups, and between them.
const MARGIN: usize = 90;
const GAP: usize = 4;
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

/// A group, or some that follow each other.
pub struct Band<'a>(&'a [GroupMap]);

/// The groups in at most so many bands.
pub fn bands(map: &ImageMap, most: usize) -> Vec<Band<'_>> {
    let together = map.by_group.len().div_ceil(most).max(1);
    map.by_group.chunks(together).map(Band).collect()
}

impl Band<'_> {
    /// The numbers of its groups.
    pub fn label(&self) -> String {
        let (first, last) = (&self.0[0], &self.0[self.0.len() - 1]);
        groups_words(first.group, last.group + last.groups - 1)
    }

    /// Its cells, `count` of them as one.
    pub fn cells(&self, count: usize) -> Vec<Cell> {
        let cells: Vec<&Cell> = self.0.iter().flat_map(|group| &group.cells).collect();
        let joined = cells.chunks(count).map(|cells| {
            let mut sum = Cell::default();
            cells.iter().for_each(|cell| sum.add(cell));
            sum
        });
        joined.collect()
    }
}

fn groups_words(first: u32, last: u32) -> String {
    match first == last {
        true => format!("group {first}"),
        false => format!("groups {first}-{last}"),
    }
}

/// The picture as a file of its own.
pub fn svg(name: &str, map: &ImageMap) -> String {
    let mut cells = String::new();
    let mut y = LEGEND;
    for band in bands(map, MOST_BANDS) {
        let _ = writeln!(
            cells,
            "<text x=\"0\" y=\"{}\">{}</text>",
            y + SIZE,
            band.label()
        );
        y = write_band(&band, map, y, &mut cells) + GAP;
    }
    let (width, height) = (MARGIN + ROW * SIZE, y);
    let mut out = String::new();
    let _ = writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" role=\"img\">\n\
         <title>{}</title>\n<style>{STYLE}</style>",
        Escaped(name)
    );
    write_legend(&mut out);
    out += &cells;
    out += "</svg>\n";
    out
}

/// Draws the cells of a band from `y` on; where they end.
fn write_band(band: &Band<'_>, map: &ImageMap, y: usize, out: &mut String) -> usize {
    let cells = band.0.iter().flat_map(|group| {
        let numbered = group.cells.iter().enumerate();
        numbered.map(move |(index, cell)| (group, index, cell))
    });
    let mut rows = 0;
    for (place, (group, index, cell)) in cells.enumerate() {
        rows = place / ROW + 1;
        let (x, y) = (MARGIN + place % ROW * SIZE, place / ROW * SIZE + y);
        let class = CLASSES[cell.most() as usize];
        let inner = SIZE - 1;
        let _ = writeln!(
            out,
            "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{inner}\" height=\"{inner}\"><title>{}</title></rect>",
            title(map, group, index, cell)
        );
    }
    y + rows * SIZE
}

fn write_legend(out: &mut String) {
    let step = (MARGIN + ROW * SIZE) / 7;
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
fn title(map: &ImageMap, group: &GroupMap, index: usize, cell: &Cell) -> String {
    let first = group.first_block + index as u64 * map.cell_blocks;
    let last = (first + map.cell_blocks).min(group.first_block + group.blocks) - 1;
    let groups = groups_words(group.group, group.group + group.groups - 1);
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
    out += "</table>\n<h2>Groups</h2>\n<table><tr><th>group</th><th>first block</th>";
    for kind in Kind::ALL {
        let _ = write!(out, "<th>{}</th>", kind.name());
    }
    out += "</tr>\n";
    for group in &map.by_group {
        let numbers = groups_words(group.group, group.group + group.groups - 1);
        let _ = write!(out, "<tr><td>{numbers}</td><td>{}</td>", group.first_block);
        for blocks in group.total.blocks {
            let _ = write!(out, "<td>{blocks}</td>");
        }
        out += "</tr>\n";
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
