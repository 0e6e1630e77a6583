//! Parses the command line: Go's syntax, csi-driver-host-path's flags, and flags that contradict each other.

use std::collections::BTreeSet;
use std::ffi::OsString;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Command, CommandFactory, FromArgMatches};

use super::hostpath::HostPathArgs;
use super::hostpath::translate::translate;
use super::{Args, ArrayArgs, KlogArgs, NodeArgs, RANDOM_LIMIT};
use crate::driver::mode::Mode;
use crate::fault::scenario::Scenario;

/// Flags that `--proxy-to` ignores, besides [`ArrayArgs`] and [`NodeArgs`].
pub(super) const IGNORED_BY_PROXY: [&str; 6] = [
    "attach_limit",
    "busy",
    "capabilities",
    "ready_after",
    "required_secrets",
    "state_dir",
];

// === impl Args ===

impl Args {
    /// Parses the flags.
    ///
    /// # Errors
    /// A text for the user, also for `--help` and `--version`.
    pub fn read(args: impl IntoIterator<Item = OsString>) -> Result<Self, clap::Error> {
        let words = with_two_dashes(args);
        let is_host_path = HostPathArgs::is_host_path_command_line(&words);
        let command = if is_host_path {
            HostPathArgs::defaults(Self::command())
        } else {
            Self::command()
        };
        let matches = command.try_get_matches_from(words)?;
        let mut args = Self::from_arg_matches(&matches)?;
        args.notes.extend(args.klog.notes());
        args.notes.extend(args.without_array(&matches));
        // Manifests of csi-driver-host-path have such flags on every process.
        if let Some(objection) = args.array_flag_on_node(&matches).filter(|_| !is_host_path) {
            return Err(Self::command().error(ErrorKind::ArgumentConflict, objection));
        }
        args.notes.extend(args.host_path.notes());
        if is_host_path {
            translate(&mut args, &matches);
        }
        if let Some(objection) = args.array.objection() {
            return Err(Self::command().error(ErrorKind::ValueValidation, objection));
        }
        let given = |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
        if args.faults.proxy_to.is_none() && !is_host_path {
            if let Some(objection) = args.contradiction() {
                return Err(Self::command().error(ErrorKind::ArgumentConflict, objection));
            }
            let notes = match args.faults.proxy_endpoint.is_given() {
                true => Self::without_driver(&matches),
                false => args.ineffective(given),
            };
            args.notes.extend(notes);
        }
        Ok(args)
    }

    /// The list of scenarios, if `--scenario=help` requests it; no other flag is required then.
    pub fn scenario_help(words: &[OsString]) -> Option<String> {
        let words = with_two_dashes(words.iter().cloned());
        let mut values = words
            .iter()
            .filter_map(|word| word.to_str()?.strip_prefix("--scenario="));
        let asks = |value: &str| value.split(',').any(|name| name.trim() == "help");
        values.next_back().is_some_and(asks).then(Scenario::help)
    }

    /// Flags that `--proxy-endpoint` ignores: all of a driver.
    fn without_driver(matches: &ArgMatches) -> Vec<String> {
        let mut used = ids::<KlogArgs>();
        used.extend(["endpoint", "proxy_endpoint", "stop_on_stdin_eof", "v"].map(str::to_owned));
        let note = |name| format!("--{name} has no effect beside --proxy-endpoint, which is no driver");
        given(matches, |id| !used.contains(id)).map(note).collect()
    }

    /// Array flags that `--proxy-to` ignores.
    fn without_array(&self, matches: &ArgMatches) -> Vec<String> {
        if self.faults.proxy_to.is_none() {
            return Vec::new();
        }
        let mut ignored = ids::<ArrayArgs>();
        ignored.extend(ids::<NodeArgs>());
        ignored.extend(IGNORED_BY_PROXY.map(str::to_owned));
        let note =
            |name| format!("--{name} has no effect beside --proxy-to: array and node are the other driver's");
        given(matches, |id| ignored.contains(id)).map(note).collect()
    }

    /// The error for a flag of the array on a process with a node only.
    fn array_flag_on_node(&self, matches: &ArgMatches) -> Option<String> {
        let is_given = |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
        let id = match is_given("attach_limit") && self.attach_limit != RANDOM_LIMIT {
            true => "attach_limit".to_owned(),
            false => ids::<ArrayArgs>().into_iter().find(|id| is_given(id))?,
        };
        let flag = Self::command()
            .get_arguments()
            .find(|flag| flag.get_id().as_str() == id)?
            .get_long()?
            .to_owned();
        (self.node.mode == Mode::Node).then(|| {
            format!(
                "--{flag} has no effect with --mode=node: the array is in the process at --array-endpoint; give the \
                 flag there"
            )
        })
    }
}

/// The names of the flags on the command line whose ids `is_asked` accepts.
fn given(matches: &ArgMatches, is_asked: impl Fn(&str) -> bool) -> impl Iterator<Item = String> {
    let ids = matches.ids().map(|id| id.as_str().to_owned());
    let given: BTreeSet<String> = ids
        .filter(|id| matches.value_source(id) == Some(ValueSource::CommandLine) && is_asked(id))
        .collect();
    let flags: Vec<Arg> = Args::command().get_arguments().cloned().collect();
    let names = flags
        .into_iter()
        .filter(move |flag| given.contains(flag.get_id().as_str()));
    names.filter_map(|flag| flag.get_long().map(str::to_owned))
}

/// The ids of the flags of `A`.
pub(super) fn ids<A: clap::Args>() -> BTreeSet<String> {
    let command = A::augment_args(Command::new(""));
    let flags = command.get_arguments();
    flags.map(|flag| flag.get_id().to_string()).collect()
}

/// Adds the second dash to flags with one, and joins each flag with its value, so that a value that begins with a dash is
/// not parsed as a flag.
fn with_two_dashes(args: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let command = Args::command();
    let is_named = |arg: &Arg, name: &str| {
        let aliases = arg.get_all_aliases().unwrap_or_default();
        arg.get_long() == Some(name) || aliases.contains(&name)
    };
    // Go's boolean flags are `true` without a value: a value is only in the same word.
    let is_switch = Arg::is_require_equals_set;
    let takes_value = |name: &str| {
        command
            .get_arguments()
            .any(|arg| is_named(arg, name) && arg.get_action().takes_values() && !is_switch(arg))
    };
    let mut args = args.into_iter();
    let mut rewritten: Vec<OsString> = args.next().into_iter().collect();
    while let Some(arg) = args.next() {
        let text = arg.to_str().unwrap_or_default();
        let Some(name) = text.strip_prefix("--").or_else(|| text.strip_prefix('-')) else {
            rewritten.push(arg);
            continue;
        };
        let mut flag = OsString::from(match name {
            "h" => "--help".to_owned(),
            "V" => "--version".to_owned(),
            name => format!("--{name}"),
        });
        if takes_value(name)
            && let Some(value) = args.next()
        {
            flag.push("=");
            flag.push(value);
        }
        rewritten.push(flag);
    }
    rewritten
}
