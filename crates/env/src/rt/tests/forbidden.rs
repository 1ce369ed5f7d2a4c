//! `io_uring` forbidden by a real seccomp filter, as in the default profile of container engines.

use std::path::Path;
use std::process::Command;

use super::super::{IoBackend, Runtime, RuntimeOptions};
use crate::disk::{Disk, FileDisk};
use crate::error::EnvErrorKind;
use crate::net::{Stream, TcpListener};
use crate::pool::{BufferPool, PoolOptions};
use crate::rt::spawn;
use crate::sys::check;

/// Environment variable with the folder for the child, in which the filter applies.
const CHILD: &str = "MILLPOND_TEST_FORBIDDEN_FOLDER";

/// Refuses the system call `number` with `errno` from now on, on this thread and threads started by
/// it; with `second`, only when its second argument has that value.
fn forbid(number: libc::c_long, second: Option<u32>, errno: i32) {
    fn statement(code: u32, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
        libc::sock_filter { code: u16::try_from(code).unwrap(), jt, jf, k }
    }
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let answer = libc::BPF_RET | libc::BPF_K;
    let number = u32::try_from(number).unwrap();
    // Offsets in `seccomp_data`: the number at 0, the second argument at 24.
    let mut filter = vec![statement(load, 0, 0, 0)];
    if let Some(second) = second {
        filter.push(statement(equal, number, 0, 3));
        filter.push(statement(load, 24, 0, 0));
        filter.push(statement(equal, second, 0, 1));
    } else {
        filter.push(statement(equal, number, 0, 1));
    }
    let refuse = libc::SECCOMP_RET_ERRNO | errno.cast_unsigned();
    filter.push(statement(answer, refuse, 0, 0));
    filter.push(statement(answer, libc::SECCOMP_RET_ALLOW, 0, 0));
    let len = u16::try_from(filter.len()).unwrap();
    let program = libc::sock_fprog { len, filter: filter.as_mut_ptr() };
    // SAFETY: plain numbers, then a program of `len` statements that lives through the call.
    unsafe {
        check(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)).unwrap();
        let mode = libc::SECCOMP_MODE_FILTER;
        check(libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program)).unwrap();
    }
}

/// Runs the test `name` again in a child, because a filter cannot be removed; in that child, calls
/// `run` instead.
fn in_child(name: &str, run: impl FnOnce(&Path)) {
    if let Ok(folder) = std::env::var(CHILD) {
        run(Path::new(&folder));
        println!("the child has worked");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("rt::tests::forbidden::{name}"), "--nocapture"])
        .env(CHILD, folder.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success(), "{text}\n{}", String::from_utf8_lossy(&child.stderr));
    assert!(text.contains("the child has worked"), "the child ran another test: {text}");
}

#[test]
fn auto_falls_back_when_io_uring_is_forbidden() {
    in_child("auto_falls_back_when_io_uring_is_forbidden", |folder| {
        forbid(libc::SYS_io_uring_setup, None, libc::EPERM);
        work(folder);
    });
}

/// Effect of a limit on locked memory (`ulimit -l`) on an unprivileged process.
#[test]
fn a_pool_that_cannot_be_registered_still_works() {
    in_child("a_pool_that_cannot_be_registered_still_works", |folder| {
        const REGISTER_BUFFERS_UPDATE: u32 = 16;
        forbid(libc::SYS_io_uring_register, Some(REGISTER_BUFFERS_UPDATE), libc::ENOMEM);
        let pool = BufferPool::new(PoolOptions::new(1 << 20)).unwrap();
        let runtime = crate::rt::tests::runtime(IoBackend::Uring, Some(&pool));
        runtime.block_on(write_and_read(folder, &pool));
    });
}

async fn write_and_read(folder: &Path, pool: &BufferPool) {
    let disk = FileDisk::create(&folder.join("disk"), 1 << 20).unwrap();
    let buf = pool.try_copy(&[5; 8192]).unwrap().freeze();
    disk.write_sync(4096, buf).await.unwrap();
    let (buf, result) = disk.read(8192, pool.try_alloc(4096).unwrap()).await;
    result.unwrap();
    assert_eq!(*buf, [5; 4096]);
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
        write_and_read(folder, &pool).await;

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
