//! Types of objects: keys, attachments of their files, requests of a gateway to a meta (RFC 0019),
//! and backends (RFC 0020).

mod backing;
mod key;
mod op;
mod record;
mod reply;

pub use backing::{
    BACKEND_NAME_MAX, Backing, BackingError, BackingOp, BackingReply, CLAIMS_MAX, Claimed,
    ERROR_BYTES_MAX, ETAG_BYTES_MAX, FORGET_MS, KeyState, LANE_LARGE, LANE_SMALL, LANE_SWEEP, Mode,
    Origin, Outcome, PAUSE_MS_MAX, Place, QueuePage, QueueRecord, Queued, RULE_PREFIXES_MAX,
    RULES_MAX, Remote, Rule, SMALL_MAX, Sharing, StatePage, Under, Wanted, WhenFull,
};
pub use key::{
    BEGINNING, INSIDE, LONG_BYTES, Meaning, OBJECT_KEY_MAX, ObjectKeyError, SELF_NAME,
    beginning_name, belongs_behind, check_key, is_bucket_name, meaning, name_at, names_of_key,
    places, short_name, split_long,
};
pub use op::{
    Expect, ListObjects, ObjectBody, ObjectOp, PART_MIN, PARTS_MAX, PutObject, PutPart,
    SetAttachment, UploadId,
};
pub use record::{ATTACHMENT_MAX, AttachmentRecord, PartPlace, PartRecord, UploadRecord, Whole};
pub use reply::{Attachment, Bucket, ListPage, Listed, Object, ObjectReply, Part, Put, Upload};
