//! Comparison of a client's block layout with the layout of a namespace.

use std::fmt::Write as _;

use millpond_types::wire::{Failure, Status};
use millpond_types::{LayoutDigest, NamespaceInfo};

/// Returns the namespace if this client may use it: the layouts are equal, or one is unset.
///
/// # Errors
/// `LayoutMismatch` naming both layouts.
pub(crate) fn checked_layout(
    info: &NamespaceInfo,
    wanted: &LayoutDigest,
) -> Result<NamespaceInfo, Failure> {
    let held = &info.options.layout;
    if held == wanted || held.is_unset() || wanted.is_unset() {
        return Ok(info.clone());
    }
    Err(Failure::new(
        Status::LayoutMismatch,
        format!(
            "namespace '{}' holds blocks of layout {}, but this client's layout is {}: the model, \
             dtype, block size or parallel layout differ; use another namespace name, or drop this \
             one with `millpond kv ns drop {}`",
            info.name,
            hex(held),
            hex(wanted),
            info.name
        ),
    ))
}

fn hex(digest: &LayoutDigest) -> String {
    digest.0.iter().fold(String::with_capacity(64), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
