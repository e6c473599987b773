//! Access control lists: their forms on the disk and in `getxattr`, and what they mean for modes.
//!
//! On the disk (version 1) an entry for a user or group has eight bytes, others four. The
//! attribute (version 2) has eight for each. All numbers are little-endian.
//!
//! For: lists by themselves. Not for: where they are stored, and who may do what by them.
//!
//! Invariant: the entries of an [`Acl`] are of known kinds. Whether they make a list that Linux stores
//! (owner, owning group, others, and a mask if it names users or groups, in this order) is asked by
//! [`Acl::check`] only: what lies on the disk is shown as it is.

use crate::{Error, Result};

const DISK_VERSION: u32 = 1;
const XATTR_VERSION: u32 = 2;
const NO_ID: u32 = u32::MAX;
const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;
/// Owner, owning group, mask, others.
const WITHOUT_ID: [u16; 4] = [USER_OBJ, GROUP_OBJ, MASK, OTHER];
/// Permission bits of a mode.
const PERMISSIONS: u16 = 0o777;

/// One entry of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    tag: u16,
    /// Read, write and execute: 0 to 7.
    perm: u16,
    /// User or group; [`NO_ID`] if the tag needs none.
    id: u32,
}

/// A list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Acl(Vec<Entry>);

/// What a new inode gets of its directory: its mode, and its lists as attributes' values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Inherited {
    /// The permission bits that were asked for, less what list or umask takes away; other bits as
    /// they were.
    pub(crate) mode: u16,
    /// `system.posix_acl_access`.
    pub(crate) access: Option<Vec<u8>>,
    /// `system.posix_acl_default`.
    pub(crate) default: Option<Vec<u8>>,
}

/// Takes `N` bytes off the front.
fn take<const N: usize>(rest: &mut &[u8]) -> Result<[u8; N], String> {
    let (head, tail) = rest
        .split_first_chunk::<N>()
        .ok_or("it ends within an entry")?;
    *rest = tail;
    Ok(*head)
}

/// The value of `system.posix_acl_access` or `_default` for a list as it lies on the disk.
///
/// # Errors
/// What is wrong with it.
pub(super) fn to_xattr(disk: &[u8]) -> Result<Vec<u8>, String> {
    Ok(Acl::from_disk(disk)?.to_xattr())
}

fn invalid(what: &str) -> Error {
    Error::Invalid(format!("access control list: {what}"))
}

impl Acl {
    fn from_disk(disk: &[u8]) -> Result<Acl, String> {
        let mut rest = disk;
        let version = u32::from_le_bytes(take(&mut rest)?);
        if version != DISK_VERSION {
            return Err(format!("a_version is {version}, expected {DISK_VERSION}"));
        }
        let mut entries = Vec::new();
        while !rest.is_empty() {
            let tag = u16::from_le_bytes(take(&mut rest)?);
            let perm = u16::from_le_bytes(take(&mut rest)?);
            let id = match tag {
                USER | GROUP => u32::from_le_bytes(take(&mut rest)?),
                _ if WITHOUT_ID.contains(&tag) => NO_ID,
                _ => return Err(format!("e_tag is {tag:#x}")),
            };
            entries.push(Entry { tag, perm, id });
        }
        Ok(Acl(entries))
    }

    /// The list that an attribute's value stands for; none for one without entries.
    ///
    /// # Errors
    /// [`Error::Invalid`] for what is no list; [`Error::Unsupported`] for another version.
    pub(super) fn from_xattr(value: &[u8]) -> Result<Option<Acl>> {
        let (version, entries) = value
            .split_first_chunk()
            .ok_or_else(|| invalid("it is too short"))?;
        let version = u32::from_le_bytes(*version);
        if version != XATTR_VERSION {
            let what = format!("access control lists of version {version}");
            return Err(Error::Unsupported(what));
        }
        let (entries, rest) = entries.as_chunks::<8>();
        if !rest.is_empty() {
            return Err(invalid("it ends within an entry"));
        }
        let acl = Acl(entries.iter().map(Entry::from_xattr).collect());
        let is_known = |tag| WITHOUT_ID.contains(&tag) || matches!(tag, USER | GROUP);
        match acl.0.iter().all(|entry| is_known(entry.tag)) {
            true => Ok(Some(acl).filter(|acl| !acl.0.is_empty())),
            false => Err(invalid("an entry of unknown kind")),
        }
    }

    /// # Errors
    /// [`Error::Invalid`] for a list that Linux does not store.
    pub(super) fn check(&self) -> Result<()> {
        match self.is_valid() {
            true => Ok(()),
            false => Err(invalid("entries are missing, doubled or out of order")),
        }
    }

