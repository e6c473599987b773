//! What a check finds: stable codes, and where.
//!
//! Codes are part of the interface: a script that knows one must know it in the next version too. Texts
//! are for people and may change.

use dioxide_format::types::{Group, Ino, Pblk};
use serde::ser::{Serialize, SerializeStruct, Serializer};
use std::fmt;

/// The part of a check that a finding belongs to, by the names that `e2fsck` gives them. Its pass 3A
/// (optimising directories) changes things only, so nothing is found in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Pass {
    /// Superblock, group descriptors, and what they lead to.
    Pass0,
    /// Inodes, blocks and sizes.
    Pass1,
    /// Blocks with several owners.
    Pass1B,
    /// Directory structure.
    Pass2,
    /// Directory connectivity.
    Pass3,
    /// Reference counts.
    Pass4,
    /// Group summary information.
    Pass5,
}

impl Pass {
    /// The short name: `0`, `1`, `1B`, `2`, ….
    pub const fn id(self) -> &'static str {
        match self {
            Pass::Pass0 => "0",
            Pass::Pass1 => "1",
            Pass::Pass1B => "1B",
            Pass::Pass2 => "2",
            Pass::Pass3 => "3",
            Pass::Pass4 => "4",
            Pass::Pass5 => "5",
        }
    }
}

impl fmt::Display for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Pass::Pass0 => "Pass 0: superblock and group descriptors",
            Pass::Pass1 => "Pass 1: inodes, blocks, and sizes",
            Pass::Pass1B => "Pass 1B: blocks with several owners",
            Pass::Pass2 => "Pass 2: directory structure",
            Pass::Pass3 => "Pass 3: directory connectivity",
            Pass::Pass4 => "Pass 4: reference counts",
            Pass::Pass5 => "Pass 5: group summary information",
        })
    }
}

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Worth knowing; nothing is wrong.
    Note,
    /// The file system contradicts itself or the format.
    Error,
}

impl Severity {
    /// `note` or `error`.
    pub const fn id(self) -> &'static str {
        match self {
            Severity::Note => "note",
            Severity::Error => "error",
        }
    }
}

macro_rules! codes {
    ($( $name:ident $id:literal $pass:ident $severity:ident $about:literal, )*) => {
        /// What is wrong. The names in [`Code::id`] are stable.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Code {
            $( #[doc = $about] $name, )*
        }

        impl Code {
            /// All of them, by pass.
            pub const ALL: &[Code] = &[ $( Code::$name, )* ];

            /// The stable name.
            pub const fn id(self) -> &'static str {
                match self { $( Code::$name => $id, )* }
            }

            /// The pass that finds it.
            pub const fn pass(self) -> Pass {
                match self { $( Code::$name => Pass::$pass, )* }
            }

            /// How much it matters.
            pub const fn severity(self) -> Severity {
                match self { $( Code::$name => Severity::$severity, )* }
            }

            /// What it means, in a few words.
            pub const fn about(self) -> &'static str {
                match self { $( Code::$name => $about, )* }
            }
        }
    };
}

