//! An open file for Python: batches of reads and writes, from and to its memory.

use std::path::PathBuf;

use millpond_client::{ClientError, File as ClientFile};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

use crate::buffer::{Memory, Piece, Use, fresh_bytes, overlap};
use crate::errors::{argument, raise};
use crate::pending::Pending;
use crate::volume::{Held, stat_result};

/// Longest read without asking for the length of the file first.
const READ_UNASKED: usize = 64 << 20;

/// An open file. Thread safe: calls of several threads run in parallel, without the lock.
///
/// There is no position: every call names its offsets, in bytes from the start of the file. Buffers
/// are objects with the buffer protocol (bytearray, memoryview, NumPy arrays), contiguous CPU torch
/// tensors (pinned ones too), or lists of `(address, length in bytes)` segments that follow each
/// other in the file. Bytes move directly from and to these buffers. No other code may use a buffer
/// until the call, or the submitted batch, is done.
///
/// Calls raise `FileError` (an `OSError` with `errno`), `NoSpace`, `Unreachable` and
/// `DeadlineExceeded`; `InvalidArgument` when the file was not opened for reading, or for
/// writing; and `ValueError` when the file is closed.
#[pyclass(frozen, module = "millpond")]
pub(crate) struct File {
    inner: Held<ClientFile>,
    path: PathBuf,
    mode: String,
}

/// The ranges of a batch: a buffer of several segments gives as many ranges, one after the other.
struct Parts {
    pieces: Vec<(u64, Piece)>,
    /// Pieces of each range that the caller gave.
    each: Vec<usize>,
}

/// Reads an offset in a file; extracting a `u64` would give an error without advice.
fn offset_of(py: Python<'_>, offset: &Bound<'_, PyAny>) -> PyResult<u64> {
    let offset: i128 = offset.extract()?;
    let fix = || format!("{offset} is no place in a file: give bytes from its start, 0 or more");
    u64::try_from(offset).map_err(|_| argument(py, "offset", fix()))
}

impl Parts {
    fn new(ranges: Vec<(u64, Memory)>, purpose: Use) -> PyResult<Self> {
        let (offsets, memory): (Vec<u64>, Vec<Memory>) = ranges.into_iter().unzip();
        if purpose == Use::Write && overlap(&memory) {
            return Err(PyValueError::new_err(
                "two buffers to read into overlap: give every range memory of its own",
            ));
        }
        let (mut pieces, mut each) = (Vec::new(), Vec::with_capacity(memory.len()));
        for (mut offset, memory) in offsets.into_iter().zip(memory) {
            let of_one = memory.pieces();
            each.push(of_one.len());
            for piece in of_one {
                let len = piece.as_ref().len() as u64;
                pieces.push((offset, piece));
                offset = offset.saturating_add(len);
            }
        }
        Ok(Self { pieces, each })
    }

    fn one(
        py: Python<'_>,
        offset: &Bound<'_, PyAny>,
        (buffer, purpose): (&Bound<'_, PyAny>, Use),
    ) -> PyResult<Self> {
        Self::new(vec![(offset_of(py, offset)?, Memory::of(buffer, purpose)?)], purpose)
    }

    fn of(py: Python<'_>, parts: &Bound<'_, PyAny>, purpose: Use) -> PyResult<Self> {
        let mut ranges = Vec::new();
        for (index, part) in parts.try_iter()?.enumerate() {
            let part = part?;
            let pair = part.cast::<PyTuple>().ok().filter(|pair| pair.len() == 2);
            let Some(pair) = pair else {
                return Err(PyTypeError::new_err(format!(
                    "parts[{index}] is a '{}': give (offset in bytes, buffer)",
                    part.get_type().name()?
                )));
            };
            let offset = offset_of(py, &pair.get_item(0)?)?;
            ranges.push((offset, Memory::of(&pair.get_item(1)?, purpose)?));
        }
        Self::new(ranges, purpose)
    }

    fn bytes(&self) -> usize {
        self.pieces.iter().map(|(_, piece)| piece.as_ref().len()).sum()
    }

    fn read(mut self, file: &ClientFile) -> Result<Vec<usize>, ClientError> {
        let rooms = self.pieces.iter_mut();
        let mut rooms: Vec<(u64, &mut [u8])> =
            rooms.map(|(at, piece)| (*at, piece.as_mut())).collect();
        let lens = file.read_batch(&mut rooms)?;
        Ok(sums(&lens, &self.each))
    }

    fn write(&self, file: &ClientFile) -> Result<(), ClientError> {
        let values: Vec<(u64, &[u8])> =
            self.pieces.iter().map(|(offset, piece)| (*offset, piece.as_ref())).collect();
        file.write_batch(&values)
    }
}

/// The bytes of each range, from those of its pieces.
pub(crate) fn sums(lens: &[usize], each: &[usize]) -> Vec<usize> {
    let mut rest = lens;
    let mut sum = |count: &usize| {
        let (of_one, more) = rest.split_at(*count);
        rest = more;
        of_one.iter().sum()
    };
    each.iter().map(&mut sum).collect()
}

impl File {
    pub(crate) fn new(inner: ClientFile, path: PathBuf, mode: &str) -> Self {
        Self { inner: Held::new(inner), path, mode: mode.to_owned() }
    }

