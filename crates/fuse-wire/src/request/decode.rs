//! Decoding bytes into a request.

use zerocopy::FromBytes;

use super::{DecodeError, DecodeFault, Items, Operation, ReplyTo, Request, SuppGroups};
use crate::abi::{
    AccessIn, BatchForgetIn, COMPAT_SETXATTR_IN_SIZE, ExtHeader, ExtType, ForgetIn, GetxattrIn,
    InHeader, InitFlags, InitIn, InterruptIn, LinkIn, Opcode, RemoveMappingIn, Rename2In,
    RenameFlags, RenameIn, SetxattrFlags, SetxattrIn, UNIQUE_RESEND, WriteIn,
};

/// Length of an INIT before flags had a second word: four numbers.
const SHORT_INIT_IN: usize = 16;

pub(super) fn request(bytes: &[u8], granted: InitFlags) -> Result<Request<'_>, DecodeError> {
    let got = bytes.len();
    let Ok((header, rest)) = InHeader::read_from_prefix(bytes) else {
        return Err(DecodeError { fault: DecodeFault::Length { said: 0, got }, reply_to: None });
    };
    let opcode = Opcode::from_code(header.opcode);
    let wants_reply = opcode.is_none_or(Opcode::wants_reply);
    let reply_to = wants_reply.then_some(ReplyTo(header.unique));
    let fail = |fault| DecodeError { fault, reply_to };
    let said = header.len as usize;
    if said != got {
        return Err(fail(DecodeFault::Length { said, got }));
    }
    let Some(opcode) = opcode else {
        return Err(fail(DecodeFault::UnknownOperation { code: header.opcode }));
    };
    let mut args = Args { operation: opcode.name(), rest };
    let extensions = args.split_extensions(header.total_extlen).map_err(fail)?;
    let operation = operation(opcode, &mut args, granted).map_err(fail)?;
    let groups = groups(extensions, args.operation).map_err(fail)?;
    Ok(Request { header, operation, groups })
}

/// Decodes the operation `opcode` from its arguments.
fn operation<'a>(
    opcode: Opcode,
    args: &mut Args<'a>,
    granted: InitFlags,
) -> Result<Operation<'a>, DecodeFault> {
    Ok(match opcode {
        Opcode::Getattr => Operation::Getattr(args.fixed("getattr_in")?),
        Opcode::Statx => Operation::Statx(args.fixed("statx_in")?),
        Opcode::Setattr => Operation::Setattr(args.fixed("setattr_in")?),
        Opcode::Readlink => Operation::Readlink,
        Opcode::Open => Operation::Open(args.fixed("open_in")?),
        Opcode::Read => Operation::Read(args.fixed("read_in")?),
        Opcode::Write => write(args)?,
        Opcode::Statfs => Operation::Statfs,
        Opcode::Release => Operation::Release(args.fixed("release_in")?),
        Opcode::Fsync => Operation::Fsync(args.fixed("fsync_in")?),
        Opcode::Flush => Operation::Flush(args.fixed("flush_in")?),
        Opcode::Init => Operation::Init(init(args)?),
        Opcode::Opendir => Operation::Opendir(args.fixed("open_in")?),
        Opcode::Readdir => Operation::Readdir(args.fixed("read_in")?),
        Opcode::Readdirplus => Operation::Readdirplus(args.fixed("read_in")?),
        Opcode::Releasedir => Operation::Releasedir(args.fixed("release_in")?),
        Opcode::Fsyncdir => Operation::Fsyncdir(args.fixed("fsync_in")?),
        Opcode::Getlk => Operation::Getlk(args.fixed("lk_in")?),
        Opcode::Setlk => Operation::Setlk(args.fixed("lk_in")?),
        Opcode::Setlkw => Operation::Setlkw(args.fixed("lk_in")?),
        Opcode::Access => Operation::Access { mask: args.fixed::<AccessIn>("access_in")?.mask },
        Opcode::Interrupt => {
            let interrupted = args.fixed::<InterruptIn>("interrupt_in")?;
            Operation::Interrupt { unique: interrupted.unique & !UNIQUE_RESEND }
        }
        Opcode::Bmap => Operation::Bmap(args.fixed("bmap_in")?),
        Opcode::Destroy => Operation::Destroy,
        Opcode::Poll => Operation::Poll(args.fixed("poll_in")?),
        Opcode::Fallocate => Operation::Fallocate(args.fixed("fallocate_in")?),
        Opcode::Lseek => Operation::Lseek(args.fixed("lseek_in")?),
        Opcode::CopyFileRange => Operation::CopyFileRange(args.fixed("copy_file_range_in")?),
        Opcode::CopyFileRange64 => Operation::CopyFileRange64(args.fixed("copy_file_range_in")?),
        Opcode::SetupMapping => Operation::SetupMapping(args.fixed("setupmapping_in")?),
        Opcode::Syncfs => Operation::Syncfs,
        Opcode::Forget
        | Opcode::BatchForget
        | Opcode::RemoveMapping
        | Opcode::Ioctl
        | Opcode::NotifyReply => counted(opcode, args)?,
        _ => named(opcode, args, granted)?,
    })
}

