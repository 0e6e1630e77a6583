use super::*;

/// One decoder for a connection's blocks, and the fields that each must give.
type Vector = (&'static str, &'static [(&'static str, &'static str)]);

const AUTHORITY: (&str, &str) = (":authority", "www.example.com");
const REQUESTS: [&[(&str, &str)]; 3] = [
    &[(":method", "GET"), (":scheme", "http"), (":path", "/"), AUTHORITY],
    &[
        (":method", "GET"),
        (":scheme", "http"),
        (":path", "/"),
        AUTHORITY,
        ("cache-control", "no-cache"),
    ],
    &[
        (":method", "GET"),
        (":scheme", "https"),
        (":path", "/index.html"),
        AUTHORITY,
        ("custom-key", "custom-value"),
    ],
];

const LOCATION: (&str, &str) = ("location", "https://www.example.com");
const DATE: (&str, &str) = ("date", "Mon, 21 Oct 2013 20:13:21 GMT");
const RESPONSES: [&[(&str, &str)]; 3] = [
    &[(":status", "302"), ("cache-control", "private"), DATE, LOCATION],
    &[(":status", "307"), ("cache-control", "private"), DATE, LOCATION],
    &[
        (":status", "200"),
        ("cache-control", "private"),
        ("date", "Mon, 21 Oct 2013 20:13:22 GMT"),
        LOCATION,
        ("content-encoding", "gzip"),
        (
            "set-cookie",
            "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1",
        ),
    ],
];

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let pairs = digits.chunks(2);
    pairs
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

fn decoded(decoder: &mut Decoder, block: &[u8]) -> Result<Vec<(String, String)>, Malformed> {
    let mut fields = Vec::new();
    decoder.decode(block, |field| {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        fields.push((text(&field.name), text(&field.value)));
        Ok(())
    })?;
    Ok(fields)
}

fn assert_decodes(case: &str, mut decoder: Decoder, vectors: &[Vector], size: usize) {
    for (hex, expected) in vectors {
        let expected: Vec<_> = expected
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        assert_eq!(decoded(&mut decoder, &bytes(hex)), Ok(expected), "{case}: {hex}");
    }
    assert_eq!(decoder.size, size, "{case}: size of the dynamic table");
}

#[test]
fn decodes_the_single_fields_of_rfc_7541_c_2() {
    // (block, field, size of the table, sensitive)
    let table: [(&str, (&str, &str), usize, bool); 4] = [
        (
            "400a 6375 7374 6f6d 2d6b 6579 0d63 7573 746f 6d2d 6865 6164 6572",
            ("custom-key", "custom-header"),
            55,
            false,
        ),
        (
            "040c 2f73 616d 706c 652f 7061 7468",
            (":path", "/sample/path"),
            0,
            false,
        ),
        (
            "1008 7061 7373 776f 7264 0673 6563 7265 74",
            ("password", "secret"),
            0,
            true,
        ),
        ("82", (":method", "GET"), 0, false),
    ];
    for (hex, (name, value), size, is_sensitive) in table {
        let mut decoder = Decoder::default();
        let mut fields = Vec::new();
        let decoded = decoder.decode(&bytes(hex), |field| {
            fields.push(field);
            Ok(())
        });
        assert_eq!(decoded, Ok(()), "{hex}");
        let expected = Field {
            name: Bytes::from_static(name.as_bytes()),
            value: Bytes::from_static(value.as_bytes()),
            is_sensitive,
        };
        assert_eq!((fields, decoder.size), (vec![expected], size), "{hex}");
    }
}

#[test]
fn decodes_the_connections_of_rfc_7541_c_3_to_c_6() {
    let requests = [
        "8286 8441 0f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
        "8286 84be 5808 6e6f 2d63 6163 6865",
        "8287 85bf 400a 6375 7374 6f6d 2d6b 6579 0c63 7573 746f 6d2d 7661 6c75 65",
    ];
    let huffman_requests = [
        "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff",
        "8286 84be 5886 a8eb 1064 9cbf",
        "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf",
    ];
    let responses = [
        "4803 3330 3258 0770 7269 7661 7465 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32
         3120 474d 546e 1768 7474 7073 3a2f 2f77 7777 2e65 7861 6d70 6c65 2e63 6f6d",
        "4803 3330 37c1 c0bf",
        "88c1 611d 4d6f 6e2c 2032 3120 4f63 7420 3230 3133 2032 303a 3133 3a32 3220 474d 54c0 5a04 677a 6970
         7738 666f 6f3d 4153 444a 4b48 514b 425a 584f 5157 454f 5049 5541 5851 5745 4f49 553b 206d 6178 2d61
         6765 3d33 3630 303b 2076 6572 7369 6f6e 3d31",
    ];
    let huffman_responses = [
        "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 2d1b ff6e 919d 29ad
         1718 63c7 8f0b 97c8 e9ae 82ae 43d3",
        "4883 640e ffc1 c0bf",
        "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab 77ad 94e7 821d d7f2
         e6c7 b335 dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587 3160 65c0 03ed 4ee5 b106 3d50 07",
    ];
    let small = || Decoder {
        max_size: 256,
        ..Decoder::default()
    };
    let with = |blocks: [&'static str; 3], fields: [&'static [_]; 3]| -> Vec<Vector> {
        blocks.into_iter().zip(fields).collect()
    };
    assert_decodes("C.3", Decoder::default(), &with(requests, REQUESTS), 164);
    assert_decodes("C.4", Decoder::default(), &with(huffman_requests, REQUESTS), 164);
    assert_decodes("C.5", small(), &with(responses, RESPONSES), 215);
    assert_decodes("C.6", small(), &with(huffman_responses, RESPONSES), 215);
}

