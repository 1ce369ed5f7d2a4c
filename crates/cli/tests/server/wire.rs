//! A client of a few lines, apart from the real one, so that both sides are tested by the document.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;

use millpond_types::wire::{
    ErrorReply, FrameHeader, GetReply, GetRequest, HEADER_BYTES, Hello, HelloReply, ItemStatus,
    KeysRequest, Leaders, MatchReply, MatchRequest, NamespaceOpen, NamespacesReply,
    PROTOCOL_VERSION, Planned, PutItem, PutRequest, Status, StatusReply, Verb,
};
use millpond_types::{Ack, BlockKey, Crc32c, GroupId, NamespaceInfo, NamespaceOptions};

use super::harness::{PATIENCE, TestServer};

pub(crate) trait Socket: Read + Write + Send {}
impl<T: Read + Write + Send> Socket for T {}

/// A connection that has said hello.
pub(crate) struct Wire {
    pub(crate) socket: Box<dyn Socket>,
    next: u64,
}

/// What came back.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) header: FrameHeader,
    pub(crate) status: Status,
    pub(crate) meta: Vec<u8>,
    pub(crate) payload: Vec<u8>,
}

impl Reply {
    pub(crate) fn error(&self) -> String {
        ErrorReply::decode(&self.meta).unwrap().message
    }

    pub(crate) fn ok(self) -> Self {
        assert_eq!(self.status, Status::Ok, "{}", self.error());
        self
    }
}

pub(crate) fn key(text: impl AsRef<[u8]>) -> BlockKey {
    BlockKey::new(text.as_ref()).unwrap()
}

fn header(verb: Verb, id: u64, meta: &[u8], payload: usize) -> FrameHeader {
    FrameHeader {
        payload_len: u32::try_from(payload).unwrap(),
        deadline_or_status: 30_000,
        proof: u32::try_from(id % 1_000_003).unwrap() * 4_001,
        ..FrameHeader::request(verb, id, meta)
    }
}

pub(crate) fn frame(verb: Verb, id: u64, meta: &[u8], payload: &[u8]) -> Vec<u8> {
    [&header(verb, id, meta, payload.len()).frame(meta)[..], payload].concat()
}

pub(crate) fn hello(token: &[u8]) -> Vec<u8> {
    let version_max = PROTOCOL_VERSION.into();
    Hello { version_min: 1, version_max, client: "test".to_owned(), token: token.to_vec() }.encode()
}

pub(crate) fn put_request(ns: GroupId, values: &[(BlockKey, &[u8])]) -> (Vec<u8>, Vec<u8>) {
    let items = values.iter().map(|(_, value)| PutItem {
        len: u32::try_from(value.len()).unwrap(),
        crc: Crc32c::of(value),
    });
    let request = PutRequest {
        namespace: ns,
        planned: Planned::default(),
        arena_offset: 0,
        keys: values.iter().map(|(key, _)| *key).collect(),
        items: items.collect(),
        leaders: Leaders::Own,
        tags: None,
    };
    (request.encode(), values.iter().flat_map(|(_, value)| value.iter().copied()).collect())
}

pub(crate) fn get_request(ns: GroupId, keys: &[BlockKey]) -> Vec<u8> {
    let room = vec![u32::MAX; keys.len()];
    let (namespace, planned, leaders) = (ns, Planned::default(), Leaders::Own);
    GetRequest { namespace, planned, keys: keys.to_vec(), room, leaders }.encode()
}

pub(crate) fn keys_request(ns: GroupId, keys: &[BlockKey]) -> KeysRequest {
    let (namespace, planned, leaders) = (ns, Planned::default(), Leaders::Own);
    KeysRequest { namespace, planned, keys: keys.to_vec(), leaders, tags: None }
}

impl Wire {
    pub(crate) fn over(socket: Box<dyn Socket>) -> Self {
        Self { socket, next: 1 }
    }

    fn tcp(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self::over(Box::new(stream))
    }

    /// Connects over TCP and says hello.
    pub(crate) fn connect(server: &TestServer) -> Self {
        let mut wire = Self::tcp(server.clients);
        wire.call(Verb::Hello, &hello(b""), &[]).unwrap().ok();
        wire
    }

    /// Connects over the Unix socket and says hello.
    pub(crate) fn connect_unix(path: &Path) -> Self {
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut wire = Self::over(Box::new(stream));
        wire.call(Verb::Hello, &hello(b""), &[]).unwrap().ok();
        wire
    }

    /// Connects over TCP and returns the answer to a hello with `token`.
    pub(crate) fn try_hello(server: &TestServer, token: &[u8]) -> (Self, Reply) {
        let mut wire = Self::tcp(server.clients);
        let reply = wire.call(Verb::Hello, &hello(token), &[]).unwrap();
        (wire, reply)
    }

    pub(crate) fn send(&mut self, verb: Verb, meta: &[u8], payload: &[u8]) -> io::Result<u64> {
        let id = self.next;
        self.next += 1;
        self.socket.write_all(&frame(verb, id, meta, payload))?;
        Ok(id)
    }

