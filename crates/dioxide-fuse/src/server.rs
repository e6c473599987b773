//! What the kernel asks, answered by the library. Knows nothing of how requests come and answers go: that
//! is the transport's.
//!
//! It is a translation: of numbers into nodes and files, of flags into options, of errors into `errno`. Who may do
//! what is decided by the kernel (`default_permissions`), what happens by the library.
//!
//! Invariants: every request holds the read side of one lock, so that [`Server::close`] waits for those under
//! way and ends those that come later with `ENODEV`; a reply that tells the kernel of a file counts as a lookup of it.

mod attributes;
mod content;
mod full;
mod handle;
mod ioctl;
mod listing;
mod names;
mod xattr;

pub(crate) use attributes::now;
pub use attributes::{Attr, Change, Entry, Stat};
pub use content::{Seek, SyncMode, Told, WriteFlags};
pub use handle::Opened;
pub use listing::Dirent;
pub use names::At;

use crate::mount::process;
use crate::stats::{Op, Recorder, Report};
use crate::table::{Handles, Nodes};
use crate::{Errno, Result};
use dioxide::{Fs, NewFile, Node};
use handle::Handle;
use parking_lot::{MappedRwLockReadGuard, Mutex, RwLock, RwLockReadGuard};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// User.
    pub uid: u32,
    /// Group. FUSE tells no other groups.
    pub gid: u32,
}

/// How the server answers.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// How long the kernel may go on using a name it looked up, and the attributes of what is no regular
    /// file. All changes pass through the kernel, so that this may be long.
    pub entry_timeout: Duration,
    /// How long it may go on using attributes of a regular file: the kernel does not know the blocks that writeback allocates. It
    /// always asks for those of a file with set-user-ID or set-group-ID.
    pub attr_timeout: Duration,
    /// The kernel gathers writes in its page cache, and keeps sizes and times.
    pub writeback: bool,
    /// What the mount wants of all writes (`-o sync`), where the kernel does not see to it.
    pub sync: SyncMode,
    /// Shown as everybody's owner.
    pub uid: Option<u32>,
    /// Shown as everybody's group.
    pub gid: Option<u32>,
    /// Permissions that are not shown.
    pub umask: Option<u16>,
    /// Files are made as if by user and group 0.
    pub fakeroot: bool,
    /// The image, for who unmounts and waits until it is closed.
    pub image: Option<PathBuf>,
    /// Byte of the image where the file system begins.
    pub img_offset: u64,
}

impl Default for ServerOptions {
    fn default() -> ServerOptions {
        ServerOptions {
            entry_timeout: Duration::from_secs(3600),
            attr_timeout: Duration::from_secs(1),
            writeback: true,
            sync: SyncMode::None,
            uid: None,
            gid: None,
            umask: None,
            fakeroot: false,
            image: None,
            img_offset: 0,
        }
    }
}

/// A file system that answers the kernel. The calls block, and come from any number of threads.
///
/// Files are named by node id: [`crate::ROOT_ID`], or one that an [`Entry`] told. What is open is named by handle.
pub struct Server {
    options: ServerOptions,
    process: Option<String>,
    read_only: bool,
    in_memory: bool,
    maps_direct: AtomicBool,
    requests: Recorder,
    full: full::Full,
    /// Why pages were lost last, if no sync of the root has told that.
    lost: Mutex<Option<Errno>>,
    live: RwLock<Option<Live>>,
}

/// Dropped in this order: what holds the file system goes before it.
struct Live {
    files: Handles<Handle>,
    nodes: Nodes,
    fs: Fs,
}

impl Live {
    fn node(&self, id: u64) -> Result<Arc<Node>> {
        self.nodes.get(&self.fs, id)
    }
}

