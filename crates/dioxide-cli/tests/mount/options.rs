//! What each option of the mount does, as programs see it.

use crate::bed::{
    Bed, NO_RINGS, Point, RINGS, Rings, SOON, dioxide, is_mounted, limited, run, text, transports,
    umount,
};
use crate::need_fuse;
use dioxide_testkit::{
    Dir, Image, LoopDevice, Mount, debugfs, debugfs_query, e2fsck_clean, pattern,
};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const M: u64 = 1 << 20;

/// Mounts by the command, which returns when the mount serves; what it said.
#[track_caller]
fn mount(image: &Path, dir: &Point, options: &str) -> String {
    let mut command = dioxide();
    command
        .args(["mount", "-o", NO_RINGS, "-o", options])
        .args([image, dir.path()]);
    let output = command.output().expect("the command is there");
    let said = text(output.stderr);
    assert!(output.status.success(), "{options}: {said}");
    assert!(is_mounted(dir.path()));
    said
}

#[test]
fn damaged_journal_is_told_of_once() {
    need_fuse!();
    let image = Image::builder().size(16 << 20).block_size(1024).build();
    debugfs(image.path(), &["feature needs_recovery"]);
    let block: u64 = debugfs_query(image.path(), "bmap <8> 0")
        .trim()
        .parse()
        .expect("a block");
    let file = OpenOptions::new().write(true).open(image.path());
    file.expect("the image")
        .write_all_at(&[0; 4], block << 10)
        .expect("a write");
    let dir = Point::new();
    let said = mount(image.path(), &dir, NO_RINGS);
    umount(dir.path());
    assert_eq!(said.matches("not fit for it").count(), 1, "{said}");
    let advice = |line: &str| line.matches("e2fsck").count();
    assert!(said.lines().all(|line| advice(line) == 1), "{said}");
    assert!(said.contains("mounted read-only: "), "{said}");
}

#[test]
fn errors_of_which_the_last_is_not_recorded_are_counted() {
    need_fuse!();
    let image = Image::builder().size(16 << 20).build();
    debugfs(image.path(), &["ssv state 2", "ssv error_count 3"]);
    let dir = Point::new();
    let said = mount(image.path(), &dir, NO_RINGS);
    umount(dir.path());
    assert!(said.contains("(3 recorded)"), "{said}");
}

/// What the image takes of its host, in bytes.
fn taken(image: &Path) -> u64 {
    fs::metadata(image).expect("the image").blocks() * 512
}

/// Everything is durable.
fn sync(bed: &Bed) {
    File::open(bed.root())
        .and_then(|root| root.sync_all())
        .expect("a sync");
}

