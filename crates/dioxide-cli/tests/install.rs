//! `make install` and `make uninstall`; the man pages and completions that come of it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

fn run(command: &mut Command) -> String {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().expect("it is there");
    let told = String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned();
    assert!(status.success(), "{command:?}: {status}\n{told}");
    told
}

fn make(what: &str, home: &Path) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2);
    let mut make = Command::new("make");
    // Another make may run the tests.
    make.env_remove("MAKEFLAGS").env_remove("MAKELEVEL");
    make.arg("-s").arg(what).current_dir(root.unwrap());
    make.arg(format!("binary={}", env!("CARGO_BIN_EXE_dioxide")));
    make.arg(format!("TARGET={}", home.join("target").display()));
    make.arg(format!("DESTDIR={}", home.join("dest").display()));
    run(make.arg("prefix=/usr"));
}

/// All files below a directory, by their paths in it.
fn files(dir: &Path) -> Vec<String> {
    let found = run(Command::new("find")
        .arg(dir)
        .args(["!", "-type", "d", "-printf", "%P\n"]));
    let mut names: Vec<_> = found.lines().map(str::to_owned).collect();
    names.sort();
    names
}

/// A program that need not be there; says so then.
fn optional(program: &str) -> Option<Command> {
    let there = Command::new(program).arg("--version").output().is_ok();
    if !there {
        eprintln!("skipped: needs {program}");
    }
    there.then(|| Command::new(program))
}

fn check_page(page: &Path) {
    let Some(mut groff) = optional("groff") else {
        return;
    };
    groff.args(["-man", "-Tutf8", "-ww", "-P-cbou"]).arg(page);
    let output = groff.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    // Long words, such as lists of options, do not break.
    let of_lines = |line: &&str| line.contains("break") || line.contains("adjust");
    let said: Vec<_> = said.lines().filter(|line| !of_lines(line)).collect();
    assert!(said.is_empty(), "{}: {said:?}", page.display());
    let text = String::from_utf8(output.stdout).unwrap();
    let name = page.file_stem().unwrap().to_str().unwrap();
    for part in ["NAME", "SYNOPSIS", "OPTIONS", "EXAMPLES"] {
        let there = text.lines().any(|line| line == part);
        // Parts of a command have the examples of the whole.
        assert!(
            there || name.starts_with("dioxide-xattr-"),
            "{name} has no {part}\n{text}"
        );
    }
    let has = |words: &str| assert!(text.contains(words), "{name}: no {words:?}\n{text}");
    match name {
        "dioxide" => ["\n         130  a command that", "dioxide-ls(1)"].map(has),
        "dioxide-explain" => ["--policy <POLICY>", "v6.4: "].map(has),
        "dioxide-ls" => [
            "dioxide ls [OPTIONS] [IMG:/PATH]...",
            "\n         dioxide ls -la ",
        ]
        .map(has),
        _ => return,
    };
}

fn check_completions(share: &Path) {
    let bash = share.join("bash-completion/completions/dioxide");
    let script = r#". "$0" && complete -p dioxide && COMP_WORDS=(dioxide sta) COMP_CWORD=1 && _dioxide dioxide sta dioxide && echo "${COMPREPLY[@]}""#;
    let told = run(Command::new("bash").args(["-c", script]).arg(&bash));
    assert!(told.contains("stat stats"), "{told}");
    let zsh = share.join("zsh/site-functions/_dioxide");
    let fish = share.join("fish/vendor_completions.d/dioxide.fish");
    for (shell, file) in [("bash", bash), ("zsh", zsh), ("fish", fish)] {
        assert!(file.exists(), "{}", file.display());
        let Some(mut command) = optional(shell) else {
            continue;
        };
        run(command.arg("-n").arg(&file));
        let mut command = Command::new(shell);
        let told = match shell {
            "bash" => command.args(["--norc", "-c", BASH]).arg(&file),
            "zsh" => command.args(["-f", "-c", ZSH]).arg(file.parent().unwrap()),
            _ => command.args(["--no-config", "-c", FISH]).arg(&file),
        };
        let told = run(told.args(OFFERED.map(|(line, _)| line)).env("TERM", "dumb"));
        assert_eq!(told.lines().count(), OFFERED.len(), "{shell}: {told}");
        for (told, (line, expected)) in told.lines().zip(OFFERED) {
            let mut offered: Vec<_> = told.split_whitespace().collect();
            offered.sort();
            assert_eq!(offered, expected, "{shell}: {line:?}");
        }
    }
}

