//! File descriptors over unix sockets (`SCM_RIGHTS`).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use crate::sys::check_len;

/// Descriptors that fit one message.
pub const FDS_MAX: usize = 16;

const SPACE: usize = 128;

/// Room for the control message, with the kernel's alignment.
#[repr(C, align(8))]
struct Control([u8; SPACE]);

fn payload_len(count: usize) -> u32 {
    u32::try_from(count * size_of::<RawFd>()).expect("FDS_MAX descriptors are few bytes")
}

fn header(iov: &mut libc::iovec, control: &mut Control, len: usize) -> libc::msghdr {
    // SAFETY: an all-zero msghdr is valid.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = iov;
    message.msg_iovlen = 1;
    if len > 0 {
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = len as _;
    }
    message
}

/// Sends `bytes` with `fds` attached to the first of them, without blocking; returns the number of
/// bytes sent.
pub(super) fn try_send(
    socket: RawFd,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
    flags: i32,
) -> io::Result<usize> {
    if fds.len() > FDS_MAX || bytes.is_empty() {
        let text = format!("descriptors travel with at least one byte, {FDS_MAX} at most");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    let mut control = Control([0; SPACE]);
    let mut iov = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: CMSG_SPACE only computes.
    let len = unsafe { libc::CMSG_SPACE(payload_len(fds.len())) } as usize;
    assert!(len <= SPACE, "the control buffer holds FDS_MAX descriptors");
    let message = header(&mut iov, &mut control, if fds.is_empty() { 0 } else { len });
    if !fds.is_empty() {
        // SAFETY: the control buffer is aligned and has CMSG_SPACE bytes, so the first header and
        // its data lie within it.
        unsafe {
            let place = libc::CMSG_FIRSTHDR(&raw const message);
            (*place).cmsg_level = libc::SOL_SOCKET;
            (*place).cmsg_type = libc::SCM_RIGHTS;
            (*place).cmsg_len = libc::CMSG_LEN(payload_len(fds.len())) as _;
            let data = libc::CMSG_DATA(place);
            for (index, fd) in fds.iter().enumerate() {
                let bytes = fd.as_raw_fd().to_ne_bytes();
                data.add(index * bytes.len()).cast::<[u8; 4]>().write(bytes);
            }
        }
    }
    // SAFETY: `message` points to `iov` and `control`, which live until the call returns.
    check_len(unsafe { libc::sendmsg(socket, &raw const message, flags | libc::MSG_NOSIGNAL) })
}

/// Receives bytes and the descriptors that came with them.
pub(super) fn try_recv(
    socket: RawFd,
    bytes: &mut [u8],
    fds: &mut Vec<OwnedFd>,
    flags: i32,
) -> io::Result<usize> {
    let mut control = Control([0; SPACE]);
    let mut iov = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut message = header(&mut iov, &mut control, SPACE);
    let flags = flags | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: `message` points to `iov` and `control`, which live until the call returns.
    let got = check_len(unsafe { libc::recvmsg(socket, &raw mut message, flags) })?;
    // SAFETY: the kernel filled the control buffer and set its length; the macros stay within it.
    // Each descriptor in it is new and ours.
    unsafe {
        let mut place = libc::CMSG_FIRSTHDR(&raw const message);
        while !place.is_null() {
            let is_fds =
                (*place).cmsg_level == libc::SOL_SOCKET && (*place).cmsg_type == libc::SCM_RIGHTS;
            if is_fds {
                let data = libc::CMSG_DATA(place).cast::<[u8; 4]>();
                let len = (*place).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                for index in 0..len / size_of::<RawFd>() {
                    let fd = RawFd::from_ne_bytes(data.add(index).read());
                    fds.push(OwnedFd::from_raw_fd(fd));
                }
            }
            place = libc::CMSG_NXTHDR(&raw const message, place);
        }
    }
    if message.msg_flags & libc::MSG_CTRUNC != 0 {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "too many descriptors in a message",
        ));
    }
    Ok(got)
}
