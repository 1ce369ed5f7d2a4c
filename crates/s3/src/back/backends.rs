//! Backends of a volume: files that only root may read, like access keys.
//!
//! `/.millpond/s3/backends/NAME` has the address, the credential and the limits of an object store.

use std::fmt;
use std::time::Duration;

use millpond_client::{Client, ClientError, Volume};
use millpond_types::meta::MetaError;
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde::{Deserialize, Serialize};

use crate::keys::root;

/// The folders of the files.
const FOLDERS: [&str; 3] = ["/.millpond", "/.millpond/s3", "/.millpond/s3/backends"];
/// Characters of a name at most.
const NAME_MAX: usize = 63;
/// Requests in flight at most: more would only wait in the memory of this process.
const REQUESTS_MAX: u32 = 1_024;
/// Bounds of the timeouts, in milliseconds. A lease of the queue is longer than a request, and at
/// most an hour.
const TIMEOUT_MS: [u64; 2] = [100, 600_000];

/// Text that is never printed.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

const fn yes() -> bool {
    true
}

fn region() -> String {
    "us-east-1".to_owned()
}

const fn requests_max() -> u32 {
    64
}

const fn timeout_ms() -> u64 {
    30_000
}

const fn connect_timeout_ms() -> u64 {
    5_000
}

/// An object store that can back buckets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BackendSettings {
    /// The endpoint: `http://` or `https://`, a host, and a port unless it is 80 or 443.
    pub endpoint: String,
    /// The region that requests are signed for.
    #[serde(default = "region")]
    pub region: String,
    /// The access key.
    pub access_key: String,
    /// Its secret.
    pub secret_key: Secret,
    /// Whether the bucket is in the path. Otherwise it is a host name below the endpoint.
    #[serde(default = "yes")]
    pub path_style: bool,
    /// Persister requests that a gateway has in flight at most, 1 to 1,024.
    #[serde(default = "requests_max")]
    pub requests_max: u32,
    /// Requests per second that the persister of a gateway sends at most; 0 for no limit.
    #[serde(default)]
    pub requests_per_s: u32,
    /// Timeout until the answer begins, in milliseconds; a request with a body gets a second more
    /// for each MiB.
    #[serde(default = "timeout_ms")]
    pub timeout_ms: u64,
    /// Timeout for a connection, in milliseconds.
    #[serde(default = "connect_timeout_ms")]
    pub connect_timeout_ms: u64,
    /// Certificates (PEM) that sign that of an `https` endpoint; then only these are trusted.
    /// Without them the certificates of the system are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ca_pem: Option<String>,
}

/// Whether a text has at least one certificate and all of them can be trusted.
fn is_ca(pem: &str) -> bool {
    let mut roots = RootCertStore::empty();
    let mut all = CertificateDer::pem_slice_iter(pem.as_bytes());
    all.all(|parsed| parsed.is_ok_and(|cert| roots.add(cert).is_ok())) && !roots.is_empty()
}

impl BackendSettings {
    /// Settings with the default limits.
    #[must_use]
    pub fn new(endpoint: &str, access_key: &str, secret_key: &str) -> Self {
        Self {
            endpoint: endpoint.to_owned(),
            region: region(),
            access_key: access_key.to_owned(),
            secret_key: Secret(secret_key.to_owned()),
            path_style: yes(),
            requests_max: requests_max(),
            requests_per_s: 0,
            timeout_ms: timeout_ms(),
            connect_timeout_ms: connect_timeout_ms(),
            ca_pem: None,
        }
    }

    /// Checks the settings.
    ///
    /// # Errors
    /// `InvalidArgument` names the field.
    pub fn validate(&self) -> Result<(), ClientError> {
        let host =
            ["http://", "https://"].iter().find_map(|scheme| self.endpoint.strip_prefix(scheme));
        let is_host = |host: &str| {
            let host = host.trim_end_matches('/');
            !host.is_empty()
                && !host.contains(['/', '?', '#', '@'])
                && host.bytes().all(|b| b.is_ascii_graphic())
        };
        let within = |ms: u64| (TIMEOUT_MS[0]..=TIMEOUT_MS[1]).contains(&ms);
        let ca = self.ca_pem.as_deref();
        let is_word = |word: &str| !word.is_empty() && word.bytes().all(|b| b.is_ascii_graphic());
        for (is_right, field, fix) in [
            (
                host.is_some_and(is_host),
                "endpoint",
                "must be http://HOST:PORT or https://HOST:PORT",
            ),
            (is_word(&self.region), "region", "must be a name such as us-east-1"),
            (is_word(&self.access_key), "access_key", "must be the access key of the object store"),
            (is_word(&self.secret_key.0), "secret_key", "must be the secret of the access key"),
            ((1..=REQUESTS_MAX).contains(&self.requests_max), "requests_max", "must be 1 to 1024"),
            (within(self.timeout_ms), "timeout_ms", "must be 100 to 600000"),
            (within(self.connect_timeout_ms), "connect_timeout_ms", "must be 100 to 600000"),
            (ca.is_none_or(is_ca), "ca_pem", "must be CA certificates in PEM format"),
            (
                ca.is_none() || self.endpoint.starts_with("https://"),
                "ca_pem",
                "CA certificates need an endpoint that begins with https://",
            ),
        ] {
            if !is_right {
                return Err(ClientError::Argument { field, fix: fix.to_owned() });
            }
        }
        Ok(())
    }

