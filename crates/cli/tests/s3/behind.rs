//! Two servers, one of which is the object store behind the other, and a proxy between them that makes faults.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::mpsc;

use millpond_client::{Client as Cluster, ClientOptions, Volume, VolumeOptions};
use millpond_s3::{BackendRing, BackendSettings};
use millpond_s3_load::proxy::{Faults, Proxy};
use millpond_types::meta::Caller;
use millpond_types::meta::object::{Backing, Rule};

use crate::client::{Answer, Client};
use crate::server::{ACCESS, SECRET, Server, heard, until};

/// The bucket in front, and the one behind it.
pub(crate) const BUCKET: &str = "front";
pub(crate) const BEHIND: &str = "behind";
/// What keys have behind.
pub(crate) const PREFIX: &str = "of/front/";

/// A backed bucket with all that belongs to it.
pub(crate) struct Backed {
    pub(crate) front: Server,
    store: Server,
    /// Where faults are made.
    proxy: String,
    /// A client of the front.
    pub(crate) s3: Client,
    /// A client of the object store behind, past the proxy.
    pub(crate) direct: Client,
    pub(crate) volume: Volume,
}

/// A proxy to this address, until the process ends.
fn proxy(backend: &str) -> String {
    let backend: SocketAddr = backend.parse().unwrap();
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listen = "127.0.0.1:0".parse().unwrap();
            let proxy = Proxy::bind(listen, backend, Faults::default()).await.unwrap();
            sender.send(proxy.address().unwrap().to_string()).unwrap();
            proxy.serve().await;
        });
    });
    receiver.recv().unwrap()
}

/// A client of the cluster of a server.
pub(crate) fn cluster(server: &Server) -> Cluster {
    Cluster::new(ClientOptions::new(server.address.parse().unwrap())).unwrap()
}

/// The volume of a server, as root.
pub(crate) fn volume(server: &Server) -> Volume {
    let caller = Caller::checked(0, 0);
    let options = VolumeOptions { caller, ..VolumeOptions::new("a test") };
    Volume::with(cluster(server), options).unwrap()
}

impl Backed {
    /// With requests that are given up after a second.
    pub(crate) fn start() -> Self {
        Self::with(Server::start())
    }

    /// In front of it this server.
    pub(crate) fn with(front: Server) -> Self {
        Self::between(front, Server::start())
    }

    /// Of these two servers.
    pub(crate) fn between(front: Server, behind: Server) -> Self {
        let (direct, s3) = (behind.client(), front.client());
        direct.bucket(BEHIND);
        s3.bucket(BUCKET);
        let proxy = proxy(&behind.s3);
        let settings = BackendSettings {
            timeout_ms: 1_000,
            connect_timeout_ms: 500,
            ..BackendSettings::new(&format!("http://{proxy}"), ACCESS, SECRET)
        };
        BackendRing::open(cluster(&front)).unwrap().set("store", &settings).unwrap();
        let volume = volume(&front);
        let backing = Backing {
            backend: "store".to_owned(),
            bucket: BEHIND.to_owned(),
            prefix: PREFIX.as_bytes().to_vec(),
            ..Backing::default()
        };
        volume.set_backing(BUCKET, Some(&backing)).unwrap();
        Self { front, store: behind, proxy, s3, direct, volume }
    }

    /// Sets faults; all that are not named are off.
    pub(crate) fn faults(&self, faults: &Faults) {
        let control = Client::new(&self.proxy, ACCESS, SECRET);
        control.put("/_faults", serde_json::to_vec(faults).unwrap()).send().expect(200);
    }

    /// The object store behind.
    pub(crate) const fn store(&self) -> &Server {
        &self.store
    }

    /// Changes what backs the bucket, and waits until gateways know.
    pub(crate) fn backing(&self, change: impl FnOnce(&mut Backing)) {
        let mut backing = self.volume.bucket(BUCKET).unwrap().backing.unwrap();
        change(&mut backing);
        self.volume.set_backing(BUCKET, Some(&backing)).unwrap();
        // Gateways hear of it within a second.
        heard();
    }

    /// Changes the settings of the backend, and waits until gateways know.
    pub(crate) fn settings(&self, change: impl FnOnce(&mut BackendSettings)) {
        let ring = BackendRing::open(cluster(&self.front)).unwrap();
        let mut settings = ring.get("store").unwrap().unwrap();
        change(&mut settings);
        ring.set("store", &settings).unwrap();
        heard();
    }

    /// Gives the bucket these rules.
    pub(crate) fn rules(&self, rules: Vec<Rule>) {
        self.backing(|backing| backing.rules = rules);
    }

    /// Keys that wait.
    pub(crate) fn waiting(&self) -> usize {
        let of = |lane| self.volume.queue_page(BUCKET, lane, None, 1_000).unwrap().entries.len();
        of(0) + of(1)
    }

    /// Waits until nothing waits.
    pub(crate) fn settled(&self) {
        until("the queue is empty", || (self.waiting() == 0).then_some(()));
    }

    /// An object as it is behind.
    pub(crate) fn behind(&self, key: &str) -> Answer {
        self.direct.get(&format!("/{BEHIND}/{PREFIX}{key}")).send()
    }

    /// Panics unless what is behind is this.
    pub(crate) fn check(&self, wanted: &BTreeMap<String, Option<Vec<u8>>>) {
        for (key, wanted) in wanted {
            let found = self.behind(key);
            match wanted {
                Some(bytes) => {
                    let found = found.expect(200);
                    assert!(found.body == *bytes, "{key}: {} bytes of another write", bytes.len());
                }
                None => assert_eq!(found.status, 404, "{key} was removed"),
            }
        }
    }

    /// The value of a metric of the front: the sum over lines that begin so.
    pub(crate) fn metric(&self, begin: &str) -> u64 {
        self.front.metric(begin)
    }
}
