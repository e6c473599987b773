//! `-o`: the options of ext4 and of FUSE by the names that they have for `mount`.
//!
//! What only the kernel's ext4 can do is passed over with a warning, so that a line of fstab can stay as it is;
//! what nobody knows is an error.

use crate::Error;
use crate::server::{ServerOptions, SyncMode};
use dioxide::format::superblock::ErrorPolicy;
use dioxide::{DataMode, MountOptions};
use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// How to mount.
#[derive(Clone, Debug)]
pub struct Options {
    /// How the image is opened.
    pub image: MountOptions,
    /// How requests are answered.
    pub server: ServerOptions,
    /// `ro`.
    pub read_only: bool,
    /// `allow_other`: everybody may use the mount. On for root, because root's mounts are for all.
    pub allow_other: bool,
    /// `auto_unmount`: the mount goes when the process does. That takes somebody outside of it, who calls
    /// [`crate::unmount_dead`] then.
    pub auto_unmount: bool,
    /// `max_threads=`: how many requests are answered at the same time: two at least.
    pub threads: usize,
    /// `max_background=`: how many requests that nobody waits for the kernel has under way: two at least.
    pub max_background: u16,
    /// `io_uring`: requests come through rings, where the kernel has them.
    pub io_uring: bool,
    /// `fsname=`: shown as the source of the mount, instead of the image.
    pub fsname: Option<String>,
    /// `stats=`: a file that has what was counted, as JSON. It is replaced every second, and at the end.
    pub stats: Option<PathBuf>,
    /// `sandbox`: the process keeps the image and the connection, and gets nothing else; see [`crate::sandbox`].
    pub sandbox: bool,
    /// Options that go to `mount(2)` as they are: `nosuid`, `noexec`, …
    pub generic: Vec<String>,
}

impl Default for Options {
    /// Read-write; for root `allow_other`, `suid` and `dev`, for others `nosuid` and `nodev`.
    fn default() -> Options {
        let root = rustix::process::geteuid().is_root();
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Options {
            image: MountOptions::new(),
            server: ServerOptions::default(),
            read_only: false,
            allow_other: root,
            auto_unmount: false,
            threads: (2 * processors).clamp(8, 64),
            max_background: 256,
            io_uring: true,
            fsname: None,
            stats: None,
            sandbox: false,
            generic: match root {
                true => vec!["suid".into(), "dev".into()],
                false => vec!["nosuid".into(), "nodev".into()],
            },
        }
    }
}

/// Of the kernel's ext4, of its generic layer, or of `mount`: of no meaning here.
const PASSED_OVER: &[&str] = &[
    "acl",
    "noacl",
    "user_xattr",
    "nouser_xattr",
    "bsddf",
    "minixdf",
    "debug",
    "init_itable",
    "noinit_itable",
    "stripe",
    "delalloc",
    "nodelalloc",
    "journal_checksum",
    "nojournal_checksum",
    "journal_async_commit",
    "journal_ioprio",
    "journal_dev",
    "auto_da_alloc",
    "noauto_da_alloc",
    "inode_readahead_blks",
    "max_batch_time",
    "min_batch_time",
    "max_dir_size_kb",
    "i_version",
    "noi_version",
    "quota",
    "noquota",
    "usrquota",
    "grpquota",
    "prjquota",
    "usrjquota",
    "grpjquota",
    "jqfmt",
    "mb_optimize_scan",
    "dax",
    "nombcache",
    "no_mbcache",
    "block_validity",
    "noblock_validity",
    "data_err",
    "test_dummy_encryption",
    "inlinecrypt",
    "abort",
    "prefetch_block_bitmaps",
    "no_prefetch_block_bitmaps",
    "nouid32",
    "resize",
    "fc_debug_force",
    "relatime",
    "norelatime",
    "strictatime",
    "nostrictatime",
    "diratime",
    "nodiratime",
    "atime",
    "lazytime",
    "nolazytime",
    "mand",
    "nomand",
    "iversion",
    "noiversion",
    "bh",
    "nobh",
    "orlov",
    "oldalloc",
    "mblk_io_submit",
    "nomblk_io_submit",
    "reservation",
    "noreservation",
    "check",
    "nocheck",
    "context",
    "fscontext",
    "defcontext",
    "rootcontext",
    "symfollow",
    "kernel_cache",
    "auto_cache",
    "noauto_cache",
    "max_read",
    "direct_io",
    "nonempty",
    "intr",
    "nointr",
    "allow_root",
    "big_writes",
    "use_ino",
    "hard_remove",
    "clone_fd",
    "max_idle_threads",
    "warn_on_error",
    "nowarn_on_error",
    "default_permissions",
];

