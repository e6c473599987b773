//! Owners as chown takes them, as numbers.

use std::str::FromStr;

/// Who owns a file from now on; what is none stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    pub uid: Option<u32>,
    pub gid: Option<u32>,
}

impl FromStr for Owner {
    type Err = String;

    fn from_str(word: &str) -> Result<Owner, String> {
        let number = |text: &str| match text {
            "" => Ok(None),
            text => match text.parse() {
                // For chown(2) it means to leave the owner alone.
                Ok(u32::MAX) => Err(format!("{} is no user or group", u32::MAX)),
                Ok(number) => Ok(Some(number)),
                Err(_) => Err(format!(
                    "'{text}' is not a number; names of users are the image's affair"
                )),
            },
        };
        let (uid, gid) = word.split_once(':').unwrap_or((word, ""));
        let owner = Owner {
            uid: number(uid)?,
            gid: number(gid)?,
        };
        match owner {
            Owner {
                uid: None,
                gid: None,
            } => Err(format!(
                "'{word}' names no owner; write UID, UID:GID or :GID"
            )),
            owner => Ok(owner),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owner_of_each_form_is_taken() {
        let owner = |word: &str| word.parse::<Owner>().map(|owner| (owner.uid, owner.gid));
        assert_eq!(owner("5"), Ok((Some(5), None)));
        assert_eq!(owner("5:6"), Ok((Some(5), Some(6))));
        assert_eq!(owner(":6"), Ok((None, Some(6))));
        for word in [
            "",
            ":",
            "root",
            "-1",
            "5:x",
            "4294967296",
            "4294967295",
            "0:4294967295",
        ] {
            assert!(owner(word).is_err(), "{word}");
        }
    }
}
