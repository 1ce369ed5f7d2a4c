//! The client that `millpond.Client` wraps.

use std::time::Duration;

use millpond_client::{Client, ClientOptions};
use millpond_kv::FailOpenOptions;
use millpond_types::wire::NamespaceSet;
use millpond_types::{Ack, ByteSize, GroupId, LayoutDigest, NamespaceOptions, Priority};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::errors::{argument, raise};
use crate::fail_open::FailOpen;
use crate::namespace::Namespace;

/// Native part of `millpond.Client`.
#[pyclass(frozen, module = "millpond")]
pub(crate) struct NativeClient {
    inner: Client,
}

/// A namespace and its options.
#[pyclass(frozen, module = "millpond")]
pub(crate) struct NamespaceInfo {
    info: millpond_types::NamespaceInfo,
}

impl From<&millpond_types::NamespaceInfo> for NamespaceInfo {
    fn from(info: &millpond_types::NamespaceInfo) -> Self {
        Self { info: info.clone() }
    }
}

#[pymethods]
impl NamespaceInfo {
    #[getter]
    fn name(&self) -> &str {
        &self.info.name
    }
    #[getter]
    const fn id(&self) -> u32 {
        self.info.id.0
    }
    #[getter]
    fn layout<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.info.options.layout.0)
    }
    #[getter]
    const fn ack(&self) -> &'static str {
        match self.info.options.ack {
            Ack::Memory => "memory",
            Ack::Disk => "disk",
        }
    }
    #[getter]
    const fn priority(&self) -> u8 {
        self.info.options.priority as u8
    }
    #[getter]
    const fn evict(&self) -> bool {
        self.info.options.evict
    }
    #[getter]
    const fn ttl_s(&self) -> u32 {
        self.info.options.ttl_seconds
    }
    #[getter]
    const fn quota_bytes(&self) -> u64 {
        self.info.options.quota.0
    }
    #[getter]
    const fn run_blocks(&self) -> u16 {
        self.info.options.run_blocks
    }
    fn __repr__(&self) -> String {
        format!("NamespaceInfo(name={:?}, id={})", self.info.name, self.info.id.0)
    }
}

fn options(
    py: Python<'_>,
    layout: &[u8],
    (ack, ttl_s, quota_bytes, priority, evict): (&str, u32, u64, u8, bool),
) -> PyResult<NamespaceOptions> {
    let digest = layout.try_into().map_err(|_| argument(py, "layout", "a digest has 32 bytes"))?;
    let ack = match ack {
        "memory" => Ack::Memory,
        "disk" => Ack::Disk,
        _ => return Err(argument(py, "ack", "must be 'memory' or 'disk'")),
    };
    let priority = priority_of(py, priority)?;
    Ok(NamespaceOptions {
        layout: LayoutDigest(digest),
        ack,
        priority,
        evict,
        ttl_seconds: ttl_s,
        quota: ByteSize(quota_bytes),
        ..NamespaceOptions::default()
    })
}

fn priority_of(py: Python<'_>, number: u8) -> PyResult<Priority> {
    let wrong = |_| argument(py, "priority", "must be 0 (goes first), 1 or 2");
    Priority::try_from(number).map_err(wrong)
}

impl NativeClient {
    /// The client itself.
    pub(crate) fn inner(&self) -> Client {
        self.inner.clone()
    }
}

#[pymethods]
impl NativeClient {
    #[new]
    #[expect(clippy::too_many_arguments, reason = "the Python constructor's arguments, in order")]
    fn new(
        py: Python<'_>,
        address: &str,
        token: String,
        transport: &str,
        tls_ca: Option<String>,
        deadline_ms: u64,
        connections: usize,
    ) -> PyResult<Self> {
        let build = || {
            let options = ClientOptions {
                token,
                transport: transport.parse()?,
                tls_ca: tls_ca.map(Into::into),
                deadline: Duration::from_millis(deadline_ms),
                connections,
                ..ClientOptions::new(address.parse()?)
            };
            Client::new(options)
        };
        Ok(Self { inner: build().map_err(|error| raise(py, &error))? })
    }

    fn transport(&self, py: Python<'_>) -> PyResult<String> {
        let info = py.detach(|| self.inner.server_info()).map_err(|error| raise(py, &error))?;
        Ok(info.transport.to_string())
    }

    #[expect(clippy::too_many_arguments, reason = "the Python call's arguments, in order")]
    fn open_namespace(
        &self,
        py: Python<'_>,
        name: &str,
        layout: &[u8],
        create: bool,
        ack: &str,
        ttl_s: u32,
        quota_bytes: u64,
        priority: u8,
        evict: bool,
    ) -> PyResult<Py<Namespace>> {
        let options = options(py, layout, (ack, ttl_s, quota_bytes, priority, evict))?;
        let opened = py.detach(|| millpond_kv::Namespace::open(&self.inner, name, create, options));
        Namespace::create(py, opened.map_err(|error| raise(py, &error))?)
    }

    #[expect(clippy::too_many_arguments, reason = "the Python call's arguments, in order")]
    fn open_failing_open(
        &self,
        py: Python<'_>,
        name: &str,
        layout: &[u8],
        create: bool,
        ack: &str,
        ttl_s: u32,
        quota_bytes: u64,
        priority: u8,
        evict: bool,
        deadline_ms: u64,
        retry_ms: u64,
        failures: u32,
        writes: usize,
    ) -> PyResult<Py<FailOpen>> {
        let namespace = options(py, layout, (ack, ttl_s, quota_bytes, priority, evict))?;
        if deadline_ms == 0 {
            return Err(argument(py, "deadline_ms", "must be 1 or more"));
        }
        let open = FailOpenOptions {
            deadline: Duration::from_millis(deadline_ms),
            failures_max: failures,
            pause_max: Duration::from_millis(retry_ms),
            writes_max: writes,
            ..FailOpenOptions::default()
        };
        FailOpen::create(py, &self.inner, (name, create), namespace, open)
    }

    fn namespaces(&self, py: Python<'_>) -> PyResult<Vec<NamespaceInfo>> {
        let infos = py.detach(|| self.inner.namespaces(None)).map_err(|error| raise(py, &error))?;
        Ok(infos.iter().map(NamespaceInfo::from).collect())
    }

    fn set_namespace(
        &self,
        py: Python<'_>,
        name: &str,
        quota_bytes: Option<u64>,
        ttl_s: Option<u32>,
        priority: Option<u8>,
    ) -> PyResult<NamespaceInfo> {
        let set = NamespaceSet {
            name: name.to_owned(),
            quota: quota_bytes.map(ByteSize),
            ttl_seconds: ttl_s,
            priority: priority.map(|number| priority_of(py, number)).transpose()?,
        };
        let changed = py.detach(|| self.inner.set_namespace(&set, None));
        changed.map(|info| NamespaceInfo::from(&info)).map_err(|error| raise(py, &error))
    }

    fn drop_namespace(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        py.detach(|| self.inner.drop_namespace(name, None)).map_err(|error| raise(py, &error))
    }

    fn server_info<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let values = py
            .detach(|| self.inner.stats(GroupId::SYSTEM, None))
            .map_err(|error| raise(py, &error))?;
        let out = PyDict::new(py);
        for (name, value) in values {
            out.set_item(name, value)?;
        }
        Ok(out)
    }

    fn close(&self) {
        self.inner.close();
    }
}
