//! Redaction of credentials in a driver's errors.
//!
//! Some drivers quote credentials in their errors, which appear in logs, traces, statuses, Events and `/statusz`. So the values of
//! the call's secrets are removed first: whole or in part (a driver may truncate a message, or quote one line of a key), plain or
//! in the usual encodings. Eight consecutive characters of a credential are removed wherever they come from.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use aho_corasick::{AhoCorasick, AhoCorasickKind};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use csi_proto::secret::STRIPPED;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// Minimum length of a redacted value: shorter ones would match too often.
const SHORTEST: usize = 4;
/// Minimum length of a removed match with a credential; for a short credential, half of its length.
const MATCH_BYTES: usize = 8;
/// Messages are truncated to this. A status shows the first KiB.
const MESSAGE_BYTES: usize = 16 << 10;

/// All but the unreserved characters of a URL (RFC 3986).
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// `message` without any of the `secrets`.
pub(super) fn redacted(secrets: &[String], message: String) -> String {
    let message = &message[..message.floor_char_boundary(MESSAGE_BYTES)];
    let mut hidden = vec![false; message.len()];
    let mut windows = BTreeMap::new();
    for value in secrets {
        for form in forms(value) {
            if form.len() < SHORTEST {
                continue;
            }
            let size = (form.len() / 2).clamp(SHORTEST, MATCH_BYTES);
            let windows = windows
                .entry(size)
                .or_insert_with(|| Windows::new(message.as_bytes(), size));
            windows.hide(&form, &mut hidden);
        }
    }
    without(message, &hidden)
}

/// All substrings of `size` bytes of a message. They are the patterns and the credential is searched, because a Secret may have
/// a megabyte in a dozen encodings, and this thread also renews the Lease.
struct Windows {
    size: usize,
    search: AhoCorasick,
    /// The offsets of each pattern in the message; empty once they are hidden.
    places: Vec<Vec<usize>>,
}

// === impl Windows ===

impl Windows {
    fn new(message: &[u8], size: usize) -> Self {
        let mut patterns: BTreeMap<&[u8], Vec<usize>> = BTreeMap::new();
        for (place, piece) in message.windows(size).enumerate() {
            patterns.entry(piece).or_default().push(place);
        }
        Self {
            size,
            search: AhoCorasick::builder()
                .kind(Some(AhoCorasickKind::NoncontiguousNFA))
                .build(patterns.keys())
                .expect("16 KiB of patterns must fit into an automaton"),
            places: patterns.into_values().collect(),
        }
    }

    /// Marks all parts of `form`.
    fn hide(&mut self, form: &[u8], hidden: &mut [bool]) {
        for found in self.search.find_overlapping_iter(form) {
            for place in std::mem::take(&mut self.places[found.pattern().as_usize()]) {
                hidden[place..place + self.size].fill(true);
            }
        }
    }
}

fn without(message: &str, hidden: &[bool]) -> String {
    let mut left = String::with_capacity(message.len());
    let mut hiding = false;
    for (place, c) in message.char_indices() {
        let hide = hidden[place..place + c.len_utf8()].contains(&true);
        if !hide {
            left.push(c);
        } else if !hiding {
            left.push_str(STRIPPED);
        }
        hiding = hide;
    }
    left
}

/// The encodings of a value.
fn forms(value: &str) -> Vec<Vec<u8>> {
    let bytes = value.as_bytes();
    let hex = bytes.iter().fold(String::new(), |mut hex, byte| {
        write!(hex, "{byte:02x}").expect("writing to a string must not fail");
        hex
    });
    let percent = utf8_percent_encode(value, RESERVED).to_string();
    let lowercase_percent: String = utf8_percent_encode(value, RESERVED)
        .map(|part| match part.strip_prefix('%') {
            Some(hex) => format!("%{}", hex.to_ascii_lowercase()),
            None => part.to_owned(),
        })
        .collect();
    let mut forms = vec![
        bytes.to_vec(),
        // Go's %q differs from these two only in rare characters.
        json(value).into_bytes(),
        value.escape_debug().to_string().into_bytes(),
        percent.replace("%20", "+").into_bytes(),
        percent.into_bytes(),
        lowercase_percent.into_bytes(),
        hex.to_ascii_uppercase().into_bytes(),
        hex.into_bytes(),
    ];
    // Another text may precede the value, as in HTTP basic authentication.
    for before in 0..3 {
        let standard = base64(bytes, before);
        let url = standard.iter().map(|byte| match byte {
            b'+' => b'-',
            b'/' => b'_',
            byte => *byte,
        });
        forms.push(url.collect());
        forms.push(standard);
    }
    forms.sort_unstable();
    forms.dedup();
    forms
}

fn json(value: &str) -> String {
    let quoted = serde_json::Value::from(value).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}

