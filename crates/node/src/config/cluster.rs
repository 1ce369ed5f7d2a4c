//! Checks of the settings of `[cluster]`, and their evaluation.

use std::path::Path;

use millpond_client::Address;
use millpond_store::{StoreAccess, StoreChoice};
use millpond_types::limits::{ADDRESSES_MAX, NODES_MAX, REPLICAS_MAX, TOKEN_BYTES_MAX};

use super::check::invalid;
use super::{ClusterConfig, Config, ConfigError};

/// Longest name of a failure domain in bytes; the manager accepts no longer name.
const DOMAIN_BYTES_MAX: usize = 200;

/// Minimum characters of the nodes' secret.
const NODE_SECRET_MIN: usize = 16;
/// How a nodes' secret is made.
const MAKE_SECRET: &str = "create one with `head -c 24 /dev/urandom | base64 > node.secret`, or \
                           copy that of the manager (node.secret in its first data folder), and \
                           give the same file to every node with --node-secret node.secret";

impl ClusterConfig {
    /// Whether the settings name no other process: this server founds its own cluster, with every
    /// role.
    #[must_use]
    pub fn is_alone(&self) -> bool {
        self.storage && !self.manager && self.managers.is_empty()
    }

    /// Whether this process has the manager role, and the meta role with it.
    #[must_use]
    pub fn has_manager(&self) -> bool {
        self.manager || self.is_alone()
    }

    /// Failure domains that must register before the first manager makes the chains; 0 leaves that
    /// to an operator.
    #[must_use]
    pub fn domains_to_form(&self) -> u32 {
        if self.is_alone() { self.form_nodes.max(1) } else { self.form_nodes }
    }