/// Lines on which Tab is pressed, and what is offered then: nothing that help texts hide.
const OFFERED: [(&str, &[&str]); 10] = [
    ("dioxide mk", &["mkdir", "mkfs", "mknod"]),
    ("dioxide ge", &[]),
    ("dioxide help mk", &["mkdir", "mkfs", "mknod"]),
    ("dioxide ls --js", &["--json"]),
    ("dioxide mount --f", &["--foreground"]),
    ("dioxide umount --", &["--help", "--lazy"]),
    ("dioxide explain --policy v", &["v5.6", "v6.3", "v6.4"]),
    (
        "dioxide explain --backend ",
        &["auto", "mmap", "pread", "uring"],
    ),
    ("dioxide xattr se", &["set"]),
    ("dioxide bench ro", &["rows"]),
];

/// Each takes the script, or the folder that it is in, and lines; for each of them it prints one with what is offered.
const BASH: &str = r#". "$0"; for line in "$@"; do
    COMP_WORDS=($line) COMPREPLY=()
    [[ $line != *' ' ]] || COMP_WORDS+=("")
    COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
    _dioxide dioxide "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
    echo "${COMPREPLY[@]}"
done"#;
const FISH: &str =
    r#"source $argv[1]; for line in $argv[2..]; echo (complete -C $line | cut -f 1); end"#;
/// A shell in a terminal of its own lists below the line, and shows the line again.
const ZSH: &str = r#"zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell "PS1= zle_bracketed_paste=(); unsetopt promptsp; fpath=(${(q)0} \$fpath); autoload -Uz compinit; compinit -u -D"
zpty -w shell "zstyle ':completion:*' verbose false; bindkey '^I' list-choices"
zpty -w shell "zle-line-init() { print -n EDIT''ING }; zle -N zle-line-init"
zpty -r -m shell said '*EDITING*'
for line; do
    zpty -w -n shell $line$'\t\x15\n'
    zpty -r -m shell said '*EDITING*'
    said=${${${said%EDITING}#*$line}%%$line*}
    print -r -- ${said//[^[:graph:]]/ }
done"#;

#[test]
fn what_make_installs_is_whole_and_goes_again() {
    let home = TempDir::new().unwrap();
    make("install", home.path());
    let dest = home.path().join("dest");
    let at = |path: &str| dest.join(path);
    for helper in ["sbin/mount.fuse.dioxide", "sbin/umount.fuse.dioxide"] {
        assert_eq!(
            fs::read_link(at(helper)).unwrap(),
            PathBuf::from("/usr/bin/dioxide")
        );
    }
    assert!(run(Command::new(at("usr/bin/dioxide")).arg("--version")).starts_with("dioxide "));
    let unit = fs::read_to_string(at("usr/lib/systemd/system/dioxide@.service")).unwrap();
    for line in [
        "ExecStart=/usr/bin/dioxide mount ",
        // Not before the root is mounted to be written to.
        "After=local-fs-pre.target\n",
        "Wants=local-fs-pre.target\n",
    ] {
        assert!(unit.contains(&format!("\n{line}")), "{unit}");
    }
    let installed = files(&dest);
    let (pages, others): (Vec<_>, Vec<_>) = installed
        .iter()
        .partition(|name| name.starts_with("usr/share/man/man1/dioxide"));
    assert!(pages.len() > 40, "{pages:?}");
    pages.iter().for_each(|page| check_page(&at(page)));
    assert_eq!(
        others,
        [
            "sbin/mount.fuse.dioxide",
            "sbin/umount.fuse.dioxide",
            "usr/bin/dioxide",
            "usr/lib/systemd/system/dioxide@.service",
            "usr/share/bash-completion/completions/dioxide",
            "usr/share/doc/dioxide/CHANGELOG.md",
            "usr/share/doc/dioxide/LICENSE-APACHE",
            "usr/share/doc/dioxide/LICENSE-MIT",
            "usr/share/doc/dioxide/README.md",
            "usr/share/doc/dioxide/docs/ARCHITECTURE.md",
            "usr/share/doc/dioxide/docs/DURABILITY.md",
            "usr/share/doc/dioxide/docs/LOCKING.md",
            "usr/share/doc/dioxide/docs/PERFORMANCE.md",
            "usr/share/doc/dioxide/docs/SEMANTICS.md",
            "usr/share/doc/dioxide/docs/TESTING.md",
            "usr/share/doc/dioxide/examples/srv-photos.mount",
            "usr/share/fish/vendor_completions.d/dioxide.fish",
            "usr/share/zsh/site-functions/_dioxide",
        ]
    );
    check_completions(&at("usr/share"));
    make("uninstall", home.path());
    assert_eq!(files(&dest), [""; 0]);
}
