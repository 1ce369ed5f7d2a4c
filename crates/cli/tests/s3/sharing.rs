//! Tenants, and what access control lists give others than the owner.

use crate::access::added;
use crate::backed::Pair;
use crate::client::{Answer, Client, Request, Signing};
use crate::server::{Server, heard, until};

fn anonymous(ask: Request) -> Answer {
    ask.signing(Signing::None).send()
}

fn canned(ask: Request, acl: &str) -> Answer {
    ask.header("x-amz-acl", acl).send()
}

fn tenants(server: &Server) -> (Client, Client) {
    let of = |name: &str| added(server, &[name, "--tenant", name]);
    (of("red"), of("blue"))
}

#[test]
fn tenants_are_kept_apart() {
    let server = Server::start();
    let (red, blue) = tenants(&server);
    let first = server.client();
    red.bucket("reds");
    red.object("/reds/k", "value");
    let id = red.post("/reds/up", "").query("uploads", "").send().expect(200).tag("UploadId");
    blue.bucket("blues");
    blue.object("/blues/k", "other");
    assert_eq!(red.get("/").send().expect(200).tags("Name"), ["reds"]);
    assert_eq!(blue.get("/").send().expect(200).tag("ID"), "blue");
    // The tenant of those who name none is one like the others.
    for other in [&blue, &first] {
        for ask in [
            other.get("/reds"),
            other.head("/reds"),
            other.get("/reds/k"),
            other.head("/reds/k"),
            other.get("/reds/none"),
            other.put("/reds/k", "changed"),
            other.delete("/reds/k"),
            other.get("/reds/k").query("tagging", ""),
            other.get("/reds/k").query("acl", ""),
            other.get("/reds").query("acl", ""),
            other.get("/reds").query("cors", ""),
            other.get("/reds").query("uploads", ""),
            other.delete("/reds").query("cors", ""),
            other.delete("/reds"),
            other.put("/reds/up", "part").query("partNumber", "1").query("uploadId", &id),
            other.delete("/reds/up").query("uploadId", &id),
            other.put("/blues/copy", "").header("x-amz-copy-source", "/reds/k"),
        ] {
            let answer = ask.send();
            assert_eq!(answer.status, 403, "{}", answer.text());
        }
        other.put("/reds", "").send().refused(409, "BucketAlreadyExists");
    }
    let list = "<Delete><Object><Key>k</Key></Object></Delete>";
    blue.post("/reds", list).query("delete", "").send().refused(403, "AccessDenied");
    assert_eq!(red.bytes("/reds/k"), b"value");
    let listed = red.get("/reds").send().expect(200);
    assert_eq!((listed.tags("Key"), listed.tag("ID")), (vec!["k".to_owned()], "red".to_owned()));
    // A second key of a tenant may what the first one may.
    let more = added(&server, &["more", "--tenant", "red", "--bucket", "reds"]);
    assert_eq!(more.bytes("/reds/k"), b"value");
    let owner = |ask: Request, name: &str| ask.header("x-amz-expected-bucket-owner", name).send();
    owner(red.get("/reds/k"), "red").expect(200);
    owner(red.get("/reds/k"), "blue").refused(403, "AccessDenied");
    let wrong = server.command(&["s3", "keys", "add", "x", "--tenant", "a/b"]);
    assert!(String::from_utf8_lossy(&wrong.stderr).contains("tenant"));
    let shown = String::from_utf8(server.command(&["s3", "keys", "list"]).stdout).unwrap();
    assert!(shown.contains("tenant") && shown.contains("blue"), "{shown}");
}

