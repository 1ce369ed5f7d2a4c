//! Memory that Python owns, as slices for the duration of one call or one submitted batch.
//!
//! It accepts three forms: objects with the buffer protocol (bytes, `NumPy` arrays, memoryviews),
//! torch tensors on the CPU (through `data_ptr`, without importing torch), and lists of `(address,
//! length)` pairs. The buffer protocol became part of the stable ABI in Python 3.11 with the layout
//! that it has had since 3.0 (PEP 3118, PEP 688), so it is declared here for older ones.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::Arc;

use millpond_client::{Room, Value};
use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};

#[repr(C)]
struct PyBufferView {
    buf: *mut c_void,
    obj: *mut ffi::PyObject,
    len: isize,
    itemsize: isize,
    readonly: c_int,
    ndim: c_int,
    format: *mut c_char,
    shape: *mut isize,
    strides: *mut isize,
    suboffsets: *mut isize,
    internal: *mut c_void,
}

/// A contiguous view of bytes, read-only allowed.
const PYBUF_SIMPLE: c_int = 0;
/// A contiguous view of bytes that may be written.
const PYBUF_WRITABLE: c_int = 1;
/// A view with the format of its items, which requires their number.
const PYBUF_FORMAT: c_int = 4 | 8;

unsafe extern "C" {
    fn PyObject_GetBuffer(
        object: *mut ffi::PyObject,
        view: *mut PyBufferView,
        flags: c_int,
    ) -> c_int;
    fn PyObject_CheckBuffer(object: *mut ffi::PyObject) -> c_int;
    fn PyBuffer_Release(view: *mut PyBufferView);
}

/// Whether a call reads the memory (put) or writes it (get).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    Read,
    Write,
}

/// The owner that keeps the memory of one value alive and in place.
enum Keeper {
    /// A view; released with the interpreter attached.
    View(Box<PyBufferView>),
    /// A tensor, kept by a reference.
    Object(Option<Py<PyAny>>),
    /// The caller's promise.
    Caller,
}

/// The memory of one value: one or more segments.
pub(crate) struct Memory {
    keeper: Keeper,
    segments: Vec<(*mut u8, usize)>,
}

// SAFETY: the segments are plain memory that `keeper` holds in place; the view is only touched
// again by `drop`, which attaches to the interpreter.
unsafe impl Send for Memory {}
// SAFETY: as above; `&Memory` hands out nothing that changes it.
unsafe impl Sync for Memory {}

impl Memory {
    /// No memory.
    const fn nothing() -> Self {
        Self { keeper: Keeper::Caller, segments: Vec::new() }
    }

    /// Takes hold of the memory of `value`.
    pub(crate) fn of(value: &Bound<'_, PyAny>, purpose: Use) -> PyResult<Self> {
        if let Ok(pairs) = value.cast::<PyList>() {
            return Self::of_pairs(pairs);
        }
        // SAFETY: the interpreter is attached, as `value` proves.
        let is_buffer = unsafe { PyObject_CheckBuffer(value.as_ptr()) } != 0;
        if !is_buffer && value.hasattr("data_ptr")? {
            return Self::of_tensor(value);
        }
        Self::of_buffer(value, purpose)
    }

    fn of_pairs(pairs: &Bound<'_, PyList>) -> PyResult<Self> {
        let mut segments = Vec::with_capacity(pairs.len());
        for pair in pairs {
            let pair = pair.cast_into::<PyTuple>().map_err(|_| {
                PyTypeError::new_err("a value given as a list holds (address, length) tuples")
            })?;
            let (address, len): (usize, usize) = pair.extract()?;
            if len == 0 {
                continue;
            }
            if address == 0 || isize::try_from(len).is_err() || address.checked_add(len).is_none() {
                return Err(PyValueError::new_err(format!(
                    "segment ({address}, {len}) is no memory: give (address, length in bytes)"
                )));
            }
            segments.push((ptr::with_exposed_provenance_mut(address), len));
        }
        Ok(Self { keeper: Keeper::Caller, segments })
    }

