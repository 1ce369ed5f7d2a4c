//! A volume that two metas have open, and a client of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use millpond_env::FakeClock;
use millpond_meta::{Facts, Volume, VolumeOptions};
use millpond_store::{MemoryBackend, Store};
use millpond_types::meta::{
    Answered, Attr, Caller, Content, Create, DirEntry, Entry, FileKind, Ino, MetaAnswer, MetaError,
    MetaOp, MetaReply, MetaRequest, Name, ReadDir, Removed, Rename, Reserve, Session, SetAttr,
    Setxattr, Spill, Timestamp, WriteInline, XattrMode, XattrName,
};

pub(crate) const LEASE: Duration = Duration::from_mins(1);

/// A store, and two metas over it, as two processes would be.
#[derive(Clone)]
pub(crate) struct Fixture {
    pub(crate) store: Store,
    pub(crate) clock: FakeClock,
    pub(crate) volume: Arc<Volume>,
    pub(crate) other: Arc<Volume>,
}

impl Fixture {
    /// Metas over `store` and over `other`, a second handle to the same.
    pub(crate) async fn new(store: Store, other: Store) -> Self {
        Self::over(store, other, FakeClock::default()).await
    }

    /// As [`Self::new`], with a given clock.
    pub(crate) async fn over(store: Store, other: Store, clock: FakeClock) -> Self {
        let options = VolumeOptions { session_lease: LEASE, ..VolumeOptions::default() };
        let open = async |store: Store| {
            let volume = Volume::open(store, Arc::new(clock.clone()), options).await.unwrap();
            volume.set_facts(Facts { chains: [64; _], bytes: 1 << 40, bytes_free: 1 << 39 });
            Arc::new(volume)
        };
        let (volume, other) = (open(store.clone()).await, open(other).await);
        Self { store, clock, volume, other }
    }

    pub(crate) async fn in_memory() -> Self {
        let store = Store::new(Arc::new(MemoryBackend::default()));
        Self::new(store.clone(), store).await
    }

    /// A client with its own session, as after a permission check by a kernel.
    pub(crate) async fn client(&self) -> Client {
        Client::open(&self.volume).await
    }

    /// Checks that no rule of the namespace is broken.
    pub(crate) async fn assert_sound(&self) {
        let report = self.volume.check().await.unwrap();
        assert!(report.findings.is_empty(), "{:#?}", report.findings);
        assert_eq!((report.more, report.unjudged), (0, 0), "nothing changes meanwhile");
    }
}

/// A mount, as a meta sees it.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) volume: Arc<Volume>,
    pub(crate) session: u64,
    sequence: Arc<AtomicU64>,
    /// A second meta that gets each request at the same moment.
    pub(crate) twin: Option<Arc<Volume>>,
    pub(crate) caller: Caller,
}

pub(crate) fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

pub(crate) fn xname(text: &str) -> XattrName {
    XattrName::new(text.as_bytes()).unwrap()
}

/// A creation of a name with the usual mode.
pub(crate) fn create(parent: Ino, text: &str, kind: FileKind) -> Create {
    let mode = if kind == FileKind::Directory { 0o755 } else { 0o644 };
    let target = if kind == FileKind::Symlink { b"to/there".to_vec() } else { Vec::new() };
    let name = name(text);
    Create {
        parent,
        name,
        kind,
        mode,
        umask: None,
        rdev: 0,
        target,
        exclusive: true,
        promised: None,
        delegate: None,
    }
}

pub(crate) fn rename((parent, old): (Ino, &str), (new_parent, new): (Ino, &str)) -> Rename {
    Rename {
        parent,
        name: name(old),
        new_parent,
        new_name: name(new),
        no_replace: false,
        exchange: false,
        whiteout: false,
    }
}

impl Client {
    pub(crate) async fn open(volume: &Arc<Volume>) -> Self {
        let mut client = Self {
            volume: Arc::clone(volume),
            session: 0,
            sequence: Arc::default(),
            twin: None,
            caller: Caller::checked(0, 0),
        };
        client.session = client.session_open().await.id;
        client
    }

    async fn session_open(&self) -> Session {
        match self.run(MetaOp::SessionOpen { name: "test".into() }).await {
            Ok(MetaReply::Session(session)) => session,
            other => panic!("{other:?}"),
        }
    }

