//! Common operations of applications on files.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use millpond_fuse_wire::abi::{InitFlags, OpenFlags, OpenOut};
use millpond_fuse_wire::{InitWishes, Operation};

use crate::guard::{Before, Served};

/// Longer than anything here takes; a test that waits this long fails.
const PATIENCE: Duration = Duration::from_secs(20);

fn wishes(more: InitFlags) -> InitWishes {
    let default = InitWishes::default();
    InitWishes { flags: default.flags | more, ..default }
}

#[test]
fn files_are_made_read_renamed_and_removed() {
    let served = Served::new(&InitWishes::default());
    assert!(served.agreed.denied.is_empty(), "denied: {:?}", served.agreed.denied);
    let (path, moved) = (served.path("file"), served.path("folder/moved"));
    fs::create_dir(served.path("folder")).unwrap();
    // Longer than one request, and not a multiple of pages.
    let content: Vec<u8> = (0..3_000_001_u32).map(|i| (i % 251) as u8).collect();
    fs::write(&path, &content).unwrap();
    assert_eq!(fs::read(&path).unwrap(), content);
    fs::rename(&path, &moved).unwrap();
    assert!(!path.exists());
    let mut file = OpenOptions::new().read(true).write(true).open(&moved).unwrap();
    file.seek(SeekFrom::Start(5)).unwrap();
    file.write_all(b"changed").unwrap();
    file.set_len(20).unwrap();
    file.rewind().unwrap();
    let mut text = Vec::new();
    file.read_to_end(&mut text).unwrap();
    assert_eq!(text, [&content[..5], b"changed", &content[12..20]].concat());
    std::os::unix::fs::symlink("folder/moved", served.path("link")).unwrap();
    assert_eq!(fs::read_link(served.path("link")).unwrap(), Path::new("folder/moved"));
    fs::hard_link(&moved, served.path("second")).unwrap();
    assert_eq!(
        fs::remove_dir(served.path("folder")).unwrap_err().raw_os_error(),
        Some(libc::ENOTEMPTY)
    );
    fs::remove_file(&moved).unwrap();
    fs::remove_dir(served.path("folder")).unwrap();
    assert_eq!(fs::read(served.path("second")).unwrap(), text);
    drop(file);
    served.end();
}

#[test]
fn large_directories_are_listed_whole() {
    for flags in [InitFlags::NONE, InitFlags::DO_READDIRPLUS] {
        let served = Served::new(&wishes(flags));
        let name = |i: u32| format!("entry-{i:05}-{}", "x".repeat(i as usize % 40));
        for i in 0..10_000 {
            served.fs.lock().unwrap().put(name(i).as_bytes(), b"");
        }
        let listed: Vec<_> = fs::read_dir(&served.mount.target)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        assert_eq!(listed.len(), 10_000, "nothing twice");
        let listed: BTreeSet<_> = listed.into_iter().collect();
        assert_eq!(listed, (0..10_000).map(name).collect());
        // READDIRPLUS has brought the attributes, so no lookup is needed.
        assert!(served.path(name(5)).metadata().unwrap().is_file());
        let lookups = usize::from(flags.is_empty());
        assert_eq!(served.fs.lock().unwrap().lookups, lookups);
        served.end();
    }
}

#[test]
fn extended_attributes_come_back() {
    let served = Served::new(&InitWishes::default());
    let path = served.path("file");
    fs::write(&path, "").unwrap();
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    let large = vec![7; 60_000];
    // SAFETY: strings end with a zero, lengths are those of the slices.
    unsafe {
        for (name, value) in [(c"user.small", &b"v"[..]), (c"user.large", &large)] {
            let value = (value.as_ptr().cast(), value.len());
            assert_eq!(libc::setxattr(path.as_ptr(), name.as_ptr(), value.0, value.1, 0), 0);
        }
        let name = c"user.large".as_ptr();
        assert_eq!(libc::getxattr(path.as_ptr(), name, std::ptr::null_mut(), 0), 60_000);
        let mut value = vec![0_u8; 60_000];
        assert_eq!(libc::getxattr(path.as_ptr(), name, value.as_mut_ptr().cast(), 60_000), 60_000);
        assert_eq!(value, large);
        let mut names = vec![0_u8; 64];
        let got = libc::listxattr(path.as_ptr(), names.as_mut_ptr().cast(), names.len());
        assert_eq!(&names[..usize::try_from(got).unwrap()], b"user.large\0user.small\0");
        assert_eq!(libc::removexattr(path.as_ptr(), name), 0);
        assert_eq!(libc::getxattr(path.as_ptr(), name, std::ptr::null_mut(), 0), -1);
    }
    served.end();
}

