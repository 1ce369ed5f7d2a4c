//! Access control lists (acl(5)), in Linux' form for extended attributes.
//!
//! A value is a version and entries, little endian: `u32` version (2); then for each entry `u16`
//! tag, `u16` permissions, `u32` user or group, all ones if the tag names neither. The rules are
//! those of Linux (`fs/posix_acl.c`): [`Acl::parse`] checks as `posix_acl_valid` does,
//! [`Acl::inherit`] is `posix_acl_create_masq`, and [`Acl::chmod`] is `posix_acl_chmod_masq`.

use super::{MetaError, XattrName};

/// Version of the encoding.
const VERSION: u32 = 2;
const HEADER_BYTES: usize = 4;
const ENTRY_BYTES: usize = 8;
/// The id of an entry that names no user or group.
const NO_ID: u32 = u32::MAX;
/// Read, write and execute.
const ALL: u16 = 0o7;
/// The permission bits of a mode.
const PERMISSIONS: u16 = 0o777;

/// Entries of one list: Linux reads a list from a mount into one page of 4 KiB, and denies all
/// access if the list does not fit.
pub const ACL_ENTRIES_MAX: usize = (4096 - HEADER_BYTES) / ENTRY_BYTES;

/// The two lists of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AclKind {
    /// Permissions on the inode.
    Access,
    /// Of a directory: the initial lists of inodes made in it.
    Default,
}

impl AclKind {
    /// Both kinds.
    pub const ALL: [Self; 2] = [Self::Access, Self::Default];

    /// The name of the extended attribute.
    #[must_use]
    pub const fn as_bytes(self) -> &'static [u8] {
        match self {
            Self::Access => b"system.posix_acl_access",
            Self::Default => b"system.posix_acl_default",
        }
    }

    /// The name as a checked type.
    ///
    /// # Panics
    /// Never: both are valid names.
    #[must_use]
    pub fn name(self) -> XattrName {
        XattrName::new(self.as_bytes()).expect("it is a name")
    }

    /// The kind of list that an extended attribute of this name holds.
    #[must_use]
    pub fn of(name: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_bytes() == name)
    }
}

/// The subject of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tag {
    /// The owner.
    UserObj,
    User(u32),
    /// The inode's group.
    GroupObj,
    Group(u32),
    /// The upper bound of all entries except the owner's and the others'.
    Mask,
    Other,
}

impl Tag {
    const fn code(self) -> u16 {
        match self {
            Self::UserObj => 0x01,
            Self::User(_) => 0x02,
            Self::GroupObj => 0x04,
            Self::Group(_) => 0x08,
            Self::Mask => 0x10,
            Self::Other => 0x20,
        }
    }

    const fn id(self) -> u32 {
        match self {
            Self::User(id) | Self::Group(id) => id,
            _ => NO_ID,
        }
    }

