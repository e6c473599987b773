//! What can be asked for, in Rust and in the words of `-O`, `-E` and `-J`.
//!
//! Rejected: one method for each extended option. Their names and forms are what people know; a
//! second vocabulary would have to be learnt and kept in step.

use super::plan::Plan;
use super::profile::FsType;
use crate::{Error, Result, known};
use dioxide_format::features::{Compat, Features, Incompat, RoCompat};

/// What may be set or cleared of these, and of the others what is known; everything else is refused by name.
const COMPAT: Compat = Compat::HAS_JOURNAL
    .union(Compat::EXT_ATTR)
    .union(Compat::RESIZE_INODE)
    .union(Compat::DIR_INDEX)
    .union(Compat::SPARSE_SUPER2)
    .union(Compat::FAST_COMMIT)
    .union(Compat::STABLE_INODES)
    .union(Compat::ORPHAN_FILE);
/// Of an empty file system, the features of single files say no more than that there may be such.
const INCOMPAT: Incompat = known::INCOMPAT.union(Incompat::ENCRYPT);
const RO_COMPAT: RoCompat = known::RO_COMPAT.union(RoCompat::VERITY);

/// What file system to make. Each method takes and gives the builder; what is not asked for is
/// chosen as `mke2fs` chooses it.
#[derive(Clone, Debug, Default)]
pub struct Mkfs {
    pub(super) fs_type: FsType,
    pub(super) block_size: Option<u32>,
    pub(super) cluster_size: Option<u32>,
    pub(super) bytes_per_inode: Option<u64>,
    pub(super) inode_size: Option<u32>,
    pub(super) inodes: Option<u32>,
    pub(super) reserved_percent: Option<f64>,
    pub(super) flex_groups: Option<u32>,
    pub(super) label: Vec<u8>,
    pub(super) uuid: Option<[u8; 16]>,
    pub(super) hash_seed: Option<[u8; 16]>,
    pub(super) epoch: Option<i64>,
    pub(super) feature_words: Vec<String>,
    pub(super) force: bool,
    pub(super) extended: Extended,
    pub(super) journal: Journal,
}

/// Extended options.
#[derive(Clone, Debug, Default)]
pub(super) struct Extended {
    pub stride: u16,
    pub stripe_width: u32,
    pub resize_bytes: Option<Amount>,
    pub full_itable: bool,
    pub lazy_journal: bool,
    pub root_owner: (u32, u32),
    pub backups: Option<u8>,
    pub packed: bool,
    pub no_discard: bool,
    pub prezeroed: bool,
    pub offset: u64,
    pub mmp_interval: Option<u16>,
    pub orphan_file_bytes: Option<Amount>,
    pub quota_types: Option<[bool; 3]>,
}

/// Options of the journal.
#[derive(Clone, Debug, Default)]
pub(super) struct Journal {
    pub mib: Option<u32>,
    pub fast_commit_kib: Option<u32>,
    pub location: Option<Amount>,
}

impl Journal {
    /// Whether more is asked of it than a size.
    pub fn is_shaped(&self) -> bool {
        self.fast_commit_kib.is_some() || self.location.is_some()
    }
}

/// So many bytes, or so many blocks of a size that is not known yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Amount {
    Bytes(u64),
    Blocks(u64),
}

impl Amount {
    pub fn in_blocks(self, block_size: u32) -> u64 {
        match self {
            Amount::Bytes(bytes) => bytes / u64::from(block_size),
            Amount::Blocks(blocks) => blocks,
        }
    }
}

fn invalid(what: impl Into<String>) -> Error {
    Error::Invalid(what.into())
}

fn within<T: PartialOrd + std::fmt::Display>(what: &str, value: T, least: T, most: T) -> Result<T> {
    if value >= least && value <= most {
        return Ok(value);
    }
    Err(invalid(format!(
        "{what} {value} is not from {least} to {most}"
    )))
}

fn power_of_two(what: &str, value: u32, least: u32, most: u32) -> Result<u32> {
    if within(what, value, least, most)?.is_power_of_two() {
        return Ok(value);
    }
    Err(invalid(format!("{what} {value} is not a power of two")))
}

impl Mkfs {
    /// An ext4 file system, all else by default.
    pub fn new() -> Mkfs {
        Mkfs::default()
    }

