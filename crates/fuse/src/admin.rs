//! What the daemon can be asked over its socket: a request is one line of JSON, and so is its answer.

use std::io::{self, IoSlice};
use std::path::PathBuf;
use std::time::Duration;

use millpond_env::{BlockingStream, RealClock};
use millpond_types::Tick;
use serde::{Deserialize, Serialize};

use crate::run_dir::RunDir;

/// Longest request: paths and options.
const REQUEST_BYTES_MAX: usize = 1 << 20;
/// Longest answer: the numbers of some thousand mounts.
const ANSWER_BYTES_MAX: usize = 256 << 20;
/// A daemon that lives takes a connection at once.
const CONNECT: Duration = Duration::from_secs(5);

/// What a daemon says before it is asked: who does not hear it may ask again elsewhere.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Greeting {
    /// Process id of the daemon.
    pub pid: u32,
    /// Its version.
    pub version: String,
}

/// What is asked.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Are you there?
    Ping,
    /// Mount, and answer when requests are served.
    Mount(MountRequest),
    /// End a mount.
    Unmount {
        /// Where, as [`Listed`] has it.
        mountpoint: PathBuf,
        /// Take it out of the tree at once, and end it when its last file is closed.
        lazy: bool,
    },
    /// Which mounts are there?
    List,
    /// How is the daemon?
    Status,
    /// What have the mounts counted?
    Metrics,
    /// Put another process in the daemon's place.
    Upgrade {
        /// The program that is to serve from now on.
        program: PathBuf,
    },
}

/// What is to be mounted.
#[derive(Clone, Serialize, Deserialize)]
pub struct MountRequest {
    /// Addresses of some nodes.
    pub cluster: String,
    /// The credential; may be empty.
    pub token: String,
    /// Where.
    pub mountpoint: PathBuf,
    /// As of `-o`.
    pub options: String,
}

impl std::fmt::Debug for MountRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Not the token.
        f.debug_struct("MountRequest")
            .field("cluster", &self.cluster)
            .field("mountpoint", &self.mountpoint)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

/// What is answered.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// It is done.
    Ok,
    /// It is not done: one line that names the fix.
    Error(String),
    /// No mount of this daemon is there.
    NotMine,
    /// The mounts.
    Mounts(Vec<Listed>),
    /// The daemon.
    Status(DaemonStatus),
    /// The numbers of all mounts in the Prometheus text format.
    Metrics(String),
    /// Another process serves now.
    Upgraded {
        /// Its process id.
        pid: u32,
        /// Milliseconds in which no request was answered.
        pause_ms: u64,
    },
}

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed {
    /// Where.
    pub mountpoint: PathBuf,
    /// Of which cluster: addresses of some nodes.
    pub cluster: String,
    /// Its mode's name.
    pub mode: String,
    /// No writes.
    pub read_only: bool,
    /// Since when, in milliseconds since 1970.
    pub since_unix_ms: u64,
    /// Threads that serve it.
    pub threads: usize,
    /// Bytes of memory that it may use; 0 where an earlier version mounted it.
    #[serde(default)]
    pub memory: u64,
    /// Bytes a second that it may read and write together; 0 is no limit.
    #[serde(default)]
    pub bandwidth: u64,
    /// Bytes a second that it may read; 0 is no limit.
    #[serde(default)]
    pub read_bandwidth: u64,
    /// Bytes a second that it may write; 0 is no limit.
    #[serde(default)]
    pub write_bandwidth: u64,
    /// How it does.
    #[serde(default)]
    pub state: MountState,
    /// Process id of the daemon.
    #[serde(default)]
    pub pid: u32,
}

/// How a mount does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MountState {
    /// It is being made.
    #[default]
    Mounting,
    /// Requests are served.
    Serving,
    /// Taken over from an earlier process; requests wait.
    Resuming,
    /// Handed to the next process; requests wait.
    Parked,
    /// Out of the tree; files of it are still open.
    Detached,
}

impl MountState {
    /// The state's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Mounting => "mounting",
            Self::Serving => "serving",
            Self::Resuming => "resuming",
            Self::Parked => "parked",
            Self::Detached => "detached",
        }
    }
}

/// The daemon.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DaemonStatus {
    /// Its process id.
    pub pid: u32,
    /// Its holder's.
    pub holder_pid: u32,
    /// Its version.
    pub version: String,
    /// Since when, in milliseconds since 1970.
    pub since_unix_ms: u64,
    /// How many mounts it has.
    pub mounts: usize,
    /// How many of them it took over from an earlier process.
    pub taken_over: usize,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// Nobody listens: no daemon runs for this run directory, or it is about to end.
    #[error("no mount daemon runs in {}: nothing is mounted by it", .0.display())]
    Absent(PathBuf),
    /// The socket is another user's.
    #[error("{} belongs to another user: use --run-dir, or be that user or root", .0.display())]
    Forbidden(PathBuf),
    /// The daemon ended after the request was sent.
    #[error("the mount daemon ended before it answered: {} says why; look at `millpond mounts` and try again", .0.display())]
    Lost(PathBuf),
    /// Something else.
    #[error("asking the mount daemon: {0}")]
    Io(#[from] io::Error),
}

