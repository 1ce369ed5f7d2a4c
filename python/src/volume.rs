//! The volume that `millpond.files.Volume` derives from, and registered memory.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use millpond_client::{OpenOptions, Region, Volume, VolumeOptions};
use millpond_types::meta::{Attr, Timestamp};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::client::NativeClient;
use crate::errors::{argument, raise};
use crate::files::File;

/// An object that is open until it is closed or dropped. Its requests to the cluster at the end run
/// without the interpreter lock.
pub(crate) struct Held<T: Send>(Mutex<Option<T>>);

impl<T: Send + Clone> Held<T> {
    pub(crate) const fn new(inner: T) -> Self {
        Self(Mutex::new(Some(inner)))
    }

    /// Returns the object, if it is open; `what` is for the message.
    pub(crate) fn get(&self, py: Python<'_>, what: &'static str) -> PyResult<T> {
        self.lock().clone().ok_or_else(|| argument(py, what, "it is closed: open it again"))
    }
}

impl<T: Send> Held<T> {
    fn lock(&self) -> MutexGuard<'_, Option<T>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.lock().is_none()
    }

    pub(crate) fn close(&self, py: Python<'_>) {
        let open = self.lock().take();
        if open.is_some() {
            py.detach(|| drop(open));
        }
    }
}

impl<T: Send> Drop for Held<T> {
    fn drop(&mut self) {
        let open = self.0.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if open.is_some() {
            // While the interpreter ends, the session ends with its lease.
            let _ = Python::try_attach(|py| py.detach(|| drop(open)));
        }
    }
}

/// Native base of `millpond.files.Volume`.
#[pyclass(frozen, subclass, module = "millpond")]
pub(crate) struct NativeVolume {
    inner: Held<Volume>,
}

/// Native part of `millpond.files.Region`.
#[pyclass(frozen, module = "millpond")]
pub(crate) struct NativeRegion {
    inner: Region,
}

#[pymethods]
impl NativeRegion {
    #[getter]
    fn address(&self) -> usize {
        self.inner.as_ptr().expose_provenance()
    }
    #[getter]
    fn nbytes(&self) -> usize {
        self.inner.len()
    }
    #[getter]
    fn shared(&self, py: Python<'_>) -> bool {
        py.detach(|| self.inner.is_shared())
    }
}

fn open_options(py: Python<'_>, mode: &str, create: bool, perm: u16) -> PyResult<OpenOptions> {
    let plain: String = mode.chars().filter(|letter| *letter != 'b').collect();
    let base = match plain.as_str() {
        "r" => OpenOptions::READ,
        "r+" => OpenOptions::UPDATE,
        "w" => OpenOptions { read: false, ..OpenOptions::CREATE },
        "w+" => OpenOptions::CREATE,
        "x" => OpenOptions { read: false, exclusive: true, truncate: false, ..OpenOptions::CREATE },
        "x+" => OpenOptions { exclusive: true, truncate: false, ..OpenOptions::CREATE },
        _ => {
            let fix = format!(
                "'{mode}' is not one of r, r+, w, w+, x and x+, with or without b; to append, write at \
                 size()"
            );
            return Err(argument(py, "mode", fix));
        }
    };
    if create && !base.write {
        return Err(argument(py, "create", "a file that is made must be written: open it r+ or w"));
    }
    Ok(OpenOptions { create: create || base.create, mode: perm, ..base })
}

/// Builds a result of `os.stat`.
pub(crate) fn stat_result<'py>(py: Python<'py>, attr: &Attr) -> PyResult<Bound<'py, PyAny>> {
    let times = [("atime", attr.atime), ("mtime", attr.mtime), ("ctime", attr.ctime)];
    let extra = PyDict::new(py);
    let nanos = |time: Timestamp| i128::from(time.secs) * 1_000_000_000 + i128::from(time.nanos);
    for (name, time) in times {
        extra.set_item(format!("st_{name}_ns"), nanos(time))?;
        let seconds = std::time::Duration::new(time.secs.unsigned_abs(), time.nanos).as_secs_f64();
        extra.set_item(format!("st_{name}"), seconds)?;
    }
    extra.set_item("st_blksize", attr.layout.chunk_bytes())?;
    extra.set_item("st_blocks", attr.size.div_ceil(512))?;
    let [atime, mtime, ctime] = times.map(|(_, time)| time.secs);
    let (ino, dev) = (attr.ino.0, 0);
    let (mode, nlink, uid, gid) = (attr.st_mode(), attr.nlink, attr.uid, attr.gid);
    let plain = (mode, ino, dev, nlink, uid, gid, attr.size, atime, mtime, ctime);
    py.import("os")?.getattr("stat_result")?.call1((plain, extra))
}

