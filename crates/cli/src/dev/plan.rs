//! What a local cluster consists of: kept in its folder, and turned into command lines.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use millpond_env::ProcessId;
use serde::{Deserialize, Serialize};

/// Version of the file.
const FORMAT: u32 = 1;
/// The file in the cluster's folder.
const FILE: &str = "dev.json";

/// What a process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Role {
    /// A member of etcd.
    Etcd,
    /// A manager without disks.
    Manager,
    /// A node with disks.
    Storage,
}

/// Where managers keep their records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Store {
    /// In the folder of the only manager.
    Embedded,
    /// In an etcd cluster of three members.
    Etcd,
}

/// A process of the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Member {
    /// `n1`, `m1`, `e1`.
    pub(crate) name: String,
    /// What it does.
    pub(crate) role: Role,
    /// Its address.
    pub(crate) ip: String,
    /// Where clients connect.
    pub(crate) port: u16,
    /// Where metrics are; with etcd, where its peers connect.
    pub(crate) second_port: u16,
    /// The process, if it was started.
    pub(crate) process: Option<Process>,
}

/// A process that was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Process {
    pid: u32,
    started: u64,
}

impl From<ProcessId> for Process {
    fn from(id: ProcessId) -> Self {
        Self { pid: id.pid, started: id.started }
    }
}

impl Member {
    /// Its process, if it is there.
    pub(crate) fn running(&self) -> Option<ProcessId> {
        let process = self.process?;
        let id = ProcessId { pid: process.pid, started: process.started };
        id.is_there().then_some(id)
    }

    /// Where clients connect.
    pub(crate) fn address(&self) -> String {
        format!("{}:{}", self.ip, self.port)
    }

    /// Where its peers or metrics are.
    pub(crate) fn second_address(&self) -> String {
        format!("{}:{}", self.ip, self.second_port)
    }
}

/// A network of namespaces.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Network {
    /// What the names of its interfaces start with.
    pub(crate) tag: String,
    /// The third number of its addresses, `10.213.N.x`.
    pub(crate) subnet: u8,
    /// What does not reach whom: sender and receiver.
    pub(crate) cuts: Vec<(String, String)>,
}

/// A local cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct State {
    format: u32,
    /// Replicas of every chain.
    pub(crate) replicas: u8,
    /// Nodes that the chains are made for.
    pub(crate) form_nodes: u32,
    /// Disks of each node.
    pub(crate) disks: u32,
    /// Bytes of each disk.
    pub(crate) size: String,
    /// Memory of each server.
    pub(crate) memory: String,
    /// Where the managers' records are.
    pub(crate) store: Store,
    /// The program that the servers run.
    pub(crate) program: PathBuf,
    /// More flags for nodes with disks.
    pub(crate) flags: Vec<String>,
    /// The network, when each process has its own namespace.
    pub(crate) network: Option<Network>,
    /// The processes, in the order in which they start.
    pub(crate) members: Vec<Member>,
}

/// What a new cluster is to be like.
#[derive(Clone, Debug)]
pub(crate) struct Wish {
    pub(crate) nodes: u32,
    pub(crate) managers: u32,
    pub(crate) replicas: u8,
    pub(crate) disks: u32,
    pub(crate) size: String,
    pub(crate) memory: String,
    pub(crate) store: Store,
    pub(crate) flags: Vec<String>,
    pub(crate) network: Option<Network>,
}

/// Members of etcd.
const ETCD_MEMBERS: u32 = 3;
/// The host's end of the network.
pub(crate) const HOST: &str = "host";

impl State {
    /// A cluster that does not run yet. `port` gives free ones.
    pub(crate) fn new(
        wish: Wish,
        program: PathBuf,
        mut port: impl FnMut() -> anyhow::Result<u16>,
    ) -> anyhow::Result<Self> {
        if wish.managers > 1 && wish.store == Store::Embedded {
            bail!("--managers {} need a shared store: add --store etcd", wish.managers);
        }
        if u32::from(wish.replicas) > wish.nodes {
            bail!("--replicas {}: needs as many nodes: --nodes {}", wish.replicas, wish.replicas);
        }
        let mut state = Self {
            format: FORMAT,
            replicas: wish.replicas,
            form_nodes: wish.nodes,
            disks: wish.disks,
            size: wish.size,
            memory: wish.memory,
            store: wish.store,
            program,
            flags: wish.flags,
            network: wish.network,
            members: Vec::new(),
        };
        let etcd = if wish.store == Store::Etcd { ETCD_MEMBERS } else { 0 };
        for (role, count) in
            [(Role::Etcd, etcd), (Role::Manager, wish.managers), (Role::Storage, wish.nodes)]
        {
            for _ in 0..count {
                state.add(role, &mut port)?;
            }
        }
        Ok(state)
    }

