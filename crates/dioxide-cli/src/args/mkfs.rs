//! `dioxide mkfs`: mke2fs's letters.

use super::size::parse_size;
use clap::Args;
use dioxide::mkfs::{FsType, parse_uuid};
use std::path::PathBuf;

/// What a new file system is like, for all commands that make one.
#[derive(Args, Debug)]
#[command(next_help_heading = "File system")]
pub struct FsArgs {
    /// Type of the file system
    #[arg(short = 't', long = "type", value_name = "TYPE", default_value = "ext4", value_parser = ["ext2", "ext3", "ext4"])]
    pub fs_type: String,
    /// Bytes per block: 1k to 64k; 1k below 512 MiB if not given, else 4k, and no less than a sector of the device
    #[arg(short = 'b', long, value_name = "BYTES", value_parser = parse_u32)]
    pub block_size: Option<u32>,
    /// Bytes per cluster, with bigalloc: up to 512M and to 32768 blocks; 16 blocks if not given
    #[arg(short = 'C', long, value_name = "BYTES", value_parser = parse_u32)]
    pub cluster_size: Option<u32>,
    /// Make an inode for each so many bytes
    #[arg(short = 'i', long, value_name = "BYTES", value_parser = parse_size)]
    pub bytes_per_inode: Option<u64>,
    /// Bytes per inode on the disk
    #[arg(short = 'I', long, value_name = "BYTES", value_parser = parse_u32)]
    pub inode_size: Option<u32>,
    /// How many inodes there are, rounded to what each group can have alike
    #[arg(short = 'N', long, value_name = "COUNT")]
    pub inodes: Option<u32>,
    /// Which part of the blocks is kept for the super user
    #[arg(short = 'm', long, value_name = "PERCENT")]
    pub reserved_percent: Option<f64>,
    /// Groups that keep their metadata together, with flex_bg
    #[arg(short = 'G', long, value_name = "COUNT")]
    pub flex_groups: Option<u32>,
    /// Label, up to 16 bytes
    #[arg(short = 'L', long, value_name = "LABEL")]
    pub label: Option<String>,
    /// Uuid, or `clear`, or `random`, or `time`: one made of the time
    #[arg(short = 'U', long, value_name = "UUID", value_parser = uuid_word)]
    pub uuid: Option<Uuid>,
    /// Features to set, or with ^ to clear
    #[arg(short = 'O', long = "features", value_name = "LIST")]
    pub features: Vec<String>,
    /// Extended options
    #[arg(short = 'E', long = "extended", value_name = "LIST")]
    pub extended: Vec<String>,
    /// Options of the journal: size=MiB, fast_commit_size=KiB, location=BLOCK
    #[arg(short = 'J', long = "journal-options", value_name = "LIST")]
    pub journal: Vec<String>,
    /// Seed of directory hashes, as a uuid, or `clear`, or `random`, or `time`
    #[arg(long, value_name = "UUID", value_parser = uuid_word)]
    pub hash_seed: Option<Uuid>,
    /// Time that the file system carries, in seconds since 1970
    #[arg(long, value_name = "SECS", allow_negative_numbers = true)]
    pub epoch: Option<i64>,
}

/// Makes an ext2, ext3 or ext4 file system
#[derive(Args, Debug)]
#[command(after_help = "\
The options are those of mke2fs, and so is the layout. A SIZE without a suffix counts blocks: of
-b, or else of 1 KiB. With one it counts as elsewhere, and 's' means sectors of 512 bytes. Without
SIZE the file system is as large as the image or device is. An image that is not there is made,
sparse; one that is too small grows.

What holds something already is not overwritten: on a terminal you are asked, elsewhere -F is
needed. What is mounted, attached to a loop device or locked (by fcntl) is never touched.

Uuid, hash seed and time are random and now if not given. With --uuid, --hash-seed and --epoch (or SOURCE_DATE_EPOCH in the environment) the same options
give the same bytes on every run and machine.

Features: has_journal ext_attr resize_inode dir_index orphan_file fast_commit sparse_super2
filetype meta_bg extent 64bit mmp flex_bg ea_inode metadata_csum_seed large_dir inline_data
sparse_super large_file huge_file uninit_bg dir_nlink extra_isize quota bigalloc metadata_csum
project; and of files that only Linux makes: encrypt verity stable_inodes.