/// Decodes operations with a counted number of bytes or items after the fixed part.
fn counted<'a>(opcode: Opcode, args: &mut Args<'a>) -> Result<Operation<'a>, DecodeFault> {
    Ok(match opcode {
        Opcode::BatchForget => {
            let batch: BatchForgetIn = args.fixed("batch_forget_in")?;
            Operation::BatchForget { items: args.items(batch.count, "count")? }
        }
        Opcode::RemoveMapping => {
            let batch: RemoveMappingIn = args.fixed("removemapping_in")?;
            Operation::RemoveMapping { items: args.items(batch.count, "count")? }
        }
        Opcode::Ioctl => {
            let fixed: crate::abi::IoctlIn = args.fixed("ioctl_in")?;
            Operation::Ioctl { args: fixed, data: args.bytes(fixed.in_size, "in_size")? }
        }
        Opcode::NotifyReply => {
            let fixed: crate::abi::NotifyRetrieveIn = args.fixed("notify_retrieve_in")?;
            Operation::NotifyReply { args: fixed, data: args.bytes(fixed.size, "size")? }
        }
        _ => Operation::Forget { nlookup: args.fixed::<ForgetIn>("forget_in")?.nlookup },
    })
}

/// Decodes operations with names.
fn named<'a>(
    opcode: Opcode,
    args: &mut Args<'a>,
    granted: InitFlags,
) -> Result<Operation<'a>, DecodeFault> {
    Ok(match opcode {
        Opcode::Symlink => {
            Operation::Symlink { name: args.name("name")?, target: args.name("target")? }
        }
        Opcode::Mknod => {
            Operation::Mknod { args: args.fixed("mknod_in")?, name: args.name("name")? }
        }
        Opcode::Mkdir => {
            Operation::Mkdir { args: args.fixed("mkdir_in")?, name: args.name("name")? }
        }
        Opcode::Unlink => Operation::Unlink { name: args.name("name")? },
        Opcode::Rmdir => Operation::Rmdir { name: args.name("name")? },
        Opcode::Rename => {
            let RenameIn { newdir } = args.fixed("rename_in")?;
            rename(args, newdir, RenameFlags::NONE)?
        }
        Opcode::Rename2 => {
            let fixed: Rename2In = args.fixed("rename2_in")?;
            rename(args, fixed.newdir, fixed.flags)?
        }
        Opcode::Link => {
            let LinkIn { oldnodeid } = args.fixed("link_in")?;
            Operation::Link { inode: oldnodeid, name: args.name("name")? }
        }
        Opcode::Setxattr => setxattr(args, granted)?,
        Opcode::Getxattr => {
            let fixed: GetxattrIn = args.fixed("getxattr_in")?;
            Operation::Getxattr { size: fixed.size, name: args.name("name")? }
        }
        Opcode::Listxattr => {
            Operation::Listxattr { size: args.fixed::<GetxattrIn>("getxattr_in")?.size }
        }
        Opcode::Removexattr => Operation::Removexattr { name: args.name("name")? },
        Opcode::Create => {
            Operation::Create { args: args.fixed("create_in")?, name: args.name("name")? }
        }
        Opcode::Tmpfile => {
            Operation::Tmpfile { args: args.fixed("create_in")?, name: args.name("name")? }
        }
        _ => Operation::Lookup { name: args.name("name")? },
    })
}

fn write<'a>(args: &mut Args<'a>) -> Result<Operation<'a>, DecodeFault> {
    let fixed: WriteIn = args.fixed("write_in")?;
    Ok(Operation::Write { args: fixed, data: args.bytes(fixed.size, "size")? })
}

fn rename<'a>(
    args: &mut Args<'a>,
    new_parent: u64,
    flags: RenameFlags,
) -> Result<Operation<'a>, DecodeFault> {
    let (name, new_name) = (args.name("name")?, args.name("new_name")?);
    Ok(Operation::Rename { new_parent, flags, name, new_name })
}

