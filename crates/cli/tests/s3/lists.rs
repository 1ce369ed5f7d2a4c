//! Lists of objects: order, pages, prefixes, delimiters, encodings.

use crate::client::Client;
use crate::server::Server;

const KEYS: [&str; 9] = ["a", "a/b", "a/b/c", "a0", "b/", "b//x", "c d", "ä/ö", "z+%"];

fn filled(s3: &Client) {
    s3.bucket("lists");
    // In another order than they are listed.
    for key in KEYS.iter().rev() {
        s3.object(&format!("/lists/{key}"), *key);
    }
}

#[test]
fn keys_are_listed_in_the_order_of_their_bytes() {
    let server = Server::start();
    let s3 = server.client();
    filled(&s3);
    let mut sorted = KEYS;
    sorted.sort_unstable();
    let all = s3.get("/lists").query("list-type", "2").send().expect(200);
    assert_eq!(all.tags("Key"), sorted);
    assert_eq!((all.tag("KeyCount").as_str(), all.tag("IsTruncated").as_str()), ("9", "false"));
    assert_eq!(all.tags("Size").len(), 9);
    assert!(all.tags("Owner").is_empty());
    let owned = s3.get("/lists").query("list-type", "2").query("fetch-owner", "true").send();
    assert_eq!(owned.tags("Owner").len(), 9);
    let first = s3.get("/lists").send().expect(200);
    assert_eq!(first.tags("Key"), sorted);
    assert_eq!(first.tags("Owner").len(), 9);
    for key in KEYS {
        assert_eq!(s3.bytes(&format!("/lists/{key}")), key.as_bytes(), "{key}");
    }
    // Encoded, a client can read any key.
    let encoded = s3.get("/lists").query("list-type", "2").query("encoding-type", "url").send();
    assert!(encoded.tags("Key").contains(&"z%2B%25".to_owned()), "{}", encoded.text());
}

#[test]
fn pages_go_on_where_the_last_one_ended() {
    let server = Server::start();
    let s3 = server.client();
    filled(&s3);
    let mut sorted = KEYS;
    sorted.sort_unstable();
    for max in ["1", "2", "4"] {
        let (mut keys, mut token) = (Vec::new(), String::new());
        loop {
            let mut ask = s3.get("/lists").query("list-type", "2").query("max-keys", max);
            if !token.is_empty() {
                ask = ask.query("continuation-token", &token);
            }
            let page = ask.send().expect(200);
            assert!(page.tags("Key").len() <= max.parse().unwrap());
            keys.extend(page.tags("Key"));
            token = page.tag("NextContinuationToken");
            assert_eq!(page.tag("IsTruncated") == "true", !token.is_empty());
            if token.is_empty() {
                break;
            }
        }
        assert_eq!(keys, sorted, "by {max}");
        let (mut keys, mut marker) = (Vec::<String>::new(), String::new());
        loop {
            let ask = s3.get("/lists").query("max-keys", max).query("marker", &marker);
            let page = ask.send().expect(200);
            keys.extend(page.tags("Key"));
            marker = keys.last().unwrap().clone();
            if page.tag("IsTruncated") == "false" {
                break;
            }
        }
        assert_eq!(keys, sorted, "by {max}");
    }
    let after = s3.get("/lists").query("list-type", "2").query("start-after", "c d").send();
    assert_eq!(after.tags("Key"), ["z+%", "ä/ö"]);
    let none = s3.get("/lists").query("list-type", "2").query("max-keys", "0").send().expect(200);
    assert!(none.tags("Key").is_empty() && none.tag("IsTruncated") == "false");
    let negative = s3.get("/lists").query("max-keys", "-1").send();
    negative.refused(400, "InvalidArgument");
    let strange = s3.get("/lists").query("list-type", "2").query("continuation-token", "x").send();
    strange.refused(400, "InvalidArgument");
    s3.get("/nothing").query("list-type", "2").send().refused(404, "NoSuchBucket");
}

#[test]
fn a_delimiter_gathers_what_lies_behind_it() {
    let server = Server::start();
    let s3 = server.client();
    filled(&s3);
    let list = |prefix: &str| {
        let ask = s3.get("/lists").query("list-type", "2").query("delimiter", "/");
        let page = ask.query("prefix", prefix).send().expect(200);
        let prefixes = page.tags("CommonPrefixes");
        let prefixes: Vec<String> =
            prefixes.iter().map(|it| it.replace("<Prefix>", "").replace("</Prefix>", "")).collect();
        (page.tags("Key"), prefixes)
    };
    let (keys, prefixes) = list("");
    assert_eq!(keys, ["a", "a0", "c d", "z+%"]);
    assert_eq!(prefixes, ["a/", "b/", "ä/"]);
    assert_eq!(list("a/"), (vec!["a/b".to_owned()], vec!["a/b/".to_owned()]));
    assert_eq!(list("b/"), (vec!["b/".to_owned()], vec!["b//".to_owned()]));
    assert_eq!(list("nothing"), (vec![], vec![]));
    // Page by page: a prefix is told once.
    let (mut seen, mut marker) = (Vec::new(), String::new());
    loop {
        let ask = s3.get("/lists").query("delimiter", "/").query("max-keys", "1");
        let page = ask.query("marker", &marker).send().expect(200);
        seen.extend(page.tags("Key"));
        seen.extend(page.tags("CommonPrefixes"));
        if page.tag("IsTruncated") == "false" {
            break;
        }
        marker = page.tag("NextMarker");
    }
    assert_eq!(seen.len(), 7, "{seen:?}");
}
