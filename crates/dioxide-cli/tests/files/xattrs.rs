//! Extended attributes and access control lists, compared with attr and acl on the same image mounted.

use super::support::{Fixture, coreutils, dioxide};
use super::twins::Twins;
use super::with_input;
use dioxide_testkit::need_root;

#[test]
fn xattr_set_and_remove_do_what_setfattr_does() {
    need_root!();
    let twins = Twins::new();
    twins.same(
        &[
            "xattr set user.a plain @/hello @/log",
            "xattr set user.hex 0x00ff10 @/large",
            "xattr set user.base 0saGVsbG8= @/large",
            r#"xattr set user.quoted "a\"\\\001" @/large"#,
            "xattr set --replace user.a other @/hello",
            "xattr set --no-dereference trusted.link itself @/dangling",
            "xattr remove user.comment @/hello",
            "xattr set user.empty 0x @/empty",
        ],
        r#"setfattr -n user.a -v plain hello log; setfattr -n user.hex -v 0x00ff10 large;
         setfattr -n user.base -v 0saGVsbG8= large; setfattr -n user.quoted -v '"a\"\\\001"' large;
         setfattr -n user.a -v other hello; setfattr -hn trusted.link -v itself dangling;
         setfattr -x user.comment hello; setfattr -n user.empty -v 0x empty"#,
    );
    let told = dioxide(twins.words("xattr get --no-dereference trusted.link @/dangling"));
    assert_eq!(told.text(), "itself");
    for (line, told, status) in [
        (
            "xattr remove user.nope @/hello",
            "No such extended attribute",
            1,
        ),
        ("xattr set --create user.a x @/hello", "File exists", 2),
        (
            "xattr set --replace user.nope x @/hello",
            "No such extended attribute",
            1,
        ),
        ("xattr set nonsense.a x @/hello", "unsupported", 2),
        ("xattr set user.a 0xz @/hello", "hexadecimal", 2),
        ("xattr set user.a x @/nope", "No such file", 1),
    ] {
        let ran = dioxide(twins.words(line));
        assert_eq!(ran.status, Some(status), "{line}: {}", ran.stderr);
        let said = ran.stderr.to_lowercase();
        assert!(
            said.contains(&told.to_lowercase()),
            "{line}: {}",
            ran.stderr
        );
    }
}

#[test]
fn attributes_that_were_told_are_restored() {
    need_root!();
    let twins = Twins::new();
    twins.both("touch \"$(printf 'a\\nb\\\\c')\"; setfattr -n user.odd -v '\"x\"' a*; setfacl -m u:5:rw hello");
    let dump = dioxide(twins.words("xattr list -R -d @/"))
        .text()
        .to_owned();
    let strip = ["user.comment @/hello", "user.bytes @/log", "user.odd @/a*"];
    for words in strip {
        dioxide(twins.words(&format!("xattr remove {words}"))).text();
    }
    with_input(["xattr", "restore"], dump.as_bytes()).text();
    twins.check(false);
    // What getfattr told, elsewhere.
    for words in strip {
        dioxide(twins.words(&format!("xattr remove {words}"))).text();
    }
    let file = twins.host("dump");
    twins.run(&[], "getfattr -RPd -m user . >$H/dump || true");
    dioxide(twins.words("xattr restore --into @/ %/dump")).text();
    twins.check(false);
    // A file that is gone does not stop the others.
    let script = format!("sed -i '1i # file: nope\\nuser.x=\"y\"\\n' '{file}'");
    coreutils("bash", &["-c", &script]);
    let ran = dioxide(twins.words("xattr restore --into @/ %/dump"));
    assert_eq!(ran.status, Some(1), "{}", ran.stderr);
    let ran = with_input(["xattr", "restore"], b"user.x=1\n");
    assert_eq!(ran.status, Some(2));
    assert!(ran.stderr.contains("line 1"), "{}", ran.stderr);
    twins.check(false);
}

