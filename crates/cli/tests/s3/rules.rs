//! Rules of backed buckets, others at the same place, and backends that are not there.

use std::collections::{BTreeMap, BTreeSet};

use millpond_client::{Mode, OpenOptions, Rule, Sharing};
use millpond_s3::BackendRing;
use millpond_s3_load::proxy::Faults;

use crate::backed::Pair;
use crate::behind::{BEHIND, BUCKET, Backed, PREFIX, cluster, volume};
use crate::client::Client;
use crate::server::{ACCESS, SECRET, Server, heard, until};

fn at(key: &str) -> String {
    format!("/{BUCKET}/{key}")
}

fn there(key: &str) -> String {
    format!("/{BEHIND}/{PREFIX}{key}")
}

/// The sum over lines of the metrics of a server that begin so.
#[test]
fn transient_objects_go_when_their_time_is_over() {
    let pair = Pair::start(&[], &[]);
    let rule = ["s3", "rules", "set", "data", "tmp/", "--mode", "transient", "--ttl"];
    pair.done(&[&rule[..], &["2s"]].concat());
    heard();
    let (s3, keys) = (&pair.s3, ["tmp/a", "tmp/b/c", "tmp/large"]);
    for key in keys {
        let len = if key == "tmp/large" { 300_000 } else { 10 };
        let put = s3.put(&format!("/data/{key}"), vec![1; len]).send().expect(200);
        assert_eq!(put.header("x-millpond-state"), "transient");
    }
    s3.object("/data/stays", "stays");
    for key in keys {
        assert_eq!(s3.head(&format!("/data/{key}")).send().status, 200, "{key}");
    }
    for key in keys {
        until("it goes", || s3.get(&format!("/data/{key}")).send().is(404).then_some(()));
    }
    let list = s3.get("/data").query("list-type", "2").send().expect(200);
    assert_eq!(list.tags("Key"), ["stays"]);
    assert!(pair.there.head("/there/tmp/a").send().is(404));
}

#[test]
fn several_gateways_share_the_work_and_see_the_same() {
    let it = Backed::start();
    let others: Vec<Server> = (0..2).map(|_| it.front.gateway()).collect();
    let key = it.front.command(&["s3", "keys", "add", "all", "--json"]);
    let key: serde_json::Value = serde_json::from_slice(&key.stdout).unwrap();
    let (access, secret) =
        (key["access_key"].as_str().unwrap(), key["secret_key"].as_str().unwrap());
    let mut clients: Vec<Client> =
        others.iter().map(|it| Client::new(&it.s3, access, secret)).collect();
    for client in &clients {
        until("it is open", || client.get("/").send().is(200).then_some(()));
    }
    clients.push(it.s3.clone());
    // So slow that what one gateway may have under way is less than what waits: all of them claim.
    it.faults(&Faults { latency_ms: (200, 300), ..Faults::default() });
    let puts = "millpond_s3_request_seconds_count{operation=\"PutObject\"}";
    let before = it.store().metric(puts);
    let mut wanted = BTreeMap::new();
    for n in 0..150_usize {
        let (key, bytes) = (format!("k{n:03}"), vec![u8::try_from(n).unwrap(); 2_000]);
        clients[n % 3].object(&at(&key), bytes.clone());
        // Any of them has it at once, and lists it.
        assert_eq!(clients[(n + 1) % 3].bytes(&at(&key)), bytes);
        wanted.insert(key, Some(bytes));
    }
    for client in &clients {
        let list = client.get(&format!("/{BUCKET}")).query("list-type", "2").send().expect(200);
        let keys: BTreeSet<String> = list.tags("Key").into_iter().collect();
        assert_eq!(keys, wanted.keys().cloned().collect::<BTreeSet<_>>());
    }
    it.settled();
    it.check(&wanted);
    assert_eq!(it.store().metric(puts) - before, 150, "each went there once");
    let own =
        "millpond_s3_backend_requests_total{backend=\"store\",operation=\"put\",result=\"done\"}";
    let own = it.metric(own);
    assert!(own > 0 && own < 150, "{own} of 150 by one of three gateways");
}