/// What the host gets back of a file of 32 MiB that is removed, by commits and by `step`. The kernel forgets the file some time after
/// it has answered, and only then its blocks are free: so both come again until most is back, or for so long.
fn given_back(bed: &Bed, patience: Duration, step: impl Fn()) -> u64 {
    let path = bed.at("large");
    fs::write(&path, pattern(5, 0, 32 << 20)).expect("room");
    sync(bed);
    let before = taken(bed.image());
    fs::remove_file(&path).expect("it is there");
    let until = Instant::now() + patience;
    loop {
        sync(bed);
        step();
        let given = before.saturating_sub(taken(bed.image()));
        if given >= 30 * M || Instant::now() > until {
            return given;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn discard_gives_freed_blocks_back_and_nodiscard_keeps_them() {
    need_fuse!();
    for (options, gives) in [("discard", true), ("nodiscard", false)] {
        let bed = Bed::new(options);
        let patience = if gives { SOON } else { SOON / 40 };
        let given = given_back(&bed, patience, || {});
        assert_eq!(given >= 30 * M, gives, "{options}: {given} bytes");
        bed.finish();
    }
}

#[test]
fn fitrim_of_the_mount_gives_back_what_is_free() {
    need_fuse!();
    let bed = Bed::new("nodiscard");
    let given = given_back(&bed, SOON, || {
        let said = run(limited("fstrim").arg("-v").arg(bed.root()));
        assert!(said.contains("bytes) trimmed"), "{said}");
    });
    assert!(given >= 30 * M, "{given} bytes");
    bed.finish();
}

// It said that it was mounted, and then had no descriptors left to serve with.
#[test]
fn mount_that_finds_too_few_descriptors_says_so() {
    need_fuse!();
    for options in transports() {
        let (image, dir) = (Image::builder().size(16 * M).build(), Point::new());
        let _rings = (*options == RINGS).then(|| Rings::set("Y"));
        let mut mounted = 0;
        for limit in 7..40 {
            let mut command = Command::new("sh");
            let script = format!("ulimit -n {limit}; exec \"$0\" mount -o \"$1\" \"$2\" \"$3\"");
            command.args(["-c", &script, env!("CARGO_BIN_EXE_dioxide"), options]);
            let output = command.args([image.path(), dir.path()]).output().unwrap();
            let is_there = is_mounted(dir.path());
            let expected = if is_there { Some(0) } else { Some(2) };
            assert_eq!(output.status.code(), expected, "{limit}: {output:?}");
            if is_there {
                umount(dir.path());
                mounted += 1;
            }
        }
        assert!(mounted > 0, "{options}");
        e2fsck_clean(image.path());
    }
}

#[test]
fn image_within_an_image_is_mounted_by_its_place() {
    need_fuse!();
    let inner = Image::builder().size(16 * M).build();
    let outer = Image::blank(Dir::Tmpfs, 20 * M);
    let mut file = OpenOptions::new().write(true).open(outer.path()).unwrap();
    file.write_all(&vec![0xA5; M as usize]).unwrap();
    file.write_all(&fs::read(inner.path()).unwrap()).unwrap();
    file.write_all(&vec![0xA5; M as usize]).unwrap();
    drop(file);
    let dir = Point::new();
    mount(outer.path(), &dir, "img_offset=1M");
    fs::write(dir.path().join("f"), pattern(1, 0, 100_000)).unwrap();
    umount(dir.path());
    let bytes = fs::read(outer.path()).unwrap();
    let around = [
        &bytes[..M as usize],
        &bytes[17 * M as usize..18 * M as usize],
    ];
    assert!(around.into_iter().flatten().all(|&byte| byte == 0xA5));
    fs::write(inner.path(), &bytes[M as usize..17 * M as usize]).unwrap();
    e2fsck_clean(inner.path());
    let fs = dioxide::Fs::open(inner.path(), &dioxide::MountOptions::new()).unwrap();
    assert_eq!(fs.metadata("/f").unwrap().size, 100_000);
}

/// By a backup of the superblock: read-only, since the others are not as new.
#[test]
fn backup_superblock_shows_what_the_first_does_not() {
    need_fuse!();
    let image = Image::builder().size(64 * M).block_size(1024).build();
    let dir = Point::new();
    mount(image.path(), &dir, "rw");
    fs::write(dir.path().join("f"), "x").unwrap();
    umount(dir.path());
    let file = OpenOptions::new().write(true).open(image.path()).unwrap();
    file.write_all_at(&[0; 1024], 1024).unwrap();
    let mut command = dioxide();
    command.arg("mount").args([image.path(), dir.path()]);
    assert_eq!(command.output().unwrap().status.code(), Some(2));
    mount(image.path(), &dir, "sb=8193");
    assert_eq!(fs::read(dir.path().join("f")).unwrap(), b"x");
    let refused = fs::write(dir.path().join("g"), "y").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    umount(dir.path());
}

#[test]
fn journal_is_left_alone_by_noload_and_read_by_ro() {
    need_fuse!();
    let bed = Bed::new("");
    let mut file = File::create(bed.at("f")).unwrap();
    file.write_all(b"synced").unwrap();
    file.sync_all().unwrap();
    drop(file);
    let image = bed.kill();
    let before = fs::read(image.path()).unwrap();
    let dir = Point::new();
    for options in ["noload", "norecovery"] {
        let said = mount(image.path(), &dir, options);
        assert!(said.contains("read-only"), "{said}");
        assert!(
            !dir.path().join("f").exists(),
            "{options} has read the journal"
        );
        umount(dir.path());
    }
    mount(image.path(), &dir, "ro");
    assert_eq!(fs::read(dir.path().join("f")).unwrap(), b"synced");
    umount(dir.path());
    assert!(
        fs::read(image.path()).unwrap() == before,
        "something was written"
    );
    mount(image.path(), &dir, "rw");
    assert_eq!(fs::read(dir.path().join("f")).unwrap(), b"synced");
    umount(dir.path());
    e2fsck_clean(image.path());
}

#[test]
fn data_is_ordered_or_writeback_and_not_journalled() {
    need_fuse!();
    for options in ["data=ordered", "data=writeback"] {
        let bed = Bed::new(options);
        fs::write(bed.at("f"), pattern(3, 0, 300_000)).unwrap();
        assert!(fs::read(bed.at("f")).unwrap() == pattern(3, 0, 300_000));
        bed.finish();
    }
    let (image, dir) = (Image::builder().size(16 * M).build(), Point::new());
    let mut command = dioxide();
    command.args(["mount", "-o", "data=journal"]);
    let output = command.args([image.path(), dir.path()]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = text(output.stderr);
    assert!(said.contains("data=journal"), "{said}");
    assert!(!is_mounted(dir.path()));
}

#[test]
fn device_that_cannot_be_written_is_mounted_read_only_and_said_so() {
    need_fuse!();
    let image = Image::builder().size(16 * M).build();
    let device = LoopDevice::attach_with(image.path(), &["--read-only"]);
    let dir = Point::new();
    let said = mount(device.path(), &dir, "rw");
    assert!(said.contains("read-only"), "{said}");
    let refused = fs::write(dir.path().join("f"), "x").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    umount(dir.path());
}

/// What decides about locks decides nothing about what is read.
#[test]
fn policies_and_kinds_of_dioread_serve_the_same() {
    need_fuse!();
    for options in [
        "dio_policy=v5.6",
        "dio_policy=v6.4",
        "dio_policy=best",
        // The policy that asks for it.
        "dio_policy=iomap55,dioread_lock",
        "dio_policy=iomap55,dioread_nolock",
        "barrier=0",
        "nobarrier",
    ] {
        let bed = Bed::new(options);
        let mut open = OpenOptions::new();
        open.read(true)
            .write(true)
            .create(true)
            .custom_flags(libc::O_DIRECT);
        let file = open.open(bed.at("f")).unwrap();
        // Aligned, as O_DIRECT wants it: behind the first multiple of a block.
        let mut memory = vec![0u8; 12 << 10];
        let skip = memory.as_ptr().align_offset(4096);
        let block = &mut memory[skip..skip + 4096];
        for number in 0..32u64 {
            block.copy_from_slice(&pattern(number, 0, 4096));
            file.write_all_at(block, number * 4096).unwrap();
        }
        block[..2048].fill(7);
        file.write_all_at(&block[..2048], 512).unwrap();
        for number in 1..32u64 {
            file.read_exact_at(block, number * 4096).unwrap();
            assert!(
                *block == pattern(number, 0, 4096),
                "{options}: block {number}"
            );
        }
        file.read_exact_at(block, 0).unwrap();
        assert!(block[512..2560].iter().all(|&byte| byte == 7), "{options}");
        drop(file);
        bed.finish();
    }
}

#[test]
fn everybody_may_everything_with_fakeroot() {
    need_fuse!();
    let bed = Bed::new("fakeroot");
    fs::set_permissions(bed.root(), Permissions::from_mode(0o700)).unwrap();
    fs::write(bed.at("secret"), "x").unwrap();
    fs::set_permissions(bed.at("secret"), Permissions::from_mode(0o600)).unwrap();
    let mut nobody = limited("setpriv");
    nobody.args([
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
        "sh",
        "-c",
    ]);
    let script = "cat secret && echo y > new && chown 5:6 new && mkdir dir && rm secret";
    assert_eq!(run(nobody.arg(script).current_dir(bed.root())), "x");
    let told = fs::metadata(bed.at("new")).unwrap();
    assert_eq!((told.uid(), told.gid()), (5, 6));
    bed.finish();
}

#[test]
fn smallest_caches_and_fewest_threads_serve() {
    need_fuse!();
    let bed = Bed::new(
        "metadata_cache=0,name_cache=0,max_threads=1,max_background=1,attr_timeout=0,entry_timeout=0",
    );
    fs::create_dir(bed.at("d")).unwrap();
    for number in 0..500 {
        fs::write(bed.at(&format!("d/{number}")), number.to_string()).unwrap();
    }
    for number in (0..500).rev() {
        let read = fs::read_to_string(bed.at(&format!("d/{number}"))).unwrap();
        assert_eq!(read, number.to_string());
    }
    assert_eq!(fs::read_dir(bed.at("d")).unwrap().count(), 500);
    bed.finish();
}

/// What is kept for somebody: he, and root, can have it, and others cannot.
#[test]
fn reserved_blocks_are_for_root_and_who_is_named() {
    need_fuse!();
    let image = || Image::builder().size(16 * M).args(&["-m", "50"]).build();
    let script = "dd if=/dev/zero of=f bs=64k count=144 status=none conv=fsync && stat -c %s f";
    for (options, fits) in [("", false), ("resuid=65534", true), ("resgid=65534", true)] {
        let bed = Bed::with(image(), options);
        fs::set_permissions(bed.root(), Permissions::from_mode(0o777)).unwrap();
        let mut nobody = limited("setpriv");
        nobody.args([
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "sh",
            "-c",
            script,
        ]);
        let output = nobody.current_dir(bed.root()).output().unwrap();
        let said = text(output.stderr);
        assert_eq!(output.status.success(), fits, "{options}: {said}");
        assert!(fits || said.contains("No space left"), "{said}");
        fs::remove_file(bed.at("f")).unwrap();
        run(limited("sh").args(["-c", script]).current_dir(bed.root()));
        bed.finish();
    }
}

/// Opens `f` for appending at a first line of input, says so, and has it open until a second one.
const HOLD: &str = "read -r _ && exec 3>>f && echo && read -r _";

/// The kernel writes pages back by the handle that was opened last, whoever wrote them.
#[test]
fn reserved_blocks_are_for_root_whoever_opens_the_file_after_that() {
    need_fuse!();
    let image = Image::builder().size(16 * M).args(&["-m", "50"]).build();
    let bed = Bed::with(image, "");
    fs::set_permissions(bed.root(), Permissions::from_mode(0o777)).unwrap();
    let nobody = |script: &str| {
        let mut command = limited("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        command.args(["sh", "-c", script]).current_dir(bed.root());
        command
    };
    // A process that begins later would close what it has inherited, and so have the pages written.
    let mut last = nobody(HOLD)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut say, mut said) = (last.stdin.take().unwrap(), last.stdout.take().unwrap());
    let fill = "dd if=/dev/zero of=full bs=64k status=none conv=fsync";
    let full = |output: Output| text(output.stderr).contains("No space left");
    assert!(full(nobody(fill).output().unwrap()));

    let file = File::create(bed.at("f")).unwrap();
    fs::set_permissions(bed.at("f"), Permissions::from_mode(0o666)).unwrap();
    let content = pattern(3, 0, M as usize / 4);
    file.write_all_at(&content, 0).unwrap();
    say.write_all(b"\n").unwrap();
    said.read_exact(&mut [0]).unwrap();
    file.sync_all().expect("root may use what is reserved");
    drop((file, say));
    last.wait().unwrap();
    let append = "dd if=/dev/zero of=f bs=64k count=4 oflag=append status=none conv=notrunc,fsync";
    assert!(full(nobody(append).output().unwrap()));
    let image = bed.finish();
    let kernel = Mount::ext4(image.path(), "ro");
    let kept = fs::read(kernel.path().join("f")).unwrap();
    assert!(kept.starts_with(&content));
}

/// `truncate(2)`, which opens no file: the file gets its first block.
#[test]
fn reserved_blocks_are_for_root_who_makes_an_inline_file_longer() {
    need_fuse!();
    for option in ["rw", "resuid=65534"] {
        let image = Image::builder().size(16 * M).block_size(4096);
        let image = image.args(&["-m", "50"]).features("inline_data");
        let bed = Bed::with(image.build(), option);
        fs::set_permissions(bed.root(), Permissions::from_mode(0o777)).unwrap();
        fs::write(bed.at("inline"), "short").unwrap();
        let owner = if option == "rw" { 0 } else { 65534 };
        chown(bed.at("inline"), Some(owner), None).unwrap();
        let user = |uid: u32, script: &str| {
            let mut command = limited("setpriv");
            command
                .arg(format!("--reuid={uid}"))
                .args(["--regid=1", "--clear-groups"]);
            command.args(["sh", "-c", script]).current_dir(bed.root());
            command.output().unwrap()
        };
        let fill = "dd if=/dev/zero of=full bs=64k status=none conv=fsync";
        assert!(text(user(1, fill).stderr).contains("No space left"));
        let truncate = "python3 -c 'import os; os.truncate(\"inline\", 100000)'";
        let done = user(owner, truncate);
        assert!(done.status.success(), "{option}: {done:?}");
        let content = fs::read(bed.at("inline")).unwrap();
        assert!(content.len() == 100_000 && content.starts_with(b"short\0"));
        bed.finish();
    }
}

/// What is made in directories of other groups, with and without the setgid bit, is as on a mount of Linux.
#[test]
fn groups_of_new_files_are_those_of_linux() {
    need_fuse!();
    let script = "umask 022; for d in plain setgid; do
        touch $d/f; mkdir $d/d; ln -s target $d/s; mkfifo $d/p; mkdir $d/d/d; touch $d/d/f
    done; find plain setgid -mindepth 1 -printf '%p %m %G\\n' | sort";
    let made_in = |root: &Path| {
        run(Command::new("sh")
            .args([
                "-ec",
                "mkdir -m 777 plain setgid; chgrp 100 plain; chgrp 200 setgid; chmod g+s setgid",
            ])
            .current_dir(root));
        let mut nobody = Command::new("setpriv");
        nobody.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        run(nobody.args(["sh", "-ec", script]).current_dir(root))
    };
    let image = || Image::builder().size(16 * M).build();
    for (options, group) in [
        ("grpid", 100),
        ("bsdgroups", 100),
        ("nogrpid", 65534),
        ("sysvgroups", 65534),
    ] {
        let bed = Bed::with(image(), options);
        let ours = made_in(bed.root());
        bed.finish();
        let file = format!("plain/f 644 {group}");
        assert!(ours.contains(&file), "{options}: {ours}");
        let theirs = image();
        let mount = Mount::ext4(theirs.path(), options);
        assert_eq!(ours, made_in(mount.path()), "{options}");
        mount.unmount();
    }
}

/// It can be read, and says from the beginning what it lacks.
#[test]
fn image_without_its_journal_is_mounted_read_only() {
    need_fuse!();
    let image = Image::builder()
        .size(16 * M)
        .features("^has_journal")
        .build();
    let of_journal = [
        "ssv journal_uuid 11111111-1111-1111-1111-111111111111",
        "ssv journal_dev 1",
        "feature has_journal",
    ];
    debugfs(image.path(), &of_journal);
    let dir = Point::new();
    let said = mount(image.path(), &dir, "rw");
    assert!(
        said.contains("read-only") && said.contains("journal_path="),
        "{said}"
    );
    let error = File::create(dir.path().join("f")).expect_err("nothing is written");
    assert_eq!(error.raw_os_error(), Some(libc::EROFS));
    umount(dir.path());
}

/// Room that is kept for root is kept from names and attributes of others too, and room for maps from all content.
#[test]
fn names_and_attributes_leave_what_is_reserved() {
    need_fuse!();
    let image = Image::builder().size(16 * M).block_size(1024);
    let image = image.features("^inline_data").args(&["-N", "8000"]).build();
    let bed = Bed::with(image, "nowriteback");
    fs::set_permissions(bed.root(), Permissions::from_mode(0o777)).unwrap();
    let fill = r#"
        dd if=/dev/zero of=a bs=64k status=none; dd if=/dev/zero of=a bs=1k seek=$(stat -c %s a) oflag=seek_bytes status=none
        mkdir d 2>&1
        ln -s $(printf %0300d 0) s 2>&1
        setfattr -n user.x -v $(printf %0700d 0) a 2>&1
        i=0; while ln -s x $(printf %0100d $i) 2>/dev/null; do i=$((i + 1)); done; [ $i -lt 100 ]
        for i in $(seq 1 2 199); do fallocate -p -o ${i}k -l 1k a || exit 1; done"#;
    let mut nobody = limited("setpriv");
    nobody.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    let output = nobody.args(["sh", "-c", fill]).current_dir(bed.root());
    let output = output.output().unwrap();
    let said = text(output.stdout);
    assert!(output.status.success(), "{said}{}", text(output.stderr));
    assert_eq!(said.matches("No space left").count(), 3, "{said}");
    let kept = "for i in $(seq 300); do mkdir r$i; done; dd if=/dev/zero of=b bs=1k count=300 status=none conv=fsync";
    run(limited("sh").args(["-ec", kept]).current_dir(bed.root()));
    bed.finish();
}

/// Of pages that the kernel gives back when there is no room for all, what fits is written.
#[test]
fn written_back_pages_take_the_room_that_there_is() {
    need_fuse!();
    for transport in transports() {
        let image = Image::builder().size(64 * M).args(&["-m", "0"]).build();
        let bed = Bed::with(image, transport);
        let (block, free) = free(bed.root());
        let keep = File::create(bed.at("keep")).unwrap();
        let mode = rustix::fs::FallocateFlags::empty();
        rustix::fs::fallocate(&keep, mode, 0, free - (256 << 10)).unwrap();
        let left = free_bytes(bed.root());
        let mut file = File::create(bed.at("f")).unwrap();
        file.write_all(&pattern(1, 0, M as usize)).unwrap();
        let refused = file.sync_all().unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::ENOSPC));
        let unused = free_bytes(bed.root());
        assert!(left >= 128 << 10 && unused <= 8 * block, "{left} {unused}");
        drop((keep, file));
        bed.finish();
    }
}

/// Both were open when it was found out; who opens the file later was not concerned.
#[test]
fn want_of_room_is_told_once_to_each_descriptor_that_reads_and_writes() {
    need_fuse!();
    for transport in transports() {
        let image = Image::builder().size(64 * M).args(&["-m", "0"]).build();
        let bed = Bed::with(image, transport);
        let keep = File::create(bed.at("keep")).unwrap();
        let mode = rustix::fs::FallocateFlags::empty();
        let most = free_bytes(bed.root()) - (256 << 10);
        rustix::fs::fallocate(&keep, mode, 0, most).unwrap();
        File::create(bed.at("f")).unwrap();
        let open = || {
            let both = OpenOptions::new().read(true).write(true).clone();
            both.open(bed.at("f")).unwrap()
        };
        let files = [open(), open()];
        files[0]
            .write_all_at(&pattern(1, 0, M as usize), 0)
            .unwrap();
        for file in &files {
            let refused = file.sync_all().map_err(|error| error.raw_os_error());
            assert_eq!(refused, Err(Some(libc::ENOSPC)));
            file.sync_all().unwrap();
        }
        open().sync_all().unwrap();
        drop((keep, files));
        bed.finish();
    }
}

/// The page cache took it, and has forgotten it when the root is synced. Of a server that is told to end nobody else hears it.
#[test]
fn want_of_room_is_told_once_to_a_sync_of_the_root_and_by_the_end() {
    need_fuse!();
    for transport in transports() {
        let image = Image::builder().size(16 * M).args(&["-m", "0"]).build();
        let bed = Bed::with(image, transport);
        let keep = File::create(bed.at("keep")).unwrap();
        let mode = rustix::fs::FallocateFlags::empty();
        let most = free_bytes(bed.root()) - (256 << 10);
        rustix::fs::fallocate(&keep, mode, 0, most).unwrap();
        let mut both = OpenOptions::new();
        let both = both.read(true).write(true).create_new(true);
        let file = both.open(bed.at("f")).unwrap();
        let root = File::open(bed.root()).unwrap();
        let sync = || root.sync_all().map_err(|error| error.raw_os_error());
        let write = || file.write_all_at(&pattern(1, 0, M as usize), 0).unwrap();
        write();
        assert_eq!(sync(), Err(Some(libc::ENOSPC)), "{transport}");
        assert_eq!(sync(), Ok(()), "{transport}");
        // Nothing of a transport: and it takes seconds.
        if *transport == RINGS {
            drop((keep, file, root));
            bed.finish();
            continue;
        }
        // Who closes a file is told by that; this one stays open.
        write();
        drop(root);
        bed.signal(rustix::process::Signal::TERM);
        e2fsck_clean(bed.ended(false).path());
        drop((keep, file));
    }
}

/// The page cache takes all of it, and whoever closes the file is told.
#[test]
fn command_that_learns_only_at_the_end_that_there_is_no_room_fails_and_keeps_what_was_there() {
    need_fuse!();
    let tree = tempfile::tempdir().unwrap();
    fs::write(tree.path().join("large"), pattern(1, 0, M as usize)).unwrap();
    let from = Image::builder().source(tree.path()).build();
    let from = from.path().display();
    let (large, root) = (format!("{from}:/large"), format!("{from}:/"));
    let image = Image::builder().size(64 * M).args(&["-m", "0"]).build();
    let bed = Bed::with(image, NO_RINGS);
    let at = |name: &str| bed.at(name).display().to_string();
    let [file, archive, folder, cat] = ["file", "a.tar", "folder", "cat"].map(at);
    for path in [&file, &archive] {
        fs::write(path, "old").unwrap();
    }
    let keep = File::create(bed.at("keep")).unwrap();
    let mode = rustix::fs::FallocateFlags::empty();
    let most = free_bytes(bed.root()) - (256 << 10);
    rustix::fs::fallocate(&keep, mode, 0, most).unwrap();
    for words in [
        &["cp", &large, &file][..],
        &["unpack", &root, &archive],
        &["unpack", "--exclude", "/lost+found", &root, &folder],
        &["cat", &large],
        &["unpack", "--exclude", "/lost+found", &root, "-"],
    ] {
        let mut command = dioxide();
        command.args(words).stderr(Stdio::piped());
        let is_to_stdout = words[0] == "cat" || words.last() == Some(&"-");
        if is_to_stdout {
            command.stdout(File::create(&cat).unwrap());
        }
        let output = command.spawn().unwrap().wait_with_output().unwrap();
        let said = text(output.stderr);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {said}");
        assert!(said.contains("No space left"), "{words:?}: {said}");
        let _ = fs::remove_file(&cat);
        let _ = fs::remove_dir_all(&folder);
    }
    for path in [&file, &archive] {
        assert_eq!(fs::read(path).unwrap(), b"old", "{path}");
    }
    let mut names: Vec<_> = fs::read_dir(bed.root())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["a.tar", "file", "keep", "lost+found"]);
    drop(keep);
    bed.finish();
}

/// The page cache takes what finds no room; once some of it was to be written, whoever goes on is told.
#[test]
fn program_that_writes_until_there_is_no_room_is_told() {
    need_fuse!();
    for transport in transports() {
        let image = Image::builder().size(64 * M).args(&["-m", "0"]).build();
        let bed = Bed::with(image, transport);
        let mut file = File::create(bed.at("f")).unwrap();
        let part = pattern(1, 0, M as usize);
        // What the cache holds before it writes anything is the kernel's business.
        let refused = (0..2048).find_map(|number| {
            if number % 64 == 0 {
                let _ = file.sync_data();
            }
            file.write_all(&part).err()
        });
        let refused = refused.map(|error| error.raw_os_error());
        assert_eq!(refused, Some(Some(libc::ENOSPC)), "{transport}");
        // Who was told may write to what the file has, at the second try at the latest.
        let _ = file.sync_data();
        let owned = |byte| file.write_all_at(&[byte; 100], 0);
        owned(1).or_else(|_| owned(2)).unwrap();
        file.sync_data().unwrap();
        file.set_len(0).unwrap();
        // Pages that were on their way when the program was told may have failed since: that is told once.
        let _ = file.sync_data();
        // As soon as there is room, it takes more.
        file.write_all(&part).unwrap();
        file.sync_data().unwrap();
        drop(file);
        bed.finish();
    }
}

/// The size of a block, and bytes that a user can have.
fn free(root: &Path) -> (u64, u64) {
    let told = rustix::fs::statvfs(root).unwrap();
    (told.f_bsize, told.f_bavail * told.f_bsize)
}

fn free_bytes(root: &Path) -> u64 {
    free(root).1
}

/// What was removed is to be had at once, whenever it is committed.
#[test]
fn space_of_a_removed_file_is_told_at_once() {
    need_fuse!();
    let bed = Bed::new("commit=300");
    let before = free_bytes(bed.root());
    fs::write(bed.at("f"), vec![1; 32 * M as usize]).unwrap();
    sync(&bed);
    assert!(free_bytes(bed.root()) < before - 31 * M);
    fs::remove_file(bed.at("f")).unwrap();
    // The kernel forgets the file a moment later.
    let until = Instant::now() + SOON;
    while free_bytes(bed.root()) < before - M {
        assert!(Instant::now() < until);
        std::thread::sleep(Duration::from_millis(10));
    }
    bed.finish();
}

/// Of inodes of 128 bytes, times have whole seconds from the beginning.
#[test]
fn times_stay_when_the_kernel_forgets_a_file() {
    need_fuse!();
    for size in [128, 256] {
        let image = Image::builder().size(16 * M).inode_size(size).build();
        let bed = Bed::with(image, "");
        fs::write(bed.at("f"), "x").unwrap();
        let modified = || {
            let metadata = fs::metadata(bed.at("f")).unwrap();
            (metadata.mtime(), metadata.mtime_nsec())
        };
        let told = modified();
        sync(&bed);
        bed.forget();
        assert_eq!(modified(), told);
        assert_eq!(told.1 == 0, size == 128);
        bed.finish();
    }
}

/// The kernel keeps the times of files, and does not see writes that go past its cache.
#[test]
fn time_of_a_direct_write_is_kept_whatever_the_kernel_tells() {
    need_fuse!();
    const OLD: i64 = 1_000_000_000;
    let bed = Bed::new("");
    let touch = |name: &str, secs: i64| {
        run(limited("touch")
            .args(["-m", "-d", &format!("@{secs}")])
            .arg(bed.at(name)));
    };
    let write = |name: &str, flags: i32| {
        let mut options = OpenOptions::new();
        let file = options.write(true).custom_flags(flags).open(bed.at(name));
        let file = file.unwrap();
        file.write_all_at(&[7; 4096], 0).unwrap();
        file
    };
    let names = ["left", "renamed", "linked", "open", "set", "cached"];
    for name in names {
        fs::write(bed.at(name), [0; 8192]).unwrap();
        touch(name, OLD);
    }
    for name in names {
        let file = write(name, libc::O_DIRECT);
        match name {
            "renamed" => fs::rename(bed.at(name), bed.at("other")).unwrap(),
            "linked" => fs::hard_link(bed.at(name), bed.at("another")).unwrap(),
            "open" => {
                fs::hard_link(bed.at(name), bed.at("third")).unwrap();
                file.sync_all().unwrap();
            }
            "set" => touch(name, OLD - 1),
            "cached" => {
                touch(name, OLD - 2);
                write(name, 0).sync_all().unwrap();
            }
            _ => {}
        }
    }
    fs::rename(bed.at("other"), bed.at("renamed")).unwrap();
    sync(&bed);
    bed.forget();
    for name in names {
        let told = fs::metadata(bed.at(name)).unwrap().mtime();
        match name {
            "set" => assert_eq!(told, OLD - 1),
            _ => assert!(told > OLD, "{name}: {told}"),
        }
    }
    bed.finish();
}

#[test]
fn symlinks_are_not_followed_if_that_was_asked_for() {
    need_fuse!();
    let bed = Bed::new("nosymfollow");
    fs::write(bed.at("f"), "x").unwrap();
    std::os::unix::fs::symlink("f", bed.at("s")).unwrap();
    let refused = fs::read(bed.at("s")).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::ELOOP));
    assert_eq!(fs::read_link(bed.at("s")).unwrap(), Path::new("f"));
    bed.finish();
}

