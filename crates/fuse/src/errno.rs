//! Errors that applications receive.

use millpond_client::{BehindLastChunk, ClientError, ErrorKind};
use millpond_types::meta::{MetaError, NameError};

/// An errno of Linux, positive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) i32);

impl Errno {
    pub(crate) const EXIST: Self = Self(libc::EEXIST);
    pub(crate) const INVAL: Self = Self(libc::EINVAL);
    pub(crate) const IO: Self = Self(libc::EIO);
    pub(crate) const NODATA: Self = Self(libc::ENODATA);
    pub(crate) const NOSYS: Self = Self(libc::ENOSYS);
    pub(crate) const NOTSUP: Self = Self(libc::EOPNOTSUPP);
    pub(crate) const NOSPC: Self = Self(libc::ENOSPC);
    pub(crate) const NXIO: Self = Self(libc::ENXIO);
    pub(crate) const DQUOT: Self = Self(libc::EDQUOT);
    pub(crate) const RANGE: Self = Self(libc::ERANGE);
    pub(crate) const STALE: Self = Self(libc::ESTALE);
    pub(crate) const TOO_BIG: Self = Self(libc::E2BIG);
    pub(crate) const FILE_TOO_BIG: Self = Self(libc::EFBIG);

    /// Its name as in `errno(3)`; a number for errors that no mount returns.
    pub(crate) fn name(self) -> String {
        let found = NAMES.iter().find(|(number, _)| *number == self.0);
        found.map_or_else(|| format!("E{}", self.0), |(_, name)| (*name).to_owned())
    }
}

const NAMES: [(i32, &str); 30] = [
    (libc::EPERM, "EPERM"),
    (libc::ENOENT, "ENOENT"),
    (libc::EINTR, "EINTR"),
    (libc::EIO, "EIO"),
    (libc::ENXIO, "ENXIO"),
    (libc::E2BIG, "E2BIG"),
    (libc::EBADF, "EBADF"),
    (libc::EAGAIN, "EAGAIN"),
    (libc::ENOMEM, "ENOMEM"),
    (libc::EACCES, "EACCES"),
    (libc::EBUSY, "EBUSY"),
    (libc::EEXIST, "EEXIST"),
    (libc::EXDEV, "EXDEV"),
    (libc::ENOTDIR, "ENOTDIR"),
    (libc::EISDIR, "EISDIR"),
    (libc::EINVAL, "EINVAL"),
    (libc::EFBIG, "EFBIG"),
    (libc::ENOSPC, "ENOSPC"),
    (libc::EROFS, "EROFS"),
    (libc::EMLINK, "EMLINK"),
    (libc::ERANGE, "ERANGE"),
    (libc::EDEADLK, "EDEADLK"),
    (libc::ENAMETOOLONG, "ENAMETOOLONG"),
    (libc::ENOSYS, "ENOSYS"),
    (libc::ENOTEMPTY, "ENOTEMPTY"),
    (libc::ENODATA, "ENODATA"),
    (libc::EOPNOTSUPP, "EOPNOTSUPP"),
    (libc::ETIMEDOUT, "ETIMEDOUT"),
    (libc::ESTALE, "ESTALE"),
    (libc::EDQUOT, "EDQUOT"),
];

impl From<MetaError> for Errno {
    fn from(error: MetaError) -> Self {
        Self(error.errno())
    }
}

impl From<BehindLastChunk> for Errno {
    fn from(BehindLastChunk: BehindLastChunk) -> Self {
        Self::FILE_TOO_BIG
    }
}

impl From<NameError> for Errno {
    fn from(error: NameError) -> Self {
        match error {
            NameError::TooLong(_) => Self(libc::ENAMETOOLONG),
            NameError::NoName => Self::INVAL,
        }
    }
}

/// Converts a failed call to the cluster into an errno; failures not caused by the application are
/// logged.
impl From<ClientError> for Errno {
    fn from(error: ClientError) -> Self {
        let errno = match error.kind() {
            ErrorKind::NoSpace => libc::ENOSPC,
            ErrorKind::ReadOnly => libc::EROFS,
            ErrorKind::Unauthorized => libc::EACCES,
            _ => libc::EIO,
        };
        if errno != libc::ENOSPC {
            tracing::error!("{error}");
        }
        Self(errno)
    }
}
