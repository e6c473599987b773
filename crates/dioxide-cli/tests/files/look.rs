//! ls, stat, find, du, df, tree, xattr; patterns and errors.

use super::Linux;
use super::support::{Fixture, Ran, command, coreutils, dioxide};
use dioxide_testkit::e2fsck_clean;
use std::fs;

fn sorted(text: &str) -> Vec<String> {
    let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

#[test]
fn ls_of_each_form_prints_what_gnu_ls_prints() {
    dioxide_testkit::need_root!();
    let linux = Linux::new();
    for flags in [
        "-l", "-la", "-lA", "-lh", "-lis", "-lSr", "-lt", "-F", "-lF", "-R", "-lRA", "-1", "-d",
        "-ld", "-sh",
    ] {
        for path in ["/", "/log", "/hello", "/dir/link", "/to-dir"] {
            if flags == "-la" && path == "/" {
                // Above the root of a mount there is another file system.
                continue;
            }
            let gnu = [flags, if flags.contains('l') { "-n" } else { "-1" }];
            let theirs = linux.theirs("ls", &[gnu[0], gnu[1], &linux.mounted(path)]);
            assert_eq!(
                linux.ours(&["ls", flags, &linux.at(path)]),
                theirs,
                "{flags} {path}"
            );
        }
    }
}

#[test]
fn ls_of_each_time_and_behind_links_prints_what_gnu_ls_prints() {
    dioxide_testkit::need_root!();
    let linux = Linux::new();
    for flags in [
        "-c",
        "-u",
        "-lc",
        "-lu",
        "-ltc",
        "-ltur",
        "--full-time",
        "-l --time-style=full-iso",
        "-l --time-style=long-iso",
        "-lu --time-style=iso",
        "-l --time-style=locale",
        "-l --time-style=+%F_%T",
    ] {
        let words: Vec<_> = flags.split(' ').collect();
        let form = if flags.contains('l') { "-n" } else { "-1" };
        let (mounted, own) = (linux.mounted("/log"), linux.at("/log"));
        let theirs = linux.theirs("ls", &[&words[..], &[form, &mounted]].concat());
        let ours = linux.ours(&[&["ls"], &words[..], &[&*own]].concat());
        assert_eq!(ours, theirs, "{flags}");
    }
    for (flags, path) in [
        ("-lL", "/dir"),
        ("-LF", "/dir"),
        ("-lL", "/dir/link"),
        ("-lL", "/to-dir"),
    ] {
        let form = if flags == "-lL" { "-n" } else { "-1" };
        let theirs = linux.theirs("ls", &[flags, form, &linux.mounted(path)]);
        let ours = linux.ours(&["ls", flags, &linux.at(path)]);
        assert_eq!(ours, theirs, "{flags} {path}");
    }
    let dangling = dioxide(["ls", "-lL", &linux.at("/dangling")]);
    assert_eq!(dangling.status, Some(1));
    let ran = dioxide(["ls", "-l", "--time-style=+%!", &linux.at("/")]);
    assert_eq!(ran.status, Some(2), "{}", ran.stderr);
}

#[test]
fn stat_prints_what_gnu_stat_prints_but_for_names_and_device() {
    dioxide_testkit::need_root!();
    let linux = Linux::new();
    for path in ["/hello", "/dir", "/null", "/dangling", "/sparse"] {
        let theirs = linux.theirs("stat", &[&linux.mounted(path)]);
        let ours = linux.ours(&["stat", &linux.at(path)]);
        for (their, our) in theirs.lines().zip(ours.lines()) {
            let masked = |line: &str| match line.split_once(':') {
                Some(("Device", rest)) => rest.split_once('\t').unwrap().1.to_owned(),
                Some(("Access", rest)) if rest.contains("Uid") => {
                    rest.replace("    root)", " UNKNOWN)")
                }
                _ => line.to_owned(),
            };
            assert_eq!(masked(our), masked(their), "{path}");
        }
    }
}

#[test]
fn stat_of_each_directive_prints_what_gnu_stat_prints() {
    dioxide_testkit::need_root!();
    let linux = Linux::new();
    let form = "%a %A %b %B %f %F %g %h %i %n %o %s %t %T %r %R %Hr %Lr %u %w %W %x %X %y %Y %z %.3Z\
        |%-12s|%012s|%+s|% 9s|%+09s|%.Y|%+Z|%#012f|%#a|%#f|%5.2F|%%|%.12X\
        |%.3t|%.12i|%+.9s|%08.6h|%-9.7f.|%#.2a|%#.8f|%.0h|%#t|%.0T|%#.0a|%#6.3T";
    for path in [
        "/hello",
        "/null",
        "/disk",
        "/large",
        "/empty",
        "/pipe",
        "/socket",
        "/deep/er",
        "/dangling",
    ] {
        let theirs = linux.theirs("stat", &["-c", form, &linux.mounted(path)]);
        assert_eq!(linux.ours(&["stat", "-c", form, &linux.at(path)]), theirs);
        let printf = r"%s\t%n\n\101\0101\x41\x4g\x\q";
        let known = r"%s\t%n\n\101\0101\x41\x4g";
        let theirs = linux.theirs("stat", &["--printf", known, &linux.mounted(path)]);
        assert_eq!(
            linux.ours(&["stat", "--printf", printf, &linux.at(path)]),
            theirs + "xq"
        );
    }
    let theirs = linux.theirs("stat", &["-c", "%N", &linux.mounted("/dir/link")]);
    assert_eq!(
        linux.ours(&["stat", "-c", "%N", &linux.at("/dir/link")]),
        theirs
    );
}

#[test]
fn stat_in_one_line_is_as_gnu_stat_prints_it_but_for_the_device() {
    dioxide_testkit::need_root!();
    let linux = Linux::new();
    for path in ["/hello", "/null", "/dangling", "/odd name/it's"] {
        let fields = |text: &str| {
            let mut all: Vec<_> = text.trim_end().split(' ').map(str::to_owned).collect();
            let device = all.len() - 10;
            all.remove(device);
            all
        };
        let theirs = linux.theirs("stat", &["-t", &linux.mounted(path)]);
        let ours = linux.ours(&["stat", "-t", &linux.at(path)]);
        assert_eq!(fields(&ours), fields(&theirs), "{path}");
    }
}

#[test]
fn stat_of_unknown_directive_is_usage_and_exits_2() {
    let disk = Fixture::new();
    let ran = dioxide(["stat", "-c", "%k", &disk.at("/hello")]);
    assert_eq!((ran.status, ran.stdout.len()), (Some(2), 0));
    assert!(ran.stderr.contains("'%k'"), "{}", ran.stderr);
}

#[test]
fn find_of_each_test_finds_what_gnu_find_finds() {
    dioxide_testkit::need_root!();
    let linux = Linux::new();
    for expression in [
        "",
        "-name *.gz",
        "-iname HELL?",
        "-path */dir/*",
        "-type f,l",
        "-type d -empty",
        "-empty",
        "-size +10k",
        "-size -2",
        "-size 1",
        "-size 13c",
        "-mtime +365",
        "-mtime 0",
        "-mmin -60",
        "-name a.gz -mmin 2",
        "-name a.gz -mmin 3",
        "-name a.gz -mmin +2",
        "-name a.gz -mmin +3",
        "-name a.gz -mmin -2",
        "-name a.gz -mmin -3",
        "-uid 54321",
        "-gid +1000",
        "-links +1 -type f",
        "-perm 755",
        "-perm -4000",
        "-perm /o+w",
        "-perm -u+rwx -not -type d",
        "-maxdepth 1",
        "-mindepth 2 -maxdepth 2",
        "-path */deep -prune -o -print",
        "-name deep -prune -o -type d",
        "( -type b -o -type c ) -print",
        "! ( -type d -o -name h* )",
        "-type p -o -type s",
        "-false -o -name log",
        "-depth",
        "-name [[]a].gz",
        "-newermt 2020-01-01",
        "-newermt 2020-01-01T01:02:03.5Z -type f",
        "-newerct @0",
    ] {
        let words: Vec<_> = expression.split_whitespace().collect();
        let (mounted, own) = (linux.mounted("/"), linux.at("/"));
        let theirs = linux.theirs("find", &[&[&*mounted], &words[..]].concat());
        let ours = linux.ours(&[&["find", &*own], &words[..]].concat());
        assert_eq!(sorted(&ours), sorted(&theirs), "{expression}");
    }
    let newer = linux.mounted("/log/b.gz");
    let theirs = linux.theirs("find", &[&linux.mounted("/log"), "-newer", &newer]);
    for reference in [linux.at("/log/b.gz"), newer] {
        let ours = linux.ours(&["find", &linux.at("/log"), "-newer", &reference]);
        assert_eq!(sorted(&ours), sorted(&theirs));
        assert!(!ours.contains("b.gz") && ours.contains("a.gz"), "{ours}");
    }
    // The link itself is meant.
    for name in ["/hello", "/dir/link"] {
        let (mounted, own) = (linux.mounted(name), linux.at(name));
        let theirs = linux.theirs("find", &[&linux.mounted("/"), "-newer", &mounted]);
        let ours = linux.ours(&["find", &linux.at("/"), "-newer", &own]);
        assert_eq!(sorted(&ours), sorted(&theirs), "{name}");
        let theirs = linux.theirs("find", &[&linux.mounted("/"), "-samefile", &mounted]);
        let ours = linux.ours(&["find", &linux.at("/"), "-samefile", &own]);
        assert_eq!(sorted(&ours), sorted(&theirs), "{name}");
    }
    let ours = linux.ours(&[
        "find",
        &linux.at("/"),
        "-samefile",
        &linux.mounted("/hello"),
    ]);
    assert_eq!(ours, "");
}

#[test]
fn find_ls_and_print0_have_the_shape_of_gnu_find() {
    dioxide_testkit::need_root!();
    let linux = Linux::new();
    let names = |text: String| text.replace("root    ", "0       ");
    let first = [&linux.mounted("/"), "-maxdepth", "0", "-ls"];
    let theirs = names(linux.theirs("find", &first));
    assert_eq!(
        linux.ours(&["find", &linux.at("/"), "-maxdepth", "0", "-ls"]),
        theirs
    );
    // Its columns grow with what was printed before.
    let fields = |text: &str| {
        let joined = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        sorted(&text.lines().map(joined).collect::<Vec<_>>().join("\n"))
    };
    let theirs = names(linux.theirs("find", &[&linux.mounted("/"), "-ls"]));
    let ours = linux.ours(&["find", &linux.at("/"), "-ls"]);
    assert_eq!(fields(&ours), fields(&theirs));
    let ours = linux.ours(&["find", &linux.at("/log"), "-name", "[!b].gz", "-print0"]);
    assert_eq!(ours, "/log/a.gz\0/log/c.gz\0");
}

#[test]
fn find_printf_prints_what_gnu_find_prints() {
    dioxide_testkit::need_root!();
    let linux = Linux::new();
    let (mounted, own) = (linux.mounted("/"), linux.at("/"));
    let both = |words: &[&str]| {
        let theirs = coreutils("find", &[&[&*mounted], words].concat());
        let theirs = theirs.replace(mounted.trim_end_matches('/'), "=");
        let ours = dioxide([&["find", &*own], words].concat());
        let ours = ours.text().replace(own.trim_end_matches('/'), "=");
        assert_eq!(sorted(&ours), sorted(&theirs), "{words:?}");
    };
    let below = |format: &str| both(&["-mindepth", "1", "-printf", &format!("{format}\n")]);
    for format in [
        "%p|%P|%f|%h|%H|%d",
        "%y %Y %l|%s %b %k %n %i %F",
        "%m %M %U %G",
        "%#m %05m %-6m| %.5m %#.2m|%3d|%03d|%+d|% d|%-3d|",
        "%10f|%-10f|%.2f|%-5.1f|%010s|%-10s|%+s",
        "%t|%c|%a|%T@ %C@ %A@ %T+ %20T@|%.4T@",
        r"a\tb\\c\101\060\a\f\v\r%%\0",
        r"%p\n\cnot this",
    ] {
        below(format);
    }
    for letter in "aAbBcCdDeFgGhHIjklmMpPrRsSTuUVwWxXyYzZ+@".chars() {
        below(&format!("%p %T{letter}|%C{letter}"));
    }
    both(&[
        "-name", "*.gz", "-printf", "%P\n", "-o", "-type", "l", "-print",
    ]);
    // Of whom the host knows no name.
    both(&["-uid", "54321", "-printf", "%u\n"]);
    both(&["-printf", "%d%y%P\n"]);
    let json = dioxide(["find", "--json", &linux.at("/log"), "-printf", "%p"]).json();
    assert_eq!(json[0]["path"], "/log");
}

#[test]
fn find_that_follows_links_finds_what_gnu_find_finds() {
    dioxide_testkit::need_root!();
    let linux = Linux::new();
    for words in [
        &["-printf", "%P %y %Y %l %s %i %n\n"][..],
        &["-type", "l"],
        &["-type", "f", "-name", "link"],
        &["-depth", "-type", "d"],
        &["-maxdepth", "1"],
        &["-empty"],
        &["-ls"],
    ] {
        let names = |text: String| {
            let text = text.replace(" root ", " 0 ").replace(" //", " /");
            let columns = text.lines().map(|line| {
                let columns: Vec<_> = line.split_whitespace().collect();
                columns.join(" ")
            });
            sorted(&columns.collect::<Vec<_>>().join("\n"))
        };
        let words = [&["-mindepth", "1"], words].concat();
        let theirs = linux.theirs("find", &[&["-L", &linux.mounted("/")], &words[..]].concat());
        let ours = linux.ours(&[&["find", "-L", &*linux.at("/")], &words[..]].concat());
        let theirs = theirs.replace(" root root ", " 0 0 ");
        assert_eq!(names(ours), names(theirs), "{words:?}");
    }
    // Of a link, what it leads to.
    let words = |at: &dyn Fn(&str) -> String| [at("/"), "-samefile".into(), at("/dir/link")];
    let [theirs, ours] = [
        words(&|path| linux.mounted(path)),
        words(&|path| linux.at(path)),
    ];
    let theirs = linux.theirs(
        "find",
        &[&["-L"], &theirs.each_ref().map(|word| &**word)[..]].concat(),
    );
    let ours = linux.ours(&[&["find", "-L"], &ours.each_ref().map(|word| &**word)[..]].concat());
    assert_eq!(sorted(&ours), sorted(&theirs));
    assert_eq!(ours.lines().count(), 5);
}

#[test]
fn find_that_follows_links_does_not_go_round_in_circles() {
    let disk = Fixture::new();
    dioxide(["ln", "-s", "..", &disk.at("/dir/up")]).text();
    dioxide(["ln", "-s", "self", &disk.at("/dir/self")]).text();
    let ran = dioxide(["find", "-L", &disk.at("/dir")]);
    assert_eq!(ran.status, Some(2));
    let back = format!(
        "{}: leads back to {}\n",
        disk.at("/dir/up/dir"),
        disk.at("/dir")
    );
    assert!(ran.stderr.contains(&back), "{}", ran.stderr);
    let told = "/dir/self: Too many levels of symbolic links\n";
    assert!(ran.stderr.contains(told), "{}", ran.stderr);
    let found = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert!(found.contains("/dir/up/list/two\n"), "{found}");
    assert!(!found.contains("/dir/up/dir\n"), "{found}");
    e2fsck_clean(disk.image());
}

#[test]
fn find_as_json_holds_paths_and_metadata() {
    let disk = Fixture::new();
    let json = dioxide([
        "find",
        "--json",
        &disk.at("/list"),
        "-type",
        "f",
        "-size",
        "+1",
    ])
    .json();
    assert_eq!(json.as_array().unwrap().len(), 1, "{json}");
    assert_eq!(json[0]["path"], "/list/two");
    assert_eq!(
        (&json[0]["size"], &json[0]["depth"]),
        (&22_222.into(), &1.into())
    );
    let none = dioxide(["find", "--json", &disk.at("/list"), "-false"]).json();
    assert_eq!(none, serde_json::json!([]));
}

#[test]
fn find_of_nonsense_is_usage_and_exits_2() {
    let disk = Fixture::new();
    for words in [["-frob", "x"], ["-size", "big"], ["(", "-true"]] {
        let ran = dioxide(["find", &disk.at("/"), words[0], words[1]]);
        assert_eq!((ran.status, ran.stdout.len()), (Some(2), 0), "{words:?}");
        assert!(ran.stderr.starts_with("dioxide: find: "), "{}", ran.stderr);
    }
}

#[test]
fn du_of_each_form_prints_what_gnu_du_prints() {
    dioxide_testkit::need_root!();
    let linux = Linux::new();
    for flags in [
        &[][..],
        &["-a"],
        &["-h"],
        &["-s"],
        &["-ab"],
        &["-d", "1"],
        &["-ac"],
        &["-al"],
        &["-sh"],
        &["-a", "--apparent-size"],
        &["-k"],
        &["-akx"],
    ] {
        let (mounted, own) = (linux.mounted("/"), linux.at("/"));
        let theirs = linux.theirs("du", &[flags, &[&*mounted]].concat());
        let ours = linux.ours(&[&["du"], flags, &[&*own]].concat());
        assert_eq!(sorted(&ours), sorted(&theirs), "{flags:?}");
    }
    let theirs = linux.theirs("du", &[&linux.mounted("/dir"), &linux.mounted("/hello")]);
    let ours = linux.ours(&["du", &linux.at("/dir"), &linux.at("/hello")]);
    assert_eq!(
        ours, theirs,
        "a file that was counted in /dir is not counted again"
    );
    for paths in [
        ["/log", "/log/c.gz"],
        ["/log/c.gz", "/log"],
        ["/large", "/large"],
    ] {
        let ours = paths.map(|path| linux.at(path));
        let ours = linux.ours(&["du", "-ac", &ours[0], &ours[1]]);
        let theirs = paths.map(|path| linux.mounted(path));
        let theirs = linux.theirs("du", &["-ac", &theirs[0], &theirs[1]]);
        assert_eq!(sorted(&ours), sorted(&theirs), "{paths:?}");
    }
    let all = linux.ours(&["du", "-sc", &linux.at("/**")]);
    let once = linux.ours(&["du", "-sc", &linux.at("/")]);
    assert_eq!(all.lines().last(), once.lines().last());
    let json = linux.ours(&["du", "-sc", "--json", &linux.at("/dir"), &linux.at("/log")]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let bytes = |at: usize| json[at]["bytes"].as_u64().unwrap();
    assert_eq!(json[2]["total"], true);
    assert_eq!(bytes(2), bytes(0) + bytes(1));
}

#[test]
fn image_is_the_same_however_it_is_spelled() {
    let disk = Fixture::new();
    let (dir, name) = (disk.image().parent(), disk.image().file_name());
    let name = name.unwrap().to_str().unwrap();
    let [first, second] = [format!("{name}:/"), format!("./{name}:/")];
    let hello = format!("{second}hello");
    let told = |words: &[&str]| {
        let mut command = command();
        let ran = command.args(words).current_dir(dir.unwrap()).output();
        Ran::from(ran.unwrap()).text().to_owned()
    };
    let found = told(&["find", &first, "-samefile", &hello]);
    assert_eq!(found, format!("{first}hello\n"));
    let once = told(&["du", "-s", &first]);
    assert_eq!(told(&["du", "-s", &first, &second]), once);
}

#[test]
fn df_of_each_form_prints_the_numbers_and_columns_of_gnu_df() {
    dioxide_testkit::need_root!();
    let linux = Linux::new();
    let image = linux.image.path().display().to_string();
    for flags in [
        &[][..],
        &["-h"],
        &["-i"],
        &["-T"],
        &["-iT"],
        &["-B", "1M"],
        &["-B1"],
        &["-ih"],
        &["-k"],
        &["-P"],
        &["-PT"],
        &["-Pi"],
        &["-P", "-B", "512"],
    ] {
        let mounted = linux.mounted("");
        let theirs = coreutils("df", &[flags, &[&*mounted]].concat());
        let ours = dioxide([&["df"], flags, &[&*image]].concat())
            .text()
            .to_owned();
        let fields = |text: &str| {
            let all: Vec<_> = text.split_whitespace().map(str::to_owned).collect();
            let end = all.len() - 1;
            all.into_iter()
                .enumerate()
                .filter(|(at, _)| *at != end)
                .map(|(_, field)| field)
                .collect::<Vec<_>>()
        };
        let device = linux.mount.device().unwrap().path().display().to_string();
        assert_eq!(
            fields(&ours),
            fields(&theirs.replace(&device, &image)),
            "{flags:?}"
        );
    }
    let json = dioxide(["df", "--json", &linux.at("/log")]).json();
    assert_eq!(
        (&json[0]["type"], &json[0]["block_size"]),
        (&"ext4".into(), &1024.into())
    );
}

#[test]
fn tree_draws_branches_and_counts() {
    let disk = Fixture::new();
    let root = disk.at("/dir");
    assert_eq!(
        dioxide(["tree", "-a", &root]).text(),
        format!("{root}\n├── .hidden\n└── a b\n\n1 directory, 1 file\n")
    );
    assert_eq!(
        dioxide(["tree", &root]).text(),
        format!("{root}\n└── a b\n\n0 directories, 1 file\n")
    );
    assert_eq!(
        dioxide(["tree", "-a", "-d", &root]).text(),
        format!("{root}\n└── .hidden\n\n1 directory\n")
    );
    let json = dioxide(["tree", "--json", "-L", "1", "-s", &disk.at("/list")]).json();
    assert_eq!(json[0]["contents"][0]["target"], "../hello");
    assert_eq!(json[0]["contents"][3]["size"], 22_222);
    assert_eq!(
        json[1],
        serde_json::json!({"type": "report", "directories": 0, "files": 4})
    );
}

#[test]
fn xattrs_are_told_as_getfattr_tells_them() {
    let disk = Fixture::new();
    disk.debugfs(&[
        "ea_set /hello user.comment dust",
        "ea_set /hello user.a \"\\001\\377\"",
    ]);
    let hello = disk.at("/hello");
    assert_eq!(
        dioxide(["xattr", "get", "user.comment", &hello]).text(),
        "dust"
    );
    assert_eq!(
        dioxide(["xattr", "get", "-e", "hex", "user.comment", &hello]).text(),
        "0x64757374\n"
    );
    assert_eq!(
        dioxide(["xattr", "get", "-e", "base64", "user.comment", &hello]).text(),
        "0sZHVzdA==\n"
    );
    assert_eq!(
        dioxide(["xattr", "list", "-R", &disk.at("/")]).text(),
        format!("# file: {hello}\nuser.a\nuser.comment\n\n")
    );
    let json = dioxide(["xattr", "list", "-d", "--json", &hello]).json();
    assert_eq!(json[0]["xattrs"][1]["value"], "dust");
    dioxide(["xattr", "set", "user.a", "0x00ff", &hello]).text();
    let bytes = dioxide(["xattr", "get", "--json", "user.a", &hello]).json();
    assert_eq!(bytes[0]["xattrs"][0]["value_hex"], "00ff");
    let bytes = dioxide(["xattr", "list", "-e", "hex", "--json", &hello]).json();
    assert_eq!(bytes[0]["xattrs"][0]["value"], "0x00ff");
    let ran = dioxide(["xattr", "get", "user.none", &hello]);
    assert_eq!(ran.status, Some(1));
    assert_eq!(
        ran.stderr,
        format!("dioxide: xattr: {hello}: user.none: No such extended attribute\n")
    );
}

#[test]
fn pattern_names_the_files_that_fit_it() {
    dioxide_testkit::need_root!();
    let linux = Linux::new();
    let names = |pattern: &str| linux.ours(&["ls", "-d", &linux.at(pattern)]);
    assert_eq!(names("/log/[a-b].gz"), "/log/a.gz\n/log/b.gz\n");
    assert_eq!(names("/log/[!a-b].gz"), "/log/c.gz\n");
    assert_eq!(names("/log/?.gz"), "/log/a.gz\n/log/b.gz\n/log/c.gz\n");
    assert_eq!(names("/**/est"), "/deep/er/est\n");
    assert_eq!(names("/d*/h*"), "/dir/hard\n");
    assert_eq!(names("/dir/.h*"), "/dir/.hidden\n");
    assert_eq!(names("/d*/"), "/deep/\n/dir/\n");
    assert_eq!(names("/deep/**"), "/deep\n/deep/er\n/deep/er/est\n");
    assert_eq!(names(r"/log/\[*"), "/log/[a].gz\n");
    // It exists as it is written, and fits a.gz as well.
    assert_eq!(names("/log/[a].gz"), "/log/[a].gz\n");
    let ran = dioxide(["ls", &linux.at("/log/*.xz")]);
    assert_eq!(ran.status, Some(1));
    assert!(
        ran.stderr
            .ends_with("/log/*.xz: no file fits this pattern\n"),
        "{}",
        ran.stderr
    );
}

/// A file whose name is a pattern stands for itself, and in front of other names only if they can be in it.
#[test]
fn name_that_is_a_pattern_does_not_hide_what_fits_it() {
    let disk = Fixture::new();
    disk.debugfs(&[
        "mkdir /q",
        "mkdir /q/d",
        "mkdir /q/d/e",
        "symlink /q/* /hello",
        r"symlink /q/d/\g /hello",
    ]);
    let names = |pattern: &str| {
        let ran = dioxide(["ls", "-d", &disk.at(pattern)]);
        ran.text().replace(&format!("{}:", disk.name()), "")
    };
    assert_eq!(names("/q/*"), "/q/*\n");
    assert_eq!(names("/q/*/e"), "/q/d/e\n");
    assert_eq!(names("/q/*/"), "/q/d/\n");
    // A backslash is one like other bytes in a name that is no pattern.
    assert_eq!(names(r"/q/d/\g"), "/q/d/\\g\n");
    assert_eq!(names(r"/q/*/\g"), "/q/d/\\g\n");
    dioxide(["mkdir", &disk.at(r"/q/d/\g\*")]).text();
    assert_eq!(names(r"/q/d/\g?"), "/q/d/g*\n");
    dioxide_testkit::e2fsck_clean(disk.image());
}

#[test]
fn image_whose_name_has_a_colon_and_a_slash_is_named_with_a_backslash() {
    let disk = Fixture::new();
    fs::create_dir(disk.beside("odd:")).unwrap();
    let image = disk.beside("odd:/disk.img");
    fs::copy(disk.image(), &image).unwrap();
    fs::write(disk.beside("odd:/small"), "small").unwrap();
    let word = image.display().to_string().replace(":/", r"\:/");
    for args in [
        &["df", &word][..],
        &["df", &format!("{word}:/")],
        &["ls", &format!("{word}:/hello")],
        &["cp", &word.replace("disk.img", "small"), &disk.at("/copy")],
    ] {
        dioxide(args).text();
    }
    dioxide_testkit::e2fsck_clean(disk.image());
}

#[test]
fn several_images_are_each_opened_once_in_one_call() {
    let (one, two) = (Fixture::new(), Fixture::new());
    two.debugfs(&["feature needs_recovery"]);
    let ran = dioxide([
        "cat",
        &one.at("/hello"),
        &two.at("/hello"),
        &one.at("/hello"),
        &two.at("/hello"),
    ]);
    assert_eq!(ran.stdout, b"hello, world\n".repeat(4));
    assert_eq!(ran.stderr.matches("warning: ").count(), 1, "{}", ran.stderr);
}

#[test]
fn operand_on_the_host_where_an_image_is_needed_is_usage_and_exits_2() {
    let disk = Fixture::new();
    let here = disk.beside("nothing").display().to_string();
    for name in ["ls", "cat", "stat", "du", "tree", "find", "chmod"] {
        let mut command = command();
        command.arg(name);
        if name == "chmod" {
            command.arg("644");
        }
        let output = command.arg(&here).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{name}: {stderr}");
        assert!(stderr.contains("write IMG:/path"), "{name}: {stderr}");
    }
    assert!(!fs::exists(&here).unwrap());
}

/// A directory that has a second name, as in a damaged image, must not make a tree of endless size.
#[test]
fn directory_with_two_names_is_entered_once_and_told() {
    let disk = Fixture::new();
    disk.debugfs(&[
        "mkdir /x",
        "mkdir /x/y",
        "link /x/y /x/z",
        "link /x /x/y/up",
    ]);
    for command in [&["find"][..], &["du"], &["tree"], &["ls", "-R"]] {
        let ran = dioxide([command, &[&disk.at("/x")]].concat());
        assert!(ran.stdout.len() < 4096, "{command:?}");
        assert!(
            command[0] == "ls" || ran.status == Some(2),
            "{command:?}: {}",
            ran.stderr
        );
    }
}

// Its line went on with the next file, or was not there.
#[test]
fn link_that_cannot_be_read_has_a_line_of_its_own_and_is_told() {
    let disk = Fixture::new();
    let (dir, link, next) = (disk.at("/x"), disk.at("/x/link"), disk.at("/x/next"));
    dioxide(["mkdir", &dir]).text();
    dioxide(["ln", "-s", &"far/".repeat(50), &link]).text();
    dioxide(["touch", &next]).text();
    disk.debugfs(&["sif /x/link block[0] 0"]);
    for (words, lines) in [
        (&["find", &dir, "-ls"][..], 3),
        (&["find", &dir, "-printf", "%p %l\n"], 3),
        (&["tree", &dir], 5),
        (&["stat", "-c", "%N %s", &link, &next], 2),
        (&["ls", "-l", &dir], 3),
    ] {
        let ran = dioxide(words);
        assert_eq!(ran.status, Some(2), "{words:?}");
        let told = format!("{link}: corrupted extent node");
        assert!(ran.stderr.contains(&told), "{words:?}: {}", ran.stderr);
        let shown = String::from_utf8(ran.stdout).unwrap();
        assert_eq!(shown.lines().count(), lines, "{words:?}: {shown}");
        assert!(!shown.contains(" -> "), "{shown}");
    }
    let ran = dioxide(["tree", "--json", &dir]);
    let told: serde_json::Value = serde_json::from_slice(&ran.stdout).unwrap();
    assert_eq!(told[0]["contents"][0]["name"], "link");
    assert_eq!(told[0]["contents"][1]["name"], "next");
    let ran = dioxide(["stat", "--json", &link]);
    let told: serde_json::Value = serde_json::from_slice(&ran.stdout).unwrap();
    assert_eq!(told[0]["size"], 200);
}

#[test]
fn name_that_could_drive_a_terminal_is_harmless_in_errors() {
    let disk = Fixture::new();
    let name = "\u{1b}[31m\n\u{9b}1m";
    dioxide(["mknod", "--fifo", &disk.at(&format!("/{name}"))]).text();
    let out = disk.beside("out");
    let there = out.join(name);
    fs::create_dir_all(&there).unwrap();
    let [out, missing] = [&out, &there.join("no.img")].map(|path| path.display().to_string());
    for words in [
        ["cat", &disk.at("/*1m")].as_slice(),
        &["cp", "-r", &disk.at("/*1m"), &out],
        &["info", &missing],
    ] {
        let ran = dioxide(words);
        assert_eq!(ran.status, Some(2), "{words:?}");
        let told = ran.stderr.strip_suffix('\n').expect("a line");
        assert!(!told.contains(char::is_control), "{told:?}");
        assert!(told.contains("?[31m"), "{told:?}");
    }
}
