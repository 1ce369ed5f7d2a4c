//! Lists of backed buckets against what they should be, at random.

use std::collections::{BTreeMap, BTreeSet};

use crate::backed::Pair;
use crate::client::Client;

const NASTY: [&str; 16] = [
    "a",
    "a/",
    "a//b",
    "a/b",
    "a/b/c",
    "a b",
    "b/&<>\"'",
    "b/%2F",
    "b/..",
    "b/./x",
    "c/ä/ö",
    "c/\u{10fffd}",
    "c",
    "/x",
    "z+%",
    "d/e/f/g",
];

/// A sequence that is the same in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: usize) -> usize {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % below
    }
}

fn plain(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), text.bytes());
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let digits = [rest.next().unwrap(), rest.next().unwrap()];
            let digits = std::str::from_utf8(&digits).unwrap().to_owned();
            bytes.push(u8::from_str_radix(&digits, 16).unwrap());
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).unwrap()
}

/// All keys and prefixes, page by page.
fn listed(s3: &Client, (prefix, delimiter, max): (&str, &str, usize)) -> Vec<String> {
    let (mut all, mut token) = (Vec::new(), String::new());
    loop {
        let ask = s3.get("/data").query("list-type", "2").query("encoding-type", "url");
        let ask = ask.query("max-keys", &max.to_string()).query("prefix", prefix);
        let ask = if delimiter.is_empty() { ask } else { ask.query("delimiter", delimiter) };
        let ask = if token.is_empty() { ask } else { ask.query("continuation-token", &token) };
        let page = ask.send().expect(200);
        let text = |it: String| plain(&it.replace("<Prefix>", "").replace("</Prefix>", ""));
        let mut names: Vec<String> = page.tags("Key").into_iter().map(|it| plain(&it)).collect();
        names.extend(page.tags("CommonPrefixes").into_iter().map(text));
        names.sort();
        assert!(names.len() <= max, "{names:?}");
        all.extend(names);
        token = page.tag("NextContinuationToken");
        if token.is_empty() {
            return all;
        }
    }
}

fn expected(keys: &BTreeMap<String, String>, prefix: &str, delimiter: &str) -> Vec<String> {
    let below = keys.keys().filter(|it| it.starts_with(prefix));
    let names: BTreeSet<String> = below
        .map(|key| {
            let rest = &key[prefix.len()..];
            let cut = rest.find(delimiter).filter(|_| !delimiter.is_empty());
            cut.map_or(key.clone(), |at| key[..prefix.len() + at + delimiter.len()].to_owned())
        })
        .collect();
    names.into_iter().collect()
}

#[test]
fn a_list_is_of_both_sides_without_what_was_removed() {
    // One removal or object per second goes there: most of what is done here waits.
    let pair = Pair::start(&["--requests-per-s", "1"], &["--prefix", "below/"]);
    let (s3, there) = (&pair.s3, &pair.there);
    let (mut keys, mut dice) = (BTreeMap::new(), Dice(7));
    for key in NASTY {
        if dice.roll(3) > 0 {
            there.object(&format!("/there/below/{key}"), "there");
            keys.insert(key.to_owned(), "there".to_owned());
        }
    }
    there.object("/there/elsewhere", "not ours");
    for round in 0..12 {
        for _ in 0..3 {
            let key = NASTY[dice.roll(NASTY.len())];
            let path = format!("/data/{key}");
            match dice.roll(4) {
                0 | 1 => {
                    s3.delete(&path).send().expect(204);
                    keys.remove(key);
                }
                2 => {
                    let body = format!("here {round}");
                    s3.object(&path, body.clone());
                    keys.insert(key.to_owned(), body);
                }
                _ => {
                    let got = s3.get(&path).send();
                    let body = keys.get(key).map(|it| it.clone().into_bytes());
                    assert_eq!(got.is(200).then_some(got.body), body, "{key}");
                }
            }
        }
        for (prefix, delimiter) in
            [("", ""), ("", "/"), ("a/", "/"), ("b", ""), ("c/", "/"), ("a", "b")]
        {
            let max = 1 + dice.roll(6);
            let got = listed(s3, (prefix, delimiter, max));
            let wanted = expected(&keys, prefix, delimiter);
            assert_eq!(got, wanted, "round {round}: '{prefix}' '{delimiter}' by {max}");
        }
    }
    for (key, body) in &keys {
        assert_eq!(s3.bytes(&format!("/data/{key}")), body.as_bytes(), "{key}");
    }
}
