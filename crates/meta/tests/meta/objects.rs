//! Objects: files of a bucket by their keys.

use millpond_types::meta::object::{
    Expect, ListObjects, ListPage, Listed, Object, ObjectBody, ObjectOp, ObjectReply, PutObject,
    SetAttachment,
};
use millpond_types::meta::{
    Attr, FileKind, INLINE_MAX, Ino, MetaError, MetaOp, MetaReply, QuotaLimits, SetAttr, Timestamp,
    TrashChange, WriteInline, keys,
};

use crate::support::{Client, Fixture, LEASE, create, name, rename};

const ROOT: Ino = Ino::ROOT;
pub(crate) const BUCKET: &str = "bucket";

/// The outcome of a change.
#[derive(Debug, PartialEq)]
pub(crate) enum Outcome {
    Done(Option<Attr>, Option<Object>),
    Unmet(Option<Object>),
}

impl Client {
    pub(crate) async fn object_op(&self, op: ObjectOp) -> Result<ObjectReply, MetaError> {
        match self.run(MetaOp::Object(op)).await? {
            MetaReply::Object(reply) => Ok(reply),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn outcome(&self, op: ObjectOp) -> Result<Outcome, MetaError> {
        Ok(match self.object_op(op).await? {
            ObjectReply::Done { attr, replaced } => Outcome::Done(attr, replaced),
            ObjectReply::Unmet(there) => Outcome::Unmet(there),
            other => panic!("{other:?}"),
        })
    }

    pub(crate) async fn make_bucket(&self, text: &str) -> Result<Ino, MetaError> {
        let op = ObjectOp::MakeBucket { bucket: name(text), attachment: b"made".to_vec() };
        match self.object_op(op).await? {
            ObjectReply::Bucket(bucket) => {
                assert_eq!(bucket.name, text);
                Ok(bucket.attr.ino)
            }
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn put_op(key: &[u8], bytes: &[u8]) -> PutObject {
        PutObject {
            bucket: name(BUCKET),
            key: key.to_vec(),
            body: ObjectBody::Bytes(bytes.to_vec()),
            mode: 0o644,
            attachment: b"etag".to_vec(),
            expect: Expect::Any,
            replicas: 0,
            upload: None,
            origin: None,
        }
    }

    pub(crate) async fn put_if(
        &self,
        key: &str,
        bytes: &[u8],
        expect: Expect,
    ) -> Result<Outcome, MetaError> {
        let put = PutObject { expect, ..Self::put_op(key.as_bytes(), bytes) };
        self.outcome(ObjectOp::Put(put)).await
    }

    /// Puts an object; returns its inode.
    pub(crate) async fn put(&self, key: &str, bytes: &[u8]) -> Attr {
        self.try_put(key, bytes).await.unwrap()
    }

    pub(crate) async fn try_put(&self, key: &str, bytes: &[u8]) -> Result<Attr, MetaError> {
        match self.put_if(key, bytes, Expect::Any).await? {
            Outcome::Done(Some(attr), _) => Ok(attr),
            Outcome::Done(None, _) | Outcome::Unmet(_) => panic!("it is put"),
        }
    }

    pub(crate) async fn object(&self, key: &str) -> Option<Object> {
        let (bucket, key) = (name(BUCKET), key.as_bytes().to_vec());
        let op = ObjectOp::Get { bucket, key, with_bytes: true };
        match self.object_op(op).await.unwrap() {
            ObjectReply::Object { object, .. } => object,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn remove_if(&self, key: &str, expect: Expect) -> Result<Outcome, MetaError> {
        let (bucket, key) = (name(BUCKET), key.as_bytes().to_vec());
        self.outcome(ObjectOp::Remove { bucket, key, expect }).await
    }

    /// Removes an object. Returns whether it existed.
    pub(crate) async fn remove(&self, key: &str) -> bool {
        match self.remove_if(key, Expect::Any).await.unwrap() {
            Outcome::Done(attr, replaced) => {
                assert_eq!(attr.is_some(), replaced.is_some());
                replaced.is_some()
            }
            other @ Outcome::Unmet(_) => panic!("{other:?}"),
        }
    }

    pub(crate) async fn list_page(&self, list: ListObjects) -> ListPage {
        match self.object_op(ObjectOp::List(list)).await.unwrap() {
            ObjectReply::Page(page) => page,
            other => panic!("{other:?}"),
        }
    }

    /// Lists all keys and prefixes, with the page size of `list`.
    pub(crate) async fn listed(&self, list: &ListObjects) -> Vec<(Vec<u8>, bool)> {
        let (mut all, mut list) = (Vec::new(), list.clone());
        loop {
            let page = self.list_page(list.clone()).await;
            assert!(page.items.len() <= list.limit as usize);
            all.extend(page.items.into_iter().map(|item| match item {
                Listed::Key { key, .. } => (key, false),
                Listed::Prefix(prefix) => (prefix, true),
            }));
            match page.next {
                Some(next) => {
                    assert!(next > list.after, "it goes on");
                    list.after = next;
                }
                None => return all,
            }
        }
    }

    pub(crate) async fn keys(&self) -> Vec<String> {
        let all = self.listed(&all_keys(3)).await;
        all.into_iter().map(|(key, _)| String::from_utf8(key).unwrap()).collect()
    }

    async fn nameless(&self) -> Attr {
        let MetaReply::Numbers { first } =
            self.run(MetaOp::TakeNumbers { count: 1 }).await.unwrap()
        else {
            panic!()
        };
        let (parent, ino) = (ROOT, Ino(first));
        let op = ObjectOp::Nameless { parent, ino, mode: 0o644, replicas: 0, umask: None };
        self.entry(MetaOp::Object(op)).await.unwrap().attr
    }

    pub(crate) async fn filled(&self, bytes: &[u8]) -> Attr {
        let file = self.nameless().await;
        self.write(file, 0, bytes).await.unwrap()
    }
}

pub(crate) fn all_keys(limit: u32) -> ListObjects {
    let (prefix, delimiter, after) = (Vec::new(), Vec::new(), Vec::new());
    ListObjects { bucket: name(BUCKET), prefix, delimiter, after, limit }
}

pub(crate) fn bytes_of(object: Option<Object>) -> Vec<u8> {
    object.unwrap().bytes.unwrap()
}

pub(crate) async fn what_is_put_is_a_file(f: Fixture) {
    let c = f.client().await;
    let bucket = c.make_bucket(BUCKET).await.unwrap();
    let put = c.put("dir/file", b"bytes").await;
    let dir = c.lookup(bucket, "dir").await.unwrap();
    let file = c.at(&f.other).lookup(dir.ino, "file").await.unwrap();
    assert_eq!((file, file.size, file.mode), (put, 5, 0o644));
    assert_eq!(c.content(file.ino).await.unwrap().bytes, b"bytes");
    let object = c.object("dir/file").await.unwrap();
    let attachment = object.attachment.clone().unwrap();
    assert_eq!((&attachment.bytes[..], attachment.is_current), (&b"etag"[..], true));
    // The reverse: a file is an object, and a directory is none.
    let made = c.file(dir.ino, "made").await;
    let object = c.object("dir/made").await.unwrap();
    assert_eq!((object.attr.ino, object.attachment), (made, None));
    c.dir(bucket, "empty").await;
    assert_eq!((c.object("dir").await, c.object("empty").await), (None, None));
    assert_eq!(c.object("dir/file/x").await, None);
    assert_eq!(c.keys().await, ["dir/file", "dir/made"]);
    // Each put makes a new inode; the old one stays usable where it is open.
    let again = c.put("dir/file", &vec![7; INLINE_MAX + 1]).await;
    assert!(again.ino != put.ino && c.getattr(put.ino).await.unwrap().nlink == 0);
    assert_eq!(f.volume.large(9).await.unwrap(), [again.ino]);
    assert_eq!(bytes_of(c.object("dir/file").await).len(), INLINE_MAX + 1);
    // After a change through a mount the attachment is not current.
    let mtime = Timestamp { secs: 1_700_000_200, nanos: 5 };
    let (ino, data) = (again.ino, again.data);
    let write = WriteInline { ino, data, offset: 0, bytes: b"x".to_vec(), mtime };
    c.run(MetaOp::WriteInline(write)).await.unwrap();
    assert!(!c.object("dir/file").await.unwrap().attachment.unwrap().is_current);
    c.make(bucket, "link", FileKind::Symlink).await;
    assert_eq!(c.object("link").await, None, "only files are objects");
    assert_eq!(c.put_if("link/x", b"", Expect::Any).await, Err(MetaError::NotDirectory));
    let empty = c.put("empty/", b"").await;
    assert_eq!(bytes_of(c.object("empty/").await), b"");
    assert_eq!(c.lookup(c.lookup(bucket, "empty").await.unwrap().ino, ".%empty").await, Ok(empty));
}

pub(crate) async fn keys_may_begin_with_each_other(f: Fixture) {
    let c = f.client().await;
    let bucket = c.make_bucket(BUCKET).await.unwrap();
    let a = c.put("a", b"a").await;
    c.put("a/b/c", b"abc").await;
    let dir = c.lookup(bucket, "a").await.unwrap();
    assert!(dir.is_dir() && c.lookup(dir.ino, ".%self").await.unwrap().ino == a.ino);
    assert_eq!(bytes_of(c.object("a").await), b"a");
    assert_eq!(bytes_of(c.object("a/b/c").await), b"abc");
    assert_eq!(c.object("a/b").await, None);
    c.put("a-b", b"").await;
    c.put("a/b", b"ab").await;
    c.put("a", b"new").await;
    assert_eq!(bytes_of(c.object("a").await), b"new");
    assert_eq!(c.keys().await, ["a", "a-b", "a/b", "a/b/c"]);
    assert!(c.remove("a/b/c").await && c.remove("a/b").await);
    assert_eq!(c.names(dir.ino).await, [".%self"], "what was made for objects goes with them");
    assert!(c.remove("a").await && !c.remove("a").await);
    assert_eq!(c.names(bucket).await, ["a-b"]);
    // A directory made with mkdir stays.
    let made = c.dir(bucket, "made").await;
    c.put("made/x/y", b"").await;
    assert!(c.remove("made/x/y").await);
    assert_eq!((c.names(made).await.len(), c.names(bucket).await.len()), (0, 2));
    assert_eq!(c.keys().await, ["a-b"]);
}

pub(crate) async fn every_key_comes_back(f: Fixture) {
    let c = f.client().await;
    c.make_bucket(BUCKET).await.unwrap();
    let long = "x".repeat(300);
    let other = format!("{}/y", "x".repeat(247));
    let plain = "x".repeat(250);
    let deep = "d/".repeat(512);
    let keys = [
        "/",
        "//",
        "a/",
        "a//b",
        ".",
        "..",
        "../..",
        ".%self",
        ".%empty/x",
        &long,
        &other,
        &plain,
        "\u{e4}/\u{20ac}",
        &deep,
        ".%%",
        "a b+c&d",
        &format!("{long}/{long}"),
    ];
    let mut sorted: Vec<&str> = keys.to_vec();
    sorted.sort_unstable();
    for key in keys {
        c.put(key, key.as_bytes()).await;
    }
    for key in keys {
        assert_eq!(bytes_of(c.object(key).await), key.as_bytes(), "{key}");
    }
    assert_eq!(c.keys().await, sorted);
    f.assert_sound().await;
    for key in keys {
        assert!(c.remove(key).await, "{key}");
    }
    let bucket = c.lookup(ROOT, BUCKET).await.unwrap().ino;
    assert_eq!(c.names(bucket).await, Vec::<String>::new(), "nothing stays behind");
    let refused =
        async |key: &[u8]| c.run(MetaOp::Object(ObjectOp::Put(Client::put_op(key, b"")))).await;
    assert_eq!(refused(b"").await, Err(MetaError::Invalid));
    assert_eq!(refused(b"\xff").await, Err(MetaError::Invalid));
    assert_eq!(refused(b"a\0b").await, Err(MetaError::Invalid));
}

pub(crate) async fn expectations_hold_or_change_nothing(f: Fixture) {
    let c = f.client().await;
    c.make_bucket(BUCKET).await.unwrap();
    let exactly = |attr: Attr| Expect::Exactly { ino: attr.ino, version: attr.version };
    let first = c.put_if("k", b"1", Expect::Absent).await.unwrap();
    let Outcome::Done(Some(first), None) = first else { panic!("{first:?}") };
    let Outcome::Unmet(Some(there)) = c.put_if("k", b"2", Expect::Absent).await.unwrap() else {
        panic!()
    };
    assert_eq!(there.attr, first);
    let done = c.put_if("k", b"2", exactly(first)).await.unwrap();
    let Outcome::Done(Some(second), Some(replaced)) = done else { panic!("{done:?}") };
    assert_eq!(replaced.attr, first);
    let unmet = |outcome| matches!(outcome, Ok(Outcome::Unmet(_)));
    assert!(unmet(c.put_if("k", b"3", exactly(first)).await), "it is another one by now");
    assert!(unmet(c.remove_if("k", exactly(first)).await));
    assert!(unmet(c.remove_if("k", Expect::Absent).await));
    assert_eq!(c.put_if("deep/er", b"", exactly(first)).await, Ok(Outcome::Unmet(None)));
    let bucket = c.lookup(ROOT, BUCKET).await.unwrap().ino;
    assert_eq!(c.names(bucket).await, ["k"], "nothing was made on the way");
    let set = |key: &str, expect| {
        ObjectOp::SetAttachment(SetAttachment {
            bucket: name(BUCKET),
            key: key.as_bytes().to_vec(),
            attachment: b"tags".to_vec(),
            expect,
        })
    };
    let Ok(Outcome::Done(Some(tagged), None)) = c.outcome(set("k", exactly(second))).await else {
        panic!()
    };
    assert!(tagged.version > second.version && tagged.mtime == second.mtime);
    assert!(unmet(c.outcome(set("k", exactly(second))).await), "others see that it changed");
    assert_eq!(c.outcome(set("nobody", Expect::Any)).await, Ok(Outcome::Unmet(None)));
    assert_eq!(c.object("k").await.unwrap().attachment.unwrap().bytes, b"tags");
    let removed = c.remove_if("k", exactly(tagged)).await.unwrap();
    assert!(matches!(removed, Outcome::Done(Some(_), Some(_))));
    assert_eq!(c.remove_if("k", Expect::Absent).await, Ok(Outcome::Done(None, None)));
}

/// Of many clients with the same expectation exactly one succeeds, at two metas.
pub(crate) async fn of_many_that_expect_the_same_one_wins(f: Fixture) {
    let c = f.client().await;
    c.make_bucket(BUCKET).await.unwrap();
    for round in 0..6 {
        let key = if round % 2 == 0 { "k" } else { "deep/er/k" };
        let expect = match c.object(key).await {
            Some(there) => Expect::Exactly { ino: there.attr.ino, version: there.attr.version },
            None => Expect::Absent,
        };
        let mut tasks = Vec::new();
        for n in 0..8_u8 {
            let c = if n % 2 == 0 { c.clone() } else { c.at(&f.other) };
            tasks.push(tokio::spawn(async move { c.put_if(key, &[n], expect).await }));
        }
        let mut won = Vec::new();
        for (n, task) in tasks.into_iter().enumerate() {
            match task.await.unwrap() {
                Ok(Outcome::Done(..)) => won.push(n),
                Ok(Outcome::Unmet(_)) => {}
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(won.len(), 1, "round {round}");
        assert_eq!(bytes_of(c.object(key).await), [u8::try_from(won[0]).unwrap()]);
    }
    f.assert_sound().await;
}

pub(crate) async fn names_on_mounts_stay_in_order(f: Fixture) {
    let c = f.client().await;
    let bucket = c.make_bucket(BUCKET).await.unwrap();
    let plain = c.dir(ROOT, "plain").await;
    let full = c.dir(plain, "full").await;
    c.file(full, "x").await;
    c.dir(plain, "empty").await;
    let into = |from: &'static str, to: &'static str| rename((plain, from), (bucket, to));
    assert_eq!(c.rename(into("full", "d")).await, Err(MetaError::CrossDevice));
    c.rename(into("empty", "d")).await.unwrap();
    let d = c.lookup(bucket, "d").await.unwrap().ino;
    let x = c.file(d, "x").await;
    c.link(x, d, "y").await.unwrap();
    c.rename(rename((d, "x"), (bucket, "z"))).await.unwrap();
    assert_eq!(c.keys().await, ["d/y", "z"]);
    // Moved out of the bucket and in again with its entries, it keeps its order.
    c.rename(rename((bucket, "d"), (plain, "d"))).await.unwrap();
    assert_eq!(c.keys().await, ["z"]);
    c.file(d, "more").await;
    let exchange = |from, to| {
        let mut wanted = rename(from, to);
        wanted.exchange = true;
        c.rename(wanted)
    };
    exchange((plain, "d"), (bucket, "z")).await.unwrap();
    assert_eq!(c.keys().await, ["z/more", "z/y"], "a file and a directory change places");
    let refused = exchange((plain, "full"), (bucket, "z")).await;
    assert_eq!(refused, Err(MetaError::CrossDevice));
    exchange((bucket, "z"), (plain, "d")).await.unwrap();
    assert_eq!(c.keys().await, ["z"]);
    c.rename(rename((plain, "d"), (bucket, "z"))).await.unwrap_err();
    c.unlink(bucket, "z").await.unwrap();
    c.rename(rename((plain, "d"), (bucket, "z"))).await.unwrap();
    c.unlink(d, "y").await.unwrap();
    assert_eq!(c.keys().await, ["z/more"]);
    // Names that no key has.
    let more = c.lookup(d, "more").await.unwrap().ino;
    for text in [".%", ".%x", ".%%x", ".%long.x"] {
        let made = c.create(create(d, text, FileKind::Regular)).await;
        assert_eq!(made, Err(MetaError::Invalid), "{text}");
        assert_eq!(c.link(more, d, text).await, Err(MetaError::Invalid));
        let renamed = c.rename(rename((d, "more"), (d, text))).await;
        assert_eq!(renamed, Err(MetaError::Invalid));
    }
    let itself = |dir, kind| c.create(create(dir, ".%self", kind));
    assert_eq!(itself(bucket, FileKind::Regular).await, Err(MetaError::Invalid));
    assert_eq!(itself(d, FileKind::Directory).await, Err(MetaError::Invalid));
    itself(d, FileKind::Regular).await.unwrap();
    c.file(d, ".%dot").await;
    c.file(plain, ".%x").await;
    assert_eq!(c.keys().await, ["z", "z/.", "z/more"]);
}

pub(crate) async fn what_the_trash_gives_back_is_in_order(f: Fixture) {
    let c = f.client().await;
    let bucket = c.make_bucket(BUCKET).await.unwrap();
    let keep = TrashChange::Keep { dir: bucket, keep_s: 600 };
    c.run(MetaOp::Trash(keep)).await.unwrap();
    let old = c.put("k", b"old").await;
    c.put("k", b"new").await;
    let restore = TrashChange::Restore { dir: bucket, ino: old.ino, name: name("back") };
    c.run(MetaOp::Trash(restore)).await.unwrap();
    assert_eq!(c.keys().await, ["back", "k"]);
    assert_eq!(bytes_of(c.object("back").await), b"old");
    let dir = c.dir(bucket, "dir").await;
    c.rmdir(bucket, "dir").await.unwrap();
    let restore = TrashChange::Restore { dir: bucket, ino: dir, name: name("again") };
    c.run(MetaOp::Trash(restore)).await.unwrap();
    c.file(dir, "x").await;
    assert_eq!(c.keys().await, ["again/x", "back", "k"]);
}

pub(crate) async fn buckets_come_and_go(f: Fixture) {
    let c = f.client().await;
    let bucket = c.make_bucket(BUCKET).await.unwrap();
    assert_eq!(c.make_bucket(BUCKET).await, Err(MetaError::Exists));
    assert_eq!(c.make_bucket("No").await, Err(MetaError::Invalid));
    c.dir(ROOT, "plain").await;
    assert_eq!(c.make_bucket("plain").await, Err(MetaError::Exists));
    let get = async |text: &str| c.object_op(ObjectOp::GetBucket { bucket: name(text) }).await;
    for text in ["plain", "nobody"] {
        assert_eq!(get(text).await, Err(MetaError::NotFound));
    }
    c.make_bucket("another").await.unwrap();
    let op = ObjectOp::SetBucket { bucket: name(BUCKET), attachment: b"cors".to_vec() };
    c.object_op(op).await.unwrap();
    c.put("x", b"").await;
    let ObjectReply::Buckets { mut buckets, next: 0 } =
        c.object_op(ObjectOp::ListBuckets { after: 0 }).await.unwrap()
    else {
        panic!()
    };
    buckets.sort_by(|one, other| one.name.cmp(&other.name));
    let names: Vec<&str> = buckets.iter().map(|bucket| &bucket.name[..]).collect();
    assert_eq!(names, ["another", BUCKET]);
    let attachment = buckets[1].attachment.clone().unwrap();
    assert_eq!((&attachment.bytes[..], attachment.is_current), (&b"cors"[..], true));
    let remove = || c.object_op(ObjectOp::RemoveBucket { bucket: name(BUCKET) });
    assert_eq!(remove().await, Err(MetaError::NotEmpty));
    let deep = c.dir(c.dir(bucket, "d").await, "e").await;
    c.file(deep, "file").await;
    assert!(c.remove("x").await);
    assert_eq!(remove().await, Err(MetaError::NotEmpty));
    assert_eq!(c.keys().await, ["d/e/file"]);
    c.unlink(deep, "file").await.unwrap();
    let upload = c.begin_upload("u").await;
    c.part(upload, 1, b"part").await.unwrap();
    remove().await.unwrap();
    assert_eq!(remove().await, Err(MetaError::NotFound));
    assert_eq!(get(BUCKET).await, Err(MetaError::NotFound));
    f.assert_sound().await;
    c.forget_all(&f).await;
    f.assert_sound().await;
    assert!(c.records(keys::UPLOADS).await.is_empty() && c.records(keys::ENDED).await.is_empty());
    assert_eq!(c.records(keys::ATTACHMENTS).await.len(), 1, "of the other bucket");
    assert!(c.records(keys::PLACES).await.is_empty());
}

impl Client {
    pub(crate) async fn records(&self, prefix: &[u8]) -> Vec<Vec<u8>> {
        let mut end = prefix.to_vec();
        *end.last_mut().unwrap() += 1;
        let range =
            millpond_types::meta::RecordRange { start: prefix.to_vec(), end, values: false };
        match self.run(MetaOp::Records(range)).await.unwrap() {
            MetaReply::Records(page) => {
                let all = page.entries.into_iter().map(|(key, _)| key);
                all.filter(|key| key != keys::BY).collect()
            }
            other => panic!("{other:?}"),
        }
    }

    /// Collects until nothing is left; this session has nothing open.
    pub(crate) async fn forget_all(&self, f: &Fixture) {
        loop {
            let mut asked = self.renew(&[], &[]).await.unwrap();
            while !asked.is_empty() {
                asked = self.renew(&[], &asked).await.unwrap();
            }
            let done = f.volume.collect().await.unwrap();
            if done.waiting == 0 && done.inodes == 0 {
                return;
            }
        }
    }
}

pub(crate) async fn nameless_files_get_a_name(f: Fixture) {
    let (c, other) = (f.client().await, f.client().await);
    let dir = c.dir(ROOT, "d").await;
    let file = c.filled(b"bytes").await;
    let missing = Err(MetaError::NotFound);
    assert_eq!(other.link(file.ino, dir, "f").await, missing, "it is another session's");
    c.file(dir, "there").await;
    assert_eq!(c.link(file.ino, dir, "there").await, Err(MetaError::Exists));
    let named = c.link(file.ino, dir, "f").await.unwrap();
    assert_eq!((named.nlink, named.size, named.parent), (1, 5, dir));
    assert_eq!(c.link(file.ino, dir, "g").await.unwrap().nlink, 2);
    f.assert_sound().await;
    other.run(MetaOp::SessionClose).await.unwrap();
    c.run(MetaOp::SessionClose).await.unwrap();
    let c = f.client().await;
    c.forget_all(&f).await;
    assert_eq!(c.content(file.ino).await.unwrap().bytes, b"bytes", "it is nobody's to collect");
    c.unlink(dir, "f").await.unwrap();
    c.unlink(dir, "g").await.unwrap();
    assert_eq!(c.link(file.ino, dir, "h").await, missing, "it had a name");
}

pub(crate) async fn nameless_files_get_a_key(f: Fixture) {
    let c = f.client().await;
    let bucket = c.make_bucket(BUCKET).await.unwrap();
    let file = c.filled(b"bytes").await;
    assert_eq!((file.nlink, file.size), (0, 5));
    f.assert_sound().await;
    let put = |ino| {
        let body = ObjectBody::Nameless(ino);
        ObjectOp::Put(PutObject { body, ..Client::put_op(b"a/b", b"") })
    };
    let Ok(Outcome::Done(Some(named), None)) = c.outcome(put(file.ino)).await else { panic!() };
    assert_eq!((named.ino, named.nlink, named.size), (file.ino, 1, 5));
    assert_eq!(bytes_of(c.object("a/b").await), b"bytes");
    assert!(c.object("a/b").await.unwrap().attachment.unwrap().is_current);
    let stale = Err(MetaError::Stale);
    assert_eq!(c.outcome(put(file.ino)).await, stale, "it has a name");
    let other = f.client().await;
    let theirs = other.filled(b"x").await;
    assert_eq!(c.outcome(put(theirs.ino)).await, stale, "it is another session's");
    // Nor can it take an unlinked file of another session.
    let gone = c.file(bucket, "gone").await;
    c.unlink(bucket, "gone").await.unwrap();
    assert_eq!(c.outcome(put(gone)).await, stale);
    // A file that the session has open stays until the session ends.
    f.volume.collect().await.unwrap();
    let asked = other.renew(&[], &[]).await.unwrap();
    assert!(asked.contains(&theirs.ino));
    other.renew(&asked, &[]).await.unwrap();
    f.volume.collect().await.unwrap();
    assert!(c.getattr(theirs.ino).await.is_ok());
    other.run(MetaOp::SessionClose).await.unwrap();
    c.forget_all(&f).await;
    assert_eq!(c.getattr(theirs.ino).await, Err(MetaError::Stale));
    assert_eq!(c.getattr(gone).await, Err(MetaError::Stale));
    // The file of a silent session goes too.
    let silent = f.client().await;
    let lost = silent.filled(b"lost").await;
    f.clock.advance(LEASE * 2);
    for _ in 0..3 {
        f.volume.collect().await.unwrap();
    }
    f.clock.advance(LEASE * 2);
    for _ in 0..3 {
        f.volume.collect().await.unwrap();
    }
    let c = f.client().await;
    assert_eq!(c.getattr(lost.ino).await, Err(MetaError::Stale));
    assert_eq!(bytes_of(c.object("a/b").await), b"bytes");
}

pub(crate) async fn objects_count_for_quotas(f: Fixture) {
    let c = f.client().await;
    let bucket = c.make_bucket(BUCKET).await.unwrap();
    let limits = QuotaLimits { bytes: 10, inodes: 5 };
    c.run(MetaOp::SetQuota { dir: bucket, limits }).await.unwrap();
    c.put("a/b", b"12345").await;
    assert_eq!(c.put_if("a/c", b"123456", Expect::Any).await, Err(MetaError::Quota));
    let file = c.filled(b"123456").await;
    let body = ObjectBody::Nameless(file.ino);
    let put = PutObject { body, ..Client::put_op(b"c", b"") };
    assert_eq!(c.outcome(ObjectOp::Put(put.clone())).await, Err(MetaError::Quota));
    assert!(c.remove("a/b").await);
    c.forget_all(&f).await;
    let again = c.filled(b"123456").await;
    let body = ObjectBody::Nameless(again.ino);
    let put = PutObject { body, ..put };
    assert!(matches!(c.outcome(ObjectOp::Put(put)).await, Ok(Outcome::Done(..))));
    let MetaReply::Quota(quota) = c.run(MetaOp::GetQuota { ino: bucket }).await.unwrap() else {
        panic!()
    };
    assert_eq!((quota.bytes, quota.inodes), (6, 2));
}

pub(crate) async fn unchecked_callers_need_permission(f: Fixture) {
    let c = f.client().await;
    c.make_bucket(BUCKET).await.unwrap();
    c.put("a/b", b"x").await;
    let user = c.as_user(1000, 1000, &[]);
    let access = Err(MetaError::Access);
    assert_eq!(user.put_if("a/b", b"", Expect::Any).await, access);
    assert_eq!(user.put_if("c", b"", Expect::Any).await, access);
    assert_eq!(user.remove_if("a/b", Expect::Any).await, access);
    assert_eq!(user.make_bucket("users").await, Err(MetaError::Access));
    assert_eq!(bytes_of(user.object("a/b").await), b"x");
    let file = c.object("a/b").await.unwrap().attr.ino;
    c.setattr(file, SetAttr { mode: Some(0o600), ..SetAttr::default() }).await.unwrap();
    let get = ObjectOp::Get { bucket: name(BUCKET), key: b"a/b".to_vec(), with_bytes: false };
    assert_eq!(user.object_op(get).await, Err(MetaError::Access));
}