Extended options: stride, stripe_width, resize, lazy_itable_init, lazy_journal_init, root_owner,
num_backup_sb, packed_meta_blocks, discard, nodiscard, assume_storage_prezeroed, offset,
mmp_update_interval, orphan_file_size, quotatype, hash_seed.

What needs a feature is refused without it, also where mke2fs takes it and does nothing. 0 is the
default of -J size, -J fast_commit_size and -E mmp_update_interval.

Examples:
  dioxide mkfs disk.img 1G
  dioxide mkfs -t ext3 -b 4096 -L data -m 0 disk.img 20G
  dioxide mkfs -O ^has_journal,bigalloc -C 64k -n disk.img 1T
  dioxide mkfs -U clear --hash-seed clear --epoch 0 root.img 64M")]
pub struct MkfsArgs {
    /// Image file or block device
    #[arg(value_name = "IMG")]
    pub image: PathBuf,
    /// Size of the file system
    #[arg(value_name = "SIZE", value_parser = parse_fs_size)]
    pub size: Option<FsSize>,
    #[command(flatten)]
    pub fs: FsArgs,
    /// Overwrite what the image or device holds
    #[arg(short = 'F', long)]
    pub force: bool,
    /// Show what would be made, and make nothing
    #[arg(short = 'n', long)]
    pub dry_run: bool,
    /// Print nothing but warnings
    #[arg(short = 'q', long)]
    pub quiet: bool,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

impl FsArgs {
    /// The type, which was checked when it was parsed.
    pub fn fs_type(&self) -> FsType {
        self.fs_type.parse().unwrap_or_default()
    }
}

impl MkfsArgs {
    /// The size in bytes.
    pub fn size_bytes(&self) -> Option<u64> {
        let block = u64::from(self.fs.block_size.unwrap_or(1024));
        self.size.map(|size| match size {
            FsSize::Bytes(bytes) => bytes,
            FsSize::Blocks(blocks) => blocks.saturating_mul(block),
        })
    }
}

/// A size whose unit may be a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FsSize {
    Blocks(u64),
    Bytes(u64),
}

/// A uuid, or how to make one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Uuid {
    Known([u8; 16]),
    Random,
    Time,
}

/// The time that the environment asks for. An empty word asks for none, as the specification of reproducible builds has it.
pub fn source_date_epoch() -> dioxide::Result<Option<i64>> {
    const NAME: &str = "SOURCE_DATE_EPOCH";
    let word = std::env::var(NAME).unwrap_or_default();
    if word.is_empty() {
        return Ok(None);
    }
    let wrong = |_| dioxide::Error::Invalid(format!("{NAME}: '{word}' is not a number of seconds"));
    word.parse().map(Some).map_err(wrong)
}

fn uuid_word(word: &str) -> Result<Uuid, String> {
    match word {
        "random" => Ok(Uuid::Random),
        "time" => Ok(Uuid::Time),
        "clear" => Ok(Uuid::Known([0; 16])),
        _ => parse_uuid(word)
            .map(Uuid::Known)
            .map_err(|_| format!("'{word}' is no uuid; there are random, time and clear too")),
    }
}

fn parse_fs_size(word: &str) -> Result<FsSize, String> {
    const SECTOR: u64 = 512;
    if let Ok(blocks) = word.parse() {
        return Ok(FsSize::Blocks(blocks));
    }
    if let Some(Ok(sectors)) = word.strip_suffix('s').map(str::parse::<u64>) {
        let bytes = sectors.checked_mul(SECTOR);
        return bytes
            .map(FsSize::Bytes)
            .ok_or_else(|| format!("'{word}' is more than 2^64 bytes"));
    }
    parse_size(word).map(FsSize::Bytes)
}

fn parse_u32(word: &str) -> Result<u32, String> {
    let bytes = parse_size(word)?;
    u32::try_from(bytes).map_err(|_| format!("'{word}' is too much"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fs_size_counts_blocks_only_without_suffix() {
        assert_eq!(parse_fs_size("1000"), Ok(FsSize::Blocks(1000)));
        assert_eq!(parse_fs_size("1000s"), Ok(FsSize::Bytes(512_000)));
        assert_eq!(parse_fs_size("1k"), Ok(FsSize::Bytes(1024)));
        assert_eq!(parse_fs_size("2T"), Ok(FsSize::Bytes(2 << 40)));
        assert!(parse_fs_size("1q").is_err() && parse_fs_size("").is_err());
    }
}
