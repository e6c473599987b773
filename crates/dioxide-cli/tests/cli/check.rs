//! `check`, `journal` and `map` on images.

use crate::support::{Fixture, Ran, closed_pipe, command, dioxide, full_device};
use dioxide::{Fs, MountOptions, OpenOptions};
use dioxide_testkit::{Dir, Image, LoopDevice, Mount, e2fsck_clean, need_root};
use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

#[test]
fn check_of_clean_image_says_so_and_exits_0() {
    let disk = Fixture::new();
    let text = dioxide(["check", &disk.name()]).text().to_owned();
    assert!(
        text.contains(": clean, ") && text.lines().count() == 1,
        "{text}"
    );
    let told = dioxide(["check", "--json", &disk.name()]).json();
    assert_eq!(told[0]["clean"], true);
    assert_eq!(told[0]["findings"].as_array().map(Vec::len), Some(0));
}

#[test]
fn check_of_damaged_image_tells_code_place_and_pass_and_exits_4() {
    let disk = Fixture::new();
    disk.debugfs(&["sif list/one links_count 5", "sif hello links_count 7"]);
    let ran = dioxide(["check", "--json", &disk.name()]);
    assert_eq!(ran.status, Some(4));
    let told: serde_json::Value = serde_json::from_slice(&ran.stdout).unwrap();
    let findings = told[0]["findings"].as_array().unwrap();
    let hello = findings
        .iter()
        .find(|f| f["place"]["path"] == "/hello")
        .unwrap();
    assert_eq!(
        (&hello["code"], &hello["pass"]),
        (&"link-count".into(), &"4".into())
    );
    assert_eq!(hello["severity"], "error");
    assert_eq!(told[0]["exit_status"], 4);
}

#[test]
fn check_without_image_exits_16_and_of_missing_image_8() {
    assert_eq!(dioxide(["check"]).status, Some(16));
    assert_eq!(dioxide(["check", "--nonsense"]).status, Some(16));
    let ran = dioxide(["check", "/nowhere.img"]);
    assert_eq!(ran.status, Some(8));
    assert!(ran.stderr.contains("/nowhere.img"), "{}", ran.stderr);
    // Programs are told of each image.
    let disk = Fixture::new();
    let ran = dioxide(["check", "--json", "/nowhere.img", &disk.name()]);
    assert_eq!(ran.status, Some(8));
    let told: serde_json::Value = serde_json::from_slice(&ran.stdout).unwrap();
    assert_eq!(told[0]["image"], "/nowhere.img");
    assert_eq!(
        (&told[0]["clean"], &told[0]["exit_status"]),
        (&false.into(), &8.into())
    );
    let error = told[0]["error"].as_str().unwrap();
    assert!(error.contains("No such file"), "{error}");
    assert_eq!(told[1]["clean"], true);
}

#[test]
fn check_whose_report_nobody_takes_has_the_status_of_what_it_found() {
    let (clean, damaged) = (Fixture::new(), Fixture::new());
    damaged.debugfs(&["sif hello links_count 7"]);
    let run = |images: &[&Fixture], json: bool, out: Stdio| {
        let output = command()
            .arg("check")
            .args(json.then_some("--json"))
            .args(images.iter().map(|image| image.name()))
            .stdout(out)
            .output()
            .unwrap();
        let told = String::from_utf8(output.stderr).unwrap();
        (output.status.code().unwrap(), told)
    };
    for json in [false, true] {
        for (images, status) in [(vec![&clean], 0), (vec![&clean, &damaged], 4)] {
            assert_eq!(run(&images, json, closed_pipe()), (status, String::new()));
            let (told_status, told) = run(&images, json, full_device());
            assert_eq!(told_status, status | 8);
            let begin = "dioxide: check: standard output: No space left";
            assert!(
                told.starts_with(begin) && told.lines().count() == 1,
                "{told}"
            );
        }
    }
    let mut listing = command();
    listing
        .args(["check", "--list-codes"])
        .stdout(full_device());
    assert_eq!(listing.output().unwrap().status.code(), Some(8));
}

