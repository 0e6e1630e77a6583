//! Requests with an invalid `:authority`.
//!
//! Kubelet dials its plugins by the bare path of their socket and sends `%2Fvar%2Flib...` as `:authority`; gRPC's C core
//! (Python, C++, Ruby) and grpc-java send such paths, too. RFC 3986 does not allow them there, and `h2` resets the stream as
//! malformed, without an option to be lenient (<https://github.com/hyperium/h2/pull/487>). So this filter reads the client's
//! frames before `h2` does, and replaces an authority that `h2` would refuse by `localhost`. Header blocks depend on the
//! dynamic table, so each is decoded and encoded again as literals without indexing. All other frames pass unchanged.
//!
//! Malformed input passes, too, or is replaced by input that is malformed in the same way: `h2` responds to it.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::uri::Authority;

use super::hpack::{Decoder, MALFORMED_BLOCK, Malformed};

/// The connection preface of HTTP/2.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

const HEAD: usize = 9;

/// SETTINGS_MAX_FRAME_SIZE, of which `h2` announces the default.
const MAX_FRAME: usize = 16 << 10;

/// Maximum length of a header block, encoded or decoded.
const MAX_BLOCK: usize = MAX_HEADER_LIST as usize;

/// SETTINGS_MAX_HEADER_LIST_SIZE of servers and of the proxy's connection to its driver, in place of hyper's 16 KiB.
pub(crate) const MAX_HEADER_LIST: u32 = 64 << 10;

/// Size of the output at which the filter pauses.
const OUTPUT: usize = 64 << 10;

/// The replacement for an invalid authority; Go clients of a Unix socket send the same.
const LOCALHOST: &[u8] = b"localhost";

const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;

const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

/// Filters what a client sends to `h2`.
#[derive(Debug, Default)]
pub(super) struct AuthorityFilter {
    state: State,
    decoder: Decoder,
    /// An incomplete header block.
    block: Option<Block>,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Preface,
    Frame,
    /// Remaining bytes of a frame's payload.
    Payload(usize),
    /// Everything passes: `h2` will end the connection.
    Transparent,
}

#[derive(Clone, Copy, Debug)]
struct Head {
    length: usize,
    kind: u8,
    flags: u8,
    stream: u32,
}

#[derive(Debug)]
struct Block {
    head: Head,
    priority: Bytes,
    fragment: BytesMut,
}

// === impl AuthorityFilter ===

impl AuthorityFilter {
    /// Moves filtered bytes from `input` to `output`.
    pub(super) fn pass(&mut self, input: &mut BytesMut, output: &mut BytesMut) {
        while output.len() < OUTPUT && self.step(input, output) {}
    }

    /// Whether it made progress.
    fn step(&mut self, input: &mut BytesMut, output: &mut BytesMut) -> bool {
        match self.state {
            State::Preface => {
                let seen = input.len().min(PREFACE.len());
                if input[..seen] != PREFACE[..seen] {
                    self.state = State::Transparent;
                } else if seen < PREFACE.len() {
                    return false;
                } else {
                    output.unsplit(input.split_to(seen));
                    self.state = State::Frame;
                }
                true
            }
            State::Frame => self.frame(input, output),
            State::Payload(0) => {
                self.state = State::Frame;
                true
            }
            State::Payload(left) => {
                let passing = left.min(input.len());
                output.unsplit(input.split_to(passing));
                self.state = State::Payload(left - passing);
                passing > 0
            }
            State::Transparent => {
                let some = !input.is_empty();
                output.unsplit(input.split());
                some
            }
        }
    }

