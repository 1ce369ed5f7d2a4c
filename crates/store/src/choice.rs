//! Which engine managers keep their records in.

/// Where managers keep their records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreChoice {
    /// In a folder of this machine.
    Embedded,
    /// In an etcd cluster.
    Etcd {
        /// Its members, as URLs.
        endpoints: Vec<String>,
        /// What all keys start with.
        prefix: String,
        /// What managers show to the members.
        access: StoreAccess,
    },
}

/// Certificates and credentials for etcd, as names of files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreAccess {
    /// Certificates of the members' authority; none where they speak no TLS.
    pub ca: Option<String>,
    /// A client's certificate and its key.
    pub identity: Option<(String, String)>,
    /// The name in the members' certificates.
    pub name: Option<String>,
    /// A user, and the file with the password.
    pub user: Option<(String, String)>,
}
