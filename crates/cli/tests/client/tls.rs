//! The client over TLS.

use millpond_client::{Client, ErrorKind, GetOutcome, Transport, TransportInUse};
use millpond_types::wire::ItemStatus;

use super::process::Server;
use super::{bytes, get, key, open, put};

fn write(folder: &std::path::Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

#[test]
fn values_travel_encrypted_and_other_signers_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let names = || vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
    let made = rcgen::generate_simple_self_signed(names()).unwrap();
    let other = rcgen::generate_simple_self_signed(names()).unwrap();
    let cert = write(folder.path(), "tls.crt", &made.cert.pem());
    let secret = write(folder.path(), "tls.key", &made.signing_key.serialize_pem());
    let wrong = write(folder.path(), "other.crt", &other.cert.pem());
    let server = Server::start(folder.path(), &["--tls-cert", &cert, "--tls-key", &secret]);

    let mut options = server.options(Transport::Tcp);
    options.tls_ca = Some(cert.into());
    let client = Client::new(options.clone()).unwrap();
    assert_eq!(client.server_info().unwrap().transport, TransportInUse::Tls);
    let ns = open(&client, "tls");
    for len in [0, 1, 5000, 300_000, 5 << 20] {
        let name = key(&format!("{len}"));
        let value = bytes(len, len);
        assert_eq!(put(&ns, &name, &value), ItemStatus::Ok);
        let (got, room) = get(&ns, &name, len);
        assert_eq!(got, GetOutcome::Read(u32::try_from(len).unwrap()));
        assert!(room == value, "{len}");
    }

    options.transport = Transport::Auto;
    let local = Client::new(options.clone()).unwrap();
    assert_eq!(local.server_info().unwrap().transport, TransportInUse::Shm);

    options.transport = Transport::Tcp;
    options.tls_ca = Some(wrong.into());
    let error = Client::new(options.clone()).unwrap().ping(None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(error.to_string().contains("certificate"), "{error}");

    options.tls_ca = None;
    assert!(Client::new(options.clone()).unwrap().ping(None).is_err(), "in clear");
    options.tls_ca = Some(folder.path().join("absent"));
    let error = Client::new(options).unwrap_err();
    assert!(error.to_string().contains("tls_ca"), "{error}");
}