impl NativeVolume {
    /// Runs a call with the volume, without the interpreter lock.
    fn run<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&Volume) -> Result<T, millpond_client::ClientError> + Send,
    ) -> PyResult<T> {
        let volume = self.inner.get(py, "volume")?;
        py.detach(move || call(&volume)).map_err(|error| raise(py, &error))
    }
}

#[pymethods]
impl NativeVolume {
    #[new]
    fn new(py: Python<'_>, client: &NativeClient, name: &str, workers: usize) -> PyResult<Self> {
        let client = client.inner();
        let options = VolumeOptions { workers, ..VolumeOptions::new(name) };
        let opened = py.detach(|| Volume::with(client, options));
        Ok(Self { inner: Held::new(opened.map_err(|error| raise(py, &error))?) })
    }

    /// Open a regular file.
    ///
    /// Args:
    ///     path: from the root of the volume, with or without a leading `/`; links are followed.
    ///     mode: `r` reads and `r+` reads and writes an existing file; `w` writes and `w+`
    ///         reads and writes a new or emptied file; `x` and `x+` do the same, but the file
    ///         must not exist yet. A `b` changes nothing: files are bytes.
    ///     create: with `r+`, create a missing file; an existing file keeps its bytes.
    ///     perm: permission bits of a new file.
    ///
    /// Raises:
    ///     FileNotFound, FileExists, IsADirectory, PermissionDenied or another `FileError`.
    ///     InvalidArgument: an argument is invalid; the message names it.
    #[pyo3(signature = (path, mode="r", *, create=false, perm=0o644))]
    fn open(
        &self,
        py: Python<'_>,
        path: PathBuf,
        mode: &str,
        create: bool,
        perm: u16,
    ) -> PyResult<File> {
        let options = open_options(py, mode, create, perm)?;
        let file = self.run(py, |volume| volume.open_file(&path, &options))?;
        Ok(File::new(file, path, mode))
    }

    /// Return size in bytes, mode, owner and times, as `os.stat` does; links are followed.
    fn stat<'py>(&self, py: Python<'py>, path: PathBuf) -> PyResult<Bound<'py, PyAny>> {
        let attr = self.run(py, move |volume| volume.stat(path))?;
        stat_result(py, &attr)
    }

    /// Return the names in a directory, in no particular order.
    #[pyo3(signature = (path=PathBuf::from("/")), text_signature = "($self, path='/')")]
    fn listdir(&self, py: Python<'_>, path: PathBuf) -> PyResult<Vec<OsString>> {
        let entries = self.run(py, move |volume| volume.list(path))?;
        let name = |entry: &millpond_types::meta::DirEntry| entry.name.as_bytes().to_vec();
        Ok(entries.iter().map(|entry| OsString::from_vec(name(entry))).collect())
    }

    /// Create a directory; its parent must exist.
    #[pyo3(signature = (path, perm=0o755))]
    fn mkdir(&self, py: Python<'_>, path: PathBuf, perm: u16) -> PyResult<()> {
        self.run(py, move |volume| volume.mkdir(path, perm))
    }

    /// Remove an empty directory.
    fn rmdir(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        self.run(py, move |volume| volume.rmdir(path))
    }

    /// Remove the name of a file; programs that have the file open keep using it.
    fn unlink(&self, py: Python<'_>, path: PathBuf) -> PyResult<()> {
        self.run(py, move |volume| volume.unlink(path))
    }

    /// Rename `source` to `target` in one step, replacing an existing `target`.
    fn rename(&self, py: Python<'_>, source: PathBuf, target: PathBuf) -> PyResult<()> {
        self.run(py, move |volume| volume.rename(source, target))
    }

    /// Create the file `target`, which shares the bytes of `source` until one changes.
    ///
    /// Returns False if the bytes were copied: the file was cloned and written four times in turn.
    fn clone(&self, py: Python<'_>, source: PathBuf, target: PathBuf) -> PyResult<bool> {
        self.run(py, move |volume| volume.clone_file(source, target))
    }

    fn _register(&self, py: Python<'_>, nbytes: usize) -> PyResult<NativeRegion> {
        Ok(NativeRegion { inner: self.run(py, |volume| volume.register(nbytes))? })
    }

    /// Whether it was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.inner.is_closed()
    }

    /// End the session as soon as the files that were opened in it are closed too.
    fn close(&self, py: Python<'_>) {
        self.inner.close(py);
    }
}
