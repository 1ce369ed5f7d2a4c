//! A small file system in memory, with everything that the tests check.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use millpond_fuse_wire::abi::{
    Attr, AttrOut, EntryOut, FileLock, Kstatfs, LkIn, LockFlags, OpenFlags, OpenOut, ROOT_ID,
    ReadIn, RenameFlags, SetattrIn,
};
use millpond_fuse_wire::{DirBuffer, FileKind, Operation, Reply, Request};

/// The kernel must trust its caches, so that only a notification changes them.
const LONG: Duration = Duration::from_hours(1);

#[derive(Default)]
pub(crate) struct Node {
    pub(crate) attr: Attr,
    pub(crate) data: Vec<u8>,
    pub(crate) entries: BTreeMap<Vec<u8>, u64>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    locks: Vec<(u64, bool, FileLock)>,
}

pub(crate) struct Memfs {
    pub(crate) nodes: HashMap<u64, Node>,
    next: u64,
    /// Number of LOOKUPs and READs.
    pub(crate) lookups: usize,
    pub(crate) reads: usize,
    /// Data received through RETRIEVE.
    pub(crate) retrieved: Vec<(u64, Vec<u8>)>,
    /// The reply to every OPEN.
    pub(crate) open_out: OpenOut,
}

/// The outcome of an operation.
enum Out {
    Done,
    Entry(u64),
    Attr(u64),
    Create(u64),
    Data(Vec<u8>),
    Size(usize),
    Lock(FileLock),
}

impl Memfs {
    pub(crate) fn new() -> Self {
        let mut fs = Self {
            nodes: HashMap::new(),
            next: ROOT_ID,
            lookups: 0,
            reads: 0,
            retrieved: Vec::new(),
            open_out: OpenOut::new(0, OpenFlags::KEEP_CACHE),
        };
        fs.make(libc::S_IFDIR | 0o755);
        fs
    }

    fn make(&mut self, mode: u32) -> u64 {
        let ino = self.next;
        self.next += 1;
        let attr = Attr { ino, mode, nlink: 1, blksize: 4096, ..Attr::default() };
        self.nodes.insert(ino, Node { attr, ..Node::default() });
        ino
    }

    /// Adds a file without a request.
    pub(crate) fn put(&mut self, name: &[u8], data: &[u8]) -> u64 {
        let ino = self.make(libc::S_IFREG | 0o644);
        self.node(ino).unwrap().data = data.to_vec();
        self.node(ROOT_ID).unwrap().entries.insert(name.to_vec(), ino);
        ino
    }

    pub(crate) fn node(&mut self, ino: u64) -> Result<&mut Node, i32> {
        self.nodes.get_mut(&ino).ok_or(libc::ENOENT)
    }

    fn attr(&mut self, ino: u64) -> Result<Attr, i32> {
        let node = self.node(ino)?;
        Ok(Attr { size: node.data.len() as u64, ..node.attr })
    }

    fn entry(&mut self, ino: u64) -> Result<EntryOut, i32> {
        Ok(EntryOut::new(self.attr(ino)?, 1, LONG, LONG))
    }

    fn named(&mut self, parent: u64, name: &[u8]) -> Result<u64, i32> {
        self.node(parent)?.entries.get(name).copied().ok_or(libc::ENOENT)
    }

