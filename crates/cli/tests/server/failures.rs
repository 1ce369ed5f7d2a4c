//! Every way to go wrong that a user will meet, and that the answer names the fix.

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use millpond_types::limits::CHUNK_BYTES_MAX;
use millpond_types::wire::{
    ItemStatus, NamespaceOpen, PutRequest, Status, Verb, WireError, Writer,
};
use millpond_types::{Ack, Crc32c, LayoutDigest, NamespaceOptions};

use super::harness::{MILLPOND, TestServer, fails, flags};
use super::wire::{Wire, bytes, key};

fn server_fails(folder: &Path, more: &[&str]) -> String {
    fails(Command::new(MILLPOND).args(flags(folder)).args(more))
}

fn assert_says(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "'{word}' is missing in: {text}");
    }
}

#[test]
fn a_data_file_larger_than_the_free_space() {
    let folder = tempfile::tempdir().unwrap();
    let text = server_fails(folder.path(), &["--size", "4000TiB"]);
    assert_says(&text, &["data", "free", "--size", "--data"]);
}

#[test]
fn a_disk_that_is_too_small() {
    let folder = tempfile::tempdir().unwrap();
    let data = format!("{}:256MiB", folder.path().join("second").display());
    let text = server_fails(folder.path(), &["--data", &data]);
    assert_says(&text, &["--data", "second", "256 MiB", "at least 1 GiB"]);
}

#[test]
fn a_full_disk_refuses_and_recovers() {
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start(folder.path(), &["--size", "1GiB"]);
    let mut wire = Wire::connect(&server);
    let options = NamespaceOptions { evict: false, ack: Ack::Disk, ..NamespaceOptions::default() };
    let ns = wire.open("kept", options).id;
    let value = bytes(7, 8 << 20);
    let mut stored = Vec::new();
    let refused = (0..200).map(|i| key(format!("{i}"))).find_map(|name| {
        let status = wire.put(ns, &[(name, &value)])[0];
        if status == ItemStatus::Ok {
            stored.push(name);
            return None;
        }
        Some(status)
    });
    assert_eq!(refused, Some(ItemStatus::NoSpace));
    assert!(stored.len() > 20, "{}", stored.len());
    assert_eq!(wire.get(ns, &stored[..1]), [Some(value.clone())]);
    assert_eq!(server.page("/readyz").0, 200, "reads still work");
    let half = stored.len() / 2;
    wire.keys(Verb::Delete, ns, &stored[..half]);
    super::harness::until("there is room again", || {
        wire.put(ns, &[(key("after"), &value)])[0] != ItemStatus::NoSpace
    });
    assert_eq!(wire.get(ns, &[stored[half]]), [Some(value)]);
    server.stop();
}

#[test]
fn a_folder_that_is_read_only() {
    let folder = tempfile::tempdir().unwrap();
    let locked = folder.path().join("data");
    std::fs::create_dir(&locked).unwrap();
    let mut command = Command::new(MILLPOND);
    command.args(flags(folder.path()));
    let mode = std::os::unix::fs::PermissionsExt::from_mode;
    std::fs::set_permissions(&locked, mode(0o555)).unwrap();
    if std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").unwrap()) == 0 {
        // Permissions do not stop root: run as nobody.
        std::fs::set_permissions(folder.path(), mode(0o755)).unwrap();
        command.uid(65_534).gid(65_534);
    }
    let text = fails(&mut command);
    assert_says(&text, &["data folder", "Permission denied", "writable", "--data"]);
}

#[test]
fn a_data_path_that_is_a_file() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("data"), b"").unwrap();
    assert_says(&server_fails(folder.path(), &[]), &["data folder", "it is a file", "--data"]);
}