/// For `mount` and its kin, who have acted on them already.
const FOR_MOUNT: &[&str] = &[
    "defaults", "auto", "noauto", "user", "nouser", "users", "owner", "group", "_netdev", "nofail",
    "subtype", "loop", "silent", "loud", "comment", "helper", "uhelper", "sloppy",
];

/// Flags of `mount(2)`, and what each takes back.
const GENERIC: &[(&str, &str)] = &[
    ("suid", "nosuid"),
    ("nosuid", "suid"),
    ("dev", "nodev"),
    ("nodev", "dev"),
    ("exec", "noexec"),
    ("noexec", "exec"),
    ("sync", ""),
    ("dirsync", ""),
    ("noatime", ""),
    ("nosymfollow", ""),
];

/// What a remount can change: flags of `mount(2)`.
const REMOUNT: &[&str] = &[
    "remount",
    "bind",
    "ro",
    "rw",
    "suid",
    "nosuid",
    "dev",
    "nodev",
    "exec",
    "noexec",
    "atime",
    "noatime",
    "relatime",
    "nosymfollow",
];

/// What the kernel shows of each mount of FUSE, and mount(8) hands on as it is.
const SHOWN: &[&str] = &[
    "user_id",
    "group_id",
    "rootmode",
    "default_permissions",
    "allow_other",
    "max_read",
    "blksize",
];

/// What begins with `x-` is for whoever reads fstab.
fn is_for_mount(name: &str) -> bool {
    FOR_MOUNT.contains(&name) || name.starts_with("x-") || name.starts_with("X-")
}

