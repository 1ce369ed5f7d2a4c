//! Every operation can be decoded, and no input panics.

use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any, prop_oneof, proptest};
use zerocopy::IntoBytes;

use super::{DecodeError, DecodeFault, Operation, ReplyTo, Request};
use crate::abi::{
    ExtHeader, ForgetOne, InHeader, InitFlags, Opcode, RenameFlags, SetattrIn, SetattrValid,
    TimeToSet, UNIQUE_RESEND, WriteIn,
};

/// A request with these argument bytes, `words` words of which are extensions.
fn message(code: u32, args: &[&[u8]], words: u16) -> Vec<u8> {
    let args = args.concat();
    let header = InHeader {
        len: u32::try_from(size_of::<InHeader>() + args.len()).unwrap(),
        opcode: code,
        unique: 10,
        nodeid: 1,
        total_extlen: words,
        ..InHeader::default()
    };
    [header.as_bytes(), &args].concat()
}

fn of(opcode: Opcode, args: &[&[u8]]) -> Vec<u8> {
    message(opcode as u32, args, 0)
}

fn decode(bytes: &[u8]) -> Result<Request<'_>, DecodeError> {
    Request::decode(bytes, InitFlags::SETXATTR_EXT)
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

#[test]
fn names_and_data_are_borrowed() {
    let bytes = of(Opcode::Lookup, &[b"file\0"]);
    assert_eq!(decode(&bytes).unwrap().operation, Operation::Lookup { name: b"file" });
    let write = WriteIn { fh: 3, offset: 4096, size: 5, ..WriteIn::default() };
    let bytes = of(Opcode::Write, &[write.as_bytes(), b"hello"]);
    let request = decode(&bytes).unwrap();
    assert_eq!(request.operation, Operation::Write { args: write, data: b"hello" });
    assert_eq!(request.opcode(), Opcode::Write);
}

#[test]
fn both_renames_are_one_operation() {
    let expected = |flags| Operation::Rename { new_parent: 9, flags, name: b"a", new_name: b"b" };
    let bytes = of(Opcode::Rename, &[&9_u64.to_ne_bytes(), b"a\0b\0"]);
    assert_eq!(decode(&bytes).unwrap().operation, expected(RenameFlags::NONE));
    let bytes = of(Opcode::Rename2, &[&9_u64.to_ne_bytes(), &words(&[1, 0]), b"a\0b\0"]);
    assert_eq!(decode(&bytes).unwrap().operation, expected(RenameFlags::NOREPLACE));
}

#[test]
fn the_length_of_setxattr_follows_what_was_granted() {
    let long = of(Opcode::Setxattr, &[&words(&[3, 1, 1, 0]), b"user.a\0", b"val"]);
    let short = of(Opcode::Setxattr, &[&words(&[3, 1]), b"user.a\0", b"val"]);
    let check = |bytes: &[u8], granted, kill: u32| {
        let request = Request::decode(bytes, granted).unwrap();
        let Operation::Setxattr { flags, setxattr_flags, name, value } = request.operation else {
            panic!("{request:?}")
        };
        assert_eq!((flags, setxattr_flags.bits()), (1, kill));
        assert_eq!((name, value), (&b"user.a"[..], &b"val"[..]));
    };
    check(&long, InitFlags::SETXATTR_EXT, 1);
    check(&short, InitFlags::NONE, 0);
}

#[test]
fn an_init_may_be_short() {
    let bytes = of(Opcode::Init, &[&words(&[7, 31, 65_536, 5])]);
    let Operation::Init(init) = decode(&bytes).unwrap().operation else { panic!("no INIT") };
    assert_eq!((init.major, init.minor, init.max_readahead, init.flags2), (7, 31, 65_536, 0));
    assert_eq!(init.offered(), InitFlags::from_bits(5));
}

#[test]
fn counted_items_are_bounded_by_the_bytes() {
    let items = [ForgetOne { nodeid: 1, nlookup: 2 }, ForgetOne { nodeid: 3, nlookup: 4 }];
    let bytes = of(Opcode::BatchForget, &[&words(&[2, 0]), items.as_bytes()]);
    let request = decode(&bytes).unwrap();
    let Operation::BatchForget { items: got } = &request.operation else { panic!("{request:?}") };
    assert_eq!(got.iter().collect::<Vec<_>>(), items);
    let bytes = of(Opcode::BatchForget, &[&words(&[u32::MAX, 0]), items.as_bytes()]);
    let error = decode(&bytes).unwrap_err();
    assert_eq!(error.to_string(), "BATCH_FORGET: field 'count' is cut off");
    assert_eq!(error.answer(), None, "nobody waits for a reply");
}