#[test]
fn status_counts_whoever_reads() {
    let disk = Fixture::new();
    let mut missing = command();
    missing.args(["ls", &disk.at("/missing"), &disk.at("/hello")]);
    assert_eq!(
        missing
            .stdout(closed_pipe())
            .output()
            .unwrap()
            .status
            .code(),
        Some(1)
    );
}

#[test]
fn check_lists_codes_with_their_meaning() {
    let ran = dioxide(["check", "--list-codes"]);
    assert!(ran.text().lines().count() > 60);
    assert!(
        ran.text()
            .contains("multiply-claimed         1B error Blocks have several owners.")
    );
    let told = dioxide(["check", "--list-codes", "--json"]).json();
    let told = told.as_array().unwrap();
    assert_eq!(told.len(), ran.text().lines().count());
    let code = told.iter().find(|code| code["code"] == "multiply-claimed");
    assert_eq!(code.unwrap()["pass"], "1B");
}

#[test]
fn journal_that_is_clean_is_told_so() {
    let disk = Fixture::new();
    let ran = dioxide(["journal", &disk.name()]);
    assert!(
        ran.text()
            .starts_with("State:        clean\nInode:        8\n"),
        "{}",
        ran.text()
    );
}

#[test]
fn journal_of_image_without_one_is_refused() {
    let image = Image::builder().features("^has_journal").build();
    let ran = dioxide(["journal", image.path().to_str().unwrap()]);
    assert_eq!(ran.status, Some(2));
    assert!(ran.stderr.contains("no journal"), "{}", ran.stderr);
}

#[test]
fn journal_in_use_is_listed_and_replayed() {
    need_root!();
    let image = Image::builder().size(64 << 20).build();
    let mount = Mount::ext4(image.path(), "");
    for number in 0..5 {
        let file = fs::File::create(mount.path().join(format!("{number}"))).unwrap();
        file.sync_all().unwrap();
    }
    let copy = image.copy();
    mount.unmount();
    let name = copy.path().to_str().unwrap().to_owned();
    let told = dioxide(["journal", "--list", "--json", &name]).json();
    let transactions = told["transactions"].as_array().unwrap();
    assert_eq!(told["is_empty"], false);
    assert_eq!(told["recovery"]["transactions"], transactions.len());
    assert!(transactions.len() >= 5, "{told}");
    for transaction in transactions {
        assert_eq!(
            transaction["bad_checksums"].as_array().map(Vec::len),
            Some(0)
        );
        assert!(transaction["committed"].as_u64().is_some());
        assert!(!transaction["blocks"].as_array().unwrap().is_empty());
    }
    let all = told["transactions"].to_string();
    assert!(all.contains("inode table"), "{all}");
    let ran = dioxide(["journal", "--replay", &name]);
    assert!(
        ran.text().contains("was replayed") && ran.text().contains("clean"),
        "{}",
        ran.text()
    );
    e2fsck_clean(copy.path());
}

/// A file system of 32 MiB whose journal is in another image: both.
fn journal_outside() -> (Image, Image) {
    let image = Image::blank(Dir::Tmpfs, 32 << 20);
    let journal = Image::blank(Dir::Tmpfs, 8 << 20);
    let mke2fs = |args: &[&OsStr]| {
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new("mke2fs");
        command.env("PATH", format!("{path}:/usr/sbin:/sbin"));
        let output = command.args(["-q", "-F"]).args(args).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    };
    let args = ["-O", "journal_dev", "-b", "4096"].map(OsStr::new);
    mke2fs(&[&args[..], &[journal.path().as_os_str()]].concat());
    let device = LoopDevice::attach(journal.path());
    let on = format!("device={}", device.path().display());
    let args = ["-t", "ext4", "-b", "4096", "-J", &on].map(OsStr::new);
    mke2fs(&[&args[..], &[image.path().as_os_str()]].concat());
    (image, journal)
}