impl Options {
    /// Options as after `-o`: words with commas between them, the last counts. Returns what was passed over, a line each.
    ///
    /// # Errors
    /// [`Error::Option`].
    pub fn parse(words: &str) -> Result<(Options, Vec<String>), Error> {
        let sloppy = words.split(',').any(|word| word.trim() == "sloppy");
        let mut options = Options::default();
        let mut warnings = Vec::new();
        for word in words
            .split(',')
            .map(str::trim)
            .filter(|word| !word.is_empty())
        {
            let (name, value) = match word.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (word, None),
            };
            if PASSED_OVER.contains(&name) {
                // What is always so needs no warning.
                if !matches!(name, "default_permissions" | "acl" | "user_xattr") {
                    warnings.push(format!("option {word} does nothing here"));
                }
            } else if !is_for_mount(name) && !options.take(word, name, value)? {
                let equals = if value.is_some() { "=" } else { "" };
                let what = format!("{name}{equals} is not known");
                match sloppy {
                    true => warnings.push(format!("option {what}")),
                    false => return Err(Error::Option(what)),
                }
            }
        }
        Ok((options, warnings))
    }

    /// Words as after `-o remount`: those that `mount(2)` can change, and a line for each that stays as it was.
    pub fn remount(words: &str) -> (Vec<&str>, Vec<String>) {
        let words = words.split(',').map(str::trim);
        let (flags, rest): (Vec<_>, Vec<_>) = words
            .filter(|word| !word.is_empty())
            .partition(|word| REMOUNT.contains(word));
        let stays = rest.into_iter().filter(|word| {
            let name = word.split('=').next().unwrap_or_default();
            !is_for_mount(name) && !SHOWN.contains(&name)
        });
        let warnings = stays.map(|word| format!("option {word} is not changed by a remount"));
        (flags, warnings.collect())
    }

    /// Whether it is known.
    fn take(&mut self, word: &str, name: &str, value: Option<&str>) -> Result<bool, Error> {
        if let Some((_, opposite)) = GENERIC.iter().find(|(flag, _)| *flag == word) {
            self.generic.retain(|flag| flag != opposite && flag != word);
            self.generic.push(word.into());
            // The kernel keeps files in step by itself, and leaves directories and copies to us.
            if matches!(word, "sync" | "dirsync") {
                self.image = self.image.clone().dirsync(true);
            }
            if word == "sync" {
                self.server.sync = SyncMode::Data;
            }
            return Ok(true);
        }
        match value {
            Some(value) => self.set(name, value),
            None => Ok(self.switch(name)),
        }
    }

    fn switch(&mut self, name: &str) -> bool {
        match name {
            "ro" => self.read_only = true,
            "rw" => self.read_only = false,
            "noload" | "norecovery" => self.image = self.image.clone().noload(true),
            "dioread_nolock" => self.image = self.image.clone().dioread_nolock(true),
            "dioread_lock" | "nodioread_nolock" => {
                self.image = self.image.clone().dioread_nolock(false)
            }
            "discard" => self.image = self.image.clone().discard(true),
            "nodiscard" => self.image = self.image.clone().discard(false),
            "grpid" | "bsdgroups" => self.image = self.image.clone().grpid(true),
            "nogrpid" | "sysvgroups" => self.image = self.image.clone().grpid(false),
            "barrier" => self.image = self.image.clone().barrier(true),
            "nobarrier" => self.image = self.image.clone().barrier(false),
            "writeback" | "writeback_cache" => self.server.writeback = true,
            "nowriteback" | "no_writeback_cache" => self.server.writeback = false,
            "allow_other" => self.allow_other = true,
            "auto_unmount" => self.auto_unmount = true,
            "io_uring" => self.io_uring = true,
            "noio_uring" => self.io_uring = false,
            "fakeroot" => self.server.fakeroot = true,
            "sandbox" => self.sandbox = true,
            "nosandbox" => self.sandbox = false,
            "async" => {
                self.generic.retain(|flag| flag != "sync");
                self.server.sync = SyncMode::None;
                let dirsync = self.generic.iter().any(|flag| flag == "dirsync");
                self.image = self.image.clone().dirsync(dirsync);
            }
            _ => return false,
        }
        true
    }

    fn set(&mut self, name: &str, value: &str) -> Result<bool, Error> {
        let image = self.image.clone();
        let server = &mut self.server;
        match name {
            "errors" => self.image = image.errors(errors(value)?),
            "data" => self.image = image.data(data(value)?),
            "commit" => {
                // As ext4 has it: 0 is the default.
                let secs = number(name, value)?;
                let secs = if secs == 0 { 5 } else { secs };
                self.image = image.commit_interval(Duration::from_secs(secs));
            }
            "barrier" => self.image = image.barrier(number::<u8>(name, value)? != 0),
            "dio_policy" => self.image = image.policy(number(name, value)?),
            "backend" => self.image = image.backend(number(name, value)?),
            "sb" => self.image = image.superblock_at(number(name, value)?),
            "img_offset" | "offset" => {
                self.server.img_offset = bytes(name, value)? as u64;
                self.image = image.img_offset(self.server.img_offset);
            }
            "resuid" => self.image = image.resuid(number(name, value)?),
            "resgid" => self.image = image.resgid(number(name, value)?),
            "journal_path" => self.image = image.journal_path(value),
            "metadata_cache" => self.image = image.metadata_cache(bytes(name, value)?),
            "name_cache" => self.image = image.name_cache(bytes(name, value)?),
            "uid" => server.uid = Some(owner(name, value)?),
            "gid" => server.gid = Some(owner(name, value)?),
            "umask" => server.umask = Some(octal(name, value)?),
            "entry_timeout" => server.entry_timeout = seconds(name, value)?,
            "attr_timeout" => server.attr_timeout = seconds(name, value)?,
            "max_threads" => self.threads = number::<usize>(name, value)?.clamp(1, 1024),
            "max_background" => self.max_background = number::<u16>(name, value)?.max(1),
            "fsname" => self.fsname = Some(value.into()),
            "stats" => self.stats = Some(value.into()),
            _ => return Ok(false),
        }
        Ok(true)
    }
}