#[test]
fn locks_are_the_servers() {
    let served = Served::new(&wishes(InitFlags::FLOCK_LOCKS | InitFlags::POSIX_LOCKS));
    fs::write(served.path("file"), "x").unwrap();
    let open = || OpenOptions::new().read(true).write(true).open(served.path("file")).unwrap();
    let (one, two) = (open(), open());
    one.lock().unwrap();
    assert!(matches!(two.try_lock(), Err(TryLockError::WouldBlock)));
    one.unlock().unwrap();
    two.try_lock().unwrap();
    // POSIX locks owned by a descriptor conflict within one process, too.
    let posix = |file: &File, command, kind: libc::c_int| {
        // SAFETY: zeros are a valid `flock`: the whole file.
        let mut lock: libc::flock = unsafe { std::mem::zeroed() };
        lock.l_type = libc::c_short::try_from(kind).unwrap();
        // SAFETY: the command takes a `flock`, which lives on this stack frame.
        let rc = unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut lock) };
        (rc, libc::c_int::from(lock.l_type))
    };
    let write = libc::F_WRLCK;
    assert_eq!(posix(&one, libc::F_OFD_SETLK, write).0, 0, "apart from the locks of flock");
    assert_eq!(posix(&two, libc::F_OFD_GETLK, write), (0, write), "somebody has it");
    assert_eq!(posix(&two, libc::F_OFD_SETLK, write).0, -1);
    assert_eq!(posix(&one, libc::F_OFD_SETLKW, libc::F_UNLCK).0, 0);
    assert_eq!(posix(&two, libc::F_OFD_GETLK, write), (0, libc::F_UNLCK), "nobody has it");
    drop((one, two));
    served.end();
}

#[test]
fn an_interrupt_names_the_request_it_is_about() {
    let (read, reads) = channel();
    let (interrupt, interrupts) = channel();
    let (open_gate, gate) = channel::<()>();
    let gate = Mutex::new(gate);
    let before: Arc<Before> = Arc::new(move |request| match request.operation {
        Operation::Read(_) => {
            read.send(request.unique()).unwrap();
            gate.lock().unwrap().recv_timeout(PATIENCE).ok();
        }
        Operation::Interrupt { unique } => interrupt.send(unique).unwrap(),
        _ => {}
    });
    let served = Served::with(&InitWishes::default(), 2, &before);
    let mut fs = served.fs.lock().unwrap();
    fs.put(b"slow", b"content");
    // The kernel does not interrupt reads into the page cache.
    fs.open_out = OpenOut::new(0, OpenFlags::DIRECT_IO);
    drop(fs);
    let reader = Command::new("cat").arg(served.path("slow")).stdout(Stdio::null()).spawn();
    let mut reader = reader.unwrap();
    let waits_for = reads.recv_timeout(PATIENCE).unwrap();
    reader.kill().unwrap();
    assert_eq!(interrupts.recv_timeout(PATIENCE).unwrap(), waits_for);
    drop(open_gate);
    assert!(!reader.wait().unwrap().success());
    served.end();
}

#[test]
fn two_threads_serve_at_once() {
    let (open_gate, gate) = channel();
    let gate = Mutex::new(gate);
    // A read of the slow file ends only when the other thread has served the fast one.
    let before: Arc<Before> = Arc::new(move |request| {
        if matches!(request.operation, Operation::Read(_)) && request.header.nodeid == 2 {
            gate.lock().unwrap().recv_timeout(PATIENCE).unwrap();
        }
    });
    let served = Served::with(&InitWishes::default(), 2, &before);
    let mut fs = served.fs.lock().unwrap();
    assert_eq!(fs.put(b"slow", b"slow content"), 2);
    fs.put(b"fast", b"fast content");
    drop(fs);
    let slow = served.path("slow");
    let reader = thread::spawn(move || fs::read(slow).unwrap());
    assert_eq!(fs::read(served.path("fast")).unwrap(), b"fast content");
    open_gate.send(()).unwrap();
    assert_eq!(reader.join().unwrap(), b"slow content");
    served.end();
}