#[test]
fn journal_that_is_named_for_a_file_system_that_has_none_outside_is_refused() {
    let journal = Image::blank(Dir::Tmpfs, 8 << 20);
    let log = journal.path().to_str().unwrap();
    for (features, why) in [("has_journal", "inside"), ("^has_journal", "no journal")] {
        let image = Image::builder().size(16 << 20).features(features).build();
        let disk = image.path().to_str().unwrap();
        let (root, made) = (format!("{disk}:/"), format!("{disk}:/made"));
        let before = fs::read(image.path()).unwrap();
        for (args, status) in [
            (vec!["ls", &root], 2),
            (vec!["mkdir", &made], 2),
            (vec!["info", disk], 1),
            (vec!["check", disk], 8),
            (vec!["journal", disk], 2),
            (vec!["journal", "--replay", disk], 2),
            (vec!["map", disk], 2),
            (vec!["trim", disk], 2),
        ] {
            let ran = dioxide(args.iter().copied().chain(["--journal", log]));
            let says = ran.stderr.contains(why) && ran.stderr.contains("leave out --journal");
            assert!(
                ran.status == Some(status) && says,
                "{args:?}: {}",
                ran.stderr
            );
        }
        assert!(
            before == fs::read(image.path()).unwrap(),
            "the image has changed"
        );
    }
}

#[test]
fn journal_outside_of_its_file_system_is_named_read_and_replayed() {
    need_root!();
    let (image, journal) = journal_outside();
    let name = |image: &Image| image.path().to_str().unwrap().to_owned();
    let (disk, log) = (name(&image), name(&journal));
    let uuid = dioxide(["info", "--json", &disk]).json()["uuid"].clone();
    let uuid = uuid.as_str().unwrap();
    let clean = dioxide(["journal", &log]);
    assert!(
        clean.text().starts_with("State:        clean\n"),
        "{}",
        clean.text()
    );
    assert!(
        clean.text().contains(&format!("\nFile system:  {uuid}\n")),
        "{}",
        clean.text()
    );
    for (args, status) in [
        (["ls", &format!("{log}:/")], 2),
        (["info", &log], 1),
        (["map", &log], 2),
        (["check", &log], 8),
    ] {
        let ran = dioxide(args);
        let says = ran.stderr.contains(&format!(
            "external journal (journal_dev) of file system UUID {uuid}"
        ));
        assert!(
            ran.status == Some(status) && says,
            "{args:?}: {}",
            ran.stderr
        );
    }

    let made = format!("{disk}:/made");
    for args in [
        vec!["mkdir", &made],
        vec!["trim", &disk],
        vec!["journal", &disk],
    ] {
        let ran = dioxide(&args);
        assert!(
            ran.status == Some(2) && ran.stderr.contains("(--journal, "),
            "{args:?}: {}",
            ran.stderr
        );
    }
    dioxide(["mkdir", "--journal", &log, &made]).text();
    dioxide(["trim", "--journal", &log, &disk]).text();
    let unchecked = dioxide(["check", &disk]);
    assert!(
        unchecked.text().contains("(--journal, "),
        "{}",
        unchecked.text()
    );
    let checked = dioxide(["check", "--quiet", "--journal", &log, &disk]);
    assert_eq!(checked.text(), "");

    // What would become of a write: nothing, as long as the journal is not named.
    let there = format!("{disk}:/there");
    dioxide(["touch", "--journal", &log, &there]).text();
    let explain = ["explain", "--json", "--policy", "best", "--write", &there];
    for (more, is_served) in [(&[][..], false), (&["--journal", &log], true)] {
        let told = dioxide([&explain[..], more].concat());
        let refused = String::from_utf8_lossy(&told.stdout).contains("(--journal, ");
        assert!(refused != is_served, "{more:?}: {}", told.stderr);
    }

    let fs = Fs::open(
        image.path(),
        &MountOptions::new().journal_path(journal.path()),
    )
    .unwrap();
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .open(&fs, "/file")
        .unwrap();
    file.sync_all().unwrap();
    // Not closed: as after a crash.
    drop((file, fs));
    // Who only looks reads through it, and writes nothing.
    let before = (
        fs::read(image.path()).unwrap(),
        fs::read(journal.path()).unwrap(),
    );
    let listed = dioxide(["ls", "--journal", &log, &format!("{disk}:/")]);
    let names = String::from_utf8(listed.stdout).unwrap();
    assert!(names.contains("file\n"), "{names}{}", listed.stderr);
    assert!(
        listed.stderr.contains("is read in place of"),
        "{}",
        listed.stderr
    );
    let unnamed = dioxide(["ls", &format!("{disk}:/")]);
    assert!(
        !String::from_utf8(unnamed.stdout)
            .unwrap()
            .contains("file\n")
    );
    assert!(
        unnamed.stderr.contains("(--journal, "),
        "{}",
        unnamed.stderr
    );
    let checked = dioxide(["check", "--journal", &log, &disk]);
    assert!(
        checked.text().contains("were read from the journal"),
        "{}",
        checked.text()
    );
    assert!(checked.text().contains(": clean, "), "{}", checked.text());
    let after = (
        fs::read(image.path()).unwrap(),
        fs::read(journal.path()).unwrap(),
    );
    assert!(before == after);
    let told = dioxide(["journal", "--list", "--json", &log]).json();
    assert_eq!(
        told["recovery"]["transactions"],
        told["transactions"].as_array().unwrap().len()
    );
    let known = dioxide(["journal", "--list", "--json", "--journal", &log, &disk]).json();
    assert!(
        known["transactions"].to_string().contains("inode table"),
        "{known}"
    );
    let ran = dioxide(["journal", "--replay", "--journal", &log, &disk]);
    assert!(
        ran.text().contains("was replayed") && ran.text().contains("clean"),
        "{}",
        ran.text()
    );
    assert_eq!(
        dioxide(["ls", "--journal", &log, &format!("{disk}:/file")]).status,
        Some(0)
    );
    let checked = dioxide(["check", "--journal", &log, &disk]);
    assert!(checked.text().contains(": clean, "), "{}", checked.text());
}

