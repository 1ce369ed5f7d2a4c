//! The data that the gateway stores with an inode: a versioned record as JSON, opaque to the metas.
//!
//! JSON, because it is readable when a damaged volume is examined, and because a record of typical
//! size (200 bytes) is parsed in about a microsecond.

use std::collections::BTreeMap;

use millpond_types::meta::object::PARTS_MAX;
use millpond_types::meta::{Attr, FileKind, Ino, Layout, Timestamp};
use s3s::{S3ErrorCode, S3Result};
use serde::{Deserialize, Serialize};

use crate::acl::Acl;
use crate::back::store::{ACCESS, CONTENT, PUT_ID, PUT_LEN, Remote};
use crate::back::words;
use crate::error::refuse;
use crate::hash::{Algorithm, Sum, base64, unbase64};
use crate::keys::DEFAULT_TENANT;
use crate::store::{Attachment, Object};

/// Version of the records that this gateway writes.
const VERSION: u8 = 1;
/// Bytes of user metadata, names and values, as in AWS.
pub(crate) const META_MAX: usize = 2 << 10;
/// The storage class of an object without a named class.
pub(crate) const STANDARD: &str = "STANDARD";
/// The other classes of AWS. They are stored and returned, and have no effect.
const CLASSES: [&str; 12] = [
    "DEEP_ARCHIVE",
    "EXPRESS_ONEZONE",
    "FSX_ONTAP",
    "FSX_OPENZFS",
    "GLACIER",
    "GLACIER_IR",
    "INTELLIGENT_TIERING",
    "ONEZONE_IA",
    "OUTPOSTS",
    "REDUCED_REDUNDANCY",
    "SNOW",
    "STANDARD_IA",
];
/// Runs of equal parts stored at most; with more, the lengths of parts are not available.
const RUNS_MAX: usize = 600;
/// Length in bytes above which the record of a new object drops the checksums of parts: it leaves
/// room for tags.
const WITH_SUMS_MAX: usize = 12 << 10;

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
const fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// The record of an object, and of an upload until it is an object.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// [`VERSION`].
    pub(crate) v: u8,
    /// The `ETag` without quotes; none for an upload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) etag: Option<String>,
    /// The checksum of the content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) sum: Option<Sum>,
    /// The parts of a multipart object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) parts: Option<Parts>,
    /// The upload that created it, so that a repeated completion gets the same answer; 0 for none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) upload: u64,
    /// Headers by name: content-type and related ones.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) headers: BTreeMap<String, String>,
    /// User metadata.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) meta: BTreeMap<String, String>,
    /// Tags.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) tags: Vec<(String, String)>,
    /// The tenant that owns it, if not the bucket's owner; for an upload, the tenant that began it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) owner: Option<String>,
    /// The access control list, if it grants rights to others than the owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) acl: Option<Acl>,
    /// The storage class named by the request, if not [`STANDARD`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) class: Option<String>,
    /// For a fill: when the backend received it, in seconds since 1970; 0 for none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) modified: u64,
    /// For an upload: the checksum algorithm of the parts, and whether the object gets a checksum
    /// of its whole content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) wants: Option<(Algorithm, bool)>,
}

/// The lengths of an object's parts, as runs of equal ones.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Parts {
    /// The number of parts.
    pub(crate) count: u32,
    /// Number and length of each run, in order; empty when there were too many runs.
    runs: Vec<(u32, u64)>,
    /// Their checksums.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sums: Option<PartSums>,
}

/// Checksums of an object's parts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct PartSums {
    algorithm: Algorithm,
    /// All checksums one after another, in base64.
    digests: String,
}

impl Parts {
    /// Parts with these lengths.
    pub(crate) fn of(lens: impl Iterator<Item = u64>) -> Self {
        let (mut count, mut runs) = (0, Vec::<(u32, u64)>::new());
        for len in lens {
            count += 1;
            match runs.last_mut() {
                Some((times, of)) if *of == len => *times += 1,
                _ => runs.push((1, len)),
            }
        }
        if runs.len() > RUNS_MAX {
            runs.clear();
        }
        Self { count, runs, sums: None }
    }