    /// The same mount, as a caller with unchecked permissions.
    pub(crate) fn as_user(&self, uid: u32, gid: u32, groups: &[u32]) -> Self {
        let caller = Caller { uid, gid, groups: groups.to_vec(), checked: false };
        Self { caller, ..self.clone() }
    }

    /// The same mount through another meta.
    pub(crate) fn at(&self, volume: &Arc<Volume>) -> Self {
        Self { volume: Arc::clone(volume), ..self.clone() }
    }

    pub(crate) fn request(&self, op: MetaOp) -> MetaRequest {
        let sequence = self.sequence.fetch_add(1, Ordering::Relaxed);
        MetaRequest { session: self.session, sequence, hour: 7, caller: self.caller.clone(), op }
    }

    /// Repeats a request until the store answers, as a mount does.
    pub(crate) async fn run(&self, op: MetaOp) -> MetaAnswer {
        let request = self.request(op);
        let Some(twin) = self.twin.as_ref().filter(|_| request.op.changes()) else {
            return self.send(&request).await;
        };
        let twin = self.at(twin);
        let (answer, other) = tokio::join!(self.send(&request), twin.send(&request));
        assert_eq!(answer, other, "one request has one answer: {:?}", request.op);
        answer
    }

    pub(crate) async fn send(&self, request: &MetaRequest) -> MetaAnswer {
        // Executes the decoded request, as it would be sent.
        let sent = MetaRequest::decode(&request.encode()).unwrap();
        assert_eq!(&sent, request);
        let mut last = None;
        for _ in 0..20 {
            match self.volume.execute(&sent).await {
                Ok(answered) => {
                    assert_eq!(Answered::decode(&answered.encode()), Ok(answered.clone()));
                    return answered.answer;
                }
                Err(error) => last = Some(error),
            }
        }
        panic!("{}: {last:?}", request.op.name());
    }

