//! What is not done is refused by its name, and nothing is half done.

use crate::client::Signing;
use crate::server::Server;

const PRIVATE: &str = "<AccessControlPolicy><Owner><ID>millpond</ID></Owner><AccessControlList><Grant>\
    <Grantee xmlns:xsi=\"http://www.w3.org/2001/XMLSchema-instance\" xsi:type=\"CanonicalUser\"><ID>OF</ID></Grantee>\
    <Permission>FULL_CONTROL</Permission></Grant></AccessControlList></AccessControlPolicy>";

#[test]
fn a_subresource_is_never_taken_for_the_whole() {
    let server = Server::start();
    let s3 = server.client();
    s3.bucket("empty");
    s3.bucket("bkt");
    s3.object("/bkt/k", "value");
    let gone = |word: &str, path: &str| s3.delete(path).query(word, "").send();
    for word in ["acl", "logging", "versioning", "notification", "location", "object-lock"] {
        gone(word, "/empty").refused(405, "MethodNotAllowed");
    }
    for word in ["acl", "attributes", "legal-hold", "retention", "torrent", "versions"] {
        gone(word, "/bkt/k").refused(405, "MethodNotAllowed");
    }
    gone("metadataConfiguration", "/empty").refused(501, "NotImplemented");
    for word in ["restore", "uploads", "attributes"] {
        let put = s3.put("/bkt/k", "other").query(word, "").send();
        put.refused(405, "MethodNotAllowed");
    }
    for word in ["renameObject", "append"] {
        let put = s3.put("/bkt/k", "other").query(word, "").send();
        assert!(put.refused(501, "NotImplemented").tag("Message").contains(word));
    }
    let stray = s3.put("/bkt/k", "other").query("partNumber", "1").send();
    stray.refused(400, "InvalidArgument");
    let stray = s3.put("/bkt/k", "other").query("uploadId", "0123456789abcdef").send();
    stray.refused(400, "InvalidArgument");
    s3.head("/empty").send().expect(200);
    assert_eq!(s3.bytes("/bkt/k"), b"value");
}

#[test]
fn headers_that_are_not_done_are_refused_everywhere() {
    let server = Server::start();
    let s3 = server.client();
    s3.bucket("bkt");
    s3.object("/bkt/k", "value");
    let id = s3.post("/bkt/p", "").query("uploads", "").send().expect(200).tag("UploadId");
    let part = || s3.put("/bkt/p", "part").query("partNumber", "1").query("uploadId", &id);
    let encrypted = [
        ("x-amz-server-side-encryption-customer-key", "AAAA"),
        ("x-amz-server-side-encryption", "AES256"),
        ("x-amz-server-side-encryption-aws-kms-key-id", "key"),
    ];
    for (name, value) in encrypted {
        for ask in [s3.put("/bkt/k", "other"), s3.get("/bkt/k"), part()] {
            ask.header(name, value).send().refused(501, "NotImplemented");
        }
    }
    let abort = s3.delete("/bkt/p").query("uploadId", &id);
    let abort = abort.header("x-amz-if-match-initiated-time", "Sat, 28 Nov 2026 00:00:00 GMT");
    abort.send().refused(501, "NotImplemented");
    part().send().expect(200);
    let canned = |it: &str| s3.put("/bkt/k", "other").header("x-amz-acl", it).send();
    canned("aws-exec-read").refused(501, "NotImplemented");
    canned("public-ready").refused(400, "InvalidArgument");
    let empty = s3.put("/bkt/k", "other").header("content-md5", "").send();
    empty.refused(400, "InvalidDigest");
    assert_eq!(s3.bytes("/bkt/k"), b"value");
}

#[test]
fn access_lists_say_what_is_so() {
    let server = Server::start();
    let s3 = server.client();
    s3.bucket("bkt");
    s3.object("/bkt/k", "value");
    for path in ["/bkt", "/bkt/k"] {
        let put = |body: &str| s3.put(path, body).query("acl", "");
        put(&PRIVATE.replace("OF", "millpond")).send().expect(200);
        put("").header("x-amz-acl", "private").send().expect(200);
        put(&PRIVATE.replace("OF", "somebody")).send().refused(400, "InvalidArgument");
        put("").send().refused(400, "MissingSecurityHeader");
        let told = s3.get(path).query("acl", "").send().expect(200);
        assert_eq!((told.tag("ID").as_str(), told.tags("Grant").len()), ("millpond", 1));
    }
    for word in ["policy", "lifecycle", "website", "encryption", "replication"] {
        s3.delete("/bkt").query(word, "").send().expect(204);
        s3.delete("/none").query(word, "").send().refused(404, "NoSuchBucket");
    }
    s3.get("/bkt").query("policyStatus", "").send().refused(404, "NoSuchBucketPolicy");
    s3.head("/bkt").send().expect(200);
}

