//! The one definition of the command line: parsing, help, man pages and completions come from it.

mod bench;
mod change;
mod check;
mod copy;
mod crash_test;
mod find;
mod layout;
mod look;
mod mkfs;
mod mode;
mod mount;
mod names;
mod new;
mod owner;
mod pack;
mod resize;
mod shell;
mod size;
mod time;
mod xattr;

pub use bench::BenchArgs;
pub use change::{
    ChmodArgs, ChownArgs, FallocateArgs, SyncArgs, TouchArgs, TruncateArgs, WriteArgs,
};
pub use check::CheckArgs;
pub use copy::{CpArgs, MvArgs};
pub use crash_test::CrashTestArgs;
pub use find::FindArgs;
pub use layout::{JournalArgs, MapArgs};
pub use look::{CatArgs, DfArgs, DuArgs, LsArgs, StatArgs, TreeArgs};
pub use mkfs::{FsArgs, MkfsArgs, Uuid, source_date_epoch};
pub use mode::{ModeChange, umask};
pub use mount::{MountArgs, StatsArgs, UmountArgs};
pub use names::{LnArgs, MkdirArgs, MknodArgs, RmArgs, RmdirArgs};
pub use new::NewFiles;
pub use owner::Owner;
pub use pack::{PackArgs, UnpackArgs};
pub use resize::{ResizeArgs, TrimArgs};
pub use shell::ShellArgs;
pub use size::{SizeChange, parse_size};
pub use time::parse_time;
pub use xattr::{
    Encoding, Value, XattrArgs, XattrCommand, XattrGetArgs, XattrListArgs, XattrRemoveArgs,
    XattrRestoreArgs, XattrSetArgs, unescape,
};

use crate::address::Operand;
use crate::progress::waiting;
use clap::builder::PossibleValuesParser;
use clap::builder::TypedValueParser;
use clap::{Args, CommandFactory, Parser, Subcommand};
use dioxide::block::{self, Device};
use dioxide::{Backend, MountOptions, Policy};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const AFTER: &str = "\
Addresses:
  A file inside an image is written IMG:/path. The first ':/' parts the two; in an image name
  that contains one, write '\\:' for the colon (and '\\\\' for a backslash).
  The path may be a pattern of *, ?, [a-z], [[:digit:]] and **, in quotes for the shell's sake:
  'IMG:/var/log/*.gz'. Of each name between slashes: one that is there just as it is written wins;
  in a pattern '\\' before a character takes it literally.

Sizes:
  4096, 4k, 4KiB, 1M, 2G and so on count in powers of 1024; kB, MB, GB in powers of 1000.

JSON:
  Where --json is, it prints one value: an array if several files or images can be named, or files
  in an image are changed, else an object; the help of a command tells where it is otherwise. A
  file in an image is \"image\" and \"path\", one on the host \"path\" alone; where a copy or a link
  leads is \"to_image\" and \"to\". Names, paths and values are strings. Of one that is not UTF-8,
  what is not is replaced, and KEY_hex beside KEY has the exact bytes (path_hex, name_hex). Sizes
  are in bytes. What fails is told on standard error and by the exit status: an array is without it
  (that of check has \"error\"), and where it should have been an object, or the command fails as a
  whole, as by bad usage, nothing is printed.

Exit status:
  0    all is well
  1    a file is missing from an image, or a test finds damage (check has the statuses of e2fsck)
  2    bad usage, or an image or file that cannot be read or written
  130  a command that changes or copies something was ended by Ctrl-C, SIGTERM or a closed
       terminal, after the operation under way; images are closed cleanly. Others end by the
       signal itself

Examples:
  dioxide info disk.img
  dioxide ls -l disk.img:/etc
  dioxide cp -a disk.img:/etc copy-of-etc
  dioxide cp -r build/. disk.img:/srv
  dioxide find disk.img:/ -name '*.conf' -mtime -7
  dioxide shell disk.img
  dioxide explain disk.img:/var/db/data --offset 2k --len 2k --write
  dioxide bench --quick";

/// Looks into ext4 images and changes them, explains direct I/O, and measures it.
#[derive(Debug, Parser)]
#[command(
    name = "dioxide",
    version,
    after_help = AFTER,
    arg_required_else_help = true,
    args_override_self = true
)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

