//! The commands of stories. Each has a file with its syntax and its effect; [`COMMANDS`] lists them.

mod array;
mod condition;
mod delete;
mod driver;
mod kill;
mod lose;
mod pause;
mod pod;
mod pods;
mod recover;
mod register;
mod restart;
mod set;
mod start;
mod stop;
mod taint;
mod untaint;
mod volume;
mod wait;

use std::fmt::Debug;

use anyhow::Result;
use futures::future::BoxFuture;

use super::Setup;
use super::stage::Stage;
use super::words::{SyntaxError, Words};

/// A command with its arguments.
pub(super) trait Command: Debug + Send + Sync {
    /// Executes it.
    fn run<'a>(&'a self, stage: &'a mut Stage<'_, '_>) -> BoxFuture<'a, Result<()>>;
}

/// A command that was read.
pub(super) type Parsed = Result<Box<dyn Command>, SyntaxError>;

/// How a command is written.
pub(super) struct Syntax {
    /// One or several forms, a line each. All begin with the command's first word.
    pub(super) forms: &'static [&'static str],
    pub(super) about: &'static str,
    /// Whether the narration says that the user executes it.
    pub(super) is_action: bool,
    /// Reads the words after the first.
    pub(super) parse: fn(&mut Words, &mut Setup) -> Parsed,
}

/// All commands, in the order of the documentation.
pub(super) const COMMANDS: &[Syntax] = &[
    set::SYNTAX,
    volume::SYNTAX,
    pod::SYNTAX,
    pods::SYNTAX,
    delete::SYNTAX,
    wait::WAIT,
    wait::EXPECT,
    driver::SYNTAX,
    array::SYNTAX,
    kill::SYNTAX,
    stop::SYNTAX,
    start::SYNTAX,
    restart::SYNTAX,
    lose::SYNTAX,
    recover::SYNTAX,
    taint::SYNTAX,
    untaint::SYNTAX,
    register::UNREGISTER,
    register::REGISTER,
    pause::SYNTAX,
];

// === impl Syntax ===

impl Syntax {
    /// The first word.
    pub(super) fn verb(&self) -> &'static str {
        let form = self.forms.first().copied().unwrap_or_default();
        form.split(' ').next().unwrap_or_default()
    }
}

/// Reads a command.
///
/// # Errors
/// There is no such command, whose text lists all; or its arguments are wrong, whose text has its forms.
pub(super) fn parse(
    mut words: Words,
    setup: &mut Setup,
) -> Result<(&'static Syntax, Box<dyn Command>), SyntaxError> {
    let verb = words.peek().to_owned();
    let Some(syntax) = COMMANDS.iter().find(|syntax| words.accept(syntax.verb())) else {
        let forms: Vec<_> = COMMANDS
            .iter()
            .flat_map(|syntax| syntax.forms.iter().copied())
            .collect();
        return Err(words.error(format!(
            "there is no command `{verb}`. The commands are:\n  {}",
            forms.join("\n  ")
        )));
    };
    let parsed = (syntax.parse)(&mut words, setup).and_then(|command| words.end().map(|()| command));
    let command = parsed.map_err(|error| SyntaxError {
        text: format!(
            "{}\n  {}\n{}",
            error.text,
            syntax.forms.join("\n  "),
            syntax.about
        ),
        ..error
    })?;
    Ok((syntax, command))
}
