//! Writes a tree into a file system that is empty, through the library's own interface.
//!
//! Attributes come last, so that nothing that is done to a file changes them: those of a directory
//! once all is in it. Until then its files inherit neither its group nor its default list. Flags and projects come when
//! all is there: an immutable file gets no second name.

use crate::entry::{Entry, Kind};
use crate::error::{Error, Result, shown};
use crate::sink::Sink;
use crate::tree::Warning;
use dioxide::{File, Fs, NewFile, Node, OpenOptions, SetAttributes, Special, Timestamp, XattrMode};

/// What a new file system has already.
const LOST_AND_FOUND: &[u8] = b"lost+found";

/// Latest and earliest time that an inode of 256 bytes has; one of 128 has seconds of 32 bits.
const LATEST: i64 = (3 << 32) + i32::MAX as i64;
const LATEST_SMALL: i64 = i32::MAX as i64;
const EARLIEST: i64 = i32::MIN as i64;

pub(super) struct ImageSink<'a> {
    fs: &'a Fs,
    /// The directories from the root to where the tree is.
    above: Vec<Node>,
    /// What was begun and is no directory, and its path.
    node: Option<Node>,
    path: Vec<u8>,
    file: Option<File>,
    small_inodes: bool,
    told_nanos: bool,
    /// What has flags or a project.
    flagged: Vec<Flagged>,
    warnings: Vec<Warning>,
}

struct Flagged {
    path: Vec<u8>,
    flags: u32,
    project: u32,
}

fn failed(entry: &Entry) -> impl Fn(dioxide::Error) -> Error {
    |source| Error::Image {
        name: shown(&entry.path),
        source,
    }
}

