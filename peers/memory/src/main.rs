//! A FUSE server that answers from memory: one file, through `/dev/fuse` by the crate `fuser`, with the settings of the real
//! server. What it reaches is what FUSE lets through, so that `dioxide mount` can be compared with that.
//!
//! `memory DIR BYTES` serves `DIR/bench.data` until it is unmounted.

use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry,
    ReplyOpen, ReplyWrite, Request, SessionACL, WriteFlags,
};
use parking_lot::RwLock;
use std::ffi::OsStr;
use std::io;
use std::time::{Duration, UNIX_EPOCH};

const FOREVER: Duration = Duration::from_secs(3600);
const FILE: INodeNo = INodeNo(2);
/// Writers of different pieces do not meet.
const PIECE: usize = 1 << 20;

struct Memory {
    pieces: Vec<RwLock<Vec<u8>>>,
    len: usize,
}

impl Memory {
    fn attr(&self, ino: INodeNo) -> FileAttr {
        let is_file = ino == FILE;
        FileAttr {
            ino,
            size: if is_file { self.len as u64 } else { 0 },
            blocks: self.len as u64 / 512,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: if is_file {
                FileType::RegularFile
            } else {
                FileType::Directory
            },
            perm: 0o755,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }

    /// The parts of pieces that a range of the file covers: piece, where in it, how long.
    fn parts(&self, from: u64, len: usize) -> impl Iterator<Item = (usize, usize, usize)> {
        let (mut at, end) = (from as usize, (from as usize + len).min(self.len));
        std::iter::from_fn(move || {
            let (piece, inside) = (at / PIECE, at % PIECE);
            let part = (end.checked_sub(at)?).min(PIECE - inside);
            at += part;
            (part > 0).then_some((piece, inside, part))
        })
    }
}

impl fuser::Filesystem for Memory {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let wanted = InitFlags::FUSE_ASYNC_DIO | InitFlags::FUSE_PARALLEL_DIROPS;
        let _ = config.add_capabilities(wanted & config.capabilities());
        let _ = config.set_max_write(1 << 20);
        let _ = config.set_max_background(256);
        Ok(())
    }

    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match name == "bench.data" {
            true => reply.entry(&FOREVER, &self.attr(FILE), Generation(0)),
            false => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&FOREVER, &self.attr(ino));
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let direct = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
        reply.opened(FileHandle(1), direct);
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let mut buf = Vec::with_capacity(size as usize);
        for (piece, at, len) in self.parts(offset, size as usize) {
            buf.extend_from_slice(&self.pieces[piece].read()[at..at + len]);
        }
        reply.data(&buf);
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let mut rest = data;
        for (piece, at, len) in self.parts(offset, data.len()) {
            let (now, later) = rest.split_at(len);
            self.pieces[piece].write()[at..at + len].copy_from_slice(now);
            rest = later;
        }
        reply.written((data.len() - rest.len()) as u32);
    }
}

fn main() -> io::Result<()> {
    let words: Vec<String> = std::env::args().collect();
    let [_, dir, len] = &words[..] else {
        return Err(io::Error::other("memory DIR BYTES"));
    };
    let len: usize = len.parse().map_err(io::Error::other)?;
    let pieces = (0..len.div_ceil(PIECE)).map(|_| RwLock::new(vec![1; PIECE]));
    let memory = Memory {
        pieces: pieces.collect(),
        len,
    };
    let mut config = Config::default();
    config.mount_options = vec![MountOption::FSName("memory".into())];
    config.acl = SessionACL::All;
    config.n_threads = Some(dioxide_fuse::Options::default().threads);
    config.clone_fd = true;
    fuser::Session::new(memory, dir, &config)?.run()
}
