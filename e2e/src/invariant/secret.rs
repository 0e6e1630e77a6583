//! Invariant 5: no secret value is written anywhere.

use super::{Observations, Violation};

/// Finds secret values in logs, journals, events and objects, in plain text and in base64.
pub fn check(observations: &Observations) -> Vec<Violation> {
    let mut violations = Vec::new();
    for secret in observations.secrets.iter().filter(|secret| !secret.is_empty()) {
        let forms = [secret.clone(), base64(secret.as_bytes())];
        for (source, text) in &observations.texts {
            if forms.iter().any(|form| text.contains(form.as_str())) {
                // The value is omitted here, too, because this text is logged.
                violations.push(Violation::new(5, format!("a secret value is in {source}")));
            }
        }
    }
    violations
}

/// Base64 without padding: with it, a longer text that begins with the secret would be missed.
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    // Only complete groups: the last, partial one depends on the following bytes.
    for group in bytes.chunks_exact(3) {
        let bits = group
            .iter()
            .fold(0_usize, |bits, &byte| bits << 8 | usize::from(byte));
        for shift in [18, 12, 6, 0] {
            text.push(char::from(ALPHABET[bits >> shift & 63]));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::observations::samples::*;
    use super::*;

    #[test]
    fn base64_of_whole_groups() {
        assert_eq!(base64(b"Many hands"), "TWFueSBoYW5k");
    }

    #[test]
    fn a_secret_is_found_in_any_form() {
        let mut observations = mk_observations();
        observations.secrets = vec!["hunter2-hunter2".to_owned()];
        observations.texts = vec![("the attacher's log".to_owned(), "attached vol".to_owned())];
        assert_eq!(check(&observations), []);
        for leaked in [
            "secrets: {password: hunter2-hunter2}",
            "password: aHVudGVyMi1odW50ZXIy",
        ] {
            observations.texts[0].1 = leaked.to_owned();
            let violations = check(&observations);
            assert_eq!(violations.len(), 1, "{leaked}");
            assert!(
                !violations[0].seen.contains("hunter2"),
                "the finding must not leak it again"
            );
        }
    }
}
