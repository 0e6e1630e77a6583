//! Faults that the user can inject and remove in the playground, and their keys.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

/// Injects a fault, or removes it if it is active.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    /// The driver takes seconds for each attach and detach.
    SlowDriver,
    /// The driver fails each attach.
    FailAttach,
    /// Node b is lost: its kubelet stops.
    LoseNode,
    /// The administrator adds the out-of-service taint to node b.
    OutOfService,
    /// The attacher is killed.
    KillAttacher,
    /// The API server is down.
    ApiOutage,
    /// kube-controller-manager is restarted; this action needs no second press.
    RestartControllers,
}

/// The command of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Toggle(Action),
    /// Pauses; while paused, lets the next step begin.
    Step,
    /// Ends a pause.
    Resume,
    /// Shows or hides what `kubectl csi-attach explain -A` prints.
    Explain,
    NextVolume,
    PreviousVolume,
    Help,
    /// Closes the help or the explanation.
    Close,
    Quit,
}

/// A key, its command and its help text.
pub(crate) struct Binding {
    pub(crate) key: KeyCode,
    pub(crate) command: Command,
    pub(crate) help: &'static str,
}

/// All keys, in the order of the help.
pub(crate) const BINDINGS: &[Binding] = &[
    bind(
        's',
        Command::Toggle(Action::SlowDriver),
        "slow driver: attaches and detaches take 6 s",
    ),
    bind(
        'f',
        Command::Toggle(Action::FailAttach),
        "failing attach: the driver fails each attach",
    ),
    bind(
        'n',
        Command::Toggle(Action::LoseNode),
        "lost node: node b stops, its volumes stay mounted",
    ),
    bind(
        'o',
        Command::Toggle(Action::OutOfService),
        "out-of-service taint on the lost node: force detach",
    ),
    bind('k', Command::Toggle(Action::KillAttacher), "kill -9 the attacher"),
    bind(
        'a',
        Command::Toggle(Action::ApiOutage),
        "API outage: requests and watches break",
    ),
    bind(
        'c',
        Command::Toggle(Action::RestartControllers),
        "restart the controllers",
    ),
    bind(
        'e',
        Command::Explain,
        "explain what waits, and for which component",
    ),
    bind(' ', Command::Step, "pause; then each press lets one step begin"),
    Binding {
        key: KeyCode::Enter,
        command: Command::Resume,
        help: "go on after a pause",
    },
    Binding {
        key: KeyCode::Down,
        command: Command::NextVolume,
        help: "timeline of the next volume (also Tab)",
    },
    Binding {
        key: KeyCode::Up,
        command: Command::PreviousVolume,
        help: "timeline of the previous volume",
    },
    bind('?', Command::Help, "this help"),
    Binding {
        key: KeyCode::Esc,
        command: Command::Close,
        help: "close what e or ? has opened",
    },
    bind('q', Command::Quit, "quit and clean up (also Ctrl-C)"),
];

const fn bind(key: char, command: Command, help: &'static str) -> Binding {
    Binding {
        key: KeyCode::Char(key),
        command,
        help,
    }
}

// === impl Command ===

impl Command {
    /// The action of a key for a fault.
    pub(crate) fn action(self) -> Option<Action> {
        match self {
            Self::Toggle(action) => Some(action),
            Self::Step
            | Self::Resume
            | Self::Explain
            | Self::NextVolume
            | Self::PreviousVolume
            | Self::Help
            | Self::Close
            | Self::Quit => None,
        }
    }
}

// === impl Action ===

