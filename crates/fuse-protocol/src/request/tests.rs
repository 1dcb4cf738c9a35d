//! Requests decoded: good ones, short ones, and any bytes.
#![allow(clippy::unwrap_used)]

use super::*;
use proptest::prelude::*;

/// A request of the kernel, in one piece.
fn whole(opcode: u32, extension_bytes: usize, parts: &[&[u8]]) -> Vec<u8> {
    let body_bytes: usize = parts.iter().map(|part| part.len()).sum();
    let header = wire::InHeader {
        len: (size_of::<wire::InHeader>() + body_bytes) as u32,
        opcode,
        unique: 10,
        nodeid: 1,
        uid: 1000,
        gid: 1001,
        pid: 77,
        total_extlen: (extension_bytes / 8) as u16,
        padding: 0,
    };
    let mut bytes = wire::bytes_of(&header).to_vec();
    parts.iter().for_each(|part| bytes.extend_from_slice(part));
    bytes
}

fn decode_whole(bytes: &[u8]) -> Result<(Request, Operation<'_>), Malformed> {
    let incoming = Incoming::whole(bytes)?;
    let opcode = Opcode::from_number(incoming.header.opcode).ok_or(Malformed)?;
    let (request, body) = incoming.request(opcode)?;
    let dialect = Dialect { setxattr_ext: true };
    let operation = decode(&request, body, dialect)?;
    Ok((request, operation))
}

#[test]
fn a_lookup_is_decoded() {
    // Byte for byte what Linux 6.18 sends for a lookup of "abc" in the root.
    let mut bytes = vec![44, 0, 0, 0, 1, 0, 0, 0, 10, 0, 0, 0, 0, 0, 0, 0];
    bytes.extend([
        1, 0, 0, 0, 0, 0, 0, 0, 232, 3, 0, 0, 233, 3, 0, 0, 77, 0, 0, 0, 0, 0, 0, 0,
    ]);
    bytes.extend(b"abc\0");
    assert_eq!(bytes, whole(1, 0, &[b"abc\0"]));
    let (request, operation) = decode_whole(&bytes).unwrap();
    assert_eq!(operation, Operation::Lookup { name: b"abc" });
    assert_eq!((request.unique, request.node), (10, NodeNumber::ROOT));
    assert_eq!((request.uid, request.gid, request.pid), (1000, 1001, 77));
    assert!(!request.is_resent);
}

#[test]
fn flags_of_a_setattr_choose_its_fields() {
    let fixed = wire::SetattrIn {
        valid: wire::FATTR_SIZE
            | wire::FATTR_FH
            | wire::FATTR_MTIME
            | wire::FATTR_ATIME
            | wire::FATTR_ATIME_NOW
            | wire::FATTR_KILL_SUIDGID,
        fh: 5,
        size: 100,
        mtime: (-2_i64) as u64,
        mtimensec: 800_000_000,
        uid: 9,
        ..wire::SetattrIn::default()
    };
    let bytes = whole(4, 0, &[wire::bytes_of(&fixed)]);
    let expected = SetAttr {
        size_bytes: Some(100),
        handle: Some(HandleNumber(5)),
        atime: Some(TimeOrNow::Now),
        mtime: Some(TimeOrNow::At(-1_200_000_000)),
        kill_suid_sgid: true,
        ..SetAttr::default()
    };
    assert_eq!(
        decode_whole(&bytes).unwrap().1,
        Operation::Setattr(expected)
    );
}

#[test]
fn data_of_a_write_is_borrowed() {
    let fixed = wire::WriteIn {
        fh: 3,
        offset: 8192,
        size: 4,
        write_flags: wire::WRITE_LOCKOWNER | wire::WRITE_KILL_SUIDGID,
        lock_owner: 6,
        flags: libc::O_WRONLY as u32,
        padding: 0,
    };
    let bytes = whole(16, 0, &[wire::bytes_of(&fixed), b"data"]);
    let (_, operation) = decode_whole(&bytes).unwrap();
    let Operation::Write(write) = operation else {
        panic!("{operation:?}");
    };
    assert_eq!((write.data, write.offset), (&b"data"[..], 8192));
    assert_eq!(write.lock_owner, Some(LockOwner(6)));
    assert!(write.kill_suid_sgid && !write.is_from_cache);
    let short = whole(16, 0, &[wire::bytes_of(&fixed), b"dat"]);
    assert_eq!(decode_whole(&short), Err(Malformed), "PROTOCOL-1");
}

