//! The server is killed in the middle of requests, repeatedly, and no writer notices.
//!
//! The test is the holder: it keeps the descriptors and restarts the server, a process of its own.
//! The server writes to a plain file, which outlives it.

use std::env;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use millpond_fuse_wire::abi::{Attr, AttrOut, EntryOut, OpenFlags, OpenOut};
use millpond_fuse_wire::scm::{recv_with_fds, send_with_fds};
use millpond_fuse_wire::{
    Device, InitWishes, MountOptions, Negotiated, Operation, Received, Reply, Request,
    RequestBuffer, unmount,
};

use crate::guard::{TestMount, handshake};

/// The environment variable that makes this process the server.
const ROLE: &str = "MILLPOND_FUSE_WIRE_SERVER";
/// Writes that a server answers before it holds one back.
const SERVED: u64 = 40;
const KILLS: usize = 8;
const WRITERS: u64 = 3;
/// Bytes of a write.
const BLOCK: usize = 4096;
const BLOCKS: u64 = 400;

/// The server's message to the holder: it holds a request back.
const HOLDS_ONE: u8 = b'h';
const SAW_RESENT: u8 = b'r';

#[test]
fn a_killed_server_is_not_seen_by_who_writes() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    let store = OpenOptions::new().create_new(true).read(true).write(true).open(store).unwrap();
    let (guard, primary) = TestMount::new(&MountOptions::default());
    let agreed = handshake(&primary, &InitWishes::default());
    let clone = primary.clone_device().unwrap();
    let held = [primary.as_fd(), clone.as_fd(), store.as_fd()];

    let mut server = Server::start(&agreed, &held, true);
    let writers: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let path = guard.path("file");
            thread::spawn(move || write_blocks(&path, writer))
        })
        .collect();
    let mut resent = 0;
    for kill in 1..=KILLS {
        resent += server.until_it_holds_one();
        server.kill();
        server = Server::start(&agreed, &held, kill < KILLS);
    }
    for writer in writers {
        writer.join().unwrap();
    }
    unmount(&guard.target, false).unwrap();
    resent += server.until_its_end();
    assert!(resent >= KILLS, "each server but the first saw what the one before had not answered");
    let content = fs::read(folder.path().join("store")).unwrap();
    for (block, bytes) in content.chunks_exact(BLOCK).enumerate() {
        assert!(bytes.iter().all(|&byte| byte == pattern(block as u64)), "block {block}");
    }
    assert_eq!(content.len() as u64, WRITERS * BLOCKS * BLOCK as u64);
}

/// The fill byte of a block.
fn pattern(block: u64) -> u8 {
    u8::try_from(block % 251).unwrap() + 1
}

/// An application: every write must succeed, and reads must return the written data.
fn write_blocks(path: &std::path::Path, writer: u64) {
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    for i in 0..BLOCKS {
        let block = i * WRITERS + writer;
        let bytes = [pattern(block); BLOCK];
        file.write_all_at(&bytes, block * BLOCK as u64).unwrap();
        let mut got = [0; BLOCK];
        file.read_exact_at(&mut got, block * BLOCK as u64).unwrap();
        assert_eq!(got, bytes);
    }
}

/// A server process, as its holder sees it.
struct Server {
    child: Child,
    socket: UnixStream,
}

