//! Redaction of credentials in a driver's errors.
//!
//! Some drivers quote credentials in their errors, which appear in logs, traces, statuses, Events and `/statusz`. So each value of
//! the call's secrets is removed first: as it is, quoted, and in base64. Only whole values are: parts of one, short values and
//! values inside a longer word are common text, without which the error would be unreadable.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use csi_proto::secret::STRIPPED;

/// Minimum characters of a redacted value.
const SHORTEST: usize = 6;
/// Messages are truncated to this. A status shows the first KiB.
const MESSAGE_BYTES: usize = 16 << 10;

/// `message` without any of the `secrets`.
pub(super) fn redacted(secrets: &[String], mut message: String) -> String {
    // A value may end with the newline of the file that it was made of.
    let values = secrets.iter().flat_map(|value| [value.as_str(), value.trim()]);
    let values = values.filter(|value| value.chars().count() >= SHORTEST);
    let mut forms: Vec<String> = values
        .flat_map(|value| {
            let base64 = [STANDARD_NO_PAD, URL_SAFE_NO_PAD].map(|base64| base64.encode(value));
            base64.into_iter().chain([value.to_owned(), quoted(value)])
        })
        .collect();
    // A value may contain another.
    forms.sort_unstable_by_key(|form| std::cmp::Reverse(form.len()));
    // The cut must not go through a value.
    let longest = forms.first().map_or(0, String::len);
    message.truncate(message.floor_char_boundary(MESSAGE_BYTES + longest));
    for form in &forms {
        if message.contains(form) {
            message = without(form, &message);
        }
    }
    message.truncate(message.floor_char_boundary(MESSAGE_BYTES));
    message
}

/// The value inside a JSON string, which is also Go's %q of most values.
fn quoted(value: &str) -> String {
    let json = serde_json::Value::from(value).to_string();
    json[1..json.len() - 1].to_owned()
}

/// `message` without `form`, except inside longer words.
fn without(form: &str, message: &str) -> String {
    let mut left = String::with_capacity(message.len());
    let mut rest = message;
    while let Some(at) = rest.find(form) {
        let (before, from) = rest.split_at(at);
        left.push_str(before);
        let read = message.len() - from.len();
        if is_joined(message[..read].chars().rev(), form.chars().next())
            || is_joined(from[form.len()..].chars(), form.chars().next_back())
        {
            let first = from.chars().next().map_or(0, char::len_utf8);
            left.push_str(&from[..first]);
            rest = &from[first..];
        } else {
            left.push_str(STRIPPED);
            rest = &from[form.len()..];
        }
    }
    left + rest
}

/// Whether the text that begins with `neighbors` continues the word or number that ends with `end`, as in `vol-8080` or
/// `10.0.0.1`.
fn is_joined(mut neighbors: impl Iterator<Item = char>, end: Option<char>) -> bool {
    if !end.is_some_and(char::is_alphanumeric) {
        return false;
    }
    match neighbors.next() {
        Some('-' | '.' | '_') => neighbors.next().is_some_and(char::is_alphanumeric),
        next => next.is_some_and(char::is_alphanumeric),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strip(value: &str, message: &str) -> String {
        redacted(&[value.to_owned()], message.to_owned())
    }

    #[test]
    fn strips_whole_values_and_their_base64() {
        for (value, message, expected) in [
            ("hunter2-the-secret", "user hunter2-the-secret.", "user ***."),
            ("hunter2-the-secret\n", "user=hunter2-the-secret&x", "user=***&x"),
            (
                "hunter2",
                "http://u:hunter2@host: 'hunter2'",
                "http://u:***@host: '***'",
            ),
            ("hunter2", "Basic aHVudGVyMg== refused", "Basic ***== refused"),
            (
                "hunter2\n",
                "data: aHVudGVyMgo= or aHVudGVyMg==",
                "data: ***= or ***==",
            ),
            (
                "\u{ff}\u{fe}\u{ff}x>?",
                "w7_Dvj_Dv3g-Pw and w7/Dvj/Dv3g+Pw",
                "w7_Dvj_Dv3g-Pw and w7/Dvj/Dv3g+Pw",
            ),
            ("P\"ä\\ss Wörd\n2nd", "with P\"ä\\ss Wörd\n2nd!", "with ***!"),
            (
                "hunter2",
                "hunter2hunter2 hunter2 hunter2",
                "hunter2hunter2 *** ***",
            ),
            ("-secret-", "x-secret-y", "x***y"),
            (
                "P\"ä\\ss Wörd\n2nd",
                r#"{"password":"P\"ä\\ss Wörd\n2nd"}"#,
                r#"{"password":"***"}"#,
            ),
        ] {
            assert_eq!(
                strip(value, message),
                expected.replace("***", STRIPPED),
                "{value}"
            );
        }
        let urls = strip("~~~???~~~", "fn5-Pz8_fn5- or fn5+Pz8/fn5+");
        assert_eq!(urls, format!("{STRIPPED} or {STRIPPED}"));
    }

    /// Secrets also contain ports, user names and addresses.
    #[test]
    fn keeps_messages_readable() {
        let message =
            "volume vol-8080ab-1 on node 192.168.10.10.0.17: admin:8080 at 10.10.0.17 refused, bad hunter";
        for value in [
            "8080",
            "admin",
            "8080ab",
            "10.10.0.1",
            "hunter2",
            "168.10.10.0",
            "vol-8080ab",
            "",
        ] {
            assert_eq!(strip(value, message), message, "{value}");
        }
        assert_eq!(redacted(&[], message.to_owned()), message);
    }

    #[test]
    fn strips_the_longest_of_values_that_contain_each_other() {
        let secrets = ["the secret", "not the secret at all"].map(str::to_owned);
        let message = "not the secret at all, the secret".to_owned();
        assert_eq!(redacted(&secrets, message), format!("{STRIPPED}, {STRIPPED}"));
    }

    #[test]
    fn truncates_a_long_message_after_the_search() {
        let value = "hunter2-the-secret";
        let message = format!("{} {value} and more", "é".repeat(MESSAGE_BYTES / 2 - 4));
        let left = strip(value, &message);
        assert!(left.len() <= MESSAGE_BYTES && !left.contains("hunter"), "{left}");
    }
}
