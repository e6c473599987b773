//! Each kind of damage by itself: the code it gets, and what e2fsck makes of it.

use crate::subject::{Subject, codes, e2fsck, e2fsprogs, modern, plain, report, unsummed};
use dioxide::block::file::{self, FileOptions};
use dioxide::block::sim::{Fault, FaultKind, FaultOp, SimDevice, SimSpec};
use dioxide::check::{CheckOptions, Code, Finding, Severity, check, check_path};
use dioxide::format::extent::{self, ExtentHeader};
use dioxide::format::features::Compat;
use dioxide::format::group_desc::{GroupChecksum, GroupDesc};
use dioxide::format::htree::DxRoot;
use dioxide::format::inode::Inode;
use dioxide::format::superblock::SUPERBLOCK_OFFSET;
use dioxide::format::types::{Group, Ino};
use dioxide::format::{dir, indirect};
use dioxide::{Fs, MountOptions, NewFile, XattrMode};
use dioxide_testkit::{Image, debugfs, e2fsck_clean, shape};
use std::sync::Arc;

/// What e2fsck is expected to do.
#[derive(Clone, Copy, PartialEq)]
pub enum Oracle {
    Agrees,
    /// It finds nothing, and why we do.
    Silent(&'static str),
}
use Oracle::{Agrees, Silent};

pub type Damage = fn(&Subject);
pub type Case = (&'static str, Code, Oracle, Damage);

fn judge(subject: &Subject, name: &str, code: Code, oracle: Oracle) -> Result<(), String> {
    let found = report(subject.path());
    let (status, text) = e2fsck(subject.path());
    let codes = codes(&found);
    let counts = code.severity() == Severity::Error;
    if !codes.contains(&code) || counts != (found.exit_status() & 4 != 0) {
        return Err(format!(
            "{name}: expected {code}, found {:#?}",
            found.findings
        ));
    }
    // With -n it exits with 0 after some of its complaints.
    let complains = status != 0 || text.contains("? no");
    if complains != (oracle == Agrees) {
        return Err(format!("{name}: e2fsck exits with {status}: {text}"));
    }
    Ok(())
}

/// Runs all cases on copies of one image; all that fail are told.
pub fn run(subject: &Subject, cases: &[Case]) {
    let mut failed = Vec::new();
    for (name, code, oracle, damage) in cases {
        let victim = Subject {
            image: subject.image.copy(),
            sb: subject.sb.clone(),
        };
        damage(&victim);
        failed.extend(judge(&victim, name, *code, *oracle).err());
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

const CHECKS: &str = "it checks because of that, and finds nothing";

/// What debugfs can do by itself.
const BY_DEBUGFS: &[Case] = &[
    ("link count", Code::LinkCount, Agrees, |s| {
        s.debugfs("sif file links_count 5")
    }),
    ("no type", Code::InodeMode, Agrees, |s| {
        s.debugfs("sif file mode 0777")
    }),
    ("size below the data", Code::InodeSize, Agrees, |s| {
        s.debugfs("sif file size 1")
    }),
    ("size of a directory", Code::InodeSize, Agrees, |s| {
        s.debugfs("sif dir size 5000")
    }),
    ("block count", Code::InodeBlocks, Agrees, |s| {
        s.debugfs("sif file blocks 2")
    }),
    ("deletion time", Code::InodeDtime, Agrees, |s| {
        s.debugfs("sif file dtime 1700000000")
    }),
    ("extra size", Code::InodeExtraSize, Agrees, |s| {
        s.debugfs("sif file extra_isize 7")
    }),
    ("index on a file", Code::InodeFlags, Agrees, |s| {
        s.debugfs("sif file flags 0x81000")
    }),
    ("fragment address", Code::InodeField, Agrees, |s| {
        s.debugfs("sif file faddr 1")
    }),
    ("pipe with a size", Code::SpecialInode, Agrees, |s| {
        s.debugfs("sif pipe size 10")
    }),
    (
        "immutable pipe with more than a number",
        Code::SpecialInode,
        Agrees,
        |s| {
            debugfs(s.path(), &["sif pipe flags 0x10", "sif pipe block[4] 7"]);
        },
    ),
    ("fast symlink cut", Code::SymlinkInvalid, Agrees, |s| {
        s.debugfs("sif fast size 3")
    }),
    ("slow symlink cut", Code::SymlinkInvalid, Agrees, |s| {
        s.debugfs("sif slow size 70")
    }),
    ("inode cleared", Code::EntryUnused, Agrees, |s| {
        s.debugfs("clri file")
    }),
    ("root no directory", Code::RootMissing, Agrees, |s| {
        s.debugfs("sif <2> mode 0100644")
    }),
    ("block freed", Code::BlockBitmap, Agrees, |s| {
        let block = s.blocks("file")[3];
        s.debugfs(&format!("freeb {block}"));
    }),
    ("free block marked", Code::BlockBitmap, Agrees, |s| {
        s.debugfs("setb 20000")
    }),
    ("inode freed", Code::InodeBitmap, Agrees, |s| {
        s.debugfs("freei file")
    }),
    ("free inode marked", Code::InodeBitmap, Agrees, |s| {
        s.debugfs("seti <1500>")
    }),
    (
        "free blocks of a group",
        Code::GroupFreeBlocks,
        Agrees,
        |s| set_bg(s, "free_blocks_count 1"),
    ),
    (
        "free inodes of a group",
        Code::GroupFreeInodes,
        Agrees,
        |s| set_bg(s, "free_inodes_count 1"),
    ),
    ("directories of a group", Code::GroupDirs, Agrees, |s| {
        set_bg(s, "used_dirs_count 77")
    }),
    ("group uninitialised", Code::GroupUninit, Agrees, |s| {
        set_bg(s, "flags 3")
    }),
    ("bitmap outside", Code::DescriptorInvalid, Agrees, |s| {
        set_bg(s, "block_bitmap 5000000")
    }),
    (
        "bitmap on the superblock",
        Code::DescriptorInvalid,
        Agrees,
        |s| set_bg(s, &format!("block_bitmap {}", s.sb.first_data_block())),
    ),
    (
        "bitmaps in one place",
        Code::MetadataConflict,
        Agrees,
        |s| {
            let block = s.desc(0).block_bitmap();
            set_bg(s, &format!("inode_bitmap {block}"));
        },
    ),
    ("free blocks in all", Code::TotalFreeBlocks, Agrees, |s| {
        s.debugfs("ssv free_blocks_count 5")
    }),
    ("free inodes in all", Code::TotalFreeInodes, Agrees, |s| {
        s.debugfs("ssv free_inodes_count 5")
    }),
    ("reserved blocks", Code::SuperblockField, Agrees, |s| {
        s.debugfs("ssv r_blocks_count 20000")
    }),
    (
        "name of a file removed",
        Code::InodeUnattached,
        Agrees,
        |s| s.debugfs("unlink file"),
    ),
    (
        "name of a directory removed",
        Code::DirUnconnected,
        Agrees,
        |s| s.debugfs("unlink dir/sub"),
    ),
    (
        "second name of a directory",
        Code::EntryDirLink,
        Agrees,
        |s| s.debugfs("ln dir/sub twice"),
    ),
    ("directory in itself", Code::DirLoop, Agrees, |s| {
        debugfs(s.path(), &["ln dir dir/sub/up", "unlink dir"]);
    }),
    (
        "orphan that is none",
        Code::OrphanList,
        Silent("with -n it leaves the list alone"),
        |s| {
            s.debugfs("ssv last_orphan 9");
        },
    ),
    ("journal inode", Code::JournalInvalid, Agrees, |s| {
        s.debugfs("sif <8> mode 040755")
    }),
    (
        "journal inside and outside",
        Code::JournalInvalid,
        Agrees,
        |s| s.debugfs("ssv journal_uuid 11111111-1111-1111-1111-111111111111"),
    ),
    (
        "journal at two places",
        Code::JournalInvalid,
        Silent("it takes the inode, and Linux mounts no such file system"),
        |s| s.debugfs("ssv journal_dev 0x801"),
    ),
    (
        "hash of new indexes",
        Code::SuperblockField,
        Silent("it makes no index of that kind, and Linux mounts no such file system"),
        |s| s.debugfs("ssv def_hash_version HASHALG_7"),
    ),
    (
        "clusters of a group",
        Code::SuperblockInvalid,
        Agrees,
        |s| s.debugfs("ssv clusters_per_group 8184"),
    ),
    ("groups of a flex", Code::SuperblockInvalid, Agrees, |s| {
        s.debugfs("ssv log_groups_per_flex 32")
    }),
    ("attributes of inode 9", Code::XattrInvalid, Agrees, |s| {
        s.debugfs(&format!("sif <9> file_acl {}", s.blocks("file")[0]))
    }),
    ("attributes of inode 7", Code::XattrInvalid, Agrees, |s| {
        s.debugfs(&format!("sif <7> file_acl {}", s.blocks("file")[0]))
    }),
    ("index of inode 10", Code::InodeFlags, Agrees, |s| {
        s.debugfs("sif <10> flags 0x1000")
    }),
    ("mode of inode 9", Code::InodeMode, Agrees, |s| {
        s.debugfs("sif <9> mode 0100644")
    }),
    ("size of inode 10", Code::InodeSize, Agrees, |s| {
        s.debugfs("sif <10> size 0x8000000000000")
    }),
    ("blocks of inode 5", Code::InodeBlocks, Agrees, |s| {
        s.debugfs("sif <5> blocks 2")
    }),
    ("owner of bad blocks", Code::InodeField, Agrees, |s| {
        s.debugfs("sif <1> uid 1")
    }),
    ("quota without quota", Code::InodeField, Agrees, |s| {
        s.debugfs("sif <3> links_count 1")
    }),
    ("size of inode 7", Code::InodeSize, Agrees, |s| {
        s.debugfs("sif <7> size 4096")
    }),
    ("extents of inode 7", Code::ResizeInode, Agrees, |s| {
        s.debugfs("sif <7> flags 0x80000")
    }),
    ("map of inode 7 ends before", Code::InodeSize, Agrees, |s| {
        s.debugfs("sif <7> size 0x500000000000")
    }),
    ("one block too many", Code::InodeSize, Agrees, |s| {
        s.debugfs(&format!("sif file size {}", s.block_bytes() << 32))
    }),
    ("last group uninitialised", Code::GroupUninit, Agrees, |s| {
        set_bg_of(s, s.sb.group_count() - 1, "flags 7")
    }),
    ("users of the journal", Code::JournalInvalid, Agrees, |s| {
        s.write(s.at_block(s.blocks("<8>")[0]) + 0x40, &[0, 0, 0, 2]);
    }),
    (
        "fast commits without room",
        Code::JournalInvalid,
        Agrees,
        |s| {
            let journal = s.at_block(s.blocks("<8>")[0]);
            s.write(journal + 0x28, &[0, 0, 0, 0x20]);
            let blocks = s.read(journal + 0x10, 4);
            s.write(journal + 0x54, &blocks);
        },
    ),
    (
        "errors found before",
        Code::StateError,
        Silent(CHECKS),
        |s| s.debugfs("ssv state 3"),
    ),
    ("not unmounted", Code::StateNotClean, Silent(CHECKS), |s| {
        s.debugfs("ssv state 0")
    }),
    ("journal aborted", Code::JournalAborted, Agrees, |s| {
        s.write(s.at_block(s.blocks("<8>")[0]) + 0x20, &[0, 0, 0, 5]);
    }),
    ("deleted file", Code::OrphansPending, Agrees, |s| {
        let ino = s.ino("file");
        let orphan = format!("ssv last_orphan {ino}");
        debugfs(
            s.path(),
            &["sif file links_count 0", &orphan, "unlink file"],
        );
    }),
    (
        "log that does not match its checksum",
        Code::JournalDamaged,
        Silent("with -n it leaves the journal alone"),
        |s| {
            let copy = tempfile::NamedTempFile::new().expect("a file");
            let at = s.blocks("dir/leaf")[0];
            let marked = vec![0xA5; s.block_bytes() as usize];
            std::fs::write(copy.path(), &marked).expect("a block");
            let write = format!("jw -b {at} {}", copy.path().display());
            debugfs(s.path(), &["jo -c -v 3", &write, "jc"]);
            let logged = s.blocks("<8>").into_iter();
            let mut logged = logged.map(|block| s.at_block(block));
            let logged = logged.find(|at| s.read(*at, marked.len()) == marked);
            s.flip(logged.expect("a block in the log") + 100);
        },
    ),
    (
        "two kinds of checksums",
        Code::FeatureConflict,
        Agrees,
        |s| {
            debugfs(s.path(), &["feature uninit_bg"]);
        },
    ),
];

#[test]
fn flags_of_groups_without_their_feature_are_told() {
    let cases: &[Case] = &[
        ("flags", Code::DescriptorFlags, Agrees, |s| {
            s.debugfs("set_bg 1 flags 3")
        }),
        ("unused inodes", Code::DescriptorFlags, Agrees, |s| {
            s.debugfs("set_bg 1 itable_unused 5")
        }),
    ];
    run(&of("^metadata_csum,^uninit_bg"), cases);
}

fn set_bg(subject: &Subject, what: &str) {
    set_bg_of(subject, 0, what);
}

fn set_bg_of(subject: &Subject, group: u32, what: &str) {
    let requests = [
        format!("set_bg {group} {what}"),
        format!("set_bg {group} checksum calc"),
    ];
    debugfs(subject.path(), &requests);
}

#[test]
fn damage_by_debugfs_is_found_by_its_code_and_by_e2fsck() {
    run(&modern(), BY_DEBUGFS);
}

/// The inodes of a table are met once, however many groups have it.
#[test]
fn table_of_two_groups_is_read_once() {
    let subject = of("^metadata_csum,^uninit_bg");
    let before = report(subject.path()).usage.expect("it was checked");
    let table = subject.desc(0).inode_table();
    set_bg_of(&subject, 1, &format!("inode_table {table}"));
    let report = report(subject.path());
    let conflict = |f: &&Finding| f.code == Code::MetadataConflict;
    assert!(report.findings.iter().any(|f| conflict(&f)), "{report:#?}");
    assert_eq!(report.usage.expect("it was checked").inodes, before.inodes);
}

#[test]
fn check_takes_no_more_memory_than_it_may() {
    let subject = of("^metadata_csum");
    let with = |max_memory| {
        let options = CheckOptions {
            max_memory,
            ..CheckOptions::default()
        };
        check_path(subject.path(), &options, &mut |_| {})
    };
    // Too little for what is known from the start; and for the inodes of a group.
    let error = with(0).expect_err("it is too little");
    assert!(
        error.to_string().contains("needs more than 0 bytes"),
        "{error}"
    );
    let most = 8 * u64::from(subject.sb.inodes_per_group());
    let report = with(most).expect("it begins");
    assert_eq!(codes(&report), [Code::NotChecked], "{report:#?}");
    assert!(report.incomplete && !report.is_clean());
    with(1 << 30).expect("it is enough");
}

/// What is wrong with a group's counts has nothing to do with the inodes in its table, the journal's among them.
#[test]
fn counts_of_a_group_that_cannot_be_are_told_without_what_does_not_follow() {
    let summed = modern();
    set_bg(&summed, "free_inodes_count 60000");
    let plain = of("^metadata_csum,^uninit_bg");
    plain.debugfs("set_bg 0 itable_unused 5000");
    for (subject, status) in [(summed, 4), (plain, 0)] {
        let found = report(subject.path());
        assert!(!codes(&found).contains(&Code::JournalInvalid), "{found:#?}");
        assert_eq!(i32::from(found.exit_status()), status, "{found:#?}");
        assert_eq!(e2fsck(subject.path()).0, status);
    }
}

/// Backups say of groups that they were never used, since they are of when the file system was made.
#[test]
fn files_are_found_by_a_backup_that_is_older_than_they() {
    let subject = modern();
    let options = CheckOptions {
        superblock_at: Some(8193),
        ..CheckOptions::default()
    };
    for group in 0..subject.sb.group_count() {
        let backup = subject.at_block(8193 + 1) + u64::from(group) * subject.sb.desc_size() as u64;
        let mut bytes = subject.desc(group).encode();
        // Neither its inodes nor its bitmap.
        bytes[0x12] |= 3;
        let mut desc = GroupDesc::parse(&bytes, bytes.len()).expect("a descriptor");
        desc.set_itable_unused(subject.sb.inodes_per_group());
        desc.update_checksum(Group(group), GroupChecksum::of(&subject.sb));
        subject.write(backup, &desc.encode());
    }
    let found = check_path(subject.path(), &options, &mut |_| {}).expect("a check");
    let errors: Vec<_> = found
        .findings
        .iter()
        .filter(|finding| finding.code.severity() == Severity::Error)
        .collect();
    assert!(errors.is_empty(), "{errors:#?}");
}

/// Bytes that do not match their checksum.
const CHECKSUMS: &[Case] = &[
    ("superblock", Code::SuperblockChecksum, Agrees, |s| {
        s.flip(1024 + 0x78)
    }),
    ("descriptor", Code::DescriptorChecksum, Agrees, |s| {
        s.flip(s.at_block(s.sb.descriptor_block(0).0) + 0x3C);
    }),
    ("inode", Code::InodeChecksum, Agrees, |s| {
        s.flip(s.at_inode(s.ino("file")) + 0x64)
    }),
    ("block bitmap", Code::BlockBitmapChecksum, Agrees, |s| {
        s.flip(s.at_block(s.desc(0).block_bitmap().0) + 900);
    }),
    ("inode bitmap", Code::InodeBitmapChecksum, Agrees, |s| {
        s.flip(s.at_block(s.desc(0).inode_bitmap().0) + 100);
    }),
    ("directory", Code::DirChecksum, Agrees, |s| {
        s.flip(s.at_block(s.blocks("dir")[0]) + 1023)
    }),
    ("extent node", Code::ExtentChecksum, Agrees, |s| {
        s.flip(s.at_block(node_of(s, "pieces")) + 1023)
    }),
    ("attributes", Code::XattrChecksum, Agrees, |s| {
        s.flip(s.at_block(xattr_block(s)) + 0x10)
    }),
    (
        "journal's magic number",
        Code::JournalInvalid,
        Agrees,
        |s| s.flip(s.at_block(s.blocks("<8>")[0]) + 3),
    ),
    (
        "backup",
        Code::BackupInvalid,
        Silent("it reads a backup only when it needs one"),
        |s| s.flip(s.at_block(s.sb.superblock_block(Group(1)).0) + 0x38),
    ),
];

/// The block of a file's map that comes first.
fn node_of(subject: &Subject, path: &str) -> u64 {
    let ino = subject.ino(path);
    let raw = subject.read(subject.at_inode(ino), 128);
    let node = extent::ExtentNode::parse(&raw[0x28..0x64], None).expect("a root");
    node.indices()[0].leaf.0
}

fn xattr_block(subject: &Subject) -> u64 {
    let raw = subject.read(subject.at_inode(subject.ino("other")), 128);
    u32::from_le_bytes([raw[0x68], raw[0x69], raw[0x6A], raw[0x6B]]).into()
}

#[test]
fn damage_to_checksums_is_found_by_its_code_and_by_e2fsck() {
    let subject = modern();
    shape::fragmented(&subject.image, "pieces", 40, 3);
    run(&subject, CHECKSUMS);
}

pub fn put32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

pub fn get32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

/// Changes a pointer of a file's `i_block`.
fn point(subject: &Subject, path: &str, index: usize, block: u64) {
    subject.edit_inode(subject.ino(path), |raw| {
        put32(raw, 0x28 + 4 * index, block as u32);
    });
}

fn pointer(subject: &Subject, path: &str, index: usize) -> u64 {
    let raw = subject.read(subject.at_inode(subject.ino(path)), 128);
    get32(&raw, 0x28 + 4 * index).into()
}

/// Counts one more block as that of the symlink.
fn use_next_block_of_slow(subject: &Subject) -> u64 {
    let free = debugfs(subject.path(), &["ffb 1"]);
    let (_, free) = free.split_once("found: ").expect("Free blocks found: ...");
    let next = free
        .split_whitespace()
        .next()
        .and_then(|word| word.parse().ok());
    let next = next.expect("a free block");
    debugfs(
        subject.path(),
        &[&format!("setb {next}"), "sif slow blocks 4"],
    );
    next
}

/// Images without checksums and extents.
const PLAIN: &[Case] = &[
    ("pointer outside", Code::BlockRange, Agrees, |s| {
        point(s, "file", 2, 99_999_999)
    }),
    (
        "one block of two files",
        Code::MultiplyClaimed,
        Agrees,
        |s| {
            point(s, "file", 2, pointer(s, "other", 3));
        },
    ),
    (
        "block of the inode table",
        Code::MetadataClaimed,
        Agrees,
        |s| {
            point(s, "file", 2, s.desc(0).inode_table().0 + 1);
        },
    ),
    ("map that leads to itself", Code::BlockLoop, Agrees, |s| {
        point(s, "file", 13, pointer(s, "file", 12));
    }),
    ("symlink of two blocks", Code::SymlinkInvalid, Agrees, |s| {
        point(s, "slow", 1, use_next_block_of_slow(s));
    }),
    ("symlink with a table", Code::SymlinkInvalid, Agrees, |s| {
        let next = use_next_block_of_slow(s);
        s.edit_block(next, |block| block.fill(0));
        point(s, "slow", 12, next);
    }),
    ("hole in a directory", Code::DirHole, Agrees, |s| {
        point(s, "big", 3, 0)
    }),
    ("`.` of another", Code::DirDot, Agrees, |s| {
        s.edit_block(s.blocks("dir")[0], |block| put32(block, 0, 2));
    }),
    ("`.` missing", Code::DirDot, Agrees, |s| {
        s.edit_block(s.blocks("dir")[0], |block| block[8] = b'x')
    }),
    ("`..` of another", Code::DirParent, Agrees, |s| {
        s.edit_block(s.blocks("dir/sub")[0], |block| put32(block, 12, 11));
    }),
    ("name twice", Code::EntryDuplicate, Agrees, |s| {
        let at = s.entry("/", "fast");
        s.write(at + 8, b"file");
    }),
    ("type of another", Code::EntryType, Agrees, |s| {
        s.write(s.entry("/", "file") + 7, &[2])
    }),
    ("slash in a name", Code::EntryName, Agrees, |s| {
        s.write(s.entry("/", "file") + 9, b"/")
    }),
    ("length of an entry", Code::DirBlock, Agrees, |s| {
        s.write(s.entry("/", "file") + 4, &[3])
    }),
    ("length of a name", Code::DirBlock, Agrees, |s| {
        s.write(s.entry("/", "file") + 6, &[250])
    }),
    ("inode that is not", Code::EntryInode, Agrees, |s| {
        s.write(s.entry("/", "file"), &9_999_999u32.to_le_bytes());
    }),
    (
        "reserved inode with a name",
        Code::EntryInode,
        Agrees,
        |s| {
            s.write(s.entry("/", "file"), &7u32.to_le_bytes());
        },
    ),
    ("index levels", Code::HtreeRoot, Agrees, |s| {
        s.edit_block(s.blocks("big")[0], |b| b[0x1E] = 3)
    }),
    (
        "hash that roots do not have",
        Code::HtreeRoot,
        Agrees,
        |s| s.edit_block(s.blocks("big")[0], |b| b[0x1C] = 4),
    ),
    ("index out of order", Code::HtreeNode, Agrees, |s| {
        s.edit_block(s.blocks("big")[0], |block| {
            let hash = get32(block, 0x28);
            put32(block, 0x28, get32(block, 0x30));
            put32(block, 0x30, hash);
        });
    }),
    ("names of another hash", Code::HtreeHash, Agrees, |s| {
        s.edit_block(s.blocks("big")[0], |block| {
            let first = get32(block, 0x2C);
            put32(block, 0x2C, get32(block, 0x34));
            put32(block, 0x34, first);
        });
    }),
    (
        "block twice in the index",
        Code::HtreeReference,
        Agrees,
        |s| {
            s.edit_block(s.blocks("big")[0], |block| {
                put32(block, 0x2C, get32(block, 0x34))
            });
        },
    ),
    ("attribute's value", Code::XattrHash, Agrees, |s| {
        s.flip(s.at_block(xattr_block(s)) + 1020)
    }),
    ("attribute's place", Code::XattrInvalid, Agrees, |s| {
        s.edit_block(xattr_block(s), |block| block[0x22] = 0xFF);
    }),
    (
        "attribute without a prefix",
        Code::XattrInvalid,
        Agrees,
        |s| {
            s.edit_block(xattr_block(s), |block| block[0x21] = 0);
        },
    ),
    (
        "size of descriptors without 64bit",
        Code::SuperblockField,
        Agrees,
        |s| {
            s.write(SUPERBLOCK_OFFSET + 0xFE, &[3]);
        },
    ),
    ("attributes counted", Code::XattrRefcount, Agrees, |s| {
        s.edit_block(xattr_block(s), |block| block[4] = 9);
    }),
    ("attribute in the inode", Code::XattrInvalid, Agrees, |s| {
        s.edit_inode(s.ino("tiny"), |raw| raw[128 + 32 + 4 + 8] = 0xFF);
    }),
    (
        "end of the block bitmap",
        Code::BlockBitmapPadding,
        Agrees,
        |s| {
            let last = s.sb.group_count() - 1;
            let bits = s.sb.blocks_in_group(Group(last)) as u64;
            assert!(bits < s.block_bytes() * 8, "a last group that is whole");
            s.edit_block(s.desc(last).block_bitmap().0, |bits| bits[1023] &= 0x7F);
        },
    ),
    (
        "end of the inode bitmap",
        Code::InodeBitmapPadding,
        Agrees,
        |s| {
            s.flip(s.at_block(s.desc(0).inode_bitmap().0) + s.block_bytes() - 1);
        },
    ),
    (
        "pointer of the resize inode",
        Code::ResizeInode,
        Agrees,
        |s| {
            let double = pointer(s, "<7>", 13);
            s.edit_block(double, |block| {
                let used = indirect::pointers(block).position(|pointer| pointer != 0);
                put32(block, 4 * used.expect("a pointer"), 5000);
            });
        },
    ),
    ("magic number", Code::SuperblockInvalid, Agrees, |s| {
        s.flip(1024 + 0x38)
    }),
    (
        "backup",
        Code::BackupInvalid,
        Silent("it reads a backup only when it needs one"),
        |s| {
            s.flip(s.at_block(s.sb.superblock_block(Group(1)).0) + 0x38);
        },
    ),
    (
        "backup of another file system",
        Code::BackupStale,
        Silent("it makes a new backup"),
        |s| {
            s.flip(s.at_block(s.sb.superblock_block(Group(1)).0) + 0x68);
        },
    ),
    ("end cut off", Code::DeviceTooSmall, Agrees, |s| {
        let file = std::fs::File::options().write(true).open(s.path());
        file.expect("the image")
            .set_len(23 << 20)
            .expect("a shorter image");
    }),
    ("time", Code::InodeTime, Agrees, |s| {
        s.edit_inode(s.ino("file"), |raw| {
            put32(raw, 0x10, 0x9000_0000);
            put32(raw, 0x88, 3);
        });
    }),
];

#[test]
fn damage_to_maps_and_directories_is_found_by_its_code_and_by_e2fsck() {
    let subject = plain();
    assert!(subject.sb.features().compat.contains(Compat::DIR_INDEX));
    let root = subject.read(subject.at_block(subject.blocks("big")[0]), 1024);
    DxRoot::parse(&root, &dir::DirFormat::of(&subject.sb)).expect("a directory with an index");
    run(&subject, PLAIN);
}

/// Changes a byte of a file's extent root.
fn edit_root(subject: &Subject, path: &str, edit: impl FnOnce(&mut [u8])) {
    subject.edit_inode(subject.ino(path), |raw| edit(&mut raw[0x28..0x64]));
}

const EXTENTS: &[Case] = &[
    ("magic number", Code::ExtentHeader, Agrees, |s| {
        edit_root(s, "file", |root| root[0] = 0)
    }),
    ("depth", Code::ExtentHeader, Agrees, |s| {
        edit_root(s, "pieces", |root| root[6] = 3)
    }),
    ("room", Code::ExtentHeader, Agrees, |s| {
        s.edit_block(node_of(s, "pieces"), |node| node[4] = 60);
    }),
    ("order", Code::ExtentOrder, Agrees, |s| {
        s.edit_block(node_of(s, "pieces"), |node| {
            let size = ExtentHeader::SIZE;
            let (a, b) = node[size..size + 24].split_at_mut(12);
            a.swap_with_slice(b);
        });
    }),
    ("length", Code::ExtentOrder, Agrees, |s| {
        s.edit_block(node_of(s, "pieces"), |node| node[16] = 9);
    }),
    (
        "size below the last leaf's end",
        Code::InodeSize,
        Agrees,
        |s| {
            s.edit_inode(s.ino("pieces"), |raw| {
                let last = (get32(raw, 4) - 1) / 1024;
                put32(raw, 4, last * 1024);
            });
        },
    ),
    (
        "unwritten block of a directory",
        Code::DirHole,
        Agrees,
        |s| edit_root(s, "dir", |root| root[17] = 0x80),
    ),
    ("start", Code::ExtentRange, Agrees, |s| {
        edit_root(s, "file", |root| root[23] = 0x7F)
    }),
    ("node outside", Code::ExtentRange, Agrees, |s| {
        edit_root(s, "pieces", |root| root[19] = 0x7F)
    }),
    ("symlink of two blocks", Code::SymlinkInvalid, Agrees, |s| {
        use_next_block_of_slow(s);
        edit_root(s, "slow", |root| root[16] = 2);
    }),
    (
        "symlink of two extents",
        Code::SymlinkInvalid,
        Agrees,
        |s| {
            let next = use_next_block_of_slow(s);
            edit_root(s, "slow", |root| {
                root[2] = 2;
                root[24] = 1;
                root[28] = 1;
                put32(root, 32, next as u32);
            });
        },
    ),
    ("symlink with a leaf", Code::SymlinkInvalid, Agrees, |s| {
        let next = use_next_block_of_slow(s);
        let raw = s.read(s.at_inode(s.ino("slow")), 128);
        s.edit_block(next, |block| {
            block[..24].copy_from_slice(&raw[0x28..0x28 + 24]);
            block[4] = 84;
        });
        edit_root(s, "slow", |root| {
            root[6] = 1;
            put32(root, 16, next as u32);
            put32(root, 20, 0);
        });
    }),
    ("symlink with room", Code::SymlinkInvalid, Agrees, |s| {
        s.edit_inode(s.ino("slow"), |raw| put32(raw, 4, 59));
        s.edit_block(s.blocks("slow")[0], |block| block[59..].fill(0));
    }),
    (
        "fast symlink with extents",
        Code::SymlinkInvalid,
        Agrees,
        |s| {
            s.debugfs("sif fast flags 0x80000");
        },
    ),
    ("start of an index", Code::ExtentIndexStart, Agrees, |s| {
        s.edit_block(node_of(s, "pieces"), |node| node[12] = 1);
        // The first extent now is where the second was.
        s.edit_block(node_of(s, "pieces"), |node| node.copy_within(24..1012, 12));
        s.edit_block(node_of(s, "pieces"), |node| node[2] -= 1);
    }),
];

#[test]
fn damage_to_extent_trees_is_found_by_its_code_and_by_e2fsck() {
    run(&unsummed(), EXTENTS);
}

/// As a crash leaves it between a truncate's first transaction and its next.
#[test]
fn orphan_whose_last_block_was_not_cut_off_yet_is_pending_only() {
    let subject = unsummed();
    let ino = subject.ino("pieces");
    subject.edit_inode(ino, |raw| put32(raw, 4, (get32(raw, 4) - 1) / 1024 * 1024));
    subject.debugfs(&format!("ssv last_orphan {ino}"));
    let report = report(subject.path());
    let codes: Vec<_> = report.findings.iter().map(|found| found.code).collect();
    assert_eq!(codes, [Code::OrphansPending]);
}

#[test]
fn file_that_ends_inside_the_last_block_of_a_tree_is_clean() {
    let subject = unsummed();
    let ino = subject.ino("pieces");
    subject.edit_inode(ino, |raw| {
        put32(raw, 4, (get32(raw, 4) - 1) / 1024 * 1024 + 1)
    });
    assert!(report(subject.path()).is_clean());
    assert_eq!(e2fsck(subject.path()).0, 0);
}

/// One case on an image of its own.
pub fn one(subject: &Subject, name: &str, code: Code, oracle: Oracle) {
    judge(subject, name, code, oracle).unwrap();
}

fn of(features: &str) -> Subject {
    let builder = Image::builder().size(24 << 20).block_size(1024);
    Subject::new(builder.features(features))
}

#[test]
fn damage_to_mmp_block_is_found() {
    let subject = of("mmp,^metadata_csum");
    let block = subject.sb.mmp_block().unwrap().expect("a block").0;
    subject.flip(subject.at_block(block));
    one(&subject, "MMP", Code::MmpInvalid, Agrees);
}

/// debugfs would wait for the block, and not find it.
#[test]
fn mmp_block_that_is_none_is_found() {
    let subject = of("mmp,^metadata_csum");
    for block in [0, 1, subject.sb.blocks_count()] {
        let mut sb = subject.sb.clone();
        sb.disk_mut().s_mmp_block = block;
        subject.write(SUPERBLOCK_OFFSET, &sb.encode());
        one(&subject, &format!("{block}"), Code::MmpInvalid, Agrees);
    }
}

/// The checksum of the block is right, but no entry of its own.
#[test]
fn entry_that_covers_the_checksum_of_a_directory_block_is_found() {
    let subject = modern();
    let ino = subject.ino("dir/sub");
    let inode = subject.read(subject.at_inode(ino), subject.sb.inode_size());
    let inode = Inode::parse(&inode, subject.sb.inode_size()).expect("an inode");
    let seed = inode.seed(subject.sb.checksum_seed(), ino);
    subject.edit_block(subject.blocks("dir/sub")[0], |block| {
        let rest = (block.len() - 12) as u16;
        block[16..18].copy_from_slice(&rest.to_le_bytes());
        dir::update_checksum(block, seed).expect("a checksum");
    });
    one(&subject, "tail", Code::DirChecksum, Agrees);
}

#[test]
fn damage_to_orphan_file_is_found() {
    let subject = of("orphan_file");
    let ino = subject.sb.orphan_file_inum().expect("a file").0;
    type Edit = fn(&mut [u8]);
    let edits: [(&str, Edit); 2] = [
        ("size", |raw| put32(raw, 4, get32(raw, 4) - 1)),
        ("links", |raw| raw[0x1A] = 0),
    ];
    for (name, edit) in edits {
        let victim = Subject {
            image: subject.image.copy(),
            sb: subject.sb.clone(),
        };
        victim.edit_inode(Ino(ino), edit);
        one(&victim, name, Code::OrphanFile, Agrees);
    }
    debugfs(subject.path(), &["feature orphan_present"]);
    one(&subject, "none is present", Code::OrphanFile, Agrees);
    debugfs(subject.path(), &["feature -orphan_present"]);
    let block = subject.blocks(&format!("<{ino}>"))[0];
    subject.flip(subject.at_block(block + 1) - 8);
    one(&subject, "orphan file", Code::OrphanFile, Agrees);
    let subject = of("orphan_file,^metadata_csum");
    let block = subject.blocks(&format!("<{ino}>"))[0];
    subject.flip(subject.at_block(block + 1) - 4);
    one(&subject, "checksum", Code::OrphanFile, Agrees);
}

/// What the superblock names is the orphan file only with the feature.
#[test]
fn file_that_is_named_as_the_orphan_file_without_the_feature_is_found() {
    let subject = of("^orphan_file");
    let name = |ino: u32| subject.debugfs(&format!("ssv orphan_file_inum {ino}"));
    name(subject.ino("file").0);
    one(&subject, "a file", Code::InodeField, Agrees);
    name(Ino::RESIZE.0);
    one(&subject, "the resize inode", Code::InodeField, Agrees);
    for unused in [1500, u32::MAX] {
        name(unused);
        assert!(codes(&report(subject.path())).is_empty(), "{unused}");
        assert_eq!(e2fsck(subject.path()).0, 0, "{unused}");
    }
}

/// Blocks behind its size are no orphans, and a file that is too large is not read: it could lead to few blocks very often.
#[test]
fn orphan_file_is_read_as_far_as_its_size_and_the_limit() {
    let subject = of("orphan_file,^metadata_csum");
    let ino = subject.sb.orphan_file_inum().expect("a file");
    let last = *subject.blocks(&format!("<{ino}>")).last().expect("a block");
    let size = subject.blocks(&format!("<{ino}>")).len() as u32 - 1;
    subject.edit_inode(ino, |raw| put32(raw, 4, size << 10));
    subject.edit_block(last, |block| block[..4].fill(0x7F));
    one(&subject, "behind the end", Code::OrphanFile, Agrees);
    let found = report(subject.path());
    let told: Vec<_> = found.findings.iter().map(|f| &f.text[..]).collect();
    let text = format!("i_size is {}, and it has {} blocks", size << 10, size + 1);
    assert_eq!(told, [text]);

    let builder = Image::builder().size(64 << 20).block_size(1024);
    let builder = builder.features("orphan_file,^metadata_csum");
    let subject = Subject::new(builder.extended("orphan_file_size=33M"));
    let why = "Linux mounts no such file system";
    one(&subject, "too large", Code::OrphanFile, Silent(why));
}

#[test]
fn damage_to_inline_data_is_found() {
    let subject = of("inline_data,^metadata_csum");
    subject.debugfs(&format!("symlink inline {}", "t".repeat(80)));
    for (name, wrong) in [("inline", [79, 81]), ("dir/sub", [40, 80])] {
        let ino = subject.ino(name);
        for size in wrong {
            let victim = Subject {
                image: subject.image.copy(),
                sb: subject.sb.clone(),
            };
            victim.edit_inode(ino, |raw| put32(raw, 4, size));
            let name = format!("{name}, {size}");
            one(&victim, &name, Code::InlineData, Agrees);
        }
    }
    let victim = Subject {
        image: subject.image.copy(),
        sb: subject.sb.clone(),
    };
    let ino = victim.ino("tiny");
    victim.edit_inode(ino, |raw| raw[0xA0..0xA4].fill(0));
    one(&victim, "no attribute", Code::InlineData, Agrees);
    let victim = Subject {
        image: subject.image.copy(),
        sb: subject.sb.clone(),
    };
    let ino = victim.ino("tiny");
    // The high half of the size.
    victim.edit_inode(ino, |raw| put32(raw, 0x6C, 1 << 16));
    one(&victim, "beyond all sizes", Code::InodeSize, Agrees);
    // `e2fsck -fy` cuts such a file off.
    let victim = Subject {
        image: subject.image.copy(),
        sb: subject.sb.clone(),
    };
    victim.debugfs("ea_rm tiny user.small");
    victim.edit_inode(ino, |raw| raw[0xA6] = 93);
    one(
        &victim,
        "empty value behind the end",
        Code::InlineData,
        Agrees,
    );
    let victim = of("inline_data,ea_inode,^metadata_csum");
    let fs = Fs::open(victim.path(), &MountOptions::new()).expect("it opens");
    fs.set_xattr("/tiny", "user.large", &[7; 3000], XattrMode::Set)
        .expect("room");
    fs.close().expect("it closes");
    victim.edit_inode(ino, |raw| {
        let name = raw.windows(5).position(|window| window == b"large");
        raw[name.expect("its name") - 14] = 4;
    });
    one(&victim, "place beside an inode", Code::InlineData, Agrees);
    // Files may be longer, with zeros behind.
    let ino = subject.ino("tiny");
    subject.edit_inode(ino, |raw| put32(raw, 4, 5000));
    assert_eq!(codes(&report(subject.path())), []);
    e2fsck_clean(subject.path());
}

#[test]
fn quota_inode_that_is_a_directory_is_found() {
    let builder = Image::builder().size(24 << 20).block_size(1024);
    let image = builder.features("quota").build();
    debugfs(image.path(), &["ssv usr_quota_inum 11"]);
    let sb = crate::subject::read_superblock(image.path());
    one(&Subject { image, sb }, "quota", Code::QuotaInode, Agrees);
}

/// e2fsck does not count a symlink with its target in an attribute.
#[test]
fn quota_with_and_without_symlinks_of_inline_data_is_right() {
    let subject = of("quota,inline_data");
    let link = format!("symlink inline {}", "t".repeat(80));
    debugfs(subject.path(), &[link]);
    // debugfs does not count it either.
    e2fsck_clean(subject.path());
    assert_eq!(codes(&report(subject.path())), []);
    let fs = Fs::open(subject.path(), &MountOptions::new()).expect("it opens");
    fs.symlink("t".repeat(80), "/counted", &NewFile::default())
        .expect("room");
    fs.close().expect("a clean end");
    assert_eq!(codes(&report(subject.path())), []);
}

/// What it has is not free: nothing else is wrong.
#[test]
fn resize_inode_without_the_feature_is_told_alone() {
    let builder = Image::builder().size(24 << 20).block_size(1024);
    let image = builder.features("^metadata_csum,^flex_bg").build();
    let (status, text) = e2fsprogs("tune2fs", &["-f", "-O", "^resize_inode"], image.path());
    assert_eq!(status, 0, "{text}");
    debugfs(image.path(), &["ssv state 1"]);
    let found = report(image.path());
    let only = [Code::SuperblockField, Code::ResizeInode];
    assert_eq!(codes(&found), only, "{:#?}", found.findings);
    let (_, text) = e2fsck(image.path());
    assert!(
        text.contains("Resize_inode not enabled") && !text.contains("differences"),
        "{text}"
    );
}

#[test]
fn uuid_of_a_journal_without_a_journal_is_found() {
    let subject = of("^has_journal");
    let uuid = "ssv journal_uuid 11111111-2222-3333-4444-555555555555";
    debugfs(subject.path(), &[uuid]);
    one(&subject, "uuid", Code::FeatureConflict, Agrees);
}

#[test]
fn orphan_file_without_a_journal_is_found() {
    let subject = of("orphan_file");
    let (status, text) = e2fsprogs("tune2fs", &["-O", "^has_journal"], subject.path());
    assert_eq!(status, 0, "{text}");
    one(&subject, "orphan file", Code::FeatureConflict, Agrees);
}

#[test]
fn encoding_that_is_not_known_is_found() {
    let subject = of("casefold");
    assert_eq!(codes(&report(subject.path())), []);
    for encoding in [0, 2] {
        subject.debugfs(&format!("ssv encoding {encoding}"));
        one(&subject, "encoding", Code::SuperblockField, Agrees);
    }
}

#[test]
fn quota_file_in_an_ordinary_inode_is_found() {
    let subject = of("quota");
    let host = tempfile::NamedTempFile::new().expect("a temporary file");
    let host = host.path().display();
    debugfs(
        subject.path(),
        &[format!("dump <3> {host}"), format!("write {host} quota")],
    );
    let ino = subject.ino("quota").0;
    debugfs(subject.path(), &[format!("ssv usr_quota_inum {ino}")]);
    one(&subject, "quota", Code::QuotaInode, Agrees);
}

/// The superblock names them still, and nobody counts in them.
#[test]
fn quota_inodes_without_the_feature_are_told_if_they_hold_something() {
    let subject = of("quota,project");
    debugfs(subject.path(), &["feature ^quota"]);
    one(&subject, "quota left", Code::InodeField, Agrees);
    let found = report(subject.path());
    // What they have is not free: nothing else is wrong.
    let told = codes(&found);
    let told = told.iter().filter(|code| **code == Code::InodeField);
    assert_eq!(
        (told.count(), found.errors),
        (3, 3),
        "{:#?}",
        found.findings
    );
}

#[test]
fn unknown_compatible_features_are_named() {
    let subject = modern();
    let compat = subject.sb.features().compat.bits();
    let request = format!("ssv feature_compat {:#x}", compat | 1 << 17 | 1 << 6);
    subject.debugfs(&request);
    let found = report(subject.path());
    let is_told = |finding: &&Finding| finding.code == Code::FeatureUnknown;
    let finding = found.findings.iter().find(is_told).expect("a note");
    assert!(finding.text.ends_with(": lazy_bg FEATURE_C17"), "{finding}");
    assert_eq!(found.exit_status(), 0);
    // It does not go on.
    assert_eq!(e2fsck(subject.path()).0, 12);
}

#[test]
fn quota_that_counts_wrongly_is_found() {
    let subject = of("quota,project,ea_inode,^metadata_csum");
    let clean = report(subject.path());
    assert!(clean.is_clean(), "{:#?}", clean.findings);
    let intact = subject.image.copy();
    // Nobody counts for debugfs.
    for request in [
        "sif file uid 77",
        "sif dir/sub gid 100",
        "rm file",
        "mknod p2 p",
    ] {
        let victim = Subject {
            image: intact.copy(),
            sb: subject.sb.clone(),
        };
        victim.debugfs(request);
        one(&victim, request, Code::QuotaUsage, Agrees);
    }
    let root = subject.blocks("<4>")[1];
    let first = |block| get32(&subject.read(subject.at_block(block), 4), 0);
    let inner = subject.blocks("<4>")[first(root) as usize];
    // Ids of another range lead to pointers of the first one.
    let why = "it reads records once, whatever leads to them";
    for (name, to, oracle) in [
        ("same level", first(root), Silent(why)),
        ("next level", first(inner), Agrees),
    ] {
        let shared = Subject {
            image: intact.copy(),
            sb: subject.sb.clone(),
        };
        shared.edit_block(root, |bytes| put32(bytes, 4 * 5, to));
        one(&shared, name, Code::QuotaFile, oracle);
    }
    subject.edit_block(inner, |bytes| put32(bytes, 0, 1 << 30));
    one(&subject, "pointer", Code::QuotaFile, Agrees);
    let longer = Subject {
        image: intact,
        sb: subject.sb.clone(),
    };
    let head = longer.blocks("<4>")[0];
    longer.edit_block(head, |bytes| put32(bytes, 0x14, 263));
    one(&longer, "blocks of the file", Code::QuotaFile, Agrees);
}

#[test]
fn damage_to_cluster_alignment_is_found() {
    let builder = Image::builder().size(24 << 20);
    let subject = Subject::new(
        builder
            .features("bigalloc,^metadata_csum,^has_journal")
            .args(&["-N", "1024"]),
    );
    edit_root(&subject, "file", |root| root[20] += 1);
    one(&subject, "alignment", Code::ClusterAlignment, Agrees);
}

fn clustered() -> Subject {
    let builder = Image::builder().size(64 << 20).block_size(4096);
    let builder = builder.features("bigalloc,^metadata_csum,^has_journal");
    Subject::new(builder.args(&["-N", "1024", "-C", "16384"]))
}

#[test]
fn cluster_of_a_file_in_two_places_is_found() {
    let subject = clustered();
    edit_root(&subject, "file", |root| {
        assert_eq!((root[2], root[16]), (1, 25), "one extent");
        let start = get32(root, 20);
        (root[2], root[16]) = (2, 2);
        put32(root, 24, 2);
        put32(root, 28, 22);
        put32(root, 32, start + 2 + 4);
    });
    one(&subject, "two clusters", Code::ClusterAlignment, Agrees);
}

#[test]
fn map_of_pointers_with_clusters_is_found() {
    let subject = clustered();
    let place = subject.blocks("tiny")[0];
    subject.edit_inode(subject.ino("tiny"), |raw| {
        put32(raw, 0x20, 0);
        raw[0x28..0x64].fill(0);
        put32(raw, 0x28, place as u32);
    });
    one(&subject, "pointers", Code::InodeFlags, Agrees);
    let empty = clustered();
    empty.edit_inode(
        empty.ino("big/an-entry-with-a-name-of-some-length-0001"),
        |raw| {
            put32(raw, 0x20, 0);
            raw[0x28..0x64].fill(0);
        },
    );
    let found = report(empty.path());
    assert!(found.findings.is_empty(), "{:#?}", found.findings);
}

#[test]
fn block_count_of_the_resize_inode_with_clusters_is_found() {
    let subject = clustered();
    assert!(subject.sb.features().compat.contains(Compat::RESIZE_INODE));
    subject.debugfs("sif <7> blocks 2");
    one(&subject, "resize inode", Code::InodeBlocks, Agrees);
    // Several groups, some with copies of descriptors.
    let image = Image::builder().size(2 << 30).block_size(1024);
    let image = image
        .features("bigalloc")
        .args(&["-N", "4096", "-C", "16384"]);
    let found = report(image.build().path());
    assert!(found.is_clean(), "{:#?}", found.findings);
}

/// The context says how; debugfs has no name for the attribute, which is put in place of another.
#[test]
fn encryption_without_its_context_is_found() {
    let subject = of("encrypt");
    let encrypt = |subject: &Subject, path: &str| {
        subject.edit_inode(subject.ino(path), |raw| {
            put32(raw, 0x20, get32(raw, 0x20) | 0x800);
        });
    };
    for path in ["file", "dir", "fast", "slow", "pipe"] {
        let victim = Subject {
            image: subject.image.copy(),
            sb: subject.sb.clone(),
        };
        encrypt(&victim, path);
        one(&victim, path, Code::InodeFlags, Agrees);
    }
    for (version, len, code) in [
        (1, 28, None),
        (2, 40, None),
        (1, 40, Some(Code::XattrInvalid)),
        (2, 28, Some(Code::XattrInvalid)),
        (3, 28, None),
    ] {
        let victim = Subject {
            image: subject.image.copy(),
            sb: subject.sb.clone(),
        };
        let host = tempfile::NamedTempFile::new().expect("a file");
        let context: Vec<u8> = std::iter::once(version).chain(4..len + 3).collect();
        std::fs::write(host.path(), context).expect("a value");
        victim.debugfs(&format!("ea_set -f {} file user.c", host.path().display()));
        // The first entry in the inode.
        victim.edit_inode(victim.ino("file"), |raw| raw[128 + 32 + 4 + 1] = 9);
        encrypt(&victim, "file");
        let name = format!("version {version}, {len} bytes");
        match code {
            Some(code) => one(&victim, &name, code, Agrees),
            None => {
                let found = report(victim.path());
                assert!(found.is_clean(), "{name}: {:#?}", found.findings);
                let (status, text) = e2fsck(victim.path());
                assert_eq!(status, 0, "{name}: {text}");
            }
        }
    }
}

fn with_value_inode() -> (Subject, Ino) {
    let builder = Image::builder().size(24 << 20);
    let subject = Subject::new(builder.features("ea_inode,^metadata_csum"));
    let host = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(host.path(), vec![b'v'; 9000]).expect("a value");
    let request = format!("ea_set -f {} file user.huge", host.path().display());
    // debugfs does not count the value's block.
    debugfs(subject.path(), &[&request, "sif file blocks 208"]);
    let found = report(subject.path());
    assert!(found.is_clean(), "{:#?}", found.findings);
    let holders = (11..subject.sb.inodes_count()).map(Ino).find(|ino| {
        let raw = subject.read(subject.at_inode(*ino), 128);
        get32(&raw, 0x20) & 0x20_0000 != 0
    });
    (subject, holders.expect("an inode with a value"))
}

#[test]
fn damage_to_inode_of_a_value_is_found() {
    let (subject, ino) = with_value_inode();
    let intact = subject.read(subject.at_inode(ino), subject.sb.inode_size());
    subject.edit_inode(ino, |raw| put32(raw, 0x24, 7));
    one(&subject, "references", Code::EaInodeRefcount, Agrees);
    subject.write(subject.at_inode(ino), &intact);
    subject.edit_inode(ino, |raw| raw[0x1A] = 5);
    one(&subject, "links", Code::LinkCount, Agrees);
    subject.write(subject.at_inode(ino), &intact);
    let value = subject.blocks(&format!("<{ino}>"))[0];
    subject.flip(subject.at_block(value) + 17);
    one(
        &subject,
        "value",
        Code::EaInode,
        Silent("it does not read values"),
    );
    // No attribute leads to it, whatever it counts.
    subject.edit_inode(subject.ino("file"), |raw| {
        raw[0xA0..].fill(0);
        raw[0x1C] = 200;
    });
    for count in [1, 0] {
        subject.edit_inode(ino, |raw| put32(raw, 0x24, count));
        one(&subject, "no attribute", Code::InodeUnattached, Agrees);
        assert_eq!(codes(&report(subject.path())), [Code::InodeUnattached]);
    }
}

#[test]
fn device_that_holds_nothing_gives_a_finding_and_status_12() {
    let image = Image::blank(dioxide_testkit::Dir::Tmpfs, 8 << 20);
    let found = report(image.path());
    assert_eq!(codes(&found), [Code::SuperblockInvalid]);
    assert!(found.incomplete && found.usage.is_none());
    assert_eq!(found.exit_status(), 12);
}

#[test]
fn damage_is_told_with_its_place_and_path() {
    let subject = modern();
    subject.debugfs("sif dir/leaf links_count 5");
    let found = report(subject.path());
    let [finding] = &found.findings[..] else {
        panic!("{:#?}", found.findings)
    };
    assert_eq!(finding.place.ino, Some(subject.ino("dir/leaf")));
    assert_eq!(finding.place.path.as_deref(), Some("/dir/leaf"));
}

#[test]
fn superblock_of_a_backup_is_told_beside_what_is_wrong_with_the_first() {
    let subject = plain();
    subject.flip(SUPERBLOCK_OFFSET + 0x38);
    one(&subject, "magic number", Code::SuperblockInvalid, Agrees);
    let found = report(subject.path());
    let told = codes(&found);
    assert_eq!(
        told[..2],
        [Code::SuperblockInvalid, Code::SuperblockFromBackup],
        "{:#?}",
        found.findings
    );
    assert_eq!(found.exit_status(), 4);
    // Asked for, it is nothing to tell.
    let options = CheckOptions {
        superblock_at: Some(8193),
        ..CheckOptions::default()
    };
    let asked = check_path(subject.path(), &options, &mut |_| {}).expect("a check");
    assert!(!codes(&asked).contains(&Code::SuperblockFromBackup));
}

#[test]
fn journal_elsewhere_that_is_not_given_is_told() {
    let subject = of("^has_journal");
    let place = [
        "feature has_journal",
        "ssv journal_inum 0",
        "ssv journal_dev 0x801",
        "ssv journal_uuid 11111111-1111-1111-1111-111111111111",
    ];
    debugfs(subject.path(), &place);
    one(&subject, "elsewhere", Code::JournalNotChecked, Agrees);
    // Backups of before are notes too.
    let found = report(subject.path());
    assert_eq!((found.errors, found.exit_status()), (0, 0), "{found:#?}");
}

#[test]
fn mmp_of_file_system_in_use_is_told() {
    let subject = of("mmp,^metadata_csum");
    let block = subject.sb.mmp_block().unwrap().expect("a block").0;
    subject.edit_block(block, |bytes| put32(bytes, 4, 1234));
    let why = "with -n it does not look at it";
    one(&subject, "in use", Code::MmpInUse, Silent(why));
}

/// Nothing is read in a hole, however large.
#[test]
fn hole_of_a_directory_is_told_once() {
    let subject = unsummed();
    subject.edit_inode(subject.ino("dir/sub"), |raw| {
        put32(raw, 4, 2_000_001 << 10);
        // The extent's first block.
        put32(raw, 0x28 + 12, 2_000_000);
    });
    let found = report(subject.path());
    assert!(!codes(&found).contains(&Code::NotChecked), "{found:#?}");
    let holes = found.findings.iter().filter(|f| f.code == Code::DirHole);
    let holes: Vec<_> = holes.map(|hole| (hole.place.ino, &hole.text[..])).collect();
    let text = "blocks 0 to 1999999 of the directory are a hole";
    assert_eq!(holes, [(Some(subject.ino("dir/sub")), text)]);
    // e2fsck asks about each block of the hole, for minutes.
    assert_eq!(found.exit_status(), 4);
}

/// One node can lead to the same blocks so often that they would be read for hours.
#[test]
fn directory_with_too_much_to_read_is_left_out() {
    let subject = unsummed();
    let (at, long, extents) = (5000, 16384, 80);
    subject.edit_block(20_000, |block| {
        block.fill(0);
        put32(block, 0, extents << 16 | u32::from(extent::MAGIC));
        put32(block, 4, 84);
        for index in 0..extents {
            let words = [index * long, long, at];
            for (word, at) in words
                .into_iter()
                .zip((12 + 12 * index as usize..).step_by(4))
            {
                put32(block, at, word);
            }
        }
    });
    subject.edit_inode(subject.ino("dir/sub"), |raw| {
        put32(raw, 4, (extents * long) << 10);
        put32(raw, 0x28 + 4, 1 << 16 | 4);
        put32(raw, 0x28 + 12, 0);
        put32(raw, 0x28 + 16, 20_000);
        put32(raw, 0x28 + 20, 0);
    });
    let found = report(subject.path());
    let told = found.findings.iter();
    let told = told.filter(|f| f.code == Code::NotChecked && f.place.ino.is_some());
    let places: Vec<_> = told.map(|finding| finding.place.ino).collect();
    assert_eq!(places, [Some(subject.ino("dir/sub"))], "{found:#?}");
    assert_eq!(found.exit_status(), 4, "what is wrong with its map");
}

/// Linux gives a directory link count 1 when it has too many subdirectories, and leaves it at that.
#[test]
fn link_count_1_of_a_directory_with_an_index_is_no_error() {
    let subject = modern();
    subject.debugfs("sif big links_count 1");
    let why = "it allows that too";
    one(&subject, "link count 1", Code::LinkCountOnce, Silent(why));
    subject.debugfs("rmdir big/sub");
    one(&subject, "emptied", Code::LinkCountOnce, Silent(why));
    let without = of("^dir_nlink");
    without.debugfs("sif big links_count 1");
    let why = "it does not ask for the feature";
    one(&without, "without dir_nlink", Code::LinkCount, Silent(why));
}

#[test]
fn blocks_that_cannot_be_read_are_errors_and_the_check_is_incomplete() {
    let subject = modern();
    shape::fragmented(&subject.image, "pieces", 40, 3);
    let desc = subject.desc(0);
    for (what, block) in [
        ("descriptors", subject.sb.descriptor_block(0).0),
        ("inode table", desc.inode_table().0),
        ("block bitmap", desc.block_bitmap().0),
        ("inode bitmap", desc.inode_bitmap().0),
        ("node of a map", node_of(&subject, "pieces")),
        ("directory", subject.blocks("dir")[0]),
        ("attributes", xattr_block(&subject)),
    ] {
        let device = file::open(subject.path(), &FileOptions::default()).expect("the image");
        let sim = SimDevice::new(device, SimSpec::default());
        let start = subject.at_block(block);
        sim.inject(Fault {
            range: Some(start..start + 1),
            ..Fault::every(FaultOp::Read, FaultKind::Io(libc::EIO))
        });
        let found = check(Arc::new(sim), &CheckOptions::default(), &mut |_| {});
        let found = found.expect("a report");
        let mut unread = found.findings.iter();
        let unread = unread.find(|finding| finding.code == Code::ReadError);
        let place = unread.and_then(|finding| finding.place.block);
        // Of a table many blocks are read at once.
        assert_eq!(
            place.map(|place| place.0),
            Some(block),
            "{what}: {found:#?}"
        );
        assert!(found.incomplete && !found.is_clean(), "{what}");
        assert_eq!(found.exit_status(), 12, "{what}");
    }
}

/// Where codes that no table has are shown: by the tests above, or on a mounted image.
const SHOWN_BY_TESTS: &[(Code, &str)] = &[
    (
        Code::SuperblockFromBackup,
        "superblock_of_a_backup_is_told_…",
    ),
    (
        Code::FeatureUnknown,
        "unknown_compatible_features_are_named",
    ),
    (
        Code::DescriptorFlags,
        "flags_of_groups_without_their_feature_…",
    ),
    (Code::ReadError, "blocks_that_cannot_be_read_…"),
    (Code::JournalRecovering, "tests/cli/check.rs of the command"),
    (
        Code::JournalNotChecked,
        "journal_elsewhere_that_is_not_given_…",
    ),
    (Code::MmpInvalid, "damage_to_mmp_block_is_found"),
    (Code::MmpInUse, "mmp_of_file_system_in_use_is_told"),
    (Code::OrphanFile, "damage_to_orphan_file_is_found"),
    (Code::NotChecked, "directory_with_too_much_to_read_…"),
    (Code::QuotaInode, "quota_inode_that_is_a_directory_is_found"),
    (
        Code::ClusterAlignment,
        "damage_to_cluster_alignment_is_found",
    ),
    (Code::EaInode, "damage_to_inode_of_a_value_is_found"),
    (Code::InlineData, "damage_to_inline_data_is_found"),
    (Code::LinkCountOnce, "link_count_1_of_a_directory_…"),
    (Code::EaInodeRefcount, "damage_to_inode_of_a_value_is_found"),
    (Code::QuotaFile, "quota_that_counts_wrongly_is_found"),
    (Code::QuotaUsage, "quota_that_counts_wrongly_is_found"),
];

#[test]
fn each_code_is_shown_in_one_place() {
    let cases = [BY_DEBUGFS, CHECKSUMS, PLAIN, EXTENTS].concat();
    for code in Code::ALL {
        let in_tables = cases.iter().any(|(_, shown, ..)| shown == code);
        let by_test = SHOWN_BY_TESTS.iter().any(|(shown, _)| shown == code);
        assert!(in_tables != by_test, "{code}: {in_tables}, {by_test}");
    }
}
