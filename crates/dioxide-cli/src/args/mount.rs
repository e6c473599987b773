//! `dioxide mount`, `dioxide umount`.

use clap::Args;
use std::path::PathBuf;

/// Mounts an image through FUSE
#[derive(Args, Debug)]
#[command(after_help = "\
Returns when the mount serves, and goes on in the background; with -f when it ends. An image that was not closed
cleanly is recovered first. One that cannot be written is mounted read-only.

Needs no root, if fusermount3 is installed; then the mount is nosuid and nodev. As root everybody may use the mount, and
set-ID bits and devices count, as with other mounts; say --sandbox -o nosuid,nodev for an image that you do not trust.

--sandbox: once the image and the connection to the kernel are open, the process can open nothing else: no file, no socket, no
program (seccomp and Landlock). A second process, which never looks at the image, waits outside to unmount. Not together
with --stats, nor for an image with multi-mount protection.

What is durable when: fsync and fdatasync of a file or directory as on Linux, and everything by fsync of DIR itself (sync DIR),
or by unmounting. sync(2) and syncfs(2) only begin to hand over the data that the kernel has gathered, because it does not tell
FUSE servers of them: names and data may be lost in a crash until the next commit. The times of files that are open for writing
are the kernel's alone until then. To be sure of these too, say `sync -f DIR && sync DIR`.
Before Linux 6.16 sync DIR, and a server that ends by SIGTERM, may miss data of files that are open: fsync each of them.
A file with the flag SYNC (chattr +S) is written past the page cache, for who opens it once it has the flag (Linux 6.6).

Reads do not change the time of last access, whatever the options say. A file made immutable while a program has it open for
reading and writing still takes that program's buffered writes, unless nowriteback; O_DIRECT writes are refused. Open for
writing only, lseek(2) to its end fails too: the kernel asks for the size as before a write.

Options (those of ext4 that only the kernel knows do nothing, and a warning says so):
  ro, noload, errors=, data=, commit=, barrier, nobarrier, discard, nodiscard,
  dioread_nolock, dioread_lock, sb=, resuid=, resgid=, grpid, nogrpid, bsdgroups,
  sysvgroups, journal_path=
                        as for ext4, but data=journal is refused, errors=panic fails every call
                        instead, and with sb= of a backup it is mounted read-only
  img_offset=BYTES      where the file system begins in the image; k, M, G
  dio_policy=POLICY     whose rules decide about locks, see dioxide explain
  backend=HOW           auto, uring, pread or mmap; auto copies what an image in memory has, and
                        reads its holes by pread
  nowriteback           every write goes to the image at once, and the times of O_DIRECT writes,
                        and of those to files with the flags +a and +S, are seen at once; else when
                        the kernel has dropped the file from its cache
  entry_timeout=SECS, attr_timeout=SECS
                        how long the kernel trusts names, and attributes of regular files (but for
                        those with set-user-ID or set-group-ID)
  metadata_cache=BYTES, name_cache=BYTES
                        most that is kept of blocks of metadata, and of names (32M, and a
                        sixteenth of the memory or 1G)
  uid=, gid=, umask=    owner and permissions that are shown
  fakeroot              everybody may do everything; files are made as root's
  allow_other           others may use the mount too
  auto_unmount          unmount when the process ends, however it ends
  max_threads=, max_background=
                        requests at the same time, and those of them that nobody waits for (two
                        at least)
  sandbox               as --sandbox
  stats=FILE            as --stats
  noio_uring            requests through /dev/fuse only; io_uring is used where the
                        kernel's parameter fuse.enable_uring is Y
  suid, dev, exec, sync and their opposites, dirsync, noatime, nosymfollow, fsname=
                        as for other mounts
  sloppy                options that nobody knows warn too

In fstab, where this command is installed as /sbin/mount.fuse.dioxide too:
  /var/disk.img  /mnt  fuse.dioxide  defaults  0  0

Exit status: 0 if it is mounted (with -f: if the image was closed cleanly), 2 otherwise.

Examples:
  dioxide mount disk.img /mnt
  dioxide mount disk.img /mnt -o ro,dio_policy=v6.6
  dioxide mount --sandbox -o nosuid,nodev found.img /mnt
  dioxide mount -f disk.img /mnt")]
pub struct MountArgs {
    /// Image file or block device
    #[arg(value_name = "IMG")]
    pub image: PathBuf,
    /// Directory to mount it on
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// Options, with commas between them
    #[arg(short = 'o', value_name = "OPTIONS")]
    pub options: Vec<String>,
    /// Replace this file every second, and at the end, by what was counted, as JSON: see dioxide stats
    #[arg(long, value_name = "FILE")]
    pub stats: Option<PathBuf>,
    /// Keep the image and the connection to the kernel, and give up everything else
    #[arg(long)]
    pub sandbox: bool,
    /// Stay in the foreground
    #[arg(short, long)]
    pub foreground: bool,
    /// Look at the options, and do not mount, as mount(8) has it with -f
    #[arg(long, hide = true)]
    pub fake: bool,
    /// This is the process in the background; standard output is told when the mount serves
    #[arg(long, hide = true, conflicts_with = "foreground")]
    pub background: bool,
}

/// Unmounts an image, and waits until it is closed
#[derive(Args, Debug)]
#[command(after_help = "\
Returns when everything is in the image, and another program may open it; umount(8) does not wait for that by itself.
A mount whose server has died (Transport endpoint is not connected) is detached, though files are open, and a line says so; what
was not synced is lost, and whoever opens the image next recovers it. dioxide mount on such a directory detaches it too.
Where it is mounted elsewhere too, be it in another namespace, a line says that the image stays in use. One says so where nothing
was written any more, because the file system had failed, and one where nothing tells whether the server has ended. After --lazy
a line says that files are open, or that it is mounted elsewhere: the image is in use, and written to, until that ends.

Exit status: 0 if it is unmounted, 2 if it is in use or no mount of dioxide, or if the server could not close the image: the disk
that it lies on is full or broken, and it is as after a crash.

Where this command is installed as /sbin/umount.fuse.dioxide too, umount(8) does the same.

Examples:
  dioxide umount /mnt
  dioxide umount --lazy /mnt")]
pub struct UmountArgs {
    /// Where it is mounted
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// Take the file system away from DIR at once, though files are open; do not wait
    #[arg(short, long)]
    pub lazy: bool,
    /// This is the process outside of a sandbox: standard input has a byte when it is time
    #[arg(long, hide = true)]
    pub when_told: bool,
    /// And when standard input ends without one, if nobody serves the mount any more
    #[arg(long, hide = true, requires = "when_told")]
    pub or_dead: bool,
}

/// Tells what a mount has counted
#[derive(Args, Debug)]
#[command(after_help = "\
Requests by kind, with how long the server took for each, and a histogram with a bar for each power of two; files; and what the library has counted: requests by the path that they
took, locks waited for, restarts, EAGAINs, drains, commits of the journal; and the damage that it met: what failed a request, and what was
passed over, as groups whose bitmaps cannot be used. All since it was mounted. What an image's superblock has recorded of damage, dioxide info
tells.

Whoever may use the mount may ask. Other programs ask by getxattr(2) of system.dioxide.stats on the mounted directory,
which is the same JSON; dioxide mount --stats keeps it in a file.

Exit status: 0, or 2 if DIR is not a mount of dioxide.

Examples:
  dioxide stats /mnt
  dioxide stats --json /mnt")]
pub struct StatsArgs {
    /// Where it is mounted
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}
