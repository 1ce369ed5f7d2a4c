//! Files by their paths without a mount: one client writes, another one reads.

use millpond_client::{
    ChunkFilter, Client, ClientError, ClientOptions, ErrorKind, File, OpenOptions, Volume,
    VolumeOptions,
};
use millpond_env::Rng;
use millpond_types::DataId;
use millpond_types::meta::{Attr, Caller, FileKind, MetaError};

use crate::process::{Cluster, PATIENCE, until};

fn client_at(address: &str) -> Client {
    let mut options = ClientOptions::new(address.parse().unwrap());
    options.deadline = PATIENCE / 3;
    Client::new(options).unwrap()
}

fn caller(uid: u32) -> Caller {
    Caller { uid, gid: uid, groups: Vec::new(), checked: false }
}

/// A volume of a client of its own.
fn volume(cluster: &Cluster, uid: u32) -> Volume {
    let options = VolumeOptions { caller: caller(uid), ..VolumeOptions::new("a test") };
    Volume::with(client_at(&cluster.nodes[0].address), options).unwrap()
}

fn posix(error: &ClientError) -> Option<MetaError> {
    match error {
        ClientError::File { source, .. } => Some(*source),
        _ => None,
    }
}

pub(crate) fn random(rng: &mut Rng, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    rng.fill(&mut bytes);
    bytes
}

fn below(rng: &mut Rng, end: usize) -> usize {
    usize::try_from(rng.next_u64() % end as u64).unwrap()
}

#[test]
fn what_one_client_writes_another_one_reads() {
    let cluster = Cluster::roomy(3, 2);
    let (one, two) = (volume(&cluster, 0), volume(&cluster, 0));
    one.mkdir("/data", 0o755).unwrap();
    let file = one.open_file("data/model", &OpenOptions::CREATE).unwrap();
    let mut rng = Rng::new(4);
    let mut model = random(&mut rng, 700_000);
    file.write_batch(&[(0, &model[..300_000]), (300_000, &model[300_000..])]).unwrap();
    // Behind the end: what lies between is zeros.
    file.write_batch(&[(900_000, b"end")]).unwrap();
    model.resize(900_000, 0);
    model.extend_from_slice(b"end");
    // Ranges that overlap are written in their order.
    file.write_batch(&[(10, b"first"), (12, b"second"), (5, b"")]).unwrap();
    model[10..15].copy_from_slice(b"first");
    model[12..18].copy_from_slice(b"second");
    file.sync().unwrap();

    let other = two.open_file("/data/./../data/model", &OpenOptions::READ).unwrap();
    assert_eq!(other.len().unwrap(), model.len() as u64);
    let parts: Vec<(usize, usize)> =
        (0..64).map(|_| (below(&mut rng, 950_000), below(&mut rng, 60_000))).collect();
    let mut rooms: Vec<Vec<u8>> = parts.iter().map(|(_, len)| vec![7; *len]).collect();
    let mut batch: Vec<(u64, &mut [u8])> =
        parts.iter().zip(&mut rooms).map(|((at, _), room)| (*at as u64, &mut room[..])).collect();
    let lens = other.read_batch(&mut batch).unwrap();
    for (((at, wanted), room), len) in parts.iter().zip(&rooms).zip(lens) {
        let there = &model[(*at).min(model.len())..(at + wanted).min(model.len())];
        assert_eq!(len, there.len(), "{wanted} bytes at {at}");
        assert!(room[..len] == *there, "{wanted} bytes at {at}");
        assert!(room[len..].iter().all(|byte| *byte == 7), "memory behind the end is left alone");
    }
    // The same through threads, with memory that comes back.
    let pending =
        (0..20_u32).map(|n| other.submit_read(vec![(u64::from(n) * 40_000, vec![1; 40_000])]));
    let pending: Vec<_> = pending.collect();
    for (n, pending) in pending.into_iter().enumerate() {
        let done = pending.wait().unwrap();
        assert_eq!(done.len(), 1);
        let (len, room) = &done[0];
        assert_eq!((*len, &room[..]), (40_000, &model[n * 40_000..][..40_000]));
    }
    let back = file.submit_write(vec![(0, vec![9; 100])]).wait().unwrap();
    assert_eq!(back, [vec![9; 100]]);
    let mut head = [0; 101];
    assert_eq!(other.read_batch(&mut [(0, &mut head)]).unwrap(), [101]);
    assert_eq!((&head[..100], head[100]), (&[9; 100][..], model[100]));

    // Cut to nothing by somebody else: the next look tells, and old bytes do not come back.
    let cut = two.open_file("data/model", &OpenOptions::CREATE).unwrap();
    assert_eq!(file.len().unwrap(), 0);
    assert_eq!(file.read_batch(&mut [(0, &mut head)]).unwrap(), [0]);
    cut.write_batch(&[(50, b"x")]).unwrap();
    assert_eq!(other.len().unwrap(), 51);
    assert_eq!(other.read_batch(&mut [(0, &mut head)]).unwrap(), [51]);
    assert_eq!((&head[..50], head[50]), (&[0; 50][..], b'x'));
    // A writer that did not look writes to the new bytes.
    file.write_batch(&[(1, b"y")]).unwrap();
    assert_eq!(other.read_batch(&mut [(0, &mut head[..2])]).unwrap(), [2]);
    assert_eq!(head[..2], [0, b'y']);
}

