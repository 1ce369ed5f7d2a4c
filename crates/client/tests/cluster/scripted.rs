//! Nodes of a cluster that speak the protocol over real sockets and fail by script.

use std::collections::{HashMap, VecDeque};
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use millpond_client::{Client, ClientOptions, Keys};
use millpond_types::cluster::{
    Chain, ChainId, ChainTarget, ChainVersion, DiskId, Incarnation, NodeId, NodeInfo, NodeState,
    Routing, RoutingUpdate, RoutingVersion, SlotPlace, TargetId, TargetState,
};
use millpond_types::wire::{
    FrameHeader, GetItem, GetReply, GetRequest, HEADER_BYTES, HelloReply, ItemStatus, ItemTag,
    KeyInfo, KeysRequest, Leaders, ListReply, ListRequest, MatchRequest, PutRequest,
    RoutingRequest, StatsReply, Status, StatusReply, SuspectRequest, Tags, Verb,
};
use millpond_types::{BlockKey, Crc32c, GroupId, SlotId, Uuid128, placement};

pub(crate) const CLUSTER: Uuid128 = Uuid128([0xc1; 16]);
pub(crate) const GROUP: GroupId = GroupId(1);

/// Behavior of a node on one request about keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// Executes it, and closes the connection instead of answering.
    CutAfter,
    /// Sends half of the answer, then closes the connection.
    CutInside,
    /// Answers late, and with wrong bytes.
    LateAndWrong(Duration),
    /// Never answers.
    Silent,
    /// Refuses the whole request.
    Refuse(Status),
    /// Sends the answer to another request with the same id: a get of this key.
    AnswerToOther(BlockKey),
}

/// A request about keys, as a node saw it.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) node: u8,
    pub(crate) verb: Verb,
    pub(crate) keys: Vec<BlockKey>,
    pub(crate) tags: Vec<ItemTag>,
    pub(crate) client: u128,
}

/// The true state of the cluster, and the recorded events.
pub(crate) struct World {
    pub(crate) routing: Routing,
    pub(crate) values: HashMap<Vec<u8>, Vec<u8>>,
    pub(crate) seen: Vec<Seen>,
    pub(crate) suspected: Vec<(u8, u8)>,
    /// Acts on the next requests, per node; a request without an act is answered normally.
    pub(crate) acts: HashMap<u8, VecDeque<Act>>,
    /// The routing that replaces this one once a node is suspected.
    pub(crate) once_suspected: Option<Routing>,
    /// Most leases granted.
    pub(crate) leases: usize,
    pub(crate) connections: usize,
}

pub(crate) struct Cluster {
    pub(crate) world: Arc<Mutex<World>>,
    nodes: Vec<Node>,
}

struct Node {
    id: u8,
    address: String,
    stopped: Arc<Mutex<bool>>,
    streams: Arc<Mutex<Vec<TcpStream>>>,
}

pub(crate) fn node_id(n: u8) -> NodeId {
    NodeId(Uuid128([n; 16]))
}

/// A chain with serving targets on these nodes.
pub(crate) fn chain(id: u32, version: u32, nodes: &[u8]) -> Chain {
    let member = |n: &u8| ChainTarget {
        target: TargetId(u32::from(*n) + 100 * id),
        disk: DiskId::default(),
        node: node_id(*n),
        state: TargetState::Serving,
    };
    Chain {
        id: ChainId(id),
        version: ChainVersion(version),
        targets: nodes.iter().map(member).collect(),
    }
}

impl Cluster {
    /// Starts nodes 1 to `count`; slots are spread over the chains, one after the other.
    pub(crate) fn start(count: u8, chains: Vec<Chain>) -> Self {
        let mut routing =
            Routing { cluster: CLUSTER, version: RoutingVersion(1), ..Routing::default() };
        for slot in 0..=u16::MAX {
            let chain = chains[usize::from(slot) % chains.len()].id;
            routing.set_place(SlotId(slot), SlotPlace { chain, old: None });
        }
        routing.chains = chains.into_iter().map(|chain| (chain.id, chain)).collect();
        let world = Arc::new(Mutex::new(World {
            routing,
            values: HashMap::new(),
            seen: Vec::new(),
            suspected: Vec::new(),
            acts: HashMap::new(),
            once_suspected: None,
            leases: usize::MAX,
            connections: 0,
        }));
        let nodes: Vec<Node> = (1..=count).map(|id| Node::start(id, &world)).collect();
        for node in &nodes {
            let info = NodeInfo {
                id: node_id(node.id),
                addresses: vec![node.address.clone()],
                domain: String::new(),
                state: NodeState::Active,
                meta: false,
            };
            world.lock().unwrap().routing.nodes.insert(info.id, info);
        }
        Self { world, nodes }
    }

