//! cp and mv into images, inside them and between them, compared with GNU's programs on the same image mounted.

use super::support::{Fixture, Ran, at, command, coreutils, dioxide, ends_soon, tell_to_end};
use super::twins::Twins;
use dioxide_testkit::{Image, Mount, e2fsck_clean, need_root, pattern};
use rustix::process::Signal;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A tree on the host with a file of each kind, and access control lists.
fn host_tree(twins: &Twins) -> String {
    let tree = twins.host("tree");
    fs::create_dir(&tree).unwrap();
    super::populate(Path::new(&tree));
    let script = format!(
        "cd '{tree}' && setfacl -m u:1000:r,m::r hello && setfacl -d -m g:7:rwx log && chmod 2750 'odd name'"
    );
    coreutils("bash", &["-c", &script]);
    tree
}

#[test]
fn archive_copy_into_an_image_is_the_tree_that_gnu_makes() {
    need_root!();
    let twins = Twins::new();
    host_tree(&twins);
    twins.run(
        &["cp -a %/tree @/in", "touch -d @5 @/"],
        "cp -a $H/tree in; touch -d @5 .",
    );
    twins.check(true);
    let told = dioxide(twins.words("stat -c %b @/in/sparse"));
    let blocks: u64 = told.text().trim_end().parse().unwrap();
    assert!(blocks < 100, "holes are holes: {blocks}");
    // Once more over itself: nothing is in the way, nothing temporary is left.
    twins.run(
        &["cp -aT %/tree @/in", "touch -d @5 @/"],
        "cp -aT $H/tree in; touch -d @5 .",
    );
    twins.check(true);
}

#[test]
fn copies_into_an_image_have_the_modes_and_owners_that_gnu_gives() {
    need_root!();
    let twins = Twins::new();
    host_tree(&twins);
    twins.same(
        &[
            "cp -r %/tree/deep @/new",
            "cp -r %/tree/log/. @/deep",
            "cp %/tree/large @/log/c.gz",
            "cp %/tree/hello @/large",
            "cp -n %/tree/large @/empty",
            "cp -p %/tree/log/c.gz @/preserved",
            "cp -t @/dir %/tree/log/a.gz %/tree/large",
            "cp %/tree/to-dir/link @/deep",
            "cp -T %/tree/hello @/named",
            "cp -pr %/tree/log @/p",
        ],
        "cp -r $H/tree/deep new; cp -r $H/tree/log/. deep; cp $H/tree/large log/c.gz; \
         cp $H/tree/hello large; cp -n $H/tree/large empty; cp -p $H/tree/log/c.gz preserved; \
         cp -t dir $H/tree/log/a.gz $H/tree/large; cp $H/tree/to-dir/link deep; cp -T $H/tree/hello named; \
         cp -pr $H/tree/log p",
    );
    dioxide(twins.words("cp -r --owner 5:6 %/tree/deep @/owned")).text();
    let told = dioxide(twins.words("stat -c %u:%g @/owned @/owned/er"));
    assert_eq!(told.text(), "5:6\n5:6\n");
}

#[test]
fn copies_inside_an_image_are_those_that_gnu_makes() {
    need_root!();
    let twins = Twins::new();
    twins.same(
        &[
            "cp -a @/dir @/log @/hello @/deep",
            "cp -a @/sparse @/null @/pipe @/socket @/dangling @/log",
            "cp @/to-dir/hard @/plain",
            "cp -r @/log @/log2",
            "cp @/large @/sparse",
            "cp -r @/pipe @/large",
        ],
        "cp -a dir log hello deep; cp -a sparse null pipe socket dangling log; cp to-dir/hard plain; \
         cp -r log log2; cp large sparse; cp -r pipe large",
    );
    let told = dioxide(twins.words("stat -c %b @/log/sparse"));
    let blocks: u64 = told.text().trim_end().parse().unwrap();
    assert!(blocks < 100, "holes are holes: {blocks}");
}

#[test]
fn copies_between_images_are_those_of_linux() {
    need_root!();
    let (from, to) = (Twins::new(), Twins::new());
    let source = at(from.image(), "/");
    let ours: Vec<_> = ["cp", "-a", "-T", &source]
        .map(str::to_owned)
        .into_iter()
        .chain(to.words("@/all"))
        .collect();
    let before = fs::read(from.image()).unwrap();
    dioxide(ours).text();
    assert!(fs::read(from.image()).unwrap() == before, "it is only read");
    dioxide(to.words("touch -d @5 @/")).text();
    let mount = Mount::ext4(from.image(), "ro");
    let script = format!("cp -aT '{}' all; touch -d @5 .", mount.path().display());
    to.run(&[], &script);
    mount.unmount();
    to.check(true);
}

