//! How errors and times are told.

use jiff::Timestamp;
use kube::core::Status;

/// An error and all its causes on one line. The variants of our error types leave their source out
/// of their own text, so that nothing is said twice here.
pub fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = String::new();
    let mut next = Some(error);
    while let Some(error) = next {
        next = error.source();
        let own = match error.downcast_ref::<kube::Error>() {
            // kube shows it as Rust's data structure, with the explanation in it a second time.
            Some(kube::Error::Api(status)) => {
                next = None;
                answered(status)
            }
            // The cause says it all.
            Some(kube::Error::Service(_)) => continue,
            Some(_) | None => error.to_string(),
        };
        // Other crates are not as careful.
        if text.is_empty() {
            text = own;
        } else if !text.ends_with(&own) {
            text.push_str(": ");
            text.push_str(&own);
        }
    }
    text
}

/// What the API server answered instead of what was asked for.
pub fn answered(status: &Status) -> String {
    let message = status.message.trim();
    let message = if message.is_empty() {
        "no explanation"
    } else {
        message
    };
    format!("{message} (HTTP {})", status.code)
}

/// An address without the name and password that may stand in it.
pub fn address(address: &str) -> String {
    let (scheme, rest) = match address.split_once("://") {
        Some((scheme, rest)) => (format!("{scheme}://"), rest),
        None => (String::new(), address),
    };
    // A password may hold an `@` or a slash that somebody forgot to write as %40 or %2F.
    match rest.rsplit_once('@') {
        Some((_, host)) => format!("{scheme}***@{host}"),
        None => address.to_owned(),
    }
}

/// A time as Kubernetes writes it: RFC 3339, in seconds.
pub fn time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_told_without_its_password() {
        for (whole, told) in [
            ("http://proxy:3128/", "http://proxy:3128/"),
            ("http://user:hunter2@proxy:3128", "http://***@proxy:3128"),
            ("user:hunter2@proxy", "***@proxy"),
            ("http://user:hun@ter/2@proxy/", "http://***@proxy/"),
            ("", ""),
        ] {
            assert_eq!(address(whole), told);
        }
    }

    #[test]
    fn an_answer_of_the_api_server_is_told_once_and_in_words() {
        let status = |code, message: &str| Status {
            code,
            message: message.to_owned(),
            reason: "Forbidden".to_owned(),
            ..Status::default()
        };
        let api = |status: Status| kube::Error::Api(status.boxed());
        assert_eq!(
            chain(&api(status(403, "user u cannot"))),
            "user u cannot (HTTP 403)"
        );
        assert_eq!(chain(&api(status(503, " "))), "no explanation (HTTP 503)");
        let refused = kube::Error::Service(Box::new(std::io::Error::other("connection refused")));
        assert_eq!(chain(&refused), "connection refused");
    }
}
