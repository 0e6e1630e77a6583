//! The commands of stories: their syntax, which [`COMMANDS`] lists, and their effects.

mod condition;
mod rule;
mod run;

use std::time::Duration;

use anyhow::Result;

use self::condition::Condition;
use self::rule::Rule;
use super::Setup;
use super::words::{MAX_NODES, SyntaxError, Words};
use csi_e2e::fixture::Access;
use csi_e2e::scenario::test_env::STEP_TIMEOUT;

/// How long `expect` waits.
const SOON: Duration = Duration::from_secs(10);
/// The highest limit that can be set.
const MAX_LIMIT: usize = 256;
/// Slower calls would exceed the attacher's deadline.
const MAX_LATENCY: Duration = Duration::from_secs(10);
/// The most pods of one command.
const MAX_PODS: usize = 200;

/// A command with its arguments.
#[derive(Debug)]
pub(super) enum Command {
    /// Its effect is the setup.
    Set,
    CreateVolumes(Vec<String>, Access),
    CreatePod {
        name: String,
        node: usize,
        volumes: Vec<String>,
    },
    CreatePods {
        name: String,
        count: usize,
        nodes: Vec<usize>,
    },
    DeletePod(String),
    DeletePodByForce(String),
    DeletePods(String),
    Wait(Condition, Duration),
    AddRule(Rule),
    RemoveRules,
    UnpublishOutOfBand {
        volume: String,
        node: usize,
    },
    Kill(Process),
    Start(Process),
    StopReplica(String),
    StopApiServer,
    StartApiServer,
    RestartControllers,
    LoseNode(usize),
    RecoverNode(usize),
    OutOfService(usize),
    RemoveTaints(usize),
    Register {
        node: usize,
        is_registered: bool,
    },
    Pause(Duration),
}

/// A process that a command kills or starts.
#[derive(Debug)]
pub(super) enum Process {
    Attacher,
    /// An attacher with leader election.
    Replica(String),
    Driver,
}

/// A command that was read.
type Parsed = Result<Command, SyntaxError>;

/// How a command is written.
pub(super) struct Syntax {
    /// One or several forms, a line each. All begin with the command's first word.
    pub(super) forms: &'static [&'static str],
    pub(super) about: &'static str,
    /// Whether the narration says that the user executes it.
    pub(super) is_action: bool,
    /// Reads the words after the first.
    parse: fn(&mut Words, &mut Setup) -> Parsed,
}

