//! A server where `io_uring` is forbidden by a real seccomp filter, as container engines do.

#![allow(unsafe_code, reason = "a seccomp filter is installed through prctl")]

use std::os::unix::process::CommandExt as _;
use std::process::Command;

use millpond_types::NamespaceOptions;

use super::harness::{MILLPOND, TestServer, fails, flags};
use super::wire::{Wire, bytes, key};

/// Arguments for the child that forbids `io_uring` to itself and becomes a server.
const CHILD: &str = "MILLPOND_TEST_FORBIDDEN_ARGS";

/// Refuses `io_uring_setup` with `EPERM` to this thread and whatever it executes.
fn forbid_io_uring() {
    fn statement(code: u32, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
        libc::sock_filter { code: u16::try_from(code).unwrap(), jt, jf, k }
    }
    let number = u32::try_from(libc::SYS_io_uring_setup).unwrap();
    let refuse = libc::SECCOMP_RET_ERRNO | libc::EPERM.cast_unsigned();
    let mut filter = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, number, 0, 1),
        statement(libc::BPF_RET | libc::BPF_K, refuse, 0, 0),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    let program = libc::sock_fprog { len: 4, filter: filter.as_mut_ptr() };
    // SAFETY: plain numbers, then a program of four statements that lives through the call.
    let done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
    };
    assert!(done, "{}", std::io::Error::last_os_error());
}

/// Becomes the server, in a child of the test below.
#[test]
fn child() {
    let Ok(args) = std::env::var(CHILD) else { return };
    forbid_io_uring();
    let error = Command::new(MILLPOND).args(args.split('\n')).exec();
    panic!("{error}");
}

fn forbidden(flags: &[String]) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "forbidden::child", "--nocapture"]).env(CHILD, flags.join("\n"));
    command
}

#[test]
fn io_uring_forbidden_means_threads() {
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::spawn(forbidden(&flags(folder.path())), folder.path());
    assert!(server.banner.contains("threads"), "{}", server.banner);
    assert!(server.banner.contains("io_uring is not used"), "{}", server.banner);
    let mut wire = Wire::connect(&server);
    let ns = wire.open_durable("model");
    let memory = wire.open("memory", NamespaceOptions::default()).id;
    let value = bytes(1, 300_000);
    for ns in [ns, memory] {
        wire.put(ns, &[(key("k"), &value)]);
        assert_eq!(wire.get(ns, &[key("k")]), [Some(value.clone())]);
    }
    server.kill();
    let server = TestServer::spawn(forbidden(&flags(folder.path())), folder.path());
    assert_eq!(Wire::connect(&server).get(ns, &[key("k")]), [Some(value)]);
    server.stop();
}

#[test]
fn io_uring_demanded_and_forbidden_names_the_fix() {
    let folder = tempfile::tempdir().unwrap();
    let mut all = flags(folder.path());
    all.extend(["--io".to_owned(), "uring".to_owned()]);
    let text = fails(&mut forbidden(&all));
    for word in ["io_uring", "threads", "auto"] {
        assert!(text.contains(word), "'{word}' is missing in: {text}");
    }
}