#[test]
fn copy_of_a_pipe_or_a_file_of_unknown_length_has_all_of_it() {
    let disk = Fixture::new();
    let script = format!(
        "head -c 3000000 '{}' | {} cp /dev/stdin '{}'",
        disk.tree("large").display(),
        env!("CARGO_BIN_EXE_dioxide"),
        disk.at("/piped"),
    );
    coreutils("bash", &["-c", &script]);
    let large = fs::read(disk.tree("large")).unwrap();
    assert!(dioxide(["cat", &disk.at("/piped")]).stdout == large[..3_000_000]);
    dioxide(["cp", "/proc/self/status", &disk.at("/status")]).text();
    let told = dioxide(["cat", &disk.at("/status")]);
    assert!(told.text().contains("dioxide"), "{}", told.text());
    e2fsck_clean(disk.image());
}

/// Those of sysfs say that they have 4 KiB.
#[test]
fn copy_of_a_file_that_ends_before_its_length_has_what_reading_gives() {
    let disk = Fixture::new();
    let short = "/sys/kernel/mm/transparent_hugepage/enabled";
    let short = [short, "/sys/kernel/uevent_seqnum", "/sys/kernel/profiling"]
        .into_iter()
        .find(|path| Path::new(path).exists())
        .expect("one of them is there on every Linux");
    let content = fs::read(short).unwrap();
    assert!((content.len() as u64) < fs::metadata(short).unwrap().len());
    for flags in [&[][..], &["-a"]] {
        let place = disk.at("/short");
        let words = ["cp", short, &place];
        dioxide(words.iter().chain(flags)).text();
        assert!(dioxide(["cat", &place]).stdout == content, "{flags:?}");
        let size = dioxide(["stat", "-c", "%s", &place]);
        assert_eq!(size.text(), format!("{}\n", content.len()));
    }
    e2fsck_clean(disk.image());
}

/// Of a symlink that leads to the directory where a copy goes.
#[test]
fn copy_through_a_symlink_gives_its_attributes_to_the_directory() {
    need_root!();
    let twins = Twins::new();
    let made = format!(
        "mkdir '{0}' && echo x >'{0}/file' && chown -R 7:8 '{0}' && chmod 751 '{0}' && touch -d @7 '{0}/file' '{0}'",
        twins.host("from")
    );
    coreutils("bash", &["-c", &made]);
    twins.both(
        "chmod 700 deep/er; ln -s deep/er into; ln -s deep/er/est exactly; touch -h -d @9 into exactly; touch -d @5 .",
    );
    twins.run(
        &["cp -a %/from/. @/into", "cp -aT %/from/. @/exactly"],
        "cp -a $H/from/. into; cp -aT $H/from exactly/.",
    );
    twins.check(true);
    // As the user called it.
    let told = dioxide(twins.words("cp -av %/from/. @/into"));
    let into = at(twins.image(), "/into");
    assert!(
        told.text()
            .ends_with(&format!("/from/./file' -> '{into}/file'\n")),
        "{}",
        told.text()
    );
    assert!(!told.text().contains(&format!("{into}/.")));
    // On the host.
    let (link, real) = (twins.host("link"), twins.host("real"));
    fs::create_dir(&real).unwrap();
    symlink(&real, &link).unwrap();
    let before = fs::symlink_metadata(&link).unwrap();
    dioxide(twins.words("cp -a @/into/. %/link")).text();
    let after = fs::symlink_metadata(&link).unwrap();
    assert_eq!((after.uid(), after.mtime()), (0, before.mtime()));
    let real = fs::metadata(&real).unwrap();
    assert_eq!((real.mode() & 0o7777, real.mtime()), (0o751, 7));
    assert_eq!((real.uid(), real.gid()), (7, 8));
    // What leads nowhere is no place for it.
    let ran = dioxide(twins.words("cp -a %/from/. @/dangling"));
    assert_eq!(ran.status, Some(2), "{}", ran.stderr);
}

/// A name that another file has taken since is no copy any more, and what has its name already needs no other.
#[test]
fn trees_with_files_in_common_are_copied_over_each_other() {
    let disk = Fixture::new();
    let at_host = |path: &str| disk.beside(path);
    for snapshot in ["snap1", "snap2"] {
        fs::create_dir(at_host(snapshot)).unwrap();
    }
    fs::write(at_host("snap1/conf"), "old").unwrap();
    fs::hard_link(at_host("snap1/conf"), at_host("snap2/conf.old")).unwrap();
    fs::write(at_host("snap2/conf"), "new").unwrap();
    fs::write(at_host("snap1/same"), "same").unwrap();
    fs::hard_link(at_host("snap1/same"), at_host("snap2/same")).unwrap();
    let [one, two] = ["snap1", "snap2"].map(|name| at_host(name).display().to_string());
    let (all, into) = (disk.at("/all"), disk.at("/into"));
    dioxide(["mkdir", &all, &into]).text();
    dioxide(["cp", "-a", &format!("{one}/."), &format!("{two}/."), &into]).text();
    let expected = [("conf", "new"), ("conf.old", "old"), ("same", "same")];
    for (name, content) in expected {
        let told = dioxide(["cat", &format!("{into}/{name}")]);
        assert_eq!(told.text(), content, "{name}");
    }
    let names = dioxide(["ls", "-A", &into]);
    assert_eq!(names.text(), "conf\nconf.old\nsame\n");
    // Out of an image.
    dioxide(["cp", "-a", &one, &two, &all]).text();
    let out = at_host("out");
    fs::create_dir(&out).unwrap();
    let sources = ["/all/snap1/.", "/all/snap2/."].map(|path| disk.at(path));
    dioxide(["cp", "-a", &sources[0], &sources[1], out.to_str().unwrap()]).text();
    for (name, content) in expected {
        let file = out.join(name);
        assert_eq!(fs::read_to_string(&file).unwrap(), content, "{name}");
        assert_eq!(fs::metadata(&file).unwrap().nlink(), 1, "{name}");
    }
    assert_eq!(fs::read_dir(&out).unwrap().count(), expected.len());
    e2fsck_clean(disk.image());
}

