//! Calls of all kinds on an image that may be damaged. What decides is a stream of numbers, from a seed
//! or from a fuzzer.
//!
//! The one thing that damage cannot excuse: what a write of part of one block gave back as written is what
//! is read next, or reading it is an error.

use dioxide::{
    Error, FallocateMode, File, FileType, Fs, NewFile, OpenOptions, RenameMode, SetAttributes,
    Special, Timestamp, XattrMode,
};

/// Numbers: each call gives one below its argument.
pub type Numbers<'a> = dyn FnMut(u64) -> u64 + 'a;

/// Most names that are known at once.
const NAMES_MAX: usize = 200;
/// Most files that are kept open.
const OPEN_MAX: usize = 4;
const XATTRS: [&str; 5] = [
    "user.one",
    "user.long",
    "trusted.t",
    "security.s",
    DEFAULT_LIST,
];
const DEFAULT_LIST: &str = "system.posix_acl_default";

/// `u::rwx,u:7:r-x,g::r-x,m::r-x,o::---`.
fn default_list() -> Vec<u8> {
    let mut value = 2_u32.to_le_bytes().to_vec();
    for (tag, perm, id) in [
        (1_u16, 7_u16, u32::MAX),
        (2, 5, 7),
        (4, 5, u32::MAX),
        (16, 5, u32::MAX),
        (32, 0, u32::MAX),
    ] {
        value.extend(tag.to_le_bytes());
        value.extend(perm.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    value
}

/// A session on one image.
pub struct Session<'a> {
    fs: &'a Fs,
    numbers: &'a mut Numbers<'a>,
    /// Whatever is written is read back whole: all metadata has checksums.
    strict: bool,
    paths: Vec<Vec<u8>>,
    dirs: Vec<Vec<u8>>,
    open: Vec<File>,
    /// Calls that succeeded.
    pub done: u64,
}

impl<'a> Session<'a> {
    pub fn new(fs: &'a Fs, strict: bool, numbers: &'a mut Numbers<'a>) -> Session<'a> {
        let mut session = Session {
            fs,
            numbers,
            strict,
            paths: Vec::new(),
            dirs: vec![b"".to_vec()],
            open: Vec::new(),
            done: 0,
        };
        session.look_around();
        session
    }

    /// Names that are there, as far as they can be listed.
    fn look_around(&mut self) {
        let mut next = 0;
        while next < self.dirs.len() && self.paths.len() < NAMES_MAX {
            let dir = self.dirs[next].clone();
            next += 1;
            let path: &[u8] = if dir.is_empty() { b"/" } else { &dir };
            for entry in self
                .fs
                .read_dir(path)
                .unwrap_or_default()
                .into_iter()
                .take(40)
            {
                if entry.name == b"." || entry.name == b".." {
                    continue;
                }
                let path = [&dir[..], b"/", &entry.name].concat();
                if entry.file_type == FileType::Directory {
                    self.dirs.push(path.clone());
                }
                self.paths.push(path);
            }
        }
    }

    fn below(&mut self, end: u64) -> u64 {
        (self.numbers)(end.max(1))
    }

    fn some(&mut self) -> Vec<u8> {
        let at = self.below(self.paths.len() as u64) as usize;
        self.paths.get(at).cloned().unwrap_or(b"/".to_vec())
    }

    fn dir(&mut self) -> Vec<u8> {
        let at = self.below(self.dirs.len() as u64) as usize;
        self.dirs[at].clone()
    }

    /// A name that may be there already.
    fn name(&mut self) -> Vec<u8> {
        let dir = self.dir();
        let number = self.below(40);
        let len = [1, 12, 60, 200][self.below(4) as usize];
        let mut name = format!("{number}-").into_bytes();
        name.resize(name.len().max(len), b'n');
        [&dir[..], b"/", &name].concat()
    }

    fn len(&mut self) -> u64 {
        let most = [100, 5000, 100_000, 6 << 20, 1 << 40][self.below(5) as usize];
        self.below(most)
    }

    fn remember(&mut self, path: Vec<u8>) {
        if self.paths.len() < NAMES_MAX {
            self.paths.push(path);
        }
    }

    /// One call.
    pub fn step(&mut self) {
        let result = match self.below(16) {
            0 | 1 => self.make(),
            2 => self.remove(),
            3 => self.rename(),
            4 => self.link(),
            5 => self.attributes(),
            6 | 7 => self.xattr(),
            8..=10 => self.write(),
            11 => self.resize(),
            12 => self.fallocate(),
            13 => self.look(),
            14 => self.keep_open(),
            _ => self.sync(),
        };
        match result {
            Ok(()) => self.done += 1,
            Err(error) => assert!(!error.to_string().is_empty() && error.errno() > 0),
        }
    }

    fn make(&mut self) -> Result<(), Error> {
        let (path, new) = (self.name(), NewFile::new(self.below(0o10000) as u16));
        match self.below(8) {
            0 | 1 => {
                self.fs.create_dir(&path, &new)?;
                self.dirs.push(path.clone());
            }
            2 => {
                let target = vec![b't'; self.below(300) as usize];
                self.fs.symlink(target, &path, &new)?;
            }
            3 => {
                let device = Special::CharDevice(self.below(500) as u32, self.below(70_000) as u32);
                self.fs.mknod(&path, device, &new)?;
            }
            // Many, so that a directory gets an index or another level.
            4 => {
                for at in 0..self.below(60) {
                    let path = [&path[..], format!("{at}").as_bytes()].concat();
                    let options = OpenOptions::new().write(true).create_new(true);
                    options.new_file(&new).open(self.fs, path)?;
                }
            }
            5 => {
                let dir = self.dir();
                let options = OpenOptions::new().write(true);
                let file = options.open_unnamed(self.fs, [&dir[..], b"/"].concat())?;
                file.write_at(b"unnamed", self.below(100_000))?;
                if self.below(2) == 0 {
                    file.link(&path)?;
                }
            }
            _ => {
                let options = OpenOptions::new().write(true).create(true);
                options.new_file(&new).open(self.fs, &path)?;
            }
        }
        self.remember(path);
        Ok(())
    }

    fn remove(&mut self) -> Result<(), Error> {
        let path = self.some();
        match self.fs.remove_file(&path) {
            Err(Error::IsADirectory(_)) => self.fs.remove_dir(&path),
            gone => gone,
        }
    }

    fn rename(&mut self) -> Result<(), Error> {
        let from = self.some();
        let to = match self.below(2) {
            0 => self.some(),
            _ => self.name(),
        };
        let modes = [
            RenameMode::Replace,
            RenameMode::NoReplace,
            RenameMode::Exchange,
        ];
        let mode = modes[self.below(3) as usize];
        match self.below(4) {
            0 => {
                let whiteout = NewFile::new(0);
                self.fs.rename_whiteout(&from, &to, mode, &whiteout)?;
            }
            _ => self.fs.rename(&from, &to, mode)?,
        }
        self.remember(to);
        Ok(())
    }

    fn link(&mut self) -> Result<(), Error> {
        let (old, new) = (self.some(), self.name());
        self.fs.hard_link(&old, &new)?;
        self.remember(new);
        Ok(())
    }

    fn attributes(&mut self) -> Result<(), Error> {
        let node = self.fs.symlink_node(self.some())?;
        let number = self.below(100_000) as u32;
        let time = Timestamp {
            secs: i64::from(number) << 17,
            nanos: number,
        };
        let set = SetAttributes::new();
        let set = match self.below(6) {
            0 => set.mode(number as u16),
            1 => set.uid(number).gid(number / 2),
            2 => set.mtime(time).atime(time),
            // Never immutable or append-only, or nothing could be done with it.
            3 => set.flags(number & !0x30),
            4 => set.project(number % 10),
            _ => set.uid(number % 3),
        };
        node.set_attributes(&set)
    }

    fn xattr(&mut self) -> Result<(), Error> {
        let node = self.fs.symlink_node(self.some())?;
        let name = XATTRS[self.below(5) as usize];
        if self.below(4) == 0 {
            return node.remove_xattr(name);
        }
        let most = [20, 400, 4000, 30_000][self.below(4) as usize];
        let mut value = vec![self.below(4) as u8; self.below(most) as usize];
        // A list that new files inherit.
        if name == DEFAULT_LIST && self.below(2) == 0 {
            value = default_list();
        }
        node.set_xattr(name, &value, XattrMode::Set)?;
        match node.xattr(name) {
            Ok(Some(found)) => assert!(found == value, "another value than was set"),
            // A list without bytes is none.
            Ok(None) => assert!(
                value.is_empty() && name.starts_with("system."),
                "an attribute that was set is not there"
            ),
            // Its value lies in another inode, which may be damaged.
            Err(_) => {}
        }
        Ok(())
    }

    fn file(&mut self) -> Result<File, Error> {
        if !self.open.is_empty() && self.below(3) == 0 {
            let at = self.below(self.open.len() as u64) as usize;
            return Ok(self.open[at].clone());
        }
        let options = OpenOptions::new().read(true).write(true);
        options.open(self.fs, self.some())
    }

    fn write(&mut self) -> Result<(), Error> {
        let file = self.file()?;
        let at = match self.below(3) {
            0 => file.len(),
            1 => {
                let len = file.len();
                self.below(len)
            }
            _ => self.len(),
        };
        let block = u64::from(self.fs.block_size());
        let len = match self.below(3) {
            0 => 1 + self.below(block - at % block),
            _ => 1 + self.below(20_000),
        };
        let fill = 1 + self.below(255) as u8;
        let bytes = vec![fill; len as usize];
        let written = file.write_at(&bytes, at)?;
        let mut found = vec![0; written];
        if let Ok(read) = file.read_at(&mut found, at)
            && (self.strict || at % block + len <= block)
        {
            assert!(
                read == written && found[..] == bytes[..written],
                "what was written is not what is read"
            );
        }
        Ok(())
    }

    fn resize(&mut self) -> Result<(), Error> {
        let file = self.file()?;
        let len = match self.below(2) {
            0 => {
                let len = file.len();
                self.below(len)
            }
            _ => self.len(),
        };
        file.set_len(len)?;
        assert_eq!(file.len(), len);
        Ok(())
    }

    fn fallocate(&mut self) -> Result<(), Error> {
        let file = self.file()?;
        let modes = [
            FallocateMode::Allocate,
            FallocateMode::KeepSize,
            FallocateMode::PunchHole,
            FallocateMode::ZeroRange,
            FallocateMode::ZeroRangeKeepSize,
            FallocateMode::WriteZeroes,
            FallocateMode::CollapseRange,
            FallocateMode::InsertRange,
        ];
        let mode = modes[self.below(8) as usize];
        let (mut at, mut len) = (self.len(), 1 + self.below(300_000));
        if self.below(2) == 0 {
            at = at / 65_536 * 65_536;
            len = len.next_multiple_of(65_536);
        }
        file.allocate(mode, at, len)
    }

    fn look(&mut self) -> Result<(), Error> {
        let path = self.some();
        let about = self.fs.symlink_metadata(&path)?;
        match about.file_type {
            FileType::Symlink => self.fs.read_link(&path).map(drop)?,
            FileType::Directory => self.fs.read_dir(&path).map(drop)?,
            FileType::Regular => {
                let file = OpenOptions::new().read(true).open(self.fs, &path)?;
                let (mut buf, mut at) = (vec![0; 20_000], 0);
                for _ in 0..20 {
                    let Some(start) = file.seek_data(at)? else {
                        break;
                    };
                    file.read_at(&mut buf, start)?;
                    at = file.seek_hole(start)?.unwrap_or(start) + 1;
                }
            }
            _ => {}
        }
        self.fs.xattrs(&path).map(drop)
    }

    fn keep_open(&mut self) -> Result<(), Error> {
        if self.open.len() >= OPEN_MAX {
            let at = self.below(OPEN_MAX as u64) as usize;
            self.open.swap_remove(at);
        }
        let options = OpenOptions::new().read(true).write(true);
        let path = self.some();
        let file = options.open(self.fs, &path)?;
        self.open.push(file);
        // Often without its name.
        match self.below(2) {
            0 => self.fs.remove_file(&path),
            _ => Ok(()),
        }
    }

    fn sync(&mut self) -> Result<(), Error> {
        match self.below(4) {
            0 => self.fs.sync(),
            1 => self.fs.trim(0..u64::MAX, 0).map(drop),
            2 => self.file()?.sync_all(),
            _ => self.file()?.sync_data(),
        }
    }
}
