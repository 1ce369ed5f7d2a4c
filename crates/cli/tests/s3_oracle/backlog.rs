//! Many keys that wait for the object store behind: a server that dies with them is there again soon, and goes on.

use std::time::{Duration, Instant};

use millpond_s3_load::client::{Client, ClientOptions, Endpoint};
use millpond_s3_load::content::Content;
use millpond_s3_load::proxy::Faults;
use millpond_s3_load::sign::Credentials;

use crate::behind::{BUCKET, Backed};
use crate::number;
use crate::oracle::seen;
use crate::server::{ACCESS, SECRET, Server, until};
use crate::sign::REGION;

/// Requests under way.
const CLIENTS: usize = 64;
/// Bytes of an object.
const SIZE: u64 = 100;
/// How long a server may take until it answers a PUT, whatever waits.
const START_MAX: Duration = Duration::from_secs(10);
/// Keys whose bytes are compared in the end: each so many-th.
const SAMPLE: usize = 61;

pub(crate) fn options(bucket: &str) -> ClientOptions {
    ClientOptions {
        credentials: Credentials {
            access_key: ACCESS.to_owned(),
            secret_key: SECRET.to_owned(),
            region: REGION.to_owned(),
        },
        bucket: bucket.to_owned(),
        sign_payload: false,
        timeout: Duration::from_mins(10),
    }
}

fn key(number: usize) -> String {
    format!("{:03}/{number:07}", number % 1_000)
}

/// Puts this many objects.
fn fill(address: &str, keys: usize) {
    let endpoint = Endpoint::parse(&format!("http://{address}")).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let one = |client: usize| {
        let mut s3 = Client::new(endpoint.clone(), options(BUCKET));
        async move {
            for number in (client..keys).step_by(CLIENTS) {
                let key = key(number);
                s3.put(&key, Content::new(&key, 1, SIZE)).await.unwrap();
            }
        }
    };
    runtime.block_on(async {
        let all: Vec<_> = (0..CLIENTS).map(|client| tokio::spawn(one(client))).collect();
        for one in all {
            one.await.unwrap();
        }
    });
}

/// Requests to the object store behind that were done since the server started.
fn persisted(it: &Backed) -> u64 {
    let line = "millpond_s3_backend_requests_total{backend=\"store\",operation=\"put\",result=";
    it.metric(&format!("{line}\"done\"}}"))
}

#[test]
fn a_backlog_outlives_a_restart() {
    let keys: usize = number("MILLPOND_S3_BACKLOG", 3_000);
    let mut it = Backed::with(Server::lasting());
    it.faults(&Faults { outage: true, ..Faults::default() });
    let start = Instant::now();
    fill(&it.front.s3, keys);
    println!("{keys} objects wait after {:?}", start.elapsed());
    let start = Instant::now();
    it.front.kill_and_start();
    println!("it says that it is ready after {:?}", start.elapsed());
    it.s3.address.clone_from(&it.front.s3);
    until("it answers a put", || {
        it.s3.put(&format!("/{BUCKET}/new"), "x").send().is(200).then_some(())
    });
    let took = start.elapsed();
    println!("it answers a PUT after {took:?}");
    assert!(took < START_MAX, "{keys} keys wait, and a start takes {took:?}");
    assert_eq!(it.s3.get(&format!("/{BUCKET}/{}", key(0))).send().expect(200).body.len(), 100);
    let start = Instant::now();
    it.front.command(&["s3", "status"]);
    println!("its status is told after {:?}", start.elapsed());
    let gauge = format!("millpond_s3_backlog_keys{{bucket=\"{BUCKET}\"}}");
    until("all that waits is counted", || (it.metric(&gauge) >= keys as u64).then_some(()));
    println!("its metrics have all of it after {:?}", start.elapsed());
    it.faults(&Faults::default());
    let start = Instant::now();
    let enough = keys.min(1_000) as u64;
    until("it goes on", || (persisted(&it) >= enough).then_some(()));
    println!("{} went on within {:?}", persisted(&it), start.elapsed());
    if keys > 10_000 {
        return;
    }
    it.volume = crate::behind::volume(&it.front);
    it.settled();
    for number in (0..keys).step_by(SAMPLE) {
        let key = key(number);
        let found = it.behind(&key).expect(200);
        assert_eq!(seen(&key, &found.body).map(|it| it.size), Ok(SIZE), "{key}");
    }
}
