//! `dioxide gen`: man pages and completions, for packagers.
//!
//! Of a man page the sections for which the definition of the command line has parts come from clap's generator. The text below
//! the help is set here: that generator would fill its tables and examples like prose.

use crate::args::{Cli, GenArgs, Generated};
use crate::failure::{Failure, Status};
use clap::{Command, CommandFactory, ValueEnum};
use clap_complete::Shell;
use clap_mangen::Man;
use std::fmt::Write;
use std::fs;
use std::io;
use std::path::Path;

pub fn run(args: &GenArgs) -> Result<Status, Failure> {
    let made = fs::create_dir_all(&args.dir).and_then(|()| match args.what {
        Generated::Man => {
            let mut top = Cli::command().disable_help_subcommand(true);
            top.build();
            man_pages(&top, &args.dir)
        }
        Generated::Completions => completions(args),
    });
    made.map_err(|error| Failure::host(args.dir.display(), &error))?;
    Ok(Status::Fine)
}

fn completions(args: &GenArgs) -> io::Result<()> {
    for shell in Shell::value_variants() {
        clap_complete::generate_to(*shell, &mut Cli::command(), "dioxide", &args.dir)?;
    }
    Ok(())
}

fn shown(command: &Command) -> impl Iterator<Item = &Command> {
    let subcommands = command.get_subcommands();
    subcommands.filter(|subcommand| !subcommand.is_hide_set())
}

/// A page for a command, and one for each of its own commands.
fn man_pages(command: &Command, dir: &Path) -> io::Result<()> {
    shown(command).try_for_each(|subcommand| man_pages(subcommand, dir))?;
    let man = Man::new(command.clone());
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    page.extend(synopsis(command).bytes());
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if shown(command).next().is_some() {
        man.render_subcommands_section(&mut page)?;
    }
    let after = command.get_after_help().map(ToString::to_string);
    page.extend(
        after
            .map_or_else(String::new, |text| sections(&text))
            .bytes(),
    );
    fs::write(dir.join(man.get_filename()), page)
}

fn synopsis(command: &Command) -> String {
    let usage = command.clone().render_usage().to_string();
    let usage = usage.strip_prefix("Usage: ").unwrap_or(&usage);
    format!(".SH SYNOPSIS\n.nf\n{}\n.fi\n", escaped(usage))
}

/// Text as it stands below the help. A line of few words with a colon heads a section; indented lines are a table or examples if there
/// is more than one space between some words, and prose otherwise; the rest is prose.
fn sections(text: &str) -> String {
    let mut page = String::from(".SH NOTES\n");
    let mut examples = false;
    let lines: Vec<_> = text.lines().collect();
    for block in
        lines.chunk_by(|a, b| is_indented(a) == is_indented(b) && !a.is_empty() && !b.is_empty())
    {
        let words = block.join("\n");
        match block {
            [""] => page.push_str(".PP\n"),
            [.., head] if !is_indented(head) && is_heading(head) => {
                let prose = block[..block.len() - 1].join("\n");
                examples = *head == "Examples:";
                let title = head.trim_end_matches(':').to_uppercase();
                let _ = writeln!(page, "{}\n.SH {}", escaped(&prose), escaped(&title));
            }
            [first, ..] if is_indented(first) && (examples || is_table(block)) => {
                let _ = writeln!(page, ".nf\n{}\n.fi", escaped(&words));
            }
            [first, ..] if is_indented(first) => {
                let prose: Vec<_> = block.iter().map(|line| line.trim()).collect();
                let _ = writeln!(page, "{}", escaped(&prose.join("\n")));
            }
            _ => {
                let _ = writeln!(page, "{}", escaped(&words));
            }
        }
    }
    // An empty section has no head.
    page.replace(".SH NOTES\n\n.SH", ".SH")
}

fn is_indented(line: &str) -> bool {
    line.starts_with(' ')
}

fn is_heading(line: &str) -> bool {
    const MOST_WORDS: usize = 2;
    line.ends_with(':') && line.split(' ').count() <= MOST_WORDS
}

fn is_table(block: &[&str]) -> bool {
    block.iter().any(|line| line.trim_start().contains("  "))
}

/// As it is, in the language of man pages.
fn escaped(text: &str) -> String {
    let lines = text.lines().map(|line| {
        let line = line
            .replace('\\', "\\e")
            .replace('-', "\\-")
            .replace('\'', "\\(aq")
            .replace('^', "\\(ha")
            .replace('~', "\\(ti");
        match line.starts_with('.') {
            true => format!("\\&{line}"),
            false => line,
        }
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_below_the_help_becomes_sections() {
        let text = "Some prose\nof two lines.\n\nOptions:\n  a, b   as\n         there\n\nExit status:\n  prose\n  goes on\n\n\
                    Examples:\n  dioxide ls -l '.x'\n  dioxide";
        let page = ".SH NOTES\nSome prose\nof two lines.\n.PP\n\n.SH OPTIONS\n.nf\n  a, b   as\n         there\n.fi\n.PP\n\n.SH EXIT STATUS\n\
                    prose\ngoes on\n.PP\n\n.SH EXAMPLES\n.nf\n  dioxide ls \\-l \\(aq.x\\(aq\n  dioxide\n.fi\n";
        assert_eq!(sections(text), page);
        assert!(sections("Examples:\n  dioxide").starts_with(".SH EXAMPLES\n"));
    }
}