/// The definition of [`Cli`]; prose below a help text breaks where the terminal ends.
pub fn command() -> clap::Command {
    flowing(Cli::command())
}

fn flowing(command: clap::Command) -> clap::Command {
    let command = command.mut_subcommands(flowing);
    match command.get_after_help().map(ToString::to_string) {
        Some(text) => command.after_help(flowed(&text)),
        None => command,
    }
}

/// Each paragraph as one line. Tables and examples are indented, and stay.
fn flowed(text: &str) -> String {
    let is_prose = |line: &str| !line.is_empty() && !line.starts_with(' ');
    let mut lines: Vec<String> = Vec::new();
    for line in text.lines() {
        match lines.last_mut() {
            Some(last) if is_prose(last) && !last.ends_with(':') && is_prose(line) => {
                last.push(' ');
                last.push_str(line);
            }
            _ => lines.push(line.to_owned()),
        }
    }
    lines.join("\n")
}

// One line for each, sorted: help lists them so.
#[derive(Debug, Subcommand)]
pub enum Command {
    Bench(Box<BenchArgs>),
    Cat(CatArgs),
    Check(CheckArgs),
    Chmod(ChmodArgs),
    Chown(ChownArgs),
    Cp(CpArgs),
    CrashTest(CrashTestArgs),
    Df(DfArgs),
    Du(DuArgs),
    Explain(ExplainArgs),
    Extents(ExtentsArgs),
    Fallocate(FallocateArgs),
    Find(FindArgs),
    Gen(GenArgs),
    Info(InfoArgs),
    Journal(JournalArgs),
    Ln(LnArgs),
    Ls(LsArgs),
    Map(MapArgs),
    Mkdir(MkdirArgs),
    Mkfs(Box<MkfsArgs>),
    Mknod(MknodArgs),
    Mount(MountArgs),
    Mv(MvArgs),
    Pack(Box<PackArgs>),
    Resize(ResizeArgs),
    Rm(RmArgs),
    Rmdir(RmdirArgs),
    Shell(ShellArgs),
    Stat(StatArgs),
    Stats(StatsArgs),
    Sync(SyncArgs),
    Touch(TouchArgs),
    Tree(TreeArgs),
    Trim(TrimArgs),
    Truncate(TruncateArgs),
    Umount(UmountArgs),
    Unpack(Box<UnpackArgs>),
    Write(WriteArgs),
    Xattr(XattrArgs),
}

/// Above options that say how an image is opened.
const IMAGE_OPTIONS: &str = "Image options";

/// How to open an image.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = IMAGE_OPTIONS)]
pub struct ImageArgs {
    /// How bytes move between memory and the image
    #[arg(long, value_name = "HOW", default_value = "auto", value_parser = backend_parser())]
    pub backend: Backend,
    /// Where the file system begins in the image: the start of a partition, say
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = parse_size)]
    pub img_offset: u64,
    /// Use the backup superblock at this block, counted in KiB as in mount's sb= (131072 with blocks of 4 KiB, 8193 with 1 KiB)
    #[arg(long, value_name = "KIB")]
    pub sb: Option<u64>,
    #[command(flatten)]
    pub journal: JournalPlace,
}

/// Where a journal is.
#[derive(Args, Clone, Debug)]
pub struct JournalPlace {
    /// The device of the journal, or an image of it, where the file system has its journal outside
    #[arg(id = "journal_place", long = "journal", value_name = "FILE")]
    path: Option<PathBuf>,
}

impl JournalPlace {
    /// What was named.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// A mount that finds it.
    pub fn set(&self, options: MountOptions) -> MountOptions {
        match &self.path {
            Some(path) => options.journal_path(path),
            None => options,
        }
    }

    /// Opens it for reading.
    pub fn open(&self, backend: Backend) -> block::Result<Option<Arc<dyn Device>>> {
        let options = block::file::FileOptions {
            backend,
            ..block::file::FileOptions::default()
        };
        let path = self.path.as_ref();
        path.map(|path| dioxide::open_image(path, &options))
            .transpose()
    }
}

impl ImageArgs {
    /// Options of a mount that only looks.
    pub fn mount_options(&self) -> MountOptions {
        let options = MountOptions::new()
            .read_only(true)
            .backend(self.backend)
            .img_offset(self.img_offset)
            .on_wait(waiting);
        let options = self.journal.set(options);
        match self.sb {
            Some(block_1k) => options.superblock_at(block_1k),
            None => options,
        }
    }
}

