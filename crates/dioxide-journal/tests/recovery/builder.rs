//! Logs made by hand, on a device in memory.

use dioxide_block::mem::MemDevice;
use dioxide_block::{Device, Durability};
use dioxide_format::journal::{
    BlockType, Checksums, CommitBlock, DescriptorWriter, JournalFormat, JournalIncompat,
    JournalSuperBlock, MAGIC, RevokeWriter, Tag, TagFlags, Tid, TransactionSum, escape,
    needs_escape,
};
use dioxide_journal::Result;
use dioxide_journal::log::{Log, LogMap, Ring};
use dioxide_journal::recovery::{FileSystem, Recovered, Recovery};
use std::sync::Arc;

pub const BLOCK: usize = 1024;
pub const FS_BLOCKS: u64 = 512;
/// Where the journal lies: two runs, the second before the first.
const RUNS: [std::ops::Range<u64>; 2] = [300..340, 200..224];
pub const JOURNAL_BLOCKS: u32 = 64;
pub const FS: FileSystem = FileSystem {
    blocks: FS_BLOCKS,
    device_blocks: FS_BLOCKS,
    inode_bytes: 256,
};

/// What a journal is like.
#[derive(Clone, Copy, Debug)]
pub struct Spec {
    pub checksums: Checksums,
    pub wide: bool,
    pub is_async: bool,
    pub start: u32,
    pub first: Tid,
}

pub const V3: Spec = Spec {
    checksums: Checksums::V3,
    wide: true,
    is_async: false,
    start: 1,
    first: Tid(10),
};

/// Every layout of tags.
pub fn specs() -> impl Iterator<Item = Spec> {
    use Checksums::{None, Transaction, V2};
    let all = [None, Transaction, V2, Checksums::V3];
    all.into_iter().flat_map(|checksums| {
        [false, true].map(|wide| Spec {
            checksums,
            wide,
            ..V3
        })
    })
}

/// A file system with a journal that is being filled. Home block `n` holds bytes `n % 251`.
pub struct Journal {
    pub device: Arc<MemDevice>,
    pub log: Log,
    pub format: JournalFormat,
    pub ring: Ring,
    pub at: u32,
    pub tid: Tid,
    pub secs: u64,
    sum: TransactionSum,
}

pub fn home(block: u64) -> Vec<u8> {
    vec![(block % 251) as u8; BLOCK]
}

pub fn filled(byte: u8) -> Vec<u8> {
    vec![byte; BLOCK]
}

/// A block that has to be escaped.
pub fn magic(byte: u8) -> Vec<u8> {
    let mut block = filled(byte);
    block[..4].copy_from_slice(&MAGIC.to_be_bytes());
    block
}

pub fn superblock(spec: &Spec) -> JournalSuperBlock {
    let mut sb = JournalSuperBlock::zeroed();
    (sb.h_magic, sb.h_blocktype) = (MAGIC, BlockType::SuperBlockV2 as u32);
    (sb.s_blocksize, sb.s_maxlen, sb.s_first) = (BLOCK as u32, JOURNAL_BLOCKS, 1);
    (sb.s_start, sb.s_sequence) = (spec.start, spec.first.0);
    sb.s_uuid = *b"0123456789abcdef";
    sb.s_checksum_type = if spec.checksums.per_block() { 4 } else { 0 };
    let mut incompat = JournalIncompat::REVOKE;
    match spec.checksums {
        Checksums::None => {}
        Checksums::Transaction => sb.s_feature_compat = 1,
        Checksums::V2 => incompat = incompat | JournalIncompat::CSUM_V2,
        Checksums::V3 => incompat = incompat | JournalIncompat::CSUM_V3,
    }
    if spec.wide {
        incompat = incompat | JournalIncompat::BIT64;
    }
    if spec.is_async {
        incompat = incompat | JournalIncompat::ASYNC_COMMIT;
    }
    sb.s_feature_incompat = incompat.bits();
    sb
}

