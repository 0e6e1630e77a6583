//! Formats of names, labels and keys (`k8s.io/apimachinery/pkg/util/validation`), and generated names.

use fastrand::Rng;

/// Checks a name; `prefix` if it is a `generateName`.
pub(crate) type NameFn = fn(name: &str, prefix: bool) -> Vec<String>;

/// A limit and a form of a text, and the errors of a text without them.
fn errors(text: &str, limit: usize, has_form: bool, form: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if text.len() > limit {
        errors.push(format!("must be no more than {limit} bytes"));
    }
    if !has_form {
        errors.push(format!("must be {form}"));
    }
    errors
}

fn matches_dns_label(text: &str) -> bool {
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    edge(text.chars().next())
        && edge(text.chars().next_back())
        && text
            .bytes()
            .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-')
}

fn matches_qualified(text: &str) -> bool {
    let edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    edge(text.chars().next())
        && edge(text.chars().next_back())
        && text
            .bytes()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.'))
}

/// A DNS label (RFC 1123).
pub(crate) fn dns1123_label(text: &str) -> Vec<String> {
    let form =
        "a lowercase RFC 1123 label: lower case alphanumeric characters or '-', alphanumeric at both ends";
    errors(text, 63, matches_dns_label(text), form)
}

/// A DNS subdomain (RFC 1123).
pub(crate) fn dns1123_subdomain(text: &str) -> Vec<String> {
    let form = "a lowercase RFC 1123 subdomain: labels of lower case alphanumeric characters or '-', separated by '.'";
    errors(text, 253, text.split('.').all(matches_dns_label), form)
}

/// A label key, also called a qualified name.
pub(crate) fn qualified(text: &str) -> Vec<String> {
    let (prefix, name) = text
        .split_once('/')
        .map_or((None, text), |(prefix, name)| (Some(prefix), name));
    let mut errors = errors(
        name,
        63,
        matches_qualified(name),
        "a qualified name: alphanumeric characters, '-', '_' or '.', alphanumeric at both ends, after an optional DNS \
         subdomain and '/'",
    );
    errors.extend(prefix.into_iter().flat_map(dns1123_subdomain));
    errors
}

/// A label value.
pub(crate) fn label_value(text: &str) -> Vec<String> {
    let has_form = text.is_empty() || matches_qualified(text);
    let form = "a label value: empty, or alphanumeric characters, '-', '_' or '.', alphanumeric at both ends";
    errors(text, 63, has_form, form)
}

/// The key of a Secret.
pub(crate) fn config_map_key(text: &str) -> Vec<String> {
    let fits = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'.' | b'_');
    let has_form = !text.is_empty() && text.bytes().all(fits) && text != "." && !text.starts_with("..");
    let form =
        "a key of alphanumeric characters, '-', '_' or '.' that is not '.' and does not start with '..'";
    errors(text, 253, has_form, form)
}

/// A name that begins with `base` (`SimpleNameGenerator` of Kubernetes).
pub(crate) fn generate(base: &str, rng: &mut Rng) -> String {
    /// Maximum length of the base.
    const BASE_LIMIT: usize = 63 - 5;
    /// Without vowels, to avoid words.
    const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let base = &base[..base.floor_char_boundary(BASE_LIMIT)];
    let suffix = (0..5).map(|_| char::from(LETTERS[rng.usize(..LETTERS.len())]));
    base.chars().chain(suffix).collect()
}

/// The name of most kinds.
pub(crate) fn subdomain_name(name: &str, prefix: bool) -> Vec<String> {
    dns1123_subdomain(&masked(name, prefix))
}

/// The name of a namespace.
pub(crate) fn label_name(name: &str, prefix: bool) -> Vec<String> {
    dns1123_label(&masked(name, prefix))
}

/// A name that only has to be a valid path segment of a URL.
pub(crate) fn path_segment_name(name: &str, prefix: bool) -> Vec<String> {
    if !prefix && (name == "." || name == "..") {
        return vec![format!("may not be '{name}'")];
    }
    let illegal = ["/", "%"].into_iter().filter(|part| name.contains(part));
    illegal.map(|part| format!("may not contain '{part}'")).collect()
}

/// A prefix may end with a dash.
fn masked(name: &str, prefix: bool) -> String {
    match name.strip_suffix('-') {
        Some(rest) if prefix && !rest.is_empty() => {
            let mut end = rest.len() - 1;
            while !rest.is_char_boundary(end) {
                end -= 1;
            }
            format!("{}a", &rest[..end])
        }
        _ => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Rule = fn(&str) -> Vec<String>;

    #[test]
    fn accepts_the_forms_of_kubernetes() {
        let long = "x".repeat(64);
        let table: [(Rule, &[&str], &[&str]); 5] = [
            (dns1123_label, &["a", "a-1"], &["", "A", "a.b", "-a", "a-", &long]),
            (
                dns1123_subdomain,
                &["a", "a.b-c"],
                &["", "A", "a..b", "a_b", "a."],
            ),
            (
                qualified,
                &["a", "A_b.c", "example.com/a"],
                &["", "-a", "a/", "/a", "A/a", "a/b/c", &long],
            ),
            (label_value, &["", "a", "A_b"], &["-", "a b", &long]),
            (
                config_map_key,
                &["a", ".a", "A_b-c"],
                &["", ".", "..", "..a", "a/b"],
            ),
        ];
        for (check, valid, invalid) in table {
            for text in valid {
                assert_eq!(check(text), Vec::<String>::new(), "{text:?}");
            }
            for text in invalid {
                assert_ne!(check(text), Vec::<String>::new(), "{text:?}");
            }
        }
    }

    #[test]
    fn allows_a_dash_at_the_end_of_a_prefix() {
        assert!(subdomain_name("csi-", true).is_empty());
        assert!(!subdomain_name("csi-", false).is_empty());
        assert!(!subdomain_name("-", true).is_empty());
    }
}