    fn of_tensor(tensor: &Bound<'_, PyAny>) -> PyResult<Self> {
        let device: String = tensor.getattr("device")?.getattr("type")?.extract()?;
        if device != "cpu" {
            return Err(PyValueError::new_err(format!(
                "tensor is on device '{device}': move it to the CPU first (.cpu())"
            )));
        }
        if !tensor.call_method0("is_contiguous")?.is_truthy()? {
            return Err(PyValueError::new_err(
                "tensor is not contiguous: pass .contiguous(), or its segments as a list",
            ));
        }
        let address: usize = tensor.call_method0("data_ptr")?.extract()?;
        let items: usize = tensor.call_method0("numel")?.extract()?;
        let item_bytes: usize = tensor.call_method0("element_size")?.extract()?;
        let len = items * item_bytes;
        let segments = match len {
            0 => Vec::new(),
            len => vec![(ptr::with_exposed_provenance_mut(address), len)],
        };
        let keeper = Keeper::Object(Some(tensor.clone().unbind()));
        Ok(Self { keeper, segments })
    }

    fn of_buffer(value: &Bound<'_, PyAny>, purpose: Use) -> PyResult<Self> {
        let mut view = Box::new(PyBufferView {
            buf: ptr::null_mut(),
            obj: ptr::null_mut(),
            len: 0,
            itemsize: 0,
            readonly: 0,
            ndim: 0,
            format: ptr::null_mut(),
            shape: ptr::null_mut(),
            strides: ptr::null_mut(),
            suboffsets: ptr::null_mut(),
            internal: ptr::null_mut(),
        });
        let flags = match purpose {
            Use::Read => PYBUF_SIMPLE,
            Use::Write => PYBUF_WRITABLE,
        };
        let mut view_with = |flags| {
            // SAFETY: the interpreter is attached (`value` proves it) and `view` is writable.
            let got = unsafe { PyObject_GetBuffer(value.as_ptr(), &raw mut *view, flags) };
            if got == 0 { Ok(()) } else { Err(PyErr::fetch(value.py())) }
        };
        // NumPy has no format for some items (dates, bfloat16), and reports itself whether there
        // are objects among them.
        if has_objects(value)? {
            return Err(of_objects());
        }
        if let Err(error) = view_with(flags | PYBUF_FORMAT).or_else(|_| view_with(flags)) {
            let kind = value.get_type().name()?;
            return Err(PyBufferError::new_err(format!(
                "cannot use a '{kind}' here ({error}): give a contiguous{} buffer, a CPU tensor, or a \
                 list of (address, length)",
                if purpose == Use::Write { ", writable" } else { "" }
            )));
        }
        let len = usize::try_from(view.len).unwrap_or(0);
        let segments = match len {
            0 => Vec::new(),
            len => vec![(view.buf.cast(), len)],
        };
        let is_of_objects = {
            // SAFETY: null, or a text that lives as long as the view.
            let format = unsafe { view.format.as_ref().map(|text| CStr::from_ptr(text)) };
            format.is_some_and(|format| has_object_item(format.to_bytes()))
        };
        // Dropping it releases the view.
        let memory = Self { keeper: Keeper::View(view), segments };
        if is_of_objects { Err(of_objects()) } else { Ok(memory) }
    }

    /// Its segments, in order, for work that outlives the call.
    pub(crate) fn pieces(self) -> Vec<Piece> {
        let memory = Arc::new(self);
        let piece =
            |at: &(*mut u8, usize)| Piece { start: at.0, len: at.1, _memory: memory.clone() };
        memory.segments.iter().map(piece).collect()
    }

    /// The memory for reading.
    pub(crate) fn value(&self) -> Value<'_> {
        let slice = |(start, len): &(*mut u8, usize)| {
            // SAFETY: `keeper` holds the memory in place for as long as `self`, or the caller has
            // promised so for raw segments. Python code that writes to it during the call breaks a
            // promise documented on `put`; the checksum then refuses the value.
            unsafe { std::slice::from_raw_parts(*start, *len) }
        };
        match self.segments.as_slice() {
            [] => Value::One(&[]),
            [one] => Value::One(slice(one)),
            many => Value::Many(many.iter().map(slice).collect()),
        }
    }

    /// The memory for writing.
    pub(crate) fn room(&mut self) -> Room<'_> {
        let slice = |(start, len): &(*mut u8, usize)| {
            // SAFETY: as in `value`; the view was requested writable, and `get` documents that no
            // other code may use the memory until it returns.
            unsafe { std::slice::from_raw_parts_mut(*start, *len) }
        };
        match self.segments.as_slice() {
            [] => Room::One(&mut []),
            [one] => Room::One(slice(one)),
            many => Room::Many(many.iter().map(slice).collect()),
        }
    }
}

