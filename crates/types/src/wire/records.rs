//! Records of the transactional store: an envelope with magic, kind, version and checksum.

use super::codec::{Reader, WireError, Writer};
use super::routing::{read_chain, read_place, read_text_list, write_chain, write_place};
use crate::checksum::Crc32c;
use crate::cluster::{
    ChainId, ChainRecord, ClusterRecord, ConfigRecord, ConfigVersion, DiskId, DiskRecord,
    DiskState, EventRecord, HeadRecord, Incarnation, LeaseRecord, NodeId, NodeRecord, NodeState,
    RoutingVersion, SLOT_PAGES, SlotPage, TableSet, TargetId, TargetMove, Term, TermRecord,
};
use crate::ids::ClusterSecret;
use crate::ids::Uuid128;
use crate::limits::{ADDRESSES_MAX, EVENT_BYTES_MAX, SETTINGS_MAX, SLOT_PAGE};
use crate::units::UnixSeconds;

/// First two bytes of every record: `MR`.
pub const RECORD_MAGIC: u16 = u16::from_le_bytes(*b"MR");
/// Version of the records that this build writes.
pub const RECORD_VERSION: u8 = 1;
/// Bytes of an envelope without its body.
const ENVELOPE_BYTES: usize = 8;

/// A value stored in the transactional store.
///
/// | offset | bytes | field |
/// |---|---|---|
/// | 0 | 2 | magic `MR` |
/// | 2 | 1 | kind |
/// | 3 | 1 | version of the body |
/// | 4 | n | body |
/// | 4 + n | 4 | CRC-32C of all before |
pub trait Record: Sized {
    /// Number of the record's kind; never reused for another kind.
    const KIND: u8;

    /// Appends the body.
    fn write_body(&self, w: &mut Writer);

    /// Reads the body.
    ///
    /// # Errors
    /// [`WireError`] naming the fault.
    fn read_body(r: &mut Reader<'_>) -> Result<Self, WireError>;

    /// The bytes to store.
    fn seal(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(128);
        w.u16(RECORD_MAGIC);
        w.u8(Self::KIND);
        w.u8(RECORD_VERSION);
        self.write_body(&mut w);
        let mut bytes = w.into_bytes();
        let sum = Crc32c::of(&bytes).0;
        bytes.extend_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Decodes stored bytes, which are not trusted.
    ///
    /// # Errors
    /// [`WireError`] naming the fault: another kind, a newer version, damage.
    fn open(bytes: &[u8]) -> Result<Self, WireError> {
        if bytes.len() < ENVELOPE_BYTES {
            return Err(WireError::Truncated);
        }
        let (sealed, sum) = bytes.split_at(bytes.len() - 4);
        let mut r = Reader::new(sealed);
        if r.u16()? != RECORD_MAGIC {
            return Err(WireError::Field("record magic"));
        }
        if sum != Crc32c::of(sealed).0.to_le_bytes() {
            return Err(WireError::Checksum("record"));
        }
        if r.u8()? != Self::KIND {
            return Err(WireError::Field("record kind"));
        }
        let version = r.u8()?;
        if version != RECORD_VERSION {
            return Err(WireError::Version(version));
        }
        let record = Self::read_body(&mut r)?;
        r.finish()?;
        Ok(record)
    }
}

/// Appends a UUID.
pub(super) fn write_uuid(w: &mut Writer, id: Uuid128) {
    w.raw(&id.0);
}

/// Reads a UUID.
pub(super) fn read_uuid(r: &mut Reader<'_>) -> Result<Uuid128, WireError> {
    Ok(Uuid128(r.array()?))
}

/// Appends a list of short texts.
pub(super) fn write_text_list(w: &mut Writer, texts: &[String]) {
    w.count(texts.len());
    for text in texts {
        w.str8(text);
    }
}

pub(super) fn node_state(value: u8) -> Result<NodeState, WireError> {
    match value {
        1 => Ok(NodeState::Active),
        2 => Ok(NodeState::Draining),
        _ => Err(WireError::Field("node state")),
    }
}

impl Record for TermRecord {
    const KIND: u8 = 1;

    fn write_body(&self, w: &mut Writer) {
        w.u64(self.term.0);
        write_uuid(w, self.manager.0);
        write_text_list(w, &self.addresses);
    }

    fn read_body(r: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self {
            term: Term(r.u64()?),
            manager: NodeId(read_uuid(r)?),
            addresses: read_text_list(r, ADDRESSES_MAX, "addresses")?,
        })
    }
}

impl Record for LeaseRecord {
    const KIND: u8 = 2;

    fn write_body(&self, w: &mut Writer) {
        w.u64(self.term.0);
        w.u64(self.renewal);
        w.u8(u8::from(self.released));
    }

    fn read_body(r: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self { term: Term(r.u64()?), renewal: r.u64()?, released: read_bool(r, "released")? })
    }
}

/// Reads 0 or 1.
pub(super) fn read_bool(r: &mut Reader<'_>, what: &'static str) -> Result<bool, WireError> {
    match r.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(WireError::Field(what)),
    }
}

impl Record for HeadRecord {
    const KIND: u8 = 3;

    fn write_body(&self, w: &mut Writer) {
        w.u64(self.transaction);
        w.u64(self.routing.0);
        w.u64(self.next_event);
        w.u32(self.next_target);
        w.u32(self.next_chain);
    }

    fn read_body(r: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self {
            transaction: r.u64()?,
            routing: RoutingVersion(r.u64()?),
            next_event: r.u64()?,
            next_target: r.u32()?,
            next_chain: r.u32()?,
        })
    }
}

impl Record for ClusterRecord {
    const KIND: u8 = 4;