/// What a file that is open has.
fn content(file: &File) -> Vec<u8> {
    let mut bytes = vec![7; usize::try_from(file.len().unwrap()).unwrap() + 9];
    let len = file.read_batch(&mut [(0, &mut bytes)]).unwrap()[0];
    bytes.truncate(len);
    bytes
}

#[test]
fn clones_are_files_of_their_own() {
    let cluster = Cluster::roomy(3, 2);
    let (one, two) = (volume(&cluster, 0), volume(&cluster, 0));
    let mut rng = Rng::new(6);
    let mut models = vec![random(&mut rng, 1_500_000)];
    one.write_file("/0", &models[0], 0o640).unwrap();
    let source = two.open_file("/0", &OpenOptions::UPDATE).unwrap();
    let mut files = vec![source.clone()];
    for n in 1..=6 {
        let shared = one.clone_file("/0", format!("/{n}")).unwrap();
        assert_eq!(shared, n <= 4, "four may lie behind each other: clone {n}");
        models.push(models[0].clone());
        files.push(one.open_file(format!("/{n}"), &OpenOptions::UPDATE).unwrap());
        assert_eq!(files[n].stat().unwrap().mode, 0o640);
        // All of them are written, cut and made longer, to where chunks begin too.
        for (file, model) in files.iter().zip(&mut models) {
            let (at, new) = (below(&mut rng, 1_200_000), random(&mut rng, 9));
            file.write_batch(&[(at as u64, &new)]).unwrap();
            model.resize(model.len().max(at + 9), 0);
            model[at..at + 9].copy_from_slice(&new);
            let short = 262_144 * (1 + below(&mut rng, 5)) + [0, 77][below(&mut rng, 2)];
            for len in [short, 262_144 * (3 + below(&mut rng, 4))] {
                file.set_len(len as u64).unwrap();
                model.resize(len, 0);
            }
        }
        for (n, (file, model)) in files.iter().zip(&models).enumerate() {
            assert!(content(file) == *model, "file {n}");
            assert!(two.read_file(format!("/{n}")).unwrap() == *model, "file {n}, elsewhere");
        }
    }
    // Who had it open before a clone, and only reads, sees what is written after it.
    one.write_file("/read", &models[0], 0o644).unwrap();
    let reader = two.open_file("/read", &OpenOptions::READ).unwrap();
    assert!(content(&reader) == models[0]);
    assert!(one.clone_file("/read", "/other").unwrap());
    let writer = one.open_file("/read", &OpenOptions::UPDATE).unwrap();
    writer.write_batch(&[(5, b"new")]).unwrap();
    let mut seen = [0; 3];
    until("the reader to see it", || {
        reader.read_batch(&mut [(5, &mut seen)]).unwrap();
        (seen == *b"new").then_some(())
    });
    assert_eq!(posix(&one.clone_file("/read", "/other").unwrap_err()), Some(MetaError::Exists));
    assert_eq!(posix(&one.clone_file("/no", "/yes").unwrap_err()), Some(MetaError::NotFound));
}

#[test]
fn threads_that_write_behind_the_end_lose_nothing_to_clones() {
    const PART: usize = 262_144;
    let cluster = Cluster::roomy(3, 2);
    let (one, two) = (volume(&cluster, 0), volume(&cluster, 0));
    let file = one.open_file("/log", &OpenOptions::CREATE).unwrap();
    std::thread::scope(|scope| {
        for of in 0..4 {
            let file = file.clone();
            scope.spawn(move || {
                // Parts of chunks of their own, in two writes each.
                for n in (of..48).step_by(4) {
                    let bytes = vec![u8::try_from(n + 1).unwrap(); PART / 2];
                    for half in 0..2 {
                        let at = n * PART + half * PART / 2;
                        file.write_batch(&[(at as u64, &bytes)]).unwrap();
                    }
                }
            });
        }
        for n in 0..4 {
            until("it grows", || (file.len().unwrap() > n * 2_000_000).then_some(()));
            assert!(two.clone_file("/log", format!("/clone{n}")).unwrap());
        }
    });
    let wanted: Vec<u8> = (1..=48).flat_map(|n| vec![n; PART]).collect();
    assert_eq!(file.len().unwrap(), wanted.len() as u64);
    assert!(two.read_file("/log").unwrap() == wanted);
    for n in 0..4 {
        let clone = two.read_file(format!("/clone{n}")).unwrap();
        let is_old = |(at, byte): (usize, &u8)| *byte == 0 || *byte == wanted[at];
        assert!(clone.iter().enumerate().all(is_old), "clone {n}");
    }
}

