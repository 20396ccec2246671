//! POSIX access lists as the kernel passes them, and the one that a directory of several branches
//! is shown with.

use std::ffi::OsStr;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use smallvec::SmallVec;

use crate::base::rights::{Rights, shown_ids};
use crate::base::sys;

/// Extended attribute of the list that decides about access.
pub(crate) const ACCESS: &str = "system.posix_acl_access";
/// Extended attribute of the list that what is made in a directory begins with.
pub(crate) const DEFAULT: &str = "system.posix_acl_default";

/// The longest value that Linux keeps.
pub(crate) const VALUE_MAX_BYTES: usize = 65_536;

const VERSION: u32 = 2;
const ENTRY_BYTES: usize = 8;
const ANYONE: u32 = u32::MAX;
const USER_OBJ: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP_OBJ: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHER: u16 = 0x20;

const ALL: u32 = 0o7;

/// Who is named, and what they may.
type Named = SmallVec<[(u32, u32); 4]>;

/// An access list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AccessList {
    owner: u32,
    group: u32,
    others: u32,
    mask: Option<u32>,
    users: Named,
    groups: Named,
}

impl AccessList {
    /// Reads the value of an extended attribute.
    ///
    /// # Errors
    /// EINVAL if it is none.
    pub fn parse(value: &[u8]) -> sys::Result<AccessList> {
        let (version, entries) = value.split_first_chunk().ok_or(Errno::INVAL)?;
        if u32::from_le_bytes(*version) != VERSION || entries.len() % ENTRY_BYTES != 0 {
            return Err(Errno::INVAL);
        }
        let mut list = AccessList::default();
        for entry in entries.chunks_exact(ENTRY_BYTES) {
            let [tag_low, tag_high, low, high, a, b, c, d] = *entry else {
                return Err(Errno::INVAL);
            };
            let permissions = u32::from(u16::from_le_bytes([low, high])) & ALL;
            let id = u32::from_le_bytes([a, b, c, d]);
            match u16::from_le_bytes([tag_low, tag_high]) {
                USER_OBJ => list.owner = permissions,
                USER => list.users.push((id, permissions)),
                GROUP_OBJ => list.group = permissions,
                GROUP => list.groups.push((id, permissions)),
                MASK => list.mask = Some(permissions),
                OTHER => list.others = permissions,
                _ => return Err(Errno::INVAL),
            }
        }
        Ok(list)
    }

    /// The value of its extended attribute.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = VERSION.to_le_bytes().to_vec();
        let mut push = |tag: u16, permissions: u32, id: u32| {
            bytes.extend(tag.to_le_bytes());
            bytes.extend((permissions as u16).to_le_bytes());
            bytes.extend(id.to_le_bytes());
        };
        push(USER_OBJ, self.owner, ANYONE);
        self.users
            .iter()
            .for_each(|(id, may)| push(USER, *may, *id));
        push(GROUP_OBJ, self.group, ANYONE);
        self.groups
            .iter()
            .for_each(|(id, may)| push(GROUP, *may, *id));
        if let Some(mask) = self.mask {
            push(MASK, mask, ANYONE);
        }
        push(OTHER, self.others, ANYONE);
        bytes
    }

    /// Whether it grants `wanted` to a user who is not the owner of the file, as the kernel decides it
    /// (fs/posix_acl.c): `gid` is the file's group. A user who is not known is granted nothing where one is
    /// named.
    pub fn grants(
        &self,
        wanted: u32,
        gid: u32,
        user: Option<u32>,
        is_in_group: impl Fn(u32) -> bool,
    ) -> bool {
        let mask = self.mask.unwrap_or(ALL);
        let suffices = |may: u32| wanted & !may == 0;
        let named = self.users.iter().find(|(id, _)| Some(*id) == user);
        match (named, user) {
            (Some((_, may)), _) => return suffices(may & mask),
            (None, None) if !self.users.is_empty() => return false,
            _ => {}
        }
        let groups = [(gid, self.group)];
        let groups = groups.iter().chain(&self.groups);
        let mut of_groups = groups.filter(|(id, _)| is_in_group(*id)).peekable();
        match of_groups.peek() {
            Some(_) => of_groups.any(|(_, may)| suffices(may & mask)),
            None => suffices(self.others),
        }
    }

    /// The permissions of a mode that say the same, if a mode can.
    pub fn as_mode(&self) -> Option<u32> {
        let named = !self.users.is_empty() || !self.groups.is_empty();
        let group = self.group & self.mask.unwrap_or(ALL);
        (!named).then_some(self.owner << 6 | group << 3 | self.others)
    }
}

