//! User metadata in the form for backends: headers are printable ASCII, so other values are sent as
//! encoded words (RFC 2047), like AWS and its clients do.

use std::borrow::Cow;
use std::collections::BTreeMap;

use super::store::{ACCESS, CONTENT, OWN, PUT_ID};
use crate::hash::{base64, unbase64, unhex};

/// Begin and end of an encoded word that we write.
const BEGIN: &str = "=?UTF-8?B?";
const END: &str = "?=";
/// Bytes encoded in one word: 60 characters of base64, since a word has at most 75.
const WORD_MAX: usize = 45;

/// Whether a header can carry a text unchanged.
fn is_plain(text: &str) -> bool {
    text.bytes().all(|byte| (b' '..=b'~').contains(&byte))
}

/// A value in the form for a backend.
fn encoded(text: &str) -> Cow<'_, str> {
    if is_plain(text) {
        return Cow::Borrowed(text);
    }
    let (mut words, mut rest) = (Vec::new(), text);
    while !rest.is_empty() {
        // A word does not end inside a character.
        let (word, later) = rest.split_at(rest.floor_char_boundary(WORD_MAX));
        words.push(format!("{BEGIN}{}{END}", base64(word.as_bytes())));
        rest = later;
    }
    Cow::Owned(words.join(" "))
}

/// The bytes of a text in the `Q` encoding.
fn of_quoted(text: &str) -> Option<Vec<u8>> {
    let mut rest = text.as_bytes();
    let mut bytes = Vec::with_capacity(rest.len());
    while let Some((first, later)) = rest.split_first() {
        rest = later;
        bytes.push(match first {
            b'_' => b' ',
            b'=' => {
                let digits = std::str::from_utf8(rest.get(..2)?).ok()?;
                rest = &rest[2..];
                *unhex(digits)?.first()?
            }
            other => *other,
        });
    }
    Some(bytes)
}

/// The bytes of an encoded word; `None` for other text and for unknown character sets.
fn of_word(word: &str) -> Option<Vec<u8>> {
    let mut parts = word.strip_prefix("=?")?.strip_suffix(END)?.splitn(3, '?');
    let (charset, encoding, text) = (parts.next()?, parts.next()?, parts.next()?);
    if !["utf-8", "us-ascii"].iter().any(|known| charset.eq_ignore_ascii_case(known)) {
        return None;
    }
    match encoding {
        "B" | "b" => unbase64(text),
        "Q" | "q" => of_quoted(text),
        _ => None,
    }
}

/// A value in the form of the client. Text that is not entirely encoded words stays unchanged.
fn decoded(text: &str) -> Cow<'_, str> {
    let words: Option<Vec<_>> = text.split_ascii_whitespace().map(of_word).collect();
    let bytes = words.filter(|words| !words.is_empty()).map(|words| words.concat());
    bytes.and_then(|bytes| String::from_utf8(bytes).ok()).map_or(Cow::Borrowed(text), Cow::Owned)
}

/// Marks a client's name that equals a name added by gateways. Then the client is itself a gateway,
/// with this one as its backend.
const OF: &str = "of-";

/// The rest of a name after the prefix of gateways, if the name is one of those that gateways add,
/// with any number of marks.
fn added(name: &str) -> Option<&str> {
    let rest = name.strip_prefix(OWN)?;
    [PUT_ID, ACCESS, CONTENT]
        .contains(&&*format!("{OWN}{}", rest.trim_start_matches(OF)))
        .then_some(rest)
}

/// A name in the form for a backend: distinct from those that this gateway adds.
fn name_there(name: &str) -> Cow<'_, str> {
    added(name).map_or(Cow::Borrowed(name), |rest| Cow::Owned(format!("{OWN}{OF}{rest}")))
}

/// A name in the form of the client.
fn name_here(name: &str) -> Cow<'_, str> {
    let rest = added(name).and_then(|rest| rest.strip_prefix(OF));
    rest.map_or(Cow::Borrowed(name), |rest| Cow::Owned(format!("{OWN}{rest}")))
}

/// User metadata in the form for a backend.
pub(crate) fn sent(meta: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let there = |(name, value): (&String, &String)| {
        (name_there(name).into_owned(), encoded(value).into_owned())
    };
    meta.iter().map(there).collect()
}

/// User metadata of a backend in the form stored here, without those that gateways added.
pub(crate) fn kept(meta: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let is_clients = |name: &str| ![PUT_ID, ACCESS, CONTENT].contains(&name);
    let clients = meta.iter().filter(|(name, _)| is_clients(name));
    clients
        .map(|(name, value)| (name_here(name).into_owned(), decoded(value).into_owned()))
        .collect()
}

/// Bytes of user metadata at a backend, names and values.
pub(crate) fn len(meta: &BTreeMap<String, String>) -> usize {
    meta.iter().map(|(name, value)| name_there(name).len() + encoded(value).len()).sum()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::{ACCESS, CONTENT, PUT_ID, decoded, encoded, is_plain, kept, len, sent};

    #[test]
    fn every_text_goes_as_a_header_and_comes_back() {
        let texts = ["", "plain ~", "a\nb", "\0", "\t", "\u{7f}", "naïve", "日本", "a b ü  "];
        let long = ["ü".repeat(700), "a\u{10ffff}".repeat(300), "\r\n".repeat(23)];
        for text in texts.into_iter().chain(long.iter().map(String::as_str)) {
            let there = encoded(text);
            assert!(is_plain(&there), "{there}");
            assert!(is_plain(text) || there.split(' ').all(|word| word.len() <= 75), "{there}");
            assert_eq!(decoded(&there), text);
        }
        assert_eq!(encoded("naïve"), "=?UTF-8?B?bmHDr3Zl?=");
        // Chained gateways keep each other's metadata.
        let names =
            ["millpond-put", "millpond-of-put", "millpond-of-of-access", "millpond-ofput", "x"];
        let meta: BTreeMap<_, _> = names.map(|name| (name.to_owned(), name.to_owned())).into();
        let there = sent(&meta);
        assert!(
            [PUT_ID, ACCESS, CONTENT].iter().all(|name| !there.contains_key(*name)),
            "{there:?}"
        );
        assert_eq!(
            there.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>(),
            len(&meta)
        );
        let mut marked = there;
        marked.insert(PUT_ID.to_owned(), "0".to_owned());
        assert_eq!(kept(&marked), meta);
        let meta = BTreeMap::from([("a".to_owned(), "a\nb".to_owned())]);
        let there = sent(&meta);
        assert_eq!(len(&meta), 1 + there["a"].len());
        assert_eq!(kept(&there), meta);
    }

    #[test]
    fn words_of_others_are_read_and_what_is_none_stays() {
        for (text, is) in [
            ("=?UTF-8?Q?na=C3=AFve_=3F?=", "naïve ?"),
            // AWS splits at any byte.
            ("=?utf-8?q?a=C3?= =?utf-8?q?=BC?=", "aü"),
            ("=?US-ASCII?B?YQ==?=", "a"),
        ] {
            assert_eq!(decoded(text), is);
        }
        for text in [
            "=?UTF-8?B?YQ==",
            "=?UTF-8?B?%?=",
            "=?UTF-8?Q?=C3?=",
            "=?UTF-8?Q?=C?=",
            "=?UTF-8?Q?=ü?=",
            "=?ISO-8859-1?Q?a=E4?=",
            "=?UTF-8?X?a?=",
            "=?=",
            "word =?UTF-8?Q?a?=",
            "  ",
        ] {
            assert_eq!(decoded(text), text);
        }
    }
}
