//! Tokens that come and go while the server runs.

use std::path::Path;

use millpond_client::{Client, ClientOptions};
use millpond_types::cluster::ChainId;
use millpond_types::wire::{
    ChunkBases, ChunkChange, ChunkListRequest, ChunkReadRequest, ChunkStatRequest,
    ChunkUpdateRequest, ChunkWriteRequest, Cut, PlacedChunk, ReadPart, Status, Verb, WritePart,
};
use millpond_types::{Ack, Crc32c, DataId, FileChunk, NamespaceOptions};

use super::harness::{TestServer, until};
use super::wire::{Wire, key};

/// Replaces the token file at once, as an editor or Kubernetes does.
fn replace(path: &Path, text: &str) {
    let next = path.with_extension("next");
    std::fs::write(&next, text).unwrap();
    std::fs::rename(next, path).unwrap();
}

fn admitted(server: &TestServer, token: &str) -> bool {
    let (_, reply) = Wire::try_hello(server, token.as_bytes());
    assert!(matches!(reply.status, Status::Ok | Status::Unauthorized));
    reply.status == Status::Ok
}

/// Whether the connection still serves.
fn serves(wire: &mut Wire) -> bool {
    wire.call(Verb::Ping, &[], &[]).is_ok()
}

#[test]
fn a_changed_file_admits_and_disconnects() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokens");
    replace(&path, "token-first\ntoken-second test*\n");
    let server = TestServer::start(folder.path(), &["--token-file", &path.display().to_string()]);
    let (mut first, _) = Wire::try_hello(&server, b"token-first");
    let (mut second, _) = Wire::try_hello(&server, b"token-second");
    let ns = second.open("test", NamespaceOptions::default()).id;
    second.put(ns, &[(key("k"), b"v")]);
    assert!(serves(&mut first) && !admitted(&server, "token-third"));

    // With a signal.
    replace(&path, "token-second test*\ntoken-third\n");
    server.signal("HUP");
    until("the first token is gone", || !serves(&mut first));
    assert!(!admitted(&server, "token-first") && admitted(&server, "token-third"));
    assert_eq!(second.get(ns, &[key("k")]), [Some(b"v".to_vec())], "others are left alone");
    assert!(server.log().contains("withdrawn"));
    assert!(!server.log().contains("token-first"), "tokens are not logged");

    // Without one; what a token may do has changed.
    replace(&path, "token-second other*\n");
    until("the second token may do something else", || !serves(&mut second));
    assert!(admitted(&server, "token-second") && !admitted(&server, "token-third"));

    // A file that cannot be used changes nothing.
    let (mut second, _) = Wire::try_hello(&server, b"token-second");
    replace(&path, "short\n");
    until("the bad line is named", || server.log().contains("line 1"));
    assert!(serves(&mut second) && admitted(&server, "token-second"));
    std::fs::remove_file(&path).unwrap();
    until("the missing file is named", || server.log().contains("No such file"));
    assert!(serves(&mut second));
    replace(&path, "token-fourth\n");
    until("a good file is used again", || admitted(&server, "token-fourth"));
    until("the second token is gone", || !serves(&mut second));
    server.stop();
}

#[test]
fn a_hang_up_does_not_end_a_server_without_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let server = TestServer::start(folder.path(), &[]);
    let mut wire = Wire::connect(&server);
    server.signal("HUP");
    assert!(serves(&mut wire));
    server.stop();
}