/// A segment of memory, which stays in place until this is dropped.
pub(crate) struct Piece {
    start: *mut u8,
    len: usize,
    _memory: Arc<Memory>,
}

// SAFETY: plain memory that `_memory` holds in place; `Memory` may be dropped on any thread.
unsafe impl Send for Piece {}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: as in `Memory::value`; `File.submit_write` documents that no other code may write
        // to it until the batch is done.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }
}

impl AsMut<[u8]> for Piece {
    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `Memory::room`, and pieces for reads are made from writable views.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }
}

/// Whether an array of `NumPy` has items, or parts of items, that are objects.
fn has_objects(value: &Bound<'_, PyAny>) -> PyResult<bool> {
    let Some(dtype) = value.getattr_opt("dtype")? else { return Ok(false) };
    dtype.getattr_opt("hasobject")?.map_or(Ok(false), |has| has.is_truthy())
}

/// Whether a format (PEP 3118) has an object among its items; names of fields stand between colons.
fn has_object_item(format: &[u8]) -> bool {
    format.split(|byte| *byte == b':').step_by(2).any(|part| part.contains(&b'O'))
}

fn of_objects() -> PyErr {
    PyBufferError::new_err(
        "a buffer of Python objects: its bytes are addresses in this process, which mean nothing \
         elsewhere or later; convert it to numbers (.astype), or pickle it",
    )
}

/// Makes `bytes` of this length, filled without the interpreter lock. Returns also the result of
/// `fill`.
pub(crate) fn fresh_bytes<'py, T: Send>(
    py: Python<'py>,
    len: usize,
    fill: impl FnOnce(&mut [u8]) -> T + Send,
) -> PyResult<(Bound<'py, PyBytes>, T)> {
    let size = ffi::Py_ssize_t::try_from(len)?;
    // SAFETY: the interpreter is attached; without a source the object is new, except the empty
    // one.
    let bytes: Bound<'py, PyBytes> = unsafe {
        let new = ffi::PyBytes_FromStringAndSize(ptr::null(), size);
        Bound::from_owned_ptr_or_err(py, new)?.cast_into_unchecked()
    };
    // SAFETY: `bytes` is a Python `bytes`.
    let start = unsafe { ffi::PyBytes_AsString(bytes.as_ptr()) };
    let room = Piece { start: start.cast(), len, _memory: Arc::new(Memory::nothing()) };
    let told = py.detach(move || {
        let mut room = room;
        // SAFETY: the object is not shared yet, and it has room for `len` bytes.
        unsafe { ptr::write_bytes(room.start, 0, room.len) };
        fill(room.as_mut())
    });
    Ok((bytes, told))
}

/// Whether two segments share a byte.
pub(crate) fn overlap(memory: &[Memory]) -> bool {
    let segments = memory.iter().flat_map(|memory| &memory.segments);
    let mut ranges: Vec<(usize, usize)> =
        segments.map(|(start, len)| (start.addr(), start.addr() + len)).collect();
    ranges.sort_unstable();
    ranges.windows(2).any(|pair| pair[0].1 > pair[1].0)
}

impl Drop for Memory {
    fn drop(&mut self) {
        // While the interpreter ends, nothing can be given back to it.
        match &mut self.keeper {
            Keeper::View(view) => {
                let _ = Python::try_attach(|_| {
                    // SAFETY: the view was filled by `PyObject_GetBuffer` and is released once.
                    unsafe { PyBuffer_Release(&raw mut **view) };
                });
            }
            // Drops it with the interpreter attached, so that no list of deferred releases is
            // locked when a process forks.
            Keeper::Object(object) => {
                let object = object.take();
                let _ = Python::try_attach(|_| drop(object));
            }
            Keeper::Caller => {}
        }
    }
}
