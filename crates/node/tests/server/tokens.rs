//! Tokens that come and go while the server runs.

use std::path::Path;

use millpond_types::NamespaceOptions;
use millpond_types::wire::{Status, Verb};

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
