//! Parses decimal numbers as Go's `strconv` does.

use std::num::IntErrorKind;

/// # Errors
/// The text of Go's `NumError`.
pub(crate) fn parse_uint(text: &str) -> Result<u64, String> {
    magnitude(text).map_err(|why| error("ParseUint", text, why))
}

/// # Errors
/// The text of Go's `NumError`.
pub(crate) fn parse_int(text: &str) -> Result<i64, String> {
    let (sign, digits) = match text.split_at_checked(1) {
        Some(("+", digits)) => (1, digits),
        Some(("-", digits)) => (-1, digits),
        _ => (1, text),
    };
    let number = magnitude(digits).and_then(|magnitude| {
        let number = i128::from(magnitude) * sign;
        i64::try_from(number).map_err(|_| OUT_OF_RANGE)
    });
    number.map_err(|why| error("ParseInt", text, why))
}

const OUT_OF_RANGE: &str = "value out of range";

/// A number without a sign. Go reads the digits from left to right, so an overflow precedes a wrong letter.
fn magnitude(text: &str) -> Result<u64, &'static str> {
    let (digits, rest) = text.split_at(text.bytes().take_while(u8::is_ascii_digit).count());
    match digits.parse() {
        Ok(number) if rest.is_empty() => Ok(number),
        Err(error) if *error.kind() == IntErrorKind::PosOverflow => Err(OUT_OF_RANGE),
        Ok(_) | Err(_) => Err("invalid syntax"),
    }
}

fn error(function: &str, text: &str, why: &str) -> String {
    format!("strconv.{function}: parsing {text:?}: {why}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_numbers_as_go() {
        let syntax = "invalid syntax";
        let table = [
            ("5", Ok(5), Ok(5)),
            ("+5", Err(syntax), Ok(5)),
            ("-5", Err(syntax), Ok(-5)),
            ("", Err(syntax), Err(syntax)),
            ("+", Err(syntax), Err(syntax)),
            ("5x", Err(syntax), Err(syntax)),
            ("9223372036854775808", Ok(1 << 63), Err(OUT_OF_RANGE)),
            ("-9223372036854775808", Err(syntax), Ok(i64::MIN)),
            ("99999999999999999999", Err(OUT_OF_RANGE), Err(OUT_OF_RANGE)),
            ("99999999999999999999x", Err(OUT_OF_RANGE), Err(OUT_OF_RANGE)),
        ];
        for (text, unsigned, signed) in table {
            let unsigned: Result<u64, &str> = unsigned;
            assert_eq!(
                parse_uint(text),
                unsigned.map_err(|why| error("ParseUint", text, why))
            );
            assert_eq!(
                parse_int(text),
                signed.map_err(|why| error("ParseInt", text, why))
            );
        }
    }
}
