//! The deadline of a call, which gRPC sends as the time that is left.

use tokio::time::Instant;
use tonic::codegen::http::HeaderMap;
use tonic::{Request, Status};

use crate::rpc::timeout;

#[derive(Clone, Copy, Debug)]
pub(super) struct Deadline(Instant);

// === impl Deadline ===

impl Deadline {
    /// The deadline of a call that arrives now, if it has one.
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
        Some(Self(Instant::now().checked_add(timeout::of(headers)?)?))
    }

    /// Sets the time that is left.
    ///
    /// # Errors
    /// None is left.
    pub(super) fn set(self, headers: &mut HeaderMap) -> Result<(), Status> {
        let left = self.0.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Status::deadline_exceeded(
                "the deadline expired before the proxy called the driver",
            ));
        }
        let mut request = Request::new(());
        request.set_timeout(left);
        headers.extend(request.metadata().clone().into_headers());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn time_is_written_with_at_most_eight_digits() {
        // (header, the same time as the proxy writes it)
        for (header, written) in [
            ("5n", "5n"),
            ("99999999n", "99999999n"),
            ("100000u", "100000u"),
            ("10S", "10000000u"),
            ("250m", "250000u"),
            ("15M", "900000m"),
            ("99999999H", "99999999H"),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(timeout::HEADER, header.parse().unwrap());
            Deadline::of(&headers).unwrap().set(&mut headers).unwrap();
            assert_eq!(headers[timeout::HEADER], written, "{header}");
        }
        for header in ["", "S", "5", "5x", "-5S", "123456789S", "+5S"] {
            assert_eq!(timeout::parse(header), None, "{header}");
        }
    }
}
