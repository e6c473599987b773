//! Access control lists, here and by the kernel.

use super::*;
use crate::inode::Inode;
use crate::namei::acl::Inherited;
use crate::{NewFile, OpenOptions, SetAttributes};
use dioxide_format::inode::FileType as DiskType;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";

fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut value = 2u32.to_le_bytes().to_vec();
    for &(tag, perm, id) in entries {
        value.extend(tag.to_le_bytes());
        value.extend(perm.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    value
}

/// Mostly such as Linux takes, sometimes not.
fn random_list(rng: &mut Rng) -> Vec<u8> {
    let mut entries = vec![(1, rng.below(8) as u16, u32::MAX)];
    for _ in 0..rng.below(3) {
        entries.push((2, rng.below(8) as u16, 1000 + rng.below(3) as u32));
    }
    entries.push((4, rng.below(8) as u16, u32::MAX));
    for _ in 0..rng.below(2) {
        entries.push((8, rng.below(8) as u16, 2000));
    }
    if entries.len() > 2 || rng.below(3) == 0 {
        entries.push((0x10, rng.below(8) as u16, u32::MAX));
    }
    entries.push((0x20, rng.below(8) as u16, u32::MAX));
    match rng.below(8) {
        0 => drop(entries.remove(rng.below(entries.len() as u64) as usize)),
        1 => entries.swap(0, 1),
        2 => entries.clear(),
        _ => {}
    }
    list(&entries)
}

fn mode(fs: &Fs, path: &str) -> u32 {
    let inode = fs.0.lookup(path.as_bytes(), false).expect("it is there");
    u32::from(inode.node().disk.mode())
}

fn chmod(fs: &Fs, path: &str, mode: u16) {
    let mount = &fs.0;
    let inode = mount.lookup(path.as_bytes(), false).expect("it is there");
    let writer = mount.writer().expect("a writer");
    let _alone = mount.alone(&inode).expect("nobody else");
    let mut handle = writer
        .begin(mount.xattr_credits(&inode, 1000).expect("readable"))
        .expect("a handle");
    mount
        .acl_chmod(writer, &mut handle, &inode, mode)
        .expect("room");
    let lock = inode.map.lock();
    mount
        .change_inode(&mut handle, &inode, &lock, &mut |disk| {
            disk.set_permissions(mode)
        })
        .expect("a change");
    drop(lock);
    handle.stop().expect("the end");
}

#[test]
fn lists_set_and_modes_changed_end_as_the_kernels_do() {
    need_root!();
    for of in [SHAPES[0], SHAPES[3], SHAPES[4]] {
        let image = with_files(shape(of));
        let twin = image.copy();
        let kernel = Mount::ext4(twin.path(), "");
        let fs = open(&image);
        let mut rng = Rng(0xAC1);
        for step in 0..400 {
            let file = *rng.pick(&["a", "b", "dir"]);
            let path = kernel.path().join(file);
            let told = format!("{of:?} step {step}: {file}");
            if rng.below(4) == 0 {
                let mode = rng.below(0o1000) as u16;
                let permissions = fs::Permissions::from_mode(mode.into());
                fs::set_permissions(&path, permissions).expect("changed");
                chmod(&fs, file, mode);
            } else {
                let name = *rng.pick(&[ACCESS, ACCESS, DEFAULT]);
                let value = (rng.below(5) > 0).then(|| random_list(&mut rng));
                let mode = XattrMode::Set;
                let here = change(&fs, file, name.as_bytes(), value.as_deref(), mode);
                let there = kernel_change(&path, name.as_bytes(), value.as_deref(), mode);
                assert_eq!(errno(&here), there, "{told}: {name} {value:?}: {here:?}");
            }
            let metadata = fs::metadata(&path).expect("there");
            assert_eq!(mode(&fs, file), metadata.mode(), "{told}");
            assert_eq!(attributes(&fs, file), kernel_attributes(&path), "{told}");
        }
        fs.close().expect("a clean end");
        kernel.unmount();
        e2fsck_clean(image.path());
    }
}

/// A list that lies in an inode of its own is made anew by `chmod`.
#[test]
fn mode_of_a_file_with_a_list_of_very_many_is_changed() {
    let builder = Image::builder().size(16 << 20).block_size(1024);
    let image = builder.features("ea_inode").build();
    let fs = open(&image);
    let options = OpenOptions::new().write(true).create(true);
    drop(options.open(&fs, "/f").expect("room"));
    let users = (0..1500).map(|user| (2, 6, 1000 + user));
    let mut entries = vec![(1, 6, u32::MAX)];
    entries.extend(users);
    entries.extend([(4, 4, u32::MAX), (0x10, 6, u32::MAX), (0x20, 4, u32::MAX)]);
    let value = list(&entries);
    let set = fs.set_xattr("/f", ACCESS, &value, XattrMode::Set);
    set.expect("room");
    let mode = SetAttributes::new().mode(0o600);
    fs.set_attributes("/f", &mode).expect("credits");
    assert_eq!(fs.read_only(), None);
    fs.close().expect("a clean end");
    e2fsck_clean(image.path());
}

/// One that names users and has no mask: Linux does not take it, and nobody inherits it.
#[test]
fn default_list_that_linux_would_not_take_is_told_before_there_is_a_name() {
    let image = Image::builder().size(16 << 20).build();
    let bad = [
        (1, 7, u32::MAX),
        (2, 7, 1000),
        (4, 5, u32::MAX),
        (0x20, 5, u32::MAX),
    ];
    let host = tempfile::NamedTempFile::new().expect("a temporary file");
    fs::write(host.path(), list(&bad)).expect("room");
    let set = format!("ea_set -f {} d {DEFAULT}", host.path().display());
    debugfs(image.path(), &["mkdir d", &set]);
    let fs = open(&image);
    let new = NewFile::new(0o755);
    let error = fs.create_dir("/d/x", &new).expect_err("no such list");
    assert_eq!(error.errno(), libc::EINVAL, "{error}");
    assert_eq!(fs.read_only(), None);
    fs.create_dir("/x", &new).expect("room");
    fs.close().expect("a clean end");
    e2fsck_clean(image.path());
}

fn umask() -> u16 {
    let status = fs::read_to_string("/proc/self/status").expect("proc");
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    u16::from_str_radix(line.expect("it is told").trim(), 8).expect("octal")
}

fn as_attributes(inherited: &Inherited) -> Attributes {
    let lists = [(ACCESS, &inherited.access), (DEFAULT, &inherited.default)];
    let named = lists
        .into_iter()
        .filter_map(|(name, list)| Some((name.into(), list.clone()?)));
    named.collect()
}

fn dir(fs: &Fs) -> std::sync::Arc<Inode> {
    fs.0.lookup(b"dir", false).expect("it is there")
}

#[test]
fn new_files_inherit_what_the_kernel_gives_them() {
    need_root!();
    let mut rng = Rng(0x1447);
    let umask = umask();
    for _ in 0..8 {
        let image = with_files(Image::builder());
        let default = random_list(&mut rng);
        let modes: Vec<u16> = (0..10).map(|_| rng.below(0o1000) as u16).collect();
        let made = image.populate_with_kernel(|root| {
            let dir = root.join("dir");
            let _ = setxattr(&dir, DEFAULT, &default, XattrFlags::empty());
            let make = |(number, &mode): (usize, &u16)| {
                let path = dir.join(number.to_string());
                if number % 2 == 0 {
                    let mut options = fs::OpenOptions::new();
                    options.write(true).create_new(true).mode(mode.into());
                    options.open(&path).expect("room");
                } else {
                    fs::DirBuilder::new()
                        .mode(mode.into())
                        .create(&path)
                        .expect("room");
                }
                let mode = fs::metadata(&path).expect("there").mode() as u16 & 0o7777;
                (mode, kernel_attributes(&path))
            };
            modes.iter().enumerate().map(make).collect::<Vec<_>>()
        });
        let fs = open(&image);
        for ((number, &mode), expected) in modes.iter().enumerate().zip(made) {
            let file_type = match number % 2 {
                0 => DiskType::Regular,
                _ => DiskType::Directory,
            };
            let inherited = fs.0.acl_inherit(&dir(&fs), file_type, mode, umask);
            let inherited = inherited.expect("it can be read");
            let found = (inherited.mode, as_attributes(&inherited));
            assert_eq!(found, expected, "{default:?} {mode:o} {number}");
        }
    }
}

#[test]
fn lists_that_a_new_file_inherits_are_stored_in_one_transaction() {
    let image = Image::builder().build();
    debugfs(
        image.path(),
        &["mkdir dir", "mkdir dir/new", "sif dir/new mode 040770"],
    );
    let fs = open(&image);
    let named = list(&[
        (1, 7, !0),
        (2, 6, 1000),
        (4, 5, !0),
        (0x10, 7, !0),
        (0x20, 0, !0),
    ]);
    set(&fs, "dir", DEFAULT, &named).expect("room");
    let mount = &fs.0;
    let inherited = mount.acl_inherit(&dir(&fs), DiskType::Directory, 0o770, 0o22);
    let inherited = inherited.expect("it can be read");
    let writer = mount.writer().expect("a writer");
    let new = mount.lookup(b"dir/new", false).expect("it is there");
    let mut handle = writer
        .begin(2 * mount.new_xattr_credits(named.len()))
        .expect("a handle");
    mount
        .store_acls(writer, &mut handle, &new, &inherited)
        .expect("room");
    handle.stop().expect("the end");
    assert_eq!(attributes(&fs, "dir/new"), as_attributes(&inherited));
    assert_eq!(attributes(&fs, "dir/new").len(), 2);
    fs.close().expect("a clean end");
    e2fsck_clean(image.path());
}