/// Decodes a SETXATTR; the length of its structure depends on INIT.
fn setxattr<'a>(args: &mut Args<'a>, granted: InitFlags) -> Result<Operation<'a>, DecodeFault> {
    let fixed: SetxattrIn = if granted.contains(InitFlags::SETXATTR_EXT) {
        args.fixed("setxattr_in")?
    } else {
        let [size, flags]: [u32; 2] = args.fixed("setxattr_in")?;
        SetxattrIn { size, flags, setxattr_flags: SetxattrFlags::NONE, padding: 0 }
    };
    let name = args.name("name")?;
    let value = args.bytes(fixed.size, "size")?;
    let SetxattrIn { flags, setxattr_flags, .. } = fixed;
    Ok(Operation::Setxattr { flags, setxattr_flags, name, value })
}

const _: () = assert!(size_of::<[u32; 2]>() == COMPAT_SETXATTR_IN_SIZE);

/// Decodes an INIT; kernels before 7.36 send a short one.
fn init(args: &mut Args<'_>) -> Result<InitIn, DecodeFault> {
    if args.rest.len() >= size_of::<InitIn>() {
        return args.fixed("init_in");
    }
    let [major, minor, max_readahead, flags]: [u32; SHORT_INIT_IN / 4] = args.fixed("init_in")?;
    Ok(InitIn { major, minor, max_readahead, flags, ..InitIn::default() })
}

/// Finds the groups among the extensions; other kinds are skipped, so that newer kernels may add
/// some.
fn groups<'a>(
    mut rest: &'a [u8],
    operation: &'static str,
) -> Result<Option<SuppGroups<'a>>, DecodeFault> {
    let invalid = |field| DecodeFault::Invalid { operation, field };
    let mut groups = None;
    while !rest.is_empty() {
        let (header, _) = ExtHeader::read_from_prefix(rest).map_err(|_| invalid("ext_header"))?;
        let size = header.size as usize;
        if size < size_of::<ExtHeader>() || size > rest.len() {
            return Err(invalid("ext_header.size"));
        }
        if ExtType(header.kind) == ExtType::GROUPS {
            let body = Args { operation, rest: &rest[size_of::<ExtHeader>()..size] };
            groups = Some(SuppGroups(supplementary(body)?));
        }
        // The total length is in words of 8 bytes, so each extension ends at such a word.
        rest = &rest[size.next_multiple_of(8).min(rest.len())..];
    }
    Ok(groups)
}

fn supplementary(mut body: Args<'_>) -> Result<Items<'_, u32>, DecodeFault> {
    let count: u32 = body.fixed("nr_groups")?;
    body.items(count, "groups")
}

/// The arguments not consumed yet.
struct Args<'a> {
    operation: &'static str,
    rest: &'a [u8],
}

impl<'a> Args<'a> {
    /// Takes the extensions off the end; the header counts them in words of 8 bytes.
    fn split_extensions(&mut self, words: u16) -> Result<&'a [u8], DecodeFault> {
        let bytes = usize::from(words) * 8;
        let at = self.rest.len().checked_sub(bytes).ok_or(self.cut_off("total_extlen"))?;
        let (args, extensions) = self.rest.split_at(at);
        self.rest = args;
        Ok(extensions)
    }

    fn cut_off(&self, field: &'static str) -> DecodeFault {
        DecodeFault::CutOff { operation: self.operation, field }
    }

    /// Takes a structure of fixed length.
    fn fixed<T: FromBytes>(&mut self, field: &'static str) -> Result<T, DecodeFault> {
        let (value, rest) = T::read_from_prefix(self.rest).map_err(|_| self.cut_off(field))?;
        self.rest = rest;
        Ok(value)
    }

    /// Takes `len` bytes.
    fn bytes(&mut self, len: u32, field: &'static str) -> Result<&'a [u8], DecodeFault> {
        let split = self.rest.split_at_checked(len as usize);
        let (bytes, rest) = split.ok_or(self.cut_off(field))?;
        self.rest = rest;
        Ok(bytes)
    }

    /// Takes `count` structures of fixed length.
    fn items<T>(&mut self, count: u32, field: &'static str) -> Result<Items<'a, T>, DecodeFault> {
        let len = (count as usize).checked_mul(size_of::<T>());
        let split = len.and_then(|len| self.rest.split_at_checked(len));
        let (bytes, rest) = split.ok_or(self.cut_off(field))?;
        self.rest = rest;
        Ok(Items::new(bytes))
    }

    /// Takes the bytes up to a zero, at least one.
    fn name(&mut self, field: &'static str) -> Result<&'a [u8], DecodeFault> {
        let end = self.rest.iter().position(|&byte| byte == 0).ok_or(self.cut_off(field))?;
        if end == 0 {
            return Err(DecodeFault::Invalid { operation: self.operation, field });
        }
        let name = &self.rest[..end];
        self.rest = &self.rest[end + 1..];
        Ok(name)
    }
}