    /// The tag of an encoded code and id; none for an unknown code, and for a named user or group
    /// without an id.
    fn of(code: u16, id: u32) -> Option<Self> {
        let named = Some(id).filter(|id| *id != NO_ID);
        match code {
            0x01 => Some(Self::UserObj),
            0x02 => named.map(Self::User),
            0x04 => Some(Self::GroupObj),
            0x08 => named.map(Self::Group),
            0x10 => Some(Self::Mask),
            0x20 => Some(Self::Other),
            _ => None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AclEntry {
    tag: Tag,
    permissions: u16,
}

/// The entry that may come next in a list.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    UserObj,
    UserOrGroupObj,
    GroupOrMaskOrOther,
    Other,
    Nothing,
}

/// Whether the entries form a valid list, in this order: the owner, named users, the group, named
/// groups, the mask, others. Named entries need a mask. As in Linux a user may be named twice, and
/// the first entry counts.
fn is_valid(entries: &[AclEntry]) -> bool {
    let (mut next, mut needs_mask) = (Next::UserObj, false);
    for entry in entries {
        next = match (entry.tag, next) {
            (Tag::UserObj, Next::UserObj) => Next::UserOrGroupObj,
            (Tag::User(_), Next::UserOrGroupObj) | (Tag::Group(_), Next::GroupOrMaskOrOther) => {
                needs_mask = true;
                next
            }
            (Tag::GroupObj, Next::UserOrGroupObj) => Next::GroupOrMaskOrOther,
            (Tag::Mask, Next::GroupOrMaskOrOther) => Next::Other,
            (Tag::Other, Next::Other) => Next::Nothing,
            (Tag::Other, Next::GroupOrMaskOrOther) if !needs_mask => Next::Nothing,
            _ => return false,
        };
        if entry.permissions > ALL {
            return false;
        }
    }
    next == Next::Nothing
}

/// A valid access control list.
///
/// ```
/// use millpond_types::meta::Acl;
///
/// let minimal = Acl::from_mode(0o640);
/// assert_eq!((minimal.mode(), minimal.is_minimal()), (0o640, true));
/// assert_eq!(Acl::parse(&minimal.to_bytes()), Ok(Some(minimal)));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acl {
    entries: Vec<AclEntry>,
}

impl Acl {
    /// The list with the permissions of a mode.
    #[must_use]
    pub fn from_mode(mode: u16) -> Self {
        let entry = |tag, shift: u16| AclEntry { tag, permissions: mode >> shift & ALL };
        let entries = [entry(Tag::UserObj, 6), entry(Tag::GroupObj, 3), entry(Tag::Other, 0)];
        Self { entries: entries.to_vec() }
    }

    /// Decodes the value of an extended attribute; none for a value without entries, which means no
    /// list.
    ///
    /// # Errors
    /// `Invalid` for a malformed or contradictory list, `NotSupported` for another version of the
    /// encoding, `NoSpace` for more than [`ACL_ENTRIES_MAX`] entries.
    pub fn parse(value: &[u8]) -> Result<Option<Self>, MetaError> {
        if value.is_empty() {
            return Ok(None);
        }
        let (version, entries) = value.split_first_chunk().ok_or(MetaError::Invalid)?;
        if u32::from_le_bytes(*version) != VERSION {
            return Err(MetaError::NotSupported);
        }
        let (entries, rest) = entries.as_chunks::<ENTRY_BYTES>();
        if !rest.is_empty() {
            return Err(MetaError::Invalid);
        }
        if entries.is_empty() {
            return Ok(None);
        }
        if entries.len() > ACL_ENTRIES_MAX {
            return Err(MetaError::NoSpace);
        }
        let read = |[t0, t1, p0, p1, id @ ..]: &[u8; ENTRY_BYTES]| {
            let tag = Tag::of(u16::from_le_bytes([*t0, *t1]), u32::from_le_bytes(*id))?;
            Some(AclEntry { tag, permissions: u16::from_le_bytes([*p0, *p1]) })
        };
        let entries: Option<Vec<AclEntry>> = entries.iter().map(read).collect();
        let entries = entries.filter(|entries| is_valid(entries)).ok_or(MetaError::Invalid)?;
        Ok(Some(Self { entries }))
    }

    /// The value of the extended attribute.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(HEADER_BYTES + ENTRY_BYTES * self.entries.len());
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        for AclEntry { tag, permissions } in &self.entries {
            bytes.extend_from_slice(&tag.code().to_le_bytes());
            bytes.extend_from_slice(&permissions.to_le_bytes());
            bytes.extend_from_slice(&tag.id().to_le_bytes());
        }
        bytes
    }

    /// Whether a mode can hold all permissions of the list, so that the list need not be stored.
    #[must_use]
    pub fn is_minimal(&self) -> bool {
        let is_of_mode = |tag| matches!(tag, Tag::UserObj | Tag::GroupObj | Tag::Other);
        self.entries.iter().all(|entry| is_of_mode(entry.tag))
    }