#[test]
fn who_writes_at_the_same_time_at_a_shared_place_is_counted_and_overwritten() {
    let it = Backed::start();
    it.backing(|backing| {
        backing.is_shared = true;
        backing.ttl_s = 1;
    });
    it.s3.object(&at("k"), "ours, the first");
    it.settled();
    let methods = vec!["PUT".to_owned()];
    it.faults(&Faults { hang_rate: 1.0, methods, ..Faults::default() });
    it.s3.object(&at("k"), "ours");
    until("an attempt is under way", || {
        (it.s3.head(&at("k")).send().header("x-millpond-state") == "uploading").then_some(())
    });
    it.direct.object(&there("k"), "theirs");
    assert_eq!(it.s3.bytes(&at("k")), b"ours");
    it.faults(&Faults::default());
    it.settled();
    assert_eq!(it.direct.bytes(&there("k")), b"ours", "the later to arrive stays");
    assert_eq!(it.metric("millpond_s3_conflicts_total{bucket=\"front\"}"), 1);
    // And what is written there when nothing waits here is seen within the time to live.
    it.direct.object(&there("k"), "theirs, later");
    until("it is seen", || (it.s3.get(&at("k")).send().body == b"theirs, later").then_some(()));
    assert_eq!(it.metric("millpond_s3_conflicts_total{bucket=\"front\"}"), 1);
}

#[test]
fn a_rule_says_who_writes_below_its_prefix() {
    let it = Backed::start();
    it.backing(|backing| {
        backing.is_shared = true;
        backing.ttl_s = 1;
    });
    it.rules(vec![Rule {
        prefix: b"own/".to_vec(),
        sharing: Sharing::Exclusive,
        ..Rule::default()
    }]);
    for key in ["own/k", "k"] {
        it.s3.object(&at(key), "ours");
    }
    it.settled();
    for key in ["own/k", "k"] {
        it.direct.object(&there(key), "theirs");
    }
    until("it is seen", || (it.s3.get(&at("k")).send().body == b"theirs").then_some(()));
    assert_eq!(it.s3.bytes(&at("own/k")), b"ours", "nobody else writes there");
    it.rules(Vec::new());
    until("it is shared", || (it.s3.get(&at("own/k")).send().body == b"theirs").then_some(()));
}

#[test]
fn a_file_that_is_changed_while_it_goes_there_goes_again() {
    let it = Backed::start();
    it.backing(|backing| backing.ttl_s = 1);
    let methods = vec!["PUT".to_owned()];
    for (n, len) in [100, 100_000, 3 << 20].into_iter().enumerate() {
        let key = format!("file{n}");
        it.faults(&Faults {
            latency_ms: (700, 700),
            methods: methods.clone(),
            ..Faults::default()
        });
        it.s3.object(&at(&key), vec![b'a'; len]);
        let word = || it.s3.head(&at(&key)).send().header("x-millpond-state");
        until("it is on its way", || (word() == "uploading").then_some(()));
        let options = OpenOptions { write: true, ..OpenOptions::default() };
        let file = it.volume.open_file(at(&key), &options).unwrap();
        file.write_batch(&[(50, b"changed by a mount")]).unwrap();
        file.sync().unwrap();
        drop(file);
        let mut last = vec![b'a'; len];
        last[50..68].copy_from_slice(b"changed by a mount");
        assert!(it.s3.bytes(&at(&key)) == last);
        until("a gateway notices", || {
            (word() == "dirty" || it.behind(&key).body == last).then_some(())
        });
        it.faults(&Faults::default());
        until("the backend has it", || (word() == "clean").then_some(()));
        assert!(it.behind(&key).expect(200).body == last, "{key}");
        let (here, behind) = (it.s3.get(&at(&key)).send().expect(200), it.behind(&key));
        assert!(here.body == last);
        assert_eq!(here.header("content-type"), behind.header("content-type"));
    }
}

