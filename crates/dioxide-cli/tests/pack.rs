//! `pack` and `unpack` on images that mke2fs made.

mod support;

use dioxide_testkit::{e2fsck_clean, need_root};
use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use support::{Fixture, command, coreutils, dioxide};

/// What GNU tar lists of an archive, and its exit status.
fn listed(archive: &Path) -> Vec<String> {
    let text = coreutils("tar", &["-tf", archive.to_str().unwrap()]);
    text.lines().map(str::to_owned).collect()
}

#[test]
fn bench_pack_divides_the_time_of_mke2fs_by_ours() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/bench-pack");
    let ours = env!("CARGO_BIN_EXE_dioxide");
    let told = coreutils("python3", &[script, "--tiny", "--runs", "1", ours]);
    assert!(told.contains("\nmedian ratio "), "{told}");
}

#[test]
fn unpack_of_image_gives_the_folder_that_it_was_made_of() {
    let disk = Fixture::new();
    let out = disk.beside("out");
    let ran = dioxide([
        "unpack",
        "--exclude",
        "/lost+found",
        &disk.name(),
        out.to_str().unwrap(),
    ]);
    assert_eq!(ran.text(), "");
    let tree = disk.tree("");
    let same = Command::new("diff")
        .args(["-r", "--no-dereference"])
        .arg(tree)
        .arg(out)
        .output()
        .unwrap();
    assert!(
        same.status.success(),
        "{}",
        String::from_utf8_lossy(&same.stdout)
    );
}

#[test]
fn unpack_of_directory_into_archives_of_each_kind_is_what_tar_lists() {
    let disk = Fixture::new();
    let names = ["./", "./link", "./one", "./three", "./two"];
    for archive in ["a.tar", "a.tar.gz", "a.tgz", "a.tar.zst"] {
        let archive = disk.beside(archive);
        let ran = dioxide(["unpack", &disk.at("/list"), archive.to_str().unwrap()]);
        assert_eq!(ran.text(), "");
        assert_eq!(listed(&archive), names);
    }
    let archive = disk.beside("odd-name");
    let ran = dioxide([
        "unpack",
        "--gzip",
        &disk.at("/list"),
        archive.to_str().unwrap(),
    ]);
    assert_eq!(ran.text(), "");
    assert_eq!(fs::read(&archive).unwrap()[..2], [0x1F, 0x8B]);
}

