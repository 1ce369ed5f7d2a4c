//! A gateway whose own meta has lost the store, while other metas have not.

use std::io::copy;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::spawn;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::cluster::with_s3;
use crate::etcd_members::{Etcd, left_out};
use crate::process::{Chains as _, Process, until};

/// The longest that a request may take: the own meta is given up after two seconds, and one that waited for it asks anew.
const LONGEST: Duration = Duration::from_secs(10);

/// A way to a server that can be cut.
#[derive(Clone, Default)]
struct Line {
    is_cut: Arc<AtomicBool>,
    refused: Arc<AtomicUsize>,
    streams: Arc<Mutex<Vec<TcpStream>>>,
}

impl Line {
    /// Listens until the process ends; where.
    fn to(server: &str) -> (Self, String) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (line, address) = (Self::default(), listener.local_addr().unwrap().to_string());
        let (it, server) = (line.clone(), server.to_owned());
        spawn(move || {
            for stream in listener.incoming() {
                let stream = stream.unwrap();
                if it.is_cut.load(Ordering::SeqCst) {
                    it.refused.fetch_add(1, Ordering::SeqCst);
                    continue;
                }
                it.carry(stream, TcpStream::connect(&server).unwrap());
            }
        });
        (line, address)
    }

    fn carry(&self, from: TcpStream, to: TcpStream) {
        let kept = [&from, &to].map(|stream| stream.try_clone().unwrap());
        self.streams.lock().extend(kept);
        for (mut a, mut b) in [(from.try_clone().unwrap(), to.try_clone().unwrap()), (to, from)] {
            spawn(move || {
                let _ = copy(&mut a, &mut b);
                let _ = b.shutdown(Shutdown::Both);
            });
        }
    }

    fn cut(&self) {
        self.is_cut.store(true, Ordering::SeqCst);
        for stream in self.streams.lock().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn mend(&self) {
        self.is_cut.store(false, Ordering::SeqCst);
    }
}

#[test]
fn a_gateway_whose_meta_lost_its_store_asks_other_metas() {
    if left_out() {
        return;
    }
    let etcd = Etcd::start(1);
    let folder = tempfile::tempdir().unwrap();
    let direct = etcd.store();
    let server = direct.trim_start_matches("etcd://").trim_end_matches("/test");
    let (line, through) = Line::to(server);
    let through = direct.replace(server, &through);
    let manager = |name, store| {
        let flags = ["--manager", "--no-storage", "--form-nodes", "1", "--store", store];
        with_s3(folder.path(), name, &flags)
    };
    let (mut other, _) = manager("other", &direct);
    let (cut_off, s3) = manager("cut-off", &through);
    let all = [other.address.as_str(), cut_off.address.as_str()].join(",");
    let node = Process::start(folder.path(), "node", &["--join", &all, "--size", "1GiB"]);
    until("chains", || node.status().filter(|it| it.chains() > 0).map(drop));
    until("a bucket is made", || s3.put("/bucket", "").send().is(200).then_some(()));
    s3.object("/bucket/before", "there before");

    line.cut();
    let mut longest = Duration::ZERO;
    for n in 0..20 {
        let started = Instant::now();
        let (path, body) = (format!("/bucket/{n}"), format!("body of {n}"));
        s3.object(&path, body.as_str());
        assert_eq!(s3.get(&path).send().expect(200).text(), body);
        let listed = s3.get("/bucket").send().expect(200).text();
        assert!(listed.contains(&format!("<Key>{n}</Key>")), "{listed}");
        assert!(listed.contains("<Key>before</Key>"), "{listed}");
        s3.delete(&path).send().expect(204);
        s3.get(&path).send().expect(404);
        longest = longest.max(started.elapsed());
    }
    assert!(longest < LONGEST, "a put, two gets, a list and a delete took {longest:?}");
    assert!(line.refused.load(Ordering::SeqCst) > 0, "nobody missed the store");

    // It was the other meta that answered.
    other.kill();
    let answer = s3.put("/bucket/nobody", "").send();
    assert_eq!(answer.status, 503, "{}", answer.text());
    line.mend();
    until("its own meta answers", || s3.put("/bucket/after", "").send().is(200).then_some(()));
    s3.get("/bucket/before").send().expect(200);
}
