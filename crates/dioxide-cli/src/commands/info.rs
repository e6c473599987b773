//! `dioxide info`: the superblock in words.
//!
//! The superblock is read and shown even where the file system cannot be opened; whether it can is
//! the last line, and the exit status.

mod words;

use crate::args::InfoArgs;
use crate::failure::{Failure, Status, complain};
use crate::images::{warn, warn_if_used};
use crate::output::Out;
use crate::render::Text;
use dioxide::block::Device;
use dioxide::block::file::FileOptions;
use dioxide::format::superblock::{ErrorPolicy, SUPERBLOCK_OFFSET, SuperBlock};
use dioxide::mkfs::uuid_string;
use dioxide::{Buf, Fs, block, open_image_part};
use serde::Serialize;

/// Whether dioxide opens the file system.
#[derive(Serialize)]
struct Verdict {
    opens: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    why_not: Option<String>,
    warnings: Vec<String>,
}

pub fn run(args: &InfoArgs, out: &mut Out) -> Result<Status, Failure> {
    let sb = read_superblock(args)?;
    let verdict = judge(args);
    if args.json {
        out.json(&told(args, &sb, &verdict))?;
    } else {
        words::print(&args.image, &sb, &verdict, out)?;
    }
    if let Some(why) = &verdict.why_not {
        complain(format_args!("{}: {why}", args.image.display()));
        return Ok(Status::Negative);
    }
    Ok(Status::Fine)
}

fn read_superblock(args: &InfoArgs) -> Result<SuperBlock, Failure> {
    let about = args.image.display();
    let device = open(args).map_err(|error| Failure::engine(&about, b"", &error.into()))?;
    let offset = args
        .open
        .sb
        .map_or(SUPERBLOCK_OFFSET, |block_1k| block_1k.saturating_mul(1024));
    let about = args.image.display();
    let bytes = read_around(&*device, offset)
        .map_err(|error| Failure::engine(&about, b"", &error.into()))?
        .ok_or_else(|| Failure::trouble(args.image.display(), too_short(&*device, offset)))?;
    let trouble = |what: String| Failure::trouble(args.image.display(), what);
    let sb = SuperBlock::parse(&bytes).map_err(|error| trouble(error.to_string()))?;
    if sb.has_magic() {
        return Ok(sb);
    }
    // As every command words it, with the way out.
    Err(match Fs::open(&args.image, &args.open.mount_options()) {
        Err(error) => Failure::engine(about, b"", &error),
        Ok(_) => trouble(format!("no superblock at byte {offset}")),
    })
}

fn open(args: &InfoArgs) -> block::Result<std::sync::Arc<dyn Device>> {
    let options = FileOptions {
        backend: args.open.backend,
        img_offset: args.open.img_offset,
        ..FileOptions::default()
    };
    open_image_part(&args.image, &options)
}

/// The bytes of a superblock at `offset`, read with all the alignment that a device may ask for.
fn read_around(device: &dyn Device, offset: u64) -> block::Result<Option<Vec<u8>>> {
    const WINDOW_BYTES: u64 = 4096;
    let geometry = device.geometry();
    let start = offset - offset % WINDOW_BYTES;
    let logical = u64::from(geometry.logical_block_bytes);
    let end = start
        .saturating_add(WINDOW_BYTES.max(logical))
        .min(geometry.size_bytes / logical * logical);
    let skip = (offset - start) as usize;
    if end.saturating_sub(start) < skip as u64 + SuperBlock::SIZE as u64 {
        return Ok(None);
    }
    let mut window = Buf::zeroed((end - start) as usize);
    device.read_at(start, &mut window)?;
    Ok(Some(window[skip..skip + SuperBlock::SIZE].to_vec()))
}

fn too_short(device: &dyn Device, offset: u64) -> String {
    let size = device.geometry().size_bytes;
    format!("too short: a superblock at byte {offset} does not fit into {size} bytes")
}

