//! Rewrites the flag syntax of Go's `flag` package to clap's: one dash or two, the last of a repeated flag wins, and a boolean has
//! its value only after `=`.

use std::ffi::{OsStr, OsString};

use clap::builder::ValueParser;
use clap::{Arg, Command};

/// Flags that the all-in-one sidecar of KEP-4958 prefixes with `attacher-`, because other sidecars in it have flags of these
/// names (external-attacher's `RegisterAttacherFlagsWithPrefix`).
const PREFIXED: [&str; 8] = [
    "max-entries",
    "reconcile-sync",
    "max-grpc-log-length",
    "worker-threads",
    "default-fstype",
    "timeout",
    "retry-interval-start",
    "retry-interval-max",
];

/// As in Go, booleans need no value, and an empty default is not shown.
pub(super) fn argument(argument: Arg) -> Arg {
    let is_boolean = argument.get_value_parser().type_id() == ValueParser::bool().type_id();
    let hidden = matches!(argument.get_default_values(), [value] if value.is_empty() || value == "false");
    let argument = argument.hide_default_value(hidden);
    if is_boolean && argument.get_action().takes_values() {
        argument
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true")
            .value_parser(boolean)
            .value_name("BOOL")
    } else {
        argument
    }
}

/// The command line with two dashes and without the prefix of the all-in-one sidecar. Prefixed flags come last, so that they win
/// over unprefixed ones, which in the all-in-one sidecar belong to other sidecars.
pub(super) fn rewritten(line: impl IntoIterator<Item = OsString>, command: &Command) -> Vec<OsString> {
    let mut line = line.into_iter();
    let mut rewritten: Vec<OsString> = line.next().into_iter().collect();
    let mut prefixed: Vec<OsString> = Vec::new();
    while let Some(word) = line.next() {
        let Some(flag) = flag_name(&word) else {
            rewritten.push(word);
            continue;
        };
        let unprefixed = unprefixed(flag);
        let flag = unprefixed.unwrap_or(flag);
        let into = if unprefixed.is_some() {
            &mut prefixed
        } else {
            &mut rewritten
        };
        let wants_value = !flag.contains('=') && takes_value(flag, command);
        let flag = match flag {
            "h" => "help",
            "V" => "version",
            flag => flag,
        };
        let mut flag = format!("--{flag}");
        if wants_value {
            // Joined, so that a value such as -5 is not parsed as a flag.
            if let Some(value) = line.next() {
                match value.to_str() {
                    Some(value) => {
                        flag.push('=');
                        flag.push_str(value);
                    }
                    None => {
                        into.extend([flag.into(), value]);
                        continue;
                    }
                }
            }
        }
        into.push(flag.into());
    }
    rewritten.append(&mut prefixed);
    rewritten
}

/// `timeout=1s` of `attacher-timeout=1s`.
fn unprefixed(flag: &str) -> Option<&str> {
    let rest = flag.strip_prefix("attacher-")?;
    let name = rest.split_once('=').map_or(rest, |(name, _)| name);
    PREFIXED.contains(&name).then_some(rest)
}

fn flag_name(word: &OsStr) -> Option<&str> {
    let word = word.to_str()?;
    let name = word.strip_prefix("--").or_else(|| word.strip_prefix('-'))?;
    (!name.is_empty()).then_some(name)
}

fn takes_value(flag: &str, command: &Command) -> bool {
    command.get_arguments().any(|argument| {
        argument.get_long() == Some(flag)
            && argument.get_action().takes_values()
            && !argument.is_require_equals_set()
    })
}

/// The error of a rewritten line with a word that is not a flag. clap reports unknown flags and suggests similar ones.
pub(super) fn stray_word(line: &[OsString], command: &Command) -> Option<String> {
    let mut before = None;
    for word in line.iter().skip(1) {
        let flag = word.to_str().and_then(|word| word.strip_prefix("--"));
        let Some(flag) = flag else {
            let word = word.to_string_lossy();
            return Some(match (&*word, before) {
                ("explain", _) => {
                    "explain is a command of the kubectl plugin kubectl-csi_attach: kubectl csi-attach explain KIND/NAME"
                        .to_owned()
                }
                (value, Some(flag)) if boolean(value).is_ok() => format!(
                    "unexpected argument {value:?}: a boolean flag takes its value after =, as in --{flag}={value}"
                ),
                (word, _) => format!(
                    "unexpected argument {word:?}: flags begin with a dash"
                ),
            });
        };
        let name = flag.split_once('=').map_or(flag, |(name, _)| name);
        let known = name == "help"
            || command
                .get_arguments()
                .any(|argument| argument.get_long() == Some(name));
        if !known {
            return None;
        }
        before = Some(flag);
    }
    None
}

/// Go's booleans (strconv.ParseBool).
pub(super) fn boolean(value: &str) -> Result<bool, String> {
    match value {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Ok(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Ok(false),
        other => Err(format!("{other:?} must be true or false")),
    }
}

/// Parses a string flag; empty means unset.
pub(super) fn non_empty(value: &str) -> Result<Option<String>, std::convert::Infallible> {
    Ok((!value.is_empty()).then(|| value.to_owned()))
}

#[cfg(test)]
mod tests {
    use clap::{Arg, ArgAction};

    use super::*;

    #[test]
    fn rewrites_go_style_flags_and_rejects_stray_words() {
        let command = Command::new("c").arg(Arg::new("n").long("number")).arg(
            Arg::new("b")
                .long("bool")
                .num_args(0..=1)
                .require_equals(true)
                .action(ArgAction::Set),
        );
        let stray = |line: &[&str]| {
            let line: Vec<_> = ["c"].iter().chain(line).map(OsString::from).collect();
            stray_word(&line, &command)
        };
        assert_eq!(stray(&["--number=5", "--bool", "--help"]), None);
        assert_eq!(stray(&["--unknown", "5"]), None, "clap names the flag");
        for (line, part) in [
            (&["--bool", "true"][..], "--bool=true"),
            (&["explain", "pod/x"], "kubectl csi-attach explain"),
            (&["--bool", "explain"], "kubectl csi-attach explain"),
            (&["explian", "pod/x"], "unexpected argument \"explian\""),
            (&["-", "--number=5"], "unexpected argument \"-\""),
        ] {
            let error = stray(line).unwrap();
            assert!(error.contains(part), "{line:?}: {error}");
        }
        for (line, expected) in [
            (&["-number", "-5"][..], &["--number=-5"][..]),
            (&["--number", "5", "-bool"], &["--number=5", "--bool"]),
            (&["-bool", "-number=5"], &["--bool", "--number=5"]),
            (&["-number"], &["--number"]),
            (&["-h"], &["--help"]),
            (&["-V"], &["--version"]),
            (&["-", "--", "word"], &["-", "--", "word"]),
            (&["-unknown", "5"], &["--unknown", "5"]),
        ] {
            let line = std::iter::once("c")
                .chain(line.iter().copied())
                .map(OsString::from);
            assert_eq!(rewritten(line, &command)[1..], *expected);
        }
    }
}
