//! Each fault of the proxy as a client's socket sees it.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use millpond_env::RealClock;
use millpond_s3_load::proxy::{Faults, Proxy};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::store::{self, Shared};

struct Setup {
    front: SocketAddr,
    store: Shared,
}

async fn setup(faults: Faults) -> Setup {
    let (backend, store) = store::start().await;
    let proxy = Proxy::bind("127.0.0.1:0".parse().unwrap(), backend, faults).await.unwrap();
    let front = proxy.address().unwrap();
    tokio::spawn(proxy.serve());
    Setup { front, store }
}

/// Answer of a connection.
#[derive(Debug)]
struct Seen {
    head: String,
    body: Vec<u8>,
    /// How the connection ended when the answer was incomplete.
    ended: Option<ErrorKind>,
}

/// A raw connection: a client library would hide the behaviour under test.
struct Raw(TcpStream);

impl Raw {
    async fn to(address: SocketAddr) -> Self {
        Self(TcpStream::connect(address).await.unwrap())
    }

    async fn ask(&mut self, method: &str, path: &str, body: &[u8]) -> Seen {
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: bucket.example:80\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        // A reset may come while the request is still being sent.
        let sent = self.0.write_all(&[head.as_bytes(), body].concat()).await;
        match sent {
            Ok(()) => timeout(Duration::from_secs(5), self.answer(method)).await.unwrap(),
            Err(error) => Seen { head: String::new(), body: Vec::new(), ended: Some(error.kind()) },
        }
    }

    async fn answer(&mut self, method: &str) -> Seen {
        let mut bytes = Vec::new();
        let mut piece = vec![0; 64 << 10];
        loop {
            if let Some(seen) = whole(&bytes, method) {
                return seen;
            }
            let ended = match self.0.read(&mut piece).await {
                Ok(0) => ErrorKind::UnexpectedEof,
                Ok(got) => {
                    bytes.extend(&piece[..got]);
                    continue;
                }
                Err(error) => error.kind(),
            };
            let (head, body) = split(&bytes).unwrap_or_default();
            return Seen { head, body, ended: Some(ended) };
        }
    }
}

fn split(bytes: &[u8]) -> Option<(String, Vec<u8>)> {
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap().to_lowercase();
    Some((head, bytes[end + 4..].to_vec()))
}

fn whole(bytes: &[u8], method: &str) -> Option<Seen> {
    let (head, body) = split(bytes)?;
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let length: usize = length.map_or(0, |length| length.parse().unwrap());
    let length = if method == "HEAD" { 0 } else { length };
    (body.len() >= length).then_some(Seen { head, body, ended: None })
}

async fn control(front: SocketAddr, faults: Value) -> Value {
    let seen = Raw::to(front).await.ask("PUT", "/_faults", faults.to_string().as_bytes()).await;
    assert!(seen.head.starts_with("http/1.1 200"), "{seen:?}");
    serde_json::from_slice(&seen.body).unwrap()
}

async fn counts(front: SocketAddr) -> Value {
    let seen = Raw::to(front).await.ask("GET", "/_faults", b"").await;
    serde_json::from_slice::<Value>(&seen.body).unwrap()["counts"].clone()
}

const RESET: Option<ErrorKind> = Some(ErrorKind::ConnectionReset);

#[tokio::test]
async fn without_faults_everything_passes_on_one_connection_each_way() {
    let setup = setup(Faults::default()).await;
    let mut raw = Raw::to(setup.front).await;
    let object: Vec<u8> = (0..3 << 20).map(|at: u32| at.to_le_bytes()[1]).collect();
    assert!(raw.ask("PUT", "/b/k%20%2F", &object).await.head.starts_with("http/1.1 200"));
    let got = raw.ask("GET", "/b/k%20%2F", b"").await;
    assert_eq!(got.body, object);
    let head = raw.ask("HEAD", "/b/k%20%2F", b"").await;
    assert!(head.head.contains(&format!("content-length: {}", object.len())), "{head:?}");
    assert!(raw.ask("GET", "/b/none", b"").await.head.starts_with("http/1.1 404"));
    assert!(raw.ask("DELETE", "/b/k%20%2F", b"").await.head.starts_with("http/1.1 204"));
    {
        let state = setup.store.lock().unwrap();
        assert_eq!((state.requests, state.connections), (5, 1));
        assert_eq!(state.host, "bucket.example:80", "signatures are over this header");
    }
    let counts = counts(setup.front).await;
    assert_eq!(counts["forwarded"], 5);
    assert_eq!(counts["bytes_up"], object.len());
    assert_eq!(counts["backend_connections"], 1);
}

