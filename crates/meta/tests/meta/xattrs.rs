//! Extended attributes.

use millpond_types::meta::{
    FileKind, Ino, MetaError, MetaOp, MetaReply, SetAttr, XATTR_BYTES_MAX, XATTRS_MAX, XattrMode,
};

use crate::support::{Client, Fixture, xname};

const ROOT: Ino = Ino::ROOT;

async fn value(c: &Client, ino: Ino, text: &str) -> Result<Vec<u8>, MetaError> {
    match c.run(MetaOp::GetXattr { ino, name: xname(text) }).await? {
        MetaReply::Xattr(value) => Ok(value),
        other => panic!("{other:?}"),
    }
}

async fn list(c: &Client, ino: Ino) -> Vec<String> {
    match c.run(MetaOp::ListXattr { ino }).await.unwrap() {
        MetaReply::Xattrs(names) => {
            names.iter().map(|name| String::from_utf8(name.as_bytes().to_vec()).unwrap()).collect()
        }
        other => panic!("{other:?}"),
    }
}

async fn remove(c: &Client, ino: Ino, text: &str) -> Result<MetaReply, MetaError> {
    c.run(MetaOp::RemoveXattr { ino, name: xname(text) }).await
}

pub(crate) async fn modes_and_limits(f: Fixture) {
    let c = f.client().await;
    let file = c.file(ROOT, "f").await;
    assert_eq!(list(&c, file).await, [""; 0]);
    assert_eq!(value(&c, file, "user.a").await, Err(MetaError::NoData));
    assert_eq!(remove(&c, file, "user.a").await, Err(MetaError::NoData));
    let set = async |value, mode| c.setxattr(file, "user.a", value, mode).await;
    assert_eq!(set(b"1", XattrMode::Replace).await, Err(MetaError::NoData));
    assert_eq!(set(b"1", XattrMode::Create).await, Ok(()));
    assert_eq!(set(b"2", XattrMode::Create).await, Err(MetaError::Exists));
    assert_eq!(value(&c, file, "user.a").await.unwrap(), b"1");
    assert_eq!(set(b"2", XattrMode::Replace).await, Ok(()));
    assert_eq!(set(b"", XattrMode::Any).await, Ok(()));
    assert_eq!(value(&c.at(&f.other), file, "user.a").await.unwrap(), b"", "empty, but there");
    let largest = vec![0xa5; XATTR_BYTES_MAX];
    c.setxattr(file, "user.large", &largest, XattrMode::Any).await.unwrap();
    assert_eq!(value(&c, file, "user.large").await.unwrap(), largest);
    assert_eq!(list(&c, file).await, ["user.a", "user.large"]);
    for n in 2..XATTRS_MAX {
        c.setxattr(file, &format!("user.{n}"), b"v", XattrMode::Any).await.unwrap();
    }
    let more = c.setxattr(file, "user.more", b"v", XattrMode::Any).await;
    assert_eq!(more, Err(MetaError::NoSpace));
    c.setxattr(file, "user.a", b"v", XattrMode::Any).await.expect("it is there already");
    assert_eq!(list(&c, file).await.len(), XATTRS_MAX);
    remove(&c, file, "user.a").await.unwrap();
    c.setxattr(file, "user.more", b"v", XattrMode::Any).await.unwrap();
    let gone = Ino(99);
    assert_eq!(c.setxattr(gone, "user.a", b"", XattrMode::Any).await, Err(MetaError::Stale));
    assert_eq!(c.run(MetaOp::ListXattr { ino: gone }).await, Err(MetaError::Stale));
    // All of them go with the inode, in several transactions.
    c.unlink(ROOT, "f").await.unwrap();
    c.run(MetaOp::SessionClose).await.unwrap();
    while f.volume.collect().await.unwrap().inodes == 0 {}
    assert_eq!(c.getattr(file).await, Err(MetaError::Stale));
    assert_eq!(value(&c, file, "user.more").await, Err(MetaError::NoData));
}

pub(crate) async fn classes_have_their_rules(f: Fixture) {
    let c = f.client().await;
    let (file, link) = (c.file(ROOT, "f").await, c.make(ROOT, "s", FileKind::Symlink).await.ino);
    let (user, root) = (c.as_user(7, 7, &[]), c.as_user(0, 0, &[]));
    let any = XattrMode::Any;
    assert_eq!(user.setxattr(file, "user.a", b"", any).await, Err(MetaError::Access));
    root.setxattr(file, "user.a", b"1", any).await.unwrap();
    assert_eq!(value(&user, file, "user.a").await.unwrap(), b"1");
    let closed = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    c.setattr(file, closed).await.unwrap();
    assert_eq!(value(&user, file, "user.a").await, Err(MetaError::Access));
    assert_eq!(remove(&user, file, "user.a").await, Err(MetaError::Access));
    // xattr(7): `user.` attributes exist only on files and directories; `trusted.` ones are root's.
    assert_eq!(root.setxattr(link, "user.a", b"", any).await, Err(MetaError::NotPermitted));
    assert_eq!(value(&root, link, "user.a").await, Err(MetaError::NoData));
    assert_eq!(user.setxattr(file, "trusted.a", b"", any).await, Err(MetaError::NotPermitted));
    root.setxattr(file, "trusted.a", b"", any).await.unwrap();
    assert_eq!(value(&user, file, "trusted.a").await, Err(MetaError::NoData));
    assert_eq!(user.setxattr(file, "security.a", b"", any).await, Err(MetaError::NotPermitted));
    root.setxattr(file, "security.a", b"", any).await.unwrap();
    assert_eq!(value(&user, file, "security.a").await.unwrap(), b"");
}
