//! The protocol between holder and daemon: frames with descriptors, over a socket pair.
//!
//! A frame is its kind u8, an id u64 and the length of its body u32, little endian, then the body.
//! The descriptors come with the first byte. The holder outlives upgrades of the daemon, so kinds
//! are only ever added, and unknown kinds are ignored.

use std::io::{self, Read as _};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use millpond_fuse_wire::scm;

/// Bytes before the body.
const HEADER_BYTES: usize = 13;
/// Longest body in bytes: a mount's blob is some hundred bytes.
const BODY_BYTES_MAX: u32 = 1 << 20;

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// To the holder: keep these bytes and descriptors for a mount. To a daemon: here they are.
    Keep = 1,
    /// The holder has the state of a mount.
    Kept = 2,
    /// The mount is gone: close its descriptors.
    Drop = 3,
    /// A daemon runs.
    Hello = 4,
    /// All kept state has been passed: serve. An id of 1 asks to take the admin socket over only
    /// once all mounts are served.
    Begin = 5,
    /// A daemon serves; the id is the number of mounts that it could not take over.
    Serving = 6,
    /// Start the program in the body as the next daemon.
    Upgrade = 7,
    /// The next daemon does not serve, and this one continues; the body has the reason.
    UpgradeFailed = 8,
    /// Stop reading requests and leave the mounts to the holder.
    Park = 9,
    /// The mounts are parked.
    Parked = 10,
    /// Parking failed; the body has the reason.
    NotParked = 11,
    /// The next daemon serves; the id is its process id. End. The body is the pause in
    /// milliseconds.
    Release = 12,
    /// Unmount everything and end.
    Stop = 13,
    /// Nothing is mounted any more and the daemon ends.
    Ended = 14,
}

impl Kind {
    const ALL: [Self; 14] = [
        Self::Keep,
        Self::Kept,
        Self::Drop,
        Self::Hello,
        Self::Begin,
        Self::Serving,
        Self::Upgrade,
        Self::UpgradeFailed,
        Self::Park,
        Self::Parked,
        Self::NotParked,
        Self::Release,
        Self::Stop,
        Self::Ended,
    ];

    fn of(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| *kind as u8 == number)
    }
}

/// One received frame.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) kind: Kind,
    pub(crate) id: u64,
    pub(crate) body: Vec<u8>,
    pub(crate) fds: Vec<OwnedFd>,
}

impl Frame {
    /// The body of a frame with a reason.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// Sends a frame.
///
/// # Errors
/// `InvalidInput` for too long a body or too many descriptors; those of the socket.
pub(crate) fn send(
    socket: &UnixStream,
    (kind, id): (Kind, u64),
    body: &[u8],
    fds: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let len = u32::try_from(body.len()).ok().filter(|len| *len <= BODY_BYTES_MAX);
    let len = len.ok_or(io::ErrorKind::InvalidInput)?;
    let mut bytes = Vec::with_capacity(HEADER_BYTES + body.len());
    bytes.push(kind as u8);
    bytes.extend_from_slice(&id.to_le_bytes());
    bytes.extend_from_slice(&len.to_le_bytes());
    bytes.extend_from_slice(body);
    scm::send_with_fds(socket, &bytes, fds)
}

/// Waits for a frame of a known kind; `None` at the end of the stream.
///
/// # Errors
/// `InvalidData` for an invalid frame, `UnexpectedEof` within one; those of the socket.
pub(crate) fn receive(mut socket: &UnixStream) -> io::Result<Option<Frame>> {
    loop {
        let mut header = [0; HEADER_BYTES];
        // The first byte alone: all descriptors come with it.
        let (got, fds) = scm::recv_with_fds(socket, &mut header[..1], scm::FDS_MAX)?;
        if got == 0 {
            return Ok(None);
        }
        socket.read_exact(&mut header[1..])?;
        let id = header[1..9].try_into().map(u64::from_le_bytes).unwrap_or_default();
        let len = header[9..].try_into().map(u32::from_le_bytes).unwrap_or_default();
        if len > BODY_BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a frame that is too long"));
        }
        let mut body = vec![0; len as usize];
        socket.read_exact(&mut body)?;
        if let Some(kind) = Kind::of(header[0]) {
            return Ok(Some(Frame { kind, id, body, fds }));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::fd::AsFd as _;
    use std::os::unix::net::UnixStream;

    use super::{BODY_BYTES_MAX, HEADER_BYTES, Kind, receive, send};

    #[test]
    fn frames_come_as_they_went_and_unknown_kinds_are_passed_over() {
        let (here, there) = UnixStream::pair().unwrap();
        let fds = [here.as_fd(); 66];
        send(&here, (Kind::Keep, 7), b"blob", &fds).unwrap();
        let unknown = [&[99_u8][..], &[0; 8], &[2, 0, 0, 0], b"??"].concat();
        (&here).write_all(&unknown).unwrap();
        send(&here, (Kind::Ended, 0), b"", &[]).unwrap();
        let first = receive(&there).unwrap().unwrap();
        assert_eq!((first.kind, first.id, first.fds.len()), (Kind::Keep, 7, 66));
        assert_eq!(first.text(), "blob");
        assert_eq!(receive(&there).unwrap().unwrap().kind, Kind::Ended);
        drop((first, here));
        assert!(receive(&there).unwrap().is_none());
    }

    #[test]
    fn what_is_no_frame_is_an_error() {
        let long = vec![0; BODY_BYTES_MAX as usize + 1];
        let (here, there) = UnixStream::pair().unwrap();
        assert!(send(&here, (Kind::Keep, 1), &long, &[]).is_err());
        (&here).write_all(&[255; HEADER_BYTES]).unwrap();
        assert!(receive(&there).is_err());
        let (here, there) = UnixStream::pair().unwrap();
        (&here).write_all(&[1, 2]).unwrap();
        drop(here);
        assert!(receive(&there).is_err());
    }

    #[test]
    fn any_bytes_are_read_to_their_end() {
        let mut rng = millpond_env::Rng::new(7);
        for _ in 0..500 {
            let mut bytes = vec![0; usize::try_from(rng.next_u64() % 60).unwrap()];
            rng.fill(&mut bytes);
            // Valid lengths, because otherwise every frame would be too long.
            bytes.iter_mut().skip(10).step_by(5).for_each(|byte| *byte = 0);
            let (here, there) = UnixStream::pair().unwrap();
            (&here).write_all(&bytes).unwrap();
            drop(here);
            while let Ok(Some(frame)) = receive(&there) {
                assert!(frame.body.len() < bytes.len() && frame.fds.is_empty());
            }
        }
    }

    #[test]
    fn every_kind_has_its_number() {
        for (index, kind) in Kind::ALL.into_iter().enumerate() {
            assert_eq!(kind as usize, index + 1);
            assert_eq!(Kind::of(kind as u8), Some(kind));
        }
        assert_eq!(Kind::of(0), None);
    }
}
