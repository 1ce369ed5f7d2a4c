//! Access control lists.

use millpond_types::meta::{
    Acl, AclKind, Attr, Create, FileKind, Ino, MetaError, MetaOp, MetaReply, SetAttr, Setxattr,
    XATTRS_MAX, XattrMode,
};

use crate::support::{Client, Fixture, create, name};

const ROOT: Ino = Ino::ROOT;
const NO_ID: u32 = u32::MAX;
const USER: u16 = 0x02;

/// The value of a list with one named user and a mask.
fn list(owner: u16, user: u16, group: u16, mask: u16, other: u16) -> Vec<u8> {
    let entries = [(1, owner), (USER, user), (4, group), (0x10, mask), (0x20, other)];
    let entry = |(tag, permissions): (u16, u16)| {
        let id = if tag == USER { 1000 } else { NO_ID };
        let words = [tag.to_le_bytes(), permissions.to_le_bytes()].concat();
        [words, id.to_le_bytes().to_vec()].concat()
    };
    [2_u32.to_le_bytes().to_vec(), entries.into_iter().flat_map(entry).collect()].concat()
}

fn minimal(mode: u16) -> Vec<u8> {
    Acl::from_mode(mode).to_bytes()
}

fn setting(ino: Ino, kind: AclKind, value: &[u8]) -> Setxattr {
    let (name, value, mode) = (kind.name(), value.to_vec(), XattrMode::Any);
    Setxattr { ino, name, value, mode, drops_set_gid: false }
}

async fn set(c: &Client, ino: Ino, kind: AclKind, value: &[u8]) -> Result<(), MetaError> {
    let done = c.run(MetaOp::SetXattr(setting(ino, kind, value))).await?;
    assert_eq!(done, MetaReply::Done);
    Ok(())
}

async fn remove(c: &Client, ino: Ino, kind: AclKind) -> Result<(), MetaError> {
    let done = c.run(MetaOp::RemoveXattr { ino, name: kind.name() }).await?;
    assert_eq!(done, MetaReply::Done);
    Ok(())
}

/// The list of an inode, if it has one.
async fn get(c: &Client, ino: Ino, kind: AclKind) -> Option<Vec<u8>> {
    match c.run(MetaOp::GetXattr { ino, name: kind.name() }).await {
        Ok(MetaReply::Xattr(value)) => Some(value),
        Err(MetaError::NoData) => None,
        other => panic!("{other:?}"),
    }
}

async fn mode(c: &Client, ino: Ino) -> u16 {
    c.getattr(ino).await.unwrap().mode
}

async fn chmod(c: &Client, ino: Ino, mode: u16) {
    let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
    assert_eq!(c.setattr(ino, set).await.unwrap().mode, mode);
}

/// Makes a name as a mount with lists does.
async fn make(c: &Client, parent: Ino, text: &str, kind: FileKind, mode: u16) -> Attr {
    let wanted = Create { mode, umask: Some(0o027), ..create(parent, text, kind) };
    c.create(wanted).await.unwrap().attr
}

/// An access list and the mode agree, whichever of them is set.
pub(crate) async fn a_list_and_the_mode_go_together(f: Fixture) {
    let c = f.client().await;
    let file = c.file(ROOT, "f").await;
    let before = c.getattr(file).await.unwrap();
    set(&c, file, AclKind::Access, &list(7, 6, 5, 4, 1)).await.unwrap();
    let after = c.at(&f.other).getattr(file).await.unwrap();
    assert_eq!((after.mode, after.version), (0o741, before.version + 1));
    assert_eq!(get(&c, file, AclKind::Access).await.unwrap(), list(7, 6, 5, 4, 1));
    chmod(&c, file, 0o4632).await;
    assert_eq!(get(&c, file, AclKind::Access).await.unwrap(), list(6, 6, 5, 3, 2));
    // Other attributes do not change the list.
    let owner = SetAttr { uid: Some(7), ..SetAttr::default() };
    c.setattr(file, owner).await.unwrap();
    assert_eq!(get(&c, file, AclKind::Access).await.unwrap(), list(6, 6, 5, 3, 2));
    // A list that the mode expresses completely is not kept.
    set(&c, file, AclKind::Access, &minimal(0o750)).await.unwrap();
    assert_eq!((get(&c, file, AclKind::Access).await, mode(&c, file).await), (None, 0o4750));
    set(&c, file, AclKind::Access, &minimal(0o640)).await.unwrap();
    assert_eq!((get(&c, file, AclKind::Access).await, mode(&c, file).await), (None, 0o4640));
    // As on Linux, the mode stays as the removed list left it.
    set(&c, file, AclKind::Access, &list(7, 7, 0, 7, 0)).await.unwrap();
    remove(&c, file, AclKind::Access).await.unwrap();
    assert_eq!((get(&c, file, AclKind::Access).await, mode(&c, file).await), (None, 0o4770));
    assert_eq!(remove(&c, file, AclKind::Access).await, Err(MetaError::NoData));
    chmod(&c, file, 0o600).await;
    set(&c, file, AclKind::Access, &list(7, 7, 0, 7, 0)).await.unwrap();
    for nothing in [&b""[..], &[2, 0, 0, 0]] {
        set(&c, file, AclKind::Access, nothing).await.unwrap();
        assert_eq!((get(&c, file, AclKind::Access).await, mode(&c, file).await), (None, 0o770));
    }
    c.setxattr(file, "user.a", b"", XattrMode::Any).await.expect("they are counted");
}