#[test]
fn copy_that_makes_no_sense_is_refused_and_the_rest_is_made() {
    let disk = Fixture::new();
    let (hello, dir) = (disk.at("/hello"), disk.at("/dir"));
    let same = format!("dioxide: cp: '{hello}' and '{hello}' are the same file\n");
    for (args, told) in [
        (vec![&*hello, &*hello], &*same),
        (vec![&*dir, &*hello], "-r was not given"),
        (vec!["-r", &*dir, &*hello], "is no directory"),
        (vec!["-T", &*hello, &*dir], "is a directory"),
        (vec!["-r", &*dir, &*disk.at("/dir/sub")], "into itself"),
        (vec!["/etc/hostname", "/dev/shm/x"], "is on the host"),
        (vec!["/etc/hostname", &*disk.at("/new/")], "Not a directory"),
        (vec!["-t", &*hello, "/etc/hostname"], "Not a directory"),
        (vec![&*hello], "two operands"),
        (vec!["-T", &*hello, "a", "b"], "one too many"),
        (
            vec![
                &*hello,
                &*disk.at("/list/link"),
                "/etc/hostname",
                &*disk.at("/x"),
            ],
            "No such file or directory, and ",
        ),
    ] {
        let ran = dioxide(std::iter::once("cp").chain(args.iter().copied()));
        assert_eq!(ran.status, Some(2), "{args:?}");
        assert!(ran.stderr.contains(told), "{args:?}: {}", ran.stderr);
    }
    // Beside itself there was something else to copy.
    let told = dioxide(["ls", "-A", &disk.at("/dir/sub")]);
    assert_eq!(told.text(), ".hidden\na b\n");
    // The image itself is not in it, and what holds the only copy of a file is not removed.
    let holder = disk.beside("holder");
    fs::create_dir(&holder).unwrap();
    let image = holder.join("disk.img");
    fs::copy(disk.image(), &image).unwrap();
    let (held, holder) = (at(&image, "/held"), holder.display().to_string());
    for command in [&["cp", "-a"][..], &["mv"]] {
        let words = command.iter().copied().chain([&*holder, &*held]);
        let ran = dioxide(words);
        assert_eq!(ran.status, Some(2), "{command:?}");
        assert!(ran.stderr.contains("is the image that"), "{}", ran.stderr);
        dioxide(["rm", "-r", &held]).text();
    }
    e2fsck_clean(&image);
    // Two of one name: the first stays.
    fs::write(disk.beside("one"), "other").unwrap();
    let one = disk.beside("one").display().to_string();
    let ran = dioxide(["cp", &disk.at("/list/one"), &one, &dir]);
    assert_eq!(ran.status, Some(2));
    assert!(ran.stderr.contains("was made just now"), "{}", ran.stderr);
    assert_eq!(dioxide(["cat", &disk.at("/dir/one")]).stdout.len(), 1);
    let told = dioxide(["cp", "--json", &disk.at("/list/t*"), &dir]).json();
    assert_eq!(told[1]["action"], "copied");
    assert_eq!(told[1]["to_image"], disk.name());
    assert_eq!(told[1]["to"], "/dir/two");
    e2fsck_clean(disk.image());
}