    /// Adds their checksums, one for each part.
    pub(crate) fn with_sums(self, algorithm: Algorithm, digests: &[Vec<u8>]) -> Self {
        let digests = base64(&digests.concat());
        Self { sums: Some(PartSums { algorithm, digests }), ..self }
    }

    /// Looks up the checksum of a part by its number, if the checksums are stored.
    pub(crate) fn sums(&self) -> impl Fn(u32) -> Option<Sum> {
        let kept = self.sums.as_ref();
        let kept = kept.and_then(|sums| Some((sums.algorithm, unbase64(&sums.digests)?)));
        move |number| {
            let (algorithm, digests) = kept.as_ref()?;
            let at = usize::try_from(number.checked_sub(1)?).ok()?;
            Some(Sum::whole(*algorithm, digests.chunks_exact(algorithm.len()).nth(at)?))
        }
    }

    /// Offset and length of a part.
    pub(crate) fn place(&self, number: u32) -> Option<(u64, u64)> {
        let (mut left, mut offset) = (number.checked_sub(1)?, 0);
        for (times, len) in &self.runs {
            if left < *times {
                return Some((offset + u64::from(left) * len, *len));
            }
            left -= times;
            offset += u64::from(*times) * len;
        }
        None
    }

    /// Whether they can be the parts of `len` bytes.
    fn cover(&self, len: u64) -> bool {
        let mut all = (0_u64, 0_u64);
        for (times, len) in &self.runs {
            let Some(bytes) = u64::from(*times).checked_mul(*len) else { return false };
            let Some(sum) = all.1.checked_add(bytes) else { return false };
            all = (all.0 + u64::from(*times), sum);
        }
        self.count <= PARTS_MAX.into() && (!self.are_known() || all == (self.count.into(), len))
    }

    /// Whether the lengths are known.
    pub(crate) fn are_known(&self) -> bool {
        !self.runs.is_empty()
    }
}

/// The access fields of a record.
#[derive(Default, Serialize, Deserialize)]
struct Access {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    owner: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    acl: Option<Acl>,
}

/// The content fields of a record, with the `ETag` of that content.
#[derive(Serialize, Deserialize)]
struct OfContent {
    etag: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sum: Option<Sum>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    parts: Option<Parts>,
    #[serde(default, skip_serializing_if = "is_zero")]
    upload: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    class: Option<String>,
}

/// The record of a part of an upload.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct PartRecord {
    /// MD5 in hex.
    pub(crate) etag: String,
    /// The checksum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) sum: Option<Sum>,
}

/// The record of a bucket.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct BucketRecord {
    /// Its rules for cross-origin requests.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) cors: Vec<CorsRule>,
    /// Its tags.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) tags: Vec<(String, String)>,
    /// The block of public access.
    #[serde(default)]
    pub(crate) block: Block,
    /// The tenant that owns it; [`DEFAULT_TENANT`] if none is named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) owner: Option<String>,
    /// The access control list, if it grants rights to others than the owner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) acl: Option<Acl>,
    /// The ownership of objects, if set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ownership: Option<Ownership>,
    /// The location named at its creation; the region of the gateways if none was named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) region: Option<String>,
    /// Fields of a later version, stored unchanged.
    #[serde(flatten)]
    pub(crate) rest: BTreeMap<String, serde_json::Value>,
}

impl BucketRecord {
    /// A new bucket of a tenant.
    pub(crate) fn of(tenant: &str) -> Self {
        let owner = Some(tenant).filter(|tenant| *tenant != DEFAULT_TENANT).map(str::to_owned);
        Self { owner, ..Self::default() }
    }

    /// Reads the record of a bucket. A directory made by a mount counts as a new bucket of the
    /// first tenant. None if the record is damaged or of a later version.
    pub(crate) fn read(kept: Option<&Attachment>) -> Option<Self> {
        let kept = kept.filter(|attachment| !attachment.bytes.is_empty());
        kept.map_or_else(|| Some(Self::default()), |attachment| decode(&attachment.bytes))
    }

