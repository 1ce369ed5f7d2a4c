//! Objects that lost bytes: no answer has zeros in their place (RFC 0029).

use std::time::Duration;

use millpond_client::{ChunkCut, Client, ClientOptions, Volume, VolumeOptions};
use millpond_types::meta::Caller;
use millpond_types::wire::ChunkChange;
use millpond_types::{DataId, FileChunk};

use crate::server::Server;

const PATIENCE: Duration = Duration::from_secs(20);

#[test]
fn an_object_that_lost_a_chunk_is_an_error_and_not_zeros() {
    let server = Server::start();
    let s3 = server.client();
    s3.bucket("bkt");
    let body: Vec<u8> = (0..9_000_000).map(|n: u32| (n % 251) as u8 | 1).collect();
    s3.object("/bkt/key", body.clone());

    let mut options = ClientOptions::new(server.address.parse().unwrap());
    options.deadline = PATIENCE;
    let caller = Caller { uid: 0, gid: 0, groups: Vec::new(), checked: false };
    let as_root = VolumeOptions { caller, ..VolumeOptions::new("a test") };
    let volume = Volume::with(Client::new(options.clone()).unwrap(), as_root).unwrap();
    let attr = volume.get_object("bkt", b"key", false).unwrap().unwrap().attr;
    assert_eq!((attr.size, attr.solid), (9_000_000, 9_000_000), "objects have no holes");
    let chunk = FileChunk { data: DataId(attr.chunk_data()), index: 1 };
    let cut = ChunkCut { chain: attr.layout.chain(1), chunk, change: ChunkChange::Collect };
    Client::new(options).unwrap().cut_chunks(&[cut], None).unwrap();

    let size = usize::try_from(attr.layout.chunk_bytes()).unwrap();
    let range = |from: usize| format!("bytes={from}-{}", from + 99_999);
    let first = s3.get("/bkt/key").header("range", &range(0)).send().expect(206);
    assert!(first.body == body[..100_000]);
    let last = s3.get("/bkt/key").header("range", &range(2 * size)).send().expect(206);
    assert!(last.body == body[2 * size..2 * size + 100_000]);
    // An answer that was begun can only be broken off.
    for (from, len) in [(size, 100_000), (size - 5000, 100_000), (0, body.len())] {
        let range = format!("bytes={from}-{}", from + len - 1);
        if let Ok(answer) = s3.get("/bkt/key").header("range", &range).try_send(PATIENCE) {
            let status = answer.status;
            assert!(status >= 500, "{status} with {} bytes of {len}", answer.body.len());
        }
    }
}