/// A connection to a daemon that has said its greeting.
#[derive(Debug)]
pub struct Connection {
    stream: BlockingStream,
    buffer: Vec<u8>,
    run_dir: RunDir,
    /// Whose it is.
    pub greeting: Greeting,
}

impl Connection {
    /// Connects to the daemon of a run directory.
    ///
    /// # Errors
    /// [`CallError`]; nothing was asked.
    pub fn open(run_dir: &RunDir) -> Result<Self, CallError> {
        let (path, absent) = (run_dir.socket(), || CallError::Absent(run_dir.path().to_owned()));
        let stream =
            BlockingStream::connect_unix(&path, CONNECT).map_err(|error| match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => absent(),
                io::ErrorKind::PermissionDenied => CallError::Forbidden(path.clone()),
                _ => CallError::Io(error),
            })?;
        let mut buffer = Vec::new();
        match read_line(&stream, (&mut buffer, ANSWER_BYTES_MAX), RealClock::tick().plus(CONNECT)) {
            Ok(Some(line)) => {
                let greeting = serde_json::from_slice(&line).map_err(io::Error::from)?;
                Ok(Self { stream, buffer, run_dir: run_dir.clone(), greeting })
            }
            Ok(None) => Err(absent()),
            Err(error) if is_gone(&error) => Err(absent()),
            Err(error) => Err(error.into()),
        }
    }

    /// Sends a request.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn ask(&mut self, request: &Request) -> Result<(), CallError> {
        let deadline = RealClock::tick().plus(CONNECT);
        write_line(&self.stream, request, deadline).map_err(|error| self.lost(error))
    }

    /// Waits for the answer; nothing when the time passed first.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn answer(&mut self, within: Duration) -> Result<Option<Answer>, CallError> {
        let deadline = RealClock::tick().plus(within);
        match read_line(&self.stream, (&mut self.buffer, ANSWER_BYTES_MAX), deadline) {
            Ok(Some(line)) => Ok(Some(serde_json::from_slice(&line).map_err(io::Error::from)?)),
            Ok(None) => Err(self.lost(io::ErrorKind::UnexpectedEof.into())),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Ok(None),
            Err(error) => Err(self.lost(error)),
        }
    }

    fn lost(&self, error: io::Error) -> CallError {
        if is_gone(&error) { CallError::Lost(self.run_dir.log()) } else { CallError::Io(error) }
    }
}

/// Asks one thing, and waits for the answer.
///
/// # Errors
/// [`CallError`].
pub fn call(run_dir: &RunDir, request: &Request, within: Duration) -> Result<Answer, CallError> {
    let mut connection = Connection::open(run_dir)?;
    connection.ask(request)?;
    let answer = connection.answer(within)?;
    answer.ok_or_else(|| CallError::Io(io::ErrorKind::TimedOut.into()))
}

fn is_gone(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

/// Sends one line.
pub(crate) fn write_line<T: Serialize>(
    stream: &BlockingStream,
    value: &T,
    deadline: Tick,
) -> io::Result<()> {
    let mut line = serde_json::to_vec(value).map_err(io::Error::from)?;
    line.push(b'\n');
    stream.send_vectored(&[IoSlice::new(&line)], deadline)
}

/// The next request; nothing at the end of the stream. What came behind it stays in `buffer`.
pub(crate) fn read_request(
    stream: &BlockingStream,
    buffer: &mut Vec<u8>,
    deadline: Tick,
) -> io::Result<Option<Vec<u8>>> {
    read_line(stream, (buffer, REQUEST_BYTES_MAX), deadline)
}

/// The next line of at most `max` bytes.
fn read_line(
    stream: &BlockingStream,
    (buffer, max): (&mut Vec<u8>, usize),
    deadline: Tick,
) -> io::Result<Option<Vec<u8>>> {
    let mut searched = 0;
    loop {
        if let Some(at) = buffer[searched..].iter().position(|byte| *byte == b'\n') {
            let rest = buffer.split_off(searched + at + 1);
            let mut line = std::mem::replace(buffer, rest);
            line.pop();
            return Ok(Some(line));
        }
        searched = buffer.len();
        if searched > max {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a line that is too long"));
        }
        let mut piece = [0; 16 << 10];
        match stream.recv(&mut piece, deadline)? {
            0 => return Ok(None),
            got => buffer.extend_from_slice(&piece[..got]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{MountRequest, Request};

    #[test]
    fn a_token_is_not_shown() {
        let mount = MountRequest {
            cluster: "a:1".to_owned(),
            token: "secret".to_owned(),
            mountpoint: "/mnt".into(),
            options: String::new(),
        };
        let request = Request::Mount(mount);
        assert!(!format!("{request:?}").contains("secret"));
        let json = serde_json::to_string(&request).unwrap();
        assert!(json.starts_with(r#"{"mount":{"cluster":"a:1","#), "{json}");
        assert!(serde_json::from_str::<Request>(r#""ping""#).is_ok());
        assert!(serde_json::from_str::<Request>(r#"{"mount":{}}"#).is_err());
    }
}