    pub(crate) fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap()
    }

    pub(crate) fn address(&self, id: u8) -> String {
        self.nodes[usize::from(id) - 1].address.clone()
    }

    pub(crate) fn options(&self) -> ClientOptions {
        let mut options = ClientOptions::new(self.address(1).parse().unwrap());
        options.deadline = Duration::from_secs(20);
        options
    }

    pub(crate) fn client(&self) -> Client {
        Client::new(self.options()).unwrap()
    }

    /// The node's process dies.
    pub(crate) fn kill(&self, id: u8) {
        let node = &self.nodes[usize::from(id) - 1];
        *node.stopped.lock().unwrap() = true;
        // Wakes the accepting thread.
        let _ = TcpStream::connect(&node.address);
        for stream in node.streams.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Sets the behavior of a node on its next requests about keys.
    pub(crate) fn then(&self, id: u8, act: Act) {
        self.world().acts.entry(id).or_default().push_back(act);
    }

    /// Changes the routing; nodes act on it at once.
    pub(crate) fn change(&self, change: impl FnOnce(&mut Routing)) {
        let mut world = self.world();
        change(&mut world.routing);
        world.routing.version.0 += 1;
    }

    /// Requests about keys since the last call.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        std::mem::take(&mut self.world().seen)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for node in 1..=self.nodes.len() {
            self.kill(u8::try_from(node).unwrap());
        }
    }
}

impl Node {
    fn start(id: u8, world: &Arc<Mutex<World>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (stopped, streams) = (Arc::new(Mutex::new(false)), Arc::new(Mutex::new(Vec::new())));
        let node =
            Self { id, address, stopped: Arc::clone(&stopped), streams: Arc::clone(&streams) };
        let world = Arc::clone(world);
        thread::spawn(move || {
            for stream in listener.incoming() {
                if *stopped.lock().unwrap() {
                    return;
                }
                let stream = stream.unwrap();
                stream.set_nodelay(true).unwrap();
                streams.lock().unwrap().push(stream.try_clone().unwrap());
                let world = Arc::clone(&world);
                thread::spawn(move || {
                    world.lock().unwrap().connections += 1;
                    let mut session = Session { id, stream, world: Arc::clone(&world) };
                    while session.serve().is_some() {}
                    let _ = session.stream.shutdown(Shutdown::Both);
                    world.lock().unwrap().connections -= 1;
                });
            }
        });
        node
    }
}

struct Session {
    id: u8,
    stream: TcpStream,
    world: Arc<Mutex<World>>,
}

struct Answer {
    status: Status,
    meta: Vec<u8>,
    payload: Vec<u8>,
}

fn ok(meta: Vec<u8>) -> Answer {
    Answer { status: Status::Ok, meta, payload: Vec::new() }
}

impl Session {
    /// Answers one request; none when the connection is over.
    fn serve(&mut self) -> Option<()> {
        let mut head = [0; HEADER_BYTES];
        self.stream.read_exact(&mut head).ok()?;
        let header = FrameHeader::decode(&head).unwrap();
        let mut meta = vec![0; header.meta_len as usize];
        self.stream.read_exact(&mut meta).ok()?;
        let mut payload = vec![0; header.payload_len as usize];
        self.stream.read_exact(&mut payload).ok()?;
        let verb = Verb::try_from(header.verb).unwrap();
        let wait = Duration::from_millis(u64::from(header.deadline_or_status));
        let Some(answer) = self.control(verb, &meta, wait) else {
            return self.keyed(&header, verb, (&meta, &payload));
        };
        self.send(&header, &answer, usize::MAX)
    }