impl Server {
    /// Serves an open file system.
    ///
    /// # Errors
    /// Damage of the root directory.
    pub fn new(fs: Fs, options: ServerOptions) -> Result<Server, dioxide::Error> {
        let live = Live {
            files: Handles::new(),
            nodes: Nodes::new(fs.root()?),
            fs,
        };
        Ok(Server {
            options,
            process: process::told(),
            read_only: live.fs.read_only().is_some(),
            in_memory: live.fs.device().geometry().inline,
            maps_direct: AtomicBool::new(false),
            requests: Recorder::new(),
            full: full::Full::default(),
            lost: Mutex::default(),
            live: RwLock::new(Some(live)),
        })
    }

    /// How it answers.
    pub fn options(&self) -> &ServerOptions {
        &self.options
    }

    /// Whether reads and writes wait for no device.
    pub fn is_in_memory(&self) -> bool {
        self.in_memory
    }

    /// The kernel lets files be mapped that are open past its page cache (Linux 6.6).
    pub fn set_maps_direct(&self) {
        self.maps_direct.store(true, Ordering::Relaxed);
    }

    /// Whether nothing is written.
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// What was counted since it serves.
    ///
    /// # Errors
    /// None but `ENODEV`.
    pub fn report(&self) -> Result<Report> {
        let live = self.live()?;
        let (known_files, held_files) = live.nodes.count();
        Ok(Report {
            version: env!("CARGO_PKG_VERSION"),
            uptime_secs: self.requests.uptime().as_secs_f64(),
            read_only: self.read_only,
            failure: live.fs.failure().map(str::to_owned),
            damage: live.fs.damage(),
            known_files,
            held_files,
            open_files: live.files.count(),
            requests: self.requests.latencies(),
            engine: live.fs.stats(),
        })
    }

    /// Makes everything durable that the kernel has handed over. Blocks.
    ///
    /// # Errors
    /// As [`Fs::sync`].
    pub fn sync(&self) -> Result {
        let _timed = self.requests.time(Op::Syncfs);
        Ok(self.live()?.fs.sync()?)
    }

    /// Files of which the kernel's page cache may have what nobody has been handed: those that are open for writing. A mapping keeps its
    /// file open, and the kernel writes all that it has of a file before it tells us that this is closed.
    ///
    /// # Errors
    /// None but `ENODEV`.
    pub fn written(&self) -> Result<Vec<u64>> {
        let written = |open: &Handle| open.may_have_dirtied(open).then(|| open.ino().into());
        let mut nodes = self.live()?.files.pick(written);
        nodes.sort_unstable();
        nodes.dedup();
        Ok(nodes)
    }

    /// Tells, once, that pages which the kernel wrote back could not be written, whoever's they are: the kernel has forgotten them, and
    /// tells only who has such a file open.
    ///
    /// # Errors
    /// What the last of them failed with since this was asked before.
    pub fn tell_lost(&self) -> Result {
        self.lost.lock().take().map_or(Ok(()), Err)
    }

    /// Waits for requests under way, closes what is open, and ends the mount: see [`Fs::close`]. Requests that come later
    /// fail with `ENODEV`. Nothing happens if it was closed before.
    ///
    /// # Errors
    /// As [`Fs::close`].
    pub fn close(&self) -> Result<(), dioxide::Error> {
        let Some(live) = self.live.write().take() else {
            return Ok(());
        };
        let Live { files, nodes, fs } = live;
        drop((files, nodes));
        fs.close()
    }