#[test]
fn source_that_is_named_twice_is_copied_once() {
    let disk = Fixture::new();
    let (hello, dir) = (disk.at("/hello"), disk.at("/dir"));
    let again = disk.at("/dir/../hello");
    for (flag, first) in [("-f", "copied"), ("-n", "kept"), ("-a", "replaced")] {
        let ran = dioxide(["cp", flag, &hello, &hello, &again, &dir]);
        let told = |source: &str| {
            format!("dioxide: cp: warning: source file '{source}' specified more than once\n")
        };
        assert_eq!(ran.status, Some(0), "{first}: {}", ran.stderr);
        assert_eq!(ran.stderr, told(&hello) + &told(&again), "{first}");
        let copy = disk.at("/dir/hello");
        assert_eq!(dioxide(["cat", &copy]).text(), "hello, world\n");
    }
    // Nothing would be done, and so nothing is wrong.
    assert_eq!(dioxide(["cp", "-n", &hello, &hello]).text(), "");
    assert_eq!(
        dioxide(["cp", "-n", &disk.at("/list/link"), &hello]).text(),
        ""
    );
    assert_eq!(dioxide(["cp", &hello, &hello]).status, Some(2));
    let list = disk.at("/list");
    let ran = dioxide(["cp", "-r", &list, &list, &dir]);
    let told =
        format!("dioxide: cp: warning: source directory '{list}' specified more than once\n");
    assert_eq!((ran.status, ran.stderr), (Some(0), told));
    e2fsck_clean(disk.image());
}

#[test]
fn copy_into_a_full_image_leaves_the_old_file_and_nothing_else() {
    let disk = Fixture::new();
    let small = Image::builder()
        .size(2 << 20)
        .args(&["-O", "^has_journal"])
        .build();
    let path = disk.beside("much").display().to_string();
    fs::write(&path, pattern(9, 0, 4 << 20)).unwrap();
    let place = at(small.path(), "/file");
    dioxide(["cp", &disk.at("/hello"), &place]).text();
    let free = dioxide(["df", "--json", &small.path().display().to_string()]).json();
    for source in [&path, &disk.at("/large")] {
        let ran = dioxide(["cp", source, &place]);
        assert_eq!(ran.status, Some(2));
        let told = format!("dioxide: cp: {place}: No space left on device: ");
        assert!(ran.stderr.starts_with(&told), "{}", ran.stderr);
        let ways =
            "kept for the super user and for maps; remove files, or make the file system larger\n";
        assert!(ran.stderr.ends_with(ways), "{}", ran.stderr);
    }
    assert_eq!(dioxide(["cat", &place]).text(), "hello, world\n");
    let names = dioxide(["ls", "-A", &at(small.path(), "/")]);
    assert_eq!(names.text(), "file\nlost+found\n");
    let now = dioxide(["df", "--json", &small.path().display().to_string()]).json();
    assert_eq!(now, free);
    e2fsck_clean(small.path());
    // What could not be copied is not removed.
    let ran = dioxide(["mv", &path, &place]);
    assert_eq!(ran.status, Some(2));
    assert!(ran.stderr.contains("is not removed"), "{}", ran.stderr);
    assert_eq!(fs::metadata(&path).unwrap().len(), 4 << 20);
    assert_eq!(dioxide(["cat", &place]).text(), "hello, world\n");
    e2fsck_clean(small.path());
}

/// Ends a copy that has written a part of a file, by a signal.
fn end_copy(disk: &Fixture, signal: Signal) -> Option<i32> {
    let (mut child, _writer) = begin_copy(disk, "--default-signal");
    send(&child, signal);
    child.wait().unwrap().code()
}

fn send(child: &Child, signal: Signal) {
    let pid = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(pid, signal).unwrap();
}

/// A copy from a pipe that has written a part of a file. `signals` is how it is started, as `env` takes it.
fn begin_copy(disk: &Fixture, signals: &str) -> (Child, fs::File) {
    let pipe = disk.beside("pipe").display().to_string();
    coreutils("mkfifo", &[&pipe]);
    let child = Command::new("env")
        .args([signals, env!("CARGO_BIN_EXE_dioxide")])
        .args(["cp", &pipe, &disk.at("/hello")])
        .spawn()
        .unwrap();
    let mut writer = fs::OpenOptions::new().write(true).open(&pipe).unwrap();
    writer.write_all(&pattern(5, 0, 3 << 19)).unwrap();
    // The journal is marked in use by the first change.
    for _ in 0..200 {
        if dioxide_testkit::dumpe2fs(disk.image()).contains("needs_recovery") {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    (child, writer)
}

/// What was there before the copy, and no more.
#[track_caller]
fn check_ended_copy(disk: &Fixture, names: &str) {
    assert_eq!(
        dioxide(["cat", &disk.at("/hello")]).text(),
        "hello, world\n"
    );
    assert_eq!(dioxide(["ls", "-A", &disk.at("/")]).text(), names);
    e2fsck_clean(disk.image());
}

#[test]
fn interrupted_copy_leaves_the_old_file_and_a_clean_image() {
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let disk = Fixture::new();
        let names = dioxide(["ls", "-A", &disk.at("/")]);
        assert_eq!(end_copy(&disk, signal), Some(130));
        check_ended_copy(&disk, names.text());
    }
}

// A terminal that is closed sends SIGHUP twice, and `timeout` any signal: another than the first ended the process amid its work.
#[test]
fn copy_that_a_signal_comes_to_twice_leaves_the_old_file_and_a_clean_image() {
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let disk = Fixture::new();
        let names = dioxide(["ls", "-A", &disk.at("/")]);
        let (mut child, _writer) = begin_copy(&disk, "--default-signal");
        for _ in 0..20 {
            send(&child, signal);
            std::thread::sleep(Duration::from_micros(100));
        }
        assert_eq!(child.wait().unwrap().code(), Some(130));
        check_ended_copy(&disk, names.text());
    }
}