#[test]
fn files_need_a_token_that_allows_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokens");
    replace(&path, "token-kv test*\ntoken-both test* +files\ntoken-all\n");
    let server = TestServer::start(folder.path(), &["--token-file", &path.display().to_string()]);
    let at = PlacedChunk { chain: ChainId(1), chunk: FileChunk { data: DataId(1), index: 0 } };
    let read = ReadPart { at, offset: 0, len: 5, bases: ChunkBases::NONE };
    let write = WritePart { at, offset: 0, len: 5, crc: Crc32c::of(b"bytes") };
    let (ack, tags) = (Ack::Disk, None);
    let update =
        ChunkUpdateRequest { ack, cuts: vec![Cut { at, change: ChunkChange::Remove }], tags: None };
    let list = ChunkListRequest { limit: 9, ..ChunkListRequest::default() };
    let requests = [
        (Verb::ChunkRead, ChunkReadRequest { parts: vec![read] }.encode(), &b""[..]),
        (
            Verb::ChunkWrite,
            ChunkWriteRequest { ack, parts: vec![write], tags, arena: Vec::new() }.encode(),
            b"bytes",
        ),
        (Verb::ChunkUpdate, update.encode(), b""),
        (Verb::ChunkList, list.encode(), b""),
        (Verb::ChunkStat, ChunkStatRequest { chunks: vec![at] }.encode(), b""),
    ];
    for (verb, meta, payload) in requests {
        let answer = |token: &str| {
            let (mut wire, _) = Wire::try_hello(&server, token.as_bytes());
            let reply = wire.call(verb, &meta, payload).unwrap();
            assert!(serves(&mut wire), "{verb:?} leaves the connection as it is");
            let text = if reply.status == Status::Ok { String::new() } else { reply.error() };
            (reply.status, text)
        };
        let (status, text) = answer("token-kv");
        assert_eq!(status, Status::Unauthorized, "{verb:?}");
        assert!(text.contains("+files"), "{text}");
        for token in ["token-both", "token-all"] {
            let (status, text) = answer(token);
            assert_eq!(status, Status::Ok, "{verb:?}: {text}");
        }
    }
    let mut options = ClientOptions::new(server.clients.to_string().parse().unwrap());
    options.token = "token-all".to_owned();
    Client::new(options).unwrap().chains(None).unwrap();
    server.stop();
}

#[test]
fn pages_name_a_namespace_only_to_a_token_that_may_see_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokens");
    std::fs::write(&path, "all-of-them-1\nlimited-one-1 prod/*\n").unwrap();
    let server = TestServer::start(folder.path(), &["--token-file", &path.display().to_string()]);
    let (mut wire, reply) = Wire::try_hello(&server, b"all-of-them-1");
    reply.ok();
    for name in ["prod/seen", "other/hidden"] {
        wire.open(name, NamespaceOptions::default());
    }
    let seen = |page: &str, head: &str| {
        let (status, body) = server.page_as(page, head);
        assert_eq!(status, 200, "{page}: {body}");
        (body.contains("prod/seen"), body.contains("other/hidden"))
    };
    for page in ["/metrics", "/v1/info"] {
        assert_eq!(seen(page, ""), (false, false), "{page} without a token");
        let limited = "Authorization: Bearer limited-one-1\r\n";
        assert_eq!(seen(page, limited), (true, false), "{page}");
        assert_eq!(seen(page, "Authorization: Bearer all-of-them-1\r\n"), (true, true), "{page}");
        let unknown = server.page_as(page, "Authorization: Bearer nobodys-token\r\n");
        assert_eq!(unknown.0, 401, "{page}");
        assert!(!unknown.1.contains("prod/seen") && unknown.1.contains("token file"));
        let foreign = server.page_as(page, "Authorization: Basic bWU6c2VjcmV0\r\n");
        assert_eq!(foreign.0, 200, "what is for a proxy is no token: {page}");
        assert!(!foreign.1.contains("prod/seen"));
    }
    let (status, body) = server.page("/metrics");
    assert!(status == 200 && body.contains("millpond_requests_in_flight"), "sums are everybody's");
    assert_eq!(server.page("/readyz").0, 200);

    let open = tempfile::tempdir().unwrap();
    let server = TestServer::start(open.path(), &[]);
    Wire::connect(&server).open("prod/seen", NamespaceOptions::default());
    assert!(server.page("/metrics").1.contains("prod/seen"), "an open server has no secrets");
}
