//! Records of namespaces.

use super::Record;
use crate::cluster::{DroppedRecord, NamespaceHead, NamespaceRecord};
use crate::ids::GroupId;
use crate::namespace::NamespaceInfo;
use crate::wire::codec::{Reader, WireError, Writer};

impl Record for NamespaceHead {
    const KIND: u8 = 11;

    fn write_body(&self, w: &mut Writer) {
        w.u64(self.version);
        w.u32(self.next);
        w.u32(self.count);
        w.u64(self.dropped);
    }

    fn read_body(r: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self { version: r.u64()?, next: r.u32()?, count: r.u32()?, dropped: r.u64()? })
    }
}

impl Record for NamespaceRecord {
    const KIND: u8 = 12;

    fn write_body(&self, w: &mut Writer) {
        self.0.encode(w);
    }

    fn read_body(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let info = NamespaceInfo::decode(r)?;
        if info.id == GroupId::SYSTEM {
            return Err(WireError::Field("namespace id"));
        }
        Ok(Self(info))
    }
}

impl Record for DroppedRecord {
    const KIND: u8 = 13;

    fn write_body(&self, w: &mut Writer) {
        w.u32(self.0.0);
    }

    fn read_body(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let group = GroupId(r.u32()?);
        if group == GroupId::SYSTEM {
            return Err(WireError::Field("namespace id"));
        }
        Ok(Self(group))
    }
}

#[cfg(test)]
mod tests {
    use super::super::Record;
    use crate::cluster::{DroppedRecord, NamespaceHead, NamespaceRecord};
    use crate::ids::GroupId;
    use crate::namespace::{NamespaceInfo, NamespaceOptions};

    fn survives<R: Record + PartialEq + std::fmt::Debug>(record: &R) {
        let bytes = record.seal();
        assert_eq!(R::open(&bytes).as_ref(), Ok(record));
        for i in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[i] ^= 0x10;
            assert!(R::open(&damaged).is_err(), "byte {i} of kind {}", R::KIND);
            assert!(R::open(&bytes[..i]).is_err(), "{i} bytes of kind {}", R::KIND);
        }
    }

    #[test]
    fn records_of_namespaces_survive_and_damage_is_noticed() {
        survives(&NamespaceHead { version: 7, next: 3, count: 2, dropped: 9 });
        let options = NamespaceOptions::default();
        let info =
            |id| NamespaceInfo { id: GroupId(id), name: "model".into(), options: options.clone() };
        survives(&NamespaceRecord(info(4)));
        survives(&DroppedRecord(GroupId(5)));
        assert!(NamespaceRecord::open(&NamespaceRecord(info(0)).seal()).is_err());
        assert!(DroppedRecord::open(&DroppedRecord(GroupId(0)).seal()).is_err());
    }
}
