//! Bytes that were written and are lost, as applications on a mount see them (RFC 0029).

use std::fs;
use std::os::unix::fs::FileExt as _;

use super::HANG;
use super::host::{Host, left_out};
use crate::missing::{client, lose, pattern, volume};
use crate::process::{Cluster, until};

#[test]
fn a_mount_reads_no_zeros_where_bytes_are_lost() {
    if left_out() {
        return;
    }
    let cluster = Cluster::start(2, 2);
    let (volume, client) = (volume(&cluster), client(&cluster));
    let host = Host::new(&cluster, HANG);
    for mode in ["mode=close-to-open", "mode=strict", "mode=one-writer"] {
        let name = mode.trim_start_matches("mode=");
        let target = host.mount(name, mode);
        let path = target.join(name);
        let bytes = pattern(9 << 20, 4);
        fs::write(&path, &bytes).unwrap();
        let open = fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
        open.sync_all().unwrap();
        let attr = until("metas to know it", || {
            volume.stat(name).ok().filter(|attr| attr.solid == bytes.len() as u64)
        })
        .0;
        let chunk = attr.layout.chunk_bytes();
        lose(&client, &attr, 1);
        drop(open);
        host.umount(&target);
        let target = host.mount(&format!("{name}-again"), mode);
        let file = fs::OpenOptions::new().read(true).write(true).open(target.join(name)).unwrap();
        let mut piece = vec![9; 4096];
        let failed = file.read_exact_at(&mut piece, chunk + 8192).unwrap_err();
        assert_eq!(failed.raw_os_error(), Some(libc::EIO), "{mode}");
        file.read_exact_at(&mut piece, 0).unwrap();
        assert!(piece == bytes[..4096], "the others are there");
        // A hole is one that is made.
        file.set_len(chunk).unwrap();
        file.set_len(3 * chunk).unwrap();
        file.read_exact_at(&mut piece, chunk + 8192).unwrap();
        assert!(piece.iter().all(|byte| *byte == 0), "{mode}");
        drop(file);
        host.umount(&target);
    }
}