#[test]
fn every_byte_survives_huffman_code_and_encoding() {
    // Codes by their definition: in the order of their lengths, then of their symbols.
    let mut symbols: Vec<usize> = (0..CODE_LENGTHS.len()).collect();
    symbols.sort_by_key(|symbol| (CODE_LENGTHS[*symbol], *symbol));
    let mut codes = [0_u64; 257];
    let (mut code, mut length) = (0, 0);
    for symbol in symbols {
        code <<= CODE_LENGTHS[symbol] - length;
        length = CODE_LENGTHS[symbol];
        codes[symbol] = code;
        code += 1;
    }
    assert_eq!(codes[usize::from(EOS)], 0x3fff_ffff, "the last code");
    for byte in 0..=u8::MAX {
        let (code, length) = (codes[usize::from(byte)], CODE_LENGTHS[usize::from(byte)]);
        let padding = (8 - length % 8) % 8;
        let padded = (code << padding) | ((1 << padding) - 1);
        let count = usize::from(length + padding) / 8;
        let text = &padded.to_be_bytes()[8 - count..];
        assert_eq!(HUFFMAN.decode(text), Ok(vec![byte]), "{byte}");
    }

    for length in [0, 1, 126, 127, 128, 254, 255, 300, 4096, 20_000] {
        for is_sensitive in [false, true] {
            let field = Field {
                name: Bytes::from_static(b"name"),
                value: vec![b'x'; length].into(),
                is_sensitive,
            };
            let mut block = BytesMut::new();
            field.encode(&mut block);
            let mut decoder = Decoder::default();
            let outcome = decoder.decode(&block, |decoded| {
                assert_eq!(decoded, field);
                Ok(())
            });
            assert_eq!((outcome, decoder.size), (Ok(()), 0), "{length}");
        }
    }
}

#[test]
fn malformed_blocks_are_refused() {
    let table = [
        ("index 0", "80"),
        ("index beyond both tables", "be"),
        ("name beyond both tables", "7f00 0161"),
        ("integer without end", "ff"),
        ("integer that is too large", "ff ff ff ff ff ff 01"),
        ("string without length", "00"),
        ("string without end", "0003 6162"),
        ("value missing", "0001 61"),
        ("padding with zeroes", "0001 61 81 18"),
        ("padding of a whole byte", "0001 61 82 1f ff"),
        ("end of string", "0001 61 84 ffff ffff"),
        ("table larger than was allowed", "3fe2 1f"),
        ("size of the table changed late", "82 20"),
    ];
    for (case, hex) in table {
        assert_eq!(
            decoded(&mut Decoder::default(), &bytes(hex)),
            Err(Malformed),
            "{case}"
        );
    }
    assert_eq!(decoded(&mut Decoder::default(), MALFORMED_BLOCK), Err(Malformed));
}

#[test]
fn dynamic_table_shrinks_on_size_updates_and_an_entry_too_large_empties_it() {
    let mut decoder = Decoder::default();
    decoded(&mut decoder, &bytes("4001 6101 62 4001 6301 64")).unwrap();
    assert_eq!(decoder.size, 68);
    // Room for one of the two.
    decoded(&mut decoder, &bytes("3f1b")).unwrap();
    assert_eq!((decoder.max_size, decoder.size), (58, 34));
    assert_eq!(
        decoded(&mut decoder, &bytes("be")).unwrap(),
        [("c".into(), "d".into())]
    );
    assert_eq!(decoded(&mut decoder, &bytes("bf")), Err(Malformed));

    let large = [&bytes("4001 61 1e")[..], &[b'x'; 30]].concat();
    assert_eq!(decoded(&mut decoder, &large).unwrap().len(), 1);
    assert_eq!((decoder.size, decoder.entries.len()), (0, 0));
}
