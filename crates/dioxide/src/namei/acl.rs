//! Access control lists: from the disk's form to that of `getxattr`.
//!
//! On the disk (version 1) an entry for a user or group has eight bytes, others four. The
//! attribute (version 2) has eight for each. All numbers are little-endian.

const DISK_VERSION: u32 = 1;
const XATTR_VERSION: u32 = 2;
const NO_ID: u32 = u32::MAX;
const USER: u16 = 0x02;
const GROUP: u16 = 0x08;
/// Owner, owning group, mask, others.
const WITHOUT_ID: [u16; 4] = [0x01, 0x04, 0x10, 0x20];

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
    let mut rest = disk;
    let version = u32::from_le_bytes(take(&mut rest)?);
    if version != DISK_VERSION {
        return Err(format!("a_version is {version}, expected {DISK_VERSION}"));
    }
    let mut value = XATTR_VERSION.to_le_bytes().to_vec();
    while !rest.is_empty() {
        let tag = u16::from_le_bytes(take(&mut rest)?);
        let perm: [u8; 2] = take(&mut rest)?;
        let id = match tag {
            USER | GROUP => u32::from_le_bytes(take(&mut rest)?),
            _ if WITHOUT_ID.contains(&tag) => NO_ID,
            _ => return Err(format!("e_tag is {tag:#x}")),
        };
        value.extend_from_slice(&tag.to_le_bytes());
        value.extend_from_slice(&perm);
        value.extend_from_slice(&id.to_le_bytes());
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