#[test]
fn a_resend_keeps_its_number_and_its_address() {
    let mut bytes = of(Opcode::Readlink, &[]);
    bytes[8..16].copy_from_slice(&(UNIQUE_RESEND + 10).to_ne_bytes());
    let request = decode(&bytes).unwrap();
    assert!(request.resent());
    assert_eq!(request.unique(), 10);
    assert_eq!(request.reply_to(), ReplyTo::from_raw(UNIQUE_RESEND + 10));
    let interrupt = of(Opcode::Interrupt, &[&(UNIQUE_RESEND + 10).to_ne_bytes()]);
    let interrupt = decode(&interrupt).unwrap();
    assert_eq!(interrupt.operation, Operation::Interrupt { unique: request.unique() });
}

#[test]
fn groups_are_found_among_the_extensions() {
    let other = ExtHeader { size: 12, kind: 99 };
    let groups = ExtHeader { size: 20, kind: 32 };
    let extensions = [other.as_bytes(), &[0; 8], groups.as_bytes(), &words(&[2, 7, 8, 0])].concat();
    let args: [&[u8]; 3] = [&words(&[0o755, 0]), b"dir\0", &extensions];
    let count = u16::try_from(extensions.len() / 8).unwrap();
    let bytes = message(Opcode::Mkdir as u32, &args, count);
    let request = decode(&bytes).unwrap();
    assert!(matches!(request.operation, Operation::Mkdir { name: b"dir", .. }));
    assert_eq!(request.groups.unwrap().iter().collect::<Vec<_>>(), [7, 8]);
    let too_long = ExtHeader { size: 4096, kind: 32 };
    let bytes = message(Opcode::Readlink as u32, &[too_long.as_bytes()], 1);
    let error = decode(&bytes).unwrap_err();
    assert_eq!(error.to_string(), "READLINK: field 'ext_header.size' is not valid");
}

#[test]
fn faults_name_operation_and_field() {
    let fault = |bytes: &[u8]| decode(bytes).unwrap_err().to_string();
    assert_eq!(fault(&of(Opcode::Read, &[&[0; 39]])), "READ: field 'read_in' is cut off");
    assert_eq!(fault(&of(Opcode::Unlink, &[b"no end"])), "UNLINK: field 'name' is cut off");
    assert_eq!(fault(&of(Opcode::Unlink, &[b"\0"])), "UNLINK: field 'name' is not valid");
    let write = WriteIn { size: 6, ..WriteIn::default() };
    assert_eq!(
        fault(&of(Opcode::Write, &[write.as_bytes(), b"hello"])),
        "WRITE: field 'size' is cut off"
    );
    let unknown = decode(&message(4000, &[], 0)).unwrap_err().answer();
    assert_eq!(unknown, Some((ReplyTo::from_raw(10), libc::ENOSYS)));
    let mut short = of(Opcode::Readlink, &[]);
    short.push(0);
    let error = decode(&short).unwrap_err();
    assert_eq!(error.fault, DecodeFault::Length { said: 40, got: 41 });
    assert_eq!(error.answer(), Some((ReplyTo::from_raw(10), libc::EIO)));
    assert_eq!(decode(&[1, 2]).unwrap_err().answer(), None);
}

#[test]
fn a_setattr_says_what_is_new() {
    let valid =
        SetattrValid::SIZE | SetattrValid::ATIME | SetattrValid::MTIME | SetattrValid::MTIME_NOW;
    let before_1970 = (-5_i64).cast_unsigned();
    let args = SetattrIn { valid, size: 9, atime: before_1970, mode: 7, ..SetattrIn::default() };
    assert_eq!((args.new_size(), args.new_mode(), args.handle()), (Some(9), None, None));
    assert_eq!(args.new_atime(), Some(TimeToSet::At { seconds: -5, nanos: 0 }));
    assert_eq!(args.new_mtime(), Some(TimeToSet::Now));
    assert_eq!(args.new_ctime(), None);
}

/// Bytes with a matching header, so that the decoder gets past it.
fn likely() -> impl Strategy<Value = Vec<u8>> {
    let code = prop_oneof![(0_u32..60), Just(4096)];
    (code, vec(any::<u8>(), 0..200), 0_u16..6)
        .prop_map(|(code, args, words)| message(code, &[&args], words))
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in prop_oneof![vec(any::<u8>(), 0..300), likely()], ext: bool) {
        let granted = if ext { InitFlags::SETXATTR_EXT } else { InitFlags::NONE };
        if let Ok(request) = Request::decode(&bytes, granted) {
            assert_eq!(request.header.len as usize, bytes.len());
            if let Some(groups) = request.groups {
                groups.iter().for_each(drop);
            }
            if let Operation::BatchForget { items } = request.operation {
                assert_eq!(items.iter().count(), items.len());
            }
        }
    }
}
