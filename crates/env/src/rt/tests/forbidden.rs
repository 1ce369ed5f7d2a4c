//! `io_uring` forbidden by a real seccomp filter, as the default profile of container engines does.

use std::path::Path;
use std::process::Command;

use super::super::{IoBackend, Runtime, RuntimeOptions};
use crate::disk::{Disk, FileDisk};
use crate::error::EnvErrorKind;
use crate::net::{Stream, TcpListener};
use crate::pool::{BufferPool, PoolOptions};
use crate::rt::spawn;
use crate::sys::check;

const CHILD: &str = "MILLPOND_TEST_FORBIDDEN_FOLDER";
const NAME: &str = "rt::tests::forbidden::auto_falls_back_when_io_uring_is_forbidden";

/// Answers EPERM to `io_uring_setup` from now on, on every thread of this process.
fn forbid() {
    fn statement(code: u32, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
        libc::sock_filter { code: u16::try_from(code).unwrap(), jt, jf, k }
    }
    // Refuse that one call, allow the rest. The first word of seccomp_data is its number.
    let filter = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        statement(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            u32::try_from(libc::SYS_io_uring_setup).unwrap(),
            0,
            1,
        ),
        statement(
            libc::BPF_RET | libc::BPF_K,
            libc::SECCOMP_RET_ERRNO | libc::EPERM.cast_unsigned(),
            0,
            0,
        ),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    let program = libc::sock_fprog { len: 4, filter: filter.as_ptr().cast_mut() };
    // SAFETY: plain numbers, then a program of four statements that lives through the call.
    unsafe {
        check(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)).unwrap();
        let mode = libc::SECCOMP_MODE_FILTER;
        check(libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program)).unwrap();
    }
}

/// Runs itself again in a child, because a filter cannot be taken off.
#[test]
fn auto_falls_back_when_io_uring_is_forbidden() {
    if let Ok(folder) = std::env::var(CHILD) {
        forbid();
        work(Path::new(&folder));
        println!("worked without io_uring");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", NAME, "--nocapture"])
        .env(CHILD, folder.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success(), "{text}\n{}", String::from_utf8_lossy(&child.stderr));
    assert!(text.contains("worked without io_uring"), "the child ran another test: {text}");
}

fn work(folder: &Path) {
    let forced = RuntimeOptions { io: IoBackend::Uring, ..Default::default() };
    let error = Runtime::new(forced).unwrap_err();
    assert_eq!(error.kind(), EnvErrorKind::Refused);
    assert!(error.to_string().contains("threads"), "{error}");

    let pool = BufferPool::new(PoolOptions::new(1 << 20)).unwrap();
    let options = RuntimeOptions { pools: vec![pool.clone()], ..Default::default() };
    let runtime = Runtime::new(options).unwrap();
    assert_eq!(runtime.backend(), IoBackend::Threads);
    let reason = runtime.fallback_reason().unwrap();
    assert_eq!(reason.raw_os_error(), Some(libc::EPERM));
    assert!(!runtime.buffers_registered());
    runtime.block_on(async {
        let disk = FileDisk::create(&folder.join("disk"), 1 << 20).unwrap();
        let buf = pool.try_copy(&[5; 8192]).unwrap().freeze();
        disk.write_sync(4096, buf).await.unwrap();
        let (buf, result) = disk.read(8192, pool.try_alloc(4096).unwrap()).await;
        result.unwrap();
        assert_eq!(*buf, [5; 4096]);

        let listener = TcpListener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let addr = listener.local_addr().unwrap();
        let server = spawn(async move {
            let mut stream = listener.accept().await.unwrap();
            let (bytes, result) = stream.read_some_vec(Vec::with_capacity(16)).await;
            result.unwrap();
            stream.write_all_vec(bytes).await.1.unwrap();
        });
        let mut stream = Stream::connect_tcp(addr).await.unwrap();
        stream.write_all_vec(b"hello".to_vec()).await.1.unwrap();
        let (bytes, _) = stream.read_some_vec(Vec::with_capacity(16)).await;
        assert_eq!(bytes, b"hello");
        server.await.unwrap();
    });
}
