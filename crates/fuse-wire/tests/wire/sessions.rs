//! Connections: their begin and end.

use std::fs;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;

use millpond_fuse_wire::abi::InitFlags;
use millpond_fuse_wire::{
    Delivered, Device, InitWishes, MountError, MountOptions, Operation, Received, Reply, ReplyTo,
    Request, RequestBuffer, abort_connection, has_ended, max_pages_limit, mount, mounts, negotiate,
};

use crate::guard::{Before, Served, TestMount, handshake};

#[test]
fn a_mount_is_listed_and_cannot_be_mounted_on() {
    let options = MountOptions {
        fsname: "pond,one \\ two".to_owned(),
        read_only: true,
        allow_other: true,
        default_permissions: true,
        ..MountOptions::default()
    };
    let (guard, device) = TestMount::new(&options);
    let listed = mounts().unwrap();
    let ours = listed.iter().find(|mount| mount.target == guard.target).unwrap();
    assert_eq!(ours.source, "pond,one \\ two");
    assert!(ours.read_only);
    let again = mount(&guard.target, &options).unwrap_err();
    assert!(matches!(again, MountError::Occupied { .. }), "{again}");
    drop(device);
}

#[test]
fn a_mount_whose_server_is_gone_says_so() {
    let (guard, device) = TestMount::new(&MountOptions::default());
    drop(device);
    let gone = fs::read_dir(&guard.target).unwrap_err();
    assert_eq!(gone.raw_os_error(), Some(libc::ENOTCONN));
}

#[test]
fn an_aborted_connection_ends_for_both_sides() {
    let served = Served::new(&InitWishes::default());
    fs::write(served.path("file"), "x").unwrap();
    abort_connection(served.mount.connection).unwrap();
    let refused = fs::metadata(served.path("other")).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::ENOTCONN));
    let mut buffer = RequestBuffer::new(served.agreed.max_write());
    assert!(matches!(served.device.read(&mut buffer).unwrap(), Received::Aborted));
    let late = served.device.reply(ReplyTo::from_raw(2), &Reply::Done).unwrap();
    assert_eq!(late, Delivered::NotAwaited);
    assert!(abort_connection(u32::MAX).is_err());
    served.end();
}

#[test]
fn an_unmounted_connection_ends() {
    let (guard, device) = TestMount::new(&MountOptions::default());
    let agreed = handshake(&device, &InitWishes::default());
    assert!(!has_ended(device.as_fd()));
    drop(guard);
    assert!(has_ended(device.as_fd()));
    let mut buffer = RequestBuffer::new(agreed.max_write());
    assert!(matches!(device.read(&mut buffer).unwrap(), Received::Unmounted));
}

#[test]
fn a_server_hands_over_in_good_order() {
    let (guard, old) = TestMount::new(&MountOptions::default());
    let agreed = handshake(&old, &InitWishes::default());
    let new = Device::from_fd(old.as_fd().try_clone_to_owned().unwrap());
    let (stop, stopped) = UnixStream::pair().unwrap();
    let ask = || {
        let path = guard.path("none");
        thread::spawn(move || fs::symlink_metadata(path).unwrap_err().raw_os_error())
    };
    let answer = |device: &Device, received: Received<'_>, errno| {
        let Received::Request(bytes) = received else { panic!("{received:?}") };
        let to = Request::decode(bytes, agreed.granted).unwrap().reply_to();
        assert_eq!(device.reply(to, &Reply::Error(errno)).unwrap(), Delivered::Sent);
    };
    let mut buffer = RequestBuffer::new(agreed.max_write());
    let waiter = old.waiter(stopped.as_fd()).unwrap();
    let first = ask();
    answer(&old, old.read_or_stop(&mut buffer, &waiter).unwrap(), libc::ENODATA);
    assert_eq!(first.join().unwrap(), Some(libc::ENODATA));
    (&stop).write_all(b"x").unwrap();
    let end = old.read_or_stop(&mut buffer, &waiter).unwrap();
    assert!(matches!(end, Received::Stopped), "{end:?}");
    drop(old);
    let second = ask();
    // The descriptor is non-blocking now; a plain read waits nevertheless.
    answer(&new, new.read(&mut buffer).unwrap(), libc::ENXIO);
    assert_eq!(second.join().unwrap(), Some(libc::ENXIO));
}

