//! What goes wrong is told in one line that names the file or option, what is wrong with it, and, where there is one, the way
//! out; and the exit status is 1 for what is not in an image, and 2 for everything else.

use crate::support::{Fixture, dioxide};
use dioxide_testkit::e2fsck_clean;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

/// Images beside the fixture's, by their names: `@name`.
fn prepare(disk: &Fixture) {
    disk.debugfs(&["cd /odd", "mknod pipe p"]);
    let whole = fs::read(disk.image()).unwrap();
    let beside = |name: &str, bytes: &[u8]| fs::write(disk.beside(name), bytes).unwrap();
    beside("empty", b"");
    beside("short", &whole[..1500]);
    beside("cut", &whole[..whole.len() / 2]);
    beside("noise", &dioxide_testkit::pattern(1, 0, 1 << 20));
    beside("full.txt", &[7; 1 << 20]);
}

/// Words (`=/path` is in the image, `@name` beside it), exit status, and what is told of what.
const CASES: &[(&str, i32, &str)] = &[
    ("ls @nope:/", 2, "@nope: No such file or directory"),
    ("ls @:/", 2, "neither a regular file nor a block device"),
    (
        "ls @empty:/",
        2,
        "@empty: no superblock of ext2, ext3 or ext4 at byte 1024 (there are 0 bytes)",
    ),
    (
        "ls @short:/",
        2,
        "@short: no superblock of ext2, ext3 or ext4 at byte 1024 (there are 1024 bytes)",
    ),
    (
        "ls @noise:/",
        2,
        "@noise: no superblock of ext2, ext3 or ext4 at byte 1024 (s_magic is 0x",
    ),
    ("chmod 700 @noise:/x", 2, "(--img-offset, img_offset=)"),
    ("ls --sb 99999999 =/", 2, "at byte 102399998976 (there are "),
    (
        "ls --img-offset 1G =/",
        2,
        "img_offset 1073741824 is past the end at byte",
    ),
    ("ls --img-offset 1M =/", 2, " at byte 1024 (s_magic is 0x"),
    // Not to say what was said.
    (
        "df --img-offset 1M =.",
        2,
        ") behind byte 1048576 (img_offset); `fdisk -l` tells where partitions begin; where the",
    ),
    ("df --sb 7 =.", 2, "; sb counts KiB: 8193 with"),
    (
        "info --img-offset 1M =.",
        2,
        "behind byte 1048576 (img_offset); `fdisk -l` tells",
    ),
    ("sync @cut", 2, "@cut: read-only: the device has"),
    (
        "cat =/odd/pipe",
        2,
        "=/odd/pipe: unsupported: /odd/pipe: opening a FIFO",
    ),
    (
        "cp =/hello =/odd/pipe",
        2,
        "=/odd/pipe: is a device, pipe or socket, and not replaced\n",
    ),
    ("check @nope", 8, "@nope: No such file or directory"),
    (
        "map @empty",
        2,
        "@empty: no superblock of ext2, ext3 or ext4 at byte 1024 (the device ends at byte 0), and no backup was found",
    ),
    ("info @noise", 2, "(--img-offset, img_offset=); where"),
    (
        "journal @noise",
        2,
        "@noise: no superblock of ext2, ext3 or",
    ),
    (
        "check @noise",
        12,
        "@noise: no superblock of ext2, ext3 or ext4 at byte 1024 (s_magic is 0x",
    ),
    (
        "info =.:/hello",
        2,
        "=.:/hello: No such file or directory; name the image alone: =.",
    ),
    ("resize @nope", 2, "@nope: "),
    (
        "resize @noise",
        2,
        "@noise: no superblock of ext2, ext3 or ext4 at byte 1024 (s_magic is 0x",
    ),
    ("resize --minimum @empty", 2, "(--img-offset, img_offset=)"),
    ("trim @noise", 2, "@noise: no superblock"),
    (
        "ls @disk.img",
        2,
        "no ':/' in it; write IMG:/path, such as ",
    ),
    (
        "cat disk.img:etc",
        2,
        "disk.img:etc: no ':/' in it; write IMG:/path, such as disk.img:/etc",
    ),
    ("cat :/x", 2, ":/x: no image before ':/'; write IMG:/path"),
    (
        "cat =./dir/x",
        2,
        "=./dir/x: no ':/' in it; write IMG:/path, such as =.:/dir/x",
    ),
    (
        "mkdir /no/such",
        2,
        "/no/such: no image before it; write IMG:/path, such as disk.img:/no/such",
    ),
    (
        "ls --img-offset 1X =/",
        2,
        "'1X' for '--img-offset <BYTES>': 'X' is no unit; there are k, M",
    ),
    (
        "ls --backend x =/",
        2,
        "[possible values: auto, uring, pread, mmap]",
    ),
    ("ls =/nope", 1, "=/nope: No such file or directory"),
    ("ls =/no*", 1, "=/no*: no file fits this pattern"),
    ("cat =/dir", 2, "=/dir: Is a directory"),
    ("cat =/hello/x", 2, "=/hello/x: Not a directory"),
    ("cat =/LONG", 2, "=/LONG: File name too long"),
    ("mkdir =/LONG", 2, "=/LONG: File name too long"),
    ("stat -c %q =/", 2, "format: '%q' is no directive"),
    (
        "chmod 999 =/hello",
        2,
        "invalid mode: '999'; write up to four octal digits",
    ),
    ("chmod 755", 2, "which files? Write IMG:/path"),
    (
        "chown root =/hello",
        2,
        "'root' is not a number; names of users are the image's affair",
    ),
    (
        "chown 4294967295 =/hello",
        2,
        "4294967295 is no user or group",
    ),
    (
        "touch -d someday =/hello",
        2,
        "'someday' is no time, such as now, @1795286103",
    ),
    ("touch =/no/such", 1, "=/no/such: No such file or directory"),
    (
        "truncate -s 100P =/hello",
        2,
        "=/hello: file too large: 112589990684262400 bytes: the largest size",
    ),
    ("truncate -s 1 =/dir", 2, "=/dir: Is a directory"),
    (
        "fallocate -l 0 =/hello",
        2,
        "=/hello: invalid request: a range of 0 bytes at 0",
    ),
    (
        "fallocate -l 1T =/hello",
        2,
        "=/hello: No space left on device: 268435455 blocks",
    ),
    (
        "fallocate -c -l 100 =/hello",
        2,
        "offset and length must be multiples of 4096",
    ),
    (
        "write =/nope",
        1,
        "=/nope: No such file or directory; --create makes it",
    ),
    (
        "write =/hello --input @nope",
        2,
        "@nope: No such file or directory",
    ),
    ("cp =/hello", 2, "two operands are needed at least, or -t"),
    (
        "cp =/dir @out",
        2,
        "=/dir: is a directory, and -r was not given",
    ),
    (
        "cp =/hello @no/out",
        2,
        "@no/out: No such file or directory",
    ),
    (
        "cp @full.txt @out",
        2,
        "is on the host, and its copy would be; name one in an image as IMG:/path",
    ),
    ("cp =/hello =/hello", 2, "are the same file"),
    (
        "cp -t @nodir =/hello",
        2,
        "@nodir: No such file or directory, and copies",
    ),
    (
        "cp =/hello =/empty =/none",
        2,
        "=/none: No such file or directory, and copies",
    ),
    ("cp =/hello =/empty =/large", 2, "=/large: Not a directory"),
    ("mv =/nope =/x", 1, "=/nope: No such file or directory"),
    ("rm =/dir", 2, "=/dir: Is a directory"),
    ("rm =/", 2, "--no-preserve-root says otherwise"),
    ("mkdir =/dir", 2, "=/dir: File exists"),
    ("rmdir =/list", 2, "=/list: Directory not empty"),
    (
        "ln =/dir =/other",
        2,
        "=/dir: is a directory, which has one name only",
    ),
    (
        "mknod =/x c 1",
        2,
        "which type? Write b, c or u with a major and a minor number",
    ),
    (
        "xattr get user.x =/hello",
        1,
        "=/hello: user.x: No such extended attribute",
    ),
    (
        "xattr remove user.x =/hello",
        1,
        "=/hello: user.x: No such extended attribute",
    ),
    (
        "xattr set name value =/hello",
        2,
        "=/hello: name: unsupported: attributes such as name: names begin with user.",
    ),
    ("find =/ -foo", 2, "'-foo' is no test and no action"),
    ("df", 2, "which image? Write IMG, such as disk.img"),
    (
        "explain =/hello --policy v1",
        2,
        "[possible values: pre49, ",
    ),
    (
        "extents --svg @no/x =/large",
        2,
        "@no/x: No such file or directory",
    ),
    (
        "mkfs @new",
        2,
        "@new: there is no such image: give a size, and it is made",
    ),
    (
        "mkfs -O nonsense @new 10M",
        2,
        "@new: there is no feature 'nonsense'",
    ),
    (
        "mkfs -U zzz @new 10M",
        2,
        "'zzz' is no uuid; there are random, time and clear too",
    ),
    (
        "mkfs =. 10M",
        2,
        "is overwritten if that is forced (--force, -F)",
    ),
    ("pack @nope @new", 2, "@nope: No such file or directory"),
    ("pack =/nope @new", 2, "=/nope: No such file or directory"),
    ("pack =/hello @new", 2, "=/hello: Not a directory"),
    ("pack @noise @new", 2, "@noise: at byte 0: no tar archive"),
    (
        "pack =/list @no/new",
        2,
        "@no/new: No such file or directory",
    ),
    ("unpack =/nope @out", 2, "=/nope"),
    (
        "unpack =/ @out.zip",
        2,
        "@out.zip: no such archive is written: there are .tar,",
    ),
    (
        "mount =. @nope",
        2,
        "cannot use @nope: No such file or directory",
    ),
    ("mount @nope @", 2, "@nope: No such file or directory"),
    ("mount @noise @", 2, "@noise: no superblock"),
    ("mount -o frob =. @", 2, "option frob is not known"),
    ("umount @", 2, "no dioxide file system is mounted there"),
    ("stats @", 2, "no dioxide file system is mounted there"),
    ("shell @nope", 2, "@nope: No such file or directory"),
    ("shell -c frob =.", 2, "unrecognized subcommand 'frob'"),
    ("sync", 2, "which image? Write IMG"),
    ("gen man /proc/x", 2, "/proc/x: No such file or directory"),
    ("bench --image @nope simple-read", 2, "@nope: "),
    (
        "bench --image @noise simple-read",
        2,
        "@noise: no superblock of ext2, ext3 or",
    ),
];

