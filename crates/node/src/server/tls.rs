//! Bytes in and out of a connection, in clear or through TLS (rustls).

use std::cell::RefCell;
use std::io::{self, Read as _, Write as _};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use millpond_env::{Buf, Piece, ReadHalf, Stream, WriteHalf};
use rustls::{ServerConfig, ServerConnection};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

/// Bytes of ciphertext received at a time: two of the largest records.
const CIPHER_BYTES: usize = 34 << 10;
/// Bytes of plaintext encrypted at a time.
const PLAIN_BYTES: usize = 256 << 10;

/// TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A PEM file cannot be used.
    #[error("{key} {path}: {reason}: give a PEM file")]
    File {
        /// The setting.
        key: &'static str,
        /// The file.
        path: String,
        /// The fault.
        reason: String,
    },
    /// Certificate and key do not belong together.
    #[error("security.tls_cert and security.tls_key cannot be used together: {0}")]
    Pair(#[from] rustls::Error),
}

/// Reads certificate chain and key.
///
/// # Errors
/// [`TlsError`] naming the file.
pub(super) fn server_config(cert: &Path, key: &Path) -> Result<Arc<ServerConfig>, TlsError> {
    let bad = |field, path: &Path, reason: String| TlsError::File {
        key: field,
        path: path.display().to_string(),
        reason,
    };
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(cert)
        .and_then(Iterator::collect)
        .map_err(|error| bad("security.tls_cert", cert, error.to_string()))?;
    if chain.is_empty() {
        return Err(bad("security.tls_cert", cert, "holds no certificate".to_owned()));
    }
    let private = PrivateKeyDer::from_pem_file(key)
        .map_err(|error| bad("security.tls_key", key, error.to_string()))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, private)?;
    Ok(Arc::new(config))
}

type Session = Rc<RefCell<ServerConnection>>;

fn invalid(error: rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// Feeds ciphertext to the session.
fn feed(session: &mut ServerConnection, mut cipher: &[u8]) -> io::Result<()> {
    while !cipher.is_empty() {
        if session.read_tls(&mut cipher)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        session.process_new_packets().map_err(invalid)?;
    }
    Ok(())
}

fn drain(session: &mut ServerConnection) -> io::Result<Vec<u8>> {
    let mut out = Vec::new();
    while session.wants_write() {
        session.write_tls(&mut out)?;
    }
    Ok(out)
}

/// Does the server's side of a handshake, then splits the connection.
///
/// # Errors
/// An error of the network or of the peer's handshake.
pub(super) async fn accept(
    mut stream: Stream,
    config: Arc<ServerConfig>,
) -> io::Result<(Source, Sink)> {
    let mut session = ServerConnection::new(config).map_err(invalid)?;
    session.set_buffer_limit(None);
    while session.is_handshaking() {
        let out = drain(&mut session)?;
        if !out.is_empty() {
            stream.write_all_vec(out).await.1?;
        }
        if session.wants_read() && session.is_handshaking() {
            let (cipher, got) = stream.read_some_vec(Vec::with_capacity(4096)).await;
            if got? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if let Err(error) = feed(&mut session, &cipher) {
                // The alert tells the client the reason.
                let alert = drain(&mut session).unwrap_or_default();
                let _ = stream.write_all_vec(alert).await;
                return Err(error);
            }
        }
    }
    let out = drain(&mut session)?;
    if !out.is_empty() {
        stream.write_all_vec(out).await.1?;
    }
    let session = Rc::new(RefCell::new(session));
    let (reader, writer) = stream.split();
    let source = TlsSource {
        half: reader,
        session: Rc::clone(&session),
        cipher: Vec::new(),
        fed: 0,
        ended: false,
    };
    Ok((Source::Tls(Box::new(source)), Sink::Tls { half: writer, session }))
}

/// The receiving side.
pub(super) enum Source {
    /// As it comes.
    Plain(ReadHalf),
    /// Through TLS.
    Tls(Box<TlsSource>),
}

/// The receiving side of a TLS connection.
pub(super) struct TlsSource {
    half: ReadHalf,
    session: Session,
    /// Received ciphertext; `fed` is the part already fed to the session.
    cipher: Vec<u8>,
    fed: usize,
    ended: bool,
}

impl Source {
    /// Receives into the spare capacity of `into`; 0 at the end.
    pub(super) async fn read_vec(&mut self, into: Vec<u8>) -> (Vec<u8>, io::Result<usize>) {
        match self {
            Self::Plain(half) => half.read_some_vec(into).await,
            Self::Tls(tls) => tls.read_vec(into).await,
        }
    }

    /// Receives until `into[from..]` is full.
    pub(super) async fn fill(&mut self, into: Buf, from: usize) -> (Buf, io::Result<()>) {
        match self {
            Self::Plain(half) => half.read_full(into, from).await,
            Self::Tls(tls) => tls.fill(into, from).await,
        }
    }

    /// Waits until there is input.
    pub(super) async fn readable(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(half) => half.readable().await,
            Self::Tls(tls) if tls.holds_plaintext() => Ok(()),
            Self::Tls(tls) => tls.half.readable().await,
        }
    }
}