#[test]
fn conditions_of_removals_are_kept() {
    let server = Server::start();
    let s3 = server.client();
    s3.bucket("bkt");
    s3.object("/bkt/k", "value");
    let modified = s3.head("/bkt/k").send().expect(200).header("last-modified");
    let long_ago = "Thu, 01 Dec 1994 16:00:00 GMT";
    let gone = |name: &str, value: &str| s3.delete("/bkt/k").header(name, value).send();
    gone("x-amz-if-match-size", "6").refused(412, "PreconditionFailed");
    gone("x-amz-if-match-last-modified-time", long_ago).refused(412, "PreconditionFailed");
    let many = |what: &str| {
        let body = format!("<Delete><Object><Key>k</Key>{what}</Object></Delete>");
        s3.post("/bkt", body).query("delete", "").send().expect(200)
    };
    for what in [
        "<Size>6</Size>",
        "<LastModifiedTime>Thu, 01 Dec 1994 16:00:00 GMT</LastModifiedTime>",
        "<ETag>\"other\"</ETag>",
        "<VersionId>other</VersionId>",
    ] {
        let told = many(what);
        assert!(told.tags("Deleted").is_empty(), "{what}: {}", told.text());
        assert_eq!(told.tags("Error").len(), 1, "{what}: {}", told.text());
    }
    assert_eq!(s3.bytes("/bkt/k"), b"value");
    assert_eq!(many("<Size>5</Size>").tags("Deleted").len(), 1);
    s3.object("/bkt/k", "value");
    gone("x-amz-if-match-size", "5").expect(204);
    s3.object("/bkt/k", "value");
    // A second may have gone by since the first one was stored.
    let now = s3.head("/bkt/k").send().expect(200).header("last-modified");
    assert!(now >= modified);
    gone("x-amz-if-match-last-modified-time", &now).expect(204);
    // What is not there is removed.
    gone("x-amz-if-match-size", "5").expect(204);
    assert_eq!(many("<ETag>\"other\"</ETag>").tags("Deleted").len(), 1);
}

#[test]
fn presigned_urls_have_an_end() {
    let server = Server::start();
    let s3 = server.client();
    s3.bucket("bkt");
    s3.object("/bkt/k", "value");
    let ask = |seconds: u64| s3.get("/bkt/k").signing(Signing::Query(seconds)).send();
    assert_eq!(ask(604_800).expect(200).body, b"value");
    ask(604_801).refused(400, "AuthorizationQueryParametersError");
    let short = s3.get("/bkt/k").signing(Signing::Query(1)).skew(-2).send();
    short.refused(403, "AccessDenied");
}

#[test]
fn attributes_tell_parts_page_by_page() {
    let server = Server::start();
    let s3 = server.client();
    s3.bucket("bkt");
    let id = s3.post("/bkt/k", "").query("uploads", "").send().expect(200).tag("UploadId");
    let lens = [5 << 20, 5 << 20, 7];
    let parts = lens.iter().zip(1..).map(|(len, number)| {
        let put = s3.put("/bkt/k", vec![b'p'; *len]).query("partNumber", &number.to_string());
        let etag = put.query("uploadId", &id).send().expect(200).header("etag");
        format!("<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>")
    });
    let body = parts.collect::<Vec<_>>().concat();
    let body = format!("<CompleteMultipartUpload>{body}</CompleteMultipartUpload>");
    s3.post("/bkt/k", body).query("uploadId", &id).send().expect(200);
    let etag = s3.head("/bkt/k").send().expect(200).header("etag");
    let ask = || s3.get("/bkt/k").query("attributes", "");
    let all = ask().header("x-amz-object-attributes", "ETag,ObjectParts,ObjectSize");
    let all = all.send().expect(200);
    assert_eq!(all.tag("ETag"), etag.trim_matches('"'), "without quotes, as AWS tells it");
    assert_eq!(all.tags("PartNumber"), ["1", "2", "3"]);
    assert_eq!(all.tags("Size"), ["5242880", "5242880", "7"]);
    assert_eq!((all.tag("PartsCount").as_str(), all.tag("IsTruncated").as_str()), ("3", "false"));
    let page = ask().header("x-amz-object-attributes", "ObjectParts");
    let page = page.header("x-amz-max-parts", "1").header("x-amz-part-number-marker", "1");
    let page = page.send().expect(200);
    assert_eq!(
        (page.tags("PartNumber"), page.tag("IsTruncated")),
        (vec!["2".into()], "true".into())
    );
    assert_eq!(page.tag("NextPartNumberMarker"), "2");
}

#[test]
fn a_directory_of_a_mount_is_no_bucket() {
    let server = Server::start();
    let s3 = server.client();
    crate::behind::volume(&server).mkdir("/plain", 0o755).unwrap();
    s3.put("/plain", "").send().refused(409, "BucketAlreadyExists");
    s3.head("/plain").send().expect(404);
    assert!(s3.get("/").send().expect(200).tags("Name").is_empty());
}
