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

/// SDKs read the code of a refusal in its document.
#[test]
fn what_is_not_done_is_told_in_a_document() {
    let server = Server::start();
    let s3 = server.client();
    s3.bucket("bkt");
    s3.object("/bkt/k", "value");
    let none = || s3.put("/bkt/k", "other");
    let versioning = "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";
    for ask in [
        s3.put("/bkt", versioning).query("versioning", ""),
        s3.get("/bkt").query("accelerate", ""),
        s3.get("/bkt").query("inventory", ""),
        s3.get("/bkt").query("metadataConfiguration", ""),
        s3.get("/bkt/k").query("torrent", ""),
        s3.get("/bkt/k").query("versionId", "x"),
        s3.get("/bkt/k").query("x-amz-acl", "private"),
        none().query("renameObject", ""),
        none().header("x-amz-checksum-sha512", "AA=="),
        none().header("x-amz-server-side-encryption", "AES256"),
        none().header("x-amz-acl", "aws-exec-read"),
        none().header("if-match", "*").header("if-none-match", "*"),
        none().header("x-amz-write-offset-bytes", "5"),
    ] {
        let told = ask.send().refused(501, "NotImplemented");
        assert_eq!(told.header("content-type"), "application/xml", "{}", told.text());
        assert!(told.text().contains("<Error>") && !told.tag("Resource").is_empty());
    }
    let head = s3.head("/bkt/k").query("versionId", "x").send().expect(501);
    assert!(head.body.is_empty());
    assert_eq!(s3.bytes("/bkt/k"), b"value");
}

/// What cannot be a scope is malformed: it was never signed for this gateway, and nothing of it is not implemented.
#[test]
fn scopes_that_cannot_be_are_malformed() {
    let server = Server::start();
    let s3 = server.client();
    s3.bucket("bkt");
    s3.object("/bkt/k", "value");
    let zeros = "0".repeat(64);
    for scope in [
        "20260131/s3/aws4_request",
        "20260131//s3/aws4_request",
        "us-east-1/s3/aws4_request",
        "x/20260131/us-east-1/s3/aws4_request",
        "20260131/US/s3/aws4_request",
        "20260131/us-east-1/ec2/aws4_request",
        "20260131/us-east-1/sts/aws4_request",
        "20260131/us-east-1/s3/aws5_request",
        "2026-01-31/us-east-1/s3/aws4_request",
        "",
    ] {
        let credential = format!("{}/{scope}", s3.access);
        let line = format!(
            "AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders=host, Signature={zeros}"
        );
        let ask = |method: &str| s3.ask(method, "/bkt/k").signing(Signing::None);
        let in_header = |method: &str| ask(method).header("authorization", &line).send();
        let told = in_header("GET").refused(400, "AuthorizationHeaderMalformed");
        let message = told.tag("Message");
        assert!(message.starts_with("The authorization header is malformed; "), "{message}");
        // By this s3cmd, which signs for `US`, knows what to sign for.
        assert_eq!(told.tag("Region"), "us-east-1");
        assert!(in_header("HEAD").expect(400).body.is_empty());
        let query = [
            ("X-Amz-Algorithm", "AWS4-HMAC-SHA256"),
            ("X-Amz-Credential", &credential),
            ("X-Amz-Date", "20260131T000000Z"),
            ("X-Amz-Expires", "60"),
            ("X-Amz-SignedHeaders", "host"),
            ("X-Amz-Signature", &zeros),
        ];
        let in_query =
            query.into_iter().fold(ask("GET"), |ask, (name, value)| ask.query(name, value));
        let told = in_query.send().refused(400, "AuthorizationQueryParametersError");
        let message = told.tag("Message");
        assert!(message.starts_with("Error parsing the X-Amz-Credential"), "{scope}: {message}");
    }
    let other = s3.get("/bkt/k").signing(Signing::None).header(
        "authorization",
        "AWS4-ECDSA-P256-SHA256 Credential=AK/20260131/s3/aws4_request, SignedHeaders=host, Signature=0",
    );
    other.send().refused(400, "InvalidRequest");
    let half = s3.get("/bkt/k").signing(Signing::None).query("X-Amz-Signature", &zeros);
    half.send().refused(400, "AuthorizationQueryParametersError");
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
    gone("if-match", "*").expect(204);
    gone("if-match", "\"other\"").expect(204);
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
