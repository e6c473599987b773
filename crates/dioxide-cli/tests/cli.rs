//! The command on images that e2fsprogs made, compared with what e2fsprogs and coreutils say.

#[path = "cli/check.rs"]
mod check;
#[path = "cli/errors.rs"]
mod errors;
mod support;

use dioxide_testkit::{Extent, Image, LoopDevice, dumpe2fs, e2fsck_clean, leaf_extents, pattern};
use serde_json::Value;
use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, Stdio};
use support::{
    Fixture, LARGE_BYTES, LARGE_SEED, Ran, at, closed_pipe, command, coreutils, dioxide,
    full_device,
};

#[test]
fn cat_of_several_files_gives_their_bytes_in_turn() {
    let disk = Fixture::new();
    let ran = dioxide([
        "cat",
        &disk.at("/hello"),
        &disk.at("/large"),
        &disk.at("/empty"),
        &disk.at("/list/link"),
    ]);
    assert_eq!((ran.status, ran.stderr.as_str()), (Some(0), ""));
    let expected = [
        &b"hello, world\n"[..],
        &pattern(LARGE_SEED, 0, LARGE_BYTES),
        b"hello, world\n",
    ]
    .concat();
    assert!(
        ran.stdout == expected,
        "{} bytes differ from {}",
        ran.stdout.len(),
        expected.len()
    );
}

#[test]
fn cat_of_sparse_file_gives_zeros_for_its_holes() {
    let disk = Fixture::new();
    for backend in ["auto", "pread", "mmap"] {
        let ran = dioxide(["cat", "--backend", backend, &disk.at("/sparse")]);
        assert_eq!((ran.status, ran.stderr.as_str()), (Some(0), ""));
        assert!(
            ran.stdout == fs::read(disk.tree("sparse")).unwrap(),
            "with {backend}"
        );
    }
}

#[test]
fn cat_of_missing_file_tells_and_goes_on_and_exits_1() {
    let disk = Fixture::new();
    let ran = dioxide(["cat", &disk.at("/nope"), &disk.at("/hello")]);
    assert_eq!(ran.status, Some(1));
    assert_eq!(ran.stdout, b"hello, world\n");
    assert_eq!(
        ran.stderr,
        format!(
            "dioxide: cat: {}: No such file or directory\n",
            disk.at("/nope")
        )
    );
}

#[test]
fn cat_of_directory_tells_and_exits_2() {
    let disk = Fixture::new();
    let ran = dioxide(["cat", &disk.at("/dir")]);
    assert_eq!((ran.status, ran.stdout.len()), (Some(2), 0));
    assert_eq!(
        ran.stderr,
        format!("dioxide: cat: {}: Is a directory\n", disk.at("/dir"))
    );
}

#[test]
fn cat_into_closed_pipe_ends_quietly() {
    let disk = Fixture::new();
    let mut child = command()
        .args(["cat", &disk.at("/large"), &disk.at("/sparse")])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut some = [0; 16];
    child.stdout.take().unwrap().read_exact(&mut some).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0));
    assert_eq!(some, pattern(LARGE_SEED, 0, 16)[..]);
}

#[test]
fn cat_onto_full_device_tells_and_exits_2() {
    let disk = Fixture::new();
    let output = command()
        .args(["cat", &disk.at("/large")])
        .stdout(full_device())
        .output()
        .unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr.starts_with("dioxide: cat: standard output: No space left"),
        "{stderr}"
    );
}

#[test]
fn help_onto_full_device_exits_2_and_into_closed_pipe_0() {
    for words in [&["--help"][..], &["--version"], &["ls", "--help"]] {
        let run = |out| command().args(words).stdout(out).output().unwrap();
        let output = run(full_device());
        let told = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert!(told.contains("standard output: No space left"), "{told}");
        let output = run(closed_pipe());
        assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0));
    }
}

/// Runs the command by a shell, which redirects its streams so.
fn redirected(words: &[&str], how: &str) -> Ran {
    let mut shell = Command::new("sh");
    let script = format!("exec \"$@\" {how}");
    shell.args(["-c", &script, "sh", env!("CARGO_BIN_EXE_dioxide")]);
    shell
        .args(words)
        .stdin(Stdio::null())
        .output()
        .unwrap()
        .into()
}

