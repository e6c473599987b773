//! Files by directory and name instead of by path.

use super::names::{NewFile, RenameMode, Special};
use crate::inode::Inode;
use crate::mount::Mount;
use crate::namei::{At, Blueprint};
use crate::{
    DirEntry, Error, File, FileType, Fs, Metadata, OpenOptions, Result, SetAttributes, Xattr,
};
use dioxide_format::inode::InodeFlags;
use dioxide_format::types::Ino;
use std::ops::ControlFlow;
use std::sync::Arc;

/// A file of any kind, held without being open for reading or writing: what an `O_PATH` descriptor is. Names in a
/// directory are looked up and changed through the directory's node, so that nothing depends on where it is by now.
///
/// A file whose last name goes stays as long as a node of it is held. Clones are the same file.
///
/// The calls block on metadata and have the errors of the calls of [`Fs`] of the same name. Names are of 1 to 255
/// bytes without `/` and NUL; `.` and `..` can be looked up only.
#[derive(Debug)]
pub struct Node {
    pub(crate) mount: Arc<Mount>,
    pub(crate) inode: Arc<Inode>,
}

/// An entry of a directory, the place behind it, and what `stat` tells of its file.
pub type ListedPlus = (DirEntry, u64, Option<Metadata>);

impl Clone for Node {
    fn clone(&self) -> Node {
        assert!(self.inode.open(), "what is held has not ended");
        Node {
            mount: self.mount.clone(),
            inode: self.inode.clone(),
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.mount.closed(&self.inode);
        self.mount.keep_times(&self.inode);
        self.mount.inodes.let_go(&self.inode);
    }
}

impl Fs {
    /// The root directory.
    ///
    /// # Errors
    /// Damage.
    pub fn root(&self) -> Result<Node> {
        self.0
            .call(|| Node::hold(&self.0, self.0.inode(Ino::ROOT)?))
    }

    /// The file at a path.
    ///
    /// # Errors
    /// As [`Fs::metadata`].
    pub fn node(&self, path: impl AsRef<[u8]>) -> Result<Node> {
        self.0.call(|| {
            let inode = self.0.lookup_open(path.as_ref(), true)?;
            Ok(Node::of_open(&self.0, inode))
        })
    }

    /// The file that has a number, as file handles of NFS name it: number and generation together are one file's for
    /// ever. Without a generation it is the one that has the number now. A file without names is found as long as somebody
    /// holds it; what is the file system's own is not.
    ///
    /// # Errors
    /// `ENOENT` if that file is gone; damage.
    pub fn node_by_number(&self, ino: u32, generation: Option<u32>) -> Result<Node> {
        let gone = || {
            let of = generation.map(|generation| format!(" of generation {generation}"));
            Error::NotFound(format!("inode {ino}{}", of.unwrap_or_default()))
        };
        // A number that somebody made up is no damage: nothing is recorded.
        self.0.check_running()?;
        if ino > self.0.sb.inodes_count() || self.0.is_own_inode(Ino(ino)) {
            return Err(gone());
        }
        // Where none ever was, the table may have one of an older file system. Whoever names a generation was told of it.
        if generation.is_none() && !self.0.may_be_used(Ino(ino))? {
            return Err(gone());
        }
        let inode = self.0.numbered(Ino(ino))?.ok_or_else(gone)?;
        let is_meant = generation.is_none_or(|generation| generation == inode.generation)
            && !inode.flags().contains(InodeFlags::EA_INODE);
        match is_meant {
            true => Node::hold(&self.0, inode),
            false => Err(gone()),
        }
    }

    /// The file at a path, a symlink itself if it is one.
    ///
    /// # Errors
    /// As [`Fs::metadata`].
    pub fn symlink_node(&self, path: impl AsRef<[u8]>) -> Result<Node> {
        self.0.call(|| {
            let inode = self.0.lookup_open(path.as_ref(), false)?;
            Ok(Node::of_open(&self.0, inode))
        })
    }
}

impl Node {
    fn hold(mount: &Arc<Mount>, inode: Arc<Inode>) -> Result<Node> {
        if !inode.open() {
            return Err(Error::NotFound(format!("inode {}, removed", inode.ino)));
        }
        Ok(Node::of_open(mount, inode))
    }