#[test]
fn a_folder_of_another_cluster() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    TestServer::start(one.path(), &[]).stop();
    TestServer::start(two.path(), &[]).stop();
    let other = two.path().join("data").display().to_string();
    let text = server_fails(one.path(), &["--data", &other]);
    assert_says(&text, &["belongs to cluster", "cluster_id"]);

    let config = one.path().join("config.toml");
    let id = "12345678-1234-4234-8234-123456789abc";
    std::fs::write(&config, format!("[server]\ncluster_id = \"{id}\"\n")).unwrap();
    let text = server_fails(one.path(), &["--config", &config.display().to_string()]);
    assert_says(&text, &["belongs to cluster", id, "cluster_id"]);
}

#[test]
fn a_folder_of_a_newer_format() {
    let folder = tempfile::tempdir().unwrap();
    TestServer::start(folder.path(), &[]).stop();
    let path = folder.path().join("data/millpond.data");
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    for at in [0, 4096] {
        // Version at 8, checksum of the page with itself as zero at 12.
        let mut page = vec![0; 4096];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut page, at).unwrap();
        page[8..12].copy_from_slice(&99u32.to_le_bytes());
        page[12..16].fill(0);
        let crc = Crc32c::of(&page).0;
        page[12..16].copy_from_slice(&crc.to_le_bytes());
        std::os::unix::fs::FileExt::write_all_at(&file, &page, at).unwrap();
    }
    assert_says(&server_fails(folder.path(), &[]), &["format 99", "newer", "upgrade"]);
}

#[test]
fn a_file_with_other_data_is_not_formatted() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("data")).unwrap();
    let path = folder.path().join("data/millpond.data");
    std::fs::write(&path, bytes(3, 1 << 20)).unwrap();
    assert_says(&server_fails(folder.path(), &[]), &["not a Millpond disk"]);
    assert_eq!(std::fs::read(path).unwrap(), bytes(3, 1 << 20));
}

#[test]
fn a_second_server_on_the_same_folder() {
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start(folder.path(), &[]);
    let text = server_fails(folder.path(), &["--socket", ""]);
    assert_says(&text, &["in use by another process", "--data"]);
    let text = server_fails(folder.path(), &[]);
    assert_says(&text, &["in use by another process"]);
    Wire::connect(&server);
    assert!(server.socket.exists(), "the second did not take the first one's socket");
}

#[test]
fn a_port_in_use() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let server = TestServer::start(one.path(), &[]);
    let text = server_fails(two.path(), &["--listen", &server.clients.to_string()]);
    assert_says(&text, &["server.listen", "in use", "--listen"]);
    let text = server_fails(two.path(), &["--http", &server.http.to_string()]);
    assert_says(&text, &["server.http", "in use", "--http"]);
}

#[test]
fn an_unknown_key() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("config.toml");
    std::fs::write(&config, "[server]\nlisten_adress = \"127.0.0.1:0\"\n").unwrap();
    let path = config.display().to_string();
    let text = server_fails(folder.path(), &["--config", &path]);
    assert_says(&text, &[&path, "unknown key 'server.listen_adress'", "server.listen"]);
    let text = fails(Command::new(MILLPOND).args(["config", "check", &path]));
    assert_says(&text, &["server.listen_adress"]);
}

#[test]
fn a_public_address_without_credentials() {
    let folder = tempfile::tempdir().unwrap();
    let text = server_fails(folder.path(), &["--listen", "0.0.0.0:0"]);
    assert_says(&text, &["other hosts", "--token-file", "--insecure"]);
}

#[test]
fn a_limit_on_open_files_that_is_too_low() {
    let folder = tempfile::tempdir().unwrap();
    let script = "ulimit -n 200 && exec \"$@\"";
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh", MILLPOND]).args(flags(folder.path()));
    assert_says(&fails(&mut command), &["open files", "200", "ulimit -n"]);
}

