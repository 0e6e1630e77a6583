//! Shell completion: scripts by clap_complete for the program itself, and cobra's protocol for kubectl, which runs
//! `kubectl_complete-csi_attach` (see README.md).

use clap::CommandFactory;

use crate::args::Args;
use crate::resource::ResourceKind;

/// cobra's ShellCompDirectiveNoFileComp.
const NO_FILE_COMPLETION: &str = ":4";

/// The completion script of a shell.
pub(crate) fn script(shell: clap_complete::Shell) -> Vec<u8> {
    let mut script = Vec::new();
    let mut command = Args::command();
    clap_complete::generate(shell, &mut command, "kubectl-csi_attach", &mut script);
    script
}

/// Candidates for the last of `words`, one a line, then cobra's directive.
pub(crate) fn candidates(words: &[String]) -> String {
    let (last, before) = match words.split_last() {
        Some((last, before)) => (last.as_str(), before),
        None => ("", &[][..]),
    };
    let mut command = Args::command();
    command.build();
    let subcommand = before
        .iter()
        .find_map(|word| command.get_subcommands().find(|sub| sub.get_name() == word));
    let mut candidates: Vec<String> = match subcommand {
        None => {
            let subcommands = command.get_subcommands().filter(|sub| !sub.is_hide_set());
            subcommands.map(|sub| sub.get_name().to_owned()).collect()
        }
        Some(subcommand) => {
            let arguments: Vec<_> = subcommand.get_arguments().collect();
            let flags = arguments.iter().filter_map(|argument| argument.get_long());
            let mut candidates: Vec<_> = flags.map(|flag| format!("--{flag}")).collect();
            if subcommand.get_name() == "explain" {
                candidates.extend(ResourceKind::NAMES.map(|kind| format!("{kind}/")));
            }
            let positionals = arguments.into_iter().filter(|argument| argument.is_positional());
            let values = positionals.flat_map(|argument| argument.get_possible_values());
            candidates.extend(values.map(|value| value.get_name().to_owned()));
            candidates
        }
    };
    candidates.retain(|candidate| {
        candidate.starts_with(last) && candidate.starts_with('-') == last.starts_with('-')
    });
    candidates.push(NO_FILE_COMPLETION.to_owned());
    candidates.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn candidates_depend_on_the_preceding_words() {
        for (words, expected) in [
            (&[""][..], "explain\ncompletion\nhelp\n:4\n"),
            (&["ex"], "explain\n:4\n"),
            (
                &["explain", "p"],
                "persistentvolume/\npersistentvolumeclaim/\npod/\n:4\n",
            ),
            (&["explain", "--c"], "--context\n:4\n"),
            (&["completion", "z"], "zsh\n:4\n"),
            (&["explain", "pod/x", "--stuck"], "--stuck-after\n:4\n"),
        ] {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            assert_eq!(candidates(&words), expected, "{words:?}");
        }
    }

    #[test]
    fn scripts_complete_the_subcommand() {
        use clap_complete::Shell;
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let script = String::from_utf8(script(shell)).unwrap();
            assert!(
                script.contains("explain") && script.contains("stuck-after"),
                "{shell}"
            );
        }
    }
}
