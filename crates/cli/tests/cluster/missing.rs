//! Bytes of files that were written and are not there: an error wherever they are read, and never zeros (RFC 0029).

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use millpond_client::{
    Body, ChunkCut, ChunkFilter, Client, ClientOptions, Expect, File, OpenOptions, PutObject,
    Volume, VolumeOptions,
};
use millpond_types::meta::{Attr, Caller};
use millpond_types::wire::ChunkChange;
use millpond_types::{DataId, FileChunk};

use crate::process::{Cluster, until};

pub(crate) fn client(cluster: &Cluster) -> Client {
    let all: Vec<&str> = cluster.nodes.iter().map(|node| node.address.as_str()).collect();
    let mut options = ClientOptions::new(all.join(",").parse().unwrap());
    options.deadline = Duration::from_secs(20);
    Client::new(options).unwrap()
}

pub(crate) fn volume(cluster: &Cluster) -> Volume {
    let caller = Caller { uid: 0, gid: 0, groups: Vec::new(), checked: false };
    let options = VolumeOptions { caller, ..VolumeOptions::new("a test") };
    Volume::with(client(cluster), options).unwrap()
}

pub(crate) fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| u8::try_from((at / 7 + seed) % 251).unwrap() | 1).collect()
}

fn read(file: &File, from: u64, len: usize) -> Result<Vec<u8>, String> {
    let mut bytes = vec![9; len];
    let read = file.read_batch(&mut [(from, &mut bytes)]).map_err(|error| error.to_string())?;
    bytes.truncate(read[0]);
    Ok(bytes)
}

/// Takes a chunk of a file away behind the metas' back, as no part of the system does.
pub(crate) fn lose(client: &Client, attr: &Attr, index: u32) {
    let chunk = FileChunk { data: DataId(attr.chunk_data()), index };
    let cut = ChunkCut { chain: attr.layout.chain(index), chunk, change: ChunkChange::Collect };
    client.cut_chunks(&[cut], None).unwrap();
    let node =
        client.chains(None).unwrap().chains.iter().find(|it| it.id == cut.chain).unwrap().nodes[0];
    let filter = ChunkFilter { data: Some(chunk.data), chain: Some(cut.chain) };
    let left = client.list_chunks(node, filter, 0, None).unwrap().chunks;
    assert!(left.iter().all(|found| found.at.chunk != chunk), "{chunk} is there still");
}

fn fsck(cluster: &Cluster) -> (i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_millpond"));
    let output =
        command.args(["fsck", &cluster.nodes[0].address, "--settle", "0"]).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8(said).unwrap())
}

#[test]
fn what_was_written_and_is_lost_is_an_error_and_never_zeros() {
    let cluster = Cluster::start(2, 2);
    let (volume, client) = (volume(&cluster), client(&cluster));
    let file = until("files", || volume.open_file("file", &OpenOptions::CREATE).ok()).0;
    let chunk = usize::try_from(file.stat().unwrap().layout.chunk_bytes()).unwrap();
    let bytes = pattern(3 * chunk + 100, 0);
    // In pieces, of which none is as long as a chunk.
    for (n, piece) in bytes.chunks(chunk / 3 * 2).enumerate() {
        file.write_batch(&[((n * (chunk / 3 * 2)) as u64, piece)]).unwrap();
    }
    let attr = file.stat().unwrap();
    assert_eq!((attr.size, attr.solid), (bytes.len() as u64, bytes.len() as u64));
    assert_eq!(fsck(&cluster).0, 0);
    volume.clone_file("file", "clone").unwrap();
    let clone = volume.open_file("clone", &OpenOptions::UPDATE).unwrap();
    assert!(read(&clone, 0, bytes.len()).unwrap() == bytes);

    lose(&client, &attr, 1);
    for file in [&file, &clone] {
        let said = read(file, 0, bytes.len()).unwrap_err();
        assert!(said.contains("chunk 1 of data") && said.contains("is lost"), "{said}");
        assert!(read(file, 0, chunk).unwrap() == bytes[..chunk], "the others are there");
        assert!(read(file, 2 * chunk as u64, chunk).unwrap() == bytes[2 * chunk..3 * chunk]);
    }
    let (code, said) = fsck(&cluster);
    assert_ne!(code, 0, "{said}");
    let lost = |attr: &Attr| {
        let text = format!("chunk 1 of inode {} on chain", attr.ino);
        said.lines().any(|line| line.contains(&text) && line.contains("is lost"))
    };
    assert!(lost(&attr) && lost(&clone.stat().unwrap()), "{said}");

    // A client that has the bytes puts them back.
    clone.write_batch(&[(chunk as u64, &bytes[chunk..2 * chunk])]).unwrap();
    assert!(read(&clone, 0, bytes.len()).unwrap() == bytes);
    // Or has zeros there: then they are no error.
    file.set_len(chunk as u64).unwrap();
    file.set_len(bytes.len() as u64).unwrap();
    let mut zeros = bytes.clone();
    zeros[chunk..].fill(0);
    assert!(read(&file, 0, bytes.len()).unwrap() == zeros);
    assert_eq!(fsck(&cluster).0, 0);
}

