//! Credentials: one file of the volume for each access key, readable by root only.
//!
//! `/.millpond/s3/keys/ACCESS-KEY` has the secret, a readable name and the permitted buckets. They
//! are files because a volume replaces one atomically and every gateway reads one in one round
//! trip. So gateways have no store of their own, and cache a credential for half a second.

use std::path::PathBuf;
use std::time::Duration;

use millpond_client::{Client, ClientError, Volume, VolumeOptions};
use millpond_env::{RealClock, Rng};
use millpond_types::meta::{Caller, MetaError};
use s3s::{S3ErrorCode, S3Result};
use serde::{Deserialize, Serialize};

use crate::error::{refuse, told};
use crate::lately::Lately;
use crate::store::Store;

/// The folders of the files.
const FOLDERS: [&str; 3] = ["/.millpond", "/.millpond/s3", "/.millpond/s3/keys"];
/// How long a gateway caches a credential: a change applies everywhere within a second.
const BELIEVED: Duration = Duration::from_millis(500);
/// Access keys cached at most, including unknown ones: guesses of an attacker must not fill the
/// memory.
const REMEMBERED_MAX: usize = 4_096;
/// Length of an access key, as in AWS.
const ACCESS_LEN: usize = 20;
/// The tenant of buckets and keys without a named tenant.
pub const DEFAULT_TENANT: &str = "millpond";
/// The longest name of a tenant.
const TENANT_MAX: usize = 64;
/// Length of a secret.
const SECRET_LEN: usize = 40;

/// A credential.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key {
    /// Readable name.
    pub name: String,
    /// The access key, which requests contain.
    pub access_key: String,
    /// The secret, which signs requests.
    pub secret_key: String,
    /// The tenant that owns it: it may use the tenant's buckets, and others as far as their lists
    /// permit.
    #[serde(default = "default_tenant")]
    pub tenant: String,
    /// Permitted buckets; if empty, all of the tenant and all that permit the tenant.
    #[serde(default)]
    pub buckets: Vec<String>,
    /// Creation time, in milliseconds since 1970.
    #[serde(default)]
    pub created_ms: u64,
}

fn default_tenant() -> String {
    DEFAULT_TENANT.to_owned()
}

impl Key {
    /// Whether the credential permits a bucket.
    #[must_use]
    pub fn allows(&self, bucket: &str) -> bool {
        self.buckets.is_empty() || self.buckets.iter().any(|allowed| allowed == bucket)
    }
}

