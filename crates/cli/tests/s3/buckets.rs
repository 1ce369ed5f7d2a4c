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
}

#[test]
fn the_place_that_a_bucket_is_made_in_is_noted() {
    let server = Server::start();
    let s3 = server.client();
    let make = |path: &str, place: &str| {
        let place = format!("<LocationConstraint>{place}</LocationConstraint>");
        let body = format!("<CreateBucketConfiguration>{place}</CreateBucketConfiguration>");
        s3.put(path, body).send()
    };
    let location = |path: &str| s3.get(path).query("location", "").send().expect(200).text();
    let region = |path: &str| s3.head(path).send().expect(200).header("x-amz-bucket-region");
    for (path, place, wanted) in [
        ("/frankfurt", "eu-central-1", "eu-central-1"),
        ("/own", "somewhere", "somewhere"),
        ("/old", "EU", "eu-west-1"),
    ] {
        make(path, place).expect(200);
        let told = location(path);
        assert!(told.contains(&format!(">{place}</LocationConstraint>")), "{told}");
        assert_eq!(region(path), wanted);
    }
    for (path, place) in [("/classic", "US"), ("/first", "us-east-1"), ("/none", "")] {
        make(path, place).expect(200);
        let told = location(path);
        assert!(told.contains("LocationConstraint") && !told.contains("us-east-1"), "{told}");
        assert_eq!(region(path), "us-east-1");
    }
    let listed = s3.get("/").query("max-buckets", "3").send().expect(200);
    assert_eq!(listed.tags("Name"), ["classic", "first", "frankfurt"]);
    assert_eq!(listed.tags("BucketRegion"), ["us-east-1", "us-east-1", "eu-central-1"]);
    // Other settings leave it alone.
    let tags = "<Tagging><TagSet><Tag><Key>k</Key><Value>v</Value></Tag></TagSet></Tagging>";
    s3.put("/frankfurt", tags).query("tagging", "").send().expect(200);
    assert_eq!(region("/frankfurt"), "eu-central-1");
    // Made again it is as new in the first region only.
    make("/classic", "us-east-1").expect(200);
    s3.put("/classic", "").send().expect(200);
    for (path, place) in [
        ("/frankfurt", "eu-central-1"),
        ("/frankfurt", "eu-west-1"),
        ("/frankfurt", ""),
        ("/classic", "eu-west-1"),
    ] {
        make(path, place).refused(409, "BucketAlreadyOwnedByYou");
    }
    for wrong in ["EU-WEST-1", "eu west", "eu_west_1", "-eu", "eu-", "eu/west"] {
        make("/wrong", wrong).refused(400, "InvalidLocationConstraint");
    }
    let torn = "<CreateBucketConfiguration><LocationConstraint>eu-west-1";
    s3.put("/wrong", torn).send().refused(400, "MalformedXML");
    s3.head("/wrong").send().expect(404);
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
    let cold = s3.put("/plain/key", "").header("x-amz-storage-class", "COLD").send();
    cold.refused(400, "InvalidStorageClass");
    s3.get("/plain/key").send().refused(404, "NoSuchKey");
}