impl TlsSource {
    fn holds_plaintext(&self) -> bool {
        self.fed < self.cipher.len()
            || self
                .session
                .borrow_mut()
                .process_new_packets()
                .is_ok_and(|s| s.plaintext_bytes_to_read() > 0)
    }

    /// Decrypts bytes into `into`; `None` if more ciphertext is needed.
    fn take(&mut self, into: &mut [u8]) -> io::Result<Option<usize>> {
        match self.session.borrow_mut().reader().read(into) {
            Ok(got) => Ok(Some(got)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && self.ended => Ok(Some(0)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn more(&mut self) -> io::Result<()> {
        if self.fed == self.cipher.len() {
            self.fed = 0;
            let mut cipher = std::mem::take(&mut self.cipher);
            cipher.clear();
            cipher.reserve(CIPHER_BYTES);
            let (cipher, got) = self.half.read_some_vec(cipher).await;
            self.cipher = cipher;
            if got? == 0 {
                self.ended = true;
                return Ok(());
            }
        }
        // A little at a time: the session holds no more plaintext than a record or two, so its
        // decrypted bytes are taken before it is fed again.
        let mut session = self.session.borrow_mut();
        self.fed += session.read_tls(&mut &self.cipher[self.fed..])?;
        session.process_new_packets().map(drop).map_err(invalid)
    }

    async fn read_vec(&mut self, mut into: Vec<u8>) -> (Vec<u8>, io::Result<usize>) {
        let start = into.len();
        into.resize(into.capacity(), 0);
        let result = loop {
            match self.take(&mut into[start..]) {
                Ok(Some(got)) => break Ok(got),
                Ok(None) => {}
                Err(error) => break Err(error),
            }
            if let Err(error) = self.more().await {
                break Err(error);
            }
        };
        into.truncate(start + *result.as_ref().unwrap_or(&0));
        (into, result)
    }

    async fn fill(&mut self, mut into: Buf, from: usize) -> (Buf, io::Result<()>) {
        let mut filled = from;
        while filled < into.len() {
            match self.take(&mut into[filled..]) {
                Ok(Some(0)) => return (into, Err(io::ErrorKind::UnexpectedEof.into())),
                Ok(Some(got)) => {
                    filled += got;
                    continue;
                }
                Ok(None) => {}
                Err(error) => return (into, Err(error)),
            }
            if let Err(error) = self.more().await {
                return (into, Err(error));
            }
        }
        (into, Ok(()))
    }
}

/// The sending side.
pub(super) enum Sink {
    /// As it is.
    Plain(WriteHalf),
    /// Through TLS.
    Tls {
        /// The socket.
        half: WriteHalf,
        /// Shared with the receiving side.
        session: Session,
    },
}

impl Sink {
    /// Sends all pieces in order.
    pub(super) async fn send(&mut self, pieces: Vec<Piece>) -> io::Result<()> {
        let (half, session) = match self {
            Self::Plain(half) => return half.write_all_mixed(pieces).await,
            Self::Tls { half, session } => (half, session),
        };
        for piece in &pieces {
            let bytes: &[u8] = match piece {
                Piece::Vec(bytes) => bytes,
                Piece::Shared(bytes) => bytes,
            };
            for part in bytes.chunks(PLAIN_BYTES) {
                let cipher = {
                    let mut session = session.borrow_mut();
                    session.writer().write_all(part)?;
                    drain(&mut session)?
                };
                half.write_all_vec(cipher).await.1?;
            }
        }
        Ok(())
    }

    /// Ends the connection in order.
    pub(super) async fn close(&mut self) {
        if let Self::Tls { half, session } = self {
            let goodbye = {
                let mut session = session.borrow_mut();
                session.send_close_notify();
                drain(&mut session).unwrap_or_default()
            };
            let _ = half.write_all_vec(goodbye).await;
        }
        let half = match self {
            Self::Plain(half) | Self::Tls { half, .. } => half,
        };
        let _ = half.shutdown(std::net::Shutdown::Both);
    }
}