    /// Runs a call with the file, without the interpreter lock.
    fn run<T: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&ClientFile) -> Result<T, ClientError> + Send,
    ) -> PyResult<T> {
        let file = self.inner.get(py, "file")?;
        py.detach(move || call(&file)).map_err(|error| raise(py, &error))
    }
}

#[pymethods]
impl File {
    /// The path that the file was opened with.
    #[getter]
    fn path(&self) -> String {
        self.path.display().to_string()
    }
    /// The mode that the file was opened with.
    #[getter]
    fn mode(&self) -> &str {
        &self.mode
    }
    /// Whether it was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.inner.is_closed()
    }

    /// Ask the cluster for the length in bytes.
    fn size(&self, py: Python<'_>) -> PyResult<u64> {
        self.run(py, ClientFile::len)
    }

    /// Ask the cluster for size in bytes, mode, owner and times, as `os.fstat` does.
    fn stat<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let attr = self.run(py, ClientFile::stat)?;
        stat_result(py, &attr)
    }

    /// Read `length` bytes from `offset`, fewer at the end of the file.
    fn pread<'py>(
        &self,
        py: Python<'py>,
        offset: &Bound<'py, PyAny>,
        length: usize,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let (offset, mut length) = (offset_of(py, offset)?, length);
        if length > READ_UNASKED {
            let left = self.run(py, ClientFile::len)?.saturating_sub(offset);
            length = length.min(usize::try_from(left).unwrap_or(usize::MAX));
        }
        let file = self.inner.get(py, "file")?;
        let read = |room: &mut [u8]| file.read_batch(&mut [(offset, room)]);
        let (bytes, lens) = fresh_bytes(py, length, read)?;
        let read = lens.map_err(|error| raise(py, &error))?[0];
        if read == length {
            return Ok(bytes);
        }
        let all = &bytes.as_bytes()[..read];
        Ok(fresh_bytes(py, read, |into| into.copy_from_slice(all))?.0)
    }

    /// Fill `buffer` from `offset` and return the bytes read, fewer at the file's end.
    ///
    /// The rest of the buffer does not change.
    fn readinto(
        &self,
        py: Python<'_>,
        buffer: &Bound<'_, PyAny>,
        offset: &Bound<'_, PyAny>,
    ) -> PyResult<usize> {
        let parts = Parts::one(py, offset, (buffer, Use::Write))?;
        Ok(self.run(py, |file| parts.read(file))?[0])
    }

    /// Write `data` at `offset`, durably on all replicas, and return its length in bytes.
    fn pwrite(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        offset: &Bound<'_, PyAny>,
    ) -> PyResult<usize> {
        let parts = Parts::one(py, offset, (data, Use::Read))?;
        self.run(py, move |file| parts.write(file).map(|()| parts.bytes()))
    }

    /// Read ranges in parallel and return the bytes read of each, fewer at the file's end.
    ///
    /// `parts` are `(offset, buffer)` pairs. When the call raises, the contents of the buffers
    /// are undefined.
    fn read_batch(&self, py: Python<'_>, parts: &Bound<'_, PyAny>) -> PyResult<Vec<usize>> {
        let parts = Parts::of(py, parts, Use::Write)?;
        self.run(py, |file| parts.read(file))
    }

    /// Write ranges in parallel, overlapping ones in the given order.
    ///
    /// `parts` are `(offset, data)` pairs. When the call returns, all ranges are durable on all
    /// replicas and the length of the file covers them. When it raises, any of them may have been
    /// written.
    fn write_batch(&self, py: Python<'_>, parts: &Bound<'_, PyAny>) -> PyResult<()> {
        let parts = Parts::of(py, parts, Use::Read)?;
        self.run(py, move |file| parts.write(file))
    }

    /// Start a `read_batch` on a thread of the volume and return without waiting for it.
    fn submit_read(&self, py: Python<'_>, parts: &Bound<'_, PyAny>) -> PyResult<Pending> {
        let Parts { pieces, each } = Parts::of(py, parts, Use::Write)?;
        let submitted = self.run(py, |file| Ok(file.submit_read(pieces)))?;
        Ok(Pending::reads(submitted, each))
    }

    /// Start a `write_batch` on a thread of the volume and return without waiting for it.
    ///
    /// Batches that are in flight at the same time are written in any order.
    fn submit_write(&self, py: Python<'_>, parts: &Bound<'_, PyAny>) -> PyResult<Pending> {
        let Parts { pieces, .. } = Parts::of(py, parts, Use::Read)?;
        Ok(Pending::writes(self.run(py, |file| Ok(file.submit_write(pieces)))?))
    }

    /// Set the length to `size` bytes; an added range reads as zeros.
    fn truncate(&self, py: Python<'_>, size: &Bound<'_, PyAny>) -> PyResult<()> {
        let size = offset_of(py, size)?;
        self.run(py, |file| file.set_len(size))
    }

    /// Report the time of the last write; bytes and length are durable already.
    fn fsync(&self, py: Python<'_>) -> PyResult<()> {
        self.run(py, ClientFile::sync)
    }

    /// Close the file and report the time of the last write. Submitted batches continue.
    fn close(&self, py: Python<'_>) {
        self.inner.close(py);
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, py: Python<'_>, _error: &Bound<'_, PyTuple>) {
        self.close(py);
    }

    fn __repr__(&self) -> String {
        let closed = if self.inner.is_closed() { ", closed" } else { "" };
        format!("File({:?}, {:?}{closed})", self.path(), self.mode)
    }
}