fn is_access_key(text: &str) -> bool {
    (3..=128).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

fn path_of(access_key: &str) -> String {
    format!("{}/{access_key}", FOLDERS[2])
}

/// The credentials of a volume, for administration.
#[derive(Debug)]
pub struct KeyRing {
    volume: Volume,
}

const fn wrong(field: &'static str, fix: String) -> ClientError {
    ClientError::Argument { field, fix }
}

/// Opens the volume in a session of root.
///
/// # Errors
/// As [`Volume::with`].
pub(crate) fn root(
    client: Client,
    (name, note): (&str, Option<PathBuf>),
) -> Result<Volume, ClientError> {
    let caller = Caller::checked(0, 0);
    Volume::with(client, VolumeOptions { caller, note, ..VolumeOptions::new(name) })
}

impl KeyRing {
    /// Opens the credentials of the volume of a cluster.
    ///
    /// # Errors
    /// As for [`Volume::with`].
    pub fn open(client: Client) -> Result<Self, ClientError> {
        Ok(Self { volume: root(client, ("millpond s3 keys", None))? })
    }

    /// Creates a credential of a tenant, and with the first one the tenant itself. Every gateway
    /// accepts it within a second.
    ///
    /// # Errors
    /// `InvalidArgument` for a name that is taken or empty, and for an invalid tenant; and as for
    /// every call.
    pub fn add(&self, name: &str, tenant: &str, buckets: Vec<String>) -> Result<Key, ClientError> {
        check_tenant(tenant)?;
        if name.is_empty() || name.len() > 64 {
            let fix = format!("has {} bytes: use 1 to 64 bytes", name.len());
            return Err(wrong("name", fix));
        }
        if self.list()?.iter().any(|key| key.name == name) {
            let fix = format!(
                "the key '{name}' already exists: choose another name, or remove it with `millpond \
                 s3 keys rm {name}`"
            );
            return Err(wrong("name", fix));
        }
        for folder in FOLDERS {
            match self.volume.mkdir(folder, 0o700) {
                Ok(()) | Err(ClientError::File { source: MetaError::Exists, .. }) => {}
                Err(error) => return Err(error),
            }
        }
        let random = |signs: &[u8], len: usize| -> Result<String, ClientError> {
            let mut rng = Rng::from_os().map_err(|error| wrong("random", error.to_string()))?;
            Ok((0..len).map(|_| char::from(signs[rng.index(signs.len())])).collect())
        };
        let key = Key {
            name: name.to_owned(),
            access_key: random(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", ACCESS_LEN)?,
            secret_key: secret()?,
            tenant: tenant.to_owned(),
            buckets,
            created_ms: RealClock::wall_ms(),
        };
        let bytes = serde_json::to_vec(&key).unwrap_or_default();
        self.volume.write_file(path_of(&key.access_key), &bytes, 0o600)?;
        Ok(key)
    }

    /// All credentials, by name.
    ///
    /// # Errors
    /// As for every call.
    pub fn list(&self) -> Result<Vec<Key>, ClientError> {
        all(&self.volume)
    }

    /// Removes the credential with this name or access key; false if it does not exist.
    ///
    /// # Errors
    /// As for every call.
    pub fn remove(&self, name: &str) -> Result<bool, ClientError> {
        let keys = self.list()?;
        let Some(key) = keys.iter().find(|key| key.name == name || key.access_key == name) else {
            return Ok(false);
        };
        self.volume.unlink(path_of(&key.access_key)).map(|()| true)
    }
}

/// Checks that a tenant's name is 1 to 64 letters, digits, dots, dashes and underscores.
///
/// # Errors
/// `InvalidArgument`.
pub(crate) fn check_tenant(name: &str) -> Result<(), ClientError> {
    let is_fine = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if (1..=TENANT_MAX).contains(&name.len()) && name.bytes().all(is_fine) {
        return Ok(());
    }
    let fix = format!(
        "'{name}' is not the name of a tenant: use 1 to {TENANT_MAX} letters, digits, '.', '-' and \
         '_'"
    );
    Err(wrong("tenant", fix))
}

/// A new secret: 40 characters of base 62, 238 bits.
fn secret() -> Result<String, ClientError> {
    const SIGNS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    let mut text = String::new();
    while text.len() < SECRET_LEN {
        let mut bytes = [0; 64];
        Rng::fill_from_os(&mut bytes).map_err(|error| wrong("random", error.to_string()))?;
        // Values that would favour some characters are discarded.
        let fair =
            bytes.iter().map(|byte| usize::from(byte & 63)).filter(|index| *index < SIGNS.len());
        text.extend(fair.map(|index| char::from(SIGNS[index])));
    }
    text.truncate(SECRET_LEN);
    Ok(text)
}

/// All credentials, by name.
fn all(volume: &Volume) -> Result<Vec<Key>, ClientError> {
    let mut keys = Vec::new();
    for access_key in names(volume)? {
        match volume.read_file(path_of(&access_key)) {
            Ok(bytes) => keys.extend(serde_json::from_slice::<Key>(&bytes).ok()),
            Err(ClientError::File { source: MetaError::NotFound, .. }) => {}
            Err(error) => return Err(error),
        }
    }
    keys.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(keys)
}

fn names(volume: &Volume) -> Result<Vec<String>, ClientError> {
    match volume.list(FOLDERS[2]) {
        Ok(entries) => {
            let names =
                entries.into_iter().map(|entry| String::from_utf8(entry.name.as_bytes().to_vec()));
            Ok(names.filter_map(Result::ok).filter(|name| is_access_key(name)).collect())
        }
        Err(ClientError::File { source: MetaError::NotFound, .. }) => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// The credentials known to a gateway.
pub(crate) struct Known {
    /// From the configuration, for a first start.
    root: Option<Key>,
    seen: Lately<Option<Key>>,
}

impl Known {
    pub(crate) fn new(root: Option<Key>) -> Self {
        Self { root, seen: Lately::new(BELIEVED, REMEMBERED_MAX) }
    }

    /// The credential of an access key, at most half a second old; `ask` reads it from the volume.
    ///
    /// # Errors
    /// Those of `ask`.
    pub(crate) async fn get<E>(
        &self,
        access_key: &str,
        ask: impl Future<Output = Result<Option<Key>, E>>,
    ) -> Result<Option<Key>, E> {
        if let Some(root) = self.root.as_ref().filter(|root| root.access_key == access_key) {
            return Ok(Some(root.clone()));
        }
        if !is_access_key(access_key) {
            return Ok(None);
        }
        self.seen.get(access_key, ask).await
    }

    /// Whether the configuration has a credential.
    pub(crate) const fn has_root(&self) -> bool {
        self.root.is_some()
    }
}

/// Reads a credential from the volume.
pub(crate) fn read(store: &Store, access_key: &str) -> Result<Option<Key>, ClientError> {
    let bytes = store.bytes_of(&path_of(access_key))?;
    Ok(bytes.and_then(|bytes| serde_json::from_slice::<Key>(&bytes).ok()))
}

/// Whether the volume has any credential.
pub(crate) fn is_any(store: &Store) -> Result<bool, ClientError> {
    store.has_entries(FOLDERS[2])
}

/// Whether all of these tenants have a credential.
///
/// # Errors
/// `InvalidArgument` otherwise.
pub(crate) fn check_tenants(store: &Store, tenants: &[String]) -> S3Result<()> {
    let keys = all(store).map_err(|error| told(error, S3ErrorCode::InternalError))?;
    // The first tenant may have no key except that in a gateway's environment.
    let is_there =
        |name: &String| name == DEFAULT_TENANT || keys.iter().any(|key| key.tenant == *name);
    if tenants.iter().all(is_there) {
        return Ok(());
    }
    Err(refuse(S3ErrorCode::InvalidArgument, "Invalid id"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_without_a_tenant_is_of_the_first_one() {
        let text = r#"{"name":"a","access_key":"AAA","secret_key":"s"}"#;
        let key = serde_json::from_str::<Key>(text).unwrap();
        assert_eq!(key.tenant, DEFAULT_TENANT);
        for fine in ["millpond", "team-a", "A.b_3"] {
            assert!(check_tenant(fine).is_ok(), "{fine}");
        }
        for wrong in ["", "a b", "a/b", "ü", "a\"", &"a".repeat(65)] {
            assert!(check_tenant(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn secrets_differ_and_have_their_length() {
        let (one, other) = (secret().unwrap(), secret().unwrap());
        assert_ne!(one, other);
        assert!(one.len() == SECRET_LEN && one.bytes().all(|byte| byte.is_ascii_alphanumeric()));
    }

    #[test]
    fn an_access_key_cannot_name_another_path() {
        assert!(is_access_key("AKIA234567ABCDEFGHIJ"));
        for wrong in ["", "ab", "../../etc", "a/b", "a.b", "ü12"] {
            assert!(!is_access_key(wrong), "{wrong}");
        }
    }
}