/// Two file systems in one file, each with a server of its own.
#[test]
fn partitions_of_one_image_are_mounted_side_by_side() {
    need_fuse!();
    let parts = [(); 2].map(|()| Image::builder().size(16 * M).build());
    let whole = Image::blank(Dir::Tmpfs, 33 * M);
    let file = OpenOptions::new().write(true).open(whole.path()).unwrap();
    for (part, at) in parts.iter().zip([M, 17 * M]) {
        file.write_all_at(&fs::read(part.path()).unwrap(), at)
            .unwrap();
    }
    let dirs = [(); 2].map(|()| Point::new());
    mount(whole.path(), &dirs[1], "img_offset=17M");
    let mkfs = ["mkfs", "-q", "-F", "-E", "offset=1048576"];
    run(dioxide().args(mkfs).arg(whole.path()).arg("16M"));
    let resize = ["resize", "--img-offset", "1M"];
    for size in ["12M", "16M"] {
        run(dioxide().args(resize).arg(whole.path()).arg(size));
    }
    for command in ["info", "check", "map", "journal"] {
        let mut reader = dioxide();
        let reader = reader.args([command, "--img-offset", "1M"]);
        run(reader.arg(whole.path()));
    }
    mount(whole.path(), &dirs[0], "img_offset=1M");
    let third = Point::new();
    let mut again = dioxide();
    again.args(["mount", "-o", "img_offset=1M"]);
    let again = again.args([whole.path(), third.path()]).output().unwrap();
    assert_eq!(again.status.code(), Some(2), "{again:?}");
    for dir in &dirs {
        fs::write(dir.path().join("f"), pattern(1, 0, 100_000)).unwrap();
    }
    dirs.iter().for_each(|dir| umount(dir.path()));
    for (part, at) in parts.iter().zip([M, 17 * M]) {
        let bytes = fs::read(whole.path()).unwrap();
        let bytes = &bytes[at as usize..][..16 * M as usize];
        fs::write(part.path(), bytes).unwrap();
        e2fsck_clean(part.path());
    }
}

