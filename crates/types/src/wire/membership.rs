//! Encodings of registration and heartbeats.

use super::codec::{Reader, WireError, Writer};
use super::records::{Record, read_bool, read_uuid, write_text_list, write_uuid};
use super::routing::read_text_list;
use crate::cluster::{
    ChainId, ChainVersion, ConfigRecord, ConfigVersion, DiskId, DiskOffer, DiskReport, Grant,
    Heartbeat, HeartbeatAnswer, Incarnation, LocalState, NodeId, QuotaLimit, QuotaReport, Refusal,
    Register, RegisterAnswer, RoutingVersion, SlotDone, SlotProgress, SlotsMoved, TargetId,
    TargetReport,
};
use crate::ids::{ClusterSecret, GroupId, SlotId};
use crate::limits::{ADDRESSES_MAX, NAMESPACES_MAX, NODE_DISKS_MAX, NODE_TARGETS_MAX, SLOTS};

impl Register {
    /// The bytes to send.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(256);
        write_uuid(&mut w, self.node.0);
        w.u64(self.incarnation.0);
        write_uuid(&mut w, self.cluster);
        write_text_list(&mut w, &self.addresses);
        w.str8(&self.host);
        w.str8(&self.domain);
        w.str8(&self.build);
        w.u8(self.protocol);
        w.u8(u8::from(self.meta));
        w.count(self.disks.len());
        for disk in &self.disks {
            write_uuid(&mut w, disk.id.0);
            w.u64(disk.capacity_bytes);
        }
        w.into_bytes()
    }

    /// Decodes bytes from the network.
    ///
    /// # Errors
    /// [`WireError`] naming the fault; this holds for every decoder of this module.
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let mut r = Reader::new(bytes);
        let mut register = Self {
            node: NodeId(read_uuid(&mut r)?),
            incarnation: Incarnation(r.u64()?),
            cluster: read_uuid(&mut r)?,
            addresses: read_text_list(&mut r, ADDRESSES_MAX, "addresses")?,
            host: r.str8()?.to_owned(),
            domain: r.str8()?.to_owned(),
            build: r.str8()?.to_owned(),
            protocol: r.u8()?,
            meta: read_bool(&mut r, "meta role")?,
            disks: Vec::new(),
        };
        for _ in 0..r.count(NODE_DISKS_MAX, 24, "disks")? {
            register
                .disks
                .push(DiskOffer { id: DiskId(read_uuid(&mut r)?), capacity_bytes: r.u64()? });
        }
        r.finish()?;
        Ok(register)
    }
}

fn write_refusal(w: &mut Writer, refusal: &Refusal) {
    match refusal {
        Refusal::Unregistered => w.u8(1),
        Refusal::Running { node, host, addresses } => {
            w.u8(2);
            write_uuid(w, node.0);
            w.str8(host);
            w.str8(addresses);
        }
        Refusal::Superseded { node, host } => {
            w.u8(3);
            write_uuid(w, node.0);
            w.str8(host);
        }
        Refusal::DiskElsewhere { disk, node, host } => {
            w.u8(4);
            write_uuid(w, disk.0);
            write_uuid(w, node.0);
            w.str8(host);
        }
        Refusal::Cluster { ours, theirs } => {
            w.u8(5);
            write_uuid(w, *ours);
            write_uuid(w, *theirs);
        }
        Refusal::Protocol { ours, theirs } => {
            w.u8(6);
            w.u8(*ours);
            w.u8(*theirs);
        }
        Refusal::Field(field) => {
            w.u8(7);
            w.str8(field);
        }
    }
}

fn read_refusal(r: &mut Reader<'_>) -> Result<Refusal, WireError> {
    Ok(match r.u8()? {
        1 => Refusal::Unregistered,
        2 => Refusal::Running {
            node: NodeId(read_uuid(r)?),
            host: r.str8()?.to_owned(),
            addresses: r.str8()?.to_owned(),
        },
        3 => Refusal::Superseded { node: NodeId(read_uuid(r)?), host: r.str8()?.to_owned() },
        4 => Refusal::DiskElsewhere {
            disk: DiskId(read_uuid(r)?),
            node: NodeId(read_uuid(r)?),
            host: r.str8()?.to_owned(),
        },
        5 => Refusal::Cluster { ours: read_uuid(r)?, theirs: read_uuid(r)? },
        6 => Refusal::Protocol { ours: r.u8()?, theirs: r.u8()? },
        7 => Refusal::Field(r.str8()?.to_owned()),
        _ => return Err(WireError::Field("refusal")),
    })
}

