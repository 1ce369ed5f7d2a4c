//! Answers of requests are forgotten by the metas that run, not by who tests them.

use std::time::{Duration, Instant};

use millpond_client::{Client, ClientOptions};
use millpond_env::RealClock;
use millpond_types::meta::{
    Caller, Ino, MetaAnswer, MetaError, MetaOp, MetaReply, MetaRequest, SetAttr,
};

use crate::process::Cluster;

/// A meta begins with it a minute after it has become the primary manager.
const PATIENCE: Duration = Duration::from_mins(3);

#[test]
fn answers_of_hours_that_are_over_are_forgotten() {
    let cluster = Cluster::start(1, 1);
    let client = Client::new(ClientOptions::new(cluster.manager.address.parse().unwrap())).unwrap();
    let hour = u32::try_from(RealClock::wall_ms() / 3_600_000).unwrap();
    let caller = Caller::checked(0, 0);
    let ask = |session, (sequence, hour), op| -> MetaAnswer {
        let request = MetaRequest { session, sequence, hour, caller: caller.clone(), op };
        client.meta(&request, None).unwrap().answer
    };
    let opened = ask(0, (0, 0), MetaOp::SessionOpen { name: "test".into() });
    let Ok(MetaReply::Session(session)) = opened else { panic!("{opened:?}") };
    let change = |sequence, hour| {
        let set = SetAttr { mode: Some(0o755), ..SetAttr::default() };
        ask(session.id, (sequence, hour), MetaOp::SetAttr { ino: Ino::ROOT, set })
    };
    let now = change(1, hour);
    assert!(now.is_ok() && change(2, hour - 5).is_ok());
    let started = Instant::now();
    while change(2, hour - 5) != Err(MetaError::Stale) {
        assert!(started.elapsed() < PATIENCE, "nothing is forgotten");
        std::thread::sleep(Duration::from_millis(500));
    }
    assert_eq!(change(1, hour), now);
}
