//! A tree of files in memory, as POSIX and Linux have it: what each call does, and what it refuses with
//! which `errno`.
//!
//! Two layers: names in a directory that is known, and paths. It knows nothing of blocks.

use crate::attributes::{ACCESS, Attributes, DEFAULT};
use dioxide::format::features::{Incompat, RoCompat};
use dioxide::{FileType, Fs, RenameMode, Special, XattrMode};
use std::collections::BTreeMap;

/// A file, as long as it lives.
pub type Id = u32;
/// Success, or an `errno`.
pub type Answer<T = ()> = Result<T, i32>;

pub const ROOT: Id = 0;
const NAME_MAX: usize = 255;
/// Without the NUL.
const PATH_MAX: usize = 4095;
const MAX_SYMLINKS: u32 = 40;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Body {
    Dir {
        names: BTreeMap<Vec<u8>, Id>,
        parent: Id,
    },
    File(Vec<u8>),
    Symlink(Vec<u8>),
    Special(Special),
}

impl Body {
    pub fn file_type(&self) -> FileType {
        match self {
            Body::Dir { .. } => FileType::Directory,
            Body::File(_) => FileType::Regular,
            Body::Symlink(_) => FileType::Symlink,
            Body::Special(Special::Fifo) => FileType::Fifo,
            Body::Special(Special::Socket) => FileType::Socket,
            Body::Special(Special::CharDevice(..)) => FileType::CharDevice,
            Body::Special(Special::BlockDevice(..)) => FileType::BlockDevice,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    pub body: Body,
    pub nlink: u32,
    pub attributes: Attributes,
    /// Has had no name yet, so it may get its first.
    unnamed: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Tree {
    nodes: BTreeMap<Id, Node>,
    /// What is open, by slot.
    pub open: BTreeMap<u32, Id>,
    next: Id,
    /// Longest target of a symlink.
    target_most: usize,
    /// A value of this length that no inode of its own can hold has no room.
    pub value_most: Option<usize>,
    pub has_projects: bool,
}

/// What a write, and some other calls, take from a file.
const CAPABILITY: &[u8] = b"security.capability";
/// Longest value of an attribute.
const VALUE_MAX: usize = 65536;

/// The last part of a path.
#[derive(Clone, Debug, PartialEq)]
enum Last {
    Name(Vec<u8>),
    Dot,
    DotDot,
    Root,
}

struct At {
    dir: Id,
    last: Last,
    slash: bool,
}

impl Node {
    fn new(body: Body, attributes: Attributes) -> Node {
        let nlink = match body {
            Body::Dir { .. } => 2,
            _ => 1,
        };
        Node {
            body,
            nlink,
            attributes,
            unnamed: false,
        }
    }

    pub fn is_dir(&self) -> bool {
        matches!(self.body, Body::Dir { .. })
    }
}

/// An empty directory.
pub fn empty_dir() -> Body {
    Body::Dir {
        names: BTreeMap::new(),
        parent: ROOT,
    }
}

impl Tree {
    /// What mke2fs made.
    pub fn of(fs: &Fs) -> Tree {
        let features = fs.superblock().features();
        let block = fs.block_size();
        let mut tree = Tree::new(block.into());
        let is_apart = features.incompat.contains(Incompat::EA_INODE);
        tree.value_most = Some(block as usize).filter(|_| !is_apart);
        tree.has_projects = features.ro_compat.contains(RoCompat::PROJECT);
        tree
    }

    /// What mke2fs makes, with blocks of this size.
    pub fn new(block_bytes: u64) -> Tree {
        let mut tree = Tree {
            nodes: BTreeMap::from([(ROOT, Node::new(empty_dir(), Attributes::new(0o755)))]),
            open: BTreeMap::new(),
            next: 1,
            target_most: block_bytes as usize - 1,
            value_most: Some(block_bytes as usize),
            has_projects: false,
        };
        tree.create(ROOT, b"lost+found", empty_dir(), 0o700)
            .expect("the root is empty");
        tree
    }

    pub fn node(&self, id: Id) -> &Node {
        &self.nodes[&id]
    }

    fn node_mut(&mut self, id: Id) -> &mut Node {
        self.nodes.get_mut(&id).expect("a file that lives")
    }

    pub fn names(&self, dir: Id) -> Answer<&BTreeMap<Vec<u8>, Id>> {
        match self.nodes.get(&dir).map(|node| &node.body) {
            Some(Body::Dir { names, .. }) => Ok(names),
            Some(_) => Err(libc::ENOTDIR),
            None => Err(libc::ENOENT),
        }
    }

    /// The names of a directory, which is about to change.
    fn names_mut(&mut self, dir: Id) -> &mut BTreeMap<Vec<u8>, Id> {
        self.node_mut(dir).attributes.mtime = None;
        match &mut self.node_mut(dir).body {
            Body::Dir { names, .. } => names,
            other => panic!("{other:?} has no names"),
        }
    }

    fn parent_of(&self, dir: Id) -> Id {
        match &self.nodes[&dir].body {
            Body::Dir { parent, .. } => *parent,
            other => panic!("{other:?} has no parent"),
        }
    }

    /// What a name stands for, if it is there.
    pub fn child(&self, dir: Id, name: &[u8]) -> Answer<Option<Id>> {
        let names = self.names(dir)?;
        match name.len() > NAME_MAX {
            true => Err(libc::ENAMETOOLONG),
            false => Ok(names.get(name).copied()),
        }
    }

    fn existing(&self, dir: Id, name: &[u8]) -> Answer<Id> {
        self.child(dir, name)?.ok_or(libc::ENOENT)
    }

    fn is_dir(&self, id: Id) -> bool {
        self.nodes[&id].is_dir()
    }

    fn absent(&self, dir: Id, name: &[u8]) -> Answer {
        match self.child(dir, name)? {
            Some(_) => Err(libc::EEXIST),
            None if self.nodes[&dir].nlink == 0 => Err(libc::ENOENT),
            None => Ok(()),
        }
    }

    /// A new file of a new name.
    pub fn create(&mut self, dir: Id, name: &[u8], body: Body, mode: u16) -> Answer<Id> {
        self.absent(dir, name)?;
        let id = self.next;
        self.next += 1;
        let mut node = self.inheriting(dir, body, mode);
        if let Body::Dir { parent, .. } = &mut node.body {
            *parent = dir;
            self.node_mut(dir).nlink += 1;
        }
        self.nodes.insert(id, node);
        self.names_mut(dir).insert(name.to_vec(), id);
        Ok(id)
    }

    fn inheriting(&self, dir: Id, body: Body, mode: u16) -> Node {
        let dir = &self.node(dir).attributes;
        let attributes = Attributes::of_new(dir, body.file_type(), mode);
        Node::new(body, attributes)
    }

    fn is_fixed(&self, id: Id) -> bool {
        self.nodes[&id].attributes.is_fixed()
    }

    /// Whether flags let the file change.
    fn changeable(&self, id: Id) -> Answer {
        match self.is_fixed(id) {
            true => Err(libc::EPERM),
            false => Ok(()),
        }
    }

    pub fn link(&mut self, id: Id, dir: Id, name: &[u8]) -> Answer {
        self.absent(dir, name)?;
        let node = &self.nodes[&id];
        if node.attributes.is_fixed() || node.is_dir() {
            return Err(libc::EPERM);
        }
        if node.nlink == 0 && !node.unnamed {
            return Err(libc::ENOENT);
        }
        let node = self.node_mut(id);
        node.nlink += 1;
        node.unnamed = false;
        self.names_mut(dir).insert(name.to_vec(), id);
        Ok(())
    }

    pub fn unlink(&mut self, dir: Id, name: &[u8]) -> Answer {
        let id = self.existing(dir, name)?;
        self.changeable(id)?;
        if self.is_dir(id) {
            return Err(libc::EISDIR);
        }
        self.names_mut(dir).remove(name);
        self.drop_name(id);
        Ok(())
    }

    fn drop_name(&mut self, id: Id) {
        let node = self.node_mut(id);
        node.nlink -= if node.is_dir() { 2 } else { 1 };
        self.forget_if_unused(id);
    }

    fn forget_if_unused(&mut self, id: Id) {
        if self.nodes[&id].nlink == 0 && !self.open.values().any(|&open| open == id) {
            self.nodes.remove(&id);
        }
    }

    fn is_empty(&self, dir: Id) -> bool {
        self.names(dir).is_ok_and(BTreeMap::is_empty)
    }

    pub fn rmdir(&mut self, dir: Id, name: &[u8]) -> Answer {
        let id = self.existing(dir, name)?;
        self.changeable(id)?;
        if !self.is_dir(id) {
            return Err(libc::ENOTDIR);
        }
        if !self.is_empty(id) {
            return Err(libc::ENOTEMPTY);
        }
        self.names_mut(dir).remove(name);
        self.node_mut(dir).nlink -= 1;
        self.drop_name(id);
        Ok(())
    }

    /// Whether `below` is `above`, or in it.
    fn is_in(&self, below: Id, above: Id) -> bool {
        let mut at = below;
        while at != above && at != ROOT {
            at = self.parent_of(at);
        }
        at == above
    }

    /// `slashes`: whether one comes after each name.
    pub fn rename(
        &mut self,
        (dir, name): (Id, &[u8]),
        (to_dir, to_name): (Id, &[u8]),
        mode: RenameMode,
        slashes: [bool; 2],
    ) -> Answer {
        let id = self.existing(dir, name)?;
        let target = self.child(to_dir, to_name)?;
        let exchange = mode == RenameMode::Exchange;
        match (mode, target) {
            (RenameMode::NoReplace, Some(_)) => return Err(libc::EEXIST),
            (RenameMode::Exchange, None) => return Err(libc::ENOENT),
            (RenameMode::Exchange, Some(target)) if slashes[1] && !self.is_dir(target) => {
                return Err(libc::ENOTDIR);
            }
            _ => {}
        }
        if !self.is_dir(id) && (slashes[0] || !exchange && slashes[1]) {
            return Err(libc::ENOTDIR);
        }
        if self.is_dir(id) && self.nodes[&to_dir].nlink > 0 && self.is_in(to_dir, id) {
            return Err(libc::EINVAL);
        }
        let over_its_parent = |target: &Id| self.is_dir(*target) && self.is_in(dir, *target);
        if target.as_ref().is_some_and(over_its_parent) {
            return Err(if exchange {
                libc::EINVAL
            } else {
                libc::ENOTEMPTY
            });
        }
        if target == Some(id) {
            return Ok(());
        }
        if self.nodes[&to_dir].nlink == 0 {
            return Err(libc::ENOENT);
        }
        for id in target.into_iter().chain([id]) {
            self.changeable(id)?;
        }
        if let (Some(target), false) = (target, exchange) {
            self.replaceable(id, target)?;
        }
        self.place(dir, name, target.filter(|_| exchange));
        self.place(to_dir, to_name, Some(id));
        if let (Some(target), false) = (target, exchange) {
            self.drop_name(target);
        }
        Ok(())
    }

    /// What a rename that leaves a whiteout does with the old name. Between two names of one file nothing moved.
    pub fn white_out(&mut self, (dir, name): (Id, &[u8])) -> Answer {
        if self.child(dir, name)?.is_none() {
            let body = Body::Special(Special::CharDevice(0, 0));
            self.create(dir, name, body, 0)?;
        }
        Ok(())
    }

    fn replaceable(&self, id: Id, target: Id) -> Answer {
        match (self.is_dir(id), self.is_dir(target)) {
            (true, false) => Err(libc::ENOTDIR),
            (false, true) => Err(libc::EISDIR),
            (true, true) if !self.is_empty(target) => Err(libc::ENOTEMPTY),
            _ => Ok(()),
        }
    }

    /// Makes a name stand for a file, or for nothing; counts of the directory follow.
    fn place(&mut self, dir: Id, name: &[u8], id: Option<Id>) {
        let before = match id {
            Some(id) => self.names_mut(dir).insert(name.to_vec(), id),
            None => self.names_mut(dir).remove(name),
        };
        if before.is_some_and(|before| self.is_dir(before)) {
            self.node_mut(dir).nlink -= 1;
        }
        if let Some(id) = id
            && let Body::Dir { parent, .. } = &mut self.node_mut(id).body
        {
            *parent = dir;
            self.node_mut(dir).nlink += 1;
        }
    }
}

/// Paths.
impl Tree {
    pub fn walk(&self, path: &[u8], follow: bool) -> Answer<Id> {
        self.walk_from(ROOT, path, follow, &mut 0)
    }

    fn walk_from(&self, start: Id, path: &[u8], follow: bool, links: &mut u32) -> Answer<Id> {
        let slash = path.ends_with(b"/");
        let mut here = if path.starts_with(b"/") { ROOT } else { start };
        let parts = path.split(|&b| b == b'/').filter(|part| !part.is_empty());
        let parts: Vec<&[u8]> = parts.collect();
        for (index, part) in parts.iter().enumerate() {
            let is_last = index + 1 == parts.len();
            let next = match *part {
                b"." => self.names(here).map(|_| here)?,
                b".." => self.names(here).map(|_| self.parent_of(here))?,
                name => self.existing(here, name)?,
            };
            here = match &self.nodes[&next].body {
                Body::Symlink(target) if !is_last || slash || follow => {
                    *links += 1;
                    if *links > MAX_SYMLINKS {
                        return Err(libc::ELOOP);
                    }
                    self.walk_from(here, target, true, links)?
                }
                _ => next,
            };
        }
        match slash && !self.is_dir(here) {
            true => Err(libc::ENOTDIR),
            false => Ok(here),
        }
    }

    fn at(&self, path: &[u8]) -> Answer<At> {
        self.at_from(ROOT, path)
    }

    fn at_from(&self, start: Id, path: &[u8]) -> Answer<At> {
        let end = path.iter().rposition(|&b| b != b'/').map_or(0, |at| at + 1);
        let from = path[..end].iter().rposition(|&b| b == b'/');
        let from = from.map_or(0, |at| at + 1);
        let dir = match from {
            0 if path.starts_with(b"/") => ROOT,
            0 => start,
            _ => self.walk_from(start, &path[..from], true, &mut 0)?,
        };
        self.names(dir)?;
        let last = match &path[from..end] {
            b"" => Last::Root,
            b"." => Last::Dot,
            b".." => Last::DotDot,
            name => Last::Name(name.to_vec()),
        };
        let slash = end < path.len();
        Ok(At { dir, last, slash })
    }

    /// For a name that must not be there.
    fn new_at(&self, path: &[u8], is_dir: bool) -> Answer<(Id, Vec<u8>)> {
        let at = self.at(path)?;
        let Last::Name(name) = at.last else {
            return Err(libc::EEXIST);
        };
        self.absent(at.dir, &name)?;
        match at.slash && !is_dir {
            true => Err(libc::ENOENT),
            false => Ok((at.dir, name)),
        }
    }

    pub fn create_at(&mut self, path: &[u8], body: Body, mode: u16) -> Answer {
        let is_dir = matches!(body, Body::Dir { .. });
        let target = match &body {
            Body::Symlink(target) => target.len(),
            _ => 0,
        };
        if target > PATH_MAX {
            return Err(libc::ENAMETOOLONG);
        }
        let (dir, name) = self.new_at(path, is_dir)?;
        if target > self.target_most {
            return Err(libc::ENAMETOOLONG);
        }
        self.create(dir, &name, body, mode).map(drop)
    }

    pub fn link_at(&mut self, old: &[u8], new: &[u8]) -> Answer {
        let id = self.walk(old, false)?;
        self.link_id_at(id, new)
    }

    pub fn link_id_at(&mut self, id: Id, new: &[u8]) -> Answer {
        let (dir, name) = self.new_at(new, false)?;
        self.link(id, dir, &name)
    }

    pub fn unlink_at(&mut self, path: &[u8]) -> Answer {
        let at = self.at(path)?;
        let Last::Name(name) = at.last else {
            return Err(libc::EISDIR);
        };
        let id = self.existing(at.dir, &name)?;
        match at.slash && !self.is_dir(id) {
            true => Err(libc::ENOTDIR),
            false => self.unlink(at.dir, &name),
        }
    }

    pub fn rmdir_at(&mut self, path: &[u8]) -> Answer {
        let at = self.at(path)?;
        match at.last {
            Last::Name(name) => self.rmdir(at.dir, &name),
            Last::Dot => Err(libc::EINVAL),
            Last::DotDot => Err(libc::ENOTEMPTY),
            Last::Root => Err(libc::EBUSY),
        }
    }

    pub fn rename_at(
        &mut self,
        from: &[u8],
        to: &[u8],
        mode: RenameMode,
        whiteout: bool,
    ) -> Answer {
        if whiteout && mode == RenameMode::Exchange {
            return Err(libc::EINVAL);
        }
        let (from, to) = (self.at(from)?, self.at(to)?);
        let Last::Name(name) = from.last else {
            return Err(libc::EBUSY);
        };
        let Last::Name(to_name) = to.last else {
            return Err(match mode {
                RenameMode::NoReplace => libc::EEXIST,
                _ => libc::EBUSY,
            });
        };
        let slashes = [from.slash, to.slash];
        let (from, to) = ((from.dir, &name[..]), (to.dir, &to_name[..]));
        self.rename(from, to, mode, slashes)?;
        if whiteout {
            self.white_out(from)?;
        }
        Ok(())
    }

    /// `open` with `O_CREAT`.
    pub fn open_create(&mut self, path: &[u8], exclusive: bool, mode: u16) -> Answer<Id> {
        let (mut start, mut path) = (ROOT, path.to_vec());
        for _ in 0..=MAX_SYMLINKS {
            let at = self.at_from(start, &path)?;
            let Last::Name(name) = at.last else {
                return Err(if exclusive {
                    libc::EEXIST
                } else {
                    libc::EISDIR
                });
            };
            if at.slash {
                return Err(libc::EISDIR);
            }
            let Some(id) = self.child(at.dir, &name)? else {
                return self.create(at.dir, &name, Body::File(Vec::new()), mode);
            };
            if exclusive {
                return Err(libc::EEXIST);
            }
            match &self.node(id).body {
                Body::Symlink(target) => (start, path) = (at.dir, target.clone()),
                Body::Dir { .. } => return Err(libc::EISDIR),
                _ => return Ok(id),
            }
        }
        Err(libc::ELOOP)
    }

    /// A file without a name, in a slot that is free.
    pub fn open_unnamed(&mut self, dir: &[u8], mode: u16, slot: u32) -> Answer {
        let made = self.create_unnamed(self.walk(dir, true)?, mode)?;
        self.open.insert(slot, made);
        Ok(())
    }

    /// The same, for who has it open.
    pub fn create_unnamed(&mut self, dir: Id, mode: u16) -> Answer<Id> {
        self.names(dir)?;
        if self.node(dir).nlink == 0 {
            return Err(libc::EPERM);
        }
        let mut node = self.inheriting(dir, Body::File(Vec::new()), mode);
        (node.nlink, node.unnamed) = (0, true);
        let id = self.next;
        self.nodes.insert(id, node);
        self.next += 1;
        Ok(id)
    }

    pub fn close(&mut self, slot: u32) {
        if let Some(id) = self.open.remove(&slot) {
            self.forget_if_unused(id);
        }
    }

    /// `open` for writing.
    pub fn writable(&self, id: Id) -> Answer {
        match &self.node(id).body {
            Body::File(_) => self.changeable(id),
            Body::Dir { .. } => Err(libc::EISDIR),
            other => panic!("{other:?} cannot be written"),
        }
    }

    pub fn write(&mut self, id: Id, at: u64, bytes: &[u8]) {
        let content = self.content_mut(id);
        let end = at as usize + bytes.len();
        content.resize(content.len().max(end), 0);
        content[at as usize..end].copy_from_slice(bytes);
    }

    pub fn set_len(&mut self, id: Id, len: u64) {
        self.content_mut(id).resize(len as usize, 0);
    }

    /// The content of a file, which is about to change.
    fn content_mut(&mut self, id: Id) -> &mut Vec<u8> {
        let node = self.node_mut(id);
        node.attributes.mtime = None;
        node.attributes.xattrs.remove(CAPABILITY);
        match &mut node.body {
            Body::File(content) => content,
            other => panic!("{other:?} has no content"),
        }
    }

    fn attributes_mut(&mut self, id: Id) -> Answer<&mut Attributes> {
        self.changeable(id)?;
        Ok(&mut self.node_mut(id).attributes)
    }

    pub fn set_mode(&mut self, id: Id, mode: u16) -> Answer {
        self.attributes_mut(id)?.set_mode(mode);
        Ok(())
    }

    pub fn set_owner(&mut self, id: Id, uid: u32, gid: u32) -> Answer {
        let file_type = self.node(id).body.file_type();
        let attributes = self.attributes_mut(id)?;
        attributes.set_owner(uid, gid, file_type);
        if file_type != FileType::Directory {
            attributes.xattrs.remove(CAPABILITY);
        }
        Ok(())
    }

    pub fn set_times(&mut self, id: Id, atime: i64, mtime: i64) -> Answer {
        let attributes = self.attributes_mut(id)?;
        (attributes.atime, attributes.mtime) = (Some(atime), Some(mtime));
        Ok(())
    }

    pub fn set_flags(&mut self, id: Id, flags: u32) {
        self.node_mut(id).attributes.flags = flags;
    }

    pub fn set_project(&mut self, id: Id, project: u32) -> Answer {
        self.attributes_mut(id)?.project = project;
        Ok(())
    }

    pub fn set_xattr(&mut self, id: Id, name: &str, value: &[u8], mode: XattrMode) -> Answer {
        let file_type = self.node(id).body.file_type();
        let value_most = self.value_most;
        let attributes = self.attributes_mut(id)?;
        let is_dir = file_type == FileType::Directory;
        if name.starts_with("user.") && !is_dir && file_type != FileType::Regular {
            return Err(libc::EPERM);
        }
        if name == ACCESS || name == DEFAULT {
            // The mode is not asked.
            if name == DEFAULT && !is_dir && value.len() > 4 {
                return Err(libc::EACCES);
            }
            attributes.set_list(name, value);
            return Ok(());
        }
        match (mode, attributes.xattrs.contains_key(name.as_bytes())) {
            (XattrMode::Create, true) => return Err(libc::EEXIST),
            (XattrMode::Replace, false) => return Err(libc::ENODATA),
            _ if value.len() > VALUE_MAX => return Err(libc::E2BIG),
            _ if value_most.is_some_and(|most| value.len() > most) => return Err(libc::ENOSPC),
            _ => {}
        }
        attributes.xattrs.insert(name.into(), value.to_vec());
        Ok(())
    }

    pub fn remove_xattr(&mut self, id: Id, name: &str) -> Answer {
        let body = &self.node(id).body;
        let is_file = matches!(body, Body::File(_) | Body::Dir { .. });
        let attributes = self.attributes_mut(id)?;
        if name.starts_with("user.") && !is_file {
            return Err(libc::EPERM);
        }
        let removed = attributes.xattrs.remove(name.as_bytes());
        match removed.is_some() || name == ACCESS || name == DEFAULT {
            true => Ok(()),
            false => Err(libc::ENODATA),
        }
    }

    /// All paths, with what they stand for, parents first.
    pub fn paths(&self) -> Vec<(Vec<u8>, Id)> {
        let mut found = vec![(b"/".to_vec(), ROOT)];
        let mut next = 0;
        while let Some((path, id)) = found.get(next).cloned() {
            next += 1;
            for (name, &child) in self.names(id).into_iter().flatten() {
                let base = if id == ROOT { &b""[..] } else { &path };
                found.push(([base, b"/", name].concat(), child));
            }
        }
        found
    }
}