    /// The type, whose features are the ones to begin with.
    pub fn fs_type(mut self, fs_type: FsType) -> Mkfs {
        self.fs_type = fs_type;
        self
    }

    /// Bytes per block: a power of two from 1024 to 65536. If not given 1024 below 512 MiB and else 4096, and
    /// no less than a sector of the device ([`Mkfs::plan_on`]).
    ///
    /// # Errors
    /// [`Error::Invalid`].
    pub fn block_size(mut self, bytes: u32) -> Result<Mkfs> {
        self.block_size = Some(power_of_two("block size", bytes, 1024, 65536)?);
        Ok(self)
    }

    /// Bytes per cluster, where `bigalloc` is set: a power of two, up to 512 MiB and to 32,768 blocks. Sixteen
    /// blocks if not given.
    ///
    /// # Errors
    /// [`Error::Invalid`].
    pub fn cluster_size(mut self, bytes: u32) -> Result<Mkfs> {
        self.cluster_size = Some(power_of_two("cluster size", bytes, 2048, 512 << 20)?);
        Ok(self)
    }

    /// Makes an inode for each so many bytes: 1024 to 64 MiB.
    ///
    /// # Errors
    /// [`Error::Invalid`].
    pub fn bytes_per_inode(mut self, bytes: u64) -> Result<Mkfs> {
        self.bytes_per_inode = Some(within("bytes per inode", bytes, 1024, 64 << 20)?);
        Ok(self)
    }

    /// Bytes per inode on the disk: a power of two from 128 to 32768, and to the
    /// size of a block.
    ///
    /// # Errors
    /// [`Error::Invalid`].
    pub fn inode_size(mut self, bytes: u32) -> Result<Mkfs> {
        self.inode_size = Some(power_of_two("inode size", bytes, 128, 32768)?);
        Ok(self)
    }

    /// What [`Mkfs::inodes_count`] was told, if it was.
    pub fn wished_inodes(&self) -> Option<u32> {
        self.inodes
    }

    /// How many inodes there are at least, whatever the bytes per inode.
    pub fn inodes_count(mut self, count: u32) -> Mkfs {
        self.inodes = Some(count);
        self
    }

    /// Which part of the blocks is kept for the super user: 0 to 50 %; 5 if not given.
    ///
    /// # Errors
    /// [`Error::Invalid`].
    pub fn reserved_percent(mut self, percent: f64) -> Result<Mkfs> {
        self.reserved_percent = Some(within("reserved percentage", percent, 0.0, 50.0)?);
        Ok(self)
    }

    /// How many groups keep their metadata together: a power of two; 16 if not given.
    ///
    /// # Errors
    /// [`Error::Invalid`].
    pub fn flex_groups(mut self, groups: u32) -> Result<Mkfs> {
        self.flex_groups = Some(power_of_two("groups per flex group", groups, 1, 1 << 31)?);
        Ok(self)
    }

    /// The label, up to 16 bytes.
    ///
    /// # Errors
    /// [`Error::Invalid`] when it is longer.
    pub fn label(mut self, label: &str) -> Result<Mkfs> {
        if label.len() > 16 {
            return Err(invalid(format!(
                "the label '{label}' is longer than 16 bytes"
            )));
        }
        self.label = label.as_bytes().to_vec();
        Ok(self)
    }

    /// The uuid; a random one if not given.
    pub fn uuid(mut self, uuid: [u8; 16]) -> Mkfs {
        self.uuid = Some(uuid);
        self
    }

    /// The seed of directory hashes; a random one if not given.
    pub fn hash_seed(mut self, seed: [u8; 16]) -> Mkfs {
        self.hash_seed = Some(seed);
        self
    }

    /// The time that everything carries, in seconds since 1970; now if not given.
    pub fn epoch(mut self, secs: i64) -> Mkfs {
        self.epoch = Some(secs);
        self
    }

    /// Goes on though the image or device holds something.
    pub fn force(mut self, force: bool) -> Mkfs {
        self.force = force;
        self
    }