impl Action {
    /// Label of the active fault.
    pub fn label(self) -> &'static str {
        match self {
            Self::SlowDriver => "slow driver",
            Self::FailAttach => "failing attach",
            Self::LoseNode => "node b lost",
            Self::OutOfService => "node b out of service",
            Self::KillAttacher => "attacher killed",
            Self::ApiOutage => "API outage",
            Self::RestartControllers => "controllers restarted",
        }
    }

    /// What a press does while the fault is active.
    pub(crate) fn undo(self) -> &'static str {
        match self {
            Self::SlowDriver => "speed the driver up",
            Self::FailAttach => "let attaches succeed",
            Self::LoseNode => "recover node b",
            Self::OutOfService => "remove the taint of node b",
            Self::KillAttacher => "start the attacher",
            Self::ApiOutage => "reconnect the API server",
            Self::RestartControllers => self.verb(),
        }
    }

    /// [`verb`](Self::verb) or [`undo`](Self::undo) in one word, for the list of keys.
    pub(crate) fn word(self, is_active: bool) -> &'static str {
        match (self, is_active) {
            (Self::SlowDriver, false) => "slow",
            (Self::SlowDriver, true) => "speed up",
            (Self::FailAttach, false) => "fail",
            (Self::FailAttach, true) => "succeed",
            (Self::LoseNode, false) => "node",
            (Self::LoseNode, true) => "recover",
            (Self::OutOfService, false) => "taint",
            (Self::OutOfService, true) => "untaint",
            (Self::KillAttacher, false) => "kill",
            (Self::KillAttacher, true) => "start",
            (Self::ApiOutage, false) => "API",
            (Self::ApiOutage, true) => "reconnect",
            (Self::RestartControllers, _) => "controllers",
        }
    }

    /// What a button of the action says while the fault is not active.
    pub(crate) fn verb(self) -> &'static str {
        match self {
            Self::SlowDriver => "slow the driver down",
            Self::FailAttach => "fail each attach",
            Self::LoseNode => "lose node b",
            Self::OutOfService => "taint node b out-of-service",
            Self::KillAttacher => "kill the attacher",
            Self::ApiOutage => "cut off the API server",
            Self::RestartControllers => "restart the controllers",
        }
    }
}

// === functions ===

/// The command of a key event, if any.
pub(crate) fn command_of(event: KeyEvent) -> Option<Command> {
    // Some terminals also report the release of a key.
    if event.kind == KeyEventKind::Release {
        return None;
    }
    let control = event.modifiers.contains(KeyModifiers::CONTROL);
    // In raw mode Ctrl-C is a key, not a signal.
    if control && event.code == KeyCode::Char('c') {
        return Some(Command::Quit);
    }
    if control || event.modifiers.contains(KeyModifiers::ALT) {
        return None;
    }
    if event.code == KeyCode::Tab {
        return Some(Command::NextVolume);
    }
    let bound = BINDINGS.iter().find(|binding| binding.key == event.code);
    bound.map(|binding| binding.command)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn keys_have_their_commands() {
        let plain = KeyModifiers::NONE;
        for (code, modifiers, expected) in [
            (
                KeyCode::Char('s'),
                plain,
                Some(Command::Toggle(Action::SlowDriver)),
            ),
            (
                KeyCode::Char('f'),
                plain,
                Some(Command::Toggle(Action::FailAttach)),
            ),
            (KeyCode::Char('n'), plain, Some(Command::Toggle(Action::LoseNode))),
            (
                KeyCode::Char('o'),
                plain,
                Some(Command::Toggle(Action::OutOfService)),
            ),
            (
                KeyCode::Char('k'),
                plain,
                Some(Command::Toggle(Action::KillAttacher)),
            ),
            (
                KeyCode::Char('a'),
                plain,
                Some(Command::Toggle(Action::ApiOutage)),
            ),
            (
                KeyCode::Char('c'),
                plain,
                Some(Command::Toggle(Action::RestartControllers)),
            ),
            (KeyCode::Char('c'), KeyModifiers::CONTROL, Some(Command::Quit)),
            (KeyCode::Char('q'), plain, Some(Command::Quit)),
            (KeyCode::Char('?'), KeyModifiers::SHIFT, Some(Command::Help)),
            (KeyCode::Tab, plain, Some(Command::NextVolume)),
            (KeyCode::Down, plain, Some(Command::NextVolume)),
            (KeyCode::Up, plain, Some(Command::PreviousVolume)),
            (KeyCode::Char('s'), KeyModifiers::CONTROL, None),
            (KeyCode::Char('q'), KeyModifiers::ALT, None),
            (KeyCode::Char(' '), plain, Some(Command::Step)),
            (KeyCode::Enter, plain, Some(Command::Resume)),
            (KeyCode::Char('e'), plain, Some(Command::Explain)),
            (KeyCode::Esc, plain, Some(Command::Close)),
            (KeyCode::Char('x'), plain, None),
        ] {
            assert_eq!(
                command_of(KeyEvent::new(code, modifiers)),
                expected,
                "{modifiers} {code}"
            );
        }
    }

    #[test]
    fn release_of_a_key_does_nothing() {
        let mut event = KeyEvent::new(KeyCode::Char('q'), KeyModifiers::NONE);
        event.kind = KeyEventKind::Release;
        assert_eq!(command_of(event), None);
    }

    #[test]
    fn no_key_is_bound_twice() {
        let keys: BTreeSet<_> = BINDINGS.iter().map(|binding| binding.key.to_string()).collect();
        assert_eq!(keys.len(), BINDINGS.len());
    }
}