    /// Store of the managers' records.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] if the text names no store.
    pub fn store_choice(&self) -> Result<StoreChoice, ConfigError> {
        let wrong = || {
            let text = "write embedded, or etcd://host:port,host:port/prefix";
            invalid("cluster.store", format!("'{}' is not a store: {text}", self.store))
        };
        let access = self.store_access()?;
        if self.store == "embedded" {
            if access != StoreAccess::default() {
                let fix =
                    "certificates and users are for etcd: remove them, or set --store etcd://…";
                return Err(invalid("cluster.store", fix));
            }
            return Ok(StoreChoice::Embedded);
        }
        let scheme = if access.ca.is_some() { "https" } else { "http" };
        let rest = self.store.strip_prefix("etcd://").ok_or_else(wrong)?;
        let (members, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let endpoint = |member: &str| match member.parse() {
            Ok(Address::Tcp { .. }) if member.contains(':') => Ok(format!("{scheme}://{member}")),
            _ => Err(wrong()),
        };
        let endpoints = members.split(',').map(endpoint).collect::<Result<_, _>>()?;
        let prefix = if prefix.is_empty() { "millpond" } else { prefix.trim_end_matches('/') };
        Ok(StoreChoice::Etcd { endpoints, prefix: format!("{prefix}/"), access })
    }

    fn store_access(&self) -> Result<StoreAccess, ConfigError> {
        let both = |(key, one): (&'static str, &Option<String>),
                    (other_key, other): (&'static str, &Option<String>)| {
            match (one, other) {
                (Some(one), Some(other)) => Ok(Some((one.clone(), other.clone()))),
                (None, None) => Ok(None),
                (Some(_), None) => Err(invalid(other_key, format!("set it too: {key} is set"))),
                (None, Some(_)) => Err(invalid(key, format!("set it too: {other_key} is set"))),
            }
        };
        let identity =
            both(("cluster.store_cert", &self.store_cert), ("cluster.store_key", &self.store_key))?;
        let user = both(
            ("cluster.store_user", &self.store_user),
            ("cluster.store_password_file", &self.store_password_file),
        )?;
        if self.store_ca.is_none() && (identity.is_some() || self.store_name.is_some()) {
            let fix = "set the file with the CA certificates: without it there is no TLS";
            return Err(invalid("cluster.store_ca", fix));
        }
        Ok(StoreAccess { ca: self.store_ca.clone(), identity, name: self.store_name.clone(), user })
    }

    /// The credential shown to other nodes; empty for none.
    ///
    /// # Errors
    /// [`ConfigError::Read`] naming the file.
    pub fn credential(&self) -> Result<Vec<u8>, ConfigError> {
        let Some(path) = self.node_secret_file.as_ref().or(self.token_file.as_ref()) else {
            return Ok(Vec::new());
        };
        let text = std::fs::read_to_string(Path::new(path))
            .map_err(|source| ConfigError::Read { path: path.clone(), source })?;
        Ok(text.split_whitespace().next().unwrap_or_default().as_bytes().to_vec())
    }

    /// The nodes' secret; none without a file of it.
    ///
    /// # Errors
    /// [`ConfigError`] naming the file, or its fault.
    pub fn node_secret(&self) -> Result<Option<Vec<u8>>, ConfigError> {
        let Some(path) = &self.node_secret_file else { return Ok(None) };
        let secret = self.credential()?;
        if !(NODE_SECRET_MIN..=TOKEN_BYTES_MAX).contains(&secret.len()) {
            let fix = format!(
                "{path} has no secret of {NODE_SECRET_MIN} to {TOKEN_BYTES_MAX} characters: \
                 {MAKE_SECRET}"
            );
            return Err(invalid("cluster.node_secret_file", fix));
        }
        Ok(Some(secret))
    }

    /// Whether this process may make the nodes' secret: only a first manager with an embedded store
    /// may, since no other process has a secret that could differ.
    #[must_use]
    pub fn may_make_secret(&self) -> bool {
        self.has_manager() && self.managers.is_empty() && self.store == "embedded"
    }

    fn check_addresses(&self) -> Result<(), ConfigError> {
        let named = |key, texts: &[String]| {
            for text in texts {
                let with_port = text.rsplit_once(':').is_some_and(|(_, port)| port != "0");
                if !matches!(text.parse(), Ok(Address::Tcp { .. })) || !with_port {
                    let fix = format!("'{text}' is not an address: write host:port or [ipv6]:port");
                    return Err(invalid(key, fix));
                }
            }
            Ok(())
        };
        named("cluster.managers", &self.managers)?;
        named("cluster.advertise", &self.advertise)?;
        if self.advertise.len() > ADDRESSES_MAX {
            return Err(invalid("cluster.advertise", format!("use at most {ADDRESSES_MAX}")));
        }
        Ok(())
    }

    fn check_form(&self) -> Result<(), ConfigError> {
        if !(1..=u32::from(REPLICAS_MAX)).contains(&self.replicas) {
            return Err(invalid("cluster.replicas", format!("use 1 to {REPLICAS_MAX}")));
        }
        if !self.has_manager() {
            let fix = "only the first manager of a cluster makes chains: remove it if \
                       cluster.managers (--join) is set; in a running cluster, \
                       `millpond admin form` makes chains with more replicas";
            for (key, is_set) in [
                ("cluster.replicas", self.replicas != 1),
                ("cluster.form_nodes", self.form_nodes != 0),
            ] {
                if is_set {
                    return Err(invalid(key, fix));
                }
            }
        }
        if self.domains_to_form() != 0 && self.domains_to_form() < self.replicas {
            let fix = format!(
                "use at least cluster.replicas ({0}): start {0} nodes with --form-nodes {0}, or \
                 start one node with one replica, join others with --join, and run \
                 `millpond admin form --replicas {0}`",
                self.replicas
            );
            return Err(invalid("cluster.form_nodes", fix));
        }
        if self.form_nodes as usize > NODES_MAX {
            return Err(invalid("cluster.form_nodes", format!("use at most {NODES_MAX}")));
        }
        Ok(())
    }
}

impl Config {
    pub(super) fn validate_cluster(&self) -> Result<(), ConfigError> {
        let cluster = &self.cluster;
        cluster.check_addresses()?;
        cluster.check_form()?;
        let store = cluster.store_choice()?;
        if cluster.domain.len() > DOMAIN_BYTES_MAX {
            return Err(invalid("cluster.domain", format!("use at most {DOMAIN_BYTES_MAX} bytes")));
        }
        let is_gateway = self.s3.listen.as_ref().is_some_and(|it| !it.is_empty());
        if !cluster.storage && !cluster.manager && cluster.managers.is_empty() && is_gateway {
            let fix = "a gateway without disks needs nodes with disks: set some of them (--join)";
            return Err(invalid("cluster.managers", fix));
        }
        if !cluster.storage && !cluster.manager && !is_gateway {
            let fix = "a process without disks is a manager or a gateway: set cluster.manager \
                       (--manager) or s3.listen (--s3) too";
            return Err(invalid("cluster.storage", fix));
        }
        if cluster.has_manager() && store != StoreChoice::Embedded && cfg!(not(feature = "etcd")) {
            let fix = "this build has no etcd: build it with its default features (`make install`)";
            return Err(invalid("cluster.store", fix));
        }
        if self.security.token_file.is_some()
            && cluster.node_secret_file.is_none()
            && !cluster.may_make_secret()
        {
            let fix =
                format!("tokens are for clients, nodes need a secret of their own: {MAKE_SECRET}");
            return Err(invalid("cluster.node_secret_file", fix));
        }
        if self.listen_address()?.is_none() && !cluster.is_alone() {
            let fix = "other nodes of the cluster must reach this one: set an address";
            return Err(invalid("server.listen", fix));
        }
        if self.security.tls_cert.is_some() && !cluster.is_alone() {
            let fix = "TLS between the nodes of a cluster is not supported: remove it, and \
                       use a trusted network (security.insecure) or a network that encrypts";
            return Err(invalid("security.tls_cert", fix));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use millpond_store::{StoreAccess, StoreChoice};

    use super::ClusterConfig;
    use crate::config::{Config, from_text};

    #[test]
    fn stores_parse() {
        let choice = |store: &str| {
            ClusterConfig { store: store.to_owned(), ..ClusterConfig::default() }.store_choice()
        };
        assert_eq!(choice("embedded").unwrap(), StoreChoice::Embedded);
        let etcd = |prefix: &str| StoreChoice::Etcd {
            endpoints: vec!["http://a:2379".to_owned(), "http://b:1".to_owned()],
            prefix: prefix.to_owned(),
            access: StoreAccess::default(),
        };
        assert_eq!(choice("etcd://a:2379,b:1").unwrap(), etcd("millpond/"));
        assert_eq!(choice("etcd://a:2379,b:1/prod").unwrap(), etcd("prod/"));
        assert_eq!(choice("etcd://a:2379,b:1/x/y/").unwrap(), etcd("x/y/"));
        for wrong in ["", "redis://a:1", "etcd://", "etcd://a", "etcd://a:1,,b:2"] {
            assert!(choice(wrong).unwrap_err().to_string().contains("etcd://host:port"), "{wrong}");
        }
    }

    #[test]
    fn members_of_etcd_are_reached_over_tls_with_an_authority() {
        let some = |text: &str| Some(text.to_owned());
        let config = ClusterConfig {
            store: "etcd://a:1".to_owned(),
            store_ca: some("ca.pem"),
            store_cert: some("cert.pem"),
            store_key: some("key.pem"),
            store_user: some("millpond"),
            store_password_file: some("word"),
            ..ClusterConfig::default()
        };
        let StoreChoice::Etcd { endpoints, access, .. } = config.store_choice().unwrap() else {
            panic!("etcd")
        };
        assert_eq!(endpoints, ["https://a:1"]);
        assert_eq!(access.identity, Some(("cert.pem".to_owned(), "key.pem".to_owned())));
        assert_eq!(access.user, Some(("millpond".to_owned(), "word".to_owned())));
    }

    #[test]
    fn a_server_without_cluster_settings_has_every_role_and_makes_its_chains() {
        let alone = Config::default().cluster;
        assert!(alone.is_alone() && alone.has_manager());
        assert_eq!(alone.domains_to_form(), 1);
        for (on, has_manager) in [("managers = [\"a:1\"]", false), ("manager = true", true)] {
            let config = from_text(&format!("[cluster]\n{on}"), "f").unwrap();
            assert!(!config.cluster.is_alone(), "{on}");
            assert_eq!(config.cluster.has_manager(), has_manager, "{on}");
            assert_eq!(config.cluster.domains_to_form(), 0, "an operator forms it: {on}");
            config.validate().unwrap();
        }
    }

    #[test]
    fn what_cannot_work_is_refused_by_name() {
        for (text, key) in [
            ("managers = [\"nowhere\"]", "cluster.managers"),
            ("managers = [\"a:0\"]", "cluster.managers"),
            ("managers = [\"unix:/x:1\"]", "cluster.managers"),
            ("manager = true\nadvertise = [\"a\"]", "cluster.advertise"),
            ("manager = true\nstore = \"paper\"", "cluster.store"),
            ("manager = true\nstore_ca = \"ca\"", "cluster.store"),
            ("manager = true\nstore = \"etcd://a:1\"\nstore_name = \"n\"", "cluster.store_ca"),
            ("manager = true\nstore = \"etcd://a:1\"\nstore_cert = \"c\"", "cluster.store_key"),
            ("manager = true\nstore = \"etcd://a:1\"\nstore_key = \"k\"", "cluster.store_cert"),
            (
                "manager = true\nstore = \"etcd://a:1\"\nstore_user = \"u\"",
                "cluster.store_password_file",
            ),
            ("storage = false", "cluster.storage"),
            ("managers = [\"a:1\"]\nstorage = false", "cluster.storage"),
            ("manager = true\nreplicas = 0", "cluster.replicas"),
            ("manager = true\nreplicas = 7", "cluster.replicas"),
            ("manager = true\nreplicas = 3\nform_nodes = 2", "cluster.form_nodes"),
            ("replicas = 2", "cluster.form_nodes"),
            ("managers = [\"a:1\"]\nreplicas = 2", "cluster.replicas"),
            ("managers = [\"a:1\"]\nform_nodes = 2", "cluster.form_nodes"),
            ("storage = false\n[s3]\nlisten = \"127.0.0.1:1\"", "cluster.managers"),
            ("manager = true\n[server]\nlisten = \"\"", "server.listen"),
            ("manager = true\n[security]\ntls_cert=\"c\"\ntls_key=\"k\"", "security.tls_cert"),
        ] {
            let config = from_text(&format!("[cluster]\n{text}"), "f").unwrap();
            let message = config.validate().unwrap_err().to_string();
            assert!(message.starts_with(key), "{text}: {message}");
        }
    }
}