// Nothing but a writer ended that.
#[test]
fn command_that_waits_for_the_writer_of_a_pipe_ends_by_a_signal() {
    let disk = Fixture::new();
    let pipe = disk.beside("pipe").display().to_string();
    coreutils("mkfifo", &[&pipe]);
    let (hello, name) = (disk.at("/hello"), disk.name());
    for words in [
        &["cp", &pipe, &hello][..],
        &["write", "--input", &pipe, &hello],
        &["xattr", "restore", "--into", &disk.at("/"), &pipe],
        &["shell", &name, &pipe],
    ] {
        let mut child = command().args(words).spawn().unwrap();
        tell_to_end(&mut child);
        assert_eq!(ends_soon(&mut child), Some(130), "{words:?}");
    }
    assert_eq!(
        dioxide(["cat", &hello]).text(),
        "hello, world
"
    );
    e2fsck_clean(disk.image());
}

// As above.
#[test]
fn copy_whose_output_nobody_reads_ends_by_a_signal() {
    let disk = Fixture::new();
    let tree = disk.beside("many");
    for name in 0..1000 {
        fs::create_dir_all(tree.join(format!("{name:0200}"))).unwrap();
    }
    let from = tree.display().to_string();
    let mut child = command()
        .args(["cp", "-rv", &from, &disk.at("/")])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = child.stdout.as_mut().unwrap();
    output.read_exact(&mut [0]).unwrap();
    std::thread::sleep(Duration::from_millis(500));
    tell_to_end(&mut child);
    assert_eq!(ends_soon(&mut child), Some(130));
    e2fsck_clean(disk.image());
}

#[test]
fn interrupted_copy_ends_its_array() {
    let disk = Fixture::new();
    let [file, pipe] = ["file", "pipe"].map(|name| disk.beside(name).display().to_string());
    fs::write(&file, "x").unwrap();
    coreutils("mkfifo", &[&pipe]);
    let child = command()
        .args(["cp", "--json", &file, &pipe, &disk.at("/")])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut writer = fs::OpenOptions::new().write(true).open(&pipe).unwrap();
    writer.write_all(&pattern(5, 0, 3 << 19)).unwrap();
    send(&child, Signal::INT);
    let ran = child.wait_with_output().unwrap();
    assert_eq!(ran.status.code(), Some(130));
    let told: serde_json::Value = serde_json::from_slice(&ran.stdout).unwrap();
    assert_eq!(told.as_array().unwrap().len(), 1);
    assert_eq!(told[0]["to"], "/file");
    e2fsck_clean(disk.image());
}

