//! The wire format of protobuf.

/// `io.ErrUnexpectedEOF` of Go.
pub(super) const UNEXPECTED_EOF: &str = "unexpected EOF";

/// The value of a field on the wire.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wire<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    /// A fixed-size number; no field of Kubernetes' messages is one.
    Fixed,
}

/// Reads the fields of a message.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

// === impl Wire ===

impl<'a> Wire<'a> {
    pub(super) fn number(self) -> Result<u64, String> {
        match self {
            Self::Number(number) => Ok(number),
            Self::Bytes(_) | Self::Fixed => Err(self.mismatch()),
        }
    }

    pub(super) fn bytes(self) -> Result<&'a [u8], String> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            Self::Number(_) | Self::Fixed => Err(self.mismatch()),
        }
    }

    fn mismatch(self) -> String {
        let number = match self {
            Self::Number(_) => 0,
            Self::Fixed => 1,
            Self::Bytes(_) => 2,
        };
        format!("proto: wrong wireType = {number}")
    }
}

// === impl Reader ===

impl<'a> Reader<'a> {
    fn field(&mut self) -> Result<(u64, Wire<'a>), String> {
        let tag = self.varint()?;
        let wire = match tag & 7 {
            0 => Wire::Number(self.varint()?),
            1 => {
                self.take(8)?;
                Wire::Fixed
            }
            2 => {
                let length = self.varint()?;
                Wire::Bytes(self.take(usize::try_from(length).unwrap_or(usize::MAX))?)
            }
            5 => {
                self.take(4)?;
                Wire::Fixed
            }
            other => return Err(format!("proto: illegal wireType {other}")),
        };
        Ok((tag >> 3, wire))
    }

    fn varint(&mut self) -> Result<u64, String> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?[0];
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err("proto: integer overflow".to_owned())
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], String> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(UNEXPECTED_EOF)?;
        self.0 = rest;
        Ok(taken)
    }
}

impl<'a> Iterator for Reader<'a> {
    type Item = Result<(u64, Wire<'a>), String>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.0 = &[];
        }
        Some(field)
    }
}