fn bad(name: &str, value: &str, why: impl Display) -> Error {
    Error::Option(format!("{name}={value}: {why}"))
}

fn number<T: FromStr<Err: Display>>(name: &str, value: &str) -> Result<T, Error> {
    value.parse().map_err(|why| bad(name, value, why))
}

/// A user or a group: not the number that leaves an owner alone.
fn owner(name: &str, value: &str) -> Result<u32, Error> {
    match number(name, value)? {
        u32::MAX => Err(bad(name, value, "no user or group")),
        id => Ok(id),
    }
}

/// A number of bytes, with k, M or G behind it.
fn bytes(name: &str, value: &str) -> Result<usize, Error> {
    let digits = value.trim_end_matches(['k', 'K', 'M', 'G']);
    let shift = match &value[digits.len()..] {
        "" => 0,
        "k" | "K" => 10,
        "M" => 20,
        "G" => 30,
        _ => return Err(bad(name, value, "not a number of bytes, such as 64M")),
    };
    let number: usize = number(name, digits)?;
    let bytes = number.checked_mul(1 << shift);
    bytes.ok_or_else(|| bad(name, value, "too many bytes"))
}

fn octal(name: &str, value: &str) -> Result<u16, Error> {
    match u16::from_str_radix(value, 8) {
        Ok(mask) if mask <= 0o777 => Ok(mask),
        Ok(_) => Err(bad(name, value, "over 777")),
        Err(why) => Err(bad(name, value, why)),
    }
}

fn seconds(name: &str, value: &str) -> Result<Duration, Error> {
    let secs = number(name, value)?;
    Duration::try_from_secs_f64(secs).map_err(|why| bad(name, value, why))
}

fn errors(value: &str) -> Result<ErrorPolicy, Error> {
    Ok(match value {
        "continue" => ErrorPolicy::Continue,
        "remount-ro" => ErrorPolicy::RemountReadOnly,
        "panic" => ErrorPolicy::Panic,
        _ => return Err(bad("errors", value, "continue, remount-ro or panic")),
    })
}

