//! A server without settings of a cluster: its gateway reaches its own node and meta, whatever clients must show.

use crate::server::Server;

fn works(server: &Server) {
    let s3 = server.client();
    s3.bucket("plain");
    s3.object("/plain/small", "value");
    let large: String = "0123456789abcdef".repeat(200_000);
    s3.object("/plain/large", large.as_str());
    assert_eq!(s3.bytes("/plain/small"), b"value");
    assert_eq!(s3.bytes("/plain/large"), large.as_bytes());
    s3.delete("/plain/large").send().expect(204);
}

#[test]
fn a_server_without_settings_is_a_gateway() {
    let mut server = Server::plain(&[]);
    works(&server);
    server.kill_and_start();
    assert_eq!(server.client().bytes("/plain/small"), b"value");
}

#[test]
fn so_is_one_that_asks_clients_for_a_token() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = folder.path().join("tokens");
    std::fs::write(&tokens, "token-of-one one/*\ntoken-of-all\n").unwrap();
    let mut server = Server::plain(&["--token-file", &tokens.display().to_string()]);
    works(&server);
    server.kill_and_start();
    assert_eq!(server.client().bytes("/plain/small"), b"value");
    let admin = |token: &str| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_millpond"));
        command.args(["admin", "status", "--server", &server.address, "--token", token]);
        command.output().unwrap().status.success()
    };
    assert!(admin("token-of-all") && !admin("token-of-one") && !admin("another"));
}

#[test]
fn so_is_one_whose_clients_of_blocks_and_files_use_tls() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    std::fs::write(at("cert.pem"), made.cert.pem()).unwrap();
    std::fs::write(at("key.pem"), made.signing_key.serialize_pem()).unwrap();
    let mut server = Server::plain(&["--tls-cert", &at("cert.pem"), "--tls-key", &at("key.pem")]);
    works(&server);
    server.kill_and_start();
    assert_eq!(server.client().bytes("/plain/small"), b"value");
}
