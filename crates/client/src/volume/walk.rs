//! Walking a path to an inode.

use std::collections::VecDeque;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use millpond_types::meta::{
    Attr, FILE_PATH_MAX, FileKind, Ino, MetaError, MetaOp, MetaReply, Name, NameError,
};

use super::session::{Metas, refused};
use crate::error::ClientError;

/// Most symbolic links in one path, as in Linux.
const LINKS_MAX: usize = 40;

/// End of a path.
#[derive(Debug)]
pub(super) struct Place {
    /// The directory of its last name, and that name; none for a path without names, such as `/`.
    pub(super) entry: Option<(Ino, Name)>,
    /// The attributes of the inode there, if it exists.
    pub(super) attr: Option<Attr>,
}

/// A path for messages.
pub(super) fn shown(path: &Path) -> String {
    path.display().to_string()
}

fn names(bytes: &[u8]) -> impl DoubleEndedIterator<Item = Vec<u8>> {
    bytes
        .split(|byte| *byte == b'/')
        .filter(|name| !matches!(*name, b"" | b"."))
        .map(<[u8]>::to_vec)
}

/// The names of a path that a meta can walk by itself; none for other paths.
pub(super) fn plain(path: &Path) -> Option<Vec<Name>> {
    let names: Option<Vec<Name>> =
        names(path.as_os_str().as_bytes()).map(|name| Name::new(&name).ok()).collect();
    names.filter(|names| (1..=FILE_PATH_MAX).contains(&names.len()))
}

fn name_error(error: NameError) -> MetaError {
    match error {
        NameError::TooLong(_) => MetaError::NameTooLong,
        NameError::NoName => MetaError::Invalid,
    }
}

impl Metas {
    /// Walks a path from the root of the volume; follows a symbolic link as its last name only if
    /// `follow`.
    pub(super) fn walk(&self, path: &Path, follow: bool) -> Result<Place, ClientError> {
        let text = &shown(path);
        let mut rest: VecDeque<Vec<u8>> = names(path.as_os_str().as_bytes()).collect();
        let (mut dirs, mut links) = (vec![Ino::ROOT], 0);
        while let Some(name) = rest.pop_front() {
            let dir = *dirs.last().unwrap_or(&Ino::ROOT);
            if name == b".." {
                if dirs.len() > 1 {
                    dirs.pop();
                }
                continue;
            }
            let name = Name::new(&name).map_err(|error| refused(text, name_error(error)))?;
            let attr = self.look_up(text, dir, &name)?;
            let last = rest.is_empty();
            match attr {
                Some(attr) if attr.kind == FileKind::Symlink && (follow || !last) => {
                    links += 1;
                    if links > LINKS_MAX {
                        return Err(refused(text, MetaError::Loop));
                    }
                    let target = self.target(text, attr.ino)?;
                    if target.starts_with(b"/") {
                        dirs.truncate(1);
                    }
                    names(&target).rev().for_each(|name| rest.push_front(name));
                }
                _ if last => return Ok(Place { entry: Some((dir, name)), attr }),
                Some(attr) if attr.is_dir() => dirs.push(attr.ino),
                Some(_) => return Err(refused(text, MetaError::NotDirectory)),
                None => return Err(refused(text, MetaError::NotFound)),
            }
        }
        let ino = *dirs.last().unwrap_or(&Ino::ROOT);
        let attr = self.attr_at(text, MetaOp::GetAttr { ino })?;
        Ok(Place { entry: None, attr: Some(attr) })
    }

    /// The directory and the last name of a path, whether the name exists or not.
    pub(super) fn entry(&self, path: &Path) -> Result<(Ino, Name), ClientError> {
        let place = self.walk(path, false)?;
        place.entry.ok_or_else(|| refused(&shown(path), MetaError::Invalid))
    }

    /// The attributes of the inode at a path.
    pub(super) fn inode(&self, path: &Path) -> Result<Attr, ClientError> {
        let place = self.walk(path, true)?;
        place.attr.ok_or_else(|| refused(&shown(path), MetaError::NotFound))
    }

    fn look_up(&self, path: &str, dir: Ino, name: &Name) -> Result<Option<Attr>, ClientError> {
        let op = MetaOp::Lookup { parent: dir, name: name.clone() };
        match self.ask(self.caller.clone(), op)? {
            Ok(MetaReply::Entry(entry)) => Ok(Some(entry.attr)),
            Ok(_) => Err(self.unexpected()),
            Err(MetaError::NotFound) => Ok(None),
            Err(source) => Err(refused(path, source)),
        }
    }

    fn target(&self, path: &str, ino: Ino) -> Result<Vec<u8>, ClientError> {
        match self.at(path, MetaOp::ReadLink { ino })? {
            MetaReply::Target(target) => Ok(target),
            _ => Err(self.unexpected()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_its_names() {
        let all: Vec<Vec<u8>> = names(b"//a/./b c/../d/").collect();
        assert_eq!(all, [&b"a"[..], b"b c", b"..", b"d"]);
        let plain = |text: &str| plain(Path::new(text)).map(|names| names.len());
        assert_eq!((plain("//a/./b/"), plain("/"), plain("a/../b")), (Some(2), None, None));
        assert_eq!(names(b"/").count() + names(b"").count(), 0);
    }
}
