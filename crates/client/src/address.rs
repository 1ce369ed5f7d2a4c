//! Addresses of servers, as users write them.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use millpond_types::Tick;

use crate::error::ClientError;

/// Most addresses in one list: more than enough to find one live node.
const ADDRESSES_MAX: usize = 64;
/// The default port of a server.
const PORT_DEFAULT: u16 = 7440;

/// `host`, `host:port`, `[ipv6]:port` or `unix:/path/of/the/socket`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A host name or IP address, and a port.
    Tcp {
        /// Host name or IP address.
        host: String,
        /// Port.
        port: u16,
    },
    /// A Unix socket on this host.
    Unix(PathBuf),
}

impl Address {
    /// The socket addresses of the name. The lookup is repeated on every connect and ends at
    /// `deadline`.
    pub(crate) fn resolve(&self, deadline: Tick) -> std::io::Result<Vec<SocketAddr>> {
        match self {
            Self::Tcp { host, port } => millpond_env::lookup(host, *port, deadline),
            Self::Unix(_) => Ok(Vec::new()),
        }
    }
}

impl FromStr for Address {
    type Err = ClientError;

    fn from_str(text: &str) -> Result<Self, ClientError> {
        let bad = || {
            ClientError::argument(
                "address",
                format!("'{text}' is not host:port, [ipv6]:port or unix:/path of a socket"),
            )
        };
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.is_empty() { Err(bad()) } else { Ok(Self::Unix(path.into())) };
        }
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, rest) = rest.split_once(']').ok_or_else(bad)?;
                (host, rest.strip_prefix(':'))
            }
            None => match text.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            },
        };
        let port = port.map_or(Ok(PORT_DEFAULT), |p| p.parse().map_err(|_| bad()))?;
        if host.is_empty() {
            return Err(bad());
        }
        Ok(Self::Tcp { host: host.to_owned(), port })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// One or several addresses, separated by commas: of a standalone server, or of some nodes of a
/// cluster, which report the others. A name with several addresses stands for all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addresses(Vec<Address>);

impl Addresses {
    /// Every address, in the order given.
    #[must_use]
    pub fn all(&self) -> &[Address] {
        &self.0
    }
}

impl From<Address> for Addresses {
    fn from(address: Address) -> Self {
        Self(vec![address])
    }
}

impl FromStr for Addresses {
    type Err = ClientError;

    fn from_str(text: &str) -> Result<Self, ClientError> {
        let all = text.split(',').map(|one| one.trim().parse()).collect::<Result<Vec<_>, _>>()?;
        if all.len() > ADDRESSES_MAX {
            let fix = format!("{} given; at most {ADDRESSES_MAX} are allowed", all.len());
            return Err(ClientError::argument("address", fix));
        }
        Ok(Self(all))
    }
}

impl fmt::Display for Addresses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, address) in self.0.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            write!(f, "{comma}{address}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Address, Addresses};

    #[test]
    fn lists_of_addresses_parse_and_print() {
        let list: Addresses = "a:1, [::1]:7,b".parse().unwrap();
        assert_eq!(list.to_string(), "a:1,[::1]:7,b:7440");
        assert_eq!(list.all().len(), 3);
        for text in ["", "a:1,", ",a:1", "a:1,,b:2"] {
            assert!(text.parse::<Addresses>().is_err(), "{text}");
        }
    }

    #[test]
    fn addresses_parse_and_print() {
        for (text, shown) in [
            ("localhost", "localhost:7440"),
            ("10.0.0.1:99", "10.0.0.1:99"),
            ("[::1]:7", "[::1]:7"),
            ("[::1]", "[::1]:7440"),
            ("unix:/a b/c", "unix:/a b/c"),
        ] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), shown, "{text}");
        }
        for text in ["", ":1", "a:b", "a:70000", "unix:", "[::1"] {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains("host:port"), "{text}: {error}");
        }
    }
}