impl<'a> ImageSink<'a> {
    pub(super) fn new(fs: &'a Fs) -> dioxide::Result<ImageSink<'a>> {
        Ok(ImageSink {
            fs,
            above: vec![fs.root()?],
            node: None,
            path: Vec::new(),
            file: None,
            small_inodes: fs.superblock().inode_size() == 128,
            told_nanos: false,
            flagged: Vec::new(),
            warnings: Vec::new(),
        })
    }

    pub(super) fn into_warnings(self) -> Vec<Warning> {
        self.warnings
    }

    fn here(&self) -> &Node {
        self.above.last().expect("the root stays")
    }

    fn directory(&mut self, entry: &Entry, new: &NewFile) -> dioxide::Result<()> {
        let made = match &entry.path[..] {
            LOST_AND_FOUND => self.here().lookup(LOST_AND_FOUND)?,
            _ => self.here().create_dir(entry.name(), new)?,
        };
        self.above.push(made);
        Ok(())
    }

    fn make(&mut self, entry: &Entry) -> dioxide::Result<()> {
        let (here, name) = (self.here(), entry.name());
        if entry.path == LOST_AND_FOUND && !entry.is_directory() {
            here.remove_dir(LOST_AND_FOUND)?;
        }
        let permissions = match entry.kind {
            Kind::Symlink(_) => 0o777,
            _ => entry.permissions,
        };
        let new = NewFile::new(permissions).owner(entry.uid, entry.gid);
        let node = match &entry.kind {
            Kind::Directory => {
                let new = NewFile::new(0o700).owner(entry.uid, entry.gid);
                return self.directory(entry, &new);
            }
            Kind::HardLink(target) => {
                return self.fs.symlink_node(target)?.link(here, name);
            }
            Kind::File(_) => here.create(name, &new)?,
            Kind::Symlink(target) => here.symlink(target, name, &new)?,
            Kind::CharDevice(major, minor) => {
                here.mknod(name, Special::CharDevice(*major, *minor), &new)?
            }
            Kind::BlockDevice(major, minor) => {
                here.mknod(name, Special::BlockDevice(*major, *minor), &new)?
            }
            Kind::Fifo => here.mknod(name, Special::Fifo, &new)?,
            Kind::Socket => here.mknod(name, Special::Socket, &new)?,
        };
        self.node = Some(node);
        Ok(())
    }

    fn file(&mut self) -> dioxide::Result<&File> {
        if self.file.is_none() {
            let node = self.node.as_ref().expect("a file was begun");
            let for_all = OpenOptions::new().write(true).resource(true).fsetid(true);
            self.file = Some(node.open(&for_all)?);
        }
        Ok(self.file.as_ref().expect("it was opened"))
    }

    /// The end of a file may be a hole.
    fn set_len(&mut self, size: u64) -> dioxide::Result<()> {
        let node = self.node.as_ref().expect("a file was begun");
        if node.metadata().size == size {
            return Ok(());
        }
        self.file()?.set_len(size)
    }

    /// The time as the inode can have it.
    fn time(&mut self, entry: &Entry) -> Timestamp {
        let latest = if self.small_inodes {
            LATEST_SMALL
        } else {
            LATEST
        };
        let secs = entry.mtime.secs.clamp(EARLIEST, latest);
        let nanos = if self.small_inodes {
            0
        } else {
            entry.mtime.nanos
        };
        if nanos != entry.mtime.nanos && !std::mem::replace(&mut self.told_nanos, true) {
            let what = "has a time with nanoseconds, of which inodes of 128 bytes have none (nor have those of others)";
            self.warnings.push(Warning::new(&entry.path, what));
        }
        if secs != entry.mtime.secs {
            let what = format!(
                "has the time {secs}: an inode has none of {}",
                entry.mtime.secs
            );
            self.warnings.push(Warning::new(&entry.path, what));
        }
        Timestamp { secs, nanos }
    }

    fn attributes(&mut self, entry: &Entry, node: &Node) -> Result<()> {
        let failed = failed(entry);
        let time = self.time(entry);
        let mut set = SetAttributes::new().atime(time).mtime(time);
        if entry.path.is_empty() || entry.path == LOST_AND_FOUND {
            set = set.uid(entry.uid).gid(entry.gid);
        }
        if entry.is_directory() {
            set = set.mode(entry.permissions);
        }
        node.set_attributes(&set).map_err(&failed)?;
        for xattr in &entry.xattrs {
            match node.set_xattr(&xattr.name, &xattr.value, XattrMode::Create) {
                Err(dioxide::Error::Unsupported(why) | dioxide::Error::NotPermitted(why)) => {
                    let what = format!("no attribute {}: {why}", shown(&xattr.name));
                    self.warnings.push(Warning::new(&entry.path, what));
                }
                done => done.map_err(&failed)?,
            }
        }
        if (entry.flags, entry.project) != (0, 0) {
            self.flagged.push(Flagged {
                path: entry.path.clone(),
                flags: entry.flags,
                project: entry.project,
            });
        }
        Ok(())
    }

    fn give_flags(&mut self, flagged: &Flagged) -> dioxide::Result<()> {
        let node = match &flagged.path[..] {
            b"" => self.fs.root()?,
            path => self.fs.symlink_node(path)?,
        };
        if flagged.project != 0 {
            let project = SetAttributes::new().project(flagged.project);
            match node.set_attributes(&project) {
                Err(dioxide::Error::Unsupported(why)) => {
                    let what = format!("no project {}: {why}", flagged.project);
                    self.warnings.push(Warning::new(&flagged.path, what));
                }
                done => done?,
            }
        }
        if flagged.flags != 0 {
            let flags = node.metadata().flags | flagged.flags;
            node.set_attributes(&SetAttributes::new().flags(flags))?;
        }
        Ok(())
    }
}

impl Sink for ImageSink<'_> {
    fn begin(&mut self, entry: &Entry) -> Result<()> {
        if entry.path.is_empty() {
            return Ok(());
        }
        self.path.clear();
        self.path.extend_from_slice(&entry.path);
        self.make(entry).map_err(failed(entry))
    }

    fn data(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        let mut write = || -> dioxide::Result<()> {
            let file = self.file()?;
            let mut done = 0;
            while done < bytes.len() {
                done += file.write_at(&bytes[done..], offset + done as u64)?;
            }
            Ok(())
        };
        write().map_err(|source| Error::Image {
            name: shown(&self.path),
            source,
        })
    }