    /// Features to set, or with `^` to clear, by the names of `mke2fs -O`, separated by commas or
    /// spaces: `^has_journal,bigalloc`. `none` clears all that came before. What this and earlier
    /// calls say is done in order.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a feature that dioxide does not make, [`Error::Invalid`] for one
    /// that does not exist.
    pub fn features(mut self, list: &str) -> Result<Mkfs> {
        for word in list
            .split([',', ' '])
            .map(str::trim)
            .filter(|w| !w.is_empty())
        {
            edit_features(&mut Features::default(), word)?;
            self.feature_words.push(word.to_owned());
        }
        Ok(self)
    }

    /// Options of `mke2fs -E`, separated by commas: `stride=8,lazy_itable_init=0`. There are
    /// `stride`, `stripe_width`, `resize`, `lazy_itable_init`, `lazy_journal_init`, `root_owner`,
    /// `num_backup_sb`, `packed_meta_blocks`, `discard`, `nodiscard`, `assume_storage_prezeroed`,
    /// `offset`, `mmp_update_interval`, `orphan_file_size`, `quotatype`, `hash_seed`. One whose feature
    /// is missing is refused when the file system is planned.
    ///
    /// # Errors
    /// [`Error::Invalid`], naming the option.
    pub fn extended(mut self, list: &str) -> Result<Mkfs> {
        for word in list.split(',').filter(|word| !word.is_empty()) {
            let (name, value) = split_option(word);
            self.one_extended(name, value)
                .map_err(|error| in_option("extended option", name, error))?;
        }
        Ok(self)
    }

    fn one_extended(&mut self, name: &str, value: Option<&str>) -> Result<()> {
        let e = &mut self.extended;
        match name {
            "stride" => e.stride = number(value)?,
            "stripe_width" | "stripe-width" => e.stripe_width = number(value)?,
            "resize" => e.resize_bytes = Some(amount(value)?),
            "lazy_itable_init" => e.full_itable = !flag(value)?,
            "lazy_journal_init" => e.lazy_journal = flag(value)?,
            "root_owner" => e.root_owner = owner(value)?,
            "num_backup_sb" => e.backups = Some(within("the number", number(value)?, 0, 2)?),
            "packed_meta_blocks" => e.packed = flag(value)?,
            "discard" | "nodiscard" => {
                if value.is_some() {
                    return Err(invalid("it takes no value"));
                }
                e.no_discard = name == "nodiscard";
            }
            "assume_storage_prezeroed" => e.prezeroed = flag(value)?,
            "offset" => e.offset = size_of(value)?,
            "mmp_update_interval" => {
                let secs = within("the interval", number(value)?, 0, 300)?;
                e.mmp_interval = unless_zero(secs);
            }
            "orphan_file_size" => e.orphan_file_bytes = Some(amount(value)?),
            "quotatype" => e.quota_types = Some(quota_types(value)?),
            "hash_seed" => self.hash_seed = Some(parse_uuid(value.unwrap_or_default())?),
            _ => return Err(invalid("there is no such option")),
        }
        Ok(())
    }

    /// Options of `mke2fs -J`, separated by commas: `size=64` (MiB), `fast_commit_size=256` (KiB),
    /// `location=BLOCK`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for `device`: journals are made inside the file system only.
    /// [`Error::Invalid`], naming the option.
    pub fn journal(mut self, list: &str) -> Result<Mkfs> {
        for word in list.split(',').filter(|word| !word.is_empty()) {
            let (name, value) = split_option(word);
            self.one_journal(name, value)
                .map_err(|error| in_option("journal option", name, error))?;
        }
        if self.journal.mib.is_some() {
            self.feature_words.push("has_journal".into());
        }
        Ok(self)
    }

    fn one_journal(&mut self, name: &str, value: Option<&str>) -> Result<()> {
        match name {
            "size" => self.journal.mib = unless_zero(number(value)?),
            "fast_commit_size" => self.journal.fast_commit_kib = unless_zero(number(value)?),
            "location" => self.journal.location = Some(amount(value)?),
            "device" => {
                let what = "a journal on another device is not made";
                return Err(Error::Unsupported(what.into()));
            }
            _ => return Err(invalid("there is no such option")),
        }
        Ok(())
    }

    /// Where everything goes in a file system of `size_bytes`. Touches nothing.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the wishes contradict each other or do not fit the size;
    /// [`Error::Unsupported`].
    pub fn plan(&self, size_bytes: u64) -> Result<Plan> {
        Plan::new(self, size_bytes)
    }