    /// The timeout of a request with a body of `len` bytes.
    pub(crate) fn timeout(&self, len: u64) -> Duration {
        Duration::from_millis(self.timeout_ms) + Duration::from_secs(len >> 20)
    }
}

fn is_name(text: &str) -> bool {
    let is_sign = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=NAME_MAX).contains(&text.len()) && text.bytes().all(is_sign)
}

fn path_of(name: &str) -> String {
    format!("{}/{name}", FOLDERS[2])
}

/// Reads the file of a backend.
///
/// # Errors
/// As for every call; `InvalidArgument` for an invalid file.
pub(crate) fn read(volume: &Volume, name: &str) -> Result<Option<BackendSettings>, ClientError> {
    if !is_name(name) {
        return Ok(None);
    }
    match volume.read_file(path_of(name)) {
        Ok(bytes) => match serde_json::from_slice::<BackendSettings>(&bytes) {
            Ok(settings) => settings.validate().map(|()| Some(settings)),
            Err(error) => {
                let fix = format!("{}: {error}", path_of(name));
                Err(ClientError::Argument { field: "backend", fix })
            }
        },
        Err(ClientError::File { source: MetaError::NotFound, .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The backends of a volume, for administration.
#[derive(Debug)]
pub struct BackendRing {
    volume: Volume,
}

impl BackendRing {
    /// Opens the backends of the volume of a cluster.
    ///
    /// # Errors
    /// As for [`Volume::with`].
    pub fn open(client: Client) -> Result<Self, ClientError> {
        Ok(Self { volume: root(client, ("millpond s3 backends", None))? })
    }

    /// Creates a backend or replaces its settings; gateways apply them within a few seconds.
    ///
    /// # Errors
    /// `InvalidArgument` for a name that is not 1 to 63 of `a-z0-9-`, or invalid settings; and as
    /// for every call.
    pub fn set(&self, name: &str, settings: &BackendSettings) -> Result<(), ClientError> {
        if !is_name(name) {
            let fix = format!("'{name}' must be 1 to 63 lowercase letters, digits and dashes");
            return Err(ClientError::Argument { field: "name", fix });
        }
        settings.validate()?;
        for folder in FOLDERS {
            match self.volume.mkdir(folder, 0o700) {
                Ok(()) | Err(ClientError::File { source: MetaError::Exists, .. }) => {}
                Err(error) => return Err(error),
            }
        }
        let bytes = serde_json::to_vec(settings).unwrap_or_default();
        self.volume.write_file(path_of(name), &bytes, 0o600)
    }

    /// A backend by name; `None` if it does not exist.
    ///
    /// # Errors
    /// As for every call; `InvalidArgument` for a damaged file.
    pub fn get(&self, name: &str) -> Result<Option<BackendSettings>, ClientError> {
        read(&self.volume, name)
    }

    /// All backends by name.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub fn list(&self) -> Result<Vec<(String, BackendSettings)>, ClientError> {
        let entries = match self.volume.list(FOLDERS[2]) {
            Ok(entries) => entries,
            Err(ClientError::File { source: MetaError::NotFound, .. }) => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let names =
            entries.into_iter().map(|entry| String::from_utf8(entry.name.as_bytes().to_vec()));
        let mut all = Vec::new();
        for name in names.filter_map(Result::ok) {
            all.extend(self.get(&name)?.map(|settings| (name, settings)));
        }
        all.sort_by(|one, other| one.0.cmp(&other.0));
        Ok(all)
    }

    /// Removes a backend; false when it does not exist. Buckets with this backend keep unpersisted
    /// objects until a backend of that name exists again.
    ///
    /// # Errors
    /// As for every call.
    pub fn remove(&self, name: &str) -> Result<bool, ClientError> {
        if !is_name(name) {
            return Ok(false);
        }
        match self.volume.unlink(path_of(name)) {
            Ok(()) => Ok(true),
            Err(ClientError::File { source: MetaError::NotFound, .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{BackendSettings, is_name};

    #[test]
    fn settings_are_checked_and_secrets_not_shown() {
        let settings = BackendSettings::new("https://s3.example.org:9000", "AK", "hidden");
        settings.validate().unwrap();
        assert!(!format!("{settings:?}").contains("hidden"));
        for endpoint in ["s3.example.org", "ftp://a", "http://", "http://a/b", "http://a b"] {
            let wrong = BackendSettings::new(endpoint, "AK", "hidden");
            assert!(wrong.validate().is_err(), "{endpoint}");
        }
        let none = BackendSettings { requests_max: 0, ..settings.clone() };
        assert!(none.validate().is_err());
        let text = serde_json::to_string(&settings).unwrap();
        assert!(!text.contains("ca_pem"), "older gateways know no such field");
        for ca in ["", "nonsense", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"]
        {
            let wrong = BackendSettings { ca_pem: Some(ca.to_owned()), ..settings.clone() };
            assert!(wrong.validate().is_err(), "{ca}");
        }
        assert_eq!(serde_json::from_str::<BackendSettings>(&text).unwrap(), settings);
        let short = r#"{"endpoint":"http://a","access_key":"b","secret_key":"c"}"#;
        let short: BackendSettings = serde_json::from_str(short).unwrap();
        assert_eq!(short, BackendSettings::new("http://a", "b", "c"));
    }

    #[test]
    fn a_name_cannot_name_another_path() {
        assert!(is_name("aws-eu-1"));
        for wrong in ["", "..", "a/b", "A", "ü", &"a".repeat(64)] {
            assert!(!is_name(wrong), "{wrong}");
        }
    }
}
