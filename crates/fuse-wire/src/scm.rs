//! Descriptors over a Unix socket: from `fusermount3`, and to and from a process that holds a
//! connection open while its server restarts.

use std::io::{self, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

/// The largest number of descriptors in one message, the kernel's `SCM_MAX_FD`.
pub const FDS_MAX: usize = 253;
/// Words of a control message with that many descriptors.
const CONTROL_WORDS: usize = (FDS_MAX * size_of::<RawFd>() + 64) / size_of::<u64>();
const FD_BYTES: usize = size_of::<RawFd>();

/// Memory for control messages, aligned for their headers.
type Control = [u64; CONTROL_WORDS];

/// Sends `bytes` and copies of `fds`; they arrive together with the first byte.
///
/// # Errors
/// `InvalidInput` for no bytes or more than [`FDS_MAX`] descriptors; those of the socket.
pub fn send_with_fds(socket: &UnixStream, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    if bytes.is_empty() || fds.len() > FDS_MAX {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut control: Control = [0; CONTROL_WORDS];
    let mut piece =
        libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut message = message(&mut piece);
    if !fds.is_empty() {
        set_control(&mut message, &mut control, fds.len());
        // SAFETY: the control memory is large enough for a header and `FDS_MAX` descriptors
        // and aligned for both, and `set_control` has just put it into the message.
        unsafe {
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(fd_bytes(fds.len())) as usize;
            let data = libc::CMSG_DATA(header);
            for (i, fd) in fds.iter().enumerate() {
                let bytes = fd.as_raw_fd().to_ne_bytes();
                data.add(i * FD_BYTES).copy_from_nonoverlapping(bytes.as_ptr(), FD_BYTES);
            }
        }
    }
    let sent = retry(|| {
        // SAFETY: all that the message points to outlives the call, and the kernel only reads it.
        unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) }
    })?;
    // A stream may take only a part; the descriptors went with the first byte.
    let mut rest = socket;
    rest.write_all(&bytes[sent..])
}

/// Receives bytes and up to `max_fds` descriptors, which are closed on exec. Zero bytes mean the
/// end of the stream.
///
/// # Errors
/// `InvalidData` when more descriptors came, all of which are then closed; `InvalidInput` for an
/// empty buffer or more than [`FDS_MAX`] descriptors; those of the socket.
pub fn recv_with_fds(
    socket: &UnixStream,
    buffer: &mut [u8],
    max_fds: usize,
) -> io::Result<(usize, Vec<OwnedFd>)> {
    if buffer.is_empty() || max_fds > FDS_MAX {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut control: Control = [0; CONTROL_WORDS];
    let mut piece = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let mut message = message(&mut piece);
    // Room for the maximum of one message, so that excess descriptors are seen and closed, not
    // lost.
    set_control(&mut message, &mut control, FDS_MAX);
    let got = retry(|| {
        // SAFETY: the kernel writes to the buffer and to the control memory within the lengths
        // that the message gives, and both outlive the call.
        unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) }
    })?;
    let fds = take_fds(&message);
    if fds.len() > max_fds || message.msg_flags & libc::MSG_CTRUNC != 0 {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "too many descriptors came"));
    }
    Ok((got, fds))
}

/// A message of one piece of memory, without control messages.
fn message(piece: &mut libc::iovec) -> libc::msghdr {
    // SAFETY: a `msghdr` is integers and pointers, for which zeros are valid: nothing is there.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_iov = piece;
    message.msg_iovlen = 1;
    message
}

/// Gives the message control memory for `count` descriptors.
fn set_control(message: &mut libc::msghdr, control: &mut Control, count: usize) {
    // SAFETY: pure arithmetic.
    let len = unsafe { libc::CMSG_SPACE(fd_bytes(count)) } as usize;
    assert!(len <= size_of_val(control), "control memory for {count} descriptors");
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = len;
}

