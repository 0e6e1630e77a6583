//! Formats of names, labels, keys and addresses (`k8s.io/apimachinery/pkg/util/validation`), with the texts of their errors,
//! and generated names.

use std::net::{IpAddr, Ipv4Addr};

use fastrand::Rng;

const DNS1123_LABEL: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const QUALIFIED: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";
const QUALIFIED_TEXT: &str = "must consist of alphanumeric characters, '-', '_' or '.', and must start and end \
     with an alphanumeric character";

/// Checks a name; `prefix` if it is a `generateName`.
pub(crate) type NameFn = fn(name: &str, prefix: bool) -> Vec<String>;

fn regex_error(text: &str, regex: &str, examples: &[&str]) -> String {
    let examples: Vec<String> = examples.iter().map(|example| format!("'{example}', ")).collect();
    // Go's text, too, has two spaces before "or".
    format!(
        "{text} (e.g. {}regex used for validation is '{regex}')",
        examples.join(" or ")
    )
}

fn too_long(limit: usize) -> String {
    format!("must be no more than {limit} characters")
}

/// The text of the newer package `k8s.io/apimachinery/pkg/api/validate/content`, which validates labels.
fn label_too_long(limit: usize) -> String {
    format!("must be no more than {limit} bytes")
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
    let mut errors = Vec::new();
    if text.len() > 63 {
        errors.push(too_long(63));
    }
    if !matches_dns_label(text) {
        errors.push(if text.split('.').all(matches_dns_label) {
            "must not contain dots".into()
        } else {
            let what = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and \
                        must start and end with an alphanumeric character";
            regex_error(what, DNS1123_LABEL, &["my-name", "123-abc"])
        });
    }
    errors
}

/// A DNS subdomain whose labels may begin with or contain underscores.
pub(crate) fn subdomain_with_underscores(text: &str) -> Vec<String> {
    const LABEL: &str = "_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?";
    let mut errors = Vec::new();
    if text.len() > 253 {
        errors.push(too_long(253));
    }
    let matches =
        |label: &str| matches_dns_label(&label.strip_prefix('_').unwrap_or(label).replace('_', "-"));
    if !text.split('.').all(matches) {
        let what = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or \
                    '.', and must start and end with an alphanumeric character";
        errors.push(regex_error(
            what,
            &format!("{LABEL}(\\.{LABEL})*"),
            &["example.com"],
        ));
    }
    errors
}

/// An IP address.
pub(crate) fn ip_address(text: &str) -> Vec<String> {
    let why = match text.parse() {
        Ok(IpAddr::V6(address)) if address.to_ipv4_mapped().is_some() => {
            "must not be an IPv4-mapped IPv6 address"
        }
        Ok(_) => return Vec::new(),
        Err(_) if sloppy_ip(text).is_some() => "must not have leading 0s",
        Err(_) => "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
    };
    vec![why.to_owned()]
}

/// An IP address in which octets may have leading zeros; an IPv4-mapped IPv6 address counts as IPv4 (`ParseIPSloppy` of Kubernetes).
pub(crate) fn sloppy_ip(text: &str) -> Option<IpAddr> {
    let octet = |octet: &str| match octet.trim_start_matches('0') {
        "" if !octet.is_empty() => "0".to_owned(),
        octet => octet.to_owned(),
    };
    let octets = || text.split('.').map(octet).collect::<Vec<_>>().join(".");
    let address: IpAddr = text
        .parse()
        .or_else(|_| octets().parse::<Ipv4Addr>().map(IpAddr::V4))
        .ok()?;
    Some(address.to_canonical())
}

/// A DNS subdomain (RFC 1123).
pub(crate) fn dns1123_subdomain(text: &str) -> Vec<String> {
    subdomain(text, too_long)
}

fn subdomain(text: &str, too_long: fn(usize) -> String) -> Vec<String> {
    let mut errors = Vec::new();
    if text.len() > 253 {
        errors.push(too_long(253));
    }
    if !text.split('.').all(matches_dns_label) {
        let what = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or \
                    '.', and must start and end with an alphanumeric character";
        let regex = format!("{DNS1123_LABEL}(\\.{DNS1123_LABEL})*");
        errors.push(regex_error(what, &regex, &["example.com"]));
    }
    errors
}