#[test]
fn an_object_that_lost_a_chunk_is_an_error_whoever_wrote_its_parts() {
    let cluster = Cluster::start(1, 1);
    let (volume, client) = (volume(&cluster), client(&cluster));
    until("files", || volume.make_bucket("bucket", b"").ok());
    let body = volume.nameless_file(0).unwrap();
    let chunk = usize::try_from(body.stat().unwrap().layout.chunk_bytes()).unwrap();
    let bytes = pattern(2 * chunk, 5);
    // The end first: nothing tells a meta that it is whole but that it becomes an object.
    body.set_len(bytes.len() as u64).unwrap();
    body.write_batch(&[(chunk as u64, &bytes[chunk..])]).unwrap();
    body.write_batch(&[(0, &bytes[..chunk])]).unwrap();
    let put = PutObject {
        bucket: "bucket",
        key: b"key",
        body: Body::File(&body),
        attachment: b"etag",
        expect: Expect::Any,
        replicas: 0,
        origin: None,
    };
    volume.put_object(&put).unwrap();
    let object = volume.get_object("bucket", b"key", false).unwrap().unwrap();
    assert_eq!(object.attr.solid, bytes.len() as u64, "objects have no holes");
    let file = volume.object_file(&object).unwrap();
    assert!(read(&file, 0, bytes.len()).unwrap() == bytes);
    lose(&client, &object.attr, 0);
    assert!(read(&file, 0, 5).unwrap_err().contains("is lost"));
    assert!(read(&file, chunk as u64, chunk).unwrap() == bytes[chunk..]);
}

#[test]
fn what_was_never_written_is_a_hole() {
    let cluster = Cluster::start(1, 1);
    let volume = volume(&cluster);
    let file = until("files", || volume.open_file("file", &OpenOptions::CREATE).ok()).0;
    let chunk = file.stat().unwrap().layout.chunk_bytes();
    file.set_len(9 * chunk).unwrap();
    file.write_batch(&[(2 * chunk + 5, b"in the middle"), (20 * chunk, b"behind the end")])
        .unwrap();
    file.write_batch(&[(0, b"at the begin")]).unwrap();
    file.sync().unwrap();
    let attr = file.stat().unwrap();
    assert_eq!((attr.size, attr.solid), (20 * chunk + 14, 12));
    for index in (0..20).filter(|index| ![0, 2, 20].contains(index)) {
        let there = read(&file, index * chunk, 4096).unwrap();
        assert!(there.len() == 4096 && there.iter().all(|byte| *byte == 0), "chunk {index}");
    }
    assert_eq!(fsck(&cluster).0, 0);
}