#[test]
fn a_gateway_starts_without_its_backend() {
    let mut it = Backed::with(Server::lasting());
    it.rules(vec![Rule { prefix: b"now/".to_vec(), mode: Mode::WriteThrough, ..Rule::default() }]);
    it.s3.object(&at("before"), "before");
    it.settled();
    it.direct.object(&there("far"), "far");
    it.faults(&Faults { outage: true, ..Faults::default() });
    it.front.kill_and_start();
    it.s3.address.clone_from(&it.front.s3);
    it.volume = volume(&it.front);
    until("the gateway has the volume", || it.s3.head("/front").send().is(200).then_some(()));
    let works = |it: &Backed, word: &str| {
        assert_eq!(it.s3.bytes(&at("before")), b"before");
        it.s3.object(&at("meanwhile"), word);
        assert_eq!(it.s3.bytes(&at("meanwhile")), word.as_bytes());
        let far = it.s3.get(&at("far")).send().refused(503, "ServiceUnavailable");
        assert!(far.tag("Message").contains("store"), "{}", far.text());
        it.s3.get("/front").query("list-type", "2").send().refused(503, "ServiceUnavailable");
    };
    works(&it, "unreachable");
    // Nor has anybody said where it is.
    let ring = BackendRing::open(cluster(&it.front)).unwrap();
    let settings = ring.get("store").unwrap().unwrap();
    assert!(ring.remove("store").unwrap());
    let message = || it.s3.get(&at("far")).send().tag("Message");
    until("gateways hear", || message().contains("s3 backend add").then_some(()));
    works(&it, "unknown");
    it.front.kill_and_start();
    it.s3.address.clone_from(&it.front.s3);
    it.volume = volume(&it.front);
    until("the gateway has the volume", || it.s3.head("/front").send().is(200).then_some(()));
    works(&it, "unknown at start");
    it.faults(&Faults::default());
    BackendRing::open(cluster(&it.front)).unwrap().set("store", &settings).unwrap();
    it.settled();
    assert_eq!(it.behind("meanwhile").expect(200).body, b"unknown at start");
    until("it is read", || (it.s3.get(&at("far")).send().body == b"far").then_some(()));
    let put = it.s3.put(&at("now/k"), "through").send().expect(200);
    assert_eq!(put.header("x-millpond-state"), "clean");
}