#[test]
fn paths_are_walked_as_posix_says() {
    let cluster = Cluster::roomy(1, 1);
    let (root, user) = (volume(&cluster, 0), volume(&cluster, 1000));
    root.mkdir("a", 0o755).unwrap();
    root.mkdir("a/open", 0o777).unwrap();
    root.mkdir("a/closed", 0o700).unwrap();
    let open = |volume: &Volume, path: &str, how| volume.open_file(path, &how).map(drop);
    let refused = |result: Result<(), ClientError>| posix(&result.unwrap_err());
    assert_eq!(refused(open(&root, "a/none", OpenOptions::READ)), Some(MetaError::NotFound));
    assert_eq!(refused(open(&root, "none/none", OpenOptions::CREATE)), Some(MetaError::NotFound));
    assert_eq!(refused(open(&root, "a/open", OpenOptions::READ)), Some(MetaError::IsDirectory));
    let error = open(&root, "a/none", OpenOptions::READ).unwrap_err();
    assert_eq!((error.kind(), error.errno()), (ErrorKind::File, Some(2)));
    assert_eq!(error.to_string(), "a/none: no such file or directory");

    open(&root, "a/closed/file", OpenOptions::CREATE).unwrap();
    assert_eq!(refused(open(&user, "a/closed/file", OpenOptions::READ)), Some(MetaError::Access));
    open(&root, "a/open/roots", OpenOptions::CREATE).unwrap();
    open(&user, "a/open/roots", OpenOptions::READ).unwrap();
    assert_eq!(refused(open(&user, "a/open/roots", OpenOptions::UPDATE)), Some(MetaError::Access));
    assert_eq!(refused(open(&user, "a/new", OpenOptions::CREATE)), Some(MetaError::Access));
    open(&user, "a/open/own", OpenOptions::CREATE).unwrap();
    assert_eq!(root.stat("a/open/own").unwrap().uid, 1000);
    let through = refused(open(&root, "a/open/own/below", OpenOptions::READ));
    assert_eq!(through, Some(MetaError::NotDirectory));

    user.rename("a/open/own", "a/open/moved").unwrap();
    let mut names: Vec<String> =
        root.list("a/open").unwrap().iter().map(|entry| entry.name.to_string()).collect();
    names.sort();
    assert_eq!(names, ["moved", "roots"]);
    assert_eq!(refused(root.rmdir("a/open")), Some(MetaError::NotEmpty));
    root.unlink("a/open/moved").unwrap();
    root.unlink("a/open/roots").unwrap();
    root.rmdir("a/open").unwrap();
    assert_eq!(root.stat("/").unwrap().kind, FileKind::Directory);
    let write = root.open_file("a/closed/file", &OpenOptions::READ).unwrap();
    let error = write.write_batch(&[(0, b"x")]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

#[test]
fn whole_files_are_written_and_read() {
    let cluster = Cluster::roomy(3, 2);
    let (one, two) = (volume(&cluster, 0), volume(&cluster, 0));
    one.mkdir("/data", 0o755).unwrap();
    let mut rng = Rng::new(7);
    // In the store, to stay and for a while, at both limits, behind them; then each in the place of another one.
    let lens = [5, 16 << 10, (16 << 10) + 1, 300_000, 0, 64 << 10, (64 << 10) + 1, 40_000, 9];
    for (round, len) in lens.into_iter().enumerate() {
        let bytes = random(&mut rng, len);
        for path in
            ["data/same".to_owned(), format!("/data/f{round}"), "data/../data/up".to_owned()]
        {
            one.write_file(&path, &bytes, 0o600).unwrap();
            assert!(two.read_file(&path).unwrap() == bytes, "{path} of {len} bytes");
            let attr = two.stat(&path).unwrap();
            assert_eq!((attr.size, attr.mode), (len as u64, 0o600));
            let whole = !path.contains("..");
            assert!(attr.is_stored() || len > 16 << 10, "{len} bytes stay");
            assert!(!attr.is_stored() || len <= if whole { 64 << 10 } else { 16 << 10 }, "{len}");
        }
    }
    // The same by an open file, which goes to chunks on its way.
    let file = one.open_file("data/grows", &OpenOptions::CREATE).unwrap();
    let (other, mut model) =
        (two.open_file("data/grows", &OpenOptions::UPDATE).unwrap(), Vec::new());
    for step in 0..60_usize {
        let (at, part) = (below(&mut rng, 400 * (step + 1)), random(&mut rng, 300));
        let writer = if step % 2 == 0 { &file } else { &other };
        model.resize(model.len().max(at + 300), 0);
        model[at..at + 300].copy_from_slice(&part);
        writer.write_batch(&[(at as u64, &part[..])]).unwrap();
        let mut seen = vec![1; model.len()];
        let reader = if step % 3 == 0 { &file } else { &other };
        let len = reader.read_batch(&mut [(0, &mut seen[..])]).unwrap()[0];
        assert!(len == model.len() && seen == model, "at step {step}");
    }
    file.set_len(9).unwrap();
    assert_eq!(two.read_file("data/grows").unwrap(), model[..9]);
    let small = one.open_file("data/small", &OpenOptions::CREATE).unwrap();
    small.write_batch(&[(0, b"0123456789")]).unwrap();
    small.set_len(4).unwrap();
    small.set_len(7).unwrap();
    assert_eq!(two.read_file("data/small").unwrap(), b"0123\0\0\0");
    assert!(!one.stat("data/grows").unwrap().is_stored() && model.len() > 16 << 10);
    let error = one.read_file("data/none").unwrap_err();
    assert_eq!(posix(&error), Some(MetaError::NotFound));
    let error = one.write_file("none/file", b"x", 0o600).unwrap_err();
    assert_eq!(posix(&error), Some(MetaError::NotFound));
}

#[test]
fn files_that_are_put_whole_go_to_chunks_later() {
    let cluster = Cluster::roomy(3, 2);
    let (one, two) = (volume(&cluster, 0), volume(&cluster, 0));
    let mut rng = Rng::new(8);
    let lens = [(16 << 10) + 1, 40_000, (64 << 10) - 1, 64 << 10];
    let files: Vec<_> = (0..40)
        .map(|n| {
            let (path, bytes) = (format!("put-{n}"), random(&mut rng, lens[n % lens.len()]));
            one.write_file(&path, &bytes, 0o600).unwrap();
            (path, bytes)
        })
        .collect();
    let before: Vec<Attr> = files.iter().map(|(path, _)| two.stat(path).unwrap()).collect();
    assert!(before.iter().any(Attr::is_stored), "nobody waits until they are there");
    // Some are changed on the way.
    let writer = two.open_file("put-0", &OpenOptions::UPDATE).unwrap();
    writer.write_batch(&[(100, b"changed")]).unwrap();
    writer.sync().unwrap();
    two.open_file("put-1", &OpenOptions::UPDATE).unwrap().set_len(500).unwrap();
    two.unlink("put-2").unwrap();
    one.write_file("put-3", b"another", 0o600).unwrap();
    until("all to be in chunks", || {
        let is_there = |(path, _): &(String, Vec<u8>)| !one.stat(path).unwrap().is_stored();
        let settled = files[4..].iter().all(is_there);
        for (path, bytes) in &files[4..] {
            assert!(&two.read_file(path).unwrap() == bytes, "{path}, on its way or not");
        }
        settled.then_some(())
    });
    for ((path, _), old) in files.iter().zip(&before).skip(4) {
        let new = one.stat(path).unwrap();
        assert_eq!((new.mtime, new.ctime, new.size), (old.mtime, old.ctime, old.size), "{path}");
    }
    let mut changed = files[0].1.clone();
    changed[100..107].copy_from_slice(b"changed");
    assert!(one.read_file("put-0").unwrap() == changed);
    assert!(one.read_file("put-1").unwrap() == files[1].1[..500]);
    assert_eq!(posix(&one.read_file("put-2").unwrap_err()), Some(MetaError::NotFound));
    assert_eq!(one.read_file("put-3").unwrap(), b"another");
}

#[test]
fn what_is_open_outlives_its_name_and_goes_with_the_session() {
    let cluster = Cluster::roomy(1, 1);
    let (one, two) = (volume(&cluster, 0), volume(&cluster, 0));
    let file = one.open_file("gone", &OpenOptions::CREATE).unwrap();
    file.write_batch(&[(0, &vec![5; 200_000])]).unwrap();
    let data = DataId(file.stat().unwrap().data);
    drop(one);
    two.unlink("gone").unwrap();
    assert_eq!(posix(&two.stat("gone").unwrap_err()), Some(MetaError::NotFound));
    let mut room = vec![0; 200_000];
    assert_eq!(file.read_batch(&mut [(0, &mut room[..])]).unwrap(), [200_000]);
    assert!(room.iter().all(|byte| *byte == 5), "a file holds its volume's session");

    let client = client_at(&cluster.nodes[0].address);
    let head = client.chains(None).unwrap().chains[0].nodes[0];
    let filter = ChunkFilter { data: Some(data), chain: None };
    let left = || client.list_chunks(head, filter, 0, None).unwrap().chunks.len();
    assert!(left() > 0);
    drop(file);
    until("its bytes to go", || (left() == 0).then_some(()));
}
