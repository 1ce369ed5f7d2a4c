//! `millpond doctor` on clusters that are well, that lost a node, and that have no manager.

use std::process::Command;

use millpond_control::admin::Status;
use serde_json::Value;

use crate::process::{Chains as _, Cluster, until};

/// What it finds, and its exit code.
fn doctor(servers: &[&str]) -> (Vec<Value>, i32) {
    let run = |json: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_millpond"))
            .args(["doctor", "--cluster", "--timeout", "2s", "--server", &servers.join(",")])
            .args(json)
            .output()
            .unwrap()
    };
    let output = run(&["--json"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.is_empty(), "{said}");
    let found: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    for finding in &found {
        let is_ok = finding["verdict"] == "ok";
        assert_eq!(finding.get("fix").is_none(), is_ok, "a fix for all that is wrong: {finding}");
    }
    (found, output.status.code().unwrap())
}

/// Findings about what begins with `what`.
fn about<'a>(found: &'a [Value], what: &str) -> Vec<&'a Value> {
    let is = |finding: &&Value| finding["what"].as_str().unwrap().starts_with(what);
    found.iter().filter(is).collect()
}

fn text(finding: &Value) -> &str {
    finding["text"].as_str().unwrap()
}

#[test]
fn the_doctor_measures_every_node_and_names_what_is_wrong() {
    let mut cluster = Cluster::start(3, 2);
    until("whole chains", || cluster.nodes[0].status().filter(Status::is_whole));
    // An address where nobody is does no harm. Chains that were just made serve a moment later.
    let at = ["127.0.0.1:1", &cluster.nodes[1].address];
    let all_serve = |found: &[Value]| about(found, "chains")[0]["verdict"] == "ok";
    let well = until("all is well", || Some(doctor(&at)).filter(|(found, _)| all_serve(found)));
    let (found, code) = well.0;
    assert_eq!(code, 0, "{found:#?}");
    let nodes = about(&found, "node ");
    assert_eq!(nodes.len(), 4, "three nodes and the manager: {found:#?}");
    for node in nodes {
        assert!(text(node).contains(" answers in ") && text(node).contains("/s"), "{node}");
    }
    assert_eq!(about(&found, "disk ").len(), 4, "three, and the space of this host");
    for (what, verdict) in
        [("chains", "ok"), ("versions", "ok"), ("clocks", "ok"), ("managers", "warn")]
    {
        assert_eq!(about(&found, what)[0]["verdict"], verdict, "{what}: {found:#?}");
    }
    assert!(text(about(&found, "managers")[0]).contains(&cluster.manager.address));

    cluster.nodes[2].kill();
    let address = cluster.nodes[2].address.clone();
    until("it is gone", || {
        let status = cluster.nodes[0].status()?;
        status.nodes.iter().any(|node| !node.alive).then_some(())
    });
    // The other replicas serve a moment later.
    let degraded = |found: &[Value]| about(found, "chains")[0]["verdict"] == "warn";
    let look = || Some(doctor(&[&cluster.nodes[0].address]));
    let (found, code) = until("chains serve", || look().filter(|(found, _)| degraded(found))).0;
    assert_eq!(code, 1);
    let gone: Vec<&Value> =
        about(&found, "node ").into_iter().filter(|it| it["verdict"] == "fail").collect();
    assert_eq!(gone.len(), 1, "{found:#?}");
    assert!(gone[0]["what"].as_str().unwrap().contains(&address), "{}", gone[0]);
    let failed = found.iter().filter(|it| it["verdict"] == "fail").count();
    assert_eq!(failed, 1, "one finding for one cause: {found:#?}");

    cluster.manager.kill();
    let (found, code) = doctor(&[&cluster.nodes[0].address, &address]);
    assert_eq!(code, 1);
    assert_eq!(about(&found, "managers")[0]["verdict"], "fail");
    let servers = about(&found, "server ");
    assert_eq!(servers.len(), 2, "{found:#?}");
    assert_eq!((&servers[0]["verdict"], &servers[1]["verdict"]), (&"ok".into(), &"fail".into()));
}
