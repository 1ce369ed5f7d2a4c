//! One real etcd on loopback, as the tests of the store start it.

use std::io::Write;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use millpond_store::{EtcdBackend, EtcdOptions, Store};
use tempfile::TempDir;

/// A member that is a whole cluster; its process ends with it.
pub(crate) struct Etcd {
    process: Child,
    endpoint: String,
    _folder: TempDir,
}

/// True when the environment excludes etcd; prints a notice past libtest's capture.
pub(crate) fn left_out() -> bool {
    let told = std::env::var_os("NO_ETCD").is_some_and(|value| value == "1");
    if told {
        let _ = std::io::stderr().write_all(b"\nNO_ETCD=1: a test over etcd was LEFT OUT\n");
    }
    told
}

/// The etcd to start: `MILLPOND_ETCD`, or built from the module that the store's tests pin.
fn binary() -> PathBuf {
    if let Some(path) = std::env::var_os("MILLPOND_ETCD") {
        return path.into();
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../store/tests/etcd/build.sh");
    // target/debug/deps/meta-…
    let exe = std::env::current_exe().unwrap();
    let target = exe.ancestors().nth(3).unwrap().join("etcd");
    let built = Command::new("bash")
        .arg(script)
        .arg(target)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .expect("bash is there");
    assert!(
        built.status.success(),
        "no etcd to test against: install Go, or set MILLPOND_ETCD=path to an etcd 3.5 server; \
         NO_ETCD=1 leaves these tests out"
    );
    PathBuf::from(String::from_utf8(built.stdout).unwrap().trim())
}

fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

impl Etcd {
    /// Starts it and waits until it answers.
    pub(crate) async fn start() -> Self {
        let start = Instant::now();
        loop {
            let mut etcd = Self::launch();
            // A port can be taken for a moment: then the process ends and is started again.
            while etcd.process.try_wait().unwrap().is_none() {
                if etcd.store("ready/").begin().get(b"ready").await.is_ok() {
                    return etcd;
                }
                assert!(start.elapsed() < Duration::from_mins(1), "etcd is not ready");
            }
        }
    }

    fn launch() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let endpoint = format!("http://127.0.0.1:{}", free_port());
        let peer = format!("http://127.0.0.1:{}", free_port());
        let process = Command::new(binary())
            .env("MILLPOND_END_WITH_STDIN", "1")
            .args(["--name", "m"])
            .arg("--data-dir")
            .arg(folder.path().join("m"))
            .args(["--listen-client-urls", &endpoint, "--advertise-client-urls", &endpoint])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("m={peer}")])
            .args(["--log-level", "error"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("etcd starts");
        Self { process, endpoint, _folder: folder }
    }

    /// A client of it that sees keys below `prefix`.
    pub(crate) fn store(&self, prefix: &str) -> Store {
        let options = EtcdOptions {
            prefix: prefix.to_owned(),
            ..EtcdOptions::new(vec![self.endpoint.clone()])
        };
        Store::new(Arc::new(EtcdBackend::new(&options).unwrap()))
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