/// The first superblock is at block 1, and may be named.
#[test]
fn first_superblock_that_is_named_is_written() {
    need_fuse!();
    let bed = Bed::new("sb=1");
    fs::write(bed.at("f"), "x").unwrap();
    bed.finish();
}

#[test]
fn fitrim_of_what_is_not_there_is_refused() {
    need_fuse!();
    let bed = Bed::new("");
    for words in [["-o", "1T"], ["-l", "100"], ["-m", "1G"]] {
        let mut fstrim = limited("fstrim");
        let output = fstrim.args(words).arg(bed.root()).output().unwrap();
        assert_ne!(output.status.code(), Some(0), "{words:?}");
    }
    run(limited("fstrim").arg(bed.root()));
    bed.finish();
}

/// `flock`; SQLite's tests need those of ranges.
#[test]
fn locks_of_one_program_keep_another_out() {
    need_fuse!();
    let bed = Bed::new("");
    fs::write(bed.at("f"), "x").unwrap();
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(bed.at("f"))
        .unwrap();
    file.try_lock().expect("nobody has it");
    let taken = |how: &str| {
        let mut flock = limited("flock");
        flock.args([how, "--nonblock"]).arg(bed.at("f")).arg("true");
        !flock.status().unwrap().success()
    };
    assert!(taken("--exclusive") && taken("--shared"));
    file.unlock().expect("it is locked");
    assert!(!taken("--exclusive"));
    drop(file);
    bed.finish();
}
