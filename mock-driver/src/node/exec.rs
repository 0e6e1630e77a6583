//! Programs of the system for disks and filesystems.

use std::ffi::OsStr;
use std::io::{self, ErrorKind};
use std::process::{Command, Output, Stdio};

/// Their directories, for a process whose PATH lacks `/sbin`.
const DIRECTORIES: [&str; 3] = ["", "/usr/sbin/", "/sbin/"];

/// Maximum number of bytes of a program's output in an error.
const OUTPUT_LIMIT: usize = 400;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Program {
    pub(crate) name: &'static str,
    pub(crate) package: &'static str,
}

/// The error of a program.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "documented by the error messages")]
pub enum Error {
    #[error("{name} is not installed: install the package {package}")]
    Missing {
        name: &'static str,
        package: &'static str,
    },
    #[error("cannot start {name}")]
    Start { name: &'static str, source: io::Error },
    #[error("{name} ended with {status}: {output}")]
    Failed {
        name: &'static str,
        status: String,
        code: Option<i32>,
        output: String,
    },
}

// === impl Program ===

impl Program {
    /// Runs the program and returns its output. Blocks.
    ///
    /// # Errors
    /// It is not installed, cannot be started, or exits with a code that is not in `fine`.
    pub(crate) fn run<A: AsRef<OsStr>>(
        self,
        args: impl IntoIterator<Item = A> + Clone,
        fine: &[i32],
    ) -> Result<String, Error> {
        let output = self.start(args)?;
        if output.status.code().is_some_and(|code| fine.contains(&code)) {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Err(Error::Failed {
            name: self.name,
            status: output.status.to_string(),
            code: output.status.code(),
            output: said(&output),
        })
    }

    fn start<A: AsRef<OsStr>>(self, args: impl IntoIterator<Item = A> + Clone) -> Result<Output, Error> {
        for directory in DIRECTORIES {
            let mut command = Command::new(format!("{directory}{}", self.name));
            command.args(args.clone()).env("LC_ALL", "C").stdin(Stdio::null());
            match command.output() {
                Ok(output) => return Ok(output),
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(source) => {
                    return Err(Error::Start {
                        name: self.name,
                        source,
                    });
                }
            }
        }
        Err(Error::Missing {
            name: self.name,
            package: self.package,
        })
    }
}

/// The end of a program's output in one line: errors are last.
fn said(output: &Output) -> String {
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    let text = String::from_utf8_lossy(&text);
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let skipped = text.chars().count().saturating_sub(OUTPUT_LIMIT);
    text.chars().skip(skipped).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_of_a_missing_program_names_its_package() {
        let program = Program {
            name: "mkfs.nothing",
            package: "nothingprogs",
        };
        let error = program.run(["/dev/null"], &[0]).unwrap_err().to_string();
        assert_eq!(
            error,
            "mkfs.nothing is not installed: install the package nothingprogs"
        );
    }

    #[test]
    fn error_has_the_output_and_expected_exit_codes_succeed() {
        let program = Program {
            name: "sh",
            package: "dash",
        };
        let args = ["-c", "echo some; echo trouble >&2; exit 3"];
        let error = program.run(args, &[0]).unwrap_err().to_string();
        assert!(error.contains("some trouble") && error.contains('3'), "{error}");
        assert_eq!(program.run(args, &[0, 3]).unwrap(), "some\n");
    }
}
