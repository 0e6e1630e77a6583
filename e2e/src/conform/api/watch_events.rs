//! Events of a watch, one JSON document a line.

use futures::{StreamExt as _, stream};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Body as HttpBody, Bytes, Frame};
use tower::BoxError;

/// The events of a watch without its bookmarks.
pub(super) fn without_bookmarks<B>(body: B) -> impl HttpBody<Data = Bytes, Error = BoxError> + Send
where
    B: HttpBody<Data = Bytes, Error: Into<BoxError>> + Send + Unpin + 'static,
{
    let events = stream::unfold((body, Vec::new()), |(mut body, mut unread)| async move {
        let frame = body.frame().await?;
        let data = frame.map_err(Into::into).map(|frame| {
            unread.extend_from_slice(&frame.into_data().unwrap_or_default());
            let end = unread
                .iter()
                .rposition(|byte| *byte == b'\n')
                .map_or(0, |end| end + 1);
            let complete: Vec<u8> = unread.drain(..end).collect();
            let kept = complete
                .split_inclusive(|byte| *byte == b'\n')
                .filter(|line| !is_bookmark(line));
            Frame::data(Bytes::from(kept.collect::<Vec<_>>().concat()))
        });
        Some((data, (body, unread)))
    });
    StreamBody::new(events.filter(|data| {
        let is_empty = |frame: &Frame<Bytes>| frame.data_ref().is_none_or(Bytes::is_empty);
        std::future::ready(!data.as_ref().is_ok_and(is_empty))
    }))
}

fn is_bookmark(line: &[u8]) -> bool {
    serde_json::from_slice::<serde_json::Value>(line).is_ok_and(|event| event["type"] == "BOOKMARK")
}
