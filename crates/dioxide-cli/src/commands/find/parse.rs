//! Understanding find's expressions: `or` of `and` of `not` of tests and actions.

use super::printf::Format;
use super::{Action, Count, Expr, MINUTE, Matching, Number, Query, Reference, Test, Time};
use crate::address::Operand;
use crate::args::{ModeChange, parse_time};
use crate::failure::Failure;
use dioxide::FileType;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

/// Deepest nesting of parentheses and negations.
const NESTING_MOST: usize = 200;

/// What finds out of a file that a test names.
type Refer<'a> = &'a mut dyn FnMut(&Operand) -> Result<Reference, Failure>;

pub(super) struct Parser<'a> {
    words: &'a [OsString],
    refer: Refer<'a>,
    nesting: usize,
    min_depth: usize,
    max_depth: usize,
    depth_first: bool,
    /// Something is done with files, and so they are not simply printed.
    acts: bool,
    prunes: bool,
    deletes: bool,
}

fn wrong(what: String) -> Failure {
    Failure::plain(what)
}

impl<'a> Parser<'a> {
    pub(super) fn new(words: &'a [OsString], refer: Refer<'a>) -> Parser<'a> {
        Parser {
            words,
            refer,
            nesting: 0,
            min_depth: 0,
            max_depth: usize::MAX,
            depth_first: false,
            acts: false,
            prunes: false,
            deletes: false,
        }
    }

    /// The whole command.
    pub(super) fn query(mut self) -> Result<Query, Failure> {
        let expr = match self.words {
            [] => Expr::Test(Test::Constant(true)),
            _ => self.any()?,
        };
        if let Some(word) = self.peek() {
            return Err(wrong(format!("'{word}' is not expected there")));
        }
        if self.deletes && self.prunes && !self.depth_first {
            let what = "-prune does nothing where -delete has directories come last; say -depth";
            return Err(wrong(what.into()));
        }
        let expr = match self.acts {
            true => expr,
            false => Expr::All(vec![expr, Expr::Action(Action::Print)]),
        };
        Ok(Query {
            expr,
            min_depth: self.min_depth,
            max_depth: self.max_depth,
            depth_first: self.depth_first || self.deletes,
        })
    }

    fn peek(&self) -> Option<String> {
        self.words
            .first()
            .map(|word| word.to_string_lossy().into_owned())
    }

    fn next(&mut self) -> Option<&'a OsString> {
        let (first, rest) = self.words.split_first()?;
        self.words = rest;
        Some(first)
    }

    fn any(&mut self) -> Result<Expr, Failure> {
        let mut terms = vec![self.all()?];
        while self
            .peek()
            .is_some_and(|word| word == "-o" || word == "-or")
        {
            self.next();
            terms.push(self.all()?);
        }
        Ok(Expr::Any(terms))
    }

    fn all(&mut self) -> Result<Expr, Failure> {
        let mut factors = vec![self.factor()?];
        loop {
            match self.peek().as_deref() {
                None | Some("-o" | "-or" | ")") => return Ok(Expr::All(factors)),
                Some("-a" | "-and") => drop(self.next()),
                Some(_) => {}
            }
            factors.push(self.factor()?);
        }
    }

    fn factor(&mut self) -> Result<Expr, Failure> {
        self.nesting += 1;
        if self.nesting > NESTING_MOST {
            return Err(wrong("the expression is nested too deeply".into()));
        }
        let Some(word) = self.next() else {
            return Err(wrong("the expression ends where a test is expected".into()));
        };
        let word = word.to_string_lossy();
        let expr = match &*word {
            "!" | "-not" => Expr::Not(Box::new(self.factor()?)),
            "(" => {
                let inner = self.any()?;
                match self.next() {
                    Some(end) if end == ")" => inner,
                    _ => return Err(wrong("a '(' without its ')'".into())),
                }
            }
            word => self.primary(word)?,
        };
        self.nesting -= 1;
        Ok(expr)
    }

    fn primary(&mut self, word: &str) -> Result<Expr, Failure> {
        let action = match word {
            "-print" => Action::Print,
            "-print0" => Action::Print0,
            "-printf" => Action::Printf(Format::parse(&self.text(word)?).map_err(wrong)?),
            "-ls" => Action::Ls,
            "-prune" => Action::Prune,
            "-delete" => Action::Delete,
            _ => return Ok(Expr::Test(self.test(word)?)),
        };
        self.acts |= action != Action::Prune;
        self.prunes |= action == Action::Prune;
        self.deletes |= action == Action::Delete;
        Ok(Expr::Action(action))
    }

    fn argument(&mut self, of: &str) -> Result<&'a OsString, Failure> {
        self.next()
            .ok_or_else(|| wrong(format!("'{of}' needs an argument")))
    }

    fn text(&mut self, of: &str) -> Result<String, Failure> {
        Ok(self.argument(of)?.to_string_lossy().into_owned())
    }

    fn test(&mut self, word: &str) -> Result<Test, Failure> {
        let name = |pattern: &OsString, ignore_case, whole| Test::Name {
            pattern: pattern.as_bytes().to_vec(),
            ignore_case,
            whole,
        };
        let age = |which, unit_secs, count| Test::Age {
            which,
            unit_secs,
            count,
        };
        const DAY: i64 = 86_400;
        Ok(match word {
            "-true" => Test::Constant(true),
            "-false" => Test::Constant(false),
            "-name" => name(self.argument(word)?, false, false),
            "-iname" => name(self.argument(word)?, true, false),
            "-path" | "-wholename" => name(self.argument(word)?, false, true),
            "-ipath" => name(self.argument(word)?, true, true),
            "-type" => Test::Kind(kinds(&self.text(word)?)?),
            "-size" => size(&self.text(word)?)?,
            "-empty" => Test::Empty,
            "-atime" => age(Time::Access, DAY, self.count(word)?),
            "-amin" => age(Time::Access, MINUTE, self.count(word)?),
            "-ctime" => age(Time::Change, DAY, self.count(word)?),
            "-cmin" => age(Time::Change, MINUTE, self.count(word)?),
            "-mtime" => age(Time::Modify, DAY, self.count(word)?),
            "-mmin" => age(Time::Modify, MINUTE, self.count(word)?),
            "-newer" => Test::Newer {
                which: Time::Modify,
                than: self.reference(word)?.mtime,
            },
            "-newerat" => self.newer(Time::Access, word)?,
            "-newerct" => self.newer(Time::Change, word)?,
            "-newermt" => self.newer(Time::Modify, word)?,
            "-samefile" => Test::SameFile(self.reference(word)?.file),
            "-uid" => self.number(Number::Uid, word)?,
            "-gid" => self.number(Number::Gid, word)?,
            "-links" => self.number(Number::Links, word)?,
            "-inum" => self.number(Number::Inode, word)?,
            "-perm" => permissions(&self.text(word)?)?,
            "-maxdepth" => {
                self.max_depth = self.depth(word)?;
                Test::Constant(true)
            }
            "-mindepth" => {
                self.min_depth = self.depth(word)?;
                Test::Constant(true)
            }
            "-depth" => {
                self.depth_first = true;
                Test::Constant(true)
            }
            _ => return Err(wrong(format!("'{word}' is no test and no action"))),
        })
    }

    fn reference(&mut self, of: &str) -> Result<Reference, Failure> {
        let file = Operand(self.argument(of)?.clone());
        (self.refer)(&file)
    }

    /// Than a date.
    fn newer(&mut self, which: Time, of: &str) -> Result<Test, Failure> {
        let than = parse_time(&self.text(of)?).map_err(wrong)?;
        Ok(Test::Newer { which, than })
    }

    fn count(&mut self, of: &str) -> Result<Count, Failure> {
        let text = self.text(of)?;
        count(&text).ok_or_else(|| wrong(format!("'{text}' is no number for '{of}'")))
    }

    fn number(&mut self, which: Number, of: &str) -> Result<Test, Failure> {
        let count = self.count(of)?;
        Ok(Test::Number { which, count })
    }

    fn depth(&mut self, of: &str) -> Result<usize, Failure> {
        let text = self.text(of)?;
        text.parse()
            .map_err(|_| wrong(format!("'{text}' is no depth for '{of}'")))
    }
}

