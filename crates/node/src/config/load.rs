//! Reading a configuration file, with errors that name the key and the nearest valid one.

use std::path::Path;

use super::{Config, SECTIONS};

/// A configuration cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{path}: {source}: check the path given with --config and its permissions")]
    Read {
        /// The file.
        path: String,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// The text is not valid TOML or a value has the wrong form.
    #[error("{origin}: {message}")]
    Parse {
        /// The file.
        origin: String,
        /// The error, with line and column.
        message: String,
    },
    /// A key that does not exist.
    #[error("{origin}: unknown key '{key}'{hint}")]
    UnknownKey {
        /// The file.
        origin: String,
        /// The key with its section.
        key: String,
        /// The nearest valid key.
        hint: String,
    },
    /// A value is out of range or contradicts another.
    #[error("{key}: {fix}")]
    Invalid {
        /// The key with its section.
        key: &'static str,
        /// The error and the fix.
        fix: String,
    },
}

/// Reads and parses `path`; does not [`Config::validate`].
///
/// # Errors
/// [`ConfigError`] naming file, key and fix.
pub fn from_file(path: &Path) -> Result<Config, ConfigError> {
    let origin = path.display().to_string();
    let text = std::fs::read_to_string(path)
        .map_err(|source| ConfigError::Read { path: origin.clone(), source })?;
    from_text(&text, &origin)
}

/// Parses the text of a configuration file that came from `origin`.
///
/// # Errors
/// [`ConfigError`] naming key and fix.
pub fn from_text(text: &str, origin: &str) -> Result<Config, ConfigError> {
    let parse = |error: toml::de::Error| ConfigError::Parse {
        origin: origin.to_owned(),
        message: error.to_string().trim_end().to_owned(),
    };
    let table: toml::Table = text.parse().map_err(parse)?;
    refuse_unknown(&table, origin)?;
    toml::from_str(text).map_err(parse)
}

fn refuse_unknown(table: &toml::Table, origin: &str) -> Result<(), ConfigError> {
    let unknown = |key: String, hint: String| ConfigError::UnknownKey {
        origin: origin.to_owned(),
        key,
        hint,
    };
    for (name, value) in table {
        let Some(section) = SECTIONS.iter().find(|section| section.path == name) else {
            let found = SECTIONS
                .iter()
                .flat_map(|s| s.fields.iter().map(move |f| (s.path, f.name)))
                .find(|(_, field)| field == name);
            let hint = match found {
                Some((section, field)) => format!(": write it under [{section}] as `{field} = …`"),
                None => nearest(name, SECTIONS.iter().map(|s| s.path))
                    .map_or(String::new(), |near| format!(": did you mean [{near}]?")),
            };
            return Err(unknown(name.clone(), hint));
        };
        let Some(fields) = value.as_table() else { continue };
        for key in fields.keys() {
            if section.fields.iter().any(|field| field.name == key) {
                continue;
            }
            let hint = nearest(key, section.fields.iter().map(|field| field.name))
                .map_or(String::new(), |near| format!(": did you mean '{name}.{near}'?"));
            return Err(unknown(format!("{name}.{key}"), hint));
        }
    }
    Ok(())
}

fn nearest<'a>(word: &str, valid: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    valid.min_by_key(|candidate| distance(word, candidate))
}

/// Levenshtein distance, one row at a time.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let replace = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = replace.min(row[j] + 1).min(row[j + 1] + 1);
        }
    }
    row[b.len()]
}

/// The settings as a TOML file.
#[must_use]
pub fn to_text(config: &Config) -> String {
    toml::to_string(config).unwrap_or_default()
}
