//! A real etcd for the managers of a test.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::process::PATIENCE;

/// Members of one etcd; killed when dropped.
pub(crate) struct Etcd {
    members: Vec<Member>,
    folder: tempfile::TempDir,
    is_secure: bool,
}

struct Member {
    child: Option<Child>,
    client: String,
    peer: String,
    /// Answers questions after its health, without TLS.
    health: String,
}

/// Whether tests that need etcd are left out; says so.
pub(crate) fn left_out() -> bool {
    let told = std::env::var_os("NO_ETCD").is_some_and(|value| value == "1");
    if told {
        let text = b"\nNO_ETCD=1: a test of managers over etcd was LEFT OUT\n";
        let _ = std::io::stderr().write_all(text);
    }
    told
}

/// `MILLPOND_ETCD`, or built from the module pinned beside the store's tests.
fn binary() -> PathBuf {
    if let Some(path) = std::env::var_os("MILLPOND_ETCD") {
        return path.into();
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../store/tests/etcd/build.sh");
    let exe = std::env::current_exe().unwrap();
    let target = exe.ancestors().nth(3).unwrap().join("etcd");
    let built = Command::new("bash").arg(script).arg(target).stdin(Stdio::null()).output().unwrap();
    assert!(
        built.status.success(),
        "no etcd: install Go, or set MILLPOND_ETCD=path; NO_ETCD=1 leaves this out\n{}",
        String::from_utf8_lossy(&built.stderr)
    );
    PathBuf::from(String::from_utf8(built.stdout).unwrap().trim())
}

impl Etcd {
    /// Starts a cluster of `count` members and waits until all of them answer.
    pub(crate) fn start(count: usize) -> Self {
        Self::start_with(count, false)
    }

    /// One member that speaks TLS, and wants clients to show a certificate.
    pub(crate) fn start_secure() -> Self {
        Self::start_with(1, true)
    }

    fn start_with(count: usize, is_secure: bool) -> Self {
        let listeners: Vec<TcpListener> =
            (0..3 * count).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let ports: Vec<u16> = listeners.iter().map(|it| it.local_addr().unwrap().port()).collect();
        drop(listeners);
        let member = |ports: &[u16]| Member {
            child: None,
            client: format!("127.0.0.1:{}", ports[0]),
            peer: format!("127.0.0.1:{}", ports[1]),
            health: format!("127.0.0.1:{}", ports[2]),
        };
        let members = ports.chunks(3).map(member).collect();
        let mut etcd = Self { members, folder: tempfile::tempdir().unwrap(), is_secure };
        if is_secure {
            etcd.make_certificates();
        }
        let binary = binary();
        let started = Instant::now();
        while !etcd.members.iter().all(Member::is_well) {
            for n in 0..count {
                // Somebody else may have one of its ports for a moment.
                let ended = |child: &mut Child| child.try_wait().unwrap().is_some();
                if etcd.members[n].child.as_mut().is_none_or(ended) {
                    etcd.members[n].child = Some(etcd.spawn(&binary, n));
                }
            }
            assert!(started.elapsed() < PATIENCE, "etcd does not start");
            std::thread::sleep(Duration::from_millis(20));
        }
        etcd
    }

    fn spawn(&self, binary: &Path, n: usize) -> Child {
        let (client, peer) = (&self.members[n].client, &self.members[n].peer);
        let scheme = if self.is_secure { "https" } else { "http" };
        let (at, peers) = (format!("{scheme}://{client}"), format!("http://{peer}"));
        let health = format!("http://{}", self.members[n].health);
        let mut extra = Vec::new();
        if self.is_secure {
            extra.push("--client-cert-auth".to_owned());
            for (flag, name) in
                [("trusted-ca", "ca.pem"), ("cert", "server.pem"), ("key", "server.key")]
            {
                extra.push(format!("--{flag}-file={}", self.file(name)));
            }
        }
        let all: Vec<String> = (0..self.members.len())
            .map(|other| format!("m{other}=http://{}", self.members[other].peer))
            .collect();
        Command::new(binary)
            .env("MILLPOND_END_WITH_STDIN", "1")
            .args(["--name", &format!("m{n}"), "--log-level", "error", "--data-dir"])
            .arg(self.folder.path().join(format!("m{n}")))
            .args(["--listen-client-urls", &at, "--advertise-client-urls", &at])
            .args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers])
            .args(["--initial-cluster", &all.join(","), "--listen-metrics-urls", &health])
            .args(extra)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    }

    /// A file of the cluster's; a client's certificate is in `client.pem` and `client.key`, that of who signed it and
    /// the members' in `ca.pem`.
    pub(crate) fn file(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    fn make_certificates(&self) {
        let params = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            rcgen::CertificateParams::new(names).unwrap()
        };
        let write = |name: &str, text: String| std::fs::write(self.file(name), text).unwrap();
        let mut authority = params(&[]);
        authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = rcgen::KeyPair::generate().unwrap();
        let authority = rcgen::CertifiedIssuer::self_signed(authority, key).unwrap();
        write("ca.pem", authority.pem());
        for (who, name) in [("server", "127.0.0.1"), ("client", "millpond.test")] {
            let key = rcgen::KeyPair::generate().unwrap();
            let signed = params(&[name]).signed_by(&key, &authority).unwrap();
            write(&format!("{who}.pem"), signed.pem());
            write(&format!("{who}.key"), key.serialize_pem());
        }
    }

    /// What `--store` is given.
    pub(crate) fn store(&self) -> String {
        let all: Vec<&str> = self.members.iter().map(|member| member.client.as_str()).collect();
        format!("etcd://{}/test", all.join(","))
    }

    /// `kill -9` of a member.
    pub(crate) fn kill(&mut self, n: usize) {
        let mut child = self.members[n].child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Starts a member again with what it has on disk, and waits until it answers.
    pub(crate) fn run(&mut self, n: usize) {
        self.members[n].child = Some(self.spawn(&binary(), n));
        let started = Instant::now();
        while !self.members[n].is_well() {
            assert!(started.elapsed() < PATIENCE, "a member of etcd does not come back");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// How many members there are.
    pub(crate) const fn count(&self) -> usize {
        self.members.len()
    }
}

impl Member {
    /// It has a leader to commit with.
    fn is_well(&self) -> bool {
        let ask = || {
            let mut stream = TcpStream::connect(&self.health)?;
            stream.set_read_timeout(Some(Duration::from_secs(2)))?;
            stream.write_all(b"GET /health HTTP/1.0\r\n\r\n")?;
            let mut reply = String::new();
            stream.read_to_string(&mut reply).map(|_| reply)
        };
        self.child.is_some() && ask().is_ok_and(|reply: String| reply.contains("\"true\""))
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        for child in self.members.iter_mut().filter_map(|member| member.child.as_mut()) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
