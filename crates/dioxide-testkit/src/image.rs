//! Images made by mke2fs.

use crate::mount::Mount;
use crate::tools::{run, tool};
use std::path::{Path, PathBuf};
use tempfile::TempPath;

const UUID: &str = "d10c1de0-0000-4000-8000-000000000001";
const HASH_SEED: &str = "d10c1de0-0000-4000-8000-000000000002";

/// Where an image lies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dir {
    /// In memory: `/dev/shm`, or the temporary directory where there is none.
    #[default]
    Tmpfs,
    /// In the temporary directory, for tests that need a disk file system.
    Disk,
}

impl Dir {
    /// The directory.
    pub fn path(self) -> PathBuf {
        let shm = Path::new("/dev/shm");
        match self {
            Dir::Tmpfs if shm.is_dir() => shm.into(),
            _ => std::env::temp_dir(),
        }
    }
}

/// A file-system image, deleted when dropped.
#[derive(Debug)]
pub struct Image {
    path: TempPath,
}

/// What to make. Every image has the same UUID, hash seed and time stamps, and nothing in it is left
/// for the kernel to initialise later.
#[derive(Clone, Debug)]
pub struct ImageBuilder {
    size_bytes: u64,
    block_bytes: u32,
    dir: Dir,
    fs_type: String,
    extended: Vec<String>,
    args: Vec<String>,
}

impl Image {
    /// Begins an ext4 image of 64 MiB in memory: blocks of 4096 bytes (mke2fs would choose 1024 for
    /// small images), for the rest mke2fs's defaults.
    pub fn builder() -> ImageBuilder {
        let fixed = ["lazy_itable_init=0", "lazy_journal_init=0", "nodiscard"];
        let mut extended: Vec<String> = fixed.map(String::from).into();
        extended.push(format!("hash_seed={HASH_SEED}"));
        ImageBuilder {
            size_bytes: 64 << 20,
            block_bytes: 4096,
            dir: Dir::default(),
            fs_type: "ext4".into(),
            extended,
            args: Vec::new(),
        }
    }

    /// An image file of zeros, without a file system.
    pub fn blank(dir: Dir, size_bytes: u64) -> Image {
        let file = tempfile::Builder::new()
            .prefix("dioxide-")
            .suffix(".img")
            .tempfile_in(dir.path())
            .expect("temporary image");
        file.as_file().set_len(size_bytes).expect("image size");
        Image {
            path: file.into_temp_path(),
        }
    }

    /// The image file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A copy in the same directory, as sparse as can be.
    pub fn copy(&self) -> Image {
        let dir = self.path.parent().expect("a file has a directory");
        let copy = tempfile::Builder::new()
            .prefix("dioxide-")
            .suffix(".img")
            .tempfile_in(dir)
            .expect("temporary image")
            .into_temp_path();
        run(tool("cp")
            .arg("--sparse=always")
            .arg(self.path())
            .arg(&copy));
        Image { path: copy }
    }

    /// Mounts the image with the kernel's ext4, lets `populate` fill it, and unmounts it. Needs root.
    ///
    /// # Panics
    /// If something fails, or if `populate` panics; the image is unmounted and detached then too.
    pub fn populate_with_kernel<T>(&self, populate: impl FnOnce(&Path) -> T) -> T {
        let mount = Mount::ext4(self.path(), "");
        let result = populate(mount.path());
        mount.unmount();
        result
    }
}

impl ImageBuilder {
    /// Size of the image in bytes.
    pub fn size(mut self, bytes: u64) -> Self {
        self.size_bytes = bytes;
        self
    }

    /// Where it lies.
    pub fn dir(mut self, dir: Dir) -> Self {
        self.dir = dir;
        self
    }

    /// `ext2`, `ext3` or `ext4`: the section of mke2fs.conf to begin with.
    pub fn fs_type(mut self, fs_type: &str) -> Self {
        self.fs_type = fs_type.into();
        self
    }

    /// Size of a file-system block in bytes.
    pub fn block_size(mut self, bytes: u32) -> Self {
        self.block_bytes = bytes;
        self
    }

    /// Size of an inode in bytes.
    pub fn inode_size(self, bytes: u32) -> Self {
        self.args(&["-I", &bytes.to_string()])
    }

    /// Features to set, or to clear with `^`, in mke2fs's notation: `^has_journal,bigalloc`.
    pub fn features(self, features: &str) -> Self {
        self.args(&["-O", features])
    }

    /// One extended option: `packed_meta_blocks=1`. (mke2fs heeds only its last `-E`, so do not pass
    /// that as an argument.)
    pub fn extended(mut self, option: &str) -> Self {
        self.extended.push(option.into());
        self
    }

    /// A directory whose contents the image gets.
    pub fn source(self, tree: &Path) -> Self {
        let tree = tree.to_str().expect("a path in UTF-8").to_owned();
        self.args(&["-d", &tree])
    }

    /// More arguments for mke2fs.
    pub fn args(mut self, args: &[&str]) -> Self {
        self.args.extend(args.iter().map(|arg| arg.to_string()));
        self
    }

    /// Makes the image.
    ///
    /// # Panics
    /// If mke2fs fails, with what it says.
    pub fn build(self) -> Image {
        let image = Image::blank(self.dir, self.size_bytes);
        run(tool("mke2fs")
            .args(["-q", "-F", "-t", &self.fs_type, "-U", UUID])
            .args(["-b", &self.block_bytes.to_string()])
            .args(["-E", &self.extended.join(",")])
            .args(&self.args)
            .arg(image.path()));
        image
    }
}