#[test]
fn unpack_to_standard_output_pipes_into_pack() {
    let disk = Fixture::new();
    let ran = dioxide(["unpack", &disk.at("/list"), "-"]);
    assert_eq!((ran.status, ran.stderr.as_str()), (Some(0), ""));
    let mut pack = command()
        .args([
            "pack",
            "-n",
            "--json",
            "--owner-map",
            "0:0",
            "--exclude",
            "t*",
            "-",
        ])
        .arg(disk.beside("new.img"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    pack.stdin.take().unwrap().write_all(&ran.stdout).unwrap();
    let output = pack.wait_with_output().unwrap();
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(told["totals"]["files"], 1);
    assert_eq!(told["totals"]["symlinks"], 1);
    assert_eq!(told["need"]["blocks"], 1);
    assert_eq!(told["need"]["inodes"], 2);
    assert!(!disk.beside("new.img").exists());
}

#[test]
fn pack_dry_run_tells_the_same_of_folder_and_image() {
    let disk = Fixture::new();
    let image = disk.beside("new.img");
    let tell = |source: &str| {
        let words = [
            "pack",
            "-n",
            "--json",
            "--exclude",
            "/lost+found",
            source,
            image.to_str().unwrap(),
        ];
        dioxide(words).json()
    };
    let folder = tell(disk.tree("").to_str().unwrap());
    assert_eq!(folder["totals"]["directories"], 5);
    assert_eq!(folder["totals"], tell(&disk.name())["totals"]);
    assert_eq!(folder["need"], tell(&disk.at("/"))["need"]);
    let text = dioxide(["pack", "-n", &disk.name(), image.to_str().unwrap()]);
    assert!(text.text().contains("\nTakes "), "{}", text.text());
}

#[test]
fn pack_makes_an_image_that_is_the_same_each_time_and_unpacks_to_the_source() {
    let disk = Fixture::new();
    let source = disk.tree("");
    let pack = |name: &str, zone: &str| {
        let image = disk.beside(name);
        let ran = command()
            .env("TZ", zone)
            .args(["pack", "-q", "-L", "root", "--owner-map", "0:0"])
            .args([&source, &image])
            .output()
            .unwrap();
        let said = [ran.stdout, ran.stderr].concat();
        assert_eq!((ran.status.code(), &said[..]), (Some(0), &b""[..]));
        image
    };
    let (first, second) = (pack("1.img", "UTC"), pack("2.img", "Asia/Tokyo"));
    assert!(fs::read(&first).unwrap() == fs::read(second).unwrap());
    dioxide_testkit::e2fsck_clean(&first);
    let out = disk.beside("out");
    let words = ["--exclude", "/lost+found"].map(str::to_owned);
    let paths = [&first, &out].map(|path| path.display().to_string());
    let ran = dioxide(["unpack".to_owned()].into_iter().chain(words).chain(paths));
    assert_eq!(ran.text(), "");
    coreutils(
        "diff",
        &[
            "-r",
            "--no-dereference",
            source.to_str().unwrap(),
            out.to_str().unwrap(),
        ],
    );
}

#[test]
fn pack_epoch_is_the_time_of_the_image_and_of_no_file_a_later_one() {
    let disk = Fixture::new();
    let image = disk.beside("new.img");
    let image = image.to_str().unwrap();
    let list = disk.tree("list");
    let json = dioxide([
        "pack",
        "--json",
        "--epoch",
        "1000",
        list.to_str().unwrap(),
        image,
    ])
    .json();
    assert_eq!(json["made"], true);
    assert_eq!(json["size_bytes"], fs::metadata(image).unwrap().len());
    let at = format!("{image}:/one");
    assert_eq!(dioxide(["stat", "-c", "%Y %Z", &at]).text(), "1000 1000\n");
    assert!(
        dioxide_testkit::dumpe2fs(image.as_ref()).contains("Filesystem created:       Thu Jan  1 ")
    );
}

#[test]
fn pack_epoch_before_1970_is_the_time_of_the_image_too() {
    let disk = Fixture::new();
    let image = disk.beside("new.img");
    let list = disk.tree("list");
    let words = ["pack", "-q", "--epoch=-100"].map(OsStr::new);
    let paths = [list.as_os_str(), image.as_os_str()];
    dioxide(words.into_iter().chain(paths)).text();
    let at = format!("{}:/one", image.display());
    assert_eq!(dioxide(["stat", "-c", "%Y %Z", &at]).text(), "-100 -100\n");
    e2fsck_clean(&image);
}

#[test]
fn pack_size_too_small_exits_2_and_leaves_what_was_there() {
    let disk = Fixture::new();
    let image = disk.beside("new.img");
    fs::write(&image, "old").unwrap();
    let [tree, name] = [disk.tree(""), image.clone()].map(|path| path.display().to_string());
    let ran = dioxide(["pack", "--size", "2M", &tree, &name]);
    assert_eq!(ran.status, Some(2));
    assert!(
        ran.stderr.contains("too small: the tree takes"),
        "{}",
        ran.stderr
    );
    assert_eq!(fs::read(&image).unwrap(), b"old");
    let ran = dioxide(["pack", "--size", "2M", "--reserve", "10%", &tree, &name]);
    assert_eq!(ran.status, Some(2));
    assert!(ran.stderr.contains("cannot be used with"), "{}", ran.stderr);
}

/// It told the way out of who removes files, or named the file that was at hand, not what is full.
#[test]
fn pack_without_room_names_what_is_full_and_the_way_out() {
    let disk = Fixture::new();
    let image = disk.beside("new.img").display().to_string();
    let tree = disk.tree("").display().to_string();
    let told = |words: &[&str], image: &str, told: &str| {
        let ran = dioxide([&["pack"], words, &[image]].concat());
        assert_eq!(ran.status, Some(2), "{words:?}: {}", ran.stderr);
        let begin = format!("dioxide: pack: {image}: ");
        assert!(ran.stderr.starts_with(&begin), "{}", ran.stderr);
        assert!(ran.stderr.contains(told), "{words:?}: {}", ran.stderr);
    };
    let larger = "; give a larger --size (-n without it tells one), or --fit in its place\n";
    told(&["--size", "2M", &tree], &image, larger);
    let many = disk.beside("many");
    fs::create_dir(&many).unwrap();
    (0..300).for_each(|name| fs::write(many.join(name.to_string()), "").unwrap());
    let many = many.to_str().unwrap();
    told(&["--size", "64K", many], &image, larger);
    told(
        &["--size", "0", many],
        &image,
        "0 blocks of 4096 are too few",
    );
    let inodes = "; ask for more inodes: a larger -N, a smaller -i, or neither\n";
    told(&["--size", "1M", "-i", "1M", many], &image, inodes);
}

#[test]
fn pack_on_a_full_disk_of_the_host_says_so() {
    need_root!();
    let disk = Fixture::new();
    let tree = disk.beside("filled");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("large"), dioxide_testkit::pattern(1, 0, 4 << 20)).unwrap();
    let archive = disk.beside("filled.tar.gz").display().to_string();
    coreutils(
        "tar",
        &["-C", tree.to_str().unwrap(), "-czf", &archive, "."],
    );
    let small = dioxide_testkit::Image::builder()
        .size(2 << 20)
        .args(&["-O", "^has_journal"])
        .build();
    let mount = dioxide_testkit::Mount::ext4(small.path(), "");
    let image = mount.path().join("new.img").display().to_string();
    let waits = format!("temporary file in {}", mount.path().display());
    for (words, about) in [
        (&[tree.to_str().unwrap()][..], &image),
        (&["--size", "1G", tree.to_str().unwrap()], &image),
        (&[&archive], &waits),
    ] {
        let ran = dioxide([&["pack"], words, &[&image]].concat());
        assert_eq!(ran.status, Some(2), "{words:?}");
        let what = "the host's disk is full; make room there, or put the image elsewhere";
        assert_eq!(
            ran.stderr,
            format!("dioxide: pack: {about}: No space left on device: {what}\n"),
        );
        let names = fs::read_dir(mount.path()).unwrap();
        assert_eq!(names.count(), 1, "{words:?} leaves more than lost+found");
    }
    mount.unmount();
}

#[test]
fn unpack_on_a_full_disk_names_the_file_and_keeps_what_was_there() {
    need_root!();
    let disk = Fixture::new();
    let tree = disk.beside("filled");
    fs::create_dir(&tree).unwrap();
    let random = dioxide_testkit::pattern(1, 0, 4 << 20);
    fs::write(tree.join("data.bin"), random).unwrap();
    let packed = disk.beside("filled.img").display().to_string();
    dioxide(["pack", "-q", tree.to_str().unwrap(), &packed]).text();
    let small = dioxide_testkit::Image::builder()
        .size(2 << 20)
        .args(&["-O", "^has_journal"])
        .build();
    let mount = dioxide_testkit::Mount::ext4(small.path(), "");
    let into = mount.path().join("r");
    fs::create_dir(&into).unwrap();
    fs::write(into.join("data.bin"), "old").unwrap();
    let into = into.display().to_string();
    let ran = dioxide([
        "unpack",
        "--merge",
        "--exclude",
        "/lost+found",
        &packed,
        &into,
    ]);
    assert_eq!(ran.status, Some(2));
    let told = format!("dioxide: unpack: {into}/data.bin: No space left on device\n");
    assert_eq!(ran.stderr, told);
    assert_eq!(coreutils("ls", &["-A", &into]), "data.bin\n");
    assert_eq!(coreutils("cat", &[&format!("{into}/data.bin")]), "old");
    mount.unmount();
}

/// Both the size that it takes without one, and the least that it takes.
#[test]
fn pack_dry_run_tells_a_size_that_is_enough() {
    let disk = Fixture::new();
    let (from, image) = (disk.beside("from"), disk.beside("new.img"));
    let [tree, name] = [&from, &image].map(|path| path.display().to_string());
    let pack = |more: &[&str]| dioxide([&["pack", "-b", "1024"], more, &[&tree, &name]].concat());
    for seed in 1..5 {
        fs::create_dir(&from).unwrap();
        // Some have more than the four extents that an inode has room for, where space is short.
        for number in 0..60 {
            let bytes = (number * number * 7919 * seed) % (300 << 10);
            fs::write(from.join(format!("{number:060}")), vec![b'x'; bytes]).unwrap();
        }
        let json = pack(&["-n", "--json"]).json();
        let told = json["size_bytes"].as_u64().unwrap();
        pack(&["-q", "--size", &told.to_string()]).text();
        e2fsck_clean(&image);
        let is_enough = |blocks: u64| {
            let size = (blocks << 10).to_string();
            pack(&["-q", "-n", "--size", &size]).status == Some(0)
        };
        let (mut low, mut least) = (1, told >> 10);
        while least - low > 1 {
            let middle = u64::midpoint(low, least);
            match is_enough(middle) {
                true => least = middle,
                false => low = middle,
            }
        }
        pack(&["-q", "--size", &(least << 10).to_string()]).text();
        e2fsck_clean(&image);
        fs::remove_dir_all(&from).unwrap();
    }
}

#[test]
fn unpack_into_folder_with_something_in_it_is_refused_without_merge() {
    let disk = Fixture::new();
    let out = disk.beside("out");
    fs::create_dir(&out).unwrap();
    fs::write(out.join("mine"), "").unwrap();
    let out = out.to_str().unwrap();
    let ran = dioxide(["unpack", &disk.at("/list"), out]);
    assert_eq!(ran.status, Some(2));
    assert_eq!(
        ran.stderr,
        format!("dioxide: unpack: {out}: is not empty\n")
    );
    let ran = dioxide(["unpack", "--json", "--merge", &disk.at("/list"), out]);
    assert_eq!(ran.json()["totals"]["files"], 3);
    assert_eq!(coreutils("ls", &[out]), "link\nmine\none\nthree\ntwo\n");
}

#[test]
fn pack_and_unpack_of_missing_directory_tell_and_exit_2_and_leave_nothing() {
    let disk = Fixture::new();
    let out = disk.beside("out.tar");
    for command in ["pack", "unpack"] {
        let ran = dioxide([command, &disk.at("/nope"), out.to_str().unwrap()]);
        assert_eq!(ran.status, Some(2), "{command}");
        let said = ran.stderr;
        assert!(said.contains("No such file or directory"), "{said}");
        assert!(!out.exists(), "{command}");
    }
}

#[test]
fn pack_of_bad_archive_is_refused_by_name_and_exits_2() {
    let disk = Fixture::new();
    let archive = disk.beside("bad.tar");
    let hello = disk.tree("hello");
    let [archive_name, tree] = [&archive, &hello].map(|path| path.to_str().unwrap());
    coreutils("tar", &["-P", "-cf", archive_name, tree]);
    let ran = dioxide(["pack", "-n", archive_name, "new.img"]);
    assert_eq!(ran.status, Some(2));
    assert_eq!(
        ran.stderr,
        format!("dioxide: pack: {tree}: an absolute path\n")
    );
    let parent = disk.tree("");
    coreutils(
        "tar",
        &["-C", parent.to_str().unwrap(), "-cf", archive_name, "hello"],
    );
    let cut = fs::read(&archive).unwrap();
    fs::write(&archive, &cut[..520]).unwrap();
    let ran = dioxide(["pack", "-n", archive_name, "new.img"]);
    assert_eq!(ran.status, Some(2));
    assert!(ran.stderr.contains("truncated"), "{}", ran.stderr);
}

#[test]
fn source_date_epoch_clamps_times_and_must_be_a_number() {
    let disk = Fixture::new();
    let run = |epoch: &str, out: &str| {
        let out = disk.beside(out);
        let done = command()
            .env("SOURCE_DATE_EPOCH", epoch)
            .args(["unpack", &disk.at("/list")])
            .arg(&out)
            .output();
        (done.unwrap().status.code(), out)
    };
    let (status, out) = run("1000", "out");
    assert_eq!(status, Some(0));
    assert_eq!(
        coreutils("stat", &["-c", "%Y", out.join("one").to_str().unwrap()]),
        "1000\n"
    );
    assert_eq!(run("soon", "other").0, Some(2));
    // As if it were not set.
    let (status, out) = run("", "empty");
    assert_eq!(status, Some(0));
    let [copy, file] = [out.join("one"), disk.tree("list/one")];
    let mtime = |file: &Path| file.metadata().unwrap().mtime();
    assert_eq!(mtime(&copy), mtime(&file));
}

#[test]
fn file_in_use_is_replaced_by_no_command() {
    let disk = Fixture::new();
    let (into, source) = (disk.beside("into"), disk.tree(""));
    fs::create_dir(&into).unwrap();
    let used = into.join("used.img");
    let (name, source) = (used.to_str().unwrap(), source.to_str().unwrap());
    dioxide(["pack", "-q", source, name]).text();
    let before = fs::read(&used).unwrap();
    let holder = dioxide::Fs::open(&used, &dioxide::MountOptions::new()).unwrap();
    // Refused before the source is looked at.
    for words in [
        &["pack", source, name][..],
        &["pack", "/nowhere.tar", name],
        &["unpack", "--tar", &disk.at("/"), name],
        &["cp", &disk.at("/hello"), name],
        &["map", "--svg", name, &disk.name()],
        &["extents", "--html", name, &disk.at("/hello")],
    ] {
        let ran = dioxide(words);
        assert_eq!(ran.status, Some(2), "{words:?}");
        let expected = format!(
            "{name}: is in use: locked by process {}",
            std::process::id()
        );
        assert!(ran.stderr.contains(&expected), "{words:?}: {}", ran.stderr);
        assert!(fs::read(&used).unwrap() == before, "{words:?}");
    }
    let tree = disk.beside("one");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("used.img"), "another").unwrap();
    let packed = disk.beside("one.img");
    let packed = packed.to_str().unwrap();
    dioxide(["pack", "-q", tree.to_str().unwrap(), packed]).text();
    let ran = dioxide(["unpack", "--merge", packed, into.to_str().unwrap()]);
    assert_eq!(ran.status, Some(2));
    assert!(ran.stderr.contains("is in use"), "{}", ran.stderr);
    assert!(fs::read(&used).unwrap() == before);
    holder.close().unwrap();
    dioxide(["pack", "-q", source, name]).text();
}