/// Base64 of the value after `before` other bytes, without the characters that depend on bytes around it.
fn base64(bytes: &[u8], before: usize) -> Vec<u8> {
    let padded = [&[0; 2][..before], bytes].concat();
    let mut text = STANDARD_NO_PAD.encode(&padded).into_bytes();
    let first = (before * 8).div_ceil(6);
    let last = padded.len() * 8 / 6;
    text.truncate(last);
    text.drain(..first.min(last));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strip(value: &str, message: &str) -> String {
        redacted(&[value.to_owned()], message.to_owned())
    }

    #[test]
    fn keeps_a_message_without_credentials() {
        let message = "volume \"vol-1\" is in use by node-é (code 7)";
        assert_eq!(strip("hunter2-the-secret", message), message);
        assert_eq!(redacted(&[], message.to_owned()), message);
        // Too short to be distinguished from words.
        assert_eq!(strip("vol", message), message);
    }

    #[test]
    fn strips_a_credential_in_every_encoding() {
        let value = "P\"ä\\ss Wörd+/x?y=1&\n2nd line of it";
        for (form, shown) in [
            ("as it is", value.to_owned()),
            ("JSON", "P\\\"ä\\\\ss Wörd+/x?y=1&\\n2nd line of it".to_owned()),
            (
                "percent",
                "P%22%C3%A4%5Css%20W%C3%B6rd%2B%2Fx%3Fy%3D1%26%0A2nd%20line%20of%20it".to_owned(),
            ),
            (
                "percent in lower case",
                "P%22%c3%a4%5css%20W%c3%b6rd%2b%2fx%3fy%3d1%26%0a2nd%20line%20of%20it".to_owned(),
            ),
            (
                "a query",
                "P%22%C3%A4%5Css+W%C3%B6rd%2B%2Fx%3Fy%3D1%26%0A2nd+line+of+it".to_owned(),
            ),
            ("hex", value.bytes().map(|byte| format!("{byte:02x}")).collect()),
        ] {
            let left = strip(value, &format!("cannot log in with <{shown}> today"));
            assert_eq!(left, format!("cannot log in with <{STRIPPED}> today"), "{form}");
        }
    }

    #[test]
    fn strips_base64_at_every_offset_in_a_group() {
        // "hunter2-the-secret" after "", "u:" and "me:".
        for shown in [
            "aHVudGVyMi10aGUtc2VjcmV0",
            "dTpodW50ZXIyLXRoZS1zZWNyZXQ=",
            "bWU6aHVudGVyMi10aGUtc2VjcmV0",
            "YTpiOmh1bnRlcjItdGhlLXNlY3JldA==",
        ] {
            let left = strip("hunter2-the-secret", &format!("Basic {shown} refused"));
            assert!(left.contains(STRIPPED), "{shown}");
            // Only the bytes before the value, and the group that they share with it, remain.
            let kept = left.replace(STRIPPED, "");
            assert!(kept.len() <= "Basic  refused".len() + 10, "{kept}");
        }
        let url = base64(b"\xff\xfe\xfd\xff\xfe\xfd\xff\xfe", 0);
        assert_eq!(url, b"//79//79//");
    }

    #[test]
    fn strips_parts_of_a_credential() {
        let key = "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG\n9w0BAQEFAASCBKcwggSj\n-----END KEY-----\n";
        assert_eq!(
            strip(key, "bad line 9w0BAQEFAASCBKcwggSj in key"),
            format!("bad line {STRIPPED} in key")
        );
        assert_eq!(
            strip("hunter2-the-secret", "user hunter2-the-sec"),
            format!("user {STRIPPED}")
        );
        assert_eq!(strip("hunter2!", "tried hunter"), format!("tried {STRIPPED}"));
        assert_eq!(
            strip(r#"{"password":"tr0ub4dor&3"}"#, "tr0ub4dor&3 is wrong"),
            format!("{STRIPPED} is wrong")
        );
    }

    #[test]
    fn strips_overlapping_credentials_completely() {
        let secrets = ["alpha-beta-gamma", "beta-gamma-delta"].map(str::to_owned);
        assert_eq!(
            redacted(&secrets, "alpha-beta-gamma-delta!".to_owned()),
            format!("{STRIPPED}!")
        );
    }

    #[test]
    fn strips_every_occurrence_of_a_repetitive_credential() {
        let zeros = "0".repeat(MESSAGE_BYTES / 2);
        assert_eq!(
            strip(&zeros, &format!("{zeros} and {}", "0".repeat(9))),
            format!("{STRIPPED} and {STRIPPED}")
        );
        assert_eq!(strip(&zeros, "0000000 is no part"), "0000000 is no part");
    }

    #[test]
    fn truncates_a_long_message_before_the_search() {
        let value = "hunter2-the-secret";
        let message = format!("{}{value}", "é".repeat(MESSAGE_BYTES / 2 - 4));
        let left = strip(value, &message);
        assert!(
            left.len() < MESSAGE_BYTES + STRIPPED.len() && !left.contains("hunter2-"),
            "{left}"
        );
    }
}
