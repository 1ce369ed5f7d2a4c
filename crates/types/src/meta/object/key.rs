//! Conversion of object keys to file names, and back (RFC 0019).
//!
//! A key is split at `/`, and each of its segments is a name. Names that begin with `.%` stand for
//! segments that no file system can hold, for the object beside a directory of its name, and for
//! the beginnings of segments that are too long. A mount may make such names too, but no others
//! with this prefix.
//!
//! | segment | name |
//! |---|---|
//! | empty | `.%empty` |
//! | `.` | `.%dot` |
//! | `..` | `.%dotdot` |
//! | begins with `.%` | `.%%` and the segment, if that fits |
//! | does not fit | directory `.%long.` and the first 247 bytes; in it the rest, likewise |
//!
//! The entries of a directory are found in key order through *places*. A file has one place, the
//! bytes of its segment. A directory has two: these bytes, and for its content these bytes followed
//! by `/`. The directory of a segment's beginning has one: these bytes followed by NUL, because its
//! content sorts among the longer segments with this beginning.

use super::super::Name;

/// Longest key of an object in bytes, as in S3.
pub const OBJECT_KEY_MAX: usize = 1024;
/// Name of the object with the same key as the directory that contains it.
pub const SELF_NAME: &[u8] = b".%self";

/// Prefix of all names with a special meaning.
const RESERVED: &[u8] = b".%";
const EMPTY: &[u8] = b".%empty";
const DOT: &[u8] = b".%dot";
const DOT_DOT: &[u8] = b".%dotdot";
const ESCAPED: &[u8] = b".%%";
const LONG: &[u8] = b".%long.";
/// Bytes of the segment in the name of a directory for a segment's beginning.
pub const LONG_BYTES: usize = 247;
/// Suffix of the place of a directory's content.
pub const INSIDE: u8 = b'/';
/// Suffix of the place of a directory for a segment's beginning.
pub const BEGINNING: u8 = 0;

/// Why a key is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ObjectKeyError {
    /// The key is empty.
    #[error("a key must have at least one byte")]
    Empty,
    /// The key is too long.
    #[error("the key has {0} bytes: at most {max} are allowed", max = OBJECT_KEY_MAX)]
    TooLong(usize),
    /// The key contains NUL, or is not UTF-8.
    #[error("a key must be UTF-8 without NUL")]
    NoText,
}

