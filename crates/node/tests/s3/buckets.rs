//! Buckets: made, listed, removed, and what they are said to have.

use crate::server::Server;

#[test]
fn buckets_come_and_go() {
    let server = Server::start();
    let s3 = server.client();
    s3.put("/one", "").send().expect(200);
    s3.put("/two", "").send().expect(200);
    // In the first region one's own bucket may be made again, and keeps what it has.
    s3.object("/one/kept", "value");
    assert_eq!(s3.put("/one", "").send().expect(200).header("location"), "/one");
    assert_eq!(s3.bytes("/one/kept"), b"value");
    s3.delete("/one/kept").send().expect(204);
    assert_eq!(s3.get("/").send().expect(200).tags("Name"), ["one", "two"]);
    s3.head("/one").send().expect(200);
    assert!(s3.head("/three").send().expect(404).body.is_empty());
    s3.object("/one/key", "value");
    s3.delete("/one").send().refused(409, "BucketNotEmpty");
    s3.delete("/one/key").send().expect(204);
    s3.delete("/one").send().expect(204);
    s3.delete("/one").send().refused(404, "NoSuchBucket");
    assert_eq!(s3.get("/").send().expect(200).tags("Name"), ["two"]);
    for wrong in [
        "/UPPER",
        "/a_b",
        "/ab",
        "/192.168.0.1",
        "/a..b",
        "/foo-.bar",
        "/foo.-bar",
        "/xn--bucket",
        "/sthree-bucket",
        "/bucket-s3alias",
    ] {
        s3.put(wrong, "").send().refused(400, "InvalidBucketName");
    }
    let place = "<CreateBucketConfiguration><LocationConstraint>nowhere</LocationConstraint></CreateBucketConfiguration>";
    s3.put("/three", place).send().refused(400, "InvalidLocationConstraint");
}

#[test]
fn what_a_bucket_never_has_is_said_so() {
    let server = Server::start();
    let s3 = server.client();
    s3.bucket("plain");
    let ask = |what: &str| s3.get("/plain").query(what, "").send();
    assert!(ask("location").expect(200).text().contains("LocationConstraint"));
    assert!(ask("versioning").expect(200).tag("Status").is_empty());
    assert_eq!(ask("acl").expect(200).tag("Permission"), "FULL_CONTROL");
    for (what, code) in [
        ("policy", "NoSuchBucketPolicy"),
        ("lifecycle", "NoSuchLifecycleConfiguration"),
        ("website", "NoSuchWebsiteConfiguration"),
        ("encryption", "ServerSideEncryptionConfigurationNotFoundError"),
        ("cors", "NoSuchCORSConfiguration"),
        ("tagging", "NoSuchTagSet"),
        ("object-lock", "ObjectLockConfigurationNotFoundError"),
    ] {
        ask(what).refused(404, code);
    }
    // What would change something is refused by its name.
    let versioning = "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";
    let refused = s3.put("/plain", versioning).query("versioning", "").send();
    assert!(refused.refused(501, "NotImplemented").tag("Message").contains("PutBucketVersioning"));
    let encrypted = s3.put("/plain/key", "").header("x-amz-server-side-encryption", "AES256");
    encrypted.send().refused(501, "NotImplemented");
    let cold = s3.put("/plain/key", "").header("x-amz-storage-class", "GLACIER").send();
    cold.refused(400, "InvalidStorageClass");
    s3.get("/plain/key").send().refused(404, "NoSuchKey");
}
