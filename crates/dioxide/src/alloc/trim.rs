//! Telling the device which blocks are free (FITRIM).

use super::blocks::{BlockAllocator, Run};
use super::search;
use crate::{Error, Result};
use dioxide_format::types::{Group, Pblk};
use dioxide_journal::Edit;
use std::ops::Range;

impl BlockAllocator {
    /// Shows every free run of at least `min_len` clusters inside `blocks` to `discard`, group by
    /// group under the group's lock, so that nobody has the run meanwhile. Pending and claimed blocks
    /// are left out (data may be on its way to those), and whole groups in which nothing was freed or
    /// given back since they were last trimmed. Returns the number of clusters shown. Damaged groups
    /// are passed over.
    ///
    /// # Errors
    /// Those of `discard` and of the device; what was shown before stays trimmed.
    pub(crate) fn trim(
        &self,
        edit: &dyn Edit,
        blocks: Range<Pblk>,
        min_len: u32,
        discard: &mut dyn FnMut(Run) -> Result<()>,
    ) -> Result<u64> {
        let sb = self.sb();
        let start = Pblk(blocks.start.0.max(sb.first_data_block().0));
        let last = Pblk(blocks.end.0.min(sb.blocks_count()).saturating_sub(1));
        let (Some(first), Some(end)) = (sb.group_of_block(start), sb.group_of_block(last)) else {
            return Ok(0);
        };
        let mut shown = 0;
        for group in (first.0..=end.0).map(Group) {
            let bits = self.bits_inside(group, &blocks);
            shown += match self.trim_group(edit, group, bits, min_len, discard) {
                Err(Error::Corrupt { .. } | Error::Checksum { .. }) => 0,
                result => result?,
            };
        }
        Ok(shown)
    }

    /// Bits of a group whose clusters lie in `blocks` as a whole.
    fn bits_inside(&self, group: Group, blocks: &Range<Pblk>) -> Range<u32> {
        let sb = self.sb();
        let ratio = u64::from(sb.cluster_ratio());
        let first = sb.group_first_block(group).0;
        let end = u64::from(sb.clusters_in_group(group));
        let from = blocks.start.0.saturating_sub(first).div_ceil(ratio);
        let to = if blocks.end.0 >= sb.blocks_count() {
            end
        } else {
            (blocks.end.0.saturating_sub(first) / ratio).min(end)
        };
        from.min(end) as u32..to as u32
    }

    fn trim_group(
        &self,
        edit: &dyn Edit,
        group: Group,
        inside: Range<u32>,
        min_len: u32,
        discard: &mut dyn FnMut(Run) -> Result<()>,
    ) -> Result<u64> {
        let mut state = self.slot(group).blocks.lock();
        if state.trimmed.is_some_and(|done| done <= min_len) {
            return Ok(0);
        }
        let view = self.view(edit, group, &mut state)?;
        let bits = state.settled(view.bits());
        let mut shown = 0;
        for run in search::runs(&bits, inside.start, inside.end) {
            if run.end - run.start >= min_len {
                discard(self.run(group, &run))?;
                shown += u64::from(run.end - run.start);
            }
        }
        drop(bits);
        if inside == (0..self.sb().clusters_in_group(group)) {
            state.trimmed = Some(min_len);
        }
        Ok(shown)
    }
}
