//! TLS over a blocking stream (rustls with the ring provider).

use std::io::{self, IoSlice, Read, Write};
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use millpond_env::BlockingStream;
use millpond_types::Tick;
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, ServerName};

use crate::error::ClientError;

/// Reads the certificates that may sign the server's.
pub(crate) fn roots(ca: &Path) -> Result<RootCertStore, ClientError> {
    let bad = |what: String| {
        ClientError::argument("tls_ca", format!("{}: {what}; give a PEM file", ca.display()))
    };
    let mut roots = RootCertStore::empty();
    let certificates = CertificateDer::pem_file_iter(ca).map_err(|error| bad(error.to_string()))?;
    for certificate in certificates {
        let certificate = certificate.map_err(|error| bad(error.to_string()))?;
        roots.add(certificate).map_err(|error| bad(error.to_string()))?;
    }
    if roots.is_empty() {
        return Err(bad("holds no certificate".to_owned()));
    }
    Ok(roots)
}

/// Configuration of the sessions of one process; it caches data that shortens the next handshake.
pub(crate) fn config(roots: RootCertStore) -> Result<Arc<ClientConfig>, ClientError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| ClientError::argument("tls_ca", error.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

/// A TLS session on a stream.
#[derive(Debug)]
pub(crate) struct TlsStream {
    session: ClientConnection,
    stream: BlockingStream,
}

/// The stream in the form that rustls needs, for one call.
struct Timed<'a> {
    stream: &'a BlockingStream,
    deadline: Tick,
}

impl Read for Timed<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.stream.recv(into, self.deadline)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.send_vectored(&[IoSlice::new(bytes)], self.deadline)?;
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Adds the most likely reason when the peer closes the connection at the start of a handshake.
fn no_handshake(error: io::Error) -> io::Error {
    let text = "the server closed the connection instead of a TLS handshake: if it does not use \
                TLS, leave tls_ca (--tls-ca) out";
    match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => {
            io::Error::new(error.kind(), text)
        }
        _ => error,
    }
}

impl TlsStream {
    /// A session with the server named `host`; the handshake runs with the first bytes.
    pub(crate) fn new(
        config: Arc<ClientConfig>,
        host: &str,
        stream: BlockingStream,
    ) -> io::Result<Self> {
        let name = match host.parse::<IpAddr>() {
            Ok(ip) => ServerName::from(ip),
            Err(_) => ServerName::try_from(host.to_owned()).map_err(io::Error::other)?,
        };
        let session = ClientConnection::new(config, name).map_err(io::Error::other)?;
        Ok(Self { session, stream })
    }

    pub(crate) const fn stream(&self) -> &BlockingStream {
        &self.stream
    }

    /// Whether decrypted bytes wait.
    pub(crate) fn has_buffered(&mut self) -> bool {
        // A broken session returns its error when it is read.
        self.session.process_new_packets().map_or(true, |state| state.plaintext_bytes_to_read() > 0)
    }

    pub(crate) fn send(&mut self, parts: &[IoSlice<'_>], deadline: Tick) -> io::Result<()> {
        let mut timed = Timed { stream: &self.stream, deadline };
        while self.session.is_handshaking() {
            self.session.complete_io(&mut timed).map_err(no_handshake)?;
        }
        let mut tls = rustls::Stream::new(&mut self.session, &mut timed);
        for part in parts {
            tls.write_all(part)?;
        }
        tls.flush()
    }

    pub(crate) fn recv(&mut self, into: &mut [u8], deadline: Tick) -> io::Result<usize> {
        let mut timed = Timed { stream: &self.stream, deadline };
        rustls::Stream::new(&mut self.session, &mut timed).read(into)
    }
}
