//! The byte stream of a connection to the driver, which detects its loss.
//!
//! A connection is lost for new calls when its I/O object is dropped, which the HTTP/2 task does at the first EOF or error,
//! also while no call runs; and when the driver sends GOAWAY: it finishes running calls and rejects new ones. hyper does not
//! report GOAWAY, and as long as an old call runs each new one fails. So the stream parses the frame headers.

use tokio::io::AsyncRead;
use tokio_util::io::InspectReader;
use tokio_util::sync::CancellationToken;

/// Cancelled when the connection accepts no new calls.
pub(super) type Loss = CancellationToken;

/// Parser of frame headers (RFC 9113, section 4.1). A server sends frames from its first byte on.
#[derive(Debug, Default)]
struct Frames {
    /// The first `received` bytes of the next frame's header.
    header: [u8; HEADER],
    received: usize,
    /// Bytes of the current frame's payload that have not arrived.
    payload: usize,
}

/// Bytes of a frame's header: three of length, one of type, five of flags and stream.
const HEADER: usize = 9;
const GOAWAY: u8 = 7;

/// The stream, which cancels `loss` when the connection is lost.
pub(super) fn watched<S: AsyncRead>(stream: S, loss: Loss) -> InspectReader<S, impl FnMut(&[u8])> {
    let mut frames = Frames::default();
    // Dropped with the stream.
    let lost = loss.clone().drop_guard();
    InspectReader::new(stream, move |bytes| {
        let _lost = &lost;
        if frames.parse(bytes) && !loss.is_cancelled() {
            tracing::info!(
                "the CSI driver accepts no more calls on this connection (GOAWAY); running calls may finish"
            );
            loss.cancel();
        }
    })
}

// === impl Frames ===

impl Frames {
    /// Parses the next bytes. Returns whether the header of a GOAWAY was among them.
    fn parse(&mut self, mut bytes: &[u8]) -> bool {
        let mut goaway = false;
        while !bytes.is_empty() {
            if self.payload > 0 {
                let skipped = self.payload.min(bytes.len());
                self.payload -= skipped;
                bytes = &bytes[skipped..];
                continue;
            }
            let (taken, rest) = bytes.split_at(bytes.len().min(HEADER - self.received));
            self.header[self.received..][..taken.len()].copy_from_slice(taken);
            self.received += taken.len();
            bytes = rest;
            if self.received == HEADER {
                let [high, middle, low, kind, ..] = self.header;
                self.received = 0;
                self.payload = usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low);
                goaway |= kind == GOAWAY;
            }
        }
        goaway
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, payload: usize) -> Vec<u8> {
        let length = u32::try_from(payload).unwrap().to_be_bytes();
        let mut frame = vec![length[1], length[2], length[3], kind, 0, 0, 0, 0, 0];
        // Every wrong offset looks like the header of a GOAWAY.
        frame.resize(HEADER + payload, GOAWAY);
        frame
    }

    #[test]
    fn finds_goaway_in_chunks_of_any_size() {
        let (settings, data, ping) = (frame(4, 36), frame(0, 70_000), frame(6, 8));
        let without = [settings, data, ping, frame(4, 0)].concat();
        let with = [without.clone(), frame(GOAWAY, 8), frame(0, 5)].concat();
        for at_once in [1, 2, 8, 9, 10, 4096, with.len()] {
            let seen = |bytes: &[u8]| {
                let mut frames = Frames::default();
                let seen: Vec<bool> = bytes.chunks(at_once).map(|chunk| frames.parse(chunk)).collect();
                seen.into_iter().filter(|goaway| *goaway).count()
            };
            assert_eq!((seen(&without), seen(&with)), (0, 1), "{at_once}");
        }
    }
}
