//! `dioxide mkfs`: wishes for the library, and what came of them.

use crate::args::{FsArgs, MkfsArgs, Uuid, source_date_epoch};
use crate::failure::{Failure, Status, complain};
use crate::output::Out;
use crate::progress::Progress;
use crate::render::{Text, bytes_words, count_words, printable};
use dioxide::Mkfs;
use dioxide::mkfs::{Plan, uuid_string};
use serde::Serialize;
use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::time::{SystemTime, UNIX_EPOCH};

/// Backups that are listed before the rest is only counted.
const LISTED_BACKUPS: usize = 16;

/// What was made, for programs.
#[derive(Serialize)]
struct Told<'a> {
    #[serde(flatten)]
    image: Text,
    made: bool,
    #[serde(rename = "type")]
    fs_type: &'a str,
    label: String,
    uuid: String,
    size_bytes: u64,
    block_size: u32,
    cluster_size: u32,
    blocks: u64,
    free_blocks: u64,
    reserved_blocks: u64,
    inodes: u32,
    free_inodes: u32,
    inode_size: usize,
    groups: u32,
    blocks_per_group: u32,
    inodes_per_group: u32,
    journal_blocks: Option<u64>,
    backups: Vec<u64>,
    features: Vec<String>,
    notes: &'a [String],
}

pub fn run(args: &MkfsArgs, out: &mut Out) -> Result<Status, Failure> {
    let about = args.image.display();
    let failed = |error| Failure::engine(&about, b"", &error);
    let mkfs = wishes(&args.fs, Mkfs::new().force(args.force)).map_err(failed)?;
    let plan = if args.dry_run {
        let plan = mkfs.plan_on(&args.image, args.size_bytes());
        plan.map_err(failed)?
    } else {
        make(args, mkfs)?
    };
    if args.json {
        out.json(&told(args, &plan))?;
    } else if !args.quiet {
        print(args, &plan, out)?;
    }
    for note in plan.notes().iter().filter(|_| !args.json) {
        complain(format_args!("{about}: {note}"));
    }
    Ok(Status::Fine)
}

/// What is wished for, on top of what `mkfs` has.
pub fn wishes(args: &FsArgs, mkfs: Mkfs) -> dioxide::Result<Mkfs> {
    let mut mkfs = mkfs.fs_type(args.fs_type());
    if let Some(bytes) = args.block_size {
        mkfs = mkfs.block_size(bytes)?;
    }
    if let Some(bytes) = args.cluster_size {
        mkfs = mkfs.cluster_size(bytes)?;
    }
    if let Some(bytes) = args.bytes_per_inode {
        mkfs = mkfs.bytes_per_inode(bytes)?;
    }
    if let Some(bytes) = args.inode_size {
        mkfs = mkfs.inode_size(bytes)?;
    }
    if let Some(count) = args.inodes {
        mkfs = mkfs.inodes_count(count);
    }
    if let Some(percent) = args.reserved_percent {
        mkfs = mkfs.reserved_percent(percent)?;
    }
    if let Some(groups) = args.flex_groups {
        mkfs = mkfs.flex_groups(groups)?;
    }
    if let Some(label) = &args.label {
        mkfs = mkfs.label(label)?;
    }
    for list in &args.features {
        mkfs = mkfs.features(list)?;
    }
    for list in &args.extended {
        mkfs = mkfs.extended(list)?;
    }
    for list in &args.journal {
        mkfs = mkfs.journal(list)?;
    }
    identity(args, mkfs)
}

fn identity(args: &FsArgs, mut mkfs: Mkfs) -> dioxide::Result<Mkfs> {
    let known = |uuid: Uuid| -> dioxide::Result<[u8; 16]> {
        match uuid {
            Uuid::Known(uuid) => Ok(uuid),
            Uuid::Random => Ok(of_version(random_bytes()?, 4)),
            Uuid::Time => Ok(time_uuid(random_bytes()?, now_in_ticks())),
        }
    };
    if let Some(uuid) = args.uuid {
        mkfs = mkfs.uuid(known(uuid)?);
    }
    if let Some(seed) = args.hash_seed {
        mkfs = mkfs.hash_seed(known(seed)?);
    }
    let epoch = match args.epoch {
        Some(epoch) => Some(epoch),
        None => source_date_epoch()?,
    };
    Ok(match epoch {
        Some(epoch) => mkfs.epoch(epoch),
        None => mkfs,
    })
}

fn random_bytes() -> dioxide::Result<[u8; 16]> {
    let mut bytes = [0; 16];
    let read = File::open("/dev/urandom").and_then(|mut source| source.read_exact(&mut bytes));
    read.map_err(|error| dioxide::Error::Invalid(format!("no random numbers: {error}")))?;
    Ok(bytes)
}

/// Makes a uuid of bytes: some bits say of what kind it is.
fn of_version(mut bytes: [u8; 16], version: u8) -> [u8; 16] {
    bytes[6] = bytes[6] & 0x0F | version << 4;
    bytes[8] = bytes[8] & 0x3F | 0x80;
    bytes
}

/// A uuid of a time; in place of the address of a network card it has random bits, marked as such.
fn time_uuid(random: [u8; 16], ticks: u64) -> [u8; 16] {
    let mut bytes = random;
    bytes[..4].copy_from_slice(&(ticks as u32).to_be_bytes());
    bytes[4..6].copy_from_slice(&((ticks >> 32) as u16).to_be_bytes());
    bytes[6..8].copy_from_slice(&((ticks >> 48) as u16).to_be_bytes());
    bytes[10] |= 1;
    of_version(bytes, 1)
}