#[test]
fn lists_of_buckets_let_others_in() {
    let server = Server::start();
    let (red, blue) = tenants(&server);
    red.bucket("bkt");
    red.object("/bkt/k", "value");
    let set = |acl: &str| canned(red.put("/bkt", "").query("acl", ""), acl);
    set("public-read").expect(200);
    assert_eq!(anonymous(red.get("/bkt")).expect(200).tags("Key"), ["k"]);
    // Objects have lists of their own; who may list is told what is not there.
    anonymous(red.get("/bkt/k")).refused(403, "AccessDenied");
    anonymous(red.get("/bkt/none")).refused(404, "NoSuchKey");
    anonymous(red.put("/bkt/k", "changed")).refused(403, "AccessDenied");
    let told = red.get("/bkt").query("acl", "").send().expect(200);
    assert_eq!(told.tags("Permission"), ["READ", "FULL_CONTROL"]);
    set("authenticated-read").expect(200);
    anonymous(red.get("/bkt")).refused(403, "AccessDenied");
    blue.get("/bkt").send().expect(200);
    set("public-read-write").expect(200);
    anonymous(red.put("/bkt/new", "theirs")).expect(200);
    assert_eq!(red.bytes("/bkt/new"), b"theirs");
    blue.delete("/bkt/new").send().expect(204);
    blue.put("/bkt", "<x/>").query("cors", "").send().refused(403, "AccessDenied");
    set("private").expect(200);
    anonymous(red.get("/bkt")).refused(403, "AccessDenied");
    blue.put("/bkt/new", "no").send().refused(403, "AccessDenied");
    // Grants to one tenant.
    let grant = |to: &str| red.put("/bkt", "").query("acl", "").header("x-amz-grant-read", to);
    grant("id=blue").send().expect(200);
    blue.get("/bkt").send().expect(200);
    anonymous(red.get("/bkt")).refused(403, "AccessDenied");
    grant("id=nobody").send().refused(400, "InvalidArgument");
    grant("emailAddress=a@b.c").send().refused(400, "UnresolvableGrantByEmailAddress");
    let both = grant("id=blue").header("x-amz-acl", "private").send();
    both.refused(400, "InvalidRequest");
    set("aws-exec-read").refused(501, "NotImplemented");
    // Made again with another list it would not be what was asked for.
    red.put("/bkt", "")
        .header("x-amz-acl", "public-read")
        .send()
        .refused(409, "BucketAlreadyExists");
    canned(red.put("/open", ""), "public-read").expect(200);
    anonymous(red.head("/open")).expect(200);
    red.delete("/open").send().expect(204);
    anonymous(red.get("/open")).refused(404, "NoSuchBucket");
}

/// The grants of a list: for whom, and what.
fn grants(ask: Request) -> Vec<String> {
    let told = ask.query("acl", "").send().expect(200);
    let one = |grant: String| {
        let text = |name: &str| {
            let rest = grant.split_once(&format!("<{name}>"))?.1;
            Some(rest.split_once("</")?.0.to_owned())
        };
        let group = text("URI").map(|uri| uri.rsplit_once('/').unwrap().1.to_owned());
        let who = group.or_else(|| text("ID")).unwrap();
        format!("{who} {}", text("Permission").unwrap())
    };
    told.tags("Grant").into_iter().map(one).collect()
}

/// Those of AWS ("Canned ACL" in its user guide), groups first.
#[test]
fn canned_lists_are_told_as_grants() {
    let server = Server::start();
    let (red, blue) = tenants(&server);
    canned(red.put("/bkt", ""), "public-read-write").expect(200);
    let lists = [
        ("private", &[][..], ""),
        ("public-read", &["AllUsers READ"], ""),
        ("public-read-write", &["AllUsers READ", "AllUsers WRITE"], ""),
        ("authenticated-read", &["AuthenticatedUsers READ"], ""),
        ("bucket-owner-read", &[], "red READ"),
        ("bucket-owner-full-control", &[], "red FULL_CONTROL"),
        ("log-delivery-write", &["LogDelivery WRITE", "LogDelivery READ_ACP"], ""),
    ];
    for (name, groups, host) in lists {
        // Of an object that another than the bucket's owner has put there.
        let host = Some(host).filter(|it| !it.is_empty());
        let of_object: Vec<&str> =
            groups.iter().copied().chain(["blue FULL_CONTROL"]).chain(host).collect();
        canned(blue.put("/bkt/new", "value"), name).expect(200);
        assert_eq!(grants(blue.get("/bkt/new")), of_object, "{name}");
        blue.object("/bkt/set", "value");
        canned(blue.put("/bkt/set", "").query("acl", ""), name).expect(200);
        assert_eq!(grants(blue.get("/bkt/set")), of_object, "{name}");
        // Of a bucket its owner is that of the bucket anyway.
        let of_bucket: Vec<&str> = groups.iter().copied().chain(["red FULL_CONTROL"]).collect();
        let path = format!("/made-{name}");
        canned(red.put(&path, ""), name).expect(200);
        assert_eq!(grants(red.get(&path)), of_bucket, "{name}");
        canned(red.put(&path, "").query("acl", ""), "private").expect(200);
        assert_eq!(grants(red.get(&path)), ["red FULL_CONTROL"]);
        canned(red.put(&path, "").query("acl", ""), name).expect(200);
        assert_eq!(grants(red.get(&path)), of_bucket, "{name}");
    }
}