/// Meaning of a name in a directory of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning<'a> {
    /// A segment of a key.
    Segment(&'a [u8]),
    /// A directory: the first bytes of segments that are too long.
    Beginning(&'a [u8]),
    /// The object with the same key as the directory that contains it.
    Itself,
    /// None: no key has this name.
    Nothing,
}

/// Checks that an object may have this key.
///
/// # Errors
/// [`ObjectKeyError`].
pub fn check_key(key: &[u8]) -> Result<(), ObjectKeyError> {
    if key.is_empty() {
        return Err(ObjectKeyError::Empty);
    }
    if key.len() > OBJECT_KEY_MAX {
        return Err(ObjectKeyError::TooLong(key.len()));
    }
    if key.contains(&0) || std::str::from_utf8(key).is_err() {
        return Err(ObjectKeyError::NoText);
    }
    Ok(())
}

/// The path of names of a key: directories, and a file at the end.
///
/// # Errors
/// [`ObjectKeyError`].
pub fn names_of_key(key: &[u8]) -> Result<Vec<Name>, ObjectKeyError> {
    check_key(key)?;
    let mut names = Vec::new();
    for segment in key.split(|byte| *byte == INSIDE) {
        let mut rest = segment;
        while let Some((beginning, behind)) = split_long(rest) {
            names.extend(Name::new(&[LONG, beginning].concat()));
            rest = behind;
        }
        names.extend(short_name(rest));
    }
    Ok(names)
}

/// Splits a segment that is too long for a name into its beginning and the rest.
#[must_use]
pub fn split_long(segment: &[u8]) -> Option<(&[u8], &[u8])> {
    let escape = if segment.starts_with(RESERVED) { ESCAPED.len() } else { 0 };
    let fits = segment.len() + escape <= Name::BYTES_MAX;
    (!fits).then(|| segment.split_at(LONG_BYTES))
}

/// Name of the directory for segments with this beginning; `None` for another number of bytes.
#[must_use]
pub fn beginning_name(beginning: &[u8]) -> Option<Name> {
    let fits = beginning.len() == LONG_BYTES;
    Name::new(&[LONG, beginning].concat()).ok().filter(|_| fits)
}

/// The name of a segment; `None` if it is too long.
#[must_use]
pub fn short_name(segment: &[u8]) -> Option<Name> {
    match segment {
        b"" => Name::new(EMPTY).ok(),
        b"." => Name::new(DOT).ok(),
        b".." => Name::new(DOT_DOT).ok(),
        _ if segment.starts_with(RESERVED) => Name::new(&[ESCAPED, segment].concat()).ok(),
        _ => Name::new(segment).ok(),
    }
}

/// The meaning of a name of a directory or of another inode.
#[must_use]
pub fn meaning(name: &Name, is_dir: bool) -> Meaning<'_> {
    let bytes = name.as_bytes();
    if !bytes.starts_with(RESERVED) {
        return Meaning::Segment(bytes);
    }
    match bytes {
        EMPTY => return Meaning::Segment(b""),
        DOT => return Meaning::Segment(b"."),
        DOT_DOT => return Meaning::Segment(b".."),
        SELF_NAME if !is_dir => return Meaning::Itself,
        _ => {}
    }
    if let Some(segment) = bytes.strip_prefix(ESCAPED) {
        let is_needed = segment.starts_with(RESERVED);
        return if is_needed { Meaning::Segment(segment) } else { Meaning::Nothing };
    }
    match bytes.strip_prefix(LONG) {
        Some(beginning) if is_dir && beginning.len() == LONG_BYTES => Meaning::Beginning(beginning),
        _ => Meaning::Nothing,
    }
}

/// Whether `segment` may be in the directory of this `beginning`, that is, both together are too
/// long for one name.
#[must_use]
pub fn belongs_behind(beginning: &[u8], segment: &[u8]) -> bool {
    split_long(&[beginning, segment].concat()).is_some()
}

/// The places of a name in key order.
#[must_use]
pub fn places(name: &Name, is_dir: bool) -> Vec<Vec<u8>> {
    match meaning(name, is_dir) {
        Meaning::Segment(segment) if is_dir => {
            vec![segment.to_vec(), [segment, &[INSIDE]].concat()]
        }
        Meaning::Segment(segment) => vec![segment.to_vec()],
        Meaning::Beginning(beginning) => vec![[beginning, &[BEGINNING]].concat()],
        Meaning::Itself | Meaning::Nothing => Vec::new(),
    }
}

/// The name that may be at a place; `None` when there is none.
#[must_use]
pub fn name_at(place: &[u8]) -> Option<Name> {
    match place.split_last() {
        Some((&BEGINNING, beginning)) => beginning_name(beginning),
        Some((&INSIDE, segment)) => short_name(segment),
        _ => short_name(place),
    }
}

