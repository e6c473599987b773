//! Modes as chmod takes them: octal, or clauses as in `u+rwX,go=` or `+4000`.

/// What becomes of permissions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModeChange {
    /// These. Without a fifth digit a directory keeps its set-ID bits unless they are named.
    Octal { bits: u16, digits: usize },
    /// By clauses, one after the other.
    Clauses(Vec<Clause>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clause {
    /// Of `ugo`, as a mask of all their bits.
    who: u16,
    /// Bits of the rights that count: where nobody is named, not those of the umask.
    mask: u16,
    operation: Operation,
    rights: Rights,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Add,
    Remove,
    Set,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rights {
    /// These, whatever the umask is. A directory has no others then.
    Octal(u16),
    /// Bits for everybody, and whether `X` was among them.
    Bits { bits: u16, execute_if: bool },
    /// What this class (a shift) has now.
    CopyOf(u32),
}

const SET_UID: u16 = 0o4000;
const SET_GID: u16 = 0o2000;
const STICKY: u16 = 0o1000;
/// The user, the group and the others, with the special bit of each.
const CLASSES: [(char, u16); 3] = [
    ('u', 0o700 | SET_UID),
    ('g', 0o070 | SET_GID),
    ('o', 0o007 | STICKY),
];
const ALL: u16 = 0o7777;

impl ModeChange {
    /// Understands a mode; `umask` counts where a clause names nobody.
    pub fn parse(word: &str, umask: u16) -> Result<ModeChange, String> {
        let wrong = || {
            format!("invalid mode: '{word}'; write up to four octal digits, or as in u=rwx,go-w")
        };
        if is_number(word) {
            return Ok(ModeChange::Octal {
                bits: octal(word).ok_or_else(wrong)?,
                digits: word.len(),
            });
        }
        let mut clauses = Vec::new();
        for text in word.split(',') {
            parse_clauses(text, umask, &mut clauses).ok_or_else(wrong)?;
        }
        Ok(ModeChange::Clauses(clauses))
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn octal(text: &str) -> Option<u16> {
    let bits = u16::from_str_radix(text, 8).ok();
    bits.filter(|bits| *bits <= ALL)
}

/// That of this process. It can only be asked for by setting it.
pub fn umask() -> u16 {
    use rustix::fs::Mode;
    let umask = rustix::process::umask(Mode::from_raw_mode(0o077));
    rustix::process::umask(umask);
    (umask.as_raw_mode() & 0o777) as u16
}

/// `go-w+x`: one who, and any number of operations.
fn parse_clauses(text: &str, umask: u16, clauses: &mut Vec<Clause>) -> Option<()> {
    let operations = text.find(['+', '-', '='])?;
    let mut who = 0;
    for letter in text[..operations].chars() {
        who |= match letter {
            'a' => ALL,
            _ => CLASSES.iter().find(|class| class.0 == letter)?.1,
        };
    }
    let mut rest = &text[operations..];
    while !rest.is_empty() {
        let operation = match rest.as_bytes()[0] {
            b'+' => Operation::Add,
            b'-' => Operation::Remove,
            _ => Operation::Set,
        };
        rest = &rest[1..];
        let end = rest.find(['+', '-', '=']).unwrap_or(rest.len());
        let rights = parse_rights(&rest[..end])?;
        let is_octal = matches!(rights, Rights::Octal(_));
        // A number names all bits: nobody is named before it, and it stands alone.
        if is_octal && (rest.len() != text.len() - 1 || end != rest.len()) {
            return None;
        }
        clauses.push(Clause {
            who: if who == 0 { ALL } else { who },
            mask: match who {
                0 if is_octal => ALL,
                0 => ALL & !umask,
                _ => who,
            },
            operation,
            rights,
        });
        rest = &rest[end..];
    }
    Some(())
}

fn parse_rights(text: &str) -> Option<Rights> {
    match text {
        "u" => return Some(Rights::CopyOf(6)),
        "g" => return Some(Rights::CopyOf(3)),
        "o" => return Some(Rights::CopyOf(0)),
        _ if is_number(text) => return octal(text).map(Rights::Octal),
        _ => {}
    }
    let (mut bits, mut execute_if) = (0, false);
    for letter in text.chars() {
        match letter {
            'r' => bits |= 0o444,
            'w' => bits |= 0o222,
            'x' => bits |= 0o111,
            's' => bits |= SET_UID | SET_GID,
            't' => bits |= STICKY,
            'X' => execute_if = true,
            _ => return None,
        }
    }
    Some(Rights::Bits { bits, execute_if })
}

impl ModeChange {
    /// The permissions that a file with these gets.
    pub fn apply(&self, before: u16, is_directory: bool) -> u16 {
        match self {
            ModeChange::Octal { bits, digits } if is_directory && *digits <= 4 => {
                bits | before & (SET_UID | SET_GID)
            }
            ModeChange::Octal { bits, .. } => *bits,
            ModeChange::Clauses(clauses) => clauses
                .iter()
                .fold(before, |mode, clause| clause.apply(mode, is_directory)),
        }
    }
}

impl Clause {
    fn apply(&self, mode: u16, is_directory: bool) -> u16 {
        let bits = match self.rights {
            Rights::Octal(bits) => bits,
            Rights::Bits { bits, execute_if } => {
                let execute = execute_if && (is_directory || mode & 0o111 != 0);
                bits | if execute { 0o111 } else { 0 }
            }
            Rights::CopyOf(shift) => (mode >> shift & 7) * 0o111,
        } & self.mask;
        match self.operation {
            Operation::Add => mode | bits,
            Operation::Remove => mode & !bits,
            Operation::Set => {
                // A directory keeps its set-ID bits unless they are named.
                let named = matches!(self.rights, Rights::Octal(_));
                let keep = if is_directory && !named {
                    SET_UID | SET_GID
                } else {
                    0
                };
                mode & !(self.who & !keep) | bits
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apply(change: &str, before: u16, is_directory: bool) -> u16 {
        let change = ModeChange::parse(change, 0o022).unwrap();
        change.apply(before, is_directory)
    }

    #[test]
    fn mode_in_octal_replaces_but_for_set_ids_of_directories() {
        assert_eq!(apply("644", 0o4755, false), 0o644);
        assert_eq!(apply("755", 0o2700, true), 0o2755);
        assert_eq!(apply("00755", 0o2700, true), 0o755);
        assert_eq!(apply("4755", 0, false), 0o4755);
    }

    #[test]
    fn mode_in_clauses_changes_what_they_name() {
        for (change, before, after) in [
            ("u+x", 0o644, 0o744),
            ("go-w", 0o666, 0o644),
            ("a=r", 0o777, 0o444),
            ("+X", 0o644, 0o644),
            ("+X", 0o744, 0o755),
            ("u=rwx,g=u,o=", 0o000, 0o770),
            ("u+s,g-s", 0o2755, 0o4755),
            ("+t", 0o755, 0o1755),
            ("+w", 0o444, 0o644),
            ("=rw", 0o777, 0o644),
            ("g=o+w", 0o604, 0o664),
            ("o+s", 0o755, 0o755),
        ] {
            assert_eq!(apply(change, before, false), after, "{change} {before:o}");
        }
        assert_eq!(apply("a+X", 0o644, true), 0o755);
        assert_eq!(apply("g=rx", 0o2770, true), 0o2750);
    }

    #[test]
    fn mode_in_octal_behind_an_operator_is_of_all_bits_and_of_no_umask() {
        for (change, before, file, directory) in [
            ("=755", 0o2644, 0o755, 0o755),
            ("=0", 0o6700, 0, 0),
            ("+4000", 0o2644, 0o6644, 0o6644),
            ("-6000", 0o6755, 0o755, 0o755),
            ("+022", 0o644, 0o666, 0o666),
            ("=00755,u+s", 0o2700, 0o4755, 0o4755),
        ] {
            assert_eq!(apply(change, before, false), file, "{change} of a file");
            assert_eq!(apply(change, before, true), directory, "{change}");
        }
    }

    #[test]
    fn mode_that_makes_no_sense_is_refused() {
        let octal = [
            "=8", "+77777", "u+4000", "a+7", "+4000+u", "u=7", "+u=7", "+7r",
        ];
        for word in octal {
            assert!(ModeChange::parse(word, 0).is_err(), "{word}");
        }
        for word in ["", "8", "77777", "u", "u+q", "z+x", "u+x,", "rwx"] {
            assert!(ModeChange::parse(word, 0).is_err(), "{word}");
        }
    }
}