/// Words of a case, for this fixture.
fn meant(disk: &Fixture, text: &str) -> String {
    let text = text.replace("=.", &disk.name());
    let text = text.replace("=/", &disk.at("/"));
    let text = text.replace("LONG", &"x".repeat(300));
    text.replace('@', disk.beside("").to_str().unwrap())
}

#[test]
fn every_error_names_what_is_wrong_and_the_way_out() {
    let disk = Fixture::new();
    prepare(&disk);
    let meant = |text: &str| meant(&disk, text);
    let mut bad = Vec::new();
    for (words, status, told) in CASES {
        // Of dates and options.
        let told = match told.contains("@1795286103") || told.contains("img_offset=)") {
            true => (*told).to_owned(),
            false => meant(told),
        };
        let ran = dioxide(words.split(' ').map(meant));
        let one_line = ran
            .stderr
            .lines()
            .filter(|line| line.starts_with("dioxide: "))
            .count()
            <= 3;
        let numbers = ran.stderr.contains("os error");
        if ran.status != Some(*status) || !ran.stderr.contains(&told) || !one_line || numbers {
            bad.push(format!(
                "{words}: {:?}\n{}wanted: {told}\n",
                ran.status, ran.stderr
            ));
        }
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
    e2fsck_clean(disk.image());
    let left = dioxide(["ls", &disk.at("/")]);
    assert_eq!(left.text().split_whitespace().collect::<Vec<_>>(), FILES);
}

/// A program that reads it finds a whole value or none, and no object where it asked for one.
#[test]
fn every_error_beside_json_leaves_an_array_or_nothing() {
    let disk = Fixture::new();
    prepare(&disk);
    let more = [
        "find =/ -frob",
        "find =/ -newer =/nope",
        "journal @noise",
        "map @nope",
        "trim @noise",
        "resize @nope 64M",
        "resize =. 1k",
        "check @nope",
        "check @noise",
        "mkfs @nope",
    ];
    let cases = CASES.iter().map(|(words, ..)| *words).chain(more);
    // It has a file for its JSON.
    for words in cases.filter(|words| !words.starts_with("bench")) {
        let (command, operands) = words.split_once(' ').unwrap_or((words, ""));
        let operands = operands.split(' ').filter(|word| !word.is_empty());
        let all = [command.to_owned(), "--json".to_owned()];
        let ran = dioxide(
            all.into_iter()
                .chain(operands.map(|word| meant(&disk, word))),
        );
        let value: Option<serde_json::Value> = match &ran.stdout[..] {
            b"" => None,
            told => Some(serde_json::from_slice(told).expect(words)),
        };
        assert!(value.is_none_or(|value| value.is_array()), "{words}");
        assert!(ran.status > Some(0), "{words}");
        assert!(!ran.stderr.is_empty() || command == "check", "{words}");
    }
}

#[test]
fn image_that_may_only_be_read_says_what_it_cannot_be_opened_for() {
    dioxide_testkit::need_root!();
    let disk = Fixture::new();
    fs::set_permissions(disk.image(), fs::Permissions::from_mode(0o444)).unwrap();
    for (words, status, told) in [
        (["ls", &disk.at("/dir")], 0, ""),
        (
            ["mkdir", &disk.at("/new")],
            2,
            "cannot open it for writing: Permission denied",
        ),
    ] {
        let output = Command::new("setpriv")
            .args(["--reuid=1234", "--regid=1234", "--clear-groups"])
            .arg(env!("CARGO_BIN_EXE_dioxide"))
            .args(words)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{said}");
        assert!(said.contains(told), "{said}");
    }
}

/// Nothing was made, and nothing removed.
const FILES: [&str; 9] = [
    "dir",
    "empty",
    "hello",
    "large",
    "list",
    "lost+found",
    "odd",
    "sparse",
    "to-dir",
];
