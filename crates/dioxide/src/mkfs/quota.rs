//! The contents of a quota file of a new file system: the usage of id 0, and of the owner of the root.

pub(super) use dioxide_format::quota::QuotaKind;
use dioxide_format::quota::{
    BLOCK, LEVELS, QuotaHeader, ROOT, Record, RecordsHead, VERSION, pointer_at,
};

/// The block of records, behind those of the tree.
const RECORDS: u32 = ROOT + LEVELS as u32;
/// A week, for inodes and for blocks.
const GRACE_SECS: u32 = 604_800;

/// What an id uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Usage {
    pub id: u32,
    pub inodes: u64,
    pub bytes: u64,
}

/// The bytes of the file.
pub(super) fn contents(kind: QuotaKind, usages: &[Usage]) -> Vec<u8> {
    let mut file = vec![0; (ROOT as usize + 1) * BLOCK];
    for usage in usages {
        put_branch(&mut file, usage.id);
    }
    let header = QuotaHeader {
        dqh_magic: kind.magic(),
        dqh_version: VERSION,
        dqi_bgrace: GRACE_SECS,
        dqi_igrace: GRACE_SECS,
        dqi_blocks: blocks(&file),
        dqi_free_entry: RECORDS,
        ..QuotaHeader::zeroed()
    };
    put(&mut file, 0, &header.encode());
    let head = RecordsHead {
        dqdh_entries: usages.len() as u16,
        ..RecordsHead::zeroed()
    };
    let mut at = RECORDS as usize * BLOCK;
    put(&mut file, at, &head.encode());
    at += RecordsHead::SIZE;
    for usage in usages {
        let record = Record {
            dqb_id: usage.id,
            dqb_curinodes: usage.inodes,
            dqb_curspace: usage.bytes,
            ..Record::zeroed()
        };
        put(&mut file, at, &record.encode_used());
        at += Record::SIZE;
    }
    file
}

fn blocks(file: &[u8]) -> u32 {
    (file.len() / BLOCK) as u32
}

/// The way to an id's record, with the blocks of the tree that it needs; that of the first ends in what is to be the block of records.
fn put_branch(file: &mut Vec<u8>, id: u32) {
    let mut block = ROOT;
    for level in 0..LEVELS {
        let at = block as usize * BLOCK + pointer_at(id, level);
        let mut pointer = [0; 4];
        pointer.copy_from_slice(&file[at..at + 4]);
        block = match u32::from_le_bytes(pointer) {
            0 if level + 1 == LEVELS && blocks(file) > RECORDS => RECORDS,
            0 => {
                let new = blocks(file);
                file.resize(file.len() + BLOCK, 0);
                new
            }
            known => known,
        };
        put(file, at, &block.to_le_bytes());
    }
}

fn put(file: &mut [u8], at: usize, bytes: &[u8]) {
    file[at..at + bytes.len()].copy_from_slice(bytes);
}
