//! Outcomes of failed calls to etcd.

use std::error::Error;

use etcd_client::Error as EtcdError;
use tonic::{Code, Status};

use crate::StoreError;

/// The known outcome of a failed call.
#[derive(Debug)]
pub(crate) enum Fate {
    /// It was refused, and so will be the next one.
    Refused(StoreError),
    /// It was not done; another member may do it.
    NotDone(EtcdError),
    /// It may have been done, or may still be done.
    Open(EtcdError),
}

const OLD_LOGIN: &str = "etcdserver: revision of auth store is old";

/// Errors that members report before a request enters the replicated log, so that it cannot take
/// effect later (etcd 3.5, `server/etcdserver/api/v3rpc/interceptor.go`, `v3_server.go`).
const BEFORE_THE_LOG: [&str; 5] = [
    OLD_LOGIN,
    "etcdserver: no leader",
    "etcdserver: too many requests",
    "etcdserver: rpc not supported for learner",
    "etcdserver: not capable",
];

/// Judges a failed call.
pub(crate) fn judge(error: EtcdError) -> Fate {
    match error {
        EtcdError::GRpcStatus(status) => judge_status(status),
        // None of these reaches the network.
        EtcdError::InvalidArgs(_)
        | EtcdError::InvalidUri(_)
        | EtcdError::InvalidMetadataValue(_)
        | EtcdError::Utf8Error(_) => {
            let fix = error.to_string();
            Fate::Refused(StoreError::Config { field: "store.endpoints", fix })
        }
        EtcdError::TransportError(_) => Fate::Refused(StoreError::Denied(Box::new(error))),
        _ => Fate::Open(error),
    }
}

fn judge_status(status: Status) -> Fate {
    let message = status.message();
    let starts_with = |text: &&str| message.starts_with(*text);
    if was_not_sent(&status) || BEFORE_THE_LOG.iter().any(starts_with) {
        return Fate::NotDone(EtcdError::GRpcStatus(status));
    }
    match status.code() {
        Code::OutOfRange if message.contains("has been compacted") => {
            Fate::Refused(StoreError::Conflict)
        }
        // This member does not know the revision yet; the member that returned it does.
        Code::OutOfRange if message.contains("future revision") => {
            Fate::NotDone(EtcdError::GRpcStatus(status))
        }
        Code::ResourceExhausted if message.contains("space exceeded") => {
            Fate::Refused(StoreError::Full(Box::new(EtcdError::GRpcStatus(status))))
        }
        Code::Unauthenticated | Code::PermissionDenied => {
            Fate::Refused(StoreError::Denied(Box::new(EtcdError::GRpcStatus(status))))
        }
        Code::InvalidArgument => Fate::Refused(refused_argument(status)),
        _ => Fate::Open(EtcdError::GRpcStatus(status)),
    }
}

fn refused_argument(status: Status) -> StoreError {
    let message = status.message();
    let of_password = message.contains("authentication failed") || message.contains("user name");
    if of_password {
        return StoreError::Denied(Box::new(EtcdError::GRpcStatus(status)));
    }
    // Our bounds are below etcd's defaults, so a member was started with smaller ones.
    let fix = format!(
        "start the members with --max-txn-ops=128 and --max-request-bytes=1572864 or more ({message})"
    );
    StoreError::Config { field: "etcd", fix }
}

/// True when no connection could be made, so that no byte of the request was sent.
fn was_not_sent(status: &Status) -> bool {
    let mut source = status.source();
    while let Some(error) = source {
        if error.is::<tonic::ConnectError>() {
            return true;
        }
        source = error.source();
    }
    false
}

/// True when the login is older than a change of users or roles: log in again, and repeat.
pub(crate) fn is_old_login(error: &EtcdError) -> bool {
    matches!(error, EtcdError::GRpcStatus(status) if status.message().starts_with(OLD_LOGIN))
}

/// True when the answer was larger than the accepted message size.
pub(crate) fn is_too_large(error: &EtcdError) -> bool {
    matches!(error, EtcdError::GRpcStatus(status)
        if status.code() == Code::OutOfRange && status.message().contains("message length too large"))
}

#[cfg(test)]
mod tests {
    use etcd_client::Error as EtcdError;
    use tonic::{Code, Status};

    use super::{Fate, judge};
    use crate::StoreErrorKind;

    fn fate(code: Code, message: &str) -> Fate {
        judge(EtcdError::GRpcStatus(Status::new(code, message)))
    }

    #[test]
    fn what_may_still_happen_is_never_called_undone() {
        for (code, message) in [
            (Code::Unavailable, "etcdserver: request timed out"),
            (Code::Unavailable, "etcdserver: leader changed"),
            (Code::Unavailable, "etcdserver: server stopped"),
            (Code::Unavailable, "error reading server preface: connection reset"),
            (Code::Unknown, "h2 protocol error"),
            (Code::DeadlineExceeded, ""),
            (Code::Cancelled, "Timeout expired"),
        ] {
            assert!(matches!(fate(code, message), Fate::Open(_)), "{code:?} {message}");
        }
    }

    #[test]
    fn refusals_are_told_apart() {
        let kind = |code, message| match fate(code, message) {
            Fate::Refused(error) => Some(error.kind()),
            _ => None,
        };
        let compacted = "etcdserver: mvcc: required revision has been compacted";
        assert_eq!(kind(Code::OutOfRange, compacted), Some(StoreErrorKind::Conflict));
        let full = "etcdserver: mvcc: database space exceeded";
        assert_eq!(kind(Code::ResourceExhausted, full), Some(StoreErrorKind::Full));
        assert_eq!(kind(Code::PermissionDenied, ""), Some(StoreErrorKind::Denied));
        let operations = "etcdserver: too many operations in txn request";
        assert_eq!(kind(Code::InvalidArgument, operations), Some(StoreErrorKind::Config));
        assert!(matches!(fate(Code::Unavailable, "etcdserver: no leader"), Fate::NotDone(_)));
    }
}