impl RegisterAnswer {
    /// The bytes to send.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(64);
        match self {
            Self::Accepted { cluster, routing, secret } => {
                w.u8(1);
                write_uuid(&mut w, *cluster);
                w.u64(routing.0);
                w.u8(u8::from(secret.is_some()));
                w.raw(secret.as_ref().map_or(&[], |secret| &secret.0));
            }
            Self::Refused(refusal) => {
                w.u8(2);
                write_refusal(&mut w, refusal);
            }
            Self::Retry { after_ms } => {
                w.u8(3);
                w.u32(*after_ms);
            }
            Self::NotPrimary(addresses) => {
                w.u8(4);
                write_text_list(&mut w, addresses);
            }
        }
        w.into_bytes()
    }

    /// Decodes bytes from the network.
    ///
    /// # Errors
    /// [`WireError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let mut r = Reader::new(bytes);
        let answer = match r.u8()? {
            1 => Self::Accepted {
                cluster: read_uuid(&mut r)?,
                routing: RoutingVersion(r.u64()?),
                secret: if read_bool(&mut r, "secret of a cluster")? {
                    Some(ClusterSecret(r.array()?))
                } else {
                    None
                },
            },
            2 => Self::Refused(read_refusal(&mut r)?),
            3 => Self::Retry { after_ms: r.u32()? },
            4 => Self::NotPrimary(read_text_list(&mut r, ADDRESSES_MAX, "addresses")?),
            _ => return Err(WireError::Field("answer")),
        };
        r.finish()?;
        Ok(answer)
    }
}

impl Heartbeat {
    /// The bytes to send.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(80 + self.targets.len() * 29 + self.disks.len() * 33);
        write_uuid(&mut w, self.node.0);
        w.u64(self.incarnation.0);
        w.u64(self.number);
        w.u64(self.routing.0);
        w.u64(self.config.0);
        w.u8(u8::from(self.stopping));
        w.u32(self.queue_depth);
        w.count(self.targets.len());
        for report in &self.targets {
            w.u32(report.target.0);
            w.u32(report.chain.0);
            w.u32(report.at.0);
            w.u8(report.local as u8);
            w.u64(report.used_bytes);
            w.u64(report.behind_bytes);
        }
        w.count(self.disks.len());
        for report in &self.disks {
            write_uuid(&mut w, report.disk.0);
            w.u64(report.capacity_bytes);
            w.u64(report.used_bytes);
            w.u8(u8::from(report.healthy));
        }
        w.count(self.slots_done.len());
        for done in &self.slots_done {
            w.u16(done.slot.0);
            w.u32(done.from.0);
            w.u32(done.to.0);
        }
        self.slots_moved.write(&mut w);
        w.count(self.quotas.len());
        for report in &self.quotas {
            w.u32(report.namespace.0);
            w.u64(report.quota_bytes);
            w.u8(u8::from(report.evicts));
            w.u64(report.used_bytes);
            w.u64(report.limit_bytes);
        }
        w.into_bytes()
    }

    /// Decodes bytes from the network.
    ///
    /// # Errors
    /// [`WireError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let mut r = Reader::new(bytes);
        let mut heartbeat = Self {
            node: NodeId(read_uuid(&mut r)?),
            incarnation: Incarnation(r.u64()?),
            number: r.u64()?,
            routing: RoutingVersion(r.u64()?),
            config: ConfigVersion(r.u64()?),
            stopping: read_bool(&mut r, "stopping")?,
            queue_depth: r.u32()?,
            ..Self::default()
        };
        for _ in 0..r.count(NODE_TARGETS_MAX, 29, "targets")? {
            heartbeat.targets.push(TargetReport {
                target: TargetId(r.u32()?),
                chain: ChainId(r.u32()?),
                at: ChainVersion(r.u32()?),
                local: LocalState::try_from(r.u8()?)
                    .map_err(|_| WireError::Field("local state"))?,
                used_bytes: r.u64()?,
                behind_bytes: r.u64()?,
            });
        }
        for _ in 0..r.count(NODE_DISKS_MAX, 33, "disks")? {
            heartbeat.disks.push(DiskReport {
                disk: DiskId(read_uuid(&mut r)?),
                capacity_bytes: r.u64()?,
                used_bytes: r.u64()?,
                healthy: read_bool(&mut r, "healthy")?,
            });
        }
        for _ in 0..r.count(SLOTS, 10, "slots")? {
            heartbeat.slots_done.push(SlotDone {
                slot: SlotId(r.u16()?),
                from: ChainId(r.u32()?),
                to: ChainId(r.u32()?),
            });
        }
        heartbeat.slots_moved = SlotsMoved::read(&mut r)?;
        for _ in 0..r.count(NAMESPACES_MAX, 29, "quotas")? {
            heartbeat.quotas.push(QuotaReport {
                namespace: GroupId(r.u32()?),
                quota_bytes: r.u64()?,
                evicts: read_bool(&mut r, "evicts")?,
                used_bytes: r.u64()?,
                limit_bytes: r.u64()?,
            });
        }
        r.finish()?;
        Ok(heartbeat)
    }
}

