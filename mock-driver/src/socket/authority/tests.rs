use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const DATA: u8 = 0;
const SETTINGS: u8 = 4;

const PATH: &str = "%2Fvar%2Flib%2Fkubelet%2Fplugins_registry%2Fmock.csi.local-reg.sock";

fn mk_frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = BytesMut::new();
    let head = Head {
        length: payload.len(),
        kind,
        flags,
        stream,
    };
    head.write(&mut frame);
    frame.extend_from_slice(payload);
    frame.to_vec()
}

/// A block with `:method: POST`, then `:authority` as a literal that enters the dynamic table.
fn mk_block(authority: &str) -> Vec<u8> {
    let mut block = vec![0x83, 0x41, u8::try_from(authority.len()).unwrap()];
    block.extend_from_slice(authority.as_bytes());
    block
}

fn mk_connection(frames: &[Vec<u8>]) -> Vec<u8> {
    [PREFACE.to_vec(), frames.concat()].concat()
}

/// What passes of a connection that comes in pieces of this size.
fn passed(connection: &[u8], piece: usize) -> Vec<u8> {
    let mut filter = AuthorityFilter::default();
    let (mut input, mut passed) = (BytesMut::new(), Vec::new());
    for piece in connection.chunks(piece) {
        input.extend_from_slice(piece);
        loop {
            let mut output = BytesMut::new();
            filter.pass(&mut input, &mut output);
            if output.is_empty() {
                break;
            }
            passed.extend_from_slice(&output);
        }
    }
    passed
}

/// The frames of what passed, behind the preface.
fn frames(connection: &[u8]) -> Vec<(Head, Vec<u8>)> {
    let mut rest = connection.strip_prefix(PREFACE).unwrap();
    let mut frames = Vec::new();
    while let Some(head) = Head::read(rest) {
        let (frame, behind) = rest.split_at(HEAD + head.length);
        frames.push((head, frame[HEAD..].to_vec()));
        rest = behind;
    }
    assert!(rest.is_empty(), "a frame is cut off");
    frames
}

/// The fields of header blocks as `h2` would find them: by a table of its own, which must stay empty.
fn fields(payload: &[u8]) -> Vec<(String, String)> {
    let mut fields = Vec::new();
    let text = |bytes: &Bytes| String::from_utf8(bytes.to_vec()).unwrap();
    let decoded = Decoder::default().decode(payload, |field| {
        fields.push((text(&field.name), text(&field.value)));
        Ok(())
    });
    assert_eq!(decoded, Ok(()));
    fields
}

fn mk_fields(fields: &[(&str, &str)]) -> Vec<(String, String)> {
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    fields.iter().map(owned).collect()
}

#[test]
fn authority_that_names_no_host_becomes_localhost() {
    // (as the client sends it, as h2 sees it)
    let table = [
        (PATH, "localhost"),
        ("/var/run/csi.sock", "localhost"),
        ("", "localhost"),
        ("localhost", "localhost"),
        ("csi.example.com:443", "csi.example.com:443"),
        ("%2Fa@b", "%2Fa@b"),
    ];
    for (sent, seen) in table {
        let connection = mk_connection(&[mk_frame(HEADERS, END_HEADERS, 1, &mk_block(sent))]);
        for piece in [1, 7, connection.len()] {
            let passed = frames(&passed(&connection, piece));
            let (head, payload) = &passed[0];
            assert_eq!((head.kind, head.flags, head.stream), (HEADERS, END_HEADERS, 1));
            let expected = mk_fields(&[(":method", "POST"), (":authority", seen)]);
            assert_eq!(fields(payload), expected, "{sent} in pieces of {piece}");
        }
    }
}

#[test]
fn later_requests_may_refer_to_the_fields_of_earlier_ones() {
    let first = mk_frame(HEADERS, END_HEADERS, 1, &mk_block(PATH));
    let second = mk_frame(HEADERS, END_HEADERS | END_STREAM, 3, &[0x83, 0xbe]);
    // A literal whose name is that of the entry in the dynamic table.
    let third = mk_frame(HEADERS, END_HEADERS, 5, &[0x83, 0x0f, 0x2f, 1, b'/']);
    let passed = frames(&passed(&mk_connection(&[first, second, third]), 11));
    let expected = mk_fields(&[(":method", "POST"), (":authority", "localhost")]);
    assert_eq!(passed.len(), 3);
    for (_, payload) in &passed {
        assert_eq!(fields(payload), expected);
    }
    assert_eq!(passed[1].0.flags, END_HEADERS | END_STREAM);
}

#[test]
fn block_in_several_frames_with_padding_and_priority_becomes_one_frame() {
    let block = mk_block(PATH);
    let (start, rest) = block.split_at(9);
    let (middle, end) = rest.split_at(5);
    let priority = [0, 0, 0, 7, 200];
    let payload = [&[3][..], &priority, start, &[0; 3]].concat();
    let connection = mk_connection(&[
        mk_frame(HEADERS, PADDED | PRIORITY | END_STREAM, 9, &payload),
        mk_frame(CONTINUATION, 0, 9, middle),
        mk_frame(CONTINUATION, 0, 9, &[]),
        mk_frame(CONTINUATION, END_HEADERS, 9, end),
    ]);
    for piece in 1..connection.len() {
        let passed = frames(&passed(&connection, piece));
        let [(head, payload)] = &passed[..] else {
            panic!("one frame must come of them: {passed:?}");
        };
        assert_eq!(head.flags, END_HEADERS | END_STREAM | PRIORITY);
        let (first, block) = payload.split_at(5);
        assert_eq!(first, priority);
        let expected = mk_fields(&[(":method", "POST"), (":authority", "localhost")]);
        assert_eq!(fields(block), expected);
    }
}