#[test]
fn journal_and_map_of_what_has_no_superblock_tell_where_it_should_be() {
    let disk = Fixture::new();
    let empty = disk.beside("empty.img");
    fs::write(&empty, "").unwrap();
    for command in ["journal", "map"] {
        let ran = dioxide([command, empty.to_str().unwrap()]);
        assert_eq!(ran.status, Some(2));
        let words = "no superblock of ext2, ext3 or ext4 at byte 1024 (";
        assert!(
            ran.stderr.contains(words) && ran.stderr.contains("ends at byte 0"),
            "{}",
            ran.stderr
        );
    }
}

#[test]
fn picture_for_a_dash_is_standard_output() {
    let disk = Fixture::new();
    let (name, path) = (disk.name(), disk.at("/sparse"));
    for args in [
        ["map", "--svg", "-", &name],
        ["extents", "--svg", "-", &path],
    ] {
        let mut command = command();
        let ran = Ran::from(
            command
                .args(args)
                .current_dir(disk.tree(""))
                .output()
                .unwrap(),
        );
        assert!(ran.text().starts_with("<svg "), "{args:?}");
        assert!(!disk.tree("-").exists());
    }
    for (command, operand) in [("map", &name), ("extents", &path)] {
        for both in [
            ["--json", "--svg=-"],
            ["--json", "--html=-"],
            ["--svg=-", "--html=-"],
        ] {
            let ran = dioxide([&[command], &both[..], &[operand]].concat());
            assert_eq!((ran.status, ran.stdout.len()), (Some(2), 0), "{both:?}");
            assert!(ran.stderr.contains("takes one of"), "{}", ran.stderr);
        }
        let picture = disk.beside("picture").display().to_string();
        dioxide([command, "--json", "--svg", &picture, operand]).json();
    }
}

