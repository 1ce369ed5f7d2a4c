//! The managers' store with a file gone: the server says which one and what to do, and starts with everything once it is back.

use crate::process::{Process, until};

#[test]
fn a_server_does_not_start_with_less_than_its_store_had() {
    let folder = tempfile::tempdir().unwrap();
    let flags = ["--manager", "--form-nodes", "1", "--replicas", "1"];
    let mut node = Process::start(folder.path(), "alone", &flags);
    let names = ["one", "two", "three"];
    for name in names {
        until("its chains are ready", || node.wire().open(name, 1).ok());
    }
    node.kill();
    let store = folder.path().join("alone/meta");
    let (current, aside) = (store.join("keyspaces/3/current"), folder.path().join("aside"));
    std::fs::rename(&current, &aside).unwrap();
    for _ in 0..2 {
        let said = node.run_refused();
        assert!(said.contains(&format!("{} is missing", current.display())), "{said}");
        assert!(said.contains(&format!("cp -a COPY {}", store.display())), "{said}");
    }
    std::fs::rename(&aside, &current).unwrap();
    node.run();
    until("all namespaces are listed", || {
        let listed = node.wire().names();
        names.iter().all(|name| listed.iter().any(|found| found == name)).then_some(())
    });
}
