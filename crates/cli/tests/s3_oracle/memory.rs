//! A gateway streams: what passes through it does not lie in its memory.

use std::time::Instant;

use millpond_s3_load::client::{Client, Endpoint};
use millpond_s3_load::content::{Content, Seen};

use crate::backlog::options;
use crate::number;
use crate::server::{ACCESS, SECRET, Server};

const MIB: u64 = 1 << 20;
const BUCKET: &str = "large";
/// Bytes of what is read by many at once, and how many objects those are.
const READ: u64 = 64 * MIB;
const OBJECTS: usize = 4;
/// All that a gateway may ever have.
const MEMORY_MAX: u64 = 512 * MIB;

#[test]
fn large_objects_do_not_fill_the_memory_of_a_gateway() {
    let large = number("MILLPOND_S3_LARGE_MIB", 600) * MIB;
    let readers: usize = number("MILLPOND_S3_READERS", 16);
    let size = format!("{}MiB", large / MIB * 5 / 4 + 2_048);
    let key = ["--s3-access-key", ACCESS, "--s3-secret-key", SECRET];
    // No socket: the gateway is as if on a host of its own. On the same host it maps memory of the server, which would count.
    let server = Server::with(&[&key[..], &["--size", &size, "--socket", ""]].concat());
    server.client().bucket(BUCKET);
    let gateway = server.plain_gateway();
    gateway.client();
    let told = |what: &str, start: Instant| {
        let mib = gateway.memory_max() / MIB;
        println!("{what}: {:?}, at most {mib} MiB so far", start.elapsed());
    };
    let endpoint = Endpoint::parse(&format!("http://{}", gateway.s3)).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let new = || Client::new(endpoint.clone(), options(BUCKET));
        told("at the start", Instant::now());
        let start = Instant::now();
        new().put("large", Content::new("large", 1, large)).await.unwrap();
        told(&format!("PUT of {} MiB", large / MIB), start);
        for n in 0..OBJECTS {
            let key = format!("{n}");
            new().put(&key, Content::new(&key, 1, READ)).await.unwrap();
        }
        let start = Instant::now();
        let read = |n: usize| {
            let mut client = new();
            async move { client.get(&format!("{}", n % OBJECTS)).await }
        };
        let all: Vec<_> = (0..readers).map(|n| tokio::spawn(read(n))).collect();
        for one in all {
            assert_eq!(one.await.unwrap(), Ok(Ok(Some(Seen { seq: 1, size: READ }))));
        }
        told(&format!("{readers} GETs of 64 MiB at once"), start);
        let start = Instant::now();
        let whole = new().get("large").await;
        assert_eq!(whole, Ok(Ok(Some(Seen { seq: 1, size: large }))));
        told(&format!("GET of {} MiB", large / MIB), start);
    });
    let most = gateway.memory_max();
    assert!(most < MEMORY_MAX, "the gateway had {} MiB", most / MIB);
}