    /// The features that result, and whether they go together.
    pub(super) fn resulting_features(&self) -> Result<Features> {
        let mut features = self.fs_type.features();
        for word in &self.feature_words {
            edit_features(&mut features, word)?;
        }
        if features.metadata_csum() {
            features.ro_compat = features.ro_compat.unsupported(RoCompat::GDT_CSUM);
        }
        if self
            .extended
            .quota_types
            .is_some_and(|[.., project]| project)
        {
            features.ro_compat = features.ro_compat | RoCompat::PROJECT;
        }
        agree(&features)?;
        self.have_features(&features)?;
        Ok(features)
    }

    /// Whether the options have the features without which they would do nothing.
    fn have_features(&self, features: &Features) -> Result<()> {
        let (e, j) = (&self.extended, &self.journal);
        let compat = |bit| features.compat.contains(bit);
        let (fast, location) = (j.fast_commit_kib.is_some(), j.location.is_some());
        let journal = compat(Compat::HAS_JOURNAL);
        let fast_commit = compat(Compat::FAST_COMMIT);
        let mmp = features.incompat.contains(Incompat::MMP);
        let quota = features.ro_compat.contains(RoCompat::QUOTA);
        let sparse2 = compat(Compat::SPARSE_SUPER2);
        let orphans = compat(Compat::ORPHAN_FILE);
        let wrongs = [
            (location && !journal, "location", "has_journal"),
            (fast && !journal, "fast_commit_size", "has_journal"),
            (fast && !fast_commit, "fast_commit_size", "fast_commit"),
            (
                e.backups.is_some() && !sparse2,
                "num_backup_sb",
                "sparse_super2",
            ),
            (
                e.mmp_interval.is_some() && !mmp,
                "mmp_update_interval",
                "mmp",
            ),
            (
                e.orphan_file_bytes.is_some() && !orphans,
                "orphan_file_size",
                "orphan_file",
            ),
            (e.quota_types.is_some() && !quota, "quotatype", "quota"),
        ];
        match wrongs.into_iter().find(|(wrong, ..)| *wrong) {
            Some((_, option, feature)) => Err(invalid(format!(
                "{option} needs the feature {feature} (-O {feature})"
            ))),
            None => Ok(()),
        }
    }
}

fn in_option(kind: &str, name: &str, error: Error) -> Error {
    match error {
        Error::Invalid(what) => Error::Invalid(format!("{kind} '{name}': {what}")),
        Error::Unsupported(what) => Error::Unsupported(format!("{kind} '{name}': {what}")),
        other => other,
    }
}

fn split_option(word: &str) -> (&str, Option<&str>) {
    match word.split_once('=') {
        Some((name, value)) => (name.trim(), Some(value.trim())),
        None => (word.trim(), None),
    }
}

fn number<T: std::str::FromStr>(value: Option<&str>) -> Result<T> {
    let value = value.ok_or_else(|| invalid("a number is missing"))?;
    let parsed = value.parse();
    parsed.map_err(|_| invalid(format!("'{value}' is not a number that fits")))
}

/// Zero is what is chosen without the option.
fn unless_zero<T: Default + PartialEq>(value: T) -> Option<T> {
    (value != T::default()).then_some(value)
}

/// On if it has no value.
fn flag(value: Option<&str>) -> Result<bool> {
    match value {
        None | Some("1") => Ok(true),
        Some("0") => Ok(false),
        Some(other) => Err(invalid(format!("'{other}' is neither 0 nor 1"))),
    }
}

/// Blocks, or with a suffix of powers of 1024 bytes.
fn amount(value: Option<&str>) -> Result<Amount> {
    let value = value.ok_or_else(|| invalid("a size is missing"))?;
    match number::<u64>(Some(value)) {
        Ok(blocks) => Ok(Amount::Blocks(blocks)),
        Err(_) => Ok(Amount::Bytes(suffixed(value)?)),
    }
}

/// Bytes, or with a suffix.
fn size_of(value: Option<&str>) -> Result<u64> {
    let value = value.ok_or_else(|| invalid("a size is missing"))?;
    value.parse().or_else(|_| suffixed(value))
}