    fn frame(&mut self, input: &mut BytesMut, output: &mut BytesMut) -> bool {
        let Some(head) = Head::read(input) else {
            return false;
        };
        let is_next = match &self.block {
            Some(block) => head.kind == CONTINUATION && head.stream == block.head.stream,
            None => head.kind != CONTINUATION,
        };
        if !is_next || head.length > MAX_FRAME {
            // A block without its continuation is an error.
            if let Some(block) = self.block.take() {
                block.begin(output);
            }
            self.state = State::Transparent;
            return true;
        }
        if !matches!(head.kind, HEADERS | CONTINUATION) {
            output.unsplit(input.split_to(HEAD));
            self.state = State::Payload(head.length);
            return true;
        }
        if input.len() < HEAD + head.length {
            input.reserve(HEAD + head.length - input.len());
            return false;
        }
        if head.kind == HEADERS {
            self.block = Block::of(head, &input[HEAD..HEAD + head.length]);
        } else if let Some(block) = &mut self.block {
            block.fragment.extend_from_slice(&input[HEAD..HEAD + head.length]);
        }
        let Some(block) = self.block.take() else {
            self.state = State::Transparent;
            return true;
        };
        input.advance(HEAD + head.length);
        if head.flags & END_HEADERS != 0 {
            self.end(&block, output);
        } else if block.fragment.len() > MAX_BLOCK {
            self.refuse(&block, output);
        } else {
            self.block = Some(block);
        }
        true
    }

    fn end(&mut self, block: &Block, output: &mut BytesMut) {
        let mut fields = BytesMut::with_capacity(512);
        let mut size = 0;
        let decoded = self.decoder.decode(&block.fragment, |mut field| {
            size += field.size();
            if size > MAX_BLOCK {
                return Err(Malformed);
            }
            if field.name == b":authority"[..] && Authority::from_maybe_shared(field.value.clone()).is_err() {
                field.value = Bytes::from_static(LOCALHOST);
            }
            field.encode(&mut fields);
            Ok(())
        });
        match decoded {
            Ok(()) => block.write(&fields, output),
            Err(Malformed) => self.refuse(block, output),
        }
    }

    /// `h2` ends the connection.
    fn refuse(&mut self, block: &Block, output: &mut BytesMut) {
        block.write(MALFORMED_BLOCK, output);
        self.state = State::Transparent;
    }
}

// === impl Head ===

impl Head {
    fn read(mut bytes: &[u8]) -> Option<Self> {
        if bytes.len() < HEAD {
            return None;
        }
        let length = bytes.get_uint(3);
        Some(Self {
            length: usize::try_from(length).ok()?,
            kind: bytes.get_u8(),
            flags: bytes.get_u8(),
            stream: bytes.get_u32() & (u32::MAX >> 1),
        })
    }

    fn write(self, output: &mut BytesMut) {
        output.put_uint(u64::try_from(self.length).expect("a frame's length must fit"), 3);
        output.put_u8(self.kind);
        output.put_u8(self.flags);
        output.put_u32(self.stream);
    }
}

// === impl Block ===

impl Block {
    /// The fragment of a header block in a HEADERS frame; `None` if its padding or priority exceed it.
    fn of(head: Head, mut payload: &[u8]) -> Option<Self> {
        if head.flags & PADDED != 0 {
            let (&padding, rest) = payload.split_first()?;
            let end = rest.len().checked_sub(usize::from(padding))?;
            payload = &rest[..end];
        }
        let priority = if head.flags & PRIORITY != 0 { 5 } else { 0 };
        let (priority, fragment) = payload.split_at_checked(priority)?;
        Some(Self {
            head,
            priority: Bytes::copy_from_slice(priority),
            fragment: fragment.into(),
        })
    }

    /// Writes the block with other fields, in as many frames as needed.
    fn write(&self, fields: &[u8], output: &mut BytesMut) {
        let (first, rest) = fields.split_at(fields.len().min(MAX_FRAME - self.priority.len()));
        let mut rest = rest.chunks(MAX_FRAME).peekable();
        let end = |is_last| if is_last { END_HEADERS } else { 0 };
        let head = Head {
            length: self.priority.len() + first.len(),
            flags: (self.head.flags & (END_STREAM | PRIORITY)) | end(rest.peek().is_none()),
            ..self.head
        };
        head.write(output);
        output.extend_from_slice(&self.priority);
        output.extend_from_slice(first);
        while let Some(chunk) = rest.next() {
            let head = Head {
                length: chunk.len(),
                kind: CONTINUATION,
                flags: end(rest.peek().is_none()),
                ..self.head
            };
            head.write(output);
            output.extend_from_slice(chunk);
        }
    }

    /// Writes the begin of a block without a fragment.
    fn begin(&self, output: &mut BytesMut) {
        let head = Head {
            length: 0,
            flags: self.head.flags & END_STREAM,
            ..self.head
        };
        head.write(output);
    }
}

#[cfg(test)]
mod tests;