/// All commands, in the order of the documentation.
pub(super) const COMMANDS: &[Syntax] = &[
    Syntax {
        forms: &[
            "set nodes N",
            "set latency DURATION",
            "set attach-limit N",
            "set list-interval DURATION",
        ],
        about: "before the first paragraph: the number of nodes (default 2), the time that the driver takes for each attach and \
                detach (default 300ms), the number of volumes that a node can have, the time between two calls of ListVolumes (default \
                60s)",
        is_action: false,
        parse: set,
    },
    Syntax {
        forms: &["volume NAME, ... [shared]"],
        about: "creates claims and their volumes, ReadWriteOnce, or ReadWriteMany if shared",
        is_action: true,
        parse: |words, _| {
            let names = words.list(|words| words.name("the name of a volume"))?;
            let access = match words.accept("shared") {
                true => Access::ManyNodes,
                false => Access::OneNode,
            };
            Ok(Command::CreateVolumes(names, access))
        },
    },
    Syntax {
        forms: &["pod NAME on NODE [with VOLUME, ...]"],
        about: "creates a pod for a node, and those of its volumes that do not exist",
        is_action: true,
        parse: |words, setup| {
            let name = words.name("the name of a pod")?;
            words.expect("on")?;
            let node = words.node(setup)?;
            let volumes = match words.accept("with") {
                true => words.list(|words| words.name("the name of a volume"))?,
                false => Vec::new(),
            };
            Ok(Command::CreatePod { name, node, volumes })
        },
    },
    Syntax {
        forms: &["pods NAME N on NODE, ..."],
        about: "creates pods NAME-0, NAME-1 and so on, for the nodes in turn, each with a volume of the pod's name",
        is_action: true,
        parse: |words, setup| {
            let name = words.name("the name of the pods")?;
            let count = words.number(MAX_PODS)?;
            words.expect("on")?;
            let nodes = words.list(|words| words.node(setup))?;
            Ok(Command::CreatePods { name, count, nodes })
        },
    },
    Syntax {
        forms: &["delete pod NAME [by force]", "delete pods NAME"],
        about: "deletes a pod, or the pods of one `pods` command; by force: without waiting for its kubelet",
        is_action: true,
        parse: |words, _| {
            let what = words.choice("what to delete", &["pod", "pods"])?;
            let name = words.name("the name of a pod")?;
            Ok(match what {
                "pods" => Command::DeletePods(name),
                _ if words.accept("by force") => Command::DeletePodByForce(name),
                _ => Command::DeletePod(name),
            })
        },
    },
    Syntax {
        forms: condition::FORMS,
        about: "waits for a condition, by default for at most two minutes; the story fails if it does not come true",
        is_action: false,
        parse: |words, setup| wait(words, setup, STEP_TIMEOUT),
    },
    Syntax {
        forms: &["expect CONDITION [within DURATION]"],
        about: "as `wait`, by default for at most ten seconds",
        is_action: false,
        parse: |words, setup| wait(words, setup, SOON),
    },
    Syntax {
        forms: rule::FORMS,
        about: "adds a fault rule; `pretends` responds without doing anything, `hangs` does it and does not respond. `works again` \
                removes all rules",
        is_action: true,
        parse: |words, setup| match words.accept("works again") {
            true => Ok(Command::RemoveRules),
            false => Rule::parse(words, setup).map(Command::AddRule),
        },
    },
    Syntax {
        forms: &["array unpublishes VOLUME from NODE"],
        about: "the array detaches a volume although neither Kubernetes nor the attacher asked for it",
        is_action: true,
        parse: |words, setup| {
            words.expect("unpublishes")?;
            let volume = words.name("the name of a volume")?;
            words.expect("from")?;
            let node = words.node(setup)?;
            Ok(Command::UnpublishOutOfBand { volume, node })
        },
    },
    Syntax {
        forms: &["kill attacher [NAME]", "kill driver"],
        about: "kills a process by SIGKILL; it stays dead until `start`",
        is_action: true,
        parse: |words, _| {
            Ok(Command::Kill(
                match words.choice(PROCESS, &["attacher", "driver"])? {
                    "driver" => Process::Driver,
                    _ => attacher(words)?,
                },
            ))
        },
    },
    Syntax {
        forms: &["stop attacher NAME", "stop api-server"],
        about: "sends SIGTERM to an attacher that `start attacher NAME` has started, or makes the API server unreachable, which \
                fails with `--cluster kubeconfig`",
        is_action: true,
        parse: |words, _| {
            Ok(match words.choice(PROCESS, &["attacher", "api-server"])? {
                "api-server" => Command::StopApiServer,
                _ => Command::StopReplica(words.name("the name of an attacher")?),
            })
        },
    },
    Syntax {
        forms: &["start attacher [NAME]", "start driver", "start api-server"],
        about: "starts what was killed or stopped. With a name: an attacher with leader election; the first one replaces the \
                attacher without a name. `api-server` fails with `--cluster kubeconfig`",
        is_action: true,
        parse: |words, setup| {
            let process = match words.choice(PROCESS, &["attacher", "driver", "api-server"])? {
                "driver" => Process::Driver,
                "api-server" => return Ok(Command::StartApiServer),
                _ => attacher(words)?,
            };
            setup.has_replicas |= matches!(process, Process::Replica(_));
            Ok(Command::Start(process))
        },
    },
    Syntax {
        forms: &["restart controllers"],
        about: "restarts kube-controller-manager, which rebuilds its desired and actual state of world from the API. Fails with \
                `--cluster kubeconfig`",
        is_action: true,
        parse: |words, _| words.expect("controllers").map(|()| Command::RestartControllers),
    },
    Syntax {
        forms: &["lose node NODE"],
        about: "the node's kubelet stops without a shutdown: its volumes stay mounted, and it reports nothing",
        is_action: true,
        parse: |words, setup| {
            words.expect("node")?;
            words.node(setup).map(Command::LoseNode)
        },
    },
    Syntax {
        forms: &["recover node NODE"],
        about: "starts a lost node's kubelet, with the mounts that the node had",
        is_action: true,
        parse: |words, setup| {
            words.expect("node")?;
            words.node(setup).map(Command::RecoverNode)
        },
    },
    Syntax {
        forms: &["taint NODE out-of-service"],
        about: "adds the taint node.kubernetes.io/out-of-service: volumes may be detached from the node although they were not unmounted",
        is_action: true,
        parse: |words, setup| {
            let node = words.node(setup)?;
            words.expect("out-of-service")?;
            Ok(Command::OutOfService(node))
        },
    },
    Syntax {
        forms: &["untaint NODE"],
        about: "removes all taints of a node; the node lifecycle controller restores its own",
        is_action: true,
        parse: |words, setup| words.node(setup).map(Command::RemoveTaints),
    },
    Syntax {
        forms: &["unregister driver on NODE"],
        about: "removes the driver from the node's CSINode, as kubelet does while the driver's pod on the node is away",
        is_action: true,
        parse: |words, setup| register(words, setup, false),
    },
    Syntax {
        forms: &["register driver on NODE"],
        about: "adds the driver to the node's CSINode again, as kubelet does when the driver's pod on the node is ready",
        is_action: true,
        parse: |words, setup| register(words, setup, true),
    },
    Syntax {
        forms: &["pause DURATION"],
        about: "lets time pass; prefer `wait`, which ends as soon as its condition holds",
        is_action: false,
        parse: |words, _| words.duration().map(Command::Pause),
    },
];