/// Tells what file system an image holds: the superblock in words, features by name
#[derive(Args, Debug)]
#[command(after_help = "\
Exits with 1 if dioxide cannot open the file system; the superblock is shown all the same.

Examples:
  dioxide info disk.img
  dioxide info --img-offset 1M --json partitioned.img
  dioxide info --sb 131072 damaged.img")]
pub struct InfoArgs {
    /// Image file or block device
    #[arg(value_name = "IMG")]
    pub image: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub open: ImageArgs,
}

/// Tells where files lie: like filefrag -v, with a picture
#[derive(Args, Debug)]
#[command(after_help = "\
Counts in file-system blocks. Neighbours that touch, in the file and on the device, are one line,
however many extents the disk records. `expected` is where a line would begin had the file gone on
without a jump. --json prints an array with an element for each operand.

Examples:
  dioxide extents disk.img:/var/db/data
  dioxide extents --html data.html disk.img:/var/db/data
  dioxide extents --json disk.img:/a disk.img:/b")]
pub struct ExtentsArgs {
    /// Regular files
    #[arg(value_name = "IMG:/PATH", required = true, value_parser = Operand::parser())]
    pub paths: Vec<Operand>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Write a picture of one file; - is standard output
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Write a page with a picture of each file; - is standard output
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    #[command(flatten)]
    pub open: ImageArgs,
}

/// Tells what the engine does with a direct-I/O request, and why
#[derive(Args, Debug)]
#[command(after_help = "\
With --policy: the decision, step by step. Without: one line for each policy. No data is read or
written. --json prints one object with --policy, and an array without.

Examples:
  dioxide explain disk.img:/var/db/data --len 4k
  dioxide explain disk.img:/var/db/data --offset 2k --len 2k --write
  dioxide explain disk.img:/var/db/data --offset 2k --len 2k --write --policy v6.2
  dioxide explain disk.img:/var/db/data --atomic --len 4k --policy best")]
pub struct ExplainArgs {
    /// Regular file
    #[arg(value_name = "IMG:/PATH", value_parser = Operand::parser())]
    pub path: Operand,
    /// First byte of the request
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = parse_size)]
    pub offset: u64,
    /// Length of the request
    #[arg(long, value_name = "BYTES", default_value = "4k", value_parser = parse_len)]
    pub len: usize,
    /// A write; otherwise a read
    #[arg(long)]
    pub write: bool,
    /// A write of which a crash leaves all or nothing, as by dioxide write --atomic; the device must promise that
    #[arg(long)]
    pub atomic: bool,
    /// Whose rules decide
    #[arg(long, value_name = "POLICY", value_parser = policy_parser())]
    pub policy: Option<Policy>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub open: ImageArgs,
}

/// Generates man pages and shell completions
#[derive(Args, Debug)]
#[command(
    hide = true,
    after_help = "Examples:\n  dioxide gen man target/man\n  dioxide gen completions target/completions"
)]
pub struct GenArgs {
    /// What to generate
    #[arg(value_enum)]
    pub what: Generated,
    /// Directory for the files; made if it is not there
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
}

/// What can be generated from the definition of the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Generated {
    Man,
    Completions,
}

fn backend_parser() -> impl TypedValueParser<Value = Backend> {
    PossibleValuesParser::new(["auto", "uring", "pread", "mmap"]).try_map(|name| name.parse())
}

/// Every policy by each of its names.
fn policy_parser() -> impl TypedValueParser<Value = Policy> {
    use clap::builder::PossibleValue;
    let values = Policy::ALL.map(|policy| {
        let also = match policy.aliases() {
            [] => String::new(),
            aliases => format!(" (also {})", aliases.join(", ")),
        };
        PossibleValue::new(policy.id())
            .aliases(policy.aliases().iter().copied())
            .help(format!("{}{also}", policy.summary()))
    });
    PossibleValuesParser::new(values).try_map(|name| name.parse::<Policy>())
}

