//! Checks of settings against each other.

use std::net::SocketAddr;

use super::{Config, ConfigError};

/// Default port of S3 clients.
const S3_PORT: u16 = 9000;

pub(super) fn invalid(key: &'static str, fix: impl Into<String>) -> ConfigError {
    ConfigError::Invalid { key, fix: fix.into() }
}

fn address(key: &'static str, text: &str) -> Result<Option<SocketAddr>, ConfigError> {
    if text.is_empty() {
        return Ok(None);
    }
    let with_host = text.replace("localhost:", "127.0.0.1:");
    with_host.parse().map(Some).map_err(|_| {
        invalid(
            key,
            format!(
                "'{text}' is not an address: write IP:PORT, as in 127.0.0.1:7440 or [::1]:7440"
            ),
        )
    })
}

impl Config {
    /// The TCP address for clients.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] if it is not an address.
    pub fn listen_address(&self) -> Result<Option<SocketAddr>, ConfigError> {
        address("server.listen", &self.server.listen)
    }

    /// The TCP address for metrics.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] if it is not an address.
    pub fn http_address(&self) -> Result<Option<SocketAddr>, ConfigError> {
        address("server.http", &self.server.http)
    }

    /// Checks ranges and combinations, before anything is opened.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] naming the key and the fix.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.validate_server()?;
        self.validate_security()?;
        self.validate_limits()?;
        self.validate_cluster()?;
        self.validate_s3()?;
        let engine = &self.engine;
        if !(1..=99).contains(&engine.evict_high_percent) {
            return Err(invalid("engine.evict_high_percent", "use 1 to 99"));
        }
        if engine.evict_low_percent == 0 || engine.evict_low_percent >= engine.evict_high_percent {
            return Err(invalid(
                "engine.evict_low_percent",
                format!("use 1 to {}, below evict_high_percent", engine.evict_high_percent - 1),
            ));
        }
        if engine.scrub_rate.bytes() < 1 << 20 {
            return Err(invalid("engine.scrub_rate", "use at least 1MiB"));
        }
        Ok(())
    }

    fn validate_server(&self) -> Result<(), ConfigError> {
        let server = &self.server;
        if server.data.is_empty() || server.data.iter().any(String::is_empty) {
            return Err(invalid("server.data", "set at least one folder or block device"));
        }
        if server.size.is_some_and(|size| size.bytes() < 1 << 30) {
            return Err(invalid("server.size", "a data file needs at least 1GiB"));
        }
        if server.memory.is_some_and(|memory| memory.bytes() < 128 << 20) {
            return Err(invalid("server.memory", "the server needs at least 128MiB"));
        }
        if server.index_memory.is_some_and(|memory| memory.bytes() < 8 << 20) {
            return Err(invalid("server.index_memory", "the index needs at least 8MiB"));
        }
        if server.cores.is_some_and(|cores| !(1..=64).contains(&cores)) {
            return Err(invalid("server.cores", "use 1 to 64"));
        }
        let listen = self.listen_address()?;
        self.http_address()?;
        if listen.is_none() && server.socket.as_deref() == Some("") {
            return Err(invalid("server.listen", "set an address, or server.socket"));
        }
        Ok(())
    }

    fn validate_security(&self) -> Result<(), ConfigError> {
        let security = &self.security;
        if security.tls_cert.is_some() != security.tls_key.is_some() {
            return Err(invalid("security.tls_cert", "set both tls_cert and tls_key, or neither"));
        }
        let public = self.listen_address()?.is_some_and(|address| !address.ip().is_loopback());
        if public && !security.insecure {
            if security.token_file.is_none() {
                return Err(invalid(
                    "server.listen",
                    format!(
                        "other hosts can reach {}, and no credential is required: set \
                         --token-file FILE, or --insecure if the network is trusted",
                        self.server.listen
                    ),
                ));
            }
            if security.tls_cert.is_none() {
                return Err(invalid(
                    "server.listen",
                    format!(
                        "other hosts can reach {}, and tokens would be sent unencrypted: set \
                         --tls-cert and --tls-key, or --insecure if the network is trusted",
                        self.server.listen
                    ),
                ));
            }
        }
        Ok(())
    }

    /// The address for S3 clients, and whether the configuration names it.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] if it is not an address.
    pub fn s3_address(&self) -> Result<Option<(SocketAddr, bool)>, ConfigError> {
        if let Some(text) = &self.s3.listen {
            return Ok(address("s3.listen", text)?.map(|at| (at, true)));
        }
        let cluster = &self.cluster;
        let has_every_role = cluster.has_manager() && cluster.storage;
        let listen = self.listen_address()?.filter(|_| has_every_role);
        Ok(listen.map(|at| (SocketAddr::new(at.ip(), S3_PORT), false)))
    }

    fn validate_s3(&self) -> Result<(), ConfigError> {
        let s3 = &self.s3;
        self.s3_address()?;
        if s3.tls_cert.is_some() != s3.tls_key.is_some() {
            return Err(invalid("s3.tls_cert", "set both tls_cert and tls_key, or neither"));
        }
        if s3.access_key.is_some() != s3.secret_key.is_some() {
            return Err(invalid("s3.access_key", "set both access_key and secret_key, or neither"));
        }
        if s3.access_key.as_ref().is_some_and(|it| !(3..=128).contains(&it.len())) {
            return Err(invalid("s3.access_key", "use 3 to 128 characters"));
        }
        if s3.secret_key.as_ref().is_some_and(|it| it.len() < 8) {
            return Err(invalid("s3.secret_key", "use at least 8 characters"));
        }
        let is_domain = |it: &String| {
            let sign = |byte: u8| {
                byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-".contains(&byte)
            };
            !it.is_empty() && it.bytes().all(sign)
        };
        if s3.domain.as_ref().is_some_and(|it| !is_domain(it)) {
            return Err(invalid("s3.domain", "use a lowercase name, without a port"));
        }
        if s3.upload_expiry.0.as_secs() == 0 {
            return Err(invalid("s3.upload_expiry", "use at least 1s"));
        }
        Ok(())
    }

    fn validate_limits(&self) -> Result<(), ConfigError> {
        let limits = &self.limits;
        if !(1..=1_000_000).contains(&limits.connections) {
            return Err(invalid("limits.connections", "use 1 to 1000000"));
        }
        if !(1..=4096).contains(&limits.in_flight) {
            return Err(invalid("limits.in_flight", "use 1 to 4096"));
        }
        if limits.connection_bytes.bytes() < 1 << 20 {
            return Err(invalid("limits.connection_bytes", "use at least 1MiB"));
        }
        if limits.deadline.0.is_zero() {
            return Err(invalid("limits.deadline", "use more than 0"));
        }
        if limits.stop.0.as_secs() < 1 {
            return Err(invalid("limits.stop", "use at least 1s"));
        }
        if limits.stalled_client.0.as_millis() < 100 {
            return Err(invalid("limits.stalled_client", "use at least 100ms"));
        }
        if limits.hello.0.as_millis() < 100 {
            return Err(invalid("limits.hello", "use at least 100ms"));
        }
        if limits.hold.0.as_millis() < 100 {
            return Err(invalid("limits.hold", "use at least 100ms"));
        }
        Ok(())
    }
}