#[tokio::test]
async fn latency_lies_within_its_bounds() {
    let setup = setup(Faults { latency_ms: (60, 90), ..Faults::default() }).await;
    let mut raw = Raw::to(setup.front).await;
    for _ in 0..3 {
        let begun = RealClock::tick();
        raw.ask("PUT", "/b/k", b"x").await;
        let took = RealClock::tick().since(begun).as_millis();
        // The upper bound leaves room for a busy machine.
        assert!((60..600).contains(&took), "{took} ms");
    }
}

#[tokio::test]
async fn requests_above_the_limit_are_answered_slow_down() {
    let setup = setup(Faults { requests_per_s: 2.0, ..Faults::default() }).await;
    let mut raw = Raw::to(setup.front).await;
    assert!(raw.ask("PUT", "/b/k", b"x").await.head.starts_with("http/1.1 200"));
    let slowed = raw.ask("PUT", "/b/k", &vec![7; 1 << 20]).await;
    assert!(slowed.head.starts_with("http/1.1 503"), "{slowed:?}");
    assert!(String::from_utf8(slowed.body).unwrap().contains("<Code>SlowDown</Code>"));
    // The connection is still usable, and half a second admits one more request.
    tokio::time::sleep(Duration::from_millis(600)).await;
    assert!(raw.ask("PUT", "/b/k", b"x").await.head.starts_with("http/1.1 200"));
    assert_eq!(setup.store.lock().unwrap().requests, 2);
    assert_eq!(counts(setup.front).await["slowed"], 1);
}

#[tokio::test]
async fn errors_are_internal_errors_that_the_backend_does_not_see() {
    let setup = setup(Faults { error_rate: 1.0, ..Faults::default() }).await;
    let mut raw = Raw::to(setup.front).await;
    let failed = raw.ask("PUT", "/b/k", b"x").await;
    assert!(failed.head.starts_with("http/1.1 500"), "{failed:?}");
    assert!(String::from_utf8(failed.body).unwrap().contains("<Code>InternalError</Code>"));
    assert_eq!(setup.store.lock().unwrap().requests, 0);
    assert_eq!(counts(setup.front).await["errors"], 1);
}

#[tokio::test]
async fn a_reset_comes_before_the_work_and_commit_then_reset_behind_it() {
    let setup = setup(Faults { reset_rate: 1.0, ..Faults::default() }).await;
    let seen = Raw::to(setup.front).await.ask("PUT", "/b/k", b"x").await;
    assert_eq!((seen.head.as_str(), seen.ended), ("", RESET));
    assert!(setup.store.lock().unwrap().objects.is_empty());

    control(setup.front, json!({"commit_reset_rate": 1.0})).await;
    let seen = Raw::to(setup.front).await.ask("PUT", "/b/k", b"x").await;
    assert_eq!((seen.head.as_str(), seen.ended), ("", RESET));
    assert_eq!(setup.store.lock().unwrap().objects["/b/k"], "x".as_bytes());
    let counts = counts(setup.front).await;
    assert_eq!((&counts["resets"], &counts["commit_resets"]), (&json!(1), &json!(1)));
}

#[tokio::test]
async fn a_cut_answer_ends_in_its_middle() {
    let setup = setup(Faults { cut_rate: 1.0, ..Faults::default() }).await;
    let mut raw = Raw::to(setup.front).await;
    assert!(raw.ask("PUT", "/b/k", &[7; 1000]).await.head.starts_with("http/1.1 200"));
    let seen = raw.ask("GET", "/b/k", b"").await;
    assert!(seen.head.starts_with("http/1.1 200"), "{seen:?}");
    assert_eq!((seen.body.len(), seen.ended), (500, RESET));
    assert_eq!(counts(setup.front).await["cuts"], 1);
}