#[test]
fn long_block_is_split_again() {
    let mut block = mk_block(PATH);
    // Three times a field of 15,000 bytes.
    for _ in 0..3 {
        block.extend_from_slice(&[0, 1, b'a', 0x7f, 0x99, 0x74]);
        block.extend_from_slice(&[b'x'; 15_000]);
    }
    let mut sent = Vec::new();
    for (nth, chunk) in block.chunks(MAX_FRAME).enumerate() {
        let is_last = (nth + 1) * MAX_FRAME >= block.len();
        let flags = if is_last { END_HEADERS } else { 0 };
        let kind = if nth == 0 { HEADERS } else { CONTINUATION };
        sent.push(mk_frame(kind, flags, 1, chunk));
    }
    let passed = frames(&passed(&mk_connection(&sent), 4096));
    let kinds: Vec<_> = passed.iter().map(|(head, _)| (head.kind, head.flags)).collect();
    assert_eq!(
        kinds,
        [(HEADERS, 0), (CONTINUATION, 0), (CONTINUATION, END_HEADERS)]
    );
    let block: Vec<u8> = passed.into_iter().flat_map(|(_, payload)| payload).collect();
    assert_eq!(fields(&block).len(), 5);
}

#[test]
fn other_frames_and_other_protocols_pass_as_they_are() {
    let connection = mk_connection(&[
        mk_frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 255, 255]),
        mk_frame(DATA, END_STREAM, 1, &[7; 5000]),
        mk_frame(SETTINGS, 1, 0, &[]),
        mk_frame(0xfa, 0, 0, b"unknown"),
    ]);
    let http1 = b"POST /api/v1/volumes HTTP/1.1\r\nhost: localhost\r\n\r\n".to_vec();
    for connection in [connection, http1, PREFACE.to_vec()] {
        for piece in [1, 10, connection.len()] {
            assert_eq!(passed(&connection, piece), connection, "in pieces of {piece}");
        }
    }
}

#[test]
fn what_h2_ends_the_connection_for_passes_to_it() {
    let begun = mk_frame(HEADERS, 0, 1, &[0x83]);
    let ping = mk_frame(6, 0, 0, &[0; 8]);
    let block = mk_block(PATH);
    let large = vec![0; MAX_FRAME + 1];
    // (case, frames, what passes)
    let begins = mk_frame(HEADERS, 0, 1, &[]);
    let refused = mk_frame(HEADERS, END_HEADERS, 1, MALFORMED_BLOCK);
    #[rustfmt::skip]
    let table = [
        ("another frame in a block", [begun.clone(), ping.clone()], [begins.clone(), ping]),
        ("another stream in a block",
            [begun.clone(), mk_frame(CONTINUATION, 4, 3, &block)], [begins, mk_frame(CONTINUATION, 4, 3, &block)]),
        ("continuation of nothing",
            [mk_frame(CONTINUATION, 4, 1, &block), begun.clone()], [mk_frame(CONTINUATION, 4, 1, &block), begun]),
        ("padding longer than its frame",
            [mk_frame(HEADERS, PADDED | 4, 1, &[200, 1]), vec![]], [mk_frame(HEADERS, PADDED | 4, 1, &[200, 1]), vec![]]),
        ("frame that is too large",
            [mk_frame(HEADERS, 4, 1, &large), vec![]], [mk_frame(HEADERS, 4, 1, &large), vec![]]),
        ("malformed block", [mk_frame(HEADERS, 4, 1, &[0xc0]), vec![]], [refused, vec![]]),
    ];
    for (case, sent, expected) in table {
        assert_eq!(
            passed(&mk_connection(&sent), 100),
            mk_connection(&expected),
            "{case}"
        );
    }
}

#[test]
fn small_block_that_stands_for_a_large_list_is_refused() {
    // An entry of 4,000 bytes, and as many references to it as fit.
    let mut block = vec![0x40, 1, b'a', 0x7f, 0xa1, 0x1e];
    block.extend_from_slice(&[b'x'; 4000]);
    block.resize(MAX_FRAME, 0xbe);
    let passed = frames(&passed(
        &mk_connection(&[mk_frame(HEADERS, END_HEADERS, 1, &block)]),
        1000,
    ));
    assert_eq!(passed[0].1, MALFORMED_BLOCK);
}

#[test]
fn block_without_end_is_refused_before_it_fills_the_memory() {
    let mut sent = vec![mk_frame(HEADERS, 0, 1, &[0x83])];
    sent.extend((0..5).map(|_| mk_frame(CONTINUATION, 0, 1, &[0x83; MAX_FRAME])));
    let passed = frames(&passed(&mk_connection(&sent), 5000));
    assert_eq!(passed[0].1, MALFORMED_BLOCK);
}

fn mk_any_frame() -> impl Strategy<Value = Vec<u8>> {
    let kind = prop_oneof![4 => Just(HEADERS), 2 => Just(CONTINUATION), 2 => 0..=10_u8];
    let flags = prop_oneof![Just(END_HEADERS), any::<u8>()];
    let byte = prop_oneof![Just(0x83), Just(0x41), Just(0xbe), any::<u8>()];
    (kind, flags, 1..3_u32, vec(byte, 0..40))
        .prop_map(|(kind, flags, stream, payload)| mk_frame(kind, flags, stream, &payload))
}

proptest! {
    #[test]
    fn any_frames_pass_without_a_panic_and_the_same_in_any_pieces(
        sent in vec(mk_any_frame(), 0..20),
        piece in 1..50_usize,
    ) {
        let connection = mk_connection(&sent);
        prop_assert_eq!(passed(&connection, piece), passed(&connection, connection.len()));
    }
}
