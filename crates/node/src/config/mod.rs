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
    /// Disks, memory, addresses and threads of the server.
    ServerConfig at "server" {
        /// Data folders or block devices. A folder gets one file, which grows with its use.
        /// `PATH:SIZE` sets the size of one disk. Keys are distributed over several disks in
        /// proportion to their sizes.
        data: Vec<String> = vec!["./millpond-data".to_owned()];
        /// Size of each new data file. Left out: 30 % of the free disk space, at most 64 GiB.
        size: Option<Size> = None;
        /// Memory of the server. One eighth, at least 48MiB, is for the index and connections, or
        /// more if `index_memory` requires it; the rest holds values. Left out: a quarter of the
        /// machine's memory, at most 4 GiB; 128 MiB for a process that has neither disks nor a
        /// manager.
        memory: Option<Size> = None;
        /// Maximum memory of the index, as a part of `memory`: some 160 bytes plus the key for each
        /// value and each chunk of a file. Beyond it values are evicted, as on a full disk. Left
        /// out: three quarters of the part of `memory` that does not hold values.
        index_memory: Option<Size> = None;
        /// TCP address for clients; empty for none.
        listen: String = "127.0.0.1:7440".to_owned();
        /// TCP address for `/metrics`, `/healthz`, `/readyz` and `/v1/info`; empty for none.
        http: String = "127.0.0.1:7441".to_owned();
        /// Unix socket for clients on this host. Left out: `millpond.sock` in the first data folder
        /// (in the folder for temporary files if the first data path is a block device). Empty: no
        /// socket, and therefore no shared memory.
        socket: Option<String> = None;
        /// Threads that serve clients. Left out: one per processor, at most 4.
        cores: Option<u32> = None;
        /// I/O backend for disks and sockets. `auto` uses `io_uring` where the kernel allows it.
        io: Io = Io::Auto;
        /// Open only disks of this cluster. Left out: the cluster of the first disk.
        cluster_id: Option<String> = None;
        /// Ask the kernel for huge pages for the buffer pool.
        huge_pages: bool = true;
    }
}

section! {
    /// Credentials and TLS for clients.
    SecurityConfig at "security" {
        /// File of credentials, one per line: the token, then the namespaces that it may use
        /// (names, in which `*` matches any characters), and `+files` for the operations on files.
        /// A token with neither may do everything. Left out: no credential is required, and the
        /// server listens on loopback addresses only, unless `insecure` is set. Reloaded when it
        /// changes and on SIGHUP.
        token_file: Option<String> = None;
        /// PEM file of the server's certificate chain; turns TLS on for the TCP address.
        tls_cert: Option<String> = None;
        /// PEM file of the certificate's private key.
        tls_key: Option<String> = None;
        /// Allow an address that is not loopback without credentials, or with credentials but
        /// without TLS.
        insecure: bool = false;
    }
}

section! {
    /// Limits that keep one client from harming the others.
    LimitsConfig at "limits" {
        /// Maximum client connections.
        connections: u32 = 16_384;
        /// Maximum requests in flight per connection; sent to the client at hello.
        in_flight: u32 = limits::IN_FLIGHT_MAX;
        /// Maximum bytes of values in flight per connection. A larger request still runs alone.
        connection_bytes: Size = Size(ByteSize::mib(256));
        /// Deadline of requests that set none.
        deadline: Span = Span(DEADLINE_DEFAULT);
        /// Time after which a client that takes no byte of its replies is disconnected.
        stalled_client: Span = Span(Duration::from_secs(30));
        /// Maximum time of a stop. After it the process exits, and data acknowledged from memory
        /// only is lost, as after a crash.
        stop: Span = Span(Duration::from_mins(1));
        /// Time within which a connection must send its hello.
        hello: Span = Span(Duration::from_secs(10));
        /// Time after which the server takes back values that a shared-memory client holds.
        hold: Span = Span(Duration::from_secs(30));
        /// Maximum memory that one shared-memory client may request for its values.
        shm_arena: Size = Size(ByteSize::mib(256));
        /// Maximum shared-memory clients.
        shm_clients: u32 = 64;
    }
}

