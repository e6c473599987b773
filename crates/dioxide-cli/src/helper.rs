//! The words that `mount(8)` and `umount(8)` have for their helpers, as words of this command.
//!
//! They are called `mount.fuse.dioxide` and `umount.fuse.dioxide`, and are links to this program.

use crate::failure::Failure;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Words of this command, whatever name it was called by.
pub fn translate(mut words: impl Iterator<Item = OsString>) -> Result<Vec<OsString>, Failure> {
    let called = words.next().unwrap_or_default();
    let name = Path::new(&called).file_name().unwrap_or_default();
    let (command, meaning): (_, fn(u8) -> Option<Meaning>) = match name.to_str() {
        Some("mount.fuse.dioxide" | "mount.dioxide") => ("mount", mount),
        Some("umount.fuse.dioxide" | "umount.dioxide") => ("umount", umount),
        _ => return Ok([called].into_iter().chain(words).collect()),
    };
    let mut ours: Vec<OsString> = vec!["dioxide".into(), command.into()];
    let mut operands = Vec::new();
    while let Some(word) = words.next() {
        let mut letters = match word.as_bytes() {
            b"--" => {
                operands.extend(words);
                break;
            }
            [b'-', letters @ ..] if !letters.is_empty() => letters,
            _ => {
                operands.push(word);
                continue;
            }
        };
        while let [letter, rest @ ..] = letters {
            letters = rest;
            let meaning = meaning(*letter).ok_or_else(|| {
                let what = format!("unknown option -{}", letter.escape_ascii());
                Failure::trouble(name.display(), what)
            })?;
            match meaning {
                Meaning::Nothing => {}
                Meaning::Words(words) => ours.extend(words.iter().map(OsString::from)),
                Meaning::Value { kept } => {
                    let value = match rest {
                        [] => words.next(),
                        rest => Some(OsStr::from_bytes(rest).to_owned()),
                    };
                    if kept {
                        ours.push("-o".into());
                        ours.extend(value);
                    }
                    break;
                }
            }
        }
    }
    ours.push("--".into());
    ours.extend(operands);
    Ok(ours)
}

/// What a letter stands for.
enum Meaning {
    /// No entry in mtab, verbosity, and so on: nothing that there is to do here.
    Nothing,
    Words(&'static [&'static str]),
    /// It has a value: options, or what is of no meaning here.
    Value {
        kept: bool,
    },
}

fn mount(letter: u8) -> Option<Meaning> {
    Some(match letter {
        b'n' | b'v' | b'i' => Meaning::Nothing,
        b'f' => Meaning::Words(&["--fake"]),
        b's' => Meaning::Words(&["-o", "sloppy"]),
        b'r' => Meaning::Words(&["-o", "ro"]),
        b'w' => Meaning::Words(&["-o", "rw"]),
        b'o' => Meaning::Value { kept: true },
        b't' | b'N' => Meaning::Value { kept: false },
        _ => return None,
    })
}

fn umount(letter: u8) -> Option<Meaning> {
    Some(match letter {
        b'n' | b'v' | b'i' | b'r' | b'c' | b'd' => Meaning::Nothing,
        b'f' | b'l' => Meaning::Words(&["--lazy"]),
        b't' | b'N' | b'O' => Meaning::Value { kept: false },
        _ => return None,
    })
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
        for (theirs, ours) in [
            (
                "/sbin/mount.fuse.dioxide a.img /mnt -n -o rw,nosuid -t fuse.dioxide",
                "dioxide mount -o rw,nosuid -- a.img /mnt",
            ),
            (
                "mount.dioxide a.img /mnt -sfnv -N 7 -r -oimg_offset=1M",
                "dioxide mount -o sloppy --fake -o ro -o img_offset=1M -- a.img /mnt",
            ),
            (
                "mount.dioxide -rtfuse.dioxide -- -a.img /mnt",
                "dioxide mount -o ro -- -a.img /mnt",
            ),
            (
                "/sbin/umount.fuse.dioxide /mnt -n",
                "dioxide umount -- /mnt",
            ),
            ("umount.dioxide /mnt -nl", "dioxide umount --lazy -- /mnt"),
        ] {
            assert_eq!(translated(theirs), ours);
        }
    }

    #[test]
    fn words_of_our_own_name_stay() {
        assert_eq!(translated("./dioxide ls -l x:/"), "./dioxide ls -l x:/");
    }

    #[test]
    fn option_of_mount_that_is_unknown_is_refused() {
        for words in [["mount.fuse.dioxide", "-z"], ["umount.dioxide", "-o"]] {
            assert!(translate(words.map(OsString::from).into_iter()).is_err());
        }
    }
}
