//! Directories that lie in their inode.

use super::bed::{Bed, check_by_kernel, name, set};
use dioxide_testkit::{Image, need_root};

/// An image whose `/d` lies in its inode and has names that the kernel gave it, the last ones in
/// `system.data`.
fn by_kernel(inode_size: u32, count: usize, attribute: bool) -> (Image, Vec<Vec<u8>>) {
    let builder = Image::builder()
        .features("inline_data")
        .inode_size(inode_size);
    let image = Bed::new(builder).close();
    let names: Vec<Vec<u8>> = (0..count).map(|at| name(at, 7)).collect();
    image.populate_with_kernel(|root| {
        let dir = root.join("d");
        std::fs::remove_dir(&dir).expect("it is empty");
        std::fs::create_dir(&dir).expect("a new directory");
        if attribute {
            let path = std::ffi::CString::new(dir.to_str().expect("letters")).expect("no NUL");
            rustix::fs::setxattr(
                path,
                c"user.kept",
                b"value",
                rustix::fs::XattrFlags::empty(),
            )
            .expect("an attribute");
        }
        for name in &names {
            let name = String::from_utf8(name.clone()).expect("letters");
            std::fs::File::create(dir.join(name)).expect("a new file");
        }
    });
    (image, names)
}

#[test]
fn inline_directory_of_the_kernel_is_changed_where_it_is() {
    need_root!();
    let (image, mut names) = by_kernel(256, 6, false);
    let bed = Bed::on(image);
    let dir = bed.dir("/d");
    assert!(dir.has_inline_data() && dir.i_size() > 60);
    // Names of the same length take the places of others, in both parts.
    for at in [0, 5] {
        let mount = bed.fs.0.clone();
        let old = names[at].clone();
        let ino = bed.find(&dir, &old).expect("it is there");
        let mut handle = mount
            .writer()
            .expect("a writer")
            .begin(2)
            .expect("a handle");
        assert!(
            mount
                .remove_name(&mut handle, &dir, &old)
                .expect("it is intact")
        );
        let new = crate::namei::edit::NewEntry {
            name: &name(at + 100, 7),
            ino,
            file_type: dioxide_format::inode::FileType::Regular,
        };
        let writer = mount.writer().expect("a writer");
        mount
            .add_name(writer, &mut handle, &dir, &new)
            .expect("there is room");
        handle.stop().expect("a journal");
        names[at] = new.name.to_vec();
    }
    assert!(dir.has_inline_data());
    for name in &names {
        assert!(bed.find(&dir, name).is_some());
    }
    assert_eq!(set(&bed.names(&dir)), set(&names));
    drop(dir);
    let image = bed.close();
    check_by_kernel(&image, &set(&names));
}

#[test]
fn inline_directory_without_room_gets_blocks_and_keeps_names_and_attributes() {
    need_root!();
    for (inode_size, count, attribute) in [(256, 6, false), (256, 4, true), (1024, 40, true)] {
        let (image, mut names) = by_kernel(inode_size, count, attribute);
        let mut bed = Bed::on(image);
        let dir = bed.dir("/d");
        assert!(dir.has_inline_data());
        let more: Vec<Vec<u8>> = (1000..1400).map(|at| name(at, 30)).collect();
        bed.add_all(&dir, &more).expect("there is space");
        assert!(!dir.has_inline_data() && bed.mount().is_indexed(&dir));
        names.extend(more);
        for name in &names {
            assert!(bed.find(&dir, name).is_some());
        }
        let kept = bed.mount().xattrs(&dir).expect("they are intact");
        assert_eq!(kept.len(), usize::from(attribute));
        assert!(kept.iter().all(|xattr| xattr.value == b"value"));
        drop(dir);
        let image = bed.close();
        check_by_kernel(&image, &set(&names));
    }
}
