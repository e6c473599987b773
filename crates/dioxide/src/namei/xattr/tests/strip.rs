//! Writes take capabilities.

use super::*;
use crate::{FallocateMode, OpenOptions};

const CAPABILITY: &[u8] = b"security.capability";

#[test]
fn writing_truncating_and_allocating_take_the_capability_and_leave_the_rest() {
    for fsetid in [false, true] {
        let image = Image::builder().build();
        let names = ["write", "cut", "allocate", "read"];
        for name in names {
            let commands = [
                format!("write /dev/null {name}"),
                format!("sif {name} mode 0104755"),
                format!("ea_set {name} security.capability 0123"),
                format!("ea_set {name} user.kept yes"),
            ];
            debugfs(image.path(), &commands);
        }
        let fs = open(&image);
        let options = OpenOptions::new().write(true).direct(false).fsetid(fsetid);
        let open = |name: &str| options.open(&fs, name).expect("it opens");
        open("write").write_at(b"data", 10).expect("written");
        open("cut").set_len(5).expect("cut");
        let mode = FallocateMode::Allocate;
        open("allocate").allocate(mode, 0, 5000).expect("allocated");
        drop(open("read"));
        for name in names {
            let has = attributes(&fs, name).contains_key(CAPABILITY);
            assert_eq!(has, name == "read", "{name}");
            assert!(attributes(&fs, name).contains_key(&b"user.kept"[..]));
            let mode = fs.metadata(name).expect("there").permissions;
            let kept = name == "read" || fsetid;
            assert_eq!(mode, if kept { 0o4755 } else { 0o755 }, "{name} {fsetid}");
        }
        set(&fs, "write", "security.capability", b"again").expect("room");
        open("write").write_at(b"data", 10).expect("written");
        assert!(!attributes(&fs, "write").contains_key(CAPABILITY));
        fs.close().expect("a clean end");
        e2fsck_clean(image.path());
    }
}