#[test]
fn stream_that_is_closed_is_an_error_where_it_is_used() {
    let disk = Fixture::new();
    let hello = disk.at("/hello");
    let cat = ["cat", &hello];
    let write = ["write", "-t", &hello];
    for (words, how, told) in [
        (&cat[..], ">&-", "cat: standard output"),
        (&cat, "<&- >&-", "cat: standard output"),
        (&["--help"], ">&-", "standard output"),
        (&["ls", "--help"], ">&-", "standard output"),
        (&write, "<&-", "write: standard input"),
    ] {
        let ran = redirected(words, how);
        let told = format!("dioxide: {told}: Bad file descriptor\n");
        assert_eq!((ran.status, ran.stderr), (Some(2), told), "{words:?} {how}");
    }
    assert_eq!(dioxide(cat).text(), "hello, world\n");
    // Nothing is told, or it is thrown away.
    let touch = ["touch", &hello];
    for (words, how) in [
        (&touch[..], "<&- >&-"),
        (&touch, "2>&-"),
        (&cat, ">/dev/null"),
        (&cat, "1<>/dev/null"),
        (&cat, "<&- >/dev/null"),
        (&write, "0<>/dev/null"),
    ] {
        let ran = redirected(words, how);
        assert_eq!((ran.status, &*ran.stderr), (Some(0), ""), "{words:?} {how}");
    }
    assert_eq!(dioxide(cat).text(), "");
    e2fsck_clean(disk.image());
}

#[test]
fn image_that_is_missing_or_none_is_named_and_exits_2() {
    let disk = Fixture::new();
    let ran = dioxide(["ls", &at(&disk.beside("no.img"), "/")]);
    assert_eq!(ran.status, Some(2));
    assert!(
        ran.stderr.contains("no.img: ") && ran.stderr.contains("No such file"),
        "{}",
        ran.stderr
    );

    let noise = disk.beside("noise.img");
    fs::write(&noise, pattern(9, 0, 1 << 16)).unwrap();
    for args in [
        ["ls", &at(&noise, "/")],
        ["info", &noise.display().to_string()],
    ] {
        let ran = dioxide(args);
        assert_eq!(ran.status, Some(2));
        assert!(
            ran.stderr
                .starts_with(&format!("dioxide: {}: {}", args[0], noise.display())),
            "{}",
            ran.stderr
        );
        assert!(ran.stderr.contains("superblock"), "{}", ran.stderr);
    }
}

#[test]
fn address_without_path_is_usage_and_exits_2() {
    let ran = dioxide(["ls", "disk.img"]);
    assert_eq!(ran.status, Some(2));
    assert!(
        ran.stderr.contains("disk.img:/ for the root"),
        "{}",
        ran.stderr
    );
}

#[test]
fn long_list_of_files_and_links_looks_like_coreutils() {
    let disk = Fixture::new();
    let ours = dioxide(["ls", "-l", &disk.at("/list")]);
    let tree = disk.tree("list");
    let theirs = coreutils("ls", &["-ln", &tree.display().to_string()]);
    let lines = |text: &str| text.lines().skip(1).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(lines(ours.text()), lines(&theirs));
    // 1 + 22222 + 333 bytes are 1 + 6 + 1 blocks of 4 KiB.
    assert_eq!(ours.text().lines().next(), Some("total 32"));
}

#[test]
fn list_hides_dot_names_unless_all_is_asked_for() {
    let disk = Fixture::new();
    assert_eq!(dioxide(["ls", &disk.at("/dir")]).text(), "a b\n");
    assert_eq!(
        dioxide(["ls", "-a", &disk.at("/dir")]).text(),
        ".\n..\n.hidden\na b\n"
    );
    assert_eq!(dioxide(["ls", &disk.at("/to-dir")]).text(), "a b\n");
}

#[test]
fn list_of_several_operands_shows_files_first_and_titles() {
    let disk = Fixture::new();
    let (dir, hello) = (disk.at("/dir"), disk.at("/hello"));
    let ran = dioxide(["ls", &dir, &hello, &disk.at("/nope")]);
    assert_eq!(ran.status, Some(1));
    assert_eq!(
        String::from_utf8(ran.stdout).unwrap(),
        format!("{hello}\n\n{dir}:\na b\n")
    );
}

