use std::io::{self, IoSlice, IoSliceMut};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::Duration;

use millpond_types::Tick;

use super::{BlockingStream, PeerAddr, Piece, RawSegment, Stream, TcpListener, UnixListener};
use crate::clock::RealClock;
use crate::pool::{BufferPool, SharedBuf};
use crate::rng::Rng;
use crate::rt::tests::on_both;
use crate::rt::{sleep, spawn, thread, timeout, yield_now};
use crate::sys::EventFd;

fn any_port() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

fn soon() -> Tick {
    RealClock::tick().plus(Duration::from_secs(10))
}

/// Both ends of a connection.
async fn pair() -> (Stream, Stream) {
    let listener = TcpListener::bind(any_port()).unwrap();
    let addr = listener.local_addr().unwrap();
    let accepting = spawn(async move { listener.accept().await.unwrap() });
    let client = Stream::connect_tcp(addr).await.unwrap();
    let server = accepting.await.unwrap();
    assert_eq!(server.peer_addr().unwrap(), PeerAddr::Tcp(local(&client)));
    (client, server)
}

fn local(stream: &Stream) -> SocketAddr {
    match stream.local_addr().unwrap() {
        PeerAddr::Tcp(addr) => addr,
        PeerAddr::Unix => panic!("a TCP stream has a TCP address"),
    }
}

fn noise(pool: &BufferPool, len: usize, seed: u64) -> SharedBuf {
    let mut buf = pool.try_alloc(len).unwrap();
    Rng::new(seed).fill(&mut buf);
    buf.freeze()
}

#[test]
fn large_vectored_sends_arrive_whole_and_in_order() {
    on_both(async |pool| {
        let (client, mut server) = pair().await;
        let big = noise(&pool, 3 << 20, 1);
        let sent: Vec<u8> = [b"head".as_slice(), &big, b"", &big[100..5000], b"tail"].concat();
        let (_reader, mut writer) = client.split();
        let pieces = vec![
            Piece::Vec(b"head".to_vec()),
            Piece::Shared(big.clone()),
            Piece::Vec(Vec::new()),
            Piece::Shared(big.slice(100..5000)),
            Piece::Vec(b"tail".to_vec()),
        ];
        let sender = spawn(async move { writer.write_all_mixed(pieces).await.unwrap() });
        let (buf, result) = server.read_full(pool.try_alloc(sent.len()).unwrap(), 0).await;
        result.unwrap();
        assert!(*buf == sent);
        sender.await.unwrap();
    });
}

#[test]
fn thousands_of_pieces_go_out() {
    on_both(async |pool| {
        let (mut client, mut server) = pair().await;
        let pieces = (0..5000u32).map(|number| Piece::Vec(number.to_le_bytes().to_vec())).collect();
        let empty = (0..3000).map(|_| Piece::Vec(Vec::new())).collect();
        let sender = spawn(async move {
            client.write_all_mixed(empty).await.unwrap();
            client.write_all_mixed(pieces).await.unwrap();
            client.write_all(Vec::new()).await.unwrap();
        });
        let (buf, result) = server.read_full(pool.try_alloc(20_000).unwrap(), 0).await;
        result.unwrap();
        assert_eq!(buf[19_996..], 4999u32.to_le_bytes());
        sender.await.unwrap();
    });
}

