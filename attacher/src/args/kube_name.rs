//! Validation of namespaces and labels as in the API server.

/// Maximum length of a namespace's name, of the name in a label's key, and of a label's value.
const MAX_NAME: usize = 63;
/// Maximum length of the prefix of a label's key.
const MAX_PREFIX: usize = 253;

/// A namespace's name (RFC 1123), or nothing.
pub(super) fn namespace(value: &str) -> Result<Option<String>, String> {
    if value.is_empty() {
        return Ok(None);
    }
    if is_dns_label(value) {
        Ok(Some(value.to_owned()))
    } else {
        Err(format!(
            "{value:?} is not a valid namespace: it must have at most {MAX_NAME} lowercase letters, digits and '-', such as kube-system"
        ))
    }
}

/// Checks a label's key and value.
pub(super) fn label(key: &str, value: &str) -> Result<(), String> {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    let right = is_qualified(name)
        && prefix.is_none_or(|prefix| prefix.len() <= MAX_PREFIX && prefix.split('.').all(is_dns_label));
    if !right {
        return Err(format!(
            "{key:?} is not a valid label key: it must have at most {MAX_NAME} letters, digits, '-', '_' and '.', after an \
             optional domain and '/'"
        ));
    }
    if !value.is_empty() && !is_qualified(value) {
        return Err(format!(
            "{value:?} is not a valid label value: it must have at most {MAX_NAME} letters, digits, '-', '_' and '.'"
        ));
    }
    Ok(())
}

fn is_dns_label(text: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (1..=MAX_NAME).contains(&text.len())
        && text.chars().all(inner)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

fn is_qualified(text: &str) -> bool {
    let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let outer = |c: char| c.is_ascii_alphanumeric();
    (1..=MAX_NAME).contains(&text.len())
        && text.chars().all(inner)
        && text.starts_with(outer)
        && text.ends_with(outer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn validates_names_like_the_api_server() {
        assert_eq!(namespace(""), Ok(None));
        assert_eq!(namespace("kube-system"), Ok(Some("kube-system".to_owned())));
        for bad in ["Bad NS", "-a", "a-", "a.b", "a_b", &"a".repeat(64)] {
            assert!(namespace(bad).unwrap_err().contains("namespace"), "{bad}");
        }
        for (key, value) in [
            ("app", "csi"),
            ("example.com/App_1.x", ""),
            ("a", "A-b_c.9"),
            (&"a".repeat(63), &"b".repeat(63)),
        ] {
            assert_eq!(label(key, value), Ok(()), "{key}={value}");
        }
        for (key, value) in [
            ("bad key", "x"),
            ("a", "y!"),
            ("", "x"),
            ("Example.com/a", "x"),
            ("a/b/c", "x"),
            ("/a", "x"),
            ("a", "-x"),
            ("a", &"b".repeat(64)),
        ] {
            assert!(label(key, value).unwrap_err().contains("label"), "{key}={value}");
        }
    }
}
