//! A mount that is removed when its test ends, in any way.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use millpond_fuse_wire::abi::InitFlags;
use millpond_fuse_wire::{
    Device, InitWishes, MountOptions, Negotiated, Operation, Received, Reply, Request,
    RequestBuffer, abort_connection, mount, mounts, negotiate, unmount,
};

use crate::memfs::Memfs;

/// The time after which a test counts as hanging: the connection is aborted and the test fails.
const HANG: Duration = Duration::from_mins(1);

/// A mount under a temporary folder, with a watchdog.
pub(crate) struct TestMount {
    pub(crate) target: PathBuf,
    pub(crate) connection: u32,
    over: Arc<(Mutex<bool>, Condvar)>,
    _folder: tempfile::TempDir,
}

impl TestMount {
    pub(crate) fn new(options: &MountOptions) -> (Self, Device) {
        let folder = tempfile::Builder::new().prefix("fuse wire ").tempdir().unwrap();
        let target = folder.path().canonicalize().unwrap().join("mount");
        std::fs::create_dir(&target).unwrap();
        let device = mount(&target, options).unwrap();
        let listed = mounts().unwrap();
        let connection = listed.iter().find(|mount| mount.target == target).unwrap().connection;
        let over = Arc::new((Mutex::new(false), Condvar::new()));
        watch(connection, target.clone(), Arc::clone(&over));
        (Self { target, connection, over, _folder: folder }, device)
    }

    pub(crate) fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.target.join(name)
    }
}

/// Aborts the connection when the test does not end in time, and ends the process if that does not
/// help.
fn watch(connection: u32, target: PathBuf, over: Arc<(Mutex<bool>, Condvar)>) {
    thread::spawn(move || {
        let (done, changed) = &*over;
        let waits = |guard, time| {
            changed.wait_timeout_while(guard, time, |done: &mut bool| !*done).unwrap()
        };
        let (guard, wait) = waits(done.lock().unwrap(), HANG);
        if wait.timed_out() {
            eprintln!("the test hangs: connection {connection} is aborted");
            abort_connection(connection).ok();
            if waits(guard, HANG / 6).1.timed_out() {
                unmount(&target, true).ok();
                std::process::exit(101);
            }
        }
    });
}

impl Drop for TestMount {
    fn drop(&mut self) {
        if thread::panicking() {
            abort_connection(self.connection).ok();
        }
        unmount(&self.target, true).ok();
        *self.over.0.lock().unwrap() = true;
        self.over.1.notify_all();
    }
}

/// Reads the INIT and answers it.
pub(crate) fn handshake(device: &Device, wishes: &InitWishes) -> Negotiated {
    let mut buffer = RequestBuffer::new(0);
    let Received::Request(bytes) = device.read(&mut buffer).unwrap() else { panic!("no INIT") };
    let request = Request::decode(bytes, InitFlags::NONE).unwrap();
    let Operation::Init(offer) = request.operation else { panic!("{request:?}") };
    let agreed = negotiate(&offer, wishes).unwrap();
    device.reply(request.reply_to(), &Reply::Init(agreed.out)).unwrap();
    agreed
}

/// A file system in memory behind a mount, with a thread per device.
pub(crate) struct Served {
    pub(crate) mount: TestMount,
    pub(crate) agreed: Negotiated,
    pub(crate) fs: Arc<Mutex<Memfs>>,
    /// For notifications.
    pub(crate) device: Device,
    threads: Vec<JoinHandle<()>>,
}

/// Called with each request before it is served.
pub(crate) type Before = dyn Fn(&Request<'_>) + Send + Sync;

impl Served {
    pub(crate) fn new(wishes: &InitWishes) -> Self {
        let nothing: Arc<Before> = Arc::new(|_| ());
        Self::with(wishes, 2, &nothing)
    }

    pub(crate) fn with(wishes: &InitWishes, threads: usize, before: &Arc<Before>) -> Self {
        let (mount, device) = TestMount::new(&MountOptions::default());
        let agreed = handshake(&device, wishes);
        let fs = Arc::new(Mutex::new(Memfs::new()));
        let mut served = Self { mount, agreed, fs, device, threads: Vec::new() };
        for _ in 0..threads {
            let device = served.device.clone_device().unwrap();
            let (fs, before) = (Arc::clone(&served.fs), Arc::clone(before));
            served.threads.push(thread::spawn(move || serve(&device, &agreed, &fs, &*before)));
        }
        served
    }

    pub(crate) fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.mount.path(name)
    }

    /// Ends the mount and waits for the threads, so that their failures are seen.
    pub(crate) fn end(self) {
        drop(self.mount);
        for thread in self.threads {
            thread.join().unwrap();
        }
    }
}

fn serve(device: &Device, agreed: &Negotiated, fs: &Mutex<Memfs>, before: &Before) {
    let mut buffer = RequestBuffer::new(agreed.max_write());
    while let Received::Request(bytes) = device.read(&mut buffer).unwrap() {
        let request = Request::decode(bytes, agreed.granted).unwrap();
        before(&request);
        let mut fs = fs.lock().unwrap();
        fs.handle(&request, &mut |reply| {
            device.reply(request.reply_to(), reply).unwrap();
        });
    }
}