#[test]
fn interrupted_find_that_deletes_ends_its_array() {
    let disk = Fixture::new();
    let many = disk.beside("many");
    fs::create_dir(&many).unwrap();
    for i in 0..MANY {
        fs::write(many.join(format!("{i:0250}")), "").unwrap();
    }
    dioxide(["cp", "-r", many.to_str().unwrap(), &disk.at("/")]).text();
    let mut child = command()
        .args(["find", "--json", &disk.at("/many"), "-print", "-delete"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut told = vec![0];
    let mut output = child.stdout.take().unwrap();
    output.read_exact(&mut told).unwrap();
    send(&child, Signal::INT);
    output.read_to_end(&mut told).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let told: serde_json::Value = serde_json::from_slice(&told).unwrap();
    assert!(told.as_array().unwrap().len() < MANY);
    e2fsck_clean(disk.image());
}

/// As the help says.
#[test]
fn command_that_only_reads_ends_by_the_signal_itself() {
    use std::os::unix::process::ExitStatusExt;
    let help = dioxide(["--help"]);
    assert!(
        help.text()
            .contains("Others end by the\n       signal itself")
    );
    let disk = Fixture::new();
    fs::write(disk.beside("large"), pattern(5, 0, 1 << 20)).unwrap();
    let large = disk.beside("large").display().to_string();
    dioxide(["cp", &large, &disk.at("/large")]).text();
    // It waits for whoever reads.
    let mut child = command()
        .args(["cat", &disk.at("/large")])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0];
    let output = child.stdout.as_mut().unwrap();
    std::io::Read::read_exact(output, &mut first).unwrap();
    send(&child, Signal::TERM);
    assert_eq!(child.wait().unwrap().signal(), Some(15));
}

// As under `nohup`.
#[test]
fn copy_that_ignores_a_closed_terminal_goes_on() {
    let disk = Fixture::new();
    let (mut child, writer) = begin_copy(&disk, "--ignore-signal=HUP");
    send(&child, Signal::HUP);
    drop(writer);
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let copied = dioxide(["cat", &disk.at("/hello")]);
    assert!(copied.stdout == pattern(5, 0, 3 << 19));
    e2fsck_clean(disk.image());
}

#[test]
fn killed_copy_leaves_the_old_file_and_nothing_that_recovery_does_not_remove() {
    let disk = Fixture::new();
    let names = dioxide(["ls", "-A", &disk.at("/")]);
    assert_eq!(end_copy(&disk, Signal::KILL), None);
    assert_eq!(dioxide(["sync", &disk.name()]).status, Some(0));
    check_ended_copy(&disk, names.text());
}

#[test]
fn mv_out_of_an_image_and_into_another_is_what_gnu_does() {
    need_root!();
    let (twins, other) = (Twins::new(), Twins::new());
    let tree = host_tree(&twins);
    let spare = twins.host("spare");
    coreutils("cp", &["-a", &tree, &spare]);
    twins.run(
        &["mv %/tree @/in", "touch -d @5 @/"],
        "mv $H/spare in; touch -d @5 .",
    );
    twins.check(true);
    assert!(!Path::new(&tree).exists());
    for side in ["ours", "theirs"] {
        fs::create_dir(twins.host(side)).unwrap();
    }
    twins.run(
        &[
            "mv @/in/hello @/in/dir @/sparse @/log %/ours",
            "touch -d @5 @/ @/in",
        ],
        "mv in/hello in/dir sparse log $H/theirs; touch -d @5 . in",
    );
    twins.check(true);
    let script = format!(
        "cd '{}' && touch -d @5 ours theirs && for d in ours theirs; do (cd $d && find . -printf '%y %p %m %U %G %n %T@ %l\\n' | sort && find . -print0 | sort -z | xargs -0 getfattr -hd -m - ) >$d.list; done; diff ours.list theirs.list && diff -r --no-dereference ours theirs",
        twins.host("")
    );
    assert_eq!(coreutils("bash", &["-c", &script]), "");
    let from = at(twins.image(), "/deep");
    let to = at(other.image(), "/log");
    dioxide(["mv", &from, &to]).text();
    let ran = dioxide(["stat", &from]);
    assert_eq!(ran.status, Some(1));
    let told = dioxide(["stat", "-c", "%a", &at(other.image(), "/log/deep/er")]);
    assert_eq!(told.text(), "1770\n");
    e2fsck_clean(twins.image());
    e2fsck_clean(other.image());
}

#[test]
fn mv_keeps_each_file_whose_attributes_have_no_room_where_it_goes() {
    let from = Fixture::with(Image::builder().features("ea_inode"));
    let to = Image::builder().build();
    let value = "v".repeat(5000);
    dioxide(["ln", &from.at("/hello"), &from.at("/other")]).text();
    let paths = ["/hello", "/other", "/empty"].map(|path| from.at(path));
    for path in [&paths[0], &paths[2]] {
        dioxide(["xattr", "set", "user.big", &value, path]).text();
    }
    let place = at(to.path(), "/");
    let words = paths.each_ref().map(String::as_str);
    for command in [&["cp", "-a"][..], &["mv"]] {
        let ran = dioxide([command, &words, &[&place]].concat());
        assert_eq!(ran.status, Some(2), "{command:?}: {}", ran.stderr);
        let told = ran.stderr.matches("user.big").count();
        assert_eq!(told, 2, "{command:?}: {}", ran.stderr);
    }
    for path in &paths {
        assert!(dioxide(["xattr", "get", "user.big", path]).text() == value);
    }
    e2fsck_clean(from.image());
    e2fsck_clean(to.path());
}

#[test]
fn mv_from_the_host_removes_a_tree_with_files_of_each_kind() {
    let disk = Fixture::new();
    let tree = disk.beside("moved");
    fs::create_dir_all(tree.join("dir/empty")).unwrap();
    fs::write(tree.join("file"), "x").unwrap();
    fs::hard_link(tree.join("file"), tree.join("dir/again")).unwrap();
    symlink("file", tree.join("link")).unwrap();
    symlink("/etc", tree.join("dir/etc")).unwrap();
    coreutils("mkfifo", &[tree.join("pipe").to_str().unwrap()]);
    for (name, mode) in [("file", 0o444), ("dir", 0o755)] {
        fs::set_permissions(tree.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    let from = format!("{}/", tree.display());
    dioxide(["mv", &from, &disk.at("/moved")]).text();
    assert!(!tree.exists());
    let told = dioxide(["find", &disk.at("/moved")]);
    assert_eq!(told.text().lines().count(), 8, "{}", told.text());
    let told = dioxide(["stat", "-c", "%h %a", &disk.at("/moved/dir/again")]);
    assert_eq!(told.text(), "2 444\n");
    e2fsck_clean(disk.image());
}

// It would go on under no name, and what its writer did then be lost.
#[test]
fn image_that_somebody_writes_is_copied_with_a_warning_and_not_moved_away() {
    let disk = Fixture::new();
    let used = disk.beside("used.img");
    fs::copy(Image::builder().size(1 << 20).build().path(), &used).unwrap();
    let holder = dioxide::Fs::open(&used, &dioxide::MountOptions::new()).unwrap();
    let name = used.display().to_string();
    let process = std::process::id();
    let warning = format!("{name}: warning: locked for writing by process {process} (");
    let ran = dioxide(["cp", &name, &disk.at("/copy")]);
    assert_eq!(ran.status, Some(0), "{}", ran.stderr);
    assert!(ran.stderr.contains(&warning), "{}", ran.stderr);
    let ran = dioxide(["mv", &name, &disk.at("/moved")]);
    assert_eq!(ran.status, Some(2), "{}", ran.stderr);
    let refusal = format!("{name}: locked for writing by process {process} (");
    assert!(ran.stderr.contains(&refusal), "{}", ran.stderr);
    assert!(used.exists());
    assert_eq!(dioxide(["ls", &disk.at("/moved")]).status, Some(1));
    holder.close().unwrap();
    dioxide(["mv", &name, &disk.at("/moved")]).text();
    assert!(!used.exists());
    e2fsck_clean(disk.image());
}

/// What is told of so many names of 250 bytes is more than pipes and buffers hold.
const MANY: usize = 400;

/// Runs `mv` until it stands still, since nobody reads on in what it tells, and lets it come to its end after `act`.
fn mv_with_a_stop<R: Read>(
    args: &[String],
    told: impl FnOnce(&mut Child) -> &mut R,
    act: impl FnOnce(),
) -> Ran {
    let mut child = command()
        .arg("mv")
        .args(args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    told(&mut child).read_exact(&mut [0]).unwrap();
    act();
    child.wait_with_output().unwrap().into()
}

#[test]
fn mv_leaves_on_the_host_what_has_changed_or_come_since_it_was_copied() {
    let disk = Fixture::new();
    let into = disk.at("/into");
    dioxide(["mkdir", &into]).text();
    // These are removed first, and told of.
    let many: Vec<_> = (0..MANY)
        .map(|i| disk.beside(&format!("{i:0250}")))
        .collect();
    let (tree, elsewhere) = (disk.beside("moved"), disk.beside("elsewhere"));
    fs::create_dir_all(tree.join("dir/empty")).unwrap();
    fs::create_dir(tree.join("led")).unwrap();
    let files = ["appended", "dir/file", "led/file", "same"].map(|name| tree.join(name));
    for path in many.iter().chain(&files) {
        fs::write(path, "old").unwrap();
    }
    let mut args = vec!["-v".to_owned()];
    args.extend(many.iter().map(|path| path.display().to_string()));
    args.extend([tree.display().to_string(), into]);
    let ran = mv_with_a_stop(
        &args,
        |child| child.stdout.as_mut().unwrap(),
        || {
            let mut options = fs::OpenOptions::new();
            let mut file = options.append(true).open(&files[0]).unwrap();
            file.write_all(b" and new").unwrap();
            fs::write(tree.join("dir/new"), "new").unwrap();
            fs::rename(tree.join("led"), &elsewhere).unwrap();
            symlink(&elsewhere, tree.join("led")).unwrap();
        },
    );
    assert_eq!(ran.status, Some(2), "{}", ran.stderr);
    let what = "has changed or come since it was copied, and is not removed";
    let told = ["appended", "dir/new", "led"].map(|name| {
        let path = tree.join(name);
        format!("dioxide: mv: {}: {what}\n", path.display())
    });
    let rest = "was copied, and not all of it could be removed";
    let rest = format!("dioxide: mv: {}: {rest}\n", tree.display());
    assert_eq!(ran.stderr, told.concat() + &rest);
    let left = coreutils("find", &[tree.to_str().unwrap(), "-printf", "%P\n"]);
    let mut left: Vec<_> = left.lines().collect();
    left.sort_unstable();
    assert_eq!(left, ["", "appended", "dir", "dir/new", "led"]);
    assert_eq!(fs::read_to_string(&files[0]).unwrap(), "old and new");
    assert_eq!(fs::read_to_string(elsewhere.join("file")).unwrap(), "old");
    assert!(many.iter().all(|path| !path.exists()));
    let told = dioxide(["cat", &disk.at("/into/moved/appended")]);
    assert_eq!(told.text(), "old");
    e2fsck_clean(disk.image());
}

/// The second name gets the copy that the first has.
#[test]
fn mv_leaves_names_of_a_file_that_has_changed_between_them() {
    let disk = Fixture::new();
    let into = disk.at("/into");
    dioxide(["mkdir", &into]).text();
    let names = ["one", "two"].map(|name| disk.beside(name));
    fs::write(&names[0], "old").unwrap();
    fs::hard_link(&names[0], &names[1]).unwrap();
    // Refused, and told of, when it is their turn.
    let busy = disk.beside(&"d".repeat(250));
    fs::create_dir(&busy).unwrap();
    let [one, two] = names.each_ref().map(|name| name.display().to_string());
    let mut args = vec![one];
    args.extend((0..MANY).map(|_| format!("{}/.", busy.display())));
    args.extend([two, into]);
    let ran = mv_with_a_stop(
        &args,
        |child| child.stderr.as_mut().unwrap(),
        || fs::write(&names[0], "longer").unwrap(),
    );
    assert_eq!(ran.status, Some(2), "{}", ran.stderr);
    let what = "has changed or come since it was copied, and is not removed\n";
    assert_eq!(ran.stderr.matches(what).count(), 2, "{}", ran.stderr);
    for (name, path) in names.iter().zip(["/into/one", "/into/two"]) {
        assert_eq!(fs::read_to_string(name).unwrap(), "longer");
        assert_eq!(dioxide(["cat", &disk.at(path)]).text(), "old");
    }
    e2fsck_clean(disk.image());
}

/// As where a file system takes the second name for the first.
#[test]
fn mv_does_not_replace_what_it_has_just_made_whatever_its_name() {
    let disk = Fixture::new();
    let out = disk.beside("out");
    fs::create_dir(&out).unwrap();
    // Refused, and told of, when it is their turn.
    let busy = disk.at(&format!("/{}", "d".repeat(250)));
    dioxide(["mkdir", &busy]).text();
    let [hello, one] = ["/hello", "/list/one"].map(|path| disk.at(path));
    let mut args = vec![hello.clone()];
    args.extend((0..MANY).map(|_| format!("{busy}/.")));
    args.extend([one.clone(), out.display().to_string()]);
    let ran = mv_with_a_stop(
        &args,
        |child| child.stderr.as_mut().unwrap(),
        || fs::hard_link(out.join("hello"), out.join("one")).unwrap(),
    );
    assert_eq!(ran.status, Some(2), "{}", ran.stderr);
    let what = "was made just now, and is not replaced";
    let told = format!("dioxide: mv: {}: {what}\n", out.join("one").display());
    assert!(ran.stderr.ends_with(&told), "{}", ran.stderr);
    assert_eq!(dioxide(["stat", &hello]).status, Some(1));
    assert_eq!(fs::read(out.join("one")).unwrap(), b"hello, world\n");
    assert_eq!(dioxide(["cat", &one]).stdout.len(), 1);
    e2fsck_clean(disk.image());
}

#[test]
fn owner_that_is_asked_for_is_that_of_every_copy() {
    let disk = Fixture::new();
    let host = disk.beside("new");
    fs::write(&host, "new").unwrap();
    let host = host.display().to_string();
    let tree = disk.tree("list").display().to_string();
    let owner = |path: &str| {
        dioxide(["stat", "-c", "%a %u:%g", &disk.at(path)])
            .text()
            .to_owned()
    };
    dioxide(["chmod", "750", &disk.at("/hello")]).text();
    // A file that is replaced keeps its mode, and its owner only if none is said.
    dioxide(["cp", "--owner", "5:6", &host, &disk.at("/hello")]).text();
    assert_eq!(owner("/hello"), "750 5:6\n");
    dioxide(["cp", "--owner", ":9", &host, &disk.at("/hello")]).text();
    assert_eq!(owner("/hello"), "750 5:9\n");
    dioxide(["cp", &host, &disk.at("/hello")]).text();
    assert_eq!(owner("/hello"), "750 5:9\n");
    // It goes before what is preserved.
    dioxide(["cp", "-a", "--owner", "7:8", &tree, &disk.at("/copy")]).text();
    dioxide(["cp", "-p", "--owner", "7:8", &host, &disk.at("/empty")]).text();
    for path in ["/copy", "/copy/one", "/copy/link", "/empty"] {
        assert!(owner(path).ends_with(" 7:8\n"), "{path}: {}", owner(path));
    }
    let ran = dioxide(["cp", "--owner", "7", &disk.at("/hello"), &host]);
    assert_eq!(ran.status, Some(2));
    assert!(
        ran.stderr.contains("--owner is for copies in images"),
        "{}",
        ran.stderr
    );
    // New content has no capabilities of the old, as after a write.
    dioxide([
        "xattr",
        "set",
        "security.capability",
        "0x0100000200040000000000000000000000000000",
        &disk.at("/hello"),
    ])
    .text();
    dioxide(["xattr", "set", "user.kept", "x", &disk.at("/hello")]).text();
    dioxide(["cp", &host, &disk.at("/hello")]).text();
    let left = dioxide(["xattr", "list", &disk.at("/hello")]);
    assert!(left.text().contains("user.kept"), "{}", left.text());
    assert!(
        !left.text().contains("security.capability"),
        "{}",
        left.text()
    );
    e2fsck_clean(disk.image());
}