    /// Like [`BucketRecord::read`]; an unreadable record belongs to no tenant, since its owner is
    /// unknown.
    pub(crate) fn read_or_nobodys(kept: Option<&Attachment>) -> Self {
        let nobody = || Self { owner: Some(String::new()), ..Self::default() };
        Self::read(kept).unwrap_or_else(nobody)
    }

    /// The tenant that owns it.
    pub(crate) fn owner(&self) -> &str {
        self.owner.as_deref().unwrap_or(DEFAULT_TENANT)
    }
}

/// The owner of new objects written by others than the bucket's owner, with the names of AWS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Ownership {
    /// The bucket's owner, and there are no lists.
    BucketOwnerEnforced,
    /// The bucket's owner, if the writer agrees.
    BucketOwnerPreferred,
    /// The writer.
    ObjectWriter,
}

/// A bucket's settings about public access.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Block {
    /// None, as in a new bucket. Records from before lists were stored have `All`, for buckets
    /// without lists.
    #[default]
    #[serde(alias = "All")]
    Removed,
    /// As set: block new public lists, ignore existing ones, block public policies, restrict access
    /// by them.
    Set([bool; 4]),
}

/// A rule for cross-origin requests.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct CorsRule {
    pub(crate) id: Option<String>,
    pub(crate) origins: Vec<String>,
    pub(crate) methods: Vec<String>,
    pub(crate) headers: Vec<String>,
    pub(crate) expose: Vec<String>,
    pub(crate) max_age: Option<i32>,
}

/// Whether AWS has a storage class of this name.
pub(crate) fn is_class(name: &str) -> bool {
    name == STANDARD || CLASSES.contains(&name)
}

/// Bytes of names and values.
pub(crate) fn len(map: &BTreeMap<String, String>) -> usize {
    map.iter().map(|(name, value)| name.len() + value.len()).sum()
}

/// Encodes a record.
pub(crate) fn encode<T: Serialize>(record: &T) -> Vec<u8> {
    // All maps have strings as keys, and no field fails to serialize.
    serde_json::to_vec(record).unwrap_or_default()
}

/// Decodes a record; none if it is damaged or of a later version.
pub(crate) fn decode<T: for<'a> Deserialize<'a>>(bytes: &[u8]) -> Option<T> {
    serde_json::from_slice(bytes).ok()
}

/// Encodes a record that replaces `before`: fields of a later version in it stay unchanged.
pub(crate) fn encode_over(record: &Record, before: &[u8]) -> Vec<u8> {
    type Fields = serde_json::Map<String, serde_json::Value>;
    let bytes = encode(record);
    let Some(known) = decode::<Record>(before).map(|record| encode(&record)) else { return bytes };
    let fields = [before, &known, &bytes].map(decode::<Fields>);
    let [Some(before), Some(known), Some(mut now)] = fields else { return bytes };
    let count = now.len();
    for (name, value) in before {
        if !known.contains_key(&name) {
            now.entry(name).or_insert(value);
        }
    }
    if now.len() == count { bytes } else { encode(&now) }
}

impl Record {
    /// An empty record of the present version.
    pub(crate) fn current() -> Self {
        Self { v: VERSION, ..Self::default() }
    }

    /// Checks that a backend, if there is one, accepts the user metadata of the object: otherwise
    /// it would never be persisted.
    ///
    /// # Errors
    /// `MetadataTooLarge`.
    pub(crate) fn check_behind(&self, goes_behind: bool) -> S3Result<()> {
        if !goes_behind {
            return Ok(());
        }
        let access = self.access().map_or(0, |text| ACCESS.len() + text.len());
        if words::len(&self.meta) + access + PUT_ID.len() + PUT_LEN > META_MAX {
            let message = format!(
                "User metadata and access control list together exceed the {META_MAX} bytes that \
                 the backend accepts, of which the gateway uses {}",
                PUT_ID.len() + PUT_LEN
            );
            return Err(refuse(S3ErrorCode::MetadataTooLarge, message));
        }
        Ok(())
    }

