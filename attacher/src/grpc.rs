//! Repairs of invalid gRPC statuses.
//!
//! tonic panics if `grpc-status-details-bin` is not Base64, and reports UNKNOWN if a status message is not UTF-8. The driver sends
//! both, so they must neither end the process nor hide a code. grpc-go accepts both.

use http::{HeaderMap, HeaderValue, Response};
use http_body_util::BodyExt as _;
use percent_encoding::{AsciiSet, CONTROLS, percent_decode, utf8_percent_encode};
use tonic::Status;
use tonic::body::Body;

/// The characters that gRPC escapes in a status message, beside those outside of ASCII.
const ESCAPED: &AsciiSet = &CONTROLS.add(b'%');

/// The response with headers and trailers that tonic can read.
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
    // Unused.
    headers.remove(Status::GRPC_STATUS_DETAILS);
    if let Some(message) = headers.get_mut(Status::GRPC_MESSAGE)
        && let Err(error) = String::from_utf8(percent_decode(message.as_bytes()).collect())
    {
        let text = String::from_utf8_lossy(error.as_bytes());
        let encoded = utf8_percent_encode(&text, ESCAPED).to_string();
        *message = HeaderValue::try_from(encoded).expect("visible ASCII must be a header's value");
    }
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
    fn keeps_code_and_readable_text_of_a_malformed_status() {
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
    fn keeps_readable_text_of_a_malformed_status_in_trailers() {
        let trailers = std::future::ready(Some(Ok::<_, Status>(status(b"%ff", b"!"))));
        let body = Body::new(Body::empty().with_trailers(trailers));
        let read = readable(Response::new(body)).into_body().collect().now_or_never();
        let read = read.unwrap().unwrap().trailers().cloned().unwrap();
        assert_eq!(Status::from_header_map(&read).unwrap().message(), "\u{fffd}");
    }
}