    /// One more member of a role; its name.
    pub(crate) fn add(
        &mut self,
        role: Role,
        mut port: impl FnMut() -> anyhow::Result<u16>,
    ) -> anyhow::Result<String> {
        let letter = match role {
            Role::Etcd => 'e',
            Role::Manager => 'm',
            Role::Storage => 'n',
        };
        let n = self.members.iter().filter(|member| member.role == role).count() + 1;
        let name = format!("{letter}{n}");
        let (ip, (port, second_port)) = match &self.network {
            None => ("127.0.0.1".to_owned(), (port()?, port()?)),
            Some(network) => (network.ip(&name)?, (7440, 7441)),
        };
        self.members.push(Member {
            name: name.clone(),
            role,
            ip,
            port,
            second_port,
            process: None,
        });
        Ok(name)
    }

    /// The member of a name.
    pub(crate) fn member(&self, name: &str) -> anyhow::Result<&Member> {
        self.members.iter().find(|member| member.name == name).with_context(|| {
            let names: Vec<&str> = self.members.iter().map(|member| member.name.as_str()).collect();
            format!("no process '{name}': the processes are {}", names.join(", "))
        })
    }

    /// Notes a process.
    pub(crate) fn set_process(&mut self, name: &str, process: Option<Process>) {
        for member in self.members.iter_mut().filter(|member| member.name == name) {
            member.process = process;
        }
    }

    fn addresses(&self, role: Role) -> Vec<String> {
        self.members.iter().filter(|it| it.role == role).map(Member::address).collect()
    }

    /// Where operators and clients connect: nodes first, since they have the data.
    pub(crate) fn servers(&self) -> Vec<String> {
        [self.addresses(Role::Storage), self.addresses(Role::Manager)].concat()
    }

    /// The flags that a member starts with.
    pub(crate) fn arguments(&self, member: &Member, folder: &Path) -> Vec<String> {
        let here = folder.join(&member.name);
        if member.role == Role::Etcd {
            return self.etcd_arguments(member, &here);
        }
        let mut flags = vec!["server".to_owned()];
        let mut flag = |name: &str, value: &str| flags.extend([name.to_owned(), value.to_owned()]);
        flag("--listen", &member.address());
        flag("--http", &member.second_address());
        flag("--memory", &self.memory);
        flag("--cores", "1");
        flag("--join", &self.addresses(Role::Manager).join(","));
        let more: &[&str] = if member.role == Role::Manager {
            flag("--data", &here.join("data").display().to_string());
            flag("--store", &self.store_flag());
            flag("--form-nodes", &self.form_nodes.to_string());
            flag("--replicas", &self.replicas.to_string());
            flag("--socket", "");
            &["--manager", "--no-storage"]
        } else {
            for n in 1..=self.disks {
                let path = here.join(format!("disk{n}"));
                flag("--data", &format!("{}:{}", path.display(), self.size));
            }
            &[]
        };
        flags.extend(more.iter().map(|&flag| flag.to_owned()));
        if self.network.is_some() {
            // Its own network, that nobody else is in. Unix sockets would get past its cuts.
            flags.extend(["--insecure", "--socket", ""].map(str::to_owned));
        }
        if member.role == Role::Storage {
            flags.extend(self.flags.iter().cloned());
        }
        flags
    }

    fn store_flag(&self) -> String {
        match self.store {
            Store::Embedded => "embedded".to_owned(),
            Store::Etcd => format!("etcd://{}", self.addresses(Role::Etcd).join(",")),
        }
    }

    fn etcd_arguments(&self, member: &Member, here: &Path) -> Vec<String> {
        let etcd = || self.members.iter().filter(|it| it.role == Role::Etcd);
        let all: Vec<String> =
            etcd().map(|it| format!("{}=http://{}", it.name, it.second_address())).collect();
        let client = format!("http://{}", member.address());
        let peer = format!("http://{}", member.second_address());
        [
            format!("--name={}", member.name),
            format!("--data-dir={}", here.join("data").display()),
            format!("--listen-client-urls={client}"),
            format!("--advertise-client-urls={client}"),
            format!("--listen-peer-urls={peer}"),
            format!("--initial-advertise-peer-urls={peer}"),
            format!("--initial-cluster={}", all.join(",")),
            "--log-level=warn".to_owned(),
        ]
        .into()
    }

    /// Reads the state of a folder; none when there is no cluster in it.
    pub(crate) fn read(folder: &Path) -> anyhow::Result<Option<Self>> {
        let path = folder.join(FILE);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| path.display().to_string()),
        };
        let wrong = || format!("{}: written by another version: remove the folder", path.display());
        let state: Self = serde_json::from_str(&text).with_context(wrong)?;
        if state.format != FORMAT {
            bail!(wrong());
        }
        Ok(Some(state))
    }

    /// Replaces the state of a folder.
    pub(crate) fn write(&self, folder: &Path) -> anyhow::Result<()> {
        let path = folder.join(FILE);
        let new = folder.join(format!("{FILE}.new"));
        let write = || {
            let mut file =
                std::fs::OpenOptions::new().create(true).write(true).truncate(true).open(&new)?;
            file.write_all(&serde_json::to_vec_pretty(self)?)?;
            std::fs::rename(&new, &path)
        };
        write().with_context(|| path.display().to_string())
    }
}

