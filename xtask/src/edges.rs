//! Which crate may depend on which (STYLE rule 2): dependencies point down.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// Each crate of ours and the crates of ours that it may name. A crate that is missing here
/// is a fault: adding one is a decision about direction.
const ALLOWED: &[(&str, &[&str])] = &[
    ("types", &[]),
    ("chain", &["types"]),
    ("cluster", &["types"]),
    ("store", &["types", "env"]),
    ("meta", &["types", "env", "store"]),
    ("env", &["types"]),
    ("engine", &["types", "env"]),
    ("client", &["types", "env"]),
    ("kv", &["types", "env", "client"]),
    ("fuse-wire", &["types"]),
    ("fuse", &["types", "env", "client", "fuse-wire"]),
    ("md5", &[]),
    ("s3", &["types", "env", "client", "md5"]),
    ("control", &["types", "env", "cluster", "store", "meta", "client"]),
    ("replica", &["types", "env", "engine", "chain", "cluster", "control"]),
    (
        "node",
        &[
            "types", "env", "engine", "chain", "cluster", "store", "control", "replica", "client",
            "s3",
        ],
    ),
    (
        "cli",
        &[
            "types",
            "env",
            "engine",
            "cluster",
            "store",
            "meta",
            "control",
            "node",
            "client",
            "kv",
            "fuse",
            "fuse-wire",
            "s3",
        ],
    ),
    ("s3-load", &["types", "env"]),
    ("python", &["types", "env", "client", "kv", "node", "cli"]),
    ("fuzz", &["types", "env", "engine", "chain", "fuse-wire", "node"]),
    ("sim", &["types", "env", "engine", "chain", "cluster", "store", "client", "kv"]),
];

/// Faults in the dependency edges of every `Cargo.toml` under `crates/` and `python/`.
pub(crate) fn check(root: &Path) -> Result<Vec<String>> {
    let mut faults = Vec::new();
    let mut manifests: Vec<_> = fs::read_dir(root.join("crates"))?
        .map(|entry| entry.map(|e| e.path().join("Cargo.toml")))
        .collect::<Result<_, _>>()?;
    manifests.push(root.join("python/Cargo.toml"));
    for manifest in manifests.iter().filter(|m| m.exists()) {
        let text = fs::read_to_string(manifest)?;
        let name = manifest
            .parent()
            .and_then(Path::file_name)
            .map(|n| n.to_string_lossy().into_owned())
            .context("a manifest lies in a folder")?;
        faults.extend(faults_of(&name, &text)?);
    }
    Ok(faults)
}

/// Faults of the manifest `text` of the crate in folder `name`. Development dependencies are
/// free: tests may look up.
fn faults_of(name: &str, text: &str) -> Result<Vec<String>> {
    let Some((_, allowed)) = ALLOWED.iter().find(|(crate_name, _)| *crate_name == name) else {
        return Ok(vec![format!(
            "crate '{name}' is not in xtask/src/edges.rs: say what it may use"
        )]);
    };
    let manifest: toml::Table = text.parse().with_context(|| format!("manifest of {name}"))?;
    let empty = toml::Table::new();
    let dependencies = manifest.get("dependencies").and_then(|d| d.as_table()).unwrap_or(&empty);
    Ok(dependencies
        .keys()
        .filter_map(|dependency| dependency.strip_prefix("millpond-"))
        .filter(|ours| !allowed.contains(ours))
        .map(|ours| format!("crate '{name}' may not depend on '{ours}': dependencies point down"))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::faults_of;

    #[test]
    fn an_edge_that_points_up_is_a_fault() {
        let up = "[dependencies]\nmillpond-engine.workspace = true\n";
        assert_eq!(faults_of("client", up).unwrap().len(), 1);
        assert_eq!(faults_of("node", up).unwrap().len(), 0);
        assert_eq!(faults_of("stranger", up).unwrap().len(), 1);
    }
}
