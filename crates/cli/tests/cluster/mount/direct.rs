//! Writes past the kernel's pages that it does not wait for: whoever reads through pages sees them once they are done.

use std::fs;
use std::process::{Command, Stdio};

use super::HANG;
use super::host::{Host, left_out};
use crate::process::Cluster;

/// Writes blocks of a file with `io_submit`, while others read it through pages; what is done is seen at once.
const WRITER: &str = r#"
import ctypes, mmap, os, platform, struct, subprocess, sys, threading

path, blocks, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
BLOCK = 4096
SETUP, GETEVENTS, SUBMIT = (0, 4, 2) if platform.machine() == "aarch64" else (206, 208, 209)
libc = ctypes.CDLL(None, use_errno=True)

def call(number, *args):
    done = libc.syscall(ctypes.c_long(number), *args)
    assert done >= 0, os.strerror(ctypes.get_errno())
    return done

context = ctypes.c_ulong(0)
call(SETUP, ctypes.c_long(64), ctypes.byref(context))
direct = os.open(path, os.O_RDWR | os.O_DIRECT)
plain = os.open(path, os.O_RDONLY)
mapped = mmap.mmap(plain, blocks * BLOCK, prot=mmap.PROT_READ)
buffers = mmap.mmap(-1, blocks * BLOCK)
address = ctypes.addressof(ctypes.c_char.from_buffer(buffers))

READER = """
import mmap, os, sys
file = os.open(sys.argv[1], os.O_RDONLY)
mapped = mmap.mmap(file, int(sys.argv[2]) * 4096, prot=mmap.PROT_READ)
print("ready", flush=True)
while os.getppid() == int(sys.argv[3]):
    for n in range(int(sys.argv[2])):
        os.pread(file, 8, n * 4096)
        mapped[n * 4096]
"""
readers = [
    subprocess.Popen([sys.executable, "-c", READER, path, str(blocks), str(os.getpid())],
                     stdout=subprocess.PIPE)
    for _ in range(2)
]
try:
    for reader in readers:
        assert reader.stdout.readline() == b"ready\n"
    for generation in range(1, rounds + 1):
        requests, pointers = [], (ctypes.c_void_p * blocks)()
        for n in range(blocks):
            buffers[n * BLOCK:(n + 1) * BLOCK] = struct.pack("<Q", generation) * (BLOCK // 8)
            # data, key, flags, opcode (PWRITE), priority, file, buffer, bytes, offset
            request = struct.pack("<QIIHhIQQqQII", n, 0, 0, 1, 0, direct, address + n * BLOCK, BLOCK,
                                  n * BLOCK, 0, 0, 0)
            requests.append(ctypes.create_string_buffer(request, 64))
            pointers[n] = ctypes.addressof(requests[-1])
        assert call(SUBMIT, context, ctypes.c_long(blocks), pointers) == blocks
        for _ in range(blocks):
            event = (ctypes.c_ulonglong * 4)()
            call(GETEVENTS, context, ctypes.c_long(1), ctypes.c_long(1), event, None)
            n, done = event[0], event[2]
            assert done == BLOCK, done
            for how, bytes in [("pread", os.pread(plain, 8, n * BLOCK)),
                               ("mapping", mapped[n * BLOCK:n * BLOCK + 8])]:
                found = struct.unpack("<Q", bytes)[0]
                assert found == generation, f"block {n}: {how} sees {found} after {generation}"
finally:
    for reader in readers:
        reader.kill()
"#;

#[test]
fn asynchronous_direct_writes_are_seen_when_they_are_done() {
    if left_out() {
        return;
    }
    let cluster = Cluster::roomy(3, 2);
    let host = Host::new(&cluster, HANG);
    for (options, blocks) in [
        ("", 32),
        ("threads=2", 32),
        ("", 3),
        ("mode=relaxed", 32),
        ("mode=one-writer", 32),
        ("mode=strict", 32),
    ] {
        let name = format!("{}-{blocks}", options.replace('=', "-"));
        let mount = host.mount(&name, options);
        let path = mount.join(&name);
        fs::write(&path, vec![0; blocks * 4096]).unwrap();
        let mut writer = Command::new("python3");
        writer.args(["-c", WRITER]).arg(&path).args([&blocks.to_string(), "15"]);
        let done = writer.stdin(Stdio::null()).output().unwrap();
        assert!(done.status.success(), "{name}: {}", String::from_utf8_lossy(&done.stderr));
        host.umount(&mount);
    }
}
