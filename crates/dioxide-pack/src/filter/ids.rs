//! Ids in the values of attributes: users and groups that an access control list names, and the user to whose
//! namespace a capability belongs.
//!
//! Not for: whether a value is what its name says. One of another form stays as it is, and whoever stores it judges it.

use dioxide::Xattr;

/// The form of `getxattr`, as for capabilities below, in little-endian numbers.
const ACL_VERSION: [u8; 4] = 2u32.to_le_bytes();
const USER: u16 = 0x02;
const GROUP: u16 = 0x08;
/// The version of a capability with a user: the last four of its 24 bytes.
const CAPABILITY_VERSION: u8 = 3;
const CAPABILITY_BYTES: usize = 24;

/// One entry of a list: tag, permissions, id.
type Row = (u16, u16, u32);

/// Changes the ids in a value. `map` is told the id, and whether it is a group's.
pub(super) fn map(xattr: &mut Xattr, map: impl Fn(u32, bool) -> u32) {
    match &xattr.name[..] {
        b"system.posix_acl_access" | b"system.posix_acl_default" => {
            if let Some(value) = map_list(&xattr.value, map) {
                xattr.value = value;
            }
        }
        b"security.capability" => map_capability(&mut xattr.value, map),
        _ => {}
    }
}

/// A list with other ids, in order of them among users and among groups, as libacl wants it.
fn map_list(value: &[u8], map: impl Fn(u32, bool) -> u32) -> Option<Vec<u8>> {
    let entries = value.strip_prefix(&ACL_VERSION)?;
    let (entries, []) = entries.as_chunks::<8>() else {
        return None;
    };
    let mut rows: Vec<Row> = entries.iter().map(row).collect();
    let before = rows.clone();
    for (tag, _, id) in &mut rows {
        if is_named(*tag) {
            *id = map(*id, *tag == GROUP);
        }
    }
    if rows == before {
        return None;
    }
    for of_kind in rows.chunk_by_mut(|a, b| is_named(a.0) && a.0 == b.0) {
        of_kind.sort_by_key(|(_, _, id)| *id);
    }
    // Two that became one have what both had: nobody is lent the other's rights.
    rows.dedup_by(|next, kept| {
        let same = is_named(next.0) && (next.0, next.2) == (kept.0, kept.2);
        if same {
            kept.1 &= next.1;
        }
        same
    });
    let mut value = ACL_VERSION.to_vec();
    for (tag, perm, id) in rows {
        value.extend_from_slice(&tag.to_le_bytes());
        value.extend_from_slice(&perm.to_le_bytes());
        value.extend_from_slice(&id.to_le_bytes());
    }
    Some(value)
}

fn is_named(tag: u16) -> bool {
    matches!(tag, USER | GROUP)
}

fn row(&[t0, t1, p0, p1, i0, i1, i2, i3]: &[u8; 8]) -> Row {
    let [tag, perm] = [[t0, t1], [p0, p1]].map(u16::from_le_bytes);
    (tag, perm, u32::from_le_bytes([i0, i1, i2, i3]))
}

fn map_capability(value: &mut [u8], map: impl Fn(u32, bool) -> u32) {
    if value.len() != CAPABILITY_BYTES || value[3] != CAPABILITY_VERSION {
        return;
    }
    if let Some(user) = value.last_chunk_mut() {
        *user = map(u32::from_le_bytes(*user), false).to_le_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(rows: &[Row]) -> Vec<u8> {
        let bytes = |&(tag, perm, id): &Row| {
            let mut bytes = [tag.to_le_bytes(), perm.to_le_bytes()].concat();
            bytes.extend(id.to_le_bytes());
            bytes
        };
        let rows = rows.iter().flat_map(bytes);
        ACL_VERSION.into_iter().chain(rows).collect()
    }

    fn mapped(name: &str, value: Vec<u8>, with: impl Fn(u32, bool) -> u32) -> Vec<u8> {
        let name = name.into();
        let mut xattr = Xattr { name, value };
        map(&mut xattr, with);
        xattr.value
    }

    const NONE: u32 = u32::MAX;

    #[test]
    fn list_has_its_named_users_and_groups_mapped_and_in_order() {
        let before = [
            (1, 7, NONE),
            (USER, 6, 5),
            (USER, 4, 9),
            (4, 5, NONE),
            (GROUP, 1, 5),
            (GROUP, 2, 6),
            (0x10, 7, NONE),
            (0x20, 0, NONE),
        ];
        let with = |id, group| match (id, group) {
            (9, false) => 1,
            (5, true) => 70,
            (NONE, _) => panic!("nobody is named there"),
            _ => id,
        };
        let mut after = before;
        (after[1], after[2]) = ((USER, 4, 1), (USER, 6, 5));
        (after[4], after[5]) = ((GROUP, 2, 6), (GROUP, 1, 70));
        for name in ["system.posix_acl_access", "system.posix_acl_default"] {
            assert_eq!(mapped(name, list(&before), with), list(&after));
        }
        assert_eq!(mapped("user.acl", list(&before), with), list(&before));
    }

    #[test]
    fn list_in_which_two_become_one_gives_him_what_both_had() {
        let before = [(1, 7, NONE), (USER, 6, 5), (USER, 5, 6), (4, 5, NONE)];
        let after = [(1, 7, NONE), (USER, 4, 8), (4, 5, NONE)];
        let name = "system.posix_acl_access";
        assert_eq!(mapped(name, list(&before), |_, _| 8), list(&after));
    }

    #[test]
    fn capability_of_a_namespace_has_its_user_mapped() {
        let of = |version: u8, len: usize| {
            let mut value = vec![7; len];
            value[3] = version;
            value
        };
        let with = |id: u32, group: bool| {
            assert!(!group);
            id - 0x0707_0707
        };
        let name = "security.capability";
        let mut expected = of(3, 24);
        expected[20..].fill(0);
        assert_eq!(mapped(name, of(3, 24), with), expected);
        for other in [of(2, 20), of(3, 20), of(2, 24)] {
            assert_eq!(mapped(name, other.clone(), with), other);
        }
    }

    #[test]
    fn value_of_another_form_stays_as_it_is() {
        for value in [&b""[..], b"\x02", b"\x01\0\0\0", b"\x02\0\0\0\x02\0"] {
            let name = "system.posix_acl_access";
            assert_eq!(mapped(name, value.to_vec(), |_, _| 0), value);
        }
    }
}
