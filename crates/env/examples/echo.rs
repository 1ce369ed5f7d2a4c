//! Payloads between a blocking client and the runtime, compared with two plain blocking sockets.
//!
//! `echo [BYTES=1048576] [SECONDS=2] [auto|uring|threads]`: the client sends 8 bytes and receives
//! BYTES, like a get. Prints throughput and latency percentiles for both servers.

#![allow(clippy::disallowed_methods, reason = "the plain sockets are what is compared with")]

use std::io::{IoSlice, Read, Write};
use std::net::{SocketAddr, TcpListener as PlainListener};
use std::time::Duration;

use millpond_env::{
    BlockingStream, BufferPool, IoBackend, PoolOptions, RealClock, Runtime, RuntimeOptions,
    TcpListener, thread,
};

fn client(name: &str, addr: SocketAddr, bytes: usize, seconds: u64) {
    let stream = BlockingStream::connect_tcp(addr, Duration::from_secs(1)).expect("a connection");
    let mut payload = vec![0u8; bytes];
    let mut latencies = Vec::new();
    let start = RealClock::tick();
    let end = start.plus(Duration::from_secs(seconds));
    while RealClock::tick() < end {
        let begin = RealClock::tick();
        let deadline = begin.plus(Duration::from_secs(5));
        stream.send_vectored(&[IoSlice::new(&[7; 8])], deadline).expect("a send");
        stream.recv_exact(&mut payload, deadline).expect("a payload");
        latencies.push(RealClock::tick().since(begin));
    }
    let spent = RealClock::tick().since(start).as_secs_f64();
    latencies.sort_unstable();
    let at = |share: usize| latencies[(latencies.len() - 1) * share / 1000].as_micros();
    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    let rate = latencies.len() as f64 / spent;
    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    let gbytes = rate * bytes as f64 / 1e9;
    println!("{name}: {rate:.0}/s, {gbytes:.2} GB/s, latency us p50 {} p99 {}", at(500), at(990));
}

fn plain_server(listener: &PlainListener, payload: &[u8]) {
    let (mut stream, _) = listener.accept().expect("a connection");
    stream.set_nodelay(true).expect("an option");
    let mut request = [0; 8];
    while stream.read_exact(&mut request).is_ok() {
        if stream.write_all(payload).is_err() {
            return;
        }
    }
}

async fn serve(listener: TcpListener, pool: BufferPool, bytes: usize) {
    let mut stream = listener.accept().await.expect("a connection");
    let payload = pool.try_alloc(bytes).expect("a buffer").freeze();
    let mut request = Vec::with_capacity(4096);
    loop {
        request.clear();
        let (back, got) = stream.read_some_vec(request).await;
        request = back;
        if got.expect("a request") == 0 {
            return;
        }
        stream.write_all(vec![payload.clone()]).await.expect("an answer");
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let bytes: usize = arguments.next().map_or(1 << 20, |text| text.parse().expect("bytes"));
    let seconds: u64 = arguments.next().map_or(2, |text| text.parse().expect("seconds"));
    let io = match arguments.next().as_deref() {
        Some("threads") => IoBackend::Threads,
        Some("uring") => IoBackend::Uring,
        _ => IoBackend::Auto,
    };
    let listener = PlainListener::bind("127.0.0.1:0").expect("a port");
    let addr = listener.local_addr().expect("an address");
    let payload = vec![1; bytes];
    let server = thread("plain", move || plain_server(&listener, &payload)).expect("a thread");
    client("plain blocking server", addr, bytes, seconds);
    server.join().expect("the server");

    let (sender, receiver) = std::sync::mpsc::channel();
    let server = thread("runtime", move || {
        let pool = BufferPool::new(PoolOptions::new(bytes.max(1 << 20))).expect("a pool");
        let options = RuntimeOptions { io, pools: vec![pool.clone()], ..Default::default() };
        let runtime = Runtime::new(options).expect("a runtime");
        println!("runtime backend {:?}", runtime.backend());
        runtime.block_on(async {
            let any = "127.0.0.1:0".parse().expect("an address");
            let listener = TcpListener::bind(any).expect("a port");
            sender.send(listener.local_addr().expect("an address")).expect("a client");
            serve(listener, pool, bytes).await;
        });
    })
    .expect("a thread");
    client("runtime server", receiver.recv().expect("an address"), bytes, seconds);
    server.join().expect("the server");
}