codes! {
    SuperblockInvalid "superblock-invalid" Pass0 Error "The superblock is not one, or describes no file system.",
    SuperblockChecksum "superblock-checksum" Pass0 Error "The superblock does not match its checksum.",
    SuperblockField "superblock-field" Pass0 Error "A field of the superblock is wrong, though the geometry is not.",
    SuperblockFromBackup "superblock-from-backup" Pass0 Note "A backup of the superblock is used.",
    BackupInvalid "backup-invalid" Pass0 Error "A backup of the superblock is damaged.",
    BackupStale "backup-stale" Pass0 Note "A backup of the superblock or descriptors differs from the primary.",
    DeviceTooSmall "device-too-small" Pass0 Error "The device ends before the file system does.",
    FeatureConflict "feature-conflict" Pass0 Error "Features contradict each other.",
    FeatureUnknown "feature-unknown" Pass0 Note "Compatible features are set that are not known; a mount ignores them.",
    StateError "state-error" Pass0 Note "The superblock says that errors were found.",
    StateNotClean "state-not-clean" Pass0 Note "The file system was not unmounted cleanly.",
    DescriptorChecksum "descriptor-checksum" Pass0 Error "A group descriptor does not match its checksum.",
    DescriptorInvalid "descriptor-invalid" Pass0 Error "A group descriptor points outside the file system or counts too many.",
    DescriptorFlags "descriptor-flags" Pass0 Note "A group descriptor has flags or a count for which the feature is off; they count for nothing.",
    MetadataConflict "metadata-conflict" Pass0 Error "Fixed metadata of two kinds or groups overlaps.",
    ReadError "read-error" Pass0 Error "Blocks cannot be read.",
    JournalInvalid "journal-invalid" Pass0 Error "The journal's inode or superblock is damaged.",
    JournalAborted "journal-aborted" Pass0 Note "The journal was aborted by an error.",
    JournalRecovering "journal-recovering" Pass0 Note "The journal needs recovery; the file system was checked as it is after it.",
    JournalDamaged "journal-damaged" Pass0 Error "The journal needs recovery and cannot be replayed.",
    JournalNotChecked "journal-not-checked" Pass0 Note "The journal lies on another device.",
    ResizeInode "resize-inode" Pass0 Error "The resize inode is not as the layout wants it.",
    MmpInvalid "mmp-invalid" Pass0 Error "The block of multi-mount protection is damaged.",
    MmpInUse "mmp-in-use" Pass0 Note "Another host may be using the file system.",
    OrphanList "orphan-list" Pass0 Error "The list of orphans is damaged.",
    OrphanFile "orphan-file" Pass0 Error "The orphan file is damaged.",
    OrphansPending "orphans-pending" Pass0 Note "Deleted files wait to be freed; the next mount does it.",
    NotChecked "not-checked" Pass0 Note "Something is of a kind that is not checked.",

    InodeChecksum "inode-checksum" Pass1 Error "An inode does not match its checksum.",
    InodeMode "inode-mode" Pass1 Error "An inode is of no type, or not of the type that it must be.",
    InodeField "inode-field" Pass1 Error "A field of an inode holds what the format does not allow.",
    InodeFlags "inode-flags" Pass1 Error "Flags of an inode contradict each other, its type or the features.",
    InodeExtraSize "inode-extra-size" Pass1 Error "i_extra_isize is out of range.",
    InodeTime "inode-time" Pass1 Note "A time is of 2310 or later; an old kernel may have meant one before 1970.",
    InodeDtime "inode-dtime" Pass1 Error "The deletion time contradicts the link count.",
    InodeSize "inode-size" Pass1 Error "The size does not fit the blocks.",
    InodeBlocks "inode-blocks" Pass1 Error "i_blocks is not what the inode uses.",
    SpecialInode "special-inode" Pass1 Error "A device, FIFO or socket holds what it cannot have.",
    SymlinkInvalid "symlink-invalid" Pass1 Error "The target of a symbolic link is damaged.",
    RootMissing "root-missing" Pass1 Error "The root is no directory.",
    QuotaInode "quota-inode" Pass1 Error "A quota inode is missing, no regular file, or one that can hold no quota.",
    ExtentHeader "extent-header" Pass1 Error "The head of an extent node is damaged.",
    ExtentOrder "extent-order" Pass1 Error "Extents are out of order or outside what the parent gives them.",
    ExtentRange "extent-range" Pass1 Error "An extent leads outside the file system.",
    ExtentChecksum "extent-checksum" Pass1 Error "An extent node does not match its checksum.",
    ExtentIndexStart "extent-index-start" Pass1 Error "An index entry does not begin where its child does.",
    BlockRange "block-range" Pass1 Error "A block pointer leads outside the file system.",
    BlockLoop "block-loop" Pass1 Error "A map leads to one of its own blocks twice.",
    ClusterAlignment "cluster-alignment" Pass1 Error "A block does not lie at its place in its cluster.",
    MetadataClaimed "metadata-claimed" Pass1 Error "An inode claims blocks of fixed metadata.",
    XattrInvalid "xattr-invalid" Pass1 Error "Extended attributes are damaged.",
    XattrHash "xattr-hash" Pass1 Error "An extended attribute does not match its hash.",
    XattrChecksum "xattr-checksum" Pass1 Error "A block of extended attributes does not match its checksum.",
    XattrRefcount "xattr-refcount" Pass1 Error "A block of extended attributes counts its inodes wrongly.",
    EaInode "ea-inode" Pass1 Error "The inode of an attribute's value is not what it must be.",
    InlineData "inline-data" Pass1 Error "Data in an inode is damaged or does not fit its size.",

    MultiplyClaimed "multiply-claimed" Pass1B Error "Blocks have several owners.",

    DirChecksum "dir-checksum" Pass2 Error "A directory block does not match its checksum.",
    DirBlock "dir-block" Pass2 Error "The entries of a directory block are damaged.",
    DirHole "dir-hole" Pass2 Error "A directory has a hole, or a block that is unwritten.",
    DirDot "dir-dot" Pass2 Error "`.` or `..` is missing or wrong.",
    EntryName "entry-name" Pass2 Error "A directory entry has an impossible name.",
    EntryInode "entry-inode" Pass2 Error "A directory entry names an inode that it cannot.",
    EntryUnused "entry-unused" Pass2 Error "A directory entry names an inode that is not in use.",
    EntryType "entry-type" Pass2 Error "A directory entry has not the type of its inode.",
    EntryDuplicate "entry-duplicate" Pass2 Error "A directory has a name twice.",
    EntryDirLink "entry-dir-link" Pass2 Error "A directory has two names.",
    HtreeRoot "htree-root" Pass2 Error "The root of a directory's index is damaged.",
    HtreeNode "htree-node" Pass2 Error "A node of a directory's index is damaged.",
    HtreeReference "htree-reference" Pass2 Error "A block of an indexed directory is not referenced exactly once.",
    HtreeHash "htree-hash" Pass2 Error "A name lies in a block that its hash does not lead to.",

    DirParent "dir-parent" Pass3 Error "`..` is not the directory that holds the name.",
    DirUnconnected "dir-unconnected" Pass3 Error "A directory cannot be reached from the root.",
    DirLoop "dir-loop" Pass3 Error "A directory is its own ancestor.",

    LinkCount "link-count" Pass4 Error "The link count is not the number of names.",
    LinkCountOnce "link-count-once" Pass4 Note "A directory that once had too many subdirectories has link count 1.",
    InodeUnattached "inode-unattached" Pass4 Error "An inode has no name.",
    EaInodeRefcount "ea-inode-refcount" Pass4 Error "The inode of an attribute's value counts its references wrongly.",

    BlockBitmap "block-bitmap" Pass5 Error "The block bitmap is not what is used.",
    BlockBitmapChecksum "block-bitmap-checksum" Pass5 Error "A block bitmap does not match its checksum.",
    BlockBitmapPadding "block-bitmap-padding" Pass5 Error "The end of a block bitmap is not filled.",
    InodeBitmap "inode-bitmap" Pass5 Error "The inode bitmap is not what is used.",
    InodeBitmapChecksum "inode-bitmap-checksum" Pass5 Error "An inode bitmap does not match its checksum.",
    InodeBitmapPadding "inode-bitmap-padding" Pass5 Error "The end of an inode bitmap is not filled.",
    GroupUninit "group-uninit" Pass5 Error "A group that says it was never used is in use.",
    GroupFreeBlocks "group-free-blocks" Pass5 Error "A group counts its free blocks wrongly.",
    GroupFreeInodes "group-free-inodes" Pass5 Error "A group counts its free inodes wrongly.",
    GroupDirs "group-dirs" Pass5 Error "A group counts its directories wrongly.",
    TotalFreeBlocks "total-free-blocks" Pass5 Note "The superblock counts free blocks wrongly; every mount counts them again.",
    TotalFreeInodes "total-free-inodes" Pass5 Note "The superblock counts free inodes wrongly; every mount counts them again.",
    QuotaFile "quota-file" Pass5 Error "A quota file is damaged.",
    QuotaUsage "quota-usage" Pass5 Error "A quota file counts what somebody uses wrongly.",
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.id())
    }
}