#[test]
fn receives_are_partial_until_full_and_see_the_end() {
    on_both(async |pool| {
        let (mut client, mut server) = pair().await;
        client.write_all_vec(b"abc".to_vec()).await.1.unwrap();
        let (buf, got) = server.read_some(pool.try_alloc(10).unwrap(), 2).await;
        assert_eq!((got.unwrap(), &buf[2..5]), (3, b"abc".as_slice()));
        server.readable_now_or_later().await;
        client.write_all_vec(b"de".to_vec()).await.1.unwrap();
        server.readable().await.unwrap();
        let (bytes, got) = server.read_some_vec(b"x".to_vec_with(8)).await;
        assert_eq!((got.unwrap(), bytes.as_slice()), (2, b"xde".as_slice()));
        client.write_all_vec(b"f".to_vec()).await.1.unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let (buf, result) = server.read_full(buf, 0).await;
        assert_eq!(result.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(buf[0], b'f');
        let (_, got) = server.read_some(buf, 0).await;
        assert_eq!(got.unwrap(), 0);
    });
}

trait TestBytes {
    fn to_vec_with(&self, capacity: usize) -> Vec<u8>;
}
impl<const N: usize> TestBytes for [u8; N] {
    fn to_vec_with(&self, capacity: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(capacity);
        bytes.extend_from_slice(self);
        bytes
    }
}
impl Stream {
    /// Cancels a wait for data.
    async fn readable_now_or_later(&mut self) {
        assert!(timeout(Duration::from_millis(1), self.readable()).await.is_err());
    }
}

#[test]
fn a_dropped_receive_keeps_its_buffer_until_the_kernel_is_done() {
    on_both(async |pool| {
        let (mut client, mut server) = pair().await;
        for _ in 0..10 {
            let buf = pool.try_alloc(4096).unwrap();
            let waiting = server.read_some(buf, 0);
            assert!(timeout(Duration::from_millis(1), waiting).await.is_err());
        }
        for _ in 0..1_000 {
            if pool.used() == 0 {
                break;
            }
            yield_now().await;
            sleep(Duration::from_micros(100)).await;
        }
        assert_eq!(pool.used(), 0);
        // The connection still carries bytes, and none went to the dropped receives.
        client.write_all_vec(b"hello".to_vec()).await.1.unwrap();
        let (buf, result) = server.read_full(pool.try_alloc(5).unwrap(), 0).await;
        result.unwrap();
        assert_eq!(&*buf, b"hello");
    });
}

#[test]
fn a_send_to_a_gone_peer_is_an_error_not_a_signal() {
    on_both(async |pool| {
        let (mut client, server) = pair().await;
        drop(server);
        let payload = noise(&pool, 1 << 20, 2);
        let mut result = Ok(());
        for _ in 0..100 {
            result = client.write_all(vec![payload.clone()]).await;
            if result.is_err() {
                break;
            }
        }
        assert!(matches!(
            result.unwrap_err().kind(),
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset
        ));
    });
}

#[test]
fn many_connections_echo_at_once() {
    on_both(async |pool| {
        let listener = TcpListener::bind(any_port()).unwrap();
        let addr = listener.local_addr().unwrap();
        let server_pool = pool.clone();
        let server = spawn(async move {
            for _ in 0..50 {
                let mut stream = listener.accept().await.unwrap();
                let pool = server_pool.clone();
                spawn(async move {
                    let mut buf = pool.try_alloc(1000).unwrap();
                    loop {
                        let (back, got) = stream.read_some(buf, 0).await;
                        let got = got.unwrap();
                        if got == 0 {
                            return;
                        }
                        let shared = back.freeze();
                        stream.write_all(vec![shared.slice(0..got)]).await.unwrap();
                        buf = shared.try_unique().unwrap();
                    }
                });
            }
        });
        let clients: Vec<_> = (0..50u8)
            .map(|number| {
                let pool = pool.clone();
                spawn(async move {
                    let mut stream = Stream::connect_tcp(addr).await.unwrap();
                    for round in 0..20usize {
                        let len = 1 + round * 350 + usize::from(number);
                        let payload = noise(&pool, len, round as u64);
                        stream.write_all(vec![payload.clone()]).await.unwrap();
                        let (back, result) =
                            stream.read_full(pool.try_alloc(len).unwrap(), 0).await;
                        result.unwrap();
                        assert!(*back == *payload);
                    }
                })
            })
            .collect();
        for client in clients {
            client.await.unwrap();
        }
        server.await.unwrap();
        while pool.used() > 0 {
            yield_now().await;
        }
    });
}

#[test]
fn a_listener_can_stop_accepting() {
    on_both(async |_| {
        let listener = TcpListener::bind(any_port()).unwrap();
        let addr = listener.local_addr().unwrap();
        assert!(timeout(Duration::from_millis(1), listener.accept()).await.is_err());
        let connecting = spawn(Stream::connect_tcp(addr));
        let server = listener.accept().await.unwrap();
        connecting.await.unwrap().unwrap();
        drop((server, listener));
        sleep(Duration::from_millis(1)).await;
        let error = Stream::connect_tcp(addr).await.err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    });
}

#[test]
fn a_port_in_use_is_an_error_and_cores_can_share_one() {
    on_both(async |_| {
        let first = TcpListener::bind_shared(any_port()).unwrap();
        let addr = first.local_addr().unwrap();
        let _second = TcpListener::bind_shared(addr).unwrap();
        let error = TcpListener::bind(addr).err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    });
}

#[test]
fn unix_sockets_carry_bytes_credentials_and_descriptors() {
    on_both(async |_| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let accepting = spawn(async move { listener.accept().await.unwrap() });
        let mut client = Stream::connect_unix(&path).await.unwrap();
        let mut server = accepting.await.unwrap();
        assert_eq!(server.peer_addr().unwrap(), PeerAddr::Unix);
        let credentials = server.peer_credentials().unwrap();
        assert_eq!(u32::try_from(credentials.pid).unwrap(), std::process::id());

        let event = EventFd::new().unwrap();
        let receiving = spawn(async move { client.recv_fds(64).await.unwrap() });
        sleep(Duration::from_millis(1)).await;
        server.send_fds(b"take this", &[event.as_fd(), event.as_fd()]).await.unwrap();
        let (bytes, mut fds) = receiving.await.unwrap();
        assert_eq!((bytes.as_slice(), fds.len()), (b"take this".as_slice(), 2));
        EventFd::from_owned(fds.remove(0)).notify();
        assert!(event.take());
        assert!(server.send_fds(b"", &[event.as_fd()]).await.is_err());
    });
}

