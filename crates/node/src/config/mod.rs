//! Settings of the server: one TOML file, every key optional, unknown keys refused, flags on top.
//!
//! `docs/configuration.md` is generated from the doc comments below
//! (`millpond config reference`), and a test compares the two.

mod check;
mod cluster;
mod load;
mod reference;
#[cfg(test)]
mod tests;
mod value;

pub use cluster::{StoreAccess, StoreChoice};
pub use load::{ConfigError, from_file, from_text, to_text};
pub use reference::{Field, Section, reference};
pub use value::{Io, Kind, LogFormat, Size, Span};

use std::time::Duration;

use millpond_types::{ByteSize, limits};

const DEADLINE_DEFAULT: Duration = Duration::from_secs(5);
const _: () = assert!(limits::DEADLINE_MS_DEFAULT == 5_000, "one default for both sides");

macro_rules! section {
    ($(#[doc = $about:literal])* $name:ident at $path:literal {
        $($(#[doc = $doc:literal])* $field:ident : $ty:ty = $default:expr;)*
    }) => {
        $(#[doc = $about])*
        #[derive(Clone, Debug, PartialEq, serde::Deserialize, serde::Serialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $name { $($(#[doc = $doc])* pub $field: $ty,)* }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }

        impl $name {
            /// What the reference says about this section.
            pub const SECTION: Section = Section {
                path: $path,
                about: concat!($($about, "\n"),*),
                fields: &[$(Field {
                    name: stringify!($field),
                    kind: <$ty as Kind>::KIND,
                    doc: concat!($($doc, "\n"),*),
                },)*],
            };
        }
    };
}

section! {
    /// What the server stores and where it listens.
    ServerConfig at "server" {
        /// Data folders or block devices. A folder gets one file, which grows as it is used. `PATH:SIZE` sets the
        /// size of one of them. Several disks share the keys by their sizes.
        data: Vec<String> = vec!["./millpond-data".to_owned()];
        /// Bytes of each new data file. Left out: 30 % of the free disk space, at most 64 GiB.
        size: Option<Size> = None;
        /// Memory of the server: an eighth, at least 48MiB, is for the index and connections, the
        /// rest holds values. More is for them where `index_memory` asks for it. Left out: a quarter of the machine's memory, at most 4 GiB; 128 MiB of a
        /// process that has neither disks nor a manager.
        memory: Option<Size> = None;
        /// Memory of the index at most, a part of `memory`: some 160 bytes for each value and chunk of a file, and its
        /// key. What is too much gives way, as on a full disk. Left out: three quarters of what `memory` leaves beside values.
        index_memory: Option<Size> = None;
        /// TCP address for clients; empty for none.
        listen: String = "127.0.0.1:7440".to_owned();
        /// TCP address for `/metrics`, `/healthz`, `/readyz` and `/v1/info`; empty for none.
        http: String = "127.0.0.1:7441".to_owned();
        /// Unix socket for clients on this host. Left out: `millpond.sock` in the first data folder
        /// (in the folder for temporary files when the first data path is a block device).
        /// Empty: none, and so no shared memory.
        socket: Option<String> = None;
        /// Threads that serve clients. Left out: one per processor, at most 4.
        cores: Option<u32> = None;
        /// How disks and sockets are driven. `auto` uses `io_uring` where the kernel allows it.
        io: Io = Io::Auto;
        /// Only open disks of this cluster. Left out: the cluster of the first disk.
        cluster_id: Option<String> = None;
        /// Ask the kernel for huge pages for the buffer pool.
        huge_pages: bool = true;
    }
}

section! {
    /// Who may connect.
    SecurityConfig at "security" {
        /// File of credentials, one a line: the token, then the namespaces it may use (names, `*`
        /// matches any characters), and `+files` for those of files; none means all. Left out: no credential is asked for, and the
        /// server listens on loopback addresses only, unless `insecure` is set. Read again when it
        /// changes and on SIGHUP.
        token_file: Option<String> = None;
        /// PEM file of the server's certificate chain; turns TLS on for the TCP address.
        tls_cert: Option<String> = None;
        /// PEM file of the certificate's private key.
        tls_key: Option<String> = None;
        /// Allow an address that is not loopback without credentials, or credentials without TLS
        /// on such an address.
        insecure: bool = false;
    }
}

section! {
    /// Bounds that keep one client from hurting the others.
    LimitsConfig at "limits" {
        /// Client connections at most.
        connections: u32 = 16_384;
        /// Requests in flight per connection; told to the client at hello.
        in_flight: u32 = limits::IN_FLIGHT_MAX;
        /// Bytes of values one connection may hold in flight. One larger request still runs alone.
        connection_bytes: Size = Size(ByteSize::mib(256));
        /// Deadline of requests that name none.
        deadline: Span = Span(DEADLINE_DEFAULT);
        /// A client that takes no byte of its replies for this long is disconnected.
        stalled_client: Span = Span(Duration::from_secs(30));
        /// A stop takes no longer: then the process ends, and what was acknowledged from memory alone is lost as
        /// after a crash.
        stop: Span = Span(Duration::from_mins(1));
        /// A connection must say hello within this time.
        hello: Span = Span(Duration::from_secs(10));
        /// How long a shared-memory client may keep values it was given before they are taken back.
        hold: Span = Span(Duration::from_secs(30));
        /// Bytes of memory one shared-memory client may ask for to put values in.
        shm_arena: Size = Size(ByteSize::mib(256));
        /// Shared-memory clients at most.
        shm_clients: u32 = 64;
    }
}

section! {
    /// The chunk store on each disk.
    EngineConfig at "engine" {
        /// Eviction starts when this share of the disk is used, in percent.
        evict_high_percent: u32 = 95;
        /// Eviction stops when this share of the disk is used, in percent.
        evict_low_percent: u32 = 90;
        /// Every stored byte is read and verified once per this time.
        scrub_period: Span = Span(Duration::from_hours(7 * 24));
        /// Bytes per second that verification may read.
        scrub_rate: Size = Size(ByteSize::mib(32));
    }
}

section! {
    /// The cluster that this server is part of. Without `managers` and `manager` it is the first node of
    /// its own, with every role, and others may join it.
    ClusterConfig at "cluster" {
        /// Where managers are, as `host:port`. A name may have many addresses; it is looked up again
        /// after every failure. Any node of the cluster will do: it knows the managers.
        managers: Vec<String> = Vec::new();
        /// This process has the manager role. One manager is primary, the others stand by.
        manager: bool = false;
        /// This process has disks that take part. False for a process that is only a manager.
        storage: bool = true;
        /// Where managers keep what they know: `embedded` (in `meta` within the first data folder;
        /// one manager), or `etcd://host:port,host:port/prefix` (several).
        store: String = "embedded".to_owned();
        /// File with the certificates (PEM) of the authority that signed those of etcd's members: they are
        /// reached over TLS then.
        store_ca: Option<String> = None;
        /// File with the certificate (PEM) that managers show to etcd's members, where these ask for one.
        store_cert: Option<String> = None;
        /// File with the key (PEM) of `store_cert`.
        store_key: Option<String> = None;
        /// The name in the certificates of etcd's members, where it is not the host in `store`.
        store_name: Option<String> = None;
        /// Managers' user at etcd.
        store_user: Option<String> = None;
        /// File whose first word is the password of `store_user`.
        store_password_file: Option<String> = None;
        /// Where others reach this server, as `host:port`; one for each network card. Left empty:
        /// the address it listens on, with the host's name when that is any address.
        advertise: Vec<String> = Vec::new();
        /// What fails together with this server, such as a rack: replicas go to different ones.
        /// Empty: only the server itself.
        domain: String = String::new();
        /// File whose first word is the nodes' secret, the same on all of them: replica messages, heartbeats and registrations are
        /// taken only from who shows it, and from no client's token. At least 16 characters. Left out with `security.token_file`: a
        /// first manager with an embedded store makes one, `node.secret` in its first data folder; other nodes need a copy of it.
        node_secret_file: Option<String> = None;
        /// File whose first word is the credential shown to other nodes where there is no `node_secret_file`.
        token_file: Option<String> = None;
        /// For the first manager of a new cluster: make the chains once so many failure domains have
        /// registered. 0: wait for `millpond admin form`, or 1 without `managers` and `manager`.
        form_nodes: u32 = 0;
        /// Replicas of every chain, when `form_nodes` makes them; later `millpond admin form`
        /// makes chains with more.
        replicas: u32 = 1;
    }
}

section! {
    /// The S3 gateway of this process (`docs/s3.md`).
    S3Config at "s3" {
        /// TCP address for S3 clients; empty for none. Left out: port 9000 of the address of `server.listen` in a server
        /// that has every role (manager and disks), unless another process has that port; none in other servers.
        listen: Option<String> = None;
        /// Buckets are also names of hosts below this domain: `BUCKET.DOMAIN`. Paths (`/BUCKET/KEY`) always work.
        domain: Option<String> = None;
        /// The region that the gateway says it is in.
        region: String = "us-east-1".to_owned();
        /// PEM file of the certificate chain for S3 clients; turns TLS on.
        tls_cert: Option<String> = None;
        /// PEM file of the certificate's private key.
        tls_key: Option<String> = None;
        /// An access key that is not kept in the volume, for a first start. The variable `MILLPOND_S3_ACCESS_KEY` does the same.
        access_key: Option<String> = None;
        /// Its secret; or the variable `MILLPOND_S3_SECRET_KEY`.
        secret_key: Option<String> = None;
        /// Uploads in parts that nobody completed are given up when they are so old.
        upload_expiry: Span = Span(Duration::from_hours(7 * 24));
    }
}

section! {
    /// Log lines on standard error.
    LogConfig at "log" {
        /// How lines look.
        format: LogFormat = LogFormat::Text;
        /// `error`, `warn`, `info`, `debug` or `trace`; also per module, such as
        /// `info,millpond_engine=debug`.
        level: String = "info".to_owned();
    }
}

/// All settings.
#[derive(Clone, Debug, Default, PartialEq, serde::Deserialize, serde::Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// `[server]`
    pub server: ServerConfig,
    /// `[security]`
    pub security: SecurityConfig,
    /// `[limits]`
    pub limits: LimitsConfig,
    /// `[engine]`
    pub engine: EngineConfig,
    /// `[cluster]`
    pub cluster: ClusterConfig,
    /// `[s3]`
    pub s3: S3Config,
    /// `[log]`
    pub log: LogConfig,
}

/// Every section, in the order of the reference.
pub const SECTIONS: &[Section] = &[
    ServerConfig::SECTION,
    SecurityConfig::SECTION,
    LimitsConfig::SECTION,
    EngineConfig::SECTION,
    ClusterConfig::SECTION,
    S3Config::SECTION,
    LogConfig::SECTION,
];