fn suffixed(value: &str) -> Result<u64> {
    let wrong = || invalid(format!("'{value}' is not a size, such as 65536, 64k or 1G"));
    let letter = value.chars().last().ok_or_else(wrong)?;
    let power = "kmgt".find(letter.to_ascii_lowercase()).ok_or_else(wrong)? as u32 + 1;
    let digits = &value[..value.len() - letter.len_utf8()];
    let count: u64 = digits.parse().map_err(|_| wrong())?;
    count.checked_mul(1024u64.pow(power)).ok_or_else(wrong)
}

/// `uid:gid`; without a value the caller's.
fn owner(value: Option<&str>) -> Result<(u32, u32)> {
    let Some(value) = value else {
        let (uid, gid) = (rustix::process::getuid(), rustix::process::getgid());
        return Ok((uid.as_raw(), gid.as_raw()));
    };
    let parts = value.split_once(':');
    let (uid, gid) = parts.ok_or_else(|| invalid(format!("'{value}' is not UID:GID")))?;
    let (uid, gid) = (number(Some(uid))?, number(Some(gid))?);
    match [uid, gid].contains(&u32::MAX) {
        true => Err(invalid(format!("{} is no user or group", u32::MAX))),
        false => Ok((uid, gid)),
    }
}

/// `usr:grp:prj`, or some of them.
fn quota_types(value: Option<&str>) -> Result<[bool; 3]> {
    let mut types = [false; 3];
    for word in value.unwrap_or_default().split(':') {
        match word {
            "usr" | "usrquota" => types[0] = true,
            "grp" | "grpquota" => types[1] = true,
            "prj" | "prjquota" => types[2] = true,
            _ => return Err(invalid(format!("'{word}' is none of usr, grp, prj"))),
        }
    }
    Ok(types)
}

/// A uuid from its usual form of 32 digits and four dashes.
///
/// # Errors
/// [`Error::Invalid`].
pub fn parse_uuid(text: &str) -> Result<[u8; 16]> {
    let wrong = || invalid(format!("'{text}' is not a uuid"));
    let dashes: Vec<usize> = text.match_indices('-').map(|(at, _)| at).collect();
    let digits: String = text.split('-').collect();
    let plain = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    if dashes != [8, 13, 18, 23] || digits.len() != 32 || !plain {
        return Err(wrong());
    }
    u128::from_str_radix(&digits, 16)
        .map(u128::to_be_bytes)
        .map_err(|_| wrong())
}

/// The usual form of a uuid.
pub fn uuid_string(uuid: [u8; 16]) -> String {
    let hex = format!("{:032x}", u128::from_be_bytes(uuid));
    let parts = [0..8, 8..12, 12..16, 16..20, 20..32].map(|range| &hex[range]);
    parts.join("-")
}

/// Sets or clears one feature.
fn edit_features(features: &mut Features, word: &str) -> Result<()> {
    if word == "none" {
        *features = Features::default();
        return Ok(());
    }
    let (clear, name) = match word.strip_prefix('^') {
        Some(name) => (true, name),
        None => (false, word),
    };
    let name = match name {
        "extents" => "extent",
        "gdt_csum" | "gdt_checksum" => "uninit_bg",
        name => name,
    };
    let edit = |old: u32, bit: u32| if clear { old & !bit } else { old | bit };
    if let Some(bit) = Compat::from_name(name) {
        supported(clear || COMPAT.contains(bit), name)?;
        features.compat.0 = edit(features.compat.0, bit.0);
    } else if let Some(bit) = Incompat::from_name(name) {
        supported(clear || INCOMPAT.contains(bit), name)?;
        features.incompat.0 = edit(features.incompat.0, bit.0);
    } else if let Some(bit) = RoCompat::from_name(name) {
        supported(clear || RO_COMPAT.contains(bit), name)?;
        features.ro_compat.0 = edit(features.ro_compat.0, bit.0);
    } else {
        return Err(invalid(format!("there is no feature '{name}'")));
    }
    Ok(())
}

fn supported(is: bool, name: &str) -> Result<()> {
    if is {
        return Ok(());
    }
    Err(Error::Unsupported(format!(
        "file systems with the feature {name} are not made: dioxide cannot mount them"
    )))
}