fn count(text: &str) -> Option<Count> {
    let (make, digits): (fn(u64) -> Count, _) = match text.as_bytes().first()? {
        b'+' => (Count::MoreThan, &text[1..]),
        b'-' => (Count::LessThan, &text[1..]),
        _ => (Count::Exactly, text),
    };
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
    digits.parse().ok().filter(|_| plain).map(make)
}

fn size(text: &str) -> Result<Test, Failure> {
    let unit = match text.as_bytes().last() {
        Some(b'c') => 1,
        Some(b'w') => 2,
        Some(b'b' | b'0'..=b'9') => 512,
        Some(b'k') => 1 << 10,
        Some(b'M') => 1 << 20,
        Some(b'G') => 1 << 30,
        _ => return Err(wrong(format!("'{text}' is no size, such as +10k"))),
    };
    let count = count(text.trim_end_matches(|c: char| c.is_ascii_alphabetic()));
    let count = count.ok_or_else(|| wrong(format!("'{text}' is no size, such as +10k")))?;
    Ok(Test::Size { unit, count })
}

fn kinds(text: &str) -> Result<Vec<FileType>, Failure> {
    let kind = |letter: &str| {
        Ok(match letter {
            "f" => FileType::Regular,
            "d" => FileType::Directory,
            "l" => FileType::Symlink,
            "b" => FileType::BlockDevice,
            "c" => FileType::CharDevice,
            "p" => FileType::Fifo,
            "s" => FileType::Socket,
            _ => return Err(wrong(format!("'{letter}' is no kind of file"))),
        })
    };
    text.split(',').map(kind).collect()
}