    fn end(&mut self, entry: &Entry) -> Result<()> {
        let node = match &entry.kind {
            Kind::HardLink(_) => return Ok(()),
            Kind::Directory if entry.path.is_empty() => self.here().clone(),
            Kind::Directory => self.above.pop().expect("it was begun"),
            Kind::File(data) => {
                self.set_len(data.size).map_err(failed(entry))?;
                self.node.take().expect("it was begun")
            }
            _ => self.node.take().expect("it was begun"),
        };
        self.attributes(entry, &node)?;
        // Last: a file that is closed before its times are written is kept in memory for them.
        self.file = None;
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        for flagged in std::mem::take(&mut self.flagged) {
            let given = self.give_flags(&flagged);
            given.map_err(|source| Error::Image {
                name: shown(&flagged.path),
                source,
            })?;
        }
        Ok(())
    }

    fn warnings(&self) -> &[Warning] {
        &self.warnings
    }
}

#[cfg(test)]
mod tests {
    use super::super::mount_options;
    use super::*;
    use crate::entry::FileData;
    use dioxide::block::mem::MemDevice;
    use dioxide::block::{Buf, Device};
    use dioxide::mkfs::{Plan, WriteOptions};
    use dioxide::{FallocateMode, Mkfs};
    use std::sync::Arc;

    const IMAGE_BYTES: u64 = 8 << 20;

    fn file(number: usize, size: usize) -> Entry {
        Entry {
            path: number.to_string().into_bytes(),
            kind: Kind::File(FileData::whole(size as u64, 0)),
            permissions: 0o644,
            uid: 0,
            gid: 0,
            mtime: Timestamp { secs: 2, nanos: 0 },
            flags: 0,
            project: 0,
            xattrs: Vec::new(),
        }
    }

    /// A file system whose free space is in pieces of seven blocks.
    fn scattered() -> (MemDevice, Plan) {
        let mkfs = Mkfs::new().block_size(1024).expect("a size");
        let plan = mkfs.epoch(1).uuid([1; 16]).hash_seed([2; 16]);
        let plan = plan.plan(IMAGE_BYTES).expect("a plan");
        let device = MemDevice::new(IMAGE_BYTES);
        let mut fresh = WriteOptions {
            reads_zero: true,
            progress: None,
        };
        plan.write(&device, &mut fresh).expect("room");
        let fs = Fs::open_device(Arc::new(device.clone()), &mount_options(&plan));
        let fs = fs.expect("it is new");
        let all = OpenOptions::new().write(true).create_new(true);
        let all = all.open(&fs, "/all").expect("a new file");
        let mut end = 0;
        while let Ok(wrote) = all.write_at(&[1; 64 << 10], end) {
            end += wrote as u64;
        }
        for at in (0..end).step_by(16 << 10) {
            all.allocate(FallocateMode::PunchHole, at, 7 << 10)
                .expect("it is allocated");
        }
        drop(all);
        fs.close().expect("a clean end");
        (device, plan)
    }

    /// An image of files whose contents lie so many bytes behind the begin of a page.
    fn image(behind: usize) -> Vec<u8> {
        let (device, plan) = scattered();
        let fs = Fs::open_device(Arc::new(device.clone()), &mount_options(&plan));
        let fs = fs.expect("it was closed cleanly");
        let mut sink = ImageSink::new(&fs).expect("it has a root");
        let mut buf = Buf::zeroed(128 << 10);
        for number in 0..20 {
            let entry = file(number, 64 << 10);
            let bytes = &mut buf[behind..behind + (64 << 10)];
            bytes.fill(number as u8);
            sink.begin(&entry).expect("a new file");
            sink.data(0, bytes).expect("room");
            sink.end(&entry).expect("its attributes");
        }
        drop(sink);
        fs.close().expect("a clean end");
        let mut all = vec![0; IMAGE_BYTES as usize];
        device.read_at(0, &mut all).expect("all of it");
        all
    }

    #[test]
    fn bytes_of_an_image_do_not_depend_on_where_contents_lie_in_memory() {
        let aligned = image(0);
        for behind in [16, 512] {
            assert!(image(behind) == aligned, "{behind}");
        }
    }
}