    fn write_body(&self, w: &mut Writer) {
        write_uuid(w, self.cluster);
        w.u8(self.replicas);
        w.u64(self.seed);
        // A record from before protocol 9 ends here, and one from before protocol 12 ends after the
        // tables.
        if self.more != TableSet::default() || self.secret.is_some() {
            w.u8(self.more.bits());
        }
        if let Some(secret) = &self.secret {
            w.raw(&secret.0);
        }
    }

    fn read_body(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let (cluster, replicas, seed) = (read_uuid(r)?, r.u8()?, r.u64()?);
        let bits = if r.is_empty() { 0 } else { r.u8()? };
        let more = TableSet::of_bits(bits).ok_or(WireError::Field("chain tables of a cluster"))?;
        let secret = if r.is_empty() { None } else { Some(ClusterSecret(r.array()?)) };
        Ok(Self { cluster, replicas, seed, more, secret })
    }
}

impl Record for NodeRecord {
    const KIND: u8 = 5;

    fn write_body(&self, w: &mut Writer) {
        write_uuid(w, self.id.0);
        w.u64(self.incarnation.0);
        write_text_list(w, &self.addresses);
        w.str8(&self.host);
        w.str8(&self.domain);
        w.str8(&self.build);
        w.u8(self.protocol);
        w.u8(self.state as u8);
        w.u8(u8::from(self.meta));
    }

    fn read_body(r: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self {
            id: NodeId(read_uuid(r)?),
            incarnation: Incarnation(r.u64()?),
            addresses: read_text_list(r, ADDRESSES_MAX, "addresses")?,
            host: r.str8()?.to_owned(),
            domain: r.str8()?.to_owned(),
            build: r.str8()?.to_owned(),
            protocol: r.u8()?,
            state: node_state(r.u8()?)?,
            // Builds before protocol 5 wrote no such byte, and had no meta role.
            meta: !r.is_empty() && read_bool(r, "meta role")?,
        })
    }
}

impl Record for DiskRecord {
    const KIND: u8 = 6;

    fn write_body(&self, w: &mut Writer) {
        write_uuid(w, self.id.0);
        write_uuid(w, self.node.0);
        w.u64(self.capacity_bytes);
        w.u8(self.state as u8);
    }

    fn read_body(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let (id, node) = (DiskId(read_uuid(r)?), NodeId(read_uuid(r)?));
        let capacity_bytes = r.u64()?;
        let state = match r.u8()? {
            1 => DiskState::Active,
            2 => DiskState::Draining,
            3 => DiskState::Lost,
            4 => DiskState::Missing,
            _ => return Err(WireError::Field("disk state")),
        };
        Ok(Self { id, node, capacity_bytes, state })
    }
}

impl Record for ChainRecord {
    const KIND: u8 = 7;

    fn write_body(&self, w: &mut Writer) {
        write_chain(w, &self.chain);
        // Targets count from 1, so 0 is none.
        w.u32(self.moving.map_or(0, |moving| moving.add.0));
        w.u32(self.moving.and_then(|moving| moving.drop).map_or(0, |target| target.0));
    }

    fn read_body(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let chain = read_chain(r)?;
        let (add, drop) = (r.u32()?, r.u32()?);
        let moving = match (add, drop) {
            (0, 0) => None,
            (0, _) => return Err(WireError::Field("target move")),
            (add, 0) => Some(TargetMove { add: TargetId(add), drop: None }),
            (add, drop) => Some(TargetMove { add: TargetId(add), drop: Some(TargetId(drop)) }),
        };
        Ok(Self { chain, moving })
    }
}

impl Record for SlotPage {
    const KIND: u8 = 8;

    fn write_body(&self, w: &mut Writer) {
        w.u8(self.page);
        for place in &self.places {
            write_place(w, *place);
        }
    }

    fn read_body(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let page = r.u8()?;
        if usize::from(page) >= SLOT_PAGES {
            return Err(WireError::Field("slot page"));
        }
        let places = (0..SLOT_PAGE).map(|_| read_place(r)).collect::<Result<_, _>>()?;
        Ok(Self { page, places })
    }
}

impl Record for ConfigRecord {
    const KIND: u8 = 9;

    fn write_body(&self, w: &mut Writer) {
        w.u64(self.version.0);
        w.count(self.values.len());
        for (name, value) in &self.values {
            w.str8(name);
            w.str8(value);
        }
    }

    fn read_body(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let version = ConfigVersion(r.u64()?);
        let count = r.count(SETTINGS_MAX, 2, "settings")?;
        let mut values = std::collections::BTreeMap::new();
        for _ in 0..count {
            values.insert(r.str8()?.to_owned(), r.str8()?.to_owned());
        }
        Ok(Self { version, values })
    }
}

impl Record for EventRecord {
    const KIND: u8 = 10;

    fn write_body(&self, w: &mut Writer) {
        w.u64(self.number);
        w.u32(self.at.0);
        w.u32(self.chain.map_or(0, |chain| chain.0));
        let mut end = self.text.len().min(EVENT_BYTES_MAX);
        while !self.text.is_char_boundary(end) {
            end -= 1;
        }
        w.bytes16(&self.text.as_bytes()[..end]);
    }

    fn read_body(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let (number, at) = (r.u64()?, UnixSeconds(r.u32()?));
        let chain = Some(ChainId(r.u32()?)).filter(|chain| *chain != ChainId::NONE);
        let text = r.bytes16(EVENT_BYTES_MAX, "event text")?;
        let text = std::str::from_utf8(text).map_err(|_| WireError::Field("event text"))?;
        Ok(Self { number, at, chain, text: text.to_owned() })
    }
}

mod namespaces;
#[cfg(test)]
mod tests;
