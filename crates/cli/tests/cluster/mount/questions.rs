//! What a mount knows by itself is not asked for, and what others change is not missed by that.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::SystemTime;

use super::HANG;
use super::host::{Host, left_out};
use super::promises::number;
use super::watch::{Grown, stats};
use crate::process::{Cluster, until};

const FILES: u64 = 20;

fn work_in(folder: &Path) {
    fs::create_dir(folder).unwrap();
    for n in 0..FILES {
        let path = folder.join(n.to_string());
        assert!(!path.exists());
        let mut file = File::create_new(&path).unwrap();
        file.write_all(b"content").unwrap();
        drop(file);
        let (file, dir) = (fs::metadata(&path).unwrap(), fs::metadata(folder).unwrap());
        assert_eq!((file.len(), dir.is_dir()), (7, true));
    }
    let too_long = folder.join("n".repeat(256));
    let errors = [fs::metadata(&too_long).map(drop), fs::remove_file(&too_long)];
    for error in errors.map(Result::unwrap_err) {
        assert_eq!(error.raw_os_error(), Some(libc::ENAMETOOLONG));
    }
    for n in 0..FILES {
        fs::remove_file(folder.join(n.to_string())).unwrap();
        assert!(!folder.join(n.to_string()).exists());
    }
}

#[test]
fn names_in_a_new_directory_are_made_without_questions() {
    if left_out() {
        return;
    }
    let cluster = Cluster::start(3, 2);
    let host = Host::new(&cluster, HANG);
    // A name, its bytes, and its end; or all at once, and its end, both soon.
    for (options, least, most) in [("nodelegations", 3, 3), ("", 1, 2)] {
        let target = host.mount(if options.is_empty() { "held" } else { "shared" }, options);
        let before = stats(&target);
        work_in(&target.join(format!("folder{most}")));
        until("metas have all of it", || {
            (number(&host, &target, "millpond_mount_promised_changes") == 0).then_some(())
        });
        let grown = Grown(before, stats(&target));
        let asked = |call| grown.by(&format!("meta_seconds_count{{call=\"{call}\"}}"));
        // The folder, too.
        let changes = asked("change") - 1;
        assert!((least * FILES..=most * FILES + 2).contains(&changes), "{options}: {changes}");
        // The root and the folder's name at the begin; what the kernel had forgotten by the time it was asked.
        assert!(asked("look") <= 8, "{} questions for {FILES} files", asked("look"));
    }
}

#[test]
fn what_others_make_in_a_new_directory_is_found() {
    if left_out() {
        return;
    }
    let cluster = Cluster::start(3, 2);
    let host = Host::new(&cluster, HANG);
    let (one, two) = (host.mount("one", ""), host.mount("two", ""));
    fs::create_dir(one.join("folder")).unwrap();
    until("both to see it", || two.join("folder").exists().then_some(()));
    for n in 0..20 {
        let (here, there) = (one.join(format!("folder/{n}")), two.join(format!("folder/{n}")));
        assert!(!here.exists());
        fs::write(&there, "of another").unwrap();
        let made = SystemTime::now();
        until("the name to be seen", || here.exists().then_some(()));
        assert!(made.elapsed().unwrap().as_millis() < 1000);
        // What is known of the directory is the last change, whoever made it.
        let times = |path: &Path| {
            let meta = fs::metadata(path.join("folder")).unwrap();
            (meta.mtime(), meta.mtime_nsec(), meta.nlink())
        };
        until("one time", || (times(&one) == times(&two)).then_some(()));
        fs::rename(&here, one.join(format!("folder/{n}.moved"))).unwrap();
        fs::create_dir(one.join(format!("folder/{n}.dir"))).unwrap();
        assert!(!here.exists());
        until("the same there", || (!there.exists()).then_some(()));
        until("one time", || (times(&one) == times(&two)).then_some(()));
        assert_eq!(times(&one).2, 3 + n);
    }
}