    fn send(&mut self, request: &FrameHeader, answer: &Answer, most: usize) -> Option<()> {
        let verb = Verb::try_from(request.verb).unwrap();
        let header = FrameHeader {
            payload_len: u32::try_from(answer.payload.len()).unwrap(),
            ..FrameHeader::reply(request.asked(), verb, answer.status, &answer.meta)
        };
        let mut bytes = header.frame(&answer.meta);
        bytes.extend(&answer.payload);
        let end = if most == usize::MAX { bytes.len() } else { bytes.len() / 2 };
        self.stream.write_all(&bytes[..end]).ok()
    }

    fn control(&self, verb: Verb, meta: &[u8], wait: Duration) -> Option<Answer> {
        let mut world = self.world.lock().unwrap();
        Some(ok(match verb {
            Verb::Hello => HelloReply {
                version: 2,
                server: "scripted".to_owned(),
                node: node_id(self.id).0,
                boot_id: Uuid128::NIL,
                socket_path: String::new(),
                shm: false,
                in_flight_max: 8,
                cluster: world.routing.cluster,
                incarnation: Incarnation(1),
            }
            .encode(),
            Verb::Ping => Vec::new(),
            Verb::Suspect => {
                let node = SuspectRequest::decode(meta).unwrap().node;
                world.suspected.push((self.id, node.0.0[0]));
                if let Some(next) = world.once_suspected.take() {
                    world.routing = next;
                }
                Vec::new()
            }
            Verb::Routing => {
                let have = RoutingRequest::decode(meta).unwrap().have;
                drop(world);
                return Some(ok(self.newer(have, wait)));
            }
            Verb::Stats => {
                let value = |name: &str, value| (name.to_owned(), value);
                let id = u64::from(self.id);
                let values = vec![value("keys", id), value("namespaces", 3), value("unix_ms", id)];
                StatsReply { values }.encode()
            }
            Verb::List => {
                let request = ListRequest::decode(meta).unwrap();
                // Two pages per node.
                let name = format!("node-{}-page-{}", self.id, request.cursor);
                let key = BlockKey::new(name.as_bytes()).unwrap();
                let keys = vec![KeyInfo { key, len: 1, expires: 0, pinned: false }];
                let cursor = if request.cursor == 0 { 77 } else { 0 };
                ListReply { cursor, keys }.encode()
            }
            _ => return None,
        }))
    }

