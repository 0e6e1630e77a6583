//! HPACK, the header compression of HTTP/2 (RFC 7541): a decoder, and the encoding without indexing.
//!
//! `h2` keeps its codec private; docs/adr/0047 compares the HPACK crates.

use std::collections::VecDeque;
use std::sync::LazyLock;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::encoding::{decode_varint, encode_varint};

use self::tables::{CODE_LENGTHS, EOS, STATIC};

mod tables;

/// SETTINGS_HEADER_TABLE_SIZE, of which `h2` announces the default.
const TABLE_SIZE: usize = 4096;

/// Overhead per entry (RFC 7541, 4.1).
const ENTRY_OVERHEAD: usize = 32;

const LONGEST_CODE: usize = 30;

/// A malformed header block: index 0 is not valid.
pub(super) const MALFORMED_BLOCK: &[u8] = &[0x80];

/// A header block cannot be decoded. The dynamic table is lost, so the connection must end (RFC 7541, 2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed header block")]
pub(super) struct Malformed;

/// Decodes the header blocks of one direction of a connection, in their order.
#[derive(Debug)]
pub(super) struct Decoder {
    entries: VecDeque<Field>,
    /// Size of all entries (RFC 7541, 4.1).
    size: usize,
    max_size: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Field {
    pub(super) name: Bytes,
    pub(super) value: Bytes,
    /// Never-indexed.
    pub(super) is_sensitive: bool,
}

struct Reader<'a>(&'a [u8]);

/// A canonical Huffman code, by the length of its codes.
struct Huffman {
    /// By length: first code, number of codes, and index of the first symbol.
    lengths: [(u32, u32, usize); LONGEST_CODE + 1],
    /// In the order of their codes.
    symbols: Vec<u16>,
}

static HUFFMAN: LazyLock<Huffman> = LazyLock::new(Huffman::new);

// === impl Decoder ===

impl Default for Decoder {
    fn default() -> Self {
        Self {
            entries: VecDeque::new(),
            size: 0,
            max_size: TABLE_SIZE,
        }
    }
}

impl Decoder {
    /// Calls `emit` with each field of a block, which may refuse it.
    pub(super) fn decode(
        &mut self,
        block: &[u8],
        mut emit: impl FnMut(Field) -> Result<(), Malformed>,
    ) -> Result<(), Malformed> {
        let mut reader = Reader(block);
        let mut is_first = true;
        while let Some(&kind) = reader.0.first() {
            if kind & 0xe0 == 0x20 {
                let max_size = reader.integer(5)?;
                // RFC 7541, 4.2: only at the beginning of a block.
                if !is_first || max_size > TABLE_SIZE {
                    return Err(Malformed);
                }
                self.max_size = max_size;
                self.evict();
                continue;
            }
            is_first = false;
            if kind & 0x80 != 0 {
                let index = reader.integer(7)?;
                emit(self.get(index)?)?;
                continue;
            }
            let is_indexed = kind & 0x40 != 0;
            let index = reader.integer(if is_indexed { 6 } else { 4 })?;
            let field = Field {
                name: match index {
                    0 => reader.string()?,
                    index => self.get(index)?.name,
                },
                value: reader.string()?,
                is_sensitive: kind & 0xf0 == 0x10,
            };
            if is_indexed {
                self.size += field.size();
                self.entries.push_front(field.clone());
                self.evict();
            }
            emit(field)?;
        }
        Ok(())
    }

    fn get(&self, index: usize) -> Result<Field, Malformed> {
        let offset = index.checked_sub(1).ok_or(Malformed)?;
        match STATIC.get(offset) {
            Some((name, value)) => Ok(Field {
                name: Bytes::from_static(name),
                value: Bytes::from_static(value),
                is_sensitive: false,
            }),
            None => self.entries.get(offset - STATIC.len()).cloned().ok_or(Malformed),
        }
    }

