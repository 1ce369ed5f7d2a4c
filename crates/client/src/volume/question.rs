//! Objects for callers that have no thread to wait with.

use millpond_types::meta::object::{ObjectOp, ObjectReply, Put};
use millpond_types::meta::{Answered, MetaError, MetaOp, MetaRequest};

use super::Volume;
use super::backing::Found;
use super::objects::{PutObject, look_up_op, put_op};
use crate::error::ClientError;
use crate::multiplex::Told;

/// One operation on an object: it is sent with [`Volume::send`], and what comes back is told to [`Volume::answer`]; or it
/// is asked at once with [`Volume::ask`]. Whatever of that happens how often, it is done once.
#[derive(Clone, Debug)]
pub struct Question {
    path: String,
    request: MetaRequest,
    attachment: Vec<u8>,
}

/// What a [`Question`] was answered with.
#[derive(Clone, Debug)]
pub struct Reply {
    reply: ObjectReply,
    attachment: Vec<u8>,
}

impl Volume {
    /// What [`Volume::look_up`] asks.
    ///
    /// # Errors
    /// `InvalidArgument` for a key or a bucket that none has.
    pub fn question_look_up(
        &self,
        bucket: &str,
        key: &[u8],
        with_bytes: bool,
    ) -> Result<Question, ClientError> {
        look_up_op(bucket, key, with_bytes).map(|it| self.question(it, &[]))
    }

    /// What [`Volume::put_object`] asks. Blocks when the body is a file.
    ///
    /// # Errors
    /// `InvalidArgument` as there.
    pub fn question_put(&self, put: &PutObject<'_>) -> Result<Question, ClientError> {
        put_op(put, None).map(|it| self.question(it, put.attachment))
    }

    fn question(&self, (path, op): (String, ObjectOp), attachment: &[u8]) -> Question {
        let metas = self.metas();
        let request = metas.request(metas.caller.clone(), MetaOp::Object(op));
        Question { path, request, attachment: attachment.to_vec() }
    }

    /// Sends a question to a meta that shares memory with this process; `told` hears the reply, if one comes, from
    /// another thread, and must not block there. False where that is not possible now; `told` is dropped then.
    #[must_use]
    pub fn send(&self, question: &Question, told: Told) -> bool {
        self.metas().client.meta_beside(&question.request, told).is_ok()
    }

    /// What a reply says; none where the question must be asked with [`Volume::ask`].
    #[must_use]
    pub fn answer(&self, question: &Question, reply: &[u8]) -> Option<Result<Reply, ClientError>> {
        let answered = Answered::decode(reply).ok()?;
        if matches!(answered.answer, Err(MetaError::Again)) {
            return None;
        }
        let reply = self.told(&question.path, answered.answer);
        Some(reply.map(|reply| Reply { reply, attachment: question.attachment.clone() }))
    }

    /// Asks a question, sent before or not. Blocks.
    ///
    /// # Errors
    /// As of the operation.
    pub fn ask(&self, question: Question) -> Result<Reply, ClientError> {
        let Question { path, request, attachment } = question;
        let reply = match self.metas().client.meta(&request, None)?.answer {
            // Nothing was done: from now on it is another request each time.
            Err(MetaError::Again) => match request.op {
                MetaOp::Object(op) => self.object_op(&path, op)?,
                _ => return Err(self.metas().unexpected()),
            },
            answer => self.told(&path, answer)?,
        };
        Ok(Reply { reply, attachment })
    }

    /// The answer to [`Volume::question_look_up`].
    ///
    /// # Errors
    /// `Unexpected` for another one's.
    pub fn looked_up(&self, reply: Reply) -> Result<Found, ClientError> {
        self.found(reply.reply)
    }

    /// The answer to [`Volume::question_put`].
    ///
    /// # Errors
    /// `Unexpected` for another one's.
    pub fn put_done(&self, reply: Reply) -> Result<Put, ClientError> {
        self.done(reply.reply, Some(&reply.attachment))
    }
}
