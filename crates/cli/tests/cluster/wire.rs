//! A bare client of the protocol, past the client library.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use millpond_types::cluster::{Routing, RoutingUpdate};
use millpond_types::wire::{
    ErrorReply, FrameHeader, HEADER_BYTES, Hello, HelloReply, NamespaceOpen, NamespacesReply,
    PROTOCOL_VERSION, RoutingRequest, Status, Verb,
};
use millpond_types::{NamespaceInfo, NamespaceOptions};

/// One connection.
pub(crate) struct Wire {
    stream: TcpStream,
    pub(crate) hello: HelloReply,
    next: u64,
}

/// A refusal, or a broken connection.
#[derive(Debug)]
pub(crate) enum Refused {
    Status(Status, String),
    #[expect(dead_code, reason = "shown when a test fails")]
    Broken(io::Error),
}

impl From<io::Error> for Refused {
    fn from(error: io::Error) -> Self {
        Self::Broken(error)
    }
}

fn exchange(
    stream: &mut TcpStream,
    (verb, id): (Verb, u64),
    meta: &[u8],
    deadline: Duration,
) -> Result<Vec<u8>, Refused> {
    let header = FrameHeader {
        deadline_or_status: u32::try_from(deadline.as_millis()).unwrap(),
        proof: 0x5eed,
        ..FrameHeader::request(verb, id, meta)
    };
    let asked = header.asked();
    stream.write_all(&header.frame(meta))?;
    let mut head = [0; HEADER_BYTES];
    stream.read_exact(&mut head)?;
    let header = FrameHeader::decode(&head).unwrap();
    header.check_answers(asked).unwrap();
    let mut meta = vec![0; header.meta_len as usize];
    stream.read_exact(&mut meta)?;
    header.check_meta(&meta).unwrap();
    match Status::try_from(u16::try_from(header.deadline_or_status).unwrap()).unwrap() {
        Status::Ok => Ok(meta),
        status => Err(Refused::Status(status, ErrorReply::decode(&meta).unwrap().message)),
    }
}

impl Wire {
    pub(crate) fn connect(address: &str) -> Self {
        Self::try_connect(address).expect("a server that listens")
    }

    pub(crate) fn try_connect(address: &str) -> Option<Self> {
        Self::greet(address, u16::from(PROTOCOL_VERSION)).ok()
    }

    /// Says hello with one protocol version.
    pub(crate) fn greet(address: &str, version: u16) -> Result<Self, Refused> {
        Self::say_hello(address, version, b"")
    }

    /// Says hello with a credential.
    pub(crate) fn greet_with(address: &str, token: &[u8]) -> Result<Self, Refused> {
        Self::say_hello(address, u16::from(PROTOCOL_VERSION), token)
    }

    fn say_hello(address: &str, version: u16, token: &[u8]) -> Result<Self, Refused> {
        let address = address.parse().unwrap();
        let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(2))?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        stream.set_nodelay(true)?;
        let hello = Hello {
            version_min: version,
            version_max: version,
            client: "test".to_owned(),
            token: token.to_vec(),
        };
        let meta = exchange(&mut stream, (Verb::Hello, 0), &hello.encode(), Duration::ZERO)?;
        Ok(Self { stream, hello: HelloReply::decode(&meta).unwrap(), next: 1 })
    }

    pub(crate) fn call(
        &mut self,
        verb: Verb,
        meta: &[u8],
        deadline: Duration,
    ) -> Result<Vec<u8>, Refused> {
        self.next += 1;
        exchange(&mut self.stream, (verb, self.next), meta, deadline)
    }

    /// Waits until `copy` is newer; false when nothing came in time.
    pub(crate) fn follow(&mut self, copy: &mut Routing, wait: Duration) -> bool {
        let request = RoutingRequest { cluster: copy.cluster, have: copy.version };
        let reply = self.call(Verb::Routing, &request.encode(), wait).unwrap();
        if reply.is_empty() {
            return false;
        }
        copy.apply(RoutingUpdate::decode(&reply).unwrap()).unwrap()
    }

    pub(crate) fn open(&mut self, name: &str, replicas: u8) -> Result<NamespaceInfo, Refused> {
        let options = NamespaceOptions { replicas, ..NamespaceOptions::default() };
        let open = NamespaceOpen { name: name.to_owned(), create: true, options };
        let reply = self.call(Verb::NamespaceOpen, &open.encode(), Duration::from_secs(10))?;
        Ok(NamespacesReply::decode(&reply).unwrap().namespaces.remove(0))
    }

    pub(crate) fn names(&mut self) -> Vec<String> {
        let reply = self.call(Verb::NamespaceList, &[], Duration::from_secs(10)).unwrap();
        let all = NamespacesReply::decode(&reply).unwrap().namespaces;
        all.into_iter().map(|namespace| namespace.name).collect()
    }
}
