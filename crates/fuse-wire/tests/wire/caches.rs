//! Notifications change the kernel's caches.

use std::fs;
use std::os::unix::fs::FileExt;

use millpond_fuse_wire::abi::{InitFlags, OpenFlags, OpenOut, ROOT_ID};
use millpond_fuse_wire::{InitWishes, Notified, Pages};

use crate::guard::Served;

/// A mount with one file of `old content`, and the file's inode.
fn served() -> (Served, u64) {
    let served = Served::new(&InitWishes::default());
    let ino = served.fs.lock().unwrap().put(b"file", b"old content");
    (served, ino)
}

fn change(served: &Served, ino: u64, data: &[u8]) {
    served.fs.lock().unwrap().node(ino).unwrap().data = data.to_vec();
}

#[test]
fn pages_are_kept_until_the_server_takes_them_back() {
    let (served, ino) = served();
    let path = served.path("file");
    assert_eq!(fs::read(&path).unwrap(), b"old content");
    change(&served, ino, b"NEW CONTENT");
    assert_eq!(fs::read(&path).unwrap(), b"old content", "the kernel has it in its cache");
    assert_eq!(served.device.inval_inode(ino, Pages::None).unwrap(), Notified::Done);
    assert_eq!(fs::read(&path).unwrap(), b"old content", "only attributes were dropped");
    let range = Pages::Range { offset: 3, len: 2 };
    assert_eq!(served.device.inval_inode(ino, range).unwrap(), Notified::Done);
    assert_eq!(fs::read(&path).unwrap(), b"NEW CONTENT");
    change(&served, ino, b"longer than it was");
    assert_eq!(served.device.inval_inode(ino, Pages::All).unwrap(), Notified::Done);
    assert_eq!(fs::read(&path).unwrap(), b"longer than it was");
    assert_eq!(served.device.inval_inode(999, Pages::All).unwrap(), Notified::Unknown);
    served.end();
}

#[test]
fn names_are_kept_until_the_server_takes_them_back() {
    let (served, _) = served();
    let path = served.path("file");
    assert!(path.exists());
    assert!(path.exists());
    assert_eq!(served.fs.lock().unwrap().lookups, 1, "the kernel remembers the name");
    assert_eq!(served.device.expire_entry(ROOT_ID, b"file").unwrap(), Notified::Done);
    assert!(path.exists());
    assert_eq!(served.fs.lock().unwrap().lookups, 2, "it was asked again");
    served.fs.lock().unwrap().node(ROOT_ID).unwrap().entries.clear();
    assert!(path.exists(), "the kernel still believes in it");
    assert_eq!(served.device.inval_entry(ROOT_ID, b"file").unwrap(), Notified::Done);
    assert!(!path.exists());
    assert_eq!(served.device.inval_entry(ROOT_ID, b"never seen").unwrap(), Notified::Unknown);
    assert!(served.device.inval_entry(ROOT_ID, b"").is_err());
    let long = served.device.inval_entry(ROOT_ID, &vec![b'x'; 70_000]).unwrap_err();
    assert_eq!(long.raw_os_error(), Some(libc::ENAMETOOLONG));
    served.end();
}

#[test]
fn a_removed_name_is_gone_at_once() {
    let (served, ino) = served();
    assert!(served.path("file").exists());
    served.fs.lock().unwrap().node(ROOT_ID).unwrap().entries.clear();
    assert_eq!(served.device.delete_entry(ROOT_ID, ino, b"file").unwrap(), Notified::Done);
    assert!(!served.path("file").exists());
    served.end();
}

#[test]
fn an_epoch_ends_all_names() {
    let (served, _) = served();
    assert!(served.path("file").exists());
    served.fs.lock().unwrap().node(ROOT_ID).unwrap().entries.clear();
    if served.agreed.kernel_minor < 44 {
        assert!(served.device.inc_epoch().is_err());
    } else {
        served.device.inc_epoch().unwrap();
        assert!(!served.path("file").exists());
    }
    served.end();
}

#[test]
fn inodes_that_nobody_uses_are_forgotten() {
    let (served, ino) = served();
    assert!(served.path("file").exists());
    if served.agreed.kernel_minor < 45 {
        assert!(served.device.prune(&[ino]).is_err());
    } else {
        served.device.prune(&[ino, 999]).unwrap();
        assert!(served.path("file").exists());
        assert_eq!(served.fs.lock().unwrap().lookups, 2, "the name went with the inode");
    }
    served.end();
}

#[test]
fn the_page_cache_is_filled_and_read_by_the_server() {
    let (served, ino) = served();
    let file = fs::File::open(served.path("file")).unwrap();
    let page = [b'p'; 4096];
    assert_eq!(served.device.store(ino, 0, &page).unwrap(), Notified::Done);
    let mut got = [0; 4096];
    file.read_exact_at(&mut got, 0).unwrap();
    assert_eq!((got, served.fs.lock().unwrap().reads), (page, 0), "no READ was needed");
    assert_eq!(served.device.retrieve(5, ino, 0, 4096).unwrap(), Notified::Done);
    // The request queued after the retrieved data proves that the data has been handled.
    while served.fs.lock().unwrap().retrieved.is_empty() {
        drop(fs::metadata(served.path("no such file")));
    }
    assert_eq!(served.fs.lock().unwrap().retrieved[0], (5, page.to_vec()));
    drop(file);
    served.end();
}

#[test]
fn the_kernel_reads_a_backing_file_by_itself() {
    let default = InitWishes::default();
    let flags = default.flags | InitFlags::PASSTHROUGH;
    let served = Served::new(&InitWishes { flags, ..default });
    if !served.agreed.granted.contains(InitFlags::PASSTHROUGH) {
        assert!(served.agreed.kernel_minor < 40, "every kernel since 6.9 has it");
        return served.end();
    }
    let folder = tempfile::Builder::new().tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path().join("backing");
    fs::write(&path, "from the disk").unwrap();
    let backing = fs::File::open(&path).unwrap();
    let id = served.device.backing_open(std::os::fd::AsFd::as_fd(&backing)).unwrap();
    drop(backing);
    let mut fs = served.fs.lock().unwrap();
    fs.put(b"file", b"from memory..");
    fs.open_out = OpenOut::passthrough(0, OpenFlags::NONE, id);
    drop(fs);
    assert_eq!(fs::read(served.path("file")).unwrap(), b"from the disk");
    assert_eq!(served.fs.lock().unwrap().reads, 0);
    served.device.backing_close(id).unwrap();
    assert!(served.device.backing_close(id).is_err(), "it is gone");
    served.end();
}