/// Owns the descriptors that a message brought.
fn take_fds(message: &libc::msghdr) -> Vec<OwnedFd> {
    let mut fds = Vec::new();
    // SAFETY: the kernel filled the control memory and set its length; the macros stay within it.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !header.is_null() {
        // SAFETY: `header` is not null, so it points to a whole header in the control memory.
        let (level, kind, len) =
            unsafe { ((*header).cmsg_level, (*header).cmsg_type, (*header).cmsg_len) };
        if level == libc::SOL_SOCKET && kind == libc::SCM_RIGHTS {
            // SAFETY: pure arithmetic.
            let head = unsafe { libc::CMSG_LEN(0) } as usize;
            for i in 0..len.saturating_sub(head) / FD_BYTES {
                // SAFETY: the header's length covers `i` descriptors; each is new in this process
                // and has no other owner.
                fds.push(unsafe {
                    let mut bytes = [0; FD_BYTES];
                    let at = libc::CMSG_DATA(header).add(i * FD_BYTES);
                    at.copy_to_nonoverlapping(bytes.as_mut_ptr(), FD_BYTES);
                    OwnedFd::from_raw_fd(RawFd::from_ne_bytes(bytes))
                });
            }
        }
        // SAFETY: as for the first header.
        header = unsafe { libc::CMSG_NXTHDR(message, header) };
    }
    fds
}

/// The size of `count` descriptors in bytes.
fn fd_bytes(count: usize) -> u32 {
    u32::try_from(count * FD_BYTES).expect("at most 253 descriptors")
}

/// Repeats a call that a signal interrupted.
fn retry(mut call: impl FnMut() -> isize) -> io::Result<usize> {
    loop {
        if let Ok(count) = usize::try_from(call()) {
            return Ok(count);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{ErrorKind, Read, Seek, Write};
    use std::os::fd::{AsFd, AsRawFd};
    use std::os::unix::net::UnixStream;

    use super::{FDS_MAX, recv_with_fds, send_with_fds};

    #[test]
    fn descriptors_arrive_with_the_bytes() {
        let (here, there) = UnixStream::pair().unwrap();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"content").unwrap();
        send_with_fds(&here, b"hello", &[file.as_fd(), here.as_fd()]).unwrap();
        let mut buffer = [0; 16];
        let (got, mut fds) = recv_with_fds(&there, &mut buffer, 2).unwrap();
        assert_eq!((&buffer[..got], fds.len()), (&b"hello"[..], 2));
        assert_ne!(fds[0].as_raw_fd(), file.as_raw_fd(), "a copy");
        let mut copy = File::from(fds.swap_remove(0));
        copy.rewind().unwrap();
        let mut text = String::new();
        copy.read_to_string(&mut text).unwrap();
        assert_eq!(text, "content");
    }

    #[test]
    fn bytes_go_without_descriptors_and_the_end_is_seen() {
        let (here, there) = UnixStream::pair().unwrap();
        send_with_fds(&here, b"plain", &[]).unwrap();
        drop(here);
        let mut buffer = [0; 16];
        assert_eq!(recv_with_fds(&there, &mut buffer, 0).unwrap().0, 5);
        assert_eq!(recv_with_fds(&there, &mut buffer, 0).unwrap().0, 0);
    }

    #[test]
    fn more_descriptors_than_expected_are_an_error() {
        let (here, there) = UnixStream::pair().unwrap();
        send_with_fds(&here, b"x", &[here.as_fd(), there.as_fd()]).unwrap();
        let error = recv_with_fds(&there, &mut [0; 4], 1).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidData);
    }

    #[test]
    fn the_most_descriptors_go_through() {
        let (here, there) = UnixStream::pair().unwrap();
        let many = vec![here.as_fd(); FDS_MAX];
        send_with_fds(&here, b"x", &many).unwrap();
        assert_eq!(recv_with_fds(&there, &mut [0; 4], FDS_MAX).unwrap().1.len(), FDS_MAX);
        let more = vec![here.as_fd(); FDS_MAX + 1];
        assert_eq!(send_with_fds(&here, b"x", &more).unwrap_err().kind(), ErrorKind::InvalidInput);
        assert_eq!(send_with_fds(&here, b"", &[]).unwrap_err().kind(), ErrorKind::InvalidInput);
    }
}
