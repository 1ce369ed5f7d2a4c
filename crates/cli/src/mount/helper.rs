//! `mount.millpond`: what mount(8) runs for `mount -t millpond` and for lines of `/etc/fstab`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use clap::{ArgAction, Parser};
use millpond_client::Addresses;

use super::{Args, RunDirArgs};
use crate::exit::{OK, Outcome};

/// Name under which mount(8) looks for the program, in `/sbin`.
const NAME: &str = "mount.millpond";
/// Options of fstab(5) and mount(8) that are for them, or that every mount of ours has.
const FOR_OTHERS: [&str; 22] = [
    "defaults",
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "owner",
    "noowner",
    "group",
    "nogroup",
    "_netdev",
    "nofail",
    "async",
    "atime",
    "diratime",
    "nodiratime",
    "norelatime",
    "lazytime",
    "nolazytime",
    "silent",
    "loud",
    "nomand",
];

/// Mount as `millpond mount` does, called by mount(8): a link to millpond with this name in /sbin.
#[derive(Debug, Parser)]
#[command(
    name = NAME,
    version,
    after_help = "Options of -o: those of `millpond mount`, and\n  \
                  token_file=FILE  file with the credential, if the cluster requires one\n  \
                  run_dir=FOLDER   run directory of the processes that serve mounts\n  \
                  log_file=FILE    log file of these processes\n\n\
                  Examples:\n  ln -s \"$(command -v millpond)\" /sbin/mount.millpond\n  \
                  mount -t millpond 10.0.0.1:7440,10.0.0.2:7440 /models -o mode=read-only"
)]
struct Helper {
    /// Addresses of some nodes of the cluster: HOST:PORT, comma-separated.
    cluster: Addresses,
    /// Folder to mount the files on.
    mountpoint: PathBuf,
    /// Mount options, comma-separated.
    #[arg(short, value_name = "OPTIONS")]
    options: Vec<String>,
    /// Check the options, and mount nothing.
    #[arg(short)]
    fake: bool,
    /// No effect, as for -n and -v: unknown options are rejected.
    #[arg(short, short_aliases = ['n', 'v'], action = ArgAction::Count)]
    sloppy: u8,
    /// Not supported: the mount is made in the namespace of the caller.
    #[arg(short = 'N', value_name = "NAMESPACE")]
    namespace: Option<String>,
    /// Type and subtype, as given to mount(8).
    #[arg(short = 't', value_name = "TYPE")]
    kind: Option<String>,
}

/// Whether the program was called by the name of the helper.
pub(crate) fn is_called(args: &[OsString]) -> bool {
    args.first().is_some_and(|name| Path::new(name).file_name().is_some_and(|it| it == NAME))
}

/// Runs it, or says with which exit code its arguments end it.
pub(crate) fn run(args: &[OsString]) -> Result<Outcome, i32> {
    let helper = Helper::try_parse_from(args).map_err(|error| {
        let _ = error.print();
        error.exit_code()
    })?;
    Ok(mount(&helper))
}

fn mount(helper: &Helper) -> Outcome {
    let args = translate(helper)?;
    if helper.fake {
        super::spec(&args)?;
        return Ok(OK);
    }
    super::run(&args)
}

fn translate(helper: &Helper) -> anyhow::Result<Args> {
    ensure!(helper.namespace.is_none(), "-N: use nsenter(1) to mount in another namespace");
    let mut args = Args {
        cluster: helper.cluster.clone(),
        mountpoint: helper.mountpoint.clone(),
        options: String::new(),
        token: std::env::var("MILLPOND_TOKEN").unwrap_or_default(),
        foreground: false,
        log_file: None,
        run_dir: RunDirArgs { run_dir: std::env::var_os("MILLPOND_RUN_DIR").map(PathBuf::from) },
    };
    let mut own = Vec::new();
    for option in helper.options.iter().flat_map(|it| it.split(',')).filter(|it| !it.is_empty()) {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        match name {
            "token_file" => {
                let text = std::fs::read_to_string(value).with_context(|| option.to_owned())?;
                text.trim().clone_into(&mut args.token);
            }
            "run_dir" => args.run_dir.run_dir = Some(value.into()),
            "log_file" => args.log_file = Some(value.into()),
            "remount" => bail!(
                "remount: a mount keeps its options: run `umount {0}`, and mount it again",
                helper.mountpoint.display()
            ),
            _ if FOR_OTHERS.contains(&name) || name == "comment" || name.starts_with("x-") => {}
            _ => own.push(option),
        }
    }
    args.options = own.join(",");
    Ok(args)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translated(line: &str) -> anyhow::Result<Args> {
        let args: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        assert!(is_called(&args));
        translate(&Helper::try_parse_from(args)?)
    }

    #[test]
    fn lines_of_fstab_are_understood() {
        let args = translated(
            "/sbin/mount.millpond a:1,b:2 /mnt -n -o rw,_netdev,x-systemd.automount,nofail,comment=a,mode=strict -o run_dir=/run/m,threads=4",
        );
        let args = args.unwrap();
        assert_eq!(
            (args.options.as_str(), args.cluster.to_string()),
            ("rw,mode=strict,threads=4", "a:1,b:2".into())
        );
        assert_eq!(args.run_dir.run_dir, Some("/run/m".into()));
        let plain = translated("mount.millpond a:1 /mnt").unwrap();
        assert!(plain.options.is_empty() && plain.log_file.is_none());
    }

    #[test]
    fn what_cannot_be_done_is_refused_by_name() {
        for (options, part) in [
            ("-o remount,ro", "umount /mnt"),
            ("-o token_file=/nowhere/t", "token_file=/nowhere/t"),
            ("-N 12", "nsenter"),
        ] {
            let error = translated(&format!("mount.millpond a:1 /mnt {options}")).unwrap_err();
            assert!(format!("{error:#}").contains(part), "{error:#}");
        }
        assert!(!is_called(&["millpond".into()]) && !is_called(&[]));
    }
}