/// A label key, also called a qualified name.
pub(crate) fn qualified(text: &str) -> Vec<String> {
    let mut errors = Vec::new();
    let explained = || regex_error(QUALIFIED_TEXT, QUALIFIED, &["MyName", "my.name", "123-abc"]);
    let parts: Vec<&str> = text.split('/').collect();
    let name = match parts.as_slice() {
        [name] => name,
        [prefix, name] => {
            if prefix.is_empty() {
                errors.push("prefix part must be non-empty".into());
            } else {
                let found = subdomain(prefix, label_too_long);
                errors.extend(found.into_iter().map(|error| format!("prefix part {error}")));
            }
            name
        }
        _ => {
            let suffix = " with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')";
            return vec![format!("a valid label key {}{suffix}", explained())];
        }
    };
    if name.is_empty() {
        errors.push("name part must be non-empty".into());
    } else if name.len() > 63 {
        errors.push(format!("name part {}", label_too_long(63)));
    }
    if !matches_qualified(name) {
        errors.push(format!("name part {}", explained()));
    }
    errors
}

/// A label value.
pub(crate) fn label_value(text: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if text.len() > 63 {
        errors.push(label_too_long(63));
    }
    if !text.is_empty() && !matches_qualified(text) {
        let what = format!(
            "a valid label must be an empty string or {}",
            &QUALIFIED_TEXT["must ".len()..]
        );
        errors.push(regex_error(
            &what,
            &format!("({QUALIFIED})?"),
            &["MyValue", "my_value", "12345"],
        ));
    }
    errors
}

/// The name of a port.
pub(crate) fn port(text: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if text.len() > 15 {
        errors.push(too_long(15));
    }
    let fits = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-';
    if text.is_empty() || !text.bytes().all(fits) {
        errors.push("must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)".into());
    }
    if !text.bytes().any(|c| c.is_ascii_lowercase()) {
        errors.push("must contain at least one letter (a-z)".into());
    }
    if text.contains("--") {
        errors.push("must not contain consecutive hyphens".into());
    }
    if text.starts_with('-') || text.ends_with('-') {
        errors.push("must not begin or end with a hyphen".into());
    }
    errors
}

/// The name of an environment variable.
pub(crate) fn variable(text: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if text.is_empty() {
        errors.push("environment variable name must be non-empty".into());
    }
    if !text.bytes().all(|c| (b' '..=b'~').contains(&c) && c != b'=') {
        let what = "a valid environment variable name must consist only of printable ASCII characters other than '='";
        errors.push(what.into());
    }
    errors
}

/// The name of a header of an HTTP request.
pub(crate) fn http_header(text: &str) -> Vec<String> {
    if !text.is_empty() && text.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'-') {
        return Vec::new();
    }
    let what = "a valid HTTP header must consist of alphanumeric characters or '-'";
    vec![regex_error(what, "[-A-Za-z0-9]+", &["X-Header-Name"])]
}

/// The key of a Secret.
pub(crate) fn config_map_key(text: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if text.len() > 253 {
        errors.push(too_long(253));
    }
    let fits = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'.' | b'_');
    if text.is_empty() || !text.bytes().all(fits) {
        let what = "a valid config key must consist of alphanumeric characters, '-', '_' or '.'";
        errors.push(regex_error(
            what,
            "[-._a-zA-Z0-9]+",
            &["key.name", "KEY_NAME", "key-name"],
        ));
    }
    match text {
        "." => errors.push("must not be '.'".into()),
        ".." => errors.push("must not be '..'".into()),
        _ if text.starts_with("..") => errors.push("must not start with '..'".into()),
        _ => {}
    }
    errors
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

    /// Texts as kube-apiserver 1.36 writes them.
    #[test]
    fn errors_equal_those_of_kube_apiserver() {
        let subdomain = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or \
            '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for \
            validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
        assert_eq!(dns1123_subdomain("Bad_Name"), [subdomain]);
        let label = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must \
            start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation \
            is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
        assert_eq!(dns1123_label("Bad"), [label]);
        assert_eq!(dns1123_label("a.b"), ["must not contain dots"]);
        let long = "x".repeat(300);
        assert_eq!(dns1123_label(&long), ["must be no more than 63 characters"]);
        assert_eq!(dns1123_subdomain(&long), ["must be no more than 253 characters"]);
        assert_eq!(label_value(&long), ["must be no more than 63 bytes"]);
        let prefixed = format!("{long}/a");
        assert_eq!(
            qualified(&prefixed),
            ["prefix part must be no more than 253 bytes"]
        );
        let value = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', \
            and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', \
            regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
        assert_eq!(label_value("-"), [value]);
        assert_eq!(
            qualified("a/"),
            [
                "name part must be non-empty",
                "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
             alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
             '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
            ]
        );
    }

    #[test]
    fn allows_a_dash_at_the_end_of_a_prefix() {
        assert!(subdomain_name("csi-", true).is_empty());
        assert!(!subdomain_name("csi-", false).is_empty());
        assert!(!subdomain_name("-", true).is_empty());
    }
}