    pub(crate) fn receive(&mut self) -> io::Result<Reply> {
        let mut head = [0; HEADER_BYTES];
        self.socket.read_exact(&mut head)?;
        let header = FrameHeader::decode(&head).unwrap();
        let mut meta = vec![0; header.meta_len as usize];
        self.socket.read_exact(&mut meta)?;
        header.check_meta(&meta).unwrap();
        let mut payload = vec![0; header.payload_len as usize];
        self.socket.read_exact(&mut payload)?;
        let status = u16::try_from(header.deadline_or_status).unwrap();
        Ok(Reply { header, status: Status::try_from(status).unwrap(), meta, payload })
    }

    pub(crate) fn call(&mut self, verb: Verb, meta: &[u8], payload: &[u8]) -> io::Result<Reply> {
        let id = self.send(verb, meta, payload)?;
        let reply = self.receive()?;
        reply.header.check_answers(header(verb, id, meta, payload.len()).asked()).unwrap();
        Ok(reply)
    }

    /// As `call`, when the server may answer without having read the request.
    pub(crate) fn call_unchecked(&mut self, verb: Verb, meta: &[u8]) -> io::Result<Reply> {
        let _ = self.send(verb, meta, &[]);
        self.receive()
    }

    pub(crate) fn open(&mut self, name: &str, options: NamespaceOptions) -> NamespaceInfo {
        let open = NamespaceOpen { name: name.to_owned(), create: true, options };
        let reply = self.call(Verb::NamespaceOpen, &open.encode(), &[]).unwrap().ok();
        NamespacesReply::decode(&reply.meta).unwrap().namespaces.remove(0)
    }

    /// Opens a namespace whose writes are acknowledged from the disk.
    pub(crate) fn open_durable(&mut self, name: &str) -> GroupId {
        self.open(name, NamespaceOptions { ack: Ack::Disk, ..NamespaceOptions::default() }).id
    }

    pub(crate) fn put(&mut self, ns: GroupId, values: &[(BlockKey, &[u8])]) -> Vec<ItemStatus> {
        let (meta, payload) = put_request(ns, values);
        let reply = self.call(Verb::Put, &meta, &payload).unwrap().ok();
        StatusReply::decode(&reply.meta).unwrap().items
    }

    /// The values, checked against their checksums; `None` for a miss.
    pub(crate) fn get(&mut self, ns: GroupId, keys: &[BlockKey]) -> Vec<Option<Vec<u8>>> {
        let reply = self.call(Verb::Get, &get_request(ns, keys), &[]).unwrap().ok();
        values(&reply)
    }

    pub(crate) fn keys(&mut self, verb: Verb, ns: GroupId, keys: &[BlockKey]) -> Vec<ItemStatus> {
        let reply = self.call(verb, &keys_request(ns, keys).encode(), &[]).unwrap().ok();
        StatusReply::decode(&reply.meta).unwrap().items
    }

    pub(crate) fn match_prefix(&mut self, ns: GroupId, keys: &[BlockKey], ms: u32) -> MatchReply {
        let request = MatchRequest { keys: keys_request(ns, keys), lease_ms: ms, each: false };
        let reply = self.call(Verb::MatchPrefix, &request.encode(), &[]).unwrap().ok();
        MatchReply::decode(&reply.meta).unwrap()
    }

    /// Presence and lease of every key by itself.
    pub(crate) fn match_each(
        &mut self,
        ns: GroupId,
        keys: &[BlockKey],
        ms: u32,
    ) -> Vec<ItemStatus> {
        let request = MatchRequest { keys: keys_request(ns, keys), lease_ms: ms, each: true };
        let reply = self.call(Verb::MatchPrefix, &request.encode(), &[]).unwrap().ok();
        StatusReply::decode(&reply.meta).unwrap().items
    }

    /// What the server says about itself.
    pub(crate) fn facts(server: &TestServer) -> HelloReply {
        let (_, reply) = Self::try_hello(server, b"");
        HelloReply::decode(&reply.ok().meta).unwrap()
    }
}

/// The values of a get, checked against their checksums.
pub(crate) fn values(reply: &Reply) -> Vec<Option<Vec<u8>>> {
    let got = GetReply::decode(&reply.meta).unwrap();
    let mut rest = &reply.payload[..];
    let values = got.items.iter().map(|item| {
        if item.status != ItemStatus::Ok {
            assert_eq!(item.status, ItemStatus::Miss);
            return None;
        }
        let (value, after) = rest.split_at(item.len as usize);
        rest = after;
        assert_eq!(Crc32c::of(value), item.crc, "wrong bytes");
        Some(value.to_vec())
    });
    let values = values.collect();
    assert!(rest.is_empty(), "more payload than values");
    values
}

/// Bytes that differ for every seed.
pub(crate) fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend_from_slice(&state.to_le_bytes());
    }
    out.truncate(len);
    out
}
