//! Calls that Linux refuses for a reason that is easily mistaken for another: the same `errno` from dioxide
//! and, where it can be asked, from the kernel.

use crate::calls::{self, Call, Dioxide};
use crate::linux;
use crate::random_calls::open_fs;
use crate::tree::{Answer, Tree};
use dioxide::RenameMode::{self, Exchange, NoReplace, Replace};
use dioxide::format::inode::InodeFlags;
use dioxide_testkit::{Image, Mount, have_root};

fn create(path: &str, exclusive: bool) -> Call {
    Call::Create {
        path: path.into(),
        exclusive,
        mode: 0o644,
    }
}

fn mkdir(path: &str) -> Call {
    Call::Mkdir {
        path: path.into(),
        mode: 0o755,
    }
}

fn symlink(target: &str, path: &str) -> Call {
    Call::Symlink {
        target: target.into(),
        path: path.into(),
    }
}

fn link(old: &str, new: &str) -> Call {
    Call::Link {
        old: old.into(),
        new: new.into(),
    }
}

fn rename(from: &str, to: &str, mode: RenameMode) -> Call {
    Call::Rename {
        from: from.into(),
        to: to.into(),
        mode,
        whiteout: false,
    }
}

fn whiteout(from: &str, to: &str, mode: RenameMode) -> Call {
    Call::Rename {
        from: from.into(),
        to: to.into(),
        mode,
        whiteout: true,
    }
}

fn unlink(path: &str) -> Call {
    Call::Unlink { path: path.into() }
}

fn link_open(path: &str) -> Call {
    Call::LinkOpen {
        slot: 0,
        path: path.into(),
    }
}

/// A directory `d`, a file `f`, which is open, symlinks to both and to what cannot be, and a file that is append-only.
fn prepared() -> Vec<(Call, Answer)> {
    let open = Call::Open {
        path: b"/f".into(),
        slot: 0,
    };
    let long = "n".repeat(256);
    [
        mkdir("/d"),
        create("/f", true),
        symlink("f", "/to-f"),
        symlink("d", "/to-d"),
        symlink(&long, "/to-long"),
        symlink("f/", "/to-f-slash"),
        symlink("to-itself/", "/to-itself"),
        open,
        create("/fixed", true),
        Call::SetFlags {
            path: b"/fixed".into(),
            flags: InodeFlags::APPEND.0,
        },
    ]
    .map(|call| (call, Ok(())))
    .into()
}

fn refused() -> Vec<(Call, Answer)> {
    let long = "n".repeat(256);
    let too_long = "t".repeat(4096);
    // Longer than a block.
    let unfit = "t".repeat(1024);
    let calls = [
        (create("/", true), libc::EEXIST),
        (create("/d/..", true), libc::EEXIST),
        (create("/", false), libc::EISDIR),
        (create("/f/", false), libc::EISDIR),
        (create("/to-f-slash", false), libc::EISDIR),
        (create("/to-itself", false), libc::EISDIR),
        (create("/new/", true), libc::EISDIR),
        (link("/f", "/d/"), libc::EEXIST),
        (link("/f", "/"), libc::EEXIST),
        (link("/f", "/new/"), libc::ENOENT),
        (link_open("/new/"), libc::ENOENT),
        (link_open("/d/"), libc::EEXIST),
        (symlink("x", "/d/"), libc::EEXIST),
        (symlink("x", "/new/"), libc::ENOENT),
        (symlink(&too_long, "/none/x"), libc::ENAMETOOLONG),
        (symlink("", "/none/x"), libc::ENOENT),
        (symlink(&unfit, "/none/x"), libc::ENOENT),
        (symlink(&unfit, "/f"), libc::EEXIST),
        (symlink(&unfit, "/new"), libc::ENAMETOOLONG),
        (mkdir(&format!("/f/{long}")), libc::ENOTDIR),
        (mkdir(&format!("/d/{long}")), libc::ENAMETOOLONG),
        (
            rename("/none", &format!("/d/{long}"), Replace),
            libc::ENOENT,
        ),
        (
            rename("/f", &format!("/d/{long}"), Replace),
            libc::ENAMETOOLONG,
        ),
        (
            rename("/fixed", &format!("/d/{long}"), Replace),
            libc::ENAMETOOLONG,
        ),
        (rename("/fixed", "/f", NoReplace), libc::EEXIST),
        (rename("/fixed", "/new", Exchange), libc::ENOENT),
        (rename("/fixed", "/new/", Replace), libc::ENOTDIR),
        (rename("/fixed", "/new", Replace), libc::EPERM),
        (rename("/fixed", "/f", Exchange), libc::EPERM),
        (rename("/f", "/fixed", Replace), libc::EPERM),
        (whiteout("/none", "/d/..", Exchange), libc::EINVAL),
        (whiteout("/fixed", "/f", NoReplace), libc::EEXIST),
        (whiteout("/fixed", "/new", Replace), libc::EPERM),
        (unlink("/fixed"), libc::EPERM),
        (unlink("/fixed/"), libc::ENOTDIR),
        (link("/fixed", "/new"), libc::EPERM),
        (link("/fixed", "/f"), libc::EEXIST),
        (rename("/f", "/d/", NoReplace), libc::EEXIST),
        (rename("/f", "/d/..", NoReplace), libc::EEXIST),
        (rename("/f", "/d/..", Replace), libc::EBUSY),
        (rename("/d", "/f/", Exchange), libc::ENOTDIR),
        (rename("/f/", "/d", Exchange), libc::ENOTDIR),
        (unlink("/to-d/"), libc::ENOTDIR),
        (unlink("/to-long/"), libc::ENOTDIR),
        (unlink("/d/"), libc::EISDIR),
        (unlink("/f/"), libc::ENOTDIR),
    ];
    let refused = calls.map(|(call, errno)| (call, Err(errno)));
    let possible = [
        // A slash behind the new name is about what has it.
        rename("/f", "/d/", Exchange),
        // Nothing happens.
        rename("/fixed", "/fixed", Replace),
        whiteout("/fixed", "/fixed", Replace),
    ];
    let possible = possible.map(|call| (call, Ok(())));
    refused.into_iter().chain(possible).collect()
}

