//! The contents of a quota file of a new file system: the usage of id 0, who owns all there is.

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
pub(super) fn contents(kind: QuotaKind, usage: Usage) -> Vec<u8> {
    let mut file = vec![0; (RECORDS as usize + 1) * BLOCK];
    let header = QuotaHeader {
        dqh_magic: kind.magic(),
        dqh_version: VERSION,
        dqi_bgrace: GRACE_SECS,
        dqi_igrace: GRACE_SECS,
        dqi_blocks: RECORDS + 1,
        dqi_free_entry: RECORDS,
        ..QuotaHeader::zeroed()
    };
    put(&mut file, 0, &header.encode());
    for (level, block) in (ROOT..RECORDS).enumerate() {
        let at = block as usize * BLOCK + pointer_at(usage.id, level);
        put(&mut file, at, &(block + 1).to_le_bytes());
    }
    let head = RecordsHead {
        dqdh_entries: 1,
        ..RecordsHead::zeroed()
    };
    let record = Record {
        dqb_id: usage.id,
        dqb_curinodes: usage.inodes,
        dqb_curspace: usage.bytes,
        ..Record::zeroed()
    };
    let records = RECORDS as usize * BLOCK;
    put(&mut file, records, &head.encode());
    put(
        &mut file,
        records + RecordsHead::SIZE,
        &record.encode_used(),
    );
    file
}

fn put(file: &mut [u8], at: usize, bytes: &[u8]) {
    file[at..at + bytes.len()].copy_from_slice(bytes);
}
