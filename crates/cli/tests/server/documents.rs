//! `docs/protocol.md` says what the code does.

use millpond_types::limits;
use millpond_types::wire::{HEADER_BYTES, ItemStatus, MAGIC, PROTOCOL_VERSION, Status, Verb};

fn page() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/protocol.md");
    std::fs::read_to_string(path).unwrap()
}

/// The rows of the table under `heading`, as cells without backticks.
fn rows(page: &str, heading: &str) -> Vec<Vec<String>> {
    let from = page.find(heading).unwrap_or_else(|| panic!("no '{heading}'"));
    page[from..]
        .lines()
        .skip_while(|line| !line.starts_with('|'))
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        .map(|line| {
            let cells = line.trim_matches('|').split('|');
            cells.map(|cell| cell.trim().trim_matches('`').to_owned()).collect()
        })
        .collect()
}

fn pairs(page: &str, heading: &str) -> Vec<(String, String)> {
    rows(page, heading).into_iter().map(|mut row| (row.remove(0), row.remove(0))).collect()
}

#[test]
fn verbs_and_statuses() {
    let page = page();
    let all = |known: Vec<(u32, &str)>| -> Vec<(String, String)> {
        known.into_iter().map(|(n, name)| (n.to_string(), name.to_owned())).collect()
    };
    let verbs = Verb::ALL.iter().map(|v| (u32::from(*v as u16), v.name())).collect();
    assert_eq!(pairs(&page, "## Verbs"), all(verbs));
    let statuses = Status::ALL.iter().map(|s| (u32::from(*s as u16), s.name())).collect();
    assert_eq!(pairs(&page, "## Status of a reply"), all(statuses));
    let items = ItemStatus::ALL.iter().map(|s| (u32::from(*s as u8), s.name())).collect();
    assert_eq!(pairs(&page, "## Status of a key"), all(items));
}

#[test]
fn the_header_and_the_limits() {
    let page = page();
    let fields = pairs(&page, "## Frames");
    let mut at = 0;
    for (offset, bytes) in &fields {
        assert_eq!(offset.parse::<usize>().unwrap(), at);
        at += bytes.parse::<usize>().unwrap();
    }
    assert_eq!(at, HEADER_BYTES);
    assert_eq!(MAGIC, u32::from_le_bytes(*b"MLPD"));
    assert!(page.contains(&format!("Version {PROTOCOL_VERSION}.")));
    for (what, value) in [
        ("key", format!("1 to {} bytes", limits::KEY_BYTES_MAX)),
        ("value", format!("0 to {} bytes", limits::CHUNK_BYTES_MAX)),
        ("keys in a request", limits::BATCH_KEYS_MAX.to_string()),
        ("meta", format!("{} bytes", limits::META_BYTES_MAX)),
        ("payload", format!("{} bytes", limits::PAYLOAD_BYTES_MAX)),
        ("keys in a page of a list", limits::LIST_KEYS_MAX.to_string()),
        ("parts of files in a request", limits::FILE_PARTS_MAX.to_string()),
        ("lease", format!("{} ms", limits::LEASE_MS_MAX)),
        ("token", format!("{} bytes", limits::TOKEN_BYTES_MAX)),
        ("requests in flight by default", limits::IN_FLIGHT_MAX.to_string()),
    ] {
        assert!(page.contains(&format!("| {what} | {value} |")), "{what}: {value}");
    }
}
