//! The S3 gateway of this process: a client of the cluster like any other, except that it calls the
//! meta of its own process without a connection, and sends bytes of its own node straight from the
//! pool.

use std::path::Path;
use std::sync::Arc;

use millpond_client::{Address, ClientOptions, OwnMeta, OwnNode, OwnPlace};
use millpond_s3::{DEFAULT_TENANT, Gateway, Key, Options, StartError as GatewayError};

use super::cluster::folders;
use super::conn::Shared;
use super::own::{OwnDisks, OwnRole};
use super::{StartError, listen_error, tls};
use crate::config::Config;

/// File in the first data folder with the session of the gateway.
const SESSION_NOTE: &str = "s3-session";
/// Memory that each connection to a node of this host shares with it: room for two pieces of a
/// body.
const ARENA_BYTES: u64 = 8 << 20;

/// Starts the gateway if this process has one.
///
/// # Errors
/// [`StartError`] naming the setting to change.
pub(super) fn start(
    config: &Config,
    token: Vec<u8>,
    shared: &Shared,
) -> Result<Option<Gateway>, StartError> {
    let Some((address, is_named)) = config.s3_address()? else { return Ok(None) };
    let identity = shared.cluster.identity();
    let Some(own) = &identity.here else {
        if !is_named {
            return Ok(None);
        }
        let text = "s3.listen: with TLS for clients, the gateway reaches its own node over the \
                    Unix socket: set one (server.socket, --socket)";
        return Err(StartError::Cluster(text.to_owned()));
    };
    let s3 = &config.s3;
    let tls = match (&s3.tls_cert, &s3.tls_key) {
        (Some(cert), Some(key)) => Some(tls::server_config(Path::new(cert), Path::new(key))?),
        _ => None,
    };
    let bad = |error: &dyn std::fmt::Display| StartError::Cluster(format!("S3 gateway: {error}"));
    let at: Address = own.parse().map_err(|error| bad(&error))?;
    let token = String::from_utf8(token).map_err(|error| bad(&error))?;
    let own_meta = Some(Arc::new(OwnRole::of(shared)) as Arc<dyn OwnMeta>);
    let own_node = OwnDisks::of(shared).map(|node| Arc::new(node) as Arc<dyn OwnNode>);
    let cluster = ClientOptions {
        token,
        arena_bytes: ARENA_BYTES,
        own_meta,
        own_node,
        own_place: Some(OwnPlace { node: identity.node, address: at.clone() }),
        ..ClientOptions::new(at.into())
    };
    let root_key = match (&s3.access_key, &s3.secret_key) {
        (Some(access_key), Some(secret_key)) => Some(Key {
            name: "of the configuration".to_owned(),
            access_key: access_key.clone(),
            secret_key: secret_key.clone(),
            tenant: DEFAULT_TENANT.to_owned(),
            buckets: Vec::new(),
            created_ms: 0,
        }),
        _ => None,
    };
    let options = Options {
        listen: address,
        cluster,
        tls,
        domain: s3.domain.clone(),
        region: s3.region.clone(),
        root_key,
        upload_expiry: s3.upload_expiry.0,
        session_note: folders(config)?.first().map(|folder| folder.join(SESSION_NOTE)),
    };
    match Gateway::start(options) {
        Ok(gateway) => Ok(Some(gateway)),
        Err(GatewayError::Listen(error)) if is_named => {
            Err(listen_error("s3.listen", "--s3", address, &error))
        }
        Err(GatewayError::Listen(error)) => {
            tracing::warn!("no S3 gateway: {address}: {error}: choose an address with --s3");
            Ok(None)
        }
        Err(error) => Err(bad(&error)),
    }
}