#[tokio::test]
async fn a_bit_of_each_body_is_another_one() {
    let setup = setup(Faults { flip_rate: 1.0, ..Faults::default() }).await;
    let mut raw = Raw::to(setup.front).await;
    assert!(raw.ask("PUT", "/b/k", &[6; 1000]).await.head.starts_with("http/1.1 200"));
    let there = setup.store.lock().unwrap().objects["/b/k"].to_vec();
    assert_eq!((there.len(), there.iter().filter(|byte| **byte != 6).count()), (1000, 1));
    let seen = raw.ask("GET", "/b/k", b"").await;
    assert_eq!(seen.body.iter().zip(&there).filter(|(one, other)| one != other).count(), 1);
    assert!(counts(setup.front).await["flips"].as_u64() >= Some(2));
}

#[tokio::test]
async fn a_hanging_request_hangs_until_the_faults_are_set_anew() {
    let setup = setup(Faults { hang_rate: 1.0, ..Faults::default() }).await;
    let mut raw = Raw::to(setup.front).await;
    raw.0.write_all(b"GET /b/k HTTP/1.1\r\nHost: h\r\n\r\n").await.unwrap();
    assert!(timeout(Duration::from_millis(300), raw.0.readable()).await.is_err());
    control(setup.front, json!({})).await;
    let seen = timeout(Duration::from_secs(5), raw.answer("GET")).await.unwrap();
    assert_eq!((seen.head.as_str(), seen.ended), ("", RESET));
    assert_eq!(counts(setup.front).await["hangs"], 1);
    assert_eq!(setup.store.lock().unwrap().requests, 0);
}

#[tokio::test]
async fn an_outage_ends_what_is_under_way_and_what_comes_until_it_is_over() {
    let setup = setup(Faults { latency_ms: (3000, 3000), ..Faults::default() }).await;
    let mut slow = Raw::to(setup.front).await;
    slow.0.write_all(b"GET /b/k HTTP/1.1\r\nHost: h\r\n\r\n").await.unwrap();
    assert!(timeout(Duration::from_millis(100), slow.0.readable()).await.is_err());
    control(setup.front, json!({"outage": true})).await;
    let seen = timeout(Duration::from_secs(1), slow.answer("GET")).await.unwrap();
    assert_eq!((seen.head.as_str(), seen.ended), ("", RESET));
    let seen = Raw::to(setup.front).await.ask("PUT", "/b/k", b"x").await;
    assert_eq!(seen.ended, RESET);
    control(setup.front, json!({})).await;
    assert!(Raw::to(setup.front).await.ask("PUT", "/b/k", b"x").await.head.contains(" 200"));
    assert_eq!(counts(setup.front).await["outage_resets"], 2);
}

#[tokio::test]
async fn faults_can_be_for_some_paths_and_methods_only() {
    let faults = json!({"error_rate": 1.0, "path_prefix": "/b/", "methods": ["PUT"]});
    let setup = setup(serde_json::from_value(faults).unwrap()).await;
    let mut raw = Raw::to(setup.front).await;
    assert!(raw.ask("PUT", "/b/k", b"x").await.head.starts_with("http/1.1 500"));
    assert!(raw.ask("PUT", "/c/k", b"x").await.head.starts_with("http/1.1 200"));
    assert!(raw.ask("GET", "/b/k", b"").await.head.starts_with("http/1.1 404"));
}

#[tokio::test]
async fn faults_that_make_no_sense_are_refused_and_change_nothing() {
    let setup = setup(Faults { error_rate: 1.0, ..Faults::default() }).await;
    let mut raw = Raw::to(setup.front).await;
    for bad in ["", "{\"error_rate\": 2.0}", "{\"eror_rate\": 0.1}"] {
        let seen = raw.ask("PUT", "/_faults", bad.as_bytes()).await;
        assert!(seen.head.starts_with("http/1.1 400"), "{seen:?}");
    }
    assert!(raw.ask("PUT", "/b/k", b"x").await.head.starts_with("http/1.1 500"));
}

#[tokio::test]
async fn a_backend_that_is_gone_is_a_reset_and_one_that_comes_back_is_found() {
    let (backend, _store) = store::start().await;
    let nobody = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let gone = nobody.local_addr().unwrap();
    drop(nobody);
    assert_ne!(backend, gone);
    let proxy = Proxy::bind("127.0.0.1:0".parse().unwrap(), gone, Faults::default()).await.unwrap();
    let front = proxy.address().unwrap();
    tokio::spawn(proxy.serve());
    let seen = Raw::to(front).await.ask("GET", "/b/k", b"").await;
    assert_eq!((seen.head.as_str(), seen.ended), ("", RESET));
    assert_eq!(counts(front).await["backend_failures"], 1);
}
