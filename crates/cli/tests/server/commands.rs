//! The command line against a real server.

use std::io::Write as _;
use std::process::{Command, Output, Stdio};

use millpond_types::NamespaceOptions;
use millpond_types::wire::ItemStatus;

use super::harness::{MILLPOND, TestServer, until};
use super::wire::{Wire, bytes, key};

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
    assert_eq!(kv(&server, &["put", "greeting", "other"], b"").0, 1, "the key has a value");
    text(kv(&server, &["put", "--if-absent", "greeting", "other"], b""));
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
        serde_json::from_str(&text(kv(&server, &["--json", "ns", "show", "demo"], b""))).unwrap();
    assert_eq!((&shown["ack"], &shown["ttl_seconds"]), (&"disk".into(), &3600.into()));
    assert!(text(kv(&server, &["ns", "ls"], b"")).contains("demo"));
    text(kv(&server, &["ns", "drop", "demo"], b""));
    assert_eq!(kv(&server, &["ns", "show", "demo"], b"").0, 3);
    server.stop();
}

#[test]
fn a_benchmark_drops_only_what_a_benchmark_made() {
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start(folder.path(), &[]);
    let bench = |more: &[&str]| {
        let address = server.clients.to_string();
        let few = ["--keys", "4", "--size", "4KiB", "--ops", "8", "--warmup", "0s"];
        let all = [&["bench", "kv", "--address", &address][..], &few, more].concat();
        millpond(&all)
    };
    text(kv(&server, &["--namespace", "prod", "put", "key", "value"], b""));
    let refused = bench(&["--namespace", "prod"]);
    assert_eq!(refused.status.code(), Some(1));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("--drop-existing"), "{said}");
    assert!(bench(&["--namespace", "prod", "--keep"]).status.success());
    assert_eq!(text(kv(&server, &["--namespace", "prod", "get", "key"], b"")), "value");
    // Its own: made and kept, then dropped by the next one.
    for more in [&["--keep"][..], &[], &["--namespace", "prod", "--drop-existing"]] {
        let done = bench(more);
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }
    assert_eq!(kv(&server, &["ns", "ls", "--json"], b""), (0, Vec::new()));
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
    // The value, and the records of the replicas that are on this disk.
    assert!(facts["chunks"].as_u64().unwrap() > 1, "{facts}");
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
}

/// Standard output of a command that succeeds.
fn said(args: &[&str]) -> String {
    let output = millpond(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_version_tells_the_build() {
    // Of a debug build that it is one, of others the commit, if there is a repository.
    let version = said(&["--version"]);
    assert!(version.starts_with(concat!("millpond ", env!("CARGO_PKG_VERSION"))), "{version}");
    assert!(!cfg!(debug_assertions) || version.ends_with(" (debug)\n"), "{version}");
}

#[test]
fn every_command_has_a_manual_page() {
    assert!(said(&["man"]).contains(".TH millpond 1"));
    assert!(said(&["man", "kv", "put"]).contains(".TH millpond-kv-put 1 "));
    assert_eq!(millpond(&["man", "nonsense"]).status.code(), Some(1));
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("share/man1");
    said(&["man", "--out", out.to_str().unwrap()]);
    assert!(std::fs::read_dir(&out).unwrap().count() > 40);
    assert!(out.join("millpond-admin-status.1").exists());
}

#[test]
fn what_a_start_would_choose_is_shown() {
    let shown = said(&["config", "show", "--data", "/nowhere/at/all"]);
    for line in ["size = ", "memory = ", "cores = ", "socket = \"/nowhere/at/all/millpond.sock\""] {
        assert!(shown.contains(line), "{line} {shown}");
    }
}

#[test]
fn a_start_and_a_stop_in_order_are_a_screen_of_lines_without_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start(folder.path(), &["--s3", ""]);
    let address = server.clients.to_string();
    let events = said(&["admin", "--server", &address, "events", "-n", "1000"]);
    assert!((1..24).contains(&events.lines().count()), "{events}");
    server.signal("TERM");
    let until_stopped = || server.log().contains("stopped\n");
    until("it stops", until_stopped);
    let log = server.log();
    assert!(log.lines().count() <= 24 && !log.contains(" WARN "), "{log}");
    // What the store of the managers says of its files.
    assert!(!log.contains("fjall") && !log.contains("lsm_tree"), "{log}");
}

#[test]
fn json_is_printed_where_no_file_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start(folder.path(), &[]);
    let address = server.clients.to_string();
    let bench = ["bench", "kv", "--address", &address, "--quiet", "--seconds", "0.2"];
    let bench = [&bench[..], &["--working-set", "1MiB", "--warmup", "0s", "--json"]].concat();
    let json: serde_json::Value = serde_json::from_str(&said(&bench)).unwrap();
    assert_eq!(json["bench"], "kv");
    let file = folder.path().join("run.json");
    let to_file = [&bench[..], &[file.to_str().unwrap()]].concat();
    assert!(said(&to_file).contains("values wrong"));
    assert!(std::fs::read_to_string(&file).unwrap().contains("\"bench\": \"kv\""));
}

