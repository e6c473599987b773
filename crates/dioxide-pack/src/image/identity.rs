//! What a file system has by chance elsewhere: taken from the tree.
//!
//! Invariant: depends on nothing but the entries. The contents of files do not count, because they
//! would have to be read once more; another content has another size or time.
//!
//! FNV-1a of 128 bits: a few lines, and nobody gains anything by two trees with one uuid. Rejected: a
//! cryptographic hash, which would be a dependency that promises more than this is.

use crate::entry::{Entry, Kind};
use crate::tree::Tree;
use dioxide::Mkfs;

/// What a file system has by chance elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Of the version that has no meaning but its maker's (8).
    pub uuid: [u8; 16],
    /// Seed of directory hashes, in the same form.
    pub hash_seed: [u8; 16],
    /// The time that the file system carries, in seconds since 1970: the youngest of the tree, but not
    /// before 1970 nor after 2446, up to where ext4's times go.
    pub epoch: i64,
}

/// Latest time of an ext4.
const LAST: i64 = (3 << 32) + i32::MAX as i64;

impl Identity {
    /// That of a tree.
    pub fn of(tree: &Tree) -> Identity {
        let mut hash = Hash::new();
        for entry in tree.entries() {
            hash.entry(entry);
        }
        let youngest = tree.entries().iter().map(|entry| entry.mtime.secs).max();
        let uuid = hash.0;
        hash.number(1);
        Identity {
            uuid: uuid_of(uuid),
            hash_seed: uuid_of(hash.0),
            epoch: youngest.unwrap_or(0).clamp(0, LAST),
        }
    }

    /// Gives it to a file system that will be made.
    pub fn give(&self, mkfs: Mkfs) -> Mkfs {
        mkfs.uuid(self.uuid)
            .hash_seed(self.hash_seed)
            .epoch(self.epoch)
    }
}

fn uuid_of(hash: u128) -> [u8; 16] {
    let mut uuid = hash.to_be_bytes();
    uuid[6] = uuid[6] & 0x0F | 0x80;
    uuid[8] = uuid[8] & 0x3F | 0x80;
    uuid
}

struct Hash(u128);

impl Hash {
    fn new() -> Hash {
        Hash(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d)
    }

    fn raw(&mut self, bytes: &[u8]) {
        const PRIME: u128 = (1 << 88) + 0x13b;
        for &byte in bytes {
            self.0 = (self.0 ^ u128::from(byte)).wrapping_mul(PRIME);
        }
    }

    fn number(&mut self, number: u64) {
        self.raw(&number.to_le_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.raw(bytes);
    }

    fn entry(&mut self, entry: &Entry) {
        self.bytes(&entry.path);
        self.kind(&entry.kind);
        self.number(entry.permissions.into());
        self.number(entry.uid.into());
        self.number(entry.gid.into());
        self.number(entry.mtime.secs as u64);
        self.number(entry.mtime.nanos.into());
        self.number(entry.xattrs.len() as u64);
        for xattr in &entry.xattrs {
            self.bytes(&xattr.name);
            self.bytes(&xattr.value);
        }
    }

    fn kind(&mut self, kind: &Kind) {
        let mut device = |kind: u64, major: &u32, minor: &u32| {
            self.number(kind);
            self.number(u64::from(*major) << 32 | u64::from(*minor));
        };
        match kind {
            Kind::CharDevice(major, minor) => device(1, major, minor),
            Kind::BlockDevice(major, minor) => device(2, major, minor),
            Kind::Fifo => self.number(3),
            Kind::Socket => self.number(4),
            Kind::Directory => self.number(5),
            Kind::Symlink(target) => {
                self.number(6);
                self.bytes(target);
            }
            Kind::HardLink(target) => {
                self.number(7);
                self.bytes(target);
            }
            // Where holes are depends on the file system that the source lies on.
            Kind::File(data) => {
                self.number(8);
                self.number(data.size);
            }
        }
    }
}