fn parse_len(word: &str) -> Result<usize, String> {
    const MOST: u64 = 1 << 31;
    match parse_size(word)? {
        len if len <= MOST => Ok(len as usize),
        _ => Err("a request is at most 2 GiB".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn prose_of_a_help_text_becomes_lines_and_the_rest_stays() {
        let text = "Some prose\nof two lines.\n\nA list:\n  a   one\n  b   two\nMore\nprose\n\nExamples:\n  dioxide";
        let lines = "Some prose of two lines.\n\nA list:\n  a   one\n  b   two\nMore prose\n\nExamples:\n  dioxide";
        assert_eq!(flowed(text), lines);
    }

    // What is indented is not flowed: a longer line would go on at the left.
    #[test]
    fn what_is_indented_below_a_help_text_fits_a_hundred_columns() {
        fn all(command: &clap::Command) -> Vec<String> {
            let after = command.get_after_help().map(ToString::to_string);
            let subs = command.get_subcommands().flat_map(all);
            after.into_iter().chain(subs).collect()
        }
        for text in all(&Cli::command()) {
            let indented = text.lines().filter(|line| line.starts_with(' '));
            for line in indented {
                assert!(line.chars().count() <= 100, "{line}");
            }
        }
    }

    #[test]
    fn every_subcommand_shows_an_example_of_itself() {
        for sub in Cli::command().get_subcommands() {
            let after = sub
                .get_after_help()
                .map(ToString::to_string)
                .unwrap_or_default();
            let example = format!("\n  dioxide {} ", sub.get_name());
            assert!(
                after.contains(&example),
                "{} has no example",
                sub.get_name()
            );
        }
    }

    /// The words of each command in a line for a shell, as far as examples go.
    fn commands(line: &str) -> Vec<Vec<String>> {
        let mut commands = vec![Vec::new()];
        let mut word: Option<String> = None;
        let mut quoted = false;
        for char in line.chars().chain([' ']) {
            match char {
                '\'' => {
                    quoted = !quoted;
                    word.get_or_insert_default();
                }
                ' ' | ';' | '|' if !quoted => {
                    let words = commands.last_mut().unwrap();
                    words.extend(word.take().filter(|word| !word.starts_with(['<', '>'])));
                    if char != ' ' {
                        commands.push(Vec::new());
                    }
                }
                char => word.get_or_insert_default().push(char),
            }
        }
        commands
    }

    #[test]
    fn every_example_is_understood() {
        let top = Cli::command();
        let mut count = 0;
        for command in top.get_subcommands().chain([&top]) {
            let after = command.get_after_help().unwrap().to_string();
            let (_, examples) = after.rsplit_once("Examples:\n").unwrap();
            for words in examples.lines().flat_map(commands) {
                if words.first().is_some_and(|word| word == "dioxide") {
                    let understood = Cli::try_parse_from(&words);
                    assert!(understood.is_ok(), "{words:?}: {}", understood.unwrap_err());
                    count += 1;
                }
            }
        }
        assert!(count > 130, "{count}");
    }

    #[test]
    fn option_that_is_given_again_is_given_once_and_its_last_value_counts() {
        let parsed = |line: &str| Cli::try_parse_from(line.split(' ')).unwrap().command;
        for line in ["ls -ll i:/", "rm -f -f i:/x", "cp -Rr i:/a b"] {
            parsed(&format!("dioxide {line}"));
        }
        let Command::Stat(args) = parsed("dioxide stat -c A i:/x -c B i:/y") else {
            panic!("not stat")
        };
        assert_eq!((args.format.as_deref(), args.paths.len()), (Some("B"), 2));
        let Command::Cp(args) = parsed("dioxide cp -t i:/a -t i:/b c") else {
            panic!("not cp")
        };
        assert_eq!(args.target_directory.len(), 2);
        let Command::Shell(args) = parsed("dioxide shell -c pwd -c ls i") else {
            panic!("not shell")
        };
        assert_eq!(args.command, ["pwd", "ls"]);
    }

    #[test]
    fn every_policy_is_taken_by_each_of_its_names() {
        for policy in Policy::ALL {
            for name in policy.aliases().iter().chain([&policy.id()]) {
                let words = ["dioxide", "explain", "i:/f", "--policy", name];
                let cli = Cli::try_parse_from(words).unwrap();
                let Command::Explain(args) = cli.command else {
                    panic!("not explain")
                };
                assert_eq!(args.policy, Some(policy));
            }
        }
    }
}
