//! The contents of a quota file of a new file system: the usage of id 0, who owns all there is.
//!
//! The file is a tree of blocks of 1 KiB: a header, four levels of 256 pointers each by the bytes of
//! the id, and a block of records.

/// Bytes of a block of the tree, whatever those of the file system.
const BLOCK: usize = 1024;
/// Blocks: header, four levels, records.
const BLOCKS: usize = 6;
const RECORDS: usize = BLOCKS - 1;
/// Bytes of the head of a block of records.
const RECORDS_HEAD: usize = 16;
const VERSION: u32 = 1;
/// A week, for inodes and for blocks.
const GRACE_SECS: u32 = 604_800;

/// Whose quota a file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QuotaKind {
    User,
    Group,
    Project,
}

impl QuotaKind {
    pub const ALL: [QuotaKind; 3] = [QuotaKind::User, QuotaKind::Group, QuotaKind::Project];

    fn magic(self) -> u32 {
        match self {
            QuotaKind::User => 0xD9C0_1F11,
            QuotaKind::Group => 0xD9C0_1927,
            QuotaKind::Project => 0xD9C0_3F14,
        }
    }
}

/// What an id uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Usage {
    pub id: u32,
    pub inodes: u64,
    pub bytes: u64,
}

/// The bytes of the file.
pub(super) fn contents(kind: QuotaKind, usage: Usage) -> Vec<u8> {
    let mut file = vec![0; BLOCKS * BLOCK];
    let last = RECORDS as u32;
    let header = [
        kind.magic(),
        VERSION,
        GRACE_SECS,
        GRACE_SECS,
        0,
        BLOCKS as u32,
        0,
        last,
    ];
    put_words(&mut file, 0, &header);
    for level in 1..RECORDS {
        let digit = usage.id.to_be_bytes()[level - 1];
        let at = level * BLOCK + usize::from(digit) * 4;
        put_words(&mut file, at, &[level as u32 + 1]);
    }
    let records = RECORDS * BLOCK;
    // No list of blocks with free records but the header's; one record.
    put_words(&mut file, records, &[0, 0, 1]);
    let record = records + RECORDS_HEAD;
    put_words(&mut file, record, &[usage.id]);
    file[record + 24..][..8].copy_from_slice(&usage.inodes.to_le_bytes());
    file[record + 48..][..8].copy_from_slice(&usage.bytes.to_le_bytes());
    file
}

fn put_words(file: &mut [u8], at: usize, words: &[u32]) {
    for (slot, word) in file[at..].chunks_exact_mut(4).zip(words) {
        slot.copy_from_slice(&word.to_le_bytes());
    }
}