    /// The permissions of the mode that goes with this list: the group bits are the mask, if there
    /// is one.
    #[must_use]
    pub fn mode(&self) -> u16 {
        let group = self.group_class();
        let of_class = |entry: &AclEntry| match entry.tag {
            Tag::UserObj => entry.permissions << 6,
            tag if tag == group => entry.permissions << 3,
            Tag::Other => entry.permissions,
            _ => 0,
        };
        self.entries.iter().map(of_class).sum()
    }

    /// Applies a chmod: sets the owner's and the others' entry, and the mask, or the group's entry
    /// if there is no mask.
    pub fn chmod(&mut self, mode: u16) {
        self.each_class(|permissions, of_mode| *permissions = of_mode, mode);
    }

    /// The access list and mode of a new inode in a directory with this default list, for the
    /// requested mode. A minimal list need not be stored. The umask does not apply.
    #[must_use]
    pub fn inherit(&self, mode: u16) -> (Self, u16) {
        let mut access = self.clone();
        access.each_class(|permissions, of_mode| *permissions &= of_mode, mode);
        let mode = mode & !PERMISSIONS | access.mode();
        (access, mode)
    }

    /// The entry that the group bits of a mode show.
    fn group_class(&self) -> Tag {
        let has_mask = self.entries.iter().any(|entry| entry.tag == Tag::Mask);
        if has_mask { Tag::Mask } else { Tag::GroupObj }
    }