#[test]
fn reads_are_direct_when_they_have_an_owner() {
    let mut fixed = wire::ReadIn {
        size: 4096,
        ..wire::ReadIn::default()
    };
    let is_direct = |fixed: &wire::ReadIn| {
        let bytes = whole(15, 0, &[wire::bytes_of(fixed)]);
        match decode_whole(&bytes).unwrap().1 {
            Operation::Read { read, len_bytes } => (read.is_direct, len_bytes),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(is_direct(&fixed), (false, 4096));
    fixed.read_flags = wire::READ_LOCKOWNER;
    assert_eq!(is_direct(&fixed), (true, 4096));
}

#[test]
fn extended_attributes_have_two_forms() {
    let long = wire::SetxattrIn {
        size: 5,
        flags: libc::XATTR_CREATE as u32,
        setxattr_flags: wire::SETXATTR_ACL_KILL_SGID,
        padding: 0,
    };
    let bytes = whole(21, 0, &[wire::bytes_of(&long), b"user.a\0", b"value"]);
    let expected = SetXattr {
        name: b"user.a",
        value: b"value",
        flags: libc::XATTR_CREATE,
        acl_kill_sgid: true,
    };
    assert_eq!(
        decode_whole(&bytes).unwrap().1,
        Operation::Setxattr(expected)
    );

    let bytes = whole(21, 0, &[&wire::bytes_of(&long)[..8], b"user.a\0", b"value"]);
    let incoming = Incoming::whole(&bytes).unwrap();
    let (request, body) = incoming.request(Opcode::Setxattr).unwrap();
    let expected = SetXattr {
        acl_kill_sgid: false,
        ..expected
    };
    assert_eq!(
        decode(&request, body, Dialect::default()),
        Ok(Operation::Setxattr(expected))
    );
}

#[test]
fn makers_of_nodes_bring_groups_and_security_contexts() {
    let groups = wire::ExtHeader { size: 16, kind: 32 };
    let contexts = wire::ExtHeader { size: 40, kind: 1 };
    let context = wire::Secctx {
        size: 3,
        padding: 0,
    };
    let extension = [
        wire::bytes_of(&contexts),
        wire::bytes_of(&context),
        b"security.selinux\0lbl\0\0\0\0",
        wire::bytes_of(&groups),
        &1_u32.to_ne_bytes(),
        &4711_u32.to_ne_bytes(),
    ]
    .concat();
    assert_eq!(extension.len(), 56);
    let mkdir = wire::MkdirIn {
        mode: 0o755,
        umask: 0o22,
    };
    let bytes = whole(9, 56, &[wire::bytes_of(&mkdir), b"d\0", &extension]);
    let (request, operation) = decode_whole(&bytes).unwrap();
    assert_eq!(request.extensions.groups, [4711]);
    let context = SecurityContext {
        name: b"security.selinux".to_vec(),
        value: b"lbl".to_vec(),
    };
    assert_eq!(request.extensions.security_contexts, [context]);
    let make = Make {
        mode: libc::S_IFDIR | 0o755,
        umask: 0o22,
        rdev: 0,
    };
    assert_eq!(operation, Operation::Mkdir { name: b"d", make });
}

#[test]
fn what_is_too_short_is_malformed() {
    assert_eq!(Incoming::whole(&[0; 39]).err(), Some(Malformed));
    let mut bytes = whole(1, 0, &[b"abc\0"]);
    bytes.pop();
    assert_eq!(
        decode_whole(&bytes),
        Err(Malformed),
        "PROTOCOL-1: its length"
    );
    for body in [&b""[..], b"\0", b"abc"] {
        let bytes = whole(1, 0, &[body]);
        assert_eq!(decode_whole(&bytes), Err(Malformed), "PROTOCOL-1: {body:?}");
    }
    let init = whole(26, 0, &[&[0; 15]]);
    assert_eq!(
        decode_init(&Incoming::whole(&init).unwrap()),
        Err(Malformed)
    );
    let short = whole(26, 0, &[&[7; 16]]);
    let init = decode_init(&Incoming::whole(&short).unwrap()).unwrap();
    assert_eq!((init.major, init.flags2), (0x0707_0707, 0));
}

#[test]
fn a_request_that_is_sent_again_keeps_its_number() {
    let mut bytes = whole(5, 0, &[]);
    bytes[15] |= 0x80;
    let (request, operation) = decode_whole(&bytes).unwrap();
    assert_eq!(operation, Operation::Readlink);
    assert_eq!((request.unique, request.is_resent), (10, true));
}

#[test]
fn forgets_come_in_lists() {
    let one = |nodeid, nlookup| wire::ForgetOne { nodeid, nlookup };
    let count = wire::BatchForgetIn { count: 2, dummy: 0 };
    let parts = [one(5, 1), one(6, 3)];
    let bytes = whole(
        42,
        0,
        &[
            wire::bytes_of(&count),
            wire::bytes_of(&parts[0]),
            wire::bytes_of(&parts[1]),
        ],
    );
    let Operation::BatchForget { list } = decode_whole(&bytes).unwrap().1 else {
        panic!("another operation");
    };
    let all: Vec<_> = forgets(list).collect();
    assert_eq!(all, [(NodeNumber(5), 1), (NodeNumber(6), 3)]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    /// `PROTOCOL-1`: any bytes behind a good header, of any opcode.
    #[test]
    fn no_bytes_make_it_panic(
        opcode in 0_u32..70,
        words in 0_usize..6,
        body in proptest::collection::vec(prop_oneof![Just(0_u8), Just(1), any::<u8>()], 0..200),
    ) {
        let bytes = whole(opcode, words * 8, &[&body]);
        if let Ok((request, operation)) = decode_whole(&bytes) {
            prop_assert_eq!(request.opcode as u32, opcode);
            if let Operation::Write(write) = operation {
                prop_assert!(write.data.len() <= body.len());
            }
        }
    }

    /// `PROTOCOL-1`: any bytes at all, and every beginning of them.
    #[test]
    fn no_header_makes_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..120)) {
        for end in 0..bytes.len() {
            let has_header = end >= size_of::<wire::InHeader>();
            prop_assert!(decode_whole(&bytes[..end]).is_err() || has_header);
        }
    }
}