/// Nor is anything lost of what a run that failed would have replaced.
#[test]
fn picture_is_not_written_over_the_image_that_it_is_of_nor_over_one_in_use() {
    let disk = Fixture::new();
    let used = disk.beside("used.img");
    fs::copy(disk.image(), &used).unwrap();
    let link = disk.beside("link");
    std::os::unix::fs::symlink("used.img", &link).unwrap();
    let [used, link] = [used, link].map(|path| path.display().to_string());
    let holder = dioxide::Fs::open(&used, &dioxide::MountOptions::new()).unwrap();
    let before = [disk.name(), used.clone()].map(|image| fs::read(image).unwrap());
    for (pictured, place) in [(disk.name(), link), (disk.name(), disk.name())] {
        for form in ["--svg", "--html"] {
            let ran = dioxide(["map", &pictured, form, &place]);
            assert_eq!(ran.status, Some(2), "{form} {place}: {}", ran.stderr);
            assert!(ran.stderr.contains("is in use: locked"), "{}", ran.stderr);
        }
    }
    let after = [disk.name(), used].map(|image| fs::read(image).unwrap());
    assert!(after == before);
    holder.close().unwrap();
}

#[test]
fn nothing_that_is_told_is_written_over_a_block_device() {
    dioxide_testkit::need_root!();
    let disk = Fixture::new();
    let other = disk.as_image().copy();
    let device = LoopDevice::attach(other.path());
    let mounted = Mount::ext4(device.path(), "ro");
    let link = disk.beside("link");
    std::os::unix::fs::symlink(device.path(), &link).unwrap();
    let before = fs::read(other.path()).unwrap();
    let (name, path) = (disk.name(), disk.at("/sparse"));
    for place in [device.path(), &link] {
        let place = place.to_str().unwrap();
        for words in [
            &["map", &name, "--svg", place][..],
            &["map", &name, "--html", place],
            &["extents", &path, "--svg", place],
            &["bench", "--image", &name, "simple-read", "--json", place],
            &["unpack", "--tar", &name, place],
        ] {
            let ran = dioxide(words);
            assert_eq!(ran.status, Some(2), "{words:?}");
            let told = format!("{place}: is a block device, and not written over");
            assert!(ran.stderr.contains(&told), "{words:?}: {}", ran.stderr);
        }
    }
    mounted.unmount();
    drop(device);
    assert!(fs::read(other.path()).unwrap() == before);
    e2fsck_clean(other.path());
}

#[test]
fn map_counts_every_block_once() {
    let disk = Fixture::new();
    let told = dioxide(["map", "--json", &disk.name()]).json();
    let sum = |cell: &serde_json::Value| -> u64 {
        let kinds = cell.as_object().unwrap();
        kinds.values().map(|blocks| blocks.as_u64().unwrap()).sum()
    };
    // One block belongs to the resize inode, which no picture shows.
    let blocks = told["blocks"].as_u64().unwrap();
    assert!(
        (blocks - 2..=blocks).contains(&sum(&told["total"])),
        "{}",
        told["total"]
    );
    let free = dioxide(["info", "--json", &disk.name()]).json()["free_blocks"]
        .as_u64()
        .unwrap();
    assert_eq!(told["total"]["free"], free);
    let runs = told["free_runs"].as_array().unwrap();
    let in_runs: u64 = runs.iter().map(|run| run["blocks"].as_u64().unwrap()).sum();
    assert_eq!(in_runs, free);
}

#[test]
fn map_begins_a_line_for_each_group_and_counts_its_blocks() {
    let image = Image::builder().args(&["-g", "4096"]).build();
    let name = image.path().to_str().unwrap();
    let told = dioxide(["map", "--json", name]).json();
    let groups = told["by_group"].as_array().unwrap();
    assert_eq!(groups.len(), 4);
    let dumped = dioxide_testkit::dumpe2fs(image.path());
    for (number, group) in groups.iter().enumerate() {
        assert_eq!(group["group"], number);
        assert_eq!(group["first_block"], number * 4096);
        assert_eq!(group["blocks"], 4096);
        let free = format!("  {} free blocks, ", group["total"]["free"]);
        assert!(dumped.contains(&free), "{free}: {dumped}");
    }
    assert_eq!(
        groups[0]["total"]["inode-table"],
        told["total"]["inode-table"]
    );
    let ran = dioxide(["map", name]);
    let lines: Vec<_> = ran.text().lines().skip(1).collect();
    let begins = |number| {
        let label = format!("group {number} ");
        lines.iter().position(|line| line.starts_with(&label))
    };
    let each = begins(1).unwrap();
    assert!(each > 1, "{lines:?}");
    for number in 0..4 {
        assert_eq!(begins(number), Some(number * each), "{lines:?}");
    }
    let html = image.path().with_extension("html");
    dioxide(["map", "--html", html.to_str().unwrap(), name]).text();
    let page = fs::read_to_string(&html).unwrap();
    fs::remove_file(html).unwrap();
    for number in 0..4 {
        assert!(page.contains(&format!(">group {number}</text>")));
        assert!(page.contains(&format!("<td>group {number}</td>")));
    }
}