pub(crate) async fn what_makes_no_sense_is_refused(f: Fixture) {
    let c = f.client().await;
    let (file, dir) = (c.file(ROOT, "f").await, c.dir(ROOT, "d").await);
    let link = c.make(ROOT, "l", FileKind::Symlink).await.ino;
    let wide = list(7, 7, 7, 7, 7);
    for kind in AclKind::ALL {
        assert_eq!(set(&c, link, kind, &wide).await, Err(MetaError::NotSupported));
        for wrong in
            [&wide[..wide.len() - 1], &wide[..wide.len() - 8], &[2, 0], &list(8, 0, 0, 0, 0)]
        {
            assert_eq!(set(&c, dir, kind, wrong).await, Err(MetaError::Invalid));
        }
        let newer = [&[3], &wide[1..]].concat();
        assert_eq!(set(&c, dir, kind, &newer).await, Err(MetaError::NotSupported));
    }
    // Only directories have default lists; removing a missing one is allowed.
    assert_eq!(set(&c, file, AclKind::Default, &wide).await, Err(MetaError::Access));
    assert_eq!(set(&c, file, AclKind::Default, b"").await, Ok(()));
    assert_eq!((mode(&c, file).await, mode(&c, dir).await), (0o644, 0o755));
    let replaced = Setxattr { mode: XattrMode::Replace, ..setting(dir, AclKind::Default, &wide) };
    assert_eq!(c.run(MetaOp::SetXattr(replaced)).await, Err(MetaError::NoData));
    // They count like all attributes.
    for n in 1..XATTRS_MAX {
        c.setxattr(dir, &format!("user.{n}"), b"v", XattrMode::Any).await.unwrap();
    }
    set(&c, dir, AclKind::Default, &wide).await.unwrap();
    assert_eq!(set(&c, dir, AclKind::Access, &wide).await, Err(MetaError::NoSpace));
    assert_eq!(mode(&c, dir).await, 0o755, "nothing has changed");
    set(&c, dir, AclKind::Access, &minimal(0o700)).await.expect("it is not kept");
    set(&c, dir, AclKind::Default, b"").await.unwrap();
    set(&c, dir, AclKind::Access, &wide).await.unwrap();
}

/// A new entry of a directory with a default list inherits it, for any umask.
pub(crate) async fn what_is_made_begins_with_the_default_list(f: Fixture) {
    let c = f.client().await;
    let dir = make(&c, ROOT, "d", FileKind::Directory, 0o777).await;
    assert_eq!(dir.mode, 0o750, "the root has no list, so the umask counts");
    let (dir, default) = (dir.ino, list(7, 7, 5, 7, 4));
    set(&c, dir, AclKind::Default, &default).await.unwrap();
    assert_eq!(mode(&c, dir).await, 0o750, "it is for what is made in it");
    let file = make(&c, dir, "f", FileKind::Regular, 0o666).await;
    assert_eq!(file.mode, 0o664);
    assert_eq!(get(&c, file.ino, AclKind::Access).await.unwrap(), list(6, 7, 5, 6, 4));
    assert_eq!(get(&c, file.ino, AclKind::Default).await, None);
    let fifo = make(&c, dir, "p", FileKind::Fifo, 0o600).await;
    assert_eq!(get(&c, fifo.ino, AclKind::Access).await.unwrap(), list(6, 7, 5, 0, 0));
    let below = make(&c, dir, "b", FileKind::Directory, 0o1755).await;
    assert_eq!(below.mode, 0o1754);
    assert_eq!(get(&c, below.ino, AclKind::Access).await.unwrap(), list(7, 7, 5, 5, 4));
    assert_eq!(get(&c, below.ino, AclKind::Default).await.unwrap(), default);
    let deeper = make(&c, below.ino, "f", FileKind::Regular, 0o666).await;
    assert_eq!(get(&c, deeper.ino, AclKind::Access).await.unwrap(), list(6, 7, 5, 6, 4));
    let link = make(&c, dir, "l", FileKind::Symlink, 0o777).await;
    assert_eq!((link.mode, get(&c, link.ino, AclKind::Access).await), (0o777, None));
    // Without a umask in the request nothing is inherited: mounts without lists and gateways send
    // none.
    let other = c.make(dir, "o", FileKind::Regular).await;
    assert_eq!((other.mode, get(&c, other.ino, AclKind::Access).await), (0o644, None));
    // An existing file stays as it is.
    let again = Create { exclusive: false, umask: Some(0), ..create(dir, "o", FileKind::Regular) };
    assert_eq!(c.create(again).await.unwrap().attr, other);
    // A list that is just a mode is inherited as one; a directory passes it on.
    set(&c, dir, AclKind::Default, &minimal(0o741)).await.unwrap();
    let file = make(&c, dir, "f2", FileKind::Regular, 0o666).await;
    assert_eq!((file.mode, get(&c, file.ino, AclKind::Access).await), (0o640, None));
    let below = make(&c, dir, "b2", FileKind::Directory, 0o777).await;
    assert_eq!((below.mode, get(&c, below.ino, AclKind::Access).await), (0o741, None));
    assert_eq!(get(&c, below.ino, AclKind::Default).await.unwrap(), minimal(0o741));
    // The set-group-id bit is inherited as always.
    chmod(&c, dir, 0o2750).await;
    let below = make(&c, dir, "b3", FileKind::Directory, 0o777).await;
    assert_eq!(below.mode, 0o2741);
    remove(&c, dir, AclKind::Default).await.unwrap();
    assert_eq!(make(&c, dir, "f3", FileKind::Regular, 0o666).await.mode, 0o640);
}

