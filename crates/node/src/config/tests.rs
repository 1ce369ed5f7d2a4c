//! The file is parsed strictly, and the reference is complete.

use super::{Config, SECTIONS, from_text, reference, to_text};

#[test]
fn defaults_are_valid_and_survive_a_round_trip() {
    let config = Config::default();
    config.validate().unwrap();
    assert_eq!(from_text(&to_text(&config), "test").unwrap(), config);
}

#[test]
fn every_key_of_the_file_is_in_the_reference() {
    let shown = toml::Value::try_from(Config::default()).unwrap();
    for (name, table) in shown.as_table().unwrap() {
        let section = SECTIONS.iter().find(|s| s.path == name).unwrap();
        for key in table.as_table().unwrap().keys() {
            assert!(section.fields.iter().any(|f| f.name == key), "{name}.{key}");
        }
    }
}

#[test]
fn the_reference_page_is_fresh() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");
    let page = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        page == reference(),
        "docs/configuration.md is stale: run `millpond config reference > docs/configuration.md`"
    );
}

#[test]
fn unknown_keys_name_the_nearest_valid_one() {
    for (text, key, near) in [
        ("[server]\nlisten_adress = \"x\"", "server.listen_adress", "server.listen"),
        ("[server]\nmemmory = \"1GiB\"", "server.memmory", "server.memory"),
        ("[sever]\nmemory = \"1GiB\"", "sever", "[server]"),
        ("memory = \"1GiB\"", "memory", "[server]"),
        ("[limits]\nin_fligt = 3", "limits.in_fligt", "limits.in_flight"),
    ] {
        let message = from_text(text, "f.toml").unwrap_err().to_string();
        assert!(message.contains(&format!("'{key}'")), "{message}");
        assert!(message.contains(near), "{message}");
    }
}

#[test]
fn wrong_values_name_the_key_and_the_form() {
    let message = from_text("[server]\nmemory = \"lots\"", "f.toml").unwrap_err().to_string();
    assert!(message.contains("memory"), "{message}");
    assert!(message.contains("64KiB"), "{message}");
    for (text, key) in [
        ("[server]\nsize = \"1MiB\"", "server.size"),
        ("[server]\nlisten = \"nowhere\"", "server.listen"),
        ("[server]\nlisten = \"0.0.0.0:7440\"", "--token-file"),
        ("[server]\nlisten = \"0.0.0.0:1\"\n[security]\ntoken_file = \"t\"", "--tls-cert"),
        ("[security]\ntls_cert = \"c\"", "security.tls_cert"),
        ("[engine]\nevict_low_percent = 99", "engine.evict_low_percent"),
    ] {
        let message = from_text(text, "f.toml").unwrap().validate().unwrap_err().to_string();
        assert!(message.contains(key), "{message}");
    }
}
