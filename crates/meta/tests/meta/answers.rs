//! Answers of requests: kept for some hours, then forgotten.

use millpond_env::Clock as _;
use millpond_types::meta::object::ObjectOp;
use millpond_types::meta::{FileKind, Ino, MetaError, MetaOp, MetaRequest};

use crate::objects::BUCKET;
use crate::support::{Client, Fixture, create, name};

fn create_in_hour(c: &Client, text: &str, hour: u32) -> MetaRequest {
    MetaRequest { hour, ..c.request(MetaOp::Create(create(Ino::ROOT, text, FileKind::Regular))) }
}

/// Answers from hours that are over are forgotten, and no others; none are forgotten by a clock far
/// ahead of the others.
pub(crate) async fn answers_are_forgotten_after_hours(f: Fixture) {
    let c = f.client().await;
    let now = u32::try_from(f.clock.unix_ms() / 3_600_000).unwrap();
    let (old, recent) = (create_in_hour(&c, "old", now - 4), create_in_hour(&c, "recent", now - 3));
    let answers = [c.send(&old).await, c.send(&recent).await];
    assert!(answers.iter().all(Result::is_ok));
    f.volume.forget_answers().await.unwrap();
    assert_eq!(c.send(&old).await, answers[0], "nobody changed anything in this hour");
    c.send(&create_in_hour(&c, "new", now)).await.unwrap();
    f.other.forget_answers().await.unwrap();
    assert_eq!(c.send(&old).await, Err(MetaError::Stale));
    assert_eq!(c.send(&recent).await, answers[1]);
    let late = create_in_hour(&c, "late", now - 4);
    assert_eq!(c.send(&late).await, Err(MetaError::Stale), "one like it may have been forgotten");
    for (text, is_there) in [("old", true), ("recent", true), ("new", true), ("late", false)] {
        assert_eq!(c.lookup(Ino::ROOT, text).await.is_ok(), is_there, "{text}");
    }
    f.assert_sound().await;
}

/// A repeated removal with a lost answer leaves a new bucket of the same name alone.
pub(crate) async fn a_removal_is_not_begun_again(f: Fixture) {
    let c = f.client().await;
    c.make_bucket(BUCKET).await.unwrap();
    let removal = c.request(MetaOp::Object(ObjectOp::RemoveBucket { bucket: name(BUCKET) }));
    let answer = c.send(&removal).await;
    assert!(answer.is_ok());
    let bucket = c.make_bucket(BUCKET).await.unwrap();
    let dir = c.dir(bucket, "made since").await;
    assert_eq!(c.send(&removal).await, answer);
    assert!(c.getattr(dir).await.is_ok());
    f.assert_sound().await;
}
