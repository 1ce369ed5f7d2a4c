//! The manager's requests on a real embedded store.

use millpond_cluster::manager::{StoreReply, StoreRequest};
use millpond_store::StoreChoice;

use super::{execute, start};

fn commit(checks: &[(&[u8], Option<&[u8]>)], writes: &[(&[u8], Option<&[u8]>)]) -> StoreRequest {
    let owned = |list: &[(&[u8], Option<&[u8]>)]| {
        list.iter().map(|(key, value)| (key.to_vec(), value.map(<[u8]>::to_vec))).collect()
    };
    StoreRequest::Commit { checks: owned(checks), writes: owned(writes) }
}

#[test]
fn requests_are_transactions_with_checks_and_the_folder_is_free_afterwards() {
    let folder = tempfile::tempdir().unwrap();
    for round in 0..2u8 {
        let path = folder.path().join("meta");
        let (thread, owner) = start(StoreChoice::Embedded, path).unwrap();
        let ask = |request| {
            let store = thread.store().clone();
            let (sender, receiver) = std::sync::mpsc::channel();
            thread.handle().spawn(async move {
                let _ = sender.send(execute(&store, request).await);
            });
            receiver.recv().unwrap().unwrap()
        };
        let seen = (round > 0).then_some(b"2".as_slice());
        let first = commit(&[(b"m/a", seen)], &[(b"m/a", Some(b"1")), (b"m/b", Some(b"9"))]);
        assert_eq!(ask(first.clone()), StoreReply::Committed);
        assert_eq!(ask(first), StoreReply::Conflict, "the check does not hold any more");
        let second = commit(&[(b"m/a", Some(b"1"))], &[(b"m/a", Some(b"2")), (b"m/b", None)]);
        assert_eq!(ask(second), StoreReply::Committed);
        let keys = vec![b"m/a".to_vec(), b"m/b".to_vec()];
        let values = StoreReply::Values(vec![Some(b"2".to_vec()), None]);
        assert_eq!(ask(StoreRequest::Get { keys }), values);
        let many: Vec<_> = (0..9u8).map(|n| (vec![b's', b'/', n], Some(vec![n]))).collect();
        assert_eq!(
            ask(StoreRequest::Commit { checks: Vec::new(), writes: many }),
            StoreReply::Committed
        );
        let (mut after, mut found) = (Vec::new(), Vec::new());
        loop {
            let prefix = b"s/".to_vec();
            let page = ask(StoreRequest::Scan { prefix, after: after.clone(), limit: 4 });
            let StoreReply::Page { entries, more } = page else { panic!("no page") };
            assert!(entries.len() <= 4);
            found.extend(entries.iter().map(|(_, value)| value[0]));
            if !more {
                break;
            }
            after.clone_from(&entries.last().unwrap().0);
        }
        assert_eq!(found, (0..9).collect::<Vec<_>>());
        drop(thread);
        drop(owner);
    }
}

#[test]
fn a_second_process_is_told_that_the_folder_is_in_use() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("meta");
    let first = start(StoreChoice::Embedded, path.clone()).unwrap();
    let error = start(StoreChoice::Embedded, path).err().unwrap().to_string();
    assert!(error.contains("in use by another process"), "{error}");
    drop(first);
}