impl Journal {
    pub fn new(spec: Spec) -> Journal {
        let mut sb = superblock(&spec);
        let device = Arc::new(MemDevice::new(FS_BLOCKS * BLOCK as u64));
        for block in 0..FS_BLOCKS {
            write(&*device, block, &home(block));
        }
        for block in RUNS.into_iter().flatten() {
            write(&*device, block, &filled(0));
        }
        let map = LogMap::internal(RUNS).unwrap();
        let log = Log::new(device.clone(), map, BLOCK);
        log.write_superblock(&mut sb, Durability::Cached).unwrap();
        Journal {
            device,
            log,
            format: sb.format().unwrap(),
            ring: Ring::of(&sb),
            at: spec.start,
            tid: spec.first,
            secs: 1000,
            sum: TransactionSum::default(),
        }
    }

    /// The next block of the log.
    pub fn put(&mut self, block: &[u8]) -> u32 {
        let at = self.at;
        self.log.write(at, block, Durability::Cached).unwrap();
        self.at = self.ring.advance(at, 1);
        at
    }

    /// A descriptor and its data; the place of the descriptor.
    pub fn write(&mut self, blocks: &[(u64, Vec<u8>)]) -> u32 {
        let mut data = Vec::new();
        let mut block = filled(0);
        let mut writer = DescriptorWriter::new(&mut block, &self.format, self.tid);
        for (target, bytes) in blocks {
            let mut bytes = bytes.clone();
            let mut tag = Tag {
                block: *target,
                ..Tag::default()
            };
            if needs_escape(&bytes) {
                escape(&mut bytes);
                tag.flags = TagFlags::ESCAPE;
            }
            tag.checksum = self.format.data_checksum(self.tid, &bytes);
            writer.push(tag);
            data.push(bytes);
        }
        writer.seal();
        let at = self.put_summed(&block);
        for bytes in data {
            self.put_summed(&bytes);
        }
        at
    }

    fn put_summed(&mut self, block: &[u8]) -> u32 {
        self.sum.add(block);
        self.put(block)
    }

    pub fn revoke(&mut self, blocks: &[u64]) -> u32 {
        let mut block = filled(0);
        let mut writer = RevokeWriter::new(&mut block, &self.format, self.tid);
        blocks.iter().for_each(|&number| writer.push(number));
        writer.seal();
        self.put(&block)
    }

    pub fn commit(&mut self) -> u32 {
        let mut block = filled(0);
        let commit = CommitBlock {
            tid: self.tid,
            secs: self.secs,
            nsec: 7,
        };
        commit.write(&mut block, &self.format, &self.sum);
        self.sum = TransactionSum::default();
        self.tid = self.tid.next();
        self.secs += 1;
        self.put(&block)
    }

    /// A whole transaction of one block.
    pub fn transaction(&mut self, target: u64, bytes: Vec<u8>) {
        self.write(&[(target, bytes)]);
        self.commit();
    }

    /// Flips a bit of a block of the log.
    pub fn damage(&self, at: u32, byte: usize) {
        let mut block = filled(0);
        self.log.read(at, &mut block).unwrap();
        block[byte] ^= 0x10;
        self.log.write(at, &block, Durability::Cached).unwrap();
    }

    pub fn plan(&self) -> Result<Recovery<'_>> {
        Recovery::plan(&self.log, FS)
    }

    pub fn recover(&self) -> Result<Recovered> {
        let recovery = self.plan()?;
        recovery.replay(&*self.device)?;
        recovery.reset()
    }

    pub fn read(&self, block: u64) -> Vec<u8> {
        let mut bytes = filled(0);
        self.device
            .read_at(block * BLOCK as u64, &mut bytes)
            .unwrap();
        bytes
    }

    /// The whole device.
    pub fn image(&self) -> Vec<u8> {
        let mut bytes = vec![0; FS_BLOCKS as usize * BLOCK];
        self.device.read_at(0, &mut bytes).unwrap();
        bytes
    }

    /// Fails unless recovery refuses with a message that has `what` in it, having written nothing.
    pub fn assert_refused(&self, what: &str) {
        let before = self.image();
        let error = self.recover().expect_err(what).to_string();
        assert!(error.contains(what), "{error}");
        assert!(before == self.image(), "refused, but written: {error}");
    }
}

fn write(device: &dyn Device, block: u64, bytes: &[u8]) {
    let offset = block * BLOCK as u64;
    device.write_at(offset, bytes, Durability::Cached).unwrap();
}

/// Whether a block of the device holds the journal.
pub fn is_journal(block: u64) -> bool {
    RUNS.iter().any(|run| run.contains(&block))
}