#[test]
fn refused_calls_have_the_errno_of_linux() {
    let image = Image::builder().size(16 << 20).block_size(1024).build();
    let copy = image.copy();
    let (calls, expected): (Vec<Call>, Vec<Answer>) =
        prepared().into_iter().chain(refused()).unzip();
    let mut tree = Tree::new(1024);
    let by_model: Vec<Answer> = calls
        .iter()
        .map(|call| calls::apply(call, &mut tree))
        .collect();
    let mut side = Dioxide::new(open_fs(&image));
    let by_dioxide: Vec<Answer> = calls.iter().map(|call| side.run(call)).collect();
    let by_kernel = have_root().then(|| {
        let mount = Mount::ext4(copy.path(), "");
        let answers = linux::run_all(mount.path(), &calls);
        mount.unmount();
        answers
    });
    for (at, call) in calls.iter().enumerate() {
        assert_eq!(by_dioxide[at], expected[at], "dioxide: {call:?}");
        assert_eq!(by_model[at], expected[at], "the model: {call:?}");
        if let Some(by_kernel) = &by_kernel {
            assert_eq!(by_kernel[at], expected[at], "the kernel: {call:?}");
        }
    }
}

/// In an immutable directory, what is there or is not comes first.
fn in_a_fixed_directory() -> Vec<(Call, Answer)> {
    let made = [
        mkdir("/i"),
        mkdir("/i/d"),
        create("/i/f", true),
        mkdir("/o"),
        create("/o/f", true),
        Call::SetFlags {
            path: b"/i".into(),
            flags: InodeFlags::IMMUTABLE.0,
        },
    ];
    let rmdir = |path: &str| Call::Rmdir { path: path.into() };
    let refused = [
        (create("/i/f", true), libc::EEXIST),
        (create("/i/new", true), libc::EPERM),
        (create("/i/new", false), libc::EPERM),
        (mkdir("/i/d"), libc::EEXIST),
        (mkdir("/i/new"), libc::EPERM),
        (symlink("x", "/i/f"), libc::EEXIST),
        (symlink("x", "/i/new"), libc::EPERM),
        (link("/o/f", "/i/f"), libc::EEXIST),
        (link("/o/f", "/i/new"), libc::EPERM),
        (unlink("/i/none"), libc::ENOENT),
        (unlink("/i/f"), libc::EPERM),
        (rmdir("/i/none"), libc::ENOENT),
        (rmdir("/i/f"), libc::EPERM),
        (rmdir("/i/d"), libc::EPERM),
        (rename("/i/none", "/o/f", Replace), libc::ENOENT),
        (rename("/i/f", "/o/f", Replace), libc::EPERM),
        (rename("/i/f", "/o/f", NoReplace), libc::EEXIST),
        (rename("/i/f", "/o/new", Exchange), libc::ENOENT),
        (rename("/o/f", "/i/f", Replace), libc::EPERM),
        (rename("/o/f", "/i/new", Replace), libc::EPERM),
        (rename("/o/none", "/i/f", Replace), libc::ENOENT),
        (rename("/i/d", "/i/d/new", Replace), libc::EINVAL),
    ];
    let refused = refused.map(|(call, errno)| (call, Err(errno)));
    let free = Call::SetFlags {
        path: b"/i".into(),
        flags: 0,
    };
    let made = made.map(|call| (call, Ok(())));
    made.into_iter()
        .chain(refused)
        .chain([(free, Ok(()))])
        .collect()
}