#[test]
fn pack_of_an_image_onto_itself_is_refused() {
    let disk = Fixture::new();
    for source in [disk.name(), disk.at("/list")] {
        let ran = dioxide(["pack", &source, &disk.name()]);
        assert_eq!(ran.status, Some(2));
        assert!(ran.stderr.contains("is what is packed"), "{}", ran.stderr);
    }
}

#[test]
fn file_that_is_replaced_keeps_its_mode_and_owner() {
    let disk = Fixture::new();
    let (list, from) = (disk.tree("list"), disk.at("/list"));
    for name in ["new.img", "new.tar"] {
        let place = disk.beside(name);
        let words = match name {
            "new.img" => ["pack".as_ref(), list.as_os_str(), place.as_os_str()],
            _ => ["unpack".as_ref(), from.as_ref(), place.as_os_str()],
        };
        let made = || {
            assert_eq!(dioxide(words).status, Some(0), "{name}");
            fs::metadata(&place).unwrap()
        };
        let umask = fs::metadata(disk.tree("hello")).unwrap().mode() & 0o777;
        assert_eq!(made().mode() & 0o777, umask, "{name}");
        fs::set_permissions(&place, fs::Permissions::from_mode(0o640)).unwrap();
        let is_root = rustix::process::geteuid().is_root();
        let owner = is_root.then_some(1234);
        chown(&place, owner, owner).unwrap();
        let old = fs::metadata(&place).unwrap();
        let new = made();
        assert_ne!(new.ino(), old.ino(), "{name}");
        let kept = |of: &fs::Metadata| (of.mode(), of.uid(), of.gid());
        assert_eq!(kept(&new), kept(&old), "{name}");
    }
    e2fsck_clean(&disk.beside("new.img"));
}