impl SlotsMoved {
    fn write(&self, w: &mut Writer) {
        w.u64(self.chunks);
        w.u64(self.bytes);
        w.u64(self.failures);
        w.count(self.moving.len());
        for slot in &self.moving {
            w.u16(slot.slot.0);
            w.u64(slot.chunks);
            w.u64(slot.bytes);
            w.u16(slot.through);
        }
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let (chunks, bytes, failures) = (r.u64()?, r.u64()?, r.u64()?);
        let mut moving = Vec::new();
        for _ in 0..r.count(SLOTS, 20, "slots")? {
            let (slot, chunks, bytes) = (SlotId(r.u16()?), r.u64()?, r.u64()?);
            let through = r.u16()?;
            if through > 1000 {
                return Err(WireError::Field("progress of a slot"));
            }
            moving.push(SlotProgress { slot, chunks, bytes, through });
        }
        Ok(Self { chunks, bytes, failures, moving })
    }
}

impl HeartbeatAnswer {
    /// The bytes to send.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::with_capacity(64);
        match self {
            Self::Granted(grant) => {
                w.u8(1);
                w.u64(grant.number);
                w.u32(grant.lease_ms);
                w.u64(grant.routing.0);
                w.u8(u8::from(grant.config.is_some()));
                if let Some(config) = &grant.config {
                    config.write_body(&mut w);
                }
                w.count(grant.retire.len());
                grant.retire.iter().for_each(|target| w.u32(target.0));
                w.count(grant.quotas.len());
                for limit in &grant.quotas {
                    w.u32(limit.namespace.0);
                    w.u64(limit.limit_bytes);
                }
            }
            Self::Refused { number, why } => {
                w.u8(2);
                w.u64(*number);
                write_refusal(&mut w, why);
            }
            Self::NotPrimary(addresses) => {
                w.u8(3);
                write_text_list(&mut w, addresses);
            }
        }
        w.into_bytes()
    }

    /// Decodes bytes from the network.
    ///
    /// # Errors
    /// [`WireError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, WireError> {
        let mut r = Reader::new(bytes);
        let answer = match r.u8()? {
            1 => {
                let (number, lease_ms) = (r.u64()?, r.u32()?);
                let routing = RoutingVersion(r.u64()?);
                let config = if read_bool(&mut r, "configuration")? {
                    Some(ConfigRecord::read_body(&mut r)?)
                } else {
                    None
                };
                let retire = (0..r.count(NODE_TARGETS_MAX, 4, "targets")?)
                    .map(|_| Ok(TargetId(r.u32()?)))
                    .collect::<Result<_, WireError>>()?;
                let quotas = (0..r.count(NAMESPACES_MAX, 12, "quotas")?)
                    .map(|_| {
                        let namespace = GroupId(r.u32()?);
                        Ok(QuotaLimit { namespace, limit_bytes: r.u64()? })
                    })
                    .collect::<Result<_, WireError>>()?;
                Self::Granted(Grant { number, lease_ms, routing, config, retire, quotas })
            }
            2 => Self::Refused { number: r.u64()?, why: read_refusal(&mut r)? },
            3 => Self::NotPrimary(read_text_list(&mut r, ADDRESSES_MAX, "addresses")?),
            _ => return Err(WireError::Field("answer")),
        };
        r.finish()?;
        Ok(answer)
    }
}
