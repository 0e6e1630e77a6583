//! Flag values in the syntax of Go programs.

use std::path::{Path, PathBuf};

use clap::builder::{OsStringValueParser, TypedValueParser};

/// Go's values of a boolean flag.
pub(super) fn switch(text: &str) -> Result<bool, &'static str> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err("must be true or false"),
    }
}

/// A path that may be empty, which clap's own parser refuses.
pub(super) fn path_or_empty() -> impl TypedValueParser<Value = PathBuf> {
    OsStringValueParser::new().map(PathBuf::from)
}

/// A path; `None` if it is empty.
pub(in crate::run) fn given(path: &Path) -> Option<PathBuf> {
    Some(path.to_owned()).filter(|path| !path.as_os_str().is_empty())
}