/// Where something was found. What is not known or makes no sense is left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct At {
    /// Inode that owns it.
    pub ino: Option<Ino>,
    /// File-system block.
    pub block: Option<Pblk>,
    /// Block group.
    pub group: Option<Group>,
    /// Byte inside the block, or the device.
    pub offset: Option<u64>,
    /// A path to the inode, where it has one. Bytes that are not UTF-8 are replaced.
    pub path: Option<String>,
}

impl At {
    /// Known by its inode.
    pub(super) fn ino(ino: Ino) -> At {
        At {
            ino: Some(ino),
            ..At::default()
        }
    }

    /// Known by its group.
    pub(super) fn group(group: Group) -> At {
        At {
            group: Some(group),
            ..At::default()
        }
    }

    /// Known by its block.
    pub(super) fn block(block: u64) -> At {
        At::default().in_block(block)
    }

    /// The same in a block.
    pub(super) fn in_block(self, block: u64) -> At {
        At {
            block: Some(Pblk(block)),
            ..self
        }
    }

    /// The same at a byte.
    pub(super) fn offset(self, offset: u64) -> At {
        At {
            offset: Some(offset),
            ..self
        }
    }
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers = [
            ("inode", self.ino.map(|ino| u64::from(ino.0))),
            ("group", self.group.map(|group| u64::from(group.0))),
            ("block", self.block.map(Pblk::get)),
            ("offset", self.offset),
        ];
        let mut separator = "";
        for (name, number) in numbers {
            if let Some(number) = number {
                write!(f, "{separator}{name} {number}")?;
                separator = ", ";
            }
        }
        match &self.path {
            Some(path) => write!(f, " ({path})"),
            None => Ok(()),
        }
    }
}

