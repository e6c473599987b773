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
    // Paths need not be text.
    let list = std::fs::read("/proc/self/mountinfo").ok()?;
    // The last hides those before it.
    let line = list
        .split(|&byte| byte == b'\n')
        .rfind(|line| is_on(line, dir))?;
    parse(line)
}

/// Whether a connection is mounted on any directory that can be seen.
pub(super) fn is_mounted(connection: &str) -> bool {
    let list = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    let mut mounts = list.split(|&byte| byte == b'\n').filter_map(parse);
    mounts.any(|mounted| mounted.connection == connection)
}

fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(|&byte| byte == b' ')
}

fn is_on(line: &[u8], dir: &Path) -> bool {
    words(line).nth(4).is_some_and(|at| decode(at) == dir)
}

fn parse(line: &[u8]) -> Option<Mounted> {
    let mut mount = words(line).skip(2);
    let connection = str::from_utf8(mount.next()?).ok()?;
    let (_, connection) = connection.split_once(':')?;
    let mut flags = mount.nth(2)?.split(|&byte| byte == b',');
    let mut fs = mount.skip_while(|&word| word != b"-").skip(1);
    let ours = fs.next()? == b"fuse.dioxide";
    ours.then_some(Mounted {
        source: decode(fs.next()?),
        writable: flags.any(|word| word == b"rw"),
        connection: connection.to_owned(),
    })
}

/// Spaces and the like are written as `\040`.
fn decode(mut rest: &[u8]) -> PathBuf {
    let mut bytes = Vec::new();
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
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn line_of_a_mount_of_ours_is_taken_apart() {
        let line =
            br"98 2 0:47 / /mnt/a\040b rw,relatime shared:9 - fuse.dioxide /i\134m.img rw,user_id=0";
        assert!(is_on(line, Path::new("/mnt/a b")));
        let expected = Mounted {
            source: r"/i\m.img".into(),
            writable: true,
            connection: "47".to_owned(),
        };
        assert_eq!(parse(line), Some(expected));
    }

    #[test]
    fn path_that_is_no_text_is_a_path() {
        let line = b"9 2 0:4 / /mnt/\xff ro - fuse.dioxide /\xfe.img rw";
        assert!(is_on(line, Path::new(OsStr::from_bytes(b"/mnt/\xff"))));
        let source = parse(line).map(|mounted| mounted.source);
        assert_eq!(source, Some(OsStr::from_bytes(b"/\xfe.img").into()));
    }

    #[test]
    fn line_of_another_file_system_is_passed_over() {
        assert_eq!(parse(b"1 0 8:1 / / rw - ext4 /dev/sda1 rw"), None);
        assert_eq!(parse(b"1 0 8:1"), None);
    }
}
