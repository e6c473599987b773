//! What the records of extended headers say: of global headers, and of the entry's own.
//!
//! A key has its last record, an empty value takes back those before, and what is asked of no key is
//! not kept. Any number of records takes time in proportion, and memory for what an entry may have.

use super::header::{self, Header};
use super::pax::{self, Record};
use super::sparse::Map;
use super::{EXTENDED_MAX, LONG_NAME_MAX, acl};
use crate::entry::Entry;
use crate::error::shown;
use crate::tree::XATTR_BYTES;
use dioxide::{Timestamp, Xattr};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

/// Keys that have one value.
const KEYS: [&[u8]; 14] = [
    b"path",
    b"linkpath",
    b"size",
    b"uid",
    b"gid",
    b"mtime",
    b"GNU.sparse.name",
    b"GNU.sparse.major",
    b"GNU.sparse.size",
    b"GNU.sparse.realsize",
    b"GNU.volume.offset",
    b"RHT.security.selinux",
    b"SCHILY.acl.access",
    b"SCHILY.acl.default",
];
/// Most attributes of one entry: ext4 has 16 bytes or more of each in an inode and a block, of at
/// most 64 KiB both.
const XATTRS_MAX: usize = 8192;

/// The values of headers, the last of each key.
#[derive(Default)]
pub(super) struct Table {
    values: HashMap<&'static [u8], Vec<u8>>,
    /// Attributes as star and GNU tar write them, and as libarchive does.
    star: BTreeMap<Vec<u8>, Vec<u8>>,
    libarchive: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Of a sparse file's map, whose records come many times.
    map: Vec<Record>,
    /// Keys and values of all that is kept.
    bytes: u64,
}

impl Table {
    /// Adds the records of a header.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn read(&mut self, header: &[u8]) -> Result<(), String> {
        pax::parse(header, |key, value| self.put(key, value))
    }

    /// The same for a header that is about all entries behind it.
    ///
    /// # Errors
    /// As there; more than is kept of all of them.
    pub(super) fn read_global(&mut self, header: &[u8]) -> Result<(), String> {
        self.read(header)?;
        if self.bytes > EXTENDED_MAX {
            return Err(format!(
                "global headers of {} bytes together; {EXTENDED_MAX} is the most",
                self.bytes
            ));
        }
        if !self.map.is_empty() {
            return Err("a sparse file's map in a global header".into());
        }
        // Each entry reads them anew.
        let long = |key: &&&[u8]| {
            let value = self.values.get(**key);
            value.is_some_and(|value| value.len() as u64 > LONG_NAME_MAX)
        };
        match KEYS.iter().find(long) {
            Some(key) => Err(format!(
                "a global {} of over {LONG_NAME_MAX} bytes",
                shown(key)
            )),
            None => Ok(()),
        }
    }

    /// What the attributes among them take in memory at most.
    pub(super) fn weight(&self) -> u64 {
        self.bytes + XATTR_BYTES * (self.star.len() + self.libarchive.len()) as u64
    }

    fn put(&mut self, key: &[u8], value: &[u8]) {
        let before = if let Some(name) = key.strip_prefix(b"SCHILY.xattr.") {
            put_xattr(&mut self.star, name, value)
        } else if let Some(name) = key.strip_prefix(b"LIBARCHIVE.xattr.") {
            put_xattr(&mut self.libarchive, name, value)
        } else if let Some(key) = KEYS.into_iter().find(|known| *known == key) {
            Put::over(self.values.insert(key, value.to_vec()))
        } else if Map::has_key(key) {
            self.map.push((key.to_vec(), value.to_vec()));
            Put::New
        } else {
            Put::Passed
        };
        match before {
            Put::New => self.bytes += (key.len() + value.len()) as u64,
            Put::Over(before) => self.bytes = self.bytes + value.len() as u64 - before,
            Put::Passed => {}
        }
    }
}

/// What became of a record.
enum Put {
    New,
    /// It took the place of a value of so many bytes.
    Over(u64),
    Passed,
}

impl Put {
    fn over(before: Option<Vec<u8>>) -> Put {
        before.map_or(Put::New, |value| Put::Over(value.len() as u64))
    }
}

/// Keeps one more than an entry may have, by which it is refused.
fn put_xattr(xattrs: &mut BTreeMap<Vec<u8>, Vec<u8>>, name: &[u8], value: &[u8]) -> Put {
    let name = pax::unescape(name);
    if xattrs.len() > XATTRS_MAX && !xattrs.contains_key(&name) {
        return Put::Passed;
    }
    Put::over(xattrs.insert(name, value.to_vec()))
}

