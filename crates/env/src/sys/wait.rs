//! Waiting for several descriptors in a thread without an `rt` loop.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::time::Duration;

use super::check;

/// Waits until one of `fds` can be read or has ended, for at most `longest` (for ever without it).
/// Returns a flag for each; all are false after the time, and possibly earlier: a signal ends the
/// wait too.
///
/// # Errors
/// Errors of the operating system.
pub fn wait_readable(fds: &[BorrowedFd<'_>], longest: Option<Duration>) -> io::Result<Vec<bool>> {
    let entry =
        |fd: &BorrowedFd<'_>| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let mut polls: Vec<libc::pollfd> = fds.iter().map(entry).collect();
    // Rounded up, so that a waiting caller does not wake just before its time again and again.
    let ms = longest
        .map_or(-1, |time| i32::try_from(time.as_micros().div_ceil(1000)).unwrap_or(i32::MAX));
    let count = libc::nfds_t::try_from(polls.len()).map_err(io::Error::other)?;
    // SAFETY: the entries live until the call returns, and there are `count` of them.
    match check(unsafe { libc::poll(polls.as_mut_ptr(), count, ms) }) {
        Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
        Err(_) => return Ok(vec![false; fds.len()]),
        Ok(_) => {}
    }
    Ok(polls.iter().map(|poll| poll.revents != 0).collect())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;
    use std::time::Duration;

    use super::wait_readable;
    use crate::EventFd;

    #[test]
    fn who_can_be_read_is_told() {
        let (first, second) = (EventFd::new().unwrap(), EventFd::new().unwrap());
        let wait = |time| wait_readable(&[first.as_fd(), second.as_fd()], time).unwrap();
        assert_eq!(wait(Some(Duration::from_millis(1))), [false, false]);
        second.notify();
        assert_eq!(wait(None), [false, true]);
    }
}
