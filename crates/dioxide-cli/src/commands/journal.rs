//! `dioxide journal`: the state of a journal, what is in it, and its replay.

use crate::args::JournalArgs;
use crate::failure::{Failure, Status};
use crate::images::warn_if_used;
use crate::output::Out;
use crate::progress::waiting;
use crate::render::{count_words, second_time};
use dioxide::check::journal::{JournalState, Transaction, journal_state};
use dioxide::{Fs, MountOptions};
use std::io::Write;

/// Blocks of a transaction that are named in its line.
const FEW: usize = 8;

pub fn run(args: &JournalArgs, out: &mut Out) -> Result<Status, Failure> {
    if args.replay {
        replay(args, out)?;
    } else {
        warn_if_used(&args.image.image);
    }
    let fail = |error: dioxide::Error| Failure::engine(args.image.image.display(), b"", &error);
    let device = args.image.open().map_err(|error| fail(error.into()))?;
    let options = args
        .image
        .check_options()
        .map_err(|error| fail(error.into()))?;
    let state = journal_state(device, &options, args.list).map_err(fail)?;
    match args.json {
        true => out.json(&state)?,
        false => print(&state, out)?,
    }
    Ok(Status::Fine)
}

fn replay(args: &JournalArgs, out: &mut Out) -> Result<(), Failure> {
    let about = args.image.image.display();
    let options = MountOptions::new()
        .backend(args.image.backend)
        .img_offset(args.image.img_offset)
        .on_wait(waiting);
    let fail = |error| Failure::engine(args.image.image.display(), b"", &error);
    let fs = Fs::open(&args.image.image, &args.image.journal.set(options)).map_err(fail)?;
    if let Some(why) = fs.read_only() {
        return Err(Failure::trouble(about, format!("not replayed: {why}")));
    }
    if !args.json {
        for warning in fs.warnings() {
            writeln!(out, "{warning}")?;
        }
    }
    fs.close().map_err(fail)
}

fn print(state: &JournalState, out: &mut Out) -> Result<(), Failure> {
    let features = match &state.features[..] {
        [] => "none".to_owned(),
        names => names.join(" "),
    };
    let verdict = match (state.is_empty, &state.recovery.refused) {
        (_, Some(why)) => format!("damaged: {why}"),
        (true, None) => "clean".to_owned(),
        (false, None) => format!(
            "needs recovery: {}, {} ({} revoked), {}",
            count_words(state.recovery.transactions.into(), "transaction"),
            count_words(state.recovery.blocks, "block"),
            state.recovery.revoked,
            count_words(state.recovery.fast_commits.into(), "fast commit"),
        ),
    };
    writeln!(out, "State:        {verdict}")?;
    match state.ino {
        0 => writeln!(out, "Inode:        none, it has a device to itself")?,
        ino => writeln!(out, "Inode:        {ino}")?,
    }
    writeln!(out, "UUID:         {}", state.uuid)?;
    for user in &state.users {
        writeln!(out, "File system:  {user}")?;
    }
    writeln!(
        out,
        "Size:         {} blocks of {} bytes",
        state.blocks, state.block_size
    )?;
    writeln!(out, "Features:     {features}")?;
    writeln!(out, "Sequence:     {}", state.sequence)?;
    writeln!(out, "Tail, head:   {}, {}", state.tail, state.head)?;
    writeln!(out, "Fast commits: {} blocks", state.fast_commit_blocks)?;
    writeln!(
        out,
        "Aborted:      {}",
        match state.errno {
            0 => "no".to_owned(),
            errno => format!("errno {errno}"),
        }
    )?;
    for transaction in &state.transactions {
        print_transaction(transaction, out)?;
    }
    for change in &state.fast_commits {
        writeln!(out, "fast commit: {change}")?;
    }
    Ok(())
}

fn print_transaction(transaction: &Transaction, out: &mut Out) -> Result<(), Failure> {
    let committed = match transaction.committed {
        Some(secs) => format!("committed {}", second_time(secs.cast_signed())),
        None => "not committed".to_owned(),
    };
    let (blocks, revoked) = (&transaction.blocks, &transaction.revoked);
    writeln!(
        out,
        "transaction {} at {}: {}, {} revoked, {committed}",
        transaction.sequence,
        transaction.at,
        count_words(blocks.len() as u64, "block"),
        revoked.len(),
    )?;
    for logged in blocks.iter().take(FEW) {
        let kind = logged.kind.unwrap_or("directory, map or attributes");
        writeln!(out, "  block {} at {}: {kind}", logged.block, logged.at)?;
    }
    if blocks.len() > FEW {
        writeln!(out, "  and {} more; --json has all", blocks.len() - FEW)?;
    }
    for bad in &transaction.bad_checksums {
        writeln!(out, "  {bad}")?;
    }
    Ok(())
}