#[test]
fn fewer_open_files_than_the_default_asks_for() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new("sh");
    let script = "ulimit -n 1000 && exec \"$@\"";
    command.args(["-c", script, "sh", MILLPOND]).args(flags(folder.path()));
    let server = TestServer::spawn(command, folder.path());
    assert_says(&server.log(), &["open files", "1000", "744 clients", "ulimit -n"]);
    Wire::connect(&server);
    server.stop();
}

#[test]
fn a_folder_too_deep_for_a_socket() {
    let folder = tempfile::tempdir().unwrap();
    let deep = folder.path().join("a-rather-long-name/".repeat(6));
    std::fs::create_dir_all(&deep).unwrap();
    let server = TestServer::start(&deep, &[]);
    assert!(server.socket.as_os_str().len() < 100, "{}", server.socket.display());
    Wire::connect_unix(&server.socket);
    server.stop();
}

#[test]
fn a_wrong_token() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = folder.path().join("tokens");
    std::fs::write(&tokens, "all-powerful\nonly-tests test/*\n").unwrap();
    let server = TestServer::start(folder.path(), &["--token-file", &tokens.display().to_string()]);
    for token in [&b"wrong-token"[..], b"", b"all-powerfuL"] {
        let (mut wire, reply) = Wire::try_hello(&server, token);
        assert_eq!(reply.status, Status::Unauthorized);
        assert_says(&reply.error(), &["token"]);
        assert!(wire.call(Verb::Ping, &[], &[]).is_err(), "the connection is closed");
    }
    assert_eq!(server.metric("millpond_unauthorized_total"), 3);
    assert!(!server.log().contains("wrong-token"), "tokens are not logged");

    let (mut wire, reply) = Wire::try_hello(&server, b"only-tests");
    reply.ok();
    wire.open("test/a", NamespaceOptions::default());
    let open = NamespaceOpen {
        name: "prod".to_owned(),
        create: true,
        options: NamespaceOptions::default(),
    };
    let reply = wire.call(Verb::NamespaceOpen, &open.encode(), &[]).unwrap();
    assert_eq!(reply.status, Status::Unauthorized);
    assert_says(&reply.error(), &["prod", "token file"]);
    let (mut all, reply) = Wire::try_hello(&server, b"all-powerful");
    reply.ok();
    let prod = all.open("prod", NamespaceOptions::default());
    let reply = wire.call(Verb::Get, &super::wire::get_request(prod.id, &[key("k")]), &[]).unwrap();
    assert_eq!(reply.status, Status::NoNamespace, "numbers do not get around names");
}

#[test]
fn a_wrong_layout_digest() {
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start(folder.path(), &[]);
    let mut wire = Wire::connect(&server);
    let with =
        |byte| NamespaceOptions { layout: LayoutDigest([byte; 32]), ..NamespaceOptions::default() };
    wire.open("model", with(1));
    wire.open("model", with(1));
    let open = NamespaceOpen { name: "model".to_owned(), create: true, options: with(2) };
    let reply = wire.call(Verb::NamespaceOpen, &open.encode(), &[]).unwrap();
    assert_eq!(reply.status, Status::LayoutMismatch);
    assert_says(&reply.error(), &["model", &"01".repeat(32), &"02".repeat(32), "ns drop"]);
}

#[test]
fn a_key_that_is_too_long() {
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start(folder.path(), &[]);
    let mut wire = Wire::connect(&server);
    let ns = wire.open("model", NamespaceOptions::default()).id;
    let mut w = Writer::default();
    w.u32(ns.0);
    // Planned by nothing; no arena.
    w.raw(&[0; 16]);
    w.u64(0);
    w.count(1);
    w.u8(129);
    w.raw(&[7; 129]);
    w.u32(1);
    w.u32(Crc32c::of(b"v").0);
    w.u8(0);
    let reply = wire.call(Verb::Put, &w.into_bytes(), b"v").unwrap();
    assert_eq!(reply.status, Status::BadRequest);
    assert_says(&reply.error(), &["129 bytes", "1 to 128"]);
    wire.call(Verb::Ping, &[], &[]).unwrap().ok();
}

