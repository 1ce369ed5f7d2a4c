//! TLS on the TCP address.

use std::net::TcpStream;
use std::process::Command;
use std::sync::Arc;

use millpond_types::NamespaceOptions;
use millpond_types::wire::{ItemStatus, Verb};
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::harness::{PATIENCE, TestServer};
use super::wire::{Wire, bytes, hello, key};

#[test]
fn values_travel_encrypted() {
    let folder = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let (cert, secret) = (folder.path().join("tls.crt"), folder.path().join("tls.key"));
    std::fs::write(&cert, made.cert.pem()).unwrap();
    std::fs::write(&secret, made.signing_key.serialize_pem()).unwrap();
    let _: PrivateKeyDer<'_> = rustls_pki_types::pem::PemObject::from_pem_file(&secret).unwrap();
    let (cert, secret) = (cert.display().to_string(), secret.display().to_string());
    let server = TestServer::start(folder.path(), &["--tls-cert", &cert, "--tls-key", &secret]);
    assert!(server.banner.contains("TLS"), "{}", server.banner);

    let mut roots = RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("localhost").unwrap();
    let session = ClientConnection::new(Arc::new(config), name).unwrap();
    let stream = TcpStream::connect(server.clients).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut wire = Wire::over(Box::new(StreamOwned::new(session, stream)));
    wire.call(Verb::Hello, &hello(b""), &[]).unwrap().ok();
    let ns = wire.open("model", NamespaceOptions::default()).id;
    for len in [0, 1, 5000, 300_000, 5 << 20] {
        let value = bytes(len as u64 + 3, len);
        let name = key(format!("{len}"));
        assert_eq!(wire.put(ns, &[(name, &value)]), [ItemStatus::Ok]);
        assert!(wire.get(ns, &[name]) == [Some(value)], "{len}");
    }

    // In clear: nothing but an alert comes back. The Unix socket stays as it is.
    let mut clear = Wire::over(Box::new(TcpStream::connect(server.clients).unwrap()));
    clear.send(Verb::Hello, &hello(b""), &[]).unwrap();
    let mut answer = Vec::new();
    let _ = clear.socket.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"MLPD"));
    let mut local = Wire::connect_unix(&server.socket);
    assert!(local.get(ns, &[key("5000")])[0].is_some());
    server.stop();

    // And the other way round: TLS to a server that speaks none ends with what to change.
    let server = TestServer::start(folder.path(), &[]);
    let mut asks = Command::new(env!("CARGO_BIN_EXE_millpond"));
    asks.args(["kv", "--address", &format!("localhost:{}", server.clients.port())]);
    let said = asks.args(["--tls-ca", &cert, "get", "key"]).output().unwrap();
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.contains("leave tls_ca (--tls-ca) out"), "{said}");
    server.stop();
}