    fn evict(&mut self) {
        while self.size > self.max_size {
            let Some(oldest) = self.entries.pop_back() else {
                return;
            };
            self.size -= oldest.size();
        }
    }
}

// === impl Field ===

impl Field {
    pub(super) fn size(&self) -> usize {
        self.name.len() + self.value.len() + ENTRY_OVERHEAD
    }

    /// Appends the field as a literal without indexing.
    pub(super) fn encode(&self, block: &mut BytesMut) {
        block.put_u8(if self.is_sensitive { 0x10 } else { 0 });
        for text in [&self.name, &self.value] {
            // Without Huffman code.
            match u8::try_from(text.len()) {
                Ok(length) if length < 0x7f => block.put_u8(length),
                _ => {
                    block.put_u8(0x7f);
                    encode_varint((text.len() - 0x7f) as u64, block);
                }
            }
            block.extend_from_slice(text);
        }
    }
}

// === impl Reader ===

impl Reader<'_> {
    /// RFC 7541, 5.1. The part beyond the prefix is LEB128, like a protobuf varint.
    fn integer(&mut self, prefix: u32) -> Result<usize, Malformed> {
        let mask = u8::MAX >> (8 - prefix);
        let first = self.0.try_get_u8().map_err(|_| Malformed)? & mask;
        if first < mask {
            return Ok(first.into());
        }
        let rest = decode_varint(&mut self.0).map_err(|_| Malformed)?;
        let rest = usize::try_from(rest).map_err(|_| Malformed)?;
        rest.checked_add(mask.into()).ok_or(Malformed)
    }

    /// RFC 7541, 5.2.
    fn string(&mut self) -> Result<Bytes, Malformed> {
        let is_huffman = self.0.first().ok_or(Malformed)? & 0x80 != 0;
        let length = self.integer(7)?;
        let (text, rest) = self.0.split_at_checked(length).ok_or(Malformed)?;
        self.0 = rest;
        if is_huffman {
            return HUFFMAN.decode(text).map(Bytes::from);
        }
        Ok(Bytes::copy_from_slice(text))
    }
}

// === impl Huffman ===

impl Huffman {
    fn new() -> Self {
        let mut lengths = [(0, 0, 0); LONGEST_CODE + 1];
        let mut symbols = Vec::with_capacity(CODE_LENGTHS.len());
        let mut code = 0;
        for (length, entry) in lengths.iter_mut().enumerate() {
            code <<= 1;
            let first = symbols.len();
            let same = (0..=EOS)
                .zip(CODE_LENGTHS)
                .filter(|(_, of)| usize::from(*of) == length);
            symbols.extend(same.map(|(symbol, _)| symbol));
            let count = u32::try_from(symbols.len() - first).expect("a few hundred symbols must fit");
            *entry = (code, count, first);
            code += count;
        }
        Self { lengths, symbols }
    }

    fn decode(&self, text: &[u8]) -> Result<Vec<u8>, Malformed> {
        // The shortest code has five bits.
        let mut decoded = Vec::with_capacity(text.len() * 8 / 5);
        let (mut code, mut length) = (0_u32, 0_usize);
        for byte in text {
            for shift in (0..8).rev() {
                code = (code << 1) | u32::from((byte >> shift) & 1);
                length += 1;
                let (first, count, index) = *self.lengths.get(length).ok_or(Malformed)?;
                let Some(nth) = code.checked_sub(first).filter(|nth| *nth < count) else {
                    continue;
                };
                let nth = usize::try_from(nth).map_err(|_| Malformed)?;
                let symbol = self.symbols.get(index + nth).ok_or(Malformed)?;
                decoded.push(u8::try_from(*symbol).map_err(|_| Malformed)?);
                (code, length) = (0, 0);
            }
        }
        // The padding of the last byte consists of ones.
        if length < 8 && code == (1 << length) - 1 {
            Ok(decoded)
        } else {
            Err(Malformed)
        }
    }
}

#[cfg(test)]
mod tests;
