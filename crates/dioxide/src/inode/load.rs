//! stub
use super::Inode;
use crate::FileType;
#[derive(Debug)]
pub(crate) struct InodeCache;
impl Inode {
    pub(crate) fn is_plain_data(&self) -> bool { true }
    pub(crate) fn is_extent_mapped(&self) -> bool { true }
    pub(crate) fn has_inline_data(&self) -> bool { false }
    pub(crate) fn is_immutable(&self) -> bool { false }
    pub(crate) fn is_append_only(&self) -> bool { false }
    pub(crate) fn file_type(&self) -> FileType { FileType::Regular }
}