    /// The MD5 of the content in hex, if known: the `ETag` of an object put in one request. The
    /// `ETag` of a fill is that of its backend, which may look like an MD5 without being one: for
    /// example with AWS encryption.
    pub(crate) fn md5(&self) -> Option<&str> {
        self.etag.as_deref().filter(|etag| self.modified == 0 && etag.len() == 32)
    }

    /// The storage class.
    pub(crate) fn class(&self) -> &str {
        self.class.as_deref().unwrap_or(STANDARD)
    }

    /// Drops the checksums of parts if the record is too long.
    pub(crate) fn bounded(mut self) -> Self {
        if encode(&self).len() > WITH_SUMS_MAX
            && let Some(parts) = &mut self.parts
        {
            parts.sums = None;
        }
        self
    }

    /// Owner and access control list as one text; none if only the bucket's owner has rights.
    pub(crate) fn access(&self) -> Option<String> {
        let access = Access { owner: self.owner.clone(), acl: self.acl.clone() };
        let is_any = access.owner.is_some() || access.acl.is_some();
        // Names of tenants are ASCII, and so is the text.
        is_any.then(|| String::from_utf8_lossy(&encode(&access)).into_owned())
    }

    /// Sets owner and access control list from such a text; an unreadable one grants nothing to
    /// others.
    pub(crate) fn set_access(&mut self, text: &str) {
        let Access { owner, acl } = decode(text.as_bytes()).unwrap_or_default();
        (self.owner, self.acl) = (owner, acl);
    }

    /// Checksum, parts and storage class of the object as one text for a backend, beside this user
    /// metadata. None without such data, or without room. The checksums of parts are dropped first.
    pub(crate) fn content(&self, meta: &BTreeMap<String, String>) -> Option<String> {
        if self.sum.is_none() && self.parts.is_none() && self.class.is_none() {
            return None;
        }
        let (etag, sum, parts) = (self.etag.clone()?, self.sum.clone(), self.parts.clone());
        let mut told =
            OfContent { etag, sum, parts, upload: self.upload, class: self.class.clone() };
        let room = META_MAX.checked_sub(len(meta) + CONTENT.len())?;
        let mut text = encode(&told);
        if text.len() > room {
            told.parts.as_mut()?.sums = None;
            text = encode(&told);
        }
        // Checksums are base64, so the text is ASCII.
        String::from_utf8(text).ok().filter(|text| text.len() <= room)
    }

    /// Sets them from such a text, for an object of `len` bytes with its `ETag` set; ignores the
    /// text of another content.
    pub(crate) fn set_content(&mut self, text: &str, len: u64) {
        let Some(of) = decode::<OfContent>(text.as_bytes()) else { return };
        let OfContent { etag, sum, parts, upload, class } = of;
        let can_be = sum.as_ref().is_none_or(Sum::is_one)
            && parts.as_ref().is_none_or(|parts| parts.cover(len));
        if self.etag.as_ref() == Some(&etag) && can_be {
            (self.sum, self.parts, self.upload) = (sum, parts, upload);
            // Other writers of the backend may store anything here.
            self.class = class.filter(|class| is_class(class));
        }
    }

    /// Drops the fields that depend on the content, which has changed.
    pub(crate) fn without_content(self) -> Self {
        Self { etag: None, sum: None, parts: None, upload: 0, modified: 0, ..self }
    }
}

/// An object as clients see it.
#[derive(Clone, Debug)]
pub(crate) struct View {
    pub(crate) attr: Attr,
    pub(crate) etag: String,
    /// Without the fields that depend on the content if a mount has changed the file since.
    pub(crate) record: Record,
    /// Number of tags; the record of an object at a backend does not contain them.
    pub(crate) tags: usize,
}

impl View {
    /// The view of an object in the pool.
    pub(crate) fn of(object: &Object) -> Self {
        Self::from_parts(object.attr, object.attachment.as_ref())
    }

