//! Words of objects: keys, what is kept with their files, and what a gateway asks of a meta (RFC 0019).

mod key;
mod op;
mod record;
mod reply;

pub use key::{
    BEGINNING, INSIDE, LONG_BYTES, Meaning, OBJECT_KEY_MAX, ObjectKeyError, SELF_NAME,
    beginning_name, belongs_behind, check_key, is_bucket_name, meaning, name_at, names_of_key,
    places, short_name, split_long,
};
pub use op::{
    Expect, ListObjects, ObjectBody, ObjectOp, PARTS_MAX, PutObject, PutPart, SetAttachment,
    UploadId,
};
pub use record::{ATTACHMENT_MAX, AttachmentRecord, PartRecord, UploadRecord};
pub use reply::{Attachment, Bucket, ListPage, Listed, Object, ObjectReply, Part, Put, Upload};
