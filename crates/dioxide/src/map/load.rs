//! stub
use super::*;
use crate::inode::Inode;
use crate::mount::Mount;
pub(crate) fn lookup_or_load(_m: &Mount, _i: &Inode, _l: Lblk, _w: u32) -> Result<Mapping> { todo!() }
pub(crate) fn preload(_m: &Mount, _i: &Inode, _b: u64) -> Result<()> { todo!() }
