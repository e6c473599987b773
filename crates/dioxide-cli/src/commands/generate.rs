//! `dioxide gen`: man pages and completions, for packagers.
//!
//! Of a man page the sections for which the definition of the command line has parts come from clap's generator. The text below
//! the help is set here: that generator would fill its tables and examples like prose.

use crate::args::{Cli, GenArgs, Generated};
use crate::failure::{Failure, Status};
use clap::builder::StyledStr;
use clap::{Arg, Command, CommandFactory, ValueEnum};
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
    let top = without_hidden(&Cli::command());
    for shell in Shell::value_variants() {
        let mut command = top.clone();
        if *shell != Shell::Fish {
            clap_complete::generate_to(*shell, &mut command, "dioxide", &args.dir)?;
            continue;
        }
        // What that generator has for `dioxide help` is never offered.
        let mut script = Vec::new();
        let mut command = command.disable_help_subcommand(true);
        clap_complete::generate(*shell, &mut command, "dioxide", &mut script);
        script.extend(fish_operands(&top).bytes());
        fs::write(args.dir.join("dioxide.fish"), script)?;
    }
    Ok(())
}

/// What is shown in a help text, and nothing else: the generators offer everything.
fn without_hidden(command: &Command) -> Command {
    let hides = command.get_arguments().any(Arg::is_hide_set)
        || command.get_subcommands().any(Command::is_hide_set);
    if !hides {
        return command.clone();
    }
    // The names of a command live as long as the program.
    let name: &'static str = command.get_name().to_owned().leak();
    let args = command.get_arguments().filter(|arg| !arg.is_hide_set());
    let mut kept = Command::new(name)
        .args(args.cloned())
        .subcommands(shown(command).map(without_hidden));
    if command.get_version().is_some() {
        kept = kept.version(env!("CARGO_PKG_VERSION"));
    }
    match command.get_about() {
        Some(about) => kept.about(about.clone()),
        None => kept,
    }
}

/// For fish: the commands as operands of `help`, and operands of commands that are one of a few words.
fn fish_operands(top: &Command) -> String {
    let mut script = String::new();
    let mut offer = |when: &str, word: &str, help: Option<&StyledStr>| {
        let help = help.map(|help| help.to_string().replace('\'', "\\'"));
        let help = help.map_or_else(String::new, |help| format!(" -d '{help}'"));
        let _ = writeln!(
            script,
            "complete -c dioxide -n \"{when}\" -f -a \"{word}\"{help}"
        );
    };
    offer("__fish_dioxide_needs_command", "help", None);
    for command in shown(top) {
        let name = command.get_name();
        offer(
            "__fish_dioxide_using_subcommand help",
            name,
            command.get_about(),
        );
        let when = format!("__fish_dioxide_using_subcommand {name}");
        for value in command.get_positionals().flat_map(Arg::get_possible_values) {
            offer(&when, value.get_name(), value.get_help());
        }
    }
    script
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
