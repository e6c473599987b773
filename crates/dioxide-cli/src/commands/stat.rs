//! `dioxide stat`: in the shape of `stat`, and below it what only ext4 has.

use crate::address::Address;
use crate::args::StatArgs;
use crate::failure::{Failure, Status, for_each};
use crate::images::Images;
use crate::output::Out;
use crate::render::{Name, full_time, mode_string, type_words};
use dioxide::format::inode::InodeFlags;
use dioxide::{Error, FileType, Fs, Metadata, Xattr};
use serde::Serialize;
use std::io::{self, Write};

/// All that is told of one file.
#[derive(Serialize)]
struct Told<'a> {
    #[serde(skip)]
    address: &'a Address,
    image: String,
    path: String,
    #[serde(flatten)]
    metadata: Metadata,
    mode: String,
    flag_names: Vec<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<Name>,
    xattrs: Vec<JsonXattr>,
}

#[derive(Serialize)]
struct JsonXattr {
    #[serde(flatten)]
    name: Name,
    value: Name,
}

pub fn run(args: &StatArgs, out: &mut Out) -> Result<Status, Failure> {
    let mut images = Images::new(&args.open);
    let mut all = Vec::new();
    let status = for_each(&args.paths, |address| {
        let fs = images.fs(&address.image)?;
        let told = gather(&fs, address, args.dereference)
            .map_err(|error| Failure::engine(address, &address.path, &error))?;
        if args.json {
            all.push(told);
            return Ok(());
        }
        Ok(print(&told, out)?)
    })?;
    if args.json {
        out.json(&all)?;
    }
    Ok(status)
}

fn gather<'a>(fs: &Fs, address: &'a Address, follow: bool) -> Result<Told<'a>, Error> {
    let path = &address.path;
    let metadata = if follow {
        fs.metadata(path)?
    } else {
        fs.symlink_metadata(path)?
    };
    let is_link = metadata.file_type == FileType::Symlink;
    let target = is_link.then(|| fs.read_link(path)).transpose()?;
    // Attributes are looked up by the path, which would lead past a link.
    let xattrs = if is_link {
        Vec::new()
    } else {
        fs.xattrs(path)?
    };
    Ok(Told {
        address,
        image: address.image.display().to_string(),
        path: String::from_utf8_lossy(path).into_owned(),
        mode: mode_string(metadata.file_type, metadata.permissions),
        flag_names: InodeFlags(metadata.flags).names(),
        metadata,
        target: target.map(Name),
        xattrs: xattrs.into_iter().map(json_xattr).collect(),
    })
}

fn json_xattr(xattr: Xattr) -> JsonXattr {
    JsonXattr {
        name: Name(xattr.name),
        value: Name(xattr.value),
    }
}

fn print(told: &Told<'_>, out: &mut Out) -> io::Result<()> {
    let Metadata {
        size,
        blocks,
        block_size,
        ino,
        nlink,
        permissions,
        ..
    } = told.metadata;
    write!(out, "  File: {}", told.address)?;
    if let Some(Name(target)) = &told.target {
        out.write_all(b" -> ")?;
        out.name(target)?;
    }
    let kind = type_words(told.metadata.file_type, size);
    writeln!(
        out,
        "\n  Size: {size:<10}\tBlocks: {blocks:<10} IO Block: {block_size:<6} {kind}"
    )?;
    write!(out, " Inode: {ino:<10}\tLinks: {nlink}")?;
    if let Some((major, minor)) = told.metadata.device {
        write!(out, "     Device type: {major},{minor}")?;
    }
    let (uid, gid) = (told.metadata.uid, told.metadata.gid);
    writeln!(
        out,
        "\nAccess: ({permissions:04o}/{})  Uid: {uid:5}   Gid: {gid:5}",
        told.mode
    )?;
    print_times(&told.metadata, out)?;
    print_ext4(told, out)
}

fn print_times(metadata: &Metadata, out: &mut Out) -> io::Result<()> {
    writeln!(out, "Access: {}", full_time(metadata.atime))?;
    writeln!(out, "Modify: {}", full_time(metadata.mtime))?;
    writeln!(out, "Change: {}", full_time(metadata.ctime))?;
    let birth = metadata.crtime.map_or_else(|| "-".into(), full_time);
    writeln!(out, " Birth: {birth}")
}

fn print_ext4(told: &Told<'_>, out: &mut Out) -> io::Result<()> {
    let Metadata {
        flags,
        generation,
        project,
        ..
    } = told.metadata;
    let names = match told.flag_names.join(", ") {
        names if names.is_empty() => "none".into(),
        names => names,
    };
    writeln!(
        out,
        " Flags: {flags:#x} ({names})  Generation: {generation}"
    )?;
    if let Some(project) = project {
        writeln!(out, "Project: {project}")?;
    }
    for xattr in &told.xattrs {
        out.write_all(b" Xattr: ")?;
        out.name(&xattr.name.0)?;
        writeln!(out, "={}", xattr.value.0.escape_ascii())?;
    }
    Ok(())
}