const PROCESS: &str = "a process";

// === impl Syntax ===

impl Syntax {
    /// The first word.
    pub(super) fn verb(&self) -> &'static str {
        let form = self.forms.first().copied().unwrap_or_default();
        form.split(' ').next().unwrap_or_default()
    }
}

// === functions ===

/// Reads a command.
///
/// # Errors
/// There is no such command, whose text lists all; or its arguments are wrong, whose text has its forms.
pub(super) fn parse(mut words: Words, setup: &mut Setup) -> Result<(&'static Syntax, Command), SyntaxError> {
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

fn set(words: &mut Words, setup: &mut Setup) -> Parsed {
    if setup.has_begun {
        return Err(words.error("`set` belongs before the first paragraph and the first other command"));
    }
    match words.choice(
        "a setting",
        &["nodes", "latency", "attach-limit", "list-interval"],
    )? {
        "nodes" => setup.config.nodes = words.number(MAX_NODES)?,
        "latency" => {
            let latency = words.duration()?;
            if latency > MAX_LATENCY {
                return Err(words.error(format!(
                    "a latency of more than {MAX_LATENCY:?} exceeds the attacher's deadline"
                )));
            }
            setup.config.latency = latency;
        }
        "list-interval" => setup.config.reconcile_sync = words.duration()?,
        _ => {
            let flag = format!("--attach-limit={}", words.number(MAX_LIMIT)?);
            // Flags of a setup are static, so this one is leaked.
            setup.config.driver_flags = vec![&*flag.leak()].leak();
        }
    }
    Ok(Command::Set)
}

fn wait(words: &mut Words, setup: &Setup, default: Duration) -> Parsed {
    let condition = Condition::parse(words, setup)?;
    let within = match words.accept("within") {
        true => words.duration()?,
        false => default,
    };
    Ok(Command::Wait(condition, within))
}

fn attacher(words: &mut Words) -> Result<Process, SyntaxError> {
    match words.end() {
        Ok(()) => Ok(Process::Attacher),
        Err(_) => words.name("the name of an attacher").map(Process::Replica),
    }
}

fn register(words: &mut Words, setup: &Setup, is_registered: bool) -> Parsed {
    words.expect("driver on")?;
    let node = words.node(setup)?;
    Ok(Command::Register { node, is_registered })
}