    pub(crate) async fn entry(&self, op: MetaOp) -> Result<Entry, MetaError> {
        match self.run(op).await? {
            MetaReply::Entry(entry) => Ok(entry),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn create(&self, create: Create) -> Result<Entry, MetaError> {
        self.entry(MetaOp::Create(create)).await
    }

    /// Makes a name; returns its attributes.
    pub(crate) async fn make(&self, parent: Ino, text: &str, kind: FileKind) -> Attr {
        let entry = self.create(create(parent, text, kind)).await.unwrap();
        assert!(entry.created, "it is new");
        entry.attr
    }

    pub(crate) async fn file(&self, parent: Ino, text: &str) -> Ino {
        self.make(parent, text, FileKind::Regular).await.ino
    }

    pub(crate) async fn dir(&self, parent: Ino, text: &str) -> Ino {
        self.make(parent, text, FileKind::Directory).await.ino
    }

    pub(crate) async fn lookup(&self, parent: Ino, text: &str) -> Result<Attr, MetaError> {
        let found = self.entry(MetaOp::Lookup { parent, name: name(text) }).await?;
        assert!(!found.created, "a look makes nothing");
        Ok(found.attr)
    }

    pub(crate) async fn getattr(&self, ino: Ino) -> Result<Attr, MetaError> {
        attr(self.run(MetaOp::GetAttr { ino }).await)
    }

    pub(crate) async fn setattr(&self, ino: Ino, set: SetAttr) -> Result<Attr, MetaError> {
        attr(self.run(MetaOp::SetAttr { ino, set }).await)
    }

    /// Returns an inode, and its bytes in the store.
    pub(crate) async fn content(&self, ino: Ino) -> Result<Content, MetaError> {
        match self.run(MetaOp::Content { ino }).await? {
            MetaReply::Content(content) => Ok(content),
            other => panic!("{other:?}"),
        }
    }

    /// Writes into the store, if the bytes of this version of the file lie there.
    pub(crate) async fn write(
        &self,
        file: Attr,
        offset: u32,
        bytes: &[u8],
    ) -> Result<Attr, MetaError> {
        let mtime = Timestamp { secs: 1_700_000_200, nanos: 5 };
        let (ino, data, bytes) = (file.ino, file.data, bytes.to_vec());
        attr(self.run(MetaOp::WriteInline(WriteInline { ino, data, offset, bytes, mtime })).await)
    }

    /// Moves a file that was read to chunks with a reserved name.
    pub(crate) async fn spill(&self, read: Attr, size: u64) -> Result<Attr, MetaError> {
        let reserve = MetaOp::Reserve(Reserve { ino: read.ino, size });
        let MetaReply::Reserved(chunks) = self.run(reserve).await? else { panic!("a name") };
        self.spill_to(read, (chunks, size)).await
    }

    pub(crate) async fn spill_to(
        &self,
        read: Attr,
        (chunks, size): (u64, u64),
    ) -> Result<Attr, MetaError> {
        let (mtime, version) = (Timestamp { secs: 1_700_000_300, nanos: 6 }, read.version);
        attr(
            self.run(MetaOp::Spill(Spill {
                ino: read.ino,
                version,
                chunks,
                size,
                solid: size,
                mtime: Some(mtime),
            }))
            .await,
        )
    }

    pub(crate) async fn link(&self, ino: Ino, dir: Ino, text: &str) -> Result<Attr, MetaError> {
        let op = MetaOp::Link { ino, parent: dir, name: name(text) };
        self.entry(op).await.map(|entry| entry.attr)
    }

    pub(crate) async fn unlink(&self, parent: Ino, text: &str) -> Result<Removed, MetaError> {
        removed(self.run(MetaOp::Unlink { parent, name: name(text), of: None }).await)
    }

    pub(crate) async fn rmdir(&self, parent: Ino, text: &str) -> Result<Removed, MetaError> {
        removed(self.run(MetaOp::RemoveDir { parent, name: name(text) }).await)
    }

    pub(crate) async fn rename(&self, rename: Rename) -> Result<Option<Removed>, MetaError> {
        match self.run(MetaOp::Rename(rename)).await? {
            MetaReply::Renamed(removed) => Ok(removed),
            other => panic!("{other:?}"),
        }
    }

    pub(crate) async fn setxattr(
        &self,
        ino: Ino,
        text: &str,
        value: &[u8],
        mode: XattrMode,
    ) -> Result<(), MetaError> {
        let (value, drops_set_gid) = (value.to_vec(), false);
        let set = Setxattr { ino, name: xname(text), value, mode, drops_set_gid };
        assert_eq!(self.run(MetaOp::SetXattr(set)).await?, MetaReply::Done);
        Ok(())
    }

    pub(crate) async fn page(&self, page: ReadDir) -> Result<(Vec<DirEntry>, bool), MetaError> {
        match self.run(MetaOp::ReadDir(page)).await? {
            MetaReply::Page { entries, end } => Ok((entries, end)),
            other => panic!("{other:?}"),
        }
    }

    /// Lists a directory from a place on, page by page.
    pub(crate) async fn list_from(&self, dir: Ino, after: u64, limit: u32) -> Vec<DirEntry> {
        let (mut all, mut after) = (Vec::new(), after);
        loop {
            let page = ReadDir { dir, after, limit, attrs: false };
            let (entries, end) = self.page(page).await.unwrap();
            assert!(entries.len() <= limit as usize && (end || !entries.is_empty()));
            after = entries.last().map_or(after, |entry| entry.cookie);
            all.extend(entries);
            if end {
                return all;
            }
        }
    }

    /// The names of a directory in order.
    pub(crate) async fn names(&self, dir: Ino) -> Vec<String> {
        let all = self.list_from(dir, 0, 100).await;
        let mut names: Vec<String> = all.iter().map(|entry| entry.name.to_string()).collect();
        names.sort();
        names
    }

    /// Renews the session and reports open and closed orphans; returns those that it is asked about
    /// next.
    pub(crate) async fn renew(&self, open: &[Ino], closed: &[Ino]) -> Result<Vec<Ino>, MetaError> {
        let op = MetaOp::SessionRenew { open: open.to_vec(), closed: closed.to_vec() };
        match self.run(op).await? {
            MetaReply::Renewed { asked } => Ok(asked),
            other => panic!("{other:?}"),
        }
    }
}

fn attr(answer: MetaAnswer) -> Result<Attr, MetaError> {
    match answer? {
        MetaReply::Attr(attr) => Ok(attr),
        other => panic!("{other:?}"),
    }
}

fn removed(answer: MetaAnswer) -> Result<Removed, MetaError> {
    match answer? {
        MetaReply::Removed(removed) => Ok(removed),
        other => panic!("{other:?}"),
    }
}