#[test]
fn a_value_that_is_too_long() {
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start(folder.path(), &["--memory", "512MiB"]);
    let mut wire = Wire::connect(&server);
    let ns = wire.open("model", NamespaceOptions::default()).id;
    let largest = bytes(1, CHUNK_BYTES_MAX);
    assert_eq!(wire.put(ns, &[(key("largest"), &largest)]), [ItemStatus::Ok]);
    assert!(wire.get(ns, &[key("largest")]) == [Some(largest)]);
    let longer = bytes(1, CHUNK_BYTES_MAX + 1);
    let (meta, payload) = super::wire::put_request(ns, &[(key("longer"), &longer)]);
    assert!(matches!(PutRequest::decode(&meta), Err(WireError::Field(_))));
    let reply = wire.call(Verb::Put, &meta, &payload).unwrap();
    assert_eq!(reply.status, Status::BadRequest);
    assert_says(&reply.error(), &["value length", "64 MiB"]);
    wire.call(Verb::Ping, &[], &[]).unwrap().ok();
}

#[test]
fn more_at_once_than_the_memory_takes() {
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start(folder.path(), &[]);
    let mut wire = Wire::connect(&server);
    let ns = wire.open("model", NamespaceOptions::default()).id;
    let value = bytes(1, 40 << 20);
    let (meta, payload) = super::wire::put_request(ns, &[(key("k"), &value)]);
    let reply = wire.call(Verb::Put, &meta, &payload).unwrap();
    assert_eq!(reply.status, Status::BadRequest);
    assert_says(&reply.error(), &["quarter", "server.memory"]);
}

#[test]
fn a_client_of_another_version() {
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start(folder.path(), &[]);
    let stream = std::net::TcpStream::connect(server.clients).unwrap();
    let mut wire = Wire::over(Box::new(stream));
    let next = u16::from(millpond_types::wire::PROTOCOL_VERSION) + 1;
    let hello = millpond_types::wire::Hello {
        version_min: next,
        version_max: next + 2,
        client: String::new(),
        token: Vec::new(),
    };
    let reply = wire.call(Verb::Hello, &hello.encode(), &[]).unwrap();
    assert_eq!(reply.status, Status::Unsupported);
    assert_says(&reply.error(), &[&format!("{next} to {}", next + 2), "upgrade"]);

    // A header of a later protocol.
    let stream = std::net::TcpStream::connect(server.clients).unwrap();
    let mut wire = Wire::over(Box::new(stream));
    let mut head = super::wire::frame(Verb::Hello, 1, &[], &[]);
    head[4] = millpond_types::wire::PROTOCOL_VERSION + 1;
    wire.socket.write_all(&head).unwrap();
    let reply = wire.receive().unwrap();
    assert_eq!(reply.status, Status::Unsupported);
}

#[test]
fn more_connections_than_allowed() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("config.toml");
    std::fs::write(&config, "[limits]\nconnections = 3\n").unwrap();
    let server = TestServer::start(folder.path(), &["--config", &config.display().to_string()]);
    let kept: Vec<_> = (0..3).map(|_| Wire::connect(&server)).collect();
    let mut fourth = Wire::over(Box::new(std::net::TcpStream::connect(server.clients).unwrap()));
    let reply = fourth.receive().unwrap();
    assert_eq!((reply.status, reply.header.verb), (Status::Busy, Verb::Hello as u16));
    assert_says(&reply.error(), &["limits.connections"]);
    drop(kept);
    super::harness::until("there is a seat", || {
        let stream = std::net::TcpStream::connect(server.clients).unwrap();
        let mut wire = Wire::over(Box::new(stream));
        let reply = wire.call_unchecked(Verb::Hello, &super::wire::hello(b""));
        reply.is_ok_and(|reply| reply.status == Status::Ok)
    });
}