/// Whether a directory in the root may be a bucket, by its name: 3 to 63 lower-case letters,
/// digits, dots and hyphens; it begins and ends with a letter or digit, and has no two dots in a
/// row.
#[must_use]
pub fn is_bucket_name(name: &[u8]) -> bool {
    let is_plain = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let ends = [name.first(), name.last()].into_iter().flatten().all(is_plain);
    let all = name.iter().all(|byte| is_plain(byte) || matches!(byte, b'.' | b'-'));
    (3..=63).contains(&name.len()) && ends && all && !name.windows(2).any(|two| two == b"..")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The key of a path of names, from the meaning of each name.
    fn key_of(names: &[Name]) -> Option<Vec<u8>> {
        let mut segments: Vec<Vec<u8>> = vec![Vec::new()];
        for (n, name) in names.iter().enumerate() {
            let is_last = n + 1 == names.len();
            let open = segments.last_mut()?;
            match meaning(name, !is_last) {
                Meaning::Segment(segment) => {
                    open.extend_from_slice(segment);
                    if !is_last {
                        segments.push(Vec::new());
                    }
                }
                Meaning::Beginning(beginning) => open.extend_from_slice(beginning),
                Meaning::Itself | Meaning::Nothing => return None,
            }
        }
        Some(segments.join(&INSIDE))
    }

    fn key() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            Just("/".to_owned()),
            Just(".".to_owned()),
            Just(".%".to_owned()),
            Just(".%self".to_owned()),
            Just(".%empty".to_owned()),
            Just("%".to_owned()),
            "[a-c]{1,3}",
            "[^\u{0}]{1,4}",
            Just("x".repeat(200)),
            Just(".%long.".to_owned()),
            Just("\u{20ac}".repeat(90)),
        ];
        prop::collection::vec(piece, 1..12)
            .prop_map(|pieces| pieces.concat().into_bytes())
            .prop_filter("a key", |key| check_key(key).is_ok())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn every_key_comes_back(key in key()) {
            let names = names_of_key(&key).unwrap();
            prop_assert_eq!(key_of(&names), Some(key.clone()));
            for name in &names {
                prop_assert!(name.as_bytes() != SELF_NAME);
                let is_dir = meaning(name, false) == Meaning::Nothing;
                for place in places(name, is_dir) {
                    let there = name_at(&place);
                    prop_assert_eq!(there.as_ref(), Some(name));
                }
            }
        }

        #[test]
        fn keys_that_differ_have_other_names(one in key(), other in key()) {
            let same = names_of_key(&one) == names_of_key(&other);
            prop_assert_eq!(same, one == other);
        }
    }

    fn shown(key: &str) -> Vec<String> {
        names_of_key(key.as_bytes()).unwrap().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn segments_that_no_file_system_holds() {
        assert_eq!(shown("a/b"), ["a", "b"]);
        assert_eq!(shown("/"), [".%empty", ".%empty"]);
        assert_eq!(shown("a//b/"), ["a", ".%empty", "b", ".%empty"]);
        assert_eq!(shown("./.."), [".%dot", ".%dotdot"]);
        assert_eq!(shown(".%self/.%"), [".%%.%self", ".%%.%"]);
        assert_eq!(shown("...%"), ["...%"]);
        let long = "x".repeat(500);
        assert_eq!(shown(&long), [format!(".%long.{}", &long[..247]), long[247..].to_owned()]);
        assert_eq!(shown(&"x".repeat(255)), ["x".repeat(255)]);
        assert_eq!(shown(&format!(".%{}", "x".repeat(251))).len(), 2);
        assert_eq!(shown(&"/".repeat(1024)).len(), 1025);
    }

    #[test]
    fn what_is_no_key_is_refused() {
        assert_eq!(names_of_key(b""), Err(ObjectKeyError::Empty));
        assert_eq!(names_of_key(&[b'x'; 1025]), Err(ObjectKeyError::TooLong(1025)));
        assert_eq!(names_of_key(b"a\0"), Err(ObjectKeyError::NoText));
        assert_eq!(names_of_key(b"\xff"), Err(ObjectKeyError::NoText));
    }

    #[test]
    fn names_that_stand_for_nothing() {
        let nothing = |text: &str, is_dir| {
            meaning(&Name::new(text.as_bytes()).unwrap(), is_dir) == Meaning::Nothing
        };
        assert!(nothing(".%", false) && nothing(".%x", true) && nothing(".%%x", false));
        assert!(nothing(".%self", true) && nothing(".%long.x", true));
        let beginning = format!(".%long.{}", "x".repeat(247));
        assert!(nothing(&beginning, false) && !nothing(&beginning, true));
    }

    #[test]
    fn buckets_have_the_names_of_s3() {
        for good in ["abc", "a-b.c", "0123456789"] {
            assert!(is_bucket_name(good.as_bytes()), "{good}");
        }
        let long = "x".repeat(64);
        for bad in ["ab", "Abc", "a..b", "-ab", "ab.", "a_b", "lost+found", &long] {
            assert!(!is_bucket_name(bad.as_bytes()), "{bad}");
        }
    }
}