#[test]
fn lists_of_objects_let_others_read() {
    let server = Server::start();
    let (red, blue) = tenants(&server);
    red.bucket("bkt");
    canned(red.put("/bkt/k", "value"), "public-read").expect(200);
    assert_eq!(anonymous(red.get("/bkt/k")).expect(200).body, b"value");
    let part = anonymous(red.get("/bkt/k").unsigned("range", "bytes=1-2")).expect(206);
    assert_eq!(part.body, b"al");
    anonymous(red.head("/bkt/k")).expect(200);
    anonymous(red.get("/bkt")).refused(403, "AccessDenied");
    anonymous(red.get("/bkt/none")).refused(403, "AccessDenied");
    anonymous(red.get("/bkt/k").query("tagging", "")).refused(403, "AccessDenied");
    blue.bucket("mine");
    blue.put("/mine/copy", "").header("x-amz-copy-source", "/bkt/k").send().expect(200);
    // Tags are the owner's alone, in copies too.
    red.put("/bkt/tagged", "value")
        .header("x-amz-acl", "public-read")
        .header("x-amz-tagging", "a=b")
        .send()
        .expect(200);
    let told = anonymous(red.get("/bkt/tagged")).expect(200);
    assert_eq!(told.header("x-amz-tagging-count"), "");
    let copy = || blue.put("/mine/tagged", "").header("x-amz-copy-source", "/bkt/tagged");
    copy().send().refused(403, "AccessDenied");
    copy().header("x-amz-tagging-directive", "REPLACE").send().expect(200);
    let tags = blue.get("/mine/tagged").query("tagging", "").send().expect(200);
    assert!(tags.tags("Key").is_empty(), "{}", tags.text());
    // Nobody's request says how somebody else's page is shown.
    let page = red.get("/bkt/k").query("response-content-type", "text/html");
    anonymous(page).refused(400, "InvalidRequest");
    // A new object has the list that it came with.
    red.object("/bkt/k", "again");
    anonymous(red.get("/bkt/k")).refused(403, "AccessDenied");
    blue.put("/mine/copy", "")
        .header("x-amz-copy-source", "/bkt/k")
        .send()
        .refused(403, "AccessDenied");
    let set = |ask: Request, acl: &str| canned(ask.query("acl", ""), acl);
    set(blue.put("/bkt/k", ""), "public-read").refused(403, "AccessDenied");
    set(red.put("/bkt/k", ""), "authenticated-read").expect(200);
    assert_eq!(blue.bytes("/bkt/k"), b"again");
    anonymous(red.get("/bkt/k")).refused(403, "AccessDenied");
    set(red.put("/bkt/none", ""), "public-read").refused(404, "NoSuchKey");
    // Tags leave the list alone, and a list leaves the tags.
    let tags = "<Tagging><TagSet><Tag><Key>a</Key><Value>b</Value></Tag></TagSet></Tagging>";
    red.put("/bkt/k", tags).query("tagging", "").send().expect(200);
    assert_eq!(blue.bytes("/bkt/k"), b"again");
    set(red.put("/bkt/k", ""), "public-read").expect(200);
    assert_eq!(red.get("/bkt/k").query("tagging", "").send().expect(200).tag("Value"), "b");
    // Uploads in parts, and copies.
    let begin = red.post("/bkt/parts", "").query("uploads", "").header("x-amz-acl", "public-read");
    let id = begin.send().expect(200).tag("UploadId");
    let upload = red.put("/bkt/parts", "part").query("partNumber", "1").query("uploadId", &id);
    let etag = upload.send().expect(200).header("etag");
    let body = format!(
        "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{etag}</ETag></Part></CompleteMultipartUpload>"
    );
    red.post("/bkt/parts", body).query("uploadId", &id).send().expect(200);
    assert_eq!(anonymous(red.get("/bkt/parts")).expect(200).body, b"part");
    red.put("/bkt/copy", "").header("x-amz-copy-source", "/bkt/parts").send().expect(200);
    anonymous(red.get("/bkt/copy")).refused(403, "AccessDenied");
}