#[test]
fn list_as_json_holds_metadata_and_link_targets() {
    let disk = Fixture::new();
    let json = dioxide(["ls", "-l", "--json", &disk.at("/list")]).json();
    let entries = json[0]["entries"].as_array().unwrap();
    let names: Vec<_> = entries
        .iter()
        .map(|entry| entry["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["link", "one", "three", "two"]);
    assert_eq!(entries[0]["target"], "../hello");
    assert_eq!(entries[3]["metadata"]["size"], 22_222);
    assert_eq!(entries[3]["file_type"], "regular");
}

#[test]
fn stat_has_the_shape_of_coreutils() {
    let disk = Fixture::new();
    let text = dioxide(["stat", &disk.at("/list/two")]).text().to_owned();
    let labels: Vec<_> = text
        .lines()
        .filter_map(|line| line.split(':').next())
        .map(str::trim)
        .collect();
    let expected = [
        "File", "Size", "Device", "Access", "Access", "Modify", "Change", "Birth", "Flags",
    ];
    assert_eq!(labels, expected);
    let path = disk.tree("list/two").display().to_string();
    let theirs = coreutils(
        "stat",
        &[
            "-c",
            "Access: (%04a/%A)  Uid: (%5u/ UNKNOWN)   Gid: (%5g/ UNKNOWN)",
            &path,
        ],
    );
    assert!(text.contains(theirs.trim_end()), "{text}\n{theirs}");
    let modified = coreutils("stat", &["-c", "Modify: %y", &path]);
    let to_seconds = "Modify: 2026-11-21 10:02:37".len();
    assert!(text.contains(&modified[..to_seconds]), "{text}\n{modified}");
    assert!(
        text.contains("Size: 22222     \tBlocks: 48         IO Block: 4096   regular file"),
        "{text}"
    );
}

#[test]
fn stat_of_link_follows_it_only_when_asked() {
    let disk = Fixture::new();
    let own = dioxide(["stat", &disk.at("/list/link")]);
    assert!(
        own.text()
            .starts_with(&format!("  File: {} -> ../hello\n", disk.at("/list/link")))
    );
    let json = dioxide(["stat", "-L", "--json", &disk.at("/list/link")]).json();
    assert_eq!(
        (&json[0]["file_type"], &json[0]["size"]),
        (&Value::from("regular"), &Value::from(13))
    );
    let attributes = [
        "ea_set list/link trusted.whose link",
        "ea_set hello user.whose file",
    ];
    disk.debugfs(&attributes);
    for (options, told) in [
        (&["stat"][..], "trusted.whose=link"),
        (&["stat", "-L"], "user.whose=file"),
    ] {
        let link = disk.at("/list/link");
        let ran = dioxide(options.iter().chain([&&*link]));
        let xattrs: Vec<_> = ran.text().matches(" Xattr: ").collect();
        assert!(ran.text().ends_with(&format!(" Xattr: {told}\n")));
        assert_eq!(xattrs.len(), 1, "{}", ran.text());
    }
    e2fsck_clean(disk.image());
}

#[test]
fn stat_shows_extended_attributes_and_device_numbers() {
    let disk = Fixture::new();
    disk.debugfs(&["ea_set /hello user.comment dust", "mknod null c 1 3"]);
    let text = dioxide(["stat", &disk.at("/hello")]).text().to_owned();
    assert!(text.ends_with(" Xattr: user.comment=dust\n"), "{text}");
    let json = dioxide(["stat", "--json", &disk.at("/hello"), &disk.at("/null")]).json();
    assert_eq!(json[0]["xattrs"][0]["value"], "dust");
    assert_eq!(json[1]["device"], serde_json::json!([1, 3]));
    let text = dioxide(["stat", &disk.at("/null")]).text().to_owned();
    assert!(
        text.contains("Device type: 1,3") && text.contains("(0000/c---------)"),
        "{text}"
    );
}

/// Joins what touches, as `dioxide extents` does.
fn joined(extents: Vec<Extent>) -> Vec<Extent> {
    let mut joined: Vec<Extent> = Vec::new();
    for next in extents {
        let touches = |last: &&mut Extent| {
            let end = (last.logical + last.len, last.physical + last.len);
            end == (next.logical, next.physical) && last.unwritten == next.unwritten
        };
        match joined.last_mut().filter(touches) {
            Some(last) => last.len += next.len,
            None => joined.push(next),
        }
    }
    joined
}

fn json_extent(extent: &Value) -> Extent {
    let number = |key: &str| extent[key].as_u64().unwrap();
    Extent {
        logical: number("logical"),
        physical: number("physical"),
        len: number("length"),
        unwritten: extent["unwritten"].as_bool().unwrap(),
    }
}

#[test]
fn extents_agree_with_debugfs() {
    let disk = Fixture::new();
    disk.debugfs(&["fallocate /sparse 6000 6063"]);
    dioxide_testkit::shape::fragmented(disk.as_image(), "pieces", 700, 4);
    for (path, fewest) in [
        ("/large", 1),
        ("/sparse", 3),
        ("/empty", 0),
        ("/pieces", 700),
    ] {
        let json = dioxide(["extents", "--json", &disk.at(path)]).json();
        let extents = json[0]["extents"].as_array().unwrap();
        let ours: Vec<_> = extents.iter().map(json_extent).collect();
        assert_eq!(ours, joined(leaf_extents(disk.image(), path)), "{path}");
        assert!(ours.len() >= fewest, "{path}: {}", ours.len());
    }
}

#[test]
fn extents_print_filefrags_columns_and_a_picture() {
    let disk = Fixture::new();
    disk.debugfs(&["fallocate /sparse 6000 6063"]);
    let extents = leaf_extents(disk.image(), "/sparse");
    let text = dioxide(["extents", &disk.at("/sparse")]).text().to_owned();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(
        lines[0],
        format!(
            "File size of {} is 41943040 (10240 blocks of 4096 bytes)",
            disk.at("/sparse")
        )
    );
    assert_eq!(
        lines[1],
        " ext:     logical_offset:        physical_offset: length:   expected: flags:"
    );
    let first = extents[0].physical;
    let line = format!(
        "   0:       10..      11: {first:10}..{:10}:      2: ",
        first + 1
    );
    assert_eq!(lines[2].trim_end(), line.trim_end());
    assert!(lines[4].ends_with(" last,unwritten"), "{}", lines[4]);
    assert_eq!(lines[5].find(']'), Some(65), "{}", lines[5]);
    assert_eq!(lines[6], format!("{}: 3 extents found", disk.at("/sparse")));
}

#[test]
fn extents_of_file_with_inline_data_say_so() {
    let disk = Fixture::with(Image::builder().features("inline_data"));
    let text = dioxide(["extents", &disk.at("/hello")]).text().to_owned();
    assert!(text.contains("the data lies in the inode"), "{text}");
    assert_eq!(
        dioxide(["cat", &disk.at("/hello")]).text(),
        "hello, world\n"
    );
}

const POLICIES: [&str; 14] = [
    "pre49",
    "pre49+nolock",
    "parallel",
    "iomap55",
    "ilock",
    "ilock+",
    "ilocknew",
    "ilocknew+",
    "v5.6",
    "v6.3",
    "v6.4",
    "newest",
    "best",
    "xfs",
];

#[test]
fn explain_of_unaligned_overwrite_differs_by_policy_as_the_kernels_did() {
    let disk = Fixture::new();
    let request = ["--offset", "2k", "--len", "2k", "--write"];
    let table = dioxide([&["explain", "--json", &disk.at("/large")], &request[..]].concat()).json();
    let by_policy = table.as_array().unwrap();
    let names: Vec<_> = by_policy
        .iter()
        .map(|told| told["policy"].as_str().unwrap())
        .collect();
    assert_eq!(names, POLICIES);
    for policy in POLICIES {
        let args = ["explain", "--json", "--policy", policy, &disk.at("/large")];
        let told = dioxide([&args[..], &request[..]].concat()).json();
        assert_eq!(
            Some(&told),
            by_policy.iter().find(|row| row["policy"] == policy)
        );
        let shared = matches!(policy, "v6.4" | "newest" | "best" | "xfs");
        assert_eq!(
            told["lock"],
            if shared { "shared" } else { "exclusive" },
            "{policy}"
        );
        assert_eq!(told["refused"], Value::Null, "{policy}");
        assert!(told["steps"].as_array().unwrap().len() >= 5, "{policy}");
    }
    assert!(
        by_policy
            .iter()
            .find(|told| told["policy"] == "v5.6")
            .unwrap()["drains"]
            .as_bool()
            .unwrap()
    );
}

#[test]
fn explain_in_words_has_a_line_for_each_policy_or_each_step() {
    let disk = Fixture::new();
    let table = dioxide(["explain", &disk.at("/large"), "--write", "--len", "2k"]);
    for policy in POLICIES {
        let line = |line: &&str| line.split_whitespace().next() == Some(policy);
        assert_eq!(table.text().lines().filter(line).count(), 1, "{policy}");
    }
    let steps = dioxide(["explain", &disk.at("/large"), "--policy", "v6.2"]);
    for question in ["policy", "alignment", "entry lock", "mapping", "path"] {
        let line = |line: &&str| line.trim_start().starts_with(question);
        assert!(steps.text().lines().any(|text| line(&text)), "{question}");
    }
}

#[test]
fn explain_of_a_write_that_nobody_would_serve_says_that_it_is_refused() {
    let disk = Fixture::new();
    let outcome = || {
        let args = ["explain", "--json", "--policy", "best", "--write"];
        let ran = dioxide([&args[..], &[&disk.at("/large")]].concat());
        let told: Value = serde_json::from_slice(&ran.stdout).expect("JSON");
        told["refused"].clone()
    };
    assert!(outcome().is_null());
    disk.debugfs(&["sif large flags 0x80020"]);
    assert!(outcome().to_string().contains("append-only"));
    disk.debugfs(&["sif large flags 0x80000", "feature read-only"]);
    assert!(outcome().to_string().contains("read"), "{}", outcome());
}

#[test]
fn explain_of_hole_fill_tells_that_blocks_are_claimed() {
    let disk = Fixture::new();
    let told = dioxide([
        "explain",
        "--json",
        "--policy",
        "best",
        "--write",
        &disk.at("/sparse"),
    ])
    .json();
    assert!(told["refused"].is_null(), "{told}");
    let steps = told["steps"].as_array().expect("a list");
    let metadata = steps.iter().find(|step| step["question"] == "metadata");
    let answer = metadata.expect("it changes metadata")["answer"].as_str();
    assert!(answer.expect("words").contains("claimed"), "{told}");
}

/// As the engine answers it: most devices promise nothing.
#[test]
fn explain_of_an_atomic_write_tells_whether_the_device_promises_it() {
    let disk = Fixture::new();
    let large = disk.at("/large");
    let promised = dioxide(["stat", &large]).text().contains("Atomic:");
    let told = dioxide(["explain", "--atomic", "--json", "--policy", "best", &large]).json();
    assert_eq!(told["direction"], "atomic-write");
    assert_eq!(told["refused"].is_null(), promised, "{told}");
    let table = dioxide(["explain", "--atomic", &large]);
    let table = table.text();
    assert!(
        table.contains("direct atomic write of 4096 bytes at 0"),
        "{table}"
    );
    let why = "\n  (1) unsupported: atomic writes here: the device promises none";
    assert!(
        table.contains("served") == promised && table.contains(why) != promised,
        "{table}"
    );
    let steps = dioxide(["explain", "--atomic", "--policy", "v6.6", &large]);
    assert_eq!(
        steps.text().contains("refused: "),
        !promised,
        "{}",
        steps.text()
    );
}

#[test]
fn explain_of_unknown_policy_is_usage_and_lists_the_known() {
    let ran = dioxide(["explain", "i:/f", "--policy", "v9"]);
    assert_eq!(ran.status, Some(2));
    assert!(
        POLICIES.iter().all(|policy| ran.stderr.contains(policy)),
        "{}",
        ran.stderr
    );
}

fn words(text: &str) -> Vec<String> {
    let mut words: Vec<_> = text.split_whitespace().map(str::to_owned).collect();
    words.sort();
    words
}

#[test]
fn info_names_the_features_that_dumpe2fs_names() {
    let plain = Image::builder().block_size(1024);
    let other = Image::builder().features("^has_journal,^64bit,inline_data");
    for builder in [plain, other] {
        let disk = Fixture::with(builder);
        let image = disk.name();
        let theirs = dumpe2fs(disk.image());
        let field = |name: &str| {
            let line = theirs.lines().find(|line| line.starts_with(name)).unwrap();
            line.split_once(':').unwrap().1.trim().to_owned()
        };
        let json = dioxide(["info", "--json", &image]).json();
        let sets = ["compat", "incompat", "ro_compat"]
            .map(|set| json["features"][set].as_array().unwrap().clone());
        let names: Vec<_> = sets
            .iter()
            .flatten()
            .map(|name| name.as_str().unwrap())
            .collect();
        assert_eq!(
            words(&names.join(" ")),
            words(&field("Filesystem features"))
        );
        assert_eq!(json["blocks"].to_string(), field("Block count"));
        assert_eq!(json["free_inodes"].to_string(), field("Free inodes"));
        assert_eq!(json["uuid"].as_str().unwrap(), field("Filesystem UUID"));
        let text = dioxide(["info", &image]).text().to_owned();
        assert!(names.iter().all(|name| text.contains(name)), "{text}");
        assert!(text.contains("label            dust"), "{text}");
        assert!(text.contains("opens it         yes"), "{text}");
    }
}

#[test]
fn info_has_the_bytes_of_a_label_that_is_not_utf_8() {
    let disk = Fixture::new();
    let mut tune2fs = Command::new("tune2fs");
    tune2fs.arg("-L").arg(OsStr::from_bytes(b"d\xff"));
    assert!(tune2fs.arg(disk.image()).output().unwrap().status.success());
    let json = dioxide(["info", "--json", &disk.name()]).json();
    assert_eq!(json["label"], "d\u{fffd}");
    assert_eq!(json["label_hex"], "64ff");
}

#[test]
fn info_of_unknown_incompat_feature_shows_it_and_exits_1() {
    let disk = Fixture::new();
    disk.debugfs(&["feature FEATURE_I30"]);
    let image = disk.name();
    let ran = dioxide(["info", &image]);
    assert_eq!(ran.status, Some(1));
    assert!(
        ran.stderr.starts_with(&format!("dioxide: info: {image}: "))
            && ran.stderr.contains("FEATURE_I30"),
        "{}",
        ran.stderr
    );
    assert!(
        String::from_utf8(ran.stdout)
            .unwrap()
            .contains("opens it         no")
    );
    let ran = dioxide(["ls", &disk.at("/")]);
    assert_eq!(ran.status, Some(2));
    assert!(ran.stderr.contains("FEATURE_I30"), "{}", ran.stderr);
}

#[test]
fn journal_that_needs_recovery_is_warned_of_once() {
    let disk = Fixture::new();
    disk.debugfs(&["feature needs_recovery"]);
    let ran = dioxide(["cat", &disk.at("/hello"), &disk.at("/hello")]);
    assert_eq!(
        (ran.status, ran.stdout.as_slice()),
        (Some(0), &b"hello, world\nhello, world\n"[..])
    );
    assert_eq!(ran.stderr.matches("warning: ").count(), 1, "{}", ran.stderr);
    assert!(ran.stderr.contains("journal"), "{}", ran.stderr);
}

#[test]
fn image_attached_to_a_loop_device_is_read_with_a_warning() {
    dioxide_testkit::need_root!();
    let disk = Fixture::new();
    let device = LoopDevice::attach(disk.image());
    let ran = dioxide(["cat", &disk.at("/hello")]);
    assert_eq!(
        (ran.status, ran.stdout.as_slice()),
        (Some(0), &b"hello, world\n"[..])
    );
    let name = device.path().file_name().unwrap().to_str().unwrap();
    assert!(
        ran.stderr.contains("warning: ") && ran.stderr.contains(name),
        "{}",
        ran.stderr
    );
    let direct = dioxide(["cat", &at(device.path(), "/hello")]);
    assert_eq!(direct.stdout, b"hello, world\n");
}

#[test]
fn info_of_truncated_image_tells_where_it_ends() {
    let disk = Fixture::new();
    let short = disk.beside("short.img");
    fs::write(&short, &fs::read(disk.image()).unwrap()[..1 << 20]).unwrap();
    // As the other commands, which read what is there.
    for args in [
        ["info", &short.display().to_string()],
        ["ls", &at(&short, "/")],
    ] {
        let ran = dioxide(args);
        assert_eq!(ran.status, Some(0));
        assert!(
            ran.stderr
                .contains("warning: read-only: the device has 1048576 bytes"),
            "{}",
            ran.stderr
        );
    }
    fs::write(&short, [0; 512]).unwrap();
    let ran = dioxide(["info", &short.display().to_string()]);
    assert_eq!(ran.status, Some(2));
    assert!(ran.stderr.contains("too short"), "{}", ran.stderr);
}

#[test]
fn image_offset_finds_a_file_system_inside_a_larger_file() {
    let disk = Fixture::new();
    let whole = disk.beside("odd:/whole.img");
    fs::create_dir(disk.beside("odd:")).unwrap();
    fs::write(
        &whole,
        [vec![0; 1 << 20], fs::read(disk.image()).unwrap()].concat(),
    )
    .unwrap();
    let escaped = whole.display().to_string().replace(":/", r"\:/");
    let ran = dioxide(["cat", "--img-offset", "1M", &format!("{escaped}:/hello")]);
    assert_eq!(ran.text(), "hello, world\n");
}

#[test]
fn backup_superblock_opens_an_image_whose_first_is_gone() {
    let disk = Fixture::with(Image::builder().block_size(1024));
    let mut bytes = fs::read(disk.image()).unwrap();
    bytes[1024..2048].fill(0);
    fs::write(disk.image(), bytes).unwrap();
    assert_eq!(dioxide(["cat", &disk.at("/hello")]).status, Some(2));
    let ran = dioxide(["cat", "--sb", "8193", &disk.at("/hello")]);
    assert_eq!(
        (ran.status, ran.stdout.as_slice()),
        (Some(0), &b"hello, world\n"[..])
    );
    let info = dioxide(["info", "--sb", "8193", &disk.name()]);
    assert_eq!(info.status, Some(0), "{}", info.stderr);
}

#[test]
fn commands_that_look_leave_every_byte_as_it_was() {
    let disk = Fixture::new();
    let before = fs::read(disk.image()).unwrap();
    let image = disk.name();
    let (root, large) = (disk.at("/"), disk.at("/large"));
    let runs = [
        vec!["info", &image],
        vec!["ls", "-la", &root],
        vec!["stat", &root],
        vec!["cat", &large],
        vec!["extents", &large],
        vec!["explain", "--write", &large],
    ];
    for args in runs {
        assert_eq!(dioxide(&args).status, Some(0), "{args:?}");
    }
    assert!(fs::read(disk.image()).unwrap() == before);
    e2fsck_clean(disk.image());
}

#[test]
fn names_reach_a_pipe_as_they_are_and_json_exactly() {
    let disk = Fixture::new();
    let ran = dioxide(["ls", &disk.at("/odd")]);
    assert!(ran.stdout == b"\xff\x1b[1m\n");
    let json = dioxide(["ls", "--json", &disk.at("/odd")]).json();
    let entries = json[0]["entries"].as_array().unwrap();
    assert!(
        entries
            .iter()
            .any(|entry| entry["name_hex"] == "ff1b5b316d"),
        "{json}"
    );
}

#[test]
fn bench_of_a_given_file_writes_rows_and_page_and_leaves_the_image_clean() {
    let disk = Fixture::new();
    let (rows, page) = (disk.beside("rows.json"), disk.beside("page.html"));
    let mut args = vec![
        "bench",
        "simple-read",
        "aio-completion",
        "--quick",
        "--runs",
        "1",
    ];
    args.extend([
        "--runtime",
        "50ms",
        "--block-size",
        "4k",
        "--iodepth",
        "8",
        "--verify",
        "--size",
        "3M",
    ]);
    let (image, rows_name, page_name) = (
        disk.name(),
        rows.display().to_string(),
        page.display().to_string(),
    );
    args.extend([
        "--image", &image, "--file", "/large", "--json", &rows_name, "--html", &page_name,
    ]);
    let ran = dioxide(args);
    assert_eq!((ran.status, ran.stderr.as_str()), (Some(0), ""));
    let rows = fs::read_to_string(rows).unwrap();
    let rows: Vec<Value> = rows
        .lines()
        .map(|row| serde_json::from_str(row).unwrap())
        .collect();
    for (experiment, target) in [
        ("simple-read", "raw"),
        ("simple-read", "dioxide"),
        ("aio-completion", "dioxide"),
    ] {
        let of = |row: &&Value| row["experiment"] == experiment && row["target"] == target;
        let row = rows
            .iter()
            .find(of)
            .unwrap_or_else(|| panic!("no row of {experiment} on {target}"));
        assert!(row["iops"].as_f64().unwrap() > 0.0, "{row}");
    }
    assert!(page.exists());
    e2fsck_clean(disk.image());
    assert_eq!(
        dioxide(["cat", &disk.at("/hello")]).text(),
        "hello, world\n"
    );
}

#[test]
fn bench_of_a_missing_image_tells_and_exits_2() {
    let ran = dioxide(["bench", "simple-read", "--image", "/no/such.img"]);
    assert_eq!((ran.status, ran.stdout.len()), (Some(2), 0));
    assert!(
        ran.stderr.starts_with("dioxide: bench: ") && ran.stderr.contains("/no/such.img"),
        "{}",
        ran.stderr
    );
}

#[test]
fn bench_that_fails_leaves_the_file_that_its_rows_would_replace() {
    let disk = Fixture::new();
    let old = disk.beside("old.json");
    fs::write(&old, "old").unwrap();
    let old = old.to_str().unwrap();
    let image = fs::read(disk.image()).unwrap();
    let bench = |image: &str, rows: &str| {
        let words = ["bench", "simple-read", "--quick", "--image", image];
        dioxide(words.iter().chain(&["--file", "/large", "--json", rows]))
    };
    assert_eq!(bench("/no/such.img", old).status, Some(2));
    assert_eq!(fs::read(old).unwrap(), b"old");
    // The rows of an image have no place in it.
    let ran = bench(&disk.name(), &disk.name());
    assert_eq!(ran.status, Some(2));
    assert!(ran.stderr.contains("is in use: locked"), "{}", ran.stderr);
    assert!(fs::read(disk.image()).unwrap() == image);
    e2fsck_clean(disk.image());
}

#[test]
fn bench_without_use_for_an_option_or_place_for_its_rows_does_not_begin() {
    for (args, words) in [
        (
            &["rows", "--verify", "--policy", "xfs"][..],
            "rows has no use for --verify, --policy: ",
        ),
        (&["simple-read", "--runtime", "0s"], "a runtime of 0ns: "),
        (
            &["simple-read", "--json", "/no/dir/rows"],
            "/no/dir/rows: No such file",
        ),
        (
            &["simple-read", "--html", "/no/dir/page"],
            "/no/dir/page: No such file",
        ),
    ] {
        // Where it began, it would say that this is missing.
        let ran = dioxide([&["bench", "--image", "/no/such.img"], args].concat());
        let begins = format!("dioxide: bench: {words}");
        assert_eq!((ran.status, ran.stdout.len()), (Some(2), 0));
        assert!(ran.stderr.starts_with(&begins), "{}", ran.stderr);
    }
}

#[test]
fn command_without_operands_asks_for_what_it_takes() {
    for (command, what) in [
        ("sync", "which image? "),
        ("df", "which image? "),
        ("ls", "which file? "),
    ] {
        let ran = dioxide([command]);
        let begins = format!("dioxide: {command}: {what}");
        assert!(
            ran.status == Some(2) && ran.stderr.starts_with(&begins),
            "{}",
            ran.stderr
        );
    }
}

/// As the help lists them.
fn commands() -> Vec<String> {
    let help = dioxide(["--help"]);
    let lines = help.text().lines();
    let lines = lines.skip_while(|line| *line != "Commands:").skip(1);
    let names = lines
        .map_while(|line| line.strip_prefix("  ")?.split(' ').next())
        .filter(|name| *name != "help");
    let names: Vec<_> = names.map(str::to_owned).collect();
    assert!(names.len() > 30, "{names:?}");
    names
}

#[test]
fn man_pages_and_completions_cover_every_subcommand() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("new/dir").display().to_string();
    dioxide(["gen", "man", &path]).text();
    dioxide(["gen", "completions", &path]).text();
    let bash = fs::read_to_string(dir.path().join("new/dir/dioxide.bash")).unwrap();
    for name in commands() {
        let page =
            fs::read_to_string(dir.path().join(format!("new/dir/dioxide-{name}.1"))).unwrap();
        assert!(
            page.contains(".SH SYNOPSIS") && page.contains(".SH EXAMPLES"),
            "{name}"
        );
        assert!(bash.contains(&format!("dioxide,{name})")), "{name}");
    }
}

#[test]
fn help_of_pack_says_what_its_blocks_are_and_how_lists_have_numbers() {
    let own = |command| {
        let help = dioxide([command, "--help"]);
        let words: Vec<_> = help.text().split_whitespace().map(str::to_owned).collect();
        words.join(" ")
    };
    assert!(own("mkfs").contains("1k below 512 MiB if not given, else 4k"));
    let pack = own("pack");
    assert!(pack.contains("1k to 64k; 4k if not given"), "{pack}");
    assert!(
        !pack.contains("512 MiB") && pack.contains("-b 1024"),
        "{pack}"
    );
    assert!(pack.contains("--numeric-owner"), "{pack}");
}

#[test]
fn help_of_every_subcommand_shows_an_example() {
    let help = dioxide(["--help"]);
    assert!(help.text().contains("Exit status:") && help.text().contains("IMG:/path"));
    for name in commands() {
        let own = dioxide([&name, "--help"]);
        assert!(
            own.text().contains(&format!("\n  dioxide {name} ")),
            "{name}"
        );
    }
}