fn data(value: &str) -> Result<DataMode, Error> {
    Ok(match value {
        "ordered" => DataMode::Ordered,
        "writeback" => DataMode::Writeback,
        "journal" => DataMode::Journal,
        _ => return Err(bad("data", value, "ordered or writeback")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_of_opposite_options_counts() {
        let (options, _) = Options::parse("nosuid,suid,writeback,nowriteback,ro,rw").unwrap();
        assert!(!options.read_only);
        assert!(!options.server.writeback);
        assert!(options.generic.iter().any(|flag| flag == "suid"));
        assert!(!options.generic.iter().any(|flag| flag == "nosuid"));
    }

    #[test]
    fn words_for_groups_are_those_of_ext4() {
        for (words, grpid) in [
            ("", "None"),
            ("grpid", "Some(true)"),
            ("nogrpid,bsdgroups", "Some(true)"),
            ("grpid,nogrpid", "Some(false)"),
            ("bsdgroups,sysvgroups", "Some(false)"),
        ] {
            let (options, warnings) = Options::parse(words).unwrap();
            let told = format!("{:?}", options.image);
            assert!(told.contains(&format!("grpid: {grpid}")), "{words}: {told}");
            assert!(warnings.is_empty(), "{warnings:?}");
        }
    }

    #[test]
    fn async_takes_sync_back_and_leaves_dirsync() {
        for (words, sync, dirsync) in [
            ("sync", SyncMode::Data, true),
            ("sync,async", SyncMode::None, false),
            ("async,sync", SyncMode::Data, true),
            ("dirsync,sync,async", SyncMode::None, true),
        ] {
            let (options, warnings) = Options::parse(words).unwrap();
            assert_eq!(options.server.sync, sync, "{words}");
            assert_eq!(
                options.generic.contains(&"sync".into()),
                sync != SyncMode::None,
                "{words}"
            );
            let told = format!("{:?}", options.image);
            assert!(
                told.contains(&format!("dirsync: {dirsync}")),
                "{words}: {told}"
            );
            assert!(warnings.is_empty(), "{warnings:?}");
        }
    }

    #[test]
    fn sizes_and_places_have_units() {
        let words = "metadata_cache=64M,name_cache=4096,img_offset=1M";
        let (options, _) = Options::parse(words).unwrap();
        let told = format!("{:?}", options.image);
        assert!(told.contains("metadata_cache: 67108864"), "{told}");
        assert!(told.contains("name_cache: Some(4096)"), "{told}");
        assert!(told.contains("img_offset: 1048576"), "{told}");
        for wrong in ["M", "", "1x", "-1", "99999999999G", "1MM"] {
            assert!(
                Options::parse(&format!("name_cache={wrong}")).is_err(),
                "{wrong}"
            );
        }
    }

    #[test]
    fn options_of_the_kernel_alone_warn() {
        let passed_over = [
            "stripe=4",
            "delalloc",
            "relatime",
            "check=none",
            "context=system_u:object_r:tmp_t:s0",
            "max_read=4096",
        ];
        let words = passed_over.join(",");
        let of_mount = "ro,x-systemd.automount,X-mount.mkdir,comment=mine,uhelper=udisks2";
        let (_, warnings) = Options::parse(&format!("{words},{of_mount}")).unwrap();
        let expected = passed_over.map(|word| format!("option {word} does nothing here"));
        assert_eq!(warnings, expected);
    }

    #[test]
    fn options_that_a_remount_does_not_change_warn() {
        // As mount(8) has them from its table and the kernel.
        let by_mount = "nofail,x-systemd.automount,user_id=0,group_id=0,allow_other";
        let words = format!("remount,ro,commit=5,{by_mount},, sync,noatime,frobnicate");
        let (flags, warnings) = Options::remount(&words);
        assert_eq!(flags, ["remount", "ro", "noatime"]);
        let expected = ["commit=5", "sync", "frobnicate"];
        let expected = expected.map(|word| format!("option {word} is not changed by a remount"));
        assert_eq!(warnings, expected);
    }

    #[test]
    fn options_that_nobody_knows_warn_when_sloppy() {
        let (_, warnings) = Options::parse("frobnicate,sloppy,ro,frob=1").unwrap();
        let expected = [
            "option frobnicate is not known",
            "option frob= is not known",
        ];
        assert_eq!(warnings, expected);
        assert!(Options::parse("sloppy,umask=1777").is_err());
    }

    #[test]
    fn options_that_nobody_knows_or_of_no_sense_are_refused() {
        for words in [
            "frobnicate",
            "frobnicate=1",
            "errors=maybe",
            "sb=x",
            "uid=4294967295",
            "gid=-1",
            "umask=1777",
            "ro=1",
            "attr_timeout=-1",
            "dio_policy=none",
        ] {
            let said = Options::parse(words).map(drop).unwrap_err().to_string();
            let name = words.split('=').next().unwrap();
            assert!(said.starts_with(&format!("option {name}")), "{said}");
        }
    }
}
