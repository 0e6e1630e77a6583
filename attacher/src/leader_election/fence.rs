//! Checks leadership when a connection takes a request's body.
//!
//! Leadership is checked before each request. But then the request may wait for a connection or a free stream, or the process
//! may be suspended. A server does not execute a request with a truncated body, so the body checks leadership again.

use std::pin::Pin;
use std::task::{Context, Poll};

use http::Request;
use hyper::body::{Body, Frame, SizeHint};
use tower::BoxError;

use super::Leadership;

/// A request's body that fails unless we lead when the connection takes it.
#[derive(Debug)]
pub struct Fenced<B> {
    body: B,
    /// `None` for a read, which needs no leadership.
    leadership: Option<Leadership>,
}

/// The request with its body, fenced by the [`Leadership`] among its extensions.
pub fn fenced<B>(mut request: Request<B>) -> Request<Fenced<B>> {
    let leadership = request.extensions_mut().remove();
    request.map(|body| Fenced { body, leadership })
}

// === impl Fenced ===

impl<B> Body for Fenced<B>
where
    B: Body + Unpin,
    B::Error: Into<BoxError>,
{
    type Data = B::Data;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, BoxError>>> {
        if let Some(Err(reason)) = self.leadership.as_ref().map(Leadership::check) {
            return Poll::Ready(Some(Err(reason.into())));
        }
        Pin::new(&mut self.body).poll_frame(cx).map_err(Into::into)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::FutureExt as _;
    use http_body_util::{BodyExt as _, Full};
    use hyper::body::Bytes;
    use tokio::time::Instant;

    use super::super::NotLeading;
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn sends_a_body_only_while_leading() {
        let bytes = || Full::new(Bytes::from_static(b"{}"));
        let leadership = Leadership::until(Instant::now() + SECOND);
        let body = |leadership: Option<&Leadership>| {
            let mut request = Request::new(bytes());
            if let Some(leadership) = leadership {
                request.extensions_mut().insert(leadership.clone());
            }
            fenced(request).into_body()
        };
        let (early, late, free) = (body(Some(&leadership)), body(Some(&leadership)), body(None));
        assert_eq!(late.size_hint().exact(), Some(2));
        let taken = |body: Fenced<_>| body.collect().now_or_never().unwrap();
        assert_eq!(taken(early).unwrap().to_bytes(), "{}");
        tokio::time::advance(SECOND).await;
        assert!(taken(late).unwrap_err().is::<NotLeading>());
        assert!(taken(free).is_ok());
    }
}
