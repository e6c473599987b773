//! Every example in the help texts and in the README is run, by a shell, on small images.

mod support;

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use support::{command, dioxide};
use tempfile::TempDir;

/// Makes the images and files that examples speak of. What is named in them twice with two meanings has [`BEFORE`].
const SETUP: &str = r#"
set -eu
mkdir -p bin build/rootfs logs tree site target
for name in hostname page.bin one.db two.db build/rootfs/init tree/file; do echo "$name" >$name; done
printf 'ls /\ncat /etc/hostname\n' >commands.txt
printf '#!/bin/sh\necho a line\n' >bin/journalctl
chmod +x bin/journalctl
make() { mke2fs -q -F -t ext4 -d root "$@"; }
mkdir -p root/etc root/var/log root/var/db root/var/cache root/home/me root/usr/bin root/usr/local/bin root/usr/share/zoneinfo
mkdir -p root/bin root/boot root/srv/new root/media root/mnt root/tmp root/dev root/run root/proc
cd root
for name in passwd group shadow hostname machine-id fstab os-release x.conf; do echo "$name" >etc/$name; done
for name in syslog 1.gz 2.gz x.log journal.txt; do echo "$name" >var/log/$name; done
for name in usr/bin/ping usr/local/bin/tool usr/share/zoneinfo/UTC bin/busybox boot/vmlinuz a b log tmp/x; do echo "$name" >$name; done
head -c 100000 /dev/urandom >var/db/data
cp var/db/data data
cd ..
make -J size=4 disk.img 1200M
for image in other root old found; do make $image.img 8M; done
# The first backup is in block 32768, which has to be there.
make -b 4096 -O ^has_journal damaged.img 136M
truncate -s 1M journal.img
make -E offset=1048576 card.img 8M
cp card.img partitioned.img
# Where the host's mke2fs sets no such attributes.
dioxide xattr set user.comment x disk.img:/a
dioxide xattr set security.capability 0x0100000200040000000000000000000000000000 disk.img:/usr/bin/ping
tar -C root -cf rootfs.tar . && zstd -q rootfs.tar
"#;

/// What an example needs besides, by how it begins.
const BEFORE: &[(&str, &str)] = &[
    ("dioxide mkfs", "rm disk.img root.img"),
    ("dioxide pack rootfs ", "cp -r root rootfs"),
    (
        "dioxide rmdir -p",
        "dioxide rm disk.img:/a; dioxide mkdir -p disk.img:/a/b/c",
    ),
    (
        "dioxide mv -t disk.img:/srv/data",
        "dioxide mkdir disk.img:/srv/data",
    ),
    // By hand: mke2fs wants a block device for a journal outside.
    (
        "dioxide journal --replay --journal journal.img",
        r#"rm journal.img
mke2fs -q -F -b 4096 -O journal_dev journal.img 8M
tune2fs -O ^has_journal disk.img >said
uuid=$(dumpe2fs -h journal.img 2>said | awk '/system UUID/ { print $3 }')
printf 'ssv journal_uuid %s\nssv journal_dev 1\nfeature has_journal\n' "$uuid" | debugfs -w -f - disk.img >said 2>&1"#,
    ),
];

/// What is not run here, and why. That it is understood is tested beside the definition of the command line.
const NOT_RUN: &[(&str, &str)] = &[
    ("dioxide bench", "takes too long"),
    ("dioxide crash-test", "takes too long"),
    ("dioxide resize /dev/", "needs a volume"),
    ("dioxide mount", "has tests of its own"),
    ("dioxide umount", "has tests of its own"),
    ("dioxide stats", "has tests of its own"),
];

/// The lines below "Examples:", by the commands that they are of.
fn of_help() -> Vec<String> {
    let top = dioxide(["--help"]).text().to_owned();
    let commands = top.split("\nCommands:\n").nth(1).expect("a list");
    let commands = commands.lines().take_while(|line| !line.is_empty());
    let names = commands.filter_map(|line| line.split_whitespace().next());
    let mut texts = vec![top.clone()];
    for name in names.chain(["gen"]).filter(|name| *name != "help") {
        texts.push(dioxide([name, "--help"]).text().to_owned());
    }
    let mut found = Vec::new();
    for text in texts {
        let (_, examples) = text.rsplit_once("Examples:\n").expect("each has some");
        let lines = examples
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty());
        found.extend(lines.map(str::to_owned));
    }
    found
}