    /// One owner, users, one group, groups, a mask (needed if users or groups are named), others: in
    /// this order.
    fn is_valid(&self) -> bool {
        let mut next = USER_OBJ;
        let mut named = false;
        for entry in &self.0 {
            next = match (entry.tag, next) {
                (USER_OBJ, USER_OBJ) => USER,
                (USER, USER) => USER,
                (GROUP_OBJ, USER) => GROUP,
                (GROUP, GROUP) => GROUP,
                (MASK, GROUP) => OTHER,
                (OTHER, OTHER) => 0,
                (OTHER, GROUP) if !named => 0,
                _ => return false,
            };
            let has_id = matches!(entry.tag, USER | GROUP);
            if entry.perm > 7 || has_id && entry.id == NO_ID {
                return false;
            }
            named |= has_id;
        }
        next == 0
    }

    pub(super) fn to_xattr(&self) -> Vec<u8> {
        let mut value = XATTR_VERSION.to_le_bytes().to_vec();
        for entry in &self.0 {
            value.extend_from_slice(&entry.tag.to_le_bytes());
            value.extend_from_slice(&entry.perm.to_le_bytes());
            value.extend_from_slice(&entry.id.to_le_bytes());
        }
        value
    }

    pub(super) fn to_disk(&self) -> Vec<u8> {
        let mut disk = DISK_VERSION.to_le_bytes().to_vec();
        for entry in &self.0 {
            disk.extend_from_slice(&entry.tag.to_le_bytes());
            disk.extend_from_slice(&entry.perm.to_le_bytes());
            if matches!(entry.tag, USER | GROUP) {
                disk.extend_from_slice(&entry.id.to_le_bytes());
            }
        }
        disk
    }

    fn perm(&self, tag: u16) -> Option<u16> {
        let entry = self.0.iter().find(|entry| entry.tag == tag);
        entry.map(|entry| entry.perm & 7)
    }

    /// The permission bits that the list stands for (the mask's for the group, if there is one), and
    /// whether these say all that it says.
    pub(super) fn equiv_mode(&self) -> (u16, bool) {
        let of = |tag| self.perm(tag).unwrap_or(0);
        let group = self.perm(MASK).unwrap_or_else(|| of(GROUP_OBJ));
        let says_more = |entry: &Entry| matches!(entry.tag, USER | GROUP | MASK);
        let is_equivalent = !self.0.iter().any(says_more);
        (of(USER_OBJ) << 6 | group << 3 | of(OTHER), is_equivalent)
    }

    /// Which bits of a mode an entry stands for, by how far they are shifted; none for those that a
    /// mode does not know.
    fn shift_of(&self, entry: &Entry) -> Option<u32> {
        match entry.tag {
            USER_OBJ => Some(6),
            OTHER => Some(0),
            MASK => Some(3),
            GROUP_OBJ if self.perm(MASK).is_none() => Some(3),
            _ => None,
        }
    }

    fn with_perms(&self, perm: impl Fn(u16, u32) -> u16) -> Acl {
        let change = |entry: &Entry| match self.shift_of(entry) {
            Some(shift) => Entry {
                perm: perm(entry.perm, shift),
                ..*entry
            },
            None => *entry,
        };
        Acl(self.0.iter().map(change).collect())
    }

    /// The list after `chmod`.
    pub(super) fn chmod(&self, mode: u16) -> Acl {
        self.with_perms(|_, shift| mode >> shift & 7)
    }

    /// The list with no more than a mode allows.
    fn limit(&self, mode: u16) -> Acl {
        self.with_perms(|perm, shift| perm & (mode >> shift & 7))
    }
}

impl Entry {
    fn from_xattr(raw: &[u8; 8]) -> Entry {
        let [tag0, tag1, perm0, perm1, id @ ..] = *raw;
        let tag = u16::from_le_bytes([tag0, tag1]);
        let has_id = matches!(tag, USER | GROUP);
        Entry {
            tag,
            perm: u16::from_le_bytes([perm0, perm1]),
            id: if has_id {
                u32::from_le_bytes(id)
            } else {
                NO_ID
            },
        }
    }
}

