//! What a file may contain after its last operations were cut off.

/// The contents that a file had, from the last that is durable on.
///
/// Each byte must be of one of them, where what lies behind an end is zero; the length must not be less
/// than the shortest nor more than the longest. So a lost part, stale data and data of another place show, and
/// a write that failed half way does not.
#[derive(Clone, Debug)]
pub struct History {
    states: Vec<Vec<u8>>,
}

impl History {
    pub fn new(content: Vec<u8>) -> History {
        History {
            states: vec![content],
        }
    }

    /// An operation was begun that leads to this.
    pub fn begin(&mut self, content: &[u8]) {
        self.states.push(content.to_vec());
    }

    /// All that was begun is durable.
    pub fn durable(&mut self) {
        self.states.drain(..self.states.len() - 1);
    }

    /// What is wrong with `found`.
    pub fn complaint(&self, found: &[u8]) -> Option<String> {
        let lens = || self.states.iter().map(Vec::len);
        let (least, most) = (lens().min(), lens().max());
        if Some(found.len()) < least || Some(found.len()) > most {
            return Some(format!("{} bytes, not {least:?} to {most:?}", found.len()));
        }
        if self.states.iter().any(|state| state == found) {
            return None;
        }
        let byte = |state: &Vec<u8>, at: usize| state.get(at).copied().unwrap_or(0);
        let is_of_one = |at: usize| {
            let mut states = self.states.iter();
            states.any(|state| byte(state, at) == found[at])
        };
        let at = (0..found.len()).find(|&at| !is_of_one(at))?;
        let bytes: Vec<u8> = self.states.iter().map(|state| byte(state, at)).collect();
        Some(format!(
            "byte {at} is {:#x}, not one of {bytes:x?}",
            found[at]
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history() -> History {
        let mut history = History::new(vec![9; 3]);
        history.begin(&[1; 4]);
        history.durable();
        history.begin(&[1, 2, 2, 1, 2, 2]);
        history
    }

    #[test]
    fn content_that_is_cut_off_in_the_middle_is_good() {
        for found in [
            &[1; 4][..],
            &[1, 2, 1, 1],
            &[1, 2, 2, 1, 0],
            &[1, 2, 2, 1, 2, 2],
        ] {
            assert_eq!(history().complaint(found), None, "{found:?}");
        }
    }

    #[test]
    fn content_that_cannot_be_is_found() {
        for found in [
            &[9; 4][..],
            &[1; 3],
            &[1; 7],
            &[1, 2, 2, 0],
            &[1, 2, 2, 1, 1],
        ] {
            assert!(history().complaint(found).is_some(), "{found:?}");
        }
    }
}
