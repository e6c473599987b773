//! dioxide's side: an open image.

use crate::op::{Answer, Op};
use crate::view::{Content, Entry, Firsts, View, digest};
use dioxide::{
    Error, File, FileType, Fs, NewFile, Node, OpenOptions, RenameMode, SetAttributes, XattrMode,
};
use dioxide_testkit::pattern;

/// Carries the calls out; what each answered.
pub fn run(fs: &Fs, ops: &[Op]) -> Vec<Answer> {
    let run = |op: &Op| one(fs, op).map_err(|error| error.errno());
    ops.iter().map(run).collect()
}

fn writable(fs: &Fs, path: &[u8]) -> Result<File, Error> {
    OpenOptions::new().write(true).open(fs, path)
}

fn set(fs: &Fs, path: &[u8], set: &SetAttributes) -> Result<(), Error> {
    fs.symlink_node(path)?.set_attributes(set)
}

fn one(fs: &Fs, op: &Op) -> Result<(), Error> {
    match op {
        Op::Dir(path, mode) => fs.create_dir(path, &NewFile::new(*mode)),
        Op::File(path, mode) => {
            let options = OpenOptions::new().write(true).create_new(true);
            let options = options.new_file(&NewFile::new(*mode));
            options.open(fs, path).map(drop)
        }
        Op::Symlink(target, path) => fs.symlink(target, path, &NewFile::default()),
        Op::Special(path, special) => fs.mknod(path, *special, &NewFile::new(0o640)),
        Op::Link(old, new) => fs.hard_link(old, new),
        Op::Unlink(path) => fs.remove_file(path),
        Op::Rmdir(path) => fs.remove_dir(path),
        Op::Rename(from, to) => fs.rename(from, to, RenameMode::Replace),
        Op::Exchange(from, to) => fs.rename(from, to, RenameMode::Exchange),
        Op::Write(path, offset, len, seed) => {
            let bytes = pattern(*seed, *offset, *len);
            assert_eq!(writable(fs, path)?.write_at(&bytes, *offset)?, *len);
            Ok(())
        }
        Op::Truncate(path, len) => writable(fs, path)?.set_len(*len),
        Op::Fallocate(path, mode, offset, len) => {
            writable(fs, path)?.allocate(*mode, *offset, *len)
        }
        Op::Xattr(path, name, value) => {
            fs.symlink_node(path)?
                .set_xattr(name, value, XattrMode::Set)
        }
        Op::RemoveXattr(path, name) => fs.symlink_node(path)?.remove_xattr(name),
        Op::Chmod(path, mode) => set(fs, path, &SetAttributes::new().mode(*mode)),
        Op::Chown(path, uid, gid) => set(fs, path, &SetAttributes::new().uid(*uid).gid(*gid)),
        Op::Mtime(path, time) => set(fs, path, &SetAttributes::new().mtime(*time)),
        Op::Flags(path, flags) => {
            let node = fs.symlink_node(path)?;
            let flags = node.metadata().flags | flags;
            node.set_attributes(&SetAttributes::new().flags(flags))
        }
    }
}

/// The flags that Linux shows.
const VISIBLE: u32 = 0x725B_DFFF;

/// What the open image looks like.
pub fn view(fs: &Fs) -> View {
    let (mut view, mut firsts) = (View::new(), Firsts::default());
    let mut paths = vec![b"/".to_vec()];
    while let Some(path) = paths.pop() {
        let node = fs.symlink_node(&path).expect("it is listed");
        if node.file_type() == FileType::Directory {
            paths.extend(children(fs, &path));
        }
        let entry = entry(&node);
        firsts.note(entry.ino, &path);
        view.insert(path, entry);
    }
    firsts.resolve(&mut view);
    view
}

fn children(fs: &Fs, path: &[u8]) -> Vec<Vec<u8>> {
    let base = if path == b"/" { b"" } else { path };
    let entries = fs.read_dir(path).expect("a directory").into_iter();
    let names = entries.map(|entry| entry.name);
    let names = names.filter(|name| name != b"." && name != b"..");
    names.map(|name| [base, b"/", &name[..]].concat()).collect()
}

fn entry(node: &Node) -> Entry {
    let about = node.metadata();
    let is_shown = matches!(about.file_type, FileType::Regular | FileType::Directory);
    let xattrs = node.xattrs().expect("attributes");
    let mut xattrs: Vec<_> = xattrs.into_iter().map(|x| (x.name, x.value)).collect();
    xattrs.sort();
    Entry {
        kind: about.file_type,
        mode: about.permissions,
        uid: about.uid,
        gid: about.gid,
        nlink: about.nlink,
        size: about.size,
        blocks: about.blocks,
        device: about.device,
        atime: about.atime,
        mtime: about.mtime,
        ctime: about.ctime,
        crtime: about.crtime,
        ino: about.ino.into(),
        flags: is_shown.then_some(about.flags & VISIBLE),
        content: content(node, about.file_type),
        xattrs,
        first: Vec::new(),
    }
}

fn content(node: &Node, kind: FileType) -> Content {
    match kind {
        FileType::Symlink => Content::Target(node.read_link().expect("a symlink")),
        FileType::Regular => data(&node.open(&OpenOptions::new().read(true)).expect("it opens")),
        _ => Content::None,
    }
}

fn data(file: &File) -> Content {
    let (mut ranges, mut sum) = (Vec::new(), 0u64);
    let mut at = 0;
    while at < file.len() {
        let Some(start) = file.seek_data(at).expect("a map") else {
            break;
        };
        let end = file
            .seek_hole(start)
            .expect("a map")
            .expect("a hole, or the end");
        let mut bytes = vec![0; (end - start) as usize];
        let read = file.read_at(&mut bytes, start).expect("it reads");
        assert_eq!(read, bytes.len());
        ranges.push((start, end));
        sum = sum.wrapping_add(digest(start, &bytes));
        at = end;
    }
    Content::Data(ranges, sum)
}