/// A file is known to be there whole, in any order of its writes, by one client or by two in turns.
#[test]
fn all_of_a_file_that_is_written_out_of_order_is_known_to_be_there() {
    let cluster = Cluster::start(1, 1);
    let (one, other) = (volume(&cluster), volume(&cluster));
    let file = until("files", || one.open_file("file", &OpenOptions::CREATE).ok()).0;
    let piece = 300_000;
    let bytes = pattern(24 * piece, 2);
    let pieces: Vec<(u64, Vec<u8>)> =
        bytes.chunks(piece).enumerate().map(|(n, it)| ((n * piece) as u64, it.to_vec())).collect();
    file.set_len(bytes.len() as u64).unwrap();
    let written = pieces.iter().rev().map(|it| file.submit_write(vec![it.clone()]));
    for pending in written.collect::<Vec<_>>() {
        pending.wait().unwrap();
    }
    file.sync().unwrap();
    assert_eq!(file.stat().unwrap().solid, bytes.len() as u64);

    let file = one.open_file("turns", &OpenOptions::CREATE).unwrap();
    let same = other.open_file("turns", &OpenOptions::UPDATE).unwrap();
    for (n, (offset, piece)) in pieces.iter().enumerate() {
        [&file, &same][n % 2].write_batch(&[(*offset, piece)]).unwrap();
    }
    let attr = file.stat().unwrap();
    assert_eq!((attr.size, attr.solid), (bytes.len() as u64, bytes.len() as u64));
    assert!(read(&same, 0, bytes.len()).unwrap() == bytes);

    // Every other piece behind the end, which no chunk ends at: what lies there is cut before.
    let file = one.open_file("gaps", &OpenOptions::CREATE).unwrap();
    for pair in pieces.chunks(2) {
        for (offset, piece) in pair.iter().rev() {
            file.write_batch(&[(*offset, piece)]).unwrap();
        }
    }
    file.sync().unwrap();
    let attr = file.stat().unwrap();
    assert_eq!((attr.size, attr.solid), (bytes.len() as u64, bytes.len() as u64));
    assert!(read(&file, 0, bytes.len()).unwrap() == bytes);
}

/// A client that cuts a file takes bytes away from readers: they see zeros or the new bytes, and no error.
#[test]
fn readers_of_a_file_that_others_cut_see_no_error() {
    let cluster = Cluster::start(2, 2);
    let (one, other) = (volume(&cluster), volume(&cluster));
    let file = until("files", || one.open_file("file", &OpenOptions::CREATE).ok()).0;
    let chunk = usize::try_from(file.stat().unwrap().layout.chunk_bytes()).unwrap();
    let bytes = pattern(3 * chunk, 3);
    file.write_batch(&[(0, &bytes)]).unwrap();
    let same = other.open_file("file", &OpenOptions::READ).unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let mut reads = 0;
                    while !done.load(Ordering::Acquire) {
                        let there = read(&same, 0, bytes.len()).expect("it is cut, not lost");
                        let wrong = there.iter().zip(&bytes).position(|(a, b)| a != b && *a != 0);
                        assert_eq!(wrong, None, "other bytes than were written");
                        reads += 1;
                    }
                    reads
                })
            })
            .collect();
        let end = Instant::now() + Duration::from_secs(8);
        let mut round = 0;
        while Instant::now() < end {
            // To nothing, within a chunk, where one begins, and longer again.
            let size = [chunk / 2, chunk, 0, 2 * chunk + 9][round % 4];
            file.set_len(size as u64).unwrap();
            if round % 3 == 0 {
                file.set_len(bytes.len() as u64).unwrap();
            }
            file.write_batch(&[(size as u64, &bytes[size..])]).unwrap();
            round += 1;
        }
        done.store(true, Ordering::Release);
        let reads: u64 = readers.into_iter().map(|it| it.join().unwrap()).sum();
        assert!(reads > 3 && round > 3, "{reads} reads, {round} cuts");
    });
    assert!(read(&same, 0, bytes.len()).unwrap() == bytes);
    assert_eq!(fsck(&cluster).0, 0);
}