impl Server {
    fn start(agreed: &Negotiated, held: &[std::os::fd::BorrowedFd<'_>], holds: bool) -> Self {
        let (socket, theirs) = UnixStream::pair().unwrap();
        let child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "crash::server", "--ignored", "--nocapture"])
            .env(ROLE, if holds { "holds" } else { "serves" })
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        send_with_fds(&socket, &agreed.to_bytes(), held).unwrap();
        Self { child, socket }
    }

    /// Waits until the server holds a request back; returns the number of resent requests before
    /// it.
    fn until_it_holds_one(&mut self) -> usize {
        let mut resent = 0;
        let mut word = [0];
        loop {
            self.socket.read_exact(&mut word).expect("the server lives until it is killed");
            match word[0] {
                HOLDS_ONE => return resent,
                _ => resent += 1,
            }
        }
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Waits for the server's successful exit; returns the number of resent requests it saw.
    fn until_its_end(mut self) -> usize {
        let mut words = Vec::new();
        self.socket.read_to_end(&mut words).unwrap();
        assert!(self.child.wait().unwrap().success());
        words.len()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

#[test]
#[ignore = "the server of the test above, which starts it as a process"]
fn server() {
    let Ok(role) = env::var(ROLE) else { return };
    let stdin = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    let socket = UnixStream::from(stdin);
    let mut stored = [0; Negotiated::BYTES];
    let (got, fds) = recv_with_fds(&socket, &mut stored, 3).unwrap();
    let agreed = Negotiated::from_bytes(&stored[..got]).unwrap();
    let [primary, clone, store] = <[OwnedFd; 3]>::try_from(fds).unwrap();
    let (primary, clone) = (Device::from_fd(primary), Device::from_fd(clone));
    let hold_at = if role == "holds" { SERVED } else { u64::MAX };
    let worker = Worker { agreed, store: store.into(), socket, hold_at, writes: AtomicU64::new(0) };
    primary.resend().unwrap();
    thread::scope(|scope| {
        for device in [&primary, &clone] {
            scope.spawn(|| worker.serve(device));
        }
    });
}

/// A file system with one file, `file`, stored in a plain file.
struct Worker {
    agreed: Negotiated,
    store: File,
    socket: UnixStream,
    hold_at: u64,
    writes: AtomicU64,
}

impl Worker {
    fn serve(&self, device: &Device) {
        let mut buffer = RequestBuffer::new(self.agreed.max_write());
        while let Received::Request(bytes) = device.read(&mut buffer).unwrap() {
            let request = Request::decode(bytes, self.agreed.granted).unwrap();
            if request.resent() {
                (&self.socket).write_all(&[SAW_RESENT]).unwrap();
            }
            self.answer(device, &request);
        }
    }

    fn answer(&self, device: &Device, request: &Request<'_>) {
        let reply = |reply: Reply<'_>| {
            device.reply(request.reply_to(), &reply).unwrap();
        };
        let never = Duration::ZERO;
        match request.operation {
            Operation::Lookup { name: b"file" } => {
                reply(Reply::Entry(EntryOut::new(self.attr(2), 0, never, never)));
            }
            Operation::Getattr(_) => {
                reply(Reply::Attr(AttrOut::new(self.attr(request.header.nodeid), never)));
            }
            // The holder has the file open too, because the writers are its threads. A starting
            // server closes its copy before it can answer a FLUSH.
            Operation::Open(_) => {
                let flags = OpenFlags::DIRECT_IO | OpenFlags::NOFLUSH;
                reply(Reply::Open(OpenOut::new(0, flags)));
            }
            Operation::Read(args) => {
                let mut data = vec![0; args.size as usize];
                let got = self.store.read_at(&mut data, args.offset).unwrap();
                reply(Reply::Pieces(&[&data[..got / 2], &data[got / 2..got]]));
            }
            Operation::Write { args, data } => {
                self.store.write_all_at(data, args.offset).unwrap();
                if self.writes.fetch_add(1, Ordering::SeqCst) == self.hold_at {
                    (&self.socket).write_all(&[HOLDS_ONE]).unwrap();
                    // The write is done and has no answer; the holder kills us now.
                    loop {
                        thread::park();
                    }
                }
                reply(Reply::Written(args.size));
            }
            Operation::Flush(_) | Operation::Release(_) => reply(Reply::Done),
            Operation::Forget { .. }
            | Operation::BatchForget { .. }
            | Operation::Interrupt { .. } => {}
            _ => reply(Reply::Error(libc::ENOSYS)),
        }
    }

    fn attr(&self, ino: u64) -> Attr {
        let size = self.store.metadata().unwrap().len();
        let mode = if ino == 2 { libc::S_IFREG | 0o644 } else { libc::S_IFDIR | 0o755 };
        Attr { ino, size, mode, nlink: 1, ..Attr::default() }
    }
}