/// In an append-only directory names come, and none goes or leads elsewhere.
fn in_a_growing_directory() -> Vec<(Call, Answer)> {
    let flags = |flags| Call::SetFlags {
        path: b"/a".into(),
        flags,
    };
    let rmdir = |path: &str| Call::Rmdir { path: path.into() };
    let refused = |call, errno| (call, Err(errno));
    let done = |call| (call, Ok(()));
    vec![
        done(mkdir("/a")),
        done(mkdir("/a/d")),
        done(create("/a/f", true)),
        done(mkdir("/o")),
        done(create("/o/f", true)),
        done(create("/o/g", true)),
        done(flags(InodeFlags::APPEND.0)),
        done(create("/a/new", true)),
        done(mkdir("/a/e")),
        done(symlink("x", "/a/l")),
        done(link("/o/f", "/a/h")),
        done(rename("/o/g", "/a/g", Replace)),
        refused(create("/a/f", true), libc::EEXIST),
        refused(mkdir("/a/d"), libc::EEXIST),
        refused(unlink("/a/none"), libc::ENOENT),
        refused(unlink("/a/new"), libc::EPERM),
        refused(unlink("/a/d"), libc::EPERM),
        refused(rmdir("/a/none"), libc::ENOENT),
        refused(rmdir("/a/d"), libc::EPERM),
        refused(rmdir("/a/f"), libc::EPERM),
        refused(rename("/a/none", "/o/f", Replace), libc::ENOENT),
        refused(rename("/a/f", "/o/new", Replace), libc::EPERM),
        refused(rename("/a/f", "/a/other", Replace), libc::EPERM),
        refused(rename("/a/f", "/o/f", NoReplace), libc::EEXIST),
        refused(rename("/o/f", "/a/f", Replace), libc::EPERM),
        refused(rename("/o/f", "/a/f", NoReplace), libc::EEXIST),
        refused(rename("/o/f", "/a/f", Exchange), libc::EPERM),
        refused(rename("/a/f", "/o/f", Exchange), libc::EPERM),
        refused(whiteout("/a/f", "/o/new", Replace), libc::EPERM),
        done(whiteout("/o/f", "/a/whole", Replace)),
        done(flags(0)),
        done(unlink("/a/new")),
    ]
}

#[test]
fn calls_in_an_append_only_directory_have_the_errno_of_linux() {
    compared(in_a_growing_directory());
}

#[test]
fn calls_in_an_immutable_directory_have_the_errno_of_linux() {
    compared(in_a_fixed_directory());
}

/// The kernel and dioxide answer as is expected.
fn compared(calls: Vec<(Call, Answer)>) {
    let image = Image::builder().size(16 << 20).block_size(1024).build();
    let copy = image.copy();
    let (calls, expected): (Vec<Call>, Vec<Answer>) = calls.into_iter().unzip();
    if have_root() {
        let mount = Mount::ext4(copy.path(), "");
        let by_kernel = linux::run_all(mount.path(), &calls);
        mount.unmount();
        for (at, call) in calls.iter().enumerate() {
            assert_eq!(by_kernel[at], expected[at], "the kernel: {call:?}");
        }
    }
    let mut side = Dioxide::new(open_fs(&image));
    for (call, expected) in calls.iter().zip(expected) {
        assert_eq!(side.run(call), expected, "dioxide: {call:?}");
    }
}