fn permissions(text: &str) -> Result<Test, Failure> {
    let (how, mode) = match text.as_bytes().first() {
        Some(b'-') => (Matching::AllOf, &text[1..]),
        Some(b'/') => (Matching::AnyOf, &text[1..]),
        _ => (Matching::Exactly, text),
    };
    let mode = ModeChange::parse(mode, 0).map_err(wrong)?;
    Ok(Test::Permissions {
        bits: mode.apply(0, false),
        how,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Query, Failure> {
        let words: Vec<OsString> = text.split_whitespace().map(OsString::from).collect();
        let mut refer = |_: &Operand| Err(wrong("no file".into()));
        Parser::new(&words, &mut refer).query()
    }

    #[test]
    fn expression_that_makes_no_sense_is_refused() {
        for text in [
            "-name",
            "( -true",
            "-true )",
            "!",
            "-true -o",
            "-a -true",
            "-frob",
            "-size x",
            "-size 1é",
            "-type q",
            "-type f,",
            "-mtime +-1",
            "-maxdepth -1",
            "-perm 9",
            "-newermt soon",
            "-printf",
            "-printf %",
            "-printf %q",
            "-printf %T",
            "-printf %Tq",
            "-printf %5.",
            "-name a -prune -o -delete",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
        let deep = "( ".repeat(100_000);
        assert!(parse(&deep).is_err());
    }

    #[test]
    fn expression_without_action_prints() {
        assert!(matches!(parse("").unwrap().expr, Expr::All(all) if all.len() == 2));
        assert!(matches!(
            parse("-name a -print").unwrap().expr,
            Expr::Any(_)
        ));
        let query = parse("-maxdepth 3 -mindepth 1 -depth").unwrap();
        assert_eq!(
            (query.min_depth, query.max_depth, query.depth_first),
            (1, 3, true)
        );
    }
}
