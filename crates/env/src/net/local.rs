//! A blocking listener on a path, for processes that have threads instead of an event loop.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use super::addr::PeerCredentials;
use super::blocking::BlockingStream;

/// Accepts connections on a path that only its owner and root may open.
#[derive(Debug)]
pub struct LocalListener {
    listener: UnixListener,
    path: PathBuf,
    inode: u64,
}

impl LocalListener {
    /// Listens on `path` from now on, in place of any other listener there.
    ///
    /// During the replacement the path is never absent, and never open to others.
    ///
    /// # Errors
    /// `InvalidInput` for a path over 107 bytes, and other system errors.
    pub fn replace(path: &Path) -> io::Result<Self> {
        let unfinished = path.with_extension(format!("{}", std::process::id()));
        match fs::remove_file(&unfinished) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(&unfinished)?;
        let placed = fs::set_permissions(&unfinished, fs::Permissions::from_mode(0o600))
            .and_then(|()| fs::symlink_metadata(&unfinished))
            .and_then(|made| fs::rename(&unfinished, path).map(|()| made.ino()));
        match placed {
            Ok(inode) => Ok(Self { listener, path: path.to_owned(), inode }),
            Err(error) => {
                let _ = fs::remove_file(&unfinished);
                Err(error)
            }
        }
    }

    /// Waits for a connection, and returns it with the credentials of its peer.
    ///
    /// # Errors
    /// Errors of the operating system; other connections may come.
    pub fn accept(&self) -> io::Result<(BlockingStream, PeerCredentials)> {
        let (stream, _) = self.listener.accept()?;
        let stream = BlockingStream::from_owned_fd(OwnedFd::from(stream));
        let peer = stream.peer_credentials()?;
        Ok((stream, peer))
    }

    /// Whether the path still leads here.
    #[must_use]
    pub fn is_in_place(&self) -> bool {
        fs::symlink_metadata(&self.path).is_ok_and(|found| found.ino() == self.inode)
    }

    /// Removes the path if it leads here: later connection attempts find no listener.
    pub fn remove(&self) {
        if self.is_in_place() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;
    use std::os::unix::fs::PermissionsExt;
    use std::time::Duration;

    use super::LocalListener;
    use crate::{BlockingStream, Clock, RealClock};

    #[test]
    fn the_last_listener_has_the_path() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("door");
        let first = LocalListener::replace(&path).unwrap();
        let second = LocalListener::replace(&path).unwrap();
        assert!(!first.is_in_place() && second.is_in_place());
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let within = Duration::from_secs(5);
        let client = BlockingStream::connect_unix(&path, within).unwrap();
        let (server, peer) = second.accept().unwrap();
        assert_eq!(peer.pid.cast_unsigned(), std::process::id());
        assert_eq!(peer.uid, crate::effective_uid());
        let deadline = RealClock.now().plus(within);
        client.send_vectored(&[IoSlice::new(b"hi")], deadline).unwrap();
        let mut got = [0; 2];
        server.recv_exact(&mut got, deadline).unwrap();
        assert_eq!(&got, b"hi");
        first.remove();
        assert!(path.exists(), "it is not the first one's");
        second.remove();
        assert!(!path.exists());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
