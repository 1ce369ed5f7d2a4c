//! Storage classes: they are noted and told, and change nothing else.

use crate::backed::Pair;
use crate::client::{Client, Request, Signing};
use crate::parts::{complete, part};
use crate::server::{Server, heard, until};

const CLASSES: [&str; 12] = [
    "DEEP_ARCHIVE",
    "EXPRESS_ONEZONE",
    "FSX_ONTAP",
    "FSX_OPENZFS",
    "GLACIER",
    "GLACIER_IR",
    "INTELLIGENT_TIERING",
    "ONEZONE_IA",
    "OUTPOSTS",
    "REDUCED_REDUNDANCY",
    "SNOW",
    "STANDARD_IA",
];

fn classed(ask: Request, class: &str) -> Request {
    ask.header("x-amz-storage-class", class)
}

/// The class of an object as its headers tell it.
fn class_of(s3: &Client, path: &str) -> String {
    let head = s3.head(path).send().expect(200).header("x-amz-storage-class");
    assert_eq!(s3.get(path).send().expect(200).header("x-amz-storage-class"), head);
    let ask = s3.get(path).query("attributes", "");
    let told = ask.header("x-amz-object-attributes", "StorageClass").send().expect(200);
    let usual = if head.is_empty() { "STANDARD" } else { &head };
    assert_eq!(told.tag("StorageClass"), usual);
    head
}

#[test]
fn objects_have_the_class_that_they_are_put_with() {
    let server = Server::start();
    let s3 = server.client();
    s3.bucket("bkt");
    for class in CLASSES {
        let path = format!("/bkt/{class}");
        classed(s3.put(&path, "value"), class).send().expect(200);
        assert_eq!(class_of(&s3, &path), class);
        assert_eq!(s3.bytes(&path), b"value");
    }
    // The usual one is not told in headers.
    s3.object("/bkt/a", "value");
    classed(s3.put("/bkt/b", "value"), "STANDARD").send().expect(200);
    let plain = ["/bkt/a", "/bkt/b"].map(|path| class_of(&s3, path));
    assert_eq!(plain, ["", ""]);
    let told = [&CLASSES[..], &["STANDARD"; 2]].concat();
    for list in [
        s3.get("/bkt"),
        s3.get("/bkt").query("list-type", "2"),
        s3.get("/bkt").query("versions", ""),
    ] {
        assert_eq!(list.send().expect(200).tags("StorageClass"), told);
    }
    for wrong in ["COLD", "glacier", "STANDARD,GLACIER"] {
        let put = classed(s3.put("/bkt/wrong", "value"), wrong);
        put.send().refused(400, "InvalidStorageClass");
    }
    let begin = s3.post("/bkt/wrong", "").query("uploads", "");
    classed(begin, "COLD").send().refused(400, "InvalidStorageClass");
    let presigned = s3.put("/bkt/a", "value").signing(Signing::Query(60));
    presigned.query("x-amz-storage-class", "ONEZONE_IA").send().expect(200);
    assert_eq!(class_of(&s3, "/bkt/a"), "ONEZONE_IA");
    // Another object is of another class, and other tags are not.
    let tags = "<Tagging><TagSet><Tag><Key>k</Key><Value>v</Value></Tag></TagSet></Tagging>";
    s3.put("/bkt/a", tags).query("tagging", "").send().expect(200);
    assert_eq!(class_of(&s3, "/bkt/a"), "ONEZONE_IA");
    s3.object("/bkt/a", "value");
    assert_eq!(class_of(&s3, "/bkt/a"), "");
}

#[test]
fn copies_have_the_class_that_they_are_asked_for_with() {
    let server = Server::start();
    let s3 = server.client();
    s3.bucket("bkt");
    let put = classed(s3.put("/bkt/from", "value"), "GLACIER").header("x-amz-meta-a", "1");
    put.send().expect(200);
    let copy = |path: &str, from: &str| s3.put(path, "").header("x-amz-copy-source", from);
    copy("/bkt/plain", "/bkt/from").send().expect(200);
    classed(copy("/bkt/cold", "/bkt/from"), "DEEP_ARCHIVE").send().expect(200);
    classed(copy("/bkt/none", "/bkt/from"), "COLD").send().refused(400, "InvalidStorageClass");
    let told = ["/bkt/plain", "/bkt/cold"].map(|path| class_of(&s3, path));
    assert_eq!(told, ["", "DEEP_ARCHIVE"]);
    // An object gets another one by a copy onto itself, and keeps what else it has.
    copy("/bkt/from", "/bkt/from").send().refused(400, "InvalidRequest");
    for class in ["STANDARD_IA", "STANDARD"] {
        classed(copy("/bkt/from", "/bkt/from"), class).send().expect(200);
        assert_eq!(class_of(&s3, "/bkt/from"), if class == "STANDARD" { "" } else { class });
        assert_eq!(s3.head("/bkt/from").send().header("x-amz-meta-a"), "1");
    }
}

#[test]
fn uploads_have_the_class_that_they_are_begun_with() {
    let server = Server::start();
    let s3 = server.client();
    s3.bucket("bkt");
    let begin = classed(s3.post("/bkt/k", "").query("uploads", ""), "GLACIER_IR");
    let id = begin.send().expect(200).tag("UploadId");
    let listed = s3.get("/bkt").query("uploads", "").send().expect(200);
    assert_eq!(listed.tags("StorageClass"), ["GLACIER_IR"]);
    let etag = part(&s3, ("/bkt/k", &id), 1, vec![1; 100]).expect(200).header("etag");
    let parts = s3.get("/bkt/k").query("uploadId", &id).send().expect(200);
    assert_eq!(parts.tags("StorageClass"), ["GLACIER_IR"]);
    complete(&s3, ("/bkt/k", &id), &[(1, etag)]).expect(200);
    assert_eq!(class_of(&s3, "/bkt/k"), "GLACIER_IR");
}

/// The backend is not asked for it, and keeps the note.
#[test]
fn a_class_is_known_of_what_only_the_backend_has() {
    let pair = Pair::start(&[], &[]);
    let (s3, there) = (&pair.s3, &pair.there);
    classed(s3.put("/data/k", "value"), "GLACIER").send().expect(200);
    pair.until_clean("/data/k");
    assert_eq!(there.head("/there/k").send().expect(200).header("x-amz-storage-class"), "");
    let to = ["--backend", "other", "--backend-bucket", "there", "--cache", "1B"];
    pair.done(&[&["s3", "bucket", "add", "data"][..], &to].concat());
    heard();
    until("it is given up", || (pair.state("/data/k") == "remote").then_some(()));
    assert_eq!(s3.head("/data/k").send().expect(200).header("x-amz-storage-class"), "GLACIER");
    let got = s3.get("/data/k").send().expect(200);
    assert_eq!(got.header("x-amz-storage-class"), "GLACIER");
    assert_eq!(got.body, b"value");
    // What others write there may have any.
    let put = there.put("/there/strange", "value");
    let text = "{\"etag\":\"2063c1608d6e0baf80249c42e2be5804\",\"class\":\"COLD\"}";
    put.header("x-amz-meta-millpond-content", text).send().expect(200);
    let strange = s3.head("/data/strange").send().expect(200);
    assert_eq!(strange.header("x-amz-storage-class"), "");
}
