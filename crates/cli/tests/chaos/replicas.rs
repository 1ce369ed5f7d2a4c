//! What each replica says by itself: every node is asked for every key, past the client.

use std::collections::BTreeMap;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use millpond_client::Transport;
use millpond_types::BlockKey;
use millpond_types::wire::{GetReply, ItemStatus, Verb};

use super::history::{Deed, Entry};
use super::load::Door;
use super::value;
use super::wire::{Wire, get_request, hello};

/// Keys of one request: values of all of them fit a reply.
const PAGE: usize = 64;
const PATIENCE: Duration = Duration::from_secs(20);

/// What a node says of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    /// It has the value of this put.
    Value(u64),
    Nothing,
    /// It has no replica of the key's chain.
    Elsewhere,
    /// It cannot say.
    Other(ItemStatus),
}

/// Asks the node at `address` for its own replicas of keys.
pub(crate) fn ask(
    address: &str,
    replicas: u8,
    keys: &[u64],
) -> Result<BTreeMap<u64, Said>, String> {
    let broken = |error: &dyn std::fmt::Display| format!("{address}: {error}");
    let door = Door::open(address, ("chaos", replicas), Transport::Tcp, PATIENCE);
    let namespace = door.map_err(|error| broken(&error))?.namespace();
    let stream = TcpStream::connect(address).map_err(|error| broken(&error))?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(|error| broken(&error))?;
    let mut wire = Wire::over(Box::new(stream));
    wire.call(Verb::Hello, &hello(b""), &[]).map_err(|error| broken(&error))?.ok();
    let mut said = BTreeMap::new();
    for page in keys.chunks(PAGE) {
        let names: Vec<BlockKey> = page.iter().map(|key| value::name(*key)).collect();
        let reply = wire.call(Verb::Get, &get_request(namespace, &names), &[]);
        let reply = reply.map_err(|error| broken(&error))?.ok();
        let items = GetReply::decode(&reply.meta).unwrap().items;
        let mut rest = &reply.payload[..];
        for (key, item) in page.iter().zip(items) {
            let what = match item.status {
                ItemStatus::Ok => {
                    let (bytes, after) = rest.split_at(item.len as usize);
                    rest = after;
                    Said::Value(value::verify(*key, bytes).map_err(|what| broken(&what))?)
                }
                ItemStatus::Miss => Said::Nothing,
                ItemStatus::Moved => Said::Elsewhere,
                other => Said::Other(other),
            };
            said.insert(*key, what);
        }
    }
    Ok(said)
}

/// What all replicas say of all keys, as reads at the time `at`, and how they disagree. A replica may
/// say for a moment that it cannot tell, as after a restart.
pub(crate) fn compare(
    (addresses, replicas): (&[String], u8),
    keys: &[u64],
    at: u64,
) -> Result<(Vec<Entry>, Vec<String>), String> {
    let mut all: BTreeMap<u64, BTreeMap<usize, Said>> = BTreeMap::new();
    let mut open = keys.to_vec();
    let until = Instant::now() + PATIENCE;
    while !open.is_empty() && Instant::now() < until {
        for (node, address) in addresses.iter().enumerate() {
            for (key, said) in ask(address, replicas, &open)? {
                if !matches!(said, Said::Elsewhere | Said::Other(_)) {
                    all.entry(key).or_default().insert(node, said);
                }
            }
        }
        let answers = |key: &u64| all.get(key).map_or(0, BTreeMap::len);
        open.retain(|key| answers(key) < usize::from(replicas));
    }
    let (mut entries, mut faults) = (Vec::new(), Vec::new());
    for key in keys {
        let answers = all.remove(key).unwrap_or_default();
        let mut values = answers.values();
        let first = values.next();
        if answers.len() != usize::from(replicas) || values.any(|said| Some(said) != first) {
            faults.push(format!("key {key}: replicas say {answers:?}"));
        }
        for (node, said) in answers {
            let deed = match said {
                Said::Value(number) => Deed::Read(number),
                _ => Deed::Absent,
            };
            entries.push(Entry { key: *key, worker: 100 + node, call: at, ret: at + 1, deed });
        }
    }
    Ok((entries, faults))
}
