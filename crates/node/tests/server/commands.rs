//! The command line against a real server.

use std::io::Write as _;
use std::process::{Command, Output, Stdio};

use super::harness::{MILLPOND, TestServer};
use super::wire::bytes;

/// Runs `millpond kv` with `input`; exit code and standard output.
fn kv(server: &TestServer, args: &[&str], input: &[u8]) -> (i32, Vec<u8>) {
    let mut child = Command::new(MILLPOND)
        .args(["kv", "--address", &server.clients.to_string()])
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let _ = child.stdin.take().unwrap().write_all(input);
    let output = child.wait_with_output().unwrap();
    (output.status.code().unwrap(), output.stdout)
}

fn text(output: (i32, Vec<u8>)) -> String {
    assert_eq!(output.0, 0);
    String::from_utf8(output.1).unwrap()
}

fn millpond(args: &[&str]) -> Output {
    Command::new(MILLPOND).args(args).output().unwrap()
}

#[test]
fn keys_from_the_shell() {
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start(folder.path(), &[]);
    assert_eq!(kv(&server, &["get", "greeting"], b"").0, 3, "no namespace yet");
    text(kv(&server, &["put", "greeting", "hello"], b""));
    assert_eq!(text(kv(&server, &["get", "greeting"], b"")), "hello");
    text(kv(&server, &["put", "greeting", "other"], b""));
    assert_eq!(text(kv(&server, &["get", "greeting"], b"")), "hello", "the first value wins");
    let large = bytes(1, 3_000_000);
    text(kv(&server, &["put", "hex:00ff"], &large));
    assert_eq!(kv(&server, &["get", "hex:00ff"], b""), (0, large));
    let listed = text(kv(&server, &["ls"], b""));
    assert!(listed.contains("5  greeting"), "{listed}");
    assert!(listed.contains("3000000  hex:00ff"), "{listed}");
    let json = text(kv(&server, &["ls", "greet", "--json"], b""));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["key"], &json["bytes"]), (&"greeting".into(), &5.into()));
    assert_eq!(
        text(kv(&server, &["match", "greeting", "absent"], b"")),
        "1 of 2 matched, 0 leased\n"
    );
    for verb in ["touch", "pin", "unpin"] {
        text(kv(&server, &[verb, "greeting"], b""));
        assert_eq!(kv(&server, &[verb, "absent"], b"").0, 3);
    }
    assert!(text(kv(&server, &["stat"], b"")).contains("keys"));
    assert!(text(kv(&server, &["stat", "--server"], b"")).contains("pool_bytes"));
    text(kv(&server, &["rm", "greeting"], b""));
    assert_eq!(kv(&server, &["get", "greeting"], b"").0, 3);

    text(kv(
        &server,
        &["ns", "create", "demo", "--quota", "1GiB", "--ttl", "1h", "--ack", "disk"],
        b"",
    ));
    assert_eq!(kv(&server, &["ns", "create", "demo"], b"").0, 1, "other options");
    let shown: serde_json::Value =
        serde_json::from_str(&text(kv(&server, &["ns", "show", "demo"], b""))).unwrap();
    assert_eq!((&shown["ack"], &shown["ttl_seconds"]), (&"disk".into(), &3600.into()));
    assert!(text(kv(&server, &["ns", "ls"], b"")).contains("demo"));
    text(kv(&server, &["ns", "drop", "demo"], b""));
    assert_eq!(kv(&server, &["ns", "show", "demo"], b"").0, 3);
    server.stop();
}

#[test]
fn disks_are_inspected_while_no_server_uses_them() {
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start(folder.path(), &[]);
    text(kv(&server, &["put", "k"], &bytes(1, 100_000)));
    let data = folder.path().join("data").display().to_string();
    let busy = millpond(&["engine", "inspect", &data]);
    assert_eq!(busy.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&busy.stderr).contains("in use"), "{busy:?}");
    server.stop();
    let sound = millpond(&["engine", "check", &data, "--json"]);
    assert_eq!(sound.status.code(), Some(0), "{sound:?}");
    let facts: serde_json::Value = serde_json::from_slice(&sound.stdout).unwrap();
    // The value and the table of namespaces.
    assert_eq!(facts["chunks"], 2);
    assert!(
        String::from_utf8_lossy(&millpond(&["engine", "inspect", &data]).stdout)
            .contains("cluster")
    );
}

#[test]
fn the_other_commands_answer() {
    let shown = millpond(&["config", "show", "--memory", "1GiB", "--data", "/a:2GiB"]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("memory = \"1GiB\""), "{shown}");
    assert!(shown.contains("/a:2GiB"), "{shown}");
    let script = millpond(&["completion", "bash"]);
    assert!(String::from_utf8_lossy(&script.stdout).contains("millpond"));
    let doctor = millpond(&["doctor"]);
    assert!(String::from_utf8_lossy(&doctor.stdout).contains("io_uring"));
    assert_eq!(millpond(&["nonsense"]).status.code(), Some(2));
    assert_eq!(millpond(&["--version"]).status.code(), Some(0));
}