#[test]
fn objects_belong_to_who_writes_them_unless_the_bucket_says_else() {
    let server = Server::start();
    let (red, blue) = tenants(&server);
    canned(red.put("/bkt", ""), "public-read-write").expect(200);
    blue.object("/bkt/k", "blue's");
    let owner = |ask: Request| ask.query("acl", "").send().expect(200).tag("ID");
    assert_eq!(owner(blue.get("/bkt/k")), "blue");
    assert_eq!(red.bytes("/bkt/k"), b"blue's");
    let green = added(&server, &["green", "--tenant", "green"]);
    green.get("/bkt/k").send().refused(403, "AccessDenied");
    let listed = blue.get("/bkt").send().expect(200);
    assert_eq!(listed.tag("ID"), "blue");
    // Who gave it away is its owner no more.
    let given = |name: &str| canned(blue.put(name, "x"), "bucket-owner-full-control").expect(200);
    let controls = |it: &str| {
        let rule = format!("<Rule><ObjectOwnership>{it}</ObjectOwnership></Rule>");
        let body = format!("<OwnershipControls>{rule}</OwnershipControls>");
        red.put("/bkt", body).query("ownershipControls", "").send()
    };
    given("/bkt/kept");
    assert_eq!(owner(blue.get("/bkt/kept")), "blue");
    controls("BucketOwnerPreferred").expect(200);
    given("/bkt/given");
    assert_eq!(owner(red.get("/bkt/given")), "red");
    blue.get("/bkt/given").query("acl", "").send().refused(403, "AccessDenied");
    // Lists can be switched off, once the bucket has none.
    controls("BucketOwnerEnforced").refused(400, "InvalidBucketAclWithObjectOwnership");
    let set = |ask: Request, acl: &str| canned(ask.query("acl", ""), acl);
    canned(red.put("/bkt/open", "x"), "public-read").expect(200);
    set(red.put("/bkt", ""), "private").expect(200);
    controls("BucketOwnerEnforced").expect(200);
    anonymous(red.get("/bkt/open")).refused(403, "AccessDenied");
    canned(red.put("/bkt/k", "x"), "public-read").refused(400, "AccessControlListNotSupported");
    set(red.put("/bkt", ""), "public-read").refused(400, "AccessControlListNotSupported");
    let made =
        |path: &str| red.put(path, "").header("x-amz-object-ownership", "BucketOwnerEnforced");
    canned(made("/shut"), "public-read").refused(400, "InvalidBucketAclWithObjectOwnership");
    canned(made("/shut"), "private").expect(200);
    assert_eq!(owner(red.get("/bkt/kept")), "red");
    let told = red.get("/bkt").query("ownershipControls", "").send().expect(200);
    assert_eq!(told.tag("ObjectOwnership"), "BucketOwnerEnforced");
    red.delete("/bkt").query("ownershipControls", "").send().expect(204);
    let none = red.get("/bkt").query("ownershipControls", "").send();
    none.refused(404, "OwnershipControlsNotFoundError");
    anonymous(red.get("/bkt/open")).expect(200);
}

#[test]
fn public_lists_are_blocked_and_ignored() {
    let server = Server::start();
    let s3 = server.client();
    s3.bucket("bkt");
    let told = || s3.get("/bkt").query("publicAccessBlock", "").send();
    told().refused(404, "NoSuchPublicAccessBlockConfiguration");
    canned(s3.put("/bkt/k", "value"), "public-read").expect(200);
    canned(s3.put("/bkt", "").query("acl", ""), "public-read").expect(200);
    let block = |which: &str| {
        let body = format!(
            "<PublicAccessBlockConfiguration><{which}>true</{which}></PublicAccessBlockConfiguration>"
        );
        s3.put("/bkt", body).query("publicAccessBlock", "").send().expect(200);
    };
    block("BlockPublicAcls");
    assert_eq!([told().tag("BlockPublicAcls"), told().tag("IgnorePublicAcls")], ["true", "false"]);
    canned(s3.put("/bkt/new", "x"), "public-read").refused(403, "AccessDenied");
    canned(s3.put("/bkt", "").query("acl", ""), "authenticated-read").refused(403, "AccessDenied");
    canned(s3.put("/bkt/new", "x"), "private").expect(200);
    anonymous(s3.get("/bkt/k")).expect(200);
    block("IgnorePublicAcls");
    anonymous(s3.get("/bkt/k")).refused(403, "AccessDenied");
    anonymous(s3.get("/bkt")).refused(403, "AccessDenied");
    s3.delete("/bkt").query("publicAccessBlock", "").send().expect(204);
    anonymous(s3.get("/bkt/k")).expect(200);
}

