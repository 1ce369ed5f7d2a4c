//! Operations on objects for callers that cannot block.

use millpond_types::meta::object::{ObjectOp, ObjectReply, Put};
use millpond_types::meta::{MetaError, MetaOp, MetaRequest};

use super::Volume;
use super::backing::Found;
use super::objects::{PutObject, look_up_op, put_op};
use crate::error::ClientError;

/// One operation on an object, for [`Volume::ask_here`] or [`Volume::ask`]. It is executed once, no
/// matter how often and in which way it is asked.
#[derive(Clone, Debug)]
pub struct Question {
    path: String,
    request: MetaRequest,
    attachment: Vec<u8>,
}

/// The answer to a [`Question`].
#[derive(Clone, Debug)]
pub struct Reply {
    reply: ObjectReply,
    attachment: Vec<u8>,
}

impl Volume {
    /// The question of [`Volume::look_up`].
    ///
    /// # Errors
    /// `InvalidArgument` for an invalid key or bucket.
    pub fn question_look_up(
        &self,
        bucket: &str,
        key: &[u8],
        with_bytes: bool,
    ) -> Result<Question, ClientError> {
        look_up_op(bucket, key, with_bytes).map(|op| self.question(op, &[]))
    }

    /// The question of [`Volume::put_object`]. Blocks when the body is a file.
    ///
    /// # Errors
    /// `InvalidArgument` as there.
    pub fn question_put(&self, put: &PutObject<'_>) -> Result<Question, ClientError> {
        put_op(put, None).map(|op| self.question(op, put.attachment))
    }

    fn question(&self, (path, op): (String, ObjectOp), attachment: &[u8]) -> Question {
        let metas = self.metas();
        let request = metas.request(metas.caller.clone(), MetaOp::Object(op));
        Question { path, request, attachment: attachment.to_vec() }
    }

    /// Asks the meta in this process, without blocking a thread; none if the question must be asked
    /// with [`Volume::ask`].
    pub async fn ask_here(&self, question: &Question) -> Option<Result<Reply, ClientError>> {
        let answer = self.metas().client.meta_here(&question.request).await?.answer;
        if matches!(answer, Err(MetaError::Again)) {
            return None;
        }
        let reply = self.told(&question.path, answer);
        Some(reply.map(|reply| Reply { reply, attachment: question.attachment.clone() }))
    }

    /// Asks a question, whether it was asked before or not. Blocks.
    ///
    /// # Errors
    /// As of the operation.
    pub fn ask(&self, question: Question) -> Result<Reply, ClientError> {
        let Question { path, request, attachment } = question;
        let reply = match self.metas().client.meta(&request, None)?.answer {
            // Nothing was done, so each further attempt is a new request.
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
    /// `Unexpected` for the answer to another question.
    pub fn looked_up(&self, reply: Reply) -> Result<Found, ClientError> {
        self.found(reply.reply)
    }

    /// The answer to [`Volume::question_put`].
    ///
    /// # Errors
    /// `Unexpected` for the answer to another question.
    pub fn put_done(&self, reply: Reply) -> Result<Put, ClientError> {
        self.done(reply.reply, Some(&reply.attachment))
    }
}