#[test]
fn advice_is_about_what_was_asked() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = folder.path().join("tokens");
    std::fs::write(&tokens, "a-token-of-the-test\n").unwrap();
    let server = TestServer::start(folder.path(), &["--token-file", tokens.to_str().unwrap()]);
    // A folder in use: to give the server another one is no help here.
    let data = folder.path().join("data");
    let inspect = millpond(&["engine", "inspect", data.to_str().unwrap()]);
    let error = String::from_utf8_lossy(&inspect.stderr);
    assert_eq!(inspect.status.code(), Some(1));
    assert!(error.contains("stop the server first") && !error.contains("--data"), "{error}");

    let doctor = |address: &str| {
        let looked = millpond(&["doctor", "--cluster", "--json", "--server", address]);
        let found: serde_json::Value = serde_json::from_slice(&looked.stdout).unwrap();
        found.as_array().unwrap().iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    // Without a token no manager is missing, and no port is closed.
    let found = doctor(&server.clients.to_string());
    let token = found.iter().find(|finding| finding.contains("\"what\":\"token\"")).unwrap();
    assert!(token.contains("--token") && token.contains("\"fail\""), "{token}");
    let wrong = |it: &&String| it.contains("start a manager") || it.contains("open the port");
    assert_eq!(found.iter().find(wrong), None);
    // One cause is told once.
    let found = doctor("127.0.0.1:1");
    for finding in found.iter().filter(|finding| finding.contains("os error")) {
        assert_eq!(finding.matches("os error").count(), 1, "{finding}");
    }
    server.stop();
}

#[test]
fn one_variable_says_where_the_server_is() {
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start(folder.path(), &[]);
    let address = server.clients.to_string();
    let put = |name: &str, key: &str| {
        let mut command = Command::new(MILLPOND);
        command.env_remove("MILLPOND_ADDRESS").env_remove("MILLPOND_SERVER").env(name, &address);
        command.args(["kv", "put", key, "value"]).output().unwrap()
    };
    let new = put("MILLPOND_ADDRESS", "one");
    assert!(new.status.success() && new.stderr.is_empty(), "{new:?}");
    let old = put("MILLPOND_SERVER", "two");
    assert!(old.status.success(), "{old:?}");
    let said = String::from_utf8_lossy(&old.stderr).into_owned();
    assert_eq!(said.matches("MILLPOND_ADDRESS").count(), 1, "{said}");
    server.stop();
}

/// One mode: a server without settings has all three doors, and what it said READY for is there at once.
#[test]
fn ready_means_ready_for_every_door_and_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    for round in 0..3 {
        let server = TestServer::start(folder.path(), &["--s3", "127.0.0.1:0"]);
        assert!(server.banner.contains("s3       http://"), "{}", server.banner);
        if round == 0 {
            text(kv(&server, &["put", "first", "value"], b""));
        }
        let listed = text(kv(&server, &["ls"], b""));
        assert!(listed.contains("first"), "round {round}: {listed}");
        let address = server.clients.to_string();
        let status = millpond(&["admin", "status", "--server", &address]);
        let shown = String::from_utf8_lossy(&status.stdout).into_owned();
        assert!(shown.contains("0 not serving"), "{shown}");
        if round == 1 { server.kill() } else { server.stop() }
    }
}

