//! Verbs of requests, and statuses of replies.

use super::codec::WireError;

macro_rules! wire_enum {
    ($(#[$doc:meta])* $name:ident : $repr:ty, $field:literal { $($(#[$vdoc:meta])* $variant:ident = $value:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr($repr)]
        pub enum $name { $($(#[$vdoc])* $variant = $value,)* }

        impl $name {
            /// Every value, in numeric order.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The name used in documents, logs and metrics.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => stringify!($variant),)* }
            }
        }

        impl TryFrom<$repr> for $name {
            type Error = WireError;
            fn try_from(value: $repr) -> Result<Self, WireError> {
                match value {
                    $($value => Ok(Self::$variant),)*
                    _ => Err(WireError::Field($field)),
                }
            }
        }
    };
}
pub(super) use wire_enum;

wire_enum! {
    /// Verb of a request.
    Verb: u16, "verb" {
        /// First frame of a connection: versions and credential.
        Hello = 1,
        /// Answers at once, with the metadata it was sent.
        Ping = 2,
        /// Opens a namespace by name, creating it if asked.
        NamespaceOpen = 10,
        /// Lists namespaces.
        NamespaceList = 11,
        /// Removes a namespace and its blocks.
        NamespaceDrop = 12,
        /// Changes options of a namespace.
        NamespaceSet = 13,
        /// Stores values; the first one stored under a key wins.
        Put = 20,
        /// Reads values.
        Get = 21,
        /// Reports which keys are present.
        Contains = 22,
        /// Counts the leading keys that are present and leases them.
        MatchPrefix = 23,
        /// Marks keys as recently used.
        Touch = 24,
        /// Keeps keys from eviction until unpinned.
        Pin = 25,
        /// Ends a pin.
        Unpin = 26,
        /// Removes keys.
        Delete = 27,
        /// Lists keys in pages.
        List = 29,
        /// Numbers about the server or one namespace.
        Stats = 30,
        /// Asks for shared memory on a Unix socket.
        ShmAttach = 40,
        /// Gives back values read through shared memory; has no reply.
        ShmRelease = 41,
        /// Waits for routing that is newer than the caller's; any node of a cluster answers.
        Routing = 50,
        /// Reports that a node did not answer.
        Suspect = 51,
        /// To a manager: registers a node.
        Register = 52,
        /// To a manager: reports the state of a node.
        Heartbeat = 53,
        /// To a manager: waits for a namespace table that is newer than the caller's.
        NamespaceTable = 54,
        /// To a manager: a command of an operator, as JSON.
        Admin = 55,
        /// Between the replicas of a chain; has no reply.
        Peer = 60,
        /// Between the heads of the two chains of a moving slot; has no reply.
        SlotAsk = 61,
        /// The answer to a `SlotAsk`; has no reply.
        SlotAnswer = 62,
        /// Reads parts of chunks of files.
        ChunkRead = 70,
        /// Writes parts of chunks of files.
        ChunkWrite = 71,
        /// Cuts, extends or removes chunks of files.
        ChunkUpdate = 72,
        /// Lists chunks of files on the chains that the asked node heads, in pages.
        ChunkList = 73,
        /// Reports lengths and versions of chunks of files.
        ChunkStat = 74,
        /// To a meta: an operation on the file namespace.
        Meta = 80,
        /// To a meta: waits for changes of the file namespace.
        MetaWatch = 81,
    }
}

wire_enum! {
    /// Outcome of a whole request.
    Status: u16, "status" {
        /// Done; each item has its own status.
        Ok = 0,
        /// The request is malformed or breaks a limit; the message names the field.
        BadRequest = 1,
        /// The credential is missing or unknown.
        Unauthorized = 2,
        /// No namespace of that name or id.
        NoNamespace = 3,
        /// The namespace holds blocks of another layout.
        LayoutMismatch = 4,
        /// A queue is full; retry after the time in the reply.
        Busy = 5,
        /// The deadline passed before the work was done.
        DeadlineExceeded = 6,
        /// No space, and nothing may be evicted.
        NoSpace = 7,
        /// The disk fails or is read-only; reads may still work.
        ReadOnly = 8,
        /// The server is stopping; retry elsewhere or later.
        ShuttingDown = 9,
        /// The client supports no version that the server supports.
        Unsupported = 10,
        /// A fault of the server; its log has more.
        Internal = 11,
        /// The namespace exists with other options.
        Conflict = 12,
    }
}