/// Mode, access list and default list of a new inode, by its directory's default list.
pub(super) fn inherit(
    default: Option<&Acl>,
    mode: u16,
    umask: u16,
    is_dir: bool,
) -> (u16, Option<Acl>, Option<Acl>) {
    let Some(default) = default else {
        return (mode & !(umask & PERMISSIONS), None, None);
    };
    let access = default.limit(mode);
    let (permissions, is_equivalent) = access.equiv_mode();
    let mode = mode & !PERMISSIONS | permissions;
    let own_default = is_dir.then(|| default.clone());
    (mode, (!is_equivalent).then_some(access), own_default)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(entries: &[(u16, u16, u32)]) -> Acl {
        let entry = |&(tag, perm, id)| Entry { tag, perm, id };
        Acl(entries.iter().map(entry).collect())
    }

    /// u::rwx,u:1000:rw-,g::r-x,m::rwx,o::r--
    fn named() -> Acl {
        acl(&[
            (USER_OBJ, 7, NO_ID),
            (USER, 6, 1000),
            (GROUP_OBJ, 5, NO_ID),
            (MASK, 7, NO_ID),
            (OTHER, 4, NO_ID),
        ])
    }

    #[test]
    fn list_with_a_named_user_becomes_the_attributes_form() {
        let disk = [
            1, 0, 0, 0, 1, 0, 6, 0, 2, 0, 4, 0, 0xE8, 3, 0, 0, 0x20, 0, 4, 0,
        ];
        let value = [
            2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255, 2, 0, 4, 0, 0xE8, 3, 0, 0, 0x20, 0, 4, 0,
            255, 255, 255, 255,
        ];
        assert_eq!(to_xattr(&disk), Ok(value.to_vec()));
    }

    #[test]
    fn list_cut_or_with_unknown_tag_or_version_is_refused() {
        assert!(to_xattr(&[1, 0, 0]).is_err());
        assert!(to_xattr(&[1, 0, 0, 0, 2, 0, 4, 0, 1]).is_err());
        assert!(to_xattr(&[1, 0, 0, 0, 3, 0, 4, 0]).is_err());
        assert!(to_xattr(&[2, 0, 0, 0]).is_err());
    }

    #[test]
    fn list_through_both_forms_is_the_same() {
        let list = named();
        let value = list.to_xattr();
        assert_eq!(Acl::from_xattr(&value).ok(), Some(Some(list.clone())));
        assert_eq!(to_xattr(&list.to_disk()), Ok(value));
    }

    #[test]
    fn value_that_linux_refuses_is_refused_with_its_errno() {
        let errno = |value: &[u8]| {
            let list = Acl::from_xattr(value).and_then(|list| list.expect("entries").check());
            list.expect_err("refused").errno()
        };
        assert_eq!(errno(&[2, 0, 0]), libc::EINVAL);
        assert_eq!(errno(&[3, 0, 0, 0]), libc::EOPNOTSUPP);
        assert_eq!(errno(&[2, 0, 0, 0, 1, 0, 7, 0]), libc::EINVAL);
        assert_eq!(errno(&[2, 0, 0, 0, 3, 0, 7, 0, 0, 0, 0, 0]), libc::EINVAL);
        assert_eq!(Acl::from_xattr(&[2, 0, 0, 0]).ok(), Some(None));
        let drop_one = |at: usize| {
            let mut list = named();
            list.0.remove(at);
            list.to_xattr()
        };
        for needed in [0, 2, 3, 4] {
            assert_eq!(errno(&drop_one(needed)), libc::EINVAL, "without {needed}");
        }
        let mut swapped = named();
        swapped.0.swap(1, 2);
        let mut nobody = named();
        nobody.0[1].id = NO_ID;
        let mut wide = named();
        wide.0[0].perm = 8;
        let mut more = named();
        more.0.push(more.0[4]);
        for bad in [swapped, nobody, wide, more] {
            assert_eq!(errno(&bad.to_xattr()), libc::EINVAL, "{bad:?}");
        }
    }

    #[test]
    fn list_without_names_and_mask_is_its_mode() {
        let plain = acl(&[
            (USER_OBJ, 6, NO_ID),
            (GROUP_OBJ, 4, NO_ID),
            (OTHER, 0, NO_ID),
        ]);
        assert_eq!(plain.equiv_mode(), (0o640, true));
        assert_eq!(named().equiv_mode(), (0o774, false));
    }

    #[test]
    fn chmod_sets_the_mask_and_leaves_the_group() {
        let list = named().chmod(0o640);
        assert_eq!(list.equiv_mode(), (0o640, false));
        assert_eq!(list.perm(GROUP_OBJ), Some(5));
        assert_eq!(list.perm(MASK), Some(4));
        assert_eq!(list.perm(USER), Some(6));
    }

    #[test]
    fn inheriting_limits_the_list_by_the_mode_and_ignores_the_umask() {
        let (mode, access, default) = inherit(Some(&named()), 0o100_666, 0o077, false);
        let access = access.expect("it names a user");
        assert_eq!((mode, default), (0o100_664, None));
        assert_eq!(access.perm(MASK), Some(6));
        assert_eq!(access.perm(GROUP_OBJ), Some(5));
        let (mode, _, default) = inherit(Some(&named()), 0o042_777, 0, true);
        assert_eq!((mode, default), (0o042_774, Some(named())));
        assert_eq!(
            inherit(None, 0o104_666, 0o022, false),
            (0o104_644, None, None)
        );
    }
}