fn judge(args: &InfoArgs) -> Verdict {
    let no = |why_not: String| Verdict {
        opens: false,
        why_not: Some(why_not),
        warnings: Vec::new(),
    };
    match Fs::open(&args.image, &args.open.mount_options()) {
        Ok(fs) => {
            warn(&args.image, &fs);
            Verdict {
                opens: true,
                why_not: None,
                warnings: fs.warnings().to_vec(),
            }
        }
        Err(error) => {
            warn_if_used(&args.image);
            no(error.to_string())
        }
    }
}

/// ext2 has no journal, ext3 has one, and ext4 is whatever has more.
fn kind(sb: &SuperBlock) -> &'static str {
    use dioxide::format::features::{Compat, Incompat, RoCompat};
    let features = sb.features();
    if features.incompat.contains(Incompat::JOURNAL_DEV) {
        return "journal";
    }
    let old_incompat = Incompat::FILETYPE | Incompat::NEEDS_RECOVERY | Incompat::META_BG;
    let old_ro = RoCompat::SPARSE_SUPER | RoCompat::LARGE_FILE;
    let only_old = features.incompat.unsupported(old_incompat).is_empty()
        && features.ro_compat.unsupported(old_ro).is_empty();
    match (only_old, features.compat.contains(Compat::HAS_JOURNAL)) {
        (false, _) => "ext4",
        (true, true) => "ext3",
        (true, false) => "ext2",
    }
}

fn error_policy(sb: &SuperBlock) -> String {
    match sb.errors() {
        ErrorPolicy::Continue => "continue".into(),
        ErrorPolicy::RemountReadOnly => "remount-ro".into(),
        ErrorPolicy::Panic => "panic".into(),
        ErrorPolicy::Unknown(other) => format!("unknown ({other})"),
    }
}

#[derive(Serialize)]
struct JsonFeatures {
    compat: Vec<String>,
    incompat: Vec<String>,
    ro_compat: Vec<String>,
}

/// The superblock as JSON. Times are seconds since 1970, 0 for never.
#[derive(Serialize)]
struct Told<'a> {
    #[serde(flatten)]
    image: Text,
    kind: &'static str,
    #[serde(flatten)]
    label: Text,
    uuid: String,
    #[serde(flatten)]
    last_mounted: Text,
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
    desc_size: usize,
    features: JsonFeatures,
    clean: bool,
    errors_recorded: bool,
    error_count: u32,
    error_policy: String,
    needs_recovery: bool,
    made: i64,
    mounted: i64,
    written: i64,
    checked: i64,
    mount_count: u16,
    kbytes_written: u64,
    dioxide: &'a Verdict,
}

fn up_to_nul(field: &[u8]) -> &[u8] {
    field.split(|&byte| byte == 0).next().unwrap_or_default()
}

fn told<'a>(args: &InfoArgs, sb: &SuperBlock, verdict: &'a Verdict) -> Told<'a> {
    use dioxide::format::superblock::{STATE_CLEAN, STATE_ERROR};
    let features = sb.features();
    Told {
        image: Text::path("image", &args.image),
        kind: kind(sb),
        label: Text::new("label", up_to_nul(&sb.disk().s_volume_name)),
        uuid: uuid_string(sb.uuid()),
        last_mounted: Text::new("last_mounted", up_to_nul(&sb.disk().s_last_mounted)),
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
        desc_size: sb.desc_size(),
        features: JsonFeatures {
            compat: features.compat.names(),
            incompat: features.incompat.names(),
            ro_compat: features.ro_compat.names(),
        },
        clean: sb.state() & STATE_CLEAN != 0,
        errors_recorded: sb.state() & STATE_ERROR != 0,
        error_count: sb.error_count(),
        error_policy: error_policy(sb),
        needs_recovery: sb.needs_recovery(),
        made: sb.mkfs_time(),
        mounted: sb.mount_time(),
        written: sb.write_time(),
        checked: sb.check_time(),
        mount_count: sb.mount_count(),
        kbytes_written: sb.kbytes_written(),
        dioxide: verdict,
    }
}
