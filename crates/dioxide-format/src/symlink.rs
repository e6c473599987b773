//! Targets of symbolic links: in `i_block` (fast), in one block (slow), or as inline data.

use crate::Result;
use crate::error::{ensure, prefix};
use crate::inode::Inode;

const STRUCTURE: &str = "symlink";

/// The target of a fast symlink (`Inode::is_fast_symlink`).
///
/// # Errors
/// `Corrupt` when the inode is no fast symlink or its target holds a NUL.
pub fn fast_target(inode: &Inode) -> Result<&[u8]> {
    let ok = inode.is_fast_symlink();
    ensure(
        ok,
        STRUCTURE,
        "i_size",
        inode.size(),
        "1 to 59 for a fast symlink",
    )?;
    slow_target(inode.i_block(), inode.size())
}

/// The target of a symlink whose content starts `content`: its first block, or its inline data.
/// `size` is `Inode::size`.
///
/// # Errors
/// `TooShort` when the content is shorter than `size`; `Corrupt` when it is empty or holds a NUL.
pub fn slow_target(content: &[u8], size: u64) -> Result<&[u8]> {
    let target = prefix(
        content,
        usize::try_from(size).unwrap_or(usize::MAX),
        STRUCTURE,
    )?;
    ensure(!target.is_empty(), STRUCTURE, "i_size", size, "1 or more")?;
    let ok = !target.contains(&0);
    ensure(ok, STRUCTURE, "target", target.escape_ascii(), "no NUL")?;
    Ok(target)
}