    /// Held for the whole request, and asked for once: who has it and asks again while [`Server::close`] waits, waits for ever.
    fn live(&self) -> Result<MappedRwLockReadGuard<'_, Live>> {
        RwLockReadGuard::try_map(self.live.read(), Option::as_ref).map_err(|_| Errno::NODEV)
    }

    fn new_file(&self, caller: Caller, mode: u32, umask: u32) -> NewFile {
        let Caller { uid, gid } = self.acting(caller);
        NewFile::new(mode as u16 & 0o7777)
            .umask(umask as u16)
            .owner(uid, gid)
    }

    /// What times of the file system are multiples of, in nanoseconds: inodes of the first size have whole seconds.
    pub fn time_gran(&self) -> u32 {
        let is_short = |live: &Live| {
            live.fs.superblock().inode_size() == dioxide::format::inode::GOOD_OLD_SIZE
        };
        match self.live().is_ok_and(|live| is_short(&live)) {
            true => 1_000_000_000,
            false => 1,
        }
    }

    /// Whom a request is for.
    pub fn acting(&self, caller: Caller) -> Caller {
        match self.options.fakeroot {
            true => Caller { uid: 0, gid: 0 },
            false => caller,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dioxide::format::inode::InodeFlags;
    use dioxide::{MountOptions, SetAttributes};
    use dioxide_testkit::{Dir, Image, e2fsck_clean};
    use std::sync::mpsc::{RecvTimeoutError, channel};
    use std::thread;

    fn served() -> (Image, Server) {
        let image = Image::builder().dir(Dir::Tmpfs).size(16 << 20).build();
        let fs = Fs::open(image.path(), &MountOptions::new()).expect("it is new");
        let server = Server::new(fs, ServerOptions::default()).expect("it has a root");
        (image, server)
    }

    fn set_append_only(server: &Server, id: u64) {
        let node = server.live().and_then(|live| live.node(id));
        let node = node.expect("it is known");
        let flags = node.metadata().flags | InodeFlags::APPEND.0;
        let set = SetAttributes::new().flags(flags);
        node.set_attributes(&set).expect("it is allowed");
    }

    /// Parts of 100 bytes.
    fn part(number: usize) -> [u8; 100] {
        [number as u8; 100]
    }

    #[test]
    fn parts_of_an_append_lie_in_order_whatever_order_they_come_in() {
        let (image, server) = served();
        let root = Caller { uid: 0, gid: 0 };
        for (number, order) in [[0, 1, 2, 3, 4], [4, 3, 2, 1, 0], [1, 4, 2, 0, 3]]
            .iter()
            .enumerate()
        {
            let name = number.to_string();
            let at = At {
                dir: crate::ROOT_ID,
                name: name.as_bytes(),
            };
            let flags = libc::O_RDWR | libc::O_APPEND;
            let made = server.create(root, at, 0o600, 0, flags);
            let (entry, _) = made.expect("there is room");
            set_append_only(&server, entry.id);
            let log = server.open(root, entry.id, flags).expect("it is made");
            let write = |number: usize, offset: usize| {
                let flags = WriteFlags {
                    append: true,
                    ..WriteFlags::default()
                };
                let done = server.write(log.handle, &part(number), offset as u64, flags);
                assert_eq!(done, Ok(100));
            };
            write(9, 0);
            for &number in order {
                write(number, 100 + 100 * number);
            }
            // What is there stays.
            write(5, 0);
            let mut found = [0; 800];
            let read = server.read(log.handle, &mut found, 0, false);
            assert_eq!(read, Ok(700), "{order:?}");
            let expected = [9, 0, 1, 2, 3, 4, 5].map(part);
            assert!(found[..700] == *expected.as_flattened(), "{order:?}");
        }
        server.close().expect("it is closed");
        e2fsck_clean(image.path());
    }

    #[test]
    fn close_waits_for_a_listing_under_way() {
        let (image, server) = served();
        let (comes, came) = channel();
        let (go, gone) = channel::<()>();
        let (closes, closed) = channel();
        thread::scope(|scope| {
            let server = &server;
            let listing = scope.spawn(move || {
                server.readdir(crate::ROOT_ID, 0, &mut |_| {
                    comes.send(()).expect("somebody waits");
                    let _ = gone.recv();
                    false
                })
            });
            came.recv().expect("there is a name");
            scope.spawn(move || closes.send(server.close()));
            let early = closed.recv_timeout(Duration::from_millis(100));
            drop(go);
            assert!(matches!(early, Err(RecvTimeoutError::Timeout)), "{early:?}");
            closed.recv().expect("it ends").expect("nothing is open");
            assert_eq!(listing.join().expect("it ends"), Ok(()));
        });
        assert_eq!(server.readlink(crate::ROOT_ID), Err(Errno::NODEV));
        e2fsck_clean(image.path());
    }
}