/// Whose group this user is not in.
#[test]
fn archive_in_the_place_of_a_file_of_another_user_is_for_no_group() {
    need_root!();
    let disk = Fixture::new();
    let [from, to] = ["from", "to"].map(|name| disk.beside(name));
    fs::create_dir(&from).unwrap();
    let image = pack_for_a_user(&disk, &from, &to);
    let archive = to.join("old.tar");
    fs::write(&archive, "old").unwrap();
    fs::set_permissions(&archive, fs::Permissions::from_mode(0o640)).unwrap();
    let words = ["unpack", image.to_str().unwrap(), archive.to_str().unwrap()];
    assert_eq!(as_the_user(&words), "");
    let made = fs::metadata(&archive).unwrap();
    assert_eq!((made.mode() & 0o777, made.uid()), (0o600, 1234));
    assert!(listed(&archive).contains(&"./lost+found/".to_owned()));
}

#[test]
fn image_in_the_folder_that_it_is_made_of_is_left_out() {
    let disk = Fixture::new();
    let source = disk.tree("");
    let image = source.join("own.img");
    // The second time one is there.
    for _ in 0..2 {
        dioxide([Path::new("pack"), Path::new("-q"), &source, &image]).text();
        let listed = dioxide([
            "ls".to_owned(),
            "-a".into(),
            format!("{}:/", image.display()),
        ]);
        let mut names: Vec<_> = listed.text().lines().map(str::to_owned).collect();
        names.retain(|name| ![".", "..", "lost+found"].contains(&name.as_str()));
        let mut wanted: Vec<_> = fs::read_dir(&source)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name != "own.img")
            .collect();
        wanted.sort();
        names.sort();
        assert_eq!(names, wanted);
        e2fsck_clean(&image);
    }
}

