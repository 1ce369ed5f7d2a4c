//! Programs that nobody wrote for a mount do their work on one: git, tar, cargo with rustc and a linker,
//! `SQLite` with its shared memory, and a model file that is mapped.

use std::path::Path;
use std::process::{Command, Stdio};

use super::HANG;
use super::host::{Host, left_out};
use super::number;
use crate::process::Cluster;

/// `$0` is a folder on the mount, `$1` one beside it, `$2` how many files the repository has.
const GIT_AND_TAR: &str = r#"
    export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1
    git init -q "$1/repository"
    cd "$1/repository"
    for ((n = 0; n < $2; n++)); do
        mkdir -p "part$((n % 50))/sub$((n % 7))"
        printf 'file %d\n%*d\n' "$n" "$((n % 3000))" 0 > "part$((n % 50))/sub$((n % 7))/file$n.txt"
    done
    ln -s part0 link
    git add -A
    git -c user.name=test -c user.email=test@localhost commit -qm files
    git clone -q --no-hardlinks "$1/repository" "$0/clone"
    cd "$0/clone"
    git fsck --strict
    git checkout -q -b other
    git mv part0 moved
    git -c user.name=test -c user.email=test@localhost commit -qm moved
    git checkout -q -
    git gc -q
    test -z "$(git status --porcelain)"
    tar -C "$1" -cf "$1/files.tar" --exclude .git repository
    mkdir "$0/unpacked"
    tar -C "$0/unpacked" -xf "$1/files.tar"
    diff -r --no-dereference --exclude .git "$1/repository" "$0/unpacked/repository"
    rm -rf "$0/unpacked"
    test ! -e "$0/unpacked"
"#;

/// `$0` is a folder on the mount.
const BUILD: &str = r#"
    export CARGO_NET_OFFLINE=true CARGO_INCREMENTAL=1
    unset CARGO_TARGET_DIR CARGO_BUILD_TARGET_DIR RUSTFLAGS
    mkdir -p "$0/workspace/app/src" "$0/workspace/words/src"
    cd "$0/workspace"
    printf '[workspace]\nmembers = ["app", "words"]\nresolver = "2"\n' > Cargo.toml
    printf '[package]\nname = "words"\nversion = "0.1.0"\nedition = "2021"\n' > words/Cargo.toml
    printf '[package]\nname = "app"\nversion = "0.1.0"\nedition = "2021"\n[dependencies]\nwords = { path = "../words" }\n' > app/Cargo.toml
    echo 'pub fn all() -> Vec<String> { "built on a mount".split(" ").map(str::to_owned).collect() }' > words/src/lib.rs
    echo 'fn main() { println!("{}", words::all().join("-")); }' > app/src/main.rs
    cargo build -q
    test "$(target/debug/app)" = built-on-a-mount
    sed -i 's/on a mount/anew there/' words/src/lib.rs
    cargo build -q
    test "$(target/debug/app)" = built-anew-there
    cargo build -q --release
    test "$(target/release/app)" = built-anew-there
"#;

/// `argv[1]` is a folder on the mount.
const DATABASE: &str = r#"
import multiprocessing, os, sqlite3, sys

path = os.path.join(sys.argv[1], "database")

def connect():
    return sqlite3.connect(path, timeout=60, isolation_level=None)

def writer(who):
    database = connect()
    for n in range(100):
        database.execute("BEGIN IMMEDIATE")
        (total,) = database.execute("SELECT total FROM sums").fetchone()
        database.execute("INSERT INTO rows VALUES (?, ?)", (who, n))
        database.execute("UPDATE sums SET total = ?", (total + n,))
        database.execute("COMMIT")

database = connect()
assert database.execute("PRAGMA journal_mode=WAL").fetchone() == ("wal",)
database.execute("CREATE TABLE rows (who INTEGER, n INTEGER)")
database.execute("CREATE TABLE sums (total INTEGER)")
database.execute("INSERT INTO sums VALUES (0)")
database.close()
writers = [multiprocessing.Process(target=writer, args=(who,)) for who in range(3)]
for it in writers:
    it.start()
database = connect()
while any(it.is_alive() for it in writers):
    row = database.execute("SELECT (SELECT total FROM sums), (SELECT coalesce(sum(n), 0) FROM rows)").fetchone()
    assert row[0] == row[1], row
for it in writers:
    it.join()
    assert it.exitcode == 0
assert database.execute("SELECT total FROM sums").fetchone() == (3 * 4950,)
assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
"#;

/// `argv[1]` is a folder on the mount. The format is that of huggingface/safetensors' README: the length of the
/// header, the header in JSON, then the tensors.
const MODEL: &str = r#"
import array, json, mmap, os, random, struct, sys

path = os.path.join(sys.argv[1], "model.safetensors")
draw = random.Random(7)
tensors = {f"layer{n}.weight": array.array("f", (draw.random() for _ in range(draw.randrange(1, 200_000)))) for n in range(24)}
header, at = {}, 0
for name, values in tensors.items():
    size = 4 * len(values)
    header[name] = {"dtype": "F32", "shape": [len(values)], "data_offsets": [at, at + size]}
    at += size
text = json.dumps(header).encode()
with open(path + ".part", "wb") as file:
    file.write(struct.pack("<Q", len(text)) + text)
    for values in tensors.values():
        file.write(values.tobytes())
    os.fsync(file.fileno())
os.rename(path + ".part", path)
with open(path, "rb") as file:
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        (size,) = struct.unpack("<Q", mapped[:8])
        found = json.loads(mapped[8 : 8 + size])
        names = list(found)
        draw.shuffle(names)
        for name in names:
            first, last = found[name]["data_offsets"]
            assert mapped[8 + size + first : 8 + size + last] == tensors[name].tobytes(), name
"#;

fn succeeds(command: &mut Command) {
    let done = command.stdin(Stdio::null()).output().unwrap();
    let said = [done.stdout, done.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(done.status.success(), "{}", said.concat());
}

fn python(program: &str, folder: &Path) {
    succeeds(Command::new("python3").args(["-c", program]).arg(folder));
}

fn bash(program: &str, folders: &[&Path], last: &str) {
    succeeds(Command::new("bash").args(["-euxc", program]).args(folders).arg(last));
}

#[test]
fn programs_work_on_a_mount() {
    if left_out() {
        return;
    }
    let cluster = Cluster::roomy(3, 2);
    let host = Host::new(&cluster, 2 * HANG);
    for options in ["mode=close-to-open", "mode=strict", "mode=one-writer"] {
        let mount = host.mount(&options.replace('=', "-"), options);
        let (on, beside) = (mount.join(options), cluster.folder.path().join(options));
        for folder in [&on, &beside] {
            std::fs::create_dir(folder).unwrap();
        }
        bash(GIT_AND_TAR, &[&on, &beside], &number("MILLPOND_GIT_FILES", 300).to_string());
        bash(BUILD, &[&on], "");
        python(DATABASE, &on);
        python(MODEL, &on);
        host.umount(&mount);
    }
}