#[test]
fn map_pictures_are_one_file_each_with_titles() {
    let disk = Fixture::new();
    let (svg, html) = (disk.beside("m.svg"), disk.beside("m.html"));
    let ran = dioxide([
        "map",
        "--svg",
        svg.to_str().unwrap(),
        "--html",
        html.to_str().unwrap(),
        &disk.name(),
    ]);
    assert_eq!(ran.text(), "");
    let (svg, html) = (
        fs::read_to_string(svg).unwrap(),
        fs::read_to_string(html).unwrap(),
    );
    assert!(svg.starts_with("<svg ") && svg.contains("<title>group 0, blocks 0 to "));
    assert!(html.starts_with("<!doctype html>") && html.contains(&svg));
    assert!(!html.contains("http://www.w3.org/1999") && !html.contains("<script"));
    let text = dioxide(["map", &disk.name()]);
    assert!(text.text().contains("a sign is ") && text.text().contains("Free runs"));
}

#[test]
fn extents_of_files_are_drawn() {
    let disk = Fixture::new();
    let (svg, html) = (disk.beside("e.svg"), disk.beside("e.html"));
    let ran = dioxide([
        "extents",
        "--svg",
        svg.to_str().unwrap(),
        "--html",
        html.to_str().unwrap(),
        &disk.at("/sparse"),
    ]);
    assert_eq!(ran.text(), "");
    let (svg, html) = (
        fs::read_to_string(svg).unwrap(),
        fs::read_to_string(html).unwrap(),
    );
    assert_eq!(svg.matches("<title>blocks ").count(), 2, "{svg}");
    assert!(html.contains(&svg) && html.contains("2 extents"));
}

/// Nobody reads what is found in the first image: the signal comes before the second is looked at.
#[test]
fn check_that_is_told_to_end_tells_what_it_found_and_exits_32_more() {
    let tree = tempfile::tempdir().unwrap();
    let many = tree.path().join("many");
    fs::create_dir(&many).unwrap();
    for number in 0..5000 {
        fs::File::create(many.join(number.to_string())).unwrap();
    }
    let builder = Image::builder().size(64 << 20).args(&["-N", "8192"]);
    let damaged = builder.source(tree.path()).build();
    let clean = Fixture::new();
    dioxide_testkit::debugfs(damaged.path(), &["clri many"]);
    let mut child = command()
        .arg("check")
        .args([damaged.path(), clean.image(), Path::new("/nowhere.img")])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = child.stdout.take().unwrap();
    // It prints, and has more to print than pipe and buffer hold.
    stdout.read_exact(&mut [0]).unwrap();
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    let mut told = String::new();
    stdout.read_to_string(&mut told).unwrap();
    let ran = Ran::from(child.wait_with_output().unwrap());
    assert_eq!(ran.status, Some(4 | 32), "{}", ran.stderr);
    assert!(told.len() > 150_000, "{} bytes hold up nobody", told.len());
    let ended = format!("{}: ended before all was checked\n", clean.name());
    assert_eq!(ran.stderr, format!("dioxide: check: {ended}"));
    let last = told.lines().last().unwrap();
    assert_eq!(last, format!("{}: no errors so far", clean.name()));
    e2fsck_clean(clean.image());
}
