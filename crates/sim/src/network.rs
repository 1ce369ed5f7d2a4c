//! A network that loses, repeats, delays, reorders, damages and cuts.

use millpond_chain::{Op, Peer, PeerBody, SyncBody, Write};

use crate::bytes::Bytes;
use crate::message::{Address, Message, Time, ms};
use crate::rng::Rng;

/// Probabilities in a thousand, and delays.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weather {
    pub(crate) loss: u64,
    pub(crate) repeat: u64,
    pub(crate) damage: u64,
    /// Messages with a long delay.
    pub(crate) late: u64,
    /// The longest of those delays.
    pub(crate) delay_max: Time,
}

impl Weather {
    pub(crate) const FAIR: Self = Self { loss: 0, repeat: 0, damage: 0, late: 0, delay_max: ms(5) };
}

#[derive(Clone, Debug)]
pub(crate) struct Network {
    nodes: usize,
    managers: usize,
    /// Number of cuts that block each direction.
    cut: Vec<Vec<u32>>,
    pub(crate) weather: Weather,
}

impl Network {
    pub(crate) fn new(nodes: usize, managers: usize, clients: usize) -> Self {
        let all = nodes + managers + clients;
        Self { nodes, managers, cut: vec![vec![0; all]; all], weather: Weather::FAIR }
    }

    const fn number(&self, address: Address) -> usize {
        match address {
            Address::Node(n) => n,
            Address::Manager(n) => self.nodes + n,
            Address::Client(n) => self.nodes + self.managers + n,
        }
    }

    pub(crate) fn cut(&mut self, from: Address, to: Address) {
        let (from, to) = (self.number(from), self.number(to));
        self.cut[from][to] += 1;
    }

    pub(crate) fn mend(&mut self, from: Address, to: Address) {
        let (from, to) = (self.number(from), self.number(to));
        self.cut[from][to] = self.cut[from][to].saturating_sub(1);
    }

    pub(crate) fn mend_all(&mut self) {
        for row in &mut self.cut {
            row.fill(0);
        }
    }

    /// Delays of the copies that arrive, each with the arriving message.
    pub(crate) fn carry(
        &self,
        from: Address,
        to: Address,
        message: Message,
        rng: &mut Rng,
    ) -> Vec<(Time, Message)> {
        if self.cut[self.number(from)][self.number(to)] > 0 || rng.permille(self.weather.loss) {
            return Vec::new();
        }
        let copies = 1 + usize::from(rng.permille(self.weather.repeat));
        let mut arriving = Vec::with_capacity(copies);
        for _ in 1..copies {
            arriving.push((self.delay(rng), message.clone()));
        }
        let message =
            if rng.permille(self.weather.damage) { damage(message, rng) } else { message };
        arriving.push((self.delay(rng), message));
        arriving
    }

    const fn delay(&self, rng: &mut Rng) -> Time {
        let short = rng.between(50, 400);
        if rng.permille(self.weather.late) {
            short + rng.below(self.weather.delay_max)
        } else if rng.permille(100) {
            short + rng.below(ms(4))
        } else {
            short
        }
    }
}

/// Flips a bit of the payload, if there is one.
fn damage(mut message: Message, rng: &mut Rng) -> Message {
    let bytes = match &mut message {
        Message::Update { body, .. } => match &mut body.op {
            Op::Put(bytes) | Op::Replace(bytes) | Op::Append(bytes) | Op::Write { bytes, .. } => {
                Some(bytes)
            }
            _ => None,
        },
        Message::Peer { peer, .. } => payload(peer),
        _ => None,
    };
    if let Some(bytes) = bytes {
        *bytes = bytes.damaged(rng.index(bytes.as_slice().len().max(1)));
    }
    message
}

const fn payload(peer: &mut Peer<Bytes>) -> Option<&mut Bytes> {
    match &mut peer.body {
        PeerBody::Forward { update, .. } => match &mut update.write {
            Write::Whole(bytes) | Write::Part { bytes, .. } => Some(bytes),
            Write::Truncate { .. } | Write::Tombstone | Write::Collect => None,
        },
        PeerBody::Fetched { bytes, .. } => Some(bytes),
        PeerBody::Sync(SyncBody::Put { bytes, .. }) => bytes.as_mut(),
        _ => None,
    }
}