#[test]
fn pack_with_too_few_inodes_is_refused_and_says_how_many_are_needed() {
    let disk = Fixture::new();
    let (source, image) = (disk.tree(""), disk.beside("few.img"));
    let pack = |count: u64| {
        let count = count.to_string();
        let words = ["pack", "-N", &count, "--json"].map(OsStr::new);
        dioxide(
            words
                .into_iter()
                .chain([source.as_os_str(), image.as_os_str()]),
        )
    };
    let ran = pack(12);
    assert_eq!(ran.status, Some(2));
    let told = ran.stderr.split(" are too few: ").nth(1).unwrap();
    let needed: u64 = told.split(' ').next().unwrap().parse().unwrap();
    assert!(!image.exists());
    assert_eq!(pack(needed - 1).status, Some(2));
    let made = pack(needed).json();
    assert!(made["size_bytes"].as_u64().unwrap() < 8 << 20, "{made}");
    e2fsck_clean(&image);
}

#[test]
fn options_of_an_image_are_refused_where_the_source_is_none() {
    let disk = Fixture::new();
    let (source, image) = (disk.tree(""), disk.beside("o.img"));
    for option in ["--img-offset=1M", "--sb=8193", "--backend=pread"] {
        let words = ["pack", "-n", option].map(OsStr::new);
        let ran = dioxide(
            words
                .into_iter()
                .chain([source.as_os_str(), image.as_os_str()]),
        );
        assert_eq!(ran.status, Some(2), "{option}");
        assert!(
            ran.stderr.contains("is for an image as SRC"),
            "{}",
            ran.stderr
        );
    }
    let (name, image) = (disk.name(), image.to_str().unwrap());
    dioxide(["pack", "-n", "-q", "--backend=pread", &name, image]).text();
}

