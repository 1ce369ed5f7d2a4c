//! Lists of versions in buckets that have none: each object once, as the latest, with the id `null`.

use crate::server::Server;

#[test]
fn tags_and_lists_of_other_versions_are_refused() {
    let server = Server::start();
    let s3 = server.client();
    s3.bucket("bkt");
    s3.put("/bkt/k", "v").header("x-amz-tagging", "a=1").send().expect(200);
    let tags = "<Tagging><TagSet><Tag><Key>b</Key><Value>2</Value></Tag></TagSet></Tagging>";
    for what in ["tagging", "acl"] {
        let of = |request: crate::client::Request| {
            request.query(what, "").query("versionId", "abc").send()
        };
        of(s3.get("/bkt/k")).refused(501, "NotImplemented");
        of(s3.put("/bkt/k", tags)).refused(501, "NotImplemented");
    }
    let other = s3.delete("/bkt/k").query("tagging", "").query("versionId", "abc").send();
    other.refused(501, "NotImplemented");
    let told = s3.get("/bkt/k").query("tagging", "").query("versionId", "null").send();
    assert_eq!(told.expect(200).tags("Key"), ["a"]);
}

#[test]
fn every_object_is_its_only_version() {
    let server = Server::start();
    let s3 = server.client();
    s3.bucket("bkt");
    let keys = ["a", "b/1", "b/2", "c d", "e"];
    for key in keys {
        s3.object(&format!("/bkt/{key}"), key);
    }
    let ask = || s3.get("/bkt").query("versions", "");
    let all = ask().send().expect(200);
    assert_eq!(all.tags("Key"), keys);
    assert_eq!(all.tags("VersionId"), ["null"; 5]);
    assert_eq!(all.tags("IsLatest"), ["true"; 5]);
    assert_eq!((all.tags("Version").len(), all.tags("Owner").len()), (5, 5));
    assert_eq!((all.tag("Name").as_str(), all.tag("IsTruncated").as_str()), ("bkt", "false"));
    assert!(all.tags("NextKeyMarker").is_empty() && all.tags("DeleteMarker").is_empty());
    // Page by page, over a common prefix, which is a line of its own.
    let (mut seen, mut marker, mut version) = (Vec::new(), String::new(), String::new());
    loop {
        let page = ask().query("max-keys", "1").query("delimiter", "/");
        let page = page.query("key-marker", &marker).query("version-id-marker", &version);
        let page = page.send().expect(200);
        seen.extend(page.tags("Key"));
        seen.extend(page.tags("CommonPrefixes"));
        if page.tag("IsTruncated") == "false" {
            break;
        }
        (marker, version) = (page.tag("NextKeyMarker"), page.tag("NextVersionIdMarker"));
        assert_eq!(version.is_empty(), marker == "b/", "a prefix has no version: {marker}");
    }
    assert_eq!(seen, ["a", "<Prefix>b/</Prefix>", "c d", "e"]);
    let below = ask().query("prefix", "c").query("encoding-type", "url").send().expect(200);
    assert_eq!(below.tags("Key"), ["c%20d"]);
    ask().query("version-id-marker", "null").send().refused(400, "InvalidArgument");
    s3.get("/none").query("versions", "").send().refused(404, "NoSuchBucket");
    // What is listed can be removed by what it is called.
    let objects =
        keys.map(|key| format!("<Object><Key>{key}</Key><VersionId>null</VersionId></Object>"));
    let body = format!("<Delete>{}</Delete>", objects.concat());
    let gone = s3.post("/bkt", body).query("delete", "").send().expect(200);
    assert_eq!((gone.tags("Deleted").len(), gone.tags("Error").len()), (5, 0));
    s3.delete("/bkt").send().expect(204);
}
