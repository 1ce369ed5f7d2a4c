//! Seeds of the kernel's requests.

use millpond_fuse_wire::abi::{
    ExtHeader, ExtType, ForgetOne, InHeader, InitFlags, InitIn, Opcode, SetxattrIn, WriteIn,
};
use zerocopy::IntoBytes;

use crate::seeds::Seeds;

/// A request of these pieces; the last `words` words of 8 bytes are extensions.
fn request(opcode: Opcode, pieces: &[&[u8]], words: u16) -> Vec<u8> {
    let body = pieces.concat();
    let header = InHeader {
        len: u32::try_from(size_of::<InHeader>() + body.len()).expect("a small seed"),
        opcode: opcode as u32,
        unique: 2,
        nodeid: 1,
        total_extlen: words,
        ..InHeader::default()
    };
    [header.as_bytes(), &body].concat()
}

/// Seeds of every operation with room for its arguments and two names; operations with a count get
/// something to count.
#[must_use]
pub(crate) fn all() -> Seeds {
    let args = [&[0_u8; 88][..], b"name\0second\0"].concat();
    let mut seeds: Vec<_> = Opcode::ALL.iter().map(|&op| request(op, &[&args], 0)).collect();
    let names = [Opcode::Lookup, Opcode::Symlink, Opcode::Unlink, Opcode::Removexattr];
    seeds.extend(names.map(|op| request(op, &[b"name\0target\0"], 0)));
    let write = WriteIn { size: 5, ..WriteIn::default() };
    seeds.push(request(Opcode::Write, &[write.as_bytes(), b"hello"], 0));
    let set = SetxattrIn { size: 3, ..SetxattrIn::default() };
    seeds.push(request(Opcode::Setxattr, &[set.as_bytes(), b"user.a\0val"], 0));
    seeds.push(request(Opcode::Setxattr, &[&set.as_bytes()[..8], b"user.a\0val"], 0));
    let items = [ForgetOne { nodeid: 2, nlookup: 3 }; 2];
    let count = [2_u32, 0];
    seeds.push(request(Opcode::BatchForget, &[count.as_bytes(), items.as_bytes()], 0));
    let flags = u32::try_from(InitFlags::INIT_EXT.bits()).expect("a flag of the first word");
    let init = InitIn { major: 7, minor: 45, flags, ..InitIn::default() };
    seeds.push(request(Opcode::Init, &[init.as_bytes()], 0));
    seeds.push(request(Opcode::Init, &[&init.as_bytes()[..16]], 0));
    let groups = ExtHeader { size: 16, kind: ExtType::GROUPS.0 };
    let group = [1_u32, 100];
    let mkdir = [&[0_u8; 8][..], b"dir\0", groups.as_bytes(), group.as_bytes()];
    seeds.push(request(Opcode::Mkdir, &mkdir, 2));
    ("fuse_request", seeds)
}