/// Whether features that need or exclude each other are chosen well.
fn agree(features: &Features) -> Result<()> {
    let compat = |bit| features.compat.contains(bit);
    let incompat = |bit| features.incompat.contains(bit);
    let ro = |bit| features.ro_compat.contains(bit);
    let extents = incompat(Incompat::EXTENTS);
    let wrongs = [
        (
            incompat(Incompat::BIT64) && !extents,
            "64bit needs extent: take out 64bit too",
        ),
        (ro(RoCompat::BIGALLOC) && !extents, "bigalloc needs extent"),
        (
            compat(Compat::RESIZE_INODE) && incompat(Incompat::META_BG),
            "resize_inode and meta_bg exclude each other: take out one of them",
        ),
        (
            compat(Compat::RESIZE_INODE) && !ro(RoCompat::SPARSE_SUPER),
            "resize_inode needs sparse_super: take out resize_inode too",
        ),
        (
            incompat(Incompat::CSUM_SEED) && !features.metadata_csum(),
            "metadata_csum_seed needs metadata_csum",
        ),
        (
            compat(Compat::ORPHAN_FILE) && !compat(Compat::HAS_JOURNAL),
            "orphan_file needs has_journal",
        ),
    ];
    match wrongs.into_iter().find(|(wrong, _)| *wrong) {
        Some((_, what)) => Err(invalid(format!("features: {what}"))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(made: Result<Mkfs>) -> String {
        made.unwrap_err().to_string()
    }

    #[test]
    fn features_of_ext4_can_be_edited_in_order() {
        let mkfs = Mkfs::new().features("^has_journal, bigalloc").unwrap();
        let mkfs = mkfs.features("^bigalloc").unwrap();
        let names = mkfs.resulting_features().unwrap().names();
        assert!(!names.contains(&"has_journal".to_owned()));
        assert!(!names.contains(&"bigalloc".to_owned()));
        assert!(names.contains(&"extent".to_owned()));
    }

    #[test]
    fn features_that_cannot_be_mounted_are_refused_by_name() {
        for name in ["casefold", "journal_dev"] {
            let error = Mkfs::new().features(name).unwrap_err();
            assert!(
                matches!(&error, Error::Unsupported(what) if what.contains(name)),
                "{error}"
            );
        }
        assert!(refusal(Mkfs::new().features("frob")).contains("'frob'"));
    }

    #[test]
    fn features_that_contradict_each_other_are_refused() {
        for list in [
            "^extent",
            "meta_bg",
            "^sparse_super",
            "^has_journal,orphan_file",
            "none,metadata_csum_seed",
        ] {
            let mkfs = Mkfs::new().features(list).unwrap();
            assert!(mkfs.resulting_features().is_err(), "{list}");
        }
    }

    #[test]
    fn extended_option_that_is_unknown_or_malformed_is_named() {
        for (list, named) in [
            ("stride=8,frob=1", "'frob'"),
            ("stride=eight", "'stride'"),
            ("root_owner=5", "'root_owner'"),
            ("lazy_itable_init=2", "'lazy_itable_init'"),
            ("hash_seed=xyz", "'hash_seed'"),
            ("num_backup_sb=3", "'num_backup_sb'"),
        ] {
            assert!(
                refusal(Mkfs::new().extended(list)).contains(named),
                "{list}"
            );
        }
        let error = Mkfs::new().journal("device=/dev/sdb1").unwrap_err();
        assert!(matches!(error, Error::Unsupported(what) if what.contains("'device'")));
    }

    #[test]
    fn uuid_that_is_none_is_refused() {
        let text = "d10c1de0-0000-4000-8000-00000000000f";
        assert_eq!(parse_uuid(text).unwrap()[0], 0xd1);
        assert_eq!(parse_uuid(text).unwrap()[15], 15);
        for wrong in [
            "",
            "d10c1de0",
            &text[1..],
            &text.replace('f', "g"),
            &"é".repeat(18),
        ] {
            assert!(parse_uuid(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn amount_without_suffix_counts_blocks() {
        assert_eq!(amount(Some("4096")).unwrap().in_blocks(4096), 4096);
        assert_eq!(amount(Some("64M")).unwrap().in_blocks(4096), 16384);
        assert!(amount(Some("M")).is_err() && amount(Some("4q")).is_err());
    }
}
