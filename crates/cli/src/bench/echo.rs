//! The floor of a TCP store on this machine: two threads, one loopback connection, blocking
//! calls, frames as long as the protocol's, nothing in between.

use std::io::{IoSlice, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use millpond_types::wire::{GetReply, HEADER_BYTES};

use super::args::{Direction, EchoArgs};
use super::record::{Outcome, Record};
use super::report;

/// Bytes of a request for one key: header and meta.
const ASK: usize = HEADER_BYTES + 40;
/// Bytes of a reply for one key: header and meta.
const ANSWER: usize = HEADER_BYTES + 12 + GetReply::ITEM_BYTES;
/// Exchanges before the measured ones.
const WARMUP: u32 = 200;
/// Windows of the payload buffer that successive exchanges use, as a store's values would.
const WINDOWS_BYTES: usize = 256 << 20;

/// Measures the floor and prints it.
pub(super) fn run(args: &EchoArgs) -> Result<()> {
    let size = usize::try_from(args.size.0)?;
    ensure!((1..=64 << 20).contains(&size), "--size: use 1 B to 64 MiB");
    ensure!(args.seconds > 0.0, "--seconds: use more than 0");
    let listener = TcpListener::bind("127.0.0.1:0").context("a free port on loopback")?;
    let client = TcpStream::connect(listener.local_addr()?)?;
    let (server, _) = listener.accept()?;
    let direction = args.direction;
    let record = std::thread::scope(|scope| {
        let serving = scope.spawn(move || serve(server, size, direction));
        let record = ask(client, size, args);
        let end = serving.join().map_err(|_| anyhow::anyhow!("the echo server panicked"))?;
        record.and_then(|record| end.map(|()| record))
    })?;
    report::echo(args, &record)
}

/// Bytes of a request and of a reply.
const fn lengths(size: usize, direction: Direction) -> (usize, usize) {
    match direction {
        Direction::Get => (ASK, ANSWER + size),
        Direction::Put => (ASK + size, ANSWER),
    }
}

fn serve(mut stream: TcpStream, size: usize, direction: Direction) -> Result<()> {
    stream.set_nodelay(true)?;
    let (ask, _) = lengths(size, direction);
    let windows = windows(size);
    let store = vec![7; windows * size];
    let mut request = vec![0; ask];
    let mut turn = 0;
    loop {
        match stream.read_exact(&mut request) {
            Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(()),
            other => other?,
        }
        match direction {
            Direction::Get => {
                let at = turn % windows * size;
                write_two(&mut stream, &[0; ANSWER], &store[at..at + size])?;
            }
            Direction::Put => stream.write_all(&[0; ANSWER])?,
        }
        turn += 1;
    }
}

fn ask(mut stream: TcpStream, size: usize, args: &EchoArgs) -> Result<Record> {
    stream.set_nodelay(true)?;
    let (_, answer) = lengths(size, args.direction);
    let payload = vec![9; if args.direction == Direction::Put { size } else { 0 }];
    let mut reply = vec![0; answer];
    let mut exchange = |stream: &mut TcpStream| -> std::io::Result<()> {
        write_two(stream, &[0; ASK], &payload)?;
        stream.read_exact(&mut reply)
    };
    for _ in 0..WARMUP {
        exchange(&mut stream)?;
    }
    let mut record = Record::new();
    let start = Instant::now();
    let span = Duration::from_secs_f64(args.seconds);
    let outcome = Outcome { done: 1, bytes: size as u64, ..Outcome::default() };
    while start.elapsed() < span {
        let before = Instant::now();
        exchange(&mut stream)?;
        let took = before.elapsed();
        record.add(args.direction == Direction::Get, nanos(start.elapsed()), nanos(took), outcome);
    }
    Ok(record)
}

fn windows(size: usize) -> usize {
    (WINDOWS_BYTES / size).max(1)
}

pub(super) fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

fn write_two(stream: &mut TcpStream, head: &[u8], tail: &[u8]) -> std::io::Result<()> {
    let mut sent = 0;
    while sent < head.len() {
        let n = stream.write_vectored(&[IoSlice::new(&head[sent..]), IoSlice::new(tail)])?;
        sent += n;
    }
    stream.write_all(&tail[sent - head.len()..])
}