/// What was said READY for is there at once: a put that nobody sends again is taken, also where several servers
/// start at a time and the routing comes late.
#[test]
fn the_first_put_after_ready_is_taken() {
    let first_put = || {
        let folder = tempfile::tempdir().unwrap();
        let server = TestServer::start(folder.path(), &["--s3", "127.0.0.1:0"]);
        let mut wire = Wire::connect(&server);
        let ns = wire.open("model", NamespaceOptions::default()).id;
        let status = wire.put(ns, &[(key("first"), b"value")])[0];
        assert_eq!(status, ItemStatus::Ok, "not ready, although it said so");
        server.stop();
    };
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| (0..2).for_each(|_| first_put()));
        }
    });
}

/// A folder is of one cluster: a node that joined another one does not found its own.
#[test]
fn a_node_of_another_cluster_does_not_found_its_own() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let first = TestServer::start(one.path(), &[]);
    let join = first.clients.to_string();
    TestServer::start(two.path(), &["--join", &join]).stop();
    let mut alone = Command::new(MILLPOND);
    alone.args(super::harness::flags(two.path()));
    let said = super::harness::fails(&mut alone);
    assert!(said.contains("--join HOST:PORT"), "{said}");
    assert!(!two.path().join("data/meta").exists(), "nothing was founded");
    TestServer::start(two.path(), &["--join", &join]).stop();
    let mut wrong = Command::new(MILLPOND);
    wrong.args(super::harness::flags(two.path())).args(["--join", &join, "--replicas", "2"]);
    assert!(super::harness::fails(&mut wrong).contains("cluster.replicas"));
    first.stop();
}

/// Bytes of its file system that a file, or all in a folder, takes.
fn taken(path: &std::path::Path) -> u64 {
    let mut all = std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(path).unwrap()) * 512;
    if path.is_dir() {
        let inside = std::fs::read_dir(path).unwrap();
        all += inside.map(|entry| taken(&entry.unwrap().path())).sum::<u64>();
    }
    all
}

/// Memory and disk are taken as they are used; what this machine does not have is refused with the numbers.
#[test]
fn a_server_takes_what_it_uses_and_refuses_what_there_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let started = std::time::Instant::now();
    let server = TestServer::start(folder.path(), &["--memory", "1GiB", "--size", "6GiB"]);
    // A debug build on a busy machine; docs/benchmarks.md has what a release takes.
    assert!(started.elapsed().as_secs() < 30, "{:?}", started.elapsed());
    let resident = server.resident_bytes();
    assert!(resident < 250 << 20, "idle, and {resident} bytes are resident");
    let data = folder.path().join("data");
    let idle = taken(&data);
    assert!(idle < 200 << 20, "idle, and {idle} bytes of disk are taken");
    let large = bytes(1, 40_000_000);
    text(kv(&server, &["put", "large"], &large));
    super::harness::until("it is on the disk", || taken(&data) >= idle + (32 << 20));
    let used = taken(&data);
    // A segment for the value, and as many as the log and a checkpoint may come to need.
    assert!(used < idle + (300 << 20), "{idle}, then {used}");
    server.stop();
    let server = TestServer::start(folder.path(), &["--memory", "1GiB"]);
    assert_eq!(kv(&server, &["get", "large"], b""), (0, large));
    server.stop();

    let mut greedy = Command::new(MILLPOND);
    greedy.args(super::harness::flags(folder.path())).args(["--memory", "900TiB"]);
    let said = super::harness::fails(&mut greedy);
    for word in ["server.memory", "900 TiB", "--memory"] {
        assert!(said.contains(word), "{word} is missing in: {said}");
    }
}