#[test]
fn file_of_nobody_is_not_packed() {
    let disk = Fixture::new();
    let (source, image) = (disk.tree(""), disk.beside("o.img"));
    let words = ["pack", "--owner-map", "0:4294967295"].map(OsStr::new);
    let ran = dioxide(
        words
            .into_iter()
            .chain([source.as_os_str(), image.as_os_str()]),
    );
    assert_eq!(ran.status, Some(2));
    assert!(ran.stderr.contains("4294967295"), "{}", ran.stderr);
    assert!(!image.exists());
}

#[test]
fn times_that_small_inodes_do_not_keep_are_told_once() {
    let disk = Fixture::new();
    let tree = disk.tree("");
    let pack = |inode_bytes: &str| {
        let image = disk.beside("times.img");
        let paths = [&tree, &image].map(|path| path.to_str().unwrap().to_owned());
        let ran = dioxide(["pack", "-I", inode_bytes, &paths[0], &paths[1]]);
        (ran.status, ran.stderr.matches("nanoseconds").count())
    };
    assert_eq!(pack("256"), (Some(0), 0));
    assert_eq!(pack("128"), (Some(1), 1));
}

/// A list that files get from where they are put would give rights that the image knows nothing of.
#[test]
fn unpack_leaves_no_lists_of_the_folder_that_it_writes_into() {
    need_root!();
    let disk = Fixture::new();
    for (folder, merge) in [("new", false), ("old", true)] {
        let out = disk.beside(folder);
        fs::create_dir(&out).unwrap();
        if merge {
            fs::write(out.join("one"), "old").unwrap();
        }
        let out = out.display().to_string();
        let list = [
            &b"\x02\0\0\0"[..],
            &acl_entry(1, 7, u32::MAX),
            &acl_entry(2, 7, 1234),
        ];
        let rest = [
            acl_entry(4, 0, u32::MAX),
            acl_entry(16, 7, u32::MAX),
            acl_entry(32, 0, u32::MAX),
        ];
        let list = [list.concat(), rest.concat()].concat();
        let name = "system.posix_acl_default";
        rustix::fs::setxattr(&*out, name, &list, rustix::fs::XattrFlags::empty()).unwrap();
        let flags: &[&str] = if merge { &["--merge"] } else { &[] };
        let words = ["unpack", &disk.name(), &out];
        dioxide(words.iter().chain(flags)).text();
        let told = coreutils("find", &[&out, "-exec", "ls", "-ldb", "{}", ";"]);
        let with_list = told.lines().find(|line| line.as_bytes()[10] == b'+');
        assert_eq!(with_list, None, "{folder}");
    }
}

/// As the kernel has it: a tag, rights, and a number.
fn acl_entry(tag: u16, rights: u16, id: u32) -> Vec<u8> {
    [
        &tag.to_le_bytes()[..],
        &rights.to_le_bytes(),
        &id.to_le_bytes(),
    ]
    .concat()
}

/// Packs a folder, and makes another one to unpack into, for a user who has no other rights; the image.
fn pack_for_a_user(disk: &Fixture, from: &Path, to: &Path) -> PathBuf {
    let image = disk.beside("made.img");
    dioxide([
        OsStr::new("pack"),
        OsStr::new("-q"),
        from.as_os_str(),
        image.as_os_str(),
    ])
    .text();
    fs::create_dir(to).unwrap();
    chown(to, Some(1234), Some(1234)).unwrap();
    for path in [&disk.beside(""), &image] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    image
}

/// What `dioxide` prints for that user.
fn as_the_user(words: &[&str]) -> String {
    let user = ["--reuid=1234", "--regid=1234", "--clear-groups"];
    let program = [env!("CARGO_BIN_EXE_dioxide")];
    coreutils("setpriv", &[&user[..], &program, words].concat())
}

#[test]
fn attributes_of_what_its_owner_may_not_write_are_unpacked_without_root() {
    need_root!();
    let disk = Fixture::new();
    let [from, to] = ["from", "to"].map(|name| disk.beside(name));
    fs::create_dir_all(from.join("dir")).unwrap();
    fs::write(from.join("file"), "x").unwrap();
    for name in ["dir", "file"] {
        let path = from.join(name);
        rustix::fs::setxattr(&path, "user.k", b"v", rustix::fs::XattrFlags::empty()).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o555)).unwrap();
        chown(&path, Some(1234), Some(1234)).unwrap();
    }
    let image = pack_for_a_user(&disk, &from, &to);
    let unpack = [
        "unpack",
        "--exclude",
        "/lost+found",
        image.to_str().unwrap(),
        to.to_str().unwrap(),
    ];
    assert_eq!(as_the_user(&unpack), "");
    for name in ["dir", "file"] {
        let mut value = [0; 8];
        let len = rustix::fs::getxattr(to.join(name), "user.k", &mut value[..]).unwrap();
        assert_eq!(&value[..len], b"v", "{name}");
    }
}