#[test]
fn lists_go_to_the_backend_and_come_back() {
    let pair = Pair::start(&[], &[]);
    let (s3, there) = (&pair.s3, &pair.there);
    canned(s3.put("/data/open", "value"), "public-read").expect(200);
    s3.put("/data/shut", "value").header("x-amz-meta-k", "v").send().expect(200);
    pair.until_clean("/data/open");
    pair.until_clean("/data/shut");
    let far = there.head("/there/open").send().expect(200).header("x-amz-meta-millpond-access");
    assert!(far.contains("everyone"), "{far}");
    assert_eq!(there.head("/there/shut").send().header("x-amz-meta-millpond-access"), "");
    pair.done(&[
        "s3",
        "bucket",
        "add",
        "data",
        "--backend",
        "other",
        "--backend-bucket",
        "there",
        "--cache",
        "1B",
    ]);
    heard();
    until("all is given up", || (pair.state("/data/open") == "remote").then_some(()));
    until("all is given up", || (pair.state("/data/shut") == "remote").then_some(()));
    anonymous(s3.get("/data/shut")).refused(403, "AccessDenied");
    anonymous(s3.get("/data/none")).refused(403, "AccessDenied");
    let got = anonymous(s3.get("/data/open")).expect(200);
    assert_eq!(
        (got.body.as_slice(), got.header("x-amz-meta-millpond-access")),
        (&b"value"[..], String::new())
    );
    anonymous(s3.head("/data/open")).expect(200);
    anonymous(s3.get("/data/open").unsigned("range", "bytes=0-0")).expect(206);
    // What a backend would never take is not taken here.
    let grants: Vec<String> = (0..60).map(|n| format!("id=tenant-of-a-long-name-{n}")).collect();
    for n in 0..60 {
        added(&pair.front, &[&format!("k{n}"), "--tenant", &format!("tenant-of-a-long-name-{n}")]);
    }
    let put = || s3.put("/data/many", "value").header("x-amz-grant-read", &grants.join(","));
    put().send().refused(400, "MetadataTooLarge");
    canned(s3.put("/data/open", "").query("acl", ""), "private").expect(200);
    s3.put("/data/open", "")
        .query("acl", "")
        .header("x-amz-grant-read", &grants.join(","))
        .send()
        .refused(400, "MetadataTooLarge");
    let often = ["id=k"; 60].map(|_| "id=millpond").join(",");
    s3.put("/data/often", "value").header("x-amz-grant-read", &often).send().expect(200);
    pair.until_clean("/data/often");
}

#[test]
fn others_copy_what_only_the_backend_has_and_lists_give_them() {
    let pair = Pair::start(&[], &[]);
    let (s3, there) = (&pair.s3, &pair.there);
    let (_, blue) = tenants(&pair.front);
    canned(s3.put("/data/open", "value"), "public-read").expect(200);
    pair.until_clean("/data/open");
    let list = there.head("/there/open").send().expect(200).header("x-amz-meta-millpond-access");
    for key in ["part", "whole"] {
        let put = there.put(&format!("/there/{key}"), "value");
        put.header("x-amz-meta-millpond-access", &list).send().expect(200);
    }
    there.object("/there/shut", "value");
    blue.bucket("mine");
    let id = blue.post("/mine/up", "").query("uploads", "").send().expect(200).tag("UploadId");
    let of = |ask: Request, source: &str| ask.header("x-amz-copy-source", source).send();
    let copy = |source: &str| of(blue.put("/mine/copy", ""), source);
    let part = |source: &str| {
        of(blue.put("/mine/up", "").query("partNumber", "1").query("uploadId", &id), source)
    };
    for source in ["/data/shut", "/data/none"] {
        copy(source).refused(403, "AccessDenied");
        part(source).refused(403, "AccessDenied");
    }
    assert_eq!(pair.state("/data/shut"), "remote");
    part("/data/part").expect(200);
    copy("/data/whole").expect(200);
    assert_eq!(blue.bytes("/mine/copy"), b"value");
}

#[test]
fn a_list_that_another_cluster_changed_is_noticed() {
    let pair = Pair::start(&[], &["--shared", "--ttl", "100ms"]);
    let (s3, there) = (&pair.s3, &pair.there);
    canned(s3.put("/data/k", "value"), "public-read").expect(200);
    pair.until_clean("/data/k");
    anonymous(s3.get("/data/k")).expect(200);
    // The bytes are the same, and so is their ETag.
    there.object("/there/k", "value");
    until("others are kept out", || (anonymous(s3.get("/data/k")).status == 403).then_some(()));
    assert_eq!(s3.bytes("/data/k"), b"value");
}
