//! Objects whose rule asks for another number of replicas than the pool has of everything.

use crate::backed::Pair;
use crate::behind::volume;
use crate::parts::{begin, complete, part};
use crate::server::{Server, heard, until};

const MIB: usize = 1 << 20;
/// Objects of one replica.
const LOST: [&str; 4] = ["/data/usual/a", "/data/usual/b", "/data/usual/c", "/data/usual/d"];

impl Pair {
    /// What a command says that is refused.
    fn refused(&self, words: &[&str]) -> String {
        let output = self.front.command(words);
        assert!(!output.status.success(), "{words:?} is done");
        String::from_utf8(output.stderr).unwrap()
    }

    fn status(&self) -> serde_json::Value {
        serde_json::from_str(&self.done(&["admin", "status", "--json"])).unwrap()
    }

    /// Waits until an object can be read again, which then has these bytes.
    fn whole_again(&self, key: &str, wanted: &[u8]) {
        until(key, || {
            let got = self.s3.get(key).send();
            got.is(200).then(|| assert!(got.body == wanted, "{key}"))
        });
    }

    /// What nobody has any more is refused: an answer that is begun could only break off.
    fn refuses_what_is_lost(&self) {
        let gone = LOST.into_iter().map(|key| self.s3.get(key).send()).find(|got| !got.is(200));
        gone.expect("nodes that are gone had bytes").refused(503, "ServiceUnavailable");
    }
}

/// The words that set a rule with so many replicas.
fn rule<'a>(prefix: &'a str, replicas: &'a str) -> [&'a str; 8] {
    ["s3", "rules", "set", "data", prefix, "--mode=write-back", "--replicas", replicas]
}

/// Three nodes, of which everything has one replica, and two are killed.
#[test]
fn what_a_rule_wants_three_of_outlives_two_nodes() {
    let pair = Pair::start(&[], &[]);
    let (s3, safe) = (&pair.s3, rule("safe/", "3"));
    let error = pair.refused(&safe);
    assert!(
        error.contains("chains of 1 replicas: first run `millpond admin form --replicas 3`"),
        "{error}"
    );
    let form = ["admin", "form", "--replicas", "3"];
    let error = pair.refused(&form);
    assert!(error.contains("3 replicas need as many failure domains, but there are 1"), "{error}");

    let others: Vec<Server> = (0..2).map(|_| pair.front.node()).collect();
    until("they are there", || pair.front.command(&form).status.success().then_some(()));
    assert!(pair.refused(&form).contains("already"));
    let whole = |it: &serde_json::Value| it["chains_whole"] == 512 && it["chains_degraded"] == 0;
    let status = until("they have chains", || Some(pair.status()).filter(whole));
    assert_eq!((&status["replicas"], &status["tables"]), (&1.into(), &vec![3].into()));
    assert!(pair.done(&["admin", "status"]).contains("512 with their 1 or 3 replicas"));
    pair.done(&safe);
    pair.done(&rule("usual/", "1"));
    let rules = pair.done(&["s3", "rules", "data", "--json"]);
    let rules: serde_json::Value = serde_json::from_str(&rules).unwrap();
    let of = |prefix: &str| {
        let found = rules.as_array().unwrap().iter().find(|it| it["prefix"] == prefix);
        found.unwrap()["replicas"].clone()
    };
    assert_eq!((of("safe/"), of("usual/")), (3.into(), serde_json::Value::Null));
    heard();

    // In every way in which an object comes here.
    let bytes = |n: u8| vec![n; MIB + usize::from(n)];
    s3.object("/data/safe/put", bytes(1));
    s3.object("/data/usual/put", bytes(2));
    let copy = s3.put("/data/safe/copy", "").header("x-amz-copy-source", "/data/usual/put");
    copy.send().expect(200);
    let id = begin(s3, "/data/safe/parts");
    let at = ("/data/safe/parts", id.as_str());
    let sent = [(1, vec![3; 5 * MIB]), (2, vec![4; 9])];
    let etags = sent.clone().map(|(n, body)| (n, part(s3, at, n, body).expect(200).header("etag")));
    complete(s3, at, &etags).expect(200);
    pair.there.object("/there/safe/far", bytes(5));
    assert_eq!(s3.bytes("/data/safe/far"), bytes(5));
    until("it is kept", || (pair.state("/data/safe/far") == "clean").then_some(()));
    s3.object("/data/safe/small", "small");
    // Chunks enough that the nodes that are killed have some of them.
    for key in LOST {
        s3.object(key, vec![7; 2 * MIB]);
    }
    // It lies with the metadata for some seconds only.
    s3.object("/data/safe/medium", vec![8; 40_000]);

    let volume = volume(&pair.front);
    let attr = |key: &str| {
        let object = volume.get_object("data", key.as_bytes(), false).unwrap();
        object.unwrap().attr
    };
    let layout = |key: &str| attr(key).layout;
    until("its bytes go to chunks", || (!attr("safe/medium").is_stored()).then_some(()));
    for key in ["put", "copy", "parts", "far", "medium"] {
        let layout = layout(&format!("safe/{key}"));
        assert_eq!((layout.table, layout.chains), (3, 256), "{key}");
    }
    assert_eq!((layout("usual/put").table, layout("usual/put").chains), (0, 256));

    drop(others);
    let whole = |key: &str, wanted: &[u8]| pair.whole_again(&format!("/data/safe/{key}"), wanted);
    whole("put", &bytes(1));
    whole("copy", &bytes(2));
    whole("parts", &sent.map(|(_, body)| body).concat());
    whole("far", &bytes(5));
    whole("small", b"small");
    whole("medium", &vec![8; 40_000]);
    s3.object("/data/safe/later", bytes(6));
    whole("later", &bytes(6));
    pair.refuses_what_is_lost();
}
