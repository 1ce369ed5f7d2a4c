//! An in-memory object store over HTTP, as far as a load, a check and a proxy need it. It can break
//! one promise on demand, so that tests verify that a check detects it.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

/// A promise that the store breaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Broken {
    #[default]
    Nothing,
    /// Every seventh put is acknowledged and dropped.
    Lose,
    /// Every seventh put keeps the old bytes after its middle.
    Tear,
    /// Deletes are acknowledged and not executed.
    Resurrect,
}

/// Objects and counters of the store.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) objects: BTreeMap<String, Bytes>,
    pub(crate) broken: Broken,
    pub(crate) requests: u64,
    pub(crate) connections: u64,
    pub(crate) puts: u64,
    /// The `host` header of the last request.
    pub(crate) host: String,
}

pub(crate) type Shared = Arc<Mutex<State>>;

/// Starts a store on the running event loop.
pub(crate) async fn start() -> (SocketAddr, Shared) {
    let shared = Shared::default();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(accept(listener, Arc::clone(&shared)));
    (address, shared)
}

async fn accept(listener: TcpListener, shared: Shared) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        shared.lock().unwrap().connections += 1;
        let shared = Arc::clone(&shared);
        let service = service_fn(move |request| answer(Arc::clone(&shared), request));
        tokio::spawn(async move {
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn answer(
    shared: Shared,
    request: Request<Incoming>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let key = request.uri().path().to_owned();
    let (parts, body) = request.into_parts();
    let Ok(body) = body.collect().await else { return Ok(page(StatusCode::BAD_REQUEST, "")) };
    let body = body.to_bytes();
    let mut state = shared.lock().unwrap();
    state.requests += 1;
    parts.headers["host"].to_str().unwrap().clone_into(&mut state.host);
    Ok(match parts.method {
        Method::PUT => {
            state.put(key, body);
            page(StatusCode::OK, "")
        }
        Method::DELETE => {
            if state.broken != Broken::Resurrect {
                state.objects.remove(&key);
            }
            page(StatusCode::NO_CONTENT, "")
        }
        Method::GET | Method::HEAD => match state.objects.get(&key) {
            Some(object) => Response::new(Full::new(object.clone())),
            None => page(StatusCode::NOT_FOUND, "<Error><Code>NoSuchKey</Code></Error>"),
        },
        _ => page(StatusCode::METHOD_NOT_ALLOWED, ""),
    })
}

impl State {
    fn put(&mut self, key: String, body: Bytes) {
        self.puts += 1;
        let is_chosen = self.puts.is_multiple_of(7);
        let old = self.objects.get(&key).filter(|old| old.len() == body.len());
        let body = match (self.broken, old) {
            (Broken::Lose, _) if is_chosen => return,
            (Broken::Tear, Some(old)) if is_chosen => {
                let half = body.len() / 2;
                Bytes::from([&body[..half], &old[half..]].concat())
            }
            _ => body,
        };
        self.objects.insert(key, body);
    }
}

fn page(status: StatusCode, text: &'static str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from_static(text.as_bytes())));
    *response.status_mut() = status;
    response
}