    /// The view of an object that only a backend has: it has no inode.
    pub(crate) fn of_remote(remote: &Remote) -> Self {
        let record = crate::backed::fetch::record(remote);
        let secs = i64::try_from(record.modified).unwrap_or(i64::MAX);
        let mtime = Timestamp { secs, nanos: 0 };
        let attr = Attr {
            ino: Ino(0),
            kind: FileKind::Regular,
            mode: 0,
            uid: 0,
            gid: 0,
            nlink: 1,
            rdev: 0,
            size: remote.len,
            atime: mtime,
            mtime,
            ctime: mtime,
            btime: mtime,
            data: 0,
            chunks: None,
            is_shared: false,
            solid: 0,
            cuts: 0,
            layout: Layout::NONE,
            parent: Ino(0),
            version: 0,
        };
        Self { attr, etag: remote.etag.clone(), record, tags: remote.tags }
    }

    fn from_parts(mut attr: Attr, attachment: Option<&Attachment>) -> Self {
        let mut record = attachment
            .and_then(|attachment| decode::<Record>(&attachment.bytes))
            .unwrap_or_default();
        if !attachment.is_some_and(|attachment| attachment.is_current) {
            record = record.without_content();
        }
        let etag = record.etag.clone().unwrap_or_else(|| {
            // Not the mtime, which can be set back to an earlier value.
            let Timestamp { secs, nanos } = attr.ctime;
            let nanos = i128::from(secs) * 1_000_000_000 + i128::from(nanos);
            format!("{:x}-{nanos:x}-{:x}", attr.ino.0, attr.size)
        });
        if record.modified > 0 {
            // A fill keeps its time at the backend.
            let secs = i64::try_from(record.modified).unwrap_or(i64::MAX);
            attr.mtime = Timestamp { secs, nanos: 0 };
        }
        let tags = record.tags.len();
        Self { attr, etag, record, tags }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{
        BucketRecord, CONTENT, DEFAULT_TENANT, META_MAX, Parts, Record, decode, encode,
        encode_over, is_class,
    };
    use s3s::S3ErrorCode;

    use crate::hash::{Algorithm, Sum, base64};
    use crate::keys::check_tenant;
    use crate::store::Attachment;

    #[test]
    fn places_of_parts() {
        let parts = Parts::of([5, 5, 5, 2].into_iter());
        assert_eq!(parts.count, 4);
        assert_eq!(parts.place(1), Some((0, 5)));
        assert_eq!(parts.place(3), Some((10, 5)));
        assert_eq!(parts.place(4), Some((15, 2)));
        assert_eq!((parts.place(0), parts.place(5)), (None, None));
        let ragged = Parts::of((0..2_000).map(|n| n % 2));
        assert!(ragged.count == 2_000 && !ragged.are_known());
    }

    #[test]
    fn the_etag_of_a_fill_is_no_md5() {
        let etag = Some("0123456789abcdef0123456789abcdef".to_owned());
        let put = Record { etag: etag.clone(), ..Record::current() };
        assert_eq!(put.md5(), etag.as_deref());
        assert_eq!(Record { modified: 1, ..put.clone() }.md5(), None);
        let of_parts = etag.map(|etag| format!("{etag}-2"));
        assert_eq!(Record { etag: of_parts, ..put }.md5(), None);
        assert_eq!(Record::current().md5(), None);
    }

    #[test]
    fn metadata_are_counted_as_they_go_to_a_backend() {
        let of = |value: &str| {
            let meta = BTreeMap::from([("name".to_owned(), value.to_owned())]);
            Record { meta, ..Record::current() }
        };
        assert!(of(&"a".repeat(1_900)).check_behind(true).is_ok());
        let long = of(&"ü".repeat(800));
        assert!(long.check_behind(false).is_ok());
        assert_eq!(*long.check_behind(true).unwrap_err().code(), S3ErrorCode::MetadataTooLarge);
    }

    #[test]
    fn checksums_of_parts_are_kept_while_they_are_few() {
        let of = |count: u16, algorithm: Algorithm| {
            let digest =
                move |n: u16| [n.to_be_bytes().to_vec(), vec![9; algorithm.len() - 2]].concat();
            let parts = Parts::of((0..count).map(|_| 5 << 20));
            let parts = parts.with_sums(algorithm, &(1..=count).map(digest).collect::<Vec<_>>());
            let record = Record { parts: Some(parts), ..Record::current() }.bounded();
            assert!(encode(&record).len() <= super::WITH_SUMS_MAX);
            (decode::<Record>(&encode(&record)).unwrap().parts.unwrap(), digest)
        };
        for (count, algorithm) in
            [(280, Algorithm::Sha256), (440, Algorithm::Sha1), (2_200, Algorithm::Crc32)]
        {
            let (parts, digest) = of(count, algorithm);
            for number in [1, 2, count] {
                let sum = parts.sums()(number.into()).unwrap();
                assert_eq!((sum.algorithm, sum.value), (algorithm, base64(&digest(number))));
            }
            let none = (parts.sums()(0), parts.sums()(u32::from(count) + 1));
            assert_eq!(none, (None, None));
        }
        let (many, _) = of(10_000, Algorithm::Crc32);
        assert_eq!(
            (many.sums()(1), many.place(10_000).map(|place| place.1)),
            (None, Some(5 << 20))
        );
    }

    #[test]
    fn a_bucket_whose_record_cannot_be_read_is_nobodys() {
        let kept = |bytes: &[u8]| Attachment { bytes: bytes.into(), is_current: true };
        let owner = |kept: Option<&Attachment>| {
            let record = BucketRecord::read_or_nobodys(kept);
            (record.owner().to_owned(), BucketRecord::read(kept).is_some())
        };
        assert_eq!(owner(None), (DEFAULT_TENANT.to_owned(), true));
        assert_eq!(owner(Some(&kept(b""))), (DEFAULT_TENANT.to_owned(), true));
        let record = BucketRecord::of("anna");
        assert_eq!(owner(Some(&kept(&encode(&record)))), ("anna".to_owned(), true));
        assert_eq!(owner(Some(&kept(&encode(&record)[1..]))), (String::new(), false));
        let later = br#"{"owner":"anna","later":{"a":[1,null]}}"#;
        let read: BucketRecord = decode(later).unwrap();
        assert!(String::from_utf8(encode(&read)).unwrap().contains(r#""later":{"a":[1,null]}"#));
        let later = br#"{"owner":"anna","block":{"Later":1}}"#;
        assert_eq!(owner(Some(&kept(later))), (String::new(), false));
        assert!(check_tenant("").is_err(), "no tenant is nobody");
    }

    #[test]
    fn what_a_backend_keeps_of_content_is_believed_of_that_content() {
        let mut record = Record::current();
        assert_eq!(record.content(&BTreeMap::new()), None);
        record.etag = Some("abc-2".to_owned());
        record.sum = Some(Sum::whole(Algorithm::Crc32, &[1; 4]));
        let sums = [vec![1; 4], vec![2; 4]];
        record.parts = Some(Parts::of([5, 3].into_iter()).with_sums(Algorithm::Crc32, &sums));
        let text = record.content(&BTreeMap::new()).unwrap();
        let read = |text: &str, etag: &str, len: u64| {
            let mut read = Record { etag: Some(etag.to_owned()), ..Record::current() };
            read.set_content(text, len);
            read
        };
        assert_eq!(read(&text, "abc-2", 8), record);
        let cold = Record { class: Some("GLACIER".to_owned()), ..record.clone() };
        let told = cold.content(&BTreeMap::new()).unwrap();
        assert_eq!(read(&told, "abc-2", 8), cold);
        assert_eq!(read(&told.replace("GLACIER", "\\nX"), "abc-2", 8), record);
        let alone = Record { sum: None, parts: None, ..cold };
        let told = alone.content(&BTreeMap::new()).unwrap();
        assert_eq!(read(&told, "abc-2", 8), alone);
        for (text, etag, len) in [(&text[..], "other", 8), (&text, "abc-2", 9), ("{}", "abc-2", 8)]
        {
            let read = read(text, etag, len);
            assert_eq!((read.sum, read.parts), (None, None), "{text} {etag} {len}");
        }
        for wrong in [
            r#"{"etag":"abc-2","sum":{"algorithm":"Crc32","value":"AQEBAQ==\n"}}"#,
            r#"{"etag":"abc-2","sum":{"algorithm":"Crc32","value":"AQEB"}}"#,
            r#"{"etag":"abc-2","sum":{"algorithm":"Crc32","value":"AQEBAQ==","composite":true}}"#,
            r#"{"etag":"abc-2","parts":{"count":4000000000,"runs":[]}}"#,
            r#"{"etag":"abc-2","parts":{"count":4000000000,"runs":[[3999999999,0],[1,8]]}}"#,
            r#"{"etag":"abc-2","parts":{"count":3,"runs":[[3,18446744073709551615]]}}"#,
        ] {
            let read = read(wrong, "abc-2", 8);
            assert_eq!((read.sum, read.parts), (None, None), "{wrong}");
        }
        let of_parts =
            r#"{"etag":"abc-2","sum":{"algorithm":"Crc32","value":"AQEBAQ==-2","composite":true}}"#;
        assert!(read(of_parts, "abc-2", 8).sum.is_some_and(|sum| sum.composite));
        // Without the checksums of parts, or none, beside metadata that leave no more room.
        let beside = |len: usize| BTreeMap::from([("k".to_owned(), "v".repeat(len))]);
        let short = record.content(&beside(META_MAX - CONTENT.len() - 1 - text.len() + 1)).unwrap();
        let told = read(&short, "abc-2", 8);
        assert_eq!(told.sum, record.sum);
        assert!(told.parts.is_some_and(|parts| parts.are_known() && parts.sums.is_none()));
        assert_eq!(record.content(&beside(META_MAX - CONTENT.len() - 1 - short.len() + 1)), None);
        assert_eq!(record.content(&beside(META_MAX)), None);
    }

    #[test]
    fn what_a_later_version_keeps_stays() {
        let over = |before: &str, tags: &[(&str, &str)]| {
            let mut record = decode::<Record>(before.as_bytes()).unwrap_or_else(Record::current);
            record.tags = tags.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
            String::from_utf8(encode_over(&record, before.as_bytes())).unwrap()
        };
        let later = r#"{"v":1,"etag":"e","tags":[["a","1"]],"later":{"b":[null]}}"#;
        assert_eq!(
            over(later, &[("c", "2")]),
            r#"{"etag":"e","later":{"b":[null]},"tags":[["c","2"]],"v":1}"#
        );
        assert_eq!(over(later, &[]), r#"{"etag":"e","later":{"b":[null]},"v":1}"#);
        assert_eq!(over(r#"{"v":1,"etag":"e"}"#, &[]), r#"{"v":1,"etag":"e"}"#);
        assert_eq!(over("damaged", &[]), r#"{"v":1}"#);
    }

    #[test]
    fn records_stay_small_and_come_back() {
        let mut record = Record::current();
        record.etag = Some("d41d8cd98f00b204e9800998ecf8427e".to_owned());
        record.parts = Some(Parts::of((0..599).map(|n| 5_000_000_000 + n % 2)));
        let bytes = encode(&record);
        assert!(bytes.len() < 12 << 10, "{}", bytes.len());
        assert_eq!(decode::<Record>(&bytes), Some(record));
        assert_eq!(decode::<Record>(b"{}").map(|record| record.v), None);
        // A record from before classes were stored.
        let before = decode::<Record>(br#"{"v":1,"etag":"e"}"#).unwrap();
        assert_eq!(
            (before.class(), encode(&before)),
            ("STANDARD", br#"{"v":1,"etag":"e"}"#.to_vec())
        );
        assert!(is_class("STANDARD") && is_class("GLACIER_IR") && !is_class("glacier"));
    }
}
