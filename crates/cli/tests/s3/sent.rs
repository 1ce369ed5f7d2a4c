//! Bodies on their way out: from where they lie in the memory of the gateway's own node, or copied.

use millpond_client::OpenOptions;

use crate::server::{Server, until};

const MIB: usize = 1 << 20;

fn body(len: usize) -> Vec<u8> {
    (0..=250).cycle().take(len).collect()
}

/// Payload that the gateway sent without a copy.
fn uncopied(server: &Server) -> usize {
    usize::try_from(server.metric("millpond_own_send_bytes_total")).unwrap()
}

#[test]
fn what_the_own_node_has_is_sent_without_a_copy() {
    let server = Server::start();
    let s3 = server.client();
    s3.bucket("bkt");
    // Four chunks and a bit, and less than what lies in the store.
    let (large, small) = (body(4 * 256 * 1024 + 7), body(900));
    s3.put("/bkt/large", large.clone()).send().expect(200);
    s3.put("/bkt/small", small.clone()).send().expect(200);
    let before = uncopied(&server);
    assert!(s3.bytes("/bkt/large") == large);
    assert_eq!(uncopied(&server) - before, large.len());
    assert!(s3.bytes("/bkt/small") == small);
    // Over the end of a chunk, within one, and the last byte.
    for (first, last) in
        [(200_000, 600_000), (300_000, 300_001), (large.len() - 1, large.len() - 1)]
    {
        let range = format!("bytes={first}-{last}");
        let got = s3.get("/bkt/large").header("range", &range).send().expect(206);
        assert!(got.body == large[first..=last], "{range}");
    }
    let ranges = 400_001 + 2 + 1;
    assert_eq!(uncopied(&server) - before, large.len() + ranges);
    // A gateway without disks has nothing in its memory.
    let elsewhere = server.gateway_with(&[
        "--s3-access-key",
        crate::server::ACCESS,
        "--s3-secret-key",
        crate::server::SECRET,
    ]);
    assert!(elsewhere.client().bytes("/bkt/large") == large);
    assert_eq!(uncopied(&server) - before, large.len() + ranges);
}

/// Clients that ask for much and read nothing hold memory of the node, but not all of it: others go on as if they were not there.
/// What nobody ever put is not sent: an answer breaks off where its file is another one.
#[test]
fn what_changes_while_it_is_sent_breaks_the_answer_off() {
    let server = Server::start();
    let s3 = server.client();
    s3.bucket("bkt");
    let large = body(24 * MIB);
    let volume = crate::behind::volume(&server);
    let len = large.len() as u64;
    for (name, change) in [("cut", true), ("over", false)] {
        let path = format!("/bkt/{name}");
        s3.put(&path, large.clone()).send().expect(200);
        let before = server.metric("millpond_send_bytes_total");
        let answers = [(); 2].map(|()| s3.get(&path).unread());
        until("some of it is sent", || {
            let sent = server.metric("millpond_send_bytes_total") - before;
            (sent >= 2 * 2 * MIB as u64).then_some(())
        });
        let file = volume.open_file(&path, &OpenOptions::UPDATE).unwrap();
        if change {
            file.set_len(0).unwrap();
            file.set_len(len).unwrap();
        } else {
            file.write_batch(&[(len - 9, b"something")]).unwrap();
            file.sync().unwrap();
        }
        for mut answer in answers {
            match answer.try_read() {
                Err(_) => {}
                Ok(whole) => assert!(whole.body == large, "{name}: {} bytes", whole.body.len()),
            }
        }
    }
    // Attributes are none of the content.
    s3.put("/bkt/kept", large.clone()).send().expect(200);
    let slow = s3.get("/bkt/kept").unread();
    s3.put("/bkt/kept", "another object").send().expect(200);
    assert!(slow.read().expect(200).body == large);
}

#[test]
fn clients_that_do_not_read_leave_memory_to_others() {
    let server = Server::start();
    let s3 = server.client();
    s3.bucket("bkt");
    let large = body(24 * MIB);
    s3.put("/bkt/large", large.clone()).send().expect(200);
    let slow: Vec<_> = (0..18).map(|_| s3.get("/bkt/large").unread()).collect();
    // Until each holds what it may: nothing is sent any more, and each was sent what its sockets take.
    let mut sent = (0, 1);
    while sent.0 != sent.1 || sent.0 < 18 * 2 * MIB as u64 {
        std::thread::sleep(std::time::Duration::from_millis(700));
        sent = (server.metric("millpond_send_bytes_total"), sent.0);
    }
    let before = uncopied(&server);
    let others = body(6 * MIB);
    for n in 0..4 {
        let path = format!("/bkt/{n}");
        s3.put(&path, others.clone()).send().expect(200);
        assert!(s3.bytes(&path) == others, "{path}");
    }
    assert_eq!(uncopied(&server), before, "those who do not read hold all that may be held");
    for client in slow {
        assert!(client.read().expect(200).body == large);
    }
    let before = uncopied(&server);
    assert!(s3.bytes("/bkt/0") == others);
    assert_eq!(uncopied(&server) - before, others.len(), "what was held is given back");
}