/// The access list of an inode, if it has one.
///
/// # Errors
/// EIO for a list that makes no sense: without it more would be granted. Those of `getxattr(2)`.
pub(crate) fn of(fd: BorrowedFd<'_>) -> sys::Result<Option<AccessList>> {
    let read = |out: Option<&mut [u8]>| sys::getxattr(fd, OsStr::new(ACCESS), out);
    let value = read(None).and_then(|_| {
        let mut value = vec![0; VALUE_MAX_BYTES];
        let len = read(Some(&mut value))?;
        value.truncate(len);
        Ok(value)
    });
    match value {
        Ok(value) => Ok(Some(AccessList::parse(&value).map_err(|_| Errno::IO)?)),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// One copy as a list of whom it grants what: users first, then groups, then others.
struct Grants {
    users: Named,
    groups: Named,
    others: u32,
}

impl Grants {
    fn of(rights: &Rights, list: Option<&AccessList>) -> Grants {
        let (owner, group, others) = rights.classes();
        let mut grants = Grants {
            users: Named::new(),
            groups: Named::new(),
            others,
        };
        grants.users.push((rights.uid, owner));
        match list {
            None => grants.groups.push((rights.gid, group)),
            Some(list) => {
                let mask = list.mask.unwrap_or(ALL);
                let masked = |(id, may): &(u32, u32)| (*id, may & mask);
                grants.groups.push((rights.gid, list.group & mask));
                grants.users.extend(list.users.iter().map(masked));
                grants.groups.extend(list.groups.iter().map(masked));
            }
        }
        grants
    }

    /// What anyone who is not named may at least.
    fn least(&self) -> u32 {
        let groups = self.groups.iter().map(|(_, may)| may);
        groups.fold(self.others, |least, may| least & may)
    }

    fn among(&self, named: &Named, id: u32) -> u32 {
        let found = named.iter().find(|(known, _)| *known == id);
        found.map_or_else(|| self.least(), |(_, may)| *may)
    }
}

/// What all copies grant, where at least one has a list; none where none has.
pub(crate) fn strictest(copies: &[(Rights, Option<AccessList>)]) -> Option<AccessList> {
    let (first, rest) = copies.split_first()?;
    if rest.iter().all(|copy| copy == first) {
        return first.1.clone();
    }
    if copies.iter().all(|(_, list)| list.is_none()) {
        return None;
    }
    let rights: SmallVec<[Rights; 8]> = copies.iter().map(|(rights, _)| *rights).collect();
    let (uid, gid) = shown_ids(&rights)?;
    let grants: SmallVec<[Grants; 8]> = copies
        .iter()
        .map(|(rights, list)| Grants::of(rights, list.as_ref()))
        .collect();
    let ids = |named: fn(&Grants) -> &Named, own: u32| -> SmallVec<[u32; 8]> {
        let all = grants.iter().flat_map(named).map(|(id, _)| *id);
        let mut ids: SmallVec<[u32; 8]> = all.filter(|id| *id != own).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    };
    let user = |id: u32| {
        grants
            .iter()
            .fold(ALL, |may, one| may & one.among(&one.users, id))
    };
    let group = |id: u32| {
        grants
            .iter()
            .fold(ALL, |may, one| may & one.among(&one.groups, id))
    };
    let mut list = AccessList {
        owner: user(uid),
        group: group(gid),
        others: grants.iter().fold(ALL, |may, one| may & one.others),
        mask: None,
        users: ids(|one| &one.users, uid)
            .iter()
            .map(|id| (*id, user(*id)))
            .collect(),
        groups: ids(|one| &one.groups, gid)
            .iter()
            .map(|id| (*id, group(*id)))
            .collect(),
    };
    let named = list.users.iter().chain(&list.groups);
    list.mask = Some(named.fold(list.group, |mask, (_, may)| mask | may));
    Some(list)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What a caller without powers is granted of `wanted`, as the kernel decides it.
    fn grants(list: &AccessList, rights: &Rights, who: (u32, &[u32]), wanted: u32) -> bool {
        let (uid, member_of) = who;
        let has = |may: u32| wanted & !may == 0;
        let mask = list.mask.unwrap_or(ALL);
        if uid == rights.uid {
            return has(list.owner);
        }
        if let Some((_, may)) = list.users.iter().find(|(id, _)| *id == uid) {
            return has(may & mask);
        }
        let own = (rights.gid, list.group);
        let groups = std::iter::once(&own).chain(&list.groups);
        let mut matching = groups.filter(|(id, _)| member_of.contains(id)).peekable();
        if matching.peek().is_some() {
            return matching.any(|(_, may)| has(may & mask));
        }
        has(list.others)
    }

    fn minimal(rights: &Rights) -> AccessList {
        let (owner, group, others) = rights.classes();
        AccessList {
            owner,
            group,
            others,
            ..AccessList::default()
        }
    }

    fn any_named() -> impl Strategy<Value = Named> {
        prop::collection::btree_map(0..6u32, 0..8u32, 0..3)
            .prop_map(|named| named.into_iter().collect())
    }

    fn any_copy() -> impl Strategy<Value = (Rights, Option<AccessList>)> {
        let list = (any_named(), any_named(), 0..8u32, 0..8u32);
        let rights = (0..3u32, 0..3u32, 0..0o1000u32);
        (rights, prop::option::of(list)).prop_map(|((uid, gid, mode), list)| {
            let mut rights = Rights { uid, gid, mode };
            let list = list.map(|(users, groups, group, mask)| {
                rights.mode = mode & 0o707 | mask << 3;
                let (owner, _, others) = rights.classes();
                AccessList {
                    owner,
                    group,
                    others,
                    mask: Some(mask),
                    users,
                    groups,
                }
            });
            (rights, list)
        })
    }

    proptest! {
        #[test]
        fn nobody_is_granted_what_one_copy_refuses(
            copies in prop::collection::vec(any_copy(), 1..4),
            uid in 0..7u32,
            groups in prop::collection::vec(0..7u32, 0..4),
            wanted in 1..8u32,
        ) {
            if let Some(shown) = strictest(&copies) {
                let rights: Vec<Rights> = copies.iter().map(|(rights, _)| *rights).collect();
                let (shown_uid, gid) = shown_ids(&rights).unwrap();
                let shown_rights = Rights { uid: shown_uid, gid, mode: 0 };
                let who = (uid, &groups[..]);
                let by_all = copies.iter().all(|(rights, list)| {
                    let list = list.clone().unwrap_or_else(|| minimal(rights));
                    grants(&list, rights, who, wanted)
                });
                prop_assert!(by_all || !grants(&shown, &shown_rights, who, wanted));
            }
        }

        #[test]
        fn lists_survive_the_round_trip((_, list) in any_copy()) {
            if let Some(list) = list {
                prop_assert_eq!(AccessList::parse(&list.to_bytes()), Ok(list));
            }
        }
    }

    #[test]
    fn copies_that_agree_grant_what_each_does() {
        let rights = Rights {
            uid: 1,
            gid: 2,
            mode: 0o750,
        };
        let list = AccessList {
            owner: 7,
            group: 5,
            others: 0,
            mask: Some(5),
            users: Named::from_slice(&[(9, 5)]),
            groups: Named::new(),
        };
        let shown = strictest(&[(rights, Some(list.clone())), (rights, Some(list.clone()))]);
        assert_eq!(shown, Some(list));
        assert_eq!(strictest(&[(rights, None), (rights, None)]), None);
    }

    #[test]
    fn a_list_grants_what_the_kernel_would_grant() {
        let list = AccessList {
            owner: 7,
            group: 4,
            others: 6,
            mask: Some(6),
            users: Named::from_slice(&[(9, 7), (8, 0)]),
            groups: Named::from_slice(&[(30, 7)]),
        };
        let grants = |wanted, user, groups: &[u32]| {
            list.grants(wanted, 20, user, |gid| groups.contains(&gid))
        };
        assert!(grants(6, Some(9), &[]) && !grants(1, Some(9), &[]));
        assert!(!grants(4, Some(8), &[20, 30]));
        assert!(grants(4, Some(1), &[20]) && !grants(2, Some(1), &[20]));
        assert!(grants(2, Some(1), &[20, 30]));
        assert!(grants(6, Some(1), &[]));
        assert!(!grants(4, None, &[]));
    }

    #[test]
    fn a_list_that_names_nobody_is_a_mode() {
        let mut list = AccessList {
            owner: 7,
            group: 7,
            others: 1,
            mask: Some(5),
            ..AccessList::default()
        };
        assert_eq!(list.as_mode(), Some(0o751));
        list.groups.push((4, 1));
        assert_eq!(list.as_mode(), None);
        assert_eq!(AccessList::parse(b"\x01\0\0\0"), Err(Errno::INVAL));
        assert_eq!(AccessList::parse(b"\x02\0\0\0\x01"), Err(Errno::INVAL));
        assert_eq!(AccessList::parse(b""), Err(Errno::INVAL));
    }
}