/// What a command says that must not go well.
fn refused(server: &Server, words: &[&str]) -> String {
    let output = server.command(words);
    assert!(!output.status.success(), "{words:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn a_quota_of_transient_objects_is_kept() {
    let pair = Pair::start(&[], &[]);
    let set = |more: &[&str]| {
        let words = ["s3", "rules", "set", "data", "tmp/", "--mode", "transient", "--quota"];
        pair.done(&[&words[..], more].concat());
        heard();
    };
    set(&["300KiB"]);
    let s3 = &pair.s3;
    let put = |key: &str, len: usize| s3.put(&format!("/data/{key}"), vec![1; len]).send();
    for n in 0..3 {
        put(&format!("tmp/{n}"), 100 << 10).expect(200);
    }
    let full = put("tmp/more", 1).refused(507, "InsufficientStorage");
    assert!(full.tag("Message").contains("quota"), "{}", full.text());
    put("tmp/large", 400 << 10).refused(507, "InsufficientStorage");
    put("other", 400 << 10).expect(200);
    // What goes counts until metas have removed it.
    let later = |key: &str, len| until(key, || put(key, len).is(200).then_some(()));
    s3.delete("/data/tmp/1").send().expect(204);
    later("tmp/1", 100 << 10);
    put("tmp/last", 1).refused(507, "InsufficientStorage");
    s3.delete("/data/tmp/0").send().expect(204);
    later("tmp/last", 100 << 10);
    // Mounts count too.
    let volume = volume(&pair.front);
    assert!(volume.write_file("/data/tmp/mount", &[1; 1_000], 0o644).is_err());
    volume.unlink("/data/tmp/2").unwrap();
    until("there is room", || volume.write_file("/data/tmp/mount", &[1; 1_000], 0o644).ok());
    let shown = pair.done(&["s3", "rules", "data", "--json"]);
    assert!(shown.contains("\"quota_bytes\":307200"), "{shown}");
    set(&["1MiB"]);
    put("tmp/larger", 400 << 10).expect(200);
    // It is the bucket's as long as it is backed.
    pair.done(&["s3", "persist", "--wait", "s3://data"]);
    pair.done(&["s3", "bucket", "rm", "data"]);
    heard();
    put("tmp/larger", 2 << 20).expect(200);
    put("tmp/larger", 1).expect(200);
    pair.done(&["s3", "bucket", "add", "data", "--backend", "other", "--backend-bucket", "there"]);
    s3.delete("/data/tmp/larger").send().expect(204);
    heard();
    // Of what lies there already nothing can be counted.
    let words = ["s3", "rules", "set", "data"];
    let all = |more: &[&str]| refused(&pair.front, &[&words[..], more].concat());
    put("old/k", 1).expect(200);
    let error = all(&["old/", "--mode", "transient", "--quota", "1MiB"]);
    assert!(error.contains("quota") && error.contains("already"), "{error}");
    assert!(all(&["new", "--mode", "transient", "--quota", "1MiB"]).contains("ends with '/'"));
    assert!(all(&["new/", "--mode", "write-back", "--quota", "1MiB"]).contains("transient"));
    let error = all(&["new/", "--mode", "write-back", "--replicas", "3"]);
    assert!(error.contains("has chains of 1 replicas"), "{error}");
    pair.done(&[&words[..], &["new/", "--mode", "write-back", "--replicas", "1"]].concat());
    pair.done(&[&words[..], &["fresh/", "--mode", "transient", "--quota", "1KiB"]].concat());
    heard();
    put("fresh/any", 2 << 10).refused(507, "InsufficientStorage");
    pair.done(&["s3", "rules", "rm", "data", "fresh/"]);
    heard();
    put("fresh/any", 2 << 10).expect(200);
}

#[test]
fn what_has_priority_goes_first() {
    let it = Backed::start();
    it.rules(vec![Rule { prefix: b"soon/".to_vec(), priority: 1, ..Rule::default() }]);
    // One at a time.
    it.settings(|settings| {
        settings.requests_per_s = 5;
        settings.requests_max = 1;
    });
    for n in 0..60 {
        it.s3.object(&at(&format!("k{n}")), "later");
    }
    for n in 0..10 {
        it.s3.object(&at(&format!("soon/{n}")), "soon");
    }
    until("what has priority is there", || {
        let count = (0..10).filter(|n| it.behind(&format!("soon/{n}")).is(200)).count();
        (count == 10).then_some(())
    });
    let before = (0..60).filter(|n| it.behind(&format!("k{n}")).is(200)).count();
    assert!(before < 40, "{before} of 60 were there before");
    it.settled();
}

/// Writes a file, and says where it is.
fn written(folder: &tempfile::TempDir, name: &str, text: &str) -> String {
    let path = folder.path().join(name);
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

fn with_certificate(cert: &str, key: &str) -> Server {
    let keys = ["--s3-access-key", ACCESS, "--s3-secret-key", SECRET];
    Server::with(&[&keys[..], &["--s3-tls-cert", cert, "--s3-tls-key", key]].concat())
}

#[test]
fn of_a_certificate_that_signs_others_it_is_told_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| written(&folder, name, text);
    // As `openssl req -x509` makes them.
    let mut params = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let signing = rcgen::KeyPair::generate().unwrap();
    let cert = write("ca.pem", &params.self_signed(&signing).unwrap().pem());
    let back = with_certificate(&cert, &write("tls.key", &signing.serialize_pem()));
    let front = Server::start();
    let (endpoint, key) = (format!("https://{}", back.s3), write("secret", SECRET));
    let add = ["s3", "backend", "add", "tls", "--endpoint", &endpoint, "--access-key", ACCESS];
    let flags = ["--secret-key-file", &key, "--ca-file", &cert, "--timeout", "2s"];
    let added = front.command(&[&add[..], &flags].concat());
    assert!(added.status.success(), "{}", String::from_utf8_lossy(&added.stderr));
    let bucket = ["s3", "bucket", "add", "data", "--backend", "tls", "--backend-bucket", "there"];
    let error = refused(&front, &bucket);
    assert!(error.contains("basicConstraints=critical,CA:FALSE"), "{error}");
}

#[test]
fn a_backend_may_have_a_certificate_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| written(&folder, name, text);
    let names = || vec!["127.0.0.1".to_owned()];
    let made = rcgen::generate_simple_self_signed(names()).unwrap();
    let other = rcgen::generate_simple_self_signed(names()).unwrap();
    let cert = write("ca.pem", &made.cert.pem());
    let (wrong, none) = (write("other.pem", &other.cert.pem()), write("none.pem", "nothing"));
    let secret = write("tls.key", &made.signing_key.serialize_pem());
    let back = with_certificate(&cert, &secret);
    // The same buckets without TLS.
    let plain = back.gateway_with(&["--s3-access-key", ACCESS, "--s3-secret-key", SECRET]);
    let there = plain.client();
    there.bucket("there");
    let front = Server::start();
    let s3 = front.client();
    let key = write("secret", SECRET);
    let endpoint = format!("https://{}", back.s3);
    let add = ["s3", "backend", "add", "tls", "--endpoint", &endpoint, "--access-key", ACCESS];
    let add = [&add[..], &["--secret-key-file", &key, "--timeout", "2s"]].concat();
    let bucket = ["s3", "bucket", "add", "data", "--backend", "tls", "--backend-bucket", "there"];
    let done = |words: &[&str]| {
        let output = front.command(words);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    for flags in [&[][..], &["--ca-file", &wrong]] {
        done(&[&add[..], flags].concat());
        let error = refused(&front, &bucket);
        assert!(error.contains("certificate"), "{error}");
    }
    let error = refused(&front, &[&add[..], &["--ca-file", &none]].concat());
    assert!(error.contains("ca_pem"), "{error}");
    done(&[&add[..], &["--ca-file", &cert]].concat());
    done(&bucket);
    std::fs::remove_file(&cert).unwrap();
    heard();
    s3.object("/data/k", vec![7; 2_000_000]);
    until("it is there", || (there.head("/there/k").send().is(200)).then_some(()));
    assert_eq!(there.bytes("/there/k"), vec![7; 2_000_000]);
    there.object("/there/far", vec![8; 100_000]);
    assert_eq!(s3.bytes("/data/far"), vec![8; 100_000]);
}

#[test]
fn policies_are_those_of_the_bucket_behind() {
    let pair = Pair::start(&[], &["--shared"]);
    let s3 = &pair.s3;
    s3.bucket("plain");
    let policy = |path: &str| s3.get(path).query("policy", "").send();
    let put = |path: &str| s3.put(path, "{}").query("policy", "").send();
    policy("/plain").refused(404, "NoSuchBucketPolicy");
    put("/plain").refused(501, "NotImplemented");
    // The object store behind has none, and takes none: it is what says so.
    policy("/data").refused(404, "NoSuchBucketPolicy");
    let told = put("/data").refused(501, "NotImplemented");
    assert!(told.tag("Message").contains("answered: "), "{}", told.text());
    // A removal of none is done.
    s3.delete("/data").query("policy", "").send().expect(204);
    let asked = |of: &str| {
        pair.front.metric(&format!(
            "millpond_s3_backend_requests_total{{backend=\"other\",operation=\"{of}\""
        ))
    };
    assert_eq!((asked("get_policy"), asked("put_policy")), (1, 2));
    pair.done(&[
        "s3",
        "bucket",
        "add",
        "part",
        "--backend",
        "other",
        "--backend-bucket",
        "there",
        "--prefix",
        "a/",
        "--shared",
    ]);
    heard();
    put("/part").refused(501, "NotImplemented");
    assert_eq!(asked("put_policy"), 2, "it would be the policy of others too");
}
