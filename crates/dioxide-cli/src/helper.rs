//! The words that `mount(8)` and `umount(8)` have for their helpers, as words of this command.
//!
//! They are called `mount.fuse.dioxide` and `umount.fuse.dioxide`, and are links to this program.

use crate::failure::Failure;
use std::ffi::OsString;
use std::path::Path;

/// Words of this command, whatever name it was called by.
pub fn translate(mut words: impl Iterator<Item = OsString>) -> Result<Vec<OsString>, Failure> {
    let called = words.next().unwrap_or_default();
    let name = Path::new(&called)
        .file_name()
        .unwrap_or_default()
        .to_owned();
    let command = match name.to_str() {
        Some("mount.fuse.dioxide" | "mount.dioxide") => "mount",
        Some("umount.fuse.dioxide" | "umount.dioxide") => "umount",
        _ => return Ok([called].into_iter().chain(words).collect()),
    };
    let mut ours: Vec<OsString> = vec!["dioxide".into(), command.into()];
    let mut operands = Vec::new();
    while let Some(word) = words.next() {
        match word.to_str() {
            // Sloppy, no entry in mtab, verbose, do not really mount, lazily, by force: not ours to follow, but for one.
            Some("-s" | "-n" | "-v" | "-r" | "-l" | "-i") => {}
            Some("-f") if command == "mount" => {
                return Ok(vec!["dioxide".into(), "--version".into()]);
            }
            Some("-f") => {}
            Some("-t" | "-N") => drop(words.next()),
            Some("-o") if command == "mount" => {
                ours.push("-o".into());
                ours.extend(words.next());
            }
            Some(option) if option.starts_with('-') => {
                return Err(Failure::trouble(
                    name.display(),
                    format!("unknown option {option}"),
                ));
            }
            _ => operands.push(word),
        }
    }
    ours.push("--".into());
    ours.extend(operands);
    Ok(ours)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translated(words: &str) -> String {
        let words = translate(words.split(' ').map(OsString::from)).unwrap();
        words.join(" ".as_ref()).into_string().unwrap()
    }

    #[test]
    fn words_of_mount_become_ours() {
        assert_eq!(
            translated("/sbin/mount.fuse.dioxide a.img /mnt -n -o rw,nosuid -t fuse.dioxide"),
            "dioxide mount -o rw,nosuid -- a.img /mnt"
        );
        assert_eq!(
            translated("/sbin/umount.fuse.dioxide /mnt -n"),
            "dioxide umount -- /mnt"
        );
    }

    #[test]
    fn words_of_our_own_name_stay() {
        assert_eq!(translated("./dioxide ls -l x:/"), "./dioxide ls -l x:/");
    }

    #[test]
    fn option_of_mount_that_is_unknown_is_refused() {
        let words = ["mount.fuse.dioxide", "-z"].map(OsString::from);
        assert!(translate(words.into_iter()).is_err());
    }
}
