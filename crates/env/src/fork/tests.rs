use std::io::{IoSlice, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::*;
use crate::clock::RealClock;
use crate::files::FileLock;
use crate::net::BlockingStream;
use crate::shm::{ShmAccess, ShmRegion};

/// Runs `find` in a child and returns its result, the exit status. The child must not panic. It
/// allocates, so no other thread of this test may.
fn in_a_child(find: impl FnOnce() -> u8) -> i32 {
    // SAFETY: the child runs code of this test only and ends with `_exit`.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let found = find();
        // SAFETY: ends this process at once.
        unsafe { libc::_exit(i32::from(found)) };
    }
    let mut status = 0;
    // SAFETY: `status` is writable; the child is ours.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status), "the child died: {status}");
    libc::WEXITSTATUS(status)
}

/// Counts drops.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn a_child_makes_its_own_and_leaves_its_parents() {
    let drops = Arc::new(AtomicUsize::new(0));
    let ours = PerProcess::new(Counted(Arc::clone(&drops)));
    let mut once = OfProcess::new(Counted(Arc::clone(&drops)));
    let before = generation();
    let found = in_a_child(|| {
        let mut right = ours.get().is_none() && once.get().is_none() && once.get_mut().is_none();
        right &= generation() != before;
        let made = ours.get_or(|| Counted(Arc::clone(&drops)));
        right &= ours.get().is_some_and(|value| std::ptr::eq(value, made));
        right &= in_a_child(|| u8::from(ours.get().is_none() && generation() != before)) == 1;
        drop((ours, once));
        // The child's own, and not its parent's two.
        u8::from(right && drops.load(Ordering::SeqCst) == 1)
    });
    assert_eq!(found, 1);
    // A closure moves the values that the child drops; the parent's part of it ends here.
    assert_eq!(generation(), before);
}

#[test]
fn a_child_has_neither_connection_nor_memory_of_its_parent() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let stream = BlockingStream::connect_unix(&path, Duration::from_mins(1)).unwrap();
    let (mut peer, _) = listener.accept().unwrap();
    let region = ShmRegion::create("fork-test", 8192).unwrap();
    region.copy_in(0, b"parent").unwrap();
    let copy = region.fd().try_clone_to_owned().unwrap();
    let view = ShmRegion::from_fd(copy, 8192, ShmAccess::ReadOnly).unwrap();
    let number = stream.as_raw_fd();
    let found = in_a_child(|| {
        // SAFETY: plain numbers.
        let mut right = unsafe { libc::fcntl(number, libc::F_GETFD) } < 0;
        let soon = RealClock::tick().plus(Duration::from_secs(1));
        right &= stream.send_vectored(&[IoSlice::new(b"child")], soon).is_err();
        let mut seen = [0; 6];
        right &= region.copy_out(0, &mut seen).is_ok() && seen == *b"parent";
        right &= region.copy_in(0, b"child!").is_ok();
        right &= region.copy_out(0, &mut seen).is_ok() && seen == *b"child!";
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let of_region = |line: &&str| line.contains("memfd:fork-test");
        right &= maps.lines().filter(of_region).all(|line| line.contains(" rw-p "));
        right &= maps.lines().any(|line| of_region(&line));
        // Another file gets the number, and dropping the parent's objects does not close it.
        let file = std::fs::File::open("/dev/null");
        drop((stream, region, view));
        // SAFETY: plain numbers.
        right &=
            file.is_ok_and(|file| unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFD) } >= 0);
        u8::from(right)
    });
    assert_eq!(found, 1);
    let _ = peer.write_all(b"x");
    let mut one = [0; 1];
    // The parent moved its end into the closure above and dropped it: the peer sees that at once,
    // as no child has it.
    peer.set_read_timeout(Some(Duration::from_mins(1))).unwrap();
    assert_eq!(peer.read(&mut one).unwrap_or(0), 0);
}

/// A surviving child neither keeps its parent's lock nor frees it.
#[test]
fn a_lock_on_a_file_is_its_takers_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lock");
    let lock = FileLock::take(&path).unwrap().unwrap();
    let (mut parent, mut child) = std::os::unix::net::UnixStream::pair().unwrap();
    // SAFETY: the child runs code of this test only and ends with `_exit`.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        let mut right = matches!(FileLock::take(&path), Ok(None));
        drop(lock);
        right &= matches!(FileLock::take(&path), Ok(None));
        let mut one = [u8::from(right)];
        let _ = child.write_all(&one);
        let _ = child.read(&mut one);
        // SAFETY: ends this process at once.
        unsafe { libc::_exit(0) };
    }
    let mut one = [0; 1];
    parent.read_exact(&mut one).unwrap();
    assert_eq!(one, [1], "the child has or frees its parent's lock");
    drop(lock);
    assert!(FileLock::take(&path).unwrap().is_some(), "the child keeps what its parent gave back");
    parent.write_all(&one).unwrap();
    // SAFETY: the child is ours.
    assert_eq!(unsafe { libc::waitpid(pid, std::ptr::null_mut(), 0) }, pid);
}