pub(crate) async fn owners_and_root_set_lists(f: Fixture) {
    let c = f.client().await;
    let (dir, wide) = (c.dir(ROOT, "d").await, list(7, 7, 7, 7, 7));
    let given = SetAttr { uid: Some(7), gid: Some(8), mode: Some(0o2755), ..SetAttr::default() };
    c.setattr(dir, given).await.unwrap();
    let (owner, other, root) = (c.as_user(7, 8, &[]), c.as_user(9, 8, &[]), c.as_user(0, 0, &[]));
    for kind in AclKind::ALL {
        assert_eq!(set(&other, dir, kind, &wide).await, Err(MetaError::NotPermitted));
        set(&owner, dir, kind, &wide).await.unwrap();
        assert_eq!(get(&other, dir, kind).await.unwrap(), wide, "whoever finds it may read it");
        assert_eq!(remove(&other, dir, kind).await, Err(MetaError::NotPermitted));
        remove(&owner, dir, kind).await.unwrap();
        set(&root, dir, kind, &wide).await.unwrap();
    }
    assert_eq!(mode(&c, dir).await, 0o2777, "the owner is in the group, and root may all");
    // As with chmod, an owner who is not in the group clears the bit; a kernel sends this for its
    // callers.
    set(&c.as_user(7, 1, &[]), dir, AclKind::Default, &wide).await.unwrap();
    assert_eq!(mode(&c, dir).await, 0o2777, "a default list is no mode");
    set(&c.as_user(7, 1, &[]), dir, AclKind::Access, &wide).await.unwrap();
    assert_eq!(mode(&c, dir).await, 0o777);
    chmod(&c, dir, 0o2777).await;
    for (kind, wanted) in [(AclKind::Default, 0o2777), (AclKind::Access, 0o777)] {
        let set = Setxattr { drops_set_gid: true, ..setting(dir, kind, &wide) };
        c.run(MetaOp::SetXattr(set)).await.unwrap();
        assert_eq!(mode(&c, dir).await, wanted);
    }
}

/// A repeated request gets the same answer, and changes nothing.
pub(crate) async fn a_list_is_set_once(f: Fixture) {
    let c = f.client().await;
    let (dir, other) = (c.dir(ROOT, "d").await, c.at(&f.other));
    let wide = list(7, 7, 7, 7, 7);
    let access = c.request(MetaOp::SetXattr(setting(dir, AclKind::Access, &wide)));
    let default = c.request(MetaOp::SetXattr(setting(dir, AclKind::Default, &wide)));
    for request in [&access, &default] {
        assert_eq!(c.send(request).await, Ok(MetaReply::Done));
    }
    let wanted = Create { umask: Some(0), ..create(dir, "f", FileKind::Regular) };
    let made = c.request(MetaOp::Create(wanted));
    let answer = c.send(&made).await;
    chmod(&c, dir, 0o700).await;
    remove(&c, dir, AclKind::Default).await.unwrap();
    for request in [&access, &default] {
        assert_eq!(other.send(request).await, Ok(MetaReply::Done));
    }
    assert_eq!(other.send(&made).await, answer);
    assert_eq!(get(&c, dir, AclKind::Access).await.unwrap(), list(7, 7, 7, 0, 0));
    assert_eq!((mode(&c, dir).await, get(&c, dir, AclKind::Default).await), (0o700, None));
    let file = c.lookup(dir, "f").await.unwrap();
    assert_eq!(get(&c, file.ino, AclKind::Access).await.unwrap(), list(6, 7, 7, 4, 4));
    let file = MetaOp::Unlink { parent: dir, name: name("f"), of: None };
    c.run(file).await.expect("its lists go with it");
}