#[test]
fn a_stale_unix_socket_is_replaced_and_other_files_are_not() {
    on_both(async |_| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let listener = UnixListener::bind(&path).unwrap();
        assert_eq!(UnixListener::bind(&path).err().unwrap().kind(), io::ErrorKind::AddrInUse);
        drop(listener);
        assert!(!path.exists());
        std::fs::write(&path, "precious").unwrap();
        assert!(UnixListener::bind(&path).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
        let long = folder.path().join("x".repeat(200));
        let text = UnixListener::bind(&long).err().unwrap().to_string();
        assert!(text.contains("shorter"), "{text}");
    });
}

#[test]
fn a_connection_moves_to_another_core() {
    on_both(async |_| {
        let (client, mut server) = pair().await;
        let fd = client.into_owned_fd().ok().unwrap();
        let other = thread("other", move || {
            crate::rt::Runtime::new(crate::rt::RuntimeOptions::default()).unwrap().block_on(
                async {
                    let mut client = Stream::from_owned_fd(fd).unwrap();
                    client.write_all_vec(b"moved".to_vec()).await.1.unwrap();
                },
            );
        })
        .unwrap();
        let (bytes, _) = server.read_some_vec(Vec::with_capacity(16)).await;
        assert_eq!(bytes, b"moved");
        other.join().unwrap();
    });
}

#[test]
fn blocking_clients_talk_to_the_loop() {
    on_both(async |pool| {
        let listener = TcpListener::bind(any_port()).unwrap();
        let addr = listener.local_addr().unwrap();
        let client = thread("client", move || {
            let stream = BlockingStream::connect_tcp(addr, Duration::from_secs(5)).unwrap();
            let bytes: Vec<u8> = (0..2_000_000u32).map(|i| i.to_le_bytes()[1]).collect();
            let (left, right) = bytes.split_at(777);
            let parts = [IoSlice::new(left), IoSlice::new(&[]), IoSlice::new(right)];
            stream.send_vectored(&parts, soon()).unwrap();
            let (mut a, mut b) = (vec![0; 1_000], vec![0; 1_999_000]);
            let parts = [
                RawSegment { addr: a.as_mut_ptr(), len: a.len() },
                RawSegment { addr: b.as_mut_ptr(), len: b.len() },
            ];
            // SAFETY: the segments are the two vectors.
            unsafe { stream.recv_exact_raw(&parts, soon()) }.unwrap();
            assert!([a, b].concat() == bytes);
            assert!(!stream.poll_readable(Duration::from_millis(1)).unwrap());
            let start = RealClock::tick();
            let deadline = start.plus(Duration::from_millis(20));
            let error = stream.recv(&mut [0; 8], deadline).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::TimedOut);
            assert!(RealClock::tick() >= deadline);
            stream.shutdown(Shutdown::Write).unwrap();
            let mut rest = [0; 4];
            let (one, two) = rest.split_at_mut(1);
            let mut parts = [IoSliceMut::new(one), IoSliceMut::new(two)];
            assert_eq!(stream.recv_vectored(&mut parts, soon()).unwrap(), 3);
            assert_eq!(&rest, b"bye\0");
            assert_eq!(stream.recv(&mut rest, soon()).unwrap(), 0);
            let error = stream.recv_exact(&mut rest, soon()).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        })
        .unwrap();
        let mut stream = listener.accept().await.unwrap();
        let buf = pool.try_alloc(2_000_000).unwrap();
        let (buf, result) = stream.read_full(buf, 0).await;
        result.unwrap();
        stream.write_all(vec![buf.freeze()]).await.unwrap();
        let (_, got) = stream.read_some_vec(Vec::with_capacity(8)).await;
        assert_eq!(got.unwrap(), 0);
        stream.write_all_vec(b"bye".to_vec()).await.1.unwrap();
        drop(stream);
        client.join().unwrap();
    });
}

#[test]
fn blocking_clients_exchange_descriptors_with_the_loop() {
    on_both(async |_| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let client = thread("client", move || {
            let stream = BlockingStream::connect_unix(&path, Duration::from_secs(5)).unwrap();
            let event = EventFd::new().unwrap();
            stream.send_fds(b"mine", &[event.as_fd()], soon()).unwrap();
            let mut bytes = [0; 16];
            let (got, fds) = stream.recv_fds(&mut bytes, soon()).unwrap();
            assert_eq!((&bytes[..got], fds.len()), (b"yours".as_slice(), 1));
            assert!(event.take());
        })
        .unwrap();
        let mut stream = listener.accept().await.unwrap();
        let (bytes, fds) = stream.recv_fds(16).await.unwrap();
        assert_eq!((bytes.as_slice(), fds.len()), (b"mine".as_slice(), 1));
        let fds: Vec<OwnedFd> = fds;
        crate::sys::notify_raw(fds[0].as_raw_fd());
        stream.send_fds(b"yours", &[fds[0].as_fd()]).await.unwrap();
        client.join().unwrap();
    });
}

#[test]
fn connecting_ends_at_its_time_limit() {
    // TEST-NET-1 (RFC 5737): no host answers, or there is no route; both are errors in time.
    let addr = "192.0.2.1:9".parse().unwrap();
    let start = RealClock::tick();
    assert!(BlockingStream::connect_tcp(addr, Duration::from_millis(50)).is_err());
    assert!(RealClock::tick().since(start) < Duration::from_secs(5));
}
