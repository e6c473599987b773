//! What is mounted, as the kernel lists it.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// A mount of ours.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Mounted {
    /// The image.
    pub(super) source: PathBuf,
    pub(super) writable: bool,
    /// Its number among the kernel's connections.
    pub(super) connection: String,
}

/// What of ours is mounted on a directory, if it is what can be seen there.
pub(super) fn mounted(dir: &Path) -> Option<Mounted> {
    let list = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    // The last hides those before it.
    let line = list.lines().rfind(|line| is_on(line, dir))?;
    parse(line)
}

fn is_on(line: &str, dir: &Path) -> bool {
    line.split(' ').nth(4).is_some_and(|at| decode(at) == dir)
}

fn parse(line: &str) -> Option<Mounted> {
    let (mount, fs) = line.split_once(" - ")?;
    let mut fs = fs.split(' ');
    let ours = fs.next()? == "fuse.dioxide";
    let source = decode(fs.next()?);
    let mut mount = mount.split(' ').skip(2);
    let (_, connection) = mount.next()?.split_once(':')?;
    let writable = mount.nth(2)?.split(',').any(|word| word == "rw");
    ours.then_some(Mounted {
        source,
        writable,
        connection: connection.to_owned(),
    })
}

/// Spaces and the like are written as `\040`.
fn decode(text: &str) -> PathBuf {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&first, behind)) = rest.split_first() {
        let digits = behind.get(..3).filter(|_| first == b'\\');
        let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &behind[3..];
            }
            None => {
                bytes.push(first);
                rest = behind;
            }
        }
    }
    OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_of_a_mount_of_ours_is_taken_apart() {
        let line =
            r"98 2 0:47 / /mnt/a\040b rw,relatime shared:9 - fuse.dioxide /i\134m.img rw,user_id=0";
        assert!(is_on(line, Path::new("/mnt/a b")));
        let expected = Mounted {
            source: r"/i\m.img".into(),
            writable: true,
            connection: "47".to_owned(),
        };
        assert_eq!(parse(line), Some(expected));
    }

    #[test]
    fn line_of_another_file_system_is_passed_over() {
        assert_eq!(parse("1 0 8:1 / / rw - ext4 /dev/sda1 rw"), None);
        assert_eq!(parse("1 0 8:1"), None);
    }
}