#[test]
fn new_files_inherit_default_lists_as_linux_has_it() {
    need_root!();
    let twins = Twins::new();
    twins.both(
        "setfacl -d -m u:5:rwx,g:7:rx,m::rwx log; chmod g+s log; chown :9 log; chmod g-w deep/er",
    );
    twins.same(
        &[
            "mkdir @/log/dir",
            "touch @/log/touched",
            "mkdir -p @/log/p/q",
            "cp @/large @/log/copied",
            "cp -p @/large @/log/preserved",
            "cp -r @/deep @/log/deep",
            "cp -a @/dir @/log/archived",
            "mknod @/log/pipe p",
            "ln -s x @/log/link",
        ],
        "cd log; mkdir dir; touch touched; mkdir -p p/q; cp ../large copied; cp -p ../large preserved; \
         cp -r ../deep deep; cp -a ../dir archived; mknod pipe p; ln -s x link; chmod g-s archived archived/.hidden",
    );
}

#[test]
fn attribute_whose_name_has_an_equals_sign_is_restored() {
    let disk = Fixture::new();
    let hello = disk.at("/hello");
    dioxide(["xattr", "set", "user.a=b", "c=d", &hello]).text();
    let dump = dioxide(["xattr", "list", "-d", &hello]).text().to_owned();
    assert!(dump.contains("\nuser.a\\075b=\"c=d\"\n"), "{dump}");
    dioxide(["xattr", "remove", "user.a=b", &hello]).text();
    with_input(["xattr", "restore"], dump.as_bytes()).text();
    let told = dioxide(["xattr", "list", "-d", &hello]);
    assert_eq!(told.text(), dump);
}

#[test]
fn value_as_text_has_no_control_characters_of_either_kind() {
    let disk = Fixture::new();
    let hello = disk.at("/hello");
    dioxide(["xattr", "set", "user.c1", "\u{9b}31m\u{1b}é", &hello]).text();
    let dump = dioxide(["xattr", "list", "-e", "text", &hello]);
    let dump = dump.text();
    assert!(
        dump.contains("\nuser.c1=\"\\302\\23331m\\033é\"\n"),
        "{dump}"
    );
    dioxide(["xattr", "set", "user.c1", "", &hello]).text();
    with_input(["xattr", "restore"], dump.as_bytes()).text();
    let told = dioxide(["xattr", "get", "user.c1", &hello]);
    assert_eq!(told.text(), "\u{9b}31m\u{1b}é");
}

#[test]
fn restore_that_ends_early_has_told_what_it_changed_as_a_whole_array() {
    let disk = Fixture::new();
    let dump = format!("# file: {}\nuser.a=1\nuser.b=0xz\n", disk.at("/hello"));
    let ran = with_input(["xattr", "restore", "--json"], dump.as_bytes());
    assert_eq!(ran.status, Some(2));
    assert!(ran.stderr.contains("line 3"), "{}", ran.stderr);
    let told: serde_json::Value = serde_json::from_slice(&ran.stdout).unwrap();
    assert_eq!(told.as_array().map(Vec::len), Some(1));
    assert_eq!(told[0]["name"], "user.a");
}

#[test]
fn attribute_whose_name_is_not_utf_8_is_set_told_and_removed() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let disk = Fixture::new();
    let (hello, name) = (disk.at("/hello"), OsStr::from_bytes(b"user.\xff"));
    let xattr = |action: &str, value: &[&str]| {
        let words = [OsStr::new("xattr"), action.as_ref(), name];
        let rest = value.iter().copied().chain([&*hello]).map(OsStr::new);
        dioxide(words.into_iter().chain(rest))
    };
    xattr("set", &["x"]).text();
    assert_eq!(xattr("get", &[]).text(), "x");
    xattr("remove", &[]).text();
    let ran = xattr("get", &[]);
    assert_eq!(ran.status, Some(1));
    assert!(ran.stderr.contains("No such"), "{}", ran.stderr);
    dioxide_testkit::e2fsck_clean(disk.image());
}