    pub(crate) fn handle(&mut self, request: &Request<'_>, answer: &mut dyn FnMut(&Reply<'_>)) {
        let ino = request.header.nodeid;
        match &request.operation {
            Operation::Forget { .. }
            | Operation::BatchForget { .. }
            | Operation::Interrupt { .. } => return,
            Operation::NotifyReply { data, .. } => {
                return self.retrieved.push((request.unique(), data.to_vec()));
            }
            Operation::Open(_) => return answer(&Reply::Open(self.open_out)),
            Operation::Opendir(_) => return answer(&Reply::Open(OpenOut::default())),
            Operation::Statfs => {
                let st = Kstatfs { blocks: 77, bsize: 4096, frsize: 4096, ..Kstatfs::default() };
                return answer(&Reply::Statfs(st));
            }
            Operation::Write { args, data } => {
                let size = self.write(ino, args.offset, data);
                return answer(&size.map_or_else(Reply::Error, Reply::Written));
            }
            Operation::Readdir(args) => {
                return answer(&Reply::Directory(&self.read_dir(ino, args, false)));
            }
            Operation::Readdirplus(args) => {
                return answer(&Reply::Directory(&self.read_dir(ino, args, true)));
            }
            _ => {}
        }
        let out = match self.names(ino, &request.operation) {
            Err(libc::ENOSYS) => self.content(ino, &request.operation),
            out => out,
        };
        match self.reply(out) {
            Ok((Out::Data(data), _)) => answer(&Reply::Data(&data)),
            Ok((_, reply)) => answer(&reply),
            Err(errno) => answer(&Reply::Error(errno)),
        }
    }

    fn reply(&mut self, out: Result<Out, i32>) -> Result<(Out, Reply<'static>), i32> {
        let out = out?;
        let reply = match out {
            Out::Done | Out::Data(_) => Reply::Done,
            Out::Entry(ino) => Reply::Entry(self.entry(ino)?),
            Out::Attr(ino) => Reply::Attr(AttrOut::new(self.attr(ino)?, LONG)),
            Out::Create(ino) => Reply::Create(self.entry(ino)?, self.open_out),
            Out::Size(size) => Reply::XattrSize(u32::try_from(size).unwrap()),
            Out::Lock(lock) => Reply::Lock(lock),
        };
        Ok((out, reply))
    }

    /// Operations on names.
    fn names(&mut self, parent: u64, operation: &Operation<'_>) -> Result<Out, i32> {
        match *operation {
            Operation::Lookup { name } => {
                self.lookups += 1;
                Ok(Out::Entry(self.named(parent, name)?))
            }
            Operation::Create { args, name } => Ok(Out::Create(self.add(parent, name, args.mode)?)),
            Operation::Mknod { args, name } => Ok(Out::Entry(self.add(parent, name, args.mode)?)),
            Operation::Mkdir { args, name } => {
                Ok(Out::Entry(self.add(parent, name, libc::S_IFDIR | args.mode)?))
            }
            Operation::Symlink { name, target } => {
                let ino = self.add(parent, name, libc::S_IFLNK | 0o777)?;
                self.node(ino)?.data = target.to_vec();
                Ok(Out::Entry(ino))
            }
            Operation::Link { inode, name } => {
                self.node(parent)?.entries.insert(name.to_vec(), inode);
                self.node(inode)?.attr.nlink += 1;
                Ok(Out::Entry(inode))
            }
            Operation::Unlink { name } => {
                let ino = self.named(parent, name)?;
                self.node(parent)?.entries.remove(name);
                self.node(ino)?.attr.nlink -= 1;
                Ok(Out::Done)
            }
            Operation::Rmdir { name } => {
                let ino = self.named(parent, name)?;
                if !self.node(ino)?.entries.is_empty() {
                    return Err(libc::ENOTEMPTY);
                }
                self.node(parent)?.entries.remove(name);
                Ok(Out::Done)
            }
            Operation::Rename { new_parent, flags, name, new_name } => {
                let ino = self.named(parent, name)?;
                let taken = self.named(new_parent, new_name).is_ok();
                if taken && flags.contains(RenameFlags::NOREPLACE) {
                    return Err(libc::EEXIST);
                }
                self.node(parent)?.entries.remove(name);
                self.node(new_parent)?.entries.insert(new_name.to_vec(), ino);
                Ok(Out::Done)
            }
            _ => Err(libc::ENOSYS),
        }
    }

    fn add(&mut self, parent: u64, name: &[u8], mode: u32) -> Result<u64, i32> {
        if self.named(parent, name).is_ok() {
            return Err(libc::EEXIST);
        }
        let ino = self.make(mode);
        self.node(parent)?.entries.insert(name.to_vec(), ino);
        Ok(ino)
    }

    /// Operations on the content of an inode.
    fn content(&mut self, ino: u64, operation: &Operation<'_>) -> Result<Out, i32> {
        match *operation {
            Operation::Getattr(_) => Ok(Out::Attr(ino)),
            Operation::Setattr(args) => self.set(ino, &args),
            Operation::Readlink => Ok(Out::Data(self.node(ino)?.data.clone())),
            Operation::Read(args) => {
                self.reads += 1;
                let data = &self.node(ino)?.data;
                let at = usize::try_from(args.offset).unwrap().min(data.len());
                let end = (at + args.size as usize).min(data.len());
                Ok(Out::Data(data[at..end].to_vec()))
            }
            Operation::Flush(_)
            | Operation::Fsync(_)
            | Operation::Release(_)
            | Operation::Releasedir(_)
            | Operation::Fsyncdir(_) => Ok(Out::Done),
            Operation::Setxattr { name, value, .. } => {
                self.node(ino)?.xattrs.insert(name.to_vec(), value.to_vec());
                Ok(Out::Done)
            }
            Operation::Getxattr { size, name } => {
                sized(size, self.node(ino)?.xattrs.get(name).ok_or(libc::ENODATA)?.clone())
            }
            Operation::Listxattr { size } => {
                let names = self.node(ino)?.xattrs.keys();
                sized(size, names.flat_map(|name| [name, &b"\0"[..]].concat()).collect())
            }
            Operation::Removexattr { name } => {
                self.node(ino)?.xattrs.remove(name).map(|_| Out::Done).ok_or(libc::ENODATA)
            }
            Operation::Getlk(args) => {
                let free = FileLock { kind: libc::F_UNLCK as u32, ..args.lk };
                Ok(Out::Lock(self.in_the_way(ino, &args)?.unwrap_or(free)))
            }
            Operation::Setlk(args) | Operation::Setlkw(args) => self.lock(ino, &args),
            _ => Err(libc::ENOSYS),
        }
    }

    fn set(&mut self, ino: u64, args: &SetattrIn) -> Result<Out, i32> {
        let node = self.node(ino)?;
        if let Some(size) = args.new_size() {
            node.data.resize(usize::try_from(size).unwrap(), 0);
        }
        if let Some(mode) = args.new_mode() {
            node.attr.mode = node.attr.mode & libc::S_IFMT | mode;
        }
        Ok(Out::Attr(ino))
    }

    fn write(&mut self, ino: u64, offset: u64, data: &[u8]) -> Result<u32, i32> {
        assert_eq!(data.as_ptr().align_offset(4096), 0, "the data of a write starts a page");
        let file = &mut self.node(ino)?.data;
        let at = usize::try_from(offset).unwrap();
        let end = at + data.len();
        file.resize(file.len().max(end), 0);
        file[at..end].copy_from_slice(data);
        Ok(u32::try_from(data.len()).unwrap())
    }

    /// The conflicting lock; locks cover whole files here.
    fn in_the_way(&mut self, ino: u64, args: &LkIn) -> Result<Option<FileLock>, i32> {
        let flock = args.lk_flags.contains(LockFlags::FLOCK);
        let locks = &self.node(ino)?.locks;
        let other = locks.iter().find(|lock| lock.0 != args.owner && lock.1 == flock);
        Ok(other.map(|lock| lock.2))
    }

    fn lock(&mut self, ino: u64, args: &LkIn) -> Result<Out, i32> {
        if args.lk.kind != libc::F_UNLCK as u32 && self.in_the_way(ino, args)?.is_some() {
            return Err(libc::EAGAIN);
        }
        let flock = args.lk_flags.contains(LockFlags::FLOCK);
        let locks = &mut self.node(ino)?.locks;
        locks.retain(|lock| lock.0 != args.owner || lock.1 != flock);
        if args.lk.kind != libc::F_UNLCK as u32 {
            locks.push((args.owner, flock, args.lk));
        }
        Ok(Out::Done)
    }

    fn read_dir(&mut self, ino: u64, args: &ReadIn, plus: bool) -> DirBuffer {
        let mut buffer = DirBuffer::new(args.size as usize);
        let entries: Vec<_> = self.nodes[&ino].entries.clone().into_iter().collect();
        let start = usize::try_from(args.offset).unwrap();
        for (i, (name, ino)) in entries.iter().enumerate().skip(start) {
            let kind = FileKind::of_mode(self.nodes[ino].attr.mode);
            let cookie = i as u64 + 1;
            let fits = if plus {
                buffer.push_plus(&self.entry(*ino).unwrap(), cookie, kind, name)
            } else {
                buffer.push(*ino, cookie, kind, name)
            };
            if !fits {
                break;
            }
        }
        buffer
    }
}

/// The value, or its length when only that was requested.
fn sized(size: u32, value: Vec<u8>) -> Result<Out, i32> {
    match size {
        0 => Ok(Out::Size(value.len())),
        size if value.len() > size as usize => Err(libc::ERANGE),
        _ => Ok(Out::Data(value)),
    }
}