section! {
    /// The chunk store on each disk.
    EngineConfig at "engine" {
        /// Used share of the disk, in percent, at which eviction starts.
        evict_high_percent: u32 = 95;
        /// Used share of the disk, in percent, at which eviction stops.
        evict_low_percent: u32 = 90;
        /// Period in which the scrub reads and verifies every stored byte once.
        scrub_period: Span = Span(Duration::from_hours(7 * 24));
        /// Maximum bytes per second that the scrub reads.
        scrub_rate: Size = Size(ByteSize::mib(32));
    }
}

section! {
    /// The cluster of this server. Without `managers` and `manager`, the server is the first node
    /// of its own cluster, with every role, and other nodes may join it.
    ClusterConfig at "cluster" {
        /// Addresses of managers, as `host:port`. Any node of the cluster works too, since it knows
        /// the managers. A host name may have several addresses; it is resolved again after every
        /// failure.
        managers: Vec<String> = Vec::new();
        /// Run the manager role. One manager is primary, the others are standby.
        manager: bool = false;
        /// Store data on disks. Set false for a process that is only a manager or an S3 gateway.
        storage: bool = true;
        /// Where managers store their state: `embedded` (in `meta` within the first data folder;
        /// one manager), or `etcd://host:port,host:port/prefix` (several).
        store: String = "embedded".to_owned();
        /// PEM file with the CA certificates of the etcd members; turns TLS to them on.
        store_ca: Option<String> = None;
        /// PEM file with the certificate of the managers, if the etcd members require one.
        store_cert: Option<String> = None;
        /// PEM file with the key of `store_cert`.
        store_key: Option<String> = None;
        /// Name in the certificates of the etcd members, if it is not the host in `store`.
        store_name: Option<String> = None;
        /// User of the managers at etcd.
        store_user: Option<String> = None;
        /// File whose first word is the password of `store_user`.
        store_password_file: Option<String> = None;
        /// Addresses at which others reach this server, as `host:port`; one for each network card.
        /// Empty: the listen address, with the name of the host if that is a wildcard address.
        advertise: Vec<String> = Vec::new();
        /// Failure domain of this server, for example its rack. The replicas of a chain are in
        /// different domains. Empty: this server alone.
        domain: String = String::new();
        /// File whose first word is the secret that all nodes share, at least 16 characters.
        /// Replica messages, heartbeats and registrations are accepted only with this secret, never
        /// with the token of a client. Left out with `security.token_file`: a first manager with an
        /// embedded store creates `node.secret` in its first data folder, and the other nodes need
        /// a copy of that file.
        node_secret_file: Option<String> = None;
        /// File whose first word is the credential for other nodes, without `node_secret_file`.
        token_file: Option<String> = None;
        /// For the first manager of a new cluster: make the chains once this number of failure
        /// domains has registered. 0: wait for `millpond admin form`; without `managers` and
        /// `manager`, 0 means 1.
        form_nodes: u32 = 0;
        /// Replicas of every chain, when `form_nodes` makes them; later `millpond admin form`
        /// makes chains with more.
        replicas: u32 = 1;
    }
}

section! {
    /// The S3 gateway of this process (`docs/s3.md`).
    S3Config at "s3" {
        /// TCP address for S3 clients; empty for none. Left out: port 9000 of the address in
        /// `server.listen` on a server with every role (manager and disks), unless another process
        /// has that port; none on other servers.
        listen: Option<String> = None;
        /// Serve buckets also as host names below this domain: `BUCKET.DOMAIN`. Paths
        /// (`/BUCKET/KEY`) always work.
        domain: Option<String> = None;
        /// Region that the gateway reports.
        region: String = "us-east-1".to_owned();
        /// PEM file of the certificate chain for S3 clients; turns TLS on.
        tls_cert: Option<String> = None;
        /// PEM file of the certificate's private key.
        tls_key: Option<String> = None;
        /// Access key for the first start, which is not stored in the volume. The variable
        /// `MILLPOND_S3_ACCESS_KEY` sets it too.
        access_key: Option<String> = None;
        /// Secret of `access_key`. The variable `MILLPOND_S3_SECRET_KEY` sets it too.
        secret_key: Option<String> = None;
        /// Age at which an incomplete multipart upload is aborted.
        upload_expiry: Span = Span(Duration::from_hours(7 * 24));
    }
}

section! {
    /// Log lines on standard error.
    LogConfig at "log" {
        /// Format of log lines.
        format: LogFormat = LogFormat::Text;
        /// `error`, `warn`, `info`, `debug` or `trace`; also per module, for example
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
