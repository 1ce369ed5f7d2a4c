//! Attributes that a client sets.

use super::Timestamp;
use crate::wire::{Reader, WireError, Writer};

/// New value of a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The present time of the meta.
    Now,
    /// This time.
    At(Timestamp),
}

/// Attributes to change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permission bits.
    pub mode: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Length. The client has already cut the bytes after it off the chunks, unless it is 0.
    pub size: Option<u64>,
    /// Time of the last read.
    pub atime: Option<SetTime>,
    /// Time of the last change of the content.
    pub mtime: Option<SetTime>,
    /// Time of the last change; the present time if absent.
    pub ctime: Option<Timestamp>,
    /// Only while the bytes are in the store: otherwise nothing is changed, and the answer shows
    /// it. For a caller that has cut no chunks.
    pub stored: bool,
    /// Time of a read: becomes the access time if the last one is not later than a change, or is a
    /// day old (`relatime` of mount(8)). No other attribute changes then, even if it is set here.
    pub read: Option<Timestamp>,
}

impl SetTime {
    fn encode(this: Option<Self>, w: &mut Writer) {
        match this {
            None => w.u8(0),
            Some(Self::Now) => w.u8(1),
            Some(Self::At(time)) => {
                w.u8(2);
                time.encode(w);
            }
        }
    }

    fn decode(r: &mut Reader<'_>) -> Result<Option<Self>, WireError> {
        match r.u8()? {
            0 => Ok(None),
            1 => Ok(Some(Self::Now)),
            2 => Ok(Some(Self::At(Timestamp::decode(r)?))),
            _ => Err(WireError::Field("time to set")),
        }
    }
}

impl SetAttr {
    pub(super) fn encode(&self, w: &mut Writer) {
        let bits = [
            self.mode.is_some(),
            self.uid.is_some(),
            self.gid.is_some(),
            self.size.is_some(),
            self.ctime.is_some(),
            self.stored,
            self.read.is_some(),
        ];
        w.u8(bits.iter().enumerate().map(|(bit, set)| u8::from(*set) << bit).sum());
        w.u16(self.mode.unwrap_or(0));
        w.u32(self.uid.unwrap_or(0));
        w.u32(self.gid.unwrap_or(0));
        w.u64(self.size.unwrap_or(0));
        self.ctime.unwrap_or_default().encode(w);
        SetTime::encode(self.atime, w);
        SetTime::encode(self.mtime, w);
        if let Some(read) = self.read {
            read.encode(w);
        }
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Self, WireError> {
        let bits = r.u8()?;
        if bits >= 1 << 7 {
            return Err(WireError::Field("attributes to set"));
        }
        let has = |bit: u8| bits & 1 << bit != 0;
        let (mode, uid, gid, size) = (r.u16()?, r.u32()?, r.u32()?, r.u64()?);
        if mode > 0o7777 {
            return Err(WireError::Field("mode to set"));
        }
        let ctime = Timestamp::decode(r)?;
        Ok(Self {
            mode: has(0).then_some(mode),
            uid: has(1).then_some(uid),
            gid: has(2).then_some(gid),
            size: has(3).then_some(size),
            atime: SetTime::decode(r)?,
            mtime: SetTime::decode(r)?,
            ctime: has(4).then_some(ctime),
            stored: has(5),
            read: has(6).then(|| Timestamp::decode(r)).transpose()?,
        })
    }
}
