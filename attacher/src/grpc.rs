//! What a peer says of how a call ended, made fit to be read.
//!
//! tonic panics over a `grpc-status-details-bin` that is not Base64, and takes UNKNOWN for the code of a
//! status whose message is not UTF-8. Both come from the other side, so neither may bring us down or hide
//! a code. grpc-go, which the Go sidecar uses, bears both.

use std::fmt::Write as _;

use http::{HeaderMap, HeaderValue, Response};
use http_body_util::BodyExt as _;
use tonic::Status;
use tonic::body::Body;

/// An answer of which tonic can read headers and trailers.
pub(crate) fn readable(mut answer: Response<Body>) -> Response<Body> {
    tidy(answer.headers_mut());
    answer.map(|body| {
        Body::new(body.map_frame(|mut frame| {
            if let Some(trailers) = frame.trailers_mut() {
                tidy(trailers);
            }
            frame
        }))
    })
}

fn tidy(headers: &mut HeaderMap) {
    // Nobody here reads them.
    headers.remove(Status::GRPC_STATUS_DETAILS);
    if let Some(message) = headers.get_mut(Status::GRPC_MESSAGE)
        && let Err(error) = String::from_utf8(percent_decoded(message.as_bytes()))
    {
        *message = percent_encoded(&String::from_utf8_lossy(error.as_bytes()));
    }
}

/// A sign that no two digits follow stands for itself.
fn percent_decoded(text: &[u8]) -> Vec<u8> {
    let digit = |at: usize| text.get(at).and_then(|byte| char::from(*byte).to_digit(16));
    let mut decoded = Vec::with_capacity(text.len());
    let mut at = 0;
    while at < text.len() {
        if text[at] == b'%'
            && let (Some(high), Some(low)) = (digit(at + 1), digit(at + 2))
            && let Ok(byte) = u8::try_from(high * 16 + low)
        {
            decoded.push(byte);
            at += 3;
        } else {
            decoded.push(text[at]);
            at += 1;
        }
    }
    decoded
}

fn percent_encoded(text: &str) -> HeaderValue {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'%' | ..b' ' | 0x7f.. => {
                write!(encoded, "%{byte:02X}").expect("writing to a string must not fail");
            }
            byte => encoded.push(char::from(byte)),
        }
    }
    HeaderValue::try_from(encoded).expect("what is visible ASCII must be a header's value")
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    fn status(message: &[u8], details: &[u8]) -> HeaderMap {
        let value = |bytes: &[u8]| HeaderValue::from_bytes(bytes).unwrap();
        HeaderMap::from_iter([
            (Status::GRPC_STATUS, value(b"14")),
            (Status::GRPC_MESSAGE, value(message)),
            (Status::GRPC_STATUS_DETAILS, value(details)),
        ])
    }

    #[test]
    fn whatever_a_driver_says_its_code_arrives_and_its_message_as_far_as_it_is_text() {
        for (message, expected) in [
            (&b"plain"[..], "plain"),
            (b"50%25 of caf%C3%A9", "50% of café"),
            ("café".as_bytes(), "café"),
            (b"100% or %zz or %4", "100% or %zz or %4"),
            (b"caf\xe9 50%25 %ff", "caf\u{fffd} 50% \u{fffd}"),
            (b"", ""),
        ] {
            for details in [&b"!"[..], b"AAAA", b"\xff", b"AAA=,BBB"] {
                let mut response = Response::new(Body::empty());
                *response.headers_mut() = status(message, details);
                let read = Status::from_header_map(readable(response).headers()).unwrap();
                assert_eq!(
                    (read.code(), read.message()),
                    (tonic::Code::Unavailable, expected)
                );
            }
        }
    }

    #[test]
    fn trailers_are_made_readable_too() {
        let trailers = std::future::ready(Some(Ok::<_, Status>(status(b"%ff", b"!"))));
        let body = Body::new(Body::empty().with_trailers(trailers));
        let read = readable(Response::new(body)).into_body().collect().now_or_never();
        let read = read.unwrap().unwrap().trailers().cloned().unwrap();
        assert_eq!(Status::from_header_map(&read).unwrap().message(), "\u{fffd}");
    }
}
