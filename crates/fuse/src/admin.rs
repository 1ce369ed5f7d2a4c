//! Requests to the daemon over its socket: a request is one line of JSON, and so is its answer.

use std::io::{self, IoSlice};
use std::path::PathBuf;
use std::time::Duration;

use millpond_env::{BlockingStream, RealClock};
use millpond_types::Tick;
use serde::{Deserialize, Serialize};

use crate::run_dir::RunDir;

/// Longest request in bytes: paths and options.
const REQUEST_BYTES_MAX: usize = 1 << 20;
/// Longest answer in bytes: the numbers of some thousand mounts.
const ANSWER_BYTES_MAX: usize = 256 << 20;
/// Time to connect; a live daemon accepts at once.
const CONNECT: Duration = Duration::from_secs(5);

/// The daemon's first message: a client that does not receive it may ask another daemon.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Greeting {
    /// Process id of the daemon.
    pub pid: u32,
    /// Its version.
    pub version: String,
}

/// A request to the daemon.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// Checks that the daemon answers.
    Ping,
    /// Mounts, and answers when requests are served.
    Mount(MountRequest),
    /// Ends a mount.
    Unmount {
        /// Its path, as in [`Listed`].
        mountpoint: PathBuf,
        /// Takes it out of the tree at once, and ends it when its last file is closed.
        lazy: bool,
    },
    /// Lists the mounts.
    List,
    /// Asks for the daemon's status.
    Status,
    /// Asks for the metrics of all mounts.
    Metrics,
    /// Replaces the daemon by another process.
    Upgrade {
        /// The program of the new process.
        program: PathBuf,
    },
}

/// A mount to be made.
#[derive(Clone, Serialize, Deserialize)]
pub struct MountRequest {
    /// Addresses of some nodes.
    pub cluster: String,
    /// The credential; may be empty.
    pub token: String,
    /// The path of the mount.
    pub mountpoint: PathBuf,
    /// Options in the syntax of `-o`.
    pub options: String,
}

impl std::fmt::Debug for MountRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The token is left out.
        f.debug_struct("MountRequest")
            .field("cluster", &self.cluster)
            .field("mountpoint", &self.mountpoint)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

/// The daemon's answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// Success.
    Ok,
    /// Failure: one line that names the fix.
    Error(String),
    /// This daemon has no mount there.
    NotMine,
    /// The mounts.
    Mounts(Vec<Listed>),
    /// The daemon's status.
    Status(DaemonStatus),
    /// The numbers of all mounts in the Prometheus text format.
    Metrics(String),
    /// Another process serves now.
    Upgraded {
        /// Its process id.
        pid: u32,
        /// Milliseconds during which no request was answered.
        pause_ms: u64,
    },
}

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed {
    /// The path of the mount.
    pub mountpoint: PathBuf,
    /// Its cluster: addresses of some nodes.
    pub cluster: String,
    /// The name of its mode.
    pub mode: String,
    /// Whether it is read-only.
    pub read_only: bool,
    /// Time of the mount, in milliseconds since 1970.
    pub since_unix_ms: u64,
    /// Number of threads that serve it.
    pub threads: usize,
    /// Memory budget in bytes; 0 if an earlier version mounted it.
    #[serde(default)]
    pub memory: u64,
    /// Limit of bytes per second read and written together; 0 is no limit.
    #[serde(default)]
    pub bandwidth: u64,
    /// Limit of bytes per second read; 0 is no limit.
    #[serde(default)]
    pub read_bandwidth: u64,
    /// Limit of bytes per second written; 0 is no limit.
    #[serde(default)]
    pub write_bandwidth: u64,
    /// Its state.
    #[serde(default)]
    pub state: MountState,
    /// Process id of the daemon.
    #[serde(default)]
    pub pid: u32,
}

/// The state of a mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MountState {
    /// Being mounted.
    #[default]
    Mounting,
    /// Serving requests.
    Serving,
    /// Taken over from an earlier process; requests wait.
    Resuming,
    /// Handed to the next process; requests wait.
    Parked,
    /// Out of the tree; some of its files are still open.
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

/// The status of the daemon.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DaemonStatus {
    /// Its process id.
    pub pid: u32,
    /// Process id of its holder.
    pub holder_pid: u32,
    /// Its version.
    pub version: String,
    /// Start time, in milliseconds since 1970.
    pub since_unix_ms: u64,
    /// Number of its mounts.
    pub mounts: usize,
    /// Number of mounts taken over from an earlier process.
    pub taken_over: usize,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// No daemon listens: none runs for this run directory, or it is about to end.
    #[error("no mount daemon runs in {}: it has no mounts", .0.display())]
    Absent(PathBuf),
    /// The socket belongs to another user.
    #[error("{} belongs to another user: use --run-dir, or run as that user or root", .0.display())]
    Forbidden(PathBuf),
    /// The daemon ended after the request was sent.
    #[error(
        "the mount daemon ended before it answered: see {}, then check `millpond mounts` and try \
         again",
        .0.display()
    )]
    Lost(PathBuf),
    /// Any other error.
    #[error("cannot ask the mount daemon: {0}")]
    Io(#[from] io::Error),
}

/// A connection to a daemon, after its greeting.
#[derive(Debug)]
pub struct Connection {
    stream: BlockingStream,
    buffer: Vec<u8>,
    run_dir: RunDir,
    /// The daemon's greeting.
    pub greeting: Greeting,
}

impl Connection {
    /// Connects to the daemon of a run directory.
    ///
    /// # Errors
    /// [`CallError`]; no request was sent.
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

    /// Waits for the answer; `None` when `within` passes first.
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

/// Sends one request and waits for the answer.
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

/// Reads the next request; `None` at the end of the stream. Bytes after it stay in `buffer`.
pub(crate) fn read_request(
    stream: &BlockingStream,
    buffer: &mut Vec<u8>,
    deadline: Tick,
) -> io::Result<Option<Vec<u8>>> {
    read_line(stream, (buffer, REQUEST_BYTES_MAX), deadline)
}

/// Reads the next line of at most `max` bytes.
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
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the line is too long"));
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
