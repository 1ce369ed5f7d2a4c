//! Mounting without root: `fusermount3`, which is set-user-id, mounts for us and sends the
//! descriptor over a socket that `_FUSE_COMMFD` names.

use std::io::Read;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use super::{MountError, MountOptions, SUBTYPE};
use crate::device::Device;
use crate::scm::recv_with_fds;

const HELPER: &str = "fusermount3";

/// Whether the helper is installed.
pub(super) fn is_there() -> bool {
    Command::new(HELPER)
        .arg("--version")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

pub(super) fn mount(target: &Path, options: &MountOptions) -> Result<Device, MountError> {
    if options.has_zero() {
        return Err(MountError::Option("fsname"));
    }
    let (ours, theirs) = UnixStream::pair().map_err(os("socket for fusermount3"))?;
    let socket = theirs.as_raw_fd();
    let mut command = Command::new(HELPER);
    command.arg("-o").arg(list(options)).arg("--").arg(target);
    command.env("_FUSE_COMMFD", socket.to_string());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    // SAFETY: between fork and exec only `fcntl` is called, which is async-signal-safe.
    unsafe { command.pre_exec(move || keep_open(socket)) };
    let mut child = command.spawn().map_err(os("start fusermount3"))?;
    drop(theirs);
    let received = recv_with_fds(&ours, &mut [0; 16], 1);
    let mut said = String::new();
    if let Some(stderr) = &mut child.stderr {
        stderr.read_to_string(&mut said).map_err(os("fusermount3"))?;
    }
    child.wait().map_err(os("fusermount3"))?;
    match received {
        Ok((_, fds)) => match fds.into_iter().next() {
            Some(fd) => Ok(Device::from_fd(fd)),
            None => Err(refusal(&said)),
        },
        Err(error) => Err(os("receive the device of fusermount3")(error)),
    }
}

pub(super) fn unmount(target: &Path, lazy: bool) -> Result<(), MountError> {
    let mut command = Command::new(HELPER);
    command.arg("-u").args(lazy.then_some("-z")).arg("--").arg(target);
    let output = command.output().map_err(os("start fusermount3"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("busy") {
        return Err(MountError::Busy(target.to_owned()));
    }
    Err(refusal(&said))
}

/// Maps the helper's message to an error.
fn refusal(said: &str) -> MountError {
    if said.contains("user_allow_other") {
        return MountError::AllowOther;
    }
    let line = said.lines().next().unwrap_or("no reason given");
    MountError::Helper(line.trim_start_matches("fusermount3: ").to_owned())
}

fn os(what: &'static str) -> impl Fn(std::io::Error) -> MountError {
    move |source| MountError::Os { what, source }
}

/// Keeps a descriptor open across the exec.
fn keep_open(fd: RawFd) -> std::io::Result<()> {
    // SAFETY: only changes a flag of the descriptor.
    let rc = unsafe { libc::fcntl(fd, libc::F_SETFD, 0) };
    if rc < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}

/// The argument of `-o`. A comma would end the name of the source, so it is escaped.
fn list(options: &MountOptions) -> String {
    let name = options.fsname.replace('\\', "\\\\").replace(',', "\\,");
    let word = |set: bool, yes, no| if set { yes } else { no };
    format!(
        "{},{},{},{},{},fsname={name},subtype={SUBTYPE}{}",
        word(options.read_only, "ro", "rw"),
        word(options.nosuid, "nosuid", "suid"),
        word(options.nodev, "nodev", "dev"),
        word(options.noexec, "noexec", "exec"),
        word(options.noatime, "noatime", "atime"),
        options.own()
    )
}

#[cfg(test)]
mod tests {
    use super::{MountError, MountOptions, list, refusal};

    #[test]
    fn options_become_the_helpers() {
        let options = MountOptions {
            fsname: "a,b\\c".to_owned(),
            allow_other: true,
            noexec: true,
            ..MountOptions::default()
        };
        let expected =
            "rw,nosuid,nodev,noexec,atime,fsname=a\\,b\\\\c,subtype=millpond,allow_other";
        assert_eq!(list(&options), expected);
    }

    #[test]
    fn refusals_name_the_fix() {
        let said = "fusermount3: option allow_other only allowed if 'user_allow_other' is set in /etc/fuse.conf\n";
        assert!(matches!(refusal(said), MountError::AllowOther));
        assert_eq!(refusal("fusermount3: no\n").to_string(), "fusermount3: no");
    }
}
