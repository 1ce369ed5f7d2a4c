//! A resolver that exists and never answers: the system's real one, in separate namespaces.

use std::net::UdpSocket;
use std::process::Command;
use std::time::{Duration, Instant};

use millpond_client::{Client, ClientOptions};

/// Set in the process that sees only the silent resolver.
const INSIDE: &str = "MILLPOND_TEST_SILENT_RESOLVER";

#[test]
fn a_call_ends_with_its_deadline_whatever_the_resolver_does() {
    if std::env::var_os(INSIDE).is_some() {
        return call();
    }
    let folder = tempfile::tempdir().unwrap();
    let [resolv, nsswitch] = ["resolv.conf", "nsswitch.conf"].map(|name| folder.path().join(name));
    std::fs::write(&resolv, "nameserver 127.0.0.1\n").unwrap();
    std::fs::write(&nsswitch, "hosts: files dns\n").unwrap();
    let script = "ip link set lo up && mount --bind \"$1\" \"$(realpath /etc/resolv.conf)\" \
                  && mount --bind \"$2\" /etc/nsswitch.conf && shift 2 && exec \"$@\"";
    let inside = |program: &str, args: &[&str]| {
        let mut unshare = Command::new("unshare");
        unshare.args(["--user", "--map-root-user", "--mount", "--net", "sh", "-c", script, "sh"]);
        unshare.args([&resolv, &nsswitch]).arg(program).args(args).env(INSIDE, "1");
        unshare.output()
    };
    if !inside("true", &[]).is_ok_and(|done| done.status.success()) {
        eprintln!("left out: this host makes no user, mount and network namespaces");
        return;
    }
    let me = std::env::current_exe().unwrap();
    let name = "silent_resolver::a_call_ends_with_its_deadline_whatever_the_resolver_does";
    let done = inside(me.to_str().unwrap(), &["--exact", name, "--nocapture"]).unwrap();
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success(), "{}{said}", String::from_utf8_lossy(&done.stdout));
    assert!(said.contains("asked in vain"), "{said}");
}

fn call() {
    let silent = UdpSocket::bind("127.0.0.1:53").unwrap();
    silent.set_nonblocking(true).unwrap();
    for addresses in ["cache.example.com:7440", "cache.example.com,other.example.com:1"] {
        let options = ClientOptions {
            deadline: Duration::from_millis(200),
            ..ClientOptions::new(addresses.parse::<millpond_client::Addresses>().unwrap())
        };
        let began = Instant::now();
        let error = Client::new(options).and_then(|client| client.namespaces(None)).unwrap_err();
        let took = began.elapsed();
        assert!(took < Duration::from_secs(3), "{took:?}: {error}");
        assert!(error.to_string().contains("example.com"), "{error}");
    }
    // The resolver was asked: the system did not reject the lookup by itself.
    assert!(silent.recv(&mut [0; 512]).is_ok());
    eprintln!("asked in vain");
}