#[test]
fn a_device_without_a_connection_has_nothing_to_read() {
    let device = Device::open().unwrap();
    assert!(device.read(&mut RequestBuffer::new(0)).is_err());
    assert!(device.clone_device().is_err());
}

#[test]
fn an_init_that_was_read_and_lost_comes_again() {
    let (guard, device) = TestMount::new(&MountOptions::default());
    let mut buffer = RequestBuffer::new(0);
    let mut init = |resent: bool| {
        let Received::Request(bytes) = device.read(&mut buffer).unwrap() else { panic!("no INIT") };
        let request = Request::decode(bytes, InitFlags::NONE).unwrap();
        assert_eq!(request.resent(), resent);
        let Operation::Init(offer) = request.operation else { panic!("{request:?}") };
        (request.unique(), request.reply_to(), negotiate(&offer, &InitWishes::default()).unwrap())
    };
    let (unique, _, agreed) = init(false);
    device.resend().unwrap();
    let (again, to, same) = init(true);
    assert_eq!((again, same), (unique, agreed), "the same question, the same answer");
    assert_eq!(device.reply(to, &Reply::Init(same.out)).unwrap(), Delivered::Sent);
    assert_eq!(device.reply(to, &Reply::Init(same.out)).unwrap(), Delivered::NotAwaited);
    drop(guard);
}

#[test]
fn requests_may_be_as_large_as_the_host_allows() {
    let limit = max_pages_limit();
    let max_write = limit * 4096;
    let wishes = InitWishes { max_write, max_pages_limit: limit, ..InitWishes::default() };
    let (sizes, largest) = channel();
    let before: Arc<Before> = Arc::new(move |request| {
        if let Operation::Write { data, .. } = &request.operation {
            sizes.send(data.len()).unwrap();
        }
    });
    let served = Served::with(&wishes, 1, &before);
    assert_eq!(served.agreed.max_write(), max_write);
    fs::write(served.path("file"), vec![1; max_write as usize]).unwrap();
    assert_eq!(largest.try_recv(), Ok(max_write as usize), "one write, one request");
    served.end();
}

/// The number of times that the calling thread has gone to sleep.
fn sleeps() -> u64 {
    let status = fs::read_to_string("/proc/thread-self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.unwrap().trim().parse().unwrap()
}

#[test]
fn a_request_wakes_one_thread() {
    const THREADS: usize = 8;
    const REQUESTS: u64 = 200;
    let (guard, device) = TestMount::new(&MountOptions::default());
    let agreed = handshake(&device, &InitWishes::default());
    let (stop, stopped) = UnixStream::pair().unwrap();
    let slept: u64 = thread::scope(|scope| {
        let serve = |device: Device| {
            let waiter = device.waiter(stopped.as_fd()).unwrap();
            let mut buffer = RequestBuffer::new(agreed.max_write());
            let before = sleeps();
            while let Received::Request(bytes) = device.read_or_stop(&mut buffer, &waiter).unwrap()
            {
                let to = Request::decode(bytes, agreed.granted).unwrap().reply_to();
                device.reply(to, &Reply::Error(libc::ENODATA)).unwrap();
            }
            sleeps() - before
        };
        let devices = (0..THREADS).map(|_| device.clone_device().unwrap());
        let threads: Vec<_> = devices.map(|device| scope.spawn(move || serve(device))).collect();
        for n in 0..REQUESTS {
            let error = fs::symlink_metadata(guard.path(n.to_string())).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::ENODATA));
        }
        (&stop).write_all(b"x").unwrap();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    // If every request woke all threads, each would sleep once more per request.
    assert!(slept < REQUESTS * 3, "{slept} sleeps of {THREADS} threads for {REQUESTS} requests");
}
