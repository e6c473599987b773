//! The superblock for people: grouped, and only what says something.

use super::{Verdict, error_policy, kind};
use crate::output::Out;
use crate::render::{bytes_words, count_words, printable, second_time};
use dioxide::format::features::Compat;
use dioxide::format::superblock::{STATE_CLEAN, STATE_ERROR, STATE_ORPHAN, SuperBlock};
use dioxide::mkfs::uuid_string;
use std::io::{self, Write};
use std::path::Path;

/// Backups that are listed before the rest is only counted.
const LISTED_BACKUPS: usize = 8;

/// Collects the lines of one group, and leaves out empty ones.
struct Group<'a> {
    out: &'a mut Out,
}

impl<'a> Group<'a> {
    fn new(out: &'a mut Out, title: &str) -> io::Result<Group<'a>> {
        writeln!(out, "\n{title}")?;
        Ok(Group { out })
    }

    fn line(&mut self, label: &str, value: impl AsRef<str>) -> io::Result<()> {
        match printable(value.as_ref()) {
            value if value.is_empty() => Ok(()),
            value => writeln!(self.out, "  {label:<16} {value}"),
        }
    }
}

pub fn print(image: &Path, sb: &SuperBlock, verdict: &Verdict, out: &mut Out) -> io::Result<()> {
    let bytes = sb.blocks_count().saturating_mul(u64::from(sb.block_size()));
    writeln!(
        out,
        "{}: {} of {}",
        image.display(),
        match kind(sb) {
            "journal" => "external journal".to_owned(),
            kind => format!("{kind} file system"),
        },
        bytes_words(bytes)
    )?;
    identity(sb, out)?;
    space(sb, out)?;
    layout(sb, verdict, out)?;
    features(sb, out)?;
    state(sb, out)?;
    opening(verdict, out)
}

fn identity(sb: &SuperBlock, out: &mut Out) -> io::Result<()> {
    let mut group = Group::new(out, "Identity")?;
    group.line("label", sb.volume_name())?;
    group.line("uuid", uuid_string(sb.uuid()))?;
    group.line("last mounted on", sb.last_mounted())?;
    group.line("made", second_time(sb.mkfs_time()))
}

fn space(sb: &SuperBlock, out: &mut Out) -> io::Result<()> {
    let (blocks, free, reserved) = (
        sb.blocks_count(),
        sb.free_blocks_count(),
        sb.reserved_blocks_count(),
    );
    let mut group = Group::new(out, "Space")?;
    group.line(
        "blocks",
        format!(
            "{blocks} of {} bytes; {free} free, {reserved} reserved",
            sb.block_size()
        ),
    )?;
    if sb.has_bigalloc() {
        group.line("clusters", format!("of {} bytes", sb.cluster_size()))?;
    }
    let (inodes, free, size) = (sb.inodes_count(), sb.free_inodes_count(), sb.inode_size());
    group.line("inodes", format!("{inodes} of {size} bytes; {free} free"))
}

fn layout(sb: &SuperBlock, verdict: &Verdict, out: &mut Out) -> io::Result<()> {
    let mut group = Group::new(out, "Layout")?;
    let (blocks, inodes) = (sb.blocks_per_group(), sb.inodes_per_group());
    group.line(
        "groups",
        format!(
            "{} of {blocks} blocks and {inodes} inodes",
            sb.group_count()
        ),
    )?;
    if sb.log_groups_per_flex() > 0 {
        group.line(
            "flex groups",
            format!("of 2^{} groups", sb.log_groups_per_flex()),
        )?;
    }
    group.line("descriptors", format!("of {} bytes", sb.desc_size()))?;
    // The geometry of a damaged superblock could be anything.
    if verdict.opens {
        group.line("backups", backups(sb))?;
    }
    group.line("journal", journal(sb))?;
    let checksums = if sb.features().metadata_csum() {
        "crc32c on all metadata"
    } else {
        ""
    };
    group.line("checksums", checksums)?;
    group.line(
        "MMP block",
        match sb.mmp_block() {
            Ok(block) => block.map_or_else(String::new, |block| block.to_string()),
            Err(_) => format!("{}, where none can be", sb.disk().s_mmp_block),
        },
    )?;
    group.line(
        "name encoding",
        sb.encoding()
            .map_or_else(String::new, |number| number.to_string()),
    )
}

fn backups(sb: &SuperBlock) -> String {
    let blocks: Vec<String> = sb
        .backup_groups()
        .map(|group| sb.superblock_block(group).to_string())
        .collect();
    match blocks.len() {
        0 => "none".into(),
        count if count <= LISTED_BACKUPS => format!("superblocks in blocks {}", blocks.join(", ")),
        count => {
            let listed = blocks[..LISTED_BACKUPS].join(", ");
            format!(
                "superblocks in blocks {listed} and {} more",
                count - LISTED_BACKUPS
            )
        }
    }
}

fn journal(sb: &SuperBlock) -> String {
    if !sb.features().compat.contains(Compat::HAS_JOURNAL) {
        return "none".into();
    }
    let place = match sb.journal_inum() {
        Some(ino) => format!("inode {ino}"),
        None => format!("external, uuid {}", uuid_string(sb.journal_uuid())),
    };
    let state = if sb.needs_recovery() {
        "; needs recovery"
    } else {
        ""
    };
    format!("{place}{state}")
}

fn features(sb: &SuperBlock, out: &mut Out) -> io::Result<()> {
    let features = sb.features();
    let mut group = Group::new(out, "Features")?;
    group.line("compat", features.compat.to_string())?;
    group.line("incompat", features.incompat.to_string())?;
    group.line("ro_compat", features.ro_compat.to_string())?;
    group.line("mount options", sb.mount_opts())
}

fn state(sb: &SuperBlock, out: &mut Out) -> io::Result<()> {
    let mut group = Group::new(out, "State")?;
    group.line("state", state_words(sb))?;
    group.line("on errors", error_policy(sb))?;
    group.line("last mounted", second_time(sb.mount_time()))?;
    group.line("last written", second_time(sb.write_time()))?;
    group.line("last checked", second_time(sb.check_time()))?;
    let due = sb
        .max_mount_count()
        .map_or_else(String::new, |most| format!("; a check is due at {most}"));
    group.line("mounts", format!("{} since then{due}", sb.mount_count()))?;
    group.line(
        "written so far",
        bytes_words(sb.kbytes_written().saturating_mul(1024)),
    )
}

fn state_words(sb: &SuperBlock) -> String {
    let state = sb.state();
    let mut words = vec![
        if state & STATE_CLEAN != 0 {
            "clean"
        } else {
            "not cleanly unmounted"
        }
        .to_owned(),
    ];
    if state & STATE_ERROR != 0 {
        words.push("errors were found".into());
    }
    if sb.error_count() > 0 {
        words.push(format!(
            "{} recorded",
            count_words(u64::from(sb.error_count()), "error")
        ));
    }
    if state & STATE_ORPHAN != 0 || sb.last_orphan().is_some() {
        words.push("orphans are left".into());
    }
    words.join(", ")
}

fn opening(verdict: &Verdict, out: &mut Out) -> io::Result<()> {
    let mut group = Group::new(out, "dioxide")?;
    match &verdict.why_not {
        Some(why) => group.line("opens it", format!("no: {why}")),
        None => group.line("opens it", "yes"),
    }?;
    verdict
        .warnings
        .iter()
        .try_for_each(|warning| group.line("but", warning))
}