/// The time as uuids count it: in steps of 100 ns since 15 October 1582.
fn now_in_ticks() -> u64 {
    const TO_1970: u64 = 0x01B2_1DD2_1381_4000;
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    TO_1970 + since.map_or(0, |since| (since.as_nanos() / 100) as u64)
}

fn make(args: &MkfsArgs, mkfs: Mkfs) -> Result<Plan, Failure> {
    let about = args.image.display();
    let failed = |error| Failure::engine(&about, b"", &error);
    let mkfs = match args.force || !may_ask() {
        true => mkfs,
        false => match mkfs.found_on(&args.image).map_err(failed)? {
            Some(found) => mkfs.force(ask(args, &found)?),
            None => mkfs,
        },
    };
    let mut bar = match args.quiet {
        true => Progress::none(),
        false => Progress::of_steps(),
    };
    let mut progress = |done, total| bar.set(done, total, "block groups".into());
    mkfs.create_with(&args.image, args.size_bytes(), Some(&mut progress))
        .map_err(failed)
}

fn may_ask() -> bool {
    io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// Whether to overwrite what is there. A no is told like any other refusal.
fn ask(args: &MkfsArgs, found: &str) -> Result<bool, Failure> {
    eprint!(
        "dioxide: {} holds {found}. Overwrite it? [y/N] ",
        args.image.display()
    );
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

fn told<'a>(args: &'a MkfsArgs, plan: &'a Plan) -> Told<'a> {
    let sb = plan.superblock();
    Told {
        image: Text::path("image", &args.image),
        made: !args.dry_run,
        fs_type: &args.fs.fs_type,
        label: sb.volume_name(),
        uuid: uuid_string(sb.uuid()),
        size_bytes: sb.blocks_count() * u64::from(sb.block_size()),
        block_size: sb.block_size(),
        cluster_size: sb.cluster_size(),
        blocks: sb.blocks_count(),
        free_blocks: sb.free_blocks_count(),
        reserved_blocks: sb.reserved_blocks_count(),
        inodes: sb.inodes_count(),
        free_inodes: sb.free_inodes_count(),
        inode_size: sb.inode_size(),
        groups: sb.group_count(),
        blocks_per_group: sb.blocks_per_group(),
        inodes_per_group: sb.inodes_per_group(),
        journal_blocks: plan.journal_blocks(),
        backups: plan.backups(),
        features: sb.features().names(),
        notes: plan.notes(),
    }
}

fn print(args: &MkfsArgs, plan: &Plan, out: &mut Out) -> io::Result<()> {
    let sb = plan.superblock();
    let block = u64::from(sb.block_size());
    let dry = if args.dry_run { ", not made" } else { "" };
    writeln!(
        out,
        "{}: {} file system of {}{dry}",
        args.image.display(),
        args.fs.fs_type,
        bytes_words(sb.blocks_count() * block),
    )?;
    let mut line = |label: &str, value: String| match value.is_empty() {
        true => Ok(()),
        false => writeln!(out, "  {label:<9} {value}"),
    };
    line("label", printable(&sb.volume_name()).into_owned())?;
    line("uuid", uuid_string(sb.uuid()))?;
    line("blocks", blocks_words(plan))?;
    if sb.has_bigalloc() {
        line("clusters", format!("{} bytes each", sb.cluster_size()))?;
    }
    line(
        "inodes",
        format!("{} of {} bytes", sb.inodes_count(), sb.inode_size()),
    )?;
    line("groups", groups_words(plan))?;
    let journal = plan.journal_blocks().map(|blocks| {
        let bytes = bytes_words(blocks * block);
        format!("{}, {bytes}", count_words(blocks, "block"))
    });
    line("journal", journal.unwrap_or_else(|| "none".into()))?;
    line("backups", backups_words(plan))?;
    line("features", sb.features().names().join(" "))
}

fn blocks_words(plan: &Plan) -> String {
    let sb = plan.superblock();
    format!(
        "{} of {} bytes, {} free, {} reserved",
        sb.blocks_count(),
        sb.block_size(),
        sb.free_blocks_count(),
        sb.reserved_blocks_count()
    )
}

fn groups_words(plan: &Plan) -> String {
    let sb = plan.superblock();
    format!(
        "{} of {} blocks and {} inodes",
        sb.group_count(),
        sb.blocks_per_group(),
        sb.inodes_per_group()
    )
}

fn backups_words(plan: &Plan) -> String {
    let backups = plan.backups();
    let listed = backups.iter().take(LISTED_BACKUPS).map(u64::to_string);
    let mut words = listed.collect::<Vec<_>>().join(", ");
    if backups.len() > LISTED_BACKUPS {
        words += &format!(" and {} more", backups.len() - LISTED_BACKUPS);
    }
    if words.is_empty() {
        words = "none".into();
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuid_of_a_time_has_the_time_in_it() {
        // That of the namespace of domain names in RFC 9562.
        let ticks = 0x01D1_9DAD_6BA7_B810;
        let uuid = uuid_string(time_uuid([0xFF; 16], ticks));
        assert_eq!(uuid, "6ba7b810-9dad-11d1-bfff-ffffffffffff");
    }
}