/// The first name of the file lies where only root may look by then.
#[test]
fn file_with_a_name_in_a_directory_that_is_closed_is_unpacked_without_root() {
    need_root!();
    let disk = Fixture::new();
    let [from, to] = ["from", "to"].map(|name| disk.beside(name));
    fs::create_dir_all(from.join("a/deep")).unwrap();
    fs::write(from.join("a/deep/file"), "x").unwrap();
    fs::hard_link(from.join("a/deep/file"), from.join("b")).unwrap();
    for (directory, mode) in [("a/deep", 0o500), ("a", 0o600)] {
        let path = from.join(directory);
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        coreutils("touch", &["-d", "@1000", path.to_str().unwrap()]);
    }
    let image = pack_for_a_user(&disk, &from, &to);
    let (image, folder) = (image.to_str().unwrap(), to.to_str().unwrap());
    let unpack = ["unpack", "--exclude", "/lost+found", image, folder];
    assert_eq!(as_the_user(&unpack), "");
    let made = |path| fs::metadata(to.join(path)).unwrap();
    assert_eq!(made("a/deep/file").ino(), made("b").ino());
    for (directory, mode) in [("a/deep", 0o500), ("a", 0o600)] {
        let made = made(directory);
        assert_eq!((made.mode() & 0o7777, made.mtime()), (mode, 1000));
    }
}

/// Who replaces a file need not be allowed to open it.
#[test]
fn files_without_any_permission_are_replaced_without_root() {
    need_root!();
    let disk = Fixture::new();
    let [from, to] = ["from", "to"].map(|name| disk.beside(name));
    fs::create_dir(&from).unwrap();
    fs::write(from.join("file"), "x").unwrap();
    fs::set_permissions(from.join("file"), fs::Permissions::from_mode(0o000)).unwrap();
    let image = pack_for_a_user(&disk, &from, &to);
    let (image, to) = (image.to_str().unwrap(), to.to_str().unwrap());
    let file = format!("{image}:/file");
    let unpack = ["unpack", "--merge", "--exclude", "/lost+found", image, to];
    for words in [
        &unpack[..],
        &unpack,
        &["cp", "-a", &file, to],
        &["cp", &file, to],
    ] {
        assert_eq!(as_the_user(words), "", "{words:?}");
        let made = fs::metadata(format!("{to}/file")).unwrap();
        assert_eq!((made.mode() & 0o7777, made.uid()), (0, 1234), "{words:?}");
        assert_eq!(fs::read(format!("{to}/file")).unwrap(), b"x", "{words:?}");
        fs::write(format!("{to}/file"), "old").unwrap();
    }
}