    fn newer(&self, have: RoutingVersion, wait: Duration) -> Vec<u8> {
        let end = Instant::now() + wait;
        loop {
            let world = self.world.lock().unwrap();
            if world.routing.version > have {
                return RoutingUpdate::Full(Box::new(world.routing.clone())).encode();
            }
            drop(world);
            if Instant::now() >= end {
                return Vec::new();
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn keyed(
        &mut self,
        header: &FrameHeader,
        verb: Verb,
        (meta, payload): (&[u8], &[u8]),
    ) -> Option<()> {
        let act = {
            let mut world = self.world.lock().unwrap();
            world.acts.entry(self.id).or_default().pop_front()
        };
        if let Some(Act::Refuse(status)) = act {
            let message = "as the script says".to_owned();
            let meta = millpond_types::wire::ErrorReply { retry_after_ms: 0, message }.encode();
            return self.send(header, &Answer { status, meta, payload: Vec::new() }, usize::MAX);
        }
        let mut answer = match verb {
            Verb::Put => self.put(&PutRequest::decode(meta).unwrap(), payload),
            Verb::Get => self.get(&GetRequest::decode(meta).unwrap()),
            Verb::MatchPrefix => self.matched(&MatchRequest::decode(meta).unwrap()),
            _ => self.keys(verb, &KeysRequest::decode(meta).unwrap()),
        };
        match act {
            Some(Act::AnswerToOther(key)) => {
                let asked = GetRequest { keys: vec![key], ..GetRequest::decode(meta).unwrap() };
                let other = FrameHeader::request(verb, header.request_id, &asked.encode());
                let other = FrameHeader { proof: header.proof, ..other };
                self.send(&other, &self.get(&asked), usize::MAX)
            }
            None | Some(Act::Refuse(_)) => self.send(header, &answer, usize::MAX),
            Some(Act::CutAfter) => None,
            Some(Act::CutInside) => self.send(header, &answer, 0).and(None),
            Some(Act::Silent) => {
                thread::sleep(Duration::from_secs(30));
                None
            }
            Some(Act::LateAndWrong(pause)) => {
                thread::sleep(pause);
                answer.payload.fill(0xbd);
                self.send(header, &answer, usize::MAX)
            }
        }
    }

    fn note(&self, world: &mut World, verb: Verb, keys: &[BlockKey], tags: Option<&Tags>) {
        world.seen.push(Seen {
            node: self.id,
            verb,
            keys: keys.to_vec(),
            tags: tags.map_or(Vec::new(), |tags| tags.items.clone()),
            client: tags.map_or(0, |tags| tags.client),
        });
    }

    /// Whether this node may answer for a key now.
    fn may(&self, world: &World, leader: &BlockKey, head: bool) -> bool {
        let place = world.routing.place(placement::slot(GROUP, leader));
        [Some(place.chain), place.old].into_iter().flatten().any(|id| {
            let mut serving = world.routing.chains[&id].serving().map(|member| member.node);
            let me = node_id(self.id);
            if head { serving.next() == Some(me) } else { serving.any(|node| node == me) }
        })
    }

    fn put(&self, request: &PutRequest, payload: &[u8]) -> Answer {
        let mut world = self.world.lock().unwrap();
        self.note(&mut world, Verb::Put, &request.keys, request.tags.as_ref());
        let (mut at, mut items) = (0, Vec::new());
        for (index, (key, item)) in request.keys.iter().zip(&request.items).enumerate() {
            let bytes = payload[at..at + item.len as usize].to_vec();
            at += item.len as usize;
            assert_eq!(Crc32c::of(&bytes), item.crc);
            items.push(
                if !self.may(&world, request.leaders.leader(&request.keys, index, 16), true) {
                    ItemStatus::Moved
                } else if world.values.contains_key(key.as_bytes()) {
                    ItemStatus::Exists
                } else {
                    world.values.insert(key.as_bytes().to_vec(), bytes);
                    ItemStatus::Ok
                },
            );
        }
        ok(StatusReply { items }.encode())
    }

    fn get(&self, request: &GetRequest) -> Answer {
        let mut world = self.world.lock().unwrap();
        self.note(&mut world, Verb::Get, &request.keys, None);
        let (mut items, mut payload) = (Vec::new(), Vec::new());
        for (index, key) in request.keys.iter().enumerate() {
            let leader = request.leaders.leader(&request.keys, index, 16);
            let value = world.values.get(key.as_bytes());
            let (status, value) = match value {
                _ if !self.may(&world, leader, false) => (ItemStatus::Moved, &[][..]),
                None => (ItemStatus::Miss, &[][..]),
                Some(value) => (ItemStatus::Ok, &value[..]),
            };
            let len = u32::try_from(value.len()).unwrap();
            items.push(GetItem { status, len, crc: Crc32c::of(value), pool_offset: 0 });
            payload.extend_from_slice(value);
        }
        Answer { status: Status::Ok, meta: GetReply { hold: 0, items }.encode(), payload }
    }

    fn keys(&self, verb: Verb, request: &KeysRequest) -> Answer {
        let mut world = self.world.lock().unwrap();
        self.note(&mut world, verb, &request.keys, request.tags.as_ref());
        let mut items = Vec::new();
        for (index, key) in request.keys.iter().enumerate() {
            let leader = request.leaders.leader(&request.keys, index, 16);
            let head = matches!(verb, Verb::Touch | Verb::Delete | Verb::MatchPrefix);
            let there = world.values.contains_key(key.as_bytes());
            items.push(match there {
                _ if !self.may(&world, leader, head) => ItemStatus::Moved,
                false => ItemStatus::Miss,
                true if verb == Verb::MatchPrefix && world.leases == 0 => ItemStatus::Exists,
                true => {
                    if verb == Verb::MatchPrefix {
                        world.leases -= 1;
                    }
                    ItemStatus::Ok
                }
            });
            if verb == Verb::Delete && items.last() == Some(&ItemStatus::Ok) {
                world.values.remove(key.as_bytes());
            }
        }
        ok(StatusReply { items }.encode())
    }

    fn matched(&self, request: &MatchRequest) -> Answer {
        assert!(request.each, "a node of a cluster cannot count leading keys");
        self.keys(Verb::MatchPrefix, &request.keys)
    }
}

/// Keys of a batch in the scripted cluster.
pub(crate) fn keys_of<'a>(keys: &'a [BlockKey], leaders: &'a Leaders) -> Keys<'a> {
    Keys { namespace: GROUP, node: CLUSTER, run_blocks: 16, keys, leaders }
}
