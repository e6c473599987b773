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
        "dioxide" => ["\n         130  ended by", "dioxide-ls(1)"].map(has),
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
        if let Some(mut shell) = optional(shell) {
            run(shell.arg("-n").arg(file));
        }
    }
}

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
    assert!(
        unit.contains("\nExecStart=/usr/bin/dioxide mount "),
        "{unit}"
    );
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
            "usr/share/doc/dioxide/examples/srv-photos.mount",
            "usr/share/fish/vendor_completions.d/dioxide.fish",
            "usr/share/zsh/site-functions/_dioxide",
        ]
    );
    check_completions(&at("usr/share"));
    make("uninstall", home.path());
    assert_eq!(files(&dest), [""; 0]);
}