impl Network {
    /// The address of a member, or of the host.
    pub(crate) fn ip(&self, name: &str) -> anyhow::Result<String> {
        let n: u16 = match name {
            HOST => 0,
            _ => name.get(1..).and_then(|n| n.parse().ok()).unwrap_or(u16::MAX),
        };
        let (base, most) = match name.chars().next() {
            Some('h') => (1, 0),
            Some('e') => (1, 9),
            Some('m') => (10, 9),
            _ => (20, 230),
        };
        if n > most {
            bail!("{name}: a local network has room for {most} of a kind");
        }
        Ok(format!("10.213.{}.{}", self.subnet, base + n))
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use millpond_env::ProcessId;

    use super::{Network, Role, State, Store, Wish};

    fn wish() -> Wish {
        Wish {
            nodes: 3,
            managers: 1,
            replicas: 2,
            disks: 2,
            size: "1GiB".to_owned(),
            memory: "256MiB".to_owned(),
            store: Store::Embedded,
            flags: vec!["--log-level=debug".to_owned()],
            network: None,
        }
    }

    fn state(wish: Wish) -> State {
        let mut next = 7_000;
        let port = || {
            next += 1;
            Ok(next)
        };
        State::new(wish, PathBuf::from("/bin/millpond"), port).unwrap()
    }

    #[test]
    fn a_cluster_has_managers_without_disks_and_nodes_that_find_them() {
        let state = state(wish());
        let names: Vec<&str> = state.members.iter().map(|member| member.name.as_str()).collect();
        assert_eq!(names, ["m1", "n1", "n2", "n3"]);
        let flags =
            |name: &str| state.arguments(state.member(name).unwrap(), Path::new("/c")).join(" ");
        assert_eq!(
            flags("m1"),
            "server --listen 127.0.0.1:7001 --http 127.0.0.1:7002 --memory 256MiB --cores 1 \
             --join 127.0.0.1:7001 --data /c/m1/data --store embedded --form-nodes 3 \
             --replicas 2 --socket  --manager --no-storage"
        );
        assert_eq!(
            flags("n2"),
            "server --listen 127.0.0.1:7005 --http 127.0.0.1:7006 --memory 256MiB --cores 1 \
             --join 127.0.0.1:7001 --data /c/n2/disk1:1GiB --data /c/n2/disk2:1GiB \
             --log-level=debug"
        );
        assert_eq!(state.servers().len(), 4);
        assert!(state.member("n9").unwrap_err().to_string().contains("m1, n1, n2, n3"));
    }

    #[test]
    fn several_managers_share_an_etcd() {
        let error = State::new(Wish { managers: 3, ..wish() }, PathBuf::new(), || Ok(1));
        assert!(error.unwrap_err().to_string().contains("--store etcd"));
        let state = state(Wish { managers: 3, store: Store::Etcd, ..wish() });
        assert_eq!(state.members.len(), 9);
        let flags = state.arguments(state.member("e2").unwrap(), Path::new("/c")).join(" ");
        assert!(flags.contains("--initial-cluster=e1=http://127.0.0.1:7002,e2="), "{flags}");
        let flags = state.arguments(state.member("m3").unwrap(), Path::new("/c")).join(" ");
        assert!(
            flags.contains("--store etcd://127.0.0.1:7001,127.0.0.1:7003,127.0.0.1:7005"),
            "{flags}"
        );
    }

    #[test]
    fn more_replicas_than_nodes_are_refused() {
        let error = State::new(Wish { replicas: 4, ..wish() }, PathBuf::new(), || Ok(1));
        assert!(error.unwrap_err().to_string().contains("--nodes 4"));
    }

    #[test]
    fn members_of_a_network_have_addresses_of_their_own() {
        let network = Network { tag: "mpab".to_owned(), subnet: 7, cuts: Vec::new() };
        let mut state = state(Wish { network: Some(network.clone()), ..wish() });
        assert_eq!(state.member("n3").unwrap().address(), "10.213.7.23:7440");
        assert_eq!(state.add(Role::Storage, || Ok(0)).unwrap(), "n4");
        let mut all: Vec<String> = state.members.iter().map(|member| member.ip.clone()).collect();
        all.push(network.ip("host").unwrap());
        all.sort();
        all.dedup();
        assert_eq!(all.len(), 6);
        assert!(network.ip("n231").is_err());
        assert!(network.ip("m10").is_err());
    }

    #[test]
    fn a_folder_remembers_its_cluster() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(State::read(folder.path()).unwrap(), None);
        let mut state = state(wish());
        let me = ProcessId::of(std::process::id()).unwrap();
        state.set_process("n1", Some(me.into()));
        // The same number, but of another start.
        state.set_process("n2", Some(ProcessId { started: me.started + 1, ..me }.into()));
        state.write(folder.path()).unwrap();
        let read = State::read(folder.path()).unwrap().unwrap();
        assert_eq!(read, state);
        assert_eq!(read.member("n1").unwrap().running(), Some(me));
        assert_eq!(read.member("n2").unwrap().running(), None);
        assert_eq!(read.member("n3").unwrap().running(), None);
        std::fs::write(folder.path().join("dev.json"), "{}").unwrap();
        let error = format!("{:#}", State::read(folder.path()).unwrap_err());
        assert!(error.contains("remove the folder"), "{error}");
    }
}