impl Serialize for At {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_struct("At", 5)?;
        map.serialize_field("ino", &self.ino.map(Ino::get))?;
        map.serialize_field("block", &self.block.map(Pblk::get))?;
        map.serialize_field("group", &self.group.map(Group::get))?;
        map.serialize_field("path", &self.path)?;
        map.serialize_field("offset", &self.offset)?;
        map.end()
    }
}

/// One thing that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What.
    pub code: Code,
    /// In words, without the place.
    pub text: String,
    /// Where.
    pub place: At,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = self.place.to_string();
        match place.is_empty() {
            true => write!(f, "{} [{}]", self.text, self.code),
            false => write!(f, "{}: {} [{}]", place.trim_start(), self.text, self.code),
        }
    }
}

impl Serialize for Finding {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_struct("Finding", 5)?;
        map.serialize_field("code", self.code.id())?;
        map.serialize_field("pass", self.code.pass().id())?;
        map.serialize_field("severity", self.code.severity().id())?;
        map.serialize_field("text", &self.text)?;
        map.serialize_field("place", &self.place)?;
        map.end()
    }
}

/// Findings as they come in: the first so many are kept, all are counted.
#[derive(Debug)]
pub(super) struct Findings {
    kept: Vec<Finding>,
    most: usize,
    errors: u64,
    notes: u64,
}

impl Findings {
    pub(super) fn new(most: usize) -> Findings {
        Findings {
            kept: Vec::new(),
            most,
            errors: 0,
            notes: 0,
        }
    }

    pub(super) fn add(&mut self, code: Code, place: At, text: impl Into<String>) {
        match code.severity() {
            Severity::Error => self.errors += 1,
            Severity::Note => self.notes += 1,
        }
        if self.kept.len() < self.most {
            self.kept.push(Finding {
                code,
                text: text.into(),
                place,
            });
        }
    }

    pub(super) fn kept_mut(&mut self) -> &mut [Finding] {
        &mut self.kept
    }

    /// The findings, and how many errors and notes there were.
    pub(super) fn into_parts(self) -> (Vec<Finding>, u64, u64) {
        (self.kept, self.errors, self.notes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn codes_have_names_of_their_own_in_kebab_case() {
        let ids: HashSet<_> = Code::ALL.iter().map(|code| code.id()).collect();
        assert_eq!(ids.len(), Code::ALL.len());
        let plain = |id: &&str| id.bytes().all(|b| b.is_ascii_lowercase() || b == b'-');
        assert!(ids.iter().all(plain));
    }

    #[test]
    fn findings_past_the_limit_are_counted_and_not_kept() {
        let mut findings = Findings::new(1);
        for _ in 0..3 {
            findings.add(Code::InodeMode, At::default(), "x");
        }
        findings.add(Code::StateError, At::default(), "y");
        let (kept, errors, notes) = findings.into_parts();
        assert_eq!((kept.len(), errors, notes), (1, 3, 1));
    }
}