    /// Of an inode that was opened for it.
    fn of_open(mount: &Arc<Mount>, inode: Arc<Inode>) -> Node {
        let mount = mount.clone();
        Node { mount, inode }
    }

    fn directory(&self) -> Result<&Arc<Inode>> {
        match self.inode.file_type() {
            FileType::Directory => Ok(&self.inode),
            _ => Err(Error::NotADirectory(format!("inode {}", self.inode.ino))),
        }
    }

    /// Another directory, of the same mount.
    fn directory_here<'a>(&self, other: &'a Node) -> Result<&'a Arc<Inode>> {
        match Arc::ptr_eq(&self.mount, &other.mount) {
            true => other.directory(),
            false => Err(Error::CrossMount(other.ino())),
        }
    }

    /// Inode number.
    pub fn ino(&self) -> u32 {
        self.inode.ino.0
    }

    /// Tells apart the files that have had this number.
    pub fn generation(&self) -> u32 {
        self.inode.generation
    }

    /// What kind of file it is.
    pub fn file_type(&self) -> FileType {
        self.inode.file_type()
    }

    /// `fstat`. Does not block.
    pub fn metadata(&self) -> Metadata {
        self.mount.metadata(&self.inode)
    }

    /// The file that a name in this directory stands for; symlinks are not followed.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, `ENAMETOOLONG`; damage.
    pub fn lookup(&self, name: &[u8]) -> Result<Node> {
        self.mount.call(|| self.lookup_in(self.directory()?, name))
    }

    fn lookup_in(&self, dir: &Arc<Inode>, name: &[u8]) -> Result<Node> {
        match name {
            b"." => return Ok(self.clone()),
            b".." => return Node::hold(&self.mount, self.mount.living_parent_of(dir)?),
            _ if name.len() > dioxide_format::dir::NAME_MAX => {
                return Err(Error::NameTooLong(
                    String::from_utf8_lossy(name).into_owned(),
                ));
            }
            _ => {}
        }
        let absent = || Error::NotFound(String::from_utf8_lossy(name).into_owned());
        loop {
            let child = self.mount.child(dir, name)?.ok_or_else(absent)?;
            // It may have ended since.
            if let Ok(node) = Node::hold(&self.mount, child) {
                return Ok(node);
            }
        }
    }

    /// Hands on what `stat` tells of the file that a name in this directory stands for, where that can be told without
    /// the file in memory: who is only asked about a file need not load it. The name stays until `tell` returns,
    /// which must not call anything of this mount. None where only [`Node::lookup`] tells: of directories, of what
    /// is not there, and of `.` and `..`.
    ///
    /// # Errors
    /// As [`Node::lookup`].
    pub fn lookup_metadata<T>(
        &self,
        name: &[u8],
        tell: impl FnOnce(Metadata) -> T,
    ) -> Result<Option<T>> {
        let dir = self.directory()?;
        if matches!(name, b"." | b"..") || name.len() > dioxide_format::dir::NAME_MAX {
            return Ok(None);
        }
        self.mount.call(|| self.mount.tell_child(dir, name, tell))
    }

    /// Makes a regular file.
    ///
    /// # Errors
    /// As [`OpenOptions::create_new`].
    pub fn create(&self, name: &[u8], new: &NewFile) -> Result<Node> {
        self.make(name, &Blueprint::Regular, new)
    }

    /// `O_TMPFILE`: makes a regular file without a name in the file system of this directory. It goes with the last who
    /// holds it, unless [`Node::link`] gives it a name.
    ///
    /// # Errors
    /// As [`OpenOptions::open_unnamed`]; `EPERM` in a directory that was removed.
    pub fn create_unnamed(&self, new: &NewFile) -> Result<Node> {
        self.mount.call(|| {
            let inode = self.mount.create_unnamed(self.directory()?, new, true)?;
            Ok(Node::of_open(&self.mount, inode))
        })
    }

    /// `mkdir`.
    ///
    /// # Errors
    /// As [`Fs::create_dir`].
    pub fn create_dir(&self, name: &[u8], new: &NewFile) -> Result<Node> {
        self.make(name, &Blueprint::Directory, new)
    }

    /// `mknod`.
    ///
    /// # Errors
    /// As [`Fs::mknod`].
    pub fn mknod(&self, name: &[u8], special: Special, new: &NewFile) -> Result<Node> {
        self.make(name, &Blueprint::of(special)?, new)
    }

    /// `symlink`.
    ///
    /// # Errors
    /// As [`Fs::symlink`].
    pub fn symlink(&self, target: &[u8], name: &[u8], new: &NewFile) -> Result<Node> {
        self.make(name, &Blueprint::symlink(target)?, new)
    }

    fn make(&self, name: &[u8], what: &Blueprint<'_>, new: &NewFile) -> Result<Node> {
        let dir = self.directory()?;
        let hold = |inode| Node::hold(&self.mount, inode);
        self.mount
            .call(|| self.mount.create_and(dir, name, what, new, hold)?)
    }

    /// `link`: another name for this file, in `dir`.
    ///
    /// # Errors
    /// As [`Fs::hard_link`].
    pub fn link(&self, dir: &Node, name: &[u8]) -> Result<()> {
        self.mount.call(|| {
            self.mount
                .link(&self.inode, self.directory_here(dir)?, name)
        })
    }

    /// `unlink`.
    ///
    /// # Errors
    /// As [`Fs::remove_file`].
    pub fn remove_file(&self, name: &[u8]) -> Result<()> {
        self.mount
            .call(|| self.mount.unlink(self.directory()?, name))
    }

    /// `rmdir`.
    ///
    /// # Errors
    /// As [`Fs::remove_dir`].
    pub fn remove_dir(&self, name: &[u8]) -> Result<()> {
        self.mount
            .call(|| self.mount.rmdir(self.directory()?, name))
    }

    /// `renameat2`.
    ///
    /// # Errors
    /// As [`Fs::rename`].
    pub fn rename(&self, name: &[u8], to: &Node, new_name: &[u8], mode: RenameMode) -> Result<()> {
        let from = At::in_dir(self.directory()?, name);
        let to = At::in_dir(self.directory_here(to)?, new_name);
        self.mount
            .call(|| self.mount.rename(&from, &to, mode, None))
    }

    /// `renameat2` with `RENAME_WHITEOUT`.
    ///
    /// # Errors
    /// As [`Fs::rename_whiteout`].
    pub fn rename_whiteout(
        &self,
        name: &[u8],
        to: &Node,
        new_name: &[u8],
        mode: RenameMode,
        whiteout: &NewFile,
    ) -> Result<()> {
        let from = At::in_dir(self.directory()?, name);
        let to = At::in_dir(self.directory_here(to)?, new_name);
        let whiteout = Some(whiteout);
        self.mount
            .call(|| self.mount.rename(&from, &to, mode, whiteout))
    }

    /// Entries of a directory, `.` and `..` included: at most `most`, from the place `from` on, which is 0 or what came
    /// with an entry of an earlier call. Each entry comes with the place behind it. An empty list is the end.
    ///
    /// Entries that are there all the while come once, whatever comes and goes between the calls.
    ///
    /// # Errors
    /// `ENOTDIR`; `ENOENT` if it was removed; damage.
    pub fn read_dir(&self, from: u64, most: usize) -> Result<Vec<(DirEntry, u64)>> {
        let dir = self.directory()?;
        self.mount.call(|| {
            let _names = dir.names.read();
            self.entries(dir, from, most)
        })
    }

    /// As [`Node::read_dir`], with what `stat` tells of each file: nothing of `.` and `..`, and of what cannot be read. Makes
    /// nothing that stays in memory for each file, so that very large trees can be walked.
    ///
    /// # Errors
    /// As [`Node::read_dir`].
    pub fn read_dir_plus(&self, from: u64, most: usize) -> Result<Vec<ListedPlus>> {
        let dir = self.directory()?;
        let mut damage = None;
        let told = |(entry, next): (DirEntry, u64)| {
            let metadata = match &*entry.name {
                b"." | b".." => None,
                _ => match self.mount.metadata_of(entry.ino) {
                    Ok(metadata) => Some(metadata),
                    Err(error) => {
                        damage.get_or_insert(error);
                        None
                    }
                },
            };
            (entry, next, metadata)
        };
        let listed = self.mount.call(|| {
            // Under the lock, so that no number becomes another file's meanwhile.
            let _names = dir.names.read();
            let entries = self.entries(dir, from, most)?;
            Ok(entries.into_iter().map(told).collect())
        })?;
        if let Some(error) = damage {
            // The call goes well, the mount may not.
            let _: Result<()> = self.mount.judged(Err(error));
        }
        Ok(listed)
    }

    /// The caller has the directory's `names`.
    fn entries(&self, dir: &Inode, from: u64, most: usize) -> Result<Vec<(DirEntry, u64)>> {
        let mut entries = Vec::new();
        if most == 0 {
            return Ok(entries);
        }
        self.mount.read_dir_from(dir, from, &mut |entry, next| {
            let entry = DirEntry {
                ino: entry.ino,
                name: entry.name.to_vec(),
                file_type: entry.file_type.into(),
            };
            entries.push((entry, next));
            match entries.len() < most {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        })?;
        Ok(entries)
    }

    /// The target of a symlink.
    ///
    /// # Errors
    /// As [`Fs::read_link`].
    pub fn read_link(&self) -> Result<Vec<u8>> {
        self.mount.call(|| self.mount.read_link(&self.inode))
    }

    /// All extended attributes.
    ///
    /// # Errors
    /// As [`Fs::xattrs`].
    pub fn xattrs(&self) -> Result<Vec<Xattr>> {
        self.mount.call(|| self.mount.xattrs(&self.inode))
    }

    /// As [`Fs::xattr_names`].
    ///
    /// # Errors
    /// As there.
    pub fn xattr_names(&self) -> Result<Vec<Vec<u8>>> {
        self.mount.call(|| self.mount.xattr_names(&self.inode))
    }

    /// Changes attributes.
    ///
    /// # Errors
    /// As [`File::set_attributes`].
    pub fn set_attributes(&self, set: &SetAttributes) -> Result<()> {
        self.mount
            .call(|| self.mount.set_attributes(&self.inode, set))
    }

    /// `fdatasync`, of a directory too: makes durable what reading this file back needs, its size, blocks and names; of a
    /// directory the names in it. Times and other attributes may be lost. Blocks; where nothing else was changed, for a flush of the device at
    /// most.
    ///
    /// # Errors
    /// As [`File::sync_data`].
    pub fn sync_data(&self) -> Result<()> {
        self.mount.call(|| self.mount.sync_inode(&self.inode, true))
    }

    /// `fsync`, of a directory too: makes all that was changed of this file durable, its names included; of a
    /// directory the names in it. Blocks.
    ///
    /// # Errors
    /// As [`File::sync_all`].
    pub fn sync(&self) -> Result<()> {
        self.mount
            .call(|| self.mount.sync_inode(&self.inode, false))
    }

    /// Opens a regular file.
    ///
    /// # Errors
    /// As [`OpenOptions::open`].
    pub fn open(&self, options: &OpenOptions) -> Result<File> {
        options.open_node(self)
    }
}