/// Whoever has only a part of an archive is not told that it is all.
#[test]
fn unpack_into_a_pipe_that_is_closed_fails() {
    let disk = Fixture::new();
    let mut child = command()
        .args(["unpack", &disk.name(), "-"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let ran = child.wait_with_output().unwrap();
    let told = String::from_utf8(ran.stderr).unwrap();
    assert_eq!(ran.status.code(), Some(2), "{told}");
    assert!(told.contains("Broken pipe"), "{told}");
}

#[test]
fn interrupted_pack_leaves_nothing_behind() {
    let disk = Fixture::new();
    let from = disk.beside("from");
    fs::create_dir(&from).unwrap();
    fs::write(from.join("large"), vec![7; 128 << 20]).unwrap();
    let made = disk.beside("made.img");
    let unfinished = || {
        let entries = fs::read_dir(disk.beside("")).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name());
        names
            .filter(|name| name.to_string_lossy().starts_with(".dioxide-"))
            .count()
    };
    let stopped = (0..10).any(|_| {
        let mut child = command()
            .args([OsStr::new("pack"), from.as_os_str(), made.as_os_str()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        while unfinished() == 0 && child.try_wait().unwrap().is_none() {
            std::hint::spin_loop();
        }
        let pid = rustix::process::Pid::from_child(&child);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let status = child.wait().unwrap().code();
        assert_eq!(unfinished(), 0);
        assert_eq!(made.exists(), status == Some(0));
        let _ = fs::remove_file(&made);
        status == Some(130)
    });
    assert!(stopped, "each came to its end before it was told");
}

/// What is compressed may have any bytes where an image has its magic.
#[test]
fn compressed_archive_that_looks_like_an_image_is_read_as_an_archive() {
    let disk = Fixture::new();
    fs::write(disk.beside("file"), "x").unwrap();
    let plain = disk.beside("plain.tar.gz");
    let beside = disk.beside("").display().to_string();
    let args = ["-C", &beside, "-czf", plain.to_str().unwrap(), "file"];
    coreutils("tar", &args);
    let plain = fs::read(&plain).unwrap();
    // With a comment in the header, which ends at a NUL.
    let mut gzip = plain[..10].to_vec();
    gzip[3] = 0x10;
    gzip.resize(1024 + 56, b'x');
    gzip.extend([0x53, 0xEF, 0]);
    gzip.extend(&plain[10..]);
    let archive = disk.beside("odd.tar.gz");
    fs::write(&archive, gzip).unwrap();
    let image = disk.beside("made.img");
    dioxide([
        OsStr::new("pack"),
        OsStr::new("-q"),
        archive.as_os_str(),
        image.as_os_str(),
    ])
    .text();
    let told = dioxide(["cat", &format!("{}:/file", image.display())]);
    assert_eq!(told.text(), "x");
    e2fsck_clean(&image);
}

#[test]
fn pack_dry_run_refuses_what_pack_does() {
    let disk = Fixture::new();
    let [from, image] = ["from", "made.img"].map(|name| disk.beside(name));
    fs::create_dir(&from).unwrap();
    let words = ["pack", "-q", "-b", "1k"].map(OsStr::new);
    let paths = [from.as_os_str(), image.as_os_str()];
    for (target, status) in [("t".repeat(1023), 0), ("t".repeat(1024), 2)] {
        std::os::unix::fs::symlink(target, from.join(status.to_string())).unwrap();
        let pack = |more: &[&str]| {
            let more = more.iter().map(OsStr::new);
            dioxide(words.into_iter().chain(more).chain(paths))
        };
        let (asked, done) = (pack(&["-n"]), pack(&[]));
        assert_eq!((asked.status, done.status), (Some(status), Some(status)));
        assert_eq!(asked.stderr, done.stderr);
    }
    e2fsck_clean(&image);
}

/// Each group has a number of inodes that eight divides.
#[test]
fn tree_of_as_many_files_as_round_badly_has_room_in_an_image_of_a_given_size() {
    let disk = Fixture::new();
    let from = disk.beside("from");
    fs::create_dir(&from).unwrap();
    let mut sizes = Vec::new();
    for files in 2040..2060 {
        while fs::read_dir(&from).unwrap().count() < files {
            let number = fs::read_dir(&from).unwrap().count();
            fs::write(from.join(number.to_string()), "").unwrap();
        }
        let image = disk.beside("made.img");
        let words = |size: &'static [&'static str]| {
            let first = ["pack", "-q", "-b", "1k"]
                .iter()
                .chain(size)
                .map(OsStr::new);
            first
                .chain([from.as_os_str(), image.as_os_str()])
                .collect::<Vec<_>>()
        };
        dioxide(words(&["--size", "20M"])).text();
        dioxide(words(&[])).text();
        sizes.push(image.metadata().unwrap().len());
    }
    let (least, most) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
    assert!(most - least < least / 4, "{sizes:?}");
    e2fsck_clean(&disk.beside("made.img"));
}

/// Nobody is waited for, and no host or time is told: the image has no name while it is made.
#[test]
fn image_with_multi_mount_protection_is_the_same_each_time() {
    let disk = Fixture::new();
    let from = disk.beside("from");
    fs::create_dir(&from).unwrap();
    fs::write(from.join("file"), "x").unwrap();
    let begin = Instant::now();
    let images = ["a.img", "b.img"].map(|name| {
        let image = disk.beside(name);
        let words = ["pack", "-q", "-O", "mmp"].map(OsStr::new);
        dioxide(
            words
                .into_iter()
                .chain([from.as_os_str(), image.as_os_str()]),
        )
        .text();
        e2fsck_clean(&image);
        std::thread::sleep(Duration::from_secs(1));
        fs::read(image).unwrap()
    });
    assert!(images[0] == images[1]);
    assert!(begin.elapsed() < Duration::from_secs(15));
}

#[test]
fn pack_of_folder_takes_no_more_descriptors_than_it_is_deep() {
    let disk = Fixture::new();
    let [tree, image] = ["wide", "new.img"].map(|name| disk.beside(name));
    for index in 0..200 {
        let deep = tree.join(format!("{index}/a/b"));
        fs::create_dir_all(&deep).unwrap();
        fs::write(deep.join("file"), "x").unwrap();
    }
    let script = r#"ulimit -n 40; exec "$0" pack -q "$1" "$2""#;
    let dioxide = env!("CARGO_BIN_EXE_dioxide");
    let paths = [&tree, &image].map(|path| path.to_str().unwrap());
    coreutils("bash", &["-c", script, dioxide, paths[0], paths[1]]);
    e2fsck_clean(&image);
}

#[test]
fn pack_of_folder_needs_no_proc() {
    need_root!();
    let disk = Fixture::new();
    let [tree, image] = ["tree", "new.img"].map(|name| disk.beside(name));
    let script = r#"mount --make-rprivate / && umount -l /proc && exec "$0" pack -q "$1" "$2""#;
    let dioxide = env!("CARGO_BIN_EXE_dioxide");
    let paths = [&tree, &image].map(|path| path.to_str().unwrap());
    let words = ["-m", "bash", "-c", script, dioxide, paths[0], paths[1]];
    coreutils("unshare", &words);
    e2fsck_clean(&image);
}