/// Those in its blocks of code.
fn of_readme() -> Vec<String> {
    let readme = include_str!("../../../README.md");
    let blocks = readme.split("```").skip(1).step_by(2);
    let lines = blocks
        .flat_map(str::lines)
        .map(|line| line.strip_prefix("$ ").unwrap_or(line));
    let examples = lines.filter(|line| line.starts_with("dioxide "));
    examples.map(str::to_owned).collect()
}

#[test]
fn quick_start_of_the_readme_is_the_example_that_compiles() {
    let readme = include_str!("../../../README.md");
    let (_, code) = readme.split_once("```rust\n").expect("it has Rust");
    let (code, _) = code.split_once("```").expect("it ends");
    let example = include_str!("../../dioxide/examples/quick_start.rs");
    let (_, body) = example
        .split_once("fn main() -> Result<(), Box<dyn std::error::Error>> {\n")
        .expect("it has a main");
    let (body, _) = body.split_once("    Ok(())\n}").expect("it ends");
    let body: Vec<&str> = body
        .lines()
        .map(|line| line.strip_prefix("    ").unwrap_or(line))
        .collect();
    assert_eq!(code.lines().collect::<Vec<_>>(), body);
}

fn shell(script: &str, dir: &Path) -> Output {
    let ours = Path::new(env!("CARGO_BIN_EXE_dioxide")).parent().unwrap();
    let path = std::env::var("PATH").unwrap();
    let path = format!(
        "{}:{}/bin:{path}:/usr/sbin:/sbin",
        ours.display(),
        dir.display()
    );
    let mut shell = Command::new("bash");
    shell
        .args(["-c", script])
        .current_dir(dir)
        .stdin(Stdio::null());
    shell.env("PATH", path).env("TZ", "UTC").env("LC_ALL", "C");
    shell.output().expect("bash is there")
}

#[test]
fn every_example_does_what_it_says_without_complaint() {
    let home = TempDir::new().unwrap();
    let made = shell(SETUP, home.path());
    assert!(
        made.status.success(),
        "{}",
        String::from_utf8_lossy(&made.stderr)
    );
    let examples: Vec<_> = of_help().into_iter().chain(of_readme()).collect();
    assert!(examples.len() > 130, "{examples:#?}");
    let examples: Vec<_> = examples
        .iter()
        .filter(|example| !NOT_RUN.iter().any(|(begin, _)| example.starts_with(begin)))
        .collect();
    let mut bad = Vec::new();
    std::thread::scope(|scope| {
        let parts = examples.chunks(examples.len().div_ceil(4));
        let run = |part: &[&String]| {
            part.iter()
                .filter_map(|one| complaint(one, home.path()))
                .collect()
        };
        let threads: Vec<_> = parts
            .map(|part| scope.spawn(move || -> Vec<_> { run(part) }))
            .collect();
        bad.extend(
            threads
                .into_iter()
                .flat_map(|thread| thread.join().unwrap()),
        );
    });
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}

/// Runs an example among copies of the files; what is wrong, if anything.
fn complaint(example: &str, files: &Path) -> Option<String> {
    let place = TempDir::new().unwrap();
    let before = BEFORE
        .iter()
        .filter(|(begin, _)| example.starts_with(begin));
    let before: String = before.map(|(_, script)| format!("{script}\n")).collect();
    let words = format!("{before}{example}");
    // Of images those that it names.
    let entries = fs::read_dir(files)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let wanted = entries.filter(|path| {
        let name = path.file_name().unwrap().to_str().unwrap();
        !name.ends_with(".img") || words.contains(name)
    });
    let mut copy = Command::new("cp");
    copy.args(["-a", "--sparse=always"])
        .args(wanted)
        .arg(place.path());
    assert!(copy.status().unwrap().success());
    let ran = shell(&format!("set -eu -o pipefail\n{words}"), place.path());
    let said = String::from_utf8_lossy(&ran.stderr);
    let fine = ran.status.success() && (said.is_empty() || said.contains("warning: "));
    (!fine).then(|| format!("{example}: {}\n{said}", ran.status))
}

#[test]
fn command_without_words_shows_how_it_is_used() {
    let ran = command().output().unwrap();
    assert_eq!(ran.status.code(), Some(2));
    let usage = String::from_utf8(ran.stderr).unwrap();
    assert!(usage.contains("Usage: dioxide <COMMAND>"), "{usage}");
}