    /// Applies `change` to each entry that a mode shows, with that entry's bits of `mode`.
    fn each_class(&mut self, change: impl Fn(&mut u16, u16), mode: u16) {
        let group = self.group_class();
        for AclEntry { tag, permissions } in &mut self.entries {
            let shift = match *tag {
                Tag::UserObj => 6,
                tag if tag == group => 3,
                Tag::Other => 0,
                _ => continue,
            };
            change(permissions, mode >> shift & ALL);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OWNER: Tag = Tag::UserObj;
    const GROUP: Tag = Tag::GroupObj;

    fn value(entries: &[(Tag, u16)]) -> Vec<u8> {
        let entry =
            |(tag, permissions): &(Tag, u16)| AclEntry { tag: *tag, permissions: *permissions };
        Acl { entries: entries.iter().map(entry).collect() }.to_bytes()
    }

    fn acl(entries: &[(Tag, u16)]) -> Acl {
        Acl::parse(&value(entries)).unwrap().unwrap()
    }

    /// The entries as `getfacl -n` shows them.
    fn shown(acl: &Acl) -> Vec<(Tag, u16)> {
        acl.entries.iter().map(|entry| (entry.tag, entry.permissions)).collect()
    }

    #[test]
    fn the_form_is_that_of_linux() {
        // setfacl -m u:1000:rwx,m::rx on a file of 0640, read with getfattr -e hex.
        let golden = "0200000001000600ffffffff02000700e803000004000400ffffffff10000500ffffffff\
                      20000000ffffffff";
        let byte = |at| u8::from_str_radix(&golden[at..at + 2], 16).unwrap();
        let golden: Vec<u8> = (0..golden.len()).step_by(2).map(byte).collect();
        let read = Acl::parse(&golden).unwrap().unwrap();
        let entries =
            [(OWNER, 6), (Tag::User(1000), 7), (GROUP, 4), (Tag::Mask, 5), (Tag::Other, 0)];
        assert_eq!(shown(&read), entries);
        assert_eq!((read.to_bytes(), read.mode(), read.is_minimal()), (golden, 0o650, false));
        assert_eq!(AclKind::of(b"system.posix_acl_access"), Some(AclKind::Access));
        assert_eq!(AclKind::of(AclKind::Default.name().as_bytes()), Some(AclKind::Default));
        assert_eq!(AclKind::of(b"system.posix_acl"), None);
    }

    #[test]
    fn nothing_stands_for_no_list() {
        assert_eq!(Acl::parse(b""), Ok(None));
        assert_eq!(Acl::parse(&VERSION.to_le_bytes()), Ok(None));
        assert_eq!(Acl::parse(&3_u32.to_le_bytes()), Err(MetaError::NotSupported));
        assert_eq!(Acl::parse(&[2, 0, 0]), Err(MetaError::Invalid));
    }

    #[test]
    fn only_lists_that_make_sense_are_taken() {
        let (mask, other, user) = (Tag::Mask, Tag::Other, Tag::User(5));
        let good: [&[(Tag, u16)]; 5] = [
            &[(OWNER, 7), (GROUP, 5), (other, 0)],
            &[(OWNER, 7), (GROUP, 5), (mask, 1), (other, 0)],
            &[(OWNER, 7), (user, 7), (GROUP, 5), (mask, 1), (other, 0)],
            &[(OWNER, 7), (GROUP, 5), (Tag::Group(0), 2), (mask, 1), (other, 0)],
            // Linux checks neither the order of users nor whether one is named twice.
            &[
                (OWNER, 7),
                (Tag::User(9), 1),
                (user, 7),
                (user, 0),
                (GROUP, 5),
                (mask, 1),
                (other, 0),
            ],
        ];
        for entries in good {
            assert_eq!(shown(&acl(entries)), entries);
        }
        let wrong: [&[(Tag, u16)]; 12] = [
            &[(OWNER, 7)],
            &[(GROUP, 5), (other, 0)],
            &[(OWNER, 7), (other, 0)],
            &[(OWNER, 7), (GROUP, 5)],
            &[(OWNER, 7), (OWNER, 7), (GROUP, 5), (other, 0)],
            &[(OWNER, 7), (GROUP, 5), (GROUP, 5), (other, 0)],
            &[(OWNER, 7), (GROUP, 5), (other, 0), (other, 0)],
            &[(OWNER, 7), (GROUP, 5), (mask, 0), (mask, 0), (other, 0)],
            &[(GROUP, 5), (OWNER, 7), (other, 0)],
            // Named entries need a mask.
            &[(OWNER, 7), (user, 7), (GROUP, 5), (other, 0)],
            &[(OWNER, 8), (GROUP, 5), (other, 0)],
            &[(OWNER, 7), (Tag::User(NO_ID), 7), (GROUP, 5), (mask, 7), (other, 0)],
        ];
        for entries in wrong {
            assert_eq!(Acl::parse(&value(entries)), Err(MetaError::Invalid), "{entries:?}");
        }
        let mut unknown = value(&[(OWNER, 7), (GROUP, 5), (other, 0)]);
        unknown[HEADER_BYTES] = 0x40;
        assert_eq!(Acl::parse(&unknown), Err(MetaError::Invalid));
    }

    #[test]
    fn a_list_has_so_many_entries() {
        let of = |users: usize| {
            let mut entries = vec![(OWNER, 7)];
            entries.extend((0..u32::try_from(users).unwrap()).map(|id| (Tag::User(id), 4)));
            entries.extend([(GROUP, 5), (Tag::Mask, 7), (Tag::Other, 0)]);
            value(&entries)
        };
        let largest = of(ACL_ENTRIES_MAX - 4);
        assert!(largest.len() <= 4096 && Acl::parse(&largest).is_ok());
        assert_eq!(Acl::parse(&of(ACL_ENTRIES_MAX - 3)), Err(MetaError::NoSpace));
    }

    #[test]
    fn a_mode_is_that_of_owner_mask_and_others() {
        let minimal = Acl::from_mode(0o4751);
        assert_eq!(shown(&minimal), [(OWNER, 7), (GROUP, 5), (Tag::Other, 1)]);
        assert!(minimal.is_minimal());
        let mut long = acl(&[
            (OWNER, 7),
            (Tag::User(5), 6),
            (GROUP, 5),
            (Tag::Group(8), 4),
            (Tag::Mask, 7),
            (Tag::Other, 0),
        ]);
        assert_eq!((long.mode(), long.is_minimal()), (0o770, false));
        long.chmod(0o2614);
        let after = [
            (OWNER, 6),
            (Tag::User(5), 6),
            (GROUP, 5),
            (Tag::Group(8), 4),
            (Tag::Mask, 1),
            (Tag::Other, 4),
        ];
        assert_eq!((shown(&long), long.mode()), (after.to_vec(), 0o614));
        let mut minimal = minimal;
        minimal.chmod(0o604);
        assert_eq!(minimal, Acl::from_mode(0o604));
    }

    #[test]
    fn what_is_made_gets_what_both_the_list_and_the_mode_allow() {
        let default =
            acl(&[(OWNER, 7), (Tag::User(5), 7), (GROUP, 5), (Tag::Mask, 7), (Tag::Other, 5)]);
        let (access, mode) = default.inherit(0o2664);
        let wanted = [(OWNER, 6), (Tag::User(5), 7), (GROUP, 5), (Tag::Mask, 6), (Tag::Other, 4)];
        assert_eq!((shown(&access), mode), (wanted.to_vec(), 0o2664));
        // Without a mask the group's own entry counts, and the list fits in a mode.
        let (access, mode) = Acl::from_mode(0o750).inherit(0o666);
        assert_eq!((access, mode), (Acl::from_mode(0o640), 0o640));
    }

    fn lists() -> impl Strategy<Value = Acl> {
        let named = || prop::collection::vec((0..NO_ID, 0..=ALL), 0..5);
        let of = ([0..=ALL, 0..=ALL, 0..=ALL], named(), named(), prop::option::of(0..=ALL));
        of.prop_map(|([owner, group, other], users, groups, mask)| {
            let needs_mask = !users.is_empty() || !groups.is_empty();
            let mut entries = vec![(OWNER, owner)];
            entries.extend(users.iter().map(|(id, bits)| (Tag::User(*id), *bits)));
            entries.push((GROUP, group));
            entries.extend(groups.iter().map(|(id, bits)| (Tag::Group(*id), *bits)));
            let mask = mask.or(needs_mask.then_some(ALL));
            entries.extend(mask.map(|bits| (Tag::Mask, bits)));
            entries.push((Tag::Other, other));
            acl(&entries)
        })
    }

    proptest! {
        #[test]
        fn bytes_from_outside_are_a_list_or_refused(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            for head in [&[][..], &VERSION.to_le_bytes()] {
                let bytes = [head, &bytes].concat();
                if let Ok(Some(acl)) = Acl::parse(&bytes) {
                    prop_assert_eq!(Acl::parse(&acl.to_bytes()), Ok(Some(acl)));
                }
            }
        }

        #[test]
        fn a_list_comes_back_and_pieces_of_it_are_refused(acl in lists()) {
            let bytes = acl.to_bytes();
            for cut in HEADER_BYTES + 1..bytes.len() {
                prop_assert!(Acl::parse(&bytes[..cut]).is_err());
            }
            prop_assert_eq!(Acl::parse(&bytes), Ok(Some(acl)));
        }

        #[test]
        fn a_mode_that_is_set_is_the_lists(acl in lists(), mode in 0..=0o7777_u16) {
            let mut after = acl.clone();
            after.chmod(mode);
            prop_assert_eq!(after.mode(), mode & PERMISSIONS);
            after.chmod(acl.mode());
            prop_assert_eq!(after, acl);
        }

        #[test]
        fn nothing_is_inherited_that_is_not_allowed(acl in lists(), mode in 0..=0o7777_u16) {
            let (access, made) = acl.inherit(mode);
            prop_assert_eq!(made & PERMISSIONS, access.mode());
            prop_assert_eq!(made, mode & (!PERMISSIONS | acl.mode()));
            prop_assert_eq!(access.is_minimal(), acl.is_minimal());
            prop_assert_eq!(Acl::parse(&access.to_bytes()), Ok(Some(access)));
        }
    }
}
