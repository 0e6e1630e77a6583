//! The driver's end of a connection, as bytes: it tells when it is over.
//!
//! A connection is over for new calls when its I/O object is dropped, which the HTTP/2 task does at the
//! first EOF or error whether or not a call is under way, and also when the driver says GOAWAY: it is
//! about to end, finishes what it is at and takes nothing new. hyper tells nobody of the latter, and as
//! long as an old call runs the connection looks sound while each new one fails. So the frames are
//! watched as they come by.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio_util::sync::{CancellationToken, DropGuard};

/// Ends when no new call can be made over the connection any more.
pub(super) type Loss = CancellationToken;

/// See the module.
#[derive(Debug)]
pub(super) struct DriverStream {
    stream: UnixStream,
    frames: Frames,
    _over: DropGuard,
    loss: Loss,
}

/// Where in the sequence of HTTP/2 frames we are (RFC 9113, section 4.1). What a server sends is frames
/// from its first byte on.
#[derive(Debug, Default)]
struct Frames {
    /// The header of the next frame, as far as it has come.
    header: [u8; HEADER],
    come: usize,
    /// How much of the frame's payload is still to come.
    payload: usize,
}

/// Bytes of a frame's header: three of length, one of type, the rest is of no interest here.
const HEADER: usize = 9;
const GOAWAY: u8 = 7;

// === impl DriverStream ===

impl DriverStream {
    /// Reads and writes `stream`, and ends `loss` when it is over.
    pub(super) fn new(stream: UnixStream, loss: Loss) -> Self {
        Self {
            stream,
            frames: Frames::default(),
            _over: loss.clone().drop_guard(),
            loss,
        }
    }
}

impl AsyncRead for DriverStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if self.frames.pass(&buffer.filled()[before..]) && !self.loss.is_cancelled() {
            tracing::info!(
                "the CSI driver takes no more calls over this connection (GOAWAY); those under way may finish"
            );
            self.loss.cancel();
        }
        read
    }
}

impl AsyncWrite for DriverStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

// === impl Frames ===

impl Frames {
    /// Passes by these bytes. Says whether the header of a GOAWAY was among them.
    fn pass(&mut self, mut bytes: &[u8]) -> bool {
        let mut goaway = false;
        while !bytes.is_empty() {
            if self.payload > 0 {
                let passed = self.payload.min(bytes.len());
                self.payload -= passed;
                bytes = &bytes[passed..];
                continue;
            }
            let (taken, rest) = bytes.split_at(bytes.len().min(HEADER - self.come));
            self.header[self.come..][..taken.len()].copy_from_slice(taken);
            self.come += taken.len();
            bytes = rest;
            if self.come == HEADER {
                let [high, middle, low, kind, ..] = self.header;
                self.come = 0;
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
        // Looks like a GOAWAY wherever one would begin to read.
        frame.resize(HEADER + payload, GOAWAY);
        frame
    }

    #[test]
    fn a_goaway_is_seen_however_the_bytes_come() {
        let (settings, data, ping) = (frame(4, 36), frame(0, 70_000), frame(6, 8));
        let without = [settings, data, ping, frame(4, 0)].concat();
        let with = [without.clone(), frame(GOAWAY, 8), frame(0, 5)].concat();
        for at_once in [1, 2, 8, 9, 10, 4096, with.len()] {
            let seen = |bytes: &[u8]| {
                let mut frames = Frames::default();
                let seen: Vec<bool> = bytes.chunks(at_once).map(|chunk| frames.pass(chunk)).collect();
                seen.into_iter().filter(|goaway| *goaway).count()
            };
            assert_eq!((seen(&without), seen(&with)), (0, 1), "{at_once}");
        }
    }
}