/// Records of global headers, and over them those of the entry's own.
pub(super) struct Records<'a> {
    pub(super) global: &'a Table,
    pub(super) own: &'a Table,
}

impl Records<'_> {
    /// The value of the last record with this key; an empty one takes back those before.
    pub(super) fn last(&self, key: &[u8]) -> Option<&[u8]> {
        debug_assert!(KEYS.contains(&key), "{}", shown(key));
        let own = self.own.values.get(key);
        let last = own.or_else(|| self.global.values.get(key))?;
        Some(&last[..]).filter(|value| !value.is_empty())
    }

    pub(super) fn number(&self, key: &[u8]) -> Result<Option<u64>, String> {
        let Some(value) = self.last(key) else {
            return Ok(None);
        };
        match pax::decimal(value) {
            Some(number) => Ok(Some(number)),
            None => Err(format!("{} is '{}'", shown(key), shown(value))),
        }
    }

    /// An entry with all but its path and kind.
    pub(super) fn attributes(&self, header: &Header) -> Result<Entry, String> {
        let id = |key: &[u8], field| {
            let number = match self.number(key)? {
                Some(number) => i128::from(number),
                None => header.number(field)?,
            };
            u32::try_from(number).map_err(|_| format!("{} is {number}", shown(key)))
        };
        let mtime = match self.last(b"mtime") {
            Some(text) => pax::time(text).ok_or_else(|| format!("mtime is '{}'", shown(text)))?,
            None => {
                let secs = header.number(header::MTIME)?;
                let secs = i64::try_from(secs).map_err(|_| format!("mtime is {secs}"))?;
                Timestamp { secs, nanos: 0 }
            }
        };
        Ok(Entry {
            permissions: (header.number(header::MODE)? & 0o7777) as u16,
            uid: id(b"uid", header::UID)?,
            gid: id(b"gid", header::GID)?,
            xattrs: self.xattrs()?,
            ..Entry::default_directory(Vec::new(), mtime)
        })
    }

    /// The map of a sparse file in forms 0.0 and 0.1.
    pub(super) fn map(&self) -> Result<Option<Map>, String> {
        Map::of_records(&self.own.map)
    }

    /// Archives of libarchive have attributes twice, those of GNU tar lists twice.
    fn xattrs(&self) -> Result<Vec<Xattr>, String> {
        let mut xattrs: BTreeMap<&[u8], Cow<'_, [u8]>> = BTreeMap::new();
        for table in [self.own, self.global] {
            for (name, value) in &table.star {
                xattrs.entry(name).or_insert(Cow::Borrowed(value));
            }
        }
        // As GNU tar has it.
        if let Some(label) = self.last(b"RHT.security.selinux") {
            let before = xattrs.entry(b"security.selinux");
            before.or_insert(Cow::Borrowed(label));
        }
        for table in [self.own, self.global] {
            for (name, value) in &table.libarchive {
                let value = pax::base64(value)
                    .ok_or_else(|| format!("LIBARCHIVE.xattr.{} is no base 64", shown(name)))?;
                xattrs.entry(name).or_insert(Cow::Owned(value));
            }
        }
        for (key, name, list) in [
            (
                &b"SCHILY.acl.access"[..],
                &b"system.posix_acl_access"[..],
                acl::List::Access,
            ),
            (
                b"SCHILY.acl.default",
                b"system.posix_acl_default",
                acl::List::Default,
            ),
        ] {
            if xattrs.contains_key(name) {
                continue;
            }
            let text = self.last(key);
            let value = text.map(|text| acl::from_text(text, list)).transpose()?;
            if let Some(value) = value.flatten() {
                xattrs.insert(name, Cow::Owned(value));
            }
        }
        if xattrs.len() > XATTRS_MAX {
            return Err(format!(
                "over {XATTRS_MAX} attributes, more than ext4 holds"
            ));
        }
        let bytes: usize = xattrs
            .iter()
            .map(|(name, value)| name.len() + value.len())
            .sum();
        if bytes as u64 > EXTENDED_MAX {
            return Err(format!(
                "{bytes} bytes of attributes; {EXTENDED_MAX} is the most"
            ));
        }
        let made = xattrs.into_iter().map(|(name, value)| Xattr {
            name: name.to_vec(),
            value: value.into_owned(),
        });
        Ok(made.collect())
    }
}
